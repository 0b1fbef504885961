/*
 * pcap_seeds.c - writes each RoCE packet of pcap files, from BTH to ICRC, to its
 * own file: libFuzzer's initial corpus
 *
 *	pcap_seeds DIRECTORY PCAP-FILE|DIRECTORY...
 */
#include "capture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int write_packet(const char *dir, const struct captured *c)
{
	char *path;
	FILE *f;
	int err = 0;

	if (asprintf(&path, "%s/%s-%u", dir, c->file, c->number) < 0)
		return -ENOMEM;
	f = fopen(path, "we");
	free(path);
	if (!f)
		return -errno;
	if (fwrite(c->data, 1, c->len, f) != c->len)
		err = -EIO;
	if (fclose(f) != 0)
		err = -EIO;
	return err;
}

int main(int argc, char **argv)
{
	struct captures c = { 0 };
	int i, err = 0;
	size_t n;

	if (argc < 3) {
		fprintf(stderr, "usage: %s DIRECTORY PCAP...\n", argv[0]);
		return 2;
	}
	if (mkdir(argv[1], 0777) != 0 && errno != EEXIST)
		err = -errno;
	for (i = 2; i < argc && !err; i++)
		err = captures_load(&c, argv[i]);
	for (n = 0; n < c.n && !err; n++)
		err = write_packet(argv[1], &c.pkt[n]);
	captures_free(&c);
	if (err)
		fprintf(stderr, "%s: %s\n", argv[0], strerror(-err));
	return err ? 1 : 0;
}
