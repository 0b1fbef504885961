/*
 * move_internal.h - what the files of src/move share
 */
#ifndef SOFTHCA_MOVE_INTERNAL_H
#define SOFTHCA_MOVE_INTERNAL_H

#include "move.h"

#include "base/bytes.h"
#include "base/gid.h"

#include <string.h>

/* A message on its way in. */
struct move_in {
	const struct move_message *m;
	const uint8_t *mad;
	const union ibv_gid *sgid, *dgid;
	uint32_t scope;
	uint64_t now_ns;
};

/* One that is to be answered. */
struct ask {
	bool waits; /* for the answer */
	unsigned tries;
	uint64_t due;
};

/* Queue pairs whose numbers at the other end are of one process: of the plan, in
 * its order. */
struct session {
	size_t first, n;
	bool refused; /* by the secret */
	bool understood;
	bool paused; /* it has been asked to wait */
	uint8_t key[SIPHASH_KEY];
	uint64_t counter; /* of the HELLO */
	struct ask ask;
};

/* Those of a session that one message has room for. */
struct parcel {
	struct session *session;
	size_t first, n;
	enum move_kind kind;
	uint64_t counter;
	/* Of the entries of the last message. */
	unsigned sent;
	size_t at[MOVE_ENTRIES];
	struct ask ask;
};

struct planned {
	struct move_qp qp; /* as it was when the plan was made */
	uint32_t now; /* its number */
	const struct session *session;
	bool paused, resumed;
};

struct move {
	struct move_config cfg;
	uint64_t counter;

	uint8_t nonce[MOVE_NONCE];
	uint32_t seconds;
	uint32_t ids_were, ids_are; /* of move_news */
	uint64_t until_ns; /* RESUME is repeated */
	struct planned *plan;
	size_t nplan;
	/* The place of each + 1, by a hash of the number that it has now. */
	uint32_t *place;
	size_t nplace; /* a power of two */
	struct session *session;
	size_t nsession;
	struct parcel *parcel;
	size_t nparcel;
};

/* move.c */
void move_key(const struct move *m, uint8_t key[SIPHASH_KEY],
	      const uint8_t nonce[MOVE_NONCE], const uint8_t peers[MOVE_NONCE],
	      uint64_t process);

/* leave.c */
/* There is no plan any more; the peer of one of it, which has this number now, has
 * moved itself. */
void leave_forget(struct move *m);
void leave_followed(struct move *m, uint32_t qpn);
void leave_rx(struct move *m, const struct move_in *in);

/* stay.c */
void stay_rx(struct move *m, const struct move_in *in);

#endif
