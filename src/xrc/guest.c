/*
 * guest.c - guests: QPs of other processes that receive for SRQs of this one
 *
 * The other side of loan.c. A guest is a QP that no program sees. It is made
 * when the first word about a QP comes, with a core of the attributes in the
 * word, and has the responder while that is lent. It stays between loans, since
 * a read or an atomic that was executed here may come again.
 *
 * A guest is found by QPN. The id that a home gives to a connection, and the
 * domain, distinguish it from one left over from an earlier QP of that number.
 * Only the receive side makes guests.
 *
 * Locks: the process's xrc.lock > guests_lock > a guest's QP.
 */
#include "word.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GUESTS_MAX 4096
#define GUEST_IDLE_NS 60000000000u
/* A responder idle for so long goes home, in case this process dies. */
#define SETTLE_NS 200000u

/* For a QP of another process; in a hash table by its number. */
struct shca_guest {
	struct shca_guest *next;
	struct shca_qp *qp;
	uint32_t qpn;
	/* Under the QP's lock. */
	uint64_t qp_id;
	uint32_t loan;
	uint16_t home;
	_Atomic bool held; /* the responder is here; read anywhere */
	bool told; /* the home has the state */
	bool unknown; /* its first request was for no SRQ of this process */
	bool recalled; /* it goes home behind the message at hand */
	int event; /* that it failed with, or -1 */
	_Atomic uint64_t used_ns;
	uint8_t attr[W_LEN - W_ATTR];
};

#define BUCKETS 64

/* Those of this process. Those that have the responder are the engine's
 * unsettled. */
struct shca_guests {
	pthread_mutex_t lock;
	struct shca_guest *bucket[BUCKETS];
	_Atomic unsigned n;
};

/* The responder goes home */

static void hold(struct shca_guest *g, bool held)
{
	_Atomic unsigned *n = &g->qp->sched.engine->unsettled;

	if (held && !g->held)
		atomic_fetch_add(n, 1);
	else if (!held && g->held)
		atomic_fetch_sub(n, 1);
	g->held = held;
}

/* keeps: reports the state, and keeps the responder. */
static void give_back(struct shca_qp *qp, const struct roce_rx *pkt, bool keeps)
{
	struct shca_guest *g = qp->xrc->guest;
	bool failed = qp->core->state == IBV_QPS_ERR;
	struct engine *e = qp->sched.engine;
	struct roce_rsp_state s;
	uint8_t w[W_LEN];

	roce_rsp_get(roce_qp(qp->core), &s);
	shca_word_begin(w, RETURN, e, g->qpn, g->loan, g->qp_id, &s);
	if (keeps)
		w[W_FLAGS] |= F_KEEPS;
	if (failed)
		w[W_FLAGS] |= F_FAILED;
	if (g->unknown)
		w[W_FLAGS] |= F_UNKNOWN;
	put_be32(w + W_SRQN, pkt ? pkt->h.xrc_srqn : 0);
	put_be32(w + W_EVENT, (uint32_t)g->event);
	if (shca_word_send(e, g->home, w, roce_qp_path(roce_qp(qp->core)),
			   pkt) == -EAGAIN)
		return;
	g->told = true;
	if (!keeps)
		hold(g, false);
}

/* Between two messages with nothing to send; or failed, and the peer knows. */
static bool settled(struct shca_qp *qp)
{
	struct roce_rsp_state s;

	roce_rsp_get(roce_qp(qp->core), &s);
	return s.idle || (qp->core->state == IBV_QPS_ERR &&
			  !roce_tx_ready(roce_qp(qp->core)));
}

/* Ends a loan at any point; lock held. */
static void finish(struct shca_qp *qp)
{
	if (qp->sched.dead || !qp->xrc->guest->held)
		return;
	/* The peer waits for an answer, and the link may be busy. */
	for (int i = 0; i < 100 && roce_tx_ready(roce_qp(qp->core)); i++) {
		if (i)
			sys_sleep(500000);
		shca_qp_flush(qp, clock_ns());
	}
	/* A message that has begun cannot be finished. */
	if (!settled(qp))
		roce_rsp_failed(roce_qp(qp->core), IBV_EVENT_QP_FATAL);
	give_back(qp, NULL, false);
}

/*
 * The home gets the state before the peer gets an answer, so that it goes on
 * from where the peer is if this process dies.
 */
static void guest_note(struct shca_qp *qp)
{
	struct roce_rsp_state s;

	if (!qp->xrc->guest->held || qp->xrc->guest->told ||
	    !roce_tx_ready(roce_qp(qp->core)))
		return;
	roce_rsp_get(roce_qp(qp->core), &s);
	if (s.between && qp->core->state != IBV_QPS_ERR)
		give_back(qp, NULL, true);
}

/* Idle guests give the responder back. */
void shca_guest_settle(struct engine *e, uint64_t now)
{
	struct shca_guests *all = to_process(e)->xrc.guests;
	struct shca_qp *held[32];
	size_t n = 0;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct shca_guest *g = all->bucket[i]; g; g = g->next)
			if (g->held && n < ARRAY_SIZE(held)) {
				shca_qp_get(g->qp);
				held[n++] = g->qp;
			}
	pthread_mutex_unlock(&all->lock);
	while (n) {
		struct shca_qp *qp = held[--n];

		if (shca_qp_trylock(qp)) {
			if (!qp->sched.dead && qp->xrc->guest->held) {
				uint64_t due =
					qp->xrc->guest->used_ns + SETTLE_NS;

				shca_qp_flush(qp, now);
				if (!settled(qp))
					due = now + SETTLE_NS;
				else if (now >= due ||
					 qp->xrc->guest->recalled ||
					 qp->core->state == IBV_QPS_ERR)
					give_back(qp, NULL, false);
				else if (!qp->xrc->guest->told)
					give_back(qp, NULL, true);
				if (qp->xrc->guest->held)
					engine_timer_set(
						e, &qp->sched,
						due > now ? due :
							    now + SETTLE_NS);
			}
			shca_qp_unlock(qp);
		}
		shca_qp_put(qp);
	}
}

static void guest_event(struct shca_qp *qp, enum ibv_event_type event)
{
	if (event == IBV_EVENT_QP_REQ_ERR || event == IBV_EVENT_QP_ACCESS_ERR ||
	    event == IBV_EVENT_QP_FATAL)
		qp->xrc->guest->event = (int)event;
}

/* A packet comes */

bool shca_guest_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now)
{
	struct shca_guest *g = qp->xrc->guest;
	struct engine *e = qp->sched.engine;
	struct roce_rsp_state s;
	int32_t rel;

	roce_rsp_get(roce_qp(qp->core), &s);
	rel = psn_diff(pkt->h.psn, s.epsn);
	g->used_ns = now;
	g->told = false;
	if (rel < 0 && shca_has_answer(pkt))
		return false;
	if (!g->held) {
		give_back(qp, pkt, false); /* it may have been lost */
		return true;
	}
	if (rel || !s.between ||
	    (!g->recalled && shca_domain_has(qp->xrc->domain, pkt->h.xrc_srqn)))
		return false;
	shca_qp_flush(qp, now);
	if (!settled(qp))
		return true;
	g->unknown =
		!g->recalled && registry_owner(e->registry, pkt->h.xrc_srqn) ==
					(int)registry_slot(e->registry);
	give_back(qp, pkt, false);
	return true;
}

/* Beginning and end */

/* Frees a guest that is out of the table. */
static void guest_kill(struct engine *e, struct shca_guest *g)
{
	struct shca_qp *qp = g->qp;

	shca_qp_lock(qp);
	finish(qp);
	qp->sched.dead = true;
	if (qp->core)
		roce_qp_destroy(roce_qp(qp->core));
	qp->core = NULL;
	hold(g, false);
	qp->xrc->guest = NULL;
	shca_qp_unlock(qp);
	engine_timer_drop(e, &qp->sched);
	shca_qp_put(qp);
	free(g);
}

/* Of a QP that no longer exists: no home waits for its responder. */
static void guest_drop(struct engine *e, struct shca_guest *g)
{
	shca_qp_lock(g->qp);
	hold(g, false);
	shca_qp_unlock(g->qp);
	guest_kill(e, g);
}

/* Removes those that which() selects; the caller kills them. */
static struct shca_guest *guests_take(struct engine *e,
				      bool (*which)(const struct shca_guest *g,
						    const void *arg),
				      const void *arg)
{
	struct shca_guests *all = to_process(e)->xrc.guests;
	struct shca_guest **p, *g, *list = NULL;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++) {
		p = &all->bucket[i];
		while ((g = *p)) {
			if (!which(g, arg)) {
				p = &g->next;
				continue;
			}
			*p = g->next;
			all->n--;
			g->next = list;
			list = g;
		}
	}
	pthread_mutex_unlock(&all->lock);
	return list;
}

static void guests_kill(struct engine *e, struct shca_guest *list)
{
	struct shca_guest *next;

	for (; list; list = next) {
		next = list->next;
		guest_kill(e, list);
	}
}

static bool is_of_domain(const struct shca_guest *g, const void *domain)
{
	return g->qp->xrc->domain == domain;
}

/* Calls fn for each of a domain's, with the QP's lock held. */
static void guests_of(struct engine *e, const struct shca_domain *d,
		      void (*fn)(struct shca_qp *qp, const void *arg),
		      const void *arg)
{
	struct shca_guests *all = to_process(e)->xrc.guests;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++) {
		for (struct shca_guest *g = all->bucket[i]; g; g = g->next) {
			if (!is_of_domain(g, d))
				continue;
			shca_qp_lock(g->qp);
			fn(g->qp, arg);
			shca_qp_unlock(g->qp);
		}
	}
	pthread_mutex_unlock(&all->lock);
}

static void guest_finish(struct shca_qp *qp, const void *arg)
{
	(void)arg;
	finish(qp);
}

static void guest_domain_gone(struct engine *e, struct shca_domain *d)
{
	struct shca_guest *list;

	/* Done while they can still be found: otherwise a home would get an
	 * older state back, with the answer that there is no such domain. */
	guests_of(e, d, guest_finish, NULL);
	list = guests_take(e, is_of_domain, d);
	/* Then nobody can find or have them, nor one that the receive side has
	 * removed. */
	engine_quiesce(e);
	guests_kill(e, list);
}

static void guest_without_srq(struct shca_qp *qp, const void *num)
{
	if (qp->sched.dead)
		return;
	roce_srq_gone(roce_qp(qp->core), *(const uint32_t *)num);
	shca_qp_flush(qp, clock_ns());
}

static void guest_srq_gone(struct engine *e, struct shca_domain *d,
			   uint32_t num)
{
	guests_of(e, d, guest_without_srq, &num);
}

static bool is_unused(const struct shca_guest *g, const void *now)
{
	return !g->held && *(const uint64_t *)now > g->used_ns + GUEST_IDLE_NS;
}

static struct shca_guest **guest_slot(struct engine *e, uint32_t qpn)
{
	struct shca_guest **p =
		&to_process(e)->xrc.guests->bucket[qpn % BUCKETS];

	while (*p && (*p)->qpn != qpn)
		p = &(*p)->next;
	return p;
}

/*
 * The guest for the QP that a word is about, found or made, with a reference on
 * its QP; NULL if there is no such domain. A guest of that number in another
 * domain is left over from an earlier QP.
 */
static struct shca_qp *guest_get(struct engine *e, const uint8_t *w,
				 uint64_t now)
{
	struct shca_process *proc = to_process(e);
	struct shca_guests *all = to_process(e)->xrc.guests;
	uint32_t qpn = get_be32(w + W_QPN) & 0xffffff;
	uint8_t key[SHCA_DOMAIN_KEY];
	struct shca_guest **slot, *g;
	struct shca_domain *d;
	struct shca_xrc *xrc;
	struct shca_qp *qp;

	pthread_mutex_lock(&all->lock);
	slot = guest_slot(e, qpn);
	g = *slot;
	if (g && shca_domain_key(g->qp->xrc->domain, key) &&
	    !memcmp(key, w + W_DOMAIN, sizeof(key))) {
		qp = g->qp;
		shca_qp_get(qp);
		pthread_mutex_unlock(&all->lock);
		return qp;
	}
	if (g) {
		*slot = g->next;
		all->n--;
	}
	pthread_mutex_unlock(&all->lock);
	if (g)
		guest_drop(e, g);
	if (all->n >= GUESTS_MAX)
		guests_kill(e, guests_take(e, is_unused, &now));
	g = calloc(1, sizeof(*g));
	qp = calloc(1, sizeof(*qp));
	xrc = calloc(1, sizeof(*xrc));
	/* xrc.lock keeps the domain until the guest is in the table; from then
	 * on the domain takes it along when it goes. */
	pthread_mutex_lock(&proc->xrc.lock);
	d = shca_domain_find(e, w + W_DOMAIN);
	if (!g || !qp || !xrc || !d || all->n >= GUESTS_MAX) {
		pthread_mutex_unlock(&proc->xrc.lock);
		free(g);
		free(qp);
		free(xrc);
		return NULL;
	}
	shca_qp_init(qp, e, &shca_roce);
	shca_qp_get(qp); /* for the caller */
	qp->ops = &shca_roce_ops;
	qp->sched.num = qpn;
	qp->sched.foreign = true;
	pthread_mutex_init(&qp->modify_lock, NULL);
	qp->ex.qp_base.qp_num = qpn;
	qp->ex.qp_base.qp_type = IBV_QPT_XRC_RECV;
	xrc->domain = d;
	xrc->guest = g;
	xrc->abandoned = true; /* no handle, so no events */
	qp->xrc = xrc;
	g->qp = qp;
	g->qpn = qpn;
	g->used_ns = now;
	pthread_mutex_lock(&all->lock);
	/* Only the receive side makes guests, so there is still none. */
	g->next = all->bucket[qpn % BUCKETS];
	all->bucket[qpn % BUCKETS] = g;
	all->n++;
	pthread_mutex_unlock(&all->lock);
	pthread_mutex_unlock(&proc->xrc.lock);
	return qp;
}

/* The responder comes, or a request that it has executed here before */

static int core_create(struct shca_qp *qp, const uint8_t *w)
{
	struct qp_init init = {
		.env = &to_process(qp->sched.engine)->env.base,
		.owner = qp,
		.qpn = get_be32(w + W_QPN) & 0xffffff,
		.type = IBV_QPT_XRC_RECV,
		.seed = get_be32(w + W_QPN) * 0x9e3779b1u,
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qp_access_flags = get_be32(w + W_ACCESS),
		.path_mtu = w[W_MTU],
		.dest_qp_num = get_be32(w + W_DEST_QPN) & 0xffffff,
		.rq_psn = get_be32(w + W_EPSN) & 0xffffff,
		.max_dest_rd_atomic = w[W_RD_ATOMIC],
		.min_rnr_timer = w[W_RNR_TIMER],
	};
	struct roce_path path = {
		.sgid_scope = get_be32(w + W_SCOPE),
		.flow_label = get_be32(w + W_FLOW),
		.sport = (uint16_t)get_be16(w + W_SPORT),
		.tclass = w[W_TCLASS],
		.hop_limit = w[W_HOPS],
		.local = w[W_LOCAL] & 1,
		.lossless = w[W_LOCAL] & 2,
	};
	struct roce_qp *core;
	int err;

	memcpy(path.sgid.raw, w + W_SGID, 16);
	memcpy(path.dgid.raw, w + W_DGID, 16);
	if (roce_gid_is_v4(&path.sgid) != roce_gid_is_v4(&path.dgid) ||
	    attr.path_mtu < IBV_MTU_256 || attr.path_mtu > IBV_MTU_4096)
		return -EINVAL;
	err = roce_qp_create(&core, &init);
	if (err)
		return err;
	err = roce_qp_modify(core, &attr,
			     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
				     IBV_QP_ACCESS_FLAGS,
			     NULL);
	attr.qp_state = IBV_QPS_RTR;
	if (!err)
		err = roce_qp_modify(core, &attr,
				     IBV_QP_STATE | IBV_QP_AV |
					     IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					     IBV_QP_RQ_PSN |
					     IBV_QP_MAX_DEST_RD_ATOMIC |
					     IBV_QP_MIN_RNR_TIMER,
				     &path);
	if (err) {
		roce_qp_destroy(core);
		return err;
	}
	if (qp->core)
		roce_qp_destroy(roce_qp(qp->core));
	qp->core = roce_qp_base(core);
	return 0;
}

/* LEND or AGAIN; lock held. False: the packet is to be dropped. */
static bool guest_prepare(struct shca_qp *qp, const uint8_t *w)
{
	struct shca_guest *g = qp->xrc->guest;
	uint32_t loan = get_be32(w + W_LOAN);
	struct roce_rsp_state s = shca_word_state(w);
	/* Then the peer sends it again; but what has begun goes on. */
	const bool leaves =
		atomic_load(&to_process(qp->sched.engine)->xrc.leaves);
	bool other, fresh;

	if (!g)
		return false; /* it is being killed */
	other = !qp->core || g->qp_id != get_be64(w + W_QP_ID) ||
		memcmp(g->attr, w + W_ATTR, sizeof(g->attr));
	fresh = !qp->core || g->qp_id != get_be64(w + W_QP_ID) ||
		(int32_t)(loan - g->loan) > 0;
	if (w[W_KIND] == AGAIN) {
		/* Before the first loan nothing was executed here. */
		if (leaves || other || g->held ||
		    qp->core->state == IBV_QPS_ERR)
			return false;
		roce_rsp_set(roce_qp(qp->core), &s);
		return true;
	}
	if (!fresh)
		return loan == g->loan;
	if (leaves)
		return false;
	if ((other || qp->core->state == IBV_QPS_ERR) && core_create(qp, w))
		return false;
	qp->sched.dead = false;
	memcpy(g->attr, w + W_ATTR, sizeof(g->attr));
	g->qp_id = get_be64(w + W_QP_ID);
	g->home = (uint16_t)get_be16(w + W_SLOT);
	g->loan = loan;
	g->event = -1;
	g->unknown = g->recalled = false;
	hold(g, true);
	roce_rsp_set(roce_qp(qp->core), &s);
	return true;
}

/* There is no such domain in this process. */
static void refuse(struct engine *e, const uint8_t *w,
		   const struct roce_rx *inner)
{
	uint8_t r[W_LEN];

	if (w[W_KIND] != LEND)
		return;
	memcpy(r, w, W_LEN);
	r[W_KIND] = RETURN;
	r[W_FLAGS] |= F_UNKNOWN;
	put_be16(r + W_SLOT, registry_slot(e->registry));
	put_be32(r + W_SRQN, inner->h.xrc_srqn);
	shca_word_send(e, get_be16(w + W_SLOT), r, NULL, inner);
}

struct shca_qp *shca_guest_word(struct engine *e, const uint8_t *w,
				const struct roce_rx *inner, uint64_t now)
{
	struct shca_qp *qp = guest_get(e, w, now);
	bool good;

	if (!qp) {
		refuse(e, w, inner);
		return NULL;
	}
	shca_qp_lock(qp);
	good = guest_prepare(qp, w);
	shca_qp_unlock(qp);
	/* No reference is needed: guest_domain_gone() waits for the
	 * receive side. */
	shca_qp_put(qp);
	return good ? qp : NULL;
}

/* Lock held. */
static void guest_recall(struct shca_qp *qp)
{
	struct shca_guest *g = qp->xrc->guest;

	if (qp->sched.dead || !g->held)
		return;
	g->recalled = true;
	shca_qp_flush(qp, clock_ns());
	if (settled(qp))
		give_back(qp, NULL, false);
}

void shca_guest_recall(struct engine *e, const uint8_t *w)
{
	struct shca_guests *all = to_process(e)->xrc.guests;
	const uint32_t qpn = get_be32(w + W_QPN) & 0xffffff;
	struct shca_guest *g;

	pthread_mutex_lock(&all->lock);
	g = *guest_slot(e, qpn);
	if (g) {
		shca_qp_lock(g->qp);
		if (g->qp_id == get_be64(w + W_QP_ID) &&
		    g->loan == get_be32(w + W_LOAN))
			guest_recall(g->qp);
		shca_qp_unlock(g->qp);
	}
	pthread_mutex_unlock(&all->lock);
}

uint32_t shca_guests_recall(struct engine *e)
{
	struct shca_guests *all = to_process(e)->xrc.guests;
	uint32_t left = 0;

	pthread_mutex_lock(&all->lock);
	for (size_t i = 0; i < BUCKETS; i++)
		for (struct shca_guest *g = all->bucket[i]; g; g = g->next) {
			shca_qp_lock(g->qp);
			guest_recall(g->qp);
			if (g->held)
				left = g->qpn;
			shca_qp_unlock(g->qp);
		}
	pthread_mutex_unlock(&all->lock);
	return left;
}

static const struct shca_xrc_ops xrc_ops = {
	.rx = shca_loan_rx,
	.note = guest_note,
	.event = guest_event,
	.forget = shca_loan_forget,
	.srq_gone = guest_srq_gone,
	.domain_gone = guest_domain_gone,
};

int shca_guests_init(struct engine *e)
{
	struct shca_guests *all = calloc(1, sizeof(*all));

	if (!all)
		return -ENOMEM;
	pthread_mutex_init(&all->lock, NULL);
	to_process(e)->xrc.guests = all;
	to_process(e)->xrc.ops = &xrc_ops;
	return 0;
}

void shca_guests_fini(struct engine *e)
{
	free(to_process(e)->xrc.guests);
	to_process(e)->xrc.guests = NULL;
}
