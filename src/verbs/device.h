/*
 * device.h - devices, and the files that show them
 */
#ifndef SOFTHCA_VERBS_DEVICE_H
#define SOFTHCA_VERBS_DEVICE_H

#include "counters/stat.h"
#include "net/netdev.h"
#include "transport/shared.h"

#include <limits.h>

/* device.c */

struct shca_device {
	struct ibv_device dev;
	/*
	 * Provider libraries read a pointer right behind the struct ibv_device
	 * of any device to see whether it is theirs, and may read on.
	 */
	void *not_theirs[16];

	const struct shca_transport *transport;
	char ifnames[IFNAMSIZ]; /* SOFTHCA_DEVICES: its netdev; "": all */
	int index; /* among those of its transport */
	__be64 guid;
	int gid_tbl_len; /* never changes */

	pthread_mutex_t lock; /* of what follows */
	struct netdev_table gids; /* holes have an ifindex of 0 */
	bool absent; /* its netdev does not exist */
	unsigned ud_users; /* while > 0 every GID's address is bound... */
	bool bound[NETDEV_MAX_GIDS]; /* ...where it can be */

	_Atomic uint64_t ended[STAT_COUNTERS]; /* of QPs that are gone */
	uint64_t added[STAT_COUNTERS]; /* to the sums of all processes */
};

_Static_assert(offsetof(struct shca_device, not_theirs) == 664,
	       "what provider libraries compare");

/* A program asks for what may have changed before there is a thread that sees
 * changes. */
void shca_netdevs_look(struct ibv_context *ctx);

/*
 * The devices of this process in a NULL-terminated array to be freed with
 * free(); each stays valid for good.
 */
int shca_device_list(struct ibv_device ***list, int *n);
/* Reads the addresses again. True when a GID came or went. */
bool shca_device_rescan(struct shca_device *dev, struct engine *e);
/* Whether it has an address, so that its port is up. */
bool shca_device_active(struct shca_device *dev);
/* Whether its netdev exists; always true for a device of all netdevs. */
bool shca_device_present(struct shca_device *dev);
/* A UD QP receives on every address of the device. */
int shca_device_bind(struct shca_device *dev, struct engine *e);
void shca_device_unbind(struct shca_device *dev, struct engine *e);
int shca_gid(struct shca_device *dev, uint32_t port, uint32_t index,
	     struct netdev_gid *gid); /* -EINVAL, or -ENODATA: a hole */
int shca_gid_index(struct shca_device *dev, const union ibv_gid *gid);
/* An address of one of its interfaces, whatever its GIDs are: where it is. False:
 * it is none. */
bool shca_device_addr(struct shca_device *dev, const union ibv_gid *addr,
		      struct netdev_gid *via);
/* Whether it has an address that other hosts can reach. */
bool shca_device_reachable(struct shca_device *dev);
void shca_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr);
int shca_query_device_ex(struct ibv_context *ctx,
			 struct ibv_device_attr_ex *attr, size_t size);
int shca_query_port(struct shca_device *dev, uint32_t port,
		    struct ibv_port_attr *attr);
/* For programs built with headers from before 2020, whose struct ends where
 * port_cap_flags2 begins: no byte more is written. */
int shca_query_port_compat(struct ibv_context *ctx, uint32_t port,
			   struct _compat_ibv_port_attr *out);
/* Where programs find sysfs: the tree that softhca run makes, or the real one,
 * which does not have our devices. Static storage. */
const char *shca_sysfs_path(void);

/* sysfs.c: the files that show our devices where the kernel would */

/* Writes them, unless they are there, below a directory of this user's own, and
 * into path their root: what SOFTHCA_SYSFS should be. path/lib is a link to the
 * directory of this library. Returns 0, or -errno with a sentence in reason. */
int shca_sysfs_make(char path[PATH_MAX], char *reason, size_t reason_size);
/* For the shim, where SOFTHCA_SYSFS is not set: the same root as long as the
 * process lives, or NULL. Keeps errno; says once why there is none. */
const char *shca_sysfs_root(void);

static inline struct shca_device *to_device(struct ibv_device *dev)
{
	return container_of(dev, struct shca_device, dev);
}

#endif
