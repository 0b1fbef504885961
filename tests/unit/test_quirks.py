"""Every habit of a peer in INTEROP.md's tables is played by a test that exists.

The tables are QUIRKS and, of rows with tests, SIW_DIFFERS in tests/peer/interop.py;
a row's last element names the tests. A name has to be a function that one of the programs of tests/sim or
tests/unit runs.
"""
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "peer"))
sys.dont_write_bytecode = True

from interop import QUIRKS, SIW_DIFFERS  # noqa: E402


def main():
    sources = {p: p.read_text() for d in ("sim", "unit") for p in (TESTS / d).glob("*.c")}
    wrong = []
    rows = QUIRKS + [row for row in SIW_DIFFERS if row[3]]
    for what, _, _, tests in rows:
        for name in tests.split():
            if not any(re.search(rf"^static void {name}\(void \*\*state\)", text, re.M)
                       and f"cmocka_unit_test({name})" in text for text in sources.values()):
                wrong.append(f"{name} is no test: {what}")
    print("\n".join(wrong) or f"{len(rows)} rows, each with its test")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
