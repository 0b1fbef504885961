/*
 * opcode.c - what each opcode is called, carries and means
 *
 * One row per opcode of table 38 (9.4.5), of XRC (annex A14), atomic write
 * (A19) and congestion notification (A17). All that the other layers decide by
 * opcode they decide by a row's flags, and the header's length follows from the
 * flags, so a new opcode is a new row.
 */
#include "roce.h"

#include "base/bytes.h"

#define F(x) ROCE_F_##x

/*
 * 16 reserved bytes follow the BTH of a CNP (A17.9.3). They mean nothing, so
 * they count as header and not as payload.
 */
#define CNP_RESERVED 16

#define HDR_LEN(f)                                                             \
	(ROCE_BTH_LEN + ((f)&F(RETH) ? 16 : 0) + ((f)&F(AETH) ? 4 : 0) +       \
	 ((f)&F(ATOMICETH) ? 28 : 0) + ((f)&F(ATOMICACKETH) ? 8 : 0) +         \
	 ((f)&F(IMM) ? 4 : 0) + ((f)&F(IETH) ? 4 : 0) +                        \
	 ((f)&F(DETH) ? 8 : 0) + ((f)&F(XRCETH) ? 4 : 0))

#define ROW(n, f)                                                              \
	{                                                                      \
		.name = n, .flags = (f), .hdr_len = HDR_LEN(f)                 \
	}

/* What the operations have in common, whatever the transport service. */
#define FIRST F(FIRST)
#define LAST F(LAST)
#define ONLY (F(FIRST) | F(LAST))
#define SEND (F(REQUEST) | F(SEND) | F(PAYLOAD))
#define WRITE (F(REQUEST) | F(WRITE) | F(PAYLOAD))
#define READ (F(REQUEST) | F(READ) | F(RETH) | ONLY)
#define RESP (F(RESPONSE) | F(READ) | F(PAYLOAD))
#define ACK (F(RESPONSE) | F(AETH) | ONLY)
#define ATOMIC (F(REQUEST) | F(ATOMIC) | F(ATOMICETH) | ONLY)
#define RETH F(RETH)
#define AETH F(AETH)
#define IMM F(IMM)
#define IETH F(IETH)
#define DETH F(DETH)
#define XRC F(XRCETH) /* on requests only (A14.3.1) */

/* clang-format off */
const struct roce_opcode roce_opcodes[256] = {
	[ROCE_RC | ROCE_SEND_FIRST]       = ROW("RC SEND First", SEND | FIRST),
	[ROCE_RC | ROCE_SEND_MIDDLE]      = ROW("RC SEND Middle", SEND),
	[ROCE_RC | ROCE_SEND_LAST]        = ROW("RC SEND Last", SEND | LAST),
	[ROCE_RC | ROCE_SEND_LAST_IMM]    = ROW("RC SEND Last with Immediate", SEND | LAST | IMM),
	[ROCE_RC | ROCE_SEND_ONLY]        = ROW("RC SEND Only", SEND | ONLY),
	[ROCE_RC | ROCE_SEND_ONLY_IMM]    = ROW("RC SEND Only with Immediate", SEND | ONLY | IMM),
	[ROCE_RC | ROCE_WRITE_FIRST]      = ROW("RC RDMA WRITE First", WRITE | FIRST | RETH),
	[ROCE_RC | ROCE_WRITE_MIDDLE]     = ROW("RC RDMA WRITE Middle", WRITE),
	[ROCE_RC | ROCE_WRITE_LAST]       = ROW("RC RDMA WRITE Last", WRITE | LAST),
	[ROCE_RC | ROCE_WRITE_LAST_IMM]   = ROW("RC RDMA WRITE Last with Immediate", WRITE | LAST | IMM),
	[ROCE_RC | ROCE_WRITE_ONLY]       = ROW("RC RDMA WRITE Only", WRITE | ONLY | RETH),
	[ROCE_RC | ROCE_WRITE_ONLY_IMM]   = ROW("RC RDMA WRITE Only with Immediate", WRITE | ONLY | RETH | IMM),
	[ROCE_RC | ROCE_READ_REQUEST]     = ROW("RC RDMA READ Request", READ),
	[ROCE_RC | ROCE_READ_RESP_FIRST]  = ROW("RC RDMA READ response First", RESP | FIRST | AETH),
	[ROCE_RC | ROCE_READ_RESP_MIDDLE] = ROW("RC RDMA READ response Middle", RESP),
	[ROCE_RC | ROCE_READ_RESP_LAST]   = ROW("RC RDMA READ response Last", RESP | LAST | AETH),
	[ROCE_RC | ROCE_READ_RESP_ONLY]   = ROW("RC RDMA READ response Only", RESP | ONLY | AETH),
	[ROCE_RC | ROCE_ACK]              = ROW("RC Acknowledge", ACK),
	[ROCE_RC | ROCE_ATOMIC_ACK]       = ROW("RC ATOMIC Acknowledge", ACK | F(ATOMIC) | F(ATOMICACKETH)),
	[ROCE_RC | ROCE_CMP_SWAP]         = ROW("RC CmpSwap", ATOMIC),
	[ROCE_RC | ROCE_FETCH_ADD]        = ROW("RC FetchAdd", ATOMIC),
	[ROCE_RC | ROCE_SEND_LAST_INV]    = ROW("RC SEND Last with Invalidate", SEND | LAST | IETH),
	[ROCE_RC | ROCE_SEND_ONLY_INV]    = ROW("RC SEND Only with Invalidate", SEND | ONLY | IETH),
	[ROCE_RC | ROCE_ATOMIC_WRITE]     = ROW("RC ATOMIC WRITE", F(REQUEST) | F(ATOMIC) | F(PAYLOAD) | RETH | ONLY),

	[ROCE_UC | ROCE_SEND_FIRST]       = ROW("UC SEND First", SEND | FIRST),
	[ROCE_UC | ROCE_SEND_MIDDLE]      = ROW("UC SEND Middle", SEND),
	[ROCE_UC | ROCE_SEND_LAST]        = ROW("UC SEND Last", SEND | LAST),
	[ROCE_UC | ROCE_SEND_LAST_IMM]    = ROW("UC SEND Last with Immediate", SEND | LAST | IMM),
	[ROCE_UC | ROCE_SEND_ONLY]        = ROW("UC SEND Only", SEND | ONLY),
	[ROCE_UC | ROCE_SEND_ONLY_IMM]    = ROW("UC SEND Only with Immediate", SEND | ONLY | IMM),
	[ROCE_UC | ROCE_WRITE_FIRST]      = ROW("UC RDMA WRITE First", WRITE | FIRST | RETH),
	[ROCE_UC | ROCE_WRITE_MIDDLE]     = ROW("UC RDMA WRITE Middle", WRITE),
	[ROCE_UC | ROCE_WRITE_LAST]       = ROW("UC RDMA WRITE Last", WRITE | LAST),
	[ROCE_UC | ROCE_WRITE_LAST_IMM]   = ROW("UC RDMA WRITE Last with Immediate", WRITE | LAST | IMM),
	[ROCE_UC | ROCE_WRITE_ONLY]       = ROW("UC RDMA WRITE Only", WRITE | ONLY | RETH),
	[ROCE_UC | ROCE_WRITE_ONLY_IMM]   = ROW("UC RDMA WRITE Only with Immediate", WRITE | ONLY | RETH | IMM),

	[ROCE_UD | ROCE_SEND_ONLY]        = ROW("UD SEND Only", SEND | ONLY | DETH),
	[ROCE_UD | ROCE_SEND_ONLY_IMM]    = ROW("UD SEND Only with Immediate", SEND | ONLY | DETH | IMM),

	[ROCE_XRC | ROCE_SEND_FIRST]       = ROW("XRC SEND First", SEND | FIRST | XRC),
	[ROCE_XRC | ROCE_SEND_MIDDLE]      = ROW("XRC SEND Middle", SEND | XRC),
	[ROCE_XRC | ROCE_SEND_LAST]        = ROW("XRC SEND Last", SEND | LAST | XRC),
	[ROCE_XRC | ROCE_SEND_LAST_IMM]    = ROW("XRC SEND Last with Immediate", SEND | LAST | XRC | IMM),
	[ROCE_XRC | ROCE_SEND_ONLY]        = ROW("XRC SEND Only", SEND | ONLY | XRC),
	[ROCE_XRC | ROCE_SEND_ONLY_IMM]    = ROW("XRC SEND Only with Immediate", SEND | ONLY | XRC | IMM),
	[ROCE_XRC | ROCE_WRITE_FIRST]      = ROW("XRC RDMA WRITE First", WRITE | FIRST | XRC | RETH),
	[ROCE_XRC | ROCE_WRITE_MIDDLE]     = ROW("XRC RDMA WRITE Middle", WRITE | XRC),
	[ROCE_XRC | ROCE_WRITE_LAST]       = ROW("XRC RDMA WRITE Last", WRITE | LAST | XRC),
	[ROCE_XRC | ROCE_WRITE_LAST_IMM]   = ROW("XRC RDMA WRITE Last with Immediate", WRITE | LAST | XRC | IMM),
	[ROCE_XRC | ROCE_WRITE_ONLY]       = ROW("XRC RDMA WRITE Only", WRITE | ONLY | XRC | RETH),
	[ROCE_XRC | ROCE_WRITE_ONLY_IMM]   = ROW("XRC RDMA WRITE Only with Immediate", WRITE | ONLY | XRC | RETH | IMM),
	[ROCE_XRC | ROCE_READ_REQUEST]     = ROW("XRC RDMA READ Request", READ | XRC),
	[ROCE_XRC | ROCE_READ_RESP_FIRST]  = ROW("XRC RDMA READ response First", RESP | FIRST | AETH),
	[ROCE_XRC | ROCE_READ_RESP_MIDDLE] = ROW("XRC RDMA READ response Middle", RESP),
	[ROCE_XRC | ROCE_READ_RESP_LAST]   = ROW("XRC RDMA READ response Last", RESP | LAST | AETH),
	[ROCE_XRC | ROCE_READ_RESP_ONLY]   = ROW("XRC RDMA READ response Only", RESP | ONLY | AETH),
	[ROCE_XRC | ROCE_ACK]              = ROW("XRC Acknowledge", ACK),
	[ROCE_XRC | ROCE_ATOMIC_ACK]       = ROW("XRC ATOMIC Acknowledge", ACK | F(ATOMIC) | F(ATOMICACKETH)),
	[ROCE_XRC | ROCE_CMP_SWAP]         = ROW("XRC CmpSwap", ATOMIC | XRC),
	[ROCE_XRC | ROCE_FETCH_ADD]        = ROW("XRC FetchAdd", ATOMIC | XRC),
	[ROCE_XRC | ROCE_SEND_LAST_INV]    = ROW("XRC SEND Last with Invalidate", SEND | LAST | XRC | IETH),
	[ROCE_XRC | ROCE_SEND_ONLY_INV]    = ROW("XRC SEND Only with Invalidate", SEND | ONLY | XRC | IETH),
	[ROCE_XRC | ROCE_ATOMIC_WRITE]     = ROW("XRC ATOMIC WRITE", F(REQUEST) | F(ATOMIC) | F(PAYLOAD) | RETH | ONLY | XRC),

	[ROCE_CNP] = {
		.name = "CNP",
		.flags = 0,
		.hdr_len = ROCE_BTH_LEN + CNP_RESERVED,
	},
};
/* clang-format on */
