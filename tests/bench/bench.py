#!/usr/bin/python3
"""softhca beside what the machine does without it.

Parts: two processes of this host beside UCX, process_vm(2), pipes and TCP
(same-host); perftest in three placements beside UDP, TCP and memcpy
(placements); one of many QPs (qps); connections per second (connections); the
instructions of a message (instructions). All of them, unless some are named.

Every figure is the median of several runs. What it is compared with is measured
in the same minutes on the same machine, so the ratios are meaningful, not the
absolute numbers. Prints a table; writes bench-results/TIME.json.
"""
import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "clients"))
import instructions
import rig
import same_host

REFERENCE = os.path.join(rig.BUILD, "tests", "bench", "reference")
CONN_RATE = os.path.join(rig.BUILD, "tests", "bench", "conn_rate")
LAT_SIZES = [2, 4096]
BW_SIZES = [64, 4096, 65536, 1 << 20]
OPS = ["send", "write", "read"]
PARTS = ["same-host", "placements", "qps", "connections", "instructions"]
PLACES = ["local", "wire", "netns"]
TITLES = {"local": "same host", "wire": "loopback wire", "netns": "two namespaces"}
# Messages of a bandwidth run: enough for a good fraction of a second.
COUNTS = {64: 60000, 4096: 20000, 65536: 4000, 1 << 20: 400}


def say(text=""):
    print(text, flush=True)


def size_name(n):
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB" if n >= 1024 else f"{n} B"


def bandwidth(x):
    return f"{x / 1e9:.2f} GB/s" if x >= 1e8 else f"{x / 1e6:.1f} MB/s"


def raw(side, *cmd):
    """Starts a reference command, without softhca."""
    return subprocess.Popen([*side.prefix, *map(str, cmd)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


class Bench:
    def __init__(self, runs, scale, places):
        self.runs, self.scale = runs, scale
        self.places = places
        self.results = []
        self.missing = 0  # figures of which every run failed
        self.counts = None

    def add(self, name, size, place, unit, values, **more):
        good = [v for v in values if v is not None and v > 0]
        if failed := len(values) - len(good):
            say(f"  {name} {size_name(size)}, {place}: {failed} of {len(values)} runs failed")
        if not good:
            self.missing += 1
            return
        self.results.append(dict(test=name, size=size, placement=place, unit=unit,
                                 median=statistics.median(good), runs=good, failed=failed, **more))

    def get(self, name, size, place):
        for r in self.results:
            if (r["test"], r["size"], r["placement"]) == (name, size, place):
                return r["median"]
        return None

    # ------------------------------------------------------------ references

    def udp(self, place, kind, size):
        port = rig.free_port()
        # Two spinning processes on one CPU would measure the scheduler.
        cpus = sorted(os.sched_getaffinity(0))
        pin = [["taskset", "-c", str(c)] for c in (cpus[0], cpus[-1])]
        server = raw(place.server, *pin[0], REFERENCE, kind, size, 1, port)
        time.sleep(0.1)
        client = raw(place.client, *pin[1], REFERENCE, kind, size, 0.3 * self.scale, port,
                     place.address)
        try:
            mine, theirs = client.communicate(timeout=30)[0], server.communicate(timeout=30)[0]
            text = mine if kind == "udp_lat" else theirs
            return float(text) if text.strip() else None
        finally:
            client.kill()
            server.kill()

    def tcp(self, place):
        port = rig.free_port()
        server = raw(place.server, "iperf3", "-s", "-1", "-p", port)
        client = None
        try:
            time.sleep(0.3)
            client = raw(place.client, "iperf3", "-c", place.address, "-p", port, "-J",
                         "-t", max(1, round(self.scale)))
            out = json.loads(client.communicate(timeout=30)[0])
            return out["end"]["sum_received"]["bits_per_second"] / 8
        except (ValueError, KeyError):
            return None
        finally:
            server.kill()
            if client:
                client.kill()

    def memcpy(self, size):
        out = subprocess.run([REFERENCE, "memcpy", str(size), str(0.1 * self.scale)],
                             stdout=subprocess.PIPE, text=True)
        return float(out.stdout)

    def references(self):
        for size in BW_SIZES:
            self.add("memcpy", size, "memory", "B/s", [self.memcpy(size) for _ in range(self.runs)])
        for p in self.places:
            if p.name == "local":
                continue  # the same as "wire"
            for size in LAT_SIZES:
                self.add("udp_lat", size, p.name, "us",
                         [self.udp(p, "udp_lat", size) for _ in range(self.runs)])
            self.add("udp_bw", p.mtu, p.name, "B/s",
                     [self.udp(p, "udp_bw", p.mtu) for _ in range(self.runs)])
            self.add("tcp_bw", 131072, p.name, "B/s", [self.tcp(p) for _ in range(self.runs)])
            say(f"  {TITLES[p.name]}: references done")

    # -------------------------------------------------------------- perftest

    def perftest(self, place, tool, size, n):
        try:
            pair = place.tool(tool, "-F", "-s", size, "-n", n, limit=60,
                              **({"client_args": ["-N"], "server_args": ["-N"]} if "_bw" in tool else {}))
        except rig.Failed as e:
            say(str(e)[-1500:])
            return None
        for line in pair.client.output().splitlines():
            f = line.split()
            if len(f) >= 5 and f[0] == str(size) and f[1].isdigit():
                if "_lat" in tool:
                    return float(f[4])               # t_typical: the median, us
                return float(f[4]) * 1e6 * size       # message rate, Mpps
        return None

    def softhca(self):
        for p in self.places:
            for op in OPS:
                for size in LAT_SIZES:
                    n = int(4000 * self.scale)
                    self.add(f"ib_{op}_lat", size, p.name, "us",
                             [self.perftest(p, f"ib_{op}_lat", size, n) for _ in range(self.runs)])
                for size in BW_SIZES:
                    n = int(COUNTS[size] * self.scale * 0.5)
                    self.add(f"ib_{op}_bw", size, p.name, "B/s",
                             [self.perftest(p, f"ib_{op}_bw", size, n) for _ in range(self.runs)])
                say(f"  {TITLES[p.name]}: {op} done")

    def many_qps(self):
        place = self.places[0]
        for n in (1, 100, 10000):
            values = []
            for _ in range(min(self.runs, 3)):
                try:
                    out = place.server.run([rig.client("scale"), "time", n], limit=120)
                    values.append(float(re.search(r"ns_per_op=(\d+)", out)[1]) / 1e3)
                except rig.Failed as e:
                    say(str(e)[-800:])
            self.add(f"write_8B_on_one_of_{n}_qps", 8, "local", "us", values)

    # ----------------------------------------------------------- connections

    def connections(self, n=1000):
        """Connections set up and closed per second, server and client on one
        processor: rdma_cm in each placement on one host, and TCP between them."""
        pin = ["taskset", "-c", str(max(os.sched_getaffinity(0)))]
        places = [p for p in self.places if p.name != "netns"]
        rates = {}
        for _ in range(max(self.runs, 3)):
            for p in places:
                side = rig.Side([*p.server.prefix, *pin])
                try:
                    out = side.run([CONN_RATE, "rdma", n, p.address], p.options)
                    rates.setdefault(("rdma_cm", p.name), []).append(out.split())
                except rig.Failed as e:
                    say(str(e)[-800:])
                tcp = raw(side, CONN_RATE, "tcp", n, p.address).communicate(timeout=60)[0]
                rates.setdefault(("tcp", "wire"), []).append(tcp.split())
        for (name, place), values in rates.items():
            values = [v for v in values if len(v) == 2]
            for i, what in enumerate(("setup", "setup_close")):
                self.add(f"conn_{name}_{what}", n, place, "1/s", [float(v[i]) for v in values])
        say("  connections done")

    def connection_table(self):
        rows = [r for r in self.results if r["test"].startswith("conn_")]
        if not rows:
            return
        n = rows[0]["size"]
        say()
        say(f"{n} connections at once, both ends on one processor: per second")
        for name, place, title in (("rdma_cm", "local", "rdma_cm, same host"),
                                   ("rdma_cm", "wire", "rdma_cm, loopback wire"),
                                   ("tcp", "wire", "TCP")):
            both = self.get(f"conn_{name}_setup_close", n, place)
            setup = self.get(f"conn_{name}_setup", n, place)
            if not both or not setup:
                continue
            tcp = self.get("conn_tcp_setup_close", n, "wire")
            ratio = f"  {both / tcp:.2f} TCP" if tcp and name != "tcp" else ""
            say(f"  {title:24}{setup:>8.0f} set up  {both:>8.0f} set up and closed{ratio}")

    # ---------------------------------------------------------- instructions

    def instructions(self):
        try:
            self.counts = instructions.count()
        except RuntimeError as e:
            self.missing += 1
            say(str(e))
            return
        for (kind, part), (n, readings) in self.counts.items():
            self.results.append(dict(test=f"instructions_{part}", size=instructions.SIZES[kind.removeprefix("ring_")],
                                     placement=kind, unit="instructions", median=n, runs=[n],
                                     failed=0, clock_readings=readings))
        say("  instructions done")

    # ---------------------------------------------------------------- report

    def ratio(self, r):
        """What a result is compared with, and how many times that it is."""
        wire = "wire" if r["placement"] == "local" else r["placement"]
        if "_lat" in r["test"]:
            base = self.get("udp_lat", r["size"], wire)
            trips = 2 if "read" in r["test"] else 1  # a read is there and back
            return ("UDP", r["median"] / base / trips) if base else None
        if r["placement"] == "local":
            base = self.get("memcpy", r["size"], "memory")
            return ("memcpy", r["median"] / base) if base else None
        base = self.get("tcp_bw", 131072, wire)
        return ("TCP", r["median"] / base) if base else None

    def table(self):
        if any(r["test"].startswith("ib_") for r in self.results):
            self.placement_table()
        say()
        for r in self.results:
            if r["test"].startswith("write_8B"):
                say(f"  {r['test'].replace('_', ' '):34}{r['median']:.2f} us")
        self.connection_table()
        if self.counts:
            say()
            say(instructions.table(self.counts))

    def placement_table(self):
        names = [p.name for p in self.places]
        say()
        say(f"{'':22}" + "".join(f"{TITLES[n]:>28}" for n in names))
        for op in OPS:
            for kind, sizes in (("lat", LAT_SIZES), ("bw", BW_SIZES)):
                for size in sizes:
                    row = f"ib_{op}_{kind}  {size_name(size)}".ljust(22)
                    for n in names:
                        cell = "-"
                        for r in self.results:
                            if (r["test"], r["size"], r["placement"]) == (f"ib_{op}_{kind}", size, n):
                                value = f"{r['median']:.2f} us" if kind == "lat" else bandwidth(r["median"])
                                with_what = self.ratio(r)
                                cell = value + (f"  {with_what[1]:.2f} {with_what[0]}" if with_what else "")
                        row += f"{cell:>28}"
                    say(row)
        say()
        say("beside it, in the same run")
        for r in self.results:
            if not r["test"].startswith(("ib_", "write_8B", "conn_", "instructions_")):
                value = f"{r['median']:.2f} us one way" if r["unit"] == "us" else bandwidth(r["median"])
                where = TITLES.get(r["placement"], "")
                say(f"  {r['test']:10}{size_name(r['size']):>9}  {where:16}{value}")
        say()
        say("Ratios: latencies over a spinning UDP ping-pong (a read over twice that), so less is")
        say("better; bandwidths over memcpy or TCP, so more is better.")

    def save(self, started, quick, same):
        for r in self.results:
            if r["test"].startswith("ib_") and (x := self.ratio(r)):
                r["ratio"] = {"to": x[0], "value": round(x[1], 4)}
            if r["test"].startswith("conn_rdma_cm_"):
                tcp = self.get(r["test"].replace("rdma_cm", "tcp"), r["size"], "wire")
                if tcp:
                    r["ratio"] = {"to": "TCP", "value": round(r["median"] / tcp, 4)}
        commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=rig.ROOT,
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        folder = os.path.join(rig.ROOT, "bench-results")
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, started.strftime("%Y%m%d-%H%M%S") + ".json")
        with open(path, "w") as f:
            json.dump({"format": 1, "started": started.isoformat(timespec="seconds"), "quick": quick,
                       "commit": commit.stdout.strip() or None,
                       "machine": {"kernel": platform.release(), "arch": platform.machine(),
                                   "cpus": os.cpu_count(), "load": os.getloadavg()},
                       "results": self.results, "same_host": same and same.save()}, f, indent=1)
            f.write("\n")
        say(f"{os.path.relpath(path, os.getcwd())}")


def make_places(wanted):
    """The three placements. All of them live in namespaces where these may be
    made, so that nobody else's port 4791 is in the way; else two, on this host."""
    places = []
    net = None
    try:
        net = rig.Network(9000)
        home = net.a
    except rig.NoNamespaces as e:
        home = []
        say(f"No network namespaces here ({e}): leaving out \"two namespaces\".")
    for name in wanted:
        if name == "netns":
            if not net:
                continue
            p = rig.Placement(name, rig.Side(net.b), rig.Side(net.a), "10.91.0.2", "fd91::2")
            p.address = "10.91.0.2"
        else:
            side = rig.Side(home)
            p = rig.Placement(name, side, side, "127.0.0.1", "::1", ["--wire"] if name == "wire" else [])
            p.address = "127.0.0.1"
        out = p.client.run(["ibv_devinfo"])
        p.mtu = int(re.search(r"active_mtu:\s+(\d+)", out)[1])
        places.append(p)
    return net, places


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("part", nargs="*", help=f"{', '.join(PARTS)} (all)")
    ap.add_argument("--quick", action="store_true", help="one short run of each, about a minute")
    ap.add_argument("--runs", type=int, help="runs of each test (3; same-host 5)")
    ap.add_argument("--place", action="append", choices=PLACES, help="only this placement")
    ap.add_argument("--way", choices=["auto", "copy", "udp"], help="how processes of this host reach each other")
    args = ap.parse_args()
    if wrong := set(args.part) - set(PARTS):
        ap.error(f"no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    parts = args.part or PARTS
    if missing := rig.need("ib_send_lat", "iperf3"):
        sys.exit(f"Missing: {', '.join(missing)}. Run: make deps")
    started = datetime.datetime.now()
    clock = time.monotonic()
    net, places = make_places(args.place or PLACES)
    load = os.getloadavg()[0]
    if load > 0.7:
        say(f"This machine is busy (load {load:.1f} on {os.cpu_count()} processors): "
            "the figures will be worse and scatter more than they should.")
    scale = 0.3 if args.quick else 1.0
    bench = Bench(args.runs or (1 if args.quick else 3), scale, places)
    same = None
    try:
        if "same-host" in parts:
            same = same_host.SameHost(net.a if net else [], args.runs or (1 if args.quick else 5), scale,
                                      args.way, say)
            same.run()
        if "placements" in parts:
            bench.references()
            bench.softhca()
        if "qps" in parts:
            bench.many_qps()
        if "connections" in parts:
            bench.connections()
        if "instructions" in parts:
            bench.instructions()
    finally:
        if same:
            same.close()
        if net:
            net.close()
    if same:
        same.table()
    bench.table()
    bench.save(started, args.quick, same)
    say(f"{time.monotonic() - clock:.0f} s")
    return 1 if bench.missing or (same and same.failed) else 0


if __name__ == "__main__":
    sys.exit(main())
