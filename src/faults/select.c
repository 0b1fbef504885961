/*
 * select.c - which packets a rule counts, and which of those it acts on
 *
 * Whether a rule acts on its nth packet depends on n, on the bytes before it,
 * on the seed and, where the script says so, on the time. Chance is a function
 * of the seed, the rule's line and n, so a packet that is counted twice because
 * the link had no room for it has the same fate.
 */
#include "faults.h"
#include "script.h"

#include "base/hash64.h"
#include "wire/roce.h"

#include <string.h>

static uint64_t mix(uint64_t z)
{
	return hash64(z * HASH64_STEP);
}

uint64_t faults_number(const struct faults *f, uint64_t n)
{
	return mix(mix(f->seed + 1) + n);
}

/* One bit for each class that a packet is of. */
static uint32_t classes_of(const struct fault_packet *p)
{
	const uint32_t f = roce_opcode(p->opcode)->flags;

	if (p->dest_qpn == 1)
		return 1u << CLASS_MAD;
	if (p->opcode == ROCE_CNP)
		return 1u << CLASS_CNP;
	if ((p->opcode & 0x1f) == ROCE_ACK)
		switch (p->syndrome & ROCE_AETH_KIND) {
		case ROCE_AETH_ACK:
			return 1u << CLASS_ACK;
		case ROCE_AETH_RNR:
			return 1u << CLASS_RNR_NAK;
		default:
			return 1u << CLASS_NAK;
		}
	if (f & ROCE_F_SEND)
		return 1u << CLASS_SEND;
	if (f & ROCE_F_ATOMIC)
		return 1u << CLASS_ATOMIC;
	if (f & ROCE_F_WRITE)
		return 1u << CLASS_WRITE;
	if (f & ROCE_F_READ)
		return 1u << CLASS_READ |
		       1u << (f & ROCE_F_REQUEST ? CLASS_READ_REQUEST :
						   CLASS_READ_RESPONSE);
	return 0;
}

static bool is_on_packets(const struct fault_rule *r)
{
	return r->what.action < FAULT_RNR || r->what.action == FAULT_KILL;
}

static bool is_between(const struct faults *f, const struct fault_rule *r,
		       const struct fault_packet *p)
{
	const struct fault_what *w = &r->what;

	return (!w->qpn || w->qpn == p->qpn) &&
	       (!w->peered ||
		(p->peer && !memcmp(p->peer, &w->peer, sizeof(w->peer)))) &&
	       (!w->dev[0] || (p->local && f->names_device &&
			       f->names_device(w->dev, p->local)));
}

static bool selects(const struct faults *f, const struct fault_rule *r,
		    const struct fault_packet *p, uint32_t classes)
{
	const struct fault_what *w = &r->what;

	return is_on_packets(r) && w->dirs & p->dir &&
	       (!w->classes || w->classes & classes) && is_between(f, r, p);
}

/* Whether n is in one of the ranges; n only ever grows by one, or shrinks by
 * as much as it had grown. */
static bool is_nth(struct fault_rule *r)
{
	while (r->at && r->nth[r->at - 1].to >= r->n)
		r->at--;
	while (r->at < r->nnth && r->nth[r->at].to < r->n)
		r->at++;
	return r->at < r->nnth && r->nth[r->at].from <= r->n;
}

static bool is_chance(const struct faults *f, const struct fault_rule *r)
{
	const uint64_t z = mix(faults_number(f, r->k) + r->line);

	return (double)(z >> 11) * 0x1p-53 < r->p;
}

/* The window is open: after some time or bytes, and for some time from there. */
static bool is_open(struct fault_rule *r, size_t bytes, uint64_t now_ns)
{
	if (!r->begun_ns)
		r->begun_ns = now_ns;
	r->bytes += bytes;
	if (r->open_ns)
		return !r->for_ns || now_ns - r->open_ns < r->for_ns;
	if (r->bytes < r->after_bytes || now_ns - r->begun_ns < r->after_ns)
		return false;
	r->open_ns = now_ns;
	return true;
}

/* Counts one that r selects. Whether r acts on it. */
static bool counts(struct faults *f, struct fault_rule *r, size_t bytes,
		   uint64_t now_ns)
{
	r->n++;
	r->inside = is_open(r, bytes, now_ns);
	if (!r->inside)
		return false;
	r->k++;
	return (!r->nth || is_nth(r)) && (!r->every || r->k % r->every == 0) &&
	       (!r->first || r->k <= r->first) &&
	       (!r->by_chance || is_chance(f, r));
}

/* Counts one that rule i selects. The first rule that acts on it does so. */
static void consider(struct faults *f, size_t i, size_t bytes, uint64_t now_ns,
		     struct fault_rule **acts, uint64_t *n)
{
	struct fault_rule *r = &f->rule[i];

	if (counts(f, r, bytes, now_ns) && !*acts) {
		*acts = r;
		*n = r->n;
	}
}

struct fault_rule *faults_packet(struct faults *f, const struct fault_packet *p,
				 uint64_t now_ns, uint64_t *n)
{
	const uint32_t classes = classes_of(p);
	struct fault_rule *acts = NULL;

	for (size_t i = 0; i < f->nrules; i++)
		if (selects(f, &f->rule[i], p, classes))
			consider(f, i, p->bytes, now_ns, &acts, n);
	return acts;
}

void faults_unpacket(struct faults *f, const struct fault_packet *p)
{
	const uint32_t classes = classes_of(p);

	for (size_t i = 0; i < f->nrules; i++) {
		struct fault_rule *r = &f->rule[i];

		if (!selects(f, r, p, classes) || !r->n)
			continue;
		r->n--;
		r->bytes -= p->bytes < r->bytes ? p->bytes : r->bytes;
		/* The window may have opened with it. */
		if (r->inside && !--r->k)
			r->open_ns = 0;
		r->inside = r->k;
	}
}

struct fault_rule *faults_recv(struct faults *f, const struct fault_packet *p,
			       uint64_t now_ns, uint64_t *n)
{
	struct fault_rule *acts = NULL;

	for (size_t i = 0; i < f->nrules; i++)
		if (f->rule[i].what.action == FAULT_RNR &&
		    is_between(f, &f->rule[i], p))
			consider(f, i, 0, now_ns, &acts, n);
	return acts;
}

struct fault_rule *faults_verb(struct faults *f, enum fault_verb v,
			       uint64_t now_ns, uint64_t *n)
{
	struct fault_rule *acts = NULL;

	for (size_t i = 0; i < f->nrules; i++)
		if (f->rule[i].what.action == FAULT_FAIL &&
		    f->rule[i].what.verb == v)
			consider(f, i, 0, now_ns, &acts, n);
	return acts;
}
