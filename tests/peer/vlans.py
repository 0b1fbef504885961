"""RoCE v1 on interfaces that are VLANs: in the guest, since its kernel has them, and others may not.

It runs the client test of that (test_rocev1.py), between two network namespaces of the guest.
"""
import os

import lab

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT = 120     # s


def run(session):
    what = "RoCE v1 on VLANs, between two hosts in the guest"
    if not session.wanted(what):
        return
    command = ["env", "-C", ROOT, f"SOFTHCA_BUILD={session.args.host_build}", f"SOFTHCA_TEST_LIMIT={LIMIT}",
               "/usr/bin/python3", "-m", "pytest", "-q", "-rs", "--tb=short", "-p", "no:cacheprovider",
               "tests/clients/test_rocev1.py", "-k", "test_vlans"]
    try:
        rc, out = session.guest(1).run(command, 2 * LIMIT)
    except (lab.LabError, OSError) as e:
        return session.report.add_other(what, "FAIL", str(e))
    passed = rc == 0 and "1 passed" in out      # it skips where there are no VLANs
    return session.report.add_other(what, "PASS" if passed else "FAIL",
                                    "" if passed else f"ends with {rc}: {out[-600:]}")
