"""Every habit of a peer in INTEROP.md's table is played by a test that exists.

The table is QUIRKS in tests/peer/interop.py; a row's last element names the
tests. A name has to be a function that one of the programs of tests/sim or
tests/unit runs.
"""
import pathlib
import re
import sys

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "peer"))
sys.dont_write_bytecode = True

from interop import QUIRKS  # noqa: E402


def main():
    sources = {p: p.read_text() for d in ("sim", "unit") for p in (TESTS / d).glob("*.c")}
    wrong = []
    for what, _, _, tests in QUIRKS:
        for name in tests.split():
            if not any(re.search(rf"^static void {name}\(void \*\*state\)", text, re.M)
                       and f"cmocka_unit_test({name})" in text for text in sources.values()):
                wrong.append(f"{name} is no test: {what}")
    print("\n".join(wrong) or f"{len(QUIRKS)} rows, each with its test")
    return 1 if wrong or not QUIRKS else 0


if __name__ == "__main__":
    sys.exit(main())
