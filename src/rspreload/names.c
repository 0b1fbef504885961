/*
 * names.c - the addresses of a connection that is relayed
 *
 * Its descriptors are one end of a socketpair, which a child of fork() may hand
 * on to a program that it executes. So the addresses are where no process can
 * lose them: in the abstract name (unix(7)) of that end. No peer can forge it,
 * since it is the name of our own end: an accepted socket has its listener's,
 * one that connects has what its own process has given it.
 *
 *	NUL softhca:tcp RANDOM LOCAL PEER
 *
 * RANDOM is 4 bytes; an address is the IP address, the port and, with IPv6, the
 * scope, in network order. All in lower-case hexadecimal digits.
 */
#include "rspreload/rspreload.h"

#include <errno.h>
#include <netinet/in.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/un.h>

#define TAG "softhca:tcp"
#define TAG_BYTES (sizeof(TAG)) /* with a NUL in front instead of behind */
#define RANDOM_BYTES 4
/* Of an address, before they are digits. */
#define V4_BYTES 6
#define V6_BYTES 22
#define MOST_BYTES (RANDOM_BYTES + 2 * V6_BYTES)

_Static_assert(TAG_BYTES + 2 * MOST_BYTES <=
		       sizeof(((struct sockaddr_un *)0)->sun_path),
	       "the longest name fits");

static size_t pack_addr(uint8_t *to, const struct sockaddr_storage *from)
{
	const struct sockaddr_in6 *in6 = (const void *)from;
	const struct sockaddr_in *in = (const void *)from;
	uint32_t scope;

	if (from->ss_family == AF_INET) {
		memcpy(to, &in->sin_addr, 4);
		memcpy(to + 4, &in->sin_port, 2);
		return V4_BYTES;
	}
	scope = htonl(in6->sin6_scope_id);
	memcpy(to, &in6->sin6_addr, 16);
	memcpy(to + 16, &in6->sin6_port, 2);
	memcpy(to + 18, &scope, 4);
	return V6_BYTES;
}

static void unpack_addr(struct sockaddr_storage *to, const uint8_t *from,
			size_t bytes)
{
	struct sockaddr_in6 *in6 = (void *)to;
	struct sockaddr_in *in = (void *)to;
	uint32_t scope;

	memset(to, 0, sizeof(*to));
	if (bytes == V4_BYTES) {
		in->sin_family = AF_INET;
		memcpy(&in->sin_addr, from, 4);
		memcpy(&in->sin_port, from + 4, 2);
		return;
	}
	in6->sin6_family = AF_INET6;
	memcpy(&in6->sin6_addr, from, 16);
	memcpy(&in6->sin6_port, from + 16, 2);
	memcpy(&scope, from + 18, 4);
	in6->sin6_scope_id = ntohl(scope);
}

static const char digits[] = "0123456789abcdef";

/* -1: not a digit. */
static int value_of(char c)
{
	const char *at = c ? strchr(digits, c) : NULL;

	return at ? (int)(at - digits) : -1;
}

int rsp_name(int end, const struct sockaddr_storage *local,
	     const struct sockaddr_storage *peer)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	uint8_t bytes[MOST_BYTES];
	size_t n = RANDOM_BYTES, i;
	char *to = un.sun_path + TAG_BYTES;

	/* A name is one socket's, and another may have had the same ports. */
	if (getrandom(bytes, n, 0) != (ssize_t)n)
		return -1;
	n += pack_addr(bytes + n, local);
	n += pack_addr(bytes + n, peer);
	memcpy(un.sun_path + 1, TAG, TAG_BYTES - 1);
	for (i = 0; i < n; i++) {
		*to++ = digits[bytes[i] >> 4];
		*to++ = digits[bytes[i] & 0xf];
	}
	return rsp_real()->bind(end, (struct sockaddr *)&un,
				(socklen_t)(to - (char *)&un));
}

bool rsp_named(int fd, struct rsp_names *names)
{
	const size_t head = offsetof(struct sockaddr_un, sun_path) + TAG_BYTES;
	struct sockaddr_un un = { 0 };
	uint8_t bytes[MOST_BYTES];
	socklen_t len = sizeof(un);
	const int saved = errno;
	const char *from;
	int high, low;
	size_t n, i;

	if (rsp_real()->getsockname(fd, (struct sockaddr *)&un, &len)) {
		errno = saved;
		return false;
	}
	if (un.sun_family != AF_UNIX || len <= head || len > sizeof(un) ||
	    un.sun_path[0] || memcmp(un.sun_path + 1, TAG, TAG_BYTES - 1))
		return false;
	n = (len - head) / 2;
	if (len - head != 2 * n || (n != RANDOM_BYTES + 2 * V4_BYTES &&
				    n != RANDOM_BYTES + 2 * V6_BYTES))
		return false;
	from = un.sun_path + TAG_BYTES;
	for (i = 0; i < n; i++) {
		high = value_of(*from++);
		low = value_of(*from++);
		if (high < 0 || low < 0)
			return false;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	n = (n - RANDOM_BYTES) / 2;
	unpack_addr(&names->local, bytes + RANDOM_BYTES, n);
	unpack_addr(&names->peer, bytes + RANDOM_BYTES + n, n);
	return true;
}
