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
	pthread_mutex_lock(&u->rx_lock);
	if (u->registry) {
		registry_on_change(u->registry, NULL, NULL);
		registry_publish(u->registry, 0, 0);
	}
	udp_unbind_all(u);
	rx_forget(u);
	drop_private(u);
	udp_fds_close(u);
	u->stale_since_ns = 0;
	pthread_mutex_unlock(&u->rx_lock);
}

int udp_back(struct udp *u)
{
	int err;

	pthread_mutex_lock(&u->probe_lock);
	memset(u->proof, 0, sizeof(u->proof)); /* of another registry */
	pthread_mutex_unlock(&u->probe_lock);
	pthread_mutex_lock(&u->rx_lock);
	u->slot = u->registry ? registry_slot(u->registry) : 0;
	err = udp_fds_open(u);
	if (!err && u->registry) {
		err = private_open(u);
		if (!err)
			registry_on_change(u->registry, udp_steer, u);
	}
	if (!err)
		err = udp_rebind_all(u);
	pthread_mutex_unlock(&u->rx_lock);
	if (err)
		udp_away(u);
	return err;
}

bool udp_wake(struct udp *u)
{
	const uint64_t one = 1;

	return sys_write(u->pending_fd, &one, sizeof(one)) > 0;
}
