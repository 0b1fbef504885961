/*
 * mad_fuzz.c - any bytes as MADs, and as what users of the connection manager
 * do and its peers send
 *
 * At the end everything is closed, and nothing may be left. A captured packet is
 * one MAD. Other input is a program: one byte chooses the next step, the bytes
 * after it its arguments. Most messages name connections that exist, so that all
 * states are reached.
 */
#include "fuzz.h"
#include "input.h"

#include "base/bytes.h"
#include "cm/cm.h"

#include <string.h>

#define CONNS 16
#define SID IPCM_SERVICE_ID(0x0106, 7174)

static void bytes(struct input *in, void *to, size_t len)
{
	size_t n = len < in->left ? len : in->left;

	memset(to, 0, len);
	memcpy(to, in->p, n);
	in->p += n;
	in->left -= n;
}

struct world {
	uint64_t tid; /* of the last message sent */
	struct cm *cm;
	struct cm_conn *conn[CONNS];
	uint32_t remote_id[CONNS]; /* as far as we have heard of it */
	struct input *in;
	uint64_t now;
};

static int on_event(void *arg, const struct cm_event *ev)
{
	struct world *w = arg;
	struct cm_conn **free_slot = NULL;
	uint8_t all[MAD_LEN];

	FUZZ_CHECK(ev->len <= MAD_LEN && ev->ari_len <= CM_REJ_ARI);
	if (ev->len)
		memcpy(all, ev->data, ev->len); /* it can be read */
	if (ev->type != CM_EV_REQ && ev->type != CM_EV_SIDR_REQ) {
		for (size_t i = 0; i < CONNS; i++)
			if (w->conn[i] == ev->conn)
				return 0;
		FUZZ_CHECK(false); /* an event of a connection that is ours */
	}
	switch (byte(w->in) % 8) {
	case 0:
		return -EAGAIN;
	case 1:
		return ev->type == CM_EV_REQ ? CM_REJ_CONSUMER : CM_SIDR_NO_QP;
	default:
		break;
	}
	for (size_t i = 0; i < CONNS; i++)
		if (!w->conn[i])
			free_slot = &w->conn[i];
	if (!free_slot)
		return -EAGAIN;
	*free_slot = ev->conn;
	return 0;
}

static void one_mad(const uint8_t *p, size_t len)
{
	uint8_t again[MAD_LEN], more[MAD_LEN];
	struct mad m;

	if (mad_decode(&m, p, len))
		return;
	mad_encode(&m, again);
	FUZZ_CHECK(!mad_decode(&m, again, MAD_LEN));
	mad_encode(&m, more);
	FUZZ_CHECK(!memcmp(again, more, MAD_LEN));
	/* nothing was lost but reserved bits */
	for (size_t i = 0; i < MAD_LEN; i++)
		FUZZ_CHECK((again[i] & ~p[i]) == 0);
}

static void drain(struct world *w)
{
	struct cm_mad m;

	while (cm_tx(w->cm, &m)) {
		struct mad d;

		FUZZ_CHECK(!mad_decode(&d, m.mad, MAD_LEN));
		w->tid = d.tid;
	}
}

static const union ibv_gid us = { .raw = { [10] = 0xff, 0xff, 10, 0, 0, 1 } };

/* A message from a peer, with some fields right and some from the input. */
static void message(struct world *w)
{
	struct cm_conn *c = w->conn[byte(w->in) % CONNS];
	union ibv_gid peer = us;
	uint8_t p[MAD_LEN];
	struct mad m = { 0 };
	size_t count;
	const struct mad_field *f;

	peer.raw[15] = (uint8_t)(2 + byte(w->in) % 2);
	m.class_version = MAD_CM_CLASS_VERSION;
	m.method = MAD_METHOD_SEND;
	m.attr_id = (uint16_t)(MAD_CM_REQ + byte(w->in) % 11);
	f = mad_fields(m.attr_id, &count);
	switch (m.attr_id) {
	case MAD_CM_REQ:
		m.req.local_comm_id = byte(w->in) % 8;
		m.req.local_qpn = byte(w->in) % 8;
		m.req.service_id = SID;
		m.req.mtu = 3;
		m.req.pkey = 0xffff;
		memcpy(m.req.local_gid, &peer, 16);
		memcpy(m.req.remote_gid, &us, 16);
		break;
	case MAD_CM_SIDR_REQ:
		m.sidr_req.request_id = byte(w->in) % 8;
		m.sidr_req.service_id = SID;
		m.sidr_req.pkey = 0xffff;
		break;
	case MAD_CM_SIDR_REP:
		m.sidr_rep.request_id = c ? cm_conn_id(c) : 0;
		break;
	default:
		/* all of these begin with both IDs */
		m.rtu.local_comm_id = byte(w->in) % 8;
		m.rtu.remote_comm_id = c ? cm_conn_id(c) : 0;
	}
	if (m.attr_id == MAD_CM_DREQ)
		m.dreq.remote_qpn = 77;
	if (m.attr_id == MAD_CM_REP)
		m.rep.local_qpn = byte(w->in) % 8;
	for (unsigned n = byte(w->in) % 4; n > 0; n--) {
		const struct mad_field *g = &f[byte(w->in) % count];

		bytes(w->in, (uint8_t *)&m + g->offset,
		      g->size < 8 ? g->size : 8);
	}
	m.tid = w->tid;
	mad_encode(&m, p);
	if (byte(w->in) % 8 == 0)
		p[byte(w->in)] = byte(w->in);
	/* or one of ours that did not arrive */
	if (byte(w->in) % 16 == 0)
		cm_unreachable(w->cm, &peer, p, byte(w->in) % MAD_LEN, w->now);
	else
		cm_rx(w->cm, &peer, &us, 0, p,
		      byte(w->in) == 255 ? 255 : MAD_LEN, w->now);
}

static void user(struct world *w)
{
	size_t i = byte(w->in) % CONNS;
	struct cm_conn *c = w->conn[i];
	struct roce_path path = { .sgid = us, .dgid = us, .hop_limit = 64 };
	struct cm_end end = {
		.qp_type = IBV_QPT_RC,
		.qpn = 77,
		.mtu = 3,
		.pkey = 0xffff,
		.ack_timeout = byte(w->in),
	};
	uint8_t data[256];
	size_t len = byte(w->in);
	int err = 0;

	bytes(w->in, data, len < 32 ? len : 32);
	path.dgid.raw[15] = (uint8_t)(2 + byte(w->in) % 2);
	switch (byte(w->in) % 9) {
	case 0:
		if (!c)
			err = cm_connect(w->cm, &w->conn[i], SID, &path, &end,
					 data, len, NULL, w->now);
		FUZZ_CHECK(c || (err != 0) == (len > CM_REQ_DATA));
		break;
	case 1:
		if (!c)
			err = cm_sidr_request(w->cm, &w->conn[i], SID, &path,
					      0xffff, data, len, NULL, w->now);
		FUZZ_CHECK(c || (err != 0) == (len > CM_SIDR_REQ_DATA));
		break;
	case 2:
		if (c)
			cm_accept(w->cm, c, &end, data, len, w->now);
		break;
	case 3:
		if (c)
			cm_rtu(w->cm, c, data, len, w->now);
		break;
	case 4:
		if (c)
			cm_reject(w->cm, c, byte(w->in), data, len / 2, data,
				  len, w->now);
		break;
	case 5:
		if (c)
			cm_establish(w->cm, c, w->now);
		break;
	case 6:
		if (c)
			cm_disconnect(w->cm, c, data, len, w->now);
		break;
	case 7:
		if (c)
			cm_sidr_reply(w->cm, c, CM_SIDR_OK, 77, 1, NULL, data,
				      len, w->now);
		break;
	case 8:
		if (c)
			cm_close(w->cm, c, w->now);
		w->conn[i] = NULL;
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	struct world w = { .in = &in };
	const struct cm_config cfg = {
		.ca_guid = 1,
		.seed = 1,
		.id_base = 0x00321000,
		.id_mask = 0xff000fff,
		.event = on_event,
		.arg = &w,
	};
	struct cm_listener *l;

	if (size == 12 + 8 + MAD_LEN + 4 && data[0] == 0x64) {
		one_mad(data + 20, MAD_LEN);
		return 0;
	}
	if (size >= MAD_LEN)
		one_mad(data, MAD_LEN);
	FUZZ_CHECK(!cm_create(&w.cm, &cfg));
	FUZZ_CHECK(!cm_listen(w.cm, &l, SID, NULL, CM_LISTEN_V4, NULL));
	while (in.left) {
		uint8_t op = byte(&in);

		if (op < 120)
			message(&w);
		else if (op < 220)
			user(&w);
		else
			w.now += UINT64_C(1) << (20 + op % 16);
		if (cm_deadline(w.cm) <= w.now)
			cm_expire(w.cm, w.now);
		drain(&w);
	}
	for (size_t i = 0; i < CONNS; i++)
		if (w.conn[i])
			cm_close(w.cm, w.conn[i], w.now);
	for (int i = 0; i < 10000 && cm_deadline(w.cm) != UINT64_MAX; i++) {
		w.now = cm_deadline(w.cm);
		drain(&w);
		cm_expire(w.cm, w.now);
	}
	FUZZ_CHECK(cm_stats(w.cm).conns == 0);
	FUZZ_CHECK(cm_deadline(w.cm) == UINT64_MAX);
	cm_destroy(w.cm);
	return 0;
}
