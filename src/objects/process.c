/*
 * process.c - the beginning and the end of what all devices of a process share
 *
 * Made at the first open, gone with the last close. What it consists of is in
 * the files that use it: the engine makes progress (src/engine), and calls what
 * is registered here.
 */
#include "gsi.h"
#include "iw.h"
#include "loan.h"
#include "qp_iwarp.h"
#include "record.h"
#include "wait.h"

#include "base/pool.h"
#include "base/say.h"
#include "base/sys.h"
#include "base/why.h"
#include "counters/sums.h"
#include "link/shown.h"
#include "link/stream.h"
#include "os/asked.h"
#include "os/guard.h"
#include "trace/pcap.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KEYS_MAX (1u << 20)
#define KEYS_MIN (1u << 14)

static struct shca_process *process;
/* Of the whole process: many a program closes its device and opens it again. */
static struct pcap *recording;
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;

/* Counting objects */

int shca_count(struct engine *e, enum shca_kind kind)
{
	struct shca_process *proc = to_process(e);

	if (atomic_fetch_add(&proc->nobjects[kind], 1) < SHCA_MAX_OBJECTS)
		return 0;
	atomic_fetch_sub(&proc->nobjects[kind], 1);
	return why(-ENOMEM,
		   "there are %d objects of this kind, as many as a process can have: destroy some",
		   SHCA_MAX_OBJECTS);
}

void shca_uncount(struct engine *e, enum shca_kind kind)
{
	atomic_fetch_sub(&to_process(e)->nobjects[kind], 1);
}

/* What the protocol core needs (roce/env.h) */

static int env_complete(struct qp *core, void *cq, const struct ibv_wc *wc,
			bool solicited)
{
	(void)core;
	return shca_cq_add(cq, wc, solicited);
}

/* Of a request that fails: where the program has posted it. */
__attribute__((noinline, cold)) static void say_places(struct qp *core,
							const struct ibv_wc *wc)
{
	const struct shca_qp *qp = core->owner;
	const struct qp_sq *sq = &core->sq;
	const struct qp_wqe *w = qp_sq_slot(sq, sq->head - 1);

	if (!qp->posted || wc->opcode & IBV_WC_RECV || w->wr_id != wc->wr_id)
		return;
	check_say_place("it was posted",
			qp->posted[(sq->head - 1) & (sq->depth - 1)]);
	check_say_place("the queue pair was created", qp->made);
}

/* The same where somebody wants to hear of it. */
static int env_complete_noted(struct qp *core, void *cq,
			      const struct ibv_wc *wc, bool solicited)
{
	if (wc->status != IBV_WC_SUCCESS && wc->status != IBV_WC_WR_FLUSH_ERR)
		say_places(core, wc);
	if (tracing()) /* not in the child of a fork */
		shca_record_complete(core->qpn, wc);
	return shca_cq_add(cq, wc, solicited);
}

static int env_srq_take(struct qp *core, void *srq, uint64_t room,
			struct qp_recv *out)
{
	(void)core;
	return shca_srq_take(srq, room, out);
}

/* Of all QPs of the process. */
static struct pool reorder;

static void *env_reorder_get(struct qp *core, size_t bytes)
{
	(void)core;
	return pool_get(&reorder, bytes);
}

static void env_reorder_put(struct qp *core, void *p, size_t bytes)
{
	(void)core;
	pool_put(&reorder, p, bytes);
}

static bool env_reorder_scarce(struct qp *core)
{
	(void)core;
	return pool_scarce(&reorder);
}

static bool env_unread(struct qp *core, uint64_t mark[2])
{
	struct shca_qp *qp = core->owner;

	return engine_unread(qp->sched.engine, &qp->sched,
			     roce_qp_dest(roce_qp(core)),
			     roce_qp_path(roce_qp(core)), mark);
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

static void env_landing(struct qp *core, const struct qp_recv *recv)
{
	check_received(recv->sge, recv->num_sge);
	check_allowed(core->qpn);
}

static void env_arriving(struct qp *core, struct qp_wqe *w, bool first)
{
	struct shca_qp *qp = core->owner;

	check_arriving(&qp->ex.qp_base, w->wr_id, qp_wqe_sge(&core->sq, w),
		       w->num_sge, first);
}

static void env_changing(struct qp *core, const struct qp_change *c)
{
	static const enum check_change_kind kinds[] = {
		[QP_CHANGE_WRITE] = CHECK_WRITE,
		[QP_CHANGE_ADD] = CHECK_ADD,
		[QP_CHANGE_SWAP] = CHECK_SWAP,
	};
	const struct check_change change = {
		.kind = kinds[c->kind],
		.addr = (uintptr_t)c->p,
		.len = c->len,
		.data = c->data,
		.first = c->first,
		.last = c->last,
	};
	struct shca_qp *qp = core->owner;

	check_written();
	check_changing(&qp->ex.qp_base, &change);
}

static void env_changed(struct qp *core, bool done)
{
	(void)core;
	check_changed(done);
}

static void env_voided(struct qp *core)
{
	check_writes_end(core->qpn);
}

/* Its peer, if that is of this host, may be told by a NAK alone. */
static void env_explain(struct qp *core, const char *fmt, ...)
{
	const struct shca_qp *qp = core->owner;
	const struct roce_path *path = roce_qp_path(roce_qp(core));
	struct registry *registry = qp->sched.engine->registry;
	char line[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	engine_explain(core, "%s", line);
	if (registry && path && path->local && core->type != IBV_QPT_UD)
		registry_note(registry, core->qpn, roce_qp_dest(roce_qp(core)),
			      line);
}

static void env_refused(struct qp *core, uint32_t key, bool remote)
{
	check_key_refused(core->qpn, key, remote);
}

static void env_differs(struct qp *core, enum roce_differs what, uint32_t there,
			uint32_t here, uint32_t src_qpn)
{
	const bool qkey = what == ROCE_DIFFERS_QKEY;
	char text[200];

	snprintf(text, sizeof(text),
		 qkey ?
			 "its Q_Key is 0x%08x, and a datagram of QP 0x%06x had 0x%08x: it was dropped" :
			 "its P_Key is 0x%04x, and a packet of QP 0x%06x had 0x%04x: it was dropped",
		 here, src_qpn, there);
	check_disagrees(qkey ? CHECK_PAIR_QKEY : CHECK_PAIR_PKEY, core->qpn,
			text);
}

static void env_dropped(struct qp *core, enum roce_drop why)
{
	struct shca_qp *qp = core->owner;

	if (tracing())
		trace_put(TRACE_DROP, core->qpn, why, 0, 0, 0, 0);
	engine_dropped(qp->sched.engine, why);
}

/* What the engine asks for (engine/engine.h) */

static void on_readable(struct engine *e, int fd)
{
	if (fd == to_process(e)->netdev_fd)
		shca_netdevs_changed(e);
	else if (!shca_stat_readable(e, fd))
		shca_cq_late(e, fd);
}

static const struct engine_ops ops = {
	.gsi = gsi_rx,
	.mcast = shca_mcast_rx,
	.stray = shca_timewait_rx,
	.word = shca_loan_word,
	.settle = shca_guest_settle,
	.event = shca_port_event,
	.readable = on_readable,
};

/* Beginning and end */

static int keys_create(struct shca_process *p)
{
	uint32_t count = KEYS_MAX;
	uint64_t seed[4];
	void *mem;

	if (!sys_random(seed, sizeof(seed)))
		return -EIO;
	p->id = seed[2];
	atomic_store(&p->next_srqn, (uint32_t)seed[3]);
	/* Unused slots cost nothing, where memory is overcommitted. */
	for (; count >= KEYS_MIN; count /= 2) {
		p->keys_size = count * sizeof(struct key_entry);
		mem = mmap(NULL, p->keys_size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (mem == MAP_FAILED)
			continue;
		keys_init(&p->keys, mem, count, seed);
		/* Programs that send their lkey work elsewhere; --check says
		 * what they do. */
		p->keys.one = !check_on();
		if (p->segment)
			shown_keys_begin(p->segment, &p->keys);
		return 0;
	}
	return -ENOMEM;
}

static void netdev_fd_close(struct shca_process *p)
{
	if (p->netdev_fd >= 0)
		sys_close(p->netdev_fd);
	p->netdev_fd = -1;
}

static void process_destroy(struct shca_process *p)
{
	struct engine *e = &p->engine;

	engine_stop(e);
	shca_iw_fini(e);
	gsi_destroy(e);
	shca_timewait_fini(e);
	netdev_fd_close(p);
	shca_stat_end(p, true);
	sums_close(p->sums);
	engine_fini(e);
	segment_destroy(p->segment);
	if (e->registry)
		registry_leave(e->registry);
	if (p->pcap)
		pcap_flush(p->pcap);
	munmap(p->keys.entry, p->keys_size);
	free(p);
}

static void fork_prepare(void)
{
	pthread_mutex_lock(&process_lock);
	shca_live_hold();
	if (process)
		streams_hold(process->engine.streams);
}

static void fork_parent(void)
{
	if (process)
		streams_release(process->engine.streams);
	shca_live_release();
	pthread_mutex_unlock(&process_lock);
}

/*
 * The child has none of the threads, and locks in any state. The parent's
 * objects are left alone and leak; the child may open devices of its own.
 */
static void fork_child(void)
{
	struct shca_process *p = process;

	pthread_mutex_init(&process_lock, NULL);
	shca_live_release();
	faults_forked();
	check_forked();
	trace_forked();
	pcap_close(recording);
	recording = NULL;
	process = NULL;
	if (!p)
		return;
	engine_abandon(&p->engine);
	streams_release(p->engine.streams);
	netdev_fd_close(p);
	shca_stat_end(p, false);
	segment_abandon(p->segment);
	if (p->engine.registry)
		registry_abandon(p->engine.registry);
}

static void fork_register(void)
{
	pthread_atfork(fork_prepare, fork_parent, fork_child);
}

/*
 * Where there is no registry the process is alone, which is enough for many.
 * One whose lock cannot be had is there: the others would not find us.
 */
static int join_host(const struct config *cfg, struct registry **r)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const char *why;
	int err = registry_join(r, cfg->rundir, &why);

	if (!err)
		return 0;
	*r = NULL;
	if (err == -ETIMEDOUT || !atomic_flag_test_and_set(&said))
		say("%s%s", why,
		    err == -ETIMEDOUT ? ""
				      : "; continuing without the other "
					"processes of this host");
	return err == -ETIMEDOUT ? err : 0;
}

/* Without shared memory the processes of this host talk by UDP. */
static void show_host(struct shca_process *p, const struct config *cfg,
		      struct registry *registry)
{
	uint32_t flags = 0;

	if (!registry || cfg->wire || cfg->same_host == SAME_HOST_UDP)
		return;
	if (cfg->pcap)
		flags |= SEGMENT_PLAIN;
	/* What others write here by themselves is not seen. */
	if (cfg->same_host == SAME_HOST_COPY || check_on())
		flags |= SEGMENT_NO_COPY;
	if (segment_create(&p->segment, registry, flags) && cfg->explain)
		say("no shared memory with other processes of this host: %s",
		    segment_why());
}

/* A file that cannot be written does not keep the device from working. */
static void record(const char *path)
{
	int err = pcap_open(&recording, path);

	if (err)
		say("cannot write %s: %s", path,
		    err == -EBUSY ? "another process writes to this FIFO; "
				    "with %p in the name each process has "
				    "its own"
				  : sys_strerror(-err));
}

/* Likewise. */
static void record_events(const char *dir)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int err = trace_begin(dir);

	if (err && !atomic_flag_test_and_set(&said))
		say("cannot record events in %s: %s", dir, sys_strerror(-err));
}

static int process_create(struct shca_process **out)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct config *cfg = config_get();
	struct shca_process *p = aligned_alloc(64, sizeof(*p));
	struct registry *registry;
	int err;

	if (!p)
		return -ENOMEM;
	shca_check_begin();
	if (cfg->explain == EXPLAIN_FULL)
		check_places();
	memset(p, 0, sizeof(*p));
	p->netdev_fd = -1;
	atomic_store(&p->stat_fd, -1);
	atomic_store(&p->asked_fd, -1);
	if (cfg->explain)
		asked_begin();
	pthread_mutex_init(&p->keys_lock, NULL);
	pthread_mutex_init(&p->attach_lock, NULL);
	pthread_mutex_init(&p->mcast_lock, NULL);
	pthread_mutex_init(&p->xrc_lock, NULL);
	pthread_mutex_init(&p->guests_lock, NULL);
	pthread_mutex_init(&p->late_lock, NULL);
	pthread_mutex_init(&p->timewait_lock, NULL);
	pthread_mutex_init(&p->ctx_lock, NULL);
	pthread_mutex_init(&p->sums_lock, NULL);
	if (cfg->trace)
		record_events(cfg->trace);
	p->env = (struct roce_env){
		.base.keys = &p->keys,
		.base.complete = cfg->explain == EXPLAIN_FULL || trace_on ?
					 env_complete_noted :
					 env_complete,
		.base.srq_take = env_srq_take,
		.xrc_srq_take = shca_xrc_env_take,
		.xrc_pd = shca_xrc_env_pd,
		.base.invalidate = shca_mw_env_invalidate,
		.base.bind_mw = shca_mw_env_bind,
		.base.guarded = guard_run,
		.base.place = guard_place,
		.base.odp_touch = shca_odp_touch,
		.base.odp_store = shca_odp_store,
		.reorder_get = env_reorder_get,
		.reorder_put = env_reorder_put,
		.reorder_scarce = env_reorder_scarce,
		.unread = env_unread,
		.uc_sent = shca_env_uc_sent,
		.uc_written = shca_env_uc_written,
		.silent = shca_env_silent,
		.refusal = shca_env_refusal,
		.unanswered = check_on() ? shca_env_unanswered : NULL,
		.differs = check_on() ? env_differs : NULL,
		.base.event = env_event,
		.dropped = env_dropped,
		.withhold = faults_any(FAULT_RNR) ? faults_withhold : NULL,
		.base.landing = check_on() ? env_landing : NULL,
		.base.arriving = check_on() ? env_arriving : NULL,
		.base.changing = check_on() ? env_changing : NULL,
		.base.changed = check_on() ? env_changed : NULL,
		.base.voided = check_on() ? env_voided : NULL,
		.base.refused = check_on() ? env_refused : NULL,
		.base.explain = cfg->explain ? env_explain : NULL,
	};
	if (cfg->pcap && !recording)
		record(cfg->pcap);
	p->pcap = recording;
	err = join_host(cfg, &registry);
	if (err)
		goto err_free;
	show_host(p, cfg, registry);
	if (p->segment) {
		p->env.base.atomic_lock = shca_env_atomic_lock;
		p->env.base.atomic_unlock = shca_env_atomic_unlock;
	}
	/* What is to be lost or recorded has to be a packet. */
	if (p->segment && cfg->loss <= 0 && !cfg->pcap)
		p->env.base.direct = &shca_direct;
	shca_iwarp_env(p);
	err = keys_create(p);
	if (err)
		goto err_host;
	/* After the registry's own handlers, whose lock fork_child() takes. */
	pthread_once(&once, fork_register);
	engine_alarm_add(&p->engine, &p->timewait_alarm, shca_timewait_expire);
	engine_alarm_add(&p->engine, &p->bare_alarm, shca_channel_late);
	engine_alarm_add(&p->engine, &p->sums_alarm, shca_sums_expire);
	err = engine_init(&p->engine, &ops, cfg, registry, p->segment,
			  p->pcap);
	if (err)
		goto err;
	/* Without it addresses are read when a device is opened, only. */
	p->netdev_fd = netdev_watch_fd();
	if (p->netdev_fd >= 0)
		err = engine_watch_fd(&p->engine, p->netdev_fd);
	if (!err)
		err = gsi_create(&p->engine);
	if (!err)
		err = shca_iw_init(&p->engine);
	if (err)
		goto err;
	*out = p;
	return 0;

err:
	process_destroy(p);
	return err;
err_host:
	segment_destroy(p->segment);
	if (registry)
		registry_leave(registry);
err_free:
	free(p);
	return err;
}

int shca_process_get(struct engine **e)
{
	int err = 0;

	pthread_mutex_lock(&process_lock);
	if (!process)
		err = process_create(&process);
	if (!err) {
		process->refs++;
		*e = &process->engine;
	}
	pthread_mutex_unlock(&process_lock);
	return err;
}

void shca_process_put(struct engine *e)
{
	struct shca_process *p = to_process(e);
	bool lingered = false;

	pthread_mutex_lock(&process_lock);
	while (p->refs == 1 && !lingered) {
		pthread_mutex_unlock(&process_lock);
		shca_timewait_linger(e, false);
		lingered = true;
		pthread_mutex_lock(&process_lock);
	}
	if (!--p->refs) {
		process_destroy(p);
		process = NULL;
	}
	pthread_mutex_unlock(&process_lock);
}

int shca_wait(int fd, uint64_t until_ns, const sigset_t *mask, bool spin)
{
	struct engine *e;

	pthread_mutex_lock(&process_lock);
	e = process ? &process->engine : NULL;
	pthread_mutex_unlock(&process_lock);
	return e ? engine_wait(e, fd, until_ns, mask, spin) : -ENODEV;
}

/* Programs seldom close everything before they exit. */
__attribute__((destructor)) static void process_exit(void)
{
	struct engine *e;

	if (!process)
		return;
	e = &process->engine;
	shca_timewait_linger(e, true);
	gsi_farewell(e);
	if (e->cfg->explain)
		engine_drops_explain(e);
	if (process->pcap)
		pcap_flush(process->pcap);
	if (process->segment)
		segment_unlink(process->segment);
	shca_sums_add(e);
	shca_stat_end(process, true);
}
