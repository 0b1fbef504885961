"""Packets with our ICRC, checked by scapy's implementation of RoCE.

scapy computes ICRCs for IPv4 only; for IPv6 it takes the packet apart, and
the CRC is zlib's over the fields that annex A17.3.3 names.
"""
import os
import random
import struct
import subprocess
import zlib

import pytest

pytest.importorskip("scapy.contrib.roce", reason="scapy is not installed")
from scapy.contrib.roce import BTH  # noqa: E402
from scapy.layers.inet import IP, UDP  # noqa: E402
from scapy.layers.inet6 import IPv6  # noqa: E402
from scapy.packet import Raw  # noqa: E402

COUNT = 400


@pytest.fixture(scope="module")
def packets():
    seed = random.getrandbits(63)
    print("seed", seed)
    out = subprocess.run(
        [os.environ["ICRC_VECTORS"], str(COUNT), str(seed)],
        check=True, capture_output=True, text=True, timeout=60).stdout
    packets = [bytes.fromhex(line) for line in out.split()]
    assert len(packets) == COUNT
    return packets


def stored(packet):
    return packet[-4:]


def test_ipv4(packets):
    seen = 0
    for raw in packets:
        if raw[0] >> 4 != 4:
            continue
        ip = IP(raw)
        bth = ip[BTH]
        assert bth.compute_icrc(raw) == stored(raw), raw.hex()
        seen += 1
    assert seen == COUNT // 2


def test_ipv4_rebuilt(packets):
    """scapy makes a packet of the same fields: the same bytes come out."""
    for raw in packets[:100]:
        if raw[0] >> 4 != 4:
            continue
        ip, bth = IP(raw), IP(raw)[BTH]
        body = raw[20 + 8 + 12:-4]
        again = IP(src=ip.src, dst=ip.dst, id=ip.id, flags=ip.flags,
                   ttl=ip.ttl, tos=ip.tos)
        again /= UDP(sport=ip[UDP].sport, dport=4791, chksum=0)
        again /= BTH(opcode=bth.opcode, solicited=bth.solicited,
                     migreq=bth.migreq, padcount=bth.padcount,
                     version=bth.version, pkey=bth.pkey, fecn=bth.fecn,
                     becn=bth.becn, dqpn=bth.dqpn, ackreq=bth.ackreq,
                     psn=bth.psn)
        again /= Raw(body)
        assert bytes(again)[28:] == raw[28:]


def test_ipv6(packets):
    seen = 0
    for raw in packets:
        if raw[0] >> 4 != 6:
            continue
        ip = IPv6(raw)
        assert ip.nh == 17 and ip.plen == len(raw) - 40
        ip.tc = 0xff
        ip.fl = 0xfffff
        ip.hlim = 0xff
        ip[UDP].chksum = 0xffff
        masked = bytearray(bytes(ip))
        masked[40 + 8 + 4] = 0xff
        assert len(masked) == len(raw)
        crc = zlib.crc32(b"\xff" * 8 + bytes(masked[:-4]))
        assert struct.pack("<I", crc) == stored(raw), raw.hex()
        seen += 1
    assert seen == COUNT // 2


def test_a_wrong_one_is_seen(packets):
    raw = bytearray(packets[1])
    raw[-1] ^= 1
    assert IP(bytes(raw))[BTH].compute_icrc(bytes(raw)) != stored(raw)
