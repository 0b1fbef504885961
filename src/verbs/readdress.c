/*
 * readdress.c - which address came in the place of which
 */
#include "readdress.h"

#include "verbs.h"

#include "base/gid.h"

#include <string.h>

struct search {
	struct shca_moved *moved;
	struct netdev_table now;
	bool taken[NETDEV_MAX_GIDS];
};

/* What a device knows of an address that it had; NULL: none had it. */
static const struct netdev_gid *known(struct engine *e,
				      const union ibv_gid *gid, uint32_t scope)
{
	struct shca_process *p = to_process(e);

	for (struct shca_context *c = p->contexts.first; c; c = c->next)
		for (size_t i = 0; i < c->dev->gids.count; i++) {
			const struct netdev_gid *g = &c->dev->gids.gid[i];

			if (g->ifindex && gid_equal(&g->gid, gid) &&
			    (!scope || g->ifindex == scope))
				return g;
		}
	return NULL;
}

static bool same_kind(const union ibv_gid *a, const union ibv_gid *b)
{
	return roce_gid_is_v4(a) == roce_gid_is_v4(b) &&
	       gid_is_link_local(a) == gid_is_link_local(b);
}

static bool may_be(struct engine *e, const struct search *s, size_t i,
		   const union ibv_gid *gid)
{
	const struct netdev_gid *g = &s->now.gid[i];

	return !s->taken[i] && !g->loopback && same_kind(&g->gid, gid) &&
	       !known(e, &g->gid, g->ifindex);
}

/* The place in the table, or its length. */
static size_t successor(struct engine *e, const struct search *s,
			const union ibv_gid *gid, const struct netdev_gid *was)
{
	size_t i;

	for (i = 0; was && i < s->now.count; i++)
		if (may_be(e, s, i, gid) &&
		    !strcmp(s->now.gid[i].ifname, was->ifname))
			return i;
	for (i = 0; i < s->now.count; i++)
		if (may_be(e, s, i, gid))
			break;
	return i;
}

static int replace(struct engine *e, struct search *s, const union ibv_gid *gid,
		   uint32_t scope)
{
	const struct netdev_gid *was = known(e, gid, scope);
	struct shca_moved *m = s->moved;
	size_t i;

	if (m->n == NETDEV_MAX_GIDS)
		return -ENOSPC;
	i = successor(e, s, gid, was);
	if (i == s->now.count)
		return -EADDRNOTAVAIL;
	s->taken[i] = true;
	m->news[m->nnews++] = s->now.gid[i];
	m->at[m->n].from = *gid;
	m->at[m->n].ifindex = scope;
	m->at[m->n++].to = s->now.gid[i];
	return 0;
}

/* It is here, but perhaps not where it was. */
static void compare(struct engine *e, struct search *s,
		    const union ibv_gid *gid, uint32_t scope)
{
	const struct netdev_gid *was = known(e, gid, scope);
	struct shca_moved *m = s->moved;

	for (size_t i = 0; was && i < s->now.count; i++) {
		const struct netdev_gid *is = &s->now.gid[i];

		if (gid_equal(&is->gid, gid) &&
		    (!scope || is->ifindex == scope) &&
		    memcmp(is->mac, was->mac, sizeof(is->mac)) &&
		    m->nnews < NETDEV_MAX_GIDS)
			m->news[m->nnews++] = *is;
	}
}

int shca_moved_find(const struct shca_moved *moved, const union ibv_gid *gid,
		    uint32_t ifindex)
{
	for (size_t i = 0; i < moved->n; i++)
		if (gid_equal(&moved->at[i].from, gid) &&
		    (!moved->at[i].ifindex || moved->at[i].ifindex == ifindex))
			return (int)i;
	return -1;
}

/* It keeps its index. */
static void rename_gids(struct shca_device *dev, const struct shca_moved *m)
{
	pthread_mutex_lock(&dev->lock);
	for (size_t i = 0; i < dev->gids.count; i++) {
		struct netdev_gid *g = &dev->gids.gid[i];
		const int k = g->ifindex ?
				      shca_moved_find(m, &g->gid, g->ifindex) :
				      -1;

		if (k >= 0)
			*g = m->at[k].to;
	}
	pthread_mutex_unlock(&dev->lock);
}

int shca_readdress(struct engine *e, struct shca_moved *moved)
{
	struct shca_process *p = to_process(e);
	struct search s = { .moved = moved };
	struct udp_address at[NETDEV_MAX_GIDS];
	const size_t n = udp_addresses(e->udp, at, NETDEV_MAX_GIDS);
	int err;

	moved->n = moved->nnews = 0;
	err = netdev_scan(&s.now, NULL, NULL);
	if (err)
		return err;
	pthread_mutex_lock(&p->contexts.lock);
	for (size_t i = 0; i < n && !err; i++)
		if (at[i].gone)
			err = replace(e, &s, &at[i].gid, at[i].scope);
		else
			compare(e, &s, &at[i].gid, at[i].scope);
	if (err)
		moved->n = moved->nnews = 0;
	for (struct shca_context *c = p->contexts.first; c; c = c->next)
		rename_gids(c->dev, moved);
	pthread_mutex_unlock(&p->contexts.lock);
	for (size_t i = 0; i < moved->n; i++)
		udp_readdress(e->udp, &moved->at[i].from, moved->at[i].ifindex,
			      &moved->at[i].to.gid, moved->at[i].to.ifindex);
	return err;
}
