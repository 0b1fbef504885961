"""What the parts of the bench share: programs that yield a number, and a table of them.

A probe is one run of something that yields one number. A row of a table puts a
probe beside what it shall be: at most or at least so many times another probe,
or a number. All probes run in turn, several times, and a ratio is taken within
each turn: between two the machine may become another. Servers run on the first
processor, clients on the last, unless both shall be on one.
"""
import json
import os
import re
import resource
import statistics
import subprocess
import tempfile
import time

import rig

BENCH = os.path.join(rig.BUILD, "tests", "bench")
SECONDS = 0.3   # of a perftest run, about
KIB64, MIB = 65536, 1 << 20
CPUS = sorted(os.sched_getaffinity(0))
# What limits rows that same_host and wire both have: callgrind's and cachegrind's
# counts, and those of strace -c (docs/PERFORMANCE.md).
LIMITS = {
    "qps_10000": "a write reads some 15 cache lines of each of its two queue pairs, which no cache of 2 MiB has any more",
    "conn_rdma": "five messages of the CM by UDP and four threads woken, and 3.6 page faults for queue pairs and identifiers; "
                 "8.3 system calls a connection at both ends; TCP's end is in the kernel",
}

MOST, LEAST, MORE = "<=", ">=", "<= +"   # MORE: so many more than the reference


class Missing(Exception):
    """Something is not installed here, or does not run here."""


def need(*programs):
    if missing := rig.need(*programs):
        raise Missing(f"not installed: {', '.join(missing)}")


def placement(name, net, options=(), cpus=(CPUS[0], CPUS[-1])):
    """Where a server and a client run, each on its processor: "local" and "wire"
    in one namespace where there is one, so that nobody else's port 4791 is in
    the way, "netns" in two. Throughout, net is a rig.Network or None."""
    pins = [["taskset", "-c", str(c)] for c in cpus]
    if name == "netns":
        return rig.Placement(name, rig.Side([*net.b, *pins[0]]), rig.Side([*net.a, *pins[1]]),
                             "10.91.0.2", "fd91::2", options)
    home = net.a if net else []
    options = [*options, *(["--wire"] if name == "wire" else [])]
    return rig.Placement(name, rig.Side([*home, *pins[0]]), rig.Side([*home, *pins[1]]), "127.0.0.1", "::1", options)


def switches():
    """Context switches of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_nvcsw + used.ru_nivcsw


def figures(client, size):
    """The words of perftest's line of figures."""
    for line in client.output().splitlines():
        f = line.split()
        if len(f) >= 5 and f[0] == str(size) and f[1].isdigit():
            return f
    raise rig.Failed(f"no result\n{client.describe()}")


class Namespaces:
    """Two with a network, or why there are none; its packets are single ones (no GSO)."""

    def __init__(self, mtu):
        self.net, self.why = None, None
        try:
            self.net = rig.Network(mtu)
            self.place = placement("netns", self.net)
            for end in "ab":
                rig.ip(getattr(self.net, end), "link set hca0 gso_max_segs 1")
            self.prepare()
        except (rig.NoNamespaces, rig.Failed) as e:
            self.why = f"no two namespaces with a network: {e}"

    def prepare(self):
        """What else there is to do on the network."""

    def close(self):
        if self.net:
            self.net.close()


class Probes:
    """What can be measured in a placement."""

    def __init__(self, place, scale):
        self.place, self.scale = place, scale
        self.address = place.host
        self.counts = {}    # of messages, for a run of about SECONDS
        self.few = {}       # a run of few messages: (how many, context switches)
        self.switches = {}  # per round trip, of both ends

    def close(self):
        pass

    def mtu(self):
        """That of a path between both ends."""
        out = self.place.client.run(["ibv_devinfo"])
        return int(re.search(r"active_mtu:\s+(\d+)", out)[1])

    # ---------------------------------------------------- without any softhca

    def program(self, name, *args, options=None, side=None, env=None, limit=60):
        """What one of this folder's programs prints; under softhca if it has options."""
        cmd = [os.path.join(BENCH, name), *args]
        return rig.Proc(side or self.place.client, cmd, options or [], env, alone=options is None).done(limit)

    def memcpy(self, size):
        return float(self.program("reference", "memcpy", size, 0.1 * self.scale))

    def store(self):
        """us until a processor sees what the other has stored: how far apart they
        are. Those of a virtual machine are one core now and two chips then."""
        return float(self.program("two_processes", "store", 128, 0.02, side=rig.Side()).split()[0])

    def reference(self, kind, size):
        """What the end prints that measures."""
        port = rig.free_port()
        cmd = [os.path.join(BENCH, "reference"), kind, size, 0.3 * self.scale, port]
        # Sockets as ours are bound to an address.
        named = [self.address, "serve"] if "wire" in kind else []
        server = rig.Proc(self.place.server, [*cmd, *named], alone=True)
        try:
            server.wait_listening(port) if "tcp" in kind else server.wait_bound(port)
            client = rig.Proc(self.place.client, [*cmd, self.address], alone=True)
            lat = "bw" not in kind
            pair = rig.Pair(server, client).end(limit=30, status=(None, 0) if lat else (0, 0), stays=lat)
            return (pair.client if lat else pair.server).output().split()
        finally:
            server.kill()

    def udp_lat(self, size=8, waits=False):
        """us one way; both ends spin, or both sleep"""
        before = switches()
        us, trips = self.reference("udp_wait" if waits else "udp_lat", size)
        self.switches["udp"] = (switches() - before) / int(trips)   # those of set-up are few
        return float(us)

    def udp_wire(self, size=8, kind="udp_wire_ack"):
        """The same by the system calls that a message takes on our wire, and the ACK behind it but for udp_wire."""
        return float(self.reference(kind, size)[0])

    def tcp_lat(self, size):
        """us one way; both ends spin"""
        return float(self.reference("tcp_lat", size)[0])

    def udp_bw(self, size, crc=False):
        """crc: both ends also copy and sum it, as ours do."""
        return float(self.reference("udp_bw_crc" if crc else "udp_bw", size)[0])

    def tcp_bw(self, size):
        """One stream of writes of this size, as iperf3 has it."""
        need("iperf3")
        port = rig.free_port()
        server = rig.Proc(self.place.server, ["iperf3", "-s", "-1", "-p", port], alone=True)
        try:
            server.wait_listening(port)
            client = rig.Proc(self.place.client, ["iperf3", "-c", self.address, "-p", port, "-J", "-t", 1,
                                                     "-l", size], alone=True)
            out = json.loads(client.done(30))
            return out["end"]["sum_received"]["bits_per_second"] / 8
        finally:
            server.kill()

    # --------------------------------------------------------------- perftest

    def key(self, tool, size, *more):
        """What the figures of such a run are kept by."""
        way = tuple(o for o in map(str, self.place.options) if "/" not in o)    # but for files
        return tool, size, more, way

    def perftest(self, tool, size, *more, n=None):
        """us (the median), or messages per second; of n messages, or as many as
        take about SECONDS"""
        key = self.key(tool, size, *more)
        if n is None and key not in self.counts:
            few = 208 if "_lat" in tool else min(max(64 * MIB // size, 208), 20000) // 16 * 16
            _, seconds, switched = self.perftest_run(tool, size, few, more)
            self.few[key] = few, switched
            self.counts[key] = int(min(max(few * SECONDS * self.scale / seconds, 2 * few), 2000000)) // 16 * 16
        value, _, many = self.perftest_run(tool, size, n or self.counts[key], more)
        if key in self.few:
            # Of set-up and end there is the same in both runs.
            few, switched = self.few[key]
            self.switches[key] = (many - switched) / ((n or self.counts[key]) - few)
        return value

    def perftest_run(self, tool, size, n, more):
        """What perftest says, about how long it took, and how many context
        switches it took at both ends."""
        lat = "_lat" in tool
        args = [tool, "-F", *(["-s", size] if "atomic" not in tool else []), "-n", n, *more]
        before = switches()
        pair = self.place.tool(*args, **({} if lat else {"client_args": ["-N"], "server_args": ["-N"]}), limit=60)
        f = figures(pair.client, size)
        value = float(f[4])     # t_typical; with -N the rate, in millions
        if lat:
            return value, 2 * n * value / 1e6, switches() - before
        return value * 1e6, n / (value * 1e6), switches() - before

    def given(self, options, tool, size, *more):
        """perftest with more options of softhca run."""
        before = self.place.options
        self.place.options = [*before, *options]
        try:
            return self.perftest(tool, size, *more)
        finally:
            self.place.options = before

    def recorded(self, tool, size):
        """perftest while events are recorded (softhca run --trace)."""
        with tempfile.TemporaryDirectory(prefix="softhca-bench-") as where:
            return self.given(["--trace", where], tool, size, "-c", "RC")

    def perftest_bytes(self, tool, size, *more, n=None):
        return self.perftest(tool, size, *more, n=n) * size

    # ----------------------------------------------------------------- others

    def writes_on_one_of(self, n):
        """Writes of 8 bytes per second that are waited for, on n queue pairs in
        random order; both ends of all are in one process."""
        out = self.place.client.run([rig.client("scale"), "time", n], self.place.options, limit=60)
        return 1e9 / float(re.search(r"ns_per_op=(\d+)", out)[1])

    def connections(self, kind, n=1000):
        """Set up and closed per second, all at once, both ends on one processor."""
        return float(self.program("conn_rate", kind, n, self.address,
                                  options=self.place.options if kind == "rdma" else None).split()[1])


def shown(value, unit):
    if unit == "us":
        return f"{value:.2f} us" if value < 1e4 else f"{value / 1e3:.2f} ms"
    if unit == "B/s":
        return f"{value / 1e9:.2f} GB/s" if value >= 1e9 else f"{value / 1e6:.1f} MB/s"
    if unit == "1/s":
        return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value / 1e3:.1f} k/s"
    if unit == "B":
        return f"{value / (1 << 20):.2f} MiB" if value >= 1 << 20 else f"{value / 1024:.0f} KiB"
    return f"{value:.2f}"


class Part:
    """The table of one part. A module says what there is:

    PROBES  name: (unit, function of the probes); neighbours run one after the other
    ONCE    names of those that are exact, more or less
    TABLE   what it is called, its probe, and what it shall be: at most or at
            least so many times another probe, or a number
    NAMES   what a probe is called beside others
    BESIDE  probes whose figures are only printed
    LIMITS  what was found to limit those that are not reached everywhere
    """

    def __init__(self, title, module, probes, runs, say, only=None, seconds=None):
        """Rows whose title matches only; no further turn once seconds have passed."""
        self.title, self.module, self.probes = title, module, probes
        self.runs, self.say, self.seconds = runs, say, seconds
        self.table = [r for r in module.TABLE if not only or re.search(only, r[0])]
        self.beside = [] if only else module.BESIDE
        wanted = {name for r in self.table for name in (r[1], r[4])} | set(self.beside)
        self.names = [name for name in module.PROBES if name in wanted]
        self.values = {}    # name: the figure of each turn, or None
        self.missing = {}   # why there is no figure
        self.failed = 0     # probes of which every run failed

    def unit(self, name):
        return self.module.PROBES[name][0]

    def run(self):
        why = {}
        begun = time.monotonic()
        for i in range(self.runs):
            if i and self.seconds and (time.monotonic() - begun) * (i + 1) / i > self.seconds:
                self.runs = i
                self.say(f"  {self.title}: no time for another run")
                break
            for name in self.names:
                if name in self.missing or (i and name in self.module.ONCE):
                    continue
                value = None
                try:
                    value = self.module.PROBES[name][1](self.probes)
                except Missing as e:
                    self.missing[name] = str(e)
                    self.say(f"  {name}: MISSING: {e}")
                except (rig.Failed, ValueError, IndexError, KeyError, OSError, subprocess.SubprocessError) as e:
                    why[name] = str(e)
                    self.say(f"  {name}: run {i + 1} of {self.runs} failed")
                self.values.setdefault(name, []).append(value)
            self.say(f"  {self.title}: run {i + 1} of {self.runs} done")
        for name, text in why.items():
            self.say(f"---- {name}\n{text[-1200:]}")
            if not self.runs_of(name):
                self.missing[name] = "every run failed"
                self.failed += 1

    def close(self):
        self.probes.close()

    def runs_of(self, name):
        return [v for v in self.values.get(name, []) if v is not None]

    def median(self, name):
        values = self.runs_of(name)
        return statistics.median(values) if values else None

    def ratio(self, name, how, reference):
        """The median of each turn's: between two the machine may become another.

        A virtual one's processors are threads of one core now and two cores
        then, which is a factor of four.
        """
        if not reference:
            return self.median(name)
        both = [(v, b) for v, b in zip(self.values.get(name, []), self.values.get(reference, []))
                if v is not None and b is not None]
        if not both:
            return None
        return statistics.median(v - b if how == MORE else v / b for v, b in both)

    def rows(self):
        for title, name, how, bound, reference in self.table:
            row = dict(title=title, test=name, unit=self.unit(name), relation=how, bound=bound, reference=reference,
                       median=self.median(name), runs=self.runs_of(name))
            if reference:
                row["reference_median"] = self.median(reference)
            ratio = self.ratio(name, how, reference)
            if ratio is None:
                row["missing"] = self.missing.get(name) or self.missing.get(reference) or "no run of both"
            else:
                row["ratio"] = ratio
                row["reached"] = ratio >= bound if how == LEAST else ratio <= bound
            yield row

    def name_of(self, name):
        return self.module.NAMES.get(name, name)

    def print(self):
        say = self.say
        rows = list(self.rows())
        wide = max([26, *(len(r["title"]) + 2 for r in rows)])
        beside_wide = max([33, *(len(self.beside_of(r)) + 2 for r in rows)])
        say()
        say(f"{self.title}: medians of {self.runs} runs in turn, also of the ratios")
        say(f"{'':{wide}}{'measured':>12}  {'beside it, in the same minutes':{beside_wide}}{'ratio':>6}{'limit':>14}")
        for r in rows:
            value = shown(r["median"], r["unit"]) if r["median"] is not None else "-"
            ratio = ""
            if r["reference"]:
                bound = f"{r['relation']}{'' if r['relation'] == MORE else ' '}{r['bound']:g}"
                if "ratio" in r:
                    ratio = f"{r['ratio']:+.2f}" if r["relation"] == MORE else f"{r['ratio']:.2f}"
            else:
                bound = f"{r['relation']} {shown(r['bound'], r['unit'])}"
            end = r["missing"] if "missing" in r else "reached" if r["reached"] else "NOT reached"
            say(f"{r['title']:{wide}}{value:>12}  {self.beside_of(r):{beside_wide}}{ratio:>6}{bound:>14}  {end}")
        say()
        for limit, titles in self.limits(rows).items():
            say(f"  what limits {'; '.join(titles)}:\n      {limit}")
        beside = [n for n in self.beside if self.median(n) is not None]
        if beside:
            say()
        for name in beside:
            values = [shown(v, self.unit(name)) for v in sorted(self.runs_of(name))]
            spread = f"   {values[0]} to {values[-1]}" if values[0] != values[-1] else ""
            say(f"  {self.name_of(name):46}{shown(self.median(name), self.unit(name)):>12}{spread}")

    def beside_of(self, row):
        if not row["reference"]:
            return ""
        value = row["reference_median"]
        return self.name_of(row["reference"]) + (f" {shown(value, self.unit(row['reference']))}" if value is not None
                                                 else "")

    def limits(self, rows):
        """{what limits them: the titles of those that are not reached}"""
        limits = {}
        for r in rows:
            if not r.get("reached", True):
                titles = limits.setdefault(self.module.LIMITS.get(r["test"], "not known yet"), [])
                if r["title"] not in titles:
                    titles.append(r["title"])
        return limits

    def save(self):
        return {"title": self.title, "table": list(self.rows()), "missing": self.missing,
                "probes": {n: {"unit": self.unit(n), "median": self.median(n), "runs": v}
                           for n, v in self.values.items()}}
