/*
 * gmp.c - management datagrams of general services: which agent answers
 *
 * They go by LID. Agents of the fabric are performance management of all nodes,
 * subnet administration where the subnet manager is, and what answers ibping(8)
 * on CAs of text. All else is for programs: of the port where it entered, or of a
 * host. A node of text has no programs.
 */
#include "fabric_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
	AT_CLASS = 1,
	AT_CLASS_VERSION = 2,
	AT_METHOD = 3,
	AT_STATUS = 4,
	AT_ATTR = 16,
	AT_PERF_DATA = 64,
	AT_PING_DATA = 40, /* after RMPP's header and the OUI */
};

/* A MAD of 256 bytes that becomes the answer to itself. */
static ssize_t finish(uint8_t *answer, int status, void **out)
{
	answer[AT_METHOD] = METHOD_GET | METHOD_RESPONSE;
	put_be16(answer + AT_STATUS, (unsigned)status);
	*out = answer;
	return 256;
}

static ssize_t perf_request(const struct fabric_env *env, struct port *p,
			    const uint8_t *mad, void **out)
{
	uint8_t *answer = malloc(256);
	int status = MAD_BAD_VERSION;

	if (!answer)
		return FABRIC_NOBODY;
	memcpy(answer, mad, 256);
	if (mad[0] == 1 && mad[AT_CLASS_VERSION] == 1)
		status = pma_answer(env, p, mad[AT_METHOD],
				    get_be16(mad + AT_ATTR),
				    answer + AT_PERF_DATA);
	if (status < 0) {
		free(answer);
		return status;
	}
	return finish(answer, status, out);
}

/* As ibping's server, which says whose it is. */
static ssize_t ping_request(const struct port *p, const uint8_t *mad,
			    void **out)
{
	uint8_t *answer = malloc(256);

	if (!answer)
		return FABRIC_NOBODY;
	memcpy(answer, mad, 256);
	memset(answer + AT_PING_DATA, 0, 256 - AT_PING_DATA);
	memcpy(answer + AT_PING_DATA, p->node->desc, sizeof(p->node->desc));
	return finish(answer, MAD_OK, out);
}

ssize_t gmp_request(struct fabric *f, const struct fabric_env *env,
		    struct port *from, unsigned dlid, const uint8_t *mad,
		    void **out, struct port **at)
{
	const unsigned class = mad[AT_CLASS], method = mad[AT_METHOD];
	const bool agents = method == METHOD_GET || method == METHOD_SET;
	struct port *to = route_lid(f, from, dlid);

	*at = to;
	if (!to)
		return FABRIC_NOBODY;
	if (class == CLASS_PERF && agents)
		return perf_request(env, to, mad, out);
	if (class == CLASS_SA && to == f->sm &&
	    (agents || method == METHOD_GET_TABLE || method == METHOD_DELETE))
		return sa_request(f, env, port_management(from), mad, out);
	if (to->node->host || to == port_management(from))
		return FABRIC_ELSEWHERE;
	if (class == CLASS_PING && method == METHOD_GET &&
	    to->node->type == FABRIC_CA)
		return ping_request(to, mad, out);
	return FABRIC_NOBODY;
}
