"""Several processes, users and surroundings; what one's end does to others."""
import fcntl
import os
import re
import signal
import subprocess
import time

import pytest

import rig
from test_data import numbers

CHECK = rig.client("verbs_check")


LONG = 300  # s of a transfer that is told to end


class Running:
    """A verbs_check pair in the background."""

    def __init__(self, place, *args, options=()):
        port = rig.free_port()
        cmd = [CHECK, "-p", port, *args]
        opts = [*place.options, *options]
        self.server = rig.Proc(place.server, cmd, opts)
        self.server.wait_listening(port)
        self.client = rig.Proc(place.client, [*cmd, place.host], opts)

    def ready(self):
        self.server.wait_for("^ready")
        self.client.wait_for("^ready")

    def moves(self):
        """Until a transfer of LONG has got on; one line may be under way."""
        def lines():
            return self.client.output().count("\nat ")

        seen = lines()
        rig.until(lambda: lines() > seen + 1, "the transfer goes on", self.client)

    def finish(self):
        rig.Pair(self.server, self.client).end()
        return f"{self.server.describe()}{self.client.describe()}"

    def stop(self):
        """Ends a transfer of LONG."""
        self.client.tell(signal.SIGTERM)
        return self.finish()

    def kill(self):
        self.server.kill()
        self.client.kill()


@rig.over_places(victim=["server", "client"])
def test_killed_peer(place, victim):
    """Four pairs on one address; one process is killed in mid-transfer. Its
    peer is told within its own time-out, the others finish, a new pair starts."""
    pairs = []
    try:
        for i in range(4):
            pairs.append(Running(place, "-o", "send", "-D", LONG, "-s", 4096,
                                 "-r", 64, "-X", i + 1, *(["-e"] if i % 2 else [])))
        for p in pairs:
            p.ready()
        for p in pairs:
            p.moves()
        dead, left = pairs[0].server, pairs[0].client
        if victim == "client":
            dead, left = left, dead
        assert dead.running() and left.running()
        dead.kill(signal.SIGKILL)
        start = time.monotonic()
        rc = left.wait(10)
        took = time.monotonic() - start
        if victim == "server":
            # 4.096 us * 2^14 = 67 ms, 8 times.
            assert rc == 3 and "status 12 " in left.output(), left.describe()
            assert took > 0.3, f"took {took:.1f} s\n{left.describe()}"
        else:  # a receiver waits for nobody: it learns by TCP
            assert rc == 3, left.describe()
        for p in pairs[1:]:
            p.stop()
    finally:
        for p in pairs:
            p.kill()
    place.check("-n", 300)


# What is lost of what the receiver sends, which are acknowledgements only: of
# four messages the first of each, and of the last message the second as well.
LOST = ["--loss=50", "--seed=5625"]  # D.D.D.DD..DD.D.D


@rig.choose(lambda place, leave: leave == "destroy" or (place, leave) in (("wire", "close"), ("netns", "exit")),
            leave=["destroy", "close", "exit"])
def test_last_ack_is_lost(place, leave):
    """A receiver has everything and leaves; its last acknowledgement is lost.
    What it has sent is not lost with it. How long a process that ends goes on
    answering is bounded: a sender that gets no processor meanwhile may miss
    that, which retry.py judges."""
    port = rig.free_port()
    cmd = [rig.client("last_ack"), "-p", port, "-n", 4]
    server = rig.Proc(place.server, [*cmd, leave], [*place.options, *LOST])
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, "send", place.host], [*place.options, "--explain"])
    except BaseException:
        server.kill()
        raise
    rig.Pair(server, client).end()


@rig.in_place("netns")
def test_killed_peer_perftest(place):
    port = rig.free_port()
    # A line each second. A file would get all of the output at once, at the end.
    cmd = ["stdbuf", "-oL", "ib_write_bw", "-F", "--run_infinitely", "-D", 1, "-u", 12, "-p", port]
    server = rig.Proc(place.server, cmd, place.options)
    client = None
    try:
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, place.host], place.options)
        client.wait_for(r"^ 65536 +[1-9]")
        assert client.running() and server.running()
        server.kill(signal.SIGKILL)
        assert client.wait() != 0
        assert "status 12" in client.output(), client.describe()
    finally:
        server.kill()
        if client:
            client.kill()


def test_kills_leave_nothing(placements):
    """What killed processes held is available again."""
    place = placements("wire")
    for i in range(20):
        p = Running(place, "-o", "write", "-D", 30)
        try:
            p.ready()
        finally:
            p.kill()
    place.check("-n", 300)
    out = place.server.run(["ibv_devinfo"])
    assert "PORT_ACTIVE" in out


@rig.in_place("wire")
def test_one_sided_without_the_target(place):
    """A target that sleeps in its program serves reads, writes and atomics."""
    for op in ("read", "faa"):
        p = Running(place, "-o", op, "-n", 2000, "-r", 16)
        try:
            p.ready()
            text = p.finish()
            assert "wrong 0" in text
        finally:
            p.kill()


def test_stopped_peer_goes_on(placements):
    """SIGSTOP for less than the time-out is only a delay."""
    place = placements("wire")
    p = Running(place, "-o", "send", "-D", LONG)
    try:
        p.ready()
        p.moves()
        p.server.tell(signal.SIGSTOP)
        time.sleep(0.2)  # which is what it is about
        p.server.tell(signal.SIGCONT)
        p.moves()
        p.stop()
    finally:
        p.kill()


def test_long_stopped_peer_goes_on(placements):
    """Within a host, SIGSTOP for longer than all retries is only a delay: the
    time-out is 67 ms, 8 times. A peer that is killed then is noticed."""
    for option in ("send", "read"):
        p = Running(placements("local"), "-o", option, "-D", LONG)
        try:
            p.ready()
            p.moves()
            p.server.tell(signal.SIGSTOP)
            time.sleep(3)  # which is what it is about
            assert p.client.running(), p.client.describe()
            if option == "read":
                p.server.kill(signal.SIGKILL)
                assert p.client.wait(10) == 3, p.client.describe()
                assert "status 12 " in p.client.output(), p.client.describe()
                continue
            p.server.tell(signal.SIGCONT)
            p.moves()
            p.stop()
        finally:
            p.kill()


def test_many_pairs_spin_on_two_processors(placements):
    """Processes that wait for the processor for seconds are no dead peers."""
    place = placements("local")
    pin = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:2]))]
    ports = set()
    while len(ports) < 60:
        ports.add(rig.free_port())
    ends = []
    try:
        for side, host in ((place.server, ""), (place.client, place.host)):
            # All at once: those that come early must not be gone by then.
            script = "for p in {}; do {{ out=$(ibv_rc_pingpong -g {} -n 50 -p $p {} 2>&1) || " \
                "{{ echo \"port $p: $out\"; exit 1; }}; }} & all=\"$all $!\"; done; " \
                "for i in $all; do wait $i || bad=1; done; exit $bad".format(
                    " ".join(map(str, ports)), side.gid_index(4), host)
            ends.append(rig.Proc(rig.Side([*side.prefix, *pin]), ["sh", "-c", script],
                                 place.options))
            for port in () if host else ports:
                ends[0].wait_listening(port)
        # One end that failed leaves the other waiting.
        for end in reversed(ends):
            end.done(60)
    finally:
        for end in ends:
            end.kill()


# ------------------------------------------------------------------- users

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start other users' processes")


def user_place(home, staged, uid, prefix=(), options=()):
    side = rig.Side([*home, *prefix, *rig.ordinary_user(uid)], tool=f"{staged}/bin/softhca")
    return rig.Placement("user", side, side, "127.0.0.1", "::1", options)


@root
@pytest.mark.parametrize("options", [[], ["--wire"]], ids=["local", "wire"])
def test_ordinary_user(home, staged, options):
    place = user_place(home, staged, 65534, options=options)
    place.tool("ibv_rc_pingpong", "-g", 0, "-c", "-n", 200)
    place.tool("ib_write_bw", "-F", "-n", 200)
    place.tool("ib_send_lat", "-F", "-c", "UD", "-n", 200)


@root
def test_ordinary_user_netns(staged, networks):
    net = networks(9000)
    user = rig.ordinary_user(65534)
    tool = f"{staged}/bin/softhca"
    place = rig.Placement("netns", rig.Side([*net.b, *user], tool), rig.Side([*net.a, *user], tool),
                          "10.91.0.2", "fd91::2")
    place.tool("ib_send_bw", "-F", "-n", 300)
    place.tool("ib_read_lat", "-F", "-n", 300)


@root
def test_memlock_64k(home, staged):
    """Nothing is locked, so the limit that stops hardware users does not matter."""
    place = user_place(home, staged, 65534, prefix=["prlimit", "--memlock=65536:65536"])
    place.tool("ib_write_bw", "-F", "-s", 1 << 20, "-n", 50)
    place.tool(f"{staged}/clients/verbs_check", "-o", "mix", "-s", 100000, "-n", 100, "-r", 16)


@root
def test_two_users(home, staged):
    """The second user of an address is told who has the port, and still works
    between its own processes."""
    one, two = 65534, 54321
    port = rig.free_port()
    check = f"{staged}/clients/verbs_check"
    first = user_place(home, staged, one, options=["--wire"])
    a = rig.Proc(first.server, [check, "-p", port, "-D", LONG], ["--wire"])
    b = None
    try:
        a.wait_listening(port)
        b = rig.Proc(first.client, [check, "-p", port, "-D", LONG, "127.0.0.1"], ["--wire"])
        a.wait_for("^ready")
        b.wait_for("^ready")
        # its own processes: as if alone
        second = user_place(home, staged, two)
        second.tool("ib_write_bw", "-F", "-n", 200)
        out = second.tool(check, "-o", "mix", "-n", 300)
        assert "4791" in out.client.output(), out.describe()
        # the wire is taken, and that is said
        wire = user_place(home, staged, two, options=["--wire"])
        out = wire.tool(check, "-n", 100, status=(None, None))
        assert out.client.popen.returncode and out.server.popen.returncode, out.describe()
        for end in (out.client, out.server):
            assert "4791" in end.output(), out.describe()
            assert re.search(rf"\b{one}\b|nobody", end.output()), f"says not who\n{out.describe()}"
        b.tell(signal.SIGTERM)
        rig.Pair(a, b).end()
    finally:
        a.kill()
        if b:
            b.kill()


# ------------------------------------------------------------ surroundings

@root
@pytest.mark.parametrize("options", [[], ["--wire"]], ids=["local", "wire"])
def test_no_dev_shm(home, options):
    """/dev/shm is absent or read-only in some containers."""
    hide = [*home, "unshare", "-m", "sh", "-c",
            'mount -t tmpfs -o ro,size=4k none /dev/shm && exec "$@"', "sh"]
    side = rig.Side(hide)
    place = rig.Placement("no shm", side, side, "127.0.0.1", "::1", options)
    place.tool("ibv_rc_pingpong", "-g", 0, "-c", "-n", 200)
    place.check("-o", "mix", "-n", 300)


def test_no_place_at_all(home):
    """Without any writable place a process is alone, says so and works."""
    p = rig.Proc(rig.Side(home), ["ibv_devinfo"], env={"SOFTHCA_RUNDIR": "/proc/nowhere"})
    p.done()
    assert "softhca: cannot open /proc/nowhere" in p.output(), p.describe()


def test_lock_held_for_ever(home, tmp_path):
    """Whoever cannot meet the other processes in time fails, rather than going
    on as if there were none."""
    path = tmp_path / f"softhca-{os.geteuid()}-0"
    env = dict(os.environ, SOFTHCA_RUNDIR=str(tmp_path), LD_LIBRARY_PATH=f"{rig.BUILD}/lib")
    with open(path, "xb", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 4 << 20)
        # "softhca run" would look for devices itself, and wait twice.
        p = subprocess.run([*home, "ibv_devinfo"], env=env, timeout=rig.LIMIT, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert p.returncode, p.stdout
    assert f"softhca: cannot lock {path}: process {os.getpid()} holds it" in p.stdout, p.stdout


def test_few_descriptors(home):
    """A tight limit on open files is an error message, not a crash."""
    side = rig.Side([*home, "prlimit", "--nofile=64:64"])
    place = rig.Placement("nofile", side, side, "127.0.0.1", "::1")
    place.check("-n", 200)


def test_fork_and_exec(placements):
    """Under a shell, with the environment passed on."""
    port = rig.free_port()
    place = placements("local")
    place.pair(["sh", "-c", f"ibv_devices && exec ib_write_lat -F -n 100 -p {port}"],
               ["sh", "-c", f"ibv_devices && exec ib_write_lat -F -n 100 -p {port} 127.0.0.1"], port)


def test_exit_status_is_passed():
    p = rig.Proc(rig.Side(), ["sh", "-c", "exit 42"])
    assert p.wait() == 42


def test_loss_is_counted_the_same_with_a_seed(placements):
    """A seed makes a run's losses its own."""
    place = placements("netns")
    lost = []
    for _ in range(2):
        out = place.check("-c", "UD", "-n", 500, "-s", 64, "-r", 32, "-L", options=["--loss", 5, "--seed", 11])
        lost.append(numbers(out.server)["lost"])
    assert lost[0] == lost[1], lost
