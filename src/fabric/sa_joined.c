/*
 * sa_joined.c - what ports have told subnet administration: that they are members
 * of multicast groups (MCMemberRecord, 15.2.5.17), and services (ServiceRecord,
 * 15.2.5.15)
 *
 * A group begins with its first full member and ends with its last. IPoIB's
 * broadcast group is there from the beginning, as opensm has it. A port may speak
 * only for itself. Services do not expire: there is no clock here.
 */
#include "sa.h"

#include <stdlib.h>
#include <string.h>

#define MLID_MIN 0xc000u
#define MEMBERS_MAX 16384u
#define SERVICES_MAX 1024u
#define GROUP_RECORD 52u
#define SERVICE_RECORD 176u
#define FULL_MEMBER 1u

enum group_component {
	MC_MGID,
	MC_PORT_GID,
	MC_Q_KEY,
	MC_MLID,
	MC_MTU_SELECTOR,
	MC_MTU,
	MC_TCLASS,
	MC_P_KEY,
	MC_RATE_SELECTOR,
	MC_RATE,
	MC_LIFE_SELECTOR,
	MC_LIFE,
	MC_SL,
	MC_FLOW_LABEL,
	MC_HOP_LIMIT,
	MC_SCOPE,
	MC_JOIN_STATE,
	MC_PROXY,
	MC_FIELDS
};

static const struct attr_field group_fields[MC_FIELDS] = {
	[MC_MGID] = { 0, 0, 128, RO },
	[MC_PORT_GID] = { 16, 0, 128, RO },
	[MC_Q_KEY] = { 32, 0, 32, RO },
	[MC_MLID] = { 36, 0, 16, RO },
	[MC_MTU_SELECTOR] = { 38, 0, 2, RO },
	[MC_MTU] = { 38, 2, 6, RO },
	[MC_TCLASS] = { 39, 0, 8, RO },
	[MC_P_KEY] = { 40, 0, 16, RO },
	[MC_RATE_SELECTOR] = { 42, 0, 2, RO },
	[MC_RATE] = { 42, 2, 6, RO },
	[MC_LIFE_SELECTOR] = { 43, 0, 2, RO },
	[MC_LIFE] = { 43, 2, 6, RO },
	[MC_SL] = { 44, 0, 4, RO },
	[MC_FLOW_LABEL] = { 44, 4, 20, RO },
	[MC_HOP_LIMIT] = { 47, 0, 8, RO },
	[MC_SCOPE] = { 48, 0, 4, RO },
	[MC_JOIN_STATE] = { 48, 4, 4, RO },
	[MC_PROXY] = { 49, 0, 1, RO },
};

/* A member's record; of the group itself the port's GID and the state are 0. */
struct joined {
	struct member {
		uint8_t record[GROUP_RECORD];
		bool group;
	} * member;
	size_t nmembers;
	uint8_t (*service)[SERVICE_RECORD];
	size_t nservices;
};

static uint64_t get_field(const uint8_t *r, enum group_component i)
{
	return attr_get(r, &group_fields[i]);
}

static void put_field(uint8_t *r, enum group_component i, uint64_t v)
{
	attr_put(r, &group_fields[i], v);
}

void sa_joined_free(struct fabric *f)
{
	if (!f->joined)
		return;
	free(f->joined->member);
	free(f->joined->service);
	free(f->joined);
	f->joined = NULL;
}

/* ---- groups -------------------------------------------------------------- */

static struct member *add_member(struct joined *j, const uint8_t *record)
{
	struct member *m;

	if (j->nmembers == MEMBERS_MAX)
		return NULL;
	m = realloc(j->member, (j->nmembers + 1) * sizeof(*m));
	if (!m)
		return NULL;
	j->member = m;
	m += j->nmembers++;
	*m = (struct member){ .group = false };
	memcpy(m->record, record, GROUP_RECORD);
	return m;
}

static struct joined *joined(struct fabric *f)
{
	static const uint8_t broadcast[GROUP_RECORD] = {
		0xff,
		0x12,
		0x40,
		0x1b,
		0xff,
		0xff,
		[12] = 0xff,
		0xff,
		0xff,
		0xff,
		[34] = 0x0b,
		0x1b,
		[36] = 0xc0,
		0x00,
		[38] = 2 << 6 | 4, /* 2048 bytes, */
		[40] = 0xff,
		0xff,
		2 << 6 | 3, /* 10 Gb/s, as IPoIB has it */
		2 << 6 | 18,
		[48] = 0x20
	};
	struct member *m;

	if (f->joined)
		return f->joined;
	f->joined = calloc(1, sizeof(*f->joined));
	m = f->joined ? add_member(f->joined, broadcast) : NULL;
	if (m)
		m->group = true;
	else
		sa_joined_free(f);
	return f->joined;
}

static struct member *group_of(struct joined *j, const uint8_t *mgid)
{
	for (size_t i = 0; i < j->nmembers; i++)
		if (j->member[i].group &&
		    !memcmp(j->member[i].record, mgid, 16))
			return &j->member[i];
	return NULL;
}

/* Of the group and the port of this record. */
static struct member *member_of(struct joined *j, const uint8_t *record)
{
	for (size_t i = 0; i < j->nmembers; i++)
		if (!j->member[i].group &&
		    !memcmp(j->member[i].record, record, 32))
			return &j->member[i];
	return NULL;
}

static bool mlid_used(const struct joined *j, unsigned mlid)
{
	for (size_t i = 0; i < j->nmembers; i++)
		if (get_field(j->member[i].record, MC_MLID) == mlid)
			return true;
	return false;
}

static unsigned new_mlid(const struct sa_query *q, const struct joined *j)
{
	unsigned mlid =
		q->env && q->env->mlid ? q->env->mlid(q->env->arg, q->want) : 0;

	for (unsigned i = 1; !mlid && i < MCAST_CAP; i++)
		if (!mlid_used(j, MLID_MIN + i))
			mlid = MLID_MIN + i;
	return mlid;
}

/* All that makes a group is in the request (o15-0.2.2), or is chosen. */
static int new_group(struct sa_query *q, struct joined *j)
{
	static const uint8_t needed[] = { MC_Q_KEY, MC_TCLASS, MC_P_KEY, MC_SL,
					  MC_FLOW_LABEL };
	uint8_t r[GROUP_RECORD];
	struct member *m;
	unsigned mlid;

	for (size_t i = 0; i < ARRAY_SIZE(needed); i++)
		if (!sa_asks(q, needed[i]))
			return SA_INSUFFICIENT_COMPONENTS;
	if (!(get_field(q->want, MC_JOIN_STATE) & FULL_MEMBER) ||
	    q->want[0] != 0xff)
		return SA_INVALID;
	mlid = new_mlid(q, j);
	if (!mlid)
		return SA_NO_RESOURCES;
	memcpy(r, q->want, sizeof(r));
	memset(r + 16, 0, 16);
	put_field(r, MC_MLID, mlid);
	put_field(r, MC_MTU_SELECTOR, 2);
	put_field(r, MC_RATE_SELECTOR, 2);
	put_field(r, MC_LIFE_SELECTOR, 2);
	if (!sa_asks(q, MC_MTU))
		put_field(r, MC_MTU, 4);
	if (!sa_asks(q, MC_RATE))
		put_field(r, MC_RATE, 3);
	if (!sa_asks(q, MC_LIFE))
		put_field(r, MC_LIFE, 18);
	put_field(r, MC_SCOPE, r[1] & 0xf);
	put_field(r, MC_JOIN_STATE, 0);
	put_field(r, MC_PROXY, 0);
	m = add_member(j, r);
	if (!m)
		return SA_NO_RESOURCES;
	m->group = true;
	return MAD_OK;
}

/* What a member says of the group must be so. */
static bool fits(const struct sa_query *q, const struct member *group)
{
	static const uint8_t same[] = { MC_Q_KEY, MC_MLID, MC_TCLASS,
					MC_P_KEY, MC_SL,   MC_FLOW_LABEL };

	for (size_t i = 0; i < ARRAY_SIZE(same); i++)
		if (sa_asks(q, same[i]) &&
		    !attr_same(group->record, q->want, &group_fields[same[i]]))
			return false;
	return true;
}

static int join(struct sa_query *q, struct joined *j)
{
	const unsigned state = (unsigned)get_field(q->want, MC_JOIN_STATE);
	uint8_t r[GROUP_RECORD];
	struct member *m;
	int status = MAD_OK;

	if (!state)
		return SA_INVALID;
	if (!group_of(j, q->want))
		status = new_group(q, j);
	if (status)
		return status;
	if (!fits(q, group_of(j, q->want)))
		return SA_INVALID;
	memcpy(r, group_of(j, q->want)->record, sizeof(r));
	memcpy(r + 16, q->want + 16, 16);
	m = member_of(j, r);
	if (!m)
		m = add_member(j, r);
	if (!m)
		return SA_NO_RESOURCES;
	put_field(m->record, MC_JOIN_STATE,
		  get_field(m->record, MC_JOIN_STATE) | state);
	memcpy(q->want, m->record, GROUP_RECORD);
	return MAD_OK;
}

static void forget(struct joined *j, struct member *m)
{
	*m = j->member[--j->nmembers];
}

static int leave(struct sa_query *q, struct joined *j)
{
	struct member *m = member_of(j, q->want);
	const unsigned state = (unsigned)get_field(q->want, MC_JOIN_STATE);
	unsigned old;
	bool used = false;

	if (!m)
		return SA_INVALID;
	old = (unsigned)get_field(m->record, MC_JOIN_STATE);
	if (!state || state & ~old)
		return SA_INVALID;
	put_field(m->record, MC_JOIN_STATE, old & ~state);
	memcpy(q->want, m->record, GROUP_RECORD);
	if (!(old & ~state))
		forget(j, m);
	for (size_t i = 0; i < j->nmembers; i++)
		if (!j->member[i].group &&
		    !memcmp(j->member[i].record, q->want, 16))
			used = true;
	/* The first is IPoIB's, which stays. */
	m = group_of(j, q->want);
	if (!used && m && m != j->member)
		forget(j, m);
	return MAD_OK;
}

static int set_group(struct sa_query *q, bool remove)
{
	struct joined *j = joined(q->f);

	if (!j)
		return SA_NO_RESOURCES;
	if (!sa_asks(q, MC_MGID) || !sa_asks(q, MC_PORT_GID) ||
	    !sa_asks(q, MC_JOIN_STATE))
		return SA_INSUFFICIENT_COMPONENTS;
	if (sa_port_of_gid(q->f, q->want + 16) != q->from)
		return SA_INVALID;
	return remove ? leave(q, j) : join(q, j);
}

/* Groups; to who has the SM_Key their members instead (15.2.5.17). */
static void each_group(struct sa_query *q)
{
	const struct joined *j = joined(q->f);

	q->match &= ~(UINT64_C(1) << MC_MTU_SELECTOR |
		      UINT64_C(1) << MC_RATE_SELECTOR |
		      UINT64_C(1) << MC_LIFE_SELECTOR);
	for (size_t i = 0; j && i < j->nmembers; i++)
		if (j->member[i].group == !q->sm_key)
			sa_found(q, j->member[i].record);
}

const struct sa_kind sa_group_kind = {
	.attr = 0x38,
	.size = GROUP_RECORD,
	.fields = group_fields,
	.nfields = MC_FIELDS,
	.each = each_group,
	.set = set_group,
};

/* ---- services ------------------------------------------------------------ */

enum service_component { SR_ID, SR_GID, SR_P_KEY, SR_RESERVED, SR_LEASE };

#define N(byte, width)                                                         \
	{                                                                      \
		byte, 0, width, RO                                             \
	}

static const struct attr_field service_fields[] = {
	[SR_ID] = N(0, 64),
	[SR_GID] = N(8, 128),
	[SR_P_KEY] = N(24, 16),
	[SR_RESERVED] = N(26, 16),
	[SR_LEASE] = N(28, 32),
	N(32, 128), /* key */
	N(48, 512), /* name */
	N(112, 8),
	N(113, 8),
	N(114, 8),
	N(115, 8),
	N(116, 8),
	N(117, 8),
	N(118, 8),
	N(119, 8),
	N(120, 8),
	N(121, 8),
	N(122, 8),
	N(123, 8),
	N(124, 8),
	N(125, 8),
	N(126, 8),
	N(127, 8),
	N(128, 16),
	N(130, 16),
	N(132, 16),
	N(134, 16),
	N(136, 16),
	N(138, 16),
	N(140, 16),
	N(142, 16),
	N(144, 32),
	N(148, 32),
	N(152, 32),
	N(156, 32),
	N(160, 64),
	N(168, 64),
};

/* A service is known by its ID, its GID and its P_Key: the first 26 bytes. */
#define SERVICE_KEY 26u

static int set_service(struct sa_query *q, bool remove)
{
	struct joined *j = joined(q->f);
	uint8_t(*more)[SERVICE_RECORD];
	size_t i = 0;

	if (!j)
		return SA_NO_RESOURCES;
	if (!sa_asks(q, SR_ID) || !sa_asks(q, SR_GID) || !sa_asks(q, SR_P_KEY))
		return SA_INSUFFICIENT_COMPONENTS;
	if (sa_port_of_gid(q->f, q->want + 8) != q->from)
		return SA_INVALID_GID;
	while (i < j->nservices && memcmp(j->service[i], q->want, SERVICE_KEY))
		i++;
	if (remove && i == j->nservices)
		return SA_NO_RECORDS;
	if (remove) {
		memcpy(q->want, j->service[i], SERVICE_RECORD);
		memmove(j->service[i], j->service[--j->nservices],
			SERVICE_RECORD);
		return MAD_OK;
	}
	if (i == j->nservices) {
		more = i < SERVICES_MAX ?
			       realloc(j->service, (i + 1) * SERVICE_RECORD) :
			       NULL;
		if (!more)
			return SA_NO_RESOURCES;
		j->service = more;
		j->nservices++;
	}
	memcpy(j->service[i], q->want, SERVICE_RECORD);
	if (!sa_asks(q, SR_LEASE))
		put_be32(j->service[i] + 28, UINT32_MAX);
	memcpy(q->want, j->service[i], SERVICE_RECORD);
	return MAD_OK;
}

static void each_service(struct sa_query *q)
{
	const struct joined *j = joined(q->f);

	for (size_t i = 0; j && i < j->nservices; i++)
		sa_found(q, j->service[i]);
}

const struct sa_kind sa_service_kind = {
	.attr = 0x31,
	.size = SERVICE_RECORD,
	.fields = service_fields,
	.nfields = ARRAY_SIZE(service_fields),
	.each = each_service,
	.set = set_service,
};
