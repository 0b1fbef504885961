/*
 * test_infiniband.c - programs that know LIDs: address vectors with and without
 * a GRH, what completions say, LIDs that nobody has, groups, and events
 */
#include "pair.h"

#include "hostns.h"

#include <endian.h>

#define LID 3
#define GRH 40
#define LEN 20u

static struct ibv_port_attr port;

static struct ibv_ah_attr av_of(uint16_t lid)
{
	return (struct ibv_ah_attr){ .dlid = lid, .port_num = 1 };
}

static struct ibv_ah_attr global_av(uint16_t lid, union ibv_gid gid)
{
	return (struct ibv_ah_attr){
		.dlid = lid,
		.port_num = 1,
		.is_global = 1,
		.grh = { .dgid = gid, .hop_limit = 5, .traffic_class = 0x60 }
	};
}

static void port_has_a_lid(void **state)
{
	struct ibv_gid_entry entry;
	struct ibv_device_attr attr;
	__be16 pkey;

	(void)state;
	assert_string_equal(ibv_get_device_name(ctx->device), "softib0");
	assert_int_equal(ibv_query_device(ctx, &attr), 0);
	assert_int_equal(be64toh(attr.node_guid), 0x025348ca7f000003);
	assert_int_equal(port.link_layer, IBV_LINK_LAYER_INFINIBAND);
	assert_int_equal(port.state, IBV_PORT_ACTIVE);
	assert_int_equal(port.phys_state, 5);
	assert_int_equal(port.active_mtu, IBV_MTU_4096);
	assert_int_equal(port.lid, LID);
	assert_int_equal(port.lmc, 0);
	assert_int_equal(port.sm_lid, 0xbfff);
	assert_int_equal(port.gid_tbl_len, 1);
	assert_int_equal(port.flags & IBV_QPF_GRH_REQUIRED, 0);
	assert_int_equal(ibv_query_gid_ex(ctx, 1, 0, &entry, 0), 0);
	assert_int_equal(entry.gid_type, IBV_GID_TYPE_IB);
	assert_int_equal(entry.ndev_ifindex, 0);
	assert_int_equal(be64toh(entry.gid.global.subnet_prefix),
			 0xfe80000000000000);
	assert_int_equal(be64toh(entry.gid.global.interface_id),
			 0x025348ca7f000003);
	assert_int_equal(ibv_query_pkey(ctx, 1, 0, &pkey), 0);
	assert_int_equal(be16toh(pkey), 0xffff);
}

/* Connected services */

static int to_rtr(struct ibv_qp *qp, uint32_t dest, struct ibv_ah_attr av)
{
	struct ibv_qp_attr attr = rtr_attr(dest);

	attr.ah_attr = av;
	assert_int_equal(to_init(qp, ALL_ACCESS & ~1u), 0);
	return ibv_modify_qp(qp, &attr, rtr_mask(qp->qp_type));
}

static void connect_by(struct ibv_qp *qp, uint32_t dest, struct ibv_ah_attr av,
		       uint8_t retries)
{
	assert_int_equal(to_rtr(qp, dest, av), 0);
	assert_int_equal(to_rts(qp, retries), 0);
}

/* The status of a message from one new queue pair to another. */
static enum ibv_wc_status message(enum ibv_qp_type type, struct ibv_ah_attr av)
{
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND };
	enum ibv_wc_status status;
	struct end a, b;

	end_init(&a, type, NULL);
	end_init(&b, type, NULL);
	connect_by(a.qp, b.qp->qp_num, av, 1);
	connect_by(b.qp, a.qp->qp_num, av_of(LID), 7);
	post_recv(&b, 2, 0, LEN);
	assert_int_equal(try_send(&a, &wr, 64, LEN), 0);
	status = wait_wc(a.cq).status;
	if (!status)
		assert_int_equal(wait_wc(b.cq).byte_len, LEN);
	end_fini(&a);
	end_fini(&b);
	return status;
}

static void connected_by_lids(void **state)
{
	(void)state;
	assert_int_equal(message(IBV_QPT_RC, av_of(LID)), 0);
	assert_int_equal(message(IBV_QPT_UC, av_of(LID)), 0);
	assert_int_equal(message(IBV_QPT_RC, global_av(LID, gid0)), 0);
}

/* As on a fabric: the address is accepted, and retries run out. */
static void lids_that_nobody_has(void **state)
{
	static const uint16_t lids[] = { 0,      2,      LID + 1, 0xbffe,
					 0xbfff, 0xc001, 0xffff };
	union ibv_gid other = gid0;

	(void)state;
	for (size_t i = 0; i < sizeof(lids) / sizeof(lids[0]); i++)
		assert_int_equal(message(IBV_QPT_RC, av_of(lids[i])),
				 IBV_WC_RETRY_EXC_ERR);
	/* The LID decides, and the port looks at the GID. */
	assert_int_equal(message(IBV_QPT_RC, global_av(LID + 1, gid0)),
			 IBV_WC_RETRY_EXC_ERR);
	assert_int_equal(message(IBV_QPT_RC, global_av(0, gid0)),
			 IBV_WC_RETRY_EXC_ERR);
	other.raw[15]++;
	assert_int_equal(message(IBV_QPT_RC, global_av(LID, other)),
			 IBV_WC_RETRY_EXC_ERR);
	other.raw[8] ^= 1; /* nobody's GUID */
	assert_int_equal(message(IBV_QPT_RC, global_av(LID, other)),
			 IBV_WC_RETRY_EXC_ERR);
}

static void wrong_vectors(void **state)
{
	struct ibv_ah_attr av = av_of(LID);
	struct end e;

	(void)state;
	end_init(&e, IBV_QPT_RC, NULL);
	av.port_num = 2;
	assert_int_equal(to_rtr(e.qp, 1, av), EINVAL);
	av = global_av(LID, gid0);
	av.grh.sgid_index = 1;
	assert_int_equal(to_rtr(e.qp, 1, av), EINVAL);
	assert_null(ibv_create_ah(pd, &av));
	assert_int_equal(errno, EINVAL);
	end_fini(&e);
}

static void vectors_are_kept(void **state)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;
	struct end e;

	(void)state;
	end_init(&e, IBV_QPT_RC, NULL);
	assert_int_equal(to_rtr(e.qp, 1, av_of(LID)), 0);
	assert_int_equal(ibv_query_qp(e.qp, &attr, IBV_QP_AV, &init), 0);
	assert_int_equal(attr.ah_attr.dlid, LID);
	assert_int_equal(attr.ah_attr.is_global, 0);
	end_fini(&e);
}

/* Datagrams */

static void send_by(struct end *a, struct ibv_ah *ah, uint32_t qpn)
{
	fill(a->buf, LEN, qpn);
	ud_send(a, ah, qpn, LEN);
}

static struct ibv_wc datagram(struct end *a, struct end *b,
			      struct ibv_ah_attr av)
{
	uint8_t want[LEN];
	struct ibv_wc wc;

	memset(b->buf, 0xee, GRH);
	post_recv(b, 2, 0, GRH + LEN);
	send_by(a, ibv_create_ah(pd, &av), b->qp->qp_num);
	wc = wait_wc(b->cq);
	assert_int_equal(wc.status, 0);
	assert_int_equal(wc.byte_len, GRH + LEN);
	assert_int_equal(wc.src_qp, a->qp->qp_num);
	assert_int_equal(wc.slid, LID);
	assert_int_equal(wc.sl, 0);
	assert_int_equal(wc.dlid_path_bits, 0);
	fill(want, LEN, b->qp->qp_num);
	assert_memory_equal(b->buf + GRH, want, LEN);
	return wc;
}

static void datagrams(void **state)
{
	struct ibv_ah_attr back;
	struct ibv_grh *grh;
	struct end a, b;
	struct ibv_wc wc;

	(void)state;
	ud_init(&a);
	ud_init(&b);
	grh = (struct ibv_grh *)b.buf;
	for (int i = 0; i < 3; i++) {
		wc = datagram(&a, &b, av_of(LID));
		assert_int_equal(wc.wc_flags & IBV_WC_GRH, 0);
		assert_int_equal(ibv_init_ah_from_wc(ctx, 1, &wc, grh, &back),
				 0);
		assert_int_equal(back.is_global, 0);
		assert_int_equal(back.dlid, LID);
		assert_int_equal(back.port_num, 1);
		/* And the answer. */
		post_recv(&a, 3, 256, GRH + LEN);
		send_by(&b, ibv_create_ah_from_wc(pd, &wc, grh, 1), wc.src_qp);
		assert_int_equal(wait_wc(a.cq).slid, LID);

		wc = datagram(&a, &b, global_av(LID, gid0));
		assert_int_equal(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
		assert_int_equal(be32toh(grh->version_tclass_flow), 0x66000000);
		assert_int_equal(be16toh(grh->paylen), 12 + 8 + LEN + 4);
		assert_int_equal(grh->next_hdr, 0x1b);
		assert_int_equal(grh->hop_limit, 5);
		assert_memory_equal(&grh->sgid, &gid0, 16);
		assert_memory_equal(&grh->dgid, &gid0, 16);
		assert_int_equal(ibv_init_ah_from_wc(ctx, 1, &wc, grh, &back),
				 0);
		assert_int_equal(back.is_global, 1);
		assert_int_equal(back.dlid, LID);
		assert_int_equal(back.grh.sgid_index, 0);
		assert_int_equal(back.grh.traffic_class, 0x60);
		assert_memory_equal(&back.grh.dgid, &gid0, 16);
		post_recv(&a, 4, 256, GRH + LEN);
		send_by(&b, ibv_create_ah_from_wc(pd, &wc, grh, 1), wc.src_qp);
		assert_int_equal(wait_wc(a.cq).wc_flags & IBV_WC_GRH,
				 IBV_WC_GRH);
	}
	end_fini(&a);
	end_fini(&b);
}

/* A datagram to a LID that nobody has completes, and arrives nowhere. */
static void datagrams_for_nobody(void **state)
{
	struct ibv_ah_attr av = av_of(0xbffe);
	struct end a, b;
	struct ibv_wc wc;

	(void)state;
	ud_init(&a);
	ud_init(&b);
	post_recv(&b, 2, 0, GRH + LEN);
	send_by(&a, ibv_create_ah(pd, &av), b.qp->qp_num);
	av.dlid = LID + 1;
	send_by(&a, ibv_create_ah(pd, &av), b.qp->qp_num);
	av = av_of(LID);
	send_by(&a, ibv_create_ah(pd, &av), b.qp->qp_num);
	/* The last one is the first that comes. */
	wc = wait_wc(b.cq);
	assert_int_equal(wc.status, 0);
	assert_int_equal(ibv_poll_cq(b.cq, 1, &wc), 0);
	end_fini(&a);
	end_fini(&b);
}

/* Groups */

static void group_of(struct end *a, struct end *b, const uint8_t mgid[16])
{
	union ibv_gid gid;
	struct ibv_grh *grh = (struct ibv_grh *)b->buf;
	struct ibv_ah_attr av;
	struct ibv_wc wc;

	memcpy(gid.raw, mgid, sizeof(gid.raw));
	assert_int_equal(ibv_attach_mcast(b->qp, &gid, LID), EINVAL);
	assert_int_equal(ibv_attach_mcast(b->qp, &gid, 0xc005), 0);
	av = global_av(0xc005, gid);
	av.grh.hop_limit = 0;
	post_recv(b, 2, 0, GRH + LEN);
	send_by(a, ibv_create_ah(pd, &av), 0xffffff);
	wc = wait_wc(b->cq);
	assert_int_equal(wc.status, 0);
	assert_int_equal(wc.wc_flags & IBV_WC_GRH, IBV_WC_GRH);
	assert_int_equal(wc.slid, LID);
	assert_memory_equal(&grh->dgid, mgid, 16);
	assert_memory_equal(&grh->sgid, &gid0, 16);
	assert_int_equal(ibv_detach_mcast(b->qp, &gid, 0xc005), 0);
	assert_int_equal(ibv_detach_mcast(b->qp, &gid, 0xc005), EINVAL);
}

static void groups(void **state)
{
	static const uint8_t ipoib[16] = { 0xff, 0x12, 0x40,    0x1b,
					   0xff, 0xff, [15] = 9 };
	static const uint8_t other[16] = { 0xff, 0x15, 1, 2, 3, [15] = 7 };
	struct end a, b;

	(void)state;
	ud_init(&a);
	ud_init(&b);
	group_of(&a, &b, ipoib);
	group_of(&a, &b, other);
	assert_int_equal(ibv_attach_mcast(b.qp, &gid0, 0xc000), EINVAL);
	end_fini(&a);
	end_fini(&b);
}

/* Events */

static void other_address(void **state)
{
	bool lid = false, gid = false;
	struct ibv_async_event ev;

	(void)state;
	assert_true(ip("addr del 127.0.0.3/8 dev lo"));
	assert_true(ip("addr add 127.0.0.7/8 dev lo"));
	/* Nobody else looks before the engine runs. */
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	assert_int_equal(port.lid, 7);
	while (!lid || !gid) {
		assert_true(readable(ctx->async_fd, 10000));
		assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
		lid |= ev.event_type == IBV_EVENT_LID_CHANGE;
		gid |= ev.event_type == IBV_EVENT_GID_CHANGE;
		ibv_ack_async_event(&ev);
	}
	assert_true(ip("link set lo down"));
	do {
		assert_true(readable(ctx->async_fd, 10000));
		assert_int_equal(ibv_get_async_event(ctx, &ev), 0);
		ibv_ack_async_event(&ev);
	} while (ev.event_type != IBV_EVENT_PORT_ERR);
	assert_int_equal(ibv_query_port(ctx, 1, &port), 0);
	assert_int_equal(port.state, IBV_PORT_DOWN);
	assert_int_equal(port.lid, 0);
}

static int setup_port(void **state)
{
	setup(state);
	return ibv_query_port(ctx, 1, &port);
}

#define IB_TEST(fn) cmocka_unit_test_setup_teardown(fn, setup_port, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		IB_TEST(port_has_a_lid),       IB_TEST(connected_by_lids),
		IB_TEST(lids_that_nobody_has), IB_TEST(wrong_vectors),
		IB_TEST(vectors_are_kept),     IB_TEST(datagrams),
		IB_TEST(datagrams_for_nobody), IB_TEST(groups),
		IB_TEST(other_address), /* the last one: the port is down */
	};

	if (!own_netns() || !ip("addr del 127.0.0.1/8 dev lo") ||
	    !ip("addr add 127.0.0.3/8 dev lo"))
		return 77;
	setenv("SOFTHCA_INFINIBAND", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
