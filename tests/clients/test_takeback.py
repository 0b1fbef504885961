"""A sender takes back what it has posted, in mid-message: what the other end
has had by then is as it was."""
import pytest

import rig


@pytest.mark.parametrize("way", ["auto", "copy", pytest.param("udp", marks=pytest.mark.full)])
def test_take_back(way, networks):
    cmd = [rig.client("takeback"), "-n", 300]
    rig.Side(networks(1500).a).run(cmd, env={"SOFTHCA_SAME_HOST": way})
