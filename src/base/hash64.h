/*
 * hash64.h - numbers that look random, each a function of one number
 */
#ifndef SOFTHCA_BASE_HASH64_H
#define SOFTHCA_BASE_HASH64_H

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

#endif
