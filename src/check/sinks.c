/*
 * sinks.c - memory that reads and atomics which are posted will write to
 *
 * It is hashed when they are posted, and again when the first of what they have
 * asked for is here and not yet stored. What has changed it meanwhile is the
 * program, unless something else came there that passes through this device.
 *
 * The answers of a queue pair come in the order of its requests, so the oldest
 * entry that is like the request is its own, and those before it are of no use.
 */
#include "check_internal.h"

#include "base/bytes.h"

#include <pthread.h>
#include <string.h>

#define SINKS 512u /* that are known at a time, of all queue pairs */

struct sink {
	uint32_t qpn; /* 0: none */
	uint32_t stack;
	uint64_t wr_id, hash;
	uint64_t writes, landed; /* by then */
	uint32_t nsge;
	struct ibv_sge sge[CHECK_SGES];
};

static struct {
	pthread_mutex_t lock; /* innermost */
	uint64_t n;
	struct sink last[SINKS];
} sinks = { .lock = PTHREAD_MUTEX_INITIALIZER };

void check_sinks_forked(void)
{
	pthread_mutex_init(&sinks.lock, NULL);
	memset(sinks.last, 0, sizeof(sinks.last));
}

void check_sink_posted(struct ibv_qp *ib, const struct ibv_send_wr *wr,
		       uint32_t stack)
{
	struct sink s = {
		.qpn = ib->qp_num,
		.stack = stack,
		.wr_id = wr->wr_id,
		.writes = check_writes(),
		.landed = check_landings(),
		.nsge = (uint32_t)wr->num_sge,
	};

	if (s.nsge > CHECK_SGES ||
	    !check_hash(ib, wr->sg_list, s.nsge, &s.hash))
		return;
	memcpy(s.sge, wr->sg_list, s.nsge * sizeof(s.sge[0]));
	pthread_mutex_lock(&sinks.lock);
	sinks.last[sinks.n++ % SINKS] = s;
	pthread_mutex_unlock(&sinks.lock);
}

void check_sinks_end(uint32_t qpn)
{
	pthread_mutex_lock(&sinks.lock);
	for (uint32_t i = 0; i < SINKS; i++)
		if (sinks.last[i].qpn == qpn)
			sinks.last[i].qpn = 0;
	pthread_mutex_unlock(&sinks.lock);
}

static bool is_it(const struct sink *s, uint64_t wr_id,
		  const struct ibv_sge *sge, uint32_t n)
{
	return s->wr_id == wr_id && s->nsge == n &&
	       !memcmp(s->sge, sge, n * sizeof(*sge));
}

/* Takes the request's out, and those of its queue pair before it. */
static bool take_sink(uint32_t qpn, uint64_t wr_id, const struct ibv_sge *sge,
		      uint32_t n, struct sink *out)
{
	const uint64_t from = sinks.n - min_u64(sinks.n, SINKS);
	uint64_t i = from;

	for (; i < sinks.n; i++) {
		const struct sink *s = &sinks.last[i % SINKS];

		if (s->qpn == qpn && is_it(s, wr_id, sge, n))
			break;
	}
	if (i == sinks.n)
		return false;
	*out = sinks.last[i % SINKS];
	for (uint64_t k = from; k <= i; k++)
		if (sinks.last[k % SINKS].qpn == qpn)
			sinks.last[k % SINKS].qpn = 0;
	return true;
}

/* Whether something else has come there, or may have. */
static bool is_touched(const struct sink *s)
{
	if (s->writes != check_writes())
		return true;
	for (uint32_t i = 0; i < s->nsge; i++)
		if (check_landed(s->sge[i].addr, s->sge[i].length, s->landed))
			return true;
	return false;
}

static void check_sink(struct ibv_qp *ib, const struct sink *s)
{
	const struct check_side side = { "the work request was posted",
					 s->stack };
	uint64_t hash;

	if (is_touched(s) || !check_hash(ib, s->sge, s->nsge, &hash) ||
	    hash == s->hash)
		return;
	check_report(
		CHECK_RESULT, s->qpn, &side, 1,
		"QP 0x%06x: memory of work request 0x%llx [0x%llx, +%u), lkey "
		"0x%08x, has changed between ibv_post_send() and the arrival "
		"of the data that it requested, which is stored there now",
		s->qpn, (unsigned long long)s->wr_id,
		(unsigned long long)s->sge[0].addr, s->sge[0].length,
		s->sge[0].lkey);
}

void check_arriving(struct ibv_qp *ib, uint64_t wr_id,
		    const struct ibv_sge *sge, uint32_t n, bool first)
{
	struct sink s;
	bool known = false;

	if (first && n <= CHECK_SGES) {
		pthread_mutex_lock(&sinks.lock);
		known = take_sink(ib->qp_num, wr_id, sge, n, &s);
		pthread_mutex_unlock(&sinks.lock);
	}
	if (known)
		check_sink(ib, &s);
	check_came(sge, n);
}
