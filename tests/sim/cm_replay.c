/*
 * cm_replay.c - captured connection management, played by our CM
 *
 * Every host of a capture is played once: what its peers sent goes into our CM
 * as it is, and each message that the captured CM sent must come from ours as
 * well, by itself (a refusal, an answer to a repetition) or because the program
 * behind it did what the message shows that it did (connect, accept, reject,
 * disconnect, answer a datagram's request). All fields are compared, and events
 * must report to the program what the peers' messages say.
 *
 * Nothing here knows a file. Communication IDs and transaction IDs that our CM
 * chooses are mapped to the captured ones, one to one, so that a wrong one shows
 * up; QPNs, PSNs, timeouts, GUID and path are given to it as the captured host
 * had them. LOCAL below lists what else is a CM's own choice.
 *
 * What cannot be played is cut for one of the reasons in CUTS, and printed; a
 * capture with CM messages of which none is compared fails, and so does one that
 * is complete (capture_complete()) if the reason is that it lacks a message.
 *
 * This is one file, since what a host hears and what it says are steps of one
 * player, which share its connections and its transaction IDs.
 */
#include "cm_replay.h"

#include "base/bytes.h"
#include "cm/cm.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_LINKS 1024

/* Fields that may differ: a CM decides on them by itself. */
static const struct {
	uint16_t attr;
	const char *field, *why;
} LOCAL[] = {
	/* Without an alternate path in the REQ the field says nothing (12.6.8):
	 * the kernel leaves it 0, we say that there is no failover. */
	{ MAD_CM_REP, "failover_accepted", "no alternate path was asked for" },
	{ MAD_CM_MRA, "service_timeout", "how long this program may take" },
};

/* X(name, since the capture lacks some, words) */
#define CUTS(X)                                                                \
	X(BEGUN, true, "of a connection whose beginning the capture lacks")    \
	X(EARLY, true, "the message that it answers is not in the capture")    \
	X(MRA, false, "asks for time because its program is slow")

enum cut {
#define X(name, lack, words) CUT_##name,
	CUTS(X)
#undef X
		NCUTS
};

struct tally {
	size_t compared, cut[NCUTS];
};

/* A connection of the host that is played, or a datagram's request. */
struct link {
	bool sidr, captured_known;
	bool over; /* an event has said so */
	uint32_t captured_id; /* the captured host's */
	uint32_t peer_id;
	union ibv_gid peer;
	struct cm_conn *conn; /* NULL: refused, or over */
	uint32_t our_id;
};

struct tid {
	uint64_t ours, captured;
};

static const char *current;

static struct player {
	struct cm *cm;
	union ibv_gid us;
	uint64_t now;
	struct link link[MAX_LINKS];
	size_t nlinks;
	struct tid tid[MAX_LINKS];
	size_t ntids;
	/* The event that the last message fed brought. */
	bool reported;
	struct cm_event ev;
	uint8_t data[MAD_LEN], ari[MAD_LEN];
	/* Sent and not compared yet. */
	struct cm_mad out[64];
	size_t nout;
} P;
static struct tally tally;

static void *field_of(struct mad *m, const char *name)
{
	size_t n;
	const struct mad_field *f = mad_fields(m->attr_id, &n);

	for (size_t i = 0; i < n; i++)
		if (!strcmp(f[i].name, name))
			return (uint8_t *)m + f[i].offset;
	return NULL;
}

/* Where a message names its sender's ID, and its receiver's. */
static uint32_t *id_of_sender(struct mad *m)
{
	return field_of(m, m->attr_id == MAD_CM_SIDR_REQ ? "request_id" :
							   "local_comm_id");
}

static uint32_t *id_of_receiver(struct mad *m)
{
	return field_of(m, m->attr_id == MAD_CM_SIDR_REP ? "request_id" :
							   "remote_comm_id");
}

static bool is_sidr(const struct mad *m)
{
	return m->attr_id == MAD_CM_SIDR_REQ || m->attr_id == MAD_CM_SIDR_REP;
}

static bool begins(const struct mad *m)
{
	return m->attr_id == MAD_CM_REQ || m->attr_id == MAD_CM_SIDR_REQ;
}

/* ---- the messages of a capture ----------------------------------------- */

/* The MAD in a datagram to QP1; NULL: it is none. */
static const uint8_t *raw_mad(const struct captured *c)
{
	struct roce_hdr h;
	int hl = roce_decode(&h, c->data, c->len - ROCE_ICRC_LEN);

	return hl > 0 && h.opcode == (ROCE_UD | ROCE_SEND_ONLY) &&
			       h.dest_qpn == 1 &&
			       c->len == (size_t)hl + MAD_LEN + ROCE_ICRC_LEN ?
		       c->data + hl :
		       NULL;
}

/* QP1 to QP1, communication management. */
static bool read_mad(const struct captured *c, struct mad *m)
{
	const uint8_t *raw = raw_mad(c);

	return raw && !mad_decode(m, raw, MAD_LEN);
}

/* Whether somebody listens at our host for the REQ or SIDR_REQ number at: what
 * it answers shows that. */
static bool listened(const struct captures *all, size_t at, struct mad *req)
{
	uint32_t id = *id_of_sender(req);

	for (size_t i = at + 1; i < all->n; i++) {
		const struct captured *c = &all->pkt[i];
		struct mad m;
		uint32_t *to;

		if (!read_mad(c, &m) ||
		    memcmp(&c->src, &all->pkt[at].dst, 16) ||
		    memcmp(&c->dst, &all->pkt[at].src, 16) ||
		    is_sidr(&m) != is_sidr(req))
			continue;
		to = id_of_receiver(&m);
		if (!to || *to != id)
			continue;
		if (m.attr_id == MAD_CM_REJ)
			return m.rej.reason != CM_REJ_INVALID_SERVICE_ID;
		if (m.attr_id == MAD_CM_SIDR_REP)
			return m.sidr_rep.status != CM_SIDR_UNSUPPORTED;
		return true;
	}
	return true;
}

/* ---- our CM ------------------------------------------------------------ */

static int on_event(void *arg, const struct cm_event *ev)
{
	(void)arg;
	assert_false(P.reported); /* one message, one event */
	P.reported = true;
	P.ev = *ev;
	if (ev->len)
		memcpy(P.data, ev->data, ev->len);
	if (ev->ari_len)
		memcpy(P.ari, ev->ari, ev->ari_len);
	return 0;
}

/* What our CM wants to send now. */
static void collect(void)
{
	while (P.nout < ARRAY_SIZE(P.out) && cm_tx(P.cm, &P.out[P.nout]))
		P.nout++;
	assert_true(P.nout < ARRAY_SIZE(P.out));
}

static struct link *link_new(const union ibv_gid *peer, bool sidr,
			     struct cm_conn *conn)
{
	struct link *l = &P.link[P.nlinks++];

	assert_true(P.nlinks <= MAX_LINKS);
	*l = (struct link){ .peer = *peer, .sidr = sidr, .conn = conn };
	if (conn)
		l->our_id = cm_conn_id(conn);
	return l;
}

/* A message of the captured host: by its own ID, else by its peer's. */
static struct link *link_of(struct mad *m, const union ibv_gid *peer)
{
	uint32_t *own = id_of_sender(m), *to = id_of_receiver(m);

	for (size_t i = P.nlinks; i-- > 0;) {
		struct link *l = &P.link[i];

		if (l->sidr != is_sidr(m) || memcmp(&l->peer, peer, 16))
			continue;
		if (own && *own && l->captured_known) {
			if (l->captured_id == *own &&
			    (!to || !*to || !l->peer_id || l->peer_id == *to))
				return l;
		} else if (to && *to && l->peer_id == *to) {
			return l;
		}
	}
	return NULL;
}

/* A message to it: by the ID of its own that it names, or of the sender. */
static struct link *link_to(struct mad *m, const union ibv_gid *peer)
{
	uint32_t *from = id_of_sender(m), *own = id_of_receiver(m);

	for (size_t i = P.nlinks; i-- > 0;) {
		struct link *l = &P.link[i];

		if (l->sidr != is_sidr(m) || memcmp(&l->peer, peer, 16))
			continue;
		if (own && *own ? l->captured_known && l->captured_id == *own :
				  from && l->peer_id == *from)
			return l;
	}
	return NULL;
}

static uint64_t our_tid(uint64_t captured)
{
	for (size_t i = P.ntids; i-- > 0;)
		if (P.tid[i].captured == captured)
			return P.tid[i].ours;
	return captured;
}

/* ---- comparing --------------------------------------------------------- */

static bool local(uint16_t attr, const char *field)
{
	for (size_t i = 0; i < ARRAY_SIZE(LOCAL); i++)
		if (LOCAL[i].attr == attr && !strcmp(LOCAL[i].field, field))
			return true;
	return false;
}

/* Our next message is the captured one; our own IDs in it are mapped. */
static void compare(const struct captured *c, struct mad *want, struct link *l)
{
	const struct mad_field *f;
	struct mad m;
	size_t n;
	uint32_t *id;

	if (!P.nout)
		fail_msg("%s, packet %u: no %s of ours", current, c->number,
			 mad_attr_name(want->attr_id));
	assert_int_equal(mad_decode(&m, P.out[0].mad, MAD_LEN), 0);
	if (m.attr_id != want->attr_id)
		fail_msg("%s, packet %u: %s, and ours is %s", current,
			 c->number, mad_attr_name(want->attr_id),
			 mad_attr_name(m.attr_id));
	if (memcmp(&P.out[0].path.sgid, &c->src, 16) ||
	    memcmp(&P.out[0].path.dgid, &c->dst, 16))
		fail_msg("%s, packet %u: addresses differ", current, c->number);
	memmove(&P.out[0], &P.out[1], --P.nout * sizeof(P.out[0]));

	id = id_of_sender(&m);
	if (id && *id && l) {
		uint32_t theirs = *id_of_sender(want);

		assert_int_equal(*id, l->our_id);
		if (!l->captured_known) {
			l->captured_known = true;
			l->captured_id = theirs;
		}
		*id = l->captured_id;
	}
	/* What begins an exchange has a transaction ID of its own. */
	if (begins(&m) || m.attr_id == MAD_CM_DREQ) {
		bool known = false;

		for (size_t i = 0; i < P.ntids; i++)
			known |= P.tid[i].ours == m.tid &&
				 P.tid[i].captured == want->tid;
		if (!known)
			P.tid[P.ntids++ % MAX_LINKS] =
				(struct tid){ m.tid, want->tid };
		if (P.ntids > MAX_LINKS)
			P.ntids = MAX_LINKS;
		m.tid = want->tid;
	} else if (m.tid != want->tid && m.tid == our_tid(want->tid)) {
		m.tid = want->tid;
	}
	if (m.tid != want->tid)
		fail_msg("%s, packet %u: %s: transaction ID differs", current,
			 c->number, mad_attr_name(m.attr_id));
	if (m.class_version != want->class_version ||
	    m.method != want->method || m.status != want->status ||
	    m.class_specific != want->class_specific ||
	    m.attr_mod != want->attr_mod)
		fail_msg("%s, packet %u: %s: MAD header differs", current,
			 c->number, mad_attr_name(m.attr_id));
	f = mad_fields(m.attr_id, &n);
	for (size_t i = 0; i < n; i++)
		if (memcmp((uint8_t *)&m + f[i].offset,
			   (uint8_t *)want + f[i].offset, f[i].size) &&
		    !local(m.attr_id, f[i].name))
			fail_msg("%s, packet %u: %s: %s differs: %llx, ours "
				 "%llx",
				 current, c->number, mad_attr_name(m.attr_id),
				 f[i].name,
				 (unsigned long long)(f[i].width > 64 ?
							      0 :
							      mad_field_get(
								      want,
								      &f[i])),
				 (unsigned long long)(f[i].width > 64 ?
							      0 :
							      mad_field_get(
								      &m,
								      &f[i])));
	tally.compared++;
}

/* ---- what the peers say ------------------------------------------------ */

static void event_is(const struct captured *c, struct mad *m,
		     enum cm_event_type type, int status)
{
	size_t n;
	const struct mad_field *f = mad_fields(m->attr_id, &n);

	if (!P.reported)
		fail_msg("%s, packet %u: %s brought no event", current,
			 c->number, mad_attr_name(m->attr_id));
	if (P.ev.type != type || P.ev.status != status)
		fail_msg("%s, packet %u: %s brought event %d, status %d",
			 current, c->number, mad_attr_name(m->attr_id),
			 P.ev.type, P.ev.status);
	/* private data is the last field of all of them */
	assert_int_equal(P.ev.len, f[n - 1].size);
	assert_memory_equal(P.data, (uint8_t *)m + f[n - 1].offset, P.ev.len);
}

static void check_end(const struct captured *c, const struct mad *m)
{
	const struct cm_end *e = &P.ev.peer;
	const struct cm_req *req = &m->req;
	const struct cm_rep *rep = &m->rep;
	bool ok = false;

	if (m->attr_id == MAD_CM_REQ)
		ok = e->qpn == req->local_qpn && e->psn == req->starting_psn &&
		     e->qkey == req->local_qkey &&
		     e->responder_resources == req->responder_resources &&
		     e->initiator_depth == req->initiator_depth &&
		     e->retry_count == req->retry_count &&
		     e->rnr_retry_count == req->rnr_retry_count &&
		     e->flow_control == req->flow_control &&
		     e->srq == req->srq && e->ca_guid == req->local_ca_guid &&
		     e->ack_timeout == req->ack_timeout && e->mtu == req->mtu &&
		     e->pkey == req->pkey &&
		     P.ev.service_id == req->service_id &&
		     P.ev.path->flow_label == req->flow_label &&
		     P.ev.path->tclass == req->traffic_class &&
		     P.ev.path->hop_limit == req->hop_limit;
	else if (m->attr_id == MAD_CM_REP)
		ok = e->qpn == rep->local_qpn && e->psn == rep->starting_psn &&
		     e->responder_resources == rep->responder_resources &&
		     e->initiator_depth == rep->initiator_depth &&
		     e->rnr_retry_count == rep->rnr_retry_count &&
		     e->flow_control == rep->flow_control &&
		     e->srq == rep->srq && e->ca_guid == rep->local_ca_guid &&
		     e->target_ack_delay == rep->target_ack_delay;
	if (!ok)
		fail_msg("%s, packet %u: %s: the event says something else",
			 current, c->number, mad_attr_name(m->attr_id));
}

static void hear(const struct captures *all, size_t at, struct mad m)
{
	const struct captured *c = &all->pkt[at];
	struct link *l = link_to(&m, &c->src);
	struct cm_listener *listener = NULL;
	uint32_t *own = id_of_receiver(&m);
	bool again = false;
	uint8_t raw[MAD_LEN];
	struct mad as_is = m;

	/* Repeated byte for byte: no event is due. */
	for (size_t i = 0; i < at && !again; i++) {
		const struct captured *o = &all->pkt[i];
		struct mad unused;

		again = o->len == c->len && !memcmp(&o->src, &c->src, 16) &&
			!memcmp(&o->dst, &c->dst, 16) && read_mad(o, &unused) &&
			!memcmp(o->data + o->len - ROCE_ICRC_LEN - MAD_LEN,
				c->data + c->len - ROCE_ICRC_LEN - MAD_LEN,
				MAD_LEN);
	}
	if (!begins(&m) && !l)
		return; /* of what the capture has no beginning of */
	if (own && l && l->conn)
		*own = l->our_id;
	if (!begins(&m) && m.attr_id != MAD_CM_DREQ && m.attr_id != MAD_CM_RTU)
		m.tid = our_tid(m.tid);
	if (begins(&m) && !again && listened(all, at, &m))
		assert_int_equal(cm_listen(P.cm, &listener,
					   m.attr_id == MAD_CM_REQ ?
						   m.req.service_id :
						   m.sidr_req.service_id,
					   &P.us, 0, NULL),
				 0);
	mad_encode(&m, raw);
	P.reported = false;
	cm_rx(P.cm, &c->src, &c->dst, 0, raw, MAD_LEN, P.now);
	collect();
	if (begins(&m) && !again) {
		l = link_new(&c->src, is_sidr(&m),
			     P.reported ? P.ev.conn : NULL);
		l->peer_id = *id_of_sender(&m);
	} else if (l && !l->peer_id && id_of_sender(&m)) {
		l->peer_id = *id_of_sender(&m);
	}
	/* Two that part at the same time each have the other's DREQ as good as
	 * an answer: the DREP says nothing new. */
	if (again || (l && l->over && !P.reported))
		return;
	if (l && P.reported)
		l->over = P.ev.type == CM_EV_DREP || P.ev.type == CM_EV_REJ;
	switch (m.attr_id) {
	case MAD_CM_REQ:
	case MAD_CM_SIDR_REQ:
		if (!listener)
			break; /* it answers by itself */
		event_is(c, &as_is,
			 m.attr_id == MAD_CM_REQ ? CM_EV_REQ : CM_EV_SIDR_REQ,
			 0);
		if (m.attr_id == MAD_CM_REQ)
			check_end(c, &m);
		break;
	case MAD_CM_REP:
		event_is(c, &as_is, CM_EV_REP, 0);
		check_end(c, &m);
		break;
	case MAD_CM_RTU:
		event_is(c, &as_is, CM_EV_ESTABLISHED, 0);
		break;
	case MAD_CM_DREQ:
		if (P.reported && P.ev.type == CM_EV_DREP)
			break; /* both at once */
		event_is(c, &as_is, CM_EV_DREQ, 0);
		break;
	case MAD_CM_DREP:
		event_is(c, &as_is, CM_EV_DREP, 0);
		break;
	case MAD_CM_REJ:
		event_is(c, &as_is, CM_EV_REJ, m.rej.reason);
		assert_int_equal(P.ev.ari_len, m.rej.ari_len);
		assert_memory_equal(P.ari, m.rej.ari, m.rej.ari_len);
		break;
	case MAD_CM_SIDR_REP:
		event_is(c, &as_is, CM_EV_SIDR_REP, m.sidr_rep.status);
		assert_int_equal(P.ev.peer.qpn, m.sidr_rep.qpn);
		assert_int_equal(P.ev.peer.qkey, m.sidr_rep.qkey);
		break;
	default:
		break;
	}
	if (l && (m.attr_id == MAD_CM_REJ || m.attr_id == MAD_CM_SIDR_REP))
		l->conn = NULL;
	if (listener)
		cm_unlisten(P.cm, listener);
}

/* ---- what the host says ------------------------------------------------ */

static int ask(const struct captured *c, struct mad *m)
{
	struct roce_path path = { .sgid = c->src, .dgid = c->dst };
	struct cm_conn *conn;
	struct link *l;
	int err;

	if (m->attr_id == MAD_CM_REQ) {
		const struct cm_req *r = &m->req;
		struct cm_end end = {
			.qp_type = r->transport == CM_TRANSPORT_UC ?
					   IBV_QPT_UC :
				   r->transport == CM_TRANSPORT_EXT ?
					   IBV_QPT_XRC_SEND :
					   IBV_QPT_RC,
			.qpn = r->local_qpn,
			.psn = r->starting_psn,
			.qkey = r->local_qkey,
			.responder_resources = r->responder_resources,
			.initiator_depth = r->initiator_depth,
			.retry_count = r->retry_count,
			.rnr_retry_count = r->rnr_retry_count,
			.flow_control = r->flow_control,
			.srq = r->srq,
			.ece = { .vendor_id = r->vendor_id,
				 .options = m->attr_mod },
			.ack_timeout = r->ack_timeout,
			.mtu = r->mtu,
			.pkey = r->pkey,
		};

		path.flow_label = r->flow_label;
		path.tclass = r->traffic_class;
		path.hop_limit = r->hop_limit;
		err = cm_connect(P.cm, &conn, r->service_id, &path, &end,
				 r->private_data, CM_REQ_DATA, NULL, P.now);
	} else {
		err = cm_sidr_request(P.cm, &conn, m->sidr_req.service_id,
				      &path, m->sidr_req.pkey,
				      m->sidr_req.private_data,
				      CM_SIDR_REQ_DATA, NULL, P.now);
	}
	if (err)
		return err;
	l = link_new(&c->dst, is_sidr(m), conn);
	l->captured_known = true;
	l->captured_id = *id_of_sender(m);
	return 0;
}

/* The step that the program took for this message to be sent. */
static int act(struct mad *m, struct link *l)
{
	const struct cm_rep *rep = &m->rep;
	const struct cm_sidr_rep *sidr = &m->sidr_rep;
	struct cm_end end;
	struct ibv_ece ece;

	switch (m->attr_id) {
	case MAD_CM_REP:
		end = (struct cm_end){
			.qpn = rep->local_qpn ? rep->local_qpn :
						rep->local_eecn,
			.psn = rep->starting_psn,
			.qkey = rep->local_qkey,
			.responder_resources = rep->responder_resources,
			.initiator_depth = rep->initiator_depth,
			.rnr_retry_count = rep->rnr_retry_count,
			.flow_control = rep->flow_control,
			.srq = rep->srq,
			.target_ack_delay = rep->target_ack_delay,
			.ece = { .vendor_id =
					 (uint32_t)rep->vendor_id_high << 16 |
					 (uint32_t)rep->vendor_id_mid << 8 |
					 rep->vendor_id_low,
				 .options = m->attr_mod },
		};
		return cm_accept(P.cm, l->conn, &end, rep->private_data,
				 CM_REP_DATA, P.now);
	case MAD_CM_RTU:
		return cm_rtu(P.cm, l->conn, m->rtu.private_data, CM_RTU_DATA,
			      P.now);
	case MAD_CM_REJ:
		return cm_reject(P.cm, l->conn, m->rej.reason, m->rej.ari,
				 m->rej.ari_len, m->rej.private_data,
				 CM_REJ_DATA, P.now);
	case MAD_CM_DREQ:
		/* The RTU that it has seen may not be in the capture. */
		P.reported = false;
		cm_establish(P.cm, l->conn, P.now);
		return cm_disconnect(P.cm, l->conn, m->dreq.private_data,
				     CM_DREQ_DATA, P.now);
	case MAD_CM_DREP:
		return cm_disconnect(P.cm, l->conn, m->drep.private_data,
				     CM_DREP_DATA, P.now);
	case MAD_CM_SIDR_REP:
		ece = (struct ibv_ece){
			.vendor_id = (uint32_t)sidr->vendor_id_high << 8 |
				     sidr->vendor_id_low,
			.options = m->attr_mod,
		};
		return cm_sidr_reply(P.cm, l->conn, sidr->status, sidr->qpn,
				     sidr->qkey, &ece, sidr->private_data,
				     CM_SIDR_REP_DATA, P.now);
	default:
		return -EINVAL;
	}
}

static void say(const struct captured *c, struct mad m)
{
	struct link *l = link_of(&m, &c->dst);
	int err = -EINVAL;

	if (begins(&m) && !l) {
		err = ask(c, &m);
		if (err)
			fail_msg("%s, packet %u: refused: %d", current,
				 c->number, err);
		l = &P.link[P.nlinks - 1];
	} else if (!l) {
		tally.cut[CUT_BEGUN]++;
		return;
	} else if (!P.nout) {
		if (l->conn)
			err = act(&m, l);
		if (err && m.attr_id == MAD_CM_MRA) {
			tally.cut[CUT_MRA]++;
			return;
		}
		/* Not a step: a message is repeated, because time passes. */
		if (err && cm_deadline(P.cm) != UINT64_MAX) {
			P.now = cm_deadline(P.cm);
			cm_expire(P.cm, P.now);
			err = 0;
		}
	}
	collect();
	if (!P.nout && err) {
		tally.cut[CUT_EARLY]++;
		return;
	}
	compare(c, &m, l);
}

/* ---- all captures ------------------------------------------------------ */

/* The host's own properties, as its messages show them. */
static struct cm_config config_of(const struct captures *all,
				  const union ibv_gid *us)
{
	struct cm_config cfg = { .event = on_event, .seed = 1 };

	for (size_t i = all->n; i-- > 0;) {
		struct mad m;

		if (memcmp(&all->pkt[i].src, us, 16) ||
		    !read_mad(&all->pkt[i], &m))
			continue;
		if (m.attr_id == MAD_CM_REQ) {
			cfg.ca_guid = m.req.local_ca_guid;
			cfg.response_timeout = m.req.local_cm_timeout;
			cfg.max_retries = m.req.max_cm_retries ?
						  m.req.max_cm_retries :
						  UINT8_MAX;
		} else if (m.attr_id == MAD_CM_REP) {
			cfg.ca_guid = m.rep.local_ca_guid;
		}
	}
	return cfg;
}

/*
 * The host's DREQ that crosses the peer's number at: it was sent before that
 * had arrived, whatever the order in the capture. 0: none.
 */
static size_t crossing(const struct captures *all, size_t at,
		       const struct mad *m)
{
	const struct captured *c = &all->pkt[at];
	struct mad o;

	for (size_t i = at + 1; i < all->n && m->attr_id == MAD_CM_DREQ; i++)
		if (!memcmp(&all->pkt[i].src, &c->dst, 16) &&
		    !memcmp(&all->pkt[i].dst, &c->src, 16) &&
		    read_mad(&all->pkt[i], &o) && o.attr_id == MAD_CM_DREQ &&
		    o.dreq.local_comm_id == m->dreq.remote_comm_id &&
		    o.dreq.remote_comm_id == m->dreq.local_comm_id)
			return i;
	return 0;
}

/* Whether the host, and the one it answers with out, have both asked to part. */
static bool parted(const struct captures *all, const union ibv_gid *us,
		   const struct cm_mad *out)
{
	struct mad m, o, drep;

	mad_decode(&drep, out->mad, MAD_LEN);
	for (size_t i = 0; i < all->n; i++) {
		if (memcmp(&all->pkt[i].src, us, 16) ||
		    !read_mad(&all->pkt[i], &m) || m.attr_id != MAD_CM_DREQ ||
		    m.dreq.remote_comm_id != drep.drep.remote_comm_id)
			continue;
		for (size_t k = 0; k < all->n; k++)
			if (!memcmp(&all->pkt[k].dst, us, 16) &&
			    !memcmp(&all->pkt[k].src, &out->path.dgid, 16) &&
			    read_mad(&all->pkt[k], &o) &&
			    o.attr_id == MAD_CM_DREQ &&
			    o.dreq.remote_comm_id == m.dreq.local_comm_id)
				return true;
	}
	return false;
}

static void play_host(const struct captures *all, const union ibv_gid *us)
{
	struct cm_config cfg = config_of(all, us);
	bool *said = calloc(all->n, sizeof(*said));

	memset(&P, 0, sizeof(P));
	P.us = *us;
	P.now = 1000000000;
	assert_int_equal(cm_create(&P.cm, &cfg), 0);
	for (size_t i = 0; i < all->n; i++) {
		const struct captured *c = &all->pkt[i];
		struct mad m;

		if (!read_mad(c, &m))
			continue;
		P.now += 1000000;
		if (!memcmp(&c->dst, us, 16)) {
			size_t k = crossing(all, i, &m);
			struct mad o;

			if (k && !said[k] && read_mad(&all->pkt[k], &o)) {
				said[k] = true;
				say(&all->pkt[k], o);
			}
			hear(all, i, m);
		} else if (!memcmp(&c->src, us, 16) && !said[i]) {
			said[i] = true;
			say(c, m);
		}
	}
	free(said);
	for (size_t i = 0; i < P.nout; i++) {
		struct mad m;

		mad_decode(&m, P.out[i].mad, MAD_LEN);
		/* Linux 6.12: of two that part at the same time, one leaves the
		 * other's DREQ at having sent its own, or answers later. */
		if (m.attr_id == MAD_CM_DREP && parted(all, us, &P.out[i])) {
			print_message("%s: a DREP to a DREQ that crossed "
				      "another is not in the capture\n",
				      current);
			continue;
		}
		fail_msg("%s: we send %s where the captured host is silent",
			 current, mad_attr_name(m.attr_id));
	}
	cm_destroy(P.cm);
}

size_t cm_replay(const struct captures *all, const char *name, size_t *cuts)
{
	static const char *const words[] = {
#define X(name, lack, w) w,
		CUTS(X)
#undef X
	};
	static const bool lacks[] = {
#define X(name, lack, w) lack,
		CUTS(X)
#undef X
	};
	size_t mads = 0, cut = 0;

	current = name;
	tally = (struct tally){ 0 };
	for (size_t i = 0; i < all->n; i++) {
		bool seen = false;
		struct mad m;

		if (!read_mad(&all->pkt[i], &m)) {
			if (raw_mad(&all->pkt[i]) && capture_complete(name))
				fail_msg("%s, packet %u: to QP1, and no CM "
					 "message",
					 current, all->pkt[i].number);
			continue;
		}
		mads++;
		for (size_t k = 0; k < i && !seen; k++)
			seen = read_mad(&all->pkt[k], &m) &&
			       !memcmp(&all->pkt[k].src, &all->pkt[i].src, 16);
		if (!seen)
			play_host(all, &all->pkt[i].src);
	}
	for (int i = 0; i < NCUTS; i++) {
		if (tally.cut[i])
			print_message("%s: cut %zu of %zu messages: %s\n",
				      current, tally.cut[i], mads, words[i]);
		if (tally.cut[i] && lacks[i] && capture_complete(name))
			fail_msg("%s is complete, but a message is cut: %s",
				 current, words[i]);
		cut += tally.cut[i];
	}
	if (tally.compared + cut != mads)
		fail_msg("%s: %zu messages, of which %zu were compared and %zu "
			 "cut",
			 current, mads, tally.compared, cut);
	if (mads && !tally.compared)
		fail_msg("%s: %zu messages, and none compared", current, mads);
	*cuts = cut;
	return tally.compared;
}
