"""Which failures scripts/test tries again: what load explains, and nothing else."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import retry  # noqa: E402

QUIET, BUSY = 0.02, 0.8
CUT = "rig.TimedOut: no end within 40 s\n--- server\n$ ib_send_bw\n[ended by the test]\n"
RETRY = """rig.Failed: exit status (None, 1), expected (0, 0)
--- server
$ softhca run -- ib_write_bw -F
[ended by the test]
--- client
$ softhca run -- ib_write_bw -F 10.91.0.2
 Completion with error at client
 Failed status 12: wr_id 0 syndrom 0x81
[exit status 1]
"""


@pytest.mark.parametrize("failure", [
    CUT,
    "subprocess.TimeoutExpired: Command '['ibv_devinfo']' timed out after 40 seconds",
    'failed on setup with "rig.TimedOut: no end within 40 s"',
    "TimedOut: no end within 60 s\nok 1 - test_first\n",
    "no end within 40 s; client: ; server: ",
    RETRY,
    RETRY.replace("Failed status 12:", "Failed status transport retry counter exceeded (12) for"),
    "rig.Failed: exit status 255, expected 0\n[vm:1:0] ib_mlx5_log.c:162 Transport retry count exceeded on mlx5_0",
    'completes as "transport retry counter exceeded" instead of "success"',
])
def test_what_load_explains(failure):
    assert retry.why(failure, BUSY)
    assert not retry.why(failure, QUIET)


@pytest.mark.parametrize("failure", [
    # a signal, of the program itself and under a shell
    "rig.Failed: exit status (-11, 0), expected (0, 0)\n",
    "rig.Failed: exit status (0, -6), expected (0, 0)\n",
    "rig.Failed: exit status 139, expected 0\n",
    CUT.replace("[ended by the test]", "[exit status -11]"),
    RETRY.replace("[exit status 1]", "[exit status -6]"),
    RETRY.replace("(None, 1)", "(-9, 1)"),
    CUT + "Segmentation fault (core dumped)\n",
    # a sanitizer
    CUT + "==123==ERROR: AddressSanitizer: heap-use-after-free on address\n",
    CUT + "WARNING: ThreadSanitizer: data race (pid=1)\n",
    CUT + "src/roce/qp.c:12:3: runtime error: signed integer overflow\n",
    # assertions, of a test and of a program
    "AssertionError: assert 3 == 4\n",
    "assert 'status 12 ' in 'Failed status 12: wr_id 0'\n",
    CUT + "verbs_check: src/a.c:1: f: Assertion `x' failed.\n",
    # data and statuses
    CUT + "messages 500 wrong 3\n",
    "rig.Failed: exit status (1, 1), expected (0, 0)\nFailed status 10: remote access error\n",
    "rig.Failed: exit status 1, expected 0\n",
    # nor a complaint of a judge that looks like a limit
    "the packets end within 40 s\nno end within 40 s",
    "",
])
def test_what_it_does_not_explain(failure):
    assert not retry.why(failure, BUSY)


def test_nothing_wrong_is_not_wrong_data():
    assert retry.why(CUT + "messages 500 wrong 0\n", BUSY)
