/*
 * move.h - a process that is suspended tells its peers on other hosts
 *
 * One end is suspended, and may come back at another address: it asks each process
 * that its queue pairs are connected to whether it understands (HELLO), once for
 * each time; asks it to wait (PAUSE), and says when it is back, and where (RESUME).
 * The other end keeps nothing for that but the last counter of each queue pair: its
 * part of the key it computes anew from what the message says.
 *
 * Sans-I/O, as the connection manager (cm/cm.h): what comes is handed to move_rx(),
 * what is to be sent goes to config.send(), and move_expire() is due at
 * move_deadline(). All calls are serialised by whoever owns it.
 */
#ifndef SOFTHCA_MOVE_MOVE_H
#define SOFTHCA_MOVE_MOVE_H

#include "message.h"

#include "wire/roce.h"

struct move;

/* Where the peer of a queue pair is from now on. */
struct move_news {
	uint32_t peer; /* its number */
	union ibv_gid at;
	/* The chunk of numbers that communication IDs of its process are of, in
	 * their middle 12 bits: it was another one, unless both are 0. */
	uint32_t ids_were, ids_are;
};

/* What a queue pair has accepted last of the process that it is connected to. */
struct move_said {
	uint64_t process, counter;
};

/* A reliable connection in RTR or RTS, as it is now. */
struct move_qp {
	uint32_t qpn, peer;
	struct roce_path path; /* from here to there */
	uint32_t una, end_psn; /* not acknowledged; next to be sent first */
	uint32_t epsn; /* expected */
	bool silent; /* it has not sent yet, and has no PSNs of its own */
	bool unheard; /* nor has its peer */
	struct move_said said;
};

struct move_config {
	uint64_t process; /* at random, */
	uint8_t secret[SIPHASH_KEY]; /* likewise; nobody else knows it */
	/* What only trusted hosts know, if there is such a thing. */
	bool keyed;
	uint8_t shared[SIPHASH_KEY];

	/* The queue pair of ours with this number; false: there is none, or it
	 * is none of a reliable connection that is up. */
	bool (*look)(void *arg, uint32_t qpn, struct move_qp *qp);
	/* It sends no request until then, and no timeout runs. */
	void (*pause)(void *arg, uint32_t qpn, uint64_t until_ns,
		      const struct move_said *said);
	/* Its peer is there, and goes on. */
	void (*follow)(void *arg, uint32_t qpn, const struct move_news *news,
		       const struct move_said *said);
	/* Its peer has heard that we are back. */
	void (*known)(void *arg, uint32_t qpn);
	/* From QP1 to QP1. */
	void (*send)(void *arg, const struct roce_path *path,
		     const uint8_t mad[MAD_LEN]);
	void *arg;
};

/* 0 or -ENOMEM. */
int move_create(struct move **m, const struct move_config *cfg);
void move_destroy(struct move *m);

/* Came to QP1 at dgid (ours; scope: the interface index if that is link-local). */
void move_rx(struct move *m, const union ibv_gid *sgid,
	     const union ibv_gid *dgid, uint32_t scope, const uint8_t *mad,
	     size_t len, uint64_t now_ns);

/*
 * leave.c: the one that is suspended. A plan has the queue pairs that are to wait
 * at the other end, in this order (for qsort()); the next plan replaces it. 0 or
 * -ENOMEM. The nonce is random. Of a chunk of numbers (MOVE_CHUNK) that are others
 * when it is back: the first ones. Communication IDs may be of such a chunk, too.
 */
int move_order(const void *a, const void *b);
int move_plan(struct move *m, const uint8_t nonce[MOVE_NONCE],
	      const struct move_qp *qps, size_t n);
void move_renumber(struct move *m, uint32_t from, uint32_t to);
void move_renumber_ids(struct move *m, uint32_t from, uint32_t to);
/* In this order; each asks, and repeats that for MOVE_PATIENCE_NS at most
 * (move_resume(): for so long as the pause lasts). */
#define MOVE_PATIENCE_NS UINT64_C(750000000)
void move_hello(struct move *m, uint64_t now_ns);
void move_pause(struct move *m, uint32_t seconds, uint64_t now_ns);
void move_resume(struct move *m, uint64_t now_ns);
/* Whether answers may still come. */
bool move_waits(const struct move *m);
/* UINT64_MAX: never. */
uint64_t move_deadline(const struct move *m);
void move_expire(struct move *m, uint64_t now_ns);

/* What has become of the plan, in queue pairs. */
struct move_sum {
	size_t all;
	size_t hello; /* whose peer understands, */
	size_t paused; /* has said that it waits, */
	size_t resumed; /* that it goes on */
	bool other_secret; /* a peer has another one, or none, or we have */
};
struct move_sum move_sum(const struct move *m);
/* Whether the peer of this one, which has this number now, understands. */
bool move_understood(const struct move *m, uint32_t qpn);

#endif
