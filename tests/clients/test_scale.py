"""What many queue pairs cost in memory, see src/scale.c; in time: make bench."""
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
