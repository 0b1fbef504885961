/*
 * test_keys.c - keys are unlike each other, stale ones are refused, and no
 * reader is inside an entry that is killed and not busy
 */
#include "unit.h"

#include "base/bytes.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/*
 * The moments that decide whether removal is safe are those before a reader
 * counts itself in and out. Threads hardly ever meet there, so the code under
 * test is compiled here with hooks in front of its only fetch-and-add and
 * fetch-and-sub, in which a test does what another thread could do.
 */
static void (*before_counting_in)(void), (*before_counting_out)(void);

static void call(void (*hook)(void))
{
	if (hook)
		hook();
}

#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#ifdef __clang__
#define FETCH_ADD __c11_atomic_fetch_add
#define FETCH_SUB __c11_atomic_fetch_sub
#else
#define FETCH_ADD __atomic_fetch_add
#define FETCH_SUB __atomic_fetch_sub
#endif
#define atomic_fetch_add_explicit(p, n, order)                                 \
	(call(before_counting_in), FETCH_ADD(p, n, order))
#define atomic_fetch_sub_explicit(p, n, order)                                 \
	(call(before_counting_out), FETCH_SUB(p, n, order))
#include "qp/keys.c"

/* Who has not seen the key before. */
#define keys_get_local(k, key) keys_get_local(k, key, &(uint32_t){ 0 })
#define keys_get_remote(k, key) keys_get_remote(k, key, &(uint32_t){ 0 })

#define COUNT 4096u

static struct keys keys;

static void init(struct keys *k, struct key_entry *mem, uint32_t count,
		 uint64_t seed)
{
	const uint64_t secret[2] = { rnd(&seed), rnd(&seed) };

	keys_init(k, mem, count, secret);
}

static int setup(void **state)
{
	struct key_entry *mem = calloc(COUNT, sizeof(*mem));

	(void)state;
	if (!mem)
		return -1;
	init(&keys, mem, COUNT, rnd_seed());
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	free(keys.entry);
	return 0;
}

static int cmp_u32(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static int add(enum key_kind kind, uint64_t addr)
{
	const struct key_entry e = {
		.kind = kind,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		.pd = 7,
		.qpn = 0x123,
		.parent = 99,
		.iova = addr + 0x1000,
		.length = 0x800,
		.addr = addr,
	};

	return keys_add(&keys, &e);
}

/* As programs know it of mlx5 and rxe; windows still have no lkey. */
static void one_key_for_both(void **state)
{
	int slot;

	(void)state;
	keys.one = true;
	slot = add(KEY_MR, 0x70000);
	assert_int_equal(keys.entry[slot].lkey, keys.entry[slot].rkey);
	assert_ptr_equal(keys_get_local(&keys, keys.entry[slot].rkey),
			 &keys.entry[slot]);
	assert_ptr_equal(keys_get_remote(&keys, keys.entry[slot].lkey),
			 &keys.entry[slot]);
	slot = add(KEY_MW2, 0x70000);
	assert_int_equal(keys.entry[slot].lkey, 0);
	slot = add(KEY_NULL, 0x70000);
	assert_int_equal(keys.entry[slot].rkey, 0);
	keys.one = false;
}

static void found_by_key(void **state)
{
	struct key_entry *e;
	uint32_t lkey, rkey;
	int slot;

	(void)state;
	slot = add(KEY_MR, 0x70000);
	assert_true(slot >= 0);
	lkey = keys.entry[slot].lkey;
	rkey = keys.entry[slot].rkey;
	assert_int_not_equal(lkey, 0);
	assert_int_not_equal(rkey, 0);
	assert_int_not_equal(lkey, rkey);
	assert_int_equal(keys_slot(&keys, lkey), slot);
	assert_int_equal(keys_slot(&keys, rkey), slot);

	e = keys_get_local(&keys, lkey);
	assert_ptr_equal(e, &keys.entry[slot]);
	assert_int_equal(e->users, 1);
	assert_int_equal(e->kind, KEY_MR);
	assert_int_equal(e->pd, 7);
	assert_int_equal(e->qpn, 0x123);
	assert_int_equal(e->parent, 99);
	assert_int_equal(e->addr, 0x70000);
	assert_int_equal(e->iova, 0x71000);
	assert_int_equal(e->length, 0x800);
	assert_int_equal(e->access,
			 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	assert_ptr_equal(keys_get_remote(&keys, rkey), e);
	assert_int_equal(e->users, 2);
	keys_put(e);
	keys_put(e);
	assert_int_equal(e->users, 0);

	/* Each for its own purpose, and not for a neighbour's. */
	assert_null(keys_get_remote(&keys, lkey));
	assert_null(keys_get_local(&keys, rkey));
	assert_null(keys_get_local(&keys, 0));
	assert_null(keys_get_remote(&keys, 0));
	assert_int_equal(keys.entry[slot].users, 0);

	keys_kill(&keys, (uint32_t)slot);
	assert_null(keys_get_local(&keys, lkey));
	assert_null(keys_get_remote(&keys, rkey));
	keys_free(&keys, (uint32_t)slot);
	assert_null(keys_get_local(&keys, lkey));
	assert_null(keys_get_remote(&keys, rkey));
	assert_null(keys_get_local(&keys, 0));
}

static void every_other_key_refused(void **state)
{
	uint32_t lkey, rkey, tag;
	unsigned slots = 0, n;
	uint64_t rng = rnd_seed();
	int slot = add(KEY_MR, 0);

	(void)state;
	lkey = keys.entry[slot].lkey;
	rkey = keys.entry[slot].rkey;
	for (tag = 0; tag < 256; tag++) {
		uint32_t key = (lkey & 0xffffff00) | tag;

		assert_int_equal(!!keys_get_local(&keys, key), key == lkey);
		assert_int_equal(!!keys_get_remote(&keys, key), key == rkey);
	}
	/* One of 2^24 indices leads anywhere. */
	for (n = 0; n < 1u << 20; n++) {
		uint32_t key = (uint32_t)(rnd(&rng) >> 16);

		slots += keys_slot(&keys, key) != UINT32_MAX;
		if (key != lkey)
			assert_null(keys_get_local(&keys, key));
	}
	assert_in_range(slots, 0, 3);
	assert_int_equal(keys_slot(&keys, 0), UINT32_MAX);
	assert_int_equal(keys_slot(&keys, 0xff), UINT32_MAX);
	assert_int_equal(keys_slot(&keys, 0xffffffff), UINT32_MAX);
}

static void fills_up(void **state)
{
	static uint32_t all[2 * COUNT];
	struct key_entry *e;
	unsigned i;

	(void)state;
	for (i = 0; i < COUNT; i++) {
		int slot = add(KEY_MR, i);

		assert_true(slot >= 0);
		all[2 * i] = keys.entry[slot].lkey;
		all[2 * i + 1] = keys.entry[slot].rkey;
	}
	assert_int_equal(add(KEY_MR, 0), -ENOMEM);
	for (i = 0; i < COUNT; i++) {
		e = keys_get_local(&keys, all[2 * i]);
		assert_non_null(e);
		assert_int_equal(e->addr, i);
		keys_put(e);
		assert_ptr_equal(keys_get_remote(&keys, all[2 * i + 1]), e);
		keys_put(e);
	}
	qsort(all, ARRAY_SIZE(all), sizeof(*all), cmp_u32);
	assert_int_not_equal(all[0], 0);
	for (i = 1; i < ARRAY_SIZE(all); i++)
		assert_int_not_equal(all[i - 1], all[i]);

	/* Freed, all slots are to be had again, in the order of freeing. */
	for (i = 0; i < COUNT; i++) {
		uint32_t slot = (i * 5 + 3) % COUNT;

		keys_kill(&keys, slot);
		keys_free(&keys, slot);
	}
	for (i = 0; i < COUNT; i++)
		assert_int_equal(add(KEY_MR, i), (i * 5 + 3) % COUNT);
	assert_int_equal(add(KEY_MR, 0), -ENOMEM);
}

/* One region registered over and over: its old keys stay dead for long. */
static void stale_keys_refused(void **state)
{
	enum { LIVES = 100000 };
	uint32_t *seen = calloc(2 * LIVES, sizeof(*seen));
	unsigned i;

	(void)state;
	assert_non_null(seen);
	for (i = 0; i < LIVES; i++) {
		int slot = add(KEY_MR, i);

		assert_true(slot >= 0);
		seen[2 * i] = keys.entry[slot].lkey;
		seen[2 * i + 1] = keys.entry[slot].rkey;
		if (i)
			assert_null(keys_get_local(&keys, seen[2 * i - 2]));
		keys_kill(&keys, (uint32_t)slot);
		keys_free(&keys, (uint32_t)slot);
	}
	qsort(seen, 2 * LIVES, sizeof(*seen), cmp_u32);
	for (i = 1; i < 2 * LIVES; i++)
		assert_int_not_equal(seen[i - 1], seen[i]);
	free(seen);
}

static unsigned most_common(uint32_t *v, size_t n)
{
	unsigned run = 0, most = 0;
	size_t i;

	qsort(v, n, sizeof(*v), cmp_u32);
	for (i = 0; i < n; i++) {
		run = i && v[i] == v[i - 1] ? run + 1 : 1;
		if (run > most)
			most = run;
	}
	return most;
}

/*
 * Who has the rkey of the region that was registered at some place cannot
 * compute another's, nor that of the same slot's next life: what lies between
 * them is another number in each of many tables.
 */
static void rkeys_tell_nothing_of_others(void **state)
{
	enum { TABLES = 1000, PLACES = 6 };
	static uint32_t rkey[PLACES + 1][TABLES], diff[TABLES];
	static struct key_entry mem[8];
	uint64_t seed = rnd_seed();
	struct keys k;
	int i, j, t;

	(void)state;
	for (t = 0; t < TABLES; t++) {
		const struct key_entry e = { .kind = KEY_MR };

		memset(mem, 0, sizeof(mem));
		init(&k, mem, 8, rnd(&seed));
		for (i = 0; i < PLACES; i++)
			rkey[i][t] = k.entry[keys_add(&k, &e)].rkey;
		/* Full, so that the first slot is the next one. */
		while ((j = keys_add(&k, &e)) >= 0)
			;
		keys_kill(&k, 0);
		keys_free(&k, 0);
		rkey[i][t] = k.entry[keys_add(&k, &e)].rkey;
		assert_int_not_equal(rkey[i][t], rkey[0][t]);
	}
	for (i = 0; i <= PLACES; i++)
		for (j = 0; j < i; j++) {
			for (t = 0; t < TABLES; t++)
				diff[t] = (rkey[i][t] >> 8) ^ (rkey[j][t] >> 8);
			assert_in_range(most_common(diff, TABLES), 1, 4);
			for (t = 0; t < TABLES; t++)
				diff[t] = (rkey[i][t] >> 8) - (rkey[j][t] >> 8);
			assert_in_range(most_common(diff, TABLES), 1, 4);
			/* Of 256 tags: four of each. */
			for (t = 0; t < TABLES; t++)
				diff[t] = (rkey[i][t] ^ rkey[j][t]) & 0xff;
			assert_in_range(most_common(diff, TABLES), 1, 24);
		}
}

/* A hint saves work; a wrong one, or an old one, does nothing else. */
static void hints(void **state)
{
	uint32_t a = (uint32_t)add(KEY_MR, 1), b = (uint32_t)add(KEY_MR, 2);
	uint32_t lkey = keys.entry[a].lkey, rkey = keys.entry[a].rkey;
	uint32_t i, hint;
	struct key_entry *e;

	(void)state;
	for (i = 0; i < 3; i++) {
		hint = i ? UINT32_MAX - i : b;
		e = (keys_get_local)(&keys, lkey, &hint);
		assert_ptr_equal(e, &keys.entry[a]);
		assert_int_equal(hint, a);
		keys_put(e);
		e = (keys_get_remote)(&keys, rkey, &hint);
		assert_ptr_equal(e, &keys.entry[a]);
		keys_put(e);
	}
	assert_null((keys_get_local)(&keys, rkey, &hint));
	assert_null((keys_get_remote)(&keys, lkey, &hint));
	assert_null((keys_get_local)(&keys, 0, &hint));
	hint = a;
	keys_kill(&keys, a);
	assert_null((keys_get_local)(&keys, lkey, &hint));
	keys_free(&keys, a);
	assert_null((keys_get_local)(&keys, lkey, &hint));
	assert_null((keys_get_local)(&keys, 0, &hint));
	assert_int_equal(hint, a);
}

/* Two tables, as of two processes, do not have the same keys. */
static void seed_matters(void **state)
{
	struct key_entry *mem = calloc(16, sizeof(*mem));
	const struct key_entry e = { .kind = KEY_MR };
	struct keys a, b;
	int i, same = 0;

	(void)state;
	assert_non_null(mem);
	init(&a, mem, 8, 1);
	init(&b, mem + 8, 8, 2);
	for (i = 0; i < 8; i++) {
		int x = keys_add(&a, &e), y = keys_add(&b, &e);

		same += a.entry[x].lkey >> 8 == b.entry[y].lkey >> 8;
	}
	assert_int_equal(same, 0);
	free(mem);
}

static void one_slot(void **state)
{
	struct key_entry mem = { 0 };
	struct keys k;
	int i;

	(void)state;
	init(&k, &mem, 1, 0);
	for (i = 0; i < 1000; i++) {
		assert_int_equal(
			keys_add(&k, &(struct key_entry){ .kind = KEY_MR }), 0);
		assert_int_equal(
			keys_add(&k, &(struct key_entry){ .kind = KEY_MR }),
			-ENOMEM);
		keys_kill(&k, 0);
		keys_free(&k, 0);
	}
}

static void windows_have_no_lkey(void **state)
{
	struct key_entry *e;
	int slot;

	(void)state;
	slot = add(KEY_MW2, 0);
	assert_int_equal(keys.entry[slot].lkey, 0);
	e = keys_get_remote(&keys, keys.entry[slot].rkey);
	assert_ptr_equal(e, &keys.entry[slot]);
	keys_put(e);
	assert_null(keys_get_local(&keys, 0));
}

static void revived_with_new_keys(void **state)
{
	struct key_entry to = { .kind = KEY_MW2,
				.pd = 8,
				.addr = 0x9000,
				.iova = 0x9000,
				.length = 10,
				.access = 2 };
	uint32_t old, new;
	struct key_entry *e;
	int slot;

	(void)state;
	slot = add(KEY_MW2, 0);
	keys.entry[slot].windows = 3;
	old = keys.entry[slot].rkey;
	new = (old & 0xffffff00) | ((old + 1) & 0xff); /* ibv_inc_rkey(3) */
	keys_kill(&keys, (uint32_t)slot);
	keys_revive(&keys, (uint32_t)slot, &to, 0, new);
	assert_null(keys_get_remote(&keys, old));
	e = keys_get_remote(&keys, new);
	assert_ptr_equal(e, &keys.entry[slot]);
	assert_int_equal(e->pd, 8);
	assert_int_equal(e->addr, 0x9000);
	assert_int_equal(e->length, 10);
	assert_int_equal(e->access, 2);
	assert_int_equal(e->windows, 3);
	keys_put(e);
	keys_kill(&keys, (uint32_t)slot);
	assert_null(keys_get_remote(&keys, new));
	keys_free(&keys, (uint32_t)slot);
}

static void bounds(void **state)
{
	const struct key_entry e = { .pd = 3,
				     .access = 5,
				     .iova = 0x1000,
				     .length = 0x100,
				     .addr = 0x555000 };
	const struct key_entry all = { .length = UINT64_MAX };
	const struct key_entry top = { .iova = UINT64_MAX - 0xf,
				       .length = 0x10 };
	void *p = NULL;

	(void)state;
	assert_true(key_covers(&e, 3, 0x1000, 0x100, 0, &p));
	assert_ptr_equal(p, (void *)0x555000);
	assert_true(key_covers(&e, 3, 0x10ff, 1, 5, &p));
	assert_ptr_equal(p, (void *)0x5550ff);
	assert_true(key_covers(&e, 3, 0x1100, 0, 1, &p));
	assert_false(key_covers(&e, 3, 0x1101, 0, 1, &p));
	assert_false(key_covers(&e, 3, 0xfff, 1, 1, &p));
	assert_false(key_covers(&e, 3, 0xfff, 0, 1, &p));
	assert_false(key_covers(&e, 3, 0x1000, 0x101, 1, &p));
	assert_false(key_covers(&e, 3, 0x1001, 0x100, 1, &p));
	assert_false(key_covers(&e, 3, 0x1010, UINT64_MAX, 1, &p));
	assert_false(key_covers(&e, 3, UINT64_MAX, 2, 1, &p));
	assert_false(key_covers(&e, 4, 0x1000, 1, 1, &p));
	assert_false(key_covers(&e, 3, 0x1000, 1, 2, &p));
	assert_false(key_covers(&e, 3, 0x1000, 1, 7, &p));
	assert_true(key_covers(&all, 0, 0, UINT64_MAX, 0, &p));
	assert_false(key_covers(&all, 0, 1, UINT64_MAX, 0, &p));
	assert_true(key_covers(&top, 0, UINT64_MAX - 0xf, 0x10, 0, &p));
	assert_true(key_covers(&top, 0, UINT64_MAX, 1, 0, &p));
	assert_false(key_covers(&top, 0, UINT64_MAX, 2, 0, &p));
	assert_false(key_covers(&top, 0, 0, 1, 0, &p));
}

static uint32_t meeting;

static void kills(void)
{
	before_counting_in = NULL;
	keys_kill(&keys, meeting);
}

static void kills_and_reuses(void)
{
	kills();
	keys_free(&keys, meeting);
	while (add(KEY_MR, 0x5000) != (int)meeting)
		;
}

static void revives(void)
{
	struct key_entry *e = &keys.entry[meeting];
	const struct key_entry to = { .kind = KEY_MR, .addr = 0x6000 };

	before_counting_out = NULL;
	keys_revive(&keys, meeting, &to, e->lkey, e->rkey);
}

static void kills_and_revives(void)
{
	kills();
	revives();
}

static void meets_a_reader(void **state)
{
	struct key_entry *e;
	uint32_t lkey;

	(void)state;
	meeting = (uint32_t)add(KEY_MR, 0x4000);
	e = &keys.entry[meeting];
	lkey = e->lkey;

	before_counting_in = kills_and_revives;
	assert_ptr_equal(keys_get_local(&keys, lkey), e);
	assert_null(before_counting_in);
	assert_int_equal(e->addr, 0x6000);
	keys_put(e);

	/* Killed as the reader comes, revived before it has gone. */
	before_counting_in = kills;
	before_counting_out = revives;
	assert_null(keys_get_local(&keys, lkey));
	assert_null(before_counting_out);
	assert_int_equal(e->users, 0);
	assert_ptr_equal(keys_get_local(&keys, lkey), e);
	keys_put(e);

	before_counting_in = kills_and_reuses;
	assert_null(keys_get_local(&keys, lkey));
	assert_null(before_counting_in);
	assert_int_equal(e->addr, 0x5000);
	assert_int_equal(e->users, 0);
	lkey = e->lkey;

	before_counting_in = kills;
	assert_null(keys_get_local(&keys, lkey));
	assert_null(before_counting_in);
	assert_int_equal(e->users, KEY_DYING);

	/* A stranger's key does not even come that far. */
	before_counting_in = kills;
	assert_null(keys_get_local(&keys, lkey ^ 1));
	assert_null(keys_get_remote(&keys, lkey));
	assert_non_null(before_counting_in);
	before_counting_in = NULL;
}

/* Another process's table */

static struct {
	struct keys_shown head;
	struct key_shown entry[COUNT];
	struct keys_view view;
} others;

static void show_all(uint32_t ready)
{
	memset(&others, 0, sizeof(others));
	keys_show(&keys, &others.head, others.entry);
	keys_show_room(&keys, ready);
	assert_true(keys_view_init(&others.view, &others.head, others.entry));
	others.view.ready = ready;
}

static bool peek(uint32_t rkey, uint32_t hint, struct key_shown *e)
{
	uint32_t slot = keys_find(&others.view, rkey, &hint);

	return keys_peek(&others.view, slot, rkey, e);
}

static void shown_to_others(void **state)
{
	uint32_t lkey, rkey, hint = 0;
	struct key_entry again;
	struct key_shown e;
	uint64_t addr;
	int slot;

	(void)state;
	show_all(COUNT);
	slot = add(KEY_MR, 0x70000);
	lkey = keys.entry[slot].lkey;
	rkey = keys.entry[slot].rkey;
	for (uint32_t i = 0; i < 300; i++)
		add(KEY_MR, i);

	/* With any hint, and without a trace in the table itself. */
	for (uint32_t i = 0; i < 3; i++) {
		assert_true(peek(rkey, i ? UINT32_MAX - i : 0, &e));
		assert_int_equal(e.rkey, rkey);
		assert_int_equal(e.lkey, lkey);
		assert_int_equal(e.kind, KEY_MR);
		assert_int_equal(e.pd, 7);
		assert_int_equal(e.qpn, 0x123);
		assert_true(key_shown_covers(&e, 7, 0x71010, 0x7f0,
					     IBV_ACCESS_REMOTE_READ, &addr));
		assert_int_equal(addr, 0x70010);
		assert_false(key_shown_covers(&e, 7, 0x71010, 0x7f1, 0, &addr));
		assert_false(key_shown_covers(&e, 8, 0x71010, 1, 0, &addr));
		assert_false(key_shown_covers(&e, 7, 0x71010, 1,
					      IBV_ACCESS_REMOTE_WRITE, &addr));
	}
	assert_int_equal(keys.entry[slot].users, 0);
	assert_int_equal(keys_find(&others.view, rkey, &hint), slot);
	assert_int_equal(hint, slot);
	assert_true(keys_shows(&others.view, (uint32_t)slot, lkey));
	assert_true(keys_shows(&others.view, (uint32_t)slot, rkey));
	assert_false(keys_shows(&others.view, (uint32_t)slot, 0));
	assert_false(keys_shows(&others.view, (uint32_t)slot + 1, lkey));

	for (uint32_t tag = 0; tag < 256; tag++) {
		uint32_t key = (rkey & 0xffffff00) | tag;

		assert_int_equal(peek(key, hint, &e), key == rkey);
	}
	assert_false(peek(0, hint, &e));

	keys_kill(&keys, (uint32_t)slot);
	assert_false(peek(rkey, hint, &e));
	assert_false(peek(0, hint, &e));
	assert_false(keys_shows(&others.view, (uint32_t)slot, lkey));
	again = (struct key_entry){ .kind = KEY_MR, .addr = 0x5000 };
	keys_revive(&keys, (uint32_t)slot, &again, lkey, rkey);
	assert_true(peek(rkey, hint, &e));
	assert_int_equal(e.addr, 0x5000);
	keys_kill(&keys, (uint32_t)slot);
	keys_free(&keys, (uint32_t)slot);
	assert_false(peek(rkey, hint, &e));
	assert_false(peek(rkey, 0, &e));
}

/* Whatever is changed in an entry, nobody goes by what it says then. */
static void scribbled_on(void **state)
{
	uint64_t rng = rnd_seed();
	struct key_shown e, was, *shown;
	uint32_t rkey, bit, n;
	uint8_t *p;
	int slot;

	(void)state;
	show_all(COUNT);
	for (uint32_t i = 0; i < 20; i++)
		add(KEY_MR, i);
	slot = add(KEY_MR, 0x70000);
	rkey = keys.entry[slot].rkey;
	shown = &others.entry[slot];
	p = (uint8_t *)shown;
	for (bit = 0; bit < 8 * (offsetof(struct key_shown, check) + 8);
	     bit++) {
		if (bit / 32 == offsetof(struct key_shown, lkey) / 4)
			continue;
		p[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_false(peek(rkey, 0, &e));
		p[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_true(peek(rkey, 0, &e));
	}
	was = *shown;
	for (n = 0; n < 10000; n++) {
		rnd_fill(&rng, p + rnd(&rng) % 8 * 8, 1 + rnd(&rng) % 8);
		shown->rkey = rkey;
		assert_true(
			!peek(rkey, 0, &e) ||
			!memcmp(&was.access, &e.access,
				offsetof(struct key_shown, check) -
					offsetof(struct key_shown, access)));
		*shown = was;
	}
	/* Another entry in its place. */
	*shown = others.entry[slot - 1];
	shown->rkey = rkey;
	assert_false(peek(rkey, 0, &e));
	others.entry[slot - 1] = was;
	assert_false(keys_peek(&others.view, (uint32_t)slot - 1, rkey, &e));
}

/* What has no memory to be shown in works in its own process alone. */
static void shown_as_far_as_there_is_memory(void **state)
{
	uint32_t first, last;
	struct key_shown e;

	(void)state;
	show_all(1);
	assert_int_equal(keys_want(&keys), 1);
	first = keys.entry[add(KEY_MR, 1)].rkey;
	assert_int_equal(keys_want(&keys), 2);
	last = keys.entry[add(KEY_MR, 2)].rkey;
	assert_true(peek(first, 0, &e));
	assert_false(peek(last, 0, &e));
	assert_false(peek(last, 1, &e));
	assert_int_equal(others.entry[1].rkey, 0);
	keys_put(keys_get_remote(&keys, last));
	keys_show_room(&keys, 3);
	others.view.ready = 2;
	assert_false(peek(last, 0, &e));
	last = keys.entry[add(KEY_MR, 3)].rkey;
	assert_false(peek(last, 0, &e));
	others.view.ready = 3;
	assert_true(peek(last, 0, &e));
	assert_int_equal(e.addr, 3);
	/* Never beyond the end of the table. */
	keys_show_room(&keys, 2 * COUNT);
	assert_int_equal(keys.nshown, COUNT);
	keys_show_room(&keys, 1);
	assert_int_equal(keys.nshown, COUNT);
}

/* A head that anybody may have written. */
static void hostile_heads(void **state)
{
	static const uint32_t counts[] = { 0, 3, 1u << 21, UINT32_MAX };
	uint64_t rng = rnd_seed();
	struct key_shown e;
	struct keys_view v;

	(void)state;
	show_all(COUNT);
	for (size_t i = 0; i < ARRAY_SIZE(counts); i++) {
		others.head.count = counts[i];
		assert_false(keys_view_init(&v, &others.head, others.entry));
	}
	others.head.count = COUNT;
	others.head.entry_size++;
	assert_false(keys_view_init(&v, &others.head, others.entry));
	others.head.entry_size--;
	/* More than are ready: no key leads beyond those. */
	others.head.count = 1u << 20;
	assert_true(keys_view_init(&v, &others.head, others.entry));
	v.ready = 16;
	for (int i = 0; i < 100000; i++) {
		uint32_t rkey = (uint32_t)(rnd(&rng) >> 16);
		uint32_t hint = (uint32_t)(rnd(&rng) >> 16);
		uint32_t slot = keys_find(&v, rkey, &hint);

		assert_in_range(slot, 0, (1u << 20) - 1);
		assert_false(keys_peek(&v, slot, rkey, &e));
		assert_false(keys_shows(&v, slot, rkey));
	}
}

/*
 * Readers against removal. The region of each life is freed as soon as its
 * entry is not busy any more, and its contents name the key that leads to it: a
 * reader too many reads freed memory (ASan), races (TSan) or sees another
 * life's contents.
 */
struct region {
	uint32_t lkey;
};

static struct {
	_Atomic uint32_t lkey; /* of the present life, most of the time */
	atomic_bool stop;
	_Atomic uint64_t hits;
	_Atomic uint64_t misses;
	atomic_bool wrong;
} race;

static void *reader(void *arg)
{
	uint64_t hits = 0, misses = 0;

	while (!atomic_load(&race.stop)) {
		uint32_t lkey = atomic_load(&race.lkey);
		struct key_entry *e = keys_get_local(&keys, lkey);
		const struct region *r;

		if (!e) {
			if (misses++ % 16 == 0)
				sched_yield();
			continue;
		}
		r = (const void *)(uintptr_t)e->addr;
		if (r->lkey != lkey || e->length != lkey || e->pd != 1)
			atomic_store(&race.wrong, true);
		if (hits++ % 64 == 0)
			sched_yield();
		if (r->lkey != lkey)
			atomic_store(&race.wrong, true);
		keys_put(e);
	}
	atomic_fetch_add(&race.hits, hits);
	atomic_fetch_add(&race.misses, misses);
	return arg;
}

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void kill_and_wait(int slot)
{
	keys_kill(&keys, (uint32_t)slot);
	while (keys_busy(&keys, (uint32_t)slot))
		sched_yield();
}

/* The keys of the next life are known only afterwards: dead, then revived. */
static void begin_life(int *slot, struct region **r)
{
	struct key_entry e = { .kind = KEY_MR, .pd = 1 };
	uint32_t lkey, rkey;

	*slot = keys_add(&keys, &e);
	*r = malloc(sizeof(**r));
	assert_non_null(*r);
	kill_and_wait(*slot);
	lkey = keys.entry[*slot].lkey;
	rkey = keys.entry[*slot].rkey;
	(*r)->lkey = lkey;
	e.addr = (uintptr_t)*r;
	e.length = lkey;
	keys_revive(&keys, (uint32_t)*slot, &e, lkey, rkey);
	atomic_store(&race.lkey, lkey);
}

static void end_life(int slot, struct region *r)
{
	kill_and_wait(slot);
	r->lkey = 0;
	free(r);
}

static void readers_against_removal(void **state)
{
	pthread_t thread[3];
	uint64_t end, lives = 0;
	struct region *r;
	size_t i;
	int slot;

	(void)state;
	memset(&race, 0, sizeof(race));
	/* A table this small reuses each slot soon. */
	free(keys.entry);
	keys.entry = calloc(2, sizeof(*keys.entry));
	assert_non_null(keys.entry);
	init(&keys, keys.entry, 2, rnd_seed());

	for (i = 0; i < ARRAY_SIZE(thread); i++)
		assert_int_equal(pthread_create(&thread[i], NULL, reader, NULL),
				 0);
	end = clock_ns() + 300000000;
	while (clock_ns() < end) {
		begin_life(&slot, &r);
		if (lives++ % 8 == 0)
			sched_yield();
		end_life(slot, r);
		if (lives % 2)
			keys_revive(&keys, (uint32_t)slot,
				    &(struct key_entry){ .kind = KEY_MR }, 0,
				    0);
		if (lives % 2)
			kill_and_wait(slot);
		keys_free(&keys, (uint32_t)slot);
	}
	atomic_store(&race.stop, true);
	for (i = 0; i < ARRAY_SIZE(thread); i++)
		pthread_join(thread[i], NULL);
	print_message("%llu lives, %llu hits, %llu misses\n",
		      (unsigned long long)lives, (unsigned long long)race.hits,
		      (unsigned long long)race.misses);
	assert_false(race.wrong);
	assert_true(lives > 10);
	assert_int_not_equal(race.hits, 0);
	for (i = 0; i < keys.used; i++)
		assert_int_equal(keys.entry[i].users & ~KEY_DYING, 0);
}

/* A reader that stays keeps the entry busy; nobody joins it. */
static void busy_until_the_last_reader_goes(void **state)
{
	struct key_entry *e, *again;
	uint32_t slot, lkey;

	(void)state;
	slot = (uint32_t)add(KEY_MR, 0);
	lkey = keys.entry[slot].lkey;
	e = keys_get_local(&keys, lkey);
	again = keys_get_remote(&keys, keys.entry[slot].rkey);
	assert_non_null(e);
	assert_ptr_equal(again, e);
	keys_kill(&keys, slot);
	assert_true(keys_busy(&keys, slot));
	assert_null(keys_get_local(&keys, lkey));
	keys_put(again);
	assert_true(keys_busy(&keys, slot));
	keys_put(e);
	assert_false(keys_busy(&keys, slot));
	assert_null(keys_get_local(&keys, lkey));
	keys_free(&keys, slot);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(one_key_for_both),
		TEST(found_by_key),
		TEST(every_other_key_refused),
		TEST(fills_up),
		TEST(stale_keys_refused),
		TEST(rkeys_tell_nothing_of_others),
		TEST(hints),
		TEST(seed_matters),
		TEST(one_slot),
		TEST(windows_have_no_lkey),
		TEST(revived_with_new_keys),
		TEST(bounds),
		TEST(meets_a_reader),
		TEST(shown_to_others),
		TEST(scribbled_on),
		TEST(shown_as_far_as_there_is_memory),
		TEST(hostile_heads),
		TEST(readers_against_removal),
		TEST(busy_until_the_last_reader_goes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
