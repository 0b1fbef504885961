/*
 * tcp.c - a TCP connection in a recording (tcp.h)
 *
 * Bytes of each direction are collected until a frame or an FPDU is complete.
 * Where the length of the next one is, is known from the last; a stream that
 * begins with something else is recorded as it comes.
 */
#include "tcp.h"

#include "os/guard.h"
#include "wire/mpa.h"

#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#define HOPS 64u
#define SEGMENT_MAX (PCAP_PKT_MAX - 60u) /* IPv6 and TCP have 60 bytes */

enum { FIN = 0x01, SYN = 0x02, RST = 0x04, PSH = 0x08, ACK = 0x10 };

/* The longest FPDU, with its markers, and those of them. */
#define MESSAGE_MAX                                                            \
	((MPA_LEN_LEN + MPA_ULPDU_MAX + 3 + MPA_CRC_LEN) /                     \
		 (MPA_MARKER_STEP - MPA_MARKER_LEN) * MPA_MARKER_STEP +        \
	 2 * MPA_MARKER_STEP)

/* Bytes of one direction. */
struct way {
	enum { IN_FRAME, IN_FPDUS, IN_OTHER } in;
	bool markers; /* its FPDUs have them */
	bool fin;
	uint32_t seq; /* of buf */
	uint64_t pos; /* of buf, among the FPDUs */
	size_t have; /* bytes in buf */
	uint8_t buf[MESSAGE_MAX];
};

struct pcap_tcp {
	struct pcap *pcap;
	struct pcap_tcp_end end[2]; /* the peer's, ours */
	uint8_t tclass; /* ours */
	bool initiator;
	bool connected;
	bool ended;
	struct way way[2]; /* inbound, outbound */
};

static void put_segment(struct pcap_tcp *t, bool outbound, uint8_t flags,
			const uint8_t *p, size_t len)
{
	const struct pcap_tcp_head head = {
		.seq = t->way[outbound].seq,
		.ack = flags & ACK ? t->way[!outbound].seq : 0,
		.flags = flags,
	};
	const struct iovec iov = { (void *)(uintptr_t)p, len };

	pcap_write(t->pcap, &(struct pcap_pkt){
				    .src = &t->end[outbound].addr,
				    .dst = &t->end[!outbound].addr,
				    .sport = t->end[outbound].port,
				    .dport = t->end[!outbound].port,
				    .tclass = outbound ? t->tclass : 0,
				    .hop_limit = HOPS,
				    .outbound = outbound,
				    .tcp = &head,
				    .iov = &iov,
				    .niov = 1,
			    });
	t->way[outbound].seq += (uint32_t)len + !!(flags & (SYN | FIN));
}

/* ---- messages ---------------------------------------------------------- */

/* From an FPDU's first byte in the stream to its last: each marker that comes
 * before the last moves it. */
static size_t with_markers(const struct way *w, size_t len)
{
	size_t marker = -w->pos % MPA_MARKER_STEP;

	for (; w->markers && marker < len; marker += MPA_MARKER_STEP)
		len += MPA_MARKER_LEN;
	return len;
}

/* How long the message in buf is, as far as that can be told. */
static size_t message_len(struct way *w, bool reply)
{
	size_t head;
	int len;

	if (w->in == IN_FRAME) {
		len = mpa_frame_len(reply, w->buf, w->have);
		if (len > 0)
			return (size_t)len;
		w->in = IN_OTHER;
	}
	if (w->in == IN_OTHER)
		return sizeof(w->buf);
	head = with_markers(w, MPA_LEN_LEN);
	if (w->have < head)
		return head;
	return with_markers(
		w, mpa_fpdu_len(get_be16(w->buf + head - MPA_LEN_LEN)));
}

/* Records what is in buf, as one segment if it fits. */
static void cut_segment(struct pcap_tcp *t, bool outbound)
{
	struct way *w = &t->way[outbound];
	struct mpa_frame frame;
	size_t at, n;

	for (at = 0; at < w->have; at += n) {
		n = MIN(w->have - at, SEGMENT_MAX);
		put_segment(t, outbound, PSH | ACK, w->buf + at, n);
	}
	if (w->in == IN_FRAME) {
		if (!mpa_frame_decode(&frame, outbound != t->initiator, w->buf,
				      w->have))
			t->way[!outbound].markers = frame.markers;
		w->in = IN_FPDUS;
	} else {
		w->pos += w->have;
	}
	w->have = 0;
}

void tcp_data(struct pcap_tcp *t, bool outbound, const struct iovec *iov,
	      size_t len)
{
	const bool reply = outbound != t->initiator;
	struct way *w = &t->way[outbound];
	size_t at = 0, n;

	if (!t->connected || t->ended || w->fin)
		return;
	for (; len; len -= n) {
		const uint8_t *p = (const uint8_t *)iov->iov_base + at;

		n = message_len(w, reply) - w->have;
		n = MIN(n, MIN(len, iov->iov_len - at));
		/* The program may have taken it away since it was sent. */
		if (n && guard_copy(w->buf + w->have, p, n, p))
			memset(w->buf + w->have, 0, n);
		w->have += n;
		at += n;
		if (at == iov->iov_len) {
			iov++;
			at = 0;
		}
		if (w->have == message_len(w, reply))
			cut_segment(t, outbound);
	}
	if (w->in == IN_OTHER)
		cut_segment(t, outbound);
}

/* ---- the connection ---------------------------------------------------- */

struct pcap_tcp *tcp_begin(struct pcap *p, const struct pcap_tcp_end *ours,
			   const struct pcap_tcp_end *peers, uint8_t tclass,
			   bool initiator)
{
	struct pcap_tcp *t = malloc(sizeof(*t));

	if (!t)
		return NULL;
	/* Not of its buffers, whose pages most connections never touch. */
	memset(t, 0, offsetof(struct pcap_tcp, way));
	for (int i = 0; i < 2; i++)
		memset(&t->way[i], 0, offsetof(struct way, buf));
	t->pcap = p;
	t->end[true] = *ours;
	t->end[false] = *peers;
	t->tclass = tclass;
	t->initiator = initiator;
	put_segment(t, initiator, SYN, NULL, 0);
	return t;
}

void tcp_connected(struct pcap_tcp *t)
{
	put_segment(t, !t->initiator, SYN | ACK, NULL, 0);
	put_segment(t, t->initiator, ACK, NULL, 0);
	t->connected = true;
}

void tcp_fin(struct pcap_tcp *t, bool outbound)
{
	struct way *w = &t->way[outbound];

	if (!t->connected || t->ended || w->fin)
		return;
	cut_segment(t, outbound);
	put_segment(t, outbound, FIN | ACK, NULL, 0);
	w->fin = true;
}

void tcp_reset(struct pcap_tcp *t, bool outbound)
{
	/* An attempt that is given up leaves nothing to reset. */
	if (t->ended || (outbound && !t->connected))
		return;
	cut_segment(t, outbound);
	cut_segment(t, !outbound);
	put_segment(t, outbound, RST | ACK, NULL, 0);
	t->ended = true;
}

void tcp_free(struct pcap_tcp *t)
{
	cut_segment(t, false);
	cut_segment(t, true);
	free(t);
}
