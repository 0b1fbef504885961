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

#include "connect/gsi.h"
#include "os/report.h"
#include "process/parts.h"
#include "process/process.h"
#include "segment/segment.h"
#include "verbs/verbs.h"
#include "xrc/lease.h"

#include "base/sys.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

/* How long what is on its way within the host may take to arrive, and what was
 * sent by those who had not seen yet that we are gone. */
#define DRAIN_NS 100000000u
#define LATE_NS 1000000u

static struct {
	pthread_mutex_t lock;
	struct engine *e; /* NULL: not suspended */
	bool stat;
	int *seat; /* who asks for one */
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

static void place_qp(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = sched_qp(sched);
	struct roce_path path;

	(void)arg;
	if (!shca_qp_is_roce(qp))
		return;
	path = *roce_qp_path(roce_qp(qp->core));
	if (qp->core->state < IBV_QPS_RTR || qp->core->type == IBV_QPT_UD)
		return;
	shca_path_place(&path);
	roce_qp_moved(roce_qp(qp->core), &path);
	/* The peer's ports may be others by now. */
	qp->sport = 0;
}

static void place_ah(void *ah, void *arg)
{
	(void)arg;
	shca_path_place(&to_ah(ah)->path);
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
	/* Who sends for the connection manager holds this. */
	shca_cm_lock(e);
	shca_cm_unlock(e);
	return err;
}

static int sending_back(struct shca_process *p)
{
	struct engine *e = &p->engine;
	int err;

	err = engine_go(e, go_on, NULL);
	if (err)
		return err;
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

static int sockets_back(struct shca_process *p)
{
	int err = udp_back(p->engine.udp);

	if (err == -EADDRNOTAVAIL)
		return fail(err,
			    "an address that this process receives at is none "
			    "of this host's: give it to an interface first");
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
	const char *why;
	int err;

	if (!p->engine.registry)
		return 0;
	err = registry_back(p->engine.registry, p->engine.cfg->rundir, &why);
	return err ? fail(err, "%s", why) : 0;
}

static int addresses_away(struct shca_process *p)
{
	shca_netdevs_away(&p->engine);
	return 0;
}

static int addresses_back(struct shca_process *p)
{
	int err = shca_netdevs_back(&p->engine);

	engine_qps_each(&p->engine, place_qp, NULL);
	shca_live_each(&p->engine, SHCA_AH, place_ah, NULL);
	return err;
}

static int time_away(struct shca_process *p)
{
	(void)p;
	clock_stop();
	return 0;
}

static int time_back(struct shca_process *p)
{
	(void)p;
	clock_go();
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
	pthread_mutex_init(&it.lock, NULL);
	it.e = NULL;
	it.seat = NULL;
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
	return 0;
}

static int suspend(void)
{
	struct engine *e;
	int err;

	if (it.e)
		return fail(-EALREADY, "this process is suspended");
	e = shca_process_hold();
	if (!e)
		return fail(-ENODEV, "no device is open");
	err = refuse(to_process(e));
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

int softhca_suspend(void)
{
	return call(__func__, suspend);
}

static int suspend_seated(void)
{
	int err = suspend();

	/* If it cannot resume, it is away without one. */
	it.seat = NULL;
	return err;
}

int softhca_suspend_seated(int *seat)
{
	*seat = -1;
	it.seat = seat;
	return call(__func__, suspend_seated);
}

int softhca_resume(void)
{
	return call(__func__, resume);
}

const char *softhca_migrate_why(void)
{
	return it.why;
}
