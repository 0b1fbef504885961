/*
 * segment_internal.h - a segment, as the files that make it up see it
 */
#ifndef SOFTHCA_SEGMENT_SEGMENT_INTERNAL_H
#define SOFTHCA_SEGMENT_SEGMENT_INTERNAL_H

#include "segment.h"

#include <linux/futex.h>
#include <sys/stat.h>

#define SEGMENT_MAGIC 0x746e656d67657373u

struct segment {
	struct registry *registry;
	unsigned slot;
	uint32_t generation;
	uint8_t *map; /* all of it */
	struct segment_head *head; /* at its beginning */
	uint8_t *blank, *old; /* while it goes away */
	int fd, fifo;
	_Atomic uint32_t behind; /* what the head says of it */
	uint64_t probe; /* the value that peers look for in this process */
	_Atomic size_t table_ok[SEGMENT_TABLES]; /* allocated */
	_Atomic uint64_t rings_ok[REGISTRY_SLOTS / 64]; /* have memory */

	/* The thread that keeps it, or 0, and what the kernel is told of it. */
	_Atomic uint32_t keeper;
	struct robust_list_head robust, *robust_before;
	struct robust_list robust_word;

	pthread_mutex_t lock; /* of the table of peers, and mapping them */
	struct segment_peer *peer[REGISTRY_SLOTS];
	uint64_t refused[REGISTRY_SLOTS]; /* numbers: could not be attached */
	struct segment_peer *peers; /* all, also those that are gone */
	void (*detach)(struct segment_peer *p);
};

static inline size_t table_offset(enum segment_table t)
{
	return t == SEGMENT_KEYS ? SEGMENT_KEYS_OFFSET : SEGMENT_QPS_OFFSET;
}

static inline size_t table_room(enum segment_table t)
{
	return t == SEGMENT_KEYS ? SEGMENT_KEYS_SIZE : SEGMENT_QPS_SIZE;
}

/* What the atomics locks and copy guards name a process by. */
static inline uint64_t segment_holder(const struct segment *s)
{
	return (uint64_t)s->generation << 32 | (s->slot + 1);
}

/* We have a ring in the peer's segment. */
static inline void segment_say_producer(const struct segment_peer *p)
{
	const unsigned slot = p->segment->slot;

	atomic_fetch_or(&p->head->producers[slot / 64], 1ull << (slot % 64));
}

/*
 * Allocates [offset, offset + len) of a segment's file, whoever's it is, so
 * that touching it never fails. 0 or -errno. What is there stays.
 */
int segment_allocate(int fd, size_t offset, size_t len);

/* The files of a slot's segment; suffix as in registry.h. False: too long. */
#define SEGMENT_PATH_MAX 4200
void segment_path(const struct segment *s, unsigned slot, bool fifo,
		  char path[SEGMENT_PATH_MAX]);

/* copy_guard.c: where nobody of ours is inside, we say so again; and
 * copy_guard_wait() of what is mapped there. */
void copy_guard_repeat(struct segment *s);
void copy_guard_wait_at(struct segment *s, uint8_t *map);

/* segment_life.c: the same as segment_peer_alive(), but asks the kernel again
 * if that was not done for so long. */
bool segment_alive_within(struct segment_peer *p, uint64_t now_ns,
			  uint64_t age_ns);

/* segment_peer.c: detaches all that nobody refers to, or all at the end. */
void segment_detach_all(struct segment *s);
/* In a fork's child: none of them is current any more. */
void segment_forget_peers(struct segment *s);

#endif
