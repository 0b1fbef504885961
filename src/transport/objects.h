/*
 * objects.h - what transports see of the objects that programs hold
 *
 * Of all but queue pairs (qp.h): src/verbs makes them, and does the rest.
 */
#ifndef SOFTHCA_TRANSPORT_OBJECTS_H
#define SOFTHCA_TRANSPORT_OBJECTS_H

#include "base/backoff.h"
#include "base/lock.h"
#include "qp/rq.h"
#include "roce/qp.h"

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum shca_kind {
	SHCA_PD,
	SHCA_MW,
	SHCA_CQ,
	SHCA_SRQ,
	SHCA_QP,
	SHCA_AH,
	SHCA_MR,
	SHCA_KINDS
};

#define container_of(ptr, type, member)                                        \
	((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* verbs/handles.h */

struct shca_live {
	struct shca_live *next;
	void *object; /* the public struct */
	struct ibv_context *context;
	uint32_t handle;
	enum shca_kind kind;
	uint32_t made; /* check_callsite() */
	bool stays; /* the library's own, or reported as left behind */
};

/* verbs/cq.h */

struct shca_cqe {
	struct ibv_wc wc;
	uint64_t ts; /* CLOCK_MONOTONIC, if the CQ wants it */
};

enum shca_arm { SHCA_UNARMED, SHCA_ARMED_SOLICITED, SHCA_ARMED };

/* verbs/answer.c: a UC write of whoever polls a CQ has been sent. */
struct shca_answer {
	_Atomic uint32_t
		due_ns; /* how long to wait for another; 0: not at all */
	struct backoff backoff; /* a try: to look at the clock */
	_Atomic uint64_t not_before; /* no wait until then */
};

struct shca_cq {
	struct ibv_cq_ex ex; /* begins like struct ibv_cq */
	struct shca_live live;
	struct engine *engine;
	_Atomic unsigned users; /* QPs, a send and a receive side each; SRQs */
	struct ibv_pd *parent; /* whose allocator the ring is from, or NULL */
	struct qp_mem mem;

	struct lock lock; /* of what follows; after a QP's */
	struct shca_cqe *ring;
	uint32_t depth; /* power of two */
	_Atomic uint32_t head, tail; /* free-running */
	_Atomic int armed; /* enum shca_arm */
	struct shca_answer answer;
	bool overrun; /* IBV_EVENT_CQ_ERR was raised; completions are lost */
	/* Moderation: an event after so many completions, or so long. */
	uint16_t mod_count, mod_usec; /* one is 0: at once */
	uint32_t mod_pending; /* completions that wait for an event */
	int mod_fd; /* timer, or -1 */
	struct shca_cq *mod_next; /* the process's cqs.late_lock */
	uint32_t comp_reported; /* events reported; the channel's lock */
	uint32_t async_reported; /* the context's async_lock */

	/* ibv_cq_ex: one thread between start_poll and end_poll. */
	struct lock poll_lock; /* before all other locks */
	bool single_threaded;
	bool ignore_overrun;
	bool want_ts;
	struct shca_cqe cur;
};

static inline struct shca_cq *to_cq(struct ibv_cq *cq)
{
	return (struct shca_cq *)(void *)cq;
}

/* verbs/ah.h */

struct shca_ah {
	struct ibv_ah ah;
	struct shca_live live;
	struct roce_path path;
};

static inline struct shca_ah *to_ah(struct ibv_ah *ah)
{
	return container_of(ah, struct shca_ah, ah);
}

#endif
