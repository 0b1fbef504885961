/*
 * replay.h - both halves of captured conversations, played by our core
 *
 * For tests: replay_streams.c sorts the packets of a capture into conversations,
 * replay_responder.c (with replay_by_psn.c), replay_requester.c and
 * replay_unreliable.c each play halves of them against our core, whose end is in
 * replay_player.c; replay_effects.c checks what arrived. test_replay.c says what
 * is compared.
 */
#ifndef SOFTHCA_TESTS_REPLAY_H
#define SOFTHCA_TESTS_REPLAY_H

#include "capture.h"

#include "base/bytes.h"
#include "roce/qp.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_WRS 8192
#define MAX_REGIONS 256
#define RQ_BYTES (2u << 20)
#define ACCESS_ALL                                                             \
	(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |                    \
	 IBV_ACCESS_REMOTE_ATOMIC)

/* Room for one more at the end of an array of n. */
#define MORE(array, n, cap)                                                    \
	do {                                                                   \
		if ((n) == (cap)) {                                            \
			(cap) = (cap) ? 2 * (cap) : 64;                        \
			(array) = realloc(array, (cap) * sizeof(*(array)));    \
			assert_non_null(array);                                \
		}                                                              \
	} while (0)

extern const char *current; /* name of the capture that is played */

/* Why packets are not compared. X(name, since the capture lacks some, words) */
#define CUTS(X)                                                                \
	X(HOLE, true, "behind an answer to a request that the capture lacks")  \
	X(BEGUN, true, "the capture begins in the middle of a message")        \
	X(TORN, true, "of a message that the capture lacks packets of")        \
	X(LATE, false, "come again, or late: done before")                     \
	X(RESUMED, false, "a read asked for again from its middle on")         \
	X(BEHIND_RNR, false, "a sequence NAK behind an RNR NAK")               \
	X(FOREIGN, true, "answers to requests that the capture lacks")

enum cut {
#define X(name, lack, words) CUT_##name,
	CUTS(X)
#undef X
		NCUTS
};

/* Of one capture, or of all. */
struct tally {
	size_t conversations, compared, cut[NCUTS];
	size_t unheard; /* requests that nobody answers */
	size_t by_psn; /* conversations, see play_by_psn() */
};
extern struct tally tally;

struct pkt {
	const struct captured *c;
	struct roce_hdr h;
	uint32_t flags;
	const uint8_t *payload;
	size_t len;
	size_t at; /* place in the file */
};

/* Packets of one direction of a connection. */
struct stream {
	union ibv_gid src, dst;
	uint32_t qpn; /* they are sent to */
	uint32_t src_qpn, qkey; /* UD */
	bool requests;
	size_t n, cap;
	struct pkt *pkt;
};

struct streams {
	size_t n, cap;
	struct stream *s;
};

struct region {
	uint32_t rkey; /* in the capture */
	uint64_t start, end;
	uint8_t *mem;
	int slot;
	uint32_t lkey, our_rkey;
};

struct outcome {
	size_t n, cap;
	struct sent {
		struct roce_hdr h;
		uint32_t flags;
		size_t hdr_len, len;
		uint8_t hdr[ROCE_HDR_MAX];
		uint8_t *data;
	} * pkt;
};

struct player {
	struct roce_env env;
	struct keys keys;
	struct roce_qp *qp;
	struct region region[MAX_REGIONS];
	size_t nregions;
	size_t nwc, wc_cap, nrecv;
	struct ibv_wc recv_wc; /* of the latest receive, */
	bool recv_solicited;
	struct ibv_wc *wc;
	uint32_t pd_lkey;
	uint8_t *rq_mem;
	uint64_t now;
	uint32_t mtu;
	struct outcome out;
};

/* Whose packets a stream holds. */
enum side {
	CONNECTION, /* one direction of a connection */
	UD_SENDER, /* a QP's datagrams, whoever gets them */
	UD_RECEIVER /* those to a QP, whoever sends them */
};

/* A QP of ours in RTS. */
struct player_opts {
	enum ibv_qp_type type;
	uint32_t qpn, peer_qpn, mtu, sq_psn, rq_psn, qkey;
	unsigned access;
	uint8_t rnr_timer;
	const union ibv_gid *us, *them;
};

extern struct player *P; /* the only one */

/* ---- replay.c */

#define REPLAY_HALVES 6

/*
 * Plays one half of the conversations of a capture; fails the test when a packet
 * is not what ours would be, or is not accounted for. The name says whether the
 * capture is complete, see capture_complete().
 */
void replay(const struct captures *caps, const char *name, size_t half);
const char *replay_name(size_t half);
bool replay_any(const struct captures *caps, size_t half); /* to play */
void replay_totals(void);

/* ---- replay_streams.c */

size_t split(const struct captures *caps, struct streams *s,
	     enum roce_service service, enum side side);
uint32_t span_of(const struct pkt *p, uint32_t mtu);
struct stream *answers(struct stream *s, size_t n, const struct stream *r,
		       const bool *taken);
void cut_at_hole(struct stream *r, struct stream *s, uint32_t mtu,
		 size_t *requests, size_t *replies);
uint32_t mtu_of(const struct stream *a, const struct stream *b);
bool is_nak(const struct pkt *p, uint8_t code);
bool is_rnr(const struct pkt *p);
bool is_fatal(const struct pkt *p);
int by_psn(const void *a, const void *b);
bool asked_before(const struct stream *r, size_t i);
bool refused_access(const struct stream *s, uint32_t psn);

/* ---- replay_player.c */

void add_key(struct region *g, uint64_t iova);
struct roce_path path_of(const union ibv_gid *us, const union ibv_gid *them);
void player_new(const struct player_opts *o);
void forget_sent(void);
void player_free(void);
void pull(void);
void feed(const struct pkt *p, struct roce_hdr h);
void differ(const struct pkt *want, size_t i, const char *what);
struct region *region_of(uint32_t rkey);
void make_regions(const struct stream *r, const struct stream *s);
void post_one_recv(size_t *posted);

/* ---- replay_effects.c */

void check_receive(const struct pkt *p, size_t n, size_t grh);
void check_written(const struct pkt *p, size_t n);
bool needs_recv(const struct pkt *last);
void check_effect(const struct stream *r, size_t i, size_t nrecv);

/* ---- replay_responder.c */

size_t cut_unheard(struct stream *r, const struct stream *s);
void prefill(const struct pkt *p, const struct stream *s, uint32_t mtu);
void check_answer(const struct stream *r, const struct pkt *w, size_t i,
		  uint32_t msn);
struct roce_hdr with_our_keys(const struct pkt *p, const struct stream *s);
void play_responder(const struct stream *r, struct stream *s);

/* ---- replay_by_psn.c */

bool seen_elsewhere(const struct stream *r, const struct stream *s,
		    uint32_t mtu);
void play_by_psn(const struct stream *r, const struct stream *s, uint32_t mtu);

/* ---- replay_requester.c */

bool post_message(const struct stream *r, size_t i, uint8_t *buf, size_t *used,
		  uint32_t lkey, bool refused);
void play_requester(const struct stream *captured, struct stream *s);

/* ---- replay_unreliable.c */

void play_sender(struct stream *r, enum ibv_qp_type type);
void play_uc_receiver(struct stream *r);
void play_ud_receiver(struct stream *r);

#endif
