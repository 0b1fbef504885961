"""The record of events (softhca run --trace) and what softhca trace makes of it."""
import base64
import json
import os
import random
import re
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import time

import pytest

import rig
from test_cm import pair
from test_cm_tools import need_ucx
from test_mpi import STACKS
from test_perftest import perftest


def trace(*args, status=0):
    p = subprocess.run([rig.SOFTHCA, "trace", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, timeout=120)
    assert p.returncode == status, p.stdout + p.stderr
    return p.stdout + p.stderr


def counts(text):
    """Work requests, packets, and how many of these were sent again."""
    return [int(n) for n in re.search(r"(\d+) work requests?, (\d+) packets?, (\d+) of them sent again", text).groups()]


@pytest.fixture(scope="module")
def lossy(placements, tmp_path_factory):
    """A transfer over UDP of which one packet in a hundred is lost."""
    to = tmp_path_factory.mktemp("lossy") / "events"
    placements("wire").tool("ib_write_bw", "-F", "-n", 200, "-s", 8192, "-m", 1024,
                            options=["--trace", to, "--loss", 1, "--seed", 3])
    return to


def test_retransmissions_in_the_table(lossy):
    out = trace(lossy, "--rows", 0)
    requests, packets, again = counts(out)
    # 8 packets for each, some more than once.
    assert requests >= 200 and packets >= 8 * requests and again, out
    rows = re.findall(r"^ +(?:0|0x[0-9a-f]+) 0x[0-9a-f]{6} write .*$", out, re.M)
    assert len(rows) == requests, out
    assert any(re.search(r" \d+ sent again", r) for r in rows), out
    assert not [r for r in rows if "not completed" in r], out
    totals = [float(r.split()[5]) for r in rows]
    assert totals == sorted(totals, reverse=True)
    assert out.count("ib_write_bw, process ") == 2 and "clock" not in out


def test_verdict(lossy):
    """The first line says what the table does, of the work requests that are asked for."""
    out = trace(lossy, "--rows", 0)
    _, packets, again = counts(out)
    verdict = out.splitlines()[0]
    m = re.match(r"([\d.]+) % of the packets were sent again; (\d+|\d\.\d) % of the time .*; the slowest 1 % took "
                 r"([\d.]+) (us|ms|s) or more, and half of them ([\d.]+) (us|ms|s) or less\.$", verdict)
    assert m and abs(float(m[1]) - 100 * again / packets) < 0.6, verdict
    unit = {"us": 1, "ms": 1e3, "s": 1e6}
    totals = [float(r.split()[5]) for r in re.findall(r"^ +(?:0|0x[0-9a-f]+) 0x[0-9a-f]{6} write .*$", out, re.M)]
    for n, u, want in ((m[3], m[4], totals[len(totals) // 100 - 1]), (m[5], m[6], totals[(len(totals) - 1) // 2])):
        assert abs(float(n) * unit[u] - want) <= 0.051 * unit[u] + 0.01, (verdict, want)
    assert trace("--qp", "0x123456", lossy).startswith("No work request is recorded.\n")


def test_selection(lossy):
    out = trace(lossy, "--rows", 5)
    row = re.findall(r"^ +(\S+) (0x[0-9a-f]{6}) write", out, re.M)
    assert len(row) == 5
    wr_id, qpn = row[0]
    assert counts(trace("--qp", qpn, lossy))[0] >= 200
    assert counts(trace("--qp", "0x123456", lossy))[0] == 0
    assert counts(trace("--wr", wr_id, lossy))[0] >= 1
    assert counts(trace("--since", 1000, lossy))[0] == 0


def test_files_are_their_owners(lossy):
    assert stat.S_IMODE(os.stat(lossy).st_mode) == 0o700
    for f in lossy.iterdir():
        assert stat.S_IMODE(f.stat().st_mode) == 0o600


@pytest.mark.parametrize("way", ["local", "wire", "netns"])
@pytest.mark.parametrize("op", ["send", "write", "read", "faa"])
def test_every_request_ends(placements, tmp_path, way, op):
    """Whichever way it goes: by packets, or by a copy without one."""
    placements(way).check("-o", op, "-n", 40, "-s", 8 if op == "faa" else 3000, options=["--trace", tmp_path / "t"])
    out = trace(tmp_path / "t", "--rows", 0)
    requests, packets, _ = counts(out)
    copied = out.count("copied, without a packet")
    assert requests >= 40 and "not completed" not in out and "status" not in out, out
    assert packets >= requests - copied, out
    if way != "local" or op == "send":
        assert not copied, out


AHEAD = ["unshare", "-T", "--monotonic", "5000", "--fork"]


@pytest.fixture(scope="session")
def hosts(placements):
    """Two hosts: each has a registry of its own, and one's clock is 5,000 s ahead."""
    place = placements("netns")
    if subprocess.run([*place.client.prefix, *AHEAD, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no time namespace")
    return rig.Placement("late", place.server, rig.Side([*place.client.prefix, *AHEAD]), place.host, place.host6)


def page_data(page):
    """What a timeline has in it: its data, and a function for fields of that."""
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])

    def field(group, name, kind):
        raw = base64.b64decode(data[group][name], validate=True)
        return struct.unpack(f"<{len(raw) // struct.calcsize(kind)}{kind}", raw)
    return data, field


def joined(events, tmp_path):
    """The table of two hosts' events, which belong together: clocks set by packets,
    and nearly all packets of either host seen to arrive at the other."""
    out = trace("--html", tmp_path / "t.html", events) + trace(events, "--rows", 0)
    errors = re.findall(r", clock ([-+]\d+\.\d+) us, within (\d+\.\d+) us", out)
    assert errors and "cannot" not in out, out
    for offset, error in errors:
        assert abs(abs(float(offset)) - 5000e6) <= float(error) + 0.001 and 0 < float(error) < 100000, out
    data, field = page_data((tmp_path / "t.html").read_text())
    types, qp, other = field("e", "type", "B"), field("e", "qp", "I"), field("e", "other", "I")
    clock = [p["clock"] for p in data["procs"]]
    sent = {True: 0, False: 0}
    came = {True: 0, False: 0}
    for i, kind in enumerate(types):
        if kind != data["types"]["out"] or data["qps"][qp[i]]["peer"] < 0:
            continue
        here = bool(clock[data["qps"][qp[i]]["proc"]])
        there = bool(clock[data["qps"][data["qps"][qp[i]]["peer"]]["proc"]])
        sent[here] += 1
        if other[i] != 0xffffffff and here != there:
            came[here] += 1
    for ahead in True, False:
        assert sent[ahead] > 0 and came[ahead] >= 0.9 * sent[ahead], (sent, came)
    owners = {bool(clock[data["qps"][q]["proc"]]) for q in field("w", "qp", "I")}
    return out, owners


def test_clocks_of_two_hosts(hosts, tmp_path):
    """They are set by the packets, not by the time of day."""
    hosts.tool("ib_write_bw", "-F", "-n", 100, "-s", 4096, options=["--trace", tmp_path / "t"])
    out, _ = joined(tmp_path / "t", tmp_path)
    assert counts(out)[0] >= 100 and "not completed" not in out, out


def test_iwarp_on_two_hosts(hosts, tmp_path):
    """FPDUs are the same at both ends, and set the clocks as packets do."""
    port = rig.free_port()
    cmd = ["rping", "-C", 50, "-S", 4000, "-p", port]
    hosts.pair([*cmd, "-s"], [*cmd, "-c", "-a", hosts.host], port, ["--iwarp", "--trace", tmp_path / "t"],
               status=(None, None))
    out, owners = joined(tmp_path / "t", tmp_path)
    assert owners == {True, False} and "not completed" not in out, out
    data, field = page_data((tmp_path / "t.html").read_text())
    types, x, op, other = (field("e", *f) for f in (("type", "B"), ("x", "I"), ("op", "B"), ("other", "I")))
    frames = {x[i]: i for i, kind in enumerate(types) if kind == data["types"]["cmout"]}
    assert sorted(frames) == [0x100, 0x101] and all(data["cm"][str(k)].startswith("MPA re") for k in frames)
    assert all(x[other[i]] == k for k, i in frames.items())
    names = {data["ops"][str(op[i])] for i, kind in enumerate(types) if kind == data["types"]["out"]}
    assert names == {"RDMA Write", "RDMA Read Request", "RDMA Read Response", "Send"}, names


@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_every_iwarp_request_ends(placements, tmp_path, op):
    """What is said of each: all but an acknowledgement, which iWARP has none of."""
    size, n = 200000, 20
    perftest(placements("iwarp"), f"ib_{op}_bw", "-R", "-s", size, iters=n, options=["--trace", tmp_path / "t"])
    out = trace(tmp_path / "t", "--rows", 0)
    assert "not completed" not in out and "status" not in out and "sent again;" in out, out
    rows = [r.split() for r in out.splitlines() if re.match(rf" +\S+ 0x\w+ {op} +{size} ", r)]
    assert len(rows) == n, out
    for r in rows:
        # After posted and total: two words for each phase, or one.
        phases, rest = [], r[6:]
        for _ in range(5):
            phases.append(rest.pop(0))
            if phases[-1] != "-":
                rest.pop(0)
        assert (phases[2] != "-") == (op == "read"), r
        assert int(rest[0]) == (1 if op == "read" else 4), r     # FPDUs of 64 KiB
    trace("--pcapng", tmp_path / "t.pcapng", tmp_path / "t")


def test_two_hosts_that_lose_packets(hosts, tmp_path):
    """Every lost packet is known as one, and why it was sent again."""
    hosts.tool("ib_write_bw", "-F", "-n", 300, "-s", 8192, "-m", 1024, options=["--trace", tmp_path / "t", "--loss=1"])
    out, _ = joined(tmp_path / "t", tmp_path)
    requests, packets, again = counts(out)
    assert requests >= 300 and packets >= 8 * requests and again > 0 and "not completed" not in out, out


def test_ucx_on_two_hosts(hosts, tmp_path):
    need_ucx(hosts)
    port = rig.free_port()
    cmd = ["ucx_perftest", "-t", "tag_lat", "-n", 200, "-w", 10, "-s", 1000, "-p", port]
    hosts.pair(cmd, [*cmd, hosts.host], port, ["--trace", tmp_path / "t"], limit=60,
               env={"UCX_TLS": "rc_v,ud_v", "UCX_NET_DEVICES": "softhca0:1"})
    out, owners = joined(tmp_path / "t", tmp_path)
    assert counts(out)[0] >= 400 and owners == {True, False}, out
    assert len(re.findall(r"^ucx_perftest, process ", out, re.M)) == 2, out


def test_mpi_on_two_hosts(hosts, placements, tmp_path):
    """Open MPI over UCX, whose ranks are started there by its daemon."""
    if missing := rig.need("mpicc.openmpi", "mpirun.openmpi"):
        pytest.skip(f"not installed: {missing} (scripts/deps full)")
    need_ucx(hosts)
    program, agent = tmp_path / "mpi_pingpong", tmp_path / "agent"
    subprocess.run(["mpicc.openmpi", "-O2", "-w", "-o", program,
                    os.path.join(rig.ROOT, "tests", "bench", "mpi_pingpong.c")], check=True)
    # The daemon's files; sockets have short names.
    short = tempfile.mkdtemp(prefix="softhca-mpi-", dir="/tmp")
    os.mkdir(f"{short}/other")
    agent.write_text(f"#!/bin/sh\nshift\nexec {' '.join([*hosts.server.prefix, *AHEAD])} env TMPDIR={short}/other sh -c \"$*\"\n")
    agent.chmod(0o755)
    try:
        # Here, and on a host whose clock is ahead.
        placements("netns").client.run(["mpirun.openmpi", "--mca", "plm_rsh_agent", agent,
                                        "--mca", "oob_tcp_if_include", "10.91.0.0/24",
                                        "--host", "10.91.0.1:1,10.91.0.2:1", "-np", 2, program, 1000, 0.1],
                                       ["--trace", tmp_path / "t"], limit=2 * rig.LIMIT,
                                       env={**STACKS["openmpi-ucx"][1], "TMPDIR": short})
    finally:
        shutil.rmtree(short, ignore_errors=True)
    out, owners = joined(tmp_path / "t", tmp_path)
    assert counts(out)[0] >= 20 and owners == {True, False}, out
    assert len(re.findall(r"^mpi_pingpong, process ", out, re.M)) == 2, out


@pytest.mark.parametrize("way", ["local", "wire"])
def test_receives_of_an_srq(placements, tmp_path, way):
    """They are those of the queue pair that took them."""
    placements(way).tool("ib_send_bw", "-F", "-n", 50, "-s", 64, "--use-srq", "-q", 2, options=["--trace", tmp_path / "t"])
    trace("--html", tmp_path / "t.html", tmp_path / "t")
    _, field = page_data((tmp_path / "t.html").read_text())
    times, flags, qp = field("w", "t", "d"), field("w", "flags", "B"), field("w", "qp", "I")
    received = [w for w, flag in enumerate(flags) if flag & 128]
    assert len(received) == 100 and sorted(qp[w] for w in received).count(qp[received[0]]) == 50
    for w in received:
        assert 0 <= times[6 * w] <= times[6 * w + 4] <= times[6 * w + 5]


def test_connections_and_sleep(placements, tmp_path):
    """In the timeline: messages of the connection manager, from where they left to
    where they arrived, and when threads slept."""
    port = rig.free_port()
    cmd = ["rping", "-C", 50, "-S", 4000, "-p", port]
    pair(placements("local"), [*cmd, "-s"], [*cmd, "-c", "-a", "127.0.0.1"], status=(None, None),
         options=["--trace", tmp_path / "t"])
    trace("--html", tmp_path / "t.html", tmp_path / "t")
    data, field = page_data((tmp_path / "t.html").read_text())
    types, x, qp, other = (field("e", *f) for f in (("type", "B"), ("x", "I"), ("qp", "I"), ("other", "I")))
    out = {x[i]: i for i, kind in enumerate(types) if kind == data["types"]["cmout"]}
    assert {0x10, 0x13, 0x14} <= set(out)  # REQ, REP, RTU
    for attr in 0x10, 0x13, 0x14:
        i = out[attr]
        assert data["cm"][str(attr)] and data["qps"][qp[i]]["num"] == 1
        assert types[other[i]] == data["types"]["cmin"] and x[other[i]] == attr
        assert data["qps"][qp[i]]["proc"] != data["qps"][qp[other[i]]]["proc"]
    begin, end, proc, tid, place = (field("s", *f) for f in (("from", "d"), ("to", "d"), ("proc", "I"), ("tid", "I"),
                                                             ("place", "I")))
    assert len(begin) == len(end) == len(tid) > 10 and all(a <= b for a, b in zip(begin, end))
    assert set(proc) == {0, 1} and set(place) == {0, 1}
    for i in range(1, len(begin)):
        assert (proc[i], tid[i]) != (proc[i - 1], tid[i - 1]) or begin[i] >= end[i - 1]
    trace("--perfetto", tmp_path / "t.json", tmp_path / "t")
    slices = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert len([e for e in slices if e["name"] == "sleeps"]) == len(begin)
    assert {"REQ, asks for a connection", "RTU, ready to use"} <= {e["name"] for e in slices}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_crash(home, tmp_path, how):
    """What both have recorded until then is there, and is joined."""
    with rig.running(home, ["ib_write_bw", "-F", "-s", 65536, "-n", 100000000], ["--wire", "--trace", tmp_path / "t"]) as ends:
        rig.until(lambda: (tmp_path / "t").is_dir() and counts(trace(tmp_path / "t"))[0] > 100, "writes", ends[1])
        for end in ends:
            end.kill(how)
    out = trace(tmp_path / "t")
    requests, packets, _ = counts(out)
    assert requests > 100 and packets > requests and out.count("ib_write_bw, process ") == 2, out


def test_a_killed_program(home, tmp_path):
    """What it had recorded is there."""
    p = rig.Proc(rig.Side(home), ["ib_send_lat", "-p", str(rig.free_port())], ["--trace", tmp_path / "t"])
    try:
        rig.until(lambda: (tmp_path / "t").is_dir() and
                  any(f.read_bytes()[:8] == b"SHCAEVT\n" for f in (tmp_path / "t").iterdir()), "a file", p)
        p.kill(signal.SIGKILL)
    finally:
        p.kill()
    out = trace(tmp_path / "t")
    assert "ib_send_lat, process " in out and counts(out)[0] == 0, out


def test_wrong_files(lossy, tmp_path):
    assert "no files of events" in trace(tmp_path, status=1)
    assert "no files of events" in trace(tmp_path / "none", status=1)
    whole = sorted(lossy.iterdir())
    shutil.copy(whole[0], tmp_path / "good.events")
    (tmp_path / "short.events").write_bytes(whole[1].read_bytes()[:5000])
    (tmp_path / "foreign.events").write_bytes(b"\x7fELF" * 2000)
    os.mkfifo(tmp_path / "fifo.events")
    out = trace(tmp_path, status=1)
    assert "short.events: truncated: it has 5000 bytes of " in out
    assert "foreign.events: not a file of events of softhca" in out
    assert "fifo.events: not a file" in out
    assert counts(out)  # the good one is shown


def shortened(path, records=512):
    """The same file with short rings, which have the first records of each."""
    data = path.read_bytes()
    rings, = struct.unpack_from("<I", data, 24)
    whole, = struct.unpack_from("<I", data, 20)
    head = bytearray(data[:4096])
    struct.pack_into("<I", head, 20, records)
    for i in range(rings):
        at = 2048 + 64 * i
        struct.pack_into("<Q", head, at, min(records, struct.unpack_from("<Q", head, at)[0]))
    return head + b"".join(data[4096 + 32 * whole * i:][:32 * records] for i in range(rings))


def test_damaged_files_end_well(lossy, tmp_path):
    """Whatever is in them: a message, or what is left of the picture."""
    rnd = random.Random(14)
    whole = [shortened(f) for f in sorted(lossy.iterdir())]
    for n in range(40):
        for i, data in enumerate(whole):
            damaged = bytearray(data)
            for _ in range(rnd.choice([1, 20, 2000])):
                damaged[rnd.randrange(0 if n % 2 else 4096, len(damaged))] = rnd.randrange(256)
            (tmp_path / f"{i}.events").write_bytes(damaged)
        p = subprocess.run([rig.SOFTHCA, "trace", "--html", tmp_path / "h", "--perfetto", tmp_path / "p",
                            "--pcapng", tmp_path / "n", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           text=True, timeout=60)
        assert p.returncode == 0 or p.returncode == 1 and "events: " in p.stderr, (n, p.returncode, p.stderr)
        q = subprocess.run([rig.SOFTHCA, "trace", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                           timeout=60)
        assert q.returncode == p.returncode
        if os.path.exists(tmp_path / "p"):
            json.loads((tmp_path / "p").read_text())


def test_page(lossy, tmp_path):
    """Its data, without a browser (tests/page has one)."""
    trace("--html", tmp_path / "t.html", lossy)
    page = (tmp_path / "t.html").read_text()
    assert not re.search(r"(?:src|href)\s*=|https?:", page)  # it needs nothing else
    data, field = page_data(page)
    assert [p["name"] for p in data["procs"]] == ["ib_write_bw"] * 2
    assert sorted(q["peer"] for q in data["qps"]) == [0, 1]
    ts, types, other, x = (field("e", *f) for f in (("ts", "d"), ("type", "B"), ("other", "I"), ("x", "I")))
    assert len(ts) == len(types) == len(other) == len(x) and list(ts) == sorted(ts)
    assert counts(trace(lossy))[0] == len(field("w", "op", "B")) == len(field("w", "t", "d")) // 6
    pairs = [(i, o) for i, o in enumerate(other) if o != 0xffffffff]
    assert len(pairs) >= 3200 and all(other[o] == i for i, o in pairs)
    assert all({types[i], types[o]} == {data["types"]["out"], data["types"]["in"]} for i, o in pairs)
    assert any(types[i] == data["types"]["out"] and x[i] & 1 for i in range(len(ts)))


def test_perfetto(lossy, tmp_path):
    trace("--perfetto", tmp_path / "t.json", lossy)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    kinds = {k: [e for e in events if e["ph"] == k] for k in "MbeXsf"}
    assert len(kinds["b"]) == len(kinds["e"]) >= 200
    assert len(kinds["s"]) == len(kinds["f"]) >= 1600
    left = {e["id"]: e["ts"] for e in kinds["s"]}
    assert all(left[e["id"]] < e["ts"] + 1 for e in kinds["f"])
    assert any(e["args"].get("why") for e in kinds["X"])
    tracks = {}
    for e in kinds["X"]:  # of one track none overlaps another
        assert e["ts"] >= tracks.get(e["tid"], float("-inf"))
        tracks[e["tid"]] = e["ts"] + e["dur"]


def test_moves(home, rundir, tmp_path):
    """A process was suspended, and its peer, which was asked to, has waited: the table, the page and Perfetto say so."""
    with rig.running(home, ["ib_write_bw", "-F", "-D", "60", "-s", "65536"], ["--trace", tmp_path / "t"],
                     {"SOFTHCA_RUNDIR": rundir}) as (server, client):
        rig.until(lambda: "RTS" in subprocess.run([*home, rig.SOFTHCA, "stat", "--json"], text=True, check=True,
                                                  stdout=subprocess.PIPE, env=dict(os.environ, SOFTHCA_RUNDIR=rundir)).stdout,
                  "they are connected", client)
        subprocess.run([*home, rig.SOFTHCA, "suspend", str(client.pid), "--", "sleep", "0.3"], check=True, timeout=60,
                       env=dict(os.environ, SOFTHCA_RUNDIR=rundir))
        time.sleep(0.2)
        pids = client.pid, server.pid
    out = trace("--html", tmp_path / "t.html", "--perfetto", tmp_path / "t.json", tmp_path / "t") + trace(tmp_path / "t")
    took = [float(re.search(rf"process {pid}.*suspended, for ([0-9.]+) ms$", out, re.M)[1]) for pid in pids]
    assert 250 < took[0] <= took[1], out
    data, _ = page_data((tmp_path / "t.html").read_text())
    moves = {data["procs"][m["proc"]]["pid"]: m for m in data["moves"]}
    assert len(data["moves"]) == 2 and moves[pids[0]]["qp"] == -1 and moves[pids[1]]["qp"] >= 0
    assert all(abs((moves[p]["to"] - moves[p]["from"]) / 1e6 - ms) < 0.01 for p, ms in zip(pids, took)), (moves, took)
    events = [e for e in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if e.get("cat") == "move"]
    for i, name in enumerate(("suspended", "waits for its peer, which is suspended")):
        begin, end = ([e["ts"] for e in events if e["ph"] == ph and e["name"] == name] for ph in "be")
        assert len(begin) == len(end) == 1 and abs((end[0] - begin[0]) / 1e3 - took[i]) < 0.01


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
@pytest.mark.parametrize("way", ["local", "wire"])
@pytest.mark.parametrize("op", ["send", "write", "read", "faa"])
def test_pcapng_is_well_formed(placements, tmp_path, way, op):
    """Of each operation, as Wireshark shows it to people. (It calls any SEND of less than 16 bytes malformed: RPC.)"""
    placements(way).check("-o", op, "-n", 40, "-s", 8 if op == "faa" else 9000, options=["--trace", tmp_path / "t"])
    trace("--pcapng", tmp_path / "t.pcapng", tmp_path / "t")
    p = subprocess.run(["tshark", "-n", "-r", tmp_path / "t.pcapng"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                       text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    assert len(p.stdout.splitlines()) >= (40 if way == "wire" or op == "send" else 0)
    assert "Malformed" not in p.stdout and "Invalid" not in p.stdout, p.stdout[:3000]


def test_pcapng(lossy, tmp_path):
    trace("--pcapng", tmp_path / "t.pcapng", lossy)
    p = subprocess.run(["tshark", "-n", "-r", tmp_path / "t.pcapng", "-T", "fields", "-e", "infiniband.bth.opcode",
                        "-e", "frame.comment", "-e", "_ws.malformed", "-e", "infiniband.aeth.syndrome"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    rows = [r.split("\t") for r in p.stdout.splitlines()]
    assert len(rows) >= 1600
    assert {"6", "7", "8", "17"} <= {str(int(r[0], 0)) for r in rows}
    assert not [r for r in rows if r[2]]
    writes = [r[1] for r in rows if int(r[0], 0) in (6, 7, 8)]
    assert all(re.search(r"^work request 0x[0-9a-f]+ of QP 0x[0-9a-f]{6}: write of 8192 bytes", w) for w in writes)
    assert any("sent again after " in w for w in writes)
    assert any("not seen to arrive" in w for w in writes)
    # What is lost leaves a gap, what comes behind it is kept, and nothing is wrong with it.
    why = {w.partition("; dropped there: ")[2] for w in writes}
    assert why <= {"", "something before it is missing", "a duplicate, answered again"}, why
