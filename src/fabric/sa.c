/*
 * sa.c - subnet administration (chapter 15): what the fabric consists of
 *
 * SubnAdmGet and SubnAdmGetTable of the records below, with their component
 * masks. Records are made when they are asked for. An answer is bounded
 * (FABRIC_ANSWER_MAX); where more was found it says that there are no resources.
 */
#include "sa.h"

#include <stdlib.h>
#include <string.h>

enum {
	AT_CLASS_VERSION = 2,
	AT_METHOD = 3,
	AT_STATUS = 4,
	AT_ATTR = 16,
	AT_MOD = 20,
	AT_RMPP = 24,
	AT_SM_KEY = 36,
	AT_ATTR_OFFSET = 44,
	AT_MASK = 48,
	AT_DATA = 56,
};

#define CLASS_PORT_INFO 0x01u
#define CAP_UD_MULTICAST (1u << 10)
#define CAP_PORT_CAP_MASK_MATCH (1u << 13)
#define MATCH_CAP_MASK (1u << 31) /* modifier of PortInfoRecord */
#define PI_CAP_MASK_COMPONENT 7u

/* ---- components ---------------------------------------------------------- */

#define AT4(name, byte, bit, width, access) { (byte) + 4, bit, width, access },
#define F(byte, bit, width)                                                    \
	{                                                                      \
		byte, bit, width, RO                                           \
	}

static const struct attr_field node_fields[] = { F(0, 0, 16), F(2, 0, 16),
						 NODE_INFO_FIELDS(AT4)
							 F(44, 0, 512) };
static const struct attr_field port_fields[] = { F(0, 0, 16), F(2, 0, 8),
						 F(3, 0, 8),
						 PORT_INFO_FIELDS(AT4) };
static const struct attr_field switch_fields[] = { F(0, 0, 16), F(2, 0, 16),
						   SWITCH_INFO_FIELDS(AT4) };
static const struct attr_field sm_fields[] = { F(0, 0, 16), F(2, 0, 16),
					       SM_INFO_FIELDS(AT4) };
static const struct attr_field link_fields[] = { F(0, 0, 16), F(2, 0, 8),
						 F(3, 0, 8), F(4, 0, 16) };
static const struct attr_field guid_fields[] = {
	F(0, 0, 16),  F(2, 0, 8),   F(3, 0, 8),   F(4, 0, 32),
	F(8, 0, 64),  F(16, 0, 64), F(24, 0, 64), F(32, 0, 64),
	F(40, 0, 64), F(48, 0, 64), F(56, 0, 64), F(64, 0, 64)
};
static const struct attr_field pkey_fields[] = { F(0, 0, 16), F(2, 0, 16),
						 F(4, 0, 8) };
static const struct attr_field lft_fields[] = { F(0, 0, 16), F(2, 0, 16) };

void sa_found(struct sa_query *q, const uint8_t *record)
{
	const size_t stride = (q->kind->size + 7u) & ~7u;

	for (unsigned i = 0; i < q->kind->nfields; i++)
		if (q->match >> i & 1 &&
		    !attr_same(record, q->want, &q->kind->fields[i]))
			return;
	if (q->full)
		return;
	if (q->len + stride > q->room) {
		const size_t room = q->room ? 2 * q->room : 1024;
		uint8_t *out = room <= FABRIC_ANSWER_MAX ?
				       realloc(q->out, room) :
				       NULL;

		if (!out) {
			q->full = true;
			return;
		}
		q->out = out;
		q->room = room;
	}
	memset(q->out + q->len, 0, stride);
	memcpy(q->out + q->len, record, q->kind->size);
	q->len += stride;
	q->found++;
}

struct port *sa_port_of_gid(const struct fabric *f, const uint8_t gid[16])
{
	struct port *p = fabric_port_of(f, get_be64(gid + 8));

	return p && pi_get(p->info, PI_GID_PREFIX) == get_be64(gid) ? p : NULL;
}

/* ---- what nodes are ------------------------------------------------------ */

/* An attribute as the node's agent has it, without keys. */
static void agent(struct sa_query *q, struct port *p, unsigned attr,
		  uint32_t mod, uint8_t data[64])
{
	memset(data, 0, 64);
	sma_answer(q->f, NULL, p, METHOD_GET, attr, mod,
		   pi_get(port_management(p)->info, PI_M_KEY), data);
}

/* Each port that has a LID. */
static struct port *next_port(struct sa_query *q, size_t *node, unsigned *num)
{
	for (; *node < q->f->nnodes && !q->full; ++*node, *num = 0) {
		struct node *n = q->f->nodes[*node];

		while (*num <= n->nports) {
			struct port *p = &n->ports[(*num)++];
			const bool management = n->type == FABRIC_SWITCH ?
							!p->num :
							p->num != 0;

			if (management && port_lid(p) &&
			    sa_wants_lid(q, port_lid(p)))
				return p;
		}
	}
	return NULL;
}

#define EACH_PORT(q, p)                                                        \
	size_t node_ = 0;                                                      \
	unsigned num_ = 0;                                                     \
	for (struct port * p; (p = next_port(q, &node_, &num_));)

static void each_node(struct sa_query *q)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	EACH_PORT(q, p)
	{
		put_be16(r, port_lid(p));
		agent(q, p, SMA_NODE_INFO, 0, r + 4);
		agent(q, p, SMA_NODE_DESCRIPTION, 0, r + 44);
		sa_found(q, r);
	}
}

static void found_port(struct sa_query *q, struct port *at, unsigned num)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	put_be16(r, port_lid(at));
	r[2] = (uint8_t)num;
	agent(q, at, SMA_PORT_INFO, num, r + 4);
	pi_put(r + 4, PI_M_KEY, 0);
	sa_found(q, r);
}

static void each_port_info(struct sa_query *q)
{
	const uint32_t caps = get_be32(q->want + 4 + 20);
	const bool match =
		q->mod & MATCH_CAP_MASK && sa_asks(q, PI_CAP_MASK_COMPONENT);

	if (match)
		q->match &= ~(UINT64_C(1) << PI_CAP_MASK_COMPONENT);
	EACH_PORT(q, p)
	{
		const struct node *n = p->node;

		if (match && (pi_get(p->info, PI_CAP_MASK) & caps) != caps)
			continue;
		if (n->type != FABRIC_SWITCH)
			found_port(q, p, p->num);
		/* Only port 0 of a switch has capabilities. */
		for (unsigned i = 0;
		     n->type == FABRIC_SWITCH && i <= (match ? 0u : n->nports);
		     i++)
			found_port(q, p, i);
	}
}

static void each_switch(struct sa_query *q)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	EACH_PORT(q, p)
	{
		if (p->node->type != FABRIC_SWITCH)
			continue;
		put_be16(r, port_lid(p));
		agent(q, p, SMA_SWITCH_INFO, 0, r + 4);
		sa_found(q, r);
	}
}

static void each_lft(struct sa_query *q)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	EACH_PORT(q, p)
	{
		const unsigned top =
			(unsigned)si_get(p->node->sw_info, SI_LINEAR_TOP);

		if (p->node->type != FABRIC_SWITCH)
			continue;
		put_be16(r, port_lid(p));
		for (unsigned b = 0; b <= top / LFT_BLOCK && !q->full; b++) {
			if (sa_asks(q, 1) && get_be16(q->want + 2) != b)
				continue;
			put_be16(r + 2, b);
			agent(q, p, SMA_LINEAR_FORWARDING, b, r + 8);
			sa_found(q, r);
		}
	}
}

static void each_sm(struct sa_query *q)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	if (!q->f->sm)
		return;
	put_be16(r, port_lid(q->f->sm));
	agent(q, q->f->sm, SMA_SM_INFO, 0, r + 4);
	sa_found(q, r);
}

static void each_guid_info(struct sa_query *q)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	EACH_PORT(q, p)
	{
		put_be16(r, port_lid(p));
		agent(q, p, SMA_GUID_INFO, 0, r + 8);
		sa_found(q, r);
	}
}

static void each_pkey(struct sa_query *q)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	EACH_PORT(q, p)
	{
		const bool sw = p->node->type == FABRIC_SWITCH;

		put_be16(r, port_lid(p));
		for (unsigned i = 0; i <= (sw ? p->node->nports : 0u); i++) {
			r[4] = (uint8_t)(sw ? i : p->num);
			for (unsigned b = 0; b < PKEYS / 32; b++) {
				put_be16(r + 2, b);
				agent(q, p, SMA_PKEY_TABLE,
				      (sw ? i : 0) << 16 | b, r + 8);
				sa_found(q, r);
			}
		}
	}
}

static void each_link(struct sa_query *q)
{
	uint8_t r[SA_RECORD_MAX] = { 0 };

	for (size_t i = 0; i < q->f->nnodes && !q->full; i++) {
		struct node *n = q->f->nodes[i];

		for (unsigned k = 1; k <= n->nports; k++) {
			struct port *p = &n->ports[k], *peer = p->peer;

			if (!peer || pi_get(p->info, PI_PHYS_STATE) != PHYS_UP)
				continue;
			put_be16(r, port_lid(port_management(p)));
			r[2] = p->num;
			r[3] = peer->num;
			put_be16(r + 4, port_lid(port_management(peer)));
			sa_found(q, r);
		}
	}
}

/* ---- questions and answers ----------------------------------------------- */

#define KIND(id, bytes, table, function)                                       \
	{                                                                      \
		.attr = (id), .size = (bytes), .fields = (table),              \
		.nfields = ARRAY_SIZE(table), .each = (function)               \
	}

static const struct sa_kind kinds[] = {
	KIND(0x11, 108, node_fields, each_node),
	KIND(0x12, 68, port_fields, each_port_info),
	KIND(0x14, 24, switch_fields, each_switch),
	KIND(0x15, 72, lft_fields, each_lft),
	KIND(0x18, 28, sm_fields, each_sm),
	KIND(0x20, 8, link_fields, each_link),
	KIND(0x30, 72, guid_fields, each_guid_info),
	KIND(0x33, 72, pkey_fields, each_pkey),
};

static const struct sa_kind *kind_of(unsigned attr)
{
	static const struct sa_kind *const others[] = { &sa_path_kind,
							&sa_group_kind,
							&sa_service_kind };

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
		if (kinds[i].attr == attr)
			return &kinds[i];
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		if (others[i]->attr == attr)
			return others[i];
	return NULL;
}

static void class_port_info(uint8_t *data)
{
	memset(data, 0, 72);
	data[0] = 1;
	data[1] = 2;
	put_be16(data + 2, CAP_UD_MULTICAST | CAP_PORT_CAP_MASK_MATCH);
	data[7] = 18; /* an answer takes up to 4.096 us << 18 */
}

/* One MAD, of 256 bytes: an error, or one record. */
static ssize_t one(uint8_t *answer, int status, const struct sa_query *q,
		   void **out)
{
	const bool removed = answer[AT_METHOD] == METHOD_DELETE;
	const bool table = answer[AT_METHOD] == METHOD_GET_TABLE;

	answer[AT_METHOD] =
		(uint8_t)(METHOD_RESPONSE | (removed ? METHOD_DELETE :
					     table   ? METHOD_GET_TABLE :
						       METHOD_GET));
	put_be16(answer + AT_STATUS, (unsigned)status);
	if (!status && q) {
		put_be16(answer + AT_ATTR_OFFSET, (q->kind->size + 7u) / 8);
		memset(answer + AT_DATA, 0, 256 - AT_DATA);
		memcpy(answer + AT_DATA, q->out ? q->out : q->want,
		       q->kind->size);
	}
	*out = answer;
	return 256;
}

/* As many as there are: a message of RMPP that has been put together. */
static ssize_t table(uint8_t *answer, const struct sa_query *q, void **out)
{
	const size_t len = AT_DATA + q->len;
	uint8_t *all = realloc(answer, len < 256 ? 256 : len);
	enum { VERSION = 1, DATA = 1, ACTIVE_FIRST_LAST = 7, NO_TIME = 31 };

	if (!all) {
		free(answer);
		return FABRIC_NOBODY;
	}
	all[AT_METHOD] = METHOD_GET_TABLE | METHOD_RESPONSE;
	put_be16(all + AT_STATUS, MAD_OK);
	all[AT_RMPP] = VERSION;
	all[AT_RMPP + 1] = DATA;
	all[AT_RMPP + 2] = NO_TIME << 3 | ACTIVE_FIRST_LAST;
	all[AT_RMPP + 3] = 0;
	put_be32(all + AT_RMPP + 4, 1); /* the first segment, and what */
	put_be32(all + AT_RMPP + 8, (uint32_t)(len - AT_SM_KEY)); /* follows */
	put_be16(all + AT_ATTR_OFFSET, q->found ? (q->kind->size + 7u) / 8 : 0);
	if (q->len)
		memcpy(all + AT_DATA, q->out, q->len);
	*out = all;
	return (ssize_t)len;
}

static ssize_t ask(struct sa_query *q, uint8_t *answer, unsigned method,
		   void **out)
{
	int status = MAD_OK;

	if (method == METHOD_SET || method == METHOD_DELETE) {
		status = q->kind->set ?
				 q->kind->set(q, method == METHOD_DELETE) :
				 MAD_BAD_ATTRIBUTE;
		return one(answer, status, q, out);
	}
	q->kind->each(q);
	if (q->full)
		status = SA_NO_RESOURCES;
	else if (method == METHOD_GET && q->found != 1)
		status = q->found ? SA_TOO_MANY_RECORDS : SA_NO_RECORDS;
	if (status || method == METHOD_GET)
		return one(answer, status, q, out);
	return table(answer, q, out);
}

ssize_t sa_request(struct fabric *f, const struct fabric_env *env,
		   struct port *from, const uint8_t *mad, void **out)
{
	const unsigned method = mad[AT_METHOD], attr = get_be16(mad + AT_ATTR);
	struct sa_query q = { .f = f,
			      .env = env,
			      .from = from,
			      .kind = kind_of(attr),
			      .mask = get_be64(mad + AT_MASK),
			      .sm_key = get_be64(mad + AT_SM_KEY),
			      .mod = get_be32(mad + AT_MOD) };
	uint8_t *answer = malloc(256);
	ssize_t n;

	if (!answer)
		return FABRIC_NOBODY;
	memcpy(answer, mad, 256);
	q.match = q.mask;
	memcpy(q.want, mad + AT_DATA, sizeof(q.want));
	if (mad[0] != 1 || mad[AT_CLASS_VERSION] != 2)
		return one(answer, MAD_BAD_VERSION, NULL, out);
	if (attr == CLASS_PORT_INFO && method == METHOD_GET) {
		class_port_info(answer + AT_DATA);
		return one(answer, MAD_OK, NULL, out);
	}
	if (!q.kind)
		return one(answer, MAD_BAD_ATTRIBUTE, NULL, out);
	n = ask(&q, answer, method, out);
	free(q.out);
	return n;
}
