/*
 * cm_internal.h - what the files of src/cm share
 */
#ifndef SOFTHCA_CM_INTERNAL_H
#define SOFTHCA_CM_INTERNAL_H

#include "cm.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/hash64.h"

#include <errno.h>

#define CM_TX_QUEUE 256
#define CM_LINGER_NS UINT64_C(10000000000) /* answering late duplicates */
#define CM_LINGER_MAX 4096
#define CM_REFUSED_RETRY 14 /* 67 ms, to begin with */
#define CM_HURRIED_RETRY 13 /* 34 ms */
#define CM_SWEEP_NS UINT64_C(10000000)
#define CM_DEAD_NS UINT64_C(10000000000) /* no grace for the next request */
#define CM_MRA_TIMEOUT 20 /* what we ask for with MRA: 4.3 s, */
#define CM_MAX_MRAS 250 /* again and again */
#define CM_MAX_TIMEOUT 24 /* what a peer may make us wait at a time: 69 s */

/* A chained hash table of things that contain a struct hlink. */
struct hlink {
	struct hlink *next;
	uint64_t hash;
};

struct htable {
	struct hlink **bucket;
	size_t size; /* power of two */
	size_t count;
};

#define cm_conn_of(h, member)                                                  \
	((struct cm_conn *)(void *)((char *)(h)-offsetof(struct cm_conn,       \
							 member)))

struct cm_conn {
	enum cm_state state;
	bool active;
	bool sidr;
	bool closed; /* the user has let go of it */
	bool mra; /* we have sent one */
	bool hurried; /* cm_hurry() */
	bool quiet; /* TIMEWAIT just to answer duplicates: no event at its end
		     */
	struct roce_path path;
	uint64_t service_id;
	uint32_t local_id, remote_id;
	uint32_t local_qpn, remote_qpn; /* as messages name them; and */
	uint32_t wire_qpn; /* the peer's as it is by now */
	enum ibv_qp_type qp_type; /* of our end */
	uint64_t tid; /* of the exchange under way */
	uint8_t ack_timeout;
	void *user;
	int place; /* of the peer, cm_config.place(), or negative */
	bool missed; /* that process has been found gone once */

	/* Where it is found; see find.c. */
	struct hlink by_id, by_remote, by_qpn;
	bool in_remote, in_qpn;

	/* The message that waits for an answer, or may be asked for again. */
	uint8_t last[MAD_LEN];
	uint8_t max_retries, retries;
	uint8_t mras; /* received */
	uint64_t patience_ns, max_patience_ns;
	uint64_t refused_ns; /* when first heard that it did not arrive; or 0 */

	uint64_t due;
	size_t heap_pos; /* + 1; 0: no timer */
};

struct cm_listener {
	struct cm_listener *next;
	uint64_t service_id;
	union ibv_gid gid;
	bool any;
	unsigned families;
	void *user;
};

#define CM_LISTEN_BUCKETS 256

struct cm {
	struct cm_config cfg;
	uint32_t next_id;
	uint32_t tid_high;
	struct htable by_id; /* local ID */
	struct htable by_remote; /* passive: the peer's ID and address */
	struct htable by_qpn; /* the peer's QPN and address */
	struct cm_listener *listeners[CM_LISTEN_BUCKETS];
	struct cm_conn **heap;
	size_t heap_len, heap_size;
	size_t lingering;
	/* The last destination that was given up, and the last one whose
	 * requests were all looked at; and when. See cm_unreachable(). */
	union ibv_gid dead_gid, swept_gid;
	uint64_t dead_ns, swept_ns;
	struct cm_mad *txq;
	size_t tx_head, tx_len;
	struct cm_stats stats;
};

/* A message on its way through the state machine. */
struct cm_in {
	const struct mad *m;
	const union ibv_gid *sgid, *dgid;
	uint32_t scope;
	uint64_t now_ns;
};

/* find.c */
struct cm_conn *cm_conn_new(struct cm *cm, const struct roce_path *path,
			    void *user);
void cm_conn_free(struct cm *cm, struct cm_conn *c);
/* peer: NULL for any. */
struct cm_conn *cm_conn_by_id(struct cm *cm, uint32_t id,
			      const union ibv_gid *peer);
struct cm_conn *cm_conn_by_remote(struct cm *cm, uint32_t id, bool sidr,
				  const union ibv_gid *peer);
struct cm_conn *cm_conn_by_qpn(struct cm *cm, uint32_t qpn,
			       const union ibv_gid *peer);
int cm_conn_add_remote(struct cm *cm, struct cm_conn *c);
int cm_conn_add_qpn(struct cm *cm, struct cm_conn *c);
/* The peer may use its QP for another connection from now on. */
void cm_conn_forget_qpn(struct cm *cm, struct cm_conn *c);
void cm_conn_forget(struct cm *cm, struct cm_conn *c);
/* The peer's ID is known. */
void cm_conn_place(struct cm *cm, struct cm_conn *c, uint32_t remote_id);
/* The connection is over: nothing more will happen to it. */
void cm_conn_end(struct cm *cm, struct cm_conn *c);
/* It is over but answers duplicates with the last message for a while. */
void cm_conn_linger(struct cm *cm, struct cm_conn *c, uint64_t now_ns);

/* retry.c */
/* UINT64_MAX: none. */
void cm_conn_timer(struct cm *cm, struct cm_conn *c, uint64_t due);
void cm_send(struct cm *cm, const struct roce_path *path, struct mad *m);
/* Sends and keeps the message, so that it can be sent again. */
void cm_conn_send(struct cm *cm, struct cm_conn *c, struct mad *m);
void cm_conn_resend(struct cm *cm, struct cm_conn *c);
/* As cm_conn_send(), and repeats it until the state changes. */
void cm_conn_ask(struct cm *cm, struct cm_conn *c, struct mad *m,
		 uint64_t now_ns);
/* Repeats it: false if that would be in vain. */
bool cm_conn_again(struct cm *cm, struct cm_conn *c, uint64_t now_ns);

/* cm.c */
struct cm_listener *cm_listener_find(struct cm *cm, uint64_t service_id,
				     const union ibv_gid *gid);
int cm_emit(struct cm *cm, struct cm_event *ev);
void cm_reverse_path(struct roce_path *path, const struct cm_in *in,
		     uint8_t tclass, uint8_t hop_limit, uint32_t flow_label);
int cm_copy_data(uint8_t *to, size_t max, const void *data, size_t len);

static inline uint64_t cm_timeout_ns(unsigned n)
{
	return UINT64_C(4096) << (n > CM_MAX_TIMEOUT ? CM_MAX_TIMEOUT : n);
}

/* conn.c */
void cm_conn_expire(struct cm *cm, struct cm_conn *c, uint64_t now_ns);
void cm_conn_close(struct cm *cm, struct cm_conn *c, uint64_t now_ns);
void cm_conn_ids(uint32_t *local, uint32_t *remote, const struct cm_conn *c);
int cm_send_rej(struct cm *cm, struct cm_conn *c, unsigned reason,
		const void *ari, size_t ari_len, const void *data, size_t len);
int cm_send_dreq(struct cm *cm, struct cm_conn *c, const void *data, size_t len,
		 uint64_t now_ns);
int cm_send_drep(struct cm *cm, struct cm_conn *c, uint64_t tid,
		 const void *data, size_t len, uint64_t now_ns);
void cm_timewait(struct cm *cm, struct cm_conn *c, uint64_t now_ns);
void cm_established(struct cm *cm, struct cm_conn *c, const uint8_t *data,
		    size_t len);

/* The peer's REQ or REP has come, and either end may still reject. */
static inline bool cm_conn_pending(const struct cm_conn *c)
{
	switch (c->state) {
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		return true;
	default:
		return false;
	}
}

/* conn_rx.c */
void cm_conn_rx(struct cm *cm, const struct cm_in *in);
/* The peer's process, on this host, has ended. */
void cm_conn_gone(struct cm *cm, struct cm_conn *c, uint64_t now_ns);

/* sidr.c */
void cm_sidr_rx(struct cm *cm, const struct cm_in *in);
void cm_sidr_expire(struct cm *cm, struct cm_conn *c, uint64_t now_ns);
void cm_sidr_close(struct cm *cm, struct cm_conn *c, uint64_t now_ns);

#endif
