/*
 * cm_reason.c - explains why calls of librdmacm fail and connections are not
 * established (softhca run --explain)
 *
 * Errors of calls are reported by cma_ret(); results of connections here, when
 * the connection manager reports them, since a program may never fetch the event.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "os/config.h"

#include <stdio.h>
#include <string.h>

const char *cma_addr_str(const struct sockaddr *addr, struct cma_text *t)
{
	struct gid_text g;
	union ibv_gid gid;

	if (!addr || !cma_addr_len(addr)) {
		snprintf(t->text, sizeof(t->text), "no address");
	} else {
		cma_addr_gid(addr, &gid);
		snprintf(t->text, sizeof(t->text), "%s port %u",
			 gid_str(&gid, &g), cma_port(addr));
	}
	return t->text;
}

int cma_wrong_state(const struct cma_id *id, const char *needs)
{
	static const char *const states[] = {
		[CMA_IDLE] = "new",
		[CMA_ADDR_BOUND] = "bound to an address",
		[CMA_ADDR_QUERY] = "resolving its address",
		[CMA_ADDR_RESOLVED] = "address resolved",
		[CMA_ROUTE_RESOLVED] = "route resolved",
		[CMA_CONNECT] = "connecting or connected",
		[CMA_DISCONNECT] = "disconnected",
		[CMA_LISTEN] = "listening",
	};

	return why(-EINVAL, "the identifier's state is: %s; %s",
		   states[id->state], needs);
}

int cma_not_connected(const struct cma_id *id)
{
	return id->conn || id->iw ?
		       why(-EINVAL,
			   "the connection is at another step: this was done "
			   "already, or the peer has ended it") :
		       cma_wrong_state(
			       id,
			       "there is no connection and no request for one");
}

const char *cma_rejected_hint(int reason)
{
	switch (reason) {
	case CM_REJ_INVALID_SERVICE_ID:
		return ": no rdma_listen() there on this port";
	case CM_REJ_CONSUMER:
		return ": the program there has called rdma_reject(), or could "
		       "not ready its QP";
	case CM_REJ_INVALID_TRANSPORT_TYPE:
		return ": the listener there is for another type of QP";
	case CM_REJ_TIMEOUT:
		return ": the peer has given up waiting for an answer";
	case CM_REJ_STALE_CONN:
		return ": the peer still has a connection with this QP number";
	default:
		return "";
	}
}

static void explain_rejected(struct cma_id *id, const struct cm_event *ev)
{
	struct cma_text at;
	size_t len = ev->len;
	int reason = ev->status;

	/* The message has room for all of it, and zeros behind. */
	while (len && !ev->data[len - 1])
		len--;
	why(-ECONNREFUSED, "%s %s: reason %d (%s)%s; %zu bytes of private data",
	    id->passive ? "accepted request from" : "connection to",
	    cma_addr_str(&id->id.route.addr.dst_addr, &at), reason,
	    cm_rej_str((unsigned)reason), cma_rejected_hint(reason), len);
	why_report("RDMA_CM_EVENT_REJECTED", -ECONNREFUSED);
}

static void explain_unreachable(struct cma_id *id, const struct cm_event *ev)
{
	static const char *const sidr[] = {
		[CM_SIDR_UNSUPPORTED] = "no listener on that port there",
		[CM_SIDR_REJECTED] =
			"the program there has called rdma_reject()",
		[CM_SIDR_NO_QP] = "the program there has no QP for it",
	};
	struct cma_text at;
	int err = ev->status < 0 ? ev->status : -ECONNREFUSED;

	cma_addr_str(&id->id.route.addr.dst_addr, &at);
	if (ev->status >= 0)
		why(err, "service of %s refused: SIDR status %d (%s)", at.text,
		    ev->status,
		    ev->status < (int)ARRAY_SIZE(sidr) && sidr[ev->status] ?
			    sidr[ev->status] :
			    "for a reason of its own");
	else if (id->passive)
		why(err,
		    "connection accepted for %s, but it has not confirmed "
		    "that: its process has ended or does not fetch its events, "
		    "or packets are lost",
		    at.text);
	else
		why(err,
		    "no answer from %s: no process receives RoCE there, its "
		    "listener does not fetch its events (backlog), or a "
		    "firewall drops UDP 4791; softhca doctor --peer HOST",
		    at.text);
	why_report("RDMA_CM_EVENT_UNREACHABLE", err);
}

void cma_outcome(struct cma_id *id, const struct cm_event *ev)
{
	if (!why_wanted())
		return;
	if (ev->type == CM_EV_REJ)
		explain_rejected(id, ev);
	else if (ev->type == CM_EV_UNREACHABLE ||
		 (ev->type == CM_EV_SIDR_REP && ev->status))
		explain_unreachable(id, ev);
}

void cma_refused(const struct cma_id *listener, const struct cm_event *ev,
		 const char *reason)
{
	struct gid_text peer;

	if (!why_wanted())
		return;
	why(-ECONNREFUSED, "request from %s for port %u not taken: %s",
	    gid_str(&ev->path->dgid, &peer), listener->port, reason);
	why_report("RDMA_CM_EVENT_CONNECT_REQUEST", -ECONNREFUSED);
}
