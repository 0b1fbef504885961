/*
 * move.c - both ends: creation, the key, whose part a message is for
 */
#include "move_internal.h"

#include <errno.h>
#include <stdlib.h>

int move_create(struct move **out, const struct move_config *cfg)
{
	struct move *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->cfg = *cfg;
	*out = m;
	return 0;
}

void move_destroy(struct move *m)
{
	if (!m)
		return;
	leave_forget(m);
	free(m);
}

void move_key(const struct move *m, uint8_t key[SIPHASH_KEY],
	      const uint8_t nonce[MOVE_NONCE], const uint8_t peers[MOVE_NONCE],
	      uint64_t process)
{
	static const uint8_t none[SIPHASH_KEY];
	uint8_t text[2 * MOVE_NONCE + 8];

	memcpy(text, nonce, MOVE_NONCE);
	memcpy(text + MOVE_NONCE, peers, MOVE_NONCE);
	put_be64(text + 2 * (size_t)MOVE_NONCE, process);
	siphash128(key, m->cfg.keyed ? m->cfg.shared : none, text,
		   sizeof(text));
}

void move_rx(struct move *m, const union ibv_gid *sgid,
	     const union ibv_gid *dgid, uint32_t scope, const uint8_t *mad,
	     size_t len, uint64_t now_ns)
{
	struct move_message msg;
	const struct move_in in = { &msg, mad, sgid, dgid, scope, now_ns };

	if (move_decode(&msg, mad, len))
		return;
	switch (msg.kind) {
	case MOVE_HELLO:
	case MOVE_PAUSE:
	case MOVE_RESUME:
		stay_rx(m, &in);
		break;
	default:
		leave_rx(m, &in);
	}
}
