/*
 * peer.c - one verbs feature at a time between two RDMA devices
 *
 *	peer server -a ADDR [-d DEV] [-p PORT] [-i]
 *	peer client -a ADDR [-d DEV] [-p PORT] -c SERVER [options] SCENARIO...
 *	peer gid -a ADDR
 *	peer list
 *
 * A plain verbs program: it runs on the kernel's rxe, on hardware, and under
 * softhca, and tests one against the other. Both ends are interpreters of a
 * small language, one line per verb ("recv", "post", "wc", ...). A scenario is
 * a function of the client that gives lines to either end: to itself (A, the
 * requester) or, over TCP, to the server (B, the responder), and judges what
 * came back. So a scenario is written once and reads like a program that holds
 * both devices, and the direction depends only on which end runs where.
 *
 * Every scenario runs in a process of its own on both sides. A wait is always
 * for an event, since a guest may have a single CPU, and always bounded.
 *
 * The expected results are the specification's. Where the kernel's rxe is
 * known to differ as responder, the scenario says so with quirk(), and the
 * result reports it.
 */
#include "scenario.h"

const char *opt_dev, *opt_addr, *opt_other, *opt_server, *opt_port = "18600";
unsigned opt_mtu = 1024, opt_seconds = 5;
bool opt_lossy, opt_ordered, opt_verbose, opt_iwarp;
unsigned opt_cm_port;

static const struct scenario {
	const char *name;
	void (*run)(void);
	const char *what;
} scenarios[] = {
#define X(name, what) { #name, name, what },
	SCENARIOS(X)
#undef X
};
#define CM_PORT 18700u
#define NSCENARIOS (sizeof(scenarios) / sizeof(*scenarios))

static int run_one(const struct scenario *s)
{
	int status;
	pid_t pid;

	printf("%s ", s->name);
	fflush(stdout);
	signal(SIGTERM, SIG_IGN); /* is meant for the scenario */
	pid = fork();
	if (pid == 0) {
		signal(SIGTERM, SIG_DFL);
		alarm(60 + opt_seconds);
		if (talk_over(tcp(false)) || open_end())
			fail("cannot begin");
		meet();
		s->run();
		printf("PASS %s\n", note);
		exit(0); /* and what a library has to say at the end */
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 1;
	if (WIFSIGNALED(status)) {
		if (WTERMSIG(status) == SIGALRM)
			printf("FAIL no end within %u s\n", 60 + opt_seconds);
		else
			printf("FAIL killed by signal %d\n", WTERMSIG(status));
		fflush(stdout);
		return 1;
	}
	return WEXITSTATUS(status) == EXIT_SKIP ? 0 : WEXITSTATUS(status);
}

static void usage(void)
{
	fprintf(stderr,
		"usage: peer server -a ADDR [-d DEV] [-p PORT]\n"
		"       peer client -a ADDR -c SERVER [-d DEV] [-p PORT]\n"
		"            [-m MTU] [-s SECONDS] [-o OTHER] [-l] [-k] [-v] "
		"SCENARIO...\n"
		"       peer gid -a ADDR\n"
		"       peer list\n"
		"-i: over iWARP, where rdma_cm listens on its port 18700 and "
		"on, by the\nplace of the scenario in the list\n"
		"-a: an address of the RDMA device to use; -o: one that "
		"neither end has;\n-l: the network loses packets, or "
		"keeps them back;\n-k: with -l: it keeps the order of those "
		"that it does not lose\n");
	exit(2);
}

int main(int argc, char **argv)
{
	int c, failed = 0;

	if (argc < 2)
		usage();
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(argv[1], "list")) {
		for (size_t i = 0; i < NSCENARIOS; i++)
			printf("%s\t%s\n", scenarios[i].name,
			       scenarios[i].what);
		return 0;
	}
	optind = 2;
	while ((c = getopt(argc, argv, "a:c:d:o:p:m:s:iklv")) != -1) {
		switch (c) {
		case 'a':
			opt_addr = optarg;
			break;
		case 'c':
			opt_server = optarg;
			break;
		case 'd':
			opt_dev = optarg;
			break;
		case 'o':
			opt_other = optarg;
			break;
		case 'p':
			opt_port = optarg;
			break;
		case 'm':
			opt_mtu = (unsigned)atoi(optarg);
			break;
		case 's':
			opt_seconds = (unsigned)atoi(optarg);
			break;
		case 'i':
			opt_iwarp = true;
			break;
		case 'k':
			opt_ordered = true;
			break;
		case 'l':
			opt_lossy = true;
			break;
		case 'v':
			opt_verbose = true;
			break;
		default:
			usage();
		}
	}
	if (!opt_addr)
		usage();
	if (!strcmp(argv[1], "gid")) {
		if (open_end())
			return 1;
		printf("%s %d\n", ibv_get_device_name(here.ctx->device),
		       here.gid_index);
		return 0;
	}
	if (!strcmp(argv[1], "server"))
		server();
	if (strcmp(argv[1], "client") || !opt_server || optind == argc)
		usage();
	for (; optind < argc; optind++) {
		const struct scenario *s = NULL;

		for (size_t i = 0; i < NSCENARIOS; i++)
			if (!strcmp(scenarios[i].name, argv[optind]))
				s = &scenarios[i];
		if (!s) {
			fprintf(stderr, "peer: no scenario %s\n", argv[optind]);
			return 2;
		}
		opt_cm_port = CM_PORT + (unsigned)(s - scenarios);
		failed += run_one(s) != 0;
	}
	return failed != 0;
}
