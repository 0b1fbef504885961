/*
 * steer.c - the program that finds the process a packet is for
 *
 * Sockets that share an address and port by SO_REUSEPORT are numbered by the
 * kernel; a classic BPF program, for which no privilege is needed, may look at
 * the packet and say which one gets it. It sees the packet from the BTH on:
 *
 *	A = bytes 4..7; A &= 0xffffff		the QPN
 *	if it is QP1: A = the communication ID that the message names, which is
 *	from a chunk as well, see connect/gsi.c; a request names none: return 0
 *	A >>= 12; A &= 0xfff			the chunk
 *	a binary search over the ranges, ending in "return index"
 *
 * Conditional jumps reach 255 instructions far; beyond that they lead to an
 * unconditional one. A packet too short for the load goes to socket 0.
 */
#include "steer.h"

#include "wire/mad.h"
#include "wire/roce.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

static size_t tree_len(size_t n)
{
	size_t left;

	if (n == 1)
		return 1;
	left = tree_len(n / 2);
	return (left > 255 ? 2 : 1) + left + tree_len(n - n / 2);
}

static size_t steer_tree(struct sock_filter *p, const struct registry_range *r,
			 size_t n)
{
	size_t half = n / 2, left, i = 0;

	if (n == 1) {
		p[0] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
						    r[0].index);
		return 1;
	}
	left = tree_len(half);
	if (left <= 255) {
		p[i++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K,
						      r[half].chunk,
						      (uint8_t)left, 0);
	} else {
		p[i++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K,
						      r[half].chunk, 0, 1);
		p[i++] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA,
						      (uint32_t)left);
	}
	i += steer_tree(p + i, r, half);
	return i + steer_tree(p + i, r + half, n - half);
}

/* Where a packet for QP1 has its message, and that its fields. */
#define MAD_AT (ROCE_BTH_LEN + 8 /* DETH */)
#define ATTR_ID (MAD_AT + 16)
#define FIRST_ID (MAD_AT + MAD_HDR_LEN)

/* Its last two steps are done with every packet. */
static const struct sock_filter chunk_of[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4),
	BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 1, 0, 8),
	BPF_STMT(BPF_LD | BPF_H | BPF_ABS, ATTR_ID),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MAD_CM_REQ, 1, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MAD_CM_SIDR_REQ, 0, 1),
	BPF_STMT(BPF_RET | BPF_K, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MAD_CM_SIDR_REP, 0, 2),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIRST_ID),
	BPF_STMT(BPF_JMP | BPF_JA, 1),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, FIRST_ID + 4),
	BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 12),
	BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xfff),
};

size_t steer_program(struct sock_filter *prog,
		     const struct registry_range *range, size_t n)
{
	size_t i = sizeof(chunk_of) / sizeof(chunk_of[0]);

	assert(n);
	if (n == 1)
		return steer_tree(prog, range, n);
	static_assert(STEER_PROGRAM(0) >=
			      sizeof(chunk_of) / sizeof(chunk_of[0]),
		      "room");
	memcpy(prog, chunk_of, sizeof(chunk_of));
	return i + steer_tree(prog + i, range, n);
}

int steer_attach(int fd, const struct registry_range *range, size_t n)
{
	struct sock_filter prog[STEER_PROGRAM(STEER_RANGES)];
	struct sock_fprog fprog = { .filter = prog };

	static_assert(REGISTRY_CHUNK == 1 << 12 && REGISTRY_CHUNKS == 1 << 12,
		      "shift and mask of the program");
	if (n > STEER_RANGES)
		n = STEER_RANGES;
	/* Kernels before 6.9 allow less than that: better coarse than none. */
	for (; n; n /= 2) {
		fprog.len = (uint16_t)steer_program(prog, range, n);
		if (!setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF,
				&fprog, sizeof(fprog)))
			return 0;
		if (errno != ENOMEM)
			break;
	}
	return n ? -errno : -ENOMEM;
}
