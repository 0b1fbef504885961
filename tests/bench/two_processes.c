/*
 * two_processes.c - what the kernel offers to two processes, and what it costs
 *
 *   two_processes vm_write|vm_read SIZE SECONDS   process_vm(2), the same pages
 *   two_processes vm_pingpong SIZE SECONDS        both write, and spin
 *   two_processes pipe SIZE SECONDS               both sleep in read(2)
 *   two_processes store SIZE SECONDS              both spin on shared memory,
 *                                                 on bytes SIZE apart
 *   two_processes ring SIZE SECONDS               cells of SIZE bytes, one after
 *                                                 the other through shared memory
 *
 * One-sided operations within a host are copies of the first kind, so this is
 * the least that they can take; a program that waits for events takes at least
 * what a pipe does. The ring is as plain as one can be, and what small messages
 * within a host take at least. A store shows how far apart the two processors are: those
 * of a virtual machine may be one core now and two chips then. Prints
 * microseconds (the median: of a call, or one way of a ping-pong) and bytes per
 * second. The two processes run on the first and on the last processor that
 * they may use.
 */
#include "measure.h"

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SAMPLES = 1000000, PER_SAMPLE = 16 };

static float samples[SAMPLES];

static double median(size_t n)
{
	qsort(samples, n, sizeof(samples[0]), compare);
	return n ? (double)samples[n / 2] : -1;
}

/* Runs this process on the first or the last processor it may use. */
static void pin(int last)
{
	cpu_set_t may, one;
	int cpu = -1;

	if (sched_getaffinity(0, sizeof(may), &may))
		return;
	for (size_t i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, &may) && (cpu < 0 || last))
			cpu = (int)i;
	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static void copy(pid_t peer, int writes, char *mine, char *theirs, size_t size)
{
	struct iovec here = { mine, size }, there = { theirs, size };
	ssize_t n = writes ? process_vm_writev(peer, &here, 1, &there, 1, 0) :
			     process_vm_readv(peer, &here, 1, &there, 1, 0);

	if (n != (ssize_t)size)
		fail(writes ? "process_vm_writev" : "process_vm_readv");
}

static void stream(pid_t peer, int writes, char *mine, char *theirs,
		   size_t size, double seconds)
{
	double start, t, end;
	size_t n = 0;

	for (int i = 0; i < 100; i++)
		copy(peer, writes, mine, theirs, size);
	start = now();
	for (t = start; t < start + seconds && n < SAMPLES; n++) {
		for (int i = 0; i < PER_SAMPLE; i++)
			copy(peer, writes, mine, theirs, size);
		end = now();
		samples[n] = (float)((end - t) / PER_SAMPLE * 1e6);
		t = end;
	}
	printf("%.3f %.0f\n", median(n),
	       (double)n * PER_SAMPLE * (double)size / (t - start));
}

#define CELLS 1024
#define WINDOW 128 /* cells on their way, as perftest's messages */

/* One way only: the word at the end of a cell, which is stored last, says that it
 * is there, and a byte on the way back that it has been taken. */
struct ring {
	uint8_t taken[CELLS]; /* the lap */
	uint8_t cells[];
};

static uint32_t *ring_word(struct ring *r, size_t size, uint32_t n)
{
	return (void *)&r->cells[(n % CELLS + 1) * size - sizeof(uint32_t)];
}

static uint8_t ring_lap(uint32_t n)
{
	return (uint8_t)(n / CELLS + 1);
}

static void ring_consume(struct ring *r, size_t size, char *to)
{
	for (uint32_t n = 0;; n++) {
		uint32_t *word = ring_word(r, size, n);

		while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != n + 1)
			;
		memcpy(to, &r->cells[n % CELLS * size], size);
		__atomic_store_n(&r->taken[n % CELLS], ring_lap(n),
				 __ATOMIC_RELEASE);
	}
}

static void ring_produce(struct ring *r, size_t size, const char *from,
			 double seconds)
{
	double start = now(), t = start, end;
	uint32_t n = 0;
	size_t k = 0;

	for (; t < start + seconds && k < SAMPLES; k++) {
		for (uint32_t until = n + CELLS; n != until; n++) {
			const uint32_t old = n - WINDOW;

			while (n >= WINDOW &&
			       __atomic_load_n(&r->taken[old % CELLS],
					       __ATOMIC_ACQUIRE) !=
				       ring_lap(old))
				;
			memcpy(&r->cells[n % CELLS * size], from,
			       size - sizeof(uint32_t));
			__atomic_store_n(ring_word(r, size, n), n + 1,
					 __ATOMIC_RELEASE);
		}
		end = now();
		samples[k] = (float)((end - t) / CELLS * 1e6);
		t = end;
	}
	printf("%.4f %.0f\n", median(k),
	       (double)n * (double)size / (t - start));
}

/* How a ping-pong sends and waits. */
struct player {
	size_t size;
	char *in, *out;
	/* vm_pingpong */
	pid_t peer;
	char *theirs;
	/* pipe */
	int from, to;
	struct ring *ring;
};

static void vm_send(struct player *p, char mark)
{
	p->out[p->size - 1] = mark;
	copy(p->peer, 1, p->out, p->theirs, p->size);
}

/* The last byte of what comes says that all of it is there. */
static void vm_receive(struct player *p, char mark)
{
	volatile char *last = &p->in[p->size - 1];

	while (*last != mark)
		;
}

static void pipe_send(struct player *p, char mark)
{
	p->out[0] = mark;
	if (write(p->to, p->out, p->size) != (ssize_t)p->size)
		fail("write");
}

static void pipe_receive(struct player *p, char mark)
{
	ssize_t n;

	for (size_t got = 0; got < p->size; got += (size_t)n) {
		n = read(p->from, p->in + got, p->size - got);
		if (n <= 0)
			fail("read");
	}
	if (p->in[0] != mark)
		fail("what was read");
}

static void store_send(struct player *p, char mark)
{
	*(volatile char *)p->out = mark;
}

static void store_receive(struct player *p, char mark)
{
	while (*(volatile char *)p->in != mark)
		;
}

struct game {
	void (*send)(struct player *p, char mark);
	void (*receive)(struct player *p, char mark);
};

static const struct game vm_game = { vm_send, vm_receive };
static const struct game pipe_game = { pipe_send, pipe_receive };
static const struct game store_game = { store_send, store_receive };

static void answer(const struct game *g, struct player *p)
{
	for (unsigned char i = 1;; i++) {
		g->receive(p, (char)i);
		g->send(p, (char)i);
	}
}

static void ask(const struct game *g, struct player *p, double seconds)
{
	double start = now(), t = start, end;
	unsigned char i = 1;
	size_t n = 0;

	for (; t < start + seconds && n < SAMPLES; n++, i++) {
		g->send(p, (char)i);
		g->receive(p, (char)i);
		end = now();
		samples[n] = (float)((end - t) / 2 * 1e6);
		t = end;
	}
	printf("%.3f %.0f\n", median(n),
	       2.0 * (double)n * (double)p->size / (t - start));
}

/* The other process, which ends when this one does. */
static void other(const struct game *g, struct player *p, pid_t parent,
		  int ready)
{
	char byte = 0;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	pin(0);
	if (getppid() != parent || write(ready, &byte, 1) != 1)
		exit(1);
	if (p->ring)
		ring_consume(p->ring, p->size, p->in);
	if (g)
		answer(g, p);
	for (;;)
		pause();
}

static struct ring *ring_create(size_t size)
{
	struct ring *r;

	if (size % 8 || size > 4096)
		exit(2);
	r = mmap(NULL, sizeof(*r) + CELLS * size, PROT_READ | PROT_WRITE,
		 MAP_ANONYMOUS | MAP_SHARED, -1, 0);
	if (r == MAP_FAILED)
		fail("mmap");
	return r;
}

int main(int argc, char **argv)
{
	const struct game *g = NULL;
	struct player p = { 0 };
	pid_t parent = getpid(), child;
	int ready[2], forth[2], back[2];
	double seconds;
	bool writes;
	char byte;

	if (argc != 4 || (p.size = strtoul(argv[2], NULL, 10)) < 1) {
		fputs("see the head of two_processes.c\n", stderr);
		return 2;
	}
	writes = !strcmp(argv[1], "vm_write");
	if (!strcmp(argv[1], "vm_pingpong"))
		g = &vm_game;
	else if (!strcmp(argv[1], "pipe"))
		g = &pipe_game;
	else if (!strcmp(argv[1], "store"))
		g = &store_game;
	else if (!strcmp(argv[1], "ring"))
		p.ring = ring_create(p.size);
	else if (!writes && strcmp(argv[1], "vm_read"))
		return 2;
	seconds = atof(argv[3]);
	/* At the same addresses in both. */
	p.in = mmap(NULL, 2 * p.size, PROT_READ | PROT_WRITE,
		    MAP_ANONYMOUS |
			    (g == &store_game ? MAP_SHARED : MAP_PRIVATE),
		    -1, 0);
	if (p.in == MAP_FAILED || pipe(ready) || pipe(forth) || pipe(back))
		fail("setup");
	p.out = p.in + p.size;
	p.theirs = p.in;
	/* Where only a parent may copy, the child may, too. */
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	child = fork();
	if (child < 0)
		fail("fork");
	memset(p.in, 0, 2 * p.size);
	p.peer = child ? child : parent;
	if (!child && g == &store_game) {
		p.out = p.in;
		p.in += p.size;
	}
	p.from = child ? back[0] : forth[0];
	p.to = child ? forth[1] : back[1];
	if (!child)
		other(g, &p, parent, ready[1]);
	pin(1);
	if (read(ready[0], &byte, 1) != 1)
		fail("read");
	if (p.ring)
		ring_produce(p.ring, p.size, p.out, seconds);
	else if (g)
		ask(g, &p, seconds);
	else
		stream(child, writes, p.out, p.in, p.size, seconds);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	return 0;
}
