/*
 * pma.c - the agent of performance management (16.1)
 *
 * Counters of a host's port come from the caller, in full width; those of the
 * virtual switch's port at the other end of its link are the same, seen from
 * there. Nodes of text have sent nothing. A Set writes the counters that it
 * selects: what has to be taken off from now on is remembered, by the caller if
 * it can. All are 64 bits wide, and PortCounters shows the largest that fits.
 */
#include "fabric_internal.h"

#include <stdlib.h>
#include <string.h>

enum perf_attr {
	ATTR_CLASS_PORT_INFO = 0x01,
	ATTR_PORT_COUNTERS = 0x12,
	ATTR_PORT_COUNTERS_EXT = 0x1d,
};

/* CapabilityMask of ClassPortInfo. */
#define CAP_ALL_PORTS (1u << 8)
#define CAP_EXT_WIDTH (1u << 9)
#define CAP_XMIT_WAIT (1u << 12)

#define ALL_PORTS 0xffu
#define AT_PORT_SELECT 1u
#define AT_COUNTER_SELECT 2u
#define AT_COUNTER_SELECT2 18u /* of PortCounters */
#define SELECT_XMIT_WAIT (1u << 16)

struct counter {
	size_t offset; /* in struct fabric_counters */
	struct attr_field at;
	uint32_t select;
};

#define C(name, at_byte, bits, selects)                                        \
	{                                                                      \
		offsetof(struct fabric_counters, name),                        \
			{ .byte = (at_byte), .width = (bits) }, (selects)      \
	}

/* 16.1.3.5, and 16.1.4.11; what is not here is always 0. */
static const struct counter port_counters[] = {
	C(symbol_errors, 4, 16, 1u << 0),
	C(link_downed, 7, 8, 1u << 2),
	C(rcv_errors, 8, 16, 1u << 3),
	C(xmit_discards, 14, 16, 1u << 6),
	C(vl15_dropped, 22, 16, 1u << 11),
	C(xmit_data, 24, 32, 1u << 12),
	C(rcv_data, 28, 32, 1u << 13),
	C(xmit_pkts, 32, 32, 1u << 14),
	C(rcv_pkts, 36, 32, 1u << 15),
	C(xmit_wait, 40, 32, SELECT_XMIT_WAIT),
};

static const struct counter port_counters_ext[] = {
	C(xmit_data, 8, 64, 1u << 0),       C(rcv_data, 16, 64, 1u << 1),
	C(xmit_pkts, 24, 64, 1u << 2),      C(rcv_pkts, 32, 64, 1u << 3),
	C(unicast_xmit, 40, 64, 1u << 4),   C(unicast_rcv, 48, 64, 1u << 5),
	C(multicast_xmit, 56, 64, 1u << 6), C(multicast_rcv, 64, 64, 1u << 7),
};

struct perf_request {
	const struct fabric_env *env;
	const struct counter *counters;
	size_t ncounters;
	uint32_t select; /* what a Set writes; 0: Get */
	uint8_t *data;
};

static uint64_t *value(struct fabric_counters *c, const struct counter *which)
{
	return (uint64_t *)(void *)((uint8_t *)c + which->offset);
}

static void swap(uint64_t *a, uint64_t *b)
{
	const uint64_t v = *a;

	*a = *b;
	*b = v;
}

/* What has gone out at one end of a link has come in at the other. */
static void from_other_end(struct fabric_counters *c)
{
	swap(&c->xmit_data, &c->rcv_data);
	swap(&c->xmit_pkts, &c->rcv_pkts);
	swap(&c->unicast_xmit, &c->unicast_rcv);
	swap(&c->multicast_xmit, &c->multicast_rcv);
	c->symbol_errors = c->rcv_errors = c->xmit_discards = 0;
	c->vl15_dropped = c->xmit_wait = 0;
}

/* Since the last reset. Nonzero: the port's host has to be asked. */
static int count(const struct perf_request *r, const struct port *p,
		 struct fabric_counters *c)
{
	const bool far = !p->node->host && p->peer && p->peer->node->host;

	*c = (struct fabric_counters){ 0 };
	if ((p->node->host || far) && r->env && r->env->counters &&
	    r->env->counters(r->env->arg, far ? p->peer->guid : p->guid, c)) {
		*c = (struct fabric_counters){ 0 };
		if (!far)
			return -1;
	}
	if (far)
		from_other_end(c);
	for (size_t i = 0; p->base && i < r->ncounters; i++) {
		uint64_t *v = value(c, &r->counters[i]);
		uint64_t *b = value(p->base, &r->counters[i]);

		/* The host's have been reset since. */
		if ((int64_t)*b > 0 && *b > *v)
			*b = 0;
		*v -= *b;
	}
	return 0;
}

/* The counters that are selected become what the request says. */
static int reset(const struct perf_request *r, struct port *p,
		 struct fabric_counters *c)
{
	struct fabric_counters delta = { 0 };

	for (size_t i = 0; i < r->ncounters; i++) {
		const struct counter *k = &r->counters[i];
		const uint64_t want = attr_get(r->data, &k->at);

		if (!(r->select & k->select))
			continue;
		*value(&delta, k) = *value(c, k) - want;
		*value(c, k) = want;
	}
	if (p->node->host && r->env && r->env->reset &&
	    !r->env->reset(r->env->arg, p->guid, &delta))
		return 0;
	if (!p->base)
		p->base = calloc(1, sizeof(*p->base));
	if (!p->base)
		return -1;
	for (size_t i = 0; i < r->ncounters; i++)
		*value(p->base, &r->counters[i]) +=
			*value(&delta, &r->counters[i]);
	return 0;
}

static void add(struct fabric_counters *sum, struct fabric_counters *c,
		const struct perf_request *r)
{
	for (size_t i = 0; i < r->ncounters; i++) {
		uint64_t *s = value(sum, &r->counters[i]);
		const uint64_t v = *value(c, &r->counters[i]);

		*s = v > UINT64_MAX - *s ? UINT64_MAX : *s + v;
	}
}

/* Of one port, or the sum of all. */
static int counters(const struct perf_request *r, struct node *n)
{
	const unsigned select = r->data[AT_PORT_SELECT];
	const bool all = select == ALL_PORTS;
	const unsigned least = n->type == FABRIC_SWITCH ? 0 : 1;
	struct fabric_counters sum = { 0 };

	if (!all && (select < least || select > n->nports))
		return MAD_BAD_VALUE;
	for (unsigned i = all ? least : select; i <= (all ? n->nports : select);
	     i++) {
		struct fabric_counters c;

		if (count(r, &n->ports[i], &c))
			return FABRIC_ELSEWHERE;
		if (r->select && reset(r, &n->ports[i], &c))
			return MAD_BUSY;
		add(&sum, &c, r);
	}
	for (size_t i = 0; i < r->ncounters; i++) {
		const struct attr_field *at = &r->counters[i].at;
		const uint64_t most = UINT64_MAX >> (64 - at->width);

		attr_put(r->data, at,
			 min_u64(*value(&sum, &r->counters[i]), most));
	}
	return MAD_OK;
}

static int class_port_info(uint8_t *data)
{
	memset(data, 0, 72);
	data[0] = data[1] = 1; /* of MADs, and of this class */
	put_be16(data + 2, CAP_ALL_PORTS | CAP_EXT_WIDTH | CAP_XMIT_WAIT);
	data[7] = 18; /* an answer takes up to 4.096 us << 18 */
	return MAD_OK;
}

int pma_answer(const struct fabric_env *env, struct port *p, unsigned method,
	       unsigned attr, uint8_t *data)
{
	const bool set = method == METHOD_SET;
	struct perf_request r = { .env = env, .data = data };

	switch (attr) {
	case ATTR_CLASS_PORT_INFO:
		return set ? MAD_BAD_ATTRIBUTE : class_port_info(data);
	case ATTR_PORT_COUNTERS:
		r.counters = port_counters;
		r.ncounters = ARRAY_SIZE(port_counters);
		if (set)
			r.select = get_be16(data + AT_COUNTER_SELECT) |
				   (data[AT_COUNTER_SELECT2] & 1u) << 16;
		break;
	case ATTR_PORT_COUNTERS_EXT:
		r.counters = port_counters_ext;
		r.ncounters = ARRAY_SIZE(port_counters_ext);
		if (set)
			r.select = get_be16(data + AT_COUNTER_SELECT);
		break;
	default:
		return MAD_BAD_ATTRIBUTE;
	}
	return counters(&r, p->node);
}
