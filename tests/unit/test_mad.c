/*
 * test_mad.c - CM messages: every one in the kernel's captures decodes, says
 * what the log of that run says, and encodes to the same bytes
 */
#include "capture.h"

#include "base/bytes.h"
#include "wire/mad.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifndef CAPTURES_DIR
#define CAPTURES_DIR "tests/data/pcap"
#endif

static char **more; /* files or folders with more captures */

/* The MADs of one capture, in order. */
struct capture {
	struct captures all;
	size_t at;
	const struct captured *pkt; /* of the last MAD */
};

static void capture_open(struct capture *c, const char *name)
{
	char path[512];

	*c = (struct capture){ 0 };
	snprintf(path, sizeof(path), "%s/%s.pcap", CAPTURES_DIR, name);
	if (captures_load(&c->all, path))
		fail_msg("%s: cannot read", path);
}

/* The next MAD in it, or NULL at the end: UD SEND only, to QP 1. */
static const uint8_t *capture_mad(struct capture *c)
{
	while (c->at < c->all.n) {
		const uint8_t *p = c->all.pkt[c->at].data;

		c->pkt = &c->all.pkt[c->at++];
		if (p[0] != 0x64 || get_be24(p + 5) != 1)
			continue;
		assert_int_equal(c->pkt->len, 12 + 8 + MAD_LEN + 4);
		assert_int_equal(get_be32(p + 12), MAD_QP1_QKEY);
		return p + 20;
	}
	captures_free(&c->all);
	return NULL;
}

/* Every MAD of every capture in the folders, and of each kind at least one. */
static void round_trip(void **state)
{
	static const uint16_t kinds[] = {
		MAD_CM_REQ,  MAD_CM_REP,  MAD_CM_REJ,      MAD_CM_RTU,
		MAD_CM_DREQ, MAD_CM_DREP, MAD_CM_SIDR_REQ, MAD_CM_SIDR_REP,
	};
	size_t seen[MAD_CM_APR + 1] = { 0 }, n = 0;
	struct capture c = { 0 };
	const uint8_t *p;

	(void)state;
	assert_int_equal(captures_load(&c.all, CAPTURES_DIR), 0);
	for (char **dir = more; *dir; dir++)
		assert_int_equal(captures_load(&c.all, *dir), 0);
	while ((p = capture_mad(&c))) {
		uint8_t again[MAD_LEN];
		struct mad m;

		if (mad_decode(&m, p, MAD_LEN))
			fail_msg("%s, packet %u does not decode", c.pkt->file,
				 c.pkt->number);
		assert_int_equal(m.class_version, MAD_CM_CLASS_VERSION);
		assert_int_equal(m.method, MAD_METHOD_SEND);
		assert_int_equal(m.status, 0);
		memset(again, 0xa5, sizeof(again));
		mad_encode(&m, again);
		if (memcmp(p, again, MAD_LEN))
			fail_msg("%s, packet %u encodes to other bytes",
				 c.pkt->file, c.pkt->number);
		seen[m.attr_id]++;
		n++;
	}
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (!seen[kinds[i]])
			fail_msg("no %s in the captures",
				 mad_attr_name(kinds[i]));
	assert_true(n >= 41); /* what the folder began with */
}

static void next(struct capture *c, struct mad *m, uint16_t attr)
{
	const uint8_t *p = capture_mad(c);

	assert_non_null(p);
	assert_int_equal(mad_decode(m, p, MAD_LEN), 0);
	assert_string_equal(mad_attr_name(m->attr_id), mad_attr_name(attr));
}

static void drain(struct capture *c)
{
	while (capture_mad(c))
		;
}

static void addresses(const struct capture *c, const struct cm_req *req,
		      uint16_t service_port)
{
	bool v4 = roce_gid_is_v4(&c->pkt->src);
	uint8_t src[16], dst[16];
	struct ipcm_hdr ip;

	memcpy(src, c->pkt->src.raw, 16);
	memcpy(dst, c->pkt->dst.raw, 16);
	assert_memory_equal(req->local_gid, src, 16);
	assert_memory_equal(req->remote_gid, dst, 16);
	if (v4) { /* IPv4-mapped in a GID, all zero before it in the header */
		memset(src, 0, 12);
		memset(dst, 0, 12);
	}
	assert_int_equal(req->service_id,
			 IPCM_SERVICE_ID(0x0106, service_port));
	assert_int_equal(ipcm_decode(&ip, req->private_data), 0);
	assert_int_equal(ip.ipv, v4 ? 4 : 6);
	assert_memory_equal(ip.src, src, 16);
	assert_memory_equal(ip.dst, dst, 16);
	assert_true(ip.port >= 1024);
}

/* rping: client connects with rr 1, id 1, retry 7, rnr 7; ends with DREQ. */
static void rping(void **state)
{
	static const char *const names[] = { "cm_rping", "cm_rping_v6" };

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		struct mad req, rep, rtu, dreq, drep;
		struct capture c;

		capture_open(&c, names[i]);
		next(&c, &req, MAD_CM_REQ);
		addresses(&c, &req.req, 7174);
		assert_int_equal(req.req.transport, CM_TRANSPORT_RC);
		assert_int_equal(req.req.responder_resources, 1);
		assert_int_equal(req.req.initiator_depth, 1);
		assert_int_equal(req.req.retry_count, 7);
		assert_int_equal(req.req.rnr_retry_count, 7);
		assert_int_equal(req.req.remote_cm_timeout, 20);
		assert_int_equal(req.req.local_cm_timeout, 20);
		assert_int_equal(req.req.max_cm_retries, 15);
		assert_int_equal(req.req.pkey, 0xffff);
		assert_int_equal(req.req.mtu, 3); /* 1024 */
		assert_int_equal(req.req.hop_limit, 64);
		assert_int_equal(req.req.ack_timeout, 19);
		assert_int_equal(req.req.packet_rate, 0);
		assert_int_not_equal(req.req.flow_label, 0);
		assert_int_equal(req.req.vendor_id, 0);
		assert_int_equal(req.attr_mod, 0);
		assert_int_equal(req.req.srq, 0);
		/* rxe's GUID is its MAC in EUI-64, ff:fe in the middle */
		assert_int_equal(req.req.local_ca_guid >> 24 & 0xffff, 0xfffe);

		next(&c, &rep, MAD_CM_REP);
		assert_int_equal(rep.tid, req.tid);
		assert_int_equal(rep.rep.remote_comm_id, req.req.local_comm_id);
		assert_int_equal(rep.rep.responder_resources, 1);
		assert_int_equal(rep.rep.initiator_depth, 1);
		assert_int_equal(rep.rep.rnr_retry_count, 7);
		assert_int_equal(rep.rep.target_ack_delay, 15);

		next(&c, &rtu, MAD_CM_RTU);
		assert_int_equal(rtu.tid, req.tid);
		assert_int_equal(rtu.rtu.local_comm_id, req.req.local_comm_id);
		assert_int_equal(rtu.rtu.remote_comm_id, rep.rep.local_comm_id);

		next(&c, &dreq, MAD_CM_DREQ);
		assert_int_equal(dreq.dreq.local_comm_id,
				 req.req.local_comm_id);
		assert_int_equal(dreq.dreq.remote_comm_id,
				 rep.rep.local_comm_id);
		assert_int_equal(dreq.dreq.remote_qpn, rep.rep.local_qpn);

		next(&c, &drep, MAD_CM_DREP);
		assert_int_equal(drep.tid, dreq.tid);
		assert_int_equal(drep.drep.local_comm_id,
				 rep.rep.local_comm_id);
		drain(&c);
	}
}

static void reject(void **state)
{
	struct mad req, rej;
	struct capture c;

	(void)state;
	capture_open(&c, "cm_reject");
	next(&c, &req, MAD_CM_REQ);
	addresses(&c, &req.req, 9999);
	next(&c, &rej, MAD_CM_REJ);
	assert_int_equal(rej.tid, req.tid);
	assert_int_equal(rej.rej.local_comm_id, 0);
	assert_int_equal(rej.rej.remote_comm_id, req.req.local_comm_id);
	assert_int_equal(rej.rej.msg_rejected, CM_MSG_REQ);
	assert_int_equal(rej.rej.reason, CM_REJ_INVALID_SERVICE_ID);
	drain(&c);
}

static void sidr(void **state)
{
	struct mad req, rep;
	struct ipcm_hdr ip;
	struct capture c;

	(void)state;
	capture_open(&c, "cm_sidr");
	next(&c, &req, MAD_CM_SIDR_REQ);
	assert_int_equal(req.sidr_req.service_id,
			 IPCM_SERVICE_ID(0x0111, 7174));
	assert_int_equal(req.sidr_req.pkey, 0xffff);
	assert_int_equal(ipcm_decode(&ip, req.sidr_req.private_data), 0);
	assert_int_equal(ip.ipv, 4);
	assert_memory_equal(ip.src + 12, c.pkt->src.raw + 12, 4);
	next(&c, &rep, MAD_CM_SIDR_REP);
	assert_int_equal(rep.tid, req.tid);
	assert_int_equal(rep.sidr_rep.request_id, req.sidr_req.request_id);
	assert_int_equal(rep.sidr_rep.status, CM_SIDR_OK);
	assert_int_equal(rep.sidr_rep.service_id, req.sidr_req.service_id);
	assert_int_equal(rep.sidr_rep.qkey, 0x01234567);
	assert_true(rep.sidr_rep.qpn > 1);
	drain(&c);

	/* the log has: RDMA_CM_EVENT_UNREACHABLE, error: 1 */
	capture_open(&c, "cm_sidr_reject");
	next(&c, &req, MAD_CM_SIDR_REQ);
	next(&c, &rep, MAD_CM_SIDR_REP);
	assert_int_equal(rep.sidr_rep.request_id, req.sidr_req.request_id);
	assert_int_equal(rep.sidr_rep.status, CM_SIDR_UNSUPPORTED);
	drain(&c);
}

/* Fields of a message neither overlap nor leave it, each on its own survives
 * a round trip, and together they fill what is not reserved. */
static void tables(void **state)
{
	(void)state;
	for (uint16_t id = MAD_CM_REQ; id <= MAD_CM_APR; id++) {
		uint8_t used[MAD_LEN * 8] = { 0 };
		size_t count;
		const struct mad_field *f = mad_fields(id, &count);

		assert_non_null(f);
		for (size_t i = 0; i < count; i++) {
			size_t from = 8u * (MAD_HDR_LEN + f[i].byte) + f[i].bit;
			struct mad m = { .attr_id = id }, back;
			uint8_t p[MAD_LEN];

			assert_true(from + f[i].width <= MAD_LEN * 8);
			for (size_t b = from; b < from + f[i].width; b++)
				assert_int_equal(used[b]++, 0);

			memset((uint8_t *)&m + f[i].offset, 0xff, f[i].size);
			mad_encode(&m, p);
			for (size_t b = 8 * MAD_HDR_LEN; b < MAD_LEN * 8; b++)
				assert_int_equal(p[b / 8] >> (7 - b % 8) & 1,
						 b >= from &&
							 b < from + f[i].width);
			assert_int_equal(mad_decode(&back, p, MAD_LEN), 0);
			if (f[i].width <= 64)
				assert_int_equal(
					mad_field_get(&back, &f[i]),
					f[i].width == 64 ?
						UINT64_MAX :
						(UINT64_C(1) << f[i].width) -
							1);
		}
		/* the last field, private data, ends the MAD */
		assert_string_equal(f[count - 1].name, "private_data");
		assert_int_equal(used[MAD_LEN * 8 - 1], 1);
	}
}

static void refuses(void **state)
{
	struct mad m = { .attr_id = MAD_CM_RTU };
	uint8_t p[MAD_LEN], ip[IPCM_HDR_LEN] = { 0, 0x40 };
	struct ipcm_hdr h;

	(void)state;
	mad_encode(&m, p);
	assert_int_equal(mad_decode(&m, p, MAD_LEN), 0);
	assert_int_equal(mad_decode(&m, p, MAD_LEN - 1), -EINVAL);
	p[0] = 2;
	assert_int_equal(mad_decode(&m, p, MAD_LEN), -EINVAL);
	p[0] = MAD_BASE_VERSION;
	p[1] = 3; /* subnet administration */
	assert_int_equal(mad_decode(&m, p, MAD_LEN), -EINVAL);
	p[1] = MAD_CLASS_CM;
	for (unsigned attr = 0; attr < 0x10000; attr++) {
		put_be16(p + 16, attr);
		assert_int_equal(mad_decode(&m, p, MAD_LEN),
				 attr >= 0x10 && attr <= 0x1a ? 0 : -EINVAL);
	}

	assert_int_equal(ipcm_decode(&h, ip), 0);
	ip[4] = 1; /* before an IPv4 address */
	assert_int_equal(ipcm_decode(&h, ip), -EINVAL);
	ip[1] = 0x60;
	assert_int_equal(ipcm_decode(&h, ip), 0);
	ip[0] = 0x10;
	assert_int_equal(ipcm_decode(&h, ip), -EINVAL);
	ip[0] = 0;
	ip[1] = 0x50;
	assert_int_equal(ipcm_decode(&h, ip), -EINVAL);
	assert_string_equal(cm_rej_str(8), "invalid service ID");
	assert_string_equal(cm_rej_str(34), "unknown reason");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip), cmocka_unit_test(rping),
		cmocka_unit_test(reject),     cmocka_unit_test(sidr),
		cmocka_unit_test(tables),     cmocka_unit_test(refuses),
	};

	more = argv + (argc > 0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
