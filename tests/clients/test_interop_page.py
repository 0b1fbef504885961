"""docs/INTEROP.md is written at the end of make test-peer, which takes half an hour: that it can be."""
import os
import sys

import rig

sys.path.insert(0, os.path.join(rig.ROOT, "tests", "peer"))
import interop  # noqa: E402


def test_page(tmp_path, capsys):
    report = interop.Report()
    table = next(iter(interop.TITLES))
    report.add(table, "send", (0, 1), 4, "PASS")
    report.add(table, "send", (1, 0), 4, "FAIL", "it fails")
    report.add_other("something else", "PASS")
    report.add_judged("one capture", "packets decode", "PASS", "all 100")
    report.add_judged("another", "packets decode", "FAIL", "2 do not")
    report.write(tmp_path / "page.md", ["linux-6.1.0-1-abc"])
    page = (tmp_path / "page.md").read_text()
    assert "| packets decode | **fails** | another: 2 do not |" in page
    assert "1 works, 1 **fail**" in page or "1 work, 1 **fail**" in page, page
    assert "something else: holds" in page
    capsys.readouterr()
