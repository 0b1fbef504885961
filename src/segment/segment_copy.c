/*
 * segment_copy.c - copying from and to the memory of another process
 *
 * By the kernel (process_vm_readv(2)), which checks that we are allowed to, and
 * makes what is not mapped an error. A pid alone says little about who it is,
 * so before the first copy a number is read at an address, both from the
 * process's segment.
 */
#include "segment_internal.h"

#include "base/bytes.h"
#include "base/sys.h"
#include "os/config.h"

#include <errno.h>
#include <limits.h>

#define ASK_NS 1000000000 /* and not trust shared memory alone for longer */
#define PIECES 64 /* at a time, when one call does not do it */

static ssize_t copy_once(pid_t pid, const struct iovec *local, size_t n,
			 const struct iovec *remote, size_t m, bool out)
{
	ssize_t done =
		syscall(out ? SYS_process_vm_writev : SYS_process_vm_readv,
			(long)pid, local, n, remote, m, 0ul);

	return done < 0 ? -errno : done;
}

static bool copy_probe(struct segment_peer *p)
{
	uint64_t value = ~p->probe_value;
	const struct iovec local = { &value, sizeof(value) };
	const struct iovec remote = { (void *)(uintptr_t)p->probe_addr,
				      sizeof(value) };

	if ((p->flags | p->segment->head->flags) & SEGMENT_NO_COPY ||
	    p->pid <= 0)
		return false;
	return copy_once(p->pid, &local, 1, &remote, 1, false) ==
		       (ssize_t)sizeof(value) &&
	       value == p->probe_value;
}

bool segment_can_copy(struct segment_peer *p)
{
	int can = atomic_load_explicit(&p->can_copy, memory_order_relaxed);

	if (can < 0) {
		can = copy_probe(p);
		atomic_store_explicit(&p->can_copy, can, memory_order_relaxed);
	}
	return can;
}

static size_t iov_bytes(const struct iovec *v, size_t n)
{
	size_t sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += v[i].iov_len;
	return sum;
}

/* The pieces of v from byte skip on, at most PIECES; how many. */
static size_t iov_rest(const struct iovec *v, size_t n, size_t skip,
		       struct iovec out[PIECES])
{
	size_t k = 0;

	for (size_t i = 0; i < n && k < PIECES; i++) {
		if (skip >= v[i].iov_len) {
			skip -= v[i].iov_len;
			continue;
		}
		out[k].iov_base = (uint8_t *)v[i].iov_base + skip;
		out[k++].iov_len = v[i].iov_len - skip;
		skip = 0;
	}
	return k;
}

/* After one call has not done all: the number of pieces was too large for it,
 * or of bytes, or it has stopped at memory that is not there. */
static int copy_rest(pid_t pid, const struct iovec *local, size_t n,
		     const struct iovec *remote, size_t m, bool out,
		     size_t done, size_t len)
{
	struct iovec from[PIECES], to[PIECES];

	while (done < len) {
		size_t a = iov_rest(local, n, done, from);
		size_t b = iov_rest(remote, m, done, to);
		ssize_t k = copy_once(pid, from, a, to, b, out);

		if (k <= 0)
			return k ? (int)k : -EFAULT;
		done += (size_t)k;
	}
	return 0;
}

static int peer_copy(struct segment_peer *p, const struct iovec *local,
		     size_t n, const struct iovec *remote, size_t m, bool out,
		     uint64_t now_ns)
{
	size_t len = iov_bytes(local, n);
	ssize_t done = 0;
	int err = 0;

	/* A pid is not used that may have another process by now. */
	if (!segment_peer_alive(p, now_ns) ||
	    !segment_alive_within(p, now_ns, ASK_NS))
		return -ESRCH;
	if (!segment_can_copy(p))
		return -EPERM;
	if (n <= IOV_MAX && m <= IOV_MAX)
		done = copy_once(p->pid, local, n, remote, m, out);
	if (done < 0)
		err = (int)done;
	else if ((size_t)done < len)
		err = copy_rest(p->pid, local, n, remote, m, out, (size_t)done,
				len);
	if (!err || err == -EFAULT)
		return err;
	/* It has died, or its main thread alone has; or it has become another
	 * user's, or dumpable no more: none of which is seen at once. */
	if (!segment_alive_within(p, now_ns, 0))
		return -ESRCH;
	atomic_store(&p->can_copy, copy_probe(p));
	return -EPERM;
}

int segment_read(struct segment_peer *p, const struct iovec *local, size_t n,
		 const struct iovec *remote, size_t m, uint64_t now_ns)
{
	return peer_copy(p, local, n, remote, m, false, now_ns);
}

int segment_write(struct segment_peer *p, const struct iovec *local, size_t n,
		  const struct iovec *remote, size_t m, uint64_t now_ns)
{
	return peer_copy(p, local, n, remote, m, true, now_ns);
}
