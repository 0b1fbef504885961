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

#include "hooks/pcap.h"

/*
 * path: with %p, which becomes the process ID, the file starts empty; without,
 * packets are appended, after and among those of other processes. Readable by
 * its owner alone. For a FIFO, waits until it has a reader; packets that the
 * reader does not take in time are left out, and counted in the file. Returns 0
 * or -errno; -EBUSY: another process has the FIFO.
 */
int pcap_open(struct pcap **p, const char *path);

/*
 * Before that: packets between IPv4 addresses are those of an InfiniBand port,
 * of the LID that addr has with this prefix (net/ibaddr.h), and are recorded so:
 * with LRH, GRH where they have one, and VCRC (pcap_ib.c).
 */
void pcap_infiniband(uint32_t addr, unsigned prefix);

/* Before that: there may be packets of RoCE v1, which are recorded as frames of
 * Ethernet. */
void pcap_rocev1(void);

/* How packets look in a recording that are not IP's. */
struct pcap_frames {
	uint32_t linktype;
	const char *device;
	/* Bytes before the BTH, and behind the ICRC. */
	size_t (*head)(const struct pcap_pkt *pkt);
	size_t tail;
	/* Writes both; what is between them is in place. len: of all. */
	void (*put)(uint8_t *frame, const struct pcap_pkt *pkt, uint64_t ns,
		    size_t len);
};

void pcap_set_frames(const struct pcap_frames *frames);

/* Empties a file unless somebody records in it. Returns 0 or -errno. */
int pcap_restart(int fd);

void pcap_close(struct pcap *p);

/* Interfaces of a process in the file: "softhca0 pid 1234 ib_write_bw". */
enum { PCAP_ROCE, PCAP_IWARP, PCAP_ROCEV1 };

/* Writes all packets recorded so far to the file. */
void pcap_flush(struct pcap *p);

/* The age at which packets are written when the next one is recorded, or when
 * pcap_write_aged() is called, which may leave some for the next call. */
#define PCAP_AGE_NS 100000000u

void pcap_write_aged(struct pcap *p);

#endif
