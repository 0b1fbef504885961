/*
 * shim.c - shows a program /sys/class/infiniband and /dev/infiniband, and the
 * PCI functions that these lead to
 *
 * Some clients bypass libibverbs and read the kernel's RDMA files: UCX uses no
 * device without a character device /dev/infiniband/<name>, others read GID
 * types or list interfaces. "softhca run" has a small tree of such files written
 * (src/verbs/sysfs.c) and preloads this library, which redirects the paths below
 * some prefixes into $SOFTHCA_SYSFS; where that is not set, our libsofthca writes
 * it when it is first needed. Those of devices of the machine are looked for there
 * first, and below /sys where the tree has them not. Everything else passes through
 * after one comparison. realpath(3) names what it finds in the tree as the kernel
 * would. Counters of the port have a value of their own each time they are
 * opened, or read from their beginning (counters.c).
 *
 * The preload reaches every child of the program, so nothing happens until a
 * path matches: no thread, no allocation. The functions that these hide are looked
 * up at their first use, read(2) at once: that may be in a signal handler, where
 * nothing can be looked up.
 *
 * Limits: relative paths are not redirected; ".." does not lead out of the tree
 * (/sys/class/infiniband/../net does not exist); a listing of /sys/class or
 * /dev does not name our directories. Nor are functions redirected that no
 * program is known to use on these files: nftw(3), fts(3) of the C library,
 * freopen(3), statfs(2), inotify(7), system calls made directly.
 */
#include "counters.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Longer paths are not redirected. Small, since the buffer is on the caller's
 * stack, which may be a signal handler's. */
#define REDIRECTED_MAX 512

/* The tree mirrors the root directory, so a redirected path is the tree's name
 * followed by the path. */
static const char *const prefixes[] = {
	"/sys/class/infiniband",
	"/sys/class/infiniband_verbs",
	"/sys/class/infiniband_mad",
	"/dev/infiniband",
};

static bool below_prefix(const char *path)
{
	size_t i, len;

	for (i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
		len = strlen(prefixes[i]);
		if (!strncmp(path, prefixes[i], len) &&
		    (path[len] == '\0' || path[len] == '/'))
			return true;
	}
	return false;
}

static bool begins(const char *path, const char *with)
{
	return !strncmp(path, with, strlen(with));
}

/* Whether a path ends "net/IF/device", or goes on from there. */
static bool is_netdev_device(const char *path)
{
	static const char device[] = "/device";
	const char *net = path, *end;

	while ((net = strstr(net, "/net/"))) {
		end = strchr(net + 5, '/');
		if (end && begins(end, device) &&
		    (!end[strlen(device)] || end[strlen(device)] == '/'))
			return true;
		net++;
	}
	return false;
}

/* What the machine has, too: its PCI functions, and how interfaces lead there. */
static bool may_be_ours(const char *path)
{
	return begins(path, "/sys/") &&
	       (begins(path, "/sys/devices/pci") ||
		begins(path, "/sys/bus/pci/devices/") ||
		((begins(path, "/sys/class/net/") ||
		  begins(path, "/sys/devices/")) &&
		 is_netdev_device(path)));
}

/* The definition of name that is found from where, remembered in *slot. */
static void *found(_Atomic(void *) *slot, void *where, const char *name)
{
	void *fn = atomic_load_explicit(slot, memory_order_relaxed);

	if (!fn) {
		fn = dlsym(where, name);
		atomic_store_explicit(slot, fn, memory_order_relaxed);
	}
	return fn;
}

/* The one that a function of that name here hides. */
static void *hidden(_Atomic(void *) *slot, const char *name)
{
	return found(slot, RTLD_NEXT, name);
}

/* By this libsofthca knows that programs see its counters. */
void softhca_shim(void);
void softhca_shim(void)
{
}

const char *shim_root(void)
{
	static _Atomic(void *) slot;
	const char *tree = secure_getenv("SOFTHCA_SYSFS");
	const char *(*ours)(void);

	/* A shell may outlive the files that it was told of
	 * (counters/sysfs_dir.c). */
	if (tree && (!*tree || !access(tree, F_OK)))
		return tree;
	ours = (const char *(*)(void))found(&slot, RTLD_DEFAULT,
					    "shca_sysfs_root");
	return ours ? ours() : tree;
}

/* As it may be in a signal handler, without the C library's. False: too long. */
static bool join(char buf[REDIRECTED_MAX], const char *tree, const char *path)
{
	const size_t tree_len = strlen(tree), len = strlen(path);

	if (tree_len + len >= REDIRECTED_MAX)
		return false;
	memcpy(buf, tree, tree_len);
	memcpy(buf + tree_len, path, len + 1);
	return true;
}

static bool is_there(const char *path)
{
	const int err = errno;
	const bool there = !syscall(SYS_faccessat, AT_FDCWD, path, F_OK);

	errno = err;
	return there;
}

/*
 * Returns the redirected path, in buf, or path itself. Kept out of line because
 * the C library declares its path arguments never NULL, although the kernel
 * returns EFAULT: inlined, the test for NULL would be optimised away.
 */
static __attribute__((noinline)) const char *redirect(const char *path,
						      char buf[REDIRECTED_MAX])
{
	const char *tree;
	bool all;

	if (!path || path[0] != '/' || (path[1] != 's' && path[1] != 'd'))
		return path;
	all = below_prefix(path);
	if (!all && !may_be_ours(path))
		return path;
	tree = shim_root();
	if (!tree || tree[0] != '/')
		return path;
	if (!join(buf, tree, path))
		return path;
	/* What the machine has stays, but for an interface's device. */
	if (!all &&
	    (!is_there(buf) || (!is_netdev_device(path) && is_there(path))))
		return path;
	return buf;
}

/* What realpath(3) has found, as it would be without the tree. */
static char *unredirect(char *path)
{
	const char *tree = path ? shim_root() : NULL;
	const size_t len = tree ? strlen(tree) : 0;

	if (len && !strncmp(path, tree, len) &&
	    !strncmp(path + len, "/sys/", 5))
		memmove(path, path + len, strlen(path + len) + 1);
	return path;
}

/*
 * Defines name, which redirects the argument called path and calls the function
 * that it hides. Where the C library lacks that function (musl has no __xstat)
 * the call fails instead of jumping to address 0.
 */
#define SHIM(type, failure, name, params, args)                                \
	type name params;                                                      \
	type name params                                                       \
	{                                                                      \
		static _Atomic(void *) slot;                                   \
		char buf[REDIRECTED_MAX];                                      \
		type(*fn) params = (type(*) params)hidden(&slot, #name);       \
                                                                               \
		if (!fn) {                                                     \
			errno = ENOSYS;                                        \
			return failure;                                        \
		}                                                              \
		path = redirect(path, buf);                                    \
		return fn args;                                                \
	}

/*
 * The same for functions that open files, of which the counters have another
 * content each time; and whose mode is present only if flags say so.
 */
#define SHIM_OPEN(name, at, params, args)                                      \
	int name params;                                                       \
	int name params                                                        \
	{                                                                      \
		static _Atomic(void *) slot;                                   \
		char buf[REDIRECTED_MAX];                                      \
		int(*fn) params = (int(*) params)hidden(&slot, #name);         \
		mode_t mode = 0;                                               \
		va_list ap;                                                    \
		int fd;                                                        \
                                                                               \
		if (!fn) {                                                     \
			errno = ENOSYS;                                        \
			return -1;                                             \
		}                                                              \
		if ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE) {   \
			va_start(ap, flags);                                   \
			mode = va_arg(ap, mode_t);                             \
			va_end(ap);                                            \
		}                                                              \
		path = redirect(path, buf);                                    \
		if (counters_open(at, path, flags, &fd))                       \
			return fd;                                             \
		return fn args;                                                \
	}

#define SHIM_OPEN_2(name, at, params, args)                                    \
	int name params;                                                       \
	int name params                                                        \
	{                                                                      \
		static _Atomic(void *) slot;                                   \
		char buf[REDIRECTED_MAX];                                      \
		int(*fn) params = (int(*) params)hidden(&slot, #name);         \
		int fd;                                                        \
                                                                               \
		if (!fn) {                                                     \
			errno = ENOSYS;                                        \
			return -1;                                             \
		}                                                              \
		path = redirect(path, buf);                                    \
		if (counters_open(at, path, flags, &fd))                       \
			return fd;                                             \
		return fn args;                                                \
	}

/* What open(2) would be asked for, as far as it matters. */
static int mode_flags(const char *mode)
{
	return (mode[0] != 'r' || strchr(mode, '+') ? O_RDWR : O_RDONLY) |
	       (strchr(mode, 'e') ? O_CLOEXEC : 0);
}

static FILE *stream_of(int fd, const char *mode)
{
	FILE *f = fd < 0 ? NULL : fdopen(fd, mode);

	if (!f && fd >= 0)
		close(fd);
	return f;
}

#define SHIM_FOPEN(name)                                                       \
	FILE *name(const char *restrict path, const char *restrict mode)       \
	{                                                                      \
		static _Atomic(void *) slot;                                   \
		char buf[REDIRECTED_MAX];                                      \
		FILE *(*fn)(const char *, const char *) =                      \
			(FILE * (*)(const char *, const char *))               \
				hidden(&slot, #name);                          \
		int fd;                                                        \
                                                                               \
		if (!fn) {                                                     \
			errno = ENOSYS;                                        \
			return NULL;                                           \
		}                                                              \
		path = redirect(path, buf);                                    \
		if (counters_open(AT_FDCWD, path, mode_flags(mode), &fd))      \
			return stream_of(fd, mode);                            \
		return fn(path, mode);                                         \
	}

/* Those that find where links lead. */
#define SHIM_PATH(name, params, args)                                          \
	char *name params;                                                     \
	char *name params                                                      \
	{                                                                      \
		static _Atomic(void *) slot;                                   \
		char buf[REDIRECTED_MAX];                                      \
		char *(*fn)params = (char *(*)params)hidden(&slot, #name);     \
		const char *given = path;                                      \
                                                                               \
		if (!fn) {                                                     \
			errno = ENOSYS;                                        \
			return NULL;                                           \
		}                                                              \
		path = redirect(path, buf);                                    \
		return path == given ? fn args : unredirect(fn args);          \
	}

#define SHIM_READ(name, from_start, params, args)                              \
	ssize_t name params;                                                   \
	ssize_t name params                                                    \
	{                                                                      \
		static _Atomic(void *) slot;                                   \
		ssize_t(*fn) params = (ssize_t(*) params)hidden(&slot, #name); \
                                                                               \
		if (!fn) {                                                     \
			errno = ENOSYS;                                        \
			return -1;                                             \
		}                                                              \
		if (__builtin_expect(counters_any, 0))                         \
			counters_read(fd, from_start);                         \
		return fn args;                                                \
	}

/* clang-format off */
SHIM_OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
SHIM_OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
SHIM_OPEN(openat, dir, (int dir, const char *path, int flags, ...),
	  (dir, path, flags, mode))
SHIM_OPEN(openat64, dir, (int dir, const char *path, int flags, ...),
	  (dir, path, flags, mode))

/* What _FORTIFY_SOURCE makes of open() without a mode. */
SHIM_OPEN_2(__open_2, AT_FDCWD, (const char *path, int flags), (path, flags))
SHIM_OPEN_2(__open64_2, AT_FDCWD, (const char *path, int flags), (path, flags))
SHIM_OPEN_2(__openat_2, dir, (int dir, const char *path, int flags),
	    (dir, path, flags))
SHIM_OPEN_2(__openat64_2, dir, (int dir, const char *path, int flags),
	    (dir, path, flags))

SHIM_FOPEN(fopen)
SHIM_FOPEN(fopen64)

SHIM_READ(read, false, (int fd, void *buf, size_t size), (fd, buf, size))
SHIM_READ(__read_chk, false, (int fd, void *buf, size_t size, size_t max),
	  (fd, buf, size, max))
SHIM_READ(pread, at == 0, (int fd, void *buf, size_t size, off_t at),
	  (fd, buf, size, at))
SHIM_READ(pread64, at == 0, (int fd, void *buf, size_t size, off64_t at),
	  (fd, buf, size, at))
SHIM_READ(__pread_chk, at == 0,
	  (int fd, void *buf, size_t size, off_t at, size_t max),
	  (fd, buf, size, at, max))
SHIM_READ(__pread64_chk, at == 0,
	  (int fd, void *buf, size_t size, off64_t at, size_t max),
	  (fd, buf, size, at, max))
SHIM(DIR *, NULL, opendir, (const char *path), (path))
SHIM(int, -1, chdir, (const char *path), (path))

SHIM(int, -1, stat, (const char *restrict path, struct stat *restrict st),
     (path, st))
SHIM(int, -1, stat64, (const char *restrict path, struct stat64 *restrict st),
     (path, st))
SHIM(int, -1, lstat, (const char *restrict path, struct stat *restrict st),
     (path, st))
SHIM(int, -1, lstat64, (const char *restrict path, struct stat64 *restrict st),
     (path, st))
SHIM(int, -1, fstatat, (int dir, const char *restrict path,
     struct stat *restrict st, int flags), (dir, path, st, flags))
SHIM(int, -1, fstatat64, (int dir, const char *restrict path,
     struct stat64 *restrict st, int flags), (dir, path, st, flags))
SHIM(int, -1, statx, (int dir, const char *restrict path, int flags,
     unsigned int mask, struct statx *restrict st),
     (dir, path, flags, mask, st))

/* stat() and its like as programs older than glibc 2.33 call them. */
SHIM(int, -1, __xstat, (int ver, const char *path, struct stat *st),
     (ver, path, st))
SHIM(int, -1, __xstat64, (int ver, const char *path, struct stat64 *st),
     (ver, path, st))
SHIM(int, -1, __lxstat, (int ver, const char *path, struct stat *st),
     (ver, path, st))
SHIM(int, -1, __lxstat64, (int ver, const char *path, struct stat64 *st),
     (ver, path, st))
SHIM(int, -1, __fxstatat,
     (int ver, int dir, const char *path, struct stat *st, int flags),
     (ver, dir, path, st, flags))
SHIM(int, -1, __fxstatat64,
     (int ver, int dir, const char *path, struct stat64 *st, int flags),
     (ver, dir, path, st, flags))

SHIM(int, -1, access, (const char *path, int mode), (path, mode))
SHIM(int, -1, eaccess, (const char *path, int mode), (path, mode))
SHIM(int, -1, euidaccess, (const char *path, int mode), (path, mode))
SHIM(int, -1, faccessat, (int dir, const char *path, int mode, int flags),
     (dir, path, mode, flags))

SHIM_PATH(realpath, (const char *restrict path, char *restrict out),
	  (path, out))
SHIM_PATH(__realpath_chk, (const char *path, char *out, size_t size),
	  (path, out, size))
SHIM_PATH(canonicalize_file_name, (const char *path), (path))
SHIM(ssize_t, -1, readlink,
     (const char *restrict path, char *restrict out, size_t size),
     (path, out, size))
SHIM(ssize_t, -1, __readlink_chk,
     (const char *path, char *out, size_t size, size_t max),
     (path, out, size, max))
SHIM(ssize_t, -1, readlinkat,
     (int dir, const char *restrict path, char *restrict out, size_t size),
     (dir, path, out, size))
SHIM(ssize_t, -1, __readlinkat_chk,
     (int dir, const char *path, char *out, size_t size, size_t max),
     (dir, path, out, size, max))

SHIM(int, -1, scandir, (const char *restrict path,
     struct dirent ***restrict list, int (*want)(const struct dirent *),
     int (*order)(const struct dirent **, const struct dirent **)),
     (path, list, want, order))
SHIM(int, -1, scandir64, (const char *restrict path,
     struct dirent64 ***restrict list, int (*want)(const struct dirent64 *),
     int (*order)(const struct dirent64 **, const struct dirent64 **)),
     (path, list, want, order))

/* For ls -l. */
SHIM(ssize_t, -1, getxattr,
     (const char *path, const char *name, void *value, size_t size),
     (path, name, value, size))
SHIM(ssize_t, -1, lgetxattr,
     (const char *path, const char *name, void *value, size_t size),
     (path, name, value, size))
/* clang-format on */

/*
 * glob(3) reads directories inside the C library, past the functions above.
 * Given these functions it finds our files, under the names it was asked for.
 */
#ifdef GLOB_ALTDIRFUNC
static void *dir_open(const char *path)
{
	return opendir(path);
}

static void dir_close(void *dir)
{
	closedir(dir);
}

static struct dirent *dir_read(void *dir)
{
	return readdir(dir);
}

static struct dirent64 *dir_read64(void *dir)
{
	return readdir64(dir);
}

#define SHIM_GLOB(name, type, read_, stat_, lstat_)                            \
	int name(const char *pattern, int flags,                               \
		 int (*failed)(const char *path, int err), type *result)       \
	{                                                                      \
		static _Atomic(void *) slot;                                   \
		int (*fn)(const char *, int, int (*)(const char *, int),       \
			  type *);                                             \
                                                                               \
		fn = (int (*)(const char *, int, int (*)(const char *, int),   \
			      type *))hidden(&slot, #name);                    \
		if (!fn) {                                                     \
			errno = ENOSYS;                                        \
			return GLOB_ABORTED;                                   \
		}                                                              \
		if (!(flags & GLOB_ALTDIRFUNC) &&                              \
		    (below_prefix(pattern) || may_be_ours(pattern))) {         \
			flags |= GLOB_ALTDIRFUNC;                              \
			result->gl_opendir = dir_open;                         \
			result->gl_closedir = dir_close;                       \
			result->gl_readdir = read_;                            \
			result->gl_stat = stat_;                               \
			result->gl_lstat = lstat_;                             \
		}                                                              \
		return fn(pattern, flags, failed, result);                     \
	}

SHIM_GLOB(glob, glob_t, dir_read, stat, lstat)
SHIM_GLOB(glob64, glob64_t, dir_read64, stat64, lstat64)
#endif

static const char *const sonames[] = { "libibverbs.so.1", "librdmacm.so.1",
				       "libibumad.so.3" };

#define SONAMES (sizeof(sonames) / sizeof(sonames[0]))
#define LOADED 4

struct loaded {
	size_t n;
	struct {
		const char *soname;
		char path[PATH_MAX];
	} lib[LOADED];
};

/*
 * The loader holds a lock meanwhile, and another thread that loads a library
 * may have one that dladdr(3) takes: so names are copied, and looked at later.
 */
static int note_library(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct loaded *l = arg;
	const char *base =
		info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;

	(void)size;
	for (size_t i = 0; base && i < SONAMES && l->n < LOADED; i++) {
		if (strcmp(base + 1, sonames[i]) ||
		    strlen(info->dlpi_name) >= PATH_MAX)
			continue;
		l->lib[l->n].soname = sonames[i];
		strcpy(l->lib[l->n++].path, info->dlpi_name);
	}
	return 0;
}

/*
 * --explain: why a program has seen no device. A library of the system's that
 * was loaded by its path is what the loader gives, whatever LD_LIBRARY_PATH and
 * LD_PRELOAD say.
 */
__attribute__((destructor)) static void explain(void)
{
	static struct loaded loaded;
	const char *wanted = getenv("SOFTHCA_EXPLAIN"), *slash;
	char file[PATH_MAX], ours[PATH_MAX], path[PATH_MAX + 32];
	Dl_info here;

	if (!wanted || !*wanted || !strcmp(wanted, "0") ||
	    !dladdr((void *)(uintptr_t)&note_library, &here))
		return;
	slash = strrchr(here.dli_fname, '/');
	dl_iterate_phdr(note_library, &loaded);
	for (size_t i = 0; slash && i < loaded.n; i++) {
		snprintf(path, sizeof(path), "%.*s/%s",
			 (int)(slash - here.dli_fname), here.dli_fname,
			 loaded.lib[i].soname);
		if (realpath(loaded.lib[i].path, file) &&
		    realpath(path, ours) && strcmp(file, ours))
			fprintf(stderr,
				"softhca: process %d has loaded %s by its "
				"path, not softhca's: dlopen(\"%s\") would "
				"find softhca's\n",
				(int)getpid(), loaded.lib[i].path,
				loaded.lib[i].soname);
	}
}

__attribute__((constructor)) static void look_up_read(void)
{
	const int err = errno;
	char byte;

	if (read(-1, &byte, 1) < 0)
		errno = err;
}
