/*
 * netplugin.c - the life of a net plugin of a collectives library
 *
 *   netplugin -p PORT [-n MESSAGES] [-6] [HOST]
 *
 * libibverbs is opened by its name, and functions by the versions that plugins ask
 * for. Each device is a rail: its GID is chosen in sysfs by type and in the table by
 * family, a dma-buf is probed for, and a thread waits for its events. A connection has
 * two queue pairs on each rail. A message is written in parts over all of them, each
 * with immediate data that says how long it is; receives have no buffer, and all
 * completions of a rail come to one CQ, which is polled alone. What has been received
 * is flushed by a read of the receiver to itself. All is closed in another order than
 * it was made in, while the threads still wait.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RAILS 16
#define QPS 2
#define PART 40000 /* no multiple of an MTU */
#define WINDOW 8 /* messages that are under way */
#define TRAFFIC_CLASS 106

/* What is taken from the library; the rest of verbs.h is inline. */
#define FUNCTIONS(F)                                                           \
	F(ibv_get_device_list, "IBVERBS_1.1")                                  \
	F(ibv_free_device_list, "IBVERBS_1.1")                                 \
	F(ibv_get_device_name, "IBVERBS_1.1")                                  \
	F(ibv_open_device, "IBVERBS_1.1")                                      \
	F(ibv_close_device, "IBVERBS_1.1")                                     \
	F(ibv_get_async_event, "IBVERBS_1.1")                                  \
	F(ibv_ack_async_event, "IBVERBS_1.1")                                  \
	F(ibv_query_device, "IBVERBS_1.1")                                     \
	F(ibv_query_gid, "IBVERBS_1.1")                                        \
	F(ibv_alloc_pd, "IBVERBS_1.1")                                         \
	F(ibv_dealloc_pd, "IBVERBS_1.1")                                       \
	F(ibv_reg_mr_iova2, "IBVERBS_1.8")                                     \
	F(ibv_reg_dmabuf_mr, "IBVERBS_1.12")                                   \
	F(ibv_dereg_mr, "IBVERBS_1.1")                                         \
	F(ibv_create_cq, "IBVERBS_1.1")                                        \
	F(ibv_destroy_cq, "IBVERBS_1.1")                                       \
	F(ibv_create_qp, "IBVERBS_1.1")                                        \
	F(ibv_modify_qp, "IBVERBS_1.1")                                        \
	F(ibv_destroy_qp, "IBVERBS_1.1")                                       \
	F(ibv_event_type_str, "IBVERBS_1.1")

#define POINTER(name, version) __typeof__(name) *name;
static struct {
	FUNCTIONS(POINTER)
} v;

static void load(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	void *sym;

	if (!lib)
		die(EXIT_SETUP, "%s", dlerror());
#define LOAD(name, version)                                                    \
	sym = dlvsym(lib, #name, version);                                     \
	if (!sym)                                                              \
		die(EXIT_SETUP, "%s", dlerror());                              \
	memcpy(&v.name, &sym, sizeof(sym));
	FUNCTIONS(LOAD)
}

static struct rail {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[QPS], *flush;
	union ibv_gid gid;
	int gid_index;
	pthread_t thread;
} rail[RAILS];
static unsigned nrails, messages = 200;
static bool six;
static int dmabuf_errno;
static uint8_t mem[WINDOW][RAILS * QPS * PART], flushed[8];
static struct ibv_mr *flush_mr[RAILS];

/* RoCE v2, of the wanted family, and no link-local one. */
static bool is_wanted(const char *dev, int i, const union ibv_gid *gid)
{
	char path[256], type[32] = "";
	FILE *f;

	snprintf(path, sizeof(path),
		 "/sys/class/infiniband/%s/ports/1/gid_attrs/types/%d", dev, i);
	f = fopen(path, "r");
	if (!f) /* EINVAL: an empty entry */
		return false;
	if (!fgets(type, sizeof(type), f))
		type[0] = '\0';
	fclose(f);
	if (strcmp(type, "RoCE v2\n") != 0)
		return false;
	if (!memcmp(gid->raw, (uint8_t[12]){ [10] = 0xff, 0xff }, 12))
		return !six;
	return six && !(gid->raw[0] == 0xfe && gid->raw[1] == 0x80);
}

static void *watch(void *arg)
{
	struct ibv_async_event ev;

	/* A device that is closed meanwhile ends it, or nothing does. */
	while (!v.ibv_get_async_event(arg, &ev)) {
		if (ev.event_type != IBV_EVENT_COMM_EST)
			fprintf(stderr, "event %s\n",
				v.ibv_event_type_str(ev.event_type));
		v.ibv_ack_async_event(&ev);
	}
	return NULL;
}

static void open_rail(struct rail *r, struct ibv_device *dev)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			   IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING;
	struct ibv_port_attr port;

	r->ctx = v.ibv_open_device(dev);
	if (!r->ctx || ibv_query_port(r->ctx, 1, &port) ||
	    port.state != IBV_PORT_ACTIVE)
		die(EXIT_SETUP, "no port that is active");
	for (r->gid_index = 0; r->gid_index < port.gid_tbl_len; r->gid_index++)
		if (!v.ibv_query_gid(r->ctx, 1, r->gid_index, &r->gid) &&
		    is_wanted(v.ibv_get_device_name(dev), r->gid_index,
			      &r->gid))
			break;
	if (r->gid_index == port.gid_tbl_len)
		die(EXIT_SETUP, "no GID of RoCE v2 and IPv%d", six ? 6 : 4);
	r->pd = v.ibv_alloc_pd(r->ctx);
	/* What plugins probe for GPUs with: anything but these two means yes. */
	errno = 0;
	if (v.ibv_reg_dmabuf_mr(r->pd, 0, 0, 0, -1, 0))
		die(EXIT_DATA, "a dma-buf of no descriptor is registered");
	dmabuf_errno = errno;
	r->mr = v.ibv_reg_mr_iova2(r->pd, mem, sizeof(mem), (uintptr_t)mem,
				   (unsigned)access);
	flush_mr[r - rail] =
		v.ibv_reg_mr_iova2(r->pd, flushed, sizeof(flushed),
				   (uintptr_t)flushed, IBV_ACCESS_LOCAL_WRITE);
	r->cq = v.ibv_create_cq(r->ctx, 4 * WINDOW * QPS, NULL, NULL, 0);
	if (!r->pd || !r->mr || !flush_mr[r - rail] || !r->cq)
		die(EXIT_SETUP, "resources: %m");
	if (pthread_create(&r->thread, NULL, watch, r->ctx))
		die(EXIT_SETUP, "pthread_create");
}

static struct ibv_qp *new_qp(struct rail *r)
{
	struct ibv_qp_init_attr ia = { .send_cq = r->cq,
				       .recv_cq = r->cq,
				       .qp_type = IBV_QPT_RC,
				       .cap = { 2 * WINDOW, WINDOW, 1, 1, 0 } };
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qp_access_flags = IBV_ACCESS_REMOTE_WRITE |
						    IBV_ACCESS_REMOTE_READ };
	struct ibv_qp *qp = v.ibv_create_qp(r->pd, &ia);

	if (!qp || v.ibv_modify_qp(qp, &a,
				   IBV_QP_STATE | IBV_QP_PKEY_INDEX |
					   IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		die(EXIT_SETUP, "a queue pair: %m");
	return qp;
}

static void connect_qp(struct rail *r, struct ibv_qp *qp, uint32_t qpn,
		       const union ibv_gid *gid)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qpn,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = *gid,
				      .sgid_index = (uint8_t)r->gid_index,
				      .hop_limit = 255,
				      .traffic_class = TRAFFIC_CLASS } }
	};

	if (v.ibv_modify_qp(qp, &a,
			    IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU |
				    IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				    IBV_QP_MAX_DEST_RD_ATOMIC |
				    IBV_QP_MIN_RNR_TIMER))
		die(EXIT_SETUP, "RTR: %m");
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 14;
	a.retry_cnt = a.rnr_retry = 7;
	a.max_rd_atomic = 1;
	if (v.ibv_modify_qp(qp, &a,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
				    IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
				    IBV_QP_MAX_QP_RD_ATOMIC))
		die(EXIT_SETUP, "RTS: %m");
}

/* Where the other end's memory is, on each rail. */
static struct remote theirs[RAILS];

static void connect_all(int fd)
{
	for (unsigned i = 0; i < nrails; i++)
		for (unsigned q = 0; q < QPS; q++) {
			struct rail *r = &rail[i];
			struct remote ours;

			r->qp[q] = new_qp(r);
			ours = (struct remote){ .qpn = r->qp[q]->qp_num,
						.rkey = r->mr->rkey,
						.addr = (uintptr_t)mem,
						.gid = r->gid };
			remote_put(fd, &ours);
			remote_get(fd, &theirs[i]);
			connect_qp(r, r->qp[q], theirs[i].qpn, &theirs[i].gid);
		}
	for (unsigned i = 0; i < nrails; i++) {
		rail[i].flush = new_qp(&rail[i]);
		connect_qp(&rail[i], rail[i].flush, rail[i].flush->qp_num,
			   &rail[i].gid);
	}
}

static uint8_t byte_at(unsigned message, size_t i)
{
	return (uint8_t)((message * 131u + i * 2654435761u) >> 7);
}

static void post_recv(struct ibv_qp *qp)
{
	struct ibv_recv_wr wr = { 0 }, *bad;

	if (ibv_post_recv(qp, &wr, &bad))
		die(EXIT_DATA, "ibv_post_recv");
}

static void post_part(unsigned i, unsigned q, unsigned message)
{
	const size_t at = (size_t)(message % WINDOW) * sizeof(mem[0]) +
			  (size_t)(i * QPS + q) * PART;
	struct ibv_sge sge = { (uintptr_t)mem + at, PART, rail[i].mr->lkey };
	struct ibv_send_wr wr = { .wr_id = message,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .imm_data = htonl(PART + message),
				  .send_flags = IBV_SEND_SIGNALED,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;

	wr.wr.rdma.remote_addr = theirs[i].addr + at;
	wr.wr.rdma.rkey = theirs[i].rkey;
	if (ibv_post_send(rail[i].qp[q], &wr, &bad))
		die(EXIT_DATA, "ibv_post_send");
}

/* The next completion of any rail, and of which. */
static unsigned next_wc(struct ibv_wc *wc)
{
	const uint64_t end = now_ns() + 20000000000u;

	for (unsigned i = 0;; i = (i + 1) % nrails) {
		const int n = ibv_poll_cq(rail[i].cq, 1, wc);

		if (n > 0 && wc->status)
			die(EXIT_WC, "rail %u: status %d", i, wc->status);
		if (n > 0)
			return i;
		if (n < 0 || now_ns() > end)
			die(EXIT_DATA, "no completion for 20 s");
	}
}

static void send_all(int fd)
{
	unsigned *done = calloc(messages + WINDOW, sizeof(*done));
	const unsigned parts = nrails * QPS;
	struct ibv_wc wc;

	for (unsigned m = 0; done && m < messages + WINDOW; m++) {
		/* A slot is free when both ends are done with it. */
		if (m >= WINDOW && !ctrl_get(fd, 20000))
			die(EXIT_DATA, "the receiver has gone");
		while (m >= WINDOW && done[m - WINDOW] < parts) {
			next_wc(&wc);
			done[wc.wr_id]++;
		}
		if (m >= messages)
			continue;
		for (size_t i = 0; i < (size_t)parts * PART; i++)
			mem[m % WINDOW][i] = byte_at(m, i);
		for (unsigned p = 0; p < parts; p++)
			post_part(p / QPS, p % QPS, m);
	}
	free(done);
}

/* A read to itself: what has come before is in memory when it is done. */
static void flush(struct rail *r, unsigned *got)
{
	struct ibv_sge sge = { (uintptr_t)flushed, 1,
			       flush_mr[r - rail]->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ,
				  .send_flags = IBV_SEND_SIGNALED,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;
	struct ibv_wc wc;

	wr.wr.rdma.remote_addr = (uintptr_t)mem;
	wr.wr.rdma.rkey = r->mr->rkey;
	if (ibv_post_send(r->flush, &wr, &bad))
		die(EXIT_DATA, "flush");
	/* Others' completions come meanwhile. */
	for (next_wc(&wc); wc.opcode != IBV_WC_RDMA_READ; next_wc(&wc))
		got[ntohl(wc.imm_data) - PART]++;
}

static void receive_all(int fd)
{
	unsigned *got = calloc(messages, sizeof(*got));
	const unsigned parts = nrails * QPS;
	struct ibv_wc wc;

	for (unsigned m = 0; got && m < messages; m++) {
		while (got[m] < parts) {
			next_wc(&wc);
			if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM ||
			    wc.byte_len != PART ||
			    ntohl(wc.imm_data) - PART >= messages)
				die(EXIT_DATA, "opcode %d, %u bytes, %u",
				    wc.opcode, wc.byte_len, ntohl(wc.imm_data));
			got[ntohl(wc.imm_data) - PART]++;
		}
		for (unsigned i = 0; i < nrails; i++)
			flush(&rail[i], got);
		for (size_t i = 0; i < (size_t)parts * PART; i++)
			if (mem[m % WINDOW][i] != byte_at(m, i))
				die(EXIT_DATA, "message %u: byte %zu", m, i);
		for (unsigned i = 0; i < nrails; i++)
			for (unsigned q = 0; q < QPS; q++)
				post_recv(rail[i].qp[q]);
		ctrl_put(fd, "free");
	}
	free(got);
}

/* Queue pairs and what they use, of the last rail first, and memory in between. */
static void close_all(void)
{
	int err = 0;

	for (unsigned i = nrails; i--;) {
		struct rail *r = &rail[i];

		err |= v.ibv_destroy_qp(r->qp[1]);
		err |= v.ibv_dereg_mr(r->mr);
		err |= v.ibv_destroy_qp(r->flush);
		err |= v.ibv_destroy_qp(r->qp[0]);
		err |= v.ibv_destroy_cq(r->cq);
		err |= v.ibv_dereg_mr(flush_mr[i]);
		err |= v.ibv_dealloc_pd(r->pd);
		pthread_cancel(r->thread);
		pthread_join(r->thread, NULL);
	}
	for (unsigned i = 0; i < nrails; i++)
		err |= v.ibv_close_device(rail[i].ctx);
	if (err)
		die(EXIT_DATA, "closing: %d", err);
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	int opt, port = 0, fd, n;

	while ((opt = getopt(argc, argv, "p:n:6")) > 0)
		switch (opt) {
		case 'p':
			port = atoi(optarg);
			break;
		case 'n':
			messages = (unsigned)atoi(optarg);
			break;
		case '6':
			six = true;
			break;
		default:
			return EXIT_SETUP;
		}
	load();
	list = v.ibv_get_device_list(&n);
	for (nrails = 0; list && list[nrails] && nrails < RAILS; nrails++)
		open_rail(&rail[nrails], list[nrails]);
	if (!nrails)
		die(EXIT_SETUP, "no device");
	v.ibv_free_device_list(list);
	fd = ctrl_open(optind < argc ? argv[optind] : NULL, port, 20);
	connect_all(fd);
	if (optind == argc)
		for (unsigned i = 0; i < nrails * QPS * WINDOW; i++)
			post_recv(rail[i / QPS / WINDOW].qp[i % QPS]);
	ctrl_put(fd, "ready");
	if (!ctrl_get(fd, 20000))
		die(EXIT_SETUP, "the other end is not ready");
	if (optind < argc)
		send_all(fd);
	else
		receive_all(fd);
	ctrl_put(fd, "done");
	while (ctrl_get(fd, 500)) /* the other end may say more */
		;
	close_all();
	printf("%u messages of %u bytes right, %u rails, dma-buf %s\n",
	       messages, nrails * QPS * PART, nrails,
	       strerrorname_np(dmabuf_errno));
	return 0;
}
