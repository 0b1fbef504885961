/*
 * cm_net.h - connection managers joined by a simulated network of MADs that
 * loses, duplicates, delays and reorders, with a virtual clock and one seeded
 * generator
 */
#ifndef SOFTHCA_TESTS_CM_NET_H
#define SOFTHCA_TESTS_CM_NET_H

#include "cm/cm.h"

#define CM_NET_NODES 3
#define SEC UINT64_C(1000000000)

struct cm_net_link {
	double loss, dup;
	uint64_t delay_ns, jitter_ns;
	double mangle; /* an extra copy with a few bytes changed */
};

struct cm_packet;

struct cm_net_node {
	struct cm_net *net;
	int index;
	struct cm *cm;
	struct cm_config cfg;
	union ibv_gid gid;
	/* The last event, with copies of what it points at. */
	struct cm_event ev;
	uint8_t ev_data[256];
	unsigned events;
	unsigned count[CM_EV_SIDR_REP + 1];
	int verdict; /* what to answer to requests */
	unsigned sent[16]; /* messages by attribute - MAD_CM_REQ */
};

struct cm_net {
	uint64_t seed, now;
	uint64_t rng;
	struct cm_net_link link;
	struct cm_net_node node[CM_NET_NODES];
	struct cm_packet *queue; /* in order of arrival */
	uint64_t packets;
	/* NULL, or called for each event, after it was noted in the node. */
	int (*event)(struct cm_net_node *n, const struct cm_event *ev);
	/* NULL, or called for each message sent; true: it is lost. */
	bool (*drop)(struct cm_net *net, const struct mad *m, int from);
	/* NULL, or the next time something else is to happen. */
	uint64_t (*next)(struct cm_net *net);
	void (*act)(struct cm_net *net);
	void *user;
};

uint64_t cm_net_rand(struct cm_net *net);
uint32_t cm_net_below(struct cm_net *net, uint32_t n); /* 0 .. n-1 */
bool cm_net_chance(struct cm_net *net, double p);

struct cm_net *cm_net_new(uint64_t seed, const struct cm_config *cfg);
void cm_net_free(struct cm_net *net);
/* Sends what the managers want sent. Call after each cm_* function. */
void cm_net_flush(struct cm_net *net);
/* Until nothing is left to do, or the clock has moved by ns. False: there is
 * still something to do. */
bool cm_net_run(struct cm_net *net, uint64_t ns);
struct roce_path cm_net_path(struct cm_net *net, int from, int to);
/* Hands a message to a node as if it came from another. */
void cm_net_inject(struct cm_net *net, const union ibv_gid *from, int to,
		   const struct mad *m);

#endif
