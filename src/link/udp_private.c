/*
 * udp_private.c - private ports: ours, and our way to those of other processes
 *
 * The private port takes packets of this host's other processes. Whoever sends
 * to it sends from it: from a socket that shares the port by SO_REUSEPORT,
 * which the kernel grants to the same user alone. So no other user can send to
 * a private port, since the receiver looks at the source port, nor get the port
 * when the receiver has died, since the sender still has it. Such a socket
 * (struct claim) receives nothing: the group's program picks its first member,
 * which is the receiver as long as that lives, and after that a filter drops
 * what comes. Where there is no such socket (no descriptors left, or a sender
 * that has changed its user) packets go to port 4791.
 */
#include "sock.h"
#include "steer.h"
#include "udp_internal.h"

#include "base/bytes.h"
#include "os/config.h"

#include <errno.h>
#include <linux/filter.h>
#include <net/if_arp.h>
#include <stdlib.h>

#define PORT_TRIES 16

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

	return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog,
			  sizeof(prog)) ?
		       -errno :
		       0;
}

static int add_private(struct udp *u, int fd, bool v4)
{
	struct rx_sock *s;
	int err;

	err = accept_own(fd, u->private_port);
	if (err && !v4) /* better none than one open to all */
		return err;
	if (err)
		sock_set(fd, SOL_SOCKET, SO_DETACH_FILTER, 0);
	s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->kind = RX_PRIVATE;
	s->filtered = !err;
	s->v4 = v4;
	s->fd = fd;
	s->bound = true;
	err = udp_watch(u, fd, s);
	if (err) {
		free(s);
		return err;
	}
	pthread_mutex_lock(&u->bind_lock);
	s->next = u->socks;
	u->socks = s;
	pthread_mutex_unlock(&u->bind_lock);
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

	sock_drop_all(fd);
	sock_set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	/* It is of all addresses: which one a packet came to. */
	if (v4)
		sock_set(fd, IPPROTO_IP, IP_PKTINFO, 1);
	else
		sock_set(fd, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
	err = steer_attach(fd, &first, 1);
	return err ? err : sock_bind_any(fd, v4, port);
}

/* The private port: the same number in both families, as far as they exist. */
int private_open(struct udp *u)
{
	int fd4 = -1, fd6 = -1, err = 0, size = 0;
	socklen_t len = sizeof(size);

	for (int i = 0; i < PORT_TRIES; i++) {
		uint16_t port = 0;

		err = 0;
		fd4 = sock_rx(&u->cfg, true);
		if (fd4 >= 0) {
			err = bind_private(fd4, true, 0);
			if (err)
				goto err_close;
			port = sock_port(fd4);
		}
		fd6 = sock_rx(&u->cfg, false);
		if (fd6 >= 0) {
			err = bind_private(fd6, false, port);
			if (err == -EADDRNOTAVAIL && fd4 >= 0) {
				sock_close(fd6); /* IPv6 switched off */
				fd6 = -1;
				err = 0;
			}
			if (!port)
				port = sock_port(fd6);
		}
		if (!err) {
			u->private_port = port;
			break;
		}
		if (err != -EADDRINUSE)
			goto err_close;
		sock_close(fd4);
		sock_close(fd6);
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
	sock_close(fd4);
	sock_close(fd6);
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
		sock_close(c->tx.fd);
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
	c = old && old->tx.port == port && old->tx.fd >= 0 ?
		    old :
		    calloc(1, sizeof(*c));
	if (!c || c == old)
		goto unlock;
	c->tried_ns = clock_ns();
	if (sock_tx(&c->tx, v4, port)) {
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
	if (port &&
	    (!c || c->tx.port != port ||
	     (c->tx.fd < 0 && clock_ns() - c->tried_ns > PORT_RETRY_NS)))
		c = make_claim(u, p, v4, port);
	return port && c && c->tx.fd >= 0 ? &c->tx : NULL;
}

void udp_peer_put(struct udp *u, unsigned slot)
{
	struct peer *p = &u->peer[slot % REGISTRY_SLOTS];

	if (!--p->senders && p->retired)
		reap_claims(u, p);
}

static void free_claims(struct claim *c)
{
	struct claim *next;

	for (; c; c = next) {
		next = c->next;
		sock_close(c->tx.fd);
		free(c);
	}
}

void private_close(struct udp *u)
{
	for (int i = 0; i < REGISTRY_SLOTS; i++) {
		struct peer *p = &u->peer[i];

		free_claims(p->claim[0]);
		free_claims(p->claim[1]);
		free_claims(p->retired);
		p->claim[0] = p->claim[1] = p->retired = NULL;
	}
}
