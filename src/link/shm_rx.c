/*
 * shm_rx.c - from records to packets
 *
 * A poll looks at three things, in this order: what others have acknowledged
 * (the ACK notes in their rings of our records), what lies in our rings, and
 * only then hands the acknowledgements over. So an acknowledgement never
 * overtakes a response that was sent before it; where a ring was not emptied
 * in one poll, its acknowledgements wait.
 *
 * Others can write anything into a ring at any time. ring_get() copies the
 * header, which is then checked; payload is used where it lies, since nothing
 * is decided by it.
 */
#include "shm_internal.h"

#include "grh.h"

#include "base/bytes.h"
#include "base/say.h"
#include "hooks/pcap.h"
#include "os/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* As many bytes of payload take the time of one more packet. */
#define UNIT 4096u

/* Polls between looks for processes that have gone. */
#define TIDY_POLLS 1024

/* ---- rings and peers that are new, or gone ----------------------------- */

__attribute__((noinline)) static void in_make(struct shm *s, unsigned slot)
{
	struct ring_mem *mem = segment_ring(s->segment, slot);
	struct shm_in *in = mem ? aligned_alloc(64, sizeof(*in)) : NULL;

	if (!in)
		return;
	memset(in, 0, sizeof(*in));
	ring_in_init(&in->ring, mem);
	in->slot = slot;
	s->in[slot] = in;
	s->order[s->nin++] = in;
}

static inline void look_for_rings(struct shm *s, unsigned word)
{
	uint64_t set = segment_producers(s->head, word);
	uint64_t fresh = set & ~s->seen[word];

	for (; __builtin_expect(fresh != 0, 0); fresh &= fresh - 1) {
		s->seen[word] |= fresh & -fresh;
		in_make(s, 64 * word + (unsigned)__builtin_ctzll(fresh));
	}
}

static void look_for_peers(struct shm *s)
{
	struct shm_peer *p, *next;

	if (!atomic_load_explicit(&s->arrivals, memory_order_relaxed))
		return;
	p = atomic_exchange(&s->arrivals, NULL);
	for (; p; p = next) {
		next = p->next;
		p->next = s->peers;
		s->peers = p;
	}
}

/* The process that has the ring's slot now. */
static void find_back(struct shm *s, struct shm_in *in, uint16_t generation)
{
	if (in->back)
		segment_peer_put(in->back->seg);
	in->back = shm_peer_get(s, in->slot);
	in->generation = generation;
	shm_offer_pull(in);
	look_for_peers(s);
}

/* What comes of the next process in the slot may be read again. */
static void ring_begin_again(struct shm *s, struct shm_in *in)
{
	if ((registry_generation(s->registry, in->slot) | 1u << 31) ==
	    in->broken_generation)
		return;
	in->broken_generation = 0;
	ring_in_reset(&in->ring);
}

/* Whether acks_reap() or hand_over_acks() has something to do. */
static inline bool has_said(const struct shm_peer *p)
{
	return p->nacks || ring_has_ack_note(&p->out) ||
	       atomic_load_explicit(&p->base.starved, memory_order_relaxed);
}

/*
 * Takes acknowledgements and room from the ring to a peer. Who has found none
 * says so, and then looks once more; that, or what it says, is seen by the next
 * poll, between which and this one the lock is taken.
 */
static inline void acks_reap_now(struct shm *s, struct shm_peer *p)
{
	bool more = true;

	while (more && p->nacks < SHM_ACKS)
		p->nacks += ring_reap_some(&p->out, &p->acks[p->nacks], &more);
	if (__builtin_expect(atomic_load_explicit(&p->base.starved,
						  memory_order_relaxed),
			     0) &&
	    (ring_out_broken(&p->out) ||
	     ring_unread(&p->out) <= RING_UNITS / 2)) {
		atomic_store(&p->base.starved, false);
		atomic_store(&s->link.room, true);
	}
}

static void acks_reap(struct shm *s, struct shm_peer *p)
{
	acks_reap_now(s, p);
}

/* Whether nothing was taken of what lies in a peer's ring for long. */
static bool is_stuck(struct shm_peer *p, uint64_t now)
{
	const bool unread = ring_unread(&p->out);
	const uint32_t taken = ring_taken(&p->out);
	const bool stuck =
		unread && taken == p->taken && now - p->taken_ns > SHM_DOUBT_NS;

	if (!unread || taken != p->taken || stuck)
		p->taken_ns = now;
	p->taken = taken;
	return stuck;
}

/*
 * Lets go of processes that have gone, when all they have said is known. Those
 * that do not read are looked into: nobody else does where nothing that was
 * sent has a timer.
 */
static void peers_tidy(struct shm *s)
{
	const uint64_t now = clock_ns();
	struct shm_peer **at = &s->peers, *p;
	bool any = false;

	for (unsigned i = 0; i < s->nin; i++) {
		struct shm_in *in = s->order[i];

		if (in->back && segment_peer_gone(in->back->seg)) {
			segment_peer_put(in->back->seg);
			in->back = NULL;
			in->generation = 0;
		}
		if (in->broken_generation)
			ring_begin_again(s, in);
	}
	while ((p = *at)) {
		bool gone = segment_peer_gone(p->seg);

		/* What it said last, it has said by now. */
		if (gone)
			acks_reap(s, p);
		else if (is_stuck(p, now))
			shm_doubt(s, p);
		if (!gone || p->nacks) {
			at = &p->next;
			continue;
		}
		*at = p->next;
		segment_peer_put(p->seg);
		any = true;
	}
	if (any)
		segment_tidy(s->segment);
}

/* No packet is at hand: what is so of each, and of the next one. */
void shm_rx_blank(struct shm *s)
{
	s->pkt = (struct roce_rx){
		.h = { .mig_req = true, .pkey = ROCE_PKEY_DEFAULT },
		.host = true,
	};
}

void shm_rx_fini(struct shm *s)
{
	struct shm_peer *p;

	look_for_peers(s);
	for (unsigned i = 0; i < s->nin; i++) {
		if (s->order[i]->back)
			segment_peer_put(s->order[i]->back->seg);
		free(s->order[i]);
	}
	while ((p = s->peers)) {
		s->peers = p->next;
		segment_peer_put(p->seg);
	}
}

/* ---- what comes back --------------------------------------------------- */

void shm_doubt(struct shm *s, struct shm_peer *p)
{
	segment_poke(p->seg);
	acks_reap(s, p);
	lock_take(&p->seg->lock);
	if (!ring_out_broken(&p->out) && !ring_out_check(&p->out)) {
		SHM_RX_STAT(s, broken, 1);
		say("another process has written into shared memory where "
		    "packets to process %u lay; they go by UDP from now on",
		    p->seg->head->pid);
	}
	lock_drop(&p->seg->lock);
	acks_reap(s, p); /* there is room elsewhere, then */
}

void shm_doubt_full(struct shm *s, struct shm_peer *p, uint64_t now)
{
	/* Whoever polls just now calls again. */
	if (!lock_try(&s->rx_lock))
		return;
	if (now - p->doubted_ns > SHM_DOUBT_NS) {
		p->doubted_ns = now;
		shm_doubt(s, p);
	}
	lock_drop(&s->rx_lock);
}

/* Somebody waits for what we have said, and others have written over. */
static void say_again(struct shm *s)
{
	segment_say_again(s->segment);
	for (unsigned i = 0; i < s->nin; i++)
		ring_in_check(&s->order[i]->ring);
}

/*
 * An ACK note says that the peer has taken what we have sent. Its program may
 * have answered since, and ours is to hear of the end of what it has sent
 * first, as with hardware: so before records that the peer has put into its
 * ring (early) we hand over what we can. An ACK note on what is behind a read
 * or an atomic waits for the response, which lies in that ring.
 */
static unsigned hand_over_acks(struct shm *s, struct shm_peer *p, bool early)
{
	const unsigned n = p->nacks;
	unsigned left = 0;

	s->pkt.ack_note = true;
	s->pkt.early = early;
	s->pkt.payload = NULL;
	s->pkt.len = 0;
	for (unsigned i = 0; i < n; i++) {
		const struct ring_ack a = p->acks[i];
		bool done = !early;

		s->pkt.acked = early ? &done : NULL;
		s->pkt.h.dest_qpn = a.qpn;
		s->pkt.h.psn = a.psn;
		s->pkt.path_hash = a.cookie;
		s->fn(s->arg, &s->pkt);
		if (!done)
			p->acks[left++] = a;
	}
	s->pkt.acked = NULL;
	s->pkt.ack_note = s->pkt.early = false;
	p->nacks = left;
	return n - left;
}

/* ---- records ----------------------------------------------------------- */

/* Headers that few packets have. */
#define MORE_HEADERS                                                           \
	(ROCE_F_RETH | ROCE_F_AETH | ROCE_F_ATOMICETH | ROCE_F_ATOMICACKETH |  \
	 ROCE_F_IMM | ROCE_F_IETH | ROCE_F_DETH)

/* What each packet has, over what the one before it had. */
static void decode_header(struct roce_rx *pkt, const struct ring_rec *rec)
{
	struct roce_hdr *h = &pkt->h;

	h->opcode = (uint8_t)rec->qpn_opcode;
	h->solicited = rec->psn_flags & RING_F_SOLICITED;
	h->ack_req = rec->psn_flags & RING_F_ACK_REQ;
	h->pad = (uint8_t)(-rec->len & 3);
	h->dest_qpn = rec->qpn_opcode >> 8;
	h->psn = rec->psn_flags >> 8;
	pkt->large = rec->psn_flags & RING_F_LARGE;
	pkt->path_hash = rec->path;
	pkt->len = rec->len;
}

static void decode_more(struct roce_hdr *h, const struct ring_rec *rec,
			uint32_t f, const struct shm_ext_atomic *a,
			const struct shm_ext_addr *addr)
{
	if (f & (ROCE_F_RETH | ROCE_F_ATOMICETH)) {
		h->va = rec->va;
		h->rkey = rec->rkey;
	}
	if (f & ROCE_F_RETH)
		h->dma_len = rec->dma_len;
	if (f & ROCE_F_ATOMICETH) {
		h->swap_add = a->swap_add;
		h->compare = a->compare;
	}
	if (f & ROCE_F_AETH) {
		h->syndrome = (uint8_t)(rec->imm >> 24);
		h->msn = rec->imm & 0xffffff;
	}
	if (f & ROCE_F_ATOMICACKETH)
		h->atomic_orig = rec->va;
	if (f & ROCE_F_IMM)
		memcpy(&h->imm, &rec->imm, sizeof(h->imm));
	if (f & ROCE_F_IETH)
		h->inv_rkey = rec->imm;
	if (f & ROCE_F_DETH) {
		h->qkey = addr->qkey;
		h->src_qpn = addr->src_qpn & 0xffffff;
	}
}

/* The addresses of a packet that has them: those of UD are in its GRH, too. */
static void decode_addr(struct shm *s, const struct roce_opcode *op,
			const struct shm_ext_addr *addr)
{
	struct roce_rx *pkt = &s->pkt;

	pkt->sgid = addr->sgid;
	pkt->dgid = addr->dgid;
	pkt->tclass = addr->tclass;
	if (!(op->flags & ROCE_F_DETH))
		return;
	link_grh_build(s->grh,
		       &(struct link_grh){ .src = &addr->sgid,
					   .dst = &addr->dgid,
					   .tclass = addr->tclass,
					   .hop_limit = addr->hop_limit,
					   .len = op->hdr_len + pkt->len +
						  pkt->h.pad + ROCE_ICRC_LEN });
	pkt->grh = s->grh;
}

/*
 * The rest of s->pkt, whose payload is as yet all of the record's data: its
 * headers, what stands in front of the payload, and where that is. False: it
 * cannot be a packet.
 */
static bool decode_rest(struct shm *s, struct shm_in *in,
			const struct ring_rec *rec,
			const struct roce_opcode *op)
{
	const bool has_addr = rec->psn_flags & RING_F_EXT;
	const bool is_ref = rec->psn_flags & RING_F_REF;
	struct roce_rx *pkt = &s->pkt;
	const uint8_t *data = pkt->payload;
	uint32_t left = ring_bytes(rec);
	struct shm_ext_atomic a;
	struct shm_ext_addr addr;

	if (!op->name || (rec->len && !(op->flags & ROCE_F_PAYLOAD)))
		return false;
	if ((pkt->h.opcode & 0xe0) == ROCE_XRC) /* see slot_of() */
		return false;
	if (op->flags & ROCE_F_ATOMICETH) {
		if (left < sizeof(a))
			return false;
		memcpy(&a, data, sizeof(a));
		data += sizeof(a);
		left -= (uint32_t)sizeof(a);
	}
	if (has_addr) {
		if (left < sizeof(addr))
			return false;
		memcpy(&addr, data, sizeof(addr));
		data += sizeof(addr);
		left -= (uint32_t)sizeof(addr);
	} else if (op->flags & ROCE_F_DETH) {
		return false;
	}
	if (is_ref ? shm_source_init(&s->source, s, in, data, left, rec->len,
				     op->flags & ROCE_F_RESPONSE) :
		     rec->len != left)
		return false;
	pkt->h.becn = pkt->h.opcode == ROCE_CNP;
	decode_more(&pkt->h, rec, op->flags, &a, &addr);
	pkt->payload = is_ref ? NULL : data;
	pkt->source = is_ref ? &s->source.base : NULL;
	if (has_addr)
		decode_addr(s, op, &addr);
	/* In a file of both ends a packet is once. */
	if (s->cfg.pcap && has_addr && !is_ref &&
	    addr.file != pcap_file(s->cfg.pcap)) {
		const struct iovec v = { (void *)data, left };

		shm_record(s, false, &pkt->h, &addr, &v);
	}
	return true;
}

/*
 * Whether a record's ACK note may acknowledge the packet. Not where ACKs are to
 * be seen in a recording, or lost as others are; nor where the sender could not
 * be woken.
 */
static inline bool may_ack(const struct shm *s, const struct shm_in *in,
			   const struct ring_rec *rec)
{
	const uint32_t flags = rec->psn_flags & (RING_F_ACK_REQ | RING_F_EXT);

	return (rec->qpn_opcode & 0xe0) == ROCE_RC && flags == RING_F_ACK_REQ &&
	       in->back && !s->loss.some;
}

/* Neither QP 0, QP 1 nor a group. */
static bool is_for_a_qp(const struct roce_hdr *h)
{
	return h->dest_qpn - 2 < ROCE_MULTICAST_QPN - 2;
}

/* Whether it is of RC or UC, has payload, in the record, and else what each
 * packet has. */
static bool is_plain(const struct ring_rec *rec, uint32_t f)
{
	return (f & (ROCE_F_PAYLOAD | MORE_HEADERS)) == ROCE_F_PAYLOAD &&
	       !(rec->qpn_opcode & 0xc0) &&
	       !(rec->psn_flags & (RING_F_EXT | RING_F_REF));
}

/* The packet is whole; what becomes of its record. */
static inline enum ring_ack_note packet_hand_over(struct shm *s,
						  const struct shm_in *in,
						  const struct ring_rec *rec)
{
	struct roce_rx *pkt = &s->pkt;
	bool acked = false;

	pkt->acked = may_ack(s, in, rec) ? &acked : NULL;
	SHM_RX_STAT(s, rx_pkts, 1);
	SHM_RX_STAT(s, rx_bytes, rec->len);
	s->fn(s->arg, pkt);
	return acked ? RING_ACKED : RING_DONE;
}

__attribute__((noinline)) static enum ring_ack_note
record_receive_any(struct shm *s, struct shm_in *in, struct ring_rec *rec)
{
	enum ring_ack_note v = RING_DONE;

	ring_get_rest(&in->ring, rec);
	if (is_for_a_qp(&s->pkt.h) &&
	    decode_rest(s, in, rec, roce_opcode((uint8_t)rec->qpn_opcode)))
		v = packet_hand_over(s, in, rec);
	else
		SHM_RX_STAT(s, rx_malformed, 1);
	shm_rx_blank(s);
	return v;
}

/* Hands one record over. Returns what becomes of it. */
static inline enum ring_ack_note
record_receive(struct shm *s, struct shm_in *in, const struct ring_rec *rec)
{
	const uint32_t f = roce_opcode((uint8_t)rec->qpn_opcode)->flags;

	decode_header(&s->pkt, rec);
	s->pkt.payload = ring_in_data(&in->ring);
	if (__builtin_expect(is_plain(rec, f) && is_for_a_qp(&s->pkt.h) &&
				     rec->len == ring_bytes(rec),
			     1)) {
		return packet_hand_over(s, in, rec);
	} else {
		/* Its address is taken of a copy: *rec is in registers. */
		struct ring_rec copy;

		copy.word = rec->word;
		copy.qpn_opcode = rec->qpn_opcode;
		copy.psn_flags = rec->psn_flags;
		copy.len = rec->len;

		return record_receive_any(s, in, &copy);
	}
}

static void explain_broken(struct shm *s, struct shm_in *in)
{
	if (in->broken_generation)
		return;
	in->broken_generation =
		registry_generation(s->registry, in->slot) | 1u << 31;
	SHM_RX_STAT(s, broken, 1);
	say("shared memory written by another process (slot %u) is corrupt "
	    "(%s); packets between the two go by UDP from now on",
	    in->slot, in->ring.broken);
}

/* Up to budget packets of one ring, or fewer that are long. */
static unsigned ring_drain(struct shm *s, struct shm_in *in, unsigned budget)
{
	struct ring_rec rec;
	unsigned n = 0;

	in->empty = false;
	while (n < budget) {
		if (!ring_get(&in->ring, &rec)) {
			in->empty = true;
			break;
		}
		if (ring_generation(&rec) != in->generation)
			find_back(s, in, ring_generation(&rec));
		/* What was said before the record was put there is seen now. */
		if (in->back && ring_has_ack_note(&in->back->out)) {
			acks_reap_now(s, in->back);
			n += hand_over_acks(s, in->back, true);
		}
		n += 1 + rec.len / UNIT;
		ring_release(&in->ring, record_receive(s, in, &rec));
	}
	if (__builtin_expect(in->ring.broken != NULL, 0))
		explain_broken(s, in);
	/* If the producer is about to sleep it sees the ACK notes, or we see
	 * that. */
	if (n && in->back) {
		atomic_thread_fence(memory_order_seq_cst);
		segment_wake(in->back->seg);
	}
	return n;
}

/* Whether what a process has sent before its last ACK note may lie there yet.
 * */
static bool may_hold_more(struct shm *s, unsigned slot)
{
	if (!s->in[slot])
		look_for_rings(s, slot / 64);
	return s->in[slot] && !s->in[slot]->empty;
}

/* ---- polling ----------------------------------------------------------- */

/* All rings, each time another one first. */
static inline unsigned rings_drain(struct shm *s, unsigned budget)
{
	unsigned at = s->turn, n = 0;

	s->turn = at + 1 < s->nin ? at + 1 : 0;
	for (unsigned left = s->nin; left; left--) {
		struct shm_in *in = s->order[at];

		if (++at >= s->nin)
			at = 0;
		if (ring_ready(&in->ring))
			n += ring_drain(s, in, n < budget ? budget - n : 0);
		else
			in->empty = true;
	}
	return n;
}

static inline bool has_records(const struct shm *s)
{
	for (unsigned i = 0; i < s->nin; i++)
		if (ring_ready(&s->order[i]->ring))
			return true;
	return false;
}

static inline bool has_ack_notes(const struct shm *s)
{
	for (const struct shm_peer *p = s->peers; p; p = p->next)
		if (has_said(p))
			return true;
	return atomic_load_explicit(&s->arrivals, memory_order_relaxed);
}

/* The same where somebody has said something. */
__attribute__((noinline)) static unsigned take_ack_notes(struct shm *s,
							 unsigned budget)
{
	unsigned n = 0;

	look_for_peers(s);
	for (struct shm_peer *p = s->peers; p; p = p->next) {
		if (has_said(p))
			acks_reap_now(s, p);
		if (p->nacks)
			n += hand_over_acks(s, p, true);
	}
	n += rings_drain(s, budget);
	for (struct shm_peer *p = s->peers; p; p = p->next)
		if (p->nacks && !may_hold_more(s, p->seg->slot))
			n += hand_over_acks(s, p, false);
	return n;
}

/* Returns how many packets it hands over, long ones more than once, and
 * acknowledgements. Mostly there is nothing. */
static inline unsigned records_take(struct shm *s, unsigned budget)
{
	/* First: an ACK note that was given before a record is seen then. */
	const bool records = has_records(s);

	if (has_ack_notes(s))
		return take_ack_notes(s, budget);
	return records ? rings_drain(s, budget) : 0;
}

int shm_poll(struct link *l, unsigned budget, link_rx_fn *fn, void *arg)
{
	struct shm *s = to_shm(l);
	unsigned n;

	if (!lock_try(&s->rx_lock))
		return -EBUSY;
	if (__builtin_expect(segment_poked(s->head), 0))
		say_again(s);
	look_for_rings(s, ++s->polls % (REGISTRY_SLOTS / 64));
	s->fn = fn;
	s->arg = arg;
	n = records_take(s, budget);
	if (!(s->polls % TIDY_POLLS))
		peers_tidy(s);
	lock_drop(&s->rx_lock);
	return (int)n;
}

bool shm_rx_pending(struct shm *s)
{
	look_for_peers(s);
	for (unsigned i = 0; i < REGISTRY_SLOTS / 64; i++)
		look_for_rings(s, i);
	for (unsigned i = 0; i < s->nin; i++)
		if (ring_ready(&s->order[i]->ring))
			return true;
	for (struct shm_peer *p = s->peers; p; p = p->next) {
		acks_reap(s, p);
		if (p->nacks)
			return true;
	}
	return atomic_load(&s->link.room);
}
