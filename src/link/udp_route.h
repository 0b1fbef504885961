/*
 * udp_route.h - what the UDP link keeps of where packets were sent last
 *
 * All of it follows from the path of a packet: the addresses for sendmsg(2) and
 * the beginning of the ICRC. Its owner sends one batch at a time.
 */
#ifndef SOFTHCA_LINK_UDP_ROUTE_H
#define SOFTHCA_LINK_UDP_ROUTE_H

#include "wire/icrc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct udp_route {
	bool known; /* false: all else means nothing */
	bool v4;
	bool relay; /* to the private port of each member of the group */
	uint32_t scope; /* interface to send on, or 0 */
	struct roce_path path;
	struct sockaddr_storage to; /* its port is that of the last packet */
	socklen_t tolen;
	size_t control_len;
	size_t plain_len; /* of control, without the flow label at its end */
	_Alignas(struct cmsghdr) uint8_t control[160]; /* without UDP_SEGMENT */
	struct icrc_memo icrc;
};

#endif
