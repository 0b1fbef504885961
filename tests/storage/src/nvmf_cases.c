/*
 * nvmf_cases.c - what the host of tests/peer/nvmf does with a controller, case by case
 *
 *   identify   says what there is
 *   show       a command of each way that data go, one after the other
 *   verify     random commands, of all opcodes and kinds of SGL descriptors, in all
 *              places of all queues; what is read is what was written last
 *   reset      the same, and the controller is reset in the middle, several times
 *   errors     what a controller refuses by a status, and goes on
 *   hostile    what ends a queue, or a connection before it is one; others go on
 *   silent     a controller that never answers: the command ends
 *   event      waits until the namespace has grown, and the controller says so
 */
#include "nvmf/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 40, RESETS = 5 };

static uint32_t steps = STEPS; /* of each command's place, in verify */
static uint64_t seed = 1;

/* xorshift64 */
static uint32_t rnd(uint32_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return (uint32_t)((seed >> 32) * below >> 32);
}

/* Blocks of the namespace that one place of one queue has for itself. */
struct stripe {
	struct command *command; /* NULL: none is under way */
	uint64_t first;
	uint32_t blocks;
	uint8_t *is; /* what is there, once the command has ended */
	uint32_t lba, count; /* of the command, in the stripe */
	unsigned done;
};

static void io(struct command *c, uint64_t lba, uint32_t count)
{
	put_le(c->capsule + SQE_CDW10, lba, 8);
	put_le(c->capsule + SQE_CDW12, count - 1, 4);
}

static enum sgl_id keyed(void)
{
	return rnd(2) ? SGL_KEYED : SGL_KEYED_INVALIDATE;
}

static void show(struct host *h)
{
	static const struct {
		const char *what;
		uint8_t opcode;
		enum sgl_id sgl;
		uint32_t len;
	} commands[] = {
		{ "Write, data in the capsule", NVM_WRITE, SGL_DATA_OFFSET,
		  IN_CAPSULE },
		{ "Write, keyed", NVM_WRITE, SGL_KEYED, 65536 },
		{ "Read, keyed", NVM_READ, SGL_KEYED, 65536 },
		{ "Read, keyed with invalidate", NVM_READ, SGL_KEYED_INVALIDATE,
		  65536 },
	};

	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		struct command *c =
			command_new(h->queue[1], commands[i].opcode);

		io(c, 0, commands[i].len >> LBA_SHIFT);
		command_data(c, commands[i].sgl, commands[i].len);
		if (command_run(c))
			die("%s: status 0x%x", commands[i].what,
			    (unsigned)c->status);
		printf("%s: %u bytes\n", commands[i].what, commands[i].len);
	}
}

/* A random command: of writes most, of reads as many. */
static void step(struct stripe *s, struct host_queue *q)
{
	static const uint8_t opcodes[] = { NVM_WRITE,        NVM_WRITE,
					   NVM_WRITE,        NVM_READ,
					   NVM_READ,         NVM_READ,
					   NVM_WRITE_ZEROES, NVM_FLUSH };
	const uint8_t opcode = opcodes[rnd(sizeof(opcodes))];
	struct command *c = s->command = command_new(q, opcode);
	uint32_t most = MAX_TRANSFER >> LBA_SHIFT, len;
	uint8_t *is;

	if (!c)
		die("queue %u: no command is free", q->qid);
	if (rnd(2))
		most = 8;
	s->lba = rnd(s->blocks);
	s->count =
		1 + rnd(s->blocks - s->lba < most ? s->blocks - s->lba : most);
	len = s->count << LBA_SHIFT;
	is = s->is + ((size_t)s->lba << LBA_SHIFT);
	if (opcode != NVM_FLUSH)
		io(c, s->first + s->lba, s->count);
	if (opcode == NVM_WRITE_ZEROES)
		memset(is, 0, len);
	if (opcode == NVM_READ) {
		memset(c->data, 0xee, len);
		command_data(c, keyed(), len);
	}
	if (opcode == NVM_WRITE) {
		for (uint32_t i = 0; i < len; i += 4)
			put_le(c->data + i, rnd(UINT32_MAX), 4);
		memcpy(is, c->data, len);
		command_data(c,
			     len <= IN_CAPSULE && rnd(2) ? SGL_DATA_OFFSET :
							   keyed(),
			     len);
	}
	command_send(c);
}

static void stripe_ended(struct stripe *s)
{
	struct command *c = s->command;

	if (c->status)
		die("opcode %u, block %llu and %u more: status 0x%x",
		    c->capsule[SQE_OPC],
		    (unsigned long long)(s->first + s->lba), s->count - 1,
		    (unsigned)c->status);
	if (c->capsule[SQE_OPC] == NVM_READ &&
	    memcmp(c->data, s->is + ((size_t)s->lba << LBA_SHIFT),
		   (size_t)s->count << LBA_SHIFT))
		die("block %llu and %u more: read what was not written",
		    (unsigned long long)(s->first + s->lba), s->count - 1);
	c->busy = false;
	s->command = NULL;
	s->done++;
}

/* Writes zeros, so that it is known what is there. */
static void clear(struct host *h)
{
	for (uint64_t lba = 0; lba < h->blocks; lba += 0x10000) {
		struct command *c = command_new(h->queue[1], NVM_WRITE_ZEROES);
		const uint64_t left = h->blocks - lba;

		io(c, lba, left < 0x10000 ? (uint32_t)left : 0x10000);
		if (command_run(c))
			die("Write Zeroes: status 0x%x", (unsigned)c->status);
	}
}

/* In the middle of commands. Those that were under way come again: whether they
 * were executed is not known. */
static void reset(struct host *h, struct stripe *stripes)
{
	const unsigned n = h->queues * h->depth;
	uint8_t(*again)[SQE_SIZE] = calloc(n, SQE_SIZE);

	for (unsigned i = 0; i < n; i++)
		if (stripes[i].command)
			memcpy(again[i], stripes[i].command->capsule, SQE_SIZE);
	host_reset(h);
	for (unsigned i = 0; i < n; i++) {
		struct stripe *s = &stripes[i];
		const uint32_t len = s->count << LBA_SHIFT;
		struct command *c;

		if (!s->command)
			continue;
		c = s->command = command_new(h->queue[1 + i / h->depth],
					     again[i][SQE_OPC]);
		memcpy(c->capsule + SQE_CDW10, again[i] + SQE_CDW10,
		       SQE_SIZE - SQE_CDW10);
		if (c->capsule[SQE_OPC] == NVM_WRITE)
			memcpy(c->data, s->is + ((size_t)s->lba << LBA_SHIFT),
			       len);
		if (c->capsule[SQE_OPC] == NVM_READ ||
		    c->capsule[SQE_OPC] == NVM_WRITE)
			command_data(c, keyed(), len);
		command_send(c);
	}
	free(again);
}

static void verify(struct host *h, unsigned resets)
{
	const unsigned n = h->queues * h->depth, all = n * steps;
	struct stripe *stripes = calloc(n, sizeof(*stripes));
	const uint64_t each = h->blocks / n, begin = now_ms();
	unsigned done = 0, reset_at = resets ? all / (resets + 1) : all;

	clear(h);
	if (each > UINT32_MAX || !each)
		die("a namespace of %llu blocks is too small or too large",
		    (unsigned long long)h->blocks);
	for (unsigned i = 0; i < n; i++) {
		stripes[i].first = each * i;
		stripes[i].blocks = (uint32_t)each;
		stripes[i].is = pages(each << LBA_SHIFT);
		step(&stripes[i], h->queue[1 + i / h->depth]);
	}
	while (done < all) {
		host_poll(h, 100);
		for (unsigned i = 0; i < n; i++) {
			struct stripe *s = &stripes[i];

			if (!s->command || !command_ended(s->command))
				continue;
			stripe_ended(s);
			done++;
			if (s->done < steps)
				step(s, h->queue[1 + i / h->depth]);
		}
		if (done >= reset_at && done < all) {
			reset(h, stripes);
			reset_at += all / (resets + 1);
		}
	}
	free(stripes);
	printf("%u commands in %u places of %u queues, %u keys invalidated, %u "
	       "resets, %llu ms\n",
	       all, h->depth, h->queues, h->invalidated, resets,
	       (unsigned long long)(now_ms() - begin));
}

/* ------------------------------------------------------------- refused */

/* A command that is wrong in one way. at: the byte that is changed, and to what. */
struct wrong {
	const char *what;
	uint8_t opcode;
	enum sgl_id sgl;
	uint32_t len;
	int at;
	uint32_t value, bytes;
	int status[2]; /* one of them */
};

/* clang-format off */
static const struct wrong wrongs[] = {
	{ "PRPs", NVM_READ, SGL_KEYED, 4096, SQE_FLAGS, 0, 1, { SC_INVALID_FIELD } },
	{ "PSDT of 11b", NVM_READ, SGL_KEYED, 4096, SQE_FLAGS, 0xc0, 1, { SC_INVALID_FIELD } },
	{ "a data block by address", NVM_READ, SGL_DATA, 4096, -1, 0, 0, { SC_SGL_DESCRIPTOR_TYPE, SC_INVALID_FIELD } },
	{ "a bit bucket", NVM_READ, SGL_BIT_BUCKET, 4096, -1, 0, 0, { SC_SGL_DESCRIPTOR_TYPE } },
	{ "a segment", NVM_WRITE, SGL_SEGMENT, 4096, -1, 0, 0, { SC_SGL_DESCRIPTOR_TYPE } },
	{ "a last segment", NVM_WRITE, SGL_LAST_SEGMENT, 4096, -1, 0, 0, { SC_SGL_DESCRIPTOR_TYPE } },
	{ "a keyed one of an unknown subtype", NVM_READ, 0x45, 4096, -1, 0, 0, { SC_SGL_DESCRIPTOR_TYPE, SC_INVALID_FIELD } },
	{ "read data in the capsule", NVM_READ, SGL_DATA_OFFSET, 4096, -1, 0, 0, { SC_INVALID_FIELD } },
	{ "an offset behind the capsule", NVM_WRITE, SGL_DATA_OFFSET, 4096, SQE_SGL1, 4096, 8, { SC_SGL_OFFSET } },
	{ "an offset that wraps", NVM_WRITE, SGL_DATA_OFFSET, 4096, SQE_SGL1 + 7, 0xff, 1, { SC_SGL_OFFSET } },
	{ "a descriptor that is too short", NVM_WRITE, SGL_KEYED, 3584, -1, 0, 0, { SC_DATA_SGL_LENGTH } },
	{ "one that is too long", NVM_READ, SGL_KEYED, 8192, -1, 0, 0, { SC_DATA_SGL_LENGTH } },
	{ "too little data in the capsule", NVM_WRITE, SGL_DATA_OFFSET, 512, -1, 0, 0, { SC_DATA_SGL_LENGTH } },
	/* nvmet asks the disk, and has no better word for what that says. */
	{ "a block behind the last", NVM_READ, SGL_KEYED, 4096, SQE_CDW11, 1, 4, { SC_LBA_OUT_OF_RANGE, SC_INTERNAL_ERROR } },
	{ "another namespace", NVM_READ, SGL_KEYED, 4096, SQE_NSID, 7, 4, { SC_INVALID_NAMESPACE } },
	{ "an unknown opcode", 0x7c, SGL_KEYED, 0, -1, 0, 0, { SC_INVALID_OPCODE } },
	{ "a second Connect", FABRICS, SGL_KEYED, CONNECT_SIZE, SQE_FCTYPE, FABRICS_CONNECT, 1, { SC_COMMAND_SEQUENCE, SC_INVALID_OPCODE } },
};
/* clang-format on */

/* A command that works. */
static void works(struct host *h)
{
	struct command *c = command_new(h->queue[1], NVM_READ);

	io(c, 0, 8);
	command_data(c, SGL_KEYED_INVALIDATE, 4096);
	if (command_run(c))
		die("a good command: status 0x%x", (unsigned)c->status);
}

static void errors(struct host *h)
{
	const size_t n = sizeof(wrongs) / sizeof(*wrongs);

	for (const struct wrong *w = wrongs; w < wrongs + n; w++) {
		struct command *c = command_new(h->queue[1], w->opcode);
		int status;

		io(c, 0, 8);
		command_data(c, w->sgl, w->len);
		if (w->at >= 0)
			put_le(c->capsule + w->at, w->value, w->bytes);
		status = command_run(c);
		if (status >= 0)
			status &= 0x7ff;
		if (status != w->status[0] &&
		    (!w->status[1] || status != w->status[1]))
			die("%s: status 0x%x, not 0x%x", w->what,
			    (unsigned)status, (unsigned)w->status[0]);
		works(h);
	}
	printf("%zu wrong commands have the status that they should\n", n);
}

/* ------------------------------------------------------------- hostile */

static int read_by(struct host *h, uint64_t address, uint32_t key)
{
	struct command *c = command_new(h->queue[1], NVM_READ);

	io(c, 0, 8);
	command_data(c, SGL_KEYED, 4096);
	put_le(c->capsule + SQE_SGL1 + SGL_ADDRESS, address, 8);
	put_le(c->capsule + SQE_SGL1 + SGL_KEY, key, 4);
	return command_run(c);
}

static int short_capsule(struct host *h)
{
	struct command *c = command_new(h->queue[1], NVM_FLUSH);

	c->capsule_len = SQE_SIZE - 1;
	return command_run(c);
}

static int long_capsule(struct host *h)
{
	struct command *c = command_new(h->queue[1], NVM_FLUSH);

	c->capsule_len = SQE_SIZE + IN_CAPSULE + 1;
	return command_run(c);
}

static int beyond_region(struct host *h)
{
	const struct link *l = &h->queue[1]->link;

	return read_by(h, (uintptr_t)l->memory + l->size - 2048, l->mr->rkey);
}

static int write_beyond_region(struct host *h)
{
	const struct link *l = &h->queue[1]->link;
	struct command *c = command_new(h->queue[1], NVM_WRITE);

	io(c, 0, 8);
	command_data(c, SGL_KEYED, 4096);
	put_le(c->capsule + SQE_SGL1 + SGL_ADDRESS,
	       (uintptr_t)l->memory + l->size - 2048, 8);
	return command_run(c);
}

static int unknown_key(struct host *h)
{
	return read_by(h, (uintptr_t)h->queue[1]->link.memory, 0xdeadbeef);
}

static int stale_key(struct host *h)
{
	struct command *c = command_new(h->queue[1], NVM_READ);

	io(c, 0, 8);
	command_data(c, SGL_KEYED_INVALIDATE, 4096);
	if (command_run(c))
		die("a good command: status 0x%x", (unsigned)c->status);
	return read_by(h, (uintptr_t)c->data, c->window->rkey);
}

static int read_only_key(struct host *h)
{
	struct link *l = &h->queue[1]->link;
	struct ibv_mr *mr =
		ibv_reg_mr(l->pd, l->memory, 4096, IBV_ACCESS_REMOTE_READ);
	int status;

	if (!mr)
		die("ibv_reg_mr: %m");
	status = read_by(h, (uintptr_t)l->memory, mr->rkey);
	ibv_dereg_mr(mr);
	return status;
}

static int before_connect(struct host *h)
{
	struct command *c;

	queue_close(h->queue[1]);
	h->queue[1] = queue_new(h, 1);
	c = command_new(h->queue[1], NVM_FLUSH);
	if ((command_run(c) & 0x7ff) != SC_COMMAND_SEQUENCE)
		die("a command before Connect: status 0x%x",
		    (unsigned)c->status);
	c = connect_new(h->queue[1], (uint16_t)(h->cntlid + 1));
	if ((command_run(c) & 0x7ff) != SC_CONNECT_INVALID)
		die("Connect to another's controller: status 0x%x",
		    (unsigned)c->status);
	return LOST;
}

/* It goes while commands are under way. */
static int leaves(struct host *h)
{
	struct command *c;

	while ((c = command_new(h->queue[1], NVM_WRITE))) {
		io(c, 0, MAX_TRANSFER >> LBA_SHIFT);
		command_data(c, SGL_KEYED, MAX_TRANSFER);
		command_send(c);
	}
	return LOST;
}

static const struct {
	const char *what;
	int (*does)(struct host *h);
} hostiles[] = {
	{ "a capsule of 63 bytes", short_capsule },
	{ "a capsule that is too long", long_capsule },
	{ "data beyond the region, read", beyond_region },
	{ "data beyond the region, written", write_beyond_region },
	{ "an unknown key", unknown_key },
	{ "a stale key", stale_key },
	{ "a key that permits no WRITE", read_only_key },
	{ "commands before Connect", before_connect },
	{ "an end while commands are under way", leaves },
};

/* Private data that is refused. */
static void rejections(struct host *h)
{
	static const struct {
		uint16_t recfmt, qid, hrqsize, hsqsize, reason;
	} cases[] = {
		{ 1, 0, 32, 31, REJECT_RECFMT },
		{ 0, 0xffff, 32, 31, REJECT_QID },
		{ 0, 0, 32, 0, REJECT_HSQSIZE },
		{ 0, 0, 32, 0xffff, REJECT_HSQSIZE },
		{ 0, 0, 0, 31, REJECT_HRQSIZE },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		uint8_t private[PRIVATE_SIZE] = { 0 };
		uint16_t reason = 0;

		put_le(private + PRIVATE_RECFMT, cases[i].recfmt, 2);
		put_le(private + PRIVATE_QID, cases[i].qid, 2);
		put_le(private + PRIVATE_HRQSIZE, cases[i].hrqsize, 2);
		put_le(private + PRIVATE_HSQSIZE, cases[i].hsqsize, 2);
		if (queue_open(h, 0, private, sizeof(private), &reason) ||
		    reason != cases[i].reason)
			die("private data %zu: reason %u, not %u", i, reason,
			    cases[i].reason);
	}
}

static void hostile(struct host *h)
{
	const size_t n = sizeof(hostiles) / sizeof(*hostiles);

	for (size_t i = 0; i < n; i++) {
		int status;

		host_open(h);
		works(h);
		status = hostiles[i].does(h);
		printf("%s: %s\n", hostiles[i].what,
		       status == LOST ? "the queue has ended" : "?");
		if (status != LOST)
			die("%s: status 0x%x", hostiles[i].what,
			    (unsigned)status);
		host_close(h);
	}
	rejections(h);
	host_open(h);
	works(h);
	printf("after %zu kinds of harm another host is served\n", n);
}

/* ------------------------------------------------------------- others */

static void silent(struct host *h)
{
	struct command *c = command_new(h->queue[1], NVM_READ);
	const uint64_t begin = now_ms();

	io(c, 0, 8);
	command_data(c, SGL_KEYED, 4096);
	if (command_run(c) != TIMED_OUT)
		die("it has answered, with status 0x%x", (unsigned)c->status);
	printf("the command has ended after %llu ms\n",
	       (unsigned long long)(now_ms() - begin));
}

static void event(struct host *h)
{
	struct command *c = command_new(h->queue[0], ADMIN_SET_FEATURES), *log;

	put_le(c->capsule + SQE_CDW10, FID_ASYNC_EVENTS, 4);
	put_le(c->capsule + SQE_CDW11, EVENTS_NAMESPACE, 4);
	if (command_run(c))
		die("Asynchronous Event Configuration: status 0x%x",
		    (unsigned)c->status);
	c = command_new(h->queue[0], ADMIN_ASYNC_EVENT_REQUEST);
	printf("waits\n");
	if (command_run(c) || c->result != (2 | LID_CHANGED_NAMESPACES << 16))
		die("an event: status 0x%x, 0x%llx", (unsigned)c->status,
		    (unsigned long long)c->result);
	log = command_new(h->queue[0], ADMIN_GET_LOG_PAGE);
	put_le(log->capsule + SQE_CDW10,
	       LID_CHANGED_NAMESPACES | (PAGE_SIZE / 4 - 1) << 16, 4);
	command_data(log, SGL_KEYED, PAGE_SIZE);
	if (command_run(log) || get_le32(log->data) != 1)
		die("Get Log Page: status 0x%x, namespace %u",
		    (unsigned)log->status, get_le32(log->data));
	printf("namespace 1 has changed\n");
}

static bool run(struct host *h, const char *name)
{
	if (!strcmp(name, "identify"))
		printf("%llu blocks of %u bytes\n",
		       (unsigned long long)h->blocks, 1u << LBA_SHIFT);
	else if (!strcmp(name, "show"))
		show(h);
	else if (!strcmp(name, "verify"))
		verify(h, 0);
	else if (!strcmp(name, "reset"))
		verify(h, RESETS);
	else if (!strcmp(name, "errors"))
		errors(h);
	else if (!strcmp(name, "silent"))
		silent(h);
	else if (!strcmp(name, "event"))
		event(h);
	else
		return false;
	return true;
}

int host_main(int argc, char **argv)
{
	struct host h = { .port = "4420",
			  .nqn = "nqn.2026-01.test:disk",
			  .queues = 4,
			  .depth = MAX_DEPTH - 1,
			  .timeout_ms = 10000 };
	int o;

	while ((o = getopt(argc, argv, "a:c:d:n:p:q:s:t:")) != -1) {
		if (o == 'a')
			h.address = optarg;
		else if (o == 'c')
			steps = (uint32_t)atoi(optarg);
		else if (o == 'd')
			h.depth = (unsigned)atoi(optarg) - 1;
		else if (o == 'n')
			h.nqn = optarg;
		else if (o == 'p')
			h.port = optarg;
		else if (o == 'q')
			h.queues = (unsigned)atoi(optarg);
		else if (o == 's')
			seed = strtoull(optarg, NULL, 0);
		else if (o == 't')
			h.timeout_ms = atoi(optarg);
		else
			return 2;
	}
	if (!h.address || !h.queues || h.queues > MAX_QUEUES || !h.depth ||
	    h.depth >= MAX_DEPTH || !seed)
		die("an address is needed; queues 1 to %d, depth 2 to %d",
		    MAX_QUEUES, MAX_DEPTH);
	for (; optind < argc; optind++) {
		if (!strcmp(argv[optind], "hostile")) {
			hostile(&h);
		} else {
			host_open(&h);
			if (!run(&h, argv[optind]))
				die("%s: no such case", argv[optind]);
		}
		host_close(&h);
		printf("ok %s\n", argv[optind]);
	}
	return 0;
}
