/*
 * tree.c - the processes that are saved together
 */
#include "cli/tree.h"
#include "base/sys.h"
#include "os/proc.h"
#include "os/threads.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define ASK_NS 15000000000u /* a process suspends, or says why not */
#define ROUNDS 5 /* others begin meanwhile */
#define END_NS 200000000u /* one whose files are closed has ended */
#define NAP_NS 1000000u

__attribute__((format(printf, 3, 4))) static int fail(char why[1024], int err,
						      const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, 1024, fmt, ap);
	va_end(ap);
	return err;
}

static bool has(const struct tree *t, pid_t pid)
{
	for (size_t i = 0; i < t->n; i++)
		if (t->member[i].pid == pid)
			return true;
	return false;
}

static int add(struct tree *t, pid_t pid)
{
	if (has(t, pid))
		return 0;
	if (t->n == IMAGE_PROCESSES)
		return fail(t->why, -E2BIG, "there are more than %d processes",
			    IMAGE_PROCESSES);
	t->member[t->n++] = (struct member){ .pid = pid };
	return 0;
}

/* Of all threads of a process. */
static int add_children(struct tree *t, pid_t pid)
{
	char path[300];
	struct dirent *e;
	int err = 0, child;
	FILE *f;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	d = opendir(path);
	while (d && !err && (e = readdir(d))) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/children",
			 (int)pid, e->d_name);
		f = fopen(path, "re");
		while (f && !err && fscanf(f, "%d", &child) == 1)
			err = add(t, child);
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return err;
}

/* Those that are known stay as they are. */
static int read_more(struct tree *t)
{
	int err = 0;

	for (size_t i = 0; i < t->n && !err; i++)
		err = add_children(t, t->member[i].pid);
	return err;
}

int tree_read(struct tree *t, pid_t root)
{
	memset(t, 0, sizeof(*t));
	if (kill(root, 0))
		return fail(t->why, -errno,
			    errno == EPERM ? "process %d is another user's" :
					     "there is no process %d",
			    (int)root);
	add(t, root);
	return read_more(t);
}

static void is_engine(void *arg, const struct thread_does *t)
{
	bool *found = arg;

	*found |= !strcmp(t->name, "softhca");
}

/* Where a process has neither a registry nor a socket its thread gives it away. */
static bool has_thread(pid_t pid)
{
	bool found = false;

	threads_each(pid, UINT_MAX, is_engine, &found);
	return found;
}

/* What is to be done is not done, as err and its answer say. */
static int fail_member(struct tree *t, const struct member *m, const char *does,
		       int err)
{
	const char *why = m->s.answer.why;

	if (err == -ETIMEDOUT)
		why = "it does not answer";
	else if (err == -ECONNRESET || err == -EPIPE)
		why = "it has ended, or ends";
	else if (err == -EPROTO)
		why = "it has another version of softhca, which does not know "
		      "this command";
	return fail(t->why, err, "process %d does not %s: %s", (int)m->pid,
		    does, *why ? why : strerror(-err));
}

static void add_peers(struct suspend_peers *sum, const struct suspend_peers *p)
{
	sum->all += p->all;
	sum->wait += p->wait;
	sum->host += p->host;
	if (p->patience_ms < sum->patience_ms)
		sum->patience_ms = p->patience_ms;
	if (p->far_ms < sum->far_ms)
		sum->far_ms = p->far_ms;
	sum->other_secret |= p->other_secret;
}

int tree_count_peers(struct tree *t, struct suspend_peers *sum)
{
	static const struct suspend_request want = { .count = true };
	char path[4096];
	int err = 0;

	*sum = (struct suspend_peers){ .patience_ms = UINT32_MAX,
				       .far_ms = UINT32_MAX };
	for (size_t i = 0; i < t->n && !err; i++) {
		struct member *m = &t->member[i];

		if (suspend_state_of(m->pid, path) != SUSPEND_SOCKET)
			continue;
		err = suspend_ask(m->pid, path, &want, ASK_NS, &m->s);
		if (err)
			fail_member(t, m, "say who its peers are", err);
		else
			add_peers(sum, &m->s.answer.peers);
	}
	return err;
}

static int suspend(struct tree *t, struct member *m)
{
	const struct suspend_request want = { .seconds = t->seconds };
	char path[4096];
	enum suspend_state state = suspend_state_of(m->pid, path);
	int err;

	if (state == SUSPEND_NO_DEVICE && !has_thread(m->pid))
		return 0;
	if (state != SUSPEND_SOCKET)
		return fail(
			t->why, -ENOTCONN,
			"process %d has a device open and cannot be asked "
			"to suspend: it has not connected a queue pair yet, "
			"or has no directory for its socket "
			"(SOFTHCA_RUNDIR)",
			(int)m->pid);
	err = suspend_ask(m->pid, path, &want, ASK_NS, &m->s);
	if (err)
		return fail_member(t, m, "suspend", err);
	m->away = true;
	if (!t->naway++ || m->s.answer.real_ns < t->since_ns)
		t->since_ns = m->s.answer.real_ns;
	add_peers(&t->peers, &m->s.answer.peers);
	return 0;
}

int tree_suspend(struct tree *t)
{
	struct tree_back back;
	size_t done = 0;
	int err = 0;

	t->peers = (struct suspend_peers){ 0 };

	for (int i = 0; i < ROUNDS && done < t->n && !err; i++) {
		while (done < t->n && !err)
			err = suspend(t, &t->member[done++]);
		if (!err)
			err = read_more(t);
	}
	if (!err && done < t->n)
		err = fail(t->why, -EAGAIN, "new processes keep beginning");
	if (err) {
		char why[sizeof(t->why)];

		memcpy(why, t->why, sizeof(why));
		tree_resume(t, ASK_NS, &back);
		memcpy(t->why, why, sizeof(why));
	}
	return err;
}

static void let_go(struct member *m)
{
	if (m->away && m->s.hold >= 0)
		close(m->s.hold);
	if (m->away && m->s.seat >= 0)
		close(m->s.seat);
	m->s.hold = m->s.seat = -1;
}

void tree_let_go(struct tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		let_go(&t->member[i]);
}

static void add_away(struct tree_back *back, const struct suspend_away *a)
{
	size_t i = 0;

	while (i < back->naway &&
	       memcmp(back->away[i].at, a->at, sizeof(a->at)) != 0)
		i++;
	if (i == SUSPEND_AWAY)
		return;
	if (i == back->naway) {
		back->away[back->naway++] = *a;
		return;
	}
	back->away[i].qps += a->qps;
	if (a->ns > back->away[i].ns)
		back->away[i].ns = a->ns;
}

static void add_back(struct tree_back *back, const struct suspend_answer *a)
{
	if (a->took_ns > back->took_ns)
		back->took_ns = a->took_ns;
	if (a->real_ns > back->real_ns)
		back->real_ns = a->real_ns;
	for (size_t i = 0; i < a->naway && i < SUSPEND_AWAY; i++)
		add_away(back, &a->away[i]);
}

/* Until the last word, as it tries again, or no later. */
static int await(int fd, pid_t pid, uint64_t wait_ns, struct tree_back *back,
		 char why[1024])
{
	const uint64_t begin = sys_now_ns();
	struct suspend_answer a = { .err = ETIMEDOUT };
	uint64_t past;
	int err;

	do {
		past = sys_now_ns() - begin;
		err = suspend_done_wait(fd, past < wait_ns ? wait_ns - past : 0,
					&a);
	} while (!err && a.err);
	if (!err) {
		add_back(back, &a);
		return 0;
	}
	if (err == -ETIMEDOUT && a.err == ETIMEDOUT)
		return fail(why, err,
			    "process %d has not said within %u s that it goes "
			    "on",
			    (int)pid, (unsigned)(wait_ns / 1000000000));
	return fail(why, err, "process %d cannot go on: %s", (int)pid,
		    a.why[0] ? a.why : strerror(-err));
}

int tree_resume(struct tree *t, uint64_t wait_ns, struct tree_back *back)
{
	int fd[IMAGE_PROCESSES], err = 0;

	*back = (struct tree_back){ 0 };
	for (size_t i = 0; i < t->n; i++) {
		struct member *m = &t->member[i];

		fd[i] = m->away ? suspend_done_open(m->pid, m->s.answer.done) :
				  -1;
		/* The seat stays until it has taken it over. */
		if (m->away)
			close(m->s.hold);
		m->s.hold = -1;
	}
	for (size_t i = 0; i < t->n; i++) {
		struct member *m = &t->member[i];

		if (!m->away)
			continue;
		if (fd[i] < 0)
			err = fail(t->why, fd[i], "process %d is gone",
				   (int)m->pid);
		else if (!err)
			err = await(fd[i], m->pid, wait_ns, back, t->why);
		if (fd[i] >= 0)
			close(fd[i]);
		let_go(m);
		m->away = false;
	}
	t->naway = 0;
	return err;
}

/* As a program does that was at its end, by itself. */
static bool has_exited(pid_t pid)
{
	const uint64_t begin = sys_now_ns();
	siginfo_t si = { 0 };

	while (!kill(pid, 0) && proc_state(pid, pid) != 'Z') {
		if (sys_now_ns() - begin > END_NS)
			return false;
		sys_sleep(NAP_NS);
	}
	/* The parent of all is our child, who is restored. */
	return waitid(P_PID, (id_t)pid, &si, WEXITED | WNOHANG | WNOWAIT) ||
	       !si.si_pid || si.si_code == CLD_EXITED;
}

static int await_restored(int fd, pid_t pid, uint64_t wait_ns,
			  struct tree_back *back, char why[1024])
{
	int err;

	if (fd < 0)
		err = fail(why, fd,
			   "process %d has ended, or has not what it had: %s",
			   (int)pid, strerror(-fd));
	else
		err = await(fd, pid, wait_ns, back, why);
	if (!err || err == -ETIMEDOUT || !has_exited(pid))
		return err;
	back->ended++;
	return 0;
}

int tree_await(const struct image *im, uint64_t wait_ns, struct tree_back *back,
	       char why[1024])
{
	int fd[IMAGE_PROCESSES], err = 0;

	*back = (struct tree_back){ 0 };
	for (size_t i = 0; i < im->n; i++)
		fd[i] = im->process[i].done < 0 ?
				-1 :
				suspend_done_open(im->process[i].pid,
						  im->process[i].done);
	for (size_t i = 0; i < im->n; i++) {
		if (im->process[i].done < 0)
			continue;
		if (!err)
			err = await_restored(fd[i], im->process[i].pid, wait_ns,
					     back, why);
		if (fd[i] >= 0)
			close(fd[i]);
	}
	return err;
}

/* What CRIU has to be told */

/* Sockets of all processes, read once: the programs stand meanwhile. */
struct sockets {
	unsigned long *inode;
	size_t n, room;
	bool failed;
};

static bool add_socket(void *arg, const char *link)
{
	struct sockets *s = arg;
	unsigned long inode, *more;

	if (sscanf(link, "socket:[%lu]", &inode) != 1)
		return false;
	if (s->n == s->room) {
		s->room = s->room ? 2 * s->room : 64;
		more = realloc(s->inode, s->room * sizeof(*more));
		if (!more) {
			s->failed = true;
			return true;
		}
		s->inode = more;
	}
	s->inode[s->n++] = inode;
	return false;
}

static bool has_inode(const struct sockets *s, unsigned long inode)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->inode[i] == inode)
			return true;
	return false;
}

static bool table_has(const struct tree *t, const char *table,
		      const struct sockets *s)
{
	char path[64], line[512];
	unsigned long inode;
	unsigned state;
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/net/%s", (int)t->member[0].pid,
		 table);
	f = fopen(path, "re");
	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, " %*u: %*s %*s %x %*s %*s %*s %*s %*s %lu",
			       &state, &inode) == 2 &&
			state != 0x0a /* LISTEN */ && inode &&
			has_inode(s, inode);
	if (f)
		fclose(f);
	return found;
}

bool tree_has_tcp(const struct tree *t)
{
	struct sockets s = { 0 };
	bool has;

	for (size_t i = 0; i < t->n; i++)
		proc_find_fd(t->member[i].pid, add_socket, &s);
	/* CRIU bears the option where it is not needed. */
	has = s.failed || table_has(t, "tcp", &s) || table_has(t, "tcp6", &s);
	free(s.inode);
	return has;
}

bool tree_has_outer_session(const struct tree *t)
{
	for (size_t i = 0; i < t->n; i++)
		if (!has(t, getsid(t->member[i].pid)))
			return true;
	return false;
}

bool tree_has_locks(const struct tree *t)
{
	char line[256];
	bool found = false;
	FILE *f = fopen("/proc/locks", "re");
	int pid;

	while (f && !found && fgets(line, sizeof(line), f))
		found = sscanf(line, "%*s %*s %*s %*s %d", &pid) == 1 &&
			has(t, pid);
	if (f)
		fclose(f);
	return found;
}
