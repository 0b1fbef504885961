/*
 * moving.h - this process is suspended, or a peer of its is (src/move)
 *
 * Every process listens: what its peers on other hosts say of themselves is heeded
 * from its first device on.
 */
#ifndef SOFTHCA_CONNECT_MOVING_H
#define SOFTHCA_CONNECT_MOVING_H

#include "move/move.h"
#include "transport/shared.h"

/* Parts of a process. */
int moving_init(struct engine *e);
void moving_fini(struct engine *e);
/* Such a message came to QP1; under the link's receive side. */
void moving_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now_ns);

/*
 * For src/migrate, whose calls are one at a time. Who of the peers understands:
 * 0 or -errno, and -EPERM with a sentence where the secret cannot be had. This takes
 * as long as the answers, and MOVE_PATIENCE_NS where one is missing.
 */
int moving_hello(struct engine *e, const char **why);
struct moving_sum {
	struct move_sum sum;
	/* Of those who do not: what they bear at least; 0: that is not known,
	 * UINT64_MAX: for ever. */
	uint64_t patience_ns;
	/* How many of those are processes of this host, which wait as long as
	 * somebody has the seat; and what the others bear. */
	size_t host;
	uint64_t far_ns;
};
void moving_sum(struct engine *e, struct moving_sum *sum);
/* Those who do wait from now on. */
void moving_pause(struct engine *e, uint32_t seconds);
/* While nothing is sent or received: whether the peer is going to be told. */
bool moving_tells(struct engine *e, uint32_t qpn);
/* A chunk of our numbers is another one now; ids: of our communication IDs. */
void moving_renumber(struct engine *e, uint32_t from, uint32_t to, bool ids);
/* They go on; they are told by and by. */
void moving_resume(struct engine *e);
/* Who has said that it goes on, by address, and how long it has waited at most: from
 * before it was asked. Whether all have that were told, or nobody tells them any
 * more. */
#define MOVING_AWAY 16
struct moving_away {
	union ibv_gid at;
	uint32_t qps;
	uint64_t ns;
};
bool moving_heard(struct engine *e, struct moving_away away[MOVING_AWAY],
		  size_t *n);

#endif
