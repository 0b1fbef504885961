/*
 * check_internal.h - what the files of src/check share
 */
#ifndef SOFTHCA_CHECK_INTERNAL_H
#define SOFTHCA_CHECK_INTERNAL_H

#include "check.h"

#include <pthread.h>

enum check_rule {
	CHECK_WRITTEN,
	CHECK_SQ_STUCK,
	CHECK_SQ_OVERRUN,
	CHECK_CQ_OVERRUN,
	CHECK_LOST_WAKEUP,
	CHECK_UNACKED,
	CHECK_LEAK,
	CHECK_PAST_KEY,
	CHECK_MTU,
	CHECK_PSN,
	CHECK_PEER,
	CHECK_QKEY,
	CHECK_PKEY,
	CHECK_GRH,
	CHECK_RESULT,
	CHECK_RACE,
	CHECK_RACE_CPU,
	CHECK_HOPS,
	CHECK_MTU_LARGE,
	CHECK_KEY_KIND,
	CHECK_ADDRESS_HALF,
	CHECK_UNSIGNALED,
	CHECK_RULES
};

extern struct check_env check_env;

/* stack.c */

#define CHECK_FRAMES 16

/* The return addresses of check_here()'s number, innermost first. */
unsigned check_frames(uint32_t stack, void *frames[CHECK_FRAMES]);

/* symbols.c: where pc, of a file that is mapped at base, is in that file, as
 * addr2line(1) takes it; and the function it is in, or "". */
uint64_t check_symbol(const char *file, uint64_t base, uint64_t pc, char *out,
		      size_t room);

/* Seconds that source lines are waited for. */
#define CHECK_LINES_S 3

/* lines.c: puts a question to softhca-lines, whose source has the form of both;
 * false: there is no answer. */
bool check_lines(const char *asked, char *answer, size_t room);

/* report.c */

void check_reports_begin(const char *json, int exit_status);
void check_reports_forked(void);
/* A finding: qpn is the QP it is about, or 0. The text names what has happened;
 * what to change is the rule's. */
void check_report(enum check_rule rule, uint32_t qpn,
		  const struct check_side *side, size_t nsides, const char *fmt,
		  ...) __attribute__((format(printf, 5, 6), cold));

/* cq.c */

struct check_cq {
	struct check_cq *next;
	struct ibv_cq *ib;
	_Atomic unsigned refs;
	pthread_mutex_t lock; /* before a queue's */
	uint32_t made; /* where it was created; */
	_Atomic uint32_t armed, got; /* armed; an event of it was taken */
	_Atomic int cqe;
	_Atomic int out; /* signalled requests that are posted and not polled */
	_Atomic bool said; /* that these are too many */
	/* Since when it is polled, and nothing else is done; queue.c */
	uint64_t idle_since, idle_mark;
	bool idle_said;
	uint64_t stuck_since; /* events.c; 0: it is not */
	uint32_t stuck_head, stuck_looks;
};

/* With a reference, or NULL. */
struct check_cq *check_cq_get(const struct ibv_cq *ib);
void check_cq_put(struct check_cq *c);
/* fn may not call what is above. */
void check_cqs_each(void (*fn)(struct check_cq *c, void *arg), void *arg);

/* queue.c: where a QP was connected, or else made; how many messages have been received, and
 * whether one may have come to memory since there were so many, or before. */
uint32_t check_connected(uint32_t qpn);
uint64_t check_landings(void);
bool check_landed(uint64_t addr, uint64_t length, uint64_t since);
/* A part of what comes to memory: all others follow by themselves. */
void check_came(const struct ibv_sge *sge, uint32_t n);
/* How often peers have written to memory of this process. */
uint64_t check_writes(void);

/* hash.c: of the first CHECK_BYTES of SGEs. False: some of them cannot be looked
 * at. */
bool check_hash(struct ibv_qp *qp, const struct ibv_sge *sge, uint32_t n,
		uint64_t *out);

/* sinks.c: a read or an atomic is about to be posted; what was posted to a QP is
 * void, or has not been posted. */
void check_sink_posted(struct ibv_qp *qp, const struct ibv_send_wr *wr,
		       uint32_t stack);
void check_sinks_end(uint32_t qpn);

/* In the child of a fork(). */
void check_races_forked(void);
void check_sinks_forked(void);
void check_queues_forked(void);
void check_cqs_forked(void);
void check_events_forked(void);
void check_keys_forked(void);

#endif
