/*
 * trace.c - softhca trace: where the time of work requests went
 */
#include "cli/trace.h"
#include "base/lines.h"
#include "cli/cli.h"
#include "qp/opcode.h"
#include "roce/env.h"
#include "wire/mad.h"
#include "wire/rdmap.h"
#include "wire/roce.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS 20

struct args {
	const char *dir, *html, *perfetto, *pcapng;
	double since;
	struct trace_wanted want;
};

enum {
	OPT_QP = 0x2000,
	OPT_WR,
	OPT_SINCE,
	OPT_ROWS,
	OPT_HTML,
	OPT_PERFETTO,
	OPT_PCAPNG
};

/* clang-format off */
static const struct argp_option options[] = {
	{ "qp", OPT_QP, "QPN", 0, "Only work requests of this queue pair", 0 },
	{ "wr", OPT_WR, "WR_ID", 0, "Only work requests with this wr_id", 0 },
	{ "since", OPT_SINCE, "SECONDS", 0,
	  "Only work requests posted so long after the first event", 0 },
	{ "rows", OPT_ROWS, "N", 0,
	  "So many rows at most (default: 20; 0: all)", 0 },
	{ "html", OPT_HTML, "FILE", 0,
	  "Write a timeline for a browser: one file that needs nothing else", 0 },
	{ "perfetto", OPT_PERFETTO, "FILE", 0,
	  "Write it for ui.perfetto.dev and chrome://tracing (JSON)", 0 },
	{ "pcapng", OPT_PCAPNG, "FILE", 0,
	  "Write the packets' headers for Wireshark, each with a comment that "
	  "names its work request", 0 },
	{ 0 },
};
/* clang-format on */

static uint64_t parse_number(struct argp_state *state, const char *arg,
			     uint64_t max)
{
	char *end;
	unsigned long long n;

	errno = 0;
	n = strtoull(arg, &end, 0);
	if (end == arg || *end || errno || n > max || strchr(arg, '-'))
		argp_error(state, "%s: not a number up to %llu", arg,
			   (unsigned long long)max);
	return n;
}

static error_t parse_trace(int key, char *arg, struct argp_state *state)
{
	struct args *a = state->input;
	char *end;

	switch (key) {
	case OPT_QP:
		a->want.qp = (uint32_t)parse_number(state, arg, 0xffffff);
		return 0;
	case OPT_WR:
		a->want.wr = parse_number(state, arg, UINT64_MAX);
		a->want.one_wr = true;
		return 0;
	case OPT_SINCE:
		a->since = strtod(arg, &end);
		if (end == arg || *end || !(a->since >= 0 && a->since < 1e9))
			argp_error(state, "--since %s: not a number of seconds",
				   arg);
		return 0;
	case OPT_ROWS:
		a->want.rows = parse_number(state, arg, UINT32_MAX);
		return 0;
	case OPT_HTML:
		a->html = arg;
		return 0;
	case OPT_PERFETTO:
		a->perfetto = arg;
		return 0;
	case OPT_PCAPNG:
		a->pcapng = arg;
		return 0;
	case ARGP_KEY_ARG:
		if (a->dir)
			argp_error(state, "%s: one directory at a time", arg);
		a->dir = arg;
		return 0;
	case ARGP_KEY_END:
		if (!a->dir)
			argp_error(state, "which directory? softhca run "
					  "--trace=DIR -- PROGRAM makes one");
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* ---- names ------------------------------------------------------------- */

const char *trace_wr_op(const struct trace_wr *w)
{
	static const char *const names[] = {
#define WORD(op, services, completion, takes, flags, word) [IBV_WR_##op] = word,
		QP_OPCODES(WORD)
	};

	if (w->recv)
		return "recv";
	return w->opcode < sizeof(names) / sizeof(names[0]) &&
			       names[w->opcode] ?
		       names[w->opcode] :
		       "?";
}

const char *trace_reason_text(enum trace_reason r)
{
	switch (r) {
	case TRACE_R_NAK:
		return "a NAK: the peer misses a packet before it";
	case TRACE_R_RNR:
		return "an RNR NAK: the peer had no receive posted";
	case TRACE_R_TIMEOUT:
		return "no answer within the local ACK timeout";
	case TRACE_R_PROBE:
		return "no answer for a few round trips";
	default:
		return "a response was skipped, or earlier events were not "
		       "recorded";
	}
}

const char *trace_drop_text(unsigned why)
{
	static const char *const names[ROCE_DROPS] = {
		[ROCE_DROP_OPCODE] = "an opcode that is not expected here",
		[ROCE_DROP_HEADER] = "a wrong P_Key or version",
		[ROCE_DROP_STATE] = "the QP does not receive yet",
		[ROCE_DROP_ENDED] = "the QP is in the error state",
		[ROCE_DROP_ADDRESS] = "from an address that is not the peer's",
		[ROCE_DROP_DUPLICATE] = "a duplicate, answered again",
		[ROCE_DROP_GAP] = "something before it is missing",
		[ROCE_DROP_REFUSED] = "refused",
		[ROCE_DROP_QKEY] = "a wrong Q_Key, or too long",
		[ROCE_DROP_NO_RECV] = "no receive posted",
	};

	return why < ROCE_DROPS            ? names[why] :
	       why == (TRACE_NO_QP & 0x7f) ? "no such QP" :
					     "?";
}

const char *trace_op_text(uint8_t op)
{
	return (op & TRACE_FPDU) == TRACE_FPDU ?
		       rdmap_opcode_name(op & ~TRACE_FPDU) :
		       roce_opcode(op)->name;
}

const char *trace_message_text(unsigned attr)
{
	static const char *const names[] = {
		[MAD_CM_REQ] = "REQ, asks for a connection",
		[MAD_CM_MRA] = "MRA, asks for patience",
		[MAD_CM_REJ] = "REJ, refuses",
		[MAD_CM_REP] = "REP, accepts",
		[MAD_CM_RTU] = "RTU, ready to use",
		[MAD_CM_DREQ] = "DREQ, ends the connection",
		[MAD_CM_DREP] = "DREP, answers that",
		[MAD_CM_SIDR_REQ] = "SIDR_REQ, asks for a datagram service",
		[MAD_CM_SIDR_REP] = "SIDR_REP, answers that",
		[MAD_CM_LAP] = "LAP, offers another path",
		[MAD_CM_APR] = "APR, answers that",
	};

	switch (attr) {
	case TRACE_MPA_REQUEST:
		return "MPA request, asks for a connection";
	case TRACE_MPA_REPLY:
		return "MPA reply, accepts";
	case TRACE_MPA_REJECT:
		return "MPA reply, rejects";
	}
	return attr < sizeof(names) / sizeof(names[0]) && names[attr] ?
		       names[attr] :
		       "a message that is not known";
}

static int by_thread(const void *a, const void *b)
{
	const struct trace_event *x = *(const struct trace_event *const *)a;
	const struct trace_event *y = *(const struct trace_event *const *)b;

	if (x->proc != y->proc)
		return x->proc < y->proc ? -1 : 1;
	if (x->tid != y->tid)
		return x->tid < y->tid ? -1 : 1;
	return x < y ? -1 : x > y; /* by time, as they are */
}

int trace_sleeps(const struct trace_set *t, struct trace_sleep **out,
		 uint32_t *n)
{
	const struct trace_event **of =
		malloc((t->nevents + 1u) * sizeof(const struct trace_event *));
	struct trace_sleep *s = malloc((t->nevents / 2 + 1u) * sizeof(*s));
	uint32_t all = 0;

	*out = s;
	*n = 0;
	if (!of || !s) {
		free(of);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < t->nevents; i++)
		if (trace_type(&t->event[i].rec) == TRACE_SLEEP ||
		    trace_type(&t->event[i].rec) == TRACE_WAKE)
			of[all++] = &t->event[i];
	qsort(of, all, sizeof(*of), by_thread);
	for (uint32_t i = 1; i < all; i++) {
		const struct trace_event *a = of[i - 1], *b = of[i];

		if (trace_type(&a->rec) == TRACE_SLEEP &&
		    trace_type(&b->rec) == TRACE_WAKE && a->proc == b->proc &&
		    a->tid == b->tid)
			s[(*n)++] = (struct trace_sleep){ a->rec.ns, b->rec.ns,
							  a->proc, a->tid,
							  a->rec.x };
	}
	free(of);
	return 0;
}

static int add_move(struct trace_move **m, uint32_t n, struct trace_move move)
{
	/* As many as a power of 2 from 16 on. */
	if (!n || (n >= 16 && !(n & (n - 1)))) {
		void *more =
			realloc(*m, (n ? 2 * (size_t)n : 16) * sizeof(**m));

		if (!more)
			return -ENOMEM;
		*m = more;
	}
	(*m)[n] = move;
	return 0;
}

int trace_moves(const struct trace_set *t, struct trace_move **out, uint32_t *n)
{
	/* Which of them each QP, and each process, is in: 1 + its index. */
	uint32_t *in = calloc((size_t)t->nqps + t->nprocs + 1, sizeof(*in));
	int err = in ? 0 : -ENOMEM;

	*out = NULL;
	*n = 0;
	for (uint32_t i = 0; i < t->nevents && !err; i++) {
		const struct trace_event *ev = &t->event[i];
		const uint32_t type = trace_type(&ev->rec);
		const bool own = type == TRACE_AWAY || type == TRACE_BACK;
		const uint32_t who = own ? t->nqps + ev->proc : ev->qp;

		if (type == TRACE_AWAY || type == TRACE_PEER_AWAY) {
			err = add_move(out, *n,
				       (struct trace_move){
					       .from = ev->rec.ns,
					       .proc = ev->proc,
					       .qp = ev->qp,
				       });
			if (!err)
				in[who] = ++*n;
		} else if ((type == TRACE_BACK || type == TRACE_PEER_BACK) &&
			   in[who]) {
			(*out)[in[who] - 1].to = ev->rec.ns;
			in[who] = 0;
		}
	}
	free(in);
	return err;
}

uint64_t trace_begin_ns(const struct trace_set *t)
{
	return t->nevents ? t->event[0].rec.ns : 0;
}

bool trace_wants(const struct trace_set *t, const struct trace_wanted *want,
		 const struct trace_wr *w)
{
	return (want->qp == TRACE_NOTHING || t->qp[w->qp].num == want->qp) &&
	       (!want->one_wr || w->wr_id == want->wr) &&
	       w->posted >= want->since_ns;
}

/* ---- the table --------------------------------------------------------- */

static int slowest_first(const void *a, const void *b)
{
	const struct trace_wr *x = *(const struct trace_wr *const *)a,
			      *y = *(const struct trace_wr *const *)b;
	uint64_t ns[TRACE_PHASES];
	const uint64_t m = trace_phases(x, ns), n = trace_phases(y, ns);

	if (m != n)
		return m > n ? -1 : 1;
	return x < y ? -1 : x > y;
}

/* "12.3us 45%", or "-" where it took no time or is not known. */
static void print_phase(uint64_t ns, uint64_t all)
{
	char text[32];

	if (!ns) {
		printf(" %15s", "-");
		return;
	}
	snprintf(text, sizeof(text), "%.2f %3.0f%%", (double)ns / 1e3,
		 100.0 * (double)ns / (double)all);
	printf(" %15s", text);
}

static const char *plain_text(const char *from, char *to, size_t size)
{
	snprintf(to, size, "%s", from);
	make_printable(to);
	return to;
}

static void print_note(const struct trace_wr *w)
{
	if (w->direct)
		printf(" copied, without a packet");
	if (w->flags & TRACE_LOCAL)
		printf(" local");
	if (w->again)
		printf(" %u sent again", w->again);
	if (w->naks)
		printf(" %u NAK", w->naks);
	if (w->rnrs)
		printf(" %u RNR NAK", w->rnrs);
	if (w->completed && w->status)
		printf(" status %u: softhca explain %u", w->status, w->status);
	if (!w->completed)
		printf(" not completed");
}

static void print_row(const struct trace_set *t, const struct trace_wr *w)
{
	uint64_t ns[TRACE_PHASES];
	const uint64_t all = trace_phases(w, ns);

	printf("%#12" PRIx64 " 0x%06x %-9s %9u %12.6f %11.2f", w->wr_id,
	       t->qp[w->qp].num, trace_wr_op(w), w->len,
	       (double)(w->posted - trace_begin_ns(t)) / 1e9,
	       (double)all / 1e3);
	for (int i = 0; i < TRACE_PHASES; i++)
		print_phase(ns[i], all);
	printf(" %5u", w->packets);
	print_note(w);
	putchar('\n');
}

static void print_clock(const struct trace_set *t, const struct trace_proc *p)
{
	const struct trace_clock *c = &t->clock[p->clock];

	if (!p->clock)
		return;
	if (c->known)
		printf(", clock %+.3f us, within %.3f us",
		       (double)c->offset / 1e3, (double)c->error / 1e3);
	else
		printf(", its clock by the time of day: no packets both ways "
		       "between it and the others");
}

static void print_procs(const struct trace_set *t)
{
	char host[72], program[64];

	for (uint32_t i = 0; i < t->nprocs; i++) {
		const struct trace_proc *p = &t->proc[i];

		printf("%s, process %u on %s",
		       plain_text(p->head.program, program, sizeof(program)),
		       p->head.pid,
		       plain_text(p->head.host, host, sizeof(host)));
		print_clock(t, p);
		if (p->lost)
			printf("; the oldest %" PRIu64
			       " events have been overwritten",
			       p->lost);
		if (p->head.unrecorded)
			printf("; %" PRIu64 " events of threads beyond the "
			       "first %u were not recorded",
			       p->head.unrecorded, TRACE_RINGS - 1);
		if (p->senseless)
			printf("; %" PRIu64 " records are corrupt",
			       p->senseless);
		putchar('\n');
	}
}

static int print_moves(const struct trace_set *t)
{
	struct trace_move *m;
	uint32_t n;
	int err = trace_moves(t, &m, &n);

	for (uint32_t i = 0; i < n; i++) {
		printf("%12.6f s: process %u",
		       (double)(m[i].from - trace_begin_ns(t)) / 1e9,
		       t->proc[m[i].proc].head.pid);
		if (m[i].qp == TRACE_NOTHING)
			printf(" is suspended");
		else
			printf(": QP 0x%06x waits for its peer, which is "
			       "suspended",
			       t->qp[m[i].qp].num);
		if (m[i].to)
			printf(", for %.3f ms\n",
			       (double)(m[i].to - m[i].from) / 1e6);
		else
			printf("; the recording has no end of that\n");
	}
	free(m);
	return err;
}

static int print_table(const struct trace_set *t,
		       const struct trace_wanted *want)
{
	const struct trace_wr **rows =
		malloc((t->nwrs + 1u) * sizeof(struct trace_wr *));
	struct trace_verdict v;
	size_t n = 0, shown;

	if (!rows || trace_verdict(t, want, &v)) {
		free(rows);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < t->nwrs; i++)
		if (!t->wr[i].recv && trace_wants(t, want, &t->wr[i]))
			rows[n++] = &t->wr[i];
	qsort(rows, n, sizeof(*rows), slowest_first);
	printf("%s\n\n", v.text);
	print_procs(t);
	if (print_moves(t)) {
		free(rows);
		return -ENOMEM;
	}
	shown = want->rows && want->rows < n ? want->rows : n;
	printf("\n%zu work request%s, %" PRIu64 " packet%s, %" PRIu64
	       " of them sent again; the slowest %zu (times in us):\n\n",
	       n, plural(n), v.packets, plural(v.packets), v.again, shown);
	printf("%12s %-8s %-9s %9s %12s %11s %15s %15s %15s %15s %15s %5s\n",
	       "wr_id", "QP", "opcode", "bytes", "posted at s", "total",
	       "window", "first..last", "acknowledged", "completed", "polled",
	       "pkts");
	for (size_t i = 0; i < shown; i++)
		print_row(t, rows[i]);
	free(rows);
	return fflush(stdout) ? -errno : 0;
}

/* ---- the command ------------------------------------------------------- */

static bool any_bad;

static void bad_file(const char *path, const char *why)
{
	char name[4096];

	any_bad = true;
	cli_say("trace: %s: %s", plain_text(path, name, sizeof(name)), why);
}

static bool write_file(const struct trace_set *t, const char *path,
		       int (*fn)(const struct trace_set *t, FILE *f))
{
	FILE *f = fopen(path, "we");
	int err = f ? fn(t, f) : -errno;

	if (f && (fflush(f) || ferror(f)) && !err)
		err = errno ? -errno : -EIO;
	if (f && fclose(f) && !err)
		err = -errno;
	if (err)
		cli_say("trace: cannot write %s: %s", path, strerror(-err));
	return !err;
}

static bool any_iwarp(const struct trace_set *t)
{
	for (uint32_t i = 0; i < t->nqps; i++)
		if (t->qp[i].ports)
			return true;
	return false;
}

static const char *why_not(int err)
{
	return err == -ENOENT ? "no files of events: softhca run --trace=DIR "
				"makes them, when the program opens a device" :
	       err == -EINVAL ? "none of its files can be used" :
				strerror(-err);
}

int cmd_trace(int argc, char **argv)
{
	static const struct argp argp = {
		.options = options,
		.parser = parse_trace,
		.args_doc = "DIR",
		.doc = "Show what softhca run --trace=DIR has recorded: for "
		       "each work request when it was posted, how long it "
		       "waited for the window, was sent, acknowledged, "
		       "completed and polled; the slowest first.\v"
		       "DIR may have files of many processes and hosts, "
		       "copied together. The exit status is 1 if one of them "
		       "cannot be used.\n\n"
		       "Examples:\n"
		       "  softhca run --trace=t -- ib_write_bw 127.0.0.1\n"
		       "  softhca trace t\n"
		       "  softhca trace --html=t.html t\n",
	};
	struct args a = { .want = { .qp = TRACE_NOTHING, .rows = ROWS } };
	struct trace_set t;
	bool ok = true;
	int err;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &a);
	umask(077);
	err = trace_read(&t, a.dir, bad_file);
	if (err) {
		cli_say("trace: %s: %s", a.dir, why_not(err));
		return 1;
	}
	a.want.since_ns = trace_begin_ns(&t) + (uint64_t)(a.since * 1e9);
	if (a.html)
		ok &= write_file(&t, a.html, trace_html);
	if (a.perfetto)
		ok &= write_file(&t, a.perfetto, trace_perfetto);
	if (a.pcapng)
		ok &= write_file(&t, a.pcapng, trace_pcapng);
	if (a.pcapng && any_iwarp(&t))
		cli_say("trace: %s has no packets of iWARP; softhca run --pcap "
			"records them",
			a.pcapng);
	if (!a.html && !a.perfetto && !a.pcapng) {
		err = print_table(&t, &a.want);
		if (err)
			cli_say("trace: cannot write: %s", strerror(-err));
		ok &= !err;
	}
	trace_read_free(&t);
	return ok && !any_bad ? 0 : 1;
}
