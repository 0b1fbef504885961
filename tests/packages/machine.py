"""Machines of qemu's: an initial RAM disk, and what one prints on its console."""
import ctypes
import os
import selectors
import signal
import stat
import subprocess
import tempfile
import time

from bare import command

PR_SET_PDEATHSIG = 1


class Archive:
    """An initial RAM disk: cpio, "newc", as the kernel unpacks it. strip: the tool that takes from programs what
    debuggers want; None: they stay as they are."""

    def __init__(self, out, strip=None):
        self.out, self.strip, self.number, self.names = out, strip, 0, set()

    def add(self, name, mode, data=b""):
        name = name.strip("/")
        if name in self.names:
            return
        if parent := os.path.dirname(name):
            self.add(parent, stat.S_IFDIR | 0o755)
        self.names.add(name)
        self.number += 1
        fields = (self.number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        self._padded(b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0")
        self._padded(data)

    def _padded(self, data):
        self.out.write(data + b"\0" * (-len(data) % 4))

    def file(self, name, path):
        """A file or link of this machine."""
        if os.path.islink(path):
            return self.add(name, stat.S_IFLNK | 0o777, os.readlink(path).encode())
        with open(path, "rb") as f:
            data = f.read()
        if self.strip and data.startswith(b"\x7fELF"):
            with tempfile.NamedTemporaryFile() as small:
                command([self.strip, "-g", "-o", small.name, path])
                with open(small.name, "rb") as f:
                    data = f.read()
        return self.add(name, stat.S_IFREG | stat.S_IMODE(os.stat(path).st_mode), data)

    def close(self):
        self.number = -1
        self.add("TRAILER!!!", 0)


class Machine:
    """It, and what it prints. It ends with us."""

    def __init__(self, argv):
        self.proc = subprocess.Popen(
            [*argv, "-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.proc.stdout, selectors.EVENT_READ)
        os.set_blocking(self.proc.stdout.fileno(), False)
        self.rest = b""

    def line(self, limit):
        """The next line it prints; None if there is none in time, or it has ended."""
        end = time.monotonic() + limit
        while b"\n" not in self.rest:
            if not self.selector.select(max(end - time.monotonic(), 0)):
                return None
            data = self.proc.stdout.read()
            if not data:
                return None
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode(errors="replace").rstrip("\r")

    def close(self):
        self.proc.kill()
        self.proc.wait()
