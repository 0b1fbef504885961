/*
 * engine.c - the beginning and the end of an engine, and what is bound for it
 */
#include "internal.h"

#include "base/say.h"
#include "heat.h"
#include "hooks/faults.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static void link_add(struct engine *e, struct link *l)
{
	assert(e->nlinks < ENGINE_LINKS);
	e->link[e->nlinks++] = l;
}

/* Shared memory is not needed: what would go there goes by UDP. */
static int shm_add(struct engine *e, struct segment *segment,
		   struct pcap *pcap)
{
	const struct shm_config shm = {
		.copy = e->cfg->same_host == SAME_HOST_COPY,
		.loss = e->cfg->loss,
		.seed = e->cfg->seed,
		.pcap = pcap,
	};
	int err = shm_create(&e->shm, &shm, segment);

	e->segment = segment;
	if (!err)
		link_add(e, shm_link(e->shm));
	return err;
}

/* Which links there are: a line for each. */
static int links_create(struct engine *e, struct segment *segment,
			struct pcap *pcap)
{
	const struct udp_config udp = { .wire = e->cfg->wire,
					.loss = e->cfg->loss,
					.seed = e->cfg->seed,
					.pcap = pcap };
	int err = udp_create(&e->udp, &udp, e->registry);

	if (err)
		return err;
	link_add(e, udp_link(e->udp));
	if (segment)
		err = shm_add(e, segment, pcap);
	else
		heat_use(e->link[0], true); /* it alone brings packets */
	if (!err && e->cfg->iwarp != IWARP_NONE) {
		err = streams_create(&e->streams, pcap);
		if (!err)
			link_add(e, streams_link(e->streams));
	}
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
	presence_init(&e->presence);
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
	hold_end(e);
	if (e->udp && e->cfg->explain)
		engine_drops_explain(e);
	shm_destroy(e->shm);
	streams_destroy(e->streams);
	if (e->udp)
		udp_destroy(e->udp);
	if (faults_ops)
		faults_ops->end(e);
	qpn_fini(e);
	free(e->heap);
}

void engine_abandon(struct engine *e)
{
	atomic_store(&e->dead, true);
	thread_fds_close(e);
	shm_abandon(e->shm);
	streams_abandon(e->streams);
	udp_abandon(e->udp);
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
