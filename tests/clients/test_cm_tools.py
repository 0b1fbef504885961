"""Unmodified programs that connect by rdma_cm."""
import re
import time

import pytest

import rig
from test_cm import host, pair, start_client, start_server


@pytest.mark.parametrize("family", [4, 6])
def test_rping(place, family):
    port = rig.free_port()
    cmd = ["rping", "-v", "-V", "-C", 20, "-S", 4000, "-p", port]
    p = pair(place, [*cmd, "-s", "-a", host(place, family)],
             [*cmd, "-c", "-a", host(place, family)])
    assert p.client.output().count("ping data: rdma-ping-") == 20, p.describe()


def test_rping_persistent(place):
    """One server, many clients, several of them at a time. The next one comes
    when the last one is served: rping's server loses one of two requests that
    arrive together."""
    port = rig.free_port()
    server = start_server(place, ["rping", "-s", "-P", "-p", port])
    clients = []
    try:
        for i in range(24):
            clients.append(start_client(place, ["rping", "-c", "-V", "-v", "-C", 40, "-a",
                                                place.host, "-p", port]))
            clients[-1].wait_for("ping data: rdma-ping-")
            if i % 8 == 7:
                for c in clients:
                    assert c.wait() == 0, c.describe() + server.describe()
                clients.clear()
        assert server.running(), server.describe()
    finally:
        for c in clients:
            c.kill()
        server.kill()


@pytest.mark.parametrize("family", [4, 6])
def test_ucmatose(place, family):
    port = rig.free_port()
    cmd = ["ucmatose", "-c", 20, "-C", 10, "-S", 3000, "-p", port]
    pair(place, [*cmd, "-b", host(place, family)], [*cmd, "-s", host(place, family)])


@pytest.mark.parametrize("family", [4, 6])
def test_udaddy(place, family):
    cmd = ["udaddy", "-c", 5, "-C", 10]  # always port 7174
    pair(place, [*cmd, "-b", host(place, family)], [*cmd, "-s", host(place, family)])


def test_ucmatose_options(placements):
    """Migrated identifiers, another channel, type of service."""
    place, port = placements("local"), rig.free_port()
    cmd = ["ucmatose", "-c", 3, "-C", 5, "-m", "-t", 8, "-p", port]
    pair(place, [*cmd, "-b", place.host], [*cmd, "-s", place.host])


def test_rdma_client(place):
    port = rig.free_port()
    pair(place, ["rdma_server", "-p", port], ["rdma_client", "-s", place.host, "-p", port])


@pytest.mark.parametrize("kind", ["r", "x"])
def test_rdma_xclient(place, kind):
    port = rig.free_port()
    pair(place, ["rdma_xserver", "-p", port, "-c", kind],
         ["rdma_xclient", "-s", place.host, "-p", port, "-c", kind])


def test_cmtime(place):
    port = rig.free_port()
    p = pair(place, ["cmtime", "-p", port], ["cmtime", "-s", place.host, "-p", port, "-c", 1000],
             status=(None, 0))
    assert re.search(r"^connect +: +[0-9.]+", p.client.output(), re.M), p.describe()


@pytest.mark.parametrize("group", ["239.77.0.9", "ff15::77:9"])
@pytest.mark.parametrize("where", ["wire", "netns"])
def test_mckey(placements, where, group):
    place = placements(where)
    v6 = ":" in group
    if where == "netns":
        to = ["fd91::2", "fd91::1"] if v6 else ["10.91.0.2", "10.91.0.1"]
    else:
        to = ["::1", "::1"] if v6 else ["127.0.0.1", "127.0.0.1"]
    # the sender goes first, and the receiver must have joined
    server = start_server(place, ["mckey", "-m", group, "-b", to[0], "-C", 10])
    try:
        time.sleep(0.5)
        client = start_client(place, ["mckey", "-m", group, "-b", to[1], "-s", "-C", 10])
        assert client.wait() == 0, client.describe()
        assert server.wait(10) == 0, server.describe()
    finally:
        server.kill()


@pytest.mark.parametrize("conn", ["RC", "UD"])  # the others it refuses itself
@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_write_lat", "ib_read_bw", "ib_read_lat",
                                  "ib_send_bw", "ib_send_lat", "ib_atomic_bw", "ib_atomic_lat"])
def test_perftest(place, tool, conn):
    if conn == "UD" and "send" not in tool:
        pytest.skip("UD has sends only")
    cmd = [tool, "-R", "-F", "-c", conn, "-n", 200, "-p", rig.free_port()]
    if "atomic" not in tool:
        cmd += ["-s", 1000]
    pair(place, cmd, [*cmd, place.host])


def test_perftest_many(place):
    cmd = ["ib_write_bw", "-R", "-F", "-q", 16, "-n", 100, "-p", rig.free_port()]
    pair(place, cmd, [*cmd, place.host])


@pytest.mark.parametrize("test", ["rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_lat",
                                  "rc_rdma_write_bw", "rc_rdma_write_poll_lat",
                                  "rc_fetch_add_mr", "ver_rc_compare_swap"])
def test_qperf(place, test):
    """qperf listens by TCP; its server goes on until it is told."""
    if missing := rig.need("qperf"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    server = rig.Proc(place.server, ["qperf", "-lp", port], place.options)
    try:
        server.wait_listening(port)
        client = start_client(place, ["qperf", "-lp", port, place.host, "-t", 1, "-cm", 1, test])
        assert client.wait() == 0, client.describe() + server.describe()
        assert test in client.output()
    finally:
        server.kill()


@pytest.mark.parametrize("verb", ["write", "read", "send"])
def test_fio(place, verb, tmp_path):
    if missing := rig.need("fio"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    common = f"[global]\nthread\nioengine=rdma\nport={port}\nbs=64k\nsize=8m\n"
    (tmp_path / "s.fio").write_text(f"{common}[r]\nrw=read\niodepth=16\n")
    (tmp_path / "c.fio").write_text(
        f"{common}hostname={place.host}\nverb={verb}\n[w]\nrw=write\niodepth=1\n"
        "iodepth_batch_complete=1\n")
    p = pair(place, ["fio", tmp_path / "s.fio"], ["fio", tmp_path / "c.fio"])
    assert re.search(r"err= 0", p.client.output()), p.describe()
    assert re.search(r"io=8192KiB|io=8.00MiB|\(8389kB\)", p.client.output()), p.describe()


@pytest.mark.parametrize("endpoint", ["msg", "rdm", "dgram"])
def test_fi_pingpong(place, endpoint):
    if missing := rig.need("fi_pingpong"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    provider = {"msg": "verbs", "dgram": "verbs", "rdm": "verbs;ofi_rxm"}[endpoint]
    cmd = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", 20]
    place.pair([*cmd, "-B", port], [*cmd, "-P", port, place.host], port, limit=60)


@pytest.mark.parametrize("test", ["tag_lat", "tag_bw", "ucp_put_lat", "ucp_get", "ucp_add",
                                  "ucp_fadd", "ucp_cswap", "stream_lat", "ucp_am_lat"])
@pytest.mark.parametrize("tls", ["rc_v,ud_v", "ud_v"])
def test_ucx(place, test, tls):
    if missing := rig.need("ucx_perftest"):
        pytest.skip(f"not installed: {missing}")
    if tls == "ud_v" and test not in ("tag_lat", "stream_lat", "ucp_am_lat"):
        pytest.skip("UD has messages only")
    port = rig.free_port()
    cmd = ["ucx_perftest", "-t", test, "-n", 200, "-w", 10, "-s", 1000 if "_lat" in test else 8,
           "-p", port]
    place.pair(cmd, [*cmd, place.host], port, env={"UCX_TLS": tls, "UCX_NET_DEVICES": "softhca0:1"},
               limit=60)
