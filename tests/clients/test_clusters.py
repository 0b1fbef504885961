"""The lines of docs/CLUSTERS.md, as they are written there, on two hosts: a
launcher in place of ssh enters the other's network. And gloo over verbs."""
import os
import re
import shutil
import subprocess

import pytest

import pages
import rig
from test_cm_tools import need_ucx
from test_mpi import Counters, programs  # noqa: F401 (a fixture)

pytestmark = pytest.mark.full
LINES = [c for b in pages.blocks() if b.page == "docs/CLUSTERS.md" for c, _ in b.commands if c.startswith("mpi")]
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
    assert len(LINES) == 3


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
    counters = Counters([place.client, place.server])
    p = rig.Proc(place.client, ["sh", "-c", f"cd {tmp_path} && exec {line}"], alone=True, env={
        **HERE, "OMPI_MCA_plm_rsh_agent": str(agent), "HYDRA_LAUNCHER_EXEC": str(agent), "TMPDIR": short,
        "PATH": f"{os.path.dirname(rig.SOFTHCA)}:{os.environ['PATH']}"})
    try:
        out = p.done(3 * rig.LIMIT)
    finally:
        p.kill()
        shutil.rmtree(short, ignore_errors=True)
    m = re.search(r"^4 ranks agree after (\d+) bytes", out, re.M)
    assert m, out
    sent, tcp = counters.since()
    assert sent > int(m[1]) // 2 and tcp < 1500, (sent, tcp, m[0])


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
