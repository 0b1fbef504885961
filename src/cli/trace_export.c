/*
 * trace_export.c - events for other tools: Chrome's trace format, and pcapng
 */
#include "cli/trace.h"

#include "base/bytes.h"
#include "base/checksum.h"
#include "base/json.h"
#include "wire/roce.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static bool is_message(const struct trace_rec *r)
{
	return trace_type(r) == TRACE_CM_OUT || trace_type(r) == TRACE_CM_IN;
}

static const char *packet_name(const struct trace_rec *r)
{
	const uint8_t op = (uint8_t)r->psn_op;
	const uint8_t syndrome = (uint8_t)(r->key >> 24);

	if (is_message(r))
		return trace_message_text(r->x);
	if ((op & 0x1f) == ROCE_ACK && !(r->x & TRACE_VERDICT)) {
		if ((syndrome & ROCE_AETH_KIND) == ROCE_AETH_RNR)
			return "RNR NAK";
		if ((syndrome & ROCE_AETH_KIND) == ROCE_AETH_NAK)
			return "NAK";
	}
	return trace_op_text(op) ? trace_op_text(op) : "unknown opcode";
}

/* ---- Chrome's trace format --------------------------------------------- */

/*
 * A track per QP, with a slice for each packet, since arrows need slices, and
 * one that may overlap others for each work request; and one per thread.
 */
static void qp_tracks(const struct trace_set *t, FILE *f)
{
	for (uint32_t i = 0; i < t->nprocs; i++) {
		const struct trace_proc *p = &t->proc[i];
		char name[256];

		snprintf(name, sizeof(name), "%s %u on %s", p->head.program,
			 p->head.pid, p->head.host);
		fprintf(f,
			"{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,"
			"\"args\":{\"name\":",
			i + 1);
		json_put_string(f, name);
		fputs("}},\n", f);
	}
	for (uint32_t i = 0; i < t->nqps; i++)
		fprintf(f,
			"{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%u,"
			"\"tid\":%u,\"args\":{\"name\":\"QP 0x%06x\"}},\n",
			t->qp[i].proc + 1, i + 1, t->qp[i].num);
}

static double time_us(const struct trace_set *t, uint64_t ns)
{
	return (double)(int64_t)(ns - trace_begin_ns(t)) / 1e3;
}

static void work_request(const struct trace_set *t, const struct trace_wr *w,
			 FILE *f)
{
	const uint32_t id = (uint32_t)(w - t->wr);
	uint64_t ns[TRACE_PHASES];
	const uint64_t all = trace_phases(w, ns);

	for (int end = 0; end < 2; end++)
		fprintf(f,
			"{\"ph\":\"%c\",\"cat\":\"wr\",\"id\":%u,\"name\":\"QP "
			"0x%06x "
			"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"args\":{\"wr_"
			"id\":\"0x%" PRIx64
			"\",\"bytes\":%u,\"window_ns\":%" PRIu64
			",\"sending_ns\":%" PRIu64 ",\"answer_ns\":%" PRIu64
			",\"completing_ns\":%" PRIu64 ",\"polling_ns\":%" PRIu64
			",\"packets\":%u,\"sent_again\":%u,\"status\":%u}},\n",
			end ? 'e' : 'b', id, t->qp[w->qp].num, trace_wr_op(w),
			t->qp[w->qp].proc + 1, w->qp + 1,
			time_us(t, w->posted + (end ? all : 0)), w->wr_id,
			w->len, ns[0], ns[1], ns[2], ns[3], ns[4], w->packets,
			w->again, w->status);
}

static void packet_slice(const struct trace_set *t, uint32_t i, double ts,
			 FILE *f)
{
	const struct trace_event *ev = &t->event[i];
	const bool out = trace_type(&ev->rec) == TRACE_PKT_OUT ||
			 trace_type(&ev->rec) == TRACE_CM_OUT;
	const bool again = ev->rec.x & TRACE_AGAIN && !is_message(&ev->rec);
	const uint32_t pid = ev->proc + 1, tid = ev->qp + 1;

	fprintf(f,
		"{\"ph\":\"X\",\"cat\":\"packet\",\"name\":\"%s%s\",\"pid\":%u,"
		"\"tid\":%u,\"ts\":%.3f,\"dur\":0.001,\"args\":{\"way\":\"%s\","
		"\"psn\":%u,\"bytes\":%u",
		packet_name(&ev->rec), again ? " (again)" : "", pid, tid, ts,
		out ? "out" : "in", ev->rec.psn_op >> 8, ev->rec.len);
	if (ev->wr != TRACE_NOTHING)
		fprintf(f, ",\"wr_id\":\"0x%" PRIx64 "\"", t->wr[ev->wr].wr_id);
	if (again)
		fprintf(f, ",\"why\":\"%s\"", trace_reason_text(ev->reason));
	if (ev->dropped)
		fprintf(f, ",\"dropped\":\"%s\"",
			trace_drop_text(ev->dropped - 1u));
	fputs("}},\n", f);
	if (ev->other == TRACE_NOTHING)
		return;
	fprintf(f,
		"{\"ph\":\"%c\",%s\"cat\":\"packet\",\"id\":%u,\"name\":"
		"\"packet\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f},\n",
		out ? 's' : 'f', out ? "" : "\"bp\":\"e\",",
		out ? i : ev->other, pid, tid, ts);
}

/* A track for each thread that has slept, by its number, which is no QP's. */
static int sleep_tracks(const struct trace_set *t, FILE *f)
{
	struct trace_sleep *s;
	uint32_t n, track = t->nqps;
	int err = trace_sleeps(t, &s, &n);

	for (uint32_t i = 0; i < n; i++) {
		if (!i || s[i].proc != s[i - 1].proc ||
		    s[i].tid != s[i - 1].tid)
			fprintf(f,
				"{\"ph\":\"M\",\"name\":\"thread_name\","
				"\"pid\":%u,\"tid\":%u,\"args\":{\"name\":\"%s "
				"%u\"}},\n",
				s[i].proc + 1, ++track,
				s[i].place == TRACE_IN_THREAD ?
					"library's thread" :
					"thread",
				s[i].tid);
		fprintf(f,
			"{\"ph\":\"X\",\"cat\":\"thread\",\"name\":\"sleeps\","
			"\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,"
			"\"args\":{}},\n",
			s[i].proc + 1, track, time_us(t, s[i].from),
			(double)(s[i].to - s[i].from) / 1e3);
	}
	free(s);
	return err;
}

/* Slices that may overlap others, on the track of the QP, or of the process. What has
 * no end goes on to the last event. */
static int moves(const struct trace_set *t, FILE *f)
{
	struct trace_move *m;
	uint32_t n;
	int err = trace_moves(t, &m, &n);

	for (uint32_t i = 0; i < 2 * n; i++) {
		const struct trace_move *at = &m[i / 2];
		const uint64_t to =
			at->to ? at->to : t->event[t->nevents - 1].rec.ns;

		fprintf(f,
			"{\"ph\":\"%c\",\"cat\":\"move\",\"id\":%u,\"name\":\"%"
			"s\","
			"\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"args\":{}},\n",
			i % 2 ? 'e' : 'b', i / 2,
			at->qp == TRACE_NOTHING ?
				"suspended" :
				"waits for its peer, which is suspended",
			at->proc + 1, at->qp == TRACE_NOTHING ? 0 : at->qp + 1,
			time_us(t, i % 2 ? to : at->from));
	}
	free(m);
	return err;
}

int trace_perfetto(const struct trace_set *t, FILE *f)
{
	/* Slices of a track that overlap would be drawn within each other. */
	double *last = calloc(t->nqps + 1u, sizeof(*last));
	int err;

	if (!last)
		return -ENOMEM;
	fputs("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n", f);
	qp_tracks(t, f);
	for (uint32_t i = 0; i < t->nwrs; i++)
		work_request(t, &t->wr[i], f);
	for (uint32_t i = 0; i < t->nevents; i++) {
		const struct trace_event *ev = &t->event[i];
		const uint32_t type = trace_type(&ev->rec);
		double ts = time_us(t, ev->rec.ns);

		if (type != TRACE_PKT_OUT && type != TRACE_PKT_IN &&
		    !is_message(&ev->rec))
			continue;
		if (ts < last[ev->qp] + 0.002)
			ts = last[ev->qp] + 0.002;
		last[ev->qp] = ts;
		packet_slice(t, i, ts, f);
	}
	err = sleep_tracks(t, f) ?: moves(t, f);
	/* After the last comma. */
	fputs("{\"ph\":\"M\",\"name\":\"softhca\",\"pid\":0,\"args\":{}}\n]}\n",
	      f);
	free(last);
	return err;
}

/* ---- pcapng ------------------------------------------------------------ */

#define SNAPLEN 192u
#define PAYLOAD_MAX 64u
#define BLOCK_MAX 1024u

struct block {
	uint8_t b[BLOCK_MAX];
	size_t n;
};

static void block_put32(struct block *k, uint32_t v)
{
	memcpy(k->b + k->n, &v, 4);
	k->n += 4;
}

static void put_opt(struct block *k, uint16_t code, const void *value,
		    size_t len)
{
	const uint16_t head[2] = { code, (uint16_t)len };

	memcpy(k->b + k->n, head, 4);
	k->n += 4;
	memset(k->b + k->n, 0, (len + 3) & ~(size_t)3);
	memcpy(k->b + k->n, value, len);
	k->n += (len + 3) & ~(size_t)3;
}

static void begin_block(struct block *k, uint32_t type)
{
	k->n = 0;
	block_put32(k, type);
	block_put32(k, 0);
}

static void end_block(struct block *k, FILE *f)
{
	const uint32_t len = (uint32_t)k->n + 4;

	block_put32(k, len);
	memcpy(k->b + 4, &len, 4);
	fwrite(k->b, 1, k->n, f);
}

static void file_head(FILE *f)
{
	const uint8_t nanoseconds = 9;
	struct block k;

	begin_block(&k, 0x0a0d0d0a);
	block_put32(&k, 0x1a2b3c4d);
	block_put32(&k, 1); /* version 1.0 */
	block_put32(&k, UINT32_MAX);
	block_put32(&k, UINT32_MAX);
	end_block(&k, f);
	begin_block(&k, 1);
	block_put32(&k, 101); /* raw IP */
	block_put32(&k, SNAPLEN);
	put_opt(&k, 9, &nanoseconds, 1);
	put_opt(&k, 0, "", 0);
	end_block(&k, f);
}

/*
 * A packet's headers. What is recorded is in BTH and AETH; others are zero, and so
 * is the ICRC. Of the payload there are a few zeros, and IP and UDP say so, since
 * Wireshark calls a RoCE packet malformed that is cut short, and a SEND that looks
 * like RPC and has nothing. Returns bytes in h; *all: bytes that the packet had,
 * which is the frame's length.
 */
static size_t packet_headers(const struct trace_set *t,
			     const struct trace_event *ev, uint8_t *h,
			     uint32_t *all)
{
	const bool out = trace_type(&ev->rec) == TRACE_PKT_OUT;
	const struct trace_qp *qp = &t->qp[ev->qp];
	const uint8_t *src = out ? qp->sgid : qp->dgid,
		      *dst = out ? qp->dgid : qp->sgid;
	static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };
	const bool is_v4 = !memcmp(src, v4, 12) && !memcmp(dst, v4, 12);
	const uint8_t op = (uint8_t)ev->rec.psn_op;
	const struct roce_hdr hdr = {
		.opcode = op,
		.psn = ev->rec.psn_op >> 8,
		.dest_qpn = out ? (uint32_t)ev->rec.key & 0xffffff : qp->num,
		.ack_req = ev->rec.x & TRACE_ACK_REQ,
		.mig_req = true,
		.pkey = ROCE_PKEY_DEFAULT,
		.syndrome = (uint8_t)(ev->rec.key >> 24),
		.msn = (uint32_t)(ev->rec.key >> 32) & 0xffffff,
	};
	uint8_t bth[ROCE_HDR_MAX];
	const size_t len = roce_encode(&hdr, bth);
	const size_t ip = is_v4 ? 20 : 40;
	const size_t payload = min_u32(ev->rec.len & ~3u, PAYLOAD_MAX);
	const uint32_t udp_len = (uint32_t)(8 + len + payload + ROCE_ICRC_LEN);

	memset(h, 0, ip + 8);
	if (is_v4) {
		h[0] = 0x45;
		put_be16(h + 2, 20 + udp_len);
		h[6] = 0x40; /* DF */
		h[8] = 64;
		h[9] = 17;
		memcpy(h + 12, src + 12, 4);
		memcpy(h + 16, dst + 12, 4);
		put_be16(h + 10, inet_fold(inet_sum(0, h, 20)));
	} else {
		h[0] = 0x60;
		put_be16(h + 4, udp_len);
		h[6] = 17;
		h[7] = 64;
		memcpy(h + 8, src, 16);
		memcpy(h + 24, dst, 16);
		put_be16(h + ip + 6, 0xffff);
	}
	put_be16(h + ip, 0xc000);
	put_be16(h + ip + 2, ROCE_UDP_PORT);
	put_be16(h + ip + 4, udp_len);
	memcpy(h + ip + 8, bth, len);
	memset(h + ip + 8 + len, 0, payload + ROCE_ICRC_LEN);
	*all = (uint32_t)(ip + 8 + len + ev->rec.len + (-ev->rec.len & 3) +
			  ROCE_ICRC_LEN);
	return ip + udp_len;
}

static size_t packet_comment(const struct trace_set *t,
			     const struct trace_event *ev, char *text,
			     size_t size)
{
	const bool out = trace_type(&ev->rec) == TRACE_PKT_OUT;
	size_t n = 0;

	if (ev->wr != TRACE_NOTHING) {
		const struct trace_wr *w = &t->wr[ev->wr];

		n += (size_t)snprintf(text, size,
				      "work request 0x%" PRIx64
				      " of QP 0x%06x: %s of %u bytes",
				      w->wr_id, t->qp[w->qp].num,
				      trace_wr_op(w), w->len);
	} else {
		n += (size_t)snprintf(text, size, "no work request is known");
	}
	if (roce_opcode((uint8_t)ev->rec.psn_op)->flags &
	    (ROCE_F_RETH | ROCE_F_ATOMICETH))
		n += (size_t)snprintf(text + n, size - n,
				      "; address and key are not recorded");
	if (ev->rec.x & TRACE_AGAIN)
		n += (size_t)snprintf(text + n, size - n,
				      "; sent again after %s",
				      trace_reason_text(ev->reason));
	if (out && ev->other == TRACE_NOTHING)
		n += (size_t)snprintf(text + n, size - n,
				      "; not seen to arrive");
	if (ev->dropped ||
	    (out && ev->other != TRACE_NOTHING && t->event[ev->other].dropped))
		n += (size_t)snprintf(
			text + n, size - n, "; dropped there: %s",
			trace_drop_text((ev->dropped ?
						 ev->dropped :
						 t->event[ev->other].dropped) -
					1u));
	if (ev->rec.x & TRACE_HOST)
		n += (size_t)snprintf(text + n, size - n, "; by shared memory");
	return n;
}

int trace_pcapng(const struct trace_set *t, FILE *f)
{
	/* Of the clock that all times are by. */
	const uint64_t real = t->proc[0].head.real_ns - t->proc[0].head.mono_ns;
	char text[512];
	struct block k;

	file_head(f);
	for (uint32_t i = 0; i < t->nevents; i++) {
		const struct trace_event *ev = &t->event[i];
		const uint32_t type = trace_type(&ev->rec);
		const uint64_t ns = ev->rec.ns + real;
		uint8_t h[SNAPLEN];
		uint32_t all;
		size_t n;

		/* Where both ends are known, it is one packet. */
		if ((type != TRACE_PKT_OUT && type != TRACE_PKT_IN) ||
		    ev->rec.x & TRACE_VERDICT ||
		    !roce_opcode((uint8_t)ev->rec.psn_op)->name ||
		    (type == TRACE_PKT_IN && ev->other != TRACE_NOTHING))
			continue;
		n = packet_headers(t, ev, h, &all);
		begin_block(&k, 6);
		block_put32(&k, 0);
		block_put32(&k, (uint32_t)(ns >> 32));
		block_put32(&k, (uint32_t)ns);
		block_put32(&k, (uint32_t)n);
		block_put32(&k, all);
		memcpy(k.b + k.n, h, n);
		memset(k.b + k.n + n, 0, 4);
		k.n += (n + 3) & ~(size_t)3;
		put_opt(&k, 1, text, packet_comment(t, ev, text, sizeof(text)));
		put_opt(&k, 0, "", 0);
		end_block(&k, f);
	}
	return 0;
}
