/*
 * inject.c - does to packets, receives, calls and events what a script says
 *
 * The rules decide (select.c); here are the lock, the clock and the packets. Those
 * that are sent later are copied, and wait in a list of the engine, which an
 * alarm looks at. The lock comes after a QP's and before a link's sending side, and is
 * held while a packet is sent: under a script order matters more than speed.
 */
#include "inject.h"

#include "base/lock.h"
#include "base/say.h"
#include "base/sys.h"
#include "engine/engine.h"
#include "os/config.h"
#include "os/guard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HELD_MAX 16384u
#define AGAIN_NS 1000000u /* a packet that the link had no room for */
#define STRAGGLER_NS 100000000u /* what nothing overtakes is sent then */

/* A packet that is sent later. */
struct held {
	struct held *next;
	uint64_t due;
	uint32_t behind; /* so many are to overtake it */
	struct roce_pkt pkt;
	struct roce_path path;
	uint8_t payload[];
};

struct engine_faults {
	struct held *head, **tail;
	unsigned nheld;
	struct engine_alarm alarm;
	struct roce_batch batch; /* of one packet that is a copy */
};

static struct {
	struct lock lock; /* of all that follows, and of engines' lists */
	struct faults *f; /* set once */
	const char *path;
	struct faults_log log;
	uint64_t reported; /* the sum of all that lines had done */
} script;

static const struct faults_ops ops;

/* ---- the script -------------------------------------------------------- */

static void load(void)
{
	const struct config *cfg = config_get();
	char why[1024];
	int err;

	script.log.fd = -1;
	script.path = cfg->faults;
	if (cfg->faults) {
		script.f = faults_load(cfg->faults, why, sizeof(why));
		if (!script.f)
			say("SOFTHCA_FAULTS ignored: %s", why);
	}
	if (script.f && !script.f->seeded)
		script.f->seed = cfg->seed ? cfg->seed : clock_ns();
	if (script.f && cfg->faults_log) {
		err = faults_log_open(&script.log, cfg->faults_log, script.f);
		if (err)
			say("cannot write %s: %s", cfg->faults_log,
			    sys_strerror(-err));
	}
	if (script.f)
		faults_ops = &ops;
}

void faults_attach(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
}

void faults_forked(void)
{
	const struct config *cfg = config_get();

	script.lock = (struct lock){ 0 };
	if (script.log.fd < 0)
		return;
	/* Its parent's file is not its own. */
	faults_log_close(&script.log);
	if (strstr(cfg->faults_log, "%p"))
		faults_log_open(&script.log, cfg->faults_log, script.f);
}

bool faults_any(enum fault_action a)
{
	const struct faults *f = script.f;

	for (size_t i = 0; f && i < f->nrules; i++)
		if (f->rule[i].what.action == a)
			return true;
	return false;
}

/* The lock is held: r has acted on the nth that it selects. */
static void acted(struct fault_rule *r, uint64_t n)
{
	char text[512];
	int err;

	if (!r->acted++ && config_get()->explain) {
		fault_text(r, text, sizeof(text));
		say("on purpose, by line %u of %s: %s begins", r->line,
		    script.path, text);
	}
	err = faults_log_add(&script.log, r, n);
	if (!err)
		return;
	say("%s ends here: %s", config_get()->faults_log, sys_strerror(-err));
	faults_log_close(&script.log);
}

static uint64_t sum(void)
{
	uint64_t n = 0;

	for (size_t i = 0; script.f && i < script.f->nrules; i++)
		n += script.f->rule[i].acted;
	return n;
}

static void explain(void)
{
	const uint64_t n = sum();
	char text[512];

	if (script.reported == n)
		return;
	script.reported = n;
	for (size_t i = 0; i < script.f->nrules; i++) {
		const struct fault_rule *r = &script.f->rule[i];

		if (!r->acted)
			continue;
		fault_text(r, text, sizeof(text));
		say("on purpose, by line %u of %s: %s: %" PRIu64 " of %" PRIu64,
		    r->line, script.path, text, r->acted,
		    r->n ? r->n : r->acted);
	}
}

static void note(char *out, size_t size)
{
	const uint64_t n = sum();

	*out = '\0';
	if (n)
		snprintf(out, size,
			 " (%s has made %" PRIu64 " faults on purpose so far)",
			 script.path, n);
}

static int call(enum fault_verb v)
{
	struct fault_rule *r;
	uint64_t n;

	lock_take(&script.lock);
	r = faults_verb(script.f, v, clock_ns(), &n);
	if (r)
		acted(r, n);
	lock_drop(&script.lock);
	if (r && config_get()->explain)
		say("ibv_%s() fails on purpose, by line %u of %s: %s",
		    fault_verb_name(v), r->line, script.path,
		    sys_strerror(r->what.err));
	return r ? -r->what.err : 0;
}

bool faults_withhold(const struct qp *core)
{
	const struct roce_path *path = roce_qp_path(roce_qp_const(core));
	const struct fault_packet k = {
		.qpn = core->qpn,
		.peer = path ? &path->dgid : NULL,
		.local = path ? &path->sgid : NULL,
	};
	struct fault_rule *r;
	uint64_t n;

	lock_take(&script.lock);
	r = faults_recv(script.f, &k, clock_ns(), &n);
	if (r)
		acted(r, n);
	lock_drop(&script.lock);
	return r;
}

/* ---- packets that leave ------------------------------------------------ */

/* Copies a packet. NULL: it is sent as it is. */
static struct held *copy(const struct roce_batch *b, const struct roce_pkt *p)
{
	struct held *h = malloc(sizeof(*h) + p->payload);
	size_t len = 0;

	if (!h)
		return NULL;
	h->pkt = *p;
	h->path = *p->path;
	h->pkt.path = &h->path;
	for (size_t i = p->iov; i < p->iov + p->niov; i++) {
		const struct iovec *v = &b->data.iov[i];

		if (guard_copy(h->payload + len, v->iov_base, v->iov_len,
			       v->iov_base)) {
			free(h);
			return NULL;
		}
		len += v->iov_len;
	}
	return h;
}

/* Sends a copy. False: there is no room now. */
static bool send_copy(struct engine *e, struct held *h)
{
	struct roce_batch *b = &e->faults->batch;
	struct link *wire = engine_wire(e, h->pkt.path);
	int err = 0;

	b->n = 1;
	b->data.n = b->data.nkeys = 0;
	b->pkt[0] = h->pkt;
	b->pkt[0].iov = 0;
	b->pkt[0].niov = h->pkt.payload > 0;
	if (h->pkt.payload)
		qp_piece_add(&b->data, h->payload, h->pkt.payload, true);
	return wire->ops->send(wire, NULL, b, 0, 1, &err) == 1;
}

static void due_at(struct engine *e, uint64_t due)
{
	if (due < atomic_load(&e->faults->alarm.due))
		engine_alarm_set(e, &e->faults->alarm, due);
}

static bool hold(struct engine *e, const struct fault_what *w,
		 const struct roce_batch *b, const struct roce_pkt *p,
		 uint64_t now)
{
	struct engine_faults *l = e->faults;
	struct held *h = l->nheld < HELD_MAX ? copy(b, p) : NULL;

	if (!h)
		return false;
	h->behind = w->behind;
	h->due = now + (w->behind ? STRAGGLER_NS : w->delay_ns);
	h->next = NULL;
	*l->tail = h;
	l->tail = &h->next;
	l->nheld++;
	due_at(e, h->due);
	return true;
}

/* Sends what is due. */
static void release(struct engine *e, uint64_t now)
{
	struct engine_faults *l = e->faults;
	struct held **at = &l->head, *h;

	while ((h = *at)) {
		if (h->due > now) {
			at = &h->next;
			continue;
		}
		if (!send_copy(e, h)) {
			h->due = now + AGAIN_NS;
			break; /* those behind it wait as well */
		}
		*at = h->next;
		l->nheld--;
		free(h);
	}
	for (at = &l->head; *at; at = &(*at)->next)
		due_at(e, (*at)->due > now ? (*at)->due : now + AGAIN_NS);
	l->tail = at;
}

/* A packet has left: those that it was to overtake may follow. */
static void overtaken(struct engine *e, const struct roce_pkt *p, uint64_t now)
{
	bool any = false;

	for (struct held *h = e->faults->head; h; h = h->next) {
		if (!h->behind || h->pkt.h.dest_qpn != p->h.dest_qpn ||
		    memcmp(&h->path.dgid, &p->path->dgid, 16) != 0)
			continue;
		if (!--h->behind) {
			h->due = now;
			any = true;
		}
	}
	if (any)
		release(e, now);
}

/* A bit changes on the way: of the payload, or else of the ICRC alone. */
static bool send_corrupt(struct engine *e, const struct fault_rule *r,
			 uint64_t n, const struct roce_batch *b, size_t i,
			 bool *acts)
{
	struct held *h = copy(b, &b->pkt[i]);
	const uint32_t len = b->pkt[i].payload;
	bool sent;

	*acts = h && (len || !r->what.right_icrc);
	if (!*acts) {
		free(h);
		return false;
	}
	if (len) {
		const uint64_t bit = faults_number(script.f, n) % (8ull * len);

		h->payload[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	h->pkt.damaged = !r->what.right_icrc;
	sent = send_copy(e, h);
	free(h);
	return sent;
}

static void doom(struct engine_qp *qp, const struct fault_rule *r)
{
	atomic_store(&qp->kill_line, r->line);
}

/* One packet. False: there is no room for it now. */
static bool send_one(struct engine *e, struct engine_qp *qp,
		     const struct roce_batch *b, size_t i, uint64_t now,
		     int *err)
{
	const struct roce_pkt *p = &b->pkt[i];
	const struct fault_packet k = {
		.opcode = p->h.opcode,
		.syndrome = p->h.syndrome,
		.qpn = qp ? qp->num : 1,
		.dest_qpn = p->h.dest_qpn,
		.peer = &p->path->dgid,
		.local = &p->path->sgid,
		.bytes = p->payload,
		.dir = FAULT_OUT,
	};
	struct link *wire = engine_wire(e, p->path);
	bool sent = true, acts = true;
	struct fault_rule *r;
	uint64_t n;

	r = faults_packet(script.f, &k, now, &n);
	switch (r ? (enum fault_action)r->what.action : FAULT_ACTIONS) {
	case FAULT_DROP:
		break;
	case FAULT_DELAY:
	case FAULT_REORDER:
		acts = hold(e, &r->what, b, p, now);
		break;
	case FAULT_CORRUPT:
		sent = send_corrupt(e, r, n, b, i, &acts);
		break;
	case FAULT_KILL:
		acts = qp;
		if (qp)
			doom(qp, r);
		break;
	default:
		acts = false;
	}
	if (!acts) {
		sent = wire->ops->send(wire, NULL, b, i, i + 1, err) > i;
		if (sent)
			overtaken(e, p, now);
		acts = sent && r && r->what.action == FAULT_DUPLICATE &&
		       wire->ops->send(wire, NULL, b, i, i + 1, err) > i;
	}
	if (!sent)
		faults_unpacket(script.f, &k);
	else if (acts)
		acted(r, n);
	return sent;
}

static size_t send_all(struct engine *e, struct engine_qp *qp,
		       const struct roce_batch *b, int *err)
{
	const uint64_t now = clock_ns();
	size_t i;

	lock_take(&script.lock);
	/* A QP that is killed sends nothing more. */
	for (i = 0; i < b->n && !(qp && atomic_load(&qp->kill_line)); i++)
		if (!send_one(e, qp, b, i, now, err))
			break;
	lock_drop(&script.lock);
	return qp && atomic_load(&qp->kill_line) ? b->n : i;
}

/* ---- packets that arrive ----------------------------------------------- */

static void receive(struct engine *e, const struct roce_rx *pkt,
		    void (*next)(void *arg, const struct roce_rx *pkt),
		    void *arg)
{
	const struct fault_packet k = {
		.opcode = pkt->h.opcode,
		.syndrome = pkt->h.syndrome,
		.qpn = pkt->h.dest_qpn,
		.dest_qpn = pkt->h.dest_qpn,
		.peer = &pkt->sgid,
		.local = &pkt->dgid,
		.bytes = pkt->len,
		.dir = FAULT_IN,
	};
	const uint64_t now = clock_ns();
	struct engine_qp *qp = NULL;
	struct fault_rule *r = NULL;
	uint64_t n;
	bool gone;

	lock_take(&script.lock);
	if (pkt->h.dest_qpn) /* else it is no packet (engine_ops.word) */
		r = faults_packet(script.f, &k, now, &n);
	if (r && r->what.action == FAULT_KILL) {
		qp = engine_qp_find(e, pkt->h.dest_qpn);
		if (qp)
			doom(qp, r);
	}
	gone = r && (qp || r->what.action == FAULT_DROP);
	if (gone || (r && r->what.action == FAULT_DUPLICATE))
		acted(r, n);
	lock_drop(&script.lock);
	if (qp)
		engine_timer_set(e, qp, now);
	if (gone)
		return;
	next(arg, pkt);
	if (r && r->what.action == FAULT_DUPLICATE)
		next(arg, pkt);
}

/* ---- events, and the engine's part ------------------------------------- */

/* Rules of events that are due; when the next is. */
static size_t events_due(struct engine *e, uint64_t now,
			 const struct fault_what **out)
{
	size_t n = 0;

	for (size_t i = 0; i < script.f->nrules; i++) {
		struct fault_rule *r = &script.f->rule[i];

		if (r->what.action != FAULT_RAISE || r->acted || !r->begun_ns)
			continue;
		if (now - r->begun_ns < r->after_ns) {
			due_at(e, r->begun_ns + r->after_ns);
			continue;
		}
		out[n++] = &r->what;
		acted(r, 0);
	}
	return n;
}

static void expire(struct engine *e, uint64_t now)
{
	const struct fault_what *event[FAULTS_MAX_RULES];
	size_t n;

	lock_take(&script.lock);
	atomic_store(&e->faults->alarm.due, UINT64_MAX);
	release(e, now);
	n = events_due(e, now, event);
	lock_drop(&script.lock);
	for (size_t i = 0; i < n; i++)
		e->ops->event(e, (enum ibv_event_type)event[i]->event,
			      event[i]->dev);
}

/* Those that wait for what never comes. */
static void say_no_device(struct engine *e)
{
	for (size_t i = 0; i < script.f->nrules; i++) {
		const struct fault_rule *r = &script.f->rule[i];

		if (r->what.dev[0] && !e->ops->names_device(r->what.dev, NULL))
			say("line %u of %s: there is no device %s (softhca "
			    "devices)",
			    r->line, script.path, r->what.dev);
	}
}

static void opened(struct engine *e)
{
	const uint64_t now = clock_ns();

	lock_take(&script.lock);
	for (size_t i = 0; i < script.f->nrules; i++)
		if (!script.f->rule[i].begun_ns &&
		    script.f->rule[i].what.action == FAULT_RAISE) {
			script.f->rule[i].begun_ns = now;
			due_at(e, now);
		}
	if (!script.f->names_device)
		say_no_device(e);
	script.f->names_device = e->ops->names_device;
	lock_drop(&script.lock);
}

static void begin(struct engine *e)
{
	struct engine_faults *l = calloc(1, sizeof(*l));

	e->faults = l;
	if (!l)
		return;
	l->tail = &l->head;
	engine_alarm_add(e, &l->alarm, expire);
}

static void end(struct engine *e)
{
	struct held *h, *next;

	for (h = e->faults ? e->faults->head : NULL; h; h = next) {
		next = h->next;
		free(h);
	}
	free(e->faults);
	e->faults = NULL;
}

static const struct faults_ops ops = {
	.call = call,
	.begin = begin,
	.end = end,
	.opened = opened,
	.send = send_all,
	.rx = receive,
	.explain = explain,
	.note = note,
};
