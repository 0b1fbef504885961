/*
 * test_exported_keys.c - keys and queue pairs that one process shows, found by
 * another: two processes as far as the registry and the segments know
 */
#include "registry_dir.h"

#include "link/exported_keys.h"

#include <errno.h>

static struct {
	struct registry *r;
	struct segment *s;
} end[2];

static struct segment_peer *peer; /* end[1], as end[0] sees it */
static struct keys keys; /* of end[1] */

static int begin(void **state)
{
	struct key_entry *mem = calloc(1u << 14, sizeof(*mem));
	const uint64_t secret[2] = { 1, 2 };

	if (setup(state))
		return -1;
	for (int i = 0; i < 2; i++) {
		end[i].r = join();
		if (!end[i].r || segment_create(&end[i].s, end[i].r, 0))
			return -1;
	}
	keys_init(&keys, mem, 1u << 14, secret);
	peer = segment_peer_get(end[0].s, registry_slot(end[1].r));
	return peer && mem ? 0 : -1;
}

static int finish(void **state)
{
	segment_peer_put(peer);
	for (int i = 0; i < 2; i++) {
		segment_destroy(end[i].s);
		registry_leave(end[i].r);
	}
	free(keys.entry);
	return teardown_empty(state);
}

static uint32_t add(uint64_t addr)
{
	const struct key_entry e = { .kind = KEY_MR, .addr = addr, .pd = 3 };
	int slot;

	exported_keys_grow(end[1].s, &keys);
	slot = keys_add(&keys, &e);
	assert_true(slot >= 0);
	return keys.entry[slot].rkey;
}

static bool find(struct keys_view *v, uint32_t rkey, struct key_shown *e)
{
	uint32_t hint = 0, slot = keys_find(v, rkey, &hint);

	return exported_keys_ready(peer, v, slot) &&
	       keys_peek(v, slot, rkey, e);
}

static void keys_are_found(void **state)
{
	enum { MANY = 3000 }; /* more than are allocated at a time */
	static uint32_t rkey[MANY];
	struct key_shown e;
	struct keys_view v;

	(void)state;
	assert_false(exported_keys_view(peer, &v)); /* not yet */
	exported_keys_begin(end[1].s, &keys);
	assert_true(exported_keys_view(peer, &v));
	assert_false(find(&v, 0x12345678, &e));
	for (uint32_t i = 0; i < MANY; i++) {
		rkey[i] = add(i);
		if (i % 100)
			continue;
		assert_true(find(&v, rkey[i], &e));
		assert_int_equal(e.addr, i);
		assert_int_equal(e.pd, 3);
	}
	for (uint32_t i = 0; i < MANY; i++) {
		assert_true(find(&v, rkey[i], &e));
		assert_int_equal(e.addr, i);
	}
	assert_false(exported_keys_ready(peer, &v, 1u << 13));
	keys_kill(&keys, 5);
	assert_false(find(&v, rkey[5], &e));
	/* One's own are found in the same way. */
	segment_peer_put(peer);
	peer = segment_peer_get(end[1].s, registry_slot(end[1].r));
	assert_true(peer->self);
	assert_true(exported_keys_view(peer, &v));
	assert_true(find(&v, rkey[MANY - 1], &e));
	assert_false(find(&v, rkey[5], &e));
}

static void queue_pairs_are_found(void **state)
{
	const uint32_t first = 7 * REGISTRY_CHUNK, second = 9 * REGISTRY_CHUNK;
	struct qp_public *a, *b;

	(void)state;
	assert_null(exported_qp(peer, first + 1));
	a = exported_qp_place(end[1].s, first + 1, 0);
	b = exported_qp_place(end[1].s, second + 4000, 1);
	assert_non_null(a);
	assert_non_null(b);
	qp_public_set(&a->qpn, first + 1);
	qp_public_set(&b->qpn, second + 4000);
	assert_int_equal(qp_public_get(&exported_qp(peer, first + 1)->qpn),
			 first + 1);
	assert_int_equal(qp_public_get(&exported_qp(peer, second + 4000)->qpn),
			 second + 4000);
	/* The same number, the same place. */
	assert_ptr_equal(exported_qp_place(end[1].s, first + 1, 0), a);
	assert_null(exported_qp(peer, 8 * REGISTRY_CHUNK + 1));
	assert_null(exported_qp(peer, 1));
	/* Beyond what there is room for they are not shown. */
	assert_null(exported_qp_place(end[1].s, first, 64));
	assert_non_null(exported_qp_place(end[1].s, first, 63));
}

int main(void)
{
#define SHOWN(f) cmocka_unit_test_setup_teardown(f, begin, finish)
	const struct CMUnitTest tests[] = {
		SHOWN(keys_are_found),
		SHOWN(queue_pairs_are_found),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
