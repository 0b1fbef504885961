"""verbs_check: every byte of every message, with and without losses."""
import re

import pytest

import rig
import soak

FULL = pytest.mark.full
RC_OPS = ["send", "send_imm", "write", "write_imm", "read", "faa", "cas", "mix", "all"]


def numbers(proc):
    m = re.search(r"(\d+) messages, (\d+) bytes, lost (\d+), wrong (\d+)", proc.output())
    assert m, proc.describe()
    return dict(zip(("messages", "bytes", "lost", "wrong"), map(int, m.groups())))


@rig.over_places(op=RC_OPS)
def test_rc(place, op):
    place.check("-c", "RC", "-o", op, "-n", 2000, "-s", 9000, "-S", 0)


@rig.over_places(op=["send", "write", "read", "mix"])
def test_rc_large(place, op):
    place.check("-c", "RC", "-o", op, "-n", 60, "-r", 16, "-s", 1 << 20)


@rig.over_places(op=["send", "send_imm", "write", "write_imm"])
def test_uc(place, op):
    place.check("-c", "UC", "-o", op, "-n", 500, "-r", 4, "-s", 9000)


@pytest.mark.parametrize("op", ["send", "send_imm"])
def test_ud(place, op):
    place.check("-c", "UD", "-o", op, "-n", 1000, "-r", 32, "-s", 1024)


@rig.over_places(args=[
    ["-o", "send", "-q", 16], ["-o", "send", "-q", 8, "-R"], ["-o", "write", "-q", 16, "-Q", 16],
    ["-o", "send", "-G", 4, "-s", 30000], ["-o", "read", "-G", 4, "-s", 30000],
    ["-o", "send", "-I", "-s", 64], ["-o", "send", "-x", 1, "-q", 2, "-r", 8, "-n", 100],
    ["-o", "faa", "-q", 8], ["-o", "send", "-q", 4, "-e"], ["-o", "read", "-e"], ["-o", "mix", "-q", 4, "-e"],
    ["-c", "UD", "-o", "send", "-q", 4, "-G", 3, "-r", 16], ["-c", "UC", "-o", "write_imm", "-e", "-r", 8],
])
def test_features(place, args):
    n = [] if "-n" in args else ["-n", 800]
    place.check(*n, *args)


@pytest.mark.parametrize("family", [4, 6])
def test_family(place, family):
    for conn, op in (("RC", "mix"), ("UD", "send")):
        place.check("-c", conn, "-o", op, "-n", 300, "-r", 32, "-s", 1000, **place.gid_args("-g", family),
                    host=place.host6 if family == 6 else place.host)


@pytest.mark.parametrize("mtu", [256, 512, 1024, 2048, 4096])
def test_mtu(placements, mtu):
    p = placements("netns")
    p.check("-o", "mix", "-m", mtu, "-n", 200, "-s", 30000)
    p.check("-o", "read", "-m", mtu, "-n", 200, "-s", 30000)


def test_announced_message_size():
    out = rig.Side().run(["ibv_devinfo", "-v"])
    m = re.search(r"max_msg_sz:\s+0x([0-9a-f]+)", out)
    assert m and int(m[1], 16) >= (1 << 31) - 1, out


@pytest.mark.full
@pytest.mark.parametrize("op", ["send", "write", "read"])
def test_two_gib(placements, op):
    """One message of 2 GiB less a byte."""
    size = (1 << 31) - 1
    placements("local").check("-o", op, "-s", size, "-S", size, "-n", 1, "-r", 1, limit=300)


SEEDS = range(2, 12)


@rig.over_places(2, op=RC_OPS, loss=[1, 5])
def test_loss_rc(place, op, loss, seed=1):
    """RC finishes, with the right data, whatever is lost."""
    n = 150 if op == "cas" else 500
    place.check("-c", "RC", "-o", op, "-n", n, "-s", 9000, "-u", 10, "-X", seed,
                options=["--loss", loss, "--seed", seed])


@FULL
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", [1, 5])
@pytest.mark.parametrize("op", RC_OPS)
def test_loss_rc_more(place, op, loss, seed):
    test_loss_rc(place, op, loss, seed)


@rig.over_places(2, args=[["-q", 8], ["-q", 4, "-R", "-e"]], loss=[1, 5])
def test_loss_rc_many(place, args, loss):
    place.check("-c", "RC", "-o", "send", "-n", 200, "-u", 10, *args,
                options=["--loss", loss, "--seed", 7])


UNRELIABLE = [("UC", "send", 6000), ("UC", "send_imm", 6000), ("UC", "write_imm", 6000), ("UD", "send", 1024)]


# Packets of small messages are the same in "local" and "copy".
@rig.over_places(2, places=[p for p in rig.PLACES if p != "copy"], what=UNRELIABLE, loss=[1, 5])
def test_loss_unreliable(place, what, loss, seed=1):
    """UC and UD lose messages, and never deliver a torn one."""
    conn, op, size = what
    out = place.check("-c", conn, "-o", op, "-n", 1000, "-r", 32, "-s", size, "-L", "-X", seed,
                      options=["--loss", loss, "--seed", seed])
    got = numbers(out.server)
    assert got["wrong"] == 0 and got["lost"] > 0 and got["messages"] > 100, out.describe()
    assert got["messages"] + got["lost"] == 1000, out.describe()


@FULL
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", [1, 5])
@pytest.mark.parametrize("what", UNRELIABLE)
def test_loss_unreliable_more(place, what, loss, seed):
    test_loss_unreliable(place, what, loss, seed)


def test_loss_is_what_was_asked(placements):
    """UD messages of one packet: the share that is lost is the share asked for."""
    out = placements("netns").check("-c", "UD", "-n", 4000, "-s", 64, "-L", "-r", 128,
                                    options=["--loss", 5, "--seed", 3])
    assert 120 < numbers(out.server)["lost"] < 290, out.describe()


@rig.over_places(tool=["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_lat"], loss=[1, 5])
def test_loss_perftest(place, tool, loss):
    place.tool(tool, "-F", "-n", 300, "-u", 10, options=["--loss", loss, "--seed", 5])


@rig.over_places(loss=[1, 5])
def test_loss_pingpong(place, loss):
    """The tool ends without a farewell: who waits for the acknowledgement of
    the last message when the other has gone gets none if it was lost."""
    out = place.tool("ibv_rc_pingpong", "-g", 0, "-c", "-n", 100, status=(None, None),
                     options=["--loss", loss, "--seed", 5])
    text = out.server.output(), out.client.output()
    assert {out.server.popen.returncode, out.client.popen.returncode} <= {0, 1}, out.describe()
    assert any("100 iters in" in t for t in text), out.describe()
    assert not any("invalid data" in t for t in text), out.describe()


def test_soak(placements):
    """As make soak, for some seconds."""
    soak.soak(placements("netns"), 12, 1)
