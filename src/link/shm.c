/*
 * shm.c - the link over shared memory: its beginning and end, and its peers
 *
 * A peer is a process of this host that this one sends to or that sends here,
 * made when the first packet goes or comes and then found through its segment
 * (segment_peer.link). Its segment may be mapped as long as somebody has a
 * reference: each way that leads there, and the receive side, which lets go
 * when the process is gone. Which packets go to which peer: way_reach().
 */
#include "shm_internal.h"

#include "udp_internal.h"

#include "os/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- peers ------------------------------------------------------------- */

/* The segment of a process that is gone is about to be unmapped. */
static void on_detach(struct segment_peer *seg)
{
	free(seg->link);
	seg->link = NULL;
}

/* seg->lock is held. NULL: its ring is not to be used. */
static struct shm_peer *peer_make(struct shm *s, struct segment_peer *seg)
{
	struct shm_peer *p = aligned_alloc(64, sizeof(*p));

	if (!p)
		return NULL;
	memset(p, 0, sizeof(*p));
	p->seg = seg;
	p->shm = s;
	p->plain = s->plain || seg->flags & SEGMENT_PLAIN;
	if (ring_out_attach(&p->out, seg->ring,
			    shm_generation(s->head->generation))) {
		free(p);
		return NULL;
	}
	segment_peer_hold(seg); /* the receive side's */
	p->next = atomic_load(&s->arrivals);
	while (!atomic_compare_exchange_weak(&s->arrivals, &p->next, p))
		;
	seg->link = p;
	return p;
}

struct shm_peer *shm_peer_get(struct shm *s, unsigned slot)
{
	struct segment_peer *seg = segment_peer_get(s->segment, slot);
	struct shm_peer *p;

	if (!seg)
		return NULL;
	lock_take(&seg->lock);
	p = seg->link ? seg->link : peer_make(s, seg);
	lock_drop(&seg->lock);
	if (!p)
		segment_peer_put(seg);
	return p;
}

/* ---- ways -------------------------------------------------------------- */

static void way_forget(struct link_way *w)
{
	segment_peer_put(shm_peer_of(w)->seg);
}

static bool is_current(const struct link_way *w)
{
	return shm_is_usable(shm_peer_of(w));
}

/* The slot of the process that a packet is for, if it may go there by a ring. */
static int packet_slot(struct shm *s, const struct roce_pkt *p)
{
	const struct roce_path *path = p->path;
	uint32_t qpn = p->h.dest_qpn;

	if (atomic_load(&s->off))
		return -ENOENT;
	if (!roce_path_in_host(path) || p->to_slot || qpn <= 1 ||
	    qpn == ROCE_MULTICAST_QPN || roce_gid_is_multicast(&path->dgid))
		return -1;
	/* A responder that is lent to another process gets what comes for it
	 * by UDP, and answers must not overtake what gives it back. */
	if ((p->h.opcode & 0xe0) == ROCE_XRC)
		return -1;
	/* A datagram has the header that it has come with. */
	if (path->v1 && (p->h.opcode & 0xe0) == ROCE_UD)
		return -1;
	if (path->net)
		return registry_route_in(s->registry, path->net, qpn,
					 &path->dgid);
	return registry_route(s->registry, qpn, &path->dgid,
			      udp_scope(&path->dgid, path->sgid_scope));
}

static bool way_reach(struct link *l, struct link_way *w,
		      const struct roce_pkt *pkt)
{
	struct shm *s = to_shm(l);
	int slot = packet_slot(s, pkt);
	struct shm_peer *p;

	if (slot == -ENOENT)
		w->known = false; /* it does not receive there yet */
	if (slot < 0)
		return false;
	p = shm_peer_get(s, (unsigned)slot);
	if (p && !shm_is_usable(p)) {
		segment_peer_put(p->seg);
		p = NULL;
	}
	if (!p)
		return false;
	w->peer = &p->base;
	w->hash = roce_path_there(pkt->path);
	w->back = roce_path_back(pkt->path);
	return true;
}

static void way_limits(const struct link_way *w, struct roce_batch *b)
{
	if (shm_peer_of(w)->plain)
		return;
	b->max_copy = SHM_MAX_PIECE;
	b->max_payload = shm_can_ref(w) ? SHM_MAX_PAYLOAD : SHM_MAX_PIECE;
}

/*
 * Whether something of a process lies in our ring of it; nobody knows while a
 * poll goes on. If what lies in its ring, or in ours, has been there for long,
 * which is also so where somebody has scribbled, that is looked into.
 */
static bool has_unread(struct shm *s, struct shm_peer *p, bool long_ago)
{
	bool is;

	if (!lock_try(&s->rx_lock))
		return true;
	is = s->in[p->seg->slot] && ring_ready(&s->in[p->seg->slot]->ring);
	if (long_ago) {
		shm_doubt(s, p);
		if (is)
			segment_poke_own(s->segment);
	}
	lock_drop(&s->rx_lock);
	return is;
}

static bool way_unread(struct link *l, struct link_way *w, uint64_t mark[2])
{
	const uint64_t now = clock_ns();
	struct shm *s = to_shm(l);
	struct shm_peer *p = shm_peer_of(w);
	const bool first = !(mark[0] & LINK_MARK);
	const bool long_ago = !first && now - mark[1] > SHM_DOUBT_NS;

	if (first)
		mark[0] = LINK_MARK | ring_mark(&p->out);
	if (first || long_ago)
		mark[1] = now;
	if (has_unread(s, p, long_ago))
		return true;
	/* Nor is what it has taken, and left to a thread that has no CPU. */
	if ((!ring_mark_taken(&p->out, (uint32_t)mark[0]) ||
	     segment_is_behind(p->seg->head)) &&
	    segment_peer_alive(p->seg, now))
		return true;
	mark[0] = mark[1] = 0;
	return false;
}

/* ---- the link ---------------------------------------------------------- */

static void shm_wait(struct link *l)
{
	struct shm *s = to_shm(l);

	lock_take(&s->rx_lock);
	lock_drop(&s->rx_lock);
}

static int shm_fd(struct link *l)
{
	return segment_wake_fd(to_shm(l)->segment);
}

static bool shm_ready(struct link *l)
{
	struct shm *s = to_shm(l);
	bool pending;

	if (!lock_try(&s->rx_lock))
		return false;
	pending = shm_rx_pending(s);
	lock_drop(&s->rx_lock);
	return pending;
}

/* Whoever publishes something either sees that we sleep, or we see that. */
static bool shm_sleep(struct link *l)
{
	struct shm *s = to_shm(l);
	bool pending;

	segment_sleeps(s->segment);
	/* Somebody else receives: it has perhaps looked before. */
	if (!lock_try(&s->rx_lock))
		return false;
	pending = shm_rx_pending(s);
	lock_drop(&s->rx_lock);
	return !pending;
}

static void shm_wake(struct link *l, bool called)
{
	segment_wakes(to_shm(l)->segment, called);
}

static void shm_destroy(struct link *l)
{
	shm_rx_fini(to_shm(l));
	free(to_shm(l));
}

/* Whether all that was sent to processes that live has been taken there. */
static bool all_taken(struct shm *s, uint64_t now)
{
	for (struct shm_peer *p = s->peers; p; p = p->next)
		if (ring_unread(&p->out) && !ring_out_broken(&p->out) &&
		    segment_peer_alive(p->seg, now))
			return false;
	return true;
}

static bool shm_drained(struct link *l)
{
	struct shm *s = to_shm(l);
	bool is;

	atomic_store(&l->room, false); /* LINK_IS_BACK says so */
	lock_take(&s->rx_lock);
	is = !shm_rx_pending(s) && all_taken(s, clock_ns());
	lock_drop(&s->rx_lock);
	return is;
}

static void forget_peers(struct shm *s)
{
	shm_rx_fini(s);
	memset(s->in, 0, sizeof(s->in));
	memset(s->order, 0, sizeof(s->order));
	memset(s->seen, 0, sizeof(s->seen));
	s->nin = s->turn = 0;
}

static void link_suspend(struct link *l, enum link_suspend step)
{
	struct shm *s = to_shm(l);

	switch (step) {
	case LINK_STOPS:
		atomic_store(&s->off, true);
		break;
	case LINK_RESTS:
		break; /* nothing comes */
	case LINK_LEAVES:
		lock_take(&s->rx_lock);
		forget_peers(s);
		break;
	case LINK_IS_GONE:
		lock_drop(&s->rx_lock);
		break;
	case LINK_IS_BACK:
		atomic_store(&s->off, false);
		/* Those that have found none are flushed. */
		atomic_store(&l->room, true);
		break;
	}
}

static const struct link_ops ops = {
	.poll = shm_poll,
	.wait = shm_wait,
	.fd = shm_fd,
	.ready = shm_ready,
	.sleep = shm_sleep,
	.wake = shm_wake,
	.reach = way_reach,
	.current = is_current,
	.forget = way_forget,
	.send = shm_send,
	.send_small = shm_send_small,
	.limits = way_limits,
	.unread = way_unread,
	.destroy = shm_destroy,
	.suspend = link_suspend,
	.drained = shm_drained,
	/* Abandoned, its locks are in any state, and others' memory is not the
	 * child's. */
};

int shm_create(struct link **out, const struct shm_config *cfg,
	       struct segment *segment)
{
	struct shm *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->link.ops = &ops;
	s->cfg = *cfg;
	loss_init(&s->loss, cfg->loss, cfg->seed ? cfg->seed : clock_ns());
	s->link.lossless = !s->loss.some;
	s->segment = segment;
	s->head = segment_head(segment);
	s->registry = segment_registry(segment);
	s->plain = s->head->flags & SEGMENT_PLAIN;
	shm_rx_blank(s);
	segment_on_detach(segment, on_detach);
	*out = &s->link;
	return 0;
}
