/*
 * qp.h - a queue pair of the protocol core
 *
 * The core does no I/O, takes no locks and has no clock. Whoever owns a QP
 * serialises all calls on it (in a process: struct shca_qp's lock), hands in
 * the time in nanoseconds, feeds received packets to roce_rx(), and pulls
 * packets to send with roce_tx():
 *
 *	roce_post_send(qp, wr, NULL);
 *	do {
 *		roce_tx(qp, &batch, now);
 *		sent = link sends batch.pkt[0 .. batch.n);
 *		roce_tx_done(qp, &batch, sent, now);
 *	} while (batch.n && sent == batch.n);
 *
 * and, when roce_deadline() has passed, calls roce_expire() and pulls again.
 */
#ifndef SOFTHCA_ROCE_QP_H
#define SOFTHCA_ROCE_QP_H

#include "env.h"

#include "qp/qp.h"
#include "qp/source.h"
#include "wire/roce.h"

/*
 * A packet to send: its headers in host order, which a link that needs them so
 * encodes (roce_encode()), and its payload by reference.
 */
struct roce_pkt {
	struct roce_hdr h; /* h.pad: zero bytes between payload and ICRC */
	const struct roce_path *path;
	uint32_t hash; /* same for the packets of one flow: picks the socket */
	uint32_t payload; /* bytes in its pieces */
	uint32_t iov; /* first of its payload pieces in the batch */
	uint16_t niov;
	uint16_t to_slot; /* 1 + slot of the process of this host that it is
			   * for; 0: whose the destination QPN is */
	uint32_t last_psn; /* of those that it stands for */
	bool copy; /* the payload is to be taken before send returns: it may
		    * change, or be gone, when the packet is received */
	bool damaged; /* on purpose: it leaves with a wrong ICRC */
};

#define ROCE_BATCH 64

/* A link to other hosts sends packets of one size in one system call, up to so
 * many bytes from BTH to ICRC. */
#define ROCE_RUN_BYTES 65000u

struct roce_batch {
	size_t n;
	/*
	 * Set by the caller of roce_tx(): a link within the host takes packets
	 * of so many bytes of payload. Such a packet stands for as many PSNs
	 * as its payload has MTUs. 0: none longer than the path MTU.
	 * max_copy likewise for those that have copy set.
	 */
	uint32_t max_payload, max_copy;
	bool responses; /* all of them, or none, */
	bool ack; /* but for the last, an ACK behind requests */
	bool probe; /* one request, sent again for its answer (recovery.c) */
	struct roce_pkt pkt[ROCE_BATCH];
	struct qp_pieces data; /* of all their payloads */
};

/*
 * A received packet, already decoded, its ICRC checked. One that came over a
 * link within the host says so, and of connected services it has no addresses
 * but their hash.
 */
struct roce_rx {
	struct roce_hdr h;
	const uint8_t *payload; /* NULL: it is elsewhere, */
	const struct qp_source *source; /* where this reads it from; or NULL */
	size_t len; /* payload bytes, without the pad */
	union ibv_gid sgid; /* where it came from */
	union ibv_gid dgid; /* our address, or a multicast group */
	const uint8_t *grh; /* 40 bytes as a UD receiver gets them, or NULL
				* when not built (only UD needs it) */
	uint8_t tclass;
	uint16_t
		sport; /* UDP source port; 0: it came by no UDP, or is not known */
	bool v1; /* it came by RoCE v1 */
	bool ecn_ce; /* congestion experienced */
	bool handed; /* over by another process of this user on this host */
	bool host; /* roce_path_hash(sgid, dgid) is path_hash; they are there
		      * for UD and XRC alone */
	bool ack_note; /* no packet: what h.dest_qpn has sent up to h.psn is
		       * accepted; only path_hash is there besides */
	bool early; /* an ACK note that may be ahead of responses */
	bool large; /* may be longer than the path MTU */
	uint32_t path_hash;
	bool *acked; /* set by roce_rx() instead of an ACK packet: all up to
		      * this packet is acknowledged, and the link passes that
		      * on, see roce_acked(). NULL: it does not. Of an ACK note:
		      * whether it is settled, if anybody asks */
};

struct roce_qp;

/*
 * Allocates a QP in state RESET; init->cap is raised to what was really
 * allocated, init->env is that of a struct roce_env. Returns 0, -ENOMEM,
 * -EOPNOTSUPP, or -EINVAL for a capability above the limits.
 */
int roce_qp_create(struct roce_qp **qp, struct qp_init *init);
void roce_qp_destroy(struct roce_qp *qp);

/* A QP begins with what every transport has of it. */
static inline struct qp *roce_qp_base(struct roce_qp *qp)
{
	return (struct qp *)(void *)qp;
}

static inline struct roce_qp *roce_qp(struct qp *qp)
{
	return (struct roce_qp *)(void *)qp;
}

static inline const struct roce_qp *roce_qp_const(const struct qp *qp)
{
	return (const struct roce_qp *)(const void *)qp;
}

/* What a program may ask at any time. */
uint32_t roce_qp_num(const struct roce_qp *qp); /* on the wire */
enum ibv_qp_state roce_qp_state(const struct roce_qp *qp);
enum ibv_qp_type roce_qp_type(const struct roce_qp *qp);
const struct roce_path *roce_qp_path(const struct roce_qp *qp);
/* Seen from another host, or another address of ours. */
void roce_qp_moved(struct roce_qp *qp, const struct roce_path *path);
uint32_t roce_qp_dest(const struct roce_qp *qp); /* the peer's QPN */

/*
 * pause.c: the peer of a reliable connection is suspended, and will be back. No
 * request is sent until then, and no timeout runs; what comes is received. It is
 * back: now, and perhaps elsewhere, or with another number.
 */
void roce_qp_pause(struct roce_qp *qp, uint64_t until_ns, uint64_t now_ns);
bool roce_qp_paused(const struct roce_qp *qp);
void roce_qp_go_on(struct roce_qp *qp, uint64_t now_ns);
void roce_qp_follow(struct roce_qp *qp, const struct roce_path *path,
		    uint32_t dest_qpn);
/* Where the two ends of a reliable connection are, in RTR or RTS; false: it is
 * none. */
struct roce_places {
	uint32_t una, end_psn, epsn;
	bool silent; /* in RTR: it has no PSN of its own yet */
	bool unheard; /* it has accepted no request yet: its peer may be silent */
};
bool roce_qp_places(const struct roce_qp *qp, struct roce_places *p);

/*
 * ibv_modify_qp(3): checks the transition, its required and optional
 * attributes and their values, then applies all or nothing. path is what the
 * caller made of attr->ah_attr (mask has IBV_QP_AV); no use is made of an
 * alternate one. Moving to ERR flushes; moving to RESET drops everything,
 * silently. Returns 0, -EINVAL, or -EOPNOTSUPP.
 */
int roce_qp_modify(struct roce_qp *qp, const struct ibv_qp_attr *attr, int mask,
		   const struct roce_path *path);

/* ibv_query_qp(3), all attributes but ah_attr's sgid_index and alt_ah_attr. */
void roce_qp_query(const struct roce_qp *qp, struct ibv_qp_attr *attr,
		   struct ibv_qp_init_attr *init);

/*
 * One work request. ud is the destination for UD, else NULL. Returns 0,
 * -ENOMEM when the queue is full, -EINVAL when the request makes no sense
 * here (opcode, SGE count, inline length, QP state), as ibv_post_send(3).
 * Receives are posted by qp_post_recv().
 */
int roce_post_send(struct roce_qp *qp, const struct ibv_send_wr *wr,
		   const struct roce_path *ud);

/*
 * Requests posted since the mark was taken are taken back, provided that
 * roce_tx() has not been called since, and they have not been flushed.
 */
struct roce_sq_mark {
	uint32_t tail, psn;
};
struct roce_sq_mark roce_sq_mark(const struct roce_qp *qp);
void roce_sq_undo(struct roce_qp *qp, struct roce_sq_mark mark);

/*
 * After posting, before roce_tx(): whether the oldest request may be one that
 * needs no packets; and carries out all that do not, from that one on, at the
 * other end, which is remote (qp/direct.h).
 */
struct qp_remote;
bool roce_direct_ready(const struct roce_qp *qp);
/*
 * Whether that is likely to be possible from now on; and whether the program
 * posts small ones in numbers, rather than one and then the next.
 */
void roce_direct_expect(struct roce_qp *qp, bool likely, bool many);
void roce_direct(struct roce_qp *qp, struct qp_remote *remote);

/*
 * A packet addressed to this QP. Anything may be in it. now_ns may be 0 unless
 * roce_rx_timed(): what the link acknowledges was not lost, nor will its
 * acknowledgement be, so nothing about it is measured or repeated.
 */
static inline bool roce_rx_timed(const struct roce_rx *pkt)
{
	return !pkt->acked && !pkt->ack_note;
}
void roce_rx(struct roce_qp *qp, const struct roce_rx *pkt, uint64_t now_ns);

/*
 * The SRQ with this number goes: an XRC_RECV QP in the middle of a message that
 * has taken a WQE of it fails.
 */
void roce_srq_gone(struct roce_qp *qp, uint32_t srqn);

/*
 * The responder between two messages, so that it can go on elsewhere: in
 * another QP of the same attributes (src/xrc/lease.c). While idle is false
 * it cannot. roce_rsp_failed(): it has failed there, with an event or (-1)
 * without.
 */
struct roce_rsp_state {
	uint32_t epsn, msn, ack_back;
	bool nak_seq_sent, rnr_sent;
	bool between; /* in the middle of no message; of get only, as idle */
	bool idle; /* and owes the peer nothing */
};
void roce_rsp_get(const struct roce_qp *qp, struct roce_rsp_state *s);
void roce_rsp_set(struct roce_qp *qp, const struct roce_rsp_state *s);
void roce_rsp_failed(struct roce_qp *qp, int event);

/*
 * Links that tell the sender of a packet what became of it need no ACK packet
 * (roce_rx.acked): all up to this PSN has been acknowledged so. now_ns
 * may be 0. early: responses that were sent before may still come, so that a
 * read or an atomic without one is no loss; false: there is one, and the link is
 * to say it again, in its turn.
 */
bool roce_acked(struct roce_qp *qp, uint32_t psn, bool early, uint64_t now_ns);

/* Whether roce_tx() would produce packets now. */
bool roce_tx_ready(const struct roce_qp *qp);
/* Whether it might: whether something waits to be sent. Cheaper. */
bool roce_tx_waiting(const struct roce_qp *qp);

/*
 * Whether what was posted may as well wait for an acknowledgement that is due,
 * to leave with what is posted until then: small requests behind several that
 * are on their way. True is a hint: roce_tx() does not wait.
 */
bool roce_tx_coalesce(const struct roce_qp *qp);

/*
 * An acknowledgement that is owed leaves behind the requests that are sent next,
 * if there are any, in the same system call. So it may wait for them where the
 * program answers what it receives, which is found out by trying.
 * roce_ack_hold(): that is all that is owed, and it waits from now on, until
 * there are requests, or the caller has called roce_ack_release(), soon.
 */
bool roce_ack_hold(struct roce_qp *qp);
void roce_ack_release(struct roce_qp *qp);
bool roce_ack_held(const struct roce_qp *qp);

/*
 * Fills *b with packets to send now, in order. The payload stays where the
 * program has it and is kept until roce_tx_done(), which says how many of them
 * the link took; the rest is produced again by a later roce_tx(), not before
 * roce_deadline(). UC and UD work requests complete in roce_tx_done().
 */
void roce_tx(struct roce_qp *qp, struct roce_batch *b, uint64_t now_ns);
/*
 * The same, packet by packet, for most of what there is to send: requests of one
 * packet, of at most one MTU, which the link may take at once. It copies the
 * payload; an acknowledgement is asked for. A link within the host takes any
 * number of them. One that may lose packets takes one, behind which nothing is
 * posted, and the ACK that is owed, if any is: it is told the time.
 */
struct roce_small {
	uint8_t opcode;
	bool solicited;
	bool last; /* nothing is posted behind it */
	bool timed; /* it may get lost: it is alone, */
	bool ack; /* and this acknowledgement goes behind it */
	uint32_t psn;
	uint32_t len;
	uint32_t rkey;
	uint32_t imm; /* or the rkey to invalidate */
	uint64_t va;
	const void *data; /* it may be gone */
	/* This one has been taken, and the next one comes in its place. False:
	 * there is none, or what is next is for roce_tx(). */
	bool (*next)(struct roce_small *s);
	struct roce_qp *qp;
	struct key_entry *key; /* that leads to data, or NULL */
	unsigned sent; /* requests before this one */
};
/* The first one, timed or not; false: what is to be sent is for roce_tx(). */
bool roce_small_begin(struct roce_qp *qp, struct roce_small *s, bool timed);
/* One that is timed, as bytes: its headers, whose length is returned, and all of
 * its ACK but the ICRC; hash as in struct roce_pkt. */
size_t roce_small_put(const struct roce_small *s, uint8_t *out);
void roce_small_put_ack(const struct roce_small *s, uint8_t *out);
uint32_t roce_small_hash(const struct roce_small *s);
/* Whether all that was sent before it is acknowledged. */
bool roce_small_is_lone(const struct roce_small *s);
/* So many have been taken; of one that is timed, at now_ns. One that has not is
 * for roce_tx(). */
void roce_small_end(struct roce_small *s, unsigned taken, uint64_t now_ns);

/*
 * Whether roce_tx(), or roce_tx_done() where all was sent, is to be told the
 * time, which takes time to find out; otherwise 0 will do.
 */
bool roce_tx_timed(const struct roce_qp *qp);
/*
 * Whether something is out, and no deadline watches it, as nobody has told the
 * time since. roce_tx_done() sets one if it is told, else roce_expire(), which
 * the caller sees to. Within the host, where nothing is lost, it may be late.
 */
bool roce_tx_unarmed(const struct roce_qp *qp);
/*
 * Before roce_tx_done(): the link found memory of a packet missing. It is looked
 * for before the packet is produced again, which ends in an error that says so.
 * False: it was, and is there; the packet counts as lost.
 */
bool roce_tx_doubt(struct roce_qp *qp);
void roce_tx_done(struct roce_qp *qp, struct roce_batch *b, size_t sent,
		  uint64_t now_ns);

/*
 * After roce_tx_done(), if the link did not take everything: somebody is going
 * to say when it has room, and what is left is produced again when roce_tx() is
 * called then, or at that time. roce_tx_busy(): neither has happened yet.
 */
void roce_tx_wait(struct roce_qp *qp, uint64_t until_ns);
bool roce_tx_busy(const struct roce_qp *qp);

/* When roce_expire() is due; UINT64_MAX: never. */
uint64_t roce_deadline(const struct roce_qp *qp);
/* Whether that may be a millisecond late: it is only a look for what has been
 * lost, and nothing seems to be. */
bool roce_deadline_is_lax(const struct roce_qp *qp);
/* Whether nothing waits to be sent, and there is no deadline. */
bool roce_is_idle(const struct roce_qp *qp);
void roce_expire(struct roce_qp *qp, uint64_t now_ns);

/*
 * For who records what happens: the PSNs that a WQE has, the opcode of one that
 * is one packet, and, before roce_tx_done(), whether a packet was sent before.
 */
void roce_wqe_psns(const struct qp_wqe *w, uint32_t *first, uint32_t *last);
uint8_t roce_wqe_opcode(const struct roce_qp *qp, const struct qp_wqe *w);
bool roce_tx_again(const struct roce_qp *qp, const struct roce_pkt *p);

/* Counters of one QP, for tools (counters/stat.h) and tests. */
struct roce_qp_stats {
	QP_COUNTS(QP_COUNT_FIELD, QP_NO_COUNT)
	uint64_t rnr_tx, nak_rx, nak_tx;
	uint64_t dropped; /* packets of no use here */
};
const struct roce_qp_stats *roce_qp_stats(const struct roce_qp *qp);

/* What a reliable QP's requester waits for, for tools. */
struct roce_waits {
	uint32_t unacked; /* packets sent and not acknowledged, */
	uint64_t since_ns; /* and when one was last */
	uint64_t
		rnr_since_ns; /* the peer has had no receive since; 0: it has */
	uint32_t rnr_naks; /* as often it has said so */
	uint32_t
		retries; /* times that the ACK timeout has passed without one */
	uint32_t window; /* packets that may be out now; 0: any number */
};
void roce_qp_waits(const struct roce_qp *qp, struct roce_waits *w);
/* Whether it has been answered nothing of what it has sent. */
bool roce_qp_unanswered(const struct roce_qp *qp);

#endif
