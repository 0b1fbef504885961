/*
 * rspreload.h - sockets of a program that are rsockets
 *
 * A program's descriptor is always a socket of the kernel, the shadow. Beside
 * it there may be an rsocket, which carries the data; options go to both. So
 * whatever is not intercepted sees a socket, and a connection that RDMA cannot
 * make is made by the shadow: the rsocket is closed, and the descriptor is a
 * plain socket. A listener listens with both.
 *
 *	config.c      which sockets become rsockets
 *	fds.c         descriptors, and how they fall back to TCP
 *	calls.c       the calls that make, connect, describe and close sockets
 *	transfer.c    the calls that move data
 *	wait.c        poll and select
 *	epoll.c       epoll instances
 *	epoll_wait.c  waiting at them
 *	relay.c       what a child of fork() gets
 *	names.c       the addresses of that
 */
#ifndef SOFTHCA_RSPRELOAD_H
#define SOFTHCA_RSPRELOAD_H

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

struct mmsghdr;

/* libc's functions, which ours hide. */
/* clang-format off */
#define RSP_REAL(F) \
	F(int, socket, (int, int, int)) \
	F(int, bind, (int, const struct sockaddr *, socklen_t)) \
	F(int, listen, (int, int)) \
	F(int, accept4, (int, struct sockaddr *, socklen_t *, int)) \
	F(int, connect, (int, const struct sockaddr *, socklen_t)) \
	F(int, shutdown, (int, int)) \
	F(int, close, (int)) \
	F(int, close_range, (unsigned, unsigned, int)) \
	F(void, closefrom, (int)) \
	F(int, fclose, (FILE *)) \
	F(long, syscall, (long, ...)) \
	F(int, dup, (int)) \
	F(int, dup3, (int, int, int)) \
	F(int, dup2, (int, int)) \
	F(int, fcntl64, (int, int, ...)) \
	F(int, ioctl, (int, unsigned long, ...)) \
	F(int, getsockname, (int, struct sockaddr *, socklen_t *)) \
	F(int, getpeername, (int, struct sockaddr *, socklen_t *)) \
	F(int, getsockopt, (int, int, int, void *, socklen_t *)) \
	F(int, setsockopt, (int, int, int, const void *, socklen_t)) \
	F(ssize_t, read, (int, void *, size_t)) \
	F(ssize_t, readv, (int, const struct iovec *, int)) \
	F(ssize_t, recv, (int, void *, size_t, int)) \
	F(ssize_t, recvfrom, (int, void *, size_t, int, struct sockaddr *, \
			      socklen_t *)) \
	F(ssize_t, recvmsg, (int, struct msghdr *, int)) \
	F(int, recvmmsg, (int, struct mmsghdr *, unsigned, int, \
			  struct timespec *)) \
	F(ssize_t, write, (int, const void *, size_t)) \
	F(ssize_t, writev, (int, const struct iovec *, int)) \
	F(ssize_t, send, (int, const void *, size_t, int)) \
	F(ssize_t, sendto, (int, const void *, size_t, int, \
			    const struct sockaddr *, socklen_t)) \
	F(ssize_t, sendmsg, (int, const struct msghdr *, int)) \
	F(int, sendmmsg, (int, struct mmsghdr *, unsigned, int)) \
	F(ssize_t, sendfile64, (int, int, off64_t *, size_t)) \
	F(ssize_t, splice, (int, off64_t *, int, off64_t *, size_t, \
			    unsigned)) \
	F(int, poll, (struct pollfd *, nfds_t, int)) \
	F(int, ppoll, (struct pollfd *, nfds_t, const struct timespec *, \
		       const sigset_t *)) \
	F(int, select, (int, fd_set *, fd_set *, fd_set *, struct timeval *)) \
	F(int, pselect, (int, fd_set *, fd_set *, fd_set *, \
			 const struct timespec *, const sigset_t *)) \
	F(int, epoll_ctl, (int, int, int, struct epoll_event *)) \
	F(int, epoll_wait, (int, struct epoll_event *, int, int)) \
	F(int, epoll_pwait, (int, struct epoll_event *, int, int, \
			     const sigset_t *)) \
	F(int, epoll_pwait2, (int, struct epoll_event *, int, \
			      const struct timespec *, const sigset_t *))

struct rsp_real {
#define F(ret, name, args) ret (*name) args;
	RSP_REAL(F)
#undef F
};
/* clang-format on */

/*
 * Loads libc's functions at the first call, which may come before any
 * constructor.
 */
const struct rsp_real *rsp_real(void);

enum rsp_state {
	RSP_PLAIN, /* the shadow alone */
	RSP_RSOCK, /* the rsocket carries the data */
	RSP_LISTENING, /* both */
	RSP_CONNECTING, /* the rsocket may become RSP_RSOCK, or RSP_PLAIN */
	/* The shadow alone, from here on. */
	RSP_RELAYED, /* it is an end of a socketpair; see relay.c */
	RSP_HEIR, /* it listens, and the parent listens by RDMA */
};

/*
 * Whose a connection is, decided once: that of the process which uses it before
 * a fork, or shared with its children.
 */
enum rsp_use {
	RSP_UNUSED,
	RSP_USED,
	RSP_SHARED, /* or about to be, under lock */
};

struct rsp_reg;

struct rsp_fd {
	struct rsp_fd *next_free; /* memory is never given back */
	_Atomic enum rsp_state state;
	_Atomic int refs; /* descriptors: dup() makes more */
	_Atomic int rfd; /* -1: no rsocket */
	int family, type;
	pthread_mutex_t lock; /* of changes of state, and of what follows */
	struct sockaddr_storage dst;
	socklen_t dst_len;
	bool linked; /* it was accepted */
	_Atomic enum rsp_use used; /* the connection, by the program */
	bool lost; /* it is the parent's, and fails in this child */
	int heir; /* of a listener: an eventfd to claim it by; or -1 */
	_Atomic uint64_t deadline_ns; /* of RSP_CONNECTING */
	uint64_t most_ns; /* what that becomes if the peer is heard, or 0 */
	bool hasty; /* it is short, since nobody has answered there lately */
	struct rsp_reg *regs; /* in epoll instances */
};

/* config.c */

/* Whether a socket of the program becomes an rsocket. */
bool rsp_intercept(int family, int type, int protocol);

/* fds.c */

/* Whether this is a child of vfork(), which runs in its parent's memory. */
bool rsp_borrowed(void);
/* NULL unless there is one, in a state other than RSP_PLAIN. */
struct rsp_fd *rsp_find(int fd);
struct rsp_fd *rsp_new(int family, int type, int rfd);
/*
 * The program uses the connection, which is this process's from now on, unless
 * it has been shared: check the state after this. Not under lock.
 */
void rsp_use_slow(struct rsp_fd *f);
static inline void rsp_use(struct rsp_fd *f)
{
	if (f->used != RSP_USED)
		rsp_use_slow(f);
}
/* fd is one more descriptor of f. */
int rsp_set(int fd, struct rsp_fd *f);
/* fd is not a descriptor of it any more. The last one closes the rsocket. */
void rsp_clear(int fd);
/* The same for its epoll instance, if it is one; errno stays. Of a number that the
 * kernel hands out: whatever had it has ended behind our back. */
void rsp_forget(int fd);
/* All from first to last, epoll instances too, are about to be closed. */
void rsp_clear_range(unsigned first, unsigned last);
/*
 * An rsocket with the program's defaults, or -1. In here, and while another
 * r* function runs, the program's sockets are the kernel's: rsp_enter().
 */
int rsp_rsocket(int family, int type);
void rsp_enter(void);
void rsp_leave(void);
bool rsp_inside(void);
/*
 * The result of connecting, or RSP_CONNECTING. If RDMA has failed, fd falls
 * back and begins to connect by TCP.
 */
enum rsp_state rsp_settle(struct rsp_fd *f, int fd);
/*
 * With --explain: what carries the connections that which says of addr ("the
 * connection to"): rfd's RDMA, or TCP since RDMA could not, for err's reason; -1:
 * that is not known.
 */
void rsp_say_way(const char *which, const struct sockaddr *addr, int rfd,
		 int err);
/* Makes fd a socket of the kernel for good, bound as the rsocket was. Under
 * the lock of f. */
void rsp_fall_back(struct rsp_fd *f, int fd);
/*
 * A child of fork() waits for connections at an inherited f: these are made by
 * TCP from now on.
 */
void rsp_claim(struct rsp_fd *f);
/* The child that has heir has claimed f: f's descriptor, or -1. */
int rsp_give_up(struct rsp_fd *f, int heir);
/* For calls that move data: what fd is now. NULL: a socket of the kernel. */
struct rsp_fd *rsp_data(int fd);
uint64_t rsp_now_ns(void);
/* How long RDMA may try to connect to f's dst, from now on. */
void rsp_set_deadline(struct rsp_fd *f);
/* Whether it need not try, since nobody there has answered lately. */
bool rsp_goes_by_tcp(const struct rsp_fd *f);

/* silent.c */

/* Whether a process of this user has found nobody at that host within a minute. */
bool rsp_host_silent(const struct sockaddr_storage *dst);
void rsp_host_is_silent(const struct sockaddr_storage *dst);

/* wait.c */

/*
 * The signal mask for the sleep in rpoll(), which calls our poll(), or NULL. It
 * is set only for the sleep itself, so that no signal is lost before it.
 */
extern __thread const sigset_t *rsp_sleep_mask;
/* poll() with program's descriptors; until 0: for ever. -1 and errno. */
int rsp_poll(struct pollfd *fds, nfds_t nfds, uint64_t until_ns);
uint64_t rsp_until(int timeout_ms);
bool rsp_until_of(const struct timespec *ts, uint64_t *until);
/* Milliseconds, rounded up, until the earlier of both; 0 is never. */
int rsp_remaining(uint64_t until, uint64_t deadline);

/* epoll.c */

/* fd, whatever it is, is about to be closed. */
void rsp_epoll_close(int fd);
/* So are all instances from first to last. */
void rsp_epoll_close_range(unsigned first, unsigned last);
/* f is a socket of the kernel from now on. Under its lock. */
void rsp_epoll_fell_back(struct rsp_fd *f);
void rsp_epoll_forked(void);

/* relay.c */

/* The program's end of what carries rfd, which is the relay's, or -1. */
int rsp_relay(int rfd);
/* A listener is about to be shared: rsp_fd's heir, or -1. */
int rsp_offer(struct rsp_fd *f);
void rsp_relay_before_fork(void);
void rsp_relay_after_fork(bool child);
/* Waits until what children wrote before they closed is on its way. */
void rsp_relay_finish(void);

/* names.c */

struct rsp_names {
	struct sockaddr_storage local, peer; /* IPv4 or IPv6, both the same */
};

/* Gives an end of a socketpair these addresses. 0, or -1 and errno. */
int rsp_name(int end, const struct sockaddr_storage *local,
	     const struct sockaddr_storage *peer);
/*
 * The addresses of fd if it is such an end, though this program may not know
 * it: it may have been executed with it. Leaves errno alone.
 */
bool rsp_named(int fd, struct rsp_names *names);

/*
 * The functions that programs call, under C names that do not clash with
 * libc's declarations.
 */
#define RSP_EXPORT(name) __asm__(#name)

#endif
