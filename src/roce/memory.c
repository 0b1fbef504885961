/*
 * memory.c - the way between work requests' memory and packets
 *
 * Sending gathers by reference: a packet's payload stays where the program has
 * it, and the batch holds the keys that lead there until the link is done.
 * Receiving copies. Every access looks its key up again, so a region that is
 * deregistered in mid-message stops the message, not the process.
 */
#include "internal.h"

struct roce_pkt *batch_open(struct roce_batch *b)
{
	struct roce_pkt *p = &b->pkt[b->n];

	p->iov = (uint32_t)b->niov;
	p->niov = 0;
	p->payload = 0;
	p->to_slot = 0;
	return p;
}

void batch_push(struct roce_batch *b, struct roce_pkt *p, struct roce_hdr *h,
		const struct roce_path *path, uint32_t seed)
{
	h->pad = (uint8_t)(-(unsigned)p->payload & 3);
	h->pkey = ROCE_PKEY_DEFAULT;
	h->mig_req = true; /* 17.2.8: no path migration here means migrated */
	roce_pkt_headers(p, h);
	p->path = path;
	/* A17.4.5.2: the flow label, where the program gives one, picks the
	 * UDP source port; else each QP has its own. */
	p->hash = path->flow_label ? path->flow_label * 0x9e3779b1u >> 12 :
				     seed;
	b->niov += p->niov;
	b->n++;
}

void batch_release(struct roce_batch *b)
{
	for (size_t i = 0; i < b->nheld; i++)
		keys_put(b->held[i]);
	b->n = b->niov = b->nheld = 0;
}

void batch_bytes(struct roce_batch *b, struct roce_pkt *p, void *data,
		 uint32_t len)
{
	b->iov[p->iov + p->niov] = (struct iovec){ data, len };
	p->niov++;
	p->payload = (uint16_t)(p->payload + len);
}

/* One piece of memory into the packet; its key is held by the batch. */
static int batch_piece(struct roce_qp *qp, struct roce_batch *b,
		       struct roce_pkt *p, struct key_entry *e, uint32_t pd,
		       uint64_t va, uint32_t len, uint32_t access)
{
	static const uint8_t zeros[ROCE_MTU_MAX];
	void *addr;
	int err = 0;

	if (!key_covers(e, pd, va, len, access, &addr))
		return -EFAULT;
	if (e->kind == KEY_NULL)
		addr = (void *)(uintptr_t)zeros;
	else
		err = mem_touch(qp, e, addr, len, false);
	if (!err)
		batch_bytes(b, p, addr, len);
	return err;
}

static struct key_entry *batch_hold(struct roce_batch *b, struct key_entry *e)
{
	if (e)
		b->held[b->nheld++] = e;
	return e;
}

int batch_gather(struct roce_qp *qp, struct roce_batch *b, struct roce_pkt *p,
		 const struct ibv_sge *sge, uint32_t num_sge, uint64_t offset,
		 uint32_t len, uint32_t *bad)
{
	for (uint32_t i = 0; i < num_sge && len; i++) {
		struct key_entry *e = b->nheld ? b->held[b->nheld - 1] : NULL;
		uint32_t n;
		int err;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		*bad = i;
		n = min_u32(len, sge[i].length - (uint32_t)offset);
		/* A long message is one region: look it up once per batch. */
		if (!e || atomic_load_explicit(&e->lkey,
					       memory_order_relaxed) !=
				  sge[i].lkey)
			e = batch_hold(b,
				       keys_get_local(qp->env->keys,
						      sge[i].lkey,
						      &qp->lkey_hint));
		err = e ? batch_piece(qp, b, p, e, qp->pd,
				      sge[i].addr + offset, n, 0) :
			  -EFAULT;
		if (err)
			return err;
		len -= n;
		offset = 0;
	}
	return len ? -EFAULT : 0;
}

/* What a remote key may do for this QP besides what its region allows. */
static bool remote_allowed(const struct roce_qp *qp, const struct key_entry *e)
{
	return e->kind != KEY_MW2 || e->qpn == qp->qpn;
}

int batch_remote(struct roce_qp *qp, struct roce_batch *b, struct roce_pkt *p,
		 uint32_t pd, uint32_t rkey, uint64_t va, uint32_t len)
{
	struct key_entry *e = b->nheld ? b->held[b->nheld - 1] : NULL;

	if (!len)
		return 0;
	if (!e || atomic_load_explicit(&e->rkey, memory_order_relaxed) != rkey)
		e = batch_hold(b, keys_get_remote(qp->env->keys, rkey, &qp->rkey_hint));
	if (!e || !remote_allowed(qp, e))
		return -EFAULT;
	return batch_piece(qp, b, p, e, pd, va, len, IBV_ACCESS_REMOTE_READ);
}

static int gone(struct roce_qp *qp, const void *p, size_t len)
{
	explain(qp,
		"memory at [0x%llx, +%zu) is not there any more: unmapped, or behind the end of its file, since it was registered; deregister it first",
		(unsigned long long)(uintptr_t)p, len);
	return -ENXIO;
}

int mem_access(struct roce_qp *qp, void (*fn)(void *), void *arg,
	       const void *p, size_t len)
{
	if (!qp->env->guarded) {
		fn(arg);
		return 0;
	}
	return qp->env->guarded(fn, arg, p, len) ? gone(qp, p, len) : 0;
}

struct copy {
	uint8_t *dst;
	const uint8_t *src;
	size_t len;
};

/*
 * Programs spin on the last byte of a message and then read all of it, so the
 * last bytes are stored last.
 */
static void copy_run(void *arg)
{
	const struct copy *c = arg;
	size_t tail = c->len < 8 ? c->len : 8, first = c->len - tail;

	memcpy(c->dst, c->src, first);
	atomic_thread_fence(memory_order_release);
	memcpy(c->dst + first, c->src + first, tail);
}

int mem_store(struct roce_qp *qp, const struct key_entry *e, void *dst,
	      const uint8_t *src, size_t len)
{
	struct copy c = { dst, src, len };

	if (e->kind == KEY_NULL)
		return 0;
	if (e->access & IBV_ACCESS_ON_DEMAND)
		return qp->env->odp_store(dst, src, len) ? gone(qp, dst, len) :
							   0;
	return mem_access(qp, copy_run, &c, dst, len);
}

int mem_touch(struct roce_qp *qp, const struct key_entry *e, const void *p,
	      size_t len, bool write)
{
	if (!(e->access & IBV_ACCESS_ON_DEMAND) && !qp->doubt)
		return 0;
	return qp->env->odp_touch(p, len, write) ? gone(qp, p, len) : 0;
}

int mem_load8(struct roce_qp *qp, const struct ibv_sge *sge, uint64_t *v)
{
	struct key_entry *e = keys_get_local(qp->env->keys, sge->lkey,
					     &qp->lkey_hint);
	struct copy c = { .dst = (uint8_t *)v, .len = 8 };
	int err = -EFAULT;
	void *p;

	if (!e)
		return err;
	if (key_covers(e, qp->pd, sge->addr, 8, 0, &p))
		err = e->kind == KEY_NULL ? 0 : mem_touch(qp, e, p, 8, false);
	*v = 0;
	if (!err && e->kind != KEY_NULL) {
		c.src = p;
		err = mem_access(qp, copy_run, &c, p, 8);
	}
	keys_put(e);
	return err;
}

int mem_scatter(struct roce_qp *qp, uint32_t pd, const struct ibv_sge *sge,
		uint32_t num_sge, uint64_t offset, const uint8_t *data,
		size_t len, uint32_t *bad)
{
	for (uint32_t i = 0; i < num_sge && len; i++) {
		struct key_entry *e;
		void *addr;
		size_t n;
		int err;

		if (offset >= sge[i].length) {
			offset -= sge[i].length;
			continue;
		}
		*bad = i;
		n = sge[i].length - (size_t)offset;
		if (n > len)
			n = len;
		e = keys_get_local(qp->env->keys, sge[i].lkey,
				   &qp->lkey_hint);
		if (!e)
			return -EFAULT;
		err = key_covers(e, pd, sge[i].addr + offset, n,
				 IBV_ACCESS_LOCAL_WRITE, &addr) ?
			      mem_store(qp, e, addr, data, n) :
			      -EFAULT;
		keys_put(e);
		if (err)
			return err;
		data += n;
		len -= n;
		offset = 0;
	}
	return len ? -EFAULT : 0;
}

struct key_entry *mem_remote(struct roce_qp *qp, uint32_t pd, uint32_t rkey,
			     uint64_t va, uint64_t len, uint32_t access,
			     void **p)
{
	struct key_entry *e = keys_get_remote(qp->env->keys, rkey, &qp->rkey_hint);

	if (!e)
		return NULL;
	if (remote_allowed(qp, e) && key_covers(e, pd, va, len, access, p))
		return e;
	keys_put(e);
	return NULL;
}
