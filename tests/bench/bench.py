#!/usr/bin/python3
"""softhca beside what the machine does without it.

Parts: two processes of this host beside UCX, process_vm(2), pipes and TCP
(same-host); the wire beside UDP and TCP (wire); iWARP beside TCP (iwarp);
networks that lose packets (loss); a flood of datagrams (flood); perftest in
three placements beside UDP, TCP and memcpy (placements); a process that is
suspended and resumed (suspend); the instructions of a message (instructions);
many queue pairs, and many processes (scale); memory and posting over several
rails (rails); a disk by iSER (storage); what it costs to start a program (start).
All of them, unless some are named.

Every figure is the median of several runs. What it is compared with is measured
in the same minutes on the same machine, so the ratios are meaningful, not the
absolute numbers. Prints tables; writes bench-results/TIME.json.
"""
import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
os.environ["PATH"] += ":/usr/sbin:/sbin"    # nft and tc, which users other than root have not there
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "clients"))
import flood
import instructions
import iwarp
import loss
import placements
import probes
import rails
import rig
import same_host
import scale as scaling
import start
import storage
import suspend
import wire


def say(text=""):
    print(text, flush=True)


class Instructions:
    """As a part among others."""

    def __init__(self):
        self.counts, self.failed = {}, 0

    def run(self):
        try:
            self.counts = instructions.count()
            say("  instructions done")
        except RuntimeError as e:
            self.failed += 1
            say(str(e))

    def print(self):
        if self.counts:
            say()
            say(instructions.table(self.counts))

    def save(self):
        return [dict(kind=kind, part=part, instructions=n, clock_readings=readings)
                for (kind, part), (n, readings) in self.counts.items()]


def processor():
    """Which one, and whether all of it is ours."""
    with open("/proc/cpuinfo") as f:
        info = f.read()
    fields = dict(re.findall(r"^([^\t:\n]+?)\s*: *(.*)$", info, re.M))
    name = fields.get("model name", platform.machine())
    if {"cpu family", "model"} <= fields.keys():
        name += f" (family {fields['cpu family']}, model {fields['model']})"
    return name + (" under a hypervisor" if " hypervisor" in fields.get("flags", "") else "")


def save(started, quick, parts):
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=rig.ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    folder = os.path.join(rig.ROOT, "bench-results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, started.strftime("%Y%m%d-%H%M%S") + ".json")
    with open(path, "w") as f:
        json.dump({"format": 2, "started": started.isoformat(timespec="seconds"), "quick": quick,
                   "commit": commit.stdout.strip() or None,
                   "machine": {"kernel": platform.release(), "arch": platform.machine(),
                               "cpus": os.cpu_count(), "processor": processor(), "load": os.getloadavg()},
                   "parts": {name: part.save() for name, part in parts.items()}}, f, indent=1)
        f.write("\n")
    say()
    say(f"on {os.cpu_count()} processors: {processor()}; Linux {platform.release()}")
    say(f"{os.path.relpath(path, os.getcwd())}")


def make_placements(net, wanted, runs, scale, only):
    return placements.Placements({name: probes.Probes(probes.placement(name, net), scale)
                                  for name in wanted or placements.PLACES if net or name != "netns"},
                                 runs, scale, say, only)


# name: what makes it of the network, the runs asked for or None, and the arguments
PARTS = {
    "same-host": lambda net, runs, scale, args: same_host.part(net, runs or 5, scale, args.way, say, args.only),
    "wire": lambda net, runs, scale, args: wire.part(net, runs or 5, scale, say, args.only),
    "iwarp": lambda net, runs, scale, args: iwarp.part(net, runs or 5, scale, say, args.only),
    "loss": lambda net, runs, scale, args: loss.part(runs or 2, say, args.only),
    "flood": lambda net, runs, scale, args: flood.part(runs or 1, say, args.only),
    "placements": lambda net, runs, scale, args: make_placements(net, args.place, runs or 3, scale, args.only),
    "scale": lambda net, runs, scale, args: scaling.Scale(net, runs or 3, say, args.only),
    "rails": lambda net, runs, scale, args: rails.part(net, runs or 5, scale, say, args.only),
    "storage": lambda net, runs, scale, args: storage.part(net, runs or 5, scale, say, args.only),
    "suspend": lambda net, runs, scale, args: suspend.Part(runs or 1, say),
    "instructions": lambda net, runs, scale, args: Instructions(),
    "start": lambda net, runs, scale, args: start.Start(10 * runs if runs else 50, say),
}

# A row or a few of each part, which need what its other rows need: for --smoke.
SMOKE = {
    "same-host": "^ib_send_lat 8 B$",
    "wire": "^ib_send_lat 8 B, two namespaces$",
    "iwarp": "^ib_send_lat 64 B, loopback$",
    "loss": r"^one QP, 0\.1 % lost$|late$",
    "flood": "^random bytes$",
    "scale": "^10 ",
    "rails": "^registered, 4 KiB pages, 256|8 threads$",
    "storage": "^4 KiB random reads, one at a time, one host$",
    "placements": "^(memcpy 64 B|udp_lat 2 B|ib_send_lat 2 B)$",
}


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("part", nargs="*", help=f"{', '.join(PARTS)} (all)")
    ap.add_argument("--quick", action="store_true", help="one short run of each")
    ap.add_argument("--smoke", action="store_true", help="whether it works at all: a row of each, once, for a moment; saves "
                    "nothing")
    ap.add_argument("--runs", type=int, help="runs of each test (3; same-host, wire, iwarp, rails and storage 5, loss 2, flood 1)")
    ap.add_argument("--only", metavar="REGEX", help="all but instructions: only the rows whose title matches")
    ap.add_argument("--mtu", type=int, default=9000, help="of the veth pair between two namespaces (9000)")
    ap.add_argument("--place", action="append", choices=placements.PLACES, help="placements: only this one")
    ap.add_argument("--way", choices=["auto", "copy", "udp"],
                    help="same-host: how processes of this host reach each other")
    args = ap.parse_args()
    if wrong := set(args.part) - set(PARTS):
        ap.error(f"no part {', '.join(wrong)}; there are {', '.join(PARTS)}")
    if missing := rig.need("ib_send_lat", "iperf3"):
        sys.exit(f"Missing: {', '.join(missing)}. Run: make deps")
    started = datetime.datetime.now()
    clock = time.monotonic()
    net = None
    try:
        net = rig.Network(args.mtu)
    except rig.NoNamespaces as e:
        say(f"No network namespaces here ({e}): leaving out \"two namespaces\".")
    load = os.getloadavg()[0]
    if load > 0.7:
        say(f"This machine is busy (load {load:.1f} on {os.cpu_count()} processors): "
            "the figures will be worse and scatter more than they should.")
    runs, scale = (args.runs or 1, 0.3) if args.quick else (args.runs, 1.0)
    if args.smoke:
        runs, scale = 1, 0.02
        loss.SECONDS = flood.SECONDS = 1
        flood.MARGIN = 0
    parts = {}
    try:
        for name in PARTS:
            if name in (args.part or PARTS):
                if args.smoke:
                    args.only = SMOKE.get(name)
                parts[name] = PARTS[name](net, runs, scale, args)
                parts[name].run()
    finally:
        for part in parts.values():
            getattr(part, "close", lambda: None)()
        if net:
            net.close()
    for part in parts.values():
        part.print()
    if not args.smoke:
        save(started, args.quick, parts)
    say(f"{time.monotonic() - clock:.0f} s")
    return 1 if any(part.failed for part in parts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
