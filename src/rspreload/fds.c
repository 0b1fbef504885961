/*
 * fds.c - descriptors that have an rsocket, and how they fall back to TCP
 *
 * Tables are read without locks. The memory of an rsp_fd is never freed, only
 * reused, so that a call that races with a close() of another thread finds an
 * rsp_fd, with its rsocket or without.
 */
#include "base/bytes.h"
#include "base/fd_table.h"
#include "base/say.h"
#include "os/config.h"
#include "rsockets/wake.h"
#include "rspreload/rspreload.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* As long as RFC 8305 would wait, and longer for who is there. */
#define CONNECT_MS 200
#define CONNECT_HEARD_MS 3000
/*
 * By iWARP whatever has the derived port may be silent, or a firewall
 * that passes the program's port alone.
 */
#define CONNECT_IWARP_MS 1000
/* After such a timeout, for a while. */
#define CONNECT_AGAIN_MS 100
#define SILENT_NS 60000000000ull

static struct fd_table table;
/* Of free_list and silent. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct rsp_fd *free_list;
static struct silent {
	struct sockaddr_storage dst;
	uint64_t until_ns;
} silent[16];
static __thread int inside;
static pid_t owner; /* of all this memory */

const struct rsp_real *rsp_real(void)
{
	static struct rsp_real real;
	static _Atomic bool loaded;

	/* Two threads may do it at once. */
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

/* Under mutex. The entry of f's peer, or NULL. */
static struct silent *find_silent(const struct rsp_fd *f)
{
	struct silent *s;

	for (s = silent; s < silent + ARRAY_SIZE(silent); s++)
		if (s->until_ns && !memcmp(&s->dst, &f->dst, f->dst_len))
			return s;
	return NULL;
}

static bool was_silent(const struct rsp_fd *f)
{
	struct silent *s;
	bool was;

	pthread_mutex_lock(&mutex);
	s = find_silent(f);
	was = s && rsp_now_ns() < s->until_ns;
	pthread_mutex_unlock(&mutex);
	return was;
}

/* The outcome of connecting to f's peer. */
static void set_silent(const struct rsp_fd *f, bool is)
{
	struct silent *s, *next;

	/* Of a short attempt that is not known. */
	if (is && f->hasty)
		return;
	pthread_mutex_lock(&mutex);
	s = find_silent(f);
	if (is && !s) {
		s = silent;
		for (next = s + 1; next < silent + ARRAY_SIZE(silent); next++)
			if (next->until_ns < s->until_ns)
				s = next;
		memcpy(&s->dst, &f->dst, f->dst_len);
	}
	if (s)
		s->until_ns = is ? rsp_now_ns() + SILENT_NS : 0;
	pthread_mutex_unlock(&mutex);
}

static bool iwarp_first(void)
{
	const enum iwarp iwarp = config_get()->iwarp;

	return iwarp == IWARP_ONLY || iwarp == IWARP_FIRST;
}

bool rsp_goes_by_tcp(const struct rsp_fd *f)
{
	return !iwarp_first() && env_number("RS_CONNECT_TIMEOUT") <= 0 &&
	       rsp_host_silent(&f->dst);
}

void rsp_set_deadline(struct rsp_fd *f)
{
	int ms = env_number("RS_CONNECT_TIMEOUT");

	f->hasty = ms <= 0 && was_silent(f);
	f->most_ns = 0;
	if (f->hasty) {
		ms = CONNECT_AGAIN_MS;
	} else if (ms <= 0 && !iwarp_first()) {
		ms = CONNECT_MS;
		f->most_ns = rsp_now_ns() + CONNECT_HEARD_MS * 1000000ull;
	} else if (ms <= 0) {
		ms = CONNECT_IWARP_MS;
	}
	f->deadline_ns = rsp_now_ns() + (uint64_t)ms * 1000000u;
}

/* Under f's lock, at its deadline: whoever has answered gets more time. */
static bool more_time(struct rsp_fd *f)
{
	socklen_t len = sizeof(int);
	int heard = 0;

	if (!f->most_ns)
		return false;
	rsp_enter();
	rgetsockopt(f->rfd, SOL_RDMA, RSOCK_HEARD, &heard, &len);
	rsp_leave();
	if (!heard)
		return false;
	f->deadline_ns = f->most_ns;
	f->most_ns = 0;
	return true;
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

bool rsp_borrowed(void)
{
	return owner && getpid() != owner;
}

struct rsp_fd *rsp_find(int fd)
{
	struct rsp_fd *f = fd_find(&table, fd);

	return f && f->state != RSP_PLAIN ? f : NULL;
}

struct rsp_fd *rsp_new(int family, int type, int rfd)
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
	f->used = RSP_UNUSED;
	f->lost = false;
	f->heir = -1;
	f->regs = NULL;
	f->refs = 0;
	f->rfd = rfd;
	f->state = RSP_RSOCK;
	return f;
}

int rsp_set(int fd, struct rsp_fd *f)
{
	_Atomic(void *) *slot;

	if (rsp_borrowed())
		return fd;
	slot = fd_slot(&table, fd, true);
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
	_Atomic(void *) *slot = fd_slot(&table, fd, false);
	struct rsp_fd *f;

	if (!slot || rsp_borrowed())
		return;
	f = atomic_exchange(slot, NULL);
	if (!f || --f->refs)
		return;
	close_rsocket(f);
	/*
	 * The relay stops watching a listener's eventfd; a child closes its
	 * own.
	 */
	pthread_mutex_lock(&f->lock);
	if (f->heir >= 0 && f->state == RSP_HEIR)
		rsp_real()->close(f->heir);
	else if (f->heir >= 0)
		eventfd_write(f->heir, 1);
	f->heir = -1;
	pthread_mutex_unlock(&f->lock);
	f->state = RSP_PLAIN;
	pthread_mutex_lock(&mutex);
	f->next_free = free_list;
	free_list = f;
	pthread_mutex_unlock(&mutex);
}

void rsp_forget(int fd)
{
	const int saved = errno;

	if (fd < 0)
		return;
	rsp_epoll_close(fd);
	rsp_clear(fd);
	errno = saved;
}

void rsp_clear_range(unsigned first, unsigned last)
{
	unsigned fd;

	for (fd = first; fd_next(&table, &fd) && fd <= last; fd++)
		rsp_forget((int)fd);
	rsp_epoll_close_range(first, last);
}

static void watch_forks(void);

/* The names are those of rdma-core's preload library. */
static void set_option(int rfd, int option, const char *name)
{
	int value = env_number(name);

	if (value > 0)
		rsetsockopt(rfd, SOL_RDMA, option, &value, sizeof(value));
}

int rsp_rsocket(int family, int type)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	int rfd;

	rsp_enter();
	rfd = rsocket(family, type | RSOCK_ASIDE, 0);
	if (rfd >= 0) {
		set_option(rfd, RDMA_SQSIZE, "RS_SQ_SIZE");
		set_option(rfd, RDMA_RQSIZE, "RS_RQ_SIZE");
		set_option(rfd, RDMA_INLINE, "RS_INLINE");
		/* Registered after the handlers of librdmacm. */
		pthread_once(&once, watch_forks);
	}
	rsp_leave();
	return rfd;
}

void rsp_say_way(const char *which, const struct sockaddr *addr, int rfd,
		 int err)
{
	const struct sockaddr_in6 *in6 = (const void *)addr;
	const struct sockaddr_in *in = (const void *)addr;
	char text[INET6_ADDRSTRLEN] = "?";
	const int saved = errno;
	int iwarp = 0;
	socklen_t len = sizeof(iwarp);

	if (!config_get()->explain)
		return;
	inet_ntop(addr->sa_family,
		  addr->sa_family == AF_INET6 ? (const void *)&in6->sin6_addr :
						(const void *)&in->sin_addr,
		  text, sizeof(text));
	/* The port is where it is in both. */
	if (err)
		say("--sockets: %s %s port %u goes by TCP (RDMA: %s)", which,
		    text, ntohs(in->sin_port),
		    err > 0 ? sys_strerror(err) :
			      "the peer did not ask for it");
	else
		say("--sockets: %s %s port %u goes by %s", which, text,
		    ntohs(in->sin_port),
		    !rgetsockopt(rfd, SOL_RDMA, RSOCK_IWARP, &iwarp, &len) &&
				    iwarp ?
			    "iWARP" :
			    "RDMA");
	errno = saved;
}

void rsp_fall_back(struct rsp_fd *f, int fd)
{
	const struct rsp_real *real = rsp_real();
	struct sockaddr_storage name, none;
	socklen_t len = sizeof(name), none_len = sizeof(none);
	const struct sockaddr_in *bound = (const void *)&name;
	const struct sockaddr_in *shadow = (const void *)&none;

	/*
	 * Bind the shadow as the program has bound the rsocket, unless it is
	 * bound already.
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
	return rsp_now_ns() < f->deadline_ns || more_time(f) ? EINPROGRESS :
							       ETIMEDOUT;
}

enum rsp_state rsp_settle(struct rsp_fd *f, int fd)
{
	int err, flags;
	bool late;

	if (f->state != RSP_CONNECTING)
		return f->state;
	pthread_mutex_lock(&f->lock);
	if (f->state == RSP_CONNECTING) {
		err = connect_error(f);
		if (!err) {
			/* With the flags that the program has set meanwhile. */
			flags = rsp_real()->fcntl64(fd, F_GETFL);
			if (flags >= 0)
				rfcntl(f->rfd, F_SETFL, flags & ~O_ACCMODE);
			f->state = RSP_RSOCK;
			set_silent(f, false);
			rsp_say_way("the connection to",
				    (struct sockaddr *)&f->dst, f->rfd, 0);
		} else if (err != EINPROGRESS) {
			/* Nobody there has answered at all, or one service;
			 * a report that nobody is there came in time. */
			late = err == ETIMEDOUT &&
			       rsp_now_ns() >= f->deadline_ns;
			if (late && f->most_ns)
				rsp_host_is_silent(&f->dst);
			else
				set_silent(f, late);
			rsp_say_way("the connection to",
				    (struct sockaddr *)&f->dst, -1, err);
			rsp_fall_back(f, fd);
			rsp_real()->connect(fd, (struct sockaddr *)&f->dst,
					    f->dst_len);
		}
	}
	pthread_mutex_unlock(&f->lock);
	return f->state;
}

static void say_lost(void)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (!atomic_flag_test_and_set(&said))
		say("process %d fails to use a connection that its parent "
		    "used before it forked: such a connection stays with the "
		    "parent; run this program without --sockets",
		    getpid());
}

struct rsp_fd *rsp_data(int fd)
{
	struct rsp_fd *f = rsp_find(fd);

	if (!f)
		return NULL;
	switch (atomic_load(&f->state)) {
	case RSP_RSOCK:
		rsp_use(f);
		if (f->state != RSP_RSOCK)
			return NULL; /* another thread has shared it */
		if (f->lost)
			say_lost();
		return f;
	case RSP_LISTENING:
		return f;
	case RSP_CONNECTING:
		return rsp_settle(f, fd) == RSP_PLAIN ? NULL : f;
	case RSP_PLAIN:
	case RSP_RELAYED:
	case RSP_HEIR:
		break;
	}
	return NULL;
}

/* Calls fn for each descriptor in the table. */
static void each_fd(void (*fn)(int fd, struct rsp_fd *f, void *arg), void *arg)
{
	struct rsp_fd *f;
	unsigned fd;

	for (fd = 0; (f = fd_next(&table, &fd)); fd++)
		fn((int)fd, f, arg);
}

struct search {
	const struct rsp_fd *f;
	int end; /* becomes the descriptors of f, or -1 */
	int fd; /* one of them */
};

static void found_fd(int fd, struct rsp_fd *f, void *arg)
{
	const struct rsp_real *real = rsp_real();
	struct search *s = arg;
	int flags;

	if (f != s->f)
		return;
	s->fd = fd;
	if (s->end < 0)
		return;
	flags = real->fcntl64(fd, F_GETFL);
	real->fcntl64(s->end, F_SETFL, flags);
	flags = real->fcntl64(fd, F_GETFD);
	real->dup3(s->end, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
}

void rsp_use_slow(struct rsp_fd *f)
{
	enum rsp_use was = RSP_UNUSED;

	if (atomic_compare_exchange_strong(&f->used, &was, RSP_USED) ||
	    was == RSP_USED)
		return;
	/* A fork is sharing it: wait for the result. */
	pthread_mutex_lock(&f->lock);
	was = RSP_UNUSED;
	atomic_compare_exchange_strong(&f->used, &was, RSP_USED);
	pthread_mutex_unlock(&f->lock);
}

static void share_fd(struct rsp_fd *f)
{
	enum rsp_use was = RSP_UNUSED;
	struct search s = { .f = f, .fd = -1 };

	pthread_mutex_lock(&f->lock);
	if (!atomic_compare_exchange_strong(&f->used, &was, RSP_SHARED)) {
		pthread_mutex_unlock(&f->lock);
		return;
	}
	s.end = rsp_relay(f->rfd);
	if (s.end >= 0) {
		f->rfd = -1;
		each_fd(found_fd, &s);
		f->state = RSP_RELAYED;
		rsp_real()->close(s.end);
	}
	if (f->state == RSP_RSOCK)
		f->used = RSP_UNUSED;
	pthread_mutex_unlock(&f->lock);
}

static void to_share(int fd, struct rsp_fd *f, void *arg)
{
	(void)fd;
	(void)arg;
	if (f->state == RSP_LISTENING && f->heir < 0)
		f->heir = rsp_offer(f);
	if (f->state == RSP_RSOCK && f->type == SOCK_STREAM &&
	    f->used != RSP_USED && (f->linked || f->dst_len))
		share_fd(f);
}

int rsp_give_up(struct rsp_fd *f, int heir)
{
	struct search s = { .f = f, .end = -1, .fd = -1 };

	pthread_mutex_lock(&f->lock);
	if (f->state == RSP_LISTENING && f->heir == heir)
		each_fd(found_fd, &s);
	/* Nobody writes to it any more; the caller closes it. */
	if (f->heir == heir)
		f->heir = -1;
	if (s.fd >= 0) {
		rsp_fall_back(f, s.fd);
	}
	pthread_mutex_unlock(&f->lock);
	return s.fd;
}

void rsp_claim(struct rsp_fd *f)
{
	if (f->state != RSP_HEIR)
		return;
	pthread_mutex_lock(&f->lock);
	if (f->state == RSP_HEIR) {
		eventfd_write(f->heir, 1);
		rsp_real()->close(f->heir);
		f->heir = -1;
		f->state = RSP_PLAIN;
	}
	pthread_mutex_unlock(&f->lock);
}

static void before_fork(void)
{
	if (!rsp_inside())
		each_fd(to_share, NULL);
	rsp_relay_before_fork();
	pthread_mutex_lock(&mutex);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&mutex);
	rsp_relay_after_fork(false);
}

/*
 * The child has the parent's descriptors, but its rsockets are dead, and only
 * the parent changes an epoll instance that they share.
 */
static void inherit_fd(int fd, struct rsp_fd *f, void *arg)
{
	(void)fd;
	(void)arg;
	pthread_mutex_init(&f->lock, NULL);
	f->regs = NULL;
	/* Without a connection, the child inherits the shadow alone. */
	if (f->state == RSP_LISTENING) {
		close_rsocket(f);
		f->state = f->heir >= 0 ? RSP_HEIR : RSP_PLAIN;
	} else if (f->state == RSP_CONNECTING ||
		   (f->state == RSP_RSOCK && f->type == SOCK_STREAM &&
		    !f->dst_len && !f->linked)) {
		f->state = RSP_PLAIN;
	} else if (f->state == RSP_RSOCK) {
		f->lost = true;
		f->used = RSP_USED;
	}
}

static void after_fork_child(void)
{
	pthread_mutex_init(&mutex, NULL);
	rsp_relay_after_fork(true);
	each_fd(inherit_fd, NULL);
	rsp_epoll_forked();
}

static void watch_forks(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static void own_memory(void)
{
	owner = getpid();
}

__attribute__((constructor)) static void load_preload(void)
{
	rsp_real();
	own_memory();
	pthread_atfork(NULL, NULL, own_memory);
}

/* Closed, so that the relay delivers what the program wrote. */
static void hang_up(int fd, struct rsp_fd *f, void *arg)
{
	(void)arg;
	if (f->state == RSP_RELAYED)
		rsp_real()->close(fd);
}

static void end_fd(int fd, struct rsp_fd *f, void *arg)
{
	(void)fd;
	(void)arg;
	if (f->state == RSP_RSOCK)
		close_rsocket(f);
}

/*
 * The kernel delivers what a program wrote before it ended. What an rsocket has
 * taken is delivered only while the process exists.
 */
__attribute__((destructor)) static void unload_preload(void)
{
	each_fd(hang_up, NULL);
	rsp_relay_finish();
	each_fd(end_fd, NULL);
}
