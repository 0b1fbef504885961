/*
 * scripted.h - two QPs, scripted losses, and what went over the link
 *
 * For tests of one behaviour at a time: test_loss.c and the files beside it.
 * Each test names what the specification says, drops or forges the packets that
 * bring it about, and looks at completions, events and memory. QP a is on node
 * 0, QP b on node 1; whose memory and keys an operation means is the poster's
 * peer's.
 */
#ifndef SOFTHCA_TESTS_SCRIPTED_H
#define SOFTHCA_TESTS_SCRIPTED_H

#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

struct pair {
	struct sim *sim;
	struct sim_qp *a, *b;
};

struct pair pair_new(enum ibv_qp_type type);
struct pair pair_opts(enum ibv_qp_type type, const struct sim_conn_opts *co);
/* Runs until nothing is left to happen. */
void settle(struct pair *p);

/* Posting and completions. */

/* A work request over [mem + off, +len) of the poster's memory. */
int post(struct sim_qp *q, enum ibv_wr_opcode op, uint32_t off, uint32_t len,
	 uint64_t raddr, uint32_t rkey, unsigned flags);
/* The same to the peer's memory, at the same offset. */
int post_to(struct sim_qp *q, enum ibv_wr_opcode op, uint32_t off,
	    uint32_t len);
int recv_into(struct sim_qp *q, uint32_t off, uint32_t len);
/* An offset in the peer's memory as a remote address. */
uint64_t remote(struct sim_qp *q, uint32_t off);
/* The next completion, which has to have this status. */
void expect(struct sim_wcs *w, enum ibv_wc_status status);
int set_state(struct sim_qp *q, enum ibv_qp_state s);

/* Drops by opcode, and counts packets. */
struct script {
	uint8_t opcode; /* drop packets of this operation */
	int count; /* so many */
	int seen[256]; /* packets handed to the link, by opcode */
	int naks;
};

void script(struct pair *p, struct script *sc);
/* For tests that count packets: each as long as on the wire, SIM_WAY or not.
 * This, and those that script or watch packets, have no request without. */
void packets_of_mtu(struct pair *p);
/* For link.drop. */
bool drop_all(struct sim *s, const struct roce_hdr *h, int from);

/* What was seen on the link, packet by packet. */
struct seen {
	size_t n;
	struct {
		struct roce_hdr h;
		size_t len;
		int from;
	} pkt[4096];
	/* The request with gap[i] is lost when it is sent for time i + 1. */
	uint32_t gap[4];
	unsigned tries[4];
	size_t gaps;
};

struct seen *watch(struct pair *p);
bool is_nak_psn(const struct roce_hdr *h);

/* Forged packets: one without payload to b; an acknowledgement to a. */
void b_gets(struct pair *p, struct roce_hdr h);
void answer(struct pair *p, uint32_t psn, uint8_t syndrome, uint32_t msn);

/* For env.dropped: counts by reason why packets do nothing. */
extern uint64_t drops[ROCE_DROPS];
void count_drops(struct qp *qp, enum roce_drop why);

/* Within the host: what each sends travels so. */
struct pair host_opts(const struct sim_conn_opts *co, enum sim_way ab,
		      enum sim_way ba);
struct pair host_pair(void);
void sim_pattern(uint8_t *p, size_t n, uint32_t seed);

/* A source that notes how it is asked. */
struct noting {
	struct qp_source base;
	const uint8_t *data;
	struct note {
		unsigned calls;
		size_t n;
		struct iovec to[QP_MAX_SGE + 1];
		uint64_t offset[4];
		int err;
	} * note;
};

int noting_read(const struct qp_source *base, uint64_t offset,
		const struct iovec *to, size_t n);
/* What such sources have, or forged packets that need no more. */
extern uint8_t some_data[300000];

#endif
