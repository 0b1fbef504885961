"""What README.md, docs/ and the man page say is run, and links lead somewhere.

Each block of commands (see pages.py) is a script of a shell, in a directory
where the repository's files are beside what it writes, and in a network of its
own. A command that ends with & is a server: the next one waits until it listens.
"""
import functools
import os
import re
import shutil
import subprocess
import tempfile

import pytest

import links
import pages
import rig

# Commands that no test can run as they are written, and why.
NOT_RUN = [
    (r"make (test|asan|tsan|soak|bench)", "this test is a part of it, or it takes minutes"),
    (r"make (demo|deb|deps|build|install)", "it builds or installs; make test-packages and test_cli.py install"),
    (r"make ", "it needs minutes, root or a guest"),
    (r"(sudo|apt-get|apt|sysctl|ssh|scp|podman|docker|kubectl|git) ", "it needs another host, root, or the network"),
    (r"(softhca cdi >/etc/cdi/|/opt/softhca/bin/softhca env )", "it is for containers: tests/containers/run"),
    (r"(perf|tests/bench/\S+|gh) ", "it measures, for minutes or with the kernel's help"),
    (r"/usr/bin/python3 -m pytest |tests/clients/matrix.py ", "it is how this test is run"),
    (r"softhca (checkpoint|restore|migrate|suspend) |\./move-address|pid=\$\(podman ", "it needs CRIU and root: tests/migrate/run"),
    (r"mpi(run|exec)", "test_clusters.py, on two hosts"),
    (r"(export (UCX|OMPI)_|srun )", "test_clusters.py, on two nodes of a Slurm"),
    (r"softhca run --sockets -- torchrun ", "test_clusters.py, on two hosts"),
    (r"(drop|delay|duplicate|rnr|kill qp|partition|fail|raise) ", "a script for --faults: test_faults_script"),
    (r"grep ctxt /proc/PID", "it goes with perf"),
    (r"softhca run (--explain|--check) -- \./(server|program)", "a program with a mistake: test_explain.py, test_check.py"),
    (r"softhca run --trace=t -- ib_write_bw -F -n 300 -s 8192 -m 1024", "two hosts: test_trace.py"),
    (r"(cmake --preset|build/dev/bin/softhca) ", "it builds, or is what has been built"),
    (r"SIM_TEST=\S+ make ", "it is how tests are run"),
    (r"softhca run -- perf ", "it needs the kernel's counters"),
    (r"softhca trace --rows=5 t", "what two hosts have recorded: test_trace.py"),
]
# Those that take longer than all others.
LONG = r"GOODPUT=1|build/tests/bench/udp_rate"
NEEDS = ["gdb", "ibv_rc_pingpong", "rping", "ib_write_bw", "redis-benchmark", "redis-server", "tshark", "ibstat"]
# Words that stand for something.
WORDS = [
    (r"\bHOST\b|\b10\.0\.0\.[12]\b", "127.0.0.1"), (r"(?<=-- )PROGRAM\b", "ibv_devinfo"),
    (r"\./my-program\b|\bPROGRAM\b", "$(which ibv_devinfo)"), (r"\b(PID|944)\b", "$PID"), (r"\bDIR\b", "t"),
    (r"\beth0,eth1\b", "lo"), (r"\blog-1234\b", "$(ls log-* | head -1)"),
]
STAYS = r"redis-server|ibping -S|nvmf controller"  # a server that does not end by itself
BOUND = 60
SHELL = r"""
cd "$1"
exec 2>&1
listeners() { cat /proc/net/tcp /proc/net/tcp6 | grep -c " 0A "; }
receivers() { cat /proc/net/udp /proc/net/udp6 | grep -c ":12B7 "; }
# Until what was started listens: by TCP, or by RDMA alone for a while.
settle() {
    i=0; rdma=0
    while [ $i -lt 200 ] && [ $rdma -lt 15 ] && [ "$(listeners)" -le "$had" ]; do
        sleep 0.1; i=$((i + 1)); [ "$(receivers)" = 0 ] || rdma=$((rdma + 1))
    done
}
failed() { echo "@@ failed: exit status $1"; exit 1; }
"""
JOB = """#!/bin/sh
ibv_rc_pingpong -g 0 -n 100 & server=$!
while ! ibv_rc_pingpong -g 0 -n 100 localhost; do
    kill -0 $server || exit 1; i=$((i + 1)); [ "$i" -lt 200 ] || exit 1; sleep 0.05
done
wait $server
"""
# A transfer that goes on, as PID; its server is stopped where a page says so.
RUNNING = """
had=$(listeners)
softhca run -- ib_send_bw -F -D 120 -p 18999 >/dev/null & SERVER=$!
settle
softhca run -- ib_send_bw -F -D 120 -p 18999 127.0.0.1 >/dev/null & PID=$!
i=0; while [ $i -lt 200 ] && ! softhca stat --json --pid $PID 2>/dev/null | grep -q RTS; do sleep 0.1; i=$((i + 1)); done
sleep 1
"""
STOPPED = "kill -STOP $SERVER; sleep 2\n"
TRACED = """
had=$(listeners)
softhca run --wire --loss 2 --seed 1 --trace t -- ib_write_bw -F -n 50 -p 18998 >/dev/null & OTHER=$!
settle
softhca run --wire --loss 2 --seed 2 --trace t -- ib_write_bw -F -n 50 -p 18998 127.0.0.1 >/dev/null || failed $?
wait $OTHER || failed $?
"""


def not_run(command):
    return next((why for pattern, why in NOT_RUN if re.match(pattern, command)), None)


def runs(block):
    return [(c, shown) for c, shown in block.commands if not not_run(c)]


# Of the servers: wait(1) does not say how each of them ended.
ENDS = 'ends() { for p in $waits; do wait $p || failed $?; done; waits=; }'


def script(block):
    """The shell's words for a block; each command is announced by its number."""
    commands = runs(block)
    text = "\n".join(c for c, _ in commands)
    out = [SHELL]
    if re.search(r"\b(PID|944)\b", text):
        out += [RUNNING, STOPPED if "is stopped" in "\n".join(sum((s for _, s in commands), [])) else ""]
    if re.search(r"\bsofthca trace\b", text) and "--trace" not in text:
        out.append(TRACED)
    out.append(ENDS)
    out.append("waits=")
    for n, (command, _) in enumerate(commands):
        for pattern, word in WORDS:
            command = re.sub(pattern, lambda _, w=word: w, command)
        command = re.sub(r"\s+#\s.*$", "", command)
        command = re.sub(r"^wait; ", "ends; ", command)
        server = re.search(r"&(\s*sleep \d+)?$", command)
        out.append(f"echo '@@ {n}'; had=$(listeners)")
        if server:
            out.append(f"{command[:server.start()]}& last=$!")
            if not re.search(STAYS, command):
                out.append('waits="$waits $last"')
            out.append("settle")
        else:
            out.append(f"{command} || failed $?")
    out.append('echo "@@ end"; ends; exit 0')
    return "\n".join(out)


def shape(line):
    """A line without what differs from run to run."""
    line = re.sub(r"0x[0-9a-f]+|(?<![\w])[0-9a-f]*:[0-9a-f:.]*[0-9a-f]|\d[\d.,]*[KMG]?\b", "#", line)
    return re.sub(r"\s+", " ", line).strip()


def printed(output, commands):
    """The first command whose output lacks a line that is shown, if any."""
    for n, (command, shown) in enumerate(commands):
        m = re.search(rf"^@@ {n}\n(.*?)(?=^@@ |\Z)", output, re.M | re.S)
        got = [shape(line) for line in (m[1] if m else "").split("\n")]
        for line in shown:
            if shape(line) not in got:
                return f"{command}: {shape(line)}"
            got = got[got.index(shape(line)) + 1:]
    return None


@functools.cache
def programs():
    """A directory for PATH: softhca, and redis-server by its other name."""
    where = tempfile.mkdtemp(prefix="softhca-pages-")
    os.symlink(rig.SOFTHCA, f"{where}/softhca")
    if rig.need("redis-server") and not rig.need("redis-check-rdb"):
        os.symlink(shutil.which("redis-check-rdb"), f"{where}/redis-server")
    return where


@pytest.fixture(scope="module", autouse=True)
def clear():
    yield
    shutil.rmtree(programs())


BLOCKS = [b for b in pages.blocks() if runs(b)]


@pytest.mark.parametrize("block", [
    pytest.param(b, id=str(b), marks=pytest.mark.full if any(re.match(LONG, c) for c, _ in runs(b)) else ())
    for b in BLOCKS])
def test_commands(home, rundir, tmp_path, block):
    path = f"{programs()}:{os.environ['PATH']}"
    text = script(block)
    if missing := [p for p in NEEDS if p in text and not shutil.which(p, path=path)]:
        pytest.skip(f"not installed: {missing}")
    for name in os.listdir(rig.ROOT):
        os.symlink(os.path.join(rig.ROOT, name), tmp_path / name)
    (tmp_path / "job").write_text(JOB)
    (tmp_path / "job").chmod(0o755)
    p = rig.Proc(rig.Side(home), ["bash", "-c", text, "bash", tmp_path],
                 env={"SOFTHCA_RUNDIR": rundir, "PATH": path, "HOME": str(tmp_path)}, alone=True)
    try:
        out = p.done(BOUND)
        if block.kind == "console":
            assert not (line := printed(out, runs(block))), f"not printed: {line}\n{out}"
    finally:
        p.kill()


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
@pytest.mark.parametrize("page", [p for p in pages.PAGES if "```diff" in pages.read(p)])
def test_diffs_apply(page):
    """Changes that a page shows are changes of the sources as they are."""
    for diff in re.findall(r"^```diff\n(.*?)^```", pages.read(page), re.M | re.S):
        p = subprocess.run(["git", "apply", "--check", "-"], input=diff, text=True, cwd=rig.ROOT, stderr=subprocess.PIPE)
        assert not p.returncode, f"{p.stderr}\n{diff}"


def test_explain_says_so(home):
    """The line that README.md shows, of a program that gives no GID index."""
    line = next(t for t in pages.read("README.md").split("\n") if t.startswith("softhca: ibv_modify_qp"))
    side, port = rig.Side(home), rig.free_port()
    server = rig.Proc(side, ["ibv_rc_pingpong", "-p", port], ["--explain"])
    try:
        server.wait_listening(port)
        rig.Proc(side, ["ibv_rc_pingpong", "-p", port, "localhost"], ["--explain"]).done(status=1)
        server.done(status=1)
        assert shape(line) in map(shape, server.output().split("\n")), server.describe()
    finally:
        server.kill()


def test_faults_script(tmp_path):
    """The one that the man page shows, as a whole."""
    block = next(b for b in pages.blocks() if b.page == "docs/softhca.1" and b.commands[0][0].startswith("drop "))
    (tmp_path / "faults").write_text("".join(f"{c}\n" for c, _ in block.commands))
    rig.Side().run(["true"], ["--faults", tmp_path / "faults"])


def test_what_is_not_run():
    """Nothing is in the list that no page shows."""
    commands = [c for b in pages.blocks() for c, _ in b.commands]
    optional = ("gh", "sudo", "make ")
    for pattern, why in NOT_RUN:
        assert any(re.match(pattern, c) for c in commands) or pattern.strip("(").startswith(optional), (pattern, why)
    assert sum(len(runs(b)) for b in BLOCKS if b.page == "README.md") > 15, "README.md's blocks are not found"


def words_of(command):
    p = subprocess.run([rig.SOFTHCA, command, "--help"], text=True, stdout=subprocess.PIPE, timeout=rig.LIMIT)
    return p.stdout if p.returncode == 0 else None


@pytest.mark.parametrize("page", [p for p in pages.PAGES if p.endswith(".md")])
def test_words_in_the_text(page):
    """Options and targets that a page names exist, and so do files it leads to."""
    text = pages.read(page)
    targets = pages.read("Makefile")
    helps = {}
    wrong = []
    for code in re.findall(r"`([^`\n]+)`", text):
        if m := re.match(r"(?:build/bin/)?softhca (\w+)\b([^|]*?)( -- .*)?$", code):
            help_text = helps.setdefault(m[1], words_of(m[1]))
            if help_text is None:
                wrong.append(code)
            else:
                wrong += [f"{code}: {o}" for o in re.findall(r"(?<!\S)--[a-z][a-z-]*", m[2]) if o not in help_text]
        elif m := re.match(r"make ([a-z0-9-]+)", code):
            if not re.search(rf"^{m[1]}:", targets, re.M):
                wrong.append(code)
    wrong += links.broken(text, os.path.join(rig.ROOT, os.path.dirname(page)))
    assert not wrong, wrong
