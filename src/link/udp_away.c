/*
 * udp_away.c - a process that is suspended (src/migrate) has no sockets
 *
 * What it receives at is kept without descriptors, and opened again where the
 * process goes on, with what is added meanwhile: addresses of that host, and those
 * that threads bind which have waited for the registry. A poller that comes
 * meanwhile finds nothing.
 */
#include "sock.h"
#include "udp_internal.h"

#include "base/sys.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void drop_private(struct udp *u)
{
	struct rx_sock **p = &u->socks, *s;

	pthread_mutex_lock(&u->bind_lock);
	while ((s = *p)) {
		if (s->kind != RX_PRIVATE) {
			p = &s->next;
			continue;
		}
		*p = s->next;
		sock_close(s->fd);
		free(s);
	}
	pthread_mutex_unlock(&u->bind_lock);
}

void udp_away(struct udp *u)
{
	lock_take(&u->rx_lock);
	if (u->registry) {
		registry_on_change(u->registry, NULL, NULL);
		registry_publish(u->registry, 0, 0);
	}
	udp_unbind_all(u);
	rx_forget(u);
	drop_private(u);
	udp_fds_close(u);
	u->stale_since_ns = 0;
	lock_drop(&u->rx_lock);
}

int udp_back(struct udp *u)
{
	int err;

	pthread_mutex_lock(&u->probe_lock);
	memset(u->proof, 0, sizeof(u->proof)); /* of another registry */
	pthread_mutex_unlock(&u->probe_lock);
	lock_take(&u->rx_lock);
	u->slot = u->registry ? registry_slot(u->registry) : 0;
	err = udp_fds_open(u);
	if (!err && u->registry) {
		err = private_open(u);
		if (!err)
			registry_on_change(u->registry, udp_steer, u);
	}
	if (!err)
		err = udp_rebind_all(u);
	lock_drop(&u->rx_lock);
	if (err)
		udp_away(u);
	return err;
}

static bool is_gone(const struct rx_sock *s)
{
	int fd = sock_new(s->v4), err;

	if (fd < 0)
		return false;
	err = sock_bind(fd, &s->gid, s->scope, 0);
	sock_close(fd);
	return err == -EADDRNOTAVAIL || err == -ENODEV;
}

size_t udp_addresses(struct udp *u, struct udp_address *out, size_t max)
{
	size_t n = 0;

	pthread_mutex_lock(&u->bind_lock);
	for (struct rx_sock *s = u->socks; s && n < max; s = s->next)
		if (s->kind == RX_UNICAST)
			out[n++] = (struct udp_address){ s->gid, s->scope,
							 is_gone(s) };
	pthread_mutex_unlock(&u->bind_lock);
	return n;
}

void udp_readdress(struct udp *u, const union ibv_gid *from,
		   unsigned from_ifindex, const union ibv_gid *to,
		   unsigned to_ifindex)
{
	const uint32_t scope = udp_scope(from, from_ifindex);

	pthread_mutex_lock(&u->bind_lock);
	for (struct rx_sock *s = u->socks; s; s = s->next) {
		if (s->kind != RX_UNICAST || s->scope != scope ||
		    !gid_equal(&s->gid, from))
			continue;
		s->gid = *to;
		s->scope = udp_scope(to, to_ifindex);
		s->v4 = roce_gid_is_v4(to);
	}
	pthread_mutex_unlock(&u->bind_lock);
}

bool udp_wake(struct udp *u)
{
	const uint64_t one = 1;

	return sys_write(u->pending_fd, &one, sizeof(one)) > 0;
}
