/*
 * engine.h - who makes progress in a process, and when
 *
 * There is one per process. It takes packets from the links (rx.c), hands each
 * to its QP (qpn.c), runs timers that are due (timers.c), and lets QPs send.
 * Two kinds of threads do that, in the same way (progress.c): programs that
 * poll an empty CQ, and one thread of ours that sleeps in epoll (thread.c).
 * Which of them receives is in poller.h.
 *
 * The engine knows a QP only as what it schedules (qp.h), and calls the layer
 * above by tables of functions. src/transport has it in struct shca_process.
 *
 * Locks, each before those that follow: a link's receive side, a QP's, those
 * of the layers above that say so, the timers'. thread_lock is for starting the
 * thread and for its stepping back and forward, and no other is taken in it.
 */
#ifndef SOFTHCA_ENGINE_ENGINE_H
#define SOFTHCA_ENGINE_ENGINE_H

#include "poller.h"
#include "qp.h"

#include "link/rocev1.h"
#include "link/stream.h"
#include "link/udp.h"
#include "os/config.h"
#include "registry/registry.h"

#include <stdarg.h>

struct engine_faults;
struct pcap;
struct segment;

/* What the layer above does. Called without any QP's lock. */
struct engine_ops {
	/* On the receive side, as the following three: a packet for QP1. */
	void (*gsi)(struct engine *e, const struct roce_rx *pkt, uint64_t now);
	/* One for a multicast group. False: no QP is attached to it. */
	bool (*mcast)(struct engine *e, const struct roce_rx *pkt,
		      uint64_t now);
	/* One that no QP has the number of. True: it was for a past QP. */
	bool (*stray)(struct engine *e, const struct roce_rx *pkt,
		      uint64_t now);
	/*
	 * One for QP 0, which only processes of this host send each other.
	 * False: it is none of those. True: it is done with, except for *inner
	 * if *qp is not NULL, which is a packet for that QP.
	 */
	bool (*word)(struct engine *e, const struct roce_rx *pkt,
		     struct engine_qp **qp, struct roce_rx *inner,
		     uint64_t now);
	/* A script raises an event of the port or the device (hooks/faults.h) of
	 * that name; "": of all. */
	void (*event)(struct engine *e, enum ibv_event_type type,
		      const char *dev);
	/* Whether a script's dev is a device, and has this address, if any is
	 * given. */
	bool (*names_device)(const char *dev, const union ibv_gid *addr);
	/* The links are drained, and engine.unsettled is not 0. */
	void (*settle)(struct engine *e, uint64_t now);
	/* In the thread: a descriptor given to engine_watch_fd() is readable,
	 * or was; it may have been unwatched and closed meanwhile. */
	void (*readable)(struct engine *e, int fd);
	/* In the thread: this process has been saved and restored by somebody
	 * who did not suspend it before (src/migrate). */
	void (*restored)(struct engine *e);
};

struct timer {
	uint64_t due;
	struct engine_qp *qp;
};

/* A timer of the layer above rather than of a QP. */
struct engine_alarm {
	struct engine_alarm *next;
	_Atomic uint64_t due; /* UINT64_MAX: never */
	/* due has passed; sets another. Several threads may call it at once. */
	void (*expire)(struct engine *e, uint64_t now);
};

#define ENGINE_LINKS 4

struct engine {
	const struct engine_ops *ops;
	_Atomic bool dead; /* we are a child of the process that made it */
	const struct config *cfg;
	struct registry *registry; /* NULL: alone on this host */
	struct link *link[ENGINE_LINKS]; /* the first one takes any packet */
	unsigned nlinks;
	bool choice; /* others take some (link_route()) */
	struct udp *udp; /* link[0], and what only UDP has */
	struct rocev1
		*rocev1; /* NULL: it has not been asked for, or may not be */
	struct streams *streams; /* of iWARP; NULL: there is no such device */
	struct segment *segment; /* with shared memory, or NULL */
	struct engine_faults *faults; /* on purpose (hooks/faults.h), or NULL */

	/* qpn.c */
	pthread_mutex_t qpn_lock;
	_Atomic(struct qpn_chunk *) chunk[REGISTRY_CHUNKS];
	uint32_t owned[REGISTRY_CHUNKS]; /* indices of chunk that are set */
	uint32_t nowned;

	/* timers.c */
	pthread_mutex_t timer_lock; /* innermost */
	struct timer *heap;
	size_t ntimers, timer_size;
	struct engine_alarm *alarms; /* complete before the thread starts */
	_Atomic uint64_t heap_due; /* when its top is */
	_Atomic uint64_t hurry_until; /* no timer may be late until then */

	/* explain.c: packets that did nothing. */
	_Atomic uint64_t dropped[ROCE_DROPS];
	_Atomic uint64_t no_qp; /* for QP numbers that are not here */
	_Atomic uint64_t drops_due; /* when to report again */
	_Atomic uint64_t drops_reported; /* their sum at the last report */

	_Atomic(struct engine_qp *) starved; /* send.c: QPs without room */

	/* delayed_ack.c: QPs whose ACK waits for an answer, or did a moment ago; how
	 * many do, and how long the first. */
	_Atomic(struct engine_qp *) held;
	_Atomic uint32_t acks;
	_Atomic uint64_t held_until;
	_Atomic bool held_seen; /* a program has polled since */

	/* How many things wait for drained links: engine_ops.settle. */
	_Atomic unsigned unsettled;

	/* thread.c */
	pthread_mutex_t thread_lock;
	_Atomic bool started;
	_Atomic bool stop;
	pthread_t thread;
	int epoll_fd, wake_fd;
	_Atomic uint64_t asleep_until; /* 0: the thread is awake */
	_Atomic uint32_t naps; /* how often it has gone to sleep; wraps */
	_Atomic clockid_t
		poller_clock; /* CPU time of who has polled last, or 0 */
	struct poller_time { /* when the thread last looked */
		clockid_t id;
		uint64_t ns, at;
	} looked;

	struct poller poller;

	/* sleep.c */
	_Atomic uint32_t shy; /* so often no program sleeps there */
	_Atomic uint32_t waiting; /* threads that wait for others to receive */
	_Atomic uintptr_t dozer; /* who was the last in engine_wait() */

	_Atomic uint32_t halt; /* halt.c; 0: it runs */
};

/*
 * engine.c: a new engine, all zeros before, for a process that has joined a
 * registry (or NULL), shows a segment there (or NULL) and records packets (or
 * NULL). 0 or -errno; then engine_fini() is due as well.
 */
int engine_init(struct engine *e, const struct engine_ops *ops,
		const struct config *cfg, struct registry *registry,
		struct segment *segment, struct pcap *pcap);
/* Ends the thread: from now on only who calls in makes progress. */
void engine_stop(struct engine *e);
void engine_fini(struct engine *e);
/* In the child of a fork, which has none of the parent's threads: closes its
 * copies of descriptors, and leaves alone what the parent made. */
void engine_abandon(struct engine *e);

/* The link by which packets leave that do not stay within the host; and where
 * faults are made on purpose all do. */
static inline struct link *engine_wire(const struct engine *e,
				       const struct roce_path *path)
{
	return path->v1 && e->rocev1 ? rocev1_link(e->rocev1) : e->link[0];
}

static inline bool engine_dead(const struct engine *e)
{
	return atomic_load_explicit(&e->dead, memory_order_relaxed);
}

/* udp_bind(); what is wrong with the port is said once in a process. */
int engine_bind(struct engine *e, const union ibv_gid *gid, uint32_t ifindex);
/* The same of RoCE v1, whose frames it wants as well; -EPERM where there is none. */
int engine_bind_v1(struct engine *e, const union ibv_gid *gid,
		   uint32_t ifindex);
void engine_unbind_v1(struct engine *e, const union ibv_gid *gid,
		      uint32_t ifindex);

/*
 * send.c: sends each packet of a batch by the link that its destination is
 * reached by: shared memory, where both processes have it, else UDP. qp, whose
 * lock is held, remembers its way; NULL: nobody does. Returns how many were
 * taken, in order; fewer than all where there is no room now, and then a qp is
 * flushed again as soon as there is. A packet that can never be sent counts as
 * taken and is lost; *err is 0, or a positive errno for the caller to explain.
 * EFAULT: memory of the first that was not taken is not there.
 */
size_t engine_send(struct engine *e, struct engine_qp *qp,
		   const struct roce_batch *b, int *err);
/*
 * The same for the small requests (roce/qp.h) that qp's core has to send, where
 * its link takes them. Returns how many it has; 0: the next packet, if there
 * is one, is for engine_send(). *now, if it is 0, is set where that was needed.
 */
unsigned engine_send_small(struct engine_qp *qp, struct roce_qp *core,
			   uint64_t *now);
/*
 * Before roce_tx(): sets how long the packets of the batch may be, by the way
 * that qp's last one has gone. qp's lock is held; core is its QP.
 */
void engine_limits(struct engine_qp *qp, const struct qp *core,
		   struct roce_batch *b);
/* Whether the link had no room for qp's last packet, and has none yet: then it
 * is flushed when there is. qp's lock is held. */
bool engine_starved(struct engine_qp *qp);
/* qp, whose lock is held, has sent what it had: whether its ACK still waits for an
 * answer. */
static inline void engine_ack_waits(struct engine_qp *qp, bool waits)
{
	if (qp->ack_waits && !waits) {
		qp->ack_waits = false;
		atomic_fetch_sub(&qp->engine->acks, 1);
	}
}
/* Whether a process of this host has qpn, at the end of path; and whether that is
 * suspended with a seat. */
bool engine_is_of_host(const struct engine *e, uint32_t qpn,
		       const struct roce_path *path);
bool engine_keeps_seat(struct engine *e, uint32_t qpn,
		       const struct roce_path *path);
/* link_ops.unread of whatever link reaches the peer of qp, whose lock is held. */
bool engine_unread(struct engine *e, struct engine_qp *qp, uint32_t qpn,
		   const struct roce_path *path, uint64_t mark[2]);

/* qpn.c: a free QPN for qp, which is found under it from now on; or -ENOSPC. */
int engine_qpn_alloc(struct engine *e, struct engine_qp *qp, uint32_t *qpn);
/* On return no packet that was received before is being handed to it. */
void engine_qpn_free(struct engine *e, struct engine_qp *qp);
/* Which of the chunks of numbers that this process has leased one is of; the number
 * on the wire of what the program knows as this. */
uint32_t engine_qpn_nth(struct engine *e, uint32_t qpn);
uint32_t engine_qpn_wire(struct engine *e, uint32_t qpn);
/*
 * The process was suspended (src/migrate), and another one has the chunk that begins
 * with from: on the wire its numbers begin with `to` from now on (engine_qp.num).
 * fn is called for each QP of it with the lock held. Nothing is received meanwhile.
 */
void engine_renumber(struct engine *e, uint32_t from, uint32_t to,
		     void (*fn)(struct engine_qp *qp, void *arg), void *arg);
/* On the receive side only: elsewhere the QP may go at any time. */
struct engine_qp *engine_qp_find(struct engine *e, uint32_t qpn);
/* Anywhere, with a reference; NULL: there is none. */
struct engine_qp *engine_qp_look(struct engine *e, uint32_t qpn);
/* Whether there is one. */
bool engine_has_qp(struct engine *e, uint32_t qpn);
/*
 * Calls fn for every living QP with its lock held, without waiting for any
 * lock. False: some could not be had, or not be handed over to whoever runs
 * timers. For exit(), which may have interrupted a thread that holds one.
 */
bool engine_qps_look(struct engine *e,
		     void (*fn)(struct engine_qp *qp, void *arg), void *arg);
/* The same of each, waiting for its lock: the caller holds none. False: there is
 * no memory. */
bool engine_qps_each(struct engine *e,
		     void (*fn)(struct engine_qp *qp, void *arg), void *arg);
/*
 * The nth number that this process may use for other things than QPs: of a
 * chunk that it has leased, so registry_owner() knows. 0 or -errno.
 */
int engine_number(struct engine *e, uint32_t n, uint32_t *num);

/* timers.c: qp's run or flush is due at that time, if not before. */
void engine_timer_set(struct engine *e, struct engine_qp *qp, uint64_t due);
/* The same; while a program sleeps it may be a millisecond late. */
void engine_timer_set_lax(struct engine *e, struct engine_qp *qp, uint64_t due);
void engine_timer_drop(struct engine *e, struct engine_qp *qp);
/*
 * Whether it is, and need not be set anew for what has just been sent, which is
 * not lost. If it was due just now, and qp's lock is held, its run still
 * follows.
 */
static inline bool engine_timer_will_do(const struct engine_qp *qp)
{
	return atomic_load_explicit(&qp->timer_due, memory_order_relaxed) !=
		       UINT64_MAX &&
	       link_is_lossless(&qp->way);
}
/* Before the engine starts; never due at first. */
void engine_alarm_add(struct engine *e, struct engine_alarm *a,
		      void (*expire)(struct engine *e, uint64_t now));
void engine_alarm_set(struct engine *e, struct engine_alarm *a, uint64_t due);
/* The same, unless it is due before. */
void engine_alarm_by(struct engine *e, struct engine_alarm *a, uint64_t due);
/* Whether one that is set now wakes nobody, since the thread ticks (poller.h):
 * if nobody else looks, it is late by a tick. */
static inline bool engine_alarm_is_free(const struct engine *e)
{
	return poller_tick_at(&e->poller) != UINT64_MAX;
}

/*
 * progress.c: what a program does that finds its CQ empty: receives packets,
 * sends what that leads to, runs timers. armed: the CQ is, so that the program
 * may be about to sleep.
 */
void engine_poll(struct engine *e, bool armed);
/* A program is about to sleep until something happens: the thread receives,
 * unless the program does so by engine_wait(). */
void engine_watch(struct engine *e);
/*
 * What wakes a program waits until this thread has let go of the link and the
 * QP: on the same CPU a program that wakes runs at once, and would find both
 * taken. False: the thread receives nothing just now, so the caller does it.
 */
struct engine_after {
	struct engine_after *next;
	void (*run)(struct engine_after *a);
};
bool engine_after(struct engine_after *a);
/* On return no packet that was received before is being handed to a QP. */
void engine_quiesce(struct engine *e);
/* On return the QPs have what processes of this host had sent by shared memory
 * before the call, unless that takes longer than limit_ns. */
void engine_catch_up(struct engine *e, uint64_t limit_ns);

/*
 * sleep.c: a program waits for an event, for which there is a descriptor, and
 * receives by itself. Returns 0: arrived() says that it is there, or fd is
 * readable; -EINTR: a signal has come that would have ended a read(2) of fd;
 * -EBUSY: another thread receives, and the caller is to sleep on fd. arrived()
 * is called without locks. This is a cancellation point.
 */
int engine_sleep(struct engine *e, int fd, bool (*arrived)(void *arg),
		 void *arg);
/*
 * A thread that polls sleeps until packets come, and receives them; until_ns at
 * the latest. Their number, or -EBUSY: others receive, and it has not slept. No
 * cancellation point.
 */
int engine_nap(struct engine *e, uint64_t until_ns);
/*
 * The same as poll(2) of one descriptor for reading, which may be an epoll
 * instance with many: 1: it is readable; 0: it is until_ns (UINT64_MAX: never);
 * -EINTR. The signal mask, unless it is NULL, holds while it sleeps. spin: not
 * at once (base/backoff.h).
 */
int engine_wait(struct engine *e, int fd, uint64_t until_ns,
		const sigset_t *mask, bool spin);
/* A thread sleeps on such a descriptor, so that others have to receive; or it
 * does so no longer. */
void engine_waits(struct engine *e, bool waits);

/* thread.c: starts the thread unless it runs. */
int engine_start(struct engine *e);
/* The thread watches a descriptor for engine_ops.readable; no longer. */
int engine_watch_fd(struct engine *e, int fd);
void engine_unwatch_fd(struct engine *e, int fd);

/*
 * halt.c: the process is suspended (src/migrate), in this order. What is posted
 * waits as if the link had no room. each is called for each QP with its lock held.
 */
/* Nothing is sent any more, nor do timers run. 0, or -ENOMEM. */
int engine_halt(struct engine *e, void (*each)(struct engine_qp *qp, void *arg),
		void *arg);
/* Receives until nothing is on its way within the host, limit_ns at most. */
void engine_drain(struct engine *e, uint64_t limit_ns);
/* Nothing is received, there is no thread, and nobody sleeps on a link. */
int engine_rest(struct engine *e);
/* link_ops.suspend. */
void engine_suspend_links(struct engine *e, enum link_suspend step);
/* All of it ends, after whichever. 0 or -errno: it does not. */
int engine_go(struct engine *e, void (*each)(struct engine_qp *qp, void *arg),
	      void *arg);
static inline bool engine_halted(const struct engine *e)
{
	return atomic_load(&e->halt);
}

/* explain.c: counts a packet that was dropped. */
void engine_dropped(struct engine *e, enum roce_drop why);
/* Sums of all links: what was received, and what no QP was told of. */
struct link_stats engine_link_stats(const struct engine *e);
/* Reports on stderr what became of packets, unless nothing has changed. */
void engine_drops_explain(struct engine *e);
/* A sentence on stderr, if the user has asked for explanations: of a QP of RoCE,
 * or of any, whose peer is given in words, or "". */
void engine_explain(struct qp *qp, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void engine_explain_of(const struct qp *qp, const char *peer, const char *fmt,
		       va_list ap) __attribute__((format(printf, 3, 0)));

#endif
