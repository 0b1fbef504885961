/*
 * qp.c - the lock of a QP, and what is left behind for its holder
 *
 * A thread that receives packets or runs timers does not wait for a QP's lock.
 * It would wait while it holds the receive side, and the holder may have lost
 * its CPU to that very thread in the middle of sendmsg(): with two spinning
 * programs on two CPUs that costs a whole scheduler tick. So it leaves its
 * packet, or the fact that it was there, to the holder, who looks on unlocking.
 * Only when many packets were left behind does it wait, so that further ones
 * stay in the socket (engine_qp_defer()).
 */
#include "internal.h"

#include "base/cpu.h"
#include "base/sys.h"

#include <stdlib.h>
#include <string.h>

/* How often a holder does what others left behind, in one unlock. */
#define UNLOCK_ROUNDS 2

/* Attempts at the lock before a thread sleeps: a few microseconds. */
#define SPINS 100

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

/* All of it, oldest first. */
static struct engine_packet *backlog_take(struct engine_qp *qp)
{
	struct engine_packet *p = atomic_exchange(&qp->backlog, NULL);
	struct engine_packet *next, *list = NULL;

	for (; p; p = next) {
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
	pthread_mutex_init(&qp->lock, NULL);
}

void engine_qp_get(struct engine_qp *qp)
{
	atomic_fetch_add_explicit(&qp->refs, 1, memory_order_relaxed);
}

void engine_qp_put(struct engine_qp *qp)
{
	if (atomic_fetch_sub_explicit(&qp->refs, 1, memory_order_acq_rel) != 1)
		return;
	backlog_free(backlog_take(qp));
	qp->ops->free(qp);
}

/* Does what others left behind; lock held. */
static void pending_run(struct engine_qp *qp)
{
	struct engine_packet *list, *p;
	uint64_t now = clock_ns();

	atomic_store(&qp->pending, false);
	list = backlog_take(qp);
	if (!qp->dead) {
		for (p = list; p; p = p->next)
			qp->ops->rx(qp, &p->rx, now);
		qp->ops->run(qp, now);
	}
	backlog_free(list);
}

/*
 * A mutex goes to whoever asks while it is free, which is the thread that has
 * just unlocked it rather than one that has yet to wake. So those who wait are
 * counted, and receivers stay away while there are any.
 */
static void wait_turn(struct engine_qp *qp)
{
	int i;

	atomic_fetch_add(&qp->waiters, 1);
	/* Usually it is free after the packet at hand. */
	for (i = 0; i < SPINS; i++) {
		cpu_relax();
		if (!pthread_mutex_trylock(&qp->lock))
			break;
	}
	if (i == SPINS)
		pthread_mutex_lock(&qp->lock);
	atomic_fetch_sub(&qp->waiters, 1);
}

void engine_qp_lock(struct engine_qp *qp)
{
	if (pthread_mutex_trylock(&qp->lock))
		wait_turn(qp);
	/* The holder before may not have looked again yet. */
	if (atomic_load_explicit(&qp->pending, memory_order_relaxed))
		pending_run(qp);
}

bool engine_qp_trylock(struct engine_qp *qp)
{
	if (engine_qp_wanted(qp) || pthread_mutex_trylock(&qp->lock)) {
		/* The holder or a waiter sees this after unlocking, or has
		 * unlocked by now. */
		atomic_store(&qp->pending, true);
		atomic_thread_fence(memory_order_seq_cst);
		if (engine_qp_wanted(qp) || pthread_mutex_trylock(&qp->lock))
			return false;
	}
	if (atomic_load_explicit(&qp->pending, memory_order_relaxed))
		pending_run(qp); /* older than what the caller brings */
	return true;
}

void engine_qp_unlock(struct engine_qp *qp)
{
	bool enough;
	int round;

	pthread_mutex_unlock(&qp->lock);
	for (round = 0, enough = false; !enough; round++) {
		atomic_thread_fence(memory_order_seq_cst);
		if (!atomic_load_explicit(&qp->pending, memory_order_relaxed) ||
		    engine_qp_wanted(qp) || pthread_mutex_trylock(&qp->lock))
			return; /* nothing, or the next holder's */
		/* Others keep leaving more behind: the timers go on. */
		enough = round >= UNLOCK_ROUNDS && !qp->dead;
		if (enough)
			engine_timer_set(qp->engine, qp, clock_ns());
		else
			pending_run(qp);
		pthread_mutex_unlock(&qp->lock);
		/* A thread that came just now found the lock taken. */
		atomic_thread_fence(memory_order_seq_cst);
		if (atomic_load_explicit(&qp->timer_due,
					 memory_order_relaxed) == UINT64_MAX)
			enough = false;
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
	p->next = atomic_load(&qp->backlog);
	while (!atomic_compare_exchange_weak(&qp->backlog, &p->next, p))
		;
	atomic_store(&qp->pending, true);
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
