/*
 * lid_write.c - RDMA WRITE, and a peer that looks at its memory
 *
 *   lid_write PORT [HOST]
 *
 * The ends write a counter to each other in turn. Neither posts a receive: each
 * spins on the word that the other writes, as latency tests do.
 */
#include "lids.h"

#define ROUNDS 1000u

static void wait_for(const struct lid_end *e, uint32_t value)
{
	const volatile uint32_t *word = (const volatile uint32_t *)e->buf;
	const uint64_t end = now_ns() + LIMIT_NS;

	while (*word != value)
		if (now_ns() > end)
			die(EXIT_DATA, "waits for %u, has %u", value, *word);
}

static void write_to(struct lid_end *e, const struct lid_peer *p,
		     uint32_t value)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { .remote_addr = p->addr,
					       .rkey = p->rkey } };

	memcpy(e->buf + SIZE, &value, sizeof(value));
	lid_post(e, &wr, sizeof(value));
	lid_wait(e, "write");
}

int main(int argc, char **argv)
{
	struct lid_end e;
	struct lid_peer p;
	int fd = lid_socket(argc, argv);

	lid_end_open(&e, IBV_QPT_RC);
	p = lid_exchange(fd, &e);
	lid_connect(&e, &p);
	ctrl_put(fd, "ready");
	if (!ctrl_get(fd, 20000))
		die(EXIT_SETUP, "the other end has gone");
	for (uint32_t i = 1; i <= ROUNDS; i++) {
		if (argc > 2)
			write_to(&e, &p, i);
		wait_for(&e, i);
		if (argc <= 2)
			write_to(&e, &p, i);
	}
	ctrl_put(fd, "done");
	ctrl_get(fd, 20000);
	printf("LID %u, with LID %u: %u writes\n", e.port.lid, p.lid, ROUNDS);
	lid_end_close(&e);
	return 0;
}
