/*
 * shm_tx.c - from packets to records
 *
 * The payload is copied from where the program has it into the ring, or, if it
 * is long and the receiver can read it there, named (shm_pull.c). Memory of
 * a program may be gone, so that is done where a fault is an error
 * (os/guard.h). The records of a batch become visible at once, which is one
 * look at whether the receiver sleeps.
 *
 * Where there is no room, packets wait in their QPs. Acknowledgements may use
 * what others leave free: a QP that is about to be destroyed cannot send its
 * ACK later, and the peer would see the connection fail.
 */
#include "shm_internal.h"

#include "base/bytes.h"
#include "hooks/pcap.h"
#include "os/config.h"
#include "os/guard.h"

#include <errno.h>
#include <string.h>

#define ACK_RESERVE 16u /* units */

/* A receiver that is stopped must not stop datagrams to others. */
#define PATIENCE_NS 500000000u

/* So long that the consumer takes it while the next one is copied. */
#define LONG_BYTES 4096u
#define DEFAULT_HOPS 64

/* Copies a packet's payload. Returns 0, or EFAULT: some of it is not there. */
static inline int copy_payload(uint8_t *to, const struct roce_batch *b,
			       const struct roce_pkt *pkt)
{
	const struct iovec *v = &b->data.iov[pkt->iov], *end = v + pkt->niov;
	const uint8_t *key = &b->data.key_of[pkt->iov];

	for (; v != end; v++, key++) {
		if (*key == QP_PIECE_OWN)
			memcpy(to, v->iov_base, v->iov_len);
		else if (guard_copy(to, v->iov_base, v->iov_len, v->iov_base))
			return EFAULT;
		to += v->iov_len;
	}
	return 0;
}

static struct shm_ext_addr addr_of(const struct roce_pkt *pkt)
{
	const struct roce_path *path = pkt->path;

	return (struct shm_ext_addr){
		.sgid = path->sgid,
		.dgid = path->dgid,
		.qkey = pkt->h.qkey,
		.src_qpn = pkt->h.src_qpn,
		.sport = path->v1 ? 0 :
				    (uint16_t)(0xc000 | (pkt->hash & 0x3fff)),
		.tclass = path->tclass,
		.hop_limit = path->hop_limit ? path->hop_limit : DEFAULT_HOPS,
	};
}

static inline void put_header(struct ring_rec *rec, const struct link_way *w,
			      const struct roce_pkt *pkt, uint32_t op)
{
	const struct roce_hdr *h = &pkt->h;
	uint32_t flags = (h->solicited ? RING_F_SOLICITED : 0) |
			 (h->ack_req ? RING_F_ACK_REQ : 0) |
			 (pkt->last_psn != h->psn ? RING_F_LARGE : 0);

	rec->qpn_opcode = h->dest_qpn << 8 | h->opcode;
	rec->psn_flags = h->psn << 8 | flags;
	rec->path = w->hash;
	rec->len = pkt->payload;
	if (op & ROCE_F_AETH)
		rec->imm = (uint32_t)h->syndrome << 24 | (h->msn & 0xffffff);
	else if (op & ROCE_F_IETH)
		rec->imm = h->inv_rkey;
	else
		memcpy(&rec->imm, &h->imm, sizeof(rec->imm));
	rec->va = op & ROCE_F_ATOMICACKETH ? h->atomic_orig : h->va;
	rec->rkey = h->rkey;
	rec->dma_len = h->dma_len;
}

/* The QP that the receiver's ACK note acknowledges the packet to; 0: none. */
static uint32_t ack_to(const struct link_way *w, const struct roce_hdr *h,
		       uint32_t op)
{
	const uint32_t those = ROCE_F_READ | ROCE_F_ATOMIC | ROCE_F_REQUEST;

	return h->ack_req && (h->opcode & 0xe0) == ROCE_RC &&
			       (op & those) == ROCE_F_REQUEST ?
		       w->own :
		       0;
}

static uint32_t ext_len(uint32_t op, bool addr)
{
	uint32_t len = 0;

	if (op & ROCE_F_ATOMICETH)
		len += (uint32_t)sizeof(struct shm_ext_atomic);
	if (addr)
		len += (uint32_t)sizeof(struct shm_ext_addr);
	return len;
}

/* What is in front of the payload. */
static void put_ext(uint8_t *to, const struct roce_pkt *pkt, uint32_t op,
		    const struct shm_ext_addr *addr)
{
	if (op & ROCE_F_ATOMICETH) {
		const struct shm_ext_atomic a = { pkt->h.swap_add,
						  pkt->h.compare };

		memcpy(to, &a, sizeof(a));
		to += sizeof(a);
	}
	if (addr)
		memcpy(to, addr, sizeof(*addr));
}

static void record_tx(struct shm *s, const struct roce_batch *b,
		      const struct roce_pkt *pkt,
		      const struct shm_ext_addr *addr)
{
	uint8_t payload[ROCE_MTU_MAX];
	const struct iovec v = { payload, pkt->payload };

	if (!copy_payload(payload, b, pkt))
		shm_record(s, true, &pkt->h, addr, &v);
}

/* How a packet becomes a record. */
struct form {
	uint32_t op; /* its opcode's flags */
	bool addr; /* with its addresses */
	bool ref; /* the payload is named, not copied */
	uint32_t ext; /* bytes in front of the payload, */
	uint32_t bytes; /* and with it */
};

static inline struct ring_rec *rec_begin(struct ring_out *out, uint32_t bytes,
					 bool ack)
{
	const uint32_t units = ring_units(bytes) + (ack ? 0 : ACK_RESERVE);

	if (__builtin_expect(out->at + units < out->limit, 1))
		return ring_place(out, bytes);
	/* It is looked at more closely. */
	if (RING_UNITS - ring_unread(out) < units)
		return NULL;
	return ring_begin(out, bytes);
}

/* One packet: 0, ENOBUFS (there is no room now), EFAULT, or EMSGSIZE. With last
 * it becomes visible, and those before. */
__attribute__((always_inline)) static inline int
put_as(struct shm_peer *p, const struct link_way *w, const struct roce_batch *b,
       const struct roce_pkt *pkt, const struct form f, bool last)
{
	const uint32_t qpn = ack_to(w, &pkt->h, f.op);
	struct shm_ext_addr addr;
	struct ring_rec *rec;
	uint8_t *payload;
	int err;

	rec = rec_begin(&p->out, f.bytes, (pkt->h.opcode & 0x1f) == ROCE_ACK);
	if (!rec)
		return ENOBUFS;
	payload = ring_data(rec) + f.ext;
	if (f.ext) {
		addr = addr_of(pkt);
		addr.file = pcap_file(p->shm->cfg.pcap);
		put_ext(ring_data(rec), pkt, f.op, f.addr ? &addr : NULL);
	}
	if (f.ref)
		err = shm_ref_put(payload, w, b, pkt) ? 0 : EMSGSIZE;
	else
		err = copy_payload(payload, b, pkt);
	if (err)
		return err;
	put_header(rec, w, pkt, f.op);
	if (f.ref)
		rec->psn_flags |= RING_F_REF;
	if (f.addr)
		rec->psn_flags |= RING_F_EXT;
	if (f.addr && p->shm->cfg.pcap)
		record_tx(p->shm, b, pkt, &addr);
	if (last)
		ring_put(&p->out, f.bytes, qpn, pkt->last_psn, w->back);
	else
		ring_commit(&p->out, f.bytes, qpn, pkt->last_psn, w->back);
	return 0;
}

__attribute__((noinline)) static int
put_any(struct shm_peer *p, const struct link_way *w,
	const struct roce_batch *b, const struct roce_pkt *pkt, bool last)
{
	struct form f = { .op = roce_opcode(pkt->h.opcode)->flags };
	uint32_t len = pkt->payload;

	f.addr = p->plain || f.op & ROCE_F_DETH;
	f.ref = len > SHM_MAX_COPY && !pkt->copy && pkt->niov <= SHM_PIECES &&
		shm_can_ref(w);
	f.ext = ext_len(f.op, f.addr);
	if (f.ref)
		len = shm_ref_size(pkt->niov);
	f.bytes = f.ext + len;
	if (len > (f.addr ? ROCE_MTU_MAX : SHM_MAX_COPY))
		return EMSGSIZE;
	return put_as(p, w, b, pkt, f, last);
}

static inline int put_packet(struct shm_peer *p, const struct link_way *w,
			     const struct roce_batch *b,
			     const struct roce_pkt *pkt, bool last)
{
	const uint32_t op = roce_opcode(pkt->h.opcode)->flags;
	const struct form plain = { .op = op, .bytes = pkt->payload };

	/* Mostly there is nothing but the header and the payload. */
	if (pkt->payload > SHM_MAX_COPY || p->plain ||
	    op & (ROCE_F_DETH | ROCE_F_ATOMICETH))
		return put_any(p, w, b, pkt, last);
	return put_as(p, w, b, pkt, plain, last);
}

/*
 * There is no room. True: the packet is lost, as the process is gone, or as
 * nobody repeats it and others behind it have waited for long.
 */
static bool packet_is_lost(struct shm_peer *p, const struct roce_pkt *pkt,
			   uint64_t now)
{
	const uint8_t service = pkt->h.opcode & 0xe0;

	if (ring_out_broken(&p->out) || !segment_peer_alive(p->seg, now))
		return true;
	if (!p->full_ns)
		p->full_ns = now;
	return (service == ROCE_UD || service == ROCE_UC) &&
	       now - p->full_ns > PATIENCE_NS;
}

/*
 * put_packet() once more: room that is made from now on is noticed. If it is there
 * now, others that wait are told so a little later.
 */
__attribute__((noinline)) static int put_or_starve(struct shm_peer *p,
						   const struct link_way *w,
						   const struct roce_batch *b,
						   const struct roce_pkt *pkt)
{
	ring_publish(&p->out);
	atomic_store(&p->base.starved, true);
	atomic_thread_fence(memory_order_seq_cst);
	return put_any(p, w, b, pkt, false);
}

size_t shm_send(struct link *l, struct link_way *w, const struct roce_batch *b,
		size_t from, size_t to, int *err)
{
	struct shm *s = to_shm(l);
	struct shm_peer *p = shm_peer_of(w);
	uint64_t full_ns, now = 0;
	size_t i;

	lock_take(&p->seg->lock);
	for (i = from; i < to; i++) {
		const struct roce_pkt *pkt = &b->pkt[i];
		int e;

		if (loss_draw(&s->loss))
			continue;
		e = put_packet(p, w, b, pkt,
			       i + 1 == to ||
				       (pkt->payload >= LONG_BYTES && !b->ack));
		if (e == ENOBUFS)
			e = put_or_starve(p, w, b, pkt);
		if (__builtin_expect(!e, 1)) {
			p->full_ns = 0;
			continue;
		}
		if (e == ENOBUFS) {
			now = clock_ns();
			if (packet_is_lost(p, pkt, now))
				continue;
		} else if (e == EMSGSIZE) {
			w->copy = true;
		} else {
			*err = e;
		}
		break;
	}
	ring_publish(&p->out);
	full_ns = p->full_ns;
	/* Whoever is about to sleep sees the records, or we see that. */
	lock_drop_fence(&p->seg->lock);
	segment_wake(p->seg);
	if (now && full_ns && now - full_ns > SHM_DOUBT_NS)
		shm_doubt_full(s, p, now);
	return i;
}

/* One small request; false: no room, or its memory is not there. */
static inline bool put_small(struct shm_peer *p, const struct link_way *w,
			     const struct roce_small *m)
{
	struct ring_rec *rec = rec_begin(&p->out, m->len, false);

	if (!rec)
		return false;
	rec->qpn_opcode = w->qpn << 8 | m->opcode;
	rec->psn_flags = m->psn << 8 | RING_F_ACK_REQ |
			 (m->solicited ? RING_F_SOLICITED : 0);
	rec->path = w->hash;
	rec->len = m->len;
	rec->imm = m->imm;
	rec->va = m->va;
	rec->rkey = m->rkey;
	rec->dma_len = m->len;
	if (m->len && guard_copy(ring_data(rec), m->data, m->len, m->data))
		return false;
	if (m->last || m->len >= LONG_BYTES)
		ring_put(&p->out, m->len, w->own, m->psn, w->back);
	else
		ring_commit(&p->out, m->len, w->own, m->psn, w->back);
	return true;
}

unsigned shm_send_small(struct link *l, struct link_way *w,
			struct roce_small *m)
{
	struct shm_peer *p = shm_peer_of(w);
	unsigned n = 0;

	if (p->plain || !l->lossless || !shm_is_usable(p))
		return 0;
	lock_take(&p->seg->lock);
	while (put_small(p, w, m) && ++n < ROCE_BATCH && !m->last && m->next(m))
		;
	if (n)
		p->full_ns = 0;
	ring_publish(&p->out);
	lock_drop_fence(&p->seg->lock);
	segment_wake(p->seg);
	return n;
}
