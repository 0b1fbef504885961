/*
 * memory.c - the way between work requests and memory
 *
 * Every access looks its key up again, so a region that is deregistered in
 * mid-message stops the message, not the process.
 */
#include "qp.h"

#include "base/bytes.h"
#include "base/store_tail.h"

#include <errno.h>
#include <string.h>

static int report_gone(struct qp *qp, const void *p, size_t len)
{
	qp_explain(
		qp,
		"memory at [0x%llx, +%zu) is gone: it was unmapped, or its "
		"file truncated, after it was registered; deregister it first",
		(unsigned long long)(uintptr_t)p, len);
	return -ENXIO;
}

int qp_access(struct qp *qp, void (*fn)(void *), void *arg, const void *p,
	      size_t len)
{
	if (!qp->env->guarded) {
		fn(arg);
		return 0;
	}
	return qp->env->guarded(fn, arg, p, len) ? report_gone(qp, p, len) : 0;
}

/* Copies to or from p, which is dst or src. */
static inline int copy_guarded(struct qp *qp, void *dst, const void *src,
			       size_t len, const void *p)
{
	if (!qp->env->copy) {
		store_tail_last(dst, src, len);
		return 0;
	}
	return qp->env->copy(dst, src, len, p) ? report_gone(qp, p, len) : 0;
}

int qp_fetch(struct qp *qp, void *dst, const void *p, size_t len)
{
	return copy_guarded(qp, dst, p, len, p);
}

static inline int store(struct qp *qp, const struct key_entry *e, void *dst,
			const uint8_t *src, size_t len)
{
	if (e->kind == KEY_NULL)
		return 0;
	if (e->access & IBV_ACCESS_ON_DEMAND)
		return qp->env->odp_store(dst, src, len) ?
			       report_gone(qp, dst, len) :
			       0;
	return copy_guarded(qp, dst, src, len, dst);
}

int qp_store(struct qp *qp, const struct key_entry *e, void *dst,
	     const uint8_t *src, size_t len)
{
	return store(qp, e, dst, src, len);
}

/* Memory that bytes of a source go to: one call, for pieces in a row. */
struct fill {
	const struct qp_source *from;
	uint64_t offset; /* in the source, of the first piece */
	size_t len, n;
	struct iovec to[QP_MAX_SGE + 1];
};

static int fill_run(struct qp *qp, struct fill *f)
{
	struct iovec *last = &f->to[f->n ? f->n - 1 : 0];
	uint8_t aside[STORE_TAIL], *end = NULL;
	size_t tail;
	int err;

	if (!f->n)
		return 0;
	/* A program that spins on the last byte finds all others; store_tail.h.
	 * A source is read by one call, so where that is not enough the last
	 * bytes are read aside. */
	tail = store_tail(last->iov_len);
	if (tail < last->iov_len || !STORE_IN_ORDER) {
		last->iov_len -= tail;
		end = (uint8_t *)last->iov_base + last->iov_len;
		f->to[f->n++] =
			(struct iovec){ STORE_IN_ORDER ? end : aside, tail };
	}
	err = f->from->read(f->from, f->offset, f->to, f->n);
	if (!err && end && !STORE_IN_ORDER)
		return copy_guarded(qp, end, aside, tail, end);
	return err == -EFAULT ? report_gone(qp, f->to[0].iov_base, f->len) :
				err;
}

int qp_store_from(struct qp *qp, const struct key_entry *e, void *dst,
		  const struct qp_source *from, size_t len)
{
	struct fill f = { .from = from, .len = len, .n = 1 };

	if (e->kind == KEY_NULL)
		return 0;
	f.to[0] = (struct iovec){ dst, len };
	return fill_run(qp, &f);
}

int qp_touch(struct qp *qp, const struct key_entry *e, const void *p,
	     size_t len, bool write)
{
	if (!(e->access & IBV_ACCESS_ON_DEMAND) && !qp->doubt)
		return 0;
	return qp->env->odp_touch(p, len, write) ? report_gone(qp, p, len) : 0;
}

int qp_piece_odd(struct qp *qp, struct qp_pieces *to, const struct key_entry *e,
		 void *addr, uint32_t len)
{
	static const uint8_t zeros[QP_PIECE_MAX];
	int err = 0;

	if (e->kind == KEY_NULL && len > sizeof(zeros))
		return -E2BIG;
	if (e->kind == KEY_NULL)
		addr = (void *)(uintptr_t)zeros;
	else
		err = qp_touch(qp, e, addr, len, false);
	if (!err)
		qp_piece_add(to, addr, len, false);
	return err;
}

int qp_gather(struct qp *qp, struct qp_pieces *to, const struct ibv_sge *sge,
	      uint32_t num_sge, uint64_t offset, uint32_t len, uint32_t *bad)
{
	for (uint32_t i = 0; i < num_sge && len; i++) {
		uint32_t n;
		int err;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		*bad = i;
		n = min_u32(len, sge[i].length - (uint32_t)offset);
		err = qp_gather_sge(qp, to, &sge[i], offset, n);
		if (err)
			return err;
		len -= n;
		offset = 0;
	}
	return len ? -EFAULT : 0;
}

/* What a remote key may do for this QP besides what its region allows. */
static bool remote_allowed(const struct qp *qp, const struct key_entry *e)
{
	return e->kind != KEY_MW2 || e->qpn == qp->qpn;
}

int qp_gather_remote(struct qp *qp, struct qp_pieces *to, uint32_t pd,
		     uint32_t rkey, uint64_t va, uint32_t len)
{
	struct key_entry *e = qp_pieces_last(to);

	if (!len)
		return 0;
	if (!e || atomic_load_explicit(&e->rkey, memory_order_relaxed) != rkey)
		e = qp_pieces_keep(to, keys_get_remote(qp->env->keys, rkey,
						       &qp->rkey_hint));
	if (!e || !remote_allowed(qp, e))
		return -EFAULT;
	return qp_piece(qp, to, e, pd, va, len, IBV_ACCESS_REMOTE_READ);
}

int qp_load8(struct qp *qp, const struct ibv_sge *sge, uint64_t *v)
{
	struct key_entry *e =
		keys_get_local(qp->env->keys, sge->lkey, &qp->lkey_hint);
	int err = -EFAULT;
	void *p;

	if (!e)
		return err;
	if (key_covers(e, qp->pd, sge->addr, 8, 0, &p))
		err = e->kind == KEY_NULL ? 0 : qp_touch(qp, e, p, 8, false);
	*v = 0;
	if (!err && e->kind != KEY_NULL)
		err = copy_guarded(qp, v, p, 8, p);
	keys_put(e);
	return err;
}

int qp_scatter_any(struct qp *qp, uint32_t pd, const struct ibv_sge *sge,
		   uint32_t num_sge, uint64_t offset, const uint8_t *data,
		   size_t len, uint32_t *bad)
{
	for (uint32_t i = 0; len; i++) {
		size_t n;
		int err;

		if (i == num_sge)
			return -EFAULT;
		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		*bad = i;
		n = sge[i].length - (size_t)offset;
		if (n > len)
			n = len;
		err = qp_scatter_sge(qp, pd, &sge[i], offset, data, n);
		if (err)
			return err;
		data += n;
		len -= n;
		offset = 0;
	}
	return 0;
}

/* The next n bytes of a fill go to memory of this key; 0 or -EFAULT. */
static int fill_add(struct qp *qp, struct fill *f, struct key_entry *e,
		    uint32_t pd, uint64_t va, size_t n)
{
	void *addr;
	int err;

	if (!key_covers(e, pd, va, n, IBV_ACCESS_LOCAL_WRITE, &addr))
		return -EFAULT;
	if (e->kind != KEY_NULL) {
		f->to[f->n++] = (struct iovec){ addr, n };
		f->len += n;
		return 0;
	}
	/* What goes nowhere is left out. */
	err = fill_run(qp, f);
	f->offset += f->len + n;
	f->len = f->n = 0;
	return err;
}

int qp_scatter_from(struct qp *qp, uint32_t pd, const struct ibv_sge *sge,
		    uint32_t num_sge, uint64_t offset,
		    const struct qp_source *from, size_t len, uint32_t *bad)
{
	struct key_entry *key[QP_MAX_SGE];
	struct fill f = { .from = from };
	size_t nkeys = 0;
	int err = 0;

	for (uint32_t i = 0; i < num_sge && len && !err; i++) {
		size_t n;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		*bad = i;
		n = sge[i].length - (size_t)offset;
		if (n > len)
			n = len;
		key[nkeys] = keys_get_local(qp->env->keys, sge[i].lkey,
					    &qp->lkey_hint);
		if (!key[nkeys]) {
			err = -EFAULT;
			break;
		}
		err = fill_add(qp, &f, key[nkeys++], pd, sge[i].addr + offset,
			       n);
		len -= n;
		offset = 0;
	}
	if (!err)
		err = len ? -EFAULT : fill_run(qp, &f);
	while (nkeys)
		keys_put(key[--nkeys]);
	return err;
}

struct key_entry *qp_remote(struct qp *qp, uint32_t pd, uint32_t rkey,
			    uint64_t va, uint64_t len, uint32_t access,
			    void **p)
{
	struct key_entry *e =
		keys_get_remote(qp->env->keys, rkey, &qp->rkey_hint);

	if (!e)
		return NULL;
	if (remote_allowed(qp, e) && key_covers(e, pd, va, len, access, p))
		return e;
	keys_put(e);
	return NULL;
}
