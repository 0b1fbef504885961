/*
 * rails.c - which addresses each rail has
 */
#include "rails.h"

#include "base/bytes.h"
#include "base/gid.h"
#include "base/sys.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((format(printf, 4, 5))) static int
refuse(int err, char *reason, size_t size, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(reason, size, fmt, ap);
	va_end(ap);
	return -err;
}

static void rail_add(struct rail *r, const struct netdev_gid *g)
{
	if (r->n == RAIL_ADDRS)
		return;
	r->addr[r->n].gid = g->gid;
	r->addr[r->n++].ifindex = gid_is_link_local(&g->gid) ? g->ifindex : 0;
}

static int kind_of(const union ibv_gid *gid)
{
	return gid_is_v4(gid) ? 0 : gid_is_link_local(gid) ? 2 : 1;
}

/* 127.0.0.2 and on, or from an address of 127/8 on. */
static int on_loopback(struct rail *rail, size_t n, const char *first,
		       char *reason, size_t size)
{
	uint32_t addr = 0x7f000002;
	struct in_addr v4;

	if (first && (inet_pton(AF_INET, first, &v4) != 1 ||
		      ntohl(v4.s_addr) >> 24 != 127))
		return refuse(EINVAL, reason, size,
			      "rails without an interface are on loopback, "
			      "where %s is not: name its interface "
			      "(--devices)",
			      first);
	if (first)
		addr = ntohl(v4.s_addr);
	if (addr + n > 0x7fffffff)
		return refuse(EINVAL, reason, size,
			      "there are not %zu addresses of 127/8 from %s on",
			      n, first);
	for (size_t i = 0; i < n; i++) {
		const uint32_t be = htonl(addr + (uint32_t)i);

		rail[i].addr[rail[i].n++].gid = gid_of_v4(&be);
	}
	return (int)n;
}

/* IPv6 addresses in order, since the kernel lists the newest first; IPv4's stay as
 * they were added, and so does an address that was put first. */
static void sort_v6(struct netdev_table *t, size_t from)
{
	for (size_t i = from; i < t->count; i++)
		for (size_t k = from; k < i; k++) {
			const struct netdev_gid a = t->gid[k], b = t->gid[i];

			if (!kind_of(&b.gid) ||
			    kind_of(&a.gid) != kind_of(&b.gid) ||
			    memcmp(&a.gid, &b.gid, sizeof(a.gid)) <= 0)
				continue;
			t->gid[k] = b;
			t->gid[i] = a;
		}
}

/* Deals the addresses of an interface to n rails. */
static int on_interface(struct rail *rail, size_t n, const char *ifname,
			const char *first, char *reason, size_t size)
{
	size_t have[RAIL_ADDRS] = { 0 }, most = 0;
	struct netdev_table t;
	int err = netdev_scan(&t, ifname, first);

	if (err && err != -EADDRNOTAVAIL)
		return refuse(-err, reason, size, "interface %s: %s", ifname,
			      sys_strerror(-err));
	if (t.count && t.gid[0].loopback)
		return on_loopback(rail, n, first, reason, size);
	sort_v6(&t, first && !err);
	for (size_t i = 0; i < t.count; i++) {
		const int kind = kind_of(&t.gid[i].gid);

		if (have[kind] < n)
			rail_add(&rail[have[kind]], &t.gid[i]);
		have[kind]++;
	}
	for (size_t k = 0; k < RAIL_ADDRS; k++)
		most = have[k] > most ? have[k] : most;
	if (most < n)
		return refuse(
			EADDRNOTAVAIL, reason, size,
			"%zu rails on %s need %zu addresses of it, and it "
			"has %zu: ip address add 10.0.0.1/24 dev %s",
			n, ifname, n, most, ifname);
	for (size_t i = 0; i < n; i++)
		snprintf(rail[i].ifname, sizeof(rail[i].ifname), "%s", ifname);
	return 0;
}

static int on_interfaces(struct rail *rail, size_t n, const char *ifnames,
			 const char *first, char *reason, size_t size)
{
	size_t names = 1, at = 0, next;
	const char *p = ifnames;
	char name[IF_NAMESIZE];
	int err = 0;

	for (; *p; p++)
		names += *p == ',';
	if (names > n)
		return refuse(EINVAL, reason, size,
			      "%zu rails are fewer than the interfaces %s", n,
			      ifnames);
	p = ifnames;
	for (size_t i = 0; i < names && err >= 0; i++, at = next) {
		const size_t len = strcspn(p, ",");

		if (!len || len >= sizeof(name))
			return refuse(EINVAL, reason, size,
				      "%s: no list of interfaces", ifnames);
		memcpy(name, p, len);
		name[len] = '\0';
		p += len + (p[len] == ',');
		next = (i + 1) * n / names;
		err = on_interface(rail + at, next - at, name, first, reason,
				   size);
	}
	return err < 0 ? err : (int)n;
}

static int at_addresses(struct rail *rail, const char *text, char *reason,
			size_t size)
{
	struct netdev_table t;
	char one[64];
	size_t n = 0;
	int err;

	for (const char *p = text; *p; n++) {
		const size_t len = strcspn(p, ",");

		if (n == RAILS_MAX)
			return refuse(E2BIG, reason, size,
				      "%s: at most %d rails", text, RAILS_MAX);
		snprintf(one, sizeof(one), "%.*s", (int)len, p);
		p += len + (p[len] == ',');
		err = netdev_scan(&t, NULL, one);
		if (err && err != -EADDRNOTAVAIL)
			return refuse(-err, reason, size, "%s",
				      sys_strerror(-err));
		if (err)
			return refuse(EADDRNOTAVAIL, reason, size,
				      "%s: a number from 1 to %d, or addresses "
				      "of interfaces that are up, as %s is not",
				      text, RAILS_MAX, one);
		for (size_t i = 0; i < n; i++)
			if (gid_equal(&rail[i].addr[0].gid, &t.gid[0].gid))
				return refuse(EINVAL, reason, size,
					      "%s: %s is there twice", text,
					      one);
		rail_add(&rail[n], &t.gid[0]);
	}
	return (int)n;
}

int rails_read(const char *text, const char *ifnames, const char *first,
	       struct rail rail[RAILS_MAX], char *reason, size_t size)
{
	char *end;
	unsigned long n;

	memset(rail, 0, RAILS_MAX * sizeof(*rail));
	if (strpbrk(text, ".:"))
		return at_addresses(rail, text, reason, size);
	n = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || !n || n > RAILS_MAX)
		return refuse(
			EINVAL, reason, size,
			"%s: a number from 1 to %d, or addresses, belongs "
			"here",
			text, RAILS_MAX);
	if (ifnames && *ifnames)
		return on_interfaces(rail, n, ifnames, first, reason, size);
	return on_loopback(rail, n, first, reason, size);
}

static bool rail_has(const struct rail *r, const struct netdev_gid *g)
{
	for (size_t i = 0; i < r->n; i++)
		if (gid_equal(&r->addr[i].gid, &g->gid) &&
		    (!r->addr[i].ifindex || r->addr[i].ifindex == g->ifindex))
			return true;
	return false;
}

int rail_scan(const struct rail *r, struct netdev_table *t)
{
	const union ibv_gid *first = &r->addr[0].gid;
	struct gid_text text;
	size_t n = 0;
	/* Its first stays first; one of loopback is found if it is asked for. */
	int err = netdev_scan(t, r->ifname[0] ? r->ifname : NULL,
			      gid_str(first, &text));

	for (size_t i = 0; i < t->count; i++)
		if (rail_has(r, &t->gid[i]))
			t->gid[n++] = t->gid[i];
	t->count = n;
	return err == -EADDRNOTAVAIL ? 0 : err;
}
