"""Two processes of one host: softhca beside what the host can do without it."""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time

import probes
import rig
from probes import BENCH, CPUS, KIB64, LEAST, MIB, MOST, SECONDS, Missing, need

UCX_POSIX = {"UCX_TLS": "posix,self"}
UCX_RC = {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "softhca0:1"}


class Probes(probes.Probes):
    """What can be measured; a method per kind."""

    def __init__(self, net, way, scale):
        super().__init__(probes.placement("local", net, [f"--same-host={way}"] if way else []), scale)
        self.both = rig.Side([*(net.a if net else []), "taskset", "-c", f"{CPUS[0]},{CPUS[-1]}"])
        self.files = tempfile.TemporaryDirectory(prefix="softhca-bench-")
        self.redis = {}
        # Two namespaces as two containers have them: with a directory that both mount, or the network alone.
        self.rundir = tempfile.TemporaryDirectory(prefix="softhca-bench-", dir="/dev/shm")
        self.apart = {name: probes.Probes(probes.placement("netns", net, options), scale) for name, options in (
            ("shared", [f"--rundir={self.rundir.name}"]),
            ("shared_copy", [f"--rundir={self.rundir.name}", "--same-host=copy"]),
            ("veth", [])) if net}

    def close(self):
        for server in self.redis.values():
            server.kill()
        self.files.cleanup()
        self.rundir.cleanup()

    def between(self, name):
        if name not in self.apart:
            raise Missing("no network namespaces here")
        return self.apart[name]

    # ------------------------------------------------------------- the kernel

    def vm(self, what, size):
        """(us of a call or one way, bytes per second)"""
        us, rate = self.program("two_processes", f"vm_{what}", size, 0.2 * self.scale, side=self.both).split()
        return float(us), float(rate)

    def vm_lat(self, what, size=8):
        return self.vm(what, size)[0]

    def vm_bw(self, what, size):
        return self.vm(what, size)[1]

    def pipe_lat(self):
        return float(self.program("two_processes", "pipe", 8, 0.2 * self.scale, side=self.both).split()[0])

    def ring(self, size):
        """Cells per second through a plain ring."""
        return float(self.program("two_processes", "ring", size, 0.2 * self.scale, side=self.both).split()[1]) / size

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
        return float(self.program("all_to_all", n, 0.5 * self.scale, options=self.place.options, side=self.both))

    def shared_memory(self, processes):
        """The most that processes which all know each other have in /dev/shm."""
        where = tempfile.mkdtemp(prefix="softhca-bench-", dir="/dev/shm")
        proc = rig.Proc(self.both, [os.path.join(BENCH, "all_to_all"), processes, 0.3], self.place.options,
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
        proc = rig.Proc(self.both, ["mpirun.openmpi", "-n", 2, program, size, 0.2 * self.scale],
                        self.place.options, env, alone=not rdma)
        return float(proc.done(90).split()[-1])


PROBES = {
    "ucx_tag_lat": ("us", lambda p: p.ucx_lat("tag_lat", 8)),
    "ib_send_lat": ("us", lambda p: p.perftest("ib_send_lat", 8)),
    "ib_send_lat_recorded": ("us", lambda p: p.recorded("ib_send_lat", 8)),
    "ucx_rc_tag_lat": ("us", lambda p: p.ucx_lat("tag_lat", 8, UCX_RC)),
    "ucx_put_lat": ("us", lambda p: p.ucx_lat("ucp_put_lat", 8)),
    "vm_write_lat": ("us", lambda p: p.vm_lat("write")),
    "ib_write_lat": ("us", lambda p: p.perftest("ib_write_lat", 8)),
    "ib_write_lat_uc": ("us", lambda p: p.perftest("ib_write_lat", 8, "-c", "UC")),
    **{f"ib_{op}_lat_{way}_{size}": ("us", lambda p, op=op, way=way, size=size: p.given(
        ["--wire"] if way == "wire" else ["--same-host=copy"], f"ib_{op}_lat", size, "-m", "4096"))
       for op in ("send", "write", "read") for way in ("copy", "wire") for size in (8, 8192)},
    **{f"ib_{op}_lat_uc_{way}_{size}": ("us", lambda p, op=op, way=way, size=size: p.given(
        ["--wire"] if way == "wire" else ["--same-host=copy"], f"ib_{op}_lat", size, "-m", "4096", "-c", "UC"))
       for op in ("send", "write") for way in ("copy", "wire") for size in (8, 8192)},
    **{f"ib_atomic_lat_{way}": ("us", lambda p, way=way: p.given(
        ["--wire"] if way == "wire" else ["--same-host=copy"], "ib_atomic_lat", 8)) for way in ("copy", "wire")},
    "ib_send_lat_64k": ("us", lambda p: p.perftest("ib_send_lat", KIB64)),
    **{f"ib_send_lat_{size}_{name}": ("us", lambda p, n=n, name=name: p.between(name).perftest("ib_send_lat", n))
       for name in ("shared", "veth") for size, n in (("8", 8), ("64k", KIB64))},
    **{f"ib_send_bw_64k_{name}": ("B/s", lambda p, name=name: p.between(name).perftest_bytes("ib_send_bw", KIB64))
       for name in ("shared", "shared_copy", "veth")},
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
    "ring_64": ("1/s", lambda p: p.ring(64)),
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
    "conn_tcp": ("1/s", lambda p: p.connections("tcp")),
    "conn_rdma": ("1/s", lambda p: p.connections("rdma")),
    "qps_1": ("1/s", lambda p: p.writes_on_one_of(1)),
    "qps_10000": ("1/s", lambda p: p.writes_on_one_of(10000)),
    "memory_process": ("B", lambda p: p.memory_of_process()),
    "memory_peer": ("B", lambda p: p.memory_of_peer()),
    "store": ("us", lambda p: p.store()),
    "memcpy_64k": ("B/s", lambda p: p.memcpy(KIB64)),
    "memcpy_1m": ("B/s", lambda p: p.memcpy(MIB)),
}
ONCE = ("memory_process", "memory_peer")

TABLE = [
    ("ib_send_lat 8 B", "ib_send_lat", MOST, 1.0, "ucx_tag_lat"),
    ("ib_send_lat 8 B, recorded", "ib_send_lat_recorded", MOST, 1.15, "ib_send_lat"),
    ("ib_write_lat 8 B", "ib_write_lat", MOST, 1.4, "vm_write_lat"),
    ("ib_write_lat -c UC 8 B", "ib_write_lat_uc", MOST, 1.0, "ib_write_lat_wire_8"),
    ("ib_read_lat 8 B", "ib_read_lat", MOST, 1.4, "vm_read_lat"),
    *((f"ib_{op}_lat {name}, copied", f"ib_{op}_lat_copy_{size}", MOST, 1.0, f"ib_{op}_lat_wire_{size}")
      for op in ("send", "write", "read") for size, name in ((8, "8 B"), (8192, "8 KiB"))),
    *((f"ib_{op}_lat -c UC {name}, copied", f"ib_{op}_lat_uc_copy_{size}", MOST, 1.0, f"ib_{op}_lat_uc_wire_{size}")
      for op in ("send", "write") for size, name in ((8, "8 B"), (8192, "8 KiB"))),
    ("ib_atomic_lat, copied", "ib_atomic_lat_copy", MOST, 1.0, "ib_atomic_lat_wire"),
    ("ib_atomic_lat", "ib_atomic_lat", MOST, 1.0, None),
    ("ib_write_bw 64 KiB", "ib_write_bw_64k", LEAST, 0.9, "vm_write_64k"),
    ("ib_read_bw 64 KiB", "ib_read_bw_64k", LEAST, 0.9, "vm_write_64k"),
    ("ib_write_bw 1 MiB", "ib_write_bw_1m", LEAST, 0.9, "vm_write_1m"),
    ("ib_read_bw 1 MiB", "ib_read_bw_1m", LEAST, 0.9, "vm_write_1m"),
    ("ib_send_bw 64 KiB", "ib_send_bw_64k", LEAST, 0.8, "vm_write_64k"),
    ("ib_send_bw 64 B", "ib_send_bw_64", LEAST, 5e6, None),
    ("ib_send_bw 64 B -l 16", "ib_send_bw_64_l16", LEAST, 8e6, None),
    ("ib_send_bw 64 B", "ib_send_bw_64", LEAST, 0.25, "ring_64"),
    ("ib_send_bw 64 B -l 16", "ib_send_bw_64_l16", LEAST, 0.5, "ring_64"),
    ("ib_write_bw 64 B", "ib_write_bw_64", LEAST, 1.5e6, None),
    ("ib_send_lat -e 8 B", "ib_send_lat_e", MOST, 1.3, "pipe_lat"),
    ("two containers, ib_send_lat 8 B", "ib_send_lat_8_shared", MOST, 1.2, "ib_send_lat"),
    ("two containers, ib_send_lat 8 B", "ib_send_lat_8_shared", MOST, 0.2, "ib_send_lat_8_veth"),
    ("two containers, ib_send_lat 64 KiB", "ib_send_lat_64k_shared", MOST, 1.25, "ib_send_lat_64k"),
    ("two containers, ib_send_lat 64 KiB", "ib_send_lat_64k_shared", MOST, 0.33, "ib_send_lat_64k_veth"),
    ("two containers, ib_send_bw 64 KiB", "ib_send_bw_64k_shared", LEAST, 0.8, "ib_send_bw_64k"),
    ("two containers, ib_send_bw 64 KiB, copied", "ib_send_bw_64k_shared_copy", LEAST, 3.0, "ib_send_bw_64k_veth"),
    ("all to all, 16 processes", "all_to_all_16", LEAST, 0.5, "all_to_all_2"),
    ("connections, set up and closed", "conn_rdma", LEAST, 0.7, "conn_tcp"),
    ("8 B writes on 10,000 QPs", "qps_10000", LEAST, 0.8, "qps_1"),
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
LIMITS = {
    **probes.LIMITS,
    "ib_send_lat": "the instructions of both ends (make bench BENCH=instructions): between two cores the cache lines' way "
                   "hides them, between the threads of one core nothing does",
    "ib_send_lat_recorded": "between a message and its answer the processor's counter is read three times, 10 ns each, and "
                            "six events are stored",
    **{f"ib_{op}_lat": f"process_vm_{call} itself, of which each takes one, and 0.4 us for request and completion"
       for op, call in (("write", "writev"), ("read", "readv"))},
    "ib_atomic_lat": "two system calls that copy 8 bytes each: process_vm_readv, then process_vm_writev",
    "ib_write_bw_64k": "TLB misses behind each process_vm_writev, of which a write takes one; the other end does nothing",
    "ib_read_bw_64k": "process_vm_readv itself, of which a read takes one: it is slower than process_vm_writev",
    "ib_write_bw_1m": "TLB misses behind each process_vm_writev, of which a write takes one",
    "ib_read_bw_1m": "process_vm_readv itself, of which a read takes one: it is slower than process_vm_writev",
    "ib_send_bw_64k": "the receiver copies, completes and posts again, one after the other",
    **{f"ib_send_{of}_shared": "what limits it within one namespace: it takes the same instructions and system calls there"
       for of in ("lat_8", "lat_64k", "bw_64k")},
    "ib_send_bw_64k_shared_copy": "two copies of each byte, one by each end, through a ring of 64 KiB; a veth pair carries a "
                                  "run of 64 KB at once",
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
    **{f"ib_{op}_lat_wire_{size}": "over the wire" for op in ("send", "write", "read") for size in (8, 8192)},
    "ucx_tag_lat": "UCX posix tag_lat", "ucx_tag_bw_64k": "UCX posix tag_bw", "ucx_put_lat": "UCX posix put_lat 8 B",
    "vm_write_lat": "process_vm_writev", "vm_read_lat": "process_vm_readv",
    "vm_write_64k": "process_vm_writev", "vm_write_1m": "process_vm_writev",
    "vm_pingpong": "a ping-pong of process_vm_writev 8 B", "pipe_lat": "a pipe, 8 B", "ring_64": "a plain ring",
    "all_to_all_2": "2 processes", "fi_shm_8": "libfabric shm", "fi_shm_64k": "libfabric shm",
    "mpi_shm_8": "UCX posix", "mpi_shm_64k": "UCX posix", "redis_lat_tcp": "TCP", "redis_rate_tcp": "TCP",
    "ib_send_lat": "in one namespace, not recorded", "ib_send_lat_64k": "in one namespace", "ib_send_bw_64k": "in one namespace",
    **{f"ib_send_{of}_veth": "over veth" for of in ("lat_8", "lat_64k", "bw_64k")}, "conn_tcp": "TCP", "qps_1": "on one", "store": "a store's way to the other processor",
    "ib_send_bw_1m": "ib_send_bw 1 MiB", "memcpy_64k": "memcpy 64 KiB", "memcpy_1m": "memcpy 1 MiB",
}
BESIDE = ["store", "ucx_put_lat", "vm_pingpong", "ib_send_bw_1m", "memcpy_64k", "memcpy_1m"]


def part(net, runs, scale, way, say, only):
    means = {"auto": "", "copy": ", without process_vm", "udp": ", over UDP"}[way or "auto"]
    return probes.Part(f"two processes of this host{means}", sys.modules[__name__], Probes(net, way, scale), runs,
                       say, only)
