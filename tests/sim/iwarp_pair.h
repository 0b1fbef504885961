/*
 * iwarp_pair.h - two iWARP queue pairs and the stream between them
 *
 * The nodes of sim.h, with their memory, keys and completions, joined by a
 * stream each way, which takes what there is room for and is cut anywhere.
 * There is no time: what either end does next, and with how many bytes, is
 * chosen by the seeded generator of the simulation.
 */
#ifndef SOFTHCA_TESTS_IWARP_PAIR_H
#define SOFTHCA_TESTS_IWARP_PAIR_H

#include "sim.h"

#include "iwarp/iwarp.h"

#define IW_PIPE (256u << 10) /* bytes that may be under way, at most */

struct iw_pipe {
	uint8_t buf[IW_PIPE];
	size_t head, len;
	bool fin; /* nothing comes behind that */
};

struct iw_end {
	struct sim_qp *q;
	struct iwarp_env env;
	struct iwarp_qp *qp;
	struct iw_end *peer;
	struct iw_pair *pair;
	struct iw_pipe in;
	bool eof; /* the core knows that the peer has ended its stream */
	unsigned established, ended; /* how often it was said so */
};

struct iw_pair;

struct iw_opts {
	struct iwarp_offer offer[2]; /* the initiator's first */
	uint32_t fpdu_max;
	size_t room; /* in a pipe; 0: IW_PIPE */
	uint32_t cut; /* most bytes at a time; 0: any number */
	struct ibv_qp_cap cap;
	unsigned access;
	bool sig_all;
	bool srq;
	double direct; /* share of received bytes that come the direct way */
	bool whole; /* all that there is goes at a time */
	/* Watches, and may change, each piece of the stream. */
	void (*tap)(struct iw_pair *p, int from, uint8_t *bytes, size_t len);
};

extern const struct iw_opts iw_default;

struct iw_pair {
	struct sim *sim;
	struct iw_opts opts;
	struct iw_end end[2];
	void *user; /* of opts.tap */
};

/* Connected, by frames that are cut anywhere. */
struct iw_pair *iw_pair_new(uint64_t seed, const struct iw_opts *opts);
void iw_pair_free(struct iw_pair *p);

/* One end, by chance, sends or receives something; false: neither can. */
bool iw_step(struct iw_pair *p);
/* Until neither can. */
void iw_run(struct iw_pair *p);
/* The stream is torn: both ends are told so. */
void iw_reset(struct iw_pair *p);

/* Bytes into an end's stream, as if its peer had sent them. */
void iw_inject(struct iw_end *e, const uint8_t *p, size_t len);
/* An FPDU with these bytes as its ULPDU, its CRC right. */
void iw_inject_ulpdu(struct iw_end *e, const uint8_t *ulpdu, size_t len);

/* No key is held by anybody any more. */
bool iw_keys_free(const struct iw_pair *p);

#endif
