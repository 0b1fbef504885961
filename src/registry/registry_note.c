/*
 * registry_note.c - what a queue pair has said last of its peer's requests
 *
 * The peer's program gets a status, and its process finds here why (--explain).
 * Nobody locks: an entry that is written meanwhile is none, and so is one that
 * makes no sense.
 */
#include "registry_internal.h"

#include "os/config.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define RECENT_NS 5000000000u /* the numbers may have had an earlier life */

_Static_assert(sizeof(struct note) == 512, "its layout is the file's");

/* Word by word, since others may be reading. */
static void copy_note(_Atomic uint64_t *to, const char *text)
{
	char words[REGISTRY_NOTE] = "";
	uint64_t w;

	strncpy(words, text, sizeof(words) - 1);
	for (size_t i = 0; i < sizeof(words) / sizeof(w); i++) {
		memcpy(&w, words + i * sizeof(w), sizeof(w));
		STORE(&to[i], w);
	}
}

void registry_note(struct registry *r, uint32_t qpn, uint32_t peer,
		   const char *text)
{
	struct shared *m = r->file->m;
	struct note *n =
		&m->note[atomic_fetch_add(&m->head.noted, 1) % REGISTRY_NOTES];

	if (atomic_fetch_or(&n->seq, 1) & 1)
		return; /* somebody is at it, or has died there */
	STORE(&n->qpn, qpn);
	STORE(&n->peer, peer);
	STORE(&n->ns, clock_ns());
	copy_note(n->text, text);
	atomic_fetch_add(&n->seq, 1);
}

static bool read_note(const struct note *n, uint32_t qpn, uint32_t peer,
		      char text[REGISTRY_NOTE])
{
	const uint32_t seq = LOAD(&n->seq);
	uint64_t ns, w;

	if (seq & 1 || LOAD(&n->qpn) != qpn || LOAD(&n->peer) != peer)
		return false;
	ns = LOAD(&n->ns);
	for (size_t i = 0; i < REGISTRY_NOTE / sizeof(w); i++) {
		w = LOAD(&n->text[i]);
		memcpy(text + i * sizeof(w), &w, sizeof(w));
	}
	atomic_thread_fence(memory_order_acquire);
	text[REGISTRY_NOTE - 1] = '\0';
	for (char *p = text; *p; p++)
		if (!isprint((unsigned char)*p))
			*p = '?';
	return atomic_load(&n->seq) == seq && *text &&
	       clock_ns() - ns < RECENT_NS;
}

bool registry_noted(const struct registry *r, uint32_t qpn, uint32_t peer,
		    char text[REGISTRY_NOTE])
{
	const struct shared *m = r->file->m;
	const uint32_t end = LOAD(&m->head.noted);

	for (uint32_t i = 1; i <= REGISTRY_NOTES; i++)
		if (read_note(&m->note[(end - i) % REGISTRY_NOTES], qpn, peer,
			      text))
			return true;
	return false;
}
