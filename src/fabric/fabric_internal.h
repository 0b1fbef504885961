/*
 * fabric_internal.h - nodes, ports and links, for the agents
 *
 * A port keeps its PortInfo, a switch its SwitchInfo, as the bytes that are sent
 * (attr.h). What is long and mostly has its default (tables of P_Keys and of
 * virtual lanes, forwarding tables that a subnet manager has set) is there once
 * it has been set. Ports of a node are an array from 0 on; port 0 of a CA is not
 * used.
 */
#ifndef SOFTHCA_FABRIC_FABRIC_INTERNAL_H
#define SOFTHCA_FABRIC_FABRIC_INTERNAL_H

#include "attr.h"
#include "fabric.h"

#include "base/bytes.h"

#define PORTS_MAX 254u
#define SWITCHES_MAX 4096u
#define ALL_PORTS_MAX (1u << 20)
#define LIDS_END 0xc000u
#define LID_PERMISSIVE 0xffffu
#define HOPS_MAX 63u
#define GID_PREFIX UINT64_C(0xfe80000000000000)
#define PKEYS 64u
#define LFT_BLOCK 64u
#define MCAST_CAP 1024u
#define NO_PORT 0xffu /* of forwarding tables */

enum { LINK_DOWN = 1, LINK_INIT = 2, LINK_ARMED = 3, LINK_ACTIVE = 4 };
enum { PHYS_POLLING = 2, PHYS_DISABLED = 3, PHYS_UP = 5 };

/* CapabilityMask of PortInfo. */
#define CAP_IS_SM (1u << 1)
#define CAP_SL_MAPPING (1u << 6)
#define CAP_EXT_SPEEDS (1u << 14)
#define CAP_REREGISTER (1u << 25)

/* What a subnet manager has set of a port, beside PortInfo. */
struct port_tables {
	uint8_t pkeys[PKEYS * 2];
	uint8_t vl_arb[4]
		      [64]; /* by the part that the attribute names, less 1 */
	uint8_t (*sl2vl)[8]; /* by port of input; or NULL */
};

struct port {
	struct node *node;
	struct port *peer; /* NULL: no cable */
	uint64_t guid;
	uint8_t num;
	uint8_t info[64];
	struct port_tables *tables;
	struct fabric_counters *base; /* what resets take off */
};

struct switch_tables {
	uint8_t *lft; /* NULL: what min-hop says */
	uint8_t *mft; /* two bytes for 16 ports, by MLID and by position */
};

struct node {
	uint64_t guid, sys_guid;
	uint32_t vendor, revision;
	uint16_t device;
	uint8_t type, nports;
	bool host;
	uint32_t index; /* of switches: among themselves */
	struct port *ports; /* nports + 1 */
	char *id; /* as text calls it; or NULL */
	uint8_t desc[FABRIC_DESC_LEN];
	uint8_t sw_info[64];
	struct switch_tables sw;
};

struct guid_map {
	struct guid_slot {
		uint64_t guid;
		void *what; /* NULL: free */
	} * slot;
	size_t cap, used;
};

struct fabric {
	struct node **nodes;
	size_t nnodes, nodes_cap;
	size_t nports;
	struct node **switches;
	size_t nswitches;
	struct guid_map by_node, by_port;
	struct port **lids; /* by LID; of LMC each of them */
	unsigned lid_top;
	/* By destination, a switch: the port that leads there, by switch; a row
	 * is made when it is asked for. */
	uint8_t **trees;
	struct node *vswitch; /* the virtual switch of hosts, or NULL */
	struct node *first; /* of text, or NULL */
	struct port *sm; /* where the subnet manager is */
	uint16_t sm_lid;
	bool settled;
	struct joined *joined; /* to groups, and services: sa_joined.c */
};

/* ---- fabric.c */

struct link_rate {
	uint8_t width, speed, speed_ext;
};

/* NULL with a reason in why: its GUID is taken, there are too many. The ports
 * have no GUIDs yet. */
struct node *fabric_add_node(struct fabric *f, unsigned type, uint64_t guid,
			     unsigned nports, char *why, size_t size);
struct node *fabric_node(const struct fabric *f, uint64_t guid);
struct port *fabric_port_of(const struct fabric *f, uint64_t guid);
/* -1: another port has it. */
int fabric_set_port_guid(struct fabric *f, struct port *p, uint64_t guid);
/* -1: another port has one of them, or they are no unicast LIDs. */
int fabric_set_lid(struct fabric *f, struct port *p, unsigned lid,
		   unsigned lmc);
/* rate NULL: as it is. -1: one of them has another cable. */
int fabric_connect(struct fabric *f, struct port *a, struct port *b,
		   const struct link_rate *rate);
/* LIDs for those that have none, and where the subnet manager is. Returns 0, or
 * -1: there is no memory. Asked before each request. */
int fabric_settle(struct fabric *f);

/* The port itself, or port 0 of a switch: the one that has the LID. */
static inline struct port *port_management(struct port *p)
{
	return p->node->type == FABRIC_SWITCH ? &p->node->ports[0] : p;
}

static inline unsigned port_lid(const struct port *p)
{
	return (unsigned)pi_get(p->info, PI_LID);
}

static inline bool port_has_lid(const struct port *p, unsigned lid)
{
	const unsigned own = port_lid(p);

	return own && lid >= own && lid < own + (1u << pi_get(p->info, PI_LMC));
}

/* ---- route.c */

/* The port of switch sw that leads to the LID; NO_PORT: none. */
unsigned route_lft(struct fabric *f, struct node *sw, unsigned lid);
void route_forget(struct fabric *f);
/* Where a datagram for the LID arrives that leaves port p, or NULL. At a switch:
 * its port 0. */
struct port *route_lid(struct fabric *f, struct port *p, unsigned lid);
/* The same; pass is called with each port that it leaves. */
struct port *route_lid_by(struct fabric *f, struct port *p, unsigned lid,
			  void (*pass)(void *arg, const struct port *p),
			  void *arg);

/* ---- management datagrams */

enum mad_class {
	CLASS_SM_LID = 0x01,
	CLASS_SA = 0x03,
	CLASS_PERF = 0x04,
	CLASS_PING = 0x32,
	CLASS_SM_DIRECTED = 0x81,
};

enum mad_method {
	METHOD_GET = 0x01,
	METHOD_SET = 0x02,
	METHOD_TRAP = 0x05,
	METHOD_TRAP_REPRESS = 0x07,
	METHOD_GET_TABLE = 0x12,
	METHOD_DELETE = 0x15,
	METHOD_RESPONSE = 0x80,
};

/* 13.4.7 */
enum mad_status {
	MAD_OK = 0,
	MAD_BUSY = 1 << 0,
	MAD_BAD_VERSION = 1 << 2,
	MAD_BAD_METHOD = 2 << 2,
	MAD_BAD_ATTRIBUTE = 3 << 2, /* or not with this method */
	MAD_BAD_VALUE = 7 << 2,
};

/* ---- smp.c */
ssize_t smp_request(struct fabric *f, const struct fabric_env *env,
		    struct port *from, unsigned dlid, const uint8_t *mad,
		    void **out, struct port **at);

/* ---- gmp.c */
ssize_t gmp_request(struct fabric *f, const struct fabric_env *env,
		    struct port *from, unsigned dlid, const uint8_t *mad,
		    void **out, struct port **at);

/* ---- sma.c */

enum sma_attr {
	SMA_NODE_DESCRIPTION = 0x10,
	SMA_NODE_INFO = 0x11,
	SMA_SWITCH_INFO = 0x12,
	SMA_GUID_INFO = 0x14,
	SMA_PORT_INFO = 0x15,
	SMA_PKEY_TABLE = 0x16,
	SMA_SL_TO_VL = 0x17,
	SMA_VL_ARBITRATION = 0x18,
	SMA_LINEAR_FORWARDING = 0x19,
	SMA_MULTICAST_FORWARDING = 0x1b,
	SMA_SM_INFO = 0x20,
	SMA_MLNX_PORT_INFO = 0xff90, /* Mellanox's own */
};

/* A Get or Set at the agent of port p's node, where it arrived; writes the 64
 * bytes of data. Returns a status, or -1: there is no answer. env: who hears of a
 * Set, or NULL. */
int sma_answer(struct fabric *f, const struct fabric_env *env, struct port *p,
	       unsigned method, unsigned attr, uint32_t mod, uint64_t m_key,
	       uint8_t data[64]);

/* ---- pma.c */

/* A Get or Set at port p; data has room for 192 bytes. Returns a status, or
 * FABRIC_ELSEWHERE. */
int pma_answer(const struct fabric_env *env, struct port *p, unsigned method,
	       unsigned attr, uint8_t *data);

/* ---- sa.c */
ssize_t sa_request(struct fabric *f, const struct fabric_env *env,
		   struct port *from, const uint8_t *mad, void **out);

#endif
