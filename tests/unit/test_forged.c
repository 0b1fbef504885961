/*
 * test_forged.c - packets of a stranger on this host, who knows all numbers
 *
 * Another user may send from any UDP port with this host's addresses. A queue
 * pair whose peer is a process of the registry takes packets from that one's
 * ports alone. By the wire (SOFTHCA_WIRE=1), where the numbers can be overheard.
 */
#include "pair.h"

#include "wire/icrc.h"
#include "wire/roce.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

static void to_address(struct sockaddr_storage *ss, socklen_t *len)
{
	static const uint8_t v4[12] = { [10] = 0xff, 0xff };
	struct sockaddr_in *in = (void *)ss;
	struct sockaddr_in6 *in6 = (void *)ss;

	memset(ss, 0, sizeof(*ss));
	if (!memcmp(gid0.raw, v4, 12)) {
		in->sin_family = AF_INET;
		memcpy(&in->sin_addr, gid0.raw + 12, 4);
		*len = sizeof(*in);
	} else {
		in6->sin6_family = AF_INET6;
		memcpy(&in6->sin6_addr, gid0.raw, 16);
		*len = sizeof(*in6);
	}
}

/* One message of 8 bytes to a queue pair, as its peer would send it. */
static void forge(uint32_t qpn, uint32_t psn, const char text[8])
{
	const struct roce_hdr h = { .opcode = ROCE_SEND_ONLY,
				    .mig_req = true,
				    .pkey = 0xffff,
				    .dest_qpn = qpn,
				    .psn = psn,
				    .ack_req = true };
	const int df = IP_PMTUDISC_DO; /* so that the identification is 0 */
	struct sockaddr_storage ss;
	uint8_t p[64];
	socklen_t len;
	uint32_t crc;
	size_t n;
	int fd;

	to_address(&ss, &len);
	fd = socket(ss.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_true(fd >= 0);
	if (ss.ss_family == AF_INET)
		assert_int_equal(setsockopt(fd, IPPROTO_IP, IP_MTU_DISCOVER,
					    &df, sizeof(df)),
				 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&ss, len), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&ss, &len), 0);
	n = roce_encode(&h, p);
	memcpy(p + n, text, 8);
	crc = icrc_begin(&gid0, &gid0,
			 ntohs(((struct sockaddr_in *)(void *)&ss)->sin_port),
			 ROCE_UDP_PORT, n + 8 + ROCE_ICRC_LEN, 0);
	crc = icrc_update(icrc_bth(crc, p, n), p + n, 8);
	icrc_put(p + n + 8, crc);
	((struct sockaddr_in *)(void *)&ss)->sin_port = htons(ROCE_UDP_PORT);
	n += 8 + ROCE_ICRC_LEN;
	assert_int_equal(sendto(fd, p, n, 0, (struct sockaddr *)&ss, len), n);
	close(fd);
}

static void strangers_are_not_heard(void **state)
{
	struct end a, b;

	(void)state;
	pair_init(&a, &b, IBV_QPT_RC);
	for (uint32_t i = 0; i < 32; i++) {
		struct ibv_send_wr wr = { .wr_id = i, .opcode = IBV_WR_SEND };
		struct ibv_wc wc;

		post_recv(&b, i, 0, 64);
		/* It is there before the true one. */
		forge(b.qp->qp_num, (0xfffffe + i) & 0xffffff, "FORGED..");
		memcpy(a.buf, "the peer", 8);
		assert_int_equal(try_send(&a, &wr, 0, 8), 0);
		wc = wait_wc(a.cq);
		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		wc = wait_wc(b.cq);
		assert_int_equal(wc.status, IBV_WC_SUCCESS);
		assert_memory_equal(b.buf, "the peer", 8);
	}
	end_fini(&a);
	end_fini(&b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(strangers_are_not_heard),
	};

	setenv("SOFTHCA_WIRE", "1", 1);
	return cmocka_run_group_tests(tests, setup, teardown);
}
