/*
 * test_flips.c - the replays notice one wrong bit in an answer
 *
 * A replay that excuses what it does not understand passes with anything. Here
 * each answer in each complete capture has one bit of its header changed, in
 * memory, and the capture is replayed: that must fail. Every answer is changed
 * in each of its fields once, at a bit that differs from answer to answer;
 * those of a capture's first answer at each bit.
 *
 * Not changed is what no capture contradicts. Of RC: the credit count of an ACK
 * and the timer of an RNR NAK, which are the responder's own; MigReq,
 * congestion marks and reserved bits; what a read or an atomic found in memory;
 * the QPN of a connection's only answer; a NAK into an RNR NAK (nobody knows
 * how many receives there were), and 0x61 into 0x63, which rxe says to a send
 * that is too long. Of the connection manager: what the program or the CM that
 * sent a message chose.
 */
#include "cm/cm.h"
#include "cm_replay.h"
#include "replay.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct field {
	const char *name;
	size_t byte; /* of the packet, from its BTH on, or of the MAD */
	uint32_t bits; /* that may be changed, of the four bytes there */
};

static const struct field bth_fields[] = {
	{ "opcode", 0, 0xff000000 },  { "solicited", 0, 0x00800000 },
	{ "pad count", 0, 0x00300000 }, { "version", 0, 0x000f0000 },
	{ "P_Key", 0, 0x0000ffff },   { "AckReq", 8, 0x80000000 },
	{ "PSN", 8, 0x00ffffff },
}, qpn = { "QPN", 4, 0x00ffffff }, msn = { "MSN", 12, 0x00ffffff },
  ack_kind = { "syndrome of an ACK", 12, 0x60000000 },
  rnr_kind = { "syndrome of an RNR NAK", 12, 0x60000000 },
  nak_kind = { "syndrome of a NAK", 12, 0x20000000 },
  nak_code = { "NAK code", 12, 0x1f000000 },
	code_63 = { "NAK code", 12, 0x1d000000 };

/* Of the attribute, bits that make no other message of the CM. */
static const struct field mad_header[] = {
	{ "class", 0, 0x00ff0000 },  { "version", 0, 0x0000ff00 },
	{ "method", 0, 0x000000ff }, { "status", 4, 0xffff0000 },
	{ "attribute", 16, 0xffe00000 },
}, tid[] = {
	{ "TID", 8, 0xffffffff },    { "TID, low", 12, 0xffffffff },
}, remote_id = { "remote comm ID", 28, 0xffffffff },
  request_id = { "request ID", 24, 0xffffffff };

static struct tally_of {
	const char *what;
	size_t changed, noticed;
} rc = { .what = "answers of RC responders" },
  cm = { .what = "answers of CMs" };

/* Bits to change in one answer. */
struct flips {
	size_t n;
	struct flip {
		const struct field *f;
		size_t at; /* byte of the packet */
		unsigned bit;
	} flip[256];
};

struct job {
	const char *path, *name;
	struct captures caps;
	struct tally_of *sum;
	char missed[4096];
};

/* cmocka makes failed tests of these, and what fails counts as noticed. */
static void crash_on_signals(void)
{
	static const int crashes[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL,
				       SIGSYS };

	for (size_t i = 0; i < ARRAY_SIZE(crashes); i++)
		signal(crashes[i], SIG_DFL);
}

static void replay_rc(void **state)
{
	struct job *job = *state;

	crash_on_signals();
	for (size_t half = 0; half < REPLAY_HALVES; half++)
		replay(&job->caps, job->name, half);
}

static void replay_cm(void **state)
{
	struct job *job = *state;
	size_t cut;

	crash_on_signals();
	cm_replay(&job->caps, job->name, &cut);
}

enum result { UNKNOWN, MISSED, NOTICED };

/*
 * Replays the capture once for each flip, and once more as it is, in a process
 * of its own: what fails in the middle leaves things behind. The last replay
 * shows that these were not what failed. A crash is no replay that noticed; it
 * ends the process.
 */
static void run(struct job *job, size_t i, const struct flips *flips,
		CMUnitTestFunction play, uint8_t *result)
{
	const struct CMUnitTest test = {
		.name = job->name,
		.test_func = play,
		.initial_state = job,
	};
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

	dup2(null, 1);
	dup2(null, 2);
	for (size_t k = 0; k <= flips->n; k++) {
		const struct flip *f = &flips->flip[k < flips->n ? k : 0];
		uint8_t *p = job->caps.pkt[i].data + f->at;
		uint32_t was = get_be32(p);

		alarm(60);
		put_be32(p, was ^ (k < flips->n ? 1u << f->bit : 0));
		result[k] =
			_cmocka_run_group_tests("flip", &test, 1, NULL, NULL) ?
				NOTICED :
				MISSED;
		put_be32(p, was);
		if (P)
			player_free();
	}
	_exit(0);
}

/* Replays it with each flip, and without any. */
static void try(struct job *job, size_t i, const struct flips *flips,
		CMUnitTestFunction play)
{
	uint8_t *result = mmap(NULL, flips->n + 1, PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t pid;

	assert_ptr_not_equal(result, MAP_FAILED);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		run(job, i, flips, play, result);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	for (size_t k = 0; k < flips->n; k++) {
		const struct flip *f = &flips->flip[k];
		size_t len = strlen(job->missed);

		if (result[k] == UNKNOWN)
			fail_msg("%s: the replay with a wrong %s in packet %u "
				 "ends with status 0x%x",
				 job->name, f->f->name, job->caps.pkt[i].number,
				 (unsigned)status);
		job->sum->changed++;
		job->sum->noticed += result[k] == NOTICED;
		if (result[k] == MISSED)
			snprintf(job->missed + len, sizeof(job->missed) - len,
				 "%s%s of packet %u, bit %u", len ? "; " : "",
				 f->f->name, job->caps.pkt[i].number, f->bit);
	}
	if (result[flips->n] != MISSED)
		fail_msg("%s: with packet %u as it was, the replay ends with "
			 "status 0x%x, result %u: a failure before spoils it",
			 job->name, job->caps.pkt[i].number, (unsigned)status,
			 result[flips->n]);
	munmap(result, flips->n + 1);
}

/* One bit of a field that is at base, or every bit of it. */
static void add(struct flips *flips, const struct field *f, size_t base,
		size_t nth, bool all)
{
	nth %= (unsigned)__builtin_popcount(f->bits);
	for (unsigned bit = 0; bit < 32; bit++)
		if (f->bits >> bit & 1 && (!nth-- || all)) {
			assert_true(flips->n < ARRAY_SIZE(flips->flip));
			flips->flip[flips->n++] =
				(struct flip){ f, base + f->byte, bit };
		}
}

/* Whether another answer goes to the same QP. */
static bool has_sibling(const struct captures *caps, size_t i,
			const struct roce_hdr *h)
{
	for (size_t k = 0; k < caps->n; k++) {
		const struct captured *c = &caps->pkt[k];
		struct roce_hdr o;

		if (k != i && !memcmp(&c->dst, &caps->pkt[i].dst, 16) &&
		    roce_decode(&o, c->data, c->len - ROCE_ICRC_LEN) > 0 &&
		    o.dest_qpn == h->dest_qpn &&
		    o.opcode >> 5 == h->opcode >> 5 &&
		    !(roce_opcode(o.opcode)->flags & ROCE_F_REQUEST))
			return true;
	}
	return false;
}

/* Every answer of an RC responder that a capture has. */
static void flip_rc_answers(void **state)
{
	struct job *job = *state;
	bool first = true;

	for (size_t i = 0; i < job->caps.n; i++) {
		const struct captured *c = &job->caps.pkt[i];
		struct flips flips;
		struct roce_hdr h;
		uint32_t flags, kind;

		if (roce_decode(&h, c->data, c->len - ROCE_ICRC_LEN) < 0 ||
		    (h.opcode & 0xe0) != ROCE_RC)
			continue;
		flags = roce_opcode(h.opcode)->flags;
		kind = h.syndrome & ROCE_AETH_KIND;
		if (flags & ROCE_F_REQUEST)
			continue;
		flips.n = 0;
		for (size_t k = 0; k < ARRAY_SIZE(bth_fields); k++)
			add(&flips, &bth_fields[k], 0, i, first);
		if (has_sibling(&job->caps, i, &h))
			add(&flips, &qpn, 0, i, first);
		if (flags & ROCE_F_AETH)
			add(&flips, &msn, 0, i, first);
		if (flags & ROCE_F_AETH && !kind)
			add(&flips, &ack_kind, 0, i, true);
		else if (flags & ROCE_F_AETH)
			add(&flips,
			    kind == ROCE_AETH_RNR ? &rnr_kind : &nak_kind, 0, i,
			    true);
		if (flags & ROCE_F_AETH && kind == ROCE_AETH_NAK)
			add(&flips, h.syndrome == 0x63 ? &code_63 : &nak_code,
			    0, i, true);
		try(job, i, &flips, replay_rc);
		first = false;
	}
	if (job->missed[0])
		fail_msg("%s: unnoticed: %s", job->name, job->missed);
}

/* Every message that answers another. */
static void flip_cm_answers(void **state)
{
	struct job *job = *state;
	bool first = true;

	for (size_t i = 0; i < job->caps.n; i++) {
		const struct captured *c = &job->caps.pkt[i];
		struct flips flips;
		struct roce_hdr h;
		struct mad m;
		int hl = roce_decode(&h, c->data, c->len - ROCE_ICRC_LEN);

		if (hl < 0 || h.opcode != (ROCE_UD | ROCE_SEND_ONLY) ||
		    h.dest_qpn != 1 ||
		    c->len != (size_t)hl + MAD_LEN + ROCE_ICRC_LEN ||
		    mad_decode(&m, c->data + hl, MAD_LEN) ||
		    m.attr_id == MAD_CM_REQ || m.attr_id == MAD_CM_SIDR_REQ)
			continue;
		flips.n = 0;
		for (size_t k = 0; k < ARRAY_SIZE(mad_header); k++)
			add(&flips, &mad_header[k], (size_t)hl, i, first);
		/* A DREQ begins an exchange, with a transaction ID of its own.
		 */
		for (size_t k = 0; m.attr_id != MAD_CM_DREQ && k < 2; k++)
			add(&flips, &tid[k], (size_t)hl, i, first);
		add(&flips,
		    m.attr_id == MAD_CM_SIDR_REP ? &request_id : &remote_id,
		    (size_t)hl, i, first);
		try(job, i, &flips, replay_cm);
		first = false;
	}
	if (job->missed[0])
		fail_msg("%s: unnoticed: %s", job->name, job->missed);
}

static void no_answer_passes_with_a_wrong_bit(void **state)
{
	struct job *job = *state;

	assert_int_equal(captures_load(&job->caps, job->path), 0);
	if (job->sum == &rc)
		flip_rc_answers(state);
	else
		flip_cm_answers(state);
}

static int close_job(void **state)
{
	struct job *job = *state;

	captures_free(&job->caps);
	return 0;
}

int main(int argc, char **argv)
{
	const char *dir = argc > 1 ? argv[1] : "tests/data/pcap";
	const char *only = getenv("REPLAY");
	struct tally_of *const both[] = { &rc, &cm };
	struct CMUnitTest *tests = NULL;
	char **paths = captures_list(dir, only);
	size_t ntests = 0, cap = 0;
	int failed;

	if (!paths) {
		perror(dir);
		return 1;
	}
	for (size_t k = 0; k < ARRAY_SIZE(both); k++)
		for (char **path = paths; *path; path++) {
			struct job *job;

			if (!capture_complete(strrchr(*path, '/') + 1))
				continue;
			job = calloc(1, sizeof(*job));
			job->path = *path;
			job->name = strrchr(*path, '/') + 1;
			job->sum = both[k];
			MORE(tests, ntests, cap);
			tests[ntests++] = (struct CMUnitTest){
				.name = job->name,
				.initial_state = job,
				.test_func = no_answer_passes_with_a_wrong_bit,
				.teardown_func = close_job,
			};
		}
	failed = _cmocka_run_group_tests("flips", tests, ntests, NULL, NULL);
	for (size_t i = 0; i < ntests; i++)
		free(tests[i].initial_state);
	free(tests);
	captures_list_free(paths);
	for (size_t k = 0; k < ARRAY_SIZE(both); k++) {
		print_message("%s: %zu of %zu wrong bits noticed\n",
			      both[k]->what, both[k]->noticed,
			      both[k]->changed);
		/* A single capture may have answers of one sort only. */
		failed |= !only && !both[k]->changed;
	}
	return failed || !(rc.changed + cm.changed);
}
