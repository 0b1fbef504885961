/*
 * lease.c - XRC_RECV QPs whose messages are for SRQs of other processes
 *
 * Processes that open the XRC domain of one inode share it: a message to an
 * XRC_RECV QP of one process may name an SRQ of another. The QP receives in its
 * home process, while the WQEs, keys and completions of the SRQ are in the
 * other. So the responder of the QP moves to the SRQ's process: between
 * messages it is a few numbers (roce/lend.c).
 *
 * The number of an SRQ is from a chunk that its process has leased, as QPNs
 * are, so the registry knows its process. When the next request due is for
 * another process's SRQ, the home lends the QP to that process: it sends the
 * request with the responder's state, and after it every packet that arrives.
 * The borrowing process has a QP of its own for it (a remote responder), with
 * the same number and path, which executes requests and answers the peer. The
 * remote responder gives the responder back when it comes to a request for an
 * SRQ of another process, or is between messages and idle for a while. The home
 * sends it the first such request, which recalls the responder, and keeps the
 * packets behind it until the responder is back.
 *
 * The home's side is here, the remote responder's in remote_rsp.c.
 *
 * Control messages are packets to QP 0 that one process hands over to another,
 * and may be lost like any packet. None is repeated: the peer repeats its
 * request, since it gets no ACK, and then everything that the other side may
 * have missed is sent again. A lease has a number, so that late and repeated
 * control messages do nothing:
 *
 *   LEND    home to remote responder: lease, attributes, state at its
 *           beginning, a request
 *   AGAIN   the same outside of a lease, for a read or atomic that was executed
 *           there and comes again; the remote responder answers, nothing
 *           changes
 *   RECALL  home to remote responder, whose process is about to be suspended:
 *           the responder comes back at the end of the message
 *   RETURN  remote responder to home: lease and state; or that the QP failed,
 *           or that there is no such SRQ; with the packet that is not for the
 *           remote responder, if any. Or just the state so far, in case the
 *           remote responder's process dies
 *
 * If a process dies between messages, the QP goes on. If it dies in the middle
 * of one, the QP fails, as when an SRQ is destroyed then: the home sees the
 * peer ask again for something that no longer exists.
 */
#include "control.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* After so long the home checks that the remote responder's process is alive.
 * */
#define LEASE_LONG_NS 5000000u
#define PARKED_MAX 256

/* A packet that waits at home until the responder is back. */
struct shca_parked {
	struct shca_parked *next;
	struct roce_rx rx;
	uint8_t payload[];
};

/* Control messages */

void shca_ctrl_begin(uint8_t *w, enum ctrl kind, const struct engine *e,
		     uint32_t qpn, uint32_t lease, uint64_t qp_id,
		     const struct roce_rsp_state *s)
{
	memset(w, 0, C_LEN);
	put_be32(w + C_MAGIC, CTRL_MAGIC);
	w[C_KIND] = (uint8_t)kind;
	w[C_FLAGS] = (uint8_t)((s->nak_seq_sent ? F_NAK_SEQ : 0) |
			       (s->rnr_sent ? F_RNR : 0));
	put_be16(w + C_SLOT, registry_slot(e->registry));
	put_be32(w + C_QPN, qpn);
	put_be32(w + C_LEASE, lease);
	put_be64(w + C_QP_ID, qp_id);
	put_be32(w + C_EPSN, s->epsn);
	put_be32(w + C_MSN, s->msn);
	put_be32(w + C_ACK_BACK, s->ack_back);
}

struct roce_rsp_state shca_ctrl_state(const uint8_t *w)
{
	return (struct roce_rsp_state){
		.epsn = get_be32(w + C_EPSN),
		.msn = get_be32(w + C_MSN),
		.ack_back = get_be32(w + C_ACK_BACK),
		.nak_seq_sent = w[C_FLAGS] & F_NAK_SEQ,
		.rnr_sent = w[C_FLAGS] & F_RNR,
	};
}

int shca_ctrl_send(struct engine *e, unsigned slot, const uint8_t *w,
		   const struct roce_path *path, const struct roce_rx *pkt)
{
	struct roce_hdr h = { .opcode = ROCE_UD | ROCE_SEND_ONLY,
			      .pkey = ROCE_PKEY_DEFAULT };
	uint8_t buf[UDP_HANDOVER_MAX];
	size_t len = roce_encode(&h, buf);

	memcpy(buf + len, w, C_LEN);
	len += C_LEN;
	if (pkt) {
		if (len + ROCE_HDR_MAX + pkt->len + pkt->h.pad > sizeof(buf))
			return -EMSGSIZE;
		len += roce_encode(&pkt->h, buf + len);
		if (pkt->len)
			memcpy(buf + len, pkt->payload, pkt->len);
		len += pkt->len;
		memset(buf + len, 0, pkt->h.pad);
		len += pkt->h.pad;
	}
	return udp_handover(e->udp, slot, pkt ? &pkt->sgid : &path->dgid,
			    pkt ? &pkt->dgid : &path->sgid,
			    pkt ? pkt->tclass : 0, buf, len);
}

/* The responder leaves */

/* The attributes that a remote responder needs. */
static void ctrl_attr(uint8_t *w, const struct shca_qp *qp)
{
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	roce_qp_query(roce_qp(qp->core), &attr, &init);
	put_be32(w + C_DEST_QPN, roce_qp_dest(roce_qp(qp->core)));
	put_be32(w + C_ACCESS, (uint32_t)attr.qp_access_flags);
	w[C_MTU] = (uint8_t)attr.path_mtu;
	w[C_RD_ATOMIC] = attr.max_dest_rd_atomic;
	w[C_RNR_TIMER] = attr.min_rnr_timer;
	w[C_LOCAL] = (uint8_t)(path->local | path->lossless << 1);
	shca_domain_key(qp->xrc->domain, w + C_DOMAIN);
	memcpy(w + C_SGID, path->sgid.raw, 16);
	memcpy(w + C_DGID, path->dgid.raw, 16);
	put_be32(w + C_SCOPE, path->sgid_scope);
	put_be32(w + C_FLOW, path->flow_label);
	put_be16(w + C_SPORT, path->sport);
	w[C_TCLASS] = path->tclass;
	w[C_HOPS] = path->hop_limit;
}

static void lend(struct shca_qp *qp, enum ctrl kind, unsigned slot,
		 const struct roce_rsp_state *s, const struct roce_rx *pkt)
{
	const struct shca_lease *l = &qp->xrc->lease;
	uint8_t w[C_LEN];

	shca_ctrl_begin(w, kind, qp->sched.engine, shca_qpn(qp), l->number,
			l->qp_id, s);
	ctrl_attr(w, qp);
	/* If it does not leave, a packet is lost. */
	shca_ctrl_send(qp->sched.engine, slot, w, NULL, pkt);
}

static void park(struct shca_qp *qp, const struct roce_rx *pkt)
{
	struct shca_parked *p, **tail = &qp->xrc->lease.parked;
	unsigned n = 0;

	for (; *tail; tail = &(*tail)->next)
		n++;
	p = n < PARKED_MAX ? malloc(sizeof(*p) + pkt->len) : NULL;
	if (!p)
		return;
	p->next = NULL;
	p->rx = *pkt;
	p->rx.grh = NULL;
	p->rx.payload = p->payload;
	if (pkt->len)
		memcpy(p->payload, pkt->payload, pkt->len);
	*tail = p;
}

static void unpark(struct shca_parked *p)
{
	struct shca_parked *next;

	for (; p; p = next) {
		next = p->next;
		free(p);
	}
}

/* Nothing comes back from the remote responder. */
static void lease_end(struct shca_lease *l)
{
	unpark(l->parked);
	l->parked = NULL;
	l->lent = 0;
	l->recalled = false;
	l->not_there = 0;
}

void shca_lease_forget(struct shca_qp *qp)
{
	struct shca_lease *l;

	if (!qp->xrc)
		return;
	l = &qp->xrc->lease;
	lease_end(l);
	l->dead = 0;
	l->qp_id = 0;
}

/*
 * While the responder is away, packets are sent after it, up to the first one
 * that recalls it. If that one comes again, or an earlier one that is due, it
 * was lost; the same holds if nothing comes back for long. Duplicates recall
 * nothing.
 */
static void away_rx(struct shca_qp *qp, const struct roce_rx *pkt,
		    const struct roce_rsp_state *s, uint64_t now)
{
	struct shca_lease *l = &qp->xrc->lease;
	struct engine *e = qp->sched.engine;

	if (psn_diff(pkt->h.psn, s->epsn) < 0) {
		lend(qp, LEND, l->lent - 1u, s, pkt);
		return;
	}
	if (l->recalled && now < l->recall_ns + LEASE_LONG_NS &&
	    psn_diff(pkt->h.psn, l->recall_psn) > 0) {
		park(qp, pkt);
		return;
	}
	if (l->recalled) {
		unpark(l->parked);
		l->parked = NULL;
		l->recalled = false;
	}
	if (registry_owner(e->registry, pkt->h.xrc_srqn) != l->lent - 1) {
		l->recalled = true;
		l->recall_psn = pkt->h.psn;
		l->recall_ns = now;
	}
	lend(qp, LEND, l->lent - 1u, s, pkt);
}

/*
 * The remote responder's process has died. What it has said may still wait to
 * be received here, behind the packet at hand.
 */
static void bereaved(struct shca_qp *qp, const struct roce_rsp_state *s)
{
	struct shca_lease *l = &qp->xrc->lease;

	l->dead = l->lent;
	l->dead_epsn = s->epsn;
	lease_end(l);
}

static bool home_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now)
{
	struct shca_lease *l = &qp->xrc->lease;
	struct engine *e = qp->sched.engine;
	struct roce_rsp_state s;
	int32_t rel;
	int slot;

	roce_rsp_get(roce_qp(qp->core), &s);
	if (l->lent) {
		/* registry_alive() is a system call. */
		if (now >= l->alive_ns + LEASE_LONG_NS &&
		    registry_alive(e->registry, l->lent - 1u))
			l->alive_ns = now;
		if (now < l->alive_ns + LEASE_LONG_NS) {
			away_rx(qp, pkt, &s, now);
			return true;
		}
		bereaved(qp, &s);
	}
	slot = registry_owner(e->registry, pkt->h.xrc_srqn);
	if (slot < 0 || (unsigned)slot == registry_slot(e->registry) ||
	    pkt->h.xrc_srqn == l->not_there)
		return false;
	rel = psn_diff(pkt->h.psn, s.epsn);
	if (rel > 0 || (rel < 0 && !shca_has_answer(pkt)) ||
	    (!rel && !s.between))
		return false;
	if (!registry_alive(e->registry, (unsigned)slot))
		return false;
	if (atomic_load(&to_process(e)->xrc.leaves))
		return true;
	if (rel < 0) {
		lend(qp, AGAIN, (unsigned)slot, &s, pkt);
		return true;
	}
	if (!s.idle) {
		shca_qp_flush(qp, now);
		roce_rsp_get(roce_qp(qp->core), &s);
		if (!s.idle)
			return true; /* no room on the link; it comes again */
	}
	if (!l->qp_id && !sys_random(&l->qp_id, sizeof(l->qp_id)))
		return true;
	l->number++;
	l->dead = 0;
	l->lent = (uint16_t)(slot + 1);
	l->alive_ns = now;
	lend(qp, LEND, (unsigned)slot, &s, pkt);
	return true;
}

/* The responder comes back */

/* Whether a control message is about the last lease, to the process of slot
 * holder - 1. */
static bool is_of_lease(const struct shca_qp *qp, const uint8_t *w,
			uint16_t holder)
{
	const struct shca_lease *l = &qp->xrc->lease;

	return holder && get_be32(w + C_LEASE) == l->number &&
	       get_be64(w + C_QP_ID) == l->qp_id &&
	       get_be16(w + C_SLOT) == holder - 1u;
}

/* The last control message of a remote responder whose process has died:
 * nothing else has been executed since, so the QP goes on from there. */
static void last_ctrl(struct shca_qp *qp, const uint8_t *w)
{
	const struct roce_rsp_state said = shca_ctrl_state(w);
	struct shca_lease *l = &qp->xrc->lease;
	struct roce_rsp_state s;

	roce_rsp_get(roce_qp(qp->core), &s);
	if (s.epsn != l->dead_epsn || w[C_FLAGS] & F_FAILED) {
		l->dead = 0;
		return;
	}
	roce_rsp_set(roce_qp(qp->core), &said);
	l->dead_epsn = said.epsn; /* there may be another one */
}

/* RETURN, perhaps with a packet; lock held. */
static void taken_back(struct shca_qp *qp, const uint8_t *w,
		       const struct roce_rx *pkt, uint64_t now)
{
	const struct roce_rsp_state s = shca_ctrl_state(w);
	struct shca_lease *l = &qp->xrc->lease;
	struct shca_parked *parked = l->parked, *p;

	if (w[C_FLAGS] & F_KEEPS) {
		roce_rsp_set(roce_qp(qp->core), &s);
		return;
	}
	l->lent = 0;
	l->recalled = false;
	l->parked = NULL;
	if (w[C_FLAGS] & F_FAILED) {
		int32_t event = (int32_t)get_be32(w + C_EVENT);

		roce_rsp_failed(
			roce_qp(qp->core),
			event == IBV_EVENT_QP_REQ_ERR ||
					event == IBV_EVENT_QP_ACCESS_ERR ||
					event == IBV_EVENT_QP_FATAL ?
				event :
				-1);
	} else {
		roce_rsp_set(roce_qp(qp->core), &s);
		if (w[C_FLAGS] & F_UNKNOWN)
			l->not_there = get_be32(w + C_SRQN);
		if (pkt)
			shca_qp_rx(qp, pkt, now);
		/* These may begin the next lease, and wait again. */
		for (p = parked; p; p = p->next)
			shca_qp_rx(qp, &p->rx, now);
	}
	unpark(parked);
	shca_qp_flush(qp, now);
}

/* Packets for a home or a remote responder */

/* Whether the QP's peer may have sent it; the core checks the rest. */
static bool is_request(const struct shca_qp *qp, const struct roce_rx *pkt)
{
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	enum ibv_qp_state state = qp->core->state;

	return roce_opcode(pkt->h.opcode)->name &&
	       roce_opcode(pkt->h.opcode)->flags & ROCE_F_XRCETH &&
	       (state == IBV_QPS_RTR || state == IBV_QPS_RTS ||
		state == IBV_QPS_SQD) &&
	       !memcmp(&pkt->sgid, &path->dgid, sizeof(pkt->sgid)) &&
	       !memcmp(&pkt->dgid, &path->sgid, sizeof(pkt->dgid));
}

bool shca_lease_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now)
{
	uint8_t key[SHCA_DOMAIN_KEY];

	if (!qp->sched.engine->registry || !is_request(qp, pkt))
		return false;
	if (qp->xrc->remote_rsp)
		return shca_remote_rsp_rx(qp, pkt, now);
	return shca_domain_key(qp->xrc->domain, key) && home_rx(qp, pkt, now);
}

/* The QP that a control message is about, or 0: it is none of ours. */
static uint32_t about(const struct roce_rx *pkt)
{
	if (!pkt->handed || pkt->len < C_LEN ||
	    get_be32(pkt->payload + C_MAGIC) != CTRL_MAGIC)
		return 0;
	return get_be32(pkt->payload + C_QPN) & 0xffffff;
}

static void home_ctrl(struct shca_qp *qp, const uint8_t *w,
		      const struct roce_rx *inner, bool has_inner, uint64_t now)
{
	shca_qp_lock(qp);
	if (!qp->sched.dead) {
		if (is_of_lease(qp, w, qp->xrc->lease.lent))
			taken_back(qp, w, has_inner ? inner : NULL, now);
		else if (is_of_lease(qp, w, qp->xrc->lease.dead))
			last_ctrl(qp, w);
		else if (has_inner)
			shca_qp_rx(qp, inner, now); /* late */
		shca_qp_flush(qp, now);
	}
	shca_qp_unlock(qp);
}

bool shca_lease_ctrl(struct engine *e, const struct roce_rx *pkt,
		     struct engine_qp **qp, struct roce_rx *inner, uint64_t now)
{
	const uint8_t *w = pkt->payload;
	uint32_t qpn = about(pkt);
	struct engine_qp *home;
	struct shca_qp *rsp;
	int hdr;

	*qp = NULL;
	if (!qpn)
		return false;
	*inner = *pkt;
	inner->grh = NULL;
	inner->handed = false;
	inner->sport = 0; /* a process of ours vouches for it */
	inner->len = 0;
	if (pkt->len > C_LEN) {
		hdr = roce_decode(&inner->h, w + C_LEN, pkt->len - C_LEN);
		if (hdr < 0)
			return true;
		inner->payload = w + C_LEN + hdr;
		inner->len = pkt->len - C_LEN - (size_t)hdr - inner->h.pad;
	}
	switch (w[C_KIND]) {
	case LEND:
	case AGAIN:
		if (pkt->len == C_LEN)
			break;
		rsp = shca_remote_rsp_ctrl(e, w, inner, now);
		if (rsp)
			*qp = &rsp->sched;
		break;
	case RECALL:
		shca_remote_rsp_recall(e, w);
		break;
	case RETURN:
		home = engine_qp_find(e, qpn);
		if (home && sched_qp(home)->xrc)
			home_ctrl(sched_qp(home), w, inner, pkt->len > C_LEN,
				  now);
		break;
	}
	return true;
}

/* The process is suspended */

/* How long a message may take to end, and how often it is asked. */
#define RECALL_NS 500000000u
#define RECALL_STEP_NS 1000000u

static void recall(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = sched_qp(sched);
	struct roce_rsp_state s;
	uint8_t w[C_LEN];
	uint32_t *left = arg;

	if (!shca_xrc_is_lent(qp))
		return;
	roce_rsp_get(roce_qp(qp->core), &s);
	if (!registry_alive(sched->engine->registry,
			    qp->xrc->lease.lent - 1u)) {
		bereaved(qp, &s);
		return;
	}
	*left = shca_qpn(qp);
	shca_ctrl_begin(w, RECALL, sched->engine, *left, qp->xrc->lease.number,
			qp->xrc->lease.qp_id, &s);
	shca_ctrl_send(sched->engine, qp->xrc->lease.lent - 1u, w,
		       roce_qp_path(roce_qp(qp->core)), NULL);
}

/* Receives for a moment: others may not. */
static uint64_t receive(struct engine *e)
{
	const uint64_t end = clock_ns() + RECALL_STEP_NS;

	do {
		engine_poll(e, false);
		sys_sleep(RECALL_STEP_NS / 10);
	} while (clock_ns() < end);
	return end;
}

int shca_leases_away(struct engine *e, uint32_t *qpn, bool *ours)
{
	const uint64_t begin = clock_ns();
	uint64_t now;

	if (!e->registry || !to_process(e)->xrc.domains)
		return 0;
	/* Whoever has a QP's lock after this sees it. */
	atomic_store(&to_process(e)->xrc.leaves, true);
	do {
		*qpn = 0;
		if (!engine_qps_each(e, recall, qpn))
			return -ENOMEM;
		*ours = *qpn;
		if (!*qpn)
			*qpn = shca_remote_rsps_recall(e);
		if (!*qpn)
			return 0;
		now = receive(e);
	} while (now - begin < RECALL_NS);
	return -EBUSY;
}

void shca_leases_back(struct engine *e)
{
	atomic_store(&to_process(e)->xrc.leaves, false);
}
