"""Network namespaces of the tests, and one for a whole run of them, where one can be made.

In that one no program of this host is on UDP port 4791 beside the tests, and no
firewall of the host applies to them. Only lo is in it. Without root it belongs to a
user namespace in which the user keeps its number and has no privileges.
"""
import contextlib
import os
import subprocess
import sys

REFUSED = "no network namespace can be made, so programs of this host may disturb the tests"


class NoNamespaces(Exception):
    """The system refuses to make any."""


def hold(*words):
    """A process in what these words make, as of unshare(1). It ends when our end of a pipe
    closes: whatever happens to us, nothing is left behind."""
    p = subprocess.Popen([*words, "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, start_new_session=True)
    if p.stdout.readline() != b"ready\n":
        raise NoNamespaces(p.communicate()[1].decode().strip())
    return p


def release(p):
    p.stdin.close()
    p.wait(10)


def enter(pid, *kinds):
    """Words that run a command where that process is; without root also in its user namespace."""
    return ["nsenter", "-t", str(pid), *([] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]), *kinds]


class Network:
    """prefix is the head of commands that are to run there, empty where none can
    be made."""

    def __init__(self):
        self.holder, self.prefix = None, []
        user = [] if os.geteuid() == 0 else ["-U", "--map-current-user", "--keep-caps"]
        with contextlib.suppress(OSError, NoNamespaces):
            self.holder = hold("unshare", *user, "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
            prefix = enter(self.holder.pid, "-n")
            if not subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
                self.prefix = prefix

    def close(self):
        self.prefix = []
        if self.holder:
            release(self.holder)
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
