/*
 * test_regions.c - memory regions: of any kind and size, re-registered, on demand
 */
#include "reach.h"

#include <signal.h>

static void regions(void **state)
{
	uint8_t *p = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *a, *b;

	(void)state;
	assert_true(p != MAP_FAILED);
	a = ibv_reg_mr(pd, p, PAGE, ALL_ACCESS);
	b = ibv_reg_mr(pd, p, PAGE, 0);
	assert_non_null(a);
	assert_non_null(b);
	assert_int_not_equal(a->lkey, b->lkey);
	assert_int_not_equal(a->rkey, b->rkey);
	assert_int_equal(ibv_dealloc_pd(pd), EBUSY);

	/* Remote write access takes local write access. */
	errno = 0;
	assert_null(ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_REMOTE_WRITE));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_REMOTE_ATOMIC));
	/* Hints are taken and ignored. */
	assert_int_equal(ibv_dereg_mr(ibv_reg_mr(
				 pd, p, PAGE, 1 | IBV_ACCESS_RELAXED_ORDERING)),
			 0);

	/* Memory that is not there, or not writable. */
	munmap(p + 2 * PAGE, PAGE);
	assert_null(ibv_reg_mr(pd, p, 3 * PAGE, 0));
	assert_int_equal(errno, EFAULT);
	mprotect(p + PAGE, PAGE, PROT_READ);
	assert_null(ibv_reg_mr(pd, p, 2 * PAGE, 1));
	assert_int_equal(errno, EFAULT);
	assert_int_equal(ibv_dereg_mr(ibv_reg_mr(pd, p, 2 * PAGE, 0)), 0);

	assert_int_equal(ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      p + PAGE, PAGE, 0),
			 IBV_REREG_MR_ERR_CMD); /* read-only */
	assert_int_equal(
		ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0),
		0);
	assert_int_equal(ibv_rereg_mr(a, 64, NULL, NULL, 0, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_dereg_mr(a), 0);
	assert_int_equal(ibv_dereg_mr(b), 0);
	munmap(p, 2 * PAGE);
}

/* A region of no bytes is one, and lets no byte be reached. */
static void empty_region(void **state)
{
	static const unsigned access[] = {
		0,
		ALL_ACCESS,
		ALL_ACCESS | IBV_ACCESS_ZERO_BASED,
		ALL_ACCESS | IBV_ACCESS_ON_DEMAND,
	};
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE };
	struct ibv_mr *mr;
	struct end a, b;
	size_t i;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	for (i = 0; i < sizeof(access) / sizeof(access[0]); i++) {
		mr = ibv_reg_mr(pd, b.buf, 0, access[i]);
		assert_non_null(mr);
		assert_int_equal(mr->length, 0);
		assert_int_equal(ibv_dereg_mr(mr), 0);
	}
	mr = ibv_reg_mr(pd, NULL, 0, ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(ibv_dereg_mr(mr), 0);

	mr = ibv_reg_mr(pd, b.buf + 1, 0, ALL_ACCESS);
	assert_non_null(mr);
	wr.wr.rdma.remote_addr = (uintptr_t)mr->addr;
	wr.wr.rdma.rkey = mr->rkey;
	assert_int_equal(try_send(&a, &wr, 0, 0), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_SUCCESS);
	assert_int_equal(try_send(&a, &wr, 0, 1), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

static uint8_t *guarded;
static volatile sig_atomic_t faults;
static pthread_t faulted;

static void unprotect(int sig)
{
	(void)sig;
	faults++;
	faulted = pthread_self();
	mprotect(guarded, BUF, PROT_READ | PROT_WRITE);
}

/*
 * A program that protects its memory to learn of writes learns of a packet's,
 * whatever thread stores it.
 */
static void mr_write_tracking(void **state)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	struct sigaction sa = { .sa_handler = unprotect }, old;
	struct ibv_cq *cq;
	struct end a, b;
	void *context;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	guarded = b.buf;
	faults = 0;
	assert_int_equal(sigaction(SIGSEGV, &sa, &old), 0);
	assert_int_equal(mprotect(b.buf, BUF, PROT_READ), 0);
	assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
	wr.wr.rdma.remote_addr = (uintptr_t)b.buf;
	wr.wr.rdma.rkey = b.mr->rkey;
	memset(a.buf, 0x5a, 64);
	assert_int_equal(try_send(&a, &wr, 0, 64), 0);
	/* Who waits in ibv_get_cq_event() may receive by itself. */
	assert_true(readable(a.ch->fd, 10000));
	assert_int_equal(ibv_get_cq_event(a.ch, &cq, &context), 0);
	ibv_ack_cq_events(cq, 1);
	assert_int_equal(sigaction(SIGSEGV, &old, NULL), 0);
	wait_wc(a.cq);
	assert_int_equal(faults, 1);
	assert_false(pthread_equal(faulted, pthread_self()));
	assert_memory_equal(a.buf, b.buf, 64);
	end_fini(&a);
	end_fini(&b);
}

static void reregister(void **state)
{
	struct ibv_mr *mr, *null;
	uint8_t *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t lkey, rkey;
	struct ibv_pd *pd2;
	struct end a, b;

	(void)state;
	assert_true(p != MAP_FAILED);
	pair_init(&a, &b, IBV_QPT_RC);
	pd2 = ibv_alloc_pd(ctx);
	mr = ibv_reg_mr(pd, p, PAGE, ALL_ACCESS);
	assert_non_null(mr);
	lkey = mr->lkey;
	rkey = mr->rkey;

	/* Input errors leave it as it was. */
	errno = 0;
	assert_int_equal(ibv_rereg_mr(mr, 8, NULL, NULL, 0, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(errno, EINVAL);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      NULL, PAGE, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      p, 0, 0),
			 IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd2, NULL, 0,
				      IBV_ACCESS_LOCAL_WRITE),
			 IBV_REREG_MR_ERR_INPUT);
	null = ibv_alloc_null_mr(pd);
	assert_int_equal(
		ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_PD, pd2, NULL, 0, 0),
		IBV_REREG_MR_ERR_INPUT);
	assert_int_equal(ibv_dereg_mr(null), 0);
	/* These the device finds. */
	assert_int_equal(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0),
			 IBV_REREG_MR_ERR_CMD);
	assert_int_equal(
		ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0),
		IBV_REREG_MR_ERR_CMD);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
				      NULL, 0, IBV_ACCESS_REMOTE_WRITE),
			 IBV_REREG_MR_ERR_CMD);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      (void *)(uintptr_t)PAGE, PAGE, 0),
			 IBV_REREG_MR_ERR_CMD);

	assert_int_equal(try_write(&a, rkey, (uintptr_t)p, 8), 0);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL,
				      NULL, 0, IBV_ACCESS_REMOTE_READ),
			 0);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p, 8), 0);
	assert_int_equal(try_write(&a, rkey, (uintptr_t)p, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL,
				      p + PAGE, 2 * PAGE, 0),
			 0);
	assert_ptr_equal(mr->addr, p + PAGE);
	assert_int_equal(mr->length, 2 * PAGE);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p + 3 * PAGE - 8, 8), 0);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(
		ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd2, NULL, 0, 0), 0);
	assert_ptr_equal(mr->pd, pd2);
	assert_int_equal(ibv_dealloc_pd(pd2), EBUSY);
	assert_int_equal(try_read(&a, rkey, (uintptr_t)p + PAGE, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_rereg_mr(mr, 7, pd, p, 4 * PAGE, ALL_ACCESS), 0);
	assert_int_equal(mr->lkey, lkey);
	assert_int_equal(mr->rkey, rkey);
	assert_int_equal(try_write(&a, rkey, (uintptr_t)p, 4 * PAGE), 0);
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	munmap(p, 4 * PAGE);
	end_fini(&a);
	end_fini(&b);
}

static void zero_based(void **state)
{
	struct ibv_mr *mr;
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = ibv_reg_mr(pd, b.buf + 256, 1024,
			ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
	assert_non_null(mr);
	fill(a.buf, 64, 1);
	assert_int_equal(try_write(&a, mr->rkey, 16, 64), 0);
	assert_memory_equal(b.buf + 272, a.buf, 64);
	assert_int_equal(try_write(&a, mr->rkey, 1000, 64),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	/* An address of the program's choice, with the same place in a page. */
	mr = ibv_reg_mr_iova(pd, b.buf + 256, 1024, 0x7000000000100,
			     ALL_ACCESS);
	assert_non_null(mr);
	assert_int_equal(try_write(&a, mr->rkey, 0x7000000000110, 64), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_null(ibv_reg_mr_iova(pd, b.buf + 256, 1024, 0x7000000000101,
				    ALL_ACCESS));
	assert_int_equal(errno, EINVAL);
	assert_null(ibv_reg_mr_iova(pd, b.buf, 8192, UINT64_MAX - 4095,
				    ALL_ACCESS));
	assert_int_equal(errno, EINVAL);
	end_fini(&a);
	end_fini(&b);
}

static void null_region(void **state)
{
	struct ibv_sge sge[3], recv[2];
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED,
				  .sg_list = sge,
				  .num_sge = 3 };
	struct ibv_recv_wr rwr = { .sg_list = recv, .num_sge = 2 };
	struct ibv_send_wr *bad;
	struct ibv_recv_wr *rbad;
	struct end a, b;
	struct ibv_mr *mr;
	uint8_t want[24] = { 0 };

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	mr = ibv_alloc_null_mr(pd);
	assert_non_null(mr);
	fill(a.buf, 16, 5);
	/* Zeros in the middle of what is sent; the first half goes nowhere. */
	sge[0] = sge_of(&a, 0, 8);
	sge[1] = (struct ibv_sge){ 12345, 5000, mr->lkey };
	sge[2] = sge_of(&a, 8, 8);
	recv[0] = (struct ibv_sge){ 0, 5000, mr->lkey };
	recv[1] = sge_of(&b, 0, 64);
	memset(b.buf, 0xee, 64);
	assert_int_equal(ibv_post_recv(b.qp, &rwr, &rbad), 0);
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	assert_int_equal(wait_wc(b.cq).byte_len, 5016);
	assert_int_equal(wait_wc(a.cq).status, 0);
	memcpy(want + 8, a.buf + 8, 8);
	assert_memory_equal(b.buf, want, 16);
	/* For the peer it is not there. */
	assert_int_equal(mr->rkey, 0);
	assert_int_equal(try_read(&a, mr->lkey, 0, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	end_fini(&a);
	end_fini(&b);
}

static void on_demand(void **state)
{
	const unsigned int odp = ALL_ACCESS | IBV_ACCESS_ON_DEMAND;
	uint8_t *p = mmap(NULL, 16 * PAGE, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_send_wr wr = { .wr_id = 9, .opcode = IBV_WR_SEND };
	struct ibv_sge sge;
	struct ibv_send_wr *bad;
	struct ibv_mr *mr;
	struct end a, b;

	(void)state;
	assert_true(p != MAP_FAILED);
	pair_init(&a, &b, IBV_QPT_RC);
	mr = ibv_reg_mr(pd, p, 16 * PAGE, odp);
	assert_non_null(mr);
	/* No page: no access, and no crash. */
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p, PAGE),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_read(&a, mr->rkey, (uintptr_t)p, PAGE),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	/* It comes, is written, goes, comes back read-only. */
	assert_int_equal(mprotect(p, 4 * PAGE, PROT_READ | PROT_WRITE), 0);
	fill(a.buf, 2 * PAGE, 8);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p + 16, 2 * PAGE),
			 0);
	assert_memory_equal(p + 16, a.buf, 2 * PAGE);
	assert_int_equal(
		try_write(&a, mr->rkey, (uintptr_t)p + 3 * PAGE, 2 * PAGE),
		IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(madvise(p, 4 * PAGE, MADV_DONTNEED), 0);
	assert_int_equal(try_read(&a, mr->rkey, (uintptr_t)p, PAGE), 0);
	assert_int_equal(a.buf[20], 0);
	assert_int_equal(mprotect(p, PAGE, PROT_READ), 0);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p, 8),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_read(&a, mr->rkey, (uintptr_t)p, 8), 0);
	/* Atomics, and local use. */
	wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
	wr.wr.atomic.rkey = mr->rkey;
	wr.wr.atomic.remote_addr = (uintptr_t)p + PAGE;
	wr.wr.atomic.compare_add = 3;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, 0);
	assert_int_equal(*(uint64_t *)(void *)(p + PAGE), 3);
	wr.wr.atomic.remote_addr = (uintptr_t)p;
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	sge = (struct ibv_sge){ (uintptr_t)p + 8 * PAGE, 64, mr->lkey };
	wr = (struct ibv_send_wr){ .wr_id = 9,
				   .opcode = IBV_WR_SEND,
				   .sg_list = &sge,
				   .num_sge = 1,
				   .send_flags = IBV_SEND_SIGNALED };
	assert_int_equal(ibv_post_send(a.qp, &wr, &bad), 0);
	assert_int_equal(wait_wc(a.cq).status, IBV_WC_LOC_PROT_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);

	/* All memory there is. */
	mr = ibv_reg_mr(pd, NULL, SIZE_MAX, odp);
	assert_non_null(mr);
	assert_int_equal(try_write(&a, mr->rkey, (uintptr_t)p + PAGE, 64), 0);
	assert_memory_equal(p + PAGE, a.buf, 64);
	assert_int_equal(try_write(&a, mr->rkey, 8, 8), IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(try_write(&a, mr->rkey, UINT64_MAX - 64, 32),
			 IBV_WC_REM_ACCESS_ERR);
	reconnect(&a, &b);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	/* Without paging all of it would have to be there. */
	assert_null(ibv_reg_mr(pd, NULL, SIZE_MAX, ALL_ACCESS));
	assert_null(ibv_reg_mr(pd, p, SIZE_MAX, odp));
	assert_null(ibv_reg_mr(pd, p, PAGE, odp | IBV_ACCESS_HUGETLB));
	munmap(p, 16 * PAGE);
	end_fini(&a);
	end_fini(&b);
}

static void advice(void **state)
{
	const unsigned int odp = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND;
	const enum ib_uverbs_advise_mr_advice fetch =
		IBV_ADVISE_MR_ADVICE_PREFETCH;
	const enum ib_uverbs_advise_mr_advice write =
		IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE;
	const uint32_t flush = IBV_ADVISE_MR_FLAG_FLUSH;
	uint8_t *p = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr, *readonly, *plain;
	struct ibv_pd *pd2 = ibv_alloc_pd(ctx);
	unsigned char in[4];
	struct ibv_sge sge;

	(void)state;
	assert_true(p != MAP_FAILED);
	mr = ibv_reg_mr(pd, p, 4 * PAGE, odp);
	readonly = ibv_reg_mr(pd, p, 4 * PAGE, IBV_ACCESS_ON_DEMAND);
	plain = ibv_reg_mr(pd, p, PAGE, IBV_ACCESS_LOCAL_WRITE);
	sge = (struct ibv_sge){ (uintptr_t)p, 3 * PAGE, mr->lkey };
	assert_int_equal(madvise(p, 4 * PAGE, MADV_DONTNEED), 0);
	assert_int_equal(ibv_advise_mr(pd, write, flush, &sge, 1), 0);
	assert_int_equal(mincore(p, 4 * PAGE, in), 0);
	assert_true(in[0] & in[1] & in[2] & 1);
	assert_false(in[3] & 1);
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 1), 0);
	assert_int_equal(ibv_advise_mr(pd,
				       IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
				       flush, &sge, 1),
			 0);
	assert_int_equal(ibv_advise_mr(pd, 99, 0, &sge, 1), ENOTSUP);
	assert_int_equal(ibv_advise_mr(pd, fetch, 2, &sge, 1), EINVAL);
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 0), EINVAL);
	assert_int_equal(ibv_advise_mr(pd2, fetch, 0, &sge, 1), EPERM);
	sge.length = 5 * PAGE;
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 1), EFAULT);
	sge = (struct ibv_sge){ (uintptr_t)p, PAGE, readonly->lkey };
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), 0);
	assert_int_equal(ibv_advise_mr(pd, write, flush, &sge, 1), EPERM);
	sge.lkey = plain->lkey;
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), EINVAL);
	sge.lkey ^= 1;
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), ENOENT);
	/* A page that is not there: who waits hears of it. */
	munmap(p + 3 * PAGE, PAGE);
	sge = (struct ibv_sge){ (uintptr_t)p, 4 * PAGE, mr->lkey };
	assert_int_equal(ibv_advise_mr(pd, fetch, flush, &sge, 1), EFAULT);
	assert_int_equal(ibv_advise_mr(pd, fetch, 0, &sge, 1), 0);
	assert_int_equal(ibv_dereg_mr(mr), 0);
	assert_int_equal(ibv_dereg_mr(readonly), 0);
	assert_int_equal(ibv_dereg_mr(plain), 0);
	assert_int_equal(ibv_dealloc_pd(pd2), 0);
	munmap(p, 3 * PAGE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(regions),    TEST(empty_region), TEST(mr_write_tracking),
		TEST(reregister), TEST(zero_based),   TEST(null_region),
		TEST(on_demand),  TEST(advice),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
