/*
 * id.c - identifiers: made, moved between channels, tuned and destroyed
 */
#include "cma.h"

#include "tcp_port.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct cma_id *ids; /* all of them, under the lock */

struct cma_id *cma_id_new(enum rdma_port_space ps, enum ibv_qp_type type,
			  void *context)
{
	struct cma_id *id = calloc(1, sizeof(*id));

	if (!id)
		return NULL;
	id->id.ps = ps;
	id->id.qp_type = type;
	id->id.context = context;
	/* A program with a QP of its own moves it to RTR before it accepts. */
	id->local.psn = cma_random() & 0xffffff;
	id->next = ids;
	id->link = &ids;
	if (ids)
		ids->link = &id->next;
	ids = id;
	return id;
}

void cma_id_set_channel(struct cma_id *id, struct cma_channel *ch)
{
	if (id->id.channel)
		to_channel(id->id.channel)->ids--;
	id->id.channel = ch ? &ch->ch : NULL;
	if (ch)
		ch->ids++;
}

void cma_ids_orphan(struct cma_channel *ch)
{
	for (struct cma_id *id = ids; id && ch->ids; id = id->next)
		if (id->id.channel == &ch->ch)
			cma_id_set_channel(id, NULL);
}

void cma_ids_each(void (*fn)(void *arg, const struct cma_id *id), void *arg)
{
	for (const struct cma_id *id = ids; id; id = id->next)
		fn(arg, id);
}

bool cma_is_channel(void *arg, int fd)
{
	(void)arg;
	for (const struct cma_id *id = ids; id; id = id->next)
		if (id->id.channel && id->id.channel->fd == fd)
			return true;
	return false;
}

void cma_id_detach(struct cma_id *id, struct cm *cm)
{
	if (id->conn)
		cm_close(cm, id->conn, clock_ns());
	id->conn = NULL;
	cma_iw_detach(id);
	cma_await_drop(id);
	if (id->listener)
		cm_unlisten(cm, id->listener);
	id->listener = NULL;
	cma_qp_drop(id);
	if (id->id.channel)
		cma_events_move(id, to_channel(id->id.channel), NULL, cm);
	cma_id_set_channel(id, NULL);
	if (id->link) {
		*id->link = id->next;
		if (id->next)
			id->next->link = id->link;
	}
	id->link = NULL;
}

static void report_event(struct cma_id *id, enum rdma_cm_event_type type)
{
	struct cma_event *ev = cma_event_new(id, type, 0);

	if (ev)
		cma_event_post(ev);
}

/*
 * Only an address that is found at other hardware than before is an event. One
 * that is gone may come back, and connections live on; so that is none, nor is
 * an interface that goes down. A synchronous identifier gets neither.
 */
void cma_netdevs_changed(void *arg)
{
	(void)arg;
	for (struct cma_id *id = ids; id; id = id->next) {
		const struct netdev_gid *was = id->moved ? &id->now : &id->via;
		struct netdev_gid now;

		if (!id->dev || id->sync || id->removed)
			continue;
		if (!shca_device_present(to_ctx(id->dev->verbs)->dev)) {
			id->removed = true;
			report_event(id, RDMA_CM_EVENT_DEVICE_REMOVAL);
			continue;
		}
		if (!shca_device_addr(to_ctx(id->dev->verbs)->dev, &id->via.gid,
				      &now) ||
		    (now.ifindex == was->ifindex &&
		     !memcmp(now.mac, was->mac, sizeof(now.mac))))
			continue;
		id->now = now;
		id->moved = true;
		report_event(id, RDMA_CM_EVENT_ADDR_CHANGE);
	}
}

void cma_id_free(struct cma_id *id)
{
	free(id->ep_qp);
	free(id);
}

static int no_port_space(enum rdma_port_space ps)
{
	return why(-EINVAL,
		   "port space 0x%x: RDMA_PS_TCP, RDMA_PS_UDP and RDMA_PS_IB "
		   "exist here, and with devices of InfiniBand RDMA_PS_IPOIB",
		   (unsigned)ps);
}

int cma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out,
		  void *context, enum rdma_port_space ps, enum ibv_qp_type type)
{
	struct cma_channel *own = NULL;
	struct cma_id *id;
	int err;

	switch (ps) {
	case RDMA_PS_TCP:
		type = IBV_QPT_RC;
		break;
	case RDMA_PS_UDP:
		type = IBV_QPT_UD;
		break;
	case RDMA_PS_IB:
		break;
	case RDMA_PS_IPOIB:
		type = IBV_QPT_UD;
		break;
	default:
		return no_port_space(ps);
	}
	err = cma_init();
	if (err)
		return err;
	/* There is no IPoIB on Ethernet. */
	if (ps == RDMA_PS_IPOIB && !cma_infiniband(NULL, NULL))
		return no_port_space(ps);
	if (!channel) {
		own = cma_channel_new();
		if (!own)
			return -errno;
	}
	cma_lock();
	id = cma_id_new(ps, type, context);
	if (id) {
		id->sync = !channel;
		cma_id_set_channel(id, channel ? to_channel(channel) : own);
	}
	cma_unlock();
	if (!id) {
		if (own)
			rdma_destroy_event_channel(&own->ch);
		return -ENOMEM;
	}
	*out = &id->id;
	return 0;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id,
		   void *context, enum rdma_port_space ps)
{
	return cma_ret(cma_create_id(channel, id, context, ps, IBV_QPT_RC));
}

static void ack_unlock(void *arg)
{
	(void)arg;
	pthread_mutex_unlock(&cma_ack_lock);
}

void cma_wait_acked(const uint32_t *completed, const uint32_t *reported,
		    const char *call)
{
	struct shca_ack_wait w;

	pthread_mutex_lock(&cma_ack_lock);
	/* The thread may be cancelled while it sleeps. */
	pthread_cleanup_push(ack_unlock, NULL);
	if (*completed != *reported) {
		shca_ack_wait_begin(&w, call, "rdma_ack_cm_event()",
				    *reported - *completed);
		pthread_cleanup_push(shca_ack_wait_end, &w);
		while (*completed != *reported)
			pthread_cond_wait(&cma_acked, &cma_ack_lock);
		pthread_cleanup_pop(1);
	}
	pthread_cleanup_pop(1);
}

int rdma_destroy_id(struct rdma_cm_id *ib)
{
	struct cma_id *id = to_id(ib);
	struct rdma_event_channel *channel = ib->channel;
	struct cm *cm;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	cma_mc_leave_all(id);
	cm = cma_lock();
	cma_id_detach(id, cm);
	cma_unlock();
	cma_listen_stop(id);
	cma_port_put(id);
	if (ib->event)
		rdma_ack_cm_event(ib->event);
	cma_wait_acked(&id->completed, &id->reported, "rdma_destroy_id()");
	if (id->sync && channel)
		rdma_destroy_event_channel(channel);
	cma_id_free(id);
	return 0;
}

int rdma_migrate_id(struct rdma_cm_id *ib, struct rdma_event_channel *channel)
{
	struct cma_id *id = to_id(ib);
	struct rdma_event_channel *old = ib->channel;
	struct cma_channel *to;
	bool was_sync = id->sync;
	struct cm *cm;

	if (was_sync && !channel)
		return cma_ret(why(-EINVAL, "the identifier is synchronous "
					    "already: give a channel"));
	to = channel ? to_channel(channel) : cma_channel_new();
	if (!to)
		return -1;
	cm = cma_lock();
	if (old)
		cma_events_move(id, to_channel(old), to, cm);
	cma_id_set_channel(id, to);
	id->sync = !channel;
	cma_unlock();
	if (was_sync) {
		if (ib->event)
			rdma_ack_cm_event(ib->event);
		ib->event = NULL;
		if (old)
			rdma_destroy_event_channel(old);
	}
	cma_wait_acked(&id->completed, &id->reported, "rdma_migrate_id()");
	return 0;
}

static int wrong_size(size_t len, size_t want)
{
	return why(
		-EINVAL,
		"optlen is %zu; this option has %zu (and optval is not NULL)",
		len, want);
}

static int option_int(const void *val, size_t len, int *out)
{
	if (len != sizeof(*out) || !val)
		return wrong_size(len, sizeof(*out));
	memcpy(out, val, sizeof(*out));
	return 0;
}

static int option_byte(const void *val, size_t len, uint8_t *out)
{
	if (len != sizeof(*out) || !val)
		return wrong_size(len, sizeof(*out));
	*out = *(const uint8_t *)val;
	return 0;
}

static int set_id_option(struct cma_id *id, int name, const void *val,
			 size_t len)
{
	uint8_t byte = 0;
	int n = 0, err;

	switch (name) {
	case RDMA_OPTION_ID_TOS:
		err = option_byte(val, len, &byte);
		if (err)
			return err;
		id->tos = byte;
		id->tos_set = true;
		id->path.tclass = byte;
		return 0;
	case RDMA_OPTION_ID_REUSEADDR:
		err = option_int(val, len, &n);
		if (err)
			return err;
		if (id->state == CMA_LISTEN && n)
			return cma_wrong_state(id, "too late for this option");
		id->reuse = n;
		return 0;
	case RDMA_OPTION_ID_AFONLY:
		err = option_int(val, len, &n);
		if (err)
			return err;
		if (id->state != CMA_IDLE && id->state != CMA_ADDR_BOUND)
			return cma_wrong_state(id, "too late for this option");
		id->afonly = n;
		return 0;
	case RDMA_OPTION_ID_TCP_PORT:
		err = option_int(val, len, &n);
		if (err)
			return err;
		id->shares_port = n;
		return 0;
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		err = option_byte(val, len, &byte);
		if (err)
			return err;
		if (id->id.qp_type != IBV_QPT_RC &&
		    id->id.qp_type != IBV_QPT_XRC_SEND)
			return why(-EINVAL,
				   "only reliable QPs have an ACK timeout");
		id->ack_timeout = byte & 0x1f; /* five bits in the message */
		id->ack_timeout_set = true;
		return 0;
	default:
		return -ENOSYS;
	}
}

/* Of this host nobody has to report that it is there. */
static int get_heard(struct cma_id *id, void *val, size_t len)
{
	int heard = netdev_ifindex(&id->path.dgid) != 0;

	if (len != sizeof(heard) || !val)
		return wrong_size(len, sizeof(heard));
	cma_lock();
	if (id->conn && cm_heard(id->conn))
		heard = 1;
	cma_unlock();
	memcpy(val, &heard, sizeof(heard));
	return 0;
}

int rdma_set_option(struct rdma_cm_id *ib, int level, int optname, void *optval,
		    size_t optlen)
{
	struct cma_id *id = to_id(ib);
	int err = -ENOSYS;

	if (engine_dead(cma_engine()))
		return cma_ret(-EIO);
	if (level == RDMA_OPTION_ID && optname == RDMA_OPTION_ID_HEARD) {
		err = get_heard(id, optval, optlen);
	} else if (level == RDMA_OPTION_ID) {
		cma_lock();
		err = set_id_option(id, optname, optval, optlen);
		cma_unlock();
	}
	/* RDMA_OPTION_IB: a program cannot know a path in RoCE */
	return cma_ret(err);
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return htobe16(cma_port(&id->route.addr.src_addr));
}

__be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
	return htobe16(cma_port(&id->route.addr.dst_addr));
}

int rdma_set_local_ece(struct rdma_cm_id *ib, struct ibv_ece *ece)
{
	/* a QP of ours does that itself */
	if (!ece || ib->qp)
		return cma_ret(why(
			-EINVAL, "ece is NULL, or the QP is one of "
				 "rdma_create_qp(), which handles ECE itself"));
	to_id(ib)->local.ece.vendor_id = ece->vendor_id;
	to_id(ib)->local.ece.options = ece->options;
	return 0;
}

int rdma_get_remote_ece(struct rdma_cm_id *ib, struct ibv_ece *ece)
{
	if (!ece || ib->qp)
		return cma_ret(why(
			-EINVAL, "ece is NULL, or the QP is one of "
				 "rdma_create_qp(), which handles ECE itself"));
	ece->vendor_id = to_id(ib)->peer.ece.vendor_id;
	ece->options = to_id(ib)->peer.ece.options;
	ece->comp_mask = 0;
	return 0;
}
