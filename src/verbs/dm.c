/*
 * dm.c - a context's command file, and the device memory in it
 *
 * A program may pass the descriptor cmd_fd of a context to another context or
 * process (dup, SCM_RIGHTS), which then imports objects through it. Here it is
 * shared memory: a head that names its process, a table of what is allocated,
 * and DM_SIZE bytes of device memory. So processes can share device memory. PDs
 * and MRs are private to a process; only its contexts can share them.
 *
 * Whoever has the file may write anything into it. Its size is sealed, the
 * table's contents are checked against the bounds, and none is a pointer.
 */
#include "verbs.h"

#include "base/fd_high.h"
#include "base/sys.h"
#include "base/why.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DM_SIZE SHCA_DM_SIZE
#define DM_CHUNK 4096
#define DM_CHUNKS (DM_SIZE / DM_CHUNK)
#define HEAD_SIZE 65536 /* the largest page size there is */
#define MAGIC 0x53484341444d3031 /* "SHCADM01" */

struct file_head {
	uint64_t magic;
	uint64_t owner; /* the engine that made it */
	uint64_t id;
	char device[IBV_SYSFS_NAME_MAX];
	pthread_mutex_t lock; /* of the table; robust, shared */
	uint32_t bytes[DM_CHUNKS]; /* allocated from this chunk on; 0: none */
};

_Static_assert(sizeof(struct file_head) <= HEAD_SIZE, "head too long");

struct shca_file {
	_Atomic unsigned refs; /* the context, and what is allocated in it */
	uint64_t owner, id; /* as read once */
	struct file_head *head;
	uint8_t *mem;
};

static int head_lock(struct file_head *h)
{
	int err = pthread_mutex_lock(&h->lock);

	/* Each change of the table is a single store: nothing to repair. */
	if (err == EOWNERDEAD)
		err = pthread_mutex_consistent(&h->lock);
	return -err;
}

static int not_ours(int err, int fd)
{
	return why(err, "fd %d is not the cmd_fd of a context of softhca", fd);
}

/* Maps the file; -EINVAL: it is not a command file. */
static int file_map(int fd, struct shca_file **out)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct shca_file *f;
	struct stat st;
	uint8_t *p;
	int have;

	have = fcntl(fd, F_GET_SEALS);
	if (have < 0)
		return not_ours(errno == EBADF ? -EBADF : -EINVAL, fd);
	if ((have & seals) != seals || fstat(fd, &st) ||
	    st.st_size != HEAD_SIZE + DM_SIZE)
		return not_ours(-EINVAL, fd);
	f = calloc(1, sizeof(*f));
	if (!f)
		return -ENOMEM;
	p = mmap(NULL, HEAD_SIZE + DM_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
		 fd, 0);
	if (p == MAP_FAILED) {
		free(f);
		return -ENOMEM;
	}
	f->head = (struct file_head *)(void *)p;
	f->mem = p + HEAD_SIZE;
	f->owner = f->head->owner;
	f->id = f->head->id;
	atomic_store(&f->refs, 1);
	*out = f;
	return 0;
}

int shca_file_create(struct engine *e, const char *device, int *out_fd,
		     struct shca_file **out)
{
	pthread_mutexattr_t attr;
	struct file_head *h;
	uint64_t id;
	int fd, err;

	err = sys_file_limit(HEAD_SIZE + DM_SIZE);
	if (err)
		return err;
	if (!sys_random(&id, sizeof(id)))
		return -EIO;
	fd = fd_high(
		memfd_create("softhca-dm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, HEAD_SIZE + DM_SIZE) ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		err = -errno;
	else
		err = file_map(fd, out);
	if (err) {
		sys_close(fd);
		return err;
	}
	h = (*out)->head;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&h->lock, &attr);
	pthread_mutexattr_destroy(&attr);
	snprintf(h->device, sizeof(h->device), "%s", device);
	h->magic = MAGIC;
	h->owner = (*out)->owner = to_process(e)->id;
	h->id = (*out)->id = id;
	*out_fd = fd;
	return 0;
}

int shca_file_import(int fd, struct shca_file **out,
		     char device[IBV_SYSFS_NAME_MAX])
{
	int err = file_map(fd, out);

	if (err)
		return err;
	if ((*out)->head->magic != MAGIC) {
		shca_file_put(*out);
		return -EINVAL;
	}
	memcpy(device, (*out)->head->device, IBV_SYSFS_NAME_MAX);
	device[IBV_SYSFS_NAME_MAX - 1] = '\0';
	return 0;
}

void shca_file_put(struct shca_file *f)
{
	if (!f || atomic_fetch_sub(&f->refs, 1) != 1)
		return;
	munmap(f->head, HEAD_SIZE + DM_SIZE);
	free(f);
}

bool shca_file_same(const struct shca_file *a, const struct shca_file *b)
{
	return a && b && a->owner == b->owner && a->id == b->id;
}

bool shca_file_is_ours(const struct shca_file *f, struct engine *e)
{
	return f && f->owner == to_process(e)->id;
}

/* Device memory */

static uint32_t chunks_of(uint64_t bytes)
{
	return (uint32_t)((bytes + DM_CHUNK - 1) / DM_CHUNK);
}

/* Read once: another process may write it. */
static uint32_t table_at(const struct shca_file *f, uint32_t i)
{
	return *(const volatile uint32_t *)&f->head->bytes[i];
}

/* Claims a free range, first fit: its first chunk, or -ENOMEM. */
static int claim_chunks(struct shca_file *f, uint32_t bytes, uint32_t align)
{
	uint32_t step = align > DM_CHUNK ? align / DM_CHUNK : 1;
	uint32_t need = chunks_of(bytes), at = 0, i = 0;
	int err = head_lock(f->head);

	if (err)
		return err;
	err = -ENOMEM;
	while (i < DM_CHUNKS) {
		uint32_t used = table_at(f, i);

		if (used) {
			i += chunks_of(used);
			at = (i + step - 1) / step * step;
		} else if (++i == at + need) {
			f->head->bytes[at] = bytes;
			err = (int)at;
			break;
		}
	}
	pthread_mutex_unlock(&f->head->lock);
	return err;
}

/* func: the public function. 0, or a positive errno that has been reported. */
static int dm_check(const char *func, const struct shca_dm *dm, uint64_t offset,
		    size_t length)
{
	/* In words, as on the bus of hardware. */
	if (!(offset % 4) && !(length % 4) && length <= dm->length &&
	    offset <= dm->length - length)
		return 0;
	WHY_REPORT(func, why(-EINVAL,
			     "[%llu, +%zu) of device memory of %zu bytes: "
			     "offset and length are multiples of 4, and inside",
			     (unsigned long long)offset, length, dm->length));
	return EINVAL;
}

static int dm_write(struct ibv_dm *ibdm, uint64_t offset, const void *host,
		    size_t length)
{
	struct shca_dm *dm = to_dm(ibdm);
	int err = dm_check("ibv_memcpy_to_dm", dm, offset, length);

	if (err)
		return err;
	memcpy(dm->mem + offset, host, length);
	return 0;
}

static int dm_read(void *host, struct ibv_dm *ibdm, uint64_t offset,
		   size_t length)
{
	struct shca_dm *dm = to_dm(ibdm);
	int err = dm_check("ibv_memcpy_from_dm", dm, offset, length);

	if (err)
		return err;
	memcpy(host, dm->mem + offset, length);
	return 0;
}

static int dm_create(struct shca_context *ctx, uint32_t chunk, uint32_t bytes,
		     struct ibv_dm **out)
{
	struct shca_dm *dm = calloc(1, sizeof(*dm));

	if (!dm)
		return -ENOMEM;
	dm->dm.context = &ctx->v.context;
	dm->dm.memcpy_to_dm = dm_write;
	dm->dm.memcpy_from_dm = dm_read;
	dm->dm.comp_mask = IBV_DM_MASK_HANDLE;
	dm->dm.handle = chunk;
	atomic_store(&dm->refs, 1);
	dm->file = ctx->file;
	dm->mem = ctx->file->mem + (size_t)chunk * DM_CHUNK;
	dm->length = bytes;
	atomic_fetch_add(&ctx->file->refs, 1);
	atomic_fetch_add(&ctx->users, 1);
	*out = &dm->dm;
	return 0;
}

/* Works in the child of a fork as well: the memory is shared. */
int shca_dm_alloc(struct ibv_context *ibctx,
		  const struct ibv_alloc_dm_attr *attr, struct ibv_dm **out)
{
	struct shca_context *ctx = to_ctx(ibctx);
	int at, err;

	if (!ctx->file)
		return -EOPNOTSUPP;
	if (attr->comp_mask || !attr->length || attr->log_align_req > 24)
		return why(-EINVAL,
			   "length %zu, log_align_req %u, comp_mask 0x%x: the "
			   "length is at least 1, the alignment at most 2^24, "
			   "the mask 0",
			   attr->length, attr->log_align_req, attr->comp_mask);
	if (attr->length > DM_SIZE)
		return why(
			-ENOMEM,
			"length %zu: a context has %d bytes of device memory",
			attr->length, DM_SIZE);
	at = claim_chunks(ctx->file, (uint32_t)attr->length,
			  1u << attr->log_align_req);
	if (at < 0)
		return at;
	err = dm_create(ctx, (uint32_t)at, (uint32_t)attr->length, out);
	if (err)
		ctx->file->head->bytes[at] = 0;
	else
		memset(to_dm(*out)->mem, 0, attr->length);
	return err;
}

void shca_dm_get(struct shca_dm *dm)
{
	atomic_fetch_add(&dm->refs, 1);
}

void shca_dm_put(struct shca_dm *dm)
{
	if (atomic_fetch_sub(&dm->refs, 1) != 1)
		return;
	shca_file_put(dm->file);
	free(dm);
}

int shca_dm_free(struct ibv_dm *ibdm)
{
	struct shca_dm *dm = to_dm(ibdm);
	int err;

	if (atomic_load(&dm->refs) != 1)
		return why(-EBUSY, "the device memory is still used by memory "
				   "regions: deregister them first");
	err = head_lock(dm->file->head);
	if (err)
		return err;
	dm->file->head->bytes[ibdm->handle] = 0;
	pthread_mutex_unlock(&dm->file->head->lock);
	shca_dm_unimport(ibdm);
	return 0;
}

static int no_dm(uint32_t handle)
{
	return why(-ENOENT,
		   "handle %u names no device memory of that command file",
		   handle);
}

int shca_dm_import(struct ibv_context *ibctx, uint32_t handle,
		   struct ibv_dm **out)
{
	struct shca_context *ctx = to_ctx(ibctx);
	uint32_t bytes;
	int err;

	if (!ctx->file)
		return -EOPNOTSUPP;
	if (handle >= DM_CHUNKS)
		return no_dm(handle);
	err = head_lock(ctx->file->head);
	if (err)
		return err;
	bytes = table_at(ctx->file, handle);
	pthread_mutex_unlock(&ctx->file->head->lock);
	if (!bytes || bytes > DM_SIZE - handle * DM_CHUNK)
		return no_dm(handle);
	return dm_create(ctx, handle, bytes, out);
}

void shca_dm_unimport(struct ibv_dm *ibdm)
{
	atomic_fetch_sub(&to_ctx(ibdm->context)->users, 1);
	shca_dm_put(to_dm(ibdm));
}
