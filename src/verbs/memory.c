/*
 * memory.c - memory regions: of programs, of dma-bufs, of nothing
 *
 * Hardware pins the pages of a region. Here registering touches them, which
 * shows as well whether they exist and may be written. Pages that the program
 * unmaps afterwards, or that a region on demand never had, are missing when a
 * packet comes for them: an error of the request, not a fault of this process
 * (os/guard.h).
 */
#include "verbs.h"

#include "base/store_tail.h"
#include "base/sys.h"
#include "base/why.h"
#include "link/exported_keys.h"
#include "os/guard.h"
#include "transport/record.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/dma-buf.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define KEYS_MAX (1u << 20)
#define KEYS_MIN (1u << 14)

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define ACCESS_KNOWN                                                           \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |                    \
	 IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |                   \
	 IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_ON_DEMAND |   \
	 IBV_ACCESS_HUGETLB | IBV_ACCESS_OPTIONAL_RANGE)

/*
 * Finds out the same in the list of mappings: for Linux before 5.14, which
 * cannot populate, and for mappings that cannot be populated, such as device
 * memory.
 */
static int mappings_check(uintptr_t begin, uintptr_t end, bool write)
{
	FILE *f = fopen("/proc/self/maps", "rce");
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

/* Checks that the memory exists, and is writable if it has to be. */
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
		return errno == EINVAL ? mappings_check(begin, end, write) :
					 -EFAULT;
	}
	return 0;
}

static int access_check(int access)
{
	if (access & ~(int)ACCESS_KNOWN)
		return why(-EINVAL,
			   "access 0x%x has bits that this device does not "
			   "support: 0x%x",
			   (unsigned)access,
			   (unsigned)access & ~(unsigned)ACCESS_KNOWN);
	/* Remote write access requires local write access (10.6.3.1). */
	if ((access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) &&
	    !(access & IBV_ACCESS_LOCAL_WRITE))
		return why(-EINVAL,
			   "access has %s without IBV_ACCESS_LOCAL_WRITE, "
			   "which it needs: add that",
			   access & IBV_ACCESS_REMOTE_WRITE ?
				   "IBV_ACCESS_REMOTE_WRITE" :
				   "IBV_ACCESS_REMOTE_ATOMIC");
	return 0;
}

/* Whether the first byte is in huge pages: IBV_ACCESS_HUGETLB with ODP. */
static int huge_check(uintptr_t at)
{
	FILE *f = fopen("/proc/self/smaps", "rce");
	unsigned long from, to, kb = 0;
	bool inside = false;
	char line[512], r;

	if (!f)
		return 0; /* no way to know */
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx %c", &from, &to, &r) == 3)
			inside = from <= at && at < to;
		else if (inside &&
			 sscanf(line, "KernelPageSize: %lu kB", &kb) == 1)
			break;
	}
	fclose(f);
	return kb * 1024 > (unsigned long)sysconf(_SC_PAGESIZE) ? 0 : -EINVAL;
}

/* All memory, present and future: addr 0, length SIZE_MAX. */
static bool is_implicit(const void *addr, size_t length, int access)
{
	return access & IBV_ACCESS_ON_DEMAND && !addr && length == SIZE_MAX;
}

static int region_check(void *addr, size_t length, int access)
{
	int err = access_check(access);

	if (err || is_implicit(addr, length, access))
		return err;
	if (length > SHCA_MAX_MR_SIZE || (uintptr_t)addr + length < length)
		return why(-EINVAL,
			   "[%p, +%zu) is beyond the address space: is the "
			   "length right?",
			   addr, length);
	/* A region of no bytes allows access to none. */
	if (!length)
		return 0;
	if (access & IBV_ACCESS_ON_DEMAND) {
		err = access & IBV_ACCESS_HUGETLB ?
			      huge_check((uintptr_t)addr) :
			      0;
		return err ? why(err,
				 "IBV_ACCESS_HUGETLB, but %p is not in huge "
				 "pages",
				 addr) :
			     0;
	}
	err = memory_check(addr, length, access & IBV_ACCESS_LOCAL_WRITE);
	if (!err)
		return 0;
	return why(err,
		   access & IBV_ACCESS_LOCAL_WRITE &&
				   !memory_check(addr, length, false) ?
			   "[%p, +%zu) is mapped read-only, and access has "
			   "IBV_ACCESS_LOCAL_WRITE" :
			   "[%p, +%zu) is not all mapped: was it allocated, is "
			   "it freed, is the length right?",
		   addr, length);
}

/* Paging on demand, for the protocol core (qp/env.h) */

int shca_odp_touch(const void *p, size_t len, bool write)
{
	return memory_check((void *)(uintptr_t)p, len, write);
}

int shca_odp_store(void *dst, const void *src, size_t len)
{
	/* As store_tail_last() does, but for the kernel's way with each of the
	 * two. */
	const size_t tail = store_tail(len), first = len - tail;
	const struct iovec from = { (void *)(uintptr_t)src, len };
	const struct iovec to[2] = { { dst, first },
				     { (uint8_t *)dst + first, tail } };
	const struct iovec last = { (uint8_t *)(uintptr_t)src + first, tail };
	const bool once = STORE_IN_ORDER || !first;
	ssize_t n = process_vm_writev(getpid(), &from, 1, to, once ? 2 : 1, 0);

	if (!once && n == (ssize_t)first) {
		atomic_thread_fence(memory_order_seq_cst);
		n += process_vm_writev(getpid(), &last, 1, &to[1], 1, 0);
	}
	if (n == (ssize_t)len)
		return 0;
	if (n >= 0 || errno == EFAULT || shca_odp_touch(dst, len, true))
		return -EFAULT;
	/* A sandbox forbids the call. */
	store_tail_last(dst, src, len);
	return 0;
}

/* Regions */

static struct key_entry region_entry(const struct shca_mr *mr)
{
	return (struct key_entry){
		.access = (uint32_t)mr->access,
		.pd = to_pd(mr->mr.pd)->num,
		.kind = mr->kind,
		.iova = mr->iova,
		.length = mr->mr.length,
		.addr = (uintptr_t)mr->base,
	};
}

/* Makes keys for a region, and the program's copy of it. */
static int region_publish(const struct shca_mr *from, struct ibv_mr **out)
{
	struct ibv_pd *pd = from->mr.pd;
	struct engine *e = to_ctx(pd->context)->engine;
	struct shca_process *proc = to_process(e);
	struct key_entry entry;
	struct shca_mr *mr;
	int slot;

	if (from->iova + from->mr.length < from->iova)
		return -EINVAL;
	mr = malloc(sizeof(*mr));
	if (!mr)
		return -ENOMEM;
	guard_install();
	*mr = *from;
	mr->mr.context = pd->context;
	entry = region_entry(mr);
	pthread_mutex_lock(&proc->memory.lock);
	slot = shca_key_add(e, &entry);
	pthread_mutex_unlock(&proc->memory.lock);
	if (slot < 0) {
		free(mr);
		return slot;
	}
	mr->slot = (uint32_t)slot;
	mr->mr.handle = mr->slot;
	mr->mr.lkey = atomic_load(&proc->memory.keys.entry[slot].lkey);
	mr->mr.rkey = atomic_load(&proc->memory.keys.entry[slot].rkey);
	shca_pd_get(pd);
	shca_live_add(&mr->live, &mr->mr, SHCA_MR);
	if (tracing())
		trace_keep(TRACE_MR_NEW, 0, mr->mr.lkey, (uintptr_t)mr->mr.addr,
			   (uint32_t)(mr->mr.length >> 32),
			   (uint32_t)mr->mr.length);
	*out = &mr->mr;
	return 0;
}

static bool same_page_offset(uint64_t a, uint64_t b)
{
	return !((a ^ b) & ((uint64_t)sysconf(_SC_PAGESIZE) - 1));
}

int shca_mr_reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
		int access, struct ibv_mr **out)
{
	struct shca_mr mr = {
		.mr = { .pd = pd, .addr = addr, .length = length },
		.kind = KEY_MR,
		.access = access,
		.base = addr,
		.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova,
	};
	int err;

	err = engine_fault(FAULT_REG_MR) ?: shca_check(pd, SHCA_PD);
	if (err)
		return err;
	err = region_check(addr, length, access);
	if (err)
		return err;
	/* A device maps whole pages. */
	if (!(access & IBV_ACCESS_ZERO_BASED) &&
	    !same_page_offset((uintptr_t)addr, iova))
		return why(-EINVAL,
			   "iova 0x%llx and address %p have different offsets "
			   "in their pages; they must be the same",
			   (unsigned long long)iova, addr);
	return region_publish(&mr, out);
}

int shca_mr_null(struct ibv_pd *pd, struct ibv_mr **out)
{
	struct shca_mr mr = {
		.mr = { .pd = pd, .length = SIZE_MAX },
		.kind = KEY_NULL,
		.access = IBV_ACCESS_LOCAL_WRITE,
	};
	int err;

	err = shca_check(pd, SHCA_PD);
	return err ? err : region_publish(&mr, out);
}

int shca_mr_dm(struct ibv_pd *pd, struct ibv_dm *ibdm, uint64_t offset,
	       size_t length, unsigned access, struct ibv_mr **out)
{
	struct shca_dm *dm = to_dm(ibdm);
	struct shca_mr mr = {
		.mr = { .pd = pd, .length = length },
		.kind = KEY_MR,
		.access = (int)access,
		.base = dm->mem + offset,
		.dm = dm,
	};
	int err;

	err = shca_check(pd, SHCA_PD);
	if (err)
		return err;
	err = access_check((int)access);
	if (err)
		return err;
	if (!(access & IBV_ACCESS_ZERO_BASED) || access & IBV_ACCESS_ON_DEMAND)
		return why(-EINVAL,
			   "a region of device memory needs "
			   "IBV_ACCESS_ZERO_BASED, and is never on demand");
	if (length > dm->length || offset > dm->length - length)
		return why(-EINVAL,
			   "[%llu, +%zu) is not all in the device memory, "
			   "which has %zu bytes",
			   (unsigned long long)offset, length, dm->length);
	err = region_publish(&mr, out);
	if (!err)
		shca_dm_get(dm);
	return err;
}

static void dmabuf_sync(int fd, uint64_t flags)
{
	struct dma_buf_sync sync = { .flags = flags };

	while (ioctl(fd, DMA_BUF_IOCTL_SYNC, &sync) &&
	       (errno == EINTR || errno == EAGAIN))
		;
}

/*
 * A dma-buf whose exporter lets the CPU map it. The access begins when it is
 * registered and ends when it is deregistered: in between both sides see each
 * other's writes only where the hardware is coherent.
 */
int shca_mr_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t length,
		   uint64_t iova, int fd, int access, struct ibv_mr **out)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct dma_buf_sync probe = { .flags = DMA_BUF_SYNC_RW };
	struct shca_mr mr = {
		.mr = { .pd = pd, .length = length },
		.kind = KEY_MR,
		.access = access,
		.iova = access & IBV_ACCESS_ZERO_BASED ? 0 : iova,
	};
	int err, prot = PROT_READ;
	off_t size;

	err = shca_check(pd, SHCA_PD);
	if (err)
		return err;
	err = access_check(access);
	if (err)
		return err;
	if (access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB))
		return why(-EOPNOTSUPP, "a dma-buf has no IBV_ACCESS_ON_DEMAND "
					"and no IBV_ACCESS_HUGETLB here");
	/* First, as in the kernel: programs ask so whether there are dma-bufs. */
	if (fcntl(fd, F_GETFD) < 0)
		return why(-EBADF, "fd %d is not an open file", fd);
	if (!length || length > SHCA_MAX_MR_SIZE || offset > INT64_MAX / 2 ||
	    (!(access & IBV_ACCESS_ZERO_BASED) &&
	     !same_page_offset(offset, iova)))
		return why(-EINVAL,
			   "length %zu at offset %llu with iova 0x%llx: at "
			   "least one byte is needed, and offset and iova at "
			   "the same place in their pages",
			   length, (unsigned long long)offset,
			   (unsigned long long)iova);
	/* Ends an access that never began: only a dma-buf knows the call. */
	probe.flags |= DMA_BUF_SYNC_END;
	if (ioctl(fd, DMA_BUF_IOCTL_SYNC, &probe) &&
	    (errno == EBADF || errno == ENOTTY))
		return why(errno == EBADF ? -EBADF : -EINVAL,
			   "fd %d is not a dma-buf", fd);
	size = lseek(fd, 0, SEEK_END);
	if (size >= 0 &&
	    (offset > (uint64_t)size || length > (uint64_t)size - offset))
		return why(-EINVAL,
			   "[%llu, +%zu) is not all in the dma-buf, which has "
			   "%lld bytes",
			   (unsigned long long)offset, length, (long long)size);
	if (access & IBV_ACCESS_LOCAL_WRITE)
		prot |= PROT_WRITE;
	mr.map_len = length + offset % page;
	mr.map = mmap(NULL, mr.map_len, prot, MAP_SHARED, fd,
		      (off_t)(offset - offset % page));
	if (mr.map == MAP_FAILED)
		return errno == ENODEV ? -EOPNOTSUPP : -errno;
	mr.base = (uint8_t *)mr.map + offset % page;
	mr.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	err = mr.fd < 0 ? -errno : region_publish(&mr, out);
	if (err) {
		if (mr.fd >= 0)
			sys_close(mr.fd);
		munmap(mr.map, mr.map_len);
		return err;
	}
	dmabuf_sync(mr.fd, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_START);
	return 0;
}

int shca_key_add(struct engine *e, const struct key_entry *entry)
{
	struct shca_process *proc = to_process(e);

	if (proc->segment)
		exported_keys_grow(proc->segment, &proc->memory.keys);
	return keys_add(&proc->memory.keys, entry);
}

/*
 * Readers hold a reference for the time of a copy or of a system call, so spin
 * briefly, then let them run, then sleep.
 */
void shca_key_kill(struct engine *e, uint32_t slot)
{
	struct shca_process *proc = to_process(e);
	unsigned round;

	keys_kill(&proc->memory.keys, slot);
	for (round = 0; keys_busy(&proc->memory.keys, slot); round++) {
		if (round >= 1000)
			sys_sleep(50000);
		else if (round >= 100)
			sched_yield();
	}
	shca_visits_wait(e);
}

/*
 * The keys stay the same. Between killing and reviving the entry a peer may get
 * an error, as if there were no such keys, which ibv_rereg_mr(3) allows.
 */
int shca_mr_rereg(struct ibv_mr *ibmr, int flags, struct ibv_pd *pd, void *addr,
		  size_t length, int access)
{
	struct engine *e = to_ctx(ibmr->context)->engine;
	struct shca_process *proc = to_process(e);
	struct shca_mr *mr = to_mr(ibmr);
	struct shca_mr now = *mr;
	struct key_entry entry;
	int err = 0;

	if (!flags)
		return why(-EINVAL, "flags is 0: nothing is to be changed");
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		err = pd ? shca_check(pd, SHCA_PD) :
			   why(-EINVAL,
			       "IBV_REREG_MR_CHANGE_PD, but pd is NULL");
		if (!err && pd->context != ibmr->context)
			err = why(-EINVAL, "the PD is of another context");
		if (err)
			return err;
		now.mr.pd = pd;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS)
		now.access = access;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		now.mr.addr = now.base = addr;
		now.mr.length = length;
		now.iova = (uintptr_t)addr;
	}
	if (now.access & IBV_ACCESS_ZERO_BASED)
		now.iova = 0;
	else if (mr->access & IBV_ACCESS_ZERO_BASED)
		now.iova = (uintptr_t)now.base;
	err = region_check(now.base, now.mr.length, now.access);
	if (err)
		return err;

	entry = region_entry(&now);
	pthread_mutex_lock(&proc->memory.lock);
	if (proc->memory.keys.entry[mr->slot].windows) {
		err = why(-EBUSY,
			  "memory windows are bound to the region (lkey "
			  "0x%08x): unbind or invalidate them first",
			  ibmr->lkey);
	} else {
		if (tracing())
			trace_keep(TRACE_MR_GONE, 0, ibmr->lkey, 0, 0, 0);
		shca_key_kill(e, mr->slot);
		keys_revive(&proc->memory.keys, mr->slot, &entry, ibmr->lkey,
			    ibmr->rkey);
	}
	pthread_mutex_unlock(&proc->memory.lock);
	if (err)
		return err;
	shca_pd_get(now.mr.pd);
	shca_pd_put(ibmr->pd);
	*mr = now;
	return 0;
}

static void region_free(struct shca_mr *mr)
{
	shca_live_remove(&mr->live);
	if (mr->dm)
		shca_dm_put(mr->dm);
	if (mr->map) {
		dmabuf_sync(mr->fd, DMA_BUF_SYNC_RW | DMA_BUF_SYNC_END);
		sys_close(mr->fd);
		munmap(mr->map, mr->map_len);
	}
	shca_pd_put(mr->mr.pd);
	free(mr);
}

int shca_mr_dereg(struct ibv_mr *ibmr)
{
	int err = shca_check(ibmr, SHCA_MR);
	struct shca_mr *mr = to_mr(ibmr);
	struct key_entry *entry;
	struct engine *e;

	if (err)
		return err;
	e = to_ctx(ibmr->context)->engine;
	entry = &to_process(e)->memory.keys.entry[mr->slot];
	pthread_mutex_lock(&to_process(e)->memory.lock);
	if (atomic_load(&entry->lkey) != ibmr->lkey)
		err = why(-ENOENT,
			  "the region (lkey 0x%08x) has been deregistered by "
			  "another handle",
			  ibmr->lkey);
	else if (entry->windows)
		err = why(-EBUSY,
			  "memory windows are bound to the region (lkey "
			  "0x%08x): unbind or invalidate them first",
			  ibmr->lkey);
	if (!err) {
		if (check_on()) {
			check_ops->key_ended(ibmr->lkey);
			check_ops->key_ended(ibmr->rkey);
		}
		shca_key_kill(e, mr->slot);
		keys_free(&to_process(e)->memory.keys, mr->slot);
	}
	pthread_mutex_unlock(&to_process(e)->memory.lock);
	if (!err)
		region_free(mr);
	return err;
}

/* Other handles of a region, ibv_import_mr(3) */

int shca_mr_import(struct ibv_pd *pd, uint32_t handle, struct ibv_mr **out)
{
	int err = shca_check(pd, SHCA_PD);
	struct shca_context *ctx;
	struct key_entry *entry;
	struct shca_mr *mr;
	struct engine *e;

	if (err)
		return err;
	ctx = to_ctx(pd->context);
	e = ctx->engine;
	if (!shca_file_is_ours(ctx->file, e))
		return -EOPNOTSUPP;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return -ENOMEM;
	pthread_mutex_lock(&to_process(e)->memory.lock);
	entry = handle < to_process(e)->memory.keys.used ?
			&to_process(e)->memory.keys.entry[handle] :
			NULL;
	if (!entry || (entry->kind != KEY_MR && entry->kind != KEY_NULL))
		err = why(-ENOENT, "handle %u names no memory region", handle);
	else if (entry->pd != to_pd(pd)->num)
		err = why(-EPERM, "the region with handle %u is of another PD",
			  handle);
	if (!err) {
		mr->mr.context = pd->context;
		mr->mr.pd = pd;
		mr->mr.length = entry->length;
		mr->mr.handle = mr->slot = handle;
		mr->mr.lkey = atomic_load(&entry->lkey);
		mr->mr.rkey = atomic_load(&entry->rkey);
		mr->kind = entry->kind;
		mr->imported = true;
		shca_pd_get(pd);
	}
	pthread_mutex_unlock(&to_process(e)->memory.lock);
	if (err) {
		free(mr);
		return err;
	}
	shca_live_add(&mr->live, &mr->mr, SHCA_MR);
	*out = &mr->mr;
	return 0;
}

void shca_mr_unimport(struct ibv_mr *ibmr)
{
	if (!shca_check(ibmr, SHCA_MR))
		region_free(to_mr(ibmr));
}

/* Advice */

static int advise_one(struct engine *e, uint32_t pd,
		      enum ib_uverbs_advise_mr_advice advice, bool wait,
		      const struct ibv_sge *sge)
{
	const bool write = advice == IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	uint32_t hint = 0;
	struct key_entry *entry =
		keys_get_local(&to_process(e)->memory.keys, sge->lkey, &hint);
	int err = 0;
	void *p;

	if (!entry)
		return why(-ENOENT, "no region has lkey 0x%08x", sge->lkey);
	if (!(entry->access & IBV_ACCESS_ON_DEMAND))
		err = why(-EINVAL,
			  "the region (lkey 0x%08x) is not on demand: there is "
			  "nothing to fetch",
			  sge->lkey);
	else if (entry->pd != pd ||
		 (write && !(entry->access & IBV_ACCESS_LOCAL_WRITE)))
		err = why(-EPERM,
			  "the region (lkey 0x%08x) is of another PD, or has "
			  "no IBV_ACCESS_LOCAL_WRITE",
			  sge->lkey);
	else if (!key_covers(entry, pd, sge->addr, sge->length, 0, &p))
		err = why(
			-EFAULT,
			"[0x%llx, +%u) is not all in the region (lkey 0x%08x)",
			(unsigned long long)sge->addr, sge->length, sge->lkey);
	else if (advice != IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT &&
		 sge->length && shca_odp_touch(p, sge->length, write) && wait)
		err = -EFAULT; /* reported only to a caller that waits */
	keys_put(entry);
	return err;
}

int shca_mr_advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
		   uint32_t flags, const struct ibv_sge *sge, uint32_t n)
{
	int err = shca_check(pd, SHCA_PD);
	struct engine *e;
	uint32_t i;

	if (err)
		return err;
	e = to_ctx(pd->context)->engine;
	switch (advice) {
	case IBV_ADVISE_MR_ADVICE_PREFETCH:
	case IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE:
	case IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT:
		break;
	default:
		return why(-ENOTSUP, "advice %u is not supported",
			   (unsigned)advice);
	}
	if (flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH || !n)
		return why(-EINVAL,
			   "flags 0x%x with %u SGEs: only "
			   "IBV_ADVISE_MR_FLAG_FLUSH is known, and one SGE is "
			   "needed",
			   flags, n);
	for (i = 0; i < n && !err; i++)
		err = advise_one(e, to_pd(pd)->num, advice,
				 flags & IBV_ADVISE_MR_FLAG_FLUSH, &sge[i]);
	return err;
}

/* The table of keys */

int shca_keys_init(struct engine *e)
{
	struct shca_process *p = to_process(e);
	uint32_t count = KEYS_MAX;
	uint64_t seed[4];
	void *mem;

	pthread_mutex_init(&p->memory.lock, NULL);
	if (!sys_random(seed, sizeof(seed)))
		return -EIO;
	p->id = seed[2];
	atomic_store(&p->xrc.next_srqn, (uint32_t)seed[3]);
	/* Unused slots cost nothing, where memory is overcommitted. */
	for (; count >= KEYS_MIN; count /= 2) {
		p->memory.keys_size = count * sizeof(struct key_entry);
		mem = mmap(NULL, p->memory.keys_size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (mem == MAP_FAILED)
			continue;
		keys_init(&p->memory.keys, mem, count, seed);
		/* Programs that send their lkey work elsewhere; --check says
		 * what they do. */
		p->memory.keys.one = !check_on();
		return 0;
	}
	return -ENOMEM;
}

void shca_keys_fini(struct engine *e)
{
	struct shca_process *p = to_process(e);

	if (p->memory.keys.entry)
		munmap(p->memory.keys.entry, p->memory.keys_size);
}
