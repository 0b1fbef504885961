/*
 * registry_internal.h - the registry's file as it lies in shared memory
 *
 * The file is only ever written by processes of its user, but it outlives
 * them: they may be killed at any point, or be of another version. So nothing
 * in it is trusted without a bound check, every change is made of steps after
 * each of which the file makes sense, and what a dead process left is removed
 * by the next one that holds the lock (registry_sweep()).
 *
 * Writers hold the lock; readers take none and see each word whole.
 *
 *	registry.c		slots, leases of QPNs, bytes on their way
 *	registry_file.c		the file, its locks, who is alive
 *	registry_addr.c		receiving addresses and steering
 *	registry_service.c	service IDs
 *	registry_note.c		why requests were refused
 *	registry_gids.c		the order of GIDs
 *	registry_net.c		network namespaces, and whether an address leads to one
 *	registry_away.c		a process that is suspended
 */
#ifndef SOFTHCA_REGISTRY_REGISTRY_INTERNAL_H
#define SOFTHCA_REGISTRY_REGISTRY_INTERNAL_H

#include "registry.h"

#include "base/bytes.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

/* slot.used: its process is here; or away, and the slot is kept for it. */
enum { SLOT_FREE, SLOT_HERE, SLOT_SEAT };

struct slot {
	_Atomic uint32_t used;
	_Atomic uint32_t pid; /* for people */
	_Atomic uint32_t port;
	_Atomic uint32_t limit;
	_Atomic uint64_t segment; /* the number of what it shows us; 0: none */
	/* One more for each process in this slot. */
	_Atomic uint32_t generation;
	_Atomic uint32_t net; /* of its network namespace, which is */
	_Atomic uint64_t netns; /* this one: registry_netns() */
	/* UDP ports that it sends to port 4791 from; 0: no more. */
	_Atomic uint16_t sport[REGISTRY_SPORTS];
	_Atomic uint32_t ask; /* how often it has asked (registry_net.c) */
	_Atomic uint64_t addrs[REGISTRY_ADDRS / 64]; /* rows it receives at */
	_Atomic int64_t backlog; /* with the next, a cache line of its own */
	_Atomic uint64_t taken; /* goes on when the slot has another process */
	_Atomic uint64_t nonce, answer; /* of ask; 0: it asks nothing */
	uint64_t pad1[4];
};

/* An address in a network namespace, and how many sockets it has. */
struct row {
	_Atomic uint64_t gid[2]; /* all zero: the row is free */
	_Atomic uint64_t place; /* net << 32 | scope */
	_Atomic uint64_t changed_ns;
	_Atomic uint32_t count;
	uint32_t pad[7];
};

struct service {
	_Atomic uint32_t owner; /* slot + 1; 0: the row is free */
	_Atomic uint32_t families; /* REGISTRY_IPV4, REGISTRY_IPV6 */
	_Atomic uint64_t id;
	_Atomic uint64_t gid[2];
	_Atomic uint32_t net;
	uint32_t pad;
};

struct head {
	uint64_t magic; /* written last */
	uint32_t version;
	uint32_t size;
	uint64_t boot[2]; /* of the host: boot_id, zero where it has none */
	_Atomic uint32_t cursor; /* the chunk that was given back last */
	_Atomic uint32_t sweep_at; /* the slot to be looked at next */
	_Atomic uint64_t swept_ns; /* when dead processes were last removed */
	_Atomic uint32_t noted; /* how many notes there were */
	_Atomic uint32_t nets; /* the number that was given last */
	uint32_t pad1[2];
};

struct gids {
	_Atomic uint64_t key; /* 0: nobody's */
	_Atomic uint32_t net;
	uint32_t pad;
	struct {
		_Atomic uint64_t gid[2];
		_Atomic uint32_t ifindex; /* 0: empty */
		uint32_t pad;
	} entry[NETDEV_MAX_GIDS];
};

struct note {
	_Atomic uint32_t seq; /* odd: it is being written */
	_Atomic uint32_t qpn, peer;
	uint32_t pad;
	_Atomic uint64_t ns;
	_Atomic uint64_t text[REGISTRY_NOTE / 8];
};

struct shared {
	struct head head;
	struct slot slot[REGISTRY_SLOTS];
	_Atomic uint16_t chunk[REGISTRY_CHUNKS]; /* slot + 1; 0: free */
	struct row addr[REGISTRY_ADDRS];
	struct service service[REGISTRY_SERVICES];
	struct note note[REGISTRY_NOTES];
	struct gids gids[REGISTRY_GID_TABLES];
	/* Of each row: the slots of its sockets, as the kernel numbers them. */
	_Atomic uint16_t order[REGISTRY_ADDRS][REGISTRY_SLOTS];
};

/* One per file and process. */
struct regfile {
	struct regfile *next;
	struct registry *users;
	struct shared *m;
	pid_t pid;
	int fd;
	int spare; /* a descriptor for a seat; -1: none */
	dev_t dev;
	ino_t ino;
	char *path;
	char *path_before; /* a suspend, or NULL */
	bool shared; /* by several network namespaces, perhaps */
	bool changed; /* tell the users when the lock is let go */
	_Atomic uint64_t mine[REGISTRY_SLOTS / 64]; /* slots of this process */
};

struct registry {
	struct registry *next;
	struct regfile *file;
	unsigned slot;
	uint32_t net; /* as in the slot */
	uint64_t place; /* of its addresses: net << 32 */
	uint64_t ordered; /* bits: tables of GIDs that we have seen */
	struct registry_kept *kept; /* registry_away.c; NULL: it is here */
	_Atomic uint32_t away; /* the same, for those who wait */
	void (*fn)(void *arg);
	void *arg;
};

#define LOAD(p) atomic_load_explicit(p, memory_order_acquire)
#define STORE(p, v) atomic_store_explicit(p, v, memory_order_release)

/* Whether a slot's process is in this network namespace. */
static inline bool slot_is_in(const struct shared *m, unsigned slot,
			      uint32_t net)
{
	return LOAD(&m->slot[slot % REGISTRY_SLOTS].net) == net;
}

static inline void gid_words(const union ibv_gid *gid, uint64_t w[2])
{
	w[0] = get_be64(gid->raw);
	w[1] = get_be64(gid->raw + 8);
}

/* The slot that leased the chunk of qpn, or -ENOENT. */
static inline int chunk_owner(const struct shared *m, uint32_t qpn)
{
	unsigned owner =
		LOAD(&m->chunk[qpn / REGISTRY_CHUNK % REGISTRY_CHUNKS]);

	return owner && owner <= REGISTRY_SLOTS ? (int)owner - 1 : -ENOENT;
}

/*
 * registry.c; the lock is held: removes what dead processes left; what a slot has
 * becomes free, the slot itself last; or only what a process that is here has; takes a free slot, the given one if that is:
 * it, or -ENOSPC; this process is in its slot from now on; the last one to leave
 * takes along the file.
 */
void registry_sweep(struct regfile *f);
void registry_slot_clear(struct regfile *f, unsigned slot);
void registry_slot_empty(struct regfile *f, unsigned slot);
int registry_slot_take(struct regfile *f, unsigned first);
/* As registry_lease(), with the dead swept. */
int registry_chunk_take(struct registry *r);
void registry_slot_begin(struct registry *r);
void registry_remove_unused(struct regfile *f);

/* registry_file.c */

/* Keeps out the threads of this process: all of its files and their users. */
extern pthread_mutex_t registry_mutex;
/* Before it is taken for the first time: a fork waits for its holder. */
void regfile_init(void);

/* Opens or makes the file; dir as in registry_join(). It is locked then.
 * registry_mutex is held, in all of these. */
int regfile_open(const char *dir, struct regfile **f);
/* Nobody uses f any more. */
void regfile_put(struct regfile *f);
/* f is closed, and its memory an empty file's that nobody else sees: blank, which
 * regfile_blank() has made; it is opened, or made, again, and locked. */
void *regfile_blank(void);
void regfile_blank_free(void *blank);
void regfile_close(struct regfile *f, void *blank);
int regfile_reopen(struct regfile *f, const char *dir);
/* Nobody else does either: whoever has opened it and waits for its lock will
 * find that it was replaced. */
void regfile_unlink(const struct regfile *f);
/* The files of a slot whose process is dead (segment.h). */
void regfile_unlink_segment(const struct regfile *f, unsigned slot);
/* After a fork: the parent's files are not ours. */
void regfile_drop_parents(void);

/* 0 or -errno; -ETIMEDOUT: another process has kept it for too long. */
int regfile_lock(struct regfile *f);
void regfile_unlock(struct regfile *f);

/* A slot is alive as long as its process has a lock on the slot's byte. */
int regfile_slot_take(struct regfile *f, unsigned slot); /* 0: it is ours */
void regfile_slot_drop(struct regfile *f, unsigned slot);
/*
 * A descriptor that keeps the slot's lock, beside ours, for whoever has a copy; or
 * -errno. A slot that is kept so is ours again, and our copy, or -1, is closed: 0 or
 * -errno, and then it is not.
 */
int regfile_seat(struct regfile *f, unsigned slot);
int regfile_seat_take(struct regfile *f, unsigned slot, int seat);
void regfile_seat_close(const struct regfile *f, int seat);
bool regfile_slot_alive(const struct regfile *f, unsigned slot);
/* The same; *pid: its process, 0 if that cannot be named here. */
bool regfile_slot_holder(const struct regfile *f, unsigned slot, pid_t *pid);

/* Says why joining fails, in a sentence, and returns err. */
int regfile_fail(int err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
const char *regfile_why(void);

/* registry_net.c; the lock is held, and the dead are swept: the number of this
 * process's network namespace in f. */
uint32_t registry_net_of(struct regfile *f, uint64_t netns);

/* registry_addr.c */
/* A dead process receives nowhere. */
void registry_addr_clear(struct regfile *f, unsigned slot);
/* Removes from the rows what cannot be true. */
void registry_addr_tidy(struct regfile *f);

/* registry_service.c */
void registry_service_clear(struct regfile *f, unsigned slot);
/* Adds one; 0, -EADDRINUSE, -ENOSPC. The lock is held. */
int registry_service_add(struct regfile *f, unsigned slot, uint64_t service_id,
			 const uint64_t w[2], unsigned families);

/* registry_away.c: registry_mutex is held, and let go meanwhile. */
void registry_await(struct registry *r);
/* In the child of a fork, which has a copy of our seat. */
void registry_away_forked(struct registry *r);

#endif
