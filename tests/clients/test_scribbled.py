"""A third process of the same user writes where two others share memory: nobody
crashes or hangs, what fails does so with a completion, and nothing is left.

SOFTHCA_TEST_ROUNDS=1000 plays so many rounds of each."""
import os

import pytest

import rig

ROUNDS = int(os.environ.get("SOFTHCA_TEST_ROUNDS", "0")) or 20  # of 60 to 200 ms


@pytest.mark.parametrize("what", ["rings", "back", "visits", "keys", "qps", "head", "all", "registry"])
def test_scribbled(what, rundir, networks):
    # A network of its own, as other processes of the host have another registry.
    side = rig.Side(networks(1500).a)
    env = {"SOFTHCA_RUNDIR": rundir}
    side.run([rig.client("scribbled"), "-k", what, "-n", ROUNDS], limit=rig.LIMIT + ROUNDS, env=env)
    # Whoever comes next cleans up what processes have left that were killed.
    side.run(["ibv_devinfo"], env=env)
    assert set(os.listdir(rundir)) <= rig.KEPT
