"""Real programs that use the extended verbs: XRC, the builders, events."""
import re
import subprocess

import pytest

import rig
from test_perftest import perftest
from test_utils import WAIT, events

OPS = ["send", "write", "read", "atomic"]


@rig.over_places(places=rig.UDP_PLACES, wait=WAIT)
def test_xsrq_pingpong(place, wait):
    out = place.tool("ibv_xsrq_pingpong", "-g", 0, "-n", 500, *events(wait))
    for end in (out.client, out.server):
        assert "success" in end.output(), out.describe()


@rig.over_places(places=rig.UDP_PLACES, wait=WAIT)
def test_xsrq_pingpong_clients(place, wait):
    """Three clients of one server share a domain: it sends to the SRQ of each
    through the QPs of the others."""
    port = rig.free_port()
    options = [*place.options, *(["--loss", 1] if place.name == "wire" else [])]
    # Four processes that poll on two processors get ahead slowly.
    cmd = ["ibv_xsrq_pingpong", "-g", 0, "-p", port, "-n", 200 if wait == "events" else 20, *events(wait)]
    procs = [rig.Proc(place.server, [*cmd, "-c", 3], options)]
    try:
        procs[0].wait_listening(port)
        procs += [rig.Proc(place.client, [*cmd, place.host], options) for _ in range(3)]
        rc = [p.wait() for p in procs]
        text = "".join(p.describe() for p in procs)
        assert rc == [0] * 4 and text.count("success") == 4, text
    finally:
        for p in procs:
            p.kill()


@rig.over_places(places=rig.UDP_PLACES, what=[(op, kind) for op in OPS for kind in ("lat", "bw")])
def test_perftest_xrc(place, what):
    op, kind = what
    perftest(place, f"ib_{op}_{kind}", "-c", "XRC")


@rig.over_places(places=rig.UDP_PLACES, args=[["--use_old_post_send"], ["--use-srq", "-q", 2], ["-q", 4, "-b"], ["-e"],
                                              ["-s", 1 << 20]])
def test_perftest_xrc_options(place, args):
    perftest(place, "ib_send_bw", "-c", "XRC", *args, iters=100)


BUILDERS = [(op, conn) for op in OPS for conn in ("RC", "XRC", "UC")
            if conn != "UC" or op in ("send", "write")]


@rig.cover(1, what=BUILDERS, kind=["lat", "bw"], way=["builders", "post_send"])
def test_builders(placements, what, kind, way):
    """As a ConnectX-7: perftest then takes ibv_wr_*, unless told otherwise."""
    op, conn = what
    # What is lost on UC is waited for: little at a time.
    modest = {"iters": 30} if conn == "UC" and kind == "bw" else {}
    args = ["-s", 1024] if modest else []
    perftest(placements("local"), f"ib_{op}_{kind}", "-c", conn, *args,
             *(["--use_old_post_send"] if way == "post_send" else []), env={"SOFTHCA_PART_ID": "4129"}, **modest)


@rig.cover(1, op=OPS, loss=[1, 5])
def test_xrc_loss(placements, op, loss):
    perftest(placements("wire"), f"ib_{op}_bw", "-c", "XRC", "-s", 8 if op == "atomic" else 20000,
             iters=100, options=["--loss", loss], limit=90)


def test_events():
    """ibv_asyncwatch sees addresses and the link come and go."""
    try:
        net = rig.Network(1500)
    except rig.NoNamespaces as e:
        pytest.skip(f"no network namespaces here: {e}")
    p = None
    try:
        p = rig.Proc(rig.Side(net.a), ["stdbuf", "-oL", "ibv_asyncwatch"],
                     env={"SOFTHCA_DEVICES": "hca0"})
        p.wait_for("async event FD")
        rig.ip(net.a, "addr add 10.92.0.1/24 dev hca0")
        p.wait_for("GID_CHANGE")
        rig.ip(net.a, "addr flush dev hca0")
        p.wait_for("PORT_ERR")
        rig.ip(net.a, "addr add 10.92.0.1/24 dev hca0")
        p.wait_for("PORT_ACTIVE")
    finally:
        if p:
            p.kill()
        net.close()


def test_gids_follow(placements):
    """A program that runs sees a new address: the table keeps its indices."""
    try:
        net = rig.Network(1500)
    except rig.NoNamespaces as e:
        pytest.skip(f"no network namespaces here: {e}")
    try:
        side = rig.Side(net.a)
        before = dict(side.gids())
        rig.ip(net.a, "addr add 10.92.0.1/24 dev hca0")
        out = side.run(["ibv_devinfo", "-v"])
        assert "::ffff:10.92.0.1" in out
        assert re.search(rf"GID\[ *0\]:\s*{before[0]}", out), out
        subprocess.run([*net.a, "ip", "addr", "del", "10.92.0.1/24", "dev", "hca0"], check=True)
        assert "10.92.0.1" not in side.run(["ibv_devinfo", "-v"])
    finally:
        net.close()
