/*
 * rsocket_peer.c - the protocol of rsockets, spoken by hand, right and wrong
 *
 * The server is an rsocket program: it sends back what it receives, until the
 * end of the stream, and takes the next connection. The client speaks the
 * protocol itself, with rdma_cm and verbs alone, as its description says
 * (librdmacm/docs/rsocket of rdma-core): this is not our code that talks to
 * itself. Then it breaks the protocol in every way that it can, each time on a
 * connection of its own; after each, the server must still serve.
 *
 *	rsocket_peer -p PORT		the server; ends when told
 *	rsocket_peer -p PORT HOST	prints "ok ROW" or "not ok ROW: why"
 */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Words to the server; nothing else begins like them. */
#define QUIT "#quit#"
#define STALL "#stall"

/* The server. */

static void serve_one(int s)
{
	static char buf[100000];
	ssize_t n, sent, m;

	while ((n = rrecv(s, buf, sizeof(buf), 0)) > 0) {
		if (n == 6 && !memcmp(buf, QUIT, 6)) {
			rclose(s);
			exit(0);
		}
		if (n == 6 && !memcmp(buf, STALL, 6)) {
			usleep(500000);
			continue;
		}
		for (sent = 0; sent < n; sent += m) {
			m = rsend(s, buf + sent, (size_t)(n - sent), 0);
			if (m < 0)
				break;
		}
		if (sent < n)
			break;
	}
	printf("ended with %s\n", n < 0 ? strerrorname_np(errno) : "the end");
	rclose(s);
}

static int serve(const struct addrinfo *ai)
{
	int s = rsocket(ai->ai_family, SOCK_STREAM, 0), on = 1, c;

	if (s < 0 ||
	    rsetsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) ||
	    rbind(s, ai->ai_addr, ai->ai_addrlen) || rlisten(s, 8)) {
		perror("rsocket");
		return 1;
	}
	puts("ready");
	for (;;) {
		c = raccept(s, NULL, NULL);
		if (c < 0) {
			perror("raccept");
			return 1;
		}
		serve_one(c);
	}
}

/* The client. All numbers are written here as they are on the wire. */

#define BUF 65536 /* of which the peer is granted halves */
#define CREDITS 64
#define OP(op, value) ((uint32_t)(op) << 29 | (uint32_t)(value))

enum { DATA = 0, SGL = 4, IOMAP = 6, CTRL = 7 };

struct sge {
	uint64_t addr;
	uint32_t key, length;
};

struct peer {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct {
		struct sge table[2];
		uint8_t in[BUF];
		uint8_t out[BUF];
		struct sge grant;
	} * mem;

	/* Told by the server. */
	uint8_t told[40];
	uint16_t limit;
	struct sge target, its_table;

	/* Counted here. */
	uint16_t sent, got;
	uint32_t in_pos, table_slot, its_slot;
	int64_t freed;
	unsigned posted, completed;
	bool disconnected, failed;
	uint32_t last; /* the last message */
	uint64_t last_sge_key;
};

static const char *host;
static char port[16];
static int rows, bad;
static char why[256];

static bool fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static bool fail(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	return false;
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void put_be(uint8_t *p, uint64_t v, int bytes)
{
	while (bytes--) {
		p[bytes] = (uint8_t)v;
		v >>= 8;
	}
}

static uint64_t get_be(const uint8_t *p, int bytes)
{
	uint64_t v = 0;

	while (bytes--)
		v = v << 8 | *p++;
	return v;
}

/* What the client tells of itself: version 1, little-endian, one buffer. */
static void tell(const struct peer *p, uint8_t data[40])
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

static bool expect(struct peer *p, enum rdma_cm_event_type type)
{
	int status = 0, got = next_event(p, &status);

	if (got == (int)type)
		return true;
	return fail("%s (%d), expected %s",
		    got < 0 ? "nothing"
			    : rdma_event_str((enum rdma_cm_event_type)got),
		    status, rdma_event_str(type));
}

static bool post_recv(struct peer *p)
{
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad_wr;

	return !ibv_post_recv(p->id->qp, &wr, &bad_wr);
}

static void destroy(struct peer *p)
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
static bool prepare(struct peer *p)
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

static bool request(struct peer *p, const void *data, uint8_t len)
{
	struct rdma_conn_param param = { .private_data = data,
					 .private_data_len = len,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };

	return !rdma_connect(p->id, &param) || fail("rdma_connect: %m");
}

static bool connect_with(struct peer *p, const uint8_t data[40])
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

static bool open_peer(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	return connect_with(p, data);
}

/* An RDMA write with immediate data of len bytes from from. */
static bool write_imm(struct peer *p, const void *from, uint32_t len,
		      uint64_t addr, uint32_t key, uint32_t msg)
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

static bool message(struct peer *p, uint32_t msg)
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
static bool take(struct peer *p, uint8_t *sink, size_t *sunk)
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
static bool echo(struct peer *p, const uint8_t *data, size_t len)
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
static bool until_gone(struct peer *p)
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

static bool say(struct peer *p, const char *word)
{
	uint32_t len = (uint32_t)strlen(word);

	memcpy(p->mem->out, word, len);
	p->sent++;
	p->target.addr += len;
	p->target.length -= len;
	return write_imm(p, p->mem->out, len, p->target.addr - len,
			 p->target.key, OP(DATA, len));
}

/* The rows. */

static bool rep(struct peer *p)
{
	if (!open_peer(p))
		return false;
	if (p->told[0] != 1)
		return fail("version %u", p->told[0]);
	if (p->told[1] != (2 | (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)))
		return fail("flags %#x", p->told[1]);
	if (p->limit != 384 || p->target.length != 65536 ||
	    p->its_table.length != 2)
		return fail("%u credits, %u bytes, %u entries", p->limit,
			    p->target.length, p->its_table.length);
	if (get_be(p->told + 4, 4))
		return fail("mappings nobody asked for");
	return true;
}

static bool echo_one(struct peer *p)
{
	return open_peer(p) && echo(p, (const uint8_t *)"hello", 5);
}

static bool echo_long(struct peer *p)
{
	size_t len = 1000000, i;
	uint8_t *data = malloc(len);
	bool ok;

	for (i = 0; i < len; i++)
		data[i] = (uint8_t)(i * 31 + (i >> 11));
	ok = open_peer(p) && echo(p, data, len);
	free(data);
	return ok;
}

static bool empty_data(struct peer *p)
{
	int i;

	if (!open_peer(p))
		return false;
	for (i = 0; i < 10; i++) {
		p->sent++;
		if (!message(p, OP(DATA, 0)))
			return false;
	}
	return echo(p, (const uint8_t *)"after", 5);
}

static bool keepalive(struct peer *p)
{
	return open_peer(p) && message(p, OP(CTRL, 1)) &&
	       echo(p, (const uint8_t *)"alive", 5);
}

static bool shutdown_row(struct peer *p)
{
	return echo_one(p) && message(p, OP(CTRL, 2)) && until_gone(p) &&
	       (p->disconnected || fail("no good-bye"));
}

static bool disconnect_row(struct peer *p)
{
	return echo_one(p) && message(p, OP(CTRL, 0)) && until_gone(p);
}

static bool silent_end(struct peer *p)
{
	if (!echo_one(p))
		return false;
	rdma_disconnect(p->id);
	return true;
}

/* A big-endian peer gets entries of its table in its byte order. */
static bool swapped(struct peer *p)
{
	double end = now() + 10;
	struct sge *e;
	uint8_t data[40];
	size_t sunk = 0;

	if (!prepare(p))
		return false;
	tell(p, data);
	data[1] |= 1;
	if (!connect_with(p, data))
		return false;
	e = &p->mem->table[1];
	/* take() would believe it. */
	while (!*(volatile uint32_t *)&e->length && now() < end)
		;
	if (__builtin_bswap32(e->length) != 65536 ||
	    __builtin_bswap32(e->key) != p->target.key ||
	    __builtin_bswap64(e->addr) != p->target.addr + 65536)
		return fail("%#lx %#x %#x", (unsigned long)e->addr, e->key,
			    e->length);
	e->length = 0;
	if (!say(p, "swap"))
		return false;
	while (sunk < 4 && now() < end)
		if (!take(p, NULL, &sunk))
			return false;
	return sunk == 4 || fail("no answer");
}

/* From here on, wrong. */

static bool rejected(struct peer *p, const uint8_t *data, uint8_t len)
{
	return request(p, data, len) && expect(p, RDMA_CM_EVENT_REJECTED);
}

static bool no_private_data(struct peer *p)
{
	return prepare(p) && rejected(p, NULL, 0);
}

static bool version_2(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	data[0] = 2;
	return rejected(p, data, 40);
}

static bool no_table(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	put_be(data + 20, 0, 4);
	return rejected(p, data, 40);
}

static bool no_buffer(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	put_be(data + 36, 0, 4);
	return rejected(p, data, 40);
}

/* The server's first grant goes where it may not write. */
static bool lying_table(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	put_be(data + 16, p->mr->rkey ^ 0x5555, 4);
	put_be(data + 20, 0xffffffff, 4);
	return connect_with(p, data) && say(p, "x") && until_gone(p);
}

static bool lying_buffer(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	put_be(data + 24, 0xfffffffffffff000, 8);
	return connect_with(p, data) && say(p, "x") && until_gone(p);
}

static bool too_much_data(struct peer *p)
{
	return open_peer(p) && message(p, OP(DATA, 0x1fffffff)) &&
	       until_gone(p);
}

/* The server sleeps, so that what follows is there all at once. */
static bool stall(struct peer *p)
{
	if (!open_peer(p) || !say(p, STALL))
		return false;
	usleep(100000);
	return true;
}

static bool a_byte_too_much(struct peer *p)
{
	return stall(p) && message(p, OP(DATA, 65536)) &&
	       message(p, OP(DATA, 65536 - 6)) && message(p, OP(DATA, 1)) &&
	       until_gone(p);
}

static bool too_many_messages(struct peer *p)
{
	int i;

	if (!stall(p))
		return false;
	for (i = 0; i < 390; i++)
		if (!message(p, OP(DATA, 1)))
			return false;
	return until_gone(p);
}

static bool unknown_op(struct peer *p, uint32_t op)
{
	return open_peer(p) && message(p, OP(op, 1)) && until_gone(p);
}

static bool op1(struct peer *p)
{
	return unknown_op(p, 1);
}

static bool op2(struct peer *p)
{
	return unknown_op(p, 2);
}

static bool op3(struct peer *p)
{
	return unknown_op(p, 3);
}

static bool op5(struct peer *p)
{
	return unknown_op(p, 5);
}

static bool a_send(struct peer *p)
{
	struct ibv_send_wr wr = { .wr_id = 2,
				  .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED },
			   *bad_wr;

	return open_peer(p) &&
	       (!ibv_post_send(p->id->qp, &wr, &bad_wr) || fail("post")) &&
	       until_gone(p);
}

static bool unknown_ctrl(struct peer *p)
{
	return open_peer(p) && message(p, OP(CTRL, 0x1234)) &&
	       echo(p, (const uint8_t *)"still", 5);
}

static bool strange_credits(struct peer *p)
{
	int i;

	if (!open_peer(p))
		return false;
	for (i = 0; i < 1000; i++) {
		if (!message(p, OP(SGL, (uint32_t)i * 0x12345)))
			return false;
		while (p->posted - p->completed > 100 && !p->failed) {
			size_t sunk = 0;

			if (!take(p, NULL, &sunk))
				return false;
		}
	}
	return message(p, OP(SGL, CREDITS)) &&
	       echo(p, (const uint8_t *)"fine", 4);
}

/* The table is ours to write, with anything. */
static bool strange_table(struct peer *p)
{
	uint32_t i;

	if (!open_peer(p))
		return false;
	for (i = 0; i < sizeof(p->mem->out); i++)
		p->mem->out[i] = (uint8_t)(i * 37);
	p->freed = -BUF; /* no grant replaces it */
	return write_imm(p, p->mem->out, 32, p->its_table.addr,
			 p->its_table.key, OP(SGL, CREDITS)) &&
	       /* It comes to those entries when it sends more than a buffer. */
	       message(p, OP(DATA, 65536)) && until_gone(p);
}

static bool beyond_the_table(struct peer *p)
{
	return open_peer(p) &&
	       write_imm(p, p->mem->out, 4096, p->its_table.addr,
			 p->its_table.key, OP(SGL, CREDITS)) &&
	       until_gone(p) && (p->failed || fail("it was written"));
}

static bool beyond_the_buffer(struct peer *p)
{
	return open_peer(p) &&
	       write_imm(p, p->mem->out, 100, p->target.addr + 2 * 65536 - 50,
			 p->target.key, OP(DATA, 100)) &&
	       until_gone(p) && (p->failed || fail("it was written"));
}

static bool gone_at_once(struct peer *p)
{
	uint8_t data[40];

	if (!prepare(p))
		return false;
	tell(p, data);
	/* The answer finds nobody. */
	return request(p, data, 40);
}

static const struct row {
	const char *name;
	bool (*run)(struct peer *p);
} table[] = {
	{ "REP: version, flags, credits, table and buffer", rep },
	{ "echo of five bytes", echo_one },
	{ "echo of a million bytes", echo_long },
	{ "data messages without data", empty_data },
	{ "a keepalive message", keepalive },
	{ "shutdown is answered with disconnect", shutdown_row },
	{ "disconnect", disconnect_row },
	{ "a connection that ends without a message", silent_end },
	{ "a peer of the other byte order", swapped },
	{ "no private data", no_private_data },
	{ "version 2", version_2 },
	{ "a table of no entries", no_table },
	{ "a buffer of no bytes", no_buffer },
	{ "a table that may not be written", lying_table },
	{ "a buffer that may not be written", lying_buffer },
	{ "more data than was granted", too_much_data },
	{ "a byte more than was granted", a_byte_too_much },
	{ "more messages than credits", too_many_messages },
	{ "message type 1", op1 },
	{ "message type 2", op2 },
	{ "message type 3", op3 },
	{ "message type 5", op5 },
	{ "a message without immediate data", a_send },
	{ "an unknown control message", unknown_ctrl },
	{ "credits of any value", strange_credits },
	{ "a table of nonsense", strange_table },
	{ "a write beyond the table", beyond_the_table },
	{ "a write beyond the buffer", beyond_the_buffer },
	{ "a peer that is gone when it is accepted", gone_at_once },
	{ "echo after all that", echo_long },
};

static void run(const struct row *row)
{
	struct peer p;
	bool ok;

	why[0] = '\0';
	ok = row->run(&p);
	destroy(&p);
	/* Whatever happened, the next is served. */
	if (ok &&
	    (!echo_one(&p) || !message(&p, OP(CTRL, 0)) || !until_gone(&p))) {
		ok = false;
		strncat(why, " (afterwards)", sizeof(why) - strlen(why) - 1);
	}
	if (ok && p.ch)
		destroy(&p);
	printf("%sok %s%s%s\n", ok ? "" : "not ", row->name, ok ? "" : ": ",
	       ok ? "" : why);
	fflush(stdout);
	rows++;
	bad += !ok;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_PASSIVE,
				  .ai_socktype = SOCK_STREAM },
			*ai;
	const char *only = getenv("ROW");
	struct peer p;
	size_t i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc < 3 || strcmp(argv[1], "-p")) {
		fprintf(stderr, "usage: rsocket_peer -p PORT [HOST]\n");
		return 2;
	}
	snprintf(port, sizeof(port), "%s", argv[2]);
	host = argc > 3 ? argv[3] : NULL;
	if (!host) {
		hints.ai_family = AF_INET6;
		if (getaddrinfo(NULL, port, &hints, &ai))
			return 2;
		return serve(ai);
	}
	if (host[0] == '-' && host[1] == 'l')
		for (i = 0; i < sizeof(table) / sizeof(table[0]); i++)
			puts(table[i].name);
	if (host[0] == '-')
		return 0;
	for (i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		if (!only || !strcmp(only, table[i].name))
			run(&table[i]);
	if (open_peer(&p))
		say(&p, QUIT);
	until_gone(&p);
	destroy(&p);
	printf("%d rows, %d bad\n", rows, bad);
	return bad != 0;
}
