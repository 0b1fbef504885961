/*
 * check.h - finds latent bugs in a program of the verbs (softhca run
 * --check)
 *
 * The checks know of a program what passes the calls of the verbs, and see
 * public structs only: src/verbs/check_slots.c puts them around its functions,
 * once check_begin() has been called, by the table of hooks/check.h. Until then
 * there is nothing on any path but a flag, where objects are made and destroyed.
 *
 * Each finding is reported once per rule and place: a place is what the program
 * was doing, and where it had begun what that disturbs. What each rule finds,
 * and what it cannot, is in docs/CHECK.md.
 *
 * Locks here come before all others, but those of reports (report.c), which are
 * taken anywhere. A function of the program never runs under them.
 */
#ifndef SOFTHCA_CHECK_CHECK_H
#define SOFTHCA_CHECK_CHECK_H

#include "hooks/check.h"

/* Bytes of a work request that are compared, from the first on; and SGEs. */
#define CHECK_BYTES 65536u
#define CHECK_SGES 4u

/* Is called anywhere: text says what each has, in a sentence. */
void check_disagrees(enum check_pair what, uint32_t qpn, const char *text)
	__attribute__((cold));
/* An address, or a use of it, that is wrong or works by luck; text says how. */
void check_address(enum check_address what, const char *text)
	__attribute__((cold));

/* Sets check_ops, and begins if SOFTHCA_CHECK says so (options.h); again:
 * nothing. */
void check_begin(const struct check_env *env);
/* In the child of a fork(): its parent's objects are none of its own. */
void check_forked(void);
/* The process exits: says how many findings there were, and may end it. */
void check_exit(void);

/*
 * Where the program is now: a number that stands for the backtrace, 0: not
 * known, or check_callsites() has not been called, which check_begin() does if
 * the program is checked.
 */
void check_callsites(void);
uint32_t check_here(void);

/* Where the program was when it did one of the things that go, or do not go,
 * together: "posted". */
struct check_side {
	const char *what;
	uint32_t stack;
};
#define CHECK_SIDES 4 /* at most together */

/* Prints each, and its frames; of those that are not known nothing. */
void check_say_places(const struct check_side *side, size_t nsides)
	__attribute__((cold));

/* An object that is left behind: how it is called, and where it was made. */
void check_leaked(const char *call, const char *object, uint32_t made)
	__attribute__((cold));
/* Whether that is wanted, of a program that is checked. */
bool check_wants_leaks(void);

/* queue.c: what is posted to queue pairs, and what is polled of it */

/* A QP has been created; cap is what the program was told. */
void check_qp_created(struct ibv_qp *qp, const struct ibv_qp_cap *cap,
		      bool sig_all);
/* It has been connected. */
void check_qp_connected(struct ibv_qp *qp);
/* What was posted to it is void: it is in RESET or goes. False: in error, where
 * completions no longer show what has been done. */
void check_qp_void(struct ibv_qp *qp, bool known);
void check_qp_gone(struct ibv_qp *qp);

/* post() does what ibv_post_send(3) does. */
int check_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr,
		    struct ibv_send_wr **bad,
		    int (*post)(struct ibv_qp *qp, struct ibv_send_wr *wr,
				struct ibv_send_wr **bad));
/* The same of ibv_poll_cq(3). */
int check_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc,
	       int (*poll)(struct ibv_cq *cq, int n, struct ibv_wc *wc));
/* A completion that one thread at a time takes from its CQ. */
void check_polled(struct ibv_cq *cq, const struct ibv_wc *wc);
/* A peer writes to memory of this process: the program may see by that what has
 * become of its requests. */
void check_written(void);
/* A message begins to come into the memory of a receive. */
void check_received(const struct ibv_sge *sge, uint32_t n);

/* sinks.c: a part of what a read or an atomic has asked for, first: its first,
 * is about to be stored. The lock of the QP is held. */
void check_arriving(struct ibv_qp *qp, uint64_t wr_id,
		    const struct ibv_sge *sge, uint32_t n, bool first);

/* races.c: what peers change in memory of this process */

enum check_change_kind { CHECK_WRITE, CHECK_ADD, CHECK_SWAP };

/* A part of a message, or all. */
struct check_change {
	enum check_change_kind kind;
	uint64_t addr, len;
	const void
		*data; /* that comes there; NULL: not known, or an atomic's */
	bool first, last;
};

/* It is about to be made, and has been, or not; between the two no other is. The
 * lock of the QP is held, as in the others. */
void check_changing(struct ibv_qp *qp, const struct check_change *c);
void check_changed(bool done);
/* The program has let a QP go on: it has posted a receive, which is used now, or
 * modified it. */
void check_allowed(uint32_t qpn);
/* The QP is in error, or goes. */
void check_writes_end(uint32_t qpn);

/* cq.c: a CQ, with room for as many completions as the program knows of; it has
 * been armed, or an event of it was taken. */
void check_cq_created(struct ibv_cq *cq, int cqe);
void check_cq_resized(struct ibv_cq *cq, int cqe);
void check_cq_gone(struct ibv_cq *cq);
void check_cq_armed(struct ibv_cq *cq);
void check_cq_event(struct ibv_cq *cq);

/* keys.c: an lkey or rkey ends, or 0; and one is refused that a request names, of
 * the peer or the program's own, for memory at va. */
void check_key_ended(uint32_t key);
void check_key_refused(uint32_t qpn, enum check_key what, uint32_t key,
		       uint64_t va, bool remote) __attribute__((cold));

/* events.c: a thread is about to sleep until a channel has an event, and is
 * back again. */
void check_sleep_begin(struct check_sleep *s, struct ibv_comp_channel *channel);
void check_sleep_end(void *sleep);

void check_unacked(struct ibv_cq *cq, const char *call, const char *ack,
		   uint32_t missing) __attribute__((cold));

#endif
