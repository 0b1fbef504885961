"""Runs unmodified RDMA programs over softhca, as pairs of processes.

A Side is where one process runs: a prefix of words before its command, and the
addresses found there. A Placement is a server's and a client's Side and the
options of "softhca run" for both. Every process has a time limit, lives in a
process group of its own, and is killed with it; what it printed is shown when
something fails.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("SOFTHCA_BUILD", os.path.join(ROOT, "build"))
SOFTHCA = os.path.join(BUILD, "bin", "softhca")
CLIENTS = os.path.join(BUILD, "tests", "clients")

# A crash of a client must not take minutes to be noticed, and on a slow or
# busy machine a good run must not be cut off.
LIMIT = float(os.environ.get("SOFTHCA_TEST_LIMIT", "40"))


def client(name):
    """A program of tests/clients/src."""
    return os.path.join(CLIENTS, name)


def free_port():
    with socket.socket(socket.AF_INET6) as s:
        s.bind(("::", 0))
        return s.getsockname()[1]


class Failed(AssertionError):
    pass


class Proc:
    """A program under "softhca run" on a side."""

    def __init__(self, side, cmd, options=(), env=None, tool=None):
        self.cmd = [str(c) for c in cmd]
        self.argv = [*side.prefix, tool or side.tool, "run", *map(str, options), "--", *self.cmd]
        self.out = tempfile.TemporaryFile("w+b")
        self.start = time.monotonic()
        self.popen = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=self.out,
            stderr=subprocess.STDOUT, start_new_session=True,
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
        try:
            self.popen.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"no end within {limit:.0f} s\n{self.describe()}") from None
        return self.popen.returncode

    def kill(self, sig=signal.SIGKILL):
        try:
            os.killpg(self.pid, sig)
        except ProcessLookupError:
            pass
        self.popen.wait(10)

    def describe(self):
        text = self.output()
        if len(text) > 6000:
            text = text[:2000] + "\n[...]\n" + text[-4000:]
        return f"$ {' '.join(self.argv)}\n{text}[exit status {self.popen.returncode}]\n"

    def wait_for(self, text, limit=LIMIT):
        """Until the output holds text; the match."""
        end = time.monotonic() + limit
        while True:
            running = self.running()  # what it printed last counts
            if m := re.search(text, self.output(), re.M):
                return m
            if not running or time.monotonic() > end:
                raise Failed(f"never printed {text!r}\n{self.describe()}")
            time.sleep(0.01)

    def wait_listening(self, port, limit=LIMIT):
        """Until somebody in this process's network listens on a TCP port."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            for family in ("tcp", "tcp6"):
                try:
                    with open(f"/proc/{self.pid}/net/{family}") as f:
                        rows = [line.split() for line in f][1:]
                except OSError:
                    break
                if any(r[1].endswith(f":{port:04X}") and r[3] == "0A" for r in rows):
                    return
            if not self.running():
                break
            time.sleep(0.005)
        raise Failed(f"nobody listens on port {port}\n{self.describe()}")


class Side:
    def __init__(self, prefix=(), tool=SOFTHCA):
        self.prefix = list(prefix)
        self.tool = tool
        self._gids = None

    def run(self, cmd, options=(), limit=LIMIT, status=0, env=None):
        """Runs one program to its end; its output."""
        p = Proc(self, cmd, options, env)
        rc = p.wait(limit)
        if status is not None and rc != status:
            raise Failed(f"exit status {rc}, expected {status}\n{p.describe()}")
        return p.output()

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


class Pair:
    """A server and a client that both ended."""

    def __init__(self, server, client):
        self.server, self.client = server, client

    def describe(self):
        return f"--- server\n{self.server.describe()}--- client\n{self.client.describe()}"


class Placement:
    def __init__(self, name, server, client, host, host6, options=()):
        self.name = name
        self.server, self.client = server, client
        self.host, self.host6 = host, host6  # where the client finds the server
        self.options = list(options)

    def pair(self, server_cmd, client_cmd, port, limit=LIMIT, status=(0, 0),
             options=(), env=None):
        """Runs a server and a client to their ends. The client starts when the
        server listens on port. status None: any."""
        opts = [*self.options, *options]
        server = Proc(self.server, server_cmd, opts, env)
        try:
            server.wait_listening(port)
            client = Proc(self.client, client_cmd, opts, env)
        except BaseException:
            server.kill()
            raise
        pair = Pair(server, client)
        end = time.monotonic() + limit
        try:
            while client.running() and time.monotonic() < end:
                # One end that failed leaves the other waiting.
                if not server.running() and server.popen.returncode:
                    end = min(end, time.monotonic() + 3)
                time.sleep(0.005)
            cut = client.running()
            if cut:
                client.kill()
            end = time.monotonic() + (1 if cut or client.popen.returncode else 10)
            while server.running() and time.monotonic() < end:
                time.sleep(0.005)
            late = server.running()
            if late:
                server.kill()
            got = (server.popen.returncode, client.popen.returncode)
            if cut:
                raise Failed(f"no end in time ({limit:.0f} s)\n{pair.describe()}")
            if late and status[0] is not None:
                raise Failed(f"the server did not end\n{pair.describe()}")
            if any(w is not None and g != w for g, w in zip(got, status)):
                raise Failed(f"exit status {got}, expected {status}\n{pair.describe()}")
            return pair
        finally:
            client.kill()
            server.kill()

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


class NoNamespaces(Exception):
    pass


class Network:
    """Two network namespaces joined by a veth pair. They have no names and end
    with their holders, which end when our end of a pipe closes: whatever
    happens to us, nothing is left behind."""

    def __init__(self, mtu):
        self.root = os.geteuid() == 0
        self.holders = []
        try:
            a = self._hold([] if self.root else ["unshare", "-U", "-r"])
            b = self._hold([] if self.root else
                           ["nsenter", "-t", str(a), "-U", "--preserve-credentials"])
            self.a, self.b = self._prefix(a), self._prefix(b)
            self._ip(self.a, f"link add hca0 mtu {mtu} type veth peer name hca0 mtu {mtu} netns {b}")
            for ns, n in ((self.a, 1), (self.b, 2)):
                self._ip(ns, "link set lo up")
                # An address that is tentative for a second is no GID yet.
                subprocess.run([*ns, "sh", "-c",
                                "echo 0 >/proc/sys/net/ipv6/conf/hca0/accept_dad"],
                               check=False, stderr=subprocess.DEVNULL)
                self._ip(ns, f"addr add 10.91.0.{n}/24 dev hca0")
                self._ip(ns, f"addr add fd91::{n}/64 dev hca0 nodad")
                self._ip(ns, "link set hca0 up")
        except BaseException:
            self.close()
            raise

    def _hold(self, prefix):
        p = subprocess.Popen([*prefix, "unshare", "-n", "sh", "-c", "echo ready; exec cat"],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True)
        self.holders.append(p)
        if p.stdout.readline() != b"ready\n":
            raise NoNamespaces(p.stderr.read().decode().strip())
        return p.pid

    def _prefix(self, pid):
        more = [] if self.root else ["-U", "--preserve-credentials"]
        return ["nsenter", "-t", str(pid), *more, "-n"]

    @staticmethod
    def _ip(ns, args):
        p = subprocess.run([*ns, "ip", *args.split()], stderr=subprocess.PIPE, text=True)
        if p.returncode:
            raise NoNamespaces(f"ip {args}: {p.stderr.strip()}")

    def close(self):
        for p in self.holders:
            p.stdin.close()
            p.wait(10)


def ordinary_user(uid):
    """Words that run a command as a user without any capability."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
            "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]


def need(*programs):
    """What is missing of these."""
    return [p for p in programs if not shutil.which(p)]


PLACES = ["local", "wire", "netns"]


def matrix(values, everywhere=()):
    """(place, value) pairs for @pytest.mark.parametrize("place, ...", ...,
    indirect=["place"]): all values on one host, and in the other placements
    those of everywhere; the rest in the full matrix."""
    import pytest
    return [pytest.param(place, value, marks=() if place == "local" or value in everywhere
                         else pytest.mark.full)
            for place in PLACES for value in values]
