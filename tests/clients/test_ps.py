"""softhca ps, softhca explain PID and SIGUSR1: why does it hang? The same sentences in each of them."""
import contextlib
import os
import re
import signal
import subprocess

import pytest

import rig

WAITS = rig.client("waits")


def tool(rundir, *args, status=0, home=()):
    p = subprocess.run([*home, rig.SOFTHCA, *map(str, args)], env=dict(os.environ, SOFTHCA_RUNDIR=rundir), text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=20)
    assert p.returncode == status, p.stderr
    return p.stdout + p.stderr


@contextlib.contextmanager
def hanging(home, rundir, *args, options=()):
    """A program that is waiting by now."""
    p = rig.Proc(rig.Side(home), [WAITS, *args], ["--explain", *options], {"SOFTHCA_RUNDIR": rundir})
    try:
        p.wait_for("^ready$")
        yield p
    finally:
        p.kill()


def says(rundir, p, *sentences):
    """In all three places; numbers grow, so they are compared as words."""
    def all_there(text):
        return all(re.search(s, text, re.M) for s in sentences)

    rig.until(lambda: all_there(tool(rundir, "explain", p.pid)), f"explain says {sentences}", p)
    assert all_there(tool(rundir, "ps")), tool(rundir, "ps")
    os.kill(p.pid, signal.SIGUSR1)
    for s in sentences:
        p.wait_for(s.replace("^", "^softhca: "))


GETS = r"waits for an event of a CQ \(ibv_get_cq_event, descriptor \d+\), "
QPS = [
    ("unsignaled", r"its last 3 work requests are done, and no completion will come: posted without "
                   r"IBV_SEND_SIGNALED", r"thread \d+ (polls, and its CQ is empty|runs)"),
    ("unarmed", GETS + r"0 of 1 CQ there armed: none is armed, so no event comes: call ibv_req_notify_cq\(\) first, and "
                       r"poll: there are completions"),
    ("armed", GETS + r"1 of 1 CQ there armed$"),
    ("polls", r"waits for an event of a CQ .* none is armed.*; or an asynchronous event \(ibv_get_async_event, "),
    ("unacked", r"is in ibv_destroy_cq\(\), for \d+\.\d s: it waits until 1 event fetched before is acknowledged, by "
                r"ibv_ack_cq_events\(\)"),
    ("wrong-qp", r"has no receive posted, and messages have found none \d+ times; QP 0x\w{6} has 1 posted, and nothing has come "
                 r"there", r"waits for the peer to post a receive, for \d+\.\d s \(\d+ RNR NAKs; rnr_retry=7 waits"),
    ("wrong-srq", r"has no receive posted, .*; 1 are posted to an SRQ, with which this QP was not created"),
    ("retries", r"waits for an ACK of 1 packet, for \d+\.\d s, retry [1-7] of 7: its process has no such QP"),
    ("endless", r"waits for an ACK of 1 packet, for \d+\.\d s \(timeout=0 waits indefinitely\): its process has no such QP"),
]


@pytest.mark.parametrize("name, sentences", [(n, s) for n, *s in QPS], ids=[n for n, *_ in QPS])
def test_queue_pairs(home, rundir, name, sentences):
    with hanging(home, rundir, name) as p:
        says(rundir, p, *sentences)


def test_timeout_zero(home, rundir):
    """Nobody has to ask."""
    with hanging(home, rundir, "endless") as p:
        p.wait_for(r"^softhca: QP 0x\w+ .*: no answer for \d+\.\d s, and this QP waits indefinitely \(timeout=0\): its process "
                   r"has no such QP, or it is in state RESET: it was destroyed, or dest_qp_num here is wrong$")


LINES = pytest.mark.skipif(not os.path.exists(os.path.join(rig.BUILD, "lib", "softhca-lines")),
                           reason="built without libdw")


def places(text):
    """Of each thread that has some the lines of the program that it is in, innermost first."""
    found = []
    for frames in re.findall(r"^ *thread \d+ .*\n((?: +#\d+ .*\n)+)", text, re.M):
        lines = []
        for file, line, function in re.findall(r"#\d+ /.*/(\w+\.c):(\d+) \((\w+)\)$", frames, re.M):
            with open(os.path.join(rig.ROOT, "tests/clients/src", file)) as f:
                lines.append((function, f.read().split("\n")[int(line) - 1].strip()))
        found.append(lines)
    return found


@LINES
@pytest.mark.parametrize("name, function, line", [
    ("armed", "get_event", "ibv_get_cq_event("), ("polls", "polls", "poll(p, 2"), ("unacked", "unacked", "ibv_destroy_cq(")])
def test_places(home, rundir, name, function, line):
    """Where in the program a thread waits. One that spins is seen only if it sleeps meanwhile, which it does where others
    want its processor."""
    def found(command, *args):
        return [frames[0] for frames in places(tool(rundir, command, *args)) if frames]
    with hanging(home, rundir, name) as p:
        for command, *args in (["explain", p.pid], ["ps", p.pid]):
            rig.until(lambda: any(at == function and line in text for at, text in found(command, *args)),
                      f"{command} has its line", p)


@LINES
def test_places_of_locks(home, rundir):
    """Of threads that are only counted otherwise."""
    with hanging(home, rundir, "locked") as p:
        says(rundir, p, "2 threads wait for another thread")
        text = tool(rundir, "explain", p.pid)
        assert {frames[0] for frames in places(text)} == {
            ("lock_again", "pthread_mutex_lock(&held);"), ("locked", "pthread_join(thread, NULL);")}, text


@LINES
@pytest.mark.parametrize("options, calls", [("-O2 -g", 2), ("-O0 -g", 1), ("-O2", 1)])
def test_places_of_calls(home, rundir, tmp_path, options, calls):
    """Those that led there; with frame pointers as many as are found, and without -g the innermost function."""
    (tmp_path / "a.c").write_text(
        "#include <infiniband/verbs.h>\n#include <stdio.h>\n"
        "__attribute__((noinline)) int wait_here(struct ibv_context *ctx)\n{\n"
        "\tstruct ibv_async_event e;\n\tint err = ibv_get_async_event(ctx, &e);\n\treturn err + 1;\n}\n"
        "int main(void)\n{\n\tstruct ibv_device **l = ibv_get_device_list(NULL);\n"
        "\tstruct ibv_context *ctx = ibv_open_device(l[0]);\n\tputs(\"ready\");\n\tfflush(stdout);\n"
        "\tint rc = wait_here(ctx);\n\treturn rc + 1;\n}\n")
    subprocess.run(["gcc", *options.split(), "a.c", "-o", "a", "-libverbs"], check=True, cwd=tmp_path)
    p = rig.Proc(rig.Side(home), [str(tmp_path / "a")], env={"SOFTHCA_RUNDIR": rundir})
    try:
        p.wait_for("^ready$")
        rig.until(lambda: re.findall(r"#\d+ .*\((\w+)\)$", tool(rundir, "explain", p.pid), re.M)[:calls] ==
                  ["wait_here", "main"][:calls], "it waits", p)
        line = rf"#0 {tmp_path}/a.c:6 \(wait_here\)" if "-g" in options else rf"#0 {tmp_path}/a\+0x\w+ \(wait_here\)"
        assert re.search(line, tool(rundir, "explain", p.pid))
    finally:
        p.kill()


def test_other_address(home, rundir):
    """The peer is there, and connected to another address of this host."""
    with hanging(home, rundir, "other-address", "127.0.0.1") as p:
        says(rundir, p, r"waits for an ACK of 1 packet.*: the QP there is connected to another address than \S+, or not "
                        r"from 127\.0\.0\.1: dgid or sgid_index")


@pytest.mark.parametrize("way", ["--wire", "--iwarp"])
def test_listener(home, rundir, way):
    """Nobody comes; then somebody does, and is neither accepted nor rejected."""
    port = rig.free_port()
    with hanging(home, rundir, "listens", port, options=[way]) as server:
        says(rundir, server, rf"listens on 127\.0\.0\.1 port {port} \(rdma_listen\), for \d+\.\d s: no request has come",
             r"thread \d+ waits for an event of rdma_cm \(rdma_get_cm_event, ")
        with hanging(home, rundir, "connects", port, options=[way]) as client:
            server.wait_for("^asked$")
            says(rundir, server, r"a request of 127\.0\.0\.1 port \d+ has waited for \d+\.\d s: the program has called neither "
                                 r"rdma_accept\(\) nor rdma_reject\(\)", r"requests so far: 1; all have been fetched")
            there = "program there has neither accepted nor rejected"
            says(rundir, client, rf"connects to 127\.0\.0\.1 port {port}, for \d+\.\d s: (.*{there}|"
                                 rf"request \d+ of 16 has no answer: process {server.pid} listens there)")


def test_who_is_not_answered(home, rundir):
    """By a listener that is stopped, and one that fetches no events."""
    port = rig.free_port()
    with hanging(home, rundir, "deaf", port) as server:
        server.tell(signal.SIGSTOP)
        with hanging(home, rundir, "connects", port) as client:
            says(rundir, client, rf"connects to 127\.0\.0\.1 port {port}, for \d+\.\d s: request [2-9] of 16 has no answer: "
                                 rf"process {server.pid} listens there, and is stopped, by a signal")
            assert f"process {server.pid} (waits): is stopped, by a signal" in tool(rundir, "ps", home=home)
            assert "is stopped, by a signal" in tool(rundir, "explain", server.pid, home=home)
            server.tell(signal.SIGCONT)
            says(rundir, server, r"listens on .*, requests so far: 1; 1 waits for rdma_get_cm_event\(\)",
                 r"a request of 127\.0\.0\.1 port \d+ has waited for .* its event waits for rdma_get_cm_event\(\)")


def test_rejected(home, rundir):
    with hanging(home, rundir, "rejected", rig.free_port()) as p:
        says(rundir, p, r"its connection to 127\.0\.0\.1 port \d+ was rejected \d+\.\d s ago: reason 8 \(.*\): no "
                        r"rdma_listen\(\) there on this port",
             r"1 event of the identifier for 127\.0\.0\.1 port \d+ waits for rdma_get_cm_event\(\)")


def test_refused(home, rundir):
    """By TCP, where the event waits, too."""
    with hanging(home, rundir, "unfetched", rig.free_port(), options=["--iwarp"]) as p:
        says(rundir, p, r"its connection to 127\.0\.0\.1 port \d+ failed \d+\.\d s ago: Connection refused")


def test_identifier_is_not_acknowledged(home, rundir):
    with hanging(home, rundir, "destroys", rig.free_port()) as p:
        says(rundir, p, r"is in rdma_destroy_id\(\), for \d+\.\d s: it waits until 1 event fetched before is acknowledged, "
                        r"by rdma_ack_cm_event\(\)")


def test_real_programs(home, rundir):
    """Before they are connected, and with a peer that is stopped; and a program that uses no device."""
    side, env, port = rig.Side(home), {"SOFTHCA_RUNDIR": rundir}, rig.free_port()
    copied = ["--same-host=copy"]
    procs = [rig.Proc(side, ["ib_write_bw", "-F", "-p", port, "-s", 4096, "-n", 100000000], copied, env),
             rig.Proc(side, ["rping", "-s", "-p", rig.free_port()], env=env), rig.Proc(side, ["sleep", 1000], env=env)]
    perftest, rping, sleep = procs
    try:
        def seen():
            text = tool(rundir, "ps", home=home)
            return (re.search(rf"^  thread {perftest.pid} waits for a connection to \S+ port {port} \(descriptor \d+\): "
                              r"nobody has come", text, re.M) and
                    re.search(r"^  listens on \S+ port \d+ \(rdma_listen\), for \d+\.\d s: no request has come", text, re.M)
                    and f"process {sleep.pid} (sleep): has softhca's libraries, and has opened no device" in text)
        rig.until(seen, "they wait", perftest)
        client = rig.Proc(side, ["ib_write_bw", "-F", "-p", port, "-s", 4096, "-n", 100000000, "127.0.0.1"], copied, env)
        procs.append(client)
        rig.until(lambda: f"process {client.pid} (ib_write_bw): 1 queue pair" in tool(rundir, "ps"), "it is connected", client)
        perftest.tell(signal.SIGSTOP)
        rig.until(lambda: f"its process {perftest.pid} is stopped" in tool(rundir, "ps", home=home), "it is stopped", client)
    finally:
        for p in procs:
            p.kill()


def test_window(home, rundir):
    """Losses narrow it, and what is posted waits for it."""
    with rig.running(home, ["ib_write_bw", "-F", "-s", 65536, "-n", 100000000], ["--wire", "--loss=5"],
                     {"SOFTHCA_RUNDIR": rundir}) as (_, client):
        rig.until(lambda: re.search(r"; \d+ work requests? waits? for the congestion window, which losses have narrowed to \d+ "
                                    r"packets?$", tool(rundir, "ps"), re.M), "the window is narrow", client)


def test_nothing_to_show(rundir):
    out = tool(rundir, "explain", "1", status=0)
    assert "process 1" not in out


def test_those_that_are_asked_for(home, rundir):
    """By number, or a part of a name; what nobody is, is said."""
    side, env = rig.Side(home), {"SOFTHCA_RUNDIR": rundir}
    procs = [rig.Proc(side, ["sleep", 1000], env=env), rig.Proc(side, ["ib_write_bw", "-p", rig.free_port()], env=env)]
    sleep, perftest = procs
    other = rig.Proc(side, ["sleep", 1000], alone=True)

    def shown(*asked, status=0):
        text = tool(rundir, "ps", *asked, status=status, home=home)
        return {p for p in procs if f"process {p.pid} (" in text}, text
    try:
        rig.until(lambda: shown()[0] == {sleep, perftest}, "they run", perftest)
        for asked in ([perftest.pid], ["write_bw"], ["/usr/bin/ib_write_bw"], ["ib_write_bw", perftest.pid]):
            assert shown(*asked)[0] == {perftest}, asked
        assert shown(sleep.pid, "ib_write_bw")[0] == {sleep, perftest}
        some, text = shown("ib_write_bw", "nobody", status=1)
        assert some == {perftest} and text.endswith("\nsofthca: no running program of this user with softhca's libraries has "
                                                    'a name with "nobody" in it; softhca ps shows all of them\n')
        assert shown(4194305, status=1) == (set(), "softhca: there is no process 4194305\n")
        assert shown(other.pid, status=1)[1].startswith(f"softhca: process {other.pid} runs, and is none of softhca's")
    finally:
        for p in (*procs, other):
            p.kill()
