/*
 * move_fuzz.c - what a process hears of those that are suspended: anything at all
 *
 * The input is bytes of a message; or a program for two ends, one of which is
 * suspended and comes back, and somebody who changes what they send. What he has
 * changed moves nothing: he has no key.
 */
#include "../lib/move_ends.h"
#include "base/bytes.h"
#include "fuzz.h"
#include "input.h"
#include "move/move.h"

#define QPS 3

struct side {
	struct world *w;
	struct move *m;
	struct move_qp qp[QPS];
	unsigned changes;
};

struct world {
	struct side end[2];
	uint64_t now;
	bool have;
	int from;
	uint8_t mad[MAD_LEN];
};

static struct move_qp *find(struct side *s, uint32_t qpn)
{
	const struct move_books b = { s->qp, QPS };

	return books_find(&b, qpn);
}

static bool look(void *arg, uint32_t qpn, struct move_qp *out)
{
	struct side *s = arg;
	const struct move_books b = { s->qp, QPS };

	return books_look(&b, qpn, out);
}

static void pause_qp(void *arg, uint32_t qpn, uint64_t until,
		     const struct move_said *said)
{
	struct side *s = arg;

	FUZZ_CHECK(until > s->w->now);
	find(s, qpn)->said = *said;
	s->changes++;
}

static void follow(void *arg, uint32_t qpn, const struct move_news *news,
		   const struct move_said *said)
{
	struct side *s = arg;
	struct move_qp *qp = find(s, qpn);

	FUZZ_CHECK(news->peer <= 0xffffff);
	books_follow(qp, news, said);
	s->changes++;
}

static void known(void *arg, uint32_t qpn)
{
	struct side *s = arg;

	FUZZ_CHECK(find(s, qpn));
	s->changes++;
}

static void send_mad(void *arg, const struct roce_path *path,
		     const uint8_t mad[MAD_LEN])
{
	struct side *s = arg;
	struct move_message m;

	(void)path;
	FUZZ_CHECK(!move_decode(&m, mad, MAD_LEN));
	s->w->have = true;
	s->w->from = s == &s->w->end[1];
	memcpy(s->w->mad, mad, MAD_LEN);
}

static void one_message(const uint8_t *p, size_t len)
{
	uint8_t again[MAD_LEN];
	struct move_message m;

	if (move_decode(&m, p, len))
		return;
	move_encode(&m, NULL, again);
	FUZZ_CHECK(!memcmp(again, p, 240));
}

static void begin(struct world *w)
{
	for (unsigned k = 0; k < 2; k++) {
		struct side *s = &w->end[k];
		struct move_config cfg = {
			.process = 7 + k,
			.secret = { (uint8_t)(1 + k) },
			.look = look,
			.pause = pause_qp,
			.follow = follow,
			.known = known,
			.send = send_mad,
			.arg = s,
		};

		s->w = w;
		FUZZ_CHECK(!move_create(&s->m, &cfg));
		for (uint32_t i = 0; i < QPS; i++) {
			s->qp[i] = (struct move_qp){
				.qpn = (1 + k) << 12 | i,
				.peer = (2 - k) << 12 | i,
				.una = 5,
				.end_psn = 9,
				.epsn = 7,
			};
			s->qp[i].path.sgid.raw[15] = (uint8_t)(1 + k);
			s->qp[i].path.dgid.raw[15] = (uint8_t)(2 - k);
		}
	}
}

static void take_numbers(struct side *s)
{
	const uint32_t from = s->qp[0].qpn / MOVE_CHUNK * MOVE_CHUNK;
	const uint32_t to = (from + 16 * MOVE_CHUNK) & 0xffffff;

	move_renumber(s->m, from, to);
	move_renumber_ids(s->m, from, to);
	for (uint32_t i = 0; i < QPS; i++)
		s->qp[i].qpn = to + i;
}

static void deliver(struct world *w, unsigned to, const uint8_t *mad,
		    size_t len)
{
	struct side *s = &w->end[to];

	move_rx(s->m, &s->qp[0].path.dgid, &s->qp[0].path.sgid, 0, mad, len,
		w->now);
}

static void step(struct world *w, struct input *in)
{
	const uint8_t op = byte(in);
	struct side *a = &w->end[0];
	uint8_t nonce[MOVE_NONCE] = { 1 }, mad[MAD_LEN];
	const unsigned before = w->end[0].changes + w->end[1].changes;
	const unsigned to = !w->from;
	size_t len = MAD_LEN, at;

	switch (op % 8) {
	case 0:
		write_some(in, nonce, 2);
		FUZZ_CHECK(!move_plan(a->m, nonce, a->qp, op / 8 % (QPS + 1)));
		move_hello(a->m, w->now);
		break;
	case 1:
		move_pause(a->m, 1 + op / 8, w->now);
		break;
	case 2:
		for (unsigned i = 0; i < QPS; i++)
			a->qp[i].path.sgid.raw[14] = op / 8;
		/* Another process has its numbers. */
		if (op & 128)
			take_numbers(a);
		move_resume(a->m, w->now);
		break;
	case 3:
		w->now += UINT64_C(1) << (20 + op / 8 % 16);
		move_expire(w->end[0].m, w->now);
		move_expire(w->end[1].m, w->now);
		break;
	case 4:
	case 5: /* what was sent last */
		if (w->have) {
			memcpy(mad, w->mad, MAD_LEN);
			move_rx(w->end[to].m, &w->end[!to].qp[0].path.sgid,
				&w->end[to].qp[0].path.sgid, 0, mad, MAD_LEN,
				w->now);
		}
		break;
	case 6: /* changed */
		memcpy(mad, w->mad, MAD_LEN);
		at = byte(in);
		if (op & 128)
			len = at;
		else
			write_some(in, mad + at, 1 + byte(in) % (MAD_LEN - at));
		if (len == MAD_LEN && !memcmp(mad, w->mad, MAD_LEN))
			break;
		deliver(w, to, mad, len);
		FUZZ_CHECK(before == w->end[0].changes + w->end[1].changes);
		break;
	case 7:
		memset(mad, 0, sizeof(mad));
		mad[0] = MAD_BASE_VERSION;
		mad[1] = MOVE_CLASS;
		mad[2] = 1;
		mad[3] = MAD_METHOD_SEND;
		put_be24(mad + 37, MOVE_OUI);
		mad[40] = MOVE_VERSION;
		mad[17] = 1 + op / 8 % (MOVE_KINDS - 1);
		write_some(in, mad + 41, 41);
		deliver(w, op & 128 ? 1 : 0, mad, len);
		FUZZ_CHECK(before == w->end[0].changes + w->end[1].changes);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct world w = { .now = 1000000000 };

	one_message(data, size);
	begin(&w);
	while (in.left)
		step(&w, &in);
	move_sum(w.end[0].m);
	move_destroy(w.end[0].m);
	move_destroy(w.end[1].m);
	return 0;
}
