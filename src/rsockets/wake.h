/*
 * wake.h - rsockets beside ordinary sockets, and waiting for them together with
 * anything else
 *
 * A flag and options of level SOL_RDMA that only this library has. With them a
 * program can put rsockets into an epoll instance of its own, as src/rspreload
 * does. rpoll() and rselect() do without.
 */
#ifndef SOFTHCA_RSOCKETS_WAKE_H
#define SOFTHCA_RSOCKETS_WAKE_H

/*
 * A flag of rsocket()'s type: the program does not see the descriptor, nor
 * those of streams that it accepts, so their numbers stay out of the program's
 * way. A socket of the kernel is bound to the same address: where ports are TCP's,
 * an rsocket with this flag listens and connects beside them, and meets only its
 * like (rdmacm/tcp_port.h).
 */
#define RSOCK_ASIDE 0x10000000

/* rgetsockopt() with an int: whether the stream's device is one of iWARP. */
#define RSOCK_IWARP 0x5ca3

/*
 * rgetsockopt() with an int: whether a peer to which the stream connects has
 * answered by anything yet, or is on this host.
 */
#define RSOCK_HEARD 0x5ca4

/*
 * rgetsockopt() with a struct rsock_wake: revents reports which of events (and
 * of POLLERR and POLLHUP) are true now. If none is, the descriptors in fds that
 * are not -1 become readable when that may have changed; ask again then, with
 * RSOCK_WOKEN, which takes what made them readable. They belong to the rsocket
 * and may be others at the next call. With RSOCK_ARM they are armed and
 * returned even if something is true, with RSOCK_PEEK they are not at all.
 * EINVAL if optlen is not the struct's.
 */
#define RSOCK_WAKE 0x5ca0

enum { RSOCK_WOKEN = 1, RSOCK_ARM = 4, RSOCK_PEEK = 8 };

struct rsock_wake {
	short events;
	short revents;
	int flags;
	int watch; /* an eventfd of RSOCK_WATCH that is not written to, or -1 */
	int fds[2];
};

/*
 * rsetsockopt() with an int, an eventfd: it is written to whenever another
 * thread may have taken what made a descriptor of RSOCK_WAKE readable. A
 * negative number, -1 - eventfd, ends that. EBADF when there is no such.
 */
#define RSOCK_WATCH 0x5ca1

/*
 * rsetsockopt() with an int: whether the calling thread's rpoll() sleeps on
 * after a signal whose handler has SA_RESTART, for calls that do so. It applies
 * to the thread, whatever the descriptor is.
 */
#define RSOCK_RESTART 0x5ca2

#endif
