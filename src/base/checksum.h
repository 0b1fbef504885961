/*
 * checksum.h - the Internet checksum (RFC 1071)
 */
#ifndef SOFTHCA_BASE_CHECKSUM_H
#define SOFTHCA_BASE_CHECKSUM_H

#include "bytes.h"

/* Adds len bytes to a sum; only the last piece of several may be odd. */
static inline uint64_t inet_sum(uint64_t sum, const uint8_t *p, size_t len)
{
	for (; len >= 2; p += 2, len -= 2)
		sum += get_be16(p);
	return len ? sum + (uint64_t)(p[0] << 8) : sum;
}

/* The checksum to store; over bytes that include it: 0 if it is right. */
static inline uint16_t inet_fold(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

#endif
