/*
 * refused.h - why a key does not allow what is asked of it, in words
 */
#ifndef SOFTHCA_QP_REFUSED_H
#define SOFTHCA_QP_REFUSED_H

#include "keys.h"

#include <stddef.h>

struct qp;

/* What a key leads to. */
struct key_facts {
	bool past; /* to nothing any more: only the key that it was is set */
	uint32_t lkey, rkey, access, pd, qpn, kind; /* as struct key_entry's */
	uint64_t iova, length;
};

/* What is asked for. */
struct key_ask {
	uint32_t key;
	bool remote; /* it is to be an rkey, else an lkey */
	uint32_t pd, qpn; /* of the QP that asks */
	uint64_t va, len;
	uint32_t access; /* what the region is to allow */
};

/* Whether a key, of either kind, leads anywhere in a table. */
typedef bool key_look_fn(void *table, uint32_t key, struct key_facts *f);

/* keys_look() is that for a struct keys. */
bool keys_look(void *keys, uint32_t key, struct key_facts *f);

struct key_why {
	char text[500];
};

/* The first thing that is wrong; NULL: nothing is. The text, half a sentence,
 * lives as long as *why. */
const char *key_refused(key_look_fn *look, void *table,
			const struct key_ask *ask, struct key_why *why);

/* "IBV_ACCESS_REMOTE_READ" and the like: the first of the bits. */
const char *key_access_str(uint32_t access);

/*
 * SGE i of a work request, what, could not be used: explains it, where that is
 * wanted (qp_explain()). access: 0, or IBV_ACCESS_LOCAL_WRITE.
 */
__attribute__((noinline, cold)) void
qp_explain_sge(struct qp *qp, const char *what, uint64_t wr_id, uint32_t i,
	       const struct ibv_sge *sge, uint32_t pd, uint32_t access);

/* The same of what the peer, by a request, asks for: "write". */
__attribute__((noinline, cold)) void
qp_explain_remote(struct qp *qp, const char *request, uint32_t pd,
		  uint32_t rkey, uint64_t va, uint64_t len, uint32_t access);

#endif
