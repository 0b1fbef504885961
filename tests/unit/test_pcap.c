/*
 * test_pcap.c - the recorder's files are pcapng with true headers, whole
 * whatever happens, and tshark agrees
 */
#include "child.h"
#include "unit.h"

#include "capture.h"
#include "pcapng.h"

#include "base/bytes.h"
#include "trace/pcap.h"
#include "wire/icrc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct captures captures;
static char dir[] = "/tmp/softhca-test-pcap-XXXXXX";
static char path[PATH_MAX];

static int setup(void **state)
{
	(void)state;
	unlink(path);
	return 0;
}

static const union ibv_gid v4_a = { .raw = { [10] = 0xff, 0xff, 10, 1, 2, 3 } };
static const union ibv_gid v4_b = { .raw = { [10] = 0xff, 0xff, 10, 1, 2, 4 } };
static const union ibv_gid v6_a = { .raw = { 0xfd, 7, [15] = 1 } };
static const union ibv_gid v6_b = { .raw = { 0xfd, 7, [15] = 2 } };

static void record(struct pcap *p, const union ibv_gid *src,
		   const union ibv_gid *dst, const void *data, size_t len)
{
	const struct iovec iov = { (void *)(uintptr_t)data, len };
	const struct pcap_pkt pkt = {
		.src = src,
		.dst = dst,
		.sport = 50000,
		.dport = 4791,
		.ip_id = 0x1234,
		.tclass = 0xb9,
		.hop_limit = 63,
		.flow_label = 0x54321,
		.realtime_ns = 1700000000123456789,
		.iov = &iov,
		.niov = 1,
	};

	pcap_write(p, &pkt);
}

static size_t count_packets(const char *name)
{
	struct file f = file_read(name);
	uint32_t flags;
	uint64_t when;
	size_t n = 0, len;

	skip_head(&f);
	while (next_packet(&f, &len, &when, &flags))
		n++;
	free(f.data);
	return n;
}

static void check_headers(const uint8_t *p, size_t n, bool v4,
			  const uint8_t *data, size_t len)
{
	const uint8_t *udp = p + (v4 ? 20 : 40);
	uint8_t pseudo[40] = { 0 };

	assert_int_equal(n, (v4 ? 28 : 48) + len);
	if (v4) {
		assert_memory_equal(p, "\x45\xb9", 2);
		assert_int_equal(get_be16(p + 2), n);
		assert_memory_equal(p + 4, "\x12\x34\x40\x00\x3f\x11", 6);
		assert_int_equal(sum(0, p, 20), 0xffff);
		assert_memory_equal(p + 12, v4_a.raw + 12, 4);
		assert_memory_equal(p + 16, v4_b.raw + 12, 4);
		memcpy(pseudo, p + 12, 8);
	} else {
		assert_memory_equal(p, "\x6b\x95\x43\x21", 4);
		assert_int_equal(get_be16(p + 4), n - 40);
		assert_memory_equal(p + 6, "\x11\x3f", 2);
		assert_memory_equal(p + 8, v6_a.raw, 16);
		assert_memory_equal(p + 24, v6_b.raw, 16);
		memcpy(pseudo, p + 8, 32);
	}
	put_be32(pseudo + 32, (uint32_t)(8 + len));
	pseudo[39] = 17;
	assert_int_equal(get_be16(udp), 50000);
	assert_int_equal(get_be16(udp + 2), 4791);
	assert_int_equal(get_be16(udp + 4), 8 + len);
	assert_int_not_equal(get_be16(udp + 6), 0);
	assert_int_equal(sum(sum(0, pseudo, 40), udp, 8 + len), 0xffff);
	assert_memory_equal(udp + 8, data, len);
}

static void layout(void **state)
{
	uint64_t rng = rnd_seed(), when;
	uint8_t data[5000];
	const uint8_t *p;
	struct pcap *pcap;
	uint32_t flags;
	struct file f;
	size_t len, n;

	(void)state;
	rnd_fill(&rng, data, sizeof(data));
	assert_int_equal(pcap_open(&pcap, path), 0);
	/* Enough for several buffers, all paddings among them. */
	for (len = 0; len < sizeof(data); len += 7) {
		record(pcap, &v4_a, &v4_b, data, len);
		record(pcap, &v6_a, &v6_b, data, len);
	}
	pcap_close(pcap);

	f = file_read(path);
	skip_head(&f);
	for (len = 0; len < sizeof(data); len += 7) {
		p = next_packet(&f, &n, &when, &flags);
		assert_non_null(p);
		assert_true(when == 1700000000123456789);
		assert_int_equal(flags, 1);
		check_headers(p, n, true, data, len);
		p = next_packet(&f, &n, &when, &flags);
		assert_non_null(p);
		check_headers(p, n, false, data, len);
	}
	assert_null(next_packet(&f, &n, &when, &flags));
	free(f.data);
}

/* A UDP checksum that comes out as 0 is sent as 0xffff (RFC 768). */
static void zero_checksum(void **state)
{
	uint8_t data[2] = { 0 };
	struct pcap *pcap;
	const uint8_t *p;
	uint32_t flags;
	uint64_t when;
	struct file f;
	size_t n;

	(void)state;
	assert_int_equal(pcap_open(&pcap, path), 0);
	record(pcap, &v4_a, &v4_b, data, 2);
	pcap_flush(pcap);
	f = file_read(path);
	skip_head(&f);
	p = next_packet(&f, &n, &when, &flags);
	/* With the checksum as data the sum is all ones, its complement 0. */
	memcpy(data, p + 26, 2);
	free(f.data);

	record(pcap, &v4_a, &v4_b, data, 2);
	pcap_close(pcap);
	f = file_read(path);
	skip_head(&f);
	next_packet(&f, &n, &when, &flags);
	p = next_packet(&f, &n, &when, &flags);
	assert_int_equal(get_be16(p + 26), 0xffff);
	check_headers(p, n, true, data, 2);
	free(f.data);
}

/* Pieces of any length, odd ones and none, and the time of now. */
static void pieces(void **state)
{
	static const size_t lens[] = { 12, 0, 1, 3, 0, 200, 7, 4 };
	uint64_t rng = rnd_seed(), before, when;
	struct iovec iov[ARRAY_SIZE(lens)];
	struct pcap_pkt pkt = { .src = &v4_a,
				.dst = &v4_b,
				.sport = 50000,
				.dport = 4791,
				.ip_id = 0x1234,
				.tclass = 0xb9,
				.hop_limit = 63,
				.outbound = true,
				.iov = iov,
				.niov = ARRAY_SIZE(lens) };
	struct iovec all;
	uint8_t data[256];
	struct pcap *pcap;
	const uint8_t *p;
	uint32_t flags;
	struct file f;
	size_t i, n, len = 0;

	(void)state;
	rnd_fill(&rng, data, sizeof(data));
	for (i = 0; i < ARRAY_SIZE(lens); i++) {
		iov[i].iov_base = lens[i] ? data + len : NULL;
		iov[i].iov_len = lens[i];
		len += lens[i];
	}
	before = (uint64_t)time(NULL) * 1000000000;
	assert_int_equal(pcap_open(&pcap, path), 0);
	pcap_write(pcap, &pkt);

	/* Too long for an IP packet: as if it never was. */
	all.iov_base = calloc(1, 70000);
	assert_non_null(all.iov_base);
	all.iov_len = 65535 - 28 + 1;
	pkt.iov = &all;
	pkt.niov = 1;
	pcap_write(pcap, &pkt);
	all.iov_len = 65535 - 28;
	pcap_write(pcap, &pkt);
	pcap_close(pcap);

	f = file_read(path);
	skip_head(&f);
	p = next_packet(&f, &n, &when, &flags);
	assert_non_null(p);
	check_headers(p, n, true, data, len);
	assert_int_equal(flags, 2);
	assert_in_range(when, before, before + 60000000000);
	p = next_packet(&f, &n, &when, &flags);
	assert_non_null(p);
	assert_int_equal(n, 65535);
	check_headers(p, n, true, all.iov_base, all.iov_len);
	assert_null(next_packet(&f, &n, &when, &flags));
	free(all.iov_base);
	free(f.data);
}

/* Written at once: the head. Later: packets, but not much later. */
static void flushing(void **state)
{
	struct pcap *pcap;
	size_t n;
	int i;

	(void)state;
	assert_int_equal(pcap_open(&pcap, path), 0);
	assert_int_equal(count_packets(path), 0);
	record(pcap, &v4_a, &v4_b, "abc", 4);
	pcap_flush(pcap);
	assert_int_equal(count_packets(path), 1);
	record(pcap, &v4_a, &v4_b, "abc", 4);
	assert_int_equal(count_packets(path), 1);
	for (n = 2; n < 5000 && count_packets(path) != n; n++) {
		usleep(1000);
		record(pcap, &v4_a, &v4_b, "abc", 4);
	}
	assert_in_range(n, 3, 4999);
	/* Many at once go without being asked for, whole. */
	for (i = 0; i < 5000; i++)
		record(pcap, &v4_a, &v4_b, dir, sizeof(dir));
	assert_in_range(count_packets(path), 1000, 5000 + n);
	pcap_close(pcap);
	assert_int_equal(count_packets(path), 5000 + n);
}

static void naming(void **state)
{
	char name[PATH_MAX], want[PATH_MAX], link[PATH_MAX + 32];
	char target[PATH_MAX];
	int fd, found = -1;
	struct pcap *pcap;
	struct stat st;
	ssize_t n;

	(void)state;
	snprintf(name, sizeof(name), "%s/a%%b-%%p-%%p.pcapng", dir);
	snprintf(want, sizeof(want), "%s/a%%b-%d-%d.pcapng", dir, (int)getpid(),
		 (int)getpid());
	assert_int_equal(pcap_open(&pcap, name), 0);
	assert_int_equal(stat(want, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	for (fd = 0; fd < 64; fd++) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		n = readlink(link, target, sizeof(target) - 1);
		if (n < 0)
			continue;
		target[n] = 0;
		if (strcmp(target, want) == 0)
			found = fd;
	}
	assert_true(found >= 0);
	assert_true(fcntl(found, F_GETFD) & FD_CLOEXEC);
	pcap_close(pcap);
	assert_int_equal(fcntl(found, F_GETFD), -1);
	unlink(want);

	snprintf(name, sizeof(name), "%s/none/x", dir);
	assert_int_equal(pcap_open(&pcap, name), -ENOENT);
	assert_int_equal(pcap_open(&pcap, dir), -EISDIR);
	assert_int_equal(pcap_open(&pcap, "/dev/full"), -ENOSPC);
	pcap_close(NULL);
}

/* A forked child does not add to its parent's file. */
static void forking(void **state)
{
	struct pcap *pcap;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(pcap_open(&pcap, path), 0);
	record(pcap, &v4_a, &v4_b, "abc", 4);
	pid = fork_child();
	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(10);
		record(pcap, &v4_a, &v4_b, "abc", 4);
		pcap_flush(pcap);
		pcap_close(pcap);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(count_packets(path), 0);
	pcap_close(pcap);
	assert_int_equal(count_packets(path), 1);
}

/* Blocks of a type, whoever wrote them, all whole. */
static size_t count_blocks(const char *name, uint32_t type)
{
	struct file f = file_read(name);
	const uint8_t *b;
	size_t n = 0, len;
	uint32_t got;

	while ((got = next_block(&f, &b, &len)))
		n += got == type;
	free(f.data);
	return n;
}

/* How many packets are this interface's. */
static size_t count_from(const char *name, uint32_t interface)
{
	struct file f = file_read(name);
	size_t n = 0, len = 0;
	const uint8_t *b = NULL;
	uint32_t type;

	while ((type = next_block(&f, &b, &len)))
		n += type == 6 && u32(b) == interface;
	free(f.data);
	return n;
}

/*
 * Processes with one file name add to one file, whether one after another or
 * in between each other's packets; what is there is never removed. Each has its
 * interfaces, two, in the one section.
 */
static void sharing(void **state)
{
	struct pcap *a, *b;

	(void)state;
	assert_int_equal(pcap_open(&a, path), 0);
	record(a, &v4_a, &v4_b, "abc", 4);
	pcap_flush(a);
	assert_int_equal(pcap_open(&b, path), 0);
	for (int i = 0; i < 5000; i++) {
		record(a, &v4_a, &v4_b, dir, sizeof(dir));
		record(b, &v4_a, &v4_b, dir, sizeof(dir) / 2);
	}
	pcap_close(a);
	record(b, &v4_a, &v4_b, "abc", 4);
	pcap_close(b);
	assert_int_equal(count_blocks(path, 6), 10002);
	assert_int_equal(pcap_open(&a, path), 0);
	record(a, &v4_a, &v4_b, "abc", 4);
	pcap_close(a);
	assert_int_equal(count_blocks(path, 6), 10003);
	assert_int_equal(count_blocks(path, 0x0a0d0d0a), 1);
	assert_int_equal(count_blocks(path, 1), 6);
	assert_int_equal(count_from(path, 0), 5001);
	assert_int_equal(count_from(path, 2), 5001);
	assert_int_equal(count_from(path, 4), 1);
}

static void append(const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, len), len);
	close(fd);
}

/* Behind what is no section of this host, a section begins. */
static void foreign(void **state)
{
	static const uint32_t swapped[] = { 0x0a0d0d0a, 0x1c000000, 0x4d3c2b1a,
					    0x00000100, UINT32_MAX, UINT32_MAX,
					    0x1c000000 };
	static const uint32_t odd[] = { 1, 3, 0 };
	uint64_t when;
	uint32_t flags;
	struct pcap *p;
	struct file f;
	struct stat st;
	size_t n;

	(void)state;
	for (int i = 0; i < 4; i++) {
		unlink(path);
		if (i % 2) {
			assert_int_equal(pcap_open(&p, path), 0);
			pcap_close(p);
		}
		if (i / 2)
			append(swapped, sizeof(swapped));
		else
			append(odd, sizeof(odd));
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(pcap_open(&p, path), 0);
		record(p, &v4_a, &v4_b, "abc", 4);
		pcap_close(p);
		f = file_read(path);
		f.at = (size_t)st.st_size;
		skip_head(&f);
		assert_non_null(next_packet(&f, &n, &when, &flags));
		assert_null(next_packet(&f, &n, &when, &flags));
		free(f.data);
	}
}

/* A name with a process ID is one process's: an earlier one's file goes. */
static void recycled_pid(void **state)
{
	char name[PATH_MAX], real[PATH_MAX];
	struct pcap *a, *b;

	(void)state;
	snprintf(name, sizeof(name), "%s/r-%%p.pcapng", dir);
	snprintf(real, sizeof(real), "%s/r-%d.pcapng", dir, (int)getpid());
	assert_int_equal(pcap_open(&a, name), 0);
	record(a, &v4_a, &v4_b, "abc", 4);
	pcap_flush(a);
	/* In another PID namespace: it is not gone. */
	assert_int_equal(pcap_open(&b, name), 0);
	record(b, &v4_a, &v4_b, "abc", 4);
	pcap_close(b);
	pcap_close(a);
	assert_int_equal(count_blocks(real, 6), 2);
	assert_int_equal(pcap_open(&a, name), 0);
	pcap_close(a);
	assert_int_equal(count_packets(real), 0);
	unlink(real);
}

/*
 * No more room: the file ends with a whole block, and nothing else happens; not
 * even the signal that comes with this way of running out of room.
 */
static void disk_full(void **state)
{
	struct rlimit old, small;
	struct pcap *pcap;
	struct stat st;
	int i;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
	small = old;
	small.rlim_cur = 300001;
	assert_int_equal(pcap_open(&pcap, path), 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
	for (i = 0; i < 10000; i++)
		record(pcap, &v4_a, &v4_b, dir, sizeof(dir));
	pcap_flush(pcap);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
	/* Room again, but what was lost in between would be missed. */
	record(pcap, &v4_a, &v4_b, dir, sizeof(dir));
	pcap_close(pcap);

	assert_true(st.st_size <= 300001);
	assert_in_range(count_packets(path), 1000, 300001 / sizeof(dir));
	i = (int)st.st_size;
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, i);
}

/* Wireshark at the other end of a FIFO, and then no longer. */
static void fifo(void **state)
{
	struct pcap *pcap, *other;
	char name[PATH_MAX];
	uint8_t buf[4096];
	sigset_t pending;
	ssize_t n;
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "%s/fifo", dir);
	assert_int_equal(mkfifo(name, 0600), 0);
	fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pcap_open(&pcap, name), 0);
	n = read(fd, buf, sizeof(buf));
	assert_true(n > 50);
	/* Blocks of two would run into each other. */
	assert_int_equal(pcap_open(&other, name), -EBUSY);
	record(pcap, &v4_a, &v4_b, "abc", 4);
	pcap_flush(pcap);
	assert_true(read(fd, buf, sizeof(buf)) > 20);
	close(fd);
	record(pcap, &v4_a, &v4_b, "abc", 4);
	pcap_flush(pcap); /* would end this test with SIGPIPE */
	assert_int_equal(sigpending(&pending), 0);
	assert_false(sigismember(&pending, SIGPIPE));
	pcap_close(pcap);
	unlink(name);
}

static void drain(int fd, FILE *to)
{
	uint8_t buf[4096];
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0)
		assert_int_equal(fwrite(buf, 1, (size_t)n, to), n);
}

/* One who stops reading stops nobody, and learns what he has missed. */
static void fifo_that_nobody_empties(void **state)
{
	static const uint8_t data[4096];
	uint64_t total = 0, missed = 0, lost;
	const uint8_t *b, *o;
	struct pcap *pcap;
	char name[PATH_MAX];
	size_t len, n, olen;
	struct file f;
	FILE *copy;
	int fd;

	(void)state;
	snprintf(name, sizeof(name), "%s/fifo", dir);
	assert_int_equal(mkfifo(name, 0600), 0);
	fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	assert_true(fd >= 0);
	copy = fopen(path, "wbe");
	assert_non_null(copy);
	assert_int_equal(pcap_open(&pcap, name), 0);
	alarm(30); /* instead of waiting for ever */
	for (int i = 0; i < 1000; i++)
		record(pcap, &v4_a, &v4_b, data, sizeof(data));
	for (int i = 0; i < 20; i++) {
		drain(fd, copy);
		record(pcap, &v4_a, &v4_b, data, sizeof(data));
		if (i > 10)
			pcap_flush(pcap);
	}
	drain(fd, copy);
	pcap_close(pcap);
	drain(fd, copy);
	alarm(0);
	close(fd);
	fclose(copy);
	unlink(name);
	f = file_read(path);
	skip_head(&f);
	while (next_block(&f, &b, &len)) {
		n = (u32(b + 12) + 3) / 4 * 4;
		o = option(b + 20 + n, len - 20 - n, 4, &olen);
		if (o) {
			assert_int_equal(olen, 8);
			memcpy(&lost, o, 8);
			missed += lost;
		}
		total++;
	}
	free(f.data);
	assert_true(missed > 500);
	assert_int_equal(total + missed, 1020);
}

#define THREADS 4
#define EACH 3000

static void *writer(void *arg)
{
	struct pcap *pcap = arg;
	uint8_t data[64];
	int i;

	for (i = 0; i < EACH; i++) {
		memset(data, i, sizeof(data));
		record(pcap, &v4_a, &v4_b, data, sizeof(data));
		if (i % 100 == 0)
			pcap_flush(pcap);
	}
	return NULL;
}

static void threads(void **state)
{
	pthread_t t[THREADS];
	uint8_t data[64];
	struct pcap *pcap;
	uint32_t flags;
	const uint8_t *p;
	uint64_t when;
	struct file f;
	size_t n, total = 0;
	int i;

	(void)state;
	assert_int_equal(pcap_open(&pcap, path), 0);
	for (i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&t[i], NULL, writer, pcap), 0);
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	pcap_close(pcap);
	f = file_read(path);
	skip_head(&f);
	while ((p = next_packet(&f, &n, &when, &flags))) {
		memset(data, p[28], sizeof(data));
		check_headers(p, n, true, data, sizeof(data));
		total++;
	}
	free(f.data);
	assert_int_equal(total, THREADS * EACH);
}

/*
 * The captures again, through our recorder, as tshark reads them: RRoCE, no
 * complaint about any checksum, the opcode, QPN and PSN that we see.
 */
static void tshark_agrees(void **state)
{
	char cmd[PATH_MAX + 512], line[4096];
	struct roce_hdr h;
	struct pcap *pcap;
	size_t i, n = 0;
	FILE *in;

	(void)state;
	if (system("command -v tshark >/dev/null 2>&1") != 0) {
		print_message("SKIPPED: tshark is not installed\n");
		skip();
	}
	if (!captures.n) {
		print_message("SKIPPED: no captures given\n");
		skip();
	}
	assert_int_equal(pcap_open(&pcap, path), 0);
	for (i = 0; i < captures.n; i++) {
		const struct captured *c = &captures.pkt[i];
		const struct iovec iov = { c->data, c->len };
		const struct pcap_pkt pkt = {
			.src = &c->src,
			.dst = &c->dst,
			.sport = c->sport,
			.dport = c->dport,
			.ip_id = c->ip_id,
			.hop_limit = 64,
			.outbound = i % 2,
			.iov = &iov,
			.niov = 1,
		};

		pcap_write(pcap, &pkt);
	}
	pcap_close(pcap);

	/* Without what tshark takes payloads for, when they look like it. */
	snprintf(cmd, sizeof(cmd),
		 "tshark -n -r '%s' $(tshark -G heuristic-decodes 2>/dev/null |"
		 " awk '/^infiniband/ && $2 != \"ethertype\" "
		 "{ print \"--disable-protocol \" $2 }') "
		 "-o ip.check_checksum:TRUE "
		 "-o udp.check_checksum:TRUE -T fields -E occurrence=f "
		 "-e frame.protocols -e udp.checksum.status "
		 "-e frame.packet_flags_direction "
		 "-e infiniband.bth.opcode -e infiniband.bth.destqp "
		 "-e infiniband.bth.psn -e ip.checksum.status "
		 "-e _ws.malformed -e _ws.expert 2>/dev/null",
		 path);
	in = popen(cmd, "re");
	assert_non_null(in);
	while (fgets(line, sizeof(line), in)) {
		const struct captured *c;
		char *field[10], *p = line;
		unsigned fields = 0;

		assert_true(n < captures.n);
		c = &captures.pkt[n];
		while (p && fields < ARRAY_SIZE(field))
			field[fields++] = strsep(&p, "\t\n");
		if (fields < 9)
			fail_msg("unexpected: %s", line);
		assert_true(roce_decode(&h, c->data, c->len - 4) > 0);
		assert_non_null(strstr(field[0], ":infiniband"));
		assert_int_equal(strtol(field[1], NULL, 0), 1); /* good */
		assert_int_equal(strtol(field[2], NULL, 0), n % 2 ? 2 : 1);
		assert_int_equal(strtol(field[3], NULL, 0), h.opcode);
		assert_int_equal(strtol(field[4], NULL, 0), h.dest_qpn);
		assert_int_equal(strtol(field[5], NULL, 0), h.psn);
		if (roce_gid_is_v4(&c->src))
			assert_int_equal(strtol(field[6], NULL, 0), 1);
		if (*field[7] || *field[8])
			fail_msg("%s packet %u: tshark says %s %s", c->file,
				 c->number, field[7], field[8]);
		n++;
	}
	assert_int_equal(pclose(in), 0);
	assert_int_equal(n, captures.n);
	print_message("tshark read %zu packets\n", n);
}

/* Somebody else's links and files, as in /tmp. */
static void of_others(void **state)
{
	struct pcap *pcap = NULL;
	char victim[PATH_MAX];
	struct stat st;
	int fd;

	(void)state;
	snprintf(victim, sizeof(victim), "%s/victim", dir);
	fd = open(victim, O_WRONLY | O_CREAT, 0644);
	assert_true(fd >= 0);
	assert_int_equal(close(fd), 0);
	assert_int_equal(symlink(victim, path), 0);
	/* One's own is followed. */
	assert_int_equal(pcap_open(&pcap, path), 0);
	pcap_close(pcap);
	assert_int_equal(truncate(victim, 0), 0);
	if (geteuid()) {
		print_message("not root: cannot make files of others\n");
		unlink(victim);
		skip();
	}
	assert_int_equal(lchown(path, 65534, 65534), 0);
	assert_int_equal(pcap_open(&pcap, path), -EPERM);
	assert_int_equal(unlink(path), 0);
	/* Nor into a file that he can read. */
	assert_int_equal(rename(victim, path), 0);
	assert_int_equal(chown(path, 65534, 65534), 0);
	assert_int_equal(pcap_open(&pcap, path), -EPERM);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, 0);
	unlink(victim);
}

int main(int argc, char **argv)
{
#define TEST(f) cmocka_unit_test_setup(f, setup)
	const struct CMUnitTest tests[] = {
		TEST(layout),
		TEST(zero_checksum),
		TEST(pieces),
		TEST(flushing),
		TEST(naming),
		TEST(forking),
		TEST(sharing),
		TEST(foreign),
		TEST(recycled_pid),
		TEST(disk_full),
		TEST(fifo),
		TEST(of_others),
		TEST(fifo_that_nobody_empties),
		TEST(threads),
		TEST(tshark_agrees),
	};
	int failed;

	(void)argc;
	if (!captures_load_all(&captures, argv + 1))
		return 1;
	if (!mkdtemp(dir)) {
		perror(dir);
		return 1;
	}
	snprintf(path, sizeof(path), "%s/out.pcapng", dir);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(path);
	rmdir(dir);
	captures_free(&captures);
	return failed;
}
