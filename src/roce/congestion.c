/*
 * congestion.c - how much a reliable requester has in flight, and how fast it
 * sends
 *
 * RoCE's responders take nothing out of order, unless they are ours
 * (reorder.c), so a lost packet costs all that is behind it: a window that is
 * larger than the path needs wastes packets with each loss, and one that halves
 * with each loss closes for good where packets are lost by chance. So the
 * window is not halved: after a loss it is what the path has been seen to
 * deliver in its shortest round trip. Lost packets that have nothing to do with
 * congestion leave it alone; a queue that overflowed drains, since what waits
 * in it has no share in that product.
 *
 * Where no round trip has been measured, the window halves. So it does for a
 * congestion notification (annex A17.9.3), which comes before anything is lost.
 */
#include "roce_internal.h"

#define CWND_MIN (2 * CWND_UNIT)
#define CWND_MAX_BYTES (1024u * 1024)
#define CWND_START_BYTES (256u * 1024)

/* An acknowledgement takes that longer now and then: for its sender's turn, for
 * a batch. */
#define SLACK_NS (40 * USEC)

/*
 * After a loss a flow is paced for so many round trips: bursts are what
 * overflows a short queue. Faster flows send a burst in less time than a timer
 * can tell apart.
 */
#define PACED_RTTS 64
#define PACED_MAX_BYTES_PER_MS (500u * 1000)
#define PACED_BURST_US 50
#define PACED_BURST_PKTS 8
/* A longer wait for a processor counts as this one. */
#define LATE_MAX_NS (10 * MSEC)

void cc_init(struct roce_qp *qp)
{
	struct roce_cc *c = &qp->req.cc;
	const uint32_t mtu = qp->mtu ? qp->mtu : 1024;

	c->cwnd_max = CWND_UNIT * CWND_MAX_BYTES / mtu;
	c->cwnd = CWND_UNIT * CWND_START_BYTES / mtu;
	if (qp->path.lossless)
		c->cwnd = c->cwnd_max;
	c->ssthresh = c->cwnd_max;
}

/* ---- what is measured -------------------------------------------------- */

void cc_sample_begin(struct roce_qp *qp, bool again, uint64_t now_ns)
{
	struct roce_cc *c = &qp->req.cc;

	/* The answer to what is sent behind a gap counts what was before it. */
	if (c->sent_ns || qp->path.lossless || qp->req.rec.mode == SELECTIVE)
		return;
	c->sent_ns = now_ns;
	c->sent_psn = psn_add(qp->req.nxt_psn, PSN_MASK);
	c->sent_una = qp->req.una;
	c->sent_again = again;
	c->doubtful = false;
}

static void sample_rtt(struct roce_cc *c, uint64_t rtt)
{
	uint64_t d;

	if (!c->srtt_ns) {
		c->srtt_ns = c->min_rtt_ns = rtt;
		c->rttvar_ns = rtt / 2;
		return;
	}
	d = rtt > c->srtt_ns ? rtt - c->srtt_ns : c->srtt_ns - rtt;
	c->rttvar_ns = (3 * c->rttvar_ns + d) / 4;
	c->srtt_ns = (7 * c->srtt_ns + rtt) / 8;
	c->min_rtt_ns = min_u64(c->min_rtt_ns, rtt);
}

/* A flow that shares a path finds out in time that it has less of it. */
static void sample_rate(struct roce_cc *c, uint32_t pkts, uint64_t rtt)
{
	uint64_t rate = pkts * (uint64_t)CWND_UNIT * MSEC / (rtt + 1);

	if (!c->recovering)
		c->rate -= c->rate / 8;
	c->rate = max_u32(c->rate, (uint32_t)min_u64(rate, UINT32_MAX));
}

static uint32_t paced_rate(const struct roce_qp *qp)
{
	uint64_t bytes = (uint64_t)qp->req.cc.rate * (qp->mtu + ROCE_HDR_MAX) /
			 CWND_UNIT;

	return (uint32_t)min_u64(bytes + bytes / 4, UINT32_MAX);
}

static void sample_end(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_cc *c = &qp->req.cc;
	uint64_t sent_ns = c->sent_ns;
	uint64_t rtt;

	c->sent_ns = 0;
	/* Whoever handles the answer may have read the clock before another
	 * thread did so for the request: no sample. */
	if (now_ns <= sent_ns)
		return;
	rtt = now_ns - sent_ns;
	/* Karn: the answer may be to what was sent before, or it was lost, and
	 * this one is to the probe. */
	if (!c->srtt_ns || c->guessed) {
		/* Any is better than none, until there is another. */
		c->guessed = c->doubtful || c->sent_again;
		c->srtt_ns = 0;
	} else if (c->doubtful || (c->sent_again && rtt < c->min_rtt_ns)) {
		return;
	}
	sample_rtt(c, rtt);
	sample_rate(c, (uint32_t)psn_diff(qp->req.una, c->sent_una), rtt);
	if (qp->paced)
		qp->pace.rate = max_u32(paced_rate(qp), PACE_MIN_BYTES_PER_MS);
}

/* ---- the window -------------------------------------------------------- */

/* n packets have arrived. */
static void cwnd_widen(struct roce_cc *c, uint32_t n)
{
	uint32_t add;

	n = min_u32(n, c->cwnd_max / CWND_UNIT);
	add = c->cwnd < c->ssthresh ? n * CWND_UNIT :
				      n * CWND_UNIT * CWND_UNIT / c->cwnd;
	c->cwnd = min_u32(c->cwnd + add, c->cwnd_max);
}

void cc_acked(struct roce_qp *qp, uint32_t n, uint64_t now_ns)
{
	struct roce_requester *r = &qp->req;
	struct roce_cc *c = &r->cc;

	if (c->sent_ns && psn_diff(r->una, c->sent_psn) > 0)
		sample_end(qp, now_ns);
	if (c->recovering && psn_diff(r->una, c->recover_psn) >= 0)
		c->recovering = c->undoable = c->silent = false;
	if (c->cwnd < c->cwnd_max)
		cwnd_widen(c, n);
}

/* Until what is on its way has arrived. */
static void cwnd_recover(struct roce_qp *qp)
{
	qp->req.cc.recovering = true;
	qp->req.cc.recover_psn = qp->req.end_psn;
}

static void note_undo(struct roce_cc *c)
{
	if (c->undoable)
		return;
	c->undoable = true;
	c->undo_cwnd = c->cwnd;
	c->undo_ssthresh = c->ssthresh;
}

static void cwnd_narrow(struct roce_cc *c, uint32_t cwnd)
{
	c->cwnd = min_u32(c->cwnd, max_u32(cwnd, CWND_MIN));
	c->ssthresh = c->cwnd;
}

/* What the path has delivered in its shortest round trip, and would while the
 * process waits for a processor. */
static uint32_t path_delivered(const struct roce_cc *c)
{
	uint64_t n = c->rate * (c->min_rtt_ns + SLACK_NS + c->wait_ns) / MSEC;

	return (uint32_t)min_u64(n, c->cwnd_max);
}

static void pace_begin(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_pace *p = &qp->pace;
	const uint32_t rate = paced_rate(qp);

	if (!qp->req.cc.rate || rate >= PACED_MAX_BYTES_PER_MS) {
		qp->paced = false;
		return;
	}
	p->rate = max_u32(rate, PACE_MIN_BYTES_PER_MS);
	p->burst = max_u32(p->rate / (1000 / PACED_BURST_US),
			   PACED_BURST_PKTS * (qp->mtu + ROCE_HDR_MAX));
	p->slow_until_ns = now_ns + PACED_RTTS * qp->req.cc.srtt_ns;
	if (!qp->paced) {
		p->bytes = p->burst;
		p->at_ns = now_ns;
	}
	qp->paced = true;
}

void cc_lost(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_cc *c = &qp->req.cc;

	if (qp->path.lossless)
		return;
	note_undo(c);
	c->silent = false;
	cwnd_recover(qp);
	/* Several losses in one round trip say as much as one. */
	if (c->cut_ns && now_ns < c->cut_ns + c->srtt_ns)
		return;
	c->cut_ns = now_ns;
	c->cwnd = max_u32(c->cwnd, c->undo_cwnd); /* silence had closed it */
	c->rate -= c->rate / 16;
	cwnd_narrow(c, c->rate ? path_delivered(c) : c->cwnd / 2);
	pace_begin(qp, now_ns);
}

void cc_silent(struct roce_qp *qp)
{
	struct roce_cc *c = &qp->req.cc;

	if (qp->path.lossless)
		return;
	c->silent |= !c->undoable;
	note_undo(c);
	cwnd_recover(qp);
	c->ssthresh = max_u32(c->undo_cwnd / 2, CWND_MIN);
	c->cwnd = CWND_MIN;
	if (c->srtt_ns)
		c->sent_ns = 0;
}

void cc_congested(struct roce_qp *qp)
{
	struct roce_cc *c = &qp->req.cc;

	/* Once for what is on its way. */
	if (c->recovering || qp->path.lossless)
		return;
	cwnd_recover(qp);
	cwnd_narrow(c, c->cwnd / 2);
}

void cc_not_lost(struct roce_qp *qp)
{
	struct roce_cc *c = &qp->req.cc;

	if (!c->undoable)
		return;
	c->recovering = c->undoable = c->silent = false;
	c->cwnd = c->undo_cwnd;
	c->ssthresh = c->undo_ssthresh;
	qp->paced = false;
}

void cc_heard(struct roce_qp *qp)
{
	if (qp->req.cc.silent)
		cc_not_lost(qp);
}

/* ---- pace -------------------------------------------------------------- */

/* A QP that goes on later than it might had no processor: it catches up. */
void pace_expire(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_pace *p = &qp->pace;
	struct roce_cc *c = &qp->req.cc;

	if (!p->next_ns || now_ns < p->next_ns)
		return;
	if (qp->paced) {
		p->late_ns = min_u64(now_ns - p->next_ns, LATE_MAX_NS);
		c->wait_ns = (7 * c->wait_ns + p->late_ns) / 8;
	}
	p->next_ns = 0;
}

/* Who has sent nothing for a while may begin with a burst. */
void pace_refill(struct roce_qp *qp, uint64_t now_ns)
{
	struct roce_pace *p = &qp->pace;
	uint64_t elapsed = now_ns - p->at_ns;
	int64_t most;

	/* Read before another thread did so: nothing has elapsed. */
	if (now_ns < p->at_ns)
		return;
	pace_expire(qp, now_ns);
	p->next_ns = 0;
	if (now_ns >= p->slow_until_ns) {
		qp->paced = false;
		p->rate = PACE_BYTES_PER_MS;
		p->burst = PACE_BURST;
	}
	most = p->burst + (int64_t)(p->late_ns * p->rate / MSEC);
	p->late_ns = 0;
	if (!p->at_ns || elapsed > 10 * MSEC) {
		p->bytes = most;
	} else if (p->bytes < most) { /* of a wait more may be left */
		p->bytes += (int64_t)(elapsed * p->rate / MSEC);
		if (p->bytes > most)
			p->bytes = most;
	}
	p->at_ns = now_ns;
}

void pace_slow(struct roce_qp *qp, uint64_t now_ns)
{
	qp->pace.rate = max_u32(qp->pace.rate / 2, PACE_MIN_BYTES_PER_MS);
	qp->pace.slow_until_ns = now_ns + PACE_SLOW_NS;
	if (!qp->pace.burst)
		qp->pace.burst = PACE_BURST;
}

bool pace_has_room(struct roce_qp *qp)
{
	struct roce_pace *p = &qp->pace;

	if (p->bytes > 0)
		return true;
	/* Until half a burst is allowed: fewer, larger sends. */
	p->next_ns = p->at_ns + 1 +
		     (uint64_t)(p->burst / 2 - p->bytes) * MSEC / p->rate;
	return false;
}
