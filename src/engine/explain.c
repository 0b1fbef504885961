/*
 * explain.c - what became of packets, and why a QP failed, in words
 *
 * Packets that do nothing are always counted. With --explain they are reported
 * when the process ends and, while their number grows, every DROPS_NS; those
 * that are nothing unusual only beside others: a repeated request whose answer
 * was late, and what comes for a QP that its program has ended.
 */
#include "engine_internal.h"

#include "base/gid.h"
#include "base/lines.h"
#include "base/say.h"
#include "hooks/faults.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define DROPS_NS 10000000000
#define OTHERS 4 /* reasons for which no QP drops a packet */

void engine_dropped(struct engine *e, enum roce_drop why)
{
	atomic_fetch_add_explicit(&e->dropped[why], 1, memory_order_relaxed);
}

struct link_stats engine_link_stats(const struct engine *e)
{
	struct link_stats sum = { 0 };

	for (unsigned i = 0; i < e->nlinks; i++) {
		const struct link_stats *s = &e->link[i]->stats;

		sum.rx_pkts += __atomic_load_n(&s->rx_pkts, __ATOMIC_RELAXED);
		sum.rx_malformed +=
			__atomic_load_n(&s->rx_malformed, __ATOMIC_RELAXED);
		sum.rx_bad_icrc +=
			__atomic_load_n(&s->rx_bad_icrc, __ATOMIC_RELAXED);
		sum.rx_overflow +=
			__atomic_load_n(&s->rx_overflow, __ATOMIC_RELAXED);
	}
	return sum;
}

/* One after the other: "a 1, b 2", those that are usual or those that are not. */
static uint64_t drops_list(const struct engine *e, bool usual, char *line,
			   size_t size)
{
	static const struct {
		const char *name;
		bool usual; /* in a program and network where all is well */
	} drops[ROCE_DROPS] = {
		[ROCE_DROP_OPCODE] = { "unexpected opcode", false },
		[ROCE_DROP_HEADER] = { "version or P_Key", false },
		[ROCE_DROP_STATE] = { "QP does not receive yet", false },
		[ROCE_DROP_ENDED] = { "for a QP that has ended", true },
		[ROCE_DROP_ADDRESS] = { "not from the QP's peer", false },
		[ROCE_DROP_DUPLICATE] = { "duplicate", true },
		[ROCE_DROP_GAP] = { "PSN ahead of the one due", false },
		[ROCE_DROP_REFUSED] = { "invalid or refused request", false },
		[ROCE_DROP_QKEY] = { "Q_Key or datagram length", false },
		[ROCE_DROP_NO_RECV] = { "no receive posted", false },
	};
	static const char *const others[OTHERS] = { "malformed", "bad ICRC",
						    "socket buffer full",
						    "no such QP" };
	const struct link_stats s = engine_link_stats(e);
	const uint64_t n[OTHERS] = { s.rx_malformed, s.rx_bad_icrc,
				     s.rx_overflow, atomic_load(&e->no_qp) };
	uint64_t sum = 0;
	size_t len = 0;

	line[0] = 0;
	for (size_t i = 0; i < OTHERS + ROCE_DROPS; i++) {
		const bool other = i < OTHERS;
		const uint64_t count =
			other ? n[i] : atomic_load(&e->dropped[i - OTHERS]);

		if (!count || usual != (!other && drops[i - OTHERS].usual))
			continue;
		sum += count;
		len += (size_t)snprintf(
			line + len, size - len, "%s%s %" PRIu64,
			len ? ", " : "",
			other ? others[i] : drops[i - OTHERS].name, count);
	}
	return sum;
}

void engine_drops_explain(struct engine *e)
{
	const struct link_stats s = engine_link_stats(e);
	char bad[800], usual[200];
	uint64_t sum, received;

	if (faults_ops)
		faults_ops->explain();
	sum = drops_list(e, false, bad, sizeof(bad));
	if (atomic_exchange(&e->drops_reported, sum) == sum)
		return;
	drops_list(e, true, usual, sizeof(usual));
	received = s.rx_pkts + s.rx_malformed + s.rx_bad_icrc;
	say("process %d: %" PRIu64 " packet%s received, %" PRIu64
	    " dropped: %s%s%s",
	    (int)getpid(), received, plural(received), sum, bad,
	    usual[0] ? "; late ones, which do no harm: " : "", usual);
}

void drops_explain_at(struct engine *e, uint64_t now)
{
	uint64_t due =
		atomic_load_explicit(&e->drops_due, memory_order_relaxed);

	if (now >= due &&
	    atomic_compare_exchange_strong(&e->drops_due, &due, now + DROPS_NS))
		engine_drops_explain(e);
}

void engine_explain_of(const struct qp *core, const char *peer, const char *fmt,
		       va_list ap)
{
	char line[512], note[256] = "";

	vsnprintf(line, sizeof(line), fmt, ap);
	if (faults_ops)
		faults_ops->note(note, sizeof(note));
	if (*peer)
		say("QP 0x%06x (peer %s): %s%s", core->qpn, peer, line, note);
	else
		say("QP 0x%06x: %s%s", core->qpn, line, note);
}

void engine_explain(struct qp *core, const char *fmt, ...)
{
	const struct roce_path *path = roce_qp_path(roce_qp(core));
	char peer[sizeof(struct gid_text) + 32] = "";
	struct gid_text at;
	va_list ap;

	if (core->type != IBV_QPT_UD && path && core->state >= IBV_QPS_RTR)
		snprintf(peer, sizeof(peer), "%s QP 0x%06x",
			 gid_str(&path->dgid, &at),
			 roce_qp_dest(roce_qp(core)));
	va_start(ap, fmt);
	engine_explain_of(core, peer, fmt, ap);
	va_end(ap);
}
