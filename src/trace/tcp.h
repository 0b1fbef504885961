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
 * Called by way of hooks/pcap.h, which says what each does.
 */
#ifndef SOFTHCA_TRACE_TCP_H
#define SOFTHCA_TRACE_TCP_H

#include "pcap.h"

struct pcap_tcp *tcp_begin(struct pcap *p, const struct pcap_tcp_end *ours,
			   const struct pcap_tcp_end *peers, uint8_t tclass,
			   bool initiator);
void tcp_connected(struct pcap_tcp *t);
void tcp_data(struct pcap_tcp *t, bool outbound, const struct iovec *iov,
	      size_t len);
void tcp_fin(struct pcap_tcp *t, bool outbound);
void tcp_reset(struct pcap_tcp *t, bool outbound);
void tcp_free(struct pcap_tcp *t);

#endif
