"""The table of wrong uses, see src/badinput.c: one test per row."""
import os
import re
import subprocess

import pytest

import rig
from conftest import PLACES


def rows():
    if not os.access(rig.client("badinput"), os.X_OK):
        return []
    out = subprocess.run([rig.client("badinput"), "--list"], stdout=subprocess.PIPE, text=True, check=True)
    return out.stdout.splitlines()


LOCAL = [r for r in rows() if r.startswith("local: ")]
WIRE = [r for r in rows() if r.startswith("wire: ")]


def verdicts(text):
    """What an end said of each row."""
    return {m[2]: m[0] for m in re.finditer(r"^(not )?ok ([a-z]+: [^:\n]+)(:.*)?$", text, re.M)} | \
        {m[2]: m[0] for m in re.finditer(r"^(not )ok ([a-z]+: [^:\n]+)(:.*)?$", text, re.M)}


def check(row, ends):
    for end, proc in ends.items():
        said = verdicts(proc.output()).get(row)
        assert said is not None, f"{end} did not get to it:\n{proc.output()[-1500:]}"
        assert not said.startswith("not"), f"{end}: {said}"


def test_table_is_there():
    assert len(LOCAL) > 60 and len(WIRE) > 40


@pytest.fixture(scope="module")
def local_run(home):
    p = rig.Proc(rig.Side(home), [rig.client("badinput"), "--local"])
    p.wait()
    return p


@pytest.fixture(scope="module", params=PLACES)
def wire_run(request, placements):
    return placements(request.param).tool(rig.client("badinput"), status=(None, None), limit=120)


@pytest.mark.parametrize("row", LOCAL)
def test_local(local_run, row):
    check(row, {"client": local_run})


@pytest.mark.parametrize("row", WIRE)
def test_wire(wire_run, row):
    check(row, {"client": wire_run.client, "server": wire_run.server})
