"""How busy others kept the machine while a case failed, for scripts/test."""
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
