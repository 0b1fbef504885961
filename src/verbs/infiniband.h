/*
 * infiniband.h - devices of InfiniBand: LIDs, and what is otherwise for them
 */
#ifndef SOFTHCA_VERBS_INFINIBAND_H
#define SOFTHCA_VERBS_INFINIBAND_H

#include "device.h"

/* Before there are devices of it. */
const struct shca_transport *shca_infiniband(void);
/* Of devices: says which have no LID, or the same, and why. */
void shca_infiniband_say(struct shca_device *const *devices, int n);
/* As qp_env.complete. */
int shca_infiniband_complete(struct qp *core, void *cq, const struct ibv_wc *wc,
			     bool solicited);

#endif
