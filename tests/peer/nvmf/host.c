/*
 * host.c - a host: queues, commands, and associations
 *
 * A command's number (CID) is its place in its queue. It has ended when its response
 * has come and all that was posted for it has completed; then its memory and its key
 * may be used again. For SGL_KEYED_INVALIDATE the key is that of a memory window of
 * type 2, bound for this command alone: the response invalidates it, or else this end
 * does. A queue whose connection ends, or that does not answer in time, takes its
 * commands with it, and nothing else.
 */
#include "host.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	CAPSULE_SIZE = SQE_SIZE + IN_CAPSULE,
	RESOLVE_MS = 5000,
	INVALIDATION = 1 << 16
};

/* ------------------------------------------------------------- commands */

struct command *command_new(struct host_queue *q, uint8_t opcode)
{
	for (uint16_t cid = 0; cid < q->depth - 1; cid++) {
		struct command *c = &q->command[cid];

		if (c->busy)
			continue;
		memset(c->capsule, 0, SQE_SIZE);
		c->busy = true;
		c->status = PENDING;
		c->until_ms = 0;
		c->capsule[SQE_OPC] = opcode;
		put_le(c->capsule + SQE_CID, cid, 2);
		put_le(c->capsule + SQE_NSID, q->qid ? 1 : 0, 4);
		command_data(c, SGL_KEYED, 0);
		return c;
	}
	return NULL;
}

void command_data(struct command *c, enum sgl_id sgl, uint32_t len)
{
	uint8_t *d = c->capsule + SQE_SGL1;

	c->capsule[SQE_FLAGS] = PSDT_SGL;
	c->capsule_len = SQE_SIZE;
	memset(d, 0, 16);
	put_le(d + SGL_LENGTH, len,
	       sgl == SGL_KEYED || sgl == SGL_KEYED_INVALIDATE ? 3 : 4);
	d[SGL_ID] = (uint8_t)sgl;
	if (sgl == SGL_DATA_OFFSET) {
		memcpy(c->capsule + SQE_SIZE, c->data, len);
		c->capsule_len += len;
	} else if (len) {
		put_le(d + SGL_ADDRESS, (uintptr_t)c->data, 8);
		put_le(d + SGL_KEY, c->queue->link.mr->rkey, 4);
	}
	if (sgl == SGL_KEYED_INVALIDATE)
		put_le(d + SGL_KEY, ibv_inc_rkey(c->window->rkey), 4);
}

void command_send(struct command *c)
{
	struct link *l = &c->queue->link;
	const uint8_t *sgl = c->capsule + SQE_SGL1;
	struct ibv_sge sge = { (uintptr_t)c->capsule, c->capsule_len,
			       l->mr->lkey };
	struct ibv_send_wr send = { .wr_id = (uintptr_t)c,
				    .sg_list = &sge,
				    .num_sge = 1,
				    .opcode = IBV_WR_SEND,
				    .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr bind = {
		.wr_id = (uintptr_t)c,
		.next = &send,
		.opcode = IBV_WR_BIND_MW,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_mw = { c->window,
			     get_le32(sgl + SGL_KEY),
			     { l->mr, (uintptr_t)c->data,
			       get_le(sgl + SGL_LENGTH, 3),
			       IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_WRITE } },
	};

	c->status = PENDING;
	c->bound = sgl[SGL_ID] == SGL_KEYED_INVALIDATE;
	c->posted = 1 + c->bound;
	c->until_ms = now_ms() + (uint64_t)c->queue->host->timeout_ms;
	if (c->bound)
		c->window->rkey = bind.bind_mw.rkey;
	if (!link_send(l, c->bound ? &bind : &send))
		die("a command cannot be posted");
}

static void queue_lose(struct host_queue *q, const char *why, int status)
{
	if (!q->lost)
		printf("queue %u has ended: %s\n", q->qid, q->lost = why);
	for (struct command *c = q->command; c < q->command + q->depth; c++) {
		c->posted = 0;
		if (c->busy && c->status == PENDING)
			c->status = status;
	}
}

/* What is wrong with a response, or NULL. */
static const char *response_check(const struct host_queue *q,
				  const struct ibv_wc *wc, const uint8_t *cqe)
{
	const uint16_t cid = get_le16(cqe + CQE_CID);
	const struct command *c = &q->command[cid < q->depth ? cid : 0];

	if (wc->byte_len < CQE_SIZE)
		return "a response capsule of less than 16 bytes";
	if (cid >= q->depth || !c->busy || c->status != PENDING)
		return "a response to a command that waits for none";
	if (!(wc->wc_flags & IBV_WC_WITH_INV))
		return c->bound && get_le16(cqe + CQE_STATUS) >> 1 == 0 ?
			       "the key of a command is not invalidated" :
			       NULL;
	return c->bound && wc->invalidated_rkey == c->window->rkey ?
		       NULL :
		       "a key is invalidated that is none of its command";
}

static void responded(struct host_queue *q, const struct ibv_wc *wc,
		      const uint8_t *cqe)
{
	const char *wrong = response_check(q, wc, cqe);
	struct ibv_send_wr inv = { .opcode = IBV_WR_LOCAL_INV,
				   .send_flags = IBV_SEND_SIGNALED };
	struct command *c;

	if (wrong) {
		queue_lose(q, wrong, LOST);
		return;
	}
	c = &q->command[get_le16(cqe + CQE_CID)];
	c->result = get_le(cqe + CQE_DW0, 8);
	c->status = get_le16(cqe + CQE_STATUS) >> 1;
	if (wc->wc_flags & IBV_WC_WITH_INV) {
		q->host->invalidated++;
	} else if (c->bound) {
		inv.wr_id = (uintptr_t)c;
		inv.invalidate_rkey = c->window->rkey;
		c->posted += link_send(&q->link, &inv);
	}
	c->bound = false;
}

static void completed(struct host_queue *q, const struct ibv_wc *wc)
{
	uint8_t *cqe = (uint8_t *)(uintptr_t)wc->wr_id;

	if (q->lost)
		return;
	if (wc->status) {
		queue_lose(q, ibv_wc_status_str(wc->status), LOST);
	} else if (wc->opcode & IBV_WC_RECV) {
		responded(q, wc, cqe);
		link_receive(&q->link, wc->wr_id, cqe, CQE_SIZE);
	} else {
		((struct command *)(uintptr_t)wc->wr_id)->posted--;
	}
}

static void completions_poll(struct host *h)
{
	struct ibv_cq *cq;
	struct ibv_wc wc[16];
	void *q;
	int n;

	if (ibv_get_cq_event(h->completions, &cq, &q))
		return;
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		die("ibv_req_notify_cq");
	while ((n = ibv_poll_cq(cq, 16, wc)) > 0)
		for (int i = 0; i < n; i++)
			completed(q, &wc[i]);
}

void host_poll(struct host *h, int ms)
{
	struct pollfd p[2 + MAX_QUEUES] = { { .fd = h->completions->fd,
					      .events = POLLIN } };
	struct rdma_cm_event *e;
	struct host_queue *q;

	for (unsigned i = 0; i <= h->queues; i++) {
		q = h->queue[i];
		p[1 + i].fd = q && !q->lost ? q->link.id->channel->fd : -1;
		p[1 + i].events = POLLIN;
	}
	if (poll(p, 2 + h->queues, ms) > 0 && p[0].revents)
		completions_poll(h);
	for (unsigned i = 0; i <= h->queues; i++) {
		q = h->queue[i];
		if (p[1 + i].revents &&
		    !rdma_get_cm_event(q->link.id->channel, &e)) {
			if (e->event == RDMA_CM_EVENT_DISCONNECTED) {
				q->link.down = true;
				queue_lose(q,
					   "the controller has disconnected it",
					   LOST);
			}
			rdma_ack_cm_event(e);
		}
		for (unsigned j = 0; q && !q->lost && j < q->depth; j++)
			if (q->command[j].busy &&
			    q->command[j].status == PENDING &&
			    q->command[j].until_ms &&
			    now_ms() > q->command[j].until_ms)
				queue_lose(q, "no response in time", TIMED_OUT);
	}
}

int command_run(struct command *c)
{
	command_send(c);
	while (!command_ended(c))
		host_poll(c->queue->host, 100);
	c->busy = false;
	return c->status;
}

/* ------------------------------------------------------------- queues */

static struct rdma_cm_id *resolve(const struct host *h)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *ai;
	struct rdma_cm_id *id;

	if (rdma_getaddrinfo(h->address, h->port, &hints, &ai))
		die("%s: %m", h->address);
	if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) ||
	    rdma_resolve_addr(id, NULL, ai->ai_dst_addr, RESOLVE_MS) ||
	    rdma_resolve_route(id, RESOLVE_MS))
		die("%s, port %s: %m", h->address, h->port);
	rdma_freeaddrinfo(ai);
	return id;
}

struct host_queue *queue_open(struct host *h, uint16_t qid,
			      const uint8_t *private, uint8_t len,
			      uint16_t *reason)
{
	const uint16_t depth = (uint16_t)(qid ? h->depth + 1 : ADMIN_DEPTH);
	const size_t capsules = (size_t)depth * MAX_TRANSFER,
		     responses = capsules + (size_t)depth * CAPSULE_SIZE;
	struct rdma_conn_param param = { .private_data = private,
					 .private_data_len = len,
					 .responder_resources = 16,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
	struct host_queue *q = calloc(1, sizeof(*q));
	struct rdma_cm_id *id = resolve(h);

	if (!h->completions)
		h->completions = ibv_create_comp_channel(id->verbs);
	if (!q || !h->completions ||
	    !link_open(&q->link, id, h->completions, q,
		       responses + (size_t)depth * CQE_SIZE, 4u * depth, depth))
		die("queue %u: %m", qid);
	q->host = h;
	q->qid = qid;
	q->depth = depth;
	for (size_t i = 0; i < depth; i++) {
		uint8_t *response = q->link.memory + responses + i * CQE_SIZE;

		q->command[i] = (struct command){
			.queue = q,
			.data = q->link.memory + i * MAX_TRANSFER,
			.capsule = q->link.memory + capsules + i * CAPSULE_SIZE,
			.window = ibv_alloc_mw(q->link.pd, IBV_MW_TYPE_2)
		};
		if (!q->command[i].window)
			die("ibv_alloc_mw: %m");
		link_receive(&q->link, (uintptr_t)response, response, CQE_SIZE);
	}
	if (!rdma_connect(id, &param))
		return q;
	*reason = id->event && id->event->param.conn.private_data_len >= 4 ?
			  get_le16((const uint8_t *)
					   id->event->param.conn.private_data +
				   2) :
			  0;
	queue_close(q);
	return NULL;
}

void queue_close(struct host_queue *q)
{
	if (!q)
		return;
	for (unsigned i = 0; i < q->depth; i++)
		ibv_dealloc_mw(q->command[i].window);
	link_close(&q->link);
	free(q);
}

struct host_queue *queue_new(struct host *h, uint16_t qid)
{
	uint8_t private[PRIVATE_SIZE] = { 0 };
	struct host_queue *q;
	uint16_t reason;

	put_le(private + PRIVATE_QID, qid, 2);
	put_le(private + PRIVATE_HRQSIZE, qid ? h->depth + 1 : ADMIN_DEPTH, 2);
	put_le(private + PRIVATE_HSQSIZE, qid ? h->depth : ADMIN_DEPTH - 1, 2);
	q = queue_open(h, qid, private, sizeof(private), &reason);
	if (!q)
		die("queue %u: rejected, %u: %m", qid, reason);
	return q;
}

struct command *connect_new(struct host_queue *q, uint16_t cntlid)
{
	struct command *c = command_new(q, FABRICS);

	c->capsule[SQE_FCTYPE] = FABRICS_CONNECT;
	put_le(c->capsule + CONNECT_QID, q->qid, 2);
	put_le(c->capsule + CONNECT_SQSIZE, (uint64_t)q->depth - 1, 2);
	put_le(c->capsule + CONNECT_KATO, q->qid ? 0 : 120000, 4);
	memset(c->data, 0, CONNECT_SIZE);
	memcpy(c->data + DATA_HOSTID, "a host of tests", 16);
	put_le(c->data + DATA_CNTLID, cntlid, 2);
	strcpy((char *)c->data + DATA_SUBNQN, q->host->nqn);
	strcpy((char *)c->data + DATA_HOSTNQN, "nqn.2026-01.test:host");
	command_data(c, q->qid ? SGL_DATA_OFFSET : SGL_KEYED, CONNECT_SIZE);
	return c;
}

/* ------------------------------------------------------------- associations */

static uint64_t admin(struct command *c, const char *what)
{
	const int status = command_run(c);

	if (status)
		die("%s: status 0x%x", what, (unsigned)status);
	return c->result;
}

static uint64_t property(struct host *h, uint8_t type, uint32_t at,
			 uint64_t value)
{
	struct command *c = command_new(h->queue[0], FABRICS);

	c->capsule[SQE_FCTYPE] = type;
	c->capsule[PROPERTY_ATTRIB] = at == PROP_CAP;
	put_le(c->capsule + PROPERTY_OFST, at, 4);
	put_le(c->capsule + PROPERTY_VALUE, value, 8);
	return admin(c, "a property");
}

static void ready(struct host *h, uint32_t cc)
{
	const uint64_t end = now_ms() + 10000;

	property(h, FABRICS_PROPERTY_SET, PROP_CC, cc);
	while ((property(h, FABRICS_PROPERTY_GET, PROP_CSTS, 0) & CSTS_RDY) !=
	       (cc & CC_EN))
		if (now_ms() > end)
			die("CSTS.RDY does not follow CC.EN");
}

/* The controller may not be done yet with the one of before a reset. */
static void io_queue_open(struct host *h, uint16_t qid)
{
	int status = SC_CONNECT_BUSY;

	for (int i = 0; (status & ~SC_DNR) == SC_CONNECT_BUSY && i < 100; i++) {
		if (i)
			usleep(50000);
		queue_close(h->queue[qid]);
		h->queue[qid] = queue_new(h, qid);
		status = command_run(connect_new(h->queue[qid], h->cntlid));
	}
	if (status)
		die("Connect of queue %u: status 0x%x", qid, (unsigned)status);
}

/* From CC.EN = 1 on. */
static void host_enable(struct host *h)
{
	struct command *c;

	ready(h, CC_EN | CC_IO_ENTRIES);
	c = command_new(h->queue[0], ADMIN_IDENTIFY);
	put_le(c->capsule + SQE_CDW10, CNS_CONTROLLER, 4);
	command_data(c, SGL_KEYED, PAGE_SIZE);
	admin(c, "Identify Controller");
	if ((get_le32(c->data + 536) & (1 << 2 | 1 << 20)) !=
		    (1 << 2 | 1 << 20) ||
	    (c->data[77] && c->data[77] < MDTS) ||
	    get_le32(c->data + 1792) * 16 < CAPSULE_SIZE)
		die("the controller has not all kinds of SGLs, or transfers "
		    "and capsules are too short");
	c = command_new(h->queue[0], ADMIN_IDENTIFY);
	put_le(c->capsule + SQE_NSID, 1, 4);
	command_data(c, SGL_KEYED_INVALIDATE, PAGE_SIZE);
	admin(c, "Identify Namespace");
	if (c->data[130 + (size_t)4 * (c->data[26] & 15)] != LBA_SHIFT)
		die("its blocks are not of %u bytes", 1u << LBA_SHIFT);
	h->blocks = get_le(c->data, 8);
	c = command_new(h->queue[0], ADMIN_SET_FEATURES);
	put_le(c->capsule + SQE_CDW10, FID_NUMBER_OF_QUEUES, 4);
	put_le(c->capsule + SQE_CDW11, (h->queues - 1) * 0x10001u, 4);
	if ((admin(c, "Number of Queues") & 0xffff) + 1 < h->queues)
		die("not as many queues");
	for (uint16_t i = 1; i <= h->queues; i++)
		io_queue_open(h, i);
}

void host_open(struct host *h)
{
	h->queue[0] = queue_new(h, 0);
	h->cntlid =
		(uint16_t)admin(connect_new(h->queue[0], 0xffff), "Connect");
	host_enable(h);
}

static void queues_close(struct host *h, unsigned from)
{
	for (unsigned i = from; i <= h->queues; i++) {
		queue_close(h->queue[i]);
		h->queue[i] = NULL;
	}
}

void host_reset(struct host *h)
{
	ready(h, 0);
	queues_close(h, 1);
	host_enable(h);
}

void host_close(struct host *h)
{
	queues_close(h, 0);
}
