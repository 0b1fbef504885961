/*
 * instructions.c - what a small SEND costs both ends, in instructions
 *
 *	valgrind --tool=callgrind --collect-atstart=no instructions [ring|wire]
 *	instructions time [ring|wire]
 *
 * Two QPs of one process send each other messages through the verbs, as a
 * program does, but over a link that only keeps packets for a moment: its own
 * instructions are not counted, nor are there system calls. With "ring" they go
 * by shared memory, with "wire" by UDP port 4791, and what that takes in this
 * process is counted as well. Time passes by a
 * fixed step each time that somebody looks at the clock, and there is no thread
 * that makes progress, so the counts are the same in every run. They go into
 * one file of callgrind's for each part of a message, and are per message when
 * divided by what is printed; bench.py does that. With "time" the clock is the
 * real one, and nanoseconds are printed.
 */
#include "../lib/qp_masks.h"
#include "verbs/verbs.h"

#include <dlfcn.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_TOGGLE_COLLECT (void)0
#define CALLGRIND_DUMP_STATS_AT(name) (void)(name)
#endif

#define MESSAGES 960 /* of each measurement */
#define LIST_MAX 16
#define BYTES 64
#define STEP_NS 50

/* What is counted: the program's calls, in the order of a message's life. */
enum part { POST, RECEIVE, REFILL, ACK, EMPTY, PARTS };

static const char *const part_name[PARTS] = {
	[POST] = "post_send",   [RECEIVE] = "poll_receive",
	[REFILL] = "post_recv", [ACK] = "poll_sent",
	[EMPTY] = "poll_empty",
};

struct kind {
	const char *name;
	uint32_t size;
	unsigned flags; /* of each send */
	int list; /* messages posted, polled and received at a time */
	bool answered; /* by the next: the acknowledgement goes with that */
};

static const struct kind kinds[] = {
	{ "inline_8", 8, IBV_SEND_INLINE, 1, false },
	{ "answer_8", 8, IBV_SEND_INLINE, 1, true },
	{ "sge_8", 8, 0, 1, false },
	{ "sge_64_list_16", 64, 0, 16, false },
};

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t buf[LIST_MAX * BYTES];
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct end ends[2];

/* Counting: of what is called between two of these, while it is wanted. */

static bool warm; /* all is as it will be */
static bool counting;
static unsigned long readings; /* of the clock, among what is counted */
static unsigned long toggles; /* which cost something themselves */

static inline void toggle(void)
{
	if (!counting)
		return;
	toggles++;
	CALLGRIND_TOGGLE_COLLECT;
}

/* The clock */

static bool real_time;
static uint64_t virtual_ns = 1000000000;

static uint64_t real_ns(void)
{
	struct timespec ts;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* The libraries find this one before the C library's. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
	static int (*real)(clockid_t, struct timespec *);

	if (real_time) {
		if (!real)
			real = (int (*)(clockid_t, struct timespec *))dlsym(
				RTLD_NEXT, "clock_gettime");
		return real(id, ts);
	}
	toggle();
	readings += counting;
	virtual_ns += STEP_NS;
	ts->tv_sec = (time_t)(virtual_ns / 1000000000);
	ts->tv_nsec = (long)(virtual_ns % 1000000000);
	toggle();
	return 0;
}

/* The link: packets in flight, copied as any link would copy them. With "ring"
 * it stands where UDP would, and nothing comes by it. */

#define KEPT 64

static struct {
	struct link link;
	struct link *udp; /* what stands in its place otherwise */
	unsigned head, tail;
	struct kept {
		struct roce_rx rx;
		uint8_t payload[BYTES];
	} kept[KEPT];
} loop;

static void keep(struct kept *k, const struct roce_batch *b,
		 const struct roce_pkt *p)
{
	uint8_t *to = k->payload;

	memset(&k->rx, 0, sizeof(k->rx));
	k->rx.h = p->h;
	for (unsigned i = 0; i < p->niov; i++) {
		const struct iovec *v = &b->data.iov[p->iov + i];

		memcpy(to, v->iov_base, v->iov_len);
		to += v->iov_len;
	}
	k->rx.payload = k->payload;
	k->rx.len = p->payload;
	k->rx.host = true;
	k->rx.path_hash = roce_path_hash(&p->path->sgid, &p->path->dgid);
}

static size_t loop_send(struct link *l, struct link_way *w,
			const struct roce_batch *b, size_t from, size_t to,
			int *err)
{
	(void)l;
	(void)w;
	(void)err;
	toggle();
	for (size_t i = from; i < to; i++) {
		if (loop.tail - loop.head == KEPT)
			errx(1, "too many packets in flight");
		keep(&loop.kept[loop.tail++ % KEPT], b, &b->pkt[i]);
	}
	toggle();
	return to;
}

static int loop_poll(struct link *l, unsigned budget, link_rx_fn *fn, void *arg)
{
	unsigned end = loop.tail;
	int n = 0;

	(void)l;
	toggle();
	for (; loop.head != end && (unsigned)n < budget; n++) {
		const struct roce_rx *rx = &loop.kept[loop.head % KEPT].rx;

		toggle();
		fn(arg, rx);
		toggle();
		loop.head++;
	}
	toggle();
	return n;
}

static void loop_wait(struct link *l)
{
	(void)l;
}

static int loop_fd(struct link *l)
{
	(void)l;
	return loop.udp->ops->fd(loop.udp);
}

static const struct link_ops loop_ops = {
	.poll = loop_poll,
	.wait = loop_wait,
	.fd = loop_fd,
	.send = loop_send,
};

static void link_replace(struct engine *e, bool wire)
{
	if (!wire) {
		loop.link.ops = &loop_ops;
		loop.udp = e->link[0];
		/* Polled, as long as it is not beside a ring. */
		loop.link.users = !e->choice;
		e->link[0] = &loop.link;
	}
	/* There seems to be a thread that has stepped back: all of its work is
	 * done by the polls. */
	atomic_store(&e->started, true);
	atomic_store(&e->poller.back, true);
}

/* Two ends */

static void need(bool ok, const char *what)
{
	if (!ok)
		err(1, "%s", what);
}

static void end_create(struct end *e)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 128,
			 .max_recv_wr = 128,
			 .max_send_sge = 1,
			 .max_recv_sge = 1,
			 .max_inline_data = BYTES },
	};

	e->cq = ibv_create_cq(ctx, 256, NULL, NULL, 0);
	need(e->cq, "ibv_create_cq");
	init.send_cq = init.recv_cq = e->cq;
	e->qp = ibv_create_qp(pd, &init);
	need(e->qp, "ibv_create_qp");
	e->mr = ibv_reg_mr(pd, e->buf, sizeof(e->buf), IBV_ACCESS_LOCAL_WRITE);
	need(e->mr, "ibv_reg_mr");
}

static void end_connect(struct end *e, uint32_t dest)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = dest,
		.max_dest_rd_atomic = 1,
		.max_rd_atomic = 1,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = { .is_global = 1,
			     .port_num = 1,
			     .grh.hop_limit = 1 },
	};

	if (ibv_query_gid(ctx, 1, 0, &attr.ah_attr.grh.dgid))
		errx(1, "no GID");
	need(!ibv_modify_qp(e->qp, &attr, init_mask(IBV_QPT_RC)), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	need(!ibv_modify_qp(e->qp, &attr, rtr_mask(IBV_QPT_RC)), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	need(!ibv_modify_qp(e->qp, &attr, rts_mask(IBV_QPT_RC)), "RTS");
}

static void post_recv(struct end *e, int n)
{
	struct ibv_recv_wr wr[LIST_MAX], *bad;
	struct ibv_sge sge[LIST_MAX];
	int err;

	for (int i = 0; i < n; i++) {
		sge[i] =
			(struct ibv_sge){ (uintptr_t)e->buf + (size_t)i * BYTES,
					  BYTES, e->mr->lkey };
		wr[i] = (struct ibv_recv_wr){ .next = i + 1 < n ? &wr[i + 1] :
								  NULL,
					      .sg_list = &sge[i],
					      .num_sge = 1 };
	}
	toggle();
	err = ibv_post_recv(e->qp, wr, &bad);
	toggle();
	if (err)
		errx(1, "ibv_post_recv: %s", strerror(err));
}

/* The last of a list is signaled. */
static void post_send(struct end *e, const struct kind *k)
{
	struct ibv_send_wr wr[LIST_MAX] = { 0 }, *bad;
	struct ibv_sge sge[LIST_MAX];
	int err;

	for (int i = 0; i < k->list; i++) {
		bool last = i + 1 == k->list;

		sge[i] =
			(struct ibv_sge){ (uintptr_t)e->buf + (size_t)i * BYTES,
					  k->size, e->mr->lkey };
		wr[i].next = last ? NULL : &wr[i + 1];
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = 1;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].send_flags = k->flags | (last ? IBV_SEND_SIGNALED : 0);
	}
	toggle();
	err = ibv_post_send(e->qp, wr, &bad);
	toggle();
	if (err)
		errx(1, "ibv_post_send: %s", strerror(err));
}

/* One call has to find n completions, once rings are known to be there; or two,
 * where an ACK has not waited. */
static void poll_cq(struct end *e, int n)
{
	struct ibv_wc wc[LIST_MAX];
	int got = 0, tries = warm ? n : 1000;

	do {
		int more;

		toggle();
		more = ibv_poll_cq(e->cq, LIST_MAX, wc);
		toggle();
		got += more;
		while (more-- > 0)
			if (wc[more].status != IBV_WC_SUCCESS)
				errx(1, "%s",
				     ibv_wc_status_str(wc[more].status));
	} while (got < n && --tries > 0);
	if (got != n)
		errx(1, "%d completions instead of %d", got, n);
}

/*
 * One message, which is the answer to the one before: its ACK waits for that
 * (engine/delayed_ack.c), and what is received completes both.
 */
static struct end *asks = &ends[0], *answers = &ends[1];
static bool asked; /* and has no acknowledgement yet */

static void answer(const struct kind *k, int counted)
{
	struct end *a = asks, *b = answers;

	counting = counted == POST;
	post_send(a, k);
	counting = counted == RECEIVE;
	poll_cq(b, 1 + asked);
	counting = counted == REFILL;
	post_recv(b, 1);
	counting = false;
	asked = true;
	asks = b;
	answers = a;
}

/* The last one is not answered. */
static void answered(void)
{
	if (!asked)
		return;
	poll_cq(asks, 0);
	poll_cq(asks, 0);
	poll_cq(answers, 1);
	asked = false;
}

/*
 * One message (or a list of them). It is not answered: where an ACK waits for
 * that all the same, it does until the program has polled twice in vain.
 */
static void message(const struct kind *k, int counted)
{
	struct end *a = &ends[0], *b = &ends[1];

	if (k->answered) {
		answer(k, counted);
		return;
	}

	counting = counted == POST;
	post_send(a, k);
	counting = counted == RECEIVE;
	poll_cq(b, k->list);
	counting = counted == REFILL;
	post_recv(b, k->list);
	counting = false;
	if (atomic_load(&to_ctx(ctx)->engine->acks)) {
		poll_cq(b, 0);
		poll_cq(b, 0);
	}
	counting = counted == ACK;
	poll_cq(a, 1);
	counting = counted == EMPTY;
	poll_cq(a, 0);
	counting = false;
}

static void count(const struct kind *k)
{
	for (int part = 0; part < PARTS; part++) {
		const int lists = MESSAGES / k->list;
		char name[80];

		readings = toggles = 0;
		for (int i = 0; i < lists; i++)
			message(k, part);
		snprintf(name, sizeof(name), "%s %s %d %lu %lu", k->name,
			 part_name[part], part == EMPTY ? lists : MESSAGES,
			 readings, toggles);
		CALLGRIND_DUMP_STATS_AT(name);
	}
	answered();
}

/* What counting costs: nothing is counted, as often. */
static void calibrate(void)
{
	char name[80];

	counting = true;
	toggles = 0;
	for (int i = 0; i < MESSAGES; i++) {
		toggle();
		toggle();
	}
	counting = false;
	snprintf(name, sizeof(name), "none none %d 0 %lu", MESSAGES, toggles);
	CALLGRIND_DUMP_STATS_AT(name);
}

static void measure(const struct kind *k)
{
	const int n = 400000;
	uint64_t from = real_ns();

	for (int i = 0; i < n / k->list; i++)
		message(k, PARTS);
	answered();
	printf("%s %.0f ns\n", k->name, (double)(real_ns() - from) / n);
}

static void *second_thread(void *arg)
{
	for (;;)
		pause();
	return arg;
}

int main(int argc, char **argv)
{
	const bool timed = argc > 1 && !strcmp(argv[1], "time");
	const bool ring = argc > 1 && !strcmp(argv[argc - 1], "ring");
	const bool wire = argc > 1 && !strcmp(argv[argc - 1], "wire");
	struct ibv_device **list;
	pthread_t thread;

	if (!ring) /* the link that is replaced */
		setenv("SOFTHCA_SAME_HOST", "udp", 1);
	if (wire)
		setenv("SOFTHCA_WIRE", "1", 1);
	list = ibv_get_device_list(NULL);
	if (!list || !list[0])
		errx(1, "no device");
	ctx = ibv_open_device(list[0]);
	need(ctx, "ibv_open_device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(ctx);
	need(pd, "ibv_alloc_pd");
	link_replace(to_ctx(ctx)->engine, wire);
	if (ring && !to_ctx(ctx)->engine->choice)
		errx(1, "no shared memory: softhca doctor says why");
	/* Locks of a process with one thread cost less. */
	need(!pthread_create(&thread, NULL, second_thread, NULL), "a thread");
	for (int i = 0; i < 2; i++)
		end_create(&ends[i]);
	for (int i = 0; i < 2; i++) {
		end_connect(&ends[i], ends[!i].qp->qp_num);
		post_recv(&ends[i], LIST_MAX);
	}
	for (int i = 0; i < 1000; i++)
		message(&kinds[0], PARTS);
	warm = true;
	real_time = timed;
	if (!timed)
		calibrate();
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (timed)
			measure(&kinds[i]);
		else
			count(&kinds[i]);
	}
	/* Nothing is closed: what runs then is of the ordinary link. */
	fflush(stdout);
	_exit(0);
}
