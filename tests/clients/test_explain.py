"""What --explain says of ends that stop or die while others wait for them, and
that it says nothing of what is well."""
import signal
import time

import pytest

import rig


WRITES = ["ib_write_bw", "-F", "-s", 4096, "-n", 100000000]


@pytest.mark.parametrize("way", ["wire", "same-host=udp", "same-host=copy"])
def test_stopped_peer(home, way):
    """It is waited for, where that is known, and that is said."""
    with rig.running(home, WRITES, ["--explain", f"--{way}"]) as (server, client):
        client.wait_for("connected by")
        time.sleep(0.2)
        server.tell(signal.SIGSTOP)
        what = r"no answer for \d+ ms .*" if way == "wire" else r"read no packet for \d\.\d s, .*waits for it"
        client.wait_for(rf"QP 0x\w+ \(peer .*{what}: its process \d+ is stopped, by a signal")


@pytest.mark.parametrize("way", ["wire", "same-host=copy", "same-host=auto"])
def test_dead_peer(home, way):
    with rig.running(home, WRITES, ["--explain", f"--{way}"]) as (server, client):
        client.wait_for("connected by")
        time.sleep(0.2)
        server.kill()
        client.wait_for(r"no answer for \d+ ms .*: no process of this user and host has that QP: it has ended", 30)


@pytest.mark.parametrize("place", ["local", "wire", "netns"])
def test_nothing_to_say(placements, place):
    """No packet is called dropped where nothing is wrong."""
    for tool in ("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat"):
        # With a receive for each message: else a receiver that is late is told of.
        sends = ["-e", "-r", 2000] if "send" in tool else []
        run = placements(place).tool(tool, "-F", "-n", 2000, *sends, options=["--explain"])
        for end in (run.client, run.server):
            assert not [line for line in end.output().splitlines()
                        if line.startswith("softhca:") and "connected by" not in line]
