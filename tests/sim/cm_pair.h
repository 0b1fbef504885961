/*
 * cm_pair.h - two connection managers, one of which listens, for tests that
 * script one situation each
 */
#ifndef SOFTHCA_TESTS_CM_PAIR_H
#define SOFTHCA_TESTS_CM_PAIR_H

#include "cm_net.h"

#define SID IPCM_SERVICE_ID(0x0106, 7174)
#define UD_SID IPCM_SERVICE_ID(0x0111, 7174)
#define A (&net->node[0])
#define B (&net->node[1])
#define SENT(n, msg) ((n)->sent[MAD_CM_##msg - MAD_CM_REQ])

/* What a test's end says of itself, where it does not matter. */
extern const struct cm_end an_end;
/* That of B. */
extern struct cm_listener *listener;

/* A network in which B listens. */
struct cm_net *setup(void);

/* A's request to B. */
struct cm_conn *dial(struct cm_net *net, const struct cm_end *end,
		     const void *data, size_t len);

/* A connection that both have. */
void establish(struct cm_net *net, struct cm_conn **a, struct cm_conn **b);

/* Everything is closed and forgotten in the end. */
void finish(struct cm_net *net);

/* The last event of a node. */
void expect(const struct cm_net_node *n, enum cm_event_type type, int status);
void state(const struct cm_conn *c, enum cm_state s);

/* For cm_net.drop: all is lost, */
bool drop_all(struct cm_net *net, const struct mad *m, int from);

/* or count messages of a kind, after the first ones, */
struct lose {
	uint16_t attr;
	unsigned first, count;
};

extern struct lose lose;
bool drop_some(struct cm_net *net, const struct mad *m, int from);

/* or none, and the last one is remembered. */
extern struct mad last_sent;
bool watch(struct cm_net *net, const struct mad *m, int from);

#endif
