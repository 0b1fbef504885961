#!/usr/bin/python3
"""Instructions that a small SEND costs both ends, counted by callgrind.

They are exact and the same in every run, whatever else the machine does, so a
change by one is a change. The program is instructions.c, which says what is
counted: not the link, nor system calls; then the same with the link, by shared
memory and by UDP port 4791. The clock's readings are counted apart, since they are not made of
instructions (some 20 ns each).
"""
import argparse
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("SOFTHCA_BUILD", os.path.join(ROOT, "build"))
PROGRAM = os.path.join(BUILD, "tests", "bench", "instructions")
PARTS = ["post_send", "poll_receive", "post_recv", "poll_sent", "poll_empty"]
TITLES = {
    "post_send": "ibv_post_send",
    "poll_receive": "ibv_poll_cq: received, acknowledged",
    "post_recv": "ibv_post_recv",
    "poll_sent": "ibv_poll_cq: acknowledgement, completion",
    "poll_empty": "ibv_poll_cq: nothing (not in the sum)",
}
SIZES = {"inline_8": 8, "answer_8": 8, "sge_8": 8, "sge_64_list_16": 64}
KINDS = {"inline_8": "8 B inline", "answer_8": "and answered", "sge_8": "8 B", "sge_64_list_16": "64 B, lists of 16"}


def count(top=0):
    """{(kind, part): (instructions, readings of the clock)}, each per message, and
    of polls that find nothing per poll; kinds by a link that is counted begin with
    "ring_" or "wire_".
    With top also the most expensive functions, as callgrind_annotate has them."""
    if not shutil.which("valgrind"):
        raise RuntimeError("valgrind is missing, so NO INSTRUCTIONS WERE COUNTED. Run: make deps")
    if not os.path.exists(PROGRAM):
        raise RuntimeError(f"{PROGRAM} is missing. Run: make build-tests")
    return {**run([], "", top), **run(["ring"], "ring_", top), **run(["wire"], "wire_", top)}


def run(args, prefix, top):
    with tempfile.TemporaryDirectory() as folder:
        env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(BUILD, "lib"))
        done = subprocess.run(["valgrind", "-q", "--tool=callgrind", "--collect-atstart=no",
                               f"--callgrind-out-file={folder}/out", PROGRAM, *args],
                              env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=300)
        if done.returncode:
            raise RuntimeError(f"instructions: {done.stderr.strip()}")
        counts = {}
        for path in glob.glob(f"{folder}/out.*"):
            with open(path) as f:
                text = f.read()
            if m := re.search(r"Client Request: (\w+) (\w+) (\d+) (\d+) (\d+)\n", text):
                n, readings, toggles = map(int, m.groups()[2:])
                total = int(re.search(r"^totals: (\d+)", text, re.M)[1])
                counts[m[1], m[2]] = (total, toggles, readings, n)
                if top:
                    print(f"{prefix}{m[1]} {m[2]}: instructions of {n}, by function")
                    annotate(path, top)
        if not counts:
            raise RuntimeError(f"{PROGRAM} was built without valgrind's headers, so NO "
                               "INSTRUCTIONS WERE COUNTED. Run: make deps clean build-tests")
        total, toggles, *_ = counts.pop(("none", "none"))
        each = total / toggles  # what beginning or ending to count costs itself
        return {(prefix + kind, part): ((total - each * toggles) / n, readings / n)
                for (kind, part), (total, toggles, readings, n) in counts.items()}


def annotate(path, top):
    out = subprocess.run(["callgrind_annotate", "--auto=no", "--threshold=100", path],
                         stdout=subprocess.PIPE, text=True).stdout
    rows = [line for line in out.splitlines()
            if re.match(r"\s*[\d,]+ \( ?\d", line) and "(100.0%)" not in line]
    print("\n".join(re.sub(r" \[.*", "", row) for row in rows[:top]) + "\n")


def table(counts):
    width = 20
    lines = ["Instructions of a SEND and its completions, both ends (readings of the clock)",
             f"{'':42}" + "".join(f"{KINDS[k]:>{width}}" for k in KINDS)]
    for prefix, title in (("", ""), ("ring_", "shared memory"), ("wire_", "UDP port 4791")):
        if title:
            lines.append(f"the same by {title}, the link included")
        for part in [*PARTS[:-1], "sum", PARTS[-1]]:
            row = f"  {TITLES.get(part, part)}".ljust(42)
            for kind in KINDS:
                parts = PARTS[:-1] if part == "sum" else [part]
                n, clock = (sum(counts[prefix + kind, p][i] for p in parts) for i in (0, 1))
                row += f"{n:.0f} ({clock:.2g})".rjust(width)
            lines.append(row)
    return "\n".join(lines)


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--top", type=int, default=0, metavar="N",
                    help="also the N most expensive functions of each part")
    args = ap.parse_args(argv)
    try:
        print(table(count(args.top)))
    except RuntimeError as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main()
