/*
 * mutate.c - sends mutated copies of this machine's own RoCEv2 packets
 *
 *	mutate -i NIC -t TARGET [-n COUNT] [-s SEED] [-r RATE]
 *		[-q QPN:PSN:RKEY:VA]...
 *
 * Watches what leaves by the interface for the target while a transfer runs,
 * and sends changed copies of the latest of it to the same place.
 *
 * Whoever knows a connection's QPN and expected PSN and sends from its address
 * may break it; that is no bug. So what is changed depends on where the copy
 * goes:
 *   - with a bad ICRC, anything, to anyone: it must be dropped;
 *   - with a good ICRC, anything, to a QP number that is not in use or to one
 *     of the victims (-q), connections that may be broken but must not break
 *     anything else;
 *   - with a good ICRC to the transfer's own QPs: anything, but with a PSN far
 *     from what the receiver expects, mostly behind (a duplicate), sometimes
 *     ahead (a gap).
 * A quarter is changed in no other way, so that there is one reason to drop it
 * and no other. Prints how many of each it sent, and of them how many such.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROCE_PORT 4791
#define FRAME_MAX 9216u
#define SAMPLES 256u
#define VICTIMS_MAX 32u
#define BTH_LEN 12u
#define ICRC_LEN 4u

struct frame {
	uint32_t len; /* from the Ethernet header to the ICRC */
	uint32_t l3; /* length of the IP header */
	uint8_t b[FRAME_MAX];
};

static struct frame sample[SAMPLES];
static unsigned samples, next_sample;

static struct {
	uint32_t qpn, psn, rkey;
	uint64_t va;
} victim[VICTIMS_MAX];
static unsigned victims;

static uint64_t rng = 1;

static uint32_t rnd(uint32_t below)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)(rng >> 32) % below;
}

static void put16(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 8);
	p[1] = (uint8_t)v;
}

static void put24(uint8_t *p, uint32_t v)
{
	p[0] = (uint8_t)(v >> 16);
	put16(p + 1, v);
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, v >> 16);
	put16(p + 2, v);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)(v >> 32));
	put32(p + 4, (uint32_t)v);
}

static uint32_t get16(const uint8_t *p)
{
	return (uint32_t)(p[0] << 8 | p[1]);
}

static uint32_t get24(const uint8_t *p)
{
	return (uint32_t)p[0] << 16 | get16(p + 1);
}

static uint32_t crc_more(uint32_t crc, const uint8_t *p, size_t len)
{
	static uint32_t table[256];

	if (!table[1])
		for (uint32_t i = 0; i < 256; i++) {
			uint32_t c = i;

			for (int k = 0; k < 8; k++)
				c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1;
			table[i] = c;
		}
	while (len--)
		crc = table[(crc ^ *p++) & 0xff] ^ crc >> 8;
	return crc;
}

/* Annex A17.3.3: what routers may change counts as ones. */
static void write_icrc(struct frame *f)
{
	uint8_t head[8 + 40 + 8 + BTH_LEN], *ip = head + 8;
	uint8_t *udp = ip + f->l3, *bth = udp + 8;
	uint8_t *end = f->b + f->len - ICRC_LEN;
	size_t done = ETHER_HDR_LEN + f->l3 + 8 + BTH_LEN;
	uint32_t crc;

	memset(head, 0xff, 8);
	memcpy(ip, f->b + ETHER_HDR_LEN, f->l3 + 8 + BTH_LEN);
	if (f->l3 == 20) {
		ip[1] = ip[8] = ip[10] = ip[11] = 0xff;
	} else {
		ip[0] |= 0x0f;
		ip[1] = ip[2] = ip[3] = ip[7] = 0xff;
	}
	udp[6] = udp[7] = 0xff;
	bth[4] = 0xff;
	crc = crc_more(UINT32_MAX, head, 8 + f->l3 + 8 + BTH_LEN);
	crc = ~crc_more(crc, f->b + done, (size_t)(end - (f->b + done)));
	for (int i = 0; i < 4; i++)
		end[i] = (uint8_t)(crc >> 8 * i);
}

/* Lengths and checksums of IP and UDP as the frame's length is now. */
static void write_lengths(struct frame *f)
{
	uint8_t *ip = f->b + ETHER_HDR_LEN, *udp = ip + f->l3;
	uint32_t l4 = f->len - ETHER_HDR_LEN - f->l3, sum = 0;

	put16(udp + 4, l4);
	put16(udp + 6, 0); /* as rxe sends it */
	if (f->l3 == 40) {
		put16(ip + 4, l4);
		return;
	}
	put16(ip + 2, l4 + 20);
	put16(ip + 10, 0);
	for (int i = 0; i < 20; i += 2)
		sum += get16(ip + i);
	sum = (sum & 0xffff) + (sum >> 16);
	sum += sum >> 16;
	put16(ip + 10, ~sum & 0xffff);
}

/* Whether a frame is RoCEv2 to the target; fills in l3. */
static bool wanted(struct frame *f, int family, const uint8_t *target)
{
	const uint8_t *ip = f->b + ETHER_HDR_LEN;
	uint32_t type;

	if (f->len < ETHER_HDR_LEN + 20 + 8 + BTH_LEN + ICRC_LEN)
		return false;
	type = get16(f->b + 12);
	if (type == ETHERTYPE_IP && family == AF_INET) {
		if (ip[0] != 0x45 || ip[9] != IPPROTO_UDP ||
		    memcmp(ip + 16, target, 4))
			return false;
		f->l3 = 20;
	} else if (type == ETHERTYPE_IPV6 && family == AF_INET6) {
		if (f->len < ETHER_HDR_LEN + 40 + 8 + BTH_LEN + ICRC_LEN ||
		    ip[6] != IPPROTO_UDP || memcmp(ip + 24, target, 16))
			return false;
		f->l3 = 40;
	} else {
		return false;
	}
	return get16(ip + f->l3 + 2) == ROCE_PORT;
}

/* Takes what has left meanwhile. Frames that we sent are marked and not taken
 * again: copies of copies of copies drift into noise. */
static void watch(int fd, int family, const uint8_t *target, unsigned most)
{
	struct sockaddr_ll from;
	socklen_t from_len;

	while (most--) {
		struct frame *f = &sample[next_sample % SAMPLES];
		struct frame got;
		ssize_t n;

		from_len = sizeof(from);
		n = recvfrom(fd, got.b, sizeof(got.b), MSG_DONTWAIT,
			     (struct sockaddr *)&from, &from_len);
		if (n < 0)
			return;
		got.len = (uint32_t)n;
		if (from.sll_pkttype != PACKET_OUTGOING ||
		    !wanted(&got, family, target))
			continue;
		memcpy(f, &got, offsetof(struct frame, b) + got.len);
		next_sample++;
		if (samples < SAMPLES)
			samples++;
	}
}

/* Changes a field or two of BTH and extended headers, or the length. */
static void disturb(struct frame *f)
{
	uint8_t *bth = f->b + ETHER_HDR_LEN + f->l3 + 8;
	uint32_t fixed = ETHER_HDR_LEN + f->l3 + 8 + BTH_LEN + ICRC_LEN;
	uint32_t body = f->len - fixed;

	if (f->len < fixed) /* cut off already */
		return;
	switch (rnd(10)) {
	case 0: /* any opcode */
		bth[0] = (uint8_t)rnd(256);
		break;
	case 1: /* another opcode of the same service */
		bth[0] = (uint8_t)((bth[0] & 0xe0) | rnd(32));
		break;
	case 2: /* flags, pad count, version */
		bth[1] = (uint8_t)rnd(256);
		break;
	case 3: /* P_Key */
		put16(bth + 2, rnd(0x10000));
		break;
	case 4: /* shorter */
		if (body)
			f->len -= 1 + rnd(body);
		break;
	case 5: /* nothing but a part of the BTH */
		f->len = fixed - rnd(BTH_LEN + 1);
		break;
	case 6: { /* longer */
		uint32_t more = 1 + rnd(64);

		if (f->len + more < 4200) {
			memset(f->b + f->len - ICRC_LEN, (int)rnd(256),
			       more + ICRC_LEN);
			f->len += more;
		}
		break;
	}
	case 7: /* extended headers: addresses, keys, lengths, syndromes */
	case 8:
		for (uint32_t i = 0; i < 8 && body; i++)
			bth[BTH_LEN + rnd(body < 28 ? body : 28)] =
				(uint8_t)rnd(256);
		break;
	default: /* bits anywhere behind the IP header */
		for (uint32_t i = 0; i <= rnd(8); i++)
			bth[rnd(f->len - (uint32_t)(bth - f->b))] ^=
				(uint8_t)(1 << rnd(8));
		/* The destination port decides who gets it: leave it. */
	}
}

enum fate { CUT_OFF, BAD_ICRC, ELSEWHERE, QP1, VICTIM, BEHIND, AHEAD, FATES };
static const char *const fate_name[FATES] = {
	"cut off", "bad ICRC", "unused QP", "QP 1", "victim", "duplicate", "gap"
};

static bool in_use(uint32_t qpn)
{
	for (unsigned i = 0; i < samples; i++)
		if (qpn ==
		    get24(sample[i].b + ETHER_HDR_LEN + sample[i].l3 + 8 + 5))
			return true;
	for (unsigned i = 0; i < victims; i++)
		if (qpn == victim[i].qpn)
			return true;
	return false;
}

/* *whole: nothing else is wrong with it. */
static enum fate mutate(struct frame *f, bool *whole)
{
	uint8_t *bth = f->b + ETHER_HDR_LEN + f->l3 + 8;
	uint32_t live = get24(bth + 5), psn = get24(bth + 9);
	uint32_t dice = rnd(100);
	enum fate fate = dice < 30 ? BAD_ICRC :
			 dice < 45 ? ELSEWHERE :
			 dice < 75 ? VICTIM :
			 dice < 99 ? BEHIND :
				     AHEAD;
	bool short_bth;

	if (fate == VICTIM && !victims)
		fate = ELSEWHERE;
	*whole = rnd(4) == 0;
	if (!*whole)
		disturb(f);
	if (!*whole && rnd(3) == 0)
		disturb(f);
	short_bth = f->len < ETHER_HDR_LEN + f->l3 + 8 + BTH_LEN + ICRC_LEN;
	if (short_bth)
		fate = CUT_OFF;
	switch (fate) {
	case CUT_OFF:
	case BAD_ICRC:
	case QP1:
	case FATES:
		break;
	case ELSEWHERE: {
		static const uint32_t odd[] = { 0, 1, 2, 0xffffff, 0x800000 };
		uint32_t other = rnd(2) ? odd[rnd(5)] : rnd(1 << 24);

		if (in_use(other))
			other = 0;
		put24(bth + 5, other);
		if (other == 1)
			fate = QP1;
		break;
	}
	case VICTIM: {
		unsigned v = rnd(victims);

		put24(bth + 5, victim[v].qpn);
		/* where it expects, near it, or anywhere */
		put24(bth + 9, rnd(2) ? victim[v].psn :
			       rnd(2) ? victim[v].psn + rnd(64) - 32 :
					rnd(1 << 24));
		/* where RETH and AtomicETH have address and key */
		if (rnd(2) && f->len >= ETHER_HDR_LEN + f->l3 + 8 + 28 + 4) {
			put64(bth + 12, victim[v].va + (rnd(2) ? rnd(64) : 0));
			put32(bth + 20, victim[v].rkey);
		}
		break;
	}
	case BEHIND:
		put24(bth + 5, live);
		put24(bth + 9, psn - (1 << 16) - rnd(1 << 20));
		break;
	case AHEAD:
		put24(bth + 5, live);
		put24(bth + 9, psn + (1 << 16) + rnd(1 << 20));
		break;
	}
	write_lengths(f);
	if (!short_bth)
		write_icrc(f);
	if (fate == BAD_ICRC && !short_bth)
		f->b[f->len - 1 - rnd(ICRC_LEN)] ^= (uint8_t)(1 + rnd(255));
	return fate;
}

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	unsigned long count = 100000, rate = 20000;
	unsigned long sent[FATES] = { 0 }, wholes[FATES] = { 0 };
	const char *nic = NULL, *target_name = NULL;
	uint8_t target[16];
	int c, family, in, out, size = 4 << 20, one = 1;
	struct sockaddr_ll sll = { .sll_family = AF_PACKET,
				   .sll_protocol = htons(ETH_P_ALL) };
	uint64_t start, until;

	while ((c = getopt(argc, argv, "i:t:n:s:q:r:")) != -1) {
		switch (c) {
		case 'i':
			nic = optarg;
			break;
		case 't':
			target_name = optarg;
			break;
		case 'n':
			count = strtoul(optarg, NULL, 0);
			break;
		case 's':
			rng = strtoull(optarg, NULL, 0) | 1;
			break;
		case 'r':
			rate = strtoul(optarg, NULL, 0);
			break;
		case 'q':
			if (victims == VICTIMS_MAX ||
			    sscanf(optarg, "%x:%x:%x:%" SCNx64,
				   &victim[victims].qpn, &victim[victims].psn,
				   &victim[victims].rkey,
				   &victim[victims].va) != 4)
				return 2;
			victims++;
			break;
		default:
			return 2;
		}
	}
	if (!nic || !target_name || !rate) {
		fprintf(stderr,
			"usage: mutate -i NIC -t TARGET [-n COUNT] "
			"[-s SEED] [-r RATE] [-q QPN:PSN:RKEY:VA]...\n");
		return 2;
	}
	family = strchr(target_name, ':') ? AF_INET6 : AF_INET;
	if (inet_pton(family, target_name, target) != 1)
		return 2;
	in = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	out = socket(AF_PACKET, SOCK_RAW, 0);
	sll.sll_ifindex = (int)if_nametoindex(nic);
	if (in < 0 || out < 0 || !sll.sll_ifindex ||
	    bind(in, (struct sockaddr *)&sll, sizeof(sll)) ||
	    (sll.sll_protocol = 0,
	     bind(out, (struct sockaddr *)&sll, sizeof(sll)))) {
		fprintf(stderr, "mutate: %s: %s\n", nic, strerror(errno));
		return 1;
	}
	setsockopt(in, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof(size));
	/* What we send is not to come back as a sample. */
	setsockopt(out, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one));

	until = now_us() + 20000000;
	while (samples < 64) {
		struct pollfd p = { .fd = in, .events = POLLIN };

		if (now_us() > until) {
			fprintf(stderr, "mutate: no RoCE traffic to %s\n",
				target_name);
			return 1;
		}
		poll(&p, 1, 100);
		watch(in, family, target, 1000);
	}
	start = now_us();
	for (unsigned long i = 0; i < count;) {
		struct frame f = sample[rnd(samples)];
		bool whole;
		enum fate fate = mutate(&f, &whole);

		if (send(out, f.b, f.len, 0) < 0) {
			if (errno != ENOBUFS && errno != EAGAIN) {
				fprintf(stderr, "mutate: send: %s\n",
					strerror(errno));
				return 1;
			}
			usleep(1000);
			continue;
		}
		sent[fate]++;
		wholes[fate] += whole;
		i++;
		if (i % 32 == 0) {
			/* A guest has one CPU, and the transfer needs it. */
			uint64_t due = start + i * 1000000 / rate;
			uint64_t now = now_us();

			watch(in, family, target, 64);
			if (due > now)
				usleep((useconds_t)(due - now));
		}
	}
	printf("mutate: sent %lu in %.1f s:", count,
	       (double)(now_us() - start) / 1e6);
	for (int i = 0; i < FATES; i++)
		printf(" %s %lu (%lu)%s", fate_name[i], sent[i], wholes[i],
		       i + 1 < FATES ? "," : "\n");
	return 0;
}
