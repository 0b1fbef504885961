/*
 * controller.h - a controller: what commands do (commands.c), and the queues by which they come (controller.c)
 */
#ifndef SOFTHCA_TESTS_NVMF_CONTROLLER_H
#define SOFTHCA_TESTS_NVMF_CONTROLLER_H

#include "nvmf.h"

enum { EVENT_REQUESTS = 4 };

/* The one of this process, and its one namespace. */
extern struct subsystem {
	char nqn[NQN_SIZE];
	int fd;
	uint32_t in_capsule; /* bytes of data that a capsule may have */
	uint64_t blocks;
} subsystem;

/* An association with a host: from Connect on an admin queue to that queue's end. */
struct controller {
	struct controller *next;
	uint16_t cntlid;
	uint8_t hostid[16];
	char hostnqn[NQN_SIZE];
	uint32_t cc, csts;
	uint32_t kato_ms; /* 0: it lives without Keep Alive */
	uint64_t alive_until_ms;
	uint32_t events; /* those that the host wants */
	bool changed, told; /* the namespace has; the host was sent the event */
	struct request *event_request[EVENT_REQUESTS];
	unsigned event_requests;
};

/* A command capsule, until its response has been sent. */
struct request {
	struct queue *queue;
	uint8_t *capsule, *data;
	uint32_t len; /* of the data that the command moves */
	uint64_t address; /* of it in the host's memory, by this key */
	uint32_t rkey;
	bool keyed, invalidate;
	uint8_t cqe[CQE_SIZE];
};

struct queue {
	struct queue *next;
	struct link link;
	struct controller *controller; /* NULL before Connect */
	uint16_t qid, depth, sqhd;
	const char *dead; /* why it ends */
	struct request *request;
};

/* controller.c */

/* It is free for the next command. */
void request_receive(struct request *r);
void request_respond(struct request *r, enum status status);
struct controller *controller_new(void);
struct controller *controller_find(uint16_t cntlid); /* NULL: there is none */
/* Its queues of I/O end. */
void controller_quiesce(struct controller *c, const char *why);

/* commands.c */
enum status request_length(struct request *r); /* sets len */
/* Responds, or keeps the request until there is an event. */
void request_execute(struct request *r);
void controller_changed(struct controller *c);

#endif
