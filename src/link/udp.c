/*
 * udp.c - a link from its creation to its end
 *
 * What is in it: the receiving sockets at port 4791 (udp_bind.c), the private
 * port and the ways to other processes' (udp_private.c), and a pool of sending
 * sockets. Receiving ones live in one epoll set, beside an eventfd for packets
 * that were read and not yet handed over (udp_rx.c).
 */
#include "sock.h"
#include "udp_internal.h"

#include "base/fd_high.h"
#include "os/config.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

int udp_watch(struct udp *u, int fd, void *ptr)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = ptr };

	return epoll_ctl(u->epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/* Before anything is sent from them. */
static void say_sports(struct udp *u)
{
	uint16_t ports[2 * TX_SOCKS];
	size_t n = 0;

	_Static_assert(2 * TX_SOCKS <= REGISTRY_SPORTS, "all have to fit");
	for (int i = 0; i < 2 * TX_SOCKS; i++)
		if (u->tx[i & 1][i / 2].fd >= 0)
			ports[n++] = u->tx[i & 1][i / 2].port;
	registry_sports(u->registry, ports, n);
}

int udp_fds_open(struct udp *u)
{
	int err;

	u->epfd = fd_high(epoll_create1(EPOLL_CLOEXEC));
	if (u->epfd < 0)
		return -errno;
	u->pending_fd = fd_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (u->pending_fd < 0)
		return -errno;
	err = udp_watch(u, u->pending_fd, NULL);
	if (err)
		return err;
	for (int i = 0; i < TX_SOCKS; i++) {
		int err6 = sock_tx(&u->tx[0][i], false, 0);

		err = sock_tx(&u->tx[1][i], true, 0);
		if (err && err6)
			return err;
	}
	if (u->registry)
		say_sports(u);
	for (int v4 = 0; v4 < 2; v4++) {
		struct rx_sock *s = &u->errors[v4];

		s->kind = RX_ERRORS;
		s->fd = u->tx[v4][TX_QP1].fd;
		if (s->fd < 0)
			continue;
		err_enable(s->fd, v4);
		err = udp_watch(u, s->fd, s);
		if (err)
			return err;
	}
	u->spare_fd = sock_new(u->tx[1][0].fd >= 0);
	return u->spare_fd < 0 ? u->spare_fd : 0;
}

void udp_fds_close(struct udp *u)
{
	for (int i = 0; i < TX_SOCKS; i++) {
		sock_close(u->tx[0][i].fd);
		sock_close(u->tx[1][i].fd);
		u->tx[0][i].fd = u->tx[1][i].fd = -1;
	}
	private_close(u);
	sock_close(u->pending_fd);
	sock_close(u->spare_fd);
	sock_close(u->epfd);
	u->pending_fd = u->spare_fd = u->epfd = -1;
}

int udp_create(struct udp **out, const struct udp_config *cfg,
	       struct registry *registry)
{
	struct udp *u = calloc(1, sizeof(*u));
	int err;

	if (!u)
		return -ENOMEM;
	u->cfg = *cfg;
	u->spare.bytes = UDP_MAX_BYTES;
	loss_init(&u->loss, cfg->loss, cfg->seed ? cfg->seed : clock_ns());
	u->registry = registry;
	u->slot = registry ? registry_slot(registry) : 0;
	pthread_mutex_init(&u->bind_lock, NULL);
	pthread_mutex_init(&u->probe_lock, NULL);
	u->pending_fd = -1;
	u->spare_fd = -1;
	for (int i = 0; i < TX_SOCKS; i++)
		u->tx[0][i].fd = u->tx[1][i].fd = -1;
	u->epfd = -1;
	err = udp_fds_open(u);
	if (err)
		goto err_destroy;
	err = rx_create(u);
	if (err)
		goto err_destroy;
	if (registry) {
		err = private_open(u);
		if (err)
			goto err_destroy;
		registry_on_change(registry, udp_steer, u);
	}
	*out = u;
	return 0;

err_destroy:
	udp_destroy(u);
	return err;
}

static void free_udp(struct udp *u)
{
	struct rx_sock *s;

	rx_reap(u);
	while ((s = u->socks)) {
		u->socks = s->next;
		sock_close(s->fd);
		free(s);
	}
	udp_fds_close(u);
	rx_destroy(u);
	spare_fini(&u->spare);
	pthread_mutex_destroy(&u->bind_lock);
	pthread_mutex_destroy(&u->probe_lock);
	free(u);
}

void udp_destroy(struct udp *u)
{
	if (!u)
		return;
	if (u->registry) {
		registry_on_change(u->registry, NULL, NULL);
		registry_publish(u->registry, 0, 0);
		udp_unbind_all(u);
	}
	free_udp(u);
}

void udp_abandon(struct udp *u)
{
	if (u)
		free_udp(u);
}

int udp_fd(const struct udp *u)
{
	return u->epfd;
}

const struct link_stats *udp_stats(const struct udp *u)
{
	return &u->link.stats;
}
