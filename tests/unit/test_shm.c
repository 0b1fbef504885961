/*
 * test_shm.c - the link over shared memory: which packets go there, what comes
 * out, room, processes that come and go, and what others scribble there
 *
 * The ends are processes as far as registry, segments and links know. Each of
 * them polls when the test says so.
 */
#include "registry_dir.h"

#include "gid.h"
#include "testclock.h"

#include "link/exported_keys.h"
#include "link/shm_internal.h"

#include <errno.h>
#include <poll.h>

#define KEPT 2048 /* packets that are looked at later */

struct end {
	struct registry *r;
	struct segment *s;
	struct shm *shm;
	struct link *link;
	uint32_t qpn; /* the first of its chunk */
	union ibv_gid gid;
	/* received */
	unsigned n;
	struct roce_rx rx[KEPT];
	uint8_t data[SHM_MAX_COPY + 1]; /* of the last one */
	int pull; /* what reading it from its source said */
	bool ack; /* requests are accepted at once */
	bool reads; /* ACK notes that come early are not settled */
};

static struct end *a, *b; /* a sends, b receives */
static const struct link_ops no_ops;
static struct link elsewhere = { .ops = &no_ops };
static struct link_way way; /* from a to b */
static struct roce_path path;

static struct end *end_new(const char *addr, uint32_t flags)
{
	struct end *e = calloc(1, sizeof(*e));
	const struct shm_config cfg = { .copy = flags & SEGMENT_NO_COPY };
	int qpn;

	assert_non_null(e);
	e->r = join();
	assert_non_null(e->r);
	assert_int_equal(segment_create(&e->s, e->r, flags), 0);
	assert_int_equal(shm_create(&e->link, &cfg, e->s), 0);
	e->shm = to_shm(e->link);
	qpn = registry_lease(e->r);
	assert_true(qpn > 0);
	e->qpn = (uint32_t)qpn;
	e->gid = gid_of(addr);
	assert_int_equal(registry_lock(e->r), 0);
	assert_int_equal(registry_addr_join(e->r, &e->gid, 0, false), 0);
	registry_unlock(e->r);
	return e;
}

static void end_free(struct end *e)
{
	e->link->ops->destroy(e->link);
	segment_destroy(e->s);
	registry_leave(e->r);
	free(e);
}

static int begin_flags(uint32_t flags)
{
	if (setup(NULL))
		return -1;
	a = end_new("127.0.0.1", 0);
	b = end_new("127.0.0.2", flags);
	path = (struct roce_path){
		.sgid = a->gid, .dgid = b->gid, .tclass = 3, .local = true
	};
	way = (struct link_way){ .own = a->qpn };
	return 0;
}

static int begin(void **state)
{
	(void)state;
	return begin_flags(0);
}

static int finish(void **state)
{
	link_way_forget(&way);
	if (a)
		end_free(a);
	end_free(b);
	return teardown_empty(state);
}

static uint8_t byte(uint32_t psn, size_t i)
{
	return (uint8_t)(psn * 7 + i + (i >> 8));
}

static void rx(void *arg, const struct roce_rx *pkt)
{
	struct end *e = arg;
	const struct iovec to = { e->data, pkt->len };

	if (pkt->ack_note && pkt->acked)
		*pkt->acked = !e->reads;
	if (pkt->early && e->reads)
		return;
	assert_true(e->n < KEPT);
	e->rx[e->n] = *pkt;
	e->rx[e->n++].payload = NULL;
	if (pkt->ack_note)
		return;
	if (pkt->source)
		e->pull = pkt->source->read(pkt->source, 0, &to, 1);
	else if (pkt->len)
		memcpy(e->data, pkt->payload, pkt->len);
	if (pkt->acked)
		*pkt->acked = e->ack;
}

static int poll_some(struct end *e, unsigned budget)
{
	return e->link->ops->poll(e->link, budget, rx, e);
}

/* All there is, of producers in any slot. */
static void poll_all(struct end *e)
{
	for (unsigned idle = 0; idle < 2 * REGISTRY_SLOTS / 64; idle++)
		if (poll_some(e, 64))
			idle = 0;
}

static bool readable(struct end *e)
{
	struct pollfd p = { .fd = e->link->ops->fd(e->link), .events = POLLIN };

	return poll(&p, 1, 0) == 1;
}

static size_t route(struct end *e, struct link_way *w,
		    const struct roce_batch *bt, size_t from)
{
	struct link *const links[] = { &elsewhere, e->link };
	const size_t n = link_route(links, 2, w, bt, from);

	assert_ptr_equal(w->link, links[w->peer != NULL]);
	return n;
}

static bool room(struct end *e)
{
	return atomic_exchange(&e->link->room, false);
}

/* ---- packets ----------------------------------------------------------- */

static uint8_t payload[SHM_MAX_COPY + 1];

static struct roce_batch *batch(uint8_t opcode, uint32_t psn, uint32_t len)
{
	static struct roce_batch bt;

	memset(&bt, 0, offsetof(struct roce_batch, data));
	bt.n = 1;
	bt.pkt[0] = (struct roce_pkt){
		.h = { .opcode = opcode,
		       .dest_qpn = b->qpn + 5,
		       .psn = psn,
		       .ack_req = true },
		.path = &path,
		.payload = len,
		.niov = len > 0,
		.last_psn = psn,
	};
	for (size_t i = 0; i < len; i++)
		payload[i] = byte(psn, i);
	bt.data.n = len > 0;
	bt.data.iov[0] = (struct iovec){ payload, len };
	bt.data.key_of[0] = QP_PIECE_OWN;
	return &bt;
}

/* By shared memory; false: there was no room. */
static bool send_batch(struct roce_batch *bt)
{
	int err = 0;
	size_t n;

	assert_int_equal(route(a, &way, bt, 0), bt->n);
	assert_non_null(way.peer);
	n = shm_send(a->link, &way, bt, 0, bt->n, &err);
	assert_int_equal(err, 0);
	return n == bt->n;
}

static bool send_one(uint8_t opcode, uint32_t psn, uint32_t len)
{
	return send_batch(batch(opcode, psn, len));
}

static void packets_arrive_as_they_were(void **state)
{
	static const uint32_t sizes[] = { 0,    1,    23,   24,          25,
					  1024, 4096, 4097, SHM_MAX_COPY };
	const struct roce_rx *got;
	struct roce_batch *bt;

	(void)state;
	for (uint32_t i = 0; i < ARRAY_SIZE(sizes); i++) {
		assert_true(send_one(ROCE_SEND_ONLY, i, sizes[i]));
		poll_all(b);
		assert_int_equal(b->n, i + 1);
		got = &b->rx[i];
		assert_int_equal(got->h.opcode, ROCE_SEND_ONLY);
		assert_int_equal(got->h.dest_qpn, b->qpn + 5);
		assert_int_equal(got->h.psn, i);
		assert_int_equal(got->h.pad, -sizes[i] & 3);
		assert_int_equal(got->len, sizes[i]);
		assert_int_equal(got->path_hash,
				 roce_path_hash(&a->gid, &b->gid));
		assert_true(got->host && got->h.ack_req && got->acked);
		assert_false(got->large || got->h.solicited || got->ack_note);
		for (size_t k = 0; k < sizes[i]; k++)
			assert_int_equal(b->data[k], byte(i, k));
	}
	b->n = 0;
	bt = batch(ROCE_WRITE_ONLY_IMM, 1, 8);
	bt->pkt[0].h.va = 0x123456789abcdef0u;
	bt->pkt[0].h.rkey = 0x11223344;
	bt->pkt[0].h.dma_len = 8;
	bt->pkt[0].h.imm = htobe32(77);
	bt->pkt[0].h.solicited = true;
	bt->pkt[0].last_psn = 3;
	assert_true(send_batch(bt));
	bt = batch(ROCE_CMP_SWAP, 2, 0);
	bt->pkt[0].h.swap_add = 0x0102030405060708u;
	bt->pkt[0].h.compare = 0x1112131415161718u;
	assert_true(send_batch(bt));
	bt = batch(ROCE_ATOMIC_ACK, 3, 0);
	bt->pkt[0].h.syndrome = 0x1f;
	bt->pkt[0].h.msn = 0x123456;
	bt->pkt[0].h.atomic_orig = 99;
	assert_true(send_batch(bt));
	bt = batch(ROCE_SEND_ONLY_INV, 4, 0);
	bt->pkt[0].h.inv_rkey = 0xabcdef01;
	assert_true(send_batch(bt));
	bt = batch(ROCE_UD | ROCE_SEND_ONLY, 5, 30);
	bt->pkt[0].h.qkey = 0x11111111;
	bt->pkt[0].h.src_qpn = 0x765432;
	assert_true(send_batch(bt));
	poll_all(b);
	assert_int_equal(b->n, 5);
	got = b->rx;
	assert_true(got[0].large && got[0].h.solicited);
	assert_int_equal(got[0].h.va, 0x123456789abcdef0u);
	assert_int_equal(got[0].h.rkey, 0x11223344);
	assert_int_equal(got[0].h.dma_len, 8);
	assert_int_equal(got[0].h.imm, htobe32(77));
	assert_int_equal(got[1].h.swap_add, 0x0102030405060708u);
	assert_int_equal(got[1].h.compare, 0x1112131415161718u);
	assert_int_equal(got[2].h.syndrome, 0x1f);
	assert_int_equal(got[2].h.msn, 0x123456);
	assert_int_equal(got[2].h.atomic_orig, 99);
	assert_int_equal(got[3].h.inv_rkey, 0xabcdef01);
	assert_int_equal(got[4].h.qkey, 0x11111111);
	assert_int_equal(got[4].h.src_qpn, 0x765432);
	assert_memory_equal(&got[4].sgid, &a->gid, sizeof(a->gid));
	assert_memory_equal(&got[4].dgid, &b->gid, sizeof(b->gid));
	assert_int_equal(got[4].tclass, 3);
	assert_non_null(got[4].grh);
	assert_int_equal(got[4].len, 30);
	assert_null(got[4].acked);
}

/* Who polls is not kept for long: payload counts against the budget. */
static void long_packets_are_fewer(void **state)
{
	(void)state;
	assert_true(send_one(ROCE_SEND_ONLY, 0, 1));
	poll_all(b);
	for (uint32_t i = 1; i < 7; i++)
		assert_true(send_one(ROCE_SEND_ONLY, i, SHM_MAX_PIECE));
	b->n = 0;
	assert_true(poll_some(b, 8) >= 8);
	assert_in_range(b->n, 1, 4);
	poll_all(b);
	assert_int_equal(b->n, 6);
	b->n = 0;
	for (uint32_t i = 7; i < 27; i++)
		assert_true(send_one(ROCE_SEND_ONLY, i, 64));
	assert_int_equal(poll_some(b, 8), 8);
	assert_int_equal(b->n, 8);
	assert_int_equal(poll_some(b, 64), 12);
}

/* ---- which packets go there -------------------------------------------- */

static bool goes_there(struct roce_batch *bt)
{
	struct link_way w = { .own = a->qpn };
	size_t n = route(a, &w, bt, 0);
	bool is = w.peer;

	assert_true(n > 0 && n <= bt->n);
	link_way_forget(&w);
	return is;
}

static void some_packets_go_elsewhere(void **state)
{
	static const uint32_t qpns[] = { 0, 1, ROCE_MULTICAST_QPN };
	struct roce_batch *bt;

	(void)state;
	assert_true(goes_there(batch(ROCE_SEND_ONLY, 1, 1)));
	assert_true(goes_there(batch(ROCE_UC | ROCE_SEND_ONLY, 1, 1)));
	assert_true(goes_there(batch(ROCE_UD | ROCE_SEND_ONLY, 1, 1)));
	assert_true(goes_there(batch(ROCE_CNP, 1, 0)));
	assert_false(goes_there(batch(ROCE_XRC | ROCE_SEND_ONLY, 1, 1)));
	for (size_t i = 0; i < ARRAY_SIZE(qpns); i++) {
		bt = batch(ROCE_UD | ROCE_SEND_ONLY, 1, 1);
		bt->pkt[0].h.dest_qpn = qpns[i];
		assert_false(goes_there(bt));
	}
	bt = batch(ROCE_SEND_ONLY, 1, 1);
	bt->pkt[0].h.dest_qpn = b->qpn + REGISTRY_CHUNK; /* nobody's */
	assert_false(goes_there(bt));
	bt = batch(ROCE_SEND_ONLY, 1, 1);
	bt->pkt[0].to_slot = 1;
	assert_false(goes_there(bt));
	path.local = false;
	assert_false(goes_there(batch(ROCE_SEND_ONLY, 1, 1)));
	path.local = true;
	path.dgid = gid_of("127.0.0.3"); /* nobody receives there */
	assert_false(goes_there(batch(ROCE_SEND_ONLY, 1, 1)));
	path.dgid = gid_of("224.0.0.5");
	assert_false(goes_there(batch(ROCE_UD | ROCE_SEND_ONLY, 1, 1)));
}

/* A way is kept, and is right again when what it depends on has changed. */
static void way_is_found_again(void **state)
{
	struct roce_batch *bt = batch(ROCE_SEND_ONLY, 1, 1);
	struct roce_path other = path;
	struct link_peer *first;

	(void)state;
	path.dgid = gid_of("127.0.0.3");
	assert_int_equal(route(a, &way, bt, 0), 1);
	assert_null(way.peer);
	assert_int_equal(registry_lock(b->r), 0);
	assert_int_equal(registry_addr_join(b->r, &path.dgid, 0, false), 0);
	registry_unlock(b->r);
	assert_int_equal(route(a, &way, bt, 0), 1);
	assert_non_null(way.peer);
	first = way.peer;
	/* So many packets of a batch go one way. */
	bt->n = 4;
	bt->pkt[1] = bt->pkt[2] = bt->pkt[3] = bt->pkt[0];
	bt->pkt[2].path = bt->pkt[3].path = &other;
	bt->pkt[3].h.dest_qpn++;
	assert_int_equal(route(a, &way, bt, 0), 2);
	assert_int_equal(route(a, &way, bt, 2), 2);
	assert_ptr_equal(way.peer, first);
	assert_int_equal(way.hash, roce_path_hash(&other.sgid, &other.dgid));
	assert_int_equal(way.back, roce_path_hash(&other.dgid, &other.sgid));
}

/* ---- acknowledgements -------------------------------------------------- */

static void ack_note_acknowledges(void **state)
{
	(void)state;
	assert_true(send_one(ROCE_SEND_FIRST, 10, 100));
	assert_true(send_one(ROCE_SEND_LAST, 11, 100));
	poll_all(a);
	assert_int_equal(a->n, 0);
	poll_all(b); /* which does not accept them at once */
	poll_all(a);
	assert_int_equal(a->n, 0);
	b->ack = true;
	assert_true(send_one(ROCE_SEND_ONLY, 12, 100));
	assert_true(send_one(ROCE_SEND_ONLY, 13, 100));
	/* These have other answers. */
	assert_true(send_one(ROCE_READ_REQUEST, 14, 0));
	assert_true(send_one(ROCE_CMP_SWAP, 15, 0));
	assert_true(send_one(ROCE_UC | ROCE_SEND_ONLY, 16, 4));
	poll_all(b);
	poll_all(a);
	assert_int_equal(a->n, 1);
	assert_true(a->rx[0].ack_note);
	assert_int_equal(a->rx[0].h.dest_qpn, a->qpn);
	assert_int_equal(a->rx[0].h.psn, 13);
	assert_int_equal(a->rx[0].path_hash, roce_path_hash(&b->gid, &a->gid));
}

static void send_back(struct link_way *back, uint8_t opcode, uint32_t psn)
{
	static struct roce_path to;
	struct roce_batch *bt = batch(opcode, psn, 4);
	int err = 0;

	to = (struct roce_path){ .sgid = b->gid,
				 .dgid = a->gid,
				 .local = true };
	bt->pkt[0].path = &to;
	bt->pkt[0].h.dest_qpn = a->qpn;
	assert_int_equal(route(b, back, bt, 0), 1);
	assert_int_equal(shm_send(b->link, back, bt, 0, 1, &err), 1);
}

/* What the peer's program has answered is acknowledged before the answer. */
static void acknowledgement_comes_before_the_answer(void **state)
{
	struct link_way back = { .own = b->qpn };

	(void)state;
	b->ack = true;
	for (uint32_t i = 0; i < 3; i++) {
		assert_true(send_one(ROCE_SEND_ONLY, i, 4));
		poll_all(b);
		send_back(&back, ROCE_SEND_ONLY, i);
	}
	poll_all(a);
	assert_int_equal(a->n, 4);
	assert_true(a->rx[0].ack_note);
	assert_int_equal(a->rx[0].h.psn, 2);
	for (uint32_t i = 0; i < 3; i++) {
		assert_false(a->rx[1 + i].ack_note);
		assert_int_equal(a->rx[1 + i].h.psn, i);
	}
	link_way_forget(&back);
}

/* Responses that were sent before an acknowledgement are seen before it. */
static void acknowledgement_does_not_overtake(void **state)
{
	struct link_way back = { .own = b->qpn };

	(void)state;
	b->ack = a->reads = true;
	assert_true(send_one(ROCE_SEND_ONLY, 20, 4));
	for (uint32_t i = 0; i < 3; i++)
		send_back(&back, ROCE_READ_RESP_ONLY, i);
	poll_all(b);
	/* Two at a time. */
	while (a->n < 2)
		poll_some(a, 2);
	assert_int_equal(a->n, 2);
	poll_all(a);
	assert_int_equal(a->n, 4);
	assert_false(a->rx[2].ack_note);
	assert_true(a->rx[3].ack_note);
	link_way_forget(&back);
}

/* ---- room -------------------------------------------------------------- */

static void who_finds_no_room_is_told_when_there_is(void **state)
{
	uint32_t n = 0;

	(void)state;
	while (send_one(ROCE_SEND_ONLY, n, 1000))
		n++;
	assert_true(n > 40);
	assert_true(link_starved(&way));
	assert_false(room(a));
	poll_all(a);
	assert_true(link_starved(&way));
	/* There is room for acknowledgements that cannot be sent later. */
	assert_true(send_one(ROCE_ACK, n, 0));
	poll_some(b, 2); /* not much */
	poll_all(a);
	assert_false(room(a));
	poll_all(b);
	assert_int_equal(b->n, n + 1);
	poll_all(a);
	assert_false(link_starved(&way));
	assert_true(room(a));
	assert_false(room(a));
	assert_true(send_one(ROCE_SEND_ONLY, n, 1000));
	poll_all(b);
	assert_int_equal(b->n, n + 2);
}

/* A receiver that is stopped does not stop datagrams to others. */
static void datagrams_do_not_wait_for_ever(void **state)
{
	const uint8_t ud = ROCE_UD | ROCE_SEND_ONLY;
	uint32_t n = 0;

	(void)state;
	while (send_one(ud, n, 1000))
		n++;
	assert_false(send_one(ud, n, 1000));
	clock_forward(600000000);
	assert_true(send_one(ud, n, 1000));
	assert_false(send_one(ROCE_SEND_ONLY, n, 1000));
	poll_all(b);
	assert_int_equal(b->n, n);
}

/* ---- what makes no sense ----------------------------------------------- */

/* Any record. Whether it was taken for a packet; if not, it counts. */
static bool accepts(const struct ring_rec *rec, const void *data,
		    uint32_t bytes)
{
	const struct link_stats *st = &b->link->stats;
	const uint64_t good = st->rx_pkts, bad = st->rx_malformed;
	const unsigned n = b->n;
	struct ring_rec *to = ring_begin(&shm_peer_of(&way)->out, bytes);

	assert_non_null(to);
	memcpy((uint8_t *)to + 4, (const uint8_t *)rec + 4, RING_HDR - 4);
	memcpy(ring_data(to), data, bytes);
	ring_put(&shm_peer_of(&way)->out, bytes, 0, 0, 0);
	poll_all(b);
	poll_all(a);
	assert_int_equal(st->rx_pkts + st->rx_malformed, good + bad + 1);
	assert_int_equal(b->n - n, st->rx_pkts - good);
	return st->rx_pkts > good;
}

static struct ring_rec rec_of(uint8_t opcode, uint32_t flags, uint32_t len)
{
	return (struct ring_rec){ .qpn_opcode = b->qpn << 8 | opcode,
				  .psn_flags = 5 << 8 | flags,
				  .len = len };
}

static bool accepts_as(uint8_t opcode, uint32_t flags, uint32_t len,
		       uint32_t bytes)
{
	static const uint8_t zeros[RING_DATA_MAX];
	const struct ring_rec rec = rec_of(opcode, flags, len);

	return accepts(&rec, zeros, bytes);
}

static void malformed_records_are_dropped(void **state)
{
	const uint32_t addr = sizeof(struct shm_ext_addr);
	const uint8_t ud = ROCE_UD | ROCE_SEND_ONLY;
	static const uint32_t qpns[] = { 0, 1, ROCE_MULTICAST_QPN };
	struct ring_rec rec = { .word = 0 };

	(void)state;
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	/* Numbers of bytes. */
	assert_true(accepts_as(ROCE_SEND_ONLY, 0, 100, 100));
	assert_false(accepts_as(ROCE_SEND_ONLY, 0, 101, 100));
	assert_false(accepts_as(ROCE_SEND_ONLY, 0, 99, 100));
	assert_false(accepts_as(ROCE_SEND_ONLY, 0, UINT32_MAX, 0));
	assert_true(accepts_as(ROCE_SEND_ONLY, RING_F_EXT, 3, addr + 3));
	assert_false(accepts_as(ROCE_SEND_ONLY, RING_F_EXT, 0, addr - 1));
	assert_false(
		accepts_as(ROCE_SEND_ONLY, RING_F_EXT, addr + 3, addr + 3));
	assert_false(
		accepts_as(ROCE_SEND_ONLY, RING_F_EXT, UINT32_MAX, addr - 1));
	assert_true(accepts_as(ud, RING_F_EXT, 3, addr + 3));
	assert_false(accepts_as(ud, 0, 3, 3));
	assert_false(accepts_as(ud, RING_F_EXT, addr - 3, addr - 3));
	assert_true(accepts_as(ROCE_CMP_SWAP, 0, 0, 16));
	assert_false(accepts_as(ROCE_CMP_SWAP, 0, 0, 15));
	assert_false(accepts_as(ROCE_CMP_SWAP, 0, 0, 17));
	assert_true(accepts_as(ROCE_CMP_SWAP, RING_F_EXT, 0, 16 + addr));
	assert_false(accepts_as(ROCE_CMP_SWAP, RING_F_EXT, 0, 16 + addr - 1));
	/* Opcodes. */
	assert_true(accepts_as(ROCE_ACK, 0, 0, 0));
	assert_false(accepts_as(ROCE_ACK, 0, 4, 4)); /* has no payload */
	assert_false(accepts_as(0x1f, 0, 0, 0));
	assert_false(accepts_as(0xff, RING_F_EXT, 0, addr));
	/* XRC goes by UDP: nobody there expects payload that is elsewhere. */
	assert_false(
		accepts_as(ROCE_XRC | ROCE_SEND_ONLY, RING_F_EXT, 0, addr));
	/* QPNs. */
	for (size_t i = 0; i < ARRAY_SIZE(qpns); i++) {
		rec = rec_of(ud, RING_F_EXT, 0);
		rec.qpn_opcode = qpns[i] << 8 | ud;
		assert_false(accepts(&rec, payload, addr));
	}
}

/* ---- payload that is named --------------------------------------------- */

static struct keys keys;
static struct qp_public *pub;
static int slot;

/* a has memory with a key, and a QP, that others see. */
static void show_memory(void)
{
	const struct key_entry e = { .kind = KEY_MR,
				     .addr = (uintptr_t)payload,
				     .length = sizeof(payload) };
	const uint64_t secret[2] = { 1, 2 };

	keys_init(&keys, calloc(1024, sizeof(struct key_entry)), 1024, secret);
	exported_keys_begin(a->s, &keys);
	exported_keys_grow(a->s, &keys);
	slot = keys_add(&keys, &e);
	assert_true(slot >= 0);
	pub = exported_qp_place(a->s, a->qpn, 0);
	assert_non_null(pub);
	qp_public_set(&pub->qpn, a->qpn);
	qp_public_set(&pub->generation, 9);
	way.generation = 9;
	way.keys = &keys;
}

struct named {
	struct shm_ref ref;
	struct shm_piece piece[SHM_PIECES + 1];
};

static struct named names_of(uint32_t n, uint32_t len)
{
	struct named d = { .ref = { .qpn = a->qpn, .generation = 9, .n = n } };

	for (uint32_t i = 0; i < n; i++)
		d.piece[i] = (struct shm_piece){
			.addr = (uintptr_t)payload,
			.len = len,
			.slot = (uint32_t)slot,
			.key = keys.entry[slot].lkey,
		};
	return d;
}

static bool accepts_names(const struct named *d, uint32_t len, uint32_t bytes)
{
	const struct ring_rec rec = rec_of(ROCE_SEND_ONLY, RING_F_REF, len);

	b->pull = 1;
	return accepts(&rec, d, bytes);
}

static void malformed_names_are_dropped(void **state)
{
	struct named d;

	(void)state;
	show_memory();
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	d = names_of(2, 100);
	assert_true(accepts_names(&d, 200, shm_ref_size(2)));
	assert_int_equal(b->pull, 0);
	assert_memory_equal(b->data, payload, 100);
	assert_memory_equal(b->data + 100, payload, 100);
	/* Not so many bytes, or names. */
	assert_false(accepts_names(&d, 199, shm_ref_size(2)));
	assert_false(accepts_names(&d, 200, shm_ref_size(2) - 1));
	assert_false(accepts_names(&d, 200, shm_ref_size(1)));
	assert_false(accepts_names(&d, 200, sizeof(d.ref) - 1));
	d = names_of(1, 0);
	assert_false(accepts_names(&d, 0, shm_ref_size(1)));
	d = names_of(1, 100);
	d.ref.n = 0;
	assert_false(accepts_names(&d, 0, sizeof(d.ref)));
	d.ref.n = (1u << 29) + 1; /* whose size is that of one in 32 bits */
	assert_int_equal(shm_ref_size(d.ref.n), shm_ref_size(1));
	assert_false(accepts_names(&d, 100, shm_ref_size(1)));
	d = names_of(SHM_PIECES, 100);
	assert_true(
		accepts_names(&d, 100 * SHM_PIECES, shm_ref_size(SHM_PIECES)));
	d = names_of(SHM_PIECES + 1, 100);
	assert_false(accepts_names(&d, 100 * (SHM_PIECES + 1),
				   shm_ref_size(SHM_PIECES + 1)));
	/* The sum is 100 in 32 bits, or too much. */
	d = names_of(2, 1u << 31);
	d.piece[0].len += 100;
	assert_false(accepts_names(&d, 100, shm_ref_size(2)));
	d = names_of(1, SHM_MAX_PAYLOAD + 1);
	assert_false(accepts_names(&d, SHM_MAX_PAYLOAD + 1, shm_ref_size(1)));
	free(keys.entry);
}

/* What they lead to is read only as long as the sender shows it. */
static void names_are_of_what_is_shown(void **state)
{
	struct named d;

	(void)state;
	show_memory();
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	d = names_of(1, 100);
	d.piece[0].key++;
	assert_true(accepts_names(&d, 100, shm_ref_size(1)));
	assert_int_equal(b->pull, -EACCES);
	d = names_of(1, 100);
	d.piece[0].slot = UINT32_MAX;
	assert_true(accepts_names(&d, 100, shm_ref_size(1)));
	assert_int_equal(b->pull, -EACCES);
	/* A QP of that generation, of another number. */
	qp_public_set(&exported_qp_place(a->s, a->qpn + 1, 0)->generation, 9);
	d = names_of(1, 100);
	d.ref.qpn++;
	assert_true(accepts_names(&d, 100, shm_ref_size(1)));
	assert_int_equal(b->pull, -ESTALE);
	d = names_of(1, 100);
	d.ref.generation++;
	assert_true(accepts_names(&d, 100, shm_ref_size(1)));
	assert_int_equal(b->pull, -ESTALE);
	/* No memory is there; the sender's own is, so it is sent again. */
	d = names_of(1, 100);
	d.piece[0].addr = 4096;
	assert_true(accepts_names(&d, 100, shm_ref_size(1)));
	assert_int_equal(b->pull, -EAGAIN);
	keys_kill(&keys, (uint32_t)slot);
	d = names_of(1, 100);
	assert_true(accepts_names(&d, 100, shm_ref_size(1)));
	assert_int_equal(b->pull, -EACCES);
	free(keys.entry);
}

/* What is long, where the receiver reads it; the rest takes its payload along.
 */
static void long_payload_is_named(void **state)
{
	(void)state;
	show_memory();
	assert_true(send_one(ROCE_SEND_ONLY, 0, 4));
	poll_all(b);
	for (uint32_t more = 0; more < 2; more++) {
		struct roce_batch *bt =
			batch(ROCE_SEND_ONLY, 1 + more, SHM_MAX_COPY + more);

		bt->data.key_of[0] = 0;
		bt->data.key[0] = &keys.entry[slot];
		assert_true(send_batch(bt));
		poll_all(b);
		assert_int_equal(b->n, 2 + more);
		assert_int_equal(b->rx[1 + more].source != NULL, more);
	}
	keys_kill(&keys, (uint32_t)slot);
	free(keys.entry);
}

/* ---- rings that are broken --------------------------------------------- */

static struct ring_mem *ring(void)
{
	return shm_peer_of(&way)->out.mem;
}

/* Polls until what is looked for now and then has been looked for. */
static void poll_long(struct end *e)
{
	for (unsigned i = 0; i < 3000; i++)
		poll_some(e, 64);
}

static void broken_ring_is_left(void **state)
{
	(void)state;
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	ring()->unit[1].word = 0xfffe;
	assert_true(send_one(ROCE_SEND_ONLY, 2, 4));
	ring()->unit[1].word = 0xfffe;
	poll_all(b);
	assert_int_equal(b->n, 1);
	assert_int_equal(b->link->stats.broken, 1);
	poll_all(a);
	assert_false(goes_there(batch(ROCE_SEND_ONLY, 3, 4)));
	/* As long as the two live. */
	poll_long(a);
	poll_long(b);
	assert_false(goes_there(batch(ROCE_SEND_ONLY, 3, 4)));
}

/* Another process, in the slot that one had. */
static void a_comes_again(void)
{
	const unsigned was = registry_slot(a->r);

	link_way_forget(&way);
	end_free(a);
	a = end_new("127.0.0.1", 0);
	assert_int_equal(registry_slot(a->r), was);
	way = (struct link_way){ .own = a->qpn };
	b->n = 0;
}

static void next_process_begins_with_a_ring_that_is_whole(void **state)
{
	broken_ring_is_left(state);
	a_comes_again();
	poll_long(b);
	for (uint32_t i = 0; i < 3000; i++) {
		assert_true(send_one(ROCE_SEND_ONLY, i, 100));
		poll_all(b);
		poll_all(a);
		assert_int_equal(b->n, 1);
		assert_int_equal(b->rx[0].h.psn, i);
		b->n = 0;
	}
}

/* What the dead one has published comes out, and is not the next one's. */
static void next_process_goes_on_where_one_has_died(void **state)
{
	(void)state;
	b->ack = true;
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	assert_true(send_one(ROCE_SEND_ONLY, 2, 400));
	assert_true(send_one(ROCE_SEND_ONLY, 3, 4));
	a_comes_again();
	assert_true(send_one(ROCE_SEND_ONLY, 4, 400));
	poll_all(b);
	assert_int_equal(b->n, 3);
	assert_int_equal(b->rx[0].h.psn, 2);
	assert_int_equal(b->rx[1].h.psn, 3);
	assert_int_equal(b->rx[2].h.psn, 4);
	poll_all(a);
	assert_int_equal(a->n, 1);
	assert_int_equal(a->rx[0].h.psn, 4);
}

/* Names that one has left lead nowhere, though another has its slot and keys.
 */
static void names_of_the_dead_lead_nowhere(void **state)
{
	struct named d;
	const struct ring_rec rec = rec_of(ROCE_SEND_ONLY, RING_F_REF, 100);
	struct ring_rec *to;

	(void)state;
	show_memory();
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	d = names_of(1, 100);
	to = ring_begin(&shm_peer_of(&way)->out, shm_ref_size(1));
	memcpy((uint8_t *)to + 4, (const uint8_t *)&rec + 4, RING_HDR - 4);
	memcpy(ring_data(to), &d, shm_ref_size(1));
	ring_put(&shm_peer_of(&way)->out, shm_ref_size(1), 0, 0, 0);
	a_comes_again();
	free(keys.entry);
	show_memory();
	assert_int_equal(keys.entry[slot].lkey, d.piece[0].key);
	poll_all(b);
	assert_int_equal(b->n, 1);
	assert_int_equal(b->pull, -ESTALE);
	free(keys.entry);
}

/* ---- others write there ------------------------------------------------ */

/* What a waits for is looked into. */
static void wait_long(void)
{
	uint64_t mark[2] = { 0 };

	assert_true(a->link->ops->unread(a->link, &way, mark));
	assert_true(mark[0] & LINK_MARK);
	clock_forward(200000000);
	a->link->ops->unread(a->link, &way, mark);
}

/* b polls, and so its descriptor wakes nobody. */
static void ack_note_that_was_overwritten_is_repeated(void **state)
{
	(void)state;
	b->ack = true;
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	assert_true(ring()->ack_note[0]);
	ring()->ack_note[0] = 0;
	poll_all(a);
	assert_true(ring_unread(&shm_peer_of(&way)->out));
	wait_long();
	poll_all(b);
	poll_all(a);
	assert_false(ring_unread(&shm_peer_of(&way)->out));
	assert_true(send_one(ROCE_SEND_ONLY, 2, 4));
	poll_all(b);
	assert_int_equal(b->n, 2);
}

static void consumer_whose_place_was_overwritten_is_left(void **state)
{
	(void)state;
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	poll_all(a);
	assert_true(send_one(ROCE_SEND_ONLY, 2, 4));
	ring()->unit[1].word = 0;
	poll_all(b);
	poll_all(a);
	wait_long();
	assert_int_equal(a->link->stats.broken, 1);
	assert_false(goes_there(batch(ROCE_SEND_ONLY, 3, 4)));
}

/* Nothing is on its way, so no timer runs: all waits for room. */
static void full_ring_is_looked_into(void **state)
{
	uint32_t n = 0;

	(void)state;
	while (send_one(ROCE_SEND_ONLY, n, 1000))
		n++;
	while (!poll_some(b, 1))
		;
	ring()->ack_note[0] = 0;
	poll_all(a);
	assert_false(send_one(ROCE_SEND_ONLY, n, 1000));
	clock_forward(200000000);
	assert_false(send_one(ROCE_SEND_ONLY, n, 1000));
	poll_all(b);
	poll_all(a);
	assert_true(room(a));
	assert_true(send_one(ROCE_SEND_ONLY, n, 1000));
	/* And where nothing can be said again: */
	while (send_one(ROCE_SEND_ONLY, ++n, 1000))
		;
	ring()->unit[shm_peer_of(&way)->out.oldest].word = 0;
	clock_forward(200000000);
	assert_false(send_one(ROCE_SEND_ONLY, n, 1000));
	assert_true(room(a));
	assert_false(goes_there(batch(ROCE_SEND_ONLY, 3, 4)));
}

/* A ring that nobody has said to be there. */
static void producer_says_again_that_it_has_a_ring(void **state)
{
	(void)state;
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	shm_peer_of(&way)->seg->head->producers[0] = 0;
	poll_all(b);
	assert_int_equal(b->n, 0);
	wait_long();
	poll_all(b);
	assert_int_equal(b->n, 1);
}

/* Both sleep, and somebody says that they do not. */
static void sleepers_are_woken_in_the_end(void **state)
{
	(void)state;
	assert_true(b->link->ops->sleep(b->link));
	assert_true(send_one(ROCE_SEND_ONLY, 1, 4));
	assert_true(readable(b));
	b->link->ops->wake(b->link, true);
	poll_all(b);
	assert_int_equal(b->n, 1);
	assert_true(b->link->ops->sleep(b->link));
	shm_peer_of(&way)->seg->head->asleep = 0;
	assert_true(send_one(ROCE_SEND_ONLY, 2, 4));
	assert_false(readable(b));
	wait_long();
	assert_true(readable(b));
}

/* Also if nothing has a timer: datagrams. */
static void who_sends_datagrams_looks_whether_they_are_read(void **state)
{
	(void)state;
	assert_true(send_one(ROCE_UD | ROCE_SEND_ONLY, 1, 4));
	poll_all(b);
	poll_long(a);
	assert_true(b->link->ops->sleep(b->link));
	shm_peer_of(&way)->seg->head->asleep = 0;
	assert_true(send_one(ROCE_UD | ROCE_SEND_ONLY, 2, 4));
	poll_long(a);
	assert_false(readable(b));
	clock_forward(200000000);
	poll_long(a);
	assert_true(readable(b));
	/* Now and then, not with each look. */
	b->link->ops->wake(b->link, true);
	poll_long(a);
	assert_false(readable(b));
	poll_all(b);
	assert_int_equal(b->n, 2);
}

static void own_sleep_ends_when_something_lies_there(void **state)
{
	struct link_way back = { .own = b->qpn };
	struct roce_path back_path = { .sgid = b->gid,
				       .dgid = a->gid,
				       .local = true };
	struct roce_batch *bt;
	int err = 0;

	(void)state;
	assert_true(send_one(ROCE_READ_REQUEST, 1, 0));
	poll_all(b);
	poll_all(a);
	assert_true(a->link->ops->sleep(a->link));
	((struct segment_head *)(uintptr_t)a->shm->head)->asleep = 0;
	bt = batch(ROCE_READ_RESP_ONLY, 1, 4);
	bt->pkt[0].path = &back_path;
	bt->pkt[0].h.dest_qpn = a->qpn;
	assert_int_equal(route(b, &back, bt, 0), 1);
	assert_int_equal(shm_send(b->link, &back, bt, 0, 1, &err), 1);
	assert_false(readable(a));
	wait_long();
	assert_true(readable(a));
	link_way_forget(&back);
}

#define LINK(f) cmocka_unit_test_setup_teardown(f, begin, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		LINK(packets_arrive_as_they_were),
		LINK(long_packets_are_fewer),
		LINK(some_packets_go_elsewhere),
		LINK(way_is_found_again),
		LINK(ack_note_acknowledges),
		LINK(acknowledgement_comes_before_the_answer),
		LINK(acknowledgement_does_not_overtake),
		LINK(who_finds_no_room_is_told_when_there_is),
		LINK(datagrams_do_not_wait_for_ever),
		LINK(malformed_records_are_dropped),
		LINK(malformed_names_are_dropped),
		LINK(names_are_of_what_is_shown),
		LINK(long_payload_is_named),
		LINK(broken_ring_is_left),
		LINK(next_process_begins_with_a_ring_that_is_whole),
		LINK(next_process_goes_on_where_one_has_died),
		LINK(names_of_the_dead_lead_nowhere),
		LINK(ack_note_that_was_overwritten_is_repeated),
		LINK(consumer_whose_place_was_overwritten_is_left),
		LINK(full_ring_is_looked_into),
		LINK(producer_says_again_that_it_has_a_ring),
		LINK(sleepers_are_woken_in_the_end),
		LINK(who_sends_datagrams_looks_whether_they_are_read),
		LINK(own_sleep_ends_when_something_lies_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
