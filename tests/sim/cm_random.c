/*
 * cm_random.c - random connections between three nodes over a bad network
 *
 * Each run makes dialogs: one node asks another for a connection or a datagram
 * service, and from then on both users do what random choice says: accept,
 * refuse, close without a word, disconnect, or just take their time. What each
 * side is told must fit what the other did, whatever was lost on the way, and
 * in the end nothing may be left of it. A failure prints the seed; SIM_SEED=n
 * runs just that one, SIM_RUNS=n sets how many are tried, SIM_TEST=name picks
 * one test.
 */
#include "cm_net.h"

#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define DIALOGS 40
#define SID(node) IPCM_SERVICE_ID(0x0106, 1000 + (node))
#define UD_SID(node) IPCM_SERVICE_ID(0x0111, 1000 + (node))

#define CHECK(net, what)                                                       \
	do {                                                                   \
		if (!(what))                                                   \
			fail_msg("SIM_SEED=%llu: %s:%d: %s",                   \
				 (unsigned long long)(net)->seed, __FILE__,    \
				 __LINE__, #what);                             \
	} while (0)

enum action {
	NOTHING,
	DIAL,
	ANSWER, /* passive, after REQ */
	PROCEED, /* active, after REP */
	HANG_UP, /* after ESTABLISHED, or DREQ */
	CLOSE,
};

struct side {
	struct cm_conn *conn;
	bool used, closed, over;
	bool accepted, refused, established, disconnected;
	unsigned reqs, outcomes;
	enum action action;
	uint64_t at;
};

struct dialog {
	int from, to;
	bool ud;
	struct side side[2]; /* active, passive */
};

struct world {
	struct dialog dialog[DIALOGS];
	bool strict; /* nobody forges or changes messages */
	unsigned outcomes[CM_EV_SIDR_REP + 1];
};

static void plan(struct cm_net *net, struct side *s, enum action action)
{
	/* mostly soon, sometimes after the other side lost patience */
	uint64_t within = cm_net_chance(net, 0.1) ? 20 * SEC : SEC / 5;

	s->action = action;
	s->at = net->now + cm_net_rand(net) % within;
}

/* Private data of a dialog's step: recognisable, and all of it. */
static void fill(uint8_t *p, size_t len, unsigned dialog, unsigned step)
{
	for (size_t i = 0; i < len; i++)
		p[i] = (uint8_t)(dialog * 31 + step * 7 + i);
	p[0] = (uint8_t)dialog;
}

static bool filled(const uint8_t *p, size_t len, unsigned dialog, unsigned step)
{
	uint8_t want[256];

	fill(want, len, dialog, step);
	return !memcmp(p, want, len);
}

static int request(struct cm_net_node *n, const struct cm_event *ev)
{
	struct cm_net *net = n->net;
	struct world *w = net->user;
	unsigned i = ev->data[0];
	struct dialog *d = &w->dialog[i % DIALOGS];
	struct side *s = &d->side[1];

	if (w->strict) {
		CHECK(net, i < DIALOGS && d->to == n->index);
		CHECK(net, d->ud == (ev->type == CM_EV_SIDR_REQ));
		CHECK(net, filled(ev->data, ev->len, i, 0));
		/* asked again only after it is over, by a late duplicate */
		CHECK(net, !s->used || s->refused || s->over ||
				   (s->closed && !s->established));
	}
	if ((s->used && !s->closed) || d->to != n->index)
		return CM_REJ_DUPLICATE_COMM_ID;
	s->reqs++;
	if (cm_net_chance(net, 0.1))
		return -EAGAIN;
	/* what was said in an earlier attempt may still be on its way */
	*s = (struct side){ .used = true,
			    .conn = ev->conn,
			    .reqs = s->reqs,
			    .accepted = s->accepted,
			    .refused = s->refused };
	cm_conn_set_user(ev->conn, s);
	plan(net, s, ANSWER);
	return 0;
}

static int on_event(struct cm_net_node *n, const struct cm_event *ev)
{
	struct cm_net *net = n->net;
	struct world *w = net->user;
	struct side *s, *other;
	struct dialog *d;
	unsigned i;
	bool strict = w->strict;

	w->outcomes[ev->type]++;
	if (ev->type == CM_EV_REQ || ev->type == CM_EV_SIDR_REQ)
		return request(n, ev);
	s = ev->user;
	i = (unsigned)((size_t)((char *)s - (char *)w->dialog) /
		       sizeof(w->dialog[0]));
	d = &w->dialog[i];
	other = s == &d->side[0] ? &d->side[1] : &d->side[0];
	CHECK(net, ev->conn == s->conn);
	CHECK(net, !s->closed);

	switch (ev->type) {
	case CM_EV_REP:
		CHECK(net, s == &d->side[0] && ++s->outcomes == 1);
		if (strict) {
			CHECK(net, other->accepted);
			CHECK(net, filled(ev->data, ev->len, i, 1));
		}
		plan(net, s, PROCEED);
		break;
	case CM_EV_SIDR_REP:
		CHECK(net, s == &d->side[0] && ++s->outcomes == 1);
		if (strict && !ev->status) {
			CHECK(net, other->accepted);
			CHECK(net, ev->peer.qpn == 5000 + i);
			CHECK(net, filled(ev->data, ev->len, i, 1));
		}
		s->over = true;
		plan(net, s, CLOSE);
		break;
	case CM_EV_ESTABLISHED:
		CHECK(net, s == &d->side[1] && s->accepted);
		CHECK(net, !s->established);
		if (strict)
			CHECK(net, other->established);
		s->established = true;
		plan(net, s, HANG_UP);
		break;
	case CM_EV_REJ:
		if (strict)
			CHECK(net,
			      other->refused || other->closed ||
				      ev->status == CM_REJ_INVALID_COMM_ID);
		CHECK(net, !s->over);
		s->over = true;
		s->outcomes++;
		plan(net, s, CLOSE);
		break;
	case CM_EV_UNREACHABLE:
		CHECK(net, !s->over);
		s->over = true;
		s->outcomes++;
		plan(net, s, CLOSE);
		break;
	case CM_EV_DREQ:
		CHECK(net, s->accepted || s->established);
		if (strict)
			CHECK(net, other->disconnected);
		plan(net, s, HANG_UP);
		break;
	case CM_EV_DREP:
		CHECK(net, s->disconnected || !strict);
		s->over = true;
		plan(net, s, CLOSE);
		break;
	case CM_EV_TIMEWAIT_EXIT:
		CHECK(net, s->over || s->disconnected || !strict);
		break;
	case CM_EV_REQ:
	case CM_EV_SIDR_REQ:
		break;
	}
	return 0;
}

static void dial(struct cm_net *net, struct dialog *d, unsigned i)
{
	struct roce_path path = cm_net_path(net, d->from, d->to);
	struct cm *cm = net->node[d->from].cm;
	struct side *s = &d->side[0];
	uint8_t data[256];
	struct cm_end end = {
		.qp_type = IBV_QPT_RC,
		.qpn = 100 + i,
		.mtu = IBV_MTU_4096,
		.pkey = 0xffff,
		.ack_timeout = 20, /* longer than a packet is on its way */
	};
	int err;

	fill(data, sizeof(data), i, 0);
	if (d->ud)
		err = cm_sidr_request(cm, &s->conn, UD_SID(d->to), &path,
				      0xffff, data, CM_SIDR_REQ_DATA, s,
				      net->now);
	else
		err = cm_connect(cm, &s->conn, SID(d->to), &path, &end, data,
				 CM_REQ_DATA, s, net->now);
	CHECK(net, !err);
	s->used = true;
	if (cm_net_chance(net, 0.05))
		plan(net, s, CLOSE);
}

static void answer(struct cm_net *net, struct dialog *d, unsigned i)
{
	struct cm *cm = net->node[d->to].cm;
	struct side *s = &d->side[1];
	struct cm_end end = { .qp_type = IBV_QPT_RC, .qpn = 5000 + i };
	uint8_t data[256];
	uint32_t choice = cm_net_below(net, 10);
	int err;

	fill(data, sizeof(data), i, 1);
	if (choice == 0) { /* close, which refuses */
		s->refused = true;
		s->action = CLOSE;
		s->at = net->now;
		return;
	}
	if (d->ud) {
		err = cm_sidr_reply(
			cm, s->conn, choice == 1 ? CM_SIDR_NO_QP : CM_SIDR_OK,
			5000 + i, 1, NULL, data, CM_SIDR_REP_DATA, net->now);
		s->over = true;
		plan(net, s, CLOSE);
		/* the answer is repeated for a while, then forgotten */
		s->refused = true;
		s->accepted = choice != 1;
	} else if (choice == 1) {
		err = cm_reject(cm, s->conn, CM_REJ_CONSUMER, NULL, 0, data,
				CM_REJ_DATA, net->now);
		s->refused = s->over = true;
		plan(net, s, CLOSE);
	} else {
		err = cm_accept(cm, s->conn, &end, data, CM_REP_DATA, net->now);
		s->accepted = true;
		if (cm_net_chance(net, 0.05))
			plan(net, s, CLOSE);
	}
	CHECK(net, !err || !((struct world *)net->user)->strict);
}

static void proceed(struct cm_net *net, struct dialog *d)
{
	struct cm *cm = net->node[d->from].cm;
	struct side *s = &d->side[0];
	uint32_t choice = cm_net_below(net, 10);

	if (cm_conn_state(s->conn) == CM_IDLE)
		return; /* refused meanwhile */
	if (choice == 0) {
		s->refused = true;
		s->action = CLOSE;
		s->at = net->now;
	} else if (choice == 1) {
		CHECK(net, !cm_reject(cm, s->conn, CM_REJ_CONSUMER, NULL, 0,
				      NULL, 0, net->now));
		s->refused = s->over = true;
		plan(net, s, CLOSE);
	} else {
		CHECK(net, !cm_rtu(cm, s->conn, NULL, 0, net->now));
		s->established = true;
		plan(net, s, HANG_UP);
	}
}

static void hang_up(struct cm_net *net, struct dialog *d, struct side *s)
{
	struct cm *cm = net->node[s == &d->side[0] ? d->from : d->to].cm;

	switch (cm_conn_state(s->conn)) {
	case CM_ESTABLISHED:
	case CM_DREQ_RCVD:
		if (cm_net_chance(net, 0.3)) {
			s->action = CLOSE;
			s->at = net->now;
			s->disconnected = true;
			return;
		}
		if (cm_conn_state(s->conn) == CM_DREQ_RCVD) {
			s->over = true;
			plan(net, s, CLOSE);
		}
		s->disconnected = true;
		CHECK(net, !cm_disconnect(cm, s->conn, NULL, 0, net->now));
		break;
	default:
		break;
	}
}

static void act(struct cm_net *net)
{
	struct world *w = net->user;

	for (unsigned i = 0; i < 2 * DIALOGS; i++) {
		struct dialog *d = &w->dialog[i / 2];
		struct side *s = &d->side[i % 2];
		enum action action = s->action;

		if (action == NOTHING || s->at > net->now)
			continue;
		s->action = NOTHING;
		switch (action) {
		case DIAL:
			dial(net, d, i / 2);
			break;
		case ANSWER:
			if (cm_conn_state(s->conn) != CM_IDLE)
				answer(net, d, i / 2);
			break;
		case PROCEED:
			proceed(net, d);
			break;
		case HANG_UP:
			hang_up(net, d, s);
			break;
		case CLOSE:
			cm_close(net->node[i % 2 ? d->to : d->from].cm, s->conn,
				 net->now);
			s->closed = true;
			break;
		case NOTHING:
			break;
		}
	}
}

static uint64_t next(struct cm_net *net)
{
	struct world *w = net->user;
	uint64_t due = UINT64_MAX;

	for (unsigned i = 0; i < 2 * DIALOGS; i++) {
		struct side *s = &w->dialog[i / 2].side[i % 2];

		if (s->action != NOTHING)
			due = min_u64(due, s->at > net->now ? s->at : net->now);
	}
	return due;
}

/* Node 2 forges what it overhears of the others. */
static bool eavesdrop(struct cm_net *net, const struct mad *heard, int from)
{
	struct mad m = *heard;
	size_t count;
	const struct mad_field *f = mad_fields(m.attr_id, &count);

	if (from == 2)
		return false;
	for (unsigned n = cm_net_below(net, 4); n > 0; n--) {
		uint64_t value = cm_net_rand(net);

		f = &f[0];
		memcpy((uint8_t *)&m +
			       f[cm_net_below(net, (uint32_t)count)].offset,
		       &value, 1);
	}
	if (cm_net_chance(net, 0.3)) {
		m.attr_id = (uint16_t)(MAD_CM_REQ + cm_net_below(net, 11));
		m.rej.reason = (uint16_t)cm_net_below(net, 40);
	}
	/* a request that makes sense is anybody's right */
	if (m.attr_id != MAD_CM_REQ && m.attr_id != MAD_CM_SIDR_REQ)
		cm_net_inject(net, &net->node[2].gid, (int)cm_net_below(net, 2),
			      &m);
	return false;
}

static unsigned one_run(uint64_t seed, const struct cm_net_link *link,
			bool forger)
{
	struct cm_net *net = cm_net_new(seed, &(struct cm_config){ 0 });
	struct world *w = calloc(1, sizeof(*w));
	unsigned accepted;

	net->user = w;
	net->link = *link;
	net->event = on_event;
	net->next = next;
	net->act = act;
	if (forger)
		net->drop = eavesdrop;
	w->strict = link->mangle == 0;
	for (int i = 0; i < CM_NET_NODES; i++) {
		struct cm_listener *l;

		CHECK(net, !cm_listen(net->node[i].cm, &l, SID(i), NULL,
				      CM_LISTEN_V4, &net->node[i]));
		CHECK(net, !cm_listen(net->node[i].cm, &l, UD_SID(i), NULL,
				      CM_LISTEN_V4, &net->node[i]));
	}
	for (unsigned i = 0; i < DIALOGS; i++) {
		struct dialog *d = &w->dialog[i];

		d->from = (int)cm_net_below(net, forger ? 2 : CM_NET_NODES);
		d->to = forger ? 1 - d->from :
				 (d->from + 1 + (int)cm_net_below(net, 2)) %
					 CM_NET_NODES;
		d->ud = cm_net_chance(net, 0.25);
		d->side[0].action = DIAL;
		d->side[0].at = net->now + cm_net_rand(net) % (2 * SEC);
	}
	cm_net_run(net, 4000 * SEC);

	/* whoever still waits for something gives up */
	for (unsigned i = 0; i < 2 * DIALOGS; i++) {
		struct dialog *d = &w->dialog[i / 2];
		struct side *s = &d->side[i % 2];

		if (s->used && !s->closed) {
			/* only those with nothing more to wait for do that */
			if (w->strict)
				CHECK(net, s->established || s->disconnected ||
						   s->over || s->accepted);
			s->action = CLOSE;
			s->at = net->now;
		}
	}
	CHECK(net, cm_net_run(net, 4000 * SEC));
	for (int i = 0; i < CM_NET_NODES; i++) {
		struct cm_stats st = cm_stats(net->node[i].cm);

		CHECK(net, st.conns == 0);
		CHECK(net, cm_deadline(net->node[i].cm) == UINT64_MAX);
		CHECK(net, st.tx_full == 0);
	}
	for (unsigned i = 0; i < DIALOGS; i++) {
		struct side *s = &w->dialog[i].side[0];

		/* told once how it went, unless it did not want to know */
		CHECK(net, s->outcomes >= 1 || s->closed);
	}
	accepted = w->outcomes[CM_EV_REP];
	free(w);
	cm_net_free(net);
	return accepted;
}

static void runs(const struct cm_net_link *link, bool forger)
{
	const char *seed = getenv("SIM_SEED"), *n = getenv("SIM_RUNS");
	unsigned long count = n ? strtoul(n, NULL, 0) : 150;
	unsigned accepted = 0;

	if (seed) {
		one_run(strtoull(seed, NULL, 0), link, forger);
		return;
	}
	for (unsigned long i = 1; i <= count; i++)
		accepted += one_run(i, link, forger);
	/* that was not all failures */
	assert_true(accepted > count * DIALOGS / 5);
}

static void clean(void **state)
{
	(void)state;
	runs(&(struct cm_net_link){ .delay_ns = 10000 }, false);
}

static void loss(void **state)
{
	(void)state;
	runs(&(struct cm_net_link){ .delay_ns = 10000, .loss = 0.2 }, false);
}

static void reorder_duplicate(void **state)
{
	(void)state;
	runs(&(struct cm_net_link){ .delay_ns = 10000,
				    .jitter_ns = SEC,
				    .dup = 0.4 },
	     false);
}

static void everything(void **state)
{
	(void)state;
	runs(&(struct cm_net_link){ .delay_ns = 10000,
				    .jitter_ns = 3 * SEC,
				    .dup = 0.2,
				    .loss = 0.2 },
	     false);
}

/* Changed messages may do harm, but only to what they name. */
static void mangled(void **state)
{
	(void)state;
	runs(&(struct cm_net_link){ .delay_ns = 10000,
				    .jitter_ns = SEC / 10,
				    .dup = 0.1,
				    .loss = 0.05,
				    .mangle = 0.5 },
	     false);
}

static void forger(void **state)
{
	(void)state;
	runs(&(struct cm_net_link){ .delay_ns = 10000,
				    .jitter_ns = SEC / 10,
				    .loss = 0.1 },
	     true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clean),
		cmocka_unit_test(loss),
		cmocka_unit_test(reorder_duplicate),
		cmocka_unit_test(everything),
		cmocka_unit_test(mangled),
		cmocka_unit_test(forger),
	};

	cmocka_set_test_filter(getenv("SIM_TEST"));
	return cmocka_run_group_tests_name("cm_random", tests, NULL, NULL);
}
