"""Containers of one host: network namespaces that share the directory of the
registry. Their processes reach each other by shared memory where an address is
proved to lead there, and by the wire where it is not."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

import rig

CHECK = rig.client("verbs_check")
STRANGERS = rig.client("strangers")
NEAR = "the peer is in another network namespace of this host"
COPIES = f"connected by shared memory, and copies from and to the peer's memory; {NEAR}$"
THROUGH = "connected by shared memory, payload copied through it"
WIRE = "connected by UDP port 4791"
PROGRAMS = {
    "mix": ["-o", "mix", "-n", 600, "-s", 100000, "-S", 0],
    "atomics": ["-o", "faa", "-n", 600, "-q", 4],
    "uc": ["-c", "UC", "-o", "write", "-n", 500, "-s", 20000],
    "ud": ["-c", "UD", "-o", "send", "-n", 500, "-r", 32, "-s", 1024],
    "events": ["-o", "mix", "-n", 300, "-q", 4, "-e", "-s", 20000],
}


@pytest.fixture
def place(placements):
    return placements("netns")


@pytest.fixture
def twins():
    """Two networks that use the same addresses."""
    made = []
    try:
        for _ in range(2):
            made.append(rig.Network(9000))
        yield made
    except rig.NoNamespaces as e:
        pytest.skip(f"no network namespaces here: {e}")
    finally:
        for n in made:
            n.close()


def env(rundir):
    return {"SOFTHCA_RUNDIR": rundir}


def transfer(place, args, rundir, server=(), client=(), prefix=()):
    """verbs_check between the two, which explain."""
    port = rig.free_port()
    cmd = [CHECK, "-p", port, *args]
    one = rig.Proc(place.server, cmd, ["--explain", *server], env(rundir))
    try:
        one.wait_listening(port)
        two = rig.Proc(rig.Side([*place.client.prefix, *prefix]), [*cmd, place.host], ["--explain", *client], env(rundir))
    except BaseException:
        one.kill()
        raise
    return rig.Pair(one, two).end()


def says(pair, line):
    return [bool(re.search(line, p.output(), re.M)) for p in (pair.server, pair.client)]


@pytest.mark.parametrize("program", list(PROGRAMS))
def test_by_shared_memory(place, rundir, program):
    pair = transfer(place, PROGRAMS[program], rundir)
    if program != "ud":
        assert says(pair, COPIES) == [True, True], pair.describe()
    assert set(os.listdir(rundir)) <= rig.KEPT


def sent_by_wire(place, rundir, args, options=()):
    """How many datagrams the network has carried during a run."""
    def packets():
        with open(f"/proc/{place.server.prefix[2]}/net/dev") as f:
            return next(int(line.split()[2]) for line in f if "hca0:" in line)

    was = packets()
    transfer(place, args, rundir, options, options)
    return packets() - was


def test_datagrams_by_shared_memory(place, rundir):
    """Address handles have no number of the peer's when they are made."""
    many = ["-c", "UD", "-o", "send", "-n", 3000, "-r", 32, "-s", 1024]
    assert sent_by_wire(place, rundir, many) < 1000
    assert sent_by_wire(place, rundir, many, ["--wire"]) >= 3000


def test_suspended(place, rundir):
    """Whose peer was suspended, and who was, still have shared memory between them."""
    port = rig.free_port()
    cmd = ["ib_write_bw", "-F", "-b", "-D", "60", "-s", "65536", "-p", port]
    one = rig.Proc(place.server, cmd, env=env(rundir))
    two = None

    def stat(p):
        q = subprocess.run([*place.client.prefix, rig.SOFTHCA, "stat", "--json", "--pid", str(p.pid)], check=False,
                           capture_output=True, text=True, env={**os.environ, **env(rundir)})
        return q.stdout

    def packets():
        with open(f"/proc/{place.server.prefix[2]}/net/dev") as f:
            return next(int(line.split()[2]) + int(line.split()[10]) for line in f if "hca0:" in line)

    try:
        one.wait_listening(port)
        two = rig.Proc(place.client, [*cmd, place.host], env=env(rundir))
        rig.until(lambda: "RTS" in stat(one) and "RTS" in stat(two), "they are connected", two)
        for p in (two, one):
            subprocess.run([*place.client.prefix, rig.SOFTHCA, "suspend", str(p.pid), "--", "true"], check=True, timeout=60,
                           env={**os.environ, **env(rundir)})
            time.sleep(0.5)
            was = packets()
            time.sleep(1)
            assert packets() - was < 300
            assert one.running() and two.running()
    finally:
        one.kill()
        if two:
            two.kill()


@pytest.mark.parametrize("options, line", [
    ([], WIRE + "$"), (["--same-host=copy"], THROUGH + ": --same-host=copy"), (["--wire"], WIRE), (["--same-host=udp"], WIRE)],
    ids=["apart", "copy", "wire", "udp"])
def test_other_ways(place, rundir, options, line):
    """Without a directory that both have, and with options that refuse the way."""
    if options:
        assert says(transfer(place, PROGRAMS["mix"], rundir, options, options), line) == [True, True]
        return
    port, cmd = rig.free_port(), [CHECK, *PROGRAMS["mix"]]
    one = rig.Proc(place.server, [*cmd, "-p", port], ["--explain"])
    one.wait_listening(port)
    pair = rig.Pair(one, rig.Proc(place.client, [*cmd, "-p", port, place.host], ["--explain"])).end()
    assert says(pair, line) == [True, True], pair.describe()


@pytest.mark.parametrize("end", ["server", "client"])
@pytest.mark.parametrize("way", ["--wire", "--same-host=udp", "--same-host=copy"])
def test_ends_differ(place, rundir, way, end):
    transfer(place, PROGRAMS["mix"], rundir, **{end: [way]})


@pytest.mark.parametrize("program", ["mix", "ud"])
def test_pid_namespaces(place, rundir, program):
    """As containers have: no copies from a process that has no number here."""
    pair = transfer(place, PROGRAMS[program], rundir, prefix=["unshare", "-p", "--fork", "--kill-child"])
    if program != "ud":
        assert says(pair, THROUGH + f": the peer is in another PID namespace; {NEAR}$") == [False, True], pair.describe()


def strangers(tmp_path, rundir, sender, *receivers):
    """One sends to the first of the others, which all have the same address. What
    each of them prints."""
    ends = [rig.Proc(rig.Side(r), [STRANGERS, tmp_path, f"r{i}", "s", "recv"], ["--explain"], env(rundir))
            for i, r in enumerate(receivers)]
    try:
        for i, e in enumerate(ends):
            rig.until(lambda i=i: os.path.exists(f"{tmp_path}/r{i}"), "it is ready", e)
        ends.insert(0, rig.Proc(rig.Side(sender), [STRANGERS, tmp_path, "s", "r0", "send"], ["--explain"], env(rundir)))
        return [e.done() for e in ends]
    finally:
        for e in ends:
            e.kill()


def test_same_addresses(twins, rundir, tmp_path):
    """A queue pair of the other network, which has the same address, is told: what
    is sent there is never delivered, whoever is at that address here."""
    one, two = twins
    sent, got = strangers(tmp_path, rundir, one.a, two.b)
    assert "RC: transport retry counter exceeded" in sent
    assert f"{WIRE}; {NEAR}, but the address was not proved to lead there" in sent
    assert "received by RC 0, by UD 0" in got


def test_same_addresses_both(twins, rundir, tmp_path):
    """The same, and a process of this network has that address, too."""
    one, two = twins
    sent, wrong, right = strangers(tmp_path, rundir, one.a, two.b, one.b)
    assert "RC: transport retry counter exceeded" in sent
    assert "received by RC 0, by UD 0" in wrong
    assert "received by RC 0, by UD 0" in right


def test_own_network(twins, rundir, tmp_path):
    one, two = twins
    sent, right, wrong = strangers(tmp_path, rundir, one.a, one.b, two.b)
    assert "RC: success" in sent
    assert re.search(COPIES, sent, re.M)
    assert "received by RC 1, by UD 10" in right
    assert "received by RC 0, by UD 0" in wrong


def test_cm_in_networks_with_the_same_addresses(twins, rundir):
    """Who listens in the other network is not found."""
    port = rig.free_port()
    with_listener, without = twins
    server = rig.Proc(rig.Side(with_listener.b), ["rping", "-s", "-P", "-p", port], env=env(rundir))
    try:
        server.wait_bound(4791)
        p = rig.Proc(rig.Side(without.a), ["rping", "-c", "-C", 1, "-a", "10.91.0.2", "-p", port], env=env(rundir))
        assert "UNREACHABLE" in p.done(status=255)
        rig.Proc(rig.Side(with_listener.a), ["rping", "-c", "-C", 1, "-a", "10.91.0.2", "-p", port], env=env(rundir)).done()
    finally:
        server.kill()


def test_one_port_in_each(twins, rundir):
    """Each namespace has its own listeners and ports, also at one address."""
    port = rig.free_port()
    servers = [rig.Proc(rig.Side(n.b), ["rping", "-s", "-P", "-p", port], ["--explain"], env(rundir)) for n in twins]
    try:
        for s, n in zip(servers, twins):
            s.wait_bound(4791)
            rig.Proc(rig.Side(n.a), ["rping", "-c", "-C", 3, "-a", "10.91.0.2", "-p", port], env=env(rundir)).done()
    finally:
        for s in servers:
            s.kill()


def test_multicast(place, rundir):
    server = rig.Proc(place.server, ["mckey", "-m", "239.1.2.3", "-b", "10.91.0.2", "-C", 10], env=env(rundir))
    try:
        server.wait_bound(4791)
        time.sleep(0.2)
        client = rig.Proc(place.client, ["mckey", "-m", "239.1.2.3", "-b", "10.91.0.1", "-s", "-C", 10], env=env(rundir))
        rig.Pair(server, client).end()
    finally:
        server.kill()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP])
def test_a_container_ends(place, rundir, sig):
    """Its peer's requests fail, as over a network, and the next one starts."""
    port = rig.free_port()
    cmd = ["ib_write_bw", "-F", "-s", 65536, "-n", 100000000, "-p", port, "-u", 12]
    server = rig.Proc(place.server, cmd, env=env(rundir))
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, place.host], ["--explain"], env(rundir))
        client.wait_for("connected by shared memory")
        time.sleep(0.3)
        server.tell(sig)
        if sig == signal.SIGKILL:
            client.done(status=None)
            assert client.popen.returncode
    finally:
        server.kill()
        client.kill()
    assert says(transfer(place, PROGRAMS["mix"], rundir), COPIES) == [True, True]


def test_a_namespace_that_goes(rundir, networks):
    """The next one with its addresses is another, which the same peer reaches."""
    networks(9000)
    for _ in range(3):
        net = rig.Network(9000)
        try:
            place = rig.Placement("short", rig.Side(net.b), rig.Side(net.a), "10.91.0.2", "fd91::2")
            assert says(transfer(place, PROGRAMS["atomics"], rundir), COPIES) == [True, True]
        finally:
            net.close()


def doctor(side, rundir, *args):
    """What it has found, by name."""
    out = rig.Proc(side, [rig.SOFTHCA, "doctor", "--json", *args], env=env(rundir), alone=True).done(status=None)
    return {c["check"]: c for c in json.loads(out)["checks"]}


@pytest.fixture
def listening(place, rundir):
    server = rig.Proc(place.server, ["rping", "-s", "-P", "-p", rig.free_port()], env=env(rundir))
    try:
        server.wait_bound(4791)
        yield server
    finally:
        server.kill()


def test_doctor(place, rundir, listening):
    assert "(2 with processes now)" in doctor(place.client, rundir)["registry"]["text"]
    way = doctor(place.client, rundir, "--peer", place.host)["peer-way"]
    assert way["status"] == "OK"
    assert way["text"].startswith("shared memory: 10.91.0.2 is in another network namespace")
    listening.kill()
    assert "no program that shares" in doctor(place.client, rundir, "--peer", place.host)["peer-way"]["text"]
    assert "peer-way" not in doctor(place.server, rundir, "--peer", place.host)


def test_doctor_in_networks_with_the_same_addresses(place, rundir, listening, twins):
    way = doctor(rig.Side(twins[0].a), rundir, "--peer", "10.91.0.2")["peer-way"]
    assert way["status"] == "WARN" and "did not arrive there" in way["text"]
