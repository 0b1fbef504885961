/*
 * migrate.c - a process is suspended, and goes on
 *
 * Everything that refers to the kernel or to other processes is given back:
 * sockets, the segment, the slot in the registry, descriptors that tell of changes.
 * What is left is memory, and descriptors that anybody can carry (eventfds, timers,
 * files). Each part that has something to give back knows how (..._away()), and how
 * to get it again (..._back()); here is the order.
 */
#include "softhca/migrate.h"

#include "migrate.h"

#include "connect/gsi.h"
#include "connect/moving.h"
#include "hooks/trace.h"
#include "net/announce.h"
#include "numbers.h"
#include "os/report.h"
#include "process/parts.h"
#include "process/process.h"
#include "segment/segment.h"
#include "verbs/readdress.h"
#include "verbs/verbs.h"
#include "xrc/lease.h"

#include "base/say.h"
#include "base/sys.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

/* How long what is on its way within the host may take to arrive, and what was
 * sent by those who had not seen yet that we are gone. */
#define DRAIN_NS 100000000u
#define LATE_NS 1000000u
/* How long nothing is sent from a new address before the peer has said that it
 * knows it. */
#define KNOWN_NS 2000000000u
/* How long it may take to prove where the peers' addresses lead. */
#define PROVE_NS 300000000u

static struct {
	pthread_mutex_t lock;
	struct engine *e; /* NULL: not suspended */
	bool stat;
	int *seat; /* who asks for one */
	unsigned seconds; /* that peers are asked to wait; 0: they are not */
	bool told; /* some have been */
	struct migrate_stop stop;
	uint64_t stood_ns; /* CLOCK_REALTIME when our clock was stopped */
	struct shca_moved moved; /* of our addresses */
	struct numbers numbers;
	char why[600];
} it = { .lock = PTHREAD_MUTEX_INITIALIZER };

__attribute__((format(printf, 2, 3))) static int fail(int err, const char *fmt,
						      ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(it.why, sizeof(it.why), fmt, ap);
	va_end(ap);
	return err;
}

/* Queue pairs */

static void stop_qp(struct engine_qp *sched, void *arg)
{
	(void)arg;
	shca_remote_forget(sched_qp(sched));
}

/* Whether it is another one by now. */
static bool readdress_path(struct roce_path *path)
{
	const int i = shca_moved_find(&it.moved, &path->sgid, path->sgid_scope);

	if (i >= 0) {
		path->sgid = it.moved.at[i].to.gid;
		path->sgid_scope = it.moved.at[i].to.ifindex;
	}
	return i >= 0;
}

static void readdress_bound(struct shca_qp *qp)
{
	struct shca_bound *b = &qp->bound;
	const int i =
		b->is ? shca_moved_find(&it.moved, &b->gid, b->ifindex) : -1;

	if (i < 0)
		return;
	b->gid = it.moved.at[i].to.gid;
	b->ifindex = it.moved.at[i].to.ifindex;
}

static void place_qp(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = sched_qp(sched);
	struct engine *e = arg;
	struct roce_path path;
	int i;

	readdress_bound(qp);
	if (!shca_qp_is_roce(qp))
		return;
	path = *roce_qp_path(roce_qp(qp->core));
	if (qp->core->state < IBV_QPS_RTR || qp->core->type == IBV_QPT_UD)
		return;
	/* Until the peer knows where it comes from, and does not answer others. */
	if ((readdress_path(&path) || qp->sched.num != shca_qpn(qp)) &&
	    it.told && moving_tells(e, qp->sched.num))
		roce_qp_pause(roce_qp(qp->core), clock_ns() + KNOWN_NS,
			      clock_ns());
	i = shca_moved_find(&it.moved, &path.dgid, path.sgid_scope);
	if (i >= 0 && engine_has_qp(e, roce_qp_dest(roce_qp(qp->core))))
		path.dgid = it.moved.at[i].to.gid;
	shca_path_place(&path);
	roce_qp_moved(roce_qp(qp->core), &path);
	/* The peer's ports may be others by now. */
	qp->sport = 0;
}

static void place_ah(void *ah, void *arg)
{
	(void)arg;
	readdress_path(&to_ah(ah)->path);
	shca_path_place(&to_ah(ah)->path);
}

/* A peer in another network namespace of this host is found by shared memory again
 * if its address leads there, as when it was connected. One that does not answer
 * costs time, which all of them share. */

struct proving {
	struct engine *e;
	uint64_t begin_ns;
};

static bool has_time(const struct proving *p)
{
	return sys_now_ns() - p->begin_ns < PROVE_NS;
}

static void prove_qp(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = sched_qp(sched);
	const struct proving *p = arg;
	struct roce_path path;

	if (!shca_qp_is_roce(qp) || !has_time(p) ||
	    (qp->core->type != IBV_QPT_RC && qp->core->type != IBV_QPT_UC) ||
	    qp->core->state < IBV_QPS_RTR)
		return;
	path = *roce_qp_path(roce_qp(qp->core));
	shca_path_prove(p->e, &path, roce_qp_dest(roce_qp(qp->core)));
	if (path.net)
		roce_qp_moved(roce_qp(qp->core), &path);
}

static void prove_ah(void *ah, void *arg)
{
	const struct proving *p = arg;

	if (has_time(p))
		shca_path_prove(p->e, &to_ah(ah)->path, 0);
}

static void prove_all(struct engine *e)
{
	struct proving p = { e, sys_now_ns() };

	engine_qps_each(e, prove_qp, &p);
	shca_live_each(e, SHCA_AH, prove_ah, &p);
}

static void go_on(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = sched_qp(sched);

	(void)arg;
	shca_remote_forget(qp); /* it may look for its peer at once */
	qp->ops->flush(qp->core, clock_ns(), true);
}

/* The parts, as they go; they come back in the reverse order. 0 or -errno. */

static int leases_away(struct shca_process *p)
{
	uint32_t qpn = 0;
	bool ours = false;
	int err = shca_leases_away(&p->engine, &qpn, &ours);

	if (err == -EBUSY)
		return fail(err,
			    "queue pair 0x%06x of an XRC domain is lent %s "
			    "another process of this host in the middle of a "
			    "message that does not end: its sender has "
			    "stopped; try again, or destroy the queue pair",
			    qpn, ours ? "to" : "by");
	if (!err)
		shca_domains_away(&p->engine);
	return err;
}

static int leases_back(struct shca_process *p)
{
	shca_domains_back(&p->engine);
	shca_leases_back(&p->engine);
	return 0;
}

static int sending_away(struct shca_process *p)
{
	struct engine *e = &p->engine;
	int err;

	err = engine_halt(e, stop_qp, NULL);
	/* Who sends for the connection manager holds no queue pair's lock. */
	if (!err && !gsi_quiesce(e))
		err = fail(-EBUSY, "a thread has been sending a message of the "
				   "connection manager for 0.2 s: try again");
	return err;
}

/* Peers that are told nothing find it by its address. */
static void announce(void)
{
	int err = 0;

	for (size_t i = 0; i < it.moved.nnews; i++)
		err = err ?: netdev_announce(&it.moved.news[i]);
	it.moved.nnews = 0;
	if (err)
		say("neighbours are not told that this process's addresses are "
		    "on other hardware now (%s; CAP_NET_RAW is needed): they "
		    "may take seconds to notice",
		    sys_strerror(-err));
}

static int sending_back(struct shca_process *p)
{
	struct engine *e = &p->engine;
	int err;

	announce();
	prove_all(e);
	err = engine_go(e, go_on, NULL);
	if (err)
		return err;
	if (it.told)
		moving_resume(e);
	it.told = false;
	shca_cm_lock(e);
	shca_cm_unlock(e); /* sends what it has to send */
	gsi_netdevs_changed(e);
	return 0;
}

/* Neither UC nor UD loses what was sent within the host. */
static int receiving_away(struct shca_process *p)
{
	struct engine *e = &p->engine;

	engine_drain(e, DRAIN_NS);
	if (p->segment) {
		registry_show(e->registry, 0);
		sys_sleep(LATE_NS);
		engine_drain(e, DRAIN_NS);
	}
	return engine_rest(e);
}

static int receiving_back(struct shca_process *p)
{
	/* Where its segment has not been away (all_away()). */
	if (p->segment)
		registry_show(p->engine.registry, segment_head(p->segment)->id);
	return 0;
}

static int stat_away(struct shca_process *p)
{
	it.stat = shca_stat_away(&p->engine);
	return 0;
}

static int stat_back(struct shca_process *p)
{
	if (it.stat)
		shca_stat_begin(&p->engine);
	return 0;
}

static int shared_away(struct shca_process *p)
{
	int err;

	if (!p->segment)
		return 0;
	err = segment_prepare(p->segment);
	if (err)
		return fail(err, "%s", segment_why());
	engine_suspend_links(&p->engine, LINK_LEAVES);
	/* Tables that point there. */
	pthread_mutex_lock(&p->memory.lock);
	segment_away(p->segment);
	pthread_mutex_unlock(&p->memory.lock);
	engine_suspend_links(&p->engine, LINK_IS_GONE);
	return 0;
}

static int shared_back(struct shca_process *p)
{
	int err;

	if (!p->segment)
		return 0;
	pthread_mutex_lock(&p->memory.lock);
	err = segment_back(p->segment);
	pthread_mutex_unlock(&p->memory.lock);
	return err ? fail(err, "%s", segment_why()) : 0;
}

static int sockets_away(struct shca_process *p)
{
	udp_away(p->engine.udp);
	return 0;
}

static int no_address(void)
{
	return fail(-EADDRNOTAVAIL,
		    "an address that this process receives at is none of this "
		    "host's, and there is no new one of its kind: give it to "
		    "an interface first");
}

static int sockets_back(struct shca_process *p)
{
	int err = udp_back(p->engine.udp);

	if (err == -EADDRNOTAVAIL)
		return no_address();
	return err ? fail(err, "cannot open the sockets again: %s%s%s",
			  sys_strerror(-err),
			  *udp_why(p->engine.udp) ? "; " : "",
			  udp_why(p->engine.udp)) :
		     0;
}

static int host_away(struct shca_process *p)
{
	int err = p->engine.registry ?
			  registry_away(p->engine.registry, it.seat) :
			  0;

	return err ? fail(err, "cannot leave the processes of this host: %s",
			  sys_strerror(-err)) :
		     0;
}

static int host_back(struct shca_process *p)
{
	struct engine *e = &p->engine;
	char text[200];
	const char *why;
	int err;

	if (!e->registry)
		return 0;
	numbers_look(&it.numbers, e, it.told);
	err = registry_back(e->registry, e->cfg->rundir, &it.numbers.other,
			    &why);
	if (!err) {
		numbers_change(&it.numbers, e);
		return 0;
	}
	numbers_why(&it.numbers, text, sizeof(text));
	return fail(err, "%s%s%s", why, *text ? ", and " : "", text);
}

static int addresses_away(struct shca_process *p)
{
	shca_netdevs_away(&p->engine);
	return 0;
}

static int addresses_back(struct shca_process *p)
{
	struct shca_moved *m = &it.moved;
	int err = shca_readdress(&p->engine, m);

	if (err == -EADDRNOTAVAIL)
		return no_address();
	if (err)
		return err;
	err = shca_netdevs_back(&p->engine);
	for (size_t i = 0; i < m->n; i++)
		gsi_readdress(&p->engine, &m->at[i].from, &m->at[i].to.gid,
			      m->at[i].to.ifindex);
	engine_qps_each(&p->engine, place_qp, &p->engine);
	shca_live_each(&p->engine, SHCA_AH, place_ah, NULL);
	return err;
}

static int time_away(struct shca_process *p)
{
	(void)p;
	if (tracing())
		trace_keep(TRACE_AWAY, 0, 0, 0, 0, 0);
	it.stood_ns = sys_real_ns();
	clock_stop();
	return 0;
}

static int time_back(struct shca_process *p)
{
	(void)p;
	clock_go();
	if (tracing())
		trace_keep(TRACE_BACK, 0, 0, sys_real_ns() - it.stood_ns, 0, 0);
	return 0;
}

static const struct part {
	int (*away)(struct shca_process *p);
	int (*back)(struct shca_process *p);
} parts[] = {
	{ leases_away, leases_back },       { sending_away, sending_back },
	{ receiving_away, receiving_back }, { stat_away, stat_back },
	{ shared_away, shared_back },       { sockets_away, sockets_back },
	{ addresses_away, addresses_back }, { host_away, host_back },
	{ time_away, time_back },
};

#define NPARTS (sizeof(parts) / sizeof(parts[0]))
#define NHALF 3 /* of the first ones: where it fails it has begun */

/* All from n down to the first are back, or, if one cannot, none of them. */
static int all_back(struct shca_process *p, size_t n)
{
	size_t i = n;
	int err = 0;

	while (i && !err)
		err = parts[--i].back(p);
	if (!err)
		return 0;
	/* This one is still away. */
	while (++i < n)
		if (parts[i].away(p))
			break;
	return err;
}

static int all_away(struct shca_process *p)
{
	size_t i;
	int err = 0;

	for (i = 0; i < NPARTS && !err; i++)
		err = parts[i].away(p);
	/* The last one has come to nothing, or is as it was. */
	if (err)
		all_back(p, i <= NHALF ? i : i - 1);
	return err;
}

/* Neither call goes on while the process forks; the child is not suspended. */

static void fork_prepare(void)
{
	pthread_mutex_lock(&it.lock);
}

static void fork_parent(void)
{
	pthread_mutex_unlock(&it.lock);
}

static void fork_child(void)
{
	it.e = NULL;
	it.seat = NULL;
	it.told = false;
	pthread_mutex_unlock(&it.lock);
}

static void fork_register(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/* After the handlers of a process's parts, whose locks are taken after ours: those
 * that are registered last run first. */
static void fork_watch(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct engine *e = shca_process_hold();

	if (!e)
		return;
	pthread_once(&once, fork_register);
	shca_process_drop(e);
}

/* What is not suspended. */
static int refuse(struct shca_process *p)
{
	if (p->engine.streams)
		return fail(
			-EOPNOTSUPP,
			"a process with devices of iWARP (--iwarp) cannot be "
			"suspended: its connections are TCP connections of the "
			"kernel, whose sequence numbers, windows and queues "
			"would have to be taken out of it and put into another "
			"one (TCP_REPAIR, as root there); use RoCE");
	if (p->engine.rocev1)
		return fail(-EOPNOTSUPP,
			    "a process with RoCE v1 (--rocev1) cannot be "
			    "suspended: its QPs have the MACs of their peers, "
			    "and its socket is one of AF_PACKET; use RoCE v2");
	return 0;
}

/* Before anything stops. Who does not answer will not wait. */
static int tell(struct engine *e)
{
	const char *text = "";
	int err = moving_hello(e, &text);
	struct moving_sum sum = { 0 };

	if (err)
		return *text ? fail(err, "%s", text) : err;
	moving_pause(e, it.seconds);
	it.told = true;
	moving_sum(e, &sum);
	it.stop.all = sum.sum.all;
	it.stop.waits = sum.sum.paused;
	return 0;
}

/* With a reference, unless it is suspended; NULL: *err says why not. */
static struct engine *hold(int *err)
{
	struct engine *e = it.e ? NULL : shca_process_hold();

	if (it.e)
		*err = fail(-EALREADY, "this process is suspended");
	else if (!e)
		*err = fail(-ENODEV, "no device is open");
	return e;
}

static int suspend(void)
{
	int err;
	struct engine *e = hold(&err);

	if (!e)
		return err;
	it.stop = (struct migrate_stop){ 0 };
	err = refuse(to_process(e));
	if (!err && it.seconds)
		err = tell(e);
	it.stop.real_ns = sys_real_ns();
	if (!err)
		err = all_away(to_process(e));
	if (err)
		shca_process_drop(e);
	else
		it.e = e;
	return err;
}

static int resume(void)
{
	struct engine *e = it.e;
	int err;

	if (!e)
		return fail(-EINVAL, "this process is not suspended");
	err = all_back(to_process(e), NPARTS);
	if (err)
		return err;
	it.e = NULL;
	shca_process_drop(e);
	return 0;
}

static int call(const char *name, int (*fn)(void))
{
	int err;

	fork_watch();
	pthread_mutex_lock(&it.lock);
	it.why[0] = '\0';
	err = fn();
	if (err && !it.why[0])
		fail(err, "%s", sys_strerror(-err));
	pthread_mutex_unlock(&it.lock);
	if (err) {
		why(err, "%s", it.why);
		WHY_REPORT(name, err);
	}
	return -err;
}

/* What call() does not hand on: other threads may be about to call as well. */
static _Thread_local struct asked {
	bool tells; /* peers are asked to wait, for */
	unsigned seconds;
	int *seat;
	struct moving_sum peers; /* the answer of count_peers() */
} asked;

static int suspend_asked(void)
{
	int err;

	if (asked.tells && (!asked.seconds || asked.seconds > MOVE_SECONDS_MAX))
		return fail(-EINVAL, "peers wait for 1 to %u seconds",
			    MOVE_SECONDS_MAX);
	it.seconds = asked.seconds;
	it.seat = asked.seat;
	err = suspend();
	it.seconds = 0;
	/* If it cannot resume, it is away without one. */
	it.seat = NULL;
	return err;
}

int softhca_suspend(void)
{
	return call(__func__, suspend);
}

int softhca_suspend_seated(int *seat)
{
	*seat = -1;
	asked = (struct asked){ .seat = seat };
	return call(__func__, suspend_asked);
}

int softhca_suspend_for(unsigned seconds, int *seat)
{
	if (seat)
		*seat = -1;
	asked = (struct asked){ .tells = true,
				.seconds = seconds,
				.seat = seat };
	return call(__func__, suspend_asked);
}

static int count_peers(void)
{
	const char *text = "";
	int err;
	struct engine *e = hold(&err);

	if (!e)
		return err;
	err = moving_hello(e, &text);
	if (err && *text)
		fail(err, "%s", text);
	if (!err)
		moving_sum(e, &asked.peers);
	shca_process_drop(e);
	return err;
}

int migrate_count(struct moving_sum *sum)
{
	int err = call("softhca_migrate_peers", count_peers);

	*sum = asked.peers;
	return err;
}

int softhca_migrate_peers(struct softhca_peers *peers)
{
	int err = call(__func__, count_peers);
	const uint64_t ms = asked.peers.patience_ns / 1000000;

	if (err)
		return err;
	peers->all = (unsigned)asked.peers.sum.all;
	peers->wait = (unsigned)asked.peers.sum.hello;
	peers->patience_ms = ms < UINT_MAX ? (unsigned)ms : UINT_MAX;
	peers->other_secret = asked.peers.sum.other_secret;
	return 0;
}

int softhca_resume(void)
{
	return call(__func__, resume);
}

struct migrate_stop migrate_stopped(void)
{
	struct migrate_stop stop;

	pthread_mutex_lock(&it.lock);
	stop = it.stop;
	pthread_mutex_unlock(&it.lock);
	return stop;
}

bool migrate_heard(struct moving_away away[MOVING_AWAY], size_t *n)
{
	struct engine *e = shca_process_hold();
	bool all = true;

	*n = 0;
	if (!e)
		return true;
	all = moving_heard(e, away, n);
	shca_process_drop(e);
	return all;
}

const char *softhca_migrate_why(void)
{
	return it.why;
}
