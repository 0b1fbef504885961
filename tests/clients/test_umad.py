"""InfiniBand's tools (infiniband-diags): unmodified, over our libibumad, on one
host and between two."""
import os
import re
import socket
import subprocess

import pytest

import rig

IB = ["--infiniband"]


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
    here = "/sys/class/infiniband_mad"
    out = tool(side, f"grep . {here}/abi_version " +
               " ".join(f"{here}/{name}/{file}" for name in ("umad0", "issm0") for file in ("ibdev", "port")))
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


def test_routes(side):
    matches(tool(side, "ibtracert 2 255"), r"^\[1\] -> switch port \{0x025348cb0a5b0000\}\[\d+\] lid 255-255 ")
    matches(tool(side, "ibroute 255"), r"^0x0002 \d+ : \(Channel Adapter portguid 0x025348ca0a5b0002: ",
            r"^0x00ff 000 : \(Switch portguid 0x025348cb0a5b0000: ")


def test_ibqueryerrors(side):
    matches(tool(side, "ibqueryerrors"), "2 nodes checked, 0 bad nodes found")


def test_ibcacheedit(side, tmp_path):
    """What ibnetdiscover has kept is edited, and read by the others."""
    one, two = tmp_path / "one", tmp_path / "two"
    tool(side, f"ibnetdiscover --cache {one}")
    tool(side, f"ibcacheedit --switchguid 0x025348cb0a5b0000:0x1234 {one} {two}")
    matches(tool(side, f"ibnetdiscover --load-cache {two}"), r"switchguid=0x1234\(")


@pytest.mark.parametrize("args, lines", [
    ("", [r"NodeDescription\.+softhca virtual switch$", r"port_guid\.+0x025348ca0a5b0002$"]),
    ("-p", [r"dgid\.+fe80::253:48ca:a5b:2$", r"slid\.+2$", r"pkey\.+0xFFFF$"]),
    ("--src-to-dst 2:255", [r"slid\.+2$", r"dlid\.+255$"]), ("-g", [r"Mlid\.+0xC0"]), ("-x", [r"FromLID\.+2$"]),
    ("-c", ["SA ClassPortInfo:$"]), ("-s", [r"base_lid\.+255$"]), ("PIR", [r"EndPortLid\.+2$"])])
def test_saquery(side, args, lines):
    matches(tool(side, f"saquery {args}".strip()), *lines)


@pytest.mark.parametrize("options", [[], ["--rundir"]])
def test_containers_are_hosts(placements, rundir, options):
    """Processes of other networks of this host are seen where they share a directory."""
    place = placements("ib_netns")
    options = [*IB, *(["--rundir", rundir] if options else [])]
    server = rig.Proc(place.client, ["ibping", "-S"], options)
    try:
        server.wait_bound(4791)
        out = place.server.run(["ibnetdiscover"], options)
        assert ("H-025348ca0a5b0001" in out) == (len(options) > 1), out
        if len(options) > 1:
            matches(out, r'\]\t"H-025348ca0a5b0001"\[1\]\(25348ca0a5b0001\) \t\t# "10.91.0.1" lid 1 4xEDR$')
    finally:
        server.kill()


# ---- others ----------------------------------------------------------------


def test_srp_daemon(side):
    assert "Query did not find any targets" in tool(side, "srp_daemon -o -v")


def test_ibacm(side, tmp_path):
    """It joins its group, and has path records of the subnet's administration."""
    if missing := rig.need("ibacm", "ib_acme"):
        pytest.skip(f"not installed: {missing}")
    (tmp_path / "opts").write_text(f"log_file {tmp_path}/log\nlog_level 1\nlock_file {tmp_path}/pid\nserver_mode unix\n"
                                   "acme_plus_kernel_only no\n")
    (tmp_path / "addr").write_text("testname softib0 1 default\n")
    # A /run of its own, where its socket is.
    script = (f"mount -t tmpfs none /run || exit 77; ibacm -P -O {tmp_path}/opts -A {tmp_path}/addr & acm=$!; "
              "i=0; while ! ib_acme -f l -s 2 -d 2 -v && [ $i -lt 100 ]; do i=$((i + 1)); sleep 0.1; done; kill $acm")
    try:
        out = side.run(["unshare", *(["-r"] if os.geteuid() else []), "-m", "sh", "-c", script], IB)
    except rig.Failed as e:
        if "exit status 77" in str(e) or "unshare failed" in str(e):
            pytest.skip("no mount namespace here")
        raise
    matches(out, r"^  dlid: 2$", r"^  slid: 2$", r"^  mtu: 5$", "^SA verification: success$")
    assert "join successful" in (tmp_path / "log").read_text()


def test_opensm(side, topology, tmp_path):
    """It finds and configures what the file says, at one of whose nodes it is."""
    if missing := rig.need("opensm"):
        pytest.skip(f"not installed: {missing}")
    out = side.run(["env", f"OSM_TMP_DIR={tmp_path}", f"OSM_CACHE_DIR={tmp_path}", "opensm", "-o", "-V", "-f",
                    tmp_path / "log"], ["--fabric", f"{topology}@H-0002c903000a0001"])
    assert "SUBNET UP" in (tmp_path / "log").read_text(), out
    matches(out, r"CA : 01 : ACT : 0065 .* 0002c903000a0002 \* 0002c9020045a8b0 \(01\)|"
                 r"CA : 01 : ACT : 0065 .* 0002c903000a0002 [*:] 0002c9020045a8b0 \(01\)",
            r"CA : 01 : ACT : 0066 .* 0002c903000a0012 [*:] 0002c9020045a8b0 \(02\)",
            r"SW : 01 : ACT .* 0002c9020045a8b0 [*:] 0002c903000a0002 \(01\)")


def test_ibv_asyncwatch(side):
    watch = rig.Proc(side, ["ibv_asyncwatch"], IB)
    try:
        watch.wait_for("^softib0: async event FD")
    finally:
        watch.kill()


# ---- a fabric of a file ----------------------------------------------------

TOPOLOGY = """\
vendid=0x2c9
devid=0xcb20
sysimgguid=0x2c9020045a8b3
switchguid=0x2c9020045a8b0(2c9020045a8b0)
Switch\t8 "S-0002c9020045a8b0"\t\t# "sw1" base port 0 lid 100 lmc 0
[1]\t"H-0002c903000a0001"[1](2c903000a0002) \t\t# "node1 mlx5_0" lid 101 4xEDR
[2]\t"H-0002c903000a0011"[1](2c903000a0012) \t\t# "node2 mlx5_0" lid 102 4xEDR

vendid=0x2c9
devid=0x1017
sysimgguid=0x2c903000a0011
caguid=0x2c903000a0011
Ca\t1 "H-0002c903000a0011"\t\t# "node2 mlx5_0"
[1](2c903000a0012) \t"S-0002c9020045a8b0"[2]\t\t# lid 102 lmc 0 "sw1" lid 100 4xEDR

vendid=0x2c9
devid=0x1017
sysimgguid=0x2c903000a0001
caguid=0x2c903000a0001
Ca\t1 "H-0002c903000a0001"\t\t# "node1 mlx5_0"
[1](2c903000a0002) \t"S-0002c9020045a8b0"[1]\t\t# lid 101 lmc 0 "sw1" lid 100 4xEDR
"""


@pytest.fixture
def topology(tmp_path):
    path = tmp_path / "topology"
    path.write_text(TOPOLOGY)
    return path


def nodes_of(out):
    """What ibnetdiscover prints, without what comes with the run: a block a node."""
    blocks = (b.strip() for b in out.split("\n\n"))
    return sorted(b for b in blocks if b and not b.startswith("#"))


def test_fabric(side, topology):
    """Its nodes are there beside the port's own."""
    out = tool(side, "ibnetdiscover", "--fabric", topology)
    matches(out, '^Switch\t8 "S-0002c9020045a8b0"', '^Ca\t1 "H-0002c903000a0011"\t\t# "node2 mlx5_0"$',
            '^Ca\t1 "H-025348ca0a5b0002"')
    matches(tool(side, "ibhosts", "--fabric", topology), 'ports 1 "node1 mlx5_0"$', "0x025348ca0a5b0002 ports 1 ")
    matches(tool(side, "ibping -c 2 101", "--fabric", topology), "^2 packets transmitted, 2 received")


def test_fabric_from_within(side, topology):
    """At a node of it, a program sees what the file says, and nothing else."""
    at = f"{topology}@node2 mlx5_0"
    assert nodes_of(tool(side, "ibnetdiscover", "--fabric", at)) == nodes_of(TOPOLOGY)
    matches(tool(side, "ibstat", "--fabric", at), "Base lid: 102$", "SM lid: 100$", "Rate: 100$",
            "Node GUID: 0x0002c903000a0011$", "Port GUID: 0x0002c903000a0012$", "State: Active$")
    assert "LID start 0x66" in tool(side, "ibaddr", "--fabric", at)
    # So do the files, which scripts read, and programs that send to the subnet manager.
    matches(tool(side, "ibstatus", "--fabric", at), r"default gid:\s+fe80:0000:0000:0000:0002:c903:000a:0012$",
            r"base lid:\s+0x66$", r"sm lid:\s+0x64$", r"state:\s+4: ACTIVE$", r"phys state:\s+5: LinkUp$")
    base = "/sys/class/infiniband/softib0"
    assert tool(side, f"cat {base}/node_guid {base}/ports/1/lid", "--fabric", at) == "0002:c903:000a:0011\n0x66\n"
    matches(tool(side, "ibsrpdm -c -v", "--fabric", at), "performing a capability query")


def test_fabric_of_two_ports(side, tmp_path):
    """A node's ports are its own, by their numbers; a switch's is port 0."""
    (tmp_path / "net").write_text('Switch 4 "S-1" # "sw" lid 1\n[1] "H-1"[2]\nCa 2 "H-1" # "node"\n[2] "S-1"[1] # lid 5\n')
    at = f"{tmp_path}/net@H-1"
    base = "/sys/class/infiniband"
    assert tool(side, f"ls {base}/softib0/ports", "--fabric", at).split() == ["1", "2"]
    assert tool(side, f"cat {base}/softib0/ports/1/lid {base}/softib0/ports/2/lid", "--fabric", at) == "0x0\n0x5\n"
    assert tool(side, f"cat {base}_mad/umad0/port", "--fabric", at) == "2\n"
    at = f"{tmp_path}/net@S-1"
    assert tool(side, f"cat {base}/softib0/ports/0/lid {base}/softib0/node_type", "--fabric", at) == "0x1\n2: switch\n"


def test_what_is_set_is_seen_by_others(side, topology):
    """Until the file is written anew: then nobody has configured its fabric."""
    at = f"{topology}@node2 mlx5_0"
    matches(tool(side, "ibportstate 100 1 query", "--fabric", at), r"LinkState:\.*Active$")
    tool(side, "ibportstate 100 1 disable", "--fabric", at)
    matches(tool(side, "ibportstate 100 1 query", "--fabric", at), r"LinkState:\.*Down$", r"PhysLinkState:\.*Disabled$")
    assert "node1" not in tool(side, "ibnetdiscover", "--fabric", at)
    # Also by who is not at a node of it.
    matches(tool(side, "smpquery portinfo 100 1", "--fabric", topology), r"LinkState:\.*Down$")
    tool(side, "ibportstate 100 1 enable", "--fabric", at)
    matches(tool(side, "smpquery portinfo 100 1", "--fabric", topology), r"LinkState:\.*Initialize$")
    os.utime(topology)
    matches(tool(side, "smpquery portinfo 100 1", "--fabric", topology), r"LinkState:\.*Active$")


def test_opensm_is_found(side, topology, tmp_path):
    """Where it has run tools find the subnet manager, by the LID that it has given."""
    if missing := rig.need("opensm"):
        pytest.skip(f"not installed: {missing}")
    assert "sm lid 100 " in tool(side, "sminfo", "--fabric", f"{topology}@node1 mlx5_0")
    side.run(["env", f"OSM_TMP_DIR={tmp_path}", f"OSM_CACHE_DIR={tmp_path}", "opensm", "-o", "-f", tmp_path / "log"],
             ["--fabric", f"{topology}@node2 mlx5_0"])
    at = f"{topology}@node1 mlx5_0"
    matches(tool(side, "sminfo", "--fabric", at), "sm lid 102 sm guid 0x2c903000a0012, .* SMINFO_MASTER")
    matches(tool(side, "ibstat", "--fabric", at), "SM lid: 102$")
    assert tool(side, "cat /sys/class/infiniband/softib0/ports/1/sm_lid", "--fabric", at) == "0x66\n"
    matches(tool(side, "saquery -N", "--fabric", at), r"NodeDescription\.+node2 mlx5_0$")


def test_fabric_that_is_wrong(side, tmp_path, topology):
    bad = tmp_path / "bad"
    bad.write_text("Switch 4 \"S-1\"\nlid=3 what\n")
    out = tool(side, "true", "--fabric", bad, status=125)
    matches(out, f"^softhca: --fabric: {bad}:2: ")
    assert "has no node H-1" in tool(side, "true", "--fabric", f"{topology}@H-1", status=125)
    assert "No such file" in tool(side, "true", "--fabric", tmp_path / "none", status=125)
    # Where the tool has not looked, the library says it, and there is no port.
    out = side.run(["env", f"SOFTHCA_FABRIC={bad}", "ibaddr"], IB, status=255)
    matches(out, f"^softhca: --fabric: {bad}:2: ")


# ---- counters --------------------------------------------------------------


def counters(side, *args):
    out = tool(side, " ".join(["perfquery", *args]))
    return {k: int(v) for k, v in re.findall(r"^Port(Xmit|Rcv)(?:Data):\.*(\d+)$", out, re.M)}


def test_perfquery(placements):
    """What softhca stat has; a reset lasts, for all who look."""
    place = placements("ib")
    tool(place.server, "perfquery -R")
    place.tool("ibv_rc_pingpong", "-n", 100, "-s", 4096)
    got = counters(place.server)
    # In words of four bytes, both ways.
    assert got["Xmit"] >= 100 * 4096 * 2 // 4 and got["Rcv"] >= 100 * 4096 * 2 // 4, got
    assert counters(place.server, "-x") == got
    base = "/sys/class/infiniband/softib0/ports/1/counters"
    assert int(tool(place.server, f"cat {base}/port_xmit_data")) == got["Xmit"]
    tool(place.server, "perfquery -R")
    assert counters(place.server) == {"Xmit": 0, "Rcv": 0}
    assert int(tool(place.server, f"cat {base}/port_rcv_data")) == 0


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
        if name != "ib_netns":  # where the subnet's administration knows it
            guid = place.server.run(["ibstat", "-p"], place.options).strip()
            out = place.client.run(["ibping", "-c", "2", "-G", guid], place.options)
            matches(out, "^2 packets transmitted, 2 received, 0% packet loss")
        # The class has one server at a port.
        out = place.server.run(["ibping", "-S"], place.options, status=255)
        assert "can't serve class 50" in out
    finally:
        server.kill()


PAIRS = """
from ctypes import CDLL, Structure, byref, c_char, c_size_t, c_uint32
lib = CDLL("libibumad.so.3")
class Pair(Structure):
    _fields_ = [("smi", c_char * 20), ("smi_port", c_uint32), ("gsi", c_char * 20), ("gsi_port", c_uint32)]
pairs, one = (Pair * 4)(), Pair()
for p in pairs[:lib.umad_get_smi_gsi_pairs(pairs, c_size_t(4))]:
    print(repr(p.smi.decode()), p.smi_port, p.gsi.decode(), p.gsi_port)
print(lib.umad_get_smi_gsi_pair_by_ca_name(None, 0, byref(one), 1), one.smi.decode(), one.smi_port)
print([lib.umad_get_smi_gsi_pair_by_ca_name(*a) for a in (
    (b"softhca0", 1, byref(one), 1), (b"softhca0", 1, byref(one), 0), (b"mlx5_0", 1, byref(one), 0), (b"softib0", 2, byref(one), 0))])
print(lib.umad_open_smi_port(b"softhca0", 1), lib.umad_open_smi_port(None, 0) >= 0)
"""


def test_pairs(side):
    """Of Debian 13's: what has subnet management, and what other agents are reached by."""
    assert side.run(["/usr/bin/python3", "-c", PAIRS], ["--infiniband=both"]).splitlines() == [
        "'' 0 softhca0 1", "'softib0' 1 softib0 1", "0 softib0 1", "[1, 0, 1, 1]", "-19 True"]


AGENTS = """
import ctypes
lib = ctypes.CDLL("libibumad.so.3")
port = lib.umad_open_port(b"softib0", 1)
gets = (ctypes.c_long * 2)(1 << 1)
assert all(lib.umad_register(port, c, 1, 0, gets) >= 0 for c in (0x81, 0x06))
print("ready", flush=True)
umad, length = ctypes.create_string_buffer(1024), ctypes.c_int(256)
assert lib.umad_recv(port, umad, ctypes.byref(length), 20000) >= 0
print("class", umad.raw[lib.umad_size() + 1], flush=True)
"""
FORGE = """
import socket, sys
sys.path.insert(0, sys.argv[1])
import mad_flood
for mgmt_class in (0x81, 0x01, 0x06):
    s = mad_flood.sender("10.91.0.1")
    mad = bytes([1, mgmt_class, 1, 1]) + bytes(252)
    s[0].sendto(mad_flood.icrc_packet("10.91.0.1", "10.91.0.2", s[1], mad, 0), ("10.91.0.2", 4791))
"""


def test_no_subnet_management_by_qp1(placements):
    """Its place is QP0: a stranger's packet does not pass for a subnet manager's."""
    place = placements("ib_netns")
    server = rig.Proc(place.server, ["/usr/bin/python3", "-c", AGENTS], place.options)
    try:
        server.wait_for("ready")
        subprocess.run([*place.client.prefix, "/usr/bin/python3", "-c", FORGE, os.path.dirname(__file__)], check=True,
                       timeout=30)
        assert server.wait_for(r"class \d+")[0] == "class 6"
    finally:
        server.kill()


def test_ibsysstat(placements):
    """Another class, whose requests have attributes."""
    place = placements("ib_netns")
    server = rig.Proc(place.server, ["ibsysstat", "-S"], IB)
    try:
        server.wait_bound(4791)
        assert tool(place.client, "ibsysstat 2") == "sysstat ping succeeded\n"
        assert socket.gethostname() in tool(place.client, "ibsysstat 2 host")
    finally:
        server.kill()


def test_ibping_without_a_server(placements):
    """A host of the subnet where a program receives says at once that there is none."""
    place = placements("ib_netns")
    out = tool(place.client, "ibping -c 1 9")
    matches(out, "1 packets transmitted, 0 received, 100% packet loss")
