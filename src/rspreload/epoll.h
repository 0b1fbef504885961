/*
 * epoll.h - epoll on sockets that may be rsockets
 *
 * A program's epoll instance stays the kernel's. For an rsocket in it, the
 * descriptors that wake an rsocket are put in instead (rsockets/wake.h), with
 * the address of its registration as their data; the program's own data is
 * never such an address, since registrations lie in memory of our own.
 *
 * They stay there when the program removes the rsocket, until one wakes: many
 * programs put it in again at once. What other threads do with the rsocket
 * meanwhile wakes nobody (RSOCK_WATCH).
 *
 * An rsocket is checked only when there is reason to: after it was registered,
 * when one of its descriptors woke, and, as level-triggered means, at each wait
 * as long as it is ready. All others sleep. One that was ready lately is hot: it
 * is checked some times more before its descriptors are armed, since to look
 * costs less than an event does.
 *
 * Locks: that of an rsp_fd (its list of registrations), then an instance's.
 */
#ifndef SOFTHCA_RSPRELOAD_EPOLL_H
#define SOFTHCA_RSPRELOAD_EPOLL_H

#include "rspreload/rspreload.h"

#define RSP_MAX_REGS 65536

struct rsp_ep;

/* One rsocket in one epoll instance. */
struct rsp_reg {
	struct rsp_reg *next; /* of the same rsp_fd, or the next free */
	struct rsp_reg *next_check;
	struct rsp_fd *f; /* NULL: removed */
	struct rsp_ep *ep;
	int fd;
	uint32_t events;
	epoll_data_t data;
	int fds[2]; /* in the kernel's instance, or -1 */
	bool shadow; /* fd itself is in there, too: a listener */
	bool fired; /* one-shot: nothing until it is armed again */
	bool queued; /* in the list of those to check */
	bool off; /* the program has removed it */
	unsigned hot; /* checks before it is armed */
	unsigned woken; /* RSOCK_WOKEN: its descriptors that have woken us */
	uint32_t reported; /* edge-triggered: events since it last woke */
};

struct rsp_ep {
	int epfd, evfd;
	unsigned refs; /* of the table, and of calls */
	_Atomic bool closed;
	bool forked; /* shared with the parent, and so is what is in it */
	unsigned turn;
	pthread_mutex_t lock;
	struct rsp_reg *regs; /* RSP_MAX_REGS of them */
	uint32_t nregs; /* how many of them were ever used */
	struct rsp_reg *free;
	struct rsp_reg *check, **check_tail;
	unsigned waiters;
	unsigned connecting; /* registrations that may be RSP_CONNECTING */
};

/* With a reference: close() of it may come while another thread waits. */
struct rsp_ep *rsp_ep_get(int epfd);
void rsp_ep_put(struct rsp_ep *ep);
/*
 * Whether an event is about a registration, rather than the program's: which
 * one, and which of its descriptors.
 */
bool rsp_ep_owns(const struct rsp_ep *ep, const struct epoll_event *ev,
		 struct rsp_reg **reg, unsigned *which);

/* Under the instance's lock. */

/* The next wait checks it. */
void rsp_reg_ask(struct rsp_reg *reg);
void rsp_reg_free(struct rsp_reg *reg);
/* Which descriptors are in the kernel's instance for it; -1: none. */
void rsp_reg_set_fd(struct rsp_reg *reg, int i, int fd);
void rsp_reg_set_shadow(struct rsp_reg *reg, bool on);

#endif
