/*
 * registry_away.c - a process that is suspended (src/migrate)
 *
 * It gives back its slot, and with it all that the registry knows of it. What it
 * needs to be the same again stays with it: its chunks, and the service IDs that
 * it listens on. Meanwhile it finds nobody in its registry, and who wants to
 * change anything there waits.
 */
#include "registry_internal.h"

#include "base/lock.h"
#include "base/sys.h"

#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

struct registry_kept {
	bool seated;
	int seat; /* our own descriptor of it */
	uint32_t generation; /* of the slot then */
	uint64_t chunk[REGISTRY_CHUNKS / 64];
	size_t nservices;
	struct {
		uint64_t id, gid[2];
		uint32_t families;
	} service[REGISTRY_SERVICES];
};

/* What r's slot has. */
static void keep(const struct registry *r, struct registry_kept *k)
{
	const struct shared *m = r->file->m;

	for (size_t i = 0; i < REGISTRY_CHUNKS; i++)
		if (LOAD(&m->chunk[i]) == r->slot + 1)
			k->chunk[i / 64] |= 1ull << (i % 64);
	for (size_t i = 0; i < REGISTRY_SERVICES; i++) {
		const struct service *s = &m->service[i];

		if (LOAD(&s->owner) != r->slot + 1)
			continue;
		k->service[k->nservices].id = LOAD(&s->id);
		k->service[k->nservices].gid[0] = LOAD(&s->gid[0]);
		k->service[k->nservices].gid[1] = LOAD(&s->gid[1]);
		k->service[k->nservices++].families = LOAD(&s->families);
	}
}

/* The slot is kept by whoever has *seat. */
static int sit(struct registry *r, struct registry_kept *k, int *seat)
{
	struct regfile *f = r->file;
	const int fd = regfile_seat(f, r->slot);

	if (fd < 0)
		return fd;
	registry_slot_empty(f, r->slot);
	k->generation = LOAD(&f->m->slot[r->slot].generation);
	k->seated = true;
	k->seat = *seat = fd;
	STORE(&f->m->slot[r->slot].used, SLOT_SEAT);
	return 0;
}

int registry_away(struct registry *r, int *seat)
{
	struct registry_kept *k = calloc(1, sizeof(*k));
	void *blank = regfile_blank();
	struct regfile *f = r->file;
	int err = -ENOMEM;

	pthread_mutex_lock(&registry_mutex);
	if (!k || !blank)
		goto err_unlock;
	err = -EBUSY;
	if (f->users != r || r->next)
		goto err_unlock;
	err = regfile_lock(f);
	if (err)
		goto err_unlock;
	keep(r, k);
	err = seat ? sit(r, k, seat) : 0;
	if (err) {
		regfile_unlock(f);
		goto err_unlock;
	}
	if (!seat)
		registry_slot_clear(f, r->slot);
	regfile_slot_drop(f, r->slot);
	registry_remove_unused(f);
	regfile_close(f, blank); /* and with it the lock */
	r->kept = k;
	r->ordered = 0;
	atomic_store(&r->away, 1);
	pthread_mutex_unlock(&registry_mutex);
	return 0;

err_unlock:
	pthread_mutex_unlock(&registry_mutex);
	regfile_blank_free(blank);
	free(k);
	return err;
}

/* Takes chunk c, or notes that it has to be another one. */
static int claim(struct registry *r, uint32_t c, struct registry_other *other)
{
	struct shared *m = r->file->m;
	const uint32_t first = c * REGISTRY_CHUNK;

	if (!LOAD(&m->chunk[c])) {
		STORE(&m->chunk[c], (uint16_t)(r->slot + 1));
		return 0;
	}
	if (other->n == REGISTRY_OTHERS || !other->may(other->arg, first))
		return regfile_fail(-EADDRINUSE,
				    "another process of this user and host has "
				    "the queue pair numbers from 0x%06x on",
				    first);
	other->chunk[other->n++].from = first;
	return 0;
}

/* All that may stay is ours by now, so that none of it is given out here. */
static int replace(struct registry *r, struct registry_other *other)
{
	for (size_t i = 0; i < other->n; i++) {
		const int first = registry_chunk_take(r);

		if (first < 0)
			return regfile_fail(first,
					    "there is no room in %s for other "
					    "queue pair numbers",
					    r->file->path);
		other->chunk[i].to = (uint32_t)first;
	}
	return 0;
}

static int claim_all(struct registry *r, const struct registry_kept *k,
		     struct registry_other *other)
{
	int err = 0;

	for (uint32_t c = 0; c < REGISTRY_CHUNKS && !err; c++)
		if (k->chunk[c / 64] >> (c % 64) & 1)
			err = claim(r, c, other);
	if (!err)
		err = replace(r, other);
	for (size_t i = 0; i < k->nservices && !err; i++) {
		err = registry_service_add(r->file, r->slot, k->service[i].id,
					   k->service[i].gid,
					   k->service[i].families);
		if (err)
			regfile_fail(err,
				     "another process of this host listens on "
				     "the service ID 0x%016llx",
				     (unsigned long long)k->service[i].id);
	}
	return err;
}

/* Another process begins in the slot that was kept, with all it has. */
static bool is_kept(struct registry *r)
{
	const struct registry_kept *k = r->kept;
	struct slot *s = &r->file->m->slot[r->slot];

	if (!k->seated || LOAD(&s->used) != SLOT_SEAT ||
	    LOAD(&s->generation) != k->generation ||
	    regfile_seat_take(r->file, r->slot, k->seat))
		return false;
	registry_sweep(r->file);
	registry_slot_begin(r);
	return true;
}

/* Takes a slot, and what we had. */
static int begin_again(struct registry *r, struct registry_other *other)
{
	struct regfile *f = r->file;
	int slot, err;

	registry_sweep(f);
	slot = registry_slot_take(f, r->slot);
	if (slot < 0)
		return regfile_fail(slot, "there is no room in %s", f->path);
	r->slot = (unsigned)slot;
	registry_slot_begin(r);
	err = claim_all(r, r->kept, other);
	if (err) {
		registry_slot_clear(f, r->slot);
		regfile_slot_drop(f, r->slot);
	}
	return err;
}

int registry_back(struct registry *r, const char *dir,
		  struct registry_other *other, const char **why)
{
	void *blank = regfile_blank();
	struct regfile *f = r->file;
	int err;

	*why = regfile_why();
	other->n = 0;
	if (!blank)
		return regfile_fail(-ENOMEM, "out of memory");
	pthread_mutex_lock(&registry_mutex);
	err = regfile_reopen(f, dir);
	if (err)
		goto out;
	err = is_kept(r) ? 0 : begin_again(r, other);
	if (err) {
		registry_remove_unused(f);
		regfile_close(f, blank);
		blank = NULL;
		goto out;
	}
	free(r->kept);
	r->kept = NULL;
	f->changed = true;
	regfile_unlock(f);
	atomic_store(&r->away, 0);
	lock_wake_all(&r->away);
out:
	pthread_mutex_unlock(&registry_mutex);
	regfile_blank_free(blank);
	return err;
}

void registry_await(struct registry *r)
{
	while (atomic_load(&r->away)) {
		pthread_mutex_unlock(&registry_mutex);
		lock_sleep(&r->away, 1);
		pthread_mutex_lock(&registry_mutex);
	}
}

void registry_away_forked(struct registry *r)
{
	if (r->kept && r->kept->seated)
		regfile_seat_close(r->file, r->kept->seat);
	free(r->kept);
	r->kept = NULL;
}
