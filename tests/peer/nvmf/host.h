/*
 * host.h - a host: associations and commands (host.c), and what is done with them (host_cases.c)
 */
#ifndef SOFTHCA_TESTS_NVMF_HOST_H
#define SOFTHCA_TESTS_NVMF_HOST_H

#include "nvmf.h"

/* How a command ended that has no status of the controller's. */
enum { PENDING = -1, LOST = -2, TIMED_OUT = -3 };

struct command {
	struct host_queue *queue;
	uint8_t *capsule, *data;
	uint32_t capsule_len;
	struct ibv_mw *window; /* of SGL_KEYED_INVALIDATE */
	bool busy; /* from command_new() to command_done() */
	bool bound; /* the window is */
	unsigned posted; /* work requests that have not completed */
	int status;
	uint64_t result; /* DW0 and DW1 */
	uint64_t until_ms;
};

struct host_queue {
	struct host *host;
	struct link link;
	const char *lost; /* why it has ended */
	uint16_t qid, depth;
	struct command command[MAX_DEPTH];
};

struct host {
	const char *address, *port, *nqn;
	unsigned queues, depth; /* of I/O */
	int timeout_ms;
	uint16_t cntlid;
	uint64_t blocks;
	unsigned invalidated; /* keys, by the controller */
	struct ibv_comp_channel *completions;
	struct host_queue
		*queue[1 + MAX_QUEUES]; /* the first is the admin queue */
};

/* A connection, before Connect; NULL: it was rejected, *reason. */
struct host_queue *queue_open(struct host *h, uint16_t qid,
			      const uint8_t *private, uint8_t len,
			      uint16_t *reason);
/* With the private data that such a queue has. */
struct host_queue *queue_new(struct host *h, uint16_t qid);
void queue_close(struct host_queue *q);
struct command *connect_new(struct host_queue *q, uint16_t cntlid);

/* An association, with all its queues. */
void host_open(struct host *h);
void host_close(struct host *h);
/* Once more, from CC.EN = 0 on. */
void host_reset(struct host *h);

/* A free one; NULL: all are busy. */
struct command *command_new(struct host_queue *q, uint8_t opcode);
/* The length of its data, and how they travel. */
void command_data(struct command *c, enum sgl_id sgl, uint32_t len);
void command_send(struct command *c);
void host_poll(struct host *h, int ms);
static inline bool command_ended(const struct command *c)
{
	return c->status != PENDING && !c->posted;
}
/* Sends it; its status when it has ended, which it does within the host's time-out.
 * Afterwards it may be used until the next command_new(). */
int command_run(struct command *c);

#endif
