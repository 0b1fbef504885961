/*
 * nvmf.h - NVMe over Fabrics by RDMA: formats by the specifications' names, and what both ends share
 *
 * NVM Express 1.4 (commands, data structures), NVMe over Fabrics 1.1 (capsules,
 * Fabrics commands, chapter 7: RDMA). A number in a capsule is little-endian; its
 * field is a constant with the byte at which it begins.
 *
 * Both ends are ordinary programs of verbs and rdma_cm. A queue is one connection:
 * host to controller a SEND for each command capsule (64 bytes, and data behind
 * them), back a SEND for each response capsule (16 bytes). Other data goes by the
 * controller's READs and WRITEs of what the command's SGL descriptor names.
 */
#ifndef SOFTHCA_TESTS_NVMF_H
#define SOFTHCA_TESTS_NVMF_H

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	SQE_SIZE = 64,
	CQE_SIZE = 16,
	PRIVATE_SIZE = 32, /* of a request and a reply to connect */
	CONNECT_SIZE = 1024, /* the data of Connect */
	PAGE_SIZE = 4096, /* of the controller; what Identify returns */
	IN_CAPSULE = 4096, /* data in a capsule, at most */
	MDTS = 5, /* the same of a command: a power of two pages */
	MAX_TRANSFER = PAGE_SIZE << MDTS,
	MAX_DEPTH = 128,
	ADMIN_DEPTH = 32,
	MAX_QUEUES = 8, /* of I/O */
	LBA_SHIFT = 9,
	NQN_SIZE = 256,
};

/* clang-format off */

/* Fields of a submission queue entry. */
enum { SQE_OPC = 0, SQE_FLAGS = 1, SQE_CID = 2, SQE_NSID = 4, SQE_SGL1 = 24,
       SQE_CDW10 = 40, SQE_CDW11 = 44, SQE_CDW12 = 48,
       /* of a Fabrics command */
       SQE_FCTYPE = 4,
       CONNECT_RECFMT = 40, CONNECT_QID = 42, CONNECT_SQSIZE = 44, CONNECT_KATO = 48,
       PROPERTY_ATTRIB = 40, PROPERTY_OFST = 44, PROPERTY_VALUE = 48 };

/* Of a completion queue entry; of the data of Connect; of private data. */
enum { CQE_DW0 = 0, CQE_SQHD = 8, CQE_CID = 12, CQE_STATUS = 14 };
enum { DATA_HOSTID = 0, DATA_CNTLID = 16, DATA_SUBNQN = 256, DATA_HOSTNQN = 512 };
enum { PRIVATE_RECFMT = 0, PRIVATE_QID = 2, PRIVATE_HRQSIZE = 4, PRIVATE_HSQSIZE = 6 };

/* Of SQE_FLAGS: what the command has in place of pointers to its data. */
enum { PSDT_MASK = 0xc0, PSDT_SGL = 0x40 };

/* SGL descriptors: address or offset, length, and in the last byte type and
 * subtype. A keyed one has 3 bytes of length, and a key. */
enum { SGL_ADDRESS = 0, SGL_LENGTH = 8, SGL_KEY = 11, SGL_ID = 15 };
enum sgl_id {
	SGL_DATA = 0x00,             /* in the host's memory, without a key: not for RDMA */
	SGL_DATA_OFFSET = 0x01,      /* in the capsule */
	SGL_BIT_BUCKET = 0x10, SGL_SEGMENT = 0x20, SGL_LAST_SEGMENT = 0x30,
	SGL_KEYED = 0x40,            /* in the host's memory */
	SGL_KEYED_INVALIDATE = 0x4f, /* and the response invalidates the key */
};

/* Opcodes; bits 1:0 are the direction of the data. */
enum { TO_CONTROLLER = 1, TO_HOST = 2 };
enum { ADMIN_GET_LOG_PAGE = 0x02, ADMIN_IDENTIFY = 0x06, ADMIN_SET_FEATURES = 0x09,
       ADMIN_GET_FEATURES = 0x0a, ADMIN_ASYNC_EVENT_REQUEST = 0x0c,
       ADMIN_KEEP_ALIVE = 0x18, FABRICS = 0x7f };
enum { FABRICS_PROPERTY_SET = 0, FABRICS_CONNECT = 1, FABRICS_PROPERTY_GET = 4 };
enum { NVM_FLUSH = 0, NVM_WRITE = 1, NVM_READ = 2, NVM_WRITE_ZEROES = 8 };

enum { CNS_NAMESPACE = 0, CNS_CONTROLLER = 1, CNS_NAMESPACES = 2, CNS_DESCRIPTORS = 3 };
enum { FID_NUMBER_OF_QUEUES = 0x07, FID_ASYNC_EVENTS = 0x0b, FID_KEEP_ALIVE = 0x0f };
enum { LID_ERRORS = 1, LID_CHANGED_NAMESPACES = 4 };
enum { PROP_CAP = 0, PROP_VS = 0x08, PROP_CC = 0x14, PROP_CSTS = 0x1c };
enum { CC_EN = 1, CC_SHN = 3 << 14, CC_IO_ENTRIES = 6 << 16 | 4 << 20 };
enum { CSTS_RDY = 1, CSTS_SHST_DONE = 2 << 2 };
enum { EVENTS_NAMESPACE = 1 << 8 }; /* of FID_ASYNC_EVENTS, OAES */

/* Status: type << 8 | code. DNR: the same command would fail again. */
enum status {
	SC_SUCCESS = 0, SC_INVALID_OPCODE = 0x01, SC_INVALID_FIELD = 0x02,
	SC_INTERNAL_ERROR = 0x06, SC_INVALID_NAMESPACE = 0x0b, SC_COMMAND_SEQUENCE = 0x0c,
	SC_DATA_SGL_LENGTH = 0x0f, SC_SGL_DESCRIPTOR_TYPE = 0x11, SC_SGL_OFFSET = 0x16,
	SC_LBA_OUT_OF_RANGE = 0x80, SC_ASYNC_EVENT_LIMIT = 0x105, SC_INVALID_LOG_PAGE = 0x109,
	SC_CONNECT_FORMAT = 0x180, SC_CONNECT_BUSY = 0x181, SC_CONNECT_INVALID = 0x182,
	SC_DNR = 0x4000,
};

/* Why a connection is rejected, in its private data. */
enum { REJECT_LENGTH = 1, REJECT_RECFMT = 2, REJECT_QID = 3, REJECT_HSQSIZE = 4,
       REJECT_HRQSIZE = 5, REJECT_RESOURCES = 6, REJECT_IRD = 7 };

/* clang-format on */

static inline uint64_t get_le(const uint8_t *p, size_t n)
{
	uint64_t v = 0;

	while (n--)
		v = v << 8 | p[n];
	return v;
}

static inline void put_le(uint8_t *p, uint64_t v, size_t n)
{
	for (size_t i = 0; i < n; i++, v >>= 8)
		p[i] = (uint8_t)v;
}

static inline uint32_t get_le32(const uint8_t *p)
{
	return (uint32_t)get_le(p, 4);
}

static inline uint16_t get_le16(const uint8_t *p)
{
	return (uint16_t)get_le(p, 2);
}

/* Of a command: which way its data goes. */
static inline unsigned direction(const uint8_t *sqe)
{
	return (sqe[SQE_OPC] == FABRICS ? sqe[SQE_FCTYPE] : sqe[SQE_OPC]) & 3;
}

uint64_t now_ms(void);
void die(const char *fmt, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Zeroed memory by pages, which ends the process if there is none. */
uint8_t *pages(size_t size);

/* The connection of a queue, of either end: its QP, whose completions go to one
 * CQ and from there to a channel, and one region of memory. */
struct link {
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint8_t *memory;
	size_t size;
	bool down; /* the peer has disconnected it */
};

/* False: errno says why; link_close() also ends what has been begun. */
bool link_open(struct link *l, struct rdma_cm_id *id,
	       struct ibv_comp_channel *channel, void *context, size_t size,
	       uint32_t sends, uint32_t receives);
void link_close(struct link *l);
void link_receive(struct link *l, uint64_t wr_id, uint8_t *to, uint32_t len);

/* Whether it was posted; a QP in the error state takes everything. */
bool link_send(struct link *l, struct ibv_send_wr *wr);

int controller_main(int argc, char **argv);
int host_main(int argc, char **argv);

#endif
