/*
 * memory.h - memory regions and their keys
 */
#ifndef SOFTHCA_VERBS_MEMORY_H
#define SOFTHCA_VERBS_MEMORY_H

#include "transport/shared.h"

struct shca_dm;

struct shca_mr {
	struct ibv_mr mr;
	struct shca_live live;
	uint32_t slot;
	enum key_kind kind;
	int access;
	uint64_t iova;
	void *base; /* the first byte, in this process */
	bool imported;
	struct shca_dm *dm;
	/* Of dma-bufs. */
	void *map;
	size_t map_len;
	int fd;
};

static inline struct shca_mr *to_mr(struct ibv_mr *mr)
{
	return container_of(mr, struct shca_mr, mr);
}

/* Whether it is of the program's own memory, as ibv_rereg_mr(3) requires. */
static inline bool shca_mr_is_plain(struct ibv_mr *mr)
{
	const struct shca_mr *m = to_mr(mr);

	return m->kind == KEY_MR && !m->imported && !m->dm && !m->map;
}

int shca_mr_reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
		int access, struct ibv_mr **mr);
int shca_mr_null(struct ibv_pd *pd, struct ibv_mr **mr);
int shca_mr_dm(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
	       size_t length, unsigned access, struct ibv_mr **mr);
int shca_mr_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t length,
		   uint64_t iova, int fd, int access, struct ibv_mr **mr);
int shca_mr_rereg(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		  size_t length, int access);
int shca_mr_dereg(struct ibv_mr *mr);
int shca_mr_import(struct ibv_pd *pd, uint32_t handle, struct ibv_mr **mr);
void shca_mr_unimport(struct ibv_mr *mr);
int shca_mr_advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
		   uint32_t flags, const struct ibv_sge *sge, uint32_t n);

/*
 * keys_add(), which other processes are shown; and keys_kill(), which returns
 * when neither a reader here has a reference any more, nor another process
 * copies. The keys' lock is held.
 */
int shca_key_add(struct engine *e, const struct key_entry *entry);
void shca_key_kill(struct engine *e, uint32_t slot);

/* For the protocol core, see qp/env.h. */
int shca_odp_touch(const void *p, size_t len, bool write);
int shca_odp_store(void *dst, const void *src, size_t len);

/* For the process: the table of keys. */
int shca_keys_init(struct engine *e);
void shca_keys_fini(struct engine *e);

#endif
