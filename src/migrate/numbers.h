/*
 * numbers.h - queue pair numbers that another process has where this one goes on
 */
#ifndef SOFTHCA_MIGRATE_NUMBERS_H
#define SOFTHCA_MIGRATE_NUMBERS_H

#include "transport/shared.h"

/* Why a chunk has to stay as it is, by a queue pair of it, as the program knows
 * it. */
struct numbers_fixed {
	const char *why; /* NULL: it need not */
	uint32_t qpn; /* 0: it is not about one */
};

struct numbers {
	struct registry_other other; /* for registry_back() */
	struct numbers_fixed chunk[REGISTRY_CHUNKS];
	bool ids; /* communication IDs are of the chunk that begins with */
	uint32_t ids_first;
	uint32_t in_the_way; /* what may() was false of last, or 0 */
};

/* Before: what may be another number. told: peers have been asked to wait. */
void numbers_look(struct numbers *n, struct engine *e, bool told);
/* What is in the way, in a sentence of n bytes at most; "": nothing is. */
void numbers_why(const struct numbers *n, char *text, size_t size);
/* After: it is, here. */
void numbers_change(struct numbers *n, struct engine *e);

#endif
