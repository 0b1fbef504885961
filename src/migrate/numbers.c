/*
 * numbers.c - queue pair numbers that another process has where this one goes on
 *
 * A chunk of them then is another one on the wire, and the program keeps those that
 * it knows (engine_renumber()). Peers that were asked to wait are told. Whoever has
 * a number and cannot be told makes its chunk stay as it is: then the process cannot
 * go on as long as another one has it.
 */
#include "numbers.h"

#include "connect/gsi.h"
#include "connect/moving.h"
#include "link/exported_keys.h"
#include "os/config.h"
#include "verbs/verbs.h"

#include <stdio.h>
#include <string.h>

struct looker {
	struct numbers *n;
	struct engine *e;
	bool told;
	bool any; /* is fixed */
};

/* Of this process, too. */
static bool is_own_peer(struct engine *e, const struct roce_qp *r)
{
	return roce_qp_path(r)->local && engine_has_qp(e, roce_qp_dest(r));
}

/* Who has its number and would not hear of another one; NULL: nobody. */
static const char *who_has_it(const struct looker *l, const struct shca_qp *qp)
{
	const struct qp *core = qp->core;
	const struct roce_qp *r = roce_qp_const(core);
	struct roce_places at;

	if (!shca_qp_is_roce(qp) || core->state == IBV_QPS_ERR)
		return NULL;
	switch (core->type) {
	case IBV_QPT_RC:
	case IBV_QPT_UC:
		break;
	case IBV_QPT_UD:
		return "those who send to it have its number (UD)";
	default:
		return "it is of an XRC domain";
	}
	if (core->state < IBV_QPS_RTR)
		return "it is not connected, and its number may be known";
	if (is_own_peer(l->e, r))
		return NULL;
	if (core->type == IBV_QPT_UC)
		return "its peer cannot be told (UC)";
	if (!roce_qp_places(r, &at))
		return "its peer cannot be told (it is not in state RTS)";
	if (!l->told)
		return "its peer was not asked to wait, so it cannot be told "
		       "(softhca_suspend_for())";
	if (!moving_tells(l->e, qp->sched.num))
		return "its peer does not use softhca, or has not answered, so "
		       "it cannot be told";
	return NULL;
}

static void look(struct engine_qp *sched, void *arg)
{
	const struct shca_qp *qp = sched_qp(sched);
	struct looker *l = arg;
	const char *why = who_has_it(l, qp);
	struct numbers_fixed *f = &l->n->chunk[sched->num / REGISTRY_CHUNK];

	if (!why)
		return;
	*f = (struct numbers_fixed){ why, shca_qpn(qp) };
	l->any = true;
}

static bool may(void *arg, uint32_t first)
{
	struct numbers *n = arg;

	n->in_the_way = n->chunk[first / REGISTRY_CHUNK].why ? first : 0;
	return !n->in_the_way;
}

static void all_fixed(struct numbers *n, const char *why)
{
	for (size_t i = 0; i < REGISTRY_CHUNKS; i++)
		n->chunk[i].why = why;
}

void numbers_look(struct numbers *n, struct engine *e, bool told)
{
	struct shca_process *p = to_process(e);
	struct looker l = { n, e, told, false };
	size_t conns;

	memset(n, 0, sizeof(*n));
	n->other.may = may;
	n->other.arg = n;
	if (!engine_qps_each(e, look, &l))
		all_fixed(n, "there is no memory to look who has its number");
	n->ids = gsi_ids(e, &n->ids_first, &conns);
	if (n->ids && conns && l.any)
		n->chunk[n->ids_first / REGISTRY_CHUNK].why =
			"identifiers of rdma_cm's connections are of these "
			"numbers, and some of their peers cannot be told";
	pthread_mutex_lock(&p->xrc.lock);
	if (p->xrc.domains)
		all_fixed(n, "numbers of an XRC domain are among them");
	pthread_mutex_unlock(&p->xrc.lock);
}

void numbers_why(const struct numbers *n, char *text, size_t size)
{
	const struct numbers_fixed *f =
		&n->chunk[n->in_the_way / REGISTRY_CHUNK];

	*text = '\0';
	if (n->in_the_way && f->qpn)
		snprintf(text, size, "QP 0x%06x needs its own: %s", f->qpn,
			 f->why);
	else if (n->in_the_way)
		snprintf(text, size, "%s", f->why);
}

static void renumbered(struct engine_qp *sched, void *arg)
{
	struct qp *core = sched_qp(sched)->core;

	(void)arg;
	qp_renumber(core, sched->num);
	if (config_get()->explain)
		engine_explain(core,
			       "another process has its number where this one "
			       "goes on: on the wire it is 0x%06x from now on",
			       sched->num);
}

/* Where both ends are in this process. */
static void follow_own(struct engine_qp *sched, void *arg)
{
	const struct registry_other *other = arg;
	struct shca_qp *qp = sched_qp(sched);
	struct roce_path path;
	struct roce_qp *r;
	uint32_t dest;

	if (!shca_qp_is_roce(qp))
		return;
	r = roce_qp(qp->core);
	dest = roce_qp_dest(r);
	for (size_t i = 0; i < other->n; i++)
		if (roce_qp_path(r)->local &&
		    dest / REGISTRY_CHUNK ==
			    other->chunk[i].from / REGISTRY_CHUNK) {
			path = *roce_qp_path(r);
			roce_qp_follow(r, &path,
				       other->chunk[i].to +
					       dest % REGISTRY_CHUNK);
			return;
		}
}

void numbers_change(struct numbers *n, struct engine *e)
{
	struct shca_process *p = to_process(e);

	for (size_t i = 0; i < n->other.n; i++) {
		const uint32_t from = n->other.chunk[i].from;
		const uint32_t to = n->other.chunk[i].to;
		const bool ids = n->ids && n->ids_first == from;

		if (ids) {
			gsi_renumber(e, to);
		} else {
			engine_renumber(e, from, to, renumbered, NULL);
			pthread_mutex_lock(&p->memory.lock);
			if (p->segment)
				exported_qps_renumber(p->segment, from, to);
			pthread_mutex_unlock(&p->memory.lock);
		}
		moving_renumber(e, from, to, ids);
	}
	if (n->other.n)
		engine_qps_each(e, follow_own, &n->other);
}
