/*
 * test_replay.c - both halves of captured conversations, played by our core
 *
 * Each RC connection in a capture is played twice. Once its requests go into
 * our responder, which must answer with the packets that the captured one
 * answered with: same opcodes, PSNs, MSNs, syndromes and data, and must store
 * and complete what the requests say. Once its work requests, guessed from its
 * requests, are posted to our requester, which must send the packets that the
 * captured one sent, while it is fed the captured responses. UC and UD have a sending and a receiving half as well: the work
 * requests that a sender's packets imply make our QP send the same bytes, and a
 * receiver's packets make ours complete and store what they say, and answer
 * nothing. Nothing here knows a file; other captures of the kind do as well.
 *
 * What cannot be played is cut, for one of the reasons in CUTS, which are found
 * in the packets; each half of each capture is a test, which counts what it
 * compared and what it cut, prints the latter, and fails when the two do not add
 * up to the packets of the capture, when a capture with requests of a service has
 * nothing that was compared, or when a packet of a complete capture is cut because
 * another is missing. test_flips.c shows what the replays notice.
 *
 * A replay to a responder needs what that got and sent: captured on its side of
 * the place where packets get lost or overtake each other. Packets that were not
 * show it, see seen_elsewhere() and sent_otherwise(); then the order is not
 * compared, but each packet with ours of the same PSN.
 *
 * Left out of the comparison: the credit count, MigReq (rxe clears it, the
 * specification and ConnectX set it), AckReq before a message's end, how many
 * requests a long read is cut into, and what is in the compare field of a
 * FetchAdd, which means nothing and which rxe does not write to. A sequence NAK
 * that rxe sends behind an RNR NAK for the rest of the burst is not asked for
 * (9.7.5.2.8: the requester knows), nor one ACK for each request where the
 * captured responder sent one for several. Of UC and UD nothing but MigReq and AckReq,
 * which rxe sets at the end of every message and which says nothing there (9.2).
 */
#include "replay.h"

static char *names(const char *file, const char *half)
{
	char *s;

	return asprintf(&s, "%s: %s", file, half) < 0 ? NULL : s;
}

/* A capture, and what is played of it. */
struct job {
	const char *path;
	size_t half;
};

static const char *name_of(const char *path)
{
	return strrchr(path, '/') + 1;
}

static void play(void **state)
{
	const struct job *job = *state;
	struct captures caps = { 0 };

	assert_int_equal(captures_load(&caps, job->path), 0);
	replay(&caps, name_of(job->path), job->half);
	captures_free(&caps);
}

static bool has_any(const struct job *job)
{
	struct captures caps = { 0 };
	bool any;

	assert_int_equal(captures_load(&caps, job->path), 0);
	any = replay_any(&caps, job->half);
	captures_free(&caps);
	return any;
}

/* Each half of each capture that has any is a test of its own. */
int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : "tests/data/pcap";
	const char *only = getenv("REPLAY");
	struct CMUnitTest *tests = NULL;
	size_t ntests = 0, cap = 0;
	char **paths = captures_list(dir, only);
	int failed;

	if (!paths) {
		perror(dir);
		return 1;
	}
	for (size_t half = 0; half < REPLAY_HALVES; half++)
		for (char **path = paths; *path; path++) {
			struct job *job = calloc(1, sizeof(*job));

			job->half = half;
			job->path = *path;
			if (!has_any(job)) {
				free(job);
				continue;
			}
			MORE(tests, ntests, cap);
			tests[ntests++] = (struct CMUnitTest){
				.name = names(name_of(*path),
					      replay_name(half)),
				.test_func = play,
				.initial_state = job,
			};
		}
	if (!ntests) {
		fprintf(stderr, "%s: nothing to replay\n", dir);
		return 1;
	}
	failed = _cmocka_run_group_tests("replay", tests, ntests, NULL, NULL);
	for (size_t i = 0; i < ntests; i++) {
		free((char *)(uintptr_t)tests[i].name);
		free(tests[i].initial_state);
	}
	free(tests);
	captures_list_free(paths);
	replay_totals();
	return failed;
}
