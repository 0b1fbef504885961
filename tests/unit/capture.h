/*
 * capture.h - the RoCE packets of classic pcap files, for tests
 */
#ifndef SOFTHCA_TESTS_CAPTURE_H
#define SOFTHCA_TESTS_CAPTURE_H

#include "wire/roce.h"

struct captured {
	char file[64]; /* where it was found, */
	unsigned number; /* counted from 1 */
	union ibv_gid src, dst;
	uint16_t sport, dport;
	uint16_t ip_id; /* IPv4 */
	uint8_t *data; /* BTH to ICRC inclusive */
	size_t len;
};

struct captures {
	struct captured *pkt;
	size_t n;
	size_t files;
};

/*
 * The IP packets of a classic pcap file: fn is called with each, from its IP
 * header on, and its number, counted from 1, until it returns something else
 * than 0. Returns that, or -errno (-EINVAL: no pcap file).
 */
typedef int capture_fn(void *arg, unsigned number, const uint8_t *ip,
		       size_t len);
int capture_each(const char *path, capture_fn *fn, void *arg);
/* The last part of a path. */
const char *capture_name(const char *path);

/*
 * The paths of the *.pcap files of a directory in alphabetical order, or only of
 * the one with that name, and then NULL. Returns NULL, with errno set, if that
 * cannot be had.
 */
char **captures_list(const char *dir, const char *only);
void captures_list_free(char **paths);

/*
 * Adds the RoCE packets of a file, or of all *.pcap files of a directory in
 * alphabetical order. Returns 0 or -errno (-EINVAL: no pcap file).
 */
int captures_load(struct captures *c, const char *path);
/* The same of several paths, the last followed by NULL. False: one cannot be
 * read, which has been reported. */
bool captures_load_all(struct captures *c, char **paths);
void captures_free(struct captures *c);

/*
 * Whether the file with this name has every packet that either end sent, in the
 * order in which they arrived. Those taken over a network that loses packets or
 * changes their order have "_loss" or "_reordering" in their names.
 */
bool capture_complete(const char *name);

#endif
