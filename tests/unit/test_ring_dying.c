/*
 * test_ring_dying.c - a producer ends between any two instructions: the
 * consumer gets what was published, whole, and the next producer goes on
 */
#include "ring_ends.h"

#include "child.h"

#include <errno.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

/* Something of everything that a producer does. */
static void produce(struct ends *e)
{
	struct ring_rec *rec;

	put_now(e, bytes_of(e->put, 1000), 1);
	put_now(e, bytes_of(e->put, 1000), 1);
	rec = ring_begin(&e->out, 600);
	if (rec)
		memset(ring_data(rec), 1, 600); /* and gives up */
	ring_publish(&e->out);
	put(e, bytes_of(e->put, 1000), 1);
	put(e, bytes_of(e->put, 1000), 1);
	put(e, bytes_of(e->put, 1000), 1);
	ring_publish(&e->out);
	put(e, bytes_of(e->put, 1000), 1);
	put_now(e, bytes_of(e->put, 1000), 1);
}

/* Consumes what there is; it has to be whole, and follow what has been got. */
static void drain(struct ends *e)
{
	struct ring_rec rec = { .word = 0 };

	while (ring_get(&e->in, &rec)) {
		assert_true(
			is(e, &e->in, &rec, e->got, bytes_of(e->got, 1000)));
		ring_release(&e->in, RING_DONE);
		e->got++;
	}
	assert_null(e->in.broken);
}

/* The ring as it is now is what a killed producer would have left. */
static void killed_here(const struct ends *from, struct ends *e)
{
	struct ring_mem *mem = e->mem;
	uint8_t *data = e->data;
	struct ring_ack ack;

	memcpy(mem, from->mem, sizeof(*mem));
	*e = *from;
	e->mem = e->in.mem = mem;
	e->in.line = &mem->unit[e->in.pos & 0xffff];
	memset(&e->out, 0xee, sizeof(e->out));
	assert_int_equal(ring_out_attach(&e->out, mem, LIFE), 0);
	drain(e);
	for (e->put = e->got; e->put < from->got + 30;)
		assert_true(put_now(e, bytes_of(e->put, 1000), 1));
	drain(e);
	assert_int_equal(e->got, e->put);
	assert_false(ring_reap(&e->out, &ack));
	assert_int_equal(ring_unread(&e->out), 0);
	e->data = data;
}

static unsigned step_through(struct ends *e, struct ends *copy)
{
	unsigned steps = 0;
	int status;
	pid_t pid = fork_child();

	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			_exit(77);
		raise(SIGSTOP);
		produce(e);
		_exit(0);
	}
	for (;; steps++) {
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (WIFEXITED(status))
			break;
		assert_true(WIFSTOPPED(status));
		killed_here(e, copy);
		if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL)) {
			kill(pid, SIGKILL);
			fail_msg("PTRACE_SINGLESTEP: %s", strerror(errno));
		}
	}
	if (WEXITSTATUS(status) == 77) {
		print_message("ptrace() is not allowed here\n");
		skip();
	}
	return steps;
}

/* At several places of the ring, full of old records that look like new ones. */
static void after_any_instruction(void **arg)
{
	static const uint32_t from[] = { 2, 960, 990, 998 };
	struct ends *e = ends_new(), *copy = ends_new();
	unsigned i, steps = 0;

	(void)arg;
#ifdef __SANITIZE_THREAD__
	skip(); /* most instructions are TSan's */
#endif
	for (i = 0; i < sizeof(from) / sizeof(*from); i++) {
		while ((e->in.pos & 0xffff) != from[i]) {
			e->put = e->got;
			assert_true(put_now(e, 0, 0));
			take(e, 0, RING_DONE);
			reap_nothing(e);
		}
		memset(e->mem->unit + e->out.at + 1, 1,
		       (RING_UNITS - e->out.at - 1) * RING_UNIT);
		memset(e->mem->unit, 1, e->out.at * RING_UNIT);
		e->out.clear = e->out.at + 1;
		e->put = e->got;
		steps += step_through(e, copy);
		/* The child has done this; its private memory is gone. */
		assert_int_equal(ring_out_attach(&e->out, e->mem, LIFE), 0);
		drain(e);
		reap_nothing(e);
	}
	print_message("%u instructions\n", steps);
	assert_true(steps > 1000);
	ends_free(e);
	ends_free(copy);
}

/* For ever, in another process. */
static void produce_for_ever(struct ends *e, uint16_t generation)
{
	struct ring_ack ack;

	if (ring_out_attach(&e->out, e->mem, generation))
		_exit(1);
	for (e->put = 0;;) {
		if (!put(e, bytes_of(e->put, 1000), 1) || e->put % 3 == 0) {
			ring_publish(&e->out);
			while (ring_reap(&e->out, &ack))
				;
		}
	}
}

/* The next record, of the same generation or the first one of a later
 * generation. */
static bool consume(struct ends *e, uint16_t *generation)
{
	struct ring_rec rec = { .word = 0 };

	if (!ring_get(&e->in, &rec)) {
		assert_null(e->in.broken);
		return false;
	}
	if (ring_generation(&rec) != *generation) {
		assert_true(ring_generation(&rec) > *generation);
		*generation = ring_generation(&rec);
		e->got = 0;
	}
	assert_true(is(e, &e->in, &rec, e->got, bytes_of(e->got, 1000)));
	ring_release(&e->in, RING_ACKED);
	e->got++;
	return true;
}

static void killed(void **arg)
{
	struct ends *e = ends_new();
	uint64_t state = rnd_seed();
	uint16_t generation, seen = 0;
	uint32_t want;
	pid_t pid;

	(void)arg;
	for (generation = 1; generation <= 300; generation++) {
		pid = fork_child();
		assert_true(pid >= 0);
		if (!pid)
			produce_for_ever(e, generation);
		want = 1 + (uint32_t)(rnd(&state) % 1000);
		while (seen != generation || e->got < want) {
			if (consume(e, &seen))
				continue;
			assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
			sched_yield();
		}
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, NULL, 0), pid);
		/* Some of what is left the next one finds there. */
		while (rnd(&state) % 64 && consume(e, &seen))
			;
	}
	ends_free(e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(after_any_instruction),
		cmocka_unit_test(killed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
