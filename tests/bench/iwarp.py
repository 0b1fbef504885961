"""iWARP beside the TCP that it goes by, on the same machine.

On the loopback interface and between two namespaces. A stream of messages is
compared with one of iperf3, a ping-pong with one of two programs that spin on
recv(2).
"""
import sys

import probes
from probes import KIB64, LEAST, MOST, Missing

CRC = ["--mpa-crc"]
WHERE = {"lo": "loopback", "netns": "two namespaces"}


class Probes:
    def __init__(self, net, scale):
        names = {"lo": "local", **({"netns": "netns"} if net else {})}
        self.places = {(name, bool(crc)): probes.Probes(probes.placement(place, net, ["--iwarp", *crc]), scale)
                       for name, place in names.items() for crc in ([], CRC)}

    def at(self, name, crc=False):
        if (name, crc) not in self.places:
            raise Missing("no network namespaces here")
        return self.places[name, crc]

    def close(self):
        pass


def lat(tool, place, crc=False):
    return "us", lambda p: p.at(place, crc).perftest(tool, 64, "-R")


def bw(tool, place, crc=False):
    return "B/s", lambda p: p.at(place, crc).perftest_bytes(tool, KIB64, "-R")


PROBES = {"store": ("us", lambda p: p.at("lo").store())}
for _place in WHERE:
    PROBES |= {
        f"tcp_lat_{_place}": ("us", lambda p, place=_place: p.at(place).tcp_lat(64)),
        f"ib_send_lat_{_place}": lat("ib_send_lat", _place),
        f"ib_send_lat_crc_{_place}": lat("ib_send_lat", _place, True),
        # What they are compared with is between them.
        f"ib_write_bw_{_place}": bw("ib_write_bw", _place),
        f"ib_write_bw_crc_{_place}": bw("ib_write_bw", _place, True),
        f"tcp_bw_{_place}": ("B/s", lambda p, place=_place: p.at(place).tcp_bw(KIB64)),
        f"ib_send_bw_{_place}": bw("ib_send_bw", _place),
        f"ib_send_bw_crc_{_place}": bw("ib_send_bw", _place, True),
        f"ib_read_bw_{_place}": bw("ib_read_bw", _place),
    }
ONCE = ()
TABLE = [
    *((f"ib_send_lat 64 B, {where}", f"ib_send_lat_{place}", MOST, 1.3, f"tcp_lat_{place}")
      for place, where in WHERE.items()),
    *((f"ib_{op}_bw 64 KiB{title}, {where}", f"ib_{op}_bw{crc}_{place}", LEAST, bound, f"tcp_bw_{place}")
      for title, crc, bound in (("", "", 0.9), (", --mpa-crc", "_crc", 0.7))
      for op in ("write", "send") for place, where in WHERE.items()),
]
NAMES = {
    **{f"{kind}_{place}": "TCP" for kind in ("tcp_lat", "tcp_bw") for place in WHERE},
    **{f"ib_send_lat_crc_{place}": f"ib_send_lat 64 B, --mpa-crc, {where}" for place, where in WHERE.items()},
    **{f"ib_read_bw_{place}": f"ib_read_bw 64 KiB, {where}" for place, where in WHERE.items()},
    "store": "a store's way to the other processor",
}
BESIDE = ["store", *(f"{kind}_{place}" for kind in ("ib_send_lat_crc", "ib_read_bw") for place in WHERE)]
LIMITS = {
    **{f"ib_send_lat_{place}": "what is not the kernel's TCP: a work request, an FPDU and a completion at each end; and every "
                               "eighth look asks epoll for all streams" for place in WHERE},
    **{f"ib_write_bw_{place}": "a message of 64 KiB is two FPDUs, whose length has 16 bits; nobody polls at the target but "
                               "its thread, which sleeps and wakes" for place in WHERE},
    **{f"ib_send_bw_{place}": "a message of 64 KiB is two FPDUs, whose length has 16 bits; the receiver completes and posts "
                              "again between two of them" for place in WHERE},
    **{f"ib_{op}_bw_crc_{place}": "each end reads the payload once more, for the CRC, and the receiver copies it out of a "
                                  "buffer, since nothing of an FPDU is stored before its CRC is known to be right"
       for op in ("write", "send") for place in WHERE},
}


def part(net, runs, scale, say, only):
    return probes.Part("iWARP (loopback, and two namespaces)" if net else "iWARP (loopback; no namespaces here)",
                       sys.modules[__name__], Probes(net, scale), runs, say, only)
