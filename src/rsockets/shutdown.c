/*
 * shutdown.c - how a stream ends: rshutdown(), rclose()
 *
 * Each side says once that it sends no more. rclose() waits as long as SO_LINGER
 * asks for, else for polling_time; then the thread of linger.c delivers what is
 * left, within CLOSE_WAIT_NS.
 */
#include "rsock_internal.h"

#include <errno.h>
#include <sys/socket.h>

#define CLOSE_WAIT_NS 10000000000ull /* for a peer that takes nothing */

static bool ctrl_free(struct rsock *rs)
{
	return rs->s.ctrl_out < RSOCK_CTRL || rs->state != RSOCK_CONNECTED;
}

/* Waits, whatever signals come: 0 or -EAGAIN. */
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
	/*
	 * No rsock_wait() where none is needed: its progress may use the entry.
	 */
	int err = ctrl_free(rs) ? 0 : wait_out(rs, ctrl_free, until);

	if (err || rs->state != RSOCK_CONNECTED)
		return err;
	rs->s.end_sent = true;
	return rsock_stream_post_ctrl(rs, rsw_msg(RSW_CTRL, value), NULL);
}

/* Under lock; no message as long as the peer may still send. */
static int shut_rsock(struct rsock *rs, int how, uint64_t until)
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
		err = shut_rsock(rs, how, until);
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static bool all_sent(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;

	return !rsock_stream_has_cq(rs) || s->gone ||
	       (!s->ctrl_out && s->sq_free == rs->sq_size - RSOCK_CTRL);
}

bool rsock_stream_over(struct rsock *rs)
{
	rsock_revents(rs, 0); /* makes progress */
	if (rs->state == RSOCK_ACCEPTING)
		return false;
	if (rs->state == RSOCK_CONNECTED && (rs->s.rd_open || rs->s.wr_open)) {
		if (!ctrl_free(rs))
			return false;
		shut_rsock(rs, SHUT_RDWR, 0);
	}
	return rs->state < RSOCK_CONNECTED || all_sent(rs);
}

void rsock_stream_close(struct rsock *rs)
{
	uint64_t now = rsock_now_ns(), last = now + CLOSE_WAIT_NS;
	/* Most often the peer takes everything at once. */
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
