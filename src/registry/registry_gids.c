/*
 * registry_gids.c - the index that a GID has in all processes of a host
 *
 * A port has one table, whoever reads it. So an address that stays keeps its
 * place while others come and go, also for a process that begins later; the
 * first process of a host orders the table. Processes that were told of other
 * interfaces, or of an address to put first, have tables of their own: by key.
 */
#include "registry_internal.h"

#include <string.h>

static bool is_at(const struct gids *t, size_t k, const struct netdev_gid *g)
{
	uint64_t w[2];

	gid_words(&g->gid, w);
	return LOAD(&t->entry[k].ifindex) == g->ifindex &&
	       LOAD(&t->entry[k].gid[0]) == w[0] &&
	       LOAD(&t->entry[k].gid[1]) == w[1];
}

static void entry_set_gid(struct gids *t, size_t k, const struct netdev_gid *g)
{
	uint64_t w[2];

	gid_words(&g->gid, w);
	STORE(&t->entry[k].gid[0], w[0]);
	STORE(&t->entry[k].gid[1], w[1]);
	STORE(&t->entry[k].ifindex, g->ifindex);
}

/* Whether a network namespace has processes beside the one in slot but. Those
 * that are gone may not have been swept. */
static bool is_used(const struct regfile *f, uint32_t net, unsigned but)
{
	for (unsigned i = 0; i < REGISTRY_SLOTS; i++)
		if (i != but && LOAD(&f->m->slot[i].used) &&
		    slot_is_in(f->m, i, net) && regfile_slot_alive(f, i))
			return true;
	return false;
}

/* The table of that key in our network namespace, or one that nobody has any
 * more; REGISTRY_GID_TABLES: none. */
static size_t table_of(const struct registry *r, uint64_t key)
{
	const struct shared *m = r->file->m;
	size_t free = REGISTRY_GID_TABLES;

	for (size_t i = 0; i < REGISTRY_GID_TABLES; i++) {
		const struct gids *t = &m->gids[i];
		const uint32_t net = LOAD(&t->net);

		if (LOAD(&t->key) == key && net == r->net)
			return i;
		if (free == REGISTRY_GID_TABLES &&
		    (!LOAD(&t->key) || !is_used(r->file, net, REGISTRY_SLOTS)))
			free = i;
	}
	return free;
}

static void place_gids(struct gids *t, const struct netdev_table *now,
		       uint8_t index[NETDEV_MAX_GIDS])
{
	bool there[NETDEV_MAX_GIDS] = { false };
	size_t k, next = 0;

	for (size_t i = 0; i < now->count; i++) {
		for (k = 0; k < NETDEV_MAX_GIDS; k++)
			if (!there[k] && is_at(t, k, &now->gid[i]))
				break;
		index[i] = (uint8_t)k;
		if (k < NETDEV_MAX_GIDS)
			there[k] = true;
	}
	for (k = 0; k < NETDEV_MAX_GIDS; k++)
		if (!there[k])
			STORE(&t->entry[k].ifindex, 0);
	for (size_t i = 0; i < now->count; i++) {
		if (index[i] < NETDEV_MAX_GIDS)
			continue;
		while (there[next])
			next++;
		there[next] = true;
		entry_set_gid(t, next, &now->gid[i]);
		index[i] = (uint8_t)next;
	}
}

int registry_gids(struct registry *r, uint64_t key,
		  const struct netdev_table *now,
		  uint8_t index[NETDEV_MAX_GIDS])
{
	struct gids *t;
	size_t i;
	int err = registry_lock(r);

	if (err)
		return err;
	i = table_of(r, key);
	t = &r->file->m->gids[i];
	if (i == REGISTRY_GID_TABLES) {
		err = -ENOSPC;
	} else {
		/* What processes have left that are gone is nobody's. */
		if (LOAD(&t->key) != key || LOAD(&t->net) != r->net ||
		    (!is_used(r->file, r->net, r->slot) &&
		     !(r->ordered >> i & 1)))
			for (size_t k = 0; k < NETDEV_MAX_GIDS; k++)
				STORE(&t->entry[k].ifindex, 0);
		r->ordered |= 1ull << i;
		STORE(&t->net, r->net);
		STORE(&t->key, key);
		place_gids(t, now, index);
	}
	registry_unlock(r);
	return err;
}
