/*
 * scenario.c - the words that scenarios are written in
 *
 * A scenario holds both ends in hand: A, the requester, is in this process; B,
 * the responder, behind a TCP connection. It gives them lines with at(), and
 * ends by fail() or skip(), or returns, which means that it has passed.
 */
#include "scenario.h"

char note[512];

__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *fmt, ...)
{
	va_list ap;

	printf("FAIL ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
	_exit(1);
}

__attribute__((noreturn, format(printf, 1, 2))) void skip(const char *fmt, ...)
{
	va_list ap;

	printf("SKIP ");
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
	_exit(EXIT_SKIP);
}

/* Adds a note to the result, unless it is there already. */
__attribute__((format(printf, 1, 2))) void remark(const char *fmt, ...)
{
	char text[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (strstr(note, text) ||
	    strlen(note) + strlen(text) + 3 > sizeof(note))
		return;
	if (note[0])
		strcat(note, "; ");
	strcat(note, text);
}

/* Gives a line to an end. What the end refuses fails the scenario. */
__attribute__((format(printf, 2, 3))) struct reply at(enum who who,
						      const char *fmt, ...)
{
	char line[LINE_MAX_LEN], copy[LINE_MAX_LEN], *save, *tok;
	struct reply r;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	strcpy(copy, line);
	if (who == A) {
		interpret(line, &r);
	} else {
		memset(&r, 0, sizeof(r));
		fprintf(to_peer, "%s\n", line);
		fflush(to_peer);
		if (!fgets(line, sizeof(line), from_peer))
			fail("the server is gone at: %s", copy);
		tok = strtok_r(line, " \n", &save);
		if (!tok || strcmp(tok, "ok")) {
			r.unsupported = tok && !strcmp(tok, "na");
			snprintf(r.err, sizeof(r.err), "%s",
				 save && *save ? save : "no answer");
			r.err[strcspn(r.err, "\n")] = 0;
		} else {
			while (r.n < MAX_ARGS &&
			       (tok = strtok_r(NULL, " \n", &save)))
				r.v[r.n++] = strtoull(tok, NULL, 16);
		}
	}
	if (opt_verbose) {
		fprintf(stderr, "%c %s ->", who == A ? 'A' : 'B', copy);
		for (int i = 0; i < r.n; i++)
			fprintf(stderr, " %" PRIx64, r.v[i]);
		fprintf(stderr, " %s\n", r.err);
	}
	if (r.err[0] && r.unsupported)
		skip("%s cannot: %s", who == A ? "client" : "server", r.err);
	if (r.err[0])
		fail("%s: %s", who == A ? "client" : "server", r.err);
	return r;
}

struct side side[2];

struct conf conf = {
	.rd_atomic = 4,
	.dest_rd_atomic = 4,
	.rnr_timer = 12, /* 0.64 ms */
	.rnr_retry = 7,
	.retry = 6, /* rxe takes 7 for "without end" */
	.timeout = 14, /* 67 ms */
	.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
		  IBV_ACCESS_MW_BIND,
	/* so that PSNs wrap, and change sign, early in every scenario */
	.psn = { 0xfffff0, 0x7ffff8 },
	.hops = 64,
};

uint32_t qpn[2];
uint64_t qpi[2];
uint64_t seed = 1;

/* The next event of an end's connections, which is this one, of its QP. */
void expect_cm(enum who w, enum rdma_cm_event_type type)
{
	struct reply r = at(w, "cm %x", 20000);

	if (!r.v[0])
		fail("%s: no %s within 20 s", w == A ? "client" : "server",
		     rdma_event_str(type));
	if (r.v[1] != type || r.v[3] != qpi[w])
		fail("%s: %s, status %d, of QP %d, not %s of QP %d",
		     w == A ? "client" : "server",
		     rdma_event_str((enum rdma_cm_event_type)r.v[1]),
		     (int)r.v[2], (int)r.v[3], rdma_event_str(type),
		     (int)qpi[w]);
}

enum ibv_mtu mtu_code(unsigned mtu)
{
	switch (mtu) {
	case 256:
		return IBV_MTU_256;
	case 512:
		return IBV_MTU_512;
	case 1024:
		return IBV_MTU_1024;
	case 2048:
		return IBV_MTU_2048;
	default:
		return IBV_MTU_4096;
	}
}

void meet(void)
{
	for (enum who w = A; w <= B; w++) {
		struct reply r = at(w, "info");

		side[w].rxe = r.v[0] == RXE;
		side[w].siw = r.v[0] == SIW;
		side[w].gid_hi = r.v[1];
		side[w].gid_lo = r.v[2];
		side[w].mtu = 128u << r.v[3];
		side[w].va = r.v[4];
		side[w].rkey = (uint32_t)r.v[5];
		side[w].rd_atomic = r.v[6];
		side[w].caps = r.v[7];
		side[w].newer = side[w].caps & CAP_ATOMIC_WRITE;
		if (opt_mtu > side[w].mtu)
			skip("active MTU of the %s is %" PRIu64,
			     w == A ? "client" : "server", side[w].mtu);
	}
}

void to_rtr(enum who w, uint64_t qp, uint32_t dest, uint64_t rq_psn)
{
	at(w, "rtr %lx %x %lx %x %lx %lx %lx %lx %lx %lx %lx", qp, dest, rq_psn,
	   (unsigned)mtu_code(opt_mtu), conf.dest_rd_atomic, conf.rnr_timer,
	   side[!w].gid_hi, side[!w].gid_lo, conf.tclass, conf.hops, conf.flow);
}

void to_rts(enum who w, uint64_t qp, uint64_t sq_psn)
{
	at(w, "rts %lx %lx %lx %lx %lx %lx", qp, sq_psn, conf.rd_atomic,
	   conf.timeout, conf.retry, conf.rnr_retry);
}

/* RTR and RTS of one end towards a QP number of the other. */
void join(enum who w, uint64_t qp, uint32_t dest, uint64_t sq_psn,
	  uint64_t rq_psn)
{
	to_rtr(w, qp, dest, rq_psn);
	to_rts(w, qp, sq_psn);
}

static void init(enum who w, enum ibv_qp_type type)
{
	uint64_t access = conf.access;

	if (opt_iwarp)
		access &= ~(uint64_t)(IBV_ACCESS_REMOTE_ATOMIC |
				      IBV_ACCESS_MW_BIND);

	if (type == IBV_QPT_UC)
		access &= IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	at(w, "init %lx %lx", qpi[w], access);
}

/* A QP on each end, in INIT. */
void make(enum ibv_qp_type type)
{
	for (enum who w = A; w <= B; w++) {
		struct reply r =
			at(w, "qp %x %x", (unsigned)type, w == B && conf.srq);

		qpi[w] = r.v[0];
		qpn[w] = (uint32_t)r.v[1];
		init(w, type);
	}
}

/* One listens, the other connects. */
static void join_by_cm(void)
{
	static bool listens;

	if (!listens)
		at(B, "listen %x", opt_cm_port);
	listens = true;
	at(A, "connect %lx %x %lx %lx", qpi[A], opt_cm_port,
	   conf.dest_rd_atomic, conf.rd_atomic);
	at(B, "accept %lx %lx %lx", qpi[B], conf.dest_rd_atomic,
	   conf.rd_atomic);
	expect_cm(A, RDMA_CM_EVENT_ESTABLISHED);
}

static void join_both(void)
{
	if (opt_iwarp)
		return join_by_cm();
	join(A, qpi[A], qpn[B], conf.psn[A], conf.psn[B]);
	join(B, qpi[B], qpn[A], conf.psn[B], conf.psn[A]);
}

void pair(enum ibv_qp_type type)
{
	make(type);
	join_both();
}

/* The same two QPs begin again; their receives are gone. */
void pair_again(enum ibv_qp_type type)
{
	for (enum who w = A; w <= B; w++)
		at(w, "to %lx %x", qpi[w], (unsigned)IBV_QPS_RESET);
	/* What the network has kept back is not for the new connection. */
	if (opt_lossy)
		usleep(50000);
	for (enum who w = A; w <= B; w++)
		init(w, type);
	join_both();
}

int try_post_on(enum who w, uint64_t qp, struct work k)
{
	if (!k.off)
		k.off = AT_A;
	if (!k.nsge)
		k.nsge = k.len != 0;
	if (!k.rkey)
		k.rkey = side[!w].rkey;
	if (!k.raddr)
		k.raddr = side[!w].va + AT_B;
	if (!k.quiet)
		k.flags |= IBV_SEND_SIGNALED;
	return (int)at(w,
		       "post %lx %x %x %lx %lx %lx %lx %lx %lx %lx %lx %lx %x "
		       "%lx %x",
		       qp, (unsigned)k.op, k.flags, k.off, k.len, k.nsge, k.imm,
		       k.rkey, k.raddr, k.cmp_add, k.swap, k.ah, qpn[!w],
		       k.qkey ? k.qkey : QKEY, k.lkey)
		.v[0];
}

void post_on(enum who w, uint64_t qp, struct work k)
{
	int err = try_post_on(w, qp, k);

	if (err)
		fail("%s: ibv_post_send: %s", w == A ? "client" : "server",
		     strerror(err));
}

void receive(enum who w, uint64_t off, uint64_t len, uint64_t nsge)
{
	at(w, "recv %lx %lx %lx %lx %lx 0",
	   w == B && conf.srq ? UINT64_MAX : qpi[w], off, len,
	   nsge ? nsge : len != 0, 0x4ec0 + seed);
}

bool poll_wc(enum who w, struct done *d, uint64_t ms)
{
	struct reply r = at(w, "wc %lx", ms);

	if (!r.v[0])
		return false;
	*d = (struct done){
		.status = (enum ibv_wc_status)r.v[1],
		.opcode = (enum ibv_wc_opcode)r.v[2],
		.len = r.v[3],
		.imm = r.v[4],
		.flags = (unsigned)r.v[5],
		.qpn = (uint32_t)r.v[6],
		.wr_id = r.v[7],
		.src_qp = (uint32_t)r.v[8],
		.pkey_index = r.v[9],
		.slid = r.v[10],
		.path_bits = r.v[11],
	};
	return true;
}

static const char *role(enum who w)
{
	return w == A ? "requester" : "responder";
}

/* For the note of a failure: the state of the other end. */
const char *other_end(enum who w)
{
	static char text[128];
	struct done d = { .status = IBV_WC_SUCCESS };
	enum who o = !w;

	while (poll_wc(o, &d, 100) && d.status == IBV_WC_SUCCESS)
		;
	snprintf(text, sizeof(text),
		 " (the %s's QP is in state %" PRIu64
		 ", its completions end with \"%s\")",
		 role(o), at(o, "state %lx", qpi[o]).v[0],
		 ibv_wc_status_str(d.status));
	return text;
}

struct done wait_wc(enum who w, const char *of)
{
	struct done d;

	if (!poll_wc(w, &d, 20000))
		fail("%s: no completion of %s within 20 s%s", role(w), of,
		     other_end(w));
	return d;
}

/* The completion must have this status. */
struct done expect(enum who w, enum ibv_wc_status want, const char *of)
{
	struct done d = wait_wc(w, of);

	if (d.status != want)
		fail("%s: %s completes as \"%s\", not \"%s\"%s", role(w), of,
		     ibv_wc_status_str(d.status), ibv_wc_status_str(want),
		     other_end(w));
	return d;
}

/* The same, unless the guilty end is rxe, which is known to give another. */
struct done quirk_of(enum who guilty, enum who w, enum ibv_wc_status want,
		     enum ibv_wc_status rxe, const char *of)
{
	struct done d = wait_wc(w, of);

	if (d.status != want && side[guilty].rxe && d.status == rxe)
		remark("rxe as %s: \"%s\" where the specification and softhca "
		       "say \"%s\"",
		       role(guilty), ibv_wc_status_str(rxe),
		       ibv_wc_status_str(want));
	else if (d.status != want)
		fail("%s: %s completes as \"%s\", not \"%s\"", role(w), of,
		     ibv_wc_status_str(d.status), ibv_wc_status_str(want));
	return d;
}

struct done quirk(enum who w, enum ibv_wc_status want, enum ibv_wc_status rxe,
		  const char *of)
{
	return quirk_of(B, w, want, rxe, of);
}

enum ibv_wc_opcode wc_of(enum ibv_wr_opcode op)
{
	switch (op) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_ATOMIC_WRITE:
		return IBV_WC_ATOMIC_WRITE;
	case IBV_WR_LOCAL_INV:
		return IBV_WC_LOCAL_INV;
	default:
		return IBV_WC_SEND;
	}
}

void expect_sent(enum who w, enum ibv_wr_opcode op)
{
	struct done d = expect(w, IBV_WC_SUCCESS, "the request");

	if (d.opcode != wc_of(op))
		fail("%s: opcode %d in the completion of %d", role(w),
		     (int)d.opcode, (int)op);
}

bool takes_recv(enum ibv_wr_opcode op)
{
	return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM ||
	       op == IBV_WR_SEND_WITH_INV || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

void judge_received(enum who w, const struct done *d, enum ibv_wr_opcode op,
		    uint64_t len, uint64_t imm)
{
	bool write = op == IBV_WR_RDMA_WRITE_WITH_IMM;
	bool with = op == IBV_WR_SEND_WITH_IMM || write;
	bool inv = op == IBV_WR_SEND_WITH_INV;

	if (d->status != IBV_WC_SUCCESS)
		fail("%s: the receive completes as \"%s\"", role(w),
		     ibv_wc_status_str(d->status));
	if (d->opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV))
		fail("%s: opcode %d in the receive completion", role(w),
		     (int)d->opcode);
	if (d->len != len)
		fail("%s: received %" PRIu64 " bytes of %" PRIu64, role(w),
		     d->len, len);
	if (with != !!(d->flags & IBV_WC_WITH_IMM) || (with && d->imm != imm))
		fail("%s: immediate data 0x%" PRIx64 ", flags 0x%x", role(w),
		     d->imm, d->flags);
	if (inv != !!(d->flags & IBV_WC_WITH_INV) || (inv && d->imm != imm))
		fail("%s: invalidated rkey 0x%" PRIx64 ", flags 0x%x", role(w),
		     d->imm, d->flags);
}

void expect_received(enum who w, enum ibv_wr_opcode op, uint64_t len,
		     uint64_t imm)
{
	struct done d = wait_wc(w, "the receive");

	judge_received(w, &d, op, len, imm);
}

void expect_data(enum who w, uint64_t off, uint64_t len, bool edges)
{
	uint64_t bad =
		at(w, "check %lx %lx %lx %x", off, len, seed, edges).v[0];

	if (bad > len)
		fail("%s: bytes around a message of %" PRIu64 " changed",
		     role(w), len);
	if (bad)
		fail("%s: wrong data at byte %" PRIu64 " of %" PRIu64, role(w),
		     bad - 1, len);
}

void expect_word(const char *what, uint64_t got, uint64_t want)
{
	if (got != want)
		fail("%s: 0x%" PRIx64 ", not 0x%" PRIx64, what, got, want);
}

/* After a NAK that ends the connection the responder's QP is in ERR as well. */
void expect_fallen(void)
{
	if (at(B, "state %lx", qpi[B]).v[0] == IBV_QPS_ERR)
		return;
	if (!side[B].rxe)
		fail("responder: QP not in ERR after the error");
	remark("rxe as responder: its QP continues after the error; softhca's "
	       "goes to ERR, as specified");
}

/*
 * The receive of a refused request. No clause has a status for each case:
 * softhca's is known, and so is rxe's.
 */
void expect_receive_ends(enum ibv_wc_status softhca, enum ibv_wc_status rxe)
{
	struct done d = wait_wc(B, "the receive");

	if (d.status != (side[B].rxe ? rxe : softhca))
		fail("responder: the receive of a refused request completes as "
		     "\"%s\"",
		     ibv_wc_status_str(d.status));
	if (side[B].rxe && rxe != softhca)
		remark("the receive ends with \"%s\", with softhca \"%s\"",
		       ibv_wc_status_str(rxe), ibv_wc_status_str(softhca));
}

/* After an error: the QP of the requester is in ERR and flushes. */
void expect_flush(void)
{
	if (at(A, "state %lx", qpi[A]).v[0] != IBV_QPS_ERR)
		fail("requester: QP not in ERR after the error");
	post(.op = IBV_WR_SEND, .len = 8);
	expect(A, IBV_WC_WR_FLUSH_ERR, "a request after the error");
}

size_t sizes(uint64_t *s, uint64_t most)
{
	const uint64_t all[] = { 0,         1,           opt_mtu - 1,
				 opt_mtu,   opt_mtu + 1, 3 * opt_mtu + 2,
				 65536 + 3, 1 << 20 };
	size_t n = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
		if (all[i] <= most)
			s[n++] = all[i];
	return n;
}

/* A write over iWARP is complete when it has left: a send comes behind it. */
void expect_arrival(void)
{
	receive(B, 0x500000, 8, 0); /* siw takes none of no pieces */
	post(.op = IBV_WR_SEND);
	expect_sent(A, IBV_WR_SEND);
	expect_received(B, IBV_WR_SEND, 0, 0);
}

/* One message of an operation with data, checked at the far end. */
void one_message(enum ibv_wr_opcode op, uint64_t len, uint64_t nsge,
		 unsigned flags)
{
	enum who to = op == IBV_WR_RDMA_READ ? A : B;
	uint64_t imm = 0xcafe0000 + seed;

	seed++;
	at(!to, "fill %x %lx %lx", AT_B, len, seed);
	at(to, "guard %x %lx", AT_B, len);
	if (takes_recv(op)) /* every other buffer is longer than needed */
		receive(B, AT_B,
			op == IBV_WR_RDMA_WRITE_WITH_IMM ? 0 :
			seed & 1                         ? len :
							   len + 40,
			nsge);
	/* siw of Linux 6.1 crashes when it gathers what it sends. */
	post(.op = op, .len = len, .nsge = side[A].siw ? 0 : nsge, .imm = imm,
	     .flags = flags);
	expect_sent(A, op);
	if (takes_recv(op))
		expect_received(B, op, len, imm);
	else if (opt_iwarp && op == IBV_WR_RDMA_WRITE)
		expect_arrival();
	expect_data(to, AT_B, len, true);
}
