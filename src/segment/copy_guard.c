/*
 * copy_guard.c - guards copies from and to other processes' memory, and has
 * the locks for atomic operations
 *
 * A process that copies makes a word in the owner's segment odd, and then looks
 * up the key; the owner that removes a key hides it, and then checks the words.
 * Both have a full fence in between, so one of them sees the other.
 *
 * A word names the generation of its process. If that is over, or another
 * process has the slot, there is no copy: a process loses its lock on the slot
 * when its last thread has ended, and so no thread is in a system call.
 */
#include "segment_internal.h"

#include "base/cpu.h"
#include "base/say.h"
#include "base/sys.h"
#include "os/config.h"

#include <errno.h>
#include <sched.h>

/* Visits */

#define ASK_NS 20000000u /* who is inside for so long is asked */

int copy_guard_enter(struct segment_peer *p)
{
	uint32_t generation = p->segment->generation;
	uint32_t taken =
		atomic_load_explicit(&p->guards_taken, memory_order_relaxed);
	uint32_t bit, i;
	uint64_t word;

	do {
		i = (uint32_t)__builtin_ctz(~taken);
		if (i >= COPY_GUARD_WORDS)
			return -EBUSY;
		bit = 1u << i;
	} while (!atomic_compare_exchange_weak_explicit(
		&p->guards_taken, &taken, taken | bit, memory_order_acquire,
		memory_order_relaxed));
	/* What it counts on from may be another's, or scribbled over. */
	word = atomic_load_explicit(&p->guard->word[i], memory_order_relaxed);
	word = (uint64_t)generation << 32 | (uint32_t)(word + 1) | 1;
	atomic_store(&p->guard->word[i], word);
	atomic_thread_fence(memory_order_seq_cst);
	return (int)i;
}

void copy_guard_exit(struct segment_peer *p, int guard)
{
	_Atomic uint64_t *at = &p->guard->word[guard];
	uint64_t word = atomic_load_explicit(at, memory_order_relaxed);

	/* To the next even number, generation and all. */
	word = (uint64_t)p->segment->generation << 32 |
	       ((uint32_t)(word + 1) & ~1u);
	atomic_store_explicit(at, word, memory_order_release);
	atomic_fetch_and_explicit(&p->guards_taken, ~(1u << guard),
				  memory_order_release);
}

static bool copier_lives(const struct segment *s, unsigned slot,
			 uint32_t generation)
{
	return registry_generation(s->registry, slot) == generation &&
	       registry_alive(s->registry, slot);
}

static void explain_wait(const struct segment *s, unsigned slot)
{
	pid_t pid;

	if (!registry_holder(s->registry, slot, &pid))
		return;
	say("process %d of this host copies to or from memory that this one "
	    "(%d) wants to take back, and has not finished for a second; "
	    "waiting. If it is stopped, let it go on (kill -CONT %d)",
	    (int)pid, (int)getpid(), (int)pid);
}

/* It may have left, and somebody else have written there. */
static void poke_copier(struct segment *s, unsigned slot)
{
	struct segment_peer *p = segment_peer_get(s, slot);

	if (p)
		segment_poke(p);
	segment_peer_put(p);
}

/* Waits until the word has changed, or whoever wrote it has died. */
static void wait_guard(struct segment *s, unsigned slot,
		       const _Atomic uint64_t *at)
{
	uint64_t was = atomic_load(at), begin = clock_ns(), nap = 20000;
	uint64_t asked = begin, now;
	bool complained = false;

	if (!(was & 1))
		return;
	for (unsigned i = 0; i < 1000; i++) {
		if (atomic_load(at) != was)
			return;
		cpu_relax();
	}
	while (atomic_load(at) == was) {
		if (!copier_lives(s, slot, (uint32_t)(was >> 32)))
			return;
		now = clock_ns();
		if (now - asked > ASK_NS) {
			poke_copier(s, slot);
			asked = now;
		}
		if (!complained && now - begin > 1000000000) {
			explain_wait(s, slot);
			complained = true;
		}
		/* The first naps let whoever has lost its processor run. */
		if (nap > 100000)
			sys_sleep(nap);
		else
			sched_yield();
		nap = nap < 2000000 ? nap * 2 : nap;
	}
}

void copy_guard_wait_at(struct segment *s, uint8_t *map)
{
	const struct segment_head *h = (const void *)map;
	struct copy_guard *guard =
		(struct copy_guard *)(void *)(map + SEGMENT_GUARDS_OFFSET);

	atomic_thread_fence(memory_order_seq_cst);
	for (unsigned i = 0; i < REGISTRY_SLOTS / 64; i++) {
		uint64_t set = segment_producers(h, i);

		while (set) {
			unsigned slot = i * 64 + (unsigned)__builtin_ctzll(set);

			set &= set - 1;
			for (int k = 0; k < COPY_GUARD_WORDS; k++)
				wait_guard(s, slot, &guard[slot].word[k]);
		}
	}
}

void copy_guard_wait(struct segment *s)
{
	copy_guard_wait_at(s, s->map);
}

void copy_guard_repeat(struct segment *s)
{
	_Atomic uint64_t *at;
	uint64_t word;

	pthread_mutex_lock(&s->lock);
	for (struct segment_peer *p = s->peers; p; p = p->next) {
		for (unsigned i = 0; i < COPY_GUARD_WORDS; i++) {
			at = &p->guard->word[i];
			/* In this order: who has entered by the first load has
			 * said so before the second, and who has left since,
			 * or enters just now, changes it. */
			word = atomic_load(at);
			if (word & 1 &&
			    !(atomic_load(&p->guards_taken) >> i & 1))
				atomic_compare_exchange_strong(at, &word,
							       word + 1);
		}
	}
	pthread_mutex_unlock(&s->lock);
}

/* Atomic operations */

#define LOCK_SPINS 2000
#define LOCK_YIELDS 100

/* The word is another's: may we have it? */
static bool holder_died(struct segment *s, uint64_t word)
{
	unsigned slot = (uint32_t)word - 1;

	return slot >= REGISTRY_SLOTS ||
	       !copier_lives(s, slot, (uint32_t)(word >> 32));
}

static int lock_word(struct segment *s, _Atomic uint64_t *at)
{
	uint64_t mine = segment_holder(s), word, asked = 0;

	for (unsigned i = 0; i < LOCK_SPINS + LOCK_YIELDS; i++) {
		word = 0;
		if (atomic_compare_exchange_weak(at, &word, mine))
			return 0;
		if (i < LOCK_SPINS) {
			cpu_relax();
			continue;
		}
		/* Once for each holder: what it does takes 2 us. */
		if (word && word != asked && word != mine &&
		    holder_died(s, word) &&
		    atomic_compare_exchange_strong(at, &word, mine))
			return 0;
		asked = word;
		sched_yield();
	}
	return -EBUSY;
}

static void unlock_word(struct segment *s, _Atomic uint64_t *at)
{
	uint64_t word = segment_holder(s);

	/* Unless somebody has scribbled there. */
	atomic_compare_exchange_strong(at, &word, 0);
}

int segment_atomic_lock(struct segment_peer *p, unsigned i)
{
	return lock_word(p->segment,
			 &p->head->atomics[i % SEGMENT_ATOMIC_LOCKS].word);
}

void segment_atomic_unlock(struct segment_peer *p, unsigned i)
{
	unlock_word(p->segment,
		    &p->head->atomics[i % SEGMENT_ATOMIC_LOCKS].word);
}

int segment_own_atomic_lock(struct segment *s, unsigned i)
{
	return lock_word(s, &s->head->atomics[i % SEGMENT_ATOMIC_LOCKS].word);
}

void segment_own_atomic_unlock(struct segment *s, unsigned i)
{
	unlock_word(s, &s->head->atomics[i % SEGMENT_ATOMIC_LOCKS].word);
}
