/*
 * qp_masks.h - the attributes that a QP of each type needs on its way to RTS
 *
 * Just the masks: what the attributes are, and what follows where a step fails,
 * differs from program to program.
 */
#ifndef SOFTHCA_TESTS_LIB_QP_MASKS_H
#define SOFTHCA_TESTS_LIB_QP_MASKS_H

#include <infiniband/verbs.h>

static inline int init_mask(enum ibv_qp_type type)
{
	return IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
	       (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
}

static inline int rtr_mask(enum ibv_qp_type type)
{
	const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
			 IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	if (type == IBV_QPT_UD)
		return IBV_QP_STATE;
	return type == IBV_QPT_RC ?
		       mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER :
		       mask;
}

static inline int rts_mask(enum ibv_qp_type type)
{
	const int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	return type == IBV_QPT_RC ?
		       mask | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
			       IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC :
		       mask;
}

#endif
