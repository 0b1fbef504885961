/*
 * sim.h - a simulated network for the protocol core
 *
 * Two nodes, each with its own memory, keys, completion lists and queue pairs,
 * joined by a link that loses, duplicates, delays and corrupts packets. The
 * clock is virtual and one seeded generator makes every choice, so a run is
 * repeated exactly by its seed.
 *
 * SIM_WAY in the environment says how packets travel (enum sim_way), so that
 * what is tested of the core over UDP is also tested within the host.
 */
#ifndef SOFTHCA_TESTS_SIM_H
#define SOFTHCA_TESTS_SIM_H

#include "base/pool.h"
#include "roce/qp.h"
#include "roce/timewait.h"

#include <stdbool.h>
#include <stdint.h>

/* The fuzzer makes many small networks. */
#ifndef SIM_MEM
#define SIM_MEM (4u << 20) /* bytes of registered memory per node */
#define SIM_WCS 65536
#endif
#define SIM_QPS 16
#define SIM_SPORT 49152 /* UDP source port of all that is sent */
#define SIM_XRC_SRQN 77 /* the number of each node's SRQ */

enum sim_way {
	SIM_UDP, /* "udp": as on the wire, which is the default */
	SIM_HOST, /* "host": large packets, payload read where it is */
	SIM_COPY, /* "copy": large packets that have their payload with them */
	SIM_REF, /* "ref": packets of the MTU, payload read where it is */
	SIM_MIXED, /* "mixed": each batch another, or each direction */
};
/* And "direct": as "host", but one-sided operations need no packets. */

struct sim_rng {
	uint64_t state;
};

uint64_t sim_rand(struct sim_rng *r);
/* 0 .. n-1 */
uint32_t sim_below(struct sim_rng *r, uint32_t n);
bool sim_chance(struct sim_rng *r, double p);

struct sim_wcs {
	size_t n, read;
	struct ibv_wc wc[SIM_WCS];
	bool solicited[SIM_WCS];
};

struct sim_node;

struct sim_qp {
	struct sim_node *node;
	struct roce_qp *qp; /* NULL: destroyed, or of another transport */
	bool left; /* something of it, which is: */
	struct roce_timewait timewait;
	struct qp_public *pub; /* outlives qp, as a segment's does */
	uint32_t remote_generation, remote_hint; /* see qp/direct.h */
	struct sim_qp *peer;
	struct sim_wcs *send, *recv;
	uint64_t release_ns; /* when an ACK that is held leaves; 0: none is */
	uint32_t events; /* 1 << enum ibv_event_type */
	bool forged; /* it has got packets that its peer has not sent */
	unsigned explained; /* how often something was, */
	char words[512]; /* and the last time */
};

struct sim_node {
	struct sim *sim;
	struct roce_env env;
	struct pool reorder; /* memory that it lends */
	struct keys keys;
	struct keys_shown shown;
	struct key_shown *shown_keys;
	union ibv_gid gid;
	uint8_t *mem;
	int slot; /* of the region that covers mem */
	uint32_t lkey, rkey;
	struct sim_qp qp[SIM_QPS];
	struct qp_public pub[SIM_QPS];
	size_t nqp;
	uint32_t next_qpn;
	struct qp_rq srq;
	bool away; /* suspended, since and until by the network's clock; */
	uint64_t away_ns, back_ns;
	uint64_t behind_ns; /* its own, which stood still so long, is behind */
};

struct sim_link {
	double loss, dup, corrupt;
	double reorder; /* share of packets that take a detour */
	uint64_t delay_ns;
	uint64_t jitter_ns; /* of those that take a detour */
	double busy; /* chance that the link takes only a part */
	/* The slowest place on the way there, and on the way back. */
	uint64_t rate; /* bytes per second; 0: none is slow */
	uint64_t queue; /* bytes that may wait there, others are lost */
	uint64_t mark; /* who waits behind more is marked; 0: nobody */
	/* Scripted: called for each packet sent; true: drop it. */
	bool (*drop)(struct sim *sim, const struct roce_hdr *h, int from);
	/* Watches each packet handed to the link. */
	void (*tap)(struct sim *sim, const struct roce_hdr *h, size_t payload,
		    int from);
};

/* Each node's QPs are of as many processes, which share its processor. */
struct sim_turns {
	uint64_t ns; /* that each runs, one after the other; 0: all at once */
	uint32_t n; /* of them */
};

struct sim {
	uint64_t now;
	uint64_t seed;
	struct sim_rng rng;
	struct sim_node node[2];
	struct sim_link link;
	struct sim_turns turns; /* of SIM_UDP alone */
	enum sim_way way[2]; /* of what node 0, 1 sends */
	struct sim_rng ways; /* what is chosen because of them */
	uint32_t max_payload, max_copy; /* of the large ones */
	double unreadable; /* chance that payload cannot be read, or copied;
			    * it is left half written */
	int read_error; /* then; 0: either that there is */
	double direct; /* share of one-sided operations that are carried out
			* by their initiator, if they can be, */
	double many; /* and chance that small ones are said to be many */
	uint64_t direct_copies;
	uint64_t reads; /* of payload that is elsewhere */
	double hold; /* chance that an ACK may be held, */
	uint64_t hold_ns; /* so long at most */
	/* Before piece i of one is read. */
	void (*in_read)(struct sim *sim, size_t i);
	struct sim_event *heap;
	size_t nheap, heap_cap;
	uint64_t next_id;
	uint64_t free_ns[2]; /* when the slowest place towards 0, 1 is idle */
	uint64_t packets, dropped, overflows, marked;
	void *user;
	bool verbose;
};

struct sim *sim_new(uint64_t seed);
void sim_free(struct sim *s);

struct sim_qp_opts {
	enum ibv_qp_type type;
	struct ibv_qp_cap cap;
	bool sig_all;
	bool srq;
};

struct sim_qp *sim_qp_new(struct sim *s, int node,
			  const struct sim_qp_opts *opts);
/* All of it but the core's QP, whichever transport that has; and how one is
 * created for it. */
struct sim_qp *sim_qp_slot(struct sim *s, int node);
struct qp_init sim_qp_init(struct sim_qp *q, const struct sim_qp_opts *opts);

/* The rkey of a new window of type 2, not bound. */
uint32_t sim_mw_new(struct sim_node *n);
bool sim_mw_bound(struct sim_node *n, uint32_t rkey);

/* Attributes used by sim_connect(); change before calling it. */
struct sim_conn_opts {
	enum ibv_mtu mtu;
	uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer;
	uint8_t rd_atomic, dest_rd_atomic;
	uint32_t psn_a, psn_b;
	unsigned access;
};

extern const struct sim_conn_opts sim_conn_default;
void sim_connect(struct sim_qp *a, struct sim_qp *b,
		 const struct sim_conn_opts *o);
/*
 * The responder of an XRC_RECV QP goes on in a new QP of the same number, if it
 * is between two messages. What was saved of atomics stays behind.
 */
void sim_qp_move(struct sim_qp *q);
/* Destroys a QP; what is left of it goes on answering. */
void sim_qp_leave(struct sim_qp *q);
void sim_ud_up(struct sim_qp *q, uint32_t qkey);
struct roce_path sim_path(struct sim_node *from, struct sim_node *to);

/* Posts and pulls packets, unless they may wait (roce_tx_coalesce()). */
int sim_post_send(struct sim_qp *q, const struct ibv_send_wr *wr);
int sim_post_recv(struct sim_qp *q, const struct ibv_recv_wr *wr);
/* Drains what a QP has to send onto the link. */
void sim_pull(struct sim_qp *q);

/* The first time from at on when q's process runs. */
uint64_t sim_turn(const struct sim_qp *q, uint64_t at);

/* Runs until nothing is left to happen, or the clock has moved by ns. */
void sim_run(struct sim *s, uint64_t ns);
/* The next thing happens; false: nothing is left. */
bool sim_step(struct sim *s);
/*
 * The process of a node is suspended for ns (src/migrate): what is on its way
 * within the host it takes first, what comes by UDP is lost, nothing of it leaves,
 * and its clock stands still.
 */
void sim_suspend(struct sim *s, int node, uint64_t ns);
/* What time it is for a node. */
uint64_t sim_now(const struct sim_node *n);
/* Puts raw bytes (BTH on, without ICRC) on the link towards a node. */
void sim_inject(struct sim *s, int to, const uint8_t *bytes, size_t len);

/* The next completion not yet looked at, or NULL. */
const struct ibv_wc *sim_poll(struct sim_wcs *w);

#define SIM_SEC 1000000000ull

#endif
