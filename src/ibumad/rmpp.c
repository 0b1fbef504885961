/*
 * rmpp.c - messages of several packets, see rmpp.h
 */
#include "rmpp.h"

#include "base/bytes.h"
#include "base/gid.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Table 27 of IBA 13.6.2, behind the common header. */
#define VERSION_AT 24
#define TYPE_AT 25
#define FLAGS_AT 26 /* and the response time */
#define STATUS_AT 27
#define SEGMENT_AT 28
#define LENGTH_AT 32 /* of DATA: bytes; of ACK: the window's last */

enum { TYPE_DATA = 1, TYPE_ACK = 2, TYPE_STOP = 3, TYPE_ABORT = 4 };
enum { FLAG_ACTIVE = 1, FLAG_FIRST = 2, FLAG_LAST = 4 };
#define NO_RESPONSE_TIME 0xf8 /* 31: none is said */

#define STATUS_RESOURCES 1 /* of STOP: resources exhausted */
#define STATUS_VERSION 123 /* of ABORT: unsupported version */

/* What a segment has behind the RMPP header, with the class's own header. */
#define SEGMENT_BYTES (MAD_LEN - MAD_RMPP_LEN)

#define MSEC 1000000ull
#define ACK_NS (200 * MSEC) /* until what is not acknowledged is sent again */
#define ACK_TRIES 10
#define WINDOW 64
#define RX_MAX 32 /* messages of a port that are coming in, or were */
#define RX_KEPT_NS (10000 * MSEC)

/* Sending */

struct rmpp_tx {
	uint32_t segments, acked, window;
	uint32_t next; /* to be sent, perhaps again, */
	uint32_t fresh; /* and for the first time */
	unsigned tries;
	bool ended;
};

static size_t segment_room(uint8_t class)
{
	return MAD_LEN - mad_data_offset(class);
}

int rmpp_tx_new(struct sent *s)
{
	const size_t room = segment_room(s->mad[1]);
	const size_t data = s->len - mad_data_offset(s->mad[1]);
	struct rmpp_tx *t = calloc(1, sizeof(*t));

	if (!t)
		return -ENOMEM;
	t->segments = data ? (uint32_t)((data + room - 1) / room) : 1;
	t->next = t->fresh = 1;
	t->window = 1;
	t->tries = ACK_TRIES;
	s->rmpp = t;
	return 0;
}

void rmpp_tx_free(struct rmpp_tx *t)
{
	free(t);
}

bool rmpp_tx_ended(const struct sent *s)
{
	return s->rmpp->ended;
}

static void put_segment(const struct sent *s, uint32_t n, uint8_t *mad)
{
	const struct rmpp_tx *t = s->rmpp;
	const size_t from = mad_data_offset(s->mad[1]);
	const size_t room = segment_room(s->mad[1]);
	const size_t at = from + (size_t)(n - 1) * room;
	const size_t len = s->len - at < room ? s->len - at : room;
	const size_t pad = t->segments * room - (s->len - from);
	uint32_t length = 0;

	memset(mad, 0, MAD_LEN);
	memcpy(mad, s->mad, from);
	memcpy(mad + from, s->mad + at, len);
	mad[VERSION_AT] = UMAD_RMPP_VERSION;
	mad[TYPE_AT] = TYPE_DATA;
	mad[FLAGS_AT] = NO_RESPONSE_TIME | FLAG_ACTIVE;
	mad[STATUS_AT] = 0;
	if (n == 1) {
		mad[FLAGS_AT] |= FLAG_FIRST;
		length = (uint32_t)(t->segments * SEGMENT_BYTES - pad);
	}
	if (n == t->segments) {
		mad[FLAGS_AT] |= FLAG_LAST;
		length = (uint32_t)(SEGMENT_BYTES - pad);
	}
	put_be32(mad + SEGMENT_AT, n);
	put_be32(mad + LENGTH_AT, length);
}

bool rmpp_tx_next(struct sent *s, uint64_t now_ns, uint8_t mad[MAD_LEN])
{
	struct rmpp_tx *t = s->rmpp;

	if (t->ended) {
		s->due_ns = UINT64_MAX;
		return false;
	}
	if (t->next > t->segments || t->next > t->window) {
		if (now_ns < s->due_ns)
			return false;
		/* The time for an acknowledgement has passed. */
		if (!t->tries--) {
			t->ended = true;
			s->due_ns = UINT64_MAX;
			return false;
		}
		t->next = t->acked + 1;
	}
	put_segment(s, t->next++, mad);
	t->fresh = max_u32(t->fresh, t->next);
	s->due_ns = t->next > t->segments || t->next > t->window ?
			    now_ns + ACK_NS :
			    0;
	return true;
}

bool rmpp_is_data(const uint8_t *mad)
{
	return rmpp_is_active(mad) && mad[TYPE_AT] == TYPE_DATA;
}

void rmpp_tx_answer(struct sent *s, const uint8_t *mad, uint64_t now_ns)
{
	const uint32_t segment = get_be32(mad + SEGMENT_AT);
	const uint32_t window = get_be32(mad + LENGTH_AT);
	struct rmpp_tx *t = s->rmpp;
	bool news;

	if (t->ended)
		return;
	if (mad[TYPE_AT] == TYPE_STOP || mad[TYPE_AT] == TYPE_ABORT) {
		t->ended = true;
		return;
	}
	/* One that acknowledges what was never sent is nobody's. */
	if (mad[TYPE_AT] != TYPE_ACK || segment < t->acked ||
	    segment >= t->fresh || window < segment)
		return;
	news = segment > t->acked || window > t->window;
	t->acked = segment;
	t->next = max_u32(t->next, segment + 1);
	t->window = max_u32(t->window, window);
	t->ended = t->acked == t->segments;
	if (!news)
		return;
	/* Where all that may be sent is out, the wait begins anew. */
	t->tries = ACK_TRIES;
	s->due_ns =
		t->ended || (t->next <= t->segments && t->next <= t->window) ?
			0 :
			now_ns + ACK_NS;
}

/* Receiving */

struct rmpp_rx {
	struct rmpp_rx *next;
	union ibv_gid from;
	uint8_t key[16]; /* of the common header: who and what it is */
	uint32_t segments; /* how many there are so far */
	uint64_t seen_ns;
	bool whole;
	size_t size;
	uint8_t *message;
};

static void key_of(const uint8_t *mad, uint8_t key[16])
{
	memset(key, 0, 16);
	memcpy(key, mad, 4);
	memcpy(key + 4, mad + 8, 8);
	memcpy(key + 12, mad + 16, 2);
}

static void rx_drop(struct port *p, struct rmpp_rx **at)
{
	struct rmpp_rx *r = *at;

	*at = r->next;
	p->nrmpp--;
	p->rmpp_bytes -= r->size;
	free(r->message);
	free(r);
}

void rmpp_rx_free(struct port *p)
{
	while (p->rmpp)
		rx_drop(p, &p->rmpp);
}

/* Those that are old, and the oldest where there are too many. */
static void rx_sweep(struct port *p, uint64_t now_ns)
{
	struct rmpp_rx **at = &p->rmpp, **oldest = NULL;

	while (*at) {
		if (now_ns - (*at)->seen_ns > RX_KEPT_NS) {
			rx_drop(p, at);
			continue;
		}
		if (!oldest || (*at)->seen_ns < (*oldest)->seen_ns)
			oldest = at;
		at = &(*at)->next;
	}
	if (p->nrmpp >= RX_MAX && oldest)
		rx_drop(p, oldest);
}

static struct rmpp_rx *rx_find(struct port *p, const union ibv_gid *from,
			       const uint8_t *mad, uint64_t now_ns)
{
	uint8_t key[16];
	struct rmpp_rx *r;

	key_of(mad, key);
	for (r = p->rmpp; r; r = r->next)
		if (!memcmp(r->key, key, sizeof(key)) &&
		    gid_equal(&r->from, from))
			return r;
	rx_sweep(p, now_ns);
	if (get_be32(mad + SEGMENT_AT) != 1)
		return NULL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->from = *from;
	memcpy(r->key, key, sizeof(key));
	r->next = p->rmpp;
	p->rmpp = r;
	p->nrmpp++;
	return r;
}

/* Room for one more segment. */
static bool rx_grow(struct port *p, struct rmpp_rx *r, size_t need)
{
	size_t size = r->size ? r->size : 4096;
	uint8_t *more;

	while (size < need)
		size *= 2;
	if (size == r->size)
		return true;
	if (p->rmpp_bytes + size - r->size > RMPP_BYTES)
		return false;
	more = realloc(r->message, size);
	if (!more)
		return false;
	r->message = more;
	p->rmpp_bytes += size - r->size;
	r->size = size;
	return true;
}

static void put_answer(const uint8_t *mad, uint8_t type, uint8_t status,
		       uint32_t segment, uint8_t *answer)
{
	memset(answer, 0, MAD_LEN);
	memcpy(answer, mad, mad_data_offset(mad[1]));
	answer[3] ^= UMAD_METHOD_RESP_MASK;
	answer[VERSION_AT] = UMAD_RMPP_VERSION;
	answer[TYPE_AT] = type;
	answer[FLAGS_AT] = NO_RESPONSE_TIME | FLAG_ACTIVE;
	answer[STATUS_AT] = status;
	put_be32(answer + SEGMENT_AT, segment);
	put_be32(answer + LENGTH_AT, type == TYPE_ACK ? segment + WINDOW : 0);
}

size_t rmpp_rx(struct port *p, const union ibv_gid *from, const uint8_t *mad,
	       uint64_t now_ns, uint8_t answer[MAD_LEN], uint8_t **message)
{
	const size_t off = mad_data_offset(mad[1]), room = MAD_LEN - off;
	const uint32_t n = get_be32(mad + SEGMENT_AT);
	uint32_t last = get_be32(mad + LENGTH_AT);
	struct rmpp_rx *r;
	size_t at;

	answer[0] = 0;
	if (mad[VERSION_AT] != UMAD_RMPP_VERSION) {
		put_answer(mad, TYPE_ABORT, STATUS_VERSION, n, answer);
		return 0;
	}
	r = rx_find(p, from, mad, now_ns);
	if (!r)
		return 0;
	r->seen_ns = now_ns;
	if (r->whole || n != r->segments + 1) {
		put_answer(mad, TYPE_ACK, 0, r->segments, answer);
		return 0;
	}
	at = n == 1 ? 0 : off + (size_t)(n - 1) * room;
	if (at + MAD_LEN > RMPP_MAX || !rx_grow(p, r, at + MAD_LEN)) {
		put_answer(mad, TYPE_STOP, STATUS_RESOURCES, n, answer);
		return 0;
	}
	if (n == 1)
		memcpy(r->message, mad, MAD_LEN);
	else
		memcpy(r->message + at, mad + off, room);
	r->segments = n;
	put_answer(mad, TYPE_ACK, 0, n, answer);
	if (!(mad[FLAGS_AT] & FLAG_LAST)) {
		/* Within the window nobody waits for one. */
		if (n % (WINDOW / 2) != 0 && n != 1)
			answer[0] = 0;
		return 0;
	}
	r->whole = true;
	/* What the last has, or, as the kernel takes it, all of it. */
	if (last > SEGMENT_BYTES || last < SEGMENT_BYTES - room)
		last = SEGMENT_BYTES;
	*message = r->message;
	p->rmpp_bytes -= r->size;
	r->message = NULL;
	r->size = 0;
	return off + (size_t)n * room - (SEGMENT_BYTES - last);
}
