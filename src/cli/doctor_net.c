/*
 * doctor_net.c - checks of the device's addresses, UDP port and sockets
 */
#include "cli/cli.h"
#include "cli/doctor.h"
#include "link/udp.h"
#include "net/ibaddr.h"
#include "registry/registry.h"
#include "wire/roce.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

/* The command that gives a device without an address one. */
static const char *address_fix(void)
{
	struct ifaddrs *list, *a;
	bool up = false;

	if (getifaddrs(&list))
		return "ip addr";
	for (a = list; a; a = a->ifa_next)
		up |= !!(a->ifa_flags & IFF_UP);
	freeifaddrs(list);
	return up ? "give an interface that is up an address: "
		    "ip addr add 127.0.0.1/8 dev lo" :
		    "ip link set lo up";
}

static void describe_gid(const union ibv_gid *gid, char *text, socklen_t size)
{
	struct in6_addr in6;

	memcpy(&in6, gid->raw, sizeof(in6));
	if (IN6_IS_ADDR_V4MAPPED(&in6))
		inet_ntop(AF_INET, in6.s6_addr + 12, text, size);
	else
		inet_ntop(AF_INET6, &in6, text, size);
}

static bool is_rocev1(const struct hca_gid *g)
{
	return g->entry.gid_type == IBV_GID_TYPE_ROCE_V1;
}

/* Of a device of RoCE, where RoCE v1 is asked for (--rocev1). */
static void describe_rocev1(const struct hca *h, struct finding *f)
{
	const char *asked = getenv("SOFTHCA_ROCEV1");
	size_t n = 0;

	for (size_t i = 0; i < h->gid_count; i++)
		n += is_rocev1(&h->gid[i]);
	if (n)
		TEXT(f, ", %zu of them for RoCE v1", n);
	if (n || !asked || !strcmp(asked, "0"))
		return;
	f->status = WARN;
	TEXT(f,
	     ", none for RoCE v1 (SOFTHCA_ROCEV1): no interface of Ethernet, "
	     "or no CAP_NET_RAW");
	FIX(f, "run as root, in a network namespace of your own (unshare "
	       "-Urn), or in a container with --cap-add NET_RAW");
}

void check_device(struct doctor *d, struct finding *f)
{
	char text[INET6_ADDRSTRLEN];
	const struct hca *h;
	struct hca_name name;
	struct ib_why why;
	size_t i;

	if (!d->libdir[0] || hca_list_read(&d->hcas, d->libdir)) {
		f->status = FAIL;
		TEXT(f, "%s", d->hcas.why[0] ? d->hcas.why : "no libraries");
		if (getenv("SOFTHCA_DEVICES") || getenv("SOFTHCA_ADDR"))
			FIX(f, "unset SOFTHCA_DEVICES SOFTHCA_ADDR, or correct "
			       "them");
		return;
	}
	for (i = 0; i < d->hcas.count; i++) {
		h = &d->hcas.hca[i];
		TEXT(f, "%s%s has ", i ? "; " : "", hca_names(h, &name));
		if (!h->gid_count) {
			TEXT(f, "no GID: none of its interfaces is up and has "
				"an address");
			if (f->status == OK)
				FIX(f, "%s", address_fix());
			f->status = WARN;
			continue;
		}
		if (h->node_type == IBV_NODE_RNIC) {
			TEXT(f, "the addresses of %s, and speaks iWARP",
			     h->gid[0].ifname);
			continue;
		}
		if (hca_is_infiniband(h) && h->port.lid) {
			describe_gid(&h->at.gid, text, sizeof(text));
			TEXT(f, "LID %u, of %s/%u", h->port.lid, text,
			     h->at.prefix);
			continue;
		}
		if (hca_is_infiniband(h)) {
			f->status = WARN;
			TEXT(f, "%s", ib_port_why(&h->at, &why));
			FIX(f, "--addr=ADDRESS, or SOFTHCA_ADDR, with an "
			       "address that has a LID");
			continue;
		}
		describe_gid(&h->gid[0].entry.gid, text, sizeof(text));
		TEXT(f, "%zu GID%s, the first %s", h->gid_count,
		     h->gid_count == 1 ? "" : "s", text);
		describe_rocev1(h, f);
	}
	if (d->hcas.why[0]) {
		f->status = WARN;
		TEXT(f, "; %s", d->hcas.why);
	}
}

/*
 * Binds every address with the code of a program's engine, which reports who
 * has the port.
 */
/* "UDP port 4791 of A is taken by ...": of several addresses once, where the rest
 * is the same. */
static void add_reason(struct finding *f, const char *why)
{
	static const char of[] = " of ", taken[] = " is taken by ";
	const char *addr = strstr(why, of), *rest = strstr(why, taken);
	char *same = rest ? strstr(f->text, rest) : NULL;
	char tail[sizeof(f->text)];

	if (!addr || !same || addr > rest) {
		TEXT(f, "%s%s", f->text[0] ? "; " : "", why);
		return;
	}
	addr += strlen(of);
	snprintf(tail, sizeof(tail), "%s", same);
	*same = '\0';
	TEXT(f, ", %.*s%s", (int)(rest - addr), addr, tail);
}

void check_port(struct doctor *d, struct finding *f)
{
	const struct udp_config cfg = { .wire = false };
	__typeof__(udp_create) *create = NULL;
	__typeof__(udp_bind) *bind_to = NULL;
	__typeof__(udp_why) *reason = NULL;
	__typeof__(udp_destroy) *destroy = NULL;
	const struct libdir_symbol symbols[] = {
		{ "udp_create", &create },
		{ "udp_bind", &bind_to },
		{ "udp_why", &reason },
		{ "udp_destroy", &destroy },
	};
	struct libdir_why why;
	struct registry *r = NULL;
	struct udp *u;
	size_t i, j;
	int err;

	if (libdir_load(d->libdir, "libsofthca.so.0", symbols,
			sizeof(symbols) / sizeof(symbols[0]), &why)) {
		f->status = FAIL;
		TEXT(f, "not checked: %s", why.text);
		FIX(f, "%s", why.fix);
		return;
	}
	/* A program without a registry works alone, too. */
	if (registry_join(&r, NULL, NULL))
		r = NULL;
	err = create(&u, &cfg, r);
	if (err) {
		f->status = FAIL;
		TEXT(f, "cannot create sockets: %s", strerror(-err));
		goto leave;
	}
	for (i = 0; i < d->hcas.count; i++) {
		/* iWARP goes by TCP, at the ports of programs. */
		if (d->hcas.hca[i].node_type == IBV_NODE_RNIC)
			continue;
		for (j = 0; j < d->hcas.hca[i].gid_count; j++) {
			const struct hca *h = &d->hcas.hca[i];
			const struct ibv_gid_entry *e = &h->gid[j].entry;

			if (is_rocev1(&h->gid[j]))
				continue; /* an address of another entry */
			err = hca_is_infiniband(h) ?
				      bind_to(u, &h->at.gid, h->at.ifindex) :
				      bind_to(u, &e->gid, e->ndev_ifindex);
			if (!err && !reason(u)[0])
				continue;
			add_reason(f, reason(u));
			f->status = WARN;
			d->port_taken = true;
		}
	}
	destroy(u);
	if (f->status == OK)
		TEXT(f, "UDP port %d is available at all addresses",
		     ROCE_UDP_PORT);
	else if (!access("/sys/module/rdma_rxe", F_OK))
		FIX(f, "if the kernel's rxe has it: rdma link show, "
		       "then sudo rdma link delete NAME");
	else
		FIX(f, "stop that process, or use a network namespace of your "
		       "own (unshare -Urn, then ip link set lo up); processes "
		       "of one user share the port if they share /dev/shm or "
		       "SOFTHCA_RUNDIR");
leave:
	registry_leave(r);
}

void check_udp(struct doctor *d, struct finding *f)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int gso = 1024, gro = 1, gso_err = 0, gro_err = 0;

	(void)d;
	if (fd < 0) {
		f->status = FAIL;
		TEXT(f, "cannot create UDP sockets: %s", strerror(errno));
		return;
	}
	if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &gso, sizeof(gso)))
		gso_err = errno;
	if (setsockopt(fd, IPPROTO_UDP, UDP_GRO, &gro, sizeof(gro)))
		gro_err = errno;
	close(fd);
	if (gso_err || gro_err) {
		f->status = WARN;
		TEXT(f,
		     "this kernel cannot send or receive several packets per "
		     "call (UDP_SEGMENT: %s, UDP_GRO: %s), so large transfers "
		     "are several times slower",
		     strerror(gso_err), strerror(gro_err));
		FIX(f, "use Linux 5.0 or later, which has both");
		return;
	}
	TEXT(f, "UDP_SEGMENT and UDP_GRO work");
}

void check_buffers(struct doctor *d, struct finding *f)
{
	static const struct {
		const char *name, *path;
	} limits[] = {
		{ "net.core.rmem_max", "/proc/sys/net/core/rmem_max" },
		{ "net.core.wmem_max", "/proc/sys/net/core/wmem_max" },
	};
	char line[32];
	size_t i;

	(void)d;
	for (i = 0; i < 2; i++) {
		if (doctor_read_line(limits[i].path, line, sizeof(line))) {
			TEXT(f, "%s%s cannot be read here", i ? ", " : "",
			     limits[i].name);
			continue;
		}
		TEXT(f, "%s%s %s", i ? ", " : "", limits[i].name, line);
		if (strtoull(line, NULL, 10) < 4 << 20)
			FIX(f, "%s%s=8388608",
			    f->fix[0] ? " " :
					"for fast networks: sudo sysctl -w ",
			    limits[i].name);
	}
}

/* Of iWARP each connection is a socket. */
void check_descriptors(struct doctor *d, struct finding *f)
{
	struct rlimit r;

	(void)d;
	if (getrlimit(RLIMIT_NOFILE, &r)) {
		TEXT(f, "the limit is not known: %s", strerror(errno));
		return;
	}
	TEXT(f,
	     "a process may have %llu, and each iWARP connection takes one "
	     "(ulimit -n)",
	     (unsigned long long)r.rlim_cur);
	if (r.rlim_cur < 256)
		f->status = WARN;
	if (r.rlim_cur < 4096 && r.rlim_cur < r.rlim_max)
		FIX(f, "for thousands of connections: ulimit -n %llu",
		    (unsigned long long)r.rlim_max);
	else if (r.rlim_cur < 256)
		FIX(f, "raise the hard limit (limits.conf(5))");
}
