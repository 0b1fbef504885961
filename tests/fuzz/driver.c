/*
 * driver.c - a fuzzer for any compiler: runs a target on seeds, on mutated seeds
 * and on random bytes, for a bounded time
 *
 *	TARGET [--seconds S] [--runs N] [--seed X] [--run N] [SEED...]
 *
 * A SEED is a pcap file or a directory of them (each RoCE packet is one input),
 * or any other file (its bytes are one input). These run first, unchanged, so
 * TARGET --runs 0 FILE replays a file that libFuzzer has written.
 *
 * Input number N depends only on the seed X, N and the SEED files. When the
 * target crashes or hangs, the driver prints X and N; --seed X --run N repeats
 * that input.
 */
#include "fuzz.h"

#include "capture.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MAX 8192
#define HANG_SECONDS 20
#define RUNS_MIN 1000 /* however slow the machine; scripts/test wants as many */

struct seed {
	uint8_t *data;
	size_t len;
};

static struct seed *seeds;
static size_t nseeds;

static const char *program;
static uint64_t seed;
static volatile uint64_t current; /* number of the input that is running */

void __sanitizer_set_death_callback(void (*fn)(void)) __attribute__((weak));

static void say_which(void)
{
	char text[256];
	int n;

	n = snprintf(text, sizeof(text),
		     "\n%s: input %llu; again with --seed 0x%llx --run %llu\n",
		     program, (unsigned long long)current,
		     (unsigned long long)seed, (unsigned long long)current);
	if (write(STDERR_FILENO, text, (size_t)n) != n)
		_exit(3);
}

static void on_signal(int sig)
{
	say_which();
	signal(sig, SIG_DFL);
	raise(sig);
}

static void catch_crashes(void)
{
	static const int always[] = { SIGABRT, SIGALRM };
	static const int unsanitized[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL };
	size_t i;

	for (i = 0; i < sizeof(always) / sizeof(*always); i++)
		signal(always[i], on_signal);
	if (__sanitizer_set_death_callback) {
		__sanitizer_set_death_callback(say_which);
		return;
	}
	for (i = 0; i < sizeof(unsanitized) / sizeof(*unsanitized); i++)
		signal(unsanitized[i], on_signal);
}

static uint64_t rng;

/* splitmix64: any state will do, also one that was just counted up. */
static uint64_t rnd64(void)
{
	uint64_t z = rng += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Below n, which is not 0. */
static size_t rnd(size_t n)
{
	return (size_t)(rnd64() % n);
}

static void noise(uint8_t *p, size_t len)
{
	while (len--)
		*p++ = (uint8_t)rnd64();
}

static uint64_t interesting(void)
{
	static const uint64_t v[] = {
		0,
		1,
		2,
		3,
		4,
		7,
		8,
		0x7f,
		0x80,
		0xff,
		0x100,
		0xfff,
		0x1000,
		0x1001,
		0x7fff,
		0x8000,
		0xffff,
		0x7fffff,
		0x800000,
		0xffffff,
		0x7fffffff,
		0x80000000,
		0x80000001,
		0xffffffff,
		0x7fffffffffffffff,
		0x8000000000000000,
		0xffffffffffffffff,
	};

	return v[rnd(sizeof(v) / sizeof(*v))];
}

/* One change of the *len bytes at p, of which there are at most INPUT_MAX. */
static void mutate(uint8_t *p, size_t *len)
{
	const struct seed *other;
	size_t at, n, i;
	uint64_t v;

	if (!*len) {
		*len = rnd(64);
		noise(p, *len);
		return;
	}
	at = rnd(*len);
	/* Headers matter more than payloads. */
	if (rnd(2))
		at = rnd(*len < 64 ? *len : 64);
	switch (rnd(9)) {
	case 0:
		p[at] ^= (uint8_t)(1u << rnd(8));
		break;
	case 1:
		p[at] = (uint8_t)rnd64();
		break;
	case 2: /* a number, big-endian, 1 to 8 bytes */
		v = interesting();
		for (n = (size_t)1 << rnd(4); n && at < *len; n--, at++)
			p[at] = (uint8_t)(v >> (8 * (n - 1)));
		break;
	case 3: /* a field up or down a little */
		p[at] = (uint8_t)(p[at] + rnd(9) - 4);
		break;
	case 4:
		*len = at;
		break;
	case 5:
		n = rnd(rnd(8) ? 16 : INPUT_MAX - *len + 1);
		n = n < INPUT_MAX - *len ? n : INPUT_MAX - *len;
		noise(p + *len, n);
		*len += n;
		break;
	case 6: /* take bytes out */
		n = 1 + rnd(*len - at);
		memmove(p + at, p + at + n, *len - at - n);
		*len -= n;
		break;
	case 7: /* put bytes in */
		n = 1 + rnd(16);
		if (n > INPUT_MAX - *len)
			break;
		memmove(p + at + n, p + at, *len - at);
		noise(p + at, n);
		*len += n;
		break;
	case 8: /* the other end of another seed */
		if (!nseeds)
			break;
		other = &seeds[rnd(nseeds)];
		for (i = at; i < other->len && i < INPUT_MAX; i++)
			p[i] = other->data[i];
		*len = i > at ? i : *len;
		break;
	}
}

static size_t make_input(uint64_t number, uint8_t *p)
{
	const struct seed *s;
	size_t len, n;

	if (number < nseeds) {
		s = &seeds[number];
		memcpy(p, s->data, s->len);
		return s->len;
	}
	rng = seed + number * 0x100000001b3u;
	if (!nseeds || rnd(16) == 0) {
		len = rnd(rnd(4) ? 80 : INPUT_MAX + 1);
		noise(p, len);
		return len;
	}
	s = &seeds[rnd(nseeds)];
	len = s->len;
	memcpy(p, s->data, len);
	for (n = 1 + rnd(rnd(2) ? 2 : 10); n; n--)
		mutate(p, &len);
	return len;
}

static void run(uint64_t number)
{
	uint8_t buf[INPUT_MAX], *exact;
	size_t len = make_input(number, buf);

	current = number;
	/* Of the very size, so that a sanitizer sees a byte too far. */
	exact = malloc(len ? len : 1);
	if (!exact)
		abort();
	memcpy(exact, buf, len);
	LLVMFuzzerTestOneInput(exact, len);
	free(exact);
}

static int add_seed(const uint8_t *data, size_t len)
{
	struct seed *more = realloc(seeds, (nseeds + 1) * sizeof(*seeds));

	if (!more)
		return -ENOMEM;
	seeds = more;
	len = len < INPUT_MAX ? len : INPUT_MAX;
	seeds[nseeds].data = malloc(len ? len : 1);
	if (!seeds[nseeds].data)
		return -ENOMEM;
	memcpy(seeds[nseeds].data, data, len);
	seeds[nseeds++].len = len;
	return 0;
}

static int add_file(const char *path)
{
	uint8_t buf[INPUT_MAX];
	FILE *f = fopen(path, "re");
	size_t len;

	if (!f)
		return -errno;
	len = fread(buf, 1, sizeof(buf), f);
	fclose(f);
	return add_seed(buf, len);
}

static int add_seeds(const char *path)
{
	const char *dot = strrchr(path, '.');
	struct captures c = { 0 };
	struct stat st;
	int err = 0;
	size_t i;

	if (stat(path, &st) != 0)
		return -errno;
	if (!S_ISDIR(st.st_mode) && (!dot || strcmp(dot, ".pcap") != 0))
		return add_file(path);
	err = captures_load(&c, path);
	for (i = 0; i < c.n && !err; i++)
		err = add_seed(c.pkt[i].data, c.pkt[i].len);
	captures_free(&c);
	return err;
}

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint64_t fresh_seed(void)
{
	const char *env = getenv("SOFTHCA_TEST_SEED");
	struct timespec ts;

	if (env)
		return strtoull(env, NULL, 0);
	clock_gettime(CLOCK_REALTIME, &ts);
	rng = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	return rnd64();
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "seconds", required_argument, NULL, 's' },
		{ "runs", required_argument, NULL, 'n' },
		{ "seed", required_argument, NULL, 'x' },
		{ "run", required_argument, NULL, '1' },
		{ 0 },
	};
	uint64_t runs = UINT64_MAX, one = UINT64_MAX, n, last;
	double limit = 3, start;
	int opt, err;
	size_t i;

	program = argv[0];
	seed = fresh_seed();
	while ((opt = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (opt) {
		case 's':
			limit = strtod(optarg, NULL);
			break;
		case 'n':
			runs = strtoull(optarg, NULL, 0);
			break;
		case 'x':
			seed = strtoull(optarg, NULL, 0);
			break;
		case '1':
			one = strtoull(optarg, NULL, 0);
			break;
		default:
			fprintf(stderr,
				"usage: %s [--seconds S] [--runs N] [--seed X]"
				" [--run N] [SEED...]\n",
				program);
			return 2;
		}
	}
	for (; optind < argc; optind++) {
		err = add_seeds(argv[optind]);
		if (err) {
			fprintf(stderr, "%s: %s\n", argv[optind],
				strerror(-err));
			return 2;
		}
		if (!nseeds) {
			fprintf(stderr, "%s: no packets\n", argv[optind]);
			return 2;
		}
	}
	if (LLVMFuzzerInitialize)
		LLVMFuzzerInitialize(&argc, &argv);

	printf("%s: --seed 0x%llx, %zu seed inputs\n", program,
	       (unsigned long long)seed, nseeds);
	fflush(stdout);
	catch_crashes();
	start = seconds();
	if (one != UINT64_MAX) {
		alarm(HANG_SECONDS);
		run(one);
		runs = 0;
		n = 1;
	} else {
		last = runs < UINT64_MAX - nseeds ? nseeds + runs : runs;
		for (n = 0; n < last; n++) {
			if (n % 64 == 0) {
				if (n >= nseeds && n >= RUNS_MIN &&
				    seconds() - start > limit)
					break;
				alarm(HANG_SECONDS);
			}
			run(n);
		}
	}
	alarm(0);
	printf("%s: %llu inputs in %.1f s\n", program, (unsigned long long)n,
	       seconds() - start);

	for (i = 0; i < nseeds; i++)
		free(seeds[i].data);
	free(seeds);
	return 0;
}
