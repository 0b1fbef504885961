/*
 * talk.c - the TCP connection between the two ends, and the server's half
 */
#include "peer.h"

/* The connection between client and server. */
FILE *from_peer, *to_peer;

int talk_over(int fd)
{
	int fd2 = dup(fd);

	from_peer = fdopen(fd, "r");
	to_peer = fdopen(fd2, "w");
	return from_peer && to_peer ? 0 : -ENOMEM;
}

static void serve(int fd)
{
	char line[LINE_MAX_LEN];
	struct reply r;

	if (talk_over(fd) || open_end())
		exit(1);
	while (fgets(line, sizeof(line), from_peer)) {
		interpret(line, &r);
		if (r.err[0]) {
			fprintf(to_peer, "%s %s\n",
				r.unsupported ? "na" : "err", r.err);
		} else {
			fprintf(to_peer, "ok");
			for (int i = 0; i < r.n; i++)
				fprintf(to_peer, " %" PRIx64, r.v[i]);
			fprintf(to_peer, "\n");
		}
		fflush(to_peer);
	}
	exit(0);
}

int tcp(bool server)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = server ? AI_PASSIVE : 0 };
	const char *host = server ? opt_addr : opt_server;
	uint64_t until = now_ms() + 10000;
	struct addrinfo *ai;
	int one = 1, fd;

	if (getaddrinfo(host, opt_port, &hints, &ai)) {
		fprintf(stderr, "peer: bad address %s\n", host);
		exit(2);
	}
	for (;;) {
		fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd < 0)
			break;
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (server ? !bind(fd, ai->ai_addr, ai->ai_addrlen) &&
				     !listen(fd, 8) :
			     !connect(fd, ai->ai_addr, ai->ai_addrlen))
			break;
		close(fd);
		fd = -1;
		if (server || now_ms() > until)
			break;
		usleep(50000);
	}
	if (fd < 0) {
		fprintf(stderr, "peer: %s port %s: %s\n", host, opt_port,
			strerror(errno));
		exit(2);
	}
	freeaddrinfo(ai);
	return fd;
}

void server(void)
{
	int one = 1, lfd = tcp(true);

	signal(SIGCHLD, SIG_IGN); /* children need no waiting for */
	printf("peer: listening\n");
	fflush(stdout);
	for (;;) {
		int fd = accept(lfd, NULL, NULL);

		if (fd < 0)
			continue;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (fork() == 0) {
			close(lfd);
			alarm(300);
			serve(fd);
		}
		close(fd);
	}
}
