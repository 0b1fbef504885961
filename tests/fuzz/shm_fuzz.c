/*
 * shm_fuzz.c - the link over shared memory, where anything is written: records,
 * with what is behind their headers, and what two processes show each other
 *
 * Two ends in one process, as far as registry and segments know. The input is a
 * program of small steps. Every packet that comes out is one that a QP may be
 * given: all of its payload can be read, now or from a copy of its source.
 */
#include "fuzz.h"
#include "input.h"

#include "../unit/testclock.h"

#include "link/exported_keys.h"
#include "link/shm_internal.h"

#include <string.h>
#include <unistd.h>

/* ---- two ends ---------------------------------------------------------- */

struct end {
	struct registry *r;
	struct segment *s;
	struct shm *shm;
	struct link *link; /* of shm */
	uint32_t qpn;
	struct roce_path path; /* to the other one */
	struct link_way way;
	struct ring_mem *ring; /* that the other one produces into */
	uint64_t mark[2];
};

static char dir[] = "/tmp/softhca-fuzz-XXXXXX";
static const struct link_ops no_ops;
static struct link elsewhere = { .ops = &no_ops };
static struct end ends[2]; /* a QP of ends[0] sends to ends[1] */
static struct keys keys; /* of ends[0] */
static uint32_t slot; /* of the key for memory */
static uint8_t memory[3 * 4096];
static uint8_t tables[SEGMENT_TABLES][SEGMENT_GROW]; /* as ends[0] shows them */
static uint32_t sum; /* so that nothing that is read is left out */

static void close_ends(void)
{
	for (int i = 0; i < 2; i++) {
		link_way_forget(&ends[i].way);
		ends[i].link->ops->destroy(ends[i].link);
		segment_destroy(ends[i].s);
		registry_leave(ends[i].r);
	}
	free(keys.entry);
	rmdir(dir);
}

static void open_end(struct end *e, uint8_t host)
{
	static const struct shm_config cfg;
	union ibv_gid gid = { .raw = { [10] = 0xff, 0xff, 127, 0, 0, host } };
	int qpn;

	FUZZ_CHECK(!registry_join(&e->r, dir, NULL));
	FUZZ_CHECK(!segment_create(&e->s, e->r, 0));
	FUZZ_CHECK(!shm_create(&e->link, &cfg, e->s));
	e->shm = to_shm(e->link);
	qpn = registry_lease(e->r);
	FUZZ_CHECK(qpn > 0 && !registry_lock(e->r));
	FUZZ_CHECK(!registry_addr_join(e->r, &gid, 0, false));
	registry_unlock(e->r);
	e->qpn = (uint32_t)qpn;
	e->path.sgid = gid;
	e->path.local = true;
}

/* What is sent names memory that the other end may read. */
static void show(struct end *e)
{
	const struct key_entry k = { .kind = KEY_MR,
				     .addr = (uintptr_t)memory,
				     .length = sizeof(memory) };
	const uint64_t secret[2] = { 1, 2 };
	struct qp_public *pub = exported_qp_place(e->s, e->qpn, 0);
	int at;

	FUZZ_CHECK(pub);
	keys_init(&keys, calloc(64, sizeof(*keys.entry)), 64, secret);
	exported_keys_begin(e->s, &keys);
	exported_keys_grow(e->s, &keys);
	at = keys_add(&keys, &k);
	FUZZ_CHECK(at >= 0);
	slot = (uint32_t)at;
	qp_public_set(&pub->qpn, e->qpn);
	qp_public_set(&pub->generation, 9);
}

static void on_packet(void *arg, const struct roce_rx *pkt)
{
	const struct end *e = arg;
	uint8_t *copy;

	if (pkt->ack_note) {
		FUZZ_CHECK(!pkt->early == !pkt->acked &&
			   pkt->h.dest_qpn == e->qpn);
		if (pkt->acked)
			*pkt->acked = pkt->h.psn & 1;
		return;
	}
	FUZZ_CHECK(roce_opcode(pkt->h.opcode)->name);
	FUZZ_CHECK(pkt->h.dest_qpn > 1 && pkt->h.dest_qpn < ROCE_MULTICAST_QPN);
	FUZZ_CHECK(pkt->h.psn < 1u << 24 && pkt->h.pad < 4);
	FUZZ_CHECK((pkt->h.opcode & 0xe0) != ROCE_XRC && !pkt->handed);
	FUZZ_CHECK(!pkt->source == (pkt->payload != NULL));
	FUZZ_CHECK((pkt->h.opcode & 0xe0) != ROCE_UD || pkt->grh);
	copy = malloc(pkt->source ? pkt->source->size : pkt->len);
	if (pkt->source) {
		struct qp_source *s = (void *)copy;
		uint8_t *data = malloc(pkt->len);
		const struct iovec to[2] = { { data, pkt->len / 2 },
					     { data + pkt->len / 2,
					       pkt->len - pkt->len / 2 } };

		FUZZ_CHECK(pkt->len && pkt->len <= SHM_MAX_PAYLOAD);
		memcpy(s, pkt->source, pkt->source->size);
		if (!s->read(s, 0, to, 2))
			sum += data[pkt->len - 1];
		if (!s->read(s, pkt->len / 2, to + 1, 1))
			sum += data[pkt->len - 1];
		free(data);
	} else {
		FUZZ_CHECK(pkt->len <= RING_DATA_MAX);
		memcpy(copy, pkt->payload, pkt->len);
		sum += pkt->len ? copy[pkt->len - 1] : 0;
	}
	free(copy);
	if (pkt->acked)
		*pkt->acked = pkt->h.psn & 1;
}

static void poll_end(struct end *e, unsigned budget)
{
	FUZZ_CHECK(e->link->ops->poll(e->link, budget, on_packet, e) >= 0);
}

/* Both know of each other. */
static void meet(struct end *e, struct end *o)
{
	struct shm_peer *p = shm_peer_get(e->shm, registry_slot(o->r));

	FUZZ_CHECK(p);
	segment_peer_put(p->seg);
	while (!o->shm->in[registry_slot(e->r)])
		poll_end(o, 1);
}

static void open_ends(void)
{
	FUZZ_CHECK(mkdtemp(dir));
	for (uint8_t i = 0; i < 2; i++)
		open_end(&ends[i], (uint8_t)(i + 1));
	for (int i = 0; i < 2; i++) {
		struct end *e = &ends[i], *o = &ends[!i];

		e->path.dgid = o->path.sgid;
		e->ring = segment_ring(e->s, registry_slot(o->r));
		FUZZ_CHECK(e->ring);
		meet(e, o);
	}
	show(&ends[0]);
	for (int t = 0; t < SEGMENT_TABLES; t++)
		memcpy(tables[t],
		       segment_table(ends[0].s, (enum segment_table)t),
		       SEGMENT_GROW);
	atexit(close_ends);
}

/* ---- each input begins with what is whole -------------------------------- */

static struct segment_head *head(const struct end *e)
{
	return (struct segment_head *)(uintptr_t)e->shm->head;
}

static void begin_anew(struct end *e, struct end *o)
{
	const unsigned from = registry_slot(o->r);
	struct segment_peer *seg;
	struct shm_peer *p;
	struct shm_in *in;

	link_way_forget(&e->way);
	e->way = (struct link_way){ .own = e->qpn,
				    .generation = 9,
				    .keys = &keys };
	memset(e->mark, 0, sizeof(e->mark));
	head(e)->asleep = head(e)->poked = 0;
	for (int t = 0; t < SEGMENT_TABLES; t++) {
		if (e == &ends[0])
			memcpy(segment_table(e->s, (enum segment_table)t),
			       tables[t], SEGMENT_GROW);
		head(e)->table_size[t] =
			segment_table_size(e->s, (enum segment_table)t);
	}
	p = shm_peer_get(e->shm, registry_slot(o->r));
	FUZZ_CHECK(p);
	seg = p->seg;
	in = e->shm->in[from];
	memset(e->ring, 0, sizeof(*e->ring));
	ring_in_reset(&in->ring);
	in->broken_generation = 0;
	in->generation = 0;
	memset(o->ring, 0, sizeof(*o->ring));
	FUZZ_CHECK(!ring_out_attach(&p->out, o->ring,
				    shm_generation(e->shm->head->generation)));
	p->nacks = 0;
	p->full_ns = 0;
	p->base.starved = false;
	atomic_store(&e->link->room, false);
	segment_peer_put(seg);
}

/* ---- steps -------------------------------------------------------------- */

static uint8_t opcode(struct input *in)
{
	static const uint8_t of[] = {
		ROCE_SEND_ONLY,
		ROCE_SEND_ONLY_IMM,
		ROCE_WRITE_ONLY_IMM,
		ROCE_READ_REQUEST,
		ROCE_READ_RESP_ONLY,
		ROCE_ACK,
		ROCE_ATOMIC_ACK,
		ROCE_CMP_SWAP,
		ROCE_FETCH_ADD,
		ROCE_SEND_ONLY_INV,
		ROCE_CNP,
		ROCE_UC | ROCE_SEND_ONLY,
		ROCE_UD | ROCE_SEND_ONLY,
		ROCE_XRC | ROCE_SEND_ONLY,
	};
	const uint32_t v = take(in, 1);

	return v < 200 ? of[v % sizeof(of)] : (uint8_t)take(in, 1);
}

/* Names, nearly right. */
static uint32_t put_names(struct input *in, uint8_t *to, uint32_t *len)
{
	struct shm_ref ref = { .qpn = ends[0].qpn, .generation = 9 };
	uint32_t n = take(in, 1) % (SHM_PIECES + 3), each = take(in, 2);

	*len = 0;
	for (uint32_t i = 0; i < n; i++) {
		struct shm_piece piece = {
			.addr = (uintptr_t)memory + take(in, 1),
			.len = each,
			.slot = slot,
			.key = keys.entry[slot].lkey,
		};

		if (take(in, 1) >= 250)
			write_some(in, (uint8_t *)&piece + take(in, 1) % 20, 4);
		*len += piece.len;
		memcpy(to + sizeof(ref) + i * sizeof(piece), &piece,
		       sizeof(piece));
	}
	ref.n = n;
	if (take(in, 1) >= 240)
		write_some(in, (uint8_t *)&ref + take(in, 1) % 12, 4);
	memcpy(to, &ref, sizeof(ref));
	return shm_ref_size(n);
}

/* A record that is a packet but for what the input changes of it. */
static void put_record(struct input *in, struct end *from, struct end *to)
{
	struct shm_peer *p = shm_peer_of(&from->way);
	static uint8_t data[RING_DATA_MAX];
	const uint8_t code = opcode(in);
	const uint32_t f = roce_opcode(code)->flags;
	uint32_t flags = take(in, 1), bytes = 0, len = 0;
	struct ring_rec rec = { .qpn_opcode = (to->qpn + 3) << 8 | code,
				.path = take(in, 1),
				.rkey = 5 };
	struct ring_rec *at;

	if (f & ROCE_F_ATOMICETH)
		bytes += (uint32_t)sizeof(struct shm_ext_atomic);
	if (flags & RING_F_EXT)
		bytes += (uint32_t)sizeof(struct shm_ext_addr);
	write_some(in, data, bytes);
	if (flags & RING_F_REF)
		bytes += put_names(in, data + bytes, &len);
	else if (f & ROCE_F_PAYLOAD)
		bytes += len = take(in, 2) % 9000;
	rec.len = len;
	rec.psn_flags = take(in, 2) << 8 | flags;
	switch (take(in, 1)) {
	case 0:
		write_some(in, (uint8_t *)&rec + 4 + take(in, 1) % 32, 4);
		break;
	case 1:
		bytes -= bytes ? 1 : 0;
		break;
	case 2:
		bytes++;
		break;
	}
	if (!p || bytes > RING_DATA_MAX)
		return;
	at = ring_begin(&p->out, bytes);
	if (!at)
		return;
	memcpy((uint8_t *)at + 4, (uint8_t *)&rec + 4, RING_HDR - 4);
	memcpy(ring_data(at), data, bytes);
	ring_put(&p->out, bytes, take(in, 1) ? from->qpn : 0, 5, 6);
}

/* A packet, as the core sends it. */
static void send_packet(struct input *in, struct end *from, struct end *to)
{
	static struct roce_batch b;
	const uint8_t code = opcode(in);
	const uint32_t f = roce_opcode(code)->flags;
	uint32_t len = f & ROCE_F_PAYLOAD ? take(in, 2) % sizeof(memory) : 0;
	int err = 0;

	if (!roce_opcode(code)->name)
		return;
	memset(&b, 0, offsetof(struct roce_batch, data));
	b.n = 1 + take(in, 1) % 3;
	b.data.n = b.data.nkeys = 1;
	b.data.iov[0] = (struct iovec){ memory, len };
	b.data.key_of[0] = 0;
	b.data.key[0] = &keys.entry[slot];
	for (size_t i = 0; i < b.n; i++)
		b.pkt[i] = (struct roce_pkt){
			.h = { .opcode = code,
			       .dest_qpn = to->qpn + 3,
			       .psn = take(in, 1),
			       .ack_req = true },
			.path = &from->path,
			.payload = len,
			.niov = len > 0,
			.copy = take(in, 1) & 1,
		};
	if (link_route((struct link *[]){ &elsewhere, from->link }, 2,
		       &from->way, &b, 0) == b.n &&
	    from->way.peer)
		shm_send(from->link, &from->way, &b, 0, b.n, &err);
	FUZZ_CHECK(!err);
}

static void step(struct input *in)
{
	const uint32_t op = take(in, 1);
	struct end *e = &ends[op >> 7], *o = &ends[!(op >> 7)];
	struct segment_head *h = head(e);
	uint32_t v;

	switch (op % 16) {
	case 0: /* anything, anywhere */
		v = take(in, 2);
		write_some(in, (uint8_t *)e->ring + v % (RING_BYTES - 16),
			   take(in, 1) % 16);
		break;
	case 1: /* where it is looked at next */
		v = take(in, 1) % 64;
		if (!e->shm->in[registry_slot(o->r)]->ring.broken)
			write_some(in,
				   (uint8_t *)e->shm->in[registry_slot(o->r)]
						   ->ring.line +
					   v,
				   take(in, 1) % (64 - v));
		break;
	case 2:
		e->ring->ack_note[take(in, 2) % RING_UNITS] =
			(uint8_t)take(in, 1);
		break;
	case 3:
		write_some(in, e->ring, 64);
		break;
	case 4: /* what it shows of keys and QPs */
		v = take(in, 2);
		write_some(in,
			   (uint8_t *)segment_table(ends[0].s,
						    op & 16 ? SEGMENT_KEYS :
							      SEGMENT_QPS) +
				   (v & 1 ? SEGMENT_TABLE_HEAD : 0) +
				   v / 2 % 512,
			   8);
		break;
	case 5:
		h->asleep = take(in, 1);
		h->poked = take(in, 1);
		atomic_store(&h->producers[0], take(in, 1) & 7);
		write_some(in, h->table_size, sizeof(h->table_size));
		break;
	case 6:
		clock_forward(take(in, 2) * 10000ull);
		if (e->way.peer)
			e->link->ops->unread(e->link, &e->way, e->mark);
		break;
	case 7:
	case 8:
		poll_end(e, 1 + take(in, 1) % 64);
		break;
	case 9:
	case 10:
		send_packet(in, e, o);
		break;
	default:
		put_record(in, e, o);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };

	if (!ends[0].r)
		open_ends();
	begin_anew(&ends[0], &ends[1]);
	begin_anew(&ends[1], &ends[0]);
	while (in.left)
		step(&in);
	for (int i = 0; i < 4; i++)
		poll_end(&ends[i % 2], 2000);
	return 0;
}
