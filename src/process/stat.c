/*
 * stat.c - what this process answers when "softhca stat" asks (counters/stat.h), or
 * SIGUSR1 does (os/dump_signal.h)
 *
 * The thread answers, so there is a socket once there is a thread: from the first
 * QP on that leaves RESET. It copies the counters of each QP under its lock;
 * those of QPs that are gone are kept by their device.
 */
#include "parts.h"
#include "process.h"

#include "waits.h"

#include "base/bytes.h"
#include "base/say.h"
#include "counters/counter_file.h"
#include "os/dump_signal.h"
#include "qp/names.h"
#include "verbs/verbs.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MORE 64 /* QPs made since they were counted */
#define LINES_SIZE 65536
#define SETTLE_NS 20000000u /* until who got a signal sleeps again */
#define SUMS_NS 1000000000ull
#define SUMS_MOST_NS (64 * SUMS_NS)

struct shca_stat {
	/* Of all processes; NULL: nobody is shown them. */
	struct counter_file *_Atomic sums;
	pthread_mutex_t sums_lock; /* of what devices have added there */
	uint64_t sums_wait;
	struct engine_alarm sums_alarm;

	_Atomic bool begun;
	_Atomic int fd; /* where others ask for counters; -1: nowhere */
	_Atomic int asked_fd; /* readable when SIGUSR1 has asked; or -1 */
};

struct copy {
	struct shca_device **dev; /* by index */
	struct stat_device *device;
	struct stat_qp *qp;
	struct waits_receives *receives; /* of each; NULL: not wanted */
	struct lines lines; /* the same */
	struct stat_head head;
	uint32_t size; /* of qp */
	enum stat_want want;
	uint64_t now;
};

void (*shca_suspend_asked)(int who, const struct suspend_request *want);

static struct shca_stat *to_stat(struct engine *e)
{
	return to_process(e)->stat;
}

/* The index of its device; c->head.ndevices: it has none here. */
static uint32_t qp_device(const struct copy *c, const struct shca_qp *qp)
{
	struct ibv_context *ctx = qp->ex.qp_base.context;
	uint32_t d = 0;

	while (d < c->head.ndevices && (!ctx || c->dev[d] != to_ctx(ctx)->dev))
		d++;
	return d;
}

/* Its counters alone. */
static void sum_qp(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = container_of(sched, struct shca_qp, sched);
	struct copy *c = arg;
	const uint32_t d = qp_device(c, qp);

	struct stat_qp q = { 0 };

	if (d >= c->head.ndevices)
		return;
	shca_qp_counts(&q, qp->core);
	for (size_t i = 0; i < STAT_COUNTERS; i++)
		c->device[d].n[i] += q.n[i];
}

static struct waits_receives receives_of(const struct qp *core)
{
	/* Of XRC each message names its SRQ. */
	const bool own = core->type != IBV_QPT_XRC_SEND &&
			 core->type != IBV_QPT_XRC_RECV;
	const struct qp_rq *rq =
		core->srq ? &((struct shca_srq *)core->srq)->rq : &core->rq;

	return (struct waits_receives){ core->srq, own ? qp_rq_count(rq) : 1 };
}

static void copy_qp(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = container_of(sched, struct shca_qp, sched);
	struct copy *c = arg;
	struct stat_qp *q;
	uint32_t d;

	d = qp_device(c, qp);
	if (d >= c->head.ndevices || c->head.nqps == c->size) {
		c->head.missed++;
		return;
	}
	if (c->receives)
		c->receives[c->head.nqps] = receives_of(qp->core);
	q = &c->qp[c->head.nqps++];
	q->device = d;
	q->qpn = qp->core->qpn;
	q->type = (uint32_t)qp->core->type;
	q->state = (uint32_t)qp->core->state;
	q->work = qp->core->sq.head + qp->core->rq.head;
	if (c->want == STAT_WANT_ALL)
		qp->ops->waits(qp->core, c->now, q->waits, sizeof(q->waits));
	shca_qp_counts(q, qp->core);
	for (size_t i = 0; i < STAT_COUNTERS; i++)
		c->device[d].n[i] += q->n[i];
}

/* The devices that are open. The lock of the list of contexts is held. */
static bool copy_devices(struct engine *e, struct copy *c)
{
	struct shca_context *ctx;
	uint32_t n = 0, i;
	bool done;

	for (ctx = to_process(e)->contexts.first; ctx; ctx = ctx->next)
		n++;
	c->dev = calloc(n + 1, sizeof(struct shca_device *));
	c->device = calloc(n + 1, sizeof(*c->device));
	done = c->dev && c->device;
	for (ctx = to_process(e)->contexts.first; done && ctx;
	     ctx = ctx->next) {
		for (i = 0; i < c->head.ndevices && c->dev[i] != ctx->dev; i++)
			;
		if (i < c->head.ndevices)
			continue;
		c->dev[i] = ctx->dev;
		c->head.ndevices++;
		snprintf(c->device[i].name, sizeof(c->device[i].name), "%s",
			 ctx->dev->dev.name);
		memcpy(c->device[i].own_name, ctx->dev->own_name,
		       sizeof(c->device[i].own_name));
		for (size_t k = 0; k < STAT_COUNTERS; k++)
			c->device[i].n[k] = atomic_load(&ctx->dev->ended[k]);
	}
	return done;
}

static void copy_free(struct copy *c)
{
	free(c->dev);
	free(c->device);
	free(c->qp);
	free(c->receives);
	free(c->lines.text);
}

/* What a copy has is added to what all processes have counted. True: it was more
 * than before. */
static bool sums_take(struct shca_stat *st, const struct copy *c)
{
	bool more = false;

	if (!st->sums || pthread_mutex_trylock(&st->sums_lock))
		return false;
	/* There may be none by now (shca_stat_away()). */
	for (uint32_t d = 0; st->sums && d < c->head.ndevices; d++)
		more |= counter_file_add(st->sums, c->dev[d]->row,
					 c->dev[d]->added, c->device[d].n);
	pthread_mutex_unlock(&st->sums_lock);
	return more;
}

bool shca_sums_add(struct engine *e)
{
	struct shca_stat *st = to_stat(e);
	struct copy c = { 0 };
	bool done, more = false;

	if (!st->sums || pthread_mutex_trylock(&to_process(e)->contexts.lock))
		return false;
	done = copy_devices(e, &c);
	pthread_mutex_unlock(&to_process(e)->contexts.lock);
	if (done) {
		engine_qps_look(e, sum_qp, &c);
		more = sums_take(st, &c);
	}
	copy_free(&c);
	return more;
}

/* Again after a second, or more where there are many QPs to look at, or nothing
 * happens. */
static void sums_expire(struct engine *e, uint64_t now)
{
	struct shca_stat *st = to_stat(e);
	uint64_t due = atomic_load(&st->sums_alarm.due), wait;

	if (due > now || !atomic_compare_exchange_strong(&st->sums_alarm.due,
							 &due, UINT64_MAX))
		return; /* another thread does it */
	wait = max_u64(SUMS_NS,
		       SUMS_NS / 1000 *
			       atomic_load(&to_process(e)->nobjects[SHCA_QP]));
	if (!shca_sums_add(e))
		wait = max_u64(wait, min_u64(st->sums_wait * 2, SUMS_MOST_NS));
	st->sums_wait = wait;
	engine_alarm_set(e, &st->sums_alarm, now + wait);
}

/* Everything there is to say, to be freed by copy_free(); false: no memory. */
static bool copy_all(struct engine *e, enum stat_want want, struct copy *c)
{
	struct shca_stat *st = to_stat(e);
	bool done;

	*c = (struct copy){
		.want = want,
		.size = atomic_load(&to_process(e)->nobjects[SHCA_QP]) + MORE,
		.now = clock_ns(),
	};
	c->qp = calloc(c->size, sizeof(*c->qp));
	if (!c->qp)
		return false;
	if (want == STAT_WANT_ALL) {
		c->receives = calloc(c->size, sizeof(*c->receives));
		c->lines.text = calloc(1, LINES_SIZE);
		if (!c->receives || !c->lines.text)
			return false;
		c->lines.size = LINES_SIZE;
		shca_waits(e, &c->lines, c->now);
	}
	pthread_mutex_lock(&to_process(e)->contexts.lock);
	done = copy_devices(e, c);
	pthread_mutex_unlock(&to_process(e)->contexts.lock);
	if (!done)
		return false;
	c->head.missed += !engine_qps_each(e, copy_qp, c);
	if (c->receives)
		shca_waits_receives(e, c->qp, c->receives, c->head.nqps);
	sums_take(st, c);
	return true;
}

static int copy(void *arg, enum stat_want want)
{
	struct engine *e = arg;
	const struct link_stats links = engine_link_stats(e);
	int file = -ENOMEM;
	struct copy c;

	if (copy_all(e, want, &c)) {
		memcpy(c.head.magic, STAT_MAGIC, sizeof(c.head.magic));
		c.head.version = STAT_VERSION;
		c.head.counters = STAT_COUNTERS;
		c.head.others = STAT_OTHERS;
		c.head.others_n[STAT_BAD_ICRC] = links.rx_bad_icrc;
		c.head.others_n[STAT_MALFORMED] = links.rx_malformed;
		c.head.others_n[STAT_OVERFLOW] = links.rx_overflow;
		c.head.others_n[STAT_NO_QP] = atomic_load(&e->no_qp);
		c.head.text = (uint32_t)c.lines.len + 1;
		file = stat_file(&c.head, c.device, c.qp, c.lines.text ?: "");
	}
	copy_free(&c);
	return file;
}

/* SIGUSR1 has come: what softhca explain PID prints. */
static void say_waits(struct engine *e)
{
	char name[32], text[STAT_TEXT], *line, *next = NULL;
	struct copy c;

	sys_sleep(SETTLE_NS);
	stat_process_name(getpid(), name);
	if (copy_all(e, STAT_WANT_ALL, &c)) {
		stat_head_text(getpid(), name, c.head.nqps, text);
		say("%s", text);
		next = c.lines.text;
	}
	while ((line = strsep(&next, "\n")) && *line)
		say("%s", line);
	for (uint32_t i = 0; i < c.head.nqps; i++) {
		stat_qp_text(&c.qp[i], qp_type_str(c.qp[i].type),
			     qp_state_str(c.qp[i].state), text);
		say("%s", text);
	}
	copy_free(&c);
}

/* Without a descriptor nobody can ask; that is all. */
static void asked_watch(struct engine *e)
{
	struct shca_stat *st = to_stat(e);
	int fd = dump_signal_open();

	if (fd < 0)
		return;
	atomic_store(&st->asked_fd, fd);
	if (engine_watch_fd(e, fd))
		dump_signal_close(atomic_exchange(&st->asked_fd, -1));
}

/* Nobody can ask any more; remove: and the name goes. */
static void stat_stop(struct engine *e, bool remove)
{
	struct shca_stat *st = to_stat(e);
	int fd = atomic_exchange(&st->asked_fd, -1);

	if (fd >= 0)
		dump_signal_close(fd);
	fd = atomic_exchange(&st->fd, -1);
	if (fd < 0)
		return;
	sys_close(fd);
	if (remove)
		stat_unlink(registry_path(e->registry),
			    registry_slot(e->registry));
}

void shca_stat_begin(struct engine *e)
{
	struct shca_stat *st = to_stat(e);
	const char *tree;
	int fd;

	if (atomic_load(&st->begun) || atomic_exchange(&st->begun, true))
		return;
	if (e->cfg->explain)
		asked_watch(e);
	if (!e->registry)
		return;
	tree = e->cfg->tree;
	if (!tree && dlsym(RTLD_DEFAULT, "softhca_shim"))
		tree = shca_sysfs_root(); /* who shows it asks for it */
	if (tree)
		st->sums = counter_file_open(tree);
	if (st->sums)
		engine_alarm_set(e, &st->sums_alarm, clock_ns() + SUMS_NS);
	fd = stat_listen(registry_path(e->registry),
			 registry_slot(e->registry));
	if (fd < 0)
		return;
	atomic_store(&st->fd, fd);
	if (engine_watch_fd(e, fd))
		stat_stop(e, true);
}

bool shca_stat_readable(struct engine *e, int fd)
{
	struct shca_stat *st = to_stat(e);
	uint64_t times;

	if (fd == atomic_load(&st->fd))
		stat_answer(fd, copy, e, shca_suspend_asked);
	else if (fd != atomic_load(&st->asked_fd))
		return false;
	else if (sys_read(fd, &times, sizeof(times)) > 0)
		say_waits(e);
	return true;
}

int shca_stat_init(struct engine *e)
{
	struct shca_stat *st = calloc(1, sizeof(*st));

	if (!st)
		return -ENOMEM;
	atomic_store(&st->fd, -1);
	atomic_store(&st->asked_fd, -1);
	pthread_mutex_init(&st->sums_lock, NULL);
	engine_alarm_add(e, &st->sums_alarm, sums_expire);
	to_process(e)->stat = st;
	return 0;
}

void shca_stat_fini(struct engine *e)
{
	struct shca_stat *st = to_stat(e);

	if (!st)
		return;
	stat_stop(e, true);
	counter_file_close(st->sums);
	free(st);
	to_process(e)->stat = NULL;
}

bool shca_stat_away(struct engine *e)
{
	struct shca_stat *st = to_stat(e);
	const int fds[] = { atomic_load(&st->asked_fd), atomic_load(&st->fd) };
	struct counter_file *sums;

	if (!atomic_load(&st->begun))
		return false;
	shca_sums_add(e);
	for (size_t i = 0; i < ARRAY_SIZE(fds); i++)
		if (fds[i] >= 0)
			engine_unwatch_fd(e, fds[i]);
	stat_stop(e, true);
	pthread_mutex_lock(&st->sums_lock);
	sums = atomic_exchange(&st->sums, NULL);
	counter_file_close(sums);
	pthread_mutex_unlock(&st->sums_lock);
	engine_alarm_set(e, &st->sums_alarm, UINT64_MAX);
	atomic_store(&st->begun, false);
	return true;
}

void shca_stat_forked(struct engine *e)
{
	stat_stop(e, false);
}

void shca_stat_exit(struct engine *e)
{
	shca_sums_add(e);
	stat_stop(e, true);
}
