/*
 * sa_path.c - PathRecord (15.2.5.16): from which port to which, how fast
 *
 * A path is there if a datagram would arrive, both ways: it has the lowest MTU
 * and rate of its links, or what the request asks for below that. One path leads
 * from a port to another. Where neither end is given all pairs are looked at, up
 * to PAIRS_MAX.
 */
#include "sa.h"

#include <string.h>

#define PAIRS_MAX (1u << 18)
#define LIFE_TIME 18u /* a packet's: 4.096 us << 18 */

enum component {
	PR_SERVICE_HIGH,
	PR_SERVICE_LOW,
	PR_DGID,
	PR_SGID,
	PR_DLID,
	PR_SLID,
	PR_RAW,
	PR_RESERVED,
	PR_FLOW_LABEL,
	PR_HOP_LIMIT,
	PR_TCLASS,
	PR_REVERSIBLE,
	PR_NUM_PATH,
	PR_PKEY,
	PR_QOS_CLASS,
	PR_SL,
	PR_MTU_SELECTOR,
	PR_MTU,
	PR_RATE_SELECTOR,
	PR_RATE,
	PR_LIFE_SELECTOR,
	PR_LIFE,
	PR_FIELDS
};

static const struct attr_field fields[PR_FIELDS] = {
	[PR_SERVICE_HIGH] = { 0, 0, 32, RO },
	[PR_SERVICE_LOW] = { 4, 0, 32, RO },
	[PR_DGID] = { 8, 0, 128, RO },
	[PR_SGID] = { 24, 0, 128, RO },
	[PR_DLID] = { 40, 0, 16, RO },
	[PR_SLID] = { 42, 0, 16, RO },
	[PR_RAW] = { 44, 0, 1, RO },
	[PR_RESERVED] = { 44, 1, 3, RO },
	[PR_FLOW_LABEL] = { 44, 4, 20, RO },
	[PR_HOP_LIMIT] = { 47, 0, 8, RO },
	[PR_TCLASS] = { 48, 0, 8, RO },
	[PR_REVERSIBLE] = { 49, 0, 1, RO },
	[PR_NUM_PATH] = { 49, 1, 7, RO },
	[PR_PKEY] = { 50, 0, 16, RO },
	[PR_QOS_CLASS] = { 52, 0, 12, RO },
	[PR_SL] = { 53, 4, 4, RO },
	[PR_MTU_SELECTOR] = { 54, 0, 2, RO },
	[PR_MTU] = { 54, 2, 6, RO },
	[PR_RATE_SELECTOR] = { 55, 0, 2, RO },
	[PR_RATE] = { 55, 2, 6, RO },
	[PR_LIFE_SELECTOR] = { 56, 0, 2, RO },
	[PR_LIFE] = { 56, 2, 6, RO },
};

enum selector { GREATER = 0, LESS = 1, EXACTLY = 2, BEST = 3 };

/* Rates as records have them, the slowest first: 2.5 Gb/s to 1200. */
static const uint8_t rates[] = { 2, 5,  3,  11, 6,  15, 19, 4,  7,  20, 12, 8,
				 9, 16, 13, 10, 14, 17, 18, 21, 22, 23, 24 };

static unsigned rate_rank(unsigned rate)
{
	unsigned i = 0;

	while (i < ARRAY_SIZE(rates) && rates[i] != rate)
		i++;
	return i;
}

/* Its place in rates[]. */
static unsigned link_rank(const struct port *p)
{
	/* By speed, from SDR to NDR, and width, 1X 2X 4X 8X 12X. */
	static const uint8_t rate[7][5] = {
		{ 2, 5, 3, 6, 4 },      { 5, 3, 6, 7, 8 },
		{ 3, 6, 7, 9, 10 },     { 11, 19, 12, 13, 14 },
		{ 15, 20, 16, 17, 18 }, { 20, 16, 17, 21, 22 },
		{ 16, 17, 21, 23, 24 },
	};
	const unsigned w = (unsigned)pi_get(p->info, PI_WIDTH_ACTIVE);
	const unsigned s = (unsigned)pi_get(p->info, PI_SPEED_ACTIVE);
	const unsigned e = (unsigned)pi_get(p->info, PI_SPEED_EXT_ACTIVE);
	const unsigned width = w & 8  ? 4 :
			       w & 4  ? 3 :
			       w & 2  ? 2 :
			       w & 16 ? 1 :
					0;
	const unsigned speed = e & 8 ? 6 :
			       e & 4 ? 5 :
			       e & 2 ? 4 :
			       e & 1 ? 3 :
			       s & 4 ? 2 :
			       s & 2 ? 1 :
				       0;

	return rate_rank(rate[speed][width]);
}

struct quality {
	unsigned mtu, rank;
};

static void pass_link(void *arg, const struct port *p)
{
	struct quality *best = arg;
	const unsigned mtu = (unsigned)pi_get(p->info, PI_NEIGHBOR_MTU);

	best->mtu = mtu < best->mtu ? mtu : best->mtu;
	best->rank = link_rank(p) < best->rank ? link_rank(p) : best->rank;
}

/* What a selector makes of the best there is; 0: no path. Values are from 1. */
static unsigned choose(unsigned selector, unsigned want, unsigned best)
{
	switch (selector) {
	case GREATER:
		return best > want ? best : 0;
	case LESS:
		return best < want ? best : want ? want - 1 : 0;
	case EXACTLY:
		return best >= want ? want : 0;
	default:
		return best;
	}
}

static unsigned wanted(const struct sa_query *q, enum component selector)
{
	return sa_asks(q, selector) ?
		       (unsigned)attr_get(q->want, &fields[selector]) :
		       EXACTLY;
}

/* MTU, rate and life time as the request wants them; false: none. */
static bool choose_all(const struct sa_query *q, struct quality *k,
		       unsigned *life)
{
	const unsigned mtu = (unsigned)attr_get(q->want, &fields[PR_MTU]);
	const unsigned rate = (unsigned)attr_get(q->want, &fields[PR_RATE]);
	const unsigned time = (unsigned)attr_get(q->want, &fields[PR_LIFE]);
	unsigned rank = k->rank + 1;

	*life = LIFE_TIME;
	if (sa_asks(q, PR_MTU))
		k->mtu = choose(wanted(q, PR_MTU_SELECTOR), mtu, k->mtu);
	if (sa_asks(q, PR_RATE))
		rank = choose(wanted(q, PR_RATE_SELECTOR), rate_rank(rate) + 1,
			      rank);
	if (sa_asks(q, PR_LIFE)) {
		const unsigned s = wanted(q, PR_LIFE_SELECTOR);

		if ((s == LESS && LIFE_TIME >= time) ||
		    (s == GREATER && LIFE_TIME <= time) ||
		    (s == EXACTLY && LIFE_TIME != time))
			return false;
	}
	k->rank = rank - 1;
	return k->mtu && rank && rank <= ARRAY_SIZE(rates);
}

static void pair(struct sa_query *q, struct port *from, struct port *to)
{
	struct quality k = { .mtu = 5, .rank = ARRAY_SIZE(rates) - 1 };
	uint8_t r[SA_RECORD_MAX] = { 0 };
	unsigned life;

	if (++q->looked_at > PAIRS_MAX)
		q->full = true;
	if (q->full ||
	    route_lid_by(q->f, from, port_lid(to), pass_link, &k) != to ||
	    route_lid(q->f, to, port_lid(from)) != from ||
	    !choose_all(q, &k, &life))
		return;
	memcpy(r, q->want, 8); /* the service */
	for (unsigned i = PR_FLOW_LABEL; i <= PR_SL; i++)
		if (sa_asks(q, i) && i != PR_NUM_PATH)
			attr_put(r, &fields[i], attr_get(q->want, &fields[i]));
	put_gid(r + 8, to);
	put_gid(r + 24, from);
	put_be16(r + 40,
		 sa_asks(q, PR_DLID) ? get_be16(q->want + 40) : port_lid(to));
	put_be16(r + 42,
		 sa_asks(q, PR_SLID) ? get_be16(q->want + 42) : port_lid(from));
	attr_put(r, &fields[PR_REVERSIBLE], 1);
	put_be16(r + 50, 0xffff);
	attr_put(r, &fields[PR_MTU_SELECTOR], EXACTLY);
	attr_put(r, &fields[PR_MTU], k.mtu);
	attr_put(r, &fields[PR_RATE_SELECTOR], EXACTLY);
	attr_put(r, &fields[PR_RATE], rates[k.rank]);
	attr_put(r, &fields[PR_LIFE_SELECTOR], EXACTLY);
	attr_put(r, &fields[PR_LIFE], life);
	sa_found(q, r);
}

/* The one port that the request names as an end; all: it names none. */
static struct port *end_named(const struct sa_query *q, enum component gid,
			      enum component lid, bool *all)
{
	const unsigned number = get_be16(q->want + fields[lid].byte);
	struct port *p = NULL;

	*all = !sa_asks(q, gid) && !sa_asks(q, lid);
	if (sa_asks(q, gid))
		p = sa_port_of_gid(q->f, q->want + fields[gid].byte);
	else if (sa_asks(q, lid) && number < LIDS_END)
		p = q->f->lids[number];
	return p && port_lid(p) ? p : NULL;
}

static void each_path(struct sa_query *q)
{
	bool all_from, all_to;
	struct port *from = end_named(q, PR_SGID, PR_SLID, &all_from);
	struct port *to = end_named(q, PR_DGID, PR_DLID, &all_to);
	/* What a path may have as the request has it, or is chosen for it. */
	static const uint8_t others[] = {
		PR_RESERVED, PR_FLOW_LABEL,    PR_HOP_LIMIT, PR_TCLASS,
		PR_NUM_PATH, PR_PKEY,          PR_QOS_CLASS, PR_SL,
		PR_MTU,      PR_MTU_SELECTOR,  PR_RATE,      PR_RATE_SELECTOR,
		PR_LIFE,     PR_LIFE_SELECTOR,
	};
	struct port *const *lids = q->f->lids;
	const unsigned top = q->f->lid_top;

	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		q->match &= ~(UINT64_C(1) << others[i]);
	/* But for the bit that says full member there is one. */
	if (sa_asks(q, PR_PKEY) && (get_be16(q->want + 50) & 0x7fff) != 0x7fff)
		return;
	for (unsigned s = 1; s <= (all_from ? top : 1) && !q->full; s++) {
		struct port *a = all_from ? lids[s] : from;

		if (!a || (all_from && port_lid(a) != s))
			continue;
		for (unsigned d = 1; d <= (all_to ? top : 1) && !q->full; d++) {
			struct port *b = all_to ? lids[d] : to;

			if (b && (!all_to || port_lid(b) == d))
				pair(q, a, b);
		}
	}
}

const struct sa_kind sa_path_kind = {
	.attr = 0x35,
	.size = 64,
	.fields = fields,
	.nfields = PR_FIELDS,
	.each = each_path,
};
