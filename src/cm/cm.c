/*
 * cm.c - one instance of the connection manager: messages received, listeners,
 * events, creation and destruction
 *
 * find.c has the connections and retry.c the timers and what is sent; conn.c,
 * conn_rx.c and sidr.c have the state machines.
 */
#include "cm_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RESPONSE_TIMEOUT 20
#define DEFAULT_MAX_RETRIES 15
#define DEFAULT_FIRST_RETRY cm_timeout_ns(16)

/* Receiving */

void cm_reverse_path(struct roce_path *path, const struct cm_in *in,
		     uint8_t tclass, uint8_t hop_limit, uint32_t flow_label)
{
	*path = (struct roce_path){
		.sgid = *in->dgid,
		.dgid = *in->sgid,
		.sgid_scope = in->scope,
		.flow_label = flow_label,
		.tclass = tclass,
		.hop_limit = hop_limit ? hop_limit : 64,
	};
}

void cm_rx(struct cm *cm, const union ibv_gid *sgid, const union ibv_gid *dgid,
	   uint32_t scope, const uint8_t *mad, size_t len, uint64_t now_ns)
{
	struct mad m;
	const struct cm_in in = {
		.m = &m,
		.sgid = sgid,
		.dgid = dgid,
		.scope = scope,
		.now_ns = now_ns,
	};

	cm->stats.rx++;
	if (cm->dead_ns && gid_equal(sgid, &cm->dead_gid))
		cm->dead_ns = 0;
	if (mad_decode(&m, mad, len) || m.method != MAD_METHOD_SEND ||
	    roce_gid_is_multicast(sgid) || roce_gid_is_multicast(dgid)) {
		cm->stats.dropped++;
		return;
	}
	if (m.attr_id == MAD_CM_SIDR_REQ || m.attr_id == MAD_CM_SIDR_REP)
		cm_sidr_rx(cm, &in);
	else
		cm_conn_rx(cm, &in);
}

bool cm_knows(struct cm *cm, const union ibv_gid *sgid,
	      const union ibv_gid *dgid, const uint8_t *mad, size_t len)
{
	struct mad m;

	if (mad_decode(&m, mad, len))
		return false;
	if (m.attr_id == MAD_CM_REQ)
		return cm_conn_by_remote(cm, m.req.local_comm_id, false,
					 sgid) ||
		       cm_listener_find(cm, m.req.service_id, dgid);
	if (m.attr_id == MAD_CM_SIDR_REQ)
		return cm_conn_by_remote(cm, m.sidr_req.request_id, true,
					 sgid) ||
		       cm_listener_find(cm, m.sidr_req.service_id, dgid);
	return false;
}

int cm_emit(struct cm *cm, struct cm_event *ev)
{
	if (ev->conn->closed)
		return 0;
	if (ev->type != CM_EV_REQ && ev->type != CM_EV_SIDR_REQ)
		ev->user = ev->conn->user;
	return cm->cfg.event(cm->cfg.arg, ev);
}

int cm_copy_data(uint8_t *to, size_t max, const void *data, size_t len)
{
	if (len > max)
		return -EINVAL;
	if (len)
		memcpy(to, data, len);
	return 0;
}

/* Listeners */

static struct cm_listener **listener_bucket(struct cm *cm, uint64_t service_id)
{
	return &cm->listeners[hash64(service_id) % CM_LISTEN_BUCKETS];
}

int cm_listen(struct cm *cm, struct cm_listener **l, uint64_t service_id,
	      const union ibv_gid *gid, unsigned families, void *user)
{
	struct cm_listener **head = listener_bucket(cm, service_id);

	for (struct cm_listener *o = *head; o; o = o->next) {
		if (o->service_id != service_id || o->any != !gid)
			continue;
		if (gid ? gid_equal(&o->gid, gid) :
			  (o->families & families) != 0)
			return -EADDRINUSE;
	}
	*l = calloc(1, sizeof(**l));
	if (!*l)
		return -ENOMEM;
	**l = (struct cm_listener){
		.next = *head,
		.service_id = service_id,
		.any = !gid,
		.families = families,
		.user = user,
	};
	if (gid)
		(*l)->gid = *gid;
	*head = *l;
	cm->stats.listeners++;
	return 0;
}

void cm_unlisten(struct cm *cm, struct cm_listener *l)
{
	struct cm_listener **p = listener_bucket(cm, l->service_id);

	while (*p != l)
		p = &(*p)->next;
	*p = l->next;
	free(l);
	cm->stats.listeners--;
}

struct cm_listener *cm_listener_find(struct cm *cm, uint64_t service_id,
				     const union ibv_gid *gid)
{
	unsigned family = roce_gid_is_v4(gid) ? CM_LISTEN_V4 : CM_LISTEN_V6;
	struct cm_listener *found = NULL;

	for (struct cm_listener *l = *listener_bucket(cm, service_id); l;
	     l = l->next) {
		if (l->service_id != service_id)
			continue;
		if (!l->any && gid_equal(&l->gid, gid))
			return l;
		if (l->any && l->families & family)
			found = l;
	}
	return found;
}

/* The instance */

int cm_create(struct cm **out, const struct cm_config *cfg)
{
	struct cm *cm = calloc(1, sizeof(*cm));

	if (!cm)
		return -ENOMEM;
	cm->txq = calloc(CM_TX_QUEUE, sizeof(*cm->txq));
	if (!cm->txq) {
		free(cm);
		return -ENOMEM;
	}
	cm->cfg = *cfg;
	cm_configure(cm, cfg->ca_guid, cfg->id_base, cfg->id_mask);
	if (!cm->cfg.response_timeout)
		cm->cfg.response_timeout = DEFAULT_RESPONSE_TIMEOUT;
	if (cm->cfg.max_retries == UINT8_MAX)
		cm->cfg.max_retries = 0;
	else if (!cm->cfg.max_retries || cm->cfg.max_retries > 15)
		cm->cfg.max_retries = DEFAULT_MAX_RETRIES;
	if (!cm->cfg.first_retry_ns)
		cm->cfg.first_retry_ns = DEFAULT_FIRST_RETRY;
	cm->tid_high = (uint32_t)hash64(cfg->seed + 2);
	*out = cm;
	return 0;
}

void cm_configure(struct cm *cm, uint64_t ca_guid, uint32_t id_base,
		  uint32_t id_mask)
{
	if (!id_mask)
		id_mask = UINT32_MAX;
	cm->cfg.ca_guid = ca_guid;
	cm->cfg.id_base = id_base & ~id_mask;
	cm->cfg.id_mask = id_mask;
	cm->next_id = (uint32_t)hash64(cm->cfg.seed + 1) & id_mask;
}

static struct cm_conn *any_conn(struct cm *cm, size_t *i)
{
	for (; *i < cm->by_id.size; ++*i)
		if (cm->by_id.bucket[*i])
			return cm_conn_of(cm->by_id.bucket[*i], by_id);
	return NULL;
}

void cm_destroy(struct cm *cm)
{
	struct cm_conn *c;
	size_t i = 0;

	while ((c = any_conn(cm, &i)))
		cm_conn_free(cm, c);
	for (i = 0; i < CM_LISTEN_BUCKETS; i++)
		while (cm->listeners[i])
			cm_unlisten(cm, cm->listeners[i]);
	free(cm->by_id.bucket);
	free(cm->by_remote.bucket);
	free(cm->by_qpn.bucket);
	free(cm->heap);
	free(cm->txq);
	free(cm);
}

void cm_close(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	assert(!c->closed);
	c->closed = true;
	if (c->sidr)
		cm_sidr_close(cm, c, now_ns);
	else
		cm_conn_close(cm, c, now_ns);
}

bool cm_farewell(struct cm *cm, uint64_t now_ns)
{
	for (size_t i = 0; i < cm->by_id.size; i++) {
		for (struct hlink *h = cm->by_id.bucket[i], *next; h;
		     h = next) {
			struct cm_conn *c = cm_conn_of(h, by_id);

			if (!cm_room(cm))
				return true;
			next = h->next;
			if (!c->closed)
				cm_close(cm, c, now_ns);
		}
	}
	return cm->tx_len > 0;
}

bool cm_peers_check(struct cm *cm,
		    bool (*gone)(void *arg, int place, uint32_t remote_id),
		    void *arg, uint64_t now_ns)
{
	bool again = false;

	for (size_t i = 0; i < cm->by_id.size; i++) {
		for (struct hlink *h = cm->by_id.bucket[i], *next; h;
		     h = next) {
			struct cm_conn *c = cm_conn_of(h, by_id);

			next = h->next;
			if (c->place < 0 || c->sidr)
				continue;
			if (!gone(arg, c->place, c->remote_id)) {
				c->missed = false;
			} else if (!c->missed) {
				again = c->missed = true;
			} else {
				cm_conn_gone(cm, c, now_ns);
			}
		}
	}
	return again;
}

void cm_conn_set_user(struct cm_conn *c, void *user)
{
	c->user = user;
}

enum cm_state cm_conn_state(const struct cm_conn *c)
{
	return c->state;
}

const struct roce_path *cm_conn_path(const struct cm_conn *c)
{
	return &c->path;
}

uint32_t cm_conn_id(const struct cm_conn *c)
{
	return c->local_id;
}

void cm_conn_sent(const struct cm_conn *c, unsigned *sent, unsigned *most)
{
	*sent = c->retries + 1u;
	*most = c->max_retries + 1u;
}

struct cm_stats cm_stats(const struct cm *cm)
{
	struct cm_stats s = cm->stats;

	s.conns = cm->by_id.count;
	return s;
}

const char *cm_state_name(enum cm_state state)
{
	static const char *const names[] = {
#define X(name) #name,
		CM_STATES(X)
#undef X
	};
	static_assert(ARRAY_SIZE(names) == CM_NSTATES, "a name per state");

	return state < CM_NSTATES ? names[state] : "?";
}
