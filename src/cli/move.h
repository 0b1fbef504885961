/*
 * move.h - what checkpoint, restore and migrate do
 *
 * Whatever fails before a process has been saved, the process goes on as if nothing
 * had been.
 */
#ifndef SOFTHCA_CLI_MOVE_H
#define SOFTHCA_CLI_MOVE_H

#include "cli/criu.h"
#include "cli/image.h"
#include "cli/tree.h"

#include <argp.h>

struct move {
	struct criu criu;
	const char *criu_path; /* --criu, or NULL */
	char **criu_args; /* for criu dump, after "--"; or NULL */
	struct tree tree;
	struct image image;
	char why[2048], fix[256]; /* of what has failed */
	bool force; /* whatever peers bear */
	bool pre_dump; /* memory is saved before anything stops, too */
	struct suspend_peers peers; /* before anything stops */
	/* The timeline. */
	uint64_t pre_ns, ask_ns, suspend_ns, freeze_ns, copy_ns, restore_ns;
	uint64_t blackout_ns;
	struct tree_back back;
};

/* What the commands share: --criu, --timeout, and their arguments; --wait and
 * --force where something is to be suspended; --pre-dump where CRIU saves it. */
struct move_args {
	struct move *m;
	unsigned wait; /* --wait; 0: not given */
	pid_t pid;
	const char **dir, **host; /* what follows the process ID; or NULL */
	bool no_pid;
};

extern const struct argp move_argp;
/* An argument that is a process ID; EINVAL, and it has been said. */
error_t move_parse_pid(struct argp_state *state, const char *arg, pid_t *pid);
extern const struct argp move_save_argp, move_dump_argp;

enum move_after { MOVE_END, MOVE_RUN, MOVE_STOP };

/* Finds and tries CRIU, reads the tree of pid, and makes dir. 0 or -errno. */
int move_prepare(struct move *m, pid_t pid, const char *dir);
/*
 * peers.c: move_save() is to ask peers to wait for so many seconds. Who would not is
 * known here, and what they bear is compared with how long the program will be away.
 * seated: those of this host wait anyhow. 0, or -errno: they do not bear it.
 */
int peers_ask(struct move *m, unsigned seconds, uint64_t away_ns, bool seated);
/* The program is away for as long as they are to wait. */
int peers_ask_while(struct move *m, unsigned seconds, bool seated);
/* How long that is where the user does not say it, at least. */
#define PEERS_WAIT_SECONDS 60
/* How long that is likely to be, by how long it took to try CRIU, and by the memory
 * of the processes; far: on another host. */
uint64_t peers_expect(const struct move *m, bool far);

/* Of an image: what was saved before the program stopped. */
#define MOVE_PRE "pre"

/* Saves its memory to dir/MOVE_PRE if m->pre_dump says so, while it runs. 0, -errno. */
int move_pre_dump(struct move *m, const char *dir);
/* Suspends it and saves it to dir. Then it has ended, goes on, or is stopped. 0, or
 * -errno, and then it goes on. */
int move_save(struct move *m, const char *dir, enum move_after after);
/* Those that have been stopped end, or go on. */
void move_end(struct move *m);
int move_go_on(struct move *m);

/* The network namespace of a process: a descriptor; -1: it is ours. */
int move_netns(pid_t pid);
/* The image in dir goes on here, in a network namespace (-1: ours). 0 or -errno, and
 * then nothing of it runs. */
int move_restore(struct move *m, const char *dir, int netns);

void move_say(const struct move *m);
/* "suspend 2.1 ms" and so on, what there is, to stdout. */
void move_print(const struct move *m);

#endif
