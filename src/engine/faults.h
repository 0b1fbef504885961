/*
 * faults.h - faults on purpose (softhca run --faults), where they happen
 *
 * One script per process, read when the first device is opened; its counts go
 * on over all engines. A process that has one sends all packets by UDP, as they
 * would be on the wire (os/config.c), so that all are seen by faults_send()
 * and faults_rx().
 */
#ifndef SOFTHCA_ENGINE_FAULTS_H
#define SOFTHCA_ENGINE_FAULTS_H

#include "faults/faults.h"
#include "roce/qp.h"

struct engine;
struct engine_qp;

enum faults_state { FAULTS_UNKNOWN, FAULTS_NONE, FAULTS_SOME };
extern _Atomic int faults_state __attribute__((visibility("hidden")));

/* A program calls a verb: 0, or the -errno that the script wants. */
int faults_call(enum fault_verb v);
static inline int engine_fault(enum fault_verb v)
{
	return __builtin_expect(atomic_load_explicit(&faults_state,
						     memory_order_relaxed) ==
					FAULTS_NONE,
				1) ?
		       0 :
		       faults_call(v);
}

/* The script has a line of this action. */
bool faults_any(enum fault_action a);

/* An engine begins: e->faults, or NULL; and ends. */
void faults_begin(struct engine *e);
void faults_end(struct engine *e);
/* A program has opened a device: events may be raised from now on. */
void faults_opened(struct engine *e);
/* In the child of a fork(). */
void faults_forked(void);

/* As engine_send() and a link_rx_fn, where e->faults is not NULL. */
size_t faults_send(struct engine *e, struct engine_qp *qp,
		   const struct roce_batch *b, int *err);
void faults_rx(void *round, const struct roce_rx *pkt);
/* Whether the receive queue of a QP is to look empty. */
bool faults_withhold(const struct qp *core);

/* Reports which lines have acted, unless nothing has changed. */
void faults_explain(void);
/* Which have, for the end of a sentence; or "". */
void faults_note(char *out, size_t size);

#endif
