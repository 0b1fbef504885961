"""The placements in which real clients run, and how they are skipped."""
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

sys.dont_write_bytecode = True
import rig


def pytest_configure(config):
    config.addinivalue_line("markers", "full: only in the full matrix (make test-full)")
    if not os.access(rig.SOFTHCA, os.X_OK):
        raise pytest.UsageError(f"{rig.SOFTHCA} is not there: run make build")


def pytest_runtest_setup(item):
    if time.time() > float(os.environ.get("SOFTHCA_TEST_END", "inf")):
        pytest.skip("OUT OF TIME on this machine; make test-full has no limit")


@pytest.fixture
def rundir():
    """A directory that only this test's processes use, where theirs would be."""
    path = tempfile.mkdtemp(prefix="softhca-test-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def networks():
    """Networks of namespaces by MTU, made when first asked for."""
    made, why = {}, []

    def get(mtu):
        if not why and mtu not in made:
            try:
                made[mtu] = rig.Network(mtu)
            except rig.NoNamespaces as e:
                why.append(str(e))
        if why:
            pytest.skip(f"no network namespaces here: {why[0]}")
        return made[mtu]

    yield get
    for n in made.values():
        n.close()


@pytest.fixture(scope="session")
def home(networks):
    """The prefix of commands for "one host": a namespace of our own where that
    may be, so that nothing else on this machine has port 4791 or is disturbed,
    else this host."""
    try:
        return networks(9000).a
    except pytest.skip.Exception:
        return []


@pytest.fixture(scope="session")
def placements(networks, home):
    known = {}

    def get(name):
        if name not in known:
            options = rig.OPTIONS.get(name, [])
            if "netns" in name:
                net = networks(1500 if name.endswith("1500") else 9000)
                known[name] = rig.Placement(
                    name, rig.Side(net.b), rig.Side(net.a), "10.91.0.2", "fd91::2", options)
            else:
                side = rig.Side(home)
                known[name] = rig.Placement(name, side, side, "127.0.0.1", "::1", options)
        return known[name]

    return get


@pytest.fixture(params=rig.PLACES)
def place(request, placements):
    return placements(request.param)


@pytest.fixture(scope="session")
def staged(tmp_path_factory):
    """An installed copy that every user of this machine can reach."""
    import tempfile
    with tempfile.TemporaryDirectory(prefix="softhca-stage-") as d:
        os.chmod(d, 0o755)
        subprocess.run(["cmake", "--install", rig.BUILD, "--prefix", d], check=True,
                       stdout=subprocess.DEVNULL)
        os.makedirs(f"{d}/clients")
        for name in os.listdir(rig.CLIENTS):
            path = os.path.join(rig.CLIENTS, name)
            if os.path.isfile(path) and os.access(path, os.X_OK):
                subprocess.run(["install", "-m", "755", path, f"{d}/clients/"], check=True)
        yield d


@pytest.fixture(scope="session")
def big_file(tmp_path_factory):
    """100 MB of nothing known."""
    path = tmp_path_factory.mktemp("big") / "file"
    with open(path, "wb") as f:
        f.write(os.urandom(100 << 20))
    return path
