/*
 * timewait.c - connections whose QP is gone, and the end of the process
 *
 * What is left of a QP (roce/timewait.h) stays for LIFE_NS in a table of fixed
 * size, indexed by QPN; a newer one replaces an older. It keeps the address at
 * which the QP received bound, since that socket may have no other user. Only a
 * packet whose number no QP has comes here, so living QPs pay nothing.
 *
 * When a process ends, or closes its last device, there are no more answers.
 * The end waits as long as a peer may lack an ACK: a peer that is softhca asks
 * again within QUIET_NS. If packets of its connections were lost or late
 * before, the next may be as well, and the peer may have to wait for a
 * processor, so the end waits for LOSSY_NS; in that time hardware with usual
 * timeouts asks again too. A repeated request begins that time anew. A new
 * request does not, since a peer may go on sending indefinitely.
 *
 * Between processes of one host nothing is lost unless the user asks for it.
 */
#include "shared.h"
#include "xrc.h"

#include "base/bytes.h"
#include "base/sys.h"

#include <stdlib.h>

#define TIMEWAITS 256u
#define LIFE_NS 4000000000

#define QUIET_NS 6000000
#define LOSSY_NS 150000000
#define LINGER_NS 1000000000 /* the longest that the end is put off */
#define STEP_NS 100000
#define SETTLE_NS 10000000 /* for what is about to be sent */

struct shca_timewait {
	struct roce_timewait w;
	uint64_t until; /* 0: free */
	struct shca_bound bound;
};

static void timewait_release(struct engine *e, const struct shca_timewait *t)
{
	if (t->until)
		shca_bound_end(e, &t->bound);
}

void shca_timewait_add(struct shca_qp *qp, const struct roce_timewait *w)
{
	struct engine *e = qp->sched.engine;
	struct shca_process *proc = to_process(e);
	struct shca_timewait *t, old = { .until = 0 };
	uint64_t until = clock_ns() + LIFE_NS;

	if (!qp->bound.is)
		return;
	pthread_mutex_lock(&proc->timewait.lock);
	if (!proc->timewait.table)
		proc->timewait.table =
			calloc(TIMEWAITS, sizeof(*proc->timewait.table));
	if (proc->timewait.table) {
		t = &proc->timewait.table[w->qpn % TIMEWAITS];
		old = *t;
		*t = (struct shca_timewait){ .w = *w,
					     .until = until,
					     .bound = qp->bound };
		qp->bound.is = false;
		if (until < atomic_load(&proc->timewait.alarm.due))
			engine_alarm_set(e, &proc->timewait.alarm, until);
	}
	pthread_mutex_unlock(&proc->timewait.lock);
	timewait_release(e, &old);
}

bool shca_timewait_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now)
{
	struct shca_process *proc = to_process(e);
	struct shca_timewait *t;
	struct roce_batch b;
	bool ours = false;
	int err = 0;

	if (atomic_load(&proc->timewait.alarm.due) == UINT64_MAX)
		return false;
	pthread_mutex_lock(&proc->timewait.lock);
	t = proc->timewait.table ?
		    &proc->timewait.table[pkt->h.dest_qpn % TIMEWAITS] :
		    NULL;
	if (t && t->until && roce_timewait_rx(&t->w, pkt, &b, now)) {
		ours = true;
		if (b.n)
			engine_send(e, NULL, &b,
				    &err); /* or the peer asks again */
	}
	pthread_mutex_unlock(&proc->timewait.lock);
	return ours;
}

/* Removes one whose time is over, and sets when the next is due. */
static struct shca_timewait timewait_take(struct engine *e, uint64_t now)
{
	struct shca_process *proc = to_process(e);
	struct shca_timewait old = { .until = 0 };
	uint64_t due = UINT64_MAX;

	pthread_mutex_lock(&proc->timewait.lock);
	for (uint32_t i = 0; proc->timewait.table && i < TIMEWAITS; i++) {
		struct shca_timewait *t = &proc->timewait.table[i];

		if (!old.until && t->until && t->until <= now) {
			old = *t;
			t->until = 0;
		} else if (t->until && t->until < due) {
			due = t->until;
		}
	}
	engine_alarm_set(e, &proc->timewait.alarm, due);
	pthread_mutex_unlock(&proc->timewait.lock);
	return old;
}

static void timewait_expire(struct engine *e, uint64_t now)
{
	struct shca_timewait old;

	while ((old = timewait_take(e, now)).until)
		timewait_release(e, &old);
}

int shca_timewait_init(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	pthread_mutex_init(&proc->timewait.lock, NULL);
	engine_alarm_add(e, &proc->timewait.alarm, timewait_expire);
	return 0;
}

void shca_timewait_fini(struct engine *e)
{
	timewait_expire(e, UINT64_MAX);
	free(to_process(e)->timewait.table);
}

/* The end */

struct census {
	bool lossy;
	bool busy; /* something is about to be sent, or may be */
	uint64_t asked_ns;
};

static void census_add(struct census *c, const struct roce_timewait *w)
{
	if (w->path.local && !w->lossy)
		return;
	c->lossy |= w->lossy;
	if (w->asked_ns > c->asked_ns)
		c->asked_ns = w->asked_ns;
}

/*
 * Counts QPs that the program has not destroyed. exit() may have interrupted a
 * thread that holds a lock, for good if a signal handler called it, so no lock
 * is waited for and nothing is sent from here: the progress thread does that.
 */
static void count_living(struct engine_qp *sched, void *census)
{
	struct shca_qp *qp = sched_qp(sched);
	struct census *c = census;
	struct roce_timewait w;

	if (!shca_qp_leaves(qp, &w))
		return;
	census_add(c, &w);
	c->busy |= roce_tx_ready(roce_qp(qp->core)) ||
		   roce_ack_held(roce_qp(qp->core));
}

static void count_gone(struct engine *e, struct census *c)
{
	struct shca_process *proc = to_process(e);

	if (pthread_mutex_trylock(&proc->timewait.lock)) {
		c->busy = true;
		return;
	}
	for (uint32_t i = 0; proc->timewait.table && i < TIMEWAITS; i++)
		if (proc->timewait.table[i].until)
			census_add(c, &proc->timewait.table[i].w);
	pthread_mutex_unlock(&proc->timewait.lock);
}

void shca_timewait_linger(struct engine *e, bool exiting)
{
	_Atomic uint64_t *repeated = &e->dropped[ROCE_DROP_DUPLICATE];
	const uint64_t begin = clock_ns();
	uint64_t seen = atomic_load(repeated), again = 0;

	if (!atomic_load(&e->started))
		return;
	for (;;) {
		uint64_t now = clock_ns(), until, n = atomic_load(repeated);
		struct census c = { 0 };

		if (n != seen) {
			seen = n;
			again = now;
		}
		count_gone(e, &c);
		if (exiting && !engine_qps_look(e, count_living, &c))
			c.busy = true;
		until = min_u64(c.asked_ns, begin) +
			(c.lossy ? LOSSY_NS : QUIET_NS);
		if (again)
			until = again + LOSSY_NS;
		if (c.busy && now < begin + SETTLE_NS && until < now + STEP_NS)
			until = now + STEP_NS;
		until = min_u64(until, begin + LINGER_NS);
		if (until <= now)
			break;
		sys_sleep(until - now);
	}
}
