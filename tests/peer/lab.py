#!/usr/bin/python3
"""A network with kernel guests in it, made of namespaces that end with us.

    host side (softhca)   br0 10.77.0.1, fd77::1
                           |-- tap1 -- guest 1 (rxe)  10.77.0.2, fd77::2
                           |-- tap2 -- guest 2 (rxe)  10.77.0.3, fd77::3
                           |-- tap3 -- guest 3 (a newer rxe)
                           `-- tap4 -- guest 4 (siw)  10.77.0.5, fd77::5

isolate() puts the calling program into network, mount and PID namespaces of
its own (and a user namespace, unless it is root): no privileges are needed,
and whatever happens, no process, interface or mount outlives it.

A Place is where programs run: Host, here, under "softhca run", or Guest. Its
start() gives a Job. Every wait has a bound.

As a program: says why that cannot be had here, and fails, or says nothing.
"""
import contextlib
import ctypes
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
AGENT_PORT = 18599
ISOLATED = "SOFTHCA_PEER_ISOLATED"


class LabError(Exception):
    """The lab itself does not work, whatever it should test."""


UNSHARE = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def unshare():
    return UNSHARE + (["--user", "--map-root-user"] if os.getuid() != 0 else [])


def may_trace():
    """Whether a process may trace another, as user-mode Linux has to."""
    libc = ctypes.CDLL(None)
    pid = os.fork()
    if pid == 0:
        os._exit(libc.ptrace(0, 0, None, None) != 0)    # PTRACE_TRACEME
    return os.waitpid(pid, 0)[1] == 0


def unusable():
    """Why guests cannot run here, in a sentence, or None."""
    if os.uname().machine != "x86_64":
        return f"the guest is a program for x86_64, and this is {os.uname().machine}"
    missing = [t for t in ("unshare", "ip", "tc", "rdma") if not shutil.which(t, path=os.environ.get(
        "PATH", os.defpath) + ":/usr/sbin:/sbin")]
    if missing:
        return f"missing: {' '.join(missing)} (make deps)"
    if not may_trace():
        return "ptrace(2) is not permitted here, and user-mode Linux needs it"
    probe = subprocess.run(unshare() + ["true"], stderr=subprocess.PIPE, text=True)
    if probe.returncode:
        return "no namespaces here: " + probe.stderr.strip()
    probe = subprocess.run(unshare() + ["ip", "tuntap", "add", "tap0", "mode", "tap"], stderr=subprocess.PIPE, text=True)
    if probe.returncode:
        return "no tap interfaces here: " + probe.stderr.strip()
    return None


def isolate():
    """Continues this program inside namespaces; returns a scratch folder.

    The outer half stays only to return the inner one's status, or to end it:
    unshare(1) itself would survive a SIGTERM.
    """
    if ISOLATED in os.environ:
        return os.environ.pop(ISOLATED)
    if why := unusable():
        raise LabError(why)
    libc = ctypes.CDLL(None)
    folder = tempfile.mkdtemp(prefix="softhca-peer-")
    os.chmod(folder, 0o755)
    inner = subprocess.Popen(
        unshare() + [sys.executable] + sys.argv, env={**os.environ, ISOLATED: folder},
        preexec_fn=lambda: libc.prctl(1, signal.SIGKILL))   # PR_SET_PDEATHSIG
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, lambda *_: inner.kill())
    status = inner.wait()
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(abs(status))


def guest_kernel(version, build, *part):
    """The path of a guest's kernel, or None if it is not there."""
    p = subprocess.run([os.path.join(HERE, "guest-kernel"),
                        "build" if build else "path", version, *part],
                       stdout=subprocess.PIPE, text=True)
    return p.stdout.strip() if p.returncode == 0 else None


def sh(line):
    p = subprocess.run(line.split(), stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True)
    if p.returncode:
        raise LabError(f"{line}: {p.stdout.strip()}")
    return p.stdout


def whole_checksums(nic):
    """Makes packets leave nic with complete checksums, for captures."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for command in (0x17, 0x1f, 0x24):      # STXCSUM, STSO, SGSO
            buf = bytearray(struct.pack("II", command, 0))
            where = ctypes.addressof((ctypes.c_char * len(buf)).from_buffer(buf))
            req = struct.pack("16sP16x", nic.encode(), where)
            try:
                fcntl.ioctl(s, 0x8946, req)     # SIOCETHTOOL
            except OSError:
                pass                            # not offered: then never done


def netem_of_roce(nic, what):
    """Commands that disturb the RoCE packets that leave by an interface, and nothing else."""
    return [f"tc qdisc replace dev {nic} root handle 1: prio priomap 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0",
            f"tc qdisc replace dev {nic} parent 1:3 netem limit 20000 {what}",
            f"tc filter add dev {nic} parent 1: protocol ip prio 1 u32 match ip protocol 17 0xff "
            "match ip dport 4791 0xffff flowid 1:3",
            f"tc filter add dev {nic} parent 1: protocol ipv6 prio 2 u32 match ip6 protocol 17 0xff "
            "match ip6 dport 4791 0xffff flowid 1:3"]


def netem_of_all(nic, what):
    """The same of all packets: those of iWARP are TCP's, as the tests' own are."""
    return [f"tc qdisc replace dev {nic} root netem limit 20000 {what}"]


def netem_of_arrivals(nic, ifb, what, leaving=netem_of_roce):
    """The same for those that arrive, by way of an interface that is made for it."""
    return [f"ip link add {ifb} type ifb", f"ip link set {ifb} up", f"tc qdisc add dev {nic} ingress",
            f"tc filter add dev {nic} parent ffff: matchall action mirred egress redirect dev {ifb}",
            *leaving(ifb, what)]


class Job:
    """A running command: its output so far, and its status when it has ended."""

    def __init__(self):
        self.out = ""
        self.said = []      # (when, how much of the output there was then)
        self.rc = None
        self.changed = threading.Condition()

    def _said(self, text):
        with self.changed:
            self.out += text
            self.said.append((time.time(), len(self.out)))
            self.changed.notify_all()

    def _ended(self, rc):
        with self.changed:
            self.rc = rc
            self.changed.notify_all()

    def when(self, position):
        """When that place of the output arrived."""
        return next((when for when, length in self.said if length > position), time.time())

    def wait(self, timeout):
        """The exit status; None if it has not ended in time (it is killed)."""
        with self.changed:
            self.changed.wait_for(lambda: self.rc is not None, timeout)
            if self.rc is not None:
                return self.rc
        self.kill()
        return None

    def ended(self, timeout):
        """Whether it ends within that time."""
        with self.changed:
            return self.changed.wait_for(lambda: self.rc is not None, timeout)

    def wait_for(self, text, timeout):
        """Whether the command said this before it ended and in time."""
        with self.changed:
            self.changed.wait_for(
                lambda: text in self.out or self.rc is not None, timeout)
            return text in self.out


class HostJob(Job):
    def __init__(self, argv, env):
        super().__init__()
        self.proc = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        while data := self.proc.stdout.read1(65536):
            self._said(data.decode(errors="replace"))
        self._ended(self.proc.wait())

    def terminate(self, alone=False):
        """Asks it to end; alone: and not its children."""
        try:
            (os.kill if alone else os.killpg)(self.proc.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass

    def kill(self):
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        with self.changed:
            self.changed.wait_for(lambda: self.rc is not None, 5)


class GuestJob(Job):
    def __init__(self, addr, argv, env):
        super().__init__()
        self.conn = socket.create_connection((addr, AGENT_PORT), timeout=10)
        self.conn.settimeout(None)
        self.conn.sendall(json.dumps({"argv": argv, "env": env}).encode() +
                          b"\n")
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        rc = -1         # the guest is gone
        try:
            for line in self.conn.makefile("rb"):
                frame = json.loads(line)
                self._said(frame.get("out", ""))
                rc = frame.get("rc", rc)
        except (OSError, ValueError):
            pass
        self._ended(rc)

    def terminate(self, alone=False):
        """The agent ends the children with it."""
        try:
            self.conn.sendall(b"t")
        except OSError:
            pass

    def kill(self):
        try:
            self.conn.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        with self.changed:
            self.changed.wait_for(lambda: self.rc is not None, 5)


def until(true, timeout):
    """Waits until it is true, or for the timeout; says whether it is."""
    end = time.monotonic() + timeout
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def inodes(table, words):
    """Of the sockets in a table of /proc/net whose lines have these words."""
    return {line.split()[9] for line in table.splitlines() if words in line}


class Place:
    """ip4, ip6: addresses; kind: what implements RDMA there."""

    def ip(self, version):
        return self.ip4 if version == 4 else self.ip6

    def run(self, argv, timeout=30, env=None):
        job = self.start(argv, env)
        return job.wait(timeout), job.out

    def nudge(self):
        """Sends it a packet, if it is a guest."""

    def listening(self):
        """The TCP sockets that listen here, by inode."""
        return inodes(self._tcp_tables(), " 0A ")

    def starts_to_listen(self, job, state, timeout):
        """Runs job(), a server, and waits until somebody new listens; the job, and
        whether one does or it has ended. state: one of listening, cm_listening
        (through the connection manager), and groups (receives what is sent to one).

        What a server before it has left may go meanwhile, so it is not enough
        that something changes.
        """
        before = state()
        started = job()
        return started, until(lambda: state() - before or started.rc is not None, timeout)


class Host(Place):
    kind = "softhca"
    options = ()

    def __init__(self, lab, softhca):
        self.ip4, self.ip6 = lab.addresses(0)
        self.softhca = softhca
        # Reports each failed completion, and at the end what was dropped and why.
        # The others are for builds with sanitizers: softhca's libraries are preloaded.
        self.env = {"SOFTHCA_EXPLAIN": "1",
                    "ASAN_OPTIONS": "verify_asan_link_order=0:detect_leaks=0:abort_on_error=1",
                    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1"}

    def start(self, argv, env=None):
        return HostJob([self.softhca, "run", *self.options, "--"] + argv,
                       {**os.environ, **self.env, **(env or {})})

    def _tcp_tables(self):
        return self._tables("tcp", "tcp6")

    def cm_listening(self):
        """The sockets that receive RoCE packets: a process of softhca has them
        for as long as it listens."""
        return inodes(self._tables("udp", "udp6"), ":12B7 ")

    def groups(self):
        """Those of them that are bound to a group: a QP is attached."""
        return inodes(self._tables("udp"), "EF:12B7 ")

    @staticmethod
    def _tables(*names):
        text = ""
        for name in names:
            with open("/proc/net/" + name) as f:
                text += f.read()
        return text


class IwarpHost(Host):
    """Its programs see softiw0."""
    options = ("--iwarp",)

    def cm_listening(self):
        return self.listening()


class CrcHost(IwarpHost):
    options = ("--iwarp", "--mpa-crc")


class Guest(Place):
    def __init__(self, lab, number, kernel, mem=384, cpu=None, kind="rxe"):
        """kind: of its device. cpu: the host's processor that all of it stays on. Each system call in
        the guest switches between processes of the host: on one processor that is
        several times faster than between two."""
        self.kind = kind
        self.ip4, self.ip6 = lab.addresses(number)
        self.tap = f"tap{number}"
        self.console = os.path.join(lab.dir, f"console{number}")
        if not os.path.exists(f"/sys/class/net/{self.tap}"):
            sh(f"ip tuntap add {self.tap} mode tap")
        sh(f"ip link set {self.tap} mtu {lab.mtu} txqueuelen 10000 master br0 up")
        argv = [kernel, f"mem={mem}M", "root=/dev/root",
                "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
                f"init={lab.dir}/guest/agent.py", "con=null", "con0=null,fd:1",
                f"vec0:transport=tap,ifname={self.tap},depth=64,"
                f"mtu={lab.mtu},mac=52:54:00:77:00:{number:02x}",
                f"PEER_MTU={lab.mtu}", f"PEER_RDMA={kind}",
                f"PEER_IP4={self.ip4}", f"PEER_IP6={self.ip6}"]
        if cpu is not None:
            argv = ["taskset", "-c", str(cpu)] + argv
        with open(self.console, "wb") as out:
            self.proc = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True)

    def wait_ready(self, timeout=60):
        until = time.monotonic() + timeout
        while time.monotonic() < until and self.proc.poll() is None:
            try:
                socket.create_connection((self.ip4, AGENT_PORT), 1).close()
                whole_checksums(self.tap)
                return
            except OSError:
                time.sleep(0.05)
        raise LabError("the guest does not come up: " + self.last_words())

    def start(self, argv, env=None):
        return GuestJob(self.ip4, argv, env or {})

    def _tcp_tables(self):
        return self.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"])[1]

    def cm_listening(self):
        """The processes that listen."""
        out = self.run(["rdma", "resource", "show", "cm_id"])[1]
        return set(re.findall(r"state LISTEN .*\bpid (\d+)", out))

    def groups(self):
        """The Ethernet groups that RoCE's are mapped to: rxe joins one when a QP
        is attached, after the CM has joined the group by IGMP."""
        return set(re.findall(r"\b3333[0-9a-f]{8}$", self.run(["cat", "/proc/net/dev_mcast"])[1], re.M))

    def nudge(self):
        with contextlib.suppress(OSError):
            socket.create_connection((self.ip4, AGENT_PORT), 1).close()

    def alive(self):
        return self.proc.poll() is None

    def last_words(self):
        with open(self.console, errors="replace") as f:
            return " / ".join(f.read().strip().splitlines()[-4:])

    def netem(self, what=None):
        """Disturbs RoCE packets both ways ("loss 1%"); None: undisturbed.

        Only RoCE packets: the tests' own connections stay as they are. Of a guest
        with siw all of them.
        """
        leaving = netem_of_all if self.kind == "siw" else netem_of_roce
        lines = ["tc qdisc del dev vec0 root", "tc qdisc del dev vec0 ingress"]
        if what:
            lines += netem_of_arrivals("vec0", "ifb0", what, leaving) + leaving("vec0", what)
        script = "\n".join(x + (" 2>/dev/null" if " del " in x or " add ifb0"
                                in x else " || exit 1") for x in lines)
        rc, out = self.run(["sh", "-c", script + "\nexit 0"])
        if rc:
            raise LabError(f"netem {what}: {out}")

    def stop(self):
        try:
            os.killpg(self.proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.proc.wait(10)


class Lab:
    # Addresses that answer, and that no RDMA traffic is expected from.
    OTHER4, OTHER6 = "10.77.0.99", "fd77::99"

    def __init__(self, folder, mtu=4300):
        self.mtu = mtu
        self.dir = folder
        shutil.copytree(os.path.join(HERE, "guest"), self.dir + "/guest")
        ip4, ip6 = self.addresses(0)
        for line in ("ip link set lo up",
                     "ip link add br0 type bridge stp_state 0 "
                     "mcast_snooping 0 forward_delay 0",
                     "sysctl -qw net.ipv6.conf.br0.accept_dad=0",
                     f"ip link set br0 mtu {mtu}",
                     f"ip addr add {ip4}/24 dev br0",
                     f"ip addr add {ip6}/64 dev br0 nodad",
                     f"ip addr add {self.OTHER4}/24 dev br0",
                     f"ip addr add {self.OTHER6}/64 dev br0 nodad "
                     "preferred_lft 0",     # never a source by itself
                     "ip link set br0 up"):
            sh(line)

    @staticmethod
    def addresses(number):
        return f"10.77.0.{number + 1}", f"fd77::{number + 1:x}"


if __name__ == "__main__":
    sys.exit(unusable())
