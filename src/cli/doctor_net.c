/*
 * doctor_net.c - addresses and sockets
 */
#include "cli/doctor.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROCE_PORT 4791

void check_device(struct doctor *d, struct finding *f)
{
	char text[INET6_ADDRSTRLEN] = "no GID";
	const struct hca *h;
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
		if (h->gid_count) {
			struct in6_addr in6;

			memcpy(&in6, h->gid[0].entry.gid.raw, sizeof(in6));
			if (IN6_IS_ADDR_V4MAPPED(&in6))
				inet_ntop(AF_INET, in6.s6_addr + 12, text,
					  sizeof(text));
			else
				inet_ntop(AF_INET6, &in6, text, sizeof(text));
		} else {
			f->status = WARN;
		}
		TEXT(f, "%s%s with %zu GIDs, the first %s", i ? "; " : "",
		     h->name, h->gid_count, text);
	}
	if (d->hcas.why[0]) {
		f->status = WARN;
		TEXT(f, "; %s", d->hcas.why);
	}
}

static void process_of_inode(unsigned long inode, char *out, size_t size)
{
	char want[64], path[300], link[64], comm[64];
	struct dirent *p, *e;
	DIR *proc, *fds;
	ssize_t len;

	snprintf(want, sizeof(want), "socket:[%lu]", inode);
	out[0] = '\0';
	proc = opendir("/proc");
	while (proc && !out[0] && (p = readdir(proc))) {
		if (!isdigit((unsigned char)p->d_name[0]))
			continue;
		snprintf(path, sizeof(path), "/proc/%.16s/fd", p->d_name);
		fds = opendir(path);
		while (fds && (e = readdir(fds))) {
			snprintf(path, sizeof(path), "/proc/%.16s/fd/%.16s",
				 p->d_name, e->d_name);
			len = readlink(path, link, sizeof(link) - 1);
			if (len < 0)
				continue;
			link[len] = '\0';
			if (strcmp(link, want))
				continue;
			snprintf(path, sizeof(path), "/proc/%.16s/comm",
				 p->d_name);
			doctor_read_line(path, comm, sizeof(comm));
			snprintf(out, size, "process %.16s, %s", p->d_name,
				 comm);
			break;
		}
		if (fds)
			closedir(fds);
	}
	if (proc)
		closedir(proc);
}

/* Names the owners of the sockets on port 4791 in /proc/net/udp or udp6 that
 * are not this user's; returns how many sockets are. */
static unsigned int port_owners(const char *table, char *others, size_t size)
{
	FILE *file = fopen(table, "re");
	unsigned int port, uid, mine = 0;
	unsigned long inode;
	char line[512], who[128], name[64];
	struct passwd *pw;

	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line,
			   " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %*x "
			   "%*x:%*x %*x:%*x %*x %u %*u %lu",
			   &port, &uid, &inode) != 3 ||
		    port != ROCE_PORT)
			continue;
		if (uid == geteuid()) {
			mine++;
			continue;
		}
		process_of_inode(inode, who, sizeof(who));
		pw = getpwuid(uid);
		snprintf(name, sizeof(name), "%s", pw ? pw->pw_name : "?");
		if (!strstr(others, name))
			doctor_add(others, size, "%suser %s (%u)%s%s",
				   others[0] ? "; " : "", name, uid,
				   who[0] ? ", " : "", who);
	}
	if (file)
		fclose(file);
	return mine;
}

/* Whether a socket that shares the port can be bound at a GID's address. */
static int try_bind(const struct hca_gid *g)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_port = htons(ROCE_PORT) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6,
				    .sin6_port = htons(ROCE_PORT) };
	const struct sockaddr *sa = (const void *)&in6;
	socklen_t len = sizeof(in6);
	int fd, one = 1, err = 0;

	memcpy(&in6.sin6_addr, g->entry.gid.raw, 16);
	if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) {
		memcpy(&in.sin_addr, g->entry.gid.raw + 12, 4);
		sa = (const void *)&in;
		len = sizeof(in);
	} else if (IN6_IS_ADDR_LINKLOCAL(&in6.sin6_addr)) {
		in6.sin6_scope_id = g->entry.ndev_ifindex;
	}
	fd = socket(sa->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if (sa->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
	if (bind(fd, sa, len))
		err = -errno;
	close(fd);
	return err;
}

void check_port(struct doctor *d, struct finding *f)
{
	char others[512] = "", text[INET6_ADDRSTRLEN];
	unsigned int mine;
	size_t i, j;
	int err;

	mine = port_owners("/proc/net/udp", others, sizeof(others));
	mine += port_owners("/proc/net/udp6", others, sizeof(others));
	for (i = 0; i < d->hcas.count; i++) {
		for (j = 0; j < d->hcas.hca[i].gid_count; j++) {
			const struct hca_gid *g = &d->hcas.hca[i].gid[j];

			err = try_bind(g);
			if (!err)
				continue;
			inet_ntop(AF_INET6, g->entry.gid.raw, text,
				  sizeof(text));
			TEXT(f, "%s%s: %s", f->text[0] ? "; " : "", text,
			     err == -EADDRINUSE ? "taken" : strerror(-err));
			f->status = WARN;
		}
	}
	if (f->status == WARN) {
		TEXT(f, "; used by %s. Traffic within this host still works",
		     others[0] ? others
			       : "something that does not share the port");
		if (!access("/sys/module/rdma_rxe", F_OK))
			FIX(f, "if it is the kernel's rxe: rdma link show, "
			       "then sudo rdma link delete NAME");
		else
			FIX(f, "end that process, or work in a network "
			       "namespace of your own");
		return;
	}
	if (mine)
		TEXT(f, "shared by %u sockets of yours", mine);
	else
		TEXT(f, "free");
	if (others[0])
		TEXT(f, "; at other addresses used by %s", others);
}

void check_udp(struct doctor *d, struct finding *f)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	int gso = 1024, gro = 1, gso_err = 0, gro_err = 0;

	(void)d;
	if (fd < 0) {
		f->status = FAIL;
		TEXT(f, "no UDP sockets: %s", strerror(errno));
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
		     "this kernel cannot take or give many packets at a time "
		     "(UDP_SEGMENT: %s, UDP_GRO: %s), so large transfers are "
		     "several times slower",
		     strerror(gso_err), strerror(gro_err));
		FIX(f, "Linux 5.0 or later has both");
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
			TEXT(f, "%s%s is not shown here", i ? ", " : "",
			     limits[i].name);
			continue;
		}
		TEXT(f, "%s%s %s", i ? ", " : "", limits[i].name, line);
		if (strtoull(line, NULL, 10) < 4 << 20)
			FIX(f, "%s%s=8388608",
			    f->fix[0] ? " "
				      : "for fast networks: sudo sysctl -w ",
			    limits[i].name);
	}
}
