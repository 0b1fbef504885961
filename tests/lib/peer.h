/*
 * peer.h - what the test clients share: control channels between two ends, by
 * TCP or from parent to child, and the usual way to a device and a connected QP
 *
 * The clients are ordinary verbs programs: they use public headers only and
 * run over any RDMA device. Every wait is bounded; a failure that is not the
 * subject of a test ends the process through die().
 */
#ifndef SOFTHCA_TESTS_LIB_PEER_H
#define SOFTHCA_TESTS_LIB_PEER_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXIT_DATA 1 /* wrong data or wrong result */
#define EXIT_SETUP 2 /* could not get as far as the test */
#define EXIT_WC 3 /* a work completion with an error */

void die(int code, const char *fmt, ...)
	__attribute__((noreturn, format(printf, 2, 3)));

/* Monotonic clock. */
uint64_t now_ns(void);

/* VmRSS of this process in KiB. */
long rss_kib(void);

/* A random number below a bound. A program may set rng, to anything but 0. */
extern uint64_t rng;
uint32_t rnd(uint32_t below);

/* One end of the control channel: NULL as host waits for the other end. */
int ctrl_open(const char *host, int port, int wait_s);
void ctrl_put(int fd, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* The next line without its newline, or NULL when the other end has gone or
 * wait_ms passed without a line (errno ETIMEDOUT). Static storage. */
const char *ctrl_get(int fd, int wait_ms);

/* One datagram of a socket pair. An end that has gone shows in word_get(), which
 * returns false then (errno ECONNRESET), or after wait_ns (ETIMEDOUT). */
void word_put(int fd, const void *word, size_t size);
bool word_get(int fd, void *word, size_t size, uint64_t wait_ns);

/* A process that has one end of a socket pair, and this one the other: it runs
 * fn(its end), and does not outlive this one. */
struct end {
	pid_t pid;
	int fd;
};

void end_start(struct end *e, int (*fn)(int fd));

struct dev {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	union ibv_gid gid;
	int gid_index;
};

void dev_open(struct dev *d, const char *name, int gid_index);

/* What one end must know of the other. */
struct remote {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
	union ibv_gid gid;
	unsigned mtu; /* enum ibv_mtu */
};

void remote_put(int fd, const struct remote *r);
void remote_get(int fd, struct remote *r);

struct conn_opts {
	unsigned mtu; /* enum ibv_mtu */
	uint8_t timeout; /* RC: local ACK timeout exponent */
	uint8_t retry_cnt, rnr_retry;
	uint8_t rd_atomic; /* depth in both directions */
	unsigned access; /* of the QP, IBV_ACCESS_* */
	uint32_t qkey; /* UD */
};

/* RC, with one CQ; one SGE per receive. */
struct ibv_qp *qp_create_rc(struct ibv_pd *pd, struct ibv_cq *cq,
			    uint32_t sends, uint32_t recvs, uint32_t send_sges);
void qp_to_init(struct ibv_qp *qp, const struct conn_opts *o);
/* INIT to RTS. */
void qp_connect(struct dev *d, struct ibv_qp *qp, uint32_t psn,
		const struct remote *r, const struct conn_opts *o);
void recv_post(struct ibv_qp *qp, const struct ibv_mr *mr, void *to,
	       uint32_t len, uint64_t wr_id);
struct ibv_ah *ah_create(struct dev *d, const struct remote *r);

#endif
