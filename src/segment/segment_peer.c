/*
 * segment_peer.c - the segments of other processes: finding and mapping them
 *
 * No descriptor is kept: what is mapped later (a table, when somebody looks a
 * key up) is opened again, and compared with what was opened first.
 */
#include "segment_internal.h"

#include "base/sys.h"
#include "os/config.h"
#include "os/owner.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The file of a slot's segment, if it looks like one; or -errno. */
static int peer_file_open(const struct segment *s, unsigned slot,
			  struct stat *st)
{
	char path[SEGMENT_PATH_MAX];
	int fd;

	segment_path(s, slot, false, path);
	fd = sys_open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (!fstat(fd, st) && S_ISREG(st->st_mode) &&
	    st->st_size == SEGMENT_SIZE && owner_private(fd, st))
		return fd;
	sys_close(fd);
	return -EINVAL;
}

/* Attaching */

static bool head_valid(const struct segment_peer *p)
{
	const struct segment_head *h = p->head;

	return h->magic == SEGMENT_MAGIC && h->version == SEGMENT_VERSION &&
	       h->size == SEGMENT_SIZE && h->slot == p->slot && h->id == p->id;
}

static int map_own(struct segment_peer *p)
{
	struct segment *s = p->segment;

	/* Not a second time, so that one address means one thing. */
	p->head = s->head;
	p->ring = segment_ring(s, s->slot);
	return p->ring ? 0 : -ENOSPC;
}

static int map_others(struct segment_peer *p)
{
	size_t ring = SEGMENT_RINGS_OFFSET +
		      (size_t)p->segment->slot * SEGMENT_RING_SIZE;
	struct stat st;
	int fd = peer_file_open(p->segment, p->slot, &st), err;
	void *map;

	if (fd < 0)
		return fd;
	err = -ENOMEM;
	map = mmap(NULL, SEGMENT_RINGS_OFFSET, PROT_READ | PROT_WRITE,
		   MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		goto out;
	p->first_map = map;
	p->head = map;
	p->dev = st.st_dev;
	p->ino = st.st_ino;
	err = -EINVAL;
	if (!head_valid(p))
		goto out;
	err = segment_allocate(fd, ring, SEGMENT_RING_SIZE);
	if (err)
		goto out;
	err = -ENOMEM;
	map = mmap(NULL, SEGMENT_RING_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED,
		   fd, (off_t)ring);
	if (map == MAP_FAILED)
		goto out;
	p->ring = map;
	err = 0;
out:
	sys_close(fd);
	return err;
}

static void peer_unmap(struct segment_peer *p)
{
	int fd = atomic_load(&p->wake_fd);

	if (fd >= 0)
		sys_close(fd);
	if (!p->first_map)
		return; /* one's own */
	munmap(p->first_map, SEGMENT_RINGS_OFFSET);
	if (p->ring)
		munmap(p->ring, SEGMENT_RING_SIZE);
	for (int t = 0; t < SEGMENT_TABLES; t++)
		if (p->table[t])
			munmap((void *)(uintptr_t)p->table[t],
			       table_room((enum segment_table)t));
}

static struct segment_peer *peer_attach(struct segment *s, unsigned slot)
{
	const _Atomic uint64_t *word = registry_segment(s->registry, slot);
	struct segment_peer *p;
	pid_t pid;

	if (!atomic_load(word) || s->refused[slot] == atomic_load(word) ||
	    !registry_holder(s->registry, slot, &pid))
		return NULL;
	p = aligned_alloc(64, sizeof(*p));
	if (!p)
		return NULL;
	*p = (struct segment_peer){
		.id = atomic_load(word),
		.slot = slot,
		.self = slot == s->slot,
		.segment = s,
		.current = word,
		.refs = 1, /* the table's */
		.wake_fd = -1,
		.pid = pid,
		.can_copy = -1,
		.generation = registry_generation(s->registry, slot),
	};
	if (!p->id || (p->self ? map_own(p) : map_others(p)) ||
	    !segment_peer_current(p)) {
		s->refused[slot] = p->id;
		peer_unmap(p);
		free(p);
		return NULL;
	}
	p->flags = p->head->flags;
	p->probe_addr = p->head->probe_addr;
	p->probe_value = p->head->probe_value;
	p->guard = (struct copy_guard *)(void *)((uint8_t *)p->head +
						 SEGMENT_GUARDS_OFFSET) +
		   s->slot;
	atomic_store(&p->alive_ns, clock_ns());
	segment_say_producer(p);
	p->next = s->peers;
	s->peers = p;
	s->peer[slot] = p;
	return p;
}

/* References. s->lock is held where a peer is taken from the table or freed. */

static void peer_drop(struct segment_peer *p)
{
	struct segment_peer **at = &p->segment->peers;

	if (atomic_fetch_sub(&p->refs, 1) != 1)
		return;
	while (*at != p)
		at = &(*at)->next;
	*at = p->next;
	if (p->segment->detach)
		p->segment->detach(p);
	peer_unmap(p);
	free(p);
}

static void peer_take_out(struct segment *s, unsigned slot)
{
	struct segment_peer *p = s->peer[slot];

	s->peer[slot] = NULL;
	peer_drop(p);
}

static void tidy_locked(struct segment *s)
{
	struct segment_peer *next;

	for (struct segment_peer *p = s->peers; p; p = next) {
		next = p->next;
		if (s->peer[p->slot] == p && segment_peer_gone(p))
			peer_take_out(s, p->slot);
	}
}

struct segment_peer *segment_peer_get(struct segment *s, unsigned slot)
{
	struct segment_peer *p;

	if (slot >= REGISTRY_SLOTS)
		return NULL;
	pthread_mutex_lock(&s->lock);
	p = s->peer[slot];
	if (p && !segment_peer_current(p))
		p = NULL;
	if (!p) {
		tidy_locked(s);
		p = peer_attach(s, slot);
	}
	if (p && segment_peer_gone(p))
		p = NULL;
	if (p)
		atomic_fetch_add(&p->refs, 1);
	pthread_mutex_unlock(&s->lock);
	return p;
}

void segment_peer_hold(struct segment_peer *p)
{
	atomic_fetch_add(&p->refs, 1);
}

void segment_peer_put(struct segment_peer *p)
{
	struct segment *s;

	if (!p)
		return;
	s = p->segment;
	pthread_mutex_lock(&s->lock);
	peer_drop(p);
	tidy_locked(s);
	pthread_mutex_unlock(&s->lock);
}

void segment_tidy(struct segment *s)
{
	pthread_mutex_lock(&s->lock);
	tidy_locked(s);
	pthread_mutex_unlock(&s->lock);
}

void segment_on_detach(struct segment *s, void (*fn)(struct segment_peer *p))
{
	s->detach = fn;
}

void segment_detach_all(struct segment *s)
{
	pthread_mutex_lock(&s->lock);
	for (unsigned slot = 0; slot < REGISTRY_SLOTS; slot++)
		if (s->peer[slot])
			peer_take_out(s, slot);
	pthread_mutex_unlock(&s->lock);
}

void segment_forget_peers(struct segment *s)
{
	static const _Atomic uint64_t none;

	/* The registry's memory goes with it. */
	for (struct segment_peer *p = s->peers; p; p = p->next) {
		int fd = atomic_exchange(&p->wake_fd, -1);

		p->current = &none;
		if (fd >= 0)
			sys_close(fd);
	}
}

/* Tables */

static const void *own_table(struct segment_peer *p, enum segment_table t,
			     size_t upto)
{
	struct segment *s = p->segment;

	return upto <= segment_table_size(s, t) ? segment_table(s, t) : NULL;
}

/* Maps a table, or sees to it that what it has grown by can be read. */
static int table_extend(struct segment_peer *p, enum segment_table t,
			size_t upto)
{
	size_t size = atomic_load(&p->head->table_size[t]);
	struct stat st;
	int fd, err;
	void *map;

	if (size > table_room(t) || upto > size)
		return -ENOENT;
	fd = peer_file_open(p->segment, p->slot, &st);
	if (fd < 0)
		return fd;
	err = -ESTALE;
	if (st.st_dev != p->dev || st.st_ino != p->ino)
		goto out;
	/* It is there if the owner says the truth, but anybody may write it. */
	err = segment_allocate(fd, table_offset(t), size);
	if (err)
		goto out;
	if (!p->table[t]) {
		err = -ENOMEM;
		map = mmap(NULL, table_room(t), PROT_READ,
			   MAP_SHARED | MAP_NORESERVE, fd,
			   (off_t)table_offset(t));
		if (map == MAP_FAILED)
			goto out;
		p->table[t] = map;
	}
	atomic_store_explicit(&p->table_ok[t], size, memory_order_release);
	err = 0;
out:
	sys_close(fd);
	return err;
}

const void *segment_peer_table(struct segment_peer *p, enum segment_table t,
			       size_t upto)
{
	int err = 0;

	if (p->self)
		return own_table(p, t, upto);
	if (upto <= atomic_load_explicit(&p->table_ok[t], memory_order_acquire))
		return p->table[t];
	if (!segment_peer_current(p))
		return NULL;
	pthread_mutex_lock(&p->segment->lock);
	if (upto > atomic_load(&p->table_ok[t]))
		err = table_extend(p, t, upto);
	pthread_mutex_unlock(&p->segment->lock);
	return err ? NULL : p->table[t];
}
