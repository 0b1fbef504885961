/*
 * test_replay.c - both halves of captured conversations, played by our core
 *
 * Each RC connection in a capture is played twice. Once its requests go into
 * our responder, which must answer with the packets that the captured one
 * answered with: same opcodes, PSNs, MSNs, syndromes and data, and must store
 * and complete what the requests say. Once its work
 * requests, guessed from its requests, are posted to our requester, which must
 * send the packets that the captured one sent, while it is fed the captured
 * responses. UC and UD have a sending and a receiving half as well: the work
 * requests that a sender's packets imply make our QP send the same bytes, and a
 * receiver's packets make ours complete and store what they say, and answer
 * nothing. Nothing here knows a file; other captures of the kind do as well.
 *
 * What cannot be played is cut, for one of the reasons in CUTS, which are found
 * in the packets; each half of each capture is a test, which counts what it
 * compared and what it cut, prints the latter, and fails when the two do not add
 * up to the packets of the capture or when a capture with requests of a service
 * has nothing that was compared.
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

const char *current;
struct tally tally;

/* One half of the conversations of a service; what is counted are requests,
 * or (RC's responder) answers. */
struct half {
	const char *name;
	enum roce_service service;
	enum side side;
	void (*play)(struct streams *all, bool answering);
	bool answering;
	struct tally total;
};

static void play_rc(struct streams *all, bool answering)
{
	bool *taken = calloc(all->n + 1, sizeof(*taken));

	for (size_t i = 0; i < all->n; i++) {
		struct stream *a, *s = all->s, none = { .qpn = 1 };
		size_t requests = 0, replies = 0, unheard;

		if (!s[i].requests)
			continue;
		a = answers(s, all->n, &s[i], taken);
		if (a) {
			taken[a - s] = true;
			cut_at_hole(&s[i], a, mtu_of(&s[i], a), &requests,
				    &replies);
		}
		unheard = answering ? cut_unheard(&s[i], a) : 0;
		tally.cut[CUT_HOLE] += answering ? replies : requests;
		tally.unheard += unheard;
		if (!s[i].n)
			continue;
		if (answering)
			play_responder(&s[i], a);
		else
			play_requester(&s[i], a ? a : &none);
		tally.conversations++;
	}
	for (size_t i = 0; i < all->n && answering; i++)
		if (!all->s[i].requests && !taken[i])
			tally.cut[CUT_FOREIGN] += all->s[i].n;
	free(taken);
}

static void play_uc(struct streams *all, bool answering)
{
	for (size_t i = 0; i < all->n; i++)
		if (answering)
			play_uc_receiver(&all->s[i]);
		else
			play_sender(&all->s[i], IBV_QPT_UC);
}

static void play_ud(struct streams *all, bool answering)
{
	for (size_t i = 0; i < all->n; i++)
		if (answering)
			play_ud_receiver(&all->s[i]);
		else
			play_sender(&all->s[i], IBV_QPT_UD);
}

/* Adds up, and says what was cut. */
static void account(struct half *half, size_t requests, size_t packets)
{
	struct tally *total = &half->total;
	static const char *const words[] = {
#define X(name, w) w,
		CUTS(X)
#undef X
	};
	size_t cut = 0;

	for (int i = 0; i < NCUTS; i++) {
		if (tally.cut[i])
			print_message("%s: cut %zu of %zu %s: %s\n", current,
				      tally.cut[i], packets, half->name,
				      words[i]);
		cut += tally.cut[i];
		total->cut[i] += tally.cut[i];
	}
	total->compared += tally.compared;
	total->conversations += tally.conversations;
	if (tally.by_psn)
		print_message("%s: %s of %zu of %zu conversations compared by PSN: captured beyond where packets got lost or overtaken\n",
			      current, half->name, tally.by_psn,
			      tally.conversations);
	total->by_psn += tally.by_psn;
	if (tally.compared + cut != packets)
		fail_msg("%s: %zu %s, of which %zu were compared and %zu cut",
			 current, packets, half->name, tally.compared, cut);
	/* Without a request that anybody answers there is no answer either. */
	if (requests > tally.unheard && !tally.conversations)
		fail_msg("%s: no conversation in %zu requests", current,
			 requests);
	if (packets && !tally.compared)
		fail_msg("%s: %zu %s, and none compared", current, packets,
			 half->name);
}

static void print_total(const struct half *half)
{
	size_t cut = 0;

	for (int i = 0; i < NCUTS; i++)
		cut += half->total.cut[i];
	print_message("%zu conversations, %zu %s compared, %zu cut\n",
		      half->total.conversations, half->total.compared,
		      half->name, cut);
}

static char *names(const char *file, const char *half)
{
	char *s;

	return asprintf(&s, "%s: %s", file, half) < 0 ? NULL : s;
}

/* A capture, and what is played of it. */
struct job {
	const char *path;
	size_t half, packets, requests;
};

static struct half halves[] = {
	{ "answers of RC responders", ROCE_RC, CONNECTION, play_rc, true, { 0 } },
	{ "requests of RC requesters", ROCE_RC, CONNECTION, play_rc, false, { 0 } },
	{ "packets of UC senders", ROCE_UC, CONNECTION, play_uc, false, { 0 } },
	{ "packets to UC receivers", ROCE_UC, CONNECTION, play_uc, true, { 0 } },
	{ "datagrams of UD senders", ROCE_UD, UD_SENDER, play_ud, false, { 0 } },
	{ "datagrams to UD receivers", ROCE_UD, UD_RECEIVER, play_ud, true, { 0 } },
};

static void read_job(struct job *job, struct captures *caps,
		     struct streams *all)
{
	const struct half *half = &halves[job->half];

	assert_int_equal(captures_load(caps, job->path), 0);
	job->requests = split(caps, all, half->service, half->side);
	job->packets = 0;
	for (size_t i = 0; i < all->n; i++)
		if (half->service != ROCE_RC ||
		    all->s[i].requests != half->answering)
			job->packets += all->s[i].n;
}

static void close_job(struct captures *caps, struct streams *all)
{
	for (size_t i = 0; i < all->n; i++)
		free(all->s[i].pkt);
	free(all->s);
	captures_free(caps);
}

static void replay(void **state)
{
	struct job *job = *state;
	struct half *half = &halves[job->half];
	struct captures caps = { 0 };
	struct streams all = { 0 };

	P = NULL;
	current = strrchr(job->path, '/') + 1;
	tally = (struct tally){ 0 };
	read_job(job, &caps, &all);
	half->play(&all, half->answering);
	account(half, job->requests, job->packets);
	close_job(&caps, &all);
}

static bool has_any(struct job *job)
{
	struct captures caps = { 0 };
	struct streams all = { 0 };

	read_job(job, &caps, &all);
	close_job(&caps, &all);
	return job->packets || job->requests;
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
	for (size_t half = 0; half < ARRAY_SIZE(halves); half++)
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
				.name = names(strrchr(*path, '/') + 1,
					      halves[half].name),
				.test_func = replay, .initial_state = job,
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
	for (size_t i = 0; i < ARRAY_SIZE(halves); i++)
		print_total(&halves[i]);
	return failed;
}
