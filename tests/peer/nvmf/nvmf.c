/*
 * nvmf.c - a controller or a host of NVMe over Fabrics, for tests: main(), and connections
 */
#include "nvmf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

uint64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

void die(const char *fmt, ...)
{
	va_list ap;

	fflush(stdout);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

uint8_t *pages(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("mmap %zu: %m", size);
	return p;
}

bool link_open(struct link *l, struct rdma_cm_id *id,
	       struct ibv_comp_channel *channel, void *context, size_t size,
	       uint32_t sends, uint32_t receives)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = sends,
			 .max_recv_wr = receives,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = SQE_SIZE },
	};
	/* A READ by iWARP writes here as a peer does. */
	const unsigned access = IBV_ACCESS_LOCAL_WRITE |
				IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND;

	*l = (struct link){ .id = id, .size = size, .memory = pages(size) };
	l->pd = ibv_alloc_pd(id->verbs);
	if (!l->pd)
		return false;
	l->cq = ibv_create_cq(id->verbs, (int)(sends + receives), context,
			      channel, 0);
	if (!l->cq || ibv_req_notify_cq(l->cq, 0))
		return false;
	attr.send_cq = attr.recv_cq = l->cq;
	if (rdma_create_qp(id, l->pd, &attr))
		return false;
	l->mr = ibv_reg_mr(l->pd, l->memory, size, access);
	return l->mr;
}

void link_close(struct link *l)
{
	if (!l->id)
		return;
	if (l->id->qp) {
		/* Else a synchronous identifier waits until TIMEWAIT is over. */
		if (!l->down)
			rdma_disconnect(l->id);
		rdma_destroy_qp(l->id);
	}
	if (l->mr)
		ibv_dereg_mr(l->mr);
	if (l->cq)
		ibv_destroy_cq(l->cq);
	rdma_destroy_id(l->id);
	if (l->pd)
		ibv_dealloc_pd(l->pd);
	munmap(l->memory, l->size);
	*l = (struct link){ 0 };
}

void link_receive(struct link *l, uint64_t wr_id, uint8_t *to, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)to, len, l->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id,
				  .sg_list = &sge,
				  .num_sge = 1 };
	struct ibv_recv_wr *bad;
	const int rc = ibv_post_recv(l->id->qp, &wr, &bad);

	if (rc)
		die("ibv_post_recv: %s", strerror(rc));
}

bool link_send(struct link *l, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	const int rc = ibv_post_send(l->id->qp, wr, &bad);

	if (rc)
		fprintf(stderr, "ibv_post_send: %s\n", strerror(rc));
	return !rc;
}

int main(int argc, char **argv)
{
	setlinebuf(stdout);
	if (argc > 1 && !strcmp(argv[1], "controller"))
		return controller_main(argc - 1, argv + 1);
	if (argc > 1 && !strcmp(argv[1], "host"))
		return host_main(argc - 1, argv + 1);
	die("usage: nvmf controller -a ADDRESS -f FILE [OPTION...]\n"
	    "       nvmf host -a ADDRESS [OPTION...] CASE...");
}
