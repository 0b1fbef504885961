/*
 * test_move.c - what a process that is suspended tells its peers: HELLO, PAUSE and
 * RESUME between two ends with queue pairs that only keep books, over a network that
 * loses, repeats and delays; and what strangers can do with all that they have seen
 */
#include "../lib/move_ends.h"
#include "unit.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "move/move.h"

#define QPS 20
#define FLYING 4096
#define MSEC 1000000ull
#define SEC 1000000000ull

enum { A, B, ENDS };

struct side {
	struct world *w;
	struct move *m;
	bool deaf; /* it is suspended, or does not know such messages */
	struct move_qp qp[QPS];
	uint64_t until[QPS];
	unsigned pauses[QPS], follows[QPS], knowns[QPS];
	uint32_t ids_were, ids_are; /* of the peer, as heard last */
};

struct flying {
	uint64_t due;
	union ibv_gid sgid, dgid;
	uint8_t mad[MAD_LEN];
};

struct world {
	struct side end[ENDS];
	uint64_t now, seed;
	unsigned loss, twice; /* per cent */
	uint64_t jitter;
	struct flying flying[FLYING];
	size_t n;
	/* All that has been seen. */
	struct flying seen[FLYING];
	size_t nseen;
};

static union ibv_gid gid(unsigned last)
{
	const uint8_t a[4] = { 10, 0, 0, (uint8_t)last };

	return gid_of_v4(a);
}

static struct move_qp *find(struct side *s, uint32_t qpn)
{
	const struct move_books b = { s->qp, QPS };

	return books_find(&b, qpn);
}

static bool look(void *arg, uint32_t qpn, struct move_qp *out)
{
	struct side *s = arg;
	const struct move_books b = { s->qp, QPS };

	return books_look(&b, qpn, out);
}

static void pause_qp(void *arg, uint32_t qpn, uint64_t until,
		     const struct move_said *said)
{
	struct side *s = arg;
	struct move_qp *qp = find(s, qpn);

	assert_non_null(qp);
	qp->said = *said;
	s->until[qp - s->qp] = until;
	s->pauses[qp - s->qp]++;
}

static void follow(void *arg, uint32_t qpn, const struct move_news *news,
		   const struct move_said *said)
{
	struct side *s = arg;
	struct move_qp *qp = find(s, qpn);

	assert_non_null(qp);
	books_follow(qp, news, said);
	s->ids_were = news->ids_were;
	s->ids_are = news->ids_are;
	s->until[qp - s->qp] = 0;
	s->follows[qp - s->qp]++;
}

static void known(void *arg, uint32_t qpn)
{
	struct side *s = arg;
	struct move_qp *qp = find(s, qpn);

	assert_non_null(qp);
	s->knowns[qp - s->qp]++;
}

static void fly(struct world *w, const struct flying *f)
{
	assert_true(w->n < FLYING);
	w->flying[w->n] = *f;
	w->flying[w->n++].due = w->now + MSEC / 10 +
				(w->jitter ? rnd(&w->seed) % w->jitter : 0);
}

static void send_mad(void *arg, const struct roce_path *path,
		     const uint8_t mad[MAD_LEN])
{
	struct side *s = arg;
	struct world *w = s->w;
	struct flying f = { .sgid = path->sgid, .dgid = path->dgid };

	assert_false(s->deaf);
	memcpy(f.mad, mad, MAD_LEN);
	if (w->nseen < FLYING)
		w->seen[w->nseen++] = f;
	if (rnd(&w->seed) % 100 >= w->loss)
		fly(w, &f);
	if (rnd(&w->seed) % 100 < w->twice)
		fly(w, &f);
}

/* QPs of two chunks, so of two processes as far as A knows. */
static void world_init(struct world *w, const char *secret_a,
		       const char *secret_b)
{
	const char *secret[ENDS] = { secret_a, secret_b };

	memset(w, 0, sizeof(*w));
	w->seed = rnd_seed();
	w->now = SEC;
	for (unsigned k = 0; k < ENDS; k++) {
		struct side *s = &w->end[k];
		struct move_config cfg = { .look = look,
					   .pause = pause_qp,
					   .follow = follow,
					   .known = known,
					   .send = send_mad,
					   .arg = s };

		s->w = w;
		rnd_fill(&w->seed, cfg.secret, sizeof(cfg.secret));
		rnd_fill(&w->seed, &cfg.process, sizeof(cfg.process));
		cfg.keyed = secret[k];
		if (secret[k])
			memcpy(cfg.shared, secret[k], SIPHASH_KEY);
		assert_int_equal(move_create(&s->m, &cfg), 0);
		for (uint32_t i = 0; i < QPS; i++) {
			const uint32_t qpn[ENDS] = {
				0x1234 + i, (i % 2 ? 0x2000u : 0x5000u) + i
			};

			s->qp[i] = (struct move_qp){
				.qpn = qpn[k],
				.peer = qpn[!k],
				.path = { .sgid = gid(1 + k),
					  .dgid = gid(2 - k),
					  .hop_limit = 64 },
				.una = k ? 0xfffff0 + i : 100 * i,
				.end_psn = k ? 2 + i : 100 * i + 30,
				.epsn = k ? 100 * i + 7 :
					    psn_add(0xfffff0, i + 5),
			};
		}
	}
}

static void world_fini(struct world *w)
{
	for (unsigned k = 0; k < ENDS; k++)
		move_destroy(w->end[k].m);
}

static bool is_at(const struct side *s, const union ibv_gid *at)
{
	return !memcmp(&s->qp[0].path.sgid, at, sizeof(*at));
}

static void arrive(struct world *w, const struct flying *f, size_t len)
{
	for (unsigned k = 0; k < ENDS; k++)
		if (!w->end[k].deaf && is_at(&w->end[k], &f->dgid))
			move_rx(w->end[k].m, &f->sgid, &f->dgid, 0, f->mad, len,
				w->now);
}

/* Until nobody waits, or the time is over. */
static void run(struct world *w, uint64_t until)
{
	for (;;) {
		uint64_t due = UINT64_MAX;
		size_t next = 0;

		for (size_t i = 0; i < w->n; i++)
			if (w->flying[i].due < due)
				due = w->flying[next = i].due;
		for (unsigned k = 0; k < ENDS; k++)
			if (!w->end[k].deaf)
				due = min_u64(due, move_deadline(w->end[k].m));
		if (due > until) {
			w->now = max_u64(w->now, until);
			return;
		}
		w->now = max_u64(w->now, due);
		if (w->n && w->flying[next].due <= w->now) {
			const struct flying f = w->flying[next];

			w->flying[next] = w->flying[--w->n];
			arrive(w, &f, MAD_LEN);
		}
		for (unsigned k = 0; k < ENDS; k++)
			if (!w->end[k].deaf)
				move_expire(w->end[k].m, w->now);
	}
}

static void plan(struct side *s, const uint8_t nonce[MOVE_NONCE])
{
	struct move_qp qps[QPS];

	memcpy(qps, s->qp, sizeof(qps));
	qsort(qps, QPS, sizeof(qps[0]), move_order);
	assert_int_equal(move_plan(s->m, nonce, qps, QPS), 0);
}

static struct move_sum leave(struct world *w, uint32_t seconds)
{
	struct side *a = &w->end[A];
	uint8_t nonce[MOVE_NONCE];
	struct move_sum sum;

	rnd_fill(&w->seed, nonce, sizeof(nonce));
	plan(a, nonce);
	move_hello(a->m, w->now);
	run(w, w->now + MOVE_PATIENCE_NS);
	move_pause(a->m, seconds, w->now);
	run(w, w->now + MOVE_PATIENCE_NS);
	assert_false(move_waits(a->m));
	sum = move_sum(a->m);
	assert_int_equal(sum.all, QPS);
	a->deaf = true;
	return sum;
}

static struct move_sum come_back(struct world *w, const union ibv_gid *at,
				 uint64_t ns)
{
	struct side *a = &w->end[A];

	a->deaf = false;
	for (unsigned i = 0; i < QPS; i++)
		a->qp[i].path.sgid = *at;
	move_resume(a->m, w->now);
	run(w, w->now + ns);
	return move_sum(a->m);
}

static void vectors(void **state)
{
	static const struct {
		size_t len;
		uint8_t mac[SIPHASH_LEN];
	} v[] = {
		{ 0,
		  { 0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6,
		    0x72, 0x14, 0xc7, 0x55, 0x02, 0x93 } },
		{ 1,
		  { 0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76,
		    0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45 } },
		{ 8,
		  { 0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83,
		    0xe2, 0x64, 0xf3, 0x14, 0x97, 0xb4 } },
		{ 15,
		  { 0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08,
		    0xec, 0x0f, 0x97, 0xcf, 0xc3, 0xd9 } },
		{ 240,
		  { 0x9c, 0x42, 0x30, 0xe9, 0x8d, 0x4d, 0x8e, 0xc6, 0x02, 0x49,
		    0x5a, 0x53, 0x16, 0xf2, 0x33, 0x26 } },
	};
	uint8_t key[SIPHASH_KEY], text[240], mac[SIPHASH_LEN];

	(void)state;
	for (unsigned i = 0; i < sizeof(text); i++)
		text[i] = (uint8_t)i;
	memcpy(key, text, sizeof(key));
	for (size_t i = 0; i < ARRAY_SIZE(v); i++) {
		siphash128(mac, key, text, v[i].len);
		assert_memory_equal(mac, v[i].mac, sizeof(mac));
	}
}

static void told_and_followed(void **state)
{
	static struct world w;
	struct move_sum sum;

	(void)state;
	world_init(&w, NULL, NULL);
	for (unsigned round = 1; round < 4; round++) {
		const union ibv_gid to =
			round == 2 ? w.end[A].qp[0].path.sgid : gid(8 + round);

		sum = leave(&w, 30);
		assert_int_equal(sum.hello, QPS);
		assert_int_equal(sum.paused, QPS);
		for (unsigned i = 0; i < QPS; i++) {
			assert_int_equal(w.end[B].pauses[i], round);
			assert_in_range(w.end[B].until[i], w.now + 29 * SEC,
					w.now + 30 * SEC);
		}
		w.now += 5 * SEC;
		sum = come_back(&w, &to, SEC);
		assert_int_equal(sum.resumed, QPS);
		assert_false(move_waits(w.end[A].m));
		for (unsigned i = 0; i < QPS; i++) {
			assert_int_equal(w.end[B].follows[i], round);
			assert_int_equal(w.end[A].knowns[i], round);
			assert_memory_equal(&w.end[B].qp[i].path.dgid, &to, 16);
			assert_int_equal(w.end[B].qp[i].peer,
					 w.end[A].qp[i].qpn);
		}
	}
	/* 20 QPs of two chunks: two HELLOs, and four parcels each of the others. */
	assert_int_equal(w.nseen, 3 * 2 * (2 + 4 + 4));
	world_fini(&w);
}

/* A's numbers are others by now, of both chunks or of that of communication IDs. */
static void take_numbers(struct world *w, uint32_t to, uint32_t ids)
{
	struct side *a = &w->end[A];
	const uint32_t from = a->qp[0].qpn / MOVE_CHUNK * MOVE_CHUNK;

	for (unsigned i = 0; i < QPS; i++)
		a->qp[i].qpn += to - from;
	if (to != from)
		move_renumber(a->m, from, to);
	if (ids)
		move_renumber_ids(a->m, 9 * MOVE_CHUNK, ids);
}

static void other_numbers(void **state)
{
	static struct world w;

	(void)state;
	for (unsigned i = 0; i < 60; i++) {
		const struct side *b = &w.end[B];

		world_init(&w, NULL, NULL);
		for (uint32_t round = 1; round < 5; round++) {
			const union ibv_gid at = gid(i % 2 ? 1 : 4 + round);
			const uint32_t ids =
				i % 3 ? 0 : (9 + round) * MOVE_CHUNK;

			w.loss = 0;
			assert_int_equal(leave(&w, 60).paused, QPS);
			w.loss = i % 50;
			/* It was back, and could not go on there. */
			if (round == 3)
				take_numbers(&w, 0x700000, 5 * MOVE_CHUNK);
			take_numbers(&w, round == 4 ? 0x1000 : round << 16,
				     ids);
			come_back(&w, &at, 100 * SEC);
			for (unsigned k = 0; k < QPS; k++) {
				assert_int_equal(b->follows[k], round);
				assert_int_equal(b->qp[k].peer,
						 w.end[A].qp[k].qpn);
				assert_memory_equal(&b->qp[k].path.dgid, &at,
						    16);
				assert_int_equal(w.end[A].knowns[k], round);
				assert_true(move_understood(
					w.end[A].m, w.end[A].qp[k].qpn));
			}
			assert_int_equal(b->ids_are, round == 3 && !ids ?
							     5 :
							     ids / MOVE_CHUNK);
			assert_int_equal(b->ids_were, b->ids_are ? 9 : 0);
		}
		world_fini(&w);
	}
}

/* One that does not know of this hears little, and is not waited for long. */
static void others_are_left_alone(void **state)
{
	static struct world w;
	struct move_sum sum;

	(void)state;
	world_init(&w, NULL, NULL);
	w.end[B].deaf = true;
	sum = leave(&w, 30);
	assert_int_equal(sum.hello + sum.paused, 0);
	assert_true(w.now <= SEC + 2 * MOVE_PATIENCE_NS);
	assert_int_equal(w.nseen, 2 * 4);
	sum = come_back(&w, &w.end[A].qp[0].path.sgid, 60 * SEC);
	assert_int_equal(sum.resumed, 0);
	assert_int_equal(w.nseen, 2 * 4);
	world_fini(&w);
}

/* A secret that one end alone has, or another one. */
static void secrets(void **state)
{
	static const char *const pairs[][2] = {
		{ "0123456789abcdef", "0123456789abcdef" },
		{ "0123456789abcdef", "0123456789abcdeX" },
		{ "0123456789abcdef", NULL },
		{ NULL, "0123456789abcdef" },
	};
	static struct world w;
	struct move_sum sum;

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
		world_init(&w, pairs[i][0], pairs[i][1]);
		sum = leave(&w, 30);
		assert_int_equal(sum.other_secret, i > 0);
		assert_int_equal(sum.paused, i ? 0 : QPS);
		for (unsigned k = 0; k < QPS; k++)
			assert_int_equal(w.end[B].pauses[k], !i);
		world_fini(&w);
	}
}

/* Nothing is lost for good while the peer waits. */
static void bad_networks(void **state)
{
	static struct world w;
	struct move_sum sum;

	(void)state;
	for (unsigned i = 0; i < 300; i++) {
		const union ibv_gid at = gid(3 + i % 2);

		world_init(&w, NULL, NULL);
		w.loss = i % 60;
		w.twice = i % 40;
		w.jitter = i % 3 * 30 * MSEC;
		sum = leave(&w, 60);
		if (!w.loss && !w.jitter)
			assert_int_equal(sum.paused, QPS);
		sum = come_back(&w, &at, 100 * SEC);
		for (unsigned k = 0; k < QPS; k++) {
			const struct side *b = &w.end[B];

			assert_true(b->pauses[k] <= 1 && b->follows[k] <= 1);
			/* Who was paused has heard of the end. */
			if (b->pauses[k])
				assert_int_equal(b->follows[k], 1);
			if (b->follows[k])
				assert_memory_equal(&b->qp[k].path.dgid, &at,
						    16);
		}
		assert_false(move_waits(w.end[A].m));
		world_fini(&w);
	}
}

/* Both ends at once; each at its address. */
static void both_at_once(void **state)
{
	static struct world w;

	(void)state;
	world_init(&w, NULL, NULL);
	for (unsigned k = 0; k < ENDS; k++) {
		uint8_t nonce[MOVE_NONCE];

		rnd_fill(&w.seed, nonce, sizeof(nonce));
		plan(&w.end[k], nonce);
		move_hello(w.end[k].m, w.now);
	}
	run(&w, w.now + SEC / 10);
	for (unsigned k = 0; k < ENDS; k++)
		move_pause(w.end[k].m, 30, w.now);
	run(&w, w.now + SEC / 10);
	w.end[A].deaf = w.end[B].deaf = true;
	/* One is back before the other. */
	w.now += SEC;
	w.end[A].deaf = false;
	move_resume(w.end[A].m, w.now);
	run(&w, w.now + 3 * SEC);
	w.end[B].deaf = false;
	move_resume(w.end[B].m, w.now);
	run(&w, w.now + 3 * SEC);
	for (unsigned k = 0; k < ENDS; k++)
		for (unsigned i = 0; i < QPS; i++) {
			assert_int_equal(w.end[k].pauses[i], 1);
			assert_int_equal(w.end[k].follows[i], 1);
			assert_int_equal(w.end[k].until[i], 0);
		}
	world_fini(&w);
}

/* One begins to ask before it has heard where the other one is by now. */
static void overtaken(void **state)
{
	const union ibv_gid at = gid(7);
	uint8_t nonce[MOVE_NONCE] = { 3 };
	static struct world w;
	struct move_sum sum;

	(void)state;
	for (unsigned i = 0; i < 3; i++) {
		world_init(&w, NULL, NULL);
		leave(&w, 30);
		if (i != 1)
			take_numbers(&w, 0x300000, 0);
		w.loss = 100;
		come_back(&w, i ? &at : &w.end[A].qp[0].path.sgid, MSEC);
		plan(&w.end[B], nonce);
		move_hello(w.end[B].m, w.now);
		w.loss = 0;
		run(&w, w.now + MOVE_PATIENCE_NS);
		move_pause(w.end[B].m, 30, w.now);
		run(&w, w.now + MOVE_PATIENCE_NS);
		sum = move_sum(w.end[B].m);
		assert_int_equal(sum.hello, QPS);
		assert_int_equal(sum.paused, QPS);
		move_resume(w.end[B].m, w.now);
		run(&w, w.now + SEC);
		assert_int_equal(move_sum(w.end[B].m).resumed, QPS);
		world_fini(&w);
	}
}

/* What is right but for where the connection is, is of another one. */
static void other_psns(void **state)
{
	static struct world w;
	struct move_sum sum;

	(void)state;
	world_init(&w, NULL, NULL);
	leave(&w, 30);
	w.end[A].qp[3].una = psn_add(w.end[A].qp[3].una, 8); /* > epsn there */
	w.end[A].qp[4].una = psn_add(w.end[A].qp[4].una, 1 << 23);
	w.end[A].qp[5].epsn = psn_add(w.end[B].qp[5].end_psn, 1);
	w.end[A].qp[6].epsn = psn_add(w.end[B].qp[6].una, PSN_MASK);
	sum = come_back(&w, &w.end[A].qp[0].path.sgid, SEC);
	assert_int_equal(sum.resumed, QPS - 4);
	for (unsigned i = 0; i < QPS; i++)
		assert_int_equal(w.end[B].follows[i], i < 3 || i > 6);
	world_fini(&w);
}

/* Many at once: each is found among all, whose peers understand or do not. */

#define MANY 10000

struct crowd {
	struct move *m;
	struct move_qp *qp;
	bool answers;
};

static bool crowd_look(void *arg, uint32_t qpn, struct move_qp *out)
{
	const struct crowd *c = arg;
	const struct move_books b = { c->qp, MANY };

	return books_look(&b, qpn, out);
}

/* A process in two is there. */
static void crowd_send(void *arg, const struct roce_path *path,
		       const uint8_t mad[MAD_LEN])
{
	const struct crowd *c = arg;
	struct move *to = c->answers ? c[-1].m : c[1].m;

	if (c->answers || move_to(mad) / 4096 % 2)
		move_rx(to, &path->sgid, &path->dgid, 0, mad, MAD_LEN, SEC);
}

static double crowd_ask(struct crowd *c)
{
	const uint8_t nonce[MOVE_NONCE] = { 1 };
	clock_t begin;

	qsort(c->qp, MANY, sizeof(*c->qp), move_order);
	assert_int_equal(move_plan(c->m, nonce, c->qp, MANY), 0);
	move_hello(c->m, SEC);
	begin = clock();
	for (unsigned i = 0; i < MANY; i++)
		assert_int_equal(move_understood(c->m, c->qp[i].qpn),
				 c->qp[i].peer / 4096 % 2);
	assert_false(move_understood(c->m, 0xfffffe));
	return (double)(clock() - begin) * 1000 / CLOCKS_PER_SEC;
}

static void many(void **state)
{
	struct crowd c[ENDS] = { { .answers = false }, { .answers = true } };
	double ms;

	(void)state;
	for (unsigned k = 0; k < ENDS; k++) {
		struct move_config cfg = { .process = 1 + k,
					   .look = crowd_look,
					   .send = crowd_send,
					   .arg = &c[k] };

		assert_int_equal(move_create(&c[k].m, &cfg), 0);
		c[k].qp = calloc(MANY, sizeof(*c[k].qp));
		assert_non_null(c[k].qp);
	}
	for (unsigned i = 0; i < MANY; i++) {
		const uint32_t qpn[ENDS] = { (1 << 20) + i,
					     (2 << 20) + 40 * i };

		for (unsigned k = 0; k < ENDS; k++)
			c[k].qp[i] = (struct move_qp){
				.qpn = qpn[k],
				.peer = qpn[!k],
				.path = { .sgid = gid(1 + k),
					  .dgid = gid(2 - k) },
			};
	}
	ms = crowd_ask(&c[A]);
	print_message("%d queue pairs: %.1f ms\n", MANY, ms);
	for (unsigned k = 0; k < ENDS; k++) {
		move_destroy(c[k].m);
		free(c[k].qp);
	}
}

/* An end in RTR has no PSNs of its own; its peer has heard none. */
static void silent_ends(void **state)
{
	static struct world w;
	struct move_sum sum;

	(void)state;
	world_init(&w, NULL, NULL);
	w.end[A].qp[3].una = w.end[A].qp[3].end_psn =
		psn_add(w.end[A].qp[3].una, 1 << 23);
	w.end[A].qp[3].silent = w.end[B].qp[3].unheard = true;
	w.end[B].qp[4].una = w.end[B].qp[4].end_psn =
		psn_add(w.end[B].qp[4].una, 1 << 23);
	w.end[B].qp[4].silent = w.end[A].qp[4].unheard = true;
	leave(&w, 30);
	sum = come_back(&w, &w.end[A].qp[0].path.sgid, SEC);
	assert_int_equal(sum.paused, QPS);
	assert_int_equal(sum.resumed, QPS);
	world_fini(&w);
}

/* Strangers */

static struct side saved[ENDS];

static void save(const struct world *w)
{
	memcpy(saved, w->end, sizeof(saved));
}

static bool is_as_saved(const struct world *w)
{
	return !memcmp(saved, w->end, sizeof(saved));
}

/* One bit, a field, a length, another's address, or nothing but the header is
 * right. */
static void forge(struct world *w, struct flying *f, size_t *len)
{
	uint64_t *seed = &w->seed;
	uint8_t key[SIPHASH_KEY];
	struct move_message m;
	unsigned n;

	*len = MAD_LEN;
	switch (rnd(seed) % 7) {
	case 0:
		n = rnd(seed) % (8 * MAD_LEN);
		f->mad[n / 8] ^= (uint8_t)(1 << n % 8);
		break;
	case 1:
		*len = rnd(seed) % MAD_LEN;
		break;
	case 2:
		n = 40 + (unsigned)(rnd(seed) % 200);
		rnd_fill(seed, f->mad + n, 1 + rnd(seed) % (MAD_LEN - n));
		break;
	case 3:
		rnd_fill(seed, f->mad + 44, MAD_LEN - 44);
		break;
	case 4: /* of one who knows all but the key */
		if (move_decode(&m, f->mad, MAD_LEN))
			break;
		m.kind = 1 + rnd(seed) % (MOVE_KINDS - 1);
		m.counter += 1 + rnd(seed) % 1000;
		m.value = m.kind == MOVE_PAUSE;
		m.now = f->sgid;
		for (unsigned i = 0; i < m.n; i++)
			m.entry[i].now = rnd(seed) & 0xffffff;
		rnd_fill(seed, key, sizeof(key));
		move_encode(&m, key, f->mad);
		break;
	case 5:
		f->sgid = gid(200);
		break;
	case 6: /* as it was: a replay */
		break;
	}
}

static unsigned strangers(struct world *w, unsigned n)
{
	const size_t nseen = w->nseen;

	save(w);
	for (unsigned i = 0; i < n; i++) {
		struct flying f = w->seen[rnd(&w->seed) % nseen];
		size_t len;

		forge(w, &f, &len);
		arrive(w, &f, len);
		w->n = 0; /* what that is answered by goes nowhere */
		assert_true(is_as_saved(w));
	}
	w->nseen = nseen;
	return n;
}

/*
 * Who has seen all that was said, but has no key of his own, changes nothing: while
 * nobody is away, while one is, and when it is back.
 */
static void forgeries(void **state)
{
	const union ibv_gid at = gid(7);
	static struct world w;
	unsigned n = 0;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		world_init(&w, i % 2 ? "0123456789abcdef" : NULL,
			   i % 2 ? "0123456789abcdef" : NULL);
		leave(&w, 30);
		n += strangers(&w, 1000);
		come_back(&w, &at, SEC);
		n += strangers(&w, 1000);
		leave(&w, 30);
		n += strangers(&w, 1000);
		take_numbers(&w, 0x400000, 0);
		come_back(&w, &at, SEC);
		n += strangers(&w, 1000);
		world_fini(&w);
	}
	assert_int_equal(n, 16000);
}

/*
 * RESUMEs that name other numbers, by one who has those that are right, which have not
 * arrived: B waits, and goes on to wait.
 */
static void forged_numbers(void **state)
{
	const union ibv_gid at = gid(7);
	struct flying right[FLYING / 64], f;
	struct move_message m;
	static struct world w;
	size_t first, n;

	(void)state;
	world_init(&w, NULL, NULL);
	leave(&w, 30);
	take_numbers(&w, 0x300000, 10 * MOVE_CHUNK);
	first = w.nseen;
	w.loss = 100;
	come_back(&w, &at, SEC / 2);
	n = w.nseen - first;
	assert_in_range(n, 4, ARRAY_SIZE(right));
	memcpy(right, &w.seen[first], n * sizeof(right[0]));
	save(&w);
	for (unsigned i = 0; i < 10000; i++) {
		uint8_t key[SIPHASH_KEY];

		f = right[rnd(&w.seed) % n];
		assert_int_equal(move_decode(&m, f.mad, MAD_LEN), 0);
		m.entry[rnd(&w.seed) % m.n].now ^= 1u << rnd(&w.seed) % 24;
		if (i % 3 == 1)
			m.value ^= 1u << rnd(&w.seed) % 24;
		if (i % 3 == 2)
			m.counter += rnd(&w.seed) % 100;
		if (i % 5 == 4)
			m.now = f.sgid = gid(200);
		rnd_fill(&w.seed, key, sizeof(key));
		/* With the MAC that it had, or one by another key. */
		move_encode(&m, i % 2 ? key : NULL, f.mad);
		if (i % 2 == 0)
			memcpy(f.mad + 240, right[0].mad + 240, 16);
		arrive(&w, &f, MAD_LEN);
		assert_true(is_as_saved(&w));
	}
	w.loss = 0;
	for (size_t i = 0; i < n; i++)
		arrive(&w, &right[i], MAD_LEN);
	for (unsigned i = 0; i < QPS; i++) {
		assert_int_equal(w.end[B].qp[i].peer, w.end[A].qp[i].qpn);
		assert_int_equal(w.end[B].follows[i], 1);
	}
	world_fini(&w);
}

/* What decodes has one way to be written. */
static void one_way(void **state)
{
	uint64_t seed = rnd_seed();
	static struct world w;

	(void)state;
	world_init(&w, NULL, NULL);
	leave(&w, 30);
	come_back(&w, &w.end[A].qp[0].path.sgid, SEC);
	for (unsigned i = 0; i < 20000; i++) {
		struct flying f = w.seen[i % w.nseen];
		struct move_message m;
		uint8_t again[MAD_LEN];
		unsigned n = (unsigned)(rnd(&seed) % (8 * 240));

		if (i >= w.nseen)
			f.mad[n / 8] ^= (uint8_t)(1 << n % 8);
		if (move_decode(&m, f.mad, MAD_LEN)) {
			assert_true(i >= w.nseen);
			continue;
		}
		move_encode(&m, NULL, again);
		assert_memory_equal(again, f.mad, 240);
		assert_int_equal(move_to(f.mad), m.to);
	}
	world_fini(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vectors),
		cmocka_unit_test(told_and_followed),
		cmocka_unit_test(others_are_left_alone),
		cmocka_unit_test(secrets),
		cmocka_unit_test(bad_networks),
		cmocka_unit_test(both_at_once),
		cmocka_unit_test(overtaken),
		cmocka_unit_test(other_psns),
		cmocka_unit_test(many),
		cmocka_unit_test(other_numbers),
		cmocka_unit_test(forged_numbers),
		cmocka_unit_test(silent_ends),
		cmocka_unit_test(forgeries),
		cmocka_unit_test(one_way),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
