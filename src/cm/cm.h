/*
 * cm.h - the InfiniBand connection manager (IBTA vol. 1, chapter 12)
 *
 * Sets up and closes connections (REQ, MRA, REJ, REP, RTU, DREQ, DREP) and
 * resolves services of datagrams (SIDR_REQ, SIDR_REP) by exchanging MADs
 * between QP1s. One struct cm per process. It does no I/O, takes no lock and
 * has no clock: the caller serialises all calls, hands in received MADs with
 * cm_rx(), takes MADs to send from cm_tx() after every call, and calls
 * cm_expire() when cm_deadline() has passed. A MAD that cannot be sent is
 * simply lost.
 *
 * Events are reported through cm_config.event, from within cm_rx(), cm_expire()
 * and cm_establish(); it may call only the cm_conn_* functions.
 *
 * Lifetime: a struct cm_conn belongs to the user from cm_connect(),
 * cm_sidr_request() or the event that brings it until cm_close(). The CM then
 * ends the connection as its state requires (REJ, DREQ, nothing), keeps what is
 * needed to answer late duplicates, and frees it. No event follows.
 */
#ifndef SOFTHCA_CM_CM_H
#define SOFTHCA_CM_CM_H

#include "wire/mad.h"
#include "wire/roce.h"

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Private data that fits, IP addressing header included (tables 106-120). */
#define CM_REQ_DATA 92
#define CM_REJ_DATA 148
#define CM_REP_DATA 196
#define CM_RTU_DATA 224
#define CM_DREQ_DATA 220
#define CM_DREP_DATA 224
#define CM_SIDR_REQ_DATA 216
#define CM_SIDR_REP_DATA 136
#define CM_REJ_ARI 72

struct cm;
struct cm_conn;
struct cm_listener;

/* A state's name is the specification's (12.9.5 to 12.9.7). */
#define CM_STATES(X)                                                           \
	X(IDLE)                                                                \
	X(REQ_SENT)                                                            \
	X(MRA_REQ_RCVD) /* the peer asked for time to answer our REQ */        \
	X(REQ_RCVD)                                                            \
	X(MRA_REQ_SENT)                                                        \
	X(REP_SENT)                                                            \
	X(MRA_REP_RCVD)                                                        \
	X(REP_RCVD)                                                            \
	X(MRA_REP_SENT)                                                        \
	X(ESTABLISHED)                                                         \
	X(DREQ_SENT)                                                           \
	X(DREQ_RCVD)                                                           \
	X(TIMEWAIT)                                                            \
	X(SIDR_REQ_SENT)                                                       \
	X(SIDR_REQ_RCVD)

enum cm_state {
#define X(name) CM_##name,
	CM_STATES(X)
#undef X
		CM_NSTATES
};

const char *cm_state_name(enum cm_state state);

/* One end of a connection, as REQ and REP describe it. */
struct cm_end {
	enum ibv_qp_type qp_type; /* RC, UC, XRC_SEND (REQ), XRC_RECV (REP) */
	uint32_t qpn, psn, qkey;
	/* Seen from this end: reads and atomics it answers, and issues. */
	uint8_t responder_resources, initiator_depth;
	uint8_t retry_count; /* REQ only; 3 bits */
	uint8_t rnr_retry_count;
	bool flow_control, srq;
	struct ibv_ece ece; /* vendor_id: 24 bits */
	uint64_t ca_guid; /* filled in by the cm */
	/* REQ only */
	uint8_t ack_timeout; /* 4.096 us * 2^n */
	uint8_t mtu; /* enum ibv_mtu */
	uint16_t pkey;
	/* REP only */
	uint8_t target_ack_delay;
};

enum cm_event_type {
	/* Passive: a request. conn is new, in REQ_RCVD. */
	CM_EV_REQ,
	/* Active: the peer accepts; cm_rtu() or cm_reject() is next. */
	CM_EV_REP,
	/* Passive: RTU, or cm_establish(). */
	CM_EV_ESTABLISHED,
	/* status: enum cm_rej_reason. */
	CM_EV_REJ,
	/* No answer to REQ, or to REP; status -ETIMEDOUT. */
	CM_EV_UNREACHABLE,
	/* The peer wants to end it; cm_disconnect() answers. */
	CM_EV_DREQ,
	/* Our DREQ was answered, or (status -ETIMEDOUT) was not. */
	CM_EV_DREP,
	CM_EV_TIMEWAIT_EXIT,
	/* Passive: a request for a datagram service. conn is new. */
	CM_EV_SIDR_REQ,
	/* status: enum cm_sidr_status, or -ETIMEDOUT. */
	CM_EV_SIDR_REP,
};

struct cm_event {
	enum cm_event_type type;
	struct cm_conn *conn;
	void *user; /* cm_conn_set_user(); REQ: of the listener */
	int status;
	uint64_t service_id; /* REQ, SIDR_REQ */
	struct cm_end peer; /* REQ, REP; SIDR_REP: qpn, qkey, ece */
	const uint8_t *data; /* private data, the whole field */
	size_t len;
	const uint8_t *ari; /* REJ, SIDR_REP: additional information */
	size_t ari_len;
	/* REQ, SIDR_REQ: from our address (sgid) to the peer's (dgid). */
	const struct roce_path *path;
};

struct cm_config {
	uint64_t ca_guid;
	/*
	 * Communication IDs are id_base with the bits of id_mask free, so that
	 * processes that share an address can tell their IDs apart. 0: all
	 * bits.
	 */
	uint32_t id_base, id_mask;
	uint64_t seed;

	/*
	 * How long a peer may take to answer (4.096 us * 2^n, sent in REQ) and
	 * how often to ask again. The first repetition comes sooner, each next
	 * one later, up to that; a peer that needs more time sends MRA. 0:
	 * defaults.
	 */
	uint8_t response_timeout; /* 20: 4.3 s */
	uint8_t max_retries; /* 15; UINT8_MAX: none */
	uint64_t first_retry_ns; /* 268 ms */

	/*
	 * Returns 0. For CM_EV_REQ and CM_EV_SIDR_REQ also: a reason to refuse
	 * with (enum cm_rej_reason, enum cm_sidr_status), or -EAGAIN to drop it
	 * in silence, as if it had been lost. conn is gone then.
	 */
	int (*event)(void *arg, const struct cm_event *ev);
	/*
	 * NULL, or returns which process a peer's communication ID belongs to,
	 * as a number that cm_peers_check() gets; negative: unknown, or not on
	 * this host.
	 */
	int (*place)(void *arg, uint32_t remote_id, const union ibv_gid *peer);
	void *arg;
};

/* Returns 0 or -ENOMEM. */
int cm_create(struct cm **cm, const struct cm_config *cfg);
/* Frees all at once, silently; see cm_farewell(). */
void cm_destroy(struct cm *cm);

/* Sets these anew, before the first connection. */
void cm_configure(struct cm *cm, uint64_t ca_guid, uint32_t id_base,
		  uint32_t id_mask);

/* A MAD to send from QP1 to QP1. */
struct cm_mad {
	struct roce_path path;
	uint8_t mad[MAD_LEN];
};

/* Takes the next MAD to send; false: none. */
bool cm_tx(struct cm *cm, struct cm_mad *out);
/* Whether there is room for all that one event may send. */
bool cm_room(const struct cm *cm);

/*
 * A MAD came to QP1 at dgid (ours; scope: the interface index if that is link-
 * local) from sgid. Its content is not trusted; what makes no sense is dropped.
 */
void cm_rx(struct cm *cm, const union ibv_gid *sgid, const union ibv_gid *dgid,
	   uint32_t scope, const uint8_t *mad, size_t len, uint64_t now_ns);

/*
 * Whether a REQ or SIDR_REQ is for this instance: it has a listener for it, or
 * has seen it before.
 */
bool cm_knows(struct cm *cm, const union ibv_gid *sgid,
	      const union ibv_gid *dgid, const uint8_t *mad, size_t len);

/* When cm_expire() is due; UINT64_MAX: never. It may be due again at once,
 * when there is no more room for MADs. */
uint64_t cm_deadline(const struct cm *cm);
void cm_expire(struct cm *cm, uint64_t now_ns);

/*
 * The network reports that a MAD of ours to dgid did not arrive; mad is the
 * beginning of it. Requests to dgid without an answer are repeated sooner, as
 * the peer may be about to start, and given up after CM_REFUSED_NS, as if all
 * their retries were used up. Others that follow soon are given up at once, or
 * after CM_DEAD_WAIT_NS if no report comes for them. What was answered lives
 * on.
 */
#define CM_DEAD_WAIT_NS UINT64_C(200000000)
#define CM_REFUSED_NS UINT64_C(400000000)
void cm_unreachable(struct cm *cm, const union ibv_gid *dgid,
		    const uint8_t *mad, size_t len, uint64_t now_ns);

/*
 * Ends connections with processes of this host that have died, as a kernel does
 * for its processes: gone() is called for every connection with a place. It ends
 * when two calls in a row have found its process gone: between them the caller
 * hands cm_rx() what that process had sent, and one that was suspended for a moment
 * is back. Returns whether one has been found gone for the first time.
 */
bool cm_peers_check(struct cm *cm,
		    bool (*gone)(void *arg, int place, uint32_t remote_id),
		    void *arg, uint64_t now_ns);

/*
 * Listens for a service ID at one local address, at all IPv4 or all IPv6
 * addresses (gid NULL; families: CM_LISTEN_*). The most specific listener gets
 * a request. -EADDRINUSE: another listener has just this; -ENOMEM.
 */
#define CM_LISTEN_V4 1
#define CM_LISTEN_V6 2
int cm_listen(struct cm *cm, struct cm_listener **l, uint64_t service_id,
	      const union ibv_gid *gid, unsigned families, void *user);
void cm_unlisten(struct cm *cm, struct cm_listener *l);

/*
 * Active side: sends REQ along path. Private data longer than the message
 * holds: -EINVAL. After -errno there is no connection. Here and below, data is
 * padded with zeros.
 */
int cm_connect(struct cm *cm, struct cm_conn **conn, uint64_t service_id,
	       const struct roce_path *path, const struct cm_end *end,
	       const void *data, size_t len, void *user, uint64_t now_ns);

/*
 * Of a REQ that has just been sent: there is another way to the peer. So it is
 * given up as soon as the network reports that nobody is there, and the first
 * repetitions, which a peer that takes its time answers by MRA, come soon.
 */
void cm_hurry(struct cm *cm, struct cm_conn *conn, uint64_t now_ns);
/* Whether the peer has answered that REQ by anything. */
bool cm_heard(const struct cm_conn *conn);

/*
 * Steps of a connection, each with the states in which it can happen and the
 * message that it sends. 0; -EINVAL in another state, or for too much private
 * data.
 */
/* REQ_RCVD [REP]. end->responder_resources, initiator_depth: of this end. */
int cm_accept(struct cm *cm, struct cm_conn *conn, const struct cm_end *end,
	      const void *data, size_t len, uint64_t now_ns);
/* REP_RCVD [RTU]. */
int cm_rtu(struct cm *cm, struct cm_conn *conn, const void *data, size_t len,
	   uint64_t now_ns);
/* REQ_RCVD, REP_SENT, REP_RCVD [REJ]: the connection is over. */
int cm_reject(struct cm *cm, struct cm_conn *conn, unsigned reason,
	      const void *ari, size_t ari_len, const void *data, size_t len,
	      uint64_t now_ns);
/* REP_SENT: data has arrived, so the RTU must have been lost (12.9.8.5). The
 * event comes as if it had not. -EISCONN: established already. */
int cm_establish(struct cm *cm, struct cm_conn *conn, uint64_t now_ns);
/* ESTABLISHED [DREQ], or DREQ_RCVD [DREP]. */
int cm_disconnect(struct cm *cm, struct cm_conn *conn, const void *data,
		  size_t len, uint64_t now_ns);

/* Asks for a datagram service [SIDR_REQ]. */
int cm_sidr_request(struct cm *cm, struct cm_conn **conn, uint64_t service_id,
		    const struct roce_path *path, uint16_t pkey,
		    const void *data, size_t len, void *user, uint64_t now_ns);
/* SIDR_REQ_RCVD [SIDR_REP]: answers; status 0 with qpn and qkey. */
int cm_sidr_reply(struct cm *cm, struct cm_conn *conn,
		  enum cm_sidr_status status, uint32_t qpn, uint32_t qkey,
		  const struct ibv_ece *ece, const void *data, size_t len,
		  uint64_t now_ns);

void cm_close(struct cm *cm, struct cm_conn *conn, uint64_t now_ns);

/*
 * This process ends: sends each peer REJ or DREQ where the connection needs
 * one, once, without waiting for answers. Drain cm_tx() and call again until it
 * returns false.
 */
bool cm_farewell(struct cm *cm, uint64_t now_ns);

void cm_conn_set_user(struct cm_conn *conn, void *user);
enum cm_state cm_conn_state(const struct cm_conn *conn);
const struct roce_path *cm_conn_path(const struct cm_conn *conn);
uint32_t cm_conn_id(const struct cm_conn *conn); /* local communication ID */
/* How often the last message that wants an answer was sent, and how often it will
 * be. */
void cm_conn_sent(const struct cm_conn *conn, unsigned *sent, unsigned *most);

/*
 * An address of this host is another from now on; and so is that of the peer whose
 * QP has this number: connections go on there. What the user has of their paths
 * (cm_conn_path()) says so. Its number may be another one as well, and its
 * communication IDs those that have ids_are where they had ids_were, in ids_mask
 * (0: they are the same). Messages name its QP as they did.
 */
void cm_readdress(struct cm *cm, const union ibv_gid *from,
		  const union ibv_gid *to, uint32_t scope);
struct cm_moved {
	uint32_t qpn;
	union ibv_gid at;
	uint32_t ids_were, ids_are, ids_mask;
};
void cm_peer_moved(struct cm *cm, uint32_t qpn, const union ibv_gid *from,
		   const struct cm_moved *to);
/* Our communication IDs: cm_config.id_base is another, and the mask is the same. */
void cm_renumber(struct cm *cm, uint32_t id_base);

/* For tests and tools. Connections include closed ones that still answer. */
struct cm_stats {
	size_t conns, listeners;
	uint64_t tx, rx, tx_full, retries, duplicates, dropped;
};
struct cm_stats cm_stats(const struct cm *cm);

#endif
