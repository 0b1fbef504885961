"""docs/ERRORS.md and softhca explain, which prints its sections."""
import errno
import os
import re
import subprocess

import pytest

import rig

with open(os.path.join(rig.ROOT, "docs/ERRORS.md")) as f:
    PAGE = f.read()
SECTIONS = {m[1]: (int(m[2]), m[3].strip()) for m in
            re.finditer(r"^### (\w+) \((\d+)\)\n(.*?)(?=^#|\Z)", PAGE, re.M | re.S)}


def header_enum(header, enum):
    """Name: value, of an enum whose values count from 0."""
    text = subprocess.run(["cc", "-E", "-P", "-include", header, "-xc", "/dev/null"], text=True, check=True,
                          stdout=subprocess.PIPE).stdout
    body = re.search(rf"enum {enum} \{{([^}}]*)\}}", text)[1]
    names = [n.strip() for n in body.split(",") if n.strip()]
    assert all(re.fullmatch(r"\w+", n) for n in names), names
    return {n: i for i, n in enumerate(names)}


def explain(*names):
    return subprocess.run([rig.SOFTHCA, "explain", *map(str, names)], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=rig.LIMIT)


@pytest.mark.parametrize("header, enum", [("infiniband/verbs.h", "ibv_wc_status"),
                                          ("infiniband/verbs.h", "ibv_event_type"),
                                          ("rdma/rdma_cma.h", "rdma_cm_event_type")])
def test_every_one_of_the_header_has_its_section(header, enum):
    wanted = header_enum(header, enum)
    assert len(wanted) > 10
    prefix = os.path.commonprefix(list(wanted))
    assert {n: v for n, (v, _) in SECTIONS.items() if n.startswith(prefix)} == wanted


def test_errnos():
    named = {n: v for n, (v, _) in SECTIONS.items() if re.fullmatch(r"E[A-Z]+", n)}
    assert named == {n: getattr(errno, n) for n in named}
    # what the layers that programs call return
    returned = set()
    for folder in ("ibverbs", "process", "connect", "xrc", "transport", "verbs", "qp", "rdmacm", "engine", "cm"):
        for name in os.listdir(os.path.join(rig.ROOT, "src", folder)):
            with open(os.path.join(rig.ROOT, "src", folder, name)) as f:
                returned |= set(re.findall(r"(?:return|why\(|err =) ?-(E[A-Z]+)\b", f.read()))
    aliases = {"ENOTSUP": "EOPNOTSUPP"}
    inside = {"EMSGSIZE", "EINPROGRESS", "ENXIO"}  # which no call returns
    assert len(returned) > 10
    assert {aliases.get(n, n) for n in returned} - inside <= set(named)


def test_every_section_says_something():
    assert len(SECTIONS) > 70 and len(re.findall("^### ", PAGE, re.M)) == len(SECTIONS)
    for name, (_, text) in SECTIONS.items():
        assert len(text) > 20, name


@pytest.mark.parametrize("name", SECTIONS)
def test_explain_prints_it(name):
    p = explain(name)
    number, text = SECTIONS[name]
    assert (p.returncode, p.stderr) == (0, "")
    assert p.stdout == f"{name} ({number})\n{text.replace('`', '')}\n"


def test_names_are_found_without_prefix_and_case():
    assert explain("RETRY_EXC_ERR").stdout == explain("ibv_wc_retry_exc_err").stdout != ""
    assert explain("unreachable").stdout == explain("RDMA_CM_EVENT_UNREACHABLE").stdout != ""
    both = explain("REM_OP_ERR", "CQ_ERR").stdout
    assert both == explain("REM_OP_ERR").stdout + "\n" + explain("CQ_ERR").stdout


def printed(function, names):
    """What a function of the library makes of each."""
    code = ("import ctypes, sys; f = ctypes.CDLL(sys.argv[1])[sys.argv[2]]; f.restype = ctypes.c_char_p; "
            "print(*(f(i).decode() for i in range(int(sys.argv[3]))), sep=chr(10))")
    library = "librdmacm.so.1" if function.startswith("rdma_") else "libibverbs.so.1"
    out = subprocess.run([rig.SOFTHCA, "run", "--", "/usr/bin/python3", "-c", code, library, function,
                          str(len(names))], text=True, stdout=subprocess.PIPE, check=True, timeout=rig.LIMIT).stdout
    return dict(zip(names, out.splitlines()))


@pytest.mark.parametrize("function, prefix", [("ibv_wc_status_str", "IBV_WC_"), ("ibv_event_type_str", "IBV_EVENT_"),
                                              ("rdma_event_str", "RDMA_CM_EVENT_")])
def test_what_programs_print_is_found(function, prefix):
    names = sorted((n for n in SECTIONS if n.startswith(prefix)), key=lambda n: SECTIONS[n][0])
    for name, text in printed(function, names).items():
        want = explain(name).stdout
        assert explain(text).stdout == explain(*text.split()).stdout == want != ""
        assert want in explain(f"Failed status {text} (12) for wr_id 0").stdout
    assert explain("cannot connect: Connection refused").stdout == explain("ECONNREFUSED").stdout != ""


def test_numbers():
    assert re.findall(r"^(\w+) \(12\)$", explain(12).stdout, re.M) == \
        ["IBV_WC_RETRY_EXC_ERR", "IBV_EVENT_PKEY_CHANGE", "RDMA_CM_EVENT_MULTICAST_JOIN", "ENOMEM"]
    assert explain("--", "-110").stdout == explain("ETIMEDOUT").stdout


@pytest.mark.parametrize("name, near", [("RETRY_EXEC_ERR", "IBV_WC_RETRY_EXC_ERR"), ("EINVALL", "EINVAL"),
                                        ("REJECT", "RDMA_CM_EVENT_REJECTED"), ("rnr", "IBV_WC_RNR_RETRY_EXC_ERR")])
def test_unknown_name_has_near_ones(name, near):
    p = explain(name)
    assert p.returncode == 1 and p.stdout == ""
    assert re.search(rf"unknown error {name}; did you mean .*\b{near}\b", p.stderr)


@pytest.mark.parametrize("name", ["", "qqqqqqqqqq", "x" * 5000, "%s%n", "99999999999999999999", "IBV_WC_"])
def test_nonsense(name):
    p = explain(name)
    assert (p.returncode, p.stdout) == (1, "") and p.stderr.count("\n") == 1
    assert "unknown error" in p.stderr


def test_list_and_usage():
    assert explain("--list").stdout.split() == list(SECTIONS)
    p = explain()
    assert p.returncode == 2 and "name or number is needed" in p.stderr
