/*
 * retry.c - timers, messages to send, and when to give up
 *
 * Messages to send are in a ring of fixed size. What does not fit is lost, as
 * it could be on the network; timers that would send wait for room.
 *
 * A message that wants an answer is repeated, each time after twice as long.
 * Where the network reports that nobody is at its destination, it is repeated
 * at a short interval for a moment, in case the peer is just starting, and then
 * given up, with all others for that destination; one that is in a hurry is
 * given up at once.
 */
#include "cm_internal.h"

#include <assert.h>
#include <string.h>

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

/* Sending, and repeating until there is an answer */

bool cm_room(const struct cm *cm)
{
	return cm->tx_len + 4 <= CM_TX_QUEUE;
}

static void enqueue_mad(struct cm *cm, const struct roce_path *path,
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
	enqueue_mad(cm, path, mad);
}

void cm_conn_send(struct cm *cm, struct cm_conn *c, struct mad *m)
{
	m->class_version = MAD_CM_CLASS_VERSION;
	m->method = MAD_METHOD_SEND;
	mad_encode(m, c->last);
	enqueue_mad(cm, &c->path, c->last);
}

void cm_conn_resend(struct cm *cm, struct cm_conn *c)
{
	enqueue_mad(cm, &c->path, c->last);
}

/* Whether it waits for the first answer to a request. */
static bool request_unanswered(const struct cm_conn *c)
{
	return c->state == CM_REQ_SENT || c->state == CM_SIDR_REQ_SENT ||
	       c->state == CM_DREQ_SENT;
}

/* Whether it is such a request, to a host where nobody was a moment ago. */
static bool is_dead(const struct cm *cm, const struct cm_conn *c,
		    uint64_t now_ns)
{
	return request_unanswered(c) && cm->dead_ns &&
	       now_ns - cm->dead_ns < CM_DEAD_NS &&
	       gid_equal(&cm->dead_gid, &c->path.dgid);
}

static void hasten_retry(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
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
		hasten_retry(cm, c, now_ns);
}

void cm_hurry(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	c->hurried = true;
	c->patience_ns =
		min_u64(cm_timeout_ns(CM_HURRIED_RETRY), c->patience_ns);
	cm_conn_timer(cm, c, now_ns + c->patience_ns);
}

bool cm_heard(const struct cm_conn *c)
{
	return c->state != CM_REQ_SENT;
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

/* Nobody is there */

static void peer_refused(struct cm *cm, struct cm_conn *c, uint64_t now_ns)
{
	if (c->hurried) {
		/* Of others this says no more than usual. */
		c->retries = c->max_retries;
		cm_conn_timer(cm, c, now_ns);
	} else if (is_dead(cm, c, now_ns) ||
		   (c->refused_ns && now_ns - c->refused_ns >= CM_REFUSED_NS)) {
		cm->dead_gid = c->path.dgid;
		cm->dead_ns = now_ns;
		c->retries = c->max_retries;
		cm_conn_timer(cm, c, now_ns);
	} else if (!c->refused_ns) {
		hasten_retry(cm, c, now_ns);
	}
}

void cm_unreachable(struct cm *cm, const union ibv_gid *dgid,
		    const uint8_t *mad, size_t len, uint64_t now_ns)
{
	struct cm_conn *c;
	uint64_t tid;

	/* The report must quote the header of what we have sent. */
	if (len < 16)
		return;
	tid = get_be64(mad + 8); /* figure 13-2: the transaction ID */
	c = cm_conn_by_id(cm, (uint32_t)tid, dgid);
	if (!c || c->tid != tid || !request_unanswered(c))
		return;
	/*
	 * The report is valid for the destination: hosts and routers send few
	 * of these (icmp_ratelimit), so one stands for all requests that go
	 * there. Further reports within CM_SWEEP_NS are only about their own
	 * request.
	 */
	peer_refused(cm, c, now_ns);
	if (now_ns - cm->swept_ns < CM_SWEEP_NS &&
	    gid_equal(&cm->swept_gid, dgid))
		return;
	cm->swept_gid = *dgid;
	cm->swept_ns = now_ns;
	for (size_t i = 0; i < cm->by_id.size; i++) {
		for (struct hlink *h = cm->by_id.bucket[i]; h; h = h->next) {
			struct cm_conn *o = cm_conn_of(h, by_id);

			if (o != c && request_unanswered(o) &&
			    gid_equal(&o->path.dgid, dgid))
				peer_refused(cm, o, now_ns);
		}
	}
}
