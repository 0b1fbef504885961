/*
 * registry_net.c - network namespaces, and whether an address leads to one
 *
 * A directory that the user has named may be shared by containers, each with a
 * network of its own. They have one registry, and each network namespace a
 * number in it. What is known of one by its addresses (receivers, listeners,
 * private ports) is for processes of the same namespace alone: two networks may
 * use one address.
 *
 * So before a process of another namespace is reached by what is in the
 * registry, a packet proves that the address leads there (link/udp_probe.c). It
 * carries a random number that stands in the slot of who asks. Who finds it
 * there is in this registry, and writes its namespace beside it.
 */
#include "registry_internal.h"

#include "base/sys.h"

uint32_t registry_net_of(struct regfile *f, uint64_t netns)
{
	struct shared *m = f->m;
	uint32_t net;

	/* Without /proc nobody knows who is in which: each is alone. */
	for (unsigned i = 0; i < REGISTRY_SLOTS && (netns || !f->shared); i++) {
		net = LOAD(&m->slot[i].net);
		if (LOAD(&m->slot[i].used) &&
		    LOAD(&m->slot[i].netns) == netns && net)
			return net;
	}
	net = LOAD(&m->head.nets) + 1;
	net += !net;
	STORE(&m->head.nets, net);
	return net;
}

bool registry_is_shared(const struct registry *r)
{
	return r->file->shared;
}

bool registry_ask(struct registry *r, struct registry_ask *ask)
{
	struct slot *s = &r->file->m->slot[r->slot];

	if (!sys_random(&ask->nonce, sizeof(ask->nonce)) || !ask->nonce)
		return false;
	ask->slot = r->slot;
	ask->number = LOAD(&s->ask) + 1;
	STORE(&s->nonce, 0);
	STORE(&s->ask, ask->number);
	STORE(&s->answer, 0);
	STORE(&s->nonce, ask->nonce);
	return true;
}

uint32_t registry_answer(const struct registry *r,
			 const struct registry_ask *ask)
{
	const uint64_t answer = LOAD(&r->file->m->slot[r->slot].answer);

	return answer >> 32 == ask->number ? (uint32_t)answer : 0;
}

void registry_ask_end(struct registry *r)
{
	STORE(&r->file->m->slot[r->slot].nonce, 0);
}

void registry_asked(struct registry *r, const struct registry_ask *ask)
{
	struct slot *s;

	if (ask->slot >= REGISTRY_SLOTS || !ask->nonce)
		return;
	s = &r->file->m->slot[ask->slot];
	if (LOAD(&s->nonce) == ask->nonce && LOAD(&s->ask) == ask->number)
		STORE(&s->answer, (uint64_t)ask->number << 32 | r->net);
}

size_t registry_nets(const struct registry *r)
{
	const struct shared *m = r->file->m;
	size_t n = 0;

	for (unsigned i = 0; i < REGISTRY_SLOTS; i++) {
		const uint32_t net = LOAD(&m->slot[i].net);
		unsigned k = 0;

		if (!LOAD(&m->slot[i].used))
			continue;
		while (k < i &&
		       !(LOAD(&m->slot[k].used) && slot_is_in(m, k, net)))
			k++;
		n += k == i;
	}
	return n;
}
