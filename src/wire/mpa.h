/*
 * mpa.h - MPA: the frames that begin a connection, and FPDUs
 *
 * A connection begins with a request frame and a reply:
 *
 *   key (16) | M C R S.. (1) | revision (1) | length (2) | private data
 *
 * With S (RFC 6581) the private data begin with IRD, ORD and four flags. After
 * the frames all bytes are FPDUs:
 *
 *   length (2) | ULPDU: a DDP segment | pad 0..3 | CRC (4)
 *
 * where length is the ULPDU's, and the CRC is zero if none is used. Where a peer
 * has asked for markers, one of 4 bytes stands at each 512th byte of what
 * follows the frames, the first at byte 0: two zero bytes and the distance back
 * to the length of the FPDU it is in; 0: it stands before one. Markers are in no
 * length, and those from the one that stands before an FPDU on are in its CRC.
 *
 * Reference: RFC 5044 (chapters 4 and 7), RFC 6581 (chapter 9).
 */
#ifndef SOFTHCA_WIRE_MPA_H
#define SOFTHCA_WIRE_MPA_H

#include "base/bytes.h"

#include <stdbool.h>

#define MPA_HDR_LEN 20 /* of a frame, before the private data */
#define MPA_PRIVATE_MAX 512
#define MPA_ENHANCED_LEN 4 /* of them, where the frame is enhanced */
#define MPA_FRAME_MAX (MPA_HDR_LEN + MPA_PRIVATE_MAX)
#define MPA_REVISION 2 /* the latest */
#define MPA_RD_MAX 0x3ffeu /* of IRD and ORD */
#define MPA_RD_ANY 0x3fffu /* the programs settle it between them */

#define MPA_LEN_LEN 2
#define MPA_CRC_LEN 4
#define MPA_MARKER_LEN 4
#define MPA_MARKER_STEP 512u
#define MPA_ULPDU_MAX 0xffffu

struct mpa_frame {
	bool reply; /* or a request */
	bool markers, crc; /* M, C: the sender wants them */
	bool reject; /* R */
	bool enhanced; /* S: the fields below are there */
	bool large; /* siw's: FPDUs longer than a TCP segment are welcome */
	uint8_t revision;
	uint16_t private_len; /* without those fields */

	uint16_t ird, ord; /* 14 bits */
	bool peer_to_peer; /* A: the initiator sends first, a message that no
			    * program sees: of a request those that it can
			    * send, of a reply the one that it is to: */
	bool rtr_send; /* B: a send, */
	bool rtr_write; /* C: a write, */
	bool rtr_read; /* D: a read of no bytes */
};

/*
 * How long the frame is whose first len bytes are at p: MPA_HDR_LEN as long as
 * that is not known. -EPROTO: they begin no such frame. -EMSGSIZE: it has too
 * much private data.
 */
int mpa_frame_len(bool reply, const uint8_t *p, size_t len);

/*
 * Decodes a frame that is complete; the private data are the last private_len
 * bytes. -EPROTO: it is none; -EMSGSIZE: the private data are too many, or too
 * few for an enhanced frame. Reserved bits are ignored, the revision is not
 * checked. An enhanced frame is one of revision 2 on only.
 */
int mpa_frame_decode(struct mpa_frame *f, bool reply, const uint8_t *p,
		     size_t len);

/* Writes f without its private data to p; the length of that. */
size_t mpa_frame_encode(const struct mpa_frame *f, uint8_t *p);

/* Zero bytes between a ULPDU and the CRC. */
static inline uint32_t mpa_pad(uint32_t ulpdu)
{
	return -(MPA_LEN_LEN + ulpdu) & 3;
}

/* From length to CRC, without markers. */
static inline uint32_t mpa_fpdu_len(uint32_t ulpdu)
{
	return MPA_LEN_LEN + ulpdu + mpa_pad(ulpdu) + MPA_CRC_LEN;
}

/*
 * CRC32c, over pieces: MPA_CRC_INIT, mpa_crc() of each, then mpa_crc_put(),
 * which also writes it, or mpa_crc_is().
 */
#define MPA_CRC_INIT 0xffffffffu
uint32_t mpa_crc(uint32_t crc, const void *p, size_t len);
void mpa_crc_put(uint8_t out[MPA_CRC_LEN], uint32_t crc);
bool mpa_crc_is(const uint8_t in[MPA_CRC_LEN], uint32_t crc);

#endif
