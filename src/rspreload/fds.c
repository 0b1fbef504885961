/*
 * fds.c - the descriptors that are ours, and how they become TCP's again
 *
 * Tables are read without locks. An rsp_fd stays memory of its kind for good,
 * so that a call that runs into a close() of another thread finds an rsocket
 * that is gone, or one that is not, but never nothing.
 */
#include "rdmacm/rsocket_wake.h"
#include "rspreload/rspreload.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CONNECT_MS 3000

static struct rsp_table table;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of free_list */
static struct rsp_fd *free_list;
static __thread int inside;
static pid_t owner; /* of all this memory */

const struct rsp_real *rsp_real(void)
{
	static struct rsp_real real;
	static _Atomic bool loaded;

	/* Twice does no harm. */
	if (!atomic_load_explicit(&loaded, memory_order_acquire)) {
#define F(ret, name, args) *(void **)&real.name = dlsym(RTLD_NEXT, #name);
		RSP_REAL(F)
#undef F
		atomic_store_explicit(&loaded, true, memory_order_release);
	}
	return &real;
}

uint64_t rsp_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int env_number(const char *name)
{
	const char *value = getenv(name);

	return value ? atoi(value) : 0;
}

uint64_t rsp_connect_ns(void)
{
	int ms = env_number("RS_CONNECT_TIMEOUT");

	return (uint64_t)(ms > 0 ? ms : CONNECT_MS) * 1000000u;
}

void rsp_enter(void)
{
	inside++;
}

void rsp_leave(void)
{
	inside--;
}

bool rsp_inside(void)
{
	return inside;
}

_Atomic(void *) *rsp_slot(struct rsp_table *t, int fd, bool make)
{
	struct rsp_chunk *c, *none = NULL;
	_Atomic(struct rsp_chunk *) *p;

	if (fd < 0 || fd >= RSP_CHUNK * RSP_NCHUNKS)
		return NULL;
	p = &t->chunk[fd / RSP_CHUNK];
	c = atomic_load_explicit(p, memory_order_acquire);
	if (!c && make) {
		c = calloc(1, sizeof(*c));
		if (!c)
			return NULL;
		if (!atomic_compare_exchange_strong(p, &none, c)) {
			free(c);
			c = none;
		}
	}
	return c ? &c->slot[fd % RSP_CHUNK] : NULL;
}

bool rsp_borrowed(void)
{
	return owner && getpid() != owner;
}

struct rsp_fd *rsp_find(int fd)
{
	_Atomic(void *) *slot = rsp_slot(&table, fd, false);
	struct rsp_fd *f;

	f = slot ? atomic_load_explicit(slot, memory_order_acquire) : NULL;
	return f && f->state != RSP_PLAIN ? f : NULL;
}

struct rsp_fd *rsp_new(int family, int type, enum rsp_state state, int rfd)
{
	struct rsp_fd *f;

	pthread_mutex_lock(&mutex);
	f = free_list;
	if (f)
		free_list = f->next_free;
	pthread_mutex_unlock(&mutex);
	if (!f) {
		f = calloc(1, sizeof(*f));
		if (!f)
			return NULL;
		pthread_mutex_init(&f->lock, NULL);
	}
	f->family = family;
	f->type = type;
	f->dst_len = 0;
	f->linked = false;
	f->regs = NULL;
	f->refs = 0;
	f->rfd = rfd;
	f->state = state;
	return f;
}

int rsp_set(int fd, struct rsp_fd *f)
{
	_Atomic(void *) *slot;

	if (rsp_borrowed())
		return fd;
	slot = rsp_slot(&table, fd, true);
	if (!slot) {
		errno = ENOMEM;
		return -1;
	}
	f->refs++;
	atomic_store_explicit(slot, f, memory_order_release);
	return fd;
}

static void close_rsocket(struct rsp_fd *f)
{
	int rfd = atomic_exchange(&f->rfd, -1);

	if (rfd < 0)
		return;
	rsp_enter();
	rclose(rfd);
	rsp_leave();
}

void rsp_clear(int fd)
{
	_Atomic(void *) *slot = rsp_slot(&table, fd, false);
	struct rsp_fd *f;

	if (!slot || rsp_borrowed())
		return;
	f = atomic_exchange(slot, NULL);
	if (!f || --f->refs)
		return;
	close_rsocket(f);
	f->state = RSP_PLAIN;
	pthread_mutex_lock(&mutex);
	f->next_free = free_list;
	free_list = f;
	pthread_mutex_unlock(&mutex);
}

void rsp_clear_range(unsigned first, unsigned last)
{
	unsigned fd;

	if (last > RSP_CHUNK * RSP_NCHUNKS - 1)
		last = RSP_CHUNK * RSP_NCHUNKS - 1;
	for (fd = first; fd <= last; fd++) {
		if (!(fd % RSP_CHUNK) && !rsp_slot(&table, (int)fd, false) &&
		    !rsp_epoll_any(fd)) {
			fd += RSP_CHUNK - 1;
			continue;
		}
		rsp_epoll_close((int)fd);
		rsp_clear((int)fd);
	}
}

/* The names are those of rdma-core's preload library. */
static void set_option(int rfd, int option, const char *name)
{
	int value = env_number(name);

	if (value > 0)
		rsetsockopt(rfd, SOL_RDMA, option, &value, sizeof(value));
}

int rsp_rsocket(int family, int type)
{
	int rfd;

	rsp_enter();
	rfd = rsocket(family, type | RSOCK_ASIDE, 0);
	if (rfd >= 0) {
		set_option(rfd, RDMA_SQSIZE, "RS_SQ_SIZE");
		set_option(rfd, RDMA_RQSIZE, "RS_RQ_SIZE");
		set_option(rfd, RDMA_INLINE, "RS_INLINE");
	}
	rsp_leave();
	return rfd;
}

void rsp_copy_options(int rfd, int fd)
{
	static const int names[][2] = {
		{ SOL_SOCKET, SO_REUSEADDR },
		{ IPPROTO_TCP, TCP_KEEPIDLE },
		{ SOL_SOCKET, SO_KEEPALIVE },
		{ IPPROTO_TCP, TCP_NODELAY },
	};
	const struct rsp_real *real = rsp_real();
	socklen_t len;
	size_t i;
	int v;

	v = real->fcntl64(fd, F_GETFL);
	if (v >= 0)
		rfcntl(rfd, F_SETFL, v & ~O_ACCMODE);
	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		len = sizeof(v);
		if (!real->getsockopt(fd, names[i][0], names[i][1], &v, &len))
			rsetsockopt(rfd, names[i][0], names[i][1], &v, len);
	}
}

void rsp_fall_back(struct rsp_fd *f, int fd)
{
	const struct rsp_real *real = rsp_real();
	struct sockaddr_storage name, none;
	socklen_t len = sizeof(name), none_len = sizeof(none);
	const struct sockaddr_in *bound = (const void *)&name;
	const struct sockaddr_in *shadow = (const void *)&none;

	/* Where the program has bound it, unless the shadow is there already.
	 */
	if (!rgetsockname(f->rfd, (struct sockaddr *)&name, &len) &&
	    bound->sin_port &&
	    !real->getsockname(fd, (struct sockaddr *)&none, &none_len) &&
	    !shadow->sin_port)
		real->bind(fd, (struct sockaddr *)&name, len);
	f->state = RSP_PLAIN;
	rsp_epoll_fell_back(f);
	close_rsocket(f);
}

static int connect_error(struct rsp_fd *f)
{
	struct pollfd p = { .fd = f->rfd, .events = POLLOUT };
	socklen_t len = sizeof(int);
	int err = 0, n;

	rsp_enter();
	n = rpoll(&p, 1, 0);
	if (n > 0)
		n = rgetsockopt(f->rfd, SOL_SOCKET, SO_ERROR, &err, &len);
	rsp_leave();
	if (!n && p.revents)
		return err ? err : p.revents & POLLERR ? ECONNREFUSED : 0;
	if (n < 0)
		return errno;
	return rsp_now_ns() < f->deadline_ns ? EINPROGRESS : ETIMEDOUT;
}

enum rsp_state rsp_settle(struct rsp_fd *f, int fd)
{
	int err, flags;

	if (f->state != RSP_CONNECTING)
		return f->state;
	pthread_mutex_lock(&f->lock);
	if (f->state == RSP_CONNECTING) {
		err = connect_error(f);
		if (!err) {
			/* What the program has made of it meanwhile. */
			flags = rsp_real()->fcntl64(fd, F_GETFL);
			if (flags >= 0)
				rfcntl(f->rfd, F_SETFL, flags & ~O_ACCMODE);
			f->state = RSP_RSOCK;
		} else if (err != EINPROGRESS) {
			rsp_fall_back(f, fd);
			rsp_real()->connect(fd, (struct sockaddr *)&f->dst,
					    f->dst_len);
		}
	}
	pthread_mutex_unlock(&f->lock);
	return f->state;
}

struct rsp_fd *rsp_data(int fd)
{
	struct rsp_fd *f = rsp_find(fd);

	if (!f)
		return NULL;
	switch (f->state) {
	case RSP_RSOCK:
	case RSP_LISTENING:
		return f;
	case RSP_CONNECTING:
		return rsp_settle(f, fd) == RSP_PLAIN ? NULL : f;
	case RSP_FORK_ACTIVE:
	case RSP_FORK_PASSIVE:
		rsp_fork_connect(f, fd);
		return f->state == RSP_RSOCK ? f : NULL;
	case RSP_PLAIN:
	case RSP_FORK:
	case RSP_FORK_LISTEN:
		break;
	}
	return NULL;
}

static void before_fork(void)
{
	pthread_mutex_lock(&mutex);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&mutex);
}

/*
 * The child has the parent's descriptors, but its rsockets are dead, and an
 * epoll instance that both have is the parent's to change.
 */
static void after_fork_child(void)
{
	struct rsp_chunk *c;
	struct rsp_fd *f;
	int i, j;

	pthread_mutex_init(&mutex, NULL);
	owner = getpid();
	for (i = 0; i < RSP_NCHUNKS; i++) {
		c = atomic_load(&table.chunk[i]);
		for (j = 0; c && j < RSP_CHUNK; j++) {
			f = atomic_load(&c->slot[j]);
			if (!f)
				continue;
			pthread_mutex_init(&f->lock, NULL);
			f->regs = NULL;
			/*
			 * Without a connection the shadow is all there is to
			 * inherit: a worker accepts what comes by TCP.
			 */
			if (f->state == RSP_LISTENING ||
			    f->state == RSP_CONNECTING ||
			    (f->state == RSP_RSOCK && f->type == SOCK_STREAM &&
			     !f->dst_len && !f->linked))
				f->state = RSP_PLAIN;
		}
	}
	rsp_epoll_forked();
}

__attribute__((constructor)) static void load(void)
{
	rsp_real();
	owner = getpid();
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/*
 * The kernel delivers what a program wrote before it ended. What an rsocket
 * took is on its way only as long as the process is there.
 */
__attribute__((destructor)) static void unload(void)
{
	struct rsp_chunk *c;
	struct rsp_fd *f;
	int i, j;

	for (i = 0; i < RSP_NCHUNKS; i++) {
		c = atomic_load(&table.chunk[i]);
		for (j = 0; c && j < RSP_CHUNK; j++) {
			f = atomic_load(&c->slot[j]);
			if (f && f->state == RSP_RSOCK)
				close_rsocket(f);
		}
	}
}
