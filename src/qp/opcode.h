/*
 * opcode.h - what each opcode of a work request is and needs
 *
 * A row is an opcode of ibv_post_send(3). What the layers decide by opcode they
 * decide by a row, so a new one is a row here, one in wire/opcode.c for its
 * packet, one in the requester's table from here to there, and what a responder
 * is to do.
 *
 * O(opcode, services, completion, takes, flags, word)
 *     services: on which it exists; completion: its opcode there; takes: what of
 *     the work request besides data; word: its name in tables.
 */
#ifndef SOFTHCA_QP_OPCODE_H
#define SOFTHCA_QP_OPCODE_H

#include <infiniband/verbs.h>
#include <stdint.h>

/* Bits by the column of a service (struct qp). */
enum {
	QP_ON_RC = 1 << 0 | 1 << 3, /* and XRC_SEND */
	QP_ON_UC = 1 << 1,
	QP_ON_UD = 1 << 2,
};

enum qp_takes {
	QP_TAKES_NOTHING,
	QP_TAKES_RDMA,
	QP_TAKES_ATOMIC,
	QP_TAKES_KEY, /* to invalidate */
	QP_TAKES_BIND,
};

enum {
	QP_OP_ANSWERED = 1 << 0, /* with data; uses responder resources */
	QP_OP_VALUE = 1 << 1, /* sends eight bytes, taken when it is posted */
	QP_OP_LOCAL = 1 << 2, /* nothing is sent */
};

/* clang-format off */
#define QP_OPCODES(O) \
O(RDMA_WRITE,           QP_ON_RC | QP_ON_UC,            RDMA_WRITE,   RDMA,    0, "write") \
O(RDMA_WRITE_WITH_IMM,  QP_ON_RC | QP_ON_UC,            RDMA_WRITE,   RDMA,    0, "write+imm") \
O(SEND,                 QP_ON_RC | QP_ON_UC | QP_ON_UD, SEND,         NOTHING, 0, "send") \
O(SEND_WITH_IMM,        QP_ON_RC | QP_ON_UC | QP_ON_UD, SEND,         NOTHING, 0, "send+imm") \
O(RDMA_READ,            QP_ON_RC,                       RDMA_READ,    RDMA,    QP_OP_ANSWERED, "read") \
O(ATOMIC_CMP_AND_SWP,   QP_ON_RC,                       COMP_SWAP,    ATOMIC,  QP_OP_ANSWERED, "cmp_swap") \
O(ATOMIC_FETCH_AND_ADD, QP_ON_RC,                       FETCH_ADD,    ATOMIC,  QP_OP_ANSWERED, "fetch_add") \
O(LOCAL_INV,            QP_ON_RC | QP_ON_UC,            LOCAL_INV,    KEY,     QP_OP_LOCAL, "local_inv") \
O(BIND_MW,              QP_ON_RC | QP_ON_UC,            BIND_MW,      BIND,    QP_OP_LOCAL, "bind_mw") \
O(SEND_WITH_INV,        QP_ON_RC,                       SEND,         KEY,     0, "send+inv") \
O(ATOMIC_WRITE,         QP_ON_RC,                       ATOMIC_WRITE, RDMA,    QP_OP_ANSWERED | QP_OP_VALUE, "atomic_wr")
/* clang-format on */

struct qp_opcode {
	uint8_t services; /* 0: no such opcode */
	uint8_t completion;
	uint8_t takes, flags;
};

/* Longer than any opcode that is known: the rest is empty. */
#define QP_OPCODE_ROWS 16
extern const struct qp_opcode qp_opcodes[QP_OPCODE_ROWS]
	__attribute__((visibility("hidden")));

/* Bits by opcode: those that have the flag; a constant. */
#define QP_ANSWERED_BIT_(op, services, completion, takes, flags, word)         \
	| ((flags)&QP_OP_ANSWERED ? 1u << IBV_WR_##op : 0)
#define QP_VALUE_BIT_(op, services, completion, takes, flags, word)            \
	| ((flags)&QP_OP_VALUE ? 1u << IBV_WR_##op : 0)
enum {
	QP_OPCODES_ANSWERED = 0u QP_OPCODES(QP_ANSWERED_BIT_),
	QP_OPCODES_VALUE = 0u QP_OPCODES(QP_VALUE_BIT_),
};

#endif
