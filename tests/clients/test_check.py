"""The checks for what works by luck (softhca run --check): each rule has a program
that breaks it, and one that is near it and right; and none fires on programs
that people use."""
import json
import re

import pytest

import mad_flood
import rig
from test_cm import pair
import test_cm_tools
import test_iwarp
import test_perftest
import test_utils

CHECKED = rig.client("checked")
STATUS = 9


# What the two ends have, as it is said.
BOTH = {
    "mtu-disagrees": ["1024", "2048"],
    "psn-disagrees": ["0x000123", "0x000000"],
    "psn-disagrees-repeats": ["0x000001", "0x000000"],
    "qkey-disagrees": ["0x22222222", "0x11111111"],
}


SHOWN = ["mtu-disagrees", "peer-disagrees", "psn-disagrees-repeats", "race-of-peers", "race-of-peers-large",
         "race-of-peers-atomic"]


def checked(home, tmp_path, mode, *options, check=f"exit={STATUS}", status=0):
    """What it says, and what it has found."""
    found = tmp_path / "found.jsonl"
    out = rig.Side(home).run([CHECKED, mode], [f"--check={check},json={found}", *options], status=status)
    lines = found.read_text().splitlines() if found.exists() else []
    return out, [json.loads(line) for line in lines]


def function(place):
    """The frames of a place that are in the program."""
    return [f for f in place["frames"] if re.match(rf"{CHECKED}\+0x|/\S+/(checked|peer)\.[ch]:\d+ \(", f)]


# Of the own end alone, and so of iWARP, too.
LOCAL = [
    ("buffer-in-flight", None),
    ("buffer-in-flight-extended", "buffer-in-flight"),
    ("buffer-unsignalled", "buffer-in-flight"),
    ("buffer-before-a-receive", "buffer-in-flight"),
    ("result-in-flight", None),
    ("send-queue-never-drains", None),
    ("send-queue-overrun", None),
    ("cq-overrun", None),
    ("keys-exchanged", None),
    ("keys-exchanged-local", "keys-exchanged"),
    ("address-cut", None),
    ("key-of-the-past", None),
    ("key-of-the-past-local", "key-of-the-past"),
]
LOCAL_FINE = ["buffer-polled", "buffer-polled-extended", "buffer-answered", "buffer-written", "buffer-received",
              "buffer-fenced", "buffer-inline", "result", "send-queue", "cq", "key-unknown", "key-new", "address"]


def finds(home, tmp_path, mode, rule, options):
    """Once, with the places, as text and as JSON; and the exit status."""
    rule = rule or mode
    out, found = checked(home, tmp_path, mode, *options, status=STATUS)
    assert [f["rule"] for f in found] == [rule], out
    f = found[0]
    assert f"softhca: check: {rule}: {f['text']}\n" in out
    assert f.get("qp", "") in f["text"] and f["fix"] in out
    assert all(value in f["text"] for value in BOTH.get(mode, [])), f
    assert f["places"]
    assert all(function(p) for p in f["places"]), f
    assert all(any(frame.endswith(" (main)") for frame in function(p)) for p in f["places"]), f
    assert len({tuple(p["frames"]) for p in f["places"]}) == len(f["places"]) or "oldest" in f["places"][1]["what"]
    assert re.search(r"check: process \d+: 1 finding(, \d+ times in all)?$", out, re.M), out


@pytest.mark.parametrize("mode, rule", LOCAL)
def test_found_by_iwarp(home, tmp_path, mode, rule):
    finds(home, tmp_path, mode, rule, ["--iwarp"])


@pytest.mark.parametrize("mode", LOCAL_FINE)
def test_fine_by_iwarp(home, tmp_path, mode):
    out, found = checked(home, tmp_path, f"fine-{mode}", "--iwarp")
    assert not found and "check:" not in out, out


@pytest.mark.parametrize("options", [[], ["--wire"]], ids=["shm", "wire"])
@pytest.mark.parametrize("mode, rule", [
    *LOCAL,
    ("hop-limit-zero", None),
    ("mtu-disagrees", None),
    ("psn-disagrees", None),
    ("psn-disagrees-repeats", "psn-disagrees"),
    ("peer-disagrees", None),
    ("qkey-disagrees", None),
    ("grh-missing", None),
    ("race-of-peers", None),
    ("race-of-peers-large", "race-of-peers"),
    ("race-of-peers-atomic", "race-of-peers"),
    ("race-with-processor", None),
])
def test_found(home, tmp_path, mode, rule, options):
    if options and mode in SHOWN:
        pytest.skip("what the other end has, and when it posts, is known by shared memory alone")
    finds(home, tmp_path, mode, rule, options)


@pytest.mark.parametrize("options", [[], ["--wire"]], ids=["shm", "wire"])
@pytest.mark.parametrize("mode", [*LOCAL_FINE, "hops", "unsignaled", "unsignaled-yet", "mtu", "qkey", "race-content", "race-place", "race-adds",
                                  "race-polled", "race-told", "race-waits", "race-behind"])
def test_fine(home, tmp_path, mode, options):
    out, found = checked(home, tmp_path, f"fine-{mode}", *options)
    assert not found and "check:" not in out, out


@pytest.mark.parametrize("options", [[], ["--iwarp"]], ids=["roce", "iwarp"])
@pytest.mark.parametrize("mode", ["wakeup", "acknowledged", "exit"])
def test_fine_events(home, tmp_path, mode, options):
    out, found = checked(home, tmp_path, f"fine-{mode}", *options)
    assert not found and "check:" not in out, out


def test_race_of_processes(home, tmp_path):
    """The one that has the memory reports it, with who they are."""
    out, found = checked(home, tmp_path, "race-of-processes", status=STATUS)
    assert {f["rule"] for f in found} == {"race-of-peers"} and len({f["pid"] for f in found}) == 1, out
    pids = {pid for f in found for pid in re.findall(r"of process (\d+)", f["text"])}
    assert len(pids) == 2 and str(found[0]["pid"]) not in pids, found


def test_pkey(home, tmp_path):
    """Nobody here has another one: the datagrams are made by hand."""
    found = tmp_path / "found.jsonl"
    p = rig.Proc(rig.Side(home), [CHECKED, "pkey-disagrees"], [f"--check=json={found}", "--wire"])
    qpn = int(p.wait_for(r"waits at QP (\d+)")[1])
    rig.Proc(rig.Side(home), ["/usr/bin/python3", mad_flood.__file__, "--pkey", qpn, 0x11111111, 0x8001],
             alone=True).done()
    p.done()
    f = json.loads(found.read_text())
    assert f["rule"] == "pkey-disagrees" and "0x8001" in f["text"] and "0xffff" in f["text"], f
    assert function(f["places"][0]), f


@pytest.mark.parametrize("options", [[], pytest.param(["--iwarp"], marks=pytest.mark.full)], ids=["roce", "iwarp"])
@pytest.mark.parametrize("mode", ["lost-wakeup", "event-not-acknowledged", "completion-never-comes"])
def test_waits_for_ever(home, tmp_path, mode, options):
    """Is reported while it waits."""
    found = tmp_path / "found.jsonl"
    p = rig.Proc(rig.Side(home), [CHECKED, mode], [f"--check=json={found}", *options])
    try:
        p.wait_for(f"check: {mode}: .*(.*\n)*.*check:   fix: ")
        rig.until(lambda: found.exists() and found.read_text().endswith("\n"), "it is in the file", p)
        assert p.running()
    finally:
        p.kill()
    f = json.loads(found.read_text())
    assert f["rule"] == mode and all(function(side) for side in f["places"]), f


def test_mtu_too_large(networks, tmp_path):
    """Within a host where the interface takes less; where it takes as much nothing is said."""
    out, found = checked(networks(9000).a, tmp_path, "mtu-too-large")
    assert not found, out
    out, found = checked(networks(1500).a, tmp_path, "mtu-too-large", status=STATUS)
    assert [f["rule"] for f in found] == ["mtu-too-large"], out
    assert "4096" in found[0]["text"] and "1500" in found[0]["text"] and function(found[0]["places"][0])


def test_failing_calls_are_explained(home):
    """As by --explain, and with nothing else of it."""
    out = rig.Side(home).run([CHECKED, "grh-missing"], ["--check"])
    assert re.search("^softhca: ibv_create_ah: EINVAL: .*is_global", out, re.M) and "connected by" not in out, out


KINDS = {"QP ", "a CQ", "the MR with lkey ", "a PD"}


def kinds(found):
    """What is left behind."""
    return {re.sub("0x.*", "", re.search("and (.*) is still there", f["text"])[1]) for f in found}


def test_leaked_at_close(home, tmp_path):
    """With where each was made."""
    out, found = checked(home, tmp_path, "object-leaked", check=f"leaks,exit={STATUS}", status=STATUS)
    assert kinds(found) == KINDS, out
    assert all(function(side) for f in found for side in f["places"]), out


def test_leaked_is_not_asked_for(home, tmp_path):
    out, found = checked(home, tmp_path, "object-leaked")
    assert not found and "check:" not in out, out


def test_leaked_at_exit(home, tmp_path):
    out, found = checked(home, tmp_path, "fine-exit", check="leaks")
    assert {f["rule"] for f in found} == {"object-leaked"} and kinds(found) == KINDS, out


def test_librarys_own_is_no_leak(placements):
    """The PD of rdma_cm is there as long as the process is."""
    place, port = placements("local"), rig.free_port()
    cmd = ["rping", "-C", 3, "-p", port]
    run = pair(place, [*cmd, "-s"], [*cmd, "-c", "-a", place.host], status=(None, None), options=["--check=leaks"])
    for end in (run.client, run.server):
        assert "check:" not in end.output(), end.describe()


def test_status_is_the_programs(home, tmp_path):
    """Unless one is asked for."""
    out, found = checked(home, tmp_path, "buffer-in-flight", check="1")
    assert len(found) == 1 and "1 finding" in out
    assert out.count("done\n") == 1


def test_off(home):
    out = rig.Side(home).run([CHECKED, "buffer-in-flight"], ["--check=0"])
    assert "check:" not in out


@pytest.fixture
def clean(monkeypatch, tmp_path):
    """All that runs under softhca is checked, and there are no findings."""
    found = tmp_path / "found.jsonl"
    monkeypatch.setenv("SOFTHCA_CHECK", f"json={found}")
    yield
    assert not found.exists(), found.read_text()


def test_clean_sees(clean, home, tmp_path):
    """What the programs below are shown to be free of."""
    rig.Side(home).run([CHECKED, "buffer-in-flight"])
    (tmp_path / "found.jsonl").unlink()


# Of several queue pairs perftest counts --cq-mod (100, or -l) for every completion,
# the last one of each, too: with another number it may have polled "all" while one
# queue pair still has requests to post, and then waits for ever without polling.
WHOLE = 400


# Not ib_send_lat -e: it waits for both CQs at one channel, polls the one that it
# has in mind, and if it was the other goes on as if a completion had been there.
@rig.over_places(places=["local", "netns"], what=[
    "ib_send_lat", "ib_send_bw -e", "ib_send_bw -b", "ib_send_bw --use-srq", "ib_write_lat",
    "ib_write_lat -s 65536", "ib_write_bw -q 4 -l 16", "ib_write_bw -R", "ib_read_bw", "ib_read_lat -e",
    "ib_atomic_bw", "ib_atomic_bw -q 4", "ib_atomic_bw -A CMP_AND_SWAP -b", "ib_write_bw -q 4 -b -s 65536",
    "ib_write_bw -c UC -q 2 -s 4096", "ib_write_bw -b -s 1048576 -t 8", "ib_read_bw -q 4 -b", "ib_send_bw -q 4 -b"])
def test_perftest_is_clean(clean, place, what):
    tool, *args = what.split()
    if "-R" in args:
        test_cm_tools.perftest(place, tool, *args)
    else:
        test_perftest.perftest(place, tool, *args, iters=WHOLE)


# Not ib_send_bw: it counts credits where earlier ones are still to be sent from.
@rig.over_places(places=["iwarp", "iwarp_netns1500"], what=[
    "ib_send_lat", "ib_write_lat", "ib_write_lat -s 65536", "ib_write_bw -q 4", "ib_read_lat", "ib_read_bw", "ib_write_bw -b -s 65536", "ib_read_bw -q 4 -s 65536"])
def test_perftest_by_iwarp_is_clean(clean, place, what):
    tool, *args = what.split()
    test_perftest.perftest(place, tool, "-R", *args, iters=WHOLE)


@pytest.mark.parametrize("run, args", [
    (test_iwarp.test_rping, {"family": 4}),
    (test_iwarp.test_ucmatose, {"family": 6}),
    (test_iwarp.test_rdma_client, {}),
    (test_iwarp.test_qperf, {"test": "rc_lat"}),
], ids=lambda v: v.__name__[5:] if callable(v) else "")
def test_by_iwarp_is_clean(clean, placements, run, args):
    run(placements("iwarp"), **args)


@pytest.mark.parametrize("run, args", [
    (test_cm_tools.test_rping, {"family": 4}),
    (test_cm_tools.test_rdma_client, {}),
    (test_cm_tools.test_rdma_xclient, {"kind": "x"}),
    (test_cm_tools.test_fi_pingpong, {"endpoint": "msg"}),
    (test_cm_tools.test_fi_pingpong, {"endpoint": "rdm"}),
    (test_cm_tools.test_fi_pingpong, {"endpoint": "dgram"}),
    (test_cm_tools.test_ucx, {"tls": "rc_v,ud_v", "test": "tag_bw"}),
    (test_cm_tools.test_ucx, {"tls": "rc_v,ud_v", "test": "ucp_put_lat"}),
    (test_cm_tools.test_ucx, {"tls": "ud_v", "test": "tag_lat"}),
    (test_cm_tools.test_ucx, {"tls": "rc_v,ud_v", "test": "ucp_swap"}),
    (test_cm_tools.test_ucx, {"tls": "rc_v,ud_v", "test": "ucp_get"}),
    (test_cm_tools.test_ucx, {"tls": "rc_v,ud_v", "test": "ucp_fadd"}),
    (test_cm_tools.test_udaddy, {"family": 4}),
    (test_cm_tools.test_ucmatose, {"family": 6}),
    (test_utils.test_pingpong, {"kind": "rc", "size": 4096, "wait": "events"}),
    (test_utils.test_pingpong, {"kind": "uc", "size": 4096, "wait": "poll"}),
], ids=lambda v: v.__name__[5:] if callable(v) else "-".join(map(str, v.values())))
def test_is_clean(clean, placements, run, args):
    run(placements("local"), **args)


@pytest.mark.parametrize("verb", ["send", "write", "read"])
def test_fio_is_clean(clean, placements, tmp_path, verb):
    test_cm_tools.test_fio(placements("local"), verb, tmp_path)


@pytest.mark.parametrize("value", ["exit=0", "exit=126", "exit=", "exit=2x", "exit=-1", "nothing", "1,exit"])
def test_bad_option(home, value):
    out = rig.Side(home).run(["true"], [f"--check={value}"], status=125)
    assert f"--check={value}: " in out and "expected" in out or "needs a status" in out, out
