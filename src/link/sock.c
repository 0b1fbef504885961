/*
 * sock.c - the kinds of socket that the link has
 *
 * An option that an older kernel lacks makes things slower, not wrong; so no
 * caller hears of it.
 */
#include "sock.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/gid.h"
#include "base/sys.h"
#include "udp_internal.h"

#include <errno.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <string.h>

#define RCVBUF_WANTED (8 << 20)
#define SNDBUF_WANTED (4 << 20)
#define PORT_TRIES 16

void sock_close(int fd)
{
	if (fd >= 0)
		sys_close(fd);
}

void sock_set(int fd, int level, int name, int value)
{
	setsockopt(fd, level, name, &value, sizeof(value));
}

socklen_t sock_addr(union sock_name *to, const union ibv_gid *gid,
		    uint32_t scope, uint16_t port)
{
	memset(to, 0, sizeof(*to));
	if (roce_gid_is_v4(gid)) {
		to->v4.sin_family = AF_INET;
		to->v4.sin_port = htons(port);
		memcpy(&to->v4.sin_addr, gid->raw + 12, 4);
		return sizeof(to->v4);
	}
	to->v6.sin6_family = AF_INET6;
	to->v6.sin6_port = htons(port);
	memcpy(&to->v6.sin6_addr, gid->raw, 16);
	to->v6.sin6_scope_id = scope;
	return sizeof(to->v6);
}

void sock_set_port(union sock_name *to, uint16_t port)
{
	to->v4.sin_port = htons(port); /* the same for IPv6 */
}

uint16_t sock_gid(const struct sockaddr_storage *ss, union ibv_gid *gid)
{
	if (ss->ss_family == AF_INET) {
		const struct sockaddr_in *sin = (const void *)ss;

		*gid = gid_of_v4(&sin->sin_addr);
		return ntohs(sin->sin_port);
	} else {
		const struct sockaddr_in6 *sin6 = (const void *)ss;

		memcpy(gid->raw, &sin6->sin6_addr, 16);
		return ntohs(sin6->sin6_port);
	}
}

/* An address of all zeros, in either family. */
static void any_gid(union ibv_gid *gid, bool v4)
{
	memset(gid, 0, sizeof(*gid));
	if (v4)
		gid->raw[10] = gid->raw[11] = 0xff;
}

int sock_bind(int fd, const union ibv_gid *gid, uint32_t scope, uint16_t port)
{
	union sock_name to;
	socklen_t len = sock_addr(&to, gid, scope, port);

	return bind(fd, (struct sockaddr *)&to, len) ? -errno : 0;
}

int sock_bind_any(int fd, bool v4, uint16_t port)
{
	union ibv_gid any;

	any_gid(&any, v4);
	return sock_bind(fd, &any, 0, port);
}

uint16_t sock_port(int fd)
{
	struct sockaddr_storage ss = { 0 };
	socklen_t len = sizeof(ss);
	union ibv_gid gid;

	if (getsockname(fd, (struct sockaddr *)&ss, &len))
		return 0;
	return sock_gid(&ss, &gid);
}

int sock_new(bool v4)
{
	int fd = socket(v4 ? AF_INET : AF_INET6,
			SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	if (!v4)
		sock_set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
	return fd_high(fd);
}

static void set_buffer(int fd, int force, int plain, int bytes)
{
	if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof(bytes)))
		sock_set(fd, SOL_SOCKET, plain, bytes);
}

void sock_set_buffers(int fd)
{
	set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, RCVBUF_WANTED);
	set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, SNDBUF_WANTED);
}

int sock_rx(const struct udp_config *cfg, bool v4)
{
	int fd = sock_new(v4);

	if (fd < 0)
		return fd;
	if (cfg->rcvbuf)
		sock_set(fd, SOL_SOCKET, SO_RCVBUF, (int)cfg->rcvbuf);
	else
		set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, RCVBUF_WANTED);
	sock_set(fd, SOL_SOCKET, SO_RXQ_OVFL, 1);
	sock_set(fd, SOL_UDP, UDP_GRO, 1);
	if (v4) {
		sock_set(fd, IPPROTO_IP, IP_RECVTTL, 1);
		sock_set(fd, IPPROTO_IP, IP_RECVTOS, 1);
	} else {
		sock_set(fd, IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1);
		sock_set(fd, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
		/* rxe sends IPv6 without a UDP checksum; the ICRC is there. */
		sock_set(fd, SOL_UDP, UDP_NO_CHECK6_RX, 1);
	}
	return fd;
}

void sock_drop_all(int fd)
{
	struct sock_filter drop[] = { BPF_STMT(BPF_RET | BPF_K, 0) };
	struct sock_fprog prog = { ARRAY_SIZE(drop), drop };

	setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &prog, sizeof(prog));
}

int sock_tx(struct tx_sock *t, bool v4, uint16_t port)
{
	uint16_t random[PORT_TRIES];
	int fd = sock_new(v4), err = -EADDRINUSE;

	if (fd < 0)
		return fd;
	sock_drop_all(fd);
	set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, SNDBUF_WANTED);
	if (v4) {
		sock_set(fd, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO);
	} else {
		sock_set(fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_DO);
		sock_set(fd, IPPROTO_IPV6, IPV6_DONTFRAG, 1);
	}
	if (port)
		sock_set(fd, SOL_SOCKET, SO_REUSEPORT, 1);
	else if (sys_random(random, sizeof(random)))
		for (int i = 0; i < PORT_TRIES && err == -EADDRINUSE; i++)
			err = sock_bind_any(fd, v4, random[i] | 0xc000);
	if (err)
		err = sock_bind_any(fd, v4, port);
	if (err) {
		sock_close(fd);
		return err;
	}
	t->fd = fd;
	t->port = sock_port(fd);
	return 0;
}
