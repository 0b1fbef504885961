/*
 * packets.c - packets into and out of a queue pair, and its deadline
 *
 * What holds for every packet is checked here (IBTA 9.6.1), before the part of
 * the QP that it is for sees it. On the way out responses come first: the peer
 * waits for them, and a batch is either all responses or all requests, so that
 * it is easy to take back. Only an acknowledgement, if nothing else is owed,
 * leaves behind requests: to the peer's program the answer matters more.
 */
#include "roce_internal.h"

#include "base/gid.h"

#include <assert.h>

#define COALESCE_OUT 4u /* requests on their way, at least */
#define COALESCE_MAX 16u
#define COALESCE_LENGTH 4096u

static bool pkey_matches(uint16_t pkey)
{
	/* Ours is the default with full membership, which matches both. */
	return (pkey & 0x7fff) == (ROCE_PKEY_DEFAULT & 0x7fff);
}

void roce_drop(struct roce_qp *qp, enum roce_drop why)
{
	/* What points to a mistake in the program or the network. */
	static const char *const mistakes[ROCE_DROPS] = {
		[ROCE_DROP_OPCODE] = "its opcode is not one of this QP's type, "
				     "or not expected here",
		[ROCE_DROP_HEADER] = "its P_Key is not 0xffff, or its "
				     "transport version is not 0",
		[ROCE_DROP_ADDRESS] =
			"its source or destination address is not the "
			"connection's: does the peer have several, or did it "
			"give another GID?",
	};

	qp->stats.dropped++;
	qp->stats.gaps += why == ROCE_DROP_GAP;
	qp->stats.no_recv += why == ROCE_DROP_NO_RECV;
	if (roce_env(qp)->dropped)
		roce_env(qp)->dropped(&qp->base, why);
	if (mistakes[why] && !(qp->drops_explained & 1u << why)) {
		qp->drops_explained |= 1u << why;
		explain(qp,
			"packet dropped (others for the same reason are not "
			"reported): %s",
			mistakes[why]);
	}
}

/* Header and opcode, of any service. */
static inline int rx_check_header(const struct roce_rx *pkt, uint8_t service)
{
	uint8_t op = pkt->h.opcode;

	/* MigReq is not looked at: rxe sends 0, ConnectX 1 (17.2.8). */
	if (pkt->h.tver != 0 || !pkey_matches(pkt->h.pkey))
		return 1 + ROCE_DROP_HEADER;
	if (!roce_opcode(op)->name ||
	    (op == ROCE_CNP ? service == ROCE_UD : (op & 0xe0) != service))
		return 1 + ROCE_DROP_OPCODE;
	return 0;
}

static bool same_path(const struct roce_rx *pkt, const struct roce_path *path,
		      uint32_t hash)
{
	if (pkt->host)
		return pkt->path_hash == hash;
	return pkt->v1 == path->v1 && gid_equal(&pkt->sgid, &path->dgid) &&
	       gid_equal(&pkt->dgid, &path->sgid);
}

/*
 * A congestion notification has nothing that a stranger must guess but the QPN,
 * so it has to come from where the peer's packets do, if any did; and, as with
 * DCQCN, what comes within an interval counts once.
 */
static void cnp_rx(struct roce_qp *qp, const struct roce_rx *pkt,
		   uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	const uint16_t sport = r->sport ? r->sport : qp->rsp.sport;

	qp->stats.cnp_rx++;
	if ((sport && pkt->sport != sport) ||
	    (r->cnp_ns && now_ns < r->cnp_ns + CNP_GAP_NS))
		return;
	r->cnp_ns = now_ns;
	if (qp_is_reliable(&qp->base))
		cc_congested(qp);
	else
		pace_slow(qp, now_ns);
}

static inline int check_connected(const struct roce_rx *pkt, uint8_t service,
				  const struct roce_path *path, uint32_t hash)
{
	int drop = rx_check_header(pkt, service);

	if (!drop && !same_path(pkt, path, hash))
		drop = 1 + ROCE_DROP_ADDRESS;
	return drop;
}

int roce_check_connected(const struct roce_rx *pkt, uint8_t service,
			 const struct roce_path *path, uint32_t hash)
{
	return check_connected(pkt, service, path, hash);
}

/*
 * Checks that hold for every packet of a service (IBTA 9.6.1). Returns 0 or
 * 1 + enum roce_drop.
 */
static inline int rx_check(const struct roce_qp *qp, const struct roce_rx *pkt)
{
	if (qp->base.state < IBV_QPS_RTR)
		return 1 + ROCE_DROP_STATE;
	if (qp->base.state == IBV_QPS_ERR)
		return 1 + ROCE_DROP_ENDED;
	/* Only what stays in memory may be elsewhere. */
	if (pkt->source && (qp->base.type == IBV_QPT_UD ||
			    roce_opcode(pkt->h.opcode)->flags & ROCE_F_ATOMIC))
		return 1 + ROCE_DROP_HEADER;
	if (qp->base.type == IBV_QPT_UD)
		return rx_check_header(pkt, qp->service);
	return check_connected(pkt, qp->service, &qp->path, qp->path_hash);
}

/* Only the peer's: others' mistakes are not the program's. */
__attribute__((noinline, cold)) static void
pkey_differs(struct roce_qp *qp, const struct roce_rx *pkt)
{
	const bool ud = qp->base.type == IBV_QPT_UD;

	if (roce_env(qp)->differs && !pkey_matches(pkt->h.pkey) &&
	    (ud || same_path(pkt, &qp->path, qp->path_hash)))
		roce_env(qp)->differs(&qp->base, ROCE_DIFFERS_PKEY, pkt->h.pkey,
				      ROCE_PKEY_DEFAULT,
				      ud ? pkt->h.src_qpn : qp->dest_qpn);
}

static inline void request_comes(struct roce_qp *qp, const struct roce_rx *pkt,
				 uint64_t now_ns)
{
	if (now_ns)
		qp->rsp.asked_ns = now_ns;
	/*
	 * rxe, which never sets MigReq, forgets what its program posts while an
	 * ACK comes in (Linux 6.1 and 6.12).
	 */
	if (!pkt->host)
		qp->rsp.ack_first = !pkt->h.mig_req;
}

__attribute__((noinline)) static void
rx_any(struct roce_qp *qp, const struct roce_rx *pkt, uint64_t now_ns)
{
	const struct roce_opcode *op = roce_opcode(pkt->h.opcode);
	int drop = rx_check(qp, pkt);

	if (drop) {
		if (drop == 1 + ROCE_DROP_HEADER)
			pkey_differs(qp, pkt);
		roce_drop(qp, (enum roce_drop)(drop - 1));
		return;
	}
	qp->stats.rx_pkts++;
	qp->stats.rx_bytes += pkt->len;
	if (qp->base.type == IBV_QPT_UD) {
		ud_rx(qp, pkt);
		return;
	}
	if (pkt->h.opcode == ROCE_CNP) {
		cnp_rx(qp, pkt, now_ns);
		return;
	}
	if (pkt->ecn_ce && !qp->path.lossless)
		rsp_congestion(qp, now_ns);
	if (qp->base.state == IBV_QPS_RTR && !qp->comm_est)
		roce_established(qp);
	if (op->flags & ROCE_F_RESPONSE) {
		if (qp_is_reliable(&qp->base) &&
		    qp->base.type != IBV_QPT_XRC_RECV &&
		    qp->base.state >= IBV_QPS_RTS)
			comp_rx(qp, pkt, now_ns);
		else
			roce_drop(qp, ROCE_DROP_OPCODE);
	} else if (qp->base.type == IBV_QPT_XRC_SEND) {
		roce_drop(qp, ROCE_DROP_OPCODE);
	} else {
		request_comes(qp, pkt, now_ns);
		rsp_rx(qp, pkt);
	}
}

/* Whether all checks pass of a packet of RC, from another host, which has nothing
 * to say but what its opcode says. False is always allowed. */
static inline bool is_plain(const struct roce_qp *qp, const struct roce_rx *pkt)
{
	return !pkt->ecn_ce && !pkt->h.tver && pkey_matches(pkt->h.pkey) &&
	       same_path(pkt, &qp->path, qp->path_hash);
}

/* The same of one of this host: a link there carries neither P_Key nor version. Or
 * there is nothing kept that it may be in front of. */
static inline bool is_small_send(const struct roce_qp *qp,
				 const struct roce_rx *pkt)
{
	return pkt->h.opcode == (ROCE_RC | ROCE_SEND_ONLY) &&
	       (pkt->host ? pkt->path_hash == qp->path_hash :
			    !qp->rsp.reorder && is_plain(qp, pkt));
}

/* What most packets are comes first. */
void roce_rx(struct roce_qp *qp, const struct roce_rx *pkt, uint64_t now_ns)
{
	const bool ready =
		qp->base.type == IBV_QPT_RC && qp->base.state == IBV_QPS_RTS;

	if (ready && is_small_send(qp, pkt)) {
		qp->stats.rx_pkts++;
		qp->stats.rx_bytes += pkt->len;
		request_comes(qp, pkt, now_ns);
		rsp_rx_send(qp, pkt);
	} else if (ready && pkt->h.opcode == (ROCE_RC | ROCE_ACK) &&
		   !pkt->host && is_plain(qp, pkt)) {
		qp->stats.rx_pkts++;
		comp_rx(qp, pkt, now_ns);
	} else {
		rx_any(qp, pkt, now_ns);
	}
}

bool roce_tx_ready(const struct roce_qp *qp)
{
	return rsp_ready(qp) || req_ready(qp);
}

bool roce_tx_coalesce(const struct roce_qp *qp)
{
	const struct qp_sq *sq = &qp->base.sq;
	const struct qp_wqe *w = qp_sq_slot(sq, sq->tail - 1);

	/* Each request that is out has asked for an acknowledgement. */
	return qp_is_reliable(&qp->base) &&
	       sq->nxt - sq->head >= COALESCE_OUT &&
	       sq->tail - sq->nxt < COALESCE_MAX &&
	       w->length <= COALESCE_LENGTH && !w->local && !rsp_ready(qp);
}

bool roce_tx_waiting(const struct roce_qp *qp)
{
	return rsp_ready(qp) || probe_is_due(&qp->req) ||
	       (qp->base.sq.nxt != qp->base.sq.tail && !qp->req.rnr_until_ns);
}

bool roce_tx_timed(const struct roce_qp *qp)
{
	return !qp->path.lossless;
}

bool roce_tx_unarmed(const struct roce_qp *qp)
{
	return qp->req.unarmed;
}

bool roce_ack_hold(struct roce_qp *qp)
{
	return rsp_owes_ack(qp) && rsp_hold(qp);
}

void roce_ack_release(struct roce_qp *qp)
{
	if (qp->rsp.ack_held)
		rsp_hold_done(qp, false);
}

bool roce_ack_held(const struct roce_qp *qp)
{
	return qp->rsp.ack_held;
}

void roce_tx(struct roce_qp *qp, struct roce_batch *b, uint64_t now_ns)
{
	const bool rides =
		rsp_owes_ack(qp) && !qp->rsp.ack_first && req_is_one(qp);

	if (qp->rsp.ack_held && (rides || req_ready(qp)))
		rsp_hold_done(qp, true);
	b->n = b->data.n = b->data.nkeys = 0;
	b->ack = b->probe = false;
	b->responses = rsp_ready(qp) && !rides;
	if (b->responses) {
		rsp_tx(qp, b);
		if (b->n)
			return;
		batch_release(b);
		b->responses = false;
	}
	if (!qp_is_reliable(&qp->base) || qp->paced)
		pace_refill(qp, now_ns);
	qp->req.tx_end_psn = qp->req.end_psn;
	if (qp->base.type == IBV_QPT_UD)
		ud_tx(qp, b);
	else
		req_tx(qp, b, now_ns);
	/* Where nothing could be sent after all, it goes alone. */
	if (rides && rsp_ready(qp) && batch_room(b, 0)) {
		b->ack = b->n;
		b->responses = !b->ack;
		rsp_tx(qp, b);
	}
}

/* UC and UD: what has been handed to the link has been sent. */
static void complete_sent(struct roce_qp *qp)
{
	while (qp->base.sq.head != qp->base.sq.nxt) {
		struct qp_wqe *w = qp_sq_slot(&qp->base.sq, qp->base.sq.head);

		if (w->status != IBV_WC_SUCCESS || (w->local && !w->executed))
			break;
		if (!qp_sq_complete(&qp->base, IBV_WC_SUCCESS)) {
			roce_fail(qp, IBV_EVENT_QP_FATAL);
			return;
		}
		if (w->opcode == IBV_WR_RDMA_WRITE && roce_env(qp)->uc_sent)
			roce_env(qp)->uc_sent(&qp->base, w->length);
	}
	comp_head(qp);
}

/* The link had no room for the requests from pkt[sent] on. */
static void take_back(struct roce_qp *qp, const struct roce_batch *b,
		      size_t sent)
{
	uint32_t psn = b->pkt[sent].h.psn;
	struct roce_requester *r = &qp->req;

	if (qp->base.sq.head == qp->base.sq.tail)
		return; /* flushed while the batch was made */
	if (b->probe) {
		recovery_probe_untaken(r);
		r->end_psn = r->tx_end_psn;
		req_rewind(qp, r->rec.probe_nxt);
		return;
	}
	for (size_t i = sent; i < b->n; i++) {
		/* Who asked for an ACK was not heard: the next one asks. */
		if (b->pkt[i].h.ack_req)
			r->noack = r->cc.cwnd_max;
		if (roce_opcode(b->pkt[i].h.opcode)->flags &
			    (ROCE_F_READ | ROCE_F_ATOMIC) &&
		    r->rd_out)
			r->rd_out--;
	}
	req_rewind(qp, psn);
	/* What never left was not begun. */
	r->end_psn = psn_diff(r->tx_end_psn, psn) > 0 ? r->tx_end_psn : psn;
}

bool roce_tx_doubt(struct roce_qp *qp)
{
	bool already = qp->base.doubt;

	qp->base.doubt = true;
	return !already;
}

void roce_tx_done(struct roce_qp *qp, struct roce_batch *b, size_t sent,
		  uint64_t now_ns)
{
	size_t n = b->n, requests = n - b->ack;

	assert(sent <= n);
	if (qp->req.unarmed && now_ns)
		req_arm(qp, now_ns);
	qp->stats.tx_pkts += sent;
	for (size_t i = 0; i < sent; i++)
		qp->stats.tx_bytes += b->pkt[i].payload;
	if (b->responses) {
		rsp_tx_done(qp, b, sent);
	} else {
		if (b->ack && sent < n)
			rsp_tx_done(qp, b, requests);
		if (sent < requests)
			take_back(qp, b, sent);
		if (!qp_is_reliable(&qp->base) && qp->base.state != IBV_QPS_ERR)
			complete_sent(qp);
	}
	batch_release(b);
	if (n && sent == n)
		qp->base.doubt = false;
	qp->busy = sent < n;
	if (qp->busy)
		qp->busy_ns = now_ns + LINK_RETRY_NS;
	req_check_drained(qp);
}

void roce_tx_wait(struct roce_qp *qp, uint64_t until_ns)
{
	if (qp->busy)
		qp->busy_ns = until_ns;
}

bool roce_tx_busy(const struct roce_qp *qp)
{
	return qp->busy;
}

bool roce_is_idle(const struct roce_qp *qp)
{
	return qp->base.sq.nxt == qp->base.sq.tail && !rsp_ready(qp) &&
	       !probe_is_due(&qp->req) &&
	       !(qp->busy | qp->pace.next_ns | qp->req.timer_ns |
		 qp->req.rnr_until_ns);
}

uint64_t roce_deadline(const struct roce_qp *qp)
{
	uint64_t t = UINT64_MAX;

	if (qp->busy)
		t = qp->busy_ns;
	if (qp->pace.next_ns && qp->pace.next_ns < t)
		t = qp->pace.next_ns;
	if (qp->req.timer_ns && qp->req.timer_ns < t)
		t = qp->req.timer_ns;
	if (qp->req.rnr_until_ns && qp->req.rnr_until_ns < t)
		t = qp->req.rnr_until_ns;
	return t;
}

bool roce_deadline_is_lax(const struct roce_qp *qp)
{
	return !qp->busy && !qp->pace.next_ns && !qp->req.rnr_until_ns &&
	       !qp->req.looks && qp->req.rec.mode == FRESH;
}

void roce_expire(struct roce_qp *qp, uint64_t now_ns)
{
	if (qp->busy && now_ns >= qp->busy_ns)
		qp->busy = 0;
	pace_expire(qp, now_ns);
	comp_expire(qp, now_ns);
}
