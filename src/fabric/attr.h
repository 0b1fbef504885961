/*
 * attr.h - attributes of management classes as tables of their components
 *
 *	F(NAME, byte, bit, width, access)
 *
 * byte and bit count from the beginning of the attribute, most significant bit
 * first, as the tables of the specification's chapters 14 to 16 have them. Nodes
 * keep their attributes as the bytes that are sent, and read and change them by
 * these names. The order is the tables': it numbers the bits of SA's component
 * masks, so what is reserved there is a component here. RW: a Set changes it.
 */
#ifndef SOFTHCA_FABRIC_ATTR_H
#define SOFTHCA_FABRIC_ATTR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct attr_field {
	uint16_t byte;
	uint8_t bit;
	uint16_t width; /* over 64: bytes */
	bool rw;
};

#define RO false
#define RW true

/* clang-format off */

/* 14.2.5.3 */
#define NODE_INFO_FIELDS(F)                                \
	F(NI_BASE_VERSION,        0, 0,   8, RO)           \
	F(NI_CLASS_VERSION,       1, 0,   8, RO)           \
	F(NI_TYPE,                2, 0,   8, RO)           \
	F(NI_NUM_PORTS,           3, 0,   8, RO)           \
	F(NI_SYS_GUID,            4, 0,  64, RO)           \
	F(NI_NODE_GUID,          12, 0,  64, RO)           \
	F(NI_PORT_GUID,          20, 0,  64, RO)           \
	F(NI_PARTITION_CAP,      28, 0,  16, RO)           \
	F(NI_DEVICE,             30, 0,  16, RO)           \
	F(NI_REVISION,           32, 0,  32, RO)           \
	F(NI_LOCAL_PORT,         36, 0,   8, RO)           \
	F(NI_VENDOR,             37, 0,  24, RO)

/* 14.2.5.4 */
#define SWITCH_INFO_FIELDS(F)                              \
	F(SI_LINEAR_CAP,          0, 0,  16, RO)           \
	F(SI_RANDOM_CAP,          2, 0,  16, RO)           \
	F(SI_MCAST_CAP,           4, 0,  16, RO)           \
	F(SI_LINEAR_TOP,          6, 0,  16, RW)           \
	F(SI_DEFAULT_PORT,        8, 0,   8, RW)           \
	F(SI_DEFAULT_MCAST_PRIM,  9, 0,   8, RW)           \
	F(SI_DEFAULT_MCAST_NOT,  10, 0,   8, RW)           \
	F(SI_LIFE_TIME,          11, 0,   5, RW)           \
	F(SI_STATE_CHANGE,       11, 5,   1, RO)           \
	F(SI_OPT_SL2VL,          11, 6,   2, RW)           \
	F(SI_LIDS_PER_PORT,      12, 0,  16, RO)           \
	F(SI_PARTITION_CAP,      14, 0,  16, RO)           \
	F(SI_INBOUND,            16, 0,   1, RO)           \
	F(SI_OUTBOUND,           16, 1,   1, RO)           \
	F(SI_FILTER_RAW_IN,      16, 2,   1, RO)           \
	F(SI_FILTER_RAW_OUT,     16, 3,   1, RO)           \
	F(SI_ENHANCED_PORT0,     16, 4,   1, RO)           \
	F(SI_RESERVED,           16, 5,   3, RO)           \
	F(SI_MCAST_TOP,          18, 0,  16, RW)

/* 14.2.5.6 */
#define PORT_INFO_FIELDS(F)                                \
	F(PI_M_KEY,               0, 0,  64, RW)           \
	F(PI_GID_PREFIX,          8, 0,  64, RW)           \
	F(PI_LID,                16, 0,  16, RW)           \
	F(PI_SM_LID,             18, 0,  16, RW)           \
	F(PI_CAP_MASK,           20, 0,  32, RO)           \
	F(PI_DIAG_CODE,          24, 0,  16, RO)           \
	F(PI_M_KEY_LEASE,        26, 0,  16, RW)           \
	F(PI_LOCAL_PORT,         28, 0,   8, RO)           \
	F(PI_WIDTH_ENABLED,      29, 0,   8, RW)           \
	F(PI_WIDTH_SUPPORTED,    30, 0,   8, RO)           \
	F(PI_WIDTH_ACTIVE,       31, 0,   8, RO)           \
	F(PI_SPEED_SUPPORTED,    32, 0,   4, RO)           \
	F(PI_STATE,              32, 4,   4, RO)           \
	F(PI_PHYS_STATE,         33, 0,   4, RO)           \
	F(PI_DOWN_DEFAULT,       33, 4,   4, RW)           \
	F(PI_M_KEY_PROTECT,      34, 0,   2, RW)           \
	F(PI_RESERVED,           34, 2,   3, RO)           \
	F(PI_LMC,                34, 5,   3, RW)           \
	F(PI_SPEED_ACTIVE,       35, 0,   4, RO)           \
	F(PI_SPEED_ENABLED,      35, 4,   4, RW)           \
	F(PI_NEIGHBOR_MTU,       36, 0,   4, RW)           \
	F(PI_SM_SL,              36, 4,   4, RW)           \
	F(PI_VL_CAP,             37, 0,   4, RO)           \
	F(PI_INIT_TYPE,          37, 4,   4, RW)           \
	F(PI_VL_HIGH_LIMIT,      38, 0,   8, RW)           \
	F(PI_VL_ARB_HIGH_CAP,    39, 0,   8, RO)           \
	F(PI_VL_ARB_LOW_CAP,     40, 0,   8, RO)           \
	F(PI_INIT_TYPE_REPLY,    41, 0,   4, RO)           \
	F(PI_MTU_CAP,            41, 4,   4, RO)           \
	F(PI_VL_STALL_COUNT,     42, 0,   3, RW)           \
	F(PI_HOQ_LIFE,           42, 3,   5, RW)           \
	F(PI_OPER_VLS,           43, 0,   4, RW)           \
	F(PI_PARTITION_IN,       43, 4,   1, RW)           \
	F(PI_PARTITION_OUT,      43, 5,   1, RW)           \
	F(PI_FILTER_RAW_IN,      43, 6,   1, RW)           \
	F(PI_FILTER_RAW_OUT,     43, 7,   1, RW)           \
	F(PI_M_KEY_VIOLATIONS,   44, 0,  16, RW)           \
	F(PI_P_KEY_VIOLATIONS,   46, 0,  16, RW)           \
	F(PI_Q_KEY_VIOLATIONS,   48, 0,  16, RW)           \
	F(PI_GUID_CAP,           50, 0,   8, RO)           \
	F(PI_CLIENT_REREGISTER,  51, 0,   1, RO)           \
	F(PI_MCAST_PKEY_TRAPS,   51, 1,   2, RW)           \
	F(PI_SUBNET_TIMEOUT,     51, 3,   5, RW)           \
	F(PI_RESERVED2,          52, 0,   3, RO)           \
	F(PI_RESP_TIME,          52, 3,   5, RO)           \
	F(PI_LOCAL_PHYS_ERRORS,  53, 0,   4, RW)           \
	F(PI_OVERRUN_ERRORS,     53, 4,   4, RW)           \
	F(PI_MAX_CREDIT_HINT,    54, 0,  16, RO)           \
	F(PI_RESERVED3,          56, 0,   8, RO)           \
	F(PI_ROUND_TRIP,         57, 0,  24, RO)           \
	F(PI_CAP_MASK2,          60, 0,  16, RO)           \
	F(PI_SPEED_EXT_ACTIVE,   62, 0,   4, RO)           \
	F(PI_SPEED_EXT_SUPPORTED, 62, 4,  4, RO)           \
	F(PI_RESERVED4,          63, 0,   3, RO)           \
	F(PI_SPEED_EXT_ENABLED,  63, 3,   5, RW)

/* 14.2.5.13 */
#define SM_INFO_FIELDS(F)                                  \
	F(SM_GUID,                0, 0,  64, RO)           \
	F(SM_KEY,                 8, 0,  64, RO)           \
	F(SM_ACT_COUNT,          16, 0,  32, RO)           \
	F(SM_PRIORITY,           20, 0,   4, RO)           \
	F(SM_STATE,              20, 4,   4, RO)

/* clang-format on */

#define ATTR_ENUM(name, byte, bit, width, access) name,
enum node_info_field { NODE_INFO_FIELDS(ATTR_ENUM) NI_FIELDS };
enum switch_info_field { SWITCH_INFO_FIELDS(ATTR_ENUM) SI_FIELDS };
enum port_info_field { PORT_INFO_FIELDS(ATTR_ENUM) PI_FIELDS };
enum sm_info_field { SM_INFO_FIELDS(ATTR_ENUM) SM_FIELDS };
#undef ATTR_ENUM

extern const struct attr_field node_info_fields[NI_FIELDS];
extern const struct attr_field switch_info_fields[SI_FIELDS];
extern const struct attr_field port_info_fields[PI_FIELDS];
extern const struct attr_field sm_info_fields[SM_FIELDS];

uint64_t attr_get(const uint8_t *attr, const struct attr_field *f);
/* The bits of v beyond the field's width are lost. */
void attr_put(uint8_t *attr, const struct attr_field *f, uint64_t v);
/* Whether a component is the same in both; of any width. */
bool attr_same(const uint8_t *a, const uint8_t *b, const struct attr_field *f);

/* As the names have it. */
#define ni_put(attr, field, v) attr_put(attr, &node_info_fields[field], v)
#define si_get(attr, field) attr_get(attr, &switch_info_fields[field])
#define si_put(attr, field, v) attr_put(attr, &switch_info_fields[field], v)
#define pi_get(attr, field) attr_get(attr, &port_info_fields[field])
#define pi_put(attr, field, v) attr_put(attr, &port_info_fields[field], v)
#define sm_put(attr, field, v) attr_put(attr, &sm_info_fields[field], v)

#endif
