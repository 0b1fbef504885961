/*
 * trace_html.c - events as a page for a browser
 *
 * The page is page/timeline.html, which is compiled in, with the events in it as
 * JSON: what there are many of as one array per field, in base64.
 */
#include "cli/trace.h"

#include "base/bytes.h"
#include "base/json.h"
#include "qp/names.h"
#include "roce/env.h"
#include "wire/mad.h"
#include "wire/roce.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What a browser still draws at once. */
#define MOST 1000000u

extern const char timeline_html[];

/* What is drawn: indices of events, and their place among these. */
struct page {
	const struct trace_set *t;
	FILE *f;
	uint32_t *event, *place;
	uint32_t n;
};

static bool is_drawn(const struct trace_event *ev)
{
	switch (trace_type(&ev->rec)) {
	case TRACE_PKT_OUT:
	case TRACE_PKT_IN:
		return !(ev->rec.x & TRACE_VERDICT);
	case TRACE_TIMER:
	case TRACE_CM_OUT:
	case TRACE_CM_IN:
		return true;
	}
	return false;
}

/* ---- arrays in base64 -------------------------------------------------- */

struct base64 {
	FILE *f;
	uint8_t b[3];
	unsigned n;
};

static void base64_out(struct base64 *b)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmno"
				     "pqrstuvwxyz0123456789+/";
	const uint32_t v =
		(uint32_t)b->b[0] << 16 | (uint32_t)b->b[1] << 8 | b->b[2];

	for (unsigned i = 0; i < 4; i++)
		putc(i <= b->n ? digits[v >> (18 - 6 * i) & 63] : '=', b->f);
	memset(b->b, 0, sizeof(b->b));
	b->n = 0;
}

/* The lowest bytes of a value, lowest first: as browsers have them. */
static void base64_put(struct base64 *b, uint64_t v, unsigned bytes)
{
	for (; bytes; bytes--, v >>= 8) {
		b->b[b->n++] = (uint8_t)v;
		if (b->n == 3)
			base64_out(b);
	}
}

static void base64_double(struct base64 *b, double d)
{
	uint64_t v;

	memcpy(&v, &d, sizeof(v));
	base64_put(b, v, sizeof(v));
}

static double ns_of(const struct trace_set *t, uint64_t ns)
{
	return ns ? (double)(int64_t)(ns - trace_begin_ns(t)) : -1;
}

static uint32_t place_of(const struct page *p, uint32_t event)
{
	return event == TRACE_NOTHING ? TRACE_NOTHING : p->place[event];
}

enum field {
	E_TS,
	E_TYPE,
	E_QP,
	E_PSN,
	E_OP,
	E_X,
	E_KEY,
	E_HI,
	E_LEN,
	E_OTHER,
	E_WR,
	E_REASON,
	E_DROPPED,
	E_FIELDS
};

static void put_event(const struct page *p, struct base64 *b, enum field field,
		      const struct trace_event *ev)
{
	const struct trace_rec *r = &ev->rec;
	const uint32_t u32[E_FIELDS] = {
		[E_QP] = ev->qp,
		[E_PSN] = r->psn_op >> 8,
		[E_X] = r->x,
		[E_KEY] = (uint32_t)r->key,
		[E_HI] = (uint32_t)(r->key >> 32),
		[E_LEN] = r->len,
		[E_OTHER] = place_of(p, ev->other),
		[E_WR] = ev->wr,
	};

	switch (field) {
	case E_TS:
		base64_double(b, ns_of(p->t, r->ns));
		break;
	case E_TYPE:
		base64_put(b, trace_type(r), 1);
		break;
	case E_OP:
		base64_put(b, r->psn_op, 1);
		break;
	case E_REASON:
		base64_put(b, ev->reason, 1);
		break;
	case E_DROPPED:
		base64_put(b, ev->dropped, 1);
		break;
	default:
		base64_put(b, u32[field], 4);
	}
}

static void put_events(const struct page *p)
{
	static const char *const names[E_FIELDS] = {
		"ts", "type", "qp",    "psn", "op",     "x",       "key",
		"hi", "len",  "other", "wr",  "reason", "dropped",
	};

	for (int field = 0; field < E_FIELDS; field++) {
		struct base64 b = { .f = p->f };

		fprintf(p->f, "%s\"%s\":\"", field ? ",\n" : "", names[field]);
		for (uint32_t i = 0; i < p->n; i++)
			put_event(p, &b, (enum field)field,
				  &p->t->event[p->event[i]]);
		if (b.n)
			base64_out(&b);
		putc('"', p->f);
	}
}

enum wr_field {
	W_T,
	W_OP,
	W_STATUS,
	W_FLAGS,
	W_QP,
	W_LO,
	W_HI,
	W_LEN,
	W_FIRST,
	W_LAST,
	W_PACKETS,
	W_AGAIN,
	W_NAKS,
	W_RNRS,
	W_FIELDS
};

#define W_IS_RECV 128u
#define W_IS_DIRECT 64u

static void put_wr(const struct page *p, struct base64 *b, enum wr_field field,
		   const struct trace_wr *w)
{
	const uint64_t t[] = { w->posted, w->first,     w->last,
			       w->acked,  w->completed, w->polled };
	const uint32_t u32[W_FIELDS] = {
		[W_QP] = w->qp,
		[W_LO] = (uint32_t)w->wr_id,
		[W_HI] = (uint32_t)(w->wr_id >> 32),
		[W_LEN] = w->len,
		[W_FIRST] = w->first_psn,
		[W_LAST] = w->last_psn,
		[W_PACKETS] = w->packets,
		[W_AGAIN] = w->again,
		[W_NAKS] = w->naks,
		[W_RNRS] = w->rnrs,
	};

	switch (field) {
	case W_T:
		for (size_t i = 0; i < ARRAY_SIZE(t); i++)
			base64_double(b, ns_of(p->t, t[i]));
		break;
	case W_OP:
		base64_put(b, w->opcode, 1);
		break;
	case W_STATUS:
		base64_put(b, w->status, 1);
		break;
	case W_FLAGS:
		base64_put(b,
			   (w->recv ? W_IS_RECV : 0) |
				   (w->direct ? W_IS_DIRECT : 0),
			   1);
		break;
	default:
		base64_put(b, u32[field], 4);
	}
}

static void put_wrs(const struct page *p)
{
	static const char *const names[W_FIELDS] = {
		"t",   "op",    "status", "flags",   "qp",    "lo",   "hi",
		"len", "first", "last",   "packets", "again", "naks", "rnrs",
	};

	for (int field = 0; field < W_FIELDS; field++) {
		struct base64 b = { .f = p->f };

		fprintf(p->f, "%s\"%s\":\"", field ? ",\n" : "", names[field]);
		for (uint32_t i = 0; i < p->t->nwrs; i++)
			put_wr(p, &b, (enum wr_field)field, &p->t->wr[i]);
		if (b.n)
			base64_out(&b);
		putc('"', p->f);
	}
}

/* ---- threads that sleep ------------------------------------------------ */

enum sleep_field { S_FROM, S_TO, S_PROC, S_TID, S_PLACE, S_FIELDS };

static int put_sleeps(const struct page *p)
{
	static const char *const names[S_FIELDS] = { "from", "to", "proc",
						     "tid", "place" };
	struct trace_sleep *s;
	uint32_t n;
	int err = trace_sleeps(p->t, &s, &n);

	for (int field = 0; field < S_FIELDS; field++) {
		struct base64 b = { .f = p->f };

		fprintf(p->f, "%s\"%s\":\"", field ? ",\n" : "", names[field]);
		for (uint32_t i = 0; i < n; i++) {
			const uint32_t u32[S_FIELDS] = {
				[S_PROC] = s[i].proc,
				[S_TID] = s[i].tid,
				[S_PLACE] = s[i].place,
			};

			if (field <= S_TO)
				base64_double(&b,
					      ns_of(p->t, field ? s[i].to :
								  s[i].from));
			else
				base64_put(&b, u32[field], 4);
		}
		if (b.n)
			base64_out(&b);
		putc('"', p->f);
	}
	free(s);
	return err;
}

/* ---- processes that were suspended, and QPs that waited for them ------- */

static int put_moves(const struct page *p)
{
	struct trace_move *m;
	uint32_t n;
	int err = trace_moves(p->t, &m, &n);

	for (uint32_t i = 0; i < n; i++)
		fprintf(p->f,
			"%s{\"from\":%.0f,\"to\":%.0f,\"proc\":%u,\"qp\":%d}",
			i ? ",\n" : "", ns_of(p->t, m[i].from),
			ns_of(p->t, m[i].to), m[i].proc,
			m[i].qp == TRACE_NOTHING ? -1 : (int)m[i].qp);
	free(m);
	return err;
}

/* ---- names ------------------------------------------------------------- */

static void put_procs(const struct page *p)
{
	char clock[128];

	for (uint32_t i = 0; i < p->t->nprocs; i++) {
		const struct trace_proc *proc = &p->t->proc[i];
		const struct trace_clock *c = &p->t->clock[proc->clock];

		clock[0] = '\0';
		if (proc->clock && c->known)
			snprintf(clock, sizeof(clock),
				 "clock %+.3f us, within %.3f us",
				 (double)c->offset / 1e3,
				 (double)c->error / 1e3);
		else if (proc->clock)
			snprintf(clock, sizeof(clock),
				 "clock by the time of day");
		fprintf(p->f, "%s{\"pid\":%u,\"lost\":%" PRIu64 ",\"name\":",
			i ? ",\n" : "", proc->head.pid, proc->lost);
		json_put_string(p->f, proc->head.program);
		fputs(",\"host\":", p->f);
		json_put_string(p->f, proc->head.host);
		fputs(",\"clock\":", p->f);
		json_put_string(p->f, clock);
		putc('}', p->f);
	}
}

static void put_qps(const struct page *p)
{
	for (uint32_t i = 0; i < p->t->nqps; i++) {
		const struct trace_qp *q = &p->t->qp[i];

		fprintf(p->f,
			"%s{\"proc\":%u,\"num\":%u,\"dest\":%u,\"peer\":%d,"
			"\"type\":",
			i ? ",\n" : "", q->proc, q->num, q->dest,
			q->peer == TRACE_NOTHING ? -1 : (int)q->peer);
		json_put_string(p->f, q->type ? qp_type_str(q->type) : "");
		putc('}', p->f);
	}
}

static void put_messages(FILE *f)
{
	fputs("\"cm\":{", f);
	for (unsigned i = MAD_CM_REQ; i <= MAD_CM_APR; i++)
		fprintf(f, "\"%u\":\"%s\",", i, trace_message_text(i));
	for (unsigned i = TRACE_MPA_REQUEST; i <= TRACE_MPA_REJECT; i++)
		fprintf(f, "%s\"%u\":\"%s\"", i > TRACE_MPA_REQUEST ? "," : "",
			i, trace_message_text(i));
	fputs("},\n", f);
}

static void put_names(const struct page *p)
{
	bool any = false;

	fprintf(p->f,
		"\"types\":{\"out\":%d,\"in\":%d,\"drop\":%d,\"timer\":%d,"
		"\"cmout\":%d,\"cmin\":%d},\n\"names\":{\"%d\":\"Timer\"},\n",
		TRACE_PKT_OUT, TRACE_PKT_IN, TRACE_DROP, TRACE_TIMER,
		TRACE_CM_OUT, TRACE_CM_IN, TRACE_TIMER);
	put_messages(p->f);
	fputs("\"ops\":{", p->f);
	for (unsigned i = 0; i < 256; i++) {
		const char *name = trace_op_text((uint8_t)i);

		if (!name)
			continue;
		fprintf(p->f, "%s\"%u\":", any ? "," : "", i);
		json_put_string(p->f, name);
		any = true;
	}
	fputs("},\n\"wrops\":[", p->f);
	for (unsigned i = 0; i < 16; i++) {
		const struct trace_wr w = { .opcode = (uint8_t)i };

		fputs(i ? "," : "", p->f);
		json_put_string(p->f, trace_wr_op(&w));
	}
	fputs("],\n\"reasons\":[", p->f);
	for (unsigned i = 0; i <= TRACE_R_PROBE; i++) {
		fputs(i ? "," : "", p->f);
		json_put_string(p->f, trace_reason_text((enum trace_reason)i));
	}
	fputs("],\n\"drops\":[", p->f);
	for (unsigned i = 0; i < ROCE_DROPS; i++) {
		fputs(i ? "," : "", p->f);
		json_put_string(p->f, trace_drop_text(i));
	}
	putc(']', p->f);
}

static int choose_events(struct page *p)
{
	const struct trace_set *t = p->t;
	uint32_t all = 0, skip;

	p->event = malloc((t->nevents + 1u) * sizeof(*p->event));
	p->place = malloc((t->nevents + 1u) * sizeof(*p->place));
	if (!p->event || !p->place)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->nevents; i++)
		all += is_drawn(&t->event[i]);
	skip = all > MOST ? all - MOST : 0;
	for (uint32_t i = 0; i < t->nevents; i++) {
		p->place[i] = TRACE_NOTHING;
		if (!is_drawn(&t->event[i]))
			continue;
		if (skip) {
			skip--;
			continue;
		}
		p->place[i] = p->n;
		p->event[p->n++] = i;
	}
	return all > MOST ? 1 : 0;
}

int trace_html(const struct trace_set *t, FILE *f)
{
	static const char place[] = ">DATA<";
	const char *at = strstr(timeline_html, place) + 1;
	const struct trace_wanted all = { .qp = TRACE_NOTHING };
	struct page p = { .t = t, .f = f };
	int some = choose_events(&p), err = 0, moves_err;
	struct trace_verdict v;

	if (some >= 0 && trace_verdict(t, &all, &v))
		some = -ENOMEM;
	if (some >= 0) {
		fwrite(timeline_html, 1, (size_t)(at - timeline_html), f);
		fputs("{\"verdict\":", f);
		json_put_string(f, v.text);
		fputs(",\n\"procs\":[", f);
		put_procs(&p);
		fputs("],\n\"qps\":[", f);
		put_qps(&p);
		fputs("],\n", f);
		put_names(&p);
		fputs(",\n\"notes\":[", f);
		if (some)
			fprintf(f, "\"Only the last %u packets are drawn.\"",
				MOST);
		fputs("],\n\"moves\":[", f);
		moves_err = put_moves(&p);
		fputs("],\n\"e\":{", f);
		put_events(&p);
		fputs("},\n\"w\":{", f);
		put_wrs(&p);
		fputs("},\n\"s\":{", f);
		err = put_sleeps(&p);
		if (!err)
			err = moves_err;
		fputs("}}", f);
		fputs(at + strlen("DATA"), f);
	}
	free(p.event);
	free(p.place);
	return some < 0 ? some : err;
}
