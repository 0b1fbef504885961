/*
 * streams.c - TCP segments of captures into the bytes of either end
 */
#include "streams.h"

#include "capture.h"

#include "base/bytes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { F_FIN = 1, F_SYN = 2, F_RST = 4, F_ACK = 16 };

struct segment {
	uint8_t addr[2][16]; /* source, destination */
	uint16_t port[2];
	uint32_t seq;
	uint8_t flags;
	const uint8_t *data;
	size_t len;
};

static bool parse(struct segment *s, const uint8_t *p, size_t len)
{
	size_t head, ip_len, total;

	memset(s, 0, sizeof(*s));
	if (len >= 40 && p[0] == 0x45 && p[9] == 6 &&
	    !(get_be16(p + 6) & 0x3fff)) {
		ip_len = 20;
		total = get_be16(p + 2);
		memcpy(s->addr[0], p + 12, 4);
		memcpy(s->addr[1], p + 16, 4);
	} else if (len >= 60 && p[0] >> 4 == 6 && p[6] == 6) {
		ip_len = 40;
		total = 40u + get_be16(p + 4);
		memcpy(s->addr[0], p + 8, 16);
		memcpy(s->addr[1], p + 24, 16);
	} else {
		return false;
	}
	head = ip_len + (p[ip_len + 12] >> 4) * 4u;
	if (total > len || head > total || head < ip_len + 20)
		return false;
	p += ip_len;
	s->port[0] = get_be16(p);
	s->port[1] = get_be16(p + 2);
	s->seq = get_be32(p + 4);
	s->flags = p[13];
	s->data = p + head - ip_len;
	s->len = total - head;
	return true;
}

static bool is_of(const struct stream *c, const struct segment *s, int from)
{
	return c->port[from] == s->port[0] && c->port[!from] == s->port[1] &&
	       !memcmp(c->addr[from], s->addr[0], 16) &&
	       !memcmp(c->addr[!from], s->addr[1], 16);
}

/* The connection that a segment is of, the latest with such ends, or NULL. */
static struct stream *find(struct streams *all, const struct segment *s,
			   int *from)
{
	for (size_t i = all->n; i--;)
		for (*from = 0; *from < 2; ++*from)
			if (is_of(&all->stream[i], s, *from))
				return &all->stream[i];
	return NULL;
}

static int begin(struct streams *all, const struct segment *s, const char *name)
{
	struct stream *more =
		realloc(all->stream, (all->n + 1) * sizeof(*more));
	struct stream *c;

	if (!more)
		return -ENOMEM;
	all->stream = more;
	c = &more[all->n++];
	*c = (struct stream){ .port = { s->port[0], s->port[1] } };
	memcpy(c->addr, s->addr, sizeof(c->addr));
	snprintf(c->file, sizeof(c->file), "%s", name);
	return 0;
}

static int add_piece(struct stream *c, int from, const struct segment *s,
		     size_t skip)
{
	const bool fin = s->flags & F_FIN;
	const size_t len = s->len - skip;
	struct stream_piece *more;
	uint8_t *bytes;

	bytes = realloc(c->bytes[from], c->len[from] + len + 1);
	if (!bytes)
		return -ENOMEM;
	c->bytes[from] = bytes;
	more = realloc(c->piece, (c->n + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	c->piece = more;
	more[c->n++] = (struct stream_piece){ from, c->len[from], len, fin };
	memcpy(bytes + c->len[from], s->data + skip, len);
	c->len[from] += len;
	c->next[from] += (uint32_t)(len + fin);
	return 0;
}

struct loading {
	struct streams *all;
	const char *name;
};

static int add(void *arg, unsigned number, const uint8_t *ip, size_t len)
{
	const struct loading *l = arg;
	struct segment s;
	struct stream *c;
	int32_t old;
	int from;

	(void)number;
	if (!parse(&s, ip, len))
		return 0;
	c = find(l->all, &s, &from);
	if (s.flags & F_SYN && !(s.flags & F_ACK) &&
	    (!c || !c->begun[0] || s.seq + 1 != c->next[0])) {
		int err = begin(l->all, &s, l->name);

		if (err)
			return err;
		c = &l->all->stream[l->all->n - 1];
		from = 0;
	}
	if (!c)
		return 0;
	if (s.flags & F_RST)
		c->reset = true;
	if (s.flags & F_SYN) {
		c->begun[from] = true;
		c->next[from] = s.seq + 1;
		return 0;
	}
	old = (int32_t)(c->next[from] - s.seq);
	if (!c->begun[from] || c->reset || (!s.len && !(s.flags & F_FIN)))
		return 0;
	if (old < 0)
		return -ENODATA;
	if ((size_t)old >= s.len + !!(s.flags & F_FIN))
		return 0; /* sent again */
	return add_piece(c, from, &s, (size_t)old);
}

int streams_load(struct streams *s, const char *path)
{
	return capture_each(path, add,
			    &(struct loading){ s, capture_name(path) });
}

void streams_free(struct streams *s)
{
	for (size_t i = 0; i < s->n; i++) {
		free(s->stream[i].bytes[0]);
		free(s->stream[i].bytes[1]);
		free(s->stream[i].piece);
	}
	free(s->stream);
	*s = (struct streams){ 0 };
}
