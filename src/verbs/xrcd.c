/*
 * xrcd.c - extended reliable connections: domains, their SRQs, shared QPs
 *
 * A domain holds SRQs, found by the number that a packet carries, and the
 * XRC_RECV QPs whose messages go to them. Domains of one inode are one domain.
 * An XRC_RECV QP may be opened again by its number. Its handles share it, and
 * destroying the last one destroys it.
 *
 * Processes of one user share the domain of an inode: a QP of one may receive
 * messages for an SRQ of another (lease.c). A process with a domain holds a
 * lock on the inode, so that others see that the domain exists (O_EXCL, and
 * opening without O_CREAT) until the process ends, however it ends.
 *
 * Locks: a domain's list > a QP > the domain's numbers > an SRQ.
 */
#include "verbs.h"

#include "base/bytes.h"
#include "base/sys.h"
#include "base/why.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define BUCKETS 64
/* Where the lock is: beyond any byte that programs lock. */
#define LOCK_OFFSET 0x5348434158524344

struct shca_domain {
	struct shca_domain *next; /* refs, too: under the process's xrc.lock */
	unsigned refs; /* handles, SRQs and QPs */
	struct shca_device *dev;
	int fd; /* keeps the inode and its lock; -1: of no inode */
	_Atomic dev_t st_dev; /* both are read without the lock */
	_Atomic ino_t st_ino;

	pthread_rwlock_t numbers; /* of srq */
	struct shca_srq *srq[BUCKETS];
	_Atomic uint32_t nsrq;

	pthread_mutex_t list; /* of qps */
	struct shca_qp *qps;
};

struct shca_xrcd {
	struct ibv_xrcd xrcd;
	struct shca_domain *domain;
	_Atomic unsigned users;
};

static struct shca_xrcd *to_xrcd(struct ibv_xrcd *xrcd)
{
	return container_of(xrcd, struct shca_xrcd, xrcd);
}

/* Domains */

static void domain_put(struct engine *e, struct shca_domain *d)
{
	struct shca_domain **p;

	pthread_mutex_lock(&to_process(e)->xrc.lock);
	if (--d->refs) {
		pthread_mutex_unlock(&to_process(e)->xrc.lock);
		return;
	}
	for (p = &to_process(e)->xrc.domains; *p != d; p = &(*p)->next)
		;
	*p = d->next;
	pthread_mutex_unlock(&to_process(e)->xrc.lock);
	to_process(e)->xrc.ops->domain_gone(e, d);
	if (d->fd >= 0)
		sys_close(d->fd);
	pthread_rwlock_destroy(&d->numbers);
	free(d);
}

static void domain_get(struct engine *e, struct shca_domain *d)
{
	pthread_mutex_lock(&to_process(e)->xrc.lock);
	d->refs++;
	pthread_mutex_unlock(&to_process(e)->xrc.lock);
}

/*
 * Shows other processes that this one has a domain of the inode, and returns
 * whether one of them has. Without locks only this process knows.
 */
static bool is_open_elsewhere(int fd)
{
	struct flock lock = { .l_type = F_RDLCK,
			      .l_whence = SEEK_SET,
			      .l_start = LOCK_OFFSET,
			      .l_len = 1 };

	if (fcntl(fd, F_OFD_SETLK, &lock))
		return false;
	lock.l_type = F_WRLCK;
	lock.l_pid = 0;
	return !fcntl(fd, F_OFD_GETLK, &lock) && lock.l_type != F_UNLCK;
}

void shca_domains_away(struct engine *e)
{
	struct flock lock = { .l_type = F_UNLCK,
			      .l_whence = SEEK_SET,
			      .l_start = LOCK_OFFSET,
			      .l_len = 1 };

	pthread_mutex_lock(&to_process(e)->xrc.lock);
	for (struct shca_domain *d = to_process(e)->xrc.domains; d; d = d->next)
		if (d->fd >= 0)
			fcntl(d->fd, F_OFD_SETLK, &lock);
	pthread_mutex_unlock(&to_process(e)->xrc.lock);
}

void shca_domains_back(struct engine *e)
{
	struct stat st;

	pthread_mutex_lock(&to_process(e)->xrc.lock);
	for (struct shca_domain *d = to_process(e)->xrc.domains; d;
	     d = d->next) {
		if (d->fd < 0)
			continue;
		is_open_elsewhere(d->fd);
		/* It may be another file system's by now. */
		if (fstat(d->fd, &st))
			continue;
		d->st_dev = st.st_dev;
		d->st_ino = st.st_ino;
	}
	pthread_mutex_unlock(&to_process(e)->xrc.lock);
}

static int there_is_one(void)
{
	return why(-EINVAL, "the file has an XRC domain already, and O_EXCL "
			    "asks for a new one");
}

/* Fails with the errors of the kernel's uverbs. */
static int inode_open(struct shca_domain *d, int fd, int oflags)
{
	char path[32];
	bool exists;

	/* Its own open file description, for its own lock. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	d->fd = sys_open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0);
	if (d->fd < 0)
		d->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (d->fd < 0)
		return -errno;
	exists = is_open_elsewhere(d->fd);
	if (exists && oflags & O_CREAT && oflags & O_EXCL)
		return there_is_one();
	if (!exists && !(oflags & O_CREAT))
		return why(
			-EAGAIN,
			"the file has no XRC domain, and O_CREAT is not given");
	return 0;
}

static int domain_open(struct shca_context *ctx, int fd, int oflags,
		       struct shca_domain **out)
{
	struct engine *e = ctx->engine;
	struct shca_domain *d = NULL;
	struct stat st = { 0 };
	int err = 0;

	if (fd != -1 && fstat(fd, &st))
		return -errno;
	pthread_mutex_lock(&to_process(e)->xrc.lock);
	if (fd != -1)
		for (d = to_process(e)->xrc.domains; d; d = d->next)
			if (d->fd >= 0 && d->dev == ctx->dev &&
			    d->st_dev == st.st_dev && d->st_ino == st.st_ino)
				break;
	if (d) {
		if (oflags & O_CREAT && oflags & O_EXCL)
			err = there_is_one();
		else
			d->refs++;
		goto out;
	}
	d = calloc(1, sizeof(*d));
	if (!d) {
		err = -ENOMEM;
		goto out;
	}
	d->fd = -1;
	d->refs = 1;
	d->dev = ctx->dev;
	d->st_dev = st.st_dev;
	d->st_ino = st.st_ino;
	if (fd != -1)
		err = inode_open(d, fd, oflags);
	if (err) {
		if (d->fd >= 0)
			sys_close(d->fd);
		free(d);
		d = NULL;
		goto out;
	}
	pthread_rwlock_init(&d->numbers, NULL);
	pthread_mutex_init(&d->list, NULL);
	d->next = to_process(e)->xrc.domains;
	to_process(e)->xrc.domains = d;
out:
	pthread_mutex_unlock(&to_process(e)->xrc.lock);
	*out = d;
	return err;
}

int shca_xrcd_open(struct ibv_context *ibctx,
		   const struct ibv_xrcd_init_attr *attr, struct ibv_xrcd **out)
{
	const uint32_t needed =
		IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	struct shca_context *ctx = to_ctx(ibctx);
	struct shca_xrcd *xrcd;
	int err;

	if (engine_dead(ctx->engine))
		return -EIO;
	if (!ctx->dev->transport->has_xrc)
		return why(-EOPNOTSUPP, "%s has no XRC",
			   ctx->dev->transport->name);
	if (attr->comp_mask & ~needed)
		return -EOPNOTSUPP;
	if (attr->comp_mask != needed || attr->oflags & ~(O_CREAT | O_EXCL))
		return why(
			-EINVAL,
			"fd and oflags are needed, with both bits in "
			"comp_mask, and of the flags only O_CREAT and O_EXCL");
	xrcd = calloc(1, sizeof(*xrcd));
	if (!xrcd)
		return -ENOMEM;
	err = domain_open(ctx, attr->fd, attr->oflags, &xrcd->domain);
	if (err) {
		free(xrcd);
		return err;
	}
	xrcd->xrcd.context = ibctx;
	atomic_fetch_add(&ctx->users, 1);
	*out = &xrcd->xrcd;
	return 0;
}

int shca_xrcd_close(struct ibv_xrcd *ibxrcd)
{
	struct shca_context *ctx = to_ctx(ibxrcd->context);
	struct shca_xrcd *xrcd = to_xrcd(ibxrcd);

	if (engine_dead(ctx->engine))
		return -EIO;
	if (atomic_load(&xrcd->users))
		return why(-EBUSY,
			   "the XRC domain still has SRQs or QPs (%u): destroy "
			   "them first",
			   atomic_load(&xrcd->users));
	domain_put(ctx->engine, xrcd->domain);
	atomic_fetch_sub(&ctx->users, 1);
	free(xrcd);
	return 0;
}

/* SRQs */

static struct shca_srq **srq_slot(struct shca_domain *d, uint32_t num)
{
	struct shca_srq **p = &d->srq[num % BUCKETS];

	while (*p && (*p)->num != num)
		p = &(*p)->next;
	return p;
}

bool shca_domain_key(const struct shca_domain *d, uint8_t key[SHCA_DOMAIN_KEY])
{
	put_be64(key, d->st_dev);
	put_be64(key + 8, d->st_ino);
	memcpy(key + 16, d->dev->ifnames, IFNAMSIZ);
	/* Of rails, which one; a name ends before. */
	if (d->dev->rail.n)
		key[SHCA_DOMAIN_KEY - 1] = (uint8_t)(d->dev->index + 1);
	return d->fd >= 0;
}

bool shca_domain_has(struct shca_domain *d, uint32_t srqn)
{
	bool has;

	pthread_rwlock_rdlock(&d->numbers);
	has = *srq_slot(d, srqn) != NULL;
	pthread_rwlock_unlock(&d->numbers);
	return has;
}

struct shca_domain *shca_domain_find(struct engine *e,
				     const uint8_t key[SHCA_DOMAIN_KEY])
{
	uint8_t its[SHCA_DOMAIN_KEY];
	struct shca_domain *d;

	for (d = to_process(e)->xrc.domains; d; d = d->next)
		if (shca_domain_key(d, its) && !memcmp(its, key, sizeof(its)))
			break;
	return d;
}

int shca_xrc_srq_add(struct shca_srq *srq, struct ibv_xrcd *ibxrcd)
{
	struct engine *e = to_ctx(srq->srq.context)->engine;
	struct shca_xrcd *xrcd = to_xrcd(ibxrcd);
	struct shca_domain *d = xrcd->domain;
	struct shca_srq **p;
	uint32_t span;
	bool taken;
	int err = 0;

	/* Other processes may send messages for it. */
	if (d->fd >= 0)
		err = engine_start(e);
	if (err)
		return err;
	do {
		/* At most half of the numbers are taken. */
		span = (atomic_load(&d->nsrq) / (REGISTRY_CHUNK / 2) + 1) *
		       REGISTRY_CHUNK;
		err = engine_number(
			e,
			atomic_fetch_add(&to_process(e)->xrc.next_srqn, 1) %
				span,
			&srq->num);
		if (err)
			return err;
		pthread_rwlock_wrlock(&d->numbers);
		p = srq_slot(d, srq->num);
		taken = *p;
		if (!taken)
			*p = srq;
		pthread_rwlock_unlock(&d->numbers);
	} while (taken);
	atomic_fetch_add(&d->nsrq, 1);
	domain_get(e, d);
	atomic_fetch_add(&xrcd->users, 1);
	srq->xrcd = ibxrcd;
	return 0;
}

void shca_xrc_srq_remove(struct shca_srq *srq)
{
	struct engine *e = to_ctx(srq->srq.context)->engine;
	struct shca_xrcd *xrcd = to_xrcd(srq->xrcd);
	struct shca_domain *d = xrcd->domain;
	struct shca_qp *qp;

	pthread_rwlock_wrlock(&d->numbers);
	*srq_slot(d, srq->num) = srq->next;
	pthread_rwlock_unlock(&d->numbers);
	atomic_fetch_sub(&d->nsrq, 1);
	pthread_mutex_lock(&d->list);
	for (qp = d->qps; qp; qp = qp->xrc->next) {
		shca_qp_lock(qp);
		if (!qp->sched.dead) {
			roce_srq_gone(roce_qp(qp->core), srq->num);
			shca_qp_flush(qp, clock_ns());
		}
		shca_qp_unlock(qp);
	}
	pthread_mutex_unlock(&d->list);
	to_process(e)->xrc.ops->srq_gone(e, d, srq->num);
	atomic_fetch_sub(&xrcd->users, 1);
	domain_put(e, d);
}

int shca_xrc_env_take(struct qp *core, uint32_t num, struct qp_recv *out)
{
	const struct shca_qp *qp = core->owner;
	struct shca_domain *d = qp->xrc->domain;
	struct shca_srq *srq;
	int err = -ENOENT;

	pthread_rwlock_rdlock(&d->numbers);
	srq = *srq_slot(d, num);
	if (srq)
		err = shca_srq_take(srq, 0, out);
	if (!err)
		out->cq = srq->cq;
	pthread_rwlock_unlock(&d->numbers);
	return err;
}

int shca_xrc_env_pd(struct qp *core, uint32_t num, uint32_t *pd)
{
	const struct shca_qp *qp = core->owner;
	struct shca_domain *d = qp->xrc->domain;
	struct shca_srq *srq;

	pthread_rwlock_rdlock(&d->numbers);
	srq = *srq_slot(d, num);
	if (srq)
		*pd = to_pd(srq->srq.pd)->num;
	pthread_rwlock_unlock(&d->numbers);
	return srq ? 0 : -ENOENT;
}

/* QPs */

void shca_xrc_qp_add(struct shca_qp *qp, struct ibv_xrcd *ibxrcd)
{
	struct shca_xrcd *xrcd = to_xrcd(ibxrcd);
	struct shca_domain *d = xrcd->domain;

	domain_get(qp->sched.engine, d);
	atomic_fetch_add(&xrcd->users, 1);
	qp->xrc->xrcd = ibxrcd;
	qp->xrc->opens = 1;
	qp->xrc->domain = d;
	pthread_mutex_lock(&d->list);
	qp->xrc->next = d->qps;
	d->qps = qp;
	pthread_mutex_unlock(&d->list);
}

int shca_xrc_qp_open(struct ibv_context *ibctx,
		     const struct ibv_qp_open_attr *attr, struct ibv_qp **out)
{
	const uint32_t needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
				IBV_QP_OPEN_ATTR_TYPE;
	struct engine *e = to_ctx(ibctx)->engine;
	struct shca_domain *d;
	struct shca_qp *qp, *real;
	struct ibv_qp *ib;

	if (engine_dead(e))
		return -EIO;
	if (attr->comp_mask & ~(needed | IBV_QP_OPEN_ATTR_CONTEXT))
		return -EOPNOTSUPP;
	if ((attr->comp_mask & needed) != needed || !attr->xrcd ||
	    attr->qp_type != IBV_QPT_XRC_RECV)
		return why(-EINVAL,
			   "opening a QP needs qp_num, xrcd and qp_type "
			   "IBV_QPT_XRC_RECV, with their bits in comp_mask");
	qp = calloc(1, sizeof(*qp));
	if (qp)
		qp->xrc = calloc(1, sizeof(*qp->xrc));
	if (!qp || !qp->xrc) {
		free(qp);
		return -ENOMEM;
	}
	ib = &qp->ex.qp_base;
	ib->context = ibctx;
	if (attr->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT)
		ib->qp_context = attr->qp_context;
	ib->qp_type = IBV_QPT_XRC_RECV;
	ib->qp_num = attr->qp_num;
	pthread_mutex_init(&ib->mutex, NULL);
	pthread_cond_init(&ib->cond, NULL);
	shca_qp_init(qp, e, &shca_roce);

	d = to_xrcd(attr->xrcd)->domain;
	pthread_mutex_lock(&d->list);
	for (real = d->qps; real && shca_qpn(real) != attr->qp_num;)
		real = real->xrc->next;
	if (!real) {
		pthread_mutex_unlock(&d->list);
		shca_qp_put(qp);
		return why(
			-EINVAL,
			"the domain has no XRC_RECV QP 0x%06x in this process",
			attr->qp_num);
	}
	qp->xrc->real = real;
	shca_qp_get(real);
	shca_qp_lock(real);
	ib->state = real->core->state;
	qp->xrc->next = real->xrc->handles;
	real->xrc->handles = qp;
	real->xrc->opens++;
	shca_qp_unlock(real);
	pthread_mutex_unlock(&d->list);
	qp->xrc->xrcd = attr->xrcd;
	atomic_fetch_add(&to_xrcd(attr->xrcd)->users, 1);
	shca_live_add(&qp->live, ib, SHCA_QP);
	*out = ib;
	return 0;
}

bool shca_xrc_qp_close(struct shca_qp *qp)
{
	struct shca_qp *real = shca_xrc_real(qp), **p;
	struct shca_domain *d = real->xrc->domain;
	bool last;

	pthread_mutex_lock(&d->list);
	shca_qp_lock(real);
	if (qp != real) {
		for (p = &real->xrc->handles; *p != qp; p = &(*p)->xrc->next)
			;
		*p = qp->xrc->next;
	} else {
		real->xrc->abandoned = true;
	}
	last = !--real->xrc->opens;
	shca_qp_unlock(real);
	if (last) {
		for (p = &d->qps; *p != real; p = &(*p)->xrc->next)
			;
		*p = real->xrc->next;
	}
	pthread_mutex_unlock(&d->list);
	atomic_fetch_sub(&to_xrcd(qp->xrc->xrcd)->users, 1);
	return last;
}

void shca_xrc_qp_gone(struct shca_qp *real)
{
	domain_put(real->sched.engine, real->xrc->domain);
}

void shca_xrc_event(struct shca_qp *real, struct ibv_async_event *ev)
{
	const struct shca_xrc *xrc = real->xrc;
	struct shca_qp *qp;

	if (xrc->remote_rsp)
		to_process(real->sched.engine)
			->xrc.ops->event(real, ev->event_type);
	if (!xrc->abandoned)
		shca_async_raise(to_ctx(real->ex.qp_base.context), ev);
	for (qp = xrc->handles; qp; qp = qp->xrc->next) {
		ev->element.qp = &qp->ex.qp_base;
		shca_async_raise(to_ctx(qp->ex.qp_base.context), ev);
	}
}

int shca_xrc_init(struct engine *e)
{
	pthread_mutex_init(&to_process(e)->xrc.lock, NULL);
	return 0;
}
