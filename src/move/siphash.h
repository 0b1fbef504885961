/*
 * siphash.h - SipHash-2-4 with 128 bits of result (Aumasson, Bernstein): a keyed
 * function of short messages that nobody without the key can tell from chance
 */
#ifndef SOFTHCA_MOVE_SIPHASH_H
#define SOFTHCA_MOVE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

#define SIPHASH_KEY 16
#define SIPHASH_LEN 16

void siphash128(uint8_t out[SIPHASH_LEN], const uint8_t key[SIPHASH_KEY],
		const void *data, size_t len);

#endif
