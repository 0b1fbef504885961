"""The streams of iWARP connections, read by Wireshark's dissectors.

iwarp_stream prints what either end sends. Here that becomes TCP segments in a
capture, and tshark says what it sees: frames, segments, messages, CRCs.
"""
import os
import shutil
import struct
import subprocess

import pytest

if not shutil.which("tshark"):
    pytest.skip("tshark is not installed", allow_module_level=True)

WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INV, SEND_SE = range(6)
TERMINATE = 7

# Protocols that would look at what the messages carry.
OFF = ["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]


def tcp(end, seq, ack, flags, payload=b""):
    ports = (40000, 7174)
    return struct.pack("!HHIIBBHHH", ports[end], ports[not end], seq, ack,
                       0x50, flags, 65535, 0, 0) + payload


def ip(end, segment):
    address = (b"\x0a\0\0\x01", b"\x0a\0\0\x02")
    return struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0x4000,
                       64, 6, 0) + address[end] + address[not end] + segment


def capture(path, pieces):
    """(end, bytes) as the segments of one TCP connection."""
    seq = [1000, 2000]
    packets = [ip(0, tcp(0, 999, 0, 2)), ip(1, tcp(1, 1999, 1000, 0x12)),
               ip(0, tcp(0, 1000, 2000, 0x10))]
    for end, data in pieces:
        packets.append(ip(end, tcp(end, seq[end], seq[not end], 0x18, data)))
        seq[end] += len(data)
    with open(path, "wb") as f:
        f.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 1 << 18, 101))
        for i, packet in enumerate(packets):
            f.write(struct.pack("<IIII", i, 0, len(packet), len(packet)))
            f.write(packet)


def fpdus(pieces):
    """The same bytes, a segment for each FPDU (there are no markers here)."""
    waiting = [b"", b""]
    frames = 2
    for end, data in pieces:
        if frames:
            frames -= 1
            yield end, data
            continue
        waiting[end] += data
        while len(waiting[end]) >= 2:
            ulpdu = int.from_bytes(waiting[end][:2], "big")
            size = (2 + ulpdu + 3) // 4 * 4 + 4
            if len(waiting[end]) < size:
                break
            yield end, waiting[end][:size]
            waiting[end] = waiting[end][size:]
    assert waiting == [b"", b""]


def stream(options):
    out = subprocess.run([os.environ["IWARP_STREAM"], options], check=True,
                         capture_output=True, text=True, timeout=60).stdout
    return [(int(line[0]), bytes.fromhex(line[2:]))
            for line in out.splitlines()]


def tshark(path, *args):
    return subprocess.run(["tshark", "-n", *OFF, "-r", path, *args],
                          check=True, capture_output=True, text=True,
                          timeout=100).stdout


FRAME = ["iwarp_mpa.crc_flag", "iwarp_mpa.marker_flag", "iwarp_mpa.rej_flag",
         "iwarp_mpa.rev", "iwarp_mpa.pdlength"]
SEGMENT = ["ip.src", "iwarp_rdma.opcode", "iwarp_ddp.last_flag",
           "iwarp_mpa.ulpdulength"]
ERROR = ["iwarp_rdma.term_layer", "iwarp_rdma.term_etype_rdma",
         "iwarp_rdma.term_errcode_rdma", "iwarp_rdma.term_hdrct_m",
         "iwarp_rdma.hdrct_d", "iwarp_rdma.hdrct_r"]
FIELDS = FRAME + SEGMENT + ERROR


@pytest.fixture(params=["", "cp"], scope="module")
def seen(request, tmp_path_factory):
    """The options, a dictionary of fields for each packet, and all in words."""
    path = tmp_path_factory.mktemp("iwarp") / "iwarp.pcap"
    capture(path, list(fpdus(stream(request.param))))
    out = tshark(path, "-T", "fields", "-E", "separator=;",
                 *(x for name in FIELDS for x in ("-e", name)))
    packets = [dict(zip(FIELDS, line.split(";"))) for line in out.splitlines()]
    return request.param, packets, tshark(path, "-V")


def rows(packets, names, which):
    return [[p[name] for name in names] for p in packets if p[which]]


def test_frames(seen):
    options, packets, _ = seen
    want = ["1", "0", "0", "2", "6"] if options else ["0", "0", "0", "1", "2"]
    assert rows(packets, FRAME, "iwarp_mpa.rev") == [want, want]


def messages(options):
    rtr = [("1", WRITE, 1, 14)] if options else []
    sends = [("1", SEND, 1, 18 + 333), ("1", SEND_SE, 1, 18 + 333)]
    write = [("1", WRITE, 0, 1442), ("1", WRITE, 0, 1442),
             ("1", WRITE, 1, 14 + 4000 - 2 * 1428)]
    read = [("1", READ_REQUEST, 1, 18 + 28), ("2", READ_RESPONSE, 0, 1442),
            ("2", READ_RESPONSE, 0, 1442),
            ("2", READ_RESPONSE, 1, 14 + 3000 - 2 * 1428)]
    back = [("2", READ_REQUEST, 1, 18 + 28), ("1", READ_RESPONSE, 1, 14 + 77),
            ("2", WRITE, 1, 14)]
    end = [("1", SEND_INV, 1, 18 + 5), ("2", TERMINATE, 1, 18 + 4 + 2 + 18)]
    return rtr + sends + write + read + back + end


def test_messages(seen):
    options, packets, _ = seen
    got = [(src[-1], int(opcode, 0), int(last), int(length))
           for src, opcode, last, length in
           rows(packets, SEGMENT, "iwarp_rdma.opcode")]
    assert got == messages(options)


def test_terminate(seen):
    _, packets, _ = seen
    # RDMAP, remote protection, cannot be invalidated; length and DDP header
    assert [[int(x, 0) for x in row] for row in
            rows(packets, ERROR, "iwarp_rdma.term_layer")] == [
                [0, 1, 9, 1, 1, 0]]


def test_nothing_is_wrong(seen):
    """CRCs that Wireshark computes, and packets it cannot make sense of."""
    options, _, text = seen
    assert "Malformed" not in text and "(Bad CRC32" not in text
    crcs = len(messages(options)) if options else 0
    assert text.count("(Good CRC32)") == crcs
