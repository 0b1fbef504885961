/*
 * devices.c - softhca devices: what programs will see
 */
#include "base/gid.h"
#include "cli/cli.h"
#include "cli/hca.h"

#include <arpa/inet.h>
#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static error_t parse(int key, char *arg, struct argp_state *state)
{
	bool *json = state->input;

	switch (key) {
	case 'j':
		*json = true;
		return 0;
	case ARGP_KEY_ARG:
		cli_say("devices takes no arguments, not even %s", arg);
		exit(EXIT_USAGE);
	}
	return ARGP_ERR_UNKNOWN;
}

static unsigned int mtu_bytes(enum ibv_mtu mtu)
{
	return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128U << mtu : 0;
}

static const char *state_name(enum ibv_port_state state)
{
	switch (state) {
	case IBV_PORT_NOP:
		return "none";
	case IBV_PORT_DOWN:
		return "down";
	case IBV_PORT_INIT:
		return "init";
	case IBV_PORT_ARMED:
		return "armed";
	case IBV_PORT_ACTIVE:
		return "active";
	case IBV_PORT_ACTIVE_DEFER:
		return "active_defer";
	}
	return "unknown";
}

static const char *gid_type(uint32_t type)
{
	return type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
	       : type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
					      : "IB";
}

static void print_text(const struct hca_list *l)
{
	const struct hca *h;
	struct gid_text address;
	size_t i, j;
	bool iwarp;

	for (i = 0; i < l->count; i++) {
		h = &l->hca[i];
		iwarp = h->node_type == IBV_NODE_RNIC;
		printf("%s%s: %sport 1 %s, ", i ? "\n" : "", h->name,
		       iwarp ? "iWARP, " : "", state_name(h->port.state));
		/* iWARP's segments are TCP's. */
		if (!iwarp)
			printf("MTU %u (up to %u), ",
			       mtu_bytes(h->port.active_mtu),
			       mtu_bytes(h->port.max_mtu));
		printf("node GUID %04x:%04x:%04x:%04x\n",
		       (unsigned int)(h->node_guid >> 48),
		       (unsigned int)(h->node_guid >> 32 & 0xffff),
		       (unsigned int)(h->node_guid >> 16 & 0xffff),
		       (unsigned int)(h->node_guid & 0xffff));
		if (h->gid_count)
			printf("  %-4s %-40s %-8s %s\n", "GID", "address",
			       "type", "interface");
		for (j = 0; j < h->gid_count; j++)
			printf("  %-4u %-40s %-8s %s\n",
			       h->gid[j].entry.gid_index,
			       gid_str(&h->gid[j].entry.gid, &address),
			       iwarp ? "MAC" :
				       gid_type(h->gid[j].entry.gid_type),
			       h->gid[j].ifname);
	}
}

static struct json_object *gid_json(const struct hca_gid *g)
{
	struct json_object *o = json_object_new_object();
	char text[INET6_ADDRSTRLEN];
	struct gid_text address;

	json_object_object_add(
		o, "index", json_object_new_int64((int64_t)g->entry.gid_index));
	inet_ntop(AF_INET6, g->entry.gid.raw, text, sizeof(text));
	json_object_object_add(o, "gid", json_object_new_string(text));
	json_object_object_add(
		o, "address",
		json_object_new_string(gid_str(&g->entry.gid, &address)));
	json_object_object_add(
		o, "type", json_object_new_string(gid_type(g->entry.gid_type)));
	json_object_object_add(o, "netdev",
			       g->ifname[0] ? json_object_new_string(g->ifname)
					    : NULL);
	json_object_object_add(
		o, "ifindex",
		json_object_new_int64((int64_t)g->entry.ndev_ifindex));
	return o;
}

static int print_json(const struct hca_list *l)
{
	struct json_object *list = json_object_new_array(), *o, *port, *gids;
	const struct hca *h;
	char guid[32];
	size_t i, j;
	int err;

	for (i = 0; i < l->count; i++) {
		h = &l->hca[i];
		gids = json_object_new_array();
		for (j = 0; j < h->gid_count; j++)
			json_object_array_add(gids, gid_json(&h->gid[j]));

		port = json_object_new_object();
		json_object_object_add(port, "port", json_object_new_int(1));
		json_object_object_add(
			port, "state",
			json_object_new_string(state_name(h->port.state)));
		json_object_object_add(port, "link_layer",
				       json_object_new_string("Ethernet"));
		json_object_object_add(port, "active_mtu",
				       json_object_new_int((int)mtu_bytes(
					       h->port.active_mtu)));
		json_object_object_add(
			port, "max_mtu",
			json_object_new_int((int)mtu_bytes(h->port.max_mtu)));
		json_object_object_add(
			port, "gid_tbl_len",
			json_object_new_int(h->port.gid_tbl_len));
		json_object_object_add(port, "gids", gids);

		snprintf(guid, sizeof(guid), "0x%016llx",
			 (unsigned long long)h->node_guid);
		o = json_object_new_object();
		json_object_object_add(o, "name",
				       json_object_new_string(h->name));
		json_object_object_add(
			o, "transport",
			json_object_new_string(h->node_type == IBV_NODE_RNIC ?
						       "iWARP" :
						       "RoCE"));
		json_object_object_add(o, "node_guid",
				       json_object_new_string(guid));
		json_object_object_add(
			o, "vendor_part_id",
			json_object_new_int64((int64_t)h->attr.vendor_part_id));
		json_object_object_add(
			o, "fw_ver",
			json_object_new_string_len(
				h->attr.fw_ver,
				(int)strnlen(h->attr.fw_ver, 64)));
		json_object_object_add(o, "ports", json_object_new_array());
		json_object_array_add(json_object_object_get(o, "ports"), port);
		json_object_array_add(list, o);
	}
	err = puts(json_object_to_json_string_ext(
		      list, JSON_C_TO_STRING_PRETTY |
				    JSON_C_TO_STRING_NOSLASHESCAPE)) < 0;
	json_object_put(list);
	return err;
}

int cmd_devices(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print JSON", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse,
		.doc = "List the devices that programs see under softhca run, "
		       "with their ports and GIDs.\v"
		       "Honours SOFTHCA_ADDR, SOFTHCA_DEVICES and SOFTHCA_IWARP, "
		       "which \"softhca run\" sets from its options.\n\n"
		       "Examples:\n"
		       "  softhca devices\n"
		       "  softhca devices --json | jq '.[0].ports[0].gids[0]'",
	};
	char libdir[PATH_MAX];
	struct hca_list l;
	bool json = false;
	int err;

	cli_parse(&argp, argc, argv, EXIT_USAGE, NULL, &json);
	err = libdir_find(libdir);
	if (err) {
		cli_say("the libraries are not beside this program; see "
			"softhca doctor");
		return 1;
	}
	err = hca_list_read(&l, libdir);
	if (l.why[0])
		cli_say("%s", l.why);
	if (json)
		err |= print_json(&l);
	else
		print_text(&l);
	if (fflush(stdout))
		err = 1;
	hca_list_free(&l);
	return err ? 1 : 0;
}
