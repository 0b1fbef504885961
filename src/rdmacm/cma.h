/*
 * cma.h - identifiers, channels and events, as the files of librdmacm see them
 *
 *	cma.c       devices, one lock, errno
 *	event.c     event channels, and what happens when an event is fetched
 *	id.c        identifiers and their options
 *	addr.c      binding and resolving
 *	sockaddr_ib.c  addresses of AF_IB
 *	await.c     addresses whose neighbour is not known yet
 *	port.c      ports
 *	addrinfo.c  rdma_getaddrinfo()
 *	connect.c   connections and datagram services, over src/cm
 *	iw.c        connections of iWARP, over TCP
 *	cm_event.c  what src/cm reports
 *	cma_qp.c    queue pairs and shared receive queues of identifiers
 *	qp_attr.c   attributes of queue pairs
 *	mcast.c     multicast groups
 *	cm_reason.c reasons in words
 *	waits.c     what identifiers wait for
 *
 * One lock covers all identifiers, channels and ports: that of the connection
 * manager (connect/gsi.h), because its events change them. No verb is called
 * with it held. What only the program's calls touch (the fields of struct
 * rdma_cm_id but channel) needs no lock: programs may not use an identifier
 * from two threads at a time.
 */
#ifndef SOFTHCA_RDMACM_CMA_H
#define SOFTHCA_RDMACM_CMA_H

#include "base/retired.h"
#include "connect/gsi.h"
#include "connect/iw.h"
#include "verbs/verbs.h"

#include <infiniband/ib.h>
#include <rdma/rdma_cma.h>

#define CMA_PORT_NUM 1
#define CMA_PACKET_LIFE 16 /* 4.096 us * 2^n: 0.27 s, for busy hosts */
#define CMA_HOP_LIMIT 64
#define CMA_MAX_BACKLOG 1024
#define CMA_EVENT_DATA 256

struct cma_id;

/*
 * How a device's transport connects: iWARP by TCP and MPA (iw.c), RoCE by
 * messages to QP1 (connect.c). What is checked before is the same for both. 0 or
 * -errno; without the lock.
 */
struct cma_ops {
	/* The path has been chosen: what answers need to arrive. */
	int (*resolved)(struct cma_id *id);
	int (*connect)(struct cma_id *id, const struct rdma_conn_param *param);
	int (*accept)(struct cma_id *id, const struct rdma_conn_param *param);
	/* reason: enum cm_rej_reason. */
	int (*reject)(struct cma_id *id, const void *data, uint8_t len,
		      unsigned reason);
	/* 1: an event follows, for which a synchronous call waits. */
	int (*disconnect)(struct cma_id *id);
	int (*notify)(struct cma_id *id);
	int (*establish)(struct cma_id *id);
	/* Attributes for a QP to go to RTR, RTS. */
	int (*attr)(struct cma_id *id, struct ibv_qp_attr *attr, int *mask);
};

struct cma_dev {
	const struct cma_ops *ops;
	struct ibv_context *verbs;
	struct ibv_pd *pd; /* default, of all identifiers */
	struct ibv_xrcd *xrcd; /* the same, once one is needed */
	uint8_t max_responder_resources, max_initiator_depth;
	uint8_t ack_delay;
};

struct cma_event;
struct cma_mc;

struct cma_channel {
	struct rdma_event_channel ch; /* fd: an eventfd, see event.c */
	struct cma_event *head, **tail;
	bool signalled; /* fd can be read, unless somebody just has */
	uint64_t signals; /* written to it so far */
	size_t ids; /* identifiers that report here */
	_Atomic unsigned readers; /* threads in rdma_get_cm_event() */
	_Atomic bool closed; /* it has been destroyed */
	bool blocks; /* its descriptor did, then */
	struct retired_kept kept;
};

enum cma_state {
	CMA_IDLE,
	CMA_ADDR_BOUND,
	CMA_ADDR_QUERY, /* until its event is fetched */
	CMA_ADDR_RESOLVED,
	CMA_ROUTE_RESOLVED,
	CMA_CONNECT, /* in use, from the first message on */
	CMA_DISCONNECT,
	CMA_LISTEN,
};

struct cma_id {
	struct rdma_cm_id id; /* what the program has */
	struct cma_id *next, **link; /* in the list of all */
	enum cma_state state;
	bool sync; /* no channel of the program: calls wait */
	bool passive;
	struct cma_dev *dev; /* NULL: not bound to one yet */

	/* addr.c */
	uint16_t port; /* bound to, if on_port */
	bool on_port, reuse, afonly;
	bool shares_port; /* with an ordinary socket: tcp_port.h */
	unsigned reserved; /* what for: CM_LISTEN_*; 0: not */
	struct cma_id *next_on_port;
	struct netdev_gid via; /* our address, once bound to a device */
	/* Where that was last found, once it has moved; see id.c. */
	bool moved, removed;
	struct netdev_gid now;
	struct roce_path path;
	struct ibv_sa_path_rec path_rec;
	struct cma_await *await; /* await.c; NULL: it does not wait */

	/* Under the lock: id.qp, unless that has been destroyed; see cma_qp.c.
	 * */
	struct ibv_qp *qp;

	/* connect.c */
	struct cm_conn *conn;
	struct cm_listener *listener;
	bool bound_all; /* listens at all addresses of all devices */
	struct shca_iw *iw; /* iw.c */
	bool established;
	struct shca_iw_listener *iw_listener;
	int backlog; /* requests that may wait to be fetched */
	struct cm_end local, peer;
	bool tos_set, ack_timeout_set;
	uint8_t tos, ack_timeout;

	struct cma_mc *mc;

	/* For waits.c: since when it listens, connects or has been asked; the
	 * requests that a listener has had; the reason for which the peer has
	 * rejected it, -errno if it failed otherwise, or 0. */
	uint64_t since_ns;
	uint32_t requests;
	int rejected;

	/* Events that wait in its channel: its own, and those about it. */
	uint32_t waiting;
	/* Events fetched and acknowledged, under cma.ack_lock. */
	uint32_t reported, completed;

	/* rdma_create_ep() */
	struct ibv_pd *ep_pd;
	struct ibv_qp_init_attr *ep_qp;
};

struct cma_mc {
	struct cma_mc *next;
	void *context;
	struct sockaddr_storage addr;
	union ibv_gid mgid;
	uint16_t mlid;
	bool send_only;
	bool attached; /* the QP, by us */
	uint32_t reported, completed; /* as in struct cma_id */
};

/* The public event comes first: programs give it back. */
struct cma_event {
	struct rdma_cm_event ev;
	struct cma_event *next;
	struct cma_id *owner; /* whose destruction waits for the ack */
	struct cma_mc *mc;
	uint64_t settle_ns; /* until then completions go first (event.c) */
	bool caught_up; /* with what the peer had sent before it */
	uint8_t data[CMA_EVENT_DATA];
};

/* Whether it may use a device of iWARP, which has connections alone. */
static inline bool cma_may_iwarp(const struct cma_id *id)
{
	return id->id.ps == RDMA_PS_TCP;
}

static inline struct cma_id *to_id(struct rdma_cm_id *id)
{
	return container_of(id, struct cma_id, id);
}

static inline struct cma_channel *to_channel(struct rdma_event_channel *ch)
{
	return container_of(ch, struct cma_channel, ch);
}

static inline struct shca_device *cma_device(const struct cma_dev *dev)
{
	return to_ctx(dev->verbs)->dev;
}

/* Of a UD QP. */
static inline uint32_t cma_qkey(const struct cma_id *id)
{
	return id->id.ps == RDMA_PS_IPOIB ? 0x0b1b : RDMA_UDP_QKEY;
}

/* What it is bound to. */
static inline struct sockaddr *cma_src(struct cma_id *id)
{
	return &id->id.route.addr.src_addr;
}

/* -errno to -1 and errno, as all of librdmacm reports; for the public functions
 * themselves, whose name --explain reports. */
int cma_ret_of(const char *func, int err);
#define cma_ret(err) cma_ret_of(__func__, err)

/* cma.c */
/* Opens the devices; again in the child of a fork. 0 or -errno. */
int cma_init(void);
struct engine *cma_engine(void);
struct cma_dev *cma_devices(int *n);
struct ibv_xrcd *cma_xrcd(struct cma_dev *dev); /* NULL and errno */
/*
 * The device that has this address, and its place; NULL: none. any: it may be one
 * of iWARP. The second one also looks for new addresses; not with the lock.
 */
struct cma_dev *cma_dev_find(const union ibv_gid *gid, bool any,
			     struct netdev_gid *via);
struct cma_dev *cma_dev_of(const union ibv_gid *gid, bool any,
			   struct netdev_gid *via);
/* The lock of everything here. cma_unlock() sends pending messages. */
struct cm *cma_lock(void);
void cma_unlock(void);
uint32_t cma_random(void);
extern pthread_mutex_t cma_ack_lock;
extern pthread_cond_t cma_acked;
/* Waits until all fetched events of something have been acknowledged; call: what
 * the program has called. */
void cma_wait_acked(const uint32_t *completed, const uint32_t *reported,
		    const char *call);

/* event.c; the lock is held */
struct cma_channel *cma_channel_new(void);
struct cma_event *cma_event_new(struct cma_id *id, enum rdma_cm_event_type type,
				int status);
/* Appends to the channel of ev->owner, or drops it if there is none. */
void cma_event_post(struct cma_event *ev);
/* Moves the events that wait for id to another channel; to: NULL drops them. */
void cma_events_move(struct cma_id *id, struct cma_channel *from,
		     struct cma_channel *to, struct cm *cm);
/* Drops the event of a group that is left before it was fetched. */
void cma_mc_events_drop(struct cma_id *id, const struct cma_mc *mc);
/* Without the lock. A call of a synchronous identifier waits for its event. */
int cma_complete(struct cma_id *id);

/* id.c */
struct cma_id *cma_id_new(enum rdma_port_space ps, enum ibv_qp_type type,
			  void *context);
/* With the lock: takes it out of everything but memory. */
void cma_id_detach(struct cma_id *id, struct cm *cm);
void cma_id_free(struct cma_id *id);
void cma_id_set_channel(struct cma_id *id, struct cma_channel *ch);
/* The channel is destroyed while identifiers still use it. */
void cma_ids_orphan(struct cma_channel *ch);
/* With the lock: each of them; whether one reports to the channel with this
 * descriptor. */
void cma_ids_each(void (*fn)(void *arg, const struct cma_id *id), void *arg);
bool cma_is_channel(void *arg, int fd);
/* Reports to identifiers that their address has moved or their device gone. */
void cma_netdevs_changed(void *arg);
int cma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out,
		  void *context, enum rdma_port_space ps,
		  enum ibv_qp_type type);

/* addr.c */
socklen_t cma_addr_len(const struct sockaddr *addr);
bool cma_addr_any(const struct sockaddr *addr);
void cma_addr_gid(const struct sockaddr *addr, union ibv_gid *gid);
/* The address at which it receives, unless it is bound to any: a loopback address
 * stands for a port of InfiniBand. */
void cma_own_gid(struct cma_id *id, union ibv_gid *gid);
void cma_gid_addr(const union ibv_gid *gid, uint32_t scope, uint16_t port,
		  struct sockaddr_storage *addr);
uint16_t cma_port(const struct sockaddr *addr);
void cma_set_port(struct sockaddr_storage *addr, uint16_t port);
void cma_set_dev(struct cma_id *id, struct cma_dev *dev,
		 const struct netdev_gid *via);
void cma_set_path(struct cma_id *id, const union ibv_gid *dgid);
int cma_bind(struct cma_id *id, const struct sockaddr *addr);
/* shca_cm_bind_path() for the identifier's path. */
int cma_bind_path(struct cma_id *id);
/* The device of an address that was bound to without one, a loopback address.
 */
int cma_late_dev(struct cma_id *id);

/* sockaddr_ib.c */
bool cma_is_infiniband(const struct cma_dev *dev);
/* The device of InfiniBand with an address; gid NULL: any such device. NULL:
 * there is none. */
struct cma_dev *cma_infiniband(const union ibv_gid *gid,
			       struct netdev_gid *via);
/* An address of AF_IB: its GID, what that stands for, and its port. */
union ibv_gid cma_sib_raw(const struct sockaddr *addr);
union ibv_gid cma_sib_gid(const struct sockaddr *addr);
uint16_t cma_sib_port(const struct sockaddr *addr);
void cma_sib_set_port(struct sockaddr_storage *addr, uint16_t port);
/* Whether it can be one of an identifier; whole: a destination. 0 or -errno. */
int cma_sib_check(enum rdma_port_space ps, struct sockaddr_storage *addr,
		  bool whole);
/* The one for an address of IPv4. */
void cma_sib_make(enum rdma_port_space ps, struct sockaddr_storage *addr);

/* await.c */
/* No address waits: a forked child's of its parent do not. */
void cma_await_init(void);
/*
 * The address of id.path is resolved when the kernel knows the neighbour. 0: it
 * does. 1: ADDR_RESOLVED or ADDR_ERROR follows, that after timeout_ms (less than
 * 0: never). -errno.
 */
int cma_await(struct cma_id *id, int timeout_ms);
/* With the lock: the event does not follow. */
void cma_await_drop(struct cma_id *id);
/* For the connection manager. */
uint64_t cma_await_deadline(void *arg);
void cma_await_expire(void *arg, uint64_t now);

/* port.c */
/* What an identifier's address stands for: CM_LISTEN_*. */
unsigned cma_families(const struct cma_id *id);
uint64_t cma_service_id(const struct cma_id *id, uint16_t port);
/* Puts id on port (0: any free one), reserved if any_process may listen. */
int cma_port_get(struct cma_id *id, uint16_t port, bool any_process);
/* Reserves the port for a listener: no other process has it. */
int cma_port_listen(struct cma_id *id);
void cma_port_put(struct cma_id *id);
void cma_ports_init(void);

/* cm_event.c */
int cma_on_cm_event(void *arg, const struct cm_event *ev);
/* An address as the header of a request has it (annex A11). */
void cma_ipcm_addr(uint8_t to[16], const union ibv_gid *gid);

/* connect.c */
extern const struct cma_ops cma_roce;
/* It has begun to connect. */
void cma_connects(struct cma_id *id);
/* The peer has accepted: readies the QP, if there is one, and sends RTU. */
void cma_established(struct cma_id *id, struct rdma_cm_event *ev);
void cma_listen_stop(struct cma_id *id);
/* -EINVAL: so many bytes of private data are too many. */
int cma_too_long(size_t len, size_t max);

/* cm_event.c */
/* An established connection is over; once. The lock is held. */
void cma_disconnected(struct cma_id *id, int status);

/* iw.c */
extern const struct cma_ops cma_iwarp;
/* Listens by TCP, where there is a device of iWARP and the identifier may use it;
 * with the lock. */
int cma_iw_listen(struct cma_id *id);
/* With the lock: the identifier goes. */
void cma_iw_detach(struct cma_id *id);
int cma_on_iw_event(const struct shca_iw_event *ev);

/* cma_qp.c */
/*
 * The QP of an identifier, or NULL. The program may destroy it at any time:
 * verbs then fail, but the memory stays until cma_qp_put().
 */
struct ibv_qp *cma_qp_get(struct cma_id *id);
void cma_qp_put(struct ibv_qp *qp);
/* Takes note of a QP that the program has put there itself. */
void cma_qp_adopt(struct cma_id *id);
/* With the lock: the identifier has none any more. */
void cma_qp_drop(struct cma_id *id);
void cma_qp_gone(void *arg, void *owner, struct ibv_qp *qp);
int cma_qp_ready(struct cma_id *id, struct ibv_qp *qp,
		 uint8_t responder_resources, uint8_t initiator_depth);
int cma_qp_error(struct cma_id *id);

/* qp_attr.c */
/* Attributes for the QP of a connection to go to attr->qp_state. */
int cma_qp_attr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask);
/* The same of RoCE alone. */
int cma_roce_attr(struct cma_id *id, struct ibv_qp_attr *attr, int *mask);
/* As in the attributes: 4.096 us * 2^n. */
uint8_t cma_ack_timeout(const struct cma_id *id);

/* cm_reason.c */
struct cma_text {
	char text[64];
};

/* "192.0.2.7 port 7471"; lives as long as t. */
const char *cma_addr_str(const struct sockaddr *addr, struct cma_text *t);
/* -EINVAL, with the reason: the identifier's state, and what is needed. */
int cma_wrong_state(const struct cma_id *id, const char *needs);
/* -EINVAL of src/cm, or since there is no connection. */
int cma_not_connected(const struct cma_id *id);
/* What else there is to say of a reason: ": ...", or "". */
const char *cma_rejected_hint(int reason);
/* Reports a connection that does not come about, and a request that is not
 * taken. */
void cma_outcome(struct cma_id *id, const struct cm_event *ev);
void cma_refused(const struct cma_id *listener, const struct cm_event *ev,
		 const char *reason);

/* waits.c: for the connection manager, as shca_cm_user.waits. */
struct lines;
void cma_waits(void *arg, struct lines *out, uint64_t now);

/* mcast.c */
void cma_mc_joined(struct cma_id *id, struct cma_event *ev);
void cma_mc_leave_all(struct cma_id *id);
void cma_ah_attr(struct cma_id *id, const struct roce_path *path,
		 struct ibv_ah_attr *attr);

#endif
