/*
 * registry.h - the processes of one user on one host, and who owns which QPN
 *
 * A file in shared memory (one per user and network namespace, or per user in a
 * directory that is named; owner-only) maps each of 4096 chunks of 4096 QPNs to a slot, and each slot to a living
 * process: its private UDP port and its receive backlog. Joining, leasing and
 * leaving take a file lock with a bounded wait; looking up does not. A slot is
 * alive while its process holds a record lock on the slot's byte, which the
 * kernel lets go when the process ends, however it ends.
 */
#ifndef SOFTHCA_REGISTRY_REGISTRY_H
#define SOFTHCA_REGISTRY_REGISTRY_H

#include "net/netdev.h"

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define REGISTRY_CHUNK 4096 /* QPNs leased at a time */
#define REGISTRY_CHUNKS 4096
#define REGISTRY_SLOTS 1024 /* processes; more precisely, registry_join()s */
#define REGISTRY_ADDRS 512 /* addresses in use at a time, */
#define REGISTRY_GROUPS 64 /* of which so many may be multicast groups */
#define REGISTRY_SERVICES 1024

struct registry;

/*
 * dir: where the file lives; NULL: $SOFTHCA_RUNDIR, else /dev/shm, else
 * $XDG_RUNTIME_DIR or /run/user/UID, else /tmp. A directory that is named, which
 * several containers may have, has one file for all network namespaces, and must
 * be of this host (-EREMOTE). Returns 0 or -errno; *why, if not NULL, gets a
 * sentence (static storage of the thread) on failure: -ETIMEDOUT: the lock was
 * not to be had for 5 s. After any other error a caller may go on alone.
 */
int registry_join(struct registry **r, const char *dir, const char **why);

/* The directories in which registry_join() looks, in that order; how many. */
#define REGISTRY_DIRS 3
size_t registry_dirs(const char *dir, const char *dirs[REGISTRY_DIRS]);
/* How the files there begin that are of this user (owner_uid()); what follows: the
 * number of the network namespace, or 0, where a directory is named. */
#define REGISTRY_NAME "softhca-%u-"
bool registry_is_named(const char *dir);
unsigned long long registry_number(const char *dir);
/* This process's network namespace; 0: not known. */
uint64_t registry_netns(void);

/* Gives back everything; after fork, the child calls registry_abandon(). */
void registry_leave(struct registry *r);
void registry_abandon(struct registry *r);

/*
 * A process is suspended, and goes on (src/migrate). It gives back all it has,
 * finds nobody meanwhile, and registry_lock(), and what takes it, waits. Back, on
 * this host or another, it has its chunks and listeners again, and its slot if
 * that is free; -EADDRINUSE: another process has one of them, and then it is
 * still away. What is else said of a slot, who said it says again. -EBUSY: this
 * process has joined the same registry twice. dir, why as in registry_join().
 *
 * A chunk that another process has by now, and that may() is true of, is replaced:
 * other->chunk has those, by their first QPNs.
 */
#define REGISTRY_OTHERS 64
struct registry_other {
	bool (*may)(void *arg, uint32_t first);
	void *arg;
	size_t n;
	struct {
		uint32_t from, to;
	} chunk[REGISTRY_OTHERS];
};
int registry_away(struct registry *r, int *seat);
int registry_back(struct registry *r, const char *dir,
		  struct registry_other *other, const char **why);
/*
 * The same with seat: nobody else gets the slot, its chunks and listeners, as long
 * as somebody has the descriptor that *seat is then, or a copy; those that nobody
 * has are as a dead process's. registry_back() closes this process's own, which is
 * closed before that or not at all. Whether the process with this number, which is
 * in this network namespace (0: in ours), is away so.
 */
bool registry_keeps_seat(const struct registry *r, uint32_t qpn, uint32_t net);

/* Leases a chunk: its first QPN, or -ENOSPC (or -ETIMEDOUT). QPNs 0, 1 and
 * 0xffffff are never given out: chunks 0 and 4095 are not leased. */
int registry_lease(struct registry *r);
void registry_release(struct registry *r, uint32_t first_qpn);

/* The file: processes that have the same one share ports and QPNs. */
const char *registry_path(const struct registry *r);

/*
 * Looking up: no lock, no system call but in registry_alive().
 *
 * registry_owner() is the slot that leased the chunk of qpn, if its process is in
 * our network namespace, registry_route() the same if that process receives at
 * gid (scope: interface index of a link-local gid, else 0); -ENOENT: none. A number that is split into
 * processes like QPNs are (a communication ID) may be asked for as well.
 */
unsigned registry_slot(const struct registry *r); /* ours */
int registry_owner(const struct registry *r, uint32_t qpn);
int registry_route(const struct registry *r, uint32_t qpn,
		   const union ibv_gid *gid, uint32_t scope);
bool registry_alive(const struct registry *r, unsigned slot);

/*
 * Other network namespaces, which have numbers in the registry, not 0 and never
 * used again. registry_route_in(): as registry_route() in one of them, which gid
 * was proved to lead to, and is not link-local. registry_is_elsewhere(): whether
 * the process that has qpn is, or, qpn being 0, one that receives at gid, and
 * such a proof is worth while.
 */
int registry_route_in(const struct registry *r, uint32_t net, uint32_t qpn,
		      const union ibv_gid *gid);
bool registry_is_elsewhere(const struct registry *r, uint32_t qpn,
			   const union ibv_gid *gid);
/* Whether the registry is of a directory that is named; how many network
 * namespaces have processes in it. */
bool registry_is_shared(const struct registry *r);
size_t registry_nets(const struct registry *r);

/*
 * The proof. Who asks sends what registry_ask() has drawn to the address, one
 * question at a time; registry_answer() is the namespace where that has arrived, 0:
 * nowhere yet. Who receives it calls registry_asked().
 */
struct registry_ask {
	uint64_t nonce;
	uint32_t slot, number;
};
bool registry_ask(struct registry *r, struct registry_ask *ask);
uint32_t registry_answer(const struct registry *r,
			 const struct registry_ask *ask);
void registry_ask_end(struct registry *r);
void registry_asked(struct registry *r, const struct registry_ask *ask);

/* The same; *pid is its process as this one sees it, 0 if it cannot (it is of
 * another PID namespace). */
bool registry_holder(const struct registry *r, unsigned slot, pid_t *pid);

/* A number that each process in a slot has to itself, as long as the registry
 * lasts. */
uint32_t registry_generation(const struct registry *r, unsigned slot);

/*
 * The number of the segment that a slot's process shows (segment.h), 0: none.
 * It lies still as long as r is joined. registry_show() sets ours. The files of
 * a segment are named as the registry's with these appended, the number being
 * the slot's; those of the dead are removed.
 */
#define REGISTRY_SEGMENT ".%u"
#define REGISTRY_SEGMENT_FIFO ".%u.w"
#define REGISTRY_STAT ".%u.s" /* where it is asked (stat.h) */
const _Atomic uint64_t *registry_segment(const struct registry *r,
					 unsigned slot);
void registry_show(struct registry *r, uint64_t id);

/* The slots that receive at gid; returns how many, at most REGISTRY_SLOTS. */
size_t registry_receivers(const struct registry *r, const union ibv_gid *gid,
			  uint32_t scope, uint16_t *slots);

/* The private UDP port of a slot; 0: none. registry_publish() sets ours, and
 * how many bytes may wait for us. */
uint16_t registry_port(const struct registry *r, unsigned slot);
void registry_publish(struct registry *r, uint16_t port, uint32_t limit);

/*
 * The UDP ports that a slot sends to port 4791 from. registry_sends_from() is
 * true also where a slot has not said any.
 */
#define REGISTRY_SPORTS 10
void registry_sports(struct registry *r, const uint16_t *ports, size_t n);
bool registry_sends_from(const struct registry *r, unsigned slot,
			 uint16_t port);

/*
 * Bytes on their way to a slot, so that senders of this host do not overrun
 * its socket buffers. registry_charge() refuses when there are more than the
 * slot's limit, unless they are the first. registry_uncharge() takes
 * back what was not sent, registry_take() what the receiver has read.
 */
bool registry_charge(struct registry *r, unsigned slot, uint32_t bytes);
void registry_uncharge(struct registry *r, unsigned slot, int64_t bytes);
void registry_take(struct registry *r, unsigned slot, int64_t bytes);
int64_t registry_backlog(const struct registry *r);

/*
 * How many bytes were ever sent to a slot; and whether its process lives and
 * has not yet read all that had been sent when this was so many.
 */
uint64_t registry_sent(const struct registry *r, unsigned slot);
bool registry_unread(const struct registry *r, unsigned slot, uint64_t sent);

/*
 * Receiving addresses. All processes that receive at one address and port
 * share it by SO_REUSEPORT; the kernel numbers their sockets in the order in
 * which they were bound, and moves the last one into the place of one that is
 * closed. The registry keeps the same list. Bind, registry_addr_join() with
 * steered set, close and registry_addr_leave() therefore happen between
 * registry_lock() and registry_unlock(). registry_lock() returns 0 or
 * -ETIMEDOUT after 5 s; registry_trylock() returns -EAGAIN at once.
 */
int registry_lock(struct registry *r);
int registry_trylock(struct registry *r);
void registry_unlock(struct registry *r);

/* Returns 0 or -ENOSPC. steered is false for a process that has no socket at
 * this address and receives on its private port only; may be called again. */
int registry_addr_join(struct registry *r, const union ibv_gid *gid,
		       uint32_t scope, bool steered);
void registry_addr_leave(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope);
/* The addresses at which processes live that receive there, groups left out, also
 * of other network namespaces; returns how many, at most max. */
size_t registry_addrs(const struct registry *r, union ibv_gid *gids,
		      size_t max);
/* Whether a process lives and has a socket at this address. No lock. */
bool registry_addr_has(const struct registry *r, unsigned slot,
		       const union ibv_gid *gid, uint32_t scope);
/* Whether dead processes were removed in the last within_ns: the kernel may
 * not have closed all of their sockets yet. */
bool registry_swept(const struct registry *r, uint64_t within_ns);

/* How many sockets there are, dead ones removed. */
size_t registry_addr_count(struct registry *r, const union ibv_gid *gid,
			   uint32_t scope);
/*
 * A packet for qpn, another process's, was steered to our socket: dead
 * processes are removed, and if that was not it, the list is wrong: our socket
 * is where that process was thought to be, and the two change places.
 */
void registry_addr_found(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope, uint32_t qpn);

/*
 * Which chunks lead to which socket: ranges in ascending order, the first one
 * from chunk 0, each up to the next one's. Chunks that nobody at this address
 * has leased belong to whatever range is shortest. At most max ranges; if that
 * is too few, the last ones are wrong. Returns how many, 0: no sockets.
 */
struct registry_range {
	uint16_t chunk; /* first */
	uint16_t index;
};
size_t registry_steering(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope, struct registry_range *out,
			 size_t max);

/* Called with the lock held after the steering of our addresses may have
 * changed by a lease, a release or the removal of dead processes. */
void registry_on_change(struct registry *r, void (*fn)(void *arg), void *arg);

/*
 * index[i]: where all processes of this host that use the same key (not 0) have
 * now->gid[i]: where it was, or the first place that is empty. 0, -ENOSPC:
 * there are too many keys, or as registry_lock().
 */
#define REGISTRY_GID_TABLES 64
int registry_gids(struct registry *r, uint64_t key,
		  const struct netdev_table *now,
		  uint8_t index[NETDEV_MAX_GIDS]);

/*
 * What a QP says of its peer's requests, for that peer, if it is of this host:
 * the last that has been noted in the last seconds. No lock; text is printable.
 */
#define REGISTRY_NOTES 64
#define REGISTRY_NOTE 488
void registry_note(struct registry *r, uint32_t qpn, uint32_t peer,
		   const char *text);
bool registry_noted(const struct registry *r, uint32_t qpn, uint32_t peer,
		    char text[REGISTRY_NOTE]);

/*
 * Service IDs that a process of this host listens on, at one address or (gid
 * all zero) at all. families: REGISTRY_IPV4 and REGISTRY_IPV6, what it stands
 * for; one that has none of another's in common may share its service ID.
 * -EADDRINUSE: taken; -ENOSPC; -ETIMEDOUT. The owner is looked up without a
 * lock: a slot, or -ENOENT.
 */
#define REGISTRY_IPV4 1
#define REGISTRY_IPV6 2
int registry_listen(struct registry *r, uint64_t service_id,
		    const union ibv_gid *gid, unsigned families);
void registry_unlisten(struct registry *r, uint64_t service_id,
		       const union ibv_gid *gid, unsigned families);
int registry_listener(const struct registry *r, uint64_t service_id,
		      const union ibv_gid *gid);

#endif
