/*
 * storm.c - sends hostile datagrams to the RoCE port (or another one) of an
 * address
 *
 *   storm [-n COUNT] [-X SEED] [-P PER_SECOND] [-p PORT] [-S SOURCE]
 *         -m random|mutated|sound|unknown [-v QPN:PSN:RKEY:ADDR]... ADDRESS
 *
 * random: bytes of any length. mutated: packets of every opcode, aimed at the
 * victims (live queue pairs whose fate does not matter) and at QPNs near them,
 * with one to four changes: bits flipped, bytes set, cut off or appended. Half
 * of them get a correct ICRC afterwards, so that more than the CRC is put to
 * the test. sound: the same packets, to the victims alone, without any change
 * and with a correct ICRC: what the victims' peers might send, so it matters
 * that SOURCE is none of them. unknown: the same to any QPNs but the victims'.
 *
 * SOURCE is ADDRESS itself by default, as a peer on this host would use.
 */
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT 4791
#define MAX_PKT 4300u

struct victim {
	uint32_t qpn, psn, rkey;
	uint64_t addr;
};

static struct victim victims[64];
static unsigned nvictims;
static struct sockaddr_in6 from6, to6;
static struct sockaddr_in from4, to4;
static bool v6;
static enum mode { RANDOM, MUTATED, SOUND, UNKNOWN, MODES } mode;
static const char *const mode_names[MODES] = { "random", "mutated", "sound",
					       "unknown" };

static void put32(uint8_t *p, uint32_t v)
{
	v = htonl(v);
	memcpy(p, &v, 4);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

static uint32_t crc32_of(uint32_t crc, const uint8_t *p, size_t n)
{
	static uint32_t table[256];

	if (!table[1])
		for (uint32_t i = 0; i < 256; i++) {
			table[i] = i;
			for (int k = 0; k < 8; k++)
				table[i] = table[i] >> 1 ^
					   (table[i] & 1 ? 0xedb88320u : 0);
		}
	while (n--)
		crc = crc >> 8 ^ table[(crc ^ *p++) & 0xff];
	return crc;
}

/* IBA annex A17: the headers before the BTH count as they leave here, with
 * what a router may change set to ones. */
static void set_icrc(uint8_t *p, size_t len)
{
	uint8_t h[8 + 40 + 8 + 12];
	size_t ip = v6 ? 40 : 20, n = 8 + ip + 8;
	uint16_t total = htons((uint16_t)((v6 ? 0u : 20u) + 8u + len));
	uint16_t udp_len = htons((uint16_t)(8 + len));
	uint16_t s = v6 ? from6.sin6_port : from4.sin_port, d = htons(PORT);
	uint32_t crc;

	if (len < 16)
		return;
	memset(h, 0xff, sizeof(h));
	if (v6) {
		h[8] = 0x6f;
		memcpy(h + 8 + 4, &udp_len, 2);
		h[8 + 6] = IPPROTO_UDP;
		memcpy(h + 8 + 8, &from6.sin6_addr, 16);
		memcpy(h + 8 + 24, &to6.sin6_addr, 16);
	} else {
		h[8] = 0x45;
		memcpy(h + 8 + 2, &total, 2);
		memcpy(h + 8 + 4, "\0\0\x40\0", 4); /* id 0, do not fragment */
		h[8 + 9] = IPPROTO_UDP;
		memcpy(h + 8 + 12, &from4.sin_addr, 4);
		memcpy(h + 8 + 16, &to4.sin_addr, 4);
	}
	memcpy(h + 8 + ip, &s, 2);
	memcpy(h + 8 + ip + 2, &d, 2);
	memcpy(h + 8 + ip + 4, &udp_len, 2);
	memcpy(h + n, p, 12);
	h[n + 4] = 0xff;
	crc = crc32_of(~0u, h, n + 12);
	crc = ~crc32_of(crc, p + 12, len - 16);
	for (int i = 0; i < 4; i++)
		p[len - 4 + (size_t)i] = (uint8_t)(crc >> (8 * i));
}

static bool is_victim(uint32_t qpn)
{
	for (unsigned i = 0; i < nvictims; i++)
		if (victims[i].qpn == qpn)
			return true;
	return false;
}

/* Whom a packet is for whose victim has this QPN. */
static uint32_t destination(uint32_t qpn)
{
	switch (mode) {
	case SOUND:
		return qpn;
	case UNKNOWN:
		do
			qpn = rnd(1 << 24);
		while (is_victim(qpn));
		return qpn;
	case RANDOM:
	case MUTATED:
	case MODES:
		break;
	}
	return rnd(8) ? qpn : rnd(4) ? qpn + rnd(64) : 1;
}

/* A well-formed packet of a random opcode for a random victim. */
static size_t valid(uint8_t *p)
{
	static const uint8_t ud_ops[] = { 0x64, 0x65, 0x81, 0xc4, 0x0a };
	struct victim none = { .qpn = rnd(0xffffff) };
	const struct victim *v = nvictims ? &victims[rnd(nvictims)] : &none;
	uint32_t payload = rnd(4) ? rnd(128) : rnd(1024);
	uint8_t op = (uint8_t)(rnd(4) ? rnd(0x18) :
			       rnd(2) ? 0x20 + rnd(12) :
					ud_ops[rnd(sizeof(ud_ops))]);
	uint8_t base = op & 0x1f;
	uint32_t psn = v->psn + rnd(8) - 3;
	size_t n = 12;

	memset(p, 0, 128);
	p[0] = op;
	p[1] = (uint8_t)(0x40 | ((4 - (payload & 3)) & 3) << 4);
	p[2] = p[3] = 0xff;
	put32(p + 4, destination(v->qpn));
	put32(p + 8, (psn & 0xffffff) | (rnd(2) ? 0x80000000u : 0));
	if (op >= 0x64) {
		put32(p + n, 0x11111111); /* DETH */
		put32(p + n + 4, v->qpn);
		n += 8;
	} else if (base == 0x06 || base == 0x0a || base == 0x0b ||
		   base == 0x0c) {
		put64(p + n, v->addr); /* RETH */
		put32(p + n + 8, v->rkey);
		put32(p + n + 12, payload);
		n += 16;
	} else if (base == 0x13 || base == 0x14) {
		put64(p + n, v->addr & ~7ull); /* AtomicETH */
		put32(p + n + 8, v->rkey);
		put64(p + n + 20, 1);
		n += 28;
		payload = 0;
	} else if (base >= 0x0d && base <= 0x12) {
		put32(p + n, rnd(1u << 31) << 1); /* AETH */
		n += 4;
	}
	for (uint32_t i = 0; i < payload; i++)
		p[n++] = (uint8_t)rnd(256);
	while (n & 3)
		p[n++] = 0;
	return n + 4;
}

static size_t mutate(uint8_t *p, size_t len)
{
	for (uint32_t k = 1 + rnd(4); k; k--) {
		/* Headers are where it hurts. */
		size_t at = rnd(3) ? rnd(len < 44 ? (uint32_t)len : 44) :
				     rnd((uint32_t)len);

		switch (rnd(5)) {
		case 0:
		case 1:
			p[at] ^= (uint8_t)(1u << rnd(8));
			break;
		case 2:
			p[at] = (uint8_t)(rnd(2) ? 0xff : 0);
			break;
		case 3:
			len -= rnd(len > 8 ? (uint32_t)len - 4 : 1) / 4;
			break;
		case 4:
			for (uint32_t more = rnd(64);
			     more && len < MAX_PKT - 64; more--)
				p[len++] = (uint8_t)rnd(256);
			break;
		}
		if (len < 4)
			break;
	}
	return len;
}

static size_t make(uint8_t *p)
{
	size_t len = 0;

	switch (mode) {
	case RANDOM:
		len = rnd(8) ? rnd(128) : rnd(1500);
		for (size_t k = 0; k < len; k++)
			p[k] = (uint8_t)rnd(256);
		break;
	case MUTATED:
		len = mutate(p, valid(p));
		if (rnd(2))
			set_icrc(p, len);
		break;
	case SOUND:
	case UNKNOWN:
		len = valid(p);
		set_icrc(p, len);
		break;
	case MODES:
		break;
	}
	return len;
}

static void read_address(const char *text, struct sockaddr_in *sa4,
			 struct sockaddr_in6 *sa6)
{
	*sa4 = (struct sockaddr_in){ .sin_family = AF_INET };
	*sa6 = (struct sockaddr_in6){ .sin6_family = AF_INET6 };
	if (inet_pton(v6 ? AF_INET6 : AF_INET, text,
		      v6 ? (void *)&sa6->sin6_addr : (void *)&sa4->sin_addr) !=
	    1)
		die(EXIT_SETUP, "not an address: %s", text);
}

/* A socket at the source, whose port is known from then on. */
static int open_source(void)
{
	struct sockaddr *sa = v6 ? (void *)&from6 : (void *)&from4;
	socklen_t len = v6 ? sizeof(from6) : sizeof(from4);
	int fd, on = IP_PMTUDISC_DO;

	fd = socket(sa->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, sa, len) || getsockname(fd, sa, &len))
		die(EXIT_SETUP, "socket: %m");
	setsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP,
		   v6 ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER, &on, sizeof(on));
	return fd;
}

int main(int argc, char **argv)
{
	unsigned n = 100000, per_second = 50000, sent = 0;
	const char *source = NULL;
	uint16_t port = PORT;
	uint8_t pkt[MAX_PKT];
	uint64_t start;
	int c, fd;

	while ((c = getopt(argc, argv, "n:X:P:p:S:m:v:")) != -1) {
		struct victim *v = &victims[nvictims];

		if (c == 'n')
			n = (unsigned)atol(optarg);
		else if (c == 'X')
			rng = strtoull(optarg, NULL, 0) * 2 + 1;
		else if (c == 'P')
			per_second = (unsigned)atol(optarg);
		else if (c == 'p')
			port = (uint16_t)atoi(optarg);
		else if (c == 'S')
			source = optarg;
		else if (c == 'm')
			for (mode = 0; mode < MODES &&
				       strcmp(optarg, mode_names[mode]) != 0;)
				mode++;
		else if (c == 'v' && nvictims < 64 &&
			 sscanf(optarg, "%u:%u:%u:%" SCNu64, &v->qpn, &v->psn,
				&v->rkey, &v->addr) == 4)
			nvictims++;
		else
			die(EXIT_SETUP, "see the head of storm.c");
	}
	if (optind + 1 != argc || !per_second || mode == MODES)
		die(EXIT_SETUP, "see the head of storm.c");
	v6 = strchr(argv[optind], ':') != NULL;
	read_address(argv[optind], &to4, &to6);
	read_address(source ? source : argv[optind], &from4, &from6);
	to4.sin_port = to6.sin6_port = htons(port);
	fd = open_source();

	start = now_ns();
	for (unsigned i = 0; i < n; i++) {
		size_t len = make(pkt);

		/* Nobody listening is an error here, and no concern. */
		sent += sendto(fd, pkt, len, 0,
			       v6 ? (void *)&to6 : (void *)&to4,
			       v6 ? sizeof(to6) : sizeof(to4)) >= 0;
		if (i % 64 == 63) {
			uint64_t due = start + (uint64_t)(i + 1) * 1000000000u /
						       per_second;
			int64_t early = (int64_t)(due - now_ns());
			struct timespec t = { .tv_nsec = early };

			if (early > 0 && early < 1000000000)
				nanosleep(&t, NULL);
		}
	}
	printf("storm: %u %s datagrams to %s, %u sent, %.2f s\n", n,
	       mode_names[mode], argv[optind], sent,
	       (double)(now_ns() - start) / 1e9);
	return sent < n / 2 ? EXIT_SETUP : 0;
}
