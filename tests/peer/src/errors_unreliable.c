/*
 * errors_unreliable.c - scenarios of UC and UD messages that nobody receives
 */
#include "scenario.h"

/* A UC message that does not fit is dropped; what follows is not harmed. */
void err_uc_short_recv(void)
{
	struct done d;

	pair(IBV_QPT_UC);
	at(B, "guard %x 1000", AT_B);
	receive(B, AT_B, 16, 0);
	post(.op = IBV_WR_SEND, .len = 3 * opt_mtu);
	expect_sent(A, IBV_WR_SEND);
	if (poll_wc(B, &d, 500)) {
		if (d.status == IBV_WC_SUCCESS)
			fail("responder: a send that is too long succeeds");
		if (!side[B].rxe)
			fail("responder: a send that is too long is not "
			     "dropped but ends with \"%s\"",
			     ibv_wc_status_str(d.status));
		remark("rxe as responder: the receive completes as \"%s\" "
		       "where UC drops the message, as softhca does",
		       ibv_wc_status_str(d.status));
	}
	expect_word("after the receive buffer", at(B, "get %x", AT_B + 16).v[0],
		    0xeeeeeeeeeeeeeeee);
	pair(IBV_QPT_UC);
	receive(B, AT_B, 64, 0);
	post(.op = IBV_WR_SEND, .len = 64);
	expect_sent(A, IBV_WR_SEND);
	expect_received(B, IBV_WR_SEND, 64, 0);
}

void err_uc_rkey(void)
{
	pair(IBV_QPT_UC);
	seed++;
	at(B, "fill %x 2000 %lx", AT_B, seed);
	post(.op = IBV_WR_RDMA_WRITE, .len = 64, .rkey = side[B].rkey ^ 0x5500);
	expect_sent(A, IBV_WR_RDMA_WRITE);
	usleep(200000);
	expect_data(B, AT_B, 0x2000, false);
}

/* Without a receive a message is dropped (9.8.2.2, 9.8.3); the next is not. */
static void dropped(enum ibv_qp_type type, uint64_t len)
{
	uint64_t ah = 0, grh = type == IBV_QPT_UD ? 40 : 0;
	struct done d;

	pair(type);
	if (type == IBV_QPT_UD)
		ah = make_ah(A);
	for (uint64_t i = 0; i < 3; i++) {
		post(.op = IBV_WR_SEND_WITH_IMM, .len = len, .imm = 2 * i,
		     .ah = ah);
		expect_sent(A, IBV_WR_SEND_WITH_IMM);
		if (poll_wc(B, &d, 100))
			fail("responder: a completion without a receive");
		seed++;
		at(A, "fill %x %lx %lx", AT_A, len, seed);
		receive(B, AT_B, len + grh, 0);
		post(.op = IBV_WR_SEND_WITH_IMM, .len = len, .imm = 2 * i + 1,
		     .ah = ah);
		expect_sent(A, IBV_WR_SEND_WITH_IMM);
		expect_received(B, IBV_WR_SEND_WITH_IMM, len + grh, 2 * i + 1);
		expect_data(B, AT_B + grh, len, false);
	}
}

void err_uc_no_recv(void)
{
	dropped(IBV_QPT_UC, 64);
	dropped(IBV_QPT_UC, 3 * opt_mtu);
}

void err_ud_no_recv(void)
{
	dropped(IBV_QPT_UD, 64);
}

/* Nobody has that QP number, and nothing reports that. */
void err_uc_unknown_qp(void)
{
	struct done d;

	make(IBV_QPT_UC);
	join(A, qpi[A], qpn[B] ^ 0x000800, conf.psn[A], conf.psn[B]);
	join(B, qpi[B], qpn[A], conf.psn[B], conf.psn[A]);
	receive(B, AT_B, 5000, 0);
	post(.op = IBV_WR_SEND, .len = 5000);
	expect_sent(A, IBV_WR_SEND);
	if (poll_wc(B, &d, 200) || poll_wc(A, &d, 0))
		fail("a completion: \"%s\"", ibv_wc_status_str(d.status));
	if (at(A, "state %lx", qpi[A]).v[0] != IBV_QPS_RTS)
		fail("requester: QP not in RTS any more");
	pair_again(IBV_QPT_UC);
	one_message(IBV_WR_SEND, 5000, 0, 0);
}

/* A datagram with the wrong Q_Key or for nobody disappears. */
void err_ud(void)
{
	struct done d;
	uint64_t ah;

	pair(IBV_QPT_UD);
	ah = make_ah(A);
	receive(B, AT_B, 8192, 0);
	post(.op = IBV_WR_SEND, .len = 64, .ah = ah, .qkey = QKEY + 1);
	expect_sent(A, IBV_WR_SEND);
	qpn[B] ^= 0x000800;
	post(.op = IBV_WR_SEND, .len = 64, .ah = ah);
	expect_sent(A, IBV_WR_SEND);
	qpn[B] ^= 0x000800;
	if (poll_wc(B, &d, 300))
		fail("responder: took a datagram that was not for it");
	post(.op = IBV_WR_SEND_WITH_IMM, .len = 64, .ah = ah, .imm = 77);
	expect_sent(A, IBV_WR_SEND);
	expect_received(B, IBV_WR_SEND_WITH_IMM, 64 + 40, 77);
}

/* A datagram that does not fit is dropped, and the receive waits on. */
void err_ud_short_recv(void)
{
	struct done d;
	uint64_t ah;

	pair(IBV_QPT_UD);
	ah = make_ah(A);
	at(B, "guard %x 1000", AT_B);
	receive(B, AT_B, 64, 0);
	post(.op = IBV_WR_SEND, .len = 100, .ah = ah);
	expect_sent(A, IBV_WR_SEND);
	if (poll_wc(B, &d, 500)) {
		if (!side[B].rxe || side[B].newer ||
		    d.status != IBV_WC_LOC_QP_OP_ERR)
			fail("responder: the receive completes as \"%s\"",
			     ibv_wc_status_str(d.status));
		remark("rxe as responder: the receive completes as \"%s\" "
		       "where UD drops the datagram, as softhca does",
		       ibv_wc_status_str(IBV_WC_LOC_QP_OP_ERR));
	}
	expect_word("after the receive buffer", at(B, "get %x", AT_B + 64).v[0],
		    0xeeeeeeeeeeeeeeee);
	if (side[B].rxe)
		return;
	post(.op = IBV_WR_SEND, .len = 24, .ah = ah);
	expect_sent(A, IBV_WR_SEND);
	expect_received(B, IBV_WR_SEND, 64, 0);
}
