"""MPI programs over softhca: Open MPI over UCX and over libfabric, MPICH over UCX.

Four ranks on one host, on the wire, and two each on two hosts. They would all
use shared memory of their own if they were let, so it is forbidden; and the
packets on the interfaces are counted against what the program says that it
sent, of which softhca itself sends none where it has shared memory. Ranks of
other devices are run from here, too (test_rails.py, test_infiniband.py).
"""
import os
import re
import shutil
import subprocess

import pytest

import rig
from test_cm_tools import need_ucx

SOURCE = os.path.join(rig.ROOT, "tests", "clients", "src", "mpi_check.c")
UCX = {
    "UCX_TLS": "rc_v,ud_v", "UCX_NET_DEVICES": "softhca0:1",
    # Open MPI's finalize closes one connection after the other at both ends
    # without a barrier, and waits for answers of queue pairs that are gone:
    # eight times this long for each, by default 17 s.
    "UCX_RC_VERBS_TIMEOUT": "100ms",
}
OPENMPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_btl": "self",
}
STACKS = {
    "openmpi-ucx": ("openmpi", {**OPENMPI, **UCX, "OMPI_MCA_pml": "ucx", "OMPI_MCA_osc": "ucx"}),
    "openmpi-libfabric": ("openmpi", {
        **OPENMPI, "OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi", "OMPI_MCA_osc": "pt2pt",
        "OMPI_MCA_mtl_ofi_provider_include": "verbs;ofi_rxm"}),
    # Debian's is built for UCX alone.
    "mpich-ucx": ("mpich", {**UCX, "MPIR_CVAR_NOLOCAL": "1"}),
}


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    where, made = tmp_path_factory.mktemp("mpi"), {}

    def get(mpi):
        cc, run = f"mpicc.{mpi}", f"mpirun.{mpi}"
        if missing := rig.need(cc, run):
            pytest.skip(f"not installed: {missing} (scripts/deps full)")
        if mpi not in made:
            made[mpi] = where / f"mpi_check.{mpi}"
            subprocess.run([cc, "-std=gnu11", "-O2", "-w", "-o", made[mpi], SOURCE], check=True)
        return made[mpi]

    return get


class Counters:
    """What a side's interfaces and its TCP have sent."""

    def __init__(self, sides):
        self.sides = sides
        self.before = self.now()

    def now(self):
        total = tcp = 0
        for side in self.sides:
            text = subprocess.run([*side.prefix, "cat", "/proc/net/dev", "/proc/net/snmp"],
                                  stdout=subprocess.PIPE, text=True, check=True).stdout
            total += sum(int(n) for n in re.findall(r"^ *\w+:(?: *\d+){8} +(\d+)", text, re.M))
            rows = [line.split()[1:] for line in text.splitlines() if line.startswith("Tcp:")]
            tcp += int(dict(zip(*rows))["OutSegs"])
        return total, tcp

    def since(self):
        return [a - b for a, b in zip(self.now(), self.before)]


def command(stack, place, program, tmp_path):
    """mpirun's on one host or on two: a launcher in place of ssh starts Open
    MPI's daemon in the other network; MPICH's ranks go there themselves."""
    mpi = STACKS[stack][0]
    mpirun = [f"mpirun.{mpi}"]
    if place.client is place.server:
        return [*mpirun, "-np", 4, program]
    if mpi == "mpich":
        return [*mpirun, "-np", 2, *place.server.prefix, program,
                ":", "-np", 2, *place.client.prefix, program]
    agent = tmp_path / "agent"
    (tmp_path / "other").mkdir()
    agent.write_text("#!/bin/sh\nshift\n"
                     f"exec {' '.join(place.server.prefix)} env TMPDIR={tmp_path}/other sh -c \"$*\"\n")
    agent.chmod(0o755)
    net = "10.91.0.0/24"
    return [*mpirun, "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", net,
            "--host", "10.91.0.1:2,10.91.0.2:2", "-np", 4, program]


def four_ranks(place, stack, programs, tmp_path, env=None):
    """They agree, and what they have sent went by RDMA; how many bytes that is."""
    mpi, usual = STACKS[stack]
    if "ucx" in stack:
        need_ucx(place)
    cmd = command(stack, place, programs(mpi), tmp_path)
    sides = [place.client] if place.client is place.server else [place.client, place.server]
    counters = Counters(sides)
    # Open MPI's and UCX's files; sockets have short names.
    short = f"/tmp/softhca-mpi-{os.getpid()}"
    os.makedirs(short, exist_ok=True)
    try:
        out = place.client.run(cmd, place.options, limit=3 * rig.LIMIT,
                               env={**usual, "TMPDIR": short, **(env or {})})
    finally:
        shutil.rmtree(short, ignore_errors=True)
    m = re.search(r"^4 ranks agree after (\d+) bytes", out, re.M)
    assert m, out
    sent, tcp = counters.since()
    by_packets = len(sides) == 2 or {"--wire", "--same-host=udp"} & set(place.options)
    if sides[0].prefix and not by_packets:
        assert sent < int(m[1]) // 4, (sent, m[0])     # what mpirun says to its ranks
    elif sides[0].prefix:  # nobody else's traffic there
        # Between two hosts it is two thirds of the messages at the least.
        assert sent > int(m[1]) * (0.5 if len(sides) == 2 else 1), (sent, m[0])
        assert tcp < 700, tcp  # all of it would be a thousand at the least
    return int(m[1])


# Open MPI over UCX takes longest, for closing (see above).
@pytest.mark.parametrize("place, stack", [
    pytest.param(place, stack, marks=() if place == "netns" or stack != "openmpi-ucx" else pytest.mark.full)
    for place in rig.PLACES for stack in STACKS], indirect=["place"])
def test_mpi(place, programs, stack, tmp_path):
    four_ranks(place, stack, programs, tmp_path)
