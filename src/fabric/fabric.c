/*
 * fabric.c - nodes, ports and links, and who has which GUID and LID
 */
#include "fabric_internal.h"
#include "sa.h"

#include "base/hash64.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VSWITCH_PORTS 8u /* and so many more, where they are not enough */
#define NODES_MAX LIDS_END

static const struct link_rate edr = { .width = 2, .speed = 4, .speed_ext = 2 };

/* ---- GUIDs --------------------------------------------------------------- */

static struct guid_slot *map_slot(const struct guid_map *m, uint64_t guid)
{
	size_t i = hash64(guid) & (m->cap - 1);

	while (m->slot[i].what && m->slot[i].guid != guid)
		i = (i + 1) & (m->cap - 1);
	return &m->slot[i];
}

static void *map_get(const struct guid_map *m, uint64_t guid)
{
	return m->cap ? map_slot(m, guid)->what : NULL;
}

/* The GUID is not in it. */
static int map_add(struct guid_map *m, uint64_t guid, void *what)
{
	struct guid_map old = *m;

	if (2 * (m->used + 1) > m->cap) {
		m->cap = old.cap ? 2 * old.cap : 64;
		m->slot = calloc(m->cap, sizeof(*m->slot));
		if (!m->slot) {
			*m = old;
			return -1;
		}
		for (size_t i = 0; i < old.cap; i++)
			if (old.slot[i].what)
				*map_slot(m, old.slot[i].guid) = old.slot[i];
		free(old.slot);
	}
	*map_slot(m, guid) = (struct guid_slot){ guid, what };
	m->used++;
	return 0;
}

struct node *fabric_node(const struct fabric *f, uint64_t guid)
{
	return map_get(&f->by_node, guid);
}

struct port *fabric_port_of(const struct fabric *f, uint64_t guid)
{
	return map_get(&f->by_port, guid);
}

int fabric_set_port_guid(struct fabric *f, struct port *p, uint64_t guid)
{
	if (p->guid || map_get(&f->by_port, guid))
		return p->guid == guid ? 0 : -1;
	p->guid = guid;
	return map_add(&f->by_port, guid, p);
}

/* ---- nodes --------------------------------------------------------------- */

struct fabric *fabric_new(void)
{
	struct fabric *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->lids = calloc(LIDS_END, sizeof(struct port *));
	if (!f->lids) {
		free(f);
		return NULL;
	}
	return f;
}

static void node_free(struct node *n)
{
	for (size_t i = 0; n->ports && i <= PORTS_MAX && i <= n->nports; i++) {
		struct port *p = &n->ports[i];

		if (p->tables)
			free(p->tables->sl2vl);
		free(p->tables);
		free(p->base);
	}
	free(n->ports);
	free(n->id);
	free(n->sw.lft);
	free(n->sw.mft);
	free(n);
}

void fabric_free(struct fabric *f)
{
	if (!f)
		return;
	route_forget(f);
	sa_joined_free(f);
	for (size_t i = 0; i < f->nnodes; i++)
		node_free(f->nodes[i]);
	free(f->nodes);
	free(f->switches);
	free(f->by_node.slot);
	free(f->by_port.slot);
	free(f->lids);
	free(f);
}

/* What is the same for all ports of its kind; no link yet. */
static void port_init(struct node *n, unsigned num)
{
	const bool external = num || n->type != FABRIC_SWITCH;
	struct port *p = &n->ports[num];
	uint8_t *info = p->info;

	p->node = n;
	p->num = (uint8_t)num;
	if (port_management(p) == p) {
		pi_put(info, PI_GID_PREFIX, GID_PREFIX);
		pi_put(info, PI_CAP_MASK,
		       CAP_SL_MAPPING | CAP_EXT_SPEEDS | CAP_REREGISTER);
		pi_put(info, PI_GUID_CAP, 1);
		pi_put(info, PI_SUBNET_TIMEOUT, 18);
		pi_put(info, PI_RESP_TIME, 16);
	}
	pi_put(info, PI_LOCAL_PORT, num);
	pi_put(info, PI_WIDTH_ENABLED, 3);
	pi_put(info, PI_WIDTH_SUPPORTED, 3);
	pi_put(info, PI_WIDTH_ACTIVE, 2);
	pi_put(info, PI_SPEED_SUPPORTED, 1);
	pi_put(info, PI_SPEED_ENABLED, 1);
	pi_put(info, PI_SPEED_ACTIVE, 1);
	pi_put(info, PI_STATE, external ? LINK_DOWN : LINK_ACTIVE);
	pi_put(info, PI_PHYS_STATE, external ? PHYS_POLLING : PHYS_UP);
	pi_put(info, PI_DOWN_DEFAULT, PHYS_POLLING);
	pi_put(info, PI_NEIGHBOR_MTU, 4);
	pi_put(info, PI_MTU_CAP, 4);
	/* As opensm sets them, here and in hoq_life(). */
	pi_put(info, PI_VL_STALL_COUNT, 7);
	pi_put(info, PI_VL_CAP, 4);
	pi_put(info, PI_OPER_VLS, 4);
	pi_put(info, PI_VL_ARB_HIGH_CAP, 8);
	pi_put(info, PI_VL_ARB_LOW_CAP, 8);
}

static int node_list(struct fabric *f, struct node *n)
{
	struct node **bigger;

	if (f->nnodes == f->nodes_cap) {
		const size_t cap = f->nodes_cap ? 2 * f->nodes_cap : 64;

		bigger = realloc(f->nodes, cap * sizeof(struct node *));
		if (!bigger)
			return -1;
		f->nodes = bigger;
		f->nodes_cap = cap;
	}
	if (n->type == FABRIC_SWITCH) {
		if (!f->switches)
			f->switches =
				calloc(SWITCHES_MAX, sizeof(struct node *));
		if (!f->switches)
			return -1;
	}
	if (map_add(&f->by_node, n->guid, n))
		return -1;
	f->nodes[f->nnodes++] = n;
	f->nports += n->nports + 1u;
	if (n->type == FABRIC_SWITCH) {
		n->index = (uint32_t)f->nswitches;
		f->switches[f->nswitches++] = n;
	}
	return 0;
}

static void switch_info_init(struct node *n)
{
	si_put(n->sw_info, SI_LINEAR_CAP, LIDS_END);
	si_put(n->sw_info, SI_MCAST_CAP, MCAST_CAP);
	si_put(n->sw_info, SI_LIFE_TIME, 18);
	si_put(n->sw_info, SI_PARTITION_CAP, PKEYS);
	si_put(n->sw_info, SI_ENHANCED_PORT0, 1);
	si_put(n->sw_info, SI_DEFAULT_PORT, NO_PORT);
	si_put(n->sw_info, SI_DEFAULT_MCAST_PRIM, NO_PORT);
	si_put(n->sw_info, SI_DEFAULT_MCAST_NOT, NO_PORT);
}

struct node *fabric_add_node(struct fabric *f, unsigned type, uint64_t guid,
			     unsigned nports, char *why, size_t size)
{
	struct node *n;

	if (!guid || fabric_node(f, guid)) {
		snprintf(why, size, "GUID 0x%llx: %s", (unsigned long long)guid,
			 guid ? "another node has it" : "a node needs one");
		return NULL;
	}
	if (!nports || nports > PORTS_MAX) {
		snprintf(why, size, "%u ports: a node has 1 to %u", nports,
			 PORTS_MAX);
		return NULL;
	}
	if (f->nnodes == NODES_MAX || f->nports + nports + 1 > ALL_PORTS_MAX ||
	    (type == FABRIC_SWITCH && f->nswitches == SWITCHES_MAX)) {
		snprintf(why, size,
			 "a fabric has at most %u nodes, %u switches and %u "
			 "ports",
			 NODES_MAX, SWITCHES_MAX, ALL_PORTS_MAX);
		return NULL;
	}
	n = calloc(1, sizeof(*n));
	if (!n || !(n->ports = calloc(nports + 1, sizeof(*n->ports))))
		goto no_memory;
	n->guid = n->sys_guid = guid;
	n->type = (uint8_t)type;
	n->nports = (uint8_t)nports;
	for (unsigned i = 0; i <= nports; i++)
		port_init(n, i);
	if (type == FABRIC_SWITCH)
		switch_info_init(n);
	if (node_list(f, n))
		goto no_memory;
	f->settled = false;
	return n;
no_memory:
	snprintf(why, size, "there is no memory for it");
	if (n)
		node_free(n);
	return NULL;
}

/* ---- LIDs and links ------------------------------------------------------ */

static void forget_lid(struct fabric *f, struct port *p)
{
	const unsigned lid = port_lid(p);

	for (unsigned i = lid; i && i < LIDS_END && port_has_lid(p, i); i++)
		if (f->lids[i] == p)
			f->lids[i] = NULL;
}

int fabric_set_lid(struct fabric *f, struct port *p, unsigned lid, unsigned lmc)
{
	const unsigned end = lid + (1u << lmc);

	if (lid && end > LIDS_END)
		return -1;
	for (unsigned i = lid; lid && i < end; i++)
		if (f->lids[i] && f->lids[i] != p)
			return -1;
	forget_lid(f, p);
	pi_put(p->info, PI_LID, lid);
	pi_put(p->info, PI_LMC, lmc);
	for (unsigned i = lid; lid && i < end; i++)
		f->lids[i] = p;
	if (lid && end - 1 > f->lid_top)
		f->lid_top = end - 1;
	return 0;
}

/* All speeds up to the one of the link: a link here is as fast as it can be. */
static void set_rate(struct port *p, const struct link_rate *r)
{
	const unsigned speeds = 2u * r->speed - 1, ext = 2u * r->speed_ext;

	pi_put(p->info, PI_WIDTH_SUPPORTED, 1u | r->width);
	pi_put(p->info, PI_WIDTH_ENABLED, 1u | r->width);
	pi_put(p->info, PI_WIDTH_ACTIVE, r->width);
	pi_put(p->info, PI_SPEED_SUPPORTED, speeds);
	pi_put(p->info, PI_SPEED_ENABLED, speeds);
	pi_put(p->info, PI_SPEED_ACTIVE, r->speed);
	pi_put(p->info, PI_SPEED_EXT_SUPPORTED, ext ? ext - 1 : 0);
	pi_put(p->info, PI_SPEED_EXT_ENABLED, ext ? ext - 1 : 0);
	pi_put(p->info, PI_SPEED_EXT_ACTIVE, r->speed_ext);
}

static void link_state(struct port *p, bool up)
{
	pi_put(p->info, PI_STATE, up ? LINK_ACTIVE : LINK_DOWN);
	pi_put(p->info, PI_PHYS_STATE, up ? PHYS_UP : PHYS_POLLING);
}

/* How long a switch keeps a packet at the head of a queue: longer where another
 * switch may have to wait. */
static void hoq_life(struct port *p)
{
	if (p->node->type == FABRIC_SWITCH)
		pi_put(p->info, PI_HOQ_LIFE,
		       p->peer->node->type == FABRIC_SWITCH ? 18 : 16);
}

int fabric_connect(struct fabric *f, struct port *a, struct port *b,
		   const struct link_rate *rate)
{
	if (a == b || (a->peer && a->peer != b) || (b->peer && b->peer != a))
		return -1;
	a->peer = b;
	b->peer = a;
	if (rate) {
		set_rate(a, rate);
		set_rate(b, rate);
	}
	hoq_life(a);
	hoq_life(b);
	link_state(a, true);
	link_state(b, true);
	f->settled = false;
	return 0;
}

static struct port *free_port(struct node *n)
{
	for (unsigned i = 1; i <= n->nports; i++)
		if (!n->ports[i].peer)
			return &n->ports[i];
	return NULL;
}

/* ---- hosts --------------------------------------------------------------- */

/* A host has its LID of its address. A node of text that has the same gets
 * another one, as from a subnet manager that finds both. */
static int host_lid(struct fabric *f, struct port *p, unsigned lid)
{
	struct port *other = lid < LIDS_END ? f->lids[lid] : NULL;

	if (other && other != p && other->node->id && !other->node->host &&
	    other->node != f->vswitch)
		fabric_set_lid(f, other, 0, 0);
	return lid ? fabric_set_lid(f, p, lid, 0) : -1;
}

static int virtual_switch(struct fabric *f, const struct fabric_host *h,
			  char *why, size_t size)
{
	struct node *n = fabric_node(f, h->switch_guid);
	static const char desc[] = "softhca virtual switch";

	if (!n) {
		n = fabric_add_node(f, FABRIC_SWITCH, h->switch_guid, PORTS_MAX,
				    why, size);
		if (!n)
			return -1;
		n->nports = VSWITCH_PORTS;
		n->vendor = h->vendor;
		n->device = h->device;
		memcpy(n->desc, desc, sizeof(desc) - 1);
	}
	if (n->type != FABRIC_SWITCH) {
		snprintf(why, size, "GUID 0x%llx is the virtual switch's",
			 (unsigned long long)n->guid);
		return -1;
	}
	if (fabric_set_port_guid(f, &n->ports[0], n->guid) ||
	    host_lid(f, &n->ports[0], h->sm_lid)) {
		snprintf(why, size,
			 "LID %u is the subnet manager's, and another port has "
			 "it",
			 h->sm_lid);
		return -1;
	}
	f->vswitch = n;
	return 0;
}

/* The node is on the virtual switch unless text has it elsewhere. */
/* A free port of it; it grows, where it is none of a text's. NULL: none. */
static struct port *vswitch_port(struct node *sw)
{
	struct port *at = free_port(sw);

	if (at || sw->id)
		return at;
	sw->nports = (uint8_t)min_u32(sw->nports + VSWITCH_PORTS, PORTS_MAX);
	return free_port(sw);
}

static int host_connect(struct fabric *f, struct port *p, char *why,
			size_t size)
{
	struct port *at;

	if (p->peer)
		return 0;
	at = vswitch_port(f->vswitch);
	if (!at) {
		snprintf(why, size, "the virtual switch has no port left");
		return -1;
	}
	return fabric_connect(f, p, at, &edr);
}

static struct node *host_node(struct fabric *f, const struct fabric_host *h,
			      char *why, size_t size)
{
	struct node *n = fabric_node(f, h->node_guid);

	if (!n) {
		n = fabric_add_node(f, FABRIC_CA, h->node_guid, 1, why, size);
		if (n)
			fabric_set_port_guid(f, &n->ports[1], h->port_guid);
	}
	if (n && (n->type != FABRIC_CA || n->ports[1].guid != h->port_guid)) {
		snprintf(why, size,
			 "GUID 0x%llx is host %s's, and of another node",
			 (unsigned long long)h->node_guid, h->desc);
		return NULL;
	}
	return n;
}

int fabric_add_host(struct fabric *f, const struct fabric_host *h, char *why,
		    size_t size)
{
	const struct link_rate rate = { .width = h->width ? h->width : 2,
					.speed = h->speed ? h->speed : 4,
					.speed_ext =
						h->speed ? h->speed_ext : 2 };
	struct node *n;
	struct port *p;

	if (!f->vswitch && virtual_switch(f, h, why, size))
		return -1;
	n = host_node(f, h, why, size);
	if (!n)
		return -1;
	p = &n->ports[1];
	n->host = true;
	n->vendor = h->vendor;
	n->device = h->device;
	n->revision = h->revision;
	memset(n->desc, 0, sizeof(n->desc));
	memcpy(n->desc, h->desc, strnlen(h->desc, sizeof(n->desc)));
	if (host_lid(f, p, h->lid)) {
		const struct port *other =
			h->lid < LIDS_END ? f->lids[h->lid] : NULL;

		snprintf(why, size, "LID %u of host %s %s%.64s", h->lid,
			 h->desc,
			 other ? "is also that of " : "is no unicast LID",
			 other ? (const char *)other->node->desc : "");
		return -1;
	}
	if (host_connect(f, p, why, size))
		return -1;
	pi_put(p->info, PI_MTU_CAP, h->mtu_cap ? h->mtu_cap : 5);
	pi_put(p->info, PI_NEIGHBOR_MTU, h->mtu ? h->mtu : 5);
	pi_put(p->peer->info, PI_MTU_CAP, 5);
	pi_put(p->peer->info, PI_NEIGHBOR_MTU, h->mtu ? h->mtu : 5);
	if (h->cap_mask)
		pi_put(p->info, PI_CAP_MASK, h->cap_mask);
	set_rate(p, &rate);
	set_rate(p->peer, &rate);
	link_state(p, true);
	link_state(p->peer, true);
	f->settled = false;
	return 0;
}

void fabric_drop_host(struct fabric *f, uint64_t port_guid)
{
	struct port *p = map_get(&f->by_port, port_guid);

	if (!p || !p->node->host || !p->peer)
		return;
	link_state(p, false);
	link_state(p->peer, false);
	f->settled = false;
}

/* ---- before requests ----------------------------------------------------- */

/* The first switch of text that has a free port; or the first other node. */
static void join_text(struct fabric *f)
{
	struct port *at, *to = NULL;

	if (!f->vswitch || !f->first || f->vswitch->id)
		return;
	for (unsigned i = 0; i <= f->vswitch->nports; i++)
		if (f->vswitch->ports[i].peer &&
		    f->vswitch->ports[i].peer->node->id)
			return;
	for (size_t i = 0; !to && i < f->nswitches; i++)
		if (f->switches[i] != f->vswitch)
			to = free_port(f->switches[i]);
	for (size_t i = 0; !to && i < f->nnodes; i++)
		if (f->nodes[i] != f->vswitch && f->nodes[i]->id)
			to = free_port(f->nodes[i]);
	at = to ? vswitch_port(f->vswitch) : NULL;
	if (at)
		fabric_connect(f, at, to, &edr);
}

/* The lowest that is free, as subnet managers do; of ports that have a link. */
static void give_lid(struct fabric *f, struct port *p, unsigned *next)
{
	if (port_lid(p) || (p->num && !p->peer))
		return;
	while (*next < LIDS_END && f->lids[*next])
		++*next;
	if (*next < LIDS_END)
		fabric_set_lid(f, p, *next, 0);
}

static struct port *first_port(struct node *n)
{
	if (n->type == FABRIC_SWITCH)
		return &n->ports[0];
	for (unsigned i = 1; i <= n->nports; i++)
		if (n->ports[i].peer)
			return &n->ports[i];
	return &n->ports[1];
}

/* Where hosts are it is the virtual switch's. */
static void place_sm(struct fabric *f)
{
	if (f->vswitch && f->sm != &f->vswitch->ports[0]) {
		f->sm = &f->vswitch->ports[0];
		/* Another one that finds it leaves the subnet to it. Of text
		 * alone it may be had, as ibsim's. */
		pi_put(f->sm->info, PI_CAP_MASK,
		       pi_get(f->sm->info, PI_CAP_MASK) | CAP_IS_SM);
	} else if (!f->sm && f->nnodes) {
		f->sm = first_port(f->nswitches ? f->switches[0] : f->first);
	}
}

/* All ports have it, but those for which a Set has said another. */
static void spread_sm_lid(struct fabric *f)
{
	const unsigned old = f->sm_lid;

	f->sm_lid = f->sm ? (uint16_t)port_lid(f->sm) : 0;
	for (size_t i = 0; i < f->nnodes; i++) {
		struct node *n = f->nodes[i];

		for (unsigned k = 0; k <= n->nports; k++) {
			struct port *p = &n->ports[k];
			const uint64_t has = pi_get(p->info, PI_SM_LID);

			if (port_management(p) == p && (!has || has == old))
				pi_put(p->info, PI_SM_LID, f->sm_lid);
		}
	}
}

int fabric_settle(struct fabric *f)
{
	unsigned next = 1;

	if (f->settled)
		return 0;
	join_text(f);
	for (size_t i = 0; i < f->nnodes; i++) {
		struct node *n = f->nodes[i];

		if (n->type == FABRIC_SWITCH)
			give_lid(f, &n->ports[0], &next);
		for (unsigned k = 1; n->type != FABRIC_SWITCH && k <= n->nports;
		     k++)
			give_lid(f, &n->ports[k], &next);
	}
	place_sm(f);
	spread_sm_lid(f);
	for (size_t i = 0; i < f->nswitches; i++)
		if (!f->switches[i]->sw.lft)
			si_put(f->switches[i]->sw_info, SI_LINEAR_TOP,
			       f->lid_top);
	route_forget(f);
	f->settled = true;
	return 0;
}

/* ---- what programs see --------------------------------------------------- */

static void describe(const struct port *p, struct fabric_port *out)
{
	const struct node *n = p->node;

	*out = (struct fabric_port){
		.node_guid = n->guid,
		.port_guid = p->guid,
		.sys_guid = n->sys_guid,
		.gid_prefix = pi_get(p->info, PI_GID_PREFIX),
		.cap_mask = (uint32_t)pi_get(p->info, PI_CAP_MASK),
		.lid = (uint16_t)port_lid(p),
		.sm_lid = (uint16_t)pi_get(p->info, PI_SM_LID),
		.type = n->type,
		.num = p->num,
		.nports = n->nports,
		.lmc = (uint8_t)pi_get(p->info, PI_LMC),
		.sm_sl = (uint8_t)pi_get(p->info, PI_SM_SL),
		.state = (uint8_t)pi_get(p->info, PI_STATE),
		.phys_state = (uint8_t)pi_get(p->info, PI_PHYS_STATE),
		.width = (uint8_t)pi_get(p->info, PI_WIDTH_ACTIVE),
		.speed = (uint8_t)pi_get(p->info, PI_SPEED_ACTIVE),
		.speed_ext = (uint8_t)pi_get(p->info, PI_SPEED_EXT_ACTIVE),
		.host = n->host,
	};
	memcpy(out->desc, n->desc, sizeof(n->desc));
}

static bool is_called(const struct node *n, const char *name)
{
	const size_t len = strlen(name);

	if (n->id && !strcmp(n->id, name))
		return true;
	return len && len <= sizeof(n->desc) && !memcmp(n->desc, name, len) &&
	       (len == sizeof(n->desc) || !n->desc[len]);
}

int fabric_port_named(struct fabric *f, const char *name, unsigned num,
		      struct fabric_port *p)
{
	struct node *n = name ? NULL : f->first;

	fabric_settle(f);
	for (size_t i = 0; name && !n && i < f->nnodes; i++)
		if (is_called(f->nodes[i], name))
			n = f->nodes[i];
	if (!n || num > n->nports || (n->type == FABRIC_SWITCH && num))
		return -1;
	describe(num ? &n->ports[num] : first_port(n), p);
	return 0;
}

int fabric_port_guid(struct fabric *f, uint64_t port_guid,
		     struct fabric_port *p)
{
	const struct port *port = map_get(&f->by_port, port_guid);

	fabric_settle(f);
	if (!port)
		return -1;
	describe(port, p);
	return 0;
}

ssize_t fabric_request(struct fabric *f, const struct fabric_env *env,
		       uint64_t port_guid, uint16_t dlid, uint32_t dqpn,
		       const void *mad, size_t len, void **out,
		       struct fabric_port *at)
{
	struct port *from = map_get(&f->by_port, port_guid), *to = NULL;
	const uint8_t *m = mad;
	ssize_t n = FABRIC_NOBODY;

	*out = NULL;
	if (!from || len != 256 || fabric_settle(f))
		return FABRIC_NOBODY;
	if (m[1] == CLASS_SM_LID || m[1] == CLASS_SM_DIRECTED)
		n = dqpn ? FABRIC_NOBODY :
			   smp_request(f, env, from, dlid, m, out, &to);
	else if (dqpn)
		n = gmp_request(f, env, from, dlid, m, out, &to);
	if (n == FABRIC_ELSEWHERE && at)
		describe(to, at);
	return n;
}
