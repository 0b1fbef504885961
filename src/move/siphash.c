/*
 * siphash.c - SipHash-2-4-128
 */
#include "siphash.h"

#include <string.h>

static uint64_t get_le64(const uint8_t *p)
{
	uint64_t v = 0;

	for (int i = 7; i >= 0; i--)
		v = v << 8 | p[i];
	return v;
}

static void put_le64(uint8_t *p, uint64_t v)
{
	for (int i = 0; i < 8; i++, v >>= 8)
		p[i] = (uint8_t)v;
}

static uint64_t rotl(uint64_t x, unsigned n)
{
	return x << n | x >> (64 - n);
}

static void rounds(uint64_t v[4], unsigned n)
{
	while (n--) {
		v[0] += v[1];
		v[1] = rotl(v[1], 13) ^ v[0];
		v[0] = rotl(v[0], 32);
		v[2] += v[3];
		v[3] = rotl(v[3], 16) ^ v[2];
		v[0] += v[3];
		v[3] = rotl(v[3], 21) ^ v[0];
		v[2] += v[1];
		v[1] = rotl(v[1], 17) ^ v[2];
		v[2] = rotl(v[2], 32);
	}
}

static void word(uint64_t v[4], uint64_t m)
{
	v[3] ^= m;
	rounds(v, 2);
	v[0] ^= m;
}

void siphash128(uint8_t out[SIPHASH_LEN], const uint8_t key[SIPHASH_KEY],
		const void *data, size_t len)
{
	const uint64_t k0 = get_le64(key), k1 = get_le64(key + 8);
	const uint8_t *p = data;
	uint64_t v[4] = { k0 ^ UINT64_C(0x736f6d6570736575),
			  k1 ^ UINT64_C(0x646f72616e646f6d) ^ 0xee,
			  k0 ^ UINT64_C(0x6c7967656e657261),
			  k1 ^ UINT64_C(0x7465646279746573) };
	uint8_t last[8] = { 0 };
	size_t left = len;

	for (; left >= 8; left -= 8, p += 8)
		word(v, get_le64(p));
	if (left)
		memcpy(last, p, left);
	last[7] = (uint8_t)len;
	word(v, get_le64(last));
	v[2] ^= 0xee;
	rounds(v, 4);
	put_le64(out, v[0] ^ v[1] ^ v[2] ^ v[3]);
	v[1] ^= 0xdd;
	rounds(v, 4);
	put_le64(out + 8, v[0] ^ v[1] ^ v[2] ^ v[3]);
}
