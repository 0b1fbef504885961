/*
 * engine_internal.h - what the engine's files share
 */
#ifndef SOFTHCA_ENGINE_INTERNAL_H
#define SOFTHCA_ENGINE_INTERNAL_H

#include "engine.h"

/* qpn.c */
void qpn_fini(struct engine *e);

/* timers.c */
static inline bool timers_due(const struct engine *e, uint64_t now)
{
	const struct engine_alarm *a;

	for (a = e->alarms; a; a = a->next)
		if (atomic_load_explicit(&a->due, memory_order_relaxed) <= now)
			return true;
	return atomic_load_explicit(&e->heap_due, memory_order_relaxed) <= now;
}

#define TIMER_LATE_NS 1000000 /* of those that may be */

/* Whether some may not, or might not a moment ago. */
static inline bool timers_hurry(const struct engine *e, uint64_t now)
{
	return now <
	       atomic_load_explicit(&e->hurry_until, memory_order_relaxed);
}

/* When the first is due; UINT64_MAX: never. */
uint64_t timers_next(const struct engine *e);
void timers_run(struct engine *e, uint64_t now);
/* engine_timer_set() that waits for no lock, nor allocates: false, not set. */
bool timer_try(struct engine *e, struct engine_qp *qp, uint64_t due);

/*
 * rx.c: one round of receiving on a link. A QP that is not locked any more may
 * be destroyed, so those among touched have a reference. The current one gets
 * it only when it has to make way for another: mostly there is none.
 */
#define RX_TOUCHED 32

struct rx_round {
	struct engine *e;
	uint32_t naps; /* how often the thread had gone to sleep before */
	uint64_t now; /* 0: nothing has come that needs it (roce_rx_timed()) */
	struct engine_qp *cur; /* locked: the QP of the last packet */
	bool noted; /* it is among touched */
	size_t n;
	struct engine_qp *touched[RX_TOUCHED]; /* may have something to send */
};

/* A link_rx_fn, arg is the round: hands a packet to its QP. */
void rx_packet(void *round, const struct roce_rx *pkt);
/* The same where there is a script of faults (hooks/faults.h). */
void rx_fault(void *round, const struct roce_rx *pkt);
/* QPs that have got packets send their answers. Nothing is current then. */
void rx_round_end(struct rx_round *r);

#define RX_BUDGET 32 /* of a link, in one round of progress */

/* send.c: QPs that found no room, of which there are some, go on if there is
 * room now. */
void send_starved(struct engine *e);
/* Nobody sends any more: QPs that have gone meanwhile are let go. */
void send_end(struct engine *e);
/* A QP that has gone sends nothing any more. */
void send_unuse(struct engine_qp *qp);

/*
 * delayed_ack.c: the end of a round for a QP, whose lock is held. True: it
 * waits with the ACK that it owes.
 */
bool delayed_ack_hold(struct rx_round *r, struct engine_qp *qp);
void delayed_ack_release_all(struct engine *e, uint64_t now);
/* Nobody sends any more. */
void delayed_ack_end(struct engine *e);
/* A program is about to sleep: those that wait send their ACKs. */
static inline void delayed_ack_release(struct engine *e)
{
	if (__builtin_expect(
		    atomic_load_explicit(&e->acks, memory_order_relaxed), 0))
		delayed_ack_release_all(e, clock_ns());
}
/*
 * A program has found a CQ empty. It may have looked before the thread took
 * what is to be answered, so its next look counts.
 */
static inline void delayed_ack_polled(struct engine *e)
{
	if (__builtin_expect(
		    !atomic_load_explicit(&e->acks, memory_order_relaxed), 1))
		return;
	if (atomic_load_explicit(&e->held_seen, memory_order_relaxed))
		delayed_ack_release_all(e, clock_ns());
	else
		atomic_store_explicit(&e->held_seen, true,
				      memory_order_relaxed);
}
/* The same if they have waited for long. */
static inline void delayed_ack_expire(struct engine *e, uint64_t now)
{
	if (atomic_load(&e->acks) && now >= atomic_load(&e->held_until))
		delayed_ack_release_all(e, now);
}
/* When that is due; UINT64_MAX: never. */
static inline uint64_t delayed_ack_next(const struct engine *e)
{
	return atomic_load(&e->acks) ? atomic_load(&e->held_until) : UINT64_MAX;
}

/*
 * progress.c: returns the number of packets. *busy: another thread receives on
 * a link, which was left out. now is the time, or 0: then it is only read if
 * something has come that needs it, and timers are left for another time if
 * nothing has.
 */
int progress(struct engine *e, uint64_t now, bool *busy);
/* The thread no longer watches the links (poller.h); it does again. */
void progress_step_back(struct engine *e, uint64_t now);
void progress_step_forward(struct engine *e, uint64_t now);
/* Whether something waits on a link. */
bool progress_waiting(struct engine *e);
/* The same without a system call, for links that can say so; or a timer is due.
 * */
bool progress_ready(struct engine *e, uint64_t now);

/* sleep.c: is this a thread that sleeps? Then it has jumped out of a signal's
 * handler. */
void sleep_forget(struct engine *e);
/* Whether the calling thread was the last one in engine_wait(). */
bool sleep_is_waiter(const struct engine *e);

/* thread.c */
int thread_fds_open(struct engine *e);
void thread_fds_close(struct engine *e);
/* The thread looks at the links' descriptors, which are new; no longer. */
int thread_add_links(struct engine *e);
void thread_remove_links(struct engine *e);
/*
 * Sets whether the thread watches the links, as it does at first, or only those
 * that are idle. 0, or -errno and nothing has changed; thread_lock is held.
 */
int thread_watch_links(struct engine *e, bool watch);
/* Sets it again, since a link has become idle, or active. */
void thread_rewatch(struct engine *e);
/*
 * Before a sleep on the links' descriptors: asks that they become readable when
 * there is something to do; false: there is, now. On wake-up this is undone;
 * called has a bit, 1 << i for the i-th, for each link whose descriptor was
 * readable.
 */
bool links_sleep(struct engine *e);
void links_wake(struct engine *e, unsigned called);
/* The same on behalf of the thread, which is asleep, or will be. */
void thread_announce(struct engine *e);
/* The caller is the program's thread that has polled last. */
static inline void thread_poller(struct engine *e)
{
	clockid_t id;

	if (!pthread_getcpuclockid(pthread_self(), &id) &&
	    id != atomic_load_explicit(&e->poller_clock, memory_order_relaxed))
		atomic_store_explicit(&e->poller_clock, id,
				      memory_order_relaxed);
}

/* Makes the thread check everything but the descriptors again. */
void thread_wake(struct engine *e);
void thread_end(struct engine *e);

/* halt.c: the thread is to start, and will when the engine goes on; false: it
 * runs. */
bool halt_starts(struct engine *e);

/* explain.c: reports drops now and then, for processes that do not end. */
void drops_explain_at(struct engine *e, uint64_t now);

#endif
