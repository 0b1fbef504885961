/*
 * fabric_state.c - what has been set of a fabric's file, for all processes of this
 * user
 *
 * Each process has the fabric to itself. What one sets at the nodes of a file
 * (opensm, ibportstate) it writes down in a file of this user's own, beside the
 * trees of /sys (counters/sysfs_dir.h): one record for each Set that has changed
 * something, in the order in which they were carried out. Before a request the
 * others make the same changes. The file's name has a hash of the text, and when
 * that was changed last: who writes it anew, or touches it, has a fabric that
 * nobody has configured.
 *
 * Records are read without a lock: they are whole, or not there yet. Whoever sets
 * something has a lock from before it reads what others have set until its own is
 * written, so all fabrics have the same order. What a record says is checked as a
 * Set from the wire is. Who reads a file touches it now and then, so that it is not
 * removed as one that nobody uses; no lock is held meanwhile, which a process that
 * is saved (CRIU) could not take along.
 */
#include "umad_internal.h"

#include "base/bytes.h"
#include "base/fd_high.h"
#include "base/hash64.h"
#include "base/say.h"
#include "base/sys.h"
#include "counters/counter_file.h"
#include "counters/sysfs_dir.h"
#include "fabric/fabric.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define VERSION 1u
#define RECORD 80
#define RECORDS_MAX (1u << 18)
#define AT_ONCE 256 /* records that are read */
#define LOCK_WAIT_NS 1000000000u
#define TOUCH_SECONDS 3600 /* of a day (counters/sysfs_dir.c) */

static uint64_t name_of(const char *text, size_t len, const struct stat *st)
{
	uint64_t h = hash64(VERSION) ^ (uint64_t)st->st_mtim.tv_sec;

	h = hash64(h) ^ (uint64_t)st->st_mtim.tv_nsec;
	return hash64(hash64_bytes(h, text, len));
}

void fabric_state_init(struct fabric_state *s, const char *path,
		       const char *text, size_t len)
{
	char dir[PATH_MAX], why[512];
	struct stat st;
	int home;

	if (stat(path, &st))
		return;
	home = sysfs_dir_home(dir, why, sizeof(why));
	if (home < 0) {
		say("what is set of %s stays in this process: no place to "
		    "write to: %s",
		    path, why);
		return;
	}
	sys_close(home);
	if (snprintf(s->path, sizeof(s->path), "%s/" FABRIC_FILE_NAME "%016llx",
		     dir, (unsigned long long)name_of(text, len, &st)) >=
	    (int)sizeof(s->path))
		s->path[0] = '\0';
}

void fabric_state_close(struct fabric_state *s)
{
	if (s->fd >= 0)
		sys_close(s->fd);
	s->fd = -1;
}

/* It is there once something has been set. */
static bool is_open(struct fabric_state *s, int create)
{
	int fd;

	if (s->fd >= 0 || !s->path[0])
		return s->fd >= 0;
	fd = sys_open(s->path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | create, 0600);
	if (fd < 0)
		return false;
	s->fd = fd_high(fd);
	return true;
}

static void said_why(struct fabric_state *s, int err)
{
	if (!s->said)
		say("what is set of --fabric's file stays in this process: "
		    "%s: %s",
		    s->path, sys_strerror(err));
	s->said = true;
}

static void put_record(uint8_t r[RECORD], const struct fabric_set *s)
{
	memset(r, 0, RECORD);
	put_be64(r, s->node_guid);
	put_be32(r + 8, s->mod);
	put_be16(r + 12, s->attr);
	r[14] = s->port;
	memcpy(r + 16, s->data, sizeof(s->data));
}

static void get_record(const uint8_t r[RECORD], struct fabric_set *s)
{
	*s = (struct fabric_set){ .node_guid = get_be64(r),
				  .mod = get_be32(r + 8),
				  .attr = (uint16_t)get_be16(r + 12),
				  .port = r[14] };
	memcpy(s->data, r + 16, sizeof(s->data));
}

/* How many records there are, as far as they count. */
static uint64_t count(const struct fabric_state *s)
{
	struct stat st;

	if (fstat(s->fd, &st) || st.st_size <= 0)
		return 0;
	if (st.st_mtime < time(NULL) - TOUCH_SECONDS)
		futimens(s->fd, NULL);
	return min_u64((uint64_t)st.st_size / RECORD, RECORDS_MAX);
}

void fabric_state_read(struct fabric_state *s, struct fabric *f)
{
	static uint8_t buf[AT_ONCE * RECORD]; /* one at a time: sides_lock */
	struct fabric_set set;
	uint64_t end;
	ssize_t got;

	if (!is_open(s, 0))
		return;
	end = count(s);
	while (s->next < end) {
		got = pread(s->fd, buf,
			    min_u64(end - s->next, AT_ONCE) * RECORD,
			    (off_t)(s->next * RECORD));
		if (got < RECORD)
			return;
		for (ssize_t at = 0; at + RECORD <= got; at += RECORD) {
			get_record(buf + at, &set);
			fabric_apply(f, &set);
			s->next++;
		}
	}
}

/* Of the open file: others of this process are kept out by sides_lock. */
static int writer(const struct fabric_state *s, short type)
{
	struct flock fl = {
		.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1
	};

	return fcntl(s->fd, F_OFD_SETLK, &fl) ? -errno : 0;
}

bool fabric_state_lock(struct fabric_state *s, struct fabric *f)
{
	const uint64_t end = sys_now_ns() + LOCK_WAIT_NS;
	int err;

	if (!s->path[0])
		return false;
	if (!is_open(s, O_CREAT)) {
		said_why(s, errno);
		return false;
	}
	while ((err = writer(s, F_WRLCK)) && sys_now_ns() < end &&
	       (err == -EAGAIN || err == -EACCES))
		sys_sleep(200000);
	if (!err) {
		fabric_state_read(s, f);
		if (s->next == count(s))
			return true;
		err = -EIO;
		fabric_state_unlock(s);
	}
	said_why(s, -err);
	return false;
}

void fabric_state_unlock(struct fabric_state *s)
{
	writer(s, F_UNLCK);
}

void fabric_state_add(struct fabric_state *s, const struct fabric_set *set)
{
	uint8_t r[RECORD];
	ssize_t put = -1;

	/* What a process that was killed had not written in full is overwritten. */
	put_record(r, set);
	errno = EFBIG;
	if (s->next < RECORDS_MAX)
		put = pwrite(s->fd, r, sizeof(r), (off_t)(s->next * RECORD));
	if (put == RECORD) {
		s->next++;
		return;
	}
	said_why(s, put < 0 ? errno : ENOSPC);
}
