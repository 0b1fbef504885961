/*
 * rocev1_filter.c - which frames a process's socket gets
 *
 * Every AF_PACKET socket is offered every frame, so with many processes most are
 * for others. A classic BPF program sees a frame from the GRH on; what it loads
 * from behind the end makes it drop the frame.
 */
#include "rocev1.h"

#include "base/bytes.h"
#include "registry/registry.h"
#include "wire/grh.h"

#include <assert.h>
#include <linux/if_packet.h>

#define DGID_AT 24
#define QPN_AT (GRH_LEN + 4)
#define ADDR_LEN 12 /* instructions of one address */

struct program {
	struct sock_filter *at;
	size_t n;
};

static void put(struct program *p, uint16_t code, uint32_t k, uint8_t jt,
		uint8_t jf)
{
	assert(p->n < ROCEV1_FILTER_MAX);
	p->at[p->n++] = (struct sock_filter){ code, jt, jf, k };
}

static void load(struct program *p, uint16_t size, uint32_t at)
{
	put(p, BPF_LD | BPF_ABS | size, at, 0, 0);
}

static void result(struct program *p, bool take)
{
	put(p, BPF_RET | BPF_K, take ? UINT32_MAX : 0, 0, 0);
}

/* Else it is dropped. */
static void must_be(struct program *p, uint32_t k)
{
	put(p, BPF_JMP | BPF_JEQ | BPF_K, k, 1, 0);
	result(p, false);
}

/* Goes on behind the left addresses if it is this one, else at the next. */
static void put_addr(struct program *p, const struct rocev1_addr *a,
		     uint32_t lo, size_t left)
{
	const size_t next = p->n + ADDR_LEN;

	for (unsigned i = 0; i < 4; i++) {
		load(p, BPF_W, DGID_AT + 4 * i);
		put(p, BPF_JMP | BPF_JEQ | BPF_K, get_be32(a->gid.raw + 4 * i),
		    0, (uint8_t)(next - p->n - 1));
	}
	load(p, BPF_W, (uint32_t)(SKF_AD_OFF + SKF_AD_IFINDEX));
	put(p, BPF_JMP | BPF_JEQ | BPF_K, a->ifindex, 1, 0);
	put(p, BPF_JMP | BPF_JEQ | BPF_K, lo ? lo : a->ifindex, 0, 1);
	/* And the result behind the last one. */
	put(p, BPF_JMP | BPF_JA, (uint32_t)(left * ADDR_LEN + 1), 0, 0);
	assert(p->n == next);
}

size_t rocev1_filter(struct sock_filter prog[ROCEV1_FILTER_MAX],
		     const struct rocev1_addr *addr, size_t n, uint32_t lo,
		     const uint16_t *chunk, size_t nchunks)
{
	struct program p = { prog, 0 };

	static_assert(REGISTRY_CHUNK == 1 << 12, "shift of the program");
	load(&p, BPF_W, (uint32_t)(SKF_AD_OFF + SKF_AD_PKTTYPE));
	must_be(&p, PACKET_HOST);
	load(&p, BPF_B, 6);
	must_be(&p, GRH_NEXT_BTH);
	for (size_t i = 0; i < n; i++)
		put_addr(&p, &addr[i], lo, n - 1 - i);
	result(&p, false);
	load(&p, BPF_W, QPN_AT);
	put(&p, BPF_ALU | BPF_AND | BPF_K, 0xffffff, 0, 0);
	put(&p, BPF_JMP | BPF_JGT | BPF_K, 1, 1, 0);
	result(&p, false);
	put(&p, BPF_JMP | BPF_JEQ | BPF_K, ROCE_MULTICAST_QPN, 0, 1);
	result(&p, false);
	put(&p, BPF_ALU | BPF_RSH | BPF_K, 12, 0, 0);
	for (size_t i = 0; i < nchunks; i++) {
		put(&p, BPF_JMP | BPF_JEQ | BPF_K, chunk[i], 0, 1);
		result(&p, true);
	}
	result(&p, !nchunks);
	return p.n;
}
