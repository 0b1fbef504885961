/*
 * commands.c - what a controller does with a command whose data is there
 *
 * Nothing here knows how capsules and data travel: request_length() says how much
 * data a command moves, request_execute() finds in request.data what came from
 * the host, and leaves there what goes to it.
 */
#include "controller.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static uint8_t opcode(const struct request *r)
{
	return r->capsule[SQE_OPC];
}

static uint32_t cdw(const struct request *r, unsigned n)
{
	return get_le32(r->capsule + (size_t)4 * n);
}

static bool is_nvm(const struct request *r)
{
	return r->queue->qid && opcode(r) != FABRICS;
}

/* Of a command that reads or writes blocks, in bytes. */
static uint64_t extent(const struct request *r)
{
	return ((uint64_t)(cdw(r, 12) & 0xffff) + 1) << LBA_SHIFT;
}

enum status request_length(struct request *r)
{
	uint64_t len = 0;

	if (is_nvm(r)) {
		if (opcode(r) == NVM_READ || opcode(r) == NVM_WRITE)
			len = extent(r);
	} else if (opcode(r) == FABRICS) {
		if (r->capsule[SQE_FCTYPE] == FABRICS_CONNECT)
			len = CONNECT_SIZE;
	} else if (opcode(r) == ADMIN_IDENTIFY) {
		len = PAGE_SIZE;
	} else if (opcode(r) == ADMIN_GET_LOG_PAGE) {
		len = ((cdw(r, 10) >> 16 | (uint64_t)(cdw(r, 11) & 0xffff)
						   << 16) +
		       1) *
		      4;
	}
	if (len > MAX_TRANSFER)
		return SC_INVALID_FIELD | SC_DNR;
	r->len = (uint32_t)len;
	return SC_SUCCESS;
}

/* ------------------------------------------------------------- Fabrics */

/* Where the wrong parameter is, in the command or in its data. */
static enum status connect_invalid(struct request *r, uint32_t at, bool in_data)
{
	put_le(r->cqe + CQE_DW0, at | (uint32_t)in_data << 16, 4);
	return SC_CONNECT_INVALID | SC_DNR;
}

static enum status fabrics_connect(struct request *r)
{
	const uint8_t *data = r->data;
	const char *hostnqn = (const char *)data + DATA_HOSTNQN;
	const uint16_t size = get_le16(r->capsule + CONNECT_SQSIZE),
		       cntlid = get_le16(data + DATA_CNTLID);
	struct queue *q = r->queue;
	struct controller *c;

	if (get_le16(r->capsule + CONNECT_RECFMT))
		return SC_CONNECT_FORMAT | SC_DNR;
	if (get_le16(r->capsule + CONNECT_QID) != q->qid)
		return connect_invalid(r, CONNECT_QID, false);
	if (!size || size >= q->depth)
		return connect_invalid(r, CONNECT_SQSIZE, false);
	if (strncmp((const char *)data + DATA_SUBNQN, subsystem.nqn, NQN_SIZE))
		return connect_invalid(r, DATA_SUBNQN, true);
	if (!hostnqn[0] || !memchr(hostnqn, 0, NQN_SIZE))
		return connect_invalid(r, DATA_HOSTNQN, true);
	if (!q->qid) {
		if (cntlid != 0xffff) /* the dynamic controller model */
			return connect_invalid(r, DATA_CNTLID, true);
		c = controller_new();
		memcpy(c->hostid, data + DATA_HOSTID, sizeof(c->hostid));
		memcpy(c->hostnqn, hostnqn, NQN_SIZE);
		c->kato_ms = get_le32(r->capsule + CONNECT_KATO);
		c->alive_until_ms = now_ms() + c->kato_ms;
	} else {
		c = controller_find(cntlid);
		if (!c)
			return connect_invalid(r, DATA_CNTLID, true);
		if (memcmp(c->hostid, data + DATA_HOSTID, sizeof(c->hostid)) ||
		    strcmp(c->hostnqn, hostnqn))
			return connect_invalid(r, DATA_HOSTNQN, true);
		if (!(c->csts & CSTS_RDY))
			return SC_COMMAND_SEQUENCE | SC_DNR;
	}
	q->controller = c;
	put_le(r->cqe + CQE_DW0, c->cntlid, 2);
	return SC_SUCCESS;
}

static enum status property_get(struct request *r)
{
	const struct controller *c = r->queue->controller;
	const bool eight = r->capsule[PROPERTY_ATTRIB] & 1;
	const uint64_t cap = (MAX_DEPTH - 1) | /* MQES */
			     1 << 16 | /* CQR */
			     (uint64_t)20 << 24 | /* TO: 10 s */
			     (uint64_t)1 << 37; /* CSS: NVM */
	uint64_t v;

	switch (cdw(r, PROPERTY_OFST / 4)) {
	case PROP_CAP:
		v = cap;
		break;
	case PROP_VS:
		v = 0x10400;
		break;
	case PROP_CC:
		v = c->cc;
		break;
	case PROP_CSTS:
		v = c->csts;
		break;
	default:
		return SC_INVALID_FIELD | SC_DNR;
	}
	if (eight != (cdw(r, PROPERTY_OFST / 4) == PROP_CAP))
		return SC_INVALID_FIELD | SC_DNR;
	put_le(r->cqe + CQE_DW0, v, 8);
	return SC_SUCCESS;
}

static enum status property_set(struct request *r)
{
	struct controller *c = r->queue->controller;
	const uint32_t cc = cdw(r, PROPERTY_VALUE / 4), was = c->cc;

	if (cdw(r, PROPERTY_OFST / 4) != PROP_CC ||
	    r->capsule[PROPERTY_ATTRIB] & 1)
		return SC_INVALID_FIELD | SC_DNR;
	c->cc = cc;
	if (cc & CC_EN &&
	    !(was & CC_EN)) /* else as CSTS.CFS would say: never ready */
		c->csts = (cc & (0xf << 16 | 0xf << 20)) == CC_IO_ENTRIES ?
				  CSTS_RDY :
				  0;
	if (cc & CC_SHN && !(was & CC_SHN))
		c->csts |= CSTS_SHST_DONE;
	if (!(cc & CC_EN) && was & CC_EN) {
		c->csts = 0;
		c->events = 0;
		while (c->event_requests) /* they end without a response */
			request_receive(c->event_request[--c->event_requests]);
		controller_quiesce(c, "the controller is reset");
	}
	return SC_SUCCESS;
}

/* ------------------------------------------------------------- Admin */

static void put_text(uint8_t *to, size_t size, const char *text)
{
	memset(to, ' ', size);
	memcpy(to, text, strlen(text));
}

static void identify_controller(const struct controller *c, uint8_t *d)
{
	put_text(d + 4, 20, "1"); /* SN */
	put_text(d + 24, 40, "softhca test controller"); /* MN */
	put_text(d + 64, 8, "1"); /* FR */
	d[77] = MDTS;
	put_le(d + 78, c->cntlid, 2);
	put_le(d + 80, 0x10400, 4); /* VER */
	put_le(d + 92, EVENTS_NAMESPACE, 4); /* OAES */
	d[111] = 1; /* CNTRLTYPE: I/O */
	d[259] = EVENT_REQUESTS - 1; /* AERL */
	d[260] = 3; /* FRMW: one slot, which is read-only */
	put_le(d + 320, 10, 2); /* KAS, 100 ms each */
	d[512] = 0x66; /* SQES */
	d[513] = 0x44; /* CQES */
	put_le(d + 514, MAX_DEPTH, 2); /* MAXCMD */
	put_le(d + 516, 1, 4); /* NN */
	put_le(d + 520, 1 << 3, 2); /* ONCS: Write Zeroes */
	d[525] = 1; /* VWC: a write is safe after Flush */
	put_le(d + 536, 1 | 1 << 2 | (subsystem.in_capsule ? 1 << 20 : 0),
	       4); /* SGLS: keyed, and by offset */
	memcpy(d + 768, subsystem.nqn, NQN_SIZE);
	put_le(d + 1792, (SQE_SIZE + subsystem.in_capsule) / 16,
	       4); /* IOCCSZ */
	put_le(d + 1796, CQE_SIZE / 16, 4); /* IORCSZ */
	d[1803] = 1; /* MSDBD: one descriptor in a command */
}

static enum status identify(struct request *r)
{
	static const uint8_t nguid[16] = "softhca test dis";
	uint8_t *d = r->data;
	const uint32_t nsid = cdw(r, 1);

	memset(d, 0, PAGE_SIZE);
	switch (cdw(r, 10) & 0xff) {
	case CNS_CONTROLLER:
		identify_controller(r->queue->controller, d);
		return SC_SUCCESS;
	case CNS_NAMESPACE:
		if (nsid != 1 && nsid != 0xffffffff)
			return SC_INVALID_NAMESPACE | SC_DNR;
		for (unsigned i = 0; i < 3; i++) /* NSZE, NCAP, NUSE */
			put_le(d + (size_t)8 * i, subsystem.blocks, 8);
		memcpy(d + 104, nguid, sizeof(nguid));
		d[130] = LBA_SHIFT; /* LBADS of the one format */
		return SC_SUCCESS;
	case CNS_NAMESPACES:
		if (nsid >= 0xfffffffe)
			return SC_INVALID_NAMESPACE | SC_DNR;
		put_le(d, nsid < 1, 4); /* those above it */
		return SC_SUCCESS;
	case CNS_DESCRIPTORS:
		if (nsid != 1)
			return SC_INVALID_NAMESPACE | SC_DNR;
		d[0] = 2; /* NGUID */
		d[1] = sizeof(nguid);
		memcpy(d + 4, nguid, sizeof(nguid));
		return SC_SUCCESS;
	default:
		return SC_INVALID_FIELD | SC_DNR;
	}
}

static enum status log_page(struct request *r)
{
	struct controller *c = r->queue->controller;
	uint8_t log[PAGE_SIZE] = { 0 };
	const uint64_t from = cdw(r, 12) | (uint64_t)cdw(r, 13) << 32;

	switch (cdw(r, 10) & 0xff) {
	case LID_ERRORS: /* none are kept */
		break;
	case LID_CHANGED_NAMESPACES:
		put_le(log, c->changed, 4);
		if (!(cdw(r, 10) & 1 << 15)) /* RAE */
			c->changed = c->told = false;
		break;
	default:
		return SC_INVALID_LOG_PAGE | SC_DNR;
	}
	if (from > sizeof(log))
		return SC_INVALID_FIELD | SC_DNR;
	memset(r->data, 0, r->len);
	memcpy(r->data, log + from,
	       sizeof(log) - from < r->len ? sizeof(log) - from : r->len);
	return SC_SUCCESS;
}

static enum status features(struct request *r, bool set)
{
	struct controller *c = r->queue->controller;
	const uint32_t want = cdw(r, 11);
	uint32_t v;

	switch (cdw(r, 10) & 0xff) {
	case FID_NUMBER_OF_QUEUES:
		if (set && ((want & 0xffff) == 0xffff || want >> 16 == 0xffff))
			return SC_INVALID_FIELD | SC_DNR;
		v = (MAX_QUEUES - 1) | (MAX_QUEUES - 1) << 16;
		break;
	case FID_ASYNC_EVENTS:
		if (set)
			c->events = want & EVENTS_NAMESPACE;
		v = c->events;
		break;
	case FID_KEEP_ALIVE:
		if (set) {
			c->kato_ms = want;
			c->alive_until_ms = now_ms() + want;
		}
		v = c->kato_ms;
		break;
	default:
		return SC_INVALID_FIELD | SC_DNR;
	}
	put_le(r->cqe + CQE_DW0, v, 4);
	return SC_SUCCESS;
}

/* One of the requests that wait for an event has it. */
static void tell(struct controller *c)
{
	struct request *r;

	if (!c->changed || c->told || !c->event_requests ||
	    !(c->events & EVENTS_NAMESPACE))
		return;
	r = c->event_request[--c->event_requests];
	c->told = true;
	/* a notice: namespace attributes, and where more is to be read */
	put_le(r->cqe + CQE_DW0, 2 | LID_CHANGED_NAMESPACES << 16, 4);
	request_respond(r, SC_SUCCESS);
}

void controller_changed(struct controller *c)
{
	c->changed = true;
	tell(c);
}

/* ------------------------------------------------------------- NVM */

static enum status nvm(struct request *r)
{
	const uint64_t lba = cdw(r, 10) | (uint64_t)cdw(r, 11) << 32,
		       len = extent(r), at = lba << LBA_SHIFT;
	ssize_t done;

	if (cdw(r, 1) != 1 &&
	    (opcode(r) != NVM_FLUSH || cdw(r, 1) != 0xffffffff))
		return SC_INVALID_NAMESPACE | SC_DNR;
	if (opcode(r) == NVM_FLUSH)
		return fdatasync(subsystem.fd) ? SC_INTERNAL_ERROR : SC_SUCCESS;
	if (opcode(r) != NVM_READ && opcode(r) != NVM_WRITE &&
	    opcode(r) != NVM_WRITE_ZEROES)
		return SC_INVALID_OPCODE | SC_DNR;
	if (lba >= subsystem.blocks ||
	    len >> LBA_SHIFT > subsystem.blocks - lba)
		return SC_LBA_OUT_OF_RANGE | SC_DNR;
	switch (opcode(r)) {
	case NVM_READ:
		done = pread(subsystem.fd, r->data, len, (off_t)at);
		break;
	case NVM_WRITE:
		done = pwrite(subsystem.fd, r->data, len, (off_t)at);
		break;
	default:
		done = fallocate(subsystem.fd,
				 FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				 (off_t)at, (off_t)len) ?
			       -1 :
			       (ssize_t)len;
	}
	if (done != (ssize_t)len) {
		fprintf(stderr, "the namespace's file, at %llu: %s\n",
			(unsigned long long)at,
			done < 0 ? strerror(errno) : "it is too short");
		return SC_INTERNAL_ERROR;
	}
	return SC_SUCCESS;
}

/* Of all but Fabrics commands, on the admin queue. */
static enum status admin(struct request *r)
{
	struct controller *c = r->queue->controller;

	switch (opcode(r)) {
	case ADMIN_IDENTIFY:
		return identify(r);
	case ADMIN_GET_LOG_PAGE:
		return log_page(r);
	case ADMIN_SET_FEATURES:
	case ADMIN_GET_FEATURES:
		return features(r, opcode(r) == ADMIN_SET_FEATURES);
	case ADMIN_KEEP_ALIVE:
		c->alive_until_ms = now_ms() + c->kato_ms;
		return SC_SUCCESS;
	default:
		return SC_INVALID_OPCODE | SC_DNR;
	}
}

static enum status fabrics(struct request *r)
{
	const uint8_t type = r->capsule[SQE_FCTYPE];

	if (type == FABRICS_CONNECT)
		return r->queue->controller ? SC_COMMAND_SEQUENCE | SC_DNR :
					      fabrics_connect(r);
	if (!r->queue->controller)
		return SC_COMMAND_SEQUENCE | SC_DNR;
	if (r->queue->qid ||
	    (type != FABRICS_PROPERTY_GET && type != FABRICS_PROPERTY_SET))
		return SC_INVALID_OPCODE | SC_DNR;
	return type == FABRICS_PROPERTY_GET ? property_get(r) : property_set(r);
}

void request_execute(struct request *r)
{
	struct controller *c = r->queue->controller;
	enum status status;

	if (opcode(r) == FABRICS) {
		status = fabrics(r);
	} else if (!c || !(c->csts & CSTS_RDY)) {
		status = SC_COMMAND_SEQUENCE | SC_DNR;
	} else if (r->queue->qid) {
		status = nvm(r);
	} else if (opcode(r) == ADMIN_ASYNC_EVENT_REQUEST) {
		if (c->event_requests < EVENT_REQUESTS) {
			c->event_request[c->event_requests++] = r;
			tell(c);
			return;
		}
		status = SC_ASYNC_EVENT_LIMIT | SC_DNR;
	} else {
		status = admin(r);
	}
	request_respond(r, status);
}
