"""Recordings of iWARP (--pcap), whose TCP segments are made up: as tshark decodes
them, and the bytes in them beside those that the other end has."""
import collections
import re
import shutil
import struct
import subprocess
import time

import pytest

import rig
from test_capture import GUESSES, packets
from test_cm_tools import rping_ends
from test_iwarp import KEY_REPLY, NEED_ROOT, OVER, closed, connect_from, frame, rping
from test_perftest import perftest

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")

WRITE, READ_REQUEST, READ_RESPONSE, SEND = range(4)
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16

Segment = collections.namedtuple("Segment", "src dst flags seq ack data")


def segments(path):
    """Those of a recording, read without any library."""
    for ip in packets(path):
        head, proto, addr = (20, ip[9], slice(12, 20)) if ip[0] >> 4 == 4 else (40, ip[6], slice(8, 40))
        assert proto == 6, f"protocol {proto}"
        addr, tcp = ip[addr], ip[head:]
        sport, dport, seq, ack, off, flags = struct.unpack_from(">HHIIBB", tcp)
        half = len(addr) // 2
        yield Segment((addr[:half], sport), (addr[half:], dport), flags, seq, ack, tcp[off >> 4 << 2:])


def streams(path):
    """The bytes that each end has sent, by its port: of one connection."""
    out = {}
    for s in segments(path):
        data = out.setdefault(s.src[1], bytearray())
        if s.data:
            assert s.seq == 1 + len(data), "a gap"
            data += s.data
    return {port: bytes(data) for port, data in out.items()}


FIELDS = ["frame.interface_name", "tcp.srcport", "tcp.checksum.status", "ip.checksum.status", "tcp.analysis.flags",
          "_ws.malformed", "iwarp_mpa.ulpdulength", "iwarp_rdma.opcode", "iwarp_ddp.last_flag", "iwarp_mpa.req",
          "iwarp_mpa.rep", "iwarp_mpa.privatedata", "iwarp_mpa.crc_check", "iwarp_mpa.crc"]


def dissect(path, *options):
    """tshark's output, without its guesses at what ports and messages mean."""
    cmd = ["tshark", "-n", "-r", path, "-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE",
           "-o", "tcp.try_heuristic_first:TRUE", *options]
    for g in GUESSES:
        cmd += ["--disable-protocol", g]
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    return p.stdout


def rows(path):
    """A list of field dictionaries, one for each packet."""
    out = dissect(path, "-T", "fields", "-E", "separator=|", *(x for f in FIELDS for x in ("-e", f)))
    return [dict(zip(FIELDS, line.split("|"))) for line in out.splitlines()]


def check(path, again=False):
    """All that is in it makes sense; its messages as (source, opcode, last, length).
    again: some of it is there twice."""
    got = []
    for n, r in enumerate(rows(path), 1):
        assert r["frame.interface_name"].startswith("softiw0 pid "), f"packet {n}: {r}"
        assert r["tcp.checksum.status"] == "1" and r["ip.checksum.status"] in ("", "1"), f"packet {n}: {r}"
        assert not r["_ws.malformed"] and (again or not r["tcp.analysis.flags"]), f"packet {n}: {r}"
        if r["iwarp_rdma.opcode"]:
            got.append((int(r["tcp.srcport"]), int(r["iwarp_rdma.opcode"], 0), r["iwarp_ddp.last_flag"] == "1",
                        int(r["iwarp_mpa.ulpdulength"])))
    return got


def both_ends(tmp_path):
    """The two recordings of one connection, each with its handshake and the same
    bytes."""
    files = sorted(tmp_path.glob("*.pcapng"))
    assert len(files) == 2, files
    for f in files:
        flags = [s.flags for s in segments(f)]
        assert flags[:3] == [SYN, SYN | ACK, ACK], flags[:3]
        assert FIN | ACK in flags, "no end"
        assert flags.count(PSH | ACK) == sum(bool(s.data) for s in segments(f))
    one, other = map(streams, files)
    assert one == other, {port: len(data) for s in (one, other) for port, data in s.items()}
    return files


@rig.over_places(**OVER, family=[4, 6], crc=[False, True])
def test_rping(place, family, crc, tmp_path):
    """Every message of both ends, at both ends; both frames and what they carry."""
    rping(place, family, count=5, options=["--pcap", tmp_path / "%p.pcapng", *(["--mpa-crc"] if crc else [])])
    for f in both_ends(tmp_path):
        got, what = check(f), rows(f)
        client = got[0][0]
        lengths = collections.Counter()
        kinds = [(src == client, op, last) for src, op, last, _ in got if last]
        for src, op, _, ulpdu in got:
            lengths[src == client, op] += ulpdu - (14 if op in (WRITE, READ_RESPONSE) else 18)
        # The client's first message, a write of no bytes; then five rounds of:
        # here is something, I read it, done, here is room, I write there, done.
        ping = [(True, SEND, True), (False, READ_REQUEST, True), (True, READ_RESPONSE, True), (False, SEND, True),
                (True, SEND, True), (False, WRITE, True), (False, SEND, True)]
        assert kinds == [(True, WRITE, True)] + 5 * ping, kinds
        assert lengths[True, READ_RESPONSE] == lengths[False, WRITE] == 5 * 4000, lengths
        assert [bool(r["iwarp_mpa.req"]) for r in what][3:5] == [True, False]
        assert [bool(r["iwarp_mpa.rep"]) for r in what][3:5] == [False, True]
        assert all(r["iwarp_mpa.privatedata"] for r in what[3:5]), what[3:5]
        assert dissect(f, "-V").count("(Good CRC32)") == (len(got) if crc else 0)


@rig.over_places(**OVER, op=["write", "read", "send"])
def test_large(place, op, tmp_path):
    """Messages whose payload goes to the program's memory from the socket, where
    nothing is recorded."""
    size, n = 300000, 20
    perftest(place, f"ib_{op}_bw", "-R", "-s", size, iters=n, options=["--pcap", tmp_path / "%p.pcapng"])
    for f in sorted(tmp_path.glob("*.pcapng")):
        lengths = collections.Counter()
        for _, o, _, ulpdu in check(f):
            lengths[o] += ulpdu - (14 if o in (WRITE, READ_RESPONSE) else 18)
        got = lengths[{"write": WRITE, "read": READ_RESPONSE, "send": SEND}[op]]
        # perftest has connections of its own for what its ends tell each other.
        assert n * size <= got <= n * size + 10000, lengths


def test_one_file(placements, tmp_path):
    """Both ends record there: what came is what was sent, once more. Wireshark
    decodes it once."""
    file = tmp_path / "x.pcapng"
    rping(placements("iwarp"), count=5, options=["--pcap", file])
    assert len(check(file, again=True)) == 1 + 5 * 7
    all_of_it = [s for s in segments(file) if s.data]
    assert len(all_of_it) == 2 * len(set(all_of_it)), "the same segments at both ends"


def test_both_transports(placements, tmp_path):
    """One process has packets of both."""
    place, port, file = placements("local"), rig.free_port(), tmp_path / "x.pcapng"
    server = rig.Proc(place.server, ["rping", "-s", "-P", "-p", port], ["--iwarp=both", "--pcap", file])
    try:
        server.wait_listening(port)
        for option in (["--iwarp"], [], []):
            ping = rig.Proc(place.client, ["rping", "-c", "-C", 2, "-a", place.host, "-p", port], option)
            assert rping_ends(ping), ping.describe() + server.describe()
            time.sleep(0.2)     # what is older is written when the next packet comes
    finally:
        server.kill()
    by = collections.defaultdict(set)
    for line in dissect(file, "-T", "fields", "-e", "frame.interface_name", "-e", "frame.protocols").splitlines():
        name, protocols = line.split("\t")
        by[re.sub(r"pid \d+ ", "", name)].add(protocols.split(":")[2])
    assert by == {"softhca0 rping": {"udp"}, "softiw0 rping": {"tcp"}}, by


def test_nobody_listens(placements, tmp_path):
    """As often as it was tried."""
    place, file = placements("iwarp"), tmp_path / "x.pcapng"
    place.client.run(["rdma_client", "-s", place.host, "-p", rig.free_port()], ["--iwarp", "--pcap", file], status=255)
    flags = [s.flags for s in segments(file)]
    assert flags == [SYN, RST | ACK] * 10, flags


@NEED_ROOT
def test_beside_a_peer(placements, tmp_path):
    """The peer knows by itself what it has said and heard, as it was cut; in the
    end it is told what was wrong."""
    place, port, file = placements("iwarp"), rig.free_port(), tmp_path / "x.pcapng"
    server = rig.Proc(place.server, ["rping", "-s", "-P", "-p", port], [*place.options, "--pcap", file])
    said = frame(private=b"data") + b"\xff" * 5000
    heard = b""
    try:
        server.wait_listening(port)
        s = connect_from(server, port)
        s.settimeout(20)
        for b in said[:24]:
            s.sendall(bytes([b]))
        while len(heard) < 20:
            heard += s.recv(20 - len(heard))
        assert heard.startswith(KEY_REPLY), heard
        s.sendall(said[24:])
        heard += closed(s)
        own = s.getsockname()[1]
        s.close()

        def written():
            """Another packet has come, when that was 0.1 s old."""
            if file.stat().st_size < 6000:
                connect_from(server, port).close()
                return None
            return streams(file)

        got = rig.until(written, "the recording is written", server)
    finally:
        server.kill()
    assert got[own] == said, (len(got[own]), len(said))
    assert len(heard) > 20 and got[port] == heard, (heard, got[port])
