/*
 * transfer.c - the calls that move data
 *
 * Each goes to the rsocket if there is one (rsp_data()), else to libc.
 */
#include "rspreload/rspreload.h"

#include <errno.h>
#include <limits.h>
#include <rdma/rsocket.h>
#include <stdlib.h>
#include <unistd.h>

/* What libc's checking variants do when the buffer is too small. */
static void check_size(size_t len, size_t size)
{
	if (len > size)
		abort();
}

ssize_t rsp_recvfrom(int fd, void *buf, size_t len, int flags,
		     struct sockaddr *addr, socklen_t *addr_len)
	RSP_EXPORT(recvfrom);
ssize_t rsp_recvfrom(int fd, void *buf, size_t len, int flags,
		     struct sockaddr *addr, socklen_t *addr_len)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rrecvfrom(f->rfd, buf, len, flags, addr, addr_len) :
		   rsp_real()->recvfrom(fd, buf, len, flags, addr, addr_len);
}

ssize_t rsp_recv(int fd, void *buf, size_t len, int flags) RSP_EXPORT(recv);
ssize_t rsp_recv(int fd, void *buf, size_t len, int flags)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rrecv(f->rfd, buf, len, flags) :
		   rsp_real()->recv(fd, buf, len, flags);
}

ssize_t rsp_read(int fd, void *buf, size_t len) RSP_EXPORT(read);
ssize_t rsp_read(int fd, void *buf, size_t len)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rread(f->rfd, buf, len) : rsp_real()->read(fd, buf, len);
}

ssize_t rsp_read_chk(int fd, void *buf, size_t len, size_t size)
	RSP_EXPORT(__read_chk);
ssize_t rsp_read_chk(int fd, void *buf, size_t len, size_t size)
{
	check_size(len, size);
	return rsp_read(fd, buf, len);
}

ssize_t rsp_recv_chk(int fd, void *buf, size_t len, size_t size, int flags)
	RSP_EXPORT(__recv_chk);
ssize_t rsp_recv_chk(int fd, void *buf, size_t len, size_t size, int flags)
{
	check_size(len, size);
	return rsp_recv(fd, buf, len, flags);
}

ssize_t rsp_recvfrom_chk(int fd, void *buf, size_t len, size_t size, int flags,
			 struct sockaddr *addr, socklen_t *addr_len)
	RSP_EXPORT(__recvfrom_chk);
ssize_t rsp_recvfrom_chk(int fd, void *buf, size_t len, size_t size, int flags,
			 struct sockaddr *addr, socklen_t *addr_len)
{
	check_size(len, size);
	return rsp_recvfrom(fd, buf, len, flags, addr, addr_len);
}

ssize_t rsp_readv(int fd, const struct iovec *iov, int n) RSP_EXPORT(readv);
ssize_t rsp_readv(int fd, const struct iovec *iov, int n)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rreadv(f->rfd, iov, n) : rsp_real()->readv(fd, iov, n);
}

ssize_t rsp_recvmsg(int fd, struct msghdr *msg, int flags) RSP_EXPORT(recvmsg);
ssize_t rsp_recvmsg(int fd, struct msghdr *msg, int flags)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rrecvmsg(f->rfd, msg, flags) :
		   rsp_real()->recvmsg(fd, msg, flags);
}

int rsp_recvmmsg(int fd, struct mmsghdr *msgs, unsigned n, int flags,
		 struct timespec *timeout) RSP_EXPORT(recvmmsg);
int rsp_recvmmsg(int fd, struct mmsghdr *msgs, unsigned n, int flags,
		 struct timespec *timeout)
{
	struct rsp_fd *f = rsp_data(fd);
	unsigned i;
	ssize_t ret;

	if (!f)
		return rsp_real()->recvmmsg(fd, msgs, n, flags, timeout);
	/*
	 * The timeout applies between messages, and only the first one waits.
	 */
	for (i = 0; i < n && i < INT_MAX; i++) {
		ret = rrecvmsg(f->rfd, &msgs[i].msg_hdr,
			       i ? flags | MSG_DONTWAIT : flags);
		if (ret < 0)
			return i ? (int)i : -1;
		msgs[i].msg_len = (unsigned)ret;
	}
	return (int)i;
}

ssize_t rsp_send(int fd, const void *buf, size_t len, int flags)
	RSP_EXPORT(send);
ssize_t rsp_send(int fd, const void *buf, size_t len, int flags)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rsend(f->rfd, buf, len, flags) :
		   rsp_real()->send(fd, buf, len, flags);
}

/* Linux ignores the address of a connected stream. */
static bool ignores_address(const struct rsp_fd *f)
{
	return f->type == SOCK_STREAM;
}

ssize_t rsp_sendto(int fd, const void *buf, size_t len, int flags,
		   const struct sockaddr *addr, socklen_t addr_len)
	RSP_EXPORT(sendto);
ssize_t rsp_sendto(int fd, const void *buf, size_t len, int flags,
		   const struct sockaddr *addr, socklen_t addr_len)
{
	struct rsp_fd *f = rsp_data(fd);

	if (!f)
		return rsp_real()->sendto(fd, buf, len, flags, addr, addr_len);
	if (ignores_address(f))
		return rsend(f->rfd, buf, len, flags);
	return rsendto(f->rfd, buf, len, flags, addr, addr_len);
}

ssize_t rsp_write(int fd, const void *buf, size_t len) RSP_EXPORT(write);
ssize_t rsp_write(int fd, const void *buf, size_t len)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rwrite(f->rfd, buf, len) : rsp_real()->write(fd, buf, len);
}

ssize_t rsp_writev(int fd, const struct iovec *iov, int n) RSP_EXPORT(writev);
ssize_t rsp_writev(int fd, const struct iovec *iov, int n)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? rwritev(f->rfd, iov, n) : rsp_real()->writev(fd, iov, n);
}

static ssize_t send_msg(struct rsp_fd *f, const struct msghdr *msg, int flags)
{
	struct msghdr copy = *msg;

	if (ignores_address(f)) {
		copy.msg_name = NULL;
		copy.msg_namelen = 0;
	}
	return rsendmsg(f->rfd, &copy, flags);
}

ssize_t rsp_sendmsg(int fd, const struct msghdr *msg, int flags)
	RSP_EXPORT(sendmsg);
ssize_t rsp_sendmsg(int fd, const struct msghdr *msg, int flags)
{
	struct rsp_fd *f = rsp_data(fd);

	return f ? send_msg(f, msg, flags) :
		   rsp_real()->sendmsg(fd, msg, flags);
}

int rsp_sendmmsg(int fd, struct mmsghdr *msgs, unsigned n, int flags)
	RSP_EXPORT(sendmmsg);
int rsp_sendmmsg(int fd, struct mmsghdr *msgs, unsigned n, int flags)
{
	struct rsp_fd *f = rsp_data(fd);
	unsigned i;
	ssize_t ret;

	if (!f)
		return rsp_real()->sendmmsg(fd, msgs, n, flags);
	for (i = 0; i < n && i < INT_MAX; i++) {
		ret = send_msg(f, &msgs[i].msg_hdr, flags);
		if (ret < 0)
			return i ? (int)i : -1;
		msgs[i].msg_len = (unsigned)ret;
	}
	return (int)i;
}

#define FILE_PART 65536

/* Reads where sendfile(2) would, and leaves the position where it would. */
static ssize_t send_file(struct rsp_fd *f, int in, off64_t *offset,
			 size_t count)
{
	off64_t pos = offset ? *offset : lseek64(in, 0, SEEK_CUR);
	size_t done = 0, part;
	ssize_t n = 0, sent;
	char *buf;

	if (pos < 0)
		return -1;
	buf = malloc(FILE_PART);
	if (!buf)
		return -1;
	while (done < count) {
		part = count - done < FILE_PART ? count - done : FILE_PART;
		n = pread64(in, buf, part, pos);
		if (n <= 0)
			break;
		sent = rsend(f->rfd, buf, (size_t)n, 0);
		if (sent < 0) {
			n = -1;
			break;
		}
		pos += sent;
		done += (size_t)sent;
		if (sent < n)
			break;
	}
	free(buf);
	if (offset)
		*offset = pos;
	else
		lseek64(in, pos, SEEK_SET);
	return done ? (ssize_t)done : n;
}

ssize_t rsp_sendfile64(int out, int in, off64_t *offset, size_t count)
	RSP_EXPORT(sendfile64);
ssize_t rsp_sendfile64(int out, int in, off64_t *offset, size_t count)
{
	struct rsp_fd *f = rsp_data(out);

	return f ? send_file(f, in, offset, count) :
		   rsp_real()->sendfile64(out, in, offset, count);
}

/* The kernel cannot splice an rsocket: after EINVAL, programs copy. */
ssize_t rsp_splice(int in, off64_t *in_off, int out, off64_t *out_off,
		   size_t len, unsigned flags) RSP_EXPORT(splice);
ssize_t rsp_splice(int in, off64_t *in_off, int out, off64_t *out_off,
		   size_t len, unsigned flags)
{
	if (!rsp_data(in) && !rsp_data(out))
		return rsp_real()->splice(in, in_off, out, out_off, len, flags);
	errno = EINVAL;
	return -1;
}

ssize_t rsp_sendfile(int out, int in, off_t *offset, size_t count)
	RSP_EXPORT(sendfile);
ssize_t rsp_sendfile(int out, int in, off_t *offset, size_t count)
{
	off64_t off = offset ? *offset : 0;
	ssize_t n = rsp_sendfile64(out, in, offset ? &off : NULL, count);

	if (offset)
		*offset = (off_t)off;
	return n;
}
