/*
 * port.c - ports of identifiers
 *
 * Within this process, identifiers share the ports of a port space as sockets
 * share those of TCP. What may become a listener also reserves its port in the
 * registry of this host's processes.
 */
#include "cma.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define FIRST_FREE_PORT 32768
#define LAST_FREE_PORT 60999
#define FIRST_USER_PORT 1024
#define PORT_BUCKETS 1024

static struct cma_id *ports[PORT_BUCKETS]; /* under the lock */

uint64_t cma_service_id(const struct cma_id *id, uint16_t port)
{
	return IPCM_SERVICE_ID(id->id.ps, port);
}

/* An IPv4 address never stands for IPv6 as well. */
unsigned cma_families(const struct cma_id *id)
{
	const int family = id->id.route.addr.src_addr.sa_family;

	if (family == AF_INET || family == AF_IB)
		return CM_LISTEN_V4;
	return id->afonly ? CM_LISTEN_V6 : CM_LISTEN_V4 | CM_LISTEN_V6;
}

/* 0 if both may have one port, by the rules of Linux. */
static int port_conflict(struct cma_id *a, struct cma_id *b, bool reuse)
{
	const struct sockaddr *x = cma_src(a), *y = cma_src(b);
	union ibv_gid g, h;

	if ((reuse && b->reuse) || !(cma_families(a) & cma_families(b)))
		return 0;
	if (cma_addr_any(x) || cma_addr_any(y))
		return -EADDRNOTAVAIL;
	cma_addr_gid(x, &g);
	cma_addr_gid(y, &h);
	return memcmp(&g, &h, sizeof(g)) ? 0 : -EADDRINUSE;
}

static int port_check(struct cma_id *id, uint16_t port, bool reuse)
{
	struct cma_text at;

	for (struct cma_id *o = ports[port % PORT_BUCKETS]; o;
	     o = o->next_on_port) {
		int err;

		if (o == id || o->port != port || o->id.ps != id->id.ps)
			continue;
		err = port_conflict(id, o, reuse);
		if (err)
			return why(err,
				   "port %u is used by another identifier of "
				   "this process, for %s%s",
				   port, cma_addr_str(cma_src(o), &at),
				   o->state == CMA_LISTEN ?
					   ", which listens" :
					   " (RDMA_OPTION_ID_REUSEADDR lets "
					   "both have it)");
	}
	return 0;
}

static void port_add(struct cma_id *id, uint16_t port)
{
	id->port = port;
	id->on_port = true;
	id->next_on_port = ports[port % PORT_BUCKETS];
	ports[port % PORT_BUCKETS] = id;
	cma_set_port(&id->id.route.addr.src_storage, port);
}

static void port_del(struct cma_id *id)
{
	struct cma_id **p = &ports[id->port % PORT_BUCKETS];

	while (*p != id)
		p = &(*p)->next_on_port;
	*p = id->next_on_port;
	id->on_port = false;
}

static const union ibv_gid *reserved_gid(struct cma_id *id, union ibv_gid *gid)
{
	if (cma_addr_any(cma_src(id)))
		return NULL;
	cma_own_gid(id, gid);
	return gid;
}

/*
 * Whether another identifier of this process has reserved the port for what id
 * stands for.
 */
static bool reserved_here(struct cma_id *id)
{
	union ibv_gid g, h;

	for (struct cma_id *o = ports[id->port % PORT_BUCKETS]; o;
	     o = o->next_on_port) {
		const union ibv_gid *x, *y;

		if (o == id || o->port != id->port || o->id.ps != id->id.ps ||
		    !(o->reserved & cma_families(id)))
			continue;
		x = reserved_gid(id, &g);
		y = reserved_gid(o, &h);
		if (!x || !y || !memcmp(x, y, sizeof(*x)))
			return true;
	}
	return false;
}

/*
 * Held from the lookup of a port's identifiers to the registry's answer, which
 * may take a while: an identifier that is found stays meanwhile, since it gives
 * its port back before it goes. Taken before cma_lock().
 */
static pthread_mutex_t reserving = PTHREAD_MUTEX_INITIALIZER;

void cma_ports_init(void)
{
	pthread_mutex_init(&reserving, NULL);
}

static bool port_is_taken(int err)
{
	return err == -EADDRINUSE || err == -EADDRNOTAVAIL;
}

/* Another process of this host has the port: which one? */
static int port_is_elsewhere(struct cma_id *id, int err)
{
	const struct registry *r = cma_engine()->registry;
	union ibv_gid gid;
	pid_t pid = 0;
	int slot;

	if (!why_wanted())
		return err;
	/* 0.0.0.0 as well: the registry looks for listeners to any then. */
	cma_own_gid(id, &gid);
	slot = registry_listener(r, cma_service_id(id, id->port), &gid);
	if (slot < 0 || !registry_holder(r, (unsigned)slot, &pid) || !pid)
		return why(err,
			   "another process of this host listens on port %u",
			   id->port);
	return why(err, "process %d of this host listens on port %u", (int)pid,
		   id->port);
}

/* -EADDRINUSE or -EADDRNOTAVAIL if another process has it. */
static int reserve_port(struct cma_id *id)
{
	union ibv_gid gid;
	bool have;
	int err;

	cma_lock();
	have = id->reserved || reserved_here(id);
	cma_unlock();
	if (have)
		return 0;
	err = shca_cm_reserve(cma_engine(), cma_service_id(id, id->port),
			      reserved_gid(id, &gid), cma_families(id));
	if (!err)
		id->reserved = cma_families(id);
	/* the same errors as within a process */
	if (err == -EADDRINUSE && cma_addr_any(cma_src(id)))
		err = -EADDRNOTAVAIL;
	return port_is_taken(err) ? port_is_elsewhere(id, err) : err;
}

static void port_put(struct cma_id *id);

static int port_find(struct cma_id *id, uint16_t port, bool any_process)
{
	uint32_t n = LAST_FREE_PORT - FIRST_FREE_PORT + 1;
	uint32_t start = cma_random() % n, i = 0;
	int err;

	if (port) {
		if (port < FIRST_USER_PORT && geteuid())
			return why(-EACCES,
				   "port %u: those below %d are root's", port,
				   FIRST_USER_PORT);
		cma_lock();
		err = port_check(id, port, id->reuse);
		if (!err)
			port_add(id, port);
		cma_unlock();
		if (err || !any_process)
			return err;
		err = reserve_port(id);
		if (!port_is_taken(err))
			return 0; /* -ENOSPC: listening will try again */
		port_put(id);
		return err;
	}
	for (; i < n; i++) {
		port = (uint16_t)(FIRST_FREE_PORT + (start + i) % n);
		cma_lock();
		err = port_check(id, port, false);
		if (!err)
			port_add(id, port);
		cma_unlock();
		if (err)
			continue;
		if (!any_process || !port_is_taken(reserve_port(id)))
			return 0;
		port_put(id);
	}
	return why(-EADDRNOTAVAIL, "no port from %d to %d is free",
		   FIRST_FREE_PORT, LAST_FREE_PORT);
}

int cma_port_get(struct cma_id *id, uint16_t port, bool any_process)
{
	int err;

	pthread_mutex_lock(&reserving);
	err = port_find(id, port, any_process);
	pthread_mutex_unlock(&reserving);
	if (!err)
		why_forget(); /* of ports that were tried */
	return err;
}

static void port_put(struct cma_id *id)
{
	unsigned reserved = id->reserved;
	struct cma_id *o, *heir;
	union ibv_gid gid;

	cma_lock();
	port_del(id);
	id->reserved = 0;
	cma_unlock();
	if (!reserved)
		return;
	shca_cm_release(cma_engine(), cma_service_id(id, id->port),
			reserved_gid(id, &gid), reserved);
	/* others on this port that relied on it reserve it themselves */
	do {
		cma_lock();
		heir = NULL;
		for (o = ports[id->port % PORT_BUCKETS]; o && !heir;
		     o = o->next_on_port)
			if (o->port == id->port && o->id.ps == id->id.ps &&
			    !o->reserved && !reserved_here(o))
				heir = o;
		cma_unlock();
	} while (heir && !reserve_port(heir));
}

void cma_port_put(struct cma_id *id)
{
	if (!id->on_port)
		return;
	pthread_mutex_lock(&reserving);
	port_put(id);
	pthread_mutex_unlock(&reserving);
}

int cma_port_listen(struct cma_id *id)
{
	int err = cma_late_dev(id);

	if (err)
		return err;
	/* a port may be shared until one begins to listen */
	if (id->reuse) {
		cma_lock();
		err = port_check(id, id->port, false);
		if (!err)
			id->reuse = false;
		cma_unlock();
	}
	if (err)
		return err;
	pthread_mutex_lock(&reserving);
	err = reserve_port(id);
	pthread_mutex_unlock(&reserving);
	return err;
}
