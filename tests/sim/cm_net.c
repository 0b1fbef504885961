/*
 * cm_net.c - see cm_net.h
 */
#include "cm_net.h"

#include <stdlib.h>
#include <string.h>

struct cm_packet {
	struct cm_packet *next;
	uint64_t at;
	union ibv_gid sgid, dgid;
	uint8_t mad[MAD_LEN];
};

uint64_t cm_net_rand(struct cm_net *net)
{
	uint64_t z = net->rng += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

uint32_t cm_net_below(struct cm_net *net, uint32_t n)
{
	return (uint32_t)((cm_net_rand(net) >> 32) * n >> 32);
}

bool cm_net_chance(struct cm_net *net, double p)
{
	return (double)(cm_net_rand(net) >> 11) < p * 0x1p53;
}

static int on_event(void *arg, const struct cm_event *ev)
{
	struct cm_net_node *n = arg;

	n->ev = *ev;
	if (ev->len)
		memcpy(n->ev_data, ev->data, ev->len);
	n->ev.data = n->ev_data;
	n->events++;
	n->count[ev->type]++;
	if (n->net->event)
		return n->net->event(n, ev);
	return ev->type == CM_EV_REQ || ev->type == CM_EV_SIDR_REQ ?
		       n->verdict :
		       0;
}

struct cm_net *cm_net_new(uint64_t seed, const struct cm_config *cfg)
{
	struct cm_net *net = calloc(1, sizeof(*net));

	net->seed = seed;
	net->rng = seed;
	net->now = 1000;
	net->link.delay_ns = 10000;
	for (int i = 0; i < CM_NET_NODES; i++) {
		struct cm_net_node *n = &net->node[i];

		n->net = net;
		n->index = i;
		n->gid.raw[10] = n->gid.raw[11] = 0xff;
		n->gid.raw[12] = 10;
		n->gid.raw[15] = (uint8_t)(i + 1);
		n->cfg = *cfg;
		n->cfg.ca_guid = 0xca0000 + (uint64_t)i;
		n->cfg.seed = cm_net_rand(net);
		n->cfg.event = on_event;
		n->cfg.arg = n;
		if (cm_create(&n->cm, &n->cfg))
			abort();
	}
	return net;
}

void cm_net_free(struct cm_net *net)
{
	for (struct cm_packet *p = net->queue, *next; p; p = next) {
		next = p->next;
		free(p);
	}
	for (int i = 0; i < CM_NET_NODES; i++)
		cm_destroy(net->node[i].cm);
	free(net);
}

static void put(struct cm_net *net, const struct roce_path *path,
		const uint8_t *mad)
{
	struct cm_packet *p = calloc(1, sizeof(*p));
	struct cm_packet **at = &net->queue;

	p->sgid = path->sgid;
	p->dgid = path->dgid;
	memcpy(p->mad, mad, MAD_LEN);
	p->at = net->now + net->link.delay_ns;
	if (net->link.jitter_ns)
		p->at += cm_net_rand(net) % net->link.jitter_ns;
	while (*at && (*at)->at <= p->at)
		at = &(*at)->next;
	p->next = *at;
	*at = p;
	net->packets++;
}

static void mangle(struct cm_net *net, const struct cm_mad *m)
{
	struct cm_mad copy = *m;
	unsigned n = 1 + cm_net_below(net, 4);

	while (n--) {
		/* mostly where the message says what it is about */
		uint32_t at = cm_net_chance(net, 0.8) ?
				      cm_net_below(net, 72) :
				      cm_net_below(net, MAD_LEN);

		copy.mad[at] = (uint8_t)cm_net_rand(net);
	}
	if (cm_net_chance(net, 0.3))
		copy.mad[17] = (uint8_t)(0x10 + cm_net_below(net, 11));
	put(net, &copy.path, copy.mad);
}

void cm_net_flush(struct cm_net *net)
{
	for (int i = 0; i < CM_NET_NODES; i++) {
		struct cm_mad m;

		while (cm_tx(net->node[i].cm, &m)) {
			struct mad d;

			if (mad_decode(&d, m.mad, MAD_LEN))
				abort();
			net->node[i].sent[d.attr_id - MAD_CM_REQ]++;
			if (net->link.mangle > 0 &&
			    cm_net_chance(net, net->link.mangle))
				mangle(net, &m);
			if (net->drop && net->drop(net, &d, i))
				continue;
			if (cm_net_chance(net, net->link.loss))
				continue;
			put(net, &m.path, m.mad);
			if (cm_net_chance(net, net->link.dup))
				put(net, &m.path, m.mad);
		}
	}
}

static void deliver(struct cm_net *net, struct cm_packet *p)
{
	for (int i = 0; i < CM_NET_NODES; i++)
		if (!memcmp(&net->node[i].gid, &p->dgid, 16))
			cm_rx(net->node[i].cm, &p->sgid, &p->dgid, 0, p->mad,
			      MAD_LEN, net->now);
	free(p);
}

bool cm_net_run(struct cm_net *net, uint64_t ns)
{
	uint64_t end = net->now + ns;

	for (;;) {
		uint64_t due = net->next ? net->next(net) : UINT64_MAX;
		int who = -1;

		cm_net_flush(net);
		for (int i = 0; i < CM_NET_NODES; i++) {
			uint64_t d = cm_deadline(net->node[i].cm);

			if (d < due) {
				due = d;
				who = i;
			}
		}
		if (net->queue && net->queue->at <= due) {
			due = net->queue->at;
			who = -2;
		}
		if (due == UINT64_MAX)
			return true;
		if (due > end) {
			net->now = end;
			return false;
		}
		if (due > net->now)
			net->now = due;
		if (who == -2) {
			struct cm_packet *p = net->queue;

			net->queue = p->next;
			deliver(net, p);
		} else if (who == -1) {
			net->act(net);
		} else {
			cm_expire(net->node[who].cm, net->now);
		}
	}
}

struct roce_path cm_net_path(struct cm_net *net, int from, int to)
{
	return (struct roce_path){
		.sgid = net->node[from].gid,
		.dgid = net->node[to].gid,
		.hop_limit = 64,
		.flow_label = 0x12345,
		.tclass = 0x20,
	};
}

void cm_net_inject(struct cm_net *net, const union ibv_gid *from, int to,
		   const struct mad *m)
{
	uint8_t p[MAD_LEN];

	mad_encode(m, p);
	cm_rx(net->node[to].cm, from, &net->node[to].gid, 0, p, MAD_LEN,
	      net->now);
}
