/*
 * engine_qp.c - the lock of a QP, and what is left behind for its holder
 *
 * A thread that receives packets or runs timers does not wait for a QP's lock.
 * It would wait while it holds the receive side, and the holder may have lost
 * its CPU to that very thread in the middle of sendmsg(): with two spinning
 * programs on two CPUs that costs a whole scheduler tick. So it leaves its
 * packet, or a note of it, to the holder, which looks when it unlocks.
 * Only when many packets were left behind does it wait, so that further ones
 * stay in the socket (engine_qp_defer()).
 *
 * The lock and the mark that something was left behind are in one word. The
 * mark is set only while the word shows a holder, or a thread that waits to be
 * one, and it stays until a holder clears it and does the work: nothing is
 * forgotten.
 */
#include "engine_internal.h"

#include "base/lock.h"
#include "segment/segment.h"

#include <stdlib.h>
#include <string.h>

/* How often a holder does what others left behind, in one unlock. */
#define UNLOCK_ROUNDS 2

/* How long a receiver lets others have the lock first. */
#define NAPS 20
#define NAP_NS 20000

/* Packets left behind for the holder before a receiver waits. */
#define BACKLOG_MAX 128

struct engine_packet {
	struct engine_packet *next;
	struct roce_rx rx;
	uint8_t grh[40];
	/* or a copy of rx.source */
	_Alignas(max_align_t) uint8_t payload[];
};

static void backlog_free(struct engine_packet *p)
{
	struct engine_packet *next;

	for (; p; p = next) {
		next = p->next;
		free(p);
	}
}

/* Senders of this host do not take for lost what waits for a holder. */
static void backlog_count(struct engine_qp *qp, int n)
{
	if (n && qp->engine->segment)
		segment_behind(qp->engine->segment, n);
}

/* All of it, oldest first; *n: how many. */
static struct engine_packet *backlog_take(struct engine_qp *qp, int *n)
{
	struct engine_packet *p = atomic_exchange(&qp->backlog, NULL);
	struct engine_packet *next, *list = NULL;

	for (*n = 0; p; p = next, ++*n) {
		next = p->next;
		p->next = list;
		list = p;
		atomic_fetch_sub_explicit(&qp->nbacklog, 1,
					  memory_order_relaxed);
	}
	return list;
}

void engine_qp_init(struct engine_qp *qp, struct engine *e,
		    const struct engine_qp_ops *ops)
{
	qp->engine = e;
	qp->ops = ops;
	qp->dead = true;
	atomic_store(&qp->refs, 1);
	atomic_store(&qp->timer_due, UINT64_MAX);
}

void engine_qp_get(struct engine_qp *qp)
{
	atomic_fetch_add_explicit(&qp->refs, 1, memory_order_relaxed);
}

void engine_qp_put(struct engine_qp *qp)
{
	int n;

	if (atomic_fetch_sub_explicit(&qp->refs, 1, memory_order_acq_rel) != 1)
		return;
	backlog_free(backlog_take(qp, &n));
	backlog_count(qp, -n);
	link_way_forget(&qp->way);
	send_unuse(qp);
	qp->ops->free(qp);
}

/* Does what others left behind; lock held. */
static void pending_run(struct engine_qp *qp)
{
	struct engine_packet *list, *p;
	uint64_t now = clock_ns();
	int n;

	atomic_fetch_and_explicit(&qp->lock, ~(uint32_t)ENGINE_QP_PENDING,
				  memory_order_acquire);
	list = backlog_take(qp, &n);
	if (!qp->dead) {
		for (p = list; p; p = p->next)
			qp->ops->rx(qp, &p->rx, now);
		qp->ops->run(qp, now);
	}
	backlog_free(list);
	backlog_count(qp, -n); /* what there is to answer is answered */
}

static uint32_t qp_lock_read(const struct engine_qp *qp)
{
	return atomic_load_explicit(&qp->lock, memory_order_relaxed);
}

/* If the word is still *was: then it is `to` now, else *was what it is. */
static bool qp_lock_swap(struct engine_qp *qp, uint32_t *was, uint32_t to)
{
	return atomic_compare_exchange_weak_explicit(
		&qp->lock, was, to, memory_order_acq_rel, memory_order_relaxed);
}

/*
 * A lock goes to whoever asks while it is free, which is the thread that has
 * just dropped it rather than one that has yet to wake. So those who wait are
 * counted, and receivers stay away while there are any.
 */
static void qp_lock_wait(struct engine_qp *qp)
{
	bool slept = false;
	uint32_t was, to;
	int spins = 0;

	atomic_fetch_add_explicit(&qp->lock, ENGINE_QP_WAITER,
				  memory_order_relaxed);
	for (;;) {
		was = qp_lock_read(qp);
		if (!(was & ENGINE_QP_HELD)) {
			to = (was | ENGINE_QP_HELD) - ENGINE_QP_WAITER;
			/* It was the only one to be woken. */
			if (slept && to >= ENGINE_QP_WAITER)
				to |= ENGINE_QP_SLEEPS;
			if (qp_lock_swap(qp, &was, to))
				return;
		} else if (spins++ < LOCK_TRIES) {
			/* Usually it is free after the packet at hand. */
			cpu_relax();
		} else if (was & ENGINE_QP_SLEEPS ||
			   qp_lock_swap(qp, &was, was | ENGINE_QP_SLEEPS)) {
			lock_sleep(&qp->lock, was | ENGINE_QP_SLEEPS);
			slept = true;
		}
	}
}

/*
 * Takes it if it is free; polite: and nobody waits for it. In *was the word
 * before, or that which is in the way.
 */
static bool qp_lock_take(struct engine_qp *qp, uint32_t *was, bool polite)
{
	*was = qp_lock_read(qp);
	while (!(*was & ENGINE_QP_HELD) &&
	       !(polite && *was >= ENGINE_QP_WAITER))
		if (qp_lock_swap(qp, was, *was | ENGINE_QP_HELD))
			return true;
	return false;
}

void engine_qp_lock_slow(struct engine_qp *qp)
{
	uint32_t was;

	if (!qp_lock_take(qp, &was, false))
		qp_lock_wait(qp);
	/* The holder before may not have looked again yet. */
	if (qp_lock_read(qp) & ENGINE_QP_PENDING)
		pending_run(qp);
}

bool engine_qp_trylock_slow(struct engine_qp *qp)
{
	uint32_t was;

	while (!qp_lock_take(qp, &was, true))
		/* The holder or a waiter sees it. */
		if (qp_lock_swap(qp, &was, was | ENGINE_QP_PENDING))
			return false;
	if (was & ENGINE_QP_PENDING)
		pending_run(qp); /* older than what the caller brings */
	return true;
}

bool engine_qp_seize(struct engine_qp *qp)
{
	uint32_t was;

	return qp_lock_take(qp, &was, false);
}

bool engine_qp_release(struct engine_qp *qp)
{
	const uint32_t drop = ENGINE_QP_HELD | ENGINE_QP_SLEEPS;
	uint32_t was = atomic_fetch_and_explicit(&qp->lock, ~drop,
						 memory_order_acq_rel);

	if (was & ENGINE_QP_SLEEPS)
		lock_wake(&qp->lock);
	return was & ENGINE_QP_PENDING;
}

void engine_qp_unlock_slow(struct engine_qp *qp)
{
	uint32_t was = qp_lock_read(qp);
	bool timed = false;
	int round = 0;

	for (;;) {
		if (was & ENGINE_QP_PENDING && was < ENGINE_QP_WAITER &&
		    !timed) {
			/* Others keep leaving more behind: the timers go on. */
			timed = round++ >= UNLOCK_ROUNDS && !qp->dead;
			if (timed)
				engine_timer_set(qp->engine, qp, clock_ns());
			else
				pending_run(qp);
			was = qp_lock_read(qp);
			continue;
		}
		if (!qp_lock_swap(qp, &was,
				  was & ~(uint32_t)(ENGINE_QP_HELD |
						    ENGINE_QP_SLEEPS)))
			continue;
		if (was & ENGINE_QP_SLEEPS)
			lock_wake(&qp->lock);
		/* Whoever ran the timer just now found the lock held. */
		if (!timed ||
		    atomic_load_explicit(&qp->timer_due,
					 memory_order_relaxed) != UINT64_MAX ||
		    !qp_lock_take(qp, &was, true))
			return;
		timed = false;
		was = qp_lock_read(qp);
	}
}

bool engine_qp_defer(struct engine_qp *qp, const struct roce_rx *pkt)
{
	struct engine_packet *p;

	if (atomic_fetch_add(&qp->nbacklog, 1) >= BACKLOG_MAX)
		goto wait;
	p = malloc(sizeof(*p) + (pkt->source ? pkt->source->size : pkt->len));
	if (!p)
		goto wait;
	p->rx = *pkt;
	p->rx.acked = NULL;
	if (pkt->source) {
		memcpy(p->payload, pkt->source, pkt->source->size);
		p->rx.source = (const struct qp_source *)(void *)p->payload;
	} else {
		if (pkt->len)
			memcpy(p->payload, pkt->payload, pkt->len);
		p->rx.payload = p->payload;
	}
	if (pkt->grh) {
		memcpy(p->grh, pkt->grh, sizeof(p->grh));
		p->rx.grh = p->grh;
	}
	backlog_count(qp, 1); /* before the ring's record is given back */
	p->next = atomic_load(&qp->backlog);
	while (!atomic_compare_exchange_weak(&qp->backlog, &p->next, p))
		;
	engine_qp_later(qp);
	return engine_qp_trylock(qp);

wait:
	/* Too many: the holder may have lost its CPU, and further packets must
	 * wait in the socket, where senders notice. A waiter may be waiting for
	 * the CPU that this thread has. */
	atomic_fetch_sub(&qp->nbacklog, 1);
	for (int i = 0; i < NAPS && engine_qp_wanted(qp); i++)
		sys_sleep(NAP_NS);
	engine_qp_lock(qp);
	if (!qp->dead)
		qp->ops->rx(qp, pkt, clock_ns());
	return true;
}
