/*
 * test_domains.c - device memory, imports and parent domains
 */
#include "reach.h"

static void device_memory(void **state)
{
	const unsigned zero = IBV_ACCESS_ZERO_BASED;
	struct ibv_alloc_dm_attr attr = { .length = 100 };
	struct ibv_device_attr_ex dev;
	struct ibv_dm *dm, *big;
	uint8_t in[64], out[64];
	struct ibv_mr *mr;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &dev), 0);
	assert_true(dev.max_dm_size >= 65536);
	dm = ibv_alloc_dm(ctx, &attr);
	assert_non_null(dm);
	/* All of it can be had, but not more, nor what is not free. */
	attr.length = dev.max_dm_size + 1;
	assert_null(ibv_alloc_dm(ctx, &attr));
	attr.length = dev.max_dm_size;
	assert_null(ibv_alloc_dm(ctx, &attr));
	assert_int_equal(errno, ENOMEM);
	attr.length = dev.max_dm_size - 65536;
	attr.log_align_req = 16;
	big = ibv_alloc_dm(ctx, &attr);
	assert_non_null(big);
	attr.comp_mask = 1;
	assert_null(ibv_alloc_dm(ctx, &attr));
	assert_int_equal(errno, EINVAL);
	attr = (struct ibv_alloc_dm_attr){ 0 };
	assert_null(ibv_alloc_dm(ctx, &attr));

	fill(in, 64, 2);
	assert_int_equal(ibv_memcpy_to_dm(dm, 36, in, 64), 0);
	assert_int_equal(ibv_memcpy_from_dm(out, dm, 36, 64), 0);
	assert_memory_equal(in, out, 64);
	assert_int_equal(ibv_memcpy_to_dm(dm, 2, in, 64), EINVAL);
	assert_int_equal(ibv_memcpy_to_dm(dm, 0, in, 3), EINVAL);
	assert_int_equal(ibv_memcpy_to_dm(dm, 40, in, 64), EINVAL);
	assert_int_equal(ibv_memcpy_from_dm(out, dm, UINT64_MAX - 3, 8),
			 EINVAL);

	assert_null(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_dm_mr(pd, dm, 0, 104, zero));
	assert_null(ibv_reg_dm_mr(pd, dm, 101, 0, zero));
	assert_null(ibv_reg_dm_mr(pd, dm, 4, SIZE_MAX - 2, zero));
	assert_null(
		ibv_reg_dm_mr(pd, dm, 0, 64, zero | IBV_ACCESS_REMOTE_WRITE));
	mr = ibv_reg_dm_mr(pd, dm, 20, 64, zero | ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(ibv_free_dm(dm), EBUSY);
	memcpy(a.buf, in, 32);
	assert_int_equal(try_write(&a, mr->rkey, 0, 32), 0);
	assert_int_equal(ibv_memcpy_from_dm(out, dm, 20, 32), 0);
	assert_memory_equal(in, out, 32);
	assert_int_equal(try_read(&a, mr->rkey, 0, 64), 0);
	assert_int_equal(try_write(&a, mr->rkey, 33, 32),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_free_dm(dm), 0);
	assert_int_equal(ibv_free_dm(big), 0);
	/* Everything is free again. */
	attr.length = dev.max_dm_size;
	dm = ibv_alloc_dm(ctx, &attr);
	assert_non_null(dm);
	assert_int_equal(ibv_free_dm(dm), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Pieces of any size, allocated and freed in any order, never overlap. */
static void device_memory_pieces(void **state)
{
	struct ibv_dm *dm[40] = { 0 };
	uint32_t mark[40] = { 0 }, got;
	unsigned seed = 1, i, round;

	(void)state;
	for (round = 0; round < 2000; round++) {
		i = (unsigned)rand_r(&seed) % 40;
		if (dm[i]) {
			assert_int_equal(ibv_memcpy_from_dm(&got, dm[i], 4, 4),
					 0);
			assert_int_equal(got, mark[i]);
			assert_int_equal(ibv_free_dm(dm[i]), 0);
			dm[i] = NULL;
		} else {
			struct ibv_alloc_dm_attr attr = {
				.length = 8 + (unsigned)rand_r(&seed) % 300000,
				.log_align_req = (unsigned)rand_r(&seed) % 18,
			};
			size_t last = (attr.length - 4) & ~3ul;

			dm[i] = ibv_alloc_dm(ctx, &attr);
			assert_non_null(dm[i]);
			mark[i] = round;
			ibv_memcpy_to_dm(dm[i], 4, &round, 4);
			ibv_memcpy_to_dm(dm[i], last, &round, 4);
		}
	}
	for (i = 0; i < 40; i++)
		if (dm[i])
			assert_int_equal(ibv_free_dm(dm[i]), 0);
}

static void imports(void **state)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	struct ibv_context *other, *stranger;
	uint32_t word = 0x12345678, got = 0;
	struct ibv_dm *dm, *dm2;
	struct ibv_mr *mr, *mr2;
	struct ibv_pd *pd2;
	int fd;

	(void)state;
	dm = ibv_alloc_dm(ctx, &attr);
	mr = ibv_reg_dm_mr(pd, dm, 0, 4096, IBV_ACCESS_ZERO_BASED | ALL_ACCESS);
	other = ibv_import_device(dup(ctx->cmd_fd));
	assert_non_null(other);
	assert_ptr_equal(other->device, ctx->device);

	pd2 = ibv_import_pd(other, pd->handle);
	assert_non_null(pd2);
	mr2 = ibv_import_mr(pd2, mr->handle);
	assert_non_null(mr2);
	assert_int_equal(mr2->lkey, mr->lkey);
	assert_null(mr2->addr);
	dm2 = ibv_import_dm(other, dm->handle);
	assert_non_null(dm2);
	assert_int_equal(ibv_memcpy_to_dm(dm, 8, &word, 4), 0);
	assert_int_equal(ibv_memcpy_from_dm(&got, dm2, 8, 4), 0);
	assert_int_equal(got, word);

	assert_null(ibv_import_pd(other, pd->handle + 1000));
	assert_int_equal(errno, ENOENT);
	assert_null(ibv_import_mr(pd2, mr->handle + 1000));
	assert_int_equal(errno, ENOENT);
	assert_null(ibv_import_mr(pd2, UINT32_MAX));
	assert_null(ibv_import_dm(other, 9999999));
	assert_null(ibv_import_dm(other, dm->handle + 1));
	/* A context of its own shares nothing. */
	stranger = open_first();
	assert_null(ibv_import_pd(stranger, pd->handle));
	assert_null(ibv_import_dm(stranger, dm->handle));
	assert_int_equal(ibv_close_device(stranger), 0);
	fd = open("/dev/null", O_RDONLY);
	assert_null(ibv_import_device(fd));
	assert_int_equal(errno, EINVAL);
	close(fd);
	assert_null(ibv_import_device(-1));
	assert_int_equal(errno, EBADF);

	ibv_unimport_dm(dm2);
	ibv_unimport_mr(mr2);
	ibv_unimport_pd(pd2);
	assert_int_equal(ibv_close_device(other), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_free_dm(dm), 0);
}

/* Another process has the device memory, and nothing else. */
static void import_elsewhere(void **state)
{
	struct ibv_alloc_dm_attr attr = { .length = 4096 };
	uint32_t handle, pdh = pd->handle, word = 7;
	struct ibv_dm *dm;
	int fd, status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	dm = ibv_alloc_dm(ctx, &attr);
	handle = dm->handle;
	fd = dup(ctx->cmd_fd);
	assert_int_equal(ibv_memcpy_to_dm(dm, 0, &word, 4), 0);
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		struct ibv_context *c = ibv_import_device(fd);
		struct ibv_dm *mine = c ? ibv_import_dm(c, handle) : NULL;
		uint32_t v = 0;

		alarm(20);
		if (!mine || ibv_memcpy_from_dm(&v, mine, 0, 4) || v != 7)
			_exit(1);
		v = 8;
		if (ibv_memcpy_to_dm(mine, 0, &v, 4))
			_exit(2);
		errno = 0;
		if (ibv_import_pd(c, pdh) || errno != EOPNOTSUPP)
			_exit(3);
		ibv_unimport_dm(mine);
		_exit(ibv_close_device(c) ? 4 : 0);
	}
	close(fd);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(ibv_memcpy_from_dm(&word, dm, 0, 4), 0);
	assert_int_equal(word, 8);
	assert_int_equal(ibv_free_dm(dm), 0);
}

struct arena {
	struct ibv_pd *pd;
	int allocs, frees, mode;
};

enum { OWN, DEFAULT, REFUSE };

static void *arena_alloc(struct ibv_pd *p, void *context, size_t size,
			 size_t alignment, uint64_t type)
{
	struct arena *a = context;
	void *mem = NULL;

	assert_ptr_equal(p, a->pd);
	assert_true(type);
	if (a->mode == REFUSE)
		return NULL;
	if (a->mode == DEFAULT)
		return IBV_ALLOCATOR_USE_DEFAULT;
	assert_int_equal(posix_memalign(&mem, alignment, size), 0);
	memset(mem, 0x5a, size); /* nothing is taken for zero */
	a->allocs++;
	return mem;
}

static void arena_free(struct ibv_pd *p, void *context, void *mem,
		       uint64_t type)
{
	struct arena *a = context;

	assert_ptr_equal(p, a->pd);
	assert_true(type);
	a->frees++;
	free(mem);
}

static void parent_domain(void **state)
{
	struct ibv_td_init_attr tda = { 0 };
	struct arena arena = { .mode = OWN };
	struct ibv_parent_domain_init_attr attr = { .pd = pd };
	struct ibv_cq_init_attr_ex cqa = { .cqe = 16 };
	struct ibv_srq_init_attr srqa = { .attr = { .max_wr = 8,
						    .max_sge = 1 } };
	struct ibv_srq_attr more = { .max_wr = 64 };
	struct ibv_pd *plain = pd, *parent;
	struct ibv_cq_ex *cq;
	struct ibv_srq *srq;
	struct ibv_td *td;
	struct end a, b;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };

	(void)state;
	td = ibv_alloc_td(ctx, &tda);
	assert_non_null(td);
	tda.comp_mask = 1;
	assert_null(ibv_alloc_td(ctx, &tda));
	attr.td = td;
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
	assert_null(ibv_alloc_parent_domain(ctx, &attr)); /* which? */
	attr.comp_mask = 1 << 7;
	assert_null(ibv_alloc_parent_domain(ctx, &attr));
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			 IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	attr.alloc = arena_alloc;
	attr.free = arena_free;
	attr.pd_context = &arena;
	attr.pd = NULL;
	assert_null(ibv_alloc_parent_domain(ctx, &attr));
	assert_int_equal(errno, EINVAL);
	attr.pd = pd;
	parent = arena.pd = ibv_alloc_parent_domain(ctx, &attr);
	assert_non_null(parent);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);
	assert_int_equal(ibv_dealloc_td(td), EBUSY);

	/* It stands for the domain that it extends. */
	pd = parent;
	end_init(&a, IBV_QPT_RC, NULL);
	assert_int_equal(arena.allocs, 2);
	pd = plain;
	end_init(&b, IBV_QPT_RC, NULL);
	assert_int_equal(arena.allocs, 2);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	post_recv(&b, 1, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	assert_int_equal(wait_wc(b.cq).status, 0);
	assert_int_equal(ibv_dealloc_pd(parent), EBUSY);
	end_fini(&a);
	assert_int_equal(arena.frees, 2);

	cqa.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	cqa.parent_domain = plain;
	assert_null(ibv_create_cq_ex(ctx, &cqa));
	assert_int_equal(errno, EINVAL);
	cqa.parent_domain = parent;
	cq = ibv_create_cq_ex(ctx, &cqa);
	assert_non_null(cq);
	assert_int_equal(arena.allocs, 3);
	assert_int_equal(ibv_resize_cq(ibv_cq_ex_to_cq(cq), 100), 0);
	assert_int_equal(arena.allocs, 4);
	assert_int_equal(arena.frees, 3);
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	assert_int_equal(arena.frees, 4);
	srq = ibv_create_srq(parent, &srqa);
	assert_non_null(srq);
	assert_int_equal(ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR), 0);
	assert_int_equal(arena.allocs, 6);
	assert_int_equal(ibv_destroy_srq(srq), 0);
	assert_int_equal(arena.frees, 6);

	arena.mode = DEFAULT;
	srq = ibv_create_srq(parent, &srqa);
	assert_non_null(srq);
	arena.mode = OWN; /* who gave it gets it back */
	assert_int_equal(ibv_destroy_srq(srq), 0);
	assert_int_equal(arena.frees, 6);
	arena.mode = REFUSE;
	assert_null(ibv_create_srq(parent, &srqa));
	assert_int_equal(errno, ENOMEM);
	assert_null(ibv_create_cq_ex(ctx, &cqa));
	assert_int_equal(errno, ENOMEM);

	end_fini(&b);
	assert_int_equal(ibv_dealloc_pd(parent), 0);
	assert_int_equal(ibv_dealloc_td(td), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(device_memory), TEST(device_memory_pieces),
		TEST(imports),       TEST(import_elsewhere),
		TEST(parent_domain),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
