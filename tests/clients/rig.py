"""Runs unmodified RDMA programs over softhca, as pairs of processes.

A Side is where one process runs: a prefix of words before its command, and the
addresses found there. A Placement is a server's and a client's Side and the
options of "softhca run" for both. Every process has a time limit, lives in a
process group of its own, and is killed with it; what it printed is shown when
something fails. Time limits are those of a quiet machine, see load.py.
"""
import contextlib
import ctypes
import itertools
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))
import netns  # noqa: E402
from load import Limit  # noqa: E402
from netns import NoNamespaces  # noqa: E402

BUILD = os.environ.get("SOFTHCA_BUILD", os.path.join(ROOT, "build"))
SOFTHCA = os.path.join(BUILD, "bin", "softhca")
CLIENTS = os.path.join(BUILD, "tests", "clients")
# What is left in $SOFTHCA_RUNDIR by whoever is the last: what programs are
# shown of /sys.
KEPT = {"softhca-sysfs-%d" % os.geteuid()}

# A crash of a client must not take minutes to be noticed, and on a slow
# machine a good run must not be cut off.
LIMIT = float(os.environ.get("SOFTHCA_TEST_LIMIT", "40"))


def client(name):
    """A program of tests/clients/src."""
    return os.path.join(CLIENTS, name)


def free_port():
    """A port to listen on, in any namespace: none that a connection's own end
    gets (32768 and up, ip_local_port_range), which may stand for a while."""
    while True:
        with socket.socket(socket.AF_INET6) as s:
            try:
                s.bind(("::", random.randrange(10000, 32768)))
                return s.getsockname()[1]
            except OSError:
                pass


class Failed(AssertionError):
    pass


class TimedOut(Failed):
    """By a time limit and nothing else: retry.py goes by this name."""


def until(true, what, proc=None, limit=LIMIT):
    """Waits until true() is; what it is. The end of proc ends the wait."""
    left = Limit(limit)
    while True:
        running = not proc or proc.running()  # what it did last counts
        if got := true():
            return got
        shown = f"\n{proc.describe()}" if proc else ""
        if not running:
            raise Failed(f"ended before: {what}{shown}")
        if left.over():
            raise TimedOut(f"not within {limit:.0f} s: {what}{shown}")
        time.sleep(0.005)


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def is_status(got, wanted):
    """Any that is wanted (None) is no signal, nor a shell's word for one."""
    return 0 <= got < 126 if wanted is None else got == wanted


def end_with_parent():
    """In a child: whatever ends the tests ends it."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Proc:
    """A program on a side, under "softhca run" unless it is alone."""

    def __init__(self, side, cmd, options=(), env=None, tool=None, alone=False):
        self.cmd = [str(c) for c in cmd]
        run = [] if alone else [tool or side.tool, "run", *map(str, options), "--"]
        self.argv = [*side.prefix, *run, *self.cmd]
        self.out = tempfile.TemporaryFile("w+b")
        self.start = time.monotonic()
        self.ended_by_us = False
        self.network = side.network()
        self.popen = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=self.out,
            stderr=subprocess.STDOUT, process_group=0, preexec_fn=end_with_parent,
            env=dict(os.environ, **(env or {})))

    @property
    def pid(self):
        return self.popen.pid

    def output(self):
        # The program writes at the same offset, which must not move.
        fd = self.out.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace")

    def running(self):
        return self.popen.poll() is None

    def wait(self, limit=LIMIT):
        """Its exit status."""
        left = Limit(limit)
        while self.running():
            if left.over():
                self.kill()
                raise TimedOut(f"no end within {limit:.0f} s\n{self.describe()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(max(0, min(1, left.left())))
        return self.popen.returncode

    def done(self, limit=LIMIT, status=0, beside=None):
        """Its output, when it has ended with this status; None: any of its own
        choice. A failure shows what the one beside it has printed, too."""
        rc = self.wait(limit)
        if not is_status(rc, status):
            self.kill()  # what it has left
            raise Failed(f"exit status {rc}, expected {status}\n{self.describe()}"
                         + (f"--- beside\n{beside.describe()}" if beside else ""))
        return self.output()

    def tell(self, sig):
        """For a program that goes on, or ends by itself."""
        os.killpg(self.pid, sig)

    def kill(self, sig=signal.SIGKILL):
        self.ended_by_us = self.ended_by_us or self.running()
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:
            pass
        self.popen.wait(10)

    def describe(self):
        text = self.output()
        if len(text) > 6000:
            text = text[:2000] + "\n[...]\n" + text[-4000:]
        end = "ended by the test" if self.ended_by_us else f"exit status {self.popen.poll()}"
        return f"$ {' '.join(self.argv)}\n{text}[{end}]\n"

    def wait_for(self, text, limit=LIMIT):
        """Until the output holds text; the match."""
        return until(lambda: re.search(text, self.output(), re.M), f"it prints {text!r}", self, limit)

    def sockets(self, protocol):
        """The rows of what this process's network has: tcp, or udp. None before it
        is there: what others have in the network it comes from is no news."""
        rows = []
        with contextlib.suppress(OSError):
            if self.network and self.network != network_of(self.pid):
                return rows
            for family in (protocol, f"{protocol}6"):
                with open(f"/proc/{self.pid}/net/{family}") as f:
                    rows += [line.split() for line in f][1:]
        return rows

    def wait_listening(self, port, limit=LIMIT):
        """Until somebody in this process's network listens on a TCP port."""
        until(lambda: any(r[1].endswith(f":{port:04X}") and r[3] == "0A" for r in self.sockets("tcp")),
              f"somebody listens on port {port}", self, limit)

    def wait_bound(self, port, limit=LIMIT):
        """Until this process itself has a UDP port."""
        def bound():
            inodes = set()
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{self.pid}/fd"):
                    with contextlib.suppress(OSError):
                        inodes.add(os.readlink(f"/proc/{self.pid}/fd/{fd}"))
            return any(r[1].endswith(f":{port:04X}") and f"socket:[{r[9]}]" in inodes
                       for r in self.sockets("udp"))

        until(bound, f"it has UDP port {port}", self, limit)


def network_of(pid):
    """What tells the network namespace of a process from others."""
    return os.readlink(f"/proc/{pid}/ns/net")


class Side:
    def __init__(self, prefix=(), tool=SOFTHCA):
        self.prefix = list(prefix)
        self.tool = tool
        self._gids = None

    def network(self):
        """That of its processes, where their prefix begins with nsenter."""
        return network_of(self.prefix[2]) if self.prefix[:2] == ["nsenter", "-t"] else None

    def run(self, cmd, options=(), limit=LIMIT, status=0, env=None):
        """Runs one program to its end; its output."""
        return Proc(self, cmd, options, env).done(limit, status)

    def gids(self):
        """The device's GIDs by index, as ibv_devinfo prints them."""
        if self._gids is None:
            out = self.run(["ibv_devinfo", "-v"])
            self._gids = {int(i): gid for i, gid in
                          re.findall(r"GID\[ *(\d+)\]:\s*([0-9a-f:.]+)", out)}
        return self._gids

    def gid_index(self, family):
        """The first GID that is an IPv4 (4) or a routable IPv6 (6) address."""
        for i, gid in sorted(self.gids().items()):
            v4 = gid.startswith("::ffff:")
            if (family == 4) == v4 and not gid.startswith("fe80"):
                return i
        raise Failed(f"no IPv{family} GID in {self.gids()}")


def sent(side, devices, options, env=None):
    """How many bytes each of these devices has sent, by the counter of its port, which counts words."""
    out = side.run(["cat", *(f"/sys/class/infiniband/{d}/ports/1/counters/port_xmit_data" for d in devices)], options, env=env)
    return [4 * int(n) for n in out.split()]


class Pair:
    """A server and a client, which is the first to end."""

    def __init__(self, server, client):
        self.server, self.client = server, client

    @staticmethod
    def wait(one, other, limit, grace):
        """For one end; only for a while when the other has failed."""
        left = Limit(limit)
        while one.running() and not left.over():
            if grace and not other.running() and other.popen.returncode:
                left, grace = Limit(min(left.left(), grace)), 0
            time.sleep(0.005)

    def end(self, limit=LIMIT, status=(0, 0), stays=False):
        """Waits until both have ended with these exit statuses; None: any of its
        own choice, or none. Of a server that stays the end is not waited for."""
        try:
            # One end that failed leaves the other waiting.
            self.wait(self.client, self.server, limit, 3)
            if not stays:
                self.wait(self.server, self.client, 10, 1)
            late = [p for p in (self.client, self.server) if p.running()]
            got = tuple(None if p in late else p.popen.returncode for p in (self.server, self.client))
        finally:
            self.client.kill()
            self.server.kill()
        if any(g is not None and not is_status(g, w) for g, w in zip(got, status)):
            raise Failed(f"exit status {got}, expected {status}\n{self.describe()}")
        if self.client in late:
            raise TimedOut(f"no end within {limit:.0f} s\n{self.describe()}")
        if late and status[0] is not None:
            raise TimedOut(f"no end of the server within 10 s\n{self.describe()}")
        return self

    def describe(self):
        return f"--- server\n{self.server.describe()}--- client\n{self.client.describe()}"


class Placement:
    def __init__(self, name, server, client, host, host6, options=()):
        self.name = name
        self.server, self.client = server, client
        self.host, self.host6 = host, host6  # where the client finds the server
        self.options = list(options)

    def pair(self, server_cmd, client_cmd, port, options=(), env=None, **kw):
        """Runs a server and a client to their ends, see Pair.end(). The client
        starts when the server listens on port."""
        opts = [*self.options, *options]
        server = Proc(self.server, server_cmd, opts, env)
        try:
            server.wait_listening(port)
            client = Proc(self.client, client_cmd, opts, env)
        except BaseException:
            server.kill()
            raise
        return Pair(server, client).end(**kw)

    def tool(self, *cmd, host=None, server_args=(), client_args=(), port_opt="-p", **kw):
        """A program that is server without and client with a host."""
        port = free_port()
        cmd = [*map(str, cmd), port_opt, str(port)]
        return self.pair([*cmd, *map(str, server_args)],
                         [*cmd, *map(str, client_args), host or self.host], port, **kw)

    def gid_args(self, option, family):
        return {"server_args": [option, self.server.gid_index(family)],
                "client_args": [option, self.client.gid_index(family)]}

    def check(self, *args, **kw):
        """verbs_check with the same arguments on both ends."""
        return self.tool(client("verbs_check"), *args, **kw)


@contextlib.contextmanager
def running(home, cmd, options=(), env=None):
    """A server and its client on one host, until the end of the block."""
    side, port = Side(home), free_port()
    cmd, client = [*cmd, "-p", port], None
    server = Proc(side, cmd, options, env)
    try:
        server.wait_listening(port)
        client = Proc(side, [*cmd, "127.0.0.1"], options, env)
        yield server, client
    finally:
        server.kill()
        if client:
            client.kill()


def ip(prefix, args):
    """ip(8) behind words that enter a network."""
    p = subprocess.run([*prefix, "ip", *args.split()], stderr=subprocess.PIPE, text=True, timeout=LIMIT)
    if p.returncode:
        raise Failed(f"ip {args}: {p.stderr.strip()}")


class Network:
    """Two network namespaces joined by a veth pair. They have no names and end
    with their holders."""

    def __init__(self, mtu):
        root = os.geteuid() == 0
        self.holders = []
        try:
            a = self._hold([] if root else ["unshare", "-U", "-r"])
            b = self._hold([] if root else netns.enter(a))
            self.a, self.b = (netns.enter(pid, "-n") for pid in (a, b))
            ip(self.a, f"link add hca0 mtu {mtu} type veth peer name hca0 mtu {mtu} netns {b}")
            for ns, n in ((self.a, 1), (self.b, 2)):
                ip(ns, "link set lo up")
                # An address that is tentative for a second is no GID yet.
                subprocess.run([*ns, "sh", "-c",
                                "echo 0 >/proc/sys/net/ipv6/conf/hca0/accept_dad"],
                               check=False, stderr=subprocess.DEVNULL)
                ip(ns, f"addr add 10.91.0.{n}/24 dev hca0")
                ip(ns, f"addr add fd91::{n}/64 dev hca0 nodad")
                ip(ns, "link set hca0 up")
        except BaseException:
            self.close()
            raise

    def _hold(self, prefix):
        self.holders.append(netns.hold(*prefix, "unshare", "-n"))
        return self.holders[-1].pid

    def close(self):
        for p in self.holders:
            netns.release(p)


def ordinary_user(uid):
    """Words that run a command as a user without any capability."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
            "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]


ALONE = {}  # what does not start without softhca, and why


def need_alone(side, cmd, port, env=None):
    """Skips where a server over TCP does not start, which has nothing to do with
    softhca. A program is tried once."""
    import pytest
    if cmd[0] not in ALONE:
        p = Proc(side, cmd, env=env, alone=True)
        try:
            p.wait_listening(port)
            ALONE[cmd[0]] = None
        except TimedOut:
            raise  # which says nothing about the program
        except Failed as e:
            ALONE[cmd[0]] = p.output().strip().partition("\n")[0] or str(e).partition("\n")[0]
        finally:
            p.kill()
    if why := ALONE[cmd[0]]:
        pytest.skip(f"{cmd[0]} fails without softhca, too: {why}")


def need(*programs):
    """What is missing of these."""
    return [p for p in programs if not shutil.which(p)]


# Two processes of this host by shared memory, by that without the kernel's
# copies, by UDP, by UDP's port 4791; and two hosts.
PLACES = ["local", "copy", "udp", "wire", "netns"]
# Of what goes by UDP within the host in any case (XRC, multicast).
UDP_PLACES = ["local", "wire", "netns"]
# By iWARP: one host, two, and two with segments of 1448 bytes.
IWARP_PLACES = ["iwarp", "iwarp_netns", "iwarp_netns1500"]
# InfiniBand's device: the same ways on one host, and two hosts.
IB_PLACES = ["ib", "ib_copy", "ib_wire", "ib_netns"]
OPTIONS = {"ib": ["--infiniband"], "ib_netns": ["--infiniband"], "ib_copy": ["--infiniband", "--same-host=copy"],
           "ib_wire": ["--infiniband", "--wire"],
           "copy": ["--same-host=copy"], "udp": ["--same-host=udp"], "wire": ["--wire"],
           **{name: ["--iwarp"] for name in IWARP_PLACES}}


def combinations(names, values, default):
    """A parametrization by tuples of values; the default suite runs those for
    which default says so, the rest is marked full."""
    import pytest

    def word(value):
        return "_".join(map(word, value)).replace(" ", "") if isinstance(value, (list, tuple)) else str(value)

    return pytest.mark.parametrize(", ".join(names), [
        pytest.param(*some, id="-".join(map(word, some)), marks=() if default(*some) else pytest.mark.full)
        for some in values], indirect=["place"] if "place" in names else [])


def choose(default, **factors):
    """All combinations of some factors' values in all placements."""
    factors = {"place": PLACES, **factors}
    return combinations(list(factors), list(itertools.product(*factors.values())), default)


def in_place(name, **factors):
    """By default in one placement only."""
    return choose(lambda place, *_: place == name, **factors)


def cover(strength, **factors):
    """All combinations of some factors' values, of which few are needed by
    default: every value is in one of them (strength 1), or every pair of values
    of two factors (strength 2)."""
    values = list(factors.values())
    every = list(itertools.product(*map(range, map(len, values))))

    def tuples(indices):
        return set(itertools.combinations(enumerate(indices), strength))

    missing = set().union(*map(tuples, every))
    chosen = []
    while missing:
        # The best; of several, what is next in turn in every factor.
        best = max(every, key=lambda c: (
            len(tuples(c) & missing), sum(i == len(chosen) % len(v) for i, v in zip(c, values))))
        chosen.append(best)
        missing -= tuples(best)
    chosen = [tuple(v[i] for i, v in zip(c, values)) for c in chosen]
    return combinations(list(factors), list(itertools.product(*values)), lambda *some: some in chosen)


def over_places(strength=1, places=PLACES, **factors):
    """The same, the placements being one of the factors."""
    return cover(strength, place=places, **factors)
