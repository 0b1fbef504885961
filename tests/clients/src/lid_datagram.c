/*
 * lid_datagram.c - datagrams, answered by what their completion says
 *
 *   lid_datagram PORT [HOST]
 *
 * The client knows the server's LID and QP number. The server knows nothing of
 * the client: it makes its address handle of the completion.
 */
#include "lids.h"

#define GRH 40
#define QKEY 0x11111111

static void to_rts(struct lid_end *e)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR };

	if (ibv_modify_qp(e->qp, &attr, IBV_QP_STATE))
		die(EXIT_SETUP, "RTR: %m");
	attr.qp_state = IBV_QPS_RTS;
	if (ibv_modify_qp(e->qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN))
		die(EXIT_SETUP, "RTS: %m");
}

static void datagram(struct lid_end *e, struct ibv_ah *ah, uint32_t qpn,
		     const char *text)
{
	struct ibv_send_wr wr = {
		.opcode = IBV_WR_SEND,
		.wr.ud = { .ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY }
	};

	if (!ah)
		die(EXIT_SETUP, "no address handle: %m");
	strcpy((char *)e->buf + SIZE, text);
	lid_post(e, &wr, (uint32_t)strlen(text) + 1);
}

int main(int argc, char **argv)
{
	struct ibv_ah *ah = NULL;
	struct ibv_wc wc;
	struct lid_end e;
	struct lid_peer p;
	int fd = lid_socket(argc, argv);

	lid_end_open(&e, IBV_QPT_UD);
	to_rts(&e);
	lid_recv(&e);
	p = lid_exchange(fd, &e);
	if (argc > 2) {
		struct ibv_ah_attr to = { .dlid = (uint16_t)p.lid,
					  .port_num = 1 };

		ah = ibv_create_ah(e.pd, &to);
		datagram(&e, ah, p.qpn, "who are you?");
		lid_wait(&e, "send");
		wc = lid_wait(&e, "receive");
	} else {
		wc = lid_wait(&e, "receive");
		ah = ibv_create_ah_from_wc(e.pd, &wc, (struct ibv_grh *)e.buf,
					   1);
		datagram(&e, ah, wc.src_qp, "the server");
		lid_wait(&e, "send");
	}
	if (wc.slid != p.lid || wc.src_qp != p.qpn || wc.wc_flags & IBV_WC_GRH)
		die(EXIT_DATA, "from LID %u QP 0x%x, flags %u", wc.slid,
		    wc.src_qp, wc.wc_flags);
	printf("LID %u, from LID %u QP 0x%06x: %s\n", e.port.lid, wc.slid,
	       wc.src_qp, (const char *)e.buf + GRH);
	/* The answer may be on its way. */
	ctrl_put(fd, "done");
	ctrl_get(fd, 20000);
	ibv_destroy_ah(ah);
	lid_end_close(&e);
	return 0;
}
