"""Connections of the kernel's soft iWARP: what we read in them is what Wireshark reads."""
import os
import pathlib
import shutil
import subprocess

import pytest

if not shutil.which("tshark"):
    pytest.skip("tshark is not installed", allow_module_level=True)

from test_tshark_iwarp import READ_REQUEST, TERMINATE, tshark  # noqa: E402

CAPTURES = sorted(pathlib.Path(os.environ["SIW_CAPTURES"]).glob("*.pcap"))
FRAME = ["iwarp_mpa.marker_flag", "iwarp_mpa.crc_flag", "iwarp_mpa.rej_flag", "iwarp_mpa.rev", "iwarp_mpa.pdlength"]
SEGMENT = ["iwarp_mpa.ulpdulength", "iwarp_ddp.tagged_flag", "iwarp_ddp.last_flag", "iwarp_rdma.opcode"]
TAGGED = ["iwarp_ddp.stag", "iwarp_ddp.tagged_offset"]
UNTAGGED = ["iwarp_ddp.qn", "iwarp_ddp.msn", "iwarp_ddp.mo"]
READ = ["iwarp_rdma.sinkstag", "iwarp_rdma.sinkto", "iwarp_rdma.rdmardsz", "iwarp_rdma.srcstag", "iwarp_rdma.srcto"]
ALL = ["tcp.srcport", *FRAME, *SEGMENT, *TAGGED, *UNTAGGED, *READ]


def numbers(words):
    return [int(w, 0) for w in words]


def wireshark(path):
    """By port: frames, and segments, as lists of numbers."""
    # (What is sent again is in the analysis of TCP only.)
    out = tshark(path, "-Y", "iwarp_mpa", "-T", "fields", "-E", "separator=;", "-E", "aggregator=,",
                 *(x for name in ALL for x in ("-e", name)))
    seen = {}
    for line in out.splitlines():
        fields = dict(zip(ALL, (f.split(",") if f else [] for f in line.split(";"))))
        rows = seen.setdefault(int(fields["tcp.srcport"][0]), [])
        if fields["iwarp_mpa.rev"]:
            rows.append(["frame", *numbers(fields[n][0] for n in FRAME)])
        for segment in zip(*(fields[n] for n in SEGMENT)):
            segment = numbers(segment)
            names = TAGGED if segment[1] else UNTAGGED
            if segment[3] == READ_REQUEST:
                names = names + READ
            rows.append(["fpdu", *segment, *numbers(fields[n].pop(0) for n in names)])
    return seen


def ours(path):
    out = subprocess.run([os.environ["SIM_SIW"], "--list", path], check=True, capture_output=True, text=True,
                         timeout=60).stdout
    seen = {}
    for line in out.splitlines():
        kind, port, *words = line.split()
        seen.setdefault(int(port), []).append([kind, *numbers(words)])
    return seen


@pytest.mark.parametrize("path", CAPTURES, ids=[p.stem for p in CAPTURES])
def test_same_fields(path):
    got = ours(path)
    # A listener's connections, which have one port, are in another order.
    assert {k: sorted(v, key=str) for k, v in got.items()} == \
        {k: sorted(v, key=str) for k, v in wireshark(path).items()}


def test_there_are_some():
    rows = [r for p in CAPTURES for v in ours(p).values() for r in v]
    opcodes = {r[4] for r in rows if r[0] == "fpdu"}
    assert set(range(4)) | {TERMINATE} <= opcodes | {TERMINATE}, opcodes
