"""The table of wrong uses, see src/badinput.c: one test per row."""
import os
import re
import subprocess

import pytest

import rig


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
    p.wait(120)
    return p


# By UDP a bad packet is the same, private port or not.
@pytest.fixture(scope="module", params=[p for p in rig.PLACES if p != "udp"])
def wire_run(request, placements):
    return placements(request.param).tool(rig.client("badinput"), status=(None, None), limit=120)


@pytest.mark.parametrize("row", LOCAL)
def test_local(local_run, row):
    check(row, {"client": local_run})


@pytest.mark.parametrize("row", WIRE)
def test_wire(wire_run, row):
    check(row, {"client": wire_run.client, "server": wire_run.server})


def test_local_ends(local_run):
    """After the last row, too, nothing is wrong."""
    local_run.done()


def test_wire_ends(wire_run):
    for end in (wire_run.client, wire_run.server):
        end.done()


def explained(proc):
    """Row: what --explain said of it."""
    rows, said = {}, []
    for line in proc.output().splitlines():
        if line.startswith("softhca: "):
            said.append(line)
        elif m := re.match(r"(?:not )?ok (wire: [^:]+)", line):
            rows[m[1]] = "\n".join(said)
            said = []
    return rows


EXPLAINED = {  # row: client's words, server's words
    "wire: write, wrong rkey": (r"peer 10\.91\.0\.2 QP 0x\w+.*refused access.*rkey 0x\w{8}",
                                r"write of 64 bytes at 0x\w+ with rkey 0x\w{8} refused.*IBV_ACCESS_REMOTE_WRITE"),
    "wire: read past the end": (r"refused access", r"read of 64 bytes at 0x\w+ .*refused"),
    "wire: send longer than the receive": (r"longer than its receive buffer", r"room for 64"),
    "wire: send without a receive": (r"RNR retry exceeded.*\d ms \(rnr_retry=1\).*post receives", None),
    "wire: unknown QPN": (r"no answer for \d+ ms \(timeout=12, retry_cnt=1\)", None),
    "wire: send, wrong lkey": (r"lkey 0x\w{8} does not cover \[0x\w+, \+64\)", None),
    "wire: read into an MR without local write": (r"does not allow local writes", None),
}


def test_explain(placements):
    """--explain: a line for every completion that failed, with names and numbers."""
    run = placements("netns").tool(rig.client("badinput"), limit=120, options=["--explain"])
    client, server = explained(run.client), explained(run.server)
    for row, (mine, theirs) in EXPLAINED.items():
        assert re.search(mine, client[row]), f"{row}: client said {client[row]!r}"
        assert re.search(r"^softhca: QP 0x\w+", client[row])
        if theirs:
            assert re.search(theirs, server[row]), f"{row}: server said {server[row]!r}"
    # every RC row that fails says something
    silent = [r for r in WIRE if not r.startswith(("wire: UC", "wire: UD")) and not client[r] and not server[r]
              and r != "wire: write of nothing, wrong rkey"]
    assert not silent, silent
