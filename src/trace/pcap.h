/*
 * pcap.h - a pcapng file of this process's packets
 *
 * Written by the library itself, so no privilege is needed. Each packet gets
 * the IP and UDP headers it travelled with, rebuilt from what is known (link
 * type raw IP), with valid checksums, so that tshark and other decoders report
 * no errors. Those of iWARP are made up (tcp.h). Safe from many threads; does
 * nothing in a forked child. A write that fails (disk full) ends the recording.
 */
#ifndef SOFTHCA_TRACE_PCAP_H
#define SOFTHCA_TRACE_PCAP_H

#include "wire/roce.h"

#include <sys/uio.h>

struct pcap;

/*
 * path: with %p, which becomes the process ID, the file starts empty; without,
 * packets are appended, after and among those of other processes. Readable by
 * its owner alone. For a FIFO, waits until it has a reader; packets that the
 * reader does not take in time are left out, and counted in the file. Returns 0
 * or -errno; -EBUSY: another process has the FIFO.
 */
int pcap_open(struct pcap **p, const char *path);

/* Empties a file unless somebody records in it. Returns 0 or -errno. */
int pcap_restart(int fd);

void pcap_close(struct pcap *p);

/* A number of the file, the same in all processes that record in it; 0: nothing
 * is recorded. */
uint64_t pcap_file(const struct pcap *p);

/* Interfaces of a process in the file: "softhca0 pid 1234 ib_write_bw". */
enum { PCAP_ROCE, PCAP_IWARP };

#define PCAP_PKT_MAX 65535u /* bytes in the largest IP packet */

struct pcap_tcp_head {
	uint32_t seq, ack;
	uint8_t flags;
};

struct pcap_pkt {
	const union ibv_gid *src, *dst;
	uint16_t sport, dport;
	uint16_t ip_id;
	uint8_t tclass, hop_limit;
	uint32_t flow_label; /* of IPv6 */
	bool outbound;
	uint64_t realtime_ns; /* 0: now */
	const struct pcap_tcp_head *tcp; /* NULL: UDP */
	const struct iovec *iov; /* BTH to ICRC inclusive; TCP's bytes */
	int niov;
};

void pcap_write(struct pcap *p, const struct pcap_pkt *pkt);
/*
 * Writes all packets recorded so far to the file. pcap_write() does so itself
 * when packets are 100 ms old, but only when the next one comes.
 */
void pcap_flush(struct pcap *p);

#endif
