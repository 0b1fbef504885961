/*
 * table.c - rsockets in memory, and the table from descriptors to them
 *
 * An rsocket is named by a descriptor of its own: a stream by that of its event
 * channel, a datagram rsocket by its UDP socket. The table is read without
 * locks: a reader takes a reference and then checks that the rsocket is still
 * in its place. So the memory of an rsocket is never freed; it is kept for the
 * next one.
 *
 * The rsockets of a parent are useless to the child of a fork(): they fail with
 * EIO, and closing them closes the child's descriptors only.
 */
#include "base/fd_table.h"
#include "rsock_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct fd_table table;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* of the next two */
static struct rsock *free_list;
static _Atomic unsigned generation;

int rsock_errno(void)
{
	return errno ? -errno : -EIO;
}

static void before_fork(void)
{
	pthread_mutex_lock(&mutex);
}

static void after_fork_parent(void)
{
	pthread_mutex_unlock(&mutex);
}

static void after_fork_child(void)
{
	pthread_mutex_init(&mutex, NULL);
	free_list = NULL;
	generation++;
	rsock_alive_forked();
	rsock_linger_forked();
	rsock_poll_forked();
	rsock_restart_forked();
}

static void init_once(void)
{
	pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

static void lock_init(struct rsock *rs)
{
	pthread_mutex_init(&rs->slock, NULL);
	pthread_mutex_init(&rs->rlock, NULL);
	pthread_mutex_init(&rs->lock, NULL);
}

/* What is used before the first and after the last reference. */
static void reset_rsock(struct rsock *rs)
{
	size_t first = offsetof(struct rsock, type);

	memset((char *)rs + first, 0, sizeof(*rs) - first);
	lock_init(rs);
}

struct rsock *rsock_alloc(const struct rsock *parent, int type, int family)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct rsock_config *conf = rsock_config();
	struct rsock *rs;

	pthread_once(&once, init_once);
	pthread_mutex_lock(&mutex);
	rs = free_list;
	if (rs)
		free_list = rs->next_free;
	pthread_mutex_unlock(&mutex);
	if (!rs)
		rs = calloc(1, sizeof(*rs));
	if (!rs)
		return NULL;
	reset_rsock(rs);
	rs->generation = generation;
	rs->fd = -1;
	rs->type = type;
	rs->family = family;
	rs->keepidle = 7200;
	if (type == SOCK_DGRAM)
		rs->d.udp = rs->d.epfd = -1;
	if (parent) {
		rs->sbuf_size = parent->sbuf_size;
		rs->rbuf_size = parent->rbuf_size;
		rs->sq_size = parent->sq_size;
		rs->rq_size = parent->rq_size;
		rs->inline_size = parent->inline_size;
		rs->iomaps = parent->iomaps;
		rs->linger = parent->linger;
		rs->nodelay = parent->nodelay;
		rs->oobinline = parent->oobinline;
		rs->keepidle = parent->keepidle;
		rs->aside = parent->aside;
		rs->rcvtimeo_ns = parent->rcvtimeo_ns;
		rs->sndtimeo_ns = parent->sndtimeo_ns;
	} else {
		rs->sbuf_size = conf->wmem;
		rs->rbuf_size = conf->mem;
		rs->sq_size = conf->sqsize;
		rs->rq_size = conf->rqsize;
		rs->inline_size = conf->inline_size;
		rs->iomaps = conf->iomaps;
	}
	atomic_store(&rs->ref, 1);
	return rs;
}

void rsock_destroy(struct rsock *rs)
{
	struct rsock_watch *w;

	if (rs->type == SOCK_DGRAM)
		rsock_dgram_fini(rs);
	else
		rsock_stream_fini(rs);
	/* Those that sleep hold references; what is left are RSOCK_WATCHes. */
	while ((w = rs->watchers)) {
		rsock_watch_del(w);
		free(w);
	}
	pthread_mutex_destroy(&rs->slock);
	pthread_mutex_destroy(&rs->rlock);
	pthread_mutex_destroy(&rs->lock);
	atomic_store(&rs->ref, 0);
	pthread_mutex_lock(&mutex);
	rs->next_free = free_list;
	free_list = rs;
	pthread_mutex_unlock(&mutex);
}

void rsock_put(struct rsock *rs)
{
	if (rs->generation == generation && atomic_fetch_sub(&rs->ref, 1) == 1)
		rsock_destroy(rs);
}

int rsock_publish(struct rsock *rs, int fd)
{
	_Atomic(void *) *slot = fd_slot(&table, fd, true);

	if (!slot)
		return fd < (int)FD_TABLE_MAX ? -ENOMEM : -EMFILE;
	rs->fd = fd;
	atomic_store(slot, rs);
	return fd;
}

bool rsock_unpublish(struct rsock *rs)
{
	_Atomic(void *) *slot = fd_slot(&table, rs->fd, false);
	void *me = rs;

	return atomic_compare_exchange_strong(slot, &me, NULL);
}

struct rsock *rsock_take_parents(int fd)
{
	_Atomic(void *) *slot = fd_slot(&table, fd, false);
	struct rsock *rs = slot ? atomic_load(slot) : NULL;

	if (!rs || rs->generation == generation)
		return NULL;
	atomic_store(slot, NULL);
	return rs;
}

struct rsock *rsock_get(int fd)
{
	_Atomic(void *) *slot = fd_slot(&table, fd, false);
	struct rsock *rs;
	unsigned ref;

	for (;;) {
		rs = slot ? atomic_load(slot) : NULL;
		if (!rs || rs->generation != generation) {
			errno = rs ? EIO : EBADF;
			return NULL;
		}
		ref = atomic_load(&rs->ref);
		while (ref &&
		       !atomic_compare_exchange_weak(&rs->ref, &ref, ref + 1))
			;
		if (!ref)
			continue;
		if (atomic_load(slot) == rs)
			return rs;
		rsock_put(rs);
	}
}

bool rsock_nonblock(const struct rsock *rs, int flags)
{
	return rs->flags & O_NONBLOCK || flags & MSG_DONTWAIT;
}

int rsock_close_fds(const struct rsock *rs)
{
	if (rs->type == SOCK_STREAM && rs->s.cc)
		close(rs->s.cc->fd);
	if (rs->type == SOCK_DGRAM)
		close(rs->d.epfd);
	return close(rs->fd);
}
