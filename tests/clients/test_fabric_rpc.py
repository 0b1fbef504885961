"""A program of Mercury's shape over libfabric, src/fabric_rpc.c: Debian 12's libfabric, and Debian 13's in a bare system
of that."""
import contextlib
import os
import re
import subprocess
import sys

import pytest

import rig

sys.path.insert(0, os.path.join(rig.ROOT, "tests", "packages"))
import bare  # noqa: E402


@pytest.fixture(scope="session")
def fabric_rpc(tmp_path_factory):
    if rig.need("cc") or not os.path.exists("/usr/include/rdma/fabric.h"):
        pytest.skip("not installed: libfabric-dev (scripts/deps)")
    path = tmp_path_factory.mktemp("fabric") / "fabric_rpc"
    tests = os.path.join(rig.ROOT, "tests")
    subprocess.run(["cc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-g", "-Wall", "-Wextra", "-Werror", f"-I{tests}/lib", "-o", path,
                    f"{tests}/clients/src/fabric_rpc.c", f"{tests}/lib/peer.c", "-lfabric", "-libverbs"], check=True)
    return path


def call(place, program, *args, calls=600, endpoints=1, domain=(), **kw):
    """The client's calls, of each kind as many, are right at both ends, and no wake-up is missed."""
    pair = place.tool(program, *domain, server_args=["-a", place.host],
                      client_args=["-n", calls, "-e", endpoints, *args],
                      limit=60 + endpoints // 10, **kw)
    m = re.search(rf"^{calls} calls right over {endpoints} endpoints:((?: \d+ [A-Z]+)*), (\d+) wake-ups missed;",
                  pair.client.output(), re.M)
    assert m and all(int(n) >= calls // 6 // endpoints * endpoints for n in re.findall(r"\d+", m[1])), pair.describe()
    canceled = int(re.search(r"(\d+) CANCEL", m[1])[1])
    served = re.search(r"^(\d+) requests right, 63 receives canceled, (\d+) wake-ups missed;", pair.server.output(), re.M)
    assert served and int(served[1]) == calls + canceled, pair.describe()
    assert m[2] == served[2] == "0", pair.describe()
    return pair


@pytest.mark.parametrize("place", [*rig.PLACES, "ib_netns", "iwarp_netns"], indirect=True)
def test_calls(place, fabric_rpc):
    call(place, fabric_rpc)


def test_calls_with_loss(placements, fabric_rpc):
    call(placements("netns"), fabric_rpc, options=["--loss=1"])


# libfabric's defaults are 50 MiB for each endpoint and 2 MiB for each connection; so it is 6, and a queue has room for all.
MANY = {"FI_OFI_RXM_BUFFER_SIZE": "2048", "FI_OFI_RXM_MSG_TX_SIZE": "16", "FI_OFI_RXM_MSG_RX_SIZE": "16",
        "FI_OFI_RXM_USE_SRX": "1", "FI_UNIVERSE_SIZE": "1024"}


@pytest.mark.parametrize("place", ["local", "netns"], indirect=True)
@pytest.mark.parametrize("endpoints", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_many_endpoints(place, fabric_rpc, endpoints):
    """Of one process, each with an address and a connection of its own."""
    call(place, fabric_rpc, calls=6 * endpoints, endpoints=endpoints, env=MANY)


@pytest.fixture(scope="module")
def trixie(fabric_rpc):
    """Debian 13 with its libfabric, in which what is built here runs."""
    if os.geteuid():
        pytest.skip("needs root, for chroot(2)")
    if missing := rig.need("debootstrap"):
        pytest.skip(f"not installed: {missing} (scripts/deps full)")
    try:
        system = bare.System("trixie", include=bare.LIBFABRIC)
    except bare.Failed as e:
        pytest.skip(f"no bare Debian 13 (tests/packages/bare.py makes it): {e}")
    with contextlib.closing(system):
        for path in rig.BUILD, os.path.dirname(fabric_rpc):
            os.makedirs(f"{system.root}{path}", exist_ok=True)
            system.mount(system.stack, ["--bind", path, f"{system.root}{path}"])
        yield system.root


@pytest.mark.full
@pytest.mark.parametrize("clients", [12, 13])
@pytest.mark.parametrize("place", ["local", "netns"], indirect=True)
def test_calls_of_trixie(place, fabric_rpc, trixie, clients):
    """Between its libfabric, 2.1, and itself, and Debian 12's, 1.17."""
    def inside(side):
        return rig.Side([*side.prefix, "chroot", trixie])
    call(rig.Placement(place.name, inside(place.server), inside(place.client) if clients == 13 else place.client,
                       place.host, place.host6, place.options), fabric_rpc)
