/*
 * mad.h - management datagrams, and the messages of communication management
 *
 * A MAD is 256 bytes: a common header of 24 (IBTA 13.4.2), then what its class
 * and attribute say. Here the class is communication management, whose
 * messages (12.6 and 12.11) are written down once, as lists of
 *
 *	F(type, name, byte, bit, width)   a number of up to 64 bits
 *	B(name, byte, len)                bytes, passed on as they are
 *
 * with byte and bit counted from the end of the header, most significant bit
 * first, as the specification's tables have them. From each list come a struct
 * in host order, and a table that encodes, decodes and prints it.
 */
#ifndef SOFTHCA_WIRE_MAD_H
#define SOFTHCA_WIRE_MAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAD_LEN 256
#define MAD_HDR_LEN 24
#define MAD_BASE_VERSION 1
#define MAD_CLASS_SUBN_LID 0x01
#define MAD_CLASS_SUBN_DIRECTED 0x81
#define MAD_CLASS_CM 0x07
#define MAD_CLASS_IS_VENDOR2(c) ((c) >= 0x30 && (c) <= 0x4f) /* have an OUI */
#define MAD_CM_CLASS_VERSION 2
#define MAD_METHOD_GET 0x01
#define MAD_METHOD_SET 0x02
#define MAD_METHOD_SEND 0x03
#define MAD_METHOD_TRAP_REPRESS 0x07
#define MAD_METHOD_RESP 0x80 /* the bit */
#define MAD_METHOD_GET_RESP 0x81
#define MAD_STATUS_NOT_SUPPORTED 0x000c /* method and attribute */
#define MAD_QP1_QKEY 0x80010000u /* of every GSI packet (10.2.5) */

/* Where fields of the common header are, and the OUI of a vendor's class. */
enum { MAD_METHOD = 3, MAD_STATUS = 4, MAD_TID = 8, MAD_OUI = 37 };

/* Of requests by the method, as kernels look at it. */
static inline bool mad_is_response(const uint8_t *p)
{
	return p[MAD_METHOD] & MAD_METHOD_RESP ||
	       p[MAD_METHOD] == MAD_METHOD_TRAP_REPRESS;
}

/*
 * By what the processes of a host find the agent that a request is for, beside the
 * service IDs of connections: class, its version, and of a vendor's class the OUI.
 */
#define MAD_SERVICE_PREFIX 0x6d61640000000000u /* no port space's */

static inline uint64_t mad_service_id(uint8_t class, uint8_t version,
				      uint32_t oui)
{
	return MAD_SERVICE_PREFIX | (uint64_t) class << 32 |
	       (uint32_t)version << 24 | (oui & 0xffffff);
}

static inline uint64_t mad_service_of(const uint8_t *p)
{
	const uint32_t oui = (uint32_t)p[MAD_OUI] << 16 |
			     (uint32_t)p[MAD_OUI + 1] << 8 | p[MAD_OUI + 2];

	return mad_service_id(p[1], p[2], MAD_CLASS_IS_VENDOR2(p[1]) ? oui : 0);
}

enum mad_attr {
	MAD_CM_REQ = 0x10,
	MAD_CM_MRA = 0x11,
	MAD_CM_REJ = 0x12,
	MAD_CM_REP = 0x13,
	MAD_CM_RTU = 0x14,
	MAD_CM_DREQ = 0x15,
	MAD_CM_DREP = 0x16,
	MAD_CM_SIDR_REQ = 0x17,
	MAD_CM_SIDR_REP = 0x18,
	MAD_CM_LAP = 0x19,
	MAD_CM_APR = 0x1a,
};

/* clang-format off */

/* Table 106. vendor_id and the header's attr_mod are ECE, as Linux has it. */
#define CM_REQ_FIELDS(F, B)                           \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, vendor_id,            5, 0, 24)   \
	F(uint64_t, service_id,           8, 0, 64)   \
	F(uint64_t, local_ca_guid,       16, 0, 64)   \
	F(uint32_t, local_qkey,          28, 0, 32)   \
	F(uint32_t, local_qpn,           32, 0, 24)   \
	F(uint8_t,  responder_resources, 35, 0,  8)   \
	F(uint32_t, local_eecn,          36, 0, 24)   \
	F(uint8_t,  initiator_depth,     39, 0,  8)   \
	F(uint32_t, remote_eecn,         40, 0, 24)   \
	F(uint8_t,  remote_cm_timeout,   43, 0,  5)   \
	F(uint8_t,  transport,           43, 5,  2)   \
	F(uint8_t,  flow_control,        43, 7,  1)   \
	F(uint32_t, starting_psn,        44, 0, 24)   \
	F(uint8_t,  local_cm_timeout,    47, 0,  5)   \
	F(uint8_t,  retry_count,         47, 5,  3)   \
	F(uint16_t, pkey,                48, 0, 16)   \
	F(uint8_t,  mtu,                 50, 0,  4)   \
	F(uint8_t,  rdc_exists,          50, 4,  1)   \
	F(uint8_t,  rnr_retry_count,     50, 5,  3)   \
	F(uint8_t,  max_cm_retries,      51, 0,  4)   \
	F(uint8_t,  srq,                 51, 4,  1)   \
	F(uint8_t,  ext_transport,       51, 5,  3)   \
	F(uint16_t, local_lid,           52, 0, 16)   \
	F(uint16_t, remote_lid,          54, 0, 16)   \
	B(          local_gid,           56,    16)   \
	B(          remote_gid,          72,    16)   \
	F(uint32_t, flow_label,          88, 0, 20)   \
	F(uint8_t,  packet_rate,         91, 2,  6)   \
	F(uint8_t,  traffic_class,       92, 0,  8)   \
	F(uint8_t,  hop_limit,           93, 0,  8)   \
	F(uint8_t,  sl,                  94, 0,  4)   \
	F(uint8_t,  subnet_local,        94, 4,  1)   \
	F(uint8_t,  ack_timeout,         95, 0,  5)   \
	F(uint16_t, alt_local_lid,       96, 0, 16)   \
	F(uint16_t, alt_remote_lid,      98, 0, 16)   \
	B(          alt_local_gid,      100,    16)   \
	B(          alt_remote_gid,     116,    16)   \
	F(uint32_t, alt_flow_label,     132, 0, 20)   \
	F(uint8_t,  alt_packet_rate,    135, 2,  6)   \
	F(uint8_t,  alt_traffic_class,  136, 0,  8)   \
	F(uint8_t,  alt_hop_limit,      137, 0,  8)   \
	F(uint8_t,  alt_sl,             138, 0,  4)   \
	F(uint8_t,  alt_subnet_local,   138, 4,  1)   \
	F(uint8_t,  alt_ack_timeout,    139, 0,  5)   \
	B(          private_data,       140,    92)

/* Table 107 */
#define CM_MRA_FIELDS(F, B)                           \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	F(uint8_t,  msg_mraed,            8, 0,  2)   \
	F(uint8_t,  service_timeout,      9, 0,  5)   \
	B(          private_data,        10,   222)

/* Table 108 */
#define CM_REJ_FIELDS(F, B)                           \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	F(uint8_t,  msg_rejected,         8, 0,  2)   \
	F(uint8_t,  ari_len,              9, 0,  7)   \
	F(uint16_t, reason,              10, 0, 16)   \
	B(          ari,                 12,    72)   \
	B(          private_data,        84,   148)

/* Table 110. The ECE vendor ID lies in three bytes that were reserved. */
#define CM_REP_FIELDS(F, B)                           \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	F(uint32_t, local_qkey,           8, 0, 32)   \
	F(uint32_t, local_qpn,           12, 0, 24)   \
	F(uint8_t,  vendor_id_high,      15, 0,  8)   \
	F(uint32_t, local_eecn,          16, 0, 24)   \
	F(uint8_t,  vendor_id_mid,       19, 0,  8)   \
	F(uint32_t, starting_psn,        20, 0, 24)   \
	F(uint8_t,  vendor_id_low,       23, 0,  8)   \
	F(uint8_t,  responder_resources, 24, 0,  8)   \
	F(uint8_t,  initiator_depth,     25, 0,  8)   \
	F(uint8_t,  target_ack_delay,    26, 0,  5)   \
	F(uint8_t,  failover_accepted,   26, 5,  2)   \
	F(uint8_t,  flow_control,        26, 7,  1)   \
	F(uint8_t,  rnr_retry_count,     27, 0,  3)   \
	F(uint8_t,  srq,                 27, 3,  1)   \
	F(uint64_t, local_ca_guid,       28, 0, 64)   \
	B(          private_data,        36,   196)

/* Table 111 */
#define CM_RTU_FIELDS(F, B)                           \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	B(          private_data,         8,   224)

/* Table 112 */
#define CM_DREQ_FIELDS(F, B)                          \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	F(uint32_t, remote_qpn,           8, 0, 24)   \
	B(          private_data,        12,   220)

/* Table 113 */
#define CM_DREP_FIELDS(F, B)                          \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	B(          private_data,         8,   224)

/* Table 115, only the fields needed to refuse it */
#define CM_LAP_FIELDS(F, B)                           \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	F(uint32_t, remote_qpn,          12, 0, 24)   \
	F(uint8_t,  remote_cm_timeout,   15, 0,  5)   \
	B(          path,                20,    44)   \
	B(          private_data,        64,   168)

/* Table 116 */
#define CM_APR_FIELDS(F, B)                           \
	F(uint32_t, local_comm_id,        0, 0, 32)   \
	F(uint32_t, remote_comm_id,       4, 0, 32)   \
	F(uint8_t,  info_len,             8, 0,  8)   \
	F(uint8_t,  status,               9, 0,  8)   \
	B(          info,                12,    72)   \
	B(          private_data,        84,   148)

/* Table 119 */
#define CM_SIDR_REQ_FIELDS(F, B)                      \
	F(uint32_t, request_id,           0, 0, 32)   \
	F(uint16_t, pkey,                 4, 0, 16)   \
	F(uint64_t, service_id,           8, 0, 64)   \
	B(          private_data,        16,   216)

/* Table 120, with the ECE vendor ID */
#define CM_SIDR_REP_FIELDS(F, B)                      \
	F(uint32_t, request_id,           0, 0, 32)   \
	F(uint8_t,  status,               4, 0,  8)   \
	F(uint8_t,  info_len,             5, 0,  8)   \
	F(uint16_t, vendor_id_high,       6, 0, 16)   \
	F(uint32_t, qpn,                  8, 0, 24)   \
	F(uint8_t,  vendor_id_low,       11, 0,  8)   \
	F(uint64_t, service_id,          12, 0, 64)   \
	F(uint32_t, qkey,                20, 0, 32)   \
	B(          info,                24,    72)   \
	B(          private_data,        96,   136)

/* clang-format on */

#define MAD_MEMBER(type, name, byte, bit, width) type name;
#define MAD_BYTES(name, byte, len) uint8_t name[len];

struct cm_req {
	CM_REQ_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_mra {
	CM_MRA_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_rej {
	CM_REJ_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_rep {
	CM_REP_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_rtu {
	CM_RTU_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_dreq {
	CM_DREQ_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_drep {
	CM_DREP_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_lap {
	CM_LAP_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_apr {
	CM_APR_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_sidr_req {
	CM_SIDR_REQ_FIELDS(MAD_MEMBER, MAD_BYTES)
};
struct cm_sidr_rep {
	CM_SIDR_REP_FIELDS(MAD_MEMBER, MAD_BYTES)
};

#undef MAD_MEMBER
#undef MAD_BYTES

struct mad {
	uint8_t class_version;
	uint8_t method;
	uint16_t status;
	uint16_t class_specific;
	uint64_t tid;
	uint16_t attr_id; /* enum mad_attr; says which member is meant */
	uint32_t attr_mod;
	union {
		struct cm_req req;
		struct cm_mra mra;
		struct cm_rej rej;
		struct cm_rep rep;
		struct cm_rtu rtu;
		struct cm_dreq dreq;
		struct cm_drep drep;
		struct cm_lap lap;
		struct cm_apr apr;
		struct cm_sidr_req sidr_req;
		struct cm_sidr_rep sidr_rep;
	};
};

/*
 * Decodes a MAD of the CM class. Returns 0, or -EINVAL for anything else: not
 * 256 bytes, another base version or class, an attribute not listed above.
 * The caller checks class version and method.
 */
int mad_decode(struct mad *m, const uint8_t *p, size_t len);

/* Writes all 256 bytes; what the tables do not name is zero. attr_id must be
 * one of enum mad_attr. Bits of a value beyond its field's width are lost. */
void mad_encode(const struct mad *m, uint8_t p[MAD_LEN]);

/* A message's fields, for code that prints or compares them. */
struct mad_field {
	const char *name;
	uint16_t byte, bit, width; /* width in bits; over 64: bytes */
	uint16_t offset, size; /* in struct mad */
};

/* NULL for an unknown attribute. */
const struct mad_field *mad_fields(uint16_t attr_id, size_t *count);
uint64_t mad_field_get(const struct mad *m, const struct mad_field *f);

/* "REQ", "SIDR_REP"; "?" when unknown. */
const char *mad_attr_name(uint16_t attr_id);

/* Transport service type and extended transport type of a REQ. */
enum cm_transport {
	CM_TRANSPORT_RC = 0,
	CM_TRANSPORT_UC = 1,
	CM_TRANSPORT_RD = 2,
	CM_TRANSPORT_EXT = 3, /* see ext_transport */
	CM_EXT_XRC = 1,
};

/* What MRA and REJ answer. */
enum cm_message {
	CM_MSG_REQ = 0,
	CM_MSG_REP = 1,
	CM_MSG_OTHER = 2, /* MRA: LAP; REJ: no message */
};

/* Why a REQ or REP is refused (table 109). X(name, code, words) */
#define CM_REJ_REASONS(X)                                                      \
	X(NO_QP, 1, "no QP available")                                         \
	X(NO_EEC, 2, "no EEC available")                                       \
	X(NO_RESOURCES, 3, "no resources available")                           \
	X(TIMEOUT, 4, "timeout")                                               \
	X(UNSUPPORTED, 5, "unsupported request")                               \
	X(INVALID_COMM_ID, 6, "invalid communication ID")                      \
	X(INVALID_COMM_INSTANCE, 7, "invalid communication instance")          \
	X(INVALID_SERVICE_ID, 8, "invalid service ID")                         \
	X(INVALID_TRANSPORT_TYPE, 9, "invalid transport service type")         \
	X(STALE_CONN, 10, "stale connection")                                  \
	X(RDC_NOT_EXIST, 11, "RDC does not exist")                             \
	X(INVALID_GID, 12, "primary remote port GID rejected")                 \
	X(INVALID_LID, 13, "primary remote port LID rejected")                 \
	X(INVALID_SL, 14, "invalid primary SL")                                \
	X(INVALID_TRAFFIC_CLASS, 15, "invalid primary traffic class")          \
	X(INVALID_HOP_LIMIT, 16, "invalid primary hop limit")                  \
	X(INVALID_PACKET_RATE, 17, "invalid primary packet rate")              \
	X(INVALID_ALT_GID, 18, "alternate remote port GID rejected")           \
	X(INVALID_ALT_LID, 19, "alternate remote port LID rejected")           \
	X(INVALID_ALT_SL, 20, "invalid alternate SL")                          \
	X(INVALID_ALT_TRAFFIC_CLASS, 21, "invalid alternate traffic class")    \
	X(INVALID_ALT_HOP_LIMIT, 22, "invalid alternate hop limit")            \
	X(INVALID_ALT_PACKET_RATE, 23, "invalid alternate packet rate")        \
	X(PORT_CM_REDIRECT, 24, "port and CM redirection")                     \
	X(PORT_REDIRECT, 25, "port redirection")                               \
	X(INVALID_MTU, 26, "invalid path MTU")                                 \
	X(INSUFFICIENT_RESP_RESOURCES, 27, "insufficient responder resources") \
	X(CONSUMER, 28, "consumer reject")                                     \
	X(RNR_RETRY_COUNT, 29, "RNR retry count rejected")                     \
	X(DUPLICATE_COMM_ID, 30, "duplicate local communication ID")           \
	X(INVALID_CLASS_VERSION, 31, "invalid class version")                  \
	X(INVALID_FLOW_LABEL, 32, "invalid primary flow label")                \
	X(INVALID_ALT_FLOW_LABEL, 33, "invalid alternate flow label")          \
	X(VENDOR_OPTION, 35, "vendor option is not supported")

enum cm_rej_reason {
#define X(name, code, words) CM_REJ_##name = (code),
	CM_REJ_REASONS(X)
#undef X
};

/* Words for a reject reason; "unknown reason" for others. */
const char *cm_rej_str(unsigned reason);

enum cm_sidr_status {
	CM_SIDR_OK = 0,
	CM_SIDR_UNSUPPORTED = 1, /* service ID not supported */
	CM_SIDR_REJECTED = 2, /* by the service provider */
	CM_SIDR_NO_QP = 3,
	CM_SIDR_REDIRECT = 4,
	CM_SIDR_BAD_VERSION = 5,
};

enum cm_apr_status {
	CM_APR_INVALID_COMM_ID = 1,
	CM_APR_UNSUPPORTED = 2, /* alternate paths not supported */
};

/*
 * The RDMA IP CM service (annex A11): service IDs made of an IP protocol's
 * port space and a port, and a header before the private data of REQ and
 * SIDR_REQ with the addresses in the form of the sockets API.
 */
#define IPCM_HDR_LEN 36
#define IPCM_SERVICE_ID(ps, port)                                              \
	((uint64_t)(uint32_t)(ps) << 16 | (uint16_t)(port))

struct ipcm_hdr {
	uint8_t major, minor; /* 0, 0 */
	uint8_t ipv; /* 4 or 6 */
	uint16_t port; /* of the sender */
	uint8_t src[16]; /* IPv4: in the last four bytes, zeros before */
	uint8_t dst[16];
};

/* -EINVAL: a version other than 0.0, neither IPv4 nor IPv6, or nonzero bytes
 * before an IPv4 address. */
int ipcm_decode(struct ipcm_hdr *h, const uint8_t p[IPCM_HDR_LEN]);
void ipcm_encode(const struct ipcm_hdr *h, uint8_t p[IPCM_HDR_LEN]);

#endif
