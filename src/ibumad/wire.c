/*
 * wire.c - messages that leave by QP1, and those that come in
 *
 * For a program, or an agent of another host, that the fabric does not answer
 * for. The device is opened when the first such message is sent, or an agent is
 * registered that has requests: programs that ask the fabric alone start no
 * thread. What leaves waits in the ports' lists; QP1 asks for what is due, so one
 * place sends, repeats and gives up.
 */
#include "rmpp.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "connect/gsi.h"
#include "engine/engine.h"
#include "net/ibaddr.h"
#include "process/process.h"
#include "verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NSEC_PER_MSEC 1000000ull

static struct {
	pthread_mutex_t lock; /* of setting this up */
	_Atomic(struct engine *) engine;
} wire = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* What comes in */

static void addr_of(struct shca_device *dev, const struct shca_mad_rx *rx,
		    ib_mad_addr_t *a)
{
	const struct roce_path back = { .dgid = *rx->from,
					.sgid = *rx->to,
					.tclass = rx->tclass };
	struct ibv_ah_attr attr = { 0 };

	if (dev->naming->av)
		dev->naming->av(dev, &back, &attr);
	memset(a, 0, sizeof(*a));
	a->qpn = htonl(1);
	a->qkey = htonl(MAD_QP1_QKEY);
	a->lid = htons(attr.dlid);
	a->grh_present = attr.is_global;
	if (!attr.is_global)
		return;
	memcpy(a->gid, attr.grh.dgid.raw, sizeof(a->gid));
	a->hop_limit = 0xff;
	a->traffic_class = attr.grh.traffic_class;
}

/* One packet back: it is sent once. With the port's lock. */
static void send_back(struct port *p, const struct shca_mad_rx *rx,
		      const uint8_t mad[MAD_LEN])
{
	struct sent *s;

	if (p->nsent == SENT_MADS)
		return;
	s = calloc(1, sizeof(*s) + MAD_LEN);
	if (!s)
		return;
	s->wire = true;
	s->sends = 1;
	s->deadline_ns = UINT64_MAX;
	s->path = (struct roce_path){ .sgid = *rx->to,
				      .dgid = *rx->from,
				      .sgid_scope = rx->scope };
	shca_path_place(&s->path);
	s->len = MAD_LEN;
	memcpy(s->mad, mad, MAD_LEN);
	port_add(p, s);
}

/* For the one that has sent it. */
static bool answer_rx(struct port *p, const struct shca_mad_rx *rx,
		      const ib_mad_addr_t *from, const uint8_t *mad, size_t len)
{
	struct sent *s = port_waits(p, rx->mad, rx->from);
	const int id = agent_by_tid(p, get_be32(rx->mad + 8));

	/* Segments and acknowledgements, of one that does RMPP itself. */
	if (!s && rmpp_is_active(rx->mad) && id >= 0 &&
	    p->agent[id].class == rx->mad[1] &&
	    (p->agent[id].user_rmpp || !p->agent[id].rmpp))
		return port_deliver(p, (uint32_t)id, 0, from, mad, len);
	if (!s)
		return false;
	if (!port_deliver(p, s->agent, 0, from, mad, len))
		return true; /* lost: its time will run out */
	port_unlink(p, s);
	sent_free(s);
	port_arm(p);
	return true;
}

static bool request_rx(struct port *p, const struct shca_mad_rx *rx,
		       const ib_mad_addr_t *from, const uint8_t *mad,
		       size_t len)
{
	const int id = agent_of(p, rx->mad, MAD_LEN);

	if (id < 0)
		return false;
	port_deliver(p, (uint32_t)id, 0, from, mad, len);
	return true;
}

/* Whether the library puts messages together for who would get this. */
static bool is_whole_for(const struct port *p, const struct shca_mad_rx *rx)
{
	const int id = mad_is_response(rx->mad) ?
			       agent_by_tid(p, get_be32(rx->mad + 8)) :
			       agent_of(p, rx->mad, MAD_LEN);

	return id >= 0 && p->agent[id].rmpp && !p->agent[id].user_rmpp;
}

/* Of the sender of a message of ours. */
static bool ack_rx(struct port *p, const struct shca_mad_rx *rx)
{
	const uint8_t *mad = rx->mad;
	struct sent *s;

	for (s = p->sent; s; s = s->next) {
		if (!s->rmpp || s->mad[1] != mad[1] ||
		    !gid_equal(&s->path.dgid, rx->from) ||
		    (s->mad[3] ^ mad[3]) != UMAD_METHOD_RESP_MASK ||
		    memcmp(s->mad + 8, mad + 8, 8) != 0)
			continue;
		rmpp_tx_answer(s, mad, rx->now_ns);
		return true;
	}
	return false;
}

/* Whether it was for this port; with its lock. */
static bool port_rx(struct port *p, const struct shca_mad_rx *rx)
{
	const uint8_t *mad = rx->mad;
	uint8_t answer[MAD_LEN], *message = NULL;
	size_t len = MAD_LEN;
	ib_mad_addr_t from;
	bool taken;

	if (rmpp_is_active(mad) && !rmpp_is_data(mad) && ack_rx(p, rx))
		return true;
	if (rmpp_is_active(mad) && is_whole_for(p, rx)) {
		if (!rmpp_is_data(mad))
			return true; /* for nothing that is known any more */
		len = rmpp_rx(p, rx->from, mad, rx->now_ns, answer, &message);
		if (answer[0])
			send_back(p, rx, answer);
		if (!len)
			return true;
	}
	addr_of(p->dev, rx, &from);
	if (message)
		mad = message;
	taken = mad_is_response(mad) ? answer_rx(p, rx, &from, mad, len) :
				       request_rx(p, rx, &from, mad, len);
	free(message);
	return taken;
}

/* A port stands for its address; one of RoCE, for all of its device's. */
static bool is_to(struct port *p, const union ibv_gid *to)
{
	struct netdev_gid at;

	return shca_device_addr(p->dev, to, &at);
}

static bool on_rx(void *arg, const struct shca_mad_rx *rx)
{
	bool taken = false;

	(void)arg;
	pthread_mutex_lock(&ports_lock);
	for (struct port *p = ports; p && !taken; p = p->next) {
		if (!is_to(p, rx->to))
			continue;
		pthread_mutex_lock(&p->lock);
		taken = port_rx(p, rx);
		pthread_mutex_unlock(&p->lock);
	}
	pthread_mutex_unlock(&ports_lock);
	return taken;
}

/* What leaves */

/* A packet of s, if one is due; s may be gone then. */
static bool sent_tx(struct port *p, struct sent *s, uint64_t now,
		    struct cm_mad *m)
{
	bool any = true;

	m->path = s->path;
	if (s->rmpp) {
		any = rmpp_tx_next(s, now, m->mad);
		if (rmpp_tx_ended(s) && !s->waits) {
			port_unlink(p, s);
			sent_free(s);
		}
		return any;
	}
	memcpy(m->mad, s->mad, MAD_LEN);
	s->sends--;
	s->due_ns = s->sends ? now + s->timeout_ms * NSEC_PER_MSEC : UINT64_MAX;
	if (!s->waits) {
		port_unlink(p, s);
		sent_free(s);
	}
	return true;
}

static bool port_tx(struct port *p, uint64_t now, struct cm_mad *m)
{
	struct sent *s, *next;

	for (s = p->sent; s; s = next) {
		next = s->next;
		if (s->wire && s->due_ns <= now && sent_tx(p, s, now, m))
			return true;
	}
	return false;
}

static bool on_tx(void *arg, uint64_t now, struct cm_mad *m)
{
	bool any = false;

	(void)arg;
	pthread_mutex_lock(&ports_lock);
	for (struct port *p = ports; p && !any; p = p->next) {
		pthread_mutex_lock(&p->lock);
		any = port_tx(p, now, m);
		pthread_mutex_unlock(&p->lock);
	}
	pthread_mutex_unlock(&ports_lock);
	return any;
}

static uint64_t on_deadline(void *arg)
{
	uint64_t due = UINT64_MAX;

	(void)arg;
	pthread_mutex_lock(&ports_lock);
	for (struct port *p = ports; p; p = p->next) {
		pthread_mutex_lock(&p->lock);
		for (struct sent *s = p->sent; s; s = s->next)
			if (s->wire)
				due = min_u64(due, s->due_ns);
		pthread_mutex_unlock(&p->lock);
	}
	pthread_mutex_unlock(&ports_lock);
	return due;
}

/* Beginning */

/* Also of a process that has forked, whose parent's engine is dead here. */
static struct engine *wire_engine(void)
{
	struct engine *e = atomic_load(&wire.engine);

	return e && !engine_dead(e) ? e : NULL;
}

void wire_forked(void)
{
	pthread_mutex_init(&wire.lock, NULL);
}

static int wire_open(struct shca_device *dev)
{
	static const struct shca_mad_user user = { .rx = on_rx,
						   .tx = on_tx,
						   .deadline = on_deadline };
	struct ibv_context *ctx;
	int err = 0;

	if (wire_engine())
		return 0;
	pthread_mutex_lock(&wire.lock);
	if (!wire_engine()) {
		err = shca_open(&dev->dev, &ctx);
		if (!err)
			err = shca_mad_open(to_ctx(ctx)->engine, &user);
		if (!err)
			atomic_store(&wire.engine, to_ctx(ctx)->engine);
	}
	pthread_mutex_unlock(&wire.lock);
	return err;
}

uint32_t wire_tid(void)
{
	struct engine *e = wire_engine();

	return e ? shca_mad_tid(e) : 0;
}

void wire_kick(void)
{
	struct engine *e = wire_engine();

	if (e)
		shca_mad_kick(e);
}

int wire_serve(struct port *p, const struct agent *a, union ibv_gid *to)
{
	struct netdev_gid at;
	int err = wire_open(p->dev);

	if (err)
		return err;
	if (!ca_addr(p->dev, &at))
		return -EADDRNOTAVAIL;
	err = shca_cm_bind(wire_engine(), &at.gid, at.ifindex);
	if (err)
		return err;
	err = shca_cm_reserve(wire_engine(),
			      mad_service_id(a->class, a->version, a->oui),
			      &at.gid, CM_LISTEN_V4);
	if (!err)
		*to = at.gid;
	return err;
}

void wire_unserve(const struct agent *a)
{
	struct engine *e = wire_engine();

	if (e)
		shca_cm_release(e, mad_service_id(a->class, a->version, a->oui),
				&a->at, CM_LISTEN_V4);
}

int wire_path(struct port *p, const ib_mad_addr_t *addr, struct roce_path *path)
{
	struct ibv_ah_attr attr = {
		.dlid = ntohs(addr->lid),
		.sl = addr->sl,
		.is_global = addr->grh_present ? 1 : 0,
		.port_num = PORT_NUM,
	};
	struct netdev_gid via;
	int err = wire_open(p->dev);

	if (err)
		return err;
	if (attr.is_global) {
		memcpy(attr.grh.dgid.raw, addr->gid, sizeof(addr->gid));
		attr.grh.sgid_index = addr->gid_index;
		attr.grh.hop_limit = addr->hop_limit;
		attr.grh.traffic_class = addr->traffic_class;
		attr.grh.flow_label = ntohl(addr->flow_label) & 0xfffff;
	}
	err = p->dev->naming->path(p->dev, &attr, path, &via);
	return err ? err :
		     shca_cm_bind(wire_engine(), &path->sgid, path->sgid_scope);
}
