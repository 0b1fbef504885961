"""Two processes of one host: softhca beside what the host can do without it.

A probe is one run of something that yields one number; a row of the table puts
a probe's median beside what it shall be at least, mostly a multiple of another
probe's. All probes run in turn, several times, so that a row and its reference
see the same minutes. Servers run on the first processor, clients on the last.
"""
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

import rig

BENCH = os.path.join(rig.BUILD, "tests", "bench")
SECONDS = 0.3   # of a perftest run, about
UCX_POSIX = {"UCX_TLS": "posix,self"}
UCX_RC = {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "softhca0:1"}
KIB64, MIB = 65536, 1 << 20


class Missing(Exception):
    """Something is not installed here, or does not run here."""


def need(*programs):
    if missing := rig.need(*programs):
        raise Missing(f"not installed: {', '.join(missing)}")


class Probes:
    """What can be measured; a method per kind, run(name) by name."""

    def __init__(self, home, way, scale):
        cpus = sorted(os.sched_getaffinity(0))
        self.prefix = [[*home, "taskset", "-c", str(c)] for c in (cpus[0], cpus[-1])]
        self.both = [*home, "taskset", "-c", f"{cpus[0]},{cpus[-1]}"]
        self.address = "127.0.0.1"
        self.place = rig.Placement("local", rig.Side(self.prefix[0]), rig.Side(self.prefix[1]),
                                   self.address, "::1", [f"--same-host={way}"] if way else [])
        self.counts = {}    # of messages, for a run of about SECONDS
        self.scale = scale
        self.files = tempfile.TemporaryDirectory(prefix="softhca-bench-")
        self.redis = {}

    def close(self):
        for server in self.redis.values():
            server.kill()
        self.files.cleanup()

    # ------------------------------------------------------------- the kernel

    def program(self, name, *args, options=None, prefix=None, env=None, limit=60):
        side = rig.Side(self.both if prefix is None else prefix)
        cmd = [os.path.join(BENCH, name), *args]
        return rig.Proc(side, cmd, options or [], env, alone=options is None).done(limit)

    def vm(self, what, size):
        """(us of a call or one way, bytes per second)"""
        us, rate = self.program("two_processes", f"vm_{what}", size, 0.2 * self.scale).split()
        return float(us), float(rate)

    def vm_lat(self, what, size=8):
        return self.vm(what, size)[0]

    def vm_bw(self, what, size):
        return self.vm(what, size)[1]

    def pipe_lat(self):
        return float(self.program("two_processes", "pipe", 8, 0.2 * self.scale).split()[0])

    def memcpy(self, size):
        return float(self.program("reference", "memcpy", size, 0.1 * self.scale))

    # --------------------------------------------------------------- perftest

    def perftest(self, tool, size, *more):
        """us (the median), or messages per second"""
        key = (tool, size, more)
        if key not in self.counts:
            n, self.counts[key] = 2000, 2000
            _, seconds = self.perftest_run(tool, size, n, more)
            self.counts[key] = int(min(max(n * SECONDS * self.scale / seconds, 1000), 2000000)) // 16 * 16
        return self.perftest_run(tool, size, self.counts[key], more)[0]

    def perftest_run(self, tool, size, n, more):
        """What perftest says, and about how long it took."""
        lat = "_lat" in tool
        args = [tool, "-F", *(["-s", size] if "atomic" not in tool else []), "-n", n, *more]
        pair = self.place.tool(*args, **({} if lat else {"client_args": ["-N"], "server_args": ["-N"]}), limit=60)
        for line in pair.client.output().splitlines():
            f = line.split()
            if len(f) >= 5 and f[0] == str(size) and f[1].isdigit():
                value = float(f[4])     # t_typical; with -N the rate, in millions
                return (value, 2 * n * value / 1e6) if lat else (value * 1e6, n / (value * 1e6))
        raise rig.Failed(f"no result\n{pair.describe()}")

    def perftest_bytes(self, tool, size):
        return self.perftest(tool, size) * size

    # --------------------------------------------------- libraries of messages

    def pair(self, cmd, env, options, port, host=()):
        need(cmd[0])
        server = rig.Proc(self.place.server, cmd, options or [], env, alone=options is None)
        try:
            server.wait_listening(port)
            client = rig.Proc(self.place.client, [*cmd, *host], options or [], env, alone=options is None)
            return rig.Pair(server, client).end(limit=60, status=(None, 0), stays=True).client.output()
        finally:
            server.kill()

    def ucx(self, test, size, env, column):
        options = self.place.options if env is UCX_RC else None
        key = ("ucx", test, size, options is None)
        port = rig.free_port()

        def run(n):
            cmd = ["ucx_perftest", "-t", test, "-s", size, "-n", n, "-w", 1000, "-f", "-p", port]
            out = self.pair(cmd, env, options, port, [self.address])
            for line in out.splitlines():
                f = line.split()
                if len(f) == 8 and f[0].isdigit():
                    return [float(x) for x in f]
            raise rig.Failed(f"no result\n{out}")

        if key not in self.counts:
            per_second = run(2000)[7]
            self.counts[key] = int(min(max(per_second * SECONDS * self.scale, 1000), 1000000))
        return run(self.counts[key])[column]

    def ucx_lat(self, test, size, env=UCX_POSIX):
        return self.ucx(test, size, env, 1)             # the median

    def ucx_bw(self, test, size, env=UCX_POSIX):
        return self.ucx(test, size, env, 7) * size      # messages per second, overall

    def libfabric(self, provider, size):
        port = rig.free_port()
        key = ("fi", provider, size)
        options = self.place.options if "verbs" in provider else None

        def run(n):
            cmd = ["fi_pingpong", "-p", provider, "-e", "rdm", "-I", n, "-S", size]
            need(cmd[0])
            server = rig.Proc(self.place.server, [*cmd, "-B", port], options or [], alone=options is None)
            try:
                server.wait_listening(port)
                client = rig.Proc(self.place.client, [*cmd, "-P", port, self.address], options or [],
                                  alone=options is None)
                out = rig.Pair(server, client).end(limit=60).client.output()
            finally:
                server.kill()
            return n * float(out.splitlines()[-1].split()[6])   # usec/xfer

        # The first messages connect, which takes milliseconds: only what comes
        # after them counts.
        if key not in self.counts:
            few, many = 500, 5000
            each = max((run(many) - run(few)) / (many - few), 0.1)
            self.counts[key] = int(min(max(SECONDS * self.scale / (2e-6 * each), many), 200000))
        many = self.counts[key]
        few = many // 10
        us = (run(many) - run(few)) / (many - few)
        if us <= 0:
            raise rig.Failed(f"{few} messages lasted longer than {many}: this machine is busy")
        return us

    # -------------------------------------------------- sockets: a real server

    def redis_server(self, rdma):
        need("redis-benchmark")
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        if not program:
            raise Missing("not installed: redis-tools")
        if rdma not in self.redis:
            # Debian's redis-check-rdb is the server by another name.
            name = os.path.join(self.files.name, "redis-server")
            with contextlib.suppress(FileExistsError):
                os.symlink(program, name)
            port = rig.free_port()
            server = rig.Proc(self.place.server, [
                name, "--port", port, "--bind", self.address, "--save", "", "--protected-mode", "no",
                "--dir", self.files.name], [*self.place.options, "--sockets"], alone=not rdma)
            self.redis[rdma] = server
            server.port = port
            server.wait_for("Ready to accept connections|ready to accept")
        return self.redis[rdma].port

    def redis_run(self, rdma, clients, requests):
        """(requests per second, median latency in us)"""
        port = self.redis_server(rdma)
        cmd = ["redis-benchmark", "-h", self.address, "-p", port, "-t", "get", "-d", 64, "-c", clients,
               "-n", int(requests * self.scale), "--csv"]
        proc = rig.Proc(self.place.client, cmd, [*self.place.options, "--sockets"], alone=not rdma)
        out = proc.done(60)
        rows = [line.replace('"', "").split(",") for line in out.splitlines() if line.startswith('"')]
        row = dict(zip(rows[0], rows[-1]))
        return float(row["rps"]), float(row["p50_latency_ms"]) * 1e3

    def redis_lat(self, rdma):
        return self.redis_run(rdma, 1, 10000)[1]

    def redis_rate(self, rdma):
        return self.redis_run(rdma, 20, 30000)[0]

    # ------------------------------------------------------- many processes

    def all_to_all(self, n):
        return float(self.program("all_to_all", n, 0.5 * self.scale, options=self.place.options))

    def shared_memory(self, processes):
        """The most that processes which all know each other have in /dev/shm."""
        where = tempfile.mkdtemp(prefix="softhca-bench-", dir="/dev/shm")
        side = rig.Side(self.both)
        proc = rig.Proc(side, [os.path.join(BENCH, "all_to_all"), processes, 0.3], self.place.options,
                        {"SOFTHCA_RUNDIR": where})
        most = 0
        try:
            while proc.running():
                total = 0
                for d, _, names in os.walk(where):
                    for name in names:
                        with contextlib.suppress(OSError):
                            total += os.stat(os.path.join(d, name)).st_blocks * 512
                most = max(most, total)
                time.sleep(0.01)
            proc.done()
        finally:
            proc.kill()
            shutil.rmtree(where, ignore_errors=True)
        return most

    def memory_of_process(self):
        return self.shared_memory(2) / 2

    def memory_of_peer(self):
        """What each peer more costs a process."""
        return max((self.shared_memory(12) / 12 - self.shared_memory(2) / 2) / 10, 1)

    # ------------------------------------------------------------------- MPI

    def mpi(self, size, env):
        need("mpicc.openmpi", "mpirun.openmpi")
        program = os.path.join(self.files.name, "mpi_pingpong")
        if not os.path.exists(program):
            subprocess.run(["mpicc.openmpi", "-O2", "-o", program,
                            os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_pingpong.c")], check=True)
        rdma = "rc_v" in env.get("UCX_TLS", "")
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
               "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "core",
               "OMPI_MCA_pml": "ucx", "OMPI_MCA_btl": "self", "TMPDIR": "/tmp",
               # Else its UCX is for Mellanox's devices alone.
               "OMPI_MCA_pml_ucx_tls": "any", "OMPI_MCA_pml_ucx_devices": "any", **env}
        proc = rig.Proc(rig.Side(self.both), ["mpirun.openmpi", "-n", 2, program, size, 0.2 * self.scale],
                        self.place.options, env, alone=not rdma)
        return float(proc.done(90).split()[-1])


# name: (unit, function of Probes). Neighbours run one after the other.
PROBES = {
    "ucx_tag_lat": ("us", lambda p: p.ucx_lat("tag_lat", 8)),
    "ib_send_lat": ("us", lambda p: p.perftest("ib_send_lat", 8)),
    "ucx_rc_tag_lat": ("us", lambda p: p.ucx_lat("tag_lat", 8, UCX_RC)),
    "ucx_put_lat": ("us", lambda p: p.ucx_lat("ucp_put_lat", 8)),
    "vm_write_lat": ("us", lambda p: p.vm_lat("write")),
    "ib_write_lat": ("us", lambda p: p.perftest("ib_write_lat", 8)),
    "vm_pingpong": ("us", lambda p: p.vm_lat("pingpong")),
    "vm_read_lat": ("us", lambda p: p.vm_lat("read")),
    "ib_read_lat": ("us", lambda p: p.perftest("ib_read_lat", 8)),
    "ib_atomic_lat": ("us", lambda p: p.perftest("ib_atomic_lat", 8)),
    "vm_write_64k": ("B/s", lambda p: p.vm_bw("write", KIB64)),
    "ib_write_bw_64k": ("B/s", lambda p: p.perftest_bytes("ib_write_bw", KIB64)),
    "ib_read_bw_64k": ("B/s", lambda p: p.perftest_bytes("ib_read_bw", KIB64)),
    "ib_send_bw_64k": ("B/s", lambda p: p.perftest_bytes("ib_send_bw", KIB64)),
    "ucx_tag_bw_64k": ("B/s", lambda p: p.ucx_bw("tag_bw", KIB64)),
    "ucx_rc_tag_bw_64k": ("B/s", lambda p: p.ucx_bw("tag_bw", KIB64, UCX_RC)),
    "vm_write_1m": ("B/s", lambda p: p.vm_bw("write", MIB)),
    "ib_write_bw_1m": ("B/s", lambda p: p.perftest_bytes("ib_write_bw", MIB)),
    "ib_read_bw_1m": ("B/s", lambda p: p.perftest_bytes("ib_read_bw", MIB)),
    "ib_send_bw_1m": ("B/s", lambda p: p.perftest_bytes("ib_send_bw", MIB)),
    "ib_send_bw_64": ("1/s", lambda p: p.perftest("ib_send_bw", 64)),
    "ib_send_bw_64_l16": ("1/s", lambda p: p.perftest("ib_send_bw", 64, "-l", 16)),
    "ib_write_bw_64": ("1/s", lambda p: p.perftest("ib_write_bw", 64)),
    "pipe_lat": ("us", lambda p: p.pipe_lat()),
    "ib_send_lat_e": ("us", lambda p: p.perftest("ib_send_lat", 8, "-e")),
    "all_to_all_2": ("1/s", lambda p: p.all_to_all(2)),
    "all_to_all_16": ("1/s", lambda p: p.all_to_all(16)),
    "fi_shm_8": ("us", lambda p: p.libfabric("shm", 8)),
    "fi_verbs_8": ("us", lambda p: p.libfabric("verbs;ofi_rxm", 8)),
    "fi_shm_64k": ("us", lambda p: p.libfabric("shm", KIB64)),
    "fi_verbs_64k": ("us", lambda p: p.libfabric("verbs;ofi_rxm", KIB64)),
    "mpi_shm_8": ("us", lambda p: p.mpi(8, UCX_POSIX)),
    "mpi_rc_8": ("us", lambda p: p.mpi(8, UCX_RC)),
    "mpi_shm_64k": ("us", lambda p: p.mpi(KIB64, UCX_POSIX)),
    "mpi_rc_64k": ("us", lambda p: p.mpi(KIB64, UCX_RC)),
    "redis_lat_tcp": ("us", lambda p: p.redis_lat(False)),
    "redis_lat_rdma": ("us", lambda p: p.redis_lat(True)),
    "redis_rate_tcp": ("1/s", lambda p: p.redis_rate(False)),
    "redis_rate_rdma": ("1/s", lambda p: p.redis_rate(True)),
    "memory_process": ("B", lambda p: p.memory_of_process()),
    "memory_peer": ("B", lambda p: p.memory_of_peer()),
    "memcpy_64k": ("B/s", lambda p: p.memcpy(KIB64)),
    "memcpy_1m": ("B/s", lambda p: p.memcpy(MIB)),
}
ONCE = ("memory_process", "memory_peer")    # exact, more or less

MOST, LEAST = "<=", ">="
# What it is called, its probe, and what it shall be: at most or at least so
# many times another probe, or a number.
TABLE = [
    ("ib_send_lat 8 B", "ib_send_lat", MOST, 1.0, "ucx_tag_lat"),
    ("ib_write_lat 8 B", "ib_write_lat", MOST, 1.4, "vm_write_lat"),
    ("ib_read_lat 8 B", "ib_read_lat", MOST, 1.4, "vm_read_lat"),
    ("ib_atomic_lat", "ib_atomic_lat", MOST, 1.0, None),
    ("ib_write_bw 64 KiB", "ib_write_bw_64k", LEAST, 0.9, "vm_write_64k"),
    ("ib_read_bw 64 KiB", "ib_read_bw_64k", LEAST, 0.9, "vm_write_64k"),
    ("ib_write_bw 1 MiB", "ib_write_bw_1m", LEAST, 0.9, "vm_write_1m"),
    ("ib_read_bw 1 MiB", "ib_read_bw_1m", LEAST, 0.9, "vm_write_1m"),
    ("ib_send_bw 64 KiB", "ib_send_bw_64k", LEAST, 0.8, "vm_write_64k"),
    ("ib_send_bw 64 B", "ib_send_bw_64", LEAST, 5e6, None),
    ("ib_send_bw 64 B -l 16", "ib_send_bw_64_l16", LEAST, 8e6, None),
    ("ib_write_bw 64 B", "ib_write_bw_64", LEAST, 1.5e6, None),
    ("ib_send_lat -e 8 B", "ib_send_lat_e", MOST, 1.3, "pipe_lat"),
    ("all to all, 16 processes", "all_to_all_16", LEAST, 0.5, "all_to_all_2"),
    ("shared memory a process", "memory_process", MOST, 4 << 20, None),
    ("shared memory a peer", "memory_peer", MOST, 64 << 10, None),
    ("UCX rc_v tag_lat 8 B", "ucx_rc_tag_lat", MOST, 2.0, "ucx_tag_lat"),
    ("UCX rc_v tag_bw 64 KiB", "ucx_rc_tag_bw_64k", LEAST, 0.5, "ucx_tag_bw_64k"),
    ("libfabric verbs 8 B", "fi_verbs_8", MOST, 2.0, "fi_shm_8"),
    ("libfabric verbs 64 KiB", "fi_verbs_64k", MOST, 2.0, "fi_shm_64k"),
    ("Open MPI, UCX rc_v 8 B", "mpi_rc_8", MOST, 2.0, "mpi_shm_8"),
    ("Open MPI, UCX rc_v 64 KiB", "mpi_rc_64k", MOST, 2.0, "mpi_shm_64k"),
    ("redis --sockets, latency", "redis_lat_rdma", MOST, 0.5, "redis_lat_tcp"),
    ("redis --sockets, rate", "redis_rate_rdma", LEAST, 1.5, "redis_rate_tcp"),
]
# What was found to limit those that are not reached everywhere.
LIMITS = {
    "ib_send_lat": "the instructions of both ends (make bench BENCH=instructions): between two cores the cache lines' way "
                   "hides them, between the threads of one core nothing does",
    "ib_atomic_lat": "two system calls that copy 8 bytes each: process_vm_readv, then process_vm_writev",
    "ib_write_bw_64k": "TLB misses behind each process_vm_writev, of which a write takes one; the other end does nothing",
    "ib_read_bw_64k": "process_vm_readv itself, of which a read takes one: it is slower than process_vm_writev",
    "ib_write_bw_1m": "TLB misses behind each process_vm_writev, of which a write takes one",
    "ib_read_bw_1m": "process_vm_readv itself, of which a read takes one: it is slower than process_vm_writev",
    "ib_send_bw_64k": "the receiver copies, completes and posts again, one after the other",
    "ib_send_bw_64": "the receiver's instructions a message",
    "ib_send_bw_64_l16": "the receiver's instructions a message",
    "ib_send_lat_e": "beside the wake-up itself the completion channel's descriptor is written and read, since the program "
                     "may poll(2) it",
    "all_to_all_16": "switches between 16 processes that spin on two processors",
    "ucx_rc_tag_lat": "what limits ib_send_lat, and UCX's transport for verbs",
    "ucx_rc_tag_bw_64k": "a process_vm_readv and two control messages each; UCX posix copies twice, within the caches",
    "fi_verbs_64k": "ofi_rxm sends it as four messages, each copied into and out of its own buffers",
    "mpi_rc_64k": "UCX copies it in pieces of 8 KiB into and out of its own buffers, and each goes through a ring",
}
NAMES = {
    "ucx_tag_lat": "UCX posix tag_lat", "ucx_tag_bw_64k": "UCX posix tag_bw", "ucx_put_lat": "UCX posix put_lat 8 B",
    "vm_write_lat": "process_vm_writev", "vm_read_lat": "process_vm_readv",
    "vm_write_64k": "process_vm_writev", "vm_write_1m": "process_vm_writev",
    "vm_pingpong": "a ping-pong of process_vm_writev 8 B", "pipe_lat": "a pipe, 8 B",
    "all_to_all_2": "2 processes", "fi_shm_8": "libfabric shm", "fi_shm_64k": "libfabric shm",
    "mpi_shm_8": "UCX posix", "mpi_shm_64k": "UCX posix", "redis_lat_tcp": "TCP", "redis_rate_tcp": "TCP",
    "ib_send_bw_1m": "ib_send_bw 1 MiB", "memcpy_64k": "memcpy 64 KiB", "memcpy_1m": "memcpy 1 MiB",
}
BESIDE = ["ucx_put_lat", "vm_pingpong", "ib_send_bw_1m", "memcpy_64k", "memcpy_1m"]


def shown(value, unit):
    if unit == "us":
        return f"{value:.2f} us"
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s"
    if unit == "1/s":
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.0f} k/s"
    return f"{value / (1 << 20):.2f} MiB" if value >= 1 << 20 else f"{value / 1024:.0f} KiB"


class SameHost:
    def __init__(self, home, runs, scale, way, say):
        self.probes = Probes(home, way, scale)
        self.runs, self.say, self.way = runs, say, way or "auto"
        self.values = {}
        self.missing = {}   # why there is no figure
        self.failed = 0     # probes of which every run failed

    def run(self):
        why = {}
        for i in range(self.runs):
            for name, (_, measure) in PROBES.items():
                if name in self.missing or (i and name in ONCE):
                    continue
                try:
                    self.values.setdefault(name, []).append(measure(self.probes))
                except Missing as e:
                    self.missing[name] = str(e)
                except (rig.Failed, ValueError, IndexError, KeyError, subprocess.SubprocessError) as e:
                    why[name] = str(e)
                    self.say(f"  {name}: run {i + 1} of {self.runs} failed")
            self.say(f"  same host: run {i + 1} of {self.runs} done")
        for name, text in why.items():
            self.say(f"---- {name}\n{text[-1200:]}")
            if not self.values.get(name):
                self.missing[name] = "every run failed"
                self.failed += 1

    def close(self):
        self.probes.close()

    def median(self, name):
        return statistics.median(self.values[name]) if self.values.get(name) else None

    def ratio(self, name, reference):
        """The median of each run's: between two the machine may become another.

        A virtual one's processors are threads of one core now and two cores
        then, which is a factor of four.
        """
        values, beside = self.values[name], self.values.get(reference)
        if not reference:
            return statistics.median(values)
        if len(values) != len(beside):
            return statistics.median(values) / statistics.median(beside)
        return statistics.median(v / b for v, b in zip(values, beside))

    def rows(self):
        for title, name, how, bound, reference in TABLE:
            unit = PROBES[name][0]
            row = dict(title=title, test=name, unit=unit, relation=how, bound=bound, reference=reference,
                       median=self.median(name), runs=self.values.get(name, []))
            base = self.median(reference) if reference else 1
            if reference:
                row["reference_median"] = base
            if row["median"] is None or base is None:
                row["missing"] = self.missing.get(name) or self.missing.get(reference)
            else:
                row["ratio"] = self.ratio(name, reference)
                row["reached"] = row["ratio"] <= bound if how == MOST else row["ratio"] >= bound
            yield row

    def table(self):
        say = self.say
        say()
        way = {"auto": "", "copy": ", without process_vm", "udp": ", over UDP"}[self.way]
        say(f"two processes of this host{way}: medians of {self.runs} runs in turn, also of the ratios")
        say(f"{'':26}{'measured':>12}  {'beside it, in the same minutes':31}{'ratio':>7}{'at least':>12}")
        limits = []
        for r in self.rows():
            value = shown(r["median"], r["unit"]) if r["median"] is not None else "-"
            beside = ratio = ""
            if r["reference"]:
                beside = NAMES[r["reference"]]
                if r.get("reference_median"):
                    beside += " " + shown(r["reference_median"], r["unit"])
                bound = f"{r['relation']} {r['bound']}"
                ratio = f"{r['ratio']:.2f}" if "ratio" in r else "-"
            else:
                bound = f"{r['relation']} {shown(r['bound'], r['unit'])}"
            end = r["missing"] if "reached" not in r else "reached" if r["reached"] else "NOT reached"
            say(f"{r['title']:26}{value:>12}  {beside:31}{ratio:>7}{bound:>12}  {end}")
            if not r.get("reached", True):
                limits.append((r["title"], LIMITS.get(r["test"], "not known yet")))
        say()
        for title, limit in limits:
            say(f"  what limits {title}: {limit}")
        say()
        for name in BESIDE:
            if (m := self.median(name)) is not None:
                say(f"  {NAMES[name]:38}{shown(m, PROBES[name][0]):>12}")

    def save(self):
        return {"way": self.way, "table": list(self.rows()), "missing": self.missing,
                "probes": {n: {"unit": PROBES[n][0], "median": self.median(n), "runs": v}
                           for n, v in self.values.items()}}
