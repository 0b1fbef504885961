"""A disk by iSER under softhca, beside the same disk by iSCSI over TCP.

One tgtd, under softhca, serves a file in memory both ways; libiscsi asks for it (iscsi_load.c), by TCP without
softhca. What differs is how requests and data travel.
"""
import os
import sys
import tempfile

import probes
import rig
import tgt
from probes import KIB64, LEAST, MOST, Missing

SIZE = 64 << 20
DISK = {"iser": "iqn.2026-01.test:rdma", "iscsi": "iqn.2026-01.test:tcp"}
WHERE = {"one": "one host", "netns": "two namespaces"}
# what: (title, unit, direction, bytes, how many at once)
WHAT = {"lat": ("4 KiB random reads, one at a time", "us", "read", 4096, 1),
        "iops": ("4 KiB random reads, 32 at once", "1/s", "read", 4096, 32),
        "write": ("128 KiB writes in order, 8 at once", "B/s", "write", 2 * KIB64, 8)}
TOLD = 1.5      # times as good as TCP it shall be on one host


class Target:
    """tgtd in a placement, with a disk for each way, in memory that nobody else writes to."""

    def __init__(self, place):
        self.place = place
        self.ports = {"iscsi": rig.free_port(), "iser": rig.free_port()}
        self.home = tempfile.TemporaryDirectory(prefix="softhca-bench-", dir="/dev/shm")
        self.tgtd = tgt.Tgtd(self.home.name, lambda argv, env: rig.Proc(place.server, argv, place.options, env), place.host,
                             self.ports["iscsi"], self.ports["iser"])
        try:
            rig.until(self.tgtd.is_up, "tgtd listens for tgtadm", self.tgtd.proc)
            for tid, (kind, name) in enumerate(DISK.items(), 1):
                backing = os.path.join(self.home.name, kind)
                with open(backing, "wb") as f:
                    f.write(bytes(range(256)) * (SIZE // 256))
                self.tgtd.serve(kind, tid, backing, name)
        except BaseException:
            self.close()
            raise

    def load(self, kind, *words):
        """Requests that end in a second, and us that one takes."""
        url = f"{kind}://{self.place.host}:{self.ports[kind]}/{DISK[kind]}/1"
        client = rig.Proc(self.place.client, [os.path.join(probes.BENCH, "iscsi_load"), url, *words], self.place.options,
                          alone=kind == "iscsi")
        return map(float, client.done(30, beside=self.tgtd.proc).splitlines()[-1].split())

    def close(self):
        self.tgtd.proc.kill()
        self.home.cleanup()


class Probes:
    def __init__(self, net, scale):
        names = {"one": "local", **({"netns": "netns"} if net else {})}
        self.places = {name: probes.placement(place, net) for name, place in names.items()}
        self.scale, self.targets = scale, {}

    def measure(self, kind, what, where):
        probes.need("tgtd", "tgtadm")
        if not os.path.exists(os.path.join(probes.BENCH, "iscsi_load")):
            raise Missing("iscsi_load was not built: libiscsi-dev is not installed (scripts/deps storage)")
        if os.geteuid():
            raise Missing("tgtd wants to be root")
        if where not in self.places:
            raise Missing("no network namespaces here")
        if where not in self.targets:
            self.targets[where] = Target(self.places[where])
        _, unit, direction, size, depth = WHAT[what]
        rate, us = self.targets[where].load(kind, direction, size, depth, max(self.scale, 0.1))
        return us if unit == "us" else rate * size if unit == "B/s" else rate

    def close(self):
        for target in self.targets.values():
            target.close()


PROBES = {f"{kind}_{what}_{where}": (unit, lambda p, args=(kind, what, where): p.measure(*args))
          for where in WHERE for what, (_, unit, *_) in WHAT.items() for kind in DISK}
ONCE = ()
TABLE = [(f"{title}, {place}", f"iser_{what}_{where}", MOST if unit == "us" else LEAST,
          1 if where != "one" else round(1 / TOLD, 2) if unit == "us" else TOLD, f"iscsi_{what}_{where}")
         for where, place in WHERE.items() for what, (title, unit, *_) in WHAT.items()]
NAMES = {f"iscsi_{what}_{where}": "TCP" for what in WHAT for where in WHERE}
BESIDE = ()
WAKES = ("a message wakes softhca's thread, and that the program, as neither end sleeps in ibv_get_cq_event(); so does the "
         "acknowledgement of each request: 4 context switches of the initiator and 4 of tgtd for a read on one host, 5 and 6 "
         "between namespaces, where TCP has 1 and 3; and an answer by UDP is three sendmsg(2)")
COPIES = ("copies: libiscsi's into the memory that it has registered, one by the READ, and tgtd's into its file; by TCP there are "
          "as many")
LIMITS = {**{f"iser_{what}_{where}": WAKES for what in ("lat", "iops") for where in WHERE},
          **{f"iser_write_{where}": COPIES for where in WHERE}}


def part(net, runs, scale, say, only):
    return probes.Part("a disk of tgt by iSER, beside TCP", sys.modules[__name__], Probes(net, scale), runs, say, only)
