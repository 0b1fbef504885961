/*
 * sysfs.c - the files that libsofthca-shim.so shows a program
 *
 * What the kernel would show of our devices below /sys/class/infiniband,
 * infiniband_verbs and infiniband_mad there, and /dev/infiniband, as plain files
 * and links of a tree (counters/sysfs_dir.h). softhca run makes it before the program
 * starts. Each device is a PCI function of a machine (os/pci.h), below
 * /sys/devices, as the classes' links say; who reads what of it: docs/SYSFS.md.
 * Where nobody has, as in a container that got the libraries and two
 * variables, the shim asks for it when the program first looks there.
 */
#include "verbs.h"

#include "base/bytes.h"
#include "base/say.h"
#include "counters/counter_file.h"
#include "counters/sysfs_dir.h"
#include "os/config.h"
#include "os/file.h"
#include "os/pci.h"

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
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
		struct pci_place place;
		char cpus[256]; /* near it, as a list */
		bool is_node; /* of a file: the ports are that one's */
		unsigned mad_port; /* whose MADs programs send */
		unsigned nports;
		struct shca_node_port port[SHCA_NODE_PORTS];
		size_t gid_count; /* of the device */
		struct shown_gid {
			uint32_t index;
			struct netdev_gid at;
		} gid[2 * NETDEV_MAX_GIDS];
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

/* What a port of InfiniBand counts besides, and softhca has nothing of. */
static const char *const zero_counters[] = {
	"VL15_dropped",
	"excessive_buffer_overrun_errors",
	"link_downed",
	"link_error_recovery",
	"local_link_integrity_errors",
	"multicast_rcv_packets",
	"multicast_xmit_packets",
	"port_rcv_constraint_errors",
	"port_rcv_errors",
	"port_rcv_remote_physical_errors",
	"port_rcv_switch_relay_errors",
	"port_xmit_constraint_errors",
	"port_xmit_discards",
	"port_xmit_wait",
	"symbol_error",
};

/* The values of those that count are the shim's, since nothing in a tree ever
 * changes: who gets past it reads what the kernel says where it has none. */
static void describe_counters(struct sysfs_dir *t, const char *dir)
{
	char sub[512];

	for (unsigned i = 0; i < counter_names_n; i++) {
		snprintf(sub, sizeof(sub), "%s/%s", dir,
			 counter_names[i].hw ? "hw_counters" : "counters");
		sysfs_dir_file(t, sub, counter_names[i].name, "N/A (no PMA)");
	}
	snprintf(sub, sizeof(sub), "%s/counters", dir);
	for (size_t i = 0; i < ARRAY_SIZE(zero_counters); i++)
		sysfs_dir_file(t, sub, zero_counters[i], "0");
	snprintf(sub, sizeof(sub), "%s/hw_counters", dir);
	sysfs_dir_file(t, sub, "lifespan", "%d", COUNTER_FILE_AGE_MS);
}

static bool is_rnic(const struct shown_hca *h)
{
	return h->dev->dev.node_type == IBV_NODE_RNIC;
}

static bool is_infiniband(const struct shown_hca *h)
{
	return h->port[0].attr.link_layer == IBV_LINK_LAYER_INFINIBAND;
}

/* Whether one of its first n GIDs is of that interface. */
static bool shows_netdev(const struct shown_hca *h, size_t n,
			 const char *ifname)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(h->gid[i].at.ifname, ifname))
			return true;
	return false;
}

/* An entry of the table, which may be empty: then it is zero, and what it would
 * have besides cannot be read (shim/counters.c). */
static void describe_gid(struct sysfs_dir *t, const struct shown_hca *h,
			 const struct shca_node_port *port, const char *dir,
			 uint32_t index)
{
	static const struct shown_gid none;
	const struct shown_gid *gid = &none;
	const uint8_t *g;
	char name[16], sub[512];

	for (size_t i = 0; i < h->gid_count; i++)
		if (h->gid[i].index == index)
			gid = &h->gid[i];
	g = h->is_node && !index ? port->gid.raw : gid->at.gid.raw;
	snprintf(name, sizeof(name), "%u", index);
	snprintf(sub, sizeof(sub), "%s/gids", dir);
	sysfs_dir_file(t, sub, name,
		       "%02x%02x:%02x%02x:%02x%02x:%02x%02x:"
		       "%02x%02x:%02x%02x:%02x%02x:%02x%02x",
		       g[0], g[1], g[2], g[3], g[4], g[5], g[6], g[7], g[8],
		       g[9], g[10], g[11], g[12], g[13], g[14], g[15]);
	snprintf(sub, sizeof(sub), "%s/gid_attrs/types", dir);
	/* The name for all others is that of the first version. */
	sysfs_dir_file(t, sub, name, "%s",
		       gid == &none ? "" :
		       shca_gid_type(h->dev, index) == IBV_GID_TYPE_ROCE_V2 ?
				      "RoCE v2" :
				      "IB/RoCE v1");
	snprintf(sub, sizeof(sub), "%s/gid_attrs/ndevs", dir);
	/* A port of InfiniBand is no interface. */
	sysfs_dir_file(t, sub, name, "%s",
		       is_infiniband(h) ? "" : gid->at.ifname);
}

static void describe_port(struct sysfs_dir *t, const struct shown_hca *h,
			  const struct shca_node_port *port, const char *dir)
{
	/* As the kernel words enum ib_port_state and the physical one. */
	static const char *const states[] = {
		"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"
	};
	static const char *const phys_states[] = {
		[2] = "2: Polling", [3] = "3: Disabled", [5] = "5: LinkUp"
	};
	const struct ibv_port_attr *p = &port->attr;
	const char *phys = p->phys_state < ARRAY_SIZE(phys_states) ?
				   phys_states[p->phys_state] :
				   NULL;
	char sub[512];

	sysfs_dir_file(t, dir, "state", "%d: %s", (int)p->state,
		       (size_t)p->state < sizeof(states) / sizeof(states[0]) ?
			       states[p->state] :
			       "<unknown>");
	sysfs_dir_file(t, dir, "phys_state", "%s", phys ? phys : "<unknown>");
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
	for (int n = 0; n < p->gid_tbl_len; n++)
		describe_gid(t, h, port, dir, (uint32_t)n);
}

#define CPUS 1024

/* "0-3,8" as words of a mask, the highest first: "0000010f". */
static void cpu_mask(const char *list, char *text, size_t size)
{
	uint32_t mask[CPUS / 32] = { 0 };
	unsigned long from, to, top = 0;
	size_t used = 0;
	char *end;

	for (const char *p = list; *p >= '0' && *p <= '9'; p = end) {
		from = to = strtoul(p, &end, 10);
		if (*end == '-')
			to = strtoul(end + 1, &end, 10);
		for (; from <= to && from < CPUS; from++) {
			mask[from / 32] |= 1u << from % 32;
			top = from / 32 > top ? from / 32 : top;
		}
		end += *end == ',';
	}
	for (unsigned long i = top + 1; i-- && used < size;)
		used += (size_t)snprintf(text + used, size - used, "%08x%s",
					 mask[i], i ? "," : "");
}

/* The PCI function; numbers as the kernel words them. */
static void describe_function(struct sysfs_dir *t, const struct shown_hca *h,
			      const char *dir, const char *name)
{
	const struct config *cfg = config_get();
	/* Programs know NVIDIA's as OUI, and as PCI's vendor. Nobody's is 0xffff,
	 * where UCX uses no code for hardware. */
	const unsigned vendor = cfg->vendor_id == 0x02c9 ? 0x15b3 :
				cfg->vendor_id && cfg->vendor_id < 0xffff ?
							   cfg->vendor_id :
							   0xffff;
	const unsigned device = cfg->part_id & 0xffff;
	const unsigned class = is_infiniband(h) ? 0x020700 : 0x020000;
	char path[600], mask[CPUS / 32 * 9 + 1];

	sysfs_dir_file(t, dir, "vendor", "0x%04x", vendor);
	sysfs_dir_file(t, dir, "device", "0x%04x", device);
	sysfs_dir_file(t, dir, "subsystem_vendor", "0x%04x", vendor);
	sysfs_dir_file(t, dir, "subsystem_device", "0x%04x", device);
	sysfs_dir_file(t, dir, "class", "0x%06x", class);
	sysfs_dir_file(t, dir, "revision", "0x00");
	sysfs_dir_file(t, dir, "enable", "1");
	sysfs_dir_file(t, dir, "numa_node", "%d", h->place.node);
	cpu_mask(h->cpus, mask, sizeof(mask));
	sysfs_dir_file(t, dir, "local_cpulist", "%s", h->cpus);
	sysfs_dir_file(t, dir, "local_cpus", "%s", mask);
	sysfs_dir_file(t, dir, "current_link_speed", "16.0 GT/s PCIe");
	sysfs_dir_file(t, dir, "max_link_speed", "16.0 GT/s PCIe");
	sysfs_dir_file(t, dir, "current_link_width", "16");
	sysfs_dir_file(t, dir, "max_link_width", "16");
	sysfs_dir_file(t, dir, "uevent",
		       "DRIVER=softhca\nPCI_CLASS=%05X\nPCI_ID=%04X:%04X\n"
		       "PCI_SUBSYS_ID=%04X:%04X\nPCI_SLOT_NAME=%s",
		       class, vendor, device, vendor, device, name);
	sysfs_dir_link(t, dir, "subsystem", "../../../bus/pci");
	sysfs_dir_link(t, dir, "driver", "../../../bus/pci/drivers/softhca");
	snprintf(path, sizeof(path), "../../../%s", strstr(dir, "devices/"));
	sysfs_dir_link(t, "sys/bus/pci/devices", name, path);
	snprintf(path, sizeof(path), "../../../../%s", strstr(dir, "devices/"));
	sysfs_dir_link(t, "sys/bus/pci/drivers/softhca", name, path);
}

/* What programs read of an interface. Links to the real ones; the folder is none,
 * as some look for folders. */
static const char *const netdev_files[] = {
	"addr_assign_type", "addr_len",        "address",      "broadcast",
	"carrier",          "carrier_changes", "dev_id",       "dev_port",
	"duplex",           "flags",           "ifalias",      "ifindex",
	"iflink",           "link_mode",       "mtu",          "operstate",
	"phys_port_name",   "phys_switch_id",  "queues",       "speed",
	"statistics",       "subsystem",       "tx_queue_len", "type",
	"uevent",
};

static bool is_first_on(const struct shown *shown, const struct shown_hca *h,
			const char *ifname)
{
	for (const struct shown_hca *o = shown->hca; o < h; o++)
		if (shows_netdev(o, o->gid_count, ifname))
			return false;
	return true;
}

/* Where an interface is below /sys, as its class's link says. */
static bool find_netdev(const char *ifname, char *path, size_t size)
{
	char class[64], link[200];
	long n;

	snprintf(class, sizeof(class), "/sys/class/net/%s", ifname);
	n = syscall(SYS_readlinkat, AT_FDCWD, class, link, sizeof(link) - 1);
	link[n > 0 ? n : 0] = '\0';
	if (strncmp(link, "../../", 6) != 0 || strstr(link + 6, ".."))
		return false;
	snprintf(path, size, "/sys/%s", link + 6);
	return true;
}

/* A link from the folder of an interface, which has two names, to a function. */
static void link_netdev(struct sysfs_dir *t, const char *netdev,
			const char *dir)
{
	char target[400] = "";
	size_t used = 0;

	/* As many folders as it is below /sys. */
	for (const char *p = netdev + strlen("/sys"); *p; p++)
		if (*p == '/' && used < sizeof(target) / 2)
			used += (size_t)snprintf(target + used,
						 sizeof(target) - used, "../");
	snprintf(target + used, sizeof(target) - used, "%s",
		 strstr(dir, "devices/"));
	sysfs_dir_link(t, netdev + 1, "device", target);
}

/* Its interfaces; each leads back to its first device. */
static void describe_netdevs(struct sysfs_dir *t, const struct shown *shown,
			     const struct shown_hca *h, const char *dir)
{
	char sub[400], class[64], place[256], target[300];

	for (size_t i = 0; i < h->gid_count; i++) {
		const char *ifname = h->gid[i].at.ifname;

		if (!ifname[0] || shows_netdev(h, i, ifname))
			continue;
		snprintf(class, sizeof(class), "/sys/class/net/%s", ifname);
		snprintf(sub, sizeof(sub), "%s/net/%s", dir, ifname);
		for (size_t k = 0; k < ARRAY_SIZE(netdev_files); k++) {
			snprintf(target, sizeof(target), "%s/%s", class,
				 netdev_files[k]);
			sysfs_dir_link(t, sub, netdev_files[k], target);
		}
		sysfs_dir_link(t, sub, "device", "../..");
		if (is_first_on(shown, h, ifname)) {
			link_netdev(t, class, dir);
			if (find_netdev(ifname, place, sizeof(place)))
				link_netdev(t, place, dir);
		}
	}
}

/* What the class has of a device: a link to it, which leads back. */
static void describe_class(struct sysfs_dir *t, const char *class,
			   const char *name, const char *dir, const char *pci)
{
	char path[400], link[400];

	snprintf(path, sizeof(path), "sys/class/%s", class);
	snprintf(link, sizeof(link), "../../%s/%s/%s", strstr(dir, "devices/"),
		 class, name);
	sysfs_dir_link(t, path, name, link);
	snprintf(path, sizeof(path), "%s/%s/%s", dir, class, name);
	snprintf(link, sizeof(link), "../../../%s", pci);
	sysfs_dir_link(t, path, "device", link);
	snprintf(link, sizeof(link), "../../../../../class/%s", class);
	sysfs_dir_link(t, path, "subsystem", link);
}

/* Management datagrams are sent by our libibumad, which opens none of this. */
static void describe_mads(struct sysfs_dir *t, const struct shown_hca *h,
			  const char *dir, const char *pci)
{
	static const char *const kinds[] = { "umad", "issm" };
	const char *n = h->dev->dev.dev_name + strlen("uverbs");
	char sub[400], name[32];

	if (is_rnic(h))
		return;
	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		snprintf(name, sizeof(name), "%s%s", kinds[i], n);
		describe_class(t, "infiniband_mad", name, dir, pci);
		snprintf(sub, sizeof(sub), "%s/infiniband_mad/%s", dir, name);
		sysfs_dir_file(t, sub, "ibdev", "%s", h->dev->dev.name);
		sysfs_dir_file(t, sub, "port", "%u", h->mad_port);
		sysfs_dir_link(t, "dev/infiniband", name, "/dev/null");
	}
}

static void describe_guid(struct sysfs_dir *t, const char *dir,
			  const char *name, uint64_t guid)
{
	sysfs_dir_file(t, dir, name, "%04x:%04x:%04x:%04x",
		       (unsigned int)(guid >> 48),
		       (unsigned int)(guid >> 32 & 0xffff),
		       (unsigned int)(guid >> 16 & 0xffff),
		       (unsigned int)(guid & 0xffff));
}

static void describe_hca(struct sysfs_dir *t, const struct shown *shown,
			 const struct shown_hca *h)
{
	const uint32_t part_id = config_get()->part_id;
	const struct ibv_device *dev = &h->dev->dev;
	char dir[200], sub[400];
	struct pci_name pci;

	pci_name(&h->place, &pci);
	snprintf(dir, sizeof(dir), "sys/devices/pci%.*s/%s",
		 (int)(strrchr(pci.text, ':') - pci.text), pci.text, pci.text);
	describe_function(t, h, dir, pci.text);
	describe_netdevs(t, shown, h, dir);
	describe_class(t, "infiniband", dev->name, dir, pci.text);
	describe_class(t, "infiniband_verbs", dev->dev_name, dir, pci.text);

	snprintf(sub, sizeof(sub), "%s/infiniband/%s", dir, dev->name);
	sysfs_dir_file(t, sub, "node_type",
		       is_rnic(h)                ? "4: RNIC" :
		       h->port[0].node_type == 2 ? "2: switch" :
						   "1: CA");
	sysfs_dir_file(t, sub, "node_desc", "softhca");
	describe_guid(t, sub, "node_guid", h->port[0].node_guid);
	describe_guid(t, sub, "sys_image_guid", h->port[0].sys_guid);
	sysfs_dir_file(t, sub, "fw_ver", "%s", SOFTHCA_VERSION);
	sysfs_dir_file(t, sub, "hw_rev", SHCA_HW_REV);
	sysfs_dir_file(t, sub, "hca_type", part_id ? "MT%u" : SHCA_HCA_TYPE,
		       part_id);
	sysfs_dir_file(t, sub, "board_id", "softhca");
	for (unsigned i = 0; i < h->nports; i++) {
		snprintf(sub, sizeof(sub), "%s/infiniband/%s/ports/%u", dir,
			 dev->name, h->port[i].num);
		describe_port(t, h, &h->port[i], sub);
	}
	sysfs_dir_file(t, COUNTER_ROWS, dev->name, "%u", h->dev->row);

	snprintf(sub, sizeof(sub), "%s/infiniband_verbs/%s", dir,
		 dev->dev_name);
	sysfs_dir_file(t, sub, "ibdev", "%s", dev->name);
	sysfs_dir_file(t, sub, "abi_version", "1");
	sysfs_dir_file(t, sub, "dev", "231:%u", 192 + h->dev->number);
	sysfs_dir_link(t, "dev/infiniband", dev->dev_name, "/dev/null");
	describe_mads(t, h, dir, pci.text);
}

static void describe_tree(struct sysfs_dir *t, const void *arg)
{
	const struct shown *shown = arg;
	size_t i;

	sysfs_dir_file(t, "sys/class/infiniband_verbs", "abi_version", "6");
	sysfs_dir_file(t, "sys/class/infiniband_mad", "abi_version", "5");
	sysfs_dir_link(t, "dev/infiniband", "rdma_cm", "/dev/null");
	for (i = 0; i < shown->count; i++)
		describe_hca(t, shown, &shown->hca[i]);
	/* For softhca run, where LD_PRELOAD cannot hold the true path. */
	if (shown->libdir[0])
		sysfs_dir_link(t, ".", "lib", shown->libdir);
}

/* The processors of a node; where it is none of this machine's, all. */
static void find_cpus(int node, char *cpus, size_t size)
{
	char path[64] = "/sys/devices/system/cpu/online";
	ssize_t n = -1;
	int fd;

	if (node >= 0)
		snprintf(path, sizeof(path),
			 "/sys/devices/system/node/node%d/cpulist", node);
	fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);
	if (fd >= 0) {
		n = sys_read(fd, cpus, size - 1);
		sys_close(fd);
	} else if (node >= 0) {
		find_cpus(-1, cpus, size);
		return;
	}
	cpus[n > 0 ? n : 0] = '\0';
	cpus[strcspn(cpus, "\n")] = '\0';
	if (!*cpus)
		strcpy(cpus, "0");
}

/* What knows the node of a file that programs are at; NULL: libibumad is not here. */
static bool (*node_port)(struct shca_device *dev, unsigned num,
			 struct shca_node_port *at);

void shca_sysfs_set_node(bool (*port)(struct shca_device *dev, unsigned num,
				      struct shca_node_port *at))
{
	node_port = port;
}

static void load_node(const char *libdir)
{
	const char *fabric = config_get()->fabric;
	char path[PATH_MAX + 32];

	if (node_port || !*libdir || !fabric || !file_and_word(fabric, path))
		return;
	snprintf(path, sizeof(path), "%s/libibumad.so.3", libdir);
	dlopen(path, RTLD_NOW | RTLD_LOCAL); /* for good */
}

/* The device's own port, or those of its node of a file. */
static void copy_ports(struct shown_hca *h, struct shca_device *dev)
{
	struct shca_node_port *own = &h->port[0];
	struct shca_node_port at;

	own->num = h->mad_port = 1;
	h->nports = 1;
	own->node_type = 1;
	own->node_guid = own->sys_guid = be64toh(dev->guid);
	shca_query_port(dev, 1, &own->attr);
	if (!node_port || dev->naming != &shca_naming_lid ||
	    !node_port(dev, 0, &at))
		return;
	h->is_node = true;
	h->mad_port = at.num;
	h->nports = 0;
	for (unsigned num = 0; num < SHCA_NODE_PORTS; num++)
		if (node_port(dev, num, &at) && at.num == num) {
			at.attr.gid_tbl_len = dev->gid_tbl_len;
			h->port[h->nports++] = at;
		}
	if (!h->nports)
		h->port[h->nports++] = at; /* one of many */
}

static void copy_hca(struct shown_hca *h, struct ibv_device *dev,
		     const struct pci_place *place)
{
	uint32_t i;

	h->dev = to_device(dev);
	h->place = *place;
	find_cpus(place->node, h->cpus, sizeof(h->cpus));
	copy_ports(h, to_device(dev));
	for (i = 0; i < (uint32_t)h->dev->gid_tbl_len; i++) {
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
	const struct config *cfg = config_get();
	struct ibv_device **list;
	struct pci_place *place;
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
	place = calloc((size_t)n, sizeof(*place));
	if (!shown || !place) {
		free(list);
		free(shown);
		free(place);
		snprintf(reason, reason_size, "out of memory");
		return -ENOMEM;
	}
	find_libdir(shown->libdir);
	load_node(shown->libdir);
	shown->count = (size_t)n;
	pci_places(cfg->pci, cfg->numa, place, (unsigned)n);
	for (i = 0; i < n; i++)
		copy_hca(&shown->hca[i], list[i], &place[i]);
	err = sysfs_dir_make(describe_tree, shown, path, reason, reason_size);
	free(place);
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
