"""perftest: every operation on every connection type, and its options."""
import re

import pytest

import rig

FULL = pytest.mark.full
CONNECTIONS = {"send": ["RC", "UC", "UD"], "write": ["RC", "UC"], "read": ["RC"], "atomic": ["RC"]}
BASIC = [(op, conn) for op, conns in CONNECTIONS.items() for conn in conns]


def perftest(place, tool, *args, iters=200, clock=False, **kw):
    """Runs a perftest pair; both ends must report a result without an error.
    Latencies are reported in cycles, unless it is to measure its clock first,
    which takes as long as everything else."""
    n = [] if iters is None else ["-n", iters]
    cycles = ["-C"] if tool.endswith("_lat") and not clock else []
    out = place.tool(tool, "-F", *cycles, *n, *args, **kw)
    text = out.client.output()
    for bad in ("error", "failed", "Failed", "Couldn't", "Unable", "unsupported"):
        assert bad not in text, out.describe()
    rows = [line for line in text.splitlines() if re.match(r"\s+\d+\s+\d+\s+[\d.]+", line)]
    assert rows, f"no result\n{out.describe()}"
    return rows


# Nothing holds back a sender on UC and UD, and perftest waits for ever for what
# a receiver's socket had no room for: these send less than any socket holds.
LITTLE = ["-s", 1024]


def modest(conn, kind="bw"):
    return ({"iters": 30}, LITTLE) if conn != "RC" and kind == "bw" else ({}, [])


@rig.over_places(2, what=BASIC, kind=["lat", "bw"])
def test_basic(place, what, kind):
    op, conn = what
    kw, args = modest(conn, kind)
    perftest(place, f"ib_{op}_{kind}", "-c", conn, *args, clock=place.name == "netns", **kw)


def all_sizes(place, tool, iters):
    rows = perftest(place, tool, "-a", iters=iters, limit=90)
    assert len(rows) == 23, rows
    assert rows[-1].split()[0] == str(1 << 23)


# perftest measures its clock before each size, so these take long;
# test_lat_sizes has the large messages of every placement.
@rig.over_places(places=["local", "copy", "netns"], op=["send", "write", "read"])
def test_all_sizes(place, op):
    all_sizes(place, f"ib_{op}_bw", 8)


@rig.choose(lambda *_: False, op=["send", "write", "read"])
def test_lat_all_sizes(place, op):
    all_sizes(place, f"ib_{op}_lat", 5)


@rig.over_places(2, op=["send", "write", "read"], size=[1, 65536, 1 << 23])
def test_lat_sizes(place, op, size):
    perftest(place, f"ib_{op}_lat", "-s", size, iters=5)


@rig.over_places(what=[("UC", 1), ("UC", 4096), ("UC", 65536), ("UD", 1), ("UD", 1023), ("UD", 1024)])
def test_unreliable_sizes(place, what):
    conn, size = what
    perftest(place, "ib_send_lat", "-c", conn, "-s", size, iters=50)


@rig.over_places(size=[2, 4096, 65536])
def test_uc_write_sizes(place, size):
    perftest(place, "ib_write_bw", "-c", "UC", "-s", size, iters=50)


@rig.over_places(what=BASIC)
def test_bidirectional(place, what):
    op, conn = what
    kw, args = modest(conn)
    perftest(place, f"ib_{op}_bw", "-c", conn, "-b", *args, **kw)


@rig.over_places(op=["send", "write", "read", "atomic"])
def test_many_qps(place, op):
    perftest(place, f"ib_{op}_bw", "-q", 16, *(["-s", 4096] if op != "atomic" else []))


@rig.over_places(op=["send", "write", "read", "atomic"])
def test_post_list(place, op):
    perftest(place, f"ib_{op}_bw", "-l", 16, iters=320)


# perftest has no events for writes.
@rig.over_places(what=[("ib_send_lat", "RC"), ("ib_send_bw", "RC"), ("ib_read_lat", "RC"), ("ib_read_bw", "RC"),
                       ("ib_atomic_lat", "RC"), ("ib_atomic_bw", "RC"), ("ib_send_lat", "UC"),
                       ("ib_send_lat", "UD")])
def test_events(place, what):
    tool, conn = what
    perftest(place, tool, "-e", "-c", conn)


@rig.over_places(tool=["ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw"])
def test_inline(place, tool):
    perftest(place, tool, "-I", 64, "-s", 64)


# UC has no SRQs; and what four UD senders send at once is more than one holds.
@rig.over_places(what=[("ib_send_bw", "RC"), ("ib_send_lat", "RC"), ("ib_send_lat", "UD")])
def test_srq(place, what):
    tool, conn = what
    kw, args = modest(conn)
    more = ["-q", 4] if tool == "ib_send_bw" else []
    perftest(place, tool, "--use-srq", "-c", conn, *more, *args, **kw)


@rig.cover(1, tool=["ib_write_bw", "ib_send_bw", "ib_read_bw"], mtu=[256, 512, 1024, 2048, 4096])
def test_mtu(placements, tool, mtu):
    perftest(placements("netns"), tool, "-m", mtu, "-s", 100000, iters=100)


@rig.choose(lambda place, what: (place, what[1]) in (("local", "RC"), ("netns", "UD")),
            what=[("ib_write_lat", "RC"), ("ib_send_lat", "UD")])
def test_every_gid(place, what):
    """Each GID of the table, link-local and loopback included; between hosts
    those that reach the other."""
    tool, conn = what
    common = sorted(set(place.server.gids()) & set(place.client.gids()))
    if place.name == "netns":
        loop = {"::1", "::ffff:127.0.0.1"}
        common = [i for i in common if place.server.gids()[i] not in loop]
    assert len(common) >= 2
    for i in common:
        perftest(place, tool, "-c", conn, "-x", i, iters=50)


@rig.over_places(what=[("ib_send_lat", "RC"), ("ib_send_lat", "UD"), ("ib_write_bw", "RC"),
                       ("ib_read_bw", "RC"), ("ib_atomic_bw", "RC"), ("ib_send_bw", "UC")])
def test_ipv6(place, what):
    tool, conn = what
    # Its own connection is IPv4 in any case.
    kw, args = modest(conn)
    perftest(place, tool, "-c", conn, *args, **place.gid_args("-x", 6), **kw)


@pytest.mark.parametrize("tool", ["ib_send_bw", *[pytest.param(t, marks=FULL) for t in ("ib_write_lat", "ib_read_bw")]])
def test_extended_posting(placements, tool):
    """A device that says it is a ConnectX is driven through ibv_wr_*."""
    perftest(placements("local"), tool, env={"SOFTHCA_PART_ID": "4129"})


@pytest.mark.parametrize("tool", ["ib_write_bw", *[pytest.param(t, marks=FULL) for t in ("ib_send_bw", "ib_read_bw")]])
def test_duration(placements, tool):
    perftest(placements("netns"), tool, "-D", 1, iters=None)


@pytest.mark.parametrize("tool", ["ib_send_bw", "ib_write_bw", "ib_read_bw"])
def test_small_link(placements, tool):
    perftest(placements("netns1500"), tool)


@rig.over_places(conn=["RC", "UD"])
def test_cq_moderation_and_depth(place, conn):
    perftest(place, "ib_send_bw", "-c", conn, "-Q", 10, "-t", 40, "-r", 300, "-s", 512, iters=80)


@rig.over_places(2, places=rig.UDP_PLACES, tool=["ib_send_lat", "ib_send_bw"], family=[4, 6])
def test_multicast(place, tool, family):
    """The group perftest chooses has interface-local scope (ff01::): others here."""
    group = "0:0:0:0:0:0:0:0:0:0:255:255:239:1:2:3" if family == 4 else "255:14:0:0:0:0:0:0:0:0:0:0:0:1:2:3"
    perftest(place, tool, "-c", "UD", "-g", "-M", group, "-s", 512, iters=30, **place.gid_args("-x", family))


@pytest.mark.full
@pytest.mark.parametrize("iters", [2000])
@pytest.mark.parametrize("size", [1, 3, 64, 1023, 4096, 65537, 1 << 20])
@pytest.mark.parametrize("kind", ["lat", "bw"])
@pytest.mark.parametrize("op,conn", [b for b in BASIC if b[0] != "atomic" and b[1] == "RC"])
def test_sizes(place, op, conn, kind, size, iters):
    perftest(place, f"ib_{op}_{kind}", "-c", conn, "-s", size, iters=min(iters, 4000000 // size + 20))
