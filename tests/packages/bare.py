#!/usr/bin/python3
"""Bare Debian systems: made once (debootstrap, kept in the user's cache), used as overlays that vanish.

Needs root, for chroot(2) and mounts, and the package archive that this machine uses.
One of arm64 is run by qemu-user (tests/packages/emulated). Run as a program it makes
those that the real clients use, which may run where the archive cannot be reached.
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "softhca", "packages")
EMULATED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "emulated")
LIMIT = 900     # s, for one command
LIBFABRIC = ("libfabric1", "libisal2")  # with what softhca itself needs there


# As debootstrap makes them.
DEVICES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0),
           ("console", 5, 1), ("ptmx", 5, 2))


class Failed(Exception):
    pass


def archive():
    """The package archive that this machine uses."""
    for folder, _, names in os.walk("/etc/apt"):
        for name in sorted(names):
            if not name.endswith((".list", ".sources")):
                continue
            with open(os.path.join(folder, name)) as f:
                text = f.read()
            if m := re.search(r"^(?:deb(?: \[[^]]*\])? |URIs: *)(\S+/debian/?)(?:\s|$)", text, re.M):
                return m[1]
    raise Failed("no Debian archive in /etc/apt")


def command(argv, cwd=None):
    p = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                       text=True, errors="replace", timeout=LIMIT)
    if p.returncode:
        raise Failed(f"$ {' '.join(argv)}\n{p.stdout[-4000:]}[exit status {p.returncode}]")
    return p.stdout


def base(suite, architecture=None, include=()):
    """A minimal system, with some packages more, made once."""
    path = os.path.join(CACHE, "+".join([f"{suite}-{architecture}" if architecture else suite, *include]))
    if os.path.exists(os.path.join(path, "etc", "debian_version")):
        return path
    os.makedirs(CACHE, exist_ok=True)
    made = tempfile.mkdtemp(prefix=f"{suite}-", dir=CACHE)
    words = ["debootstrap", "--variant=minbase", *([f"--include={','.join(include)}"] if include else [])]
    try:
        if architecture:
            command([*words, f"--arch={architecture}", "--foreign", suite, made, archive()])
            # Its namespace may make no devices; where it takes itself for a container it does not insist.
            for name, major, minor in DEVICES:
                if not os.path.exists(f"{made}/dev/{name}"):
                    command(["mknod", "-m", "666", f"{made}/dev/{name}", "c", str(major), str(minor)])
            command([EMULATED, "env", "container=lxc", "chroot", made, "/debootstrap/debootstrap", "--second-stage"])
        else:
            command([*words, suite, made, archive()])
        os.rename(made, path)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return path


class System:
    """A copy of a base that is gone at the end."""

    def __init__(self, suite, architecture=None, include=()):
        self.prefix = [EMULATED] if architecture else []
        with contextlib.ExitStack() as stack:
            work = tempfile.mkdtemp(prefix="softhca-packages-")
            stack.callback(shutil.rmtree, work, ignore_errors=True)
            self.mount(stack, ["-t", "tmpfs", "tmpfs", work])
            for name in ("upper", "work", "root"):
                os.mkdir(f"{work}/{name}")
            self.root = f"{work}/root"
            self.mount(stack, ["-t", "overlay", "-o", f"lowerdir={base(suite, architecture, include)},upperdir={work}/upper,"
                               f"workdir={work}/work", "overlay", self.root])
            self.mount(stack, ["--bind", "/dev", f"{self.root}/dev"])
            self.mount(stack, ["-t", "tmpfs", "tmpfs", f"{self.root}/dev/shm"])
            self.mount(stack, ["-t", "proc", "proc", f"{self.root}/proc"])
            self.mount(stack, ["-t", "sysfs", "-o", "ro", "sysfs", f"{self.root}/sys"])
            for path in ("/etc/resolv.conf", "/etc/hosts"):
                shutil.copyfile(path, self.root + path)
            for name in os.listdir("/etc/apt/apt.conf.d"):
                if "proxy" in name:
                    shutil.copyfile(f"/etc/apt/apt.conf.d/{name}", f"{self.root}/etc/apt/apt.conf.d/{name}")
            self.stack = stack.pop_all()

    @staticmethod
    def mount(stack, argv):
        command(["mount", *argv])
        stack.callback(subprocess.run, ["umount", "-l", argv[-1]], check=False)

    def run(self, *argv):
        return command([*self.prefix, "chroot", self.root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root",
                        "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
                        *(f"{k}={v}" for k, v in os.environ.items() if k.lower().endswith("_proxy")), *argv])

    def install(self, *packages):
        return self.run("apt-get", "install", "-y", "-q", "--no-install-recommends", *packages)

    def files(self):
        """All there are, but for what apt and the system keep of their own."""
        skip = re.compile(r"^/(proc|sys|dev|tmp|run|var/(cache|lib/(apt|dpkg)|log))(/|$)|^/etc/ld\.so\.cache$")
        out = self.run("find", "/", "-xdev", "!", "-type", "d", "-printf", "%p\\n")
        return {line for line in out.splitlines() if not skip.search(line)}

    def close(self):
        self.stack.close()


@contextlib.contextmanager
def system(suite, architecture=None):
    s = System(suite, architecture)
    try:
        s.run("apt-get", "update", "-q")
        yield s
    finally:
        s.close()


def install_tree(top, where):
    """Copies what git knows of this tree, as it lies here."""
    files = command(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], top).split("\0")
    for name in filter(None, files):
        if os.path.lexists(os.path.join(top, name)):
            os.makedirs(os.path.dirname(os.path.join(where, name)), exist_ok=True)
            shutil.copy2(os.path.join(top, name), os.path.join(where, name), follow_symlinks=False)


if __name__ == "__main__":
    try:
        base("trixie", include=LIBFABRIC)
    except (Failed, OSError) as failed:
        sys.exit(f"no bare Debian 13: {failed}")
