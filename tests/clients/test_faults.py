"""Faults on purpose (softhca run --faults): each kind of line does what it says,
on the wire and within the host, and a log of it does so again."""
import re

import pytest

import rig

HERE = rig.client("faulted")


def script(tmp_path, *lines):
    path = tmp_path / "faults.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


class Run:
    """faulted under a script: what it says, and the log of what has happened."""

    def __init__(self, home, tmp_path, lines, *args, status=0, options=()):
        log = tmp_path / "log.txt"
        self.out = rig.Side(home).run([HERE, *args], ["--faults", script(tmp_path, *lines), "--faults-log", log,
                                                      "--explain", *options], status=status)
        self.log = log.read_text().splitlines()[2:]  # behind a comment and the seed
        assert self.log, self.out  # something has happened

    def says(self, what):
        assert what in self.out, self.out
        return self


GOOD = "sent 50, wrong 0: success"


@pytest.mark.parametrize("line,log", [
    ("drop ack nth=3", ["drop ack nth=3"]),
    ("drop send nth=3,7-8", ["drop send nth=3", "drop send nth=7-8"]),
    ("drop send nth=3 dir=in", ["drop send dir=in nth=3"]),
    ("delay send 2ms every=20", ["delay send 2ms nth=20"]),
    ("duplicate send first=3", ["duplicate send nth=1-3"]),
    ("duplicate ack nth=4 dir=in", ["duplicate ack dir=in nth=4"]),
    ("reorder send nth=5", ["reorder send nth=5"]),
    ("corrupt send nth=5", ["corrupt send nth=5"]),
    ("corrupt ack nth=5", ["corrupt ack nth=5"]),
    ("drop ack for 5ms", ["drop ack nth=1"]),
    ("rnr nth=2-4", ["rnr nth=2-4"]),
    ("seed 5\ndrop any p=0.1", []),
])
def test_ends_well(home, tmp_path, line, log):
    """RC repairs it; what was to happen has happened."""
    r = Run(home, tmp_path, [line], 50).says(GOOD)
    assert [a for a in log if not any(b.startswith(a) for b in r.log)] == [], (r.log, r.out)
    r.says("on purpose, by line ")


def test_wrong_icrc_is_dropped(home, tmp_path):
    Run(home, tmp_path, ["corrupt send nth=2,4"], 50).says(GOOD).says("bad ICRC 2")


def test_right_icrc_is_not_noticed(home, tmp_path):
    Run(home, tmp_path, ["corrupt send nth=2,4 icrc=right"], 50).says("sent 50, wrong 2: success")


@pytest.mark.parametrize("line", ["drop any", "drop send", "drop ack", "drop send dir=in", "partition {addr}"])
def test_nothing_gets_through(home, tmp_path, line):
    side = rig.Side(home)
    gid = side.gids()[0]
    addr = gid.rpartition(":")[2] if gid.startswith("::ffff:") else gid
    Run(home, tmp_path, [line.format(addr=addr)], 50).says("sent 0, wrong 0: transport retry counter exceeded") \
        .says("then: Work Request Flushed Error").says("faults on purpose so far)")


def test_partition_heals(home, tmp_path):
    """Both directions, all packets in a row, and then no more."""
    side = rig.Side(home)
    gid = side.gids()[0]
    addr = gid.rpartition(":")[2] if gid.startswith("::ffff:") else gid
    r = Run(home, tmp_path, [f"partition {addr} after 10KB for 8ms"], 50).says(GOOD)
    assert len(r.log) == 1 and re.fullmatch(rf"drop any peer={addr} dir=both nth=\d+(-\d+)?", r.log[0]), r.log


def test_rnr(home, tmp_path):
    """The requester comes again until the time is over."""
    r = Run(home, tmp_path, ["rnr for 20ms"], 50).says(GOOD).says("no receive posted")
    assert re.fullmatch(r"rnr nth=1-\d+", r.log[0]), r.log


@pytest.mark.parametrize("line", ["kill qp after 4KB", "kill qp nth=7", "kill qp nth=5 dir=in"])
def test_kill(home, tmp_path, line):
    """A fatal error of the queue pair, with its event; what is posted is flushed."""
    r = Run(home, tmp_path, [line], 50, "event").says("Work Request Flushed Error")
    r.says("then: Work Request Flushed Error").says("event: local work queue catastrophic error")
    r.says("killed on purpose, by line 1")


VERBS = {"open_device": "EMFILE", "alloc_pd": "ENOMEM", "reg_mr": "ENOMEM", "create_cq": "ENOMEM",
         "create_qp": "ENOSPC", "modify_qp": "EINVAL", "post_recv": "ENOMEM", "post_send": "EIO"}
WORDS = {"EMFILE": "Too many open files", "ENOMEM": "Cannot allocate memory", "ENOSPC": "No space left on device",
         "EINVAL": "Invalid argument", "EIO": "Input/output error"}


@pytest.mark.parametrize("verb,err", VERBS.items())
def test_fail(home, tmp_path, verb, err):
    nth = 1 if verb in ("open_device", "alloc_pd", "reg_mr") else 2
    r = Run(home, tmp_path, [f"fail {verb} nth={nth} {err}"], 50, status=3)
    r.says(f"\n{verb}: {WORDS[err]}\n").says(f"ibv_{verb}() fails on purpose, by line 1")
    assert r.log == [f"fail {verb} {err} nth={nth}"]


@pytest.mark.parametrize("event,says", [("port_err", "port error"), ("port_active", "port active"),
                                        ("gid_change", "GID table change"), ("device_fatal", "local catastrophic")])
def test_raise(home, tmp_path, event, says):
    r = Run(home, tmp_path, [f"raise {event} after 1ms"], 50, "event").says(GOOD).says("event: " + says)
    assert r.log == [f"raise {event} after 1ms"]


def test_calls_that_fail_alone_leave_packets_alone(home, tmp_path):
    Run(home, tmp_path, ["fail create_ah EIO", "drop cnp", "fail alloc_pd nth=1 EIO"], 1, status=3)


# Between two processes

SCRIPTS = ["drop any p=0.02", "duplicate any p=0.1", "corrupt any p=0.02", "reorder any by=3 p=0.05",
           "delay any 1ms p=0.02", "rnr every=7", "drop any nth=100-110"]


@rig.over_places(places=["local", "netns"], line=SCRIPTS)
def test_data_survives(place, tmp_path, line):
    """Both ends have the script, and check every byte of all operations."""
    out = place.check("-c", "RC", "-o", "all", "-n", 150, "-s", 9000, "-q", 2,
                      options=["--faults", script(tmp_path, "seed 7", line), "--explain"])
    assert "on purpose, by line 2" in out.server.output() + out.client.output(), out.describe()


@pytest.mark.parametrize("name", ["local", "netns"])
def test_record_and_replay(placements, tmp_path, name):
    """UD repeats nothing, so each packet is the same one in every run; the log of
    a run, as the next one's script, writes the same log."""
    place = placements(name)
    faults = script(tmp_path, "seed 9", "drop send p=0.1", "corrupt send p=0.05", "drop send nth=100-120")
    logs = []
    for i in range(3):
        port, log = rig.free_port(), tmp_path / f"log{i}"
        cmd = [rig.client("verbs_check"), "-c", "UD", "-n", 300, "-s", 64, "-r", 16, "-L", "-p", port]
        server = rig.Proc(place.server, cmd, place.options)
        try:
            server.wait_listening(port)
            client = rig.Proc(place.client, [*cmd, place.host],
                              [*place.options, "--faults", faults, "--faults-log", log])
        except BaseException:
            server.kill()
            raise
        rig.Pair(server, client).end()
        logs.append(log.read_text())
        faults = log
    assert logs[0].count("\n") > 20, logs[0]
    assert logs[1] == logs[0] and logs[2] == logs[0]
