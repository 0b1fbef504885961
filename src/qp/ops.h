/*
 * ops.h - what a transport does for the owner of its queue pairs
 *
 * The owner (src/verbs) holds the lock of the QP in all calls, and knows
 * nothing else of the transport. flush and post_send send on a link, so the
 * table is defined where links are known; what it calls is in the transport's
 * folder.
 */
#ifndef SOFTHCA_QP_OPS_H
#define SOFTHCA_QP_OPS_H

#include "qp.h"

struct stat_qp;
struct roce_path; /* wire/roce.h: where packets go */

struct qp_ops {
	/*
	 * A QP in state RESET; init->cap is raised to what was really
	 * allocated. 0, -ENOMEM, -EOPNOTSUPP: no such type, or -EINVAL for a
	 * capability above the limits.
	 */
	int (*create)(struct qp **qp, struct qp_init *init);
	void (*destroy)(struct qp *qp);

	/*
	 * ibv_modify_qp(3), all or nothing. path is what the owner made of
	 * attr->ah_attr (mask has IBV_QP_AV), or NULL.
	 */
	int (*modify)(struct qp *qp, const struct ibv_qp_attr *attr, int mask,
		      const struct roce_path *path);
	/* All attributes but ah_attr and alt_ah_attr. */
	void (*query)(const struct qp *qp, struct ibv_qp_attr *attr,
		      struct ibv_qp_init_attr *init);

	/*
	 * A list of requests, and what may leave at once leaves. An error is
	 * that of *bad, behind which nothing is posted; nor is what is before
	 * it, if they are posted whole or not at all.
	 */
	int (*post_send)(struct qp *qp, struct ibv_send_wr *wr,
			 struct ibv_send_wr **bad, bool whole);

	/*
	 * Sends what there is to send and sets the timer. Between two batches
	 * it makes way for whoever waits for the lock, unless all is to go.
	 * now_ns 0: it reads the clock if it has to.
	 */
	void (*flush)(struct qp *qp, uint64_t now_ns, bool all);

	/* Does what is due by now, if anything. */
	void (*expire)(struct qp *qp, uint64_t now_ns);

	/* Adds what it has counted, and sets the peer where it has one
	 * (counters/stat.h); what the QP waits for, as a sentence. */
	void (*stat)(const struct qp *qp, struct stat_qp *out);
	void (*waits)(struct qp *qp, uint64_t now_ns, char *text, size_t size);
};

#endif
