"""Unmodified programs that connect by rdma_cm."""
import os
import re
import subprocess

import pytest

import rig
from test_cm import host, members, pair, start_client, start_server


def rping_ends(p, limit=rig.LIMIT):
    """rping destroys its channel while another thread of it reads there; when
    that one comes back from an event just then, its complaint is the end. What
    stdout still holds is printed behind it."""
    return p.wait(limit) == 0 or "rdma_get_cm_event: Bad file descriptor" in p.output().splitlines()


@rig.over_places(family=[4, 6])
def test_rping(place, family):
    port = rig.free_port()
    cmd = ["rping", "-v", "-V", "-C", 20, "-S", 4000, "-p", port]
    server = start_server(place, [*cmd, "-s", "-a", host(place, family)])
    client = start_client(place, [*cmd, "-c", "-a", host(place, family)])
    try:
        assert rping_ends(client), client.describe() + server.describe()
        assert client.output().count("ping data: rdma-ping-") == 20, client.describe()
        assert rping_ends(server), server.describe()
    finally:
        client.kill()
        server.kill()


@rig.choose(lambda place, rounds: (place, rounds) == ("netns", 1), rounds=[1, 6])
def test_rping_persistent(place, rounds):
    """One server, many clients at a time. The next one comes when the last one
    pings: rping's server keeps the identifier of a request in one variable
    until another thread has taken it, so it loses one of two that come
    together."""
    port = rig.free_port()
    server = start_server(place, ["rping", "-s", "-P", "-p", port])
    clients = []
    try:
        for _ in range(rounds):
            for _ in range(8):
                # A file would get all of the output at once, at the end.
                clients.append(start_client(place, ["stdbuf", "-oL", "rping", "-c", "-V", "-v",
                                                    "-C", 1000, "-a", place.host, "-p", port]))
                clients[-1].wait_for("^ping data: rdma-ping-0:")
            for c in clients:
                assert rping_ends(c, 3 * rig.LIMIT), c.describe() + server.describe()
                assert c.output().count("ping data: rdma-ping-") == 1000, c.describe()
            clients.clear()
        assert server.running(), server.describe()
    finally:
        for c in clients:
            c.kill()
        server.kill()


@rig.over_places(family=[4, 6])
def test_ucmatose(place, family):
    port = rig.free_port()
    cmd = ["ucmatose", "-c", 20, "-C", 10, "-S", 3000, "-p", port]
    pair(place, [*cmd, "-b", host(place, family)], [*cmd, "-s", host(place, family)])


@rig.over_places(family=[4, 6])
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


@rig.over_places(kind=["r", "x"])
def test_rdma_xclient(place, kind):
    port = rig.free_port()
    pair(place, ["rdma_xserver", "-p", port, "-c", kind],
         ["rdma_xclient", "-s", place.host, "-p", port, "-c", kind])


@rig.in_place("wire")
def test_cmtime(place):
    port = rig.free_port()
    p = pair(place, ["cmtime", "-p", port], ["cmtime", "-s", place.host, "-p", port, "-c", 1000],
             status=(None, 0))
    assert re.search(r"^connect +: +[0-9.]+", p.client.output(), re.M), p.describe()


@pytest.mark.parametrize("where, group", [
    ("wire", "239.77.0.9"), ("netns", "ff15::77:9"),
    pytest.param("wire", "ff15::77:9", marks=pytest.mark.full),
    pytest.param("netns", "239.77.0.9", marks=pytest.mark.full)])
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
        rig.until(lambda: members(server.pid, group, "hca0" if where == "netns" else "lo"),
                  "the receiver is a member", server)
        client = start_client(place, ["mckey", "-m", group, "-b", to[1], "-s", "-C", 10])
        client.done()
        server.done(10)
    finally:
        server.kill()


PERFTEST = [f"ib_{op}_{what}" for op in ("write", "read", "send", "atomic") for what in ("bw", "lat")]


def perftest(place, tool, *args):
    cmd = [tool, "-F", "-n", 200, "-p", rig.free_port(), *args]
    if "atomic" not in tool:
        cmd += ["-s", 1000]
    return pair(place, cmd, [*cmd, place.host])  # it knows IPv4 only


# Of the types of connection, it has -R for these two.
@rig.over_places(test=[(tool, "RC") for tool in PERFTEST] + [("ib_send_bw", "UD"), ("ib_send_lat", "UD")])
def test_perftest(place, test):
    perftest(place, test[0], "-R", "-c", test[1])


@pytest.mark.parametrize("conn", ["UC", "XRC", "DC"])
def test_perftest_refuses(placements, conn):
    """It does so itself, before it has asked for anything."""
    out = placements("local").server.run(["ib_write_bw", "-R", "-c", conn], status=1)
    assert re.search("not support(ed in librdmacm| RDMA_CM)", out), out


@rig.over_places(conn=["RC", "UC"])
def test_perftest_exchange(place, conn):
    """Queue pairs of its own, whose numbers it exchanges over rdma_cm (-z)."""
    perftest(place, "ib_write_bw", "-z", "-c", conn)


@rig.in_place("local", n=[16])
def test_perftest_many(place, n):
    perftest(place, "ib_write_bw", "-R", "-q", n)


def qperf(place, test, status=0, args=("-cm", 1)):
    """qperf listens by TCP; its server goes on until it is told."""
    if missing := rig.need("qperf"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    server = rig.Proc(place.server, ["qperf", "-lp", port], place.options)
    try:
        server.wait_listening(port)
        client = start_client(place, ["qperf", "-lp", port, place.host, "-t", 1, *args, test])
        assert client.wait() == status, client.describe() + server.describe()
        return client.output()
    finally:
        server.kill()


# A second each: the shortest that it knows.
@rig.over_places(test=["rc_lat", "rc_rdma_read_lat", "rc_rdma_write_bw", "rc_fetch_add_mr", "ver_rc_compare_swap"])
def test_qperf(place, test):
    assert re.search(f"^{test}:\\n +(latency|bw|msg_rate) +=", qperf(place, test), re.M)


@pytest.mark.full
@pytest.mark.parametrize("test", ["rc_bw", "rc_bi_bw", "rc_rdma_read_bw", "rc_rdma_write_lat",
                                  "rc_rdma_write_poll_lat", "rc_compare_swap_mr", "ver_rc_fetch_add"])
def test_qperf_more(place, test):
    test_qperf(place, test)


@pytest.mark.parametrize("test, why", [("uc_lat", "failed to modify QP to RTR"),
                                       ("ud_lat", "failed to create address handle: Invalid argument")])
def test_qperf_addresses_by_lid(placements, test, why):
    """Its UC and UD know no rdma_cm, whatever -cm says, and no GRH, without
    which there is no way over Ethernet: the kernel's drivers refuse that too."""
    out = qperf(placements("local"), test, 1)
    assert f"warning: -cm set but not used in test {test}" in out and why in out, out


def fio(place, verb, tmp_path, server_more="", client_more=""):
    if missing := rig.need("fio"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    common = f"[global]\nthread\nioengine=rdma\nport={port}\nbs=64k\nsize=8m\n" \
             "verify_state_save=0\n"
    (tmp_path / "s.fio").write_text(f"{common}[r]\nrw=read\niodepth=128\n{server_more}")
    (tmp_path / "c.fio").write_text(
        f"{common}hostname={place.host}\nverb={verb}\n[w]\nrw=write\niodepth=1\n"
        f"iodepth_batch_complete=1\n{client_more}")
    # Its client asks for no RNR retries: the server has a receive for every
    # block, and has to post them in the half second for which the client waits.
    # To miss that is to run out of time, whose failures retry.py judges.
    try:
        return pair(place, ["fio", tmp_path / "s.fio"], ["fio", tmp_path / "c.fio"])
    except rig.Failed as e:
        if "RNR retry counter exceeded" not in str(e):
            raise
        raise rig.TimedOut(f"no receives of fio's server within its half second\n{e}") from None


@rig.over_places(verb=["write", "read", "send"])
def test_fio(place, verb, tmp_path):
    """What is sent has checksums that its receiver verifies. One-sided, its
    other end does not look at its memory, and it has no way to read back."""
    server = "verify=crc32c\nverify_fatal=1\n" if verb == "send" else ""
    client = "verify=crc32c\ndo_verify=0\n"
    p = fio(place, verb, tmp_path, server, client)
    assert re.search(r"err= 0", p.client.output()), p.describe()
    assert re.search(r"io=8192KiB|io=8.00MiB|\(8389kB\)", p.client.output()), p.describe()
    assert "err= 0" in p.server.output() and "verify:" not in p.server.output(), p.describe()


def test_fio_verifies(placements, tmp_path):
    """And it does look: what has no checksums is refused."""
    with pytest.raises(rig.Failed, match="verify: bad magic header"):
        fio(placements("local"), "send", tmp_path, "verify=crc32c\nverify_fatal=1\n")


def fi_pingpong(place, endpoint, *args, host=None, **kw):
    """With data checked."""
    if missing := rig.need("fi_pingpong"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    rig.need_alone(place.server, ["fi_pingpong", "-p", "tcp", "-e", "msg", "-B", port], port)
    provider = {"msg": "verbs", "dgram": "verbs", "rdm": "verbs;ofi_rxm"}[endpoint]
    cmd = ["fi_pingpong", "-p", provider, "-e", endpoint, "-c", "-I", 20, *args]
    return place.pair([*cmd, "-B", port], [*cmd, "-P", port, host or place.host], port, limit=60, **kw)


@rig.over_places(endpoint=["msg", "rdm", "dgram"])
def test_fi_pingpong(place, endpoint):
    fi_pingpong(place, endpoint)


def need_ucx(place):
    """It aborts where /sys is not mounted, for one."""
    if missing := rig.need("ucx_perftest"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    rig.need_alone(place.server, ["ucx_perftest", "-t", "tag_lat", "-p", port], port, {"UCX_TLS": "tcp"})


UCX_MESSAGES = ["tag_lat", "tag_bw", "stream_lat", "ucp_am_lat"]
UCX_MEMORY = ["ucp_put_lat", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"]


# UD has messages only; UCX makes the others of them, by its software's hand.
@rig.over_places(tls=["rc_v,ud_v", "ud_v"], test=UCX_MESSAGES + UCX_MEMORY)
def test_ucx(place, tls, test):
    need_ucx(place)
    port = rig.free_port()
    cmd = ["ucx_perftest", "-t", test, "-n", 200, "-w", 10, "-s", 1000 if "_lat" in test else 8,
           "-p", port]
    place.pair(cmd, [*cmd, place.host], port, env={"UCX_TLS": tls, "UCX_NET_DEVICES": "softhca0:1"},
               limit=60)


def four_rails():
    """Of UCX, for --rails=4 --names=mlx5_%d: a large message goes by all."""
    return {"UCX_NET_DEVICES": ",".join(f"mlx5_{i}:1" for i in range(4)), "UCX_MAX_RNDV_RAILS": "4"}


def test_ucx_over_four_rails(placements):
    """A large message is dealt over all of them; each counts its part."""
    place, port = placements("local"), rig.free_port()
    need_ucx(place)
    rails = [f"mlx5_{i}" for i in range(4)]
    options = ["--rails=4", "--names=mlx5_%d"]
    before = rig.sent(place.server, rails, options)
    cmd = ["ucx_perftest", "-t", "tag_bw", "-n", 50, "-w", 5, "-s", 4 << 20, "-p", port]
    place.pair(cmd, [*cmd, place.host], port, options=options, env={"UCX_TLS": "rc_v", **four_rails()})
    parts = [n - b for n, b in zip(rig.sent(place.server, rails, options), before)]
    assert min(parts) > 50 * (4 << 20) // 8, parts


EXAMPLE = "/usr/share/doc/libucx-dev/examples/ucp_client_server.c"


@pytest.fixture(scope="session")
def ucp_client_server(tmp_path_factory):
    """UCX's example of a server and a client that meet by address."""
    if rig.need("cc") or not os.path.exists(EXAMPLE):
        pytest.skip("not installed: libucx-dev (scripts/deps full)")
    path = tmp_path_factory.mktemp("ucx") / "ucp_client_server"
    subprocess.run(["cc", "-O2", "-w", "-o", path, EXAMPLE, "-lucp", "-lucs"], check=True)
    return path


@rig.over_places(api=["stream", "tag", "am"], family=[4, 6])
def test_ucx_rdmacm(place, ucp_client_server, api, family):
    """UCX's own wire-up over rdma_cm."""
    need_ucx(place)
    port = rig.free_port()
    env = {"UCX_TLS": "rc_v,ud_v", "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm",
           "UCX_NET_DEVICES": "softhca0:1"}
    cmd = [ucp_client_server, "-c", api, "-p", port, "-i", 20, "-s", 20000,
           *(["-6"] if family == 6 else [])]
    server = start_server(place, cmd, env=env)
    client = None
    try:
        server.wait_for("server is listening|Waiting for connection")
        client = start_client(place, [*cmd, "-a", host(place, family)], env=env)
        client.done(beside=server)
        assert "FAIL" not in client.output() and "ABCDEFGH" in client.output(), client.describe()
        assert server.running(), server.describe()
    finally:
        if client:
            client.kill()
        server.kill()
