"""Cases of a program that is no pytest: run, counted, said, and written as a table.

A case is a name and a function, which returns what it has measured, or raises Failed
or Skipped with the reason.
"""
import re
import subprocess
import time

lines = []      # what was said


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def say(line):
    lines.append(line)
    print(line, flush=True)


def each(cases):
    """Runs each of (name, function) and says what came of it; how many of each there are."""
    n = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for name, fn in cases:
        then = time.monotonic()
        try:
            said = fn()
            say(f"ok {name} ({time.monotonic() - then:.1f} s){f': {said}' if said else ''}")
            n["passed"] += 1
        except Skipped as e:
            print(f"SKIPPED {name}: {e}", flush=True)
            n["skipped"] += 1
        except (Failed, OSError, subprocess.SubprocessError) as e:
            print(f"not ok {name}: {e}", flush=True)
            n["failed"] += 1
    return n


def write(path, by):
    """What cases have measured, into the table of a document. Those that have not run stay."""
    begin, end = f"<!-- by {by} -->\n", "<!-- end -->\n"
    with open(path) as f:
        before, rest = f.read().split(begin)
    was, after = rest.split(end, 1)
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", was, re.M)[1:])
    rows |= {m[1]: m[2] for line in lines if (m := re.fullmatch(r"ok (.+) \([0-9.]+ s\): (.*)", line))}
    table = "| case | result |\n|---|---|\n" + "".join(f"| {name} | {said} |\n" for name, said in rows.items())
    with open(path, "w") as f:
        f.write(before + begin + table + end + after)


def total(n, seconds=None):
    """The last line, and the exit status."""
    print(", ".join(f"{count} {what}" for what, count in n.items()) + (f" in {seconds:.0f} s" if seconds else ""), flush=True)
    return 1 if n["failed"] else 0


def skip_all(cases, why):
    print(f"SKIPPED, ALL OF IT: {why}")
    return total({"passed": 0, "failed": 0, "skipped": len(cases)})
