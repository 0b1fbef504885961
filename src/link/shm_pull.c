/*
 * shm_pull.c - payload that its receiver reads where the sender has it
 *
 * A record may name the payload instead of having it with it: the pieces of
 * memory, which key of the sender each of them is of, and which generation of
 * which QP has sent it. Its receiver copies from there to where the payload
 * belongs (segment/segment.h), once and not through the ring.
 *
 * The sender does not know when that happens. It keeps what was posted until
 * the packet is acknowledged, unless the program takes it back: it deregisters
 * the memory, or the QP goes to ERR or RESET, or the process ends. All these
 * can be seen in what the process shows (exported_keys.h), before the program
 * is told that it may use its memory for something else. So a reader that
 * checks after its copy, and finds everything unchanged, has what was sent.
 *
 * Names come from memory that others may scribble on. They lead to nothing but
 * the memory of the process whose ring they were in.
 */
#include "exported_keys.h"
#include "shm_internal.h"

#include "os/config.h"

#include <errno.h>
#include <string.h>

#define PAGE 4096u

/* ---- the sender -------------------------------------------------------- */

bool shm_can_ref(const struct link_way *w)
{
	const struct shm_peer *p = shm_peer_of(w);
	const uint32_t *word = &p->out.mem->told.word[SHM_WORD_PULLS];

	return w->own && w->generation && !w->copy &&
	       __atomic_load_n(word, __ATOMIC_RELAXED) ==
		       p->out.generation >> 16 &&
	       !p->plain;
}

uint32_t shm_ref_size(size_t n)
{
	return (uint32_t)(sizeof(struct shm_ref) +
			  n * sizeof(struct shm_piece));
}

/* A piece by a key that others see; false: there is none. */
static bool name_piece(struct shm_piece *to, const struct link_way *w,
		       const struct iovec *v, struct key_entry *e)
{
	uint32_t key;

	if (!e || v->iov_len > SHM_MAX_PAYLOAD)
		return false;
	key = atomic_load_explicit(&e->lkey, memory_order_relaxed);
	if (!key)
		key = atomic_load_explicit(&e->rkey, memory_order_relaxed);
	*to = (struct shm_piece){
		.addr = (uintptr_t)v->iov_base,
		.len = (uint32_t)v->iov_len,
		.slot = (uint32_t)(e - w->keys->entry),
		.key = key,
	};
	return key && to->slot < w->keys->nshown;
}

bool shm_ref_put(uint8_t *to, const struct link_way *w,
		 const struct roce_batch *b, const struct roce_pkt *pkt)
{
	const struct shm_ref ref = {
		.qpn = w->own,
		.generation = w->generation,
		.n = pkt->niov,
	};

	memcpy(to, &ref, sizeof(ref));
	to += sizeof(ref);
	for (size_t i = pkt->iov; i < pkt->iov + pkt->niov; i++) {
		struct shm_piece piece;

		if (!name_piece(&piece, w, &b->data.iov[i],
				qp_piece_key(&b->data, i)))
			return false;
		memcpy(to, &piece, sizeof(piece));
		to += sizeof(piece);
	}
	return true;
}

/* ---- the receiver ------------------------------------------------------ */

void shm_offer_pull(struct shm_in *in)
{
	const bool can =
		in->back && !in->back->plain && segment_can_copy(in->back->seg);

	__atomic_store_n(&in->ring.mem->told.word[SHM_WORD_PULLS],
			 can ? in->generation : 0u, __ATOMIC_RELAXED);
}

static bool has_keys(const struct shm_source *s, struct segment_peer *p)
{
	struct keys_view view;

	if (!exported_keys_view(p, &view))
		return false;
	for (uint32_t i = 0; i < s->n; i++)
		if (!exported_keys_ready(p, &view, s->piece[i].slot) ||
		    !keys_shows(&view, s->piece[i].slot, s->piece[i].key))
			return false;
	return true;
}

/*
 * 0: what was sent is as it was. -ESTALE: the QP has taken it back, -EACCES: a
 * key has gone; and then the QP that was to answer has perhaps failed since, by
 * a later request, and will not say so.
 */
static int ref_validity(const struct shm_source *s, struct segment_peer *p)
{
	const struct qp_public *pub = exported_qp(p, s->qpn);

	if (!pub || qp_public_get(&pub->qpn) != s->qpn)
		return -ESTALE;
	if (qp_public_get(&pub->generation) != s->generation)
		return s->response && !has_keys(s, p) &&
				       qp_public_get(&pub->state) ==
					       IBV_QPS_ERR ?
			       -EACCES :
			       -ESTALE;
	return has_keys(s, p) ? 0 : -EACCES;
}

/* Where len bytes from offset on are; the number of pieces. */
static size_t cut_pieces(const struct shm_source *s, uint64_t offset,
			 size_t len, struct iovec from[SHM_PIECES])
{
	size_t m = 0;

	for (uint32_t i = 0; i < s->n && len; i++) {
		const struct shm_piece *p = &s->piece[i];
		size_t n;

		if (offset >= p->len) {
			offset -= p->len;
			continue;
		}
		n = p->len - (size_t)offset;
		if (n > len)
			n = len;
		from[m].iov_base = (void *)(uintptr_t)(p->addr + offset);
		from[m++].iov_len = n;
		len -= n;
		offset = 0;
	}
	return m;
}

/* Whether all of the sender's memory can be read: one byte of each page can. */
static bool is_there(struct segment_peer *p, const struct iovec *from, size_t m)
{
	for (size_t i = 0; i < m; i++) {
		uintptr_t at = (uintptr_t)from[i].iov_base;
		const uintptr_t end = at + from[i].iov_len;

		while (at < end) {
			struct iovec page[64];
			uint8_t byte[64];
			size_t n = 0;

			for (; at < end && n < 64; at = (at | (PAGE - 1)) + 1)
				page[n++] = (struct iovec){ (void *)at, 1 };
			if (segment_read(p, &(struct iovec){ byte, n }, 1, page,
					 n, clock_ns()))
				return false;
		}
	}
	return true;
}

static int pull_from(const struct shm_source *s, struct segment_peer *p,
		     uint64_t offset, const struct iovec *to, size_t n)
{
	struct iovec from[SHM_PIECES];
	size_t len = 0, m;
	int err, valid;

	for (size_t i = 0; i < n; i++)
		len += to[i].iov_len;
	valid = ref_validity(s, p);
	if (valid)
		return valid;
	m = cut_pieces(s, offset, len, from);
	err = segment_read(p, to, n, from, m, clock_ns());
	if (err == -EFAULT && !is_there(p, from, m))
		err = -EAGAIN;
	/* What is read now was so, or was sooner gone, than what was copied. */
	atomic_thread_fence(memory_order_acquire);
	valid = err == -ESRCH ? -ESTALE : ref_validity(s, p);
	if (valid)
		return valid;
	if (err == -EPERM)
		__atomic_store_n(s->pulls, 0u, __ATOMIC_RELAXED);
	return !err || err == -EFAULT ? err : -EAGAIN;
}

/* The packet may have been kept for long: the peer is found again. */
static int pull_payload(const struct qp_source *base, uint64_t offset,
			const struct iovec *to, size_t n)
{
	const struct shm_source *s = (const void *)base;
	struct segment_peer *p = segment_peer_get(s->shm->segment, s->slot);
	int err = -ESTALE;

	if (p && p->id == s->id)
		err = pull_from(s, p, offset, to, n);
	segment_peer_put(p);
	return err;
}

int shm_source_init(struct shm_source *src, struct shm *s, struct shm_in *in,
		    const uint8_t *data, uint32_t bytes, uint32_t len,
		    bool response)
{
	struct shm_ref ref;
	uint64_t sum = 0;

	if (!in->back || bytes < sizeof(ref))
		return -EINVAL;
	memcpy(&ref, data, sizeof(ref));
	if (!ref.n || ref.n > SHM_PIECES || bytes != shm_ref_size(ref.n))
		return -EINVAL;
	src->base.read = pull_payload;
	src->base.size = offsetof(struct shm_source, piece) +
			 ref.n * sizeof(src->piece[0]);
	src->shm = s;
	src->pulls = &in->ring.mem->told.word[SHM_WORD_PULLS];
	src->id = in->back->seg->id;
	src->slot = in->slot;
	src->qpn = ref.qpn;
	src->generation = ref.generation;
	src->response = response;
	src->n = ref.n;
	memcpy(src->piece, data + sizeof(ref), ref.n * sizeof(src->piece[0]));
	for (uint32_t i = 0; i < src->n; i++)
		sum += src->piece[i].len;
	return len && sum == len && len <= SHM_MAX_PAYLOAD ? 0 : -EINVAL;
}
