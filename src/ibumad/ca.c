/*
 * ca.c - which devices there are, and what is said of them
 *
 * The original reads /sys/class/infiniband. Ours has the devices themselves; the
 * files that programs read say the same (verbs/sysfs.c). Devices of iWARP have no
 * management datagrams, and are not listed.
 */
#include "umad_internal.h"

#include "base/bytes.h"
#include "fabric/fabric.h"
#include "net/ibaddr.h"
#include "os/config.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A list of those that have MADs, NULL behind the last; or NULL, and errno. */
static struct ibv_device **ca_list(int *n)
{
	struct ibv_device **list;
	int all, err = shca_device_list(&list, &all);

	*n = 0;
	if (err) {
		errno = -err;
		return NULL;
	}
	for (int i = 0; i < all; i++)
		if (list[i]->node_type != IBV_NODE_RNIC)
			list[(*n)++] = list[i];
	list[*n] = NULL;
	return list;
}

struct shca_device *ca_find(const char *name)
{
	struct shca_device *found = NULL;
	struct ibv_device **list;
	int n;

	list = ca_list(&n);
	for (int i = 0; i < n && !found; i++)
		if (!strcmp(list[i]->name, name))
			found = to_device(list[i]);
	free(list);
	return found;
}

bool ca_addr(struct shca_device *dev, struct netdev_gid *at)
{
	const struct netdev_gid *port;

	pthread_mutex_lock(&dev->lock);
	port = ib_port(&dev->gids);
	if (port)
		*at = *port;
	pthread_mutex_unlock(&dev->lock);
	return port && dev->naming == &shca_naming_lid &&
	       ib_lid(ib_v4(&at->gid), at->prefix);
}

bool ca_port(struct shca_device *dev, int portnum, uint64_t *guid)
{
	struct fabric_port at;
	struct netdev_gid gid;

	if (portnum >= 0 && fabric_stands(dev, (unsigned)portnum, &at)) {
		*guid = at.port_guid;
		return at.num == portnum;
	}
	*guid = 0;
	if (!shca_gid(dev, PORT_NUM, 0, &gid))
		*guid = get_be64(gid.gid.raw + 8);
	return portnum == PORT_NUM && !fabric_stands(dev, 0, &at);
}

/* That of a simulated node, or the device's only one. */
static int first_port(struct shca_device *dev)
{
	struct fabric_port at;

	return fabric_stands(dev, 0, &at) ? at.num : PORT_NUM;
}

/* 1: active, 0: up, -1: not to be used, or none of InfiniBand. */
static int port_rank(struct shca_device *dev)
{
	struct ibv_port_attr attr;
	struct fabric_port at;

	if (fabric_stands(dev, 0, &at))
		return at.state == IBV_PORT_ACTIVE;
	if (shca_query_port(dev, PORT_NUM, &attr) ||
	    attr.link_layer != IBV_LINK_LAYER_INFINIBAND)
		return -1;
	if (attr.state == IBV_PORT_ACTIVE)
		return 1;
	return attr.phys_state == 3 ? -1 : 0;
}

bool ca_has_smi(struct shca_device *dev)
{
	return dev->naming == &shca_naming_lid;
}

/*
 * The first port of InfiniBand that is active, else the first that is up. A port
 * that is named together with its device is taken as it is.
 */
struct shca_device *ca_resolve(const char *name, int *portnum)
{
	struct shca_device *best = NULL;
	struct ibv_device **list;
	int n, rank, best_rank = -1;

	if (name && *portnum)
		return ca_find(name);
	if (name) {
		best = ca_find(name);
		if (!best || port_rank(best) < 0)
			return NULL;
		*portnum = first_port(best);
		return best;
	}
	list = ca_list(&n);
	for (int i = 0; i < n; i++) {
		rank = port_rank(to_device(list[i]));
		if (rank <= best_rank)
			continue;
		best_rank = rank;
		best = to_device(list[i]);
	}
	free(list);
	if (best && !*portnum)
		*portnum = first_port(best);
	return best;
}

int umad_init(void)
{
	DEBUG("umad_init", "umad_init");
	return 0;
}

int umad_done(void)
{
	DEBUG("umad_done", "umad_done");
	return 0;
}

/* Lists */

static int by_name(const void *a, const void *b)
{
	const struct ibv_device *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

int umad_get_cas_names(char cas[][UMAD_CA_NAME_LEN], int max)
{
	struct ibv_device **list;
	int n, i;

	list = ca_list(&n);
	if (list)
		qsort(list, (size_t)n, sizeof(struct ibv_device *), by_name);
	for (i = 0; i < n && i < max; i++)
		snprintf(cas[i], UMAD_CA_NAME_LEN, "%.19s", list[i]->name);
	free(list);
	DEBUG("umad_get_cas_names", "return %d cas", i);
	return i;
}

/* One piece of memory with its name. */
struct node {
	struct umad_device_node d;
	char name[UMAD_CA_NAME_LEN];
};

struct umad_device_node *umad_get_ca_device_list(void)
{
	struct umad_device_node *head = NULL, **end = &head;
	struct ibv_device **list;
	struct node *node;
	int n;

	list = ca_list(&n);
	if (!list)
		return NULL;
	errno = 0; /* none is no error */
	for (int i = 0; i < n; i++) {
		node = calloc(1, sizeof(*node));
		if (!node) {
			umad_free_ca_device_list(head);
			head = NULL;
			errno = ENOMEM;
			break;
		}
		snprintf(node->name, sizeof(node->name), "%.19s",
			 list[i]->name);
		node->d.ca_name = node->name;
		*end = &node->d;
		end = &node->d.next;
	}
	free(list);
	return head;
}

void umad_free_ca_device_list(struct umad_device_node *head)
{
	struct umad_device_node *next;

	for (; head; head = next) {
		next = head->next;
		free(head); /* the first member of a struct node */
	}
}

static int by_node_name(const void *a, const void *b)
{
	const struct umad_device_node *const *x = a, *const *y = b;

	return strcmp((*x)->ca_name, (*y)->ca_name);
}

int umad_sort_ca_device_list(struct umad_device_node **head, size_t size)
{
	struct umad_device_node **node, *d;
	size_t n = 0;

	for (d = *head; d; d = d->next)
		n++;
	if (!size)
		size = n;
	/* As the original, which checks what the caller has counted. */
	if (size != n)
		return EINVAL;
	if (size < 2)
		return 0;
	node = calloc(size, sizeof(struct umad_device_node *));
	if (!node)
		return ENOMEM;
	for (d = *head, n = 0; d; d = d->next)
		node[n++] = d;
	qsort(node, size, sizeof(struct umad_device_node *), by_node_name);
	for (n = 0; n + 1 < size; n++)
		node[n]->next = node[n + 1];
	node[size - 1]->next = NULL;
	*head = node[0];
	free(node);
	return 0;
}

/* One device, one port */

static struct ibv_port_attr simulated(const struct fabric_port *at)
{
	return (struct ibv_port_attr){
		.state = at->state,
		.phys_state = at->phys_state,
		.lid = at->lid,
		.lmc = at->lmc,
		.sm_lid = at->sm_lid,
		.sm_sl = at->sm_sl,
		.port_cap_flags = at->cap_mask,
		.active_width = at->width,
		/* PortInfo counts the extended speeds anew. */
		.active_speed = at->speed_ext ? (uint8_t)(at->speed_ext << 4) :
						at->speed,
		.link_layer = IBV_LINK_LAYER_INFINIBAND,
	};
}

/* For the files below /sys. */
static bool node_port(struct shca_device *dev, unsigned num,
		      struct shca_node_port *port)
{
	struct fabric_port at;

	if (!fabric_stands(dev, num, &at))
		return false;
	*port = (struct shca_node_port){ .num = at.num,
					 .node_type = at.type,
					 .node_guid = at.node_guid,
					 .sys_guid = at.sys_guid,
					 .attr = simulated(&at) };
	put_be64(port->gid.raw, at.gid_prefix);
	put_be64(port->gid.raw + 8, at.port_guid);
	return true;
}

__attribute__((constructor)) static void tell_of_node(void)
{
	shca_sysfs_set_node(node_port);
}

static void fill_simulated(const struct fabric_port *at, umad_port_t *port)
{
	const struct ibv_port_attr attr = simulated(at);

	port->base_lid = at->lid;
	port->lmc = at->lmc;
	port->sm_lid = at->sm_lid;
	port->sm_sl = at->sm_sl;
	port->state = at->state;
	port->phys_state = at->phys_state;
	port->rate = (unsigned)shca_port_rate(&attr);
	port->capmask = htobe32(at->cap_mask);
	port->gid_prefix = htobe64(at->gid_prefix);
	port->port_guid = htobe64(at->port_guid);
	snprintf(port->link_layer, sizeof(port->link_layer), "InfiniBand");
}

static void fill_own(struct shca_device *dev, umad_port_t *port)
{
	struct ibv_port_attr attr;
	struct netdev_gid gid;

	shca_query_port(dev, PORT_NUM, &attr);
	port->base_lid = attr.lid;
	port->lmc = attr.lmc;
	port->sm_lid = attr.sm_lid;
	port->sm_sl = attr.sm_sl;
	port->state = attr.state;
	port->phys_state = attr.phys_state;
	port->rate = (unsigned)shca_port_rate(&attr);
	port->capmask = htobe32(attr.port_cap_flags);
	if (!shca_gid(dev, PORT_NUM, 0, &gid)) {
		memcpy(&port->gid_prefix, gid.gid.raw, 8);
		memcpy(&port->port_guid, gid.gid.raw + 8, 8);
	}
	snprintf(port->link_layer, sizeof(port->link_layer), "%s",
		 attr.link_layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand" :
								"Ethernet");
}

static int fill_port(struct shca_device *dev, int portnum, umad_port_t *port)
{
	struct fabric_port at;
	uint16_t *pkeys;

	pkeys = malloc(sizeof(*pkeys));
	if (!pkeys)
		return -ENOMEM;
	*pkeys = 0xffff;
	memset(port, 0, sizeof(*port));
	snprintf(port->ca_name, sizeof(port->ca_name), "%.19s", dev->dev.name);
	port->portnum = portnum;
	if (fabric_stands(dev, (unsigned)portnum, &at))
		fill_simulated(&at, port);
	else
		fill_own(dev, port);
	port->pkeys_size = 1;
	port->pkeys = pkeys;
	return 0;
}

static int failed(int err)
{
	errno = -err;
	return err;
}

int umad_get_port(const char *ca_name, int portnum, umad_port_t *port)
{
	struct shca_device *dev = ca_resolve(ca_name, &portnum);
	uint64_t guid;
	int err;

	DEBUG("umad_get_port", "ca_name %s portnum %d",
	      ca_name ? ca_name : "(null)", portnum);
	if (!dev)
		return failed(-ENODEV);
	if (!ca_port(dev, portnum, &guid))
		return failed(-EINVAL);
	err = fill_port(dev, portnum, port);
	return err ? failed(err) : 0;
}

int umad_release_port(umad_port_t *port)
{
	free(port->pkeys);
	port->pkeys = NULL;
	port->pkeys_size = 0;
	return 0;
}

/* All ports that it has: a switch's is port 0. */
static int fill_ports(struct shca_device *dev, umad_ca_t *ca)
{
	umad_port_t *port;
	uint64_t guid;
	int err;

	for (int i = 0; i <= ca->numports && i < UMAD_CA_MAX_PORTS; i++) {
		if (!ca_port(dev, i, &guid))
			continue;
		port = calloc(1, sizeof(*port));
		err = port ? fill_port(dev, i, port) : -ENOMEM;
		if (err) {
			free(port);
			return err;
		}
		ca->ports[i] = port;
	}
	return 0;
}

int umad_get_ca(const char *ca_name, umad_ca_t *ca)
{
	int err, portnum = 0;
	struct shca_device *dev =
		ca_name ? ca_find(ca_name) : ca_resolve(NULL, &portnum);
	struct fabric_port at;

	DEBUG("umad_get_ca", "ca_name %s", ca_name ? ca_name : "(null)");
	if (!dev)
		return failed(-ENODEV);
	memset(ca, 0, sizeof(*ca));
	snprintf(ca->ca_name, sizeof(ca->ca_name), "%.19s", dev->dev.name);
	ca->node_type = (unsigned)dev->dev.node_type;
	ca->numports = PORT_NUM;
	snprintf(ca->fw_ver, sizeof(ca->fw_ver), "%s", SOFTHCA_VERSION);
	snprintf(ca->ca_type, sizeof(ca->ca_type), "%s", SHCA_HCA_TYPE);
	snprintf(ca->hw_ver, sizeof(ca->hw_ver), "%s", SHCA_HW_REV);
	ca->node_guid = dev->guid;
	ca->system_guid = dev->guid;
	if (fabric_stands(dev, 0, &at)) {
		ca->node_type = at.type;
		/* The struct has no more; ports of a switch are many. */
		ca->numports = at.nports < UMAD_CA_MAX_PORTS ?
				       at.nports :
				       UMAD_CA_MAX_PORTS - 1;
		ca->node_guid = htobe64(at.node_guid);
		ca->system_guid = htobe64(at.sys_guid);
	}
	err = fill_ports(dev, ca);
	if (err)
		umad_release_ca(ca);
	return err ? failed(err) : 0;
}

int umad_release_ca(umad_ca_t *ca)
{
	for (size_t i = 0; i < UMAD_CA_MAX_PORTS; i++) {
		if (!ca->ports[i])
			continue;
		umad_release_port(ca->ports[i]);
		free(ca->ports[i]);
		ca->ports[i] = NULL;
	}
	return 0;
}

int umad_get_ca_portguids(const char *ca_name, __be64 *portguids, int max)
{
	umad_ca_t ca;
	int err = umad_get_ca(ca_name, &ca), n;

	DEBUG("umad_get_ca_portguids", "ca name %s max port guids %d",
	      ca_name ? ca_name : "(null)", max);
	if (err)
		return err;
	n = ca.numports + 1;
	if (portguids && n > max)
		n = -ENOMEM;
	for (int i = 0; portguids && i < n; i++)
		portguids[i] = ca.ports[i] ? ca.ports[i]->port_guid : 0;
	umad_release_ca(&ca);
	return n < 0 ? failed(n) : n;
}

int umad_get_issm_path(const char *ca_name, int portnum, char path[], int max)
{
	struct shca_device *dev = ca_resolve(ca_name, &portnum);
	uint64_t guid;

	if (!dev)
		return failed(-ENODEV);
	if (!ca_port(dev, portnum, &guid))
		return failed(-EINVAL);
	snprintf(path, (size_t)max, "/dev/infiniband/issm%s",
		 dev->dev.dev_name + strlen("uverbs"));
	return 0;
}

/* Pairs: each device of InfiniBand is both; one of RoCE has no SMI */

/* struct umad_ca_pair */
struct pair {
	char smi_name[UMAD_CA_NAME_LEN];
	uint32_t smi_port;
	char gsi_name[UMAD_CA_NAME_LEN];
	uint32_t gsi_port;
};

static void pair_of(struct shca_device *dev, int portnum, struct pair *pair)
{
	*pair = (struct pair){ .gsi_port = (uint32_t)portnum };
	snprintf(pair->gsi_name, sizeof(pair->gsi_name), "%.19s",
		 dev->dev.name);
	if (!ca_has_smi(dev))
		return;
	memcpy(pair->smi_name, pair->gsi_name, sizeof(pair->smi_name));
	pair->smi_port = (uint32_t)portnum;
}

int umad_get_smi_gsi_pairs(struct umad_ca_pair *cas, size_t max)
{
	struct pair *pair = (struct pair *)cas;
	struct ibv_device **list;
	int n, i;

	list = ca_list(&n);
	if (list)
		qsort(list, (size_t)n, sizeof(struct ibv_device *), by_name);
	for (i = 0; i < n && (size_t)i < max; i++)
		pair_of(to_device(list[i]), first_port(to_device(list[i])),
			&pair[i]);
	free(list);
	return i;
}

int umad_get_smi_gsi_pair_by_ca_name(const char *devname, uint8_t portnum,
				     struct umad_ca_pair *pair,
				     unsigned enforce_smi)
{
	const char *name = devname && *devname ? devname : NULL;
	int port = portnum;
	struct shca_device *dev = ca_resolve(name, &port);
	uint64_t guid;

	if (!dev || !ca_port(dev, port, &guid) ||
	    (enforce_smi && !ca_has_smi(dev)))
		return 1;
	pair_of(dev, port, (struct pair *)pair);
	return 0;
}
