/*
 * sock.h - the kinds of socket that the link has
 *
 * All are non-blocking and closed on exec, and have descriptors out of the way
 * of the program's. What makes one returns it, or -errno.
 */
#ifndef SOFTHCA_LINK_SOCK_H
#define SOFTHCA_LINK_SOCK_H

#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct tx_sock;
struct udp_config;

/* A UDP socket, and nothing more. */
int sock_new(bool v4);

/* A receiving socket: as large a buffer as is allowed, GRO, and what the IP
 * header said of each datagram. */
int sock_rx(const struct udp_config *cfg, bool v4);

/*
 * A sending socket. port 0: one that receivers see as the flow's entropy, in
 * the range that annex A17 recommends if one is free there; else that port,
 * which it shares with a process of this user. What is sent to the port and
 * reaches this socket is thrown away. Returns 0 or -errno.
 */
int sock_tx(struct tx_sock *t, bool v4, uint16_t port);

/* -1: nothing to close. */
void sock_close(int fd);

/* Sets an option, if the kernel has it. */
void sock_set(int fd, int level, int name, int value);

/* Buffers as large as is useful and allowed, both ways. */
void sock_set_buffers(int fd);

/* Nothing comes in, until another filter takes the place of this one. */
void sock_drop_all(int fd);

union sock_name {
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};
socklen_t sock_addr(union sock_name *to, const union ibv_gid *gid,
		    uint32_t scope, uint16_t port);
/* Of an address that it has made. */
void sock_set_port(union sock_name *to, uint16_t port);
/* The address, and as the result the port. */
uint16_t sock_gid(const struct sockaddr_storage *ss, union ibv_gid *gid);

/* Return 0 or -errno. */
int sock_bind(int fd, const union ibv_gid *gid, uint32_t scope, uint16_t port);
int sock_bind_any(int fd, bool v4, uint16_t port);

/* The port it is bound to. */
uint16_t sock_port(int fd);

#endif
