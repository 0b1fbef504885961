/*
 * peer.h - what both ends are: options, one end's interpreter, their connection
 */
#ifndef SOFTHCA_TESTS_PEER_H
#define SOFTHCA_TESTS_PEER_H

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <getopt.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BUF_LEN (8u << 20)
#define GUARD 64u
#define QKEY 0x11223344u
#define MAX_OBJ 64
#define MAX_ARGS 24
#define ZERO_PIECES 0x10u /* in place of nsge: four, two of them empty */
#define LINE_MAX_LEN 1024
#define EXIT_SKIP 77
/* IB_UVERBS_DEVICE_ATOMIC_WRITE, which older headers do not have. */
#define CAP_ATOMIC_WRITE (1ull << 40)

/* Offsets into the buffer: what A works on, what B works on. */
#define AT_A 0x100000u
#define AT_B 0x100000u

extern const char *opt_dev, *opt_addr, *opt_other, *opt_server, *opt_port;
extern unsigned opt_mtu, opt_seconds;
extern bool opt_lossy, opt_ordered, opt_verbose;
extern bool opt_iwarp; /* connections are rdma_cm's, */
extern unsigned opt_cm_port; /* where that listens */

/* What an end has. */
struct end {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	uint8_t *buf;
	struct ibv_mr *mr[MAX_OBJ];
	struct ibv_mw *mw[MAX_OBJ];
	struct ibv_qp *qp[MAX_OBJ];
	struct ibv_ah *ah[MAX_OBJ];
	unsigned nmr, nmw, nqp, nah;
	int gid_index;
	union ibv_gid gid;
	struct ibv_port_attr port;
	struct ibv_device_attr attr;
	uint64_t caps;
};

extern struct end here;

struct reply {
	uint64_t v[MAX_ARGS];
	int n;
	char err[256]; /* empty: it went well */
	bool unsupported;
};

/* ---- end.c */

void refuse(struct reply *r, int err, const char *what);
void answer(struct reply *r, uint64_t v);
bool in_buf(uint64_t off, uint64_t len);
int gid_of(const char *addr, union ibv_gid *gid);
int open_end(void);
enum kind { SOFTHCA, RXE, SIW };
enum kind kind_of_device(void);
struct ibv_qp *qp_of(uint64_t i, struct reply *r);
void interpret(char *line, struct reply *r);

/* ---- end_work.c */

void do_recv(const uint64_t *a, struct reply *r);
void do_post(const uint64_t *a, struct reply *r);
void do_write(const uint64_t *a, struct reply *r);
uint64_t now_ms(void);
void do_wc(const uint64_t *a, struct reply *r);
void do_bind(const uint64_t *a, struct reply *r);
void do_fill(const uint64_t *a, struct reply *r);
void do_guard(const uint64_t *a, struct reply *r);
void do_check(const uint64_t *a, struct reply *r);
void do_get(const uint64_t *a, struct reply *r);
void do_put(const uint64_t *a, struct reply *r);
void do_arm(const uint64_t *a, struct reply *r);
void do_event(const uint64_t *a, struct reply *r);
void do_async(const uint64_t *a, struct reply *r);

/* ---- end_away.c */

/* How many connections there are, and whose peer would wait; suspended and resumed,
 * with the peers told. */
void do_peers(const uint64_t *a, struct reply *r);
void do_away(const uint64_t *a, struct reply *r);

/* ---- end_cm.c */

struct ibv_context *open_by_cm(void);
void do_listen(const uint64_t *a, struct reply *r);
void do_connect(const uint64_t *a, struct reply *r);
void do_accept(const uint64_t *a, struct reply *r);
void do_cm(const uint64_t *a, struct reply *r);

/* ---- talk.c */

extern FILE *from_peer, *to_peer;
int talk_over(int fd);
int tcp(bool server);
__attribute__((noreturn)) void server(void);

#endif
