/*
 * iomap.c - buffers that the peer of a stream writes to by offset
 *
 * riomap() registers a buffer and marks its entry in the peer's table as
 * pending; it is written in front of the next data sent. riounmap() does so
 * with an entry of length 0, which matches no offset. riowrite() looks the
 * offset up in the table that the peer writes, ours.
 */
#include "base/bytes.h"
#include "rsock_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>

/* A free entry of the peer's table, or -1. */
static int take_index(struct rsock_stream *s)
{
	uint32_t i;

	if (!s->index_used)
		s->index_used = calloc(s->peer_iomaps + 1, sizeof(bool));
	for (i = 0; s->index_used && i < s->peer_iomaps; i++) {
		if (s->index_used[i])
			continue;
		s->index_used[i] = true;
		return (int)i;
	}
	return -1;
}

static void free_map(struct rsock_stream *s, struct rsock_map *m)
{
	struct rsock_map **link;

	for (link = &s->maps; *link; link = &(*link)->next)
		if (*link == m) {
			*link = m->next;
			break;
		}
	if (m->index >= 0)
		s->index_used[m->index] = false;
	free(m);
}

off_t rsock_iomap(struct rsock *rs, void *buf, size_t len, int prot,
		  off_t offset)
{
	struct rsock_stream *s = &rs->s;
	unsigned access = IBV_ACCESS_LOCAL_WRITE;
	struct rsock_map *m;
	off_t ret;

	if (prot & ~PROT_WRITE || !len || len > UINT32_MAX ||
	    (offset < 0 && offset != -1))
		return -EINVAL;
	m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->index = -1;
	m->offset = offset == -1 ? (uintptr_t)buf : (uint64_t)offset;
	pthread_mutex_lock(&rs->slock);
	ret = -EINVAL;
	if (!s->id || !s->id->pd)
		goto err_free;
	if (prot & PROT_WRITE) {
		ret = -ENOMEM;
		m->index = take_index(s);
		if (m->index < 0)
			goto err_free;
		m->pending = true;
		access |= IBV_ACCESS_REMOTE_WRITE;
	}
	m->mr = ibv_reg_mr(s->id->pd, buf, len, access);
	if (!m->mr) {
		ret = rsock_errno();
		goto err_index;
	}
	m->next = s->maps;
	s->maps = m;
	if (m->pending)
		s->maps_pending = true;
	ret = (off_t)m->offset;
	pthread_mutex_unlock(&rs->slock);
	return ret;

err_index:
	if (m->index >= 0)
		s->index_used[m->index] = false;
err_free:
	pthread_mutex_unlock(&rs->slock);
	free(m);
	return ret;
}

int rsock_iounmap(struct rsock *rs, void *buf, size_t len)
{
	struct rsock_stream *s = &rs->s;
	struct rsock_map *m;
	int err = 0;

	pthread_mutex_lock(&rs->slock);
	for (m = s->maps; m; m = m->next)
		if (m->mr && m->mr->addr == buf && m->mr->length == len)
			break;
	if (!m) {
		err = -EINVAL;
		goto out;
	}
	ibv_dereg_mr(m->mr);
	m->mr = NULL;
	/* An entry that the peer never got need not be taken back. */
	if (m->index < 0 || m->pending) {
		free_map(s, m);
	} else {
		m->pending = true;
		s->maps_pending = true;
	}
out:
	pthread_mutex_unlock(&rs->slock);
	return err;
}

int rsock_iomap_flush(struct rsock *rs, int flags, uint64_t deadline_ns)
{
	struct rsock_stream *s = &rs->s;
	struct rsock_map *m, *next;
	struct rsw_iomap entry;
	struct iovec iov = { &entry, sizeof(entry) };
	struct rsock_iter it;
	uint64_t addr;
	ssize_t n;
	int err;

	for (m = s->maps; m; m = next) {
		next = m->next;
		if (!m->pending)
			continue;
		err = rsock_stream_wait_send(rs, flags, deadline_ns);
		if (err)
			return err;
		entry = (struct rsw_iomap){ .offset = m->offset };
		if (m->mr)
			entry.sge = (struct rsw_sge){
				.addr = (uintptr_t)m->mr->addr,
				.key = m->mr->rkey,
				.length = (uint32_t)m->mr->length,
			};
		if (s->swap) {
			entry.offset = __builtin_bswap64(entry.offset);
			entry.sge.addr = __builtin_bswap64(entry.sge.addr);
			entry.sge.key = __builtin_bswap32(entry.sge.key);
			entry.sge.length = __builtin_bswap32(entry.sge.length);
		}
		/* The table of mappings follows that of buffers. */
		addr = s->peer_table.addr +
		       s->peer_table.length * sizeof(struct rsw_sge) +
		       (uint32_t)m->index * sizeof(entry);
		it = (struct rsock_iter){ &iov, 1, 0 };
		n = rsock_stream_write(rs, RSOCK_WRITE_IOMAP, &it,
				       sizeof(entry), addr, s->peer_table.key,
				       rsw_msg(RSW_IOMAP, (uint32_t)m->index));
		pthread_mutex_lock(&rs->lock);
		if (n < 0)
			return (int)n;
		m->pending = false;
		if (!m->mr)
			free_map(s, m);
	}
	s->maps_pending = false;
	return 0;
}

/* The peer's buffer at offset: copied first, then checked and used. */
static bool find_mapping(const struct rsock *rs, uint64_t offset,
			 struct rsw_sge *sge)
{
	const volatile struct rsw_iomap *table =
		(void *)(rs->s.table + RSW_SGL_SIZE);
	struct rsw_iomap m;
	uint32_t i;

	for (i = 0; i < rs->iomaps; i++) {
		m.sge.length = table[i].sge.length;
		m.offset = table[i].offset;
		m.sge.addr = table[i].sge.addr;
		m.sge.key = table[i].sge.key;
		if (offset < m.offset || offset - m.offset >= m.sge.length)
			continue;
		offset -= m.offset;
		*sge = (struct rsw_sge){
			.addr = m.sge.addr + offset,
			.key = m.sge.key,
			.length = m.sge.length - (uint32_t)offset,
		};
		return true;
	}
	return false;
}

ssize_t rsock_iowrite(struct rsock *rs, const void *buf, size_t count,
		      off_t offset, int flags)
{
	struct iovec iov = { (void *)(uintptr_t)buf, count };
	struct rsock_iter it = { &iov, 1, 0 };
	uint64_t until = rsock_deadline(rs->sndtimeo_ns);
	struct rsw_sge sge;
	size_t done = 0;
	uint32_t part;
	ssize_t n;
	int err;

	if (offset < 0 || count > SSIZE_MAX)
		return -EINVAL;
	err = rsock_stream_settle(rs, flags, until);
	if (err)
		return err;
	pthread_mutex_lock(&rs->slock);
	pthread_mutex_lock(&rs->lock);
	if (rs->s.maps_pending)
		err = rsock_iomap_flush(rs, flags, until);
	while (!err && done < count) {
		err = rsock_stream_wait_send(rs, flags, until);
		if (err)
			break;
		if (!find_mapping(rs, (uint64_t)offset + done, &sge)) {
			err = -EINVAL;
			break;
		}
		part = (uint32_t)min_u64(count - done,
					 min_u32(sge.length, RSOCK_TRANSFER));
		n = rsock_stream_write(rs, RSOCK_WRITE_DIRECT, &it, part,
				       sge.addr, sge.key, 0);
		pthread_mutex_lock(&rs->lock);
		if (n < 0)
			err = (int)n;
		else
			done += (size_t)n;
	}
	pthread_mutex_unlock(&rs->lock);
	pthread_mutex_unlock(&rs->slock);
	return done ? (ssize_t)done : err;
}

void rsock_iomap_fini(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;
	struct rsock_map *m;

	while ((m = s->maps)) {
		s->maps = m->next;
		if (m->mr)
			ibv_dereg_mr(m->mr);
		free(m);
	}
	free(s->index_used);
}
