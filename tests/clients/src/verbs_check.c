/*
 * verbs_check.c - moves messages between two processes and checks every byte
 *
 *   verbs_check [options]          one end
 *   verbs_check [options] HOST     the other, which sends; same options
 *
 * Message i of queue pair q has a length and content that follow from (seed,
 * q, i), so the receiver works out what it must have got; comparing all of it
 * finds lost, doubled, reordered and torn messages. Messages go in batches: the
 * client posts one, waits for its completions and reports it on the control
 * channel; the server answers when it has everything, or, where messages may
 * be lost (UC, UD), when nothing has arrived for a while.
 *
 * With "all" the operation, too, follows from it, and so does the number of
 * SGEs; each queue pair then has slots that are written to, others that are
 * received into, others that are read, and a counter for its atomics.
 *
 * The last line of each end says what happened. Exit status: 0; 1 wrong data;
 * 2 could not start; 3 a completion with an error (printed).
 */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum op { SEND, SEND_IMM, WRITE, WRITE_IMM, READ, FAA, CAS, MIX, ALL, OPS };

static const char *const op_names[OPS] = { "send",      "send_imm", "write",
					   "write_imm", "read",     "faa",
					   "cas",       "mix",      "all" };

/* Slots of a queue pair, by what they are for; all the same but with "all". */
enum area { WRITTEN, RECEIVED, FETCHED, AREAS };

static struct {
	const char *host, *dev;
	enum ibv_qp_type type;
	enum op op;
	uint32_t min, max;
	unsigned n, depth, rx_depth, qps, sges, signal_every, victims, quiet_ms;
	uint64_t seed;
	double seconds;
	int gid_index, port, wait_s, mtu;
	bool events, use_inline, srq, lossy;
	uint8_t timeout, retry;
} opt = {
	.type = IBV_QPT_RC,
	.op = SEND,
	.min = 1,
	.max = 4096,
	.n = 1000,
	.depth = 64,
	.qps = 1,
	.sges = 1,
	.signal_every = 1,
	.quiet_ms = 60,
	.seed = 1,
	.port = 18515,
	.wait_s = 20,
	.timeout = 14,
	.retry = 7,
};

struct chan {
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	struct remote far;
	uint32_t psn;
	uint32_t next_tx, next_rx; /* message numbers */
	char *buf; /* depth slots, and the target of the peer */
	uint64_t *counter; /* target of atomics */
	uint64_t value; /* all: of the peer's counter, or ours, in the end */
	uint64_t looked; /* all: what atomics have shown of it */
	unsigned outstanding;
};

static struct dev dev;
static struct chan *chans;
static struct ibv_comp_channel *comp;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr, *bait_mr;
static char *mem;
/* What victims may write to: some of what a storm sends is as good as a peer's,
 * and carried out. */
static char bait[65536];
static size_t slot_size, mem_size, result_off;
static uint32_t grh; /* bytes before the data of a UD receive */
static char *scratch;
static uint32_t max_inline;
static int ctrl;
static unsigned cq_events;

static uint64_t received, received_bytes, lost, torn;

/* ------------------------------------------------------------- content */

static uint64_t mix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static uint64_t key_of(unsigned q, uint32_t i)
{
	return mix64(opt.seed * 1000003 + ((uint64_t)q << 32) + i);
}

static uint32_t len_of(unsigned q, uint32_t i)
{
	uint64_t x = mix64(key_of(q, i));
	uint32_t span = opt.max - opt.min + 1;

	if (opt.op == ALL) /* as many short ones as long ones */
		span = (span >> (x >> 32) % 16) + 1;
	x = opt.min + x % span;
	return x > opt.max ? opt.max : (uint32_t)x;
}

static enum op op_of(unsigned q, uint32_t i)
{
	if (opt.op != ALL)
		return opt.op;
	return (enum op)(mix64(key_of(q, i) + 1) % MIX);
}

static unsigned sges_of(unsigned q, uint32_t i)
{
	if (opt.op != ALL)
		return opt.sges;
	return 1 + (unsigned)(mix64(key_of(q, i) + 2) % opt.sges);
}

static bool is_atomic(enum op op)
{
	return op == FAA || op == CAS;
}

/* all: whether the value that the atomic compares with is another one. */
static bool misses(unsigned q, uint32_t i)
{
	return mix64(key_of(q, i) + 3) % 4 == 0;
}

/* all: a counter after message i, if it was this before. */
static uint64_t counted(unsigned q, uint32_t i, uint64_t value)
{
	switch (op_of(q, i)) {
	case FAA:
		return value + key_of(q, i);
	case CAS:
		return misses(q, i) ? value : key_of(q, i);
	default:
		return value;
	}
}

/* A message of 8 bytes and more begins with its number, so that a receiver
 * that missed some finds its place. */
static void fill(char *p, unsigned q, uint32_t i, uint32_t len)
{
	uint64_t k = key_of(q, i);

	for (uint32_t at = 0; at < len; at += 8) {
		k = k * 6364136223846793005u + 1442695040888963407u;
		memcpy(p + at, &k, len - at < 8 ? len - at : 8);
	}
	if (len >= 8)
		memcpy(p, &i, sizeof(i));
}

static bool right(const char *p, unsigned q, uint32_t i, uint32_t len)
{
	fill(scratch, q, i, len);
	return !memcmp(p, scratch, len);
}

static void wrong(const char *what, unsigned q, uint32_t i)
{
	torn++;
	if (torn <= 5)
		fprintf(stderr, "qp %u message %u: %s\n", q, i, what);
}

/* -------------------------------------------------------------- set-up */

static bool takes_recv(enum op op)
{
	return op == SEND || op == SEND_IMM || op == WRITE_IMM || op == MIX ||
	       op == ALL;
}

static bool needs_recv(void)
{
	return takes_recv(opt.op);
}

static struct ibv_qp *make_qp(unsigned depth, bool use_srq)
{
	struct ibv_qp_init_attr ia = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = use_srq ? srq : NULL,
		.cap = { .max_send_wr = depth,
			 .max_recv_wr = use_srq ? 0 : depth,
			 .max_send_sge = opt.sges,
			 .max_recv_sge = opt.sges,
			 .max_inline_data = opt.use_inline ? 64 : 0 },
		.qp_type = opt.type,
	};
	struct ibv_qp *qp = ibv_create_qp(dev.pd, &ia);

	if (!qp)
		die(EXIT_SETUP, "ibv_create_qp: %m");
	max_inline = ia.cap.max_inline_data;
	return qp;
}

/* Cuts [addr, addr + len) into so many pieces at places that fit nothing. */
static int cut(struct ibv_sge *sge, unsigned sges, char *addr, uint32_t len)
{
	uint32_t at = 0;
	int n = 0;

	for (unsigned k = 0; k < sges; k++) {
		uint32_t part = k + 1 == sges ? len - at : (len - at) / 3 | 1;

		if (part > len - at)
			part = len - at;
		if (!part) /* some hardware reads 0 as 2 GiB */
			break;
		sge[n++] = (struct ibv_sge){ .addr = (uintptr_t)(addr + at),
					     .length = part,
					     .lkey = mr->lkey };
		at += part;
	}
	return n;
}

/* Where the slot for message i is, from the first one. */
static size_t slot_offset(enum area area, uint32_t i)
{
	unsigned n = opt.op == ALL ? area * opt.depth : 0;

	return slot_size * (n + i % opt.depth);
}

static char *slot_in(struct chan *c, enum area area, uint32_t i)
{
	return c->buf + slot_offset(area, i);
}

/* Where the requester has a message. */
static char *slot(struct chan *c, uint32_t i)
{
	return slot_in(c, WRITTEN, i);
}

/* Where atomics leave what they fetched, and MIX its small sends. */
static uint64_t *result(unsigned q, uint32_t i)
{
	return (uint64_t *)(mem + result_off) + q * opt.depth + i % opt.depth;
}

static void post_recv(unsigned q, uint32_t s)
{
	struct chan *c = &chans[q];
	struct ibv_sge sge[32];
	struct ibv_recv_wr wr = { .wr_id = (uint64_t)q << 32 | s,
				  .sg_list = sge },
			   *bad;
	int rc;

	/* A write with immediate brings its data elsewhere. */
	if (opt.op == MIX)
		wr.num_sge = cut(sge, opt.sges, (char *)result(q, s), 8);
	else if (opt.op != WRITE_IMM)
		wr.num_sge = cut(sge, sges_of(q, s), slot_in(c, RECEIVED, s),
				 (uint32_t)slot_size);
	rc = srq ? ibv_post_srq_recv(srq, &wr, &bad) :
		   ibv_post_recv(c->qp, &wr, &bad);
	if (rc)
		die(EXIT_SETUP, "post_recv: %s", strerror(rc));
}

static void set_up(void)
{
	struct conn_opts o = {
		.timeout = opt.timeout,
		.retry_cnt = opt.retry,
		.rnr_retry = 7,
		.rd_atomic = 16,
		.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
			  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		.qkey = 0x11111111,
	};
	unsigned total = opt.qps + opt.victims;
	unsigned wrs = opt.depth * (opt.op == MIX ? 2 : 1);
	unsigned slots = opt.depth * (opt.op == ALL ? AREAS : 1);

	if (opt.type == IBV_QPT_UC)
		o.access &= ~(unsigned)IBV_ACCESS_REMOTE_ATOMIC;
	dev_open(&dev, opt.dev, opt.gid_index);
	if (dev.attr.max_qp_rd_atom < o.rd_atomic)
		o.rd_atomic = (uint8_t)dev.attr.max_qp_rd_atom;
	if (dev.attr.max_qp_init_rd_atom < o.rd_atomic)
		o.rd_atomic = (uint8_t)dev.attr.max_qp_init_rd_atom;
	o.mtu = dev.port.active_mtu;
	for (unsigned m = IBV_MTU_256; m <= IBV_MTU_4096; m++)
		if (opt.mtu == 128 << m)
			o.mtu = m;

	grh = opt.type == IBV_QPT_UD ? 40 : 0;
	if (opt.type == IBV_QPT_UD && opt.max > 128u << o.mtu)
		opt.max = 128u << o.mtu;
	/* A UD message may not be larger than what both ends carry. */
	slot_size = (opt.max + grh + 63) & ~63ul;
	result_off = slot_size * slots * opt.qps;
	/* Slots, then atomics' results, then the counters. */
	mem_size = result_off + 8ul * opt.depth * opt.qps + 8ul * total + 4096;
	if (posix_memalign((void **)&mem, 4096, mem_size))
		die(EXIT_SETUP, "no memory");
	memset(mem, 0, mem_size);
	scratch = malloc(slot_size + 64);
	chans = calloc(total, sizeof(*chans));
	if (!scratch || !chans)
		die(EXIT_SETUP, "no memory");

	mr = ibv_reg_mr(dev.pd, mem, mem_size,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				IBV_ACCESS_REMOTE_READ |
				IBV_ACCESS_REMOTE_ATOMIC);
	if (!mr)
		die(EXIT_SETUP, "ibv_reg_mr: %m");
	if (opt.victims) {
		bait_mr = ibv_reg_mr(dev.pd, bait, sizeof(bait),
				     IBV_ACCESS_LOCAL_WRITE |
					     IBV_ACCESS_REMOTE_WRITE |
					     IBV_ACCESS_REMOTE_READ |
					     IBV_ACCESS_REMOTE_ATOMIC);
		if (!bait_mr)
			die(EXIT_SETUP, "ibv_reg_mr: %m");
	}
	if (opt.events) {
		comp = ibv_create_comp_channel(dev.ctx);
		if (!comp)
			die(EXIT_SETUP, "ibv_create_comp_channel: %m");
	}
	cq = ibv_create_cq(dev.ctx, (int)(2 * wrs * total), NULL, comp, 0);
	if (!cq)
		die(EXIT_SETUP, "ibv_create_cq: %m");
	if (comp && ibv_req_notify_cq(cq, 0))
		die(EXIT_SETUP, "ibv_req_notify_cq");
	if (opt.srq) {
		struct ibv_srq_init_attr sa = {
			.attr = { .max_wr = opt.depth * opt.qps,
				  .max_sge = opt.sges },
		};

		srq = ibv_create_srq(dev.pd, &sa);
		if (!srq)
			die(EXIT_SETUP, "ibv_create_srq: %m");
	}

	ctrl = ctrl_open(opt.host, opt.port, opt.wait_s);
	for (unsigned q = 0; q < total; q++) {
		struct chan *c = &chans[q];
		bool victim = q >= opt.qps;
		struct remote mine = {
			.psn = (uint32_t)mix64(opt.seed + q + !opt.host) &
			       0xffffff,
			.rkey = mr->rkey,
			.gid = dev.gid,
			.mtu = o.mtu,
		};
		struct conn_opts both = o;

		c->qp = make_qp(wrs, srq && !victim);
		c->psn = mine.psn;
		if (!victim) {
			c->buf = mem + slot_size * slots * q;
			mine.addr = (uintptr_t)c->buf;
		} else {
			mine.addr = (uintptr_t)bait;
			mine.rkey = bait_mr->rkey;
		}
		c->counter = (uint64_t *)(mem + result_off +
					  8ul * opt.depth * opt.qps) +
			     q;
		mine.qpn = c->qp->qp_num;
		qp_to_init(c->qp, &o);
		if (!victim && !opt.host && needs_recv())
			for (uint32_t s = 0; s < opt.rx_depth; s++)
				post_recv(q, s);
		remote_put(ctrl, &mine);
		remote_get(ctrl, &c->far);
		if (c->far.mtu < both.mtu)
			both.mtu = c->far.mtu;
		qp_connect(&dev, c->qp, mine.psn, &c->far, &both);
		if (opt.type == IBV_QPT_UD) {
			c->ah = ah_create(&dev, &c->far);
			if (opt.max > 128u << both.mtu)
				opt.max = 128u << both.mtu;
		}
		if (victim)
			printf("victim qpn=%u psn=%u rkey=%u addr=%" PRIu64
			       "\n",
			       mine.qpn, c->far.psn, mine.rkey,
			       (uint64_t)mine.addr);
	}
	/* What reads fetch. */
	if ((opt.op == READ || opt.op == ALL) && !opt.host)
		for (unsigned q = 0; q < opt.qps; q++)
			for (uint32_t i = 0; i < opt.depth; i++)
				fill(slot_in(&chans[q], FETCHED, i), q, i,
				     (uint32_t)slot_size);
	ctrl_put(ctrl, "ready");
	if (!ctrl_get(ctrl, 60000))
		die(EXIT_SETUP, "the other end did not get ready");
	printf("ready\n");
	fflush(stdout);
}

/* --------------------------------------------------------- completions */

/* Up to 16 completions; sleeps up to wait_ms when told to use events. */
static int poll_cq(struct ibv_wc *wc, int wait_ms)
{
	int n = ibv_poll_cq(cq, 16, wc);
	struct pollfd p;
	struct ibv_cq *which;
	void *arg;

	if (n < 0)
		die(EXIT_SETUP, "ibv_poll_cq: %d", n);
	if (n || !comp)
		return n;
	p = (struct pollfd){ .fd = comp->fd, .events = POLLIN };
	if (poll(&p, 1, wait_ms) != 1)
		return 0;
	if (ibv_get_cq_event(comp, &which, &arg))
		die(EXIT_SETUP, "ibv_get_cq_event: %m");
	if (++cq_events == 100) {
		ibv_ack_cq_events(cq, cq_events);
		cq_events = 0;
	}
	if (ibv_req_notify_cq(cq, 0))
		die(EXIT_SETUP, "ibv_req_notify_cq");
	n = ibv_poll_cq(cq, 16, wc);
	return n < 0 ? 0 : n;
}

static void bad_wc(const struct ibv_wc *wc, uint64_t since)
{
	printf("wc error: status %d (%s) opcode %d after %" PRIu64 " ms\n",
	       wc->status, ibv_wc_status_str(wc->status), wc->opcode,
	       (now_ns() - since) / 1000000);
	fflush(stdout);
	exit(EXIT_WC);
}

/* -------------------------------------------------------------- server */

/* The next message, up to end, that takes a receive. */
static uint32_t next_rx(unsigned q, uint32_t end)
{
	struct chan *c = &chans[q];

	while (c->next_rx < end && !takes_recv(op_of(q, c->next_rx)))
		c->next_rx++;
	return c->next_rx;
}

static void check_recv(const struct ibv_wc *wc)
{
	unsigned q = (unsigned)(wc->wr_id >> 32), s = (uint32_t)wc->wr_id;
	uint32_t first = grh, i, len, head[2];
	struct chan *c;
	const char *p;
	enum op op;

	if (srq) /* the receive says nothing of the queue pair */
		for (q = 0; q < opt.qps; q++)
			if (chans[q].qp->qp_num == wc->qp_num)
				break;
	if (q >= opt.qps) {
		wrong("completion of an unknown queue pair", q, s);
		return;
	}
	c = &chans[q];
	p = slot_in(&chans[wc->wr_id >> 32], RECEIVED, s) + first;
	i = next_rx(q, UINT32_MAX);
	op = op_of(q, i);
	len = wc->byte_len - first;

	if (opt.type == IBV_QPT_UD && !(wc->wc_flags & IBV_WC_GRH))
		wrong("no GRH", q, i);
	if (op == SEND_IMM || op == WRITE_IMM) {
		if (!(wc->wc_flags & IBV_WC_WITH_IMM))
			wrong("no immediate data", q, i);
		i = ntohl(wc->imm_data);
	} else if (opt.type != IBV_QPT_RC && len >= 8) {
		memcpy(head, p, 8);
		i = head[0];
	}
	if (op == WRITE_IMM) {
		p = slot(c, i);
		len = wc->byte_len;
		if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM)
			wrong("opcode", q, i);
	} else if (wc->opcode != IBV_WC_RECV) {
		wrong("opcode", q, i);
	}
	if (op == MIX) { /* a number: which slot was written before it */
		uint64_t w = *result((unsigned)(wc->wr_id >> 32), s);

		if (len != sizeof(w) || w != i)
			wrong("send says another number", q, i);
		p = slot(c, i);
		len = len_of(q, i);
	} else if (opt.type == IBV_QPT_RC && i != c->next_rx) {
		wrong("out of order", q, i);
	} else if (i < c->next_rx) {
		wrong("twice, or out of order", q, i);
	}
	if (len != len_of(q, i))
		wrong("length", q, i);
	else if (!right(p, q, i, len))
		wrong("content", q, i);
	if (i >= c->next_rx) {
		lost += i - c->next_rx;
		c->next_rx = i + 1;
	}
	received++;
	received_bytes += len;
	post_recv((unsigned)(wc->wr_id >> 32), s);
}

static void check_written(uint32_t first, uint32_t count)
{
	for (unsigned q = 0; q < opt.qps; q++) {
		for (uint32_t i = first; i < first + count; i++) {
			uint32_t len = len_of(q, i);
			uint64_t end = now_ns() + 1000000000u;
			bool ok;

			if (op_of(q, i) != WRITE)
				continue;
			ok = right(slot(&chans[q], i), q, i, len);
			/* UC: the writer does not know when data arrives. */
			while (!ok && opt.type == IBV_QPT_UC && !opt.lossy &&
			       now_ns() < end) {
				usleep(500);
				ok = right(slot(&chans[q], i), q, i, len);
			}
			if (ok)
				received++, received_bytes += len;
			else if (opt.type == IBV_QPT_UC && opt.lossy)
				lost++;
			else
				wrong("content written", q, i);
		}
	}
}

static void check_counters(uint32_t first, uint32_t count)
{
	for (unsigned q = 0; q < opt.qps; q++) {
		struct chan *c = &chans[q];

		for (uint32_t i = first; i < first + count; i++)
			c->value = counted(q, i, c->value);
		if (*c->counter != c->value)
			wrong("the counter after these atomics", q, first);
	}
}

/* All of a batch has arrived. */
static void check_batch(uint32_t first, uint32_t count)
{
	if (opt.op == WRITE || opt.op == ALL)
		check_written(first, count);
	if (opt.op == ALL)
		check_counters(first, count);
	ctrl_put(ctrl, "ok");
}

static void server(void)
{
	uint64_t last = now_ns();
	uint32_t first = 0, count = 0;
	unsigned polls = 0;
	bool told = false;

	for (;;) {
		struct ibv_wc wc[16];
		const char *line;
		int n = poll_cq(wc, 5);

		for (int k = 0; k < n; k++) {
			if (wc[k].status)
				bad_wc(&wc[k], last);
			check_recv(&wc[k]);
			last = now_ns();
		}
		if (told && needs_recv()) {
			uint64_t missing = 0;

			for (unsigned q = 0; q < opt.qps; q++)
				missing += first + count -
					   next_rx(q, first + count);
			if (!missing ||
			    (opt.type != IBV_QPT_RC &&
			     now_ns() - last > opt.quiet_ms * 1000000ull)) {
				lost += missing;
				for (unsigned q = 0; q < opt.qps; q++)
					chans[q].next_rx = first + count;
				told = false;
				check_batch(first, count);
			} else if (now_ns() - last > 30000000000u) {
				die(EXIT_DATA, "%" PRIu64 " messages missing",
				    missing);
			}
		}
		/* A control channel costs a system call: look now and then. */
		if (n || told || (!comp && ++polls % 64))
			continue;
		line = ctrl_get(ctrl, 0);
		if (line && sscanf(line, "batch %u %u", &first, &count) == 2) {
			last = now_ns();
			told = needs_recv();
			if (!told)
				check_batch(first, count);
		} else if (line && !strcmp(line, "done")) {
			break;
		} else if (!line && errno != ETIMEDOUT) {
			die(EXIT_WC, "the other end has gone");
		}
	}
	if (is_atomic(opt.op)) {
		uint64_t n;
		const char *line = ctrl_get(ctrl, 60000);

		if (!line || sscanf(line, "total %" SCNu64, &n) != 1)
			die(EXIT_SETUP, "no total");
		if (*chans[0].counter != n)
			wrong("the counter after all atomics", 0, 0);
		received = n;
	}
}

/* -------------------------------------------------------------- client */

/* FAA or CAS of 8 bytes. */
static void aim_atomic(struct ibv_send_wr *wr, unsigned q, uint32_t i,
		       enum op op)
{
	/* But with "all" all queue pairs work on the first one's counter. */
	struct chan *c = &chans[opt.op == ALL ? q : 0];

	wr->opcode = op == FAA ? IBV_WR_ATOMIC_FETCH_AND_ADD :
				 IBV_WR_ATOMIC_CMP_AND_SWP;
	wr->wr.atomic.remote_addr =
		c->far.addr + (uint64_t)((char *)c->counter - c->buf);
	wr->wr.atomic.rkey = c->far.rkey;
	wr->wr.atomic.compare_add = op == FAA ? 1 : i;
	wr->wr.atomic.swap = i + 1ull;
	if (opt.op != ALL)
		return;
	wr->wr.atomic.compare_add = op == FAA    ? key_of(q, i) :
				    misses(q, i) ? ~c->value :
						   c->value;
	wr->wr.atomic.swap = key_of(q, i);
	c->value = counted(q, i, c->value);
}

static void post(unsigned q, uint32_t i, bool last, enum op op)
{
	struct chan *c = &chans[q];
	uint32_t len = op == MIX ? 8 : len_of(q, i);
	char *p = slot(c, i);
	struct ibv_sge sge[32];
	struct ibv_send_wr wr = {
		.wr_id = (uint64_t)q << 32 | i,
		.sg_list = sge,
		.send_flags = last || i % opt.signal_every == 0 ?
				      IBV_SEND_SIGNALED :
				      0,
		.imm_data = htonl(i),
	}, *bad;
	int rc;

	wr.wr.rdma.rkey = c->far.rkey;
	wr.wr.rdma.remote_addr =
		c->far.addr + slot_offset(op == READ ? FETCHED : WRITTEN, i);
	switch (op) {
	case SEND:
	case SEND_IMM:
		fill(p, q, i, len);
		wr.opcode = op == SEND ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM;
		if (opt.type == IBV_QPT_UD) {
			wr.wr.ud.ah = c->ah;
			wr.wr.ud.remote_qpn = c->far.qpn;
			wr.wr.ud.remote_qkey = 0x11111111;
		}
		break;
	case WRITE:
	case WRITE_IMM:
		fill(p, q, i, len);
		wr.opcode = op == WRITE ? IBV_WR_RDMA_WRITE :
					  IBV_WR_RDMA_WRITE_WITH_IMM;
		break;
	case READ:
		memset(p, 0, len);
		wr.opcode = IBV_WR_RDMA_READ;
		break;
	case MIX: /* the send after a write: its number, from the result area */
		*result(q, i) = i;
		p = (char *)result(q, i);
		wr.opcode = IBV_WR_SEND;
		break;
	case FAA:
	case CAS:
		len = 8;
		p = (char *)result(q, i);
		*result(q, i) = UINT64_MAX;
		aim_atomic(&wr, q, i, op);
		break;
	case ALL:
	case OPS:
		break;
	}
	wr.num_sge = cut(sge, is_atomic(op) ? 1 : sges_of(q, i), p, len);
	if (opt.use_inline && len <= max_inline &&
	    wr.opcode != IBV_WR_RDMA_READ && !is_atomic(op))
		wr.send_flags |= IBV_SEND_INLINE;
	rc = ibv_post_send(c->qp, &wr, &bad);
	if (rc)
		die(EXIT_SETUP, "post_send: %s", strerror(rc));
}

/* Waits until every queue pair has completed message `until` - 1. */
static void wait_sent(uint32_t until, unsigned per_qp_left)
{
	uint64_t start = now_ns(), last = start;
	unsigned left = 0;

	for (unsigned q = 0; q < opt.qps; q++)
		chans[q].outstanding = per_qp_left;
	left = opt.qps;
	while (left) {
		struct ibv_wc wc[16];
		int n = poll_cq(wc, 100);

		for (int k = 0; k < n; k++) {
			unsigned q = (unsigned)(wc[k].wr_id >> 32);

			if (wc[k].status)
				bad_wc(&wc[k], start);
			if ((uint32_t)wc[k].wr_id == until - 1 &&
			    !--chans[q].outstanding)
				left--;
			last = now_ns();
		}
		if (!n && now_ns() - last > 60000000000u)
			die(EXIT_SETUP, "no completion for 60 s");
	}
}

static void check_results(uint32_t first, uint32_t count)
{
	for (unsigned q = 0; q < opt.qps; q++) {
		for (uint32_t i = first; i < first + count; i++) {
			uint64_t r = *result(q, i);
			enum op op = op_of(q, i);

			if (opt.op == ALL && is_atomic(op)) {
				if (r != chans[q].looked)
					wrong("result of an atomic", q, i);
				chans[q].looked =
					counted(q, i, chans[q].looked);
			}
			if (opt.op == CAS && r != i)
				wrong("compare-and-swap result", q, i);
			/* One requester: the sum is exact, and a queue pair
			 * sees the counter grow. */
			if (opt.op == FAA && opt.qps == 1 && r != i)
				wrong("fetch-and-add result", q, i);
			if (opt.op == FAA && i > first &&
			    r <= *result(q, i - 1))
				wrong("counter did not grow", q, i);
			if (op == READ) {
				fill(scratch, q, i % opt.depth,
				     (uint32_t)slot_size);
				if (memcmp(slot(&chans[q], i), scratch,
					   len_of(q, i)))
					wrong("content read", q, i);
			}
		}
	}
}

/* With -D a SIGTERM ends the transfer before its time. It stays blocked and
 * pending, so that it interrupts nothing. */
static bool told_to_end(void)
{
	sigset_t set;

	return !sigpending(&set) && sigismember(&set, SIGTERM);
}

static void client(void)
{
	uint64_t start = now_ns();
	uint64_t end = start + (uint64_t)(opt.seconds * 1e9), said = start;
	uint32_t i = 0;

	while (opt.seconds > 0 ? now_ns() < end && !told_to_end() : i < opt.n) {
		uint32_t count = opt.depth;
		const char *line;

		if (opt.seconds <= 0 && count > opt.n - i)
			count = opt.n - i;
		if (opt.op == CAS)
			count = 1;
		/* Round robin, so that all queue pairs are at work at once. */
		for (uint32_t k = i; k < i + count; k++) {
			bool last = k + 1 == i + count;

			for (unsigned q = 0; q < opt.qps; q++) {
				post(q, k, last,
				     opt.op == MIX ? WRITE : op_of(q, k));
				if (opt.op == MIX)
					post(q, k, last, MIX);
			}
		}
		wait_sent(i + count, opt.op == MIX ? 2 : 1);
		if (opt.op == READ || is_atomic(opt.op) || opt.op == ALL)
			check_results(i, count);
		for (unsigned q = 0; q < opt.qps; q++)
			for (uint32_t k = i; k < i + count; k++)
				received_bytes += len_of(q, k);
		received += (uint64_t)count * opt.qps;
		if (opt.op != READ && !is_atomic(opt.op)) {
			ctrl_put(ctrl, "batch %u %u", i, count);
			line = ctrl_get(ctrl, 60000);
			if (!line && errno == ECONNRESET) {
				/* Gone: one more message shows how the queue
				 * pair takes it. */
				for (unsigned q = 0; q < opt.qps; q++)
					post(q, i + count, true, WRITE);
				wait_sent(i + count + 1, 1);
			}
			if (!line || strcmp(line, "ok"))
				die(EXIT_WC, "the other end has gone");
		}
		i += count;
		if (opt.seconds > 0 && now_ns() - said > 20000000) {
			said = now_ns();
			printf("at %u\n", i);
			fflush(stdout);
		}
	}
	ctrl_put(ctrl, "done");
	if (is_atomic(opt.op))
		ctrl_put(ctrl, "total %" PRIu64, received);
}

/* ---------------------------------------------------------------- main */

static void usage(void)
{
	printf("usage: verbs_check [options] [HOST]\n"
	       "  -c RC|UC|UD      -o "
	       "send|send_imm|write|write_imm|read|faa|cas|mix|all\n"
	       "  -s MAX  -S MIN   sizes of messages     -n messages per QP\n"
	       "  -D SECONDS       instead of -n, or until SIGTERM; says\n"
	       "                   now and then how far it is\n"
	       "  -r depth, batch size\n"
	       "  -q QPs   -G SGEs -Q signal every n-th  -X seed\n"
	       "  -x receives posted, if fewer than the depth (RC)\n"
	       "  -g GID index     -m path MTU           -d device\n"
	       "  -e events        -I inline             -R use an SRQ\n"
	       "  -L losses are expected (UC, UD)        -V victims, extra "
	       "idle QPs\n"
	       "  -u timeout       -t retry count        -p TCP port\n");
	exit(EXIT_SETUP);
}

static void parse(int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv,
			   "c:o:s:S:n:D:r:x:q:G:Q:X:g:m:d:eIRLV:u:t:p:")) !=
	       -1) {
		switch (c) {
		case 'c':
			opt.type = !strcmp(optarg, "UD") ? IBV_QPT_UD :
				   !strcmp(optarg, "UC") ? IBV_QPT_UC :
							   IBV_QPT_RC;
			break;
		case 'o':
			for (opt.op = 0; opt.op < OPS; opt.op++)
				if (!strcmp(optarg, op_names[opt.op]))
					break;
			if (opt.op == OPS)
				usage();
			break;
		case 's':
			opt.max = (uint32_t)atol(optarg);
			break;
		case 'S':
			opt.min = (uint32_t)atol(optarg);
			break;
		case 'n':
			opt.n = (unsigned)atol(optarg);
			break;
		case 'D':
			opt.seconds = atof(optarg);
			break;
		case 'r':
			opt.depth = (unsigned)atol(optarg);
			break;
		case 'x':
			opt.rx_depth = (unsigned)atol(optarg);
			break;
		case 'q':
			opt.qps = (unsigned)atol(optarg);
			break;
		case 'G':
			opt.sges = (unsigned)atol(optarg);
			break;
		case 'Q':
			opt.signal_every = (unsigned)atol(optarg);
			break;
		case 'X':
			opt.seed = strtoull(optarg, NULL, 0);
			break;
		case 'g':
			opt.gid_index = atoi(optarg);
			break;
		case 'm':
			opt.mtu = atoi(optarg);
			break;
		case 'd':
			opt.dev = optarg;
			break;
		case 'e':
			opt.events = true;
			break;
		case 'I':
			opt.use_inline = true;
			break;
		case 'R':
			opt.srq = true;
			break;
		case 'L':
			opt.lossy = true;
			break;
		case 'V':
			opt.victims = (unsigned)atol(optarg);
			break;
		case 'u':
			opt.timeout = (uint8_t)atoi(optarg);
			break;
		case 't':
			opt.retry = (uint8_t)atoi(optarg);
			break;
		case 'p':
			opt.port = atoi(optarg);
			break;
		default:
			usage();
		}
	}
	opt.host = argv[optind];
	if (opt.sges < 1 || opt.sges > 32 || !opt.qps || !opt.depth ||
	    !opt.signal_every || opt.min > opt.max ||
	    (opt.op == CAS && opt.qps > 1) ||
	    (opt.op == ALL && (opt.type != IBV_QPT_RC || opt.srq)))
		usage();
	if (!opt.rx_depth || opt.rx_depth > opt.depth)
		opt.rx_depth = opt.depth;
	/* A message that may follow a lost one must name itself. */
	if (opt.type != IBV_QPT_RC && opt.min < 8)
		opt.min = opt.max < 8 ? opt.max : 8;
}

int main(int argc, char **argv)
{
	uint64_t start;
	unsigned unharmed = 0;
	sigset_t term;
	double s;

	parse(argc, argv);
	if (opt.host && opt.seconds > 0) {
		sigemptyset(&term);
		sigaddset(&term, SIGTERM);
		sigprocmask(SIG_BLOCK, &term, NULL);
	}
	set_up();
	start = now_ns();
	if (opt.host)
		client();
	else
		server();
	s = (double)(now_ns() - start) / 1e9;

	printf("%s %s %s: %" PRIu64 " messages, %" PRIu64
	       " bytes, lost %" PRIu64 ", wrong %" PRIu64
	       ", %.3f s, rss %ld KiB\n",
	       opt.host ? "client" : "server",
	       opt.type == IBV_QPT_RC ? "RC" :
	       opt.type == IBV_QPT_UC ? "UC" :
					"UD",
	       op_names[opt.op], received, received_bytes, lost, torn, s,
	       rss_kib());

	if (cq_events)
		ibv_ack_cq_events(cq, cq_events);
	for (unsigned q = opt.qps; q < opt.qps + opt.victims; q++) {
		struct ibv_qp_init_attr init;
		struct ibv_qp_attr attr;

		ibv_query_qp(chans[q].qp, &attr, IBV_QP_STATE, &init);
		unharmed += attr.qp_state == IBV_QPS_RTS;
	}
	if (opt.victims)
		printf("victims in RTS: %u\n", unharmed);
	for (unsigned q = 0; q < opt.qps + opt.victims; q++) {
		if (ibv_destroy_qp(chans[q].qp))
			die(EXIT_SETUP, "ibv_destroy_qp: %m");
		if (chans[q].ah && ibv_destroy_ah(chans[q].ah))
			die(EXIT_SETUP, "ibv_destroy_ah: %m");
	}
	if ((srq && ibv_destroy_srq(srq)) || ibv_destroy_cq(cq) ||
	    (comp && ibv_destroy_comp_channel(comp)) || ibv_dereg_mr(mr) ||
	    (bait_mr && ibv_dereg_mr(bait_mr)) || ibv_dealloc_pd(dev.pd) ||
	    ibv_close_device(dev.ctx))
		die(EXIT_SETUP, "tear-down: %m");
	free(chans);
	free(scratch);
	free(mem);
	/* The target of reads sees none of them. */
	if (torn || (lost && !opt.lossy) ||
	    (!received && (opt.host || opt.op != READ)))
		return EXIT_DATA;
	return 0;
}
