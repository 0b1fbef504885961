"""Captures RoCEv2 packets, and judges them: by tshark, scapy, and a CRC of our own.

judge() yields (what, verdict, note); the verdict is None where the judge is
not installed. A note that is a Counter is a number of things, of several
captures it is their sum.
"""
import collections
import json
import mmap
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
import zlib

PORT = 4791
EMPTY = 24      # bytes of a capture of nothing
SOL_PACKET = 263


class Packet:
    """One RoCEv2 packet of a capture, taken apart as far as is judged here."""

    def __init__(self, frame, when):
        self.frame, self.time = frame, when
        kind = struct.unpack_from(">H", frame, 12)[0]
        ip = frame[14:]
        if kind == 0x0800:
            self.version, self.l3 = 4, 20
            self.src, self.dst = (socket.inet_ntop(socket.AF_INET, ip[a:a + 4]) for a in (12, 16))
            self.tclass, self.hops = ip[1], ip[8]
            self.df = bool(ip[6] & 0x40)
            self.id = struct.unpack_from(">H", ip, 4)[0]
            self.fragment = struct.unpack_from(">H", ip, 6)[0] & 0x3fff
            self.end = 14 + struct.unpack_from(">H", ip, 2)[0]
            self.options = ip[0] != 0x45
        else:
            self.version, self.l3 = 6, 40
            self.src, self.dst = (socket.inet_ntop(socket.AF_INET6, ip[a:a + 16]) for a in (8, 24))
            word = struct.unpack_from(">I", ip)[0]
            self.tclass, self.flow, self.hops = word >> 20 & 0xff, word & 0xfffff, ip[7]
            self.end = 14 + 40 + struct.unpack_from(">H", ip, 4)[0]
            self.options = ip[6] != 17
        udp = 14 + self.l3
        self.sport, self.dport, self.udp_len, self.udp_sum = struct.unpack_from(">4H", frame, udp)
        self.bth = frame[udp + 8:udp + 20]
        self.body = frame[udp + 20:self.end - 4]
        self.icrc = frame[self.end - 4:self.end]
        self.opcode = self.bth[0]
        self.migreq, self.pad, self.tver = bool(self.bth[1] & 0x40), self.bth[1] >> 4 & 3, self.bth[1] & 15
        self.pkey = struct.unpack_from(">H", self.bth, 2)[0]
        self.qpn = int.from_bytes(self.bth[5:8], "big")
        self.psn = int.from_bytes(self.bth[9:12], "big")

    def good_icrc(self):
        """Annex A17.3.3, computed with zlib."""
        ip = bytearray(self.frame[14:14 + self.l3])
        if self.version == 4:
            ip[1] = ip[8] = ip[10] = ip[11] = 0xff
        else:
            ip[0] |= 0x0f
            ip[1] = ip[2] = ip[3] = ip[7] = 0xff
        udp = self.frame[14 + self.l3:14 + self.l3 + 6] + b"\xff\xff"
        bth = bytearray(self.bth)
        bth[4] = 0xff
        crc = zlib.crc32(b"\xff" * 8 + ip + udp + bth + self.body)
        return struct.pack("<I", crc) == self.icrc


def is_roce(frame):
    l3 = 20 if frame[12:14] == b"\x08\0" else 40
    return frame[16 + l3:18 + l3] == b"\x12\xb7" and frame[23 if l3 == 20 else 20] == 17


def is_tcp_of(ports):
    """Whether a frame is TCP's, from or to one of these ports."""
    def check(frame):
        l3 = 20 if frame[12:14] == b"\x08\0" else 40
        if frame[23 if l3 == 20 else 20] != 6 or len(frame) < 18 + l3:
            return False
        return any(port in ports for port in struct.unpack_from(">HH", frame, 14 + l3))
    return check


class Capture:
    """Writes the RoCEv2 packets of an interface, or others, to a pcap file.

    From a ring shared with the kernel, which needs no privileges for its size.
    """
    FRAME, BLOCK, BLOCKS = 8192, 1 << 20, 96

    def __init__(self, nic, path, keep=is_roce):
        self.path, self.keep = path, keep
        self.file = open(path, "wb")
        self.file.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
        self.sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self.sock.setsockopt(SOL_PACKET, 10, 1)     # PACKET_VERSION: TPACKET_V2
        self.frames = self.BLOCKS * self.BLOCK // self.FRAME
        self.sock.setsockopt(SOL_PACKET, 5, struct.pack(    # PACKET_RX_RING
            "IIII", self.BLOCK, self.BLOCKS, self.FRAME, self.frames))
        self.ring = mmap.mmap(self.sock.fileno(), self.BLOCKS * self.BLOCK)
        self.sock.bind((nic, 3))                    # ETH_P_ALL
        self.going_on = True
        self.missed = 0                             # packets, for lack of room
        self.seen = threading.Event()               # all that has arrived
        self.thread = threading.Thread(target=self._follow)
        self.thread.start()

    def _follow(self):
        i = 0
        while True:
            at = i * self.FRAME
            # struct tpacket2_hdr
            status, full, have, mac, _, sec, nsec = struct.unpack_from("IIIHHII", self.ring, at)
            if not status & 1:                      # TP_STATUS_USER
                self.seen.set()
                if not self.going_on:
                    return
                select.select([self.sock], [], [], 0.1)
                continue
            frame = self.ring[at + mac:at + mac + have]
            if self.keep(frame):
                self.file.write(struct.pack("<4I", sec, nsec // 1000, have, full) + frame)
            struct.pack_into("I", self.ring, at, 0)
            i = (i + 1) % self.frames

    def mark(self):
        """Where what comes from now on will be, for read()."""
        self.catch_up()
        return self.file.tell()

    def catch_up(self):
        """Puts what has been captured until now into the file."""
        self.seen.clear()
        self.seen.wait(1)
        self.file.flush()
        self.count()

    def count(self):
        # PACKET_STATISTICS: packets, drops since it was last asked
        self.missed += struct.unpack("II", self.sock.getsockopt(SOL_PACKET, 6, 8))[1]

    def stop(self):
        """Ends the capture, returns how many packets were missed."""
        time.sleep(0.3)     # what is on its way
        self.going_on = False
        self.thread.join()
        self.count()
        self.ring.close()
        self.sock.close()
        self.file.close()
        return self.missed


def read(path, at=EMPTY):
    """The RoCEv2 packets of a pcap file (not pcapng) from a place on."""
    with open(path, "rb") as f:
        f.seek(at)
        data = f.read()
    at = 0
    while at + 16 <= len(data):
        sec, usec, have = struct.unpack_from("<3I", data, at)
        frame = data[at + 16:at + 16 + have]
        at += 16 + have
        if len(frame) < 14 + 20 + 8 + 12 + 4:
            continue
        kind, = struct.unpack_from(">H", frame, 12)
        if kind == 0x0800 and frame[23] == 17 or kind == 0x86dd and frame[20] == 17:
            p = Packet(frame, sec + usec / 1e6)
            if p.dport == PORT:
                yield p


def tshark(path, *args):
    """Runs tshark, without its guesses at what messages of programs might mean."""
    guesses = [x for name in ("rpcordma", "infiniband.eoib", "infiniband_sdp", "fcoib", "iser", "lnet",
                              "nvme-rdma", "smb_direct", "smc", "drbd") for x in ("--disable-protocol", name)]
    guesses += ["--disable-heuristic", "eth_over_ib"]
    return subprocess.run(["tshark", "-n", "-r", path, "-o", "ip.check_checksum:TRUE",
                           "-o", "udp.check_checksum:TRUE", *guesses, *args],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=600)


def first(items, show, most=3):
    items = list(items)
    return f"{len(items)} packets" + (": " + "; ".join(map(show, items[:most])) if items else "")


def show(p):
    return f"{p.src} > {p.dst} opcode 0x{p.opcode:02x} QPN 0x{p.qpn:x} PSN 0x{p.psn:x} {len(p.body)} bytes"


def judge(path, ours4, ours6, missed=0, hostile=False, paths=True, many=False):
    """missed: packets that the capture itself has lost; hostile: the other side
    sends broken packets on purpose; paths: among ours are some with another
    traffic class and hop limit; many: and such of eight QPs of one process."""
    all_packets = list(read(path))
    ours = [p for p in all_packets if p.src in (ours4, ours6)]
    theirs = [] if hostile else [p for p in all_packets if p.src not in (ours4, ours6)]
    counts = collections.Counter({"packets of softhca": len(ours)})
    if not hostile:
        counts["of rxe"] = len(theirs)
    if not ours or not (theirs or hostile):
        yield "packets of both sides are captured", False, str(dict(counts))
        return
    yield ("the captures are whole, but for 1 %", missed <= len(all_packets) / 100,
           collections.Counter({"packets": len(all_packets), "missed by the capture itself": missed}))

    name = "tshark finds nothing malformed and no bad checksum"
    if shutil.which("tshark"):
        broken = ('(_ws.malformed || ip.checksum.status == "Bad" || '
                  'udp.checksum.status == "Bad" || (udp.port == 4791 && !infiniband))')
        if hostile:
            broken += f" && (ip.src == {ours4} || ipv6.src == {ours6})"
        bad = tshark(path, "-Y", broken)
        lines = bad.stdout.splitlines()
        yield (name, bad.returncode == 0 and not lines,
               (bad.stderr.strip()[-200:] if bad.returncode else "; ".join(lines[:3])) or counts)
    else:
        yield name, None, "tshark is not installed"

    for who, some in (("softhca", ours), ("rxe", theirs)):
        bad = [p for p in some if not p.good_icrc()]
        if some:
            yield (f"every ICRC of {who} is good", not bad,
                   first(bad, show) if bad else collections.Counter({"packets": len(some)}))
    yield from scapy_judge(ours)

    def rule(what, broken):
        bad = [p for p in ours if broken(p)]
        return what, not bad, first(bad, show) if bad else ""

    yield rule("no fragments, IP options or short frames",
               lambda p: p.options or p.end > len(p.frame) or p.version == 4 and p.fragment)
    yield rule("Don't Fragment is set (A17.4.5.1)", lambda p: p.version == 4 and not p.df)
    yield rule("UDP length and pad count agree with the packet (9.2.3)",
               lambda p: p.udp_len != p.end - 14 - p.l3 or len(p.body) % 4 != 0)
    yield rule("payload is at most 4096 bytes and headers", lambda p: len(p.body) > 4096 + 28 + 4)
    yield rule("P_Key is the default one", lambda p: p.pkey != 0xffff)
    yield rule("transport version is 0 (9.2.4)", lambda p: p.tver)
    yield rule("reserved bits are 0 (9.2)", lambda p: p.bth[4] & 0x3f or p.bth[8] & 0x7f)
    # 17.2.8: a path that is not about to migrate counts as migrated. rxe says 0.
    yield rule("MigReq is 1, as ConnectX sends it", lambda p: not p.migreq)
    yield rule("UDP source port is in the dynamic range (A17.4.5.2)", lambda p: p.sport < 0xc000)

    flows = [f for f in list(flows_of(ours)) if f.packets > 1]
    # The QP of a new program may have another port (they are random), and by
    # chance the number of the QP before.
    torn = [f for f in flows if f.torn]
    yield ("packets to one queue pair come from one UDP port (A17.4.5.2)", len(torn) < 3,
           "; ".join(f"{f.dst} QPN 0x{f.qpn:x}" for f in torn[:3]) if torn else
           collections.Counter({"queue pairs": len(flows)}))
    crowds = list(crowds_of(flows))
    lone = [c for c in crowds if len({f.sport for f in c}) < 2]
    if crowds or many:
        yield ("eight queue pairs of one process use several UDP ports", crowds and not lone,
               f"QPNs {', '.join(hex(f.qpn) for f in lone[0])} all from port {lone[0][0].sport}" if lone else
               collections.Counter({"times": len(crowds)}))
    if not paths:
        return
    seen = {(p.version, p.tclass & 0xfc, p.hops) for p in ours}
    for version in sorted({p.version for p in ours}):
        yield (f"traffic class and hop limit are carried, IPv{version}",
               (version, 0x68, 33) in seen, str(sorted(x[1:] for x in seen if x[0] == version)))
    labels = collections.Counter(hex(p.flow) for p in ours if p.version == 6 and (p.tclass & 0xfc, p.hops) == (0x68, 33))
    if any(p.version == 6 for p in ours):
        yield "the flow label is carried, IPv6", set(labels) == {"0x54321"}, str(dict(labels))


class Flow:
    """What we send to one QP from one port, without a long break."""
    BREAK = 0.5     # seconds

    def __init__(self, p):
        self.dst, self.qpn, self.sport = p.dst, p.qpn, p.sport
        self.begin = self.end = p.time
        self.packets, self.torn = 0, False


def flows_of(packets):
    """Only of connected services, since a UD QP receives from anybody."""
    last = {}       # (dst, qpn, sport) -> Flow
    latest = {}     # (dst, qpn) -> Flow
    for p in packets:
        if p.opcode >> 5 > 1:
            continue
        f = last.get((p.dst, p.qpn, p.sport))
        if not f or p.time - f.end > Flow.BREAK:
            f = last[p.dst, p.qpn, p.sport] = Flow(p)
            yield f
        elif latest[p.dst, p.qpn] is not f:
            f.torn = True       # another port meanwhile
        latest[p.dst, p.qpn] = f
        f.end = p.time
        f.packets += 1


def crowds_of(flows, enough=8):
    """Flows that overlap in time, if they are many. They are of one process of
    ours, since only one sends at a time."""
    going = []
    for f in sorted(flows, key=lambda f: f.begin):
        before = going
        going = [g for g in going if g.end >= f.begin]
        if len(going) < len(before) and len(before) >= enough:
            yield before
        going.append(f)
    if len(going) >= enough:
        yield going


def scapy_judge(ours):
    """scapy's own ICRC, for some packets of each opcode; it knows IPv4 only."""
    name = "scapy computes the same ICRCs"
    by_opcode = collections.defaultdict(list)
    for p in ours:
        if p.version == 4 and len(by_opcode[p.opcode]) < 30:
            by_opcode[p.opcode].append(p)
    some = [p for v in by_opcode.values() for p in v]
    r = subprocess.run(["/usr/bin/python3", os.path.join(os.path.dirname(__file__), "scapy_icrc.py")], text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                       input="".join(p.frame[:p.end].hex() + "\n" for p in some))
    try:
        bad = json.loads(r.stdout)
    except ValueError:
        yield name, False, r.stderr.strip()[-200:]
        return
    if bad is None:
        yield name, None, "scapy is not installed"
    else:
        yield name, not bad, "; ".join(bad[:2]) or collections.Counter({"packets (scapy knows IPv4 only)": len(some)})
