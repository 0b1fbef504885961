/*
 * sysfs.c - the files that libsofthca-shim.so shows a program
 *
 * What the kernel would show of our devices below /sys/class/infiniband,
 * infiniband_verbs and infiniband_mad there, and /dev/infiniband, as plain files and links of
 * a tree (counters/sysfs_dir.h). softhca run makes it before the program
 * starts. Where nobody has, as in a container that got the libraries and two
 * variables, the shim asks for it when the program first looks there.
 */
#include "verbs.h"

#include "base/say.h"
#include "counters/counter_file.h"
#include "counters/sysfs_dir.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

/* A copy, since it is described twice and must be the same. */
struct shown {
	char libdir[PATH_MAX]; /* "": not known */
	size_t count;
	struct shown_hca {
		const struct shca_device *dev;
		struct ibv_port_attr port;
		size_t gid_count;
		struct shown_gid {
			uint32_t index;
			struct netdev_gid at;
		} gid[NETDEV_MAX_GIDS];
	} hca[];
};

/* Gigabits per second of one lane, by ibv_port_attr.active_speed. */
static double lane_rate(uint8_t speed)
{
	switch (speed) {
	case 1:
		return 2.5;
	case 2:
		return 5;
	case 4:
	case 8:
		return 10;
	case 16:
		return 14;
	case 32:
		return 25;
	case 64:
		return 50;
	case 128:
		return 100;
	}
	return 2.5;
}

static unsigned int lane_count(uint8_t width)
{
	switch (width) {
	case 2:
		return 4;
	case 4:
		return 8;
	case 8:
		return 12;
	case 16:
		return 2;
	}
	return 1;
}

double shca_port_rate(const struct ibv_port_attr *attr)
{
	return lane_rate(attr->active_speed) * lane_count(attr->active_width);
}

/* Their values are the shim's: nothing in a tree ever changes. */
static void describe_counters(struct sysfs_dir *t, const char *dir)
{
	char sub[512];

	for (unsigned i = 0; i < counter_names_n; i++) {
		snprintf(sub, sizeof(sub), "%s/%s", dir,
			 counter_names[i].hw ? "hw_counters" : "counters");
		sysfs_dir_file(t, sub, counter_names[i].name, "N/A");
	}
	snprintf(sub, sizeof(sub), "%s/hw_counters", dir);
	sysfs_dir_file(t, sub, "lifespan", "%d", COUNTER_FILE_AGE_MS);
}

static bool is_rnic(const struct shown_hca *h)
{
	return h->dev->dev.node_type == IBV_NODE_RNIC;
}

static bool is_infiniband(const struct shown_hca *h)
{
	return h->port.link_layer == IBV_LINK_LAYER_INFINIBAND;
}

static void describe_port(struct sysfs_dir *t, const struct shown_hca *h,
			  const char *dir)
{
	/* As the kernel words enum ib_port_state and the physical one. */
	static const char *const states[] = {
		"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"
	};
	const struct ibv_port_attr *p = &h->port;
	const union ibv_gid *g;
	char name[16], sub[512];
	size_t i;

	sysfs_dir_file(t, dir, "state", "%d: %s", (int)p->state,
		       (size_t)p->state < sizeof(states) / sizeof(states[0]) ?
			       states[p->state] :
			       "<unknown>");
	sysfs_dir_file(t, dir, "phys_state", "%s",
		       p->state == IBV_PORT_ACTIVE ? "5: LinkUp" :
						     "3: Disabled");
	sysfs_dir_file(t, dir, "link_layer",
		       is_infiniband(h) ? "InfiniBand" : "Ethernet");
	sysfs_dir_file(t, dir, "rate", "%g Gb/sec (%uX)", shca_port_rate(p),
		       lane_count(p->active_width));
	sysfs_dir_file(t, dir, "lid", "0x%x", p->lid);
	sysfs_dir_file(t, dir, "lid_mask_count", "%d", p->lmc);
	sysfs_dir_file(t, dir, "sm_lid", "0x%x", p->sm_lid);
	sysfs_dir_file(t, dir, "sm_sl", "%d", p->sm_sl);
	sysfs_dir_file(t, dir, "cap_mask", "0x%08x", p->port_cap_flags);
	describe_counters(t, dir);
	snprintf(sub, sizeof(sub), "%s/pkeys", dir);
	sysfs_dir_file(t, sub, "0", "0xffff");
	for (i = 0; i < h->gid_count; i++) {
		snprintf(name, sizeof(name), "%u", h->gid[i].index);
		g = &h->gid[i].at.gid;
		snprintf(sub, sizeof(sub), "%s/gids", dir);
		sysfs_dir_file(t, sub, name,
			       "%02x%02x:%02x%02x:%02x%02x:%02x%02x:"
			       "%02x%02x:%02x%02x:%02x%02x:%02x%02x",
			       g->raw[0], g->raw[1], g->raw[2], g->raw[3],
			       g->raw[4], g->raw[5], g->raw[6], g->raw[7],
			       g->raw[8], g->raw[9], g->raw[10], g->raw[11],
			       g->raw[12], g->raw[13], g->raw[14], g->raw[15]);
		snprintf(sub, sizeof(sub), "%s/gid_attrs/types", dir);
		/* The name for all others. */
		sysfs_dir_file(t, sub, name,
			       is_rnic(h) || is_infiniband(h) ? "IB/RoCE v1" :
								"RoCE v2");
		if (is_infiniband(h))
			continue; /* a port is no interface */
		snprintf(sub, sizeof(sub), "%s/gid_attrs/ndevs", dir);
		sysfs_dir_file(t, sub, name, "%s", h->gid[i].at.ifname);
	}
	/* The others have no attributes: see shim/counters.c. */
	snprintf(sub, sizeof(sub), "%s/gids", dir);
	for (int n = 0; n < p->gid_tbl_len; n++) {
		for (i = 0; i < h->gid_count && h->gid[i].index != (uint32_t)n;)
			i++;
		snprintf(name, sizeof(name), "%d", n);
		if (i == h->gid_count)
			sysfs_dir_file(
				t, sub, name,
				"0000:0000:0000:0000:0000:0000:0000:0000");
	}
}

static void describe_hca(struct sysfs_dir *t, const struct shown_hca *h)
{
	char dir[256], sub[300], target[64];
	uint64_t guid = be64toh(h->dev->guid);
	size_t i, j;

	snprintf(dir, sizeof(dir), "sys/class/infiniband/%s", h->dev->dev.name);
	sysfs_dir_file(t, dir, "node_type", is_rnic(h) ? "4: RNIC" : "1: CA");
	sysfs_dir_file(t, dir, "node_desc", "softhca");
	sysfs_dir_file(t, dir, "node_guid", "%04x:%04x:%04x:%04x",
		       (unsigned int)(guid >> 48),
		       (unsigned int)(guid >> 32 & 0xffff),
		       (unsigned int)(guid >> 16 & 0xffff),
		       (unsigned int)(guid & 0xffff));
	sysfs_dir_file(t, dir, "sys_image_guid", "%04x:%04x:%04x:%04x",
		       (unsigned int)(guid >> 48),
		       (unsigned int)(guid >> 32 & 0xffff),
		       (unsigned int)(guid >> 16 & 0xffff),
		       (unsigned int)(guid & 0xffff));
	sysfs_dir_file(t, dir, "fw_ver", "%s", SOFTHCA_VERSION);
	sysfs_dir_file(t, dir, "board_id", "softhca");
	sysfs_dir_file(t, dir, "hca_type", SHCA_HCA_TYPE);
	sysfs_dir_file(t, dir, "hw_rev", SHCA_HW_REV);
	/*
	 * Neither "vendor" nor "device", the PCI identity: with a wrong one,
	 * UCX uses code for hardware. The interfaces link to the real ones.
	 */
	snprintf(sub, sizeof(sub), "%s/device/net", dir);
	for (i = 0; i < h->gid_count; i++) {
		for (j = 0; j < i; j++)
			if (!strcmp(h->gid[j].at.ifname, h->gid[i].at.ifname))
				break;
		if (j < i || !h->gid[i].at.ifname[0])
			continue;
		snprintf(target, sizeof(target), "/sys/class/net/%s",
			 h->gid[i].at.ifname);
		sysfs_dir_link(t, sub, h->gid[i].at.ifname, target);
	}
	snprintf(sub, sizeof(sub), "%s/ports/1", dir);
	describe_port(t, h, sub);

	snprintf(dir, sizeof(dir), "sys/class/infiniband_verbs/%s",
		 h->dev->dev.dev_name);
	sysfs_dir_file(t, dir, "ibdev", "%s", h->dev->dev.name);
	sysfs_dir_file(t, dir, "abi_version", "1");
	snprintf(sub, sizeof(sub), "../../infiniband/%s/device",
		 h->dev->dev.name);
	sysfs_dir_link(t, dir, "device", sub);
	sysfs_dir_link(t, "dev/infiniband", h->dev->dev.dev_name, "/dev/null");
}

/* Management datagrams are sent by our libibumad, which opens none of this. */
static void describe_mads(struct sysfs_dir *t, const struct shown_hca *h)
{
	static const char *const kinds[] = { "umad", "issm" };
	const char *n = h->dev->dev.dev_name + strlen("uverbs");
	char dir[64], name[32];

	if (is_rnic(h))
		return;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		snprintf(name, sizeof(name), "%s%s", kinds[i], n);
		snprintf(dir, sizeof(dir), "sys/class/infiniband_mad/%s", name);
		sysfs_dir_file(t, dir, "ibdev", "%s", h->dev->dev.name);
		sysfs_dir_file(t, dir, "port", "1");
		sysfs_dir_link(t, "dev/infiniband", name, "/dev/null");
	}
}

static void describe_tree(struct sysfs_dir *t, const void *arg)
{
	const struct shown *shown = arg;
	size_t i;

	sysfs_dir_file(t, "sys/class/infiniband_verbs", "abi_version", "6");
	sysfs_dir_file(t, "sys/class/infiniband_mad", "abi_version", "5");
	sysfs_dir_link(t, "dev/infiniband", "rdma_cm", "/dev/null");
	for (i = 0; i < shown->count; i++) {
		describe_hca(t, &shown->hca[i]);
		describe_mads(t, &shown->hca[i]);
	}
	/* For softhca run, where LD_PRELOAD cannot hold the true path. */
	if (shown->libdir[0])
		sysfs_dir_link(t, ".", "lib", shown->libdir);
}

static void copy_hca(struct shown_hca *h, struct ibv_device *dev)
{
	uint32_t i;

	h->dev = to_device(dev);
	shca_query_port(to_device(dev), 1, &h->port);
	for (i = 0; i < NETDEV_MAX_GIDS; i++) {
		h->gid[h->gid_count].index = i;
		if (!shca_gid(to_device(dev), 1, i, &h->gid[h->gid_count].at))
			h->gid_count++;
	}
}

/* The folder of this library. */
static void find_libdir(char libdir[PATH_MAX])
{
	char *slash = NULL;
	Dl_info info;

	if (dladdr((const void *)(uintptr_t)&shca_sysfs_make, &info) &&
	    realpath(info.dli_fname, libdir))
		slash = strrchr(libdir, '/');
	*(slash ? slash : libdir) = '\0';
}

int shca_sysfs_make(char path[PATH_MAX], char *reason, size_t reason_size)
{
	struct ibv_device **list;
	struct shown *shown;
	int i, n, err;

	err = shca_device_list(&list, &n);
	if (!err && !n) {
		free(list);
		err = -ENODEV;
	}
	if (err) {
		snprintf(reason, reason_size, "no device: %s",
			 sys_strerror(-err));
		return err;
	}
	shown = calloc(1, sizeof(*shown) + (size_t)n * sizeof(shown->hca[0]));
	if (!shown) {
		free(list);
		snprintf(reason, reason_size, "out of memory");
		return -ENOMEM;
	}
	shown->count = (size_t)n;
	for (i = 0; i < n; i++)
		copy_hca(&shown->hca[i], list[i]);
	find_libdir(shown->libdir);
	err = sysfs_dir_make(describe_tree, shown, path, reason, reason_size);
	free(shown);
	free(list);
	return err;
}

/*
 * Without a lock: threads that come at once make the same tree, and a process
 * that forks meanwhile leaves nothing behind. An empty one: none could be made.
 */
const char *shca_sysfs_root(void)
{
	static char *_Atomic root;
	char path[PATH_MAX], reason[768], *made, *before = NULL;
	int saved = errno, err;

	made = atomic_load_explicit(&root, memory_order_acquire);
	if (made || getauxval(AT_SECURE))
		return made && *made ? made : NULL;
	err = shca_sysfs_make(path, reason, sizeof(reason));
	if (err == -ENODEV || err == -ENOMEM) {
		errno = saved;
		return NULL; /* perhaps later */
	}
	made = strdup(err ? "" : path);
	if (made && !atomic_compare_exchange_strong(&root, &before, made)) {
		free(made);
		made = before;
	} else if (err) {
		say("this program does not see /sys/class/infiniband and "
		    "/dev/infiniband, which UCX needs: %s. For the remedy: "
		    "softhca doctor",
		    reason);
	}
	errno = saved;
	return made && *made ? made : NULL;
}
