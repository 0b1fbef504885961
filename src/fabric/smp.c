/*
 * smp.c - how subnet management packets travel
 *
 * By LID as any datagram; or by directed route (14.2.2): a list of ports of
 * output, which lead from the sender, or from the node with the packet's
 * destination LID where DrSLID is not the permissive one, and on to DrDLID by LID
 * where that is not. A node on the way notes the port of input in the return
 * path. An answer takes the same way back, so it arrives wherever the request
 * did, with hop pointer 0. Directed routes need links, but neither LIDs nor active
 * ports.
 */
#include "fabric_internal.h"

#include <stdlib.h>
#include <string.h>

/* A MAD of subnet management. */
enum {
	AT_CLASS = 1,
	AT_CLASS_VERSION = 2,
	AT_METHOD = 3,
	AT_STATUS = 4,
	AT_HOP_POINTER = 6,
	AT_HOP_COUNT = 7,
	AT_ATTR = 16,
	AT_MOD = 20,
	AT_M_KEY = 24,
	AT_DR_SLID = 32,
	AT_DR_DLID = 34,
	AT_DATA = 64,
	AT_PATH = 128,
	AT_RETURN_PATH = 192,
};

#define NOTICE 0x02u /* the attribute of traps */
#define DIRECTION 0x8000u /* in the status: on the way back */

/* One hop: where the cable of port number out leads to. */
static struct port *hop(struct port *p, unsigned out, bool first)
{
	const struct node *n = p->node;
	struct port *q;

	/* A CA passes nothing on, and sends by the port it is asked at. */
	if (n->type != FABRIC_SWITCH && (!first || out != p->num))
		return NULL;
	if (!out || out > n->nports)
		return NULL;
	q = &n->ports[out];
	if (!q->peer || pi_get(q->info, PI_PHYS_STATE) != PHYS_UP ||
	    pi_get(q->peer->info, PI_PHYS_STATE) != PHYS_UP)
		return NULL;
	return q->peer;
}

/* The port at which it arrives, or NULL; the return path is written. */
static struct port *directed(struct fabric *f, struct port *p, unsigned dlid,
			     uint8_t *mad)
{
	const unsigned count = mad[AT_HOP_COUNT];
	const unsigned slid = get_be16(mad + AT_DR_SLID);
	const unsigned end = get_be16(mad + AT_DR_DLID);
	const struct port *from = p;

	if (count > HOPS_MAX || mad[AT_HOP_POINTER] ||
	    get_be16(mad + AT_STATUS) & DIRECTION)
		return NULL;
	if (slid != LID_PERMISSIVE) {
		p = route_lid(f, p, dlid);
	} else if (dlid != LID_PERMISSIVE &&
		   !port_has_lid(port_management(p), dlid)) {
		return NULL;
	}
	for (unsigned i = 1; p && i <= count; i++) {
		p = hop(p, mad[AT_PATH + i], i == 1 && p == from);
		if (p)
			mad[AT_RETURN_PATH + i] = p->num;
	}
	if (p && end != LID_PERMISSIVE)
		p = route_lid(f, p, end);
	return p;
}

/* The subnet manager has heard it, and wants it no more often (14.3.14). */
static bool is_trap(const struct fabric *f, const struct port *at,
		    const uint8_t *mad)
{
	return at && at == f->sm && mad[AT_METHOD] == METHOD_TRAP &&
	       get_be16(mad + AT_ATTR) == NOTICE;
}

static bool is_agents(unsigned method)
{
	return method == METHOD_GET || method == METHOD_SET;
}

ssize_t smp_request(struct fabric *f, const struct fabric_env *env,
		    struct port *from, unsigned dlid, const uint8_t *mad,
		    void **out, struct port **at)
{
	const bool by_route = mad[AT_CLASS] == CLASS_SM_DIRECTED;
	uint8_t *answer = malloc(256);
	int status;

	if (!answer)
		return FABRIC_NOBODY;
	memcpy(answer, mad, 256);
	*at = by_route ? directed(f, from, dlid, answer) :
			 route_lid(f, from, dlid);
	if (is_trap(f, *at, mad)) {
		answer[AT_METHOD] = METHOD_TRAP_REPRESS;
		*out = answer;
		return 256;
	}
	if (!*at || !is_agents(mad[AT_METHOD])) {
		free(answer);
		return *at ? FABRIC_ELSEWHERE : FABRIC_NOBODY;
	}
	if (mad[0] != 1 || mad[AT_CLASS_VERSION] != 1)
		status = MAD_BAD_VERSION;
	else
		status = sma_answer(f, env, *at, mad[AT_METHOD],
				    get_be16(mad + AT_ATTR),
				    get_be32(mad + AT_MOD),
				    get_be64(mad + AT_M_KEY), answer + AT_DATA);
	if (status < 0) {
		free(answer);
		return FABRIC_NOBODY;
	}
	answer[AT_METHOD] = METHOD_GET | METHOD_RESPONSE;
	put_be16(answer + AT_STATUS,
		 (unsigned)status | (by_route ? DIRECTION : 0));
	*out = answer;
	return 256;
}
