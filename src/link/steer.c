/*
 * steer.c - the program that finds the process a packet is for
 *
 * Sockets that share an address and port by SO_REUSEPORT are numbered by the
 * kernel; a classic BPF program, for which no privilege is needed, may look at
 * the packet and say which one gets it. It sees the packet from the BTH on:
 *
 *	A = bytes 4..7; A &= 0xffffff; A >>= 12	the chunk of the QPN
 *	a binary search over the ranges, ending in "return index"
 *
 * Conditional jumps reach 255 instructions far; beyond that they lead to an
 * unconditional one. A packet too short for the load goes to socket 0.
 */
#include "steer.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <sys/socket.h>

static size_t tree_len(size_t n)
{
	size_t left;

	if (n == 1)
		return 1;
	left = tree_len(n / 2);
	return (left > 255 ? 2 : 1) + left + tree_len(n - n / 2);
}

static size_t tree(struct sock_filter *p, const struct registry_range *r,
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
	i += tree(p + i, r, half);
	return i + tree(p + i, r + half, n - half);
}

size_t steer_program(struct sock_filter *prog,
		     const struct registry_range *range, size_t n)
{
	size_t i = 0;

	assert(n);
	if (n == 1)
		return tree(prog, range, n);
	prog[i++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 4);
	prog[i++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K,
						 0xffffff);
	prog[i++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_RSH | BPF_K, 12);
	return i + tree(prog + i, range, n);
}

int steer_attach(int fd, const struct registry_range *range, size_t n)
{
	struct sock_filter prog[3 * STEER_RANGES + 4];
	struct sock_fprog fprog = { .filter = prog };

	static_assert(REGISTRY_CHUNK == 1 << 12, "shift of the program");
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
