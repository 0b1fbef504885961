/*
 * roce.h - the transport headers of RoCEv2: BTH and extended headers
 *
 * A packet is decoded once, at the edge, into struct roce_hdr in host order;
 * nothing above this layer knows byte positions. What follows the UDP header:
 *
 *   BTH (12) | extended headers by opcode | payload | pad 0..3 | ICRC (4)
 *
 * Reference: InfiniBand Architecture Specification vol. 1, chapter 9.2 (BTH),
 * 9.3 (extended headers), 9.4.5 table 38 (opcodes); annex A17 (RoCEv2).
 */
#ifndef SOFTHCA_WIRE_ROCE_H
#define SOFTHCA_WIRE_ROCE_H

#include "base/bytes.h"

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROCE_UDP_PORT 4791
#define ROCE_BTH_LEN 12
#define ROCE_ICRC_LEN 4
#define ROCE_ACK_LEN (ROCE_BTH_LEN + 4 + ROCE_ICRC_LEN) /* with an AETH */
#define ROCE_HDR_MAX 64 /* BTH and the longest run of extended headers */
#define ROCE_MTU_MAX 4096 /* payload bytes */
#define ROCE_MULTICAST_QPN 0xffffffu
#define ROCE_PKEY_DEFAULT 0xffffu

/* Transport services: the top three bits of an opcode. */
enum roce_service {
	ROCE_RC = 0x00,
	ROCE_UC = 0x20,
	ROCE_RD = 0x40,
	ROCE_UD = 0x60,
	ROCE_CNP_SERVICE = 0x80,
	ROCE_XRC = 0xa0,
};

/* Operations: the low five bits of an opcode. */
enum roce_op {
	ROCE_SEND_FIRST = 0x00,
	ROCE_SEND_MIDDLE = 0x01,
	ROCE_SEND_LAST = 0x02,
	ROCE_SEND_LAST_IMM = 0x03,
	ROCE_SEND_ONLY = 0x04,
	ROCE_SEND_ONLY_IMM = 0x05,
	ROCE_WRITE_FIRST = 0x06,
	ROCE_WRITE_MIDDLE = 0x07,
	ROCE_WRITE_LAST = 0x08,
	ROCE_WRITE_LAST_IMM = 0x09,
	ROCE_WRITE_ONLY = 0x0a,
	ROCE_WRITE_ONLY_IMM = 0x0b,
	ROCE_READ_REQUEST = 0x0c,
	ROCE_READ_RESP_FIRST = 0x0d,
	ROCE_READ_RESP_MIDDLE = 0x0e,
	ROCE_READ_RESP_LAST = 0x0f,
	ROCE_READ_RESP_ONLY = 0x10,
	ROCE_ACK = 0x11,
	ROCE_ATOMIC_ACK = 0x12,
	ROCE_CMP_SWAP = 0x13,
	ROCE_FETCH_ADD = 0x14,
	ROCE_SEND_LAST_INV = 0x16,
	ROCE_SEND_ONLY_INV = 0x17,
	ROCE_ATOMIC_WRITE = 0x1d, /* annex A19 */
};

#define ROCE_CNP 0x81 /* congestion notification packet, annex A17.9.3 */

/* What an opcode carries and means; one row per opcode, see opcode.c. */
enum roce_opcode_flags {
	ROCE_F_RETH = 1 << 0,
	ROCE_F_AETH = 1 << 1,
	ROCE_F_ATOMICETH = 1 << 2,
	ROCE_F_ATOMICACKETH = 1 << 3,
	ROCE_F_IMM = 1 << 4,
	ROCE_F_IETH = 1 << 5,
	ROCE_F_DETH = 1 << 6,
	ROCE_F_XRCETH = 1 << 7,
	ROCE_F_PAYLOAD = 1 << 8, /* payload allowed */
	/*
	 * Begins, ends a message: FIRST, LAST; both on ONLY and on what is
	 * always one packet (READ request, atomics, acknowledges).
	 */
	ROCE_F_FIRST = 1 << 9,
	ROCE_F_LAST = 1 << 10,
	ROCE_F_REQUEST = 1 << 11,
	ROCE_F_RESPONSE = 1 << 12,
	ROCE_F_SEND = 1 << 13,
	ROCE_F_WRITE = 1 << 14,
	ROCE_F_READ = 1 << 15, /* request or response */
	ROCE_F_ATOMIC = 1 << 16, /* request or response */
};

struct roce_opcode {
	const char *name; /* as in the specification; NULL: reserved opcode */
	uint32_t flags; /* enum roce_opcode_flags */
	uint8_t hdr_len; /* BTH and extended headers; CNP: and reserved bytes */
};

extern const struct roce_opcode roce_opcodes[256]
	__attribute__((visibility("hidden")));

/* Row of an opcode; never NULL, a reserved opcode's row has name NULL. */
static inline const struct roce_opcode *roce_opcode(uint8_t opcode)
{
	return &roce_opcodes[opcode];
}

/* Kept small: it is copied with every packet. */
struct roce_hdr {
	uint8_t opcode;
	bool solicited; /* SE */
	bool mig_req; /* M */
	uint8_t pad; /* PadCnt, 0..3 */
	uint8_t tver; /* transport header version, 0 */
	bool fecn;
	bool becn;
	bool ack_req; /* A */
	uint32_t dest_qpn; /* 24 bits */
	uint32_t psn; /* 24 bits */
	uint16_t pkey;

	/* Valid as roce_opcode(opcode)->flags says; otherwise zero. */
	uint8_t syndrome; /* AETH */
	uint32_t msn; /* AETH, 24 bits */
	uint32_t qkey, src_qpn; /* DETH */
	uint32_t xrc_srqn; /* XRCETH */
	uint32_t rkey; /* RETH, AtomicETH */
	uint32_t dma_len; /* RETH */
	__be32 imm; /* ImmDt: opaque bytes, as in ibv_wc */
	uint32_t inv_rkey; /* IETH */
	uint64_t va; /* RETH, AtomicETH */
	union {
		uint64_t swap_add; /* AtomicETH */
		uint64_t atomic_orig; /* AtomicAckETH */
	};
	uint64_t compare; /* AtomicETH */
};

/*
 * Decodes BTH and extended headers of the len bytes at p (from BTH on, without
 * the ICRC). Returns the length of the headers; the payload is what follows,
 * less h->pad bytes at the end. Returns -EINVAL when the bytes cannot be a
 * packet: too short, reserved opcode, not padded to a multiple of four (9.2.5),
 * pad longer than what follows, or payload on an opcode that has none. Reserved
 * bits are ignored, tver is not checked. *h is written on success only.
 */
int roce_decode(struct roce_hdr *h, const uint8_t *p, size_t len);

/* The destination QPN of bytes that may be no packet; 0 if they are too few. */
static inline uint32_t roce_dest_qpn(const uint8_t *p, size_t len)
{
	return len >= 8 ? get_be24(p + 5) : 0;
}

/* The BTH alone, as all packets of ours have it: no path migration means migrated
 * (17.2.8), and there is one partition. */
static inline void roce_put_bth(uint8_t *p, uint8_t opcode, bool solicited,
				uint32_t pad, uint32_t dest_qpn, bool ack_req,
				uint32_t psn)
{
	put_be32(p, (uint32_t)opcode << 24 | (uint32_t)solicited << 23 |
			    1u << 22 | pad << 20 | ROCE_PKEY_DEFAULT);
	put_be32(p + 4, dest_qpn);
	put_be32(p + 8, (uint32_t)ack_req << 31 | psn);
}

/*
 * Writes the headers of h to p, which has room for ROCE_HDR_MAX bytes; returns
 * their length. Reserved bits are written as zero.
 */
size_t roce_encode(const struct roce_hdr *h, uint8_t *p);

/* AETH syndromes (9.7.5.1.1): three bits of kind, five bits of value. */
enum roce_syndrome {
	ROCE_AETH_ACK = 0x00, /* value: credit count */
	ROCE_AETH_RNR = 0x20, /* value: timer, table 45 */
	ROCE_AETH_NAK = 0x60, /* value: enum roce_nak */
	ROCE_AETH_KIND = 0x60,
	ROCE_AETH_VALUE = 0x1f,
	ROCE_CREDITS_INVALID = 0x1f, /* the responder has no credit count */
};

enum roce_nak {
	ROCE_NAK_PSN = 0,
	ROCE_NAK_INVALID_REQUEST = 1,
	ROCE_NAK_REMOTE_ACCESS = 2,
	ROCE_NAK_REMOTE_OPERATIONAL = 3,
	ROCE_NAK_INVALID_RD_REQUEST = 4,
};

/*
 * How packets of a connection or address handle travel. Both GIDs are IP
 * addresses of the same family: IPv4-mapped, or IPv6.
 */
struct roce_path {
	union ibv_gid sgid; /* ours */
	union ibv_gid dgid; /* the peer's, or a multicast group */
	uint32_t
		sgid_scope; /* ifindex of a link-local or multicast sgid, or 0 */
	uint32_t flow_label; /* 20 bits; seeds the UDP source port */
	uint16_t sport; /* UDP source port to present; 0: any */
	uint8_t tclass;
	uint8_t hop_limit;
	bool local; /* to this host, */
	bool lossless; /* by a link that itself holds senders back */
	bool v1; /* RoCE v1: a GRH in a frame of Ethernet, and not UDP over IP, */
	uint8_t dmac[6]; /* whose destination, on the interface sgid_scope */
	/* Not local: the network namespace of this host where dgid was proved
	 * to be (registry_route_in()); 0: it may be anywhere. */
	uint32_t net;
};

/* Whether its other end may be a process of this host. */
static inline bool roce_path_in_host(const struct roce_path *path)
{
	return path->local || path->net;
}

/*
 * The addresses of a connection in short, the sender's first: tells connections
 * apart that a process may confuse, and is no protection from one that lies.
 */
static inline uint32_t roce_path_hash(const union ibv_gid *sgid,
				      const union ibv_gid *dgid)
{
	const uint64_t k = 0x9e3779b97f4a7c15ull;
	uint64_t h = sgid->global.interface_id;

	h = (h ^ h >> 29) * k + sgid->global.subnet_prefix;
	h = (h ^ h >> 29) * k + dgid->global.interface_id;
	h = (h ^ h >> 29) * k + dgid->global.subnet_prefix;
	h = (h ^ h >> 29) * k;
	return (uint32_t)(h >> 32);
}

/* Of what is sent by a path, and of what comes back; RoCE v1 is another way than
 * v2 between the same addresses. */
static inline uint32_t roce_path_kind(const struct roce_path *path)
{
	return path->v1 ? 0x89158915u : 0;
}

static inline uint32_t roce_path_there(const struct roce_path *path)
{
	return roce_path_hash(&path->sgid, &path->dgid) ^ roce_path_kind(path);
}

static inline uint32_t roce_path_back(const struct roce_path *path)
{
	return roce_path_hash(&path->dgid, &path->sgid) ^ roce_path_kind(path);
}

static inline bool roce_gid_is_v4(const union ibv_gid *gid)
{
	return gid->global.subnet_prefix == 0 && gid->raw[8] == 0 &&
	       gid->raw[9] == 0 && gid->raw[10] == 0xff && gid->raw[11] == 0xff;
}

/* IPv4 224/4 mapped, or IPv6 ff00::/8. */
static inline bool roce_gid_is_multicast(const union ibv_gid *gid)
{
	return roce_gid_is_v4(gid) ? gid->raw[12] >> 4 == 0xe :
				     gid->raw[0] == 0xff;
}

#endif
