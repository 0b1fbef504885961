/*
 * mpa_crc.c - the CRC32c of FPDUs, apart from the frames: the tool, which has to
 * start where ISA-L is missing, makes frames
 */
#include "mpa.h"

#include "crc.h"

uint32_t mpa_crc(uint32_t crc, const void *p, size_t len)
{
	if (!len)
		return crc;
	crc = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)len, crc);
	crc_done(len);
	return crc;
}

void mpa_crc_put(uint8_t out[MPA_CRC_LEN], uint32_t crc)
{
	crc_put(out, ~crc);
}

bool mpa_crc_is(const uint8_t in[MPA_CRC_LEN], uint32_t crc)
{
	return crc_get(in) == ~crc;
}
