/*
 * rsocket_long.c - a UD packet longer than a datagram rsocket's longest
 *
 * rsocket_long PORT: asks the datagram rsocket at 127.0.0.1:PORT for its queue
 * pair over UDP, as its protocol has it, and sends that 3000 bytes.
 */
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define CHECK(expr)                                                            \
	do {                                                                   \
		if (!(expr)) {                                                 \
			perror(#expr);                                         \
			exit(EXIT_FAILURE);                                    \
		}                                                              \
	} while (0)

static uint32_t ask_qpn(const struct sockaddr_in *to)
{
	/* Tag, IPv4, data, length of the header, our QP, our address. */
	static const uint8_t ask[] = { 0x55, 0x55, 0x55, 0x55, 4,   0,
				       16,   0,    0,    0,    0,   1,
				       127,  0,    0,    1,    'h', 'i' };
	struct timeval tv = { .tv_sec = 10 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	uint8_t answer[64];

	CHECK(fd >= 0);
	CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)));
	CHECK(sendto(fd, ask, sizeof(ask), 0, (const void *)to, sizeof(*to)) ==
	      sizeof(ask));
	CHECK(recv(fd, answer, sizeof(answer), 0) == 16);
	close(fd);
	return (uint32_t)answer[9] << 16 | (uint32_t)answer[10] << 8 |
	       answer[11];
}

static uint8_t gid_index(struct ibv_context *ctx, const union ibv_gid *want)
{
	union ibv_gid gid;
	uint8_t i;

	for (i = 0; i < 100; i++)
		if (!ibv_query_gid(ctx, 1, i, &gid) &&
		    !memcmp(&gid, want, sizeof(gid)))
			return i;
	fprintf(stderr, "no such GID\n");
	exit(EXIT_FAILURE);
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET }, me;
	union ibv_gid gid = {
		.raw = { [10] = 0xff, [11] = 0xff, 127, 0, 0, 1 }
	};
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = 1,
			 .max_recv_wr = 1,
			 .max_send_sge = 1,
			 .max_recv_sge = 1 },
	};
	struct ibv_ah_attr ah_attr = { .grh = { .dgid = gid, .hop_limit = 64 },
				       .is_global = 1,
				       .port_num = 1 };
	struct ibv_send_wr wr = { .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	static uint8_t data[3000];
	struct rdma_cm_id *id;
	struct ibv_sge sge;
	struct ibv_mr *mr;
	struct ibv_wc wc;

	CHECK(argc == 2);
	to.sin_port = htons((uint16_t)atoi(argv[1]));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	me = to;
	me.sin_port = 0;
	wr.wr.ud.remote_qpn = ask_qpn(&to);
	wr.wr.ud.remote_qkey = RDMA_UDP_QKEY;
	CHECK(!rdma_create_id(NULL, &id, NULL, RDMA_PS_UDP));
	CHECK(!rdma_resolve_addr(id, (struct sockaddr *)&me,
				 (struct sockaddr *)&to, 1000));
	CHECK(!rdma_create_qp(id, NULL, &init));
	ah_attr.grh.sgid_index = gid_index(id->verbs, &gid);
	CHECK((wr.wr.ud.ah = ibv_create_ah(id->pd, &ah_attr)));
	CHECK((mr = ibv_reg_mr(id->pd, data, sizeof(data), 0)));
	sge = (struct ibv_sge){ .addr = (uintptr_t)data,
				.length = sizeof(data),
				.lkey = mr->lkey };
	wr.sg_list = &sge;
	CHECK(!ibv_post_send(id->qp, &wr, &bad));
	CHECK(rdma_get_send_comp(id, &wc) == 1);
	CHECK(wc.status == IBV_WC_SUCCESS);
	ibv_dereg_mr(mr);
	ibv_destroy_ah(wr.wr.ud.ah);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	return 0;
}
