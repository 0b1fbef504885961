/*
 * engine.c - the beginning and the end of an engine, and what is bound for it
 */
#include "engine_internal.h"

#include "base/bytes.h"
#include "base/say.h"
#include "base/sys.h"
#include "hooks/faults.h"
#include "idle_link.h"
#include "link/shm.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static void link_add(struct engine *e, struct link *l)
{
	assert(e->nlinks < ENGINE_LINKS);
	e->link[e->nlinks++] = l;
	e->choice |= l->ops->reach != NULL;
}

static int udp_add(struct engine *e, struct segment *segment, struct pcap *pcap)
{
	const struct udp_config udp = { .wire = e->cfg->wire,
					.loss = e->cfg->loss,
					.seed = e->cfg->seed,
					.pcap = pcap };
	int err = udp_create(&e->udp, &udp, e->registry);

	(void)segment;
	if (!err)
		link_add(e, udp_link(e->udp));
	return err;
}

/* The device has no entries for it then, or, if that is new, paths are refused. */
static void no_rocev1(int err)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;

	if (atomic_flag_test_and_set(&said))
		return;
	if (err == -EPERM || err == -EACCES)
		say("no RoCE v1 (--rocev1): sockets of AF_PACKET need "
		    "CAP_NET_RAW in this network namespace. Root has it, and "
		    "who makes a namespace (unshare -Urn); containers get it "
		    "by --cap-add NET_RAW");
	else
		say("no RoCE v1 (--rocev1): no socket of AF_PACKET: %s",
		    sys_strerror(-err));
}

static int rocev1_add(struct engine *e, struct segment *segment,
		      struct pcap *pcap)
{
	const struct rocev1_config cfg = { .loss = e->cfg->loss,
					   .seed = e->cfg->seed,
					   .pcap = pcap };

	int err;

	(void)segment;
	if (!e->cfg->rocev1)
		return 0;
	err = rocev1_create(&e->rocev1, &cfg, e->registry);
	if (err)
		no_rocev1(err);
	else
		link_add(e, rocev1_link(e->rocev1));
	return 0;
}

/* Shared memory is not needed: what would go there goes by UDP. */
static int shm_add(struct engine *e, struct segment *segment, struct pcap *pcap)
{
	const struct shm_config shm = {
		.copy = e->cfg->same_host == SAME_HOST_COPY,
		.loss = e->cfg->loss,
		.seed = e->cfg->seed,
		.pcap = pcap,
	};
	struct link *l;
	int err;

	if (!segment)
		return 0;
	e->segment = segment;
	err = shm_create(&l, &shm, segment);
	if (!err)
		link_add(e, l);
	return err;
}

static int streams_add(struct engine *e, struct segment *segment,
		       struct pcap *pcap)
{
	int err;

	(void)segment;
	if (e->cfg->iwarp == IWARP_NONE)
		return 0;
	err = streams_create(&e->streams, pcap);
	if (!err)
		link_add(e, streams_link(e->streams));
	return err;
}

/* The links that there may be: a row for each. */
static int (*const links[])(struct engine *e, struct segment *segment,
			    struct pcap *pcap) = {
	udp_add, /* takes what no other one does */
	rocev1_add, /* but what the next ones take */
	shm_add,
	streams_add,
};

static int links_create(struct engine *e, struct segment *segment,
			struct pcap *pcap)
{
	int err = 0;

	for (size_t i = 0; !err && i < ARRAY_SIZE(links); i++)
		err = links[i](e, segment, pcap);
	if (!err && !e->choice)
		idle_link_use(e->link[0], true); /* it alone brings packets */
	return err;
}

int engine_init(struct engine *e, const struct engine_ops *ops,
		const struct config *cfg, struct registry *registry,
		struct segment *segment, struct pcap *pcap)
{
	int err;

	e->ops = ops;
	e->cfg = cfg;
	e->registry = registry;
	e->epoll_fd = e->wake_fd = -1;
	pthread_mutex_init(&e->qpn_lock, NULL);
	pthread_mutex_init(&e->timer_lock, NULL);
	pthread_mutex_init(&e->thread_lock, NULL);
	atomic_store(&e->heap_due, UINT64_MAX);
	poller_init(&e->poller);
	if (faults_ops)
		faults_ops->begin(e);
	err = links_create(e, segment, pcap);
	return err ? err : thread_fds_open(e);
}

void engine_stop(struct engine *e)
{
	if (atomic_load(&e->started))
		thread_end(e);
}

void engine_fini(struct engine *e)
{
	thread_fds_close(e);
	send_end(e);
	delayed_ack_end(e);
	if (e->udp && e->cfg->explain)
		engine_drops_explain(e);
	while (e->nlinks) {
		struct link *l = e->link[--e->nlinks];

		l->ops->destroy(l);
	}
	if (faults_ops)
		faults_ops->end(e);
	qpn_fini(e);
	free(e->heap);
}

void engine_abandon(struct engine *e)
{
	atomic_store(&e->dead, true);
	thread_fds_close(e);
	for (unsigned i = 0; i < e->nlinks; i++)
		if (e->link[i]->ops->abandon)
			e->link[i]->ops->abandon(e->link[i]);
}

int engine_bind(struct engine *e, const union ibv_gid *gid, uint32_t ifindex)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int err = udp_bind(e->udp, gid, ifindex);
	const char *why = udp_why(e->udp);

	/*
	 * Neither an errno nor a peer that does not answer shows that another
	 * program has the port. Once is enough.
	 */
	if (!*why || atomic_flag_test_and_set(&said))
		return err;
	if (err && err != -EADDRINUSE)
		say("cannot use UDP port %d: %s", ROCE_UDP_PORT, why);
	else
		say("%s. Stop that process, use another address (softhca run "
		    "--addr), or use a network namespace of your own (unshare "
		    "-Urn, then ip link set lo up)",
		    why);
	return err;
}

int engine_bind_v1(struct engine *e, const union ibv_gid *gid, uint32_t ifindex)
{
	return e->rocev1 ? rocev1_bind(e->rocev1, gid, ifindex) : -EPERM;
}

void engine_unbind_v1(struct engine *e, const union ibv_gid *gid,
		      uint32_t ifindex)
{
	if (e->rocev1)
		rocev1_unbind(e->rocev1, gid, ifindex);
}
