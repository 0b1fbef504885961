"""Packages of another release or architecture, fetched by apt and unpacked; nothing is installed.

An apt of its own in a folder: lists, cache and state are there, and the system's
stay as they are. Needs no root.
"""
import contextlib
import os
import shutil
import subprocess
import tempfile

from bare import CACHE, Failed, archive, command

UBUNTU = "http://archive.ubuntu.com/ubuntu"


class Unreachable(Exception):
    """What cannot be fetched, and why."""


class Apt:
    """sources: lines of sources.list; prefer: the release that goes first."""

    def __init__(self, folder, architecture, sources, prefer=None):
        self.folder = folder
        for d in ("state/lists/partial", "cache/archives/partial"):
            os.makedirs(f"{folder}/{d}")
        for name, text in (("state/status", ""), ("sources", "".join(f"{s}\n" for s in sources)),
                           ("preferences", f"Package: *\nPin: release n={prefer}\nPin-Priority: 900\n" if prefer else "")):
            with open(f"{folder}/{name}", "w") as f:
                f.write(text)
        options = {"APT::Architecture": architecture, "APT::Architectures": architecture, "Dir::State": f"{folder}/state",
                   "Dir::State::status": f"{folder}/state/status", "Dir::Cache": f"{folder}/cache",
                   "Dir::Etc::sourcelist": f"{folder}/sources", "Dir::Etc::sourceparts": "/dev/null",
                   "Dir::Etc::preferences": f"{folder}/preferences", "Dir::Etc::preferencesparts": "/dev/null",
                   "APT::Sandbox::User": "", "Acquire::Retries": "3", "Acquire::Languages": "none"}
        self.options = [word for k, v in options.items() for word in ("-o", f"{k}={v}")]
        self.get("update", "--error-on=any")

    def get(self, *args, cwd=None):
        try:
            return command(["apt-get", *self.options, "-qq", *args], cwd)
        except (Failed, OSError, subprocess.TimeoutExpired) as e:
            lines = str(e).strip().splitlines()
            raise Unreachable(next((line for line in lines if line.startswith("E:")), lines[-1])) from e

    def query(self, *args):
        return command(["apt-cache", *self.options, *args])

    def unpack(self, root, *packages, without=()):
        """These and all that they depend on, into a folder; recommendations left out, and without some."""
        self.get("-y", "--download-only", "--no-install-recommends", "install", *packages)
        os.makedirs(root, exist_ok=True)
        debs = f"{self.folder}/cache/archives"
        for name in sorted(os.listdir(debs)):
            if name.endswith(".deb") and name.partition("_")[0] not in without:
                command(["dpkg-deb", "-x", f"{debs}/{name}", root])
        merge(root)

    def download(self, package):
        """One package, without what it depends on; its file."""
        self.get("download", package, cwd=self.folder)
        return os.path.join(self.folder, next(n for n in os.listdir(self.folder) if n.startswith(f"{package}_")))


def merge(root):
    """/lib and the like become links into /usr, as in an installed system, and no link leads out."""
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.isdir(f"{root}/{name}") and not os.path.islink(f"{root}/{name}"):
            os.makedirs(f"{root}/usr/{name}", exist_ok=True)
            command(["cp", "-a", f"{root}/{name}/.", f"{root}/usr/{name}/"])
            shutil.rmtree(f"{root}/{name}")
        os.makedirs(f"{root}/usr/{name}", exist_ok=True)
        if not os.path.islink(f"{root}/{name}"):
            os.symlink(f"usr/{name}", f"{root}/{name}")
    for top in ("lib", "lib64"):
        for folder, _, names in os.walk(f"{root}/usr/{top}"):
            for path in (os.path.join(folder, name) for name in names):
                if os.path.islink(path) and os.path.isabs(to := os.readlink(path)):
                    os.remove(path)
                    os.symlink(os.path.relpath(root + to, folder), path)


def debian(suite):
    try:
        return f"deb {archive()} {suite} main"
    except Failed as e:
        raise Unreachable(str(e)) from e


def ubuntu(suite):
    """Its keys come from Debian's package of them."""
    keyring = once("ubuntu-keyring", lambda work: Apt(f"{work}/apt", "amd64", [debian("trixie")]).unpack(f"{work}/root", "ubuntu-keyring"))
    return f"deb [signed-by={keyring}/root/usr/share/keyrings/ubuntu-archive-keyring.gpg] {UBUNTU} {suite} main universe"


def once(name, make):
    """A folder of the user's cache, which make(folder) fills the first time."""
    path = os.path.join(CACHE, name)
    if os.path.exists(path):
        return path
    os.makedirs(CACHE, exist_ok=True)
    work = tempfile.mkdtemp(prefix=f"{name}-", dir=CACHE)
    try:
        try:
            make(work)
        except (Failed, OSError, subprocess.TimeoutExpired) as e:
            raise Unreachable(str(e).strip().splitlines()[-1]) from e
        shutil.rmtree(f"{work}/apt", ignore_errors=True)
        with contextlib.suppress(FileExistsError):
            os.rename(work, path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return path
