/*
 * way.c - which link leads to a destination
 */
#include "link.h"

#include "udp_internal.h"

void link_way_forget(struct link_way *w)
{
	if (w->peer)
		link_now(w->link)->forget(w);
	w->peer = NULL;
	w->known = false;
}

static bool same_addresses(const struct link_way *w, const struct roce_path *p)
{
	return w->v1 == p->v1 && gid_equal(&w->dgid, &p->dgid) &&
	       gid_equal(&w->sgid, &p->sgid);
}

static bool leads_to(const struct link_way *w, const struct roce_pkt *p)
{
	return w->qpn == p->h.dest_qpn && !p->to_slot &&
	       (w->path == p->path || same_addresses(w, p->path));
}

static bool reaches(struct link *l, struct link_way *w,
		    const struct roce_pkt *p)
{
	const struct link_ops *ops = link_now(l);

	return ops->reach && ops->reach(l, w, p);
}

static void way_find(struct link *const link[], unsigned n, struct link_way *w,
		     const struct roce_pkt *p)
{
	struct link *l;

	link_way_forget(w);
	w->known = !p->to_slot;
	/* A datagram's stand where another one's will. */
	w->path = (p->h.opcode & 0xe0) == ROCE_UD ? NULL : p->path;
	w->copy = false;
	w->qpn = p->h.dest_qpn;
	w->sgid = p->path->sgid;
	w->dgid = p->path->dgid;
	w->v1 = p->path->v1;
	do
		l = link[--n];
	while (n && !reaches(l, w, p));
	w->link = l;
}

size_t link_route(struct link *const link[], unsigned n, struct link_way *w,
		  const struct roce_batch *b, size_t from)
{
	size_t i = from;

	if (!w->known || !leads_to(w, &b->pkt[i]) ||
	    (w->peer && !link_now(w->link)->current(w)))
		way_find(link, n, w, &b->pkt[i]);
	if (b->pkt[i].to_slot)
		return 1;
	for (i++; i < b->n; i++)
		if (b->pkt[i].path != b->pkt[i - 1].path &&
		    !leads_to(w, &b->pkt[i]))
			break;
	return i - from;
}
