/*
 * rsocket_peer.c - the protocol of rsockets, spoken by hand, right and wrong
 *
 * The server is an rsocket program: it sends back what it receives, until the
 * end of the stream, and takes the next connection. The client speaks the
 * protocol itself (rsocket_speak.c). It runs the rows of rsocket_rows.c, most
 * of which break the protocol; after each, the server must still serve.
 *
 *	rsocket_peer -p PORT		the server; ends when told
 *	rsocket_peer -p PORT HOST	prints "ok ROW" or "not ok ROW: why"
 */
#include "rsocket_peer.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The server. */

static void serve_one(int s)
{
	static char buf[100000];
	struct pollfd pfd = { .fd = s };
	ssize_t n, sent, m;
	bool stall;

	while ((n = rrecv(s, buf, sizeof(buf), 0)) > 0) {
		if (n == 6 && !memcmp(buf, QUIT, 6)) {
			rclose(s);
			exit(0);
		}
		stall = n == 6 && !memcmp(buf, STALL, 6);
		for (sent = 0; sent < n; sent += m) {
			m = rsend(s, buf + sent, (size_t)(n - sent), 0);
			if (m < 0)
				break;
		}
		if (sent < n)
			break;
		/* What comes is not read until it is too much. */
		if (stall)
			rpoll(&pfd, 1, 20000);
	}
	printf("ended with %s\n", n < 0 ? strerrorname_np(errno) : "the end");
	rclose(s);
}

static int serve(const struct addrinfo *ai)
{
	int s = rsocket(ai->ai_family, SOCK_STREAM, 0), on = 1, c;

	if (s < 0 ||
	    rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    rbind(s, ai->ai_addr, ai->ai_addrlen) || rlisten(s, 8)) {
		perror("rsocket");
		return 1;
	}
	puts("ready");
	for (;;) {
		c = raccept(s, NULL, NULL);
		if (c < 0) {
			perror("raccept");
			return 1;
		}
		serve_one(c);
	}
}

static int rows, bad;

static void run(const struct row *row)
{
	struct peer p;
	bool ok;

	why[0] = '\0';
	ok = row->run(&p);
	destroy(&p);
	/* Whatever happened, the next is served. */
	if (ok &&
	    (!echo_one(&p) || !message(&p, OP(CTRL, 0)) || !until_gone(&p))) {
		ok = false;
		strncat(why, " (afterwards)", sizeof(why) - strlen(why) - 1);
	}
	if (ok && p.ch)
		destroy(&p);
	printf("%sok %s%s%s\n", ok ? "" : "not ", row->name, ok ? "" : ": ",
	       ok ? "" : why);
	fflush(stdout);
	rows++;
	bad += !ok;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE,
				  .ai_socktype = SOCK_STREAM },
			*ai;
	const char *only = getenv("ROW");
	struct peer p;
	size_t i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 3 || strcmp(argv[1], "-p")) {
		fprintf(stderr, "usage: rsocket_peer -p PORT [HOST]\n");
		return 2;
	}
	snprintf(port, sizeof(port), "%s", argv[2]);
	host = argc > 3 ? argv[3] : NULL;
	if (!host) {
		hints.ai_family = AF_INET6;
		if (getaddrinfo(NULL, port, &hints, &ai))
			return 2;
		return serve(ai);
	}
	if (host[0] == '-' && host[1] == 'l')
		for (i = 0; table[i].name; i++)
			puts(table[i].name);
	if (host[0] == '-')
		return 0;
	for (i = 0; table[i].name; i++)
		if (!only || !strcmp(only, table[i].name))
			run(&table[i]);
	if (open_peer(&p))
		say(&p, QUIT);
	until_gone(&p);
	destroy(&p);
	printf("%d rows, %d bad\n", rows, bad);
	return bad != 0;
}
