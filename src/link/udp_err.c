/*
 * udp_err.c - what hosts and routers say of packets that do not arrive
 *
 * ICMP says that a host has no socket at port 4791, or that there is no way to
 * it. Only messages for QP1 are sent from a socket that receives such errors
 * (IP_RECVERR): whether anybody is there matters before a connection is made.
 * An established one relies on its own retries, and a pending error would be
 * reported by the next send on the socket, which may go to somebody else.
 *
 * The kernel accepts only errors that quote a packet of that socket's port, and
 * the connection manager only those that quote a message that it has sent.
 */
#include "sock.h"
#include "udp_internal.h"

#include "base/gid.h"
#include "base/sys.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <string.h>

#define QUOTE_MAX 1280
#define ERRORS_MAX 64 /* in one go */

void err_enable(int fd, bool v4)
{
	int on = 1;

	/* Without it a request waits for its retries; that is all. */
	setsockopt(fd, v4 ? IPPROTO_IP : IPPROTO_IPV6,
		   v4 ? IP_RECVERR : IPV6_RECVERR, &on, sizeof(on));
}

/* Whether it says that a destination cannot be reached, rather than that a
 * packet was too large for the way. */
static bool is_unreachable(const struct sock_extended_err *e)
{
	if (e->ee_origin == SO_EE_ORIGIN_ICMP)
		return e->ee_type == ICMP_DEST_UNREACH &&
		       e->ee_code != ICMP_FRAG_NEEDED;
	return e->ee_origin == SO_EE_ORIGIN_ICMP6 &&
	       e->ee_type == ICMP6_DST_UNREACH;
}

/* false: there is none. */
static bool read_error(struct udp *u, int fd)
{
	_Alignas(struct cmsghdr) uint8_t control[512];
	struct sockaddr_storage to = { 0 };
	uint8_t quote[QUOTE_MAX];
	struct iovec iov = { quote, sizeof(quote) };
	struct msghdr m = {
		.msg_name = &to,
		.msg_namelen = sizeof(to),
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	struct sock_extended_err e;
	union ibv_gid gid;
	ssize_t n = sys_recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT);

	if (n < 0)
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
		if (!(c->cmsg_level == IPPROTO_IP &&
		      c->cmsg_type == IP_RECVERR) &&
		    !(c->cmsg_level == IPPROTO_IPV6 &&
		      c->cmsg_type == IPV6_RECVERR))
			continue;
		memcpy(&e, CMSG_DATA(c), sizeof(e));
		if (u->unreachable && is_unreachable(&e) &&
		    sock_gid(&to, &gid) == ROCE_UDP_PORT)
			u->unreachable(u->unreachable_arg, &gid, quote,
				       (size_t)n);
	}
	return true;
}

void err_read(struct udp *u, int fd)
{
	socklen_t len = sizeof(int);
	int err;

	for (int i = 0; i < ERRORS_MAX && read_error(u, fd); i++)
		;
	/* An error that is left pending would be reported for ever. */
	getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len);
}

void udp_on_unreachable(struct udp *u, udp_unreachable_fn *fn, void *arg)
{
	u->unreachable = fn;
	u->unreachable_arg = arg;
}
