/*
 * iscsi_load.c - requests to a disk that libiscsi reaches, by iSER or by TCP
 *
 *   iscsi_load URL read|write SIZE DEPTH SECONDS
 *
 * Keeps DEPTH requests of SIZE bytes on their way to iser://, or iscsi://,
 * HOST:PORT/TARGET/LUN: reads anywhere on the disk, writes one after the other.
 * Prints how many ended in a second, and microseconds from a request to its
 * answer (the median). libiscsi is asked for events and given them, as QEMU
 * does; a request carries its own buffer. The first requests of each slot are
 * not counted: the target pins and touches its memory then.
 */
#include "measure.h"

#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { MAX_DEPTH = 64, SAMPLES = 1000000, WARM = 20, PATIENCE_MS = 10000 };

struct load;

struct request {
	struct load *load;
	struct scsi_iovec iov;
	double began;
	unsigned int uncounted;
};

struct load {
	struct iscsi_context *iscsi;
	int lun;
	bool writes;
	uint32_t size, block;
	uint64_t places,
		next; /* of requests that fit on the disk; the next one of writes */
	uint64_t random;
	double until, begun; /* when the first that counts began */
	size_t done;
	unsigned int flying;
	struct request requests[MAX_DEPTH];
};

static float samples[SAMPLES];

static _Noreturn void refused(struct load *l, const char *what)
{
	fprintf(stderr, "%s: %s\n", what, iscsi_get_error(l->iscsi));
	exit(1);
}

static uint64_t place(struct load *l)
{
	if (l->writes)
		return l->next++ % l->places;
	l->random ^= l->random << 13; /* xorshift64 */
	l->random ^= l->random >> 7;
	l->random ^= l->random << 17;
	return l->random % l->places;
}

static void ended(struct iscsi_context *iscsi, int status, void *task,
		  void *data);

static void begin(struct load *l, struct request *r)
{
	uint64_t lba = place(l) * (l->size / l->block);
	struct scsi_task *task;

	r->began = now();
	if (l->writes)
		task = iscsi_write16_iov_task(l->iscsi, l->lun, lba, NULL,
					      l->size, (int)l->block, 0, 0, 0,
					      0, 0, ended, r, &r->iov, 1);
	else
		task = iscsi_read16_iov_task(l->iscsi, l->lun, lba, l->size,
					     (int)l->block, 0, 0, 0, 0, 0,
					     ended, r, &r->iov, 1);
	if (!task)
		refused(l, "request");
	l->flying++;
}

static void ended(struct iscsi_context *iscsi, int status, void *task,
		  void *data)
{
	struct request *r = data;
	struct load *l = r->load;
	double t = now();

	(void)iscsi;
	l->flying--;
	if (status != SCSI_STATUS_GOOD)
		refused(l, "answer");
	scsi_free_scsi_task(task);
	if (r->uncounted) {
		r->uncounted--;
	} else if (l->begun == 0) {
		l->begun = t;
	} else {
		if (l->done < SAMPLES)
			samples[l->done] = (float)(t - r->began);
		l->done++;
	}
	if (t < l->until)
		begin(l, r);
}

static void serve(struct load *l)
{
	struct pollfd p = { .fd = iscsi_get_fd(l->iscsi),
			    .events = (short)iscsi_which_events(l->iscsi) };
	int n = poll(&p, 1, PATIENCE_MS);

	if (n < 0)
		fail("poll");
	if (n == 0)
		refused(l, "no answer within 10 s");
	if (iscsi_service(l->iscsi, p.revents) < 0)
		refused(l, "connection");
}

static void connect_to(struct load *l, const char *name)
{
	struct iscsi_url *url;
	struct scsi_task *task;
	struct scsi_readcapacity16 *disk;

	l->iscsi = iscsi_create_context("iqn.2026-01.test:me");
	if (!l->iscsi)
		fail("iscsi_create_context");
	url = iscsi_parse_full_url(l->iscsi, name);
	if (!url)
		refused(l, name);
	iscsi_set_targetname(l->iscsi, url->target);
	iscsi_set_session_type(l->iscsi, ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(l->iscsi, ISCSI_HEADER_DIGEST_NONE_CRC32C);
	iscsi_set_noautoreconnect(l->iscsi, 1);
	if (iscsi_full_connect_sync(l->iscsi, url->portal, url->lun))
		refused(l, "login");
	l->lun = url->lun;
	task = iscsi_readcapacity16_sync(l->iscsi, url->lun);
	disk = task && task->status == SCSI_STATUS_GOOD ?
		       scsi_datain_unmarshall(task) :
		       NULL;
	if (!disk)
		refused(l, "READ CAPACITY");
	l->block = disk->block_length;
	l->places =
		l->block ? (disk->returned_lba + 1) * l->block / l->size : 0;
	scsi_free_scsi_task(task);
	iscsi_destroy_url(url);
	if (!l->places || l->size % l->block) {
		fprintf(stderr, "%u bytes are no part of this disk\n", l->size);
		exit(2);
	}
}

int main(int argc, char **argv)
{
	static struct load l = { .random = 0x9e3779b97f4a7c15 };
	int depth = argc == 6 ? atoi(argv[4]) : 0;
	size_t n;
	double end;

	if (depth < 1 || depth > MAX_DEPTH ||
	    (strcmp(argv[2], "read") && strcmp(argv[2], "write")) ||
	    atoi(argv[3]) < 512) {
		fprintf(stderr,
			"usage: iscsi_load URL read|write SIZE DEPTH SECONDS "
			"(a DEPTH of %d at most)\n",
			MAX_DEPTH);
		return 2;
	}
	l.writes = !strcmp(argv[2], "write");
	l.size = (uint32_t)atoi(argv[3]);
	connect_to(&l, argv[1]);
	l.until = now() + atof(argv[5]);
	for (int i = 0; i < depth; i++) {
		struct request *r = &l.requests[i];

		*r = (struct request){
			.load = &l,
			.iov = { aligned_alloc(4096,
					       (l.size + 4095) / 4096 * 4096),
				 l.size },
			.uncounted = WARM
		};
		if (!r->iov.iov_base)
			fail("aligned_alloc");
		memset(r->iov.iov_base, i + 1, l.size);
		begin(&l, r);
	}
	while (l.flying)
		serve(&l);
	end = now();
	n = l.done < SAMPLES ? l.done : SAMPLES;
	if (!n) {
		fprintf(stderr, "no request ended in this time\n");
		return 1;
	}
	qsort(samples, n, sizeof(samples[0]), compare);
	printf("%.1f %.2f\n", (double)l.done / (end - l.begun),
	       (double)samples[n / 2] * 1e6);
	iscsi_logout_sync(l.iscsi);
	iscsi_destroy_context(l.iscsi);
	return 0;
}
