"""What --explain says of ends that stop or die while others wait for them, and
that it says nothing of what is well."""
import signal
import time

import pytest

import rig


class Ends:
    """ib_write_bw between two processes of one host."""

    def __init__(self, home, *options):
        port = rig.free_port()
        words = ["ib_write_bw", "-F", "-s", 4096, "-n", 100000000, "-p", port]
        self.server = rig.Proc(rig.Side(home), words, ["--explain", *options])
        try:
            self.server.wait_listening(port)
            self.client = rig.Proc(rig.Side(home), [*words, "127.0.0.1"], ["--explain", *options])
        except BaseException:
            self.server.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.kill()
        self.client.kill()


@pytest.mark.parametrize("way", ["wire", "same-host=udp", "same-host=copy"])
def test_stopped_peer(home, way):
    """It is waited for, where that is known, and that is said."""
    with Ends(home, f"--{way}") as ends:
        ends.client.wait_for("connected by")
        time.sleep(0.2)
        ends.server.tell(signal.SIGSTOP)
        what = r"no answer for \d+ ms .*" if way == "wire" else r"read no packet for \d\.\d s, .*waits for it"
        ends.client.wait_for(rf"QP 0x\w+ \(peer .*{what}: its process \d+ is stopped, by a signal")


@pytest.mark.parametrize("way", ["wire", "same-host=copy", "same-host=auto"])
def test_dead_peer(home, way):
    with Ends(home, f"--{way}") as ends:
        ends.client.wait_for("connected by")
        time.sleep(0.2)
        ends.server.kill()
        ends.client.wait_for(r"no answer for \d+ ms .*: no process of this user and host has that QP: it has ended", 30)


@pytest.mark.parametrize("place", ["local", "wire", "netns"])
def test_nothing_to_say(placements, place):
    """No packet is called dropped where nothing is wrong."""
    for tool in ("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_send_lat"):
        run = placements(place).tool(tool, "-F", "-n", 2000, *(["-e"] if "send" in tool else []), options=["--explain"])
        for end in (run.client, run.server):
            assert not [line for line in end.output().splitlines()
                        if line.startswith("softhca:") and "connected by" not in line]
