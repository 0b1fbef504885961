/*
 * rsocket_peer.h - the protocol of rsockets, spoken by hand: what the files of
 * rsocket_peer share
 *
 *	rsocket_peer.c   the server, and the client that runs the rows
 *	rsocket_speak.c  a peer that keeps the protocol
 *	rsocket_rows.c   the rows: what it says, right and wrong
 *
 * All numbers are written here as they are on the wire.
 */
#ifndef SOFTHCA_TESTS_RSOCKET_PEER_H
#define SOFTHCA_TESTS_RSOCKET_PEER_H

#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Words to the server; nothing else begins like them. */
#define QUIT "#quit#"
#define STALL "#stall"

#define BUF 65536 /* of which the peer is granted halves */
#define CREDITS 64
#define OP(op, value) ((uint32_t)(op) << 29 | (uint32_t)(value))

enum { DATA = 0, SGL = 4, IOMAP = 6, CTRL = 7 };

struct sge {
	uint64_t addr;
	uint32_t key, length;
};

struct peer {
	struct rdma_event_channel *ch;
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	struct {
		struct sge table[2];
		uint8_t in[BUF];
		uint8_t out[BUF];
		struct sge grant;
	} * mem;

	/* Told by the server. */
	uint8_t told[40];
	uint16_t limit;
	struct sge target, its_table;

	/* Counted here. */
	uint16_t sent, got;
	uint32_t in_pos, table_slot, its_slot;
	int64_t freed;
	unsigned posted, completed;
	bool disconnected, failed;
	uint32_t last; /* the last message */
	uint64_t last_sge_key;
};

extern const char *host;
extern char port[16];
extern char why[256]; /* of the last fail() */

/* Says why a row is not ok: false. */
bool fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

double now(void);
void put_be(uint8_t *p, uint64_t v, int bytes);
uint64_t get_be(const uint8_t *p, int bytes);

/* What the client tells of itself: version 1, little-endian, one buffer. */
void tell(const struct peer *p, uint8_t data[40]);
/* Waits for this event. */
bool expect(struct peer *p, enum rdma_cm_event_type type);
void destroy(struct peer *p);

/* Up to the point where a REQ can be sent. */
bool prepare(struct peer *p);
bool request(struct peer *p, const void *data, uint8_t len);
bool connect_with(struct peer *p, const uint8_t data[40]);
/* A connection as the protocol wants it. */
bool open_peer(struct peer *p);

/* An RDMA write with immediate data of len bytes from from. */
bool write_imm(struct peer *p, const void *from, uint32_t len, uint64_t addr,
	       uint32_t key, uint32_t msg);
bool message(struct peer *p, uint32_t msg);

/* Takes completions; data goes to sink, which may be NULL. */
bool take(struct peer *p, uint8_t *sink, size_t *sunk);

/* Sends len bytes and receives as many, which must be the same. */
bool echo(struct peer *p, const uint8_t *data, size_t len);

/* Until the server has said good-bye, or its queue pair is gone. */
bool until_gone(struct peer *p);
/* A word to the server. */
bool say(struct peer *p, const char *word);

struct row {
	const char *name;
	bool (*run)(struct peer *p);
};

/* Ends with a row without a name. */
extern const struct row table[];

/* The shortest row. */
bool echo_one(struct peer *p);

#endif
