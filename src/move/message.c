/*
 * message.c - the bytes of a message
 */
#include "message.h"

#include "base/bytes.h"

#include <errno.h>
#include <string.h>

enum {
	AT_OUI = 37,
	AT_VERSION = 40,
	AT_COUNT = 41,
	AT_FLAGS = 42,
	AT_TO = 44,
	AT_FROM = 48,
	AT_VALUE = 52,
	AT_COUNTER = 56,
	AT_PROCESS = 64,
	AT_NONCE = 72,
	AT_WAS = 88,
	AT_NOW = 104,
	AT_ENTRIES = 120,
	AT_MAC = 240,
	ENTRY_LEN = 15,
};

_Static_assert(AT_ENTRIES + MOVE_ENTRIES * ENTRY_LEN == AT_MAC &&
		       AT_MAC + SIPHASH_LEN == MAD_LEN,
	       "it fills the MAD");

bool move_is(const uint8_t *mad, size_t len)
{
	return mad && len == MAD_LEN && mad[0] == MAD_BASE_VERSION &&
	       mad[1] == MOVE_CLASS && get_be24(mad + AT_OUI) == MOVE_OUI;
}

uint32_t move_to(const uint8_t mad[MAD_LEN])
{
	return get_be32(mad + AT_TO) & 0xffffff;
}

static void put_entry(uint8_t *p, const struct move_entry *e)
{
	put_be24(p, e->was);
	put_be24(p + 3, e->now);
	put_be24(p + 6, e->peer);
	put_be24(p + 9, e->una);
	put_be24(p + 12, e->epsn);
}

static void get_entry(const uint8_t *p, struct move_entry *e)
{
	e->was = get_be24(p);
	e->now = get_be24(p + 3);
	e->peer = get_be24(p + 6);
	e->una = get_be24(p + 9);
	e->epsn = get_be24(p + 12);
}

static void put_all(const struct move_message *m, uint8_t *mad)
{
	memset(mad, 0, MAD_LEN);
	mad[0] = MAD_BASE_VERSION;
	mad[1] = MOVE_CLASS;
	mad[2] = 1; /* of the class */
	mad[3] = MAD_METHOD_SEND;
	put_be64(mad + 8, m->counter);
	put_be16(mad + 16, m->kind);
	put_be24(mad + AT_OUI, MOVE_OUI);
	mad[AT_VERSION] = MOVE_VERSION;
	mad[AT_COUNT] = m->n;
	mad[AT_FLAGS] = m->keyed ? MOVE_KEYED : 0;
	put_be32(mad + AT_TO, m->to);
	put_be32(mad + AT_FROM, m->from);
	put_be32(mad + AT_VALUE, m->value);
	put_be64(mad + AT_COUNTER, m->counter);
	put_be64(mad + AT_PROCESS, m->process);
	memcpy(mad + AT_NONCE, m->nonce, MOVE_NONCE);
	memcpy(mad + AT_WAS, m->was.raw, 16);
	memcpy(mad + AT_NOW, m->now.raw, 16);
	for (unsigned i = 0; i < m->n; i++)
		put_entry(mad + AT_ENTRIES + i * ENTRY_LEN, &m->entry[i]);
}

void move_encode(const struct move_message *m, const uint8_t *key,
		 uint8_t mad[MAD_LEN])
{
	put_all(m, mad);
	if (key)
		siphash128(mad + AT_MAC, key, mad, AT_MAC);
}

static bool ids_fit(uint32_t value)
{
	const uint32_t was = value >> MOVE_CHUNK_BITS;
	const uint32_t now = value & (MOVE_CHUNKS - 1);

	return !value || (was && now && was < MOVE_CHUNKS && was != now);
}

static bool fits(const struct move_message *m)
{
	const bool hello =
		m->kind == MOVE_HELLO || m->kind == MOVE_HELLO_ANSWER;
	static const union ibv_gid none;
	const bool asks = m->kind == MOVE_PAUSE || m->kind == MOVE_RESUME;

	if (m->to > 0xffffff || m->from > 0xffffff || !m->counter)
		return false;
	if (hello ? m->n || m->value : asks ? !m->n : m->n)
		return false;
	if (m->kind == MOVE_HELLO && memcmp(&m->now, &none, sizeof(none)))
		return false;
	if (m->kind == MOVE_PAUSE)
		return m->value && m->value <= MOVE_SECONDS_MAX;
	return m->kind != MOVE_RESUME || ids_fit(m->value);
}

int move_decode(struct move_message *m, const uint8_t *mad, size_t len)
{
	uint8_t same[MAD_LEN];
	uint16_t kind;

	if (!move_is(mad, len))
		return -EINVAL;
	kind = get_be16(mad + 16);
	if (!kind || kind >= MOVE_KINDS || mad[AT_COUNT] > MOVE_ENTRIES)
		return -EINVAL;
	memset(m, 0, sizeof(*m));
	m->kind = (enum move_kind)kind;
	m->keyed = mad[AT_FLAGS] & MOVE_KEYED;
	m->n = mad[AT_COUNT];
	m->to = get_be32(mad + AT_TO);
	m->from = get_be32(mad + AT_FROM);
	m->value = get_be32(mad + AT_VALUE);
	m->counter = get_be64(mad + AT_COUNTER);
	m->process = get_be64(mad + AT_PROCESS);
	memcpy(m->nonce, mad + AT_NONCE, MOVE_NONCE);
	memcpy(m->was.raw, mad + AT_WAS, 16);
	memcpy(m->now.raw, mad + AT_NOW, 16);
	for (unsigned i = 0; i < m->n; i++)
		get_entry(mad + AT_ENTRIES + i * ENTRY_LEN, &m->entry[i]);
	put_all(m, same);
	if (memcmp(same, mad, AT_MAC) || !fits(m))
		return -EINVAL;
	/* Of a HELLO nothing is left out. */
	return kind == MOVE_HELLO && memcmp(same + AT_MAC, mad + AT_MAC, 16) ?
		       -EINVAL :
		       0;
}

bool move_sealed(const uint8_t mad[MAD_LEN], const uint8_t key[SIPHASH_KEY])
{
	uint8_t mac[SIPHASH_LEN], differs = 0;

	siphash128(mac, key, mad, AT_MAC);
	/* As long as it takes, whatever is wrong. */
	for (unsigned i = 0; i < SIPHASH_LEN; i++)
		differs |= mac[i] ^ mad[AT_MAC + i];
	return !differs;
}
