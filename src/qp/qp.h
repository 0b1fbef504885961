/*
 * qp.h - the part of a queue pair that all transports share
 *
 * A transport's QP begins with a struct qp. Here are its states and what each
 * transition needs (state.c), work requests on their way into the queues
 * (post.c) and out of them as completions (complete.c), and the way between
 * their SGEs and memory (memory.c). Packets and sequence numbers, timers and
 * what a peer may do are the transport's. Functions here never call it, only
 * the environment (env.h); what a full CQ means is for the transport to decide.
 *
 * Like the transports this does no I/O, takes no locks and has no clock: all
 * calls on a QP are serialised by its owner.
 */
#ifndef SOFTHCA_QP_QP_H
#define SOFTHCA_QP_QP_H

#include "counts.h"
#include "public.h"
#include "rq.h"
#include "source.h"
#include "sq.h"

#include "base/aligned.h"

#include <errno.h>
#include <sys/uio.h>

#define QP_MAX_INLINE 1024
#define QP_MAX_WR 16384
#define QP_MAX_RD_ATOMIC 128

/*
 * Many queue pairs do not fit into a processor's cache, and a message costs what
 * the lines take that it touches. So what each needs is together, line by line,
 * here as in the structs that are made of it: first of any message, then of
 * those sent, and what few need or nobody does once it is connected at the end.
 */
#define QP_LINE _Alignas(CACHE_LINE)

struct qp {
	QP_LINE const struct qp_env *env;
	void *owner;
	void *send_cq, *srq;
	uint32_t qpn; /* as the program knows it */
	uint32_t pd;
	enum ibv_qp_type type;
	enum ibv_qp_state state;
	uint32_t access; /* attr.qp_access_flags, */
	uint8_t timeout; /* and attr.timeout */
	uint8_t column; /* its type in tables by service */
	bool sq_sig_all;
	bool sqd_notify; /* raise SQ_DRAINED */
	bool sq_drained;
	bool recv_valid; /* recv holds a WQE taken and not completed */
	bool doubt; /* memory was missing at the link: look before sending */

	QP_LINE struct qp_sq sq;
	uint32_t lkey_hint, rkey_hint; /* where the last keys were found */
	struct qp_public *pub; /* what others see of it; the next, or given */

	QP_LINE struct qp_rq rq;
	struct qp_recv recv; /* of the message that is being received */
	void *recv_cq;

	uint32_t wire_qpn; /* as its peer knows it: mostly the same as qpn */
	struct ibv_qp_cap cap;
	struct ibv_qp_attr attr; /* as set by the program */
	QP_COUNTS(QP_NO_COUNT, QP_COUNT_FIELD)
	struct qp_public unseen;
};

struct qp_init {
	const struct qp_env *env;
	void *owner; /* for env's functions */
	uint32_t qpn;
	uint32_t pd;
	enum ibv_qp_type type;
	void *send_cq;
	void *recv_cq;
	void *srq; /* or NULL */
	struct ibv_qp_cap cap; /* raised to what was really allocated */
	bool sq_sig_all;
	struct qp_mem mem;
	struct qp_public *pub; /* where others look at it; NULL: nowhere. Kept
				* until qp_fini(); its life goes on from QP to
				* QP */
	uint32_t seed; /* of what varies per QP without changing its meaning */
};

/* Acknowledged services: RC, and XRC's two halves of it. */
static inline bool qp_is_reliable(const struct qp *qp)
{
	return qp->type != IBV_QPT_UC && qp->type != IBV_QPT_UD;
}

#define qp_explain(qp, ...)                                                    \
	do {                                                                   \
		if ((qp)->env->explain)                                        \
			(qp)->env->explain((qp), __VA_ARGS__);                 \
	} while (0)

/* state.c */

/*
 * A zeroed QP becomes one in state RESET, whose send WQEs take wqe_size bytes.
 * Returns 0, -ENOMEM, or -EINVAL for a capability above the limits.
 */
int qp_init(struct qp *qp, struct qp_init *init, size_t wqe_size);
void qp_fini(struct qp *qp);
/* Its number on the wire; the program goes on with the one that it knows. */
void qp_renumber(struct qp *qp, uint32_t wire_qpn);

/*
 * Whether a program may modify the QP so (ibv_modify_qp(3)): the transition,
 * its required and optional attributes, and their values. 0, -EINVAL or
 * -EOPNOTSUPP; *to is the state that it asks for.
 */
int qp_modify_check(const struct qp *qp, const struct ibv_qp_attr *attr,
		    int mask, enum ibv_qp_state *to);
/* Takes over attributes that have been checked; the state is left alone. */
void qp_modify_apply(struct qp *qp, const struct ibv_qp_attr *attr, int mask);
/* ibv_query_qp(3), as far as it is known here. */
void qp_query(const struct qp *qp, struct ibv_qp_attr *attr,
	      struct ibv_qp_init_attr *init);
/* Every change of the state comes through here. */
void qp_set_state(struct qp *qp, enum ibv_qp_state state);
/* What was posted is void from here on; called before a completion tells. */
void qp_new_generation(struct qp *qp);
/* Drops everything, silently: state RESET. */
void qp_reset(struct qp *qp);
/* Nothing that was begun is on its way any more, in SQD; says so once. */
void qp_drained(struct qp *qp);

/* post.c */

/*
 * Checks a work request and writes it to the slot behind the last one: all of
 * struct qp_wqe, and its data. Returns 0, -ENOMEM when the queue is full,
 * -EINVAL when the request makes no sense here (opcode, SGE count, inline
 * length, QP state), as ibv_post_send(3). The transport writes its part, then
 * calls qp_post_done(); if it does not, nothing is posted.
 */
int qp_post_send(struct qp *qp, const struct ibv_send_wr *wr,
		 struct qp_wqe **out);
/* The request is posted. False: it is flushed, since the QP is in error. */
void qp_post_flush(struct qp *qp);
static inline bool qp_post_done(struct qp *qp)
{
	qp->sq.tail++;
	if (qp->state != IBV_QPS_ERR && qp->state != IBV_QPS_SQE)
		return true;
	qp_post_flush(qp);
	return false;
}
int qp_post_recv(struct qp *qp, const struct ibv_recv_wr *wr);
/* Invalidates or binds, once; w->status says so if that is refused. */
void qp_run_local(struct qp *qp, struct qp_wqe *w);

/* complete.c */

/* Completes the oldest send WQE. Returns false if the CQ had no room. */
bool qp_sq_complete(struct qp *qp, enum ibv_wc_status status);
bool qp_sq_report(struct qp *qp, const struct qp_wqe *w,
		  enum ibv_wc_status status);
/* The same where it is w, which has been sent, and nothing is wrong. */
static inline bool qp_sq_done(struct qp *qp, const struct qp_wqe *w)
{
	qp->sq.head++;
	if (!qp->sq_sig_all && !(w->flags & IBV_SEND_SIGNALED))
		return true;
	return qp_sq_report(qp, w, IBV_WC_SUCCESS);
}
/* Likewise a receive; *wc lacks wr_id and qp_num. */
static inline bool qp_recv_complete(struct qp *qp, const struct qp_recv *r,
				    struct ibv_wc *wc, bool solicited)
{
	wc->wr_id = r->wr_id;
	wc->qp_num = qp->qpn;
	return !qp->env->complete(qp, r->cq ? r->cq : qp->recv_cq, wc,
				  solicited);
}

/* RQ or SRQ: qp_rq_take(). */
static inline int qp_recv_take(struct qp *qp, uint64_t room,
			       struct qp_recv *out)
{
	return qp->srq ? qp->env->srq_take(qp, qp->srq, room, out) :
			 qp_rq_take(&qp->rq, room, out);
}

static inline void qp_landing(struct qp *qp, const struct qp_recv *recv)
{
	if (__builtin_expect(qp->env->landing != NULL, 0))
		qp->env->landing(qp, recv);
}

static inline void qp_arriving(struct qp *qp, struct qp_wqe *w, bool first)
{
	if (__builtin_expect(qp->env->arriving != NULL, 0))
		qp->env->arriving(qp, w, first);
}

/* Whether somebody wants to hear what the peer changes in memory. */
static inline bool qp_is_noted(const struct qp *qp)
{
	return __builtin_expect(qp->env->changing != NULL, 0);
}

/* How many of the last work requests that are done have no completion, as they
 * were posted without IBV_SEND_SIGNALED; 0: some are not done. */
uint32_t qp_sq_unsignaled(const struct qp *qp);
void qp_flush_sq(struct qp *qp);
/* Also the receive of the message that is being received. */
void qp_flush_rq(struct qp *qp);

/*
 * memory.c. Errors: -EFAULT when a key does not cover the bytes, -ENXIO when
 * they are not there any more, which has been explained. The index of the SGE
 * is left in *bad. What reads from a source also fails as that does, with
 * -ESTALE or -EAGAIN.
 */

/*
 * Memory gathered by reference: it stays where the program has it, and the keys
 * that lead there are kept until qp_pieces_put().
 */
#define QP_PIECES 256
#define QP_PIECES_KEYS 64
#define QP_PIECE_MAX 4096 /* bytes of one that is not memory, but zeros */

#define QP_PIECE_OWN 0xff /* instead of a key: memory of the QP itself */

struct qp_pieces {
	size_t n, nkeys;
	struct iovec iov[QP_PIECES];
	uint8_t key_of[QP_PIECES]; /* each piece's key: an index of key[] */
	struct key_entry *key[QP_PIECES_KEYS];
};

/* The key that piece i was found by, or NULL. */
static inline struct key_entry *qp_piece_key(const struct qp_pieces *p,
					     size_t i)
{
	return p->key_of[i] == QP_PIECE_OWN ? NULL : p->key[p->key_of[i]];
}

/* One more piece of the last key, or of none. */
static inline void qp_piece_add(struct qp_pieces *p, void *addr, size_t len,
				bool own)
{
	p->key_of[p->n] = own ? QP_PIECE_OWN : (uint8_t)(p->nkeys - 1);
	p->iov[p->n++] = (struct iovec){ addr, len };
}

/* Room for as many more, each of a key of its own. */
static inline bool qp_pieces_room(const struct qp_pieces *p, uint32_t n)
{
	return p->n + n <= QP_PIECES && p->nkeys + n <= QP_PIECES_KEYS;
}

static inline void qp_pieces_put(struct qp_pieces *p)
{
	for (size_t i = 0; i < p->nkeys; i++)
		keys_put(p->key[i]);
	p->n = p->nkeys = 0;
}

static inline struct key_entry *qp_pieces_last(const struct qp_pieces *p)
{
	return p->nkeys ? p->key[p->nkeys - 1] : NULL;
}

static inline struct key_entry *qp_pieces_keep(struct qp_pieces *p,
					       struct key_entry *e)
{
	if (e)
		p->key[p->nkeys++] = e;
	return e;
}

/* qp_piece() where it is more than to add it. */
int qp_piece_odd(struct qp *qp, struct qp_pieces *to, const struct key_entry *e,
		 void *addr, uint32_t len);

/* One more piece; the key is kept already. */
static inline int qp_piece(struct qp *qp, struct qp_pieces *to,
			   const struct key_entry *e, uint32_t pd, uint64_t va,
			   uint32_t len, uint32_t access)
{
	void *addr;

	if (!key_covers(e, pd, va, len, access, &addr))
		return -EFAULT;
	if (e->kind == KEY_NULL || e->access & IBV_ACCESS_ON_DEMAND ||
	    qp->doubt)
		return qp_piece_odd(qp, to, e, addr, len);
	qp_piece_add(to, addr, len, false);
	return 0;
}

/* len bytes of an SGE, from offset on, which it has. */
static inline int qp_gather_sge(struct qp *qp, struct qp_pieces *to,
				const struct ibv_sge *sge, uint64_t offset,
				uint32_t len)
{
	struct key_entry *e = qp_pieces_last(to);

	/* A long message is one region: it is looked up once. */
	if (!e ||
	    atomic_load_explicit(&e->lkey, memory_order_relaxed) != sge->lkey)
		e = qp_pieces_keep(to, keys_get_local(qp->env->keys, sge->lkey,
						      &qp->lkey_hint));
	if (!e)
		return -EFAULT;
	return qp_piece(qp, to, e, qp->pd, sge->addr + offset, len, 0);
}

/* len bytes of SGEs from offset on, of a remote key's memory; after an error
 * some of them may be there. -E2BIG: more than QP_PIECE_MAX of a null key. */
int qp_gather(struct qp *qp, struct qp_pieces *to, const struct ibv_sge *sge,
	      uint32_t num_sge, uint64_t offset, uint32_t len, uint32_t *bad);
int qp_gather_remote(struct qp *qp, struct qp_pieces *to, uint32_t pd,
		     uint32_t rkey, uint64_t va, uint32_t len);
/* Likewise from a source, from its first byte on. Keys are looked at before
 * anything is copied, up to the next null region. */
__attribute__((noinline)) int qp_scatter_from(struct qp *qp, uint32_t pd,
					      const struct ibv_sge *sge,
					      uint32_t num_sge, uint64_t offset,
					      const struct qp_source *from,
					      size_t len, uint32_t *bad);
/* A remote key's memory for this QP, with a reference, or NULL. */
struct key_entry *qp_remote(struct qp *qp, uint32_t pd, uint32_t rkey,
			    uint64_t va, uint64_t len, uint32_t access,
			    void **p);
/* Makes memory of an entry present; -ENXIO: it is not there. */
int qp_touch(struct qp *qp, const struct key_entry *e, const void *p,
	     size_t len, bool write);
/* Runs fn(arg), which reads or writes [p, p + len); -ENXIO: not there. */
int qp_access(struct qp *qp, void (*fn)(void *), void *arg, const void *p,
	      size_t len);
/* Copies from a program's memory; -ENXIO: it is not there. */
int qp_fetch(struct qp *qp, void *dst, const void *p, size_t len);
/* Copies to memory of an entry; -ENXIO: it is not there. */
__attribute__((noinline)) int qp_store(struct qp *qp, const struct key_entry *e,
				       void *dst, const uint8_t *src,
				       size_t len);
int qp_store_from(struct qp *qp, const struct key_entry *e, void *dst,
		  const struct qp_source *from, size_t len);
/* Eight bytes of local memory. */
int qp_load8(struct qp *qp, const struct ibv_sge *sge, uint64_t *v);

/* Copies into an SGE from offset on, which has room for it. */
__attribute__((always_inline)) static inline int
qp_scatter_sge(struct qp *qp, uint32_t pd, const struct ibv_sge *sge,
	       uint64_t offset, const uint8_t *data, size_t len)
{
	struct key_entry *e =
		keys_get_local(qp->env->keys, sge->lkey, &qp->lkey_hint);
	int err = -EFAULT;
	void *p;

	if (!e)
		return err;
	if (key_covers(e, pd, sge->addr + offset, len, IBV_ACCESS_LOCAL_WRITE,
		       &p)) {
		/* What fails is explained by the other. */
		if (e->kind != KEY_NULL &&
		    !(e->access & IBV_ACCESS_ON_DEMAND) && qp->env->copy &&
		    !qp->env->copy(p, data, len, p))
			err = 0;
		else
			err = qp_store(qp, e, p, data, len);
	}
	keys_put(e);
	return err;
}

/* Copies into SGEs from offset on: mostly there is one, or all fits into the
 * first. */
__attribute__((noinline)) int qp_scatter_any(struct qp *qp, uint32_t pd,
					     const struct ibv_sge *sge,
					     uint32_t num_sge, uint64_t offset,
					     const uint8_t *data, size_t len,
					     uint32_t *bad);
__attribute__((always_inline)) static inline int
qp_scatter(struct qp *qp, uint32_t pd, const struct ibv_sge *sge,
	   uint32_t num_sge, uint64_t offset, const uint8_t *data, size_t len,
	   uint32_t *bad)
{
	*bad = 0;
	return num_sge && len && offset + len <= sge->length ?
		       qp_scatter_sge(qp, pd, sge, offset, data, len) :
		       qp_scatter_any(qp, pd, sge, num_sge, offset, data, len,
				      bad);
}

#endif
