/*
 * udp_link.c - UDP as one link among others (link.h)
 */
#include "internal.h"

static struct udp *to_udp(struct link *l)
{
	return (struct udp *)(void *)((char *)l - offsetof(struct udp, link));
}

static int link_poll(struct link *l, unsigned budget, link_rx_fn *fn, void *arg)
{
	return udp_poll(to_udp(l), budget, fn, arg);
}

static void link_wait(struct link *l)
{
	udp_poll_wait(to_udp(l));
}

static int link_fd(struct link *l)
{
	return udp_fd(to_udp(l));
}

static size_t link_send(struct link *l, const struct roce_batch *b, size_t from,
			size_t to, int *err)
{
	return udp_send_part(to_udp(l), b, from, to, err);
}

static const struct link_ops ops = {
	.poll = link_poll,
	.wait = link_wait,
	.fd = link_fd,
	.send = link_send,
};

struct link *udp_link(struct udp *u)
{
	u->link.ops = &ops;
	return &u->link;
}
