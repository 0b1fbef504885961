/*
 * roce_internal.h - what the files of the protocol core share: the queue pair
 *
 * roce_qp.c: creation, states, end; packets.c: packets in and out; requester.c:
 * from the send queue to packets; completer.c: what comes back for them;
 * recovery.c: what is sent again; pause.c: nothing is, for a while; responder.c, execute.c and response.c:
 * everything a peer asks for; ud.c: datagrams. All of it runs under the lock of
 * the QP's owner.
 */
#ifndef SOFTHCA_ROCE_INTERNAL_H
#define SOFTHCA_ROCE_INTERNAL_H

#include "qp.h"

#include "base/backoff.h"
#include "base/bytes.h"
#include "qp/refused.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#define USEC 1000ull
#define MSEC 1000000ull

/* At most one congestion notification in this time is sent, or counts. */
#define CNP_GAP_NS (50 * USEC)

/* How long the link gets when it had no room, before it is asked again. */
#define LINK_RETRY_NS (50 * USEC)

/*
 * A send WQE. PSNs are given to it when it is posted, as many as it will have
 * packets, or its response will.
 */
struct roce_wqe {
	struct qp_wqe base;
	uint32_t first_psn, last_psn;
	uint32_t remote_srqn; /* XRC */
	/* RC: a send or write that is one packet of one MTU, waits for nothing
	 * and has nothing wrong. */
	bool simple;
};

/*
 * Of a datagram: the path of the address handle is copied, since the program
 * may destroy the handle before a busy link lets us send.
 */
struct roce_ud_wqe {
	struct roce_wqe roce;
	uint32_t remote_qpn;
	uint32_t remote_qkey;
	bool drop; /* over the MTU: completes, sends nothing */
	struct roce_path path;
};

static inline struct roce_wqe *roce_wqe(const struct qp_wqe *w)
{
	return (struct roce_wqe *)(void *)(uintptr_t)w;
}

static inline struct roce_ud_wqe *roce_ud_wqe(const struct qp_wqe *w)
{
	return (struct roce_ud_wqe *)(void *)(uintptr_t)w;
}

/* Congestion windows count 1/256 of a packet. */
#define CWND_UNIT 256u

/* Congestion control of a reliable requester, see congestion.c. */
struct roce_cc {
	uint32_t cwnd, cwnd_max, ssthresh; /* packets in flight, 1/256 units */
	bool recovering; /* from one event, until una is recover_psn */

	/* One round trip after the other is measured. */
	bool sent_again; /* it had been sent before, */
	bool doubtful; /* or what is behind it has been since */
	bool guessed; /* these are, from a packet that was sent twice */
	uint64_t sent_ns; /* when sent_psn was sent; 0: none is measured */
	uint32_t sent_psn;
	uint32_t sent_una; /* una then */
	uint64_t srtt_ns, rttvar_ns, min_rtt_ns;
	uint32_t rate; /* most that has arrived lately, CWND_UNITs per ms */
	uint32_t recover_psn;

	uint32_t undo_cwnd, undo_ssthresh; /* from before what was a loss, */
	bool undoable, silent; /* or seemed to be; or a silence */
	uint64_t cut_ns; /* when a loss last narrowed the window; 0: never */
	uint64_t
		wait_ns; /* for a processor, when the pace lets it go on; smoothed */
};

/* What a requester sends again. */
enum recovery_mode {
	FRESH, /* nothing */
	GO_BACK_N, /* all that was out */
	SELECTIVE, /* the oldest packet, as a probe: the peer may have the rest */
};

/*
 * The oldest packet is sent once more by itself, in any mode, for an answer that
 * says what the peer has.
 */
enum recovery_probe {
	PROBE_NONE,
	PROBE_DUE, /* it is to be sent, */
	PROBE_OUT, /* has been and is not answered, */
	PROBE_OUT_AGAIN, /* or is to be sent once more: both bits */
};

/* Recovery from losses, see recovery.c, which alone changes it. */
struct roce_recovery {
	enum recovery_mode mode;
	enum recovery_probe probe;
	uint64_t since_ns; /* mode began then, */
	uint32_t end_psn; /* and ends when una is there */
	bool by_nak; /* GO_BACK_N: a NAK asked for it */
	bool silent; /* and so does repeated silence: an answer opens the window */

	uint32_t probe_psn; /* the last one of the probe that is out, */
	uint32_t probe_nxt; /* and nxt_psn when it was sent */

	bool copying; /* what is sent again up to copy_psn has its payload */
	uint32_t copy_psn; /* with it, whatever the link could do */

	uint64_t lost_tx; /* packets sent before the last gap was found */
	uint32_t gaps_end; /* nxt_psn when the first of a row of gaps was */
	uint8_t sel_failed; /* times in a row, see SELECTIVE_TRIES */
	bool peer_keeps; /* what it gets from behind a gap; false: not known */
};

/* Requester: una <= nxt_psn <= end_psn, in PSN order. */
struct roce_requester {
	QP_LINE uint32_t post_psn; /* of the next WQE posted */
	uint32_t una; /* oldest PSN not acknowledged */
	uint32_t nxt_psn; /* next PSN to transmit */
	uint32_t end_psn; /* one past the highest PSN ever transmitted */
	uint32_t tx_end_psn; /* the same before the batch at the link */
	uint32_t rd_out; /* read and atomic requests without their response */
	uint32_t noack; /* packets since the last AckReq */
	bool large; /* the link takes large packets, */
	bool read_large; /* and did when read_chunk was set */
	bool paused; /* until rnr_until_ns: the peer is suspended (pause.c) */
	bool unarmed; /* timer_ns is to be set by who next knows the time */
	uint64_t rnr_until_ns; /* 0: not waiting */
	uint64_t progress_ns; /* when una last moved, or sending began */
	uint64_t timer_ns; /* next look at lost packets; 0: none out */
	struct roce_recovery rec; /* its modes are in the same line */
	uint32_t read_chunk; /* packets that one read request asks for */

	QP_LINE struct roce_cc cc;

	/* Retransmission, see completer.c. */
	QP_LINE uint64_t armed_ns; /* when timer_ns was set */
	uint64_t probe_ns; /* current probe interval */
	uint64_t unread[2]; /* env->unread()'s mark */
	uint32_t looks; /* of the timer, without progress */
	uint32_t retries; /* without progress */
	uint32_t rnr_retries;
	uint16_t sport; /* where an answer came from last; 0: by no UDP */
	uint64_t cnp_ns; /* when a congestion notification counted; 0: never */
	uint64_t rnr_since_ns; /* the first RNR NAK without progress since */
	uint64_t rnr_said_ns; /* when that was explained; 0: not */
	uint64_t stuck_ns; /* since when no retry ends the wait for what */
	uint32_t stuck_psn; /* was sent from here on, */
	uint64_t stuck_said; /* and when that was explained */
	uint32_t
		strays; /* answers about a PSN that we have not sent, in a row: */
	uint32_t stray_psn; /* what the peer expects */
};

_Static_assert(offsetof(struct roce_requester, rec.probe) < 64,
	       "one cache line");

enum resp_kind { RESP_READ, RESP_ATOMIC, RESP_ATOMIC_WRITE };

/* A response that is due: kept until the link has taken all of it. */
struct roce_response {
	enum resp_kind kind;
	bool again; /* the answer to a repeated request */
	uint32_t psn; /* of its first packet */
	uint32_t npkts;
	uint32_t next; /* packets handed to the link, counted from psn */
	uint32_t msn;
	uint32_t rkey;
	uint32_t pd;
	uint32_t length;
	uint64_t va; /* of the first packet's bytes */
	uint64_t orig; /* RESP_ATOMIC */
};

/*
 * What has been executed and may be asked for again. A PSN comes round every
 * 2^24 packets, so the place in the stream of requests says which one it is.
 */
struct roce_atomic_done {
	enum resp_kind kind;
	uint64_t stream_pos; /* 0: none */
	uint64_t orig;
};

struct roce_read_done {
	uint64_t stream_pos;
	uint32_t npkts; /* 0: none */
};

/* What message the responder is in the middle of. */
enum resp_in { IN_NOTHING, IN_SEND, IN_WRITE };

struct roce_responder {
	QP_LINE uint32_t epsn;
	uint32_t ack_back; /* PSNs of reads and atomics right before epsn */
	uint64_t stream_pos; /* of epsn in the stream of requests, from 1 on */
	uint32_t msn;
	enum resp_in in;
	bool ack_pending;
	bool ack_first; /* the peer has to get it before an answer, not behind */
	bool ack_held; /* it waits for an answer (roce_ack_hold()), */
	bool nak_pending;
	bool nak_last; /* what was sent last is a NAK of a gap, no ACK */
	bool nak_seq_sent; /* one NAK per gap, which nak_for has shown */
	bool rnr_sent;
	bool cnp_pending; /* congestion was marked on a packet */
	uint64_t asked_ns; /* when a request last came in */
	/* Responses due: a ring of resp_size entries, a power of two. */
	uint32_t resp_head, resp_tail;
	struct reorder *reorder; /* reorder.c; NULL: nothing is kept */
	uint32_t held_psn; /* epsn when an ACK began to wait */
	uint16_t
		sport; /* from where the last request in order came; 0: no UDP */
	uint8_t again; /* so often in a row again_psn was repeated */
	uint8_t nak_syndrome;

	/* The message that it is in the middle of. */
	QP_LINE uint64_t va; /* write: next byte's address */
	uint32_t offset; /* bytes of the message placed */
	uint32_t left; /* write: bytes of RETH.DMALen to come */
	uint32_t rkey;
	uint32_t pd; /* write: whose key it is */
	uint32_t req_pd; /* whose keys the request that is looked at names */
	uint32_t recv_srqn; /* XRC: of which SRQ the receive in use is */
	struct backoff hold; /* a try: an ACK that waits */
	uint32_t nak_psn;
	uint32_t resp_size;
	struct roce_response *resp;

	uint32_t nak_for; /* the PSN behind a gap */
	uint32_t again_psn;
	uint32_t rnr_count; /* messages without a receive, */
	uint32_t rnr_said; /* as many when that was explained last, */
	uint64_t rnr_said_ns; /* and when */
	uint64_t cnp_ns; /* when congestion was last reported; 0: never */
	struct roce_atomic_done *atomics;
	uint32_t atomics_size, atomics_next;

	/* Which out-of-order packets a peer can have sent: psn_in_window(). */
	struct roce_read_done *reads; /* a ring of reads_size */
	uint32_t reads_size, reads_next;
	uint32_t reads_unknown; /* executed elsewhere, and not in the ring */
	uint32_t out_of_window_psn; /* that continues the last such packet */
};

/*
 * Unacknowledged services send at most at this rate to other hosts: nothing
 * comes back that says what the way and the receiver's socket buffer can take.
 * Congestion notifications (annex A17.9.3) halve it for a while. RC keeps a
 * pace of its own after losses.
 */
#define PACE_BYTES_PER_MS (1000u * 1000)
#define PACE_MIN_BYTES_PER_MS (16u * 1000)
#define PACE_BURST (128 * 1024)
#define PACE_SLOW_NS (20 * MSEC)

struct roce_pace {
	int64_t bytes; /* that may be sent now; negative: owed */
	uint32_t rate; /* bytes per millisecond */
	uint32_t burst; /* bytes that gather at most */
	uint64_t slow_until_ns; /* then at full rate again */
	uint64_t at_ns; /* when bytes was brought up to date */
	uint64_t next_ns; /* when to go on; 0: not held back */
	uint64_t
		late_ns; /* RC: how much later it did; it has credit for that */
};

struct roce_qp {
	struct qp base;
	QP_LINE struct roce_path path;
	QP_LINE uint8_t service; /* enum roce_service */
	bool comm_est; /* event raised */
	bool direct_likely, direct_many; /* roce_direct.c */
	uint32_t busy; /* link had no room: look again at busy_ns */
	uint32_t path_hash; /* of what comes from the peer */
	uint32_t dest_qpn;
	uint32_t mtu; /* bytes */
	uint32_t seed;
	bool paced; /* RC: by pace, for now */
	struct roce_qp_stats stats; /* begins with those of every packet */
	uint64_t busy_ns;
	struct roce_requester req;
	struct roce_responder rsp;
	struct roce_pace pace;
	uint32_t drops_explained; /* 1 << enum roce_drop */
};

_Static_assert(offsetof(struct roce_qp, stats.rx_bytes) -
			       offsetof(struct roce_qp, service) <
		       64,
	       "one cache line");

#define explain(qp, ...) qp_explain(&(qp)->base, __VA_ARGS__)
#define SAY_NS (1000 * MSEC) /* what goes on is said as often */

static inline const struct roce_env *roce_env(const struct roce_qp *qp)
{
	return (const struct roce_env *)(const void *)qp->base.env;
}

static inline bool wqe_is_read(const struct qp_wqe *w)
{
	return w->opcode == IBV_WR_RDMA_READ;
}

/* A single packet further than this from the expected PSN is not trusted. */
#define PSN_WINDOW (1 << 15)

/* Packets that length bytes take: at least one. */
static inline uint32_t pkts_of(uint32_t length, uint32_t mtu)
{
	return length <= mtu ? 1 : (length - 1) / mtu + 1;
}

/* PSNs that a packet with so many bytes of payload stands for. */
static inline uint32_t span_of(size_t length, uint32_t mtu)
{
	return length <= mtu ? 1 : pkts_of((uint32_t)length, mtu);
}

static inline uint32_t rx_last_psn(const struct roce_qp *qp,
				   const struct roce_rx *pkt)
{
	return psn_add(pkt->h.psn, span_of(pkt->len, qp->mtu) - 1);
}

/* roce_qp.c */

/* Its peer has been heard, in state RTR. */
void roce_established(struct roce_qp *qp);
/* Ends the QP's life on the wire: state ERR, everything posted is flushed. */
__attribute__((noinline, cold)) void roce_fail(struct roce_qp *qp,
					       enum ibv_event_type event);
__attribute__((noinline, cold)) void roce_to_err(struct roce_qp *qp);
__attribute__((noinline, cold)) void roce_to_sqe(struct roce_qp *qp);
/* Returns false if the CQ had no room: the QP is in ERR then. */
static inline bool roce_recv_complete(struct roce_qp *qp,
				      const struct qp_recv *r,
				      struct ibv_wc *wc, bool solicited)
{
	if (wc->status == IBV_WC_SUCCESS && qp->base.type != IBV_QPT_UD)
		wc->src_qp = qp->dest_qpn;
	if (qp_recv_complete(&qp->base, r, wc, solicited))
		return true;
	if (qp->base.state != IBV_QPS_ERR)
		roce_fail(qp, IBV_EVENT_QP_FATAL);
	return false;
}

/* packets.c */

/*
 * What holds for every packet of a connection: header, service, addresses,
 * whose hash is that of the path as the peer sees it.
 * Returns 0 or 1 + enum roce_drop.
 */
int roce_check_connected(const struct roce_rx *pkt, uint8_t service,
			 const struct roce_path *path, uint32_t hash);
/* Counts a packet that does nothing here. */
__attribute__((noinline)) void roce_drop(struct roce_qp *qp,
					 enum roce_drop why);

/* requester.c */
void req_init(struct roce_qp *qp);
void req_tx(struct roce_qp *qp, struct roce_batch *b, uint64_t now_ns);
/* Goes back so that psn is transmitted next. */
void req_rewind(struct roce_qp *qp, uint32_t psn);
bool req_ready(const struct roce_qp *qp);
/* Whether one packet is ready, which is no shorter than an ACK, and nothing is
 * posted behind it. */
bool req_is_one(const struct roce_qp *qp);
/* Packets have left, before which none were out. */
void req_arm(struct roce_qp *qp, uint64_t now_ns);
/* In SQD: reports it once nothing is on its way any more. */
__attribute__((noinline, cold)) void req_may_be_drained(struct roce_qp *qp);
static inline void req_check_drained(struct roce_qp *qp)
{
	if (qp->base.state == IBV_QPS_SQD && !qp->base.sq_drained)
		req_may_be_drained(qp);
}

/* recovery.c */

static inline bool probe_is_due(const struct roce_requester *r)
{
	return r->rec.probe & PROBE_DUE;
}
/* una has moved. */
void recovery_advance(struct roce_qp *qp, uint64_t now_ns);
static inline void recovery_acked(struct roce_qp *qp, uint64_t now_ns)
{
	const struct roce_recovery *v = &qp->req.rec;

	if (__builtin_expect(v->mode != FRESH || v->probe != PROBE_NONE, 0))
		recovery_advance(qp, now_ns);
}
/* So far that what was to be sent again has arrived before. */
void recovery_overtaken(struct roce_qp *qp, uint64_t now_ns);
/* A NAK asks for una. */
void recovery_nak(struct roce_qp *qp, uint64_t now_ns);
/* The peer has no receive for una: that is sent again, later. */
void recovery_rnr(struct roce_qp *qp);
/* A response that is due was passed over, or could not be read. */
void recovery_response(struct roce_qp *qp, uint64_t now_ns);
/* For some time nothing has been heard; again: nor since that was last so, and
 * the window is closed. */
void recovery_silence(struct roce_qp *qp, bool again, uint64_t now_ns);
/* A response came: it says nothing of what else the peer has. */
static inline void recovery_unsaid(struct roce_requester *r)
{
	r->rec.probe &= ~(unsigned)PROBE_OUT;
}
/* The probe, up to psn, is at the link; nxt_psn is what was to be sent next. Or
 * the link has not taken it. */
void recovery_probe_sent(struct roce_requester *r, uint32_t psn,
			 uint32_t nxt_psn);
void recovery_probe_untaken(struct roce_requester *r);
/* Nothing is sent any more. */
void recovery_stop(struct roce_requester *r);
/* The probe takes its payload with it: that may be what cannot be read. */
void recovery_copy_una(struct roce_requester *r);
/* Whether the packet at nxt_psn does. */
static inline bool recovery_copies(struct roce_requester *r)
{
	struct roce_recovery *v = &r->rec;

	if (v->copying && psn_diff(r->nxt_psn, v->copy_psn) >= 0)
		v->copying = false;
	return v->copying;
}

/* congestion.c */

void cc_init(struct roce_qp *qp);
/* The packet before nxt_psn asks for an acknowledgement: its round trip may be
 * measured. */
void cc_sample_begin(struct roce_qp *qp, bool again, uint64_t now_ns);
/* una has moved by n packets. */
void cc_acked(struct roce_qp *qp, uint32_t n, uint64_t now_ns);
/* Something has been lost. */
void cc_lost(struct roce_qp *qp, uint64_t now_ns);
/* The peer answers nothing at all. */
void cc_silent(struct roce_qp *qp);
/* Now it does, and has received all. */
void cc_heard(struct roce_qp *qp);
/* What seemed to be lost had arrived: the peer was only slow. A process that
 * waits for a processor is no sign of congestion. */
void cc_not_lost(struct roce_qp *qp);
/* The peer reports congestion on the path; nothing has been lost. */
void cc_congested(struct roce_qp *qp);

/* Whether a packet to this path may go now. */
bool pace_has_room(struct roce_qp *qp);
static inline bool pace_open(struct roce_qp *qp, const struct roce_path *path)
{
	return path->lossless || (qp_is_reliable(&qp->base) && !qp->paced) ||
	       pace_has_room(qp);
}

static inline void pace_charge(struct roce_qp *qp, const struct roce_path *path,
			       uint32_t bytes)
{
	if (!path->lossless)
		qp->pace.bytes -= bytes + ROCE_HDR_MAX;
}
/* UC and UD: the peer reports congestion. */
void pace_slow(struct roce_qp *qp, uint64_t now_ns);
void pace_refill(struct roce_qp *qp, uint64_t now_ns);
/* The time until which it is held back may have come. */
void pace_expire(struct roce_qp *qp, uint64_t now_ns);

/* roce_direct.c: whether w, next to be sent, waits to be carried out instead.
 * */
__attribute__((noinline)) bool roce_direct_waits(const struct roce_qp *qp,
						 const struct qp_wqe *w);

/* completer.c */
void comp_rx(struct roce_qp *qp, const struct roce_rx *pkt, uint64_t now_ns);
void comp_expire(struct roce_qp *qp, uint64_t now_ns);
/* Whether a WQE that cannot be carried out may complete, as the oldest. */
bool may_fail(const struct roce_qp *qp, const struct qp_wqe *w);
/* Completes what is at the head of the queue and ready: local operations and
 * WQEs that failed before they were sent. */
void comp_head(struct roce_qp *qp);
void comp_arm(struct roce_qp *qp, uint64_t now_ns);

/* responder.c and response.c */
/* reorder.c: forgets what has come before its turn. */
void reorder_free(struct roce_qp *qp);
/* Room for so many reads and atomics; what is kept of those before stays. */
int rsp_resize(struct roce_qp *qp, uint32_t max_dest_rd_atomic);
void rsp_fini(struct roce_qp *qp);
void rsp_rx(struct roce_qp *qp, const struct roce_rx *pkt);
/* The same of a SEND Only. */
void rsp_rx_send(struct roce_qp *qp, const struct roce_rx *pkt);
/* Up to which PSN everything may be acknowledged by an ACK. */
uint32_t rsp_ack_psn(const struct roce_qp *qp);
/* A packet came with the mark that says that a queue on the way is long. */
void rsp_congestion(struct roce_qp *qp, uint64_t now_ns);
static inline bool rsp_ready(const struct roce_qp *qp)
{
	const struct roce_responder *r = &qp->rsp;

	return (r->ack_pending & !r->ack_held) | r->nak_pending |
	       r->cnp_pending | (r->resp_head != r->resp_tail);
}
/* All that is owed is an ACK. */
static inline bool rsp_owes_ack(const struct roce_qp *qp)
{
	const struct roce_responder *r = &qp->rsp;

	return r->ack_pending & !(r->nak_pending | r->cnp_pending) &&
	       r->resp_head == r->resp_tail;
}
/* Whether that may wait for an answer of the program, and does from now on; and
 * whether it has left behind one (found), or was waited for in vain. */
bool rsp_hold(struct roce_qp *qp);
void rsp_hold_done(struct roce_qp *qp, bool found);
/* All that was owed, which is an ACK, has left behind a request. */
void rsp_ack_sent(struct roce_qp *qp);
/* Whether a NAK waits to be sent that ends the connection. */
bool rsp_refusing(const struct roce_qp *qp);
void rsp_tx(struct roce_qp *qp, struct roce_batch *b);
/* After the link took packets [0, sent) of a batch of n responses. */
void rsp_tx_done(struct roce_qp *qp, const struct roce_batch *b, size_t sent);

/* ud.c */
/* The part of a WQE that datagrams have, or -EINVAL: no path. */
int ud_post(struct roce_qp *qp, struct qp_wqe *w, const struct ibv_send_wr *wr,
	    const struct roce_path *path);
void ud_tx(struct roce_qp *qp, struct roce_batch *b);
void ud_rx(struct roce_qp *qp, const struct roce_rx *pkt);

/* batch.c */

/* Room for one more packet with up to nsge pieces. */
static inline bool batch_room(const struct roce_batch *b, uint32_t nsge)
{
	return b->n < ROCE_BATCH && qp_pieces_room(&b->data, nsge);
}

/* Opens packet b->pkt[b->n]: its headers are to be filled in, then it is
 * closed by batch_push(). */
static inline struct roce_pkt *batch_open(struct roce_batch *b)
{
	struct roce_pkt *p = &b->pkt[b->n];

	p->h = (struct roce_hdr){
		.pkey = ROCE_PKEY_DEFAULT,
		.mig_req = true, /* 17.2.8: no path migration means migrated */
	};
	p->iov = (uint32_t)b->data.n;
	p->payload = 0;
	p->to_slot = 0;
	p->copy = p->damaged = false;
	return p;
}

/* A17.4.5.2: the flow label, where the program gives one, picks the UDP source
 * port; else each QP has its own. */
static inline uint32_t flow_hash(const struct roce_path *path, uint32_t seed)
{
	return path->flow_label ? path->flow_label * 0x9e3779b1u >> 12 : seed;
}

static inline void batch_push(struct roce_batch *b, struct roce_pkt *p,
			      const struct roce_path *path, uint32_t seed)
{
	p->h.pad = (uint8_t)(-(unsigned)p->payload & 3);
	p->niov = (uint16_t)(b->data.n - p->iov);
	p->last_psn = p->h.psn;
	p->path = path;
	p->hash = flow_hash(path, seed);
	b->n++;
}

/* An ACK of everything up to psn. */
static inline void ack_fill(struct roce_hdr *h, uint8_t service,
			    uint32_t dest_qpn, uint32_t psn, uint32_t msn)
{
	h->opcode = (uint8_t)(service | ROCE_ACK);
	h->dest_qpn = dest_qpn;
	h->psn = psn;
	h->syndrome = ROCE_AETH_ACK | ROCE_CREDITS_INVALID;
	h->msn = msn;
}

/*
 * How many MTUs of payload a packet may have. copy: it takes its payload with
 * it. An XRC responder may be in another process than the link leads to, so
 * there they are as on the wire.
 */
uint32_t batch_span(const struct roce_qp *qp, const struct roce_batch *b,
		    bool copy);

/* Whether it may be more than one. */
static inline bool batch_large(const struct roce_qp *qp,
			       const struct roce_batch *b)
{
	return b->max_payload >= 2 * qp->mtu && qp->service == ROCE_RC;
}

void batch_release(struct roce_batch *b);

/*
 * All of a packet's payload, by reference: of a send WQE from offset on, of a
 * remote key's memory, or bytes that stay until the request completes. Errors as qp_gather(); a WQE's have
 * been explained.
 */
int batch_gather_any(struct roce_qp *qp, struct roce_batch *b,
		     struct roce_pkt *p, struct qp_wqe *w, uint32_t offset,
		     uint32_t len);
static inline int batch_gather(struct roce_qp *qp, struct roce_batch *b,
			       struct roce_pkt *p, struct qp_wqe *w,
			       uint32_t offset, uint32_t len)
{
	int err;

	if (w->num_sge != 1 || !len)
		return batch_gather_any(qp, b, p, w, offset, len);
	p->payload = len;
	err = qp_gather_sge(&qp->base, &b->data, qp_wqe_sge(&qp->base.sq, w),
			    offset, len);
	/* This explains it. */
	return err == -EFAULT ? batch_gather_any(qp, b, p, w, offset, len) :
				err;
}
int batch_remote(struct roce_qp *qp, struct roce_batch *b, struct roce_pkt *p,
		 uint32_t pd, uint32_t rkey, uint64_t va, uint32_t len);
void batch_bytes(struct roce_batch *b, struct roce_pkt *p, void *data,
		 uint32_t len);

#endif
