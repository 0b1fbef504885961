/*
 * test_records.c - what a poll makes of the records in a ring: two processes as far
 * as the registry and the segments know, of which one has the link, and the
 * other puts records in by hand
 */
#include "registry_dir.h"

#include "link/shm_internal.h"

#include <errno.h>
#include <infiniband/verbs.h>

#define BUDGET 32

static struct {
	struct registry *r;
	struct segment *s;
} end[2];

static struct link *shm; /* of end[0] */
static struct segment_peer *peer; /* end[0], as end[1] sees it */
static struct ring_out out; /* of end[1], to end[0] */

static struct roce_rx got[BUDGET];
static uint8_t payload[BUDGET][RING_SMALL];
static unsigned ngot;
static bool acks; /* each packet that wants it is acknowledged */

static int begin(void **state)
{
	static const struct shm_config cfg;

	if (setup(state))
		return -1;
	for (int i = 0; i < 2; i++) {
		end[i].r = join();
		if (!end[i].r || segment_create(&end[i].s, end[i].r, 0))
			return -1;
	}
	peer = segment_peer_get(end[1].s, registry_slot(end[0].r));
	ngot = 0;
	acks = false;
	return !peer || shm_create(&shm, &cfg, end[0].s) ||
	       ring_out_attach(
		       &out, peer->ring,
		       shm_generation(segment_head(end[1].s)->generation));
}

static int finish(void **state)
{
	shm->ops->destroy(shm);
	segment_peer_put(peer);
	for (int i = 0; i < 2; i++) {
		segment_destroy(end[i].s);
		registry_leave(end[i].r);
	}
	return teardown_empty(state);
}

/* An acknowledgement would be to QP 0x321. */
static void put(struct ring_rec rec, const void *data, uint32_t bytes)
{
	struct ring_rec *to = ring_begin(&out, bytes);

	assert_non_null(to);
	rec.word = to->word;
	memcpy(to, &rec, RING_HDR);
	if (bytes)
		memcpy(ring_data(to), data, bytes);
	ring_put(&out, bytes, 0x321, rec.psn_flags >> 8, 5);
}

static struct ring_rec record(uint8_t opcode, uint32_t psn, uint32_t len)
{
	return (struct ring_rec){
		.qpn_opcode = 0x123u << 8 | opcode,
		.psn_flags = psn << 8 | RING_F_ACK_REQ,
		.path = 77,
		.len = len,
		.imm = 0x01020304,
		.va = 0x1122334455667788,
		.rkey = 0x99aabbcc,
		.dma_len = 4711,
	};
}

static void note(void *arg, const struct roce_rx *pkt)
{
	(void)arg;
	assert_true(ngot < BUDGET);
	if (pkt->ack_note && pkt->acked)
		*pkt->acked = true;
	if (pkt->payload)
		memcpy(payload[ngot], pkt->payload,
		       pkt->len < RING_SMALL ? pkt->len : RING_SMALL);
	if (pkt->acked && acks)
		*pkt->acked = true;
	got[ngot++] = *pkt;
}

static int poll_once(void)
{
	return shm->ops->poll(shm, BUDGET, note, NULL);
}

/* A ring that is new is not looked at each time. */
static void poll_until(unsigned n)
{
	for (int i = 0; i < 100 && ngot < n; i++)
		poll_once();
	assert_int_equal(ngot, n);
}

static void check_common(const struct roce_rx *pkt, uint8_t opcode,
			 uint32_t psn, uint32_t len)
{
	assert_int_equal(pkt->h.opcode, opcode);
	assert_int_equal(pkt->h.psn, psn);
	assert_int_equal(pkt->h.dest_qpn, 0x123);
	assert_int_equal(pkt->h.pad, -len & 3);
	assert_int_equal(pkt->h.pkey, ROCE_PKEY_DEFAULT);
	assert_int_equal(pkt->len, len);
	assert_int_equal(pkt->path_hash, 77);
	assert_true(pkt->h.ack_req && pkt->host);
	assert_false(pkt->h.solicited || pkt->large || pkt->ack_note ||
		     pkt->early || pkt->handed || pkt->ecn_ce || pkt->h.tver);
}

/* What only some packets have is nothing in the next one. */
static void check_plain(const struct roce_rx *pkt, uint32_t psn)
{
	static const union ibv_gid none;

	check_common(pkt, ROCE_SEND_ONLY, psn, 3);
	assert_null(pkt->source);
	assert_null(pkt->grh);
	assert_int_equal(pkt->tclass, 0);
	assert_memory_equal(&pkt->sgid, &none, sizeof(none));
	assert_memory_equal(&pkt->dgid, &none, sizeof(none));
	assert_int_equal(pkt->h.va, 0);
	assert_int_equal(pkt->h.rkey, 0);
	assert_int_equal(pkt->h.dma_len, 0);
	assert_int_equal(pkt->h.imm, 0);
	assert_int_equal(pkt->h.inv_rkey, 0);
	assert_int_equal(pkt->h.compare, 0);
	assert_int_equal(pkt->h.swap_add, 0);
	assert_int_equal(pkt->h.qkey, 0);
	assert_int_equal(pkt->h.src_qpn, 0);
	assert_int_equal(pkt->h.syndrome, 0);
	assert_int_equal(pkt->h.msn, 0);
}

static void packets_have_nothing_of_others(void **state)
{
	const struct shm_ext_addr addr = { .qkey = 5,
					   .src_qpn = 6,
					   .tclass = 7,
					   .sgid.raw = { 1 },
					   .dgid.raw = { 2 } };
	const struct shm_ext_atomic a = { 8, 9 };
	struct {
		struct shm_ref ref;
		struct shm_piece piece;
	} named = { { .n = 1 }, { .len = 3 } };
	const struct {
		uint8_t opcode;
		uint32_t flags, len;
		const void *data;
		uint32_t bytes;
	} odd[] = {
		{ ROCE_WRITE_ONLY_IMM, 0, 3, "abc", 3 },
		{ ROCE_SEND_ONLY_INV, 0, 3, "abc", 3 },
		{ ROCE_FETCH_ADD, 0, 0, &a, sizeof(a) },
		{ ROCE_ACK, 0, 0, NULL, 0 },
		{ ROCE_ATOMIC_ACK, 0, 0, NULL, 0 },
		{ ROCE_UD | ROCE_SEND_ONLY, RING_F_EXT, 0, &addr,
		  sizeof(addr) },
		{ ROCE_SEND_ONLY, RING_F_REF, 3, &named, sizeof(named) },
		/* What is no packet leaves nothing, either. */
		{ ROCE_FETCH_ADD, 0, 0, NULL, 0 },
		{ ROCE_WRITE_ONLY, 0, 4, "abc", 3 },
		{ ROCE_UD | ROCE_SEND_ONLY, 0, 0, NULL, 0 },
		{ ROCE_SEND_ONLY, RING_F_REF, 4, &named, sizeof(named) },
		{ ROCE_XRC | ROCE_READ_RESP_MIDDLE, 0, 3, "abc", 3 },
		{ 0x1f, 0, 0, NULL, 0 },
	};
	enum { ODD = sizeof(odd) / sizeof(odd[0]), GOOD = 7 };
	unsigned n = 0;

	(void)state;
	for (uint32_t i = 0; i < ODD; i++) {
		struct ring_rec rec = record(odd[i].opcode, 2 * i, odd[i].len);

		rec.psn_flags |= odd[i].flags;
		put(rec, odd[i].data, odd[i].bytes);
		put(record(ROCE_SEND_ONLY, 2 * i + 1, 3), "xyz", 3);
	}
	poll_until(GOOD + ODD);
	for (uint32_t i = 0; i < ODD; i++) {
		if (i < GOOD)
			check_common(&got[n++], odd[i].opcode, 2 * i,
				     odd[i].len);
		assert_memory_equal(payload[n], "xyz", 3);
		check_plain(&got[n++], 2 * i + 1);
	}
	assert_int_equal(shm->stats.rx_pkts, GOOD + ODD);
	assert_int_equal(shm->stats.rx_malformed, ODD - GOOD);
	assert_int_equal(got[0].h.va, 0x1122334455667788);
	assert_int_equal(got[0].h.rkey, 0x99aabbcc);
	assert_int_equal(got[0].h.imm, 0x01020304);
	assert_int_equal(got[2].h.inv_rkey, 0x01020304);
	assert_int_equal(got[4].h.swap_add, 8);
	assert_int_equal(got[4].h.compare, 9);
	assert_int_equal(got[6].h.syndrome, 1);
	assert_int_equal(got[6].h.msn, 0x020304);
	assert_int_equal(got[8].h.atomic_orig, 0x1122334455667788);
	assert_int_equal(got[10].h.src_qpn, 6);
	assert_non_null(got[10].grh);
	assert_non_null(got[12].source);
}

/* Pulling takes long: one such packet ends a poll, which says that there may be
 * more. */
static void bytes_end_a_poll(void **state)
{
	struct {
		struct shm_ref ref;
		struct shm_piece piece;
	} named = { { .n = 1 }, { .len = SHM_MAX_PAYLOAD } };
	struct ring_rec rec = record(ROCE_SEND_ONLY, 0, SHM_MAX_PAYLOAD);

	(void)state;
	rec.psn_flags |= RING_F_REF | RING_F_LARGE;
	put(record(ROCE_SEND_ONLY, 0, 0), NULL, 0);
	poll_until(1);
	for (int i = 0; i < 3; i++)
		put(rec, &named, sizeof(named));
	put(record(ROCE_SEND_ONLY, 0, 0), NULL, 0);
	for (unsigned i = 2; i <= 4; i++) {
		assert_true(poll_once() >= BUDGET);
		assert_int_equal(ngot, i);
	}
	assert_int_equal(poll_once(), 1);
	assert_int_equal(poll_once(), 0);
}

/* The ACK note says that a packet is acknowledged, if it is. */
static void packets_are_acknowledged(void **state)
{
	struct ring_ack ack;

	(void)state;
	for (uint32_t psn = 0; psn < 3; psn++) {
		put(record(ROCE_SEND_ONLY, psn, 0), NULL, 0);
		acks = psn != 1;
		poll_until(psn + 1);
		assert_int_equal(ring_reap(&out, &ack), psn != 1);
		if (psn != 1)
			assert_int_equal(ack.psn, psn);
		assert_int_equal(ring_unread(&out), 0);
	}
}

/* What another process has acknowledged is no packet, of any length. */
static void acknowledgements_have_nothing_of_packets(void **state)
{
	struct shm_peer *p = shm_peer_get(to_shm(shm), registry_slot(end[1].r));
	struct ring_rec rec = { .word = 0 };
	struct ring_in in;

	(void)state;
	assert_non_null(p);
	ring_in_init(&in, segment_ring(end[1].s, registry_slot(end[0].r)));
	assert_non_null(ring_begin(&p->out, 0));
	ring_put(&p->out, 0, 0x55, 9, 5);
	put(record(ROCE_SEND_ONLY, 0, 3), "xyz", 3);
	poll_until(1);
	assert_true(ring_get(&in, &rec));
	ring_release(&in, RING_ACKED);
	poll_until(2);
	assert_true(got[1].ack_note && got[1].host);
	assert_int_equal(got[1].h.dest_qpn, 0x55);
	assert_int_equal(got[1].h.psn, 9);
	assert_int_equal(got[1].path_hash, 5);
	assert_int_equal(got[1].len, 0);
	assert_null(got[1].payload);
	assert_null(got[1].source);
	assert_true(got[1].early);
	segment_peer_put(p->seg);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(packets_have_nothing_of_others,
						begin, finish),
		cmocka_unit_test_setup_teardown(bytes_end_a_poll, begin,
						finish),
		cmocka_unit_test_setup_teardown(packets_are_acknowledged, begin,
						finish),
		cmocka_unit_test_setup_teardown(
			acknowledgements_have_nothing_of_packets, begin,
			finish),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
