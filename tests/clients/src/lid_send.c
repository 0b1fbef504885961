/*
 * lid_send.c - SEND over a reliable connection that is made of two LIDs
 *
 *   lid_send PORT [HOST]
 *
 * The client sends a text, the server answers, both print what they got.
 */
#include "lids.h"

int main(int argc, char **argv)
{
	const char *text =
		argc > 2 ? "hello from the client" : "hello from the server";
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
	struct lid_end e;
	struct lid_peer p;
	int fd = lid_socket(argc, argv);

	lid_end_open(&e, IBV_QPT_RC);
	lid_recv(&e);
	p = lid_exchange(fd, &e);
	lid_connect(&e, &p);
	/* Nobody sends before both can receive. */
	ctrl_put(fd, "ready");
	if (!ctrl_get(fd, 20000))
		die(EXIT_SETUP, "the other end has gone");
	strcpy((char *)e.buf + SIZE, text);
	if (argc > 2) {
		lid_post(&e, &wr, (uint32_t)strlen(text) + 1);
		lid_wait(&e, "send");
		lid_wait(&e, "receive");
	} else {
		lid_wait(&e, "receive");
		lid_post(&e, &wr, (uint32_t)strlen(text) + 1);
		lid_wait(&e, "send");
	}
	printf("LID %u, from LID %u: %s\n", e.port.lid, p.lid,
	       (const char *)e.buf);
	lid_end_close(&e);
	return 0;
}
