/*
 * sa.h - a question to subnet administration, and the records that answer it
 *
 * A record is an attribute as chapter 15.2.5 has it. Whoever has records of a
 * kind hands each to sa_found(); those that have what the component mask asks
 * for become the answer.
 */
#ifndef SOFTHCA_FABRIC_SA_H
#define SOFTHCA_FABRIC_SA_H

#include "fabric_internal.h"

#define SA_RECORD_MAX 176u

/* Status, in the upper byte (15.2.2). */
enum sa_status {
	SA_NO_RESOURCES = 1 << 8,
	SA_INVALID = 2 << 8,
	SA_NO_RECORDS = 3 << 8,
	SA_TOO_MANY_RECORDS = 4 << 8,
	SA_INVALID_GID = 5 << 8,
	SA_INSUFFICIENT_COMPONENTS = 6 << 8,
};

struct sa_query;

/* size: of the attribute; records follow each other at multiples of 8 bytes. */
struct sa_kind {
	uint16_t attr, size;
	const struct attr_field *fields; /* as the component mask counts */
	unsigned nfields;
	/* Each record that there is, as far as it might be wanted. */
	void (*each)(struct sa_query *q);
	/* A Set or Delete: returns a status, and changes q->want to the record
	 * that is answered; NULL: there is none. */
	int (*set)(struct sa_query *q, bool remove);
};

struct sa_query {
	struct fabric *f;
	const struct fabric_env *env;
	struct port *from;
	const struct sa_kind *kind;
	uint64_t mask, sm_key;
	uint64_t match; /* of mask, what records must have as it is */
	uint32_t mod;
	uint8_t want[SA_RECORD_MAX]; /* zeros after what the MAD had */
	uint8_t *out;
	size_t len, room;
	unsigned found;
	unsigned looked_at; /* pairs of ports, of paths */
	bool full; /* no more is added */
};

/* Counts and keeps a record if it is wanted. */
void sa_found(struct sa_query *q, const uint8_t *record);

static inline bool sa_asks(const struct sa_query *q, unsigned component)
{
	return q->mask >> component & 1;
}

/* Of records that begin with a LID, which is component 0. */
static inline bool sa_wants_lid(const struct sa_query *q, unsigned lid)
{
	return !sa_asks(q, 0) || get_be16(q->want) == lid;
}

static inline void put_gid(uint8_t *p, const struct port *port)
{
	put_be64(p, pi_get(port->info, PI_GID_PREFIX));
	put_be64(p + 8, port->guid);
}

/* The port with a GID, or NULL. */
struct port *sa_port_of_gid(const struct fabric *f, const uint8_t gid[16]);

extern const struct sa_kind sa_path_kind; /* sa_path.c */
extern const struct sa_kind sa_group_kind, sa_service_kind; /* sa_joined.c */

void sa_joined_free(struct fabric *f);

#endif
