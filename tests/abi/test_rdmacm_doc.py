"""docs/RDMACM.md is complete: the calls that are exported, and the events,
options and port spaces of the header."""
import os
import re
import sys

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import test_abi  # noqa: E402  its tables

HEADER = "/usr/include/rdma/rdma_cma.h"


def rows():
    """{name: what the second column says}"""
    with open(os.path.join(test_abi.ROOT, "docs", "RDMACM.md")) as f:
        return test_abi.doc_rows(f.read(), 2)


def enumerators(prefix):
    if not os.path.exists(HEADER):
        pytest.skip("librdmacm-dev is not installed")
    with open(HEADER) as f:
        return set(re.findall(rf"^\s*({prefix}\w+)\s*[,=\n]", f.read(), re.M))


def test_calls_are_those_there_are():
    exported = {r[0]: r[2] for r in test_abi.table("librdmacm.so.1")
                if r[0].startswith("rdma_") and r[2] in ("public", "absent")}
    ours = {n: s for n, s in rows().items() if n.islower()}
    assert set(ours) == set(exported)
    for name, kind in exported.items():
        assert ours[name] == ("works" if kind == "public" else "ENOSYS"), name


@pytest.mark.parametrize("prefix,least", [("RDMA_CM_EVENT_", 16), ("RDMA_PS_", 4),
                                          ("RDMA_OPTION_I(?:D|B)_", 5)])
def test_enumerators_are_those_there_are(prefix, least):
    want = enumerators(prefix)
    assert len(want) >= least
    assert {n for n in rows() if re.match(prefix, n)} == want


def test_private_data():
    """The lengths are those the code has."""
    with open(os.path.join(test_abi.ROOT, "src", "cm", "cm.h")) as f:
        have = {m[1]: int(m[2]) for m in re.finditer(r"#define CM_(\w+)_DATA (\d+)", f.read())}
    with open(os.path.join(test_abi.ROOT, "docs", "RDMACM.md")) as f:
        said = dict(re.findall(r"^\| (\w+) \| (\d+) \|", f.read(), re.M))
    assert {n: int(v) for n, v in said.items()} == {
        "REQ": have["REQ"] - 36, "REP": have["REP"], "REJ": have["REJ"],
        "SIDR_REQ": have["SIDR_REQ"] - 36, "SIDR_REP": have["SIDR_REP"]}
