/*
 * data.c - streams: data by RDMA writes into granted buffers
 *
 * Receiving. The receive buffer is a ring of two halves. The peer writes into
 * what was granted to it, in order, and tells with immediate data how much it
 * wrote; the lengths wait in rmsg until read. When a half has been read, it is
 * granted again: an RDMA write puts its address into the peer's table, and an
 * RSW_SGL message tells, with the number of messages that the peer may have
 * sent by then. Both sides count messages of data (and of mappings) modulo
 * 2^16.
 *
 * Sending. Data is copied into the send buffer, a ring too, and written from
 * there to the target, the current entry of our table; completions come in
 * order and free the ring. Control messages have entries of the send queue of
 * their own, so that credits never wait for data.
 *
 * The first write of a long send is short and each next twice as long, so that
 * the copies on both sides and the transfer overlap.
 */
#include "base/bytes.h"
#include "internal.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>

#define FIRST_WRITE 2048u
#define CLOSE_WAIT_NS 10000000000ull /* for a peer that takes nothing */
#define IDLE_POLLS 1024 /* between looks for events of the CM */

/* A work request's id: what its completion frees, and how many bytes. */
enum { WR_RECV, WR_SEND, WR_CTRL };

static uint64_t wr_id(uint32_t kind, uint32_t bytes)
{
	return (uint64_t)kind << 32 | bytes;
}

/* Messages carry no data but the immediate: receives have no buffer. */
int rsock_stream_post_recvs(struct rsock *rs, uint32_t n)
{
	struct ibv_recv_wr wr[32], *bad;
	uint32_t i, batch;
	int err;

	for (; n; n -= batch) {
		batch = min_u32(n, ARRAY_SIZE(wr));
		for (i = 0; i < batch; i++)
			wr[i] = (struct ibv_recv_wr){
				.wr_id = wr_id(WR_RECV, 0),
				.next = i + 1 < batch ? &wr[i + 1] : NULL,
			};
		err = ibv_post_recv(rs->s.id->qp, wr, &bad);
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
 * Entries are looked at only after a message has told of one. The peer writes
 * an entry while its neighbour is in use, never one that was not used up.
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

/* A control message, with data for the peer's table or without. */
static int post_ctrl(struct rsock *rs, uint32_t msg, const struct rsw_sge *sge)
{
	struct rsock_stream *s = &rs->s;
	uint8_t *copy;
	struct ibv_sge sg;
	struct ibv_send_wr wr = {
		.wr_id = wr_id(WR_CTRL, 0),
		.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.imm_data = htonl(msg),
	}, *bad;
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
	err = ibv_post_send(s->id->qp, &wr, &bad);
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

static void give_credits(struct rsock *rs)
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
		post_ctrl(rs, rsw_msg(RSW_SGL, s->rseq_limit), NULL);
		return;
	}
	if (s->swap)
		sge = (struct rsw_sge){ .addr = __builtin_bswap64(sge.addr),
					.key = __builtin_bswap32(sge.key),
					.length =
						__builtin_bswap32(sge.length) };
	post_ctrl(rs, rsw_msg(RSW_SGL, s->rseq_limit), &sge);
	s->freed -= s->half;
	s->writable += s->half;
	s->grant_pos = s->grant_pos ? 0 : s->half;
	s->peer_slot = (s->peer_slot + 1) % s->peer_table.length;
}

/* False if no peer that keeps the protocol could have sent it. */
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

	/* Who has not told its own end yet still must, so it goes on. */
	if (value == RSW_SHUTDOWN && !s->told) {
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
	uint32_t msg = ntohl(wc->imm_data);

	/* The peer may write before its RTU has come. */
	if (rs->state == RSOCK_ACCEPTING) {
		rdma_notify(s->id, IBV_EVENT_COMM_EST);
		rs->state = RSOCK_CONNECTED;
	}
	if (rs->state != RSOCK_CONNECTED)
		return;
	if (!(wc->wc_flags & IBV_WC_WITH_IMM)) {
		rsock_stream_fail(rs, EPROTO);
		return;
	}
	switch (rsw_msg_op(msg)) {
	case RSW_SGL:
		s->sseq_limit = (uint16_t)rsw_msg_value(msg);
		s->table_news = true;
		return;
	case RSW_CTRL:
		on_ctrl(rs, rsw_msg_value(msg));
		return;
	case RSW_IOMAP: /* it counts as a message, and is taken at once */
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

	if (wc->wr_id >> 32 == WR_CTRL) {
		s->ctrl_out--;
	} else {
		s->sq_free++;
		s->sfree += (uint32_t)wc->wr_id;
	}
	if (wc->status != IBV_WC_SUCCESS && rs->state == RSOCK_CONNECTED)
		rsock_stream_fail(rs, wc_errno(wc->status));
}

/* A stream that both sides have ended may still have to deliver what it sent.
 */
static bool has_cq(const struct rsock *rs)
{
	return rs->state == RSOCK_ACCEPTING || rs->state == RSOCK_CONNECTED ||
	       rs->state == RSOCK_DISCONNECTED;
}

void rsock_stream_progress(struct rsock *rs)
{
	struct ibv_wc wc[16];
	uint32_t recvs, rounds = 0;
	int i, n, err;

	/* With a limit: the peer may send faster than we look. */
	do {
		if (!has_cq(rs))
			return;
		n = ibv_poll_cq(rs->s.cq, ARRAY_SIZE(wc), wc);
		recvs = 0;
		for (i = 0; i < n; i++) {
			if (wc[i].wr_id >> 32 != WR_RECV) {
				on_sent(rs, &wc[i]);
			} else if (wc[i].status == IBV_WC_SUCCESS) {
				recvs++;
				on_recv(rs, &wc[i]);
			}
		}
		if (recvs && has_cq(rs)) {
			err = rsock_stream_post_recvs(rs, recvs);
			if (err && rs->state != RSOCK_DISCONNECTED)
				rsock_stream_fail(rs, -err);
		}
	} while (n == ARRAY_SIZE(wc) && ++rounds < 64);
	if (n < 0)
		rsock_stream_fail(rs, EIO);
	give_credits(rs);
	/* A peer that was killed says nothing here. */
	if (n || ++rs->s.idle_polls < IDLE_POLLS)
		return;
	rs->s.idle_polls = 0;
	rsock_stream_cm(rs);
}

static bool readable(struct rsock *rs)
{
	return rs->s.unread || !rs->s.rd_open || rs->closing;
}

static bool sendable(struct rsock *rs)
{
	return !rs->s.wr_open || rs->closing || rsock_stream_can_send(rs);
}

static uint64_t deadline(uint64_t timeout_ns)
{
	return timeout_ns ? rsock_now_ns() + timeout_ns : 0;
}

/* Under rlock and lock: n bytes have been read, and all was in one piece. */
static void consume(struct rsock *rs, uint32_t n)
{
	struct rsock_stream *s = &rs->s;
	uint32_t *len, part;

	s->unread -= n;
	s->freed += n;
	s->rpos = (s->rpos + n) % (s->half * 2);
	while (n) {
		len = &s->rmsg[s->rmsg_head];
		part = min_u32(n, *len);
		*len -= part;
		n -= part;
		if (*len)
			break;
		s->rmsg_head = (s->rmsg_head + 1) % rs->rq_size;
		s->rmsg_count--;
		s->rseq++;
	}
	give_credits(rs);
}

/* To the next piece that is not used up. */
static void skip_empty(struct rsock_iter *it)
{
	while (it->iovcnt && it->off == it->iov->iov_len) {
		it->iov++;
		it->iovcnt--;
		it->off = 0;
	}
}

/* The caller has made sure that there is room. */
static void copy_out(struct rsock_iter *it, const uint8_t *p, size_t len)
{
	size_t part, left = len;

	while (left) {
		skip_empty(it);
		part = min_u64(left, it->iov->iov_len - it->off);
		memcpy((char *)it->iov->iov_base + it->off, p, part);
		p += part;
		left -= part;
		it->off += part;
	}
}

static size_t iov_total(const struct iovec *iov, int iovcnt)
{
	size_t total = 0;
	int i;

	for (i = 0; i < iovcnt; i++)
		if (__builtin_add_overflow(total, iov[i].iov_len, &total))
			return SIZE_MAX;
	return total;
}

/*
 * Under rlock and lock, which is let go of while copying. Reads what is there,
 * up to len, and leaves it there when peeking. Without it, nothing is copied.
 */
static size_t read_some(struct rsock *rs, struct rsock_iter *it, size_t len,
			bool peek)
{
	struct rsock_stream *s = &rs->s;
	uint32_t pos = s->rpos, ring = s->half * 2, left, n;
	size_t done = 0;

	left = (uint32_t)min_u64(len, s->unread);
	while (left) {
		n = min_u32(left, ring - pos);
		pthread_mutex_unlock(&rs->lock);
		if (it)
			copy_out(it, s->rbuf + pos, n);
		pthread_mutex_lock(&rs->lock);
		if (!peek)
			consume(rs, n);
		pos = (pos + n) % ring;
		left -= n;
		done += n;
	}
	return done;
}

/* Why there is nothing to read: 0 is the end of the stream. */
static int recv_end(const struct rsock *rs)
{
	if (rs->closing)
		return -EBADF;
	return rs->state == RSOCK_FAILED || rs->s.reset ? -rs->why : 0;
}

/*
 * Waits for ready() under turn (slock or rlock) and lock. Nobody sleeps with
 * turn: who must not block could not even find out that he would.
 */
static int wait_turn(struct rsock *rs, pthread_mutex_t *turn,
		     bool (*ready)(struct rsock *rs), int flags, uint64_t until)
{
	int err;

	for (;;) {
		err = rsock_wait(rs, ready, true, until);
		if (err != -EAGAIN || rsock_nonblock(rs, flags))
			return err;
		pthread_mutex_unlock(turn);
		err = rsock_wait(rs, ready, false, until);
		pthread_mutex_unlock(&rs->lock);
		pthread_mutex_lock(turn);
		pthread_mutex_lock(&rs->lock);
		/* Another may have been faster. */
		if (err || ready(rs))
			return err;
	}
}

ssize_t rsock_stream_recv(struct rsock *rs, const struct iovec *iov, int iovcnt,
			  int flags)
{
	struct rsock_iter it = { iov, iovcnt, 0 };
	size_t len = iov_total(iov, iovcnt), done = 0;
	uint64_t until = deadline(rs->rcvtimeo_ns);
	int err;

	if (flags & (MSG_OOB | MSG_ERRQUEUE))
		return flags & MSG_OOB ? -EINVAL : -EAGAIN;
	if (len > SSIZE_MAX)
		return -EINVAL;
	err = rsock_stream_settle(rs, flags, until);
	if (err || !len)
		return err;
	pthread_mutex_lock(&rs->rlock);
	pthread_mutex_lock(&rs->lock);
	do {
		err = rs->s.unread ? 0
				   : wait_turn(rs, &rs->rlock, readable, flags,
					       until);
		if (err)
			break;
		if (!rs->s.unread || rs->closing) {
			err = recv_end(rs);
			break;
		}
		done += read_some(rs, flags & MSG_TRUNC ? NULL : &it,
				  len - done, flags & MSG_PEEK);
	} while (done < len && (flags & MSG_WAITALL) && !(flags & MSG_PEEK));
	pthread_mutex_unlock(&rs->lock);
	pthread_mutex_unlock(&rs->rlock);
	return done ? (ssize_t)done : err;
}

/* What sendable() means: 0, or why nothing can be sent any more. */
static int send_end(const struct rsock *rs)
{
	if (rs->closing)
		return -EBADF;
	if (rs->s.wr_open)
		return 0;
	/* Closed by us, or by the peer. */
	if (rs->state == RSOCK_CONNECTED)
		return -EPIPE;
	return rs->state == RSOCK_FAILED ? -rs->why : -ECONNRESET;
}

int rsock_stream_wait_send(struct rsock *rs, int flags, uint64_t deadline_ns)
{
	int err;

	if (rsock_stream_can_send(rs))
		return 0;
	err = rsock_wait(rs, sendable, rsock_nonblock(rs, flags), deadline_ns);
	return err ? err : send_end(rs);
}

static void copy_in(struct rsock_iter *it, uint8_t *p, size_t len)
{
	size_t part;

	while (len) {
		skip_empty(it);
		part = min_u64(len, it->iov->iov_len - it->off);
		memcpy(p, (const char *)it->iov->iov_base + it->off, part);
		p += part;
		len -= part;
		it->off += part;
	}
}

ssize_t rsock_stream_write(struct rsock *rs, enum rsock_write kind,
			   struct rsock_iter *it, uint32_t len, uint64_t addr,
			   uint32_t key, uint32_t imm)
{
	struct rsock_stream *s = &rs->s;
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM },
			   *bad;
	uint32_t pos = s->spos, end = rs->sbuf_size - pos, bytes = 0;
	bool in_place;
	int err;

	skip_empty(it);
	in_place = len <= rs->inline_size && len <= it->iov->iov_len - it->off;
	if (!in_place) {
		/* An entry is written whole, so it may not wrap. */
		if (kind == RSOCK_WRITE_IOMAP && end < len) {
			bytes = end;
			pos = 0;
		} else {
			len = min_u32(min_u32(len, RSOCK_TRANSFER),
				      min_u32(s->sfree, end));
		}
		bytes += len;
		s->sfree -= bytes;
		s->spos = (pos + len) % rs->sbuf_size;
	}
	/* All that the receiver must hear of counts as a message. */
	if (kind != RSOCK_WRITE_DIRECT)
		s->sseq++;
	s->sq_free--;
	if (kind == RSOCK_WRITE_DATA) {
		s->target.addr += len;
		s->target.length -= len;
		imm = rsw_msg(RSW_DATA, len);
	}
	pthread_mutex_unlock(&rs->lock);

	wr.wr_id = wr_id(WR_SEND, bytes);
	wr.imm_data = htonl(imm);
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = key;
	if (kind == RSOCK_WRITE_DIRECT)
		wr.opcode = IBV_WR_RDMA_WRITE;
	if (in_place) {
		sge.addr = (uintptr_t)it->iov->iov_base + it->off;
		it->off += len;
	} else {
		copy_in(it, s->sbuf + pos, len);
		sge.addr = (uintptr_t)(s->sbuf + pos);
		sge.lkey = s->smr->lkey;
	}
	if (len <= rs->inline_size)
		wr.send_flags = IBV_SEND_INLINE;
	sge.length = len;
	err = ibv_post_send(s->id->qp, &wr, &bad);
	if (!err)
		return len;
	pthread_mutex_lock(&rs->lock);
	rsock_stream_fail(rs, err);
	pthread_mutex_unlock(&rs->lock);
	return -err;
}

ssize_t rsock_stream_send(struct rsock *rs, const struct iovec *iov, int iovcnt,
			  int flags)
{
	struct rsock_stream *s = &rs->s;
	struct rsock_iter it = { iov, iovcnt, 0 };
	size_t len = iov_total(iov, iovcnt), done = 0;
	uint64_t until = deadline(rs->sndtimeo_ns);
	uint32_t part, next = FIRST_WRITE;
	ssize_t n;
	int err;

	if (flags & MSG_OOB)
		return -EOPNOTSUPP;
	if (len > SSIZE_MAX)
		return -EINVAL;
	err = rsock_stream_settle(rs, flags, until);
	if (err)
		return err;
	pthread_mutex_lock(&rs->slock);
	pthread_mutex_lock(&rs->lock);
	if (s->maps_pending)
		err = rsock_iomap_flush(rs, flags, until);
	while (!err && done < len) {
		if (!rsock_stream_can_send(rs)) {
			err = wait_turn(rs, &rs->slock, sendable, flags, until);
			if (!err)
				err = send_end(rs);
			if (err)
				break;
		}
		part = (uint32_t)min_u64(len - done,
					 min_u32(next, s->target.length));
		next = min_u32(next * 2, RSOCK_TRANSFER);
		n = rsock_stream_write(rs, RSOCK_WRITE_DATA, &it, part,
				       s->target.addr, s->target.key, 0);
		pthread_mutex_lock(&rs->lock);
		if (n < 0)
			err = (int)n;
		else
			done += (size_t)n;
	}
	pthread_mutex_unlock(&rs->lock);
	pthread_mutex_unlock(&rs->slock);
	return done ? (ssize_t)done : err;
}

static bool ctrl_free(struct rsock *rs)
{
	return rs->s.ctrl_out < RSOCK_CTRL || rs->state != RSOCK_CONNECTED;
}

/* Who says good-bye does so whatever signals come: 0 or -EAGAIN. */
static int wait_out(struct rsock *rs, bool (*ready)(struct rsock *rs),
		    uint64_t until)
{
	int err;

	do {
		err = rsock_wait(rs, ready, false, until);
	} while (err == -EINTR && rsock_now_ns() < until);
	return err == -EINTR ? -EAGAIN : err;
}

/* Under lock. */
static int send_ctrl(struct rsock *rs, enum rsw_ctrl value, uint64_t until)
{
	/* No wait where none is needed: what it does may take the entry. */
	int err = ctrl_free(rs) ? 0 : wait_out(rs, ctrl_free, until);

	if (err || rs->state != RSOCK_CONNECTED)
		return err;
	rs->s.told = true;
	return post_ctrl(rs, rsw_msg(RSW_CTRL, value), NULL);
}

/* Under lock; nothing is said when the peer must still be able to send. */
static int shut(struct rsock *rs, int how, uint64_t until)
{
	struct rsock_stream *s = &rs->s;
	bool wr_was_open = s->wr_open;

	if (how != SHUT_WR)
		s->rd_open = false;
	if (how != SHUT_RD)
		s->wr_open = false;
	rsock_wake(rs, -1);
	if (!s->wr_open && !s->rd_open)
		return send_ctrl(rs, RSW_DISCONNECT, until);
	if (!s->wr_open && wr_was_open)
		return send_ctrl(rs, RSW_SHUTDOWN, until);
	return 0;
}

int rsock_stream_shutdown(struct rsock *rs, int how)
{
	uint64_t until = rsock_now_ns() + CLOSE_WAIT_NS;
	int err;

	if (how != SHUT_RD && how != SHUT_WR && how != SHUT_RDWR)
		return -EINVAL;
	err = rsock_stream_settle(rs, 0, until);
	if (err)
		return err;
	pthread_mutex_lock(&rs->lock);
	if (rs->state == RSOCK_CONNECTED && (rs->s.rd_open || rs->s.wr_open))
		err = shut(rs, how, until);
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static bool all_sent(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;

	return !has_cq(rs) || s->gone ||
	       (!s->ctrl_out && s->sq_free == rs->sq_size - RSOCK_CTRL);
}

bool rsock_stream_over(struct rsock *rs)
{
	rsock_revents(rs, 0); /* does what there is to do */
	if (rs->state == RSOCK_ACCEPTING)
		return false;
	if (rs->state == RSOCK_CONNECTED && (rs->s.rd_open || rs->s.wr_open)) {
		if (!ctrl_free(rs))
			return false;
		shut(rs, SHUT_RDWR, 0);
	}
	return rs->state < RSOCK_CONNECTED || all_sent(rs);
}

void rsock_stream_close(struct rsock *rs)
{
	uint64_t now = rsock_now_ns(), last = now + CLOSE_WAIT_NS;
	/* What the peer takes at once, most often. */
	uint64_t wait_ns = rsock_config()->polling_ns;
	bool over;

	if (rs->linger.on)
		wait_ns = (uint64_t)rs->linger.seconds * 1000000000u;
	over = rs->linger.on && !wait_ns;
	pthread_mutex_lock(&rs->lock);
	if (!over)
		over = !wait_out(rs, rsock_stream_over, now + wait_ns);
	pthread_mutex_unlock(&rs->lock);
	if (!over && rsock_linger(rs, last))
		return;
	if (!over) {
		pthread_mutex_lock(&rs->lock);
		wait_out(rs, rsock_stream_over, last);
		pthread_mutex_unlock(&rs->lock);
	}
	rsock_put(rs);
}

/*
 * An RDMA write of nothing: the peer's queue pair acknowledges it, and the peer
 * itself does not notice.
 */
void rsock_stream_keepalive(struct rsock *rs)
{
	struct ibv_send_wr wr = { .wr_id = wr_id(WR_CTRL, 0),
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
