/*
 * fabric_rpc.c - in the manner of Mercury over libfabric: RPCs and bulk transfers
 *
 *   fabric_rpc -p PORT [-d DOMAIN] [-a ADDRESS]                    the server
 *   fabric_rpc -p PORT [-d DOMAIN] [-e ENDPOINTS] [-n CALLS] HOST  its client
 *
 * Reliable datagram endpoints of verbs;ofi_rxm, each with a completion queue of
 * FI_WAIT_FD: epoll(7) when fi_trywait() allows it. A request is a tagged message that
 * any of the server's posted receives takes, and says where its answer goes; the answer
 * is awaited from the server alone, by the call's number as its tag. The client's calls,
 * in turn:
 *
 *   ECHO    the request's bytes are checked, and answered with some that are known
 *   PULL    the server reads the client's memory by its key, and checks it
 *   PUSH    it writes the client's memory, which is checked when the answer is there
 *   PUT     the client writes the server's memory, which the server checks
 *   GET     it has the server's memory filled, and reads it
 *   CANCEL  no answer comes: the receive is canceled, which must leave its memory as it
 *           was. Then the server is made to answer after all, to another receive
 *
 * Every byte is checked. A wake-up that is missed counts: something to read without the
 * descriptor having been readable. At the end the server cancels the receives that it
 * has posted, and both close all that they have opened, which fails where something is
 * still in use.
 */
#include "peer.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#define ENDPOINTS 4096
#define CALLS 16 /* at a time */
#define REQUESTS 64 /* receives for them */
#define PAYLOAD 4000 /* of a request */
#define MESSAGE (200 << 10) /* an answer; beyond 16 KiB it is no longer eager */
#define BULK (256 << 10)
#define PART (MESSAGE + MESSAGE + BULK) /* memory of a task */
#define REQUEST (1ull << 62) /* in the tag */
#define WAIT_MS 2000
#define LIMIT_NS 30000000000u /* without any completion */
/* What a step returns besides 0: it is not over; the task has other steps now. */
#define WAITS 1
#define JUMP 2

enum op { ECHO, PULL, PUSH, PUT, GET, CANCEL, RELEASE, STOP, OPS };
static const char *const op_names[OPS] = {
	"ECHO", "PULL", "PUSH", "PUT", "GET", "CANCEL", "RELEASE", "STOP"
};

struct request {
	uint32_t op, number;
	uint32_t seed,
		len; /* of the bytes behind this, or of those in memory */
	uint32_t answer; /* bytes wanted */
	uint32_t released; /* the number of a call that is answered late */
	uint64_t addr,
		key; /* the client's memory; the server's, for PUT and GET */
	uint32_t endpoint, name_len;
	uint8_t name[64];
};

struct answer {
	uint32_t number, len;
};

struct task;
typedef int step(struct task *);

struct action {
	struct fi_context2 fi; /* is the operation's context */
	bool busy;
	int err; /* FI_ECANCELED: it was; all others end the program */
	size_t len;
	fi_addr_t from;
};

struct point {
	struct fid_ep *ep;
	struct fid_cq *cq;
	bool touched; /* to be read before anything is awaited */
};

/* A call at the client, a request that is served or awaited at the server. */
struct task {
	struct action recv, send, rma;
	step *const *step; /* the next; NULL: the task is over */
	struct point *point;
	fi_addr_t peer;
	uint8_t *in, *out, *bulk;
	struct request rq;
};

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_mr *mr;
static struct point point[ENDPOINTS];
static struct point *touched[ENDPOINTS];
static unsigned endpoints = 1, ntouched;
static int waits; /* epoll(7) of all descriptors */
static uint8_t *memory;
static struct task task[REQUESTS];
static unsigned tasks, missed;
static uint64_t last; /* something completed */
static bool again; /* a step could not post */

/* The client's. */
static unsigned calls = 600, begun, ended[OPS];
static fi_addr_t server;
static uint64_t server_addr, server_key;

/* The server's. */
static struct peer {
	fi_addr_t addr;
	uint32_t len;
	uint8_t name[64];
} peers[ENDPOINTS];
static unsigned served;
static bool stopped;

static void must(int rc, const char *what)
{
	if (rc)
		die(EXIT_SETUP, "%s: %s", what, fi_strerror(-rc));
}

static uint8_t byte_of(uint32_t seed, size_t i)
{
	return (uint8_t)(seed * 7 + i * 13 + (i >> 8) * 3);
}

static void fill(uint8_t *to, size_t len, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		to[i] = byte_of(seed, i);
}

static void check(const uint8_t *got, size_t len, uint32_t seed,
		  const struct task *t, const char *what)
{
	for (size_t i = 0; i < len; i++)
		if (got[i] != byte_of(seed, i))
			die(EXIT_DATA, "%s %u: %s: byte %zu of %zu is wrong",
			    op_names[t->rq.op], t->rq.number, what, i, len);
}

/* ---- completions ---------------------------------------------------------- */

static void complete(void *context, size_t len, fi_addr_t from, int err)
{
	struct action *a = context;

	if (!a || !a->busy)
		die(EXIT_WC, "a completion of nothing that was asked");
	a->busy = false;
	a->len = len;
	a->from = from;
	a->err = err;
	last = now_ns();
}

static void touch(struct point *p)
{
	if (!p->touched)
		touched[ntouched++] = p;
	p->touched = true;
}

/* Takes all there are. */
static unsigned progress(struct point *p)
{
	struct fi_cq_tagged_entry e[8];
	struct fi_cq_err_entry bad = { 0 };
	fi_addr_t from[8];
	unsigned n = 0;
	ssize_t got;

	for (;;) {
		got = fi_cq_readfrom(p->cq, e, 8, from);
		if (got == -FI_EAGAIN)
			return n;
		if (got == -FI_EAVAIL) {
			if (fi_cq_readerr(p->cq, &bad, 0) != 1)
				die(EXIT_WC, "no error to read");
			if (bad.err != FI_ECANCELED)
				die(EXIT_WC, "completion: %s, %s",
				    fi_strerror(bad.err),
				    fi_cq_strerror(p->cq, bad.prov_errno,
						   bad.err_data, NULL, 0));
			complete(bad.op_context, 0, FI_ADDR_NOTAVAIL, bad.err);
			n++;
			continue;
		}
		if (got < 0)
			must((int)got, "fi_cq_readfrom");
		for (ssize_t i = 0; i < got; i++)
			complete(e[i].op_context, e[i].len, from[i], 0);
		n += (unsigned)got;
	}
}

/* Runs steps until each task waits. */
static void run(void)
{
	again = false;
	for (struct task *t = task; t < task + tasks; t++)
		while (t->step) {
			int rc = (*t->step)(t);

			again |= rc == -FI_EAGAIN;
			if (rc == -FI_EAGAIN)
				touch(t->point);
			if (rc == WAITS || rc == -FI_EAGAIN)
				break;
			if (rc == JUMP)
				continue;
			must(rc, op_names[t->rq.op]);
			t->step++;
		}
}

/* Whether all that is touched may be waited for: there is nothing to read. */
static bool may_wait(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < ntouched; i++) {
		struct fid *fids[] = { &touched[i]->cq->fid };
		int rc = fi_trywait(fabric, fids, 1);

		touched[i]->touched = rc;
		if (rc == -FI_EAGAIN)
			touched[n++] = touched[i];
		else
			must(rc, "fi_trywait");
	}
	ntouched = n;
	return !n;
}

/* Until something may have completed. */
static void wait_for_more(void)
{
	struct epoll_event e[64];
	int n, ms = WAIT_MS;

	if (now_ns() > last + LIMIT_NS)
		die(EXIT_WC, "nothing has completed for 30 s");
	/* A connection that is being made, or a queue that is full. */
	if (again)
		ms = 1;
	else if (!may_wait())
		return;
	n = epoll_wait(waits, e, 64, ms);
	for (int i = 0; i < n; i++)
		touch(e[i].data.ptr);
	if (n == 0 && !again && epoll_wait(waits, e, 1, 0) == 0)
		for (unsigned i = 0; i < endpoints; i++)
			missed += progress(&point[i]) > 0;
}

static void turn(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < ntouched; i++)
		n += progress(touched[i]);
	if (!n)
		wait_for_more();
	run();
}

/* ---- steps of both -------------------------------------------------------- */

/* What an operation that may be tried again has returned. It may have completed. */
static int posted(ssize_t rc, struct task *t, struct action *a)
{
	touch(t->point);
	a->busy = !rc;
	return (int)rc;
}

static int all_done(struct task *t)
{
	return t->recv.busy || t->send.busy || t->rma.busy ? WAITS : 0;
}

static int sent(struct task *t)
{
	return t->send.busy ? WAITS : 0;
}

static int send_out(struct task *t, size_t len, uint64_t tag)
{
	return posted(fi_tsend(t->point->ep, t->out, len, fi_mr_desc(mr),
			       t->peer, tag, &t->send),
		      t, &t->send);
}

static int read_from(struct task *t, uint64_t addr, uint64_t key)
{
	return posted(fi_read(t->point->ep, t->bulk, t->rq.len, fi_mr_desc(mr),
			      t->peer, addr, key, &t->rma),
		      t, &t->rma);
}

static int write_to(struct task *t, uint64_t addr, uint64_t key)
{
	return posted(fi_write(t->point->ep, t->bulk, t->rq.len, fi_mr_desc(mr),
			       t->peer, addr, key, &t->rma),
		      t, &t->rma);
}

/* What a peer that has the key calls this memory. */
static uint64_t remote_addr(const uint8_t *at)
{
	return info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ?
		       (uintptr_t)at :
		       (uint64_t)(at - memory);
}

/* ---- the client ----------------------------------------------------------- */

static int await_number(struct task *t, uint32_t number)
{
	memset(t->in, 0xee, MESSAGE);
	return posted(fi_trecv(t->point->ep, t->in, MESSAGE, fi_mr_desc(mr),
			       t->peer, number, 0, &t->recv),
		      t, &t->recv);
}

static int await_answer(struct task *t)
{
	return await_number(t, t->rq.number);
}

static int ask(struct task *t)
{
	size_t len = sizeof(t->rq);

	memcpy(t->out, &t->rq, sizeof(t->rq));
	if (t->rq.op == ECHO) {
		fill(t->out + len, t->rq.len, t->rq.seed);
		len += t->rq.len;
	}
	return send_out(t, len, REQUEST | t->rq.number);
}

static void check_answer(const struct task *t, uint32_t number, size_t len)
{
	struct answer a;

	memcpy(&a, t->in, sizeof(a));
	if (t->recv.err || t->recv.len != sizeof(a) + len ||
	    a.number != number || a.len != len)
		die(EXIT_DATA, "%s %u: the answer of %u, %zu bytes%s",
		    op_names[t->rq.op], number, a.number, t->recv.len,
		    t->recv.err ? ", canceled" : "");
	if (t->recv.from != FI_ADDR_NOTAVAIL && t->recv.from != server)
		die(EXIT_DATA, "an answer of another than the server");
	check(t->in + sizeof(a), len, t->rq.seed + 1, t, "the answer");
}

static int answered(struct task *t)
{
	check_answer(t, t->rq.number, t->rq.answer);
	return 0;
}

static int bulk_fill(struct task *t)
{
	fill(t->bulk, t->rq.len, t->rq.seed);
	return 0;
}

static int bulk_clear(struct task *t)
{
	memset(t->bulk, 0xee, BULK);
	return 0;
}

static int bulk_check(struct task *t)
{
	check(t->bulk, t->rq.len, t->rq.seed, t, "memory");
	for (size_t i = t->rq.len; i < BULK; i++)
		if (t->bulk[i] != 0xee)
			die(EXIT_DATA, "%s %u: written beyond the end",
			    op_names[t->rq.op], t->rq.number);
	return 0;
}

static int put(struct task *t)
{
	return write_to(t, t->rq.addr, t->rq.key);
}

static int get(struct task *t)
{
	return read_from(t, t->rq.addr, t->rq.key);
}

static int cancel(struct task *t)
{
	touch(t->point);
	return (int)fi_cancel(&t->point->ep->fid, &t->recv);
}

static int canceled(struct task *t)
{
	if (t->recv.err != FI_ECANCELED)
		die(EXIT_DATA, "CANCEL %u: the receive was not", t->rq.number);
	for (size_t i = 0; i < MESSAGE; i++)
		if (t->in[i] != 0xee)
			die(EXIT_DATA, "CANCEL %u: its memory has changed",
			    t->rq.number);
	/* An odd number is awaited before its late answer is asked for, an even one
	 * when that has come, unexpected. */
	t->rq.released = t->rq.number;
	t->rq.number = calls + t->rq.number;
	t->rq.op = RELEASE;
	return 0;
}

static int late_early(struct task *t)
{
	return t->rq.released % 2 ? await_number(t, t->rq.released) : 0;
}

static int late_early_check(struct task *t)
{
	if (t->rq.released % 2)
		check_answer(t, t->rq.released, t->rq.answer);
	return 0;
}

static int late(struct task *t)
{
	return t->rq.released % 2 ? 0 : await_number(t, t->rq.released);
}

static int late_check(struct task *t)
{
	if (t->rq.released % 2 == 0)
		check_answer(t, t->rq.released, t->rq.answer);
	t->rq.op = CANCEL;
	return 0;
}

/* The answer of a RELEASE has no bytes. */
static int released(struct task *t)
{
	check_answer(t, t->rq.number, 0);
	return 0;
}

static int begin(struct task *t);

static int end(struct task *t)
{
	ended[t->rq.op]++;
	return begin(t);
}

/* Each ends by what jumps. */
static step *const client_steps[OPS][20] = {
	[ECHO] = { await_answer, ask, all_done, answered, end },
	[PULL] = { bulk_fill, await_answer, ask, all_done, answered, end },
	[PUSH] = { bulk_clear, await_answer, ask, all_done, answered,
		   bulk_check, end },
	[PUT] = { bulk_fill, put, all_done, await_answer, ask, all_done,
		  answered, end },
	[GET] = { bulk_clear, await_answer, ask, all_done, answered, get,
		  all_done, bulk_check, end },
	[CANCEL] = { await_answer, ask, sent, cancel, all_done, canceled,
		     late_early, ask, all_done, late_early_check, await_answer,
		     all_done, released, late, all_done, late_check, end },
	[STOP] = { await_answer, ask, all_done, answered, end },
};

/* A call by the endpoint whose turn it is. */
static void start(struct task *t, enum op op, uint32_t number)
{
	const size_t at = (size_t)(t - task) * BULK;
	size_t len = sizeof(t->rq.name);

	t->rq = (struct request){ .op = op,
				  .number = number,
				  .seed = rnd(1u << 30),
				  .addr = remote_addr(t->bulk),
				  .key = fi_mr_key(mr),
				  .endpoint = number % endpoints };
	t->rq.len = rnd(op == ECHO ? PAYLOAD : BULK - 1) + 1;
	/* Where nobody awaits it, the server's send of a large one does not end. */
	if (op == ECHO || op == CANCEL)
		t->rq.answer = rnd(rnd(4) || (op == CANCEL && number % 2 == 0) ?
					   4000 :
					   MESSAGE - 16);
	if (op == PUT || op == GET) {
		t->rq.addr = server_addr + at;
		t->rq.key = server_key;
	}
	t->point = &point[t->rq.endpoint];
	t->peer = server;
	must(fi_getname(&t->point->ep->fid, t->rq.name, &len), "fi_getname");
	t->rq.name_len = (uint32_t)len;
	t->step = client_steps[op];
}

/* The next one, if there is one. */
static int begin(struct task *t)
{
	t->step = NULL;
	if (begun < calls) {
		start(t, begun / endpoints % RELEASE, begun);
		begun++;
	}
	return JUMP;
}

/* ---- the server ----------------------------------------------------------- */

static int await_request(struct task *t)
{
	return posted(fi_trecv(t->point->ep, t->in, MESSAGE, fi_mr_desc(mr),
			       FI_ADDR_UNSPEC, REQUEST, REQUEST - 1, &t->recv),
		      t, &t->recv);
}

static fi_addr_t peer_of(const struct request *rq)
{
	struct peer *p;

	if (rq->endpoint >= ENDPOINTS || rq->name_len > sizeof(rq->name))
		die(EXIT_DATA, "a request of endpoint %u", rq->endpoint);
	p = &peers[rq->endpoint];
	if (!p->len) {
		p->len = rq->name_len;
		memcpy(p->name, rq->name, sizeof(p->name));
		if (fi_av_insert(av, p->name, 1, &p->addr, 0, NULL) != 1)
			die(EXIT_SETUP, "fi_av_insert");
	}
	if (p->len != rq->name_len || memcmp(p->name, rq->name, p->len) != 0)
		die(EXIT_DATA, "endpoint %u has another name", rq->endpoint);
	return p->addr;
}

static int answer_number(struct task *t, uint32_t number, uint32_t len)
{
	struct answer a = { number, len };

	memcpy(t->out, &a, sizeof(a));
	fill(t->out + sizeof(a), len, t->rq.seed + 1);
	return send_out(t, sizeof(a) + len, number);
}

static int answer(struct task *t)
{
	return answer_number(t, t->rq.number, t->rq.answer);
}

static int release(struct task *t)
{
	return answer_number(t, t->rq.released, t->rq.answer);
}

static int say_released(struct task *t)
{
	return answer_number(t, t->rq.number, 0);
}

static int payload_check(struct task *t)
{
	if (t->recv.len != sizeof(t->rq) + t->rq.len)
		die(EXIT_DATA, "ECHO %u has %zu bytes", t->rq.number,
		    t->recv.len);
	check(t->in + sizeof(t->rq), t->rq.len, t->rq.seed, t, "the request");
	return 0;
}

static int pull(struct task *t)
{
	return read_from(t, t->rq.addr, t->rq.key);
}

static int push(struct task *t)
{
	return write_to(t, t->rq.addr, t->rq.key);
}

/* The part of memory that the client has chosen. */
static uint8_t *chosen(struct task *t)
{
	uint64_t at = t->rq.addr - remote_addr(memory);

	if (at > (CALLS - 1) * BULK || t->rq.len > BULK)
		die(EXIT_DATA, "%s %u: address 0x%llx", op_names[t->rq.op],
		    t->rq.number, (unsigned long long)t->rq.addr);
	return memory + at;
}

static int put_check(struct task *t)
{
	check(chosen(t), t->rq.len, t->rq.seed, t, "memory");
	return 0;
}

static int get_fill(struct task *t)
{
	fill(chosen(t), t->rq.len, t->rq.seed);
	return 0;
}

static int stop(struct task *t)
{
	t->step = NULL;
	stopped = true;
	return JUMP;
}

static int serve(struct task *t);
static step *const awaiting[] = { await_request, all_done, serve };

/* The receive is posted again. */
static int next(struct task *t)
{
	served++;
	t->step = awaiting;
	return JUMP;
}

static step *const server_steps[OPS][8] = {
	[ECHO] = { payload_check, answer, all_done, next },
	[PULL] = { bulk_clear, pull, all_done, bulk_check, answer, all_done,
		   next },
	[PUSH] = { bulk_fill, push, all_done, answer, all_done, next },
	[PUT] = { put_check, answer, all_done, next },
	[GET] = { get_fill, answer, all_done, next },
	[CANCEL] = { next },
	[RELEASE] = { release, all_done, say_released, all_done, next },
	[STOP] = { answer, all_done, stop },
};

/* A request has come. */
static int serve(struct task *t)
{
	if (t->recv.err) { /* canceled, in the end */
		t->step = NULL;
		return JUMP;
	}
	if (t->recv.len < sizeof(t->rq))
		die(EXIT_DATA, "a request of %zu bytes", t->recv.len);
	memcpy(&t->rq, t->in, sizeof(t->rq));
	if (t->rq.op >= OPS || t->rq.len > BULK ||
	    t->rq.answer > MESSAGE - sizeof(struct answer))
		die(EXIT_DATA, "a request that makes no sense");
	t->peer = peer_of(&t->rq);
	if (t->recv.from != FI_ADDR_NOTAVAIL && t->recv.from != t->peer)
		die(EXIT_DATA, "%s %u is not of endpoint %u",
		    op_names[t->rq.op], t->rq.number, t->rq.endpoint);
	t->step = server_steps[t->rq.op];
	return JUMP;
}

/* ---- both ends ------------------------------------------------------------ */

static struct fi_info *hints(const char *name)
{
	struct fi_info *h = fi_allocinfo();

	if (!h)
		die(EXIT_SETUP, "fi_allocinfo");
	h->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_SOURCE | FI_DIRECTED_RECV;
	h->mode = FI_CONTEXT | FI_CONTEXT2;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR |
				  FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	h->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	h->domain_attr->threading = FI_THREAD_SAFE;
	/* The defaults are many, and each has its memory. */
	h->tx_attr->size = h->rx_attr->size = 2 * REQUESTS;
	h->domain_attr->name = name ? strdup(name) : NULL;
	h->fabric_attr->prov_name = strdup("verbs;ofi_rxm");
	return h;
}

static void point_open(struct point *p)
{
	struct fi_cq_attr ca = { .format = FI_CQ_FORMAT_TAGGED,
				 .wait_obj = FI_WAIT_FD,
				 .size = 8 * REQUESTS };
	struct epoll_event e = { .events = EPOLLIN, .data.ptr = p };
	int fd;

	must(fi_cq_open(domain, &ca, &p->cq, NULL), "fi_cq_open");
	must(fi_control(&p->cq->fid, FI_GETWAIT, &fd), "FI_GETWAIT");
	must(fi_endpoint(domain, info, &p->ep, NULL), "fi_endpoint");
	must(fi_ep_bind(p->ep, &av->fid, 0), "fi_ep_bind");
	must(fi_ep_bind(p->ep, &p->cq->fid, FI_TRANSMIT | FI_RECV),
	     "fi_ep_bind");
	must(fi_enable(p->ep), "fi_enable");
	if (epoll_ctl(waits, EPOLL_CTL_ADD, fd, &e))
		die(EXIT_SETUP, "epoll: %m");
	touch(p);
}

static void open_all(const char *node, uint64_t flags, const char *name)
{
	struct fi_av_attr aa = { .count = ENDPOINTS };
	const size_t len = (size_t)CALLS * BULK + (size_t)tasks * PART;
	struct fi_info *h = hints(name);

	must(fi_getinfo(FI_VERSION(1, 15), node, NULL, flags, h, &info),
	     "fi_getinfo");
	fi_freeinfo(h);
	must(fi_fabric(info->fabric_attr, &fabric, NULL), "fi_fabric");
	must(fi_domain(fabric, info, &domain, NULL), "fi_domain");
	must(fi_av_open(domain, &aa, &av, NULL), "fi_av_open");
	memory = aligned_alloc(4096, len);
	if (!memory)
		die(EXIT_SETUP, "memory");
	must(fi_mr_reg(domain, memory, len,
		       FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ |
			       FI_REMOTE_WRITE,
		       0, 0, 0, &mr, NULL),
	     "fi_mr_reg");
	waits = epoll_create1(EPOLL_CLOEXEC);
	for (unsigned i = 0; i < endpoints; i++)
		point_open(&point[i]);
	for (unsigned i = 0; i < tasks; i++) {
		struct task *t = &task[i];

		t->point = point;
		t->in = memory + (size_t)CALLS * BULK + (size_t)i * PART;
		t->out = t->in + MESSAGE;
		t->bulk = t->out + MESSAGE;
	}
	last = now_ns();
}

static void close_all(void)
{
	for (unsigned i = 0; i < endpoints; i++) {
		must(fi_close(&point[i].ep->fid), "closing an endpoint");
		must(fi_close(&point[i].cq->fid), "closing its queue");
	}
	must(fi_close(&mr->fid), "closing a region");
	must(fi_close(&av->fid), "closing the address vector");
	must(fi_close(&domain->fid), "closing the domain");
	must(fi_close(&fabric->fid), "closing the fabric");
	fi_freeinfo(info);
	free(memory);
}

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	while (d && readdir(d))
		n++;
	if (d)
		closedir(d);
	return n;
}

static bool idle(void)
{
	for (unsigned i = 0; i < tasks; i++)
		if (task[i].step)
			return false;
	return true;
}

static void serve_all(int fd)
{
	char name[2 * sizeof(peers->name) + 1] = "";
	uint8_t raw[sizeof(peers->name)];
	size_t len = sizeof(raw);
	unsigned n = 0;

	must(fi_getname(&point->ep->fid, raw, &len), "fi_getname");
	for (size_t i = 0; i < len; i++)
		sprintf(name + 2 * i, "%02x", raw[i]);
	for (unsigned i = 0; i < tasks; i++)
		task[i].step = awaiting;
	last = now_ns();
	run();
	ctrl_put(fd, "%s %llx %llx", name,
		 (unsigned long long)remote_addr(memory),
		 (unsigned long long)fi_mr_key(mr));
	while (!stopped)
		turn();
	for (unsigned i = 0; i < tasks; i++)
		if (task[i].recv.busy) {
			must(cancel(&task[i]), "fi_cancel");
			n++;
		}
	while (!idle())
		turn();
	printf("%u requests right, %u receives canceled, %u wake-ups missed; "
	       "%ld MiB, %u files\n",
	       served, n, missed, rss_kib() >> 10, open_files());
}

static void call_all(int fd)
{
	const char *line = ctrl_get(fd, 20000);
	unsigned long long addr, key;
	char name[2 * sizeof(peers->name) + 1];
	uint8_t raw[sizeof(peers->name)] = { 0 };

	if (!line || sscanf(line, "%128s %llx %llx", name, &addr, &key) != 3)
		die(EXIT_SETUP, "the server has no name");
	for (size_t i = 0; name[2 * i]; i++)
		sscanf(name + 2 * i, "%2hhx", &raw[i]);
	server_addr = addr;
	server_key = key;
	if (fi_av_insert(av, raw, 1, &server, 0, NULL) != 1)
		die(EXIT_SETUP, "fi_av_insert");
	for (unsigned i = 0; i < tasks; i++)
		begin(&task[i]);
	run();
	while (!idle())
		turn();
	start(&task[0], STOP, 2 * calls);
	run();
	while (!idle())
		turn();
	printf("%u calls right over %u endpoints:", begun, endpoints);
	for (enum op op = 0; op < RELEASE; op++)
		printf(" %u %s", ended[op], op_names[op]);
	printf(", %u wake-ups missed; %ld MiB, %u files\n", missed,
	       rss_kib() >> 10, open_files());
}

int main(int argc, char **argv)
{
	const char *address = NULL, *name = NULL, *host;
	struct rlimit files;
	int opt, port = 0, fd;

	while ((opt = getopt(argc, argv, "p:a:d:e:n:")) > 0)
		switch (opt) {
		case 'p':
			port = atoi(optarg);
			break;
		case 'a':
			address = optarg;
			break;
		case 'd':
			name = optarg;
			break;
		case 'e':
			endpoints = (unsigned)atoi(optarg);
			break;
		case 'n':
			calls = (unsigned)atoi(optarg);
			break;
		default:
			return EXIT_SETUP;
		}
	host = argv[optind];
	if (!endpoints || endpoints > ENDPOINTS || (!host && endpoints > 1))
		die(EXIT_SETUP, "1 to %u endpoints", ENDPOINTS);
	if (!getrlimit(RLIMIT_NOFILE, &files)) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	tasks = host ? CALLS : REQUESTS;
	/* The client takes long to open many endpoints. */
	if (host) {
		fd = ctrl_open(host, port, 20);
		open_all(host, 0, name);
		ctrl_put(fd, "ready");
		call_all(fd);
	} else {
		open_all(address, address ? FI_SOURCE : 0, name);
		fd = ctrl_open(NULL, port, 20);
		if (!ctrl_get(fd, 120000))
			die(EXIT_SETUP, "the client is not ready");
		serve_all(fd);
	}
	close_all();
	return 0;
}
