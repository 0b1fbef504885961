/*
 * rsocket_speak.c - a peer of rsockets that keeps the protocol
 *
 * It uses rdma_cm and verbs alone, as the description of the protocol says
 * (librdmacm/docs/rsocket of rdma-core): this is not our code that talks to
 * itself.
 */
#include "rsocket_peer.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *host;
char port[16];
char why[256];

bool fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return false;
}

double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

void put_be(uint8_t *p, uint64_t v, int bytes)
{
	while (bytes--) {
		p[bytes] = (uint8_t)v;
		v >>= 8;
	}
}

uint64_t get_be(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	while (bytes--)
		v = v << 8 | *p++;
	return v;
}

/* What the client tells of itself: version 1, little-endian, one buffer. */
void tell(const struct peer *p, uint8_t data[40])
{
	memset(data, 0, 40);
	data[0] = 1;
	data[1] = 2; /* it has (no) mappings */
	put_be(data + 2, CREDITS, 2);
	put_be(data + 8, (uintptr_t)p->mem->table, 8);
	put_be(data + 16, p->mr->rkey, 4);
	put_be(data + 20, 2, 4);
	put_be(data + 24, (uintptr_t)p->mem->in, 8);
	put_be(data + 32, p->mr->rkey, 4);
	put_be(data + 36, BUF / 2, 4);
}

/* The next event, within some seconds. Its id's type, or -1. */
static int next_event(struct peer *p, int *status)
{
	struct pollfd pfd = { .fd = p->ch->fd, .events = POLLIN };
	struct rdma_cm_event *ev;
	int type;

	if (poll(&pfd, 1, 10000) <= 0 || rdma_get_cm_event(p->ch, &ev))
		return -1;
	type = (int)ev->event;
	*status = ev->status;
	if (type == RDMA_CM_EVENT_ESTABLISHED &&
	    ev->param.conn.private_data_len >= 40)
		memcpy(p->told, ev->param.conn.private_data, 40);
	rdma_ack_cm_event(ev);
	return type;
}

bool expect(struct peer *p, enum rdma_cm_event_type type)
{
	int status = 0, got = next_event(p, &status);

	if (got == (int)type)
		return true;
	return fail("%s (%d), expected %s",
		    got < 0 ? "nothing" :
			      rdma_event_str((enum rdma_cm_event_type)got),
		    status, rdma_event_str(type));
}

static bool post_recv(struct peer *p)
{
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad_wr;

	return !ibv_post_recv(p->id->qp, &wr, &bad_wr);
}

void destroy(struct peer *p)
{
	if (p->id && p->id->qp) {
		rdma_disconnect(p->id);
		rdma_destroy_qp(p->id);
	}
	if (p->mr)
		ibv_dereg_mr(p->mr);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->id)
		rdma_destroy_id(p->id);
	if (p->ch)
		rdma_destroy_event_channel(p->ch);
	free(p->mem);
}

/* Up to the point where a REQ can be sent. */
bool prepare(struct peer *p)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC };
	struct addrinfo *ai;
	int i;

	memset(p, 0, sizeof(*p));
	p->mem = aligned_alloc(4096, (sizeof(*p->mem) + 4095) & ~4095ul);
	memset(p->mem, 0, sizeof(*p->mem));
	p->ch = rdma_create_event_channel();
	if (!p->ch || rdma_create_id(p->ch, &p->id, NULL, RDMA_PS_TCP))
		return fail("rdma_create_id: %m");
	if (getaddrinfo(host, port, NULL, &ai))
		return fail("no such host");
	i = rdma_resolve_addr(p->id, NULL, ai->ai_addr, 2000);
	freeaddrinfo(ai);
	if (i || !expect(p, RDMA_CM_EVENT_ADDR_RESOLVED))
		return fail("rdma_resolve_addr");
	if (rdma_resolve_route(p->id, 2000) ||
	    !expect(p, RDMA_CM_EVENT_ROUTE_RESOLVED))
		return fail("rdma_resolve_route");
	p->cq = ibv_create_cq(p->id->verbs, 2048, NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = p->cq;
	attr.cap.max_send_wr = attr.cap.max_recv_wr = 1000;
	attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
	if (!p->cq || rdma_create_qp(p->id, NULL, &attr))
		return fail("rdma_create_qp: %m");
	p->mr = ibv_reg_mr(p->id->pd, p->mem, sizeof(*p->mem),
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (!p->mr)
		return fail("ibv_reg_mr: %m");
	for (i = 0; i < CREDITS + 8; i++)
		if (!post_recv(p))
			return fail("ibv_post_recv");
	return true;
}

bool request(struct peer *p, const void *data, uint8_t len)
{
	struct rdma_conn_param param = { .private_data = data,
					 .private_data_len = len,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };

	return !rdma_connect(p->id, &param) || fail("rdma_connect: %m");
}

bool connect_with(struct peer *p, const uint8_t data[40])
{
	if (!request(p, data, 40) || !expect(p, RDMA_CM_EVENT_ESTABLISHED))
		return false;
	p->limit = (uint16_t)get_be(p->told + 2, 2);
	p->its_table = (struct sge){ get_be(p->told + 8, 8),
				     (uint32_t)get_be(p->told + 16, 4),
				     (uint32_t)get_be(p->told + 20, 4) };
	p->target = (struct sge){ get_be(p->told + 24, 8),
				  (uint32_t)get_be(p->told + 32, 4),
				  (uint32_t)get_be(p->told + 36, 4) };
	p->table_slot = 1;
	p->its_slot = 1;
	p->freed = BUF / 2;
	return true;
}

bool open_peer(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	return connect_with(p, data);
}

/* An RDMA write with immediate data of len bytes from from. */
bool write_imm(struct peer *p, const void *from, uint32_t len, uint64_t addr,
	       uint32_t key, uint32_t msg)
{
	struct ibv_sge sg = { (uintptr_t)from, len, p->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2,
				  .sg_list = &sg,
				  .num_sge = len ? 1 : 0,
				  .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
				  .send_flags = IBV_SEND_SIGNALED,
				  .imm_data = htobe32(msg) },
			   *bad_wr;

	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = key;
	if (ibv_post_send(p->id->qp, &wr, &bad_wr))
		return fail("ibv_post_send");
	p->posted++;
	return true;
}

bool message(struct peer *p, uint32_t msg)
{
	return write_imm(p, NULL, 0, 0, 0, msg);
}

/* Grants what has been read, as the description says. */
static bool grant(struct peer *p)
{
	if (p->freed < BUF / 2)
		return true;
	p->freed -= BUF / 2;
	p->mem->grant = (struct sge){
		.addr = (uintptr_t)p->mem->in +
			(p->its_slot == 1 ? BUF / 2 : 0),
		.key = p->mr->rkey,
		.length = BUF / 2,
	};
	if (!write_imm(p, &p->mem->grant, 16,
		       p->its_table.addr + 16 * p->its_slot, p->its_table.key,
		       OP(SGL, (uint16_t)(p->got + CREDITS))))
		return false;
	p->its_slot ^= 1;
	return true;
}

/* Takes completions; data goes to sink, which may be NULL. */
bool take(struct peer *p, uint8_t *sink, size_t *sunk)
{
	struct ibv_wc wc;
	uint32_t len;
	int n;

	while ((n = ibv_poll_cq(p->cq, 1, &wc)) > 0) {
		if (wc.wr_id == 2)
			p->completed++;
		if (wc.status) {
			p->failed = true;
			continue;
		}
		if (wc.wr_id == 2)
			continue;
		post_recv(p);
		p->last = be32toh(wc.imm_data);
		len = p->last & 0x1fffffff;
		switch (p->last >> 29) {
		case SGL:
			p->limit = (uint16_t)len;
			break;
		case CTRL:
			p->disconnected = len == 0;
			break;
		case DATA:
			if (sink)
				memcpy(sink + *sunk, p->mem->in + p->in_pos,
				       len);
			*sunk += len;
			p->in_pos = (p->in_pos + len) % BUF;
			p->freed += len;
			p->got++;
			break;
		default:
			return fail("message %#x", p->last);
		}
	}
	if (!p->target.length && p->mem->table[p->table_slot].length) {
		p->target = p->mem->table[p->table_slot];
		p->mem->table[p->table_slot].length = 0;
		p->table_slot ^= 1;
	}
	return n >= 0 && grant(p);
}

/* Sends len bytes and receives as many, which must be the same. */
bool echo(struct peer *p, const uint8_t *data, size_t len)
{
	uint8_t *sink = malloc(len + BUF);
	size_t sent = 0, sunk = 0;
	double end = now() + 20;
	uint32_t n;
	bool ok = false;

	while (sunk < len) {
		if (!take(p, sink, &sunk))
			goto out;
		if (p->failed || p->disconnected || now() > end) {
			fail("%zu bytes sent, %zu received%s%s", sent, sunk,
			     p->failed ? ", failed" : "",
			     p->disconnected ? ", disconnected" : "");
			goto out;
		}
		if (sent == len || !p->target.length || p->sent == p->limit ||
		    p->posted - p->completed > 200)
			continue;
		n = 1 + (uint32_t)((sent * 7919) % 5000);
		if (n > len - sent)
			n = (uint32_t)(len - sent);
		if (n > p->target.length)
			n = p->target.length;
		if (sent % BUF + n > BUF)
			n = (uint32_t)(BUF - sent % BUF);
		/* Not before what was there has left. */
		while (p->posted != p->completed)
			if (!take(p, sink, &sunk) || p->failed)
				goto out;
		memcpy(p->mem->out, data + sent, n);
		if (!write_imm(p, p->mem->out, n, p->target.addr, p->target.key,
			       OP(DATA, n)))
			goto out;
		p->target.addr += n;
		p->target.length -= n;
		p->sent++;
		sent += n;
	}
	ok = !memcmp(sink, data, len) || fail("the bytes differ");
out:
	free(sink);
	return ok;
}

/* Until the server has said good-bye, or its queue pair is gone. */
bool until_gone(struct peer *p)
{
	struct pollfd pfd = { .fd = p->ch->fd, .events = POLLIN };
	double end = now() + 15;
	size_t sunk = 0;
	bool gone = false;

	while (now() < end) {
		if (!take(p, NULL, &sunk) || p->disconnected || p->failed)
			return true;
		/* What was under way then completes, in error perhaps. */
		if (!gone && poll(&pfd, 1, 1) > 0) {
			gone = true;
			end = now() + 3;
			continue;
		}
		if (gone && p->completed == p->posted)
			return true;
	}
	if (gone)
		return true;
	return fail("the server holds on to the connection");
}

bool say(struct peer *p, const char *word)
{
	uint32_t len = (uint32_t)strlen(word);

	memcpy(p->mem->out, word, len);
	p->sent++;
	p->target.addr += len;
	p->target.length -= len;
	return write_imm(p, p->mem->out, len, p->target.addr - len,
			 p->target.key, OP(DATA, len));
}
