/*
 * refused.c - why a key does not allow what is asked of it, in words
 *
 * The key is looked up once more, after it has been refused: if it is good by
 * then, it has been changed in between. Where it leads nowhere, the usual
 * mistakes are tried: the other byte order, the other key of the region, a key
 * of the past.
 */
#include "refused.h"

#include "qp.h"

#include "base/bytes.h"
#include "base/lines.h"

#include <inttypes.h>
#include <stdio.h>

const char *key_access_str(uint32_t access)
{
	static const struct {
		uint32_t bit;
		const char *name;
	} names[] = {
		{ IBV_ACCESS_LOCAL_WRITE, "IBV_ACCESS_LOCAL_WRITE" },
		{ IBV_ACCESS_REMOTE_WRITE, "IBV_ACCESS_REMOTE_WRITE" },
		{ IBV_ACCESS_REMOTE_READ, "IBV_ACCESS_REMOTE_READ" },
		{ IBV_ACCESS_REMOTE_ATOMIC, "IBV_ACCESS_REMOTE_ATOMIC" },
		{ IBV_ACCESS_MW_BIND, "IBV_ACCESS_MW_BIND" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (access & names[i].bit)
			return names[i].name;
	return "no permission";
}

static void facts_of(const struct key_entry *e, struct key_facts *f)
{
	*f = (struct key_facts){
		.lkey = atomic_load_explicit(&e->lkey, memory_order_relaxed),
		.rkey = atomic_load_explicit(&e->rkey, memory_order_relaxed),
		.access = e->access,
		.pd = e->pd,
		.qpn = e->qpn,
		.kind = e->kind,
		.iova = e->iova,
		.length = e->length,
	};
}

bool keys_look(void *keys, uint32_t key, struct key_facts *f)
{
	struct keys *k = keys;
	uint32_t hint = 0;
	struct key_entry *e = keys_get_remote(k, key, &hint);
	bool local;

	if (!e)
		e = keys_get_local(k, key, &hint);
	if (e) {
		facts_of(e, f);
		keys_put(e);
		return true;
	}
	if (!keys_was(k, key, &local))
		return false;
	*f = (struct key_facts){ .past = true,
				 .lkey = local || k->one ? key : 0,
				 .rkey = !local || k->one ? key : 0 };
	return true;
}

static void unknown(key_look_fn *look, void *table, const struct key_ask *ask,
		    struct key_why *why)
{
	const uint32_t swapped = __builtin_bswap32(ask->key);
	const char *name = ask->remote ? "rkey" : "lkey";
	struct key_facts f;

	if (!ask->key)
		snprintf(why->text, sizeof(why->text),
			 "0 is no %s: was it set%s?", name,
			 ask->remote ? ", and sent to the peer" : "");
	else if (look(table, swapped, &f) && !f.past)
		snprintf(why->text, sizeof(why->text),
			 "there is no such %s, but byte-swapped it is 0x%08x, "
			 "which exists: convert it with htonl() where it is "
			 "sent, and ntohl() where it arrives",
			 name, swapped);
	else
		snprintf(why->text, sizeof(why->text),
			 "no region has this %s: %s", name,
			 ask->remote ? "use mr->rkey of the process that has "
				       "the memory, sent in full" :
				       "use mr->lkey of the region that the "
				       "memory is in");
}

/* Whether it is inside with the upper half of an address of the region: that was
 * in 32 bits, with a sign or without. */
static bool is_cut(const struct key_ask *ask, const struct key_facts *f)
{
	const uint64_t half = UINT32_MAX, low = ask->va & half;
	const uint64_t last = f->iova + f->length - 1;

	return (ask->va == low || ask->va == (uint64_t)(int64_t)(int32_t)low) &&
	       !key_holds(f->iova, f->length, ask->va, ask->len) &&
	       (key_holds(f->iova, f->length, (f->iova & ~half) | low,
			  ask->len) ||
		key_holds(f->iova, f->length, (last & ~half) | low, ask->len));
}

static void outside(const struct key_ask *ask, const struct key_facts *f,
		    struct key_why *why)
{
	const uint64_t end = f->iova + f->length, to = ask->va + ask->len;
	const char *hint = "";
	char how[120];

	if (to < ask->va)
		snprintf(how, sizeof(how), "ends beyond the address space");
	else if (ask->va < f->iova && to > end)
		snprintf(how, sizeof(how),
			 "begins %" PRIu64 " byte%s before it and ends %" PRIu64
			 " byte%s beyond it",
			 f->iova - ask->va, plural(f->iova - ask->va), to - end,
			 plural(to - end));
	else if (ask->va < f->iova)
		snprintf(how, sizeof(how),
			 "begins %" PRIu64 " byte%s before it",
			 f->iova - ask->va, plural(f->iova - ask->va));
	else
		snprintf(how, sizeof(how), "ends %" PRIu64 " byte%s beyond it",
			 to - end, plural(to - end));
	if (key_holds(f->iova, f->length, __builtin_bswap64(ask->va), ask->len))
		hint = "; with its bytes in the other order the address is "
		       "inside: convert it with htobe64() and be64toh()";
	else if (is_cut(ask, f))
		hint = "; with the upper 32 bits of the region's address it is "
		       "inside: hold addresses in 64 bits";
	else if (f->access & IBV_ACCESS_ZERO_BASED)
		hint = "; addresses in a region with IBV_ACCESS_ZERO_BASED "
		       "begin at 0";
	snprintf(why->text, sizeof(why->text),
		 "[0x%" PRIx64 ", 0x%" PRIx64
		 ") is not inside its region [0x%" PRIx64 ", 0x%" PRIx64
		 "): it %s%s",
		 ask->va, to, f->iova, end, how, hint);
}

const char *key_refused(key_look_fn *look, void *table,
			const struct key_ask *ask, struct key_why *why)
{
	const char *name = ask->remote ? "rkey" : "lkey";
	const size_t size = sizeof(why->text);
	struct key_facts f;

	if (!ask->key || !look(table, ask->key, &f)) {
		unknown(look, table, ask, why);
	} else if (f.past) {
		snprintf(why->text, size,
			 "the region with this %s has been deregistered (or "
			 "its window bound anew): deregister only when it is "
			 "no longer used",
			 f.lkey == f.rkey ? name :
			 f.rkey           ? "rkey" :
					    "lkey");
	} else if (ask->remote ? f.rkey != ask->key : f.lkey != ask->key) {
		snprintf(why->text, size,
			 "that is the %s of a region, and here its %s is "
			 "needed, 0x%08x",
			 ask->remote ? "lkey" : "rkey", name,
			 ask->remote ? f.rkey : f.lkey);
	} else if (f.kind == KEY_MW2 && f.qpn != ask->qpn) {
		snprintf(why->text, size,
			 "its memory window of type 2 is bound to QP 0x%06x, "
			 "and works for no other",
			 f.qpn);
	} else if (f.pd != ask->pd) {
		snprintf(why->text, size,
			 "its region [0x%" PRIx64 ", 0x%" PRIx64
			 ") is of another PD than the QP: create both with the "
			 "same",
			 f.iova, f.iova + f.length);
	} else if (!key_holds(f.iova, f.length, ask->va, ask->len)) {
		outside(ask, &f, why);
	} else if ((f.access & ask->access) != ask->access) {
		snprintf(why->text, size,
			 "its region [0x%" PRIx64 ", 0x%" PRIx64
			 ") lacks %s: give that to ibv_reg_mr()",
			 f.iova, f.iova + f.length,
			 key_access_str(ask->access & ~f.access));
	} else {
		return NULL;
	}
	return why->text;
}

/* What the program is told, where it wants to know; else NULL. */
static const char *reason(const struct qp *qp, const struct key_ask *ask,
			  struct key_why *why)
{
	if (!qp->env->explain)
		return NULL;
	return key_refused(keys_look, qp->env->keys, ask, why) ?:
		       "the region was changed just now";
}

/* Whoever asks hears of some mistakes. */
static void note_mistake(struct qp *qp, const struct key_ask *ask)
{
	struct key_facts f;

	if (!qp->env->refused || !keys_look(qp->env->keys, ask->key, &f))
		return;
	if (f.past)
		qp->env->refused(qp, CHECK_KEY_PAST, ask);
	else if (ask->remote ? f.rkey != ask->key : f.lkey != ask->key)
		qp->env->refused(qp, CHECK_KEY_OTHER, ask);
	else if (is_cut(ask, &f))
		qp->env->refused(qp, CHECK_KEY_CUT, ask);
}

void qp_explain_sge(struct qp *qp, const char *what, uint64_t wr_id, uint32_t i,
		    const struct ibv_sge *sge, uint32_t pd, uint32_t access)
{
	const struct key_ask ask = {
		.key = sge->lkey,
		.pd = pd,
		.qpn = qp->qpn,
		.va = sge->addr,
		.len = sge->length,
		.access = access,
	};
	struct key_why why;
	const char *text = reason(qp, &ask, &why);

	note_mistake(qp, &ask);
	if (!text)
		return;
	qp_explain(qp,
		   "SGE %u of %s 0x%" PRIx64
		   " refused: lkey 0x%08x for [0x%" PRIx64 ", +%u): %s",
		   i, what, wr_id, sge->lkey, sge->addr, sge->length, text);
}

void qp_explain_remote(struct qp *qp, const char *request, uint32_t pd,
		       uint32_t rkey, uint64_t va, uint64_t len,
		       uint32_t access)
{
	const struct key_ask ask = {
		.key = rkey,
		.remote = true,
		.pd = pd,
		.qpn = qp->qpn,
		.va = va,
		.len = len,
		.access = access,
	};
	struct key_why why;
	const char *text = reason(qp, &ask, &why);

	note_mistake(qp, &ask);
	if (!text)
		return;
	qp_explain(qp,
		   "%s of %" PRIu64 " byte%s at 0x%" PRIx64
		   " with rkey 0x%08x refused: %s",
		   request, len, plural(len), va, rkey, text);
}
