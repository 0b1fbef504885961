"""Sends mutated messages of the connection manager to UDP port 4791 of 127.0.0.1.

    mad_flood.py PORT COUNT
    mad_flood.py --pkey QPN QKEY PKEY

They are made of captured ones. Half of the requests among them ask for the
service of PORT from the right place, and are nearly right, or right. Or a
datagram to a queue pair, with a P_Key, and then one that is right.
"""
import os
import random
import re
import socket
import struct
import sys
import zlib


def icrc_packet(src, dst, sport, payload, psn, qpn=1, qkey=0x80010000, pkey=0xffff):
    """A UD SEND with a good ICRC, IPv4 identification 0."""
    bth = struct.pack(">BBHII", 0x64, 0, pkey, qpn, psn & 0xffffff)
    body = bth + struct.pack(">II", qkey, 1) + payload
    ip = struct.pack(">BBHHHBBH", 0x45, 0xff, 20 + 8 + len(body) + 4, 0, 0x4000, 0xff, 17, 0xffff)
    ip += socket.inet_aton(src) + socket.inet_aton(dst)
    udp = struct.pack(">HHHH", sport, 4791, 8 + len(body) + 4, 0xffff)
    masked = b"\xff" * 8 + ip + udp + body[:4] + b"\xff" + body[5:]
    return body + struct.pack("<I", zlib.crc32(masked))


def wrong_key(qpn, qkey, pkey):
    """To a QP: a datagram with a P_Key, and one as it should be."""
    s, sport = sender()
    for key in (pkey, 0xffff):
        s.sendto(icrc_packet("127.0.0.1", "127.0.0.1", sport, b"here", 0, qpn, qkey, key), ("127.0.0.1", 4791))


def sender(address="127.0.0.1"):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, DO: identification 0
    s.bind((address, 0))
    return s, s.getsockname()[1]


def captured():
    out = []
    where = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "pcap")
    for name in sorted(os.listdir(where)):
        if not re.match(r"(cm_|perftest).*pcap$", name):
            continue
        with open(os.path.join(where, name), "rb") as f:
            data = f.read()[24:]
        while data:
            n = struct.unpack("<I", data[8:12])[0]
            p, data = data[16:16 + n], data[16 + n:]
            if p[12:14] == b"\x08\x00" and p[42] == 0x64 and p[47:50] == b"\0\0\1":
                out.append(p[62:62 + 256])
    return out


def main(port, count):
    rnd = random.Random(5)
    mads = captured()
    s, sport = sender()
    gid = b"\0" * 10 + b"\xff\xff" + socket.inet_aton("127.0.0.1")
    for i in range(count):
        m = bytearray(rnd.choice(mads))
        if m[17] == 0x10:  # a REQ
            m[80:96] = m[96:112] = gid
            m[168:184] = m[184:200] = b"\0" * 12 + gid[12:]
            m[24:28] = rnd.randbytes(4)
            if i % 2:  # else it is refused while one from the same queue pair lasts
                m[56:59] = rnd.randbytes(3)
            if rnd.random() < .5:
                m[38:40] = struct.pack(">H", port)
        for _ in range(rnd.randrange(4)):
            at = rnd.randrange(256 if rnd.random() < .3 else 80)
            m[at] = rnd.randrange(256)
        s.sendto(icrc_packet("127.0.0.1", "127.0.0.1", sport, bytes(m), i), ("127.0.0.1", 4791))
    print("flooded")


if __name__ == "__main__":
    if sys.argv[1] == "--pkey":
        wrong_key(*map(int, sys.argv[2:]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]))
