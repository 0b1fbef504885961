/*
 * cm.c - one instance of the connection manager: what conn.c and sidr.c need
 * to find a connection, to wait, to send and to report
 *
 * A connection is found three ways. by_id: under our communication ID, which
 * every message but REQ and SIDR_REQ carries. by_remote: under the peer's ID,
 * to recognise a REQ or SIDR_REQ that comes again (12.9.8.3), and a REJ for a
 * timeout, whose sender never learned our ID. by_qpn: under the peer's QPN, to
 * recognise a REQ or REP from a peer that has forgotten a connection which we
 * still have (12.9.8.3.1). All of them ask for the peer's address as well, as
 * seen in the packet: no other host can meddle, and IDs need not be secret.
 *
 * Messages to send are in a ring of fixed size. What does not fit is lost, as
 * it could be on the network; timers that would send wait for room.
 */
#include "internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RESPONSE_TIMEOUT 20
#define DEFAULT_MAX_RETRIES 15
#define DEFAULT_FIRST_RETRY cm_timeout_ns(16)

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Hash tables */

static int htable_reserve(struct htable *t)
{
	size_t size = t->size ? 2 * t->size : 64;
	struct hlink **bucket;

	if (t->count < t->size)
		return 0;
	bucket = calloc(size, sizeof(*bucket));
	if (!bucket)
		return t->size ? 0 : -ENOMEM; /* longer chains do no harm */
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

#define conn_of(h, member)                                                     \
	((struct cm_conn *)(void *)((char *)(h)-offsetof(struct cm_conn,       \
							 member)))

static uint64_t peer_hash(uint32_t number, bool sidr, const union ibv_gid *peer)
{
	return mix(mix(peer->global.subnet_prefix ^ sidr) ^
		   peer->global.interface_id ^ (uint64_t)number << 32);
}

struct cm_conn *cm_conn_by_id(struct cm *cm, uint32_t id,
			      const union ibv_gid *peer)
{
	for (struct hlink *h = htable_first(&cm->by_id, mix(id)); h;
	     h = h->next) {
		struct cm_conn *c = conn_of(h, by_id);

		if (c->local_id == id)
			return !peer || gid_equal(&c->path.dgid, peer) ? c
								       : NULL;
	}
	return NULL;
}

struct cm_conn *cm_conn_by_remote(struct cm *cm, uint32_t id, bool sidr,
				  const union ibv_gid *peer)
{
	uint64_t hash = peer_hash(id, sidr, peer);

	for (struct hlink *h = htable_first(&cm->by_remote, hash); h;
	     h = h->next) {
		struct cm_conn *c = conn_of(h, by_remote);

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
		struct cm_conn *c = conn_of(h, by_qpn);

		if (c->remote_qpn == qpn && gid_equal(&c->path.dgid, peer))
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
			     peer_hash(c->remote_qpn, false, &c->path.dgid));

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
	if (cm->cfg.place)
		c->place = cm->cfg.place(cm->cfg.arg, remote_id, &c->path.dgid);
}

/* Connections */

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

	/* a place in the heap for every connection, so that timers never fail
	 */
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
	    htable_add(&cm->by_id, &c->by_id, mix(c->local_id))) {
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
	/* at least until a peer asks again that we told to wait */
	cm_conn_timer(cm, c,
		      now_ns + CM_LINGER_NS +
			      (c->mra ? cm_timeout_ns(CM_MRA_TIMEOUT) : 0));
}

/* Timers: a binary heap, the first one due on top */

static void heap_put(struct cm *cm, struct cm_conn *c, size_t i)
{
	cm->heap[i] = c;
	c->heap_pos = i + 1;
}

static void sift_up(struct cm *cm, struct cm_conn *c, size_t i)
{
	for (; i > 0 && cm->heap[(i - 1) / 2]->due > c->due; i = (i - 1) / 2)
		heap_put(cm, cm->heap[(i - 1) / 2], i);
	heap_put(cm, c, i);
}

static void sift_down(struct cm *cm, struct cm_conn *c, size_t i)
{
	for (;;) {
		size_t child = 2 * i + 1;

		if (child >= cm->heap_len)
			break;
		if (child + 1 < cm->heap_len &&
		    cm->heap[child + 1]->due < cm->heap[child]->due)
			child++;
		if (cm->heap[child]->due >= c->due)
			break;
		heap_put(cm, cm->heap[child], i);
		i = child;
	}
	heap_put(cm, c, i);
}

void cm_conn_timer(struct cm *cm, struct cm_conn *c, uint64_t due)
{
	if (c->heap_pos) {
		size_t i = c->heap_pos - 1;
		struct cm_conn *filler = cm->heap[--cm->heap_len];

		c->heap_pos = 0;
		if (filler != c) {
			if (filler->due < c->due)
				sift_up(cm, filler, i);
			else
				sift_down(cm, filler, i);
		}
	}
	c->due = due;
	if (due != UINT64_MAX) {
		assert(cm->heap_len < cm->heap_size);
		sift_up(cm, c, cm->heap_len++);
	}
}

uint64_t cm_deadline(const struct cm *cm)
{
	return cm->heap_len ? cm->heap[0]->due : UINT64_MAX;
}

void cm_expire(struct cm *cm, uint64_t now_ns)
{
	while (cm->heap_len && cm->heap[0]->due <= now_ns && cm_room(cm)) {
		struct cm_conn *c = cm->heap[0];

		if (c->sidr)
			cm_sidr_expire(cm, c, now_ns);
		else
			cm_conn_expire(cm, c, now_ns);
	}
}

/* Sending */

bool cm_room(const struct cm *cm)
{
	return cm->tx_len + 4 <= CM_TX_QUEUE;
}

static void enqueue(struct cm *cm, const struct roce_path *path,
		    const uint8_t *mad)
{
	struct cm_mad *out;

	if (cm->tx_len == CM_TX_QUEUE) {
		cm->stats.tx_full++;
		return;
	}
	out = &cm->txq[(cm->tx_head + cm->tx_len++) % CM_TX_QUEUE];
	out->path = *path;
	memcpy(out->mad, mad, MAD_LEN);
}

bool cm_tx(struct cm *cm, struct cm_mad *out)
{
	if (!cm->tx_len)
		return false;
	*out = cm->txq[cm->tx_head];
	cm->tx_head = (cm->tx_head + 1) % CM_TX_QUEUE;
	cm->tx_len--;
	cm->stats.tx++;
	return true;
}

void cm_send(struct cm *cm, const struct roce_path *path, struct mad *m)
{
	uint8_t mad[MAD_LEN];

	m->class_version = MAD_CM_CLASS_VERSION;
	m->method = MAD_METHOD_SEND;
	mad_encode(m, mad);
	enqueue(cm, path, mad);
}

void cm_conn_send(struct cm *cm, struct cm_conn *c, struct mad *m)
{
	m->class_version = MAD_CM_CLASS_VERSION;
	m->method = MAD_METHOD_SEND;
	mad_encode(m, c->last);
	enqueue(cm, &c->path, c->last);
}

void cm_conn_resend(struct cm *cm, struct cm_conn *c)
{
	enqueue(cm, &c->path, c->last);
}

/* Whether it waits for the first answer to what it has asked. */
static bool unanswered(const struct cm_conn *c)
{
	return c->state == CM_REQ_SENT || c->state == CM_SIDR_REQ_SENT ||
	       c->state == CM_DREQ_SENT;
}

/* One of those, to where nobody was a moment ago. */
static bool is_dead(const struct cm *cm, const struct cm_conn *c,
		    uint64_t now_ns)
{
	return unanswered(c) && cm->dead_ns &&
	       now_ns - cm->dead_ns < CM_DEAD_NS &&
	       gid_equal(&cm->dead_gid, &c->path.dgid);
}

static void hasten(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	c->refused_ns = now_ns;
	c->patience_ns = cm_timeout_ns(CM_REFUSED_RETRY);
	cm_conn_timer(cm, c, now_ns + c->patience_ns);
}

void cm_conn_ask(struct cm *cm, struct cm_conn *c, struct mad *m,
		 uint64_t now_ns)
{
	cm_conn_send(cm, c, m);
	c->retries = 0;
	c->refused_ns = 0;
	c->patience_ns = min_u64(cm->cfg.first_retry_ns, c->max_patience_ns);
	cm_conn_timer(cm, c, now_ns + c->patience_ns);
	if (is_dead(cm, c, now_ns))
		hasten(cm, c, now_ns);
}

bool cm_conn_again(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	if (c->retries >= c->max_retries ||
	    (is_dead(cm, c, now_ns) &&
	     now_ns - c->refused_ns >= CM_DEAD_WAIT_NS))
		return false;
	c->retries++;
	cm->stats.retries++;
	c->patience_ns = min_u64(2 * c->patience_ns, c->max_patience_ns);
	cm_conn_resend(cm, c);
	cm_conn_timer(cm, c, now_ns + c->patience_ns);
	return true;
}

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

static struct cm_listener **bucket(struct cm *cm, uint64_t service_id)
{
	return &cm->listeners[mix(service_id) % CM_LISTEN_BUCKETS];
}

int cm_listen(struct cm *cm, struct cm_listener **l, uint64_t service_id,
	      const union ibv_gid *gid, unsigned families, void *user)
{
	struct cm_listener **head = bucket(cm, service_id);

	for (struct cm_listener *o = *head; o; o = o->next) {
		if (o->service_id != service_id || o->any != !gid)
			continue;
		if (gid ? gid_equal(&o->gid, gid)
			: (o->families & families) != 0)
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
	struct cm_listener **p = bucket(cm, l->service_id);

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

	for (struct cm_listener *l = *bucket(cm, service_id); l; l = l->next) {
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
	cm->tid_high = (uint32_t)mix(cfg->seed + 2);
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
	cm->next_id = (uint32_t)mix(cm->cfg.seed + 1) & id_mask;
}

static struct cm_conn *any_conn(struct cm *cm, size_t *i)
{
	for (; *i < cm->by_id.size; ++*i)
		if (cm->by_id.bucket[*i])
			return conn_of(cm->by_id.bucket[*i], by_id);
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
			struct cm_conn *c = conn_of(h, by_id);

			if (!cm_room(cm))
				return true;
			next = h->next;
			if (!c->closed)
				cm_close(cm, c, now_ns);
		}
	}
	return cm->tx_len > 0;
}

void cm_peers_check(struct cm *cm,
		    bool (*gone)(void *arg, int place, uint32_t remote_id),
		    void *arg, uint64_t now_ns)
{
	for (size_t i = 0; i < cm->by_id.size; i++) {
		for (struct hlink *h = cm->by_id.bucket[i], *next; h;
		     h = next) {
			struct cm_conn *c = conn_of(h, by_id);

			next = h->next;
			if (c->place >= 0 && !c->sidr &&
			    gone(arg, c->place, c->remote_id))
				cm_conn_gone(cm, c, now_ns);
		}
	}
}

static void refused(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	if (is_dead(cm, c, now_ns) ||
	    (c->refused_ns && now_ns - c->refused_ns >= CM_REFUSED_NS)) {
		cm->dead_gid = c->path.dgid;
		cm->dead_ns = now_ns;
		c->retries = c->max_retries;
		cm_conn_timer(cm, c, now_ns);
	} else if (!c->refused_ns) {
		hasten(cm, c, now_ns);
	}
}

void cm_unreachable(struct cm *cm, const union ibv_gid *dgid,
		    const uint8_t *mad, size_t len, uint64_t now_ns)
{
	struct cm_conn *c;
	uint64_t tid;

	/* Somebody on the way knows what we have sent, to whom. */
	if (len < 16)
		return;
	tid = get_be64(mad + 8); /* figure 13-2: the transaction ID */
	c = cm_conn_by_id(cm, (uint32_t)tid, dgid);
	if (!c || c->tid != tid || !unanswered(c))
		return;
	/*
	 * It is about the destination, and about one in many messages: hosts
	 * and routers send few of these (icmp_ratelimit). Who just said it need
	 * not be heard again for the others.
	 */
	refused(cm, c, now_ns);
	if (now_ns - cm->swept_ns < CM_SWEEP_NS &&
	    gid_equal(&cm->swept_gid, dgid))
		return;
	cm->swept_gid = *dgid;
	cm->swept_ns = now_ns;
	for (size_t i = 0; i < cm->by_id.size; i++) {
		for (struct hlink *h = cm->by_id.bucket[i]; h; h = h->next) {
			struct cm_conn *o = conn_of(h, by_id);

			if (o != c && unanswered(o) &&
			    gid_equal(&o->path.dgid, dgid))
				refused(cm, o, now_ns);
		}
	}
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
