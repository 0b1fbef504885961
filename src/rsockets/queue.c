/*
 * queue.c - the queue pair of a stream: messages, credits, completions
 *
 * The receive buffer is a ring of two halves. The peer writes into what was
 * granted to it, in order, and says with immediate data how much it wrote; the
 * lengths wait in rmsg until read. When a half has been read, it is granted
 * again: an RDMA write puts its address into the peer's table, and an RSW_SGL
 * message announces it, with the number of messages that the peer may have sent
 * by then. Both sides count messages of data (and of mappings) modulo 2^16.
 *
 * iWARP has no immediate data: a send of four bytes follows the write there, in
 * the sender's byte order, as in rdma-core. Two entries of the send queue then
 * count as one.
 *
 * Control messages have entries of the send queue of their own, so that credits
 * never wait for data.
 */
#include "base/bytes.h"
#include "rsock_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define IDLE_POLLS 1024 /* before events of the CM are checked */

/* Messages carry immediate data alone, and receives have no buffer; or four
 * bytes. */
int rsock_stream_post_recvs(struct rsock *rs, uint32_t n)
{
	struct rsock_stream *s = &rs->s;
	struct ibv_recv_wr wr[32], *bad;
	struct ibv_sge sge[32];
	uint32_t i, batch;
	int err;

	for (; n; n -= batch) {
		batch = min_u32(n, ARRAY_SIZE(wr));
		for (i = 0; i < batch; i++) {
			wr[i] = (struct ibv_recv_wr){
				.wr_id = rsock_wr_id(RSOCK_WR_RECV,
						     s->next_recv),
				.next = i + 1 < batch ? &wr[i + 1] : NULL,
			};
			if (!s->plain)
				continue;
			sge[i] = (struct ibv_sge){
				.addr = (uintptr_t)(rsock_stream_msgs(rs) +
						    s->next_recv),
				.length = sizeof(uint32_t),
				.lkey = s->smr->lkey,
			};
			wr[i].sg_list = &sge[i];
			wr[i].num_sge = 1;
			s->next_recv = (s->next_recv + 1) % rsock_recvs(rs);
		}
		err = ibv_post_recv(s->id->qp, wr, &bad);
		if (err)
			return -err;
	}
	return 0;
}

void rsock_stream_start(struct rsock *rs, const struct rsw_conn *conn)
{
	struct rsock_stream *s = &rs->s;

	s->swap = conn->swap;
	s->sseq_limit = conn->credits;
	s->target = conn->buffer;
	s->table_slot = 1 % RSW_SGL_SIZE;
	s->peer_table = conn->target;
	s->peer_slot = 1 % conn->target.length;
	s->peer_iomaps = conn->iomaps;
	s->rd_open = s->wr_open = true;
}

/*
 * Entries are read only after a message has announced one. The peer writes an
 * entry while its neighbour is in use, never one that is not used up.
 */
static void take_target(struct rsock_stream *s)
{
	struct rsw_sge *slot = &s->table[s->table_slot];
	uint32_t length;

	if (s->target.length || !s->table_news)
		return;
	length = __atomic_load_n(&slot->length, __ATOMIC_ACQUIRE);
	if (!length) {
		s->table_news = false;
		return;
	}
	s->target = (struct rsw_sge){ .addr = slot->addr,
				      .key = slot->key,
				      .length = length };
	__atomic_store_n(&slot->length, 0, __ATOMIC_RELEASE);
	s->table_slot = (s->table_slot + 1) % RSW_SGL_SIZE;
}

static bool can_write(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;

	return s->sq_free && s->sfree >= min_u32(RSOCK_SNDLOWAT, rs->sbuf_size);
}

bool rsock_stream_can_send(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;

	if (rs->state != RSOCK_CONNECTED || !s->wr_open || !can_write(rs) ||
	    s->sseq == s->sseq_limit)
		return false;
	take_target(s);
	return s->target.length;
}

int rsock_stream_post_msg(struct rsock *rs, struct ibv_send_wr *wr,
			  uint32_t msg)
{
	struct ibv_sge four = { .addr = (uintptr_t)&msg,
				.length = sizeof(msg) };
	struct ibv_send_wr said = {
		.wr_id = wr->wr_id,
		.sg_list = &four,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_INLINE,
	}, *bad;

	if (!rs->s.plain) {
		wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
		wr->imm_data = htonl(msg);
		return ibv_post_send(rs->s.id->qp, wr, &bad);
	}
	if (!wr->num_sge)
		return ibv_post_send(rs->s.id->qp, &said, &bad);
	wr->opcode = IBV_WR_RDMA_WRITE;
	wr->wr_id = rsock_wr_id(RSOCK_WR_PART, 0);
	wr->next = &said;
	return ibv_post_send(rs->s.id->qp, wr, &bad);
}

/* A control message, with an entry for the peer's table or without. */
int rsock_stream_post_ctrl(struct rsock *rs, uint32_t msg,
			   const struct rsw_sge *sge)
{
	struct rsock_stream *s = &rs->s;
	uint8_t *copy;
	struct ibv_sge sg;
	struct ibv_send_wr wr = {
		.wr_id = rsock_wr_id(RSOCK_WR_CTRL, 0),
	};
	int err;

	if (sge) {
		copy = s->sbuf + rs->sbuf_size + s->ctrl_next * sizeof(*sge);
		memcpy(copy, sge, sizeof(*sge));
		sg = (struct ibv_sge){ .addr = (uintptr_t)copy,
				       .length = sizeof(*sge),
				       .lkey = s->smr->lkey };
		wr.sg_list = &sg;
		wr.num_sge = 1;
		wr.wr.rdma.remote_addr =
			s->peer_table.addr + s->peer_slot * sizeof(*sge);
		wr.wr.rdma.rkey = s->peer_table.key;
		if (rs->inline_size >= sizeof(*sge))
			wr.send_flags = IBV_SEND_INLINE;
	}
	s->ctrl_out++;
	s->ctrl_next = (s->ctrl_next + 1) % RSOCK_CTRL;
	err = rsock_stream_post_msg(rs, &wr, msg);
	if (err)
		rsock_stream_fail(rs, err);
	return -err;
}

static bool credits_due(const struct rsock *rs)
{
	const struct rsock_stream *s = &rs->s;

	return s->freed >= s->half ||
	       (uint16_t)(s->rseq_limit - s->rseq) <= rs->rq_size / 2;
}

void rsock_stream_give_credits(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;
	struct rsw_sge sge = { .addr = (uintptr_t)(s->rbuf + s->grant_pos),
			       .key = s->rmr->rkey,
			       .length = s->half };

	if (rs->state != RSOCK_CONNECTED || !credits_due(rs) ||
	    s->ctrl_out == RSOCK_CTRL)
		return;
	s->rseq_limit = (uint16_t)(s->rseq + rs->rq_size);
	if (s->freed < s->half) {
		rsock_stream_post_ctrl(rs, rsw_msg(RSW_SGL, s->rseq_limit),
				       NULL);
		return;
	}
	if (s->swap)
		sge = (struct rsw_sge){ .addr = __builtin_bswap64(sge.addr),
					.key = __builtin_bswap32(sge.key),
					.length =
						__builtin_bswap32(sge.length) };
	rsock_stream_post_ctrl(rs, rsw_msg(RSW_SGL, s->rseq_limit), &sge);
	s->freed -= s->half;
	s->writable += s->half;
	s->grant_pos = s->grant_pos ? 0 : s->half;
	s->peer_slot = (s->peer_slot + 1) % s->peer_table.length;
}

/* False if it violates the protocol. */
static bool on_data(struct rsock *rs, uint32_t len)
{
	struct rsock_stream *s = &rs->s;

	if (len > s->writable || s->rmsg_count == rs->rq_size)
		return false;
	if (!len) {
		s->rseq++;
		return true;
	}
	s->rmsg[(s->rmsg_head + s->rmsg_count) % rs->rq_size] = len;
	s->rmsg_count++;
	s->writable -= len;
	s->unread += len;
	return true;
}

static void on_ctrl(struct rsock *rs, uint32_t value)
{
	struct rsock_stream *s = &rs->s;

	/* As long as our own end is not announced, the stream goes on. */
	if (value == RSW_SHUTDOWN && !s->end_sent) {
		s->rd_open = false;
	} else if (value == RSW_DISCONNECT || value == RSW_SHUTDOWN) {
		rs->state = RSOCK_DISCONNECTED;
		rs->why = ECONNRESET;
		s->rd_open = s->wr_open = false;
	}
}

static void on_recv(struct rsock *rs, const struct ibv_wc *wc)
{
	struct rsock_stream *s = &rs->s;
	uint32_t msg = s->plain ? rsock_stream_msgs(rs)[(uint32_t)wc->wr_id] :
				  ntohl(wc->imm_data);

	/* The peer may write before its RTU has come. */
	if (rs->state == RSOCK_ACCEPTING) {
		rdma_notify(s->id, IBV_EVENT_COMM_EST);
		rs->state = RSOCK_CONNECTED;
	}
	if (rs->state != RSOCK_CONNECTED)
		return;
	if (s->plain ? wc->byte_len != sizeof(msg) :
		       !(wc->wc_flags & IBV_WC_WITH_IMM)) {
		rsock_stream_fail(rs, EPROTO);
		return;
	}
	if (s->plain && s->swap)
		msg = __builtin_bswap32(msg);
	switch (rsw_msg_op(msg)) {
	case RSW_SGL:
		s->sseq_limit = (uint16_t)rsw_msg_value(msg);
		s->table_news = true;
		return;
	case RSW_CTRL:
		on_ctrl(rs, rsw_msg_value(msg));
		return;
	case RSW_IOMAP: /* counts as a message, and is done with */
		s->rseq++;
		return;
	case RSW_DATA:
		if (on_data(rs, rsw_msg_value(msg)))
			return;
	}
	rsock_stream_fail(rs, EPROTO);
}

static int wc_errno(enum ibv_wc_status status)
{
	if (status == IBV_WC_RETRY_EXC_ERR ||
	    status == IBV_WC_RNR_RETRY_EXC_ERR)
		return ETIMEDOUT;
	return ECONNRESET;
}

static void on_sent(struct rsock *rs, const struct ibv_wc *wc)
{
	struct rsock_stream *s = &rs->s;

	if (wc->wr_id >> 32 == RSOCK_WR_CTRL) {
		s->ctrl_out--;
	} else if (wc->wr_id >> 32 == RSOCK_WR_SEND) {
		s->sq_free++;
		s->sfree += (uint32_t)wc->wr_id;
	}
	if (wc->status != IBV_WC_SUCCESS && rs->state == RSOCK_CONNECTED)
		rsock_stream_fail(rs, wc_errno(wc->status));
}

void rsock_stream_progress(struct rsock *rs)
{
	struct ibv_wc wc[16];
	uint32_t recvs, rounds = 0;
	int i, n, err;

	/* Bounded: the peer may send faster than this thread polls. */
	do {
		if (!rsock_stream_has_cq(rs))
			return;
		n = ibv_poll_cq(rs->s.cq, ARRAY_SIZE(wc), wc);
		recvs = 0;
		for (i = 0; i < n; i++) {
			if (wc[i].wr_id >> 32 != RSOCK_WR_RECV) {
				on_sent(rs, &wc[i]);
			} else if (wc[i].status == IBV_WC_SUCCESS) {
				recvs++;
				on_recv(rs, &wc[i]);
			}
		}
		if (recvs && rsock_stream_has_cq(rs)) {
			err = rsock_stream_post_recvs(rs, recvs);
			if (err && rs->state != RSOCK_DISCONNECTED)
				rsock_stream_fail(rs, -err);
		}
	} while (n == ARRAY_SIZE(wc) && ++rounds < 64);
	if (n < 0)
		rsock_stream_fail(rs, EIO);
	rsock_stream_give_credits(rs);
	/* A peer that was killed leaves no completion, only an event. */
	if (n || ++rs->s.idle_polls < IDLE_POLLS)
		return;
	rs->s.idle_polls = 0;
	rsock_stream_cm(rs);
}

/*
 * An RDMA write of length 0: the peer's queue pair acknowledges it, and its
 * program does not notice.
 */
void rsock_stream_keepalive(struct rsock *rs)
{
	struct ibv_send_wr wr = { .wr_id = rsock_wr_id(RSOCK_WR_CTRL, 0),
				  .opcode = IBV_WR_RDMA_WRITE },
			   *bad;

	pthread_mutex_lock(&rs->lock);
	if (rs->state == RSOCK_CONNECTED && !rs->closing) {
		rsock_stream_progress(rs);
		if (rs->state == RSOCK_CONNECTED &&
		    rs->s.ctrl_out < RSOCK_CTRL) {
			rs->s.ctrl_out++;
			if (ibv_post_send(rs->s.id->qp, &wr, &bad))
				rsock_stream_fail(rs, EIO);
		}
		rsock_wake(rs, -1);
	}
	pthread_mutex_unlock(&rs->lock);
}
