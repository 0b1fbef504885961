/*
 * udp_link.c - UDP as one link among others (link.h)
 */
#include "udp_internal.h"

static struct udp *to_udp(struct link *l)
{
	return (struct udp *)(void *)((char *)l - offsetof(struct udp, link));
}

static int udp_link_poll(struct link *l, unsigned budget, link_rx_fn *fn,
			 void *arg)
{
	return udp_poll(to_udp(l), budget, fn, arg);
}

static void udp_link_wait(struct link *l)
{
	udp_poll_wait(to_udp(l));
}

static int udp_link_fd(struct link *l)
{
	return udp_fd(to_udp(l));
}

static void udp_link_wake(struct link *l, bool called)
{
	if (called)
		udp_called(to_udp(l), true);
}

static size_t udp_link_send(struct link *l, struct link_way *w,
			    const struct roce_batch *b, size_t from, size_t to,
			    int *err)
{
	return udp_send_part(to_udp(l), w ? &w->route : NULL, b, from, to, err);
}

static unsigned udp_link_send_small(struct link *l, struct link_way *w,
				    struct roce_small *s)
{
	return udp_send_small(to_udp(l), &w->route, s);
}

static bool udp_link_unread(struct link *l, struct link_way *w,
			    uint64_t mark[2])
{
	/* What another link has noted there says nothing. */
	if (mark[0] & LINK_MARK)
		mark[0] = mark[1] = 0;
	return udp_unread(to_udp(l), w->path, w->qpn, mark);
}

static void udp_link_destroy(struct link *l)
{
	udp_destroy(to_udp(l));
}

static void udp_link_abandon(struct link *l)
{
	udp_abandon(to_udp(l));
}

/* A process that is suspended. */

static size_t no_room(struct link *l, struct link_way *w,
		      const struct roce_batch *b, size_t from, size_t to,
		      int *err)
{
	(void)l;
	(void)w;
	(void)b;
	(void)to;
	(void)err;
	return from;
}

static int nothing(struct link *l, unsigned budget, link_rx_fn *fn, void *arg)
{
	(void)l;
	(void)budget;
	(void)fn;
	(void)arg;
	return 0;
}

static void link_suspend(struct link *l, enum link_suspend step);

#define OPS(poll_fn, send_fn, small_fn)                                        \
	{                                                                      \
		.poll = poll_fn, .wait = udp_link_wait, .fd = udp_link_fd,     \
		.wake = udp_link_wake, .send = send_fn,                        \
		.send_small = small_fn, .unread = udp_link_unread,             \
		.suspend = link_suspend, .destroy = udp_link_destroy,          \
		.abandon = udp_link_abandon,                                   \
	}

static const struct link_ops ops =
	OPS(udp_link_poll, udp_link_send, udp_link_send_small);
static const struct link_ops stopped = OPS(udp_link_poll, no_room, NULL);
static const struct link_ops resting = OPS(nothing, no_room, NULL);

static void link_suspend(struct link *l, enum link_suspend step)
{
	switch (step) {
	case LINK_STOPS:
		atomic_store(&l->ops, &stopped);
		break;
	case LINK_RESTS:
		atomic_store(&l->ops, &resting);
		break;
	case LINK_LEAVES:
	case LINK_IS_GONE:
		break; /* udp_away.c */
	case LINK_IS_BACK:
		atomic_store(&l->ops, &ops);
		break;
	}
}

struct link *udp_link(struct udp *u)
{
	atomic_init(&u->link.ops, &ops);
	return &u->link;
}
