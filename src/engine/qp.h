/*
 * qp.h - a QP as the engine sees it: what packets are for and timers run out of
 *
 * Threads that make progress do not wait for the lock of a QP: its holder may
 * be a program's thread that was preempted, perhaps by this one. They leave
 * what there is to do behind, and the holder does it when he unlocks. So
 * engine_qp_trylock() returning false is as good as having been there. Nor do
 * they take it while somebody waits for it.
 *
 * References: the program has one, until ibv_destroy_qp(); a timer that is
 * being run and a packet that is being answered have one each. After destroy
 * they find the QP dead and let go. The receive side needs none to find a QP,
 * because destroy waits for it once (engine_qpn_free()).
 */
#ifndef SOFTHCA_ENGINE_QP_H
#define SOFTHCA_ENGINE_QP_H

#include "roce/qp.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct engine_packet;
struct engine_qp;

/* The lock is held and the QP is not dead, but for free. */
struct engine_qp_ops {
	/* A packet for it. Nothing is sent. */
	void (*rx)(struct engine_qp *qp, const struct roce_rx *pkt,
		   uint64_t now);
	/* Sends what there is to send, and sets the timer. */
	void (*flush)(struct engine_qp *qp, uint64_t now);
	/* The same, after what was due by now. */
	void (*run)(struct engine_qp *qp, uint64_t now);
	/* The last reference has gone. */
	void (*free)(struct engine_qp *qp);
};

struct engine_qp {
	const struct engine_qp_ops *ops;
	struct engine *engine;
	uint32_t num;
	bool foreign; /* found by others: num is of another process's QP */
	bool dead; /* under lock; whoever finds it so lets go */
	_Atomic unsigned refs; /* whoever may lock it */

	pthread_mutex_t lock;
	_Atomic unsigned waiters; /* for lock: nobody takes it before them */

	/* For whoever holds the lock, from those who did not wait for it. */
	_Atomic bool pending;
	_Atomic(struct engine_packet *) backlog; /* newest first */
	_Atomic unsigned nbacklog;

	_Atomic uint64_t timer_due; /* when its entry in the heap is due */
	size_t timer_pos; /* of that entry + 1; the timers' lock */
};

/* With one reference; dead until it has something to give packets to. */
void engine_qp_init(struct engine_qp *qp, struct engine *e,
		    const struct engine_qp_ops *ops);

void engine_qp_get(struct engine_qp *qp);
void engine_qp_put(struct engine_qp *qp);

/* Waits. What was left behind comes first, so that a QP that is about to leave
 * its state has taken all that was received before. */
void engine_qp_lock(struct engine_qp *qp);
bool engine_qp_trylock(struct engine_qp *qp);
void engine_qp_unlock(struct engine_qp *qp);

/* Somebody waits: whoever holds the lock over several packets or batches lets
 * go of it between two, and then finds that engine_qp_trylock() fails. */
static inline bool engine_qp_wanted(const struct engine_qp *qp)
{
	return atomic_load_explicit(&qp->waiters, memory_order_relaxed);
}

/* The holder leaves the rest of its work to who comes next. */
static inline void engine_qp_later(struct engine_qp *qp)
{
	atomic_store(&qp->pending, true);
}

/*
 * Leaves a packet behind for the holder of the lock. True: the lock was free
 * after all, or many packets lie there already and it was waited for; it is
 * taken then, and so is the packet.
 */
bool engine_qp_defer(struct engine_qp *qp, const struct roce_rx *pkt);

#endif
