/*
 * suspend.c - how long it takes to suspend and to resume a process
 *
 *   suspend COUNT TIMES
 *
 * Two processes with COUNT connected queue pairs between them. One of them sends
 * a message on each, waits until all are acknowledged, and is suspended and
 * resumed, TIMES times. Prints milliseconds: the median of suspending, of
 * resuming and of both together, and the most that these took.
 */
#include "../lib/qp_masks.h"
#include "measure.h"

#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <softhca/migrate.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT_MAX 4000

#define NEED(cond)                                                             \
	do {                                                                   \
		if (!(cond)) {                                                 \
			fprintf(stderr, "suspend.c:%d: %s: %s\n", __LINE__,    \
				#cond, strerror(errno));                       \
			exit(1);                                               \
		}                                                              \
	} while (0)

static unsigned count;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp[COUNT_MAX];
static char buf[64];

/* What the other end needs to know. */
static struct info {
	uint64_t addr;
	uint32_t rkey, qpn[COUNT_MAX];
} mine, theirs;

static void connect_qp(struct ibv_qp *q, uint32_t dest,
		       const union ibv_gid *gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags =
					    IBV_ACCESS_REMOTE_WRITE };

	NEED(!ibv_modify_qp(q, &attr, init_mask(IBV_QPT_RC)));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_4096,
		.dest_qp_num = dest,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh = { .dgid = *gid, .hop_limit = 64 } },
	};
	NEED(!ibv_modify_qp(q, &attr, rtr_mask(IBV_QPT_RC)));
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	NEED(!ibv_modify_qp(q, &attr, rts_mask(IBV_QPT_RC)));
}

static void exchange(int fd, const void *out, void *in, size_t size)
{
	NEED(write(fd, out, size) == (ssize_t)size);
	NEED(recv(fd, in, size, MSG_WAITALL) == (ssize_t)size);
}

static void begin(int fd)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { 4, 4, 1, 1, 0 } };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	union ibv_gid gid;

	NEED(list && list[0] && (ctx = ibv_open_device(list[0])));
	NEED(!ibv_query_gid(ctx, 1, 0, &gid));
	NEED(pd = ibv_alloc_pd(ctx));
	NEED(mr = ibv_reg_mr(pd, buf, sizeof(buf),
			     IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	NEED(cq = ibv_create_cq(ctx, 8192, NULL, NULL, 0));
	init.send_cq = init.recv_cq = cq;
	mine.addr = (uintptr_t)buf;
	mine.rkey = mr->rkey;
	for (unsigned i = 0; i < count; i++) {
		NEED(qp[i] = ibv_create_qp(pd, &init));
		mine.qpn[i] = qp[i]->qp_num;
	}
	exchange(fd, &mine, &theirs, sizeof(mine));
	for (unsigned i = 0; i < count; i++)
		connect_qp(qp[i], theirs.qpn[i], &gid);
	exchange(fd, &mine, &theirs, sizeof(mine));
}

static void write_all(void)
{
	struct ibv_sge sge = { (uintptr_t)buf, sizeof(buf), mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { theirs.addr, theirs.rkey },
	};
	struct ibv_send_wr *bad;
	struct ibv_wc wc;

	for (unsigned i = 0; i < count; i++)
		NEED(!ibv_post_send(qp[i], &wr, &bad));
	for (unsigned i = 0; i < count;) {
		int n = ibv_poll_cq(cq, 1, &wc);

		NEED(n >= 0 && (!n || !wc.status));
		i += (unsigned)n;
	}
}

static double median(float *ms, unsigned n)
{
	qsort(ms, n, sizeof(*ms), compare);
	return (double)ms[n / 2];
}

static void measure(unsigned times)
{
	float *away = calloc(times, sizeof(*away));
	float *back = calloc(times, sizeof(*back));
	float *both = calloc(times, sizeof(*both));

	NEED(away && back && both);
	for (unsigned i = 0; i < times; i++) {
		double start, mid, end;
		int seat;

		write_all();
		start = now();
		errno = softhca_suspend_seated(&seat);
		NEED(!errno);
		mid = now();
		errno = softhca_resume();
		NEED(!errno);
		end = now();
		away[i] = (float)((mid - start) * 1e3);
		back[i] = (float)((end - mid) * 1e3);
		both[i] = (float)((end - start) * 1e3);
	}
	printf("%.2f %.2f ", median(away, times), median(back, times));
	printf("%.2f ", median(both, times));
	printf("%.2f\n", (double)both[times - 1]);
}

int main(int argc, char **argv)
{
	unsigned times;
	int fd[2];
	char c;

	count = argc == 3 ? (unsigned)atoi(argv[1]) : 0;
	times = argc == 3 ? (unsigned)atoi(argv[2]) : 0;
	if (!count || count > COUNT_MAX || !times) {
		fprintf(stderr, "usage: suspend COUNT TIMES\n");
		return 2;
	}
	NEED(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
	if (!fork()) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(fd[1]);
		begin(fd[0]);
		return read(fd[0], &c, 1) !=
		       0; /* until the other one is gone */
	}
	close(fd[0]);
	begin(fd[1]);
	measure(times);
	return 0;
}
