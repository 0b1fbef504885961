/*
 * route.c - where a LID leads: min-hop, or what a subnet manager has set
 *
 * For each destination switch there is a tree of the ports that lead there, made
 * by a search in breadth when it is first asked for. Of ports that are equally
 * near the lowest is taken, so that two runs have the same tables. A switch whose
 * forwarding table has been set has that instead, and a datagram follows the
 * tables: at most HOPS_MAX switches, since they may lead in circles.
 */
#include "fabric_internal.h"

#include <stdlib.h>
#include <string.h>

static bool link_active(const struct port *p)
{
	return p->peer && pi_get(p->info, PI_STATE) == LINK_ACTIVE;
}

/* Whether a link is there at all: tables are made before links are active. */
static bool link_up(const struct port *p)
{
	return p->peer && pi_get(p->info, PI_PHYS_STATE) == PHYS_UP;
}

static void reach(uint8_t *row, struct node *to, struct node **queue)
{
	size_t head = 0, tail = 0;

	queue[tail++] = to;
	row[to->index] = 0;
	while (head < tail) {
		struct node *n = queue[head++];

		for (unsigned i = 1; i <= n->nports; i++) {
			const struct port *p = &n->ports[i];
			struct node *next = p->peer ? p->peer->node : NULL;

			if (!next || next->type != FABRIC_SWITCH ||
			    !link_up(p) || row[next->index] != NO_PORT)
				continue;
			row[next->index] = p->peer->num;
			queue[tail++] = next;
		}
	}
}

/* The ports, by switch, that lead to this one; NULL: there is no memory. */
static const uint8_t *tree(struct fabric *f, struct node *to)
{
	struct node **queue;
	uint8_t *row;

	if (!f->trees)
		f->trees = calloc(SWITCHES_MAX, sizeof(uint8_t *));
	if (!f->trees || f->trees[to->index])
		return f->trees ? f->trees[to->index] : NULL;
	row = malloc(f->nswitches);
	queue = malloc(f->nswitches * sizeof(struct node *));
	if (row && queue) {
		memset(row, NO_PORT, f->nswitches);
		reach(row, to, queue);
		f->trees[to->index] = row;
	} else {
		free(row);
	}
	free(queue);
	return f->trees[to->index];
}

void route_forget(struct fabric *f)
{
	for (size_t i = 0; f->trees && i < f->nswitches; i++)
		free(f->trees[i]);
	free(f->trees);
	f->trees = NULL;
}

/* As a subnet manager would have set it. */
static unsigned min_hop(struct fabric *f, struct node *sw, unsigned lid)
{
	struct port *p = lid < LIDS_END ? f->lids[lid] : NULL;
	const uint8_t *row;

	if (!p)
		return NO_PORT;
	if (p->node == sw)
		return 0;
	if (p->node->type != FABRIC_SWITCH) {
		if (!p->peer || p->peer->node->type != FABRIC_SWITCH ||
		    !link_up(p))
			return NO_PORT;
		if (p->peer->node == sw)
			return p->peer->num;
		p = p->peer;
	}
	row = tree(f, p->node);
	return row ? row[sw->index] : NO_PORT;
}

unsigned route_lft(struct fabric *f, struct node *sw, unsigned lid)
{
	if (lid >= LIDS_END)
		return NO_PORT;
	return sw->sw.lft ? sw->sw.lft[lid] : min_hop(f, sw, lid);
}

/* The other end of a link that is active at both. */
static struct port *
cross(struct port *p, void (*pass)(void *arg, const struct port *p), void *arg)
{
	if (!link_active(p) || !link_active(p->peer))
		return NULL;
	if (pass)
		pass(arg, p);
	return p->peer;
}

struct port *route_lid_by(struct fabric *f, struct port *p, unsigned lid,
			  void (*pass)(void *arg, const struct port *p),
			  void *arg)
{
	if (port_has_lid(port_management(p), lid))
		return port_management(p);
	if (p->node->type != FABRIC_SWITCH)
		p = cross(p, pass, arg);
	for (unsigned hop = 0; p && hop < HOPS_MAX; hop++) {
		struct node *n = p->node;
		unsigned out;

		if (port_has_lid(port_management(p), lid))
			return port_management(p);
		if (n->type != FABRIC_SWITCH)
			return NULL;
		out = route_lft(f, n, lid);
		if (!out || out > n->nports)
			return NULL;
		p = cross(&n->ports[out], pass, arg);
	}
	return NULL;
}

struct port *route_lid(struct fabric *f, struct port *p, unsigned lid)
{
	return route_lid_by(f, p, lid, NULL, NULL);
}
