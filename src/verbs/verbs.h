/*
 * verbs.h - the objects of the verbs, as src/ibverbs and src/rdmacm use them
 *
 * Each object begins with the public struct of <infiniband/verbs.h> that
 * programs hold. Functions return 0 or -errno; the slots of a context, which
 * code inlined into programs calls directly (context.c), speak the public
 * conventions instead.
 *
 * A parent counts its users and refuses to go (-EBUSY) before them. In the
 * child of a fork the objects of the parent are dead: calls return -EIO and
 * change nothing.
 */
#ifndef SOFTHCA_VERBS_VERBS_H
#define SOFTHCA_VERBS_VERBS_H

#include "ah.h"
#include "check_slots.h"
#include "context.h"
#include "cq.h"
#include "device.h"
#include "dm.h"
#include "handles.h"
#include "memory.h"
#include "mw.h"
#include "pd.h"
#include "qp.h"
#include "srq.h"
#include "xrcd.h"

#include "hooks/faults.h"
#include "os/report.h"

#include <errno.h>

/*
 * Results of functions here in the public conventions: 0, or -1 with errno set;
 * a pointer, or NULL with errno set; 0 or the errno value, with errno set as
 * well, since programs read it after calls that enter the kernel in rdma-core.
 * They are for the public functions themselves, whose name --explain reports.
 */
static inline int shca_minus_one(const char *func, int err)
{
	if (err >= 0)
		return 0;
	WHY_REPORT(func, err);
	errno = -err;
	return -1;
}

static inline int shca_number(const char *func, int err)
{
	return shca_minus_one(func, err) ? -err : 0;
}

#define minus_one(err) shca_minus_one(__func__, err)
#define number(err) shca_number(__func__, err)
#define POINTER(err, p) (minus_one(err) ? NULL : (p))

/* Announced by ibv_query_device(3), and kept. */
#define SHCA_MAX_CQE (1 << 22)
#define SHCA_MAX_OBJECTS                                                       \
	(1 << 16) /* QPs, CQs, SRQs, PDs, AHs: of each kind   \
				    */
#define SHCA_MAX_MR_SIZE (1ULL << 47) /* the address space */
#define SHCA_DM_SIZE (16 << 20) /* device memory of one context */
#define SHCA_MAX_MCAST_GRP 256
#define SHCA_MAX_MCAST_QP 64 /* QPs of one group in this process */

#endif
