/*
 * doctor_same_host.c - how processes of this host reach each other
 *
 * Two processes try it, with the code of a program's engine. They are siblings
 * as two programs of a shell are: a parent may do more to its child (Yama).
 * The second one looks at the programs that run now, too, since those may be
 * in other namespaces.
 */
#include "cli/doctor.h"
#include "os/config.h"
#include "registry/registry.h"
#include "segment/segment.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define OTHERS 32 /* programs that are looked at */
#define WAIT_MS 15000

enum obstacle {
	NONE,
	NO_REGISTRY,
	NO_SEGMENT,
	NO_PEER, /* the other's segment cannot be attached */
	NO_COPY, /* the kernel refuses the copies */
};

/* What one of the two processes reports. */
struct report {
	enum obstacle obstacle;
	int err; /* of what did not work: an errno */
	int own_err; /* the same copy within the process */
	unsigned slot;
	char why[256];
	unsigned others, direct; /* programs, and those reached directly */
	pid_t other; /* one that is not; 0: not to be named */
	bool other_user_ns;
};

static int try_copy(pid_t pid, uint64_t addr)
{
	uint64_t value;
	struct iovec here = { &value, sizeof(value) };
	struct iovec there = { (void *)(uintptr_t)addr, sizeof(value) };

	return process_vm_readv(pid, &here, 1, &there, 1, 0) < 0 ? errno : 0;
}

/* Joins as a program does. */
static bool join_registry(struct report *rep, struct registry **r,
			  struct segment **s)
{
	uint32_t flags =
		config_get()->same_host == SAME_HOST_COPY ? SEGMENT_NO_COPY : 0;
	const char *why = NULL;
	int err = registry_join(r, NULL, &why);

	if (err) {
		rep->obstacle = NO_REGISTRY;
		rep->err = -err;
		snprintf(rep->why, sizeof(rep->why), "%s",
			 why ? why : strerror(-err));
		return false;
	}
	rep->slot = registry_slot(*r);
	err = segment_create(s, *r, flags);
	if (!err)
		return true;
	rep->obstacle = NO_SEGMENT;
	rep->err = -err;
	snprintf(rep->why, sizeof(rep->why), "%s", segment_why());
	registry_leave(*r);
	return false;
}

static void send_report(int fd, const struct report *rep)
{
	if (write(fd, rep, sizeof(*rep)) != (ssize_t)sizeof(*rep))
		_exit(1);
}

/* The first: is there until hold is closed. */
static void first_process(int out, int hold)
{
	struct report rep = { 0 };
	struct registry *r;
	struct segment *s;
	char byte;

	if (!join_registry(&rep, &r, &s)) {
		send_report(out, &rep);
		return;
	}
	send_report(out, &rep);
	while (read(hold, &byte, 1) < 0 && errno == EINTR)
		;
	segment_destroy(s);
	registry_leave(r);
}

static bool other_user_ns(pid_t pid)
{
	char path[64], mine[64], theirs[64];
	ssize_t a = readlink("/proc/self/ns/user", mine, sizeof(mine)), b;

	snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
	b = readlink(path, theirs, sizeof(theirs));
	return b < 0 || a != b || memcmp(mine, theirs, (size_t)a);
}

static void visit_others(struct report *rep, struct registry *r,
			 struct segment *s, unsigned but)
{
	for (unsigned i = 0; i < REGISTRY_SLOTS && rep->others < OTHERS; i++) {
		struct segment_peer *p;

		if (i == but || i == rep->slot || !*registry_segment(r, i) ||
		    !registry_alive(r, i))
			continue;
		p = segment_peer_get(s, i);
		if (!p)
			continue;
		rep->others++;
		if (segment_can_copy(p)) {
			rep->direct++;
		} else if (!rep->other && p->pid > 0) {
			rep->other = p->pid;
			rep->other_user_ns = other_user_ns(p->pid);
		}
		segment_peer_put(p);
	}
}

/* The second: tries to reach the first, and those that happen to run. */
static void second_process(int out, unsigned slot)
{
	struct report rep = { 0 };
	struct segment_peer *p;
	struct registry *r;
	struct segment *s;

	if (!join_registry(&rep, &r, &s)) {
		send_report(out, &rep);
		return;
	}
	p = segment_peer_get(s, slot);
	if (!p) {
		rep.obstacle = NO_PEER;
	} else if (!segment_can_copy(p)) {
		rep.obstacle = NO_COPY;
		rep.err = try_copy(p->pid, p->probe_addr);
		rep.own_err = try_copy(getpid(), (uintptr_t)&rep);
	}
	segment_peer_put(p);
	if (rep.obstacle == NONE)
		visit_others(&rep, r, s, slot);
	send_report(out, &rep);
	segment_destroy(s);
	registry_leave(r);
}

/* Runs one of the two and reads its report. 0: it has not given any. */
static pid_t start_process(struct report *rep, int hold, int hold_writer,
			   unsigned slot, bool first)
{
	struct pollfd pfd;
	int pipefd[2];
	bool got;
	pid_t pid;

	*rep = (struct report){ .obstacle = NO_SEGMENT, .err = EAGAIN };
	if (pipe(pipefd))
		return 0;
	fflush(NULL);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(hold_writer);
		if (first)
			first_process(pipefd[1], hold);
		else
			second_process(pipefd[1], slot);
		_exit(0);
	}
	close(pipefd[1]);
	pfd = (struct pollfd){ .fd = pipefd[0], .events = POLLIN };
	got = pid > 0 && poll(&pfd, 1, WAIT_MS) > 0 &&
	      read(pipefd[0], rep, sizeof(*rep)) == (ssize_t)sizeof(*rep);
	close(pipefd[0]);
	if (got)
		return pid;
	snprintf(rep->why, sizeof(rep->why), "%s",
		 pid < 0 ? "no process can be started" :
			   "a process that tried it did not answer");
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return 0;
}

static void try_both(struct report *rep)
{
	pid_t first, second;
	int hold[2];

	if (pipe(hold)) {
		*rep = (struct report){ .obstacle = NO_SEGMENT, .err = errno };
		snprintf(rep->why, sizeof(rep->why), "%s", strerror(errno));
		return;
	}
	first = start_process(rep, hold[0], hold[1], 0, true);
	if (first && rep->obstacle == NONE) {
		second = start_process(rep, hold[0], hold[1], rep->slot, false);
		if (second)
			waitpid(second, NULL, 0);
	}
	close(hold[0]);
	close(hold[1]);
	if (first)
		waitpid(first, NULL, 0);
}

static void why_no_segment(const struct report *rep, struct finding *f)
{
	TEXT(f, "%s", rep->why);
	if (rep->err == EFBIG)
		FIX(f, "ulimit -f unlimited");
	else if (rep->err == ENOMEM)
		FIX(f, "ulimit -v unlimited");
	else if (rep->err == ENOSPC || rep->err == EDQUOT)
		FIX(f, "free space there (a process needs up to 4 MiB); in a "
		       "container: --shm-size 64m");
	else
		FIX(f, "export SOFTHCA_RUNDIR=DIR, a writable directory in a "
		       "tmpfs");
}

/* '0' to '3', as /proc shows it, and '0' without Yama. */
static char yama_scope(void)
{
	char line[64];

	if (doctor_read_line("/proc/sys/kernel/yama/ptrace_scope", line,
			     sizeof(line)) ||
	    line[0] < '1' || line[0] > '3')
		return '0';
	return line[0];
}

/* Who refuses the copies, and what lets them through. */
static void why_no_copy(const struct report *rep, struct finding *f)
{
	char scope = yama_scope();

	if (rep->err == ENOSYS) {
		TEXT(f, "there is no process_vm_readv here");
		FIX(f, "use a kernel that has it (CONFIG_CROSS_MEMORY_ATTACH; "
		       "gVisor does not, runc's containers do)");
	} else if (rep->own_err) {
		TEXT(f,
		     "process_vm_readv is refused (%s), even within a "
		     "process: by seccomp",
		     strerror(rep->err));
		FIX(f, "in a container: --cap-add SYS_PTRACE, or a seccomp "
		       "profile that allows process_vm_readv and "
		       "process_vm_writev");
	} else if (scope != '0') {
		TEXT(f,
		     "Yama refuses process_vm_readv: "
		     "kernel.yama.ptrace_scope is %c%s",
		     scope,
		     scope == '3' ? ", until this machine restarts" : "");
		FIX(f, "%ssudo sysctl -w kernel.yama.ptrace_scope=%d",
		    scope == '3' ? "after a restart: " : "",
		    scope == '1' ? 0 : 1);
	} else {
		TEXT(f, "process_vm_readv is refused: %s",
		     rep->err ? strerror(rep->err) : "no reason");
		FIX(f, access("/sys/fs/selinux/enforce", F_OK) ?
			       "look into the kernel's log (dmesg) for the "
			       "security module that does it" :
			       "sudo setsebool deny_ptrace off");
	}
}

/* Programs that run now and are not reached as the two processes are. */
static void about_others(const struct report *rep, struct finding *f)
{
	if (!rep->others)
		return;
	TEXT(f, "; of %u running processes, %u are reached so", rep->others,
	     rep->direct);
	if (rep->direct == rep->others)
		return;
	f->status = WARN;
	if (!rep->other) {
		TEXT(f, ", the others through shared memory alone, since they "
			"are in another PID namespace");
		FIX(f, "let the containers share one: --pid container:NAME");
		return;
	}
	TEXT(f, ", the others, such as process %d, through shared memory alone",
	     (int)rep->other);
	if (rep->other_user_ns) {
		TEXT(f, ", since it is in another user namespace");
		FIX(f, "start both ends in the same one");
	} else {
		FIX(f, "see whether that process was started with "
		       "SOFTHCA_SAME_HOST=copy, or may not be traced "
		       "(prctl(2), PR_SET_DUMPABLE)");
	}
}

void check_same_host(struct doctor *d, struct finding *f)
{
	static const char udp[] = "a private UDP port (as with "
				  "--same-host=udp), several times slower";
	static const char copy[] = "shared memory, payload copied through it "
				   "(as with --same-host=copy)";
	struct report rep;

	(void)d;
	if (config_get()->wire || config_get()->same_host == SAME_HOST_UDP) {
		TEXT(f, "%s, as %s says",
		     config_get()->wire ? "UDP port 4791" : udp,
		     config_get()->wire ? "SOFTHCA_WIRE=1" :
					  "SOFTHCA_SAME_HOST=udp");
		FIX(f, "unset %s",
		    config_get()->wire ? "SOFTHCA_WIRE" : "SOFTHCA_SAME_HOST");
		return;
	}
	try_both(&rep);
	switch (rep.obstacle) {
	case NONE:
		TEXT(f, "processes share memory, and copy from and to each "
			"other's by process_vm_readv and process_vm_writev");
		if (yama_scope() == '1')
			TEXT(f, " (Yama restricts that, so each program says "
				"that any process of its user may trace it; "
				"--same-host=copy does not)");
		about_others(&rep, f);
		return;
	case NO_COPY:
		TEXT(f, "%s", copy);
		if (config_get()->same_host == SAME_HOST_COPY) {
			TEXT(f, ", as SOFTHCA_SAME_HOST=copy says");
			FIX(f, "unset SOFTHCA_SAME_HOST");
			return;
		}
		f->status = WARN;
		TEXT(f, ": ");
		why_no_copy(&rep, f);
		return;
	case NO_PEER:
		snprintf(rep.why, sizeof(rep.why),
			 "two processes cannot share memory");
		rep.err = ENOSPC;
		break;
	case NO_REGISTRY:
		f->status = WARN;
		TEXT(f, "not known, since processes of this host cannot find "
			"each other");
		FIX(f, "see registry");
		return;
	case NO_SEGMENT:
		break;
	}
	f->status = WARN;
	TEXT(f, "%s: ", udp);
	why_no_segment(&rep, f);
}
