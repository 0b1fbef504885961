/*
 * relay.c - what a child of fork() gets of its parent's sockets
 *
 * An rsocket belongs to the process that made it, which has its queue pair and
 * the memory that the peer writes to.
 *
 * A server that forks for each connection accepts, and forks before either
 * process uses the connection. So when a process forks, each connection that
 * has not been used yet becomes one end of a socketpair in the program's table,
 * which parent and child share as they would share the socket, and a thread of
 * the parent carries bytes between the other end and the rsocket. The program's
 * end has the addresses in its name (names.c). A connection that has been used
 * stays the parent's; in the child it fails with EIO.
 *
 * A listener is the parent's, too; the child shares its shadow. When the child
 * first waits for connections there, it writes to an eventfd that both have,
 * and the parent's thread gives RDMA up at that port: peers that connect are
 * refused at once, and turn to TCP.
 */
#include "base/fd_high.h"
#include "base/say.h"
#include "base/thread.h"
#include "rspreload/rspreload.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PIECE 65536
/* How long a parent that ends waits for what its children have written. */
#define END_MS 10000

/* Bytes on their way in one direction. */
struct flow {
	char data[PIECE];
	size_t pos, len;
	bool end; /* nothing comes after these */
	bool passed; /* and the end has been passed on */
};

/* A connection, or a listener that children may serve: then rfd is -1. */
struct relay {
	struct relay *next;
	int rfd, end;
	struct rsp_fd *listener;
	bool dead;
	struct flow *out, *in; /* to and from the peer */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the list */
static struct relay *relays;
static int wake = -1; /* the list has grown */
static bool running;

static void free_relay(struct relay *r)
{
	free(r->out);
	free(r->in);
	free(r);
}

/* Whether a call that failed may succeed later. */
static bool may_succeed_later(void)
{
	return errno == EAGAIN || errno == EINTR;
}

/* The reader is gone. The other direction goes on. */
static void cut_flow(struct flow *f)
{
	f->len = 0;
	f->end = f->passed = true;
}

static void to_program(struct relay *r)
{
	struct flow *f = r->in;
	ssize_t n;

	while (f->len) {
		n = rsp_real()->send(r->end, f->data + f->pos, f->len,
				     MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0) {
			if (!may_succeed_later())
				cut_flow(f);
			return;
		}
		f->pos += (size_t)n;
		f->len -= (size_t)n;
	}
	if (f->end && !f->passed)
		rsp_real()->shutdown(r->end, SHUT_WR);
	f->passed = f->end;
}

/*
 * What the program writes from now on fails. What it has written is taken away:
 * left behind, it would make close(2) end the other direction with ECONNRESET
 * before the program has read all of it (unix(7)).
 */
static void refuse_program(int end)
{
	char rest[4096];

	rsp_real()->shutdown(end, SHUT_RD);
	while (rsp_real()->recv(end, rest, sizeof(rest), MSG_DONTWAIT) > 0)
		;
}

static void to_peer(struct relay *r, bool writable)
{
	struct flow *f = r->out;
	ssize_t n;

	while (f->len) {
		n = rsend(r->rfd, f->data + f->pos, f->len, MSG_DONTWAIT);
		if (n < 0) {
			if (may_succeed_later())
				return;
			cut_flow(f);
			refuse_program(r->end);
			return;
		}
		f->pos += (size_t)n;
		f->len -= (size_t)n;
	}
	/* Not earlier: it would wait until the connection is there. */
	if (!f->end || f->passed || !writable)
		return;
	rshutdown(r->rfd, SHUT_WR);
	f->passed = true;
}

/* Takes the result of a read: false if the connection has failed. */
static bool flow_took(struct flow *f, ssize_t n)
{
	if (n < 0)
		return may_succeed_later();
	f->pos = 0;
	f->len = (size_t)n;
	f->end = !n;
	return true;
}

static bool flow_finished(const struct flow *f)
{
	return f->end && !f->len;
}

static void relay_carry(struct relay *r, short peer, short program)
{
	struct flow *in = r->in, *out = r->out;
	bool ok = true;

	if (peer && !in->len && !in->end)
		ok = flow_took(in,
			       rrecv(r->rfd, in->data, PIECE, MSG_DONTWAIT));
	if (ok && program && !out->len && !out->end)
		ok = flow_took(out, rsp_real()->recv(r->end, out->data, PIECE,
						     MSG_DONTWAIT));
	if (ok)
		to_program(r);
	if (ok)
		to_peer(r, peer & POLLOUT);
	/* Closed, not only shut down: nobody reads what arrives. */
	if (ok && flow_finished(out) && program & POLLHUP)
		ok = false;
	r->dead = !ok || (in->passed && out->passed);
}

static void give_up(struct relay *r)
{
	struct sockaddr_storage name = { 0 };
	socklen_t len = sizeof(name);
	eventfd_t value;
	int fd;

	eventfd_read(r->end, &value);
	fd = rsp_give_up(r->listener, r->end);
	r->dead = true;
	if (fd < 0)
		return;
	rsp_real()->getsockname(fd, (struct sockaddr *)&name, &len);
	say("port %u: a child of fork() accepts connections there, so they "
	    "use TCP instead of RDMA from now on",
	    ntohs(((struct sockaddr_in *)(void *)&name)->sin_port));
}

static void relay_watch(struct relay *r, struct pollfd *p)
{
	p[0] = p[1] = (struct pollfd){ .fd = -1 };
	if (r->listener) {
		p[1] = (struct pollfd){ .fd = r->end, .events = POLLIN };
		return;
	}
	p[0].events = (short)((!r->in->len && !r->in->end ? POLLIN : 0) |
			      (r->out->len || (r->out->end && !r->out->passed) ?
				       POLLOUT :
				       0));
	p[1].events = (short)((!r->out->len && !r->out->end ? POLLIN : 0) |
			      (r->in->len ? POLLOUT : 0));
	if (p[0].events)
		p[0].fd = r->rfd;
	if (p[1].events || flow_finished(r->out))
		p[1].fd = r->end;
}

/* Under mutex. A copy of the list; NULL if there is no memory. */
static struct relay **list_relays(size_t *n, struct pollfd **p)
{
	struct relay *r, **all;

	*n = 0;
	for (r = relays; r; r = r->next)
		++*n;
	all = malloc((*n + 1) * sizeof(*all));
	*p = malloc((*n * 2 + 1) * sizeof(**p));
	if (!all || !*p) {
		free(all);
		free(*p);
		return NULL;
	}
	*n = 0;
	for (r = relays; r; r = r->next)
		all[(*n)++] = r;
	return all;
}

/*
 * The program has closed it, or the connection has failed. rclose() first:
 * until the rest is with librdmacm, rsp_relay_finish() must find it.
 */
static void relay_drop(struct relay *r)
{
	struct relay **link;

	if (r->rfd >= 0)
		rclose(r->rfd);
	pthread_mutex_lock(&mutex);
	for (link = &relays; *link != r; link = &(*link)->next)
		;
	*link = r->next;
	pthread_mutex_unlock(&mutex);
	rsp_real()->close(r->end);
	free_relay(r);
}

static void *relay_thread(void *arg)
{
	struct relay **all;
	struct pollfd *p;
	eventfd_t value;
	size_t n, i;

	rsp_enter(); /* the calls here are our own */
	for (;;) {
		pthread_mutex_lock(&mutex);
		all = list_relays(&n, &p);
		pthread_mutex_unlock(&mutex);
		if (!all) {
			usleep(10000);
			continue;
		}
		for (i = 0; i < n; i++)
			relay_watch(all[i], &p[i * 2]);
		p[n * 2] = (struct pollfd){ .fd = wake, .events = POLLIN };
		if (rpoll(p, n * 2 + 1, -1) > 0) {
			eventfd_read(wake, &value);
			for (i = 0; i < n; i++) {
				if (all[i]->listener && p[i * 2 + 1].revents)
					give_up(all[i]);
				else if (p[i * 2].revents ||
					 p[i * 2 + 1].revents)
					relay_carry(all[i], p[i * 2].revents,
						    p[i * 2 + 1].revents);
				if (all[i]->dead)
					relay_drop(all[i]);
			}
		}
		free(all);
		free(p);
	}
	return arg;
}

/* Under mutex. */
static bool start_relay_thread(void)
{
	if (running)
		return true;
	if (wake < 0)
		wake = fd_high(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	running = wake >= 0 && !thread_start(relay_thread, NULL);
	return running;
}

static bool relay_add(struct relay *r)
{
	bool ok;

	pthread_mutex_lock(&mutex);
	ok = start_relay_thread();
	if (ok) {
		r->next = relays;
		relays = r;
		eventfd_write(wake, 1);
	}
	pthread_mutex_unlock(&mutex);
	return ok;
}

/* One thread serves all connections: rclose() must not wait. */
static void never_wait(int rfd)
{
	struct linger l;
	socklen_t len = sizeof(l);

	if (rgetsockopt(rfd, SOL_SOCKET, SO_LINGER, &l, &len) || !l.l_onoff ||
	    !l.l_linger)
		return;
	l.l_onoff = 0;
	rsetsockopt(rfd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
}

/* A socketpair, whose first end has the addresses of rfd. 0 or -1. */
static int ends_of(int rfd, int sv[2])
{
	struct sockaddr_storage local = { 0 }, peer = { 0 };
	socklen_t local_len = sizeof(local), peer_len = sizeof(peer);

	if (rgetsockname(rfd, (struct sockaddr *)&local, &local_len) ||
	    rgetpeername(rfd, (struct sockaddr *)&peer, &peer_len) ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sv))
		return -1;
	if (!rsp_name(sv[0], &local, &peer))
		return 0;
	rsp_real()->close(sv[0]);
	rsp_real()->close(sv[1]);
	return -1;
}

int rsp_relay(int rfd)
{
	struct relay *r = calloc(1, sizeof(*r));
	int sv[2];

	if (r) {
		r->out = calloc(1, sizeof(*r->out));
		r->in = calloc(1, sizeof(*r->in));
	}
	if (!r || !r->out || !r->in || ends_of(rfd, sv)) {
		if (r)
			free_relay(r);
		return -1;
	}
	never_wait(rfd);
	r->rfd = rfd;
	r->end = fd_high(sv[1]);
	if (relay_add(r))
		return sv[0];
	rsp_real()->close(sv[0]);
	rsp_real()->close(r->end);
	free_relay(r);
	return -1;
}

int rsp_offer(struct rsp_fd *f)
{
	struct relay *r = calloc(1, sizeof(*r));

	if (!r)
		return -1;
	r->rfd = -1;
	r->listener = f;
	r->end = fd_high(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
	if (r->end >= 0 && relay_add(r))
		return r->end;
	if (r->end >= 0)
		rsp_real()->close(r->end);
	free(r);
	return -1;
}

void rsp_relay_before_fork(void)
{
	pthread_mutex_lock(&mutex);
}

void rsp_relay_after_fork(bool child)
{
	struct relay *r;

	if (!child) {
		pthread_mutex_unlock(&mutex);
		return;
	}
	/*
	 * Closed in the child: otherwise the parent's close would not be seen.
	 */
	pthread_mutex_init(&mutex, NULL);
	for (; (r = relays); free_relay(r)) {
		relays = r->next;
		/* The child writes to this one. */
		if (r->listener && r->listener->heir == r->end)
			continue;
		if (!r->listener)
			rclose(r->rfd);
		rsp_real()->close(r->end);
	}
	if (wake >= 0)
		rsp_real()->close(wake);
	wake = -1;
	running = false;
}

/* Whether anything is left that a child wrote before it closed. */
static bool relays_unfinished(void)
{
	struct pollfd p = { .events = 0 };
	struct relay *r;
	bool any = false;

	pthread_mutex_lock(&mutex);
	for (r = relays; r && !any; r = r->next) {
		p.fd = r->end;
		any = !r->listener && rsp_real()->poll(&p, 1, 0) > 0;
	}
	pthread_mutex_unlock(&mutex);
	return any;
}

void rsp_relay_finish(void)
{
	int ms;

	for (ms = 0; ms < END_MS && relays_unfinished(); ms++)
		usleep(1000);
}
