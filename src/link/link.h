/*
 * link.h - a way for packets to come and go, as the engine sees it
 *
 * A process has few links, made when its engine is. Who receives loops over all
 * of them; who sends uses the one that the destination is reached by
 * (engine_send()). What belongs to one kind of link alone, addresses to bind or
 * how a peer is found, is in that link's header.
 */
#ifndef SOFTHCA_LINK_LINK_H
#define SOFTHCA_LINK_LINK_H

#include "roce/qp.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct link;

/*
 * Called for each packet received that is whole: its headers decode, and what
 * protects it on its way says that it has not changed. pkt->h.dest_qpn is not
 * checked. The packet is gone when it returns.
 */
typedef void link_rx_fn(void *arg, const struct roce_rx *pkt);

struct link_ops {
	/*
	 * Takes up to about budget packets and hands them to fn. If another
	 * thread is at it, returns -EBUSY at once. Otherwise how much of the
	 * budget that was: one for each packet, or more for a long one.
	 */
	int (*poll)(struct link *l, unsigned budget, link_rx_fn *fn, void *arg);
	/*
	 * Waits until no other thread polls, and polls nothing: on return no
	 * fn that was called before is running.
	 */
	void (*wait)(struct link *l);
	/* A descriptor that is readable when poll has something to do. */
	int (*fd)(struct link *l);
	/*
	 * Whether poll has something to do, and nobody is at it. NULL: only fd
	 * says so, and to poll is a system call.
	 */
	bool (*ready)(struct link *l);
	/*
	 * Before the thread that waits for fd sleeps: asks for fd to be readable
	 * once there is something to do. Returns false if there is something to
	 * do now. NULL: fd always is as it should be.
	 */
	bool (*sleep)(struct link *l);
	/* It is awake. called: it has found fd readable, which fd is no longer
	 * then. NULL as sleep. */
	void (*wake)(struct link *l, bool called);
	/*
	 * Sends pkt[from..to) of a batch in order. Returns the index of the
	 * first that was not taken: less than `to` when there is no room now.
	 * A packet that can never be sent counts as taken and is lost; *err
	 * then holds a positive errno for the caller to explain, and is left
	 * as it is otherwise. EFAULT: memory of the first that was not taken
	 * is not there. Safe from many threads. NULL: whoever sends has to know
	 * the link (shm_send()).
	 */
	size_t (*send)(struct link *l, const struct roce_batch *b, size_t from,
		       size_t to, int *err);
};

/* The first member of what a link keeps for itself. */
struct link {
	const struct link_ops *ops;
	/* The engine's: heat.h, and whether its thread watches fd. */
	_Atomic uint32_t heat, users;
	bool watched;
};

#endif
