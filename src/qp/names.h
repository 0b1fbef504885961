/*
 * names.h - the names of states, types and attributes, for messages
 */
#ifndef SOFTHCA_QP_NAMES_H
#define SOFTHCA_QP_NAMES_H

#include <infiniband/verbs.h>
#include <stdint.h>

/* "RTR", "RC"; "?" for others. */
const char *qp_state_str(unsigned state);
const char *qp_type_str(unsigned type);

struct qp_names {
	char text[400];
};

/* "IBV_QP_AV | IBV_QP_RQ_PSN"; bits without a name as a number. "none": 0.
 * The text lives as long as the struct. */
const char *qp_mask_str(int mask, struct qp_names *names);

#endif
