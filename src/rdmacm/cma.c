/*
 * cma.c - the devices of librdmacm, its lock, and how it reports errors
 *
 * All devices are opened once and stay open, each with a protection domain for
 * identifiers whose program brings none. In the child of a fork() the parent's
 * devices and identifiers fail; the child opens its own devices with its first
 * call.
 */
#include "cma.h"

#include "base/bytes.h"
#include "base/sys.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

static struct {
	pthread_mutex_t lock; /* of setting this up */
	_Atomic(struct engine *) engine;
	struct cma_dev *dev;
	int ndev;
} cma = { .lock = PTHREAD_MUTEX_INITIALIZER };

pthread_mutex_t cma_ack_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cma_acked = PTHREAD_COND_INITIALIZER;

int cma_ret_of(const char *func, int err)
{
	if (err >= 0)
		return err;
	WHY_REPORT(func, err);
	errno = -err;
	return -1;
}

/* The kernel is asked for several at once. */
uint32_t cma_random(void)
{
	static _Thread_local struct {
		struct engine *e; /* a forked child has another */
		uint32_t left, word[64];
	} stock;

	if (!stock.left || stock.e != cma_engine()) {
		stock.left = 0;
		if (!sys_random(stock.word, sizeof(stock.word)))
			return (uint32_t)(clock_ns() * 0x9e3779b97f4a7c15u >>
					  32);
		stock.e = cma_engine();
		stock.left = ARRAY_SIZE(stock.word);
	}
	return stock.word[--stock.left];
}

static int dev_open(struct cma_dev *d, struct ibv_device *ibdev)
{
	struct ibv_device_attr attr;
	int err;

	d->verbs = ibv_open_device(ibdev);
	if (!d->verbs)
		return -errno;
	err = -ibv_query_device(d->verbs, &attr);
	if (!err) {
		d->pd = ibv_alloc_pd(d->verbs);
		if (!d->pd)
			err = -errno;
	}
	if (err) {
		ibv_close_device(d->verbs);
		return err;
	}
	shca_live_stays(&to_pd(d->pd)->live);
	d->max_responder_resources =
		(uint8_t)min_u32((uint32_t)attr.max_qp_rd_atom, 255);
	d->max_initiator_depth =
		(uint8_t)min_u32((uint32_t)attr.max_qp_init_rd_atom, 255);
	d->ack_delay = attr.local_ca_ack_delay;
	d->ops = ibdev->transport_type == IBV_TRANSPORT_IWARP ? &cma_iwarp :
								&cma_roce;
	return 0;
}

static int devices_open(void)
{
	static const struct shca_cm_user user = {
		.event = cma_on_cm_event,
		.changed = cma_netdevs_changed,
		.qp_gone = cma_qp_gone,
		.deadline = cma_await_deadline,
		.expire = cma_await_expire,
		.waits = cma_waits,
		.is_channel = cma_is_channel,
	};
	struct ibv_device **list;
	struct cma_dev *dev;
	struct engine *e;
	int n, i, count = 0, err = 0;

	list = ibv_get_device_list(&n);
	if (!list)
		return -errno;
	dev = calloc((size_t)n + 1, sizeof(*dev));
	if (!dev)
		err = -ENOMEM;
	for (i = 0; i < n && !err; i++) {
		err = dev_open(&dev[count], list[i]);
		if (!err)
			count++;
	}
	ibv_free_device_list(list);
	if (!err && !count)
		err = -ENODEV;
	if (err)
		goto err_close;
	e = to_ctx(dev[0].verbs)->engine;
	cma_await_init();
	err = shca_cm_open(
		e, be64toh(ibv_get_device_guid(dev[0].verbs->device)), &user);
	if (err)
		goto err_close;
	shca_iw_begin(e, cma_on_iw_event);
	cma_ports_init();
	/* those of a parent process, if any, are abandoned */
	cma.dev = dev;
	cma.ndev = count;
	atomic_store(&cma.engine, e);
	return 0;

err_close:
	while (count--) {
		ibv_dealloc_pd(dev[count].pd);
		ibv_close_device(dev[count].verbs);
	}
	free(dev);
	return err;
}

int cma_init(void)
{
	struct engine *e = atomic_load(&cma.engine);
	int err = 0;

	if (e && !engine_dead(e))
		return 0;
	pthread_mutex_lock(&cma.lock);
	e = atomic_load(&cma.engine);
	if (!e || engine_dead(e))
		err = devices_open();
	pthread_mutex_unlock(&cma.lock);
	return err;
}

struct engine *cma_engine(void)
{
	return atomic_load(&cma.engine);
}

struct cma_dev *cma_devices(int *n)
{
	*n = cma.ndev;
	return cma.dev;
}

struct cma_dev *cma_dev_find(const union ibv_gid *gid, bool any,
			     struct netdev_gid *via)
{
	for (int i = 0; i < cma.ndev; i++) {
		struct shca_device *dev = to_ctx(cma.dev[i].verbs)->dev;

		if ((any || cma.dev[i].ops != &cma_iwarp) &&
		    shca_device_addr(dev, gid, via))
			return &cma.dev[i];
	}
	return NULL;
}

struct cma_dev *cma_dev_of(const union ibv_gid *gid, bool any,
			   struct netdev_gid *via)
{
	struct cma_dev *d = cma_dev_find(gid, any, via);

	if (d || !netdev_is_local(gid))
		return d;
	/* the address is newer than the tables */
	for (int i = 0; i < cma.ndev; i++)
		shca_device_rescan(to_ctx(cma.dev[i].verbs)->dev, cma.engine);
	return cma_dev_find(gid, any, via);
}

struct cm *cma_lock(void)
{
	return shca_cm_lock(cma.engine);
}

void cma_unlock(void)
{
	shca_cm_unlock(cma.engine);
}

struct ibv_xrcd *cma_xrcd(struct cma_dev *dev)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
		.fd = -1, /* of this process alone */
		.oflags = O_CREAT,
	};

	pthread_mutex_lock(&cma.lock);
	if (!dev->xrcd)
		dev->xrcd = ibv_open_xrcd(dev->verbs, &attr);
	pthread_mutex_unlock(&cma.lock);
	return dev->xrcd;
}

struct ibv_context **rdma_get_devices(int *num_devices)
{
	struct ibv_context **list;
	int err = cma_init();

	if (err) {
		errno = -err;
		return NULL;
	}
	list = calloc((size_t)cma.ndev + 1, sizeof(struct ibv_context *));
	if (!list) {
		errno = ENOMEM;
		return NULL;
	}
	for (int i = 0; i < cma.ndev; i++)
		list[i] = cma.dev[i].verbs;
	if (num_devices)
		*num_devices = cma.ndev;
	return list;
}

void rdma_free_devices(struct ibv_context **list)
{
	free(list);
}
