/*
 * ah.h - address handles
 */
#ifndef SOFTHCA_VERBS_AH_H
#define SOFTHCA_VERBS_AH_H

#include "device.h"

/*
 * The path of an address vector. -EINVAL: it has another port, an empty
 * sgid_index, or of RoCE no GRH, or GIDs of two families.
 */
int shca_path(struct shca_device *dev, const struct ibv_ah_attr *attr,
	      struct roce_path *path, struct netdev_gid *via);
/* The one of a path, of devices that have address handles. */
void shca_av(struct shca_device *dev, const struct roce_path *path,
	     struct ibv_ah_attr *attr);
/* For naming->path(): -EINVAL: it is for another port. */
int shca_path_port(const struct ibv_ah_attr *attr);
/* Where its end is, seen from this host. */
void shca_path_place(struct roce_path *path);
/* Whether that is another network namespace of this host, where qpn is, or, for
 * 0, anybody who receives at its address. Sends a packet if it may be so. */
void shca_path_prove(struct engine *e, struct roce_path *path, uint32_t qpn);
int shca_ah_create(struct ibv_pd *pd, struct ibv_ah_attr *attr,
		   struct ibv_ah **ah);
int shca_ah_destroy(struct ibv_ah *ah);
/* The Ethernet address that packets go to; vid may be NULL. May wait, see
 * net/neigh.h. */
int shca_resolve_l2(struct ibv_context *ctx, const struct ibv_ah_attr *attr,
		    uint8_t mac[6], uint16_t *vid);
int shca_ah_init_from_wc(struct ibv_context *ctx, uint8_t port,
			 const struct ibv_wc *wc, const struct ibv_grh *grh,
			 struct ibv_ah_attr *attr);

#endif
