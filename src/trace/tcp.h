/*
 * tcp.h - a TCP connection in a recording (pcap.h)
 *
 * A process knows the bytes that it has sent and received, but not the segments
 * that carried them. So those are synthesized: one for each of MPA's two frames
 * and for each FPDU, as RFC 5044 would have it, or two where an IP packet has
 * no room for it. What only the network knows, windows, segments without bytes,
 * what was sent again, is not there. Sequence numbers begin at 0. So both ends
 * record the same segments, and in one file the second is one that was sent
 * again, which Wireshark does not decode twice.
 *
 * The owner of the connection serialises all calls.
 */
#ifndef SOFTHCA_TRACE_TCP_H
#define SOFTHCA_TRACE_TCP_H

#include "pcap.h"

struct pcap_tcp;

struct pcap_tcp_end {
	union ibv_gid addr;
	uint16_t port;
};

/* The SYN, ours or, if not initiator, the peer's. NULL: no memory. */
struct pcap_tcp *pcap_tcp_begin(struct pcap *p, const struct pcap_tcp_end *ours,
				const struct pcap_tcp_end *peers,
				uint8_t tclass, bool initiator);
/* What answers it, on either side. */
void pcap_tcp_connected(struct pcap_tcp *t);
/* The first len bytes of iov have been sent, or have come. They may be in
 * memory that the program takes away (os/guard.h). */
void pcap_tcp_data(struct pcap_tcp *t, bool outbound, const struct iovec *iov,
		   size_t len);
/* An end sends no more, */
void pcap_tcp_fin(struct pcap_tcp *t, bool outbound);
/* or has given up the connection. What comes later is not recorded. */
void pcap_tcp_reset(struct pcap_tcp *t, bool outbound);
void pcap_tcp_free(struct pcap_tcp *t);

#endif
