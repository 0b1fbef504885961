/*
 * dm.h - command files, and the device memory in them
 */
#ifndef SOFTHCA_VERBS_DM_H
#define SOFTHCA_VERBS_DM_H

#include "transport/shared.h"

struct shca_file;

int shca_file_create(struct engine *e, const char *device, int *fd,
		     struct shca_file **file);
/* -EINVAL: fd is not the cmd_fd of a context. */
int shca_file_import(int fd, struct shca_file **file,
		     char device[IBV_SYSFS_NAME_MAX]);
void shca_file_put(struct shca_file *file);
/* Contexts of one file share objects, within this process of all kinds. */
bool shca_file_same(const struct shca_file *a, const struct shca_file *b);
bool shca_file_is_ours(const struct shca_file *file, struct engine *e);

struct shca_dm {
	struct ibv_dm dm;
	struct shca_file *file;
	_Atomic unsigned refs; /* the program's, and regions */
	uint8_t *mem;
	size_t length;
};

static inline struct shca_dm *to_dm(struct ibv_dm *dm)
{
	return container_of(dm, struct shca_dm, dm);
}

int shca_dm_alloc(struct ibv_context *ctx, const struct ibv_alloc_dm_attr *attr,
		  struct ibv_dm **dm);
int shca_dm_free(struct ibv_dm *dm);
int shca_dm_import(struct ibv_context *ctx, uint32_t handle,
		   struct ibv_dm **dm);
void shca_dm_unimport(struct ibv_dm *dm);
void shca_dm_get(struct shca_dm *dm);
void shca_dm_put(struct shca_dm *dm);

#endif
