"""Connections by address: librdmacm's functions one by one (cm_check), and real
programs that use it, on one host, on the wire, and between hosts."""
import contextlib
import os
import re
import signal
import socket
import subprocess
import time

import pytest

import mad_flood
import rig

CHECK = rig.client("cm_check")
ROCE_PORT = 4791


def start_server(place, cmd, options=(), env=None, limit=rig.LIMIT, port=ROCE_PORT):
    """Who listens receives RoCE packets; or something else on a UDP port."""
    p = rig.Proc(place.server, cmd, [*place.options, *options], env)
    try:
        p.wait_bound(port, limit)
    except BaseException:
        p.kill()
        raise
    return p


def start_client(place, cmd, options=(), env=None):
    return rig.Proc(place.client, cmd, [*place.options, *options], env)


def pair(place, server_cmd, client_cmd, limit=rig.LIMIT, status=(0, 0), options=(), env=None):
    """Runs a server and a client to their ends; a server that goes on for ever
    (status None) is killed then."""
    server = start_server(place, server_cmd, options, env)
    try:
        client = start_client(place, client_cmd, options, env)
    except BaseException:
        server.kill()
        raise
    return rig.Pair(server, client).end(limit, status, stays=status[0] is None)


def host(place, family):
    return place.host if family == 4 else place.host6


# Functions of the library

SITUATIONS = ["life", "data", "limits", "nobody", "states", "ports", "shared_port", "options", "nonblock", "settle",
              "own_destroy", "late_refusal", "migrate", "backlog", "sync", "external", "destroy_pending",
              "destroy_getting", "destroy_channel", "acks", "shared_channel",
              "simultaneous", "churn", "types", "notify", "mcast", "errors", "srq", "addrinfo", "devices", "families"]


def check(place, name, family=4, options=(), **env):
    addr = "127.0.0.1" if family == 4 else "::1"
    return place.server.run([CHECK, name], [*place.options, *options],
                            env={"CM_CHECK_ADDR": addr, **env})


def test_all_situations_are_tested():
    names = subprocess.run([CHECK, "list"], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.split()
    assert set(names) == {*SITUATIONS, "many", "order", "order_backlog", "silent", "localhost",
                          "wait_server", "wait_client", "echo_server", "echo_client", "burst_server",
                          "burst_client", "interface", "absent", "late"}


@pytest.mark.parametrize("name", SITUATIONS)
def test_calls(placements, name):
    check(placements("local"), name)


@pytest.mark.parametrize("name", ["life", "limits", "nobody", "external", "backlog",
                                  "destroy_pending", "sync", "churn", "types", "mcast"])
def test_calls_on_the_wire(placements, name):
    check(placements("wire"), name)


@pytest.mark.parametrize("name", ["life", "data", "limits", "ports", "external", "mcast", "sync"])
def test_calls_ipv6(placements, name):
    check(placements("local"), name, 6)


SAID = {  # situation: lines that --explain adds, among others
    "states": [r"rdma_create_qp: EINVAL: the identifier's state is: new; it has no device yet: rdma_resolve_addr\(\)",
               r"rdma_resolve_route: EINVAL: .*rdma_resolve_addr\(\) first",
               r"rdma_connect: EINVAL: the identifier's state is: new; .*rdma_resolve_route\(\) first",
               r"rdma_accept: EINVAL: .*RDMA_CM_EVENT_CONNECT_REQUEST",
               r"rdma_bind_addr: EINVAL: the identifier's state is: route resolved; it can be bound once",
               r"rdma_create_qp: EINVAL: qp_type is UD, but the identifier is for RC",
               r"rdma_create_qp: EINVAL: the identifier has QP 0x\w{6} already",
               r"rdma_connect: EINVAL: responder_resources is 200; the device has at most 128"],
    "limits": [r"rdma_connect: EINVAL: 57 bytes of private data: the message has room for 56",
               r"rdma_accept: EINVAL: 197 bytes of private data: the message has room for 196",
               r"RDMA_CM_EVENT_REJECTED: ECONNREFUSED: connection to 127\.0\.0\.1 port \d+: reason 28 \(consumer reject\).*; \d+ bytes"],
    "nobody": [r"RDMA_CM_EVENT_REJECTED: .*: reason 8 \(invalid service ID\): no rdma_listen\(\) there",
               r"RDMA_CM_EVENT_UNREACHABLE: .*SIDR status 1 \(no listener",
               r"RDMA_CM_EVENT_ADDR_ERROR: ENODEV: 127\.0\.0\.77 "],
    "ports": [r"rdma_bind_addr: EADDRINUSE: port \d+ is used by another identifier of this process, for 127.*, which listens",
              r"rdma_bind_addr: EADDRNOTAVAIL: 203\.0\.113\.77 is not an address of this host",
              r"rdma_bind_addr: EAFNOSUPPORT: .*family 1"],
    "backlog": [r"RDMA_CM_EVENT_CONNECT_REQUEST: .*backlog of rdma_listen"],
    "types": [r"RDMA_CM_EVENT_CONNECT_REQUEST: .*another type of QP",
              r"RDMA_CM_EVENT_REJECTED: .*reason 9 \(invalid transport service type\)"],
    "mcast": [r"rdma_join_multicast: EINVAL: multicast is for identifiers of RDMA_PS_UDP",
              r"rdma_join_multicast: EINVAL: 127\.0\.0\.1 port 0 is not a multicast address",
              r"rdma_leave_multicast: EADDRNOTAVAIL: "],
}


@pytest.mark.parametrize("name", SAID)
def test_explain(placements, name):
    """--explain: why calls fail, and connections do not come about."""
    out = check(placements("local"), name, options=["--explain"])
    for line in SAID[name]:
        assert re.search("^softhca: " + line, out, re.M), f"{line}\n{out}"


def test_explain_who_has_the_port(placements):
    place = placements("local")
    port = rig.free_port()
    first = start_server(place, ["rping", "-s", "-p", port])
    try:
        second = rig.Proc(place.server, ["rping", "-s", "-p", port], ["--explain"])
        second.wait(30)
        assert re.search(rf"rdma_bind_addr: \w+: process {first.pid} of this host listens on port {port}$", second.output(), re.M), \
            second.output()
    finally:
        first.kill()


@pytest.mark.parametrize("where", ["local", "wire"])
def test_thousand_connections(placements, where):
    """1,000 at once, closed again, four times over: nothing is left of them."""
    check(placements(where), "many")


@pytest.mark.parametrize("name", ["life", "limits", "external", "sync"])
def test_loss(placements, name):
    """Messages and data are lost, one in ten, and it works all the same."""
    check(placements("wire"), name, options=["--loss", "10%", "--seed", "7"])


def address(family, n):
    """Of the network of placement "netns", whose hosts are 1 and 2."""
    return f"10.91.0.{n}" if family == 4 else f"fd91::{n}"


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("where", ["netns", "iwarp_netns"])
def test_absent_host(placements, where, family):
    """As with the kernel's CM: the address is not resolved."""
    place = placements(where)
    out = place.client.run([CHECK, "absent"], [*place.options, "--explain"], env={"CM_CHECK_ADDR": address(family, 97)})
    what = "ARP" if family == 4 else "neighbour discovery"
    assert re.search(rf"RDMA_CM_EVENT_ADDR_ERROR: ETIMEDOUT: the way to {address(family, 97)} leads to {address(family, 97)} on hca0, "
                     rf"which has not answered {what} within 300 ms", out), out


@contextlib.contextmanager
def network(side, *commands, undo):
    """ip(8)'s commands in a side's network, for a while."""
    for command in commands:
        rig.ip(side.prefix, command)
    try:
        yield
    finally:
        rig.ip(side.prefix, undo)


@pytest.mark.parametrize("family", [4, 6])
def test_late_host(placements, family):
    place = placements("netns")
    new = address(family, 96) + ("/24" if family == 4 else "/64")
    p = rig.Proc(place.client, [CHECK, "late"], place.options, env={"CM_CHECK_ADDR": address(family, 96)})
    try:
        p.wait_for("resolving")
        with network(place.server, f"addr add {new} dev hca0" + " nodad" * (family == 6), undo=f"addr del {new} dev hca0"):
            p.done()
    finally:
        p.kill()


def test_absent_router(placements):
    """Whoever does not answer is named: the next hop."""
    place = placements("netns")
    with network(place.client, "route add 198.51.100.0/24 via 10.91.0.95", undo="route del 198.51.100.0/24"):
        out = place.client.run([CHECK, "absent"], ["--explain"], env={"CM_CHECK_ADDR": "198.51.100.7"})
    assert "the way to 198.51.100.7 leads to 10.91.0.95 on hca0, which has not answered ARP" in out, out


def test_interface_without_arp(placements):
    """There is no neighbour to ask for."""
    place = placements("netns")
    with network(place.client, "link add quiet0 type veth peer name quiet1", "link set quiet1 up", "link set quiet0 arp off",
                 "addr add 198.51.100.1/24 dev quiet0", "link set quiet0 up", undo="link del quiet0"):
        p = rig.Proc(place.client, [CHECK, "wait_client"], env={"CM_CHECK_ADDR": "198.51.100.2", "CM_CHECK_PORT": "7174"})
        try:
            p.wait_for("connecting")
        finally:
            p.kill()


def test_silent_host(placements):
    """Its link-layer address is known, and no more."""
    place = placements("netns")
    with network(place.client, "neigh replace 10.91.0.99 lladdr 02:00:00:00:00:99 nud permanent dev hca0",
                 undo="neigh del 10.91.0.99 dev hca0"):
        out = place.client.run([CHECK, "silent"], ["--explain"],
                               env={"CM_CHECK_SILENT": "10.91.0.99", "SOFTHCA_CM_RETRIES": "2"})
    assert re.search(r"RDMA_CM_EVENT_UNREACHABLE: ETIMEDOUT: no answer from 10\.91\.0\.99 port \d+: ", out)


@pytest.mark.parametrize("family", [4, 6])
def test_refusing_host(placements, family):
    """A host where nobody receives RoCE says so (ICMP): a program need not wait
    for all retries, which takes longer than this test may."""
    place = placements("netns")
    assert place.client.run(
        [CHECK, "wait_client"], limit=30,
        env={"CM_CHECK_ADDR": host(place, family), "CM_CHECK_PORT": "7174"}) == \
        "connecting\nRDMA_CM_EVENT_UNREACHABLE -110\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="changes its user")
def test_server_that_gives_up_root(placements):
    """It has come to the registry as root, and cannot answer root's programs any more: they are refused, and told why."""
    place = placements("netns")
    port = rig.free_port()
    env = {"CM_CHECK_ADDR": place.host, "CM_CHECK_PORT": str(port)}
    server = rig.Proc(place.server, [CHECK, "wait_server"], env={**env, "CM_CHECK_UID": "65534"})
    try:
        server.wait_for("listening")
        out = place.server.run([CHECK, "wait_client"], ["--explain"], env=env, limit=30)
        assert "RDMA_CM_EVENT_REJECTED 8\n" in out, out
        assert re.search(rf"^softhca: process {server.pid} of this host has changed its user ", out, re.M), out
    finally:
        server.kill()


def no_network(placements, commands):
    """A side with nothing but its loopback interface; commands set it up."""
    placements("netns")  # skips where no namespace can be made
    return rig.Side(["unshare", *([] if os.geteuid() == 0 else ["-U", "-r"]), "-n", "sh", "-c",
                     f'{commands} && exec "$@"', "sh"])


@pytest.mark.parametrize("addr", ["127.0.0.1", "::1"])
def test_localhost(placements, addr):
    """Without a device, a program is to look for an address that others can
    reach. Where there is none (docker --network none) localhost is all there is."""
    env = {"CM_CHECK_ADDR": addr}
    no_network(placements, "ip link set lo up").run([CHECK, "localhost"],
                                                    env={**env, "CM_CHECK_ALONE": "1"})
    for options in [], ["--devices=hca0"], ["--rails=1", "--devices=hca0"]:  # no device need have it
        placements("netns").client.run([CHECK, "localhost"], options, env=env)


@pytest.mark.parametrize("addr", ["127.0.0.1", "::1", "10.93.0.1", "fd93::1"])
def test_no_network(placements, addr):
    """A host with nothing but its loopback interface is its own peer."""
    side = no_network(placements, """ip link set lo up && ip addr add 10.93.0.1/32 dev lo &&
        ip addr add fd93::1/128 dev lo nodad""")
    for name in ("life", "data", "nobody"):
        side.run([CHECK, name], env={"CM_CHECK_ADDR": addr})


@pytest.fixture
def spare(placements):
    """An interface that may be changed: its side, its name, its address."""
    side, name = placements("netns").client, "hcaspare"
    subprocess.run([*side.prefix, "sh", "-c", f"""
        ip link add {name} type veth peer name {name}p && ip link set {name}p up &&
        ip addr add 10.92.0.1/24 dev {name} && ip link set {name} up"""], check=True)
    yield side, name, "10.92.0.1"
    subprocess.run([*side.prefix, "ip", "link", "del", name], stderr=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize("what", ["address", "removal"])
def test_interface(spare, what):
    """Another hardware address, and a device that goes with its interface. An
    address that goes and comes back is neither."""
    side, name, addr = spare
    env = {"CM_CHECK_ADDR": addr}
    changes = [f"addr del {addr}/24 dev {name}", f"addr add {addr}/24 dev {name}",
               f"link set {name} address 02:00:00:00:00:17"]
    if what == "removal":
        env |= {"CM_CHECK_REMOVAL": "1", "SOFTHCA_DEVICES": f"lo,{name}"}
        changes[2] = f"link del {name}"
    p = rig.Proc(side, [CHECK, "interface"], ["--wire"], env=env)
    try:
        p.wait_for("^ready$")
        for change in changes:
            time.sleep(0.1)  # so that it is seen
            subprocess.run([*side.prefix, "ip", *change.split()], check=True)
        p.done()
    finally:
        p.kill()


def members(pid, group, interface):
    """Whether an interface of a process's network has joined a group."""
    if ":" in group:
        want = socket.inet_pton(socket.AF_INET6, group).hex()
        with open(f"/proc/{pid}/net/igmp6") as f:
            return any(r[1] == interface and r[2] == want for r in map(str.split, f))
    want, name = socket.inet_aton(group)[::-1].hex().upper(), None
    with open(f"/proc/{pid}/net/igmp") as f:
        for line in f:
            if not line[0].isspace():
                name = line.split()[1]
            elif line.split()[0] == want and name == interface:
                return True
    return False


@pytest.mark.parametrize("group", ["239.77.0.31", "ff15::77:31"])
def test_membership(placements, group):
    """A group is joined on the interface, by IGMP or MLD, and left again."""
    place = placements("netns")
    addr = "fd91::2" if ":" in group else "10.91.0.2"
    p = rig.Proc(place.server, ["mckey", "-m", group, "-b", addr, "-C", 10])
    try:
        rig.until(lambda: members(p.pid, group, "hca0"), "it is a member", p)
        holder = place.server.prefix[place.server.prefix.index("-t") + 1]
        p.kill()
        rig.until(lambda: not members(holder, group, "hca0"), "nobody is a member")
    finally:
        p.kill()


# Processes

def waiting(place, port, **env):
    return start_server(place, [CHECK, "wait_server"],
                        env={"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": place.host, **env})


def calling(place, port, **env):
    return start_client(place, [CHECK, "wait_client"],
                        env={"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": place.host, **env})


@pytest.mark.parametrize("victim", ["server", "client"])
@pytest.mark.parametrize("where", ["local", "wire"])
def test_killed_peer(placements, where, victim):
    """A process that is killed disconnects, as if its kernel did it."""
    place, port = placements(where), rig.free_port()
    server = waiting(place, port)
    client = calling(place, port)
    try:
        server.wait_for("ESTABLISHED 0")
        client.wait_for("ESTABLISHED 0")
        dead, left = (server, client) if victim == "server" else (client, server)
        dead.kill(signal.SIGKILL)
        left.wait_for("DISCONNECTED 0", 5)
        if victim == "client":  # and the server goes on
            again = calling(place, port)
            again.wait_for("ESTABLISHED 0", 10)
            again.kill()
    finally:
        client.kill()
        server.kill()


@pytest.mark.parametrize("where", ["local", "copy", "udp"])
def test_messages_before_the_end(placements, where):
    """A DREQ goes by UDP, and what was sent before it by shared memory."""
    place = placements("local")
    options = [] if where == "local" else [f"--same-host={where}"]
    env = {"CM_CHECK_ADDR": place.host}
    server = rig.Proc(place.server, [CHECK, "burst_server"], [*place.options, *options], env=env)
    client = None
    try:
        pid, port = server.wait_for(r"pid (\d+) port (\d+)").groups()
        client = rig.Proc(place.client, [CHECK, "burst_client"], [*place.options, *options],
                          env={**env, "CM_CHECK_PORT": port, "CM_CHECK_PID": pid})
        assert client.wait() == 0, client.describe() + server.describe()
        assert server.wait() == 0, client.describe() + server.describe()
    finally:
        server.kill()
        if client:
            client.kill()


@pytest.mark.parametrize("where", ["local", "wire", "netns"])
def test_exit_without_a_word(placements, where):
    place, port = placements(where), rig.free_port()
    server = waiting(place, port)
    client = calling(place, port, CM_CHECK_EXIT="1")
    try:
        client.done()
        server.wait_for("DISCONNECTED 0", 5)
    finally:
        client.kill()
        server.kill()


@pytest.mark.parametrize("where", ["local", "wire"])
def test_listener_killed_in_mid_handshake(placements, where):
    """The client is refused, and the port is free at once."""
    place, port = placements(where), rig.free_port()
    server = waiting(place, port, CM_CHECK_MUTE="1")
    client = calling(place, port)
    try:
        server.wait_for("CONNECT_REQUEST 0")
        server.kill(signal.SIGKILL)
        server = waiting(place, port)
        other = calling(place, port)
        other.wait_for("ESTABLISHED 0", 10)
        other.kill()
        # it asks again, and now somebody accepts; or it was told before
        client.wait_for("ESTABLISHED 0|REJECTED [48]", 15)
    finally:
        client.kill()
        server.kill()


def test_port_of_another_process(placements):
    place, port = placements("local"), rig.free_port()
    server = waiting(place, port)
    try:
        second = rig.Proc(place.server, [CHECK, "wait_server"], place.options,
                          {"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": place.host})
        assert second.wait() == 99, second.describe()
        assert "bind: Address already in use" in second.output(), second.describe()
        server.kill(signal.SIGTERM)
        server = waiting(place, port)
    finally:
        server.kill()


@contextlib.contextmanager
def port_holder(side, addr, user=()):
    """Somebody who has port 4791 of an address, and nothing to do with us."""
    p = subprocess.Popen(
        [*side.prefix, *user, "/usr/bin/python3", "-c", f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(({addr!r}, {ROCE_PORT}))
print("holds", flush=True)
while True:
    print(len(s.recv(9000)), flush=True)
"""], stdout=subprocess.PIPE, text=True)
    try:
        assert p.stdout.readline() == "holds\n"
        yield p
    finally:
        p.kill()
        p.wait(10)
        p.stdout.close()


ADDR = "10.91.0.1"  # of the client's side between two networks


def said(p, *words):
    """Each process says it once, and who it is."""
    text = p.output() if isinstance(p, rig.Proc) else p
    assert text.count("is taken by") == 1, text
    assert f"UDP port {ROCE_PORT} of {ADDR} is taken by" in text, text
    for word in words:
        assert word in text, text


def test_taken_port_and_other_hosts(placements):
    """No answer of theirs would come: that is said at once, not by retries."""
    place, port = placements("netns"), rig.free_port()
    user = rig.ordinary_user(65534) if os.geteuid() == 0 else ()
    words = ["user 65534"] if user else ["which does not share"]
    with port_holder(place.client, ADDR, user) as holder:
        env = {"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": place.host}
        for options in ([], ["--wire"]):
            out = place.client.run([CHECK, "wait_client"], options, status=None, env=env)
            assert "event RDMA_CM_EVENT_ADDR_ERROR status -98," in out, out
            said(out, "python3", *words)
        pingpong = ["ibv_rc_pingpong", "-n", 10, "-p", port, "-g"]
        server = rig.Proc(place.server, [*pingpong, place.server.gid_index(4)])
        try:
            server.wait_listening(port)
            call = [*pingpong, place.client.gid_index(4), place.host]
            out = place.client.run(call, status=1)
            assert "Failed to modify QP to RTR" in out, out
            said(out)
            holder.kill()
            holder.wait(10)
            server.kill()
            server = rig.Proc(place.server, [*pingpong, place.server.gid_index(4)])
            server.wait_listening(port)
            place.client.run(call)
        finally:
            server.kill()


def test_taken_port_and_this_host(placements, tmp_path):
    """Processes that share a registry reach each other all the same. Others are
    refused, and the holder of the port hears nothing of it."""
    side, port = placements("netns").client, rig.free_port()
    env = {"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": ADDR}
    procs = []

    def start(situation, **more):
        procs.append(rig.Proc(side, [CHECK, situation], env={**env, **more}))
        return procs[-1]

    try:
        with port_holder(side, ADDR) as holder:
            server = start("wait_server")
            server.wait_for("^listening$")
            client = start("wait_client")
            client.wait_for("ESTABLISHED 0")
            server.wait_for("ESTABLISHED 0")
            nobody = start("wait_client", CM_CHECK_PORT=str(port + 1))
            nobody.wait_for("REJECTED 8")
            stranger = start("wait_client", SOFTHCA_RUNDIR=str(tmp_path))
            stranger.wait_for("REJECTED 8")
            # a UD QP receives at all addresses, of which this is one
            datagrams = rig.Proc(side, ["ibv_ud_pingpong", "-p", rig.free_port(), "-g",
                                        side.gid_index(4)])
            procs.append(datagrams)
            datagrams.wait_for("is taken by")
            for p in (server, client, nobody, stranger, datagrams):
                said(p, "python3", "which does not share")
            os.set_blocking(holder.stdout.fileno(), False)
            with pytest.raises(BlockingIOError):
                os.read(holder.stdout.fileno(), 1)
    finally:
        for p in procs:
            p.kill()


def test_two_registries(placements, tmp_path):
    """Two containers on one network: the second is told, and refused by the
    first as anybody who has the wrong address."""
    side, port = placements("netns").client, rig.free_port()
    env = {"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": ADDR}
    server = rig.Proc(side, [CHECK, "wait_server"], env=env)
    try:
        server.wait_for("^listening$")
        for options, event in ([], "REJECTED 8"), (["--wire"], "ADDR_ERROR status -98"):
            out = side.run([CHECK, "wait_client"], options, status=None,
                           env={**env, "SOFTHCA_RUNDIR": str(tmp_path)})
            assert event in out, out
            said(out, "cm_check", f"does not share {tmp_path}")
        assert "is taken by" not in server.output(), server.describe()
    finally:
        server.kill()


def test_port_in_two_networks(placements):
    """A port is one network namespace's, even at an address that both have."""
    place, port = placements("netns"), rig.free_port()
    env = {"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": "127.0.0.1"}
    procs = []
    try:
        for side in (place.server, place.client):
            procs.append(rig.Proc(side, [CHECK, "wait_server"], env=env))
            procs[-1].wait_for("^listening$")
        for side, server in zip((place.server, place.client), procs[:]):
            procs.append(rig.Proc(side, [CHECK, "wait_client"], env=env))
            procs[-1].wait_for("ESTABLISHED 0")
            server.wait_for("ESTABLISHED 0")
            assert server.output().count("ESTABLISHED") == 1, server.describe()
    finally:
        for p in procs:
            p.kill()


@pytest.mark.parametrize("where", ["local", "wire", "netns"])
def test_many_listeners(placements, where):
    """Every request finds its process, whoever came first, and one that has
    nothing to do with connections does no harm."""
    place = placements(where)
    ports = [rig.free_port() for _ in range(5)]
    bystander = rig.Proc(place.server, ["ibv_ud_pingpong", "-g", place.server.gid_index(4),
                                        "-p", rig.free_port()], place.options)
    servers, clients = [], []
    try:
        servers = [waiting(place, p) for p in ports]
        clients = [calling(place, p) for p in ports]
        for c in clients:
            c.wait_for("ESTABLISHED 0")
        bystander.kill(signal.SIGKILL)
        servers.pop(0).kill(signal.SIGKILL)
        clients.append(calling(place, ports[3]))
        clients[-1].wait_for("ESTABLISHED 0")
        gone = calling(place, ports[0])
        gone.wait_for("REJECTED 8", 10)
    finally:
        for p in [bystander, *servers, *clients]:
            p.kill()


@pytest.mark.parametrize("count", [pytest.param(100000, marks=pytest.mark.full), 20000])
def test_flood_of_mads(placements, count):
    """Mutated messages while ten connections are served and new ones made. Half
    of the requests among them are nearly right, or right: they get their answer
    and come to nothing, as nobody has asked."""
    place, port = placements("wire"), rig.free_port()
    assert len(mad_flood.captured()) > 20
    env = {"CM_CHECK_PORT": str(port), "CM_CHECK_ADDR": place.host, "CM_CHECK_N": "100"}
    server = start_server(place, [CHECK, "echo_server"], env=env)
    clients = []
    sender = rig.Proc(place.server, ["/usr/bin/python3", mad_flood.__file__, port, count], alone=True)
    try:
        clients = [start_client(place, [CHECK, "echo_client"], env=env) for _ in range(10)]
        assert sender.done(4 * rig.LIMIT) == "flooded\n"
        for c in clients:
            c.done(beside=server)
        server.wait_for(rf"^{count // 100} strangers$")  # they did arrive
        last = start_client(place, [CHECK, "echo_client"], env={**env, "CM_CHECK_N": "2"})
        last.done(beside=server)
    finally:
        sender.kill()
        for c in clients:
            c.kill()
        server.kill()
