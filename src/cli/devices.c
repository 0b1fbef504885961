/*
 * devices.c - softhca devices: what programs will see
 */
#include "base/gid.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/hca.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static error_t parse_devices(int key, char *arg, struct argp_state *state)
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
	return type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2" :
	       type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1" :
					      "IB";
}

/* What names a port of InfiniBand, and why so. */
static void print_port(const struct hca *h)
{
	struct gid_text text;

	if (h->port.lid)
		printf("  LID %u (0x%x) is what the prefix of %s/%u (%s) "
		       "leaves; "
		       "GUID and GID hold the address; no host has LID %u, "
		       "the subnet manager's\n",
		       h->port.lid, h->port.lid, gid_str(&h->at.gid, &text),
		       h->at.prefix, h->at.ifname, h->port.sm_lid);
}

static void print_text(const struct hca_list *l)
{
	const struct hca *h;
	struct gid_text address;
	struct hca_name name;
	size_t i, j;
	bool iwarp;

	for (i = 0; i < l->count; i++) {
		h = &l->hca[i];
		iwarp = h->node_type == IBV_NODE_RNIC;
		printf("%s%s: %sport 1 %s, ", i ? "\n" : "",
		       hca_names(h, &name),
		       iwarp                ? "iWARP, " :
		       hca_is_infiniband(h) ? "InfiniBand, " :
					      "",
		       state_name(h->port.state));
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
		if (hca_is_infiniband(h))
			print_port(h);
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

static void print_json_gid(struct json *j, const struct hca_gid *g)
{
	char text[INET6_ADDRSTRLEN];
	struct gid_text address;

	json_begin(j, NULL, '{');
	json_number(j, "index", g->entry.gid_index);
	inet_ntop(AF_INET6, g->entry.gid.raw, text, sizeof(text));
	json_string(j, "gid", text);
	json_string(j, "address", gid_str(&g->entry.gid, &address));
	json_string(j, "type", gid_type(g->entry.gid_type));
	if (g->ifname[0])
		json_string(j, "netdev", g->ifname);
	else
		json_null(j, "netdev");
	json_number(j, "ifindex", g->entry.ndev_ifindex);
	json_end(j, '}');
}

static void print_json(const struct hca_list *l)
{
	struct json j = { stdout, .lines = true };
	char fw_ver[sizeof(l->hca->attr.fw_ver) + 1];

	json_begin(&j, NULL, '[');
	for (size_t i = 0; i < l->count; i++) {
		const struct hca *h = &l->hca[i];

		json_begin(&j, NULL, '{');
		json_string(&j, "name", h->name);
		json_string(&j, "softhca_name", h->own_name);
		json_string(&j, "transport",
			    h->node_type == IBV_NODE_RNIC ? "iWARP" :
			    hca_is_infiniband(h)          ? "InfiniBand" :
							    "RoCE");
		json_hex(&j, "node_guid", 16, h->node_guid);
		json_number(&j, "vendor_part_id", h->attr.vendor_part_id);
		snprintf(fw_ver, sizeof(fw_ver), "%.*s",
			 (int)sizeof(h->attr.fw_ver), h->attr.fw_ver);
		json_string(&j, "fw_ver", fw_ver);
		json_begin(&j, "ports", '[');
		json_begin(&j, NULL, '{');
		json_number(&j, "port", 1);
		json_string(&j, "state", state_name(h->port.state));
		json_string(&j, "link_layer",
			    hca_is_infiniband(h) ? "InfiniBand" : "Ethernet");
		if (hca_is_infiniband(h)) {
			json_number(&j, "lid", h->port.lid);
			json_number(&j, "sm_lid", h->port.sm_lid);
		}
		json_number(&j, "active_mtu", mtu_bytes(h->port.active_mtu));
		json_number(&j, "max_mtu", mtu_bytes(h->port.max_mtu));
		json_number(&j, "gid_tbl_len", (uint64_t)h->port.gid_tbl_len);
		json_begin(&j, "gids", '[');
		for (size_t k = 0; k < h->gid_count; k++)
			print_json_gid(&j, &h->gid[k]);
		json_end(&j, ']');
		json_end(&j, '}');
		json_end(&j, ']');
		json_end(&j, '}');
	}
	json_end(&j, ']');
}

int cmd_devices(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "json", 'j', NULL, 0, "Print JSON", 0 },
		{ 0 },
	};
	static const struct argp argp = {
		.options = options,
		.parser = parse_devices,
		.doc = "List the devices that programs see under softhca run, "
		       "with their ports and GIDs.\v"
		       "Honours SOFTHCA_ADDR, SOFTHCA_DEVICES, SOFTHCA_RAILS, "
		       "SOFTHCA_NAMES, SOFTHCA_IWARP, SOFTHCA_INFINIBAND and "
		       "SOFTHCA_ROCEV1, "
		       "which \"softhca run\" sets "
		       "from its options.\n\n"
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
		print_json(&l);
	else
		print_text(&l);
	if (fflush(stdout))
		err = 1;
	hca_list_free(&l);
	return err ? 1 : 0;
}
