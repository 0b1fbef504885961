/*
 * faults.h - faults on purpose: a script of rules, and which of them act
 *
 * A script (softhca(1), "Faults on purpose") becomes rules. Each rule counts
 * the packets, receives or calls that it selects, and acts on some of them, by
 * that count alone wherever it can: so what has happened is again a script, of
 * the same rules with nth=, and replays it.
 *
 * Sans-I/O: no lock, clock or random number (script.c, select.c); file.c reads
 * and writes scripts; inject.c does what they say.
 */
#ifndef SOFTHCA_FAULTS_FAULTS_H
#define SOFTHCA_FAULTS_FAULTS_H

#include "hooks/faults.h"

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAULTS_MAX_RULES 256
#define FAULTS_MAX_BYTES (16u << 20) /* of a script */

enum fault_action {
	FAULT_DROP,
	FAULT_DELAY,
	FAULT_DUPLICATE,
	FAULT_CORRUPT,
	FAULT_REORDER,
	FAULT_RNR,
	FAULT_KILL,
	FAULT_FAIL,
	FAULT_RAISE,
	FAULT_ACTIONS
};

#define FAULT_OUT 1u
#define FAULT_IN 2u

/* What a rule selects and does. Compared as bytes: all of it is set to zero
 * before its fields are. */
struct fault_what {
	uint32_t action; /* enum fault_action */
	uint32_t classes; /* of packets: bits of select.c's, 0: any */
	uint32_t dirs; /* FAULT_OUT, FAULT_IN */
	uint32_t qpn; /* of this process's QP; 0: any */
	char dev[64]; /* of this process, by either of its names; "": any */
	uint32_t peered; /* only packets to or from peer */
	union ibv_gid peer;
	uint64_t delay_ns;
	uint32_t behind; /* FAULT_REORDER: so many packets overtake it */
	uint32_t right_icrc; /* FAULT_CORRUPT: the network has not done it */
	uint32_t verb; /* enum fault_verb, */
	int32_t err; /* and what it returns, positive */
	uint32_t event; /* enum ibv_event_type */
};

struct fault_range {
	uint64_t from, to;
};

struct fault_rule {
	struct fault_what what;
	unsigned line; /* the first one that it stands on */
	/* Which of those selected it acts on. All that are given must agree. */
	struct fault_range *nth; /* ascending; NULL: no matter */
	size_t nnth, nth_size;
	uint64_t every, first; /* 0: no matter */
	bool by_chance;
	double p;
	uint64_t after_ns, after_bytes, for_ns; /* 0: no matter */
	/* What it has seen: */
	uint64_t n; /* all that it selects, */
	uint64_t k; /* those in its window */
	uint64_t bytes; /* of payload, of all */
	uint64_t begun_ns; /* when the first was seen, */
	uint64_t open_ns; /* when the window opened; 0: not yet */
	bool inside; /* the last one was in it */
	size_t at; /* of nth: ranges before end before n */
	uint64_t acted;
};

struct faults {
	/* Whether a device has this address; set by who reads the script. */
	bool (*names_device)(const char *dev, const union ibv_gid *addr);
	struct fault_rule rule[FAULTS_MAX_RULES];
	size_t nrules;
	uint64_t seed;
	bool seeded; /* by the script */
};

/* What a rule looks at. */
struct fault_packet {
	uint8_t opcode, syndrome;
	uint32_t qpn; /* this process's QP, */
	uint32_t dest_qpn; /* and where the packet goes */
	const union ibv_gid *peer; /* NULL: unknown */
	const union ibv_gid *local; /* of this end; NULL: unknown */
	size_t bytes; /* of payload */
	uint32_t dir; /* FAULT_OUT or FAULT_IN */
};

/*
 * script.c: reads a script. NULL: *line and why say what is wrong with it;
 * line 0: with all of it. faults_free() ends it.
 */
struct faults *faults_parse(const char *text, size_t len, unsigned *line,
			    char *why, size_t size);
void faults_free(struct faults *f);
/* A rule as a line of a script, without what it acts on. */
int fault_text(const struct fault_rule *r, char *out, size_t size);
/* A name of FAULT_VERBS, and of an event that can be raised. */
const char *fault_verb_name(enum fault_verb v);

/*
 * select.c: counts a packet for each rule that selects it. The rule that acts on
 * it: the first of those, with *n the packet's number there; NULL: none does.
 */
struct fault_rule *faults_packet(struct faults *f, const struct fault_packet *p,
				 uint64_t now_ns, uint64_t *n);
/* It has not been sent after all, and comes again. */
void faults_unpacket(struct faults *f, const struct fault_packet *p);
/* The same for a receive that is about to be taken, of which a packet has qpn, peer
 * and local alone; and for a call. */
struct fault_rule *faults_recv(struct faults *f, const struct fault_packet *p,
			       uint64_t now_ns, uint64_t *n);
struct fault_rule *faults_verb(struct faults *f, enum fault_verb v,
			       uint64_t now_ns, uint64_t *n);
/* A number that depends on the seed and n alone. */
uint64_t faults_number(const struct faults *f, uint64_t n);

/*
 * file.c: the rules of a file. NULL: *why is "FILE:LINE: what is wrong".
 */
struct faults *faults_load(const char *path, char *why, size_t size);

/*
 * What has happened: a file that is a script. A fault is in it as soon as it has
 * acted, so the one that a program crashes of is.
 */
struct faults_log {
	int fd; /* -1: none */
	uint64_t end; /* of the file, but for the last line, */
	size_t len; /* which is so long, */
	const struct fault_rule *rule; /* is of this rule, */
	struct fault_range last; /* and says these */
};
/* 0 or -errno. "%p" in path becomes the process ID. */
int faults_log_open(struct faults_log *l, const char *path,
		    const struct faults *f);
/* r has acted on the nth that it selects; n 0: it selects nothing. -errno: the
 * log has ended. */
int faults_log_add(struct faults_log *l, const struct fault_rule *r,
		   uint64_t n);
void faults_log_close(struct faults_log *l);

#endif
