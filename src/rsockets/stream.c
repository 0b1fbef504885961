/*
 * stream.c - what a stream is made of: identifier, queue pair, CQ, buffers
 *
 * A stream owns an event channel, whose descriptor is the rsocket's, and one
 * rdma_cm_id. When it connects or is accepted it gets the rest, its endpoint:
 * an RC queue pair with a CQ, a send buffer, a receive buffer, and the table
 * that the peer writes. The private data of REQ and REP says where they are.
 */
#include "base/fd_high.h"
#include "rdmacm/tcp_port.h"
#include "rsock_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

int rsock_set_nonblock(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return rsock_errno();
	return 0;
}

static int create_cc(struct rsock *rs, struct ibv_context *verbs)
{
	struct rsock_stream *s = &rs->s;

	if (s->cc)
		return 0;
	s->cc = ibv_create_comp_channel(verbs);
	if (!s->cc)
		return rsock_errno();
	s->cc->fd = fd_high(s->cc->fd);
	return rsock_set_nonblock(s->cc->fd);
}

static int create_id(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;
	int on = 1;

	if (rdma_create_id(s->channel, &s->id, rs, RDMA_PS_TCP) ||
	    (rs->aside &&
	     rdma_set_option(s->id, RDMA_OPTION_ID, RDMA_OPTION_ID_TCP_PORT,
			     &on, sizeof(on))))
		return rsock_errno();
	return 0;
}

int rsock_stream_init(struct rsock *rs, struct rdma_cm_id *id)
{
	struct rsock_stream *s = &rs->s;
	int err;

	s->channel = rdma_create_event_channel();
	if (!s->channel)
		return rsock_errno();
	if (rs->aside)
		s->channel->fd = fd_high(s->channel->fd);
	err = rsock_set_nonblock(s->channel->fd);
	if (!err && id)
		err = create_cc(rs, id->verbs);
	if (err)
		return err;
	if (!id)
		return create_id(rs);
	if (rdma_migrate_id(id, s->channel))
		return rsock_errno();
	s->id = id;
	id->context = rs;
	return 0;
}

void rsock_stream_fail(struct rsock *rs, int err)
{
	if (rs->state == RSOCK_FAILED)
		return;
	rs->state = RSOCK_FAILED;
	rs->err = rs->why = err;
	rs->s.rd_open = rs->s.wr_open = false;
}

static void *map_buffer(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/*
 * The table of buffers, and behind it that of mappings: the peer writes both.
 */
static size_t table_len(const struct rsock *rs)
{
	return RSW_SGL_SIZE * sizeof(struct rsw_sge) +
	       rs->iomaps * sizeof(struct rsw_iomap);
}

static size_t sbuf_len(const struct rsock *rs)
{
	size_t len = rs->sbuf_size + RSOCK_CTRL * sizeof(struct rsw_sge);

	if (rs->s.plain)
		len = (len + 3) / 4 * 4 + rsock_recvs(rs) * sizeof(uint32_t);
	return len;
}

uint32_t *rsock_stream_msgs(const struct rsock *rs)
{
	return (uint32_t *)(void *)(rs->s.sbuf + sbuf_len(rs)) -
	       rsock_recvs(rs);
}

static int create_buffers(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;
	struct ibv_pd *pd = s->id->pd;
	unsigned remote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	s->half = (rs->rbuf_size + 1) / 2;
	s->rmsg = calloc(rs->rq_size, sizeof(*s->rmsg));
	s->rbuf = map_buffer((size_t)s->half * 2);
	s->sbuf = map_buffer(sbuf_len(rs));
	s->table = map_buffer(table_len(rs));
	if (!s->rmsg || !s->rbuf || !s->sbuf || !s->table)
		return -ENOMEM;
	s->rmr = ibv_reg_mr(pd, s->rbuf, (size_t)s->half * 2, remote);
	if (!s->rmr)
		return rsock_errno();
	s->table_mr = ibv_reg_mr(pd, s->table, table_len(rs), remote);
	if (!s->table_mr)
		return rsock_errno();
	s->smr = ibv_reg_mr(pd, s->sbuf, sbuf_len(rs), IBV_ACCESS_LOCAL_WRITE);
	if (!s->smr)
		return rsock_errno();
	return 0;
}

static uint32_t clamp_u32(uint32_t v, uint32_t least, uint32_t most)
{
	if (v < least)
		return least;
	return v > most ? most : v;
}

static bool speaks_iwarp(const struct rdma_cm_id *id)
{
	return id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
}

static int create_qp(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC,
					 .sq_sig_all = 1 };
	struct ibv_device_attr dev;
	uint32_t most;
	int err;

	if (ibv_query_device(s->id->verbs, &dev))
		return -ENODEV;
	s->plain = speaks_iwarp(s->id);
	most = clamp_u32((uint32_t)dev.max_qp_wr >> s->plain, RSOCK_MIN_QUEUE,
			 RSOCK_MAX_QUEUE) -
	       RSOCK_CTRL_RQ;
	rs->sq_size = clamp_u32(rs->sq_size, RSOCK_MIN_QUEUE, most);
	rs->rq_size = clamp_u32(rs->rq_size, RSOCK_MIN_QUEUE, most);

	err = create_cc(rs, s->id->verbs);
	if (err)
		return err;
	s->cq = ibv_create_cq(
		s->id->verbs,
		(int)((rs->sq_size << s->plain) + rsock_recvs(rs)), NULL, s->cc,
		0);
	if (!s->cq)
		return rsock_errno();
	attr.send_cq = attr.recv_cq = s->cq;
	attr.cap.max_send_wr = rs->sq_size << s->plain;
	attr.cap.max_recv_wr = rsock_recvs(rs);
	attr.cap.max_send_sge = 1;
	attr.cap.max_recv_sge = 1;
	attr.cap.max_inline_data = rs->inline_size;
	if (rdma_create_qp(s->id, NULL, &attr))
		return rsock_errno();
	rs->inline_size = attr.cap.max_inline_data;
	return 0;
}

int rsock_stream_create_ep(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;
	int err;

	err = create_qp(rs);
	if (!err)
		err = create_buffers(rs);
	if (err)
		return err;
	s->sfree = rs->sbuf_size;
	s->sq_free = rs->sq_size - RSOCK_CTRL;
	s->grant_pos = s->half;
	s->freed = s->half; /* the REQ or REP grants the first half only */
	s->writable = s->half;
	s->rseq_limit = (uint16_t)rs->rq_size;
	return rsock_stream_post_recvs(rs, rsock_recvs(rs));
}

uint16_t rsock_stream_port(const struct rsock *rs, struct rdma_cm_id *id,
			   bool from_here)
{
	if (!rs->aside || !speaks_iwarp(id))
		return 0;
	return ntohs(from_here ? rdma_get_dst_port(id) : rdma_get_src_port(id));
}

void rsock_stream_describe(const struct rsock *rs, uint8_t data[RSW_CONN_LEN])
{
	const struct rsock_stream *s = &rs->s;
	struct rsw_conn conn = {
		.credits = (uint16_t)rs->rq_size,
		.port = rsock_stream_port(rs, s->id,
					  rs->state == RSOCK_CONNECTING),
		.iomaps = rs->iomaps,
		.target = { .addr = (uintptr_t)s->table,
			    .key = s->table_mr->rkey,
			    .length = RSW_SGL_SIZE },
		.buffer = { .addr = (uintptr_t)s->rbuf,
			    .key = s->rmr->rkey,
			    .length = s->half },
	};

	rsw_conn_encode(data, &conn);
}

static void unmap_buffer(void *p, size_t len)
{
	if (p)
		munmap(p, len);
}

static void dereg_mr(struct ibv_mr *mr)
{
	if (mr)
		ibv_dereg_mr(mr);
}

void rsock_stream_fini(struct rsock *rs)
{
	struct rsock_stream *s = &rs->s;

	rsock_stream_drop_requests(rs);
	if (s->id && s->id->qp) {
		rdma_disconnect(s->id);
		rdma_destroy_qp(s->id);
	}
	rsock_iomap_fini(rs);
	dereg_mr(s->rmr);
	dereg_mr(s->smr);
	dereg_mr(s->table_mr);
	if (s->cq) {
		ibv_ack_cq_events(s->cq, s->unacked);
		ibv_destroy_cq(s->cq);
	}
	if (s->cc)
		ibv_destroy_comp_channel(s->cc);
	if (s->id)
		rdma_destroy_id(s->id);
	if (s->channel)
		rdma_destroy_event_channel(s->channel);
	unmap_buffer(s->rbuf, (size_t)s->half * 2);
	unmap_buffer(s->sbuf, sbuf_len(rs));
	unmap_buffer(s->table, table_len(rs));
	free(s->rmsg);
	free(s->route);
}
