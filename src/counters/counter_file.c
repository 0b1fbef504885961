/*
 * counter_file.c - what all processes have counted, see counter_file.h
 *
 * The file has a row of counters for each device, which are added to and nothing
 * else, so no lock is needed and a process may end anywhere. Its name has the
 * version of the rows.
 */
#include "counter_file.h"

#include "base/sys.h"
#include "os/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define FILE_VERSION 2 /* of the struct, beside the counters it has */

struct counter_file {
	_Atomic uint64_t n[COUNTER_FILE_DEVICES][STAT_COUNTERS];
	/* What is taken off, by enum counter_port. */
	_Atomic uint64_t off[COUNTER_FILE_DEVICES][COUNTER_PORT_N];
};

/* clang-format off */
#define FILE_NO(id, name)
#define FILE_HW(id, name) { name, true, 0, 1, { STAT_##id } },
#define FILE_OF(id, field, name, file, help) FILE_##file(id, name)
const struct counter_name counter_names[] = {
	QP_COUNTS(FILE_OF, FILE_OF)
	/* A copy within the host leaves the port and arrives there. */
	{ "port_xmit_data", false, 2, 2, { STAT_TX_BYTES, STAT_DIRECT_BYTES } },
	{ "port_rcv_data", false, 2, 2, { STAT_RX_BYTES, STAT_DIRECT_BYTES } },
	{ "port_xmit_packets", false, 0, 1, { STAT_TX_PACKETS } },
	{ "port_rcv_packets", false, 0, 1, { STAT_RX_PACKETS } },
	/* Those to groups are not counted apart. */
	{ "unicast_xmit_packets", false, 0, 1, { STAT_TX_PACKETS } },
	{ "unicast_rcv_packets", false, 0, 1, { STAT_RX_PACKETS } },
	{ "rx_atomic_requests", true, 0, 2, { STAT_RX_ATOMICS, STAT_DIRECT_ATOMICS } },
	{ "rx_read_requests", true, 0, 2, { STAT_RX_READS, STAT_DIRECT_READS } },
	{ "rx_write_requests", true, 0, 2, { STAT_RX_WRITES, STAT_DIRECT_WRITES } },
};
/* clang-format on */
const unsigned counter_names_n =
	sizeof(counter_names) / sizeof(counter_names[0]);

static int sums_allocate(int fd)
{
	int err = sys_file_limit(sizeof(struct counter_file));

	if (!err && syscall(SYS_fallocate, fd, 0, (off_t)0,
			    (off_t)sizeof(struct counter_file)))
		err = -errno;
	return err;
}

static int sums_open(const char *tree, int flags)
{
	struct stat st;
	char path[4096];
	int fd, err = 0;

	if (stat("/proc/self/ns/net", &st))
		st.st_ino = 0;
	if (snprintf(path, sizeof(path),
		     "%s/../" COUNTER_FILE_NAME "%llu-%d.%d", tree,
		     (unsigned long long)st.st_ino, STAT_VERSION,
		     FILE_VERSION) >= (int)sizeof(path))
		return -ENAMETOOLONG;
	fd = sys_open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st))
		err = -errno;
	else if (!S_ISREG(st.st_mode) || st.st_nlink > 1 ||
		 !owner_private(fd, &st))
		err = -EACCES;
	/* A full disk shows here, and not as a SIGBUS. */
	else if (!st.st_size && flags & O_CREAT)
		err = sums_allocate(fd);
	else if (st.st_size != sizeof(struct counter_file))
		err = -EPROTO;
	if (!err && flags & O_CREAT) {
		/* In use: as long as it is mapped, and was today. */
		flock(fd, LOCK_SH | LOCK_NB);
		futimens(fd, NULL);
	}
	if (!err)
		return fd;
	sys_close(fd);
	return err;
}

static struct counter_file *sums_map(const char *tree, int flags, int prot)
{
	const int fd = sums_open(tree, flags);
	void *mem;

	if (fd < 0)
		return NULL;
	mem = mmap(NULL, sizeof(struct counter_file), prot, MAP_SHARED, fd, 0);
	sys_close(fd);
	return mem == MAP_FAILED ? NULL : mem;
}

struct counter_file *counter_file_open(const char *tree)
{
	return sums_map(tree, O_RDWR | O_CREAT, PROT_READ | PROT_WRITE);
}

void counter_file_close(struct counter_file *s)
{
	if (s)
		munmap(s, sizeof(struct counter_file));
}

bool counter_file_add(struct counter_file *s, unsigned row,
		      uint64_t added[STAT_COUNTERS],
		      const uint64_t now[STAT_COUNTERS])
{
	bool more = false;

	for (size_t i = 0; row < COUNTER_FILE_DEVICES && i < STAT_COUNTERS;
	     i++) {
		if (now[i] <= added[i])
			continue;
		atomic_fetch_add_explicit(&s->n[row][i], now[i] - added[i],
					  memory_order_relaxed);
		added[i] = now[i];
		more = true;
	}
	return more;
}

static bool row_of(const char *tree, const char *name, size_t len,
		   unsigned *row)
{
	char path[4096], text[16], *end;
	ssize_t n = -1;
	int fd;

	if (snprintf(path, sizeof(path), "%s/" COUNTER_ROWS "/%.*s", tree,
		     (int)len, name) >= (int)sizeof(path))
		return false;
	fd = sys_open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC, 0);
	if (fd >= 0) {
		n = sys_read(fd, text, sizeof(text) - 1);
		sys_close(fd);
	}
	if (n <= 0)
		return false;
	text[n] = '\0';
	*row = (unsigned)strtoul(text, &end, 10);
	return end != text && *row < COUNTER_FILE_DEVICES;
}

const struct counter_name *counter_name_find(const char *tree, const char *path,
					     unsigned *row)
{
	static const char class[] = "/infiniband/", port[] = "/ports/1/";
	const char *name = strstr(path, class), *file;
	char wanted[64];
	size_t len;

	if (!name)
		return NULL;
	name += strlen(class);
	len = strcspn(name, "/");
	file = name + len + strlen(port);
	if (strncmp(name + len, port, strlen(port)) != 0)
		return NULL;
	for (unsigned i = 0; i < counter_names_n; i++) {
		const struct counter_name *f = &counter_names[i];

		snprintf(wanted, sizeof(wanted), "%s/%s",
			 f->hw ? "hw_counters" : "counters", f->name);
		if (!strcmp(file, wanted))
			return row_of(tree, name, len, row) ? f : NULL;
	}
	return NULL;
}

/* All that live have added what they have, as of some ms ago. */
static void ask_for_sums(const char *dir)
{
	static _Atomic uint64_t asked_ns;
	const uint64_t now = sys_now_ns(), last = atomic_load(&asked_ns);

	if (last && now - last < COUNTER_FILE_AGE_MS * 1000000u)
		return;
	stat_ask_sums(dir);
	atomic_store(&asked_ns, sys_now_ns());
}

/* Which of a port's counters it is, or COUNTER_PORT_N. */
static enum counter_port port_counter(const struct counter_name *f)
{
	static const char *const names[COUNTER_PORT_N] = {
		[COUNTER_XMIT_DATA] = "port_xmit_data",
		[COUNTER_RCV_DATA] = "port_rcv_data",
		[COUNTER_XMIT_PKTS] = "port_xmit_packets",
		[COUNTER_RCV_PKTS] = "port_rcv_packets",
	};
	int i = 0;

	while (i < COUNTER_PORT_N && strcmp(f->name, names[i]) != 0)
		i++;
	return (enum counter_port)i;
}

static uint64_t value_in(struct counter_file *s, const struct counter_name *f,
			 unsigned row)
{
	const enum counter_port p = port_counter(f);
	uint64_t sum = 0, off = 0;

	for (unsigned i = 0; i < f->count; i++)
		sum += atomic_load_explicit(&s->n[row][f->of[i]],
					    memory_order_relaxed);
	sum >>= f->shift;
	if (p < COUNTER_PORT_N)
		off = atomic_load_explicit(&s->off[row][p],
					   memory_order_relaxed);
	return sum > off ? sum - off : 0;
}

uint64_t counter_name_value(const struct counter_name *f, unsigned row,
			    const char *tree, const char *dir)
{
	struct counter_file *s;
	uint64_t value;

	ask_for_sums(dir);
	s = sums_map(tree, O_RDONLY, PROT_READ);
	if (!s)
		return 0;
	value = value_in(s, f, row);
	counter_file_close(s);
	return value;
}

void counter_port_get(unsigned row, const char *tree, const char *dir,
		      uint64_t n[COUNTER_PORT_N])
{
	struct counter_file *s;
	enum counter_port p;

	memset(n, 0, COUNTER_PORT_N * sizeof(n[0]));
	ask_for_sums(dir);
	s = sums_map(tree, O_RDONLY, PROT_READ);
	if (!s)
		return;
	for (unsigned i = 0; i < counter_names_n; i++) {
		p = port_counter(&counter_names[i]);
		if (p < COUNTER_PORT_N)
			n[p] = value_in(s, &counter_names[i], row);
	}
	counter_file_close(s);
}

int counter_port_reset(unsigned row, const char *tree,
		       const uint64_t more[COUNTER_PORT_N])
{
	struct counter_file *s = counter_file_open(tree);

	if (!s)
		return -EIO;
	for (int i = 0; i < COUNTER_PORT_N; i++)
		atomic_fetch_add_explicit(&s->off[row][i], more[i],
					  memory_order_relaxed);
	counter_file_close(s);
	return 0;
}
