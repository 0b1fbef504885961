/*
 * device.c - opens a device, and shows what a program gets from it
 *
 *   gcc -g -o device examples/device.c -libverbs
 *   softhca run -- ./device
 */
#include "example.h"

#include <arpa/inet.h>

#define SIZE 4096

static void show_device(struct ibv_context *ctx)
{
	struct ibv_device_attr attr;

	check(ibv_query_device(ctx, &attr), "ibv_query_device");
	printf("device %s: %d QPs, %d CQEs in a CQ, %d SGEs in a request\n",
	       ibv_get_device_name(ctx->device), attr.max_qp, attr.max_cqe,
	       attr.max_sge);
}

/* A GID is an address. Over Ethernet it is an IP address of an interface. */
static void show_port(struct ibv_context *ctx)
{
	char text[INET6_ADDRSTRLEN];
	struct ibv_gid_entry gid;
	struct ibv_port_attr port;

	check(ibv_query_port(ctx, 1, &port), "ibv_query_port");
	printf("port 1: %s, MTU %d\n", ibv_port_state_str(port.state),
	       128 << port.active_mtu);
	for (uint32_t i = 0; i < (uint32_t)port.gid_tbl_len; i++) {
		int err = ibv_query_gid_ex(ctx, 1, i, &gid, 0);

		if (err == ENODATA)
			continue; /* the entry is empty */
		check(err, "ibv_query_gid_ex");
		inet_ntop(AF_INET6, gid.gid.raw, text, sizeof(text));
		printf("GID %u: %s, %s\n", i, text,
		       gid.gid_type == IBV_GID_TYPE_ROCE_V2 ? "RoCEv2" :
							      "another type");
		break; /* the others look like it */
	}
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char *buf;

	if (!list || !list[0])
		die("no RDMA device (softhca run -- PROGRAM?)", ENODEV);
	ctx = made(ibv_open_device(list[0]), "ibv_open_device");
	ibv_free_device_list(list); /* the context does without it */
	show_device(ctx);
	show_port(ctx);

	/* Objects that work with each other belong to one domain. */
	pd = made(ibv_alloc_pd(ctx), "ibv_alloc_pd");

	/* The device may use memory that was registered, and only in the ways
	 * named here. Reading it is always allowed to ourselves. */
	buf = made(malloc(SIZE), "malloc");
	mr = made(ibv_reg_mr(pd, buf, SIZE,
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE),
		  "ibv_reg_mr");
	printf("memory: %zu bytes, lkey for us, rkey for the peer\n",
	       mr->length);

	/* Where it will be written that work requests are done. */
	cq = made(ibv_create_cq(ctx, 16, NULL, NULL, 0), "ibv_create_cq");
	printf("completion queue: room for %d\n", cq->cqe);

	/* In the reverse order: nothing is freed that something still uses. */
	check(ibv_destroy_cq(cq), "ibv_destroy_cq");
	check(ibv_dereg_mr(mr), "ibv_dereg_mr");
	free(buf);
	check(ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	check(ibv_close_device(ctx), "ibv_close_device");
	return 0;
}
