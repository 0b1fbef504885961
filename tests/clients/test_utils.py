"""ibverbs-utils: the smallest clients, and the first ones anybody tries."""
import re

import pytest

import rig

FULL = pytest.mark.full


def test_ibv_devices():
    out = rig.Side().run(["ibv_devices"])
    assert re.search(r"^\s+softhca0\s+[0-9a-f]{16}$", out, re.M), out
    assert "softhca0        \t0000000000000000" not in out, "no node GUID"


def test_ibv_devinfo():
    out = rig.Side().run(["ibv_devinfo", "-v"])
    for want in (r"hca_id:\s+softhca0", r"transport:\s+InfiniBand \(0\)",
                 r"state:\s+PORT_ACTIVE", r"link_layer:\s+Ethernet",
                 r"max_mtu:\s+4096", r"active_mtu:\s+(1024|2048|4096)",
                 r"atomic_cap:\s+ATOMIC_(HCA|GLOB)", r"phys_port_cnt:\s+1",
                 r"GID\[ *0\]:.*RoCE v2"):
        assert re.search(want, out), f"no {want} in\n{out}"
    for limit in ("max_qp", "max_qp_wr", "max_sge", "max_cq", "max_cqe", "max_mr", "max_pd",
                  "max_qp_rd_atom", "max_qp_init_rd_atom", "max_ah", "max_srq", "max_srq_wr",
                  "max_mcast_grp"):
        m = re.search(rf"\s{limit}:\s+(\d+)", out)
        assert m and int(m[1]) > 0, f"{limit}: {m and m[1]}\n{out}"


def test_devices_of_each_namespace(placements):
    p = placements("netns")
    assert p.server.gids()[0] == "::ffff:10.91.0.2"
    assert p.client.gids()[0] == "::ffff:10.91.0.1"


def test_devinfo_netns_mtu(placements):
    """A 9000-byte link carries 4096, a 1500-byte link 1024."""
    for name, mtu in (("netns", 4096), ("netns1500", 1024)):
        out = placements(name).client.run(["ibv_devinfo"])
        assert re.search(rf"active_mtu:\s+{mtu}", out), out


WAIT = ["poll", "events"]


def events(wait):
    return ["-e"] if wait == "events" else []


MORE = [2, 64, 1000, 1024, 1025, 4097, 65536, 262144]


def pingpong(place, kind, size, wait):
    n = 100 if size > 65536 else 500
    out = place.tool(f"ibv_{kind}_pingpong", "-g", 0, "-c", "-s", size, "-n", n,
                     *events(wait))
    for end in (out.server, out.client):
        assert re.search(rf"^{n} iters in", end.output(), re.M), out.describe()
        assert "invalid data" not in end.output(), out.describe()


@rig.over_places(2, kind=["rc", "uc"], size=[1, 4096, 1 << 20], wait=WAIT)
def test_pingpong(place, kind, size, wait):
    pingpong(place, kind, size, wait)


@rig.over_places(2, size=[1, 1024], wait=WAIT)
def test_ud_pingpong(place, size, wait):
    pingpong(place, "ud", size, wait)


@FULL
@pytest.mark.parametrize("wait", WAIT)
@pytest.mark.parametrize("kind, size", [("rc", s) for s in MORE] + [("uc", s) for s in MORE]
                         + [("ud", s) for s in (2, 64, 1000, 1023)])
def test_pingpong_more(place, kind, size, wait):
    pingpong(place, kind, size, wait)


def test_ud_pingpong_mtu(placements):
    """UD up to the MTU of the path."""
    placements("netns").tool("ibv_ud_pingpong", "-g", 0, "-c", "-s", 4096, "-n", 200)


def srq_pingpong(place, size, wait):
    out = place.tool("ibv_srq_pingpong", "-g", 0, "-c", "-s", size, "-n", 20 if size > 65536 else 100,
                     *events(wait))
    assert "invalid data" not in out.server.output() + out.client.output(), out.describe()


@rig.over_places(2, size=[1, 4096, 1 << 20], wait=WAIT)
def test_srq_pingpong(place, size, wait):
    srq_pingpong(place, size, wait)


@FULL
@pytest.mark.parametrize("wait", WAIT)
@pytest.mark.parametrize("size", MORE)
def test_srq_pingpong_more(place, size, wait):
    srq_pingpong(place, size, wait)


@pytest.mark.parametrize("mtu", [256, *[pytest.param(m, marks=FULL) for m in (512, 1024, 2048, 4096)]])
def test_pingpong_path_mtu(placements, mtu):
    placements("netns").tool("ibv_rc_pingpong", "-g", 0, "-c", "-m", mtu, "-s", 50000, "-n", 100)


@pytest.mark.parametrize("option", ["-t", "-N"])
def test_pingpong_extended(placements, option):
    """Extended CQs with timestamps, and the ibv_wr_* way of posting."""
    placements("local").tool("ibv_rc_pingpong", "-g", 0, "-c", option, "-n", 200)


@pytest.mark.parametrize("name", ["netns1500"])
def test_pingpong_small_link(placements, name):
    placements(name).tool("ibv_rc_pingpong", "-g", 0, "-c", "-s", 100000, "-n", 200)
    placements(name).tool("ibv_srq_pingpong", "-g", 0, "-c", "-s", 5000, "-n", 50)


@rig.over_places(2, kind=["rc", "ud"], family=[4, 6])
def test_pingpong_family(place, kind, family):
    # The tools exchange their addresses over IPv4 in either case.
    place.tool(f"ibv_{kind}_pingpong", "-c", "-n", 200, "-s", 1000, **place.gid_args("-g", family))
