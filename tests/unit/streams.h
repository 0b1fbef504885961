/*
 * streams.h - the TCP connections of classic pcap files, put together
 */
#ifndef SOFTHCA_TESTS_STREAMS_H
#define SOFTHCA_TESTS_STREAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of one end that came with one segment. */
struct stream_piece {
	int from; /* 0: the initiator */
	size_t at, len; /* in its bytes */
	bool fin; /* its last, or none */
};

struct stream {
	char file[64]; /* where it was found */
	uint8_t addr[2][16];
	uint16_t port[2]; /* the initiator's first */
	uint8_t *bytes[2];
	size_t len[2];
	bool reset; /* by either end */
	/* In the order in which they were captured, nothing twice. */
	struct stream_piece *piece;
	size_t n;
	uint32_t next[2]; /* sequence numbers: of loading */
	bool begun[2];
};

struct streams {
	struct stream *stream;
	size_t n;
};

/*
 * Adds the connections of a file whose SYN is in it. Returns 0 or -errno
 * (-EINVAL: no pcap file; -ENODATA: a segment is missing, or was overtaken).
 */
int streams_load(struct streams *s, const char *path);
void streams_free(struct streams *s);

#endif
