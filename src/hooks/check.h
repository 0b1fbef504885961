/*
 * check.h - calls of the verbs, for who looks for bugs in the program (src/check)
 *
 * Where nobody does, there is a flag where objects are made and destroyed, and
 * nothing on other paths.
 */
#ifndef SOFTHCA_HOOKS_CHECK_H
#define SOFTHCA_HOOKS_CHECK_H

#include <infiniband/verbs.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What both ends are to know of each other. */
struct check_end {
	uint32_t generation; /* as long as it is the same, so is the rest */
	uint32_t mtu; /* bytes */
	uint32_t psn; /* sq_psn here, rq_psn there */
	uint32_t dest_qpn; /* whom it is connected to */
};

/* The other end of a QP. */
struct check_peer {
	uint32_t qpn;
	int pid; /* 0: not known */
	uint64_t posted; /* when it last posted anything; 0: not known */
};

/* What the owner of the objects does for the checks. */
struct check_env {
	/*
	 * Runs fn(arg, p), which reads the len bytes at p that an SGE of a QP
	 * leads to. False: the memory is not there, or is none to be looked at.
	 */
	bool (*read)(struct ibv_qp *qp, const struct ibv_sge *sge, uint32_t len,
		     void (*fn)(void *arg, const void *p), void *arg);
	/* Whether a CQ has completions that nobody has taken, *count from *head
	 * on, and is armed for the next one. */
	bool (*waits)(struct ibv_cq *cq, uint32_t *head, uint32_t *count);
	/* Who changes memory here by a QP, whose lock is held. */
	void (*peer)(struct ibv_qp *qp, struct check_peer *peer);
	/* How many receives are posted to a QP's own queue. */
	uint32_t (*receives)(struct ibv_qp *qp);
	/* The program is about to post to a QP. */
	void (*posting)(struct ibv_qp *qp);
	/* The ends of a connection, an RC QP's own and the one there, if that is
	 * known. */
	bool (*ends)(struct ibv_qp *qp, struct check_end *own,
		     struct check_end *there);
};

/* What two ends that are connected to each other do not have alike. */
enum check_pair {
	CHECK_PAIR_PSN, /* sq_psn here and rq_psn there */
	CHECK_PAIR_QP, /* dest_qp_num, types */
	CHECK_PAIR_QKEY,
	CHECK_PAIR_PKEY
};

/* What is wrong with an address, or how it is used. */
enum check_address {
	CHECK_ADDRESS_GRH, /* it has none */
	CHECK_ADDRESS_HOPS, /* hop_limit 0, and it is another host's */
	CHECK_ADDRESS_MTU, /* path_mtu does not fit its interface */
};

/* What is wrong with a key that a request names. */
enum check_key {
	CHECK_KEY_PAST, /* it has ended */
	CHECK_KEY_OTHER, /* an lkey where an rkey is due, or one for the other */
	CHECK_KEY_CUT, /* none, but only half of the address is there */
};

/* A thread sleeps until a channel has an event. */
struct check_sleep {
	struct check_sleep *next;
	struct ibv_comp_channel *channel;
	uint32_t stack;
	uint64_t since;
};

/* How long destroying an object waits for its events to be acknowledged before
 * that is reported. */
#define CHECK_UNACKED_S 5

/* Each is described in check/check.h, as check_NAME(). */
struct check_ops {
	uint32_t (*here)(void);
	bool (*wants_leaks)(void);
	void (*leaked)(const char *call, const char *object, uint32_t made);
	void (*exit)(void);

	void (*disagrees)(enum check_pair what, uint32_t qpn, const char *text);
	void (*address)(enum check_address what, const char *text);

	void (*qp_created)(struct ibv_qp *qp, const struct ibv_qp_cap *cap,
			   bool sig_all);
	void (*qp_connected)(struct ibv_qp *qp);
	void (*qp_void)(struct ibv_qp *qp, bool known);
	void (*qp_gone)(struct ibv_qp *qp);
	void (*allowed)(uint32_t qpn);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr,
			 struct ibv_send_wr **bad,
			 int (*post)(struct ibv_qp *qp, struct ibv_send_wr *wr,
				     struct ibv_send_wr **bad));

	void (*cq_created)(struct ibv_cq *cq, int cqe);
	void (*cq_resized)(struct ibv_cq *cq, int cqe);
	void (*cq_gone)(struct ibv_cq *cq);
	void (*cq_armed)(struct ibv_cq *cq);
	void (*cq_event)(struct ibv_cq *cq);
	int (*poll)(struct ibv_cq *cq, int n, struct ibv_wc *wc,
		    int (*poll)(struct ibv_cq *cq, int n, struct ibv_wc *wc));
	void (*polled)(struct ibv_cq *cq, const struct ibv_wc *wc);

	void (*key_ended)(uint32_t key);
	void (*sleep_begin)(struct check_sleep *s,
			    struct ibv_comp_channel *channel);
	void (*sleep_end)(void *sleep);
	void (*unacked)(struct ibv_cq *cq, const char *call, const char *ack,
			uint32_t missing);
};

/* NULL: nothing is attached. Set before check_is_on is. */
extern const struct check_ops *check_ops __attribute__((visibility("hidden")));
extern _Atomic bool check_is_on __attribute__((visibility("hidden")));

/* Whether the program is checked. */
static inline bool check_on(void)
{
	return __builtin_expect(
		atomic_load_explicit(&check_is_on, memory_order_relaxed), 0);
}

/* Where the program is now: a number; 0: not known. */
uint32_t check_callsite(void) __attribute__((noinline, cold));

#endif
