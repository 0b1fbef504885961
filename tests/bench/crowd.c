/*
 * crowd.c - what it costs to be one of many processes on a host
 *
 *   softhca run -- crowd PROCESSES
 *
 * Processes start one after the other; each opens the first device, makes a
 * queue pair that is connected with itself, and stays. Prints, of the last ones,
 * the medians of the microseconds that opening and the queue pair have taken, of
 * the processor's time for both, and of the KiB that are a process's own; then the
 * milliseconds that all took to end, once they were told to.
 */
#include "../lib/qp_masks.h"
#include "measure.h"

#include <infiniband/verbs.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 1000, LAST = 9, WAIT_S = 30 };

/* What a process says of itself. */
struct entry {
	float open_us, qp_us, cpu_us, own_kib;
};

static float cpu_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (float)((double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3);
}

/* Memory that it shares with nobody. */
static float own_kib(void)
{
	FILE *f = fopen("/proc/self/smaps_rollup", "re");
	long total = 0, n;
	char line[256];

	if (!f)
		fail("/proc/self/smaps_rollup");
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "Private_Clean: %ld kB", &n) == 1 ||
		    sscanf(line, "Private_Dirty: %ld kB", &n) == 1)
			total += n;
	fclose(f);
	return (float)total;
}

static void need(const void *p, const char *what)
{
	if (!p)
		fail(what);
}

static void connect_itself(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.timeout = 14,
		.ah_attr = { .is_global = 1, .port_num = 1 },
	};

	if (ibv_query_gid(qp->context, 1, 0, &attr.ah_attr.grh.dgid))
		fail("ibv_query_gid");
	if (ibv_modify_qp(qp, &attr, init_mask(IBV_QPT_RC)))
		fail("INIT");
	attr.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attr, rtr_mask(IBV_QPT_RC)))
		fail("RTR");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(qp, &attr, rts_mask(IBV_QPT_RC)))
		fail("RTS");
}

static struct entry enter(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC,
					 .cap = { 16, 16, 1, 1, 0 } };
	const float own = own_kib(), cpu = cpu_us();
	const double begin = now();
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx;
	struct ibv_qp *qp;
	struct entry e;
	struct ibv_pd *pd;
	double opened;

	need(list && list[0] ? list : NULL, "no device");
	ctx = ibv_open_device(list[0]);
	need(ctx, "ibv_open_device");
	ibv_free_device_list(list);
	opened = now();
	pd = ibv_alloc_pd(ctx);
	need(pd, "ibv_alloc_pd");
	init.send_cq = init.recv_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	need(init.send_cq, "ibv_create_cq");
	qp = ibv_create_qp(pd, &init);
	need(qp, "ibv_create_qp");
	connect_itself(qp);
	e.open_us = (float)((opened - begin) * 1e6);
	e.qp_us = (float)((now() - opened) * 1e6);
	e.cpu_us = cpu_us() - cpu;
	e.own_kib = own_kib() - own;
	return e;
}

/* One of them: says what it has found, and ends when go has. */
static _Noreturn void member(int said, int go)
{
	struct entry e;
	char c;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	e = enter();
	if (write(said, &e, sizeof(e)) != sizeof(e))
		fail("write");
	while (read(go, &c, 1) > 0)
		;
	exit(0);
}

/* Of the field at an offset, in the last n entries. */
static float median(const struct entry *e, int n, size_t offset)
{
	const int some = n < LAST ? n : LAST;
	float v[LAST];

	for (int i = 0; i < some; i++)
		memcpy(&v[i], (const char *)&e[n - 1 - i] + offset, sizeof(*v));
	qsort(v, (size_t)some, sizeof(*v), compare);
	return v[some / 2];
}

int main(int argc, char **argv)
{
	static struct entry entries[MOST];
	const int n = argc > 1 ? atoi(argv[1]) : 0;
	int said[2], go[2];
	double end;

	if (n < 1 || n > MOST) {
		fprintf(stderr, "crowd: see the head of crowd.c\n");
		return 2;
	}
	if (pipe(said) || pipe(go))
		fail("pipe");
	for (int i = 0; i < n; i++) {
		const pid_t pid = fork();

		if (pid < 0)
			fail("fork");
		if (!pid) {
			close(said[0]);
			close(go[1]);
			member(said[1], go[0]);
		}
		alarm(WAIT_S);
		if (read(said[0], &entries[i], sizeof(*entries)) !=
		    sizeof(*entries))
			fail("read");
	}
	alarm(0);
	printf("open_us=%.0f qp_us=%.0f cpu_us=%.0f own_kib=%.0f",
	       (double)median(entries, n, offsetof(struct entry, open_us)),
	       (double)median(entries, n, offsetof(struct entry, qp_us)),
	       (double)median(entries, n, offsetof(struct entry, cpu_us)),
	       (double)median(entries, n, offsetof(struct entry, own_kib)));
	fflush(stdout);
	end = now();
	close(go[1]);
	close(go[0]);
	while (wait(NULL) > 0)
		;
	printf(" end_ms=%.0f\n", (now() - end) * 1e3);
	return 0;
}
