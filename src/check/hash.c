/*
 * hash.c - whether memory of a work request has changed
 */
#include "check_internal.h"

#include "base/bytes.h"
#include "base/hash64.h"

#include <string.h>

struct hash {
	uint64_t h;
	uint32_t len;
};

static void hash_bytes(void *arg, const void *bytes)
{
	const uint8_t *p = bytes;
	struct hash *to = arg;
	uint64_t h = to->h, word;
	uint32_t left = to->len;

	for (; left >= 8; left -= 8, p += 8) {
		memcpy(&word, p, 8);
		h = (h ^ word) * UINT64_C(0x9e3779b97f4a7c15);
		h ^= h >> 29;
	}
	word = left;
	memcpy((uint8_t *)&word + 1, p, left);
	to->h = hash64(h ^ word);
}

bool check_hash(struct ibv_qp *ib, const struct ibv_sge *sge, uint32_t n,
		uint64_t *out)
{
	uint32_t room = CHECK_BYTES;
	struct hash hash = { .h = 1 };

	for (uint32_t i = 0; i < n && room; i++) {
		hash.len = min_u32(sge[i].length, room);
		if (hash.len &&
		    !check_env.read(ib, &sge[i], hash.len, hash_bytes, &hash))
			return false;
		room -= hash.len;
	}
	*out = hash.h;
	return true;
}
