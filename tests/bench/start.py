"""What it costs to start a program under softhca run, and each of its children.

Processor time, of the user and of the kernel, and the time that passes, in ms;
the same program without softhca in the same minutes. A child is one of 100 that
a shell starts one after the other.
"""
import os
import statistics
import subprocess
import time

import rig

CHILDREN = 100
LOOP = f'i=0; while [ $i -lt {CHILDREN} ]; do /bin/true; i=$((i + 1)); done'
RUN = [rig.SOFTHCA, "run", "--"]
# title: what is run, and how many of it there are
ROWS = {
    "a program that does nothing": (["/bin/true"], 1),
    "a child of it": (["/bin/sh", "-c", LOOP], CHILDREN),
}


def once(argv, n):
    """Milliseconds of a processor, and that pass; of one of n."""
    began = time.monotonic()
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as p:
        _, status, usage = os.wait4(p.pid, 0)
        passed = time.monotonic() - began
        p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit status {p.returncode}")
    return 1000 * (usage.ru_utime + usage.ru_stime) / n, 1000 * passed / n


class Start:
    """As a part among others."""

    def __init__(self, runs, say):
        self.runs, self.say = runs, say
        self.rows, self.failed = [], 0

    def run(self):
        for title, (argv, n) in ROWS.items():
            if rig.need(argv[0]):
                continue
            plain, under = [], []
            try:
                once([*RUN, *argv], n)  # makes the files that all of them share
                for _ in range(self.runs if n == 1 else max(3, self.runs // 10)):
                    plain.append(once(argv, n))
                    under.append(once([*RUN, *argv], n))
            except RuntimeError as e:
                self.failed += 1
                self.say(str(e))
                continue
            medians = [tuple(map(statistics.median, zip(*times))) for times in (plain, under)]
            self.rows.append((title, *medians[0], *medians[1]))
        self.say("  start done")

    def print(self):
        self.say()
        self.say(f"{'starting, in ms':<32}{'plain':>14}{'softhca run':>20}{'more':>8}")
        self.say(f"{'':<32}{'CPU':>7}{'wall':>7}{'CPU':>13}{'wall':>7}{'CPU':>8}")
        for title, cpu, wall, our_cpu, our_wall in self.rows:
            self.say(f"{title:<32}{cpu:7.2f}{wall:7.2f}{our_cpu:13.2f}{our_wall:7.2f}{100 * (our_cpu / cpu - 1):7.0f}%")

    def save(self):
        return [dict(title=title, cpu_ms=cpu, wall_ms=wall, softhca_cpu_ms=our_cpu, softhca_wall_ms=our_wall)
                for title, cpu, wall, our_cpu, our_wall in self.rows]
