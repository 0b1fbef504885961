/*
 * registry_service.c - service IDs that processes of this host listen on
 */
#include "registry_internal.h"

static bool gid_is_any(const uint64_t w[2])
{
	return !w[0] && !w[1];
}

/* Whether a listener at w, for these families, leaves no room for another. */
static bool service_conflicts(const struct service *s, const uint64_t w[2],
			      unsigned families)
{
	const uint64_t g[2] = { LOAD(&s->gid[0]), LOAD(&s->gid[1]) };

	if (!(LOAD(&s->families) & families))
		return false;
	return gid_is_any(g) || gid_is_any(w) || (g[0] == w[0] && g[1] == w[1]);
}

int registry_service_add(struct regfile *f, unsigned slot, uint64_t service_id,
			 const uint64_t w[2], unsigned families)
{
	const uint32_t net = LOAD(&f->m->slot[slot].net);
	struct service *free_row = NULL;

	for (size_t i = 0; i < REGISTRY_SERVICES; i++) {
		struct service *s = &f->m->service[i];

		if (!LOAD(&s->owner))
			free_row = s;
		else if (LOAD(&s->id) == service_id && LOAD(&s->net) == net &&
			 service_conflicts(s, w, families))
			return -EADDRINUSE;
	}
	if (!free_row)
		return -ENOSPC;
	STORE(&free_row->id, service_id);
	STORE(&free_row->gid[0], w[0]);
	STORE(&free_row->gid[1], w[1]);
	STORE(&free_row->families, families);
	STORE(&free_row->net, net);
	STORE(&free_row->owner, slot + 1);
	return 0;
}

int registry_listen(struct registry *r, uint64_t service_id,
		    const union ibv_gid *gid, unsigned families)
{
	uint64_t w[2];
	int err;

	gid_words(gid, w);
	err = registry_lock(r);
	if (err)
		return err;
	registry_sweep(r->file);
	err = registry_service_add(r->file, r->slot, service_id, w, families);
	registry_unlock(r);
	return err;
}

/* One at w that stands for one of the families. */
static struct service *find_service(const struct registry *r,
				    uint64_t service_id, const uint64_t w[2],
				    unsigned families)
{
	const struct shared *m = r->file->m;

	for (size_t i = 0; i < REGISTRY_SERVICES; i++) {
		const struct service *s = &m->service[i];

		if (LOAD(&s->owner) && LOAD(&s->id) == service_id &&
		    LOAD(&s->net) == r->net && LOAD(&s->families) & families &&
		    LOAD(&s->gid[0]) == w[0] && LOAD(&s->gid[1]) == w[1])
			return (struct service *)s;
	}
	return NULL;
}

void registry_unlisten(struct registry *r, uint64_t service_id,
		       const union ibv_gid *gid, unsigned families)
{
	struct service *s;
	uint64_t w[2];

	gid_words(gid, w);
	if (registry_lock(r))
		return;
	s = find_service(r, service_id, w, families);
	if (s && LOAD(&s->owner) == r->slot + 1)
		STORE(&s->owner, 0);
	registry_unlock(r);
}

int registry_listener(const struct registry *r, uint64_t service_id,
		      const union ibv_gid *gid)
{
	static const uint64_t any[2];
	const struct service *s;
	unsigned owner, family;
	uint64_t w[2];

	gid_words(gid, w);
	family = !w[0] && w[1] >> 32 == 0xffff ? REGISTRY_IPV4 : REGISTRY_IPV6;
	s = find_service(r, service_id, w, family);
	if (!s)
		s = find_service(r, service_id, any, family);
	owner = s ? LOAD(&s->owner) : 0;
	return owner && owner <= REGISTRY_SLOTS ? (int)owner - 1 : -ENOENT;
}

void registry_service_clear(struct regfile *f, unsigned slot)
{
	for (size_t i = 0; i < REGISTRY_SERVICES; i++)
		if (LOAD(&f->m->service[i].owner) == slot + 1)
			STORE(&f->m->service[i].owner, 0);
}
