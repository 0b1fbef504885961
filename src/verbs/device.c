/*
 * device.c - devices, their GID tables and attributes
 *
 * A device is a name and a set of addresses: those of all interfaces, of one
 * (SOFTHCA_DEVICES), or one of each kind (SOFTHCA_RAILS). It lives as long as the process. A GID keeps its
 * index: an address that goes leaves a hole, which the next new one fills.
 */
#include "infiniband.h"
#include "verbs.h"

#include "base/gid.h"
#include "base/hash64.h"
#include "base/say.h"
#include "base/why.h"
#include "link/rocev1.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>

#define MAX_OF_KIND RAILS_MAX
#define KINDS 4
#define MAX_DEVICES (KINDS * MAX_OF_KIND)

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct shca_device *devices[MAX_DEVICES];
static int ndevices;
static char sysfs_path[192];

static void sysfs_path_init(void)
{
	const char *root = secure_getenv("SOFTHCA_SYSFS");

	snprintf(sysfs_path, sizeof(sysfs_path), "%.180s/sys",
		 root ? root : "");
}

const char *shca_sysfs_path(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, sysfs_path_init);
	return sysfs_path;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
	return hash64_bytes(hash, text, strlen(text));
}

/* EUI-64 of a MAC address (7.4 of RFC 4291's appendix A), which rails of one
 * interface share; or made up. */
static __be64 device_guid(const struct shca_device *dev)
{
	char host[HOST_NAME_MAX + 1] = "";
	uint8_t guid[8] = { 0 };
	static const uint8_t none[6];
	uint64_t hash;
	__be64 out;
	size_t i;

	hash = dev->naming->guid ? dev->naming->guid(dev) : 0;
	if (hash)
		return htobe64(hash);
	for (i = 0; i < dev->gids.count; i++) {
		const uint8_t *mac = dev->gids.gid[i].mac;

		if (!memcmp(mac, none, sizeof(none)))
			continue;
		memcpy(guid, mac, 3);
		guid[0] ^= 2;
		guid[3] = 0xff;
		guid[4] = (uint8_t)(0xfe - dev->index * (dev->rail.n > 0));
		memcpy(guid + 5, mac + 3, 3);
		memcpy(&out, guid, sizeof(out));
		return out;
	}
	/* Only loopback: the host name's hash, the same on each start. */
	gethostname(host, sizeof(host) - 1);
	hash = hash_text(HASH64_BEGIN, host);
	memcpy(guid, &hash, sizeof(guid));
	guid[7] ^= (uint8_t)dev->index;
	guid[0] = (uint8_t)((guid[0] & ~1) | 2); /* locally administered */
	memcpy(&out, guid, sizeof(out));
	return out;
}

static int scan_gids(const struct shca_device *dev, struct netdev_table *t)
{
	int err;

	if (dev->rail.n)
		return rail_scan(&dev->rail, t);
	/* Of several devices at most one has the address to put first. */
	err = netdev_scan(t, dev->ifnames[0] ? dev->ifnames : NULL,
			  config_get()->addr);

	return err == -EADDRNOTAVAIL ? 0 : err;
}

/*
 * The GID of a device whose GIDs are no addresses: the MAC of its first interface
 * in the first bytes, as siw has it, or, where that has none, as the GUID has. siw
 * has one device per interface; rails of one are told apart by the last byte.
 */
static bool mac_gid(const struct shca_device *dev, struct netdev_gid *gid)
{
	size_t i = 0;

	/* The table may have holes. */
	while (i < dev->gids.count && !dev->gids.gid[i].ifindex)
		i++;
	*gid = dev->gids.gid[i < dev->gids.count ? i : 0];
	memset(&gid->gid, 0, sizeof(gid->gid));
	memcpy(gid->gid.raw, &dev->guid, 3);
	memcpy(gid->gid.raw + 3, (const uint8_t *)&dev->guid + 5, 3);
	gid->gid.raw[0] ^= 2;
	gid->gid.raw[15] = (uint8_t)(dev->index * (dev->rail.n > 0));
	return gid->ifindex;
}

static const struct shca_naming naming_mac = { .one_gid = true,
					       .gid = mac_gid };

/* Devices of one kind. */
struct kind {
	const struct shca_transport *transport; /* NULL: there are none */
	const struct shca_naming *naming;
	unsigned rows; /* the first of its rows of counters */
};

static void device_name(struct shca_device *dev, const char *prefix)
{
	const char *names = config_get()->names, *sysfs = shca_sysfs_path();
	struct ibv_device *d = &dev->dev;

	snprintf(dev->own_name, sizeof(dev->own_name), "%.8s%u", prefix,
		 (unsigned)dev->index);
	if (names)
		config_name(names, dev->number, d->name, sizeof(d->name));
	else
		strcpy(d->name, dev->own_name);
	snprintf(d->dev_name, sizeof(d->dev_name), "uverbs%u", dev->number);
	snprintf(d->dev_path, sizeof(d->dev_path),
		 "%s/class/infiniband_verbs/uverbs%u", sysfs, dev->number);
	snprintf(d->ibdev_path, sizeof(d->ibdev_path),
		 "%.190s/class/infiniband/%.40s", sysfs, d->name);
}

/* index: among those of its kind. rail: NULL, or all that it has. */
static int device_create(const struct kind *kind, const char *ifname,
			 const struct rail *rail, int index)
{
	const struct shca_transport *t = kind->transport;
	struct shca_device *dev = calloc(1, sizeof(*dev));
	size_t i;
	int err;

	if (!dev)
		return -ENOMEM;
	dev->transport = t;
	dev->naming = kind->naming;
	dev->index = index;
	dev->number = (unsigned)ndevices;
	dev->row = kind->rows + (unsigned)index;
	snprintf(dev->ifnames, sizeof(dev->ifnames), "%s", ifname);
	if (rail)
		dev->rail = *rail;
	err = scan_gids(dev, &dev->gids);
	if (!err && !rail && dev->number == 0 && config_get()->addr &&
	    !*ifname && netdev_scan(&dev->gids, NULL, config_get()->addr))
		say("SOFTHCA_ADDR=%s ignored: no interface that is up has "
		    "this address; for those that exist: ip addr",
		    config_get()->addr);
	if (err) {
		free(dev);
		return err;
	}
	/* Room for a few more addresses; programs walk the whole table. */
	dev->gid_tbl_len = dev->gids.count <= 12 ? 16 :
			   dev->gids.count <= 28 ? 32 :
						   NETDEV_MAX_GIDS;
	for (i = dev->gids.count; i < NETDEV_MAX_GIDS; i++)
		memset(&dev->gids.gid[i], 0, sizeof(dev->gids.gid[i]));
	dev->gids.count = (size_t)dev->gid_tbl_len;
	if (kind->naming->one_gid)
		dev->gid_tbl_len = 1;
	dev->rocev1 = kind->naming == &shca_naming_ip && config_get()->rocev1 &&
		      !rocev1_allowed();
	if (dev->rocev1)
		dev->gid_tbl_len *= 2;
	if (kind->naming->changed)
		kind->naming->changed(dev);
	dev->guid = device_guid(dev);
	pthread_mutex_init(&dev->lock, NULL);

	dev->dev.node_type = t->node_type;
	dev->dev.transport_type = t->type;
	device_name(dev, t->prefix);
	devices[ndevices++] = dev;
	return 0;
}

static void rails_add(const struct kind *kind)
{
	const struct config *cfg = config_get();
	struct rail rail[RAILS_MAX];
	static bool said; /* where programs look again and again */
	char reason[512];
	int n = rails_read(cfg->rails, cfg->devices, cfg->addr, rail, reason,
			   sizeof(reason));

	if (n < 0 && !said)
		say("SOFTHCA_RAILS: no device: %s", reason);
	said |= n < 0;
	for (int i = 0; i < n; i++) {
		const int err =
			device_create(kind, rail[i].ifname, &rail[i], i);

		if (err)
			say("SOFTHCA_RAILS: no device %d: %s", i,
			    sys_strerror(-err));
	}
}

/* Those of one kind: one of all interfaces, one of each in the list, or rails. */
static int devices_add(const struct kind *kind)
{
	const char *p = config_get()->devices;
	int err, index = 0;

	if (config_get()->rails) {
		rails_add(kind);
		return 0;
	}
	if (!p || !*p)
		return device_create(kind, "", NULL, 0);
	while (*p && index < MAX_OF_KIND) {
		size_t len = strcspn(p, ",");
		char name[IFNAMSIZ] = "";

		if (len && len < sizeof(name)) {
			memcpy(name, p, len);
			err = device_create(kind, name, NULL, index);
			index += !err;
			if (err) {
				say("SOFTHCA_DEVICES: no device for interface "
				    "%s: %s",
				    name, sys_strerror(-err));
			}
		}
		p += len + (p[len] == ',');
	}
	return 0;
}

static int devices_create(void)
{
	const enum infiniband ib = config_get()->infiniband;
	const enum iwarp iw = config_get()->iwarp;
	/* RoCE's are there unless others are asked for instead of them. */
	const bool roce = ib != INFINIBAND_ONLY && iw != IWARP_ONLY;
	const struct kind none = { NULL, NULL, 0 };
	const struct kind iwarp = { iw ? shca_transport_iwarp : NULL,
				    &naming_mac, 2 * MAX_OF_KIND };
	const struct kind kinds[KINDS] = {
		iw == IWARP_FIRST ? iwarp : none,
		{ roce ? &shca_roce : NULL, &shca_naming_ip, 0 },
		{ ib ? shca_infiniband() : NULL, &shca_naming_lid,
		  MAX_OF_KIND },
		iw != IWARP_FIRST ? iwarp : none,
	};
	int err = 0;

	for (size_t i = 0; i < KINDS && !err; i++)
		if (kinds[i].transport)
			err = devices_add(&kinds[i]);
	if (ib)
		shca_infiniband_say(devices, ndevices);
	return err;
}

/* In the child of a fork, where nothing is bound or locked. */
static void devices_forked(void)
{
	int i;

	pthread_mutex_init(&list_lock, NULL);
	for (i = 0; i < ndevices; i++) {
		pthread_mutex_init(&devices[i]->lock, NULL);
		devices[i]->ud_users = 0;
		memset(devices[i]->ended, 0, sizeof(devices[i]->ended));
		memset(devices[i]->added, 0, sizeof(devices[i]->added));
		memset(devices[i]->bound, 0, sizeof(devices[i]->bound));
		memset(devices[i]->bound_v1, 0, sizeof(devices[i]->bound_v1));
	}
}

static void watch_forks(void)
{
	pthread_atfork(NULL, NULL, devices_forked);
}

int shca_device_list(struct ibv_device ***list, int *n)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct ibv_device **out;
	int i, err = 0;

	pthread_once(&once, watch_forks);
	pthread_mutex_lock(&list_lock);
	if (!ndevices)
		err = devices_create();
	out = calloc((size_t)ndevices + 1, sizeof(struct ibv_device *));
	if (!out)
		err = -ENOMEM;
	for (i = 0; !err && i < ndevices; i++)
		out[i] = &devices[i]->dev;
	*n = ndevices;
	pthread_mutex_unlock(&list_lock);
	if (err)
		free(out);
	else
		*list = out;
	return err;
}

const char *shca_device_own_name(const struct ibv_device *dev)
{
	return container_of(dev, const struct shca_device, dev)->own_name;
}

struct shca_device *shca_device_named(const char *name)
{
	struct shca_device *found = NULL;

	pthread_mutex_lock(&list_lock);
	for (int i = 0; i < ndevices && !found; i++)
		if (!strcmp(devices[i]->dev.name, name) ||
		    !strcmp(devices[i]->own_name, name))
			found = devices[i];
	pthread_mutex_unlock(&list_lock);
	return found;
}

/* GIDs */

/* A UD QP receives at every address of its device */

static int gid_bind(struct shca_device *dev, struct engine *e, size_t i)
{
	const struct netdev_gid *g = &dev->gids.gid[i];
	int err = engine_bind(e, &g->gid, g->ifindex);

	dev->bound[i] = !err;
	dev->bound_v1[i] =
		dev->rocev1 && !err && !engine_bind_v1(e, &g->gid, g->ifindex);
	return err;
}

static void gid_unbind(struct shca_device *dev, struct engine *e, size_t i)
{
	const struct netdev_gid *g = &dev->gids.gid[i];

	if (dev->bound[i])
		udp_unbind(e->udp, &g->gid, g->ifindex);
	if (dev->bound_v1[i])
		engine_unbind_v1(e, &g->gid, g->ifindex);
	dev->bound[i] = dev->bound_v1[i] = false;
}

int shca_device_bind(struct shca_device *dev, struct engine *e)
{
	int err = 0, first_err = -EADDRNOTAVAIL;
	bool any = false;
	size_t i;

	pthread_mutex_lock(&dev->lock);
	if (!dev->ud_users) {
		for (i = 0; i < dev->gids.count; i++) {
			if (!dev->gids.gid[i].ifindex)
				continue;
			err = gid_bind(dev, e, i);
			if (!err)
				any = true;
			else if (first_err == -EADDRNOTAVAIL)
				first_err = err;
		}
		err = any ? 0 : first_err;
	}
	if (!err)
		dev->ud_users++;
	pthread_mutex_unlock(&dev->lock);
	return err;
}

void shca_device_unbind(struct shca_device *dev, struct engine *e)
{
	size_t i;

	pthread_mutex_lock(&dev->lock);
	if (!--dev->ud_users)
		for (i = 0; i < dev->gids.count; i++)
			gid_unbind(dev, e, i);
	pthread_mutex_unlock(&dev->lock);
}

static bool same_gid(const struct netdev_gid *a, const struct netdev_gid *b)
{
	return a->ifindex == b->ifindex &&
	       !memcmp(&a->gid, &b->gid, sizeof(a->gid));
}

/* Of what decides which addresses a device has, and which comes first. */
static uint64_t gids_key(const struct shca_device *dev)
{
	const char *addr = config_get()->addr;
	uint64_t hash = hash_text(HASH64_BEGIN, dev->ifnames);
	struct gid_text text;

	for (size_t i = 0; i < dev->rail.n; i++)
		hash = hash_text(hash, gid_str(&dev->rail.addr[i].gid, &text));
	return hash_text(hash_text(hash, "\n"), addr ? addr : "") | 1;
}

/* Where the GIDs of a scan have their places; NETDEV_MAX_GIDS: nobody says. */
static void find_places(struct shca_device *dev, struct engine *e,
			const struct netdev_table *now,
			uint8_t at[NETDEV_MAX_GIDS])
{
	if (!e->registry || registry_gids(e->registry, gids_key(dev), now, at))
		memset(at, NETDEV_MAX_GIDS, NETDEV_MAX_GIDS);
}

static void device_set_gid(struct shca_device *dev, struct engine *e, size_t i,
			   struct netdev_gid *g)
{
	dev->gids.gid[i] = *g;
	g->ifindex = 0; /* it has its place */
	if (dev->ud_users)
		gid_bind(dev, e, i);
}

bool shca_device_rescan(struct shca_device *dev, struct engine *e)
{
	struct netdev_table now;
	uint8_t at[NETDEV_MAX_GIDS];
	bool changed = false;
	size_t i, j;
	int err = scan_gids(dev, &now);

	if (err && err != -ENODEV)
		return false;
	if (err)
		now.count = 0;
	find_places(dev, e, &now, at);
	pthread_mutex_lock(&dev->lock);
	dev->absent = err == -ENODEV;
	for (i = 0; i < dev->gids.count; i++) {
		struct netdev_gid *g = &dev->gids.gid[i];

		if (!g->ifindex)
			continue;
		for (j = 0; j < now.count; j++)
			if (same_gid(g, &now.gid[j]))
				break;
		if (j < now.count && (at[j] == i || at[j] >= dev->gids.count)) {
			*g = now.gid[j];
			now.gid[j].ifindex = 0; /* seen */
			continue;
		}
		gid_unbind(dev, e, i);
		memset(g, 0, sizeof(*g));
		changed = true;
	}
	/* Those whose place is known first. */
	for (j = 0; j < now.count; j++) {
		if (!now.gid[j].ifindex || at[j] >= dev->gids.count ||
		    dev->gids.gid[at[j]].ifindex)
			continue;
		device_set_gid(dev, e, at[j], &now.gid[j]);
		changed = true;
	}
	for (i = j = 0; j < now.count; j++) {
		if (!now.gid[j].ifindex)
			continue;
		while (i < dev->gids.count && dev->gids.gid[i].ifindex)
			i++;
		if (i == dev->gids.count)
			break;
		device_set_gid(dev, e, i, &now.gid[j]);
		changed = true;
	}
	if (dev->naming->changed)
		dev->naming->changed(dev);
	pthread_mutex_unlock(&dev->lock);
	return changed;
}

bool shca_device_present(struct shca_device *dev)
{
	bool absent;

	pthread_mutex_lock(&dev->lock);
	absent = dev->absent;
	pthread_mutex_unlock(&dev->lock);
	return !absent;
}

static bool is_v1(const struct shca_device *dev, uint32_t index)
{
	return dev->rocev1 && index >= dev->gids.count;
}

enum ibv_gid_type shca_gid_type(const struct shca_device *dev, uint32_t index)
{
	return is_v1(dev, index) ? IBV_GID_TYPE_ROCE_V1 :
				   dev->transport->gid_type;
}

int shca_gid_v1(const struct shca_device *dev, int index)
{
	return index < 0 ? index : index + (int)dev->gids.count;
}

/* Whether its interface carries frames of Ethernet. */
static bool has_ethernet(const struct netdev_gid *gid)
{
	static const uint8_t none[6];

	return gid->loopback || memcmp(gid->mac, none, sizeof(none)) != 0;
}

int shca_gid(struct shca_device *dev, uint32_t port, uint32_t index,
	     struct netdev_gid *gid)
{
	if (port != 1 || index >= (uint32_t)dev->gid_tbl_len)
		return -EINVAL;
	pthread_mutex_lock(&dev->lock);
	if (!dev->naming->gid)
		*gid = dev->gids.gid[index % dev->gids.count];
	else if (!dev->naming->gid(dev, gid))
		gid->ifindex = 0;
	pthread_mutex_unlock(&dev->lock);
	if (gid->ifindex && (!is_v1(dev, index) || has_ethernet(gid)))
		return 0;
	memset(gid, 0, sizeof(*gid));
	return -ENODATA;
}

bool shca_device_entry(struct shca_device *dev, size_t i,
		       struct netdev_gid *entry)
{
	pthread_mutex_lock(&dev->lock);
	*entry = dev->gids.gid[i];
	pthread_mutex_unlock(&dev->lock);
	return entry->ifindex;
}

union ibv_gid shca_gid_of(const struct shca_device *dev,
			  const union ibv_gid *addr)
{
	return dev->naming->gid_of ? dev->naming->gid_of(addr) : *addr;
}

int shca_gid_index(struct shca_device *dev, const union ibv_gid *gid)
{
	int index = -ENOENT;
	size_t i;

	if (dev->naming->one_gid)
		return index;
	pthread_mutex_lock(&dev->lock);
	for (i = 0; i < dev->gids.count && index < 0; i++)
		if (dev->gids.gid[i].ifindex &&
		    !memcmp(&dev->gids.gid[i].gid, gid, sizeof(*gid)))
			index = (int)i;
	pthread_mutex_unlock(&dev->lock);
	return index;
}

bool shca_device_addr(struct shca_device *dev, const union ibv_gid *addr,
		      struct netdev_gid *via)
{
	const struct netdev_gid *found = NULL;
	size_t i;

	pthread_mutex_lock(&dev->lock);
	if (dev->naming->addr)
		found = dev->naming->addr(dev, addr);
	for (i = 0; i < dev->gids.count && !dev->naming->addr && !found; i++)
		if (dev->gids.gid[i].ifindex &&
		    gid_equal(&dev->gids.gid[i].gid, addr))
			found = &dev->gids.gid[i];
	if (found)
		*via = *found;
	pthread_mutex_unlock(&dev->lock);
	return found;
}

bool shca_device_reachable(struct shca_device *dev)
{
	bool found = false;

	pthread_mutex_lock(&dev->lock);
	for (size_t i = 0; i < dev->gids.count && !found; i++)
		found = dev->gids.gid[i].ifindex &&
			!gid_is_loopback(&dev->gids.gid[i].gid);
	pthread_mutex_unlock(&dev->lock);
	return found;
}

/* Attributes */

void shca_query_device(struct ibv_context *ibctx, struct ibv_device_attr *attr)
{
	struct shca_context *ctx = to_ctx(ibctx);
	const struct config *cfg = ctx->engine->cfg;
	const struct shca_transport *t = ctx->dev->transport;

	memset(attr, 0, sizeof(*attr));
	snprintf(attr->fw_ver, sizeof(attr->fw_ver), "%s", SOFTHCA_VERSION);
	attr->node_guid = ctx->dev->guid;
	attr->sys_image_guid = ctx->dev->guid;
	attr->max_mr_size = SHCA_MAX_MR_SIZE;
	attr->page_size_cap = ~(uint64_t)0xfff;
	/* Programs expect one; all ones is nobody's OUI. */
	attr->vendor_id = cfg->vendor_id ? cfg->vendor_id : 0xffffff;
	attr->vendor_part_id = cfg->part_id;
	attr->max_qp = SHCA_MAX_OBJECTS;
	attr->max_qp_wr = QP_MAX_WR;
	attr->device_cap_flags = t->cap_flags;
	attr->max_sge = QP_MAX_SGE;
	attr->max_sge_rd = t->max_sge_rd;
	attr->max_cq = SHCA_MAX_OBJECTS;
	attr->max_cqe = SHCA_MAX_CQE;
	attr->max_mr = (int)to_process(ctx->engine)->memory.keys.count;
	attr->max_pd = SHCA_MAX_OBJECTS;
	attr->max_mw = SHCA_MAX_OBJECTS;
	attr->max_qp_rd_atom = QP_MAX_RD_ATOMIC;
	attr->max_qp_init_rd_atom = QP_MAX_RD_ATOMIC;
	attr->max_res_rd_atom = QP_MAX_RD_ATOMIC * SHCA_MAX_OBJECTS;
	attr->atomic_cap = t->atomic;
	if (t->has_mcast) {
		attr->max_mcast_grp = SHCA_MAX_MCAST_GRP;
		attr->max_mcast_qp_attach = SHCA_MAX_MCAST_QP;
		attr->max_total_mcast_qp_attach =
			SHCA_MAX_MCAST_GRP * SHCA_MAX_MCAST_QP;
	}
	if (t->has_ah)
		attr->max_ah = SHCA_MAX_OBJECTS;
	attr->max_srq = SHCA_MAX_OBJECTS;
	attr->max_srq_wr = QP_MAX_WR;
	attr->max_srq_sge = QP_MAX_SGE;
	attr->max_pkeys = 1;
	attr->local_ca_ack_delay =
		12; /* 16.8 ms: a scheduler's, not a chip's */
	attr->phys_port_cnt = 1;
}

int shca_query_device_ex(struct ibv_context *ctx,
			 struct ibv_device_attr_ex *out, size_t size)
{
	const struct shca_transport *t = to_ctx(ctx)->dev->transport;
	struct ibv_device_attr_ex attr = { 0 };

	if (size < sizeof(attr.orig_attr))
		return -EINVAL;
	shca_query_device(ctx, &attr.orig_attr);
	/* The device's clock is CLOCK_MONOTONIC in ns: 10^6 kHz. */
	attr.completion_timestamp_mask = UINT64_MAX;
	attr.hca_core_clock = 1000000;
	attr.device_cap_flags_ex =
		attr.orig_attr.device_cap_flags | t->cap_flags_ex;
	attr.phys_port_cnt_ex = 1;
	attr.odp_caps.general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
	attr.odp_caps.per_transport_caps.rc_odp_caps = t->odp_rc;
	attr.odp_caps.per_transport_caps.uc_odp_caps = t->odp_uc;
	attr.odp_caps.per_transport_caps.ud_odp_caps = t->odp_ud;
	if (t->has_xrc)
		attr.xrc_odp_caps = t->odp_rc;
	attr.cq_mod_caps.max_cq_count = UINT16_MAX;
	attr.cq_mod_caps.max_cq_period = UINT16_MAX;
	attr.max_dm_size = to_ctx(ctx)->file ? SHCA_DM_SIZE : 0;
	memset(out, 0, size);
	memcpy(out, &attr, MIN(size, sizeof(attr)));
	return 0;
}

int shca_query_port_compat(struct ibv_context *ctx, uint32_t port,
			   struct _compat_ibv_port_attr *out)
{
	struct ibv_port_attr attr;
	int err;

	shca_netdevs_look(ctx);
	err = shca_query_port(to_ctx(ctx)->dev, port, &attr);
	if (!err)
		memcpy(out, &attr,
		       offsetof(struct ibv_port_attr, port_cap_flags2));
	return err;
}

int shca_query_port(struct shca_device *dev, uint32_t port,
		    struct ibv_port_attr *attr)
{
	struct netdev_gid first = { 0 };
	size_t i;

	if (port != 1)
		return why(-EINVAL, "port %u: the device has one port, 1",
			   port);
	pthread_mutex_lock(&dev->lock);
	for (i = 0; i < dev->gids.count && !first.ifindex; i++)
		first = dev->gids.gid[i];
	pthread_mutex_unlock(&dev->lock);

	memset(attr, 0, sizeof(*attr));
	attr->state = first.ifindex ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
	attr->max_mtu = IBV_MTU_4096;
	attr->active_mtu =
		first.ifindex ? netdev_ib_mtu(first.mtu) : IBV_MTU_1024;
	attr->gid_tbl_len = dev->gid_tbl_len;
	attr->port_cap_flags = dev->transport->port_caps;
	attr->max_msg_sz = QP_MAX_MSG;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	attr->active_width = 2; /* 4x */
	attr->active_speed = 32; /* EDR */
	attr->phys_state = first.ifindex ? 5 /* LinkUp */ : 3 /* Disabled */;
	attr->link_layer = IBV_LINK_LAYER_ETHERNET;
	if (dev->naming->port)
		dev->naming->port(dev, attr);
	return 0;
}
