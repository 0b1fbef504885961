"""Which failures scripts/test tries again: what load explains, and nothing else.
And how it counts."""
import importlib.machinery
import importlib.util
import os
import signal
import subprocess
import sys
import time

import pytest

sys.dont_write_bytecode = True
TESTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path.insert(0, TESTS)
import load  # noqa: E402
import retry  # noqa: E402


def scripts_test():
    path = os.path.join(TESTS, "..", "scripts", "test")
    loader = importlib.machinery.SourceFileLoader("scripts_test", path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("scripts_test", loader))
    loader.exec_module(module)
    return module


suite = scripts_test()

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
    CUT + "src/roce/roce_qp.c:12:3: runtime error: signed integer overflow\n",
    # assertions, of a test and of a program
    "AssertionError: assert 3 == 4\n",
    "assert 'status 12 ' in 'Failed status 12: wr_id 0'\n",
    CUT + "verbs_check: src/a.c:1: f: Assertion `x' failed.\n",
    CUT + "E   AssertionError: assert 3 == 4\n",
    CUT + "E       assert b'a' == b'b'\n",
    "During handling of the above exception, another exception occurred:\n".join(["rig.Failed: a\n", CUT]),
    CUT + "\nDuring handling of the above exception, another exception occurred:\n",
    # failed cases, and the C library
    "TimedOut: no end within 60 s\n1..3\nok 1 - a\nnot ok 2 - b\n",
    CUT + "[  FAILED  ] test_b\n",
    CUT + "free(): invalid pointer\n",
    CUT + "double free or corruption (out)\n",
    # data and statuses
    CUT + "data verification failed\n",
    CUT + "invalid data in page 3\n",
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


@pytest.mark.parametrize("harmless", [
    "not ok 2 - b # SKIP no network\n",
    '    assert "invalid data" not in end.output()\n',
])
def test_what_only_looks_wrong(harmless):
    assert retry.why(CUT + harmless, BUSY)


def test_every_failure_of_a_case_needs_its_excuse():
    r = suite.Results()
    r.fail("one", CUT, BUSY)
    r.fail("one", "rig.Failed: exit status (0, 1), expected (0, 0)\n", BUSY)
    r.fail("two", CUT, BUSY)
    assert not r.explained_by_load("one")
    assert r.explained_by_load("two")
    assert r.complaints["one"].startswith("rig.TimedOut")


def test_what_was_left_out_for_time_has_failed():
    r = suite.Results()
    r.add("a", suite.PASSED)
    r.skip("b", "OUT OF TIME on this machine")
    r.skip("c", "no zsh")
    assert r.line() == "1 passed, 1 failed, 1 skipped; 1 OUT OF TIME"
    assert r.failed() == ["b"] and not r.explained_by_load("b")


def test_tries_of_the_peer_are_in_the_verdict(monkeypatch):
    last = "2 passed, 0 failed, 0 skipped; 1 at the second try; 1 after failures that the packets explain"
    monkeypatch.setattr(suite, "run", lambda *_, **__: (0, "ok   one\nok   two: at attempt 2: why\n" + last))
    r = suite.Results()
    suite.run_peer("peer", r)
    assert r.line() == "2 passed, 0 failed; 1 at the second try; 1 after failures that the packets explain"
    assert r.complaints == {"peer: two": "at attempt 2: why"}


JUNIT = "<testsuites><testsuite>{}</testsuite></testsuites>"
CASE = '<testcase classname="c" name="n" file="f">{}</testcase>'


@pytest.mark.parametrize("cases, status, failed", [
    (CASE.format(""), 0, 0),
    (CASE.format('<skipped message="why"/>'), 5, 0),
    (CASE.format('<failure message="why"/>'), 1, 1),
    (CASE.format(""), 139, 1),      # died at its end
    ("", 5, 1),                     # nothing ran
    ("", 0, 1),
])
def test_a_report_of_pytest_and_its_status_agree(cases, status, failed):
    # What stands in for a pytest: it writes its report where it is told to.
    program = f'import os, sys; open(os.environ["PYTEST_ADDOPTS"].split()[0].partition("=")[2], "w").write(' \
        f'{JUNIT.format(cases)!r}); sys.exit({status})'
    r = suite.Results()
    suite.run_one({"name": "t", "command": [sys.executable, "-c", program]}, "/", "unit", r)
    assert len(r.failed()) == failed


def test_a_test_without_its_program_fails():
    r = suite.Results()
    suite.run_one({"name": "t"}, "/", "unit", r)
    assert r.failed() == ["t"]


def test_nothing_runs_or_is_tried_again_when_time_is_over(monkeypatch):
    monkeypatch.setattr(suite, "START", time.monotonic() - suite.END - 1)
    monkeypatch.setattr(suite, "GRACE", 0)
    r = suite.Results()
    r.fail("a", CUT, BUSY)
    suite.second_try("unit", r, rerun=None)
    suite.run_one({"name": "t", "command": ["true"]}, "/", "unit", r)
    assert r.cases["t"] == suite.FAILED
    assert suite.run(["sleep", "60"])[0] is None


def wait_gone(pid):
    end = time.monotonic() + 40
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except OSError:
            return True
        time.sleep(0.005)
    return False


def test_a_program_leaves_nothing_in_its_session():
    rc, out = suite.run(["sh", "-c", "sleep 600 & echo $!"], 60)
    assert rc == 0
    assert wait_gone(int(out))


def test_what_a_killed_parent_leaves_stays_ours():
    load.adopt_orphans()
    p = subprocess.Popen(["sh", "-c", "(while :; do :; done) & echo $!; wait"],
                         start_new_session=True, stdout=subprocess.PIPE)
    child = int(p.stdout.readline())
    end = time.monotonic() + 40
    while load.descendants().get(child, 0) < 20 and time.monotonic() < end:
        time.sleep(0.02)
    before = sum(load.descendants().values())
    os.killpg(p.pid, signal.SIGKILL)
    p.wait()
    p.stdout.close()
    assert wait_gone(child)
    assert sum(load.descendants().values()) >= before >= 20
