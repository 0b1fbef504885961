/*
 * exported_keys.h - the keys and queue pairs of other processes, and one's own
 * for them
 *
 * A segment (segment/segment.h) has room for two tables: keys as keys_show() has
 * them, and queue pairs (struct qp_public). Each begins with a page of its own.
 */
#ifndef SOFTHCA_LINK_EXPORTED_KEYS_H
#define SOFTHCA_LINK_EXPORTED_KEYS_H

#include "qp/keys.h"
#include "qp/public.h"
#include "segment/segment.h"

/*
 * One's own. Failing, they show less than there is, which is slower, and not
 * wrong. The caller serialises each.
 */

/* Shows the table from now on. */
void exported_keys_begin(struct segment *s, struct keys *keys);
/* Before keys_add(): makes room to show what it may add. */
void exported_keys_grow(struct segment *s, struct keys *keys);
/*
 * Where the QP with this number is shown, for qp_init.pub; NULL: nowhere. nth
 * is which of the process's chunks of numbers it is of: all of one chunk come
 * with the same.
 */
struct qp_public *exported_qp_place(struct segment *s, uint32_t qpn,
				    uint32_t nth);
/* The numbers of the chunk that begins with from begin with `to` from now on. */
void exported_qps_renumber(struct segment *s, uint32_t from, uint32_t to);

/* Those of others, with a reference to the peer. */

/* False: it shows none. view->ready is 0 at first. */
bool exported_keys_view(struct segment_peer *p, struct keys_view *view);
/* Makes view->ready more than slot, if it shows that many. */
bool exported_keys_ready(struct segment_peer *p, struct keys_view *view,
			 uint32_t slot);
/* The QP with this number, which is for the caller to compare with pub->qpn;
 * NULL: it shows none. Valid as long as the reference. */
const struct qp_public *exported_qp(struct segment_peer *p, uint32_t qpn);

#endif
