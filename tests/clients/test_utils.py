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


def sizes(*some, full=()):
    return [*some, *[pytest.param(*(s if isinstance(s, tuple) else (s,)), marks=FULL) for s in full]]


MORE = (2, 64, 1000, 1024, 1025, 4097, 65536, 262144)


@pytest.mark.parametrize("events", [False, True], ids=["poll", "events"])
@pytest.mark.parametrize("size", sizes(1, 4096, 1 << 20, full=MORE))
@pytest.mark.parametrize("kind", ["rc", "uc"])
def test_pingpong(place, kind, size, events):
    n = 100 if size > 65536 else 500
    out = place.tool(f"ibv_{kind}_pingpong", "-g", 0, "-c", "-s", size, "-n", n,
                     *(["-e"] if events else []))
    for end in (out.server, out.client):
        assert re.search(rf"^{n} iters in", end.output(), re.M), out.describe()
        assert "invalid data" not in end.output(), out.describe()


@pytest.mark.parametrize("events", [False, True], ids=["poll", "events"])
@pytest.mark.parametrize("size", sizes(1, 1024, full=(2, 64, 1000, 1023)))
def test_ud_pingpong(place, size, events):
    out = place.tool("ibv_ud_pingpong", "-g", 0, "-c", "-s", size, "-n", 500,
                     *(["-e"] if events else []))
    for end in (out.server, out.client):
        assert re.search(r"^500 iters in", end.output(), re.M), out.describe()
        assert "invalid data" not in end.output(), out.describe()


def test_ud_pingpong_mtu(placements):
    """UD up to the MTU of the path."""
    placements("netns").tool("ibv_ud_pingpong", "-g", 0, "-c", "-s", 4096, "-n", 200)


@pytest.mark.parametrize("events", [False, True], ids=["poll", "events"])
@pytest.mark.parametrize("size", sizes(1, 4096, 1 << 20, full=MORE))
def test_srq_pingpong(place, size, events):
    out = place.tool("ibv_srq_pingpong", "-g", 0, "-c", "-s", size, "-n", 20 if size > 65536 else 100,
                     *(["-e"] if events else []))
    assert "invalid data" not in out.server.output() + out.client.output(), out.describe()


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
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


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("kind", ["rc", "ud"])
def test_pingpong_family(place, kind, family):
    # The tools exchange their addresses over IPv4 in either case.
    place.tool(f"ibv_{kind}_pingpong", "-c", "-n", 200, "-s", 1000, **place.gid_args("-g", family))
