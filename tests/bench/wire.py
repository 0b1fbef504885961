"""The wire: what goes by UDP port 4791, beside UDP and TCP on the same machine.

On the loopback interface (--wire) and between two namespaces. A ping-pong is
compared with one of UDP in the same placement, one way, and with one that makes
our system calls and nothing else; a read, which is there and back, with both
ways. Streams are compared with one of TCP, and with one of
UDP that has packets as large as ours but neither headers nor a CRC. Programs
that wait for events are compared with a UDP ping-pong that sleeps in recv(2), and
so are programs that poll where others compute on the same processors.
"""
import contextlib
import sys

import probes
import rig
from probes import CPUS, KIB64, LEAST, MIB, MORE, MOST, Missing

SIZES = {"64k": KIB64, "1m": MIB}
HEADERS = 16    # of a packet in the middle of a message: BTH and ICRC


class Probes:
    """By placement: "one" is between two namespaces, both ends on one processor."""

    def __init__(self, net, scale):
        self.places = {"wire": probes.placement("wire", net)}
        if net:
            self.places["netns"] = probes.placement("netns", net)
            self.places["one"] = probes.placement("netns", net, cpus=(CPUS[-1], CPUS[-1]))
        self.places = {name: probes.Probes(p, scale) for name, p in self.places.items()}

    def at(self, name):
        if name not in self.places:
            raise Missing("no network namespaces here")
        return self.places[name]

    def close(self):
        pass

    def switches(self, place, udp):
        """Context switches of both ends in a round trip: those of the last run."""
        p = self.at(place)
        key = "udp" if udp else p.key("ib_send_lat", 8, "-e")
        if key not in p.switches:
            p.udp_lat(waits=True) if udp else p.perftest("ib_send_lat", 8, "-e")
        return p.switches.pop(key)

    @contextlib.contextmanager
    def neighbours(self):
        """Somebody who computes on each processor."""
        with contextlib.ExitStack() as stack:
            for cpu in {CPUS[0], CPUS[-1]}:
                one = rig.Proc(rig.Side(["taskset", "-c", str(cpu)]), ["sh", "-c", "while :; do :; done"], alone=True)
                stack.callback(one.kill)
            yield self.at("netns")

    def busy(self, measure):
        with self.neighbours() as p:
            return measure(p)

    def udp_bw(self, crc=False):
        p = self.at("netns")
        return p.udp_bw(p.mtu() + HEADERS, crc)


PROBES = {
    "store": ("us", lambda p: p.at("wire").store()),
    **{f"{name}_{place}": ("us", measure(place)) for place in ("wire", "netns") for name, measure in {
        "udp_lat": lambda at: lambda p: p.at(at).udp_lat(),
        "udp_wire_ack": lambda at: lambda p: p.at(at).udp_wire(),
        "udp_wire": lambda at: lambda p: p.at(at).udp_wire(kind="udp_wire"),
        "ib_send_lat": lambda at: lambda p: p.at(at).perftest("ib_send_lat", 8),
        "ib_write_lat": lambda at: lambda p: p.at(at).perftest("ib_write_lat", 8),
        "ib_send_lat_recorded": lambda at: lambda p: p.at(at).recorded("ib_send_lat", 8),
        "udp_trip": lambda at: lambda p: 2 * p.at(at).udp_lat(),
        "ib_read_lat": lambda at: lambda p: p.at(at).perftest("ib_read_lat", 8),
    }.items()},
    **{f"{name}_{size}": ("B/s", measure(n)) for size, n in SIZES.items() for name, measure in {
        "udp_bw": lambda n: lambda p: p.udp_bw(),
        "udp_bw_crc": lambda n: lambda p: p.udp_bw(crc=True),
        "ib_write_bw": lambda n: lambda p: p.at("netns").perftest_bytes("ib_write_bw", n),
        "ib_read_bw": lambda n: lambda p: p.at("netns").perftest_bytes("ib_read_bw", n),
        "ib_send_bw": lambda n: lambda p: p.at("netns").perftest_bytes("ib_send_bw", n),
        "tcp_bw": lambda n: lambda p: p.at("netns").tcp_bw(n),
    }.items()},
    "ib_send_bw_64": ("1/s", lambda p: p.at("netns").perftest("ib_send_bw", 64)),
    "ib_send_bw_64_l16": ("1/s", lambda p: p.at("netns").perftest("ib_send_bw", 64, "-l", 16)),
    **{f"{name}_{place}": (unit, measure(place)) for place in ("netns", "one") for name, unit, measure in (
        ("udp_wait", "us", lambda at: lambda p: p.at(at).udp_lat(waits=True)),
        ("udp_wire_wait", "us", lambda at: lambda p: p.at(at).udp_wire(kind="udp_wire_wait")),
        ("ib_send_lat_e", "us", lambda at: lambda p: p.at(at).perftest("ib_send_lat", 8, "-e")),
        ("switches_udp", "", lambda at: lambda p: p.switches(at, True)),
        ("switches_e", "", lambda at: lambda p: p.switches(at, False)),
    )},
    "udp_wait_busy": ("us", lambda p: p.busy(lambda at: at.udp_lat(waits=True))),
    "ib_send_lat_busy": ("us", lambda p: p.busy(lambda at: at.perftest("ib_send_lat", 8, n=2000))),
    "ib_send_lat_one": ("us", lambda p: p.at("one").perftest("ib_send_lat", 8)),
    "qps_1": ("1/s", lambda p: p.at("wire").writes_on_one_of(1)),
    "qps_10000": ("1/s", lambda p: p.at("wire").writes_on_one_of(10000)),
    "conn_tcp": ("1/s", lambda p: p.at("wire").connections("tcp")),
    "conn_rdma": ("1/s", lambda p: p.at("wire").connections("rdma")),
}
ONCE = ()

WHERE = {"wire": "loopback", "netns": "two namespaces", "one": "one processor"}
TABLE = [
    *((f"ib_{op}_lat 8 B, {WHERE[place]}", f"ib_{op}_lat_{place}", MOST, bound, f"{beside}_{place}")
      for place in ("wire", "netns")
      for op, bound, beside in (("send", 1.5, "udp_lat"), ("write", 2.0, "udp_lat"), ("read", 1.5, "udp_trip"))),
    *(row for place in ("wire", "netns") for row in (
        (f"ib_send_lat 8 B, {WHERE[place]}", f"ib_send_lat_{place}", MOST, 1.2, f"udp_wire_ack_{place}"),
        (f"its system calls, {WHERE[place]}", f"udp_wire_ack_{place}", MOST, 1.2, f"udp_lat_{place}"),
        (f"those without an ACK, {WHERE[place]}", f"udp_wire_{place}", MOST, 1.2, f"udp_lat_{place}"))),
    *((f"ib_send_lat 8 B, {WHERE[place]}, recorded", f"ib_send_lat_recorded_{place}", MOST, 1.15, f"ib_send_lat_{place}")
      for place in ("wire", "netns")),
    *((f"ib_{op}_bw {title}", f"ib_{op}_bw_{size}", LEAST, bound, f"{beside}_{size}")
      for size, title in (("64k", "64 KiB"), ("1m", "1 MiB")) for op in ("write", "read", "send")
      for bound, beside in ((1.0, "tcp_bw"), (0.6, "udp_bw"))),
    ("ib_send_bw 64 KiB", "ib_send_bw_64k", LEAST, 0.8, "udp_bw_crc_64k"),
    ("UDP, copied and summed", "udp_bw_crc_64k", LEAST, 0.6, "udp_bw_64k"),
    ("ib_send_bw 64 B", "ib_send_bw_64", LEAST, 1e6, None),
    ("ib_send_bw 64 B -l 16", "ib_send_bw_64_l16", LEAST, 1.5e6, None),
    *((f"{title}, {where}", f"{name}_{place}", how, bound, f"{beside}_{place}")
      for place, where in (("netns", "two processors"), ("one", "one processor"))
      for title, name, how, bound, beside in (
          ("ib_send_lat -e 8 B", "ib_send_lat_e", MOST, 1.5, "udp_wait"),
          ("ib_send_lat -e 8 B", "ib_send_lat_e", MOST, 1.2, "udp_wire_wait"),
          ("its system calls", "udp_wire_wait", MOST, 1.2, "udp_wait"),
          ("switches a round trip", "switches_e", MORE, 1, "switches_udp"))),
    ("ib_send_lat 8 B, one processor", "ib_send_lat_one", MOST, 2.0, "ib_send_lat_e_one"),
    ("ib_send_lat 8 B, others compute", "ib_send_lat_busy", MOST, 2.0, "udp_wait_busy"),
    ("8 B writes on 10,000 QPs", "qps_10000", LEAST, 0.8, "qps_1"),
    ("connections, set up and closed", "conn_rdma", LEAST, 0.7, "conn_tcp"),
]
NAMES = {
    **{f"udp_lat_{p}": "UDP" for p in ("wire", "netns")},
    **{f"udp_wire_ack_{p}": "its system calls" for p in ("wire", "netns")},
    **{f"udp_wire_wait_{p}": "its system calls" for p in ("netns", "one")},
    **{f"udp_trip_{p}": "UDP, both ways" for p in ("wire", "netns")},
    **{f"tcp_bw_{size}": "TCP" for size in SIZES},
    **{f"udp_bw_{size}": "UDP with GSO and GRO" for size in SIZES},
    "udp_bw_crc_64k": "UDP, copied and summed",
    **{f"{name}_{p}": "UDP that waits" for p in ("netns", "one") for name in ("udp_wait", "switches_udp")},
    "udp_wait_busy": "UDP that waits",
    **{f"ib_send_lat_{p}": "without --trace" for p in ("wire", "netns")},
    "ib_send_lat_e_one": "-e", "qps_1": "on one", "conn_tcp": "TCP",
    "store": "a store's way to the other processor",
}
BESIDE = ["store"]
STREAM = ("each end copies the payload twice and computes a CRC of it (packets are put together and taken apart beside "
          "the kernel's copy); UDP copies it once at each end")
LONGER = {"write": "; and a message's first packet is longer than those that follow, so it takes 2.25 sendmsg(2), a SEND 0.9",
          "read": "; and a response's first and last packet are longer than the others: three runs of packets for each 64 KiB"}
PING = ("a message and the ACK behind it are two datagrams in one sendmsg(2) of an unconnected socket, and have a CRC; "
        "some recvmsg(2) find nothing before one does. Those system calls alone take what the row below says")
CALLS = ("the kernel's own: an unconnected socket, whose route is looked up for each message, its source address, SO_REUSEPORT "
         "and steering, TTL and TOS of what comes; and the ACK, a second segment")
BUSY = "whenever the two ends fall out of step the thread has to wake, on a processor on which the program spins"
IDLE = "nobody polls at the target but its thread, which stays awake for 20 us: as ib_send_lat, and a wake-up now and then"
RECORDED = ("a recorded message takes both ends 1,870 instructions more (callgrind): some ten records, each with the clock, and it is "
            "sent the general way instead of the short one")
WAIT = ("four system calls at each end where UDP makes two: fcntl(2) asks whether the channel's descriptor blocks, and "
        "ppoll(2) has three to wait for before recvmsg(2); what they alone take is in the row below. The rest is headers, "
        "CRC, timers and two completions")
WAIT_CALLS = "the kernel's own: " + CALLS.partition(": ")[2] + "; fcntl(2) and ppoll(2) before recvmsg(2), which does not sleep"
LIMITS = {
    **probes.LIMITS,
    **{f"ib_{op}_lat_{p}": limit for p in ("wire", "netns")
       for op, limit in (("send", PING), ("write", BUSY), ("read", IDLE))},
    **{f"ib_send_lat_recorded_{p}": RECORDED for p in ("wire", "netns")},
    **{f"udp_wire{ack}_{p}": CALLS for p in ("wire", "netns") for ack in ("", "_ack")},
    "udp_bw_crc_64k": "a copy more and a CRC at each end, of which nothing is left out",
    "ib_send_bw_64_l16": "instructions: 2,500 a message of both ends, in lists of 16 (BENCH=instructions)",
    **{f"ib_{op}_bw_{size}": STREAM + LONGER.get(op, "") for size in SIZES for op in ("write", "read", "send")},
    **{f"{name}_{p}": WAIT for p in ("netns", "one") for name in ("ib_send_lat_e", "switches_e")},
    **{f"udp_wire_wait_{p}": WAIT_CALLS for p in ("netns", "one")},
    "ib_send_lat_busy": "it polls four times before it sleeps, with a timeout, and looks now and then whether it still has to",
}


def part(net, runs, scale, say, only):
    p = Probes(net, scale)
    where = f"two namespaces of path MTU {p.at('netns').mtu()}" if net else "no namespaces here"
    return probes.Part(f"the wire (loopback, and {where})", sys.modules[__name__], p, runs, say, only)
