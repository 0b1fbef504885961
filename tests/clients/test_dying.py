"""One end is killed, stopped or leaves at a random moment: the other one ends
with the right completion, no lock stays held, and nothing is left.

SOFTHCA_TEST_ROUNDS=1000 plays so many rounds of each."""
import os

import pytest

import rig

ROUNDS = int(os.environ.get("SOFTHCA_TEST_ROUNDS", "0"))
# A round of each takes 30 to 200 ms.
FEW = {"kill": 20, "exit": 6, "stop": 10, "dereg": 20}


@pytest.mark.parametrize("way", ["auto", "copy", pytest.param("udp", marks=pytest.mark.full)])
@pytest.mark.parametrize("kind, who", [
    ("kill", "new"), ("kill", "old"), ("exit", "new"), ("exit", "old"), ("stop", "any"), ("dereg", "old")])
def test_end(kind, who, way, rundir, networks):
    """Who dies is the one that came last, or the one that was there before."""
    rounds = ROUNDS or FEW[kind]
    cmd = [rig.client("dying"), "-k", kind, "-n", rounds, *(["-s"] if who == "old" and kind != "dereg" else [])]
    # A network of its own, as other processes of the host have another registry.
    side = rig.Side(networks(1500).a)
    env = {"SOFTHCA_RUNDIR": rundir, "SOFTHCA_SAME_HOST": way}
    side.run(cmd, limit=rig.LIMIT + rounds, env=env)
    # Whoever comes next cleans up what the dead have left, and then leaves.
    side.run(["ibv_devinfo"], env=env)
    assert set(os.listdir(rundir)) <= rig.KEPT
