/*
 * udp_bind.c - the receiving sockets at port 4791, and who else has it
 *
 * The sockets of all processes of one user at one address share the port; the
 * BPF program of steer.c decides which of them gets a packet, and is replaced
 * whenever the registry shows that leases or sockets have changed.
 *
 * The first process at an address binds it exclusively and only then allows
 * sharing. So every process that shares it has seen the registry's list empty
 * or found itself in it, and processes that use another registry (another
 * container on the same network) are refused instead of mixed up.
 *
 * A poller may be reading a socket that another thread unbinds. The
 * descriptor is therefore first made to refer to a spare socket, which closes
 * the real one, and freed when no poller can know it (rx_reap).
 *
 * Locks: registry > bind_lock; rx_lock before both, and never waited for while
 * holding one of them.
 */
#include "sock.h"
#include "steer.h"
#include "udp_internal.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"
#include "os/config.h"
#include "os/proc.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sock_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#define BIND_TRIES 5 /* the sockets of the killed outlive their locks */
#define BIND_PAUSE_NS 10000000
#define SWEPT_NS 100000000u
#define REPAIR_NS 5000000u

#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

static struct rx_sock *find_sock(const struct udp *u, const union ibv_gid *gid,
				 uint32_t scope)
{
	for (struct rx_sock *s = u->socks; s; s = s->next)
		if (s->kind != RX_PRIVATE && s->scope == scope &&
		    gid_equal(&s->gid, gid))
			return s;
	return NULL;
}

void udp_steer(void *arg)
{
	struct registry_range range[STEER_RANGES];
	struct udp *u = arg;
	size_t n;

	pthread_mutex_lock(&u->bind_lock);
	for (struct rx_sock *s = u->socks; s; s = s->next) {
		if (s->kind != RX_UNICAST || !s->bound)
			continue;
		n = registry_steering(u->registry, &s->gid, s->scope, range,
				      STEER_RANGES);
		/* Alone, or refused: what arrives wrongly is handed over. */
		if (n)
			steer_attach(s->fd, range, n);
	}
	pthread_mutex_unlock(&u->bind_lock);
}

void udp_misdelivered(struct udp *u, struct rx_sock *s, uint32_t qpn)
{
	uint64_t now = clock_ns();

	if (now - s->repair_ns < REPAIR_NS || registry_trylock(u->registry))
		return;
	s->repair_ns = now;
	registry_addr_found(u->registry, &s->gid, s->scope, qpn);
	registry_unlock(u->registry);
}

/* Who has the port */

/*
 * Who has the port that gid needs, as part of a sentence. A process of our user
 * that had our registry would share the port.
 */
static void describe_holder(const struct udp *u, const union ibv_gid *gid,
			    char *out, size_t len)
{
	struct proc_holder h;

	if (!proc_udp_holder(gid, ROCE_UDP_PORT, &h))
		snprintf(out, len,
			 "the kernel, or a process that is not visible here");
	else if (h.uid == geteuid() && (h.uid || h.named) && u->registry)
		snprintf(out, len,
			 "%s of this user which does not share %s "
			 "(another container or SOFTHCA_RUNDIR, or another "
			 "program)",
			 h.process, registry_path(u->registry));
	else if (h.uid || h.named)
		snprintf(out, len, "%s of user %u", h.process, h.uid);
	else if (!access("/sys/module/rdma_rxe", F_OK))
		snprintf(out, len,
			 "the kernel's rdma_rxe driver, it seems (rdma link "
			 "delete frees it)");
	else
		snprintf(out, len,
			 "the kernel, or a process that is not visible here");
}

/* Reads the descriptors of all processes: no lock is held. */
static void say_taken(struct udp *u, const union ibv_gid *gid, uint32_t scope)
{
	char who[400], why[UDP_WHY];
	struct gid_text addr;
	struct rx_sock *s;

	describe_holder(u, gid, who, sizeof(who));
	snprintf(why, sizeof(why), "UDP port %d of %s is taken by %s%s",
		 ROCE_UDP_PORT, gid_str(gid, &addr), who,
		 u->registry && !u->cfg.wire ?
			 "; there only processes of this user with the same "
			 "registry reach each other" :
			 "");
	pthread_mutex_lock(&u->bind_lock);
	memcpy(u->why, why, sizeof(why));
	s = find_sock(u, gid, scope);
	if (s)
		memcpy(s->why, why, sizeof(why));
	pthread_mutex_unlock(&u->bind_lock);
}

const char *udp_why(const struct udp *cu)
{
	static _Thread_local char why[sizeof(cu->why)];
	struct udp *u = (struct udp *)cu;

	pthread_mutex_lock(&u->bind_lock);
	memcpy(why, u->why, sizeof(why));
	pthread_mutex_unlock(&u->bind_lock);
	return why;
}

/* Binding */

/* The registry's lock is held. alone: no process of ours is there yet. */
static int bind_unicast(struct udp *u, struct rx_sock *s, bool alone)
{
	int err;

	s->fd = sock_rx(&u->cfg, s->v4);
	if (s->fd < 0)
		return s->fd;
	if (!alone)
		sock_set(s->fd, SOL_SOCKET, SO_REUSEPORT, 1);
	err = sock_bind(s->fd, &s->gid, s->scope, ROCE_UDP_PORT);
	if (!err && u->registry)
		sock_set(s->fd, SOL_SOCKET, SO_REUSEPORT, 1);
	if (!err)
		err = udp_watch(u, s->fd, s);
	if (err) {
		sock_close(s->fd);
		s->fd = -1;
	}
	return err;
}

/* Every process that joins gets a copy, of whichever user. */
static int bind_multicast(struct udp *u, struct rx_sock *s)
{
	int err;

	s->fd = sock_rx(&u->cfg, s->v4);
	if (s->fd < 0)
		return s->fd;
	sock_set(s->fd, SOL_SOCKET, SO_REUSEADDR, 1);
	err = sock_bind(s->fd, &s->gid, s->scope, ROCE_UDP_PORT);
	if (err)
		goto err_close;
	if (s->v4) {
		struct ip_mreqn req = { .imr_ifindex = (int)s->scope };

		memcpy(&req.imr_multiaddr, s->gid.raw + 12, 4);
		sock_set(s->fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
		err = setsockopt(s->fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &req,
				 sizeof(req));
	} else {
		struct ipv6_mreq req = { .ipv6mr_interface = s->scope };

		memcpy(&req.ipv6mr_multiaddr, s->gid.raw, 16);
		sock_set(s->fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
		err = setsockopt(s->fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &req,
				 sizeof(req));
	}
	err = err ? -errno : udp_watch(u, s->fd, s);
	if (err)
		goto err_close;
	return 0;

err_close:
	sock_close(s->fd);
	s->fd = -1;
	return err;
}

/* -EADDRINUSE: somebody else has the port; s has no socket, and with a registry
 * it is kept. */
static int bind_locked(struct udp *u, struct rx_sock *s)
{
	bool alone;
	int err = 0;

	if (s->kind == RX_MULTICAST) {
		if (u->registry && tx_relayed(&s->gid, s->scope))
			err = registry_addr_join(u->registry, &s->gid, s->scope,
						 false);
		if (err)
			return err;
		err = bind_multicast(u, s);
		if (err && u->registry)
			registry_addr_leave(u->registry, &s->gid, s->scope);
		return err;
	}
	alone = !u->registry ||
		!registry_addr_count(u->registry, &s->gid, s->scope);
	err = bind_unicast(u, s, alone);
	s->bound = !err;
	if (err == -EADDRINUSE) {
		s->tried_ns = clock_ns();
		atomic_store(&u->any_taken, true);
	} else if (err) {
		return err;
	}
	if (u->registry) {
		int r = registry_addr_join(u->registry, &s->gid, s->scope,
					   s->bound);

		if (r && s->bound) {
			sock_close(s->fd);
			s->fd = -1;
			s->bound = false;
		}
		err = r ? r : err;
	}
	return err;
}

/* A socket, or the lack of one, that gets or loses a user and stays as it is
 * concerns no other process: no lock of theirs is taken. */
static bool binding_count(struct udp *u, const union ibv_gid *gid,
			  uint32_t scope, bool more)
{
	struct rx_sock *s;
	bool stays;

	pthread_mutex_lock(&u->bind_lock);
	s = find_sock(u, gid, scope);
	stays = s && (more ? s->bound || s->kind == RX_MULTICAST ||
				      clock_ns() - s->tried_ns < PORT_RETRY_NS :
			     s->refs > 1);
	if (stays) {
		s->refs += more ? 1u : -1u;
		memcpy(u->why, s->why, sizeof(u->why));
	}
	pthread_mutex_unlock(&u->bind_lock);
	return stays;
}

/* -EAGAIN: the port may soon be free. Otherwise as bind_locked(). */
static int try_bind(struct udp *u, const union ibv_gid *gid, uint32_t scope,
		    bool last)
{
	struct rx_sock *s, *new = NULL;
	int err = 0;

	if (u->registry) {
		err = registry_lock(u->registry);
		if (err)
			return err;
	}
	pthread_mutex_lock(&u->bind_lock);
	u->why[0] = 0;
	s = find_sock(u, gid, scope);
	if (!s) {
		s = new = calloc(1, sizeof(*s));
		if (!s) {
			err = -ENOMEM;
			goto unlock;
		}
		s->gid = *gid;
		s->scope = scope;
		s->v4 = roce_gid_is_v4(gid);
		s->kind =
			roce_gid_is_multicast(gid) ? RX_MULTICAST : RX_UNICAST;
	}
	/* Whoever had the port may be gone by now. */
	if (u->away)
		s->fd = -1; /* udp_rebind_all() binds it */
	else if (new || (s->kind == RX_UNICAST && !s->bound))
		err = bind_locked(u, s);
	if (err == -EADDRINUSE && u->registry && s->kind == RX_UNICAST) {
		if (last || !registry_swept(u->registry, SWEPT_NS))
			goto add;
		if (new)
			registry_addr_leave(u->registry, gid, scope);
		err = -EAGAIN;
	}
	if (err) {
		free(new);
		goto unlock;
	}
	s->why[0] = 0;
add:
	s->refs++;
	if (new) {
		s->next = u->socks;
		u->socks = s;
	}
unlock:
	if (err && err != -EADDRINUSE)
		snprintf(u->why, sizeof(u->why), "%s", sys_strerror(-err));
	pthread_mutex_unlock(&u->bind_lock);
	if (u->registry)
		registry_unlock(u->registry); /* and udp_steer() */
	return err;
}

int udp_bind(struct udp *u, const union ibv_gid *gid, unsigned ifindex)
{
	uint32_t scope = udp_scope(gid, ifindex);
	int err;

	if (binding_count(u, gid, scope, true))
		return 0;
	for (int i = 1;; i++) {
		err = try_bind(u, gid, scope, i == BIND_TRIES);
		if (err != -EAGAIN)
			break;
		sys_sleep(BIND_PAUSE_NS);
	}
	if (err != -EADDRINUSE)
		return err;
	say_taken(u, gid, scope);
	if (!u->registry || roce_gid_is_multicast(gid))
		return err;
	/* The private port is enough for this host's processes. */
	if (!u->cfg.wire)
		return 0;
	udp_unbind(u, gid, ifindex);
	return err;
}

bool udp_taken(const struct udp *cu, const union ibv_gid *gid, unsigned ifindex)
{
	struct udp *u = (struct udp *)cu;
	struct rx_sock *s;
	bool taken;

	if (!atomic_load_explicit(&u->any_taken, memory_order_relaxed))
		return false;
	pthread_mutex_lock(&u->bind_lock);
	s = find_sock(u, gid, udp_scope(gid, ifindex));
	taken = s && s->kind == RX_UNICAST && !s->bound && !u->away;
	pthread_mutex_unlock(&u->bind_lock);
	return taken;
}

uint64_t udp_queued(struct udp *u, const union ibv_gid *gid, unsigned ifindex)
{
	uint32_t mem[SK_MEMINFO_VARS] = { 0 };
	socklen_t len = sizeof(mem);
	struct rx_sock *s;

	pthread_mutex_lock(&u->bind_lock);
	s = find_sock(u, gid, udp_scope(gid, ifindex));
	if (s && s->bound &&
	    getsockopt(s->fd, SOL_SOCKET, SO_MEMINFO, mem, &len))
		mem[SK_MEMINFO_RMEM_ALLOC] = 0;
	pthread_mutex_unlock(&u->bind_lock);
	return mem[SK_MEMINFO_RMEM_ALLOC];
}

bool udp_astray(const struct udp *u, const struct roce_path *path)
{
	return udp_taken(u, &path->dgid, path->sgid_scope) &&
	       udp_taken(u, &path->sgid, path->sgid_scope);
}

void udp_unbind(struct udp *u, const union ibv_gid *gid, unsigned ifindex)
{
	uint32_t scope = udp_scope(gid, ifindex);
	struct rx_sock *s, **p;
	bool locked;

	if (binding_count(u, gid, scope, false))
		return;
	locked = u->registry && !registry_lock(u->registry);
	pthread_mutex_lock(&u->bind_lock);
	s = find_sock(u, gid, scope);
	if (s && !--s->refs) {
		for (p = &u->socks; *p != s; p = &(*p)->next)
			;
		*p = s->next;
		if (s->fd >= 0) {
			epoll_ctl(u->epfd, EPOLL_CTL_DEL, s->fd, NULL);
			dup3(u->spare_fd, s->fd, O_CLOEXEC);
		}
		if (locked)
			registry_addr_leave(u->registry, gid, scope);
		s->next = atomic_load(&u->graveyard);
		while (!atomic_compare_exchange_weak(&u->graveyard, &s->next,
						     s))
			;
	}
	pthread_mutex_unlock(&u->bind_lock);
	if (locked)
		registry_unlock(u->registry);
	/* A poller that is at work leaves it to the next. */
	if (lock_try(&u->rx_lock)) {
		rx_reap(u);
		lock_drop(&u->rx_lock);
	}
}

void udp_unbind_all(struct udp *u)
{
	bool locked = u->registry && !registry_lock(u->registry);

	pthread_mutex_lock(&u->bind_lock);
	u->away = true;
	for (struct rx_sock *s = u->socks; s; s = s->next) {
		if (s->kind == RX_PRIVATE)
			continue;
		sock_close(s->fd);
		s->fd = -1;
		if (locked)
			registry_addr_leave(u->registry, &s->gid, s->scope);
	}
	pthread_mutex_unlock(&u->bind_lock);
	if (locked)
		registry_unlock(u->registry);
}

/* An address whose port another program has is enough for this host's processes,
 * as in udp_bind(). */
static int sock_rebind(struct udp *u, struct rx_sock *s)
{
	const int err = bind_locked(u, s);

	return err == -EADDRINUSE && u->registry && s->kind == RX_UNICAST &&
			       !u->cfg.wire ?
		       0 :
		       err;
}

int udp_rebind_all(struct udp *u)
{
	int err = u->registry ? registry_lock(u->registry) : 0;

	if (err)
		return err;
	pthread_mutex_lock(&u->bind_lock);
	for (struct rx_sock *s = u->socks; s && !err; s = s->next)
		if (s->kind != RX_PRIVATE)
			err = sock_rebind(u, s);
	u->away = err;
	pthread_mutex_unlock(&u->bind_lock);
	if (u->registry)
		registry_unlock(u->registry);
	return err;
}
