/*
 * text.c - a fabric as ibnetdiscover(8) prints it
 *
 *	vendid=0x2c9
 *	devid=0x1011
 *	sysimgguid=0x2c90300000001
 *	switchguid=0x2c90300000000(2c90300000000)
 *	Switch	36 "S-0002c90300000000"		# "leaf" enhanced port 0 lid 2 lmc 0
 *	[1]	"H-0002c90300001000"[1](2c90300001001)	# "node1" lid 3 4xEDR
 *
 *	caguid=0x2c90300001000
 *	Ca	1 "H-0002c90300001000"		# "node1"
 *	[1](2c90300001001)	"S-0002c90300000000"[1]	# lid 3 lmc 0 "leaf" lid 2 4xEDR
 *
 * A line of a node, what is said of it before, its ports after it. IDs are any
 * names, as in the files of ibsim, whose word for Ca is Hca. What a comment says
 * of descriptions, LIDs and rates counts; each may be missing. A GUID that is
 * missing is made up as ibsim does; a link may be said at one end alone. Links
 * are made when all nodes are known.
 */
#include "fabric_internal.h"

#include "base/hash64.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REVISION 0xa1u /* which text does not say: ibsim's */

struct word {
	const char *p;
	size_t len;
};

/* A link as one of its ends says it. */
struct end {
	struct port *port;
	struct word peer;
	unsigned peer_num, line;
	struct link_rate rate; /* width 0: not said */
};

struct reader {
	struct fabric *f;
	const char *name;
	char *why;
	size_t size;
	unsigned line;
	const char *p, *end; /* of the line */

	/* Of the next node; 0: not said. */
	uint64_t guid, sys_guid, port0_guid;
	uint32_t vendor;
	uint16_t device;
	uint64_t next_guid[4]; /* by type, where none is said */

	struct node *node; /* whose ports follow */
	struct end *ends;
	size_t nends, ends_cap;
	struct node **ids; /* by their names */
	size_t nids, ids_cap;
};

#define WRONG(r, ...) (why_line(r), snprintf_rest(r, __VA_ARGS__))
#define snprintf_rest(r, ...)                                                  \
	(snprintf((r)->why + strlen((r)->why), (r)->size - strlen((r)->why),   \
		  __VA_ARGS__),                                                \
	 -1)
/* A word in a message: at most so much of it. */
#define SHOWN(w) (int)((w).len < 80 ? (w).len : 80), (w).p

static void why_line(struct reader *r)
{
	snprintf(r->why, r->size, "%s:%u: ", r->name, r->line);
}

/* ---- pieces of a line ---------------------------------------------------- */

static bool is_space(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

static void skip_space(struct reader *r)
{
	while (r->p < r->end && is_space(*r->p))
		r->p++;
}

static bool at(const struct reader *r, char c)
{
	return r->p < r->end && *r->p == c;
}

static bool skip(struct reader *r, char c)
{
	if (!at(r, c))
		return false;
	r->p++;
	return true;
}

static bool is_word(struct word w, const char *text)
{
	return w.len == strlen(text) && !memcmp(w.p, text, w.len);
}

/* Up to a space, or one of these. */
static struct word take_word(struct reader *r, const char *ends)
{
	struct word w = { .p = r->p };

	while (r->p < r->end && *r->p && !is_space(*r->p) &&
	       !strchr(ends, *r->p))
		r->p++;
	w.len = (size_t)(r->p - w.p);
	return w;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : 99;
}

/* A number of this base, or of 16 after 0x; false: none, or above max. */
static bool number(struct word w, int base, uint64_t max, uint64_t *v)
{
	const uint64_t top = UINT64_MAX;

	if (w.len > 2 && w.p[0] == '0' && (w.p[1] == 'x' || w.p[1] == 'X')) {
		w.p += 2;
		w.len -= 2;
		base = 16;
	}
	*v = 0;
	for (size_t i = 0; i < w.len; i++) {
		const int d = digit(w.p[i]);

		if (d >= base || *v > (top - (uint64_t)d) / (uint64_t)base)
			return false;
		*v = *v * (uint64_t)base + (uint64_t)d;
	}
	return w.len && *v <= max;
}

/* What stands between two characters; false: nothing does. */
static bool between(struct reader *r, char open, char close, struct word *w)
{
	const char *p = r->p + 1;

	if (!at(r, open))
		return false;
	while (p < r->end && *p != close && *p)
		p++;
	if (p == r->end || *p != close)
		return false;
	*w = (struct word){ r->p + 1, (size_t)(p - r->p - 1) };
	r->p = p + 1;
	return true;
}

/* ---- names of nodes ------------------------------------------------------ */

static struct node **id_slot(struct reader *r, struct word id)
{
	uint64_t h = 0;
	size_t i;

	for (i = 0; i < id.len; i++)
		h = hash64(h ^ (uint8_t)id.p[i]);
	for (i = h & (r->ids_cap - 1); r->ids[i];
	     i = (i + 1) & (r->ids_cap - 1))
		if (is_word(id, r->ids[i]->id))
			break;
	return &r->ids[i];
}

static struct node *node_called(struct reader *r, struct word id)
{
	return r->ids_cap ? *id_slot(r, id) : NULL;
}

static int add_id(struct reader *r, struct node *n)
{
	struct node **old = r->ids;
	const size_t cap = r->ids_cap;

	if (2 * (r->nids + 1) > cap) {
		r->ids_cap = cap ? 2 * cap : 64;
		r->ids = calloc(r->ids_cap, sizeof(struct node *));
		if (!r->ids) {
			r->ids = old;
			r->ids_cap = cap;
			return WRONG(r, "there is no memory for it");
		}
		for (size_t i = 0; i < cap; i++)
			if (old[i])
				*id_slot(r,
					 (struct word){ old[i]->id,
							strlen(old[i]->id) }) =
					old[i];
		free(old);
	}
	*id_slot(r, (struct word){ n->id, strlen(n->id) }) = n;
	r->nids++;
	return 0;
}

/* ---- comments ------------------------------------------------------------ */

/* What the comment of a line says; lid, lmc: before the description and after
 * it. */
struct remark {
	struct word desc;
	uint64_t lid[2], lmc[2];
	struct link_rate rate; /* width 0: not said */
	bool enhanced;
};

/* 4xEDR */
static bool read_rate(struct word w, struct link_rate *rate)
{
	static const struct {
		const char *name;
		uint8_t speed, ext;
	} speeds[] = {
		{ "SDR", 1, 0 }, { "DDR", 2, 0 },   { "QDR", 4, 0 },
		{ "FDR", 4, 1 }, { "FDR10", 4, 0 }, { "EDR", 4, 2 },
		{ "HDR", 4, 4 }, { "NDR", 4, 8 },
	};
	static const struct {
		const char *name;
		uint8_t width;
	} widths[] = { { "1x", 1 },
		       { "2x", 16 },
		       { "4x", 2 },
		       { "8x", 4 },
		       { "12x", 8 } };
	const size_t x = w.len > 2 && w.p[1] == 'x' ? 2 : 3;
	const struct word width = { w.p, x };
	const struct word speed = { w.p + x, w.len > x ? w.len - x : 0 };

	rate->width = 0;
	for (size_t i = 0; w.len > x && i < ARRAY_SIZE(widths); i++)
		if (is_word(width, widths[i].name))
			rate->width = widths[i].width;
	for (size_t i = 0; rate->width && i < ARRAY_SIZE(speeds); i++)
		if (is_word(speed, speeds[i].name)) {
			rate->speed = speeds[i].speed;
			rate->speed_ext = speeds[i].ext;
			return true;
		}
	return false;
}

static bool looks_like_rate(struct word w)
{
	size_t n = 0;

	while (n < w.len && digit(w.p[n]) < 10)
		n++;
	return n && n + 1 < w.len && w.p[n] == 'x' && w.p[n + 1] >= 'A' &&
	       w.p[n + 1] <= 'Z';
}

static int remark_number(struct reader *r, struct word what, uint64_t max,
			 uint64_t *v)
{
	struct word w;

	skip_space(r);
	w = take_word(r, "");
	if (!number(w, 10, max, v))
		return WRONG(r, "%.*s %.*s: a number up to %llu belongs here",
			     SHOWN(what), SHOWN(w), (unsigned long long)max);
	return 0;
}

static int remark_word(struct reader *r, struct remark *m, bool after)
{
	const struct word w = take_word(r, "\"");

	if (is_word(w, "lid"))
		return remark_number(r, w, LIDS_END - 1, &m->lid[after]);
	if (is_word(w, "lmc"))
		return remark_number(r, w, 7, &m->lmc[after]);
	if (is_word(w, "enhanced"))
		m->enhanced = true;
	if (looks_like_rate(w) && !read_rate(w, &m->rate))
		return WRONG(r,
			     "%.*s: no width (1x 2x 4x 8x 12x) and speed (SDR "
			     "DDR QDR FDR10 FDR EDR HDR NDR)",
			     SHOWN(w));
	return 0;
}

/* The rest of a line, from "#" on. */
static int read_remark(struct reader *r, struct remark *m)
{
	bool after = false;

	*m = (struct remark){ .lid = { 0 } };
	skip_space(r);
	if (r->p < r->end && !skip(r, '#')) {
		const struct word w = { r->p, (size_t)(r->end - r->p) };

		return WRONG(r,
			     "\"%.*s\": a comment (#) or nothing belongs here",
			     SHOWN(w));
	}
	for (skip_space(r); r->p < r->end; skip_space(r)) {
		if (at(r, '"')) {
			/* Only the first; of a description that has quotes in
			 * it what is before them. */
			struct word w;

			if (!between(r, '"', '"', &w))
				return WRONG(r, "a quote that does not end");
			if (!after)
				m->desc = w;
			after = true;
		} else if (r->p < r->end && !*r->p) {
			return WRONG(r, "a zero byte");
		} else if (remark_word(r, m, after)) {
			return -1;
		}
	}
	return 0;
}

/* ---- nodes --------------------------------------------------------------- */

/* KEY=VALUE before a node. */
static int read_key(struct reader *r, struct word key)
{
	const struct word value = take_word(r, "(#");
	struct word port0;
	uint64_t v;

	if (!number(value, 10, UINT64_MAX, &v) &&
	    !number(value, 16, UINT64_MAX, &v))
		return WRONG(r, "%.*s=%.*s: not a number", SHOWN(key),
			     SHOWN(value));
	if (is_word(key, "vendid") && v <= 0xffffff) {
		r->vendor = (uint32_t)v;
	} else if (is_word(key, "devid") && v <= 0xffff) {
		r->device = (uint16_t)v;
	} else if (is_word(key, "vendid") || is_word(key, "devid")) {
		return WRONG(r, "%.*s=%.*s: too large", SHOWN(key),
			     SHOWN(value));
	} else if (is_word(key, "sysimgguid")) {
		r->sys_guid = v;
	} else if (is_word(key, "switchguid") || is_word(key, "caguid") ||
		   is_word(key, "hcaguid") || is_word(key, "rtguid")) {
		r->guid = v;
		if (at(r, '(') &&
		    (!between(r, '(', ')', &port0) ||
		     !number(port0, 16, UINT64_MAX, &r->port0_guid)))
			return WRONG(r, "the GUID in parentheses is no number");
	} else {
		return WRONG(r,
			     "%.*s: unknown; vendid, devid, sysimgguid, "
			     "switchguid, caguid and rtguid are known",
			     SHOWN(key));
	}
	return 0;
}

static unsigned node_type(struct word w)
{
	if (is_word(w, "Switch"))
		return FABRIC_SWITCH;
	if (is_word(w, "Ca") || is_word(w, "Hca"))
		return FABRIC_CA;
	return is_word(w, "Rt") || is_word(w, "Router") ? FABRIC_ROUTER : 0;
}

static int name_node(struct reader *r, struct node *n, struct word id,
		     struct word desc)
{
	const struct word d = desc.p ? desc : id;

	n->id = malloc(id.len + 1);
	if (!n->id)
		return WRONG(r, "there is no memory for it");
	memcpy(n->id, id.p, id.len);
	n->id[id.len] = '\0';
	memcpy(n->desc, d.p, d.len < sizeof(n->desc) ? d.len : sizeof(n->desc));
	return add_id(r, n);
}

static int set_lid(struct reader *r, struct port *p, uint64_t lid, uint64_t lmc)
{
	const struct port *other = NULL;

	if (!lid || !fabric_set_lid(r->f, p, (unsigned)lid, (unsigned)lmc))
		return 0;
	for (uint64_t i = lid; i < lid + (1u << lmc) && i < LIDS_END; i++)
		other = other ? other : r->f->lids[i];
	if (!other)
		return WRONG(r, "LID %u with LMC %u goes beyond 0xbfff",
			     (unsigned)lid, (unsigned)lmc);
	return WRONG(r, "LID %u is also that of \"%.64s\" (%s)", (unsigned)lid,
		     (const char *)other->node->desc,
		     other->node->id ? other->node->id : "a host");
}

/* GUIDs that nobody has said, as ibsim makes them. */
static uint64_t made_up(struct reader *r, unsigned type, unsigned nports)
{
	const uint64_t guid = r->guid ? r->guid : r->next_guid[type];

	r->next_guid[type] = guid + (type == FABRIC_SWITCH ? 1 : nports + 1);
	return guid;
}

/* Switch 36 "ID" # "description" base port 0 lid 1 lmc 0 */
static int read_node(struct reader *r, unsigned type)
{
	char reason[128];
	struct remark m;
	struct word w;
	struct node *n;
	uint64_t nports;

	skip_space(r);
	w = take_word(r, "\"");
	if (!number(w, 10, PORTS_MAX, &nports))
		return WRONG(
			r, "\"%.*s\": a number of ports, 1 to %u, belongs here",
			SHOWN(w), PORTS_MAX);
	skip_space(r);
	if (!between(r, '"', '"', &w) || !w.len)
		return WRONG(r, "the ID of the node, in quotes, belongs here");
	if (node_called(r, w))
		return WRONG(r, "another node is called \"%.*s\"", SHOWN(w));
	if (read_remark(r, &m))
		return -1;
	n = fabric_add_node(r->f, type, made_up(r, type, (unsigned)nports),
			    (unsigned)nports, reason, sizeof(reason));
	if (!n)
		return WRONG(r, "%s", reason);
	n->sys_guid = r->sys_guid ? r->sys_guid : n->guid;
	n->vendor = r->vendor;
	n->device = r->device;
	n->revision = REVISION;
	if (name_node(r, n, w, m.desc))
		return -1;
	if (type == FABRIC_SWITCH) {
		si_put(n->sw_info, SI_ENHANCED_PORT0, m.enhanced);
		if (fabric_set_port_guid(r->f, &n->ports[0],
					 r->port0_guid ? r->port0_guid :
							 n->guid))
			return WRONG(r, "another port has its GUID");
		if (set_lid(r, &n->ports[0], m.lid[m.desc.p != NULL],
			    m.lmc[m.desc.p != NULL]))
			return -1;
	}
	r->f->first = r->f->first ? r->f->first : n;
	r->node = n;
	r->guid = r->sys_guid = r->port0_guid = 0;
	r->vendor = r->device = 0;
	return 0;
}

/* ---- ports --------------------------------------------------------------- */

static int add_end(struct reader *r, const struct end *e)
{
	if (r->nends == r->ends_cap) {
		const size_t cap = r->ends_cap ? 2 * r->ends_cap : 256;
		struct end *bigger = realloc(r->ends, cap * sizeof(*bigger));

		if (!bigger)
			return WRONG(r, "there is no memory for it");
		r->ends = bigger;
		r->ends_cap = cap;
	}
	r->ends[r->nends++] = *e;
	return 0;
}

/* [3], and what a chassis calls it: [3][ext 17] */
static int port_number(struct reader *r, unsigned *num)
{
	struct word w;
	uint64_t v;

	if (!between(r, '[', ']', &w))
		return WRONG(r, "a port, as [1], belongs here");
	if (!number(w, 10, PORTS_MAX, &v) || !v)
		return WRONG(r, "[%.*s]: ports are 1 to %u", SHOWN(w),
			     PORTS_MAX);
	*num = (unsigned)v;
	if (r->end - r->p > 4 && !memcmp(r->p, "[ext", 4))
		between(r, '[', ']', &w);
	return 0;
}

static int paren_guid(struct reader *r, uint64_t *guid)
{
	struct word w;

	*guid = 0;
	if (at(r, '(') &&
	    (!between(r, '(', ')', &w) || !number(w, 16, UINT64_MAX, guid)))
		return WRONG(r, "the GUID in parentheses is no number");
	return 0;
}

/* [1](GUID) "peer"[2](GUID) # ... */
static int read_port(struct reader *r)
{
	struct end e = { .line = r->line };
	uint64_t guid, peer_guid;
	struct remark m;
	unsigned num;

	if (!r->node)
		return WRONG(r, "a port before the first node");
	if (port_number(r, &num) || paren_guid(r, &guid))
		return -1;
	if (num > r->node->nports)
		return WRONG(r, "[%u]: \"%s\" has %u ports", num, r->node->id,
			     r->node->nports);
	e.port = &r->node->ports[num];
	skip_space(r);
	if (!between(r, '"', '"', &e.peer))
		return WRONG(
			r, "the ID of the other end, in quotes, belongs here");
	skip_space(r);
	if (port_number(r, &e.peer_num) || paren_guid(r, &peer_guid) ||
	    read_remark(r, &m))
		return -1;
	e.rate = m.rate;
	if (r->node->type != FABRIC_SWITCH) {
		if (fabric_set_port_guid(r->f, e.port,
					 guid ? guid : r->node->guid + num))
			return WRONG(r, "[%u]: another port has its GUID", num);
		if (set_lid(r, e.port, m.lid[0], m.lmc[0]))
			return -1;
	}
	return add_end(r, &e);
}

static int connect_end(struct reader *r, const struct end *e)
{
	static const struct link_rate sdr = { .width = 2, .speed = 1 };
	struct node *n = node_called(r, e->peer);
	struct port *peer;
	/* Where an end does not say it, what the other has said. */
	const struct link_rate *rate = e->rate.width ? &e->rate :
				       e->port->peer ? NULL :
						       &sdr;

	r->line = e->line;
	if (!n)
		return WRONG(r, "no node is called \"%.*s\"", SHOWN(e->peer));
	if (e->peer_num > n->nports)
		return WRONG(r, "[%u]: \"%s\" has %u ports", e->peer_num, n->id,
			     n->nports);
	peer = &n->ports[e->peer_num];
	if (peer == e->port)
		return WRONG(r, "a link from a port to itself");
	if (fabric_connect(r->f, e->port, peer, rate)) {
		const struct port *p = e->port->peer ? e->port : peer;

		return WRONG(
			r,
			"port %u of \"%s\" is already linked to port %u of "
			"\"%s\"",
			p->num, p->node->id, p->peer->num, p->peer->node->id);
	}
	return 0;
}

/* Ports of CAs that no line has named. */
static int other_guids(struct reader *r)
{
	for (size_t i = 0; i < r->ids_cap; i++) {
		struct node *n = r->ids[i];

		for (unsigned k = 1;
		     n && n->type != FABRIC_SWITCH && k <= n->nports; k++)
			if (!n->ports[k].guid &&
			    fabric_set_port_guid(r->f, &n->ports[k],
						 n->guid + k) &&
			    n->ports[k].peer)
				return WRONG(r,
					     "the GUID of port %u of \"%s\" is "
					     "another port's",
					     k, n->id);
	}
	return 0;
}

/* ---- lines --------------------------------------------------------------- */

static int read_line(struct reader *r)
{
	struct word w;
	unsigned type;

	skip_space(r);
	if (r->p == r->end || *r->p == '#')
		return 0;
	if (at(r, '['))
		return read_port(r);
	w = take_word(r, "=\"#[");
	if (skip(r, '='))
		return read_key(r, w);
	type = node_type(w);
	if (!type)
		return WRONG(
			r,
			"%.*s: unknown; a line begins with Switch, Ca, Rt, "
			"[port], or a keyword and =",
			SHOWN(w));
	return read_node(r, type);
}

int fabric_read(struct fabric *f, const char *name, const char *text,
		size_t len, char *why, size_t size)
{
	struct reader r = {
		.f = f,
		.name = name,
		.why = why,
		.size = size,
		.next_guid = { [FABRIC_CA] = 0x100000,
			       [FABRIC_SWITCH] = 0x200000,
			       [FABRIC_ROUTER] = 0x300000 },
	};
	const char *const end = text + len;
	int err = 0;

	if (len > FABRIC_TEXT_MAX) {
		snprintf(why, size, "%s: more than %u MiB", name,
			 FABRIC_TEXT_MAX >> 20);
		return -1;
	}
	while (!err && text < end) {
		const char *nl = memchr(text, '\n', (size_t)(end - text));

		r.line++;
		r.p = text;
		r.end = nl ? nl : end;
		text = nl ? nl + 1 : end;
		err = read_line(&r);
	}
	for (size_t i = 0; !err && i < r.nends; i++)
		err = connect_end(&r, &r.ends[i]);
	if (!err)
		err = other_guids(&r);
	if (!err && !r.nids) {
		snprintf(why, size, "%s: no node is in it", name);
		err = -1;
	}
	free(r.ends);
	free(r.ids);
	return err;
}
