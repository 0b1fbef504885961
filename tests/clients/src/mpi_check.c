/*
 * mpi_check.c - what MPI programs do, with answers that are known
 *
 * Messages of all sizes between all ranks, collectives, one-sided windows. The
 * numbers are whole ones, so sums are exact whatever their order. The first
 * wrong answer ends the job with a status; the last line of rank 0 says how
 * many bytes the ranks have sent one another at the least.
 */
#include <mpi.h>

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond, ...)                                                       \
	do {                                                                   \
		if (!(cond))                                                   \
			fail(__LINE__, #cond, __VA_ARGS__);                    \
	} while (0)

static int rank, ranks;
static uint64_t sent; /* by this rank */

__attribute__((format(printf, 3, 4))) static void
fail(int line, const char *cond, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "rank %d, line %d: not %s: ", rank, line, cond);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	MPI_Abort(MPI_COMM_WORLD, 2);
}

static void *alloc(size_t len)
{
	void *p = calloc(1, len ? len : 1);

	CHECK(p, "%zu bytes", len);
	return p;
}

/* The byte at i of what one rank sends another in a round. */
static uint8_t byte_of(int from, int to, int round, size_t i)
{
	return (uint8_t)((size_t)from * 7 + (size_t)to * 13 +
			 (size_t)round * 31 + i + (i >> 8) * 3);
}

/* Everybody to everybody, by MPI_Isend and MPI_Irecv; every other round the
 * sends come first and find nobody waiting. */
static void messages(void)
{
	static const size_t size[] = { 0,      1,       8,    200,
				       1024,   8192,    8193, 65536,
				       300001, 1 << 20, 5,    3000000 };
	MPI_Request *req = alloc(2 * (size_t)ranks * sizeof(*req));

	for (int round = 0; round < (int)(sizeof(size) / sizeof(size[0]));
	     round++) {
		size_t len = size[round];
		uint8_t *out = alloc(len * (size_t)ranks);
		uint8_t *in = alloc(len * (size_t)ranks);
		int n = 0;

		for (int k = 0; k < 2; k++)
			for (int peer = 0; peer < ranks; peer++) {
				uint8_t *buf = out + (size_t)peer * len;

				if (peer == rank)
					continue;
				if (k == (round & 1)) {
					MPI_Irecv(in + (size_t)peer * len,
						  (int)len, MPI_BYTE, peer,
						  round, MPI_COMM_WORLD,
						  &req[n++]);
					continue;
				}
				for (size_t i = 0; i < len; i++)
					buf[i] = byte_of(rank, peer, round, i);
				MPI_Isend(buf, (int)len, MPI_BYTE, peer, round,
					  MPI_COMM_WORLD, &req[n++]);
				sent += len;
			}
		MPI_Waitall(n, req, MPI_STATUSES_IGNORE);
		for (int peer = 0; peer < ranks; peer++)
			for (size_t i = 0; peer != rank && i < len; i++)
				CHECK(in[(size_t)peer * len + i] ==
					      byte_of(peer, rank, round, i),
				      "%zu bytes from %d, at %zu", len, peer,
				      i);
		free(out);
		free(in);
	}
	free(req);
}

static void allreduce(int n)
{
	double *in = alloc((size_t)n * sizeof(*in));
	double *out = alloc((size_t)n * sizeof(*out));
	int most = -1, mine = rank * 3;

	for (int i = 0; i < n; i++)
		in[i] = (double)(rank + 1) * (i % 1000);
	MPI_Allreduce(in, out, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		CHECK(out[i] == (double)(ranks * (ranks + 1) / 2 * (i % 1000)),
		      "allreduce of %d, at %d: %f", n, i, out[i]);
	MPI_Allreduce(&mine, &most, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	CHECK(most == 3 * (ranks - 1), "%d", most);
	sent += (uint64_t)n * sizeof(*in) / 2;
	free(in);
	free(out);
}

static void alltoall(int n)
{
	size_t len = (size_t)n * (size_t)ranks;
	int *in = alloc(len * sizeof(*in)), *out = alloc(len * sizeof(*out));

	for (int peer = 0; peer < ranks; peer++)
		for (int i = 0; i < n; i++)
			in[peer * n + i] = rank * 1000003 + peer * 10007 + i;
	MPI_Alltoall(in, n, MPI_INT, out, n, MPI_INT, MPI_COMM_WORLD);
	for (int peer = 0; peer < ranks; peer++)
		for (int i = 0; i < n; i++)
			CHECK(out[peer * n + i] ==
				      peer * 1000003 + rank * 10007 + i,
			      "alltoall of %d, from %d at %d", n, peer, i);
	sent += (uint64_t)(ranks - 1) * (uint64_t)n * sizeof(*in);
	free(in);
	free(out);
}

/* Puts and gets between fences: each rank's window has a part for each. */
static void fences(int n)
{
	size_t len = (size_t)n * (size_t)ranks;
	int64_t *base, *mine = alloc((size_t)n * sizeof(*mine));
	int64_t *got = alloc(len * sizeof(*got));
	MPI_Win win;

	MPI_Win_allocate((MPI_Aint)(len * sizeof(*base)), sizeof(*base),
			 MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
	memset(base, 0, len * sizeof(*base));
	for (int i = 0; i < n; i++)
		mine[i] = (int64_t)rank << 32 | i;
	MPI_Win_fence(0, win);
	for (int peer = 0; peer < ranks; peer++)
		MPI_Put(mine, n, MPI_INT64_T, peer, (MPI_Aint)rank * n, n,
			MPI_INT64_T, win);
	MPI_Win_fence(0, win);
	for (int peer = 0; peer < ranks; peer++)
		for (int i = 0; i < n; i++)
			CHECK(base[peer * n + i] == ((int64_t)peer << 32 | i),
			      "put of %d, from %d at %d", n, peer, i);
	MPI_Win_fence(0, win);
	for (int peer = 0; peer < ranks; peer++)
		MPI_Get(got + (size_t)peer * (size_t)n, n, MPI_INT64_T, peer,
			(MPI_Aint)((rank + 1) % ranks) * n, n, MPI_INT64_T,
			win);
	MPI_Win_fence(0, win);
	for (int peer = 0; peer < ranks; peer++)
		for (int i = 0; i < n; i++)
			CHECK(got[peer * n + i] ==
				      ((int64_t)((rank + 1) % ranks) << 32 | i),
			      "get of %d, from %d at %d", n, peer, i);
	sent += 2 * (uint64_t)(ranks - 1) * (uint64_t)n * sizeof(*base);
	MPI_Win_free(&win);
	free(mine);
	free(got);
}

/* Counters of rank 0, which everybody adds to; a lock made of compare and swap
 * that guards a sum; an accumulate of many. */
static void atomics(void)
{
	enum { COUNTER, LOCK, SUM, ARRAY, WORDS = ARRAY + 100, ROUNDS = 100 };
	int64_t *base, one = 1, zero = 0, old, hundred[100], last = -1;
	MPI_Win win;

	MPI_Win_allocate(rank ? 0 : WORDS * (MPI_Aint)sizeof(*base),
			 sizeof(*base), MPI_INFO_NULL, MPI_COMM_WORLD, &base,
			 &win);
	if (!rank)
		memset(base, 0, WORDS * sizeof(*base));
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < ROUNDS; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_INT64_T, 0, COUNTER, MPI_SUM,
				 win);
		MPI_Win_flush(0, win);
		CHECK(old > last && old < (int64_t)ROUNDS * ranks,
		      "%lld after %lld", (long long)old, (long long)last);
		last = old;
	}
	for (int i = 0; i < 10; i++) {
		int64_t seen, next;

		do {
			MPI_Compare_and_swap(&one, &zero, &old, MPI_INT64_T, 0,
					     LOCK, win);
			MPI_Win_flush(0, win);
		} while (old);
		MPI_Get(&seen, 1, MPI_INT64_T, 0, SUM, 1, MPI_INT64_T, win);
		MPI_Win_flush(0, win);
		next = seen + rank + 1;
		MPI_Put(&next, 1, MPI_INT64_T, 0, SUM, 1, MPI_INT64_T, win);
		MPI_Win_flush(0, win);
		MPI_Fetch_and_op(&zero, &old, MPI_INT64_T, 0, LOCK, MPI_REPLACE,
				 win);
		MPI_Win_flush(0, win);
		CHECK(old == 1, "somebody else unlocked: %lld", (long long)old);
	}
	for (int i = 0; i < 100; i++)
		hundred[i] = i + rank;
	MPI_Accumulate(hundred, 100, MPI_INT64_T, 0, ARRAY, 100, MPI_INT64_T,
		       MPI_SUM, win);
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
	if (!rank) {
		CHECK(base[COUNTER] == (int64_t)ROUNDS * ranks, "%lld",
		      (long long)base[COUNTER]);
		CHECK(base[SUM] == 10 * ranks * (ranks + 1) / 2, "%lld",
		      (long long)base[SUM]);
		for (int i = 0; i < 100; i++)
			CHECK(base[ARRAY + i] ==
				      ranks * i + ranks * (ranks - 1) / 2,
			      "accumulate at %d: %lld", i,
			      (long long)base[ARRAY + i]);
	}
	MPI_Win_unlock(0, win);
	MPI_Win_free(&win);
}

static void say(const char *what)
{
	static double before;
	double now = MPI_Wtime();

	if (!rank && before)
		printf("%-10s %6.2f s\n", what, now - before);
	before = now;
}

int main(int argc, char **argv)
{
	uint64_t all = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	say("");
	messages();
	say("messages");
	for (int n = 1; n <= 100000; n *= 10) {
		allreduce(n);
		alltoall(n);
	}
	say("collective");
	fences(1);
	fences(20000);
	say("fences");
	atomics();
	say("atomics");
	MPI_Reduce(&sent, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	MPI_Finalize();
	if (!rank)
		printf("%d ranks agree after %llu bytes\n", ranks,
		       (unsigned long long)all);
	return 0;
}
