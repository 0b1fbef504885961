"""What the tests of moving share: programs that are moved, hosts, and reports."""
import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TOP, "tests"))
import netns  # noqa: E402
from load import Limit  # noqa: E402
from tally import Failed, Skipped, each, say, skip_all, total  # noqa: E402, F401

BUILD = os.environ.get("SOFTHCA_BUILD", os.path.join(TOP, "build"))
SOFTHCA = os.path.join(BUILD, "bin", "softhca")
ROUNDS = os.path.join(BUILD, "tests", "migrate", "rounds")
TAKER = os.path.join(BUILD, "tests", "migrate", "taker")
PR_SET_CHILD_SUBREAPER = 36
SLOW = int(os.environ.get("SOFTHCA_TEST_SLOW", "1"))    # in an emulated machine
LIMIT = 60 * SLOW   # s, for a program; see load.py
ADDRESS = "10.92.0.1"


def until(true, what, limit=LIMIT):
    left = Limit(limit)
    while not (got := true()):
        if left.over():
            raise Failed(f"not within {limit} s: {what}")
        time.sleep(0.005)
    return got


class Program:
    """One under softhca run, in a session of its own. Its output goes to a file that has a
    name, since it may be restored; its exit status is not ours to see then."""

    def __init__(self, home, name, prefix, cmd, options=(), env=None):
        self.name, self.path = name, os.path.join(home, name)
        self.away = False   # in another PID namespace
        self.cmd = [*prefix, SOFTHCA, "run", *options, "--", *map(str, cmd)]
        with open(self.path, "wb") as out:
            self.popen = subprocess.Popen(self.cmd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                          start_new_session=True, env=dict(os.environ, **(env or {})))
        self.pid = self.popen.pid
        self.watch(self.popen.wait)

    def watch(self, wait):
        # Its number is free only when somebody has taken notice of its end.
        threading.Thread(target=wait, daemon=True).start()

    def restored(self):
        """It is a child of whoever takes in orphans now."""
        def wait():
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
        self.watch(wait)

    def migrate(self, where=".", *options, env=None):
        said = softhca("migrate", *options, self.pid, where, env=env)
        self.restored()
        return said

    def output(self):
        with open(self.path, errors="replace") as f:
            return f.read()

    def state(self):
        try:
            with open(f"/proc/{self.pid}/stat") as f:
                return f.read().rpartition(")")[2].split()[0]
        except OSError:
            return ""

    def listens(self, port):
        """Until a socket of TCP listens there, where it is."""
        def look():
            with open(f"/proc/{self.pid}/net/tcp") as four, open(f"/proc/{self.pid}/net/tcp6") as six:
                return f":{port:04X} " in four.read() + six.read()
        until(look, f"{self.name} listens", LIMIT)

    def running(self):
        return self.state() not in ("", "Z")

    def saw(self, text, limit=LIMIT):
        """Until its output has that."""
        def look():
            if m := re.search(text, self.output(), re.M):
                return m
            if not self.away and not self.running() and not re.search(text, self.output(), re.M):
                raise Failed(f"{self.name} ended before it printed {text!r}\n{self.describe()}")
            return None
        try:
            return until(look, f"{self.name} prints {text!r}", limit)
        except Failed as e:
            raise e if "ended before" in str(e) else Failed(f"{e}\n{self.describe()}") from e

    def rounds(self):
        return int((re.findall(r"^round (\d+)$", self.output(), re.M) or ["0"])[-1])

    def advances(self, limit=LIMIT):
        """Until it has made some more rounds."""
        was = self.rounds()
        until(lambda: self.rounds() > was or not (self.away or self.running()) or "ok " in self.output(),
              f"{self.name} makes rounds\n{self.describe()}", limit)

    def describe(self):
        return f"--- {self.name}: $ {' '.join(self.cmd)}\n{self.output()[-3000:]}"

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        left = Limit(10)
        while self.state() and not left.over():
            time.sleep(0.005)


class Hosts:
    """Three network namespaces on a bridge in a fourth: here, peer and there. The first and
    the last have the same MAC address, and one at a time the address."""

    address = ADDRESS

    def __init__(self):
        self.holders = [netns.hold("unshare", "-n") for _ in range(4)]
        self.hub, self.here, self.peer, self.there = (netns.enter(p.pid, "-n") for p in self.holders)
        self.ip(self.hub, "link add hub type bridge")
        self.ip(self.hub, "link set hub up")
        for i, name in enumerate(("here", "peer", "there")):
            self.cable(self.hub, "hub", name, self.holders[i + 1].pid, "02:00:00:00:00:11" if name != "peer" else None)
        self.ip(self.peer, "addr add 10.92.0.2/24 dev hca0")
        self.ip(self.peer, "link set hca0 up")
        self.ip(self.here, f"addr add {ADDRESS}/24 dev hca0")
        self.ip(self.here, "link set hca0 up")

    def cable(self, hub, bridge, name, pid, mac=None):
        """From a bridge to hca0 where that process is."""
        ns = netns.enter(pid, "-n")
        self.ip(hub, f"link add {name} type veth peer name hca0 netns {pid}")
        self.ip(hub, f"link set {name} master {bridge}")
        self.ip(hub, f"link set {name} up")
        self.ip(ns, "link set lo up")
        if mac:
            self.ip(ns, f"link set hca0 address {mac}")

    @staticmethod
    def ip(prefix, args):
        p = subprocess.run([*prefix, "ip", *args.split()], capture_output=True, text=True, timeout=LIMIT)
        if p.returncode:
            raise Failed(f"ip {args}: {p.stderr.strip()}")

    def netns(self, prefix):
        return f"/proc/{prefix[2]}/ns/net"

    def hook(self, home, left="here", to="there"):
        """What moves the address, for softhca migrate --hook."""
        path = os.path.join(home, f"hook-{to}")
        enter = {w: " ".join(getattr(self, w)) for w in (left, to)}
        with open(path, "w") as f:
            f.write("#!/bin/sh -e\n"
                    f"case $1 in\nleft) from='{enter[left]}' to='{enter[to]}' ;;\n"
                    f"back) from='{enter[to]}' to='{enter[left]}' ;;\nesac\n"
                    "$from ip link set hca0 down\n"
                    f"$from ip addr del {self.address}/24 dev hca0\n"
                    f"$to ip addr add {self.address}/24 dev hca0\n"
                    "$to ip link set hca0 up\n")
        os.chmod(path, 0o755)
        return path

    def move_address(self, home):
        subprocess.run([self.hook(home), "left"], check=True, timeout=LIMIT)

    def close(self):
        for p in self.holders:
            netns.release(p)


class Taker:
    """A process that has all queue pair numbers of a host but a few, and takes those that are free when it is told to."""

    def __init__(self, home, name, prefix):
        self.pipes = [os.path.join(home, f"taker-{name}-{way}") for way in ("in", "out")]
        for path in self.pipes:
            os.mkfifo(path)
        self.fds = [os.open(path, os.O_RDWR) for path in self.pipes]
        self.popen = subprocess.Popen([*prefix, TAKER], stdin=self.fds[0], stdout=self.fds[1])
        os.read(self.fds[1], 1)

    def takes(self):
        """For a shell."""
        return f"printf t >{self.pipes[0]}\nhead -c 1 <{self.pipes[1]} >/dev/null\n"

    def close(self):
        self.popen.kill()
        self.popen.wait()
        for fd in self.fds:
            os.close(fd)


def softhca(*words, prefix=(), env=None, rc=0, limit=LIMIT):
    """A command of the tool; its output, both kinds."""
    p = subprocess.run([*prefix, SOFTHCA, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, errors="replace", timeout=limit * 3, env=dict(os.environ, **(env or {})))
    if p.returncode != rc:
        raise Failed(f"softhca {' '.join(map(str, words))}: exit status {p.returncode}\n{p.stdout}")
    return p.stdout


def moved(took):
    """The result of a case; blackouts of a second and more, on a busy machine, have no figure."""
    ms = [t for t in took if t]
    return f"{len(took)} moves, every byte right" + (f"; away for {min(ms):.0f} to {max(ms):.0f} ms" if ms else "")


def timeline(said, *names):
    """A command has said how long these took; the blackout in ms."""
    for name in names:
        if not re.search(rf"^{name} +[0-9.]+ m?s", said, re.M):
            raise Failed(f"no {name} in\n{said}")
    m = re.search(r"^blackout +([0-9.]+) (m?s)", said, re.M)
    return float(m[1]) * (1 if m[2] == "ms" else 1000) if m else None


def find_criu():
    """One that works here, for all that we start."""
    if os.geteuid():
        raise Skipped("CRIU and network namespaces need root")
    p = subprocess.run([os.path.join(HERE, "criu"), "build"], stdout=subprocess.PIPE, text=True, timeout=1200)
    if p.returncode:
        raise Skipped("there is no CRIU that works here")
    os.environ["SOFTHCA_CRIU"] = p.stdout.strip()
    return p.stdout.strip()


def adopt():
    """Whoever is restored is our child when CRIU has ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def program(name, only):
    """The same by a program beside this file, which says it itself."""
    n = {}
    p = subprocess.Popen([os.path.join(HERE, name), "--only", only], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         text=True, errors="replace")
    for line in p.stdout:
        if m := re.fullmatch(r"(\d+) passed, (\d+) failed, (\d+) skipped( in .*)?\n", line):
            n = dict(zip(("passed", "failed", "skipped"), map(int, m.groups()[:3])))
        else:
            say(line.rstrip("\n"))
    if p.wait() < 0 or not n:
        print(f"not ok {name}: it has ended with exit status {p.returncode}")
        n = {"passed": n.get("passed", 0), "failed": n.get("failed", 0) + 1, "skipped": n.get("skipped", 0)}
    return n
