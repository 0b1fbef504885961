"""podman checkpoints and restores a container whose program has a connection to another host.

With runc, as Debian 12's crun is built without CRIU. The container has this
machine's files, under an overlay, and a host's network.
"""
import contextlib
import os
import re
import shutil
import subprocess
import tempfile

import moving
from moving import LIMIT, ROUNDS, SOFTHCA, Failed, Hosts, Program, Skipped, until

PATIENCE = 14   # the peer is asked to wait
NAME = "server"


class Podman:
    """All that it has is below one folder. It takes the network that prefix enters for the host's, as CRIU 3.17 does
    not save one that is another's: "-22 reported by netlink"."""

    def __init__(self, home, prefix):
        with open(f"{home}/containers.conf", "w") as f:
            f.write('[containers]\ndefault_ulimits = []\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n')
        self.argv = [*prefix, "env", f"CONTAINERS_CONF={home}/containers.conf", "podman", "--runtime", shutil.which("runc"),
                     *(f"--{w}={home}/{w}" for w in ("root", "runroot", "tmpdir", "network-config-dir")),
                     "--cgroup-manager=cgroupfs", "--storage-driver=vfs"]

    def __call__(self, *args, before=()):
        p = subprocess.run([*before, *self.argv, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, errors="replace", timeout=LIMIT * 3)
        if p.returncode:
            said = ""
            for path in re.findall(r"log file: ([^\s\"]+)", p.stdout):
                with contextlib.suppress(OSError), open(path, errors="replace") as f:
                    said += "".join(line for line in f if "Error" in line)
            raise Failed(f"podman {' '.join(args)}: exit status {p.returncode}\n{p.stdout[-3000:]}{said[-2000:]}")
        return p.stdout.strip()


def log(path):
    """What the container has printed."""
    with open(path, errors="replace") as f:
        return "".join(m[1] + "\n" for m in re.finditer(r"^\S+ std\w+ \w (.*)$", f.read(), re.M))


def podman():
    missing = [p for p in ("podman", "conmon", "runc") if not shutil.which(p)]
    if missing:
        raise Skipped(f"not installed: {' '.join(missing)} (scripts/deps containers)")
    with contextlib.closing(Hosts()) as hosts, tempfile.TemporaryDirectory(prefix="softhca-podman-") as home:
        # An overlay has to be on another file system than its upper folder is to be.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", home], check=True)
        podman, two = Podman(home, hosts.here), None
        words = [ROUNDS, "-p", "18650", "-e", "-t", str(5 * moving.SLOW), "-T", str(PATIENCE)]
        try:
            podman("run", "-d", "--name", NAME, "--network=host", "--log-driver=k8s-file",
                   "--log-opt", f"path={home}/log", "--security-opt=seccomp=unconfined", "--rootfs", "/:O",
                   SOFTHCA, "run", "--", *words)
            pid = podman("inspect", "-f", "{{.State.Pid}}", NAME)
            two = Program(home, "client", hosts.peer, [*words, moving.ADDRESS])
            two.saw("^round ")
            podman("container", "checkpoint", NAME, before=[SOFTHCA, "suspend", pid, "--"])
            if os.path.exists(f"/proc/{pid}"):
                raise Failed("it has not ended")
            podman("container", "restore", NAME)
            two.advances(LIMIT)
            gap = two.saw(r"^ok \d+ rounds, longest gap ([0-9.]+) ms", LIMIT)[1]
            until(lambda: re.search(r"^ok \d+ rounds", log(f"{home}/log"), re.M), "the container's program ends well")
            return f"every byte right; the peer waited for {float(gap) / 1000:.1f} s"
        except Failed as e:
            said = log(f"{home}/log") if os.path.exists(f"{home}/log") else ""
            raise Failed(f"{e}\n--- the container's\n{said[-2000:]}{two.describe() if two else ''}") from e
        finally:
            if two:
                two.kill()
            subprocess.run([*podman.argv, "rm", "-f", "-t", "0", NAME], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                           check=False, timeout=LIMIT)
            subprocess.run(["umount", "-l", home], check=False)
