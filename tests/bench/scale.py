"""What many queue pairs cost a process, and many processes a host.

Queue pairs are of depth 16, and both ends of each connection are in one process
(tests/clients/src/scale.c). Processes start one after the other, each with a
queue pair (crowd.c); the figures are those of the last ones.
"""
import contextlib
import os
import re
import shutil
import tempfile
import threading

import probes
import rig
from probes import BENCH

QPS = [10, 100, 1000, 10000]
PROCESSES = [1, 10, 100, 1000]
DEPTH = 16


def fields(text):
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", text)}


class Scale:
    """As a part among others."""

    def __init__(self, net, runs, say, only):
        self.place = probes.placement("local", net)
        self.runs, self.say = runs, say
        self.only = re.compile(only or "")
        self.qps, self.processes, self.failed = [], [], 0

    def tool(self, *args):
        return fields(self.place.client.run([rig.client("scale"), *args], limit=120))

    def queue_pairs(self, n):
        """The quickest of several runs: a busy machine only adds to it."""
        created = min((self.tool("created", n) for _ in range(self.runs)), key=lambda f: f["us_each"])
        timed = min((self.tool("time", n) for _ in range(self.runs)), key=lambda f: f["ns_per_op"])
        connected = self.tool("connected", n, DEPTH)
        return dict(qps=n, create_us=created["us_each"], created_kib=created["of_them_kib"] / n,
                    connected_kib=connected["of_them_kib"] / n, write_us=timed["ns_per_op"] / 1e3)

    def crowd(self, n):
        """With it the KiB that all have in the registry's directory."""
        where = tempfile.mkdtemp(prefix="softhca-bench-", dir="/dev/shm")
        done = threading.Event()
        most = [0]

        def watch():
            while not done.wait(0.02):
                total = 0
                for name in os.listdir(where):
                    with contextlib.suppress(OSError):
                        total += os.stat(os.path.join(where, name)).st_blocks / 2
                most[0] = max(most[0], total)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            out = self.place.client.run([os.path.join(BENCH, "crowd"), n], [f"--rundir={where}"], limit=300)
        finally:
            done.set()
            watcher.join()
            shutil.rmtree(where, ignore_errors=True)
        return dict(processes=n, shared_kib=most[0] / n, **fields(out))

    def run(self):
        for rows, counts, measure in ((self.qps, QPS, self.queue_pairs), (self.processes, PROCESSES, self.crowd)):
            for n in counts:
                if not self.only.search(f"{n} {measure.__name__}"):
                    continue
                try:
                    rows.append(measure(n))
                except (rig.Failed, RuntimeError) as e:
                    self.failed += 1
                    self.say(f"{n} {measure.__name__}: {e}")
        self.say("  scale done")

    def print(self):
        self.say()
        self.say(f"{'queue pairs':>12}{'created in':>14}{'memory':>14}{'connected':>14}{'8 B write':>14}")
        for r in self.qps:
            self.say(f"{r['qps']:12}{r['create_us']:11.2f} us{r['created_kib']:10.2f} KiB{r['connected_kib']:10.2f} KiB"
                     f"{r['write_us']:11.2f} us")
        self.say()
        self.say(f"{'processes':>12}{'device opened':>14}{'QP created':>14}{'CPU for both':>14}{'own memory':>14}"
                 f"{'shared':>14}{'all end in':>14}")
        for r in self.processes:
            self.say(f"{r['processes']:12}{r['open_us']:11.0f} us{r['qp_us']:11.0f} us{r['cpu_us']:11.0f} us"
                     f"{r['own_kib']:10.0f} KiB{r['shared_kib']:10.0f} KiB{r['end_ms']:11.0f} ms")

    def save(self):
        return dict(qps=self.qps, processes=self.processes)
