/*
 * fabric_side.c - the fabric that this host's ports are in
 *
 * src/fabric knows what a subnet's agents answer. Here it gets to know who is
 * there: the device's own port, the ports of other processes of this host, which
 * the registry has, and what the file says that SOFTHCA_FABRIC names. With a node
 * behind the file's name programs are not on this host's port but on that node's,
 * as those of ibsim are, and nobody else is there. Each device has a fabric of its
 * own, made when it is first asked: whose ports are in one subnet see the same,
 * since all of them make the same of an address, and what is set at nodes of the
 * file is shared (fabric_state.c).
 */
#include "umad_internal.h"

#include "base/bytes.h"
#include "base/say.h"
#include "counters/counter_file.h"
#include "fabric/fabric.h"
#include "net/ibaddr.h"
#include "os/config.h"
#include "os/file.h"
#include "registry/registry.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS 500000000u /* between looks into the registry */
#define SIDES 16

struct side {
	struct shca_device *dev; /* NULL: free */
	struct fabric *f; /* NULL: its file is wrong */
	bool read; /* there is a file */
	const char *stands; /* at this node of it; NULL: at its own port */
	bool said; /* that a host is not in it */
	struct fabric_state state; /* of the file's nodes */
	uint64_t looked_ns;
	size_t nhosts;
	uint32_t host[REGISTRY_ADDRS]; /* others, by their addresses */
};

/* Also keeps the fabrics to one request at a time. */
static pthread_mutex_t sides_lock = PTHREAD_MUTEX_INITIALIZER;
static struct side sides[SIDES];

/* Hosts */

static void add_host(struct side *s, const struct netdev_gid *port,
		     uint32_t addr, const char *desc)
{
	struct fabric_host h = {
		.node_guid = ib_guid(addr),
		.port_guid = ib_guid(addr),
		.switch_guid = ib_switch_guid(addr, port->prefix),
		.lid = ib_lid(addr, port->prefix),
		.sm_lid = ib_sm_lid(port->prefix),
		.cap_mask = s->dev->transport->port_caps,
		.mtu = (uint8_t)netdev_ib_mtu(port->mtu),
	};
	char why[256];

	snprintf(h.desc, sizeof(h.desc), "%s", desc);
	if (!fabric_add_host(s->f, &h, why, sizeof(why)) || s->said)
		return;
	s->said = true; /* and not at each look */
	say("%s: %s", s->dev->dev.name, why);
}

static void add_own(struct side *s, const struct netdev_gid *port)
{
	char desc[FABRIC_DESC_LEN + 1], name[HOST_NAME_MAX + 1] = "";

	gethostname(name, sizeof(name) - 1);
	snprintf(desc, sizeof(desc), "%.40s %.20s", name, s->dev->dev.name);
	add_host(s, port, ib_v4(&port->gid), desc);
}

static bool is_among(const uint32_t *list, size_t n, uint32_t addr)
{
	while (n--)
		if (list[n] == addr)
			return true;
	return false;
}

/* Addresses of this subnet at which processes receive; how many. */
static size_t others(const struct netdev_gid *port, uint32_t *list)
{
	const uint32_t own = ib_v4(&port->gid);
	static union ibv_gid gids[REGISTRY_ADDRS]; /* under sides_lock */
	struct registry *r;
	size_t n = 0, all;
	uint32_t addr;

	/* Joined for a moment: the process may be a registry's already. */
	if (registry_join(&r, config_get()->rundir, NULL))
		return 0;
	all = registry_addrs(r, gids, REGISTRY_ADDRS);
	registry_leave(r);
	for (size_t i = 0; i < all; i++) {
		addr = ib_v4(&gids[i]);
		if (addr && addr != own &&
		    ib_same_subnet(addr, port->prefix, own) &&
		    ib_lid(addr, port->prefix) && !is_among(list, n, addr))
			list[n++] = addr;
	}
	return n;
}

static void look(struct side *s)
{
	const uint64_t now = sys_now_ns();
	static uint32_t list[REGISTRY_ADDRS]; /* under sides_lock */
	struct netdev_gid port;
	struct gid_text text;
	size_t n;

	if (s->stands || (s->looked_ns && now - s->looked_ns < LOOK_NS) ||
	    !ca_addr(s->dev, &port))
		return;
	s->looked_ns = now;
	add_own(s, &port);
	n = others(&port, list);
	for (size_t i = 0; i < s->nhosts; i++)
		if (!is_among(list, n, s->host[i]))
			fabric_drop_host(s->f, ib_guid(s->host[i]));
	for (size_t i = 0; i < n; i++) {
		const union ibv_gid gid = ib_v4_gid(list[i]);

		if (!is_among(s->host, s->nhosts, list[i]))
			add_host(s, &port, list[i], gid_str(&gid, &text));
	}
	memcpy(s->host, list, n * sizeof(list[0]));
	s->nhosts = n;
}

/* The file, if one is named. False: it is wrong, which is said. */
static bool read_file(struct side *s)
{
	const char *value = config_get()->fabric, *node;
	char path[PATH_MAX], why[512];
	struct fabric_port port;
	bool right = false;
	char *text;
	size_t len;

	if (!value)
		return true;
	node = file_and_word(value, path);
	text = file_read_all(path, FABRIC_TEXT_MAX, &len);
	if (!text)
		say("--fabric: %s: %s", path, sys_strerror(errno));
	else if (fabric_read(s->f, path, text, len, why, sizeof(why)))
		say("--fabric: %s", why);
	else if (node && fabric_port_named(s->f, node, 0, &port))
		say("--fabric: %s has no node %s", path, node);
	else
		right = true;
	if (right)
		fabric_state_init(&s->state, path, text, len);
	free(text);
	s->read = true;
	s->stands = node;
	return right;
}

/* With sides_lock: NULL: there is no room, or no memory, or the file is wrong. */
static struct side *side_of(struct shca_device *dev)
{
	struct side *s = sides;

	while (s < sides + SIDES && s->dev && s->dev != dev)
		s++;
	if (s == sides + SIDES)
		return NULL;
	if (!s->dev) {
		s->f = fabric_new();
		if (!s->f)
			return NULL;
		s->dev = dev;
		s->state.fd = -1;
		if (!read_file(s)) {
			fabric_free(s->f);
			s->f = NULL;
		}
	}
	if (!s->f)
		return NULL;
	look(s);
	fabric_state_read(&s->state, s->f);
	return s;
}

/* Counters: sums of this user's processes on this host */

/* Of the device with that port; -1: it is not of this host. */
static int row_of(uint64_t port_guid)
{
	struct ibv_device **list;
	struct netdev_gid gid;
	int n, found = -1;

	if (shca_device_list(&list, &n))
		return -1;
	for (int i = 0; i < n && found < 0; i++)
		if (!shca_gid(to_device(list[i]), PORT_NUM, 0, &gid) &&
		    get_be64(gid.gid.raw + 8) == port_guid)
			found = (int)to_device(list[i])->row;
	free(list);
	return found;
}

static const char *tree(void)
{
	const struct config *cfg = config_get();

	return cfg->tree ? cfg->tree : shca_sysfs_root();
}

static int counters(void *arg, uint64_t port_guid, struct fabric_counters *c)
{
	const int row = row_of(port_guid);
	uint64_t n[COUNTER_PORT_N];

	(void)arg;
	if (row < 0)
		return -1;
	memset(c, 0, sizeof(*c));
	if (!tree())
		return 0;
	counter_port_get((unsigned)row, tree(), config_get()->rundir, n);
	c->xmit_data = n[COUNTER_XMIT_DATA];
	c->rcv_data = n[COUNTER_RCV_DATA];
	c->xmit_pkts = c->unicast_xmit = n[COUNTER_XMIT_PKTS];
	c->rcv_pkts = c->unicast_rcv = n[COUNTER_RCV_PKTS];
	return 0;
}

static int reset(void *arg, uint64_t port_guid,
		 const struct fabric_counters *less)
{
	const uint64_t more[COUNTER_PORT_N] = {
		[COUNTER_XMIT_DATA] = less->xmit_data,
		[COUNTER_RCV_DATA] = less->rcv_data,
		[COUNTER_XMIT_PKTS] = less->xmit_pkts,
		[COUNTER_RCV_PKTS] = less->rcv_pkts,
	};
	const int row = row_of(port_guid);

	(void)arg;
	return row < 0 || !tree() ?
		       -1 :
		       counter_port_reset((unsigned)row, tree(), more);
}

static uint16_t mlid(void *arg, const uint8_t mgid[16])
{
	union ibv_gid gid;
	uint32_t group;

	(void)arg;
	memcpy(gid.raw, mgid, sizeof(gid.raw));
	group = ib_mgid_addr(&gid);
	return group ? ib_mlid(group) : 0;
}

static void set(void *arg, const struct fabric_set *s)
{
	struct side *side = arg;

	fabric_state_add(&side->state, s);
}

/* Where programs are */

void fabric_forked(void)
{
	pthread_mutex_init(&sides_lock, NULL);
	for (size_t i = 0; i < SIDES; i++)
		if (sides[i].dev)
			fabric_state_close(&sides[i].state);
	memset(sides, 0, sizeof(sides));
}

int fabric_open(struct shca_device *dev)
{
	int err;

	pthread_mutex_lock(&sides_lock);
	err = side_of(dev) ? 0 : -EIO;
	pthread_mutex_unlock(&sides_lock);
	return err;
}

bool fabric_stands(struct shca_device *dev, unsigned num,
		   struct fabric_port *port)
{
	const char *value = config_get()->fabric;
	bool stands = false;
	struct side *s;

	if (!value || !strchr(value, '@'))
		return false;
	pthread_mutex_lock(&sides_lock);
	s = side_of(dev);
	if (s && s->stands)
		stands = !fabric_port_named(s->f, s->stands, num, port);
	pthread_mutex_unlock(&sides_lock);
	return stands;
}

/* Requests */

static bool is_smp(const uint8_t *mad)
{
	return mad[1] == UMAD_CLASS_SUBN_LID_ROUTED ||
	       mad[1] == UMAD_CLASS_SUBN_DIRECTED_ROUTE;
}

/* A Set changes nodes of the file for all processes, one after the other. */
static ssize_t request(struct side *s, struct port *p,
		       const ib_mad_addr_t *addr, const uint8_t *mad,
		       void **out, struct fabric_port *at)
{
	const bool locked = is_smp(mad) && mad[3] == UMAD_METHOD_SET &&
			    fabric_state_lock(&s->state, s->f);
	const struct fabric_env env = { .counters = counters,
					.reset = reset,
					.mlid = mlid,
					.set = locked ? set : NULL,
					.arg = s };
	ssize_t n;

	n = fabric_request(s->f, &env, p->guid, ntohs(addr->lid),
			   ntohl(addr->qpn), mad, MAD_LEN, out, at);
	if (locked)
		fabric_state_unlock(&s->state);
	return n;
}

int fabric_ask(struct port *p, const ib_mad_addr_t *addr, const uint8_t *mad,
	       size_t len, void **out, size_t *outlen)
{
	const bool sa = mad[1] == UMAD_CLASS_SUBN_ADM;
	struct fabric_port at;
	ssize_t n = FABRIC_NOBODY;
	struct side *s;

	if (mad_is_response(mad))
		return is_smp(mad) ? -ENOENT : -EREMOTE;
	if (len > MAD_LEN)
		return sa ? -ENOENT : -EREMOTE;
	pthread_mutex_lock(&sides_lock);
	s = side_of(p->dev);
	if (s)
		n = request(s, p, addr, mad, out, &at);
	/* Without a file, hosts may be there that nobody has named. */
	if (n == FABRIC_NOBODY && !is_smp(mad) && !sa && !(s && s->read))
		n = FABRIC_ELSEWHERE;
	/* No packet leads from a node that is not there. */
	if (n == FABRIC_ELSEWHERE && (is_smp(mad) || (s && s->stands)))
		n = FABRIC_NOBODY;
	pthread_mutex_unlock(&sides_lock);
	if (n == FABRIC_ELSEWHERE)
		return -EREMOTE;
	if (n == FABRIC_NOBODY)
		return -ENOENT;
	*outlen = (size_t)n;
	return 0;
}
