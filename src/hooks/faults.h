/*
 * faults.h - packets, receives and calls, for who makes them fail on purpose
 * (src/faults)
 *
 * A process that has a script sends all packets by UDP, as they would be on the
 * wire (os/config.c), so that all are seen here.
 */
#ifndef SOFTHCA_HOOKS_FAULTS_H
#define SOFTHCA_HOOKS_FAULTS_H

#include <stddef.h>

struct engine;
struct engine_qp;
struct roce_batch;
struct roce_rx;

/* Calls that can fail, by their names in scripts: ibv_ and the name. */
#define FAULT_VERBS(V)                                                         \
	V(OPEN_DEVICE, open_device)                                            \
	V(ALLOC_PD, alloc_pd)                                                  \
	V(REG_MR, reg_mr)                                                      \
	V(ALLOC_MW, alloc_mw)                                                  \
	V(CREATE_COMP_CHANNEL, create_comp_channel)                            \
	V(CREATE_CQ, create_cq)                                                \
	V(RESIZE_CQ, resize_cq)                                                \
	V(REQ_NOTIFY_CQ, req_notify_cq)                                        \
	V(CREATE_SRQ, create_srq)                                              \
	V(CREATE_AH, create_ah)                                                \
	V(CREATE_QP, create_qp)                                                \
	V(MODIFY_QP, modify_qp)                                                \
	V(POST_SEND, post_send)                                                \
	V(POST_RECV, post_recv)                                                \
	V(POST_SRQ_RECV, post_srq_recv)

#define FAULT_VERB_ENUM(upper, lower) FAULT_##upper,
enum fault_verb { FAULT_VERBS(FAULT_VERB_ENUM) FAULT_NVERBS };
#undef FAULT_VERB_ENUM

struct faults_ops {
	/* A program calls a verb: 0, or the -errno that the script wants. */
	int (*call)(enum fault_verb v);

	/* An engine begins, and sets e->faults; and ends. */
	void (*begin)(struct engine *e);
	void (*end)(struct engine *e);
	/* A program has opened a device: events may be raised from now on. */
	void (*opened)(struct engine *e);

	/* As engine_send(), where e->faults is not NULL. */
	size_t (*send)(struct engine *e, struct engine_qp *qp,
		       const struct roce_batch *b, int *err);
	/* Likewise, a packet that has come: next(arg, pkt) goes on with it. */
	void (*rx)(struct engine *e, const struct roce_rx *pkt,
		   void (*next)(void *arg, const struct roce_rx *pkt),
		   void *arg);

	/* Reports which lines have acted, unless nothing has changed. */
	void (*explain)(void);
	/* Which have, for the end of a sentence; or "". */
	void (*note)(char *out, size_t size);
};

/* NULL: there is no script. Set before the first device is open. */
extern const struct faults_ops *faults_ops
	__attribute__((visibility("hidden")));

/* faults_ops->call(), out of line. */
int faults_call(enum fault_verb v) __attribute__((noinline, cold));
static inline int engine_fault(enum fault_verb v)
{
	return __builtin_expect(faults_ops == NULL, 1) ? 0 : faults_call(v);
}

#endif
