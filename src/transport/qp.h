/*
 * qp.h - a queue pair, as its transport sees it
 *
 * It begins with the public struct that programs hold. src/verbs makes and
 * changes it; here is what is done with it while packets come and go.
 */
#ifndef SOFTHCA_TRANSPORT_QP_H
#define SOFTHCA_TRANSPORT_QP_H

#include "objects.h"
#include "transport.h"

#include "base/lock.h"
#include "counters/stat.h"
#include "engine/engine.h"
#include "hooks/check.h"
#include "qp/direct.h"
#include "qp/ops.h"
#include "roce/qp.h"

#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHCA_FLUSH_ROUNDS 32 /* batches in a row that a QP sends */

struct netdev_gid;
struct segment_peer;
struct shca_conn;
struct shca_qp;
struct shca_xrc;

struct roce_timewait;
struct shca_wr; /* a work request being built */

/* remote.c: the process at the other end, if its memory can be copied to. */
struct shca_remote {
	/* What the program posts without a look at the CQ in between. */
	uint32_t tail; /* of the send queue when it was last looked at */
	uint32_t looks; /* at the CQ, and others; by then */
	uint32_t run; /* requests in a row, up to what are many */
	bool many; /* were, and some of them are still in the queue */
	uint64_t end_ns; /* of the last one, 0: not known */

	struct segment_peer *peer; /* NULL: none is known, */
	uint64_t again_ns; /* nor looked for before that */
	uint64_t now_ns; /* of the call that uses it */
	struct qp_remote remote;
};

struct shca_qp {
	struct ibv_qp_ex ex;
	/* Slots that later headers append to ibv_qp_ex; never offered. */
	void *later[8];
	struct shca_live live;
	pthread_mutex_t modify_lock; /* one transition at a time; before lock */

	struct engine_qp sched;

	const struct qp_ops *ops; /* of the transport */
	struct qp *core; /* under sched.lock; NULL: sched.dead */
	struct shca_xrc *xrc; /* xrc.h; NULL of all but XRC_RECV QPs */
	/* For --explain=full, else 0: where it was made, and what is in the
	 * send queue was posted. */
	uint32_t *posted;
	uint32_t made;
	uint16_t sport; /* a UDP port that is the peer's; 0: none is known */
	bool forged; /* somebody else has been heard: that was explained */
	_Atomic bool windows; /* of type 2 may be bound to it */
	struct shca_remote remote; /* under sched.lock */

	uint32_t async_reported; /* the context's async_lock */
	struct shca_bound {
		bool is;
		bool v1; /* by RoCE v1 as well */
		union ibv_gid gid;
		uint32_t ifindex;
	} bound; /* the address it receives at; */
	bool bound_all; /* or all of its device's (UD) */
	struct ibv_ah_attr av, alt_av;

	struct { /* what its peer's process has said last (src/move) */
		uint64_t process, counter;
	} said;

	/* verbs/infiniband.c: of the datagram that comes; under sched.lock */
	struct {
		uint16_t slid;
		bool grh;
	} ib;

	unsigned mcast; /* groups attached to; the process's mcast.lock, */
	bool closing; /* and so this: it is being destroyed */
	void *_Atomic cm_owner; /* connect/gsi.h */
	/* rnic/qp_iwarp.h; under sched.lock */
	struct shca_conn *conn;
	struct shca_qp_stream {
		bool full; /* waits until it can be written to */
		bool eof; /* the peer has sent FIN, or it is broken */
		bool fin; /* we have sent FIN */
		bool draining;
		bool large; /* so was the last FPDU, which the socket placed */
		uint64_t
			sent_ns; /* when it sends last, where that is recorded */
		/* 0, or when the responder may send unasked, or the initiator
		 * sends its first message again, so many times yet. */
		uint64_t begin_ns;
		uint8_t asks;
		uint8_t begins; /* looks that found the reply acknowledged */
	} stream;

	/* wr.c: between wr_start and wr_complete. */
	struct lock wr_lock; /* before lock */
	struct shca_wr *wr;
	uint32_t wr_count, wr_size;
	int wr_err;
};

static inline struct shca_qp *to_qp(struct ibv_qp *qp)
{
	return container_of(qp, struct shca_qp, ex.qp_base);
}

static inline struct shca_qp *sched_qp(struct engine_qp *qp)
{
	return container_of(qp, struct shca_qp, sched);
}

extern const struct qp_ops shca_roce_ops;

static inline bool shca_qp_is_roce(const struct shca_qp *qp)
{
	return qp->ops == &shca_roce_ops;
}

static inline uint32_t shca_qpn(const struct shca_qp *qp)
{
	return qp->ex.qp_base.qp_num;
}

/* sched.c: a new QP as the engine sees it. */
void shca_qp_init(struct shca_qp *qp, struct engine *e,
		  const struct shca_transport *t);

/* engine/qp.h */

static inline void shca_qp_get(struct shca_qp *qp)
{
	engine_qp_get(&qp->sched);
}

static inline void shca_qp_put(struct shca_qp *qp)
{
	engine_qp_put(&qp->sched);
}

static inline void shca_qp_lock(struct shca_qp *qp)
{
	engine_qp_lock(&qp->sched);
}

static inline bool shca_qp_trylock(struct shca_qp *qp)
{
	return engine_qp_trylock(&qp->sched);
}

static inline void shca_qp_unlock(struct shca_qp *qp)
{
	engine_qp_unlock(&qp->sched);
}

/* For --explain=full: where the program posts the newest request of its queue. */
static inline void shca_qp_note_posted(const struct shca_qp *qp,
				       const struct qp_sq *sq)
{
	if (__builtin_expect(qp->posted != NULL, 0))
		qp->posted[(sq->tail - 1) & (sq->depth - 1)] = check_callsite();
}

/* A packet for it; lock held, not dead. */
void shca_qp_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now);
/* roce_ack_hold(), roce_ack_release(). */
bool shca_qp_ack_hold(struct shca_qp *qp);
void shca_qp_ack_release(struct shca_qp *qp);
void shca_qp_kill(struct shca_qp *qp);
/* Where a script wants that. */
static inline void shca_qp_doom(struct shca_qp *qp)
{
	if (__builtin_expect(atomic_load_explicit(&qp->sched.kill_line,
						  memory_order_relaxed),
			     0))
		shca_qp_kill(qp);
}
/* Sends what the QP has to send and sets its timer; lock held. */
static inline void shca_qp_flush(struct shca_qp *qp, uint64_t now_ns)
{
	qp->ops->flush(qp->core, now_ns, false);
}
/*
 * For ops->flush(), before each of its rounds: whether it may go on. Else others
 * have waited for the lock long enough, and who has it next goes on (not if all
 * is to be sent), or the next progress.
 */
static inline bool shca_qp_goes_on(struct shca_qp *qp, int round, bool all)
{
	if (!round)
		return true;
	if (!all && engine_qp_wanted(&qp->sched)) {
		engine_qp_later(&qp->sched);
		return false;
	}
	if (round == SHCA_FLUSH_ROUNDS) {
		engine_timer_set(qp->sched.engine, &qp->sched, clock_ns());
		return false;
	}
	return true;
}
/* What is due by now; lock held, not dead. */
static inline void shca_qp_expire(struct shca_qp *qp, uint64_t now_ns)
{
	qp->ops->expire(qp->core, now_ns);
}

/*
 * bind.c: the QP is to receive at the address of a path as well, which is that of
 * an interface: more, if it does not yet. Then either it does there alone, or that
 * is undone. Under modify_lock.
 */
int shca_bind(struct shca_qp *qp, const struct roce_path *path,
	      const struct netdev_gid *via, bool *more);
void shca_bind_done(struct shca_qp *qp, const struct roce_path *path,
		    const struct netdev_gid *via);
void shca_bind_undo(struct shca_qp *qp, const struct roce_path *path,
		    const struct netdev_gid *via);
/* What has been taken from a QP (timewait.c) is given back. */
void shca_bound_end(struct engine *e, const struct shca_bound *b);
/* It receives nowhere. */
void shca_unbind(struct shca_qp *qp);

/*
 * remote.c: carries out one-sided requests that the peer's process need not be
 * asked for, *time 0: reads the clock if it has to; and the other end of the QP
 * is another from now on. The QP's lock is held.
 */
extern const struct qp_direct_env shca_direct;
void shca_remote_try(struct shca_qp *qp, uint64_t *time);
static inline void shca_remote_run(struct shca_qp *qp, uint64_t *time)
{
	const struct qp_sq *sq = &qp->core->sq;

	if (sq->nxt == sq->tail)
		return;
	if (qp_direct_kind(qp->core, qp_sq_slot(sq, sq->nxt)))
		shca_remote_try(qp, time);
	else
		qp->remote.tail = sq->tail;
}
void shca_remote_forget(struct shca_qp *qp);
/* The queue pair at the other end, if that is of this host and connected. Lock
 * held. */
bool shca_remote_qp(struct shca_qp *qp, struct check_end *end);
int shca_env_atomic_lock(struct qp *core, const void *p);
void shca_env_atomic_unlock(struct qp *core, const void *p);

/* peer_explain.c: says which way a QP that has just been connected is connected
 * by. Its lock is held, as it is in the others (roce/env.h). */
void shca_connected_explain(struct shca_qp *qp);
const char *shca_env_silent(struct qp *core, struct key_why *why);
/* For the checks: what at the two ends does not go together. */
void shca_env_unanswered(struct qp *core, const char *expects);
void shca_remote_report(struct shca_qp *qp, struct check_peer *out);
/* What a QP that waits for nothing may be waiting for; and adds to the sentence
 * that no completion is to be expected, if so. */
void shca_idle_says(const struct qp *core, char *text, size_t size);
/* What the QP waits for: a sentence. */
void shca_qp_waits(struct shca_qp *qp, uint64_t now, char *text, size_t size);
const char *shca_env_refusal(struct qp *core, const struct key_ask *ask,
			     struct key_why *why);
/* Returns when no other process copies any more by what was there before. */
void shca_visits_wait(struct engine *e);

/* sched.c, qp_roce.c */
extern const struct engine_qp_ops shca_roce_sched, shca_roce_sched_recorded;
/* What is to be remembered of a QP that is about to be destroyed, if anything. */
bool shca_qp_leaves(const struct shca_qp *qp, struct roce_timewait *w);

#endif
