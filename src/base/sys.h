/*
 * sys.h - system calls that are not cancellation points
 *
 * Nothing below the two ABI libraries calls a cancellation point. A cancelled
 * thread (pthread_cancel(3)) ends in the next libc function that is one, as are
 * most that make a system call: read, write, close, sendmsg, nanosleep,
 * getrandom. A lock that it held would stay locked forever. The functions here
 * make the same calls through syscall(2), which is not a cancellation point.
 * sys_strerror() takes no lock, either, while another thread may fork.
 * Streams are opened with "c" in their mode, see fopen(3), and messages go
 * through say(). A test checks what the library imports.
 */
#ifndef SOFTHCA_BASE_SYS_H
#define SOFTHCA_BASE_SYS_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The calls whose times have 64 bits even where long has 32. */
#ifdef SYS_ppoll_time64
#define SYS_PPOLL SYS_ppoll_time64
#define SYS_NANOSLEEP SYS_clock_nanosleep_time64
#define SYS_FUTEX SYS_futex_time64
#else
#define SYS_PPOLL SYS_ppoll
#define SYS_NANOSLEEP SYS_clock_nanosleep
#define SYS_FUTEX SYS_futex
#endif

struct sys_time {
	int64_t sec, nsec;
};

/* CLOCK_MONOTONIC, as the kernel says it: for who has no clock of the engine's
 * (os/config.h). */
static inline uint64_t sys_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* CLOCK_REALTIME, which hosts have in common, more or less. */
static inline uint64_t sys_real_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/*
 * strerror(3) in English. That one looks for a translation, under a lock of the C
 * library's that the child of a fork() keeps if a thread has it then: setlocale(3)
 * would wait there for ever.
 */
static inline const char *sys_strerror(int err)
{
	const char *text = strerrordesc_np(err);

	return text ? text : "Unknown error";
}

static inline ssize_t sys_read(int fd, void *buf, size_t len)
{
	return syscall(SYS_read, fd, buf, len);
}

/* EAGAIN if it would block; before Linux 5.8 an error for an eventfd. */
static inline ssize_t sys_read_nowait(int fd, void *buf, size_t len)
{
	const struct iovec v = { buf, len };

	return syscall(SYS_preadv2, fd, &v, 1ul, -1l, -1l, RWF_NOWAIT);
}

static inline ssize_t sys_write(int fd, const void *buf, size_t len)
{
	return syscall(SYS_write, fd, buf, len);
}

static inline ssize_t sys_pread(int fd, void *buf, size_t len, uint64_t at)
{
	return syscall(SYS_pread64, fd, buf, len, at);
}

static inline ssize_t sys_pwrite(int fd, const void *buf, size_t len,
				 uint64_t at)
{
	return syscall(SYS_pwrite64, fd, buf, len, at);
}

static inline int sys_openat(int at, const char *path, int flags, mode_t mode)
{
#ifdef __O_LARGEFILE
	flags |= __O_LARGEFILE;
#endif
	return (int)syscall(SYS_openat, at, path, flags, mode);
}

static inline int sys_open(const char *path, int flags, mode_t mode)
{
	return sys_openat(AT_FDCWD, path, flags, mode);
}

/*
 * 0, or -EFBIG if no file of this process may have so many bytes (ulimit -f):
 * to extend one that far ends the program, as the kernel sends it SIGXFSZ.
 */
static inline int sys_file_limit(uint64_t size)
{
	struct rlimit most;

	if (getrlimit(RLIMIT_FSIZE, &most) || most.rlim_cur >= size)
		return 0;
	return -EFBIG;
}

static inline int sys_close(int fd)
{
#ifdef __SANITIZE_THREAD__
	/* TSan takes a number for the same open file until it sees it closed. */
	int err, old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	err = close(fd);
	pthread_setcancelstate(old, NULL);
	return err;
#else
	return (int)syscall(SYS_close, fd);
#endif
}

static inline int sys_accept(int fd, int flags)
{
	return (int)syscall(SYS_accept4, fd, NULL, NULL, flags);
}

static inline ssize_t sys_sendmsg(int fd, const struct msghdr *m, int flags)
{
	return syscall(SYS_sendmsg, fd, m, flags);
}

static inline ssize_t sys_recvmsg(int fd, struct msghdr *m, int flags)
{
	return syscall(SYS_recvmsg, fd, m, flags);
}

static inline ssize_t sys_sendto(int fd, const void *buf, size_t len, int flags,
				 const struct sockaddr *to, socklen_t tolen)
{
	return syscall(SYS_sendto, fd, buf, len, flags, to, tolen);
}

static inline ssize_t sys_recvfrom(int fd, void *buf, size_t len, int flags,
				   struct sockaddr *from, socklen_t *fromlen)
{
	return syscall(SYS_recvfrom, fd, buf, len, flags, from, fromlen);
}

/* Receives what is queued, at most n messages; does not wait. */
static inline int sys_recvmmsg(int fd, struct mmsghdr *m, unsigned n)
{
	return (int)syscall(SYS_recvmmsg, fd, m, n, MSG_DONTWAIT, NULL);
}

/* Those that there is room for now; does not wait. */
static inline int sys_sendmmsg(int fd, struct mmsghdr *m, unsigned n)
{
	return (int)syscall(SYS_sendmmsg, fd, m, n,
			    MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Those that are ready now; does not wait. */
static inline int sys_epoll_wait(int fd, struct epoll_event *ev, int max)
{
#ifdef __SANITIZE_THREAD__
	/* TSan sees only here that another thread's epoll_ctl() came before. */
	int n, old;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	n = epoll_wait(fd, ev, max, 0);
	pthread_setcancelstate(old, NULL);
	return n;
#else
	return (int)syscall(SYS_epoll_pwait, fd, ev, max, 0, NULL, 0);
#endif
}

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2                                                       \
	441 /* on all machines; headers before Linux 5.11 lack it */
#endif

/* Until t has passed, or for ever. ENOSYS before Linux 5.11. */
static inline int sys_epoll_wait_ns(int fd, struct epoll_event *ev, int max,
				    const struct sys_time *t)
{
	return (int)syscall(SYS_epoll_pwait2, fd, ev, max, t, NULL, 0);
}

static inline int sys_poll(struct pollfd *p, unsigned n, int ms)
{
	const struct sys_time t = { ms / 1000, ms % 1000 * 1000000l };

	return (int)syscall(SYS_PPOLL, p, n, ms < 0 ? NULL : &t, NULL, 0);
}

static inline void sys_sleep(uint64_t ns)
{
	const struct sys_time t = { (int64_t)(ns / 1000000000),
				    (int64_t)(ns % 1000000000) };

	/* A signal may end the sleep early. */
	syscall(SYS_NANOSLEEP, CLOCK_MONOTONIC, 0, &t, NULL);
}

/*
 * The exception: a call in which a thread waits for an event and may be
 * cancelled. It holds no lock, and has pushed a cleanup handler that undoes
 * what it is in the middle of.
 */
static inline long sys_wait(long nr, long a, long b, long c, long d, long f)
{
	int type, err;
	long ret;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &type);
	ret = syscall(nr, a, b, c, d, f);
	err = errno;
	pthread_setcanceltype(type, NULL);
	errno = err;
	return ret;
}

/* Removes one pending signal of set; all of set are blocked. */
static inline void sys_take_signal(const sigset_t *set)
{
	const struct sys_time none = { 0, 0 };

	syscall(SYS_rt_sigtimedwait, set, NULL, &none, _NSIG / 8);
}

/* Returns whether all of buf was filled. */
static inline int sys_random(void *buf, size_t len)
{
	return syscall(SYS_getrandom, buf, len, 0) == (long)len;
}

#endif
