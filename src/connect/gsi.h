/*
 * gsi.h - QP1: the connection manager of this process
 *
 * One per process. Every process that receives RoCE packets answers those for
 * QP1, even one that never uses librdmacm: it hands a message over to the
 * process of this host that it is for, or answers that nobody listens.
 */
#ifndef SOFTHCA_CONNECT_GSI_H
#define SOFTHCA_CONNECT_GSI_H

#include "cm/cm.h"
#include "transport/shared.h"

/* For the engine. */
int gsi_init(struct engine *e);
void gsi_fini(struct engine *e);
/* A packet for QP1 came in; under the link's receive side. */
void gsi_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now_ns);
/* Sends another message than the connection manager's from QP1 to QP1. */
void gsi_send(struct engine *e, const struct roce_path *path,
	      const uint8_t mad[MAD_LEN]);
/* An address of ours, or that of the peer whose QP has this number, is another one
 * (cm/cm.h). */
void gsi_readdress(struct engine *e, const union ibv_gid *from,
		   const union ibv_gid *to, uint32_t ifindex);
void gsi_peer_moved(struct engine *e, uint32_t qpn, const union ibv_gid *from,
		    const struct cm_moved *to);
/*
 * Where the chunk of numbers begins that our communication IDs are of, and how many
 * connections have one; false: there is none. And where it begins from now on.
 */
bool gsi_ids(struct engine *e, uint32_t *first, size_t *conns);
void gsi_renumber(struct engine *e, uint32_t to);
/* Interfaces or their addresses may have changed. */
void gsi_netdevs_changed(struct engine *e);
/* A QP with an owner is about to be destroyed. */
void gsi_qp_gone(struct engine *e, struct shca_qp *qp);
/* The process ends: tells its peers, once. */
void gsi_farewell(struct engine *e);
/* Waits for threads that send for the connection manager, for a moment; false:
 * one still does. */
bool gsi_quiesce(struct engine *e);

struct lines; /* base/lines.h */

/*
 * For librdmacm. shca_cm_open() makes the connection manager ready for
 * connections of a device and starts the progress thread. The user's functions
 * are called with the lock held that shca_cm_lock() takes. Users may protect
 * their own state with it, and take no other lock of this library while they
 * hold it. shca_cm_unlock() sends what is due.
 */
struct shca_cm_user {
	int (*event)(void *arg, const struct cm_event *ev);
	/* Interfaces or addresses may have changed. */
	void (*changed)(void *arg);
	/* A QP that has an owner is about to be destroyed. */
	void (*qp_gone)(void *arg, void *owner, struct ibv_qp *qp);
	/* When expire() is due, or UINT64_MAX; it may be called before. */
	uint64_t (*deadline)(void *arg);
	void (*expire)(void *arg, uint64_t now_ns);
	/* What it waits for, a line each (process/waits.c); whether a descriptor
	 * is one that its events come by. */
	void (*waits)(void *arg, struct lines *out, uint64_t now_ns);
	bool (*is_channel)(void *arg, int fd);
	void *arg;
};

/*
 * For libibumad: what comes to QP1 and is not the connection manager's. A request
 * is for who has reserved mad_service_id() of it (shca_cm_reserve()), a response
 * for who has the number that its transaction ID begins with, shca_mad_tid() and
 * 12 bits of its own. The functions are called with the lock held that
 * shca_cm_lock() takes; rx: whether it was taken: of requests that nobody takes the
 * sender is told. tx: a message that is due, if there is one; shca_mad_kick(): there
 * may be.
 */
struct shca_mad_rx {
	const union ibv_gid *from, *to;
	uint32_t scope; /* of to */
	uint8_t tclass;
	const uint8_t *mad; /* MAD_LEN */
	uint64_t now_ns;
};

struct shca_mad_user {
	bool (*rx)(void *arg, const struct shca_mad_rx *rx);
	bool (*tx)(void *arg, uint64_t now_ns, struct cm_mad *m);
	uint64_t (*deadline)(void *arg);
	void *arg;
};

int shca_mad_open(struct engine *e, const struct shca_mad_user *user);
uint32_t shca_mad_tid(struct engine *e);
void shca_mad_kick(struct engine *e);

int shca_cm_open(struct engine *e, uint64_t ca_guid,
		 const struct shca_cm_user *user);
struct cm *shca_cm_lock(struct engine *e);
void shca_cm_unlock(struct engine *e);
/* Why nobody answers a request along a path, as far as is known; lock held. */
const char *shca_cm_silent(struct engine *e, uint64_t service_id,
			   const struct roce_path *path, struct key_why *why);
/* For who asks what the process waits for: shca_cm_user.waits, is_channel. */
void gsi_waits(struct engine *e, struct lines *out, uint64_t now_ns);
bool gsi_is_channel(struct engine *e, int fd);

/* The owner of a QP, for qp_gone(), or NULL; lock held. */
static inline void *shca_cm_qp_owner(struct ibv_qp *qp)
{
	return atomic_load(&to_qp(qp)->cm_owner);
}

static inline void shca_cm_qp_own(struct ibv_qp *qp, void *owner)
{
	atomic_store(&to_qp(qp)->cm_owner, owner);
}

/* Receives for QP1 at this address from now on; errors as of udp_bind(). The
 * address of a peer on this host may belong to another user, which is not
 * reported. */
int shca_cm_bind(struct engine *e, const union ibv_gid *gid, uint32_t ifindex);
int shca_cm_bind_peer(struct engine *e, const union ibv_gid *gid,
		      uint32_t ifindex);
/* The same for the source address of path; -EADDRINUSE if no answer could
 * arrive, because another user has the port. */
int shca_cm_bind_path(struct engine *e, const struct roce_path *path);

/*
 * Reserves a service ID among the processes of this host, for one address or
 * (NULL) all, in these families (CM_LISTEN_*). -EADDRINUSE: another process has
 * it.
 */
int shca_cm_reserve(struct engine *e, uint64_t service_id,
		    const union ibv_gid *gid, unsigned families);
void shca_cm_release(struct engine *e, uint64_t service_id,
		     const union ibv_gid *gid, unsigned families);

#endif
