/*
 * move.c - saves and restores processes, in steps that can be undone
 */
#include "cli/move.h"
#include "base/gid.h"
#include "base/lines.h"
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/program.h"
#include "move/message.h"
#include "os/proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define RESUME_NS 20000000000u /* a process goes on */
#define ARRIVE_NS                                                              \
	10000000000u /* one that is restored, where its address may
				* come late */
#define REAP_NS 2000000000u /* the parent of one that has ended waits for it */
#define NAP_NS 500000
#define MAX_ARGS 40

__attribute__((format(printf, 3, 4))) static int fail(struct move *m, int err,
						      const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(m->why, sizeof(m->why), fmt, ap);
	va_end(ap);
	m->fix[0] = '\0';
	return err;
}

static int fail_criu(struct move *m, int err, const struct criu_why *why)
{
	snprintf(m->why, sizeof(m->why), "%s", why->text);
	snprintf(m->fix, sizeof(m->fix), "%s", why->fix);
	return err;
}

/* Arguments */

enum { OPT_CRIU = 0x100, OPT_TIMEOUT, OPT_WAIT, OPT_FORCE, OPT_PRE };

static const struct argp_option options[] = {
	{ "criu", OPT_CRIU, "FILE", 0,
	  "Use this CRIU; without it SOFTHCA_CRIU, or criu in PATH", 1 },
	{ "timeout", OPT_TIMEOUT, "S", 0,
	  "No call of CRIU may take longer (120)", 1 },
	{ 0 },
};

static const struct argp_option save_options[] = {
	{ "wait", OPT_WAIT, "S", 0,
	  "Ask peers that use softhca to wait so long at most (checkpoint: not "
	  "asked; suspend: 60; migrate: 60, or more where much has to be "
	  "saved)",
	  1 },
	{ "force", OPT_FORCE, NULL, 0,
	  "Also if peers do not bear it, and their connections end", 1 },
	{ 0 },
};

static const struct argp_option dump_options[] = {
	{ "pre-dump", OPT_PRE, NULL, 0,
	  "Save (migrate: and copy) its memory while it still runs, and then "
	  "only what it has changed since. Needs a kernel that tracks it "
	  "(CONFIG_MEM_SOFT_DIRTY)",
	  1 },
	{ 0 },
};

error_t move_parse_pid(struct argp_state *state, const char *arg, pid_t *pid)
{
	char *end;
	long n = strtol(arg, &end, 10);

	if (*arg < '0' || *arg > '9' || *end || n < 2 || n > 1 << 30) {
		argp_error(state, "%s is not a process ID", arg);
		return EINVAL;
	}
	*pid = (pid_t)n;
	return 0;
}

static error_t parse_words(struct argp_state *state, struct move_args *a)
{
	char **word = state->argv + state->next;
	const char **to = a->dir ? a->dir : a->host;
	error_t err = 0;

	if (*word && !a->no_pid)
		err = move_parse_pid(state, *word++, &a->pid);
	if (!err && *word)
		*to = *word++;
	if (err || !*word)
		return err;
	if (a->dir && !a->no_pid && !strcmp(*word, "--")) {
		a->m->criu_args = word + 1;
		return 0;
	}
	argp_error(state, "too many arguments: %s", *word);
	return EINVAL;
}

static error_t parse_seconds(struct argp_state *state, const char *option,
			     const char *arg, unsigned max, unsigned *out)
{
	unsigned long n;
	char *end;

	n = strtoul(arg, &end, 10);
	if (*arg < '0' || *arg > '9' || *end || !n || n > max) {
		argp_error(state, "%s needs a number of seconds, 1 to %u",
			   option, max);
		return EINVAL;
	}
	*out = (unsigned)n;
	return 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct move_args *a = state->input;

	switch (key) {
	case OPT_CRIU:
		a->m->criu_path = arg;
		return 0;
	case OPT_TIMEOUT:
		return parse_seconds(state, "--timeout", arg, 86400,
				     &a->m->criu.seconds);
	case ARGP_KEY_ARGS:
		return parse_words(state, a);
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t parse_saving(int key, char *arg, struct argp_state *state)
{
	struct move_args *a = state->input;

	switch (key) {
	case OPT_WAIT:
		return parse_seconds(state, "--wait", arg, MOVE_SECONDS_MAX,
				     &a->wait);
	case OPT_FORCE:
		a->m->force = true;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

static error_t parse_dumping(int key, char *arg, struct argp_state *state)
{
	struct move_args *a = state->input;

	(void)arg;
	if (key != OPT_PRE)
		return ARGP_ERR_UNKNOWN;
	a->m->pre_dump = true;
	return 0;
}

const struct argp move_argp = { options, parse, NULL, NULL, NULL, NULL, NULL };
const struct argp move_save_argp = { save_options, parse_saving, NULL, NULL,
				     NULL,         NULL,         NULL };
const struct argp move_dump_argp = { dump_options, parse_dumping, NULL, NULL,
				     NULL,         NULL,          NULL };

/* Before anything stops */

/* For the files of CRIU: memory of programs is in them. */
static int make_dir(struct move *m, const char *dir)
{
	struct dirent *e;
	bool empty = true;
	DIR *d;

	if (!mkdir(dir, 0700))
		return 0;
	if (errno != EEXIST)
		return fail(m, -errno, "cannot make %s: %s", dir,
			    strerror(errno));
	d = opendir(dir);
	if (!d)
		return fail(m, -errno, "%s: %s", dir, strerror(errno));
	while ((e = readdir(d)))
		empty &= e->d_name[0] == '.';
	closedir(d);
	return empty ? 0 :
		       fail(m, -EEXIST,
			    "%s is not empty; give another directory", dir);
}

static int find_criu(struct move *m, bool try)
{
	struct criu_why why;
	int err = criu_find(&m->criu, m->criu_path, &why);

	if (!err && try)
		err = criu_try(&m->criu, &why);
	return err ? fail_criu(m, err, &why) : 0;
}

static int add_libraries(struct move *m)
{
	char path[PATH_MAX] = "";
	int err = 0;

	for (size_t i = 0; i < m->tree.n && !err; i++)
		err = image_add_libraries(&m->image, m->tree.member[i].pid,
					  path);
	if (err == -ESTALE)
		return fail(
			m, err,
			"%s has been replaced since the process began, which "
			"could not be restored: the library has to be the "
			"same; start the program again",
			path);
	if (err && !path[0])
		return fail(m, err, "a process of the program has ended");
	return err ? fail(m, err, "%s: %s", path, strerror(-err)) : 0;
}

int move_prepare(struct move *m, pid_t pid, const char *dir)
{
	int err = tree_read(&m->tree, pid);

	if (err)
		return fail(m, err, "%s", m->tree.why);
	err = find_criu(m, true);
	if (!err)
		err = add_libraries(m);
	return err ? err : make_dir(m, dir);
}

/* Saving */

static void add_option(struct move *m, const char *option)
{
	if (m->image.noptions < IMAGE_OPTIONS)
		snprintf(m->image.option[m->image.noptions++],
			 sizeof(m->image.option[0]), "%s", option);
}

static void choose_options(struct move *m)
{
	char iptables[PATH_MAX];

	if (tree_has_outer_session(&m->tree))
		add_option(m, "--shell-job");
	if (tree_has_tcp(&m->tree)) {
		add_option(m, "--tcp-established");
		/* CRIU locks such connections by that program; or by a library. */
		if (program_find(iptables, "iptables"))
			add_option(m, "--network-lock=nftables");
	}
	if (tree_has_locks(&m->tree))
		add_option(m, "--file-locks");
}

static int write_image(struct move *m, const char *dir)
{
	struct image *im = &m->image;
	int err;

	for (im->n = 0; im->n < m->tree.n; im->n++) {
		const struct member *x = &m->tree.member[im->n];

		im->process[im->n].pid = x->pid;
		im->process[im->n].done = x->away ? x->s.answer.done : -1;
	}
	im->since_ns = m->tree.since_ns;
	memcpy(im->criu, m->criu.version, sizeof(im->criu));
	err = image_write(im, dir);
	return err ? fail(m, err, "cannot write to %s: %s", dir,
			  strerror(-err)) :
		     0;
}

int move_netns(pid_t pid)
{
	char path[64];
	struct stat its, ours;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	if (stat(path, &its) || stat("/proc/self/ns/net", &ours) ||
	    its.st_ino == ours.st_ino)
		return -1;
	return open(path, O_RDONLY | O_CLOEXEC);
}

/* In its network namespace. */
static int call_criu(struct move *m, const char *verb, const char *dir,
		     char *const args[])
{
	const int netns = move_netns(m->tree.member[0].pid);
	struct criu_why why;
	int err = criu_call(&m->criu, verb, dir, args, netns, &why);

	if (netns >= 0)
		close(netns);
	return err ? fail_criu(m, err, &why) : 0;
}

int move_pre_dump(struct move *m, const char *dir)
{
	char *check[] = { "--feature", "mem_dirty_track", NULL };
	char path[PATH_MAX], id[16], *args[] = { "-t", id, NULL };
	const uint64_t begin = sys_now_ns();
	int err;

	if (!m->pre_dump)
		return 0;
	if (call_criu(m, "check", dir, check)) {
		fail(m, -EOPNOTSUPP,
		     "this kernel does not track what a program writes to "
		     "(CONFIG_MEM_SOFT_DIRTY), says criu check");
		snprintf(m->fix, sizeof(m->fix), "leave out --pre-dump");
		return -EOPNOTSUPP;
	}
	snprintf(path, sizeof(path), "%s/" MOVE_PRE, dir);
	snprintf(id, sizeof(id), "%d", (int)m->tree.member[0].pid);
	err = make_dir(m, path);
	if (!err)
		err = call_criu(m, "pre-dump", path, args);
	m->pre_ns = sys_now_ns() - begin;
	return err;
}

static int dump(struct move *m, const char *dir, enum move_after after)
{
	char *args[MAX_ARGS] = { "-t" };
	char id[16];
	size_t n = 1;

	snprintf(id, sizeof(id), "%d", (int)m->tree.member[0].pid);
	args[n++] = id;
	for (size_t i = 0; i < m->image.noptions; i++)
		args[n++] = m->image.option[i];
	if (after != MOVE_END)
		args[n++] = after == MOVE_RUN ? "--leave-running" :
						"--leave-stopped";
	if (m->pre_dump) {
		args[n++] = "--track-mem";
		args[n++] = "--prev-images-dir";
		args[n++] = MOVE_PRE;
	}
	for (char **a = m->criu_args; a && *a && n < MAX_ARGS - 1;)
		args[n++] = *a++;
	return call_criu(m, "dump", dir, args);
}

/* ^C would end us, and the processes would go on while CRIU saves them. Every step
 * has its limit. */
static void hold_signals(sigset_t *was)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGQUIT);
	sigprocmask(SIG_BLOCK, &set, was);
}

/* CRIU may have been killed, and have left them so. */
static void wake(const struct tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		kill(t->member[i].pid, SIGCONT);
}

static int undo(struct move *m, int err)
{
	char was[sizeof(m->why)];

	wake(&m->tree);
	if (!tree_resume(&m->tree, RESUME_NS, &m->back))
		return err;
	memcpy(was, m->why, sizeof(was));
	snprintf(m->why, sizeof(m->why), "%.900s; and %.900s", was,
		 m->tree.why);
	return err;
}

int move_save(struct move *m, const char *dir, enum move_after after)
{
	const uint64_t begin = sys_real_ns();
	uint64_t then;
	sigset_t was;
	int err;

	hold_signals(&was);
	err = tree_suspend(&m->tree);
	if (err) {
		fail(m, err, "%s", m->tree.why);
		goto out;
	}
	if (!m->tree.naway)
		m->tree.since_ns = begin;
	then = sys_real_ns();
	m->ask_ns += m->tree.since_ns - begin;
	m->suspend_ns = then - m->tree.since_ns;
	choose_options(m);
	err = write_image(m, dir);
	if (!err)
		err = dump(m, dir, after);
	m->freeze_ns = sys_real_ns() - then;
	if (err) {
		undo(m, err);
		goto out;
	}
	if (after == MOVE_RUN) {
		err = tree_resume(&m->tree, RESUME_NS, &m->back);
		if (err)
			fail(m, err, "%s", m->tree.why);
		m->blackout_ns = m->back.real_ns - m->tree.since_ns;
	}
out:
	sigprocmask(SIG_SETMASK, &was, NULL);
	return err;
}

int move_go_on(struct move *m)
{
	return undo(m, 0);
}

void move_end(struct move *m)
{
	for (size_t i = m->tree.n; i > 0; i--)
		kill(m->tree.member[i - 1].pid, SIGKILL);
	tree_let_go(&m->tree);
}

/* Restoring */

static int read_image(struct move *m, const char *dir)
{
	const struct image_library *other;
	int err = image_read(&m->image, dir);

	if (err == -ENOENT)
		return fail(m, err,
			    "there is no image of softhca checkpoint in %s",
			    dir);
	if (err == -EPROTO)
		return fail(m, err,
			    "the image in %s is of another version than "
			    "softhca " SOFTHCA_VERSION ", or not complete",
			    dir);
	if (err)
		return fail(m, err, "%s: %s", dir, strerror(-err));
	other = image_other_library(&m->image);
	if (!other)
		return 0;
	fail(m, -ELIBBAD,
	     "%s is not the file that the process had when it was saved",
	     other->path);
	snprintf(m->fix, sizeof(m->fix),
		 "install the same build of softhca at the same path");
	return -ELIBBAD;
}

/* One that has just ended is there until its parent takes notice. */
static bool is_taken(pid_t pid)
{
	const uint64_t begin = sys_now_ns();
	bool there;

	while ((there = !kill(pid, 0) || errno != ESRCH) &&
	       proc_state(pid, pid) == 'Z' && sys_now_ns() - begin < REAP_NS)
		sys_sleep(NAP_NS);
	return there;
}

static int check_pids(struct move *m)
{
	for (size_t i = 0; i < m->image.n; i++) {
		const int pid = (int)m->image.process[i].pid;

		if (!is_taken(pid))
			continue;
		if (proc_state(pid, pid) == 'Z') {
			fail(m, -EEXIST,
			     "process %d, which has been saved, has ended, and "
			     "its parent does not take notice of that: its "
			     "process ID is not free",
			     pid);
			return -EEXIST;
		}
		fail(m, -EEXIST,
		     "process ID %d, which the image has, is taken here", pid);
		snprintf(m->fix, sizeof(m->fix),
			 "end that process, or restore in a PID namespace: "
			 "unshare -pf --mount-proc softhca restore DIR");
		return -EEXIST;
	}
	return 0;
}

/* What has been restored is our child by now. */
static void end_all(const struct image *im)
{
	for (size_t i = im->n; i > 0; i--)
		kill(im->process[i - 1].pid, SIGKILL);
	for (size_t i = im->n; i > 0; i--)
		waitpid(im->process[i - 1].pid, NULL, 0);
}

/* One that is killed halfway has begun some. What does not work because there are no
 * breakpoints may without: nobody has tried this CRIU, as that takes time. */
static int restore(struct move *m, const char *dir, char *const args[],
		   int netns, struct criu_why *why)
{
	int err;

	do {
		err = criu_call(&m->criu, "restore", dir, args, netns, why);
		if (err == -ETIMEDOUT)
			end_all(&m->image);
	} while (err == -ETIMEDOUT && !m->criu.no_breakpoints &&
		 (m->criu.no_breakpoints = true));
	return err;
}

int move_restore(struct move *m, const char *dir, int netns)
{
	char *args[IMAGE_OPTIONS + 2] = { "-d" }, why[1024];
	uint64_t begin;
	struct criu_why said;
	size_t n = 1;
	sigset_t was;
	int err;

	err = read_image(m, dir);
	if (!err)
		err = check_pids(m);
	if (!err && !m->criu.path[0])
		err = find_criu(m, false);
	if (err)
		return err;
	for (size_t i = 0; i < m->image.noptions; i++)
		args[n++] = m->image.option[i];
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	hold_signals(&was);
	begin = sys_now_ns();
	err = restore(m, dir, args, netns, &said);
	m->restore_ns = sys_now_ns() - begin;
	if (err) {
		fail_criu(m, err, &said);
		goto out;
	}
	err = tree_await(&m->image, ARRIVE_NS, &m->back, why);
	if (err) {
		end_all(&m->image);
		fail(m, err, "%s; it has been ended again", why);
		goto out;
	}
	if (m->back.real_ns)
		m->blackout_ns = m->back.real_ns - m->image.since_ns;
out:
	sigprocmask(SIG_SETMASK, &was, NULL);
	return err;
}

/* Reports */

void move_say(const struct move *m)
{
	cli_say("%s%s%s", m->why, m->fix[0] ? "; " : "", m->fix);
}

static void print_one(const char *name, uint64_t ns, const char *what)
{
	struct cli_time t;

	if (ns)
		printf("%-10s %10s  %s\n", name, cli_time(ns, &t), what);
}

static void print_peers(const struct tree_back *back)
{
	union ibv_gid gid;
	struct gid_text at;
	char what[128];

	for (size_t i = 0; i < back->naway; i++) {
		const struct suspend_away *a = &back->away[i];

		memcpy(gid.raw, a->at, sizeof(gid.raw));
		snprintf(what, sizeof(what),
			 "%s has waited, at most (%u connection%s)",
			 gid_str(&gid, &at), a->qps, plural(a->qps));
		print_one("peer", a->ns, what);
	}
}

void move_print(const struct move *m)
{
	const struct suspend_peers *p = &m->tree.peers;
	const size_t n = m->suspend_ns ? m->tree.n : m->image.n;
	char what[128], ended[64] = "";

	print_one("pre-dump", m->pre_ns, "while it still ran");
	if (m->tree.seconds) {
		snprintf(what, sizeof(what),
			 "%u of %u connection%s: the peer waits, for %u s at "
			 "most",
			 p->wait, p->all, plural(p->all), m->tree.seconds);
		print_one("ask", m->ask_ns, what);
	}
	if (m->back.ended)
		snprintf(ended, sizeof(ended), "%zu process%s ended since",
			 m->back.ended,
			 m->back.ended == 1 ? " has" : "es have");
	snprintf(what, sizeof(what), "%zu process%s", n, n == 1 ? "" : "es");
	print_one("suspend", m->suspend_ns, what);
	print_one("freeze", m->freeze_ns, "criu dump");
	print_one("copy", m->copy_ns, "and what softhca restore says there");
	print_one("restore", m->restore_ns, "criu restore");
	print_one("resume", m->back.took_ns, "");
	print_one("blackout", m->blackout_ns,
		  m->suspend_ns ? "" :
				  "since it was suspended, by the clock of the "
				  "host");
	print_peers(&m->back);
	if (*ended)
		printf("%s\n", ended);
}
