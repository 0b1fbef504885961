"""What a transport over several rails pays: for memory that it registers, beside what touching it costs, and for
writes that it posts, from many threads and as lists (rails.c)."""
import sys

import probes
import rig
from probes import LEAST, MOST, Missing
from scale import fields

RAILS = ["--rails=4", "--names=mlx5_%d"]
PAGES = {"4k": "4 KiB", "2m": "2 MiB"}
REGIONS = {"one": "one region", "many": "256 regions"}
AGAIN = {"": "registered", "_again": "on another rail"}
WAYS = {"": [], "_wire": ["--wire"]}
# queue pairs on each rail, rails, threads, length of the lists
ONE, LISTS, MANY, ALONE = (1, 1, 1, 1), (1, 1, 1, 256), (16, 4, 8, 1), (16, 4, 1, 1)


class Probes(probes.Probes):
    """Threads run on all processors."""

    def __init__(self, net, scale):
        super().__init__(probes.placement("local", net, RAILS), scale)
        self.side = rig.Side(net.a if net else [])
        self.mib = 1024 if scale >= 0.1 else 64
        self.left = {}  # of a run's figures: those that have yet to be asked for

    def figure(self, name, *args, options=()):
        if name not in self.left.get((args, *options), {}):
            out = self.program("rails", *args, options=[*RAILS, *options], side=self.side)
            if out.startswith("none:"):
                raise Missing(out[6:].strip())
            self.left[(args, *options)] = fields(out)
        return self.left[(args, *options)].pop(name)

    def memory(self, name, pages):
        return self.figure(name, "register", self.mib, pages, self.mib // 4)

    def post(self, name, what, way):
        return self.figure(name, "post", *what, 0.5 * self.scale, options=WAYS[way])


PROBES = {
    "tables": ("B", lambda p: 1024 * p.memory("touch_tables_kib", "4k")),
    **{f"{what}_{pages}": ("us", lambda p, what=what, pages=pages: p.memory(f"{what}_us", pages))
       for pages in PAGES for what in ("touch", "touch_again", *(f"{n}{again}" for n in REGIONS for again in AGAIN))},
    **{f"memory_{pages}": ("B", lambda p, pages=pages: 1024 * p.memory("many_kib", pages)) for pages in PAGES},
    **{f"{name}{way}": ("1/s", lambda p, what=what, way=way: p.post("rate", what, way)) for way in WAYS
       for name, what in (("one", ONE), ("lists", LISTS), ("many", MANY), ("alone", ALONE))},
    **{f"{name}_ns{way}": ("us", lambda p, what=what, way=way: p.post("post_ns", what, way) / 1e3) for way in WAYS
       for name, what in (("one", ONE), ("lists", LISTS))},
}
ONCE = ()

TABLE = [
    *((f"{how}, {PAGES[pages]} pages, {REGIONS[n]}", f"{n}{again}_{pages}", MOST, 1.1, f"touch_{pages}")
      for again, how in AGAIN.items() for pages in PAGES for n in REGIONS),
    *((f"memory beside {PAGES[pages]} pages, 256 regions", f"memory_{pages}", MOST, 1.0, "tables") for pages in PAGES),
    *((f"{title}{', by UDP' if way else ''}", f"{name}{way}", how, 1.0, f"{than}{way}") for way in WAYS
      for title, name, how, than in (("64 B writes, 16 QPs x 4 rails x 8 threads", "many", LEAST, "alone"),
                                     ("64 B writes, 16 QPs x 4 rails x 8 threads", "many", LEAST, "one"),
                                     ("64 B writes, lists of 256", "lists", LEAST, "one"),
                                     ("posting each, lists of 256", "lists_ns", MOST, "one_ns"))),
]
NAMES = {
    "tables": "page tables of 4 KiB pages",
    **{f"touch_{pages}": "touched" for pages in PAGES},
    **{f"touch_again_{pages}": f"touched again, {name} pages" for pages, name in PAGES.items()},
    **{f"one{way}": "one QP, one thread" for way in WAYS},
    **{f"one_ns{way}": "one at a time" for way in WAYS},
    **{f"alone{way}": "the same QPs, one thread" for way in WAYS},
}
BESIDE = [f"touch_again_{pages}" for pages in PAGES]
# As far as perf probe and strace -c show: docs/PERFORMANCE.md.
LIMITS = {"many_wire": "a sendmsg(2) carries 20 writes of one QP and 6 or 7 of 64, each of which is a flow with a source port of "
                       "its own",
          "many": "the ring to the other process is full: it has room for 1,000 such writes, and 64 queue pairs have "
                  "32,768 on their way, which then go the slower way of batches",
          "lists": "the other end, which takes writes from the ring no faster: lists only make posting cheaper"}


def part(net, runs, scale, say, only):
    return probes.Part("a transport over four rails: 1 GiB of memory, and writes to another process of this host",
                       sys.modules[__name__], Probes(net, scale), runs, say, only, seconds=50)
