/*
 * doctor_peer.c - whether RDMA packets reach another host and return
 *
 * Every connection manager (softhca's, rxe's, hardware's) answers a request for
 * a service without a listener with REJ, so such a request is sent, through our
 * librdmacm as by a program. A plain datagram beside it, not a valid packet,
 * brings back the ICMP errors that routers and the host send instead of an
 * answer.
 *
 * iWARP has no such manager: a program that listens there has its TCP port. It is
 * sent an MPA request of a revision that does not exist, which softhca rejects
 * without involving the program.
 */
#include "cli/cli.h"
#include "cli/doctor.h"
#include "link/udp.h"
#include "net/ibaddr.h"
#include "net/netdev.h"
#include "os/config.h"
#include "registry/registry.h"
#include "wire/mpa.h"
#include "wire/roce.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define NOBODY_PORT 1 /* tcpmux; no RDMA program listens there */
#define PATIENCE_NS UINT64_C(6000000000) /* a request is repeated after 4 s */

struct cma_api {
	struct rdma_event_channel *(*create_event_channel)(void);
	void (*destroy_event_channel)(struct rdma_event_channel *channel);
	int (*create_id)(struct rdma_event_channel *channel,
			 struct rdma_cm_id **id, void *context,
			 enum rdma_port_space ps);
	int (*destroy_id)(struct rdma_cm_id *id);
	int (*resolve_addr)(struct rdma_cm_id *id, struct sockaddr *src,
			    struct sockaddr *dst, int timeout_ms);
	int (*resolve_route)(struct rdma_cm_id *id, int timeout_ms);
	int (*connect)(struct rdma_cm_id *id, struct rdma_conn_param *param);
	int (*get_cm_event)(struct rdma_event_channel *channel,
			    struct rdma_cm_event **event);
	int (*ack_cm_event)(struct rdma_cm_event *event);
};

struct peer {
	struct doctor *d;
	struct cma_api cma;
	const char *name;
	char text[NI_MAXHOST]; /* its address */
	struct sockaddr_storage addr; /* port 4791 */
	socklen_t addr_len;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	int fd; /* the plain socket, connected */
};

static bool load_cma(struct peer *p, struct finding *f)
{
	const struct libdir_symbol symbols[] = {
		{ "rdma_create_event_channel", &p->cma.create_event_channel },
		{ "rdma_destroy_event_channel", &p->cma.destroy_event_channel },
		{ "rdma_create_id", &p->cma.create_id },
		{ "rdma_destroy_id", &p->cma.destroy_id },
		{ "rdma_resolve_addr", &p->cma.resolve_addr },
		{ "rdma_resolve_route", &p->cma.resolve_route },
		{ "rdma_connect", &p->cma.connect },
		{ "rdma_get_cm_event", &p->cma.get_cm_event },
		{ "rdma_ack_cm_event", &p->cma.ack_cm_event },
	};
	struct libdir_why why;

	if (!libdir_load(p->d->libdir, "librdmacm.so.1", symbols,
			 sizeof(symbols) / sizeof(symbols[0]), &why))
		return true;
	f->status = FAIL;
	TEXT(f, "%s", why.text);
	FIX(f, "%s", why.fix);
	return false;
}

static bool find_address(struct peer *p, struct finding *f)
{
	const struct addrinfo hints = { .ai_family = AF_UNSPEC,
					.ai_socktype = SOCK_DGRAM };
	char port[8];
	struct addrinfo *list;
	int err;

	snprintf(port, sizeof(port), "%d", ROCE_UDP_PORT);
	err = getaddrinfo(p->name, port, &hints, &list);
	if (err) {
		f->status = FAIL;
		TEXT(f, "%s: %s", p->name,
		     err == EAI_SYSTEM ? strerror(errno) : gai_strerror(err));
		FIX(f, "give an IP address, or check /etc/hosts and the name "
		       "server");
		return false;
	}
	memcpy(&p->addr, list->ai_addr, list->ai_addrlen);
	p->addr_len = list->ai_addrlen;
	freeaddrinfo(list);
	getnameinfo((struct sockaddr *)&p->addr, p->addr_len, p->text,
		    sizeof(p->text), NULL, 0, NI_NUMERICHOST);
	TEXT(f, "%s is %s", p->name, p->text);
	return true;
}

/*
 * Returns the next event of the connection manager, or -1 if there is none by
 * end; *err is its status. An ICMP message ends the wait; *icmp is its errno.
 */
static int next_event(struct peer *p, uint64_t end, int *err, int *icmp)
{
	struct pollfd pfd[2] = { { .fd = p->channel->fd, .events = POLLIN },
				 { .fd = icmp ? p->fd : -1 } };
	struct rdma_cm_event *e;
	socklen_t len = sizeof(*icmp);
	uint64_t now;
	char byte;
	int type;

	while ((now = clock_ns()) < end) {
		if (poll(pfd, 2, (int)((end - now) / 1000000) + 1) < 0)
			return -1;
		if (pfd[0].revents) {
			if (p->cma.get_cm_event(p->channel, &e))
				return -1;
			type = (int)e->event;
			*err = e->status;
			p->cma.ack_cm_event(e);
			return type;
		}
		if (!pfd[1].revents)
			continue;
		if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, icmp, &len))
			*icmp = errno;
		while (recv(p->fd, &byte, 1, MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
			;
		/* A smaller MTU on the path is for check_mtu() to report. */
		if (*icmp == EMSGSIZE)
			*icmp = 0;
		if (*icmp)
			return -1;
	}
	return -1;
}

static const struct hca *device_of(const struct peer *p)
{
	const struct doctor *d = p->d;
	size_t i;

	for (i = 0; i < d->hcas.count; i++)
		if (!strcmp(d->hcas.hca[i].name, p->id->verbs->device->name))
			return &d->hcas.hca[i];
	return NULL;
}

static void say_astray(const struct peer *p, struct finding *f)
{
	TEXT(f,
	     "not known: answers of %s go to the process that has UDP port "
	     "%d of this host",
	     p->text, ROCE_UDP_PORT);
	FIX(f, "see port");
}

/* The device, address and interface through which packets to it leave. */
static bool find_path(struct peer *p, struct finding *f)
{
	const struct sockaddr *src;
	const struct hca *h = NULL;
	char from[NI_MAXHOST] = "?";
	int type, err = 0;
	size_t i;

	p->channel = p->cma.create_event_channel();
	if (!p->channel ||
	    p->cma.create_id(p->channel, &p->id, NULL, RDMA_PS_TCP))
		err = errno;
	else if (p->cma.resolve_addr(p->id, NULL, (struct sockaddr *)&p->addr,
				     2000))
		err = errno;
	else if (next_event(p, clock_ns() + PATIENCE_NS, &err, NULL) !=
		 RDMA_CM_EVENT_ADDR_RESOLVED)
		err = err ? -err : ETIMEDOUT;
	else if (p->cma.resolve_route(p->id, 2000))
		err = errno;
	else if ((type = next_event(p, clock_ns() + PATIENCE_NS, &err, NULL)) !=
		 RDMA_CM_EVENT_ROUTE_RESOLVED)
		err = err ? -err : ETIMEDOUT;
	if (err) {
		f->status = FAIL;
		if (err == EADDRINUSE) {
			say_astray(p, f);
			return false;
		}
		TEXT(f, "no path to %s: %s", p->text, strerror(err));
		FIX(f,
		    "ip route get %s; softhca devices must list the "
		    "interface that it names",
		    p->text);
		return false;
	}
	src = &p->id->route.addr.src_addr;
	getnameinfo(src,
		    src->sa_family == AF_INET ? sizeof(struct sockaddr_in) :
						sizeof(struct sockaddr_in6),
		    from, sizeof(from), NULL, 0, NI_NUMERICHOST);
	TEXT(f, "%s is reached from %s", p->text, from);
	h = device_of(p);
	for (i = 0; h && i < h->gid_count; i++) {
		if (memcmp(&h->gid[i].entry.gid,
			   &p->id->route.addr.addr.ibaddr.sgid,
			   sizeof(h->gid[i].entry.gid)))
			continue;
		TEXT(f, ", %s, which is GID index %u of %s", h->gid[i].ifname,
		     h->gid[i].entry.gid_index, h->name);
		break;
	}
	return true;
}

/* A socket to the peer that does not fragment, and reports ICMP errors. */
static int open_plain(struct peer *p)
{
	bool v4 = p->addr.ss_family == AF_INET;
	int level = v4 ? IPPROTO_IP : IPPROTO_IPV6, on = 1;
	int discover = v4 ? IP_PMTUDISC_DO : IPV6_PMTUDISC_DO;

	p->fd = socket(p->addr.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (p->fd < 0)
		return -errno;
	setsockopt(p->fd, level, v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER,
		   &discover, sizeof(discover));
	setsockopt(p->fd, level, v4 ? IP_RECVERR : IPV6_RECVERR, &on,
		   sizeof(on));
	return connect(p->fd, (struct sockaddr *)&p->addr, p->addr_len) ?
		       -errno :
		       0;
}

/* The MTU of the path as the kernel knows it; 0: not known. */
static unsigned int way_mtu(const struct peer *p)
{
	bool v4 = p->addr.ss_family == AF_INET;
	int mtu = 0;
	socklen_t len = sizeof(mtu);

	if (getsockopt(p->fd, v4 ? IPPROTO_IP : IPPROTO_IPV6,
		       v4 ? IP_MTU : IPV6_MTU, &mtu, &len))
		return 0;
	return (unsigned int)mtu;
}

/* As large as a packet of the MTU that the port announces, but not valid. */
static void send_plain(const struct peer *p)
{
	static const char zero[4096 + 56];
	const struct hca *h = device_of(p);
	size_t len = h ? (128u << h->port.active_mtu) + 48 : 64;

	if (send(p->fd, zero, len, 0) < 0)
		send(p->fd, zero, 64, 0);
}

static void check_answer(struct peer *p, struct finding *f)
{
	struct rdma_conn_param param = { .qp_num = 0x123456,
					 .retry_count = 7,
					 .rnr_retry_count = 7 };
	int type = -1, err = 0, icmp = 0;
	union ibv_gid to;

	if (p->cma.connect(p->id, &param)) {
		err = -errno;
	} else {
		/* After it, as this host may be the peer: it has the port now.
		 */
		send_plain(p);
		type = next_event(p, clock_ns() + PATIENCE_NS, &err, &icmp);
	}
	switch (type) {
	case RDMA_CM_EVENT_REJECTED:
	case RDMA_CM_EVENT_CONNECT_RESPONSE:
	case RDMA_CM_EVENT_ESTABLISHED:
		to = ib_gid_ip(&p->id->route.addr.addr.ibaddr.dgid);
		if (netdev_is_local(&to))
			TEXT(f,
			     "%s answers; it is this host, where processes "
			     "reach each other without port %d",
			     p->text, ROCE_UDP_PORT);
		else
			TEXT(f,
			     "a connection manager at %s answers: UDP port %d "
			     "is open both ways",
			     p->text, ROCE_UDP_PORT);
		return;
	case RDMA_CM_EVENT_UNREACHABLE: /* so soon only by ICMP */
		icmp = ECONNREFUSED;
	}
	f->status = FAIL;
	if (icmp == ECONNREFUSED) {
		TEXT(f,
		     "no process receives on UDP port %d of %s: its kernel "
		     "answers with ICMP port unreachable",
		     ROCE_UDP_PORT, p->text);
		FIX(f, "softhca has the port only while a program runs: start "
		       "\"softhca run -- rping -s\" there, and try again");
	} else if (p->d->port_taken && !icmp) {
		say_astray(p, f);
	} else if (icmp || err) {
		TEXT(f, "%s cannot be reached: %s", p->text,
		     strerror(icmp    ? icmp :
			      err < 0 ? -err :
					EIO));
		FIX(f,
		    "ping %s; ip route get %s; check the firewalls on the "
		    "path",
		    p->text, p->text);
	} else {
		TEXT(f,
		     "no answer from %s within %d s: a firewall drops UDP "
		     "port %d in one direction, or nothing speaks RoCE there",
		     p->text, (int)(PATIENCE_NS / 1000000000), ROCE_UDP_PORT);
		FIX(f,
		    "let UDP port %d in on both hosts, for example: sudo "
		    "iptables -I INPUT -p udp --dport %d -j ACCEPT",
		    ROCE_UDP_PORT, ROCE_UDP_PORT);
	}
}

/* Packets that the path loses in silence are not seen here: no answer of RoCE is
 * as long as a packet of data. */
static void check_mtu(struct peer *p, bool answers, struct finding *f)
{
	const struct hca *h = device_of(p);
	unsigned int mtu = way_mtu(p), fits, port;

	if (!mtu || !h) {
		TEXT(f, "the path MTU is not known");
		return;
	}
	if (!answers) {
		f->status = WARN;
		TEXT(f,
		     "nothing answers, so the path MTU is not known; the first "
		     "link takes packets of %u bytes",
		     mtu);
		return;
	}
	fits = 128u << netdev_ib_mtu(mtu);
	port = 128u << h->port.active_mtu;
	TEXT(f,
	     "no hop on the path has refused packets of %u bytes, enough for "
	     "path MTU %u",
	     mtu, fits);
	if (fits >= port)
		return;
	f->status = WARN;
	TEXT(f, "; programs that use the port's, %u, lose their packets", port);
	FIX(f,
	    "give the program the path MTU (ib_write_bw -m %u), or softhca run "
	    "--addr the address that routes to the peer",
	    fits);
}

/* ---- iWARP ------------------------------------------------------------- */

static void set_port(struct sockaddr_storage *a, uint16_t port)
{
	if (a->ss_family == AF_INET)
		((struct sockaddr_in *)a)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)a)->sin6_port = htons(port);
}

/* Until the socket is ready, or end: 0 or -ETIMEDOUT. */
static int wait_ready(int fd, short events, uint64_t end)
{
	struct pollfd pfd = { .fd = fd, .events = events };
	uint64_t now;

	while ((now = clock_ns()) < end)
		if (poll(&pfd, 1, (int)((end - now) / 1000000) + 1) > 0)
			return 0;
	return -ETIMEDOUT;
}

/* A connection, in p->fd: 0 or -errno. */
static int open_tcp(struct peer *p, uint64_t end)
{
	int err = 0;
	socklen_t len = sizeof(err);

	set_port(&p->addr, p->d->peer_port);
	p->fd = socket(p->addr.ss_family,
		       SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (p->fd < 0)
		return -errno;
	if (!connect(p->fd, (struct sockaddr *)&p->addr, p->addr_len))
		return 0;
	if (errno != EINPROGRESS)
		return -errno;
	if (wait_ready(p->fd, POLLOUT, end))
		return -ETIMEDOUT;
	if (getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &err, &len))
		return -errno;
	return -err;
}

/* What comes back to a request that nobody accepts: 0, a reply of MPA; or
 * -errno: -EPROTO, something else; -ECONNRESET, the end. */
static int ask_mpa(struct peer *p, uint64_t end)
{
	const struct mpa_frame request = { .revision = 0xff };
	uint8_t buf[MPA_FRAME_MAX];
	size_t have = 0;
	ssize_t n;
	int len;

	n = (ssize_t)mpa_frame_encode(&request, buf);
	if (send(p->fd, buf, (size_t)n, MSG_NOSIGNAL) != n)
		return -errno;
	for (;;) {
		len = mpa_frame_len(true, buf, have);
		if (len < 0)
			return -EPROTO;
		if (have == (size_t)len)
			return 0;
		if (wait_ready(p->fd, POLLIN, end))
			return -ETIMEDOUT;
		n = recv(p->fd, buf + have, (size_t)len - have, MSG_DONTWAIT);
		if (n <= 0)
			return n ? -errno : -ECONNRESET;
		have += (size_t)n;
	}
}

static void say_unreachable(const struct peer *p, struct finding *f, int err)
{
	const unsigned port = p->d->peer_port;

	f->status = FAIL;
	if (err == -ECONNREFUSED) {
		TEXT(f,
		     "no program listens on TCP port %u of %s: reported by its "
		     "kernel or a firewall",
		     port, p->text);
		FIX(f, "start \"softhca run --iwarp -- rping -s\" there, which "
		       "listens on port 7174, or give the port of a program "
		       "that listens: --port PORT");
	} else if (err == -ETIMEDOUT) {
		TEXT(f,
		     "no answer from %s within %d s: a firewall drops TCP port "
		     "%u",
		     p->text, (int)(PATIENCE_NS / 1000000000), port);
		FIX(f,
		    "let TCP port %u in there, for example: sudo iptables -I "
		    "INPUT -p tcp --dport %u -j ACCEPT",
		    port, port);
	} else {
		TEXT(f, "%s cannot be reached: %s", p->text, strerror(-err));
		FIX(f,
		    "ping %s; ip route get %s; check the firewalls on the "
		    "path",
		    p->text, p->text);
	}
}

static void check_answer_tcp(struct peer *p, struct finding *f)
{
	const uint64_t end = clock_ns() + PATIENCE_NS;
	const unsigned port = p->d->peer_port;
	int err = open_tcp(p, end), mss = 0;
	socklen_t len = sizeof(mss);

	if (err) {
		say_unreachable(p, f, err);
		return;
	}
	getsockopt(p->fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len);
	TEXT(f, "TCP port %u of %s is open, in segments of %d bytes", port,
	     p->text, mss);
	err = ask_mpa(p, end);
	if (!err) {
		TEXT(f, ", and iWARP answers there");
		return;
	}
	f->status = WARN;
	TEXT(f, ", but whether iWARP is there is not known: %s",
	     err == -EPROTO    ? "another protocol answers" :
	     err == -ETIMEDOUT ? "nothing answers" :
				 "the connection was closed without an answer");
	FIX(f,
	    "try an RDMA program: softhca run --iwarp -- rping -c -C 1 -a "
	    "%s -p %u",
	    p->text, port);
}

/* Whether its address is proved to be a container's of this host: as programs do
 * it, with their code. false: that could not be tried. */
static bool try_way(struct peer *p, struct registry *r,
		    const struct roce_path *path, bool *near)
{
	const struct udp_config cfg = { .wire = false };
	__typeof__(udp_create) *create = NULL;
	__typeof__(udp_prove) *prove = NULL;
	__typeof__(udp_destroy) *destroy = NULL;
	const struct libdir_symbol symbols[] = {
		{ "udp_create", &create },
		{ "udp_prove", &prove },
		{ "udp_destroy", &destroy },
	};
	struct libdir_why why;
	struct udp *u;

	if (libdir_load(p->d->libdir, "libsofthca.so.0", symbols,
			sizeof(symbols) / sizeof(symbols[0]), &why) ||
	    create(&u, &cfg, r))
		return false;
	*near = prove(u, path, 0);
	destroy(u);
	return true;
}

/* Which way packets go, where containers share a directory. false: they share
 * none, or the peer is here, and the other checks have said it. */
static bool check_way(struct peer *p, struct finding *f)
{
	const struct rdma_ib_addr *a = &p->id->route.addr.addr.ibaddr;
	struct roce_path path = { .sgid = ib_gid_ip(&a->sgid),
				  .dgid = ib_gid_ip(&a->dgid) };
	bool near = false, said = false;
	struct registry *r;

	if (netdev_is_local(&path.dgid) || registry_join(&r, NULL, NULL))
		return false;
	if (!registry_is_shared(r)) {
		/* as for other hosts */
	} else if (!registry_is_elsewhere(r, 0, &path.dgid)) {
		TEXT(f,
		     "UDP port 4791: no program that shares %s receives at %s "
		     "now",
		     registry_path(r), p->text);
		said = true;
	} else if (try_way(p, r, &path, &near)) {
		if (near) {
			TEXT(f,
			     "shared memory: %s is in another network "
			     "namespace of this host, whose programs share %s",
			     p->text, registry_path(r));
		} else {
			f->status = WARN;
			TEXT(f,
			     "UDP port 4791: programs that share %s receive at "
			     "%s in another network namespace, but a packet to "
			     "that address did not arrive there",
			     registry_path(r), p->text);
			FIX(f, "see whether another network has the address as "
			       "well, or something on the way changes "
			       "addresses or drops UDP port 4791");
		}
		said = true;
	}
	registry_leave(r);
	return said;
}

static void peer_close(struct peer *p)
{
	if (p->id)
		p->cma.destroy_id(p->id);
	if (p->channel)
		p->cma.destroy_event_channel(p->channel);
	if (p->fd >= 0)
		close(p->fd);
}

void check_peer(struct doctor *d)
{
	struct peer p = { .d = d, .name = d->peer, .fd = -1 };
	struct finding address = { .status = OK }, path = { .status = OK };
	struct finding answer = { .status = OK }, mtu = { .status = OK };
	struct finding way = { .status = OK };
	bool found;

	found = load_cma(&p, &address) && find_address(&p, &address);
	doctor_report(d, "peer-address", &address);
	if (!found)
		return;
	found = find_path(&p, &path);
	doctor_report(d, "peer-path", &path);
	if (!found)
		goto out;
	if (p.id->verbs->device->transport_type == IBV_TRANSPORT_IWARP) {
		check_answer_tcp(&p, &answer);
		doctor_report(d, "peer-answer", &answer);
		goto out;
	}
	if (open_plain(&p))
		goto out;
	check_answer(&p, &answer);
	doctor_report(d, "peer-answer", &answer);
	check_mtu(&p, answer.status == OK, &mtu);
	doctor_report(d, "peer-mtu", &mtu);
	if (check_way(&p, &way))
		doctor_report(d, "peer-way", &way);
out:
	peer_close(&p);
}
