"""The ways between two processes of one host: shared memory with the kernel's
copies, without them, and UDP; chosen, and where the system leaves no choice."""
import itertools
import os
import re
import shlex

import pytest

import rig
from test_data import numbers

REFUSE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "refuse.py")
COPIES = "process_vm_readv,process_vm_writev"
CHECK = rig.client("verbs_check")
ENDS = {"auto": [], "copy": ["--same-host=copy"], "udp": ["--same-host=udp"], "wire": ["--wire"]}
# What is to be seen of each way: small and large, one-sided or not, datagrams.
PROGRAMS = {
    "mix": ["-o", "mix", "-n", 600, "-s", 100000, "-S", 0],
    "atomics": ["-o", "faa", "-n", 600, "-q", 4],
    "ud": ["-c", "UD", "-o", "send", "-n", 500, "-r", 32, "-s", 1024],
    "events": ["-o", "mix", "-n", 300, "-q", 4, "-e", "-s", 20000],
}


def transfer(place, args, server=(), client=(), server_prefix=(), client_prefix=(), server_cmd=(), client_cmd=(),
             status=(0, 0), env=None):
    """verbs_check, each end with options, a prefix and surroundings of its own."""
    port = rig.free_port()
    cmd = [CHECK, "-p", port, *args]
    one = rig.Proc(rig.Side([*place.server.prefix, *server_prefix]), [*server_cmd, *cmd],
                   [*place.options, *server], env)
    try:
        one.wait_listening(port)
        two = rig.Proc(rig.Side([*place.client.prefix, *client_prefix]), [*client_cmd, *cmd, place.host],
                       [*place.options, *client], env)
    except BaseException:
        one.kill()
        raise
    return rig.Pair(one, two).end(status=status)


@rig.cover(1, ways=[w for w in itertools.product(ENDS, ENDS) if w[0] != w[1]], program=list(PROGRAMS))
def test_ends_differ(placements, ways, program):
    """Each end chooses for itself what it lets others do."""
    transfer(placements("local"), PROGRAMS[program], ENDS[ways[0]], ENDS[ways[1]])


@rig.cover(1, who=["server", "client", "both"], err=["EPERM", "ENOSYS"], program=list(PROGRAMS))
def test_copies_refused(placements, who, err, program):
    """As seccomp does in a container, and as a kernel without these calls."""
    refuse = [REFUSE, err, COPIES]
    transfer(placements("local"), PROGRAMS[program],
             server_cmd=refuse if who != "client" else [], client_cmd=refuse if who != "server" else [])


def unshare(*options):
    """Words that run a command in new namespaces."""
    return ["unshare", *options]


@rig.cover(1, who=["server", "client"], what=["pid", "user"], program=list(PROGRAMS))
def test_other_namespaces(placements, who, what, program):
    """A container that shares the network and /dev/shm only, or its user."""
    prefix = unshare("-p", "--fork", "--kill-child") if what == "pid" else unshare("-U", "-r")
    place = placements("local")
    probe = rig.Proc(place.server, [*prefix, "true"], alone=True)
    if probe.wait():
        pytest.skip(f"no namespaces here: {probe.output().strip()}")
    transfer(place, PROGRAMS[program], **{f"{who}_prefix": prefix})


@rig.cover(1, who=["server", "client"], program=list(PROGRAMS))
def test_no_room_for_a_segment(placements, who, program):
    """A limit of files' sizes: UDP is left, and nobody gets SIGXFSZ."""
    transfer(placements("local"), PROGRAMS[program],
             **{f"{who}_cmd": ["bash", "-c", 'ulimit -f 20000; exec "$@"', "bash"]})


def small_shm(place, size):
    """Words that run commands in a mount namespace with a small /dev/shm."""
    prefix = [*place.server.prefix, *unshare("-m", "sh", "-c", 'mount -t tmpfs -o mode=1777,size="$0" tmpfs /dev/shm '
                                                               '&& exec "$@"', size)]
    probe = rig.Proc(rig.Side(prefix), ["true"], alone=True)
    if probe.wait():
        pytest.skip(f"no mount namespace here: {probe.output().strip()}")
    return prefix


TWO_ENDS = ('"$@" & s=$!; "$@" 127.0.0.1; c=$?; [ $c = 0 ] || kill $s; wait $s || exit; '
            "find /dev/shm -maxdepth 1 -type f -size +0; exit $c")


@pytest.mark.parametrize("size", ["300k", "600k", "1200k"])
def test_little_shared_memory(placements, size):
    """/dev/shm has room for a registry, a segment, or a part of one: whatever
    cannot be had is an error that the program does not see. What "softhca run"
    itself writes there is written before."""
    program = [rig.SOFTHCA, "run", "--", CHECK, "-p", rig.free_port(), *PROGRAMS["mix"]]
    out = rig.Proc(rig.Side(small_shm(placements("local"), size)),
                   ["bash", "-c", f"{shlex.quote(rig.SOFTHCA)} run -- true; {TWO_ENDS}", "bash", *program],
                   alone=True).done(90)
    assert "softhca: " not in out, out
    assert "/dev/shm/" not in out, out


@pytest.fixture
def registry(tmp_path):
    """A place of its own for the state of this test's processes."""
    tmp_path.chmod(0o700)
    return tmp_path


def left(registry):
    return sorted(f.name for f in os.scandir(registry) if not f.is_dir())


@pytest.mark.parametrize("way", ["auto", "copy"])
def test_nothing_is_left(placements, registry, way):
    transfer(placements("local"), PROGRAMS["mix"], ENDS[way], ENDS[way], env={"SOFTHCA_RUNDIR": str(registry)})
    assert left(registry) == []


EXPLAINED = {
    "auto": "shared memory, and copies from and to the peer's memory$",
    "copy": "shared memory, payload copied through it: --same-host=copy$",
    "udp": "a private UDP port",
    "wire": "UDP port 4791$",
}


@pytest.mark.parametrize("way", list(ENDS))
def test_explain_says_the_way(placements, way):
    """Each QP, when it is connected."""
    run = transfer(placements("local"), ["-o", "mix", "-n", 20, "-q", 2], [*ENDS[way], "--explain"],
                   [*ENDS[way], "--explain"])
    for end in run.server, run.client:
        said = re.findall(r"^softhca: QP 0x\w+ \(peer \S+ QP 0x\w+\): connected by (.*)$", end.output(), re.M)
        assert len(said) == 2, end.describe()
        assert all(re.match(EXPLAINED[way], s) for s in said), end.describe()
    assert numbers(run.server)["wrong"] == 0


def test_explain_says_why_not(placements):
    run = transfer(placements("local"), ["-o", "mix", "-n", 20], ["--explain"], ["--explain"],
                   client_cmd=[REFUSE, "EPERM", COPIES])
    assert re.search(r"connected by shared memory, payload copied.*softhca doctor", run.client.output()), run.describe()
