/*
 * iwarp_stream.c - the streams of a connection, for other implementations to
 * read (test_tshark_iwarp.py)
 *
 *	iwarp_stream OPTIONS
 *
 * OPTIONS: any of c (CRC), p (peer to peer). Prints what either end sends, in its
 * order, as lines "END HEX", END being 0 for the initiator: the two frames, a
 * send, a solicited one, one that invalidates, writes and reads of several
 * FPDUs, and a Terminate.
 */
#include "iwarp_pair.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void print(struct iw_pair *p, int from, uint8_t *bytes, size_t len)
{
	(void)p;
	printf("%d ", from);
	for (size_t i = 0; i < len; i++)
		printf("%02x", bytes[i]);
	putchar('\n');
}

static struct ibv_send_wr request(struct iw_end *e, struct ibv_sge *sge,
				  enum ibv_wr_opcode op, uint32_t len)
{
	struct ibv_send_wr wr = { .sg_list = sge, .num_sge = 1, .opcode = op };

	*sge = (struct ibv_sge){ (uintptr_t)e->q->node->mem, len,
				 e->q->node->lkey };
	wr.wr.rdma.remote_addr = (uintptr_t)e->peer->q->node->mem;
	wr.wr.rdma.rkey = e->peer->q->node->rkey;
	return wr;
}

static void post(struct iw_end *e, const struct ibv_send_wr *wr)
{
	int err = iwarp_post_send(e->qp, wr);

	assert(!err);
	(void)err;
	iw_run(e->pair);
}

int main(int argc, char **argv)
{
	const char *options = argc > 1 ? argv[1] : "";
	struct iw_opts o = iw_default;
	struct iw_pair *p;
	struct iw_end *a, *b;
	struct ibv_send_wr wr;
	struct ibv_sge sge;

	o.offer[0].crc = o.offer[1].crc = strchr(options, 'c') != NULL;
	o.offer[0].enhanced = o.offer[0].peer_to_peer =
		strchr(options, 'p') != NULL;
	o.whole = true;
	o.tap = print;
	p = iw_pair_new(1, &o);
	iw_run(p);
	a = &p->end[0];
	b = &p->end[1];
	for (int i = 0; i < 3; i++) {
		struct ibv_sge to = { (uintptr_t)b->q->node->mem, 4096,
				      b->q->node->lkey };
		struct ibv_recv_wr rr = { .sg_list = &to, .num_sge = 1 };

		qp_post_recv(iwarp_qp_base(b->qp), &rr);
	}
	wr = request(a, &sge, IBV_WR_SEND, 333);
	post(a, &wr);
	wr.send_flags = IBV_SEND_SOLICITED;
	post(a, &wr);
	wr = request(a, &sge, IBV_WR_RDMA_WRITE, 4000);
	post(a, &wr);
	wr = request(a, &sge, IBV_WR_RDMA_READ, 3000);
	post(a, &wr);
	wr = request(b, &sge, IBV_WR_RDMA_READ, 77);
	post(b, &wr);
	wr = request(b, &sge, IBV_WR_RDMA_WRITE, 0);
	post(b, &wr);
	/* A region's key cannot be invalidated. */
	wr = request(a, &sge, IBV_WR_SEND_WITH_INV, 5);
	wr.invalidate_rkey = b->q->node->rkey;
	post(a, &wr);
	iw_pair_free(p);
	return 0;
}
