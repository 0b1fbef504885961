/*
 * softhca_stacks.c - where in a running program its threads stand
 *
 * The program is not stopped, gets no signal, and is not traced: its system calls
 * would end early. A thread that sleeps in one has its stack pointer and its place
 * in /proc/PID/task/TID/syscall, and its stack can be read, so it is unwound from
 * there. A frame that is found by another register (rbp, where what sleeps was
 * compiled with frame pointers) ends that, as the kernel shows no other. One that
 * runs has no place, unless it sleeps when it is looked at again: softhca's calls
 * do so for moments when a program polls.
 *
 * Frames of softhca, of the C library, and below main() are left out. Of a thread
 * without a frame whose source line is known there is the innermost, with its
 * function, as "FILE+0xOFFSET", as addr2line(1) takes it.
 */
#include "softhca_lines.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MOST 64u
#define FRAMES_MOST 64u /* of a thread, those that are left out as well */
#define STACK_MOST (256u << 10) /* bytes of a stack that are read */
#define TRIES 25u /* for a thread that runs, */
#define TRY_NS 500000 /* and the time between two */

/* How DWARF numbers the stack pointer. */
#if defined(__x86_64__)
#define SP_REGISTER 7
#elif defined(__aarch64__)
#define SP_REGISTER 31
#else
#define SP_REGISTER -1 /* of no machine that is known here */
#endif

struct walk {
	Dwfl *dwfl;
	pid_t pid;
	int mem; /* /proc/PID/mem */
	char own[PATH_MAX]; /* the folder of softhca's libraries, with a slash */
	pid_t tid[THREADS_MOST];
	unsigned n, next;

	/* Of the thread that is looked at: */
	FILE *out;
	unsigned frames;
	bool lines, names; /* there is a line; a frame with a name alone */
	uint64_t sp, pc;
	size_t len; /* bytes of the stack, from sp on */
	char stack[STACK_MOST];
};

static bool read_text(const char *path, char *text, size_t size)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	const ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	if (fd >= 0)
		close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

/* The last two of "CALL ARGUMENT... SP PC"; of one that runs there is one word. */
static bool find_place(const char *text, uint64_t *sp, uint64_t *pc)
{
	const char *last = strrchr(text, ' '), *at = last;

	while (at && at > text && at[-1] != ' ')
		at--;
	if (!at || at == text)
		return false;
	*sp = strtoull(at, NULL, 16);
	*pc = strtoull(last, NULL, 16);
	return *sp && *pc;
}

/* Reads the stack of a thread that sleeps, and goes on sleeping meanwhile. */
static bool catch_thread(struct walk *w, pid_t tid)
{
	const struct timespec wait = { .tv_nsec = TRY_NS };
	char path[64], text[256], after[256];
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", (int)w->pid,
		 (int)tid);
	for (unsigned i = 0; i < TRIES; i++) {
		if (i)
			nanosleep(&wait, NULL);
		if (!read_text(path, text, sizeof(text)))
			return false;
		if (!find_place(text, &w->sp, &w->pc))
			continue;
		n = pread(w->mem, w->stack, sizeof(w->stack), (off_t)w->sp);
		if (n > 0 && read_text(path, after, sizeof(after)) &&
		    !strcmp(text, after)) {
			w->len = (size_t)n;
			return true;
		}
	}
	return false;
}

/* libdwfl's calls. */

static pid_t next_thread(Dwfl *dwfl, void *walk, void **arg)
{
	struct walk *w = walk;

	(void)dwfl;
	*arg = w;
	return w->next < w->n ? w->tid[w->next++] : 0;
}

static bool set_registers(Dwfl_Thread *thread, void *arg)
{
	struct walk *w = arg;
	Dwarf_Word sp;

	if (!catch_thread(w, dwfl_thread_tid(thread)))
		return false;
	sp = w->sp;
	dwfl_thread_state_register_pc(thread, w->pc);
	return dwfl_thread_state_registers(thread, SP_REGISTER, 1, &sp);
}

static bool read_word(Dwfl *dwfl, Dwarf_Addr at, Dwarf_Word *word, void *walk)
{
	const struct walk *w = walk;

	(void)dwfl;
	if (at >= w->sp && w->len >= sizeof(*word) &&
	    at - w->sp <= w->len - sizeof(*word)) {
		memcpy(word, w->stack + (at - w->sp), sizeof(*word));
		return true;
	}
	return pread(w->mem, word, sizeof(*word), (off_t)at) == sizeof(*word);
}

/* Whether a file's frames say nothing of the program. */
static bool is_left_out(const struct walk *w, const char *file)
{
	const char *base = strrchr(file, '/');

	return !base || !strncmp(file, w->own, strlen(w->own)) ||
	       !strncmp(base, "/libc.so", 8) ||
	       !strncmp(base, "/libpthread.so", 14);
}

static int put_frame(Dwfl_Frame *frame, void *arg)
{
	struct walk *w = arg;
	const char *file, *name;
	Dwarf_Addr pc, bias = 0;
	Dwfl_Module *mod;
	bool exact;
	unsigned tid;

	if (w->frames++ == FRAMES_MOST || !dwfl_frame_pc(frame, &pc, &exact))
		return DWARF_CB_ABORT;
	if (!exact)
		pc--; /* in the line of the call */
	mod = dwfl_addrmodule(w->dwfl, pc);
	if (!mod)
		return DWARF_CB_ABORT;
	file = dwfl_module_info(mod, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
	if (!file || is_left_out(w, file))
		return DWARF_CB_OK;
	tid = (unsigned)dwfl_thread_tid(dwfl_frame_thread(frame));
	name = dwfl_module_addrname(mod, pc);
	if (lines_put(w->out, tid, mod, pc)) {
		w->lines = true;
	} else if (name) {
		w->names = true;
		dwfl_module_getelf(mod, &bias);
		fprintf(w->out, "%u\t%s\t%s+0x%llx\n", tid, name, file,
			(unsigned long long)(pc - bias));
	}
	return name && !strcmp(name, "main") ? DWARF_CB_ABORT : DWARF_CB_OK;
}

static int put_thread(Dwfl_Thread *thread, void *arg)
{
	struct walk *w = arg;
	char *text = NULL;
	size_t size = 0;

	w->out = open_memstream(&text, &size);
	if (!w->out)
		return DWARF_CB_ABORT;
	w->frames = 0;
	w->lines = w->names = false;
	/* An end that it does not know is an error to it. */
	dwfl_thread_getframes(thread, put_frame, w);
	if (fclose(w->out))
		return DWARF_CB_ABORT;
	if (!w->lines && w->names)
		text[strcspn(text, "\n") + 1] = '\0';
	fputs(text, stdout);
	free(text);
	return DWARF_CB_OK;
}

/* ---- the process ------------------------------------------------------- */

static bool list_threads(struct walk *w)
{
	struct dirent *d;
	char path[64];
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)w->pid);
	tasks = opendir(path);
	while (tasks && w->n < THREADS_MOST && (d = readdir(tasks)))
		if (isdigit((unsigned char)d->d_name[0]))
			w->tid[w->n++] = (pid_t)atol(d->d_name);
	if (tasks)
		closedir(tasks);
	return w->n;
}

/* Else its files may be others here. */
static bool same_mounts(pid_t pid)
{
	char path[64], own[64] = "", its[64] = "";

	snprintf(path, sizeof(path), "/proc/%d/ns/mnt", (int)pid);
	return readlink("/proc/self/ns/mnt", own, sizeof(own) - 1) > 0 &&
	       readlink(path, its, sizeof(its) - 1) > 0 && !strcmp(own, its);
}

/* This program lies beside the libraries. */
static void find_own(struct walk *w)
{
	const ssize_t n =
		readlink("/proc/self/exe", w->own, sizeof(w->own) - 1);
	char *slash;

	w->own[n > 0 ? n : 0] = '\0';
	slash = strrchr(w->own, '/');
	if (slash)
		slash[1] = '\0';
	else
		strcpy(w->own, "/"); /* nothing is known of it */
}

void stacks_put(pid_t pid)
{
	static const Dwfl_Callbacks calls = {
		.find_elf = dwfl_linux_proc_find_elf,
		.find_debuginfo = dwfl_standard_find_debuginfo,
	};
	static const Dwfl_Thread_Callbacks threads = {
		.next_thread = next_thread,
		.memory_read = read_word,
		.set_initial_registers = set_registers,
	};
	static struct walk w; /* which goes with the process */
	char path[64];

	w.pid = pid;
	find_own(&w);
	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	w.mem = open(path, O_RDONLY | O_CLOEXEC);
	w.dwfl = dwfl_begin(&calls);
	if (SP_REGISTER < 0 || w.mem < 0 || !w.dwfl || !same_mounts(pid) ||
	    !list_threads(&w))
		return;
	dwfl_report_begin(w.dwfl);
	if (dwfl_linux_proc_report(w.dwfl, pid) ||
	    dwfl_report_end(w.dwfl, NULL, NULL) ||
	    !dwfl_attach_state(w.dwfl, NULL, pid, &threads, &w))
		return;
	dwfl_getthreads(w.dwfl, put_thread, &w);
}
