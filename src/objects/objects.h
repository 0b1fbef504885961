/*
 * objects.h - the objects of the verbs, as src/ibverbs and src/rdmacm use them
 *
 * Each object begins with the public struct of <infiniband/verbs.h> that
 * programs hold. Functions return 0 or -errno; the slots of a context, which
 * code inlined into programs calls directly (context.c), speak the public
 * conventions instead.
 *
 * A parent counts its users and refuses to go (-EBUSY) before them. In the
 * child of a fork the objects of the parent are dead: calls return -EIO and
 * change nothing.
 */
#ifndef SOFTHCA_OBJECTS_OBJECTS_H
#define SOFTHCA_OBJECTS_OBJECTS_H

#include "base/lock.h"
#include "base/retired.h"
#include "check/check.h"
#include "counters/stat.h"
#include "engine/engine.h"
#include "engine/faults.h"
#include "net/netdev.h"
#include "os/why.h"
#include "qp/direct.h"
#include "qp/ops.h"
#include "qp/rq.h"
#include "roce/qp.h"
#include "transport.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine;
struct segment_peer;
struct shca_file;
struct shca_conn;
struct shca_qp;
struct shca_xrc;

enum shca_kind {
	SHCA_PD,
	SHCA_MW,
	SHCA_CQ,
	SHCA_SRQ,
	SHCA_QP,
	SHCA_AH,
	SHCA_MR,
	SHCA_KINDS
};

/*
 * Results of functions here in the public conventions: 0, or -1 with errno set;
 * a pointer, or NULL with errno set; 0 or the errno value, with errno set as
 * well, since programs read it after calls that enter the kernel in rdma-core.
 * They are for the public functions themselves, whose name --explain reports.
 */
static inline int shca_minus_one(const char *func, int err)
{
	if (err >= 0)
		return 0;
	WHY_REPORT(func, err);
	errno = -err;
	return -1;
}

static inline int shca_number(const char *func, int err)
{
	return shca_minus_one(func, err) ? -err : 0;
}

#define minus_one(err) shca_minus_one(__func__, err)
#define number(err) shca_number(__func__, err)
#define POINTER(err, p) (minus_one(err) ? NULL : (p))

#define container_of(ptr, type, member)                                        \
	((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* live.c: which objects exist */

struct shca_live {
	struct shca_live *next;
	void *object; /* the public struct */
	struct ibv_context *context;
	uint32_t handle;
	enum shca_kind kind;
	uint32_t made; /* check_here() */
	bool stays; /* the library's own, or reported as left behind */
};

/* An object is complete, or goes. Some get their handle here. */
void shca_live_add(struct shca_live *l, void *object, enum shca_kind kind);
void shca_live_remove(struct shca_live *l);
/*
 * Checks an object that a program passes. -ENOENT: it is not, or no longer, one
 * of that kind, or its handle was overwritten; -EINVAL: its context was; -EIO:
 * this process is a child of the one that made it.
 */
int shca_check(const void *object, enum shca_kind kind);
/* -EBUSY, and why: which objects were made with this one, a PD, a CQ, an SRQ or
 * a channel. */
int shca_busy(const void *object, const char *what);
/* It is the library's own, and there until the process ends. */
void shca_live_stays(struct shca_live *l);
/* Reports those of a context, or all (NULL), as left behind (check/check.h). */
void shca_live_leaked(const struct ibv_context *context, const char *call);
void shca_live_hold(void);
void shca_live_release(void);

/* Announced by ibv_query_device(3), and kept. */
#define SHCA_MAX_CQE (1 << 22)
#define SHCA_MAX_OBJECTS (1 << 16) /* QPs, CQs, SRQs, PDs, AHs: of each kind   \
				    */
#define SHCA_MAX_MR_SIZE (1ULL << 47) /* the address space */
#define SHCA_DM_SIZE (16 << 20) /* device memory of one context */
#define SHCA_MAX_MCAST_GRP 256
#define SHCA_MAX_MCAST_QP 64 /* QPs of one group in this process */

/* device.c */

struct shca_device {
	struct ibv_device dev;
	/*
	 * Provider libraries read a pointer right behind the struct ibv_device
	 * of any device to see whether it is theirs, and may read on.
	 */
	void *not_theirs[16];

	const struct shca_transport *transport;
	char ifnames[IFNAMSIZ]; /* SOFTHCA_DEVICES: its netdev; "": all */
	int index; /* among those of its transport */
	__be64 guid;
	int gid_tbl_len; /* never changes */

	pthread_mutex_t lock; /* of what follows */
	struct netdev_table gids; /* holes have an ifindex of 0 */
	bool absent; /* its netdev does not exist */
	unsigned ud_users; /* while > 0 every GID's address is bound... */
	bool bound[NETDEV_MAX_GIDS]; /* ...where it can be */

	_Atomic uint64_t ended[STAT_COUNTERS]; /* of QPs that are gone */
	uint64_t added[STAT_COUNTERS]; /* to the sums of all processes */
};

_Static_assert(offsetof(struct shca_device, not_theirs) == 664,
	       "what provider libraries compare");

/* A program asks for what may have changed before there is a thread that sees
 * changes. */
void shca_netdevs_look(struct ibv_context *ctx);

/*
 * The devices of this process in a NULL-terminated array to be freed with
 * free(); each stays valid for good.
 */
int shca_device_list(struct ibv_device ***list, int *n);
/* Reads the addresses again. True when a GID came or went. */
bool shca_device_rescan(struct shca_device *dev, struct engine *e);
/* Whether it has an address, so that its port is up. */
bool shca_device_active(struct shca_device *dev);
/* Whether its netdev exists; always true for a device of all netdevs. */
bool shca_device_present(struct shca_device *dev);
/* A UD QP receives on every address of the device. */
int shca_device_bind(struct shca_device *dev, struct engine *e);
void shca_device_unbind(struct shca_device *dev, struct engine *e);
int shca_gid(struct shca_device *dev, uint32_t port, uint32_t index,
	     struct netdev_gid *gid); /* -EINVAL, or -ENODATA: a hole */
int shca_gid_index(struct shca_device *dev, const union ibv_gid *gid);
/* An address of one of its interfaces, whatever its GIDs are: where it is. False:
 * it is none. */
bool shca_device_addr(struct shca_device *dev, const union ibv_gid *addr,
		      struct netdev_gid *via);
/* Whether it has an address that other hosts can reach. */
bool shca_device_reachable(struct shca_device *dev);
void shca_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr);
int shca_query_device_ex(struct ibv_context *ctx,
			 struct ibv_device_attr_ex *attr, size_t size);
int shca_query_port(struct shca_device *dev, uint32_t port,
		    struct ibv_port_attr *attr);
/* Where programs find sysfs: the tree that softhca run makes, or the real one,
 * which does not have our devices. Static storage. */
const char *shca_sysfs_path(void);

/* sysfs.c: the files that show our devices where the kernel would */

/* Writes them, unless they are there, below a directory of this user's own, and
 * into path their root: what SOFTHCA_SYSFS should be. path/lib is a link to the
 * directory of this library. Returns 0, or -errno with a sentence in reason. */
int shca_sysfs_make(char path[PATH_MAX], char *reason, size_t reason_size);
/* For the shim, where SOFTHCA_SYSFS is not set: the same root as long as the
 * process lives, or NULL. Keeps errno; says once why there is none. */
const char *shca_sysfs_root(void);

static inline struct shca_device *to_device(struct ibv_device *dev)
{
	return container_of(dev, struct shca_device, dev);
}

/* context.c: contexts, their slots, and asynchronous events */

struct shca_async {
	struct shca_async *next;
	struct ibv_async_event ev;
};

struct shca_context {
	struct shca_device *dev;
	struct engine *engine;
	struct shca_context *next; /* in the engine's list */
	_Atomic unsigned users; /* objects made from it */

	pthread_mutex_t async_lock; /* of the queue; innermost */
	struct shca_async *async_head, **async_tail;

	struct shca_file *file; /* behind cmd_fd, or NULL */

	struct verbs_context v;
};

static inline struct shca_context *to_ctx(struct ibv_context *ctx)
{
	return container_of(ctx, struct shca_context, v.context);
}

/* With an existing command file, unless file is NULL. */
int shca_context_create(struct shca_device *dev, struct engine *e, int cmd_fd,
			struct shca_file *file, struct ibv_context **out);
/* Whether nothing depends on it, which else is reported. */
bool shca_context_unused(struct ibv_context *ctx);
void shca_context_destroy(struct ibv_context *ctx);

/*
 * An event queue's descriptor is readable while the queue is not empty: an
 * eventfd that counts its elements. shca_token_get() reads one as read(2) does,
 * blocking or not, 0 or -errno; shca_token_drop() never blocks.
 */
int shca_token_fd(void);
void shca_token_put(int fd, uint64_t n);
int shca_token_get(int fd);
void shca_token_drop(int fd);
/* Waits until *completed, under mutex, equals reported; cq: whose completions'
 * events these are, or NULL. */
void shca_wait_acks(pthread_mutex_t *mutex, pthread_cond_t *cond,
		    const uint32_t *completed, uint32_t reported,
		    struct ibv_cq *cq, const char *call);

void shca_async_raise(struct shca_context *ctx,
		      const struct ibv_async_event *ev);
int shca_async_get(struct ibv_context *ctx, struct ibv_async_event *ev);
void shca_async_ack(struct ibv_async_event *ev);
/*
 * For an object that is destroyed (a pointer to the public struct): drops its
 * queued events, then waits until the reported ones are acknowledged.
 */
void shca_async_drop(struct shca_context *ctx, void *object,
		     enum shca_kind kind);

/* pd.c: protection domains, thread domains, parent domains */

struct shca_td {
	struct ibv_td td;
	_Atomic unsigned users;
};

struct shca_pd {
	struct ibv_pd pd;
	struct shca_live live;
	uint32_t num;
	_Atomic unsigned refs; /* the program's, and of what is made with it */
	struct shca_pd *next; /* in the engine's list; under keys_lock */
	/* Of parent domains. */
	bool parent;
	struct shca_pd *of;
	struct shca_td *td;
	void *(*alloc)(struct ibv_pd *pd, void *pd_context, size_t size,
		       size_t alignment, uint64_t resource_type);
	void (*free)(struct ibv_pd *pd, void *pd_context, void *ptr,
		     uint64_t resource_type);
	void *pd_context;
};

static inline struct shca_pd *to_pd(struct ibv_pd *pd)
{
	return container_of(pd, struct shca_pd, pd);
}

/* What a program's allocator allocates: lower half of resource_type. */
enum { SHCA_MEM_SQ = QP_MEM_SQ, SHCA_MEM_RQ = QP_MEM_RQ, SHCA_MEM_CQ };

int shca_pd_alloc(struct ibv_context *ctx, struct ibv_pd **pd);
int shca_pd_parent(struct ibv_context *ctx,
		   const struct ibv_parent_domain_init_attr *attr,
		   struct ibv_pd **pd);
int shca_pd_free(struct ibv_pd *pd);
int shca_pd_import(struct ibv_context *ctx, uint32_t handle,
		   struct ibv_pd **pd);
void shca_pd_unimport(struct ibv_pd *pd);
void shca_pd_get(struct ibv_pd *pd);
void shca_pd_put(struct ibv_pd *pd);
/* The allocator of queues: the PD's, or the C library's; pd may be NULL. */
struct qp_mem shca_pd_mem(struct ibv_pd *pd);

int shca_td_alloc(struct ibv_context *ctx, const struct ibv_td_init_attr *attr,
		  struct ibv_td **td);
int shca_td_free(struct ibv_td *td);

/* dm.c: command files, and the device memory in them */

int shca_file_create(struct engine *e, const char *device, int *fd,
		     struct shca_file **file);
/* -EINVAL: fd is not the cmd_fd of a context. */
int shca_file_import(int fd, struct shca_file **file,
		     char device[IBV_SYSFS_NAME_MAX]);
void shca_file_put(struct shca_file *file);
/* Contexts of one file share objects, within this process of all kinds. */
bool shca_file_same(const struct shca_file *a, const struct shca_file *b);
bool shca_file_is_ours(const struct shca_file *file, struct engine *e);

struct shca_dm {
	struct ibv_dm dm;
	struct shca_file *file;
	_Atomic unsigned refs; /* the program's, and regions */
	uint8_t *mem;
	size_t length;
};

static inline struct shca_dm *to_dm(struct ibv_dm *dm)
{
	return container_of(dm, struct shca_dm, dm);
}

int shca_dm_alloc(struct ibv_context *ctx,
		  const struct ibv_alloc_dm_attr *attr, struct ibv_dm **dm);
int shca_dm_free(struct ibv_dm *dm);
int shca_dm_import(struct ibv_context *ctx, uint32_t handle,
		   struct ibv_dm **dm);
void shca_dm_unimport(struct ibv_dm *dm);
void shca_dm_get(struct shca_dm *dm);
void shca_dm_put(struct shca_dm *dm);

/* memory.c: memory regions */

struct shca_mr {
	struct ibv_mr mr;
	struct shca_live live;
	uint32_t slot;
	enum key_kind kind;
	int access;
	uint64_t iova;
	void *base; /* the first byte, in this process */
	bool imported;
	struct shca_dm *dm;
	/* Of dma-bufs. */
	void *map;
	size_t map_len;
	int fd;
};

static inline struct shca_mr *to_mr(struct ibv_mr *mr)
{
	return container_of(mr, struct shca_mr, mr);
}

/* Whether it is of the program's own memory, as ibv_rereg_mr(3) requires. */
static inline bool shca_mr_is_plain(struct ibv_mr *mr)
{
	const struct shca_mr *m = to_mr(mr);

	return m->kind == KEY_MR && !m->imported && !m->dm && !m->map;
}

int shca_mr_reg(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova,
		int access, struct ibv_mr **mr);
int shca_mr_null(struct ibv_pd *pd, struct ibv_mr **mr);
int shca_mr_dm(struct ibv_pd *pd, struct ibv_dm *dm, uint64_t offset,
	       size_t length, unsigned access, struct ibv_mr **mr);
int shca_mr_dmabuf(struct ibv_pd *pd, uint64_t offset, size_t length,
		   uint64_t iova, int fd, int access, struct ibv_mr **mr);
int shca_mr_rereg(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		  size_t length, int access);
int shca_mr_dereg(struct ibv_mr *mr);
int shca_mr_import(struct ibv_pd *pd, uint32_t handle, struct ibv_mr **mr);
void shca_mr_unimport(struct ibv_mr *mr);
int shca_mr_advise(struct ibv_pd *pd, enum ibv_advise_mr_advice advice,
		   uint32_t flags, const struct ibv_sge *sge, uint32_t n);

/*
 * keys_add(), which other processes are shown; and keys_kill(), which returns
 * when neither a reader here has a reference any more, nor another process
 * copies. The keys' lock is held.
 */
int shca_key_add(struct engine *e, const struct key_entry *entry);
void shca_key_kill(struct engine *e, uint32_t slot);

/* For the protocol core, see qp/env.h. */
int shca_odp_touch(const void *p, size_t len, bool write);
int shca_odp_store(void *dst, const void *src, size_t len);

/* mw.c: memory windows */

struct shca_mw {
	struct ibv_mw mw;
	struct shca_live live;
};

static inline struct shca_mw *to_mw(struct ibv_mw *mw)
{
	return container_of(mw, struct shca_mw, mw);
}

int shca_mw_alloc(struct ibv_pd *pd, enum ibv_mw_type type, struct ibv_mw **mw);
int shca_mw_free(struct ibv_mw *mw);
int shca_mw_bind(struct ibv_qp *qp, struct ibv_mw *mw,
		 struct ibv_mw_bind *bind);
/* A QP goes: unbinds the windows of type 2 that are bound to it. */
void shca_mw_qp_gone(struct shca_qp *qp);
int shca_mw_env_bind(struct qp *core, const struct qp_bind *how);
int shca_mw_env_invalidate(struct qp *core, uint32_t rkey);

/* cq.c: completion queues and channels */

struct shca_cq;

struct shca_channel {
	struct ibv_comp_channel ch; /* refcnt: CQs, under lock */
	pthread_mutex_t lock; /* after a CQ's */
	struct shca_cq **queue; /* ring of CQs with an event, oldest first */
	uint32_t size, head, tail; /* size: power of two */
	/* A thread that waits, and makes progress (engine_sleep()). */
	bool waits;
	pthread_t waiter;
	uint32_t reading; /* threads that wait for a token instead */
	uint32_t bare; /* in the queue, put there by that thread: no token yet */
	uint32_t skip, interval; /* so often bare ones get theirs at once */
	_Atomic unsigned prompt; /* events in a row that nobody had waited for */
	_Atomic bool closed; /* it has been destroyed */
	struct retired_kept kept;
};

struct shca_cqe {
	struct ibv_wc wc;
	uint64_t ts; /* CLOCK_MONOTONIC, if the CQ wants it */
};

enum shca_arm { SHCA_UNARMED, SHCA_ARMED_SOLICITED, SHCA_ARMED };

/* answer.c: a UC write of whoever polls a CQ has been sent. */
struct shca_answer {
	_Atomic uint32_t due_ns; /* how long to wait for another; 0: not at all */
	_Atomic uint32_t vain; /* that was in vain so often in a row: */
	_Atomic uint64_t not_before;
	_Atomic uint32_t skip; /* so many times without a look at the clock */
};

struct shca_cq {
	struct ibv_cq_ex ex; /* begins like struct ibv_cq */
	struct shca_live live;
	struct engine *engine;
	_Atomic unsigned users; /* QPs, a send and a receive side each; SRQs */
	struct ibv_pd *parent; /* whose allocator the ring is from, or NULL */
	struct qp_mem mem;

	struct lock lock; /* of what follows; after a QP's */
	struct shca_cqe *ring;
	uint32_t depth; /* power of two */
	_Atomic uint32_t head, tail; /* free-running */
	_Atomic int armed; /* enum shca_arm */
	struct shca_answer answer;
	bool overrun; /* IBV_EVENT_CQ_ERR was raised; completions are lost */
	/* Moderation: an event after so many completions, or so long. */
	uint16_t mod_count, mod_usec; /* one is 0: at once */
	uint32_t mod_pending; /* completions that wait for an event */
	int mod_fd; /* timer, or -1 */
	struct shca_cq *mod_next; /* the process's late_lock */
	uint32_t comp_reported; /* events reported; the channel's lock */
	uint32_t async_reported; /* the context's async_lock */

	/* ibv_cq_ex: one thread between start_poll and end_poll. */
	struct lock poll_lock; /* before all other locks */
	bool single_threaded;
	bool ignore_overrun;
	bool want_ts;
	struct shca_cqe cur;
};

static inline struct shca_cq *to_cq(struct ibv_cq *cq)
{
	return (struct shca_cq *)(void *)cq;
}

/* The completion of a UC write is about to be polled. armed: as engine_poll(). */
void shca_answer_wait(struct shca_cq *cq, bool armed);
/* As roce_env.uc_sent and uc_written. */
void shca_env_uc_sent(struct qp *core, uint32_t length);
void shca_env_uc_written(struct qp *core);

int shca_channel_create(struct ibv_context *ctx, struct ibv_comp_channel **ch);
int shca_channel_destroy(struct ibv_comp_channel *ch);
int shca_channel_get(struct ibv_comp_channel *ch, struct ibv_cq **cq,
		     void **cq_context);
int shca_cq_create(struct ibv_context *ctx,
		   const struct ibv_cq_init_attr_ex *attr, struct ibv_cq **cq);
int shca_cq_resize(struct ibv_cq *cq, int cqe);
int shca_cq_modify(struct ibv_cq *cq, const struct ibv_modify_cq_attr *attr);
/* The timer of a moderated CQ has expired. */
void shca_cq_late(struct engine *e, int fd);
int shca_cq_destroy(struct ibv_cq *cq);
int shca_cq_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int shca_cq_notify(struct ibv_cq *cq, int solicited_only);
/* env.complete: appends one completion. */
int shca_cq_add(struct shca_cq *cq, const struct ibv_wc *wc, bool solicited);
/* check_env.waits: whether it is armed although completions, *count from *head on,
 * are there, which raise no event. */
bool shca_cq_waits(struct ibv_cq *cq, uint32_t *head, uint32_t *count);
/* Whether completions of a QP wait to be polled. */
bool shca_cq_holds(struct shca_cq *cq, uint32_t qpn);
/* Removes the completions of a QP. */
void shca_cq_clean(struct shca_cq *cq, uint32_t qpn);

/* srq.c */

struct shca_srq {
	struct ibv_srq srq;
	struct shca_live live;
	enum ibv_srq_type type;
	struct shca_cq *cq; /* XRC: where its receives complete */
	/* XRC, see xrc.c. */
	struct ibv_xrcd *xrcd;
	uint32_t num;
	struct shca_srq *next;

	uint32_t async_reported; /* the context's async_lock */
	_Atomic unsigned users;
	struct lock lock; /* of what follows; after a QP's */
	struct qp_rq rq;
	uint32_t limit;
};

static inline struct shca_srq *to_srq(struct ibv_srq *srq)
{
	return container_of(srq, struct shca_srq, srq);
}

int shca_srq_create(struct ibv_srq_init_attr_ex *attr, struct ibv_srq **srq);
int shca_srq_modify(struct ibv_srq *srq, const struct ibv_srq_attr *attr,
		    int mask);
int shca_srq_query(struct ibv_srq *srq, struct ibv_srq_attr *attr);
int shca_srq_destroy(struct ibv_srq *srq);
int shca_srq_post(struct ibv_srq *srq, struct ibv_recv_wr *wr,
		  struct ibv_recv_wr **bad);
int shca_srq_take(struct shca_srq *srq, uint64_t room, struct qp_recv *out);

/* ah.c */

struct shca_ah {
	struct ibv_ah ah;
	struct shca_live live;
	struct roce_path path;
};

static inline struct shca_ah *to_ah(struct ibv_ah *ah)
{
	return container_of(ah, struct shca_ah, ah);
}

/*
 * The path of an address vector. -EINVAL: it has no GRH, another port, an empty
 * sgid_index, or GIDs of two families.
 */
int shca_path(struct shca_device *dev, const struct ibv_ah_attr *attr,
	      struct roce_path *path, struct netdev_gid *via);
int shca_ah_create(struct ibv_pd *pd, struct ibv_ah_attr *attr,
		   struct ibv_ah **ah);
int shca_ah_destroy(struct ibv_ah *ah);
/* The Ethernet address that packets go to; vid may be NULL. May wait, see
 * net/neigh.h. */
int shca_resolve_l2(struct ibv_context *ctx, const struct ibv_ah_attr *attr,
		    uint8_t mac[6], uint16_t *vid);
int shca_ah_init_from_wc(struct ibv_context *ctx, uint8_t port,
			 const struct ibv_wc *wc, const struct ibv_grh *grh,
			 struct ibv_ah_attr *attr);

/* qp.c: queue pairs; wr.c: the work request builders of ibv_qp_ex */

struct roce_timewait;
struct shca_wr; /* a work request being built */

/* direct.c: the process at the other end, if its memory can be copied to. */
struct shca_far {
	struct qp_far far;
	struct segment_peer *peer; /* NULL: none is known, */
	uint64_t again_ns;	   /* nor looked for before that */
	uint64_t now_ns;	   /* of the call that uses it */

	/* What the program posts without a look at the CQ in between. */
	uint32_t tail; /* of the send queue when it was last looked at */
	uint32_t looks; /* at the CQ, and others; by then */
	uint32_t run; /* requests in a row, up to what are many */
	bool many; /* were, and some of them are still in the queue */
	uint64_t end_ns; /* of the last one, 0: not known */
};

struct shca_qp {
	struct ibv_qp_ex ex;
	/* Slots that later headers append to ibv_qp_ex; never offered. */
	void *later[8];
	struct shca_live live;

	struct engine_qp sched;
	uint32_t async_reported; /* the context's async_lock */

	pthread_mutex_t modify_lock; /* one transition at a time; before lock */
	bool bound; /* an address is bound for it, or all of them (UD) */
	union ibv_gid bound_gid;
	uint32_t bound_if;
	struct ibv_ah_attr av, alt_av;

	const struct qp_ops *ops; /* of the transport */
	struct qp *core; /* under sched.lock; NULL: sched.dead */
	struct shca_far far; /* under sched.lock */
	uint16_t sport; /* a UDP port that is the peer's; 0: none is known */
	bool forged; /* somebody else has been heard: that was explained */

	unsigned mcast; /* groups attached to; the process's mcast_lock, */
	bool closing; /* and so this: it is being destroyed */
	void *_Atomic cm_owner; /* gsi.h */
	/* qp_iwarp.h; under sched.lock */
	struct shca_conn *conn;
	struct shca_qp_stream {
		bool full; /* waits until it can be written to */
		bool eof; /* the peer has sent FIN, or it is broken */
		bool fin; /* we have sent FIN */
		bool draining;
		bool large; /* so was the last FPDU, which the socket placed */
		uint64_t sent_ns; /* when it sends last, where that is recorded */
		/* 0, or when the responder may send unasked, or the initiator
		 * sends its first message again, so many times yet. */
		uint64_t begin_ns;
		uint8_t asks;
	} stream;
	_Atomic bool windows; /* of type 2 may be bound to it */

	struct shca_xrc *xrc; /* xrc.h; NULL of all but XRC_RECV QPs */

	/* For --explain=full, else 0: where it was made, and what is in the
	 * send queue was posted. */
	uint32_t made;
	uint32_t *posted;

	/* wr.c: between wr_start and wr_complete. */
	struct lock wr_lock; /* before lock */
	struct shca_wr *wr;
	uint32_t wr_count, wr_size;
	int wr_err;
};

static inline struct shca_qp *to_qp(struct ibv_qp *qp)
{
	return container_of(qp, struct shca_qp, ex.qp_base);
}

static inline struct shca_qp *sched_qp(struct engine_qp *qp)
{
	return container_of(qp, struct shca_qp, sched);
}

extern const struct qp_ops shca_roce_ops, shca_iwarp_ops;

static inline bool shca_qp_is_roce(const struct shca_qp *qp)
{
	return qp->ops == &shca_roce_ops;
}

static inline uint32_t shca_qpn(const struct shca_qp *qp)
{
	return qp->ex.qp_base.qp_num;
}

int shca_qp_create(struct ibv_context *ctx, struct ibv_qp_init_attr_ex *attr,
		   struct ibv_qp **qp);
int shca_qp_modify(struct ibv_qp *qp, const struct ibv_qp_attr *attr, int mask);
int shca_qp_query(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		  struct ibv_qp_init_attr *init);
int shca_qp_destroy(struct ibv_qp *qp);
int shca_qp_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
		      struct ibv_send_wr **bad);
/* Posts all of them or, after an error, none. */
int shca_qp_post_all(struct ibv_qp *qp, struct ibv_send_wr *wr);
int shca_qp_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr,
		      struct ibv_recv_wr **bad);
/* Whether completions of a QP in RTS wait to be polled. */
bool shca_qp_unpolled(struct ibv_qp *qp);
/* Adds its counters: what all transports count, and what its own does. Its lock
 * is held. */
void shca_qp_counts(struct stat_qp *q, struct qp *core);
int shca_mcast_attach(struct ibv_qp *qp, const union ibv_gid *gid);
int shca_mcast_detach(struct ibv_qp *qp, const union ibv_gid *gid);

/* wr.c: fills the slots of these operations; -EOPNOTSUPP if the QP's type does
 * not have one of them. */
int shca_wr_setup(struct shca_qp *qp, uint64_t send_ops);
void shca_wr_free(struct shca_qp *qp);

/* sched.c: a new QP as the engine sees it. */
void shca_qp_init(struct shca_qp *qp, struct engine *e,
		  const struct shca_transport *t);

/* engine/qp.h */

static inline void shca_qp_get(struct shca_qp *qp)
{
	engine_qp_get(&qp->sched);
}

static inline void shca_qp_put(struct shca_qp *qp)
{
	engine_qp_put(&qp->sched);
}

static inline void shca_qp_lock(struct shca_qp *qp)
{
	engine_qp_lock(&qp->sched);
}

static inline bool shca_qp_trylock(struct shca_qp *qp)
{
	return engine_qp_trylock(&qp->sched);
}

static inline void shca_qp_unlock(struct shca_qp *qp)
{
	engine_qp_unlock(&qp->sched);
}

/* A packet for it; lock held, not dead. */
void shca_qp_rx(struct shca_qp *qp, const struct roce_rx *pkt, uint64_t now);
/* roce_ack_hold(), roce_ack_release(). */
bool shca_qp_ack_hold(struct shca_qp *qp);
void shca_qp_ack_release(struct shca_qp *qp);
void shca_qp_kill(struct shca_qp *qp);
/* Where a script wants that. */
static inline void shca_qp_doom(struct shca_qp *qp)
{
	if (__builtin_expect(atomic_load_explicit(&qp->sched.doomed,
						  memory_order_relaxed),
			     0))
		shca_qp_kill(qp);
}
/* Sends what the QP has to send and sets its timer; lock held. */
static inline void shca_qp_flush(struct shca_qp *qp, uint64_t now_ns)
{
	qp->ops->flush(qp->core, now_ns, false);
}
/* What is due by now; lock held, not dead. */
static inline void shca_qp_expire(struct shca_qp *qp, uint64_t now_ns)
{
	qp->ops->expire(qp->core, now_ns);
}

/*
 * direct.c: carries out one-sided requests that the peer's process need not be
 * asked for, *time 0: reads the clock if it has to; and the other end of the QP
 * is another from now on. The QP's lock is held.
 */
extern const struct qp_direct_env shca_direct;
void shca_far_try(struct shca_qp *qp, uint64_t *time);
static inline void shca_far_run(struct shca_qp *qp, uint64_t *time)
{
	const struct qp_sq *sq = &qp->core->sq;

	if (sq->nxt == sq->tail)
		return;
	if (qp_direct_kind(qp->core, qp_sq_slot(sq, sq->nxt)))
		shca_far_try(qp, time);
	else
		qp->far.tail = sq->tail;
}
void shca_far_forget(struct shca_qp *qp);
/* The queue pair at the other end, if that is of this host and connected. Lock
 * held. */
bool shca_far_end(struct shca_qp *qp, struct check_end *end);
int shca_env_atomic_lock(struct qp *core, const void *p);
void shca_env_atomic_unlock(struct qp *core, const void *p);

/* peer.c: says which way a QP that has just been connected is connected by. Its
 * lock is held, as it is in the others (roce/env.h). */
void shca_connected_explain(struct shca_qp *qp);
const char *shca_env_silent(struct qp *core, struct key_why *why);
/* For the checks: what at the two ends does not go together. */
void shca_env_unanswered(struct qp *core, const char *expects);
void shca_far_peer(struct shca_qp *qp, struct check_peer *out);
/* What the QP waits for: a sentence. */
void shca_qp_waits(struct shca_qp *qp, uint64_t now, char *text, size_t size);
const char *shca_env_refusal(struct qp *core, const struct key_ask *ask,
			     struct key_why *why);
/* Returns when no other process copies any more by what was there before. */
void shca_visits_wait(struct engine *e);

/* checked.c: the checks (check/check.h) around all that */
void shca_check_begin(void);
/* The slots of a context, and of a CQ, if the program is checked. */
void shca_check_slots(struct ibv_context_ops *ops);
void shca_check_readers(struct ibv_cq_ex *cq);
int shca_check_channel_get(struct ibv_comp_channel *ch, struct ibv_cq **cq,
			   void **cq_context,
			   int (*get)(struct ibv_comp_channel *ch,
				      struct ibv_cq **cq, void **cq_context));
/* The program posts, or lets the QP go on: its peers are shown when. Its lock is
 * held. */
void shca_check_posting(struct shca_qp *qp);
/* Posts all or none, checked or not. */
int shca_check_post_all(struct ibv_qp *qp, struct ibv_send_wr *wr);

/* qp_roce.c, qp_iwarp.c; sched.c */
extern const struct engine_qp_ops shca_roce_sched, shca_roce_sched_recorded,
	shca_iwarp_sched;
/* What is to be remembered of a QP that is about to be destroyed, if anything. */
bool shca_qp_leaves(const struct shca_qp *qp, struct roce_timewait *w);

#endif
