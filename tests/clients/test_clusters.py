"""The lines of docs/CLUSTERS.md, as they are written there, on two hosts: a
launcher in place of ssh enters the other's network, or Slurm's daemon is there.
And gloo over verbs."""
import os
import re
import shutil
import subprocess
import tempfile

import pytest

import pages
import rig
from test_cm_tools import need_ucx
from test_mpi import Counters, programs  # noqa: F401 (a fixture)

pytestmark = pytest.mark.full
LINES = [c for b in pages.blocks() if b.page == "docs/CLUSTERS.md" for c, _ in b.commands if c.startswith("mpi")]
SLURM = [[c for c, _ in b.commands] for b in pages.blocks()
         if b.page == "docs/CLUSTERS.md" and any(c.startswith("srun ") for c, _ in b.commands)]
TORCHRUN = [c for b in pages.blocks() if b.page == "docs/CLUSTERS.md" for c, _ in b.commands if " torchrun " in c]
SOURCE = os.path.join(rig.ROOT, "tests", "clients", "src", "gloo_check.cc")
# What ssh does: the words after the host's name are a shell's there. Hydra's
# ssh has options before it.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
shift
exec {enter} env TMPDIR={tmp} sh -c "$*"
"""
# A test's machine has few processors, one user and two addresses.
HERE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_oob_tcp_if_include": "10.91.0.0/24", "HYDRA_LAUNCHER": "ssh", "HYDRA_IFACE": "hca0",
}


def test_lines_are_there():
    assert len(LINES) == 3 and len(SLURM) == 2 and len(TORCHRUN) == 1


def agree(out, counters):
    """All ranks do, and by RDMA."""
    m = re.search(r"^4 ranks agree after (\d+) bytes", out, re.M)
    assert m, out
    sent, tcp = counters.since()
    assert sent > int(m[1]) // 2 and tcp < 1500, (sent, tcp, m[0])


def ranks_agree(place, script, short, env):
    """The script starts them. short: a folder for sockets, which goes."""
    os.makedirs(short, exist_ok=True)
    counters = Counters([place.client, place.server])
    p = rig.Proc(place.client, ["sh", "-c", script], alone=True, env={
        **env, "TMPDIR": short, "PATH": f"{os.path.dirname(rig.SOFTHCA)}:{os.environ['PATH']}"})
    try:
        out = p.done(3 * rig.LIMIT)
    finally:
        p.kill()
        shutil.rmtree(short, ignore_errors=True)
    agree(out, counters)


@pytest.mark.parametrize("line", LINES, ids=["openmpi-ucx", "openmpi-libfabric", "mpich"][:len(LINES)])
def test_line(placements, programs, line, tmp_path):  # noqa: F811
    place = placements("netns")
    if "UCX" in line:
        need_ucx(place)
    mpi = "mpich" if "mpich" in line else "openmpi"
    app = programs(mpi)
    shutil.copy(app, tmp_path / "app")
    # Sockets have short names.
    short = f"/tmp/softhca-mpi-{os.getpid()}"
    os.makedirs(f"{short}/other", exist_ok=True)
    agent = tmp_path / "agent"
    agent.write_text(AGENT.format(enter=" ".join(place.server.prefix), tmp=f"{short}/other"))
    agent.chmod(0o755)
    line = re.sub(r"^mpirun\b", "mpirun.openmpi", line).replace("node1", "10.91.0.1").replace("node2", "10.91.0.2")
    ranks_agree(place, f"cd {tmp_path} && exec {line}", short,
                {**HERE, "OMPI_MCA_plm_rsh_agent": str(agent), "HYDRA_LAUNCHER_EXEC": str(agent)})


# Nodes that are this machine twice, for one user and without passwords.
SLURM_CONF = """
ClusterName=test
SlurmctldHost=node1(10.91.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MailProg=/bin/true
SlurmdParameters=config_overrides
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/%n.pid
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/%n
TmpFS={d}/%n.tmp
NodeName=node1 NodeAddr=10.91.0.1 CPUs=2
NodeName=node2 NodeAddr=10.91.0.2 CPUs=2
PartitionName=all Nodes=node1,node2 Default=YES State=UP
"""
# What it has started ends with it.
CONTAINED = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]


@pytest.fixture(scope="module")
def slurm(placements):
    """The environment of srun, and the place whose two sides are nodes."""
    if missing := rig.need("slurmctld", "slurmd", "srun"):
        pytest.skip(f"not installed: {missing} (scripts/deps full)")
    if os.geteuid():
        pytest.skip("Slurm's daemons need root")
    place = placements("netns")
    folder = tempfile.mkdtemp(prefix="softhca-slurm-")  # sockets have short names
    env = {"SLURM_CONF": f"{folder}/slurm.conf"}
    with open(env["SLURM_CONF"], "w") as f:
        f.write(SLURM_CONF.format(d=folder))
    for name in ("state", "node1", "node2", "node1.tmp", "node2.tmp"):
        os.mkdir(f"{folder}/{name}")
    daemons = []
    try:
        for side, command in ((place.client, "hostname node1; exec slurmctld -D"),
                              (place.client, "exec slurmd -D -N node1"), (place.server, "exec slurmd -D -N node2")):
            daemons.append(rig.Proc(side, [*CONTAINED, command], env=env, alone=True))

        def idle():
            p = subprocess.run([*place.client.prefix, "sinfo", "-h", "-N", "-o", "%N %T"], env={**os.environ, **env}, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=rig.LIMIT)
            return p.stdout.splitlines() == ["node1 idle", "node2 idle"]

        rig.until(idle, "both nodes are idle", daemons[0], 2 * rig.LIMIT)
        yield place, env
    finally:
        for p in daemons:
            p.kill()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("block", SLURM, ids=["openmpi", "mpich"][:len(SLURM)])
def test_slurm(slurm, programs, block, tmp_path):  # noqa: F811
    place, env = slurm
    need_ucx(place)
    app = programs("openmpi" if any("OMPI" in line for line in block) else "mpich")
    shutil.copy(app, tmp_path / "app")
    here = {k: v for k, v in HERE.items() if k.startswith("OMPI_")}
    ranks_agree(place, "\n".join([f"cd {tmp_path}", *block]), f"/tmp/softhca-mpi-{os.getpid()}", {**here, **env})


# $1: a node's name, $2: the file that it has as /etc/hosts.
NODE = ["unshare", "--uts", "--mount", "sh", "-c",
        'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec sh -c "$@"', "sh"]


def test_torchrun(placements, tmp_path):
    """A model is trained over gloo, and all that leaves a host is RDMA."""
    if missing := rig.need("torchrun"):
        pytest.skip(f"not installed: {missing} (scripts/deps full)")
    if os.geteuid():
        pytest.skip("needs root, for names of hosts")
    place = placements("netns")
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n10.91.0.1 node1\n10.91.0.2 node2\n")
    shutil.copy(os.path.join(rig.ROOT, "tests", "clients", "src", "train.py"), tmp_path)
    # Without -r and -t PyTorch 1.13 fails on Python 3.11, where flags of no bit, as its default, are in no list.
    line = TORCHRUN[0].replace("torchrun ", "torchrun -r 1 -t 1 ")
    env = {"GLOO_SOCKET_IFNAME": "hca0", "OMP_NUM_THREADS": "1",
           "PATH": f"{os.path.dirname(rig.SOFTHCA)}:/usr/bin:{os.environ['PATH']}"}
    counters = Counters([place.client, place.server])
    nodes = []
    try:
        for side, name in ((place.client, "node1"), (place.server, "node2")):
            nodes.append(rig.Proc(side, [*NODE, name, tmp_path / "hosts", f"cd {tmp_path} && exec {line}"], alone=True, env=env))
        out = [p.done(3 * rig.LIMIT) for p in nodes]
    finally:
        for p in nodes:
            p.kill()
    assert [re.findall(r"rank \d of 2 agrees", text) for text in out] in (
        [["rank 0 of 2 agrees"], ["rank 1 of 2 agrees"]], [["rank 1 of 2 agrees"], ["rank 0 of 2 agrees"]]), out
    sent, tcp = counters.since()
    assert sent > 2_000_000 * 8 and tcp < 20, (sent, tcp)


@pytest.fixture(scope="session")
def gloo_check(tmp_path_factory):
    if missing := rig.need("g++"):
        pytest.skip(f"not installed: {missing}")
    path = tmp_path_factory.mktemp("gloo") / "gloo_check"
    if not os.path.exists("/usr/include/gloo/transport/ibverbs/device.h"):
        pytest.skip("not installed: libgloo-dev (scripts/deps full)")
    subprocess.run(["g++", "-std=c++14", "-O2", "-o", path, SOURCE, "-lgloo", "-libverbs"], check=True, timeout=300)
    return path


def test_gloo(place, gloo_check, tmp_path):
    """Three ranks, by gloo's transport over verbs; two on one host."""
    ranks = []
    try:
        for rank, side in enumerate((place.client, place.client, place.server)):
            ranks.append(rig.Proc(side, [gloo_check, rank, 3, tmp_path], place.options))
        for r in ranks:
            assert "3 ranks agree on 41983080 bytes" in r.done(2 * rig.LIMIT), r.describe()
    finally:
        for r in ranks:
            r.kill()
