/*
 * move_ends.h - queue pairs that only keep books, for one end of src/move
 */
#ifndef SOFTHCA_TESTS_MOVE_ENDS_H
#define SOFTHCA_TESTS_MOVE_ENDS_H

#include "move/move.h"

struct move_books {
	struct move_qp *qp;
	unsigned n;
};

/* NULL: there is none. */
static inline struct move_qp *books_find(const struct move_books *b,
					 uint32_t qpn)
{
	for (unsigned i = 0; i < b->n; i++)
		if (b->qp[i].qpn == qpn)
			return &b->qp[i];
	return NULL;
}

/* move_config.look */
static inline bool books_look(const struct move_books *b, uint32_t qpn,
			      struct move_qp *out)
{
	const struct move_qp *qp = books_find(b, qpn);

	if (qp)
		*out = *qp;
	return qp;
}

/* What move_config.follow says of one of them. */
static inline void books_follow(struct move_qp *qp,
				const struct move_news *news,
				const struct move_said *said)
{
	qp->said = *said;
	qp->peer = news->peer;
	qp->path.dgid = news->at;
}

#endif
