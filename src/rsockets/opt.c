/*
 * opt.c - the options of rsockets, and the configuration they start
 * from
 *
 * Options of datagrams other than buffer sizes are those of the UDP socket.
 * What is not supported is ENOTSUP, as with rdma-core.
 */
#include "base/bytes.h"
#include "rdmacm/tcp_port.h"
#include "rsock_internal.h"
#include "rsockets/wake.h"

#include <errno.h>
#include <infiniband/sa.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define CONF_DIR "/etc/rdma/rsocket/"
#define MIN_BUF (2 * RSOCK_SNDLOWAT)

static struct rsock_config config = {
	.mem = 1 << 17,
	.wmem = 1 << 17,
	.sqsize = 384,
	.rqsize = 384,
	.inline_size = 64,
	.polling_ns = 10000,
};
static pthread_once_t config_once = PTHREAD_ONCE_INIT;

static bool read_number(const char *path, uint32_t *value)
{
	FILE *f = fopen(path, "re");
	bool ok = f && fscanf(f, "%u", value) == 1;

	if (f)
		fclose(f);
	return ok;
}

static uint32_t limit_buffer(uint32_t size)
{
	return size < MIN_BUF ? MIN_BUF : min_u32(size, RSOCK_MAX_BUF);
}

static void read_config(void)
{
	uint32_t us;

	read_number(CONF_DIR "mem_default", &config.mem);
	read_number(CONF_DIR "wmem_default", &config.wmem);
	read_number(CONF_DIR "sqsize_default", &config.sqsize);
	read_number(CONF_DIR "rqsize_default", &config.rqsize);
	read_number(CONF_DIR "inline_default", &config.inline_size);
	read_number(CONF_DIR "iomap_size", &config.iomaps);
	if (read_number(CONF_DIR "polling_time", &us))
		config.polling_ns = us * 1000ull;
	config.mem = limit_buffer(config.mem);
	config.wmem = limit_buffer(config.wmem);
	config.sqsize = min_u32(config.sqsize, RSOCK_MAX_QUEUE);
	config.rqsize = min_u32(config.rqsize, RSOCK_MAX_QUEUE);
	config.inline_size = min_u32(config.inline_size, RSOCK_MAX_QUEUE);
	config.iomaps = rsw_iomaps_round(config.iomaps);
}

const struct rsock_config *rsock_config(void)
{
	pthread_once(&config_once, read_config);
	return &config;
}

static int get_int(const void *val, socklen_t len, int *out)
{
	if (len < sizeof(*out))
		return -EINVAL;
	memcpy(out, val, sizeof(*out));
	return 0;
}

/* Twice what is asked for, like Linux; the size is fixed once in use. */
static uint32_t buf_size(int v)
{
	uint32_t size = v < 0 ? RSOCK_MAX_BUF :
				min_u32((uint32_t)v, RSOCK_MAX_BUF / 2) * 2;

	return size < MIN_BUF ? MIN_BUF : size;
}

static bool in_use(const struct rsock *rs)
{
	return rs->type == SOCK_DGRAM ? rs->d.ready : !!rs->s.cq;
}

static int set_id_option(struct rsock *rs, int option, int on)
{
	if (rdma_set_option(rs->s.id, RDMA_OPTION_ID, option, &on, sizeof(on)))
		return rsock_errno();
	return 0;
}

static int set_timeout(uint64_t *ns, const void *val, socklen_t len)
{
	struct timeval tv;

	if (len < sizeof(tv))
		return -EINVAL;
	memcpy(&tv, val, sizeof(tv));
	if (tv.tv_usec < 0 || tv.tv_usec >= 1000000)
		return -EDOM;
	if (tv.tv_sec < 0 || (uint64_t)tv.tv_sec > UINT32_MAX)
		*ns = 0;
	else
		*ns = (uint64_t)tv.tv_sec * 1000000000u +
		      (uint64_t)tv.tv_usec * 1000u;
	return 0;
}

static int set_linger(struct rsock *rs, const void *val, socklen_t len)
{
	struct linger l;

	if (len < sizeof(l))
		return -EINVAL;
	memcpy(&l, val, sizeof(l));
	rs->linger.on = !!l.l_onoff;
	rs->linger.seconds = l.l_linger < 0 ? 0 : l.l_linger;
	return 0;
}

static int set_socket(struct rsock *rs, int name, const void *val,
		      socklen_t len)
{
	bool stream = rs->type == SOCK_STREAM;
	int v, err;

	switch (name) {
	case SO_RCVTIMEO:
		return set_timeout(&rs->rcvtimeo_ns, val, len);
	case SO_SNDTIMEO:
		return set_timeout(&rs->sndtimeo_ns, val, len);
	case SO_LINGER:
		return set_linger(rs, val, len);
	}
	err = get_int(val, len, &v);
	if (err)
		return err;
	switch (name) {
	case SO_REUSEADDR:
		if (stream && rs->state == RSOCK_INIT)
			err = set_id_option(rs, RDMA_OPTION_ID_REUSEADDR, !!v);
		if (!err)
			rs->reuseaddr = v;
		return err;
	case SO_RCVBUF:
		if (!in_use(rs))
			rs->rbuf_size = buf_size(v);
		return 0;
	case SO_SNDBUF:
		if (!in_use(rs))
			rs->sbuf_size = buf_size(v);
		return 0;
	case SO_KEEPALIVE:
		return stream ? rsock_alive_set(rs, v) : 0;
	case SO_OOBINLINE:
		rs->oobinline = v;
		return 0;
	}
	return -ENOTSUP;
}

static int set_tcp(struct rsock *rs, int name, const void *val, socklen_t len)
{
	int v, err;

	err = get_int(val, len, &v);
	if (err)
		return err;
	switch (name) {
	case TCP_KEEPIDLE:
		if (v <= 0)
			return -EINVAL;
		rs->keepidle = (unsigned)v;
		rsock_alive_touch(rs);
		return 0;
	case TCP_NODELAY: /* nothing is ever held back */
		rs->nodelay = v;
		return 0;
	case TCP_KEEPCNT: /* the queue pair retries on its own */
	case TCP_KEEPINTVL:
	case TCP_MAXSEG:
		return 0;
	}
	return -ENOTSUP;
}

static int set_route(struct rsock *rs, const void *val, socklen_t len)
{
	struct rsock_stream *s = &rs->s;
	void *copy;

	if (!len || len % sizeof(struct ibv_path_data))
		return -EINVAL;
	copy = malloc(len);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, val, len);
	pthread_mutex_lock(&rs->lock);
	free(s->route);
	s->route = copy;
	s->route_len = len;
	pthread_mutex_unlock(&rs->lock);
	return 0;
}

static int set_rdma(struct rsock *rs, int name, const void *val, socklen_t len)
{
	bool stream = rs->type == SOCK_STREAM;
	int v, err;

	if (name == RDMA_ROUTE && stream)
		return rs->state < RSOCK_RESOLVING ? set_route(rs, val, len) :
						     -EINVAL;
	err = get_int(val, len, &v);
	if (err)
		return err;
	if (name == RSOCK_WATCH)
		return rsock_set_watch(rs, v);
	if (in_use(rs) || rs->state >= RSOCK_RESOLVING || v < 0)
		return -EINVAL;
	switch (name) {
	case RDMA_SQSIZE:
		rs->sq_size = min_u32((uint32_t)v, RSOCK_MAX_QUEUE);
		return 0;
	case RDMA_RQSIZE:
		rs->rq_size = min_u32((uint32_t)v, RSOCK_MAX_QUEUE);
		return 0;
	case RDMA_INLINE:
		rs->inline_size = min_u32((uint32_t)v, RSOCK_MAX_QUEUE);
		return 0;
	case RDMA_IOMAPSIZE:
		if (!stream)
			return -ENOTSUP;
		rs->iomaps = rsw_iomaps_round((uint32_t)v);
		return 0;
	}
	return -ENOTSUP;
}

static int set_ipv6(struct rsock *rs, int name, const void *val, socklen_t len)
{
	int v, err;

	err = get_int(val, len, &v);
	if (err || name != IPV6_V6ONLY || rs->family != AF_INET6)
		return err ? err : -ENOTSUP;
	if (rs->state != RSOCK_INIT)
		return -EINVAL;
	err = set_id_option(rs, RDMA_OPTION_ID_AFONLY, !!v);
	if (!err)
		rs->v6only = v;
	return err;
}

int rsock_setsockopt(struct rsock *rs, int level, int name, const void *val,
		     socklen_t len)
{
	bool buffer = level == SOL_SOCKET &&
		      (name == SO_RCVBUF || name == SO_SNDBUF ||
		       name == SO_RCVTIMEO || name == SO_SNDTIMEO);

	if (!val && len)
		return -EFAULT;
	/* The UDP socket needs them too: it carries some of the data. */
	if (rs->type == SOCK_DGRAM && level != SOL_RDMA &&
	    setsockopt(rs->d.udp, level, name, val, len))
		return rsock_errno();
	if (rs->type == SOCK_DGRAM && level != SOL_RDMA && !buffer)
		return 0;
	switch (level) {
	case SOL_SOCKET:
		return set_socket(rs, name, val, len);
	case IPPROTO_TCP:
		return set_tcp(rs, name, val, len);
	case IPPROTO_IPV6:
		return set_ipv6(rs, name, val, len);
	case SOL_RDMA:
		return set_rdma(rs, name, val, len);
	}
	return -ENOTSUP;
}

static int put_option(void *val, socklen_t *len, const void *from,
		      socklen_t size)
{
	*len = min_u32(*len, size);
	memcpy(val, from, *len);
	return 0;
}

static int put_int(void *val, socklen_t *len, int v)
{
	return put_option(val, len, &v, sizeof(v));
}

static int put_timeout(void *val, socklen_t *len, uint64_t ns)
{
	struct timeval tv = { .tv_sec = (time_t)(ns / 1000000000u),
			      .tv_usec =
				      (suseconds_t)(ns % 1000000000u / 1000) };

	return put_option(val, len, &tv, sizeof(tv));
}

static int take_error(struct rsock *rs)
{
	int err;

	pthread_mutex_lock(&rs->lock);
	/* Progress first, so that the answer is up to date. */
	rsock_revents(rs, 0);
	err = rs->err;
	rs->err = 0;
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static int get_socket(struct rsock *rs, int name, void *val, socklen_t *len)
{
	struct linger l = { .l_onoff = rs->linger.on,
			    .l_linger = rs->linger.seconds };

	switch (name) {
	case SO_ERROR:
		return put_int(val, len, take_error(rs));
	case SO_TYPE:
		return put_int(val, len, rs->type);
	case SO_DOMAIN:
		return put_int(val, len, rs->family);
	case SO_PROTOCOL:
		return put_int(val, len, IPPROTO_TCP);
	case SO_ACCEPTCONN:
		return put_int(val, len, rs->state == RSOCK_LISTENING);
	case SO_REUSEADDR:
		return put_int(val, len, rs->reuseaddr);
	case SO_KEEPALIVE:
		return put_int(val, len, rs->keepalive);
	case SO_OOBINLINE:
		return put_int(val, len, rs->oobinline);
	case SO_RCVBUF:
		return put_int(val, len, (int)rs->rbuf_size);
	case SO_SNDBUF:
		return put_int(val, len, (int)rs->sbuf_size);
	case SO_RCVTIMEO:
		return put_timeout(val, len, rs->rcvtimeo_ns);
	case SO_SNDTIMEO:
		return put_timeout(val, len, rs->sndtimeo_ns);
	case SO_LINGER:
		return put_option(val, len, &l, sizeof(l));
	}
	return -ENOTSUP;
}

static int get_tcp(struct rsock *rs, int name, void *val, socklen_t *len)
{
	const struct rdma_route *route = rs->s.id ? &rs->s.id->route : NULL;

	switch (name) {
	case TCP_KEEPCNT:
	case TCP_KEEPINTVL:
		return put_int(val, len, 1);
	case TCP_KEEPIDLE:
		return put_int(val, len, (int)rs->keepidle);
	case TCP_NODELAY:
		return put_int(val, len, rs->nodelay);
	case TCP_MAXSEG:
		return put_int(val, len,
			       route && route->num_paths ?
				       1 << (7 + route->path_rec->mtu) :
				       2048);
	}
	return -ENOTSUP;
}

/* The same path, in the form that RDMA_ROUTE sets. */
static struct ibv_path_data path_data(const struct ibv_sa_path_rec *rec)
{
	enum { EXACTLY = 2 << 6 };
	struct ibv_path_data d = { .flags = rec->preference };

	d.path.dgid = rec->dgid;
	d.path.sgid = rec->sgid;
	d.path.dlid = rec->dlid;
	d.path.slid = rec->slid;
	d.path.flowlabel_hoplimit =
		htonl(ntohl(rec->flow_label) << 8 | rec->hop_limit);
	d.path.tclass = rec->traffic_class;
	d.path.reversible_numpath = (uint8_t)(rec->reversible << 7 | 1);
	d.path.pkey = rec->pkey;
	d.path.qosclass_sl = htons(rec->sl);
	d.path.mtu = (uint8_t)(rec->mtu | EXACTLY);
	d.path.rate = (uint8_t)(rec->rate | EXACTLY);
	d.path.packetlifetime = (uint8_t)(rec->packet_life_time | EXACTLY);
	return d;
}

static int get_route(struct rsock *rs, void *val, socklen_t *len)
{
	const struct rdma_route *route = &rs->s.id->route;
	struct ibv_path_data d;
	socklen_t done = 0;
	int i, err = 0;

	pthread_mutex_lock(&rs->lock);
	if (rs->s.route) {
		if (*len < rs->s.route_len)
			err = -EINVAL;
		else
			put_option(val, len, rs->s.route,
				   (socklen_t)rs->s.route_len);
		goto out;
	}
	if (*len < sizeof(d)) {
		err = -EINVAL;
		goto out;
	}
	for (i = 0; i < route->num_paths && *len - done >= sizeof(d); i++) {
		d = path_data(&route->path_rec[i]);
		memcpy((char *)val + done, &d, sizeof(d));
		done += (socklen_t)sizeof(d);
	}
	*len = done;
out:
	pthread_mutex_unlock(&rs->lock);
	return err;
}

static int get_wake(struct rsock *rs, void *val, socklen_t *len)
{
	struct rsock_wake w;

	if (*len != sizeof(w))
		return -EINVAL;
	memcpy(&w, val, sizeof(w));
	pthread_mutex_lock(&rs->lock);
	w.fds[0] = w.fds[1] = -1;
	if (w.flags & (RSOCK_WOKEN | RSOCK_WOKEN << 1))
		rsock_drain(rs, w.flags & RSOCK_WOKEN,
			    w.flags & RSOCK_WOKEN << 1, w.watch);
	w.revents = rsock_revents(rs, w.events);
	if ((!w.revents || w.flags & RSOCK_ARM) && !(w.flags & RSOCK_PEEK)) {
		rsock_arm(rs, w.fds);
		/* What came before that raises no event, known or not. */
		rsock_progress(rs);
		w.revents = rsock_revents(rs, w.events);
	}
	pthread_mutex_unlock(&rs->lock);
	memcpy(val, &w, sizeof(w));
	return 0;
}

static int get_heard(struct rsock *rs, void *val, socklen_t *len)
{
	int heard = 0;

	if (rs->type == SOCK_STREAM && rs->s.id &&
	    rdma_set_option(rs->s.id, RDMA_OPTION_ID, RDMA_OPTION_ID_HEARD,
			    &heard, sizeof(heard)))
		return rsock_errno();
	return put_int(val, len, heard);
}

static int get_rdma(struct rsock *rs, int name, void *val, socklen_t *len)
{
	switch (name) {
	case RDMA_SQSIZE:
		return put_int(val, len, (int)rs->sq_size);
	case RDMA_RQSIZE:
		return put_int(val, len, (int)rs->rq_size);
	case RDMA_INLINE:
		return put_int(val, len, (int)rs->inline_size);
	case RDMA_IOMAPSIZE:
		return put_int(val, len, (int)rs->iomaps);
	case RDMA_ROUTE:
		return rs->type == SOCK_STREAM ? get_route(rs, val, len) :
						 -ENOTSUP;
	case RSOCK_IWARP:
		return put_int(val, len,
			       rs->type == SOCK_STREAM && rs->s.plain);
	case RSOCK_HEARD:
		return get_heard(rs, val, len);
	case RSOCK_WAKE:
		return get_wake(rs, val, len);
	}
	return -ENOTSUP;
}

int rsock_getsockopt(struct rsock *rs, int level, int name, void *val,
		     socklen_t *len)
{
	if (!val || !len)
		return -EFAULT;
	if (rs->type == SOCK_DGRAM && level != SOL_RDMA)
		return getsockopt(rs->d.udp, level, name, val, len) ?
			       rsock_errno() :
			       0;
	switch (level) {
	case SOL_SOCKET:
		return get_socket(rs, name, val, len);
	case IPPROTO_TCP:
		return get_tcp(rs, name, val, len);
	case IPPROTO_IPV6:
		if (name == IPV6_V6ONLY)
			return put_int(val, len, rs->v6only);
		return -ENOTSUP;
	case SOL_RDMA:
		return get_rdma(rs, name, val, len);
	}
	return -ENOTSUP;
}
