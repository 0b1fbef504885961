/*
 * engine.c - packets to queue pairs, timers, and who makes progress when
 *
 * Two kinds of threads make progress: programs that call ibv_poll_cq() on an
 * empty CQ, and one thread of ours that sleeps in epoll. Both do the same
 * (progress()): take packets from the link, hand each to its QP, let the QPs
 * answer, run timers that are due. The link's receive side is a trylock, so
 * they do not wait for each other, unless one has had it for long.
 *
 * Which of them receives, and when the other steps back: engine/presence.h.
 *
 * A QP has at most one entry in the timer heap, due at or before the deadline
 * of its core. Deadlines mostly move away, so an entry is looked at again when
 * it is due rather than moved with every packet.
 */
#include "gsi.h"
#include "loan.h"

#include "base/aside.h"
#include "base/bytes.h"
#include "base/say.h"
#include "base/sys.h"
#include "host/guard.h"
#include "trace/pcap.h"
#include "wire/roce.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <link.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RX_BUDGET 32
#define TOUCHED_MAX 32
#define THREAD_ROUNDS 16

/* Between looks whether programs still poll. */
#define PAUSE_MIN_NS 100000
#define PAUSE_MAX_NS 1000000

#define SLICE_NS 100000 /* the least there is */
#define STACK_BYTES (512 * 1024)

#define DROPS_NS 10000000000

#define KEYS_MAX (1u << 20)
#define KEYS_MIN (1u << 14)

static struct engine *engine;
/* Of the whole process: many a program closes its device and opens it again. */
static struct pcap *recording;
static pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;

/* Counting objects */

int engine_count(struct engine *e, enum shca_kind kind)
{
	if (atomic_fetch_add(&e->nobjects[kind], 1) < SHCA_MAX_OBJECTS)
		return 0;
	atomic_fetch_sub(&e->nobjects[kind], 1);
	return -ENOMEM;
}

void engine_uncount(struct engine *e, enum shca_kind kind)
{
	atomic_fetch_sub(&e->nobjects[kind], 1);
}

/* Timers */

static void heap_put(struct engine *e, size_t i, struct timer t)
{
	e->heap[i] = t;
	t.qp->timer_pos = i + 1;
}

static void heap_up(struct engine *e, size_t i, struct timer t)
{
	while (i && e->heap[(i - 1) / 2].due > t.due) {
		heap_put(e, i, e->heap[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	heap_put(e, i, t);
}

static void heap_down(struct engine *e, size_t i, struct timer t)
{
	size_t c;

	while ((c = 2 * i + 1) < e->ntimers) {
		if (c + 1 < e->ntimers && e->heap[c + 1].due < e->heap[c].due)
			c++;
		if (e->heap[c].due >= t.due)
			break;
		heap_put(e, i, e->heap[c]);
		i = c;
	}
	heap_put(e, i, t);
}

static void heap_remove(struct engine *e, struct shca_qp *qp)
{
	size_t i = qp->timer_pos - 1;
	struct timer last = e->heap[--e->ntimers];

	qp->timer_pos = 0;
	atomic_store_explicit(&qp->timer_due, UINT64_MAX, memory_order_relaxed);
	if (last.qp == qp)
		return;
	if (i && e->heap[(i - 1) / 2].due > last.due)
		heap_up(e, i, last);
	else
		heap_down(e, i, last);
}

static void heap_changed(struct engine *e)
{
	atomic_store(&e->next_due, e->ntimers ? e->heap[0].due : UINT64_MAX);
}

static void wake(struct engine *e)
{
	const uint64_t one = 1;

	/* A full eventfd (EAGAIN) wakes just as well. */
	if (sys_write(e->wake_fd, &one, sizeof(one)) < 0)
		return;
}

void engine_timer_set(struct engine *e, struct shca_qp *qp, uint64_t due)
{
	struct timer t = { due, qp };

	if (due >= atomic_load_explicit(&qp->timer_due, memory_order_relaxed))
		return;
	pthread_mutex_lock(&e->timer_lock);
	if (qp->timer_pos && due >= e->heap[qp->timer_pos - 1].due) {
		pthread_mutex_unlock(&e->timer_lock);
		return;
	}
	if (!qp->timer_pos && e->ntimers == e->timer_size) {
		size_t size = e->timer_size ? 2 * e->timer_size : 64;
		struct timer *heap = realloc(e->heap, size * sizeof(*heap));

		if (!heap) {
			/* The next packet or post of this QP tries again. */
			pthread_mutex_unlock(&e->timer_lock);
			return;
		}
		e->heap = heap;
		e->timer_size = size;
	}
	atomic_store_explicit(&qp->timer_due, due, memory_order_relaxed);
	heap_up(e, qp->timer_pos ? qp->timer_pos - 1 : e->ntimers++, t);
	heap_changed(e);
	pthread_mutex_unlock(&e->timer_lock);

	/* Those who made the thread step back run the timers. */
	if (due < atomic_load(&e->sleep_until) && !presence_is_back(&e->presence))
		wake(e);
}

void engine_timer_drop(struct engine *e, struct shca_qp *qp)
{
	pthread_mutex_lock(&e->timer_lock);
	if (qp->timer_pos) {
		heap_remove(e, qp);
		heap_changed(e);
	}
	pthread_mutex_unlock(&e->timer_lock);
}

void engine_due(struct engine *e, _Atomic uint64_t *what, uint64_t due)
{
	atomic_store(what, due);
	if (due < atomic_load(&e->sleep_until) && !presence_is_back(&e->presence))
		wake(e);
}

static struct shca_qp *timer_take(struct engine *e, uint64_t now)
{
	struct shca_qp *qp = NULL;

	/* Many threads may see at once that something is due: it takes one. */
	if (pthread_mutex_trylock(&e->timer_lock))
		return NULL;
	if (e->ntimers && e->heap[0].due <= now) {
		qp = e->heap[0].qp;
		shca_qp_get(qp);
		heap_remove(e, qp);
		heap_changed(e);
	}
	pthread_mutex_unlock(&e->timer_lock);
	return qp;
}

static bool timers_due(struct engine *e, uint64_t now)
{
	return atomic_load_explicit(&e->next_due, memory_order_relaxed) <=
		       now ||
	       atomic_load_explicit(&e->cm_due, memory_order_relaxed) <= now ||
	       atomic_load_explicit(&e->timewait_due, memory_order_relaxed) <=
		       now;
}

static void timers_run(struct engine *e, uint64_t now)
{
	struct shca_qp *qp;

	if (atomic_load_explicit(&e->cm_due, memory_order_relaxed) <= now)
		gsi_expire(e, now);
	if (atomic_load_explicit(&e->timewait_due, memory_order_relaxed) <= now)
		shca_timewait_expire(e, now);
	/* What is set meanwhile is due after now, so this ends. */
	while ((qp = timer_take(e, now))) {
		if (shca_qp_trylock(qp)) {
			if (!qp->dead) {
				shca_qp_expire(qp, now);
				shca_qp_flush(qp, now);
			}
			shca_qp_unlock(qp);
		}
		shca_qp_put(qp);
	}
}

/* Packets */

/* What one round of receiving has done so far. */
struct rx_round {
	struct engine *e;
	uint64_t now;
	struct shca_qp *cur; /* locked: the QP of the last packet */
	size_t n;
	struct shca_qp *touched[TOUCHED_MAX]; /* may have something to send */
};

static void round_release(struct rx_round *r)
{
	if (r->cur)
		shca_qp_unlock(r->cur);
	r->cur = NULL;
}

static void round_end(struct rx_round *r)
{
	size_t i;

	for (i = 0; i < r->n; i++) {
		struct shca_qp *qp = r->touched[i];

		if (qp != r->cur) {
			round_release(r);
			if (shca_qp_trylock(qp))
				r->cur = qp;
		}
		if (r->cur && !qp->dead)
			shca_qp_flush(qp, r->now);
		round_release(r);
		shca_qp_put(qp);
	}
	r->n = 0;
}

/*
 * Hands a packet to its QP, whose lock is kept over a run of packets unless
 * somebody waits for it.
 */
static void round_rx(struct rx_round *r, struct shca_qp *qp,
		     const struct roce_rx *pkt)
{
	bool deferred = false;
	size_t i;

	if (r->cur != qp || shca_qp_wanted(qp)) {
		round_release(r);
		if (!shca_qp_trylock(qp)) {
			deferred = true;
			if (!shca_qp_defer(qp, pkt))
				return;
		}
		for (i = 0; i < r->n && r->touched[i] != qp; i++)
			;
		if (i == r->n) {
			if (r->n == TOUCHED_MAX)
				round_end(r);
			shca_qp_get(qp);
			r->touched[r->n++] = qp;
		}
		r->cur = qp;
	}
	if (!deferred && !qp->dead)
		shca_qp_rx(qp, pkt, r->now);
}

static struct shca_qp *qpn_find(struct engine *e, uint32_t qpn)
{
	struct qpn_chunk *c = atomic_load_explicit(
		&e->chunk[qpn / REGISTRY_CHUNK], memory_order_acquire);

	return c ? atomic_load_explicit(&c->qp[qpn % REGISTRY_CHUNK],
					memory_order_acquire)
		 : NULL;
}

static void count_drop(_Atomic uint64_t *n)
{
	atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

void engine_dropped(struct engine *e, enum roce_drop why)
{
	count_drop(&e->dropped[why]);
}

static void rx(void *arg, const struct roce_rx *pkt)
{
	struct rx_round *r = arg;
	struct roce_rx inner;
	struct shca_qp *qp;
	uint32_t about;

	if (pkt->h.dest_qpn == ROCE_MULTICAST_QPN) {
		round_release(r);
		if (!shca_mcast_rx(r->e, pkt, r->now))
			count_drop(&r->e->no_qp);
		return;
	}
	if (pkt->h.dest_qpn == 1) {
		round_release(r);
		gsi_rx(r->e, pkt, r->now);
		return;
	}
	if (!pkt->h.dest_qpn && (about = shca_loan_about(pkt))) {
		round_release(r);
		qp = qpn_find(r->e, about);
		qp = shca_loan_word(r->e, pkt, &inner, qp, r->now);
		if (qp)
			round_rx(r, qp, &inner);
		return;
	}
	if (r->cur && shca_qpn(r->cur) == pkt->h.dest_qpn &&
	    !shca_xrc_is_guest(r->cur))
		qp = r->cur;
	else
		qp = qpn_find(r->e, pkt->h.dest_qpn & 0xffffff);
	if (qp)
		round_rx(r, qp, pkt);
	else if (shca_timewait_rx(r->e, pkt, r->now))
		engine_dropped(r->e, ROCE_DROP_DUPLICATE);
	else
		count_drop(&r->e->no_qp);
}

/* What packets were dropped for, since the beginning, in one line. */
static void drops_explain(struct engine *e)
{
	static const char *const names[ROCE_DROPS] = {
		[ROCE_DROP_OPCODE] = "unexpected opcode",
		[ROCE_DROP_HEADER] = "version or P_Key",
		[ROCE_DROP_STATE] = "QP does not receive",
		[ROCE_DROP_ADDRESS] = "not from the QP's peer",
		[ROCE_DROP_DUPLICATE] = "duplicate",
		[ROCE_DROP_GAP] = "PSN ahead of the one due",
		[ROCE_DROP_REFUSED] = "invalid or refused request",
		[ROCE_DROP_QKEY] = "Q_Key or datagram length",
		[ROCE_DROP_NO_RECV] = "no receive posted",
	};
	const struct udp_stats *s = udp_stats(e->udp);
	uint64_t n[4 + ROCE_DROPS] = { s->rx_malformed, s->rx_bad_icrc,
				       s->rx_overflow, atomic_load(&e->no_qp) };
	const char *what[4 + ROCE_DROPS] = { "malformed", "bad ICRC",
					     "socket buffer full",
					     "no such QP" };
	uint64_t sum = 0;
	char line[1024];
	int len;

	for (size_t i = 0; i < ROCE_DROPS; i++) {
		n[4 + i] = atomic_load(&e->dropped[i]);
		what[4 + i] = names[i];
	}
	for (size_t i = 0; i < 4 + ROCE_DROPS; i++)
		sum += n[i];
	if (atomic_exchange(&e->drops_told, sum) == sum)
		return;
	len = snprintf(line, sizeof(line),
		       "process %d: %" PRIu64 " packets received, %" PRIu64
		       " dropped",
		       (int)getpid(), s->rx_pkts + n[0] + n[1], sum);
	for (size_t i = 0; i < 4 + ROCE_DROPS; i++)
		if (n[i])
			len += snprintf(line + len, sizeof(line) - (size_t)len,
					"%s %s %" PRIu64,
					len && line[len - 1] == 'd' ? ":" : ",",
					what[i], n[i]);
	say("%s", line);
}

/* Now and then while it happens, for processes that do not end. */
static void drops_tell(struct engine *e, uint64_t now)
{
	uint64_t due =
		atomic_load_explicit(&e->drops_due, memory_order_relaxed);

	if (now >= due &&
	    atomic_compare_exchange_strong(&e->drops_due, &due, now + DROPS_NS))
		drops_explain(e);
}

static int progress(struct engine *e, uint64_t now)
{
	struct rx_round r;
	int n;

	r.e = e;
	r.now = now;
	r.cur = NULL;
	r.n = 0;
	n = udp_poll(e->udp, RX_BUDGET, rx, &r);
	if (n != -EBUSY)
		presence_unblocked(&e->presence);
	round_end(&r);
	if (timers_due(e, now))
		timers_run(e, now);
	if (n >= 0 && n < RX_BUDGET &&
	    atomic_load_explicit(&e->nheld, memory_order_relaxed))
		shca_guest_settle(e, now);
	if (e->cfg->explain)
		drops_tell(e, now);
	return n;
}

/* Those who poll, and the thread */

static void step_back(struct engine *e)
{
	struct epoll_event ev = { .events = 0, .data.fd = udp_fd(e->udp) };

	pthread_mutex_lock(&e->thread_lock);
	if (!presence_is_back(&e->presence) &&
	    epoll_ctl(e->epoll_fd, EPOLL_CTL_MOD, ev.data.fd, &ev) == 0) {
		presence_step_back(&e->presence, clock_ns());
		wake(e); /* so that it begins to look now and then */
	}
	pthread_mutex_unlock(&e->thread_lock);
}

static void step_forward(struct engine *e, uint64_t now)
{
	struct epoll_event ev = { .events = EPOLLIN,
				  .data.fd = udp_fd(e->udp) };

	pthread_mutex_lock(&e->thread_lock);
	if (presence_step_forward(&e->presence, now))
		epoll_ctl(e->epoll_fd, EPOLL_CTL_MOD, ev.data.fd, &ev);
	pthread_mutex_unlock(&e->thread_lock);
}

int engine_poll(struct engine *e, bool armed)
{
	uint64_t from = clock_ns(), until = from;
	int n;

	n = progress(e, from);
	if (n > 0) {
		until = clock_ns();
	} else if (n == -EBUSY && presence_blocked(&e->presence, from)) {
		udp_poll_wait(e->udp);
		presence_unblocked(&e->presence);
	}
	if (presence_polled(&e->presence, from, until, armed) &&
	    atomic_load_explicit(&e->started, memory_order_relaxed))
		step_back(e);
	return n;
}

void engine_watch(struct engine *e)
{
	uint64_t now;

	if (!presence_is_back(&e->presence))
		return;
	now = clock_ns();
	presence_sleeps(&e->presence, now);
	step_forward(e, now);
}

static void sleep_until(struct engine *e, uint64_t until,
			struct epoll_event *ev, int max, int *n)
{
	static _Atomic bool no_pwait2;
	uint64_t now = clock_ns();
	uint64_t ns = until > now ? until - now : 0;
	struct timespec ts = { .tv_sec = (time_t)(ns / 1000000000),
			       .tv_nsec = (long)(ns % 1000000000) };
	int ms = -1;

	if (!atomic_load(&no_pwait2)) {
		*n = epoll_pwait2(e->epoll_fd, ev, max,
				  until == UINT64_MAX ? NULL : &ts, NULL);
		if (*n >= 0 || errno == EINTR)
			return;
		/* Linux before 5.11, and some sandboxes. */
		atomic_store(&no_pwait2, true);
	}
	if (until != UINT64_MAX)
		ms = ns > 3600000000000 ? 3600000
					: (int)((ns + 999999) / 1000000);
	*n = epoll_wait(e->epoll_fd, ev, max, ms);
}

static void device_event(struct engine *e, struct shca_device *dev,
			 enum ibv_event_type type)
{
	const struct ibv_async_event ev = { .event_type = type,
					    .element.port_num = 1 };
	struct shca_context *ctx;

	for (ctx = e->contexts; ctx; ctx = ctx->next)
		if (ctx->dev == dev)
			shca_async_raise(ctx, &ev);
}

/* Under ctx_lock, so that no change goes unnoticed by a context. */
static void rescan(struct engine *e, struct shca_device *dev)
{
	bool was = shca_device_active(dev), is;

	if (!shca_device_rescan(dev, e))
		return;
	is = shca_device_active(dev);
	device_event(e, dev, IBV_EVENT_GID_CHANGE);
	if (was != is)
		device_event(e, dev,
			     is ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void engine_context_add(struct engine *e, struct shca_context *ctx)
{
	pthread_mutex_lock(&e->ctx_lock);
	rescan(e, ctx->dev);
	ctx->next = e->contexts;
	e->contexts = ctx;
	pthread_mutex_unlock(&e->ctx_lock);
}

static void netdevs_changed(struct engine *e)
{
	struct shca_context *ctx, *other;

	if (!netdev_changed(e->netdev_fd))
		return;
	pthread_mutex_lock(&e->ctx_lock);
	for (ctx = e->contexts; ctx; ctx = ctx->next) {
		/* Contexts of one device share its table: read it once. */
		for (other = e->contexts; other->dev != ctx->dev;)
			other = other->next;
		if (other == ctx)
			rescan(e, ctx->dev);
	}
	pthread_mutex_unlock(&e->ctx_lock);
	gsi_netdevs_changed(e);
}

/*
 * Asks for short slices. Where programs spin on every CPU, a thread that is
 * woken must preempt one at once; the scheduler (EEVDF, Linux 6.12) lets a
 * thread with a shorter slice do so, others wait for a tick or more.
 */
static void thread_slice(void)
{
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attr = { .size = sizeof(attr), .runtime = SLICE_NS };
	int nice;

	errno = 0;
	nice = getpriority(PRIO_PROCESS, 0);
	if (errno || sched_getscheduler(0) != SCHED_OTHER)
		return;
	attr.nice = nice;
	/* Without it things are slower at times, not wrong. */
	if (syscall(SYS_sched_setattr, 0, &attr, 0))
		return;
}

static void *thread_main(void *arg)
{
	struct engine *e = arg;
	uint64_t pause = PAUSE_MIN_NS;

	pthread_setname_np(pthread_self(), "softhca");
	prctl(PR_SET_TIMERSLACK, 1000);
	thread_slice();
	while (!atomic_load(&e->stop)) {
		struct epoll_event ev[4];
		uint64_t now, due, until = UINT64_MAX;
		int i, n, round;

		/*
		 * First announce to sleep for good, then look at the timers:
		 * whoever sets one either is seen here or sees that.
		 */
		atomic_store(&e->sleep_until, UINT64_MAX);
		due = min_u64(atomic_load(&e->next_due),
			      atomic_load(&e->cm_due));
		due = min_u64(due, atomic_load(&e->timewait_due));
		if (presence_is_back(&e->presence))
			until = clock_ns() + pause;
		if (due < until)
			until = due;
		atomic_store(&e->sleep_until, until);
		sleep_until(e, until, ev, 4, &n);
		atomic_store(&e->sleep_until, 0);

		for (i = 0; i < n; i++) {
			uint64_t count;

			if (ev[i].data.fd == udp_fd(e->udp))
				continue;
			if (ev[i].data.fd == e->netdev_fd)
				netdevs_changed(e);
			else if (ev[i].data.fd != e->wake_fd)
				shca_cq_late(e, ev[i].data.fd);
			else if (sys_read(e->wake_fd, &count, sizeof(count)) <
				 0)
				continue;
		}
		now = clock_ns();
		if (presence_is_back(&e->presence)) {
			if (!presence_idle(&e->presence, now)) {
				pause = pause * 2 > PAUSE_MAX_NS ? PAUSE_MAX_NS
								 : pause * 2;
				if (timers_due(e, now))
					timers_run(e, now);
				continue;
			}
			step_forward(e, now);
		}
		pause = PAUSE_MIN_NS;
		for (round = 0; round < THREAD_ROUNDS; round++) {
			n = progress(e, now);
			if (n <= 0)
				break;
			now = clock_ns();
		}
		/* Someone else is at it: epoll would say so over and over. */
		if (n == -EBUSY)
			udp_poll_wait(e->udp);
	}
	return NULL;
}

int engine_watch_fd(struct engine *e, int fd)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.fd = fd };

	return epoll_ctl(e->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

void engine_unwatch_fd(struct engine *e, int fd)
{
	/* To close it would not do where a child has a copy. */
	epoll_ctl(e->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static int add_tls(struct dl_phdr_info *info, size_t size, void *arg)
{
	size_t *sum = arg;

	(void)size;
	for (size_t i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_TLS)
			*sum += info->dlpi_phdr[i].p_memsz +
				info->dlpi_phdr[i].p_align;
	return 0;
}

/* A stack begins with the static TLS of the program and its libraries. */
static size_t stack_size(void)
{
	size_t size = STACK_BYTES;

	dl_iterate_phdr(add_tls, &size);
	return size;
}

/* Few would guess it from the errno of ibv_modify_qp(), or look there. */
static void say_no_thread(int err)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		say("cannot start the thread that receives packets while the "
		    "program does not poll: %s; %s",
		    strerror(err),
		    err == EAGAIN ? "raise the limit on threads (ulimit -u; "
				    "in a container, its pids limit)"
				  : "allow threads (seccomp), and memory for "
				    "a stack");
}

int engine_bind(struct engine *e, const union ibv_gid *gid, uint32_t ifindex)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int err = udp_bind(e->udp, gid, ifindex);
	const char *why = udp_why(e->udp);

	/*
	 * Nobody would guess from an errno, or from a peer that does not
	 * answer, that someone else has the port. Once is enough.
	 */
	if (!*why || atomic_flag_test_and_set(&said))
		return err;
	if (err && err != -EADDRINUSE)
		say("cannot use UDP port %d: %s", ROCE_UDP_PORT, why);
	else
		say("%s. Stop that process, use another address (softhca run "
		    "--addr), or use a network namespace of your own (unshare "
		    "-Urn, then ip link set lo up)",
		    why);
	return err;
}

int engine_start(struct engine *e)
{
	static const int faults[] = { SIGSEGV, SIGBUS,  SIGFPE,
				      SIGILL,  SIGTRAP, SIGSYS };
	pthread_attr_t attr;
	sigset_t set, old;
	size_t i;
	int err = 0;

	if (atomic_load(&e->started))
		return 0;
	pthread_mutex_lock(&e->thread_lock);
	if (atomic_load(&e->started))
		goto out;
	/*
	 * Signals are for the program's threads, but for those of the thread's
	 * own faults: a program may catch writes to memory that it protects,
	 * and what is blocked then kills.
	 */
	sigfillset(&set);
	for (i = 0; i < ARRAY_SIZE(faults); i++)
		sigdelset(&set, faults[i]);
	pthread_sigmask(SIG_SETMASK, &set, &old);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, stack_size());
	err = -pthread_create(&e->thread, &attr, thread_main, e);
	pthread_attr_destroy(&attr);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err)
		say_no_thread(-err);
	else
		atomic_store(&e->started, true);
out:
	pthread_mutex_unlock(&e->thread_lock);
	return err;
}

/* QP numbers */

static int chunk_lease(struct engine *e)
{
	struct qpn_chunk *c;
	uint32_t i;
	int first;

	if (e->registry) {
		first = registry_lease(e->registry);
		if (first < 0)
			return first;
	} else {
		/* Alone: any chunk will do, but not the one that the next
		 * process takes, in case a peer remembers this one. */
		do {
			if (e->nowned > REGISTRY_CHUNKS / 2)
				return -ENOSPC;
			if (!sys_random(&i, sizeof(i)))
				return -EIO;
			i = 1 + i % (REGISTRY_CHUNKS - 2);
		} while (atomic_load(&e->chunk[i]));
		first = (int)(i * REGISTRY_CHUNK);
	}
	i = (uint32_t)first / REGISTRY_CHUNK;
	c = calloc(1, sizeof(*c));
	if (!c) {
		if (e->registry)
			registry_release(e->registry, (uint32_t)first);
		return -ENOMEM;
	}
	c->first = (uint32_t)first;
	atomic_store_explicit(&e->chunk[i], c, memory_order_release);
	e->owned[e->nowned++] = i;
	return 0;
}

static struct qpn_chunk *chunk_with(struct engine *e, uint32_t room)
{
	uint32_t i;

	for (i = 0; i < e->nowned; i++) {
		struct qpn_chunk *c = atomic_load(&e->chunk[e->owned[i]]);

		if (REGISTRY_CHUNK - c->used >= room)
			return c;
	}
	return NULL;
}

int engine_qpn_alloc(struct engine *e, struct shca_qp *qp)
{
	struct qpn_chunk *c;
	int err = 0;

	pthread_mutex_lock(&e->qpn_lock);
	/* Leave room so that a number comes back late. */
	c = chunk_with(e, REGISTRY_CHUNK / 4);
	if (!c) {
		err = chunk_lease(e);
		c = chunk_with(e, 1);
	}
	if (c) {
		err = 0;
		do {
			c->cursor = (c->cursor + 1) % REGISTRY_CHUNK;
		} while (atomic_load(&c->qp[c->cursor]));
		qp->ex.qp_base.qp_num = c->first + c->cursor;
		c->used++;
		atomic_store_explicit(&c->qp[c->cursor], qp,
				      memory_order_release);
	}
	pthread_mutex_unlock(&e->qpn_lock);
	return err;
}

int engine_number(struct engine *e, uint32_t n, uint32_t *num)
{
	uint32_t i = n / REGISTRY_CHUNK;
	int err = 0;

	pthread_mutex_lock(&e->qpn_lock);
	while (!err && i >= e->nowned)
		err = chunk_lease(e);
	if (!err)
		*num = e->owned[i] * REGISTRY_CHUNK + n % REGISTRY_CHUNK;
	pthread_mutex_unlock(&e->qpn_lock);
	return err;
}

void engine_qpn_free(struct engine *e, struct shca_qp *qp)
{
	struct qpn_chunk *c =
		atomic_load(&e->chunk[shca_qpn(qp) / REGISTRY_CHUNK]);

	pthread_mutex_lock(&e->qpn_lock);
	atomic_store(&c->qp[shca_qpn(qp) % REGISTRY_CHUNK], NULL);
	c->used--;
	pthread_mutex_unlock(&e->qpn_lock);
	udp_poll_wait(e->udp);
}

/* What the protocol core asks for (roce/env.h) */

static int env_complete(struct qp *core, void *cq, const struct ibv_wc *wc,
			bool solicited)
{
	(void)core;
	return shca_cq_add(cq, wc, solicited);
}

static int env_srq_take(struct qp *core, void *srq, uint64_t room,
			struct qp_recv *out)
{
	(void)core;
	return shca_srq_take(srq, room, out);
}

static bool env_unread(struct qp *core, uint64_t mark[2])
{
	const struct shca_qp *qp = core->owner;

	return udp_unread(qp->engine->udp, roce_qp_path(roce_qp(core)),
			  roce_qp_dest(roce_qp(core)), mark);
}

static void env_event(struct qp *core, enum ibv_event_type type)
{
	struct shca_qp *qp = core->owner;
	struct ibv_async_event ev = { .event_type = type,
				      .element.qp = &qp->ex.qp_base };

	if (qp->xrc)
		shca_xrc_event(qp, &ev);
	else
		shca_async_raise(to_ctx(qp->ex.qp_base.context), &ev);
}

static void env_dropped(struct qp *core, enum roce_drop why)
{
	struct shca_qp *qp = core->owner;

	engine_dropped(qp->engine, why);
}

void engine_explain(struct qp *core, const char *fmt, ...)
{
	const struct roce_path *path = roce_qp_path(roce_qp(core));
	char line[512], peer[INET6_ADDRSTRLEN + 16] = "";
	va_list ap;

	if (core->type != IBV_QPT_UD && path &&
	    core->state >= IBV_QPS_RTR) {
		bool v4 = roce_gid_is_v4(&path->dgid);

		inet_ntop(v4 ? AF_INET : AF_INET6,
			  path->dgid.raw + (v4 ? 12 : 0), peer, sizeof(peer));
	}
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (peer[0])
		say("QP 0x%06x (peer %s QP 0x%06x): %s", core->qpn,
		    peer, roce_qp_dest(roce_qp(core)), line);
	else
		say("QP 0x%06x: %s", core->qpn, line);
}

/* Beginning and end */

static int keys_create(struct engine *e)
{
	uint32_t count = KEYS_MAX;
	uint64_t seed[4];
	void *mem;

	if (!sys_random(seed, sizeof(seed)))
		return -EIO;
	e->id = seed[2];
	atomic_store(&e->next_srqn, (uint32_t)seed[3]);
	/* Untouched slots cost nothing, unless memory is not overcommitted. */
	for (; count >= KEYS_MIN; count /= 2) {
		e->keys_size = count * sizeof(struct key_entry);
		mem = mmap(NULL, e->keys_size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (mem != MAP_FAILED) {
			keys_init(&e->keys, mem, count, seed);
			return 0;
		}
	}
	return -ENOMEM;
}

static void fds_close(struct engine *e)
{
	if (e->epoll_fd >= 0)
		sys_close(e->epoll_fd);
	if (e->wake_fd >= 0)
		sys_close(e->wake_fd);
	if (e->netdev_fd >= 0)
		sys_close(e->netdev_fd);
	e->epoll_fd = e->wake_fd = e->netdev_fd = -1;
}

static int fds_open(struct engine *e)
{
	int err;

	e->epoll_fd = fd_aside(epoll_create1(EPOLL_CLOEXEC));
	e->wake_fd = fd_aside(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (e->epoll_fd < 0 || e->wake_fd < 0)
		return -errno;
	err = engine_watch_fd(e, e->wake_fd);
	if (!err)
		err = engine_watch_fd(e, udp_fd(e->udp));
	/* Without it addresses are read when a device is opened, only. */
	if (!err && e->netdev_fd >= 0)
		err = engine_watch_fd(e, e->netdev_fd);
	return err;
}

static void thread_end(struct engine *e)
{
	int state;

	atomic_store(&e->stop, true);
	wake(e);
	/* A cancellation point, and there is a lock held. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	pthread_join(e->thread, NULL);
	pthread_setcancelstate(state, NULL);
}

static void engine_destroy(struct engine *e)
{
	uint32_t i;

	if (atomic_load(&e->started))
		thread_end(e);
	gsi_destroy(e);
	shca_timewait_fini(e);
	fds_close(e);
	if (e->udp && e->cfg->explain)
		drops_explain(e);
	if (e->udp)
		udp_destroy(e->udp);
	for (i = 0; i < e->nowned; i++)
		free(atomic_load(&e->chunk[e->owned[i]]));
	if (e->registry)
		registry_leave(e->registry);
	if (e->pcap)
		pcap_flush(e->pcap);
	if (e->keys.entry)
		munmap(e->keys.entry, e->keys_size);
	free(e->heap);
	free(e);
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&engine_lock);
	shca_live_hold();
}

static void fork_parent(void)
{
	shca_live_release();
	pthread_mutex_unlock(&engine_lock);
}

/*
 * The child has none of the threads, and locks in any state. What the parent
 * made is left alone and leaks; the child may open devices of its own.
 */
static void fork_child(void)
{
	struct engine *e = engine;

	pthread_mutex_init(&engine_lock, NULL);
	shca_live_release();
	shca_device_forked();
	pcap_close(recording);
	recording = NULL;
	engine = NULL;
	if (!e)
		return;
	atomic_store(&e->dead, true);
	fds_close(e);
	if (e->udp)
		udp_abandon(e->udp);
	if (e->registry)
		registry_abandon(e->registry);
}

static void fork_register(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/*
 * Where there is no registry the process is alone, which is enough for many.
 * One whose lock cannot be had is there: the others would not find us.
 */
static int join_host(struct engine *e)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const char *why;
	int err = registry_join(&e->registry, e->cfg->rundir, &why);

	if (!err)
		return 0;
	e->registry = NULL;
	if (err == -ETIMEDOUT || !atomic_flag_test_and_set(&said))
		say("%s%s", why,
		    err == -ETIMEDOUT ? ""
				      : "; continuing without the other "
					"processes of this host");
	return err == -ETIMEDOUT ? err : 0;
}

static int engine_create(struct engine **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct config *cfg = config_get();
	struct udp_config link = { .wire = cfg->wire,
				   .loss = cfg->loss,
				   .seed = cfg->seed };
	struct engine *e = aligned_alloc(64, sizeof(*e));
	int err;

	if (!e)
		return -ENOMEM;
	memset(e, 0, sizeof(*e));
	e->cfg = cfg;
	e->epoll_fd = e->wake_fd = e->netdev_fd = -1;
	pthread_mutex_init(&e->keys_lock, NULL);
	pthread_mutex_init(&e->qpn_lock, NULL);
	pthread_mutex_init(&e->attach_lock, NULL);
	pthread_mutex_init(&e->mcast_lock, NULL);
	pthread_mutex_init(&e->xrc_lock, NULL);
	pthread_mutex_init(&e->guests_lock, NULL);
	pthread_mutex_init(&e->late_lock, NULL);
	pthread_mutex_init(&e->timewait_lock, NULL);
	pthread_mutex_init(&e->ctx_lock, NULL);
	pthread_mutex_init(&e->timer_lock, NULL);
	pthread_mutex_init(&e->thread_lock, NULL);
	presence_init(&e->presence);
	atomic_store(&e->next_due, UINT64_MAX);
	atomic_store(&e->cm_due, UINT64_MAX);
	atomic_store(&e->timewait_due, UINT64_MAX);
	e->env = (struct roce_env){
		.base.keys = &e->keys,
		.base.complete = env_complete,
		.base.srq_take = env_srq_take,
		.xrc_srq_take = shca_xrc_env_take,
		.xrc_pd = shca_xrc_env_pd,
		.base.invalidate = shca_mw_env_invalidate,
		.base.bind_mw = shca_mw_env_bind,
		.base.guarded = guard_run,
		.base.odp_touch = shca_odp_touch,
		.base.odp_store = shca_odp_store,
		.unread = env_unread,
		.base.event = env_event,
		.dropped = env_dropped,
		.base.explain = cfg->explain ? engine_explain : NULL,
	};

	err = keys_create(e);
	if (err)
		goto err;
	if (cfg->pcap && !recording) {
		err = pcap_open(&recording, cfg->pcap);
		if (err)
			say("cannot write %s: %s", cfg->pcap,
			    err == -EBUSY
				    ? "another process writes to this FIFO; "
				      "with %p in the name each process has "
				      "its own"
				    : strerror(-err));
	}
	link.pcap = e->pcap = recording;
	err = join_host(e);
	if (err)
		goto err;
	/* After the registry's own handlers, whose lock fork_child() takes. */
	pthread_once(&once, fork_register);
	err = udp_create(&e->udp, &link, e->registry);
	if (err)
		goto err;
	e->netdev_fd = netdev_watch_fd();
	err = fds_open(e);
	if (err)
		goto err;
	err = gsi_create(e);
	if (err)
		goto err;
	*out = e;
	return 0;
err:
	engine_destroy(e);
	return err;
}

int engine_get(struct engine **e)
{
	int err = 0;

	pthread_mutex_lock(&engine_lock);
	if (!engine)
		err = engine_create(&engine);
	if (!err) {
		engine->refs++;
		*e = engine;
	}
	pthread_mutex_unlock(&engine_lock);
	return err;
}

void engine_put(struct engine *e)
{
	bool lingered = false;

	pthread_mutex_lock(&engine_lock);
	while (e->refs == 1 && !lingered) {
		pthread_mutex_unlock(&engine_lock);
		shca_timewait_linger(e, false);
		lingered = true;
		pthread_mutex_lock(&engine_lock);
	}
	if (!--e->refs) {
		engine_destroy(e);
		engine = NULL;
	}
	pthread_mutex_unlock(&engine_lock);
}

/* Programs seldom close everything before they exit. */
__attribute__((destructor)) static void engine_exit(void)
{
	if (!engine)
		return;
	shca_timewait_linger(engine, true);
	gsi_farewell(engine);
	if (engine->cfg->explain)
		drops_explain(engine);
	if (engine->pcap)
		pcap_flush(engine->pcap);
}
