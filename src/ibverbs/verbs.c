/*
 * verbs.c - the functions of libibverbs.so.1 that work on objects
 *
 * Each says in its first line which of three conventions it follows: some
 * return an errno value, some -1, some NULL; all set errno (verbs/verbs.h).
 */
#include "verbs/verbs.h"
#include "process/process.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

/* Devices and contexts */

struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **list = NULL;
	int n = 0, err = shca_device_list(&list, &n);

	if (num)
		*num = err ? 0 : n;
	return POINTER(err, list);
}

void ibv_free_device_list(struct ibv_device **list)
{
	free(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

__be64 ibv_get_device_guid(struct ibv_device *device)
{
	return to_device(device)->guid;
}

int ibv_get_device_index(struct ibv_device *device)
{
	return to_device(device)->index;
}

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
	struct ibv_context *ctx;

	return POINTER(shca_open(device, &ctx), ctx);
}

int ibv_close_device(struct ibv_context *ctx)
{
	return minus_one(shca_close(ctx));
}

int ibv_query_device(struct ibv_context *ctx, struct ibv_device_attr *attr)
{
	shca_query_device(ctx, attr);
	return 0;
}

/*
 * Called by programs built with a header from before 2020, where the struct
 * ends after flags; newer ones call through the context. No byte more is
 * written.
 */
int ibv_query_port(struct ibv_context *ctx, uint8_t port,
		   struct _compat_ibv_port_attr *out)
{
	return number(shca_query_port_compat(ctx, port, out));
}

/* Addresses and partitions */

static void no_gid(struct ibv_context *ctx, uint32_t port, int index)
{
	why(-EINVAL,
	    "port %u, index %d: port 1 has a GID table of %d entries, counted "
	    "from 0",
	    port, index, to_ctx(ctx)->dev->gid_tbl_len);
}

int ibv_query_gid(struct ibv_context *ctx, uint8_t port, int index,
		  union ibv_gid *out)
{
	struct netdev_gid gid;
	int err;

	shca_netdevs_look(ctx);
	err = index < 0 ?
		      -EINVAL :
		      shca_gid(to_ctx(ctx)->dev, port, (uint32_t)index, &gid);
	if (err == -EINVAL)
		no_gid(ctx, port, index);
	/* A hole reads as zeros: programs walk the table and stop at errors. */
	if (err && err != -ENODATA)
		return minus_one(err);
	*out = gid.gid;
	return 0;
}

static void gid_entry(const struct shca_device *dev,
		      struct ibv_gid_entry *entry, uint32_t index,
		      const struct netdev_gid *gid)
{
	*entry = (struct ibv_gid_entry){
		.gid = gid->gid,
		.gid_index = index,
		.port_num = 1,
		.gid_type = shca_gid_type(dev, index),
		/* A port of InfiniBand is no interface. */
		.ndev_ifindex =
			dev->naming == &shca_naming_lid ? 0 : gid->ifindex,
	};
}

/* The program's struct may be shorter or longer than ours. */
static void entry_out(void *out, size_t size, const struct ibv_gid_entry *entry)
{
	memset(out, 0, size);
	memcpy(out, entry, MIN(size, sizeof(*entry)));
}

int _ibv_query_gid_ex(struct ibv_context *ctx, uint32_t port, uint32_t index,
		      struct ibv_gid_entry *out, uint32_t flags, size_t size)
{
	struct ibv_gid_entry entry;
	struct netdev_gid gid;
	int err;

	shca_netdevs_look(ctx);
	err = flags ? why(-EOPNOTSUPP, "flags 0x%x: none are known", flags) :
		      shca_gid(to_ctx(ctx)->dev, port, index, &gid);
	if (err == -EINVAL)
		no_gid(ctx, port, (int)index);
	if (err)
		return number(err);
	gid_entry(to_ctx(ctx)->dev, &entry, index, &gid);
	entry_out(out, size, &entry);
	return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *ctx,
			     struct ibv_gid_entry *entries, size_t max,
			     uint32_t flags, size_t size)
{
	struct shca_device *dev = to_ctx(ctx)->dev;
	struct ibv_gid_entry entry;
	struct netdev_gid gid;
	uint32_t i;
	size_t n = 0;

	if (flags)
		return -EOPNOTSUPP;
	shca_netdevs_look(ctx);
	for (i = 0; i < (uint32_t)dev->gid_tbl_len; i++) {
		if (shca_gid(dev, 1, i, &gid))
			continue;
		if (n == max)
			return -EINVAL;
		gid_entry(dev, &entry, i, &gid);
		entry_out((char *)entries + n++ * size, size, &entry);
	}
	return (ssize_t)n;
}

int ibv_query_pkey(struct ibv_context *ctx, uint8_t port, int index,
		   __be16 *pkey)
{
	(void)ctx;
	if (port != 1 || index != 0)
		return minus_one(why(-EINVAL,
				     "port %u, index %d: there is one port, 1, "
				     "with one P_Key, index 0",
				     port, index));
	*pkey = htobe16(ROCE_PKEY_DEFAULT);
	return 0;
}

int ibv_get_pkey_index(struct ibv_context *ctx, uint8_t port, __be16 pkey)
{
	(void)ctx;
	if (port != 1 || pkey != htobe16(ROCE_PKEY_DEFAULT))
		return minus_one(why(-EINVAL,
				     "port %u, P_Key 0x%04x: port 1 has 0x%04x "
				     "alone (in network byte order)",
				     port, be16toh(pkey), ROCE_PKEY_DEFAULT));
	return 0;
}

/* Protection domains and memory regions */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *ctx)
{
	struct ibv_pd *pd;

	return POINTER(shca_pd_alloc(ctx, &pd), pd);
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	return number(shca_pd_free(pd));
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length,
				uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr;

	return POINTER(shca_mr_reg(pd, addr, length, iova, (int)access, &mr),
		       mr);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length,
			       uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length,
			  int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr,
				(unsigned int)access);
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr,
		 size_t length, int access)
{
	const bool move = flags & IBV_REREG_MR_CHANGE_TRANSLATION;
	int err = shca_check(mr, SHCA_MR);

	if (minus_one(err))
		return IBV_REREG_MR_ERR_CMD;
	if (!shca_mr_is_plain(mr) || (flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) ||
	    (move && (!addr || !length)) ||
	    (access && !(flags & IBV_REREG_MR_CHANGE_ACCESS))) {
		minus_one(
			why(-EINVAL,
			    !shca_mr_is_plain(mr) ?
				    "the region (lkey 0x%08x) is not of the "
				    "program's own memory" :
				    "the region (lkey 0x%08x): flags do not "
				    "fit the arguments: address and length go "
				    "with IBV_REREG_MR_CHANGE_TRANSLATION, "
				    "access with IBV_REREG_MR_CHANGE_ACCESS",
			    mr->lkey));
		return IBV_REREG_MR_ERR_INPUT;
	}
	err = shca_mr_rereg(mr, flags, pd, addr, length, access);
	return minus_one(err) ? IBV_REREG_MR_ERR_CMD : 0;
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset,
				 size_t length, uint64_t iova, int fd,
				 int access)
{
	struct ibv_mr *mr;

	return POINTER(
		shca_mr_dmabuf(pd, offset, length, iova, fd, access, &mr), mr);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	return number(shca_mr_dereg(mr));
}

/* Declared for providers only, in rdma-core's driver.h. */
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);

/* A child sees its own copy of the memory, and nothing of it is pinned. */

int ibv_fork_init(void)
{
	return 0;
}

enum ibv_fork_status ibv_is_fork_initialized(void)
{
	return IBV_FORK_UNNEEDED;
}

int ibv_dontfork_range(void *base, size_t size)
{
	(void)base;
	(void)size;
	return 0;
}

int ibv_dofork_range(void *base, size_t size)
{
	(void)base;
	(void)size;
	return 0;
}

/* Completions and events */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ctx)
{
	struct ibv_comp_channel *ch;

	return POINTER(shca_channel_create(ctx, &ch), ch);
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	return number(shca_channel_destroy(ch));
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ctx, int cqe, void *cq_context,
			     struct ibv_comp_channel *ch, int comp_vector)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = cqe < 0 ? 0 : (uint32_t)cqe,
		.cq_context = cq_context,
		.channel = ch,
		.comp_vector = (uint32_t)comp_vector,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	struct ibv_cq *cq;

	return POINTER(shca_cq_create(ctx, &attr, &cq), cq);
}

int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	return number(shca_cq_resize(cq, cqe));
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	return number(shca_cq_destroy(cq));
}

int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq,
		     void **cq_context)
{
	return minus_one(shca_channel_get(ch, cq, cq_context));
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

int ibv_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	return minus_one(shca_async_get(ctx, event));
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
	shca_async_ack(event);
}

/* Shared receive queues */

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd,
			       struct ibv_srq_init_attr *attr)
{
	struct ibv_srq_init_attr_ex ex = {
		.srq_context = attr->srq_context,
		.attr = attr->attr,
		.comp_mask = IBV_SRQ_INIT_ATTR_PD,
		.pd = pd,
	};
	struct ibv_srq *srq;

	if (minus_one(shca_srq_create(&ex, &srq)))
		return NULL;
	attr->attr = ex.attr;
	return srq;
}

int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr, int mask)
{
	return number(shca_srq_modify(srq, attr, mask));
}

int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *attr)
{
	return number(shca_srq_query(srq, attr));
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
	return number(shca_srq_destroy(srq));
}

/* Address handles */

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ibv_ah *ah;

	return POINTER(shca_ah_create(pd, attr, &ah), ah);
}

int ibv_init_ah_from_wc(struct ibv_context *ctx, uint8_t port,
			struct ibv_wc *wc, struct ibv_grh *grh,
			struct ibv_ah_attr *attr)
{
	return minus_one(shca_ah_init_from_wc(ctx, port, wc, grh, attr));
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc,
				     struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;

	if (minus_one(shca_check(pd, SHCA_PD)) ||
	    ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

int ibv_resolve_eth_l2_from_gid(struct ibv_context *ctx,
				struct ibv_ah_attr *attr,
				uint8_t eth_mac[ETHERNET_LL_SIZE],
				uint16_t *vid)
{
	return minus_one(shca_resolve_l2(ctx, attr, eth_mac, vid));
}

int ibv_destroy_ah(struct ibv_ah *ah)
{
	return number(shca_ah_destroy(ah));
}

/* Queue pairs */

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	struct ibv_qp_init_attr_ex ex = shca_qp_init_ex(attr, pd);
	struct ibv_qp *qp;

	if (minus_one(shca_check(pd, SHCA_PD)) ||
	    minus_one(shca_qp_create(pd->context, &ex, &qp)))
		return NULL;
	attr->cap = ex.cap;
	return qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	struct ibv_qp_ex *ex;

	if (minus_one(shca_check(qp, SHCA_QP)))
		return NULL;
	ex = &to_qp(qp)->ex;
	/* Only of a QP that was created with send_ops_flags. */
	return ex->wr_start ? ex : NULL;
}

int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	return number(shca_qp_modify(qp, attr, mask));
}

int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask,
		 struct ibv_qp_init_attr *init)
{
	return number(shca_qp_query(qp, attr, mask, init));
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op,
			       uint32_t flags)
{
	/* No promise: memory is copied in whatever order is fastest. */
	(void)qp;
	(void)op;
	(void)flags;
	return 0;
}

/*
 * Enhanced connection establishment: no enhancements are supported. A peer that
 * asks for those of its vendor goes on without them when they are refused.
 */

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	*ece = (struct ibv_ece){ 0 };
	return number(shca_check(qp, SHCA_QP));
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	int err = shca_check(qp, SHCA_QP);

	if (err)
		return number(err);
	if (ece->comp_mask ||
	    (qp->state != IBV_QPS_RESET && qp->state != IBV_QPS_INIT))
		return number(why(-EINVAL,
				  "QP 0x%06x: ECE is set in RESET or INIT, "
				  "with comp_mask 0",
				  qp->qp_num));
	if (!ece->vendor_id && !ece->options)
		return 0;
	return number(why(-EOPNOTSUPP,
			  "QP 0x%06x: this device has no enhancements (ECE); "
			  "go on without",
			  qp->qp_num));
}

int ibv_destroy_qp(struct ibv_qp *qp)
{
	return number(shca_qp_destroy(qp));
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	return number(shca_mcast_attach(qp, gid, lid));
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return number(shca_mcast_detach(qp, gid));
}
