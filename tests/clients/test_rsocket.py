"""Sockets over RDMA: rdma-core's rsocket tools and programs of our own; for
ordinary TCP programs see test_sockets.py."""
import hashlib
import itertools
import os
import re
import subprocess

import pytest

import rig
from rig import Proc, free_port
from test_cm import start_server

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rsocket_cases.py")
PYTHON = "/usr/bin/python3"
PLACES = [*rig.PLACES, *rig.IWARP_PLACES]


def need(*programs):
    if missing := rig.need(*programs):
        pytest.skip(f"not installed: {' '.join(missing)}")


def listening(place, cmd, port, options=("--sockets",), env=None):
    """A server that listens by TCP, as those of plain sockets do in any case."""
    p = Proc(place.server, cmd, [*place.options, *options], env)
    try:
        p.wait_listening(port)
    except BaseException:
        p.kill()
        raise
    return p


def run_client(place, server, cmd, options=(), env=None, status=0, limit=rig.LIMIT):
    """A client of a server that listens. Its output."""
    return Proc(place.client, cmd, [*place.options, *options], env).done(limit, status, beside=server)


def start_rsocket(place, cmd, port, options=(), env=None):
    """A server that listens by RDMA; by iWARP that is TCP."""
    if place.name in rig.IWARP_PLACES or "--sockets" in options:
        return listening(place, cmd, port, options, env)
    return start_server(place, cmd, options, env)


def both(place, tool, args, host=None, server_args=(), limit=rig.LIMIT, ends=True, **kw):
    """A tool that is client with -s HOST; what both printed."""
    need(tool)
    port = free_port()
    cmd = [tool, "-p", port, *args]
    server_cmd = [*cmd, "-b", host or place.host, *server_args]
    if tool == "udpong":
        server = start_server(place, server_cmd, port=port, **kw)
    else:
        server = start_rsocket(place, server_cmd, port, **kw)
    try:
        out = run_client(place, server, [*cmd, "-s", host or place.host], limit=limit, **kw)
        if ends:
            rc = server.wait(10)
            assert rc == 0, server.describe()
    finally:
        server.kill()
    assert re.search(r"^(custom|[0-9a-z]+_(lat|bw)) .*\d\.\d\d", out, re.M), out
    return out


def tcp_bytes(side):
    """TCP segments that this network has carried."""
    out = subprocess.run([*side.prefix, "cat", "/proc/net/snmp"], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [line.split()[1:] for line in out.splitlines() if line.startswith("Tcp:")]
    return int(dict(zip(*rows))["OutSegs"])


SMALL = "-I 20 -C 20 -S 5000".split()


@rig.over_places(places=PLACES, options=["", "-T a", "-T b", "-T n", "-T r", "-T v", "-T a -T v", "-T n -T v", "-T r -T v",
                                         "-B 4096 -T v", "-B 1000000 -T v", "-i 0 -T v", "-k 5 -T v", "-f ip -T v"])
def test_rstream(place, options):
    both(place, "rstream", [*SMALL, *options.split()])


@rig.over_places(places=PLACES, options=["-f ipv6 -T v", "-T v"])
def test_rstream_ipv6(place, options):
    both(place, "rstream", [*SMALL, *options.split()], host=place.host6)


@rig.over_places(places=PLACES, size=["1", "64", "65536", "65537", "1000000"])
def test_rstream_sizes(place, size):
    both(place, "rstream", ["-I", "5", "-C", "10", "-S", size, "-T", "v"])


@pytest.mark.full
def test_rstream_suite(place):
    """Every test that it has."""
    out = both(place, "rstream", [], limit=300)
    assert out.count("_lat") == out.count("_bw") == 4


@pytest.mark.full
def test_rstream_all_sizes(place):
    both(place, "rstream", ["-I", "5", "-C", "5", "-S", "all", "-T", "v"], limit=300)


@rig.in_place("netns")
def test_rstream_sockets(place):
    """Its calls of plain sockets, by librspreload."""
    both(place, "rstream", [*SMALL, "-T", "s", "-T", "v"], options=["--sockets"])


def test_rstream_loss(placements):
    both(placements("wire"), "rstream", ["-I", "20", "-C", "10", "-S", "20000", "-T", "v"],
         options=["--loss", "1", "--seed", "7"])


@rig.over_places(safe=["0", "1"])
def test_rstream_fork(place, safe):
    """The server forks and its child serves."""
    need("rstream")
    port = free_port()
    cmd = ["rstream", "-T", "f", "-p", port, "-I", "20", "-C", "20", "-S", "1000"]
    env = {"RDMAV_FORK_SAFE": safe}
    server = listening(place, [*cmd, "-b", place.host], port, env=env)
    try:
        before = tcp_bytes(place.client)
        out = run_client(place, server, [*cmd, "-s", place.host], ["--sockets"], env)
        assert "custom" in out, out
        if place.name == "netns":
            assert tcp_bytes(place.client) - before < 20
        server.done(10)
    finally:
        server.kill()


@rig.over_places(places=PLACES, options=["", "-T a", "-T b", "-T n", "-T v", "-T a -T v"])
def test_riostream(place, options):
    both(place, "riostream", [*SMALL, *options.split()])


@rig.in_place("netns")
def test_riostream_ipv6(place):
    both(place, "riostream", [*SMALL, "-f", "ipv6", "-T", "v"], host=place.host6)


@pytest.mark.full
def test_riostream_suite(place):
    out = both(place, "riostream", [], limit=300)
    assert out.count("_lat") == out.count("_bw") > 0


@rig.over_places(size=["1", "100000", "1000000"])
def test_riostream_sizes(place, size):
    both(place, "riostream", ["-I", "5", "-C", "4", "-S", size, "-T", "v"])


@rig.over_places(options=["", "-T a", "-T b", "-T n", "-T e"])
def test_udpong(place, options):
    # Its server never ends.
    both(place, "udpong", ["-C", "100", "-S", "500", *options.split()], ends=False)


@rig.in_place("wire")
def test_udpong_ipv6(place):
    both(place, "udpong", ["-C", "100", "-S", "500", "-T", "e"], host=place.host6, ends=False)


@rig.in_place("netns")
def test_udpong_sockets(place):
    both(place, "udpong", ["-C", "100", "-S", "500", "-T", "s"], ends=False, options=["--sockets"],
         env={"RS_DGRAM": "1"})


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@rig.in_place("netns", place=PLACES)
def test_rcopy(place, big_file, tmp_path):
    need("rcopy")
    port = free_port()
    server = start_rsocket(place, ["rcopy", "-p", port], port)
    copy = tmp_path / "copy"
    try:
        run_client(place, server, ["rcopy", str(big_file), f"{place.host}:{copy}", "-p", port], limit=100)
        rig.until(lambda: copy.stat().st_size >= big_file.stat().st_size, "all is written", server)
        assert digest(copy) == digest(big_file)
    finally:
        server.kill()


def cases():
    out = subprocess.run([PYTHON, CASES, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    return out.stdout.split()


CASES_OF = cases()
TWICE = {"dgram", "dgram_flood", "refused", "killed", "timeouts"}  # the network answers otherwise than the host
BY_IWARP = {"queues", "iomap", "linger_exit"}  # what is not as by RoCE


@rig.combinations(["where", "case"],
                  [*itertools.product(["local", "wire"], CASES_OF),
                   *(("iwarp", case) for case in CASES_OF if not case.startswith("dgram"))],
                  lambda where, case: case in BY_IWARP if where == "iwarp" else
                  case in TWICE or where == ("local", "wire")[CASES_OF.index(case) % 2])
def test_case(home, where, case):
    rig.Side(home).run([PYTHON, CASES, case], [f"--{where}"] if where != "local" else [], limit=100)


def test_no_datagrams_by_iwarp(home):
    """They are UD's, which iWARP has not."""
    need("udpong")
    out = rig.Side(home).run(["udpong", "-s", "127.0.0.1"], ["--iwarp", "--explain"], status=255)
    assert "ENODEV" in out and "iWARP has RDMA_PS_TCP alone" in out, out


@pytest.mark.parametrize("case", ["options", "queues", "shutdown", "refused", "duplex", "iomap", "dgram"])
def test_case_ipv6(home, case):
    rig.Side(home).run([PYTHON, CASES, case, "::1"], limit=100)


@pytest.mark.parametrize("case", ["queues", "duplex", "shutdown", "iomap", "alone", "halves", "signals", "brief", "linger",
                                  "linger_exit"])
def test_case_loss(home, case):
    rig.Side(home).run([PYTHON, CASES, case], ["--wire", "--loss", "1", "--seed", "3"], limit=100)


def test_dgram_too_long(home):
    rig.Side(home).run([PYTHON, CASES, "child_long", "127.0.0.1", rig.client("rsocket_long")])


ROWS = []
if os.access(rig.client("rsocket_peer"), os.X_OK):
    ROWS = subprocess.run([rig.client("rsocket_peer"), "-p", "1", "-l"], stdout=subprocess.PIPE,
                          text=True, check=True).stdout.splitlines()


def test_protocol_table_is_there():
    assert len(ROWS) >= 30


@pytest.fixture(scope="module", params=[
    *[pytest.param(p, marks=pytest.mark.full) for p in ("local", "wire")], "netns"])
def protocol_run(request, placements):
    place = placements(request.param)
    cmd = [rig.client("rsocket_peer"), "-p", free_port()]
    server = Proc(place.server, cmd, place.options)
    try:
        server.wait_for("^ready")
        client = Proc(place.client, [*cmd, place.host], place.options)
        client.wait(100)
        server.wait(10)
    finally:
        server.kill()
    return client, server


@pytest.mark.parametrize("row", ROWS)
def test_protocol(protocol_run, row):
    client, server = protocol_run
    said = [line for line in client.output().splitlines() if line.startswith((f"ok {row}", f"not ok {row}"))]
    assert said, f"it did not get there\n{client.describe()}--- server\n{server.describe()}"
    assert said[0] == f"ok {row}"


def test_protocol_server_survived(protocol_run):
    assert protocol_run[1].popen.returncode == 0, protocol_run[1].describe()
