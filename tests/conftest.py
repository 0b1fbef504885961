"""How busy others kept the machine while a case failed, for scripts/test; and
how each case ended, where SOFTHCA_RESULTS names a file (clients/matrix.py)."""
import contextlib
import json
import os
import sys

import pytest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from load import Load, adopt_orphans  # noqa: E402


def pytest_configure():
    adopt_orphans()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item):
    item.load = Load()
    yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    if call.excinfo and not call.excinfo.errisinstance(pytest.skip.Exception):
        item.user_properties.append(("others", f"{item.load.others():.2f}"))
    yield


RESULTS = {}


def pytest_runtest_logreport(report):
    """A case is as bad as its worst phase."""
    why = report.longrepr[2].removeprefix("Skipped: ") if report.skipped and isinstance(report.longrepr, tuple) else ""
    if report.when == "call" or report.outcome != "passed":
        RESULTS[report.nodeid] = (report.outcome, why)


def pytest_sessionfinish():
    if not (path := os.environ.get("SOFTHCA_RESULTS")) or not RESULTS:
        return
    known = {}
    with contextlib.suppress(FileNotFoundError), open(path) as f:
        known = json.load(f)
    with open(f"{path}.new", "w") as f:
        json.dump({**known, **RESULTS}, f, indent=0)
    os.rename(f"{path}.new", path)
