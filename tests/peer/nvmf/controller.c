/*
 * controller.c - the queues of a controller: connections, capsules, and the data of commands
 *
 * A command whose data goes to the controller waits for it: in the capsule it is
 * there, else a READ fetches it from where the SGL descriptor says. Data for the
 * host goes by a WRITE, and the response by a SEND behind it, so that the host
 * finds the data when it finds the response. Where the descriptor asks for it the
 * SEND invalidates its key.
 *
 * A queue has twice as many receives as the host may have commands: the host may
 * send the next command before this end knows that its response has arrived. What
 * a host does wrong ends its queue at most: a READ or WRITE that its memory refuses
 * ends the QP anyway. With the admin queue all others of the association end.
 */
#include "controller.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CAPSULE_SIZE = SQE_SIZE + IN_CAPSULE, TICK_MS = 100 };

struct subsystem subsystem = { .nqn = "nqn.2026-01.test:disk",
			       .in_capsule = IN_CAPSULE };
static struct queue *queues;
static struct controller *controllers;
static struct rdma_event_channel *events;
static struct ibv_comp_channel *completions;
static uint64_t commands, silent_from = UINT64_MAX;
static volatile sig_atomic_t look, stop;

/* ------------------------------------------------------------- associations */

struct controller *controller_find(uint16_t cntlid)
{
	struct controller *c = controllers;

	while (c && c->cntlid != cntlid)
		c = c->next;
	return c;
}

struct controller *controller_new(void)
{
	static uint16_t last;
	struct controller *c = calloc(1, sizeof(*c));

	if (!c)
		die("no memory");
	do
		c->cntlid = last = last % 0xffef + 1;
	while (controller_find(c->cntlid));
	c->next = controllers;
	controllers = c;
	return c;
}

static void queue_fail(struct queue *q, const char *why)
{
	if (!q->dead)
		q->dead = why;
}

void controller_quiesce(struct controller *c, const char *why)
{
	for (struct queue *q = queues; q; q = q->next)
		if (q->controller == c && q->qid)
			queue_fail(q, why);
}

static void controller_free(struct controller *c)
{
	struct controller **p = &controllers;

	for (struct queue *q = queues; q; q = q->next)
		if (q->controller == c)
			q->controller = NULL;
	while (*p != c)
		p = &(*p)->next;
	*p = c->next;
	free(c);
}

static void queue_free(struct queue *q)
{
	struct queue **p = &queues;

	while (*p != q)
		p = &(*p)->next;
	*p = q->next;
	link_close(&q->link);
	free(q->request);
	free(q);
}

/* Those that have failed end here, where nobody holds any of them. */
static void queues_reap(void)
{
	struct queue *q;

	for (struct controller *c = controllers; c; c = c->next)
		if (c->kato_ms && now_ms() > c->alive_until_ms)
			for (q = queues; q; q = q->next)
				if (q->controller == c)
					queue_fail(q, "no Keep Alive in time");
	for (q = queues; q; q = q->next)
		if (q->dead && !q->qid && q->controller)
			controller_quiesce(q->controller,
					   "its admin queue has ended");
	for (q = queues; q;) {
		struct queue *next = q->next;

		if (q->dead) {
			printf("queue %u ends: %s\n", q->qid, q->dead);
			if (!q->qid && q->controller)
				controller_free(q->controller);
			queue_free(q);
		}
		q = next;
	}
}

/* ------------------------------------------------------------- commands */

void request_receive(struct request *r)
{
	link_receive(&r->queue->link, (uintptr_t)r, r->capsule, CAPSULE_SIZE);
}

static struct ibv_sge data_of(const struct request *r)
{
	return (struct ibv_sge){ (uintptr_t)r->data, r->len,
				 r->queue->link.mr->lkey };
}

void request_respond(struct request *r, enum status status)
{
	struct queue *q = r->queue;
	struct ibv_sge cqe = { (uintptr_t)r->cqe, CQE_SIZE, 0 },
		       data = data_of(r);
	struct ibv_send_wr send = {
		.wr_id = (uintptr_t)r,
		.sg_list = &cqe,
		.num_sge = 1,
		.opcode = r->invalidate ? IBV_WR_SEND_WITH_INV : IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
		.invalidate_rkey = r->rkey
	};
	struct ibv_send_wr write = { .wr_id = (uintptr_t)r,
				     .next = &send,
				     .sg_list = &data,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE,
				     .wr.rdma = { r->address, r->rkey } };
	const bool to_host =
		r->keyed && direction(r->capsule) == TO_HOST && !status;

	q->sqhd = (uint16_t)((q->sqhd + 1) % q->depth);
	put_le(r->cqe + CQE_SQHD, q->sqhd, 2);
	memcpy(r->cqe + CQE_CID, r->capsule + SQE_CID, 2);
	put_le(r->cqe + CQE_STATUS, (uint64_t)status << 1, 2);
	if (!link_send(&q->link, to_host ? &write : &send))
		queue_fail(q, "a response cannot be sent");
}

/* What its SGL descriptor says of the data; in_data: how much is in the capsule. */
static enum status request_sgl(struct request *r, uint32_t in_data)
{
	const uint8_t *sgl = r->capsule + SQE_SGL1;
	const uint64_t address = get_le(sgl + SGL_ADDRESS, 8);
	const uint32_t len = get_le32(sgl + SGL_LENGTH);

	if ((r->capsule[SQE_FLAGS] & PSDT_MASK) != PSDT_SGL)
		return SC_INVALID_FIELD | SC_DNR; /* PRPs, among others */
	if (!r->len)
		return SC_SUCCESS;
	switch (sgl[SGL_ID]) {
	case SGL_DATA_OFFSET:
		if (direction(r->capsule) != TO_CONTROLLER)
			return SC_INVALID_FIELD | SC_DNR;
		if (in_data > subsystem.in_capsule || address > in_data ||
		    len > in_data - address)
			return SC_SGL_OFFSET | SC_DNR;
		if (len != r->len)
			return SC_DATA_SGL_LENGTH | SC_DNR;
		memcpy(r->data, r->capsule + SQE_SIZE + address, len);
		return SC_SUCCESS;
	case SGL_KEYED:
	case SGL_KEYED_INVALIDATE:
		if ((len & 0xffffff) != r->len)
			return SC_DATA_SGL_LENGTH | SC_DNR;
		r->address = address;
		r->rkey = get_le32(sgl + SGL_KEY);
		r->keyed = true;
		r->invalidate = sgl[SGL_ID] == SGL_KEYED_INVALIDATE;
		return SC_SUCCESS;
	default:
		return SC_SGL_DESCRIPTOR_TYPE | SC_DNR;
	}
}

static void request_received(struct request *r, uint32_t len)
{
	struct queue *q = r->queue;
	struct ibv_sge data;
	struct ibv_send_wr read = { .wr_id = (uintptr_t)r,
				    .sg_list = &data,
				    .num_sge = 1,
				    .opcode = IBV_WR_RDMA_READ,
				    .send_flags = IBV_SEND_SIGNALED };
	enum status status;

	if (len < SQE_SIZE) {
		queue_fail(q, "a command capsule of less than 64 bytes");
		return;
	}
	if (q->qid && r->capsule[SQE_OPC] != FABRICS &&
	    ++commands >= silent_from)
		return;
	memset(r->cqe, 0, CQE_SIZE);
	r->len = 0;
	r->keyed = r->invalidate = false;
	status = request_length(r);
	if (!status)
		status = request_sgl(r, len - SQE_SIZE);
	if (status) {
		request_respond(r, status);
		return;
	}
	if (!r->keyed || direction(r->capsule) != TO_CONTROLLER) {
		request_execute(r);
		return;
	}
	data = data_of(r);
	read.wr.rdma.remote_addr = r->address;
	read.wr.rdma.rkey = r->rkey;
	if (!link_send(&q->link, &read))
		queue_fail(q, "a READ cannot be posted");
}

static void completed(struct queue *q, const struct ibv_wc *wc)
{
	struct request *r = (struct request *)(uintptr_t)wc->wr_id;

	if (wc->status) {
		queue_fail(q, ibv_wc_status_str(wc->status));
		return;
	}
	switch (wc->opcode) {
	case IBV_WC_RECV:
		request_received(r, wc->byte_len);
		break;
	case IBV_WC_RDMA_READ:
		request_execute(r);
		break;
	default: /* the response has arrived */
		request_receive(r);
	}
}

static void completions_poll(void)
{
	struct ibv_cq *cq;
	struct ibv_wc wc[16];
	struct queue *q;
	void *context;
	int n;

	if (ibv_get_cq_event(completions, &cq, &context))
		return;
	q = context;
	ibv_ack_cq_events(cq, 1);
	if (ibv_req_notify_cq(cq, 0))
		die("ibv_req_notify_cq");
	while (!q->dead && (n = ibv_poll_cq(cq, 16, wc)) > 0)
		for (int i = 0; i < n && !q->dead; i++)
			completed(q, &wc[i]);
}

/* ------------------------------------------------------------- connections */

/* The reason why a request to connect is rejected; 0: it is not. */
static uint16_t private_check(const struct rdma_conn_param *p)
{
	const uint8_t *d = p->private_data;

	if (p->private_data_len < PRIVATE_SIZE)
		return REJECT_LENGTH;
	if (get_le16(d + PRIVATE_RECFMT))
		return REJECT_RECFMT;
	if (get_le16(d + PRIVATE_QID) > MAX_QUEUES)
		return REJECT_QID;
	if (!get_le16(d + PRIVATE_HSQSIZE) ||
	    get_le16(d + PRIVATE_HSQSIZE) >= MAX_DEPTH)
		return REJECT_HSQSIZE;
	if (!get_le16(d + PRIVATE_HRQSIZE))
		return REJECT_HRQSIZE;
	return p->initiator_depth ? 0 : REJECT_IRD;
}

static void connect_request(struct rdma_cm_event *e)
{
	const struct rdma_conn_param *p = &e->param.conn;
	uint16_t why = private_check(p), depth;
	uint8_t reply[PRIVATE_SIZE] = { 0 };
	struct rdma_conn_param accept = { .private_data = reply,
					  .private_data_len = PRIVATE_SIZE,
					  .responder_resources =
						  p->responder_resources,
					  .rnr_retry_count = 7 };
	struct ibv_device_attr attr;
	struct queue *q = NULL;

	if (!why && (ibv_query_device(e->id->verbs, &attr) ||
		     !(q = calloc(1, sizeof(*q)))))
		why = REJECT_RESOURCES;
	if (why) {
		put_le(reply + 2, why, 2);
		rdma_reject(e->id, reply, 4);
		rdma_destroy_id(e->id);
		printf("a connection is rejected, %u\n", why);
		return;
	}
	q->next = queues;
	queues = q;
	e->id->context = q;
	q->qid = get_le16((const uint8_t *)p->private_data + PRIVATE_QID);
	q->depth = depth =
		(uint16_t)(get_le16((const uint8_t *)p->private_data +
				    PRIVATE_HSQSIZE) +
			   1);
	q->request = calloc(2u * depth, sizeof(*q->request));
	if (!completions)
		completions = ibv_create_comp_channel(e->id->verbs);
	if (!q->request || !completions ||
	    !link_open(&q->link, e->id, completions, q,
		       2ul * depth * (CAPSULE_SIZE + MAX_TRANSFER), 4u * depth,
		       2u * depth)) {
		queue_fail(q, "no resources");
		return;
	}
	for (unsigned i = 0; i < 2u * depth; i++) {
		struct request *r = &q->request[i];

		r->queue = q;
		r->data = q->link.memory + (size_t)i * MAX_TRANSFER;
		r->capsule = q->link.memory + 2ul * depth * MAX_TRANSFER +
			     (size_t)i * CAPSULE_SIZE;
		request_receive(r);
	}
	put_le(reply + 2, depth, 2); /* CRQSIZE */
	accept.initiator_depth = p->initiator_depth < attr.max_qp_init_rd_atom ?
					 p->initiator_depth :
					 (uint8_t)attr.max_qp_init_rd_atom;
	if (rdma_accept(e->id, &accept))
		queue_fail(q, "rdma_accept fails");
}

static void connection_event(void)
{
	struct rdma_cm_event *e, copy;
	uint8_t private[256];

	if (rdma_get_cm_event(events, &e))
		return;
	/* Its identifier may be destroyed only after the event is acknowledged. */
	copy = *e;
	if (e->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
		memcpy(private, e->param.conn.private_data,
		       e->param.conn.private_data_len);
		copy.param.conn.private_data = private;
	}
	rdma_ack_cm_event(e);
	if (copy.event == RDMA_CM_EVENT_CONNECT_REQUEST)
		connect_request(&copy);
	else if (copy.event != RDMA_CM_EVENT_ESTABLISHED &&
		 copy.event != RDMA_CM_EVENT_TIMEWAIT_EXIT && copy.id->context)
		queue_fail(copy.id->context, rdma_event_str(copy.event));
}

/* ------------------------------------------------------------- the program */

static void on_signal(int sig)
{
	if (sig == SIGHUP)
		look = 1;
	else
		stop = 1;
}

/* The file may have been made larger. */
static void namespace_look(void)
{
	struct stat st;

	look = 0;
	if (fstat(subsystem.fd, &st))
		die("fstat: %m");
	subsystem.blocks = (uint64_t)st.st_size >> LBA_SHIFT;
	for (struct controller *c = controllers; c; c = c->next)
		controller_changed(c);
}

static void listen_at(const char *address, const char *port)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE,
				       .ai_port_space = RDMA_PS_TCP },
			     *ai;
	struct rdma_cm_id *id;

	events = rdma_create_event_channel();
	if (!events || rdma_create_id(events, &id, NULL, RDMA_PS_TCP))
		die("rdma_create_id: %m");
	if (rdma_getaddrinfo(address, port, &hints, &ai))
		die("%s: %m", address);
	if (rdma_bind_addr(id, ai->ai_src_addr) || rdma_listen(id, 16))
		die("%s, port %s: %m", address, port);
	rdma_freeaddrinfo(ai);
}

int controller_main(int argc, char **argv)
{
	const struct sigaction act = { .sa_handler = on_signal };
	const char *address = NULL, *port = "4420", *file = NULL;
	int o;

	while ((o = getopt(argc, argv, "a:f:i:n:p:s:")) != -1) {
		if (o == 'a')
			address = optarg;
		else if (o == 'f')
			file = optarg;
		else if (o == 'i')
			subsystem.in_capsule = (uint32_t)atoi(optarg);
		else if (o == 'n')
			snprintf(subsystem.nqn, NQN_SIZE, "%s", optarg);
		else if (o == 'p')
			port = optarg;
		else if (o == 's')
			silent_from = strtoull(optarg, NULL, 0);
		else
			return 2;
	}
	if (!address || !file)
		die("an address (-a) and a file (-f) are needed");
	if (subsystem.in_capsule > IN_CAPSULE || subsystem.in_capsule % 16)
		die("data in capsules: a multiple of 16, %d at most",
		    IN_CAPSULE);
	subsystem.fd = open(file, O_RDWR | O_CLOEXEC);
	if (subsystem.fd < 0)
		die("%s: %m", file);
	namespace_look();
	sigaction(SIGHUP, &act, NULL);
	sigaction(SIGTERM, &act, NULL);
	listen_at(address, port);
	printf("listening\n");
	while (!stop) {
		struct pollfd p[] = { { .fd = events->fd, .events = POLLIN },
				      { .fd = completions ? completions->fd :
							    -1,
					.events = POLLIN } };

		if (poll(p, 2, TICK_MS) > 0) {
			if (p[1].revents)
				completions_poll();
			if (p[0].revents)
				connection_event();
		}
		if (look)
			namespace_look();
		queues_reap();
	}
	while (queues)
		queue_free(queues);
	return 0;
}
