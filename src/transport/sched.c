/*
 * sched.c - a QP as the engine schedules it (engine/qp.h)
 */
#include "record.h"
#include "shared.h"
#include "xrc.h"

#include <stdlib.h>

static void sched_rx(struct engine_qp *qp, const struct roce_rx *pkt,
		     uint64_t now)
{
	shca_qp_rx(sched_qp(qp), pkt, now);
}

static void sched_rx_recorded(struct engine_qp *qp, const struct roce_rx *pkt,
			      uint64_t now)
{
	if (tracing()) /* not in the child of a fork */
		shca_record_rx(sched_qp(qp), pkt, now);
	else
		shca_qp_rx(sched_qp(qp), pkt, now);
}

static void sched_flush(struct engine_qp *qp, uint64_t now)
{
	shca_qp_flush(sched_qp(qp), now);
}

static void sched_run(struct engine_qp *qp, uint64_t now)
{
	shca_qp_doom(sched_qp(qp));
	shca_qp_expire(sched_qp(qp), now);
	shca_qp_flush(sched_qp(qp), now);
}

static bool sched_hold(struct engine_qp *qp)
{
	return shca_qp_ack_hold(sched_qp(qp));
}

static void sched_release(struct engine_qp *qp, uint64_t now)
{
	shca_qp_ack_release(sched_qp(qp));
	shca_qp_flush(sched_qp(qp), now);
}

static void sched_free(struct engine_qp *qp)
{
	free(sched_qp(qp)->xrc);
	free(sched_qp(qp));
}

#define REST                                                                   \
	.flush = sched_flush, .run = sched_run, .hold = sched_hold,            \
	.release = sched_release, .free = sched_free

const struct engine_qp_ops shca_roce_sched = { .rx = sched_rx, REST };
const struct engine_qp_ops shca_roce_sched_recorded = { .rx = sched_rx_recorded,
							REST };

void shca_qp_init(struct shca_qp *qp, struct engine *e,
		  const struct shca_transport *t)
{
	engine_qp_init(&qp->sched, e, tracing() ? t->sched_recorded : t->sched);
}
