/*
 * cm_check.h - what the situations of cm_check share
 *
 * Each file of situations ends with its table. Most situations have both ends
 * in this process: a client's identifiers report to cch, a server's to sch.
 */
#ifndef SOFTHCA_TESTS_CM_CHECK_H
#define SOFTHCA_TESTS_CM_CHECK_H

#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdint.h>

/* How long anything may take. */
#define LIMIT_MS 20000

/* A table of these ends with a name of NULL. */
struct situation {
	const char *name;
	void (*run)(void);
};

extern const struct situation cm_connections[], cm_crowds[], cm_addresses[],
	cm_events[], cm_qps[], cm_pairs[];

extern int bad; /* things that are not as they should be */

/* Prints where, what and errno; the second does not return. */
void not_so(const char *file, int line, const char *what);
_Noreturn void cannot_go_on(const char *file, int line, const char *what);
void fails(const char *file, int line, const char *what, int returned,
	   int want);

#define CHECK(cond)                                                            \
	do {                                                                   \
		if (!(cond))                                                   \
			not_so(__FILE__, __LINE__, #cond);                     \
	} while (0)

/* That a call returns -1 with this errno. */
#define FAILS(call, err)                                                       \
	do {                                                                   \
		errno = 0;                                                     \
		fails(__FILE__, __LINE__, #call, (call), (err));               \
	} while (0)

#define NEED(cond)                                                             \
	do {                                                                   \
		if (!(cond))                                                   \
			cannot_go_on(__FILE__, __LINE__, #cond);               \
	} while (0)

/* Waits until cond is true, for LIMIT_MS at most. */
#define AWAIT(cond)                                                            \
	do {                                                                   \
		for (int ms_ = 0; !(cond); ms_++) {                            \
			if (ms_ == LIMIT_MS)                                   \
				cannot_go_on(__FILE__, __LINE__, #cond);       \
			usleep(1000);                                          \
		}                                                              \
	} while (0)

/* Where both ends are, with port 0; with another port. */
extern struct sockaddr_storage here;
struct sockaddr *addr_of(uint16_t number);

/* The next event, which has to be of this type and status. */
struct rdma_cm_event *get(struct rdma_event_channel *ch,
			  enum rdma_cm_event_type type, int status,
			  const char *file, int line);
#define GET(ch, type, status)                                                  \
	get(ch, RDMA_CM_EVENT_##type, status, __FILE__, __LINE__)
#define EXPECT(ch, type, status) rdma_ack_cm_event(GET(ch, type, status))
/* No event comes for so long. */
bool quiet(struct rdma_event_channel *ch, int ms);
/* Returns when all that was sent before, either way, has arrived: messages of
 * one process to itself keep their order. */
void all_arrived(void);

/* Both ends of a situation. */
extern struct rdma_event_channel *cch, *sch;
extern struct rdma_cm_id *listener;
extern uint16_t port;
extern const struct rdma_conn_param usual;

/* Makes the channels, and a listener on port. */
void serve(void);
void serve_ps(enum rdma_port_space ps, int backlog);
/* A client's identifier with a route to port. */
struct rdma_cm_id *resolved(void);
struct rdma_cm_id *resolved_ps(enum rdma_port_space ps);
void add_qp(struct rdma_cm_id *id);
/* A connection with QPs on both sides; its end. */
void connected(struct rdma_cm_id **c, struct rdma_cm_id **s);
/* A request's identifier goes; the event is acknowledged. */
void drop_request(struct rdma_cm_event *ev);
void hang_up(struct rdma_cm_id *c, struct rdma_cm_id *s);
void finish_id(struct rdma_cm_id *id);
/* The listener and the channels go, in which nothing is left. */
void finish(void);

/* Bytes that differ by seed. */
void fill(uint8_t *p, size_t n, unsigned seed);
/* CM_CHECK_N, or 1000. */
extern int many_n;
/* For the test that runs this: a line, at once. */
void say(const char *what);

#endif
