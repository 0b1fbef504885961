/*
 * icrc.h - the invariant CRC of RoCE (IBTA 7.8.1, annexes A16.3 and A17.3.3)
 *
 * CRC-32 (Ethernet's polynomial, reflected, sent least significant byte first)
 * over eight bytes of 0xff in place of the LRH, the IP and UDP headers, or of v1
 * the GRH, with the fields that routers change taken as all ones, the BTH with
 * resv8a (FECN, BECN) as ones, and the rest up to the ICRC itself.
 */
#ifndef SOFTHCA_WIRE_ICRC_H
#define SOFTHCA_WIRE_ICRC_H

#include "grh.h"

#include <sys/uio.h>

/*
 * The state after the pseudo header, IP and UDP headers of a packet with
 * transport_len bytes from BTH to ICRC inclusive. IPv4 headers have no
 * options, DF set, and identification ip_id; IPv6 ignores ip_id.
 * src and dst are as on the wire, both v4-mapped or both IPv6.
 */
uint32_t icrc_begin(const union ibv_gid *src, const union ibv_gid *dst,
		    uint16_t sport, uint16_t dport, size_t transport_len,
		    uint16_t ip_id);

/* The same of a packet of RoCE v1, after its GRH. */
uint32_t icrc_grh(const uint8_t grh[GRH_LEN]);

/*
 * The same where packets of one flow and length come after each other: most are
 * known. All zeros at first; who shares them holds a lock.
 */
#define ICRC_MEMOS 4

struct icrc_known {
	uint32_t len; /* 0: nothing is known */
	uint16_t sport, dport, ip_id;
	uint32_t crc;
};

struct icrc_memo {
	struct {
		union ibv_gid src, dst;
		struct icrc_known of;
	} known[ICRC_MEMOS];
};
/* Of one source and destination. */
struct icrc_flow {
	struct icrc_known known[ICRC_MEMOS];
};
uint32_t icrc_begin_flow(struct icrc_flow *f, const union ibv_gid *src,
			 const union ibv_gid *dst, uint16_t sport,
			 uint16_t dport, size_t transport_len, uint16_t ip_id);
uint32_t icrc_begin_known(struct icrc_memo *m, const union ibv_gid *src,
			  const union ibv_gid *dst, uint16_t sport,
			  uint16_t dport, size_t transport_len, uint16_t ip_id);

/* Goes on over len bytes; the first call's bytes must begin with the BTH. */
uint32_t icrc_bth(uint32_t crc, const uint8_t *hdr, size_t len);
uint32_t icrc_update(uint32_t crc, const void *p, size_t len);
/* As icrc_bth() of memory that nobody else looks at, whose fifth byte is another
 * one meanwhile. */
uint32_t icrc_bth_own(uint32_t crc, uint8_t *hdr, size_t len);

/* Stores the finished CRC as it stands on the wire. */
void icrc_put(uint8_t out[ROCE_ICRC_LEN], uint32_t crc);

/* Whether it is the one at the end of the len bytes that it covers and the four
 * that it has. */
bool icrc_is(uint32_t crc, const uint8_t *pkt, size_t len);

/*
 * Checks the ICRC at the end of a received packet (len bytes from BTH to ICRC
 * inclusive). A UDP receiver cannot see the IPv4 identification, so for IPv4
 * the CRC is first computed with a guess. If it differs, the id that explains
 * the difference is solved for, since the CRC is linear; the packet is good if
 * there is one: all 32 bits are checked against 2^16 candidates.
 * *ip_id, if not NULL, is the guess on entry, and on success the id; NULL
 * guesses 0. A wrong guess costs some 30 ns. For IPv6 *ip_id is left alone.
 */
bool icrc_check(const union ibv_gid *src, const union ibv_gid *dst,
		uint16_t sport, uint16_t dport, const uint8_t *pkt, size_t len,
		uint16_t *ip_id);
/* The same of a packet in memory that nobody else looks at; m: what is known of
 * such packets. */
bool icrc_check_own(struct icrc_memo *m, const union ibv_gid *src,
		    const union ibv_gid *dst, uint16_t sport, uint16_t dport,
		    uint8_t *pkt, size_t len, uint16_t *ip_id);

#endif
