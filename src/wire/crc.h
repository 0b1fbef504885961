/*
 * crc.h - what the CRCs that ISA-L computes have in common
 */
#ifndef SOFTHCA_WIRE_CRC_H
#define SOFTHCA_WIRE_CRC_H

#include <isa-l/crc.h>
#include <stddef.h>
#include <stdint.h>

/* So many bytes need no code for long buffers. */
#define CRC_SHORT 64

/*
 * ISA-L's AVX-512 code, chosen for long buffers, leaves the upper halves of the
 * vector registers in use. Until they are cleared, every SSE instruction, ours
 * and the program's, waits for them: the next CRC of a few bytes takes ten times
 * as long. To be called after each of len bytes.
 */
#ifdef __x86_64__
__attribute__((target("avx"))) static inline void crc_clear_upper_halves(void)
{
	__builtin_ia32_vzeroupper();
}

static inline void crc_done(size_t len)
{
	if (len > CRC_SHORT && __builtin_cpu_supports("avx"))
		crc_clear_upper_halves();
}
#else
static inline void crc_done(size_t len)
{
	(void)len;
}
#endif

/* In packets the first byte has the highest powers, as the register is kept:
 * reflected. */
static inline void crc_put(uint8_t out[4], uint32_t crc)
{
	out[0] = (uint8_t)crc;
	out[1] = (uint8_t)(crc >> 8);
	out[2] = (uint8_t)(crc >> 16);
	out[3] = (uint8_t)(crc >> 24);
}

static inline uint32_t crc_get(const uint8_t in[4])
{
	return (uint32_t)in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 |
	       (uint32_t)in[3] << 24;
}

#endif
