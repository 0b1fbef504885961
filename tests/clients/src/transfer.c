/*
 * transfer.c - in the manner of a transfer engine: large memory over several rails
 *
 *   transfer -p PORT [-m MIB] [-r RAILS]             the target, of many clients
 *   transfer -p PORT [-m MIB] [-r RAILS] [-n ROUNDS] [-s SLICE] HOST
 *
 * Both ends register their memory in chunks of 4 MiB, on every rail, by eight
 * threads. The client writes it in slices, posted as lists of 256 of which the
 * last is signaled, on whichever rail is free. A rail that fails gives its slices
 * to the others, and is connected again until it works. The target then checks every
 * byte, and the client reads it back, and does so too. A target that has gone is
 * looked for again, and the round begins anew with what it has now. Over iWARP, or
 * with a device of one rail, it is a program like any other.
 */
#include "peer.h"

#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RAILS 16
#define CHUNK (4u << 20)
#define CHUNKS 2048
#define LIST 256
#define THREADS 8
#define AGAIN_NS 100000000u

static unsigned nrails = 4, nchunks = 16, rounds = 4, slice = 65536;
static uint8_t *mem;

static struct rail {
	struct dev dev;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr[CHUNKS];
	uint32_t rkey[CHUNKS]; /* of the target's */
	/* The list that is on its way. */
	uint32_t list[LIST];
	unsigned posted;
	bool up, proven;
	uint64_t again; /* when it is connected again */
} rail[RAILS];

static uint64_t target_addr;
static unsigned failed, back, writes;

static void *register_some(void *arg)
{
	for (unsigned i = (unsigned)(uintptr_t)arg; i < nchunks; i += THREADS)
		for (unsigned r = 0; r < nrails; r++) {
			rail[r].mr[i] = ibv_reg_mr(
				rail[r].dev.pd, mem + (size_t)i * CHUNK, CHUNK,
				IBV_ACCESS_LOCAL_WRITE |
					IBV_ACCESS_REMOTE_WRITE |
					IBV_ACCESS_REMOTE_READ);
			if (!rail[r].mr[i])
				die(EXIT_SETUP, "ibv_reg_mr: %m");
		}
	return NULL;
}

static void setup(void)
{
	struct ibv_device **list;
	pthread_t thread[THREADS];
	int n;

	list = ibv_get_device_list(&n);
	if (!list || (unsigned)n < nrails)
		die(EXIT_SETUP, "%u rails wanted, %d devices there", nrails, n);
	for (unsigned r = 0; r < nrails; r++) {
		dev_open(&rail[r].dev, ibv_get_device_name(list[r]), 0);
		rail[r].cq =
			ibv_create_cq(rail[r].dev.ctx, 4 * LIST, NULL, NULL, 0);
		if (!rail[r].cq)
			die(EXIT_SETUP, "ibv_create_cq: %m");
	}
	ibv_free_device_list(list);
	mem = mmap(NULL, (size_t)nchunks * CHUNK, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (mem == MAP_FAILED)
		die(EXIT_SETUP, "mmap: %m");
	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, register_some, (void *)i))
			die(EXIT_SETUP, "pthread_create");
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
}

/* ---- what the memory holds --------------------------------------------- */

static uint64_t word(uint64_t seed, size_t i)
{
	uint64_t z = (seed << 40) + i + 1;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	return z ^ z >> 27;
}

static void fill(uint64_t seed)
{
	uint64_t *w = (uint64_t *)(void *)mem;

	for (size_t i = 0; i < (size_t)nchunks * CHUNK / 8; i++)
		w[i] = word(seed, i);
}

/* The first byte that is not as it should be; -1: none. */
static int64_t check(uint64_t seed)
{
	const uint64_t *w = (const uint64_t *)(const void *)mem;

	for (size_t i = 0; i < (size_t)nchunks * CHUNK / 8; i++)
		if (w[i] != word(seed, i))
			return (int64_t)i * 8;
	return -1;
}

/* ---- rails ------------------------------------------------------------- */

static const struct conn_opts opts = { .mtu = IBV_MTU_4096,
				       .timeout = 12,
				       .retry_cnt = 5,
				       .rnr_retry = 7,
				       .rd_atomic = 16,
				       .access = IBV_ACCESS_LOCAL_WRITE |
						 IBV_ACCESS_REMOTE_WRITE |
						 IBV_ACCESS_REMOTE_READ };

/* A QP in place of the one that the rail had. */
static void new_qp(struct rail *r)
{
	struct ibv_wc wc;

	if (r->qp && ibv_destroy_qp(r->qp))
		die(EXIT_SETUP, "ibv_destroy_qp: %m");
	while (ibv_poll_cq(r->cq, 1, &wc) > 0)
		;
	r->qp = qp_create_rc(r->dev.pd, r->cq, LIST, 1, 1);
	qp_to_init(r->qp, &opts);
}

static struct remote own(const struct rail *r)
{
	return (struct remote){ .qpn = r->qp->qp_num,
				.psn = 7,
				.addr = (uintptr_t)mem,
				.gid = r->dev.gid,
				.mtu = IBV_MTU_4096 };
}

/* ---- the target -------------------------------------------------------- */

static void answer(int fd, const char *line)
{
	struct remote theirs, ours;
	unsigned r, i;
	uint64_t seed;

	if (sscanf(line, "rail %u", &r) == 1 && r < nrails) {
		ctrl_put(fd, "rail");
		new_qp(&rail[r]);
		ours = own(&rail[r]);
		remote_put(fd, &ours);
		remote_get(fd, &theirs);
		qp_connect(&rail[r].dev, rail[r].qp, 7, &theirs, &opts);
		ctrl_put(fd, "connected");
	} else if (sscanf(line, "keys %u", &r) == 1 && r < nrails) {
		for (i = 0; i < nchunks; i++)
			ctrl_put(fd, "%u", rail[r].mr[i]->rkey);
	} else if (sscanf(line, "check %" SCNu64, &seed) == 1) {
		ctrl_put(fd, "wrong %" PRId64, check(seed));
	} else {
		die(EXIT_SETUP, "%s: not understood", line);
	}
}

static int target(int port)
{
	const char *line;
	int fd;

	for (;;) {
		fd = ctrl_open(NULL, port, 30);
		while ((line = ctrl_get(fd, 30000)) && strcmp(line, "done"))
			answer(fd, line);
		close(fd);
		if (line)
			return 0;
	}
}

/* ---- the client -------------------------------------------------------- */

/* False: the target has gone. */
static bool connect_rail(int fd, unsigned i)
{
	struct rail *r = &rail[i];
	struct remote theirs, ours;

	new_qp(r);
	ours = own(r);
	ctrl_put(fd, "rail %u", i);
	if (!ctrl_get(fd, 10000))
		return false;
	remote_get(fd, &theirs);
	remote_put(fd, &ours);
	target_addr = theirs.addr;
	if (!ctrl_get(fd, 10000))
		return false;
	qp_connect(&r->dev, r->qp, 7, &theirs, &opts);
	r->up = true;
	r->posted = 0;
	return true;
}

static void fail_rail(struct rail *r, uint32_t *todo, unsigned *ntodo)
{
	for (unsigned i = 0; i < r->posted; i++)
		todo[(*ntodo)++] = r->list[i];
	failed += r->proven;
	r->posted = 0;
	r->up = r->proven = false;
	r->again = now_ns() + AGAIN_NS;
}

/* A list of what is to be done; one alone on a rail that has yet to show that it
 * works. */
static void post(struct rail *r, enum ibv_wr_opcode opcode, uint32_t *todo,
		 unsigned *ntodo)
{
	static struct ibv_send_wr wr[LIST], *bad;
	static struct ibv_sge sge[LIST];
	const unsigned most = r->proven ? LIST : 1;
	int err;

	for (r->posted = 0; r->posted < most && *ntodo; r->posted++) {
		const unsigned i = r->posted;
		const uint32_t s = todo[--*ntodo];
		const size_t at = (size_t)s * slice;

		r->list[i] = s;
		sge[i] = (struct ibv_sge){ (uintptr_t)mem + at, slice,
					   r->mr[at / CHUNK]->lkey };
		wr[i] = (struct ibv_send_wr){ .wr_id = s,
					      .opcode = opcode,
					      .sg_list = &sge[i],
					      .num_sge = 1 };
		wr[i].wr.rdma.remote_addr = target_addr + at;
		wr[i].wr.rdma.rkey = r->rkey[at / CHUNK];
		if (i)
			wr[i - 1].next = &wr[i];
	}
	wr[r->posted - 1].send_flags = IBV_SEND_SIGNALED;
	err = ibv_post_send(r->qp, wr, &bad);
	if (err)
		die(EXIT_DATA, "ibv_post_send: %s", strerror(err));
	writes += r->posted;
}

/* All slices by one opcode. False: the target has gone. */
static bool move_all(int fd, enum ibv_wr_opcode opcode)
{
	const unsigned slices = (unsigned)((size_t)nchunks * CHUNK / slice);
	uint32_t *todo = calloc(slices, sizeof(*todo));
	const uint64_t end = now_ns() + 60000000000u;
	unsigned ntodo, left = slices;
	struct ibv_wc wc;
	bool there = true;

	if (!todo)
		die(EXIT_SETUP, "out of memory");
	for (ntodo = 0; ntodo < slices; ntodo++)
		todo[ntodo] = slices - 1 - ntodo;
	while (there && left) {
		if (now_ns() > end)
			die(EXIT_DATA, "%u of %u slices are left", left,
			    slices);
		for (unsigned i = 0; i < nrails && there; i++) {
			struct rail *r = &rail[i];

			if (!r->up && now_ns() > r->again)
				there = connect_rail(fd, i);
			if (r->up && !r->posted && ntodo)
				post(r, opcode, todo, &ntodo);
			if (!r->posted || ibv_poll_cq(r->cq, 1, &wc) < 1)
				continue;
			if (wc.status) {
				fail_rail(r, todo, &ntodo);
				continue;
			}
			back += !r->proven && r->again;
			r->proven = true;
			left -= r->posted;
			r->posted = 0;
		}
	}
	free(todo);
	return there;
}

/* A session with a target that lives so long; rounds are done from *round on. */
static bool session(int fd, unsigned *round)
{
	const char *line;
	int64_t at;

	for (unsigned i = 0; i < nrails; i++) {
		rail[i].again = 0;
		rail[i].proven = true;
		ctrl_put(fd, "keys %u", i);
		for (unsigned k = 0; k < nchunks; k++) {
			line = ctrl_get(fd, 10000);
			if (!line)
				return false;
			rail[i].rkey[k] = (uint32_t)strtoul(line, NULL, 10);
		}
		if (!connect_rail(fd, i))
			return false;
	}
	for (; *round < rounds; ++*round) {
		fill(*round + 1);
		if (!move_all(fd, IBV_WR_RDMA_WRITE))
			return false;
		ctrl_put(fd, "check %u", *round + 1);
		line = ctrl_get(fd, 30000);
		if (!line)
			return false;
		if (sscanf(line, "wrong %" SCNd64, &at) != 1 || at >= 0)
			die(EXIT_DATA, "round %u: the target has %s", *round,
			    line);
		memset(mem, 0, (size_t)nchunks * CHUNK);
		if (!move_all(fd, IBV_WR_RDMA_READ))
			return false;
		at = check(*round + 1);
		if (at >= 0)
			die(EXIT_DATA, "round %u: byte %" PRId64 " is wrong",
			    *round, at);
		printf("round %u: %u failed, %u back\n", *round, failed, back);
		fflush(stdout);
	}
	return true;
}

int main(int argc, char **argv)
{
	unsigned round = 0, peers = 0;
	int opt, port = 0, fd;

	while ((opt = getopt(argc, argv, "p:m:r:n:s:")) > 0)
		switch (opt) {
		case 'p':
			port = atoi(optarg);
			break;
		case 'm':
			nchunks = (unsigned)atoi(optarg) / 4;
			break;
		case 'r':
			nrails = (unsigned)atoi(optarg);
			break;
		case 'n':
			rounds = (unsigned)atoi(optarg);
			break;
		case 's':
			slice = (unsigned)atoi(optarg);
			break;
		default:
			return EXIT_SETUP;
		}
	if (!port || !nrails || nrails > RAILS || !nchunks ||
	    nchunks > CHUNKS || !slice || CHUNK % slice)
		die(EXIT_SETUP, "see transfer.c");
	setup();
	if (optind == argc)
		return target(port);
	do {
		for (unsigned i = 0; i < nrails; i++)
			rail[i].up = false;
		fd = ctrl_open(argv[optind], port, 20);
		peers++;
	} while (!session(fd, &round));
	ctrl_put(fd, "done");
	printf("%u rounds of %u MiB right, %u slices, rails failed %u, came "
	       "back %u, targets %u\n",
	       rounds, nchunks * 4, writes, failed, back, peers);
	return 0;
}
