/*
 * test_devices.c - devices: attributes, GIDs, events, forks, recordings
 */
#include "pair.h"

#include "hostns.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

static void device_attributes(void **state)
{
	struct ibv_device_attr_ex ex;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct {
		uint8_t bytes[4];
		uint8_t guard;
	} small = { .guard = 0xa5 };

	(void)state;
	assert_int_equal(ibv_query_device(ctx, &attr), 0);
	assert_int_equal(attr.phys_port_cnt, 1);
	assert_true(attr.max_sge >= 1 && attr.max_qp_wr >= 1024);
	assert_int_equal(attr.node_guid, ibv_get_device_guid(ctx->device));
	assert_int_equal(ibv_query_device_ex(ctx, NULL, &ex), 0);
	assert_memory_equal(&ex.orig_attr, &attr, sizeof(attr));
	assert_string_equal(ibv_get_device_name(ctx->device), "softhca0");

	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	assert_int_equal(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	assert_int_equal(ibv_query_port(ctx, 0, &port), EINVAL);
	assert_int_equal(ibv_query_port(ctx, 2, &port), EINVAL);
	/* A program with an older, shorter struct. */
	assert_int_equal(verbs_get_ctx(ctx)->query_port(
				 ctx, 1, (struct ibv_port_attr *)&small,
				 sizeof(small.bytes)),
			 0);
	assert_int_equal(small.guard, 0xa5);
	assert_true(ctx->num_comp_vectors >= 1);
	assert_true(fcntl(ctx->async_fd, F_GETFL) >= 0);
	assert_true(fcntl(ctx->cmd_fd, F_GETFL) >= 0);
}

static void gid_table(void **state)
{
	struct ibv_gid_entry entries[64], one;
	struct ibv_port_attr port;
	union ibv_gid gid, zero = { 0 };
	int i, full = 0;
	ssize_t n;
	__be16 pkey;

	(void)state;
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	for (i = 0; i < port.gid_tbl_len; i++) {
		assert_int_equal(ibv_query_gid(ctx, 1, i, &gid), 0);
		if (!memcmp(&gid, &zero, sizeof(gid))) {
			assert_int_equal(
				ibv_query_gid_ex(ctx, 1, (uint32_t)i, &one, 0),
				ENODATA);
			continue;
		}
		assert_int_equal(ibv_query_gid_ex(ctx, 1, (uint32_t)i, &one, 0),
				 0);
		assert_memory_equal(&one.gid, &gid, sizeof(gid));
		assert_int_equal(one.gid_type, IBV_GID_TYPE_ROCE_V2);
		assert_true(one.ndev_ifindex);
		full++;
	}
	assert_true(full >= 1);
	n = ibv_query_gid_table(ctx, entries, 64, 0);
	assert_int_equal(n, full);
	assert_int_equal(ibv_query_gid_table(ctx, entries, 0, 0), -EINVAL);

	assert_int_equal(ibv_query_gid(ctx, 1, port.gid_tbl_len, &gid), -1);
	assert_int_equal(ibv_query_gid(ctx, 2, 0, &gid), -1);
	assert_int_equal(ibv_query_gid_ex(ctx, 1, 4096, &one, 0), EINVAL);
	assert_int_equal(ibv_query_pkey(ctx, 1, 0, &pkey), 0);
	assert_int_equal(pkey, 0xffff);
	assert_int_equal(ibv_query_pkey(ctx, 1, 1, &pkey), -1);
	assert_int_equal(ibv_get_pkey_index(ctx, 1, pkey), 0);
}

/* In a host of its own; the exit status. */
static int see_late_address(void)
{
	union ibv_gid gid,
		late = { .raw = { [10] = 0xff, 0xff, 10, 77, 0, 1 } };
	struct pollfd pfd = { .events = POLLIN };
	struct ibv_device **list;
	struct ibv_context *c;

	if (!own_netns() || !loopback_up())
		return 77;
	list = ibv_get_device_list(NULL);
	c = list && list[0] ? ibv_open_device(list[0]) : NULL;
	if (!c || !ip("addr add 10.77.0.1/32 dev lo"))
		return 1;
	pfd.fd = c->async_fd;
	for (int i = 0; i < 16; i++) {
		if (ibv_query_gid(c, 1, i, &gid))
			return 2;
		/* Whoever waits for the event hears of it, too. */
		if (!memcmp(&gid, &late, sizeof(gid)))
			return poll(&pfd, 1, 0) == 1 ? 0 : 3;
	}
	return 4;
}

/* An address that came after the device was opened, and before anything else has
 * been done with it. */
static void late_address(void **state)
{
	int status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip();
#endif
	pid = fork_child();
	if (!pid)
		_exit(see_late_address());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

static void extended(void **state)
{
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 64,
		.wc_flags = IBV_WC_STANDARD_FLAGS |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RC,
		.comp_mask =
			IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.cap = { 16, 16, 4, 4, 64 },
		.send_ops_flags = IBV_QP_EX_WITH_SEND |
				  IBV_QP_EX_WITH_SEND_WITH_IMM |
				  IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_values_ex values = { .comp_mask =
						IBV_VALUES_MASK_RAW_CLOCK };
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_qp_ex *ex;
	struct ibv_cq_ex *cq;
	struct end a, b;
	struct ibv_wc wc;
	uint64_t end, ts;
	char text[] = "inline";
	int i;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	assert_null(ibv_qp_to_qp_ex(a.qp));
	assert_int_equal(ibv_destroy_qp(a.qp), 0);
	cq_attr.wc_flags |= IBV_WC_EX_WITH_CVLAN;
	assert_null(ibv_create_cq_ex(ctx, &cq_attr));
	assert_int_equal(errno, EOPNOTSUPP);
	cq_attr.wc_flags &= ~(uint64_t)IBV_WC_EX_WITH_CVLAN;
	cq = ibv_create_cq_ex(ctx, &cq_attr);
	assert_non_null(cq);
	init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
	init.send_ops_flags |= IBV_QP_EX_WITH_TSO;
	assert_null(ibv_create_qp_ex(ctx, &init));
	assert_int_equal(errno, EOPNOTSUPP);
	init.send_ops_flags &= ~(uint64_t)IBV_QP_EX_WITH_TSO;
	a.qp = ibv_create_qp_ex(ctx, &init);
	assert_non_null(a.qp);
	ex = ibv_qp_to_qp_ex(a.qp);
	assert_non_null(ex);
	connect_to(a.qp, b.qp->qp_num);
	connect_to(b.qp, a.qp->qp_num);
	assert_int_equal(ibv_start_poll(cq, &poll_attr), ENOENT);

	for (i = 0; i < 3; i++)
		post_recv(&b, (uint64_t)i, 64 * (size_t)i, 64);
	ibv_wr_start(ex);
	ex->wr_id = 1;
	ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, text, sizeof(text));
	memset(text, 0, sizeof(text));
	ex->wr_id = 2;
	ibv_wr_rdma_write(ex, b.mr->rkey, (uintptr_t)b.buf + 4096);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 3000);
	ex->wr_id = 3;
	ibv_wr_send_imm(ex, htobe32(99));
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 10);
	fill(a.buf, 3000, 9);
	assert_int_equal(ibv_wr_complete(ex), 0);
	wc = wait_wc(b.cq);
	assert_int_equal(wc.byte_len, 7);
	assert_string_equal((char *)b.buf, "inline");
	wc = wait_wc(b.cq);
	assert_int_equal(wc.imm_data, htobe32(99));

	/* Iterate, posting from within. */
	end = now_ns() + 5 * SECOND;
	ts = 0;
	for (i = 1; i <= 4;) {
		if (ibv_start_poll(cq, &poll_attr)) {
			assert_true(now_ns() < end);
			continue;
		}
		do {
			assert_int_equal(cq->status, IBV_WC_SUCCESS);
			assert_int_equal(cq->wr_id, i);
			assert_int_equal(ibv_wc_read_opcode(cq),
					 i == 2 ? IBV_WC_RDMA_WRITE :
						  IBV_WC_SEND);
			assert_int_equal(ibv_wc_read_qp_num(cq), a.qp->qp_num);
			assert_true(ibv_wc_read_completion_ts(cq) >= ts);
			ts = ibv_wc_read_completion_ts(cq);
			if (i == 3) {
				ibv_wr_start(ex);
				ex->wr_id = 4;
				ibv_wr_send(ex);
				ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf,
					       10);
				assert_int_equal(ibv_wr_complete(ex), 0);
			}
			i++;
		} while (!ibv_next_poll(cq));
		ibv_end_poll(cq);
	}
	assert_memory_equal(a.buf, b.buf + 4096, 3000);
	assert_int_equal(ibv_query_rt_values_ex(ctx, &values), 0);
	assert_true((uint64_t)values.raw_clock.tv_nsec >= ts);

	/* Given up, nothing is posted; an error while building, neither. */
	ibv_wr_start(ex);
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 10);
	ibv_wr_abort(ex);
	ibv_wr_start(ex);
	ibv_wr_set_sge(ex, a.mr->lkey, (uintptr_t)a.buf, 10);
	assert_int_equal(ibv_wr_complete(ex), EINVAL);
	assert_int_equal(ibv_start_poll(cq, &poll_attr), ENOENT);

	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), EBUSY);
	assert_int_equal(ibv_destroy_qp(a.qp), 0);
	a.qp = NULL;
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
	end_fini(&a);
	end_fini(&b);
}

/*
 * In a child the parent's objects are dead and stay untouched; the child can
 * have its own.
 */
static void forked(void **state)
{
	struct ibv_cq_init_attr_ex ex_attr = { .cqe = 8 };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_cq_ex *ex;
	struct ibv_wc wc;
	struct end a, b;
	int status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	pair_init(&a, &b, IBV_QPT_RC);
	ex = ibv_create_cq_ex(ctx, &ex_attr);
	assert_non_null(ex);
	/* A completion lies there, and is the parent's. */
	post_recv(&b, 4, 0, 64);
	assert_int_equal(ibv_req_notify_cq(a.cq, 0), 0);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	assert_true(readable(a.ch->fd, 10000));
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		struct ibv_context *parents = ctx;
		struct ibv_async_event ev;
		struct ibv_cq *cq;
		void *arg;

		/* Each says so, and none waits for what never comes. */
		alarm(20);
		if (!ibv_get_cq_event(a.ch, &cq, &arg) || errno != EIO ||
		    !ibv_get_async_event(ctx, &ev) || errno != EIO ||
		    ibv_req_notify_cq(a.cq, 0) != EIO ||
		    ibv_resize_cq(a.cq, 10) != EIO ||
		    ibv_destroy_cq(a.cq) != EIO ||
		    ibv_reg_mr(pd, a.buf, 8, 0) || errno != EIO ||
		    ibv_dealloc_pd(pd) != EIO)
			_exit(5);
		if (ibv_poll_cq(a.cq, 1, &wc) >= 0 ||
		    ibv_start_poll(ex, &poll_attr) != EIO ||
		    !try_send(&a, &wr, 0, 8) || !ibv_destroy_qp(a.qp) ||
		    !ibv_dereg_mr(a.mr) || ibv_alloc_pd(ctx) ||
		    !ibv_close_device(ctx))
			_exit(1);
		ctx = open_first();
		if (!ctx || ctx == parents)
			_exit(2);
		pd = ibv_alloc_pd(ctx);
		pair_init(&a, &b, IBV_QPT_RC);
		post_recv(&b, 5, 0, 64);
		if (try_send(&a, &wr, 0, 8))
			_exit(3);
		wc = wait_wc(b.cq);
		if (wc.status || wc.wr_id != 5)
			_exit(4);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	wc = wait_wc(a.cq);
	expect_wc(&wc, 1, IBV_WC_SUCCESS);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 4, IBV_WC_SUCCESS);
	post_recv(&b, 5, 0, 64);
	assert_int_equal(try_send(&a, &wr, 0, 8), 0);
	wc = wait_wc(b.cq);
	expect_wc(&wc, 5, IBV_WC_SUCCESS);
	assert_int_equal(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
	end_fini(&a);
	end_fini(&b);
}

static int open_with_small_files(void *arg)
{
	const struct rlimit most = { 1 << 20, 1 << 20 };
	struct ibv_alloc_dm_attr dm = { .length = 4096 };
	struct ibv_device_attr_ex attr;
	struct ibv_context *c;

	(void)arg;
	if (setrlimit(RLIMIT_FSIZE, &most))
		return 1;
	c = open_first();
	if (!c || ibv_query_device_ex(c, NULL, &attr) || attr.max_dm_size)
		return 2;
	if (ibv_alloc_dm(c, &dm) || errno != EOPNOTSUPP)
		return 3;
	return ibv_close_device(c) ? 4 : 0;
}

/* A limit of files' sizes takes the device memory, and no signal comes. */
static void small_files(void **state)
{
	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	assert_int_equal(in_child(open_with_small_files, NULL), 0);
}

/* Rates (IBTA 9.11.1), there and back; words for every code, and for none. */
static void texts(void **state)
{
	static const struct {
		enum ibv_rate rate;
		int mult, mbps;
	} rates[] = {
		{ IBV_RATE_2_5_GBPS, 1, 2500 },
		{ IBV_RATE_5_GBPS, 2, 5000 },
		{ IBV_RATE_10_GBPS, 4, 10000 },
		{ IBV_RATE_20_GBPS, 8, 20000 },
		{ IBV_RATE_30_GBPS, 12, 30000 },
		{ IBV_RATE_40_GBPS, 16, 40000 },
		{ IBV_RATE_60_GBPS, 24, 60000 },
		{ IBV_RATE_80_GBPS, 32, 80000 },
		{ IBV_RATE_120_GBPS, 48, 120000 },
		{ IBV_RATE_100_GBPS, 40, 103125 },
		{ IBV_RATE_200_GBPS, 80, 206250 },
		{ IBV_RATE_25_GBPS, 10, 25781 },
	};
	size_t i;
	int k;

	(void)state;
	for (i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		assert_int_equal(ibv_rate_to_mbps(rates[i].rate),
				 rates[i].mbps);
		assert_int_equal(mbps_to_ibv_rate(rates[i].mbps),
				 rates[i].rate);
		k = ibv_rate_to_mult(rates[i].rate);
		/* The header of old has no multiple for the newer ones. */
		if (k != -1 || rates[i].mbps % 2500 == 0) {
			assert_int_equal(k, rates[i].mult);
			assert_int_equal(mult_to_ibv_rate(k), rates[i].rate);
		}
	}
	for (k = 0; k <= IBV_EVENT_WQ_FATAL; k++)
		assert_string_not_equal(
			ibv_event_type_str((enum ibv_event_type)k), "unknown");
	assert_string_equal(ibv_event_type_str(99), "unknown");
	for (k = 0; k <= IBV_WC_TM_RNDV_INCOMPLETE; k++)
		assert_string_not_equal(
			ibv_wc_status_str((enum ibv_wc_status)k), "unknown");
	assert_string_equal(ibv_wc_status_str(99), "unknown");
	for (k = 0; k <= IBV_PORT_ACTIVE_DEFER; k++)
		assert_non_null(ibv_port_state_str((enum ibv_port_state)k));
	assert_non_null(ibv_port_state_str(99));
	assert_non_null(ibv_node_type_str(99));
	/* Nothing is kept from a child, so nothing is needed for one. */
	assert_int_equal(ibv_fork_init(), 0);
	assert_int_equal(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

/* A device is opened, something is sent, and the device is closed. */
static void send_once(void)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct end a, b;

	setup(NULL);
	pair_init(&a, &b, IBV_QPT_RC);
	post_recv(&b, 1, 0, 1000);
	assert_int_equal(try_send(&a, &wr, 0, 1000), 0);
	wait_wc(b.cq);
	end_fini(&a);
	end_fini(&b);
	teardown(NULL);
}

static off_t recorded(const char *directory, pid_t pid)
{
	char name[128];
	struct stat st;

	snprintf(name, sizeof(name), "%s/%d", directory, (int)pid);
	return stat(name, &st) ? -1 : st.st_size;
}

/* In a process of its own, whose packets are recorded in the directory. */
static int record(const char *directory)
{
	off_t once, child;
	int status;
	pid_t pid;

	send_once();
	once = recorded(directory, getpid());
	pid = fork_child();
	if (!pid) {
		send_once();
		_exit(0);
	}
	if (waitpid(pid, &status, 0) != pid || status)
		return 1;
	child = recorded(directory, pid);
	if (once < 1000 || child < 1000 ||
	    recorded(directory, getpid()) != once)
		return 2;
	send_once();
	return recorded(directory, getpid()) < once + 1000 ? 3 : 0;
}

/* A second open of the device goes on with the recording of the first. */
static void recording_goes_on(void **state)
{
	char directory[] = "/tmp/softhca-test-objects-XXXXXX", path[64];
	int status;
	pid_t pid;

	(void)state;
#ifdef __SANITIZE_THREAD__
	skip(); /* it forbids threads in a child of threads */
#endif
	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/%%p", directory);
	pid = fork_child();
	assert_true(pid >= 0);
	if (!pid) {
		setenv("SOFTHCA_PCAP", path, 1);
		execl("/proc/self/exe", "test_objects", directory, NULL);
		_exit(127);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	snprintf(path, sizeof(path), "rm -r %s", directory);
	assert_int_equal(system(path), 0);
	assert_int_equal(status, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(device_attributes),
		TEST(gid_table),
		TEST(extended),
		TEST(forked),
		TEST(small_files),
		cmocka_unit_test(recording_goes_on),
		cmocka_unit_test(late_address),
		TEST(texts),
	};

	if (argc == 2)
		return record(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
