"""iWARP: unmodified programs over TCP, on one host and between two, and what a TCP
peer can do wrong."""
import contextlib
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

import rig
from test_cm_tools import fi_pingpong, qperf, rping_ends
from test_perftest import perftest

OVER = {"places": rig.IWARP_PLACES}
KEY_REQUEST = b"MPA ID Req Frame"
KEY_REPLY = b"MPA ID Rep Frame"


def host(place, family):
    return place.host if family == 4 else place.host6


def fails(side, cmd, status=255):
    """What it prints, with explanations, when it fails with this status."""
    p = rig.Proc(side, cmd, ["--iwarp", "--explain"])
    try:
        assert p.wait() == status, p.describe()
        return p.output()
    finally:
        p.kill()


def over_tcp(place, server_cmd, client_cmd, port, options=(), **kw):
    """Whoever listens by iWARP listens by TCP."""
    return place.pair(server_cmd, client_cmd, port, options, **kw)


def rping(place, family=4, count=20, options=(), client_options=None):
    port = rig.free_port()
    cmd = ["rping", "-v", "-V", "-C", count, "-S", 4000, "-p", port]
    server = rig.Proc(place.server, [*cmd, "-s", "-a", host(place, family)], [*place.options, *options])
    client = None
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, "-c", "-a", host(place, family)],
                          [*place.options, *(options if client_options is None else client_options)])
        assert rping_ends(client), client.describe() + server.describe()
        assert client.output().count("ping data: rdma-ping-") == count, client.describe()
        assert rping_ends(server), server.describe()
        return server.output(), client.output()
    finally:
        server.kill()
        if client:
            client.kill()


# ---- the device ------------------------------------------------------------


def test_device(placements):
    side = placements("iwarp").server
    out = side.run(["ibv_devinfo", "-v"], ["--iwarp"])
    for line in ("hca_id:\tsoftiw0", "transport:\t\t\tiWARP \\(1\\)", "max_sge_rd:\t\t\t1",
                 "atomic_cap:\t\t\tATOMIC_NONE", "max_ah:\t\t\t\t0", "max_mcast_grp:\t\t\t0",
                 "link_layer:\t\tEthernet", "state:\t\t\tPORT_ACTIVE"):
        assert re.search(line, out), out
    assert "softhca0" not in out


def test_gid(placements):
    """One: the MAC and zeros, as siw has it."""
    place = placements("iwarp")
    out = place.server.run([rig.SOFTHCA, "devices", "--json"], ["--iwarp"])
    port = json.loads(out)[0]["ports"][0]
    assert port["gid_tbl_len"] == 1 and len(port["gids"]) == 1, out
    assert port["gids"][0]["gid"].endswith("::") and port["gids"][0]["type"] == "IB", out


@pytest.mark.parametrize("mode, names", [("both", ["softhca0", "softiw0"]), ("first", ["softiw0", "softhca0"])])
def test_devices_beside_each_other(placements, mode, names):
    out = placements("iwarp").server.run(["ibv_devices"], [f"--iwarp={mode}"])
    assert re.findall(r"^\s+(soft\w+)", out, re.M) == names, out


def test_sysfs(placements):
    out = placements("iwarp").server.run(["cat", "/sys/class/infiniband/softiw0/node_type"], ["--iwarp"])
    assert out == "4: RNIC\n"


def test_wrong_mode(placements):
    out = placements("iwarp").server.run(["true"], ["--iwarp=some"], status=125)
    assert "not one of only (the default), both and first" in out


@pytest.mark.parametrize("mode", ["", "=both", "=first"])
@pytest.mark.parametrize("option", ["--loss", "--faults"])
def test_what_packets_alone_have(placements, option, mode, tmp_path):
    """It is said that iWARP's are TCP's."""
    (tmp_path / "f").write_text("drop ack nth=3\n")
    out = placements("iwarp").server.run(["true"], ["--iwarp" + mode, option, 1 if option == "--loss" else tmp_path / "f"])
    assert option in out and "iWARP" in out and "TCP" in out, out


def test_calls_fail(placements, tmp_path):
    """What --faults does to calls it does here, too."""
    place = placements("iwarp")
    (tmp_path / "f").write_text("fail reg_mr ENOMEM\n")
    out = place.client.run(["rdma_client", "-s", place.host, "-p", rig.free_port()],
                           ["--iwarp", "--faults", tmp_path / "f"], status=255)
    assert "Cannot allocate memory" in out, out


# ---- programs --------------------------------------------------------------


@rig.over_places(**OVER, family=[4, 6])
def test_rping(place, family):
    rping(place, family)


def test_rping_crc(placements):
    _, client = rping(placements("iwarp"), options=["--mpa-crc", "--explain"])
    assert "CRC on" in client


def test_rping_one_wants_crc(placements):
    """Who wants CRCs gets them."""
    server, _ = rping(placements("iwarp"), options=["--explain"], client_options=["--mpa-crc"])
    assert "CRC on" in server


@pytest.mark.parametrize("client, by", [("--iwarp", "TCP"), ("--iwarp=first", "TCP"), (None, "shared memory")])
def test_rping_both(placements, client, by):
    """One listener at any address takes both."""
    place, port = placements("local"), rig.free_port()
    server = rig.Proc(place.server, ["rping", "-s", "-p", port], ["--iwarp=both"])
    options = ["--explain", *([client] if client else [])]
    ping = None
    try:
        server.wait_listening(port)
        ping = rig.Proc(place.client, ["rping", "-c", "-C", 5, "-V", "-v", "-a", place.host, "-p", port], options)
        assert rping_ends(ping), ping.describe() + server.describe()
        assert ping.output().count("ping data: rdma-ping-") == 5, ping.describe()
        assert f"connected by {by}" in ping.output(), ping.describe()
    finally:
        server.kill()
        if ping:
            ping.kill()


@rig.over_places(**OVER, family=[4, 6])
def test_ucmatose(place, family):
    port = rig.free_port()
    cmd = ["ucmatose", "-c", 20, "-C", 10, "-S", 3000, "-p", port]
    over_tcp(place, [*cmd, "-b", host(place, family)], [*cmd, "-s", host(place, family)], port)


def test_ucmatose_many(placements):
    """Connections are set up and closed, 1000 of them."""
    place, port = placements("iwarp"), rig.free_port()
    cmd = ["ucmatose", "-c", 1000, "-C", 1, "-S", 64, "-p", port]
    over_tcp(place, [*cmd, "-b", place.host], [*cmd, "-s", place.host], port, limit=120)


def many(place, n):
    """cm_check's: n at once, closed again, four times over, both ends in one process,
    of which no descriptor, memory or queue pair is left."""
    need = 2 * n + 200
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    raised = [] if hard >= need else ["prlimit", f"--nofile={need}:{need}"]
    if raised and subprocess.run([*raised, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip(f"{n} connections in one process need {need} descriptors; no more than {hard} are allowed here (ulimit -Hn)")
    place.server.run([*raised, rig.client("cm_check"), "many"], place.options, limit=120,
                     env={"CM_CHECK_ADDR": "127.0.0.1", "CM_CHECK_N": str(n)})


def test_thousand_connections(placements):
    many(placements("iwarp"), 1000)


@pytest.mark.full
def test_five_thousand_connections(placements):
    many(placements("iwarp"), 5000)


@pytest.mark.parametrize("name", ["order", "order_backlog"])
def test_order(placements, name):
    """cm_check's: requests come in the order of rdma_connect()."""
    place = placements("iwarp")
    place.server.run([rig.client("cm_check"), name], place.options, env={"CM_CHECK_ADDR": "127.0.0.1"})


@rig.over_places(**OVER)
def test_rdma_client(place):
    port = rig.free_port()
    over_tcp(place, ["rdma_server", "-p", port], ["rdma_client", "-s", place.host, "-p", port], port)


@rig.over_places(**OVER, op=["send", "write", "read"], kind=["lat", "bw"])
def test_perftest(place, op, kind):
    perftest(place, f"ib_{op}_{kind}", "-R")


@rig.combinations(["place", "op"], [(p, o) for p in OVER["places"] for o in ("send", "write", "read")],
                  lambda place, op: (place, op) == ("iwarp_netns", "write"))
def test_perftest_all_sizes(place, op):
    rows = perftest(place, f"ib_{op}_bw", "-R", "-a", iters=8, limit=90)
    assert len(rows) == 23 and rows[-1].split()[0] == str(1 << 23), rows


@rig.over_places(**OVER, tool=["ib_send_lat", "ib_read_bw"])
def test_perftest_events(place, tool):
    """Not ib_send_bw: see docs/IWARP.md."""
    perftest(place, tool, "-R", "-e", iters=1000)


@rig.over_places(**OVER, op=["send", "write", "read"])
def test_perftest_many_qps(place, op):
    perftest(place, f"ib_{op}_bw", "-R", "-q", 8, "-s", 4096)


def test_perftest_both_ways(placements):
    """Both ends send until their sockets are full."""
    perftest(placements("iwarp_netns"), "ib_write_bw", "-R", "-b", "-s", 1 << 20, iters=100)


# Not rc_bw: it sends whether or not a receive is posted, and where the receiving program waits for a processor for some
# milliseconds none is. Over iWARP that ends the connection.
@rig.over_places(**OVER, test=["rc_lat", "rc_rdma_read_lat", "rc_rdma_read_bw"])
def test_qperf(place, test):
    assert re.search(f"^{test}:\\n +(latency|bw|msg_rate) +=", qperf(place, test), re.M)


@rig.over_places(**OVER, verb=["write", "read", "send"])
def test_fio(place, verb, tmp_path):
    if missing := rig.need("fio"):
        pytest.skip(f"not installed: {missing}")
    port = rig.free_port()
    common = f"[global]\nthread\nioengine=rdma\nport={port}\nbs=64k\nsize=8m\nverify_state_save=0\n"
    (tmp_path / "s.fio").write_text(f"{common}[r]\nrw=read\niodepth=128\n")
    (tmp_path / "c.fio").write_text(f"{common}hostname={place.host}\nverb={verb}\n[w]\nrw=write\niodepth=1\n"
                                    "iodepth_batch_complete=1\n")
    p = over_tcp(place, ["fio", tmp_path / "s.fio"], ["fio", tmp_path / "c.fio"], port)
    assert re.search(r"err= 0", p.client.output()), p.describe()


@rig.over_places(places=["iwarp_netns"], endpoint=["msg", "rdm"])
def test_fi_pingpong(place, endpoint):
    fi_pingpong(place, endpoint)


# ---- what iWARP has not ----------------------------------------------------


def test_no_datagrams(placements):
    """RDMA_PS_UDP finds no device."""
    place = placements("iwarp")
    out = fails(place.server, ["udaddy", "-b", place.host])
    assert "iWARP has RDMA_PS_TCP alone" in out, out


@pytest.mark.parametrize("type", ["uc", "ud"])
def test_no_other_types(placements, type):
    out = fails(placements("iwarp").server, [f"ibv_{type}_pingpong", "-p", rig.free_port()], 1)
    assert "ibv_create_qp: EOPNOTSUPP" in out and "this device has RC" in out, out


def test_no_immediate_data(placements):
    out = qperf(placements("iwarp"), "rc_rdma_write_bw", 1)
    assert "failed to post rdma write with immediate: Invalid argument" in out, out


# ---- ends ------------------------------------------------------------------


@pytest.fixture
def pinging(placements):
    """rping's ends that ping for ever, and their port."""
    place, port = placements("iwarp"), rig.free_port()
    server = rig.Proc(place.server, ["rping", "-s", "-P", "-p", port], place.options)
    client = None
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, ["stdbuf", "-oL", "rping", "-c", "-V", "-v", "-a", place.host, "-p", port],
                          [*place.options, "--explain"])
        client.wait_for("^ping data: rdma-ping-3:")
        yield server, client, place, port
    finally:
        server.kill()
        if client:
            client.kill()


def test_peer_killed(pinging):
    """The kernel ends its stream: the other end hears of that."""
    server, client, *_ = pinging
    server.kill()
    client.wait(10)
    assert "client DISCONNECT EVENT" in client.output(), client.describe()


def test_client_killed(pinging):
    """The server serves the next one."""
    server, client, place, port = pinging
    client.kill()
    again = rig.Proc(place.client, ["rping", "-c", "-C", 3, "-V", "-v", "-a", place.host, "-p", port], place.options)
    try:
        assert rping_ends(again), again.describe() + server.describe()
        assert again.output().count("ping data: rdma-ping-") == 3
    finally:
        again.kill()


def test_stopped_peer_goes_on(pinging):
    _, client, *_ = pinging
    client.tell(signal.SIGSTOP)
    time.sleep(0.3)
    client.tell(signal.SIGCONT)
    n = len(client.output())
    rig.until(lambda: len(client.output()) > n + 1000, "it pings on", client)


def test_wrong_port(placements):
    place = placements("iwarp")
    out = fails(place.client, ["rping", "-c", "-a", place.host, "-p", rig.free_port()])
    assert "RDMA_CM_EVENT_REJECTED, error -111" in out, out
    assert "no iWARP listener there on this port" in out, out


def test_port_taken(placements):
    """By a socket of an ordinary program."""
    place = placements("iwarp")
    port = rig.free_port()
    holder = rig.Proc(place.server, ["python3", "-c", f"import socket, time; s = socket.create_server(('', {port})); "
                                                      "time.sleep(60)"], alone=True)
    try:
        holder.wait_listening(port)
        out = fails(place.server, ["rping", "-s", "-p", port])
        assert f"cannot listen on TCP 0.0.0.0 port {port}: Address already in use" in out, out
    finally:
        holder.kill()


# ---- hostile and strange peers ---------------------------------------------


def connect_from(server, port, source="127.0.0.1", waits=True):
    """A socket of the test's in the network of a program. Without waits it may yet be connecting."""
    result = []

    def enter():
        with open(f"/proc/{server.pid}/ns/net") as f:
            os.setns(f.fileno(), os.CLONE_NEWNET) if hasattr(os, "setns") else rig.LIBC.setns(f.fileno(), 0x40000000)
        s = socket.socket()
        s.bind((source, 0))
        s.settimeout(20 if waits else 0)
        (s.connect if waits else s.connect_ex)(("127.0.0.1", port))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        result.append(s)

    t = threading.Thread(target=enter)
    t.start()
    t.join(30)
    return result[0]


def frame(key=KEY_REQUEST, flags=0, revision=1, private=b"", length=None):
    return key + struct.pack(">BBH", flags, revision, len(private) if length is None else length) + private


def closed(s, limit=20):
    """What comes until the peer closes or resets, or None: it does neither."""
    s.settimeout(limit)
    data = b""
    try:
        while got := s.recv(65536):
            data += got
    except ConnectionError:
        pass
    except TimeoutError:
        return None
    return data


@contextlib.contextmanager
def serving(placements, *prefix):
    """A server of rping, with --explain; it runs to the end of the block."""
    place, port = placements("iwarp"), rig.free_port()
    server = rig.Proc(place.server, [*prefix, "rping", "-s", "-P", "-v", "-p", port], [*place.options, "--explain"])
    try:
        server.wait_listening(port)
        yield server, place, port
        assert server.running(), server.describe()
    finally:
        server.kill()


FEW = ("prlimit", "--nofile=128:128")


@pytest.fixture
def listener(placements):
    with serving(placements) as (server, place, port):
        yield server, place, port
        # Whatever happened, it serves.
        ping = rig.Proc(place.client, ["rping", "-c", "-C", 3, "-V", "-v", "-a", place.host, "-p", port], place.options)
        try:
            assert rping_ends(ping), ping.describe() + server.describe()
            assert ping.output().count("ping data: rdma-ping-") == 3, ping.describe() + server.describe()
        finally:
            ping.kill()


NEED_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="enters another network")

GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(64),
    "reply": frame(KEY_REPLY),
    "key": frame(b"MPA ID Req Framf"),
    "revision": frame(revision=7),
    "length": frame(length=0xffff),
    "too_long": frame(private=bytes(600)),
    "enhanced_without": frame(revision=2, flags=0x10),
}


@NEED_ROOT
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(listener, name):
    server, _, port = listener
    s = connect_from(server, port)
    s.sendall(GARBAGE[name])
    assert closed(s) is not None, server.describe()


@NEED_ROOT
def test_rejection_is_read(placements):
    """FIN comes a second behind the rejection, or when the peer has closed: siw may look at neither if it comes at once."""
    side, port = placements("iwarp").server, rig.free_port()
    server = rig.Proc(side, [os.path.join(rig.BUILD, "tests", "peer", "reject"), "server", "connect", "127.0.0.1", port],
                      ["--iwarp"])
    try:
        server.wait_listening(port)
        s = connect_from(server, port)
        s.sendall(frame())
        data = b""
        while len(data) < 20 + len("not today") + 1:
            assert (got := s.recv(100)), data
            data += got
        assert data[:16] == KEY_REPLY and data[16] & 0x20 and data[20:] == b"not today\0", data
        s.settimeout(0.4)
        with pytest.raises(TimeoutError):
            s.recv(100)
        assert closed(s) == b"", server.describe()
        assert server.wait() == 0, server.describe()
    finally:
        server.kill()


@NEED_ROOT
def test_garbage_bit_by_bit(listener):
    """A byte at a time, and then the connection is gone."""
    server, _, port = listener
    s = connect_from(server, port)
    for b in frame()[:-1]:
        s.sendall(bytes([b]))
    s.close()


@NEED_ROOT
def test_no_request(listener):
    """Who says nothing is closed after five seconds, and holds up nobody."""
    server, place, port = listener
    begin = time.monotonic()
    idle = [connect_from(server, port) for _ in range(20)]
    ping = rig.Proc(place.client, ["rping", "-c", "-C", 1, "-V", "-v", "-a", place.host, "-p", port], place.options)
    try:
        ping.wait_for("ping data: rdma-ping-0", 4.5)
    finally:
        ping.kill()
    for s in idle:
        assert closed(s) == b""
    assert time.monotonic() - begin > 4.5


@NEED_ROOT
def test_silent_crowd(placements):
    """Who connects and says nothing takes neither the program's descriptors nor others' turn."""
    with serving(placements, *FEW) as (server, place, port):
        idle = [connect_from(server, port) for _ in range(100)]
        ping = rig.Proc(place.client, ["rping", "-c", "-C", 1, "-V", "-v", "-a", place.host, "-p", port], place.options)
        try:
            fds = f"/proc/{server.pid}/fd"
            assert len(os.listdir(fds)) < 100, os.listdir(fds)
            ping.wait_for("ping data: rdma-ping-0", 30)
        finally:
            ping.kill()
        for s in idle:
            s.close()


@NEED_ROOT
def test_crowd_of_one_source(placements):
    """Who fills the room alone gives it back: others may be slow as long as it is there."""
    with serving(placements, *FEW) as (server, _, port):
        slow = [connect_from(server, port, f"127.0.0.{n}") for n in (3, 4, 5)]
        begin = time.monotonic()
        crowd = []
        while time.monotonic() < begin + 2.5:   # 32 have room at a time
            # Where the listener's queue is full a SYN is lost, and comes again after a second or more, which is not waited
            # for: the slow ones have 5 s.
            crowd += [connect_from(server, port, "127.0.0.2", waits=False) for _ in range(16)]
            time.sleep(0.05)
        served = 0
        for s in slow:
            s.settimeout(20)
            try:
                s.sendall(frame(private=bytes(4)))
                served += s.recv(16).startswith(KEY_REPLY)
            except ConnectionError:
                pass
        # One of them may be counted in the place of the crowd.
        assert served >= 2, server.describe()
        for s in crowd + slow:
            s.close()


@NEED_ROOT
@pytest.mark.full
def test_no_first_message(placements):
    """Who has offered to send first, and does not, is given up after a minute; who has not offered may wait."""
    with serving(placements) as (server, _, port):
        idle, late = (connect_from(server, port) for _ in range(2))
        offer = frame(revision=2, flags=0x10, private=struct.pack(">HH", 0x8001, 0x8001) + bytes(4))
        # One after the other: rping may lose one of two requests.
        for s, request in (idle, frame(private=bytes(4))), (late, offer):
            s.sendall(request)
            s.settimeout(20)
            assert s.recv(99).startswith(KEY_REPLY), server.describe()
        begin = time.monotonic()
        assert closed(late, 75) == b"", server.describe()
        assert time.monotonic() > begin + 55
        server.wait_for("the first message that the peer has announced has not come", 5)
        server.wait_for("DISCONNECT EVENT", 5)
        assert closed(idle, 5) is None, server.describe()


@NEED_ROOT
def test_garbage_behind_the_frame(listener):
    """A connection, accepted, whose FPDUs make no sense: a Terminate message ends
    it."""
    server, _, port = listener
    s = connect_from(server, port)
    # rping's request has its version and the peer's data; it looks at neither.
    s.sendall(frame(private=bytes(4)))
    reply = b""
    s.settimeout(20)
    while len(reply) < 20:
        reply += s.recv(20 - len(reply))
    assert reply.startswith(KEY_REPLY), reply
    s.sendall(b"\xff" * 5000)
    assert closed(s) is not None, server.describe()


@NEED_ROOT
def test_who_begins(placements):
    """A server's program sends first, to an initiator that has not offered to: it
    gets a while to read the reply, and takes no byte behind that until then."""
    place = placements("iwarp")
    for attempt in range(3):    # this end may be kept from looking
        port = rig.free_port()
        server = rig.Proc(place.server, ["ucmatose", "-c", 1, "-C", 1, "-S", 100, "-p", port], place.options)
        try:
            server.wait_listening(port)
            s = connect_from(server, port)
            s.sendall(frame())
            data, got = b"", []
            while sum(got) < 20 + 2 + 18 + 100 + 4:
                data = s.recv(65536)
                assert data, server.describe()
                got.append(len(data))
                if len(got) == 1:
                    begin = time.monotonic()
            waited = time.monotonic() - begin
            s.close()
        finally:
            server.kill()
        if got[0] == 20 and waited > 0.03:
            return
    raise AssertionError(f"{got} bytes, the second after {waited} s")


@NEED_ROOT
def test_server_of_something_else(placements):
    """What listens there greets whoever connects: it speaks no MPA."""
    place, port = placements("iwarp"), rig.free_port()
    other = rig.Proc(place.server, ["python3", "-c",
                                    f"import socket\ns = socket.create_server(('', {port}))\n"
                                    "c, _ = s.accept()\nc.sendall(b'220 mail.example.net ESMTP\\r\\n' * 4)\nc.recv(99999)\n"
                                    "c.recv(99999)"], alone=True)
    try:
        other.wait_listening(port)
        out = fails(place.client, ["rping", "-c", "-a", place.host, "-p", port])
        assert "the peer does not speak MPA" in out, out
        assert "error -71" in out, out  # EPROTO
    finally:
        other.kill()
