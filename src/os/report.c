/*
 * report.c - why calls fail: keeps the reason of each thread's last error, and
 * reports calls that return one
 *
 * The reason is kept behind a key of pthreads, not in a thread-local variable:
 * there is little room for those where the library is loaded late. An error is
 * reported once, by the innermost public function. What fails over and over, as
 * a post to a full queue does in a loop, is known by its place in the code and
 * its call: a place gets at most BURST different lines a second, each of them
 * once.
 */
#include "report.h"

#include "base/say.h"
#include "config.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND_NS 1000000000ull
#define BURST 32
#define CALLSITES 64

struct reason {
	int err; /* 0: none */
	int reported; /* that public functions further out return as well */
	const char *fmt; /* where it was noted */
	char text[700];
};

static pthread_key_t key;

/* What was reported lately, by call and place. */
static struct callsite {
	uint32_t hash;
	uint32_t line[BURST]; /* of this second, hashes */
	unsigned nlines, hidden;
	uint64_t since_ns;
} callsites[CALLSITES];
static pthread_mutex_t callsites_lock = PTHREAD_MUTEX_INITIALIZER;

/* This thread's; NULL: no memory. */
static struct reason *thread_reason(void)
{
	struct reason *r = pthread_getspecific(key);

	if (r)
		return r;
	r = calloc(1, sizeof(*r));
	if (r && pthread_setspecific(key, r)) {
		free(r);
		r = NULL;
	}
	return r;
}

__attribute__((format(printf, 2, 3))) static int
note_reason(int err, const char *fmt, ...)
{
	struct reason *r = thread_reason();
	va_list ap;

	if (!r)
		return err;
	r->err = err;
	r->fmt = fmt;
	va_start(ap, fmt);
	vsnprintf(r->text, sizeof(r->text), fmt, ap);
	va_end(ap);
	return err;
}

int why_about(int err, const char *fmt, ...)
{
	struct reason *r = why_wanted() ? thread_reason() : NULL;
	char about[100];
	size_t n, room;
	va_list ap;

	if (!r || r->err != err)
		return err;
	va_start(ap, fmt);
	vsnprintf(about, sizeof(about) - 2, fmt, ap);
	va_end(ap);
	strcat(about, ": ");
	n = strlen(about);
	room = sizeof(r->text) - n - 1;
	memmove(r->text + n, r->text, room);
	memcpy(r->text, about, n);
	r->text[sizeof(r->text) - 1] = '\0';
	return err;
}

void why_begin(void)
{
	if (!pthread_key_create(&key, free))
		atomic_store(&why_note, note_reason);
}

void why_forget(void)
{
	struct reason *r = why_wanted() ? thread_reason() : NULL;

	if (r)
		r->err = r->reported = 0;
}

const char *why_errno(int err)
{
	const char *name = strerrorname_np(err < 0 ? -err : err);

	return name ? name : "error";
}

static uint32_t hash_more(uint32_t h, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len--)
		h = (h ^ *p++) * 16777619u;
	return h;
}

/* Whether the line is to be shown; *hidden: how many were not, before it. */
static bool line_admit(uint32_t at, uint32_t line, unsigned *hidden)
{
	struct callsite *p = &callsites[at % CALLSITES];
	const uint64_t now = clock_ns();
	bool show = true;

	*hidden = 0;
	/* Held across a fork() it would stay so in the child. */
	if (pthread_mutex_trylock(&callsites_lock))
		return true;
	if (p->hash != at || now - p->since_ns >= SECOND_NS) {
		if (p->hash == at)
			*hidden = p->hidden;
		*p = (struct callsite){ .hash = at, .since_ns = now };
	}
	for (unsigned i = 0; i < p->nlines; i++)
		show &= p->line[i] != line;
	show &= p->nlines < BURST;
	if (show)
		p->line[p->nlines++] = line;
	else
		p->hidden++;
	pthread_mutex_unlock(&callsites_lock);
	return show;
}

/* What an errno means wherever it comes from. */
static const char *errno_reason(int err)
{
	switch (-err) {
	case EIO:
		return "the object was made before fork(): in the child "
		       "nothing of it works; open the device there";
	case ENOMEM:
		return "no memory, or more objects than the device has "
		       "(ibv_query_device)";
	case EOPNOTSUPP:
	case ENOSYS:
		return "not supported by this device; programs that can do "
		       "without it continue";
	case EMFILE:
		return "the process has too many descriptors: close some, or "
		       "raise ulimit -n";
	default:
		return sys_strerror(-err);
	}
}

/* What is an answer rather than a failure: nothing there, a hole in the GID
 * table, connected already. */
static bool is_none(int err)
{
	return err == -EAGAIN || err == -EINTR || err == -ENODATA ||
	       err == -EISCONN;
}

static const char *public_name(const char *func, char *name, size_t size)
{
	if (!strncmp(func, "slot_", 5)) {
		snprintf(name, size, "ibv_%s", func + 5);
		return name;
	}
	/* What the header makes of ibv_reg_mr(). */
	if (!strcmp(func, "ibv_reg_mr_iova2"))
		return "ibv_reg_mr";
	return func + (func[0] == '_');
}

void why_report(const char *func, int err)
{
	const int saved = errno;
	struct reason *r = thread_reason();
	char name[64], again[64] = "";
	const char *call = public_name(func, name, sizeof(name));
	const char *text = errno_reason(err), *fmt = NULL;
	unsigned hidden;
	uint32_t at;

	if (!r)
		return;
	if (r->err == err) {
		text = r->text;
		fmt = r->fmt;
	} else if (is_none(err) ||
		   (r->reported == err && !strncmp(call, "rdma_", 5))) {
		return;
	}
	r->err = 0;
	r->reported = err;
	at = hash_more(hash_more(2166136261u, call, strlen(call)), &fmt,
		       sizeof(fmt));
	if (line_admit(at, hash_more(at, text, strlen(text)), &hidden)) {
		if (hidden)
			snprintf(again, sizeof(again),
				 " (%u more like this were not shown)", hidden);
		say("%s: %s: %s%s", call, why_errno(err), text, again);
	}
	errno = saved;
}
