/*
 * rsock_internal.h - rsockets, as their parts see them
 *
 *	rsocket.c   public functions
 *	table.c     from descriptors to rsockets, references, fork()
 *	addr.c      addresses
 *	opt.c       options, and the configuration they start from
 *	poll.c      waiting, rpoll()
 *	restart.c   which signals end a sleep
 *
 *	stream.c    streams: identifier, queue pair, buffers
 *	conn.c      connecting and accepting
 *	queue.c     messages, credits, completions
 *	data.c      bytes from and to programs
 *	shutdown.c  how a stream ends
 *	linger.c    the thread that ends closed streams
 *	alive.c     the thread behind SO_KEEPALIVE
 *	iomap.c     riomap(), riowrite()
 *	wire.c      formats, also of datagrams
 *
 *	dgram.c     datagrams; with dgram_qp.c and dgram_dest.c, see dgram.h
 *
 * All of it stands on the public functions of <rdma/rdma_cma.h> and
 * <infiniband/verbs.h>: nothing in here includes a header of src/rdmacm, but
 * tcp_port.h, the numbers of two options. Of libsofthca it uses os/handlers.h
 * alone, which knows the handlers that are the program's.
 *
 * Locks, in this order: slock (one sender at a time; owns the write position in
 * the send buffer and everything about mappings), rlock (one receiver at a
 * time; owns the read position), lock (everything else, held for moments:
 * never while sleeping or copying data).
 *
 * Only a thread that sleeps takes events off a descriptor, and then it wakes
 * all others that sleep on the same rsocket: they are its watchers.
 */
#ifndef SOFTHCA_RSOCKETS_INTERNAL_H
#define SOFTHCA_RSOCKETS_INTERNAL_H

#include "rsockets/wire.h"

#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

#ifndef AF_IB
#define AF_IB 27
#endif

#define RSOCK_MIN_QUEUE 16 /* entries of SQ and RQ */
#define RSOCK_MAX_QUEUE 0xfffe
#define RSOCK_CTRL 4 /* entries of the SQ that data may not use */
#define RSOCK_CTRL_RQ 8 /* and of the RQ, behind those granted */
#define RSOCK_SNDLOWAT 2048u /* free bytes that make a stream writable */
#define RSOCK_TRANSFER 65536u /* most bytes in one RDMA write */
#define RSOCK_MAX_BUF (1u << 30)

enum rsock_state {
	RSOCK_INIT,
	RSOCK_BOUND,
	RSOCK_LISTENING,
	RSOCK_RESOLVING, /* the address */
	RSOCK_ROUTING,
	RSOCK_CONNECTING,
	RSOCK_ACCEPTING, /* accepted, the peer does not know yet */
	RSOCK_CONNECTED,
	RSOCK_DISCONNECTED,
	RSOCK_FAILED,
};

struct rsock;

/* A thread that sleeps on an rsocket, in its list under its lock. */
struct rsock_watch {
	struct rsock_watch *next, **link;
	int efd;
};

/* A buffer given to riomap(). Under slock. */
struct rsock_map {
	struct rsock_map *next;
	struct ibv_mr *mr; /* NULL: unmapped, and the peer must be informed */
	uint64_t offset;
	int index; /* in the peer's table, or -1: for this side only */
	bool pending; /* the peer's entry must be written */
};

/* A connection request that raccept() has not taken. */
struct rsock_request {
	struct rsock_request *next;
	struct rdma_cm_id *id;
	struct rsw_conn conn;
};

struct rsock_stream {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	union rsw_addr dst;
	unsigned tries;
	void *route; /* RDMA_ROUTE, until it is used */
	size_t route_len;

	struct rsock_request *requests; /* of a listener, oldest first */
	unsigned nrequests, backlog;

	struct ibv_comp_channel *cc;
	struct ibv_cq *cq;
	bool armed;
	unsigned unacked; /* events of cc */
	unsigned idle_polls;

	bool rd_open; /* the peer may send, and we want it */
	bool wr_open;
	bool end_sent; /* the peer knows that we send no more */
	bool gone; /* the peer's queue pair is, or will be at once */
	bool reset; /* and it closed without a shutdown */
	bool swap;
	bool plain; /* there is no immediate data, see queue.c */

	/* receiving */
	uint8_t *rbuf; /* a ring of two halves, granted to the peer in turn */
	struct ibv_mr *rmr;
	uint32_t half;
	uint32_t rpos; /* next byte to read (rlock) */
	uint32_t grant_pos; /* next half to grant */
	uint32_t freed; /* bytes read and not granted again */
	uint32_t next_recv; /* plain: the slot of the next receive */
	uint32_t writable; /* bytes granted that the peer has not written */
	uint32_t *rmsg; /* a ring: lengths of what it has written */
	uint32_t rmsg_head, rmsg_count;
	uint32_t unread; /* bytes in them */
	uint16_t rseq; /* messages taken out of rmsg, in all */
	uint16_t rseq_limit; /* the peer may send up to here */
	struct rsw_sge peer_table; /* length in entries */
	uint32_t peer_slot; /* where the next grant goes */

	/* sending */
	uint8_t *sbuf; /* a ring */
	struct ibv_mr *smr;
	uint32_t spos; /* next byte to fill (slock) */
	uint32_t sfree; /* bytes */
	uint32_t sq_free;
	unsigned ctrl_out; /* control messages under way, of RSOCK_CTRL */
	unsigned ctrl_next;
	uint16_t sseq, sseq_limit;
	struct rsw_sge *table; /* the peer writes: buffers, then mappings */
	struct ibv_mr *table_mr;
	struct rsw_sge target; /* where data goes now */
	uint32_t table_slot; /* which entry comes next */
	bool table_news;

	/* mappings: ours in the peer's table, and the peer's in ours */
	struct rsock_map *maps;
	bool maps_pending;
	uint32_t peer_iomaps;
	bool *index_used;
};

struct rsock_dgram_qp;
struct rsock_dest;
struct rsock_packet;

struct rsock_dgram {
	int udp; /* the descriptor of the rsocket */
	int epfd;
	bool ready; /* buffers are there */
	struct rsock_dgram_qp *qps;
	struct rsock_dest **dests; /* a hash table */
	struct rsock_dest *connected;
	uint8_t *sbuf;
	uint16_t *sfree; /* a stack of slots */
	uint32_t nsfree;
	uint8_t *ubuf; /* receive slots for data that came over UDP */
	uint16_t *ufree;
	uint32_t nufree;
	struct rsock_packet *packets; /* a ring of what can be received */
	uint32_t head, count;
	bool armed;
};

struct rsock {
	struct rsock *next_free; /* never freed: see table.c */
	_Atomic unsigned ref;
	unsigned generation; /* of the process: children of fork() differ */
	int fd;
	int type, family;
	pthread_mutex_t slock, rlock, lock;

	_Atomic int flags; /* O_NONBLOCK and what else F_SETFL was given */
	_Atomic enum rsock_state state; /* written under lock */
	bool closing;
	int err; /* SO_ERROR; positive */
	int why; /* the last error, for good */
	struct rsock_watch *watchers;

	/* options */
	uint32_t sbuf_size, rbuf_size;
	uint32_t sq_size, rq_size, inline_size, iomaps;
	uint64_t rcvtimeo_ns, sndtimeo_ns; /* 0: for ever */
	struct {
		int on, seconds;
	} linger;
	bool reuseaddr, oobinline, nodelay, v6only, keepalive;
	bool aside; /* no program sees its descriptor */
	unsigned keepidle; /* seconds */
	struct rsock *alive_next; /* the list in alive.c */
	uint64_t alive_due_ns;
	struct rsock *linger_next; /* the list in linger.c */
	uint64_t linger_ns; /* until then */

	union {
		struct rsock_stream s;
		struct rsock_dgram d;
	};
};

/* Receives that are posted. */
static inline uint32_t rsock_recvs(const struct rsock *rs)
{
	return rs->rq_size + RSOCK_CTRL_RQ;
}

static inline uint64_t rsock_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* When a call with this timeout ends; 0 is never, for both. */
static inline uint64_t rsock_deadline(uint64_t timeout_ns)
{
	return timeout_ns ? rsock_now_ns() + timeout_ns : 0;
}

/* table.c */

/* errno of a public function that returned -1, as -errno; never 0. */
int rsock_errno(void);

/* A new rsocket with options of parent, or of the configuration: ref is 1. */
struct rsock *rsock_alloc(const struct rsock *parent, int type, int family);
/* Puts rs into the table as fd: fd or -errno. */
int rsock_publish(struct rsock *rs, int fd);
/* Takes it out of the table: false if another thread has done so. */
bool rsock_unpublish(struct rsock *rs);
/* Takes an rsocket of the parent of a fork() out of the table, or NULL. */
struct rsock *rsock_take_parents(int fd);
/* The rsocket behind a descriptor, with a reference; or NULL with errno set. */
struct rsock *rsock_get(int fd);
void rsock_put(struct rsock *rs);
/* Frees one that is not in the table. */
void rsock_destroy(struct rsock *rs);
bool rsock_nonblock(const struct rsock *rs, int flags);
/* Closes the descriptors of an rsocket of the parent. */
int rsock_close_fds(const struct rsock *rs);

/* addr.c */

socklen_t rsock_addr_len(const union rsw_addr *addr);
/* The same address and port. */
bool rsock_same_addr(const union rsw_addr *a, const union rsw_addr *b);
bool rsock_addr_any(const union rsw_addr *addr);
/* For RoCE v2 the GID of a peer is its IP address. */
union ibv_gid rsock_gid(const union rsw_addr *addr);
/* Writes what fits of addr, like getsockname(2). */
void rsock_copy_addr(struct sockaddr *dst, socklen_t *dst_len,
		     const union rsw_addr *addr);
/*
 * To programs with IPv6 sockets an IPv4 address is mapped, as in the kernel;
 * inside it is IPv4, which is all that the CM knows. Other addresses stay as
 * they are.
 */
void rsock_map_ip4(union rsw_addr *addr);
void rsock_unmap_ip4(union rsw_addr *addr);
/* A sockaddr given by a program: -EINVAL or -EAFNOSUPPORT. */
int rsock_addr(const struct rsock *rs, const struct sockaddr *sa, socklen_t len,
	       union rsw_addr *addr);

/* opt.c */

struct rsock_config {
	uint32_t mem, wmem, sqsize, rqsize, inline_size, iomaps;
	uint64_t polling_ns;
};

/* Read once from /etc/rdma/rsocket. */
const struct rsock_config *rsock_config(void);
int rsock_setsockopt(struct rsock *rs, int level, int name, const void *val,
		     socklen_t len);
int rsock_getsockopt(struct rsock *rs, int level, int name, void *val,
		     socklen_t *len);

/* stream.c */

/* Where receives without immediate data have room for a message each. */
uint32_t *rsock_stream_msgs(const struct rsock *rs);

int rsock_set_nonblock(int fd);
/*
 * With an id of its own, or that of a request, which it owns on success. An
 * accepted stream has all the descriptors that it needs then.
 */
int rsock_stream_init(struct rsock *rs, struct rdma_cm_id *id);
void rsock_stream_fini(struct rsock *rs);
/* The queue pair and the buffers, once the device is known. */
int rsock_stream_create_ep(struct rsock *rs);
/*
 * What rsw_conn has as the port of the connection's service. id: of a request, or
 * the stream's own, which connects (from here) or is accepted.
 */
uint16_t rsock_stream_port(const struct rsock *rs, struct rdma_cm_id *id,
			   bool from_here);
/* Private data of REQ and REP: where the peer may write. */
void rsock_stream_describe(const struct rsock *rs, uint8_t data[RSW_CONN_LEN]);
/* Under lock. */
void rsock_stream_fail(struct rsock *rs, int err);

/* conn.c */

int rsock_stream_bind(struct rsock *rs, const union rsw_addr *addr);
int rsock_stream_listen(struct rsock *rs, int backlog);
int rsock_stream_accept(struct rsock *rs, struct rsock **new);
int rsock_stream_connect(struct rsock *rs, const union rsw_addr *addr);
int rsock_stream_name(struct rsock *rs, bool peer, union rsw_addr *addr);
/* Waits until a connection that is being made is there, or failed. */
int rsock_stream_settle(struct rsock *rs, int flags, uint64_t deadline_ns);
/* Handles events of the connection manager, if any. Under lock. */
void rsock_stream_cm(struct rsock *rs);
/* Refuses what raccept() has not taken. */
void rsock_stream_drop_requests(struct rsock *rs);

/* queue.c: all of these under lock, but the last */

/* A work request's id: what its completion frees, and how many bytes. */
enum { RSOCK_WR_RECV, RSOCK_WR_SEND, RSOCK_WR_CTRL, RSOCK_WR_PART };

static inline uint64_t rsock_wr_id(uint32_t kind, uint32_t bytes)
{
	return (uint64_t)kind << 32 | bytes;
}

/* The connection is there: conn is what the peer said. */
void rsock_stream_start(struct rsock *rs, const struct rsw_conn *conn);
int rsock_stream_post_recvs(struct rsock *rs, uint32_t n);
/* Handles completions, gives credits. */
void rsock_stream_progress(struct rsock *rs);
bool rsock_stream_can_send(struct rsock *rs);
/*
 * Whether there may be completions: a stream that both sides have ended may
 * still have to deliver what it sent.
 */
static inline bool rsock_stream_has_cq(const struct rsock *rs)
{
	return rs->state == RSOCK_ACCEPTING || rs->state == RSOCK_CONNECTED ||
	       rs->state == RSOCK_DISCONNECTED;
}

/*
 * Posts a write that says msg to the peer, as immediate data or by a message of
 * its own; 0 or an errno. The write may be empty. No lock is needed.
 */
int rsock_stream_post_msg(struct rsock *rs, struct ibv_send_wr *wr,
			  uint32_t msg);
/* A control message, with an entry for the peer's table or without. */
int rsock_stream_post_ctrl(struct rsock *rs, uint32_t msg,
			   const struct rsw_sge *sge);
/* Grants what has been read, if that is worth a message. */
void rsock_stream_give_credits(struct rsock *rs);
/* A keepalive message, if a control message can be sent. Takes the lock. */
void rsock_stream_keepalive(struct rsock *rs);

/* data.c */

ssize_t rsock_stream_recv(struct rsock *rs, const struct iovec *iov, int iovcnt,
			  int flags);
ssize_t rsock_stream_send(struct rsock *rs, const struct iovec *iov, int iovcnt,
			  int flags);
/* Waits, under slock and lock, until something can be sent. */
int rsock_stream_wait_send(struct rsock *rs, int flags, uint64_t deadline_ns);

/*
 * An RDMA write to target of data that is contiguous in iov or, if it is too
 * long to go inline, is copied into the send buffer first. Called with lock,
 * when something can be sent; returns without it. Takes up to len bytes (the
 * number is returned) and moves it.
 */
struct rsock_iter {
	const struct iovec *iov;
	int iovcnt;
	size_t off; /* in iov[0] */
};

enum rsock_write { RSOCK_WRITE_DATA, RSOCK_WRITE_DIRECT, RSOCK_WRITE_IOMAP };

ssize_t rsock_stream_write(struct rsock *rs, enum rsock_write kind,
			   struct rsock_iter *it, uint32_t len, uint64_t addr,
			   uint32_t key, uint32_t imm);

/* shutdown.c */

int rsock_stream_shutdown(struct rsock *rs, int how);
/*
 * Sends the shutdown, as far as that needs no waiting, and returns whether
 * everything that was sent has arrived, or cannot any more. Under lock.
 */
bool rsock_stream_over(struct rsock *rs);
/*
 * Ends a stream, whose last reference but the caller's goes when everything
 * has arrived, with a limit. It waits for that only if SO_LINGER asks for it.
 */
void rsock_stream_close(struct rsock *rs);

/* iomap.c */

off_t rsock_iomap(struct rsock *rs, void *buf, size_t len, int prot,
		  off_t offset);
int rsock_iounmap(struct rsock *rs, void *buf, size_t len);
ssize_t rsock_iowrite(struct rsock *rs, const void *buf, size_t count,
		      off_t offset, int flags);
/* Announces what was mapped since to the peer. Under slock and lock. */
int rsock_iomap_flush(struct rsock *rs, int flags, uint64_t deadline_ns);
void rsock_iomap_fini(struct rsock *rs);

/* dgram.c */

int rsock_dgram_init(struct rsock *rs);
void rsock_dgram_fini(struct rsock *rs);
int rsock_dgram_bind(struct rsock *rs, const union rsw_addr *addr);
int rsock_dgram_connect(struct rsock *rs, const union rsw_addr *addr);
ssize_t rsock_dgram_recv(struct rsock *rs, const struct iovec *iov, int iovcnt,
			 int *flags, union rsw_addr *from);
/* to: NULL for the connected address. */
ssize_t rsock_dgram_send(struct rsock *rs, const struct iovec *iov, int iovcnt,
			 int flags, const union rsw_addr *to);
void rsock_dgram_close(struct rsock *rs);
void rsock_dgram_progress(struct rsock *rs);
bool rsock_dgram_can_send(struct rsock *rs);
void rsock_dgram_arm(struct rsock *rs);
void rsock_dgram_drain(struct rsock *rs);

/* poll.c: all of these under lock */

/* What poll(2) would report now. */
short rsock_revents(struct rsock *rs, short events);
/* Makes the descriptors of rs report the next change; up to 2 of them. */
void rsock_arm(struct rsock *rs, int fds[2]);
/* Takes what made them readable: the first, the second, or both. */
void rsock_drain(struct rsock *rs, bool first, bool second, int self);
/* Wakes all sleepers but the one with eventfd self. */
void rsock_wake(struct rsock *rs, int self);
/* Handles events and completions that are there. */
void rsock_progress(struct rsock *rs);
void rsock_watch_add(struct rsock *rs, struct rsock_watch *w, int efd);
void rsock_watch_del(struct rsock_watch *w);
/*
 * Waits until ready() is true, and releases lock meanwhile. 0; -EAGAIN if that
 * would mean to wait and nonblock is set, or when deadline_ns (0: none) has
 * passed; -EINTR.
 */
int rsock_wait(struct rsock *rs, bool (*ready)(struct rsock *rs), bool nonblock,
	       uint64_t deadline_ns);
/*
 * poll(), also of more descriptors than RLIMIT_NOFILE, which the kernel
 * refuses.
 */
int rsock_poll_any(struct pollfd *fds, nfds_t n, int ms);
/* rpoll(): how many are ready, or -errno. */
int rsock_poll(struct pollfd *fds, nfds_t nfds, int timeout_ms);
int rsock_set_watch(struct rsock *rs, int efd);
void rsock_poll_forked(void);
/* rpoll() of this thread sleeps in rsock_sleep(). */
extern __thread bool rsock_restarts;

/* restart.c */

/*
 * poll() that fails with EINTR only where the kernel would not restart the call
 * that sleeps in it. It returns 0 where it would.
 */
int rsock_sleep(struct pollfd *fds, nfds_t n, int timeout_ms);
void rsock_restart_forked(void);

/* alive.c: a thread that sends keepalive messages */

int rsock_alive_set(struct rsock *rs, bool on);
/* keepidle of rs has changed. */
void rsock_alive_touch(struct rsock *rs);
void rsock_alive_forked(void);

/* linger.c: a thread that ends closed streams */

/*
 * Puts a reference of rs when rsock_stream_over(), or at until_ns. False if
 * there can be no thread.
 */
bool rsock_linger(struct rsock *rs, uint64_t until_ns);
void rsock_linger_forked(void);

#endif
