/*
 * hca.h - the devices, read through our libibverbs as a program would
 */
#ifndef SOFTHCA_CLI_HCA_H
#define SOFTHCA_CLI_HCA_H

#include "net/netdev.h"

#include <infiniband/verbs.h>
#include <net/if.h>
#include <stddef.h>
#include <stdint.h>

struct hca_gid {
	struct ibv_gid_entry entry;
	char ifname[IF_NAMESIZE]; /* "" if the interface is gone */
};

struct hca {
	char name[IBV_SYSFS_NAME_MAX];
	char own_name[16]; /* as it is without SOFTHCA_NAMES */
	char dev_name[IBV_SYSFS_NAME_MAX];
	enum ibv_node_type node_type;
	uint64_t node_guid; /* host order */
	struct ibv_device_attr attr;
	struct ibv_port_attr port; /* of port 1 */
	/* Of InfiniBand: the address that its port stands for, or zeros. */
	struct netdev_gid at;
	size_t gid_count; /* entries that are not empty */
	struct hca_gid *gid;
};

static inline bool hca_is_infiniband(const struct hca *h)
{
	return h->port.link_layer == IBV_LINK_LAYER_INFINIBAND;
}

/* "softhca3", or "mlx5_3 (softhca3)". */
struct hca_name {
	char text[IBV_SYSFS_NAME_MAX + 20];
};
const char *hca_names(const struct hca *h, struct hca_name *name);

struct hca_list {
	size_t count;
	struct hca *hca;
	char why[1024]; /* what failed, in words; "" if nothing did */
};

/* Loads libdir/libibverbs.so.1, once per process, and fills l. Returns 0 or
 * -errno with l->why; a device that does not open is left out and why says
 * so. Undone by hca_list_free(). */
int hca_list_read(struct hca_list *l, const char *libdir);
void hca_list_free(struct hca_list *l);

#endif
