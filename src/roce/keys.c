/*
 * keys.c - the key table: hands out slots and keys, and takes them back
 *
 * A key is index << 8 | tag. The 24-bit index is the slot's number times an odd
 * constant, xor a secret: a bijection, so decoding a key needs no table, and
 * most indices lead to no slot at all. The tag comes from the slot's generation
 * through another bijection, two tags per generation, one for the lkey and one
 * for the rkey. So a slot goes through 128 lives before a key comes back, and
 * between two lives of a slot lie at least QUARANTINE others.
 *
 * Readers and removal. An entry's plain fields are written only while it is
 * dead, that is, before its keys were ever stored or between keys_kill() and
 * the publishing store in keys_add() or keys_revive(). A reader counts itself
 * in users first and looks at KEY_DYING and the key afterwards; keys_kill()
 * sets KEY_DYING first and looks at the count afterwards. Both are read-modify-
 * writes of the same word, so either the reader sees KEY_DYING and leaves, or
 * keys_kill() sees the reader and waits. A reader that counts itself in on an
 * entry that is not its own, or dead, leaves without reading a plain field.
 */
#include "keys.h"

#include "base/sys.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>

#define INDEX_MASK 0xffffffu
#define NO_SLOT UINT32_MAX

/* Odd, and its inverse modulo 2^24. */
#define MULTIPLIER 0x9e3779u
#define INVERSE 0xb382c9u
static_assert(((MULTIPLIER * INVERSE) & INDEX_MASK) == 1, "not inverse");

/* Freed slots that wait before the oldest is used again, room permitting. */
#define QUARANTINE 1024u

/* The splitmix64 generator. */
static uint64_t next_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static uint32_t slot_index(const struct keys *k, uint32_t slot)
{
	return ((slot * MULTIPLIER) ^ k->secret) & INDEX_MASK;
}

static uint32_t index_slot(const struct keys *k, uint32_t index)
{
	uint32_t slot = ((index ^ k->secret) * INVERSE) & INDEX_MASK;

	return slot < k->count ? slot : NO_SLOT;
}

uint32_t keys_slot(const struct keys *k, uint32_t key)
{
	return index_slot(k, key >> 8);
}

uint32_t keys_with_tag(const struct keys *k, uint32_t slot, uint32_t tag)
{
	uint32_t rkey = slot < k->count ? atomic_load(&k->entry[slot].rkey) : 0;

	return rkey ? (rkey & ~0xffu) | (tag & 0xff) : 0;
}

void keys_init(struct keys *k, struct key_entry *mem, uint32_t count,
	       uint64_t seed)
{
	assert(count && count <= 1u << 20 && (count & (count - 1)) == 0);
	*k = (struct keys){
		.entry = mem,
		.count = count,
		.free_head = NO_SLOT,
		.free_tail = NO_SLOT,
		.rng = seed,
	};
	/*
	 * 0 is "no key", and some programs take all ones for that, so no slot
	 * may have an index that could lead to either.
	 */
	do {
		k->secret = (uint32_t)next_random(&k->rng);
	} while (index_slot(k, 0) != NO_SLOT ||
		 index_slot(k, INDEX_MASK) != NO_SLOT);
}

/* Tag number n of a slot, n modulo 256: every tag once in 256 steps. */
static uint8_t tag(const struct keys *k, uint32_t slot, uint32_t n)
{
	uint32_t salt = (k->secret ^ slot * MULTIPLIER) >> 8;
	uint8_t t = (uint8_t)(n * 0xa5u + salt);

	t ^= (uint8_t)(t >> 4);
	return (uint8_t)(t * 0x6bu ^ (salt >> 8));
}

static uint32_t take_slot(struct keys *k)
{
	uint32_t slot;

	if (k->used < k->count && k->free_count < QUARANTINE)
		return k->used++;
	slot = k->free_head;
	if (slot == NO_SLOT)
		return NO_SLOT;
	k->free_head = k->entry[slot].next_free;
	if (k->free_head == NO_SLOT)
		k->free_tail = NO_SLOT;
	k->free_count--;
	return slot;
}

static void publish(struct key_entry *e, const struct key_entry *from,
		    uint32_t lkey, uint32_t rkey)
{
	e->access = from->access;
	e->pd = from->pd;
	e->qpn = from->qpn;
	e->kind = from->kind;
	e->parent = from->parent;
	e->iova = from->iova;
	e->length = from->length;
	e->addr = from->addr;
	atomic_store_explicit(&e->lkey, lkey, memory_order_release);
	atomic_store_explicit(&e->rkey, rkey, memory_order_release);
	/* Not a store: a reader with a stale key may be passing through. */
	atomic_fetch_and_explicit(&e->users, ~KEY_DYING, memory_order_release);
}

int keys_add(struct keys *k, const struct key_entry *from)
{
	uint32_t slot = take_slot(k);
	uint32_t base, n, lkey, rkey;
	struct key_entry *e;

	if (slot == NO_SLOT)
		return -ENOMEM;
	e = &k->entry[slot];
	base = slot_index(k, slot) << 8;
	n = e->generation++ * 2;
	lkey = base | tag(k, slot, n);
	rkey = base | tag(k, slot, n + 1);
	if (from->kind == KEY_NULL)
		rkey = 0;
	else if (from->kind != KEY_MR)
		lkey = 0; /* windows are for the peer only (10.6.7) */
	e->windows = 0;
	publish(e, from, lkey, rkey);
	return (int)slot;
}

void keys_kill(struct keys *k, uint32_t slot)
{
	struct key_entry *e = &k->entry[slot];
	unsigned round;
	uint32_t users;

	assert(slot < k->used);
	users = atomic_fetch_or_explicit(&e->users, KEY_DYING,
					 memory_order_acq_rel);
	/*
	 * Readers hold a reference for the time of a copy or of a system call,
	 * so spin briefly, then let them run, then sleep.
	 */
	for (round = 0; users & ~KEY_DYING; round++) {
		if (round >= 1000)
			sys_sleep(50000);
		else if (round >= 100)
			sched_yield();
		users = atomic_load_explicit(&e->users, memory_order_acquire);
	}
}

void keys_free(struct keys *k, uint32_t slot)
{
	struct key_entry *e = &k->entry[slot];

	assert(slot < k->used && e->kind != KEY_FREE);
	assert(atomic_load_explicit(&e->users, memory_order_relaxed) &
	       KEY_DYING);
	atomic_store_explicit(&e->lkey, 0, memory_order_relaxed);
	atomic_store_explicit(&e->rkey, 0, memory_order_relaxed);
	e->kind = KEY_FREE;
	e->next_free = NO_SLOT;
	if (k->free_tail == NO_SLOT)
		k->free_head = slot;
	else
		k->entry[k->free_tail].next_free = slot;
	k->free_tail = slot;
	k->free_count++;
}

void keys_revive(struct keys *k, uint32_t slot, const struct key_entry *from,
		 uint32_t lkey, uint32_t rkey)
{
	assert(slot < k->used);
	assert(!lkey || keys_slot(k, lkey) == slot);
	assert(!rkey || keys_slot(k, rkey) == slot);
	publish(&k->entry[slot], from, lkey, rkey);
}

/*
 * The first look keeps strangers' and stale keys from touching users, whose
 * cache line the readers of a busy region share, and from holding up
 * keys_kill(); the second one decides.
 */
static bool is(const _Atomic uint32_t *word, uint32_t key)
{
	return atomic_load_explicit(word, memory_order_acquire) == key;
}

static struct key_entry *get(struct keys *k, uint32_t key, bool remote)
{
	uint32_t slot = keys_slot(k, key);
	const _Atomic uint32_t *word;
	struct key_entry *e;
	uint32_t users;

	if (!key || slot == NO_SLOT)
		return NULL;
	e = &k->entry[slot];
	word = remote ? &e->rkey : &e->lkey;
	users = atomic_load_explicit(&e->users, memory_order_relaxed);
	if (!is(word, key) || users & KEY_DYING)
		return NULL;
	users = atomic_fetch_add_explicit(&e->users, 1, memory_order_acquire);
	if (!(users & KEY_DYING) && is(word, key))
		return e;
	keys_put(e);
	return NULL;
}

struct key_entry *keys_get_local(struct keys *k, uint32_t lkey)
{
	return get(k, lkey, false);
}

struct key_entry *keys_get_remote(struct keys *k, uint32_t rkey)
{
	return get(k, rkey, true);
}

void keys_put(struct key_entry *e)
{
	atomic_fetch_sub_explicit(&e->users, 1, memory_order_release);
}
