/*
 * umad_internal.h - ports, agents and what is on its way, as the files of
 * libibumad see them
 *
 * A port that a program has opened is a struct port, found by its descriptor.
 * Requests are answered by the fabric (fabric_side.c) as they are sent, or leave
 * by QP1 for a process of this host or another one (wire.c). What comes back, or
 * is asked of an agent, waits in the port's queue.
 *
 * Lock order: the connection manager's (connect/gsi.h) > ports_lock > a port's.
 * The fabric's lock is taken without any of them.
 */
#ifndef SOFTHCA_IBUMAD_UMAD_INTERNAL_H
#define SOFTHCA_IBUMAD_UMAD_INTERNAL_H

#include "roce/qp.h"
#include "verbs/device.h"
#include "wire/mad.h"

#include <infiniband/umad.h>
#include <infiniband/umad_types.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* What a port keeps for a program that does not fetch it: more is lost, as on a
 * QP without receive requests. And what it may have on its way. */
#define QUEUE_MADS 4096
#define QUEUE_BYTES (32u << 20)
#define SENT_MADS 4096
/* The longest message of several packets. */
#define RMPP_MAX (4u << 20)
#define RMPP_BYTES (16u << 20) /* of those of a port that are not whole yet */

#define TID_BITS 0xfffu /* of an agent, in a chunk of numbers (registry.h) */

/* ca.c */

#define PORT_NUM 1 /* each device has one port, but for simulated nodes */

/* The device of this name that has MADs; NULL: none. */
struct shca_device *ca_find(const char *name);
/* The device that name and port stand for, and its port number then; NULL: none. */
struct shca_device *ca_resolve(const char *name, int *portnum);
/* Whether it has a port of that number: its GUID, in host order. */
bool ca_port(struct shca_device *dev, int portnum, uint64_t *guid);
/* Whether subnet management reaches it: it is one of InfiniBand. */
bool ca_has_smi(struct shca_device *dev);
/* Its port's address, where it has a LID. */
bool ca_addr(struct shca_device *dev, struct netdev_gid *at);

/* Of newer headers than Debian 12's. A device's two ways to its subnet: one that has
 * subnet management (SMI), and one for all other agents. */
struct umad_ca_pair;
int umad_get_smi_gsi_pairs(struct umad_ca_pair *cas, size_t max);
/* 0; 1: there is none, or none with an SMI, where that is asked for. */
int umad_get_smi_gsi_pair_by_ca_name(const char *devname, uint8_t portnum,
				     struct umad_ca_pair *pair,
				     unsigned enforce_smi);
int umad_open_smi_port(const char *ca_name, int portnum);

/* Ports and agents */

struct agent {
	bool used;
	bool user_rmpp; /* segments are the program's affair */
	uint8_t class, version, rmpp;
	uint32_t oui;
	uint64_t methods[2]; /* whose requests it gets */
	bool served; /* other processes know (wire.c), */
	union ibv_gid at; /* at this address */
	uint32_t tid; /* TID_BITS of the first half of its transactions' IDs */
};

/* A message for the program. */
struct packet {
	struct packet *next;
	uint32_t agent, status;
	ib_mad_addr_t addr;
	size_t len;
	uint8_t mad[];
};

struct rmpp_tx;
struct rmpp_rx;

/* A message of the program's that waits for its answer, or that has not left. */
struct sent {
	struct sent *next;
	uint32_t agent, timeout_ms;
	ib_mad_addr_t addr;
	uint64_t deadline_ns; /* UINT64_MAX: none */

	/* Of those that leave by QP1; by the engine's clock. */
	bool wire;
	bool waits; /* for an answer */
	uint64_t due_ns; /* when it is sent (again); UINT64_MAX: not */
	unsigned sends; /* how many times more */
	struct roce_path path;
	struct rmpp_tx *rmpp; /* NULL: one packet */

	size_t len;
	uint8_t mad[];
};

struct port {
	struct port *next;
	int fd; /* a timerfd: expired while there is something to fetch */
	unsigned refs; /* under ports_lock */
	struct shca_device *dev;
	uint64_t guid; /* host order */

	pthread_mutex_t lock; /* of what follows */
	uint64_t armed_ns; /* what fd is set to; 0: nothing */
	struct agent agent[UMAD_CA_MAX_AGENTS];
	struct packet *head, **tail;
	size_t packets, bytes;
	struct sent *sent, **sent_tail;
	size_t nsent;
	struct rmpp_rx *rmpp;
	size_t nrmpp, rmpp_bytes;
};

/* port.c */

extern pthread_mutex_t ports_lock;
extern struct port *ports; /* under ports_lock */

/* That of a descriptor, or NULL; to be given back. */
struct port *port_get(int fd);
void port_put(struct port *p);

/* With the port's lock. A message for the program's agent is in the queue, or
 * lost: false. The descriptor is set to what is due. */
bool port_deliver(struct port *p, uint32_t agent, uint32_t status,
		  const ib_mad_addr_t *addr, const void *mad, size_t len);
void port_arm(struct port *p);
/* Behind those that are there. */
void port_add(struct port *p, struct sent *s);
/* Out of the list, not freed. */
void port_unlink(struct port *p, struct sent *s);
void sent_free(struct sent *s);
/* The request that mad answers, which has left for there; NULL: nobody waits for
 * it. */
struct sent *port_waits(struct port *p, const uint8_t *mad,
			const union ibv_gid *from);

/* agent.c: with the port's lock: the agent that a request is for, or -1. */
int agent_of(const struct port *p, const uint8_t *mad, size_t len);
/* Its transactions have this in the first half of their IDs. */
int agent_by_tid(const struct port *p, uint32_t tid);

/* What the classes have behind the common header (IBA 13.4, 13.6). */
static inline bool mad_has_rmpp(uint8_t class)
{
	return class == UMAD_CLASS_SUBN_ADM || class == UMAD_CLASS_DEVICE_ADM ||
	       class == UMAD_CLASS_BIS || MAD_CLASS_IS_VENDOR2(class);
}

#define MAD_RMPP_LEN 36
/* Where its data begin. */
static inline size_t mad_data_offset(uint8_t class)
{
	return class == UMAD_CLASS_SUBN_ADM ? 56 :
	       class == UMAD_CLASS_DEVICE_MGMT ||
			       class == UMAD_CLASS_DEVICE_ADM ||
			       class == UMAD_CLASS_BIS ?
					      64 :
	       MAD_CLASS_IS_VENDOR2(class) ? 40 :
					     MAD_HDR_LEN;
}

/* fabric_side.c: what the fabric answers to a request: 0: it did, by a message in
 * *out of *len; -ENOENT: nobody will; -EREMOTE: it is to leave by QP1. No lock. */
struct fabric_port; /* fabric/fabric.h */
/* -EIO: the file of the fabric is wrong, which is said. */
int fabric_open(struct shca_device *dev);
/* Whether programs are at a node of the file, and its port NUM then. */
bool fabric_stands(struct shca_device *dev, unsigned num,
		   struct fabric_port *port);
/* In the child of a fork: what it had of the fabric may be half done. */
void fabric_forked(void);
int fabric_ask(struct port *p, const ib_mad_addr_t *addr, const uint8_t *mad,
	       size_t len, void **out, size_t *outlen);

/* fabric_state.c: what processes have set at the nodes of a file; under the lock of
 * the fabric that it belongs to. */
struct fabric;
struct fabric_set;
struct fabric_state {
	char path[256]; /* "": they cannot be shared */
	int fd; /* -1: nothing has been set yet */
	uint64_t next; /* record that the fabric does not have yet */
	bool said; /* that ours stay here */
};
void fabric_state_init(struct fabric_state *s, const char *path,
		       const char *text, size_t len);
void fabric_state_close(struct fabric_state *s);
/* What others have set since. */
void fabric_state_read(struct fabric_state *s, struct fabric *f);
/* Reads that, and keeps others from setting more until the lock is let go. False:
 * what is set stays in this process. */
bool fabric_state_lock(struct fabric_state *s, struct fabric *f);
void fabric_state_unlock(struct fabric_state *s);
void fabric_state_add(struct fabric_state *s, const struct fabric_set *set);

/* wire.c; no lock of a port's. */

/* An agent gets requests from now on, at this address; -EADDRINUSE: another process
 * has them. */
int wire_serve(struct port *p, const struct agent *a, union ibv_gid *at);
void wire_unserve(const struct agent *a);
/* In the child of a fork. */
void wire_forked(void);
/* What the first halves of all our transactions' IDs begin with, an agent's number
 * behind it: others of this host find us by it. 0: nothing leaves yet. */
uint32_t wire_tid(void);
/* Where a message goes to; -ENODEV: the device cannot be opened. */
int wire_path(struct port *p, const ib_mad_addr_t *addr,
	      struct roce_path *path);
/* Something is due. */
void wire_kick(void);

/* buffer.c */

extern int umad_debug_level;
void umad_warn(const char *func, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#define DEBUG(func, ...)                                                       \
	do {                                                                   \
		if (umad_debug_level)                                          \
			umad_warn(func, __VA_ARGS__);                          \
	} while (0)

#endif
