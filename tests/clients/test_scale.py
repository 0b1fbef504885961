"""Many queue pairs: what they cost in memory (src/scale.c; in time: make bench), and many processes."""
import os
import re

import pytest

import rig

SCALE = rig.client("scale")


@pytest.fixture
def scale(home):
    def run(*args):
        out = rig.Side(home).run([SCALE, *args], limit=120)
        return {k: float(v) for k, v in re.findall(r"(\w+)=([\d.]+)", out)}
    return run


def test_thousand_connected_qps(scale):
    """1,000 connected RC QPs of depth 128 within 64 MiB."""
    got = scale("connected", 1000, 128)
    assert got["rss_kib"] < 64 * 1024, got


def test_ten_thousand_qps(scale):
    got = scale("created", 10000)
    assert got["created"] == 10000, got


@pytest.mark.parametrize("options", [[], ["--wire"]], ids=["host", "wire"])
def test_hundred_processes(home, options):
    """All of them poll and send to all others. An answer may take a second on two processors: timeout 18 is 8.6 s."""
    out = rig.Side(home).run([os.path.join(rig.BUILD, "tests/bench/all_to_all"), 100, 0.5, 18], options, limit=240)
    assert int(out.split()[-1]) > 0, out
