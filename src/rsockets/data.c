/*
 * data.c - streams: bytes from and to programs
 *
 * Receiving copies out of the receive buffer what the peer has written there.
 * Sending copies into the send buffer, a ring too, and writes from there to the
 * target, the current entry of our table; completions come in order and free
 * the ring. queue.c has the queue pair behind both.
 *
 * The first write of a long send is short and each next twice as long, so that
 * the copies on both sides and the transfer overlap.
 */
#include "base/bytes.h"
#include "rsock_internal.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/socket.h>

#define FIRST_WRITE 2048u

static bool data_readable(struct rsock *rs)
{
	return rs->s.unread || !rs->s.rd_open || rs->closing;
}

static bool data_sendable(struct rsock *rs)
{
	return !rs->s.wr_open || rs->closing || rsock_stream_can_send(rs);
}

/* Under rlock and lock: n contiguous bytes have been read. */
static void consume_data(struct rsock *rs, uint32_t n)
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
	rsock_stream_give_credits(rs);
}

/* Moves on to the next piece that is not used up. */
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
 * Under rlock and lock, which is released while copying. Reads what is there,
 * up to len; with peek it stays there. it: NULL to discard.
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
			consume_data(rs, n);
		pos = (pos + n) % ring;
		left -= n;
		done += n;
	}
	return done;
}

/* Why nothing can be read: 0 is the end of the stream. */
static int recv_end(const struct rsock *rs)
{
	if (rs->closing)
		return -EBADF;
	return rs->state == RSOCK_FAILED || rs->s.reset ? -rs->why : 0;
}

/*
 * Waits for ready() under turn (slock or rlock) and lock. It sleeps without
 * turn: otherwise a call that must not block would wait for turn.
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
		/* Another thread may have been faster. */
		if (err || ready(rs))
			return err;
	}
}

ssize_t rsock_stream_recv(struct rsock *rs, const struct iovec *iov, int iovcnt,
			  int flags)
{
	struct rsock_iter it = { iov, iovcnt, 0 };
	size_t len = iov_total(iov, iovcnt), done = 0;
	uint64_t until = rsock_deadline(rs->rcvtimeo_ns);
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
		err = rs->s.unread ? 0 :
				     wait_turn(rs, &rs->rlock, data_readable,
					       flags, until);
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

/* 0, or why nothing can be sent any more, once data_sendable(). */
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
	err = rsock_wait(rs, data_sendable, rsock_nonblock(rs, flags),
			 deadline_ns);
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
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	uint32_t pos = s->spos, end = rs->sbuf_size - pos, bytes = 0;
	bool in_place;
	int err;

	skip_empty(it);
	in_place = len <= rs->inline_size && len <= it->iov->iov_len - it->off;
	if (!in_place) {
		/* An entry must be contiguous, so it does not wrap. */
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
	/* Whatever takes a receive of the peer counts as a message. */
	if (kind != RSOCK_WRITE_DIRECT)
		s->sseq++;
	s->sq_free--;
	if (kind == RSOCK_WRITE_DATA) {
		s->target.addr += len;
		s->target.length -= len;
		imm = rsw_msg(RSW_DATA, len);
	}
	pthread_mutex_unlock(&rs->lock);

	wr.wr_id = rsock_wr_id(RSOCK_WR_SEND, bytes);
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = key;
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
	if (kind == RSOCK_WRITE_DIRECT) {
		wr.opcode = IBV_WR_RDMA_WRITE;
		err = ibv_post_send(s->id->qp, &wr, &bad);
	} else {
		err = rsock_stream_post_msg(rs, &wr, imm);
	}
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
	uint64_t until = rsock_deadline(rs->sndtimeo_ns);
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
			err = wait_turn(rs, &rs->slock, data_sendable, flags,
					until);
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
