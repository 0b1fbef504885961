/*
 * fabric.h - an InfiniBand subnet that is not there, and what its agents answer
 *
 * One struct fabric is one subnet: nodes, ports and links. Nodes are hosts, which
 * hang on a virtual switch, and switches and CAs of a text in the output format
 * of ibnetdiscover(8). A management datagram that enters at a port goes where its
 * LID or its directed route leads, and the agent there answers: subnet
 * management (SMA), performance management (PMA), subnet administration (SA), the
 * vendor class of ibping.
 *
 * Nothing here waits, locks, or asks for time: the caller serialises its calls,
 * and hands in one request at a time. What a request costs is bounded by the size
 * of the fabric. GUIDs and LIDs are in host order here.
 *
 * What text says of a GUID that a host has, too, is said of that host: it hangs
 * where the text has it. Where text knows no host and not the virtual switch, a
 * link leads from that to the first switch of the text that has a free port. A
 * LID that both have is the host's, and the text's node gets another one.
 */
#ifndef SOFTHCA_FABRIC_FABRIC_H
#define SOFTHCA_FABRIC_FABRIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FABRIC_DESC_LEN 64
#define FABRIC_TEXT_MAX (64u << 20)
#define FABRIC_ANSWER_MAX (16u << 20)

struct fabric;

struct fabric *fabric_new(void);
void fabric_free(struct fabric *f);

/*
 * Nodes and links of a text. Returns 0, or -1 with a line "NAME:LINE: what is
 * wrong" in why; the fabric is to be freed then.
 */
int fabric_read(struct fabric *f, const char *name, const char *text,
		size_t len, char *why, size_t size);

/* A host's CA, of one port. Numbers of width, speed and MTU are PortInfo's. */
struct fabric_host {
	uint64_t node_guid, port_guid;
	uint64_t switch_guid; /* of the virtual switch, the same for all */
	uint16_t lid;
	uint16_t sm_lid; /* the virtual switch's: the subnet manager is there */
	uint8_t width, speed, speed_ext; /* 0: 4X, EDR */
	uint8_t mtu, mtu_cap; /* 0: 4096 */
	uint16_t device;
	uint32_t vendor, revision;
	uint32_t cap_mask; /* 0: what agents here can do */
	char desc[FABRIC_DESC_LEN + 1];
};

/*
 * Adds a host, or changes what is known of it. Returns 0, or -1 with the reason
 * in why: a LID or a GUID that another node has.
 */
int fabric_add_host(struct fabric *f, const struct fabric_host *h, char *why,
		    size_t size);
/* Its link goes down. */
void fabric_drop_host(struct fabric *f, uint64_t port_guid);

/* A port, as programs on it see it. */
struct fabric_port {
	uint64_t node_guid, port_guid, sys_guid, gid_prefix;
	uint32_t cap_mask;
	uint16_t lid, sm_lid;
	uint8_t type; /* FABRIC_CA... */
	uint8_t num, nports;
	uint8_t lmc, sm_sl, state, phys_state;
	uint8_t width, speed, speed_ext;
	bool host;
	char desc[FABRIC_DESC_LEN + 1];
};

enum fabric_node_type { FABRIC_CA = 1, FABRIC_SWITCH = 2, FABRIC_ROUTER = 3 };

/*
 * The port NUM of the node that text calls by this name, its ID or its
 * description; num 0: of a switch its port 0, of others the first that has a
 * link. name NULL: of the node that text has first. Returns 0, or -1: there is
 * none.
 */
int fabric_port_named(struct fabric *f, const char *name, unsigned num,
		      struct fabric_port *p);
/* The port of a CA, or port 0 of a switch. */
int fabric_port_guid(struct fabric *f, uint64_t port_guid,
		     struct fabric_port *p);

/* What a port has sent and received, in the units of PortCountersExtended: data
 * in words of four bytes. */
struct fabric_counters {
	uint64_t xmit_data, rcv_data, xmit_pkts, rcv_pkts;
	uint64_t unicast_xmit, unicast_rcv, multicast_xmit, multicast_rcv;
	uint64_t symbol_errors, rcv_errors, xmit_discards, vl15_dropped;
	uint64_t link_downed, xmit_wait;
};

/* What a Set of subnet management has made of an attribute, at a node of text. */
struct fabric_set {
	uint64_t node_guid;
	uint32_t mod;
	uint16_t attr;
	uint8_t port; /* where the request arrived */
	uint8_t data[64];
};

/* As another fabric of the same text has it. What is no Set that a node here takes
 * changes nothing. */
void fabric_apply(struct fabric *f, const struct fabric_set *s);

/*
 * What is not in the fabric; each may be NULL. counters: those of a host's port;
 * nonzero: they are not known here, and its host has to be asked. NULL: zeros.
 * reset: so much has to be taken off them from now on, beside what was before;
 * nonzero, or NULL: the fabric remembers it. mlid: the LID of a multicast group,
 * whose MGID is in network order; NULL, or 0: the lowest that is free. set: a Set
 * has changed a node of text.
 */
struct fabric_env {
	int (*counters)(void *arg, uint64_t port_guid,
			struct fabric_counters *c);
	int (*reset)(void *arg, uint64_t port_guid,
		     const struct fabric_counters *less);
	uint16_t (*mlid)(void *arg, const uint8_t mgid[16]);
	void (*set)(void *arg, const struct fabric_set *s);
	void *arg;
};

#define FABRIC_NOBODY 0
#define FABRIC_ELSEWHERE (-1)

/*
 * One request, of 256 bytes, that a program on the port with this GUID sends to
 * dlid (0xffff: a directed route from here) and QP dqpn. Returns the length of
 * the answer, in memory of malloc(3) at *out; FABRIC_NOBODY: nothing comes back;
 * FABRIC_ELSEWHERE: it is for a program, or for an agent of a host that is not
 * known here, at the port that *at then describes (at may be NULL).
 *
 * An answer of subnet administration may be longer than 256 bytes: it is whole,
 * as umad_recv(3) hands it out, with the RMPP header of its first segment.
 */
ssize_t fabric_request(struct fabric *f, const struct fabric_env *env,
		       uint64_t port_guid, uint16_t dlid, uint32_t dqpn,
		       const void *mad, size_t len, void **out,
		       struct fabric_port *at);

#endif
