/*
 * report.c - findings, as text on stderr and as JSON lines in a file
 *
 * The same rule at the same place is reported once, and counted. Places differ
 * by backtraces, so that a library that posts for many callers is not silent
 * after the first. Frames are given as source and line where there is debug
 * information (lines.c), else as file and offset, as addr2line(1) takes them; with
 * the function's name where that is known. Those of this library come first and
 * are left out, as are what the program calls in headers, and what calls main().
 */
#include "check_internal.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/hash64.h"
#include "base/json.h"
#include "base/lines.h"
#include "base/path.h"
#include "base/say.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define CALLSITES 1024u /* of findings; beyond it they are counted only */

static const struct {
	const char *name;
	const char *fix;
} rules[CHECK_RULES] = {
	[CHECK_WRITTEN] = {
		"buffer-in-flight",
		"leave the buffer alone until the completion of its work request, or of a later one of the queue, has been polled; or post it with IBV_SEND_INLINE, or send from a copy",
	},
	[CHECK_SQ_STUCK] = {
		"send-queue-never-drains",
		"set IBV_SEND_SIGNALED in at least one of every max_send_wr requests, and poll its completion",
	},
	[CHECK_SQ_OVERRUN] = {
		"send-queue-overrun",
		"poll completions before posting more, or create the QP with a larger cap.max_send_wr",
	},
	[CHECK_CQ_OVERRUN] = {
		"cq-overrun",
		"create the CQ with room for all signalled requests of its QPs, or poll before posting more",
	},
	[CHECK_LOST_WAKEUP] = {
		"lost-wakeup",
		"after ibv_req_notify_cq() poll the CQ once more until it is empty, and only then sleep",
	},
	[CHECK_UNACKED] = {
		"event-not-acknowledged",
		"acknowledge every event before its object is destroyed",
	},
	[CHECK_LEAK] = {
		"object-leaked",
		"destroy the device's objects before closing it: QPs first, then CQs, SRQs and regions, then PDs and channels",
	},
	[CHECK_PAST_KEY] = {
		"key-of-the-past",
		"end a region or window only when it is no longer used: its peers have confirmed that, and the program's own requests have completed",
	},
	[CHECK_MTU] = {
		"mtu-disagrees",
		"exchange port_attr.active_mtu with the other addresses of the connection, and use the smaller one as path_mtu at both ends",
	},
	[CHECK_PSN] = {
		"psn-disagrees",
		"send this QP's sq_psn to the other end and set it there as rq_psn, and vice versa",
	},
	[CHECK_PEER] = {
		"peer-disagrees",
		"connect the two queue pairs to each other: send qp_num to the other end and set it there as dest_qp_num; both must be of the same type",
	},
	[CHECK_QKEY] = {
		"qkey-disagrees",
		"set the sender's wr.ud.remote_qkey to the receiver's attr.qkey: exchange it, or use one constant at both ends",
	},
	[CHECK_PKEY] = {
		"pkey-disagrees",
		"use the default P_Key 0xffff at the sender: pkey_index of the entry of its P_Key table that has it",
	},
	[CHECK_GRH] = {
		"grh-missing",
		"set ah_attr.is_global = 1, grh.dgid (the peer's GID), grh.sgid_index (ours) and grh.hop_limit",
	},
	[CHECK_RESULT] = {
		"result-in-flight",
		"do not touch memory that a read or an atomic writes to until its completion has been polled",
	},
	[CHECK_RACE] = {
		"race-of-peers",
		"let one of the two post only when it knows that the other's request has completed; or use atomics, or separate memory",
	},
	[CHECK_HOPS] = {
		"hop-limit-zero",
		"set grh.hop_limit: to 1 within a subnet, to 64 or more where routers are between",
	},
	[CHECK_MTU_LARGE] = {
		"mtu-too-large",
		"set path_mtu to port_attr.active_mtu or less, and to the same at both ends",
	},
	[CHECK_KEY_KIND] = {
		"keys-exchanged",
		"send mr->rkey to the peers that read or write the region, and use mr->lkey in the process's own SGEs",
	},
	[CHECK_ADDRESS_HALF] = {
		"address-cut",
		"hold addresses in 64 bits (uint64_t, uintptr_t) wherever they are stored, converted (htobe64(3)) and sent",
	},
	[CHECK_UNSIGNALED] = {
		"completion-never-comes",
		"set IBV_SEND_SIGNALED in send_flags of the request whose completion is to be polled, or sq_sig_all when the QP is created",
	},
	[CHECK_RACE_CPU] = {
		"race-with-processor",
		"do not touch memory that a peer writes to until the peer reports that it is done, by a message behind the write or one with immediate data",
	},
};

/* Of a place: where a function was, and its name. A line of the program has
 * several where functions are inlined. */
struct frame {
	char text[300];
};

#define PLACE_FRAMES (2 * CHECK_FRAMES)
#define SOURCE_MOST 220 /* letters of a path, the last ones */

struct place {
	uint32_t stack; /* 0: none */
	unsigned n;
	struct frame frame[PLACE_FRAMES];
};

static struct {
	pthread_mutex_t lock; /* innermost; of all that follows */
	uint64_t callsite[CALLSITES];
	unsigned ncallsites;
	uint64_t count; /* of findings, each time */
	unsigned hidden; /* there was no room for */
	const char *json;
	int fd;
	int exit_status;
} reports = { .lock = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP, .fd = -1 };

/* Under the same lock; a thread may have little stack. */
#define PLACES 16u /* that are kept, with those of the report at hand */
static struct place places[PLACES];
static unsigned next_place;
static char program[PATH_MAX], asked[32768], answer[32768];

void check_reports_begin(const char *json, int exit_status)
{
	reports.json = json;
	reports.exit_status = exit_status;
}

void check_reports_forked(void)
{
	static const pthread_mutex_t unlocked =
		PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP;

	reports.lock = unlocked;
	if (reports.fd >= 0)
		sys_close(reports.fd);
	reports.fd = -1;
	reports.ncallsites = reports.hidden = 0;
	reports.count = 0;
}

/* ---- callsites ----------------------------------------------------------- */

/* Whether the object file is a part of softhca, whose frames say nothing. */
static bool is_ours(const char *file)
{
	static const char *const ours[] = { "libsofthca.so", "libibverbs.so",
					    "librdmacm.so", "libibumad.so" };
	const char *base = strrchr(file, '/');

	base = base ? base + 1 : file;
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!strncmp(base, ours[i], strlen(ours[i])))
			return true;
	return false;
}

/* An address of a stack, in the line of the call. */
struct spot {
	const char *file; /* NULL: not known */
	const char *symbol; /* that its file exports, or NULL */
	uint64_t base, pc;
};

/* Of the program itself dladdr(3) knows what it was called by only. */
static const char *file_of(const Dl_info *at)
{
	const uintptr_t base = (uintptr_t)at->dli_fbase;
	ssize_t n;

	if (getauxval(AT_PHDR) - base >= 4096)
		return at->dli_fname;
	n = readlink("/proc/self/exe", program, sizeof(program) - 1);
	if (n <= 0)
		return at->dli_fname;
	program[n] = '\0';
	return program;
}

static bool is_libc(const struct spot *s)
{
	const char *base = s->file ? strrchr(s->file, '/') : NULL;

	return base && !strncmp(base, "/libc.so", 8);
}

/* Without what the C library calls main(), or a thread, from. */
static unsigned without_libc(const struct spot *spot, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (is_libc(&spot[i]) && spot[i].symbol &&
		    !strcmp(spot[i].symbol, "__libc_start_main"))
			n = i;
	while (n > 1 && is_libc(&spot[n - 1]))
		n--;
	return n;
}

static unsigned spots_of(uint32_t stack, struct spot spot[CHECK_FRAMES])
{
	void *frame[CHECK_FRAMES];
	const unsigned n = check_frames(stack, frame);
	unsigned k = 0;

	for (unsigned i = 0; i < n; i++) {
		/* It is where it goes on after the call. */
		const uintptr_t pc = (uintptr_t)frame[i] - 1;
		Dl_info at;

		if (!dladdr((const void *)pc, &at) || !at.dli_fname) {
			spot[k++] = (struct spot){ .pc = pc };
			continue;
		}
		if (!k && is_ours(at.dli_fname))
			continue;
		spot[k++] = (struct spot){
			.file = file_of(&at),
			.symbol = at.dli_sname,
			.base = (uintptr_t)at.dli_fbase,
			.pc = pc,
		};
	}
	return without_libc(spot, k);
}

/* What is known without debug information. */
static void frame_text(const struct spot *s, struct frame *f)
{
	char name[64];
	uint64_t offset;
	int n;

	if (!s->file) {
		snprintf(f->text, sizeof(f->text), "0x%llx",
			 (unsigned long long)s->pc + 1);
		return;
	}
	offset = check_symbol(s->file, s->base, s->pc, name, sizeof(name));
	n = snprintf(f->text, sizeof(f->text), "%.220s+0x%llx", s->file,
		     (unsigned long long)offset);
	if (!name[0] && s->symbol)
		snprintf(name, sizeof(name), "%s", s->symbol);
	if (name[0] && n > 0)
		snprintf(f->text + n, sizeof(f->text) - (size_t)n, " (%s)",
			 name);
}

/* Whether a line is of what a program calls, which headers have as functions
 * that are inlined: it says nothing of the program. */
static bool is_of_verbs(const char *source, size_t len)
{
	static const char *const headers[] = { "/infiniband/verbs.h",
					       "/rdma/rdma_verbs.h" };

	for (size_t i = 0; i < sizeof(headers) / sizeof(headers[0]); i++) {
		const size_t n = strlen(headers[i]);

		if (len > n && !strncmp(source + len - n, headers[i], n))
			return true;
	}
	return false;
}

/* The frames of spot i of the question, by the answer's lines, from *line on:
 * "i<tab>FUNCTION<tab>SOURCE:LINE". */
static void add_frames(struct place *p, const struct spot *s, unsigned i,
		       const char **line)
{
	bool known = false;

	for (; **line >= '0' && **line <= '9' && strtoul(*line, NULL, 10) == i;
	     *line += strcspn(*line, "\n") + 1) {
		const char *name = *line + strcspn(*line, "\t\n");
		const char *source;
		size_t name_len, len;

		name += *name == '\t';
		name_len = strcspn(name, "\t\n");
		source = name + name_len + (name[name_len] == '\t');
		len = strcspn(source, "\n");
		if (!len)
			continue;
		known = true;
		if ((!p->n && is_of_verbs(source, strcspn(source, ":\n"))) ||
		    p->n == PLACE_FRAMES)
			continue;
		if (len > SOURCE_MOST) {
			source += len - SOURCE_MOST;
			len = SOURCE_MOST;
		}
		snprintf(p->frame[p->n++].text, sizeof(p->frame[0].text),
			 name_len ? "%.*s (%.*s)" : "%.*s", (int)len, source,
			 (int)min_u64(name_len, 64), name);
	}
	if (!known && p->n < PLACE_FRAMES)
		frame_text(s, &p->frame[p->n++]);
}

/* Finds out all that is not known of n places, by one question. */
static void fill_places(struct place *const *p, size_t n)
{
	struct spot spot[CHECK_FRAMES];
	const char *line = answer;
	unsigned total = 0, nspots;
	size_t len = 0;

	asked[0] = answer[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		nspots = spots_of(p[i]->stack, spot);
		for (unsigned k = 0; k < nspots && len < sizeof(asked); k++)
			len += (size_t)snprintf(
				asked + len, sizeof(asked) - len,
				"%llx %llx %s\n",
				(unsigned long long)spot[k].base,
				(unsigned long long)spot[k].pc,
				spot[k].file && !strchr(spot[k].file, '\n') ?
					spot[k].file :
					"/");
	}
	if (!len || len >= sizeof(asked) ||
	    !check_lines(asked, answer, sizeof(answer)))
		answer[0] = '\0';
	for (size_t i = 0; i < n; i++) {
		nspots = spots_of(p[i]->stack, spot);
		for (unsigned k = 0; k < nspots; k++)
			add_frames(p[i], &spot[k], total++, &line);
	}
}

static struct place *find_place(uint32_t stack)
{
	for (unsigned i = 0; i < PLACES; i++)
		if (places[i].stack == stack)
			return &places[i];
	return NULL;
}

/* The oldest that is none of these. */
static struct place *unused_place(const struct place *const *used, size_t n)
{
	struct place *p;
	bool is_used;

	do {
		p = &places[next_place++ % PLACES];
		is_used = false;
		for (size_t i = 0; i < n; i++)
			is_used |= used[i] == p;
	} while (is_used);
	return p;
}

/* Where the sides of a report were, which are then in found. */
static void find_places(const struct check_side *side, size_t n,
			const struct place *found[CHECK_SIDES])
{
	static const struct place nowhere;
	struct place *new[CHECK_SIDES];
	size_t nnew = 0;

	for (size_t i = 0; i < n; i++)
		found[i] = side[i].stack ? find_place(side[i].stack) : &nowhere;
	for (size_t i = 0; i < n; i++) {
		if (!found[i])
			found[i] = find_place(side[i].stack);
		if (found[i])
			continue;
		found[i] = new[nnew++] = unused_place(found, n);
		*new[nnew - 1] = (struct place){ .stack = side[i].stack };
	}
	if (nnew)
		fill_places(new, nnew);
}

/* ---- JSON -------------------------------------------------------------- */

static void json_open(void)
{
	char *name;

	if (reports.fd >= 0 || !reports.json)
		return;
	name = path_expand(reports.json);
	if (name)
		reports.fd = fd_high(path_open_output(
			name, O_WRONLY | O_APPEND | O_NONBLOCK));
	if (reports.fd < 0) {
		say("cannot write %s: %s", reports.json, sys_strerror(errno));
		reports.json = NULL;
	}
	free(name);
}

static void json_write(enum check_rule rule, uint32_t qpn, const char *text,
		       const struct check_side *side,
		       const struct place *const *place, size_t nsides)
{
	struct json j = { 0 };
	char *line = NULL;
	size_t size = 0;
	FILE *f;

	json_open();
	f = reports.fd >= 0 ? open_memstream(&line, &size) : NULL;
	if (!f)
		return;
	j.f = f;
	json_begin(&j, NULL, '{');
	json_string(&j, "rule", rules[rule].name);
	json_number(&j, "pid", (uint64_t)getpid());
	if (qpn)
		json_hex(&j, "qp", 6, qpn);
	json_string(&j, "text", text);
	json_string(&j, "fix", rules[rule].fix);
	json_begin(&j, "places", '[');
	for (size_t i = 0; i < nsides; i++) {
		json_begin(&j, NULL, '{');
		json_string(&j, "what", side[i].what);
		json_begin(&j, "frames", '[');
		for (unsigned k = 0; k < place[i]->n; k++)
			json_string(&j, NULL, place[i]->frame[k].text);
		json_end(&j, ']');
		json_end(&j, '}');
	}
	json_end(&j, ']');
	json_end(&j, '}');
	/* One write, so that the lines of several processes do not mix. */
	if (!fclose(f) && sys_write(reports.fd, line, size) < 0)
		say("cannot write %s: %s", reports.json, sys_strerror(errno));
	free(line);
}

/* ---- reports ----------------------------------------------------------- */

/* Whether it is to be shown: nothing like it has been, and there is room. */
static bool is_new(uint64_t callsite)
{
	for (unsigned i = 0; i < reports.ncallsites; i++)
		if (reports.callsite[i] == callsite)
			return false;
	if (reports.ncallsites == CALLSITES) {
		reports.hidden++;
		return false;
	}
	reports.callsite[reports.ncallsites++] = callsite;
	return true;
}

static void say_frames(const char *indent, const struct place *p)
{
	for (unsigned k = 0; k < p->n; k++)
		say("%s  #%u %s", indent, k, p->frame[k].text);
}

void check_report(enum check_rule rule, uint32_t qpn,
		  const struct check_side *side, size_t nsides, const char *fmt,
		  ...)
{
	const struct place *place[CHECK_SIDES];
	const int saved = errno;
	uint64_t callsite = hash64(rule + HASH64_STEP);
	char text[600];
	va_list ap;

	for (size_t i = 0; i < nsides; i++)
		callsite = hash64(callsite + side[i].stack + HASH64_STEP);
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);

	pthread_mutex_lock(&reports.lock);
	reports.count++;
	if (is_new(callsite)) {
		find_places(side, nsides, place);
		say("check: %s: %s", rules[rule].name, text);
		for (size_t i = 0; i < nsides; i++) {
			say("check:   %s%s", side[i].what,
			    place[i]->n ? " at" : ": not known where");
			say_frames("check:   ", place[i]);
		}
		say("check:   fix: %s", rules[rule].fix);
		json_write(rule, qpn, text, side, place, nsides);
	}
	pthread_mutex_unlock(&reports.lock);
	errno = saved;
}

void check_say_places(const struct check_side *side, size_t nsides)
{
	const struct place *place[CHECK_SIDES];
	const int saved = errno;

	pthread_mutex_lock(&reports.lock);
	find_places(side, nsides, place);
	for (size_t i = 0; i < nsides; i++) {
		if (place[i]->n)
			say("  %s at", side[i].what);
		say_frames("  ", place[i]);
	}
	pthread_mutex_unlock(&reports.lock);
	errno = saved;
}

void check_leaked(const char *call, const char *object, uint32_t made)
{
	const struct check_side sides[] = {
		{ "it was made", made },
		{ "that is", check_here() },
	};

	check_report(CHECK_LEAK, 0, sides, 2, "%s, and %s is still there", call,
		     object);
}

/* What another thread is about to say is not to be lost. It may be this thread,
 * in a signal handler that calls exit(3). */
static void await_report(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += CHECK_LINES_S + 1;
	if (!pthread_mutex_clocklock(&reports.lock, CLOCK_MONOTONIC, &until))
		pthread_mutex_unlock(&reports.lock);
}

void check_exit(void)
{
	char again[80] = "";

	await_report();
	if (!reports.count)
		return;
	if (reports.count > reports.ncallsites)
		snprintf(again, sizeof(again), ", %llu times in all%s",
			 (unsigned long long)reports.count,
			 reports.hidden ? "; not all are shown" : "");
	say("check: process %d: %u finding%s%s", (int)getpid(),
	    reports.ncallsites, plural(reports.ncallsites), again);
	if (!reports.exit_status)
		return;
	/* The status of exit(3) is settled; what the program has printed is
	 * not to be lost by that. */
	fflush(NULL);
	_exit(reports.exit_status);
}
