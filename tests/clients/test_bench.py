"""make bench works: each of its parts, a row of it, for a moment.

What it measures is nobody's business here: that it ends with figures is.
"""
import os
import subprocess
import sys

import pytest

import rig

BENCH = os.path.join(rig.ROOT, "tests", "bench")
sys.path.insert(0, BENCH)
import bench  # noqa: E402


@pytest.mark.parametrize("part", bench.PARTS)
def test_part(part):
    if missing := rig.need("ib_send_lat", "iperf3", "valgrind"):
        pytest.skip(f"not installed: {', '.join(missing)}")
    p = subprocess.run([sys.executable, os.path.join(BENCH, "bench.py"), "--smoke", part],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=rig.LIMIT)
    assert p.returncode == 0, p.stdout[-3000:]
    assert "with a network: ip " not in p.stdout, p.stdout   # there are namespaces, and ip(8) has failed
