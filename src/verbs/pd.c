/*
 * pd.c - protection domains, and what extends them: thread and parent domains
 *
 * A protection domain is a number that keys and QPs carry; it is never reused.
 * A parent domain and an imported domain are other handles of the same number;
 * an object made with a handle keeps that handle.
 *
 * A parent domain may have the program's own allocator for the memory of
 * queues. Such memory begins with a header that names the domain whose
 * allocator takes it back.
 */
#include "verbs.h"

#include "base/why.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Queues begin on a cache line. */
#define MEM_ALIGN 64

struct mem_head {
	struct shca_pd *pd; /* whose free() takes it; NULL: the C library's */
	uint64_t type;
};

_Static_assert(sizeof(struct mem_head) <= MEM_ALIGN, "no room for the header");

void shca_pd_get(struct ibv_pd *ibpd)
{
	atomic_fetch_add(&to_pd(ibpd)->refs, 1);
}

void shca_pd_put(struct ibv_pd *ibpd)
{
	struct shca_pd *pd = to_pd(ibpd);

	if (atomic_fetch_sub(&pd->refs, 1) == 1)
		free(pd);
}

static int pd_create(struct ibv_context *ibctx, struct shca_pd **out)
{
	struct engine *e = to_ctx(ibctx)->engine;
	struct shca_pd *pd;
	int err;

	if (engine_dead(e))
		return -EIO;
	err = shca_count(e, SHCA_PD);
	if (err)
		return err;
	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		shca_uncount(e, SHCA_PD);
		return -ENOMEM;
	}
	pd->pd.context = ibctx;
	atomic_store(&pd->refs, 1);
	atomic_fetch_add(&to_ctx(ibctx)->users, 1);
	*out = pd;
	return 0;
}

static void list_remove(struct engine *e, struct shca_pd *pd)
{
	struct shca_process *proc = to_process(e);
	struct shca_pd **p;

	pthread_mutex_lock(&proc->memory.lock);
	for (p = &proc->memory.pds; *p && *p != pd; p = &(*p)->next)
		;
	if (*p)
		*p = pd->next;
	pthread_mutex_unlock(&proc->memory.lock);
}

int shca_pd_alloc(struct ibv_context *ibctx, struct ibv_pd **out)
{
	struct engine *e = to_ctx(ibctx)->engine;
	struct shca_process *proc = to_process(e);
	struct shca_pd *pd;
	int err = engine_fault(FAULT_ALLOC_PD) ?: pd_create(ibctx, &pd);

	if (err)
		return err;
	pd->num = atomic_fetch_add(&proc->memory.next_pd, 1) + 1;
	pd->pd.handle = pd->num;
	pthread_mutex_lock(&proc->memory.lock);
	pd->next = proc->memory.pds;
	proc->memory.pds = pd;
	pthread_mutex_unlock(&proc->memory.lock);
	shca_live_add(&pd->live, &pd->pd, SHCA_PD);
	*out = &pd->pd;
	return 0;
}

/* The handle goes now, its memory when nothing points to it. */
static void pd_release(struct shca_pd *pd)
{
	struct shca_context *ctx = to_ctx(pd->pd.context);

	shca_live_remove(&pd->live);
	list_remove(ctx->engine, pd);
	if (pd->of)
		shca_pd_put(&pd->of->pd);
	if (pd->td)
		atomic_fetch_sub(&pd->td->users, 1);
	shca_uncount(ctx->engine, SHCA_PD);
	atomic_fetch_sub(&ctx->users, 1);
}

int shca_pd_free(struct ibv_pd *ibpd)
{
	struct shca_pd *pd = to_pd(ibpd);
	int err = shca_check(ibpd, SHCA_PD);
	unsigned one = 1;

	if (err)
		return err;
	if (!atomic_compare_exchange_strong(&pd->refs, &one, 0))
		return shca_busy(ibpd, "the PD");
	pd_release(pd);
	free(pd);
	return 0;
}

/* Sharing between contexts of one command file, see dm.c */

int shca_pd_import(struct ibv_context *ibctx, uint32_t handle,
		   struct ibv_pd **out)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct engine *e = ctx->engine;
	struct shca_process *proc = to_process(e);
	struct shca_pd *pd, *of;
	int err;

	/* A number does not reach another process's memory. */
	if (!shca_file_is_ours(ctx->file, e))
		return -EOPNOTSUPP;
	err = pd_create(ibctx, &pd);
	if (err)
		return err;
	/* It holds no reference on the other: either may go first. */
	pd->num = pd->pd.handle = handle;
	shca_live_add(&pd->live, &pd->pd, SHCA_PD);
	pthread_mutex_lock(&proc->memory.lock);
	for (of = proc->memory.pds; of; of = of->next)
		if (of->num == handle &&
		    shca_file_same(to_ctx(of->pd.context)->file, ctx->file))
			break;
	pthread_mutex_unlock(&proc->memory.lock);
	if (!of) {
		shca_pd_free(&pd->pd);
		return why(-ENOENT,
			   "handle %u names no PD of that command file",
			   handle);
	}
	*out = &pd->pd;
	return 0;
}

void shca_pd_unimport(struct ibv_pd *ibpd)
{
	if (shca_check(ibpd, SHCA_PD))
		return;
	pd_release(to_pd(ibpd));
	shca_pd_put(ibpd);
}

/* Thread domains. They promise that one thread uses an object, which changes
 * nothing here. */

int shca_td_alloc(struct ibv_context *ibctx,
		  const struct ibv_td_init_attr *attr, struct ibv_td **out)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_td *td;

	if (engine_dead(ctx->engine))
		return -EIO;
	if (attr->comp_mask)
		return why(-EINVAL, "comp_mask is 0x%x, not 0",
			   attr->comp_mask);
	td = calloc(1, sizeof(*td));
	if (!td)
		return -ENOMEM;
	td->td.context = ibctx;
	atomic_fetch_add(&ctx->users, 1);
	*out = &td->td;
	return 0;
}

int shca_td_free(struct ibv_td *ibtd)
{
	struct shca_context *ctx = to_ctx(ibtd->context);
	struct shca_td *td = container_of(ibtd, struct shca_td, td);

	if (engine_dead(ctx->engine))
		return -EIO;
	if (atomic_load(&td->users))
		return why(-EBUSY, "the thread domain is still used by a "
				   "parent domain: deallocate that first");
	atomic_fetch_sub(&ctx->users, 1);
	free(td);
	return 0;
}

/* Parent domains */

int shca_pd_parent(struct ibv_context *ibctx,
		   const struct ibv_parent_domain_init_attr *attr,
		   struct ibv_pd **out)
{
	const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			       IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	struct shca_pd *pd;
	int err;

	if (!attr->pd)
		return why(-EINVAL,
			   "attr.pd is NULL: a parent domain extends a PD");
	err = shca_check(attr->pd, SHCA_PD);
	if (err)
		return err;
	if (attr->pd->context != ibctx ||
	    (attr->td && attr->td->context != ibctx))
		return why(-EINVAL,
			   "the PD or thread domain is of another context");
	if (attr->comp_mask & ~known)
		return why(-EINVAL, "bits of comp_mask are not known: 0x%x",
			   attr->comp_mask & ~known);
	/* With only one, memory could not go back where it came from. */
	if ((attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) &&
	    (!attr->alloc || !attr->free))
		return why(-EINVAL, "IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS "
				    "needs both alloc and free");
	err = pd_create(ibctx, &pd);
	if (err)
		return err;
	pd->parent = true;
	pd->of = to_pd(attr->pd);
	pd->num = pd->pd.handle = pd->of->num;
	shca_pd_get(attr->pd);
	if (attr->td) {
		pd->td = container_of(attr->td, struct shca_td, td);
		atomic_fetch_add(&pd->td->users, 1);
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
		pd->alloc = attr->alloc;
		pd->free = attr->free;
	}
	if (attr->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		pd->pd_context = attr->pd_context;
	shca_live_add(&pd->live, &pd->pd, SHCA_PD);
	*out = &pd->pd;
	return 0;
}

static void *mem_alloc(void *arg, size_t size, unsigned what)
{
	struct shca_pd *pd = arg;
	/* The upper half is the driver's ID; 0 is unknown. */
	struct mem_head head = { .type = what };
	uint8_t *p = IBV_ALLOCATOR_USE_DEFAULT;

	if (size > SIZE_MAX - 2 * MEM_ALIGN)
		return NULL;
	size = (size + MEM_ALIGN + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN;
	if (pd && pd->alloc) {
		p = pd->alloc(&pd->pd, pd->pd_context, size, MEM_ALIGN, what);
		head.pd = pd;
	}
	if (p == IBV_ALLOCATOR_USE_DEFAULT) {
		p = aligned_alloc(MEM_ALIGN, size);
		head.pd = NULL;
	}
	if (!p)
		return NULL;
	memcpy(p, &head, sizeof(head));
	return p + MEM_ALIGN;
}

static void mem_free(void *arg, void *mem)
{
	struct mem_head head;
	uint8_t *p = mem;

	(void)arg;
	if (!p)
		return;
	p -= MEM_ALIGN;
	memcpy(&head, p, sizeof(head));
	if (head.pd)
		head.pd->free(&head.pd->pd, head.pd->pd_context, p, head.type);
	else
		free(p);
}

struct qp_mem shca_pd_mem(struct ibv_pd *pd)
{
	return (struct qp_mem){
		.alloc = mem_alloc,
		.free = mem_free,
		.arg = pd ? to_pd(pd) : NULL,
	};
}
