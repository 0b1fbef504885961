/*
 * test_siw.c - connections of the kernel's soft iWARP, as they were recorded
 *
 *	sim_siw PCAP-FILE|DIRECTORY...
 *	sim_siw --list PCAP-FILE
 *
 * Each end in turn is played by our core: what the other end sent is given to
 * it as it came, and what it sends itself has to be the recorded bytes, but for
 * pads (struct half). Its keys and addresses are those of the recording. --list
 * prints what we read in a file, for test_tshark_siw.py.
 */
#include "sim.h"

#include "capture.h"
#include "streams.h"

#include "base/bytes.h"
#include "iwarp/iwarp.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define MSS 1448u /* of an Ethernet with timestamps, as TCP has it */

struct fpdu {
	size_t at, end; /* in the stream */
	uint32_t ulpdu;
	struct ddp_hdr h;
	const uint8_t *payload;
	uint32_t len;
};

struct message {
	size_t at, end;
	unsigned opcode;
	struct ddp_hdr h; /* of its first segment */
	uint8_t *data;
	uint32_t len;
	struct rdmap_read read; /* of a Read Request */
};

/* What one end sent. */
struct half {
	const char *file;
	const uint8_t *bytes;
	uint8_t *right; /* the same with pads of zeros: siw's are whatever
			 * was in the buffer before */
	size_t len;
	size_t frame_len;
	struct mpa_frame frame;
	struct fpdu *fpdu;
	size_t nfpdus;
	struct message *msg;
	size_t nmsgs;
	uint32_t largest; /* FPDU */
};

#define CHECK(h, at, cond)                                                     \
	do {                                                                   \
		if (!(cond))                                                   \
			fail_msg("%s, byte %zu of %s: %s", (h)->file,          \
				 (size_t)(at),                                 \
				 (h)->frame.reply ? "the responder" :          \
						    "the initiator",           \
				 #cond);                                       \
	} while (0)

static void *grow(void *p, size_t n, size_t size)
{
	p = realloc(p, n * size);
	assert_non_null(p);
	return p;
}

static void add_to_message(struct half *h, const struct fpdu *f, bool first)
{
	struct message *m;

	if (first) {
		h->msg = grow(h->msg, h->nmsgs + 1, sizeof(*m));
		h->msg[h->nmsgs++] = (struct message){
			.at = f->at,
			.h = f->h,
			.opcode = rdmap_opcode(f->h.ulp),
		};
	}
	m = &h->msg[h->nmsgs - 1];
	m->end = f->end;
	m->data = grow(m->data, m->len + f->len + 1, 1);
	memcpy(m->data + m->len, f->payload, f->len);
	m->len += f->len;
	if (m->opcode == RDMAP_READ_REQUEST) {
		CHECK(h, f->at, m->len == RDMAP_READ_LEN);
		rdmap_read_decode(&m->read, m->data);
	}
}

static void read_fpdu(struct half *h, size_t at, struct fpdu *f)
{
	const uint8_t *p = h->bytes + at;
	int n;

	CHECK(h, at, h->len - at >= MPA_LEN_LEN);
	*f = (struct fpdu){ .at = at, .ulpdu = get_be16(p) };
	f->end = at + mpa_fpdu_len(f->ulpdu);
	CHECK(h, at, f->end <= h->len);
	n = ddp_decode(&f->h, p + MPA_LEN_LEN, f->ulpdu);
	CHECK(h, at, n > 0);
	f->payload = p + MPA_LEN_LEN + n;
	f->len = f->ulpdu - (uint32_t)n;
}

static void half_read(struct half *h, const struct stream *c, int from)
{
	bool first = true;
	struct fpdu f;
	int n;

	*h = (struct half){ .file = c->file,
			    .bytes = c->bytes[from],
			    .len = c->len[from],
			    .frame.reply = from };
	n = mpa_frame_len(from, h->bytes, h->len);
	CHECK(h, 0, n > 0 && (size_t)n <= h->len);
	h->frame_len = (size_t)n;
	h->right = grow(NULL, h->len, 1);
	memcpy(h->right, h->bytes, h->len);
	CHECK(h, 0, !mpa_frame_decode(&h->frame, from, h->bytes, (size_t)n));
	for (size_t at = h->frame_len; at < h->len; at = f.end) {
		read_fpdu(h, at, &f);
		memset(h->right + f.end - MPA_CRC_LEN - mpa_pad(f.ulpdu), 0,
		       mpa_pad(f.ulpdu));
		h->fpdu = grow(h->fpdu, h->nfpdus + 1, sizeof(f));
		h->fpdu[h->nfpdus++] = f;
		if (f.end - f.at > h->largest)
			h->largest = (uint32_t)(f.end - f.at);
		add_to_message(h, &f, first);
		first = f.h.last;
	}
	CHECK(h, h->len, first);
}

static void half_free(struct half *h)
{
	for (size_t i = 0; i < h->nmsgs; i++)
		free(h->msg[i].data);
	free(h->msg);
	free(h->fpdu);
	free(h->right);
}

static struct streams all;

/* The halves of each connection that got as far as its frames. */
#define FOR_EACH(c)                                                            \
	for (c = all.stream; c < all.stream + all.n; c++)                      \
		if (c->len[0] && c->len[1])

/* ---- what they are made of --------------------------------------------- */

static const uint8_t *private_of(const struct half *h)
{
	return h->bytes + h->frame_len - h->frame.private_len;
}

static void check_frame(const struct half *h)
{
	uint8_t out[MPA_FRAME_MAX];
	size_t n = mpa_frame_encode(&h->frame, out);

	CHECK(h, 0, n + h->frame.private_len == h->frame_len);
	CHECK(h, 0, !memcmp(out, h->bytes, n));
}

static void check_fpdu(const struct half *h, const struct fpdu *f, bool crc)
{
	const uint8_t *p = h->bytes + f->at, *end = h->bytes + f->end;
	uint8_t out[DDP_HDR_MAX + RDMAP_READ_LEN];
	const uint8_t zeros[4] = { 0 };
	size_t n = ddp_encode(&f->h, out);

	CHECK(h, f->at, f->h.version == DDP_VERSION);
	CHECK(h, f->at, rdmap_version(f->h.ulp) == RDMAP_VERSION);
	CHECK(h, f->at, rdmap_opcode(f->h.ulp) < RDMAP_OPCODES);
	if (rdmap_opcode(f->h.ulp) == RDMAP_READ_REQUEST) {
		struct rdmap_read r;

		rdmap_read_decode(&r, f->payload);
		rdmap_read_encode(&r, out + n);
		n += RDMAP_READ_LEN;
	}
	CHECK(h, f->at, !memcmp(out, p + MPA_LEN_LEN, n));
	if (crc)
		CHECK(h, f->at,
		      mpa_crc_is(end - MPA_CRC_LEN,
				 mpa_crc(MPA_CRC_INIT, p,
					 f->end - f->at - MPA_CRC_LEN)));
	else
		CHECK(h, f->at, !memcmp(end - MPA_CRC_LEN, zeros, MPA_CRC_LEN));
}

/* What is decoded, encoded again, is the same bytes. */
static void round_trip(void **state)
{
	size_t connections = 0, fpdus = 0;
	const struct stream *c;

	(void)state;
	FOR_EACH(c)
	{
		struct half h[2];
		bool crc;

		half_read(&h[0], c, 0);
		half_read(&h[1], c, 1);
		crc = h[0].frame.crc || h[1].frame.crc;
		for (int i = 0; i < 2; i++) {
			check_frame(&h[i]);
			for (size_t k = 0; k < h[i].nfpdus; k++)
				check_fpdu(&h[i], &h[i].fpdu[k], crc);
			fpdus += h[i].nfpdus;
			half_free(&h[i]);
		}
		connections++;
	}
	print_message("%zu FPDUs of %zu connections\n", fpdus, connections);
	assert_true(connections && fpdus);
}

/* ---- played ------------------------------------------------------------ */

#define REGIONS 8
#define RECEIVES 512

/* Memory that the recorded end had: what is known of it. */
struct region {
	uint32_t stag;
	uint64_t begin, end;
	uint8_t *mem;
};

/* How what comes is handed over. */
enum hand { AS_CAPTURED, BY_BYTE, DIRECT, HANDS };

struct player {
	const struct stream *c;
	int me;
	enum hand hand;
	struct half half[2];
	struct sim *sim;
	struct sim_node *node;
	struct sim_qp *q;
	struct iwarp_env env;
	struct iwarp_qp *qp;
	struct region region[REGIONS];
	size_t nregions;
	size_t used; /* of the node's memory */
	size_t sent; /* bytes of our half */
	size_t out, in; /* messages of ours, of theirs, that are done */
	size_t requests; /* of theirs, that are answered */
	size_t answers; /* of theirs, that have come */
	size_t posted;
	uint8_t *recv[RECEIVES];
	size_t nrecvs, received;
	bool ended;
};

#define MINE(p) (&(p)->half[(p)->me])
#define THEIRS(p) (&(p)->half[!(p)->me])

static void know(struct player *p, uint32_t stag, uint64_t at, uint32_t len)
{
	struct region *r = p->region;

	while (r < p->region + p->nregions && r->stag != stag)
		r++;
	if (r == p->region + p->nregions) {
		assert_true(p->nregions++ < REGIONS);
		*r = (struct region){ stag, at, at, NULL };
	}
	if (at < r->begin)
		r->begin = at;
	if (at + len > r->end)
		r->end = at + len;
	assert_true(r->end - r->begin < SIM_MEM);
}

static uint8_t *memory(struct player *p, uint32_t stag, uint64_t at)
{
	for (struct region *r = p->region; r < p->region + p->nregions; r++)
		if (r->stag == stag && at >= r->begin && at <= r->end)
			return r->mem + (at - r->begin);
	fail_msg("%s: STag 0x%08x is not known", p->c->file, stag);
	return NULL;
}

/* A region whose keys are the recorded STag. */
static void publish(struct player *p, struct region *r)
{
	struct keys *k = &p->node->keys;
	struct key_entry *e = &k->entry[keys_index(k, r->stag)];

	r->mem = calloc(1, r->end - r->begin + 1);
	assert_non_null(r->mem);
	assert_true(!atomic_load(&e->lkey) && !atomic_load(&e->rkey));
	*e = (struct key_entry){
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ,
		.pd = 1,
		.kind = KEY_MR,
		.iova = r->begin,
		.length = r->end - r->begin,
		.addr = (uintptr_t)r->mem,
	};
	atomic_store(&e->lkey, r->stag);
	atomic_store(&e->rkey, r->stag);
}

static void learn(struct player *p)
{
	for (size_t i = 0; i < MINE(p)->nmsgs; i++) {
		const struct message *m = &MINE(p)->msg[i];

		if (m->opcode == RDMAP_READ_REQUEST)
			know(p, m->read.sink_stag, m->read.sink_to,
			     m->read.size);
	}
	for (size_t i = 0; i < THEIRS(p)->nmsgs; i++) {
		const struct message *m = &THEIRS(p)->msg[i];

		if (m->opcode == RDMAP_WRITE)
			know(p, m->h.stag, m->h.to, m->len);
		else if (m->opcode == RDMAP_READ_REQUEST)
			know(p, m->read.src_stag, m->read.src_to, m->read.size);
	}
	for (size_t i = 0; i < p->nregions; i++)
		publish(p, &p->region[i]);
}

/* Room in the node's own memory. */
static uint8_t *room(struct player *p, size_t len)
{
	uint8_t *at = p->node->mem + p->used;

	p->used += (len + 63) & ~(size_t)63;
	assert_true(p->used <= SIM_MEM);
	return at;
}

static void post_receives(struct player *p)
{
	for (size_t i = 0; i < THEIRS(p)->nmsgs; i++) {
		const struct message *m = &THEIRS(p)->msg[i];
		struct ibv_sge sge = { .length = m->len,
				       .lkey = p->node->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 };

		if (!rdmap_is_send(m->opcode))
			continue;
		wr.wr_id = p->nrecvs;
		assert_true(p->nrecvs < RECEIVES);
		p->recv[p->nrecvs++] = room(p, m->len);
		sge.addr = (uintptr_t)p->recv[wr.wr_id];
		assert_int_equal(qp_post_recv(iwarp_qp_base(p->qp), &wr), 0);
	}
}

/* The frames: ours is made of what was recorded of its end's wishes. */
static void set_up(struct player *p)
{
	const struct half *mine = MINE(p), *theirs = THEIRS(p);
	const struct mpa_frame *f = &mine->frame;
	const struct iwarp_offer offer = {
		.crc = f->crc,
		.markers = f->markers,
		.large = f->large,
		.enhanced = f->enhanced,
		.peer_to_peer = f->peer_to_peer,
		.ird = f->ird,
		.ord = f->ord,
	};
	struct iwarp_agreed agreed;
	uint8_t out[MPA_FRAME_MAX];
	struct iwarp_setup s;
	uint32_t most = MSS;
	int len;

	iwarp_setup_init(&s, !p->me);
	if (p->me) {
		assert_int_equal(
			iwarp_setup_rx(&s, theirs->bytes, theirs->frame_len),
			0);
		len = iwarp_setup_reply(&s, &offer, private_of(mine),
					f->private_len, out);
	} else {
		len = iwarp_setup_request(&s, &offer, private_of(mine),
					  f->private_len, out);
		assert_int_equal(
			iwarp_setup_rx(&s, theirs->bytes, theirs->frame_len),
			0);
	}
	CHECK(mine, 0, (size_t)len == mine->frame_len);
	CHECK(mine, 0, !memcmp(out, mine->bytes, mine->frame_len));
	p->sent = mine->frame_len;
	assert_int_equal(iwarp_setup_agreed(&s, &agreed), 0);
	if (mine->largest > most)
		most = mine->largest;
	assert_int_equal(iwarp_qp_start(p->qp, &agreed, most), 0);
}

static void player_init(struct player *p, const struct stream *c, int me,
			enum hand hand)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
						       IBV_ACCESS_REMOTE_READ };
	struct sim_qp_opts o = { .type = IBV_QPT_RC,
				 .sig_all = true,
				 .cap = { .max_send_wr = 256,
					  .max_recv_wr = RECEIVES,
					  .max_send_sge = 1,
					  .max_recv_sge = 1 } };
	struct qp_init init;

	*p = (struct player){ .c = c, .me = me, .hand = hand };
	half_read(&p->half[0], c, 0);
	half_read(&p->half[1], c, 1);
	p->sim = sim_new(7);
	p->node = &p->sim->node[0];
	p->q = sim_qp_slot(p->sim, 0);
	p->env.base = p->node->env.base;
	init = sim_qp_init(p->q, &o);
	init.env = &p->env.base;
	assert_int_equal(iwarp_qp_create(&p->qp, &init), 0);
	assert_int_equal(iwarp_qp_modify(p->qp, &attr,
					 IBV_QP_STATE | IBV_QP_ACCESS_FLAGS),
			 0);
	learn(p);
	post_receives(p);
	set_up(p);
}

static void player_free(struct player *p)
{
	iwarp_qp_destroy(p->qp);
	sim_free(p->sim);
	for (size_t i = 0; i < p->nregions; i++)
		free(p->region[i].mem);
	half_free(&p->half[0]);
	half_free(&p->half[1]);
}

/* The next Read Request of h that a response is the answer to. */
static const struct rdmap_read *asked(const struct half *h, size_t *n)
{
	size_t k = 0;

	for (size_t i = 0; i < h->nmsgs; i++)
		if (h->msg[i].opcode == RDMAP_READ_REQUEST && k++ == *n) {
			++*n;
			return &h->msg[i].read;
		}
	fail_msg("%s: a response to nothing", h->file);
	return NULL;
}

/* What makes our end send that. */
static void post(struct player *p, const struct message *m)
{
	struct ibv_sge sge = { .length = m->len, .lkey = p->node->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1 };
	const struct rdmap_read *r;

	switch (m->opcode) {
	case RDMAP_READ_RESPONSE:
		r = asked(THEIRS(p), &p->requests);
		assert_int_equal(r->size, m->len);
		memcpy(memory(p, r->src_stag, r->src_to), m->data, m->len);
		return;
	case RDMAP_TERMINATE:
		return; /* it knows why */
	case RDMAP_READ_REQUEST:
		wr.opcode = IBV_WR_RDMA_READ;
		wr.wr.rdma.remote_addr = m->read.src_to;
		wr.wr.rdma.rkey = m->read.src_stag;
		sge = (struct ibv_sge){ m->read.sink_to, m->read.size,
					m->read.sink_stag };
		break;
	case RDMAP_WRITE:
		/* The ready-to-receive message is the core's own. */
		if (!m->len && iwarp_agreed(p->qp)->rtr && !p->me) {
			iwarp_tx_ask_again(p->qp);
			return;
		}
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = m->h.to;
		wr.wr.rdma.rkey = m->h.stag;
		break;
	case RDMAP_SEND_INV:
	case RDMAP_SEND_SE_INV:
		wr.opcode = IBV_WR_SEND_WITH_INV;
		wr.invalidate_rkey = m->h.ulp_data;
		break;
	default:
		wr.opcode = IBV_WR_SEND;
	}
	if (m->opcode == RDMAP_SEND_SE || m->opcode == RDMAP_SEND_SE_INV)
		wr.send_flags = IBV_SEND_SOLICITED;
	if (m->opcode != RDMAP_READ_REQUEST) {
		uint8_t *at = room(p, m->len);

		memcpy(at, m->data, m->len);
		sge.addr = (uintptr_t)at;
	}
	assert_int_equal(iwarp_post_send(p->qp, &wr), 0);
	p->posted++;
}

static void send_until(struct player *p, size_t end)
{
	const struct half *h = MINE(p);

	if (iwarp_tx_waits(p->qp))
		iwarp_tx_begin(p->qp);
	while (p->sent < end) {
		struct iwarp_batch b;

		CHECK(h, p->sent, iwarp_tx_ready(p->qp));
		iwarp_tx(p->qp, &b, end - p->sent);
		CHECK(h, p->sent, b.bytes && p->sent + b.bytes <= h->len);
		for (size_t i = 0; i < b.data.n; i++) {
			const struct iovec *v = &b.data.iov[i];

			CHECK(h, p->sent,
			      !memcmp(v->iov_base, h->right + p->sent,
				      v->iov_len));
			p->sent += v->iov_len;
		}
		iwarp_tx_done(p->qp, &b, b.bytes);
	}
	CHECK(h, p->sent, p->sent == end);
}

/* Our end begins all messages that had begun by then. */
static void send(struct player *p, size_t upto)
{
	const struct half *h = MINE(p);

	for (; p->out < h->nmsgs && h->msg[p->out].at < upto; p->out++) {
		post(p, &h->msg[p->out]);
		send_until(p, h->msg[p->out].end);
	}
}

static void arrived(struct player *p, const struct message *m)
{
	const struct half *h = THEIRS(p);
	const struct rdmap_read *r;
	const struct ibv_wc *wc;

	switch (m->opcode) {
	case RDMAP_WRITE:
		CHECK(h, m->at,
		      !memcmp(memory(p, m->h.stag, m->h.to), m->data, m->len));
		break;
	case RDMAP_READ_RESPONSE:
		r = asked(MINE(p), &p->answers);
		CHECK(h, m->at, r->size == m->len);
		CHECK(h, m->at,
		      !memcmp(memory(p, r->sink_stag, r->sink_to), m->data,
			      m->len));
		break;
	case RDMAP_READ_REQUEST:
		break;
	case RDMAP_TERMINATE:
		p->ended = true;
		break;
	default:
		wc = sim_poll(p->q->recv);
		CHECK(h, m->at, wc && wc->status == IBV_WC_SUCCESS);
		CHECK(h, m->at, wc->wr_id == p->received);
		CHECK(h, m->at, wc->byte_len == m->len);
		CHECK(h, m->at, !memcmp(p->recv[p->received], m->data, m->len));
		CHECK(h, m->at,
		      p->q->recv->solicited[p->received] ==
			      (m->opcode == RDMAP_SEND_SE ||
			       m->opcode == RDMAP_SEND_SE_INV));
		p->received++;
	}
}

static size_t hand_over_direct(struct player *p, const uint8_t *b, size_t n)
{
	struct iovec iov[4];
	size_t pieces = iwarp_rx_direct(p->qp, iov, 4), got = 0;

	if (!pieces)
		return 0;
	for (size_t i = 0; i < pieces && got < n; i++) {
		size_t k = iov[i].iov_len < n - got ? iov[i].iov_len : n - got;

		memcpy(iov[i].iov_base, b + got, k);
		got += k;
	}
	iwarp_rx_placed(p->qp, got);
	return got;
}

static void hand_over(struct player *p, const uint8_t *b, size_t n)
{
	while (n) {
		size_t k = 0;

		if (p->hand == DIRECT)
			k = hand_over_direct(p, b, n);
		if (!k) {
			/* By bytes up to where the direct way begins. */
			k = p->hand == AS_CAPTURED ? n : 1;
			iwarp_rx(p->qp, b, k);
		}
		b += k;
		n -= k;
	}
}

static void receive(struct player *p, const struct stream_piece *piece)
{
	const struct half *h = THEIRS(p);
	const size_t end = piece->at + piece->len;

	hand_over(p, h->bytes + piece->at, piece->len);
	for (; p->in < h->nmsgs && h->msg[p->in].end <= end; p->in++)
		arrived(p, &h->msg[p->in]);
}

/* Its end, by a FIN of either side. */
static void finish(struct player *p, bool ours)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_SQD };

	if (p->ended)
		return;
	if (ours)
		assert_int_equal(iwarp_qp_modify(p->qp, &attr, IBV_QP_STATE),
				 0);
	else
		iwarp_rx_eof(p->qp);
	p->ended = true;
}

static void judge(struct player *p)
{
	const struct half *mine = MINE(p), *theirs = THEIRS(p);
	const struct ibv_wc *wc;
	size_t done = 0;
	bool sent;

	CHECK(mine, p->sent, p->sent == mine->len);
	CHECK(theirs, theirs->len, p->in == theirs->nmsgs);
	while ((wc = sim_poll(p->q->send))) {
		CHECK(mine, mine->len, wc->status == IBV_WC_SUCCESS);
		done++;
	}
	CHECK(mine, mine->len, done == p->posted);
	CHECK(theirs, theirs->len, p->received == p->nrecvs);
	CHECK(theirs, theirs->len, !sim_poll(p->q->recv));
	CHECK(theirs, theirs->len, !p->q->events);
	CHECK(mine, mine->len, !iwarp_terminated(p->qp, &sent));
	CHECK(mine, mine->len,
	      iwarp_shut(p->qp) == (p->ended ? IWARP_FIN : IWARP_OPEN));
	CHECK(mine, mine->len,
	      iwarp_qp_base(p->qp)->state ==
		      (p->ended ? IBV_QPS_ERR : IBV_QPS_RTS));
}

static void play(const struct stream *c, int me, enum hand hand)
{
	struct player p;

	player_init(&p, c, me, hand);
	for (size_t i = 0; i < c->n; i++) {
		const struct stream_piece *piece = &c->piece[i];

		/* The frames are through. */
		if (piece->at >= p.half[piece->from].frame_len) {
			if (piece->from == me)
				send(&p, piece->at + piece->len);
			else
				receive(&p, piece);
		}
		if (piece->fin)
			finish(&p, piece->from == me);
	}
	judge(&p);
	player_free(&p);
}

static void played(void **state)
{
	const struct stream *c;

	(void)state;
	FOR_EACH(c)
	for (int me = 0; me < 2; me++)
		for (enum hand hand = 0; hand < HANDS; hand++)
			play(c, me, hand);
}

/* ---- for others to compare --------------------------------------------- */

static void list_fpdu(const struct stream *c, int from, const struct fpdu *f)
{
	struct rdmap_read r;

	printf("fpdu %u %u %d %d %u ", c->port[from], f->ulpdu, f->h.tagged,
	       f->h.last, rdmap_opcode(f->h.ulp));
	if (f->h.tagged)
		printf("0x%08x 0x%016llx", f->h.stag,
		       (unsigned long long)f->h.to);
	else
		printf("%u %u %u", f->h.qn, f->h.msn, f->h.mo);
	if (rdmap_opcode(f->h.ulp) == RDMAP_READ_REQUEST) {
		rdmap_read_decode(&r, f->payload);
		printf(" 0x%08x 0x%016llx %u 0x%08x 0x%016llx", r.sink_stag,
		       (unsigned long long)r.sink_to, r.size, r.src_stag,
		       (unsigned long long)r.src_to);
	}
	putchar('\n');
}

static int list(const char *path)
{
	const struct stream *c;

	if (streams_load(&all, path))
		return 1;
	FOR_EACH(c)
	for (int from = 0; from < 2; from++) {
		struct half h;

		half_read(&h, c, from);
		printf("frame %u %d %d %d %u %u\n", c->port[from],
		       h.frame.markers, h.frame.crc, h.frame.reject,
		       h.frame.revision,
		       h.frame.private_len +
			       (h.frame.enhanced ? MPA_ENHANCED_LEN : 0));
		for (size_t k = 0; k < h.nfpdus; k++)
			list_fpdu(c, from, &h.fpdu[k]);
		half_free(&h);
	}
	streams_free(&all);
	return 0;
}

static int load(const char *path)
{
	struct stat st;
	char **paths;
	int err = 0;

	if (stat(path, &st))
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return streams_load(&all, path);
	paths = captures_list(path, NULL);
	if (!paths)
		return -errno;
	for (char **p = paths; *p && !err; p++)
		err = streams_load(&all, *p);
	captures_list_free(paths);
	return err;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(round_trip),
		cmocka_unit_test(played),
	};
	int failed;

	if (argc == 3 && !strcmp(argv[1], "--list"))
		return list(argv[2]);
	for (int i = 1; i < argc; i++) {
		int err = load(argv[i]);

		if (err) {
			fprintf(stderr, "%s: %s\n", argv[i], strerror(-err));
			return 1;
		}
	}
	cmocka_set_test_filter(getenv("SIM_TEST"));
	failed = cmocka_run_group_tests_name("sim_siw", tests, NULL, NULL);
	streams_free(&all);
	return failed;
}
