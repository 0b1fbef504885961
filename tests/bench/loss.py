"""Goodput where packets are lost or late, and fairness where they queue.

Two namespaces and a veth pair with the MTU of an Ethernet. Both ends drop what
they receive at UDP port 4791, at random (nftables' numgen): the server data, the
client acknowledgements; the figures beside the table are of one direction
alone. Loss-free is behind the same rule, which drops none then, since the rule
itself costs a tenth where a processor is the limit. The veth pair carries single packets: by default one would be a run of
up to 64 (GSO), and lost as one. Reordering is netem's, fairness that of
processes through one token bucket (tbf) with a short queue.
"""
import contextlib
import subprocess
import sys

import probes
import rig
from probes import KIB64, LEAST, MIB, Missing, need

MTU = 1500
FLOWS = 16
SECONDS = 1         # of a run; perftest takes another 1.3 to set up
FAIR_SECONDS = 3    # of one that shall be fair
LATE = "100us"      # what is late, comes that much later
RATE, QUEUE = "1gbit", "256k"
LOSSES = [0, 0.1, 1, 5]
DATA, ACKS = ("b",), ("a",)     # the namespace that drops


class Probes(probes.Namespaces):
    def __init__(self):
        super().__init__(MTU)

    def command(self, end, what, *cmd):
        """Of the kernel's this needs what."""
        if self.why:
            raise Missing(self.why)
        need(cmd[0])
        done = subprocess.run([*getattr(self.net, end), *cmd], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=10)
        if done.returncode:
            raise Missing(f"no {what} here ({done.stdout.strip().splitlines()[0]})")

    @contextlib.contextmanager
    def losing(self, percent, ends):
        chosen = f"< {round(percent * 10)} drop" if percent else "< 1 accept"
        rule = f"udp dport 4791 numgen random mod 1000 {chosen}"
        try:
            for end in ends:
                self.command(end, "numgen", "nft", "add table inet bench; add chain inet bench in "
                             f"{{ type filter hook input priority 0; }}; add rule inet bench in {rule}")
            yield
        finally:
            for end in ends:
                self.command(end, "nftables", "nft", "flush ruleset")

    @contextlib.contextmanager
    def queueing(self, ends, *qdisc):
        try:
            for end in ends:
                self.command(end, qdisc[0], "tc", "qdisc", "replace", "dev", "hca0", "root", *qdisc)
            yield
        finally:
            for end in ends:
                subprocess.run([*getattr(self.net, end), "tc", "qdisc", "del", "dev", "hca0", "root"],
                               stderr=subprocess.DEVNULL, timeout=10)

    # ------------------------------------------------------------------ flows

    @staticmethod
    def command_of(seconds, margin, *more):
        return ["ib_write_bw", "-F", "-s", KIB64, "-D", seconds + 2 * margin, "-f", margin, *more]

    @staticmethod
    def bytes_per_second(proc):
        return float(probes.figures(proc, KIB64)[3]) * MIB

    def writes(self, qps):
        if self.why:
            raise Missing(self.why)
        pair = self.place.tool(*self.command_of(SECONDS, 0, "-q", qps), limit=30)
        return self.bytes_per_second(pair.client)

    def processes(self, seconds=SECONDS):
        """The rates of as many pairs of processes at the same time: a second before
        is for all to start, and one behind for all to be there still."""
        if self.why:
            raise Missing(self.why)
        started, cmd = [], self.command_of(seconds, 1)
        try:
            ports = [rig.free_port() for _ in range(FLOWS)]
            for port in ports:
                started.append(rig.Proc(self.place.server, [*cmd, "-p", port]))
            for server, port in zip(started, ports):
                server.wait_listening(port)
            for port in ports:
                started.append(rig.Proc(self.place.client, [*cmd, "-p", port, self.place.host]))
            for proc in started[FLOWS:]:
                proc.done(15)
            return [self.bytes_per_second(proc) for proc in started[FLOWS:]]
        finally:
            for proc in started:
                proc.kill()

    # ----------------------------------------------------------------- figures

    def goodput(self, flows, percent, ends=DATA + ACKS):
        with self.losing(percent, ends):
            return flows(self)

    def reordered(self, flows):
        with self.queueing("ab", "netem", "limit", "10000", "delay", LATE, "reorder", "99%"):
            return flows(self)

    def fairness(self):
        """Jain's index: 1 if all have the same, 1/n if one of n has all."""
        with self.queueing("a", "tbf", "rate", RATE, "burst", "64k", "limit", QUEUE):
            rates = self.processes(FAIR_SECONDS)
        self.together = sum(rates)
        return self.together ** 2 / len(rates) / sum(r * r for r in rates)


KINDS = {
    "one": ("one QP", lambda p: p.writes(1)),
    "qps": (f"{FLOWS} QPs", lambda p: p.writes(FLOWS)),
    "processes": (f"{FLOWS} processes", lambda p: sum(p.processes())),
}
PROBES = {
    **{f"{kind}_{percent:g}": ("B/s", lambda p, flows=flows, percent=percent: p.goodput(flows, percent))
       for kind, (_, flows) in KINDS.items() for percent in LOSSES if kind != "processes" or percent != 0.1},
    "one_bare": ("B/s", lambda p: p.writes(1)),
    "one_late": ("B/s", lambda p: p.reordered(KINDS["one"][1])),
    "one_data": ("B/s", lambda p: p.goodput(KINDS["one"][1], 1, DATA)),
    "one_acks": ("B/s", lambda p: p.goodput(KINDS["one"][1], 1, ACKS)),
    "jain": ("", lambda p: p.fairness()),
    "bucket": ("B/s", lambda p: p.together),
}
ONCE = ()
TABLE = [
    *((f"{KINDS[kind][0]}, {percent:g} % lost", f"{kind}_{percent:g}", LEAST, bound, f"{kind}_0")
      for kind in KINDS for percent, bound in ((0.1, 0.9), (1, 0.6), (5, 0.2)) if f"{kind}_{percent:g}" in PROBES),
    (f"one QP, 1 % {LATE} late", "one_late", LEAST, 0.5, "one_bare"),
    (f"Jain's index, {FLOWS} processes, {RATE}", "jain", LEAST, 0.9, None),
]
NAMES = {
    **{f"{kind}_0": "loss-free" for kind in KINDS},
    "one_bare": "no rule",
    "one_data": "one QP, 1 % of the data lost", "one_acks": "one QP, 1 % of the acknowledgements lost",
    "bucket": f"{FLOWS} processes through {RATE}",
}
BESIDE = ["one_bare", "one_data", "one_acks", "bucket"]
AGAIN = ("each loss takes a round trip, in which the window is used up, or, where several are out, has all behind them "
         "sent again; then the window is narrow for a while (src/roce/congestion.c)")
LIMITS = {name: AGAIN for name in PROBES if name[-2:] != "_0"}


def part(runs, say, only):
    return probes.Part(f"64 KiB writes over a network that loses packets, MTU {MTU}", sys.modules[__name__], Probes(),
                       runs, say, only, seconds=115)
