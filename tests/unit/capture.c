/*
 * capture.c - reads classic pcap files, of either byte order, with Ethernet or
 * raw IP packets; what is not an unfragmented RoCEv2 packet is passed over
 */
#include "capture.h"

#include "base/bytes.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LINKTYPE_ETHERNET 1
#define LINKTYPE_RAW 101

static uint32_t get_u32(const uint8_t *p, bool big)
{
	return big ? get_be32(p) :
		     (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 |
			       (uint32_t)p[1] << 8 | p[0];
}

static void v4_mapped(union ibv_gid *gid, const uint8_t *addr)
{
	memset(gid, 0, sizeof(*gid));
	gid->raw[10] = gid->raw[11] = 0xff;
	memcpy(gid->raw + 12, addr, 4);
}

/* From the IP header on; false: not for us. */
static bool parse_ip(struct captured *c, const uint8_t *p, size_t len)
{
	size_t ip_len, udp_len;

	if (len >= 28 && p[0] == 0x45 && p[9] == 17 &&
	    (get_be16(p + 6) & 0x3fff) == 0) {
		v4_mapped(&c->src, p + 12);
		v4_mapped(&c->dst, p + 16);
		c->ip_id = get_be16(p + 4);
		ip_len = 20;
	} else if (len >= 48 && p[0] >> 4 == 6 && p[6] == 17) {
		memcpy(c->src.raw, p + 8, 16);
		memcpy(c->dst.raw, p + 24, 16);
		c->ip_id = 0;
		ip_len = 40;
	} else {
		return false;
	}
	p += ip_len;
	udp_len = get_be16(p + 4);
	if (udp_len < 8 || udp_len > len - ip_len)
		return false;
	c->sport = get_be16(p);
	c->dport = get_be16(p + 2);
	if (c->dport != ROCE_UDP_PORT)
		return false;
	c->len = udp_len - 8;
	c->data = malloc(c->len ? c->len : 1);
	if (!c->data)
		return false;
	memcpy(c->data, p + 8, c->len);
	return true;
}

static int each_packet(FILE *f, capture_fn *fn, void *arg)
{
	uint8_t head[24], rec[16], buf[65536 + 64];
	uint32_t link, len;
	unsigned number = 0;
	bool big;
	int err = 0;

	if (fread(head, sizeof(head), 1, f) != 1)
		return -EINVAL;
	/* Seconds and micro- or nanoseconds. */
	if (get_u32(head, true) == 0xa1b2c3d4 ||
	    get_u32(head, true) == 0xa1b23c4d)
		big = true;
	else if (get_u32(head, false) == 0xa1b2c3d4 ||
		 get_u32(head, false) == 0xa1b23c4d)
		big = false;
	else
		return -EINVAL;
	link = get_u32(head + 20, big);
	while (!err && fread(rec, sizeof(rec), 1, f) == 1) {
		size_t skip = 0;

		number++;
		len = get_u32(rec + 8, big);
		if (len > sizeof(buf) || fread(buf, 1, len, f) != len)
			return -EINVAL;
		if (link == LINKTYPE_ETHERNET) {
			if (len < 14 || (get_be16(buf + 12) != 0x0800 &&
					 get_be16(buf + 12) != 0x86dd))
				continue;
			skip = 14;
		} else if (link != LINKTYPE_RAW) {
			return -EINVAL;
		}
		err = fn(arg, number, buf + skip, len - skip);
	}
	return err;
}

int capture_each(const char *path, capture_fn *fn, void *arg)
{
	FILE *f = fopen(path, "re");
	int err;

	if (!f)
		return -errno;
	err = each_packet(f, fn, arg);
	fclose(f);
	return err;
}

const char *capture_name(const char *path)
{
	const char *name = strrchr(path, '/');

	return name ? name + 1 : path;
}

struct loading {
	struct captures *c;
	const char *name;
};

static int add(void *arg, unsigned number, const uint8_t *ip, size_t len)
{
	const struct loading *l = arg;
	struct captured pkt = { .number = number }, *more;
	struct captures *c = l->c;

	snprintf(pkt.file, sizeof(pkt.file), "%s", l->name);
	if (!parse_ip(&pkt, ip, len))
		return 0;
	more = realloc(c->pkt, (c->n + 1) * sizeof(*more));
	if (!more) {
		free(pkt.data);
		return -ENOMEM;
	}
	c->pkt = more;
	c->pkt[c->n++] = pkt;
	return 0;
}

static int load_file(struct captures *c, const char *path)
{
	int err = capture_each(path, add,
			       &(struct loading){ c, capture_name(path) });

	if (!err)
		c->files++;
	return err;
}

static int is_pcap(const struct dirent *d)
{
	size_t len = strlen(d->d_name);

	return len > 5 && strcmp(d->d_name + len - 5, ".pcap") == 0;
}

char **captures_list(const char *dir, const char *only)
{
	struct dirent **list;
	char **paths;
	int i, n, k = 0;
	bool failed;

	n = scandir(dir, &list, is_pcap, alphasort);
	if (n < 0)
		return NULL;
	paths = calloc((size_t)n + 1, sizeof(*paths));
	failed = !paths;
	for (i = 0; i < n; i++) {
		if (!failed && (!only || !strcmp(only, list[i]->d_name)))
			failed = asprintf(&paths[k++], "%s/%s", dir,
					  list[i]->d_name) < 0;
		free(list[i]);
	}
	free(list);
	if (!failed)
		return paths;
	if (k)
		paths[k - 1] = NULL; /* asprintf(3) left it undefined */
	captures_list_free(paths);
	errno = ENOMEM;
	return NULL;
}

void captures_list_free(char **paths)
{
	for (char **p = paths; p && *p; p++)
		free(*p);
	free(paths);
}

int captures_load(struct captures *c, const char *path)
{
	struct stat st;
	char **paths;
	int err = 0;

	if (stat(path, &st) != 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return load_file(c, path);
	paths = captures_list(path, NULL);
	if (!paths)
		return -errno;
	for (char **p = paths; *p && !err; p++)
		err = load_file(c, *p);
	captures_list_free(paths);
	return err;
}

bool captures_load_all(struct captures *c, char **paths)
{
	for (; *paths; paths++) {
		const int err = captures_load(c, *paths);

		if (err) {
			fprintf(stderr, "%s: %s\n", *paths, strerror(-err));
			return false;
		}
	}
	return true;
}

void captures_free(struct captures *c)
{
	size_t i;

	for (i = 0; i < c->n; i++)
		free(c->pkt[i].data);
	free(c->pkt);
	*c = (struct captures){ 0 };
}

bool capture_complete(const char *name)
{
	return !strstr(name, "_loss") && !strstr(name, "_reordering");
}
