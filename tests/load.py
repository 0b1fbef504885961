"""How busy others keep this machine, and time limits that take it into account.

Load measures, over a stretch of time, the share of the processors that went to
others than this process and its descendants: the kernel's account of what all
processors did, less the processor time of our own. What runs niced counts as
idle, since it gives way, and what a hypervisor took counts as busy. A process
whose parent was killed stays a descendant only after adopt_orphans(): otherwise
what a hang of ours has used would count as others'.

Limit is a time limit for a program of a test, in the seconds that it could have
had: while others have three quarters of the processors, a second counts for a
quarter of one. So a hang ends soon on a quiet machine, and a good run is not
cut off on a busy one.
"""
import contextlib
import ctypes
import glob
import os
import signal
import time

BUSY = 0.25     # others' share from which on a machine counts as busy
SLOWEST = 6     # times that a limit stretches at most
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans():
    """Descendants whose parents end become children of this process, which
    reaps them. Only for the main thread."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, reap_orphans)


def reap_orphans(*_):
    """Our own children lead sessions or belong to ours, and others wait for them."""
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path) as f:
            for pid in map(int, f.read().split()):
                with contextlib.suppress(OSError):
                    if os.getsid(pid) not in (pid, os.getsid(0)):
                        os.waitpid(pid, os.WNOHANG)


def processors():
    """(ticks of all processors, those of them that were busy)"""
    try:
        with open("/proc/stat") as f:
            ticks = [int(n) for n in f.readline().split()[1:9]]
    except (OSError, ValueError):
        return 0, 0
    user, _nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return sum(ticks), user + system + irq + softirq + steal


def descendants():
    """{pid: ticks of it and of the children it waited for} of this process's
    descendants, and of itself; of a niced one, those that processors() counts"""
    parents, used = {}, {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                fields = f.read().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(pid)] = int(fields[1])
        user, system, their_user, their_system = map(int, fields[11:15])
        used[int(pid)] = system + their_system + (0 if int(fields[16]) > 0 else user + their_user)
    ours = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {p: used.get(p, 0) for p in ours}


class Load:
    def __init__(self):
        self.restart()

    def restart(self):
        self.before = self.now()

    @staticmethod
    def now():
        total, busy = processors()
        return total, busy - sum(descendants().values())

    def others(self):
        """Their share of the processors since the start, from 0 to 1."""
        total, others = (a - b for a, b in zip(self.now(), self.before))
        return min(max(others / total, 0), 1) if total > 0 else 0


class Limit:
    def __init__(self, seconds):
        self.seconds = seconds
        self.rest = seconds
        self.load = Load()
        self.since = time.monotonic()

    def left(self):
        """What is left of it, in seconds of a quiet machine."""
        passed = time.monotonic() - self.since
        if passed < min(1, self.rest):
            return self.rest - passed   # too short to be measured
        self.rest -= passed * max(1 - self.load.others(), 1 / SLOWEST)
        self.since += passed
        self.load.restart()
        return self.rest

    def over(self):
        return self.left() <= 0
