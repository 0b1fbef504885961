"""Hostile datagrams while a transfer runs, see src/storm.c."""
import re
import time

import pytest

import rig
from test_data import numbers

STORM = rig.client("storm")
CHECK = rig.client("verbs_check")
COUNT = 100000


def rss(proc):
    m = re.search(r"rss (\d+) KiB", proc.output())
    assert m, proc.describe()
    return int(m[1])


def storms(place, kinds, count, gid, host, address):
    """A transfer with checked data, and the storms; the two ends."""
    port = rig.free_port()
    cmd = [CHECK, "-p", port, "-o", "mix", "-s", 8000, "-r", 32, "-V", 8, "-u", 12, "-t", 7,
           "-D", 2.5 * len(kinds) * count / COUNT + 2, "-g", gid]
    server = rig.Proc(place.server, cmd, place.options)
    client = None
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, host], place.options)
        client.wait_for("^ready")
        server.wait_for("^ready")
        victims = []
        for end in (server, client):
            for m in re.finditer(r"victim qpn=(\d+) psn=(\d+) rkey=(\d+) addr=(\d+)", end.output()):
                victims += ["-v", ":".join(m.groups())]
        assert len(victims) == 2 * 2 * 8
        sent = []
        for seed, kind in enumerate(kinds):
            # From the host itself: the source is then what the QPs expect.
            s = rig.Proc(place.server, [STORM, "-m", kind, "-n", count, "-X", seed + 1, "-P", 60000,
                                        *victims, address])
            assert s.wait(60) == 0, s.describe()
            sent.append(s.output())
        rc = client.wait(60), server.wait(60)
        assert rc == (0, 0), f"{server.describe()}{client.describe()}{sent}"
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


def test_storm_at_the_private_port(placements):
    """The port that processes of one host use among themselves takes anybody's
    datagrams as well. It is found as any local user would: in /proc/net/udp."""
    place = placements("local")
    storms(place, ["mutated"], COUNT // 4, place.server.gid_index(4), place.host,
           place.server.gids()[place.server.gid_index(4)].removeprefix("::ffff:"))


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
