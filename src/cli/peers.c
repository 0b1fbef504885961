/*
 * peers.c - whether the peers of a program bear that it is away
 *
 * Those that use softhca wait when they are asked. Others bear what their retries
 * take, and then their connections end: that is said before anything stops, and
 * is refused unless it is wanted (--force).
 *
 * How long the program will be away, nobody knows before. What is known is how long
 * CRIU has just taken to save and restore a process that has nothing, on this host
 * and at its load. A program takes more: TRIES times that has been enough for all
 * of tests/migrate; and its memory, which is written and read once.
 */
#include "base/sys.h"
#include "cli/cli.h"
#include "cli/move.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TRIES 3
/* Of memory: 2.5 ms were measured per MB at most, on two processors. */
#define MB_NS 10000000u
/* ssh connects, and copies that at 100 MB/s. */
#define SSH_NS 1000000000u

/* In pages: what is not of files. */
static uint64_t memory_of(pid_t pid)
{
	unsigned long resident = 0, shared = 0;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
	f = fopen(path, "re");
	if (f && fscanf(f, "%*u %lu %lu", &resident, &shared) != 2)
		resident = shared = 0;
	if (f)
		fclose(f);
	return resident > shared ? resident - shared : 0;
}

uint64_t peers_expect(const struct move *m, bool far)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t ns = TRIES * m->criu.tried_ns, pages = 0;

	for (size_t i = 0; i < m->tree.n; i++)
		pages += memory_of(m->tree.member[i].pid);
	ns += pages * page / 1000000 * MB_NS;
	if (far)
		ns += SSH_NS + pages * page / 1000000 * MB_NS;
	return ns;
}

/* Why peers do not wait. */
static const char *who(const struct suspend_peers *p)
{
	return p->other_secret ?
		       "another SOFTHCA_MIGRATE_SECRET than this host's, or "
		       "none" :
		       "no softhca, or do not answer";
}

static void describe(struct move *m, unsigned n, uint32_t bear_ms,
		     uint64_t away_ns)
{
	char bear[96] = "they wait for ever";
	struct cli_time t[2];

	if (!bear_ms)
		snprintf(bear, sizeof(bear),
			 "what they bear is not known here");
	else if (bear_ms != UINT32_MAX)
		snprintf(bear, sizeof(bear),
			 "they bear %s at least, by timeout and retry_cnt",
			 cli_time(bear_ms * UINT64_C(1000000), &t[0]));
	snprintf(m->why, sizeof(m->why),
		 "the peers of %u of %u connections do not wait when asked, as "
		 "they have %s; %s, and the program is expected to be away for "
		 "%s",
		 n, m->peers.all, who(&m->peers), bear,
		 cli_time(away_ns, &t[1]));
}

int peers_ask(struct move *m, unsigned seconds, uint64_t away_ns, bool seated)
{
	const uint64_t begin = sys_now_ns();
	const struct suspend_peers *p = &m->peers;
	int err = tree_count_peers(&m->tree, &m->peers);
	uint32_t bear_ms;
	unsigned n;

	m->ask_ns = sys_now_ns() - begin;
	m->tree.seconds = seconds;
	m->fix[0] = '\0';
	if (err == -EPERM && m->force) {
		cli_say("%s", m->tree.why);
		m->tree.seconds = 0;
		return 0;
	}
	if (err) {
		snprintf(m->why, sizeof(m->why), "%s", m->tree.why);
		return err;
	}
	n = p->all - p->wait - (seated ? p->host : 0);
	bear_ms = seated ? p->far_ms : p->patience_ms;
	if (!n)
		return 0;
	describe(m, n, bear_ms, away_ns);
	if (!m->force && bear_ms && bear_ms != UINT32_MAX &&
	    bear_ms * UINT64_C(1000000) < away_ns) {
		snprintf(m->fix, sizeof(m->fix),
			 "with --force it is done nonetheless, and they may "
			 "end (not those of the kernel's rxe with retry_cnt 7, "
			 "which waits for ever)");
		return -ETIME;
	}
	cli_say("%s", m->why);
	m->why[0] = '\0';
	return 0;
}

int peers_ask_while(struct move *m, unsigned seconds, bool seated)
{
	int err = peers_ask(m, seconds, seconds * UINT64_C(1000000000), seated);
	char fix[sizeof(m->fix)];

	if (err != -ETIME)
		return err;
	memcpy(fix, m->fix, sizeof(fix));
	snprintf(m->fix, sizeof(m->fix),
		 "if it is away for less, say so with --wait; %.200s", fix);
	return err;
}
