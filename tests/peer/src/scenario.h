/*
 * scenario.h - the words that scenarios are written in, and the list of them
 */
#ifndef SOFTHCA_TESTS_SCENARIO_H
#define SOFTHCA_TESTS_SCENARIO_H

#include "peer.h"

/* X(function, what it does), in the order of reports. */
/* clang-format off */
#define SCENARIOS(X) \
	X(rc_send, "RC send") \
	X(rc_send_imm, "RC send with immediate") \
	X(rc_write, "RC RDMA write") \
	X(rc_write_imm, "RC RDMA write with immediate") \
	X(rc_read, "RC RDMA read") \
	X(rc_cas, "RC compare and swap") \
	X(rc_faa, "RC fetch and add") \
	X(rc_faa_burst, "RC 64 outstanding fetch and add") \
	X(rc_atomic_write, "RC atomic write") \
	X(rc_reads_1, "RC 32 reads, one outstanding") \
	X(rc_reads_16, "RC 32 reads, 16 outstanding") \
	X(rc_fence, "RC fence after reads and atomics") \
	X(rc_sge, "RC gather and scatter of three pieces") \
	X(rc_zero_sge, "RC gather and scatter with empty pieces") \
	X(rc_zero, "RC write and read of nothing, with an rkey of nothing") \
	X(rc_inline, "RC inline data") \
	X(rc_solicited, "RC solicited events") \
	X(rc_solicited_imm, "RC solicited events, write with immediate") \
	X(rc_unsignaled, "RC unsignaled bursts") \
	X(rc_srq, "RC shared receive queue") \
	X(rc_srq_write_imm, "RC write with immediate, shared receive queue") \
	X(rc_srq_limit, "RC limit of a shared receive queue") \
	X(rc_rnr, "RC receiver not ready, then ready") \
	X(rc_rnr_srq, "the same, shared receive queue") \
	X(rc_rnr_endless, "RC receiver not ready for a second, retried without end") \
	X(rc_rnr_middle, "RC 64 sends, receives come bit by bit") \
	X(rc_mixed, "RC everything outstanding, both ends") \
	X(rc_many_qps, "RC eight QPs at once") \
	X(rc_path, "RC traffic class, hop limit, flow label") \
	X(rc_psn_wrap, "RC PSN wraps at each packet of a message") \
	X(rc_reset, "RC QPs reset and connected again") \
	X(rc_away, "RC an end is suspended for a moment, the other told") \
	X(rc_send_inv, "RC window type 2, send with invalidate") \
	X(rc_local_inv, "RC window type 2, local invalidate") \
	X(rc_mw1, "RC window type 1") \
	X(uc_send, "UC send") \
	X(uc_send_imm, "UC send with immediate") \
	X(uc_write, "UC RDMA write") \
	X(uc_write_imm, "UC RDMA write with immediate") \
	X(uc_inline, "UC inline data") \
	X(uc_solicited, "UC solicited events") \
	X(uc_psn_wrap, "UC PSN wraps at each packet of a message") \
	X(uc_reset, "UC QPs reset and connected again") \
	X(ud_send, "UD send") \
	X(ud_send_imm, "UD send with immediate") \
	X(ud_inline, "UD inline data") \
	X(ud_solicited, "UD solicited events") \
	X(ud_srq, "UD send, shared receive queue") \
	X(err_rkey, "unknown rkey") \
	X(err_rkey_tag, "stale rkey") \
	X(err_bounds, "out of bounds") \
	X(err_mw_bounds, "outside the window, inside the region") \
	X(err_mw_qp, "window type 2 of another QP") \
	X(err_access, "region without permission") \
	X(err_local_mr, "lkey of a local region") \
	X(err_qp_access, "QP without permission") \
	X(err_short_recv, "receive too short") \
	X(err_behind_read, "refused while reads before it are answered") \
	X(err_rd_atomic, "16 reads outstanding, the responder is for one") \
	X(err_recv_lkey, "receive with a bad lkey") \
	X(err_lkey, "send with a bad lkey") \
	X(err_read_lkey, "read into read-only memory") \
	X(err_misaligned, "misaligned atomic") \
	X(err_atomic_write, "atomic write refused") \
	X(err_inv, "invalidate of an unknown key") \
	X(err_rnr, "RNR retries exhausted") \
	X(err_unknown_qp, "unknown QP") \
	X(err_peer_error, "peer's QP in ERR") \
	X(err_wrong_peer, "QP connected to someone else") \
	X(err_events, "events of the responder") \
	X(err_uc_short_recv, "UC receive too short") \
	X(err_uc_no_recv, "UC send without a receive") \
	X(err_uc_unknown_qp, "UC unknown QP") \
	X(err_uc_rkey, "UC write with an unknown rkey") \
	X(err_ud, "UD wrong Q_Key, unknown QP") \
	X(err_ud_no_recv, "UD send without a receive") \
	X(err_ud_short_recv, "UD receive too short") \
	X(iw_mixed, "everything outstanding, both ends") \
	X(iw_sge, "gather and scatter") \
	X(iw_rkey, "unknown or stale rkey") \
	X(iw_bounds, "out of the region's bounds") \
	X(iw_access, "region without permission") \
	X(iw_short_recv, "receive too short for the message") \
	X(iw_no_recv, "no receive posted") \
	X(iw_recv_lkey, "receive with an invalid lkey") \
	X(iw_lkey, "send with an invalid lkey") \
	X(iw_inv, "invalidate of a key that is no window") \
	X(rc_stream, "RC mixed traffic for some seconds") \
	X(victims, "idle QPs for some seconds")
/* clang-format on */

#define X(name, what) void name(void);
SCENARIOS(X)
#undef X

enum who { A, B };

extern char note[512]; /* what the result says */

/* What the ends said about themselves. */
struct side {
	bool rxe, siw;
	bool newer; /* than Linux 6.1, which has no atomic write */
	uint64_t gid_hi, gid_lo;
	uint64_t mtu;
	uint64_t va;
	uint32_t rkey;
	uint64_t rd_atomic;
	uint64_t caps;
};

extern struct side side[2];

/* Attributes that scenarios change before they connect. */
struct conf {
	uint64_t rd_atomic; /* outstanding, as requester */
	uint64_t dest_rd_atomic; /* and as responder */
	uint64_t rnr_timer;
	uint64_t rnr_retry;
	uint64_t retry;
	uint64_t timeout;
	uint64_t access; /* of B's QP */
	uint64_t psn[2];
	uint64_t tclass, hops, flow;
	bool srq; /* B receives through its SRQ */
};

extern struct conf conf;

extern uint32_t qpn[2]; /* of the pair made last */
extern uint64_t qpi[2];
extern uint64_t seed;

/* A work request; what is not given has a sensible value. */
struct work {
	enum ibv_wr_opcode op;
	uint64_t len;
	uint64_t off; /* in the poster's buffer; 0: AT_A */
	uint64_t nsge; /* 0: one, or none without data */
	uint64_t imm;
	uint64_t rkey; /* 0: of the other end's buffer */
	uint64_t raddr; /* 0: AT_B there */
	uint64_t cmp_add, swap;
	unsigned flags; /* signaled is added unless quiet */
	bool quiet;
	uint64_t ah, qkey;
	uint32_t lkey;
};

#define post(...) post_on(A, qpi[A], (struct work){ __VA_ARGS__ })

struct done {
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint64_t len;
	uint64_t imm;
	unsigned flags;
	uint32_t qpn;
	uint64_t wr_id;
	uint32_t src_qp;
	uint64_t pkey_index, slid, path_bits;
};

__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *fmt, ...);
__attribute__((noreturn, format(printf, 1, 2))) void skip(const char *fmt, ...);
__attribute__((format(printf, 1, 2))) void remark(const char *fmt, ...);
__attribute__((format(printf, 2, 3))) struct reply at(enum who who,
						      const char *fmt, ...);
enum ibv_mtu mtu_code(unsigned mtu);
void meet(void);
void to_rtr(enum who w, uint64_t qp, uint32_t dest, uint64_t rq_psn);
void to_rts(enum who w, uint64_t qp, uint64_t sq_psn);
void join(enum who w, uint64_t qp, uint32_t dest, uint64_t sq_psn,
	  uint64_t rq_psn);
void make(enum ibv_qp_type type);
void pair(enum ibv_qp_type type);
void pair_again(enum ibv_qp_type type);
int try_post_on(enum who w, uint64_t qp, struct work k);
void post_on(enum who w, uint64_t qp, struct work k);
void receive(enum who w, uint64_t off, uint64_t len, uint64_t nsge);
bool poll_wc(enum who w, struct done *d, uint64_t ms);
const char *other_end(enum who w);
struct done wait_wc(enum who w, const char *of);
struct done expect(enum who w, enum ibv_wc_status want, const char *of);
struct done quirk_of(enum who guilty, enum who w, enum ibv_wc_status want,
		     enum ibv_wc_status rxe, const char *of);
struct done quirk(enum who w, enum ibv_wc_status want, enum ibv_wc_status rxe,
		  const char *of);
enum ibv_wc_opcode wc_of(enum ibv_wr_opcode op);
void expect_sent(enum who w, enum ibv_wr_opcode op);
bool takes_recv(enum ibv_wr_opcode op);
void judge_received(enum who w, const struct done *d, enum ibv_wr_opcode op,
		    uint64_t len, uint64_t imm);
void expect_received(enum who w, enum ibv_wr_opcode op, uint64_t len,
		     uint64_t imm);
void expect_data(enum who w, uint64_t off, uint64_t len, bool edges);
void expect_cm(enum who w, enum rdma_cm_event_type type);
void expect_arrival(void);
void expect_word(const char *what, uint64_t got, uint64_t want);
void expect_fallen(void);
void expect_receive_ends(enum ibv_wc_status softhca, enum ibv_wc_status rxe);
void expect_flush(void);
size_t sizes(uint64_t *s, uint64_t most);
void one_message(enum ibv_wr_opcode op, uint64_t len, uint64_t nsge,
		 unsigned flags);

/* ---- other files of scenarios */

void rc_op(enum ibv_wr_opcode op);
uint64_t make_ah(enum who w);
void need_windows(enum ibv_mw_type type);
uint64_t bind_window(uint64_t mw, uint64_t off, uint64_t len);

#endif
