"""InfiniBand's tools over a fabric of a file, ours and ibsim's: the same file, the same
tool, and what it prints compared line by line, or field by field where the two
may differ. ibsim's fabric has no LIDs in its tables before a subnet manager has
set them: opensm does, as it does on ours."""
import os
import re
import subprocess

import pytest

import rig

SHIM = "umad2sim/libumad2sim.so"
# ibsim reads no widths and speeds: its links are 4X SDR. Of newer devices of Mellanox
# opensm would want an attribute of theirs, which neither has.
NET = """\
vendid=0x2c9
devid=0xb924
switchguid=0x200000(200000)
Switch\t8 "S-0000000000200000"\t\t# "Switch1" base port 0 lid 1 lmc 0
[1]\t"H-0000000000100000"[1](100001) \t\t# "Hca1" lid 3 4xSDR
[2]\t"H-0000000000100006"[1](100007) \t\t# "Hca3" lid 5 4xSDR
[3]\t"S-0000000000200001"[3]\t\t# "Switch2" lid 2 4xSDR

vendid=0x2c9
devid=0xb924
switchguid=0x200001(200001)
Switch\t8 "S-0000000000200001"\t\t# "Switch2" base port 0 lid 2 lmc 0
[1]\t"H-0000000000100003"[1](100004) \t\t# "Hca2" lid 4 4xSDR
[2]\t"H-0000000000100009"[2](10000b) \t\t# "Hca4" lid 6 4xSDR
[3]\t"S-0000000000200000"[3]\t\t# "Switch1" lid 1 4xSDR
[4]\t"S-0000000000200002"[7]\t\t# "Switch3" lid 7 4xSDR

vendid=0x2c9
devid=0xb924
switchguid=0x200002(200002)
Switch\t8 "S-0000000000200002"\t\t# "Switch3" base port 0 lid 7 lmc 0
[7]\t"S-0000000000200001"[4]\t\t# "Switch2" lid 2 4xSDR
[8]\t"H-0000000000100003"[2](100005) \t\t# "Hca2" lid 8 4xSDR

vendid=0x2c9
devid=0xb924
caguid=0x100000
Ca\t2 "H-0000000000100000"\t\t# "Hca1"
[1](100001) \t"S-0000000000200000"[1]\t\t# lid 3 lmc 0 "Switch1" lid 1 4xSDR

vendid=0x2c9
devid=0xb924
caguid=0x100003
Ca\t2 "H-0000000000100003"\t\t# "Hca2"
[1](100004) \t"S-0000000000200001"[1]\t\t# lid 4 lmc 0 "Switch2" lid 2 4xSDR
[2](100005) \t"S-0000000000200002"[8]\t\t# lid 8 lmc 0 "Switch3" lid 7 4xSDR

vendid=0x2c9
devid=0xb924
caguid=0x100006
Ca\t2 "H-0000000000100006"\t\t# "Hca3"
[1](100007) \t"S-0000000000200000"[2]\t\t# lid 5 lmc 0 "Switch1" lid 1 4xSDR

vendid=0x2c9
devid=0xb924
caguid=0x100009
Ca\t2 "H-0000000000100009"\t\t# "Hca4"
[2](10000b) \t"S-0000000000200001"[2]\t\t# lid 6 lmc 0 "Switch2" lid 2 4xSDR
"""
AT = "H-0000000000100000"


class Ibsim:
    """ibsim(1) with a file, which ends with its standard input."""

    def __init__(self, directory, net):
        self.shim = next((p for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib")
                          if os.path.exists(p := os.path.join(d, SHIM))), None)
        self.env = {**os.environ, "IBSIM_SOCKNAME": f"softhca-{os.getpid()}", "SIM_HOST": AT,
                    "OSM_TMP_DIR": str(directory), "OSM_CACHE_DIR": str(directory)}
        self.log = open(directory / "ibsim.log", "wb")
        self.popen = subprocess.Popen(["ibsim", "-s", "-n", str(net)], stdin=subprocess.PIPE, stdout=self.log,
                                      stderr=self.log, cwd=directory, env=self.env)

    def run(self, cmd, limit=rig.LIMIT):
        p = subprocess.run(cmd, env={**self.env, "LD_PRELOAD": self.shim}, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, timeout=limit, check=False)
        return p.stdout

    def end(self):
        self.popen.stdin.close()
        try:
            self.popen.wait(5)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()
        self.log.close()


@pytest.fixture(scope="module")
def sim(tmp_path_factory):
    if missing := rig.need("ibsim", "opensm", "ibnetdiscover"):
        pytest.skip(f"not installed: {missing}")
    directory = tmp_path_factory.mktemp("ibsim")
    net = directory / "net"
    net.write_text(NET)
    sim = Ibsim(directory, net)
    try:
        if not sim.shim:
            pytest.skip("not installed: libumad2sim.so")
        rig.until(lambda: "Switch3" in sim.run(["ibnetdiscover"]), "ibsim answers")
        sim.run(["opensm", "--once", "-f", str(directory / "log")])
        rig.until(lambda: "1 lid" not in sim.run(["ibaddr"]), "opensm has run")
        sim.net, sim.directory = net, directory
        yield sim
    finally:
        sim.end()


@pytest.fixture
def ours(placements, sim):
    side = placements("ib_netns").server
    return lambda *cmd, **more: side.run(cmd, ["--infiniband", "--fabric", f"{sim.net}@{AT}"], **more)


# ---- line by line ------------------------------------------------------------

SAME = """
ibnetdiscover
ibnetdiscover -p
ibnetdiscover -l
ibhosts
ibswitches
ibnodes
ibaddr
ibaddr 6
ibtracert 3 6
ibtracert 3 8
ibroute 1
ibroute 2
ibroute 7
ibroute -M 2
smpquery nodedesc 6
smpquery -D nodedesc 0,1,3,1
smpquery pkeys 6
smpquery vlarb 6
smpquery vlarb 2 1
""".strip().splitlines()


@pytest.mark.parametrize("cmd", SAME)
def test_same(sim, ours, cmd):
    def said(out):
        # The date, in comments, and the widths of numbers that grow.
        return [line.rstrip() for line in out.splitlines() if "generated on" not in line]

    assert said(ours(*cmd.split())) == said(sim.run(cmd.split()))


def test_directed_routes(sim, ours):
    """Each port of each node, along the routes that lead there."""
    routes = ["0", "0,1", "0,1,2", "0,1,3", "0,1,3,1", "0,1,3,2", "0,1,3,4", "0,1,3,4,8", "0,1,3,3,2"]
    for route in routes:
        cmd = ["smpquery", "-D", "nodedesc", route]
        assert ours(*cmd) == sim.run(cmd), route
    for route in ("0,2", "0,1,9", "0,1,4", "0,1,3,1,1"):
        assert "failed" in ours("smpquery", "-D", "nodeinfo", route, status=255), route


# ---- field by field ------------------------------------------------------------


def fields(out):
    """{name: value}; names may occur more than once."""
    found = {}
    for name, value in re.findall(r"^([A-Za-z]\w*):\.*(.*)$", out, re.M):
        found.setdefault(name, []).append(value)
    assert found, out
    return found


# What is not to be the same: what a link could be, sizes of tables, what an agent can do, where the
# subnet manager is, and what opensm does not set of ibsim's port 0. ibsim counts the MADs.
LINK = {"LinkWidthSupported", "LinkSpeedSupported"}
AGENT = {"SMLid", "CapMask", "CapabilityMask2", "MkeyLeasePeriod", "GuidCap", "SubnetTimeout", "RespTimeVal"}
COUNTERS = {"PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts"}
FIELDS = [
    ("smpquery nodeinfo 1", {"PartCap"}),
    ("smpquery nodeinfo 3", set()),
    ("smpquery -D nodeinfo 0,1,3,4", {"PartCap"}),
    ("smpquery portinfo 3 1", LINK | AGENT),
    ("smpquery portinfo 6 2", LINK | AGENT),
    ("smpquery portinfo 2 0", LINK | AGENT | {"LinkWidthEnabled", "NeighborMTU", "MtuCap", "VLStallCount"}),
    ("smpquery portinfo 2 3", LINK),
    ("smpquery portinfo 7 1", LINK | {"LinkWidthEnabled", "LocalPhysErr"}),  # down
    ("smpquery switchinfo 7", {"LinearFdbCap", "DefPort", "DefMcastPrimPort", "DefMcastNotPrimPort",
                               "FilterRawInbound", "FilterRawOutbound"}),
    ("perfquery 4 1", COUNTERS),
    ("perfquery -x 4 1", COUNTERS),
    ("perfquery -a 7", COUNTERS),
]


@pytest.mark.parametrize("cmd, but", FIELDS)
def test_fields(sim, ours, cmd, but):
    a, b = fields(ours(*cmd.split())), fields(sim.run(cmd.split()))
    assert set(a) ^ set(b) <= but
    assert {k: v for k, v in a.items() if k not in but} == {k: v for k, v in b.items() if k not in but}


def test_iblinkinfo(sim, ours):
    """But for what a link could be: ibsim's could always be faster."""
    def links(out):
        return re.sub(r"\([^()]*\)$", "", out, flags=re.M)

    assert links(ours("iblinkinfo")) == links(sim.run(["iblinkinfo"]))


# ---- opensm --------------------------------------------------------------------


def test_opensm(sim, ours, tmp_path):
    """It configures our fabric, and writes down the same nodes and links."""
    env = {**os.environ, "OSM_TMP_DIR": str(tmp_path), "OSM_CACHE_DIR": str(tmp_path)}
    out = ours("opensm", "--once", "-f", str(tmp_path / "log"), env=env)
    assert "Entering MASTER state" in out
    assert " ERR " not in (tmp_path / "log").read_text()
    for name in "opensm-subnet.lst", "guid2lid", "neighbors":
        assert (tmp_path / name).read_text() == (sim.directory / name).read_text(), name


def test_opensm_beside_the_virtual_switch(placements, tmp_path):
    """Of hosts' own fabric there is a subnet manager; another one stands by."""
    if missing := rig.need("opensm"):
        pytest.skip(f"not installed: {missing}")
    env = {**os.environ, "OSM_TMP_DIR": str(tmp_path), "OSM_CACHE_DIR": str(tmp_path)}
    opensm = rig.Proc(placements("ib_netns").server, ["opensm", "-f", str(tmp_path / "log")], ["--infiniband"], env)
    try:
        rig.until(lambda: "Entering STANDBY state" in opensm.output(), "it stands by", opensm)
    finally:
        opensm.kill()


# ---- what ibsim has not ----------------------------------------------------------


def test_saquery(ours):
    """Subnet administration says what the agents say."""
    def records(*args, say):
        return re.findall(rf"^\s*{say}\.+(.*)$", ours("saquery", *args), re.M)

    def total(out):
        return re.findall(r"(\d+) nodes checked, (\d+) bad", out)

    assert records("-N", say="NodeDescription") == [
        "Switch1", "Switch2", "Switch3", "Hca1", "Hca2", "Hca2", "Hca3", "Hca4"]
    assert sorted(records("LR", say="FromLID")) == sorted("1 1 1 2 2 2 2 7 7 3 4 8 5 6".split())
    assert len(records("PIR", say="PortNum")) == 3 * 9 + 5
    out = ours("saquery", "--src-to-dst", "3:8")
    for pattern in r"dgid\.+fe80::10:5$", r"sgid\.+fe80::10:1$", r"mtu\.+0x84$", r"rate\.+0x83$":
        assert re.search(pattern, out, re.M), out
    assert "SMINFO_MASTER" in ours("sminfo")
    assert total(ours("ibqueryerrors")) == [("7", "0")]
    # By GUIDs it takes PathRecords, and LID and directed route together no other agent.
    assert ours("ibtracert", "-G", "0x100001", "0x10000b") == ours("ibtracert", "3", "6")
    assert "Switch3" in ours("smpquery", "-c", "nodedesc", "2", "0,4")


def test_a_thousand_nodes(placements, tmp_path):
    """32 leaves and 8 spines, 960 CAs: as many are found, and each has its LID."""
    if missing := rig.need("ibnetdiscover"):
        pytest.skip(f"not installed: {missing}")
    net, lines = tmp_path / "net", []
    for leaf in range(32):
        lines += [f'Switch 48 "leaf{leaf}" # "leaf{leaf}" enhanced port 0 lid {1000 + leaf} lmc 0']
        lines += [f'[{h + 1}] "node{leaf * 30 + h}"[1] # 4xEDR' for h in range(30)]
        lines += [f'[{31 + s}] "spine{s}"[{leaf + 1}] # 4xHDR' for s in range(8)]
    lines += [f'Switch 40 "spine{s}" # "spine{s}" lid {1100 + s}' for s in range(8)]
    for ca in range(960):
        lines += [f'Ca 1 "node{ca}"', f'[1] "leaf{ca // 30}"[{ca % 30 + 1}] # lid {ca + 1} lmc 0']
    net.write_text("\n".join(lines) + "\n")
    side = placements("ib_netns").server
    options = ["--infiniband", "--fabric", f"{net}@node0"]
    out = side.run(["ibnetdiscover"], options)
    assert len(re.findall(r"^Switch\t", out, re.M)) == 40
    assert len(re.findall(r"^Ca\t1 ", out, re.M)) == 960
    assert len(re.findall(r"4xHDR$", out, re.M)) == 2 * 32 * 8
    # What was printed is a fabric again, the same.
    again = tmp_path / "again"
    again.write_text(out)
    first, second = (sorted(o.split("\n\n")[1:]) for o in (
        out, side.run(["ibnetdiscover"], ["--infiniband", "--fabric", f"{again}@node0"])))
    assert first == second
    assert re.search(r'^To ca .*lid 960-960 "node959"$', side.run(["ibtracert", "1", "960"], options), re.M)
