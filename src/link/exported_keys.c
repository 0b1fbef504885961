/*
 * exported_keys.c - the tables that processes of a host show each other
 */
#include "exported_keys.h"

#define QP_CHUNKS 64u /* whose QPs are shown, of REGISTRY_CHUNK numbers each */

/* The first page of the table of QPs: the nth chunk's first number. */
struct qps_head {
	_Atomic uint32_t first[QP_CHUNKS];
};

#define AFTER_HEAD(n, type) (SEGMENT_TABLE_HEAD + (size_t)(n) * sizeof(type))

_Static_assert(sizeof(struct keys_shown) <= SEGMENT_TABLE_HEAD &&
		       sizeof(struct qps_head) <= SEGMENT_TABLE_HEAD &&
		       AFTER_HEAD(QP_CHUNKS * REGISTRY_CHUNK,
				  struct qp_public) <= SEGMENT_QPS_SIZE &&
		       AFTER_HEAD(1u << 20, struct key_shown) <=
			       SEGMENT_KEYS_SIZE,
	       "the tables fit");

void exported_keys_begin(struct segment *s, struct keys *keys)
{
	uint8_t *table = segment_table(s, SEGMENT_KEYS);

	if (segment_grow(s, SEGMENT_KEYS, SEGMENT_TABLE_HEAD))
		return;
	keys_show(keys, (void *)table, (void *)(table + SEGMENT_TABLE_HEAD));
}

void exported_keys_grow(struct segment *s, struct keys *keys)
{
	size_t size = AFTER_HEAD(keys_want(keys), struct key_shown);

	if (!keys->shown || keys_want(keys) <= keys->nshown ||
	    segment_grow(s, SEGMENT_KEYS, size))
		return;
	size = segment_table_size(s, SEGMENT_KEYS) - SEGMENT_TABLE_HEAD;
	keys_show_room(keys, (uint32_t)(size / sizeof(struct key_shown)));
}

struct qp_public *exported_qp_place(struct segment *s, uint32_t qpn,
				    uint32_t nth)
{
	struct qps_head *head = segment_table(s, SEGMENT_QPS);
	uint32_t i = nth * REGISTRY_CHUNK + qpn % REGISTRY_CHUNK;
	struct qp_public *qps = (void *)((uint8_t *)head + AFTER_HEAD(0, *qps));

	if (nth >= QP_CHUNKS ||
	    segment_grow(s, SEGMENT_QPS, AFTER_HEAD(i + 1, *qps)))
		return NULL;
	atomic_store_explicit(&head->first[nth], qpn - qpn % REGISTRY_CHUNK,
			      memory_order_release);
	return &qps[i];
}

void exported_qps_renumber(struct segment *s, uint32_t from, uint32_t to)
{
	struct qps_head *head = segment_table(s, SEGMENT_QPS);

	for (uint32_t nth = 0; nth < QP_CHUNKS; nth++)
		if (atomic_load(&head->first[nth]) == from)
			atomic_store(&head->first[nth], to);
}

bool exported_keys_view(struct segment_peer *p, struct keys_view *view)
{
	const uint8_t *table =
		segment_peer_table(p, SEGMENT_KEYS, SEGMENT_TABLE_HEAD);

	return table &&
	       keys_view_init(view, (const void *)table,
			      (const void *)(table + SEGMENT_TABLE_HEAD));
}

bool exported_keys_ready(struct segment_peer *p, struct keys_view *view,
			 uint32_t slot)
{
	if (slot < view->ready)
		return true;
	if (!segment_peer_table(p, SEGMENT_KEYS,
				AFTER_HEAD(slot + 1, struct key_shown)))
		return false;
	view->ready = slot + 1;
	return true;
}

const struct qp_public *exported_qp(struct segment_peer *p, uint32_t qpn)
{
	const struct qps_head *head =
		segment_peer_table(p, SEGMENT_QPS, SEGMENT_TABLE_HEAD);
	const uint32_t at = qpn % REGISTRY_CHUNK;
	const struct qp_public *qps;

	if (!head)
		return NULL;
	for (uint32_t nth = 0; nth < QP_CHUNKS; nth++) {
		uint32_t i = nth * REGISTRY_CHUNK + at;

		if (atomic_load_explicit(&head->first[nth],
					 memory_order_acquire) != qpn - at)
			continue;
		if (!segment_peer_table(p, SEGMENT_QPS,
					AFTER_HEAD(i + 1, *qps)))
			return NULL;
		qps = (const void *)((const uint8_t *)head +
				     AFTER_HEAD(0, *qps));
		return &qps[i];
	}
	return NULL;
}
