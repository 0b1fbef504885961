/*
 * cq.h - completion queues and channels
 */
#ifndef SOFTHCA_VERBS_CQ_H
#define SOFTHCA_VERBS_CQ_H

#include "base/backoff.h"
#include "base/retired.h"
#include "transport/shared.h"

struct shca_cq;

struct shca_channel {
	struct ibv_comp_channel ch; /* refcnt: CQs, under lock */
	pthread_mutex_t lock; /* after a CQ's */
	struct shca_cq **queue; /* ring of CQs with an event, oldest first */
	uint32_t size, head, tail; /* size: power of two */
	/* A thread that waits, and makes progress (engine_sleep()). */
	bool waits;
	pthread_t waiter;
	uint32_t reading; /* threads that wait for a token instead */
	uint32_t
		untokened; /* in the queue, put there by that thread: no token yet */
	struct backoff left; /* a try: to leave untokened ones without */
	/* In the queue, put there by a thread that gives them tokens when it has
	 * received. */
	uint32_t late;
	struct engine_after after;
	bool awaited; /* that thread: the channel stays */
	_Atomic unsigned
		prompt; /* events in a row that nobody had waited for */
	_Atomic bool closed; /* it has been destroyed */
	struct retired_kept kept;
};

/* The completion of a UC write is about to be polled. armed: as engine_poll(). */
void shca_answer_wait(struct shca_cq *cq, bool armed);
/* As roce_env.uc_sent and uc_written. */
void shca_env_uc_sent(struct qp *core, uint32_t length);
void shca_env_uc_written(struct qp *core);

/* channel.c */
static inline struct shca_channel *to_comp_channel(struct ibv_comp_channel *ch)
{
	return container_of(ch, struct shca_channel, ch);
}
int shca_channels_init(struct engine *e);
int shca_channel_create(struct ibv_context *ctx, struct ibv_comp_channel **ch);
int shca_channel_destroy(struct ibv_comp_channel *ch);
int shca_channel_get(struct ibv_comp_channel *ch, struct ibv_cq **cq,
		     void **cq_context);
/* Whether who takes its events sleeps in ibv_get_cq_event(), as far as is
 * known, and makes progress there. */
bool shca_channel_is_waited_for(const struct shca_channel *ch);
/* An event of a CQ. */
void shca_channel_push(struct shca_channel *ch, struct shca_cq *cq);
/* Removes the events of a CQ that were not reported; returns how many were. */
uint32_t shca_channel_clean(struct shca_channel *ch, struct shca_cq *cq);

/* cq.c */
int shca_cq_create(struct ibv_context *ctx,
		   const struct ibv_cq_init_attr_ex *attr, struct ibv_cq **cq);
int shca_cq_resize(struct ibv_cq *cq, int cqe);
int shca_cq_modify(struct ibv_cq *cq, const struct ibv_modify_cq_attr *attr);
/* The timer of a moderated CQ has expired. */
void shca_cq_late(struct engine *e, int fd);
int shca_cq_destroy(struct ibv_cq *cq);
int shca_cq_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int shca_cq_notify(struct ibv_cq *cq, int solicited_only);
/* env.complete: appends one completion. */
int shca_cq_add(struct shca_cq *cq, const struct ibv_wc *wc, bool solicited);
/* check_env.waits: whether it is armed although completions, *count from *head on,
 * are there, which raise no event. */
bool shca_cq_waits(struct ibv_cq *cq, uint32_t *head, uint32_t *count);
/* Whether completions of a QP wait to be polled. */
bool shca_cq_holds(struct shca_cq *cq, uint32_t qpn);
/* Removes the completions of a QP. */
void shca_cq_clean(struct shca_cq *cq, uint32_t qpn);

/* For the process. */
int shca_cqs_init(struct engine *e);

#endif
