/*
 * rocev1_frames.c - between packets and frames of RoCE v1
 *
 * The kernel adds the header of Ethernet when a frame is sent, and takes it off
 * when one comes: on an interface that is a VLAN the tag as well. What comes is
 * read a few frames at a time, and all of it is handed over at once.
 */
#include "rocev1_internal.h"

#include "packet.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"
#include "hooks/pcap.h"
#include "net/neigh.h"
#include "wire/icrc.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <stdlib.h>

#define DEFAULT_HOPS 64
#define RX_CONTROL CMSG_SPACE(sizeof(uint32_t))

struct rocev1_rx {
	struct mmsghdr msg[ROCEV1_FRAMES];
	struct iovec iov[ROCEV1_FRAMES];
	struct sockaddr_ll from[ROCEV1_FRAMES];
	_Alignas(struct cmsghdr) uint8_t control[ROCEV1_FRAMES][RX_CONTROL];
	uint32_t overflow; /* SO_RXQ_OVFL when last seen */
	unsigned burst; /* frames to ask for */
	uint8_t frame[ROCEV1_FRAMES][ROCEV1_FRAME];
};

int rocev1_rx_create(struct rocev1 *v)
{
	struct rocev1_rx *rx = calloc(1, sizeof(*rx));

	if (!rx)
		return -ENOMEM;
	for (size_t i = 0; i < ROCEV1_FRAMES; i++) {
		rx->iov[i] = (struct iovec){ rx->frame[i], ROCEV1_FRAME };
		rx->msg[i].msg_hdr = (struct msghdr){
			.msg_name = &rx->from[i],
			.msg_iov = &rx->iov[i],
			.msg_iovlen = 1,
			.msg_control = rx->control[i],
		};
	}
	rx->burst = 1;
	v->rx = rx;
	return 0;
}

void rocev1_rx_destroy(struct rocev1 *v)
{
	free(v->rx);
}

/* Recording */

static void own_mac(uint32_t ifindex, uint8_t mac[6])
{
	if (neigh_own(ifindex, mac))
		memset(mac, 0, 6);
}

static void record(struct rocev1 *v, const struct grh *g,
		   const struct pcap_ether *ether, uint8_t *packet,
		   bool outbound)
{
	struct iovec iov = { packet, g->pay_len };

	pcap_write(v->cfg.pcap, &(struct pcap_pkt){ .src = &g->sgid,
						    .dst = &g->dgid,
						    .ether = ether,
						    .tclass = g->tclass,
						    .hop_limit = g->hop_limit,
						    .flow_label = g->flow_label,
						    .outbound = outbound,
						    .iov = &iov,
						    .niov = 1 });
}

static void record_rx(struct rocev1 *v, const struct sockaddr_ll *from,
		      uint8_t *frame, size_t len)
{
	struct pcap_ether ether = { 0 };
	struct grh g;

	if (grh_get(&g, frame, len))
		return;
	memcpy(ether.src, from->sll_addr, 6);
	own_mac((uint32_t)from->sll_ifindex, ether.dst);
	record(v, &g, &ether, frame + GRH_LEN, false);
}

static void record_tx(struct rocev1 *v, const struct roce_path *path,
		      uint8_t *frame, size_t len)
{
	struct pcap_ether ether = { 0 };
	struct grh g;

	if (grh_get(&g, frame, len))
		return;
	if (!path->local) {
		memcpy(ether.dst, path->dmac, 6);
		own_mac(path->sgid_scope, ether.src);
	}
	record(v, &g, &ether, frame + GRH_LEN, true);
}

/* Receiving */

int rocev1_decode(struct roce_rx *pkt, uint8_t *frame, size_t len)
{
	uint8_t *p = frame + GRH_LEN;
	struct grh g;
	size_t size;
	int hdr;

	if (grh_get(&g, frame, len) || g.pay_len < ROCE_BTH_LEN + ROCE_ICRC_LEN)
		return -EINVAL;
	*pkt = (struct roce_rx){
		.sgid = g.sgid, .dgid = g.dgid, .tclass = g.tclass, .v1 = true
	};
	size = g.pay_len - ROCE_ICRC_LEN;
	hdr = roce_decode(&pkt->h, p, size);
	if (hdr < 0)
		return hdr;
	if (!icrc_is(icrc_bth_own(icrc_grh(frame), p, size), p, g.pay_len))
		return -EBADMSG;
	pkt->payload = p + hdr;
	pkt->len = size - (size_t)hdr - pkt->h.pad;
	pkt->grh = frame;
	return 0;
}

static unsigned deliver(struct rocev1 *v, const struct mmsghdr *m,
			link_rx_fn *fn, void *arg)
{
	uint8_t *frame = m->msg_hdr.msg_iov->iov_base;
	struct roce_rx pkt;
	int err = m->msg_hdr.msg_flags & MSG_TRUNC ?
			  -EINVAL :
			  rocev1_decode(&pkt, frame, m->msg_len);

	if (err == -EBADMSG)
		ROCEV1_COUNT(v, rx_bad_icrc, 1);
	else if (err)
		ROCEV1_COUNT(v, rx_malformed, 1);
	if (err)
		return 0;
	if (v->cfg.pcap)
		record_rx(v, m->msg_hdr.msg_name, frame, m->msg_len);
	ROCEV1_COUNT(v, rx_pkts, 1);
	ROCEV1_COUNT(v, rx_bytes, m->msg_len - GRH_LEN);
	fn(arg, &pkt);
	return 1;
}

static void count_overflow(struct rocev1 *v, struct rocev1_rx *rx,
			   struct msghdr *m)
{
	uint32_t drops;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_RXQ_OVFL)
			continue;
		memcpy(&drops, CMSG_DATA(c), sizeof(drops));
		ROCEV1_COUNT(v, rx_overflow, drops - rx->overflow);
		rx->overflow = drops;
	}
}

static unsigned frames_read(struct rocev1 *v, struct rocev1_rx *rx,
			    unsigned want)
{
	int n;

	for (size_t i = 0; i < want; i++) {
		rx->msg[i].msg_hdr.msg_namelen = sizeof(rx->from[i]);
		rx->msg[i].msg_hdr.msg_controllen = RX_CONTROL;
	}
	n = sys_recvmmsg(v->fd, rx->msg, want);
	if (n < 0)
		n = 0;
	if ((unsigned)n < want)
		atomic_fetch_add_explicit(&v->emptied, 1, memory_order_relaxed);
	rx->burst = (unsigned)n < want ? (unsigned)n | 1 :
					 min_u32(2 * want, ROCEV1_FRAMES);
	return (unsigned)n;
}

int rocev1_poll(struct link *l, unsigned budget, link_rx_fn *fn, void *arg)
{
	struct rocev1 *v = to_rocev1(l);
	struct rocev1_rx *rx = v->rx;
	unsigned n, done = 0;

	if (!lock_try(&v->rx_lock))
		return -EBUSY;
	n = frames_read(v, rx, min_u32(rx->burst, budget));
	for (unsigned i = 0; i < n; i++) {
		count_overflow(v, rx, &rx->msg[i].msg_hdr);
		done += deliver(v, &rx->msg[i], fn, arg);
	}
	lock_drop(&v->rx_lock);
	return (int)done;
}

/* Sending */

static struct sockaddr_ll destination(const struct rocev1 *v,
				      const struct roce_path *path)
{
	struct sockaddr_ll to = {
		.sll_family = AF_PACKET,
		.sll_protocol = htons(ROCEV1_ETHERTYPE),
		.sll_ifindex = (int)(path->local ? v->lo : path->sgid_scope),
		.sll_halen = 6,
	};

	if (!path->local)
		memcpy(to.sll_addr, path->dmac, 6);
	return to;
}

/* Returns 0 or EFAULT. */
static int frame_put(const struct roce_batch *b, const struct roce_pkt *p,
		     size_t size, uint8_t *out)
{
	const struct roce_path *path = p->path;
	uint8_t hops = path->hop_limit ? path->hop_limit : DEFAULT_HOPS;

	grh_put(out, &(struct grh){ .sgid = path->sgid,
				    .dgid = path->dgid,
				    .flow_label = path->flow_label,
				    .tclass = path->tclass,
				    .hop_limit = hops,
				    .pay_len = (uint16_t)size });
	if (packet_put(b, p, out + GRH_LEN))
		return EFAULT;
	packet_put_icrc(icrc_grh(out), out + GRH_LEN, size, p->damaged);
	return 0;
}

/*
 * What is sent of a batch, in order. An ACK behind requests has waited for them
 * (engine/delayed_ack.c), so that the peer's program has answered what the ACK is
 * about. It goes first: ours is to hear of the end of what it has sent before it
 * hears the answer, as with hardware.
 */
struct order {
	const struct roce_batch *b;
	size_t from, to;
	bool ack_first;
};

/* The packet that is the nth. */
static const struct roce_pkt *nth(const struct order *o, size_t n)
{
	size_t at = o->from + n;

	if (o->ack_first)
		at = n ? at - 1 : o->to - 1;
	return &o->b->pkt[at];
}

/* The first that was not taken, of which n were. The ACK is made again with it. */
static size_t taken(const struct order *o, size_t n)
{
	const size_t at = o->from + n;

	return o->ack_first && n && at < o->to ? at - 1 : at;
}

/* Frames that leave in one system call. */
struct frames {
	struct mmsghdr msg[ROCEV1_FRAMES];
	struct iovec iov[ROCEV1_FRAMES];
	struct sockaddr_ll to[ROCEV1_FRAMES];
	const struct roce_pkt *pkt[ROCEV1_FRAMES];
	size_t place[ROCEV1_FRAMES]; /* in the order */
	unsigned n;
	size_t next; /* the first place that was not looked at */
};

static void frame_add(struct rocev1 *v, struct frames *f,
		      const struct roce_pkt *p, uint8_t *frame, size_t len)
{
	const unsigned i = f->n++;

	f->pkt[i] = p;
	f->place[i] = f->next;
	f->to[i] = destination(v, p->path);
	f->iov[i] = (struct iovec){ frame, len };
	f->msg[i].msg_hdr = (struct msghdr){ .msg_name = &f->to[i],
					     .msg_namelen = sizeof(f->to[i]),
					     .msg_iov = &f->iov[i],
					     .msg_iovlen = 1 };
}

/* Returns 0, or EFAULT: memory of the packet at f->next is not there. */
static int gather(struct rocev1 *v, struct frames *f, const struct order *o,
		  uint8_t *buf)
{
	f->n = 0;
	for (; f->next < o->to - o->from && f->n < ROCEV1_FRAMES; f->next++) {
		const struct roce_pkt *p = nth(o, f->next);
		const size_t size = packet_size(p);
		uint8_t *out = buf + f->n * ROCEV1_FRAME;

		if (loss_draw(&v->loss)) {
			ROCEV1_COUNT(v, tx_dropped, 1);
			continue;
		}
		assert(GRH_LEN + size <= ROCEV1_FRAME);
		if (frame_put(o->b, p, size, out))
			return EFAULT;
		frame_add(v, f, p, out, GRH_LEN + size);
	}
	return 0;
}

static void sent(struct rocev1 *v, const struct frames *f, unsigned from,
		 unsigned to)
{
	for (; from < to; from++) {
		const struct iovec *iov = &f->iov[from];

		ROCEV1_COUNT(v, tx_pkts, 1);
		ROCEV1_COUNT(v, tx_bytes, iov->iov_len - GRH_LEN);
		if (v->cfg.pcap)
			record_tx(v, f->pkt[from]->path, iov->iov_base,
				  iov->iov_len);
	}
}

/* All of them, or those up to the first that finds no room. How many. */
static unsigned push(struct rocev1 *v, struct frames *f, int *err)
{
	unsigned done = 0;
	int n;

	while (done < f->n) {
		n = sys_sendmmsg(v->fd, f->msg + done, f->n - done);
		if (n > 0) {
			sent(v, f, done, done + (unsigned)n);
			done += (unsigned)n;
		} else if (packet_is_busy(errno)) {
			break;
		} else if (errno != EINTR) {
			*err = errno;
			done++; /* it can never be sent */
		}
	}
	return done;
}

size_t rocev1_send(struct link *l, struct link_way *w,
		   const struct roce_batch *b, size_t from, size_t to, int *err)
{
	struct rocev1 *v = to_rocev1(l);
	const struct order o = {
		.b = b,
		.from = from,
		.to = to,
		.ack_first = b->ack && to == b->n && to - from > 1,
	};
	uint8_t one[ROCEV1_FRAME];
	uint8_t *buf = to - from == 1 ? one : spare_take(&v->spare);
	struct frames f;
	unsigned done;
	int fault = 0;

	(void)w;
	if (!buf)
		return from;
	f.next = 0;
	while (f.next < to - from && !fault) {
		fault = gather(v, &f, &o, buf);
		done = push(v, &f, err);
		if (done < f.n) {
			ROCEV1_COUNT(v, tx_busy, 1);
			f.next = f.place[done];
			break;
		}
		if (fault)
			*err = EFAULT;
	}
	if (buf != one)
		spare_put(&v->spare, buf);
	return taken(&o, f.next);
}
