/*
 * registry.c - slots of processes, what they lease, what is on its way to them
 *
 * A process has a slot from registry_join() on, and with it chunks of QPNs, a
 * private port and a count of the bytes that wait for it. When it dies, the
 * next process that holds the lock sweeps: what it had is free.
 */
#include "registry_internal.h"

#include "os/config.h"

#include "base/sys.h"

#include <stdlib.h>
#include <unistd.h>

/* So many processes each one that begins looks at: with fewer, at all. */
#define SWEEP_SOME 64

/* What only a process that is here has. */
void registry_slot_empty(struct regfile *f, unsigned slot)
{
	struct slot *s = &f->m->slot[slot];

	STORE(&s->port, 0);
	for (size_t i = 0; i < REGISTRY_SPORTS; i++)
		STORE(&s->sport[i], 0);
	STORE(&s->segment, 0);
	regfile_unlink_segment(f, slot);
	registry_addr_clear(f, slot);
}

/* What a slot owns becomes free; the slot itself last. */
void registry_slot_clear(struct regfile *f, unsigned slot)
{
	struct shared *m = f->m;

	for (size_t i = 0; i < REGISTRY_CHUNKS; i++) {
		if (LOAD(&m->chunk[i]) == slot + 1) {
			STORE(&m->chunk[i], 0);
			STORE(&m->head.cursor, (uint32_t)i);
			f->changed = true;
		}
	}
	registry_service_clear(f, slot);
	registry_slot_empty(f, slot);
	STORE(&m->slot[slot].used, SLOT_FREE);
}

/*
 * Looks at most slots that are in use, from the one where the last look ended.
 * The kernel goes through all locks of the file to say whether one is held, so
 * of many processes to look at each takes as long as their number squared.
 */
static void sweep(struct regfile *f, unsigned most)
{
	const unsigned first = LOAD(&f->m->head.sweep_at);

	for (unsigned i = 0; i < REGISTRY_SLOTS && most; i++) {
		const unsigned slot = (first + i) % REGISTRY_SLOTS;

		if (!LOAD(&f->m->slot[slot].used))
			continue;
		STORE(&f->m->head.sweep_at, slot + 1);
		most--;
		if (regfile_slot_alive(f, slot))
			continue;
		registry_slot_clear(f, slot);
		STORE(&f->m->head.swept_ns, clock_ns());
	}
	registry_addr_tidy(f);
}

void registry_sweep(struct regfile *f)
{
	sweep(f, REGISTRY_SLOTS);
}

/* Joining and leaving */

int registry_slot_take(struct regfile *f, unsigned first)
{
	for (unsigned i = 0; i < REGISTRY_SLOTS; i++) {
		const unsigned slot = (first + i) % REGISTRY_SLOTS;
		struct slot *s = &f->m->slot[slot];

		if (LOAD(&s->used) || regfile_slot_take(f, slot))
			continue;
		registry_slot_clear(f, slot);
		return (int)slot;
	}
	return -ENOSPC;
}

void registry_slot_begin(struct registry *r)
{
	struct slot *s = &r->file->m->slot[r->slot];
	const uint64_t netns = registry_netns();

	r->net = registry_net_of(r->file, netns);
	r->place = (uint64_t)r->net << 32;
	STORE(&s->net, r->net);
	STORE(&s->netns, netns);
	STORE(&s->nonce, 0);
	STORE(&s->pid, (uint32_t)getpid());
	STORE(&s->generation, LOAD(&s->generation) + 1);
	STORE(&s->limit, 0);
	STORE(&s->backlog, 0);
	STORE(&s->used, SLOT_HERE);
}

/* The last one to leave takes along the file, and what the dead have left. The
 * lock is held. */
void registry_remove_unused(struct regfile *f)
{
	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++)
		if (LOAD(&f->m->slot[slot].used) && regfile_slot_alive(f, slot))
			return;
	registry_sweep(f);
	regfile_unlink(f);
}

int registry_join(struct registry **out, const char *dir, const char **why)
{
	struct registry *r;
	struct regfile *f = NULL;
	int err, slot;

	regfile_init();
	if (why)
		*why = regfile_why();
	r = calloc(1, sizeof(*r));
	if (!r)
		return regfile_fail(-ENOMEM, "out of memory");
	pthread_mutex_lock(&registry_mutex);
	regfile_drop_parents();
	err = regfile_open(dir, &f);
	if (err)
		goto err_unlock;
	sweep(f, SWEEP_SOME);
	slot = registry_slot_take(f, 0);
	if (slot < 0) {
		registry_sweep(f);
		slot = registry_slot_take(f, 0);
	}
	if (slot < 0) {
		err = regfile_fail(slot,
				   "more than %d processes of this user use "
				   "RDMA on this host",
				   REGISTRY_SLOTS);
		regfile_unlock(f);
		if (!f->users)
			regfile_put(f);
		goto err_unlock;
	}
	r->file = f;
	r->slot = (unsigned)slot;
	registry_slot_begin(r);
	r->next = f->users;
	f->users = r;
	regfile_unlock(f);
	pthread_mutex_unlock(&registry_mutex);
	*out = r;
	return 0;

err_unlock:
	pthread_mutex_unlock(&registry_mutex);
	free(r);
	return err;
}

static void forget_registry(struct registry *r)
{
	struct registry **p = &r->file->users;

	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
	if (!r->file->users)
		regfile_put(r->file);
	free(r);
}

void registry_leave(struct registry *r)
{
	struct regfile *f;

	if (!r)
		return;
	f = r->file;
	pthread_mutex_lock(&registry_mutex);
	r->fn = NULL;
	/* Without the lock the next sweep finds us gone. */
	if (!regfile_lock(f)) {
		registry_slot_clear(f, r->slot);
		regfile_slot_drop(f, r->slot);
		registry_remove_unused(f);
		regfile_unlock(f);
	} else {
		regfile_slot_drop(f, r->slot);
	}
	forget_registry(r);
	pthread_mutex_unlock(&registry_mutex);
}

void registry_abandon(struct registry *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&registry_mutex);
	registry_away_forked(r);
	regfile_drop_parents();
	forget_registry(r);
	pthread_mutex_unlock(&registry_mutex);
}

/* Leases */

int registry_chunk_take(struct registry *r)
{
	struct shared *m = r->file->m;
	uint32_t chunk, last;
	int err = -ENOSPC;

	/* One that strangers cannot guess, and not what was given back last. */
	last = LOAD(&m->head.cursor) % REGISTRY_CHUNKS;
	if (!sys_random(&chunk, sizeof(chunk)))
		chunk = last + 1;
	for (uint32_t i = 0; i <= REGISTRY_CHUNKS && err < 0; i++) {
		const uint32_t c = i < REGISTRY_CHUNKS ?
					   (chunk + i) % REGISTRY_CHUNKS :
					   last;

		if (!c || c == REGISTRY_CHUNKS - 1 || LOAD(&m->chunk[c]) ||
		    (c == last && i < REGISTRY_CHUNKS))
			continue;
		STORE(&m->chunk[c], (uint16_t)(r->slot + 1));
		r->file->changed = true;
		err = (int)(c * REGISTRY_CHUNK);
	}
	return err;
}

int registry_lease(struct registry *r)
{
	int err = registry_lock(r);

	if (err)
		return err;
	err = registry_chunk_take(r);
	if (err == -ENOSPC) {
		registry_sweep(r->file);
		err = registry_chunk_take(r);
	}
	registry_unlock(r);
	return err;
}

void registry_release(struct registry *r, uint32_t first_qpn)
{
	uint32_t chunk = first_qpn / REGISTRY_CHUNK % REGISTRY_CHUNKS;

	if (registry_lock(r))
		return;
	if (LOAD(&r->file->m->chunk[chunk]) == r->slot + 1) {
		STORE(&r->file->m->chunk[chunk], 0);
		STORE(&r->file->m->head.cursor, chunk);
		r->file->changed = true;
	}
	registry_unlock(r);
}

/* Looking up */

unsigned registry_slot(const struct registry *r)
{
	return r->slot;
}

int registry_owner(const struct registry *r, uint32_t qpn)
{
	const int slot = chunk_owner(r->file->m, qpn);

	return slot >= 0 && slot_is_in(r->file->m, (unsigned)slot, r->net) ?
		       slot :
		       -ENOENT;
}

bool registry_swept(const struct registry *r, uint64_t within_ns)
{
	return clock_ns() - LOAD(&r->file->m->head.swept_ns) < within_ns;
}

bool registry_alive(const struct registry *r, unsigned slot)
{
	return slot < REGISTRY_SLOTS && regfile_slot_alive(r->file, slot);
}

bool registry_holder(const struct registry *r, unsigned slot, pid_t *pid)
{
	*pid = 0;
	return slot < REGISTRY_SLOTS && regfile_slot_holder(r->file, slot, pid);
}

bool registry_keeps_seat(const struct registry *r, uint32_t qpn, uint32_t net)
{
	const int slot = chunk_owner(r->file->m, qpn);

	return slot >= 0 && LOAD(&r->file->m->slot[slot].used) == SLOT_SEAT &&
	       slot_is_in(r->file->m, (unsigned)slot, net ? net : r->net) &&
	       regfile_slot_alive(r->file, (unsigned)slot);
}

uint32_t registry_generation(const struct registry *r, unsigned slot)
{
	return LOAD(&r->file->m->slot[slot % REGISTRY_SLOTS].generation);
}

const _Atomic uint64_t *registry_segment(const struct registry *r,
					 unsigned slot)
{
	return &r->file->m->slot[slot % REGISTRY_SLOTS].segment;
}

void registry_show(struct registry *r, uint64_t id)
{
	STORE(&r->file->m->slot[r->slot].segment, id);
}

uint16_t registry_port(const struct registry *r, unsigned slot)
{
	if (slot >= REGISTRY_SLOTS)
		return 0;
	return (uint16_t)LOAD(&r->file->m->slot[slot].port);
}

void registry_publish(struct registry *r, uint16_t port, uint32_t limit)
{
	STORE(&r->file->m->slot[r->slot].limit, limit);
	STORE(&r->file->m->slot[r->slot].port, port);
}

void registry_sports(struct registry *r, const uint16_t *ports, size_t n)
{
	struct slot *s = &r->file->m->slot[r->slot];

	for (size_t i = 0; i < REGISTRY_SPORTS; i++)
		STORE(&s->sport[i], i < n ? ports[i] : 0);
}

bool registry_sends_from(const struct registry *r, unsigned slot, uint16_t port)
{
	const struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];
	bool any = false;

	for (size_t i = 0; i < REGISTRY_SPORTS; i++) {
		const uint16_t p = LOAD(&s->sport[i]);

		if (p == port)
			return true;
		any |= p;
	}
	return !any;
}

bool registry_charge(struct registry *r, unsigned slot, uint32_t bytes)
{
	struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];
	int64_t before = atomic_fetch_add(&s->backlog, bytes);

	if (before <= 0 || before <= (int64_t)LOAD(&s->limit) - bytes)
		return true;
	atomic_fetch_sub(&s->backlog, bytes);
	return false;
}

void registry_uncharge(struct registry *r, unsigned slot, int64_t bytes)
{
	atomic_fetch_sub(&r->file->m->slot[slot % REGISTRY_SLOTS].backlog,
			 bytes);
}

void registry_take(struct registry *r, unsigned slot, int64_t bytes)
{
	struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];

	/* What somebody sent without counting it makes no room for others. */
	int64_t was = atomic_load(&s->backlog);

	while (!atomic_compare_exchange_weak(&s->backlog, &was,
					     was > bytes ? was - bytes : 0))
		;
	atomic_fetch_add(&s->taken, (uint64_t)bytes);
}

uint64_t registry_sent(const struct registry *r, unsigned slot)
{
	const struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];

	return LOAD(&s->taken) + (uint64_t)LOAD(&s->backlog);
}

bool registry_unread(const struct registry *r, unsigned slot, uint64_t sent)
{
	const struct slot *s = &r->file->m->slot[slot % REGISTRY_SLOTS];
	int64_t left = (int64_t)(sent - LOAD(&s->taken));

	/* More than there is: the slot was another's then, or a count wrong. */
	return left > 0 && left <= LOAD(&s->backlog) && registry_alive(r, slot);
}

int64_t registry_backlog(const struct registry *r)
{
	int64_t n = LOAD(&r->file->m->slot[r->slot].backlog);

	/* What makes no sense is no less wrong so, and can be computed with. */
	return n < -INT64_MAX ? -INT64_MAX : n;
}
