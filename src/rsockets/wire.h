/*
 * wire.h - what two rsockets say to each other
 *
 * Streams: the private data of REQ and REP, the immediate data of RDMA writes,
 * and the entries that peers write into each other's target tables. Datagrams:
 * the header in front of data sent over a UD QP, and the one in front of data
 * sent over UDP until the QPs are known. The protocol is that of rdma-core's
 * rsockets, which documents it in librdmacm/docs/rsocket.
 */
#ifndef SOFTHCA_RSOCKETS_WIRE_H
#define SOFTHCA_RSOCKETS_WIRE_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A buffer that the peer may write to, and an entry of the table of mapped
 * buffers. These are the memory layout of the tables: an entry in the peer's
 * table is written in the peer's byte order.
 */
struct rsw_sge {
	uint64_t addr;
	uint32_t key;
	uint32_t length;
};

struct rsw_iomap {
	uint64_t offset;
	struct rsw_sge sge;
};

_Static_assert(sizeof(struct rsw_sge) == 16 && sizeof(struct rsw_iomap) == 24,
	       "what peers write");

#define RSW_SGL_SIZE 2 /* entries in our target table for the stream */

/* Immediate data: the operation in the upper 3 bits. */
enum rsw_op {
	RSW_DATA = 0, /* bytes written into the current target buffer */
	RSW_SGL = 4, /* receive credits up to this sequence number; the next
		      * entry of the target table may be new */
	RSW_IOMAP = 6, /* index of the entry that changed */
	RSW_CTRL = 7,
};

enum rsw_ctrl { RSW_DISCONNECT = 0, RSW_KEEPALIVE = 1, RSW_SHUTDOWN = 2 };

#define RSW_VALUE_MASK 0x1fffffffu

static inline uint32_t rsw_msg(enum rsw_op op, uint32_t value)
{
	return (uint32_t)op << 29 | (value & RSW_VALUE_MASK);
}

static inline unsigned rsw_msg_op(uint32_t msg)
{
	return msg >> 29;
}

static inline uint32_t rsw_msg_value(uint32_t msg)
{
	return msg & RSW_VALUE_MASK;
}

/* Private data of REQ and REP. */
#define RSW_CONN_LEN 40

struct rsw_conn {
	bool swap; /* the peer's byte order is not ours (decode only) */
	bool has_iomaps; /* whether iomaps is there at all (decode only) */
	uint16_t credits;
	/*
	 * Where the port that is connected to was derived from another
	 * (RDMA_OPTION_ID_TCP_PORT), that one; or 0. Our own: rdma-core ignores
	 * it, and says 0.
	 */
	uint16_t port;
	uint32_t iomaps; /* entries behind the target table */
	struct rsw_sge target; /* length in entries */
	struct rsw_sge buffer; /* the first target buffer, length in bytes */
};

void rsw_conn_encode(uint8_t p[RSW_CONN_LEN], const struct rsw_conn *conn);
/* -EPROTO: no such message; -EPROTONOSUPPORT: of a version we do not speak. */
int rsw_conn_decode(const void *p, size_t len, struct rsw_conn *conn);

/*
 * The number of mappings travels in 8 bits: exactly up to 128, above that in
 * units of 256, rounded down (but not below 128).
 */
uint32_t rsw_iomaps_round(uint32_t n);

/* Datagrams. */
union rsw_addr {
	struct sockaddr sa;
	struct sockaddr_in sin;
	struct sockaddr_in6 sin6;
	struct sockaddr_storage ss;
};

#define RSW_DGRAM_MAX 2048 /* of header and data, over a QP or over UDP */
#define RSW_DGRAM_IP4 8 /* lengths of the header in front of UD data */
#define RSW_DGRAM_IP6 24
#define RSW_UDP_IP4 16 /* and in front of UDP data */
#define RSW_UDP_IP6 28

/* Writes the header of a datagram from src; its length. */
size_t rsw_dgram_encode(uint8_t p[RSW_DGRAM_IP6], const union rsw_addr *src);
/* The length of the header, or -EPROTO. */
int rsw_dgram_decode(const uint8_t *p, size_t len, union rsw_addr *src);

struct rsw_udp {
	bool data; /* user data follows; otherwise it is an answer without */
	uint32_t qpn;
};

/* src: the address of the QP. Its length. */
size_t rsw_udp_encode(uint8_t p[RSW_UDP_IP6], const struct rsw_udp *udp,
		      const union rsw_addr *src);
/* The length of the header, or -EPROTO; family is that of the sender. */
int rsw_udp_decode(const uint8_t *p, size_t len, int family,
		   struct rsw_udp *udp);

#endif
