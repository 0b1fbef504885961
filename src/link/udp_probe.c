/*
 * udp_probe.c - whether an address leads to another network namespace of this
 * host
 *
 * Containers that share the registry's directory may reach each other by shared
 * memory, but two networks may use the same address, and a QPN that the registry
 * knows may be of another host as well. So who is about to connect sends a packet
 * to port 4791 of the address first, on the way that all other packets would
 * take. It carries a number that the registry has of this process alone
 * (registry_ask()). Whoever receives it there, with both addresses as they were
 * when it was sent, says so in the registry. Where nobody does, packets go by
 * the wire.
 *
 * The packet has an opcode of those for manufacturers' use: adapters, and other
 * hosts, drop it.
 */
#include "udp_internal.h"

#include "base/bytes.h"
#include "base/sys.h"
#include "os/config.h"

#include <string.h>

#define PROBE_OPCODE 0xfe
#define PROBE_WORD 0x73686361u /* "shca" */
#define PROBE_LEN (ROCE_BTH_LEN + 52)
#define KEEP_NS 1000000000u /* what was found holds for so long */
#define FIRST_NS 1000000u /* it is sent again after that, and twice that, ... */
#define LIMIT_NS 100000000u /* and given up after that */
#define NAP_NS 20000u

static void put_probe(uint8_t p[PROBE_LEN], const struct roce_path *path,
		      uint32_t qpn, const struct registry_ask *ask)
{
	uint8_t *q = p + ROCE_BTH_LEN;

	memset(p, 0, PROBE_LEN);
	p[0] = PROBE_OPCODE;
	put_be16(p + 2, 0xffff); /* P_Key */
	put_be32(p + 4, qpn & 0xffffff);
	put_be32(q, PROBE_WORD);
	put_be32(q + 4, ask->slot);
	put_be32(q + 8, ask->number);
	put_be64(q + 12, ask->nonce);
	memcpy(q + 20, path->sgid.raw, 16);
	memcpy(q + 36, path->dgid.raw, 16);
}

bool probe_take(struct udp *u, const struct packet *k)
{
	const uint8_t *q = k->p + ROCE_BTH_LEN;
	struct registry_ask ask;

	if (k->len != PROBE_LEN + ROCE_ICRC_LEN || k->p[0] != PROBE_OPCODE ||
	    get_be32(q) != PROBE_WORD)
		return false;
	ask.slot = get_be32(q + 4);
	ask.number = get_be32(q + 8);
	ask.nonce = get_be64(q + 12);
	/* Translated on the way, what comes here is not what was sent. */
	if (u->registry && !memcmp(q + 20, k->src.raw, 16) &&
	    !memcmp(q + 36, k->dst.raw, 16))
		registry_asked(u->registry, &ask);
	return true;
}

/* Sends it until it is answered: where it has arrived, or 0. */
static uint32_t ask_way(struct udp *u, const struct roce_path *path,
			uint32_t qpn)
{
	const uint64_t begin = sys_now_ns();
	uint64_t wait = 0, now = begin;
	uint8_t packet[PROBE_LEN];
	struct registry_ask ask;
	uint32_t net = 0;

	if (!registry_ask(u->registry, &ask))
		return 0;
	put_probe(packet, path, qpn, &ask);
	while (!net && now - begin < LIMIT_NS) {
		if (now - begin >= wait) {
			tx_probe(u, path, packet, sizeof(packet));
			wait = wait ? 2 * wait : FIRST_NS;
		}
		sys_sleep(NAP_NS);
		net = registry_answer(u->registry, &ask);
		now = sys_now_ns();
	}
	registry_ask_end(u->registry);
	return net;
}

/* What was found a moment ago, or a place for what will be. */
static struct proof *find_proof(struct udp *u, const struct roce_path *path,
				uint64_t now, bool *known)
{
	struct proof *oldest = &u->proof[0];

	*known = true;
	for (size_t i = 0; i < UDP_PROOFS; i++) {
		struct proof *p = &u->proof[i];

		if (p->until_ns > now && gid_equal(&p->dgid, &path->dgid) &&
		    gid_equal(&p->sgid, &path->sgid))
			return p;
		if (p->until_ns < oldest->until_ns)
			oldest = p;
	}
	*known = false;
	return oldest;
}

uint32_t udp_prove(struct udp *u, const struct roce_path *path, uint32_t qpn)
{
	struct proof *p;
	uint32_t net;
	bool known;

	if (!u->registry || u->cfg.wire || path->local ||
	    roce_gid_is_multicast(&path->dgid) ||
	    gid_is_link_local(&path->dgid) ||
	    !registry_is_elsewhere(u->registry, qpn, &path->dgid))
		return 0;
	pthread_mutex_lock(&u->probe_lock);
	p = find_proof(u, path, sys_now_ns(), &known);
	if (known && p->net && qpn &&
	    registry_route_in(u->registry, p->net, qpn, &path->dgid) < 0)
		known = false; /* another namespace has the address by now */
	if (!known) {
		p->sgid = path->sgid;
		p->dgid = path->dgid;
		p->net = ask_way(u, path, qpn);
		p->until_ns = sys_now_ns() + KEEP_NS;
	}
	net = p->net;
	pthread_mutex_unlock(&u->probe_lock);
	return net;
}
