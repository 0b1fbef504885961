/*
 * readdress.h - addresses of this process that are others by now
 *
 * A process that was suspended goes on where its host has another address (src/migrate),
 * or another interface. What an address stood for, the one that came in its place
 * stands for then.
 */
#ifndef SOFTHCA_VERBS_READDRESS_H
#define SOFTHCA_VERBS_READDRESS_H

#include "net/netdev.h"
#include "transport/shared.h"

struct shca_moved {
	size_t n;
	struct {
		union ibv_gid from;
		uint32_t ifindex; /* of that; 0: whichever it was */
		struct netdev_gid to;
	} at[NETDEV_MAX_GIDS];
	/* What is here, and was on other hardware, or is new. */
	size_t nnews;
	struct netdev_gid news[NETDEV_MAX_GIDS];
};

/*
 * For each address that the process receives at and the host does not have any
 * more: one of its kind that is new, of an interface of the same name, or else of any.
 * Devices know it as what was there before. Before the addresses are read again. 0
 * or -errno, and then nothing is: -EADDRNOTAVAIL: there is none for one of them.
 */
int shca_readdress(struct engine *e, struct shca_moved *moved);
/* The place of an address there; -1: it stays. */
int shca_moved_find(const struct shca_moved *moved, const union ibv_gid *gid,
		    uint32_t ifindex);

#endif
