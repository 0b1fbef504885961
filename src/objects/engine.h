/*
 * engine.h - what all devices of a process share
 *
 * One per process, made at the first open and gone with the last close: the
 * key table, the link, the QP numbers, the timers, and the thread that makes
 * progress while nobody polls. See engine.c.
 */
#ifndef SOFTHCA_OBJECTS_ENGINE_H
#define SOFTHCA_OBJECTS_ENGINE_H

#include "objects.h"

#include "engine/presence.h"
#include "host/config.h"
#include "host/registry.h"
#include "link/udp.h"
#include "roce/timewait.h"

struct pcap;

/* 4096 QPNs leased from the registry, and who has them. */
struct qpn_chunk {
	uint32_t first;
	uint32_t used;
	uint32_t cursor; /* where to look for a free one: reused late */
	_Atomic(struct shca_qp *) qp[REGISTRY_CHUNK];
};

#define SHCA_GUEST_BUCKETS 64

struct timer {
	uint64_t due;
	struct shca_qp *qp;
};

struct mcast_group {
	struct mcast_group *next;
	struct shca_device *dev;
	union ibv_gid gid;
	size_t n;
	struct shca_qp *qp[SHCA_MAX_MCAST_QP];
	/* Interfaces joined, to be left again. */
	uint32_t joined[NETDEV_MAX_GIDS];
	size_t njoined;
};

struct gsi; /* gsi.h */
struct shca_timewait;

struct engine {
	unsigned refs; /* contexts; under the global lock */
	_Atomic bool dead; /* we are a child of the process that made it */
	const struct config *cfg;
	struct registry *registry; /* NULL: alone on this host */
	struct udp *udp;
	struct pcap *pcap;
	struct roce_env env;
	struct gsi *gsi;

	pthread_mutex_t keys_lock;
	struct keys keys;
	size_t keys_size;
	uint64_t id; /* random: tells this process's command files */
	_Atomic uint32_t next_pd, next_srqn;
	struct shca_pd *pds; /* under keys_lock */
	_Atomic unsigned nobjects[SHCA_KINDS];

	pthread_mutex_t qpn_lock;
	_Atomic(struct qpn_chunk *) chunk[REGISTRY_CHUNKS];
	uint32_t owned[REGISTRY_CHUNKS]; /* indices of chunk that are set */
	uint32_t nowned;

	pthread_mutex_t attach_lock; /* one attach or detach at a time */
	pthread_mutex_t mcast_lock; /* of the list; before a QP's */
	struct mcast_group *mcast;

	pthread_mutex_t late_lock; /* before a CQ's */
	struct shca_cq *late; /* whose events are moderated */

	pthread_mutex_t xrc_lock;
	struct shca_domain *domains;

	/* QPs of other processes that receive here, see loan.c. */
	pthread_mutex_t guests_lock;
	struct shca_guest *guests[SHCA_GUEST_BUCKETS];
	_Atomic unsigned nguests;
	_Atomic unsigned nheld; /* guests that have the responder */

	pthread_mutex_t timewait_lock; /* after a QP's */
	struct shca_timewait *timewait;

	pthread_mutex_t ctx_lock;
	struct shca_context *contexts;

	pthread_mutex_t timer_lock; /* innermost */
	struct timer *heap;
	size_t ntimers, timer_size;
	_Atomic uint64_t next_due; /* of the heap's top */
	_Atomic uint64_t cm_due; /* of the connection manager */
	_Atomic uint64_t timewait_due; /* UINT64_MAX: there is none */

	/* Packets that did nothing, counted for --explain. */
	_Atomic uint64_t dropped[ROCE_DROPS];
	_Atomic uint64_t no_qp; /* for QP numbers that are not here */
	_Atomic uint64_t drops_due; /* when to say so again */
	_Atomic uint64_t drops_told; /* their sum when it was last said */

	/* The progress thread and those who poll; see engine.c. */
	pthread_mutex_t thread_lock;
	_Atomic bool started;
	_Atomic bool stop;
	pthread_t thread;
	int epoll_fd, wake_fd, netdev_fd;
	_Atomic uint64_t sleep_until; /* the thread sleeps until then */

	struct presence presence;
};

/* Counts an object of one kind; -ENOMEM when there are SHCA_MAX_OBJECTS. */
int engine_count(struct engine *e, enum shca_kind kind);
void engine_uncount(struct engine *e, enum shca_kind kind);

int engine_get(struct engine **e);
void engine_put(struct engine *e);

static inline bool engine_dead(const struct engine *e)
{
	return atomic_load_explicit(&e->dead, memory_order_relaxed);
}

/* A free QPN for qp, which is found under it from now on; or -ENOSPC. */
int engine_qpn_alloc(struct engine *e, struct shca_qp *qp);
/* On return no packet that was received before is being handed to it. */
void engine_qpn_free(struct engine *e, struct shca_qp *qp);

/*
 * The nth number that this process may use for other things than QPs: of a
 * chunk that it has leased, so registry_owner() knows. 0 or -errno.
 */
int engine_number(struct engine *e, uint32_t n, uint32_t *num);

/* A context begins: it sees its device's addresses as they are now. */
void engine_context_add(struct engine *e, struct shca_context *ctx);

/* Starts the progress thread unless it runs. */
int engine_start(struct engine *e);
/* udp_bind(); what is wrong with the port is said once in a process. */
int engine_bind(struct engine *e, const union ibv_gid *gid, uint32_t ifindex);
/* The thread looks after a CQ's timer; no longer. */
int engine_watch_fd(struct engine *e, int fd);
void engine_unwatch_fd(struct engine *e, int fd);

/*
 * What a program does that finds its CQ empty: receives packets, sends what
 * that leads to, runs timers. Returns how many packets there were. armed: the
 * CQ is, see presence_polled().
 */
int engine_poll(struct engine *e, bool armed);

/* A program is about to sleep until something happens. */
void engine_watch(struct engine *e);

/* Counts a packet that was dropped. */
void engine_dropped(struct engine *e, enum roce_drop why);

/* mcast.c: a packet to a group. False: no QP here is attached to it. */
bool shca_mcast_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now);

void engine_timer_set(struct engine *e, struct shca_qp *qp, uint64_t due);
void engine_timer_drop(struct engine *e, struct shca_qp *qp);

/* A sentence on stderr, if the user has asked for explanations. */
void engine_explain(struct qp *qp, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * When the connection manager's timers are due (cm_due), or those of what is
 * left of QPs (timewait_due); UINT64_MAX: never.
 */
void engine_due(struct engine *e, _Atomic uint64_t *what, uint64_t due);

/*
 * timewait.c: a QP, of which this is left, is about to go, and leaves its bound
 * address to it; no lock. A packet for which there is no QP: whether it was
 * for one that is gone.
 */
void shca_timewait_add(struct shca_qp *qp, const struct roce_timewait *w);
bool shca_timewait_rx(struct engine *e, const struct roce_rx *pkt,
		      uint64_t now);
void shca_timewait_expire(struct engine *e, uint64_t now);
void shca_timewait_fini(struct engine *e);
/* Before nobody answers any more; exiting: with QPs not destroyed, perhaps. */
void shca_timewait_linger(struct engine *e, bool exiting);

#endif
