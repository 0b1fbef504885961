/*
 * shm_trace.c - packets of shared memory as they would look on a wire
 *
 * A process that records packets sends and gets only such as a wire could
 * carry, and each record has the addresses (struct shm_ext_addr). The headers
 * are encoded and the ICRC computed for the recording alone.
 */
#include "shm_internal.h"

#include "hooks/pcap.h"
#include "wire/grh.h"
#include "wire/icrc.h"

#include <string.h>

/* The state of the ICRC in front of the BTH; len: from there to the ICRC. */
static uint32_t icrc_of_headers(const struct shm_ext_addr *addr, size_t len)
{
	const struct grh g = {
		.sgid = addr->sgid,
		.dgid = addr->dgid,
		.pay_len = (uint16_t)len,
	};
	uint8_t grh[GRH_LEN];

	if (addr->sport)
		return icrc_begin(&addr->sgid, &addr->dgid, addr->sport,
				  ROCE_UDP_PORT, len, 0);
	grh_put(grh, &g);
	return icrc_grh(grh);
}

void shm_record(struct shm *s, bool outbound, const struct roce_hdr *h,
		const struct shm_ext_addr *addr, const struct iovec *payload)
{
	/* As on the loopback interface. */
	static const struct pcap_ether within_host;
	uint8_t hdr[ROCE_HDR_MAX], tail[3 + ROCE_ICRC_LEN] = { 0 };
	const size_t len = roce_encode(h, hdr), pad = h->pad;
	const struct iovec iov[3] = { { hdr, len },
				      *payload,
				      { tail, pad + ROCE_ICRC_LEN } };
	uint32_t crc = icrc_of_headers(addr, len + payload->iov_len + pad +
						     ROCE_ICRC_LEN);

	crc = icrc_bth(crc, hdr, len);
	crc = icrc_update(crc, payload->iov_base, payload->iov_len);
	crc = icrc_update(crc, tail, pad);
	icrc_put(tail + pad, crc);
	pcap_write(s->cfg.pcap,
		   &(struct pcap_pkt){
			   .src = &addr->sgid,
			   .dst = &addr->dgid,
			   .sport = addr->sport,
			   .dport = ROCE_UDP_PORT,
			   .ether = addr->sport ? NULL : &within_host,
			   .tclass = addr->tclass,
			   .hop_limit = addr->hop_limit,
			   .outbound = outbound,
			   .iov = iov,
			   .niov = 3,
		   });
}
