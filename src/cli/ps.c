/*
 * ps.c - softhca ps: what running programs wait for
 *
 * A process says it itself (process/waits.c). Of one that cannot, since it is
 * stopped or has used no device yet, /proc shows what there is: it has softhca's
 * libraries if one of them is mapped.
 */
#include "cli/ps.h"

#include "base/bytes.h"
#include "base/lines.h"
#include "cli/cli.h"
#include "cli/places.h"
#include "os/proc.h"
#include "os/threads.h"
#include "qp/names.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIBRARY "libsofthca.so."
#define QPS 8 /* of a process that are listed, of those that wait */
#define THREADS 64 /* that are looked at from outside */
#define COMM 15 /* letters of a name that the kernel keeps */
#define FRAMES 12 /* of a thread that are listed where all is */

/* What is known of a process from outside. */
struct seen {
	pid_t pid;
	char comm[32];
	bool device; /* it has one open */
};

struct all {
	struct seen *seen;
	size_t n;
};

/* Whether a process has our library; *device: and shares the registry. */
static bool has_library(pid_t pid, bool *device)
{
	char path[48], line[4200], registry[64];
	bool found = false;
	FILE *f;

	snprintf(registry, sizeof(registry), "/softhca-%u-",
		 (unsigned)geteuid());
	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	f = fopen(path, "re");
	*device = false;
	while (f && fgets(line, sizeof(line), f)) {
		found |= strstr(line, LIBRARY) != NULL;
		*device |= strstr(line, registry) != NULL;
	}
	if (f)
		fclose(f);
	return found;
}

static bool look_at(pid_t pid, struct seen *s)
{
	char path[32];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d", (int)pid);
	*s = (struct seen){ .pid = pid };
	if (pid == getpid() || stat(path, &st) || st.st_uid != geteuid() ||
	    !has_library(pid, &s->device))
		return false;
	stat_process_name(pid, s->comm);
	return true;
}

static int look_at_all(struct all *all)
{
	struct dirent *d;
	struct seen s, *more;
	DIR *proc = opendir("/proc");
	int err = 0;

	while (proc && !err && (d = readdir(proc))) {
		if (!isdigit((unsigned char)d->d_name[0]) ||
		    !look_at((pid_t)atol(d->d_name), &s))
			continue;
		more = realloc(all->seen, (all->n + 1) * sizeof(*more));
		if (!more) {
			err = -ENOMEM;
		} else {
			all->seen = more;
			more[all->n++] = s;
		}
	}
	if (proc)
		closedir(proc);
	return err;
}

static bool fd_text(void *arg, int fd, char *text, size_t size)
{
	const struct seen *s = arg;

	thread_fd_text(s->pid, fd, text, size);
	return true;
}

struct outside {
	struct seen s;
	struct places places;
};

static void print_thread(void *arg, const struct thread_does *t)
{
	struct outside *o = arg;
	char text[900] = "";

	if (!thread_says(t, fd_text, &o->s, text, sizeof(text)))
		strcpy(text, "runs");
	make_printable(text); /* a file's name may have anything in it */
	printf("  thread %d %s\n", (int)t->tid, text);
	places_print(&o->places, t->tid, FRAMES, "  ");
}

static void print_outside(const struct seen *seen)
{
	struct outside o = { .s = *seen };
	const struct seen s = *seen;
	const char state = proc_state(s.pid, s.pid);
	const bool stopped = state == 'T' || state == 't';

	printf("process %d (%s): %s\n", (int)s.pid, s.comm,
	       stopped  ? "is stopped, by a signal or a debugger: kill -CONT "
			  "lets it go on" :
	       s.device ? "has opened a device, and none of its queue pairs "
			  "has left RESET (or it has another SOFTHCA_RUNDIR)" :
			  "has softhca's libraries, and has opened no device");
	if (!s.device || stopped)
		return;
	places_read(&o.places, s.pid);
	threads_each(s.pid, THREADS, print_thread, &o);
	places_free(&o.places);
}

/* One that waits for nothing but its program. */
static bool is_idle(const struct stat_qp *q)
{
	return !strncmp(q->waits, "is idle:", 8) && !strchr(q->waits, ';');
}

/* What it has said of its threads and connections, with where the threads are. */
static void print_lines(const struct stat_reply *r, bool some,
			const char *indent)
{
	const unsigned most = some ? 1 : FRAMES;
	struct places places;
	size_t len;
	int tid;

	places_read(&places, r->pid);
	for (const char *line = r->text; *line;
	     line += len + (line[len] != 0)) {
		len = strcspn(line, "\n");
		printf("%s%.*s\n", indent, (int)len, line);
		if (sscanf(line, "thread %d ", &tid) == 1)
			places_print(&places, tid, most, indent);
	}
	/* Those that wait for another one, which it has counted. */
	places_print_rest(&places, most, indent);
	places_free(&places);
}

/* some: below its process, and not all of them. */
static void print_reply(const struct stat_reply *r, bool some)
{
	const char *indent = some ? "  " : "";
	uint32_t shown = 0, left = 0;
	char text[STAT_TEXT];

	stat_head_text(r->pid, r->comm, r->head->nqps, text);
	puts(text);
	print_lines(r, some, indent);
	for (uint32_t k = 0; k < r->head->nqps; k++) {
		const struct stat_qp *q = &r->qp[k];

		if (some &&
		    (shown == QPS || (is_idle(q) && r->head->nqps > 1))) {
			left++;
			continue;
		}
		shown++;
		stat_qp_text(q, qp_type_str(q->type), qp_state_str(q->state),
			     text);
		printf("%s%s\n", indent, text);
	}
	if (left)
		printf("%s%u more queue pair%s: softhca explain %d\n", indent,
		       left, left > 1 ? "s" : "", (int)r->pid);
}

static const struct stat_reply *reply_of(const struct stat_reply *r, size_t n,
					 pid_t pid)
{
	for (size_t i = 0; i < n; i++)
		if (r[i].pid == pid)
			return &r[i];
	return NULL;
}

static void print_process(const struct stat_reply *r, const struct seen *s,
			  bool some)
{
	char state;

	if (r && !r->err) {
		print_reply(r, some);
		return;
	}
	state = r ? proc_state(r->pid, r->pid) : 0;
	if (r && r->pid && state && state != 'T' && state != 't')
		stat_say_silent(r);
	else if (r || s)
		print_outside(s ?: &(struct seen){ .pid = r->pid });
}

bool ps_is_pid(const char *asked)
{
	return *asked && !asked[strspn(asked, "0123456789")];
}

bool ps_say_stranger(const char *pid)
{
	char path[64];

	if (snprintf(path, sizeof(path), "/proc/%s", pid) >=
		    (int)sizeof(path) ||
	    access(path, F_OK))
		return false;
	cli_say("process %s runs, and is none of softhca's programs of this "
		"user (softhca ps): softhca run starts one",
		pid);
	return true;
}

bool ps_explain(pid_t pid)
{
	const struct stat_reply *one;
	struct stat_reply *r;
	struct seen s;
	bool seen;
	size_t n;

	if (stat_ask(NULL, STAT_WANT_ALL, &r, &n))
		return false;
	one = reply_of(r, n, pid);
	seen = look_at(pid, &s);
	print_process(one, seen ? &s : NULL, false);
	stat_free(r, n);
	return one || seen;
}

static int by_pid(const void *a, const void *b)
{
	const struct seen *x = a, *y = b;

	return x->pid < y->pid ? -1 : x->pid > y->pid;
}

static const struct seen *seen_of(const struct all *all, pid_t pid)
{
	for (size_t i = 0; i < all->n; i++)
		if (all->seen[i].pid == pid)
			return &all->seen[i];
	return NULL;
}

/* What is asked for; nothing: all of them. */
struct asked {
	char **args;
	unsigned n;
};

/* By its number, or a part of its name, as pgrep(1) has it: at most COMM letters,
 * and without its folder. */
static bool is_it(const char *asked, pid_t pid, const char *comm)
{
	const char *slash = strrchr(asked, '/');
	char name[COMM + 1];

	if (ps_is_pid(asked))
		return strtol(asked, NULL, 10) == pid;
	snprintf(name, sizeof(name), "%s", slash ? slash + 1 : asked);
	return name[0] && strstr(comm, name);
}

static bool is_asked_for(const struct asked *a, pid_t pid, const char *comm)
{
	for (unsigned i = 0; i < a->n; i++)
		if (is_it(a->args[i], pid, comm))
			return true;
	return !a->n;
}

/* Those that nobody is; how many. */
static unsigned say_missing(const struct asked *a, const struct all *all,
			    const struct stat_reply *r, size_t n)
{
	unsigned missing = 0;

	for (unsigned i = 0; i < a->n; i++) {
		const char *asked = a->args[i];
		bool found = false;

		for (size_t k = 0; k < all->n && !found; k++)
			found = is_it(asked, all->seen[k].pid,
				      all->seen[k].comm);
		for (size_t k = 0; k < n && !found; k++)
			found = is_it(asked, r[k].pid, r[k].comm);
		if (found)
			continue;
		missing++;
		if (!ps_is_pid(asked))
			cli_say("no running program of this user with "
				"softhca's "
				"libraries has a name with \"%s\" in it; "
				"softhca ps shows all of them",
				asked);
		else if (!ps_say_stranger(asked))
			cli_say("there is no process %s", asked);
	}
	return missing;
}

static error_t parse_ps(int key, char *arg, struct argp_state *state)
{
	struct asked *a = state->input;

	(void)arg;
	if (key != ARGP_KEY_ARGS)
		return ARGP_ERR_UNKNOWN;
	a->args = state->argv + state->next;
	a->n = (unsigned)(state->argc - state->next);
	return 0;
}

int cmd_ps(int argc, char **argv)
{
	static const struct argp argp = {
		.parser = parse_ps,
		.args_doc = "[PID|NAME...]",
		.doc = "Show running programs of this user that have softhca's "
		       "libraries, connected or not, and what each of their "
		       "threads, connections and queue pairs waits for: all, "
		       "or "
		       "those with a process ID or a part of a name."
		       "\v"
		       "Of a process with several queue pairs those are left "
		       "out that are idle. \"softhca explain PID\" shows all "
		       "of them.\n\n"
		       "Examples:\n"
		       "  softhca ps\n"
		       "  softhca ps ib_write_bw",
	};
	struct stat_reply *r = NULL;
	struct asked asked = { 0 };
	struct all all = { 0 };
	size_t n = 0;
	int err;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &asked);
	err = stat_ask(NULL, STAT_WANT_ALL, &r, &n) ?: look_at_all(&all);
	if (err)
		cli_say("cannot ask: %s", strerror(-err));
	if (all.n)
		qsort(all.seen, all.n, sizeof(*all.seen), by_pid);
	for (size_t i = 0; !err && i < all.n; i++)
		if (is_asked_for(&asked, all.seen[i].pid, all.seen[i].comm))
			print_process(reply_of(r, n, all.seen[i].pid),
				      &all.seen[i], true);
	/* In another PID namespace, or where /proc hides it. */
	for (size_t i = 0; !err && i < n; i++)
		if (!seen_of(&all, r[i].pid) &&
		    is_asked_for(&asked, r[i].pid, r[i].comm))
			print_process(&r[i], NULL, true);
	fflush(stdout);
	if (!err && !asked.n && !all.n && !n)
		cli_say("no running program of this user has softhca's "
			"libraries: it was not started by softhca run");
	if (!err && say_missing(&asked, &all, r, n))
		err = -ESRCH;
	stat_free(r, n);
	free(all.seen);
	return err ? EXIT_FAILURE : EXIT_SUCCESS;
}
