/*
 * suspend_ask.h - a process is asked to suspend (src/migrate), and answers
 *
 * By the socket where it is asked for its counters (stat.h): who connects there
 * under a name that begins so wants that, and the name says the rest. The answer is
 * one message. With it come
 * the end of a pipe, and the seat in the registry if there is one. The process
 * stays suspended as long as somebody has that end open: so it goes on by itself
 * when whoever has asked ends, however that ends, and also when something that
 * knows nothing of this has saved it and restored it, as the other end of the pipe
 * is not restored. What came of going on is a message in another pipe, which both
 * of its ends are the process's: others find it in /proc/PID/fd.
 *
 * Who answers is of the same user, or is checked by who asks.
 */
#ifndef SOFTHCA_COUNTERS_SUSPEND_ASK_H
#define SOFTHCA_COUNTERS_SUSPEND_ASK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SUSPEND_VERSION 2

/* What is wanted. */
struct suspend_request {
	bool count; /* nothing but to know which peers would wait */
	unsigned seconds; /* that peers are asked to wait; 0: they are not */
};

/* Peers of reliable connections, in queue pairs (softhca/migrate.h). */
struct suspend_peers {
	uint32_t all, wait;
	uint32_t host; /* would not, but are of this host */
	uint32_t patience_ms; /* of those who would not, at least; 0: it is not
			       * known, UINT32_MAX: for ever; */
	uint32_t far_ms; /* but for those of this host */
	uint32_t other_secret;
};

/* What has been away for peers at one address. */
#define SUSPEND_AWAY 16
struct suspend_away {
	uint8_t at[16]; /* GID */
	uint32_t qps, unused;
	uint64_t ns; /* at most: from before they were asked to wait until they
		      * have said that they go on */
};

/* Suspended, or on again; or peers are counted. Both ends are of one build
 * (docs/MIGRATION.md). A pipe takes it at once. */
struct suspend_answer {
	char magic[8];
	uint32_t version;
	int32_t err; /* 0, or an errno value, with why */
	int32_t done; /* the descriptor where it will say that it is on again */
	uint32_t naway;
	uint64_t took_ns;
	uint64_t real_ns; /* CLOCK_REALTIME when it stopped, or went on */
	struct suspend_peers peers; /* that would wait, or do */
	struct suspend_away away[SUSPEND_AWAY];
	char why[600];
};

/* The answering side. Whether who has connected wants this process to suspend, or
 * its peers counted. */
bool suspend_is_asked(int who, struct suspend_request *want);
/* Fills in magic and version. hold and seat may be -1. 0 or -errno. */
int suspend_answer(int who, struct suspend_answer *a, int hold, int seat);
/* The same, into a pipe. */
int suspend_done(int fd, struct suspend_answer *a);

/* The asking side. */
enum suspend_state {
	SUSPEND_NO_DEVICE, /* it has no device open, as far as /proc shows */
	SUSPEND_NO_SOCKET, /* it has, and cannot be asked */
	SUSPEND_SOCKET,
};
/* path is that of the socket; "" unless there is one. */
enum suspend_state suspend_state_of(pid_t pid, char path[4096]);

struct suspended {
	struct suspend_answer answer;
	int hold, seat; /* -1: there is none */
};

/*
 * Asks, and waits for so long. 0, and then the process is suspended until hold is
 * closed, unless only its peers were to be counted; or -errno, and then it is not,
 * or will not be in a moment. why, if there is one, is in s->answer.
 */
int suspend_ask(pid_t pid, const char *path, const struct suspend_request *want,
		uint64_t wait_ns, struct suspended *s);
/* Opens what it will say when it is on again; -errno. */
int suspend_done_open(pid_t pid, int done);
/* Waits for that. -ETIMEDOUT; else 0, and answer says what came of it. */
int suspend_done_wait(int fd, uint64_t wait_ns, struct suspend_answer *a);

#endif
