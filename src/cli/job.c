/*
 * job.c - the options of run and env, and the environment they become
 *
 * The loader is configured in both ways that it offers. LD_LIBRARY_PATH also serves
 * programs that dlopen() the libraries, under either of their names;
 * LD_PRELOAD, with the libraries' absolute paths, also serves programs whose
 * DT_RPATH names the distribution's directory. Both name the same files, so one
 * copy is mapped. The preloaded libraries have their true sonames: with any
 * other, dlvsym() on a handle would find the distribution's library.
 */
#include "cli/job.h"
#include "check/options.h"
#include "cli/cli.h"
#include "fabric/fabric.h"
#include "faults/faults.h"
#include "net/rails.h"
#include "os/config.h"
#include "os/file.h"
#include "os/options.h"
#include "os/pci.h"
#include "trace/pcap.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define WITHOUT(...)
#define VARIABLE(field, type, reads, variable, ...) variable,
const char *const job_variables[] = {
	SOFTHCA_OPTIONS(VARIABLE, WITHOUT) "SOFTHCA_SYSFS",
	"LD_LIBRARY_PATH",
	"LD_PRELOAD",
	NULL,
};

struct job_option {
	const char *name, *variable;
	void (*set)(const struct job_option *o, const char *arg);
};

static bool sockets;

static bool is_set(const char *variable)
{
	const char *value = getenv(variable);

	return value && *value && strcmp(value, "0") != 0;
}

static bool infiniband_asked(void)
{
	return is_set("SOFTHCA_INFINIBAND");
}

static bool sockets_asked(void)
{
	return sockets;
}

/* Each takes every program's start some time. Those that load libibumad otherwise
 * get ours by LD_LIBRARY_PATH. */
static const struct {
	const char *soname;
	bool (*wanted)(void); /* NULL: always */
} preloads[] = {
	{ "libibverbs.so.1", NULL },
	{ "librdmacm.so.1", NULL },
	{ "libibumad.so.3", infiniband_asked },
	{ "libsofthca-shim.so", NULL },
	{ "librspreload.so.1", sockets_asked },
};

#define PRELOADS (sizeof(preloads) / sizeof(preloads[0]))

static bool is_wanted(size_t i)
{
	return !preloads[i].wanted || preloads[i].wanted();
}

static bool record_anew; /* --pcap was given */

static void bad_value(const char *fmt, ...)
	__attribute__((format(printf, 1, 2), noreturn));

static void bad_value(const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	cli_say("%s", text);
	exit(argp_err_exit_status);
}

static void set_variable(const char *name, const char *value)
{
	if (setenv(name, value, 1))
		bad_value("cannot set %s: %s", name, strerror(errno));
}

/* Appends " word" to the list in buf, as far as it fits and once. */
static void list_word(char *buf, size_t size, const char *word)
{
	size_t used = strlen(buf), len = strlen(word);
	const char *p = buf;

	while ((p = strstr(p, word))) {
		if ((p == buf || p[-1] == ' ') &&
		    (p[len] == ' ' || p[len] == '\0'))
			return;
		p += len;
	}
	if (used + len + 2 > size)
		return;
	snprintf(buf + used, size - used, "%s%s", used ? " " : "", word);
}

static bool address_text(const struct sockaddr *sa, char *text, size_t size)
{
	const struct sockaddr_in6 *in6;

	if (sa && sa->sa_family == AF_INET)
		return inet_ntop(AF_INET,
				 &((const struct sockaddr_in *)(const void *)sa)
					  ->sin_addr,
				 text, (socklen_t)size);
	if (!sa || sa->sa_family != AF_INET6)
		return false;
	in6 = (const struct sockaddr_in6 *)(const void *)sa;
	return inet_ntop(AF_INET6, &in6->sin6_addr, text, (socklen_t)size);
}

static void set_addr(const struct job_option *o, const char *arg)
{
	char want[INET6_ADDRSTRLEN], text[INET6_ADDRSTRLEN], all[512] = "";
	const char *scope = strchr(arg, '%');
	size_t len = scope ? (size_t)(scope - arg) : strlen(arg);
	struct ifaddrs *list, *a;
	struct in6_addr bin;
	bool found = false;
	int family = AF_INET;

	if (len < sizeof(want)) {
		memcpy(want, arg, len);
		want[len] = '\0';
	}
	if (len >= sizeof(want) ||
	    (inet_pton(family, want, &bin) != 1 &&
	     inet_pton(family = AF_INET6, want, &bin) != 1))
		bad_value("--addr %s: not an IP address, such as 10.0.0.1 or "
			  "fe80::1%%eth0",
			  arg);
	if (scope && !if_nametoindex(scope + 1))
		bad_value("--addr %s: no interface %s", arg, scope + 1);
	inet_ntop(family, &bin, want, sizeof(want));
	if (getifaddrs(&list))
		bad_value("cannot list the interfaces: %s", strerror(errno));
	for (a = list; a; a = a->ifa_next) {
		if (!(a->ifa_flags & IFF_UP) ||
		    !address_text(a->ifa_addr, text, sizeof(text)))
			continue;
		list_word(all, sizeof(all), text);
		if (!strcmp(text, want) &&
		    (!scope || !strcmp(scope + 1, a->ifa_name)))
			found = true;
		/* All of 127/8 is this host's; no list has it. */
		if (a->ifa_flags & IFF_LOOPBACK && family == AF_INET &&
		    !scope && !strncmp(want, "127.", 4))
			found = true;
	}
	freeifaddrs(list);
	if (!found)
		bad_value(
			"--addr %s: no interface that is up has this address; "
			"available: %s",
			arg, all);
	set_variable(o->variable, arg);
}

static void set_devices(const struct job_option *o, const char *arg)
{
	struct if_nameindex *list, *i;
	char copy[1024], all[512] = "", *name, *save = NULL;
	unsigned seen[512];
	size_t names = 0;

	if (strlen(arg) >= sizeof(copy))
		bad_value("--devices: too long");
	list = if_nameindex();
	for (i = list; i && i->if_name; i++)
		list_word(all, sizeof(all), i->if_name);
	if_freenameindex(list);
	strcpy(copy, arg);
	for (name = strtok_r(copy, ",", &save); name;
	     name = strtok_r(NULL, ",", &save)) {
		seen[names] = if_nametoindex(name);
		if (!seen[names])
			bad_value("--devices: no interface %s; available: %s",
				  name, all);
		for (size_t k = 0; k < names; k++)
			if (seen[k] == seen[names])
				bad_value("--devices: %s is named twice", name);
		names++;
	}
	if (!names)
		bad_value("--devices needs interfaces separated by commas; "
			  "available: %s",
			  all);
	set_variable(o->variable, arg);
}

/* What it has to be depends on other options: check_rails(). */
static void set_string(const struct job_option *o, const char *arg)
{
	if (!*arg)
		bad_value("--%s needs a value", o->name);
	set_variable(o->variable, arg);
}

/* As every process will. */
static int check_rails(void)
{
	const char *rails = getenv("SOFTHCA_RAILS");
	struct rail rail[RAILS_MAX];
	char reason[512];

	if (!rails || !*rails)
		return 0;
	if (rails_read(rails, getenv("SOFTHCA_DEVICES"), getenv("SOFTHCA_ADDR"),
		       rail, reason, sizeof(reason)) > 0)
		return 0;
	cli_say("--rails: %s", reason);
	return -EINVAL;
}

static void set_names(const struct job_option *o, const char *arg)
{
	if (!config_names_valid(arg))
		bad_value("--names=%s: a name with one %%d, such as mlx5_%%d, "
			  "of letters, digits, '_', '-' and '.' belongs here",
			  arg);
	set_variable(o->variable, arg);
}

static void set_list(const struct job_option *o, const char *arg,
		     const char *wrong)
{
	if (wrong)
		bad_value("--%s=%s: %s", o->name, arg, wrong);
	set_variable(o->variable, arg);
}

static void set_pci(const struct job_option *o, const char *arg)
{
	set_list(o, arg, pci_list_wrong(arg));
}

static void set_numa(const struct job_option *o, const char *arg)
{
	set_list(o, arg, numa_list_wrong(arg));
}

static void set_loss(const struct job_option *o, const char *arg)
{
	char *end, text[32];
	double loss;

	loss = strtod(arg, &end);
	if (*end == '%')
		end++;
	if (end == arg || *end || !(loss >= 0 && loss <= 100))
		bad_value("--loss %s: not a percentage from 0 to 100, such as "
			  "0.5",
			  arg);
	/* The variable has no exponents. */
	snprintf(text, sizeof(text), "%.12f", loss);
	for (end = text + strlen(text); end[-1] == '0'; end--)
		end[-1] = '\0';
	if (end[-1] == '.')
		end[-1] = '\0';
	set_variable(o->variable, text);
}

static void set_flag(const struct job_option *o, const char *arg)
{
	(void)arg;
	set_variable(o->variable, "1");
}

static void set_same_host(const struct job_option *o, const char *arg)
{
	if (strcmp(arg, "auto") && strcmp(arg, "copy") && strcmp(arg, "udp"))
		bad_value("--same-host %s: not one of auto, copy and udp", arg);
	set_variable(o->variable, arg);
}

static void set_explain(const struct job_option *o, const char *arg)
{
	if (arg && strcmp(arg, "full"))
		bad_value("--explain=%s: the only value is full", arg);
	set_variable(o->variable, arg ? arg : "1");
}

static void set_iwarp(const struct job_option *o, const char *arg)
{
	if (arg && strcmp(arg, "only") && strcmp(arg, "both") &&
	    strcmp(arg, "first"))
		bad_value("--iwarp=%s: not one of only (the default), both and "
			  "first",
			  arg);
	set_variable(o->variable, arg ? arg : "only");
}

static void set_infiniband(const struct job_option *o, const char *arg)
{
	if (arg && strcmp(arg, "only") && strcmp(arg, "both"))
		bad_value("--infiniband=%s: not one of only (the default) and "
			  "both",
			  arg);
	set_variable(o->variable, arg ? arg : "only");
}

/* What is done to packets is not done to TCP's. */
static void warn_iwarp(void)
{
	static const struct {
		const char *variable, *text;
	} none[] = {
		{ "SOFTHCA_LOSS", "--loss does not lose packets of iWARP: they "
				  "are TCP's (tc-netem(8))" },
		{ "SOFTHCA_FAULTS",
		  "of --faults' lines only fail and raise act on iWARP: its "
		  "packets are TCP's (tc-netem(8))" },
	};

	if (!is_set("SOFTHCA_IWARP"))
		return;
	for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		if (getenv(none[i].variable))
			cli_say("%s", none[i].text);
}

static void set_number(const struct job_option *o, const char *arg,
		       uint64_t max)
{
	unsigned long long n;
	char *end, text[32];

	errno = 0;
	n = strtoull(arg, &end, 0);
	if (end == arg || *end || errno || n > max || strchr(arg, '-'))
		bad_value("--%s %s: not a number up to %llu", o->name, arg,
			  (unsigned long long)max);
	snprintf(text, sizeof(text), "%llu", n);
	set_variable(o->variable, text);
}

static void set_u64(const struct job_option *o, const char *arg)
{
	set_number(o, arg, UINT64_MAX);
}

static void set_u32(const struct job_option *o, const char *arg)
{
	set_number(o, arg, UINT32_MAX);
}

/* As every process will. */
static void set_faults(const struct job_option *o, const char *arg)
{
	char full[PATH_MAX], why[1024];
	struct faults *f;

	if (!realpath(arg, full))
		bad_value("--faults %s: %s", arg, strerror(errno));
	f = faults_load(full, why, sizeof(why));
	if (!f)
		bad_value("--faults: %s", why);
	faults_free(f);
	set_variable(o->variable, full);
}

/* As every process will. A fabric is InfiniBand's. */
static void set_fabric(const struct job_option *o, const char *arg)
{
	char path[PATH_MAX], full[PATH_MAX], value[2 * PATH_MAX], why[1024];
	const char *node = file_and_word(arg, path);
	struct fabric *f = fabric_new();
	struct fabric_port port;
	size_t len;
	char *text;

	text = realpath(path, full) ?
		       file_read_all(full, FABRIC_TEXT_MAX, &len) :
		       NULL;
	if (!text || !f)
		bad_value("--fabric %s: %s", path, strerror(errno));
	if (fabric_read(f, path, text, len, why, sizeof(why)))
		bad_value("--fabric: %s", why);
	if (node && fabric_port_named(f, node, 0, &port))
		bad_value("--fabric: %s has no node %s: name one by its ID "
			  "(\"H-...\", \"S-...\") or its description",
			  path, node);
	free(text);
	fabric_free(f);
	snprintf(value, sizeof(value), "%s%s%s", full, node ? "@" : "",
		 node ? node : "");
	set_variable(o->variable, value);
	if (!infiniband_asked())
		set_variable("SOFTHCA_INFINIBAND", "only");
}

/* A file to write. Made absolute, since the program may change its directory. */
static void output_path(const char *option, const char *arg,
			char path[PATH_MAX])
{
	char dir[PATH_MAX], full[PATH_MAX];
	const char *base = strrchr(arg, '/');

	base = base ? base + 1 : arg;
	if (*arg == '-')
		bad_value("%s %s: not a file name; if it really begins "
			  "with a dash: %s ./%s",
			  option, arg, option, arg);
	if (!*base)
		bad_value("%s %s: give the name of a file, not of a directory",
			  option, arg);
	snprintf(dir, sizeof(dir), "%.*s", (int)(base - arg), arg);
	if (!realpath(*dir ? dir : ".", full))
		bad_value("%s %s: %s: %s", option, arg, *dir ? dir : ".",
			  strerror(errno));
	if (access(full, W_OK | X_OK))
		bad_value("%s %s: cannot write to %s: %s", option, arg, full,
			  strerror(errno));
	if (snprintf(path, PATH_MAX, "%s/%s", strcmp(full, "/") ? full : "",
		     base) >= PATH_MAX)
		bad_value("%s: the name is too long", option);
}

static void set_file(const struct job_option *o, const char *arg)
{
	char option[32], path[PATH_MAX];

	snprintf(option, sizeof(option), "--%s", o->name);
	output_path(option, arg, path);
	set_variable(o->variable, path);
}

/* What else it has to be, every process says that does not find it so. */
static void set_secret(const struct job_option *o, const char *arg)
{
	char full[PATH_MAX];

	if (!realpath(arg, full) || access(full, R_OK))
		bad_value("--migrate-secret %s: %s", arg, strerror(errno));
	set_variable(o->variable, full);
}

/* It may be a container's. */
static void set_rundir(const struct job_option *o, const char *arg)
{
	if (arg[0] != '/')
		bad_value("--rundir %s: not an absolute path", arg);
	set_variable(o->variable, arg);
}

static void set_pcap(const struct job_option *o, const char *arg)
{
	set_file(o, arg);
	record_anew = true;
}

/* As every process will. Of a file they get the path. */
static void set_check(const struct job_option *o, const char *arg)
{
	char path[PATH_MAX], text[2 * PATH_MAX];
	struct check_options c;
	const char *why = check_options(arg ? arg : "1", &c);

	if (why)
		bad_value("--check=%s: %s", arg, why);
	if (!c.json[0]) {
		set_variable(o->variable, arg ? arg : "1");
		return;
	}
	output_path("--check=json=FILE:", c.json, path);
	if (strchr(path, ','))
		bad_value("--check=%s: %s has a comma, which separates options",
			  arg, path);
	snprintf(text, sizeof(text), "json=%s%s", path,
		 c.leaks ? ",leaks" : "");
	if (c.exit)
		snprintf(text + strlen(text), sizeof(text) - strlen(text),
			 ",exit=%d", c.exit);
	set_variable(o->variable, text);
}

/*
 * Empties the file that the processes of this job will append to, unless a
 * process, perhaps the other end of the same transfer, still records there.
 */
static int restart_recording(void)
{
	const char *path = getenv("SOFTHCA_PCAP");
	struct stat st;
	int fd, err = 0;

	if (!record_anew || strstr(path, "%p"))
		return 0;
	/* The reader of a FIFO takes a writer that leaves for the end. */
	if (!stat(path, &st) && S_ISFIFO(st.st_mode))
		return 0;
	fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd >= 0)
		err = pcap_restart(fd);
	else if (errno != ENOENT)
		err = -errno;
	if (err)
		cli_say("--pcap: cannot write %s: %s", path, strerror(-err));
	if (fd >= 0)
		close(fd);
	return err;
}

/* Made here, so that a name that is wrong is an error at once. */
static void set_trace(const struct job_option *o, const char *arg)
{
	char full[PATH_MAX];
	struct stat st;

	if ((mkdir(arg, 0700) && errno != EEXIST) || !realpath(arg, full) ||
	    stat(full, &st))
		bad_value("--trace %s: %s", arg, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		bad_value("--trace %s: %s", arg, strerror(ENOTDIR));
	if (access(full, W_OK | X_OK))
		bad_value("--trace %s: %s", arg, strerror(errno));
	set_variable(o->variable, full);
}

static void set_sockets(const struct job_option *o, const char *arg)
{
	(void)o;
	(void)arg;
	sockets = true;
}

/* As --check-json FILE, which scripts may still have. */
static void set_check_json(const struct job_option *o, const char *arg)
{
	(void)o;
	bad_value("--check-json is now a part of --check: --check=json=%s",
		  arg);
}

/* clang-format off */
#define JOB_OPTIONS(O) \
SOFTHCA_OPTIONS(O, WITHOUT) \
O(sockets, , , NULL, "sockets", NULL, 0, set_sockets, \
  "Carry the program's TCP connections over RDMA where the peer does so too") \
O(check_json, , , NULL, "check-json", "FILE", OPTION_HIDDEN, set_check_json, NULL)

#define KEY(field, ...) OPT_##field,
enum { OPT_FIRST = 0x2000, OPT_BEFORE = OPT_FIRST - 1, JOB_OPTIONS(KEY) OPT_LIBDIR };

#define OPTION(field, type, reads, variable, name, argument, flags, set, help) \
	{ name, variable, set },
static const struct job_option job_options[] = { JOB_OPTIONS(OPTION) };

#define HELP(field, type, reads, variable, name, argument, flags, set, help) \
	{ name, OPT_##field, argument, flags, help, 0 },
static const struct argp_option options[] = { JOB_OPTIONS(HELP) { 0 } };
/* clang-format on */

static error_t parse_job(int key, char *arg, struct argp_state *state)
{
	const struct job_option *o;

	(void)state;
	if (key < OPT_FIRST || key >= OPT_LIBDIR)
		return ARGP_ERR_UNKNOWN;
	o = &job_options[key - OPT_FIRST];
	/* In "--pcap -- ib_write_bw" the value was forgotten. */
	if (arg && !strcmp(arg, "--"))
		bad_value("--%s needs a value before --", o->name);
	o->set(o, arg);
	return 0;
}

const struct argp job_argp = {
	options, parse_job, NULL, NULL, NULL, NULL, NULL
};

const char *job_libdir;

static error_t parse_libdir(int key, char *arg, struct argp_state *state)
{
	(void)state;
	if (key != OPT_LIBDIR)
		return ARGP_ERR_UNKNOWN;
	if (arg[0] != '/' || strpbrk(arg, " :;\n") || strlen(arg) >= PATH_MAX)
		bad_value("--libdir %s: not an absolute path without spaces, "
			  "colons and semicolons, which LD_PRELOAD cannot hold",
			  arg);
	job_libdir = arg;
	return 0;
}

static const struct argp_option libdir_options[] = {
	{ "libdir", OPT_LIBDIR, "DIR", 0,
	  "The libraries are in DIR where the program runs, as in a container",
	  0 },
	{ 0 },
};

const struct argp job_libdir_argp = { libdir_options, parse_libdir, NULL, NULL,
				      NULL,           NULL,         NULL };

/* In a child: has our library write the tree, and its path to fd. */
static int write_tree(const char *libdir, int fd)
{
	int (*make)(char path[PATH_MAX], char *reason, size_t size) = NULL;
	const struct libdir_symbol symbol = { "shca_sysfs_make", &make };
	char tree[PATH_MAX];
	struct libdir_why why;
	int err;

	err = libdir_load(libdir, "libsofthca.so.0", &symbol, 1, &why);
	if (!err)
		err = make(tree, why.text, sizeof(why.text));
	if (err)
		cli_say("programs will not see /sys/class/infiniband: %s. For "
			"the cause: softhca doctor",
			why.text);
	else if (write(fd, tree, strlen(tree)) != (ssize_t)strlen(tree))
		err = -EIO;
	return err;
}

/*
 * In a child: loads what the program is about to get, all of it by its own path.
 * The loader only warns of a preload that it cannot use, and starts the program
 * with the distribution's library.
 */
static int load_libraries(const char *libdir)
{
	struct libdir_why why;
	int err = libdir_load(libdir, "libsofthca.so.0", NULL, 0, &why);

	for (size_t i = 0; !err && i < PRELOADS; i++)
		if (is_wanted(i))
			err = libdir_load(libdir, preloads[i].soname, NULL, 0,
					  &why);
	if (err)
		cli_say("%s; %s", why.text, why.fix);
	return err;
}

/* How the child ends. */
enum { CHILD_OK, CHILD_NO_TREE, CHILD_NO_LIBRARIES };

/*
 * Tries the libraries, and writes the tree for the devices of the environment as
 * it is now, unless path is NULL. In a child, which may die of a damaged library,
 * and leaves none of them in this process. Without a tree the program runs all
 * the same, since its own error says more. Returns 0, -ENODEV for that, or
 * -ELIBBAD.
 */
static int try_libraries(const char *libdir, char *path)
{
	struct pollfd pfd;
	char said[PATH_MAX];
	int pipefd[2], status, err, ready = 1;
	ssize_t got;
	size_t len = 0;
	pid_t pid;

	if (path)
		path[0] = '\0';
	if (pipe(pipefd))
		return -errno;
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		err = -errno;
		close(pipefd[0]);
		close(pipefd[1]);
		cli_say("cannot start a process to read the devices: %s. "
			"For the cause: softhca doctor",
			strerror(-err));
		return err;
	}
	if (!pid) {
		close(pipefd[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (load_libraries(libdir))
			_exit(CHILD_NO_LIBRARIES);
		_exit(path && write_tree(libdir, pipefd[1]) ? CHILD_NO_TREE :
							      CHILD_OK);
	}
	close(pipefd[1]);
	pfd = (struct pollfd){ .fd = pipefd[0], .events = POLLIN };
	while (len < sizeof(said) - 1 && (ready = poll(&pfd, 1, 10000)) > 0) {
		got = read(pipefd[0], said + len, sizeof(said) - 1 - len);
		if (got <= 0)
			break; /* it has exited */
		len += (size_t)got;
	}
	said[len] = '\0';
	close(pipefd[0]);
	if (ready == 0) {
		cli_say("libibverbs does not list its devices within 10 "
			"seconds. For the cause: softhca doctor");
		kill(pid, SIGKILL);
	}
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (ready && WIFSIGNALED(status))
		cli_say("listing the devices of libibverbs ended with signal "
			"%d",
			WTERMSIG(status));
	if (WIFEXITED(status) && WEXITSTATUS(status) == CHILD_NO_LIBRARIES)
		return -ELIBBAD;
	if (!path)
		return 0;
	strcpy(path, said);
	return ready && path[0] == '/' ? 0 : -ENODEV;
}

static bool entry_is_ours(const char *entry, size_t len, const char *libdir)
{
	size_t dir_len = strlen(libdir);

	return len >= dir_len && !strncmp(entry, libdir, dir_len) &&
	       (len == dir_len || entry[dir_len] == '/');
}

/*
 * Appends to buf the entries of the list in variable name that are not in
 * libdir. Returns false when they do not fit.
 */
static bool keep_others(char *buf, size_t size, const char *name,
			const char *separators, const char *libdir)
{
	const char *p = getenv(name);
	size_t len, used = strlen(buf);

	while (p && *p) {
		len = strcspn(p, separators);
		if (len && !entry_is_ours(p, len, libdir)) {
			if (used + len + 2 > size)
				return false;
			if (used)
				buf[used++] = ':';
			memcpy(buf + used, p, len);
			used += len;
			buf[used] = '\0';
		}
		p += len + (p[len] != '\0');
	}
	return true;
}

extern char **environ;

/* A variable that is none of ours, but nearly: has it said. */
static void name_misspelt(const char *entry)
{
	static const char prefix[] = "SOFTHCA_";
	const size_t skip = sizeof(prefix) - 1;
	const char *near = NULL;
	unsigned least = CLI_NEAR;
	char name[64];

	if (strncmp(entry, prefix, skip) || strcspn(entry, "=") >= sizeof(name))
		return;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(entry, "="), entry);
	for (size_t i = 0; job_variables[i]; i++) {
		if (!strcmp(name, job_variables[i]))
			return;
		if (strncmp(job_variables[i], prefix, skip))
			continue;
		if (cli_nearer(name + skip, job_variables[i] + skip, &least))
			near = job_variables[i];
	}
	if (near)
		cli_say("%s is none of softhca's variables: did you mean %s?",
			name, near);
}

/*
 * What is wrong with the variables is said here, once: without those whose values
 * are ignored no process of the job says it again.
 */
static void check_variables(void)
{
	const char *const *wrong = config_ignored();

	for (; *wrong; wrong++)
		unsetenv(*wrong);
	for (char **e = environ; *e; e++)
		name_misspelt(*e);
}

int job_environment(const struct job_place *place)
{
	static const size_t size = 131072; /* the kernel's limit */
	char tree[PATH_MAX], libdir[sizeof(tree) + sizeof("/lib")];
	char *list;
	size_t used;
	bool with_tree = !place || !place->no_tree;
	int err;

	check_variables();
	warn_iwarp();
	/* Elsewhere, or later, there may be others. */
	err = with_tree ? check_rails() : 0;
	if (err)
		return err;
	err = libdir_find(libdir);
	if (err == -ESRCH) {
		cli_say("/proc is not mounted, so this program and its "
			"libraries cannot be located: mount -t proc proc "
			"/proc");
		return err;
	}
	if (err) {
		cli_say("the libraries are missing: neither ../lib/softhca nor "
			"../lib beside this program has libsofthca-shim.so. "
			"Install softhca again");
		return err;
	}
	err = try_libraries(libdir, with_tree ? tree : NULL);
	if (err == -ELIBBAD)
		return err;
	if (!with_tree || err) {
		tree[0] = '\0';
		unsetenv("SOFTHCA_SYSFS");
	} else {
		set_variable("SOFTHCA_SYSFS", tree);
	}
	if (place && place->libdir)
		snprintf(libdir, sizeof(libdir), "%s", place->libdir);
	if (strpbrk(libdir, " :;")) {
		/* These separate entries; the tree has a link without them. */
		if (!tree[0]) {
			cli_say("LD_LIBRARY_PATH and LD_PRELOAD cannot hold "
				"the path %s because of its spaces, colons or "
				"semicolons. Install softhca in another "
				"directory",
				libdir);
			return -EINVAL;
		}
		snprintf(libdir, sizeof(libdir), "%s/lib", tree);
	}

	list = malloc(size);
	if (!list)
		return -ENOMEM;
	/* Ours go first among directories, so that nothing hides them. */
	snprintf(list, size, "%s", libdir);
	if (!keep_others(list, size, "LD_LIBRARY_PATH", ":;", libdir))
		goto too_long;
	set_variable("LD_LIBRARY_PATH", list);

	/* Among preloads they go last: a sanitizer insists on being first. */
	list[0] = '\0';
	if (!keep_others(list, size, "LD_PRELOAD", ": ", libdir))
		goto too_long;
	for (size_t i = 0; i < PRELOADS; i++) {
		if (!is_wanted(i))
			continue;
		used = strlen(list);
		if (snprintf(list + used, size - used, "%s%s/%s",
			     used ? ":" : "", libdir,
			     preloads[i].soname) >= (int)(size - used))
			goto too_long;
	}
	set_variable("LD_PRELOAD", list);
	free(list);
	return restart_recording();

too_long:
	free(list);
	cli_say("LD_LIBRARY_PATH or LD_PRELOAD is too long: over %zu bytes",
		size);
	return -E2BIG;
}
