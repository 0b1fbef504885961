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

/* Empties a file unless somebody records in it. Returns 0 or -errno. */
int pcap_restart(int fd);

void pcap_close(struct pcap *p);

/* Interfaces of a process in the file: "softhca0 pid 1234 ib_write_bw". */
enum { PCAP_ROCE, PCAP_IWARP };

/* Writes all packets recorded so far to the file. */
void pcap_flush(struct pcap *p);

/* The age at which packets are written when the next one is recorded, or when
 * pcap_write_aged() is called, which may leave some for the next call. */
#define PCAP_AGE_NS 100000000u

void pcap_write_aged(struct pcap *p);

#endif
