/*
 * hca.c - reads the devices through our libibverbs, as a program would
 */
#include "cli/hca.h"
#include "cli/cli.h"
#include "net/ibaddr.h"

#include <endian.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#undef ibv_get_device_list

struct verbs_api {
	struct ibv_device **(*get_device_list)(int *count);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *dev);
	__be64 (*get_device_guid)(struct ibv_device *dev);
	struct ibv_context *(*open_device)(struct ibv_device *dev);
	int (*close_device)(struct ibv_context *ctx);
	int (*query_device)(struct ibv_context *ctx,
			    struct ibv_device_attr *attr);
	int (*query_port)(struct ibv_context *ctx, uint8_t port,
			  struct ibv_port_attr *attr);
	int (*query_gid_ex)(struct ibv_context *ctx, uint32_t port,
			    uint32_t index, struct ibv_gid_entry *entry,
			    uint32_t flags, size_t entry_size);
	const char *(*own_name)(const struct ibv_device *dev);
};

/* Keeps the first reason: later ones mostly follow from it. */
static int list_fail(struct hca_list *l, int err, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static int list_fail(struct hca_list *l, int err, const char *fmt, ...)
{
	va_list ap;

	if (!l->why[0]) {
		va_start(ap, fmt);
		vsnprintf(l->why, sizeof(l->why), fmt, ap);
		va_end(ap);
	}
	return -err;
}

static int load_verbs(struct verbs_api *api, struct hca_list *l,
		      const char *libdir)
{
	const struct libdir_symbol symbols[] = {
		{ "ibv_get_device_list", &api->get_device_list },
		{ "ibv_free_device_list", &api->free_device_list },
		{ "ibv_get_device_name", &api->get_device_name },
		{ "ibv_get_device_guid", &api->get_device_guid },
		{ "ibv_open_device", &api->open_device },
		{ "ibv_close_device", &api->close_device },
		{ "ibv_query_device", &api->query_device },
		/* The compatible one: fills the first 48 bytes. */
		{ "ibv_query_port", &api->query_port },
		{ "_ibv_query_gid_ex", &api->query_gid_ex },
	};

	const struct libdir_symbol own = { "shca_device_own_name",
					   &api->own_name };

	struct libdir_why why;
	int err = libdir_load(libdir, "libibverbs.so.1", symbols,
			      sizeof(symbols) / sizeof(symbols[0]), &why);

	if (!err)
		err = libdir_load(libdir, "libsofthca.so.0", &own, 1, &why);
	return err ? list_fail(l, -err, "%s; %s", why.text, why.fix) : 0;
}

static int read_gids(struct hca *h, const struct verbs_api *api,
		     struct ibv_context *ctx)
{
	int len = h->port.gid_tbl_len;
	struct hca_gid *g;
	uint32_t i;

	if (len < 0 || len > 4096)
		return -EPROTO;
	h->gid = calloc((size_t)len + 1, sizeof(*h->gid));
	if (!h->gid)
		return -ENOMEM;
	for (i = 0; i < (uint32_t)len; i++) {
		g = &h->gid[h->gid_count];
		if (api->query_gid_ex(ctx, 1, i, &g->entry, 0,
				      sizeof(g->entry)))
			continue; /* ENODATA: an empty entry */
		if (!if_indextoname(g->entry.ndev_ifindex, g->ifname))
			g->ifname[0] = '\0';
		h->gid_count++;
	}
	return 0;
}

/* Where the address is that a port's GID stands for. */
static void find_address(struct hca *h)
{
	const union ibv_gid addr = ib_gid_ip(&h->gid[0].entry.gid);
	struct netdev_table t;

	/* Of several devices one has the address to put first. */
	netdev_scan(&t, NULL, getenv("SOFTHCA_ADDR"));
	for (size_t i = 0; i < t.count; i++)
		if (gid_equal(&t.gid[i].gid, &addr))
			h->at = t.gid[i];
	memcpy(h->gid[0].ifname, h->at.ifname, sizeof(h->gid[0].ifname));
}

static int read_hca(struct hca *h, struct hca_list *l,
		    const struct verbs_api *api, struct ibv_device *dev)
{
	struct ibv_context *ctx;
	int err;

	snprintf(h->name, sizeof(h->name), "%s", api->get_device_name(dev));
	snprintf(h->own_name, sizeof(h->own_name), "%s", api->own_name(dev));
	snprintf(h->dev_name, sizeof(h->dev_name), "%s", dev->dev_name);
	h->node_type = dev->node_type;
	h->node_guid = be64toh(api->get_device_guid(dev));
	ctx = api->open_device(dev);
	if (!ctx)
		return list_fail(l, errno ? errno : EIO, "cannot open %s: %s",
				 h->name, strerror(errno));
	err = api->query_device(ctx, &h->attr);
	if (err)
		list_fail(l, err, "cannot query %s: %s", h->name,
			  strerror(err));
	if (!err) {
		err = api->query_port(ctx, 1, &h->port);
		if (err)
			list_fail(l, err, "cannot query port 1 of %s: %s",
				  h->name, strerror(err));
	}
	if (!err) {
		err = -read_gids(h, api, ctx);
		if (err)
			list_fail(l, err, "cannot read the GIDs of %s: %s",
				  h->name, strerror(err));
	}
	if (!err && hca_is_infiniband(h) && h->gid_count)
		find_address(h);
	api->close_device(ctx);
	return -err;
}

int hca_list_read(struct hca_list *l, const char *libdir)
{
	struct ibv_device **list;
	struct verbs_api api;
	int err, count = 0, i;

	memset(l, 0, sizeof(*l));
	err = load_verbs(&api, l, libdir);
	if (err)
		return err;
	errno = 0;
	list = api.get_device_list(&count);
	if (!list)
		return list_fail(l, errno ? errno : ENODEV, "no device: %s",
				 strerror(errno ? errno : ENODEV));
	l->hca = calloc((size_t)count + 1, sizeof(*l->hca));
	if (!l->hca)
		err = list_fail(l, ENOMEM, "out of memory");
	for (i = 0; l->hca && i < count; i++) {
		if (read_hca(&l->hca[l->count], l, &api, list[i])) {
			free(l->hca[l->count].gid);
			memset(&l->hca[l->count], 0, sizeof(*l->hca));
			continue;
		}
		l->count++;
	}
	api.free_device_list(list);
	if (!err && !l->count)
		err = list_fail(l, ENODEV, "no device: the list is empty");
	return err;
}

const char *hca_names(const struct hca *h, struct hca_name *name)
{
	const bool own = !strcmp(h->name, h->own_name);

	snprintf(name->text, sizeof(name->text), own ? "%s" : "%s (%s)",
		 h->name, h->own_name);
	return name->text;
}

void hca_list_free(struct hca_list *l)
{
	size_t i;

	for (i = 0; i < l->count; i++)
		free(l->hca[i].gid);
	free(l->hca);
	memset(l, 0, sizeof(*l));
}
