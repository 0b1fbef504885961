/*
 * udp_route.h - what the UDP link keeps of where packets were sent last
 *
 * All of it follows from the path of a packet: the addresses for sendmsg(2) and
 * the beginning of the ICRC. Its owner sends one batch at a time.
 */
#ifndef SOFTHCA_LINK_UDP_ROUTE_H
#define SOFTHCA_LINK_UDP_ROUTE_H

#include "sock.h"

#include "base/aligned.h"
#include "wire/icrc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct udp_route {
	_Alignas(CACHE_LINE) bool known; /* false: all else means nothing */
	bool v4;
	bool relay; /* to the private port of each member of the group */
	uint32_t scope; /* interface to send on, or 0 */
	uint32_t control_len;
	uint32_t plain_len; /* of control, without the flow label at its end */
	socklen_t tolen;
	union sock_name to; /* its port is that of the last packet */
	_Alignas(CACHE_LINE) struct roce_path path;
	struct icrc_flow icrc;
	_Alignas(CACHE_LINE) uint8_t control[128]; /* without UDP_SEGMENT */
};

#endif
