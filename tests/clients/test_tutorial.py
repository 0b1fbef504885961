"""docs/TUTORIAL.md and its programs, examples/.

Each program is built and run as the page says, and over the wire as well. Each mistake
of the page is a diff: the program with it is built and run, and says what the page says.
What the page shows is read by its blocks: diff a mistake, text what it leads to (or a
picture, or a table), c a part of a program. With TUTORIAL=rewrite in the environment the
output in both pages becomes what has been seen.
"""
import glob
import os
import re
import shutil
import subprocess

import pytest

import pages
import rig
from test_readme import shape

EXAMPLES = os.path.join(rig.ROOT, "examples")
PAGE, CHINESE = "docs/TUTORIAL.md", "docs/TUTORIAL.zh.md"
REWRITE = os.environ.get("TUTORIAL") == "rewrite"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
PROGRAMS = ["device", "send", "sgl", "onesided", "atomics", "ud", "cm"]
# Lines that depend on the machine, or on the C library, or say nothing new: how two processes
# of it reach each other, what calls main(), how many packets there were.
LEFT_OUT = re.compile(r": connected by |#\d+ /(usr/)?lib/| \(_start\)|: process \d+: \d+ packets? received, ")
PORT = 18600


class Mistake:
    """program, number, diff; shown: (command, lines below it); hangs: it ends by ^C."""

    def __init__(self, program, number, diff, text):
        self.program, self.number, self.diff, self.text = program, number, diff, text
        self.shown = []
        lines = text.splitlines()
        self.hangs = "^C" in lines
        for line in lines:
            if line.startswith("$ "):
                self.shown.append((line[2:], []))
            elif line != "^C":
                self.shown[-1][1].append(line)

    def __str__(self):
        return f"{self.program}-{self.number}"


def mistakes():
    found, program, diff = [], None, None
    for kind, text in BLOCK.findall(pages.read(PAGE)):
        if m := re.search(r"^\$ gcc -g -o (\w+) ", text, re.M):
            program, number = m[1], 0
        if kind == "diff":
            diff, number = text, number + 1
        elif kind == "text" and diff:
            found.append(Mistake(program, number, diff, text))
            diff = None
    return found


MISTAKES = mistakes()


def gcc(program):
    """As the page says."""
    return re.search(rf"^\$ (gcc -g -o {program} .*)$", pages.read(PAGE), re.M)[1].split()


def build(tmp_path, program, diff=None):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    strict = ["-Wall", "-Wextra", "-Werror"]
    if diff:
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=tmp_path, check=True)
        strict = []
    subprocess.run([*gcc(program), *strict], cwd=tmp_path, check=True)


class Ends:
    """A program's server and client, where it has these, with the arguments of each; they print
    as on a terminal."""

    def __init__(self, home, rundir, tmp_path, program, server, client, options):
        self.env, self.procs = {"SOFTHCA_RUNDIR": rundir}, []

        def start(*args):
            cmd = ["stdbuf", "-oL", tmp_path / program, *args]
            self.procs.append(rig.Proc(rig.Side(home), cmd, options, self.env))
        try:
            start(*server)
            if program == "device":
                return
            if program == "cm":
                rig.until(lambda: "listens on" in self.tool("ps"), "it listens", self.procs[0])
            else:
                self.procs[0].wait_listening(PORT)
            start(*client, "localhost")
        except BaseException:
            self.kill()
            raise

    def tool(self, *args):
        return subprocess.run([rig.SOFTHCA, *args], env=dict(os.environ, **self.env), text=True, stdout=subprocess.PIPE,
                              timeout=rig.LIMIT).stdout

    def kill(self):
        for p in self.procs:
            p.kill()


@pytest.mark.parametrize("way", ["default", "wire"])
@pytest.mark.parametrize("program, server, client", [
    *((p, [], []) for p in PROGRAMS if p != "cm"),
    *(("cm", [a], [b]) for a, b in [("sync", "sync"), ("async", "async"), ("sync", "async")])],
    ids=lambda v: "".join(v))
def test_programs(home, rundir, tmp_path, program, server, client, way):
    """They end well, and nothing is found wrong with them."""
    build(tmp_path, program)
    options = ["--explain", "--check=leaks,exit=9", *(["--wire"] if way == "wire" else [])]
    ends = Ends(home, rundir, tmp_path, program, server, client, options)
    try:
        for p in reversed(ends.procs):
            out = p.done()
            assert not [line for line in out.splitlines() if "softhca:" in line and not LEFT_OUT.search(line)], out
    finally:
        ends.kill()


def seen(output, tmp_path):
    lines = [line for line in output.replace(f"{tmp_path}/", "./").splitlines() if not LEFT_OUT.search(line)]
    return [line.rstrip() for line in lines]


def same(shown, got):
    return list(map(shape, shown)) == list(map(shape, got))


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_mistakes(home, rundir, tmp_path, mistake):
    if re.search(r"\.[ch]:\d", mistake.text) and not os.path.exists(f"{rig.BUILD}/lib/softhca-lines"):
        pytest.skip("softhca was built without libdw, and knows no lines")
    build(tmp_path, mistake.program, mistake.diff)
    commands = [re.match(rf"softhca (explain) \$!$|softhca run (.*)-- \./{mistake.program}((?: (?!localhost)\w+)*)( localhost)?( &)?$", c)
                for c, _ in mistake.shown]
    run = next(m for m in commands if m and not m[1])
    args = run[3].split()
    ends = Ends(home, rundir, tmp_path, mistake.program, args, args, run[2].split())

    def output(m):
        if m[1]:
            return seen(ends.tool("explain", str(ends.procs[0].pid)), tmp_path)
        p = ends.procs[1 if m[4] else 0]
        if not mistake.hangs:
            p.done(status=None)
        return seen(p.output(), tmp_path)

    def all_of():
        """What is shown; of a program that goes on as many lines."""
        got = [output(m) for m in commands]
        return [lines[:len(shown)] if mistake.hangs else lines
                for lines, (_, shown), m in zip(got, mistake.shown, commands)]

    try:
        if mistake.hangs:
            try:
                rig.until(lambda: all(same(shown, got) for got, (_, shown) in zip(all_of(), mistake.shown)),
                          f"it says {mistake.text}", limit=5 if REWRITE else rig.LIMIT)
            except rig.Failed:
                if not REWRITE:
                    raise AssertionError("\n".join(sum(all_of(), []))) from None
        got = all_of()
    finally:
        ends.kill()
    if REWRITE:
        rewrite(mistake, got)
    else:
        for (command, shown), lines in zip(mistake.shown, got):
            assert same(shown, lines), "\n".join([command, *lines])


def rewrite(mistake, got):
    text = "".join(f"$ {command}\n" + "".join(f"{line}\n" for line in (shown if same(shown, lines) else lines))
                   for (command, shown), lines in zip(mistake.shown, got)) + ("^C\n" if mistake.hangs else "")
    page = pages.read(PAGE)
    with open(os.path.join(rig.ROOT, PAGE), "w") as f:
        before = f"{mistake.diff}```\n\n```text\n"
        f.write(page.replace(f"{before}{mistake.text}```", f"{before}{text}```"))


def test_both_languages():
    """The blocks are the same."""
    blocks = [m[0] for m in BLOCK.finditer(pages.read(PAGE))]
    if REWRITE:
        chinese, rest = pages.read(CHINESE), iter(blocks)
        with open(os.path.join(rig.ROOT, CHINESE), "w") as f:
            f.write(BLOCK.sub(lambda m: next(rest), chinese))
    assert [m[0] for m in BLOCK.finditer(pages.read(CHINESE))] == blocks


def code(name):
    """Its lines that are neither blank nor comments."""
    with open(os.path.join(EXAMPLES, name)) as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    return [line for line in text.splitlines() if line.strip()]


def test_course():
    """Seven programs of a page or two, three mistakes each; parts that are shown are theirs."""
    assert sorted(os.path.basename(p)[:-2] for p in glob.glob(f"{EXAMPLES}/*.c")) == sorted(PROGRAMS)
    assert [str(m) for m in MISTAKES] == [f"{p}-{n}" for p in PROGRAMS for n in (1, 2, 3)]
    for program in PROGRAMS:
        with open(os.path.join(EXAMPLES, f"{program}.c")) as f:
            assert len(f.readlines()) >= 60 and len(code(f"{program}.c")) <= 120, program
    texts = [open(p).read() for p in glob.glob(f"{EXAMPLES}/*.[ch]")]
    for kind, text in BLOCK.findall(pages.read(PAGE)):
        if kind == "c":
            assert any(text in t for t in texts), text
