/*
 * explain.c - what became of packets, and why a QP failed, in words
 *
 * Packets that do nothing are always counted. With --explain they are reported
 * when the process ends and, while their number grows, every DROPS_NS.
 */
#include "internal.h"

#include "base/gid.h"
#include "base/say.h"
#include "faults.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define DROPS_NS 10000000000

void engine_dropped(struct engine *e, enum roce_drop why)
{
	atomic_fetch_add_explicit(&e->dropped[why], 1, memory_order_relaxed);
}

void engine_drops_explain(struct engine *e)
{
	static const char *const names[ROCE_DROPS] = {
		[ROCE_DROP_OPCODE] = "unexpected opcode",
		[ROCE_DROP_HEADER] = "version or P_Key",
		[ROCE_DROP_STATE] = "QP does not receive",
		[ROCE_DROP_ADDRESS] = "not from the QP's peer",
		[ROCE_DROP_DUPLICATE] = "duplicate",
		[ROCE_DROP_GAP] = "PSN ahead of the one due",
		[ROCE_DROP_REFUSED] = "invalid or refused request",
		[ROCE_DROP_QKEY] = "Q_Key or datagram length",
		[ROCE_DROP_NO_RECV] = "no receive posted",
	};
	static const struct shm_stats none;
	const struct udp_stats *s = udp_stats(e->udp);
	const struct shm_stats *m = e->shm ? shm_stats(e->shm) : &none;
	uint64_t n[4 + ROCE_DROPS] = { s->rx_malformed + m->rx_malformed,
				       s->rx_bad_icrc,
				       s->rx_overflow, atomic_load(&e->no_qp) };
	const char *what[4 + ROCE_DROPS] = { "malformed", "bad ICRC",
					     "socket buffer full",
					     "no such QP" };
	uint64_t sum = 0;
	char line[1024];
	int len;

	faults_explain();
	for (size_t i = 0; i < ROCE_DROPS; i++) {
		n[4 + i] = atomic_load(&e->dropped[i]);
		what[4 + i] = names[i];
	}
	for (size_t i = 0; i < 4 + ROCE_DROPS; i++)
		sum += n[i];
	if (atomic_exchange(&e->drops_reported, sum) == sum)
		return;
	len = snprintf(line, sizeof(line),
		       "process %d: %" PRIu64 " packets received, %" PRIu64
		       " dropped",
		       (int)getpid(), s->rx_pkts + m->rx_pkts + n[0] + n[1], sum);
	for (size_t i = 0; i < 4 + ROCE_DROPS; i++)
		if (n[i])
			len += snprintf(line + len, sizeof(line) - (size_t)len,
					"%s %s %" PRIu64,
					len && line[len - 1] == 'd' ? ":" : ",",
					what[i], n[i]);
	say("%s", line);
}

void drops_explain_at(struct engine *e, uint64_t now)
{
	uint64_t due =
		atomic_load_explicit(&e->drops_due, memory_order_relaxed);

	if (now >= due &&
	    atomic_compare_exchange_strong(&e->drops_due, &due, now + DROPS_NS))
		engine_drops_explain(e);
}

void engine_explain(struct qp *core, const char *fmt, ...)
{
	const struct roce_path *path = roce_qp_path(roce_qp(core));
	struct gid_text peer = { "" };
	char line[512], note[256];
	va_list ap;

	if (core->type != IBV_QPT_UD && path && core->state >= IBV_QPS_RTR)
		gid_str(&path->dgid, &peer);
	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	faults_note(note, sizeof(note));
	if (peer.text[0])
		say("QP 0x%06x (peer %s QP 0x%06x): %s%s", core->qpn, peer.text,
		    roce_qp_dest(roce_qp(core)), line, note);
	else
		say("QP 0x%06x: %s%s", core->qpn, line, note);
}
