/*
 * read.c - files of events into memory, in one order (read.h)
 */
#include "join.h"

#include "base/sys.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define EVENTS_MAX (1u << 24)
#define FILES_MAX 4096u
#define CLOCKS_MAX 256u
#define NS_MAX (UINT64_MAX / 8)
#define BACKS_MAX 256 /* times that a process was suspended, */
#define STOOD_MAX (NS_MAX / BACKS_MAX) /* for so long each */

static int read_at(int fd, void *to, size_t len, uint64_t at)
{
	uint8_t *p = to;

	while (len) {
		const ssize_t n = pread(fd, p, len, (off_t)at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -ENODATA;
		p += n;
		at += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

static void end_string(char *s, size_t size)
{
	s[size - 1] = '\0';
}

/* NULL, or what is wrong. */
static const char *check_header(struct trace_header *h, uint64_t size)
{
	static char text[160];

	if (memcmp(h->magic, TRACE_MAGIC, sizeof(h->magic)))
		return "not a file of events of softhca";
	if (h->version != TRACE_VERSION) {
		snprintf(text, sizeof(text),
			 "version %u; this softhca reads version %u",
			 h->version, TRACE_VERSION);
		return text;
	}
	if (h->header_size != TRACE_RINGS_AT ||
	    h->record_size != sizeof(struct trace_rec) || h->ring_records < 2 ||
	    h->ring_records > TRACE_RING_RECORDS ||
	    h->ring_records & (h->ring_records - 1) || h->nrings > TRACE_RINGS)
		return "header corrupt, or written by a machine with another "
		       "byte order";
	if (size < TRACE_RINGS_AT + (uint64_t)h->nrings * h->ring_records *
					    sizeof(struct trace_rec)) {
		snprintf(
			text, sizeof(text),
			"truncated: it has %llu bytes of %llu",
			(unsigned long long)size,
			(unsigned long long)(TRACE_RINGS_AT +
					     (uint64_t)h->nrings *
						     h->ring_records *
						     sizeof(struct trace_rec)));
		return text;
	}
	if (h->clock_error > NS_MAX)
		h->clock_error = NS_MAX;
	end_string(h->boot, sizeof(h->boot));
	end_string(h->host, sizeof(h->host));
	end_string(h->program, sizeof(h->program));
	return NULL;
}

static int add_event(struct trace_set *t, size_t *room,
		     const struct trace_event *ev)
{
	if (t->nevents == *room) {
		const size_t more = *room ? 2 * *room : 4096;
		void *p = realloc(t->event, more * sizeof(*t->event));

		if (!p)
			return -ENOMEM;
		t->event = p;
		*room = more;
	}
	t->event[t->nevents++] = *ev;
	return 0;
}

/* One ring. What its process overwrites meanwhile is left out. */
static int read_ring(struct trace_set *t, size_t *room, int fd, uint32_t proc,
		     uint32_t i, struct trace_rec *buf)
{
	struct trace_proc *p = &t->proc[proc];
	const uint64_t n = p->head.ring_records;
	const uint64_t head = offsetof(struct trace_header, ring) +
			      i * sizeof(struct trace_ring);
	struct trace_ring before, after;
	uint64_t from;
	uint32_t tid;
	int err;

	err = read_at(fd, &before, sizeof(before), head) ?:
		      read_at(fd, buf, n * sizeof(*buf), TRACE_RINGS_AT + i * n * sizeof(*buf)) ?:
		      read_at(fd, &after, sizeof(after), head);
	if (err)
		return err;
	if (before.written > NS_MAX || after.written < before.written)
		return -EBADMSG;
	from = before.written > n ? before.written - n : 0;
	/* The one that is being written is not yet counted. */
	if (after.written != before.written && after.written + 1 > n &&
	    after.written + 1 - n > from)
		from = after.written + 1 - n;
	p->lost += from;
	tid = before.tid;
	for (uint64_t k = from; k < before.written; k++) {
		const struct trace_rec *r = &buf[k & (n - 1)];

		if (trace_type(r) == TRACE_THREAD) {
			tid = r->x;
			break;
		}
	}
	for (uint64_t k = from; k < before.written; k++) {
		struct trace_event ev = {
			.rec = buf[k & (n - 1)],
			.proc = proc,
			.tid = tid,
			.qp = TRACE_NOTHING,
			.other = TRACE_NOTHING,
			.wr = TRACE_NOTHING,
		};
		const uint32_t type = trace_type(&ev.rec);

		if (type == TRACE_NONE || type >= TRACE_TYPES ||
		    ev.rec.ns > NS_MAX) {
			p->senseless++;
			continue;
		}
		if (type == TRACE_THREAD) {
			tid = ev.rec.x;
			continue;
		}
		if (t->nevents == EVENTS_MAX) {
			p->lost++;
			continue;
		}
		err = add_event(t, room, &ev);
		if (err)
			return err;
	}
	return 0;
}

/* A clock that has stood still while its process was suspended is set right: as
 * others, it shows the time that has passed. */
static void add_standstill(struct trace_set *t, uint32_t from)
{
	struct {
		uint64_t ns, stood;
	} back[BACKS_MAX];
	size_t n = 0;

	for (uint32_t i = from; i < t->nevents && n < BACKS_MAX; i++) {
		const struct trace_rec *r = &t->event[i].rec;

		if (trace_type(r) != TRACE_BACK)
			continue;
		back[n].ns = r->ns;
		back[n++].stood = r->key < STOOD_MAX ? r->key : 0;
	}
	for (uint32_t i = from; i < t->nevents && n; i++) {
		struct trace_rec *r = &t->event[i].rec;
		const uint64_t ns = r->ns;

		for (size_t k = 0; k < n; k++)
			if (ns >= back[k].ns)
				r->ns += back[k].stood;
	}
}

static int clock_of(struct trace_set *t, const struct trace_header *h,
		    uint32_t *out)
{
	struct trace_clock *c;
	uint32_t i;

	for (i = 0; i < t->nclocks; i++)
		if (!strcmp(t->clock[i].boot, h->boot) &&
		    t->clock[i].timens == h->timens)
			break;
	*out = i;
	if (i < t->nclocks)
		return 0;
	if (i == CLOCKS_MAX)
		return -E2BIG;
	c = realloc(t->clock, (i + 1) * sizeof(*c));
	if (!c)
		return -ENOMEM;
	t->clock = c;
	c[i] = (struct trace_clock){ .timens = h->timens };
	memcpy(c[i].boot, h->boot, sizeof(h->boot));
	/* Until packets say more. */
	c[i].offset = (int64_t)(h->real_ns - h->mono_ns);
	t->nclocks++;
	return 0;
}

static const char *read_open(struct trace_set *t, size_t *room, int fd,
			     const char *name)
{
	struct trace_proc p = { .name = NULL }, *more;
	const uint32_t events = t->nevents;
	struct trace_rec *buf;
	const char *wrong;
	struct stat st;
	int err = 0;

	if (fstat(fd, &st) || !S_ISREG(st.st_mode))
		return "not a file";
	if (st.st_size < (off_t)sizeof(p.head))
		return "truncated: shorter than its header";
	if (read_at(fd, &p.head, sizeof(p.head), 0))
		return "cannot be read";
	wrong = check_header(&p.head, (uint64_t)st.st_size);
	if (wrong)
		return wrong;
	if (clock_of(t, &p.head, &p.clock))
		return "of one more host than can be joined";
	more = realloc(t->proc, (t->nprocs + 1) * sizeof(p));
	buf = malloc(p.head.ring_records * sizeof(*buf));
	p.name = strdup(name);
	if (more)
		t->proc = more;
	if (!more || !buf || !p.name) {
		free(buf);
		free(p.name);
		return "no memory";
	}
	t->proc[t->nprocs] = p;
	if (p.head.clock_error > t->clock[p.clock].own)
		t->clock[p.clock].own = p.head.clock_error;
	for (uint32_t i = 0; i < p.head.nrings && !err; i++)
		err = read_ring(t, room, fd, t->nprocs, i, buf);
	free(buf);
	if (!err) {
		add_standstill(t, events);
		t->nprocs++;
		return NULL;
	}
	t->nevents = events;
	free(p.name);
	return err == -ENOMEM  ? "no memory" :
	       err == -ENODATA ? "truncated while it was read" :
				 "ring corrupt";
}

static int is_ours(const struct dirent *d)
{
	const size_t len = strlen(d->d_name), end = strlen(TRACE_SUFFIX);

	return len > end && !strcmp(d->d_name + len - end, TRACE_SUFFIX);
}

int trace_read(struct trace_set *t, const char *dir,
	       void (*bad)(const char *path, const char *why))
{
	struct dirent **names = NULL;
	const char *wrong;
	char path[4096];
	size_t room = 0;
	int n, fd;

	*t = (struct trace_set){ .nprocs = 0 };
	n = scandir(dir, &names, is_ours, alphasort);
	if (n < 0)
		return -errno;
	for (int i = 0; i < n; i++) {
		const char *name = names[i]->d_name;

		snprintf(path, sizeof(path), "%s/%s", dir, name);
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		wrong = fd < 0 ? strerror(errno) :
			t->nprocs == FILES_MAX ?
				 "one more file than can be joined" :
				 read_open(t, &room, fd, name);
		if (wrong)
			bad(path, wrong);
		if (fd >= 0)
			close(fd);
	}
	for (int i = 0; i < n; i++)
		free(names[i]);
	free(names);
	if (!n || !t->nprocs) {
		trace_read_free(t);
		return n ? -EINVAL : -ENOENT;
	}
	n = trace_join(t);
	if (n)
		trace_read_free(t);
	return n;
}

void trace_read_free(struct trace_set *t)
{
	for (uint32_t i = 0; i < t->nprocs; i++)
		free(t->proc[i].name);
	free(t->proc);
	free(t->clock);
	free(t->qp);
	free(t->event);
	free(t->wr);
	*t = (struct trace_set){ .nprocs = 0 };
}

/* What one time is later than another that is known; 0: not, or not known. */
static uint64_t later_by(uint64_t *at, uint64_t then)
{
	const uint64_t ns = then > *at ? then - *at : 0;

	if (then > *at)
		*at = then;
	return ns;
}

uint64_t trace_phases(const struct trace_wr *w, uint64_t ns[TRACE_PHASES])
{
	uint64_t at = w->posted;

	ns[TRACE_P_WINDOW] = later_by(&at, w->first);
	ns[TRACE_P_SENDING] = later_by(&at, w->last);
	ns[TRACE_P_ANSWER] = later_by(&at, w->acked);
	ns[TRACE_P_COMPLETING] = later_by(&at, w->completed);
	ns[TRACE_P_POLLING] = later_by(&at, w->polled);
	return at - w->posted;
}
