/*
 * dgram_qp.c - the UD queue pairs of a datagram rsocket
 *
 * There is one per local address that datagrams leave from. It takes them from
 * anybody, has a CQ and a completion channel of its own, whose descriptor is in
 * the rsocket's epoll instance, and lives as long as the rsocket.
 */
#include "base/bytes.h"
#include "dgram.h"

#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#define MAX_MTU 4096
#define UD_HEADERS 72 /* IPv6, UDP, BTH, DETH and ICRC */

void rsock_dgram_qp_free(struct rsock *rs, struct rsock_dgram_qp *qp)
{
	if (qp->cc)
		epoll_ctl(rs->d.epfd, EPOLL_CTL_DEL, qp->cc->fd, NULL);
	if (qp->id && qp->id->qp)
		rdma_destroy_qp(qp->id);
	if (qp->smr)
		ibv_dereg_mr(qp->smr);
	if (qp->rmr)
		ibv_dereg_mr(qp->rmr);
	if (qp->cq)
		ibv_destroy_cq(qp->cq);
	if (qp->cc)
		ibv_destroy_comp_channel(qp->cc);
	if (qp->id)
		rdma_destroy_id(qp->id);
	free(qp->rbuf);
	free(qp);
}

int rsock_dgram_post_recv(struct rsock *rs, struct rsock_dgram_qp *qp,
			  uint32_t slot)
{
	/*
	 * Nobody reads the GRHs, nor what exceeds the longest datagram: they
	 * share one place. A packet that did not fit would end the queue pair.
	 */
	struct ibv_sge sge[3] = {
		{ .addr = (uintptr_t)(qp->rbuf + rs->rq_size * RSW_DGRAM_MAX),
		  .length = GRH_LEN,
		  .lkey = qp->rmr->lkey },
		{ .addr = (uintptr_t)(qp->rbuf + slot * RSW_DGRAM_MAX),
		  .length = RSW_DGRAM_MAX,
		  .lkey = qp->rmr->lkey },
		{ .addr = (uintptr_t)(qp->rbuf + rs->rq_size * RSW_DGRAM_MAX),
		  .length = MAX_MTU - RSW_DGRAM_MAX,
		  .lkey = qp->rmr->lkey },
	};
	struct ibv_recv_wr wr = { .wr_id = slot, .sg_list = sge, .num_sge = 3 },
			   *bad;

	return -ibv_post_recv(qp->id->qp, &wr, &bad);
}

/* The index of the GID that is the local address. */
static int find_gid(struct rsock_dgram_qp *qp, const struct ibv_port_attr *port)
{
	union ibv_gid want = rsock_gid(&qp->src), gid;
	int i;

	for (i = 0; i < port->gid_tbl_len; i++)
		if (!ibv_query_gid(qp->id->verbs, qp->id->port_num, i, &gid) &&
		    !memcmp(&gid, &want, sizeof(gid))) {
			qp->sgid_index = i;
			return 0;
		}
	return -EADDRNOTAVAIL;
}

/* The port's MTU is that of one of its interfaces, perhaps not of this one. */
static uint32_t netdev_mtu(const struct rsock *rs,
			   const struct rsock_dgram_qp *qp)
{
	struct ibv_gid_entry gid;
	struct ifreq ifr = { 0 };
	uint32_t mtu = MAX_MTU;

	if (!ibv_query_gid_ex(qp->id->verbs, qp->id->port_num,
			      (uint32_t)qp->sgid_index, &gid, 0) &&
	    if_indextoname(gid.ndev_ifindex, ifr.ifr_name) &&
	    !ioctl(rs->d.udp, SIOCGIFMTU, &ifr) && ifr.ifr_mtu > UD_HEADERS)
		mtu = (uint32_t)ifr.ifr_mtu - UD_HEADERS;
	return mtu;
}

static int bind_id(struct rsock_dgram_qp *qp)
{
	union rsw_addr src = qp->src;

	if (!rdma_bind_addr(qp->id, &src.sa))
		return 0;
	if (errno != EADDRINUSE)
		return rsock_errno();
	/*
	 * Any port will do: the protocol does not use that of RDMA's port
	 * space.
	 */
	src.sin.sin_port = 0;
	if (rdma_bind_addr(qp->id, &src.sa))
		return rsock_errno();
	/* A loopback address gets its device only when it is resolved. */
	if (!qp->id->verbs && rdma_resolve_addr(qp->id, NULL, &src.sa, 1000))
		return rsock_errno();
	return 0;
}

static int fill_qp(struct rsock *rs, struct rsock_dgram_qp *qp)
{
	struct ibv_qp_init_attr attr = {
		.qp_type = IBV_QPT_UD,
		.sq_sig_all = 1,
		.cap = { .max_send_wr = rs->sq_size,
			 .max_recv_wr = rs->rq_size,
			 .max_send_sge = 1,
			 .max_recv_sge = 3,
			 .max_inline_data = rs->inline_size },
	};
	size_t len =
		(size_t)rs->rq_size * RSW_DGRAM_MAX + MAX_MTU - RSW_DGRAM_MAX;
	struct epoll_event ev = { .events = EPOLLIN };
	struct ibv_port_attr port;
	uint32_t i;
	int err;

	if (rdma_create_id(NULL, &qp->id, qp, RDMA_PS_UDP))
		return rsock_errno();
	err = bind_id(qp);
	if (err)
		return err;
	if (!qp->id->verbs ||
	    ibv_query_port(qp->id->verbs, qp->id->port_num, &port))
		return -ENODEV;
	err = find_gid(qp, &port);
	qp->mtu = min_u32(128u << port.active_mtu, netdev_mtu(rs, qp));
	if (err)
		return err;
	qp->cc = ibv_create_comp_channel(qp->id->verbs);
	if (!qp->cc)
		return rsock_errno();
	err = rsock_set_nonblock(qp->cc->fd);
	if (err)
		return err;
	qp->cq = ibv_create_cq(qp->id->verbs, (int)(rs->sq_size + rs->rq_size),
			       NULL, qp->cc, 0);
	if (!qp->cq)
		return rsock_errno();
	attr.send_cq = attr.recv_cq = qp->cq;
	if (rdma_create_qp(qp->id, NULL, &attr))
		return rsock_errno();
	qp->inline_size = attr.cap.max_inline_data;
	qp->rbuf = calloc(1, len);
	if (!qp->rbuf)
		return -ENOMEM;
	qp->rmr = ibv_reg_mr(qp->id->pd, qp->rbuf, len, IBV_ACCESS_LOCAL_WRITE);
	if (!qp->rmr)
		return rsock_errno();
	qp->smr = ibv_reg_mr(qp->id->pd, rs->d.sbuf,
			     (size_t)rs->sq_size * RSW_DGRAM_MAX,
			     IBV_ACCESS_LOCAL_WRITE);
	if (!qp->smr)
		return rsock_errno();
	for (i = 0; i < rs->rq_size && !err; i++)
		err = rsock_dgram_post_recv(rs, qp, i);
	if (!err && epoll_ctl(rs->d.epfd, EPOLL_CTL_ADD, qp->cc->fd, &ev))
		err = rsock_errno();
	return err;
}

int rsock_dgram_qp_get(struct rsock *rs, const union rsw_addr *src,
		       struct rsock_dgram_qp **out)
{
	struct rsock_dgram_qp *qp;
	int err;

	for (qp = rs->d.qps; qp; qp = qp->next)
		if (rsock_same_addr(&qp->src, src)) {
			*out = qp;
			return 0;
		}
	qp = calloc(1, sizeof(*qp));
	if (!qp)
		return -ENOMEM;
	qp->src = *src;
	err = fill_qp(rs, qp);
	if (err) {
		rsock_dgram_qp_free(rs, qp);
		return err;
	}
	qp->next = rs->d.qps;
	rs->d.qps = qp;
	*out = qp;
	return 0;
}
