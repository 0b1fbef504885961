/*
 * peer_explain.c - what is known of the other end of a queue pair, in words
 * (--explain)
 *
 * Which way its packets go: the links find that when there is something to send
 * (link/shm.h), and the peer may not be ready before. Here it is looked for when
 * the QP is connected: the number of the destination says which process has it.
 *
 * Processes of one host see each other's queue pairs and keys
 * (link/exported_keys.h), so why one says nothing, or refuses, can be said at
 * this end as well. Of another host there is only what has come from it.
 */
#include "shared.h"

#include "base/gid.h"
#include "link/exported_keys.h"
#include "os/config.h"
#include "os/proc.h"
#include "qp/names.h"
#include "registry/registry.h"
#include "segment/segment.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define WAITS_LONG_NS 200000000 /* else it just sends */

/* The process that has the QP, of this user and host: its slot, or -ENOENT. */
static int slot_of_peer(const struct shca_qp *qp)
{
	const struct engine *e = qp->sched.engine;
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	const uint32_t dest = roce_qp_dest(roce_qp(qp->core));

	if (!e->registry || !path || !roce_path_in_host(path))
		return -ENOENT;
	return path->net ? registry_route_in(e->registry, path->net, dest,
					     &path->dgid) :
			   registry_owner(e->registry, dest);
}

/* What it shows, with a reference to be put; NULL: nothing. */
static struct segment_peer *segment_of_peer(const struct shca_qp *qp, int slot)
{
	struct segment *s = to_process(qp->sched.engine)->segment;

	return s && slot >= 0 ? segment_peer_get(s, (unsigned)slot) : NULL;
}

#define THROUGH "shared memory, payload copied through it"

static const char *way_to(struct segment *s, struct segment_peer *peer)
{
	uint32_t flags = segment_head(s)->flags;

	if ((flags | peer->flags) & SEGMENT_PLAIN)
		return THROUGH ": packets are recorded (--pcap)";
	if (flags & SEGMENT_NO_COPY)
		return check_on() ? THROUGH ": --check" :
				    THROUGH ": --same-host=copy";
	if (peer->flags & SEGMENT_NO_COPY)
		return THROUGH ": --same-host=copy, or --check, at the peer";
	if (!segment_can_copy(peer) && peer->pid <= 0)
		return THROUGH ": the peer is in another PID namespace";
	if (!segment_can_copy(peer))
		return THROUGH ": the system does not permit copies from and "
			       "to the peer's memory; softhca doctor shows why";
	return "shared memory, and copies from and to the peer's memory";
}

#define CONTAINER "; the peer is in another network namespace of this host"

/* What is said of a peer that has another network namespace: how far that is
 * known. */
static const char *of_other_net(const struct shca_qp *qp,
				const struct roce_path *path)
{
	const struct engine *e = qp->sched.engine;

	if (path->net)
		return CONTAINER;
	if (path->local || !e->registry ||
	    !registry_is_elsewhere(e->registry, roce_qp_dest(roce_qp(qp->core)),
				   &path->dgid))
		return "";
	return CONTAINER ", but the address was not proved to lead there: "
			 "another network may have it, too, or something on "
			 "the way drops UDP port 4791";
}

void shca_connected_explain(struct shca_qp *qp)
{
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	const struct engine *e = qp->sched.engine;
	struct segment_peer *peer;
	const char *way = NULL;
	int slot;

	if (qp->core->type == IBV_QPT_UD || !path)
		return;
	slot = slot_of_peer(qp);
	peer = segment_of_peer(qp, slot);
	if (peer)
		way = way_to(to_process(qp->sched.engine)->segment, peer);
	else if (slot >= 0 && path->local && !e->cfg->wire &&
		 registry_port(e->registry, (unsigned)slot))
		way = "a private UDP port of this host";
	if (!peer && path->v1)
		way = path->local ? "RoCE v1, by the loopback interface" :
				    "RoCE v1, frames of Ethernet type 0x8915";
	else if (!way)
		way = "UDP port 4791";
	engine_explain(qp->core, "connected by %s%s", way,
		       of_other_net(qp, path));
	segment_peer_put(peer);
}

/* The QP there; NULL: it shows none. */
static const struct qp_public *qp_of(const struct shca_qp *qp,
				     struct segment_peer *peer)
{
	const uint32_t dest = roce_qp_dest(roce_qp(qp->core));
	const struct qp_public *pub = exported_qp(peer, dest);

	return pub && qp_public_get(&pub->qpn) == dest ? pub : NULL;
}

/* What is wrong with the QP there. */
enum wrong { NOTHING, NOT_READY, OTHER_QP, OTHER_ADDRESS, OTHER_PSN };

static enum wrong qp_there(const struct shca_qp *qp, struct segment_peer *peer,
			   struct key_why *why)
{
	const struct qp *core = qp->core;
	const struct qp_public *pub = qp_of(qp, peer);
	const struct roce_path *path = roce_qp_path(roce_qp(qp->core));
	const size_t size = sizeof(why->text);
	struct gid_text at[2];
	uint32_t state, type, back, psn;

	if (!pub || qp_public_get(&pub->state) == IBV_QPS_RESET) {
		snprintf(why->text, size,
			 "its process has no such QP, or it is in state RESET: "
			 "it was destroyed, or dest_qp_num here is wrong");
		return NOT_READY;
	}
	state = qp_public_get(&pub->state);
	type = qp_public_get(&pub->type);
	back = qp_public_get(&pub->dest_qpn);
	psn = qp_public_get(&pub->rq_psn);
	if (state < IBV_QPS_RTR || state > IBV_QPS_SQE) {
		snprintf(why->text, size, "the QP there is in state %s%s",
			 qp_state_str(state),
			 state < IBV_QPS_RTR ?
				 ": it must be in RTR before this end sends" :
				 "");
		return NOT_READY;
	}
	if (type != core->type && !qp->xrc && core->type != IBV_QPT_XRC_SEND) {
		snprintf(why->text, size,
			 "the QP there is of type %s, and this one %s",
			 qp_type_str(type), qp_type_str(core->type));
		return OTHER_QP;
	}
	if (back != core->wire_qpn) {
		snprintf(why->text, size,
			 "the QP there is connected to QP 0x%06x, not to this "
			 "one: dest_qp_num at one of the ends is wrong",
			 back);
		return OTHER_QP;
	}
	if ((type == IBV_QPT_RC || type == IBV_QPT_UC) &&
	    qp_public_get(&pub->path_hash) != roce_path_there(path)) {
		snprintf(why->text, size,
			 "the QP there is connected to another address than "
			 "%s, or not from %s%s: dgid or sgid_index at one of "
			 "the ends is wrong",
			 gid_str(&path->sgid, &at[0]),
			 gid_str(&path->dgid, &at[1]),
			 path->v1 ? ", or by RoCE v2" : "");
		return OTHER_ADDRESS;
	}
	if (psn == core->attr.sq_psn ||
	    (qp_public_get(&pub->established) &&
	     !roce_qp_unanswered(roce_qp(qp->core))))
		return NOTHING;
	snprintf(why->text, size,
		 "the QP there has rq_psn 0x%06x, and this one sq_psn 0x%06x: "
		 "they must be the same",
		 psn, core->attr.sq_psn);
	return OTHER_PSN;
}

/* Of this host. */
static void why_local(const struct shca_qp *qp, int slot, struct key_why *why)
{
	const struct registry *r = qp->sched.engine->registry;
	const size_t size = sizeof(why->text);
	struct segment_peer *peer;
	pid_t pid = 0;
	char state;

	if (slot < 0 || !registry_holder(r, (unsigned)slot, &pid)) {
		snprintf(why->text, size,
			 "no process of this user and host has that QP: it has "
			 "ended, or dest_qp_num here is wrong");
		return;
	}
	state = pid ? proc_state(pid, pid) : 0;
	if (state == 'T' || state == 't') {
		snprintf(why->text, size,
			 "its process %d is stopped, by a signal or a debugger",
			 (int)pid);
		return;
	}
	peer = segment_of_peer(qp, slot);
	if (!peer || qp_there(qp, peer, why) == NOTHING)
		snprintf(why->text, size,
			 "its process %d lives: its QP is not (yet) in RTR or "
			 "not there, packets are lost, or it gets no processor",
			 (int)pid);
	segment_peer_put(peer);
}

const char *shca_env_silent(struct qp *core, struct key_why *why)
{
	const struct shca_qp *qp = core->owner;
	const struct config *cfg = qp->sched.engine->cfg;
	const struct roce_path *path = roce_qp_path(roce_qp(core));
	size_t len;

	if (roce_path_in_host(path))
		why_local(qp, slot_of_peer(qp), why);
	else if (roce_qp_stats(roce_qp(core))->rx_pkts)
		snprintf(why->text, sizeof(why->text),
			 "it has answered before: its process has ended or is "
			 "stopped, its QP is in the error state, or packets do "
			 "not get through any more; to check the path: softhca "
			 "doctor --peer");
	else if (path->v1)
		snprintf(
			why->text, sizeof(why->text),
			"nothing has ever come from it: its QP is not in RTR, "
			"its sgid_index is not RoCE v1, the GID or dest_qp_num "
			"here is wrong, or a switch on the way drops frames "
			"of Ethernet type 0x8915");
	else
		snprintf(why->text, sizeof(why->text),
			 "nothing has ever come from it: its QP is not in RTR, "
			 "the GID or dest_qp_num here is wrong, or something "
			 "on the way drops UDP port 4791 (a firewall); to "
			 "check the path: softhca doctor --peer");
	len = strlen(why->text);
	if (cfg->loss > 0)
		snprintf(why->text + len, sizeof(why->text) - len,
			 "; %g %% of the packets are lost on purpose (--loss)",
			 cfg->loss * 100);
	return why->text;
}

void shca_env_unanswered(struct qp *core, const char *expects)
{
	const struct shca_qp *qp = core->owner;
	struct segment_peer *peer = segment_of_peer(qp, slot_of_peer(qp));
	enum wrong wrong = expects ? OTHER_PSN : NOTHING;
	struct key_why why;
	char text[600];

	if (peer) {
		wrong = qp_there(qp, peer, &why);
		expects = why.text;
	}
	segment_peer_put(peer);
	if (wrong != OTHER_PSN && wrong != OTHER_QP)
		return;
	snprintf(text, sizeof(text),
		 "nothing that it sends to QP 0x%06x is ever answered: %s",
		 roce_qp_dest(roce_qp(core)), expects);
	check_ops->disagrees(wrong == OTHER_PSN ? CHECK_PAIR_PSN :
						  CHECK_PAIR_QP,
			     core->qpn, text);
}

void shca_remote_report(struct shca_qp *qp, struct check_peer *out)
{
	const struct registry *r = qp->sched.engine->registry;
	const int slot = slot_of_peer(qp);
	struct segment_peer *peer = segment_of_peer(qp, slot);
	const struct qp_public *pub = peer ? qp_of(qp, peer) : NULL;
	pid_t pid = 0;

	if (slot >= 0)
		registry_holder(r, (unsigned)slot, &pid);
	*out = (struct check_peer){
		.qpn = roce_qp_dest(roce_qp(qp->core)),
		.pid = (int)pid,
	};
	if (pub && qp_public_get(&pub->dest_qpn) == qp->core->wire_qpn)
		out->posted = atomic_load(&pub->posted_ns);
	segment_peer_put(peer);
}

/* One more half sentence. */
__attribute__((format(printf, 3, 4))) static void more(char *text, size_t size,
						       const char *fmt, ...)
{
	const size_t len = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	if (len < size) {
		snprintf(text + len, size - len, "%s", len ? "; " : "");
		vsnprintf(text + strlen(text), size - strlen(text), fmt, ap);
	}
	va_end(ap);
}

static double seconds(uint64_t now, uint64_t since)
{
	return now > since ? (double)(now - since) / 1e9 : 0;
}

/* Of completions, if there are any that wait. */
static void unpolled_text(const struct shca_cq *cq, const char *which,
			  char *text, size_t size)
{
	const uint32_t n =
		atomic_load_explicit(&cq->tail, memory_order_relaxed) -
		atomic_load_explicit(&cq->head, memory_order_relaxed);

	if (n && n <= cq->depth)
		more(text, size, "its %sCQ holds %u completion%s not polled%s",
		     which, n, n > 1 ? "s" : "",
		     atomic_load_explicit(&cq->armed, memory_order_relaxed) ==
				     SHCA_UNARMED ?
			     "" :
			     ", although an event was requested: after "
			     "ibv_req_notify_cq() poll once more");
}

/* "3 of 7 retries used", if any; 7 RNR retries never end. */
static const char *retry_text(uint32_t used, uint32_t of, char text[40])
{
	text[0] = '\0';
	if (used)
		snprintf(text, 40, ", retry %u of %u", used, of);
	return text;
}

/* Work requests behind those that are on their way. */
static void behind(const struct qp *core, const struct roce_waits *w,
		   char *text, size_t size)
{
	const uint32_t n = core->sq.tail - core->sq.nxt;

	if (n && w->window && w->unacked >= w->window)
		more(text, size,
		     "%u work request%s wait%s for the congestion window, "
		     "which losses have narrowed to %u packet%s",
		     n, n > 1 ? "s" : "", n > 1 ? "" : "s", w->window,
		     w->window > 1 ? "s" : "");
}

/* That of a requester. */
static void waits_for_peer(struct shca_qp *qp, uint64_t now, char *text,
			   size_t size)
{
	struct qp *core = qp->core;
	struct roce_waits w;
	struct key_why why;
	char retry[40];

	roce_qp_waits(roce_qp(core), &w);
	if (w.rnr_since_ns)
		more(text, size,
		     "waits for the peer to post a receive, for %.1f s (%u RNR "
		     "NAKs%s%s)",
		     seconds(now, w.rnr_since_ns), w.rnr_naks,
		     core->attr.rnr_retry == 7 ?
			     "; rnr_retry=7 waits indefinitely" :
			     "",
		     core->attr.rnr_retry == 7 ?
			     "" :
			     retry_text(w.rnr_naks, core->attr.rnr_retry,
					retry));
	else if (w.unacked && now > w.since_ns + WAITS_LONG_NS)
		more(text, size,
		     "waits for an ACK of %u packet%s, for %.1f s%s: %s",
		     w.unacked, w.unacked > 1 ? "s" : "",
		     seconds(now, w.since_ns),
		     core->attr.timeout ?
			     retry_text(w.retries, core->attr.retry_cnt,
					retry) :
			     " (timeout=0 waits indefinitely)",
		     shca_env_silent(core, &why));
	else if (w.unacked)
		more(text, size, "sends, %u packet%s on the way", w.unacked,
		     w.unacked > 1 ? "s" : "");
	else if (core->sq.head != core->sq.tail)
		more(text, size, "has %u work requests to send",
		     core->sq.tail - core->sq.head);
	behind(core, &w, text, size);
}

void shca_idle_says(const struct qp *core, char *text, size_t size)
{
	const struct shca_cq *cq = core->send_cq;
	const uint32_t n =
		core->state == IBV_QPS_RTS ? qp_sq_unsignaled(core) : 0;

	/* The cause first: what waits for that completion is not idle. */
	if (n && cq &&
	    atomic_load_explicit(&cq->tail, memory_order_relaxed) ==
		    atomic_load_explicit(&cq->head, memory_order_relaxed))
		more(text, size,
		     "its last %u work request%s %s done, and no completion "
		     "will come: posted without IBV_SEND_SIGNALED (and "
		     "sq_sig_all is 0)",
		     n, n > 1 ? "s" : "", n > 1 ? "are" : "is");
	if (!text[0] && core->srq)
		more(text, size,
		     "is idle: waits for the program to post or the peer to "
		     "send (its receives are those of its SRQ)");
	else if (!text[0])
		more(text, size,
		     "is idle: waits for the program to post or the peer to "
		     "send (%u receives posted)",
		     qp_rq_count(&core->rq));
}

void shca_qp_waits(struct shca_qp *qp, uint64_t now, char *text, size_t size)
{
	const struct qp *core = qp->core;
	const struct roce_qp_stats *s = roce_qp_stats(roce_qp(qp->core));

	text[0] = 0;
	if (core->state == IBV_QPS_ERR || core->state == IBV_QPS_SQE)
		more(text, size,
		     "is in the error state: the first completion with an "
		     "error, or --explain, shows why");
	else if (core->state < IBV_QPS_RTR)
		more(text, size, "is in state %s: messages to it are dropped",
		     qp_state_str((unsigned)core->state));
	else
		waits_for_peer(qp, now, text, size);
	if (core->state >= IBV_QPS_RTR && core->state != IBV_QPS_ERR &&
	    !core->srq && s->no_recv && !qp_rq_count(&core->rq))
		more(text, size,
		     "has no receive posted, and messages have found none %llu "
		     "times",
		     (unsigned long long)s->no_recv);
	if (core->send_cq)
		unpolled_text(core->send_cq,
			      core->send_cq == core->recv_cq ? "" : "send ",
			      text, size);
	if (core->recv_cq && core->recv_cq != core->send_cq)
		unpolled_text(core->recv_cq, "receive ", text, size);
	shca_idle_says(core, text, size);
}

/* key_look_fn of another process's keys. */
struct keys_there {
	struct segment_peer *peer;
	struct keys_view view;
};

static bool look_there(void *arg, uint32_t key, struct key_facts *f)
{
	struct keys_there *t = arg;
	struct key_shown e;
	uint32_t hint = 0, slot = keys_find(&t->view, key, &hint);

	if (!exported_keys_ready(t->peer, &t->view, slot) ||
	    !keys_shows(&t->view, slot, key) ||
	    !keys_peek(&t->view, slot,
		       atomic_load_explicit(&t->view.entry[slot].rkey,
					    memory_order_relaxed),
		       &e))
		return false;
	*f = (struct key_facts){
		.lkey = e.lkey,
		.rkey = e.rkey,
		.access = e.access,
		.pd = e.pd,
		.qpn = e.qpn,
		.kind = e.kind,
		.iova = e.iova,
		.length = e.length,
	};
	return true;
}

static const char *refused_there(const struct shca_qp *qp,
				 struct segment_peer *peer,
				 const struct key_ask *asked,
				 struct key_why *why)
{
	struct keys_there there = { .peer = peer };
	const struct qp_public *pub = qp_of(qp, peer);
	struct key_ask ask = *asked;

	if (!pub || !exported_keys_view(peer, &there.view))
		return NULL;
	ask.pd = qp_public_get(&pub->pd);
	ask.qpn = qp_public_get(&pub->named);
	return key_refused(look_there, &there, &ask, why);
}

const char *shca_env_refusal(struct qp *core, const struct key_ask *ask,
			     struct key_why *why)
{
	const struct shca_qp *qp = core->owner;
	const struct engine *e = qp->sched.engine;
	const struct roce_path *path = roce_qp_path(roce_qp(core));
	struct segment_peer *peer;
	const char *text;

	/* What it has said itself, if it says anything. */
	if (e->registry && path && roce_path_in_host(path) &&
	    registry_noted(e->registry, roce_qp_dest(roce_qp(core)),
			   core->wire_qpn, why->text))
		return why->text;
	if (!ask)
		return NULL;
	peer = segment_of_peer(qp, slot_of_peer(qp));
	text = peer ? refused_there(qp, peer, ask, why) : NULL;
	segment_peer_put(peer);
	return text;
}
