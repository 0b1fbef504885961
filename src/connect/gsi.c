/*
 * gsi.c - the connection manager of this process, and the routing of its
 * messages
 *
 * Processes of this host share an address, and so its QP1. A packet for QP1
 * from the network reaches any one of them, which hands it over to the owner of
 * the service ID that a REQ or SIDR_REQ names (registry_listen()), or of the
 * communication ID that all others name: its middle 12 bits are a chunk of QPNs
 * leased by the owner. A message for a process of this host goes there
 * directly, unless packets are to be seen on the wire. A message without a
 * living owner is answered INVALID_SERVICE_ID by the process that got it, or by
 * its sender if another user has port 4791 of the address.
 *
 * That answer waits a moment. Many programs listen just after their peer has
 * connected (perftest with -R, for one), which goes unnoticed on hardware,
 * where resolving an address and a route takes longer than here.
 *
 * Lock order: the link's receive side > gsi->lock > the link's sending side.
 * bind_lock comes before gsi->lock and the registry's.
 */
#include "gsi.h"

#include "moving.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/say.h"
#include "base/sys.h"
#include "os/proc.h"
#include "transport/record.h"
#include "verbs/ah.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QPN_BITS 0xffffffu
#define QUIESCE_NS 200000000 /* for who sends, or has the lock at exit */
#define QUIESCE_STEP_NS 20000
#define HOLD_NS 60000000 /* a request for which nobody listens, yet */
#define HOLD_STEP_NS 2000000
#define HOLD_MAX 64

#define PEERS_NS 500000000 /* between checks for peers that died, */
#define MISSED_NS 250000000 /* and until one is looked for again */
#define ALIVE_NS 1000000 /* for so long one that was alive is not asked again */

/* A request that waits until a process listens. */
struct held {
	union ibv_gid sgid, dgid;
	uint32_t scope;
	uint8_t tclass;
	uint64_t until;
	uint8_t mad[MAD_LEN];
};

struct gsi {
	struct engine *e;
	struct engine_alarm alarm;
	pthread_mutex_t lock; /* of what follows, and of our users' state */
	struct cm *cm;
	bool sending; /* a thread takes messages out of cm */
	size_t nheld;
	uint64_t held_due; /* when to check them again */
	uint64_t peers_due;
	struct held held[HOLD_MAX];
	const struct shca_cm_user *user; /* NULL: none */
	const struct shca_mad_user *mads; /* NULL: none */

	_Atomic bool told_user; /* of a process that has changed its own */

	/* Not under the lock: messages sent so far, and threads that send one; when
	 * processes were last found alive. */
	_Atomic uint32_t psn;
	_Atomic unsigned senders;
	_Atomic uint64_t alive_ns[REGISTRY_SLOTS];

	pthread_mutex_t bind_lock;
	bool leased;
	uint32_t chunk; /* first QPN; names our communication IDs */
	size_t nbound;
	struct {
		union ibv_gid gid;
		uint32_t ifindex;
	} bound[NETDEV_MAX_GIDS];
};

/* To ask is a system call, and connections come many at a time. What is sent to
 * one that has just died is lost, and repeated. */
static bool is_alive(struct gsi *g, unsigned slot)
{
	_Atomic uint64_t *seen = &g->alive_ns[slot];
	uint64_t now;

	if (slot == registry_slot(g->e->registry))
		return true;
	now = clock_ns();
	if (now - atomic_load_explicit(seen, memory_order_relaxed) < ALIVE_NS)
		return true;
	if (!registry_alive(g->e->registry, slot))
		return false;
	atomic_store_explicit(seen, now, memory_order_relaxed);
	return true;
}

static bool is_request(const uint8_t *mad)
{
	uint16_t attr = get_be16(mad + 16);

	return attr == MAD_CM_REQ || attr == MAD_CM_SIDR_REQ;
}

/* Of another class than the connection manager's, and than what processes tell
 * each other that are suspended. */
static bool is_agents(const uint8_t *p, size_t len)
{
	return p && len == MAD_LEN && p[0] == MAD_BASE_VERSION &&
	       p[1] != MAD_CLASS_CM && !move_is(p, len);
}

/* Its place is QP0, which is not here: who sends it to QP1 would pass for a subnet
 * manager, or for the fabric (IBA 13.5.1). */
static bool is_subnet_management(const uint8_t *p, size_t len)
{
	return is_agents(p, len) &&
	       (p[1] == MAD_CLASS_SUBN_LID || p[1] == MAD_CLASS_SUBN_DIRECTED);
}

/*
 * A process that has changed its user since it came to the registry cannot send
 * to the private ports of those that have not (udp_private.c), and where port
 * 4791 of the address is another user's, not there either.
 */
static bool cannot_answer(struct gsi *g, unsigned slot,
			  const union ibv_gid *from, const union ibv_gid *to)
{
	const struct roce_path path = { .sgid = *from,
					.dgid = *to,
					.sgid_scope = netdev_scope(from) };
	pid_t pid;

	if (slot == registry_slot(g->e->registry) ||
	    !udp_astray(g->e->udp, &path) ||
	    !registry_holder(g->e->registry, slot, &pid) || !pid ||
	    !proc_of_another_user(pid))
		return false;
	if (g->e->cfg->explain && !g->told_user)
		say("process %d of this host has changed its user since it "
		    "opened its device, and cannot answer programs of the "
		    "former one: it must change its user before it opens the "
		    "device",
		    (int)pid);
	g->told_user = true;
	return true;
}

/*
 * Who has a communication ID of gid. -EAGAIN: a process that lives and does not
 * receive there: it is suspended, or about to be, or to be back.
 */
static int owner_of_id(struct registry *r, uint32_t id,
		       const union ibv_gid *gid)
{
	int slot = registry_route(r, id & QPN_BITS, gid, netdev_scope(gid));
	int has;

	if (slot >= 0)
		return slot;
	has = registry_owner(r, id & QPN_BITS);
	if (has < 0 || has == (int)registry_slot(r) ||
	    !registry_alive(r, (unsigned)has))
		return -ENOENT;
	return -EAGAIN;
}

/*
 * The living process of this host that a message to gid is for; -ENOENT: there is
 * none, -EAGAIN: not now, so that the message is lost.
 */
static int owner(struct gsi *g, const uint8_t *p, size_t len,
		 const union ibv_gid *from, const union ibv_gid *gid)
{
	struct registry *r = g->e->registry;
	int slot;
	struct mad m;

	if (r && move_is(p, len)) {
		slot = registry_route(r, move_to(p), gid, netdev_scope(gid));
		return slot >= 0 && is_alive(g, (unsigned)slot) ? slot :
								  -ENOENT;
	}
	if (!r)
		return -ENOENT;
	if (is_agents(p, len)) {
		slot = mad_is_response(p) ?
			       owner_of_id(r, get_be32(p + MAD_TID), gid) :
			       registry_listener(r, mad_service_of(p), gid);
		return slot >= 0 && is_alive(g, (unsigned)slot) ? slot :
								  -ENOENT;
	}
	if (mad_decode(&m, p, len))
		return -ENOENT;
	switch (m.attr_id) {
	case MAD_CM_REQ:
		slot = registry_listener(r, m.req.service_id, gid);
		break;
	case MAD_CM_SIDR_REQ:
		slot = registry_listener(r, m.sidr_req.service_id, gid);
		break;
	case MAD_CM_SIDR_REP:
		slot = owner_of_id(r, m.sidr_rep.request_id, gid);
		break;
	default:
		/* all others have it in the same place */
		slot = owner_of_id(r, m.rtu.remote_comm_id, gid);
	}
	if (slot == -EAGAIN)
		return slot;
	if (slot < 0 || !is_alive(g, (unsigned)slot) ||
	    (is_request(p) && cannot_answer(g, (unsigned)slot, from, gid)))
		return -ENOENT;
	return slot;
}

/* Sends a message from QP1 to QP1; it may be lost. Needs no lock. */
static void send_mad(struct gsi *g, const struct cm_mad *m)
{
	struct roce_hdr h = {
		.opcode = ROCE_UD | ROCE_SEND_ONLY,
		.mig_req = true, /* 17.2.8, as in every packet */
		.pkey = ROCE_PKEY_DEFAULT,
		.dest_qpn = 1,
		.psn = atomic_fetch_add(&g->psn, 1) & 0xffffff,
		.qkey = MAD_QP1_QKEY,
		.src_qpn = 1,
	};
	struct roce_batch b;
	int slot = -ENOENT, err = 0;

	if (!g->e->cfg->wire && netdev_is_local(&m->path.dgid))
		slot = owner(g, m->mad, MAD_LEN, &m->path.sgid, &m->path.dgid);
	if (slot < 0 && udp_astray(g->e->udp, &m->path))
		slot = (int)registry_slot(g->e->registry);
	b.n = 1;
	b.data.n = b.data.nkeys = 0;
	qp_piece_add(&b.data, (void *)(uintptr_t)m->mad, MAD_LEN, true);
	b.pkt[0] = (struct roce_pkt){
		.h = h,
		.path = &m->path,
		.hash = 1,
		.niov = 1,
		.payload = MAD_LEN,
		.to_slot = slot < 0 ? 0 : (uint16_t)(slot + 1),
	};
	if (tracing() && m->mad[1] == MAD_CLASS_CM)
		shca_record_mad(TRACE_CM_OUT, m->mad, MAD_LEN);
	atomic_fetch_add(&g->senders, 1);
	engine_send(g->e, NULL, &b, &err);
	atomic_fetch_sub(&g->senders, 1);
	if (err && g->e->cfg->explain)
		say("cannot send a message of the connection manager: %s",
		    sys_strerror(err));
}

void gsi_send(struct engine *e, const struct roce_path *path,
	      const uint8_t mad[MAD_LEN])
{
	struct cm_mad m = { .path = *path };
	struct gsi *g = to_process(e)->gsi;

	memcpy(m.mad, mad, MAD_LEN);
	send_mad(g, &m);
}

static bool take_mad(struct gsi *g, struct cm_mad *m)
{
	return cm_tx(g->cm, m) ||
	       (g->mads && g->mads->tx(g->mads->arg, clock_ns(), m));
}

/*
 * With the lock, which is let go while a message leaves: the peer, once it has
 * it, may get this processor before sendmsg(2) returns, and answer; then our
 * threads would all wait for the lock. Messages keep their order.
 */
static void send_mads(struct gsi *g)
{
	struct cm_mad m;

	g->sending = true;
	atomic_fetch_add(&g->senders, 1);
	while (take_mad(g, &m)) {
		pthread_mutex_unlock(&g->lock);
		send_mad(g, &m);
		pthread_mutex_lock(&g->lock);
	}
	atomic_fetch_sub(&g->senders, 1);
	g->sending = false;
}

/* With the lock: sends, or leaves it to a thread that is at it, and sets the
 * alarm. */
static void flush(struct gsi *g)
{
	uint64_t due;

	if (!g->sending || !cm_room(g->cm))
		send_mads(g);
	due = cm_deadline(g->cm);
	if (g->mads)
		due = min_u64(due, g->mads->deadline(g->mads->arg));
	if (g->nheld)
		due = min_u64(due, g->held_due);
	if (g->e->registry && cm_stats(g->cm).conns)
		due = min_u64(due, g->peers_due);
	if (g->user)
		due = min_u64(due, g->user->deadline(g->user->arg));
	engine_alarm_set(g->e, &g->alarm, due);
}

/* Peers on this host that end without a message, for example by kill -9. */

struct census {
	struct gsi *g;
	uint8_t alive[REGISTRY_SLOTS]; /* 0: not asked; 1: no; 2: yes */
};

static int place(void *arg, uint32_t remote_id, const union ibv_gid *peer)
{
	struct gsi *g = arg;

	if (!g->e->registry)
		return -1;
	return registry_route(g->e->registry, remote_id & QPN_BITS, peer,
			      netdev_scope(peer));
}

static bool gone(void *arg, int slot, uint32_t remote_id)
{
	struct census *c = arg;
	struct registry *r = c->g->e->registry;

	if (registry_owner(r, remote_id & QPN_BITS) != slot)
		return true;
	if (!c->alive[slot])
		c->alive[slot] = registry_alive(r, (unsigned)slot) ? 2 : 1;
	return c->alive[slot] == 1;
}

static void check_peers(struct gsi *g, uint64_t now)
{
	struct census c = { .g = g };

	g->peers_due = now + (cm_peers_check(g->cm, gone, &c, now) ? MISSED_NS :
								     PEERS_NS);
}

static bool hold(struct gsi *g, const struct roce_rx *pkt, uint64_t now)
{
	struct held *h = &g->held[g->nheld];

	if (g->nheld == HOLD_MAX || pkt->len != MAD_LEN ||
	    !is_request(pkt->payload) ||
	    cm_knows(g->cm, &pkt->sgid, &pkt->dgid, pkt->payload, pkt->len))
		return false;
	/*
	 * One that is repeated meanwhile is the same request: if it outlived
	 * the rejection of the first, a listener could get it afterwards.
	 */
	for (size_t i = 0; i < g->nheld; i++)
		if (gid_equal(&g->held[i].sgid, &pkt->sgid) &&
		    gid_equal(&g->held[i].dgid, &pkt->dgid) &&
		    !memcmp(g->held[i].mad, pkt->payload, MAD_LEN))
			return true;
	*h = (struct held){
		.sgid = pkt->sgid,
		.dgid = pkt->dgid,
		.scope = netdev_scope(&pkt->dgid),
		.tclass = pkt->tclass,
		.until = now + HOLD_NS,
	};
	memcpy(h->mad, pkt->payload, MAD_LEN);
	if (!g->nheld++)
		g->held_due = now + HOLD_STEP_NS;
	return true;
}

static void hand_over(struct gsi *g, const struct held *h, unsigned slot)
{
	uint8_t p[ROCE_HDR_MAX + MAD_LEN];
	const struct roce_hdr hdr = {
		.opcode = ROCE_UD | ROCE_SEND_ONLY,
		.mig_req = true, /* 17.2.8, as in every packet */
		.pkey = ROCE_PKEY_DEFAULT,
		.dest_qpn = 1,
		.qkey = MAD_QP1_QKEY,
		.src_qpn = 1,
	};
	size_t len = roce_encode(&hdr, p);

	memcpy(p + len, h->mad, MAD_LEN);
	udp_handover(g->e->udp, slot, &h->sgid, &h->dgid, h->tclass, p,
		     len + MAD_LEN);
}

/* Checks whether a process listens by now to what is held. */
static void look_again(struct gsi *g, uint64_t now)
{
	size_t n = 0;

	for (size_t i = 0; i < g->nheld; i++) {
		struct held *h = &g->held[i];
		int slot = owner(g, h->mad, MAD_LEN, &h->sgid, &h->dgid);

		if (slot >= 0 && slot != (int)registry_slot(g->e->registry))
			hand_over(g, h, (unsigned)slot);
		else if (now >= h->until ||
			 cm_knows(g->cm, &h->sgid, &h->dgid, h->mad, MAD_LEN))
			cm_rx(g->cm, &h->sgid, &h->dgid, h->scope, h->mad,
			      MAD_LEN, now);
		else
			g->held[n++] = *h;
	}
	g->nheld = n;
	g->held_due = now + HOLD_STEP_NS;
}

/*
 * One for an agent. What nobody takes is answered as the kernel does it, so that
 * its sender need not wait; a response is never answered.
 */
static void agents_rx(struct gsi *g, const struct roce_rx *pkt, uint64_t now)
{
	const struct shca_mad_rx rx = { .from = &pkt->sgid,
					.to = &pkt->dgid,
					.scope = netdev_scope(&pkt->dgid),
					.tclass = pkt->tclass,
					.mad = pkt->payload,
					.now_ns = now };
	struct cm_mad m = { .path = { .sgid = pkt->dgid,
				      .dgid = pkt->sgid,
				      .sgid_scope = rx.scope } };

	if ((g->mads && g->mads->rx(g->mads->arg, &rx)) ||
	    (rx.mad[MAD_METHOD] != MAD_METHOD_GET &&
	     rx.mad[MAD_METHOD] != MAD_METHOD_SET))
		return;
	shca_path_place(&m.path);
	memcpy(m.mad, rx.mad, MAD_LEN);
	m.mad[MAD_METHOD] = MAD_METHOD_GET_RESP;
	put_be16(m.mad + MAD_STATUS, MAD_STATUS_NOT_SUPPORTED);
	send_mad(g, &m);
}

void gsi_rx(struct engine *e, const struct roce_rx *pkt, uint64_t now)
{
	struct gsi *g = to_process(e)->gsi;
	int slot;

	if (pkt->h.opcode != (ROCE_UD | ROCE_SEND_ONLY)) {
		engine_dropped(e, ROCE_DROP_OPCODE);
		return;
	}
	if (pkt->h.qkey != MAD_QP1_QKEY) {
		engine_dropped(e, ROCE_DROP_QKEY);
		return;
	}
	if (is_subnet_management(pkt->payload, pkt->len)) {
		engine_dropped(e, ROCE_DROP_OPCODE);
		return;
	}
	slot = owner(g, pkt->payload, pkt->len, &pkt->sgid, &pkt->dgid);
	if (slot == -EAGAIN)
		return; /* its sender repeats it */
	if (slot >= 0 && slot != (int)registry_slot(e->registry)) {
		udp_forward(e->udp, (unsigned)slot);
		return;
	}
	if (move_is(pkt->payload, pkt->len)) {
		moving_rx(e, pkt, now);
		return;
	}
	if (tracing() && pkt->payload)
		shca_record_mad(TRACE_CM_IN, pkt->payload, pkt->len);
	pthread_mutex_lock(&g->lock);
	if (is_agents(pkt->payload, pkt->len))
		agents_rx(g, pkt, now);
	else if (!hold(g, pkt, now))
		cm_rx(g->cm, &pkt->sgid, &pkt->dgid, netdev_scope(&pkt->dgid),
		      pkt->payload, pkt->len, now);
	flush(g);
	pthread_mutex_unlock(&g->lock);
}

/* Not, and 0, if the process was suspended since: it may have got another chunk for
 * this one. */
static int ids_lease(struct registry *r, struct gsi *g)
{
	const int chunk = registry_lease(r);

	if (chunk < 0)
		return chunk;
	pthread_mutex_lock(&g->lock);
	g->leased = registry_owner(r, (uint32_t)chunk) == (int)registry_slot(r);
	if (g->leased)
		g->chunk = (uint32_t)chunk;
	pthread_mutex_unlock(&g->lock);
	return 0;
}

/* Starts the thread, and gets numbers that messages find us by. */
static int begin(struct engine *e)
{
	struct gsi *g = to_process(e)->gsi;
	int err = engine_start(e);

	if (err)
		return err;
	/* Who only listens may be asked what it waits for, too. */
	to_process(e)->ops->begin(e);
	pthread_mutex_lock(&g->bind_lock);
	while (e->registry && !g->leased && !err)
		err = ids_lease(e->registry, g);
	pthread_mutex_unlock(&g->bind_lock);
	return err;
}

int shca_mad_open(struct engine *e, const struct shca_mad_user *user)
{
	struct gsi *g = to_process(e)->gsi;
	int err = begin(e);

	if (err)
		return err;
	pthread_mutex_lock(&g->lock);
	g->mads = user;
	pthread_mutex_unlock(&g->lock);
	return 0;
}

uint32_t shca_mad_tid(struct engine *e)
{
	return to_process(e)->gsi->chunk;
}

void shca_mad_kick(struct engine *e)
{
	struct gsi *g = to_process(e)->gsi;

	pthread_mutex_lock(&g->lock);
	flush(g);
	pthread_mutex_unlock(&g->lock);
}

/* A packet for QP1 did not arrive; on the link's receive side. */
static void unreachable(void *arg, const union ibv_gid *dgid,
			const uint8_t *packet, size_t len)
{
	struct gsi *g = arg;
	struct roce_hdr h;
	int hdr = roce_decode(&h, packet, len);

	if (hdr < 0 || h.opcode != (ROCE_UD | ROCE_SEND_ONLY))
		return;
	pthread_mutex_lock(&g->lock);
	cm_unreachable(g->cm, dgid, packet + hdr, len - (size_t)hdr,
		       clock_ns());
	flush(g);
	pthread_mutex_unlock(&g->lock);
}

static void gsi_expire(struct engine *e, uint64_t now)
{
	struct gsi *g = to_process(e)->gsi;

	pthread_mutex_lock(&g->lock);
	cm_expire(g->cm, now);
	if (g->nheld && now >= g->held_due)
		look_again(g, now);
	if (g->e->registry && now >= g->peers_due)
		check_peers(g, now);
	if (g->user)
		g->user->expire(g->user->arg, now);
	flush(g);
	pthread_mutex_unlock(&g->lock);
}

void gsi_netdevs_changed(struct engine *e)
{
	struct gsi *g = to_process(e)->gsi;

	pthread_mutex_lock(&g->lock);
	if (g->user)
		g->user->changed(g->user->arg);
	pthread_mutex_unlock(&g->lock);
}

void gsi_readdress(struct engine *e, const union ibv_gid *from,
		   const union ibv_gid *to, uint32_t ifindex)
{
	struct gsi *g = to_process(e)->gsi;

	pthread_mutex_lock(&g->bind_lock);
	for (size_t i = 0; i < g->nbound; i++) {
		if (memcmp(&g->bound[i].gid, from, sizeof(*from)))
			continue;
		g->bound[i].gid = *to;
		g->bound[i].ifindex = ifindex;
	}
	pthread_mutex_unlock(&g->bind_lock);
	pthread_mutex_lock(&g->lock);
	cm_readdress(g->cm, from, to, ifindex);
	pthread_mutex_unlock(&g->lock);
}

void gsi_peer_moved(struct engine *e, uint32_t qpn, const union ibv_gid *from,
		    const struct cm_moved *to)
{
	struct gsi *g = to_process(e)->gsi;

	pthread_mutex_lock(&g->lock);
	cm_peer_moved(g->cm, qpn, from, to);
	pthread_mutex_unlock(&g->lock);
}

bool gsi_ids(struct engine *e, uint32_t *first, size_t *conns)
{
	struct gsi *g = to_process(e)->gsi;
	bool leased;

	/* Who has bind_lock may wait until this process is no longer suspended. */
	pthread_mutex_lock(&g->lock);
	leased = g->leased;
	*first = g->chunk;
	*conns = cm_stats(g->cm).conns;
	pthread_mutex_unlock(&g->lock);
	return leased;
}

void gsi_renumber(struct engine *e, uint32_t to)
{
	struct gsi *g = to_process(e)->gsi;

	pthread_mutex_lock(&g->bind_lock);
	pthread_mutex_lock(&g->lock);
	g->chunk = to;
	cm_renumber(g->cm, to);
	pthread_mutex_unlock(&g->lock);
	pthread_mutex_unlock(&g->bind_lock);
}

void gsi_qp_gone(struct engine *e, struct shca_qp *qp)
{
	struct ibv_qp *ib = &qp->ex.qp_base;
	struct gsi *g = to_process(e)->gsi;
	void *owner;

	pthread_mutex_lock(&g->lock);
	owner = shca_cm_qp_owner(ib);
	if (owner && g->user)
		g->user->qp_gone(g->user->arg, owner, ib);
	pthread_mutex_unlock(&g->lock);
}

static int on_event(void *arg, const struct cm_event *ev)
{
	struct gsi *g = arg;

	/* Without a user there are neither listeners nor connections. */
	return g->user ? g->user->event(g->user->arg, ev) : 0;
}

void gsi_waits(struct engine *e, struct lines *out, uint64_t now)
{
	struct gsi *g = to_process(e)->gsi;

	pthread_mutex_lock(&g->lock);
	if (g->user)
		g->user->waits(g->user->arg, out, now);
	pthread_mutex_unlock(&g->lock);
}

bool gsi_is_channel(struct engine *e, int fd)
{
	struct gsi *g = to_process(e)->gsi;
	bool is;

	pthread_mutex_lock(&g->lock);
	is = g->user && g->user->is_channel(g->user->arg, fd);
	pthread_mutex_unlock(&g->lock);
	return is;
}

const char *shca_cm_silent(struct engine *e, uint64_t service_id,
			   const struct roce_path *path, struct key_why *why)
{
	const struct registry *r = e->registry;
	const int slot = r && netdev_is_local(&path->dgid) ?
				 registry_listener(r, service_id, &path->dgid) :
				 -ENOENT;
	pid_t pid = 0;
	char state;

	if (slot < 0 || !registry_holder(r, (unsigned)slot, &pid) || !pid)
		return "no process receives RoCE there, its listener does not "
		       "fetch its events (backlog), or a firewall drops UDP "
		       "4791; softhca doctor --peer HOST";
	state = proc_state(pid, pid);
	snprintf(why->text, sizeof(why->text), "%s %d %s", "process", (int)pid,
		 state == 'T' || state == 't' ?
			 "listens there, and is stopped, by a signal or a "
			 "debugger" :
			 "listens there, and does not fetch its events "
			 "(backlog), or gets no processor");
	return why->text;
}

int gsi_init(struct engine *e)
{
	struct cm_config cfg = { .max_retries = e->cfg->cm_retries,
				 .event = on_event,
				 .place = place };
	struct gsi *g = calloc(1, sizeof(*g));
	int err;

	if (!g)
		return -ENOMEM;
	cfg.arg = g;
	g->e = e;
	if (!sys_random(&cfg.seed, sizeof(cfg.seed)))
		cfg.seed = clock_ns();
	err = cm_create(&g->cm, &cfg);
	if (err) {
		free(g);
		return err;
	}
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->bind_lock, NULL);
	engine_alarm_add(e, &g->alarm, gsi_expire);
	to_process(e)->gsi = g;
	udp_on_unreachable(e->udp, unreachable, g);
	return 0;
}

bool gsi_quiesce(struct engine *e)
{
	struct gsi *g = to_process(e)->gsi;
	const uint64_t until = sys_now_ns() + QUIESCE_NS;

	while (atomic_load(&g->senders) && sys_now_ns() < until)
		sys_sleep(QUIESCE_STEP_NS);
	return !atomic_load(&g->senders);
}

/* Tells each peer once; g->lock is held. */
static void say_goodbye(struct gsi *g)
{
	bool more;

	do {
		more = cm_farewell(g->cm, clock_ns());
		send_mads(g);
	} while (more);
}

void gsi_farewell(struct engine *e)
{
	struct gsi *g = to_process(e)->gsi;
	struct timespec until;

	if (!g)
		return;
	/* A thread that exit() has stopped may hold it for good, or send. */
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += QUIESCE_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	if (pthread_mutex_timedlock(&g->lock, &until))
		return;
	g->user = NULL;
	g->mads = NULL;
	say_goodbye(g);
	pthread_mutex_unlock(&g->lock);
	gsi_quiesce(e);
}

void gsi_fini(struct engine *e)
{
	struct shca_process *proc = to_process(e);
	struct gsi *g = proc->gsi;

	if (!g)
		return;
	g->user = NULL;
	g->mads = NULL;
	udp_on_unreachable(e->udp, NULL, NULL);
	pthread_mutex_lock(&g->lock);
	say_goodbye(g);
	pthread_mutex_unlock(&g->lock);
	for (size_t i = 0; i < g->nbound; i++)
		udp_unbind(e->udp, &g->bound[i].gid, g->bound[i].ifindex);
	if (g->leased)
		registry_release(e->registry, g->chunk);
	cm_destroy(g->cm);
	free(g);
	proc->gsi = NULL;
}

int shca_cm_open(struct engine *e, uint64_t ca_guid,
		 const struct shca_cm_user *user)
{
	struct gsi *g = to_process(e)->gsi;
	uint32_t base = 0, mask = UINT32_MAX;
	int err = begin(e);

	if (err)
		return err;
	pthread_mutex_lock(&g->bind_lock);
	if (g->leased) {
		base = g->chunk;
		mask = ~(QPN_BITS & ~(REGISTRY_CHUNK - 1u));
	}
	pthread_mutex_lock(&g->lock);
	cm_configure(g->cm, ca_guid, base, mask);
	g->user = user;
	pthread_mutex_unlock(&g->lock);
	pthread_mutex_unlock(&g->bind_lock);
	return 0;
}

struct cm *shca_cm_lock(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	pthread_mutex_lock(&proc->gsi->lock);
	return proc->gsi->cm;
}

void shca_cm_unlock(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	flush(proc->gsi);
	pthread_mutex_unlock(&proc->gsi->lock);
}

/* Errors of addresses that belong to others are not reported. */
static int bind_with(struct engine *e, const union ibv_gid *gid,
		     uint32_t ifindex, bool ours)
{
	return ours ? engine_bind(e, gid, ifindex) :
		      udp_bind(e->udp, gid, ifindex);
}

static int bind_for_good(struct engine *e, const union ibv_gid *gid,
			 uint32_t ifindex, bool ours)
{
	struct gsi *g = to_process(e)->gsi;
	int err = 0;

	/*
	 * Never unbound: late messages of closed connections are answered, and
	 * the next connection finds it bound.
	 */
	pthread_mutex_lock(&g->bind_lock);
	for (size_t i = 0; i < g->nbound; i++) {
		if (memcmp(&g->bound[i].gid, gid, sizeof(*gid)) ||
		    g->bound[i].ifindex != ifindex)
			continue;
		/* Whoever had the port may be gone by now. */
		if (udp_taken(e->udp, gid, ifindex) &&
		    !bind_with(e, gid, ifindex, ours))
			udp_unbind(e->udp, gid, ifindex);
		goto out;
	}
	if (g->nbound == NETDEV_MAX_GIDS) {
		/* Addresses come and go: the oldest is probably gone. */
		udp_unbind(e->udp, &g->bound[0].gid, g->bound[0].ifindex);
		memmove(&g->bound[0], &g->bound[1],
			--g->nbound * sizeof(g->bound[0]));
	}
	err = bind_with(e, gid, ifindex, ours);
	if (err)
		goto out;
	g->bound[g->nbound].gid = *gid;
	g->bound[g->nbound++].ifindex = ifindex;
out:
	pthread_mutex_unlock(&g->bind_lock);
	return err;
}

int shca_cm_bind(struct engine *e, const union ibv_gid *gid, uint32_t ifindex)
{
	return bind_for_good(e, gid, ifindex, true);
}

int shca_cm_bind_peer(struct engine *e, const union ibv_gid *gid,
		      uint32_t ifindex)
{
	return bind_for_good(e, gid, ifindex, false);
}

int shca_cm_bind_path(struct engine *e, const struct roce_path *path)
{
	int err = shca_cm_bind(e, &path->sgid, path->sgid_scope);

	if (!err && udp_taken(e->udp, &path->sgid, path->sgid_scope) &&
	    !netdev_is_local_on(&path->dgid, path->sgid_scope))
		err = -EADDRINUSE;
	return err;
}

static_assert(CM_LISTEN_V4 == REGISTRY_IPV4 && CM_LISTEN_V6 == REGISTRY_IPV6,
	      "the same families");

int shca_cm_reserve(struct engine *e, uint64_t service_id,
		    const union ibv_gid *gid, unsigned families)
{
	static const union ibv_gid any;

	if (!e->registry)
		return 0;
	return registry_listen(e->registry, service_id, gid ? gid : &any,
			       families);
}

void shca_cm_release(struct engine *e, uint64_t service_id,
		     const union ibv_gid *gid, unsigned families)
{
	static const union ibv_gid any;

	if (e->registry)
		registry_unlisten(e->registry, service_id, gid ? gid : &any,
				  families);
}
