/*
 * keys.c - the key table: hands out slots and keys, and takes them back
 *
 * A key is index << 8 | tag. The index is a keyed permutation of the slot's
 * number and, in the bits above, of how often the slot was used. Under each
 * index the tags come in the order of another keyed permutation, two a life,
 * one for the lkey and one for the rkey, if they differ. So a key comes back after
 * 2^24 / count * 128 lives of its slot, and between two lives lie at least
 * QUARANTINE others, room permitting.
 *
 * Readers and removal. An entry's plain fields are written only while it is
 * dead: before its keys were ever stored, or after keys_kill(), from
 * keys_busy() returning false until the publishing store in keys_add() or
 * keys_revive(). A reader counts itself in users first and looks at KEY_DYING
 * and the key afterwards; keys_kill() sets KEY_DYING first, and keys_busy()
 * looks at the count afterwards. The reader's count and keys_kill()'s mark are
 * read-modify-writes of the same word, so either the reader sees KEY_DYING and
 * leaves, or keys_busy() sees the reader. A reader that counts itself in on an
 * entry that is not its own, or dead, leaves without reading a plain field.
 */
#include "keys.h"

#include <assert.h>
#include <errno.h>

#define INDEX_BITS 24
#define INDEX_MASK 0xffffffu
#define HALF_MASK 0xfffu
#define NO_SLOT UINT32_MAX

/* Freed slots that wait before the oldest is used again, room permitting. */
#define QUARANTINE 1024u

static inline uint64_t rotl(uint64_t x, unsigned n)
{
	return x << n | x >> (64 - n);
}

/*
 * SipHash of one word, with one round for it and two at the end: the result for
 * one word reveals nothing about another without the secret.
 */
static uint64_t keyed(const uint64_t secret[4], uint64_t word)
{
	uint64_t v0 = secret[0], v1 = secret[1];
	uint64_t v2 = secret[2], v3 = secret[3] ^ word;

	for (int round = 0; round < 3; round++) {
		if (round == 1) {
			v0 ^= word;
			v2 ^= 0xff;
		}
		v0 += v1;
		v1 = rotl(v1, 13) ^ v0;
		v0 = rotl(v0, 32);
		v2 += v3;
		v3 = rotl(v3, 16) ^ v2;
		v0 += v3;
		v3 = rotl(v3, 21) ^ v0;
		v2 += v1;
		v1 = rotl(v1, 17) ^ v2;
		v2 = rotl(v2, 32);
	}
	return v0 ^ v1 ^ v2 ^ v3;
}

/* Words for keyed(): below are rounds of the index, from here on tags. */
#define FEISTEL_ROUNDS 4u
#define WORD_TAG (1ull << 32)

/* A Feistel network of 12-bit halves, forth... */
static uint32_t number_index(const uint64_t secret[4], uint32_t number)
{
	uint32_t l = number >> 12, r = number & HALF_MASK, was;

	for (uint32_t i = 0; i < FEISTEL_ROUNDS; i++) {
		was = r;
		r = l ^ ((uint32_t)keyed(secret, i << 12 | r) & HALF_MASK);
		l = was;
	}
	return l << 12 | r;
}

/* ...and back. */
static uint32_t index_number(const uint64_t secret[4], uint32_t index)
{
	uint32_t l = index >> 12, r = index & HALF_MASK, was;

	for (uint32_t i = FEISTEL_ROUNDS; i--;) {
		was = l;
		l = r ^ ((uint32_t)keyed(secret, i << 12 | l) & HALF_MASK);
		r = was;
	}
	return l << 12 | r;
}

uint32_t keys_index(const struct keys *k, uint32_t key)
{
	return index_number(k->secret, key >> 8) & (k->count - 1);
}

static uint32_t load(const _Atomic uint32_t *word)
{
	return atomic_load_explicit(word, memory_order_acquire);
}

uint32_t keys_slot(const struct keys *k, uint32_t key)
{
	uint32_t slot = keys_index(k, key);
	const struct key_entry *e = &k->entry[slot];
	uint32_t its = load(&e->rkey);

	if (!its)
		its = load(&e->lkey);
	return its && (its ^ key) >> 8 == 0 ? slot : NO_SLOT;
}

bool keys_is_window(const struct keys *k, uint32_t slot)
{
	uint32_t kind = KEY_FREE;

	/* It may be bound anew meanwhile, and stays a window then. */
	if (slot < k->count)
		kind = __atomic_load_n(&k->entry[slot].kind, __ATOMIC_RELAXED);
	return kind == KEY_MW1 || kind == KEY_MW2;
}

uint32_t keys_with_tag(const struct keys *k, uint32_t slot, uint32_t tag)
{
	uint32_t rkey = slot < k->count ? load(&k->entry[slot].rkey) : 0;

	return rkey ? (rkey & ~0xffu) | (tag & 0xff) : 0;
}

void keys_init(struct keys *k, struct key_entry *mem, uint32_t count,
	       const uint64_t secret[2])
{
	assert(count && count <= 1u << 20 && (count & (count - 1)) == 0);
	*k = (struct keys){
		.entry = mem,
		.count = count,
		.free_head = NO_SLOT,
		.free_tail = NO_SLOT,
		/* As SipHash begins. */
		.secret = { secret[0] ^ 0x736f6d6570736575,
			    secret[1] ^ 0x646f72616e646f6d,
			    secret[0] ^ 0x6c7967656e657261,
			    secret[1] ^ 0x7465646279746573 },
	};
}

/*
 * Tag n of an index's number, n modulo 256: every tag once in 256 steps. A
 * Feistel network of 4-bit halves, whose functions are tables of 16 in 64 bits.
 */
static uint32_t tag(const struct keys *k, uint32_t number, uint32_t n)
{
	uint32_t l = n >> 4 & 15, r = n & 15, was;

	for (uint32_t i = 0; i < 8; i++) {
		uint64_t table =
			keyed(k->secret,
			      WORD_TAG | (uint64_t)i << INDEX_BITS | number);

		was = r;
		r = l ^ (uint32_t)(table >> 4 * r & 15);
		l = was;
	}
	return l << 4 | r;
}

bool keys_was(const struct keys *k, uint32_t key, bool *local)
{
	const uint32_t lives = (INDEX_MASK + 1) / k->count;
	const uint32_t number = index_number(k->secret, key >> 8);
	const struct key_entry *e = &k->entry[number & (k->count - 1)];
	const uint32_t begun =
		atomic_load_explicit(&e->generation, memory_order_relaxed);

	/* All lives that have this index, until the tags come again. */
	for (uint32_t n = number / k->count, i = 0; n < begun && i < 256;
	     n += lives, i += 2)
		for (uint32_t j = 0; j < 2; j++)
			if (tag(k, number, i + j) == (key & 0xff)) {
				*local = !j;
				return true;
			}
	return false;
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

static struct key_shown *shown(const struct keys *k, uint32_t slot)
{
	return slot < k->nshown ? &k->shown[slot] : NULL;
}

/* Odd factors: whichever of the numbers changes, the sum does. */
static uint64_t check_of(const struct key_shown *s, uint32_t slot,
			 uint32_t rkey)
{
	return ((uint64_t)slot << 32 | rkey) * 0x9e3779b97f4a7c15u +
	       ((uint64_t)s->access << 32 | s->pd) * 0xbf58476d1ce4e5b9u +
	       ((uint64_t)s->qpn << 32 | s->kind) * 0x94d049bb133111ebu +
	       s->iova * 0xd6e8feb86659fd93u + s->length * 0xa0761d6478bd642fu +
	       s->addr * 0xe7037ed1a0b428dbu;
}

static void show(struct key_shown *s, const struct key_entry *e, uint32_t slot,
		 uint32_t lkey, uint32_t rkey)
{
	s->access = e->access;
	s->pd = e->pd;
	s->qpn = e->qpn;
	s->kind = e->kind;
	s->iova = e->iova;
	s->length = e->length;
	s->addr = e->addr;
	s->check = check_of(s, slot, rkey);
	atomic_store_explicit(&s->lkey, lkey, memory_order_release);
	atomic_store_explicit(&s->rkey, rkey, memory_order_release);
}

static void publish(struct keys *k, uint32_t slot, const struct key_entry *from,
		    uint32_t lkey, uint32_t rkey)
{
	struct key_entry *e = &k->entry[slot];

	e->access = from->access;
	e->pd = from->pd;
	e->qpn = from->qpn;
	__atomic_store_n(&e->kind, from->kind, __ATOMIC_RELAXED);
	e->parent = from->parent;
	e->iova = from->iova;
	e->length = from->length;
	e->addr = from->addr;
	atomic_store_explicit(&e->lkey, lkey, memory_order_release);
	atomic_store_explicit(&e->rkey, rkey, memory_order_release);
	/* Not a store: a reader with a stale key may be passing through. */
	atomic_fetch_and_explicit(&e->users, ~KEY_DYING, memory_order_release);
	if (shown(k, slot))
		show(shown(k, slot), from, slot, lkey, rkey);
}

int keys_add(struct keys *k, const struct key_entry *from)
{
	const uint32_t lives = (INDEX_MASK + 1) / k->count;
	uint32_t slot = take_slot(k);
	uint32_t index, number, n, lkey, rkey;
	struct key_entry *e;

	if (slot == NO_SLOT)
		return -ENOMEM;
	e = &k->entry[slot];
	/*
	 * 0 is "no key", and some programs take all ones for that, so no key
	 * has an index that could lead to either.
	 */
	do {
		n = atomic_fetch_add_explicit(&e->generation, 1,
					      memory_order_relaxed);
		number = n % lives * k->count | slot;
		index = number_index(k->secret, number);
	} while (!index || index == INDEX_MASK);
	n = n / lives * 2;
	lkey = index << 8 | tag(k, number, n);
	rkey = index << 8 | tag(k, number, n + 1);
	if (from->kind == KEY_NULL)
		rkey = 0;
	else if (from->kind != KEY_MR)
		lkey = 0; /* windows are for the peer only (10.6.7) */
	else if (k->one)
		rkey = lkey;
	e->windows = 0;
	publish(k, slot, from, lkey, rkey);
	return (int)slot;
}

void keys_kill(struct keys *k, uint32_t slot)
{
	assert(slot < k->used);
	atomic_fetch_or_explicit(&k->entry[slot].users, KEY_DYING,
				 memory_order_acq_rel);
	if (shown(k, slot)) {
		atomic_store(&shown(k, slot)->lkey, 0);
		atomic_store(&shown(k, slot)->rkey, 0);
	}
}

bool keys_busy(const struct keys *k, uint32_t slot)
{
	return atomic_load_explicit(&k->entry[slot].users,
				    memory_order_acquire) &
	       ~KEY_DYING;
}

void keys_free(struct keys *k, uint32_t slot)
{
	struct key_entry *e = &k->entry[slot];

	assert(slot < k->used && e->kind != KEY_FREE);
	assert(atomic_load_explicit(&e->users, memory_order_relaxed) &
	       KEY_DYING);
	atomic_store_explicit(&e->lkey, 0, memory_order_relaxed);
	atomic_store_explicit(&e->rkey, 0, memory_order_relaxed);
	__atomic_store_n(&e->kind, KEY_FREE, __ATOMIC_RELAXED);
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
	publish(k, slot, from, lkey, rkey);
}

/* ---- for other processes ----------------------------------------------- */

void keys_show(struct keys *k, struct keys_shown *head,
	       struct key_shown *entries)
{
	*head = (struct keys_shown){
		.count = k->count,
		.entry_size = sizeof(*entries),
		.secret = { k->secret[0], k->secret[1], k->secret[2],
			    k->secret[3] },
	};
	k->shown = entries;
	k->nshown = 0;
}

void keys_show_room(struct keys *k, uint32_t n)
{
	if (n > k->count)
		n = k->count;
	if (n > k->nshown)
		k->nshown = n;
}

bool keys_view_init(struct keys_view *v, const struct keys_shown *head,
		    const struct key_shown *entries)
{
	/* Once, since it may change under our eyes. */
	const struct keys_shown h = *(const volatile struct keys_shown *)head;

	if (h.entry_size != sizeof(*entries) || !h.count ||
	    h.count > 1u << 20 || (h.count & (h.count - 1)))
		return false;
	*v = (struct keys_view){
		.entry = entries,
		.count = h.count,
		.secret = { h.secret[0], h.secret[1], h.secret[2],
			    h.secret[3] },
	};
	return true;
}

uint32_t keys_find(const struct keys_view *v, uint32_t rkey, uint32_t *hint)
{
	uint32_t slot = *hint & (v->count - 1);

	if (slot < v->ready && load(&v->entry[slot].rkey) == rkey)
		return slot;
	return *hint = index_number(v->secret, rkey >> 8) & (v->count - 1);
}

bool keys_peek(const struct keys_view *v, uint32_t slot, uint32_t rkey,
	       struct key_shown *e)
{
	const volatile struct key_shown *s;

	if (!rkey || slot >= v->ready || load(&v->entry[slot].rkey) != rkey)
		return false;
	/* Once; the keys may be taken back meanwhile. */
	s = &v->entry[slot];
	*e = (struct key_shown){
		.lkey = load(&v->entry[slot].lkey),
		.rkey = rkey,
		.access = s->access,
		.pd = s->pd,
		.qpn = s->qpn,
		.kind = s->kind,
		.iova = s->iova,
		.length = s->length,
		.addr = s->addr,
		.check = s->check,
	};
	return e->check == check_of(e, slot, rkey);
}

bool keys_shows(const struct keys_view *v, uint32_t slot, uint32_t key)
{
	return key && slot < v->ready &&
	       (load(&v->entry[slot].lkey) == key ||
		load(&v->entry[slot].rkey) == key);
}
