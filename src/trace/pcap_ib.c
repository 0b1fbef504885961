/*
 * pcap_ib.c - packets as they would be on a fabric of InfiniBand
 *
 * Apart from pcap.c, because of the CRCs: the tool has to start where ISA-L is
 * missing.
 */
#include "pcap.h"

#include "base/bytes.h"
#include "net/ibaddr.h"
#include "wire/lrh.h"

/*
 * A record of ERF, as ibdump writes it: Wireshark has no decoder for
 * LINKTYPE_INFINIBAND (247), but for a packet behind this header.
 */
#define LINKTYPE_ERF 197u
#define ERF_LEN 16u
#define ERF_INFINIBAND 21u
#define ERF_VARYING_LENGTH 4u

static struct {
	uint32_t addr;
	unsigned prefix;
} ib;

static uint16_t lid_of(const union ibv_gid *gid)
{
	const uint32_t addr = ib_v4(gid);

	if (roce_gid_is_multicast(gid))
		return ib_mlid(addr);
	/* Of another subnet: a router's. */
	return ib_same_subnet(ib.addr, ib.prefix, addr) &&
			       ib_lid(addr, ib.prefix) ?
		       ib_lid(addr, ib.prefix) :
		       ib_sm_lid(ib.prefix);
}

/* As it would be on a fabric. One without a GRH has a TTL of 1. */
static struct lrh lrh_of(const struct pcap_pkt *pkt)
{
	const bool group = roce_gid_is_multicast(pkt->dst);

	return (struct lrh){
		.slid = lid_of(pkt->src),
		.dlid = lid_of(pkt->dst),
		.global = group || pkt->hop_limit > 1,
		.sgid = ib_gid(ib_v4(pkt->src)),
		.dgid = group ? ib_mgid(ib_v4(pkt->dst), false) :
				ib_gid(ib_v4(pkt->dst)),
		.tclass = pkt->tclass,
		.hop_limit = (uint8_t)(pkt->hop_limit ? pkt->hop_limit - 1 : 0),
	};
}

static void put_erf(uint8_t *h, uint64_t ns, size_t len)
{
	/* Seconds and their fraction, least significant byte first. */
	const uint64_t ts =
		ns / 1000000000u << 32 | (ns % 1000000000u << 32) / 1000000000u;

	for (unsigned i = 0; i < 8; i++)
		h[i] = (uint8_t)(ts >> 8 * i);
	h[8] = ERF_INFINIBAND;
	h[9] = ERF_VARYING_LENGTH;
	put_be16(h + 10, (uint32_t)(ERF_LEN + len));
	put_be16(h + 12, 0); /* lost before */
	put_be16(h + 14, (uint32_t)len);
}

static size_t head(const struct pcap_pkt *pkt)
{
	const struct lrh lrh = lrh_of(pkt);

	return ERF_LEN + lrh_len(&lrh);
}

static void put(uint8_t *frame, const struct pcap_pkt *pkt, uint64_t ns,
		size_t len)
{
	const struct lrh lrh = lrh_of(pkt);

	len -= ERF_LEN;
	put_erf(frame, ns, len);
	frame += ERF_LEN;
	lrh_put(frame, &lrh, len - lrh_len(&lrh) - LRH_VCRC_LEN);
	lrh_put_crcs(frame, &lrh, len);
}

void pcap_infiniband(uint32_t addr, unsigned prefix)
{
	static const struct pcap_frames frames = {
		.linktype = LINKTYPE_ERF,
		.device = "softib0",
		.head = head,
		.tail = LRH_VCRC_LEN,
		.put = put,
	};

	ib.addr = addr;
	ib.prefix = prefix;
	pcap_set_frames(&frames);
}
