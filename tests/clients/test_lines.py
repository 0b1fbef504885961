"""Places of a program as source and line (--check, --explain=full): by whatever
compiler and options, by a debug file of its own, and what is said where none is
known or the program is not to be looked at."""
import functools
import os
import re
import shutil
import subprocess

import pytest

import rig

LINES = os.path.join(rig.BUILD, "lib", "softhca-lines")
pytestmark = pytest.mark.skipif(not os.path.exists(LINES), reason="built without libdw")
SOURCES = [os.path.join(rig.ROOT, "tests", path) for path in ("clients/src/checked.c", "lib/peer.c")]
CHECKED = rig.client("checked")


@functools.cache
def source():
    with open(SOURCES[0]) as f:
        return f.read().split("\n")


def compiled(compiler, to, *options):
    if not shutil.which(compiler):
        pytest.skip(f"not installed: {compiler}")
    subprocess.run([compiler, *options, "-D_GNU_SOURCE", f"-I{rig.ROOT}/tests/lib", *SOURCES, "-o", to, "-libverbs",
                    "-lrdmacm", "-lpthread"], check=True, cwd=os.path.dirname(to))
    return str(to)


def places(out):
    """Of each place its frames."""
    return [re.findall(r"#\d+ (.*)", text) for text in re.split(r"^softhca: check:   \S.*", out, flags=re.M)[1:]
            if "#0" in text]


CALLS = {"post": "ibv_post_send(", "send_one": "post(", "buffer_in_flight": "send_one(|completion(",
         "unnoticed": "buffer_in_flight(", "completion": "ibv_poll_cq(", "main": "m->run("}


def has_lines(out, *, by=()):
    """Each call stands in the line that is named."""
    below = ["buffer_in_flight", *by, "main"]
    for frames, functions in zip(places(out), [["post", "send_one", *below], ["completion", *below]], strict=True):
        assert [re.search(r"\((\w+)\)$", f)[1] for f in frames] == functions, out
        for frame, function in zip(frames, functions):
            file, line = re.match(r"(/\S+):(\d+) \(", frame).groups()
            assert os.path.samefile(file, SOURCES[0]), frame
            assert any(call in source()[int(line) - 1] for call in CALLS[function].split("|")), frame


def has_addresses(out, program):
    """As addr2line takes them."""
    assert len(places(out)) == 2
    for frames in places(out):
        assert frames and all(re.match(rf"{re.escape(program)}\+0x[0-9a-f]+", f) for f in frames), out


def finding(home, program, mode="buffer-in-flight", **side):
    out = rig.Side(home, **side).run([program, mode], ["--check"])
    assert "1 finding" in out
    return out


@pytest.mark.parametrize("options", [
    "gcc -O0 -g", "gcc -O2 -g", "gcc -O2 -g -no-pie", "gcc -O3 -g -flto", "gcc -O2 -g -gdwarf-4", "gcc -O2 -g -gsplit-dwarf",
    "gcc -O1 -g -gz", "clang -O0 -g", "clang -O2 -g"], ids=lambda o: o.replace(" ", ""))
def test_compiled(home, tmp_path, options):
    compiler, *options = options.split()
    has_lines(finding(home, compiled(compiler, tmp_path / "program", *options)))


def test_relative_paths(home, tmp_path):
    """As make, and CMake for a build in the source, hand them to the compiler."""
    shutil.copy(SOURCES[0], tmp_path)
    subprocess.run(["gcc", "-g", "-D_GNU_SOURCE", f"-I{rig.ROOT}/tests/lib", "./checked.c", SOURCES[1], "-o", "program",
                    "-libverbs", "-lrdmacm", "-lpthread"], check=True, cwd=tmp_path)
    out = finding(home, str(tmp_path / "program"))
    assert f"{tmp_path}/checked.c:" in out and "./checked.c" not in out, out


def test_without_debug_information(home, tmp_path):
    program = compiled("gcc", tmp_path / "program", "-O2")
    out = finding(home, program)
    has_addresses(out, program)
    assert out.count("(main)") == 2 and "without file" not in out
    subprocess.run(["strip", program], check=True)
    has_addresses(finding(home, program), program)


def test_debug_link(home, tmp_path):
    """A debug file beside the program, which is stripped."""
    program = compiled("gcc", tmp_path / "program", "-O2", "-g")
    subprocess.run("objcopy --only-keep-debug program program.debug && strip program && "
                   "objcopy --add-gnu-debuglink=program.debug program", shell=True, check=True, cwd=tmp_path)
    has_lines(finding(home, program))


def test_build_id(tmp_path):
    """A debug file where distributions have them."""
    if os.geteuid():
        pytest.skip("needs root to have a debug file below /usr/lib/debug")
    program = compiled("gcc", tmp_path / "program", "-O2", "-g", "-Wl,--build-id")
    notes = subprocess.run(["readelf", "-n", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    build_id = re.search(r"Build ID: ([0-9a-f]+)", notes)[1]
    to = tmp_path / "debug" / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    to.parent.mkdir(parents=True)
    subprocess.run(["objcopy", "--only-keep-debug", program, to], check=True)
    subprocess.run(["strip", program], check=True)
    has_addresses(finding([], program), program)
    if not os.path.isdir("/usr/lib/debug"):
        pytest.skip("there is no /usr/lib/debug")
    mount = f'mount --bind {tmp_path}/debug /usr/lib/debug && exec "$@"'
    p = subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", rig.SOFTHCA, "run", "--check", "--", program,
                        "buffer-in-flight"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=rig.LIMIT)
    if "unshare" in p.stdout or "mount:" in p.stdout:
        pytest.skip(f"no mount namespace: {p.stdout}")
    has_lines(p.stdout)


def test_the_program_notices_nothing(home):
    """No signal, no child, no descriptor: it looks itself."""
    has_lines(finding(home, CHECKED, "unnoticed"), by=["unnoticed"])


@pytest.mark.parametrize("mode", ["restricted", "restricted-first"])
def test_restricted(home, mode):
    """A program that has restricted its system calls is left alone."""
    has_addresses(finding(home, CHECKED, mode), CHECKED)


@pytest.fixture
def without(home, staged, tmp_path):
    """A finding of an installation whose softhca-lines is another, or missing."""
    def run(text):
        shutil.copytree(staged, tmp_path / "copy", symlinks=True)
        reader = tmp_path / "copy/lib/softhca/softhca-lines"
        reader.unlink()
        if text is not None:
            reader.write_text(text)
            reader.chmod(0o755)
        out = finding(home, CHECKED, tool=str(tmp_path / "copy/bin/softhca"))
        has_addresses(out, CHECKED)
        return out
    return run


def test_missing(without):
    assert "without file" not in without(None)


@pytest.mark.parametrize("text, says", [
    ("#!/bin/sh\necho libdw.so.1: cannot open >&2\nexit 127\n", "libdw.so.1: cannot open"),
    ("#!/bin/sh\nexec sleep 1000\n", "takes too long"), ("#!/bin/sh\nkill -SEGV $$\n", "no answer"),
    ("#!/bin/sh\nyes '0\tpost\tfile.c:1'\n", "takes too long"), ("#!/bin/none\n", "no answer")],
    ids=["says", "hangs", "dies", "floods", "cannot-start"])
def test_fails(without, text, says):
    """Said once, beside what is known without it."""
    [line] = re.findall("without file and line: (.*)", without(text))
    assert says in line, line
