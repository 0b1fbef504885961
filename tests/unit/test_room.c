/*
 * test_room.c - a QP that finds no room in a ring goes on when there is some
 *
 * The sending end is an engine with a QP that always has something to send, the
 * receiving end a link, polled when the test says so. Nothing here depends on
 * the time: no timer runs.
 */
#include "registry_dir.h"

#include "gid.h"

#include "engine/engine_internal.h"
#include "link/shm.h"
#include "segment/segment.h"

#define LEN 1000u
#define MANY 1000 /* more than a ring holds */

struct end {
	struct registry *r;
	struct segment *s;
	struct link *link;
	union ibv_gid gid;
};

static const struct config config;
static struct end a, b; /* a sends, b receives */
static struct engine engine; /* a's */
static struct engine_qp qp;
static struct roce_path path;
static uint32_t dest; /* QPN */
static unsigned sent, flushes;
static unsigned got;
static bool ack; /* b acknowledges what it gets */
static uint8_t payload[LEN];

static void no_wait(struct link *l)
{
	(void)l;
}

static const struct link_ops no_ops = { .wait = no_wait };
static struct link nowhere = { .ops = &no_ops }; /* nothing goes there */

static struct end end_new(const char *addr)
{
	const struct shm_config cfg = { .copy = true };
	struct end e = { .r = join(), .gid = gid_of(addr) };

	assert_non_null(e.r);
	assert_int_equal(segment_create(&e.s, e.r, 0), 0);
	assert_int_equal(shm_create(&e.link, &cfg, e.s), 0);
	assert_int_equal(registry_lock(e.r), 0);
	assert_int_equal(registry_addr_join(e.r, &e.gid, 0, false), 0);
	registry_unlock(e.r);
	return e;
}

static void end_free(struct end *e)
{
	e->link->ops->destroy(e->link);
	segment_destroy(e->s);
	registry_leave(e->r);
}

static bool send_one(void)
{
	static struct roce_batch bt;
	int err;

	memset(&bt, 0, offsetof(struct roce_batch, data));
	bt.n = 1;
	bt.pkt[0] = (struct roce_pkt){
		.h = { .opcode = ROCE_SEND_ONLY,
		       .dest_qpn = dest,
		       .psn = sent,
		       .ack_req = true },
		.path = &path,
		.payload = LEN,
		.niov = 1,
		.last_psn = sent,
	};
	bt.data.n = 1;
	bt.data.iov[0] = (struct iovec){ payload, LEN };
	bt.data.key_of[0] = QP_PIECE_OWN;
	return engine_send(&engine, &qp, &bt, &err) == 1;
}

static void qp_rx(struct engine_qp *q, const struct roce_rx *pkt, uint64_t now)
{
	(void)q;
	(void)now;
	assert_true(pkt->ack_note);
}

/* As QPs do: until there is room, making packets is in vain. */
static void qp_flush(struct engine_qp *q, uint64_t now)
{
	(void)now;
	flushes++;
	if (engine_starved(q))
		return;
	for (int i = 0; i < MANY && send_one(); i++)
		sent++;
	assert_true(engine_starved(q));
}

static void qp_free(struct engine_qp *q)
{
	(void)q;
}

static bool qp_hold(struct engine_qp *q)
{
	(void)q;
	return false;
}

static const struct engine_qp_ops ops = { .rx = qp_rx,
					  .flush = qp_flush,
					  .run = qp_flush,
					  .hold = qp_hold,
					  .free = qp_free };

static int begin(void **state)
{
	uint32_t num;
	int qpn;

	if (setup(state))
		return -1;
	a = end_new("127.0.0.1");
	b = end_new("127.0.0.2");
	qpn = registry_lease(b.r);
	assert_true(qpn > 0);
	dest = (uint32_t)qpn + 5;
	path = (struct roce_path){ .sgid = a.gid,
				   .dgid = b.gid,
				   .local = true };
	engine = (struct engine){ .cfg = &config,
				  .heap_due = UINT64_MAX,
				  .registry = a.r,
				  .link = { &nowhere, a.link },
				  .nlinks = 2,
				  .choice = true };
	pthread_mutex_init(&engine.qpn_lock, NULL);
	pthread_mutex_init(&engine.timer_lock, NULL);
	memset(&qp, 0, sizeof(qp));
	engine_qp_init(&qp, &engine, &ops);
	qp.dead = false;
	assert_int_equal(engine_qpn_alloc(&engine, &qp, &num), 0);
	sent = got = flushes = 0;
	return 0;
}

static int finish(void **state)
{
	engine_qpn_free(&engine, &qp);
	engine_timer_drop(&engine, &qp);
	send_end(&engine);
	engine_qp_put(&qp);
	qpn_fini(&engine);
	free(engine.heap);
	end_free(&a);
	end_free(&b);
	return teardown_empty(state);
}

static void rx(void *arg, const struct roce_rx *pkt)
{
	(void)arg;
	got++;
	if (pkt->acked)
		*pkt->acked = ack;
}

static void receive_all(void)
{
	struct link *l = b.link;

	for (unsigned idle = 0; idle < 2 * REGISTRY_SLOTS / 64; idle++)
		if (l->ops->poll(l, 64, rx, NULL))
			idle = 0;
	assert_int_equal(got, sent);
}

static void poll_once(void)
{
	bool busy;

	progress(&engine, 0, &busy);
	assert_false(busy);
}

static void fill(void)
{
	engine_qp_lock(&qp);
	qp_flush(&qp, 0);
	engine_qp_unlock(&qp);
	assert_true(sent > 40);
	assert_true(link_starved(&qp.way));
}

static void goes_on_when_there_is_room(void **state)
{
	unsigned before;

	(void)state;
	fill();
	for (int i = 0; i < 5; i++) {
		before = sent;
		poll_once();
		assert_int_equal(sent, before);
		receive_all();
		poll_once();
		assert_true(sent > before);
	}
}

/*
 * An acknowledgement comes with the room, and what is sent in answer to it
 * fills the ring; whoever looks after QPs that wait for room comes second.
 */
static void goes_on_though_room_was_gone(void **state)
{
	unsigned before;

	(void)state;
	fill();
	for (int i = 0; i < 5; i++) {
		before = sent;
		ack = true;
		receive_all();
		poll_once();
		assert_true(sent > before);
		before = sent;
		ack = false;
		receive_all();
		poll_once();
		assert_true(sent > before);
	}
}

/* The holder of its lock has filled the ring, and does what others leave. */
static void goes_on_though_it_was_locked(void **state)
{
	unsigned before;

	(void)state;
	fill();
	ack = false;
	for (int i = 0; i < 5; i++) {
		receive_all();
		/* Who looks for room finds the lock held. */
		engine_qp_lock(&qp);
		before = flushes;
		assert_true(a.link->ops->ready(a.link));
		qp_flush(&qp, 0);
		poll_once();
		assert_int_equal(flushes, before + 1);
		engine_qp_unlock(&qp);
		assert_int_equal(flushes, before + 2);
		before = sent;
		receive_all();
		poll_once();
		assert_true(sent > before);
	}
}

#define ROOM(fn) cmocka_unit_test_setup_teardown(fn, begin, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ROOM(goes_on_when_there_is_room),
		ROOM(goes_on_though_room_was_gone),
		ROOM(goes_on_though_it_was_locked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
