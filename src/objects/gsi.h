/*
 * gsi.h - QP1: the connection manager of this process
 *
 * One per engine. Every process that receives RoCE packets answers those for
 * QP1, even one that never uses librdmacm: it hands a message to the process of
 * this host that it is for, or says that nobody listens.
 */
#ifndef SOFTHCA_OBJECTS_GSI_H
#define SOFTHCA_OBJECTS_GSI_H

#include "cm/cm.h"
#include "process.h"

/* For the engine. */
int gsi_create(struct engine *e);
void gsi_destroy(struct engine *e);
/* A packet for QP1 came in; under the link's receive side. */
void gsi_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now_ns);
/* process->cm_alarm is due. */
void gsi_expire(struct engine *e, uint64_t now_ns);
/* Interfaces or their addresses may have changed. */
void gsi_netdevs_changed(struct engine *e);
/* A QP with an owner is about to be destroyed. */
void gsi_qp_gone(struct engine *e, struct shca_qp *qp);
/* The process ends: tells the peers, once. */
void gsi_farewell(struct engine *e);

/*
 * For librdmacm. shca_cm_open() makes the connection manager ready for
 * connections of a device and starts the progress thread. The user's functions
 * are called with the lock held that shca_cm_lock() takes. It protects
 * whatever else its users put under it: they may take no other lock of this
 * library in it. shca_cm_unlock() sends what is to be sent.
 */
struct shca_cm_user {
	int (*event)(void *arg, const struct cm_event *ev);
	/* Interfaces or addresses may have changed. */
	void (*changed)(void *arg);
	/* A QP that has an owner is about to be destroyed. */
	void (*qp_gone)(void *arg, void *owner, struct ibv_qp *qp);
	void *arg;
};

int shca_cm_open(struct engine *e, uint64_t ca_guid,
		 const struct shca_cm_user *user);
struct cm *shca_cm_lock(struct engine *e);
void shca_cm_unlock(struct engine *e);

/* Whose a QP is, for qp_gone(); NULL: nobody's. With the lock. */
static inline void *shca_cm_qp_owner(struct ibv_qp *qp)
{
	return atomic_load(&to_qp(qp)->cm_owner);
}

static inline void shca_cm_qp_own(struct ibv_qp *qp, void *owner)
{
	atomic_store(&to_qp(qp)->cm_owner, owner);
}

/* Receives at this address from now on, for QP1. -EADDRINUSE etc. as
 * udp_bind(). A peer's on this host may well be somebody else's, and nothing is
 * said about that. */
int shca_cm_bind(struct engine *e, const union ibv_gid *gid, uint32_t ifindex);
int shca_cm_bind_peer(struct engine *e, const union ibv_gid *gid,
		      uint32_t ifindex);
/* The same for the address that path comes from; -EADDRINUSE if nothing that
 * is sent along path can be answered, because somebody else has the port. */
int shca_cm_bind_path(struct engine *e, const struct roce_path *path);

/*
 * Reserves a service ID among the processes of this host, for one address or
 * (NULL) all; families: CM_LISTEN_*, what it stands for. -EADDRINUSE: another
 * process has it.
 */
int shca_cm_reserve(struct engine *e, uint64_t service_id,
		    const union ibv_gid *gid, unsigned families);
void shca_cm_release(struct engine *e, uint64_t service_id,
		     const union ibv_gid *gid, unsigned families);

#endif
