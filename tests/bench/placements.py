"""perftest in three placements: within the host, by UDP on loopback, between two
namespaces; each beside UDP, TCP and memcpy there."""
import re
import statistics

import rig
from probes import Missing, shown

LAT_SIZES = [2, 4096]
BW_SIZES = [64, 4096, 65536, 1 << 20]
OPS = ["send", "write", "read"]
PLACES = ["local", "wire", "netns"]
TITLES = {"local": "same host", "wire": "loopback wire", "netns": "two namespaces"}
# Messages of a bandwidth run: enough for a good fraction of a second.
COUNTS = {64: 60000, 4096: 20000, 65536: 4000, 1 << 20: 400}


def size_name(n):
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB" if n >= 1024 else f"{n} B"


class Placements:
    def __init__(self, places, runs, scale, say, only=None):
        """places: {name: its Probes}; only: of figures whose name and size match"""
        self.places = places
        self.runs, self.scale, self.say, self.only = runs, scale, say, only
        self.results = []
        self.failed = 0  # figures of which every run failed

    def add(self, name, size, place, unit, measure):
        good = []
        if self.only and not re.search(self.only, f"{name} {size_name(size)}"):
            return
        for _ in range(self.runs):
            try:
                good.append(measure())
            except (rig.Failed, Missing, ValueError, IndexError, KeyError) as e:
                self.say(str(e)[-1500:])
        if failed := self.runs - len(good):
            self.say(f"  {name} {size_name(size)}, {place}: {failed} of {self.runs} runs failed")
        if not good:
            self.failed += 1
            return
        self.results.append(dict(test=name, size=size, placement=place, unit=unit,
                                 median=statistics.median(good), runs=good, failed=failed))

    def get(self, name, size, place):
        for r in self.results:
            if (r["test"], r["size"], r["placement"]) == (name, size, place):
                return r["median"]
        return None

    def references(self):
        one = next(iter(self.places.values()))
        for size in BW_SIZES:
            self.add("memcpy", size, "memory", "B/s", lambda: one.memcpy(size))
        for name, p in self.places.items():
            if name == "local":
                continue  # the same as "wire"
            for size in LAT_SIZES:
                self.add("udp_lat", size, name, "us", lambda: p.udp_lat(size))
            self.add("udp_bw", p.mtu(), name, "B/s", lambda: p.udp_bw(p.mtu()))
            self.add("tcp_bw", 131072, name, "B/s", lambda: p.tcp_bw(131072))
            self.say(f"  {TITLES[name]}: references done")

    def run(self):
        self.references()
        for name, p in self.places.items():
            for op in OPS:
                for size in LAT_SIZES:
                    self.add(f"ib_{op}_lat", size, name, "us",
                             lambda: p.perftest(f"ib_{op}_lat", size, n=int(4000 * self.scale)))
                for size in BW_SIZES:
                    self.add(f"ib_{op}_bw", size, name, "B/s",
                             lambda: p.perftest_bytes(f"ib_{op}_bw", size, n=int(COUNTS[size] * self.scale * 0.5)))
                self.say(f"  {TITLES[name]}: {op} done")

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

    def cell(self, test, size, place):
        for r in self.results:
            if (r["test"], r["size"], r["placement"]) == (test, size, place):
                with_what = self.ratio(r)
                return shown(r["median"], r["unit"]) + (f"  {with_what[1]:.2f} {with_what[0]}" if with_what else "")
        return "-"

    def print(self):
        say = self.say
        say()
        say(f"{'':22}" + "".join(f"{TITLES[n]:>28}" for n in self.places))
        for op in OPS:
            for kind, sizes in (("lat", LAT_SIZES), ("bw", BW_SIZES)):
                for size in sizes:
                    say(f"ib_{op}_{kind}  {size_name(size)}".ljust(22)
                        + "".join(f"{self.cell(f'ib_{op}_{kind}', size, n):>28}" for n in self.places))
        say()
        say("beside it, in the same run")
        for r in self.results:
            if not r["test"].startswith("ib_"):
                value = shown(r["median"], r["unit"]) + (" one way" if r["unit"] == "us" else "")
                say(f"  {r['test']:10}{size_name(r['size']):>9}  {TITLES.get(r['placement'], ''):16}{value}")
        say()
        say("Ratios: latencies over a spinning UDP ping-pong (a read over twice that), so less is")
        say("better; bandwidths over memcpy or TCP, so more is better.")

    def save(self):
        for r in self.results:
            if r["test"].startswith("ib_") and (x := self.ratio(r)):
                r["ratio"] = {"to": x[0], "value": round(x[1], 4)}
        return self.results
