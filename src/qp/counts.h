/*
 * counts.h - the counters of a queue pair
 *
 * A row is a field of the structs that count, a value of enum stat_counter
 * (counters/stat.h), what softhca stat prints and the files of hw_counters. So a
 * new counter is a row here, and a line where it counts; docs/DEBUGGING.md lists
 * all, which tests/clients/test_counters.py checks.
 *
 * C(id, field, name, file, help), counted by the transports
 * Q(...), counted by what they share (struct qp)
 *     name: that of hw_counters and rdma-statistic(8), where those have one;
 *     file: HW, it is a file of hw_counters by itself. What is a sum of several
 *     is in counters/counter_file.c.
 */
#ifndef SOFTHCA_QP_COUNTS_H
#define SOFTHCA_QP_COUNTS_H

#include <stdint.h>

/* clang-format off */
#define QP_COUNTS(C, Q) \
C(TX_PACKETS, tx_pkts, "tx_packets", NO, \
  "packets sent") \
C(RX_PACKETS, rx_pkts, "rx_packets", NO, \
  "packets received") \
C(TX_BYTES, tx_bytes, "tx_bytes", NO, \
  "bytes of payload sent in packets") \
C(RX_BYTES, rx_bytes, "rx_bytes", NO, \
  "bytes of payload received in packets") \
C(DIRECT_REQUESTS, direct, "direct_requests", NO, \
  "reads, writes and atomics done by copying between processes of this host") \
C(DIRECT_BYTES, direct_bytes, "direct_bytes", NO, \
  "bytes that these have moved") \
C(DIRECT_WRITES, direct_writes, "direct_write_requests", NO, \
  "writes among these") \
C(DIRECT_READS, direct_reads, "direct_read_requests", NO, \
  "reads among these") \
C(DIRECT_ATOMICS, direct_atomics, "direct_atomic_requests", NO, \
  "atomics among these") \
C(RETRANSMITS, retransmits, "retransmits", NO, \
  "times that a requester has gone back to send again") \
C(TIMEOUTS, timeouts, "local_ack_timeout_err", HW, \
  "times that no acknowledgement came in time") \
C(RNR_RX, rnr_rx, "rnr_nak_retry_err", HW, \
  "RNR NAKs received: the peer had no receive posted") \
C(NO_RECEIVE, no_recv, "out_of_buffer", HW, \
  "messages for which no receive was posted") \
C(OUT_OF_SEQUENCE, gaps, "out_of_sequence", HW, \
  "requests received ahead of the one due") \
C(DUPLICATES, duplicates, "duplicate_request", HW, \
  "requests received that had been executed") \
C(NAK_PSN_RX, nak_psn_rx, "packet_seq_err", HW, \
  "NAKs received for a gap in the sequence") \
C(IMPLIED_RX, implied, "implied_nak_seq_err", HW, \
  "responses that later ones have passed over") \
C(ACCESS_RX, access_rx, "req_remote_access_errors", HW, \
  "requests that the peer refused: no access") \
C(INVALID_RX, invalid_rx, "req_remote_invalid_request", HW, \
  "requests that the peer found invalid") \
C(ACCESS_TX, access_tx, "resp_remote_access_errors", HW, \
  "requests of the peer refused: no access") \
Q(SQ_ERRORS, sq_errors, "req_cqe_error", HW, \
  "completions of sent requests with an error") \
Q(SQ_FLUSHED, sq_flushed, "req_cqe_flush_error", HW, \
  "sent requests flushed: their queue pair failed") \
Q(RQ_ERRORS, rq_errors, "resp_cqe_error", HW, \
  "completions of receives with an error") \
Q(RQ_FLUSHED, rq_flushed, "resp_cqe_flush_error", HW, \
  "receives flushed: their queue pair failed") \
C(RX_WRITES, rx_writes, "rx_write_requests", NO, \
  "writes of the peer that came in packets") \
C(RX_READS, rx_reads, "rx_read_requests", NO, \
  "read requests of the peer, which may each be a part of a read") \
C(RX_ATOMICS, rx_atomics, "rx_atomic_requests", NO, \
  "atomics of the peer") \
C(CNP_TX, cnp_tx, "np_cnp_sent", HW, \
  "congestion notifications sent") \
C(CNP_RX, cnp_rx, "rp_cnp_handled", HW, \
  "congestion notifications received") \
C(MARKED, marked, "np_ecn_marked_roce_packets", HW, \
  "packets received that were marked: congestion")
/* clang-format on */

#define QP_NO_COUNT(...)
#define QP_COUNT_FIELD(id, field, ...) uint64_t field;

#endif
