/*
 * segment.h - the piece of shared memory that a process shows to its host
 *
 * Every process that has joined the registry may have one segment: a sparse
 * file beside the registry's, which other processes of the same user and
 * network namespace map. Into it they put packets (a ring for each slot of the
 * registry, so each ring has one process that produces and one that consumes),
 * and out of it they learn which keys and queue pairs the process has, so that
 * they may copy from and into its memory themselves (process_vm_readv(2)).
 *
 * What lies in a segment may be scribbled over by any process of the user:
 * copy once, then check. All memory is allocated before it is touched, so a
 * full file system is an error return here and never a SIGBUS later; memory
 * beyond what is said to be there must not be touched, not even be read.
 *
 * The registry's slot says which segment its process has (a random number, 0:
 * none): by one load a peer sees whether what it has mapped is still the right
 * one. The file of a process that was killed is removed by whoever sweeps the
 * registry next.
 *
 *	segment.c	one's own: creation, growth, end
 *	segment_peer.c	others': finding, mapping, whether they live
 *	segment_life.c	whether their processes live
 *	segment_copy.c	copying from and to their memory
 *	copy_guard.c	who is copying; the locks for atomic operations
 *	segment_wake.c	whether its thread sleeps, and how it is woken
 *
 * Functions return 0 or -errno unless they say otherwise, and are safe from
 * many threads.
 */
#ifndef SOFTHCA_SEGMENT_SEGMENT_H
#define SOFTHCA_SEGMENT_SEGMENT_H

#include "registry/registry.h"

#include "base/lock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* The layout. Whoever changes anything of it, or of what others put into it
 * (rings, keys, queue pairs), changes the version. */
#define SEGMENT_VERSION 7

#define SEGMENT_ALIGN (64u << 10) /* of what is mapped; no page is larger */
#define SEGMENT_GROW                                                           \
	(64u << 10) /* how much of a table is allocated at a time */

#define SEGMENT_RING_SIZE (64u << 10)
#define SEGMENT_TABLE_HEAD 4096u /* what a table says of itself, */
#define SEGMENT_KEYS_SIZE (96u << 20) /* and its entries */
#define SEGMENT_QPS_SIZE ((16u << 20) + SEGMENT_ALIGN)

#define SEGMENT_GUARDS_OFFSET 4096u /* mapped with the head */
#define SEGMENT_GUARDS_SIZE (REGISTRY_SLOTS * 64u)
#define SEGMENT_RINGS_OFFSET (2 * SEGMENT_ALIGN)
#define SEGMENT_RINGS_SIZE (REGISTRY_SLOTS * SEGMENT_RING_SIZE)
#define SEGMENT_KEYS_OFFSET (SEGMENT_RINGS_OFFSET + SEGMENT_RINGS_SIZE)
#define SEGMENT_QPS_OFFSET (SEGMENT_KEYS_OFFSET + SEGMENT_KEYS_SIZE)
#define SEGMENT_SIZE (SEGMENT_QPS_OFFSET + SEGMENT_QPS_SIZE)

/* The two tables that an owner publishes. */
enum segment_table {
	SEGMENT_KEYS, /* a head as keys.h has it, then key entries */
	SEGMENT_QPS, /* a head as the QP table has it, then queue pairs */
	SEGMENT_TABLES
};

/* Flags of a segment, fixed when it is made. */
#define SEGMENT_PLAIN 1u /* send me only packets <= path MTU, payload inline */
#define SEGMENT_NO_COPY 2u /* as if the kernel did not let us and me copy */

#define SEGMENT_ATOMIC_LOCKS 16
#define COPY_GUARD_WORDS 8 /* threads of one process that copy at a time */

/* segment_head.keeper: written by the kernel (FUTEX_OWNER_DIED), nothing else
 * being in it then */
#define SEGMENT_KEEPER_DIED 0x40000000u

/* A number on a cache line of its own. */
struct segment_lock {
	_Alignas(64) _Atomic uint64_t
		word; /* 0: free; else generation << 32 | slot + 1 */
};

/* The first page. Above the line it is constant once magic is set. */
struct segment_head {
	_Atomic uint64_t magic; /* written last */
	uint32_t version;
	uint32_t slot;
	uint64_t id; /* as in the registry's slot */
	uint64_t probe_addr; /* where in the process this value lies: whoever */
	uint64_t probe_value; /* reads it there has the right process */
	uint32_t generation; /* registry_generation() of the owner */
	uint32_t pid; /* for people */
	uint32_t flags; /* SEGMENT_PLAIN, SEGMENT_NO_COPY */
	uint32_t size; /* SEGMENT_SIZE */
	/* ------ */
	_Alignas(64) _Atomic uint64_t
		table_size[SEGMENT_TABLES]; /* allocated */
	/* Slots whose processes have a ring in here, or ever had one. */
	_Alignas(64) _Atomic uint64_t producers[REGISTRY_SLOTS / 64];
	/* Not 0: nobody polls, who has published something wakes it. */
	_Alignas(64) _Atomic uint32_t asleep;
	_Atomic uint32_t poked; /* not 0: see segment_poke() */
	/* Thread that keeps it, or 0; SEGMENT_KEEPER_DIED: the process ends. */
	_Alignas(64) _Atomic uint32_t keeper;
	_Atomic uint32_t behind; /* see segment_behind() */
	struct segment_lock atomics[SEGMENT_ATOMIC_LOCKS];
};

/*
 * A line for each process that copies: a word for each of its threads that do,
 * generation << 32 | count; odd while the thread is inside.
 */
struct copy_guard {
	_Alignas(64) _Atomic uint64_t word[COPY_GUARD_WORDS];
};

/*
 * One's own segment
 */
struct segment;

/*
 * Makes the segment of the process that has joined r, and says so in the
 * registry. flags: SEGMENT_PLAIN, SEGMENT_NO_COPY. If it fails the process is as well off
 * as if there were no segments, and segment_why() says why in a sentence.
 *
 * Where Yama keeps processes from copying from each other unless they say that
 * they agree (ptrace_scope 1), it agrees, unless flags has SEGMENT_NO_COPY.
 */
int segment_create(struct segment **s, struct registry *r, uint32_t flags);
/*
 * Takes it away: no peer finds it from now on, and those that have mapped it
 * see that it is not current. No thread uses it, nor any segment_peer, any
 * more. NULL is allowed. Before registry_leave().
 */
void segment_destroy(struct segment *s);
/*
 * In the child of a fork: it is the parent's. What is mapped is replaced by
 * private memory, so whatever of the parent's objects the child still touches
 * harms nobody. The descriptors are closed. Before registry_abandon().
 */
void segment_abandon(struct segment *s);
/*
 * The process is suspended (src/migrate), and goes on: what is mapped becomes
 * private memory with the same contents at the same place, no peer finds it, and
 * none copies any more; and is shared again. Before registry_away(), after
 * registry_back(). No thread uses it but for its tables, which nobody changes
 * meanwhile, and no peer is attached. If going on fails it is still away.
 * segment_prepare() comes first, and alone may fail.
 */
int segment_prepare(struct segment *s);
void segment_away(struct segment *s);
int segment_back(struct segment *s);
/* At exit(): removes the names, and nothing else. */
void segment_unlink(struct segment *s);
/* Why segment_create() has failed last: static storage, for who called it. */
const char *segment_why(void);

const struct segment_head *segment_head(const struct segment *s);
struct registry *segment_registry(const struct segment *s);

/*
 * The calling thread keeps the segment: it is there as long as the process is.
 * When it ends, because the process is killed, exits or executes another
 * program, the kernel itself says so in the segment, before any memory of the
 * process has gone. Before it ends for another reason, and before the segment
 * is destroyed, it calls segment_unkeep(). It may hold no robust mutexes.
 */
void segment_keep(struct segment *s);
void segment_unkeep(struct segment *s);

/*
 * A table of ours: its first byte, and how much of it is there. It never moves.
 * segment_grow() makes it at least size bytes, rounded up, all new ones zero;
 * -ENOSPC: no more memory, or beyond what a table can be. The caller serialises.
 */
void *segment_table(const struct segment *s, enum segment_table t);
size_t segment_table_size(const struct segment *s, enum segment_table t);
int segment_grow(struct segment *s, enum segment_table t, size_t size);

/*
 * The rings that others produce into. segment_producers() is a word of the set
 * of slots that have one: bit b of word i is slot 64 i + b; one load each.
 * segment_ring() is such a ring, SEGMENT_RING_SIZE bytes; NULL: its memory is
 * not there (a scribbler has set the bit), and is not to be had.
 */
static inline uint64_t segment_producers(const struct segment_head *h, size_t i)
{
	return atomic_load_explicit(&h->producers[i], memory_order_acquire);
}
void *segment_ring(struct segment *s, unsigned slot);

/*
 * Other processes' segments
 *
 * A peer is attached once and remains, with its ring, until its process has
 * gone and all references are put. One's own segment is attached like others:
 * a process has a ring to itself.
 */
struct segment_peer {
	/* For others to read */
	_Alignas(64) uint64_t id;
	unsigned slot;
	uint32_t generation;
	uint32_t flags; /* of its segment */
	bool self; /* another thread of this process is the other end */
	struct segment_head *head; /* writable: hostile, look once */
	void *ring; /* ours in it, SEGMENT_RING_SIZE bytes, allocated */
	/* For the link: threads that produce into the ring hold the lock. */
	struct lock lock;
	void *link; /* NULL at first; see segment_on_detach() */

	/* The rest is the segment's own. */
	struct segment_peer *next;
	struct segment *segment;
	dev_t dev;
	ino_t ino;
	const _Atomic uint64_t *current; /* the registry's word */
	_Atomic uint32_t refs;
	_Atomic uint32_t guards_taken; /* bits: words that are taken */
	struct copy_guard *guard; /* our line in it */
	const uint8_t *table[SEGMENT_TABLES]; /* NULL: not mapped yet */
	_Atomic size_t table_ok[SEGMENT_TABLES]; /* may be read up to here */
	void *first_map; /* head and guards */
	_Atomic int wake_fd; /* -1: not open yet */
	pid_t pid; /* as this process sees it; 0: not to be named here */
	_Atomic uint64_t alive_ns; /* last seen alive */
	_Atomic bool dead; /* for good */
	_Atomic int can_copy; /* 1, 0, or -1: to be tried */
	uint64_t probe_addr, probe_value;
};

/*
 * The peer that has this slot now, with a reference; NULL: it has no segment,
 * or it cannot be attached (no room for a ring, another version), which is not
 * tried again.
 */
struct segment_peer *segment_peer_get(struct segment *s, unsigned slot);
void segment_peer_hold(struct segment_peer *p); /* one more reference */
void segment_peer_put(struct segment_peer *p); /* NULL is allowed */
/* Lets go of processes that are gone and that nobody has a reference to. It is
 * done as well whenever a peer is attached or put. */
void segment_tidy(struct segment *s);
/* fn is called before a peer is unmapped, for what the link has of it. Set
 * before the first peer is attached. */
void segment_on_detach(struct segment *s, void (*fn)(struct segment_peer *p));

/* Whether its process still shows this segment: one load. False for good. */
static inline bool segment_peer_current(const struct segment_peer *p)
{
	return atomic_load_explicit(p->current, memory_order_acquire) == p->id;
}

/* What can be seen of it without asking: it has left, or is known to have
 * died. True for good. */
static inline bool segment_peer_gone(const struct segment_peer *p)
{
	return !segment_peer_current(p) ||
	       atomic_load_explicit(&p->dead, memory_order_relaxed) ||
	       atomic_load_explicit(&p->head->keeper, memory_order_acquire) ==
		       SEGMENT_KEEPER_DIED;
}

/*
 * Whether its process lives. False for good. If that process has a thread that
 * keeps its segment (segment_keep()), by a few loads and at once, and by a
 * system call if that was done more than a second ago; else 10 ms.
 */
bool segment_peer_alive(struct segment_peer *p, uint64_t now_ns);

/*
 * A table of the peer's, read only, if its first upto bytes may be read; else
 * NULL. A few loads, but for when it has grown. The memory stays valid as long
 * as the reference to the peer.
 */
const void *segment_peer_table(struct segment_peer *p, enum segment_table t,
			       size_t upto);

/*
 * Copying
 *
 * Whether the kernel lets us copy from and to its memory, and its pid is the
 * process that it says it is (it may be of another PID namespace): proven by
 * reading a random number there. Tried once, and again after a copy was
 * refused. A few loads otherwise.
 */
bool segment_can_copy(struct segment_peer *p);

/*
 * Copies remote memory to local, or local to remote; pieces of any number and
 * length, both sides equally long in total. 0: all was copied.
 * -EFAULT: some memory, of either side, is not there (or may not be written);
 *          up to there it was copied.
 * -ESRCH:  the process is gone.
 * -EPERM:  it cannot be copied from (segment_can_copy()).
 * Whether it is alive is asked for as in segment_peer_alive().
 */
int segment_read(struct segment_peer *p, const struct iovec *local, size_t n,
		 const struct iovec *remote, size_t m, uint64_t now_ns);
int segment_write(struct segment_peer *p, const struct iovec *local, size_t n,
		  const struct iovec *remote, size_t m, uint64_t now_ns);

/*
 * Guards a copy: enter, check that the key (or QP) is still there, copy, exit.
 * Who removes a key hides it and calls copy_guard_wait(); then nobody copies
 * there any more. Entering is a full fence. Returns a number for exit, or
 * -EBUSY: COPY_GUARD_WORDS threads of this process are inside.
 */
int copy_guard_enter(struct segment_peer *p);
void copy_guard_exit(struct segment_peer *p, int guard);
/*
 * The owner: waits until every process that was inside when it was called has
 * left or has died. As long as that process lives it waits, since it may still
 * write, and asks it to repeat whether it is inside (copy_guard_repeat()). If
 * that takes a second, as for a stopped process, a message on stderr says so.
 */
void copy_guard_wait(struct segment *s);

/*
 * The locks of a process for atomic operations in its memory. Everybody who
 * executes one there, the owner included, holds the lock that
 * segment_atomic_lock_of() names for its address. -EBUSY: it was not to be had
 * for some 100 us of trying (its holder is stopped, or waits for a processor):
 * do something else and try again. A holder that has died is no obstacle.
 */
static inline unsigned segment_atomic_lock_of(uint64_t addr)
{
	return (unsigned)((addr >> 3) * 0x9e3779b97f4a7c15u >> 60);
}
int segment_atomic_lock(struct segment_peer *p, unsigned i);
void segment_atomic_unlock(struct segment_peer *p, unsigned i);
int segment_own_atomic_lock(struct segment *s, unsigned i);
void segment_own_atomic_unlock(struct segment *s, unsigned i);

/*
 * Sleeping and waking
 *
 * Who sleeps (the thread, or a program that waits for an event) says so first
 * and then looks again whether there is anything to do; who has published
 * something looks whether somebody sleeps. Each has a full fence between the
 * two, so either of them sees the other's.
 */

/* Readable after it was woken; for epoll. It is there always. */
int segment_wake_fd(const struct segment *s);
/* Nobody polls from now on (a full fence). */
void segment_sleeps(struct segment *s);
/* Somebody does. called: the descriptor was found readable, and what was written
 * there is taken. */
void segment_wakes(struct segment *s, bool called);

/*
 * After something was published for the peer, and a full fence: wakes it if it
 * sleeps. It is then taken for awake, so of many producers one makes the system
 * call.
 */
__attribute__((noinline, cold)) void segment_wake_slow(struct segment_peer *p);
static inline void segment_wake(struct segment_peer *p)
{
	if (__builtin_expect(atomic_load_explicit(&p->head->asleep,
						  memory_order_relaxed) != 0,
			     0))
		segment_wake_slow(p);
}

/*
 * n more packets (or fewer, if negative) have been taken from where others have
 * put them, and wait for a thread that is not running: they are not lost.
 */
void segment_behind(struct segment *s, int n);
static inline bool segment_is_behind(const struct segment_head *h)
{
	return atomic_load_explicit(&h->behind, memory_order_acquire);
}

/*
 * Somebody else may have written where processes tell each other what they have
 * done, and one waits for what will never be there: has the peer, which may be
 * asleep or poll, say it all again. Whoever polls looks at segment_poked(), a
 * load, and then calls segment_say_again() for what is in segments, and says
 * himself what is in rings.
 */
void segment_poke(struct segment_peer *p);
static inline bool segment_poked(const struct segment_head *h)
{
	return atomic_load_explicit(&h->poked, memory_order_relaxed);
}
void segment_say_again(struct segment *s);
/* Wakes those who sleep in this process, whatever is said of them. */
void segment_poke_own(struct segment *s);

#endif
