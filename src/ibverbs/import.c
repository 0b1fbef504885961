/*
 * import.c - objects of one context used in another: ibv_import_device(3) etc.
 *
 * Contexts of one process share everything, processes share device memory; see
 * src/verbs/dm.c.
 */
#include "process/process.h"
#include "verbs/verbs.h"

struct ibv_context *ibv_import_device(int cmd_fd)
{
	struct ibv_context *ctx;

	return POINTER(shca_import(cmd_fd, &ctx), ctx);
}

struct ibv_pd *ibv_import_pd(struct ibv_context *ctx, uint32_t handle)
{
	struct ibv_pd *pd;

	return POINTER(shca_pd_import(ctx, handle, &pd), pd);
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
	shca_pd_unimport(pd);
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
	struct ibv_mr *mr;

	return POINTER(shca_mr_import(pd, handle, &mr), mr);
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
	shca_mr_unimport(mr);
}

struct ibv_dm *ibv_import_dm(struct ibv_context *ctx, uint32_t handle)
{
	struct ibv_dm *dm;

	return POINTER(shca_dm_import(ctx, handle, &dm), dm);
}

void ibv_unimport_dm(struct ibv_dm *dm)
{
	shca_dm_unimport(dm);
}
