/*
 * pcap.h - packets, for who records them (src/trace)
 *
 * struct pcap is a recording, which the process opens (trace/pcap.h) and gives
 * to its links; one that has none calls nothing here.
 *
 * A process knows the bytes that a TCP connection has sent and received, but not
 * the segments that carried them. Who records makes them up (trace/tcp.h).
 */
#ifndef SOFTHCA_HOOKS_PCAP_H
#define SOFTHCA_HOOKS_PCAP_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct pcap;
struct pcap_tcp;

#define PCAP_PKT_MAX 65535u /* bytes in the largest IP packet */

struct pcap_tcp_head {
	uint32_t seq, ack;
	uint8_t flags;
};

/* Of a packet of RoCE v1: where its frame goes to and comes from. */
struct pcap_ether {
	uint8_t dst[6], src[6];
};

struct pcap_pkt {
	const union ibv_gid *src, *dst;
	uint16_t sport, dport;
	uint16_t ip_id;
	uint8_t tclass, hop_limit;
	uint32_t flow_label; /* of IPv6, and of a GRH */
	bool outbound;
	uint64_t realtime_ns; /* 0: now */
	const struct pcap_ether *ether; /* RoCE v1; NULL: over IP */
	const struct pcap_tcp_head *tcp; /* NULL: UDP */
	const struct iovec *iov; /* BTH to ICRC inclusive; TCP's bytes */
	int niov;
};

struct pcap_tcp_end {
	union ibv_gid addr;
	uint16_t port;
};

struct pcap_ops {
	void (*write)(struct pcap *p, const struct pcap_pkt *pkt);
	uint64_t (*file)(const struct pcap *p);
	struct pcap_tcp *(*tcp_begin)(struct pcap *p,
				      const struct pcap_tcp_end *ours,
				      const struct pcap_tcp_end *peers,
				      uint8_t tclass, bool initiator);
	void (*tcp_connected)(struct pcap_tcp *t);
	void (*tcp_data)(struct pcap_tcp *t, bool outbound,
			 const struct iovec *iov, size_t len);
	void (*tcp_fin)(struct pcap_tcp *t, bool outbound);
	void (*tcp_reset)(struct pcap_tcp *t, bool outbound);
	void (*tcp_free)(struct pcap_tcp *t);
};

/* Set before there is a recording. */
extern const struct pcap_ops *pcap_ops __attribute__((visibility("hidden")));

static inline void pcap_write(struct pcap *p, const struct pcap_pkt *pkt)
{
	pcap_ops->write(p, pkt);
}

/* A number of the file, the same in all processes that record in it; 0: nothing
 * is recorded. */
static inline uint64_t pcap_file(const struct pcap *p)
{
	return p ? pcap_ops->file(p) : 0;
}

/* The owner of a connection serialises all calls. */

/* The SYN, ours or, if not initiator, the peer's. NULL: no memory. */
static inline struct pcap_tcp *pcap_tcp_begin(struct pcap *p,
					      const struct pcap_tcp_end *ours,
					      const struct pcap_tcp_end *peers,
					      uint8_t tclass, bool initiator)
{
	return pcap_ops->tcp_begin(p, ours, peers, tclass, initiator);
}

/* What answers it, on either side. */
static inline void pcap_tcp_connected(struct pcap_tcp *t)
{
	pcap_ops->tcp_connected(t);
}

/* The first len bytes of iov have been sent, or have come. They may be in
 * memory that the program takes away (os/guard.h). */
static inline void pcap_tcp_data(struct pcap_tcp *t, bool outbound,
				 const struct iovec *iov, size_t len)
{
	pcap_ops->tcp_data(t, outbound, iov, len);
}

/* An end sends no more, */
static inline void pcap_tcp_fin(struct pcap_tcp *t, bool outbound)
{
	pcap_ops->tcp_fin(t, outbound);
}

/* or has given up the connection. What comes later is not recorded. */
static inline void pcap_tcp_reset(struct pcap_tcp *t, bool outbound)
{
	pcap_ops->tcp_reset(t, outbound);
}

static inline void pcap_tcp_free(struct pcap_tcp *t)
{
	if (t)
		pcap_ops->tcp_free(t);
}

#endif
