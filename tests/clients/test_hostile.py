"""Hostile datagrams while a transfer runs, see src/storm.c."""
import os
import re
import signal
import subprocess

import pytest

import rig
from test_data import numbers
from test_processes import LONG

STORM = rig.client("storm")
CHECK = rig.client("verbs_check")
COUNT = 100000


def rss(proc):
    m = re.search(r"rss (\d+) KiB", proc.output())
    assert m, proc.describe()
    return int(m[1])


def victims_of(*ends):
    """Words for the storm that name their victims."""
    found = [m.groups() for end in ends
             for m in re.finditer(r"victim qpn=(\d+) psn=(\d+) rkey=(\d+) addr=(\d+)", end.output())]
    return [word for v in found for word in ("-v", ":".join(v))]


def storms(place, kinds, count, gid, host, address):
    """A transfer with checked data, and the storms; the two ends."""
    port = rig.free_port()
    cmd = [CHECK, "-p", port, "-o", "mix", "-s", 8000, "-r", 32, "-V", 8, "-u", 12, "-t", 7,
           "-D", LONG, "-g", gid]
    server = rig.Proc(place.server, cmd, place.options)
    client = None
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, host], place.options)
        client.wait_for("^ready")
        server.wait_for("^ready")
        victims = victims_of(server, client)
        assert len(victims) == 2 * 2 * 8
        sent = []
        for seed, kind in enumerate(kinds):
            # From the host itself: the source is then what the QPs expect.
            s = rig.Proc(place.server, [STORM, "-m", kind, "-n", count, "-X", seed + 1, "-P", 60000,
                                        *victims, address])
            s.done(60)
            sent.append(s.output())
        client.tell(signal.SIGTERM)
        rig.Pair(server, client).end(60)
        assert numbers(server)["messages"] > 50, server.describe()
        assert numbers(server)["wrong"] == 0
        return server, client
    finally:
        server.kill()
        if client:
            client.kill()


@pytest.mark.parametrize("kind", ["random", "mutated"])
def test_storm(placements, kind):
    """100,000 datagrams at port 4791: no crash, and the transfer finishes."""
    place = placements("wire")
    gid = place.server.gid_index(4)
    address = place.server.gids()[gid].removeprefix("::ffff:")
    storms(place, [kind], COUNT, gid, place.host, address)


def test_storm_ipv6(placements):
    place = placements("wire")
    gid = place.server.gid_index(6)
    storms(place, ["mutated"], COUNT // 4, gid, place.host6, place.server.gids()[gid])


def private_ports(proc):
    """Ports of any address, found as any local user would."""
    with open(f"/proc/{proc.pid}/net/udp") as f:
        rows = [line.split()[1] for line in f][1:]
    return {int(row[9:], 16) for row in rows if row.startswith("00000000:")}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_storm_of_another_user_at_the_private_ports(placements):
    """What another user sends to the ports that processes of one host use among
    themselves does nothing, however well it knows the QPs."""
    place = placements("local")
    port = rig.free_port()
    gid = place.server.gid_index(4)
    address = place.server.gids()[gid].removeprefix("::ffff:")
    cmd = [CHECK, "-p", port, "-o", "mix", "-s", 8000, "-r", 32, "-V", 8, "-D", LONG, "-g", gid]
    with open(STORM, "rb") as f:
        storm = os.memfd_create("storm")  # the tree may be out of that user's reach
        os.write(storm, f.read())
    server = rig.Proc(place.server, cmd, place.options)
    client = None
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, place.host], place.options)
        for end in (server, client):
            end.wait_for("^ready")
        victims = victims_of(server, client)
        ports = private_ports(server)
        assert len(ports) >= 2
        for p in ports:
            s = subprocess.run([*place.server.prefix, "setpriv", "--reuid=65534",
                                "--regid=65534", "--clear-groups", f"/proc/self/fd/{storm}",
                                "-m", "mutated", "-n", "4000", "-p", str(p), *victims, address],
                               pass_fds=[storm], timeout=60, capture_output=True)
            assert s.returncode == 0, s
        client.tell(signal.SIGTERM)
        rig.Pair(server, client).end(60)
        for end in (server, client):
            assert "victims in RTS: 8" in end.output(), end.describe()
    finally:
        os.close(storm)
        server.kill()
        if client:
            client.kill()


@pytest.mark.parametrize("kind", ["sound", "unknown"])
@pytest.mark.parametrize("family", [4, 6])
def test_storm_of_strangers(kind, family):
    """Sound packets of all kinds from another host than a queue pair's peer, and to
    queue pairs that do not exist: none of them does anything."""
    try:
        net = rig.Network(9000)
    except rig.NoNamespaces as e:
        pytest.skip(f"no network namespaces here: {e}")
    server = client = None
    try:
        a, b = rig.Side(net.a), rig.Side(net.b)
        stranger, peer, host = [f"10.91.0.{n}" if family == 4 else f"fd91::{n}" for n in (66, 1, 2)]
        rig.ip(net.a, f"addr add {stranger}/{'24' if family == 4 else '64 nodad'} dev hca0")
        # The host has two addresses of the family by now.
        gid = next(i for i, g in a.gids().items() if g.removeprefix("::ffff:") == peer)
        port = rig.free_port()
        cmd = [CHECK, "-p", port, "-o", "mix", "-s", 8000, "-r", 32, "-V", 8, "-D", LONG]
        server = rig.Proc(b, [*cmd, "-g", b.gid_index(family)])
        server.wait_listening(port)
        client = rig.Proc(a, [*cmd, "-g", gid, host])
        for end in (server, client):
            end.wait_for("^ready")
        storm = rig.Proc(a, [STORM, "-m", kind, "-n", COUNT, "-P", 60000, "-S", stranger, *victims_of(server), host],
                         alone=True)
        storm.done(60)
        client.tell(signal.SIGTERM)
        rig.Pair(server, client).end(60)
        got = numbers(server)
        assert got["messages"] > 50 and got["wrong"] == 0, server.describe()
        for end in (server, client):
            assert "victims in RTS: 8" in end.output(), end.describe()
    finally:
        for end in (server, client):
            if end:
                end.kill()
        net.close()


def test_storm_leaks_nothing(placements):
    place = placements("wire")
    gid = place.server.gid_index(4)
    address = place.server.gids()[gid].removeprefix("::ffff:")
    few = storms(place, ["mutated"], 2000, gid, place.host, address)
    many = storms(place, ["mutated", "random"], COUNT // 2, gid, place.host, address)
    for a, b in zip(few, many):
        assert rss(b) < rss(a) + 6 * 1024, f"{rss(a)} KiB, then {rss(b)} KiB"


@pytest.mark.full
@pytest.mark.parametrize("seed", range(10))
def test_storm_long(placements, seed):
    place = placements("wire")
    gid = place.server.gid_index(4)
    address = place.server.gids()[gid].removeprefix("::ffff:")
    storms(place, ["mutated", "random", "mutated"], COUNT, gid, place.host, address)
