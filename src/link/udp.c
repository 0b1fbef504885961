/*
 * udp.c - the sockets of the link: made, bound, shared and closed
 *
 * Receiving sockets live in one epoll set. The private port takes packets of
 * this host's other processes. Whoever sends to it sends from it: from a socket
 * that shares the port by SO_REUSEPORT, which the kernel grants to nobody but
 * the same user. So no other user can send to a private port, as the receiver
 * looks at the source port, nor get the port when the receiver has died, as the
 * sender holds it. Such a socket (struct claim) receives nothing: the group's
 * program picks its first member, which is the receiver as long as that lives,
 * and after that a filter drops what comes. Where there is no such socket (no
 * descriptors left, or a sender that has changed its user) port 4791 has to do.
 *
 * The address:4791 sockets of all processes of one user share the port; who
 * gets a packet is decided by the program of steer.c, which is written anew
 * whenever the registry says that leases or sockets have changed.
 *
 * The first process at an address binds it exclusively and only then allows
 * sharing. So everybody who shares it has seen the registry's list empty or
 * found himself in it, and processes that use another registry (another
 * container on the same network) are refused instead of mixed up.
 *
 * A poller may be reading a socket that another thread unbinds. The
 * descriptor is therefore first made to refer to a spare socket, which closes
 * the real one, and freed when no poller can know it (rx_reap).
 *
 * Locks: registry > bind_lock; rx_lock before both, and never waited for while
 * holding one of them.
 */
#include "internal.h"
#include "steer.h"

#include "base/aside.h"
#include "base/bytes.h"
#include "base/sys.h"
#include "host/config.h"
#include "host/netdev.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <net/if_arp.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#define RCVBUF_WANTED (8 << 20)
#define SNDBUF_WANTED (4 << 20)
#define PORT_TRIES 16
#define BIND_TRIES 5 /* the sockets of the killed outlive their locks */
#define BIND_PAUSE_NS 10000000
#define SWEPT_NS 100000000u
#define RETRY_NS 1000000000u /* between attempts at a port that is taken */
#define REPAIR_NS 5000000u

#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

static void close_fd(int fd)
{
	if (fd >= 0)
		sys_close(fd);
}

static void set_int(int fd, int level, int name, int value)
{
	/* Options that older kernels lack make things slower, not wrong. */
	setsockopt(fd, level, name, &value, sizeof(value));
}

socklen_t udp_sockaddr(struct sockaddr_storage *ss, const union ibv_gid *gid,
		       uint32_t scope, uint16_t port)
{
	memset(ss, 0, sizeof(*ss));
	if (roce_gid_is_v4(gid)) {
		struct sockaddr_in *sin = (struct sockaddr_in *)ss;

		sin->sin_family = AF_INET;
		sin->sin_port = htons(port);
		memcpy(&sin->sin_addr, gid->raw + 12, 4);
		return sizeof(*sin);
	} else {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)ss;

		sin6->sin6_family = AF_INET6;
		sin6->sin6_port = htons(port);
		memcpy(&sin6->sin6_addr, gid->raw, 16);
		sin6->sin6_scope_id = scope;
		return sizeof(*sin6);
	}
}

/* An address of all zeros, in either family. */
static void any_gid(union ibv_gid *gid, bool v4)
{
	memset(gid, 0, sizeof(*gid));
	if (v4)
		gid->raw[10] = gid->raw[11] = 0xff;
}

static int bind_any(int fd, bool v4, uint16_t port)
{
	struct sockaddr_storage ss;
	union ibv_gid any;
	socklen_t len;

	any_gid(&any, v4);
	len = udp_sockaddr(&ss, &any, 0, port);
	return bind(fd, (struct sockaddr *)&ss, len) ? -errno : 0;
}

static uint16_t bound_port(int fd)
{
	struct sockaddr_storage ss = { 0 };
	socklen_t len = sizeof(ss);

	if (getsockname(fd, (struct sockaddr *)&ss, &len))
		return 0;
	return ntohs(ss.ss_family == AF_INET
			     ? ((struct sockaddr_in *)&ss)->sin_port
			     : ((struct sockaddr_in6 *)&ss)->sin6_port);
}

static int udp_socket(bool v4)
{
	int fd = socket(v4 ? AF_INET : AF_INET6,
			SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	if (!v4)
		set_int(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	return fd_aside(fd);
}

static void set_buffer(int fd, int force, int plain, int bytes)
{
	if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof(bytes)))
		set_int(fd, SOL_SOCKET, plain, bytes);
}

static int rx_socket(const struct udp *u, bool v4)
{
	int fd = udp_socket(v4);

	if (fd < 0)
		return fd;
	if (u->cfg.rcvbuf)
		set_int(fd, SOL_SOCKET, SO_RCVBUF, (int)u->cfg.rcvbuf);
	else
		set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, RCVBUF_WANTED);
	set_int(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
	set_int(fd, SOL_UDP, UDP_GRO, 1);
	if (v4) {
		set_int(fd, IPPROTO_IP, IP_PKTINFO, 1);
		set_int(fd, IPPROTO_IP, IP_RECVTTL, 1);
		set_int(fd, IPPROTO_IP, IP_RECVTOS, 1);
	} else {
		set_int(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
		set_int(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
		set_int(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
		/* rxe sends IPv6 without a UDP checksum; the ICRC is there. */
		set_int(fd, SOL_UDP, UDP_NO_CHECK6_RX, 1);
	}
	return fd;
}

/* Nothing comes in, until another filter takes the place of this one. */
static void drop_all(int fd)
{
	struct sock_filter drop[] = { BPF_STMT(BPF_RET | BPF_K, 0) };
	struct sock_fprog prog = { ARRAY_SIZE(drop), drop };

	setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog));
}

/*
 * A sending socket. port 0: one that receivers see as the flow's entropy, in
 * the range that annex A17 recommends if one is free there; else that port,
 * which a process of ours has. Whatever is sent to that port and reaches this
 * socket is thrown away.
 */
static int tx_open(struct tx_sock *t, bool v4, uint16_t port)
{
	uint16_t random[PORT_TRIES];
	int fd = udp_socket(v4), err = -EADDRINUSE;

	if (fd < 0)
		return fd;
	drop_all(fd);
	set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, SNDBUF_WANTED);
	if (v4) {
		set_int(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
	} else {
		set_int(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
		set_int(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1);
	}
	if (port)
		set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	else if (sys_random(random, sizeof(random)))
		for (int i = 0; i < PORT_TRIES && err == -EADDRINUSE; i++)
			err = bind_any(fd, v4, random[i] | 0xc000);
	if (err)
		err = bind_any(fd, v4, port);
	if (err) {
		sys_close(fd);
		return err;
	}
	t->fd = fd;
	t->port = bound_port(fd);
	return 0;
}

static int watch(struct udp *u, int fd, void *ptr)
{
	struct epoll_event ev = { .events = EPOLLIN, .data.ptr = ptr };

	return epoll_ctl(u->epfd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

/*
 * Only what processes of this user on this host have sent, which comes by way
 * of the loopback interface and from this port. For IPv4 the source address
 * would tell; but in IPv6 Linux takes packets from outside whose source is an
 * address of ours. What others send takes no room in the socket's buffer. The
 * filter sees the packet from the UDP header on.
 */
static int accept_own(int fd, uint16_t port)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 (uint32_t)(SKF_AD_OFF + SKF_AD_HATYPE)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARPHRD_LOOPBACK, 0, 3),
		BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
		BPF_STMT(BPF_RET | BPF_K, 0),
	};
	struct sock_fprog prog = { ARRAY_SIZE(code), code };

	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog))
		       ? -errno
		       : 0;
}

static int add_private(struct udp *u, int fd, bool v4)
{
	struct rx_sock *s;
	int err;

	err = accept_own(fd, u->private_port);
	if (err && !v4) /* better none than one open to all */
		return err;
	if (err)
		set_int(fd, SOL_SOCKET, SO_DETACH_FILTER, 0);
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->kind = RX_PRIVATE;
	s->filtered = !err;
	s->v4 = v4;
	s->fd = fd;
	s->bound = true;
	err = watch(u, fd, s);
	if (err) {
		free(s);
		return err;
	}
	s->next = u->socks;
	u->socks = s;
	return 0;
}

/*
 * Binds a socket for the private port, so that it is the first of those that
 * share the port, and gets all that comes there. With the program attached
 * before, bind() finds a port that nobody has, not even this user. Until
 * accept_own() knows the port, anybody could send to it.
 */
static int bind_private(int fd, bool v4, uint16_t port)
{
	static const struct registry_range first = { 0, 0 };
	int err;

	drop_all(fd);
	set_int(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	err = steer_attach(fd, &first, 1);
	return err ? err : bind_any(fd, v4, port);
}

/* The private port: the same number in both families, as far as they exist. */
static int open_private(struct udp *u)
{
	int fd4 = -1, fd6 = -1, err = 0, size = 0;
	socklen_t len = sizeof(size);

	for (int i = 0; i < PORT_TRIES; i++) {
		uint16_t port = 0;

		err = 0;
		fd4 = rx_socket(u, true);
		if (fd4 >= 0) {
			err = bind_private(fd4, true, 0);
			if (err)
				goto err_close;
			port = bound_port(fd4);
		}
		fd6 = rx_socket(u, false);
		if (fd6 >= 0) {
			err = bind_private(fd6, false, port);
			if (err == -EADDRNOTAVAIL && fd4 >= 0) {
				sys_close(fd6); /* IPv6 switched off */
				fd6 = -1;
				err = 0;
			}
			if (!port)
				port = bound_port(fd6);
		}
		if (!err) {
			u->private_port = port;
			break;
		}
		if (err != -EADDRINUSE)
			goto err_close;
		sys_close(fd4);
		sys_close(fd6);
		fd4 = fd6 = -1;
	}
	if (err)
		return err;
	if (fd4 < 0 && fd6 < 0)
		return fd4;
	if (fd4 >= 0) {
		err = add_private(u, fd4, true);
		if (err)
			goto err_close;
		getsockopt(fd4, SOL_SOCKET, SO_RCVBUF, &size, &len);
		fd4 = -1;
	}
	if (fd6 >= 0) {
		err = add_private(u, fd6, false);
		if (err)
			goto err_close;
		getsockopt(fd6, SOL_SOCKET, SO_RCVBUF, &size, &len);
	}
	registry_publish(u->registry, u->private_port, (uint32_t)size / 2);
	return 0;

err_close:
	if (fd4 >= 0)
		sys_close(fd4);
	if (fd6 >= 0)
		sys_close(fd6);
	return err;
}

/* Sockets of a peer that nobody uses any more. */
static void reap_claims(struct udp *u, struct peer *p)
{
	struct claim *c;

	pthread_mutex_lock(&u->bind_lock);
	/* Who comes now does not find those that are retired. */
	while (!p->senders && (c = p->retired)) {
		p->retired = c->next;
		close_fd(c->tx.fd);
		free(c);
	}
	pthread_mutex_unlock(&u->bind_lock);
}

/* The claim on this port of a slot, made if need be, or NULL. */
static struct claim *make_claim(struct udp *u, struct peer *p, bool v4,
				uint16_t port)
{
	struct claim *old, *c;

	pthread_mutex_lock(&u->bind_lock);
	old = p->claim[v4];
	c = old && old->tx.port == port && old->tx.fd >= 0
		    ? old
		    : calloc(1, sizeof(*c));
	if (!c || c == old)
		goto unlock;
	c->tried_ns = clock_ns();
	if (tx_open(&c->tx, v4, port)) {
		c->tx.fd = -1;
		c->tx.port = port;
	}
	p->claim[v4] = c;
	if (old) {
		old->next = p->retired;
		p->retired = old;
	}
unlock:
	pthread_mutex_unlock(&u->bind_lock);
	return c;
}

struct tx_sock *udp_peer_get(struct udp *u, unsigned slot, bool v4)
{
	uint16_t port = registry_port(u->registry, slot);
	struct peer *p = &u->peer[slot % REGISTRY_SLOTS];
	struct claim *c;

	p->senders++;
	c = p->claim[v4];
	if (port && (!c || c->tx.port != port ||
		     (c->tx.fd < 0 && clock_ns() - c->tried_ns > RETRY_NS)))
		c = make_claim(u, p, v4, port);
	return port && c && c->tx.fd >= 0 ? &c->tx : NULL;
}

void udp_peer_put(struct udp *u, unsigned slot)
{
	struct peer *p = &u->peer[slot % REGISTRY_SLOTS];

	if (!--p->senders && p->retired)
		reap_claims(u, p);
}

static struct rx_sock *find_sock(const struct udp *u, const union ibv_gid *gid,
				 uint32_t scope)
{
	for (struct rx_sock *s = u->socks; s; s = s->next)
		if (s->kind != RX_PRIVATE && s->scope == scope &&
		    gid_equal(&s->gid, gid))
			return s;
	return NULL;
}

/* Leases or sockets have changed. Called with the registry's lock held. */
static void steer(void *arg)
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

int udp_create(struct udp **out, const struct udp_config *cfg,
	       struct registry *registry)
{
	struct udp *u = calloc(1, sizeof(*u));
	int err;

	if (!u)
		return -ENOMEM;
	u->cfg = *cfg;
	if (!u->cfg.seed)
		u->cfg.seed = clock_ns();
	u->registry = registry;
	u->slot = registry ? registry_slot(registry) : 0;
	pthread_mutex_init(&u->bind_lock, NULL);
	pthread_mutex_init(&u->rx_lock, NULL);
	u->pending_fd = -1;
	u->spare_fd = -1;
	for (int i = 0; i < TX_SOCKS; i++)
		u->tx[0][i].fd = u->tx[1][i].fd = -1;
	u->epfd = fd_aside(epoll_create1(EPOLL_CLOEXEC));
	if (u->epfd < 0) {
		err = -errno;
		goto err_destroy;
	}
	u->pending_fd = fd_aside(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (u->pending_fd < 0) {
		err = -errno;
		goto err_destroy;
	}
	err = watch(u, u->pending_fd, NULL);
	if (err)
		goto err_destroy;
	for (int i = 0; i < TX_SOCKS; i++) {
		int err6 = tx_open(&u->tx[0][i], false, 0);

		err = tx_open(&u->tx[1][i], true, 0);
		if (err && err6)
			goto err_destroy;
	}
	for (int v4 = 0; v4 < 2; v4++) {
		struct rx_sock *s = &u->errors[v4];

		s->kind = RX_ERRORS;
		s->fd = u->tx[v4][TX_QP1].fd;
		if (s->fd < 0)
			continue;
		err_enable(s->fd, v4);
		err = watch(u, s->fd, s);
		if (err)
			goto err_destroy;
	}
	u->spare_fd = udp_socket(u->tx[1][0].fd >= 0);
	if (u->spare_fd < 0) {
		err = u->spare_fd;
		goto err_destroy;
	}
	err = rx_create(u);
	if (err)
		goto err_destroy;
	if (registry) {
		err = open_private(u);
		if (err)
			goto err_destroy;
		registry_on_change(registry, steer, u);
	}
	*out = u;
	return 0;

err_destroy:
	udp_destroy(u);
	return err;
}

static void free_claims(struct claim *c)
{
	struct claim *next;

	for (; c; c = next) {
		next = c->next;
		close_fd(c->tx.fd);
		free(c);
	}
}

static void free_udp(struct udp *u)
{
	struct rx_sock *s;

	rx_reap(u);
	while ((s = u->socks)) {
		u->socks = s->next;
		close_fd(s->fd);
		free(s);
	}
	for (int i = 0; i < TX_SOCKS; i++) {
		close_fd(u->tx[0][i].fd);
		close_fd(u->tx[1][i].fd);
	}
	for (int i = 0; i < REGISTRY_SLOTS; i++) {
		free_claims(u->peer[i].claim[0]);
		free_claims(u->peer[i].claim[1]);
		free_claims(u->peer[i].retired);
	}
	close_fd(u->pending_fd);
	close_fd(u->spare_fd);
	close_fd(u->epfd);
	rx_destroy(u);
	pthread_mutex_destroy(&u->bind_lock);
	pthread_mutex_destroy(&u->rx_lock);
	free(u);
}

void udp_destroy(struct udp *u)
{
	bool locked;

	if (!u)
		return;
	if (u->registry) {
		registry_on_change(u->registry, NULL, NULL);
		registry_publish(u->registry, 0, 0);
		locked = !registry_lock(u->registry);
		for (struct rx_sock *s = u->socks; s; s = s->next) {
			if (s->kind == RX_PRIVATE)
				continue;
			close_fd(s->fd);
			s->fd = -1;
			if (locked)
				registry_addr_leave(u->registry, &s->gid,
						    s->scope);
		}
		if (locked)
			registry_unlock(u->registry);
	}
	free_udp(u);
}

void udp_abandon(struct udp *u)
{
	if (u)
		free_udp(u);
}

/* Why a port could not be had */

/* Name and number of a process of ours that has the socket open. */
static bool find_holder(unsigned long inode, char *out, size_t len)
{
	char want[64], path[300], link[64], comm[64];
	struct dirent *de, *fe;
	bool found = false;
	DIR *proc, *fds;

	snprintf(want, sizeof(want), "socket:[%lu]", inode);
	proc = opendir("/proc");
	if (!proc)
		return false;
	while (!found && (de = readdir(proc))) {
		if (de->d_name[0] < '1' || de->d_name[0] > '9')
			continue;
		snprintf(path, sizeof(path), "/proc/%s/fd", de->d_name);
		fds = opendir(path);
		if (!fds)
			continue;
		while (!found && (fe = readdir(fds))) {
			ssize_t n = readlinkat(dirfd(fds), fe->d_name, link,
					       sizeof(link) - 1);

			if (n <= 0)
				continue;
			link[n] = 0;
			found = !strcmp(link, want);
		}
		closedir(fds);
		if (found) {
			FILE *f;

			snprintf(path, sizeof(path), "/proc/%s/comm",
				 de->d_name);
			comm[0] = 0;
			f = fopen(path, "rce");
			if (f) {
				if (fgets(comm, sizeof(comm), f))
					comm[strcspn(comm, "\n")] = 0;
				fclose(f);
			}
			snprintf(out, len, "process %.16s (%s)", de->d_name,
				 comm);
		}
	}
	closedir(proc);
	return found;
}

/*
 * A line of /proc/net/udp or udp6 for our port and an address that excludes
 * gid: the same, or the wildcard. The kernel prints addresses as 32-bit words
 * in its own byte order.
 */
static bool line_conflicts(const char *line, const union ibv_gid *gid,
			   unsigned *uid, unsigned long *inode)
{
	char addr[40];
	unsigned port, w[4] = { 0 };
	uint8_t raw[16] = { [10] = 0xff, [11] = 0xff };
	static const uint8_t zero[16];
	int n;

	if (sscanf(line,
		   " %*u: %39[0-9A-Fa-f]:%x %*s %*s %*s %*s %*s %u %*s "
		   "%lu",
		   addr, &port, uid, inode) != 4 ||
	    port != ROCE_UDP_PORT)
		return false;
	n = sscanf(addr, "%8x%8x%8x%8x", &w[0], &w[1], &w[2], &w[3]);
	if (n == 1)
		memcpy(raw + 12, w, 4);
	else
		memcpy(raw, w, 16);
	if (n == 4 && !memcmp(raw, zero, 16))
		return true; /* [::] takes IPv4 too, unless told otherwise */
	if (!memcmp(raw + 12, zero, 4) && n == 1)
		return roce_gid_is_v4(gid);
	return !memcmp(raw, gid->raw, 16);
}

/*
 * Who has the port that gid needs, as part of a sentence. A process of our user
 * that had our registry would share the port.
 */
static void describe_holder(const struct udp *u, const union ibv_gid *gid,
			    char *out, size_t len)
{
	static const char *const tables[] = { "/proc/net/udp",
					      "/proc/net/udp6" };
	char line[512], process[128];
	unsigned uid;
	unsigned long inode;

	for (size_t i = 0; i < ARRAY_SIZE(tables); i++) {
		FILE *f = fopen(tables[i], "rce");
		bool found = false;

		if (!f)
			continue;
		while (!found && fgets(line, sizeof(line), f))
			found = line_conflicts(line, gid, &uid, &inode);
		fclose(f);
		if (!found)
			continue;
		if (!find_holder(inode, process, sizeof(process)))
			snprintf(process, sizeof(process), "a process");
		else
			inode = 0; /* it has a name */
		if (uid == geteuid() && (uid || !inode) && u->registry)
			snprintf(out, len,
				 "%s of this user which does not share %s "
				 "(another container or SOFTHCA_RUNDIR, or "
				 "another program)",
				 process, registry_path(u->registry));
		else if (uid || !inode)
			snprintf(out, len, "%s of user %u", process, uid);
		else if (!access("/sys/module/rdma_rxe", F_OK))
			snprintf(out, len,
				 "the kernel's rdma_rxe driver, it "
				 "seems (rdma link delete frees it)");
		else
			snprintf(out, len,
				 geteuid() ? "a process of user 0, "
					     "or the kernel"
					   : "the kernel");
		return;
	}
	snprintf(out, len, "somebody who cannot be seen from here");
}

/* Looks at all processes there are, so no lock is held. */
static void say_taken(struct udp *u, const union ibv_gid *gid, uint32_t scope)
{
	char addr[INET6_ADDRSTRLEN], who[400], why[UDP_WHY];
	struct rx_sock *s;

	if (roce_gid_is_v4(gid))
		inet_ntop(AF_INET, gid->raw + 12, addr, sizeof(addr));
	else
		inet_ntop(AF_INET6, gid->raw, addr, sizeof(addr));
	describe_holder(u, gid, who, sizeof(who));
	snprintf(why, sizeof(why), "UDP port %d of %s is taken by %s%s",
		 ROCE_UDP_PORT, addr, who,
		 u->registry && !u->cfg.wire
			 ? "; only this user's processes on this host, with "
			   "the same registry, reach each other there"
			 : "");
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

static int bind_fd(int fd, const union ibv_gid *gid, uint32_t scope)
{
	struct sockaddr_storage ss;
	socklen_t len = udp_sockaddr(&ss, gid, scope, ROCE_UDP_PORT);

	return bind(fd, (struct sockaddr *)&ss, len) ? -errno : 0;
}

/* The registry's lock is held. alone: nobody of ours is there yet. */
static int bind_unicast(struct udp *u, struct rx_sock *s, bool alone)
{
	int err;

	s->fd = rx_socket(u, s->v4);
	if (s->fd < 0)
		return s->fd;
	if (!alone)
		set_int(s->fd, SOL_SOCKET, SO_REUSEPORT, 1);
	err = bind_fd(s->fd, &s->gid, s->scope);
	if (!err && u->registry)
		set_int(s->fd, SOL_SOCKET, SO_REUSEPORT, 1);
	if (!err)
		err = watch(u, s->fd, s);
	if (err) {
		sys_close(s->fd);
		s->fd = -1;
	}
	return err;
}

/* Every process that joins gets a copy, whoever's it is. */
static int bind_multicast(struct udp *u, struct rx_sock *s)
{
	int err;

	s->fd = rx_socket(u, s->v4);
	if (s->fd < 0)
		return s->fd;
	set_int(s->fd, SOL_SOCKET, SO_REUSEADDR, 1);
	err = bind_fd(s->fd, &s->gid, s->scope);
	if (err)
		goto err_close;
	if (s->v4) {
		struct ip_mreqn req = { .imr_ifindex = (int)s->scope };

		memcpy(&req.imr_multiaddr, s->gid.raw + 12, 4);
		set_int(s->fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
		err = setsockopt(s->fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &req,
				 sizeof(req));
	} else {
		struct ipv6_mreq req = { .ipv6mr_interface = s->scope };

		memcpy(&req.ipv6mr_multiaddr, s->gid.raw, 16);
		set_int(s->fd, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0);
		err = setsockopt(s->fd, IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, &req,
				 sizeof(req));
	}
	err = err ? -errno : watch(u, s->fd, s);
	if (err)
		goto err_close;
	return 0;

err_close:
	sys_close(s->fd);
	s->fd = -1;
	return err;
}

/* -EADDRINUSE: so it is, and s, if there is a registry, has no socket. */
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
			sys_close(s->fd);
			s->fd = -1;
			s->bound = false;
		}
		err = r ? r : err;
	}
	return err;
}

/* One user more or less of a socket, or of the lack of one, that stays as it
 * is: that is nothing to other processes, and needs no lock of theirs. */
static bool recount(struct udp *u, const union ibv_gid *gid, uint32_t scope,
		    bool more)
{
	struct rx_sock *s;
	bool stays;

	pthread_mutex_lock(&u->bind_lock);
	s = find_sock(u, gid, scope);
	stays = s && (more ? s->bound || s->kind == RX_MULTICAST ||
				      clock_ns() - s->tried_ns < RETRY_NS
			   : s->refs > 1);
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
	if (new || (s->kind == RX_UNICAST && !s->bound))
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
		snprintf(u->why, sizeof(u->why), "%s", strerror(-err));
	pthread_mutex_unlock(&u->bind_lock);
	if (u->registry)
		registry_unlock(u->registry); /* and steer() */
	return err;
}

int udp_bind(struct udp *u, const union ibv_gid *gid, unsigned ifindex)
{
	uint32_t scope = udp_scope(gid, ifindex);
	int err;

	if (recount(u, gid, scope, true))
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
	/* The private port still does for this host's processes. */
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
	taken = s && s->kind == RX_UNICAST && !s->bound;
	pthread_mutex_unlock(&u->bind_lock);
	return taken;
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

	if (recount(u, gid, scope, false))
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
	/* If a poller is at it, the next one will do it. */
	if (!pthread_mutex_trylock(&u->rx_lock)) {
		rx_reap(u);
		pthread_mutex_unlock(&u->rx_lock);
	}
}

int udp_fd(const struct udp *u)
{
	return u->epfd;
}

const struct udp_stats *udp_stats(const struct udp *u)
{
	return &u->stats;
}
