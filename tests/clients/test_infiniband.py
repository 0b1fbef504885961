"""InfiniBand: programs that know LIDs, on one host and between two."""
import json
import re
import subprocess

import pytest

import rig
import test_utils
from test_cm_tools import fi_pingpong, qperf, rping_ends
from test_mpi import four_ranks, programs  # noqa: F401 (a fixture)
from test_perftest import BASIC, modest, perftest

OVER = {"places": rig.IB_PLACES}
ENV = {"SOFTHCA_INFINIBAND": "1"}


# ---- the device ------------------------------------------------------------


@pytest.mark.parametrize("name, lid, addr", [("ib_netns", 1, "0a5b:0001"), ("ib", 1, "0a5b:0001")])
def test_device(placements, name, lid, addr):
    out = placements(name).client.run(["ibv_devinfo", "-v"], ["--infiniband"])
    for want in (r"hca_id:\s+softib0", r"state:\s+PORT_ACTIVE", r"link_layer:\s+InfiniBand", rf"port_lid:\s+{lid}$",
                 r"port_lmc:\s+0x00", r"sm_lid:\s+255$", rf"node_guid:\s+0253:48ca:{addr}", r"gid_tbl_len:\s+1$",
                 rf"GID\[ *0\]:\s+fe80:0000:0000:0000:0253:48ca:{addr}$"):
        assert re.search(want, out, re.M), f"{want}\n{out}"
    assert "softhca0" not in out


def test_devices(placements):
    side = placements("ib_netns").server
    out = side.run([rig.SOFTHCA, "devices"], ["--infiniband"])
    assert "InfiniBand, port 1 active" in out
    assert "LID 2 (0x2) is what the prefix of 10.91.0.2/24 (hca0) leaves" in out, out
    port = json.loads(side.run([rig.SOFTHCA, "devices", "--json"], ["--infiniband"]))[0]
    assert port["transport"] == "InfiniBand" and port["node_guid"] == "0x025348ca0a5b0002"
    port = port["ports"][0]
    assert (port["link_layer"], port["lid"], port["sm_lid"]) == ("InfiniBand", 2, 255)
    assert port["gids"][0]["gid"] == "fe80::253:48ca:a5b:2" and port["gids"][0]["type"] == "IB"


@pytest.mark.parametrize("options, names", [
    (["--infiniband=both"], ["softhca0", "softib0"]),
    (["--infiniband", "--iwarp"], ["softib0", "softiw0"]),
    (["--infiniband=both", "--iwarp=both"], ["softhca0", "softib0", "softiw0"]),
    (["--infiniband", "--iwarp=first"], ["softiw0", "softib0"])])
def test_devices_beside_each_other(placements, options, names):
    out = placements("ib").server.run(["ibv_devices"], options)
    assert re.findall(r"^\s+(soft\w+)", out, re.M) == names, out


def test_wrong_mode(placements):
    out = placements("ib").server.run(["true"], ["--infiniband=some"], status=125)
    assert "not one of only (the default) and both" in out


def test_sysfs(placements):
    base = "/sys/class/infiniband/softib0"
    out = placements("ib_netns").server.run(
        ["grep", "-H", "", *(f"{base}/{f}" for f in (
            "node_guid", "ports/1/lid", "ports/1/sm_lid", "ports/1/lid_mask_count", "ports/1/link_layer",
            "ports/1/state", "ports/1/phys_state", "ports/1/rate", "ports/1/gids/0", "ports/1/pkeys/0",
            "ports/1/gid_attrs/types/0"))], ["--infiniband"])
    got = dict(line[len(base) + 1:].split(":", 1) for line in out.splitlines())
    assert got == {"node_guid": "0253:48ca:0a5b:0002", "ports/1/lid": "0x2", "ports/1/sm_lid": "0xff",
                   "ports/1/lid_mask_count": "0", "ports/1/link_layer": "InfiniBand", "ports/1/state": "4: ACTIVE",
                   "ports/1/phys_state": "5: LinkUp", "ports/1/rate": "100 Gb/sec (4X)",
                   "ports/1/gids/0": "fe80:0000:0000:0000:0253:48ca:0a5b:0002", "ports/1/pkeys/0": "0xffff",
                   "ports/1/gid_attrs/types/0": "IB/RoCE v1"}, out


def test_doctor(placements):
    out = placements("ib_netns").server.run([rig.SOFTHCA, "doctor"], ["--infiniband"], status=None)
    assert "softib0 has LID 2, of 10.91.0.2/24" in out and "UDP port 4791" in out, out


def test_env(placements):
    out = placements("ib").server.run(["env", *(f"{k}={v}" for k, v in ENV.items()), rig.SOFTHCA, "env"])
    assert "export SOFTHCA_INFINIBAND=1" in out


# ---- programs --------------------------------------------------------------


@rig.over_places(2, **OVER, kind=["rc", "uc", "ud", "srq"], wait=test_utils.WAIT)
def test_pingpong(place, kind, wait):
    """Without -g."""
    out = place.tool(f"ibv_{kind}_pingpong", "-c", "-s", 1000, *(["-n", 100] if kind == "srq" else []),
                     *test_utils.events(wait))
    assert "invalid data" not in out.server.output() + out.client.output(), out.describe()


@rig.over_places(**OVER)
def test_xsrq_pingpong(place):
    place.tool("ibv_xsrq_pingpong", "-n", 100, server_args=["-c", 1])


@rig.over_places(2, **OVER, what=BASIC, kind=["lat", "bw"])
def test_perftest(place, what, kind):
    """Without -x."""
    op, conn = what
    kw, args = modest(conn, kind)
    perftest(place, f"ib_{op}_{kind}", "-c", conn, *args, **kw)


@rig.over_places(**OVER, args=[["-c", "XRC"], ["-x", 0], ["--use-srq"], ["-e"]])
def test_perftest_options(place, args):
    perftest(place, "ib_send_bw", *args)


@rig.over_places(**OVER, test=["rc_lat", "uc_lat", "ud_lat", "rc_bw", "rc_rdma_write_bw", "ver_rc_fetch_add"])
def test_qperf(place, test):
    """Without -cm."""
    assert re.search(f"^{test}:\\n +(latency|bw|msg_rate) +=", qperf(place, test, args=()), re.M)


@rig.over_places(**OVER, tls=["rc_v,ud_v", "ud_v"], env=[{}, {"UCX_IB_ADDR_TYPE": "ib_local"}, {"UCX_IB_IS_GLOBAL": "y"}])
def test_ucx(place, tls, env):
    if missing := rig.need("ucx_perftest"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    cmd = ["ucx_perftest", "-t", "tag_lat", "-n", 200, "-w", 10, "-p", port]
    place.pair(cmd, [*cmd, place.host], port, env={"UCX_TLS": tls, "UCX_NET_DEVICES": "softib0:1", **env},
               status=(None, 0))


@rig.over_places(**OVER, endpoint=["msg", "rdm", "dgram"])
def test_fi_pingpong(place, endpoint):
    fi_pingpong(place, endpoint)


@pytest.mark.full
@pytest.mark.parametrize("place", rig.IB_PLACES, indirect=True)
@pytest.mark.parametrize("stack, env", [("openmpi-ucx", {}), ("openmpi-ucx", {"UCX_IB_ADDR_TYPE": "ib_local"}),
                                        ("openmpi-libfabric", {})], ids=["ucx", "ucx-ib_local", "libfabric"])
def test_mpi(place, programs, stack, env, tmp_path):  # noqa: F811
    """Four ranks: their own choice of addresses, LIDs alone, rdma_cm."""
    four_ranks(place, stack, programs, tmp_path, {"UCX_NET_DEVICES": "softib0:1", **env})


@rig.over_places(**OVER, program=["lid_send", "lid_write", "lid_datagram"])
def test_classic(place, program):
    """Programs in the manner of tutorials: LIDs over a socket, no GRH."""
    port = rig.free_port()
    cmd = [rig.client(program), port]
    out = place.pair(cmd, [*cmd, place.host], port)
    lids = (2, 1) if "netns" in place.name else (1, 1)
    assert out.server.output().startswith(f"LID {lids[0]}, "), out.describe()
    assert f"LID {lids[1]}" in out.server.output(), out.describe()


@pytest.mark.parametrize("program", ["lid_send", "lid_write", "lid_datagram"])
def test_classic_needs_lids(placements, program):
    port = rig.free_port()
    cmd = [rig.client(program), port]
    out = placements("local").pair(cmd, [*cmd, "127.0.0.1"], port, status=(2, 2))
    assert "the port has no LID" in out.client.output()


# ---- rdma_cm: addresses stand for ports -------------------------------------


@rig.over_places(**OVER)
def test_rping(place):
    port = rig.free_port()
    cmd = ["rping", "-v", "-V", "-C", 20, "-S", 4000, "-p", port]
    server = rig.Proc(place.server, [*cmd, "-s", "-a", place.host], place.options)
    client = None
    try:
        server.wait_bound(4791)
        client = rig.Proc(place.client, [*cmd, "-c", "-a", place.host], place.options)
        assert rping_ends(client), client.describe() + server.describe()
        assert client.output().count("ping data: rdma-ping-") == 20, client.describe()
        assert rping_ends(server), server.describe()
    finally:
        server.kill()
        if client:
            client.kill()


@rig.over_places(**OVER)
def test_udaddy(place):
    server = rig.Proc(place.server, ["udaddy", "-c", 5, "-C", 10, "-b", place.host], place.options)
    try:
        server.wait_bound(4791)
        rig.Proc(place.client, ["udaddy", "-c", 5, "-C", 10, "-s", place.host], place.options).done(beside=server)
        server.done(10)
    finally:
        server.kill()


def test_with_roce(placements):
    """The wire is RoCEv2's, so one end may be a device of RoCE."""
    place = placements("netns")
    port = rig.free_port()
    cmd = ["rping", "-v", "-C", 20, "-S", 4000, "-p", port]
    server = rig.Proc(place.server, [*cmd, "-s", "-a", place.host], ["--infiniband"])
    client = None
    try:
        server.wait_bound(4791)
        client = rig.Proc(place.client, [*cmd, "-c", "-a", place.host])
        assert rping_ends(client), client.describe() + server.describe()
        assert client.output().count("ping data: rdma-ping-") == 20, client.describe()
    finally:
        server.kill()
        if client:
            client.kill()


# ---- captures --------------------------------------------------------------


@pytest.mark.parametrize("place, args", [("ib", []), ("ib_wire", []), ("ib_wire", ["-g", 0]), ("ib_netns", [])])
@pytest.mark.parametrize("kind", ["rc", "ud"])
def test_pcap(placements, place, args, kind, tmp_path):
    """Packets with LRH, GRH where they have one, and VCRC, which tshark decodes."""
    if missing := rig.need("tshark"):
        pytest.skip(f"not installed: {missing}")
    place = placements(place)
    placed = tmp_path / "%p.pcapng"
    place.tool(f"ibv_{kind}_pingpong", "-n", 5, *args, options=["--pcap", placed])
    fields = ["infiniband.lrh.slid", "infiniband.lrh.dlid", "infiniband.grh.sgid", "infiniband.bth.destqp",
              "infiniband.variant.crc", "_ws.malformed"]
    files = sorted(tmp_path.glob("*.pcapng"))
    assert len(files) == 2
    for path in files:
        out = subprocess.run(["tshark", "-n", "-r", path, "-T", "fields", *(x for f in fields for x in ("-e", f))],
                             check=True, timeout=60, stdout=subprocess.PIPE, text=True).stdout
        rows = [line.split("\t") for line in out.splitlines()]
        assert len(rows) >= 10, out
        lids = {("1", "2"), ("2", "1")} if "netns" in place.name else {("1", "1")}
        assert {tuple(r[:2]) for r in rows} == lids, out
        for row in rows:
            assert bool(row[2]) == bool(args), out
            assert row[3] and row[4] and not row[5], out
