"""One run of the peer tests: places, servers, captures, and second tries."""
import contextlib
import os
import re
import subprocess
import time

import lab
import packets
import tries
from interop import IWARP, IWARP_CRC, SIW, SIW2, Report, is_iwarp, is_ours
from load import Load


class Attempt:
    """What happens from now on, to be looked at if it fails."""

    def __init__(self, session):
        self.session = session
        self.capture = session.capture
        self.mark = self.capture.mark() if self.capture else 0
        self.missed = self.capture.missed if self.capture else 0
        self.load = Load()
        self.end = None

    def ends(self):
        """What comes later is only cleaning up."""
        self.end = time.time()

    def packets(self, begin=0, end=None):
        """What was captured, or nothing if that is not all there was."""
        if not self.capture:
            return []
        self.capture.catch_up()
        if self.capture.missed != self.missed:
            return []
        return [p for p in packets.read(self.capture.path, self.mark)
                if begin <= p.time and (not end or p.time <= end)]

    def again(self, direction, note, net="", window=None, twice=False):
        """(why it may run again, whether the packets show it); None: it may not.

        window: when it ran; twice: the client is one that asks for a second
        connection, and may even crash when that is refused.
        """
        begin, end = window or (0, self.end or time.time())
        what = tries.kind(note)
        if not is_ours(direction):      # rxe against itself: no test, only to compare
            return (f"at first {what}", True) if what != tries.WRONG else None
        seen = self.packets(begin - 0.2, end)
        why = (twice and tries.not_listening(note, seen)) or \
            tries.explanation(what, seen, self.session.addresses, end, "loss" in net)
        if why:
            return why, True
        why = tries.by_load(what, self.load.others())
        return (why, False) if why else None


class Session:
    def __init__(self, args, kernels, folder):
        """kernels: of the guests 1 and 2, and of guest 3, which may be None"""
        self.args = args
        self.kernels = kernels
        self.report = Report()
        self.lab = lab.Lab(folder)
        self.host = lab.Host(self.lab, args.softhca)
        self.hosts = {0: self.host, IWARP: lab.IwarpHost(self.lab, args.softhca),
                      IWARP_CRC: lab.CrcHost(self.lab, args.softhca)}
        self.addresses = (self.host.ip4, self.host.ip6)
        self.guests = {}
        self.servers = {}
        self.capture = None
        self.found, self.near = False, (False, 0, "")     # by --only
        out = subprocess.run([args.peer, "list"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.what = dict(line.split("\t") for line in out.splitlines())
        self.report.what = self.what

    # ------------------------------------------------------------- places

    def guest(self, number):
        g = self.guests.get(number)
        if g and not g.alive():
            self.report.say(f"     guest {number} has crashed: {g.last_words()}")
            g.stop()
            g = None
        if not g:
            g = lab.Guest(self.lab, number, self.kernels[number == 3], kind="siw" if number in (SIW, SIW2) else "rxe")
            self.guests[number] = g
            g.wait_ready()
            for key in [k for k in self.servers if k[0] == number]:
                del self.servers[key]
        return g

    def place(self, number):
        return self.hosts.get(number) or self.guest(number)

    def peer(self, number):
        """The peer program for a place."""
        return self.args.host_peer if number in self.hosts else self.args.peer

    @staticmethod
    def transport(number):
        """Its option for that."""
        return ["-i"] if is_iwarp(number) else []

    @staticmethod
    def port(number, ip):
        """Where its server listens. Several places are one host."""
        return str(18600 + 10 * number + ip)

    def server(self, number, ip):
        """Starts the peer program on a place, once; it serves many runs."""
        job = self.servers.get((number, ip))
        place = self.place(number)
        if not job or job.rc is not None:
            self.servers[number, ip] = self.new_server(number, ip, self.port(number, ip))
        return place

    def new_server(self, number, ip, port):
        place = self.place(number)
        job = place.start([self.peer(number), "server", "-a", place.ip(ip), "-p", port, *self.transport(number)])
        if not job.wait_for("listening", 15):
            job.kill()
            raise lab.LabError("the peer server does not start: " + job.out)
        return job

    def gid(self, number, ip):
        """The GID index of a place's address."""
        place = self.place(number)
        rc, out = place.run([self.peer(number), "gid", "-a", place.ip(ip)])
        m = re.search(r"^(\w+) (\d+)$", out, re.M)
        if rc or not m:
            raise lab.LabError("no device: " + out.strip())
        return m[2]

    def close(self):
        for job in self.servers.values():
            job.kill()
        for g in self.guests.values():
            g.stop()

    # ------------------------------------------------------------- running

    def wanted(self, *words):
        if not self.args.only:
            return True
        title = " ".join(w for w in words if w)
        found = re.search(self.args.only, title)
        self.found = self.found or bool(found)
        # An example: the longest line, of those first that have it further on.
        near = bool(re.search(self.args.only.lstrip("^"), title)), len(title), title
        self.near = max(self.near, near)
        return found

    def nothing_found(self):
        """Why --only has found nothing, or None."""
        if self.found or not self.args.only:
            return None
        of = " of what --quick runs" if self.args.quick else ""
        return f'--only {self.args.only} matches nothing{of}; it is matched against lines such as "{self.near[-1]}"'

    @contextlib.contextmanager
    def netem(self, what, number=1):
        self.guest(number).netem(what)
        try:
            yield
        finally:
            if self.guests[number].alive():
                self.guests[number].netem(None)

    @contextlib.contextmanager
    def captured(self, name, number=1, judge=True, **judged):
        """What a guest and others send each other meanwhile is captured, and judged."""
        path = os.path.join(self.args.captures or self.lab.dir, re.sub(r"\W+", "-", name) + ".pcap")
        self.capture = packets.Capture(self.guest(number).tap, path)
        try:
            yield
        finally:
            missed = self.capture.stop()
            self.capture = None
        if judge and self.wanted("packets") and not (self.args.only and os.path.getsize(path) <= packets.EMPTY):
            began = time.monotonic()
            if self.args.only:      # what sends them may not have run
                judged["paths"] = False
            for what, ok, note in packets.judge(path, self.host.ip4, self.host.ip6, missed, **judged):
                self.report.add_judged(name, what, "SKIP" if ok is None else "PASS" if ok else "FAIL", note)
            self.report.say(f"     packets of {name}: judged in {time.monotonic() - began:.0f} s")
        if not self.args.captures:
            os.unlink(path)
