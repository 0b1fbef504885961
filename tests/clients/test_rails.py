"""Several devices on one host: --rails, --names, --pci and --numa. Each has an address, counters and faults of its own,
and a rail that fails is no other's."""
import json
import os
import re
import subprocess

import pytest

import rig
from test_cm_tools import fi_pingpong, four_rails
from test_mpi import four_ranks, programs  # noqa: F401 (a fixture)


def softhca(home, *args, status=0, rundir=None):
    env = dict(os.environ, **({"SOFTHCA_RUNDIR": rundir} if rundir else {}))
    p = subprocess.run([*home, rig.SOFTHCA, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                       timeout=rig.LIMIT, env=env)
    assert p.returncode == status, p.stderr
    return p


def devices(home, *options):
    return json.loads(softhca(home, "run", *options, "--", rig.SOFTHCA, "devices", "--json").stdout)


def addresses(device):
    return [g["address"] for g in device["ports"][0]["gids"]]


def test_on_loopback(home):
    rails = devices(home, "--rails=8", "--names=mlx5_%d")
    assert [d["name"] for d in rails] == [f"mlx5_{i}" for i in range(8)]
    assert [d["softhca_name"] for d in rails] == [f"softhca{i}" for i in range(8)]
    assert [addresses(d) for d in rails] == [[f"127.0.0.{i + 2}"] for i in range(8)]
    assert len({d["node_guid"] for d in rails}) == 8
    assert [addresses(d) for d in devices(home, "--rails=2", "--addr=127.0.1.1")] == [["127.0.1.1"], ["127.0.1.2"]]
    assert [addresses(d) for d in devices(home, "--rails=127.0.0.9,127.0.0.7")] == [["127.0.0.9"], ["127.0.0.7"]]


@pytest.fixture(scope="module")
def four():
    """Two networks whose interface has four addresses of each kind."""
    try:
        net = rig.Network(9000)
    except rig.NoNamespaces as e:
        pytest.skip(f"no network namespaces here: {e}")
    for prefix, host in (net.a, 1), (net.b, 2):
        for rail in range(1, 4):
            rig.ip(prefix, f"addr add 10.91.{rail}.{host}/24 dev hca0")
            rig.ip(prefix, f"-6 addr add fd91:{rail}::{host}/64 dev hca0 nodad")
    yield net
    net.close()


def test_on_an_interface(four):
    rails = devices(four.a, "--rails=4", "--devices=hca0")
    want = [["10.91.0.1", "fd91::1"], *([f"10.91.{i}.1", f"fd91:{i}::1"] for i in range(1, 4))]
    assert [[a for a in addresses(d) if not a.startswith("fe80")] for d in rails] == want
    assert len([a for d in rails for a in addresses(d) if a.startswith("fe80")]) == 1  # it has no more
    assert len({d["node_guid"] for d in rails}) == 4
    blocks = devices(four.a, "--rails=4", "--devices=hca0,lo")
    assert [addresses(d)[0] for d in blocks] == ["10.91.0.1", "10.91.1.1", "127.0.0.2", "127.0.0.3"]
    p = softhca(four.a, "run", "--rails=8", "--devices=hca0", "--", "true", status=125)
    assert "8 rails on hca0 need 8 addresses of it, and it has 4: ip address add" in p.stderr


@pytest.mark.parametrize("option,says", [
    ("--rails=0", "a number from 1 to 16"), ("--rails=17", "a number from 1 to 16"), ("--rails=4x", "a number"),
    ("--rails=", "needs a value"), ("--rails=192.0.2.77", "192.0.2.77 is not"),
    ("--rails=127.0.0.1,127.0.0.1", "twice"), ("--rails=1,2", "a number"),
    ("--names=mlx5", "one %d"), ("--names=%d%d", "one %d"), ("--names=../%d", "one %d"), ("--names=%d" + "x" * 60, "one %d"),
    ("--pci=0000:17:00", "0000:17:00.0"), ("--pci=0000:17:20.0", "0000:17:00.0"), ("--pci=,", "0000:17:00.0"),
    ("--numa=a", "NUMA node"), ("--numa=0,", "NUMA node"), ("--numa=4096", "NUMA node"),
])
def test_bad_values(home, option, says):
    assert says in softhca(home, "run", option, "--", "true", status=125).stderr


def test_any_address_of_loopback(home):
    assert addresses(devices(home, "--addr=127.0.0.9")[0])[0] == "127.0.0.9"


def test_wrong_variables_are_ignored(home):
    p = subprocess.run([*home, rig.SOFTHCA, "run", "--", "ibv_devices"], text=True, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=rig.LIMIT,
                       env=dict(os.environ, SOFTHCA_NAMES="%s", SOFTHCA_PCI="x", SOFTHCA_NUMA="x"))
    assert all(f"{v} ignored" in p.stderr for v in ("SOFTHCA_NAMES=%s", "SOFTHCA_PCI=x", "SOFTHCA_NUMA=x")), p.stderr
    assert "softhca0" in p.stdout


RAILS = ["--rails=4", "--names=mlx5_%d"]
NAMES = [f"mlx5_{i}" for i in range(4)]


def test_counters_are_each_rails(placements, rundir):
    """Of the third alone, of a program that has ended; stat has both names."""
    env = {"SOFTHCA_RUNDIR": rundir}
    place = placements("local")
    place.tool("ib_write_bw", "-F", "-n", 100, "-s", 65536, "-d", "mlx5_2", options=RAILS, env=env)
    sent = rig.sent(place.server, NAMES, RAILS, env)
    assert sent[2] >= 100 * 65536 and sent[:2] + sent[3:] == [0, 0, 0], sent
    with rig.running(place.server.prefix, ["ib_write_bw", "-F", "-n", 100000000, "-d", "mlx5_1"], RAILS, env):
        def stat():
            return [d for p in json.loads(softhca(place.server.prefix, "stat", "--json", rundir=rundir).stdout)
                    for d in p.get("devices", [])]
        rig.until(lambda: len(stat()) == 2, "both ends are listed")
        assert {(d["name"], d["softhca_name"]) for d in stat()} == {("mlx5_1", "softhca1")}


@pytest.mark.parametrize("dev,fails", [("mlx5_1", True), ("mlx5_2", False), ("softhca1", True)])
def test_a_rail_fails(placements, tmp_path, dev, fails):
    """The one that a script names, by either name, and no other."""
    script = tmp_path / "script"
    script.write_text(f"drop any dev={dev} dir=both\nraise port_err dev=mlx5_9\n")
    place = placements("local")
    pair = place.tool("ib_send_lat", "-F", "-n", 20, "-u", 8, "-d", "mlx5_1", options=[*RAILS, "--faults", script],
                      status=(None, None) if fails else (0, 0), stays=fails)
    assert ("transport retry counter exceeded" in pair.client.output().lower() or
            "status 12" in pair.client.output()) == fails, pair.describe()
    assert "line 2 of" in pair.client.output() and "there is no device mlx5_9" in pair.client.output()


PORT_ACTIVE, PORT_ERR = r"IBV_EVENT_PORT_ACTIVE", r"IBV_EVENT_PORT_ERR"


def watch(side, rail, *options):
    p = rig.Proc(side, ["stdbuf", "-oL", "ibv_asyncwatch", "-d", f"mlx5_{rail}"], [*RAILS, *options])
    p.wait_for("async event FD")
    return p


def test_an_event_of_a_rail(home, tmp_path):
    script = tmp_path / "script"
    script.write_text("raise port_err dev=mlx5_1 after 300ms\nraise sm_change after 600ms\n")
    rails = [watch(rig.Side(home), i, "--faults", script) for i in range(2)]
    try:
        for p in rails:
            p.wait_for("IBV_EVENT_SM_CHANGE")
        assert [bool(re.search(PORT_ERR, p.output())) for p in rails] == [False, True], rails[0].output()
    finally:
        for p in rails:
            p.kill()


@pytest.mark.parametrize("kind,want", [
    ("--iwarp=both", ["softhca0", "softhca1", "softiw0", "softiw1"]),
    ("--infiniband=both", ["softhca0", "softhca1", "softib0", "softib1"])])
def test_of_other_kinds(four, kind, want):
    got = devices(four.a, "--rails=2", "--devices=hca0", kind)
    assert [d["name"] for d in got] == want
    assert [d["name"] for d in devices(four.a, "--rails=2", "--devices=hca0", "--names=x%d-", kind)] == \
        ["x0-", "x1-", "x2-", "x3-"]
    lids = [d["ports"][0]["lid"] for d in got if "lid" in d["ports"][0]]
    assert len(lids) == 2 * (kind == "--infiniband=both")
    gids = [g["gid"] for d in got for g in d["ports"][0]["gids"]]
    assert len(set(gids)) == len(gids), gids    # also of iWARP's, that are the interface's MAC address


@pytest.mark.parametrize("options", [[], ["--wire"], ["--same-host=copy"], ["--iwarp"]], ids=lambda o: o[0] if o else "")
def test_rdma_cm_over_a_rail(placements, options):
    """A listener on all rails; a client of one of them."""
    place = placements("local")
    port = rig.free_port()
    server = rig.Proc(place.server, ["rping", "-s", "-a", "0.0.0.0", "-p", port, "-C", 3, "-V"], [*RAILS, *options])
    try:
        def connected():
            c = rig.Proc(place.client, ["rping", "-c", "-a", "127.0.0.4", "-p", port, "-C", 3, "-V"], [*RAILS, *options])
            return c.wait() == 0
        rig.until(connected, "the third rail is connected", server)
        server.done()
    finally:
        server.kill()


def on_hca0(four, hosts=2, rails=RAILS):
    """The rails of an interface, within a host or between two."""
    sides = [rig.Side(four.a), rig.Side(four.b)][:hosts]
    return rig.Placement(f"{hosts} with rails", sides[-1], sides[0], f"10.91.0.{hosts}", f"fd91::{hosts}",
                         [*rails, "--devices=hca0"])


def test_two_hosts(four):
    """Each rail reaches the same of the other host, by its own address."""
    for rail in 0, 3:
        pair = on_hca0(four).tool("ib_write_bw", "-F", "-n", 50, "-d", f"mlx5_{rail}", "-x", 0)
        assert f"GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:91:{rail:02d}:02" in pair.client.output()


# libfabric, which makes a domain of each rail, and MPI over it and over UCX.

ON_HCA0 = {"FI_VERBS_IFACE": "hca0"}


def test_libfabric_finds_rails(four):
    """By their addresses of the interface that it is told, and none by those of another."""
    def found(interface):
        out = rig.Proc(on_hca0(four).client, ["fi_info", "-v", "-p", "verbs", "-t", "FI_EP_MSG"], [*RAILS, "--devices=hca0"],
                       {"FI_VERBS_IFACE": interface}).done(status=None)
        return re.findall(r"src_addr: fi_sockaddr_in://(\S+):0\n(?:.*\n)*?\s+fi_domain_attr:\n.*\n\s+name: (\S+)", out)
    assert found("hca0") == [(f"10.91.{i}.1", d) for i, d in enumerate(NAMES)]
    assert found("eth") == []


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("endpoint", ["msg", "rdm", "dgram"])
def test_fi_pingpong(four, hosts, endpoint):
    """By the rail whose domain it asks for, and no other."""
    place = on_hca0(four, hosts)
    suffix, size = ("-dgram", 1000) if endpoint == "dgram" else ("", 100000)
    for rail in 0, 3:
        before = rig.sent(place.client, NAMES, place.options)
        fi_pingpong(place, endpoint, "-d", NAMES[rail] + suffix, "-S", size, host=f"10.91.{rail}.{hosts}", env=ON_HCA0)
        parts = [n - b for n, b in zip(rig.sent(place.client, NAMES, place.options), before)]
        assert parts[rail] > 20 * size > sum(parts) - parts[rail], parts


@pytest.mark.full
@pytest.mark.parametrize("where, stack", [  # libfabric looks at no address of lo
    ("loopback", "openmpi-ucx"), *((hosts, f"openmpi-{over}") for hosts in (1, 2) for over in ("ucx", "libfabric"))])
def test_mpi(four, home, programs, where, stack, tmp_path):  # noqa: F811
    """UCX deals large messages over all rails."""
    if where == "loopback":
        side = rig.Side(home)
        place = rig.Placement("rails of loopback", side, side, "127.0.0.1", "::1", RAILS)
    else:
        place = on_hca0(four, where)
    before = rig.sent(place.client, NAMES, place.options)
    said = four_ranks(place, stack, programs, tmp_path, {**four_rails(), **ON_HCA0})
    parts = [n - b for n, b in zip(rig.sent(place.client, NAMES, place.options), before)]
    assert (min(parts) if "ucx" in stack else max(parts)) > said // 16, (parts, said)


# transfer: a transfer engine's manner, over four rails, each byte checked.

def right(pair, rounds):
    out = pair.client.output()
    m = re.search(r"^(\d+) rounds of 64 MiB right, (\d+) slices, rails failed (\d+), came back (\d+), targets (\d+)$", out, re.M)
    assert m and int(m[1]) == rounds, pair.describe()
    return [int(n) for n in m.groups()[2:]]


@pytest.mark.parametrize("options", [[], ["--same-host=copy"], ["--wire"], ["--wire", "--loss=1"]], ids=" ".join)
def test_transfer(placements, options):
    pair = placements("local").tool(rig.client("transfer"), client_args=["-n", 2], options=["--rails=4", *options])
    assert right(pair, 2) == [0, 0, 1]


@pytest.mark.parametrize("loss", [[], ["--loss=1"]], ids=["", "loss"])
def test_transfer_between_hosts(four, loss):
    pair = on_hca0(four, rails=["--rails=4"]).tool(rig.client("transfer"), client_args=["-n", 2], options=loss)
    assert right(pair, 2) == [0, 0, 1]


def test_transfer_fails_over(placements, tmp_path):
    """A rail is lost in the middle of it, and comes back."""
    script = tmp_path / "script"
    script.write_text("drop any dev=softhca2 dir=both after 10MB for 500ms\n")
    pair = placements("local").tool(rig.client("transfer"), client_args=["-n", 10], options=["--rails=4", "--faults", script])
    failed, back, targets = right(pair, 10)
    assert failed >= 1 and back >= 1 and targets == 1, pair.describe()


@pytest.mark.parametrize("way", [[], ["--same-host=copy"], ["--wire"]], ids=" ".join)
def test_transfer_to_one_that_restarts(home, way):
    """With the same name, and other keys and numbers."""
    side, port = rig.Side(home), rig.free_port()
    cmd, options = [rig.client("transfer"), "-p", port], ["--rails=4", *way]
    servers = [rig.Proc(side, cmd, options)]
    client = None
    try:
        servers[0].wait_listening(port)
        client = rig.Proc(side, [*cmd, "-n", 8, "127.0.0.1"], options)
        client.wait_for("^round 1:")
        servers[0].kill()
        servers.append(rig.Proc(side, cmd, options))
        client.done()
        assert right(rig.Pair(servers[1], client), 8)[2] == 2
    finally:
        for p in [*servers, *([client] if client else [])]:
            p.kill()


# netplugin: the life of a collectives library's plugin.

def all_right(pair, rails, messages=200):
    for p in pair.server, pair.client:
        assert re.search(rf"^{messages} messages of {rails * 80000} bytes right, {rails} rails, dma-buf EBADF$", p.output(), re.M), \
            pair.describe()


@pytest.mark.parametrize("options", [[], ["--same-host=copy"], ["--same-host=udp"], ["--wire"], ["--wire", "--loss=1"]], ids=" ".join)
def test_net_plugin(placements, options):
    all_right(placements("local").tool(rig.client("netplugin"), options=[*RAILS, *options]), 4)


@pytest.mark.parametrize("family", [[], ["-6"]], ids=["v4", "v6"])
@pytest.mark.parametrize("loss", [[], ["--loss=1"]], ids=["", "loss"])
def test_net_plugin_between_hosts(four, family, loss):
    all_right(on_hca0(four).tool(rig.client("netplugin"), *family, options=loss), 4)


def test_net_plugin_on_one_device(placements):
    """The default device, whose first GID is no rail's."""
    all_right(placements("netns").tool(rig.client("netplugin")), 1)


# p2p: a P2P engine's, of many small writes with its own acknowledgements.

@pytest.mark.parametrize("type", ["rc", "uc"])
@pytest.mark.parametrize("options", [[], ["--same-host=copy"], ["--wire"], ["--wire", "--loss=1"]], ids=" ".join)
def test_p2p(placements, type, options):
    pair = placements("local").tool(rig.client("p2p"), "-t", type, options=["--rails=2", *options])
    m = re.search(r"^(\d+) writes right, (\d+) sent again$", pair.client.output(), re.M)
    assert m and m[1] == "20000", pair.describe()
    if type == "rc":
        assert m[2] == "0"


@pytest.mark.parametrize("type", ["rc", "uc"])
def test_p2p_between_hosts(four, type):
    pair = on_hca0(four, rails=["--rails=2"]).tool(rig.client("p2p"), "-t", type, options=["--loss=1"])
    m = re.search(r"^20000 writes right, (\d+) sent again$", pair.client.output(), re.M)
    assert m and (int(m[1]) > 0) == (type == "uc"), pair.describe()


def test_an_address_goes_and_comes_back(four):
    """Its rail goes down, and up; the others have the addresses that they had. Afterwards the interface has its addresses
    in another order, so this is the last test."""
    side = rig.Side(four.a)
    rails = [watch(side, i, "--devices=hca0") for i in range(3)]
    try:
        rig.ip(four.a, "addr del 10.91.1.1/24 dev hca0")
        rig.ip(four.a, "-6 addr del fd91:1::1/64 dev hca0")
        rails[1].wait_for(PORT_ERR)
        rig.ip(four.a, "addr add 10.91.1.1/24 dev hca0")
        rig.ip(four.a, "-6 addr add fd91:1::1/64 dev hca0 nodad")
        rails[1].wait_for(PORT_ACTIVE)
    finally:
        for p in rails:
            p.kill()
    assert not any("event_type" in p.output() for p in (rails[0], rails[2])), rails[2].output()
