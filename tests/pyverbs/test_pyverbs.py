"""Each of rdma-core's own tests as one case; tests/pyverbs/run does the work.

A test that skips itself does so for a reason in docs/VERBS.md, section "Tests
that skip": what is skipped without being listed there is a failure here.
"""
import fnmatch
import importlib.machinery
import importlib.util
import os
import re

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
DOC = os.path.join(HERE, "..", "..", "docs", "VERBS.md")
_loader = importlib.machinery.SourceFileLoader("pyverbs_run", os.path.join(HERE, "run"))
runner = importlib.util.module_from_spec(importlib.util.spec_from_loader("pyverbs_run", _loader))
_loader.exec_module(runner)


def listed():
    """Patterns of the tests that may skip."""
    with open(DOC) as f:
        section = f.read().partition("\n## Tests that skip\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(test_[^`]+)`", section, re.M)


def pytest_generate_tests(metafunc):
    if "name" not in metafunc.fixturenames:
        return
    try:
        names = runner.names()
    except (OSError, ValueError, runner.subprocess.CalledProcessError):
        names = [pytest.param("", marks=pytest.mark.skip("rdma-core or python3-pyverbs is missing"))]
    metafunc.parametrize("name", names)


@pytest.fixture(scope="session")
def results():
    args = runner.parser().parse_args([])
    return {name: (verdict, text) for name, verdict, text, _ in runner.run(args)}


def test_pyverbs(name, results):
    assert "the run" not in results, results["the run"]
    assert name in results, "it did not run"
    verdict, text = results[name]
    assert verdict != "failed", text
    if verdict == "skipped":
        assert any(fnmatch.fnmatch(name, p) for p in listed()), \
            f"skips itself ({text}), which docs/VERBS.md does not list"
        pytest.skip(text)
