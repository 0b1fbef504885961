"""softhca stat: what running programs send, receive and lose."""
import array
import contextlib
import fcntl
import glob
import json
import os
import re
import signal
import socket
import struct
import subprocess
import time

import pytest

import rig

F_ADD_SEALS, SEALS = 1033, 0xf
HEAD = struct.Struct("8s7I4Q")       # struct stat_head
COUNTERS, OTHERS, VERSION = 30, 4, 4


def stat(rundir, *args, status=0):
    p = subprocess.run([rig.SOFTHCA, "stat", *args], env=dict(os.environ, SOFTHCA_RUNDIR=rundir), text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert p.returncode == status, p.stderr
    return p.stdout, p.stderr


@contextlib.contextmanager
def running(home, rundir, *options, tool=("ib_write_bw",)):
    """A client and a server that run until the end of the test, and are seen."""
    with rig.running(home, [*tool, "-F", "-s", 65536, "-n", 100000000], options, {"SOFTHCA_RUNDIR": rundir}) as ends:

        def busy():
            qps = [q for p in json.loads(stat(rundir, "--json")[0]) for q in p.get("qps", ())]
            return len(qps) >= 2 and all(sum(q["counters"].values()) > 1000 for q in qps)

        rig.until(busy, "both are seen", ends[1])
        yield ends


def sent(rundir, pid):
    return sum(q["counters"]["tx_packets"] for q in json.loads(stat(rundir, "--json", f"--pid={pid}")[0])[0]["qps"])


def by_qpn(rundir):
    return {q["qpn"]: q for p in json.loads(stat(rundir, "--json")[0]) for q in p["qps"]}


def test_nothing_to_count(tmp_path):
    """That a table is empty is said, and where to look."""
    out, said = stat(str(tmp_path))
    assert out.count("\n") == 1 and out.split()[0] == "PID"
    assert said == ("softhca: no running program of this user has connected a queue pair; softhca ps also shows those that "
                    "have none\n")
    assert stat(str(tmp_path), "--json") == ("[]\n", "")


@pytest.mark.parametrize("way", ["wire", "same-host=copy", "same-host=auto"])
def test_counters(home, rundir, way):
    """Both ends tell the same, and it grows."""
    with running(home, rundir, f"--{way}", *(["--loss=1"] if way == "wire" else [])):
        was = by_qpn(rundir)
        time.sleep(0.3)
        now = by_qpn(rundir)
        assert set(was) == set(now) and len(now) == 2
        for qpn, q in now.items():
            peer = now[q["peer_qpn"]]
            assert peer["peer_qpn"] == qpn and q["type"] == "RC"
            assert all(n >= was[qpn]["counters"][name] for name, n in q["counters"].items())
        client = next(q for q in now.values() if q["counters"]["tx_bytes"] + q["counters"]["direct_bytes"])
        server = now[client["peer_qpn"]]["counters"]
        client = client["counters"]
        if way == "same-host=auto":
            assert client["direct_bytes"] == 65536 * client["direct_requests"] > 0
        else:
            assert client["tx_packets"] > 0 < server["rx_bytes"]
        assert (way == "wire") == (client["retransmits"] > 0 and server["out_of_sequence"] > 0)


def test_forms(home, rundir):
    with running(home, rundir) as (server, client):
        out, err = stat(rundir)
        head, *lines = out.splitlines()
        assert not err and len(lines) == 2 and head.split()[:4] == ["PID", "COMMAND", "DEVICE", "QP"]
        pid = int(lines[0].split()[0])
        assert re.match(r" *\d+ ib_write_bw +softhca0 +0x\w{6} RC +RT[RS] ", lines[0])
        assert len(stat(rundir, f"--pid={pid}")[0].splitlines()) == 2
        out = stat(rundir, "--prometheus")[0]
        for line in out.splitlines():
            assert re.fullmatch(r'# HELP softhca_\w+_total .+|# TYPE softhca_\w+_total counter|'
                                r'softhca_\w+_total\{pid="\d+",command="ib_write_bw"(,device="softhca0")?\} \d+', line), line
        names = re.findall(r"^# TYPE (\w+)", out, re.M)
        assert len(names) == len(set(names)) == COUNTERS + OTHERS
        again = subprocess.Popen([rig.SOFTHCA, "stat", "-i", "0.1"], env=dict(os.environ, SOFTHCA_RUNDIR=rundir),
                                 stdout=subprocess.PIPE, text=True)
        try:
            heads, order, rates = 0, set(), []
            while heads < 4:
                line = again.stdout.readline().split()
                if "BYTES/s" in line:
                    heads += 1
                    at, rows = line.index("MSGS/s"), []
                else:
                    rows.append(line[0])
                    rates.append(line[at])
                    if len(rows) == 2:
                        order.add(tuple(rows))
            assert len(order) == 1 and any(r.endswith("k") for r in rates), (order, rates)
        finally:
            again.kill()
            again.wait()


def test_sentences_on_demand(home, rundir):
    """The table is asked for often, and what takes long is not made for it."""
    def waits(less):
        said = set()
        for name in glob.glob(f"{rundir}/softhca-*.s"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.settimeout(10)
                if less:
                    s.bind("")  # to whatever name the kernel chooses
                s.connect(name)
                fd = array.array("i", s.recvmsg(1, 100)[1][0][2])[0]
            data = os.pread(fd, 1 << 20, 0)
            os.close(fd)
            ndevices, nqps = HEAD.unpack_from(data)[4:6]
            at = HEAD.size + ndevices * len(DEVICE)
            said |= {data[at + i * QP + 40] for i in range(nqps)}
        return said
    with running(home, rundir) as (server, client):
        assert 0 not in waits(False) and waits(True) == {0}


def test_long_directory(home, rundir):
    """Longer than the name of a socket can be."""
    long = f"{rundir}/{'x' * 120}"
    os.mkdir(long, 0o700)
    with running(home, long):
        assert len(stat(long)[0].splitlines()) == 3
    assert len(stat(long)[0].splitlines()) == 1


def stop(pid):
    """Each of its threads stops when it gets a processor, and may answer until then."""
    def stopped():
        return all(open(f"/proc/{pid}/task/{t}/stat").read().rpartition(") ")[2][0] == "T"
                   for t in os.listdir(f"/proc/{pid}/task"))
    os.kill(pid, signal.SIGSTOP)
    rig.until(stopped, "it is stopped")


def test_who_does_not_answer(home, rundir):
    with running(home, rundir) as (server, client):
        pid = max(json.loads(stat(rundir, "--json")[0]), key=lambda p: p["pid"])["pid"]
        stop(pid)
        began = time.monotonic()
        out, err = stat(rundir)
        assert re.search(rf"softhca: process {pid} \(ib_write_bw\) does not answer: is it stopped\?", err)
        assert len(out.splitlines()) == 2 and time.monotonic() - began < 10
        os.kill(pid, signal.SIGKILL)
        rig.until(lambda: not any(p["pid"] == pid for p in json.loads(stat(rundir, "--json")[0])), "it is gone")
    assert "is not a running softhca program" in stat(rundir, "--pid", str(pid), status=1)[1]
    assert "no such counter" in stat(rundir, "--sort=foo", status=2)[1]
    assert "seconds are needed" in stat(rundir, "--interval=0", status=2)[1]


def explain(rundir, pid, status=0):
    p = subprocess.run([rig.SOFTHCA, "explain", str(pid)], env=dict(os.environ, SOFTHCA_RUNDIR=rundir), text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert p.returncode == status, p.stderr
    return p.stdout + p.stderr


def test_explain_process(home, rundir):
    """What each queue pair waits for, while its peer runs, is stopped, is gone."""
    with running(home, rundir, "--same-host=copy", tool=("ib_write_bw", "-q", 2)) as (server, client):
        pids = {p["qps"][0]["counters"]["tx_bytes"] > 0: p["pid"] for p in json.loads(stat(rundir, "--json")[0])}
        sender, target = pids[True], pids[False]
        said = explain(rundir, sender)
        assert re.match(rf"process {sender} \(ib_write_bw\): 2 queue pairs\n", said)
        assert len(re.findall(r"^QP 0x\w{6} \(RC, RTS, peer \S+ QP 0x\w{6}\): \S", said, re.M)) == 2
        assert "waits for the program to post or the peer to send" in explain(rundir, target)
        os.kill(target, signal.SIGSTOP)
        rig.until(lambda: re.search(rf"waits for an ACK of \d+ packets?, for \d+\.\d s: its process {target} is stopped",
                                    explain(rundir, sender)), "the peer is found to be stopped", client)
        os.kill(target, signal.SIGCONT)
    assert f"{sender}; nor is that a running softhca program" in explain(rundir, sender, 1)


@pytest.mark.parametrize("tool", ["ib_write_bw", "ib_send_bw --events"])
def test_signal(home, rundir, tool):
    """A program that hangs says the same on SIGUSR1, and goes on."""
    with running(home, rundir, "--explain", "--same-host=copy", tool=tool.split()) as (server, client):
        server.tell(signal.SIGSTOP)
        rig.until(lambda: "is stopped" in explain(rundir, client.pid), "the peer is found to be stopped", client)
        os.kill(client.pid, signal.SIGUSR1)
        client.wait_for(rf"^softhca: process {client.pid} \(ib_\w+\): 1 queue pair$")
        client.wait_for(rf"^softhca: QP 0x\w{{6}} \(RC, RTS, peer \S+ QP 0x\w{{6}}\): .*for \d+\.\d s: its process "
                        rf"{server.pid} is stopped")
        was = sent(rundir, client.pid)
        server.tell(signal.SIGCONT)
        rig.until(lambda: sent(rundir, client.pid) > was, "it goes on", client)


def memfd(data, seals=SEALS):
    fd = os.memfd_create("x", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def head(devices=0, qps=0, version=VERSION, counters=COUNTERS, magic=b"softhca\0", text=0):
    return HEAD.pack(magic, version, counters, OTHERS, devices, qps, 0, text, 0, 0, 0, 0)


DEVICE = b"x" * 64 + b"softhca0".ljust(16, b"\0") + bytes(8 * COUNTERS)
QP = 40 + 400 + 8 * COUNTERS
HOSTILE = {
    "nothing but a byte": None,
    "an empty file": b"",
    "garbage": os.urandom(5000),
    "cut off": (head(text=1) + b"\0")[:-2],
    "another version": head(version=99, text=1) + b"\0",
    "other counters": head(counters=COUNTERS + 1, text=1) + b"\0",
    "other magic": head(magic=b"hardhca\0", text=1) + b"\0",
    "more devices than there are": head(devices=0xffffffff),
    "more QPs than there are": head(qps=0x7fffffff),
    "a name without an end": head(devices=1, text=1) + DEVICE + b"\0",
    "a sentence that moves the cursor": head(1, 1, text=1) + b"x" + bytes(63 + 8 * COUNTERS) + bytes(40) + b"\033[H"
                                        + bytes(QP - 43 + 1),
    "a QP of no device": head(qps=1, text=1) + bytes(QP + 1),
    "a line that moves the cursor": head(text=5) + b"x\033[H\0",
    "text without an end": head(text=5) + b"xxxxx",
    "no text": head(),
    "more than it should be": head(text=1) + b"\0x",
    "not sealed": head(text=1) + b"\0",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_answers(rundir, what):
    """They are refused, in words."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(f"{rundir}/softhca-{os.getuid()}-1.7.s")
        listener.listen()
        asking = subprocess.Popen([rig.SOFTHCA, "stat"], env=dict(os.environ, SOFTHCA_RUNDIR=rundir),
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        listener.settimeout(10)
        who = stack.enter_context(listener.accept()[0])
        data = HOSTILE[what]
        if data is None:
            who.send(b"x")
        else:
            fd = memfd(data, 0 if what == "not sealed" else SEALS)
            who.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])
            os.close(fd)
        out, err = asking.communicate(timeout=10)
    assert asking.returncode == 0
    assert "an answer that this version does not understand" in err
    assert len(out.splitlines()) == 1
