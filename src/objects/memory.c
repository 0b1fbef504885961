/*
 * memory.c - protection domains and memory regions
 *
 * Hardware pins the pages of a region; here registering touches them, which
 * finds out the same: whether they exist and may be written.
 */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define ACCESS_KNOWN                                                           \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |                   \
	 IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB |     \
	 IBV_ACCESS_OPTIONAL_RANGE)

int shca_pd_alloc(struct ibv_context *ibctx, struct ibv_pd **out)
{
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_pd *pd;
	int err;

	if (engine_dead(ctx->engine))
		return -EIO;
	err = engine_count(ctx->engine, SHCA_PD);
	if (err)
		return err;
	pd = calloc(1, sizeof(*pd));
	if (!pd) {
		engine_uncount(ctx->engine, SHCA_PD);
		return -ENOMEM;
	}
	pd->pd.context = ibctx;
	pd->num = atomic_fetch_add(&ctx->engine->next_pd, 1) + 1;
	pd->pd.handle = pd->num;
	atomic_fetch_add(&ctx->users, 1);
	*out = &pd->pd;
	return 0;
}

int shca_pd_free(struct ibv_pd *ibpd)
{
	struct shca_context *ctx = to_ctx(ibpd->context);
	struct shca_pd *pd = to_pd(ibpd);

	if (engine_dead(ctx->engine))
		return -EIO;
	if (atomic_load(&pd->users))
		return -EBUSY;
	engine_uncount(ctx->engine, SHCA_PD);
	atomic_fetch_sub(&ctx->users, 1);
	free(pd);
	return 0;
}

/*
 * The same from the list of mappings: for Linux before 5.14, which cannot
 * populate, and for what cannot be populated, device memory for one.
 */
static int mappings_check(uintptr_t begin, uintptr_t end, bool write)
{
	FILE *f = fopen("/proc/self/maps", "re");
	unsigned long from, to;
	char line[512], r, w;

	if (!f)
		return 0; /* no way to know */
	while (begin < end && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx %c%c", &from, &to, &r, &w) != 4 ||
		    to <= begin)
			continue;
		if (from > begin || r != 'r' || (write && w != 'w'))
			break;
		begin = to;
	}
	fclose(f);
	return begin < end ? -EFAULT : 0;
}

/* Whether the memory is there, and writable if it has to be. */
static int memory_check(void *addr, size_t length, bool write)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t begin = (uintptr_t)addr & ~(page - 1);
	uintptr_t end = (uintptr_t)addr + length;

	if (end < (uintptr_t)addr || end > UINTPTR_MAX - page)
		return -EINVAL;
	end = (end + page - 1) & ~(page - 1);
	while (madvise((void *)begin, end - begin,
		       write ? MADV_POPULATE_WRITE : MADV_POPULATE_READ)) {
		if (errno == EINTR || errno == EAGAIN)
			continue;
		return errno == EINVAL ? mappings_check(begin, end, write)
				       : -EFAULT;
	}
	return 0;
}

static int access_check(int access)
{
	if (access & ~(int)ACCESS_KNOWN)
		return -EINVAL;
	/* 10.6.3.1: remote write access without local makes no sense. */
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE))
		return -EINVAL;
	return 0;
}

static int region_check(void *addr, size_t length, int access)
{
	int err = access_check(access);

	if (!err && !length)
		err = -EINVAL;
	if (!err)
		err = memory_check(addr, length,
				   access & IBV_ACCESS_LOCAL_WRITE);
	return err;
}

static struct key_entry region_entry(const struct shca_mr *mr)
{
	return (struct key_entry){
		.access = (uint32_t)mr->access,
		.pd = to_pd(mr->mr.pd)->num,
		.kind = KEY_MR,
		.iova = mr->iova,
		.length = mr->mr.length,
		.addr = (uintptr_t)mr->mr.addr,
	};
}

int shca_mr_reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
		int access, struct ibv_mr **out)
{
	struct engine *e = to_ctx(pd->context)->engine;
	struct key_entry entry;
	struct shca_mr *mr;
	int err, slot;

	if (engine_dead(e))
		return -EIO;
	err = region_check(addr, length, access);
	if (err)
		return err;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return -ENOMEM;
	mr->mr.context = pd->context;
	mr->mr.pd = pd;
	mr->mr.addr = addr;
	mr->mr.length = length;
	mr->access = access;
	mr->iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova;
	if (mr->iova + length < mr->iova) {
		free(mr);
		return -EINVAL;
	}

	entry = region_entry(mr);
	pthread_mutex_lock(&e->keys_lock);
	slot = keys_add(&e->keys, &entry);
	pthread_mutex_unlock(&e->keys_lock);
	if (slot < 0) {
		free(mr);
		return slot;
	}
	mr->slot = (uint32_t)slot;
	mr->mr.handle = mr->slot;
	mr->mr.lkey = atomic_load(&e->keys.entry[slot].lkey);
	mr->mr.rkey = atomic_load(&e->keys.entry[slot].rkey);
	atomic_fetch_add(&to_pd(pd)->users, 1);
	*out = &mr->mr;
	return 0;
}

/*
 * The keys stay what they were: between killing and reviving the entry a peer
 * may be told that they do not exist, as ibv_rereg_mr(3) allows.
 */
int shca_mr_rereg(struct ibv_mr *ibmr, int flags, struct ibv_pd *pd, void *addr,
		  size_t length, int access)
{
	struct engine *e = to_ctx(ibmr->context)->engine;
	struct shca_mr *mr = container_of(ibmr, struct shca_mr, mr);
	struct shca_mr now = *mr;
	struct key_entry entry;
	int err = 0;

	if (engine_dead(e))
		return -EIO;
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		if (!pd || pd->context != ibmr->context)
			return -EINVAL;
		now.mr.pd = pd;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		now.access = access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		now.mr.addr = addr;
		now.mr.length = length;
		now.iova = (uintptr_t)addr;
	}
	if (now.access & IBV_ACCESS_ZERO_BASED)
		now.iova = 0;
	err = region_check(now.mr.addr, now.mr.length, now.access);
	if (err)
		return err;

	entry = region_entry(&now);
	pthread_mutex_lock(&e->keys_lock);
	if (e->keys.entry[mr->slot].windows) {
		err = -EBUSY;
	} else {
		keys_kill(&e->keys, mr->slot);
		keys_revive(&e->keys, mr->slot, &entry, ibmr->lkey, ibmr->rkey);
	}
	pthread_mutex_unlock(&e->keys_lock);
	if (err)
		return err;
	atomic_fetch_add(&to_pd(now.mr.pd)->users, 1);
	atomic_fetch_sub(&to_pd(ibmr->pd)->users, 1);
	*mr = now;
	return 0;
}

int shca_mr_dereg(struct ibv_mr *ibmr)
{
	struct engine *e = to_ctx(ibmr->context)->engine;
	struct shca_mr *mr = container_of(ibmr, struct shca_mr, mr);

	if (engine_dead(e))
		return -EIO;
	pthread_mutex_lock(&e->keys_lock);
	if (e->keys.entry[mr->slot].windows) {
		pthread_mutex_unlock(&e->keys_lock);
		return -EBUSY;
	}
	keys_kill(&e->keys, mr->slot);
	keys_free(&e->keys, mr->slot);
	pthread_mutex_unlock(&e->keys_lock);
	atomic_fetch_sub(&to_pd(ibmr->pd)->users, 1);
	free(mr);
	return 0;
}
