/*
 * udp_node.h - processes as far as the link is concerned, for its tests
 *
 * A node is a link with a registry, in the test's own process or in one that
 * it forks. All tests run in a network namespace of their own, so that port
 * 4791 is free. Addresses are of 127/8, all of which belong to lo.
 */
#ifndef SOFTHCA_TESTS_UDP_NODE_H
#define SOFTHCA_TESTS_UDP_NODE_H

#include "gid.h"

#include "hostns.h"
#include "testclock.h"

#include "base/bytes.h"
#include "link/udp.h"
#include "registry/registry.h"

#include <stdatomic.h>

#define RC_MIDDLE (ROCE_RC | ROCE_SEND_MIDDLE)
#define UD_ONLY (ROCE_UD | ROCE_SEND_ONLY)
#define CHUNK_OF(qpn) ((qpn) & ~(uint32_t)(REGISTRY_CHUNK - 1))

static const struct udp_config direct, wire = { .wire = true };

extern char dir[64]; /* where the registry's file is */

struct node {
	struct registry *r;
	struct udp *u;
	struct udp_route route; /* of node_send() */
	uint32_t qpn;
	/* received */
	unsigned count, wrong;
	uint32_t next_psn;
	bool any_order;
	struct roce_rx last;
	uint8_t last_grh[40];
	uint8_t data[ROCE_MTU_MAX];
	unsigned rx_ud;
	int forward_to; /* slot, or -1 */
};

struct roce_path path_of(const char *src, const char *dst);

/* Byte i of the payload of packet psn. */
uint8_t pattern(uint32_t psn, size_t i);
void batch_add(struct roce_batch *b, const struct roce_path *path, uint32_t qpn,
	       uint8_t opcode, uint32_t psn, size_t payload);

void node_start(struct node *n, const struct udp_config *cfg);
void node_stop(struct node *n);
void node_bind(struct node *n, const char *addr);
/* Checks and counts a packet. */
void node_rx(void *arg, const struct roce_rx *pkt);
bool node_readable(const struct node *n);
/* Receives all there is. */
void node_poll(struct node *n);
/* Until count packets have come; fails after five seconds without one. */
void node_expect(struct node *n, unsigned count);
/* Sends count packets of one size; the receiver, if given, is polled. */
void node_send(struct node *from, struct node *to, const struct roce_path *path,
	       uint32_t qpn, uint8_t opcode, size_t payload, unsigned count);

/* Sockets that are none of the link. reuse: SO_REUSEPORT, SO_REUSEADDR or 0 */
int socket_with(const char *addr, uint16_t port, int reuse);
int plain_socket(const char *addr, uint16_t port);
void plain_send(int fd, const char *addr, uint16_t port, const void *data,
		size_t len);
uint16_t ip_checksum(const uint8_t *p, size_t len);

/* What several processes share with their parent. */
struct shared {
	_Atomic uint32_t ready, count, wrong, stop, go;
	_Atomic uint32_t polls; /* rounds of receiver(), with all counts */
	_Atomic uint32_t probes; /* packets for QPN qpn + PROBE */
	_Atomic uint64_t steered, overflow;
	_Atomic uint32_t qpn, slot;
	uint8_t mac[6];
};

#define PROBE 4095 /* beyond those that tests send to */

struct shared *shared_new(void);
/* Until *p is at least value; false after 20 seconds. */
bool wait_for(_Atomic uint32_t *p, uint32_t value);
/* Counts a packet in struct shared. */
void count_rx(void *arg, const struct roce_rx *pkt);

/* A process that receives at addr until it is told to stop, or killed. */
pid_t receiver(struct shared *s, const struct udp_config *cfg,
	       const char *addr);
void end(pid_t pid);
void end_killed(pid_t pid);

/* Setup and teardown of each group of tests; before them, a namespace. */
bool nodes_ready(int argc, char **argv);
int nodes_setup(void **state);
int nodes_teardown(void **state);

/* The argument is a pattern such as "steer*". 77: no namespace, skipped. */
#define RUN_NODE_TESTS(tests, argc, argv)                                      \
	(nodes_ready(argc, argv) ?                                             \
		 cmocka_run_group_tests(tests, nodes_setup, nodes_teardown) :  \
		 77)

#endif
