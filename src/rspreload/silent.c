/*
 * silent.c - hosts where nobody has answered by RDMA, known to all processes of
 * this user
 *
 * Where a firewall drops UDP port 4791 a process learns that by waiting, so
 * what one has learnt is in a file for a minute, one for each network namespace,
 * beside the counters (counters/counter_file.h). It is a table of entries with
 * checksums, which are read and written as a whole: what two have written at once
 * is not valid, and what does not make sense is as if it were not there. Without
 * the file a process knows what itself has learnt.
 */
#include "base/bytes.h"
#include "base/hash64.h"
#include "base/sys.h"
#include "counters/counter_file.h"
#include "os/owner.h"
#include "rspreload/rspreload.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SILENT_NS 60000000000ull
#define ENTRIES 64

struct entry {
	uint64_t until_ns; /* CLOCK_MONOTONIC */
	uint8_t addr[16];
	uint64_t scope;
	uint64_t sum;
};

/* Without the file. A child of fork() may find this locked for good: only tried. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct entry own[ENTRIES];

static uint64_t sum_of(const struct entry *e)
{
	const uint64_t part[] = { e->until_ns, get_be64(e->addr),
				  get_be64(e->addr + 8), e->scope };
	uint64_t sum = 0;

	for (size_t i = 0; i < ARRAY_SIZE(part); i++)
		sum = hash64(sum + part[i]);
	return sum;
}

/* The address alone: what is dropped is so for all ports. */
static struct entry key_of(const struct sockaddr_storage *dst)
{
	const struct sockaddr_in6 *in6 = (const void *)dst;
	const struct sockaddr_in *in = (const void *)dst;
	struct entry e = { 0 };

	if (dst->ss_family == AF_INET6) {
		memcpy(e.addr, &in6->sin6_addr, 16);
		e.scope = in6->sin6_scope_id;
	} else {
		memset(e.addr + 10, 0xff, 2);
		memcpy(e.addr + 12, &in->sin_addr, 4);
	}
	return e;
}

static bool valid(const struct entry *e, uint64_t now)
{
	return e->until_ns > now && e->until_ns <= now + SILENT_NS &&
	       e->sum == sum_of(e);
}

static bool same_host(const struct entry *a, const struct entry *b)
{
	return !memcmp(a->addr, b->addr, sizeof(a->addr)) &&
	       a->scope == b->scope;
}

static bool has(const struct entry *table, const struct entry *key,
		uint64_t now)
{
	for (size_t i = 0; i < ENTRIES; i++)
		if (same_host(&table[i], key) && valid(&table[i], now))
			return true;
	return false;
}

/* Where key goes: its own place, else that of the one that ends first. */
static size_t place_of(const struct entry *table, const struct entry *key,
		       uint64_t now)
{
	uint64_t first = UINT64_MAX, ends;
	size_t place = 0;

	for (size_t i = 0; i < ENTRIES; i++) {
		if (same_host(&table[i], key))
			return i;
		ends = valid(&table[i], now) ? table[i].until_ns : 0;
		if (ends < first) {
			first = ends;
			place = i;
		}
	}
	return place;
}

/* -1: there is none. */
static int open_table(int flags)
{
	const char *tree = secure_getenv("SOFTHCA_SYSFS");
	char path[PATH_MAX];
	struct stat st;
	int fd;

	if (!tree || tree[0] != '/' || stat("/proc/self/ns/net", &st) ||
	    snprintf(path, sizeof(path), "%s/../" SILENT_FILE_NAME "%llu", tree,
		     (unsigned long long)st.st_ino) >= (int)sizeof(path))
		return -1;
	fd = sys_open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	if (fd < 0)
		return -1;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_nlink == 1 &&
	    owner_private(fd, &st))
		return fd;
	sys_close(fd);
	return -1;
}

/* What is not there is zeros. */
static void read_table(int fd, struct entry table[ENTRIES])
{
	memset(table, 0, ENTRIES * sizeof(*table));
	if (sys_pread(fd, table, ENTRIES * sizeof(*table), 0) < 0)
		memset(table, 0, ENTRIES * sizeof(*table));
}

bool rsp_host_silent(const struct sockaddr_storage *dst)
{
	const struct entry key = key_of(dst);
	const uint64_t now = rsp_now_ns();
	const int saved = errno;
	struct entry table[ENTRIES];
	bool is = false;
	int fd;

	if (!pthread_mutex_trylock(&mutex)) {
		is = has(own, &key, now);
		pthread_mutex_unlock(&mutex);
	}
	if (!is && (fd = open_table(O_RDONLY)) >= 0) {
		read_table(fd, table);
		sys_close(fd);
		is = has(table, &key, now);
	}
	errno = saved;
	return is;
}

void rsp_host_is_silent(const struct sockaddr_storage *dst)
{
	const uint64_t now = rsp_now_ns();
	struct entry key = key_of(dst), table[ENTRIES];
	const int saved = errno;
	size_t i;
	int fd;

	key.until_ns = now + SILENT_NS;
	key.sum = sum_of(&key);
	if (!pthread_mutex_trylock(&mutex)) {
		own[place_of(own, &key, now)] = key;
		pthread_mutex_unlock(&mutex);
	}
	fd = open_table(O_RDWR | O_CREAT);
	if (fd >= 0) {
		read_table(fd, table);
		i = place_of(table, &key, now);
		if (!sys_file_limit(sizeof(table)))
			sys_pwrite(fd, &key, sizeof(key), i * sizeof(key));
		sys_close(fd);
	}
	errno = saved;
}
