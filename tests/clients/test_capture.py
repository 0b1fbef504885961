"""Captures the library writes (--pcap), as tshark and a second ICRC see them."""
import collections
import fcntl
import os
import re
import shutil
import struct
import subprocess
import zlib

import pytest

import rig
from test_cm import pair, start_client, start_server

pytestmark = pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")

# tshark guesses protocols inside payloads; random data looks like some of them.
GUESSES = ["smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband_sdp", "fcoib", "drbd"]
FIELDS = ["frame.protocols", "infiniband.bth.opcode", "_ws.malformed", "_ws.expert.severity",
          "_ws.expert.message", "ip.checksum.status", "udp.checksum.status"]


def tshark(path):
    """A list of field dictionaries, one for each packet."""
    cmd = ["tshark", "-n", "-r", path, "-T", "fields", "-E", "separator=|",
           "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]
    for g in GUESSES:
        cmd += ["--disable-protocol", g]
    cmd += ["--disable-heuristic", "eth_over_ib"]
    for f in FIELDS:
        cmd += ["-e", f]
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    assert p.returncode == 0, p.stderr
    return [dict(zip(FIELDS, line.split("|"))) for line in p.stdout.splitlines()]


def packets(path):
    """The IP packets of a pcapng file of raw IP, read without any library."""
    data = open(path, "rb").read()
    at, link = 0, None
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 1:
            link = struct.unpack_from("<H", data, at + 8)[0]
        elif kind == 6:
            n = struct.unpack_from("<I", data, at + 20)[0]
            yield data[at + 28:at + 28 + n]
        assert length >= 12 and length % 4 == 0, f"block of {length} bytes"
        at += length
    assert link == 101, f"link type {link}"


def data_sections(path):
    data = open(path, "rb").read()
    at = n = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        n += kind == 0x0a0d0d0a
        at += length
    return n


def icrc_ok(ip):
    """Annex A17: with zlib, by another hand than the library's."""
    if ip[0] >> 4 == 4:
        head = bytearray(ip[:20])
        end = struct.unpack_from(">H", ip, 2)[0]
        head[1] = head[8] = 0xff
        head[10:12] = b"\xff\xff"
        assert ip[0] == 0x45 and ip[9] == 17
    else:
        head = bytearray(ip[:40])
        end = 40 + struct.unpack_from(">H", ip, 4)[0]
        head[0] |= 0x0f
        head[1:4] = b"\xff\xff\xff"
        head[7] = 0xff
        assert ip[6] == 17
    o = len(head)
    udp = bytearray(ip[o:o + 8])
    assert struct.unpack_from(">H", udp, 2)[0] == 4791
    udp[6:8] = b"\xff\xff"
    bth = bytearray(ip[o + 8:o + 20])
    bth[4] = 0xff
    crc = zlib.crc32(b"\xff" * 8 + bytes(head) + bytes(udp) + bytes(bth) + ip[o + 20:end - 4])
    return ip[end - 4:end] == struct.pack("<I", crc)


def check_capture(path, opcodes):
    rows = tshark(path)
    assert rows
    seen = set()
    for n, r in enumerate(rows, 1):
        assert ":udp:infiniband" in r["frame.protocols"], f"packet {n}: {r}"
        assert not r["_ws.malformed"] and not r["_ws.expert.message"], f"packet {n}: {r}"
        assert r["udp.checksum.status"] in ("1", "3"), f"packet {n}: {r}"
        assert r["ip.checksum.status"] in ("", "1"), f"packet {n}: {r}"
        seen.add(int(r["infiniband.bth.opcode"], 0))
    missing = set(opcodes) - seen
    assert not missing, f"no packet of opcode {sorted(map(hex, missing))}; seen {sorted(map(hex, seen))}"
    raw = list(packets(path))
    assert len(raw) == len(rows)
    bad = [n for n, p in enumerate(raw, 1) if not icrc_ok(p)]
    assert not bad, f"wrong ICRC in packets {bad[:10]} of {len(raw)}"
    return rows


# What both ends see of a run: opcodes of requests and of their responses.
SEND, WRITE = [0, 1, 2, 4], [6, 7, 8, 10]
CASES = {
    "send": (["-o", "send", "-s", 9000, "-S", 0], [*SEND, 0x11]),
    "send_imm": (["-o", "send_imm", "-s", 9000], [0, 1, 3, 5, 0x11]),
    "write": (["-o", "write", "-s", 9000, "-S", 0], [*WRITE, 0x11]),
    "write_imm": (["-o", "write_imm", "-s", 9000], [6, 7, 9, 11, 0x11]),
    "read": (["-o", "read", "-s", 9000], [0x0c, 0x0d, 0x0e, 0x0f, 0x10]),
    "cas": (["-o", "cas"], [0x13, 0x12]),
    "faa": (["-o", "faa"], [0x14, 0x12]),
    "uc_send": (["-c", "UC", "-o", "send", "-s", 9000], [0x20, 0x21, 0x22, 0x24]),
    "uc_send_imm": (["-c", "UC", "-o", "send_imm", "-s", 9000], [0x23, 0x25]),
    "uc_write": (["-c", "UC", "-o", "write", "-s", 9000], [0x26, 0x27, 0x28, 0x2a]),
    "uc_write_imm": (["-c", "UC", "-o", "write_imm", "-s", 9000], [0x29, 0x2b]),
    "ud_send": (["-c", "UD", "-o", "send", "-s", 1000], [0x64]),
    "ud_send_imm": (["-c", "UD", "-o", "send_imm", "-s", 1000], [0x65]),
}


@rig.cover(1, name=["wire", "netns1500", "local"], case=list(CASES), family=[4, 6])
def test_operations(placements, tmp_path, name, case, family):
    place = placements(name)
    args, opcodes = CASES[case]
    args = [*args, "-n", 60, "-r", 8, "-m", 1024]
    place.check(*args, **place.gid_args("-g", family), host=place.host6 if family == 6 else place.host,
                options=["--pcap", tmp_path / "%p.pcapng"])
    files = sorted(tmp_path.glob("*.pcapng"))
    assert len(files) == 2, files
    for f in files:
        check_capture(f, opcodes)


def test_losses_and_naks(placements, tmp_path):
    """Retransmissions and NAKs decode as well."""
    placements("netns").check("-o", "mix", "-n", 300, "-u", 10, "-s", 20000,
                              options=["--pcap", tmp_path / "%p.pcapng", "--loss", 3, "--seed", 4])
    for f in tmp_path.glob("*.pcapng"):
        check_capture(f, [0x11])


def test_refusals(placements, tmp_path):
    """Every NAK code of the bad input table."""
    placements("netns").tool(rig.client("badinput"), limit=120,
                             options=["--pcap", tmp_path / "%p.pcapng"])
    kinds = set()
    for f in tmp_path.glob("*.pcapng"):
        check_capture(f, [0x11])
        p = subprocess.run(["tshark", "-n", "-r", f, "-T", "fields", "-e", "infiniband.aeth.syndrome"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        kinds |= {int(x, 0) >> 5 for x in p.stdout.split()}
    assert {0, 1, 3} <= kinds, f"ACK, RNR NAK, NAK expected, seen {kinds}"


def test_perftest_capture(placements, tmp_path):
    placements("wire").tool("ib_send_bw", "-F", "-n", 50, "-s", 3000, "-m", 1024,
                            options=["--pcap", tmp_path / "%p.pcapng"])
    for f in tmp_path.glob("*.pcapng"):
        rows = check_capture(f, [0, 1, 2, 0x11])
        assert len(rows) > 100


def test_within_a_host_once(placements, tmp_path):
    """Both ends record in one file: each packet is there once, as its sender's."""
    path = tmp_path / "host.pcapng"
    placements("local").tool("ib_write_lat", "-F", "-n", 50, "-s", 64, options=["--pcap", path])
    p = subprocess.run(["tshark", "-n", "-r", path, "-Y", "infiniband.bth.opcode == 0x0a", "-T", "fields", "-e", "frame.interface_name",
                        "-e", "infiniband.bth.destqp"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    writes = [tuple(line.split("\t")) for line in p.stdout.splitlines()]
    # A packet that is sent again, as on a busy machine, is there again.
    assert len(writes) >= 100 and len(set(writes)) == 2, (len(writes), set(writes))
    assert len({qp for _, qp in writes}) == len({name for name, _ in writes}) == 2, set(writes)
    one = tmp_path / "one-%p.pcapng"
    placements("local").tool("ib_write_lat", "-F", "-n", 50, "-s", 64, options=["--pcap", one])
    files = sorted(tmp_path.glob("one-*.pcapng"))
    assert len(files) == 2
    both = [sorted(bytes(p) for p in packets(f)) for f in files]
    assert both[0] == both[1] and len(both[0]) >= 100      # to files of their own, what either sees


def test_processes_of_a_file(placements, tmp_path):
    """Each packet has the name of the process that has recorded it; tshark and reordercap sort them by time, and keep the names."""
    path, merged, ordered = (tmp_path / f for f in ("all.pcapng", "merged.pcapng", "ordered.pcapng"))
    placements("wire").tool("ib_write_lat", "-F", "-n", 200, "-s", 64, options=["--pcap", path])
    with open(path, "rb") as recorder:
        fcntl.flock(recorder, fcntl.LOCK_SH)    # so that the file is not emptied
        placements("wire").tool("ib_send_lat", "-F", "-n", 200, "-s", 64, options=["--pcap", path])
    assert data_sections(path) == 1
    subprocess.run(["tshark", "-2", "-r", path, "-w", merged], check=True, timeout=60)
    subprocess.run(["reordercap", merged, ordered], check=True, stdout=subprocess.DEVNULL, timeout=60)
    both = []
    for f in path, ordered:
        p = subprocess.run(["tshark", "-n", "-r", f, "-T", "fields", "-e", "frame.time_epoch", "-e", "frame.interface_name",
                            "-e", "infiniband.bth.psn"], stdout=subprocess.PIPE, text=True, check=True, timeout=60)
        both.append([line.split("\t") for line in p.stdout.splitlines()])
        check_capture(f, [0x0a, 0x04])
    assert collections.Counter(map(tuple, both[0])) == collections.Counter(map(tuple, both[1]))
    times = [t for t, _, _ in both[1]]
    assert times == sorted(times)
    names = collections.Counter(name for _, name, _ in both[1])
    assert len(names) == 4 and all(n >= 200 for n in names.values()), names
    assert sorted(re.sub(r"pid [0-9]+ ", "", n) for n in names) == ["softhca0 ib_send_lat"] * 2 + ["softhca0 ib_write_lat"] * 2


def test_connection_manager(placements, tmp_path):
    """MADs have the fields that all packets have: MigReq, P_Key, version, reserved bits."""
    place, port = placements("netns"), rig.free_port()
    pair(place, ["rdma_server", "-p", port], ["rdma_client", "-s", place.host, "-p", port],
         options=["--pcap", tmp_path / "%p.pcapng"])
    mads = 0
    for f in tmp_path.glob("*.pcapng"):
        check_capture(f, [0x64])
        for p in packets(f):
            bth = p[28 if p[0] >> 4 == 4 else 48:][:12]
            mads += bth[5:8] == b"\0\0\1"
            assert bth[1] & 0x4f == 0x40 and bth[2:4] == b"\xff\xff", bth.hex()
            assert not bth[4] & 0x3f and not bth[8] & 0x7f, bth.hex()
    assert mads >= 6, mads


def test_capture_of_a_killed_process(placements, tmp_path):
    """What was written before the end is a file that can be read."""
    place = placements("wire")
    port = rig.free_port()
    cmd = [rig.client("verbs_check"), "-p", port, "-D", 20]
    server = rig.Proc(place.server, cmd, ["--wire", "--pcap", tmp_path / "s.pcapng"])
    client = None
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, place.host], ["--wire"])
        client.wait_for("^ready")
        rig.until(lambda: os.path.getsize(tmp_path / "s.pcapng") >= 100000, "100 kB of packets", server)
    finally:
        server.kill()
        if client:
            client.kill()
    p = subprocess.run(["tshark", "-n", "-r", tmp_path / "s.pcapng", "-c", "50"], stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True)
    assert len(p.stdout.splitlines()) == 50, p.stdout + p.stderr


def test_capture_of_an_idle_process(placements, tmp_path):
    """All that was sent and received is in the file although nothing follows it, and the process is killed."""
    place, port, path = placements("wire"), rig.free_port(), tmp_path / "s.pcapng"
    server = start_server(place, ["rping", "-s", "-P", "-p", port], ["--pcap", path])

    def disconnected():
        """The server has answered the client's DREQ."""
        return any(p[28 + 12 + 8 + 16:][:2] == b"\0\x16" for p in packets(path))

    try:
        start_client(place, ["rping", "-c", "-C", 3, "-p", port, "-a", place.host]).done(beside=server)
        rig.until(disconnected, "the recording has the DREP", server)
    finally:
        server.kill()
