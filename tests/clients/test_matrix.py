"""docs/CLIENTS.md is what matrix.py writes, and its families have cases."""
import re

import pytest

import matrix


@pytest.fixture(scope="module")
def known():
    return matrix.collect()


def test_families_have_cases(known):
    for name, family in matrix.FAMILIES.items():
        for pattern in family.cases:
            assert any(re.search(pattern, c) for c in known), f"{name}: no case is {pattern}"


def test_page(known):
    """But for versions and results, which are of who ran it all."""
    def rest(text):
        text = re.sub(r"packages of [^.\n]*", "packages of #", text)
        return re.sub(r"^(\| [^|]+ \|) [^|]*(\|.*\|) [^|]* \|$", r"\1 # \2 # |", text, flags=re.M)

    with open(matrix.PAGE) as f:
        assert rest(f.read()) == rest(matrix.page({}, known)), "run tests/clients/matrix.py --write"


def test_result():
    case = "tests/clients/test_migration.py::test_migration[%s]"
    known = [case % c for c in "abcd"]
    cases = {case % "a": ("passed", ""), case % "b": ("skipped", "no qemu"), case % "gone": ("failed", "")}
    assert matrix.result("QEMU", {}, known) == "not run"
    assert matrix.result("QEMU", cases, known) == "1 passed, 1 skipped: no qemu, 2 not run"
    cases[case % "c"] = ("failed", "")
    assert matrix.result("QEMU", cases, known) == "1 passed, **1 failed**, 1 skipped: no qemu, 1 not run"


def test_page_keeps(known):
    """What is recorded elsewhere stays as the page has it; what is recorded here does not."""
    case = next(c for c in known if matrix.belongs(c, "fio"))
    before = matrix.page({c: ("passed", "") for c in known}, known)
    after = matrix.rows(matrix.page({case: ("failed", "")}, known, before))
    assert "**1 failed**" in after.pop("fio")[1]
    assert after == {k: v for k, v in matrix.rows(before).items() if k != "fio"}
    assert matrix.rows(before).keys() >= matrix.FAMILIES.keys()
