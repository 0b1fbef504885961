/*
 * connected.c - which way a queue pair's packets go, for --explain
 *
 * The links find the way when there is something to send (link/shm.h), and the
 * peer may not be ready before. Here it is looked for when the QP is connected:
 * the number of the destination says which process has it.
 */
#include "process.h"

#include "host/config.h"
#include "host/segment.h"

#include <stdio.h>

#define THROUGH "shared memory, payload copied through it"

static const char *way_to(struct segment *s, struct segment_peer *peer)
{
	uint32_t flags = segment_head(s)->flags;

	if ((flags | peer->flags) & SEGMENT_PLAIN)
		return THROUGH ": packets are recorded (--pcap)";
	if (flags & SEGMENT_NO_COPY)
		return THROUGH ": --same-host=copy";
	if (peer->flags & SEGMENT_NO_COPY)
		return THROUGH ": --same-host=copy at the peer";
	if (!segment_can_copy(peer))
		return THROUGH ": the system does not allow to copy from and "
			       "to the peer's memory; softhca doctor says why";
	return "shared memory, and copies from and to the peer's memory";
}

void shca_connected_explain(struct shca_qp *qp)
{
	struct engine *e = qp->sched.engine;
	struct segment *s = to_process(e)->segment;
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	struct segment_peer *peer = NULL;
	const char *way;
	int slot = -1;

	if (qp->core->type == IBV_QPT_UD || !path)
		return;
	if (path->local && e->registry)
		slot = registry_owner(e->registry,
				      roce_qp_dest(roce_qp(qp->core)));
	if (s && slot >= 0)
		peer = segment_peer_get(s, (unsigned)slot);
	if (peer)
		way = way_to(s, peer);
	else if (slot >= 0 && !e->cfg->wire &&
		 registry_port(e->registry, (unsigned)slot))
		way = "a private UDP port of this host";
	else
		way = "UDP port 4791";
	engine_explain(qp->core, "connected by %s", way);
	segment_peer_put(peer);
}
