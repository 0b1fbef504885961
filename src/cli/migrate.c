/*
 * migrate.c - softhca migrate: saves a program, copies it, restores it
 *
 * Where it goes on is this host (its process IDs have to be free, so it ends before),
 * perhaps in another network namespace, or another host: then it is only stopped
 * here until it runs there. If it cannot go on there it does here.
 */
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/move.h"
#include "move/message.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NETNS "netns:"
#define SSH_FAILED 255 /* ssh(1) itself */
/* How long peers are asked to wait: so much longer than is expected. */
#define WAIT_TIMES 4

struct migrate {
	struct move m;
	struct move_args args;
	const char *host;
	const char *hook; /* NULL: none */
	const char *ssh;
	char dir[64];
	bool keep; /* the image */
	FILE *there; /* the other host, to which the image is copied */
};

enum { OPT_HOOK = 0x200, OPT_SSH };

static error_t parse_migrate(int key, char *arg, struct argp_state *state)
{
	struct migrate *g = state->input;

	switch (key) {
	case OPT_HOOK:
		g->hook = arg;
		return 0;
	case OPT_SSH:
		g->ssh = arg;
		return 0;
	case ARGP_KEY_INIT:
		for (int i = 0; i < 3; i++)
			state->child_inputs[i] = &g->args;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* Of system(3) or pclose(3): an exit status, or -errno. */
static int result_of(int status)
{
	return status < 0        ? -errno :
	       WIFEXITED(status) ? WEXITSTATUS(status) :
				   -EINTR;
}

/* A command line of the user's, with a limit by what it does itself. */
static int run(const char *line)
{
	return result_of(system(line));
}

/* 0 or -errno with why. */
static int call_hook(struct migrate *g, const char *word)
{
	char line[PATH_MAX + 64];
	int rc;

	if (!g->hook)
		return 0;
	snprintf(line, sizeof(line), "%s %s %d", g->hook, word,
		 (int)g->args.pid);
	rc = run(line);
	if (!rc)
		return 0;
	snprintf(g->m.why, sizeof(g->m.why), "%.1024s: %s %d", line,
		 rc < 0 ? "cannot be run, error" : "exit status",
		 rc < 0 ? -rc : rc);
	g->m.fix[0] = '\0';
	return -ECANCELED;
}

/* Before anything stops. */
static int prepare(struct migrate *g, bool far)
{
	uint64_t away_ns, seconds;
	int err = move_prepare(&g->m, g->args.pid, g->dir);

	if (err)
		return err;
	away_ns = peers_expect(&g->m, far);
	seconds = WAIT_TIMES * away_ns / 1000000000;
	if (seconds < PEERS_WAIT_SECONDS)
		seconds = PEERS_WAIT_SECONDS;
	if (seconds > MOVE_SECONDS_MAX)
		seconds = MOVE_SECONDS_MAX;
	return peers_ask(&g->m, g->args.wait ? g->args.wait : (unsigned)seconds,
			 away_ns, !strcmp(g->host, "."));
}

/* This host */

static int open_netns(struct migrate *g, int *netns)
{
	const char *name = g->host + strlen(NETNS);
	char path[PATH_MAX];

	*netns = -1;
	if (strncmp(g->host, NETNS, strlen(NETNS)))
		return 0;
	snprintf(path, sizeof(path), "%s%s",
		 strchr(name, '/') ? "" : "/run/netns/", name);
	*netns = open(path, O_RDONLY | O_CLOEXEC);
	if (*netns >= 0)
		return 0;
	snprintf(g->m.why, sizeof(g->m.why), "%.1024s: %s", path,
		 strerror(errno));
	return -errno;
}

/* Back to where it was: the reason stays what it is. */
static void go_back(struct migrate *g, int home)
{
	char why[sizeof(g->m.why)], fix[sizeof(g->m.fix)];

	memcpy(why, g->m.why, sizeof(why));
	memcpy(fix, g->m.fix, sizeof(fix));
	call_hook(g, "back");
	if (!move_restore(&g->m, g->dir, home)) {
		cli_say("the program has been restored where it was");
		memcpy(g->m.why, why, sizeof(why));
		memcpy(g->m.fix, fix, sizeof(fix));
		return;
	}
	g->keep = true;
	snprintf(
		g->m.fix, sizeof(g->m.fix),
		"the program has ended; its image is in %s: softhca restore %s",
		g->dir, g->dir);
}

static int migrate_here(struct migrate *g)
{
	const int home = move_netns(g->args.pid);
	int netns, err = open_netns(g, &netns);

	if (!err)
		err = prepare(g, false);
	if (!err)
		err = move_pre_dump(&g->m, g->dir);
	if (!err)
		err = move_save(&g->m, g->dir, MOVE_END);
	if (err)
		goto out;
	err = call_hook(g, "left");
	if (!err)
		err = move_restore(&g->m, g->dir, netns < 0 ? home : netns);
	if (err)
		go_back(g, home);
out:
	if (home >= 0)
		close(home);
	if (netns >= 0)
		close(netns);
	return err;
}

/* Another host */

/* In one connection: the image goes in, what softhca restore says comes out. Two
 * archives, if some of it goes before the program stops. */
static int connect_there(struct migrate *g)
{
	char line[4096];

	snprintf(line, sizeof(line),
		 "%s %s 'd=$(mktemp -d /tmp/softhca-move.XXXXXX) && "
		 "tar -C $d --ignore-zeros -xf - && "
		 "{ [ -e $d/" IMAGE_NAME " ] || { rm -rf $d; false; }; } && "
		 "softhca restore $d && rm -rf $d'",
		 g->ssh, g->host);
	fflush(stdout);
	g->there = popen(line, "we");
	return g->there ? 0 : -errno;
}

/* What of the image; but: not that. */
static int copy(struct migrate *g, char *what, char *but)
{
	char *const argv[] = { "tar", "-C", g->dir, "--exclude", but,
			       "-cf", "-",  what,   NULL };
	int status;
	pid_t pid = fork();

	if (!pid) {
		signal(SIGPIPE, SIG_DFL);
		dup2(fileno(g->there), STDOUT_FILENO);
		execvp(argv[0], argv);
		_exit(127);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -errno;
	return status ? -EIO : 0;
}

/* What became of it there; of no image: nothing. */
static int end_there(struct migrate *g)
{
	const int rc = g->there ? result_of(pclose(g->there)) : 0;

	g->there = NULL;
	return rc;
}

static int copy_and_restore(struct migrate *g)
{
	int rc = g->there ? 0 : connect_there(g);

	if (!rc) {
		copy(g, ".", "./" MOVE_PRE); /* what it lacks is said there */
		rc = end_there(g);
	}
	if (!rc)
		return 0;
	snprintf(g->m.why, sizeof(g->m.why),
		 "%s %s softhca restore: exit status %d", g->ssh, g->host, rc);
	return rc == SSH_FAILED ? -ECOMM : -ECANCELED;
}

/* What can be there before the program stops is. */
static int copy_before(struct migrate *g)
{
	int err = move_pre_dump(&g->m, g->dir);

	if (err || !g->m.pre_dump)
		return err;
	err = connect_there(g);
	if (!err)
		err = copy(g, "./" MOVE_PRE, "-");
	if (!err)
		return 0;
	snprintf(g->m.why, sizeof(g->m.why),
		 "the memory cannot be copied by %s %s", g->ssh, g->host);
	return err;
}

static int migrate_there(struct migrate *g)
{
	uint64_t saved;
	int err = prepare(g, true);

	if (!err)
		err = copy_before(g);
	if (!err)
		err = move_save(&g->m, g->dir, MOVE_STOP);
	if (err) {
		end_there(g);
		return err;
	}
	saved = sys_now_ns();
	err = call_hook(g, "left");
	if (!err)
		err = copy_and_restore(g);
	else
		end_there(g);
	if (err == -ECOMM) {
		/* It may run there. */
		g->keep = true;
		snprintf(g->m.fix, sizeof(g->m.fix),
			 "whether it runs there is not known. It is stopped "
			 "here: look there, and end it here (kill -KILL %d) or "
			 "let it go on (kill -CONT %d)",
			 (int)g->args.pid, (int)g->args.pid);
		return err;
	}
	if (err) {
		char why[sizeof(g->m.why)];

		memcpy(why, g->m.why, sizeof(why));
		call_hook(g, "back");
		memcpy(g->m.why, why, sizeof(why));
		if (!move_go_on(&g->m))
			cli_say("the program goes on here");
		return err;
	}
	move_end(&g->m);
	g->m.copy_ns = sys_now_ns() - saved;
	g->m.blackout_ns = sys_real_ns() - g->m.tree.since_ns;
	return 0;
}

int cmd_migrate(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "hook", OPT_HOOK, "FILE", 0,
		  "Run FILE left PID when the program has been saved, to move "
		  "its address, and FILE back PID if it goes on here after all",
		  0 },
		{ "ssh", OPT_SSH, "COMMAND", 0,
		  "Reach HOST by this (ssh), as COMMAND HOST 'SHELL COMMAND'",
		  0 },
		{ 0 },
	};
	static const struct argp_child children[] = {
		{ &move_argp, 0, NULL, 0 },
		{ &move_save_argp, 0, NULL, 0 },
		{ &move_dump_argp, 0, NULL, 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse_migrate,
		.args_doc = "PID HOST",
		.children = children,
		.doc = "Moves a running program, with its children and its "
		       "RDMA "
		       "connections, to HOST: a name for ssh; netns:NAME, a "
		       "network namespace of this host; or . for this host as "
		       "it is. Needs CRIU on both, mostly root, and the same "
		       "files at the same paths.\v"
		       "If anything fails the program goes on here. Its "
		       "address "
		       "has to be there before it is restored: see --hook.\n\n"
		       "Examples:\n"
		       "  softhca migrate 4711 .\n"
		       "  softhca migrate --hook ./move-address 4711 "
		       "netns:blue\n"
		       "  softhca migrate --hook ./move-address 4711 "
		       "node7",
	};
	struct migrate *g = calloc(1, sizeof(*g));
	bool here;
	int err;

	if (!g)
		return EXIT_FAILURE;
	g->args.m = &g->m;
	g->args.host = &g->host;
	g->ssh = "ssh";
	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, g);
	if (!g->args.pid || !g->host) {
		cli_say("migrate needs a process ID and a host: softhca "
			"migrate "
			"PID HOST");
		free(g);
		return EXIT_USAGE;
	}
	snprintf(g->dir, sizeof(g->dir), "/tmp/softhca-move.XXXXXX");
	if (!mkdtemp(g->dir)) {
		cli_say("/tmp: %s", strerror(errno));
		free(g);
		return EXIT_FAILURE;
	}
	here = !strcmp(g->host, ".") || !strncmp(g->host, NETNS, strlen(NETNS));
	err = here ? migrate_here(g) : migrate_there(g);
	if (err)
		move_say(&g->m);
	else
		move_print(&g->m);
	tree_let_go(&g->m.tree);
	if (!g->keep && strstr(g->m.why, g->dir))
		cli_remove_but(g->dir, ".log"); /* where to look */
	else if (!g->keep)
		cli_remove_all(g->dir);
	free(g);
	return err ? EXIT_FAILURE : EXIT_SUCCESS;
}
