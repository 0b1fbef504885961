"""docs/VERBS.md is correct: its rows are exactly the functions and enumerators
of the header, and each works, or fails, as its row says."""
import os
import re
import subprocess
import sys

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import test_abi  # noqa: E402  its tables

ROOT = test_abi.ROOT
BUILD = test_abi.BUILD
HEADERS = ["/usr/include/infiniband/verbs.h", "/usr/include/infiniband/verbs_api.h"]

# Inline functions that call nothing of ours, or only another that is listed.
HELPERS = {
    "ibv_cq_ex_to_cq", "ibv_inc_rkey", "ibv_is_qpt_supported", "ibv_flow_label_to_udp_sport",
    "ibv_memcpy_to_dm", "ibv_memcpy_from_dm", "ibv_query_gid_ex", "ibv_query_gid_table",
}
ENUMS = (
    "ibv_access_flags", "ibv_mw_type", "ibv_rereg_mr_flags", "ibv_qp_type", "ibv_srq_type",
    "ibv_wr_opcode", "ibv_send_flags", "ibv_qp_create_send_ops_flags", "ibv_qp_create_flags",
    "ibv_create_cq_wc_flags", "ibv_create_cq_attr_flags", "ibv_cq_init_attr_mask",
    "ibv_qp_init_attr_mask", "ibv_parent_domain_init_attr_mask", "ibv_cq_attr_mask",
    "ibv_odp_general_caps", "ibv_device_cap_flags", "ibv_event_type", "ibv_qp_attr_mask",
)
# Macros, where other names have an enum.
ADVICE = {"IBV_ADVISE_MR_ADVICE_PREFETCH", "IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE",
          "IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT", "IBV_ADVISE_MR_FLAG_FLUSH"}
# Newer than the headers of Debian 12.
NEWER = {"IB_UVERBS_DEVICE_ATOMIC_WRITE"}


DEVICES = {"softhca": [], "iWARP": ["--iwarp"]}


def rows(column="softhca"):
    """{name: what that column says}"""
    with open(os.path.join(ROOT, "docs", "VERBS.md")) as f:
        return test_abi.doc_rows(f.read().partition("\n## Tests that skip\n")[0], 6, 2 + list(DEVICES).index(column))


def header():
    text = "".join(open(h).read() for h in HEADERS if os.path.exists(h))
    if not text:
        pytest.skip("libibverbs-dev is not installed")
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(scope="module")
def probed(device):
    probe = os.path.join(BUILD, "tests", "abi", "verbs_probe")
    p = subprocess.run([os.path.join(BUILD, "bin", "softhca"), "run", *DEVICES[device], "--", probe],
                       stdout=subprocess.PIPE, text=True, timeout=60)
    assert p.returncode == 0, p.stdout
    return dict(line.split() for line in p.stdout.splitlines())


def test_functions_are_those_there_are():
    text = header()
    inline = set(re.findall(r"static inline[^;{]*?\b(ibv_\w+)\(", text)) - HELPERS
    exported = {r[0] for r in test_abi.table("libibverbs.so.1") if r[2] in ("public", "absent")}
    ours = {n for n in rows() if n.islower()}
    assert ours == inline | exported


def test_enumerators_are_those_there_are():
    text = header()
    want = ADVICE | NEWER
    for enum in ENUMS:
        body = re.search(r"enum %s \{(.*?)\}" % enum, text, re.S)
        assert body, enum
        want |= set(re.findall(r"^\s*(IBV_\w+)", body[1], re.M))
    want = {n for n in want if "RESERVED" not in n and not n.endswith(("_SUPPORTED", "UNKNOWN"))}
    assert {n for n in rows() if n.isupper()} == want


def test_exports_agree():
    said = rows()
    for name, _, kind, _ in test_abi.table("libibverbs.so.1"):
        if kind == "public":
            assert said[name] == "works", name
        elif kind == "absent":
            assert said[name] == "EOPNOTSUPP", name


def test_what_is_tried_agrees(device, probed):
    said = rows(device)
    assert {n: said.get(n) for n in probed} == probed


def test_all_that_can_be_tried_is(device, probed):
    """What is exported works on any device, unless the probe has found otherwise."""
    exported = {r[0] for r in test_abi.table("libibverbs.so.1")}
    said = rows()
    untried = {n: s for n, s in rows(device).items() if n not in probed and s != "never"
               and not n.startswith(("IBV_EVENT_", "IBV_PARENT_DOMAIN_"))}
    if device == "softhca":
        untried = {n: s for n, s in untried.items() if not n.startswith("IBV_QP_")}
    assert not set(untried) - exported
    assert untried == {n: said[n] for n in untried}
