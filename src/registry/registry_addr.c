/*
 * registry_addr.c - who receives where, and how packets are steered there
 *
 * Each address in use has a row: the sockets that share it at port 4791, in
 * the kernel's order, and a bit in the slot of each process that receives
 * there, be it on its private port only.
 */
#include "registry_internal.h"

#include "os/config.h"

#define SETTLE_NS 10000000u /* packets steered by an older program arrive */

/* All with the lock held, but for find_row(). */

/* Where the search for an address begins. It is asked for with each packet, and
 * mostly its row is there, since registry_addr_join() begins there, too. */
static unsigned first_row(const uint64_t w[2], uint64_t place)
{
	return (unsigned)((w[0] ^ w[1] ^ place) * 0x9e3779b97f4a7c15 >> 32);
}

static int find_row(const struct shared *m, const union ibv_gid *gid,
		    uint64_t place)
{
	unsigned first;
	uint64_t w[2];

	gid_words(gid, w);
	first = first_row(w, place);
	for (unsigned i = 0; i < REGISTRY_ADDRS; i++) {
		unsigned row = (first + i) % REGISTRY_ADDRS;
		const struct row *a = &m->addr[row];

		if (LOAD(&a->gid[1]) == w[1] && LOAD(&a->gid[0]) == w[0] &&
		    LOAD(&a->place) == place)
			return (int)row;
	}
	return -ENOENT;
}

/* By the first half of the GID; the registry knows no groups of IPv4. */
static bool is_group(uint64_t word)
{
	return word >> 56 == 0xff;
}

static bool receives_at(const struct slot *s, unsigned row)
{
	return LOAD(&s->addrs[row / 64]) >> (row % 64) & 1;
}

static void set_receives(struct slot *s, int row, bool on)
{
	uint64_t bit = 1ull << (row % 64);
	uint64_t w = LOAD(&s->addrs[row / 64]);

	STORE(&s->addrs[row / 64], on ? w | bit : w & ~bit);
}

static void touch_row(struct regfile *f, struct row *a)
{
	STORE(&a->changed_ns, clock_ns());
	f->changed = true;
}

/* As the kernel does when a socket is closed. */
static void order_remove(struct shared *m, int row, uint32_t i)
{
	uint32_t last = LOAD(&m->addr[row].count) - 1;

	STORE(&m->order[row][i], LOAD(&m->order[row][last]));
	STORE(&m->addr[row].count, last);
}

/* Removes from a row what cannot be true, and frees it if nobody is left. */
static void tidy_row(struct regfile *f, int row)
{
	struct shared *m = f->m;
	struct row *a = &m->addr[row];
	uint64_t seen[REGISTRY_SLOTS / 64] = { 0 };
	uint32_t i = 0;

	if (!LOAD(&a->gid[0]) && !LOAD(&a->gid[1]))
		return;
	if (LOAD(&a->count) > REGISTRY_SLOTS)
		STORE(&a->count, 0);
	while (i < LOAD(&a->count)) {
		unsigned slot = LOAD(&m->order[row][i]);

		if (slot < REGISTRY_SLOTS && LOAD(&m->slot[slot].used) &&
		    receives_at(&m->slot[slot], (unsigned)row) &&
		    !(seen[slot / 64] >> (slot % 64) & 1)) {
			seen[slot / 64] |= 1ull << (slot % 64);
			i++;
			continue;
		}
		order_remove(m, row, i);
		touch_row(f, a);
	}
	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++)
		if (LOAD(&m->slot[slot].used) &&
		    receives_at(&m->slot[slot], (unsigned)row))
			return;
	STORE(&a->gid[0], 0);
	STORE(&a->gid[1], 0);
	STORE(&a->count, 0);
}

void registry_addr_tidy(struct regfile *f)
{
	for (int row = 0; row < REGISTRY_ADDRS; row++)
		tidy_row(f, row);
}

void registry_addr_clear(struct regfile *f, unsigned slot)
{
	for (int row = 0; row < REGISTRY_ADDRS; row++) {
		if (receives_at(&f->m->slot[slot], (unsigned)row)) {
			set_receives(&f->m->slot[slot], row, false);
			tidy_row(f, row);
		}
	}
}

int registry_route(const struct registry *r, uint32_t qpn,
		   const union ibv_gid *gid, uint32_t scope)
{
	const struct shared *m = r->file->m;
	int slot = chunk_owner(m, qpn), row;

	/* A row that is not there takes long to look for. */
	if (slot < 0 || !slot_is_in(m, (unsigned)slot, r->net))
		return -ENOENT;
	row = find_row(m, gid, r->place | scope);
	if (row < 0 || !receives_at(&m->slot[(unsigned)slot], (unsigned)row))
		return -ENOENT;
	return slot;
}

int registry_route_in(const struct registry *r, uint32_t net, uint32_t qpn,
		      const union ibv_gid *gid)
{
	const struct shared *m = r->file->m;
	int slot = chunk_owner(m, qpn), row;

	if (slot < 0 || !slot_is_in(m, (unsigned)slot, net))
		return -ENOENT;
	row = find_row(m, gid, (uint64_t)net << 32);
	if (row < 0 || !receives_at(&m->slot[slot], (unsigned)row))
		return -ENOENT;
	return slot;
}

bool registry_is_elsewhere(const struct registry *r, uint32_t qpn,
			   const union ibv_gid *gid)
{
	const struct shared *m = r->file->m;
	const int slot = chunk_owner(m, qpn);
	uint64_t w[2];

	if (!r->file->shared)
		return false;
	if (qpn)
		return slot >= 0 && LOAD(&m->slot[slot].used) &&
		       !slot_is_in(m, (unsigned)slot, r->net);
	gid_words(gid, w);
	for (unsigned row = 0; row < REGISTRY_ADDRS; row++) {
		const struct row *a = &m->addr[row];
		const uint64_t place = LOAD(&a->place);

		if (LOAD(&a->gid[1]) == w[1] && LOAD(&a->gid[0]) == w[0] &&
		    place >> 32 != r->net && !(uint32_t)place)
			return true;
	}
	return false;
}

size_t registry_receivers(const struct registry *r, const union ibv_gid *gid,
			  uint32_t scope, uint16_t *slots)
{
	const struct shared *m = r->file->m;
	int row = find_row(m, gid, r->place | scope);
	size_t n = 0;

	for (uint16_t slot = 0; row >= 0 && slot < REGISTRY_SLOTS; slot++)
		if (LOAD(&m->slot[slot].used) &&
		    receives_at(&m->slot[slot], (unsigned)row))
			slots[n++] = slot;
	return n;
}

int registry_addr_join(struct registry *r, const union ibv_gid *gid,
		       uint32_t scope, bool steered)
{
	struct shared *m = r->file->m;
	int row = find_row(m, gid, r->place | scope);
	int free_row = -ENOSPC, groups = 0;
	struct row *a;
	uint64_t w[2];
	uint32_t n;

	gid_words(gid, w);
	for (unsigned i = REGISTRY_ADDRS; row < 0 && i--;) {
		unsigned at =
			(first_row(w, r->place | scope) + i) % REGISTRY_ADDRS;

		a = &m->addr[at];
		if (!LOAD(&a->gid[0]) && !LOAD(&a->gid[1]))
			free_row = (int)at; /* the last is the first */
		groups += is_group(LOAD(&a->gid[0]));
	}
	if (row < 0 &&
	    (!is_group(get_be64(gid->raw)) || groups < REGISTRY_GROUPS))
		row = free_row;
	if (row < 0)
		return -ENOSPC;
	a = &m->addr[row];
	if (!LOAD(&a->gid[0]) && !LOAD(&a->gid[1])) {
		STORE(&a->count, 0);
		STORE(&a->place, r->place | scope);
		STORE(&a->gid[0], w[0]);
		STORE(&a->gid[1], w[1]);
	}
	set_receives(&m->slot[r->slot], row, true);
	tidy_row(r->file, row);
	if (!steered)
		return 0;
	n = LOAD(&a->count);
	for (uint32_t i = 0; i < n; i++)
		if (LOAD(&m->order[row][i]) == r->slot)
			return 0;
	STORE(&m->order[row][n],
	      (uint16_t)r->slot); /* n < SLOTS: no duplicates */
	STORE(&a->count, n + 1);
	touch_row(r->file, a);
	return 0;
}

void registry_addr_leave(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope)
{
	int row = find_row(r->file->m, gid, r->place | scope);

	if (row < 0)
		return;
	set_receives(&r->file->m->slot[r->slot], row, false);
	tidy_row(r->file, row);
}

/* Whether a process lives that receives there, by whatever socket. */
static bool row_is_used(const struct registry *r, unsigned row)
{
	const struct shared *m = r->file->m;

	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++)
		if (LOAD(&m->slot[slot].used) &&
		    receives_at(&m->slot[slot], row) &&
		    (slot == r->slot || regfile_slot_alive(r->file, slot)))
			return true;
	return false;
}

size_t registry_addrs(const struct registry *r, union ibv_gid *gids, size_t max)
{
	const struct shared *m = r->file->m;
	size_t n = 0;

	for (unsigned row = 0; row < REGISTRY_ADDRS && n < max; row++) {
		const uint64_t w[2] = { LOAD(&m->addr[row].gid[0]),
					LOAD(&m->addr[row].gid[1]) };

		if ((!w[0] && !w[1]) || is_group(w[0]) || !row_is_used(r, row))
			continue;
		put_be64(gids[n].raw, w[0]);
		put_be64(gids[n++].raw + 8, w[1]);
	}
	return n;
}

bool registry_addr_has(const struct registry *r, unsigned slot,
		       const union ibv_gid *gid, uint32_t scope)
{
	const struct shared *m = r->file->m;
	int row = find_row(m, gid, r->place | scope);

	if (row < 0)
		return false;
	for (uint32_t i = 0;
	     i < LOAD(&m->addr[row].count) && i < REGISTRY_SLOTS; i++)
		if (LOAD(&m->order[row][i]) == slot)
			return regfile_slot_alive(r->file, slot);
	return false;
}

size_t registry_addr_count(struct registry *r, const union ibv_gid *gid,
			   uint32_t scope)
{
	int row;

	registry_sweep(r->file);
	row = find_row(r->file->m, gid, r->place | scope);
	return row < 0 ? 0 : LOAD(&r->file->m->addr[row].count);
}

void registry_addr_found(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope, uint32_t qpn)
{
	struct shared *m = r->file->m;
	int owner = chunk_owner(m, qpn), row;
	uint32_t n, there, here;
	struct row *a;

	registry_sweep(r->file);
	row = find_row(m, gid, r->place | scope);
	if (row < 0 || owner < 0 || r->file->changed)
		return;
	a = &m->addr[row];
	if (clock_ns() - LOAD(&a->changed_ns) < SETTLE_NS)
		return;
	n = LOAD(&a->count);
	for (there = 0; there < n; there++)
		if (LOAD(&m->order[row][there]) == (unsigned)owner)
			break;
	for (here = 0; here < n; here++)
		if (LOAD(&m->order[row][here]) == r->slot)
			break;
	if (there == n || here == n)
		return;
	STORE(&m->order[row][there], (uint16_t)r->slot);
	STORE(&m->order[row][here], (uint16_t)owner);
	touch_row(r->file, a);
}

size_t registry_steering(struct registry *r, const union ibv_gid *gid,
			 uint32_t scope, struct registry_range *out, size_t max)
{
	const struct shared *m = r->file->m;
	int row = find_row(m, gid, r->place | scope);
	uint16_t place[REGISTRY_SLOTS] = { 0 }; /* index + 1 */
	uint32_t count;
	size_t n = 0;

	if (row < 0 || max < 2)
		return 0;
	count = LOAD(&m->addr[row].count);
	if (!count || count > REGISTRY_SLOTS)
		return 0;
	for (uint32_t i = 0; i < count; i++)
		place[LOAD(&m->order[row][i]) % REGISTRY_SLOTS] =
			(uint16_t)(i + 1);
	/* QPs 0 and 1 in chunk 0, multicast in the last: the first socket. */
	out[n++] = (struct registry_range){ 0 };
	for (uint16_t chunk = 1; chunk < REGISTRY_CHUNKS - 1; chunk++) {
		unsigned owner = LOAD(&m->chunk[chunk]);
		unsigned at =
			owner && owner <= REGISTRY_SLOTS ? place[owner - 1] : 0;

		if (!at || at - 1 == out[n - 1].index)
			continue;
		if (n == max - 1)
			break;
		out[n++] = (struct registry_range){ chunk, (uint16_t)(at - 1) };
	}
	if (out[n - 1].index)
		out[n++] = (struct registry_range){ REGISTRY_CHUNKS - 1, 0 };
	return n;
}
