"""Datagrams at port 4791 that are nobody's business, while a transfer runs.

Two namespaces and a veth pair that carries single packets. Who floods is in the
client's namespace: random bytes and sound packets come from another address
than the client's, by tests/clients/src/storm.c; copies of the client's own
packets with wrong PSNs, QPNs, ICRCs and what not from the client's, by
tests/peer/src/mutate.c. The flood has no processor of its own.
"""
import os
import re
import sys

import probes
import rig
from probes import KIB64, LEAST, MIB, Missing

MTU = 1500
SECONDS = 5         # of a run; the three with a flood together take 20
MARGIN = 1          # s, that perftest does not count, at either end
RATE = 50000        # datagrams a second
STRANGER, TARGET = "10.91.0.66", "10.91.0.2"
STORM = rig.client("storm")
MUTATE = os.path.join(rig.BUILD, "tests", "peer", "mutate")


class Probes(probes.Namespaces):
    def __init__(self, say):
        self.say = say
        super().__init__(MTU)

    def prepare(self):
        self.words = ["-x", rig.Side(self.net.a).gid_index(4)], ["-x", rig.Side(self.net.b).gid_index(4)]
        rig.ip(self.net.a, f"addr add {STRANGER}/24 dev hca0")

    def flood(self, kind, remote):
        """The command; remote: the server's end, as perftest shows it."""
        count = RATE * (SECONDS + 2 * MARGIN)
        if kind == "mutated":
            return [MUTATE, "-i", "hca0", "-t", TARGET, "-n", count, "-r", RATE]
        if kind == "random":
            return [STORM, "-m", "random", "-n", count, "-P", RATE, "-S", STRANGER, TARGET]
        victim = ":".join(str(int(remote[name], 0)) for name in ("QPN", "PSN", "RKey", "VAddr"))
        return [STORM, "-m", "sound", "-n", count, "-P", RATE, "-S", STRANGER, "-v", victim, TARGET]

    def writes(self, kind=None):
        """Bytes per second of a transfer, while a flood of this kind lasts."""
        if self.why:
            raise Missing(self.why)
        port = rig.free_port()
        # The client shows its peer's numbers when it has them, not at its end.
        cmd = ["stdbuf", "-oL", "ib_write_bw", "-F", "-s", KIB64, "-D", SECONDS + 2 * MARGIN, "-f", MARGIN, "-p", port]
        server = rig.Proc(self.place.server, [*cmd, *self.words[1]])
        client = flood = None
        try:
            server.wait_listening(port)
            client = rig.Proc(self.place.client, [*cmd, *self.words[0], self.place.host])
            if kind:
                line = client.wait_for(r"remote address:.* VAddr \w+")[0]
                remote = dict(re.findall(r"(\w+) (0x\w+)", line))
                flood = rig.Proc(rig.Side(self.net.a), self.flood(kind, remote), alone=True)
            rig.Pair(server, client).end(limit=30)
            if flood:
                self.say(f"    {kind}: {flood.done(30).strip()}")
            return float(probes.figures(client, KIB64)[3]) * MIB
        finally:
            for proc in (server, client, flood):
                if proc:
                    proc.kill()


PROBES = {
    "quiet": ("B/s", lambda p: p.writes()),
    **{kind: ("B/s", lambda p, kind=kind: p.writes(kind)) for kind in ("random", "mutated", "sound")},
}
ONCE = ()
TABLE = [
    ("random bytes", "random", LEAST, 0.5, "quiet"),
    ("mutated packets of the peer's", "mutated", LEAST, 0.5, "quiet"),
    ("sound packets of a stranger's", "sound", LEAST, 0.5, "quiet"),
]
NAMES = {"quiet": "without any"}
BESIDE = []
LIMITS = {}


def part(runs, say, only):
    return probes.Part(f"64 KiB writes while {RATE} datagrams a second come to port 4791, MTU {MTU}",
                       sys.modules[__name__], Probes(say), runs, say, only)
