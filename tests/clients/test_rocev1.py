"""RoCE v1: frames of Ethernet between two hosts and on one, as tshark, scapy and a second
ICRC see them, and who is not let in."""
import collections
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import zlib

import pytest

import rig
from test_cm import pair

V1 = ["--rocev1"]
ETHERTYPE = 0x8915


@pytest.fixture(scope="session", autouse=True)
def packet_sockets(placements):
    """On hosts that tests make, the user has what it takes."""
    out = placements("netns").server.run([rig.SOFTHCA, "devices"], V1)
    if "no RoCE v1" in out:
        pytest.skip(out)


def index(side, family=4, of=""):
    """Of the first such address for RoCE v1: the v2 ones come first."""
    port = json.loads(side.run([rig.SOFTHCA, "devices", "--json"], V1))[0]["ports"][0]
    for g in port["gids"]:
        if g["type"] == "RoCE v1" and g["address"].startswith(of) and (":" in g["address"]) == (family == 6) and \
                not g["address"].startswith("fe80"):
            assert g["index"] >= port["gid_tbl_len"] // 2
            return g["index"]
    raise rig.Failed(f"no RoCE v1 for IPv{family}: {port}")


def by_v1(place, option, family=4, **kw):
    return {"server_args": [option, index(place.server, family)],
            "client_args": [option, index(place.client, family)],
            "host": place.host6 if family == 6 else place.host, **kw}


# ---- the table -------------------------------------------------------------


def test_devices(placements):
    side = placements("netns").server
    out = side.run([rig.SOFTHCA, "devices"], V1)
    assert re.search(r"^  0 +10\.91\.0\.2 +RoCE v2 +hca0$", out, re.M), out
    assert re.search(r"^  16 +10\.91\.0\.2 +RoCE v1 +hca0$", out, re.M), out
    gids = json.loads(side.run([rig.SOFTHCA, "devices", "--json"], V1))[0]["ports"][0]
    assert gids["gid_tbl_len"] == 32
    types = {g["index"]: g["type"] for g in gids["gids"]}
    assert {t for i, t in types.items() if i < 16} == {"RoCE v2"}
    assert {t for i, t in types.items() if i >= 16} == {"RoCE v1"}
    out = side.run(["ibv_devinfo", "-v"], V1)
    assert re.search(r"GID\[ *0\].*10\.91\.0\.2, RoCE v2", out) and re.search(r"GID\[ *16\].*, RoCE v1", out), out
    # Without the option there is none.
    assert "RoCE v1" not in side.run([rig.SOFTHCA, "devices"])


def test_sysfs(placements):
    base = "/sys/class/infiniband/softhca0/ports/1"
    out = placements("netns").server.run(
        ["grep", "-H", "", *(f"{base}/{f}" for f in (
            "gids/0", "gids/16", "gids/31", "gid_attrs/types/0", "gid_attrs/types/16", "gid_attrs/ndevs/16"))], V1)
    got = dict(line[len(base) + 1:].split(":", 1) for line in out.splitlines())
    assert got == {"gids/0": "0000:0000:0000:0000:0000:ffff:0a5b:0002", "gid_attrs/types/0": "RoCE v2",
                   "gids/16": "0000:0000:0000:0000:0000:ffff:0a5b:0002", "gid_attrs/types/16": "IB/RoCE v1",
                   "gids/31": "0000:0000:0000:0000:0000:0000:0000:0000", "gid_attrs/ndevs/16": "hca0"}, out


def without_rights():
    return ["setpriv", "--bounding-set=-net_raw", "--inh-caps=-all"] + (
        [] if os.geteuid() == 0 else ["--no-new-privs"])


def test_without_the_right(placements):
    side = placements("netns").server
    p = subprocess.run([*side.prefix, *without_rights(), rig.SOFTHCA, "devices"], capture_output=True, text=True,
                       timeout=rig.LIMIT, env=dict(os.environ, SOFTHCA_ROCEV1="1"))
    assert p.returncode == 0, p.stderr
    assert "CAP_NET_RAW" in p.stderr and p.stderr.count("no RoCE v1") == 1, p.stderr
    assert "RoCE v2" in p.stdout and "RoCE v1" not in p.stdout, p.stdout


def ways_of(place, cmd, *args, **kw):
    """By what the ends of a perftest say that they are connected."""
    cycles = ["-C"] if cmd.endswith("_lat") else []
    out = place.tool(cmd, "-F", *cycles, *args, options=[*V1, "--explain"], **kw).describe()
    return set(re.findall(r"connected by (.*)", out))


def test_default_is_v2(placements):
    """Who chooses nothing gets RoCE v2, with the option as well."""
    place = placements("netns")
    assert ways_of(place, "ib_send_lat", "-n", 50) == {"UDP port 4791"}
    out = pair(place, ["rping", "-s", "-C", 5], ["rping", "-c", "-C", 5, "-a", place.host], status=(None, None),
               options=[*V1, "--explain"])
    text = "".join(p.describe() for p in out) if isinstance(out, tuple) else out.describe()
    assert set(re.findall(r"connected by (.*)", text)) == {"UDP port 4791"}, text


# ---- data ------------------------------------------------------------------


@rig.cover(1, name=["netns", "netns1500", "local", "wire"], family=[4, 6],
           args=[("-o", "all"), ("-o", "send_imm", "-e"), ("-c", "UC", "-o", "mix"),
                 ("-c", "UD", "-o", "send", "-s", 1000), ("-c", "UD", "-o", "send_imm", "-s", 1000, "-e")])
def test_operations(placements, name, family, args):
    place = placements(name)
    place.check(*args, "-n", 200, "-q", 3, "-m", 1024, options=V1, **by_v1(place, "-g", family))


@rig.combinations(["cmd", "args"], [
    *((f"ib_{op}_{kind}", ()) for op in ("send", "write", "read", "atomic") for kind in ("lat", "bw")),
    ("ib_send_lat", ("-a",)), ("ib_send_bw", ("-e",)), ("ib_send_lat", ("-e",)), ("ib_write_bw", ("-q", 4)),
    ("ib_read_bw", ("-a",)), ("ib_send_lat", ("-c", "UD")), ("ib_write_lat", ("-c", "UC"))],
    lambda cmd, args: args or cmd == "ib_atomic_lat")
def test_perftest(placements, cmd, args):
    place = placements("netns")
    ways = ways_of(place, cmd, *args, "-n", 8 if "-a" in args else 20, **by_v1(place, "-x"))
    assert ways == (set() if "UD" in args else {"RoCE v1, frames of Ethernet type 0x8915"})


@pytest.mark.parametrize("cmd", ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"])
def test_pingpongs(placements, cmd):
    place = placements("netns")
    place.tool(cmd, "-n", 100, options=V1, **by_v1(place, "-g"))


def test_losses(placements, tmp_path):
    place = placements("netns")
    script = tmp_path / "faults"
    script.write_text("drop any every=30\nduplicate send every=41\nreorder any every=57 by=3\ncorrupt send every=71\n")
    place.check("-o", "all", "-n", 300, "-q", 2, "-m", 1024, options=[*V1, "--loss", 2, "--faults", script], **by_v1(place, "-g"))


def test_within_the_host(placements):
    """By the rings, as RoCE v2, unless the packets are wanted on an interface."""
    for name, way in (("local", "shared memory, and copies from and to the peer's memory"),
                      ("wire", "RoCE v1, by the loopback interface"),
                      ("udp", "RoCE v1, by the loopback interface")):
        place = placements(name)
        assert ways_of(place, "ib_write_lat", "-n", 100, **by_v1(place, "-x")) == {way}


def test_two_at_once(placements):
    """Two processes on each host, with sockets that see all frames."""
    place = placements("netns")
    at = [index(place.server), index(place.client)]
    pairs = []
    try:
        for _ in range(2):
            port = rig.free_port()
            cmd = ["ib_send_bw", "-n", "2000", "-s", "8192", "-p", str(port), "-x"]
            server = rig.Proc(place.server, [*cmd, at[0]], V1)
            pairs.append(rig.Pair(server, server))
            server.wait_listening(port)
            pairs[-1].client = rig.Proc(place.client, [*cmd, at[1], place.host], V1)
        for p in pairs:
            p.end()
    finally:
        for p in pairs:
            p.server.kill()
            p.client.kill()


def test_not_suspended(placements):
    side = placements("netns").server
    p = rig.Proc(side, ["ibv_rc_pingpong", "-g", index(side), "-p", rig.free_port()], V1)
    def refused():
        done = subprocess.run([*side.prefix, rig.SOFTHCA, "suspend", str(p.pid), "--", "true"], capture_output=True,
                              text=True, timeout=rig.LIMIT)
        return done.returncode and "RoCE v1 (--rocev1) cannot be suspended" in done.stderr

    try:
        rig.until(refused, "it is refused", p)
    finally:
        p.kill()


def test_versions_do_not_mix(placements):
    place = placements("netns")
    out = place.check("-o", "send", "-n", 5, "-u", 10, "-t", 1, options=[*V1, "--explain"], status=(None, 3),
                      server_args=["-g", 0], client_args=["-g", index(place.client)]).describe()
    assert "RETRY_EXC" in out or "transport retry counter exceeded" in out, out
    assert "sgid_index is not RoCE v1" in out, out


# ---- frames ----------------------------------------------------------------


def icrc_ok(frame):
    """Annex A16 and 7.8.1, with zlib: by another hand than the library's."""
    grh, end = bytearray(frame[14:54]), 54 + struct.unpack_from(">H", frame, 18)[0]
    assert struct.unpack_from(">H", frame, 12)[0] == ETHERTYPE and grh[0] >> 4 == 6 and grh[6] == 0x1b
    grh[0] |= 0x0f
    grh[1:4] = b"\xff\xff\xff"
    grh[7] = 0xff
    bth = bytearray(frame[54:66])
    bth[4] = 0xff
    crc = zlib.crc32(b"\xff" * 8 + bytes(grh) + bytes(bth) + frame[66:end - 4])
    return frame[end - 4:end] == struct.pack("<I", crc)


def frames_of(path):
    """Those of RoCE v1 in a pcapng file, read without any library, with the link types of its
    interfaces."""
    data, at, links = open(path, "rb").read(), 0, []
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 1:
            links.append(struct.unpack_from("<H", data, at + 8)[0])
        elif kind == 6:
            interface, n = struct.unpack_from("<I8xI", data, at + 8)
            frame = data[at + 28:at + 28 + n]
            if links[interface] == 1 and frame[12:14] == struct.pack(">H", ETHERTYPE):
                yield frame
        assert length >= 12 and length % 4 == 0, f"block of {length} bytes"
        at += length


def check_frames(frames, opcodes):
    seen = collections.Counter(f[54] for f in frames)
    assert set(opcodes) <= set(seen), seen
    bad = [n for n, f in enumerate(frames, 1) if not icrc_ok(f)]
    assert not bad, f"wrong ICRC in {bad[:10]} of {len(frames)} frames"


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
@pytest.mark.parametrize("name, family", [("netns", 4), ("netns", 6), ("local", 4), ("wire", 6)])
def test_recordings(placements, tmp_path, name, family):
    """--pcap: frames, whose headers and ICRCs are those that tshark and zlib expect."""
    place = placements(name)
    place.check("-o", "all", "-n", 60, "-r", 8, "-m", 1024, options=[*V1, "--pcap", tmp_path / "%p.pcapng"],
                **by_v1(place, "-g", family))
    place.check("-c", "UD", "-o", "send", "-n", 60, "-s", 1000, "-m", 1024,
                options=[*V1, "--pcap", tmp_path / "ud-%p.pcapng"], **by_v1(place, "-g", family))
    files = sorted(tmp_path.glob("*.pcapng"))
    assert len(files) == 4
    for f in files:
        frames = list(frames_of(f))
        check_frames(frames, [0x64] if f.name.startswith("ud") else [0x04, 0x0a, 0x0c, 0x10, 0x11])
        out = subprocess.run(["tshark", "-n", "-r", f, "-T", "fields", "-E", "separator=|", "-e", "frame.protocols",
                              "-e", "infiniband.grh.sgid", "-e", "infiniband.bth.opcode",
                              "-e", "infiniband.invariant.crc"], capture_output=True, text=True, timeout=120)
        rows = [r.split("|") for r in out.stdout.splitlines()]
        assert len(rows) == len(frames)
        for row, frame in zip(rows, frames):
            assert row[0].startswith("eth:ethertype:infiniband"), row
            assert int(row[2], 0) == frame[54]


@contextlib.contextmanager
def tapped(side, path, what="ether proto 0x8915"):
    """tshark writes what passes hca0 into a file, from before the block on."""
    path.touch(0o666)
    tap = rig.Proc(side, ["tshark", "-q", "-i", "hca0", "-F", "pcap", "-w", path, "-f", what], alone=True)
    try:
        rig.until(lambda: "Capturing on" in tap.output() and path.stat().st_size, "tshark captures", tap)
        yield tap
        os.killpg(tap.pid, signal.SIGINT)
        rig.until(lambda: not tap.running(), "tshark ends")
    finally:
        tap.kill()


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
def test_on_the_interface(placements, tmp_path):
    """What another process sees there, taken apart by scapy."""
    scapy = pytest.importorskip("scapy.contrib.roce", reason="scapy is not installed")
    from scapy.layers.l2 import Ether
    from scapy.utils import rdpcap
    place = placements("netns")
    path = tmp_path / "frames.pcap"
    with tapped(place.server, path) as tap:
        place.check("-o", "all", "-n", 60, "-r", 8, "-m", 1024, options=V1, **by_v1(place, "-g"))
        place.check("-c", "UD", "-o", "send", "-n", 20, "-s", 999, "-m", 1024, options=V1, **by_v1(place, "-g", 6))
        rig.until(lambda: sum(bytes(p)[54] == 0x64 for p in rdpcap(str(path))) == 20, "all are written", tap)
    packets = rdpcap(str(path))
    macs = {p.src for p in packets} | {p.dst for p in packets}
    assert len(macs) == 2, macs
    check_frames([bytes(p) for p in packets], [0x04, 0x0a, 0x0c, 0x10, 0x11, 0x64])
    v4 = int.from_bytes(b"\0" * 10 + b"\xff\xff" + socket.inet_aton("10.91.0.2"), "big")
    v6 = int.from_bytes(socket.inet_pton(socket.AF_INET6, "fd91::2"), "big")
    for p in packets:
        grh, bth = Ether(bytes(p))[scapy.GRH], Ether(bytes(p))[scapy.BTH]
        assert (grh.ipver, grh.nexthdr, grh.paylen) == (6, 0x1b, len(p) - 54)
        assert bth.pkey == 0xffff and bth.version == 0 and bth.dqpn > 1
        assert {v4 if grh.sgid >> 120 == 0 else v6} & {grh.sgid, grh.dgid}


@pytest.mark.skipif(not shutil.which("tshark"), reason="tshark is not installed")
def test_vlans(placements, tmp_path):
    """An interface that is a VLAN has entries of its own; the kernel tags its frames, and they
    are no other interface's."""
    scapy = pytest.importorskip("scapy.utils", reason="scapy is not installed")
    placements("netns")  # or there are no networks
    net, path = rig.Network(1500), tmp_path / "frames.pcap"
    try:
        for ns, n in ((net.a, 1), (net.b, 2)):
            try:
                rig.ip(ns, "link add link hca0 name hca0.5 type vlan id 5")
            except rig.Failed as e:
                pytest.skip(f"no VLANs here: {e}")
            rig.ip(ns, f"addr add 10.95.0.{n}/24 dev hca0.5")
            rig.ip(ns, "link set hca0.5 up")
        place = rig.Placement("vlan", rig.Side(net.b), rig.Side(net.a), "10.91.0.2", "fd91::2")
        at = {"server_args": ["-g", index(place.server, of="10.95")],
              "client_args": ["-g", index(place.client, of="10.95")]}
        with tapped(place.server, path, "vlan 5") as tap:
            place.check("-o", "all", "-n", 50, "-m", 1024, options=V1, **at)
            rig.until(lambda: len(scapy.rdpcap(str(path))) > 20, "frames are written", tap)
        for p in map(bytes, scapy.rdpcap(str(path))):
            if p[16:18] == b"\x89\x15":
                assert p[12:16] == b"\x81\0\0\x05" and icrc_ok(p[:12] + p[16:])
        place.check("-o", "all", "-n", 50, "-m", 1024, options=V1, **by_v1(place, "-g"))
    finally:
        net.close()


class Forger:
    """Sends frames of our making into a host's network."""

    def __init__(self, side):
        code = ("import socket, sys\n"
                "s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n"
                "s.bind(('hca0', 0))\n"
                "print('ready', flush=True)\n"
                "for line in sys.stdin: s.send(bytes.fromhex(line)); print('sent', flush=True)\n")
        self.p = subprocess.Popen([*side.prefix, "/usr/bin/python3", "-c", code], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        assert self.p.stdout.readline() == "ready\n"

    def send(self, frame):
        self.p.stdin.write(frame.hex() + "\n")
        self.p.stdin.flush()
        assert self.p.stdout.readline() == "sent\n"

    def close(self):
        self.p.stdin.close()
        self.p.wait(10)


def seal(frame):
    """With the ICRC that it should have."""
    masked = bytearray(frame[14:66])
    masked[0] |= 0x0f
    masked[1:4] = b"\xff\xff\xff"
    masked[7] = masked[44] = 0xff
    return frame + struct.pack("<I", zlib.crc32(b"\xff" * 8 + bytes(masked) + frame[66:]))


def beside_data(place, send):
    """What the server of a transfer says at its end; meanwhile send(forger, frame) has its turn. frame(sgid, ...) is a
    frame for its queue pair from host 10.91.0.SGID, without an ICRC."""
    port = rig.free_port()
    cmd = ["ib_send_lat", "-F", "-C", "-n", 30000, "-s", 64, "-p", port, "-x"]
    mac = json.loads(subprocess.run([*place.server.prefix, "ip", "-j", "link", "show", "hca0"], capture_output=True,
                                    text=True, timeout=rig.LIMIT, check=True).stdout)[0]["address"]
    head = bytes.fromhex(mac.replace(":", "")) + b"\x02\0\0\0\0\x01" + struct.pack(">H", ETHERTYPE)
    gid = [b"\0" * 10 + b"\xff\xff" + socket.inet_aton(f"10.91.0.{n}") for n in range(4)]

    def frame(sgid, size=None, psn=0, opcode=4):
        bth = struct.pack(">BBHII", opcode, 0, 0xffff, qpn, psn)
        return head + struct.pack(">IHBB", 6 << 28, size or len(bth) + 8, 0x1b, 64) + gid[sgid] + gid[2] + bth + b"evil"

    server = rig.Proc(place.server, [*cmd, index(place.server)], [*V1, "--explain"])
    both, forger = rig.Pair(server, server), None
    try:
        server.wait_listening(port)
        forger = Forger(place.client)
        both.client = rig.Proc(place.client, [*cmd, index(place.client), place.host], V1)
        qpn = int(rig.until(lambda: re.search(r"QP 0x([0-9a-f]+) .*connected by RoCE v1", server.output()),
                            "the server connects", server)[1], 16)
        send(forger, frame)
        both.end()
    finally:
        server.kill()
        both.client.kill()
        if forger:
            forger.close()
    return server.output()


def test_hostile_frames(placements):
    """What is no packet, or not the peer's, while data goes by: dropped, and counted."""
    def send(forger, frame):
        good = seal(frame(1))
        for n in range(40):
            forger.send(seal(frame(3, psn=n)))
            forger.send(frame(1, psn=n) + b"\0\0\0\0")
            forger.send(seal(frame(1, size=(0, 3, 15, 21, 60, 65535)[n % 6])))
            forger.send(seal(frame(1, opcode=0x1f)))
            forger.send(good[:54 + n % 30])

    out = beside_data(placements("netns"), send)
    for what in ("malformed", "bad ICRC", "not from the QP's peer"):
        assert re.search(rf"{what} \d+", out), out


def test_tagged_frames(placements):
    """Those of a VLAN are another interface's, also where there is none; a tag of VLAN 0 says a priority alone."""
    def send(forger, frame):
        for n in range(40):
            sealed = seal(frame(3, psn=n))
            for tci in (0x0005, 0x6000, 0xe005):
                forger.send(sealed[:12] + struct.pack(">HH", 0x8100, tci) + sealed[12:])

    assert re.search(r"not from the QP's peer 40\b", beside_data(placements("netns"), send))
