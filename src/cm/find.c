/*
 * find.c - connections, from their first message to the last, and the tables
 * in which they are found
 *
 * A connection is found three ways. by_id: under our communication ID, which
 * every message but REQ and SIDR_REQ carries. by_remote: under the peer's ID,
 * to recognise a REQ or SIDR_REQ that comes again (12.9.8.3), and a REJ for a
 * timeout, whose sender never learned our ID. by_qpn: under the peer's QPN, to
 * recognise a REQ or REP from a peer that has forgotten a connection which we
 * still have (12.9.8.3.1). Each lookup compares the peer's address as well, as
 * seen in the packet: no other host can meddle, and IDs need not be secret.
 */
#include "cm_internal.h"

#include <stdlib.h>

/* Hash tables */

static int htable_reserve(struct htable *t)
{
	size_t size = t->size ? 2 * t->size : 64;
	struct hlink **bucket;

	if (t->count < t->size)
		return 0;
	bucket = calloc(size, sizeof(*bucket));
	if (!bucket)
		return t->size ? 0 : -ENOMEM; /* longer chains will do */
	for (size_t i = 0; i < t->size; i++) {
		for (struct hlink *h = t->bucket[i], *next; h; h = next) {
			next = h->next;
			h->next = bucket[h->hash & (size - 1)];
			bucket[h->hash & (size - 1)] = h;
		}
	}
	free(t->bucket);
	t->bucket = bucket;
	t->size = size;
	return 0;
}

static int htable_add(struct htable *t, struct hlink *h, uint64_t hash)
{
	int err = htable_reserve(t);

	if (err)
		return err;
	h->hash = hash;
	h->next = t->bucket[hash & (t->size - 1)];
	t->bucket[hash & (t->size - 1)] = h;
	t->count++;
	return 0;
}

static void htable_del(struct htable *t, struct hlink *h)
{
	struct hlink **p = &t->bucket[h->hash & (t->size - 1)];

	while (*p != h)
		p = &(*p)->next;
	*p = h->next;
	t->count--;
}

static struct hlink *htable_first(const struct htable *t, uint64_t hash)
{
	return t->size ? t->bucket[hash & (t->size - 1)] : NULL;
}

static uint64_t peer_hash(uint32_t number, bool sidr, const union ibv_gid *peer)
{
	return hash64(hash64(peer->global.subnet_prefix ^ sidr) ^
		      peer->global.interface_id ^ (uint64_t)number << 32);
}

/* Lookups */

struct cm_conn *cm_conn_by_id(struct cm *cm, uint32_t id,
			      const union ibv_gid *peer)
{
	for (struct hlink *h = htable_first(&cm->by_id, hash64(id)); h;
	     h = h->next) {
		struct cm_conn *c = cm_conn_of(h, by_id);

		if (c->local_id == id)
			return !peer || gid_equal(&c->path.dgid, peer) ? c :
									 NULL;
	}
	return NULL;
}

struct cm_conn *cm_conn_by_remote(struct cm *cm, uint32_t id, bool sidr,
				  const union ibv_gid *peer)
{
	uint64_t hash = peer_hash(id, sidr, peer);

	for (struct hlink *h = htable_first(&cm->by_remote, hash); h;
	     h = h->next) {
		struct cm_conn *c = cm_conn_of(h, by_remote);

		if (c->remote_id == id && c->sidr == sidr &&
		    gid_equal(&c->path.dgid, peer))
			return c;
	}
	return NULL;
}

struct cm_conn *cm_conn_by_qpn(struct cm *cm, uint32_t qpn,
			       const union ibv_gid *peer)
{
	uint64_t hash = peer_hash(qpn, false, peer);

	for (struct hlink *h = htable_first(&cm->by_qpn, hash); h;
	     h = h->next) {
		struct cm_conn *c = cm_conn_of(h, by_qpn);

		if (c->wire_qpn == qpn && gid_equal(&c->path.dgid, peer))
			return c;
	}
	return NULL;
}

int cm_conn_add_remote(struct cm *cm, struct cm_conn *c)
{
	int err = htable_add(&cm->by_remote, &c->by_remote,
			     peer_hash(c->remote_id, c->sidr, &c->path.dgid));

	c->in_remote = !err;
	return err;
}

int cm_conn_add_qpn(struct cm *cm, struct cm_conn *c)
{
	int err = htable_add(&cm->by_qpn, &c->by_qpn,
			     peer_hash(c->wire_qpn, false, &c->path.dgid));

	c->in_qpn = !err;
	return err;
}

void cm_conn_forget_qpn(struct cm *cm, struct cm_conn *c)
{
	if (c->in_qpn)
		htable_del(&cm->by_qpn, &c->by_qpn);
	c->in_qpn = false;
}

void cm_conn_forget(struct cm *cm, struct cm_conn *c)
{
	cm_conn_forget_qpn(cm, c);
	if (c->in_remote)
		htable_del(&cm->by_remote, &c->by_remote);
	c->in_remote = false;
}

void cm_conn_place(struct cm *cm, struct cm_conn *c, uint32_t remote_id)
{
	c->remote_id = remote_id;
	c->missed = false;
	if (cm->cfg.place)
		c->place = cm->cfg.place(cm->cfg.arg, remote_id, &c->path.dgid);
}

/* Others' addresses, and ours */

void cm_readdress(struct cm *cm, const union ibv_gid *from,
		  const union ibv_gid *to, uint32_t scope)
{
	for (size_t i = 0; i < cm->by_id.size; i++)
		for (struct hlink *h = cm->by_id.bucket[i]; h; h = h->next) {
			struct cm_conn *c = cm_conn_of(h, by_id);

			if (!gid_equal(&c->path.sgid, from))
				continue;
			c->path.sgid = *to;
			c->path.sgid_scope = scope;
		}
}

/* Of all messages with these, in the one that may be sent again. */
#define AT_LOCAL_ID 24
#define AT_REMOTE_ID 28

static void set_id(struct cm_conn *c, size_t at, uint32_t *id, uint32_t to)
{
	if (get_be32(c->last + at) == *id)
		put_be32(c->last + at, to);
	*id = to;
}

void cm_renumber(struct cm *cm, uint32_t id_base)
{
	struct hlink *all = NULL, *h;
	struct cm_conn *c;

	for (size_t i = 0; i < cm->by_id.size; i++)
		while ((h = cm->by_id.bucket[i])) {
			htable_del(&cm->by_id, h);
			h->next = all;
			all = h;
		}
	cm->cfg.id_base = id_base & ~cm->cfg.id_mask;
	while ((h = all)) {
		all = h->next;
		c = cm_conn_of(h, by_id);
		set_id(c, AT_LOCAL_ID, &c->local_id,
		       (c->local_id & cm->cfg.id_mask) | cm->cfg.id_base);
		/* It has room for them. */
		htable_add(&cm->by_id, h, hash64(c->local_id));
	}
}

void cm_peer_moved(struct cm *cm, uint32_t qpn, const union ibv_gid *from,
		   const struct cm_moved *to)
{
	struct cm_conn *c = cm_conn_by_qpn(cm, qpn, from);
	bool in_remote;

	if (!c)
		return;
	in_remote = c->in_remote;
	cm_conn_forget(cm, c);
	c->path.dgid = to->at;
	c->wire_qpn = to->qpn;
	if (to->ids_mask && (c->remote_id & to->ids_mask) == to->ids_were)
		set_id(c, AT_REMOTE_ID, &c->remote_id,
		       (c->remote_id & ~to->ids_mask) | to->ids_are);
	/* Without memory it is not known as one that it was before. */
	if (in_remote)
		cm_conn_add_remote(cm, c);
	cm_conn_add_qpn(cm, c);
	if (cm->cfg.place)
		c->place = cm->cfg.place(cm->cfg.arg, c->remote_id, &to->at);
}

/* Beginning and end */

static bool next_id(struct cm *cm, uint32_t *id)
{
	uint32_t mask = cm->cfg.id_mask;
	uint32_t first = cm->next_id;

	do {
		*id = cm->cfg.id_base | cm->next_id;
		/* counts in the bits of the mask only */
		cm->next_id = ((cm->next_id | ~mask) + 1) & mask;
		if (*id && !cm_conn_by_id(cm, *id, NULL))
			return true;
	} while (cm->next_id != first);
	return false;
}

struct cm_conn *cm_conn_new(struct cm *cm, const struct roce_path *path,
			    void *user)
{
	struct cm_conn *c;

	/* the heap has room for every connection, so that timers never fail */
	if (cm->by_id.count == cm->heap_size) {
		size_t size = cm->heap_size ? 2 * cm->heap_size : 64;
		struct cm_conn **heap =
			realloc(cm->heap, size * sizeof(struct cm_conn *));

		if (!heap)
			return NULL;
		cm->heap = heap;
		cm->heap_size = size;
	}
	c = calloc(1, sizeof(*c));
	if (!c)
		return NULL;
	c->path = *path;
	c->user = user;
	c->place = -1;
	c->max_retries = cm->cfg.max_retries;
	c->max_patience_ns = cm_timeout_ns(cm->cfg.response_timeout);
	if (!next_id(cm, &c->local_id) ||
	    htable_add(&cm->by_id, &c->by_id, hash64(c->local_id))) {
		free(c);
		return NULL;
	}
	c->tid = (uint64_t)cm->tid_high << 32 | c->local_id;
	return c;
}

void cm_conn_free(struct cm *cm, struct cm_conn *c)
{
	cm_conn_timer(cm, c, UINT64_MAX);
	cm_conn_forget(cm, c);
	htable_del(&cm->by_id, &c->by_id);
	if (c->quiet)
		cm->lingering--;
	free(c);
}

void cm_conn_end(struct cm *cm, struct cm_conn *c)
{
	cm_conn_timer(cm, c, UINT64_MAX);
	cm_conn_forget(cm, c);
	c->state = CM_IDLE;
	if (c->closed)
		cm_conn_free(cm, c);
}

void cm_conn_linger(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	cm_conn_forget_qpn(cm, c);
	if (cm->lingering == CM_LINGER_MAX) {
		cm_conn_end(cm, c);
		return;
	}
	cm->lingering++;
	c->quiet = true;
	c->state = CM_TIMEWAIT;
	/* at least until a peer that was asked to wait repeats itself */
	cm_conn_timer(cm, c,
		      now_ns + CM_LINGER_NS +
			      (c->mra ? cm_timeout_ns(CM_MRA_TIMEOUT) : 0));
}
