/*
 * sma.c - the agent of subnet management (14.2)
 *
 * Of nodes from text a Set does all that a switch or a CA does, so that a subnet
 * manager can configure them. A host's port has its LID of its address, and its
 * state of its link: a Set that asks for others is refused, all else is kept.
 *
 * A Set at a port with an M_Key needs that key, and, as the port's protect bits
 * say, a Get, too: without it there is no answer (14.2.4).
 *
 * What a Set has changed at a node of text is told to the caller, whose other
 * fabrics of that text make the same change.
 */
#include "fabric_internal.h"

#include <stdlib.h>
#include <string.h>

/* What an agent's function is asked: m says whether to set, of which part. */
struct sma_request {
	struct fabric *f;
	struct port *p; /* where it arrived */
	bool set;
	uint32_t mod;
	uint8_t *data;
};

/* ---- nodes --------------------------------------------------------------- */

static int node_description(const struct sma_request *r)
{
	if (r->set)
		return MAD_BAD_ATTRIBUTE;
	memcpy(r->data, r->p->node->desc, 64);
	return MAD_OK;
}

static int node_info(const struct sma_request *r)
{
	const struct node *n = r->p->node;
	uint8_t *d = r->data;

	if (r->set)
		return MAD_BAD_ATTRIBUTE;
	memset(d, 0, 64);
	ni_put(d, NI_BASE_VERSION, 1);
	ni_put(d, NI_CLASS_VERSION, 1);
	ni_put(d, NI_TYPE, n->type);
	ni_put(d, NI_NUM_PORTS, n->nports);
	ni_put(d, NI_SYS_GUID, n->sys_guid);
	ni_put(d, NI_NODE_GUID, n->guid);
	ni_put(d, NI_PORT_GUID, port_management(r->p)->guid);
	ni_put(d, NI_PARTITION_CAP, PKEYS);
	ni_put(d, NI_DEVICE, n->device);
	ni_put(d, NI_REVISION, n->revision);
	ni_put(d, NI_LOCAL_PORT, r->p->num);
	ni_put(d, NI_VENDOR, n->vendor);
	return MAD_OK;
}

static int guid_info(const struct sma_request *r)
{
	if (r->set)
		return MAD_BAD_ATTRIBUTE;
	if (r->mod >= 32)
		return MAD_BAD_VALUE;
	memset(r->data, 0, 64);
	if (!r->mod)
		put_be64(r->data, port_management(r->p)->guid);
	return MAD_OK;
}

static int sm_info(const struct sma_request *r)
{
	/* opensm heeds another one that has its own default key. */
	enum { MASTER = 3, KEY = 1, HIGHEST = 15 };

	if (port_management(r->p) != r->f->sm)
		return MAD_BAD_ATTRIBUTE;
	/* A master can only be handed what another one has (14.4.1), and this one
	 * takes nothing over. */
	if (r->set)
		return MAD_BAD_VALUE;
	memset(r->data, 0, 64);
	sm_put(r->data, SM_GUID, r->f->sm->guid);
	sm_put(r->data, SM_KEY, KEY);
	sm_put(r->data, SM_PRIORITY, r->f->vswitch ? HIGHEST : 0);
	sm_put(r->data, SM_ACT_COUNT, 1);
	sm_put(r->data, SM_STATE, MASTER);
	return MAD_OK;
}

/* ---- PortInfo ------------------------------------------------------------ */

/* The port that an attribute's modifier names, or NULL. Of a CA 0 is the one at
 * which the packet arrived. */
static struct port *named_port(const struct sma_request *r, unsigned num)
{
	struct node *n = r->p->node;

	if (!num && n->type != FABRIC_SWITCH)
		return r->p;
	return num <= n->nports ? &n->ports[num] : NULL;
}

static void put_link(struct port *p, bool up, bool disabled)
{
	pi_put(p->info, PI_STATE, up ? LINK_INIT : LINK_DOWN);
	pi_put(p->info, PI_PHYS_STATE,
	       up       ? PHYS_UP :
	       disabled ? PHYS_DISABLED :
			  PHYS_POLLING);
}

/* A switch's port 0, which has no link. */
static bool is_inside(const struct port *p)
{
	return !p->num && p->node->type == FABRIC_SWITCH;
}

/* It goes down, and comes up again if there is a cable and neither end is
 * disabled. */
static void begin_anew(struct port *p, unsigned phys)
{
	struct port *q = p->peer;
	const bool off = phys ? phys == PHYS_DISABLED :
				pi_get(p->info, PI_PHYS_STATE) == PHYS_DISABLED;
	const bool other_off =
		q && pi_get(q->info, PI_PHYS_STATE) == PHYS_DISABLED;
	const bool up = q && !off && !other_off;

	put_link(p, up, off);
	if (q)
		put_link(q, up, other_off);
}

/* A subnet manager moves a link from Initialize on by one, or begins anew. 0: no
 * change; a physical state that is written goes with none, or Down. */
static int set_state(struct port *p, unsigned state, unsigned phys)
{
	const unsigned old = (unsigned)pi_get(p->info, PI_STATE);
	const bool down = state == LINK_DOWN || phys == PHYS_POLLING ||
			  phys == PHYS_DISABLED;

	if (phys == pi_get(p->info, PI_PHYS_STATE) && !state)
		return MAD_OK;
	if (p->node->host || (p->peer && p->peer->node->host))
		return (state && state != old) || phys ? MAD_BAD_VALUE : MAD_OK;
	if (state > LINK_ACTIVE || phys > PHYS_UP || state == LINK_INIT)
		return MAD_BAD_VALUE;
	if (state > LINK_INIT && state != old && state != old + 1)
		return MAD_BAD_VALUE;
	if (!p->peer && state && state != old)
		return MAD_BAD_VALUE;
	if (down && state <= LINK_DOWN && !is_inside(p))
		begin_anew(p, phys);
	else if (state)
		pi_put(p->info, PI_STATE, state);
	return MAD_OK;
}

static int set_lid(struct fabric *f, struct port *p, const uint8_t *want)
{
	const unsigned lid = (unsigned)pi_get(want, PI_LID);
	const unsigned lmc = (unsigned)pi_get(want, PI_LMC);

	if (port_management(p) != p)
		return MAD_OK; /* of a switch's other ports it is ignored */
	if (lid == port_lid(p) && lmc == pi_get(p->info, PI_LMC))
		return MAD_OK;
	if (p->node->host || p->node == f->vswitch)
		return MAD_BAD_VALUE;
	if (fabric_set_lid(f, p, lid, lmc))
		return MAD_BAD_VALUE;
	if (p == f->sm)
		f->settled = false; /* all know its LID */
	return MAD_OK;
}

/* Where the subnet manager says it is; of hosts' fabric it is the virtual switch's. */
static void move_sm(struct fabric *f, const struct port *p)
{
	const unsigned lid = (unsigned)pi_get(p->info, PI_SM_LID);
	struct port *sm = lid < LIDS_END ? f->lids[lid] : NULL;

	if (!sm || sm == f->sm || f->vswitch)
		return;
	f->sm = sm;
	f->settled = false;
}

static int set_port_info(struct fabric *f, struct port *p, const uint8_t *want)
{
	const uint64_t phys = pi_get(p->info, PI_PHYS_STATE);
	const unsigned lid = port_lid(p),
		       lmc = (unsigned)pi_get(p->info, PI_LMC);
	const unsigned vls = (unsigned)pi_get(want, PI_OPER_VLS);
	const unsigned mtu = (unsigned)pi_get(want, PI_NEIGHBOR_MTU);
	int status;

	if (vls > pi_get(p->info, PI_VL_CAP) ||
	    mtu > pi_get(p->info, PI_MTU_CAP))
		return MAD_BAD_VALUE;
	status = set_lid(f, p, want);
	if (!status)
		status = set_state(p, (unsigned)pi_get(want, PI_STATE),
				   (unsigned)pi_get(want, PI_PHYS_STATE));
	if (status && port_lid(p) != lid)
		fabric_set_lid(f, p, lid, lmc); /* all of it, or nothing */
	for (unsigned i = 0; !status && i < PI_FIELDS; i++) {
		const uint64_t v = attr_get(want, &port_info_fields[i]);
		/* 0: no change (14.2.5.6). */
		const bool keep =
			!v &&
			(i == PI_WIDTH_ENABLED || i == PI_SPEED_ENABLED ||
			 i == PI_SPEED_EXT_ENABLED || i == PI_DOWN_DEFAULT ||
			 i == PI_OPER_VLS || i == PI_NEIGHBOR_MTU);
		/* Port 0 knows it for all of a switch. */
		const bool none = i == PI_SM_LID && port_management(p) != p;

		if (port_info_fields[i].rw && i != PI_LID && i != PI_LMC &&
		    !keep && !none)
			attr_put(p->info, &port_info_fields[i], v);
	}
	if (!status && port_management(p) == p)
		move_sm(f, p);
	if (phys != pi_get(p->info, PI_PHYS_STATE))
		f->settled = false; /* other ways lead to LIDs */
	return status;
}

static int port_info(const struct sma_request *r)
{
	const unsigned num = r->mod & 0x7fffffffu;
	struct port *p = num <= PORTS_MAX ? named_port(r, num) : NULL;
	int status = MAD_OK;

	if (!p || (r->set && p->node->type != FABRIC_SWITCH && p != r->p))
		return MAD_BAD_VALUE;
	if (r->set)
		status = set_port_info(r->f, p, r->data);
	memcpy(r->data, p->info, 64);
	if (p != r->p && p->node->type != FABRIC_SWITCH)
		pi_put(r->data, PI_M_KEY, 0);
	pi_put(r->data, PI_LOCAL_PORT, r->p->num);
	return status;
}

/* Of devices of that vendor tools and subnet managers want to know whether they
 * have FDR10. None has here, so there is nothing to enable. */
static int mlnx_port_info(const struct sma_request *r)
{
	enum { VENDOR = 0x2c9, AT_SPEED_ENABLED = 11 };

	if (r->p->node->vendor != VENDOR)
		return MAD_BAD_ATTRIBUTE;
	if (!named_port(r, r->mod) || (r->set && r->data[AT_SPEED_ENABLED]))
		return MAD_BAD_VALUE;
	memset(r->data, 0, 64);
	return MAD_OK;
}

/* ---- tables -------------------------------------------------------------- */

static void unset_tables(struct port_tables *t)
{
	*t = (struct port_tables){ .pkeys = { 0xff, 0xff } };
	/* High priority: VL 0; low: the others. Pairs of a VL and a weight. */
	for (unsigned vl = 0; vl < 8; vl++) {
		t->vl_arb[0][2 * vl] = t->vl_arb[2][2 * vl] = (uint8_t)vl;
		t->vl_arb[0][2 * vl + 1] = vl ? 4 : 0;
		t->vl_arb[2][2 * vl + 1] = vl ? 0 : 4;
	}
}

/* A port's, or at *unset, if nothing has been set, what they are then. NULL:
 * there is no memory. */
static struct port_tables *tables(const struct sma_request *r, struct port *p,
				  struct port_tables *unset)
{
	if (p->tables)
		return p->tables;
	unset_tables(unset);
	if (!r->set)
		return unset;
	p->tables = malloc(sizeof(*p->tables));
	if (p->tables)
		*p->tables = *unset;
	return p->tables;
}

static int exchange(const struct sma_request *r, void *kept, size_t len)
{
	if (r->set)
		memcpy(kept, r->data, len);
	memset(r->data, 0, 64);
	memcpy(r->data, kept, len);
	return MAD_OK;
}

static int pkey_table(const struct sma_request *r)
{
	struct port *p = r->p->node->type == FABRIC_SWITCH ?
				 named_port(r, r->mod >> 16) :
				 r->p;
	const unsigned block = r->mod & 0xffff;
	struct port_tables unset, *t;

	if (!p || block >= PKEYS / 32)
		return MAD_BAD_VALUE;
	if (r->set && (p->node->host || p->node == r->f->vswitch))
		return MAD_BAD_VALUE; /* there is one partition */
	t = tables(r, p, &unset);
	return t ? exchange(r, t->pkeys + 64 * block, 64) : -1;
}

/* Of 16 service levels; the virtual switch may have more ports than it shows. */
static uint8_t (*sl_tables(struct port_tables *t, const struct node *n))[8]
{
	static const uint8_t unset[8] = { 0x01, 0x23, 0x45, 0x67,
					  0x01, 0x23, 0x45, 0x67 };
	const unsigned rows = n->id ? n->nports + 1u : PORTS_MAX + 1;

	if (!t->sl2vl) {
		t->sl2vl = calloc(rows, sizeof(*t->sl2vl));
		for (unsigned i = 0; t->sl2vl && i < rows; i++)
			memcpy(t->sl2vl[i], unset, 8);
	}
	return t->sl2vl;
}

static int sl_to_vl(const struct sma_request *r)
{
	const bool sw = r->p->node->type == FABRIC_SWITCH;
	const unsigned in = sw ? r->mod >> 8 & 0xff : 0;
	struct port *p = sw ? named_port(r, r->mod & 0xff) : r->p;
	struct port_tables unset, *t;
	uint8_t(*rows)[8];
	int status;

	if (!p || in > p->node->nports)
		return MAD_BAD_VALUE;
	t = tables(r, p, &unset);
	rows = t ? sl_tables(t, p->node) : NULL;
	status = rows ? exchange(r, rows[in], 8) : -1;
	if (t == &unset)
		free(rows);
	return status;
}

static int vl_arbitration(const struct sma_request *r)
{
	const unsigned part = r->mod >> 16;
	struct port *p = r->p->node->type == FABRIC_SWITCH ?
				 named_port(r, r->mod & 0xffff) :
				 r->p;
	struct port_tables unset, *t;

	/* Tables of up to 32 pairs have no second part. */
	if (!p || (part != 1 && part != 3))
		return MAD_BAD_VALUE;
	t = tables(r, p, &unset);
	return t ? exchange(r, t->vl_arb[part - 1],
			    2 * pi_get(p->info, PI_VL_ARB_LOW_CAP)) :
		   -1;
}

/* ---- switches ------------------------------------------------------------ */

static int switch_info(const struct sma_request *r)
{
	struct node *n = r->p->node;

	if (n->type != FABRIC_SWITCH)
		return MAD_BAD_ATTRIBUTE;
	for (unsigned i = 0; r->set && i < SI_FIELDS; i++)
		if (switch_info_fields[i].rw)
			attr_put(n->sw_info, &switch_info_fields[i],
				 attr_get(r->data, &switch_info_fields[i]));
	/* Written as 1 it is cleared (14.2.5.4). */
	if (r->set && si_get(r->data, SI_STATE_CHANGE))
		si_put(n->sw_info, SI_STATE_CHANGE, 0);
	memcpy(r->data, n->sw_info, 64);
	return MAD_OK;
}

/* From now on the switch forwards by a table, which begins as what it did. */
static uint8_t *own_lft(struct fabric *f, struct node *n)
{
	uint8_t *lft = n->sw.lft;

	if (lft)
		return lft;
	lft = malloc(LIDS_END);
	for (unsigned lid = 0; lft && lid < LIDS_END; lid++)
		lft[lid] = (uint8_t)route_lft(f, n, lid);
	n->sw.lft = lft;
	return lft;
}

static int linear_forwarding(const struct sma_request *r)
{
	struct node *n = r->p->node;
	uint8_t *lft;

	if (n->type != FABRIC_SWITCH)
		return MAD_BAD_ATTRIBUTE;
	if (r->mod >= LIDS_END / LFT_BLOCK)
		return MAD_BAD_VALUE;
	if (r->set) {
		lft = own_lft(r->f, n);
		if (!lft)
			return -1;
		memcpy(lft + LFT_BLOCK * r->mod, r->data, LFT_BLOCK);
	}
	for (unsigned i = 0; i < LFT_BLOCK; i++)
		r->data[i] =
			(uint8_t)route_lft(r->f, n, LFT_BLOCK * r->mod + i);
	return MAD_OK;
}

static int multicast_forwarding(const struct sma_request *r)
{
	struct node *n = r->p->node;
	const unsigned block = r->mod & 0x1ff, position = r->mod >> 28;

	if (n->type != FABRIC_SWITCH)
		return MAD_BAD_ATTRIBUTE;
	if (block >= MCAST_CAP / 32 || position > PORTS_MAX / 16)
		return MAD_BAD_VALUE;
	if (!n->sw.mft && !r->set) {
		memset(r->data, 0, 64);
		return MAD_OK;
	}
	if (!n->sw.mft)
		n->sw.mft = calloc(16 * MCAST_CAP, 2);
	if (!n->sw.mft)
		return -1;
	return exchange(r, n->sw.mft + 64 * (position * MCAST_CAP / 32 + block),
			64);
}

/* ---- keys, and which function -------------------------------------------- */

/* Whether the request may be carried out; hide: an answer does not show the
 * key. */
static bool key_fits(struct port *p, bool set, uint64_t m_key, bool *hide)
{
	uint8_t *info = port_management(p)->info;
	const uint64_t key = pi_get(info, PI_M_KEY);
	const unsigned protect = (unsigned)pi_get(info, PI_M_KEY_PROTECT);

	*hide = false;
	if (!key || key == m_key)
		return true;
	if (!set && protect < 2) {
		*hide = protect == 1;
		return true;
	}
	if (pi_get(info, PI_M_KEY_VIOLATIONS) < 0xffff)
		pi_put(info, PI_M_KEY_VIOLATIONS,
		       pi_get(info, PI_M_KEY_VIOLATIONS) + 1);
	return false;
}

static int answer(const struct sma_request *r, unsigned attr)
{
	switch (attr) {
	case SMA_NODE_DESCRIPTION:
		return node_description(r);
	case SMA_NODE_INFO:
		return node_info(r);
	case SMA_SWITCH_INFO:
		return switch_info(r);
	case SMA_GUID_INFO:
		return guid_info(r);
	case SMA_PORT_INFO:
		return port_info(r);
	case SMA_PKEY_TABLE:
		return pkey_table(r);
	case SMA_SL_TO_VL:
		return sl_to_vl(r);
	case SMA_VL_ARBITRATION:
		return vl_arbitration(r);
	case SMA_LINEAR_FORWARDING:
		return linear_forwarding(r);
	case SMA_MULTICAST_FORWARDING:
		return multicast_forwarding(r);
	case SMA_SM_INFO:
		return sm_info(r);
	case SMA_MLNX_PORT_INFO:
		return mlnx_port_info(r);
	default:
		return MAD_BAD_ATTRIBUTE;
	}
}

/* ---- what a Set has changed ---------------------------------------------- */

static bool is_of_text(const struct fabric *f, const struct node *n)
{
	return n->id && !n->host && n != f->vswitch;
}

static int set_and_tell(const struct sma_request *r,
			const struct fabric_env *env, unsigned attr)
{
	struct fabric_set now = { .node_guid = r->p->node->guid,
				  .mod = r->mod,
				  .attr = (uint16_t)attr,
				  .port = r->p->num };
	struct sma_request get = *r;
	uint8_t before[64];
	int status;

	memcpy(now.data, r->data, 64); /* the link's state is not read back */
	memcpy(before, r->data, 64);
	get.set = false;
	get.data = before;
	status = answer(&get, attr);
	if (!status)
		status = answer(r, attr);
	/* The other end of a link begins anew as well. */
	if (!status &&
	    (memcmp(before, r->data, 64) != 0 ||
	     (attr == SMA_PORT_INFO &&
	      (pi_get(now.data, PI_STATE) || pi_get(now.data, PI_PHYS_STATE)))))
		env->set(env->arg, &now);
	return status;
}

void fabric_apply(struct fabric *f, const struct fabric_set *s)
{
	struct node *n = fabric_node(f, s->node_guid);
	uint8_t data[64];
	struct sma_request r = {
		.f = f, .set = true, .mod = s->mod, .data = data
	};

	if (!n || !is_of_text(f, n) || s->port > n->nports || fabric_settle(f))
		return;
	r.p = &n->ports[s->port];
	memcpy(data, s->data, sizeof(data));
	answer(&r, s->attr);
}

int sma_answer(struct fabric *f, const struct fabric_env *env, struct port *p,
	       unsigned method, unsigned attr, uint32_t mod, uint64_t m_key,
	       uint8_t data[64])
{
	const struct sma_request r = { .f = f,
				       .p = p,
				       .set = method == METHOD_SET,
				       .mod = mod,
				       .data = data };
	bool hide;
	int status;

	if (!key_fits(p, r.set, m_key, &hide))
		return -1;
	status = r.set && env && env->set && is_of_text(f, p->node) ?
			 set_and_tell(&r, env, attr) :
			 answer(&r, attr);
	if (attr == SMA_PORT_INFO && hide)
		pi_put(data, PI_M_KEY, 0);
	return status;
}
