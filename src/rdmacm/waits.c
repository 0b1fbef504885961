/*
 * waits.c - what the identifiers of this process wait for, in sentences
 *
 * Asked for by "softhca ps", "softhca explain PID" and SIGUSR1 (process/waits.c),
 * with the lock held. An identifier that waits for nothing is left out.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/lines.h"
#include "base/sys.h"

#include <stdio.h>

struct told {
	struct lines *out;
	uint64_t now;
};

static double seconds(const struct told *t, uint64_t since)
{
	return since && t->now > since ? (double)(t->now - since) / 1e9 : 0;
}

static const char *peer_of(const struct cma_id *id, struct cma_text *at)
{
	return cma_addr_str(
		(const struct sockaddr *)&id->id.route.addr.dst_storage, at);
}

static void listens(const struct told *t, const struct cma_id *id)
{
	const struct sockaddr *at =
		(const struct sockaddr *)&id->id.route.addr.src_storage;
	struct cma_text text;
	char more[60];

	cma_addr_str(at, &text);
	if (!id->requests) {
		lines_add(t->out,
			  "listens on %s (rdma_listen), for %.1f s: no request "
			  "has come",
			  text.text, seconds(t, id->since_ns));
		return;
	}
	if (id->waiting)
		snprintf(more, sizeof(more),
			 "%u wait%s for rdma_get_cm_event()", id->waiting,
			 id->waiting > 1 ? "" : "s");
	else
		snprintf(more, sizeof(more), "all have been fetched");
	lines_add(t->out, "listens on %s, requests so far: %u; %s", text.text,
		  id->requests, more);
}

/* A request of ours that nobody has answered. */
static void unanswered(const struct told *t, const struct cma_id *id)
{
	const uint64_t service =
		cma_service_id(id, cma_port(&id->id.route.addr.dst_addr));
	struct key_why why;
	struct cma_text at;
	unsigned sent, most;

	cm_conn_sent(id->conn, &sent, &most);
	lines_add(t->out,
		  "connects to %s, for %.1f s: request %u of %u has no answer: "
		  "%s",
		  peer_of(id, &at), seconds(t, id->since_ns), sent, most,
		  shca_cm_silent(cma_engine(), service, &id->path, &why));
}

/* A request of the peer. */
static void asked(const struct told *t, const struct cma_id *id)
{
	struct cma_text at;

	lines_add(t->out, "a request of %s has waited for %.1f s: %s",
		  peer_of(id, &at), seconds(t, id->since_ns),
		  id->waiting ? "its event waits for rdma_get_cm_event()" :
				"the program has called neither rdma_accept() "
				"nor rdma_reject() for it");
}

static void connection(const struct told *t, const struct cma_id *id)
{
	unsigned sent, most;
	struct cma_text at;

	switch (cm_conn_state(id->conn)) {
	case CM_REQ_SENT:
	case CM_SIDR_REQ_SENT:
		unanswered(t, id);
		break;
	case CM_MRA_REQ_RCVD:
		lines_add(t->out,
			  "connects to %s, for %.1f s: the request is there, "
			  "and the program there has neither accepted nor "
			  "rejected it",
			  peer_of(id, &at), seconds(t, id->since_ns));
		break;
	case CM_REQ_RCVD:
	case CM_MRA_REQ_SENT:
	case CM_SIDR_REQ_RCVD:
		asked(t, id);
		break;
	case CM_REP_SENT:
	case CM_MRA_REP_RCVD:
		cm_conn_sent(id->conn, &sent, &most);
		lines_add(t->out,
			  "has accepted %s, reply %u of %u: the program there "
			  "has not confirmed it: it does not fetch its event "
			  "(rdma_get_cm_event), or packets are lost",
			  peer_of(id, &at), sent, most);
		break;
	case CM_REP_RCVD:
	case CM_MRA_REP_SENT:
		lines_add(t->out, "%s has accepted: %s", peer_of(id, &at),
			  id->waiting ?
				  "the event waits for rdma_get_cm_event(), "
				  "which readies the QP" :
				  "rdma_establish() is to follow");
		break;
	case CM_DREQ_SENT:
		cm_conn_sent(id->conn, &sent, &most);
		lines_add(t->out,
			  "disconnects from %s: request %u of %u has no answer",
			  peer_of(id, &at), sent, most);
		break;
	default:
		break;
	}
}

static void identifier(void *arg, const struct cma_id *id)
{
	const struct told *t = arg;
	char text[200];
	struct cma_text at;

	if (id->state == CMA_LISTEN) {
		listens(t, id);
	} else if (id->rejected < 0) {
		lines_add(t->out, "its connection to %s failed %.1f s ago: %s",
			  peer_of(id, &at), seconds(t, id->since_ns),
			  sys_strerror(-id->rejected));
	} else if (id->rejected) {
		lines_add(
			t->out,
			"its connection to %s was rejected %.1f s ago: reason "
			"%d (%s)%s",
			peer_of(id, &at), seconds(t, id->since_ns),
			id->rejected, cm_rej_str((unsigned)id->rejected),
			cma_rejected_hint(id->rejected));
	} else if (id->await) {
		lines_add(t->out,
			  "resolves %s (rdma_resolve_addr): the next hop has "
			  "not answered ARP or neighbour discovery (ip neigh)",
			  peer_of(id, &at));
	} else if (id->conn) {
		connection(t, id);
	} else if (id->iw && shca_iw_says(id->iw, text, sizeof(text))) {
		if (id->passive)
			asked(t, id);
		else
			lines_add(t->out, "connects to %s, for %.1f s: %s",
				  peer_of(id, &at), seconds(t, id->since_ns),
				  text);
	}
	if (id->waiting && id->state != CMA_LISTEN && !id->passive)
		lines_add(t->out,
			  "%u event%s of the identifier for %s wait%s for "
			  "rdma_get_cm_event()",
			  id->waiting, id->waiting > 1 ? "s" : "",
			  peer_of(id, &at), id->waiting > 1 ? "" : "s");
}

void cma_waits(void *arg, struct lines *out, uint64_t now)
{
	struct told t = { out, now };

	(void)arg;
	cma_ids_each(identifier, &t);
}
