/*
 * hash64.h - numbers that look random, each a function of one number, or of bytes
 */
#ifndef SOFTHCA_BASE_HASH64_H
#define SOFTHCA_BASE_HASH64_H

#include <stddef.h>
#include <stdint.h>

/* Successive multiples of it, through hash64(), are splitmix64's sequence. */
#define HASH64_STEP UINT64_C(0x9e3779b97f4a7c15)

/* One to one: every bit of x changes half of the result's. */
static inline uint64_t hash64(uint64_t x)
{
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* FNV-1a of bytes behind those that hash is of; HASH64_BEGIN: of none. */
#define HASH64_BEGIN UINT64_C(0xcbf29ce484222325)

static inline uint64_t hash64_bytes(uint64_t hash, const void *data, size_t len)
{
	for (const uint8_t *p = data, *end = p + len; p < end; p++)
		hash = (hash ^ *p) * UINT64_C(0x100000001b3);
	return hash;
}

#endif
