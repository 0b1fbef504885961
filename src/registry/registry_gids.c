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

static void put_gid(struct gids *t, size_t k, const struct netdev_gid *g)
{
	uint64_t w[2];

	gid_words(&g->gid, w);
	STORE(&t->entry[k].gid[0], w[0]);
	STORE(&t->entry[k].gid[1], w[1]);
	STORE(&t->entry[k].ifindex, g->ifindex);
}

/* The table of that key, or one that nobody has; REGISTRY_GID_TABLES: none. */
static size_t table_of(struct shared *m, uint64_t key)
{
	size_t free = REGISTRY_GID_TABLES;

	for (size_t i = 0; i < REGISTRY_GID_TABLES; i++) {
		if (LOAD(&m->gids[i].key) == key)
			return i;
		if (!LOAD(&m->gids[i].key) && free == REGISTRY_GID_TABLES)
			free = i;
	}
	return free;
}

static bool is_alone(const struct registry *r)
{
	for (unsigned i = 0; i < REGISTRY_SLOTS; i++)
		if (i != r->slot && LOAD(&r->file->m->slot[i].used))
			return false;
	return true;
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
		put_gid(t, next, &now->gid[i]);
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
	registry_sweep(r->file);
	i = table_of(r->file->m, key);
	t = &r->file->m->gids[i];
	if (i == REGISTRY_GID_TABLES) {
		err = -ENOSPC;
	} else {
		/* What processes have left that are gone is nobody's. */
		if (LOAD(&t->key) != key ||
		    (is_alone(r) && !(r->ordered >> i & 1)))
			for (size_t k = 0; k < NETDEV_MAX_GIDS; k++)
				STORE(&t->entry[k].ifindex, 0);
		r->ordered |= 1u << i;
		STORE(&t->key, key);
		place_gids(t, now, index);
	}
	registry_unlock(r);
	return err;
}
