"""What many queue pairs cost, see src/scale.c."""
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
    assert got["created"] == 10000 and got["us_each"] < 1000, got


def test_time_does_not_grow(scale):
    """One operation at a time, on one of N queue pairs. Memory gets colder as
    they get more: that may cost a little, a search would cost more."""
    one, hundred, many = (scale("time", n)["ns_per_op"] for n in (1, 100, 10000))
    assert hundred < 2 * one + 2000, (one, hundred, many)
    assert many < 3 * one + 5000, (one, hundred, many)
