"""What the cases of storage share: the guest, softhca's side, disks that are used hard.

The guest's kernel is that of tests/peer with the part "storage"; it has the host's
files, read-only under an overlay in its memory, and root's rights. Programs of the
host that it lacks skip a case. A case that makes something in the guest removes it
again (contextlib.ExitStack), as the next one has the same guest.
"""
import contextlib
import os
import re
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(HERE), "peer")]
import lab  # noqa: E402
from tally import Failed, Skipped  # noqa: E402

NUMBER = {"rxe": 1, "siw": 4}       # of the guests, see lab.py
MEMORY = 768    # MiB, of a guest
SLOW = 120      # s, for a command that works on a whole disk in the guest
LOSS = "loss 1%"


def need(*programs):
    """Programs that a case uses, in the guest or here."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    if missing := [p for p in programs if not shutil.which(p, path=path)]:
        raise Skipped(f"not installed: {' '.join(missing)} (scripts/deps storage)")


def until(true, what, limit=20):
    """Waits for it; what it is."""
    end = time.monotonic() + limit
    while not (got := true()):
        if time.monotonic() > end:
            raise Failed(f"not within {limit} s: {what() if callable(what) else what}")
        time.sleep(0.05)
    return got


class Storage:
    """One run: a lab, whose guests begin when they are first asked for, and again after a crash."""

    def __init__(self, build, kernel, folder):
        self.build, self.kernel = build, kernel
        self.lab = lab.Lab(folder)
        self.dir = folder       # for files, gone when the run ends
        softhca = os.path.join(build, "bin", "softhca")
        self.host, self.iwarp = lab.Host(self.lab, softhca), lab.IwarpHost(self.lab, softhca)
        self.guests = {}

    def guest(self, kind="rxe"):
        """Its device: rxe, or siw."""
        g = self.guests.get(kind)
        if g and not g.alive():
            print(f"     the guest with {kind} has crashed: {g.last_words()}", flush=True)
            g.stop()
            g = None
        if not g:
            g = self.guests[kind] = lab.Guest(self.lab, NUMBER[kind], self.kernel, mem=MEMORY, kind=kind)
            g.wait_ready()
        return g

    def ours(self, kind="rxe"):
        """softhca's side of a connection with that guest."""
        return self.iwarp if kind == "siw" else self.host

    def file(self, name, size):
        """An empty one of that size here, for a target's disk."""
        path = os.path.join(self.dir, name)
        with open(path, "wb") as f:
            f.truncate(size)
        return path

    def stop(self, kind):
        if g := self.guests.pop(kind, None):
            g.stop()

    def close(self):
        for kind in list(self.guests):
            self.stop(kind)


def run(where, command, timeout=30, rc=0, env=None):
    """A shell command in the guest, or a list of words there or here; its output. rc: the exit status that it has to
    have; None: any."""
    argv = ["sh", "-c", command] if isinstance(command, str) else [str(w) for w in command]
    got, out = where.run(argv, timeout, env)
    if got is None:
        raise Failed(f"{command}: no end within {timeout} s\n{out[-3000:]}")
    if rc is not None and got != rc:
        raise Failed(f"{command}: exit status {got}\n{out[-3000:]}")
    return out


@contextlib.contextmanager
def lossy(guest, what=LOSS):
    """Its RDMA packets are disturbed meanwhile."""
    guest.netem(what)
    try:
        yield
    finally:
        if guest.alive():
            guest.netem(None)


def fio_command(file, size, depth=32, blocks="4k", rw="randwrite", more=""):
    size_of_blocks = f"--bsrange={blocks} --blockalign=512" if "-" in blocks else f"--bs={blocks}"
    return f"fio --name=verify --filename={file} --size={size} --rw={rw} {size_of_blocks} --iodepth={depth} --ioengine=libaio " \
        f"--direct=1 --verify=crc32c --verify_fatal=1 --do_verify=1 --thread {more}"


def fio(guest, file, size, *args, limit=SLOW, **kw):
    """Writes all of a file or disk and reads it back, each block with a CRC-32C of its own; how long that took."""
    begin = time.monotonic()
    out = run(guest, fio_command(file, size, *args, **kw), limit)
    if not re.search(r"err= 0\b", out):
        raise Failed(f"fio: {out[-3000:]}")
    return time.monotonic() - begin


def sums(guest, files):
    return {line.split()[1].rpartition("/")[2]: line.split()[0] for line in run(guest, f"sha256sum {files}", SLOW).splitlines()}


def file_system(guest, disk, again=None):
    """A partition, ext4 on it, files that are the same after it was mounted a second time; fio on one. again: called
    while nothing is mounted, to log out and in, say; returns the disk's name then."""
    need("sfdisk", "mkfs.ext4", "fio")
    run(guest, f"echo ',,L' | sfdisk -q {disk}")

    def partition():
        part = disk + ("p1" if disk[-1].isdigit() else "1")
        until(lambda: guest.run(["test", "-b", part])[0] == 0, f"{part} appears")
        return part

    run(guest, f"mkfs.ext4 -q -F {partition()} && mkdir -p /run/disk && mount {partition()} /run/disk", SLOW)
    try:
        run(guest, "mkdir /run/disk/files && find /usr/bin -type f -size -100k | sort | head -200 | xargs cp -t /run/disk/files", SLOW)
        was = sums(guest, "/run/disk/files/*")
        fio(guest, "/run/disk/fio", "4m", rw="write", blocks="64k", depth=8)
        run(guest, "umount /run/disk", SLOW)
        if again:
            disk = again() or disk
        run(guest, f"blockdev --flushbufs {disk} && mount {partition()} /run/disk", SLOW)
        is_now = sums(guest, "/run/disk/files/*")
        if not was or was != is_now:
            raise Failed(f"of {len(was)} files others are {sorted(n for n in was if was[n] != is_now.get(n))}")
        run(guest, f"umount /run/disk && e2fsck -f -n {partition()}", SLOW)
    finally:
        guest.run(["sh", "-c", "umount -f /run/disk 2>/dev/null"])
    return f"{len(was)} files"
