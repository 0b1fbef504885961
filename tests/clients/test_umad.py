"""InfiniBand's tools (infiniband-diags): unmodified, over our libibumad, on one
host and between two."""
import re

import pytest

import rig

IB = ["--infiniband"]
LID = {"ib": 1, "ib_netns": 2}
GUID = {"ib": "025348ca0a5b0001", "ib_netns": "025348ca0a5b0002"}


def tool(side, cmd, *options, status=0):
    if missing := rig.need(cmd.split()[0]):
        pytest.skip(f"not installed: {missing}")
    return side.run(cmd.split(), [*IB, *options], status=status)


@pytest.fixture
def side(placements):
    return placements("ib_netns").server


def matches(out, *patterns):
    for p in patterns:
        assert re.search(p, out, re.M), f"{p}\n{out}"


# ---- the port --------------------------------------------------------------


def test_ibstat(side):
    matches(tool(side, "ibstat"), r"^CA 'softib0'$", r"CA type: softhca$", r"Number of ports: 1$",
            r"Node GUID: 0x025348ca0a5b0002$", r"State: Active$", r"Physical state: LinkUp$", r"Rate: 100$",
            r"Base lid: 2$", r"LMC: 0$", r"SM lid: 255$", r"Port GUID: 0x025348ca0a5b0002$",
            r"Link layer: InfiniBand$")
    assert tool(side, "ibstat -l") == "softib0\n"
    assert tool(side, "ibstat -p") == "0x025348ca0a5b0002\n"
    assert "can't be found" in tool(side, "ibstat mlx5_0", status=255)


def test_ibstatus(side):
    """A script, which reads /sys."""
    matches(tool(side, "ibstatus"), "^Infiniband device 'softib0' port 1 status:$",
            r"default gid:\s+fe80:0000:0000:0000:0253:48ca:0a5b:0002$", r"base lid:\s+0x2$", r"sm lid:\s+0xff$",
            r"state:\s+4: ACTIVE$", r"rate:\s+100 Gb/sec \(4X\)$", r"link_layer:\s+InfiniBand$")


def test_devices_beside_it(side):
    """One of RoCE has management datagrams, one of iWARP has none."""
    assert side.run(["ibstat", "-l"], ["--infiniband=both", "--iwarp=both"]) == "softhca0\nsoftib0\n"
    matches(side.run(["ibstat", "softhca0"], ["--infiniband=both"]), "Link layer: Ethernet", "Base lid: 0$")
    assert side.run(["ibaddr"], ["--infiniband=both"]) == tool(side, "ibaddr")


def test_ibaddr(side):
    assert tool(side, "ibaddr") == "GID fe80::253:48ca:a5b:2 LID start 0x2 end 0x2\n"


def test_sysfs(side):
    out = tool(side, "grep -r . /sys/class/infiniband_mad")
    assert sorted(out.split()) == sorted([
        "/sys/class/infiniband_mad/abi_version:5", "/sys/class/infiniband_mad/umad0/ibdev:softib0",
        "/sys/class/infiniband_mad/umad0/port:1", "/sys/class/infiniband_mad/issm0/ibdev:softib0",
        "/sys/class/infiniband_mad/issm0/port:1"])


# ---- the fabric ------------------------------------------------------------


def test_smpquery(side):
    matches(tool(side, "smpquery nodeinfo 2"), r"NodeType:\.*Channel Adapter$", r"PortGuid:\.*0x025348ca0a5b0002$")
    matches(tool(side, "smpquery -D nodeinfo 0,1"), r"NodeType:\.*Switch$")
    matches(tool(side, "smpquery portinfo 2 1"), r"^Lid:\.*2$", r"SMLid:\.*255$", r"LinkState:\.*Active$")
    assert "softib0" in tool(side, "smpquery nodedesc 2")
    assert tool(side, "smpquery nodeinfo 99", status=255).count("failed") >= 1


def test_ibnetdiscover(side):
    matches(tool(side, "ibnetdiscover"), '^Switch\t\\d+ "S-025348cb0a5b0000".* lid 255 lmc 0$',
            r'^\[1\]\t"H-025348ca0a5b0002"\[1\]\(25348ca0a5b0002\) .* lid 2 4xEDR$',
            '^Ca\t1 "H-025348ca0a5b0002"')


def test_sminfo(side):
    matches(tool(side, "sminfo"), "sm lid 255 sm guid 0x25348cb0a5b0000, .* SMINFO_MASTER")


def test_iblinkinfo(side):
    matches(tool(side, "iblinkinfo"), "^Switch: 0x025348cb0a5b0000", r'255 +1\[ *\] ==\( 4X .*Active/ +LinkUp\)==> +2 +1')


@pytest.mark.parametrize("name, line", [
    ("ibhosts", r"^Ca\s*: 0x025348ca0a5b0002 ports 1 "), ("ibswitches", r"^Switch\s*: 0x025348cb0a5b0000 ports \d+ "),
    ("ibnodes", r"^Ca\s*: 0x025348ca0a5b0002 ports 1 ")])
def test_lists(side, name, line):
    out = tool(side, name)
    matches(out, line)
    assert len(out.splitlines()) == (2 if name == "ibnodes" else 1), out


# ---- ibping ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["ib", "ib_netns", "ib_wire"])
def test_ibping(placements, name):
    place = placements(name)
    if missing := rig.need("ibping"):
        pytest.skip(f"not installed: {missing}")
    lid = int(re.search(r"LID start (\w+)", place.server.run(["ibaddr"], place.options))[1], 16)
    server = rig.Proc(place.server, ["ibping", "-S"], place.options)
    try:
        server.wait_bound(4791)
        out = place.client.run(["ibping", "-c", "3", str(lid)], place.options)
        matches(out, rf"^Pong from .* \(Lid {lid}\): time", "^3 packets transmitted, 3 received, 0% packet loss")
        # The class has one server at a port.
        out = place.server.run(["ibping", "-S"], place.options, status=255)
        assert "can't serve class 50" in out
    finally:
        server.kill()


def test_ibping_without_a_server(placements):
    """A host of the subnet where a program receives says at once that there is none."""
    place = placements("ib_netns")
    out = tool(place.client, "ibping -c 1 9")
    matches(out, "1 packets transmitted, 0 received, 100% packet loss")
