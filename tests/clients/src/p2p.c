/*
 * p2p.c - in the manner of a P2P engine: small writes, its own acknowledgements
 *
 *   p2p -p PORT [-t rc|uc] [-n WRITES] [HOST]
 *
 * The client writes chunks of a few hundred bytes into slots of the target's ring, with
 * immediate data that numbers them, over QPs on all rails: they arrive out of order,
 * and over UC some never do. The target puts each where its number belongs, and
 * acknowledges by a write with immediate of its own on the rail it came by; the client
 * has so many slots as credit, and sends again what is not acknowledged in time. So a
 * chunk may come twice: it is the same, and counts once. In the end the target has all
 * of them, each checked by its bytes.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RAILS 8
#define SLOTS 512 /* credit, on all rails */
#define SLOT 512
#define RECVS 2048
#define AGAIN_NS 20000000u

static struct rail {
	struct dev dev;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct remote theirs;
	unsigned sends; /* since the last that was signaled, */
	unsigned unpolled; /* and signaled ones that are not polled */
} rail[RAILS];
static unsigned nrails, writes = 20000;
static enum ibv_qp_type type = IBV_QPT_RC;
static uint8_t ring[SLOTS][SLOT] __attribute__((aligned(4096)));

static uint32_t length_of(uint32_t n)
{
	return 8 + n * 37 % (SLOT - 8);
}

static void make(uint8_t *to, uint32_t n)
{
	for (uint32_t i = 0; i < length_of(n); i++)
		to[i] = (uint8_t)(n * 7 + i * 13 + (n >> 8));
}

static void post_recv(struct rail *r)
{
	struct ibv_recv_wr wr = { 0 }, *bad;

	if (ibv_post_recv(r->qp, &wr, &bad))
		die(EXIT_DATA, "ibv_post_recv");
}

static void to_rts(struct rail *r)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = r->theirs.qpn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = r->theirs.gid,
				      .hop_limit = 64 } },
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
		   IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

	if (type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (ibv_modify_qp(r->qp, &a, mask))
		die(EXIT_SETUP, "RTR: %m");
	a.qp_state = IBV_QPS_RTS;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			IBV_QP_MAX_QP_RD_ATOMIC;
	if (ibv_modify_qp(r->qp, &a, mask))
		die(EXIT_SETUP, "RTS: %m");
}

static void connect_all(int fd)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	for (; list && list[nrails] && nrails < RAILS; nrails++) {
		struct rail *r = &rail[nrails];
		struct ibv_qp_init_attr ia = {
			.qp_type = type, .cap = { SLOTS, RECVS, 1, 1, 0 }
		};
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
					 .port_num = 1,
					 .qp_access_flags =
						 IBV_ACCESS_REMOTE_WRITE };
		struct remote ours;

		dev_open(&r->dev, ibv_get_device_name(list[nrails]), 0);
		r->cq = ibv_create_cq(r->dev.ctx, RECVS + SLOTS, NULL, NULL, 0);
		r->mr = ibv_reg_mr(r->dev.pd, ring, sizeof(ring),
				   IBV_ACCESS_LOCAL_WRITE |
					   IBV_ACCESS_REMOTE_WRITE);
		ia.send_cq = ia.recv_cq = r->cq;
		r->qp = r->cq && r->mr ? ibv_create_qp(r->dev.pd, &ia) : NULL;
		if (!r->qp ||
		    ibv_modify_qp(r->qp, &a,
				  IBV_QP_STATE | IBV_QP_PKEY_INDEX |
					  IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
			die(EXIT_SETUP, "a queue pair: %m");
		ours = (struct remote){ .qpn = r->qp->qp_num,
					.rkey = r->mr->rkey,
					.addr = (uintptr_t)ring,
					.gid = r->dev.gid };
		for (unsigned i = 0; i < RECVS; i++)
			post_recv(r);
		remote_put(fd, &ours);
		remote_get(fd, &r->theirs);
		to_rts(r);
	}
	if (!nrails)
		die(EXIT_SETUP, "no device");
	ibv_free_device_list(list);
	ctrl_put(fd, "ready");
	if (!ctrl_get(fd, 20000))
		die(EXIT_SETUP, "the other end is not ready");
}

/* What has come by a rail: its number; -1: nothing. */
static int64_t come(struct rail *r)
{
	struct ibv_wc wc;

	while (ibv_poll_cq(r->cq, 1, &wc) > 0) {
		if (wc.status)
			die(EXIT_WC, "status %d", wc.status);
		if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			post_recv(r);
			return ntohl(wc.imm_data);
		}
		r->unpolled--;
	}
	return -1;
}

/* A slot has one rail, where order is kept: what is sent again comes before what
 * the slot is used for next. */
static struct rail *rail_of(uint32_t n)
{
	return &rail[n % SLOTS % nrails];
}

/* Some bytes, or none, with a number. False: the queue is full. */
static bool put(struct rail *r, uint32_t n, uint32_t len)
{
	const size_t at = (size_t)(n % SLOTS) * SLOT;
	struct ibv_sge sge = { (uintptr_t)ring + at, len, r->mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .imm_data = htonl(n),
				  .sg_list = &sge,
				  .num_sge = len > 0 },
			   *bad;

	if (r->unpolled == SLOTS / 16 - 1)
		return false;
	if (++r->sends % 16 == 0) {
		wr.send_flags = IBV_SEND_SIGNALED;
		r->unpolled++;
	}
	wr.wr.rdma.remote_addr = r->theirs.addr + at;
	wr.wr.rdma.rkey = r->theirs.rkey;
	if (ibv_post_send(r->qp, &wr, &bad))
		die(EXIT_DATA, "ibv_post_send: %m");
	return true;
}

static void target(int fd)
{
	bool *seen = calloc(writes, sizeof(*seen));
	const uint64_t end = now_ns() + 60000000000u;
	uint8_t want[SLOT];
	unsigned got = 0;
	int64_t n;

	while (seen && !ctrl_get(fd, 0)) {
		for (unsigned i = 0; i < nrails; i++) {
			struct rail *r = &rail[i];

			for (int k = 0; k < 64 && (n = come(r)) >= 0; k++) {
				if (n >= writes)
					die(EXIT_DATA, "number %u",
					    (unsigned)n);
				make(want, (uint32_t)n);
				/* Once acknowledged, its slot is another's. */
				if (!seen[n] &&
				    memcmp(ring[n % SLOTS], want,
					   length_of((uint32_t)n)) != 0)
					die(EXIT_DATA, "chunk %u is wrong",
					    (unsigned)n);
				got += !seen[n];
				seen[n] = true;
				while (!put(r, (uint32_t)n, 0))
					if (come(r) >= 0)
						die(EXIT_DATA, "no room");
			}
		}
		if (now_ns() > end)
			die(EXIT_DATA, "%u of %u chunks", got, writes);
	}
	if (got != writes)
		die(EXIT_DATA, "%u of %u chunks", got, writes);
	free(seen);
}

static unsigned send_all(void)
{
	static struct slot {
		uint32_t n;
		bool used;
		uint64_t due;
	} slot[SLOTS];
	const uint64_t end = now_ns() + 60000000000u;
	unsigned next = 0, acked = 0, again = 0;
	int64_t n;

	while (acked < writes) {
		struct slot *s = &slot[next % SLOTS];

		if (next < writes && !s->used &&
		    put(rail_of(next), next,
			(make(ring[next % SLOTS], next), length_of(next)))) {
			*s = (struct slot){ next++, true, now_ns() + AGAIN_NS };
		}
		for (unsigned i = 0; i < nrails; i++)
			while ((n = come(&rail[i])) >= 0) {
				s = &slot[n % SLOTS];
				if (!s->used || s->n != n)
					continue;
				s->used = false;
				acked++;
			}
		for (s = slot; type == IBV_QPT_UC && s < slot + SLOTS; s++)
			if (s->used && now_ns() > s->due &&
			    put(rail_of(s->n), s->n, length_of(s->n))) {
				s->due = now_ns() + AGAIN_NS;
				again++;
			}
		if (now_ns() > end)
			die(EXIT_DATA, "%u of %u are acknowledged", acked,
			    writes);
	}
	return again;
}

int main(int argc, char **argv)
{
	unsigned again;
	int opt, port = 0, fd;

	while ((opt = getopt(argc, argv, "p:n:t:")) > 0)
		switch (opt) {
		case 'p':
			port = atoi(optarg);
			break;
		case 'n':
			writes = (unsigned)atoi(optarg);
			break;
		case 't':
			type = strcmp(optarg, "uc") ? IBV_QPT_RC : IBV_QPT_UC;
			break;
		default:
			return EXIT_SETUP;
		}
	fd = ctrl_open(optind < argc ? argv[optind] : NULL, port, 20);
	connect_all(fd);
	if (optind == argc) {
		target(fd);
		return 0;
	}
	again = send_all();
	ctrl_put(fd, "done");
	printf("%u writes right, %u sent again\n", writes, again);
	return 0;
}
