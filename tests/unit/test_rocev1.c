/*
 * test_rocev1.c - the second half of the GID table, and what a program gets that
 * chooses an index there: in one process, within the host and on its loopback
 * interface
 */
#include "pair.h"

#include "hostns.h"

#include <endian.h>

#define GRH 40
#define LEN 20u

static uint8_t v1; /* the index of gid0 for RoCE v1 */

static int setup_v1(void **state)
{
	struct ibv_port_attr port;

	setup(state);
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	v1 = (uint8_t)(port.gid_tbl_len / 2);
	return 0;
}

static struct ibv_ah_attr av_of(uint8_t index)
{
	return (struct ibv_ah_attr){ .port_num = 1,
				     .is_global = 1,
				     .grh = { .dgid = gid0,
					      .sgid_index = index,
					      .flow_label = 0x12345,
					      .hop_limit = 5,
					      .traffic_class = 0x60 } };
}

static void table_has_two_halves(void **state)
{
	struct ibv_gid_entry e[256], one;
	int found[2] = { 0 };
	ssize_t n;

	(void)state;
	n = ibv_query_gid_table(ctx, e, 256, 0);
	assert_true(n >= 6 && n % 2 == 0);
	assert_int_equal(e[0].gid_index, 0);
	for (ssize_t i = 0; i < n; i++) {
		const bool second = e[i].gid_index >= v1;

		assert_int_equal(e[i].gid_type, second ? IBV_GID_TYPE_ROCE_V1 :
							 IBV_GID_TYPE_ROCE_V2);
		found[second]++;
		assert_int_equal(
			ibv_query_gid_ex(ctx, 1,
					 (e[i].gid_index + v1) % (2u * v1),
					 &one, 0),
			0);
		assert_memory_equal(&one.gid, &e[i].gid, 16);
		assert_int_equal(one.ndev_ifindex, e[i].ndev_ifindex);
	}
	assert_int_equal(found[0], found[1]);
	assert_int_equal(ibv_query_gid_ex(ctx, 1, 2u * v1, &one, 0), EINVAL);
}

static int to_rtr(struct ibv_qp *qp, uint32_t dest, uint8_t index)
{
	struct ibv_qp_attr attr = rtr_attr(dest);

	attr.ah_attr = av_of(index);
	assert_int_equal(to_init(qp, ALL_ACCESS & ~1u), 0);
	return ibv_modify_qp(qp, &attr, rtr_mask(qp->qp_type));
}

static void connect_by(struct end *e, const struct end *to, uint8_t index)
{
	assert_int_equal(to_rtr(e->qp, to->qp->qp_num, index), 0);
	assert_int_equal(to_rts(e->qp, 1), 0);
}

/* The status of a message from one new queue pair to another. */
static enum ibv_wc_status message(enum ibv_qp_type type, uint8_t here,
				  uint8_t there)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	enum ibv_wc_status status;
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct end a, b;

	end_init(&a, type, NULL);
	end_init(&b, type, NULL);
	connect_by(&a, &b, here);
	connect_by(&b, &a, there);
	assert_int_equal(ibv_query_qp(a.qp, &attr, IBV_QP_AV, &init), 0);
	assert_int_equal(attr.ah_attr.grh.sgid_index, here);
	fill(a.buf, BUF / 2, 3);
	post_recv(&b, 2, 0, BUF / 2);
	assert_int_equal(try_send(&a, &wr, 0, BUF / 2), 0);
	status = wait_wc(a.cq).status;
	if (!status) {
		assert_int_equal(wait_wc(b.cq).byte_len, BUF / 2);
		assert_memory_equal(b.buf, a.buf, BUF / 2);
	}
	end_fini(&a);
	end_fini(&b);
	return status;
}

static void connected(void **state)
{
	(void)state;
	assert_int_equal(message(IBV_QPT_RC, v1, v1), 0);
	assert_int_equal(message(IBV_QPT_UC, v1, v1), 0);
	assert_int_equal(message(IBV_QPT_RC, 0, 0), 0);
}

/* As on two wires: nothing arrives. */
static void versions_do_not_mix(void **state)
{
	(void)state;
	assert_int_equal(message(IBV_QPT_RC, v1, 0), IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(message(IBV_QPT_RC, 0, v1), IBV_WC_RETRY_EXC_ERR);
}

/* A QP that has received by one version gets another path. */
static void connected_anew(void **state)
{
	const uint8_t indices[] = { 0, v1, 0, v1, v1 };
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	struct end a, b;

	(void)state;
	end_init(&a, IBV_QPT_RC, NULL);
	end_init(&b, IBV_QPT_RC, NULL);
	for (size_t i = 0; i < sizeof(indices); i++) {
		connect_by(&a, &b, indices[i]);
		connect_by(&b, &a, indices[i]);
		post_recv(&b, 2, 0, LEN);
		assert_int_equal(try_send(&a, &wr, 64, LEN), 0);
		assert_int_equal(wait_wc(a.cq).status, 0);
		assert_int_equal(wait_wc(b.cq).byte_len, LEN);
		assert_int_equal(ibv_modify_qp(a.qp, &reset, IBV_QP_STATE), 0);
		assert_int_equal(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE), 0);
	}
	end_fini(&a);
	end_fini(&b);
}

/* Datagrams */

/* To b and back, by what b knows of it. */
static void there_and_back(struct end *a, struct end *b, uint8_t index)
{
	struct ibv_ah_attr av = av_of(index), back = { 0 };
	struct ibv_grh *grh = (struct ibv_grh *)b->buf;
	struct ibv_wc wc;

	memset(b->buf, 0xee, GRH);
	post_recv(b, 2, 0, GRH + LEN);
	fill(a->buf, LEN, index);
	ud_send(a, ibv_create_ah(pd, &av), b->qp->qp_num, LEN);
	wc = wait_wc(b->cq);
	assert_int_equal(wc.status, 0);
	assert_int_equal(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
	assert_memory_equal(b->buf + GRH, a->buf, LEN);
	if (index) {
		assert_int_equal(be32toh(grh->version_tclass_flow), 0x66012345);
		assert_int_equal(be16toh(grh->paylen), 12 + 8 + LEN + 4);
		assert_int_equal(grh->next_hdr, 0x1b);
		assert_int_equal(grh->hop_limit, 5);
		assert_memory_equal(&grh->sgid, &gid0, 16);
		assert_memory_equal(&grh->dgid, &gid0, 16);
		assert_int_equal(wc.sl, 0);
	}
	assert_int_equal(ibv_init_ah_from_wc(ctx, 1, &wc, grh, &back), 0);
	assert_int_equal(back.grh.sgid_index, index);
	assert_int_equal(back.grh.traffic_class, 0x60);
	assert_memory_equal(&back.grh.dgid, &gid0, 16);
	post_recv(a, 3, 256, GRH + LEN);
	ud_send(b, ibv_create_ah_from_wc(pd, &wc, grh, 1), wc.src_qp, LEN);
	wc = wait_wc(a->cq);
	assert_int_equal(wc.status, 0);
	assert_int_equal(wc.src_qp, b->qp->qp_num);
}

static void datagrams(void **state)
{
	struct end a, b;

	(void)state;
	ud_init(&a);
	ud_init(&b);
	for (int i = 0; i < 3; i++) {
		there_and_back(&a, &b, v1);
		there_and_back(&a, &b, 0);
	}
	end_fini(&a);
	end_fini(&b);
}

/* What is refused */

static bool refused(struct ibv_ah_attr av, int err)
{
	return !ibv_create_ah(pd, &av) && errno == err;
}

/* For RoCE v1. */
static uint8_t index_of(const uint8_t gid[16])
{
	union ibv_gid at;
	uint8_t i = v1;

	for (;; i++) {
		assert_true(i < 2 * v1);
		assert_int_equal(ibv_query_gid(ctx, 1, i, &at), 0);
		if (!memcmp(at.raw, gid, sizeof(at.raw)))
			return i;
	}
}

static void wrong_vectors(void **state)
{
	static const uint8_t group[16] = { [10] = 0xff, 0xff, 224, 1, 2, 3 };
	static const uint8_t other[16] = { [10] = 0xff, 0xff, 10, 1, 2, 3 };
	static const uint8_t localhost[16] = {
		[10] = 0xff, 0xff, 127, 0, 0, 1
	};
	struct ibv_ah_attr av = av_of(v1);

	(void)state;
	memcpy(av.grh.dgid.raw, group, 16);
	assert_true(refused(av, EOPNOTSUPP));
	/* The loopback interface leads to no other host. */
	av = av_of(index_of(localhost));
	memcpy(av.grh.dgid.raw, other, 16);
	assert_true(refused(av, ENETUNREACH));
	av = av_of((uint8_t)(v1 - 1)); /* empty, in either half */
	assert_true(refused(av, EINVAL));
	av = av_of((uint8_t)(2 * v1 - 1));
	assert_true(refused(av, EINVAL));
	av = av_of((uint8_t)(2 * v1)); /* beyond the table */
	assert_true(refused(av, EINVAL));
}

/* The MAC is asked for when the path is made, and behind a router there is none. */
static void nobody_there(void **state)
{
	static const uint8_t mine[16] = { [10] = 0xff, 0xff, 10, 9, 0, 1 };
	struct ibv_ah_attr av;
	struct ibv_ah *ah;

	(void)state;
	av = av_of(index_of(mine));
	memcpy(av.grh.dgid.raw, mine, 16);
	av.grh.dgid.raw[15] = 2;
	assert_true(refused(av, EHOSTUNREACH));
	av.grh.dgid.raw[13] = 8;
	assert_true(refused(av, ENETUNREACH));
	/* One that is known. */
	av.grh.dgid.raw[13] = 9;
	assert_true(
		ip("neigh replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev v0"));
	ah = ibv_create_ah(pd, &av);
	assert_non_null(ah);
	assert_int_equal(ibv_destroy_ah(ah), 0);
}

static void no_xrc(void **state)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_XRC_SEND,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd,
		.cap = { .max_send_wr = 1, .max_send_sge = 1 },
	};
	struct ibv_qp *qp;

	(void)state;
	init.send_cq = ibv_create_cq(ctx, 1, NULL, NULL, 0);
	qp = ibv_create_qp_ex(ctx, &init);
	assert_non_null(qp);
	assert_int_equal(to_rtr(qp, 5, v1), EOPNOTSUPP);
	assert_int_equal(to_rtr(qp, 5, 0), 0);
	assert_int_equal(ibv_destroy_qp(qp), 0);
	assert_int_equal(ibv_destroy_cq(init.send_cq), 0);
}

#define V1_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup_v1, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		V1_TEST(table_has_two_halves),
		V1_TEST(connected),
		V1_TEST(versions_do_not_mix),
		V1_TEST(connected_anew),
		V1_TEST(datagrams),
		V1_TEST(wrong_vectors),
		V1_TEST(no_xrc),
		V1_TEST(nobody_there),
	};

	if (!own_netns() || !ip("link add v0 type veth peer name v1") ||
	    !ip("addr add 10.9.0.1/24 dev v0") || !ip("link set v1 up") ||
	    !ip("link set v0 up") ||
	    !ip("route add 10.8.0.0/16 via 10.9.0.7 dev v0"))
		return 77;
	setenv("SOFTHCA_ROCEV1", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
