/*
 * shm_trace.c - packets of shared memory as they would look on a wire
 *
 * A process that records packets sends and gets only such as a wire could
 * carry, and each record has the addresses (struct shm_ext_far). The headers
 * are encoded and the ICRC computed for the recording alone.
 */
#include "shm_internal.h"

#include "hooks/pcap.h"
#include "wire/icrc.h"

#include <string.h>

void shm_record(struct shm *s, bool outbound, const struct roce_hdr *h,
		const struct shm_ext_far *far, const struct iovec *payload)
{
	uint8_t hdr[ROCE_HDR_MAX], tail[3 + ROCE_ICRC_LEN] = { 0 };
	const size_t len = roce_encode(h, hdr), pad = h->pad;
	const struct iovec iov[3] = { { hdr, len },
				      *payload,
				      { tail, pad + ROCE_ICRC_LEN } };
	uint32_t crc =
		icrc_begin(&far->sgid, &far->dgid, far->sport, ROCE_UDP_PORT,
			   len + payload->iov_len + pad + ROCE_ICRC_LEN, 0);

	crc = icrc_bth(crc, hdr, len);
	crc = icrc_update(crc, payload->iov_base, payload->iov_len);
	crc = icrc_update(crc, tail, pad);
	icrc_put(tail + pad, crc);
	pcap_write(s->cfg.pcap, &(struct pcap_pkt){
					.src = &far->sgid,
					.dst = &far->dgid,
					.sport = far->sport,
					.dport = ROCE_UDP_PORT,
					.tclass = far->tclass,
					.hop_limit = far->hop_limit,
					.outbound = outbound,
					.iov = iov,
					.niov = 3,
				});
}
