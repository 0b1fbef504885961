/*
 * loan.c - XRC_RECV QPs whose messages are for SRQs of other processes
 *
 * Processes that open the XRC domain of one inode share it: a message that
 * arrives at an XRC_RECV QP of one may name an SRQ of another. A QP receives in
 * one process, its home, and the WQEs, keys and completions of an SRQ are in
 * another. So the responder of the QP goes where the SRQ is: between messages
 * it is a few numbers (roce/lend.c).
 *
 * The number of an SRQ is from a chunk that its process has leased, as QPNs
 * are, so the registry knows whose it is. When a request for another process's
 * SRQ is the next one due, the home lends that process the QP: the request
 * travels there with the responder's state, and so does every packet that
 * comes after it. The other process, the guest's, keeps a QP of its own for it
 * (a guest), which has the same number and path, executes requests and answers
 * the peer. When it comes to a request for somebody else's SRQ, or is between
 * two messages and nothing has come for a while, it gives the responder back.
 * The home sends it the first request for another SRQ, which thus comes back,
 * and keeps what comes behind that until it does.
 *
 * All of it are packets to QP 0 that one process hands to another, and like
 * all packets they may be lost. Nothing is sent again: the peer does so, since
 * it gets no ACK, and then everything that the other side may have missed is
 * said again. Each loan has a number, so that what is late or repeated does
 * nothing:
 *
 *   LEND    home to guest: loan, attributes, state at its beginning, a request
 *   AGAIN   the same, outside of any loan: a read or atomic that was executed
 *           there once and has come again; the guest answers, nothing changes
 *   RETURN  guest to home: loan, state; or that the QP failed there, or that
 *           there is no such SRQ; and perhaps a packet that is not for here.
 *           Or only the state so far, in case that the guest's process dies
 *
 * A process that dies between messages leaves the QP whole; in the middle of
 * one it takes it along, as an SRQ does that is destroyed then (the home finds
 * that the peer asks again for what is not there any more).
 *
 * Locks: the engine's xrc_lock > guests_lock > a guest's QP.
 */
#include "loan.h"

#include "base/bytes.h"
#include "wire/roce.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define MAGIC 0x58524c32u
#define GUESTS_MAX 4096
#define GUEST_IDLE_NS 60000000000u
/* A loan that lasts so long is looked at: its process may be dead. */
#define LOAN_LONG_NS 5000000u
/* Nothing has come for so long: better at home, should this process die. */
#define SETTLE_NS 200000u
#define PARKED_MAX 256

enum word { LEND = 1, AGAIN, RETURN };

enum { F_NAK_SEQ = 1, F_RNR = 2, F_FAILED = 4, F_UNKNOWN = 8, F_KEEPS = 16 };

/* Offsets in a word. */
enum {
	W_MAGIC = 0,
	W_KIND = 4,
	W_FLAGS = 5,
	W_SLOT = 6, /* who says it */
	W_QPN = 8,
	W_LOAN = 12,
	W_QP_ID = 16,
	W_EPSN = 24,
	W_MSN = 28,
	W_ACK_BACK = 32,
	W_EVENT = 36,
	W_SRQN = 40,
	W_ATTR = 44, /* of the QP; to W_LEN */
	W_DEST_QPN = 44,
	W_ACCESS = 48,
	W_MTU = 52,
	W_RD_ATOMIC = 53,
	W_RNR_TIMER = 54,
	W_LOCAL = 55,
	W_DOMAIN = 56,
	W_SGID = 88,
	W_DGID = 104,
	W_SCOPE = 120,
	W_FLOW = 124,
	W_SPORT = 128,
	W_TCLASS = 130,
	W_HOPS = 131,
	W_LEN = 132
};

_Static_assert(W_SGID - W_DOMAIN == SHCA_DOMAIN_KEY, "");

/* Ours for QPs of other processes; hung up in the engine by number. */
struct shca_guest {
	struct shca_guest *next;
	struct shca_qp *qp;
	uint32_t qpn;
	/* Under the QP's lock. */
	uint64_t qp_id;
	uint32_t loan;
	uint16_t home;
	_Atomic bool held; /* the responder is here; read anywhere */
	bool told; /* the home knows the state */
	bool unknown; /* its first request was for no SRQ of ours */
	int event; /* what it failed with; -1: nothing */
	_Atomic uint64_t used_ns;
	uint8_t attr[W_LEN - W_ATTR];
};

/* A packet that waits at home for the responder. */
struct shca_parked {
	struct shca_parked *next;
	struct roce_rx rx;
	uint8_t payload[];
};

/* Words */

static void word_begin(uint8_t *w, enum word kind, const struct engine *e,
		       uint32_t qpn, uint32_t loan, uint64_t qp_id,
		       const struct roce_rsp_state *s)
{
	memset(w, 0, W_LEN);
	put_be32(w + W_MAGIC, MAGIC);
	w[W_KIND] = (uint8_t)kind;
	w[W_FLAGS] = (uint8_t)((s->nak_seq_sent ? F_NAK_SEQ : 0) |
			       (s->rnr_sent ? F_RNR : 0));
	put_be16(w + W_SLOT, registry_slot(e->registry));
	put_be32(w + W_QPN, qpn);
	put_be32(w + W_LOAN, loan);
	put_be64(w + W_QP_ID, qp_id);
	put_be32(w + W_EPSN, s->epsn);
	put_be32(w + W_MSN, s->msn);
	put_be32(w + W_ACK_BACK, s->ack_back);
}

static struct roce_rsp_state word_state(const uint8_t *w)
{
	return (struct roce_rsp_state){
		.epsn = get_be32(w + W_EPSN),
		.msn = get_be32(w + W_MSN),
		.ack_back = get_be32(w + W_ACK_BACK),
		.nak_seq_sent = w[W_FLAGS] & F_NAK_SEQ,
		.rnr_sent = w[W_FLAGS] & F_RNR,
	};
}

static void word_attr(uint8_t *w, const struct shca_qp *qp)
{
	const struct roce_path *path = roce_qp_path(qp->core);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	roce_qp_query(qp->core, &attr, &init);
	put_be32(w + W_DEST_QPN, roce_qp_dest(qp->core));
	put_be32(w + W_ACCESS, (uint32_t)attr.qp_access_flags);
	w[W_MTU] = (uint8_t)attr.path_mtu;
	w[W_RD_ATOMIC] = attr.max_dest_rd_atomic;
	w[W_RNR_TIMER] = attr.min_rnr_timer;
	w[W_LOCAL] = path->local;
	shca_domain_key(qp->domain, w + W_DOMAIN);
	memcpy(w + W_SGID, path->sgid.raw, 16);
	memcpy(w + W_DGID, path->dgid.raw, 16);
	put_be32(w + W_SCOPE, path->sgid_scope);
	put_be32(w + W_FLOW, path->flow_label);
	put_be16(w + W_SPORT, path->sport);
	w[W_TCLASS] = path->tclass;
	w[W_HOPS] = path->hop_limit;
}

/* With a packet behind it, which may be NULL. */
static int word_send(struct engine *e, unsigned slot, const uint8_t *w,
		     const struct roce_path *path, const struct roce_rx *pkt)
{
	struct roce_hdr h = { .opcode = ROCE_UD | ROCE_SEND_ONLY,
			      .pkey = ROCE_PKEY_DEFAULT };
	uint8_t buf[UDP_HANDOVER_MAX];
	size_t len = roce_encode(&h, buf);

	memcpy(buf + len, w, W_LEN);
	len += W_LEN;
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

/* At home */

static void lend(struct shca_qp *qp, enum word kind, unsigned slot,
		 const struct roce_rsp_state *s, const struct roce_rx *pkt)
{
	uint8_t w[W_LEN];

	word_begin(w, kind, qp->engine, shca_qpn(qp), qp->loan, qp->qp_id, s);
	word_attr(w, qp);
	put_be32(w + W_SRQN, pkt->h.xrc_srqn);
	/* One that does not leave is a packet that is lost. */
	word_send(qp->engine, slot, w, NULL, pkt);
}

/* Whether it is what the QP's peer would send; the core looks closer. */
static bool is_request(const struct shca_qp *qp, const struct roce_rx *pkt)
{
	const struct roce_path *path = roce_qp_path(qp->core);
	enum ibv_qp_state state = roce_qp_state(qp->core);

	return roce_opcode(pkt->h.opcode)->name &&
	       roce_opcode(pkt->h.opcode)->flags & ROCE_F_XRCETH &&
	       (state == IBV_QPS_RTR || state == IBV_QPS_RTS ||
		state == IBV_QPS_SQD) &&
	       !memcmp(&pkt->sgid, &path->dgid, sizeof(pkt->sgid)) &&
	       !memcmp(&pkt->dgid, &path->sgid, sizeof(pkt->dgid));
}

static bool has_answer(const struct roce_rx *pkt)
{
	return roce_opcode(pkt->h.opcode)->flags &
	       (ROCE_F_READ | ROCE_F_ATOMIC);
}

static void park(struct shca_qp *qp, const struct roce_rx *pkt)
{
	struct shca_parked *p, **tail = &qp->parked;
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

void shca_loan_forget(struct shca_qp *qp)
{
	unpark(qp->parked);
	qp->parked = NULL;
	qp->lent = 0;
	qp->recalled = false;
	qp->qp_id = 0;
	qp->not_there = 0;
}

/*
 * While the responder is away: packets go there, up to the first one that it
 * will come back for. That one again, or an earlier one that is due: it did not
 * arrive, as if nothing comes back for long. Duplicates call nobody back.
 */
static void away_rx(struct shca_qp *qp, const struct roce_rx *pkt,
		    const struct roce_rsp_state *s, uint64_t now)
{
	struct engine *e = qp->engine;

	if (psn_diff(pkt->h.psn, s->epsn) < 0) {
		lend(qp, LEND, qp->lent - 1u, s, pkt);
		return;
	}
	if (qp->recalled && now < qp->recall_ns + LOAN_LONG_NS &&
	    psn_diff(pkt->h.psn, qp->recall_psn) > 0) {
		park(qp, pkt);
		return;
	}
	if (qp->recalled) {
		unpark(qp->parked);
		qp->parked = NULL;
		qp->recalled = false;
	}
	if (registry_owner(e->registry, pkt->h.xrc_srqn) != qp->lent - 1) {
		qp->recalled = true;
		qp->recall_psn = pkt->h.psn;
		qp->recall_ns = now;
	}
	lend(qp, LEND, qp->lent - 1u, s, pkt);
}

static bool home_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now)
{
	struct engine *e = qp->engine;
	struct roce_rsp_state s;
	int32_t rel;
	int slot;

	roce_rsp_get(qp->core, &s);
	if (qp->lent) {
		/* To ask is a system call. */
		if (now >= qp->alive_ns + LOAN_LONG_NS &&
		    registry_alive(e->registry, qp->lent - 1u))
			qp->alive_ns = now;
		if (now < qp->alive_ns + LOAN_LONG_NS) {
			away_rx(qp, pkt, &s, now);
			return true;
		}
		shca_loan_forget(qp);
	}
	slot = registry_owner(e->registry, pkt->h.xrc_srqn);
	if (slot < 0 || (unsigned)slot == registry_slot(e->registry) ||
	    pkt->h.xrc_srqn == qp->not_there)
		return false;
	rel = psn_diff(pkt->h.psn, s.epsn);
	if (rel > 0 || (rel < 0 && !has_answer(pkt)) || (!rel && !s.between))
		return false;
	if (!registry_alive(e->registry, (unsigned)slot))
		return false;
	if (rel < 0) {
		lend(qp, AGAIN, (unsigned)slot, &s, pkt);
		return true;
	}
	if (!s.idle) {
		shca_qp_flush(qp, now);
		roce_rsp_get(qp->core, &s);
		if (!s.idle)
			return true; /* no room on the link: later */
	}
	if (!qp->qp_id &&
	    getrandom(&qp->qp_id, sizeof(qp->qp_id), 0) != sizeof(qp->qp_id))
		return true;
	qp->loan++;
	qp->lent = (uint16_t)(slot + 1);
	qp->alive_ns = now;
	lend(qp, LEND, (unsigned)slot, &s, pkt);
	return true;
}

/* Whether a word is about the loan that the QP is on. */
static bool is_lent(const struct shca_qp *qp, const uint8_t *w)
{
	return qp->lent && get_be32(w + W_LOAN) == qp->loan &&
	       get_be64(w + W_QP_ID) == qp->qp_id &&
	       get_be16(w + W_SLOT) == qp->lent - 1u;
}

/* RETURN, perhaps with a packet; lock held. */
static void taken_back(struct shca_qp *qp, const uint8_t *w,
		       const struct roce_rx *pkt, uint64_t now)
{
	const struct roce_rsp_state s = word_state(w);
	struct shca_parked *parked = qp->parked, *p;

	if (w[W_FLAGS] & F_KEEPS) {
		roce_rsp_set(qp->core, &s);
		return;
	}
	qp->lent = 0;
	qp->recalled = false;
	qp->parked = NULL;
	if (w[W_FLAGS] & F_FAILED) {
		int32_t event = (int32_t)get_be32(w + W_EVENT);

		roce_rsp_failed(
			qp->core,
			event == IBV_EVENT_QP_REQ_ERR ||
					event == IBV_EVENT_QP_ACCESS_ERR ||
					event == IBV_EVENT_QP_FATAL
				? event
				: -1);
	} else {
		roce_rsp_set(qp->core, &s);
		if (w[W_FLAGS] & F_UNKNOWN)
			qp->not_there = get_be32(w + W_SRQN);
		if (pkt)
			shca_qp_rx(qp, pkt, now);
		/* They may lead to the next loan, and wait again. */
		for (p = parked; p; p = p->next)
			shca_qp_rx(qp, &p->rx, now);
	}
	unpark(parked);
	shca_qp_flush(qp, now);
}

/* Guests */

/* keeps: not yet, but this is how far it has come. */
static void give_back(struct shca_qp *qp, const struct roce_rx *pkt, bool keeps)
{
	struct shca_guest *g = qp->guest;
	bool failed = roce_qp_state(qp->core) == IBV_QPS_ERR;
	struct engine *e = qp->engine;
	struct roce_rsp_state s;
	uint8_t w[W_LEN];

	roce_rsp_get(qp->core, &s);
	word_begin(w, RETURN, e, g->qpn, g->loan, g->qp_id, &s);
	if (keeps)
		w[W_FLAGS] |= F_KEEPS;
	if (failed)
		w[W_FLAGS] |= F_FAILED;
	if (g->unknown)
		w[W_FLAGS] |= F_UNKNOWN;
	put_be32(w + W_SRQN, pkt ? pkt->h.xrc_srqn : 0);
	put_be32(w + W_EVENT, (uint32_t)g->event);
	if (word_send(e, g->home, w, roce_qp_path(qp->core), pkt) == -EAGAIN)
		return;
	g->told = true;
	if (keeps)
		return;
	if (g->held)
		atomic_fetch_sub(&e->nheld, 1);
	g->held = false;
}

/*
 * About to answer the peer: the home comes first. Should this process die, it
 * goes on where the peer believes that it is.
 */
void shca_loan_note(struct shca_qp *qp)
{
	struct roce_rsp_state s;

	if (!qp->guest->held || qp->guest->told || !roce_tx_ready(qp->core))
		return;
	roce_rsp_get(qp->core, &s);
	if (s.between && roce_qp_state(qp->core) != IBV_QPS_ERR)
		give_back(qp, NULL, true);
}

/* Between two messages, with nothing left to say; or failed, having said so. */
static bool settled(struct shca_qp *qp)
{
	struct roce_rsp_state s;

	roce_rsp_get(qp->core, &s);
	return s.idle || (roce_qp_state(qp->core) == IBV_QPS_ERR &&
			  !roce_tx_ready(qp->core));
}

static bool guest_rx(struct shca_qp *qp, const struct roce_rx *pkt,
		     uint64_t now)
{
	struct shca_guest *g = qp->guest;
	struct engine *e = qp->engine;
	struct roce_rsp_state s;
	int32_t rel;

	roce_rsp_get(qp->core, &s);
	rel = psn_diff(pkt->h.psn, s.epsn);
	g->used_ns = now;
	g->told = false;
	if (rel < 0 && has_answer(pkt))
		return false;
	if (!g->held) {
		give_back(qp, pkt, false); /* in case that it was lost */
		return true;
	}
	if (rel || !s.between || shca_domain_has(qp->domain, pkt->h.xrc_srqn))
		return false;
	shca_qp_flush(qp, now);
	if (!settled(qp))
		return true;
	g->unknown = registry_owner(e->registry, pkt->h.xrc_srqn) ==
		     (int)registry_slot(e->registry);
	give_back(qp, pkt, false);
	return true;
}

bool shca_loan_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now)
{
	uint8_t key[SHCA_DOMAIN_KEY];

	if (!qp->engine->registry || !is_request(qp, pkt))
		return false;
	if (qp->guest)
		return guest_rx(qp, pkt, now);
	return shca_domain_key(qp->domain, key) &&
	       home_rx(qp, pkt, now);
}

static int core_create(struct shca_qp *qp, const uint8_t *w)
{
	struct roce_qp_init init = {
		.env = &qp->engine->env,
		.owner = qp,
		.qpn = get_be32(w + W_QPN) & 0xffffff,
		.type = IBV_QPT_XRC_RECV,
		.seed = get_be32(w + W_QPN) * 0x9e3779b1u,
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = get_be32(w + W_ACCESS),
		.path_mtu = w[W_MTU],
		.dest_qp_num = get_be32(w + W_DEST_QPN) & 0xffffff,
		.rq_psn = get_be32(w + W_EPSN) & 0xffffff,
		.max_dest_rd_atomic = w[W_RD_ATOMIC],
		.min_rnr_timer = w[W_RNR_TIMER],
	};
	struct roce_path path = {
		.sgid_scope = get_be32(w + W_SCOPE),
		.flow_label = get_be32(w + W_FLOW),
		.sport = (uint16_t)get_be16(w + W_SPORT),
		.tclass = w[W_TCLASS],
		.hop_limit = w[W_HOPS],
		.local = w[W_LOCAL],
	};
	struct roce_qp *core;
	int err;

	memcpy(path.sgid.raw, w + W_SGID, 16);
	memcpy(path.dgid.raw, w + W_DGID, 16);
	if (roce_gid_is_v4(&path.sgid) != roce_gid_is_v4(&path.dgid) ||
	    attr.path_mtu < IBV_MTU_256 || attr.path_mtu > IBV_MTU_4096)
		return -EINVAL;
	err = roce_qp_create(&core, &init);
	if (err)
		return err;
	err = roce_qp_modify(core, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				     IBV_QP_ACCESS_FLAGS,
			     NULL);
	attr.qp_state = IBV_QPS_RTR;
	if (!err)
		err = roce_qp_modify(core, &attr,
				     IBV_QP_STATE | IBV_QP_AV |
					     IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					     IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC |
					     IBV_QP_MIN_RNR_TIMER,
				     &path);
	if (err) {
		roce_qp_destroy(core);
		return err;
	}
	if (qp->core)
		roce_qp_destroy(qp->core);
	qp->core = core;
	return 0;
}

/* Ends a loan, whatever it is at; lock held. */
static void finish(struct shca_qp *qp)
{
	if (qp->dead || !qp->guest->held)
		return;
	/* The peer waits for an answer; the link may be busy. */
	for (int i = 0; i < 100 && roce_tx_ready(qp->core); i++) {
		if (i)
			usleep(500);
		shca_qp_flush(qp, clock_ns());
	}
	/* What it is in the middle of does not go on. */
	if (!settled(qp))
		roce_rsp_failed(qp->core, IBV_EVENT_QP_FATAL);
	give_back(qp, NULL, false);
}

/* The QP of a guest that is in no list any more. */
static void guest_kill(struct engine *e, struct shca_guest *g)
{
	struct shca_qp *qp = g->qp;

	pthread_mutex_lock(&qp->lock);
	finish(qp);
	qp->dead = true;
	if (qp->core)
		roce_qp_destroy(qp->core);
	qp->core = NULL;
	if (g->held)
		atomic_fetch_sub(&e->nheld, 1);
	qp->guest = NULL;
	shca_qp_unlock(qp);
	engine_timer_drop(e, qp);
	shca_qp_put(qp);
	free(g);
}

static struct shca_guest **guest_slot(struct engine *e, uint32_t qpn)
{
	struct shca_guest **p = &e->guests[qpn % SHCA_GUEST_BUCKETS];

	while (*p && (*p)->qpn != qpn)
		p = &(*p)->next;
	return p;
}

/* Takes out those that which() says; the caller kills them. */
static struct shca_guest *guests_take(struct engine *e,
				      bool (*which)(const struct shca_guest *g,
						    const void *arg),
				      const void *arg)
{
	struct shca_guest **p, *g, *list = NULL;

	pthread_mutex_lock(&e->guests_lock);
	for (size_t i = 0; i < SHCA_GUEST_BUCKETS; i++) {
		p = &e->guests[i];
		while ((g = *p)) {
			if (!which(g, arg)) {
				p = &g->next;
				continue;
			}
			*p = g->next;
			e->nguests--;
			g->next = list;
			list = g;
		}
	}
	pthread_mutex_unlock(&e->guests_lock);
	return list;
}

static void guests_kill(struct engine *e, struct shca_guest *list)
{
	struct shca_guest *next;

	for (; list; list = next) {
		next = list->next;
		guest_kill(e, list);
	}
}

static bool is_of_domain(const struct shca_guest *g, const void *domain)
{
	return g->qp->domain == domain;
}

void shca_loan_domain_gone(struct engine *e, struct shca_domain *d)
{
	struct shca_guest *list;

	/* While they can still be found, or a home would get an older state
	 * back with the word that there is no guest. */
	pthread_mutex_lock(&e->guests_lock);
	for (size_t i = 0; i < SHCA_GUEST_BUCKETS; i++) {
		for (struct shca_guest *g = e->guests[i]; g; g = g->next) {
			if (g->qp->domain != d)
				continue;
			pthread_mutex_lock(&g->qp->lock);
			finish(g->qp);
			shca_qp_unlock(g->qp);
		}
	}
	pthread_mutex_unlock(&e->guests_lock);
	list = guests_take(e, is_of_domain, d);
	/* Nobody finds them, or has them; nor one that the receive side has
	 * taken out. */
	udp_poll_wait(e->udp);
	guests_kill(e, list);
}

static bool is_unused(const struct shca_guest *g, const void *now)
{
	return !g->held && *(const uint64_t *)now > g->used_ns + GUEST_IDLE_NS;
}

/* Of a QP that is no more: nobody waits for its responder. */
static void guest_drop(struct engine *e, struct shca_guest *g)
{
	pthread_mutex_lock(&g->qp->lock);
	if (g->held)
		atomic_fetch_sub(&e->nheld, 1);
	g->held = false;
	shca_qp_unlock(g->qp);
	guest_kill(e, g);
}

/*
 * A guest for the QP that a word is about, with a reference on its QP; NULL if
 * there is no such domain. One of another domain was for an earlier QP of that
 * number.
 */
static struct shca_qp *guest_get(struct engine *e, const uint8_t *w,
				 uint64_t now)
{
	uint32_t qpn = get_be32(w + W_QPN) & 0xffffff;
	uint8_t key[SHCA_DOMAIN_KEY];
	struct shca_guest **slot, *g;
	struct shca_domain *d;
	struct shca_qp *qp;

	pthread_mutex_lock(&e->guests_lock);
	slot = guest_slot(e, qpn);
	g = *slot;
	if (g && shca_domain_key(g->qp->domain, key) &&
	    !memcmp(key, w + W_DOMAIN, sizeof(key))) {
		qp = g->qp;
		shca_qp_get(qp);
		pthread_mutex_unlock(&e->guests_lock);
		return qp;
	}
	if (g) {
		*slot = g->next;
		e->nguests--;
	}
	pthread_mutex_unlock(&e->guests_lock);
	if (g)
		guest_drop(e, g);
	if (e->nguests >= GUESTS_MAX)
		guests_kill(e, guests_take(e, is_unused, &now));
	g = calloc(1, sizeof(*g));
	qp = calloc(1, sizeof(*qp));
	/* The domain stays until the guest is in the list, and then takes it
	 * along when it goes. */
	pthread_mutex_lock(&e->xrc_lock);
	d = shca_domain_find(e, w + W_DOMAIN);
	if (!g || !qp || !d || e->nguests >= GUESTS_MAX) {
		pthread_mutex_unlock(&e->xrc_lock);
		free(g);
		free(qp);
		return NULL;
	}
	qp->engine = e;
	atomic_store(&qp->refs, 2);
	atomic_store(&qp->timer_due, UINT64_MAX);
	pthread_mutex_init(&qp->modify_lock, NULL);
	pthread_mutex_init(&qp->lock, NULL);
	pthread_mutex_init(&qp->wr_lock, NULL);
	qp->dead = true; /* until it has a core */
	qp->abandoned = true; /* it has no handle, so no events */
	qp->ex.qp_base.qp_num = qpn;
	qp->ex.qp_base.qp_type = IBV_QPT_XRC_RECV;
	qp->domain = d;
	qp->guest = g;
	g->qp = qp;
	g->qpn = qpn;
	g->used_ns = now;
	pthread_mutex_lock(&e->guests_lock);
	/* Only who receives makes guests, so there is none by now. */
	g->next = e->guests[qpn % SHCA_GUEST_BUCKETS];
	e->guests[qpn % SHCA_GUEST_BUCKETS] = g;
	e->nguests++;
	pthread_mutex_unlock(&e->guests_lock);
	pthread_mutex_unlock(&e->xrc_lock);
	return qp;
}

/* LEND or AGAIN; lock held. False: nothing to do with the packet. */
static bool guest_prepare(struct shca_qp *qp, const uint8_t *w)
{
	struct shca_guest *g = qp->guest;
	uint32_t loan = get_be32(w + W_LOAN);
	struct roce_rsp_state s = word_state(w);
	bool other, fresh;

	if (!g)
		return false; /* it goes */
	other = !qp->core || g->qp_id != get_be64(w + W_QP_ID) ||
		memcmp(g->attr, w + W_ATTR, sizeof(g->attr));
	fresh = !qp->core || g->qp_id != get_be64(w + W_QP_ID) ||
		(int32_t)(loan - g->loan) > 0;
	if (w[W_KIND] == AGAIN) {
		/* Before a first loan nothing can have been executed here. */
		if (other || g->held || roce_qp_state(qp->core) == IBV_QPS_ERR)
			return false;
		roce_rsp_set(qp->core, &s);
		return true;
	}
	if (!fresh)
		return loan == g->loan;
	if ((other || roce_qp_state(qp->core) == IBV_QPS_ERR) &&
	    core_create(qp, w))
		return false;
	qp->dead = false;
	memcpy(g->attr, w + W_ATTR, sizeof(g->attr));
	g->qp_id = get_be64(w + W_QP_ID);
	g->home = (uint16_t)get_be16(w + W_SLOT);
	g->loan = loan;
	g->event = -1;
	g->unknown = false;
	if (!g->held)
		atomic_fetch_add(&qp->engine->nheld, 1);
	g->held = true;
	roce_rsp_set(qp->core, &s);
	return true;
}

/* There is no such domain in this process. */
static void refuse(struct engine *e, const uint8_t *w,
		   const struct roce_rx *inner)
{
	uint8_t r[W_LEN];

	if (w[W_KIND] != LEND)
		return;
	memcpy(r, w, W_LEN);
	r[W_KIND] = RETURN;
	r[W_FLAGS] |= F_UNKNOWN;
	put_be16(r + W_SLOT, registry_slot(e->registry));
	put_be32(r + W_SRQN, inner->h.xrc_srqn);
	word_send(e, get_be16(w + W_SLOT), r, NULL, inner);
}

struct shca_qp *shca_loan_word(struct engine *e, const struct roce_rx *pkt,
			       struct roce_rx *inner, struct shca_qp *mine,
			       uint64_t now)
{
	const uint8_t *w = pkt->payload;
	struct shca_qp *qp;
	bool good;
	int hdr;

	*inner = *pkt;
	inner->grh = NULL;
	inner->handed = false;
	inner->len = 0;
	if (pkt->len > W_LEN) {
		hdr = roce_decode(&inner->h, w + W_LEN, pkt->len - W_LEN);
		if (hdr < 0)
			return NULL;
		inner->payload = w + W_LEN + hdr;
		inner->len = pkt->len - W_LEN - (size_t)hdr - inner->h.pad;
	}
	switch (w[W_KIND]) {
	case LEND:
	case AGAIN:
		if (pkt->len == W_LEN)
			return NULL;
		qp = guest_get(e, w, now);
		if (!qp) {
			refuse(e, w, inner);
			return NULL;
		}
		pthread_mutex_lock(&qp->lock);
		good = guest_prepare(qp, w);
		shca_qp_unlock(qp);
		/* shca_loan_domain_gone() waits for the receive side. */
		shca_qp_put(qp);
		return good ? qp : NULL;
	case RETURN:
		if (!mine)
			return NULL;
		pthread_mutex_lock(&mine->lock);
		if (!mine->dead && pkt->len > W_LEN && !is_lent(mine, w))
			shca_qp_rx(mine, inner, now); /* late */
		else if (!mine->dead && is_lent(mine, w))
			taken_back(mine, w, pkt->len > W_LEN ? inner : NULL,
				   now);
		if (!mine->dead)
			shca_qp_flush(mine, now);
		shca_qp_unlock(mine);
		return NULL;
	default:
		return NULL;
	}
}

uint32_t shca_loan_about(const struct roce_rx *pkt)
{
	if (!pkt->handed || pkt->len < W_LEN ||
	    get_be32(pkt->payload + W_MAGIC) != MAGIC)
		return 0;
	return get_be32(pkt->payload + W_QPN) & 0xffffff;
}

/* Guests that have done what they can give the responder back. */
void shca_loan_settle(struct engine *e, uint64_t now)
{
	struct shca_qp *held[32];
	size_t n = 0;

	pthread_mutex_lock(&e->guests_lock);
	for (size_t i = 0; i < SHCA_GUEST_BUCKETS; i++)
		for (struct shca_guest *g = e->guests[i]; g; g = g->next)
			if (g->held && n < sizeof(held) / sizeof(held[0])) {
				shca_qp_get(g->qp);
				held[n++] = g->qp;
			}
	pthread_mutex_unlock(&e->guests_lock);
	while (n) {
		struct shca_qp *qp = held[--n];

		if (shca_qp_trylock(qp)) {
			if (!qp->dead && qp->guest->held) {
				uint64_t due = qp->guest->used_ns + SETTLE_NS;

				shca_qp_flush(qp, now);
				if (!settled(qp))
					due = now + SETTLE_NS;
				else if (now >= due ||
					 roce_qp_state(qp->core) == IBV_QPS_ERR)
					give_back(qp, NULL, false);
				else if (!qp->guest->told)
					give_back(qp, NULL, true);
				if (qp->guest->held)
					engine_timer_set(
						e, qp,
						due > now ? due
							  : now + SETTLE_NS);
			}
			shca_qp_unlock(qp);
		}
		shca_qp_put(qp);
	}
}

void shca_loan_event(struct shca_qp *qp, enum ibv_event_type event)
{
	if (event == IBV_EVENT_QP_REQ_ERR || event == IBV_EVENT_QP_ACCESS_ERR ||
	    event == IBV_EVENT_QP_FATAL)
		qp->guest->event = (int)event;
}

void shca_loan_srq_gone(struct engine *e, struct shca_domain *d, uint32_t num)
{
	pthread_mutex_lock(&e->guests_lock);
	for (size_t i = 0; i < SHCA_GUEST_BUCKETS; i++) {
		for (struct shca_guest *g = e->guests[i]; g; g = g->next) {
			if (g->qp->domain != d)
				continue;
			pthread_mutex_lock(&g->qp->lock);
			if (!g->qp->dead) {
				roce_srq_gone(g->qp->core, num);
				shca_qp_flush(g->qp, clock_ns());
			}
			shca_qp_unlock(g->qp);
		}
	}
	pthread_mutex_unlock(&e->guests_lock);
}
