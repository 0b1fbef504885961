/*
 * device.h - devices, and the files that show them
 */
#ifndef SOFTHCA_VERBS_DEVICE_H
#define SOFTHCA_VERBS_DEVICE_H

#include "counters/stat.h"
#include "net/netdev.h"
#include "net/rails.h"
#include "transport/shared.h"

#include <limits.h>

/* device.c */

struct shca_device;

/*
 * How the ports of a device are named, and what an address vector leads to: by
 * the addresses of interfaces (RoCE), by a LID and a GID that stand for one of
 * them (infiniband.c), or by no more than a MAC (iWARP). What is below knows IP
 * addresses, as the GIDs that RoCE makes of them.
 */
struct shca_naming {
	bool one_gid; /* the table has one entry, else one for each address */
	/* Of the node, in host order; 0, or NULL: it is made of a MAC. */
	uint64_t (*guid)(const struct shca_device *dev);
	/* With the lock: the addresses may be others. NULL: nobody asks. */
	void (*changed)(struct shca_device *dev);
	/* With the device's lock: entry 0 of a table of one; false: empty. */
	bool (*gid)(const struct shca_device *dev, struct netdev_gid *gid);
	/* What is otherwise than with RoCE; without the lock. */
	void (*port)(struct shca_device *dev, struct ibv_port_attr *attr);
	/* The address that is the device's for an address of its interfaces; with
	 * the lock. NULL: all are. */
	const struct netdev_gid *(*addr)(const struct shca_device *dev,
					 const union ibv_gid *addr);
	/* Address vectors, from and to a path, and from a completion: ah.h. */
	int (*path)(struct shca_device *dev, const struct ibv_ah_attr *attr,
		    struct roce_path *path, struct netdev_gid *via);
	void (*av)(struct shca_device *dev, const struct roce_path *path,
		   struct ibv_ah_attr *attr);
	/* The GID of an address, or a group. NULL: that is its GID. */
	union ibv_gid (*gid_of)(const union ibv_gid *addr);
	int (*av_from_wc)(struct shca_device *dev, const struct ibv_wc *wc,
			  const struct ibv_grh *grh, struct ibv_ah_attr *attr);
	/* The multicast address of a group. NULL: it is the group's GID. */
	int (*group)(const union ibv_gid *mgid, uint16_t mlid,
		     union ibv_gid *addr);
};

extern const struct shca_naming shca_naming_ip; /* ah.c */
extern const struct shca_naming shca_naming_lid; /* infiniband.c */

struct shca_device {
	struct ibv_device dev;
	/*
	 * Provider libraries read a pointer right behind the struct ibv_device
	 * of any device to see whether it is theirs, and may read on.
	 */
	void *not_theirs[16];

	const struct shca_transport *transport;
	const struct shca_naming *naming;
	char ifnames[IFNAMSIZ]; /* SOFTHCA_DEVICES: its netdev; "": all */
	struct rail rail; /* SOFTHCA_RAILS: all that it has; n 0: no rail */
	char own_name[16]; /* softhca0; dev.name, unless SOFTHCA_NAMES is set */
	unsigned number; /* among all */
	int index; /* among those of its transport */
	unsigned row; /* of the counters of the host */
	__be64 guid;
	int gid_tbl_len; /* never changes */
	/* The table has a second half: the addresses of the first one, for RoCE
	 * v1. Whoever takes the first that suits it gets RoCE v2. */
	bool rocev1;

	pthread_mutex_t lock; /* of what follows */
	struct netdev_table gids; /* holes have an ifindex of 0 */
	bool absent; /* its netdev does not exist */
	_Atomic uint64_t ib_port; /* infiniband.c, which writes it under lock */
	unsigned ud_users; /* while > 0 every GID's address is bound... */
	bool bound[NETDEV_MAX_GIDS]; /* ...where it can be, */
	bool bound_v1[NETDEV_MAX_GIDS]; /* and its frames of RoCE v1 */

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
/* The name that it has unless SOFTHCA_NAMES is set. */
const char *shca_device_own_name(const struct ibv_device *dev);
/* The device of either name; NULL: none. */
struct shca_device *shca_device_named(const char *name);
/* Reads the addresses again. True when a GID came or went. */
bool shca_device_rescan(struct shca_device *dev, struct engine *e);
/* Whether its netdev exists; always true for a device of all netdevs. */
bool shca_device_present(struct shca_device *dev);
/* A UD QP receives on every address of the device. */
int shca_device_bind(struct shca_device *dev, struct engine *e);
void shca_device_unbind(struct shca_device *dev, struct engine *e);
/* As programs see it: -EINVAL, or -ENODATA: a hole. */
int shca_gid(struct shca_device *dev, uint32_t port, uint32_t index,
	     struct netdev_gid *gid);
/* Of what there is at an index; and the index there is of an entry of the first
 * half, or negative, as what that is of. */
enum ibv_gid_type shca_gid_type(const struct shca_device *dev, uint32_t index);
int shca_gid_v1(const struct shca_device *dev, int index);
/* The addresses of its interfaces, whatever its GIDs are: false: a hole. */
bool shca_device_entry(struct shca_device *dev, size_t i,
		       struct netdev_gid *entry);
/* The GID that programs see of an address; its index, of RoCE. */
union ibv_gid shca_gid_of(const struct shca_device *dev,
			  const union ibv_gid *addr);
int shca_gid_index(struct shca_device *dev, const union ibv_gid *gid);
/* An address of one of its interfaces, whatever its GIDs are: where it is, and of
 * InfiniBand the port that it stands for. False: it is none. */
bool shca_device_addr(struct shca_device *dev, const union ibv_gid *addr,
		      struct netdev_gid *via);
/* Whether it has an address that other hosts can reach. */
bool shca_device_reachable(struct shca_device *dev);
void shca_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr);
int shca_query_device_ex(struct ibv_context *ctx,
			 struct ibv_device_attr_ex *attr, size_t size);
int shca_query_port(struct shca_device *dev, uint32_t port,
		    struct ibv_port_attr *attr);
/* In Gb/s, by width and speed: sysfs.c. */
double shca_port_rate(const struct ibv_port_attr *attr);
/* What /sys and libibumad say of the board. */
#define SHCA_HCA_TYPE "softhca"
#define SHCA_HW_REV "0"
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

/* A port of a node of a fabric's file at which programs are, and whose MADs they
 * send (--fabric=FILE@NODE): the files say the same of it as libibumad. */
#define SHCA_NODE_PORTS 10
struct shca_node_port {
	unsigned num;
	unsigned node_type; /* as NodeInfo has it */
	uint64_t node_guid, sys_guid; /* host order */
	union ibv_gid gid;
	struct ibv_port_attr attr;
};

/*
 * libibumad knows the file, and says so as it is loaded, which sysfs.c sees to
 * where a node is asked for. port: that number of the device's node, 0: a switch's
 * own, or a CA's first that has a link; false: there is none.
 */
void shca_sysfs_set_node(bool (*port)(struct shca_device *dev, unsigned num,
				      struct shca_node_port *at));
/* For the shim, where SOFTHCA_SYSFS is not set: the same root as long as the
 * process lives, or NULL. Keeps errno; says once why there is none. */
const char *shca_sysfs_root(void);

static inline struct shca_device *to_device(struct ibv_device *dev)
{
	return container_of(dev, struct shca_device, dev);
}

#endif
