/*
 * answer.c - the sender of a UC write receives the write that answers it
 *
 * Two programs that write to each other and look at their memory, as those of
 * ib_write_lat, poll their CQ only for the completion of what they have sent.
 * With RC that comes with the ACK, which waits for the answer (engine/delayed_ack.c),
 * so each receives the other's write at its CQ. A UC write completes as soon as
 * it is sent: no thread would poll, and the write would wait for the library's,
 * which two programs that spin leave no processor. So the thread that polls the
 * completion of a UC write receives until a UC write has arrived, for as long
 * as such a write and its answer may take. Where none arrives it does so less
 * often. On the wire it measured no better than the thread, so only a peer of
 * this host is waited for.
 */
#include "verbs.h"

/* Longer than it takes where the peer's thread receives, so that one end that
 * waits is enough to begin with; each byte of a message adds a nanosecond. */
#define ANSWER_NS 100000u
#define ANSWER_MAX_NS 1000000u
/* After a wait in vain there is none for twice as long, in the end for 64 times
 * as long; so many completions are between two looks at the clock then. */
#define TIMES_MIN 2
#define TIMES_MAX 64
#define SKIP 15

void shca_env_uc_sent(struct qp *core, uint32_t length)
{
	struct shca_qp *qp = core->owner;
	struct shca_cq *cq = core->send_cq;

	if (qp->sched.engine->segment &&
	    roce_path_in_host(roce_qp_path(roce_qp(core))))
		atomic_store_explicit(
			&cq->answer.due_ns,
			min_u32(ANSWER_NS + length, ANSWER_MAX_NS),
			memory_order_relaxed);
}

void shca_env_uc_written(struct qp *core)
{
	const struct shca_qp *qp = core->owner;
	struct shca_process *p = to_process(qp->sched.engine);

	atomic_fetch_add_explicit(&p->uc_written, 1, memory_order_relaxed);
}

void shca_answer_wait(struct shca_cq *cq, bool armed)
{
	static const struct backoff_rule rule = { .first = TIMES_MIN,
						  .most = TIMES_MAX };
	struct shca_answer *a = &cq->answer;
	struct shca_process *p = to_process(cq->engine);
	const uint32_t due =
		atomic_load_explicit(&a->due_ns, memory_order_relaxed);
	uint64_t now, begin, end;
	uint32_t written;

	atomic_store_explicit(&a->due_ns, 0, memory_order_relaxed);
	if (backoff_skips(&a->backoff))
		return;
	begin = clock_ns();
	if (begin <
	    atomic_load_explicit(&a->not_before, memory_order_relaxed)) {
		backoff_skip(&a->backoff, SKIP);
		return;
	}
	written = atomic_load_explicit(&p->uc_written, memory_order_relaxed);
	end = begin + due;
	do {
		engine_poll(cq->engine, armed);
		if (atomic_load_explicit(&p->uc_written,
					 memory_order_relaxed) != written) {
			backoff_succeed(&a->backoff);
			return;
		}
		now = clock_ns();
	} while (now < end);
	atomic_store_explicit(&a->not_before,
			      now + (now - begin) *
					      backoff_grow(&a->backoff, &rule),
			      memory_order_relaxed);
}
