/*
 * moving.c - src/move in a process: its queue pairs, its clock, its QP1
 *
 * Lock order: the link's receive side > moving->lock > a queue pair's, gsi->lock.
 */
#include "moving.h"

#include "gsi.h"

#include "base/gid.h"
#include "base/say.h"
#include "base/sys.h"
#include "hooks/trace.h"
#include "os/config.h"
#include "verbs/ah.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LOOK_NS 50000 /* for an answer */
#define SECRET_MIN 16
#define SECRET_MAX 4096

struct moving {
	struct engine *e;
	struct engine_alarm alarm;
	pthread_mutex_t lock; /* of what follows */
	struct move *move;
	char why[300]; /* "", or there is none, as the secret is missing */
	uint64_t asked_ns; /* CLOCK_REALTIME when peers were asked to wait */
	struct moving_away away[MOVING_AWAY];
	size_t naway;
};

/* A queue pair of ours with its lock, and a reference; NULL: there is none. */
static struct shca_qp *take(struct moving *g, uint32_t qpn)
{
	struct engine_qp *sched = engine_qp_look(g->e, qpn);
	struct shca_qp *qp;

	if (!sched)
		return NULL;
	qp = sched_qp(sched);
	shca_qp_lock(qp);
	if (!sched->dead && shca_qp_is_roce(qp))
		return qp;
	shca_qp_unlock(qp);
	shca_qp_put(qp);
	return NULL;
}

static void give(struct shca_qp *qp)
{
	shca_qp_unlock(qp);
	shca_qp_put(qp);
}

/* Its lock is held. */
static bool see(const struct shca_qp *qp, struct move_qp *out)
{
	const struct roce_qp *r = roce_qp_const(qp->core);
	struct roce_places at;

	if (!roce_qp_places(r, &at))
		return false;
	*out = (struct move_qp){
		.qpn = qp->sched.num,
		.peer = roce_qp_dest(r),
		.path = *roce_qp_path(r),
		.una = at.una,
		.end_psn = at.end_psn,
		.epsn = at.epsn,
		.silent = at.silent,
		.unheard = at.unheard,
		.said = { qp->said.process, qp->said.counter },
	};
	return true;
}

/* struct move_config */

static bool look(void *arg, uint32_t qpn, struct move_qp *out)
{
	struct shca_qp *qp = take(arg, qpn);
	bool is = qp && see(qp, out);

	if (qp)
		give(qp);
	return is;
}

static void note(struct shca_qp *qp, const struct move_said *said)
{
	qp->said.process = said->process;
	qp->said.counter = said->counter;
}

static void pause_qp(void *arg, uint32_t qpn, uint64_t until_ns,
		     const struct move_said *said)
{
	struct shca_qp *qp = take(arg, qpn);
	const uint64_t now = clock_ns();

	if (!qp)
		return;
	note(qp, said);
	if (tracing())
		trace_keep(TRACE_PEER_AWAY, qpn,
			   (uint32_t)((until_ns - now) / 1000000000), 0, 0, 0);
	roce_qp_pause(roce_qp(qp->core), until_ns, now);
	if (config_get()->explain)
		engine_explain(qp->core,
			       "the peer is suspended for %.0f s at most, and "
			       "this QP waits for it",
			       (double)(until_ns - now) / 1e9);
	shca_qp_flush(qp, now);
	give(qp);
}

static void go_on(struct shca_qp *qp)
{
	const uint64_t now = clock_ns();

	roce_qp_go_on(roce_qp(qp->core), now);
	qp->ops->flush(qp->core, now, true);
}

static void follow(void *arg, uint32_t qpn, const struct move_news *news,
		   const struct move_said *said)
{
	struct shca_qp *qp = take(arg, qpn);
	const struct moving *g = arg;
	const struct cm_moved moved = {
		.qpn = news->peer,
		.at = news->at,
		.ids_were = news->ids_were * MOVE_CHUNK,
		.ids_are = news->ids_are * MOVE_CHUNK,
		.ids_mask = news->ids_are ? 0xffffff & ~(MOVE_CHUNK - 1) : 0,
	};
	struct roce_path path;
	union ibv_gid was;
	uint32_t dest;

	if (!qp)
		return;
	note(qp, said);
	path = *roce_qp_path(roce_qp(qp->core));
	was = path.dgid;
	dest = roce_qp_dest(roce_qp(qp->core));
	if (news->peer != dest || !gid_equal(&path.dgid, &news->at)) {
		path.dgid = news->at;
		shca_path_place(&path);
		roce_qp_follow(roce_qp(qp->core), &path, news->peer);
		qp->av.grh.dgid = news->at;
	}
	/* Its ports, and the way to it, may be others. */
	link_way_changed(&qp->sched.way);
	shca_remote_forget(qp);
	qp->sport = 0;
	if (tracing())
		trace_keep(TRACE_PEER_BACK, qpn, 0, 0, 0, 0);
	if (config_get()->explain)
		engine_explain(qp->core, "the peer is back");
	go_on(qp);
	give(qp);
	gsi_peer_moved(g->e, dest, &was, &moved);
}

/* moving->lock is held. */
static void note_away(struct moving *g, const union ibv_gid *at)
{
	size_t i = 0;

	while (i < g->naway && !gid_equal(&g->away[i].at, at))
		i++;
	if (i == MOVING_AWAY)
		return;
	if (i == g->naway)
		g->away[g->naway++] = (struct moving_away){ .at = *at };
	g->away[i].qps++;
	g->away[i].ns = sys_real_ns() - g->asked_ns;
}

static void known(void *arg, uint32_t qpn)
{
	struct shca_qp *qp = take(arg, qpn);

	if (!qp)
		return;
	note_away(arg, &roce_qp_path(roce_qp(qp->core))->dgid);
	go_on(qp);
	give(qp);
}

static void send_mad(void *arg, const struct roce_path *path,
		     const uint8_t mad[MAD_LEN])
{
	struct moving *g = arg;

	gsi_send(g->e, path, mad);
}

/* The secret */

static int no_secret(struct moving *g, const char *path, const char *what)
{
	snprintf(g->why, sizeof(g->why),
		 "SOFTHCA_MIGRATE_SECRET: %s: %s; peers on other hosts are not "
		 "asked to wait, nor heeded",
		 path, what);
	say("%s", g->why);
	return 0;
}

static int read_secret(struct moving *g, const char *path,
		       struct move_config *cfg)
{
	static const uint8_t zero[SIPHASH_KEY];
	uint8_t text[SECRET_MAX + 1];
	struct stat st;
	ssize_t n;
	int fd;

	fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
	if (fd < 0)
		return no_secret(g, path, sys_strerror(errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		sys_close(fd);
		return no_secret(g, path, "it is no file");
	}
	if (st.st_uid != geteuid() || st.st_mode & 077) {
		sys_close(fd);
		return no_secret(g, path,
				 "it must belong to this user, and nobody else "
				 "may read it (chmod 600)");
	}
	n = sys_read(fd, text, sizeof(text));
	sys_close(fd);
	if (n < SECRET_MIN || n > SECRET_MAX)
		return no_secret(g, path, "it must have 16 to 4096 bytes");
	siphash128(cfg->shared, zero, text, (size_t)n);
	explicit_bzero(text, sizeof(text));
	cfg->keyed = true;
	return 0;
}

/* Parts of a process */

static void expire(struct engine *e, uint64_t now)
{
	struct moving *g = to_process(e)->moving;

	pthread_mutex_lock(&g->lock);
	move_expire(g->move, now);
	engine_alarm_set(e, &g->alarm, move_deadline(g->move));
	pthread_mutex_unlock(&g->lock);
}

int moving_init(struct engine *e)
{
	struct moving *g = calloc(1, sizeof(*g));
	struct move_config cfg = {
		.look = look,
		.pause = pause_qp,
		.follow = follow,
		.known = known,
		.send = send_mad,
		.arg = g,
	};
	const char *secret = config_get()->migrate_secret;
	int err;

	if (!g)
		return -ENOMEM;
	g->e = e;
	/* Without numbers that nobody can guess nobody is heeded. */
	if (!sys_random(cfg.secret, sizeof(cfg.secret)) ||
	    !sys_random(&cfg.process, sizeof(cfg.process)))
		snprintf(g->why, sizeof(g->why), "there are no random numbers");
	else if (secret && *secret)
		read_secret(g, secret, &cfg);
	err = move_create(&g->move, &cfg);
	explicit_bzero(&cfg, sizeof(cfg));
	if (err) {
		free(g);
		return err;
	}
	pthread_mutex_init(&g->lock, NULL);
	engine_alarm_add(e, &g->alarm, expire);
	to_process(e)->moving = g;
	return 0;
}

void moving_fini(struct engine *e)
{
	struct moving *g = to_process(e)->moving;

	if (!g)
		return;
	move_destroy(g->move);
	free(g);
	to_process(e)->moving = NULL;
}

void moving_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now)
{
	struct moving *g = to_process(e)->moving;

	if (!g || g->why[0])
		return;
	pthread_mutex_lock(&g->lock);
	move_rx(g->move, &pkt->sgid, &pkt->dgid, netdev_scope(&pkt->dgid),
		pkt->payload, pkt->len, now);
	engine_alarm_set(e, &g->alarm, move_deadline(g->move));
	pthread_mutex_unlock(&g->lock);
}

/* This process is suspended */

struct list {
	struct engine *e;
	struct move_qp *qp;
	size_t n, size;
	bool failed;
};

/* The peer is of this process. */
static bool is_own(struct engine *e, const struct move_qp *q)
{
	return q->path.local && engine_has_qp(e, q->peer);
}

static void add(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = sched_qp(sched);
	struct list *l = arg;
	struct move_qp q, *more;

	if (!shca_qp_is_roce(qp) || !see(qp, &q) || is_own(l->e, &q))
		return;
	/* Who is away as well waits anyhow, and answers nothing. */
	if (engine_keeps_seat(l->e, q.peer, &q.path))
		return;
	if (l->n == l->size) {
		l->size = l->size ? 2 * l->size : 64;
		more = realloc(l->qp, l->size * sizeof(*more));
		if (!more) {
			l->failed = true;
			l->size = l->n;
			return;
		}
		l->qp = more;
	}
	l->qp[l->n++] = q;
}

/* Receives until all have answered, or taken too long. */
static void await(struct moving *g)
{
	const uint64_t begin = clock_ns();
	bool waits;

	for (;;) {
		pthread_mutex_lock(&g->lock);
		move_expire(g->move, clock_ns());
		waits = move_waits(g->move);
		engine_alarm_set(g->e, &g->alarm, move_deadline(g->move));
		pthread_mutex_unlock(&g->lock);
		if (!waits || clock_ns() - begin > 2 * MOVE_PATIENCE_NS)
			return;
		engine_poll(g->e, false);
		sys_sleep(LOOK_NS);
	}
}

int moving_hello(struct engine *e, const char **why)
{
	struct moving *g = to_process(e)->moving;
	struct list l = { .e = e };
	uint8_t nonce[MOVE_NONCE];
	int err = 0;

	if (g->why[0] || !sys_random(nonce, sizeof(nonce))) {
		*why = g->why;
		return -EPERM;
	}
	/* Some may yet have to hear that we are back from last time. */
	await(g);
	/* A peer that says meanwhile that it is back, with another number, changes
	 * the queue pair, and then the plan. */
	pthread_mutex_lock(&g->lock);
	if (!engine_qps_each(e, add, &l) || l.failed)
		err = -ENOMEM;
	if (l.n)
		qsort(l.qp, l.n, sizeof(*l.qp), move_order);
	if (!err)
		err = move_plan(g->move, nonce, l.qp, l.n);
	if (!err)
		move_hello(g->move, clock_ns());
	pthread_mutex_unlock(&g->lock);
	free(l.qp);
	if (!err)
		await(g);
	return err;
}

struct census {
	struct moving *g;
	struct moving_sum *sum;
};

/* Those who follow the specification wait so long at least, with the attributes of
 * our end: who connects mostly gives both the same. An end that only receives has
 * none. */
static uint64_t bears(const struct shca_qp *qp, const struct move_qp *q)
{
	const struct ibv_qp_attr *a = &qp->core->attr;

	if (q->silent)
		return 0;
	return a->timeout ?
		       (UINT64_C(4096) << a->timeout) * (a->retry_cnt + 1u) :
		       UINT64_MAX;
}

static void count(struct engine_qp *sched, void *arg)
{
	struct shca_qp *qp = sched_qp(sched);
	struct census *c = arg;
	struct moving_sum *sum = c->sum;
	struct engine *e = c->g->e;
	struct move_qp q;
	uint64_t ns;

	if (!shca_qp_is_roce(qp) || !see(qp, &q) || is_own(e, &q) ||
	    move_understood(c->g->move, q.qpn))
		return;
	ns = bears(qp, &q);
	sum->patience_ns = min_u64(sum->patience_ns, ns);
	if (engine_is_of_host(e, q.peer, &q.path))
		sum->host++;
	else
		sum->far_ns = min_u64(sum->far_ns, ns);
}

void moving_sum(struct engine *e, struct moving_sum *sum)
{
	struct moving *g = to_process(e)->moving;
	struct census c = { g, sum };

	*sum = (struct moving_sum){ .patience_ns = UINT64_MAX,
				    .far_ns = UINT64_MAX };
	/* Nobody else changes the plan: no lock, which is before a QP's. */
	engine_qps_each(e, count, &c);
	pthread_mutex_lock(&g->lock);
	sum->sum = move_sum(g->move);
	pthread_mutex_unlock(&g->lock);
}

void moving_pause(struct engine *e, uint32_t seconds)
{
	struct moving *g = to_process(e)->moving;

	pthread_mutex_lock(&g->lock);
	g->naway = 0;
	g->asked_ns = sys_real_ns();
	move_pause(g->move, seconds, clock_ns());
	pthread_mutex_unlock(&g->lock);
	await(g);
}

bool moving_tells(struct engine *e, uint32_t qpn)
{
	return move_understood(to_process(e)->moving->move, qpn);
}

void moving_renumber(struct engine *e, uint32_t from, uint32_t to, bool ids)
{
	struct moving *g = to_process(e)->moving;

	pthread_mutex_lock(&g->lock);
	if (ids)
		move_renumber_ids(g->move, from, to);
	else
		move_renumber(g->move, from, to);
	pthread_mutex_unlock(&g->lock);
}

void moving_resume(struct engine *e)
{
	struct moving *g = to_process(e)->moving;

	pthread_mutex_lock(&g->lock);
	move_resume(g->move, clock_ns());
	engine_alarm_set(e, &g->alarm, move_deadline(g->move));
	pthread_mutex_unlock(&g->lock);
}

bool moving_heard(struct engine *e, struct moving_away away[MOVING_AWAY],
		  size_t *n)
{
	struct moving *g = to_process(e)->moving;
	bool waits;

	pthread_mutex_lock(&g->lock);
	waits = move_waits(g->move);
	memcpy(away, g->away, g->naway * sizeof(*away));
	*n = g->naway;
	pthread_mutex_unlock(&g->lock);
	return !waits;
}
