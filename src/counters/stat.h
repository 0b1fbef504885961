/*
 * stat.h - what a process says of its devices and queue pairs when it is asked
 *
 * Beside the registry's file each process has a socket, for its user alone; a
 * client that connects gets one copy of all counters, a sealed file in memory:
 * the head, devices, queue pairs, and lines of text, of what else it waits for.
 * Nothing is shared, and no process counts for another: it costs a process
 * nothing until it is queried. The reader treats the copy as hostile.
 */
#ifndef SOFTHCA_COUNTERS_STAT_H
#define SOFTHCA_COUNTERS_STAT_H

#include "qp/counts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define STAT_VERSION 4

/* Of a queue pair, and the sums of a device. */
enum stat_counter {
#define STAT_ID(id, ...) STAT_##id,
	QP_COUNTS(STAT_ID, STAT_ID) STAT_COUNTERS
};

/* Of a process: packets that are no QP's. */
/* clang-format off */
#define STAT_OTHER_COUNTS(C) \
C(BAD_ICRC, "rx_icrc_encapsulated", "packets received with a wrong ICRC") \
C(MALFORMED, "rx_malformed", "packets that are not RoCEv2") \
C(OVERFLOW, "rx_overflow", "packets lost to a full socket buffer") \
C(NO_QP, "rx_no_qp", "packets for QPs that are not there")
/* clang-format on */

enum stat_other { STAT_OTHER_COUNTS(STAT_ID) STAT_OTHERS };

struct stat_name {
	const char *name, *help;
};
extern const struct stat_name stat_names[STAT_COUNTERS];
extern const struct stat_name stat_other_names[STAT_OTHERS];

#define STAT_MAGIC "softhca"

struct stat_head {
	char magic[8];
	uint32_t version;
	uint32_t counters, others; /* how many there are */
	uint32_t ndevices, nqps; /* follow */
	uint32_t missed; /* QPs that found no room here: made meanwhile */
	uint32_t text; /* bytes of text behind them, with the NUL at its end */
	uint64_t others_n[STAT_OTHERS];
};

struct stat_device {
	char name[64];
	char own_name[16]; /* the one without SOFTHCA_NAMES */
	uint64_t n[STAT_COUNTERS]; /* also of QPs that are gone */
};

struct stat_qp {
	uint32_t device; /* its index */
	uint32_t qpn, type, state; /* enum ibv_qp_type, ibv_qp_state */
	uint32_t dest_qpn; /* connected ones, from RTR on; else 0 */
	uint32_t work; /* work requests and receives that are done; wraps */
	uint8_t dgid[16];
	char waits[400]; /* for what: a sentence, printable; "": not said */
	uint64_t n[STAT_COUNTERS];
};

#define STAT_TEXT 600

/* The name that ps(1) shows of a process; "": it has gone. */
void stat_process_name(pid_t pid, char name[32]);
/* What a process says of itself, above its lines: "process 944 (rping): 1 queue
 * pair". */
void stat_head_text(pid_t pid, const char *comm, uint32_t nqps,
		    char text[STAT_TEXT]);
/* "QP 0x000011 (RC, RTS, peer 192.0.2.7 QP 0x000012): waits for ..."; type and
 * state by name. */
void stat_qp_text(const struct stat_qp *q, const char *type, const char *state,
		  char text[STAT_TEXT]);

/* How much who asks wants to know. */
enum stat_want {
	STAT_WANT_ALL,
	STAT_WANT_COUNTERS, /* no sentences: they are what takes long */
};

/*
 * The answering side. stat_listen() returns a listening socket that does not
 * block, or -errno; path is the registry's file. stat_answer() serves all who
 * wait there: copy() returns such a file, or -errno; suspend(), which may be NULL,
 * takes over the connection of who asks for that (suspend_ask.h).
 */
struct suspend_request;
int stat_listen(const char *path, unsigned slot);
void stat_unlink(const char *path, unsigned slot);
void stat_answer(int fd, int (*copy)(void *arg, enum stat_want want), void *arg,
		 void (*suspend)(int who, const struct suspend_request *want));

/* A file in memory of head and what follows it, sealed; or -errno. */
int stat_file(const struct stat_head *head, const struct stat_device *devices,
	      const struct stat_qp *qps, const char *text);

/* The asking side: what one process has said. */
struct stat_reply {
	pid_t pid; /* as the kernel says; 0: of another PID namespace */
	char comm[32];
	int err; /* 0, or why there is nothing else: -ETIMEDOUT, it says
		  * nothing; -EPROTO, it is not what it has to be */
	const struct stat_head *head;
	const struct stat_device *device;
	const struct stat_qp *qp;
	const char *text; /* lines, printable */
	void *map;
	size_t size;
};

/*
 * Asks all processes of this user, in the directories where registries are (dir:
 * only there), for 1 s at most. *replies has *n, to be freed by stat_free().
 * Returns 0 or -ENOMEM.
 */
int stat_ask(const char *dir, enum stat_want want, struct stat_reply **replies,
	     size_t *n);
void stat_free(struct stat_reply *replies, size_t n);
/* Has those of this network namespace add what they have counted
 * (counter_file.h), for 0.2 s at most. */
void stat_ask_sums(const char *dir);

#endif
