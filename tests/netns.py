"""A network namespace for a whole run of tests, where one can be made.

So no program of this host is on UDP port 4791 beside the tests, and no firewall
of the host applies to them. Only lo is in it. Without root it belongs to a user
namespace in which the user keeps its number and has no privileges.
"""
import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys

NEWNET, NEWUSER = 0x40000000, 0x10000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
LIBC = ctypes.CDLL(None, use_errno=True)
REFUSED = "no network namespace can be made, so programs of this host may disturb the tests"


def call(name, *args):
    if getattr(LIBC, name)(*args):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def unshare():
    uid, gid, own = os.geteuid(), os.getegid(), os.geteuid() != 0
    call("unshare", NEWNET | (NEWUSER if own else 0))
    for name, text in [("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")] if own else []:
        with open(f"/proc/self/{name}", "w") as f:
            f.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


class Network:
    """prefix is the head of commands that are to run there, empty where none can
    be made."""

    def __init__(self):
        self.holder, self.prefix = None, []
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            self.holder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                           start_new_session=True, preexec_fn=unshare)
            prefix = ["nsenter", "-t", str(self.holder.pid), "-n", *(["-U", "--preserve-credentials"] if os.geteuid() else [])]
            if not subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
                self.prefix = prefix

    def close(self):
        self.prefix = []
        if self.holder:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.holder.pid, signal.SIGKILL)
            self.holder.communicate()
            self.holder = None


def main(argv):
    """netns.py COMMAND... runs it there."""
    network = Network()
    if not network.prefix:
        print(REFUSED, file=sys.stderr)
    try:
        return subprocess.call([*network.prefix, *argv])
    finally:
        network.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
