/*
 * rsocket_rows.c - what a peer of an rsocket says, right and wrong
 *
 * Each row is a connection of its own. The wrong ones break the protocol in
 * every way that they can.
 */
#include "rsocket_peer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

bool echo_one(struct peer *p)
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

/* The server answers and reads no more: what follows is granted by nobody. */
static bool stall(struct peer *p)
{
	double end = now() + 10;
	size_t sunk = 0;

	if (!open_peer(p) || !say(p, STALL))
		return false;
	while (sunk < strlen(STALL) && now() < end)
		if (!take(p, NULL, &sunk))
			return false;
	return sunk == strlen(STALL) || fail("no answer");
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

const struct row table[] = {
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
	{ NULL, NULL },
};
