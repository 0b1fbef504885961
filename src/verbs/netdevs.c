/*
 * netdevs.c - what contexts are told when addresses of their device come or go
 *
 * The list of contexts is kept here, because one that opens has to see its
 * device's addresses as they are, and every change after that.
 */
#include "verbs.h"

#include "base/gid.h"
#include "base/sys.h"

/* To all contexts of a device; NULL: of all devices. Under contexts.lock. */
static void device_event(struct engine *e, struct shca_device *dev,
			 enum ibv_event_type type)
{
	const struct ibv_async_event ev = { .event_type = type,
					    .element.port_num = 1 };
	struct shca_context *ctx;

	for (ctx = to_process(e)->contexts.first; ctx; ctx = ctx->next)
		if (!dev || ctx->dev == dev)
			shca_async_raise(ctx, &ev);
}

/* Under contexts.lock, so that no change goes unnoticed by a context. */
static void netdevs_rescan(struct engine *e, struct shca_device *dev)
{
	struct ibv_port_attr was, is;
	struct netdev_gid before, after;

	shca_query_port(dev, 1, &was);
	shca_gid(dev, 1, 0, &before);
	if (!shca_device_rescan(dev, e))
		return;
	shca_query_port(dev, 1, &is);
	shca_gid(dev, 1, 0, &after);
	/* That of a port of InfiniBand stands for one of the addresses. */
	if (is.link_layer != IBV_LINK_LAYER_INFINIBAND ||
	    !gid_equal(&before.gid, &after.gid))
		device_event(e, dev, IBV_EVENT_GID_CHANGE);
	if (was.lid != is.lid)
		device_event(e, dev, IBV_EVENT_LID_CHANGE);
	if ((was.state == IBV_PORT_ACTIVE) != (is.state == IBV_PORT_ACTIVE))
		device_event(e, dev,
			     is.state == IBV_PORT_ACTIVE ?
				     IBV_EVENT_PORT_ACTIVE :
				     IBV_EVENT_PORT_ERR);
}

void shca_context_add(struct engine *e, struct shca_context *ctx)
{
	struct shca_process *proc = to_process(e);

	pthread_mutex_lock(&proc->contexts.lock);
	netdevs_rescan(e, ctx->dev);
	ctx->next = proc->contexts.first;
	proc->contexts.first = ctx;
	pthread_mutex_unlock(&proc->contexts.lock);
	if (e->faults)
		faults_ops->opened(e);
}

void shca_port_event(struct engine *e, enum ibv_event_type type,
		     const char *dev)
{
	struct shca_device *of = *dev ? shca_device_named(dev) : NULL;
	struct shca_process *proc = to_process(e);

	if (*dev && !of)
		return;
	pthread_mutex_lock(&proc->contexts.lock);
	device_event(e, of, type);
	pthread_mutex_unlock(&proc->contexts.lock);
}

bool shca_netdevs_changed(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	if (!netdev_changed(proc->netdev_fd))
		return false;
	shca_netdevs_rescan(e);
	return true;
}

void shca_netdevs_rescan(struct engine *e)
{
	struct shca_process *proc = to_process(e);
	struct shca_context *ctx, *other;

	pthread_mutex_lock(&proc->contexts.lock);
	for (ctx = proc->contexts.first; ctx; ctx = ctx->next) {
		/* Contexts of one device share its table: read it once. */
		for (other = proc->contexts.first; other->dev != ctx->dev;)
			other = other->next;
		if (other == ctx)
			netdevs_rescan(e, ctx->dev);
	}
	pthread_mutex_unlock(&proc->contexts.lock);
}

void shca_netdevs_look(struct ibv_context *ctx)
{
	struct engine *e = to_ctx(ctx)->engine;

	if (!atomic_load_explicit(&e->started, memory_order_relaxed) &&
	    !engine_dead(e))
		e->ops->readable(e, to_process(e)->netdev_fd);
}

void shca_context_remove(struct engine *e, struct shca_context *ctx)
{
	struct shca_process *proc = to_process(e);
	struct shca_context **p;

	pthread_mutex_lock(&proc->contexts.lock);
	for (p = &proc->contexts.first; *p != ctx; p = &(*p)->next)
		;
	*p = ctx->next;
	pthread_mutex_unlock(&proc->contexts.lock);
}

int shca_netdevs_init(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	pthread_mutex_init(&proc->contexts.lock, NULL);
	/* Without it addresses are read when a device is opened, only. */
	proc->netdev_fd = netdev_watch_fd();
	return proc->netdev_fd < 0 ? 0 : engine_watch_fd(e, proc->netdev_fd);
}

void shca_netdevs_fini(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	if (proc->netdev_fd >= 0)
		sys_close(proc->netdev_fd);
	proc->netdev_fd = -1;
}

void shca_netdevs_away(struct engine *e)
{
	struct shca_process *proc = to_process(e);

	if (proc->netdev_fd >= 0)
		engine_unwatch_fd(e, proc->netdev_fd);
	shca_netdevs_fini(e);
	netdev_local_away();
}

int shca_netdevs_back(struct engine *e)
{
	struct shca_process *proc = to_process(e);
	int err = 0;

	netdev_local_back();
	proc->netdev_fd = netdev_watch_fd();
	if (proc->netdev_fd >= 0)
		err = engine_watch_fd(e, proc->netdev_fd);
	shca_netdevs_rescan(e);
	return err;
}
