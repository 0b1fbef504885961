/*
 * process.c - the beginning and the end of what all devices of a process share
 *
 * Made at the first open, gone with the last close. What it consists of is in
 * the files that use it, and listed here once; the engine makes progress
 * (src/engine), and calls what is registered here.
 */
#include "process.h"

#include "parts.h"

#include "base/say.h"
#include "base/sys.h"
#include "check/check.h"
#include "connect/gsi.h"
#include "connect/iw.h"
#include "connect/moving.h"
#include "faults/inject.h"
#include "link/exported_keys.h"
#include "link/stream.h"
#include "net/ibaddr.h"
#include "os/dump_signal.h"
#include "rnic/qp_iwarp.h"
#include "trace/pcap.h"
#include "trace/trace.h"
#include "xrc/lease.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct shca_process *process;
/* Of the whole process: many a program closes its device and opens it again. */
static struct pcap *recording;
static struct engine_alarm records_alarm;
static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;

/* What the engine asks for (engine/engine.h) */

static void on_readable(struct engine *e, int fd)
{
	if (fd == to_process(e)->netdev_fd) {
		if (shca_netdevs_changed(e))
			gsi_netdevs_changed(e);
	} else if (!shca_stat_readable(e, fd)) {
		shca_cq_late(e, fd);
	}
}

static void on_restored(struct engine *e)
{
	say("this process has been saved and restored without being suspended "
	    "before: its connections are dead, and it hears of nothing any "
	    "more. Use softhca checkpoint and softhca restore, or "
	    "softhca_suspend()");
	shca_port_event(e, IBV_EVENT_DEVICE_FATAL, "");
}

static bool names_device(const char *name, const union ibv_gid *addr)
{
	struct shca_device *dev = shca_device_named(name);
	struct netdev_gid at;

	return dev && (!addr || shca_device_addr(dev, addr, &at));
}

static const struct engine_ops engine_ops = {
	.gsi = gsi_rx,
	.mcast = shca_mcast_rx,
	.stray = shca_timewait_rx,
	.word = shca_lease_ctrl,
	.settle = shca_remote_rsp_settle,
	.event = shca_port_event,
	.names_device = names_device,
	.readable = on_readable,
	.restored = on_restored,
};

static const struct shca_process_ops ops = {
	.begin = shca_stat_begin,
	.qp_gone = gsi_qp_gone,
};

/* Recordings */

/* Packets say no device, so where RoCE's is there as well they are its. */
static void record_as_infiniband(void)
{
	const struct netdev_gid *port;
	struct netdev_table t;

	netdev_scan(&t, config_get()->devices, config_get()->addr);
	port = ib_port(&t);
	if (port)
		pcap_infiniband(ib_v4(&port->gid), port->prefix);
}

/* A file that cannot be written does not keep the device from working. */
static void record_packets(const char *path)
{
	int err;

	if (config_get()->rocev1)
		pcap_rocev1();
	if (config_get()->infiniband == INFINIBAND_ONLY)
		record_as_infiniband();
	err = pcap_open(&recording, path);
	if (err)
		say("cannot write %s: %s", path,
		    err == -EBUSY ? "another process writes to this FIFO; "
				    "with %p in the name each process has "
				    "its own" :
				    sys_strerror(-err));
}

/* Likewise. */
static void record_events(const char *dir)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	int err = trace_begin(dir);

	if (err && !atomic_flag_test_and_set(&said))
		say("cannot record events in %s: %s", dir, sys_strerror(-err));
}

/* What a process that hangs has sent last is what its user wants to see. */
static void records_write(struct engine *e, uint64_t now)
{
	pcap_write_aged(to_process(e)->pcap);
	engine_alarm_set(e, &records_alarm, now + PCAP_AGE_NS);
}

static int records_init(struct engine *e)
{
	const struct config *cfg = config_get();

	if (cfg->trace)
		record_events(cfg->trace);
	if (cfg->pcap && !recording)
		record_packets(cfg->pcap);
	to_process(e)->pcap = recording;
	if (recording) {
		engine_alarm_add(e, &records_alarm, records_write);
		engine_alarm_set(e, &records_alarm, 0);
	}
	return 0;
}

static void records_fini(struct engine *e)
{
	if (to_process(e)->pcap)
		pcap_flush(to_process(e)->pcap);
}

/* The host */

/*
 * Where there is no registry the process is alone, which is enough for many.
 * One whose lock cannot be had is there: the others would not find us.
 */
static int join_host(const struct config *cfg, struct registry **r)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	const char *why;
	int err = registry_join(r, cfg->rundir, &why);

	if (!err)
		return 0;
	*r = NULL;
	if (err == -ETIMEDOUT || !atomic_flag_test_and_set(&said))
		say("%s%s", why,
		    err == -ETIMEDOUT ? "" :
					"; continuing without the other "
					"processes of this host");
	return err == -ETIMEDOUT ? err : 0;
}

/* Without shared memory the processes of this host talk by UDP. */
static void show_host(struct shca_process *p, const struct config *cfg)
{
	uint32_t flags = 0;

	if (!p->engine.registry || cfg->wire || cfg->same_host == SAME_HOST_UDP)
		return;
	if (cfg->pcap)
		flags |= SEGMENT_PLAIN;
	/* What others write here by themselves is not seen. */
	if (cfg->same_host == SAME_HOST_COPY || check_on())
		flags |= SEGMENT_NO_COPY;
	if (segment_create(&p->segment, p->engine.registry, flags) &&
	    cfg->explain)
		say("no shared memory with other processes of this host: %s",
		    segment_why());
	if (p->segment)
		exported_keys_begin(p->segment, &p->memory.keys);
}

static void process_fork_register(void);

static int host_init(struct engine *e)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	const struct config *cfg = config_get();
	int err = join_host(cfg, &e->registry);

	if (err)
		return err;
	show_host(to_process(e), cfg);
	/* After the registry's own handlers, whose lock process_fork_child() takes. */
	pthread_once(&once, process_fork_register);
	return 0;
}

static void host_fini(struct engine *e)
{
	segment_destroy(to_process(e)->segment);
	if (e->registry)
		registry_leave(e->registry);
}

static void host_forked(struct engine *e)
{
	segment_abandon(to_process(e)->segment);
	if (e->registry)
		registry_abandon(e->registry);
}

/* The engine */

static int links_init(struct engine *e)
{
	struct shca_process *p = to_process(e);

	return engine_init(e, &engine_ops, config_get(), e->registry,
			   p->segment, p->pcap);
}

static void links_forked(struct engine *e)
{
	engine_abandon(e);
	streams_release(e->streams); /* process_fork_prepare() */
}

/* Beginning and end */

/*
 * What a process consists of, from the bottom to the top: it begins in this order
 * and ends in the reverse one. What has begun halfway is ended, too.
 */
static const struct module {
	int (*init)(struct engine *e); /* 0 or -errno */
	void (*fini)(struct engine *e); /* the engine has stopped */
	/* In the child of a fork: lets go of descriptors and mappings. */
	void (*forked)(struct engine *e);
} modules[] = {
	{ records_init, records_fini, NULL },
	{ shca_keys_init, shca_keys_fini, NULL },
	{ host_init, host_fini, host_forked },
	{ shca_env_init, NULL, NULL },
	{ shca_iwarp_init, shca_iwarp_fini, NULL },
	{ links_init, engine_fini, links_forked },
	{ shca_stat_init, shca_stat_fini, shca_stat_forked },
	{ shca_netdevs_init, shca_netdevs_fini, shca_netdevs_fini },
	{ shca_cqs_init, NULL, NULL },
	{ shca_mcast_init, NULL, NULL },
	{ shca_xrc_init, NULL, NULL },
	{ shca_remote_rsps_init, shca_remote_rsps_fini, NULL },
	{ shca_timewait_init, shca_timewait_fini, NULL },
	{ gsi_init, gsi_fini, NULL },
	{ moving_init, moving_fini, NULL },
	{ shca_iw_init, shca_iw_fini, NULL },
};

#define NMODULES (sizeof(modules) / sizeof(modules[0]))

/* Ends the first n. */
static void process_destroy(struct shca_process *p, size_t n)
{
	engine_stop(&p->engine);
	while (n-- > 0)
		if (modules[n].fini)
			modules[n].fini(&p->engine);
	free(p);
}

static int process_create(struct shca_process **out)
{
	struct shca_process *p = aligned_alloc(64, sizeof(*p));
	const struct config *cfg = config_get();

	if (!p)
		return -ENOMEM;
	check_begin(&shca_check_env);
	if (cfg->explain == EXPLAIN_FULL)
		check_callsites();
	if (cfg->explain)
		dump_signal_begin();
	memset(p, 0, sizeof(*p));
	p->ops = &ops;
	p->netdev_fd = -1;
	for (size_t i = 0; i < NMODULES; i++) {
		int err = modules[i].init(&p->engine);

		if (err) {
			process_destroy(p, i + 1);
			return err;
		}
	}
	*out = p;
	return 0;
}

static void process_fork_prepare(void)
{
	pthread_mutex_lock(&process_lock);
	shca_live_hold();
	if (process)
		streams_hold(process->engine.streams);
}

static void process_fork_parent(void)
{
	if (process)
		streams_release(process->engine.streams);
	shca_live_release();
	pthread_mutex_unlock(&process_lock);
}

/*
 * The child has none of the threads, and locks in any state. The parent's
 * objects are left alone and leak; the child may open devices of its own.
 */
static void process_fork_child(void)
{
	struct shca_process *p = process;

	pthread_mutex_unlock(&process_lock);
	shca_live_release();
	faults_forked();
	check_forked();
	shca_ack_waits_forked();
	trace_forked();
	pcap_close(recording);
	recording = NULL;
	process = NULL;
	clock_go();
	if (!p)
		return;
	for (size_t n = NMODULES; n > 0; n--)
		if (modules[n - 1].forked)
			modules[n - 1].forked(&p->engine);
}

static void process_fork_register(void)
{
	pthread_atfork(process_fork_prepare, process_fork_parent,
		       process_fork_child);
}

static int process_get(struct engine **e)
{
	int err = 0;

	pthread_mutex_lock(&process_lock);
	if (!process)
		err = process_create(&process);
	if (!err) {
		process->refs++;
		*e = &process->engine;
	}
	pthread_mutex_unlock(&process_lock);
	return err;
}

/* Until peers need nothing more of what has ended, for some seconds at most. */
static void linger(struct engine *e, bool exiting)
{
	shca_timewait_linger(e, exiting);
	streams_settle(e->streams);
}

static void process_put(struct engine *e)
{
	struct shca_process *p = to_process(e);
	bool lingered = false;

	pthread_mutex_lock(&process_lock);
	while (p->refs == 1 && !lingered) {
		pthread_mutex_unlock(&process_lock);
		linger(e, false);
		lingered = true;
		pthread_mutex_lock(&process_lock);
	}
	if (!--p->refs) {
		process_destroy(p, NMODULES);
		process = NULL;
	}
	pthread_mutex_unlock(&process_lock);
}

/* Devices are listed before there is a process. */
__attribute__((constructor)) static void attach(void)
{
	shca_transport_iwarp = &shca_iwarp;
}

struct engine *shca_process_hold(void)
{
	struct engine *e;

	pthread_mutex_lock(&process_lock);
	e = process ? &process->engine : NULL;
	if (e)
		process->refs++;
	pthread_mutex_unlock(&process_lock);
	return e;
}

void shca_process_drop(struct engine *e)
{
	process_put(e);
}

/* Contexts */

/* As in a network namespace that has just been made: nothing else would say why no
 * address of a program is found. */
static void say_no_address(struct shca_device *dev)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	struct netdev_gid gid;

	for (uint32_t i = 0; i < NETDEV_MAX_GIDS; i++)
		if (shca_device_entry(dev, i, &gid))
			return;
	if (!atomic_flag_test_and_set(&said))
		say("no interface of this network namespace is up and has an "
		    "address, so %s has no GID and reaches nobody: ip link set "
		    "lo up",
		    dev->dev.name);
}

static int context_open(struct shca_device *dev, int cmd_fd,
			struct shca_file *file, struct ibv_context **out)
{
	struct engine *e;
	int err = process_get(&e);

	if (err)
		return err;
	err = shca_context_create(dev, e, cmd_fd, file, out);
	if (err)
		process_put(e);
	else
		say_no_address(dev);
	return err;
}

int shca_open(struct ibv_device *dev, struct ibv_context **out)
{
	faults_attach();
	return engine_fault(FAULT_OPEN_DEVICE) ?:
		       context_open(to_device(dev), -1, NULL, out);
}

int shca_import(int cmd_fd, struct ibv_context **out)
{
	char name[IBV_SYSFS_NAME_MAX];
	struct shca_file *file;
	struct ibv_device **list;
	int i, n, err;

	faults_attach();
	err = shca_file_import(cmd_fd, &file, name);
	if (err)
		return err;
	err = shca_device_list(&list, &n);
	if (!err) {
		/* Another process's devices may differ from ours. */
		for (i = 0; i < n && strcmp(list[i]->name, name); i++)
			;
		err = i == n ? -ENODEV :
			       context_open(to_device(list[i]), cmd_fd, file,
					    out);
		free(list);
	}
	if (err)
		shca_file_put(file);
	return err;
}

int shca_close(struct ibv_context *ctx)
{
	struct engine *e = to_ctx(ctx)->engine;

	if (engine_dead(e))
		return -EIO;
	if (!shca_context_unused(ctx))
		return 0;
	shca_sums_add(e);
	shca_context_destroy(ctx);
	process_put(e);
	return 0;
}

int shca_wait(int fd, uint64_t until_ns, const sigset_t *mask, bool spin)
{
	struct engine *e;

	pthread_mutex_lock(&process_lock);
	e = process ? &process->engine : NULL;
	pthread_mutex_unlock(&process_lock);
	if (until_ns != UINT64_MAX)
		until_ns = clock_of_kernel(until_ns);
	return e ? engine_wait(e, fd, until_ns, mask, spin) : -ENODEV;
}

/* Programs seldom close everything before they exit. */
__attribute__((destructor)) static void process_exit(void)
{
	struct engine *e;

	/* Of one that is suspended nobody knows. */
	if (!process || engine_halted(&process->engine))
		return;
	e = &process->engine;
	linger(e, true);
	gsi_farewell(e);
	if (e->cfg->explain)
		engine_drops_explain(e);
	if (process->pcap)
		pcap_flush(process->pcap);
	if (process->segment)
		segment_unlink(process->segment);
	shca_stat_exit(e);
}
