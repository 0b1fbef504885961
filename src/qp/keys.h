/*
 * keys.h - the table that lkeys and rkeys lead to
 *
 * One table per process. A key is a 24-bit index and an 8-bit tag, as the
 * specification has it (10.6.3.3). Both
 * come from permutations keyed with a secret of the table, so whoever knows
 * some keys can only guess others; slots are reused in the order in which they
 * were freed, so the lkey and the rkey of a region differ, and a stale key is
 * refused for a long time.
 *
 * Readers take a reference with keys_get_local() or keys_get_remote(), which
 * fail once keys_kill() has been called. Whoever removes a key waits until the
 * references that were taken are gone, which keys_busy() says: how it waits is
 * its own affair. So a region's memory is never touched after ibv_dereg_mr()
 * has returned.
 *
 * Other processes of the host can be shown a copy of the table, and copy from
 * and to a region's memory themselves; see keys_show() and keys_peek().
 */
#ifndef SOFTHCA_QP_KEYS_H
#define SOFTHCA_QP_KEYS_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum key_kind {
	KEY_FREE = 0,
	KEY_MR,
	KEY_MW1, /* memory window type 1: bound to a PD */
	KEY_MW2, /* type 2: bound to a QP */
	KEY_NULL, /* all addresses; reads as zeros, writes are forgotten */
};

struct key_entry {
	_Atomic uint32_t users; /* references; KEY_DYING while being removed */
	_Atomic uint32_t lkey; /* 0: none */
	_Atomic uint32_t rkey; /* 0: none */
	uint32_t access; /* enum ibv_access_flags */
	uint32_t pd; /* number of the protection domain */
	uint32_t qpn; /* KEY_MW2: the QP bound to */
	uint32_t kind; /* enum key_kind */
	uint32_t parent; /* bound windows: slot of the region */
	uint64_t iova; /* address that work requests use for addr */
	uint64_t length;
	uint64_t addr; /* in this process */
	uint32_t next_free;
	_Atomic uint32_t generation; /* lives begun */
	uint64_t windows; /* regions: windows bound to this one */
};

#define KEY_DYING 0x80000000u

/*
 * An entry as other processes see it. What they map they may scribble on, so
 * it is a copy, which its owner writes and never reads. The keys are 0 while
 * the entry is dead, and only then does anything else of it change.
 */
struct key_shown {
	_Alignas(64) _Atomic uint32_t lkey;
	_Atomic uint32_t rkey;
	uint32_t access;
	uint32_t pd;
	uint32_t qpn;
	uint32_t kind;
	uint64_t iova;
	uint64_t length;
	uint64_t addr; /* in the owner's process */
	uint64_t check; /* of what stands here, and in which slot */
};

/* What stands before the entries: how a key leads to one of them. */
struct keys_shown {
	uint32_t count;
	uint32_t entry_size; /* of struct key_shown */
	uint64_t secret[4];
};

struct keys {
	struct key_entry *entry;
	uint32_t count;
	uint32_t nshown; /* entries that have memory behind them in shown */
	struct key_shown *shown;
	bool one; /* a region's lkey is its rkey, as with mlx5 and rxe */
	/* Below: owned by whoever adds and removes, under its lock. */
	uint32_t used; /* slots ever used; the rest is untouched memory */
	uint32_t free_head; /* oldest freed slot, or UINT32_MAX */
	uint32_t free_tail;
	uint32_t free_count;
	uint64_t secret[4]; /* never changes */
};

/*
 * The caller's memory, zeroed, holds count entries (a power of two <= 2^20).
 * The secret is random.
 */
void keys_init(struct keys *k, struct key_entry *mem, uint32_t count,
	       const uint64_t secret[2]);

/*
 * Publishes what is in *e (access, pd, kind, iova, length, addr, qpn, parent
 * are read) and returns its slot, with fresh lkey and rkey set (the same one
 * if k->one; a window has no lkey, a null region no rkey); -ENOMEM when the table is full. The caller
 * serialises add and remove.
 */
int keys_add(struct keys *k, const struct key_entry *e);

/*
 * Removal in three steps: after keys_kill() no reader finds the entry; the last
 * one has let go when keys_busy() is false, and nothing of the entry may change
 * before; keys_free() gives the slot back.
 */
void keys_kill(struct keys *k, uint32_t slot);
bool keys_busy(const struct keys *k, uint32_t slot);
void keys_free(struct keys *k, uint32_t slot);

/*
 * Makes a killed slot that is not busy visible again, with the contents of *e
 * and these keys, 0 or of this slot's index. generation and windows stay as
 * they are.
 */
void keys_revive(struct keys *k, uint32_t slot, const struct key_entry *e,
		 uint32_t lkey, uint32_t rkey);

static inline void keys_put(struct key_entry *e)
{
	atomic_fetch_sub_explicit(&e->users, 1, memory_order_release);
}

/*
 * A reference to an entry if *word, one of its keys, is this one. The first
 * look keeps strangers' and stale keys from touching users, whose cache line
 * the readers of a busy region share, and from holding up whoever waits for
 * keys_busy(); the second one decides.
 */
__attribute__((always_inline)) static inline struct key_entry *
keys_try(struct key_entry *e, const _Atomic uint32_t *word, uint32_t key)
{
	uint32_t users = atomic_load_explicit(&e->users, memory_order_relaxed);

	if (atomic_load_explicit(word, memory_order_acquire) != key ||
	    users & KEY_DYING)
		return NULL;
	users = atomic_fetch_add_explicit(&e->users, 1, memory_order_acquire);
	if (!(users & KEY_DYING) &&
	    atomic_load_explicit(word, memory_order_acquire) == key)
		return e;
	keys_put(e);
	return NULL;
}

/* Where the key can be, and nowhere else. */
__attribute__((noinline, cold)) uint32_t keys_index(const struct keys *k,
						    uint32_t key);

/*
 * The entry of a key with a reference taken, or NULL. Decoding a key takes some
 * 30 ns; *hint, any number at first, spares it who uses the same key again.
 */
__attribute__((always_inline)) static inline struct key_entry *
keys_get_local(struct keys *k, uint32_t lkey, uint32_t *hint)
{
	struct key_entry *e = &k->entry[*hint & (k->count - 1)];

	if (!lkey)
		return NULL;
	if (atomic_load_explicit(&e->lkey, memory_order_relaxed) != lkey)
		e = &k->entry[ *hint = keys_index(k, lkey)];
	return keys_try(e, &e->lkey, lkey);
}

static inline struct key_entry *keys_get_remote(struct keys *k, uint32_t rkey,
						uint32_t *hint)
{
	struct key_entry *e = &k->entry[*hint & (k->count - 1)];

	if (!rkey)
		return NULL;
	if (atomic_load_explicit(&e->rkey, memory_order_relaxed) != rkey)
		e = &k->entry[ *hint = keys_index(k, rkey)];
	return keys_try(e, &e->rkey, rkey);
}

/*
 * Shows the table to other processes: *head at once, the entries as far as
 * there is memory for them, zeroed at first: the first n from keys_show_room()
 * on, which never takes any back. It does not move. keys_want() is how many
 * keys_add() may want; entries without memory are not shown. The caller
 * serialises, as with keys_add(). After keys_kill() whoever removes an entry
 * waits for those others, too: what is shown is dead before its first fence.
 */
void keys_show(struct keys *k, struct keys_shown *head,
	       struct key_shown *entries);
void keys_show_room(struct keys *k, uint32_t n);
static inline uint32_t keys_want(const struct keys *k)
{
	return k->used < k->count ? k->used + 1 : k->count;
}

/* Another process's table. */
struct keys_view {
	const struct key_shown *entry;
	uint32_t ready; /* entries that may be looked at */
	uint32_t count;
	uint64_t secret[4];
};

/* False: this is no such table. entries are looked at later only. */
bool keys_view_init(struct keys_view *v, const struct keys_shown *head,
		    const struct key_shown *entries);

/*
 * Where the rkey is if it is in there: a slot, at or above v->ready perhaps.
 * *hint as in keys_get_remote().
 */
uint32_t keys_find(const struct keys_view *v, uint32_t rkey, uint32_t *hint);

/*
 * Copies the entry with this rkey; false: it does not exist, is dead, or is
 * corrupt: it says where the caller will write in the owner's memory. The entry
 * stays valid as long as its owner waits for the caller, which has announced
 * itself, with a full fence, before it calls.
 */
bool keys_peek(const struct keys_view *v, uint32_t slot, uint32_t rkey,
	       struct key_shown *e);

/* Whether the key, of either kind, is alive. */
bool keys_shows(const struct keys_view *v, uint32_t slot, uint32_t key);

/*
 * Whether the key was one of this table once, in a life of its slot that is
 * over, and of which kind. It is asked for when a key is good for nothing.
 */
bool keys_was(const struct keys *k, uint32_t key, bool *local);

/* The slot whose keys have this one's index, whatever the tag; UINT32_MAX:
 * there is none. */
uint32_t keys_slot(const struct keys *k, uint32_t key);

/* Whether a memory window has the slot, bound or not. */
bool keys_is_window(const struct keys *k, uint32_t slot);

/* The slot's index with a tag of the caller's choice; 0: nothing is there. */
uint32_t keys_with_tag(const struct keys *k, uint32_t slot, uint32_t tag);

static inline bool key_holds(uint64_t iova, uint64_t length, uint64_t va,
			     uint64_t len)
{
	return va >= iova && len <= length && va - iova <= length - len;
}

/*
 * Whether [va, va + len) lies inside the entry, the PD matches, and all bits
 * of access are allowed. On success *p is the address in this process.
 */
static inline bool key_covers(const struct key_entry *e, uint32_t pd,
			      uint64_t va, uint64_t len, uint32_t access,
			      void **p)
{
	if (e->pd != pd || (e->access & access) != access ||
	    !key_holds(e->iova, e->length, va, len))
		return false;
	*p = (void *)(uintptr_t)(e->addr + (va - e->iova));
	return true;
}

/* The same of another process's; *addr is the address there. */
static inline bool key_shown_covers(const struct key_shown *e, uint32_t pd,
				    uint64_t va, uint64_t len, uint32_t access,
				    uint64_t *addr)
{
	if (e->pd != pd || (e->access & access) != access ||
	    !key_holds(e->iova, e->length, va, len))
		return false;
	*addr = e->addr + (va - e->iova);
	return true;
}

#endif
