/*
 * cli.h - the softhca tool: what its commands share
 *
 * softhca starts programs under the libraries (run), shows the environment
 * that does so (env) and what gives it to containers (cdi), lists the devices (devices), reports why something does
 * not work (doctor), what errors mean (explain), what running programs wait for
 * (ps) and do (stat), and what has been recorded of them (trace), and moves them
 * (checkpoint, restore, migrate, suspend). It links neither library but loads
 * the ones beside it, so that it can report what is wrong with them.
 */
#ifndef SOFTHCA_CLI_CLI_H
#define SOFTHCA_CLI_CLI_H

#include <argp.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Exit status of softhca itself; run passes on that of the program. */
enum {
	EXIT_USAGE = 2,
	EXIT_RUN_FAILED = 125, /* run could not get as far as the program */
	EXIT_CANNOT_RUN = 126, /* found, but not executable */
	EXIT_NOT_FOUND = 127,
};

/* A folder with all that is in it. */
void cli_remove_all(const char *dir);
/* But files whose names end so. */
void cli_remove_but(const char *dir, const char *suffix);

/* A time as it is printed: "2.1 ms". */
struct cli_time {
	char text[32];
};
const char *cli_time(uint64_t ns, struct cli_time *t);

/* Prints "softhca: ..." on stderr. */
void cli_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/*
 * argp_parse() with --help and --version, ending the process with status
 * usage_status on errors. hint, if not NULL, is printed after the message
 * about an unknown option. Options end at the first argument that is none.
 */
void cli_parse(const struct argp *argp, int argc, char **argv, int usage_status,
	       const char *hint, void *input);

/* How many letters differ, at least (Levenshtein), without case, two that have
 * changed places counting as one; b has at most
 * CLI_NAME_MAX. */
#define CLI_NAME_MAX 64
unsigned cli_edit_distance(const char *a, const char *b);
/* Whether known is what name was meant to be, rather than those before it, of which
 * *least says how near the nearest is: CLI_NEAR at first. */
#define CLI_NEAR 3
bool cli_nearer(const char *name, const char *known, unsigned *least);

int cmd_run(int argc, char **argv);
int cmd_env(int argc, char **argv);
int cmd_cdi(int argc, char **argv);
int cmd_devices(int argc, char **argv);
int cmd_doctor(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_ps(int argc, char **argv);
int cmd_stat(int argc, char **argv);
int cmd_checkpoint(int argc, char **argv);
int cmd_restore(int argc, char **argv);
int cmd_migrate(int argc, char **argv);
int cmd_suspend(int argc, char **argv);
int cmd_trace(int argc, char **argv);

/* Not shown in --help: run by doctor inside the environment of run, it reports
 * what a program sees there. */
int cmd_probe(int argc, char **argv);

/*
 * The directory of libibverbs.so.1 and the rest: beside this executable in a
 * build tree (../lib) or an installation (../lib/softhca). Returns 0 or
 * -errno; libdir is empty then.
 */
int libdir_find(char libdir[PATH_MAX]);

/* Where a function of one of our libraries goes: a pointer to it at slot. */
struct libdir_symbol {
	const char *name;
	void *slot;
};

/* Why a library does not load, and what to do about it. */
struct libdir_why {
	char text[PATH_MAX + 512];
	char fix[128];
};

/* Loads libdir/soname for good, and fills the slots. By its absolute path: what
 * LD_LIBRARY_PATH of the caller finds may be the distribution's. Returns 0,
 * -ELIBACC, or -ELIBBAD, with why. */
int libdir_load(const char *libdir, const char *soname,
		const struct libdir_symbol *symbols, size_t count,
		struct libdir_why *why);

#endif
