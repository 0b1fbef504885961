/*
 * shared.h - what all devices of a process share
 *
 * One per process, made at the first open and gone with the last close
 * (src/process): the engine, and what the layers above keep beside it. Functions
 * here and above take the engine, as those in src/engine do, since that is what
 * every object leads to.
 */
#ifndef SOFTHCA_TRANSPORT_SHARED_H
#define SOFTHCA_TRANSPORT_SHARED_H

#include "qp.h"

#include "roce/timewait.h"

struct iwarp_env;
struct gsi; /* connect/gsi.c */
struct iwcm; /* connect/iw.c */
struct moving; /* connect/moving.c */
struct mcast_group;
struct pcap;
struct segment;
struct shca_stat; /* process/stat.c */
struct shca_domain;
struct shca_remote_rsps; /* xrc/remote_rsp.c */
struct shca_timewait;

/* What the layers above are told. */
struct shca_process_ops {
	/* A QP leaves RESET, or rdma_cm is used; perhaps the first. */
	void (*begin)(struct engine *e);
	/* One with a cm_owner is about to be destroyed. */
	void (*qp_gone)(struct engine *e, struct shca_qp *qp);
};

/* XRC_RECV QPs whose messages are for other processes (src/xrc). */
struct shca_xrc_ops {
	/* A packet for an XRC_RECV QP; its lock is held. True: it was sent
	 * elsewhere, or kept. */
	bool (*rx)(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now);
	/* To be called before a remote responder sends. */
	void (*note)(struct shca_qp *qp);
	/* A remote responder's event. */
	void (*event)(struct shca_qp *qp, enum ibv_event_type event);
	/* A QP of any type begins a new connection, or ends; lock held. */
	void (*forget)(struct shca_qp *qp);
	/* An SRQ goes, or a domain; no lock. */
	void (*srq_gone)(struct engine *e, struct shca_domain *d, uint32_t num);
	void (*domain_gone)(struct engine *e, struct shca_domain *d);
};

/* What a module keeps for itself is a struct with its lock. */
struct shca_process {
	struct engine engine;
	const struct shca_process_ops *ops;
	unsigned refs; /* contexts; under the global lock */
	struct pcap *pcap; /* NULL: packets are not recorded */
	struct roce_env env, ib_env; /* RoCE's, and InfiniBand's */
	struct iwarp_env *iw_env; /* rnic/qp_iwarp.c */
	int netdev_fd; /* readable when addresses may have changed */
	/* What other processes of the host see of this one, and it of them;
	 * NULL: nothing. */
	struct segment *segment;

	struct gsi *gsi;
	struct moving *moving;
	struct iwcm *iwcm;
	struct shca_stat *stat;

	_Atomic uint32_t
		uc_written; /* UC writes that have come (verbs/answer.c) */

	uint64_t id; /* random: tells this process's command files */
	_Atomic unsigned nobjects[SHCA_KINDS]; /* verbs/handles.c */

	struct { /* verbs/memory.c, mw.c, pd.c */
		pthread_mutex_t lock;
		struct keys keys;
		size_t keys_size;
		_Atomic uint32_t next_pd;
		struct shca_pd *pds; /* under lock */
	} memory;

	struct { /* verbs/mcast.c */
		pthread_mutex_t attach_lock; /* one call at a time */
		pthread_mutex_t lock; /* of the list; before a QP's */
		struct mcast_group *groups;
	} mcast;

	struct { /* verbs/cq.c */
		pthread_mutex_t late_lock; /* before a CQ's */
		struct shca_cq *late; /* whose events are moderated */

		struct lock
			untokened_lock; /* before a channel's, tried after it */
		struct shca_channel
			*untokened; /* that has events without a token */
		struct engine_alarm untokened_alarm;
	} cqs;

	struct { /* verbs/xrcd.c, src/xrc */
		pthread_mutex_t lock;
		struct shca_domain *domains;
		_Atomic uint32_t next_srqn;
		_Atomic bool leaves; /* nothing is lent, or borrowed */
		const struct shca_xrc_ops *ops;
		struct shca_remote_rsps *remote_rsps;
	} xrc;

	struct { /* timewait.c */
		pthread_mutex_t lock; /* after a QP's */
		struct shca_timewait *table;
		struct engine_alarm alarm;
	} timewait;

	struct { /* verbs/netdevs.c */
		pthread_mutex_t lock;
		struct shca_context *first;
	} contexts;
};

static inline struct shca_process *to_process(struct engine *e)
{
	return container_of(e, struct shca_process, engine);
}

/*
 * timewait.c: a QP, of which this is left, is about to go, and leaves its bound
 * address to it; no lock. A packet for which there is no QP: whether it was
 * for one that is gone.
 */
void shca_timewait_add(struct shca_qp *qp, const struct roce_timewait *w);
bool shca_timewait_rx(struct engine *e, const struct roce_rx *pkt,
		      uint64_t now);
/* Parts of a process (src/process). */
int shca_timewait_init(struct engine *e);
void shca_timewait_fini(struct engine *e);
/* Before nobody answers any more; exiting: with QPs not destroyed, perhaps. */
void shca_timewait_linger(struct engine *e, bool exiting);

#endif
