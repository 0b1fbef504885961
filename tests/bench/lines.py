#!/usr/bin/python3
"""Cache lines that an 8-byte write touches which are of its queue pair, of both ends.

What cachegrind counts as misses of a small last-level cache, while writes go over
many queue pairs in random order (tests/clients/src/scale.c): so what all share
is in the cache, and what each queue pair has is not. A busy machine adds to it,
since threads take turns and packets are late: take the least of several runs.
Each way takes a minute on a quiet one.
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("SOFTHCA_BUILD", os.path.join(ROOT, "build"))
QPS = "2000"
WRITES = 100000     # of "scale time", besides those of "scale connected"
CACHE = ["--cache-sim=yes", "--D1=32768,8,64", "--LL=262144,16,64"]


def misses(option, *mode):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([os.path.join(BUILD, "bin", "softhca"), "run", option, "--", "valgrind", "--tool=cachegrind",
                               *CACHE, f"--cachegrind-out-file={folder}/out",
                               os.path.join(BUILD, "tests", "clients", "scale"), *mode],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"scale {' '.join(mode)}: {done.stderr.strip()}")
    return int(re.search(r"LLd misses: +([\d,]+)", done.stderr)[1].replace(",", ""))


def main():
    for title, option in (("UDP port 4791", "--wire"), ("shared memory", "--same-host=copy")):
        try:
            n = misses(option, "time", QPS) - misses(option, "connected", QPS)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as e:
            sys.exit(f"{e}")
        print(f"{title:20}{n / WRITES:6.1f} lines", flush=True)


if __name__ == "__main__":
    main()
