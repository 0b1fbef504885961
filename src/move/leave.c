/*
 * leave.c - the end that is suspended, and comes back
 *
 * The plan is in the order of the peers: first their addresses, then the chunks
 * that their numbers are of, as each process has chunks of its own. So a session is
 * a run of the plan, and a parcel a run of a session. Each message is repeated until
 * it is answered, or that has taken too long: then the peer does not understand, or
 * is not there.
 */
#include "move_internal.h"

#include "base/hash64.h"

#include <errno.h>
#include <stdlib.h>

#define ASK_TRIES 4 /* of HELLO and PAUSE, */
#define ASK_NS UINT64_C(50000000) /* after 50, 100, 200, 400 ms */
#define TELL_NS UINT64_C(20000000) /* of RESUME, later and later, */
#define TELL_MAX_NS UINT64_C(640000000)
#define TELL_FOR_NS UINT64_C(2000000000) /* so long beyond the pause */

_Static_assert(ASK_NS *((1 << ASK_TRIES) - 1) == MOVE_PATIENCE_NS, "all tries");

/* The plan */

int move_order(const void *pa, const void *pb)
{
	const struct move_qp *a = pa, *b = pb;
	int d = memcmp(&a->path.dgid, &b->path.dgid, sizeof(a->path.dgid));

	if (!d)
		d = memcmp(&a->path.sgid, &b->path.sgid, sizeof(a->path.sgid));
	if (!d)
		d = (a->peer > b->peer) - (a->peer < b->peer);
	return d ? d : (a->qpn > b->qpn) - (a->qpn < b->qpn);
}

static bool same_session(const struct move_qp *a, const struct move_qp *b)
{
	return gid_equal(&a->path.dgid, &b->path.dgid) &&
	       gid_equal(&a->path.sgid, &b->path.sgid) &&
	       a->peer / MOVE_CHUNK == b->peer / MOVE_CHUNK;
}

static void find_sessions(struct move *m)
{
	struct session *s = NULL;

	for (size_t i = 0; i < m->nplan; i++) {
		if (!s ||
		    !same_session(&m->plan[s->first].qp, &m->plan[i].qp)) {
			s = &m->session[m->nsession++];
			*s = (struct session){ .first = i };
		}
		m->plan[i].session = s;
		s->n++;
	}
}

/* Where to look for a number, or the next that is free. */
static size_t place_of(const struct move *m, uint32_t qpn)
{
	size_t i = hash64(qpn) & (m->nplace - 1);

	while (m->place[i] && m->plan[m->place[i] - 1].now != qpn)
		i = (i + 1) & (m->nplace - 1);
	return i;
}

static void find_places(struct move *m)
{
	memset(m->place, 0, m->nplace * sizeof(*m->place));
	for (size_t i = 0; i < m->nplan; i++)
		m->place[place_of(m, m->plan[i].now)] = (uint32_t)i + 1;
}

static struct planned *find_planned(const struct move *m, uint32_t qpn)
{
	const uint32_t at = m->nplan ? m->place[place_of(m, qpn)] : 0;

	return at ? &m->plan[at - 1] : NULL;
}

static void find_parcels(struct move *m)
{
	struct session *s = m->session;

	for (size_t k = 0; k < m->nsession; k++, s++)
		for (size_t i = 0; i < s->n; i += MOVE_ENTRIES)
			m->parcel[m->nparcel++] = (struct parcel){
				.session = s,
				.first = s->first + i,
				.n = s->n - i < MOVE_ENTRIES ? s->n - i :
							       MOVE_ENTRIES,
			};
}

void leave_forget(struct move *m)
{
	free(m->plan);
	free(m->place);
	free(m->session);
	free(m->parcel);
	m->plan = NULL;
	m->place = NULL;
	m->session = NULL;
	m->parcel = NULL;
	m->nplan = m->nsession = m->nparcel = 0;
	m->ids_were = m->ids_are = 0;
}

int move_plan(struct move *m, const uint8_t nonce[MOVE_NONCE],
	      const struct move_qp *qps, size_t n)
{
	leave_forget(m);
	memcpy(m->nonce, nonce, MOVE_NONCE);
	if (!n)
		return 0;
	/* As many at most of each. */
	m->plan = calloc(n, sizeof(*m->plan));
	for (m->nplace = 2; m->nplace < 2 * n;)
		m->nplace *= 2;
	m->place = calloc(m->nplace, sizeof(*m->place));
	m->session = calloc(n, sizeof(*m->session));
	m->parcel = calloc(n, sizeof(*m->parcel));
	if (!m->plan || !m->place || !m->session || !m->parcel) {
		leave_forget(m);
		return -ENOMEM;
	}
	for (size_t i = 0; i < n; i++) {
		m->plan[i].qp = qps[i];
		m->plan[i].now = qps[i].qpn;
	}
	m->nplan = n;
	find_sessions(m);
	find_places(m);
	find_parcels(m);
	return 0;
}

void move_renumber(struct move *m, uint32_t from, uint32_t to)
{
	for (size_t i = 0; i < m->nplan; i++)
		if (m->plan[i].now / MOVE_CHUNK == from / MOVE_CHUNK)
			m->plan[i].now += to - from;
	if (m->nplan)
		find_places(m);
}

void move_renumber_ids(struct move *m, uint32_t from, uint32_t to)
{
	/* It may have come to nothing before that it was back. */
	if (!m->ids_were)
		m->ids_were = from / MOVE_CHUNK;
	m->ids_are = to / MOVE_CHUNK;
	if (m->ids_are == m->ids_were)
		m->ids_were = m->ids_are = 0;
}

void leave_followed(struct move *m, uint32_t qpn)
{
	struct planned *q = find_planned(m, qpn);
	struct move_qp qp;

	if (!q || !m->cfg.look(m->cfg.arg, qpn, &qp))
		return;
	/* The peer knows us by the address that we had. */
	qp.path.sgid = q->qp.path.sgid;
	q->qp.path = qp.path;
	q->qp.peer = qp.peer;
}

/* What is sent */

static struct move_message message(struct move *m, enum move_kind kind,
				   const struct move_qp *first,
				   uint64_t counter)
{
	struct move_message msg = {
		.kind = kind,
		.keyed = m->cfg.keyed,
		.to = first->peer,
		.from = first->qpn,
		.counter = counter,
		.process = m->cfg.process,
	};

	memcpy(msg.nonce, m->nonce, MOVE_NONCE);
	return msg;
}

static void send_hello(struct move *m, struct session *s)
{
	const struct move_qp *qp = &m->plan[s->first].qp;
	struct move_message msg = message(m, MOVE_HELLO, qp, s->counter);
	uint8_t mad[MAD_LEN];

	msg.was = qp->path.sgid;
	move_encode(&msg, NULL, mad);
	m->cfg.send(m->cfg.arg, &qp->path, mad);
}

/* With all of its queue pairs that are still there, as they are now. False: there
 * is none. */
static bool send_parcel(struct move *m, struct parcel *p)
{
	const struct move_qp *first = &m->plan[p->first].qp;
	struct move_message msg = message(m, p->kind, first, p->counter);
	struct move_qp qp;
	struct roce_path path;
	uint8_t mad[MAD_LEN];

	for (size_t i = 0; i < p->n; i++) {
		const struct planned *q = &m->plan[p->first + i];
		const struct move_qp *was = &q->qp;

		if (!m->cfg.look(m->cfg.arg, q->now, &qp) ||
		    qp.peer != was->peer ||
		    !gid_equal(&qp.path.dgid, &was->path.dgid))
			continue;
		if (!msg.n) {
			path = qp.path;
			msg.from = qp.qpn;
			msg.to = qp.peer;
		}
		p->at[msg.n] = p->first + i;
		msg.entry[msg.n++] =
			(struct move_entry){ was->qpn, qp.qpn, qp.peer, qp.una,
					     qp.epsn };
	}
	if (!msg.n)
		return false;
	msg.value = p->kind == MOVE_PAUSE ?
			    m->seconds :
			    m->ids_were << MOVE_CHUNK_BITS | m->ids_are;
	msg.was = first->path.sgid;
	msg.now = path.sgid;
	/* It has moved while it was asked: the peer could not tell. */
	if (p->kind == MOVE_PAUSE && !gid_equal(&msg.was, &msg.now))
		return false;
	p->sent = msg.n;
	move_encode(&msg, p->session->key, mad);
	m->cfg.send(m->cfg.arg, &path, mad);
	return true;
}

static void ask_begin(struct ask *a, uint64_t now_ns, uint64_t first_ns)
{
	*a = (struct ask){ .waits = true, .due = now_ns + first_ns };
}

void move_hello(struct move *m, uint64_t now_ns)
{
	for (size_t i = 0; i < m->nsession; i++) {
		struct session *s = &m->session[i];

		s->counter = ++m->counter;
		ask_begin(&s->ask, now_ns, ASK_NS);
		send_hello(m, s);
	}
}

static void begin_parcel(struct move *m, struct parcel *p, enum move_kind kind,
			 uint64_t now_ns, uint64_t first_ns)
{
	p->kind = kind;
	p->counter = ++m->counter;
	ask_begin(&p->ask, now_ns, first_ns);
	p->ask.waits = send_parcel(m, p);
}

void move_pause(struct move *m, uint32_t seconds, uint64_t now_ns)
{
	m->seconds = seconds;
	for (size_t i = 0; i < m->nsession; i++)
		m->session[i].ask.waits = false;
	for (size_t i = 0; i < m->nparcel; i++) {
		struct parcel *p = &m->parcel[i];

		if (!p->session->understood)
			continue;
		p->session->paused = true;
		begin_parcel(m, p, MOVE_PAUSE, now_ns, ASK_NS);
	}
}

void move_resume(struct move *m, uint64_t now_ns)
{
	m->until_ns = now_ns + m->seconds * UINT64_C(1000000000) + TELL_FOR_NS;
	for (size_t i = 0; i < m->nparcel; i++)
		/* Who has not said that it waits may do so. */
		if (m->parcel[i].session->paused)
			begin_parcel(m, &m->parcel[i], MOVE_RESUME, now_ns,
				     TELL_NS);
}

/* Time */

static bool ask_again(struct ask *a, uint64_t now_ns)
{
	if (++a->tries == ASK_TRIES) {
		a->waits = false;
		return false;
	}
	a->due = now_ns + (ASK_NS << a->tries);
	return true;
}

static void tell_again(struct move *m, struct parcel *p, uint64_t now_ns)
{
	if (now_ns >= m->until_ns) {
		p->ask.waits = false;
		return;
	}
	p->ask.tries++;
	p->ask.due =
		now_ns + min_u64(p->ask.tries < 8 ? TELL_NS << p->ask.tries :
						    TELL_MAX_NS,
				 TELL_MAX_NS);
	p->ask.waits = send_parcel(m, p);
}

void move_expire(struct move *m, uint64_t now_ns)
{
	for (size_t i = 0; i < m->nsession; i++) {
		struct session *s = &m->session[i];

		if (s->ask.waits && now_ns >= s->ask.due &&
		    ask_again(&s->ask, now_ns))
			send_hello(m, s);
	}
	for (size_t i = 0; i < m->nparcel; i++) {
		struct parcel *p = &m->parcel[i];

		if (!p->ask.waits || now_ns < p->ask.due)
			continue;
		if (p->kind == MOVE_RESUME)
			tell_again(m, p, now_ns);
		else if (ask_again(&p->ask, now_ns))
			p->ask.waits = send_parcel(m, p);
	}
}

static uint64_t due_of(const struct ask *a)
{
	return a->waits ? a->due : UINT64_MAX;
}

uint64_t move_deadline(const struct move *m)
{
	uint64_t due = UINT64_MAX;

	for (size_t i = 0; i < m->nsession; i++)
		due = min_u64(due, due_of(&m->session[i].ask));
	for (size_t i = 0; i < m->nparcel; i++)
		due = min_u64(due, due_of(&m->parcel[i].ask));
	return due;
}

bool move_waits(const struct move *m)
{
	return move_deadline(m) != UINT64_MAX;
}

/* What comes back */

static void hello_answered(struct move *m, struct session *s,
			   const struct move_in *in)
{
	s->ask.waits = false;
	move_key(m, s->key, m->nonce, in->m->now.raw, m->cfg.process);
	s->understood = move_sealed(in->mad, s->key);
	s->refused = !s->understood;
}

static void parcel_answered(struct move *m, struct parcel *p,
			    const struct move_in *in)
{
	if (!p->ask.waits || !move_sealed(in->mad, p->session->key))
		return;
	p->ask.waits = false;
	for (unsigned i = 0; i < p->sent; i++) {
		struct planned *q = &m->plan[p->at[i]];

		if (!(in->m->value >> i & 1))
			continue;
		if (p->kind == MOVE_PAUSE) {
			q->paused = true;
			continue;
		}
		q->resumed = true;
		m->cfg.known(m->cfg.arg, q->now);
	}
}

static bool is_ours(const struct move *m, const struct session *s,
		    const struct move_in *in)
{
	return in->m->process == m->cfg.process &&
	       !memcmp(in->m->nonce, m->nonce, MOVE_NONCE) &&
	       gid_equal(in->sgid, &m->plan[s->first].qp.path.dgid);
}

void leave_rx(struct move *m, const struct move_in *in)
{
	const enum move_kind asked = in->m->kind - 1;

	for (size_t i = 0; asked == MOVE_HELLO && i < m->nsession; i++) {
		struct session *s = &m->session[i];

		if (s->ask.waits && s->counter == in->m->counter &&
		    is_ours(m, s, in))
			hello_answered(m, s, in);
	}
	for (size_t i = 0; asked != MOVE_HELLO && i < m->nparcel; i++) {
		struct parcel *p = &m->parcel[i];

		if (p->kind == asked && p->counter == in->m->counter &&
		    is_ours(m, p->session, in))
			parcel_answered(m, p, in);
	}
}

struct move_sum move_sum(const struct move *m)
{
	struct move_sum sum = { .all = m->nplan };

	for (size_t i = 0; i < m->nsession; i++) {
		if (m->session[i].understood)
			sum.hello += m->session[i].n;
		sum.other_secret |= m->session[i].refused;
	}
	for (size_t i = 0; i < m->nplan; i++) {
		sum.paused += m->plan[i].paused;
		sum.resumed += m->plan[i].resumed;
	}
	return sum;
}

bool move_understood(const struct move *m, uint32_t qpn)
{
	const struct planned *q = find_planned(m, qpn);

	return q && q->session->understood;
}
