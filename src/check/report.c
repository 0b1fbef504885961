/*
 * report.c - findings, as text on stderr and as JSON lines in a file
 *
 * The same rule at the same place is reported once, and counted. Places differ
 * by backtraces, so that a library that posts for many callers is not silent
 * after the first. Frames are given as file and offset, as addr2line(1) takes
 * them, with the function's name where that is known; those of this library
 * come first and are left out.
 */
#include "check_internal.h"

#include "base/fd_high.h"
#include "base/hash64.h"
#include "base/json.h"
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
	[CHECK_RACE_CPU] = {
		"race-with-processor",
		"do not touch memory that a peer writes to until the peer reports that it is done, by a message behind the write or one with immediate data",
	},
};

struct frame {
	char text[300];
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
	/* Of the place at hand: a thread may have little stack. */
	struct frame frame[CHECK_FRAMES];
	char program[PATH_MAX];
} reports = { .lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1 };

void check_reports_begin(const char *json, int exit_status)
{
	reports.json = json;
	reports.exit_status = exit_status;
}

void check_reports_forked(void)
{
	pthread_mutex_init(&reports.lock, NULL);
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
					    "librdmacm.so" };
	const char *base = strrchr(file, '/');

	base = base ? base + 1 : file;
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!strncmp(base, ours[i], strlen(ours[i])))
			return true;
	return false;
}

/* A frame is where it goes on after the call: one byte before that is in the
 * call's own line. */
static void frame_text(const void *pc, const Dl_info *at, struct frame *f)
{
	char name[64];
	uint64_t offset;
	int n;

	offset = check_symbol(at->dli_fname, (uintptr_t)at->dli_fbase,
			      (uintptr_t)pc - 1, name, sizeof(name));
	n = snprintf(f->text, sizeof(f->text), "%.220s+0x%llx", at->dli_fname,
		     (unsigned long long)offset);
	if (!name[0] && at->dli_sname)
		snprintf(name, sizeof(name), "%s", at->dli_sname);
	if (name[0] && n > 0)
		snprintf(f->text + n, sizeof(f->text) - (size_t)n, " (%s)",
			 name);
}

/* Of the program itself dladdr(3) knows what it was called by only. */
static void name_program(Dl_info *at)
{
	const uintptr_t base = (uintptr_t)at->dli_fbase;
	ssize_t n;

	if (getauxval(AT_PHDR) - base >= 4096)
		return;
	n = readlink("/proc/self/exe", reports.program,
		     sizeof(reports.program) - 1);
	if (n <= 0)
		return;
	reports.program[n] = '\0';
	at->dli_fname = reports.program;
}

/* Into reports.frame; returns how many. */
static unsigned frames_of(uint32_t stack)
{
	struct frame *const out = reports.frame;
	void *pc[CHECK_FRAMES];
	const unsigned n = check_frames(stack, pc);
	unsigned k = 0;

	for (unsigned i = 0; i < n; i++) {
		Dl_info at;

		if (!dladdr((void *)((uintptr_t)pc[i] - 1), &at) ||
		    !at.dli_fname) {
			snprintf(out[k++].text, sizeof(out[0].text), "%p",
				 pc[i]);
			continue;
		}
		if (!k && is_ours(at.dli_fname))
			continue;
		name_program(&at);
		frame_text(pc[i], &at, &out[k++]);
	}
	return k;
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
		       const struct check_side *side, size_t nsides)
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
		const unsigned n = frames_of(side[i].stack);

		json_begin(&j, NULL, '{');
		json_string(&j, "what", side[i].what);
		json_begin(&j, "frames", '[');
		for (unsigned k = 0; k < n; k++)
			json_string(&j, NULL, reports.frame[k].text);
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

void check_report(enum check_rule rule, uint32_t qpn,
		  const struct check_side *side, size_t nsides, const char *fmt,
		  ...)
{
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
		say("check: %s: %s", rules[rule].name, text);
		for (size_t i = 0; i < nsides; i++) {
			const unsigned n = frames_of(side[i].stack);

			say("check:   %s%s", side[i].what,
			    n ? " at" : ": not known where");
			for (unsigned k = 0; k < n; k++)
				say("check:     #%u %s", k,
				    reports.frame[k].text);
		}
		say("check:   fix: %s", rules[rule].fix);
		json_write(rule, qpn, text, side, nsides);
	}
	pthread_mutex_unlock(&reports.lock);
	errno = saved;
}

void check_say_callsite(const char *what, uint32_t callsite)
{
	const int saved = errno;
	unsigned n;

	if (!callsite)
		return;
	pthread_mutex_lock(&reports.lock);
	n = frames_of(callsite);
	if (n)
		say("  %s at", what);
	for (unsigned k = 0; k < n; k++)
		say("    #%u %s", k, reports.frame[k].text);
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

void check_exit(void)
{
	char again[80] = "";

	if (!reports.count)
		return;
	if (reports.count > reports.ncallsites)
		snprintf(again, sizeof(again), ", %llu times in all%s",
			 (unsigned long long)reports.count,
			 reports.hidden ? "; not all are shown" : "");
	say("check: process %d: %u finding%s%s", (int)getpid(),
	    reports.ncallsites, reports.ncallsites == 1 ? "" : "s", again);
	if (!reports.exit_status)
		return;
	/* The status of exit(3) is settled; what the program has printed is
	 * not to be lost by that. */
	fflush(NULL);
	_exit(reports.exit_status);
}
