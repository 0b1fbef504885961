/*
 * sim_host.c - the simulated host: packets as the shared memory link has them
 *
 * Headers stay in host order and packets may be longer than the MTU. Their
 * payload is with them, or is read from the sender's memory when they are
 * received, which is good as long as what was sent has not become void. That
 * the core never has it read after it has told the sender's program that the
 * memory is its own again is checked here, with each read.
 */
#include "sim_host.h"

#include "roce/roce_internal.h"

#include <assert.h>
#include <stdlib.h>

#define PIECES QP_MAX_SGE

/* Memory, and the key that must still lead there. */
struct piece {
	const uint8_t *p;
	size_t len;
	const struct key_entry *entry;
	uint32_t lkey, rkey;
};

struct source {
	struct qp_source base;
	struct sim *sim;
	const struct sim_qp *q;
	uint32_t generation; /* of q->pub */
	uint32_t last_psn;
	bool request;
	size_t n;
	struct piece piece[PIECES];
};

struct sim_host_pkt {
	struct roce_hdr h;
	bool ack_note;
	bool large;
	size_t len;
	uint8_t *payload; /* or */
	struct source *source; /* a copy, as a link hands it over */
};

/* ---- ways -------------------------------------------------------------- */

static const char *const names[] = {
	[SIM_UDP] = "udp", [SIM_HOST] = "host",   [SIM_COPY] = "copy",
	[SIM_REF] = "ref", [SIM_MIXED] = "mixed",
};

void sim_ways_init(struct sim *s)
{
	const char *name = getenv("SIM_WAY");
	int way = SIM_UDP;

	s->ways.state = s->seed ^ 0x77617973;
	s->max_payload = 8192u << sim_below(&s->ways, 3) * 3; /* to 512 KiB */
	s->max_copy = sim_chance(&s->ways, 0.5) ? 8192 : 0;
	if (name && !strcmp(name, "direct")) {
		s->direct = 1;
		name = "host";
	}
	if (name) {
		while (way < SIM_MIXED && strcmp(names[way], name))
			way++;
		assert(!strcmp(names[way], name));
	}
	for (int i = 0; i < 2; i++) {
		s->way[i] = (enum sim_way)way;
		/* Often one for all, and another for the other direction. */
		if (way == SIM_MIXED)
			s->way[i] = (enum sim_way)sim_below(&s->ways,
							    SIM_MIXED + 2);
		if (s->way[i] > SIM_MIXED)
			s->way[i] = SIM_MIXED;
	}
}

enum sim_way sim_way_next(struct sim *s, int from, struct roce_batch *b)
{
	enum sim_way way = s->way[from];

	if (way == SIM_MIXED)
		way = (enum sim_way)sim_below(&s->ways, SIM_MIXED);
	b->max_payload = b->max_copy = 0;
	if (way == SIM_HOST || way == SIM_COPY) {
		b->max_payload = s->max_payload;
		b->max_copy = s->max_copy;
	}
	return way;
}

/* ---- payload that is elsewhere ----------------------------------------- */

static bool is_void(const struct source *s)
{
	if (qp_public_get(&s->q->pub->generation) != s->generation)
		return true;
	for (size_t i = 0; i < s->n; i++) {
		const struct piece *p = &s->piece[i];

		if (atomic_load(&p->entry->users) & KEY_DYING ||
		    atomic_load(&p->entry->lkey) != p->lkey ||
		    atomic_load(&p->entry->rkey) != p->rkey)
			return true;
	}
	return false;
}

/* Bytes from offset on, or garbage. */
static void copy(const struct source *s, uint64_t offset,
		 const struct iovec *to, bool garbage)
{
	uint8_t *out = to->iov_base;
	size_t left = to->iov_len;

	if (garbage) {
		memset(out, 0xdb, left);
		return;
	}
	for (size_t i = 0; i < s->n && left; i++) {
		size_t n = s->piece[i].len;

		if (offset >= n) {
			offset -= n;
			continue;
		}
		n -= offset;
		if (n > left)
			n = left;
		memcpy(out, s->piece[i].p + offset, n);
		out += n;
		left -= n;
		offset = 0;
	}
	assert(!left);
}

static int source_read(const struct qp_source *base, uint64_t offset,
		       const struct iovec *to, size_t n)
{
	const struct source *s = (const struct source *)(const void *)base;
	struct sim *sim = s->sim;
	bool fails = sim_chance(&sim->ways, sim->unreadable);

	sim->reads++;
	if (is_void(s))
		return -ESTALE;
	for (size_t i = 0; i < n; i++) {
		if (sim->in_read)
			sim->in_read(sim, i);
		copy(s, offset, &to[i], fails);
		offset += to[i].iov_len;
	}
	if (is_void(s))
		return -ESTALE;
	if (fails && sim->read_error)
		return sim->read_error;
	if (fails)
		return sim_chance(&sim->ways, 0.5) ? -EAGAIN : -ESTALE;
	/* A program whose request has completed may write to its memory. What
	 * somebody else acknowledges completes before it was read. */
	if (s->request && !s->q->forged)
		assert(psn_diff(s->last_psn, s->q->qp->req.una) >= 0);
	return 0;
}

static void source_set(struct source *s, struct sim *sim,
		       const struct sim_qp *q, const struct roce_batch *b,
		       const struct roce_pkt *p)
{
	s->base = (struct qp_source){ source_read, sizeof(*s) };
	s->sim = sim;
	s->q = q;
	s->generation = qp_public_get(&q->pub->generation);
	s->last_psn = p->last_psn;
	s->request = roce_opcode(p->h.opcode)->flags & ROCE_F_REQUEST;
	assert(p->niov <= PIECES);
	for (size_t i = 0; i < p->niov; i++) {
		const struct iovec *v = &b->data.iov[p->iov + i];
		const struct key_entry *e = qp_piece_key(&b->data, p->iov + i);

		s->piece[s->n++] = (struct piece){
			.p = v->iov_base,
			.len = v->iov_len,
			.entry = e,
			.lkey = atomic_load(&e->lkey),
			.rkey = atomic_load(&e->rkey),
		};
	}
}

/* ---- packets ----------------------------------------------------------- */

struct sim_host_pkt *sim_host_new(struct sim *s, enum sim_way way,
				  const struct sim_qp *q,
				  const struct roce_batch *b,
				  const struct roce_pkt *p)
{
	struct sim_host_pkt *k = calloc(1, sizeof(*k));
	size_t at = 0;

	k->h = p->h;
	k->large = way != SIM_REF;
	k->len = p->payload;
	if (k->len && way != SIM_COPY && !p->copy) {
		k->source = calloc(1, sizeof(*k->source));
		source_set(k->source, s, q, b, p);
		return k;
	}
	k->payload = malloc(k->len + 1);
	for (size_t i = 0; i < p->niov; i++) {
		const struct iovec *v = &b->data.iov[p->iov + i];

		memcpy(k->payload + at, v->iov_base, v->iov_len);
		at += v->iov_len;
	}
	assert(at == k->len);
	return k;
}

struct sim_host_pkt *sim_host_ack_note(const struct roce_hdr *ack)
{
	struct sim_host_pkt *k = calloc(1, sizeof(*k));

	k->h = *ack;
	k->ack_note = true;
	return k;
}

struct sim_host_pkt *sim_host_dup(const struct sim_host_pkt *p)
{
	struct sim_host_pkt *k = malloc(sizeof(*k));

	*k = *p;
	if (p->payload)
		k->payload = memcpy(malloc(p->len + 1), p->payload, p->len);
	if (p->source)
		k->source = memcpy(malloc(p->source->base.size), p->source,
				   p->source->base.size);
	return k;
}

void sim_host_free(struct sim_host_pkt *p)
{
	if (!p)
		return;
	free(p->payload);
	free(p->source);
	free(p);
}

uint32_t sim_host_last_psn(const struct sim_qp *q, const struct roce_rx *rx)
{
	return rx_last_psn(q->qp, rx);
}

bool sim_host_is_ack_note(const struct sim_host_pkt *p)
{
	return p->ack_note;
}

void sim_host_rx(struct sim *s, struct sim_host_pkt *p, struct roce_rx *rx,
		 bool *acked)
{
	uint8_t service = p->h.opcode & 0xe0;

	rx->h = p->h;
	rx->payload = p->payload;
	rx->source = p->source ? &p->source->base : NULL;
	rx->len = p->len;
	rx->host = true;
	rx->large = p->large;
	rx->path_hash = roce_path_hash(&rx->sgid, &rx->dgid);
	if (service == ROCE_RC || service == ROCE_UC) {
		memset(&rx->sgid, 0, sizeof(rx->sgid));
		memset(&rx->dgid, 0, sizeof(rx->dgid));
	}
	if (p->large && sim_chance(&s->ways, 0.5))
		rx->acked = acked;
}
