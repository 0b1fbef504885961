"""The softhca tool: exit status, environment, errors, JSON, installation."""
import json
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import struct
import subprocess
from collections import Counter

import pytest

import links
import rig

LIB = os.path.realpath(os.path.join(rig.BUILD, "lib"))


def softhca(*args, tool=rig.SOFTHCA, env=None, prefix=(), **kw):
    clean = {k: v for k, v in os.environ.items()
             if not k.startswith("SOFTHCA_") and k not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    return subprocess.run([*prefix, tool, *map(str, args)], text=True, errors="replace",
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=rig.LIMIT,
                          env={**clean, **(env or {})}, **kw)


def sh(script, *options, **kw):
    return softhca("run", *options, "--", "sh", "-c", script, **kw)


# run

@pytest.mark.parametrize("status", [0, 1, 7, 124, 255])
def test_status_of_the_program(status):
    assert sh(f"exit {status}").returncode == status


def test_signal_of_the_program():
    assert sh("kill -USR1 $$").returncode == -signal.SIGUSR1


def test_run_becomes_the_program():
    with subprocess.Popen([rig.SOFTHCA, "run", "--", "sh", "-c", "echo $$"],
                          stdout=subprocess.PIPE, text=True) as p:
        out, _ = p.communicate(timeout=rig.LIMIT)
    assert int(out) == p.pid


def test_nothing_of_ours_in_the_output():
    p = sh("echo out; echo err >&2")
    assert (p.stdout, p.stderr) == ("out\n", "err\n")


def test_arguments_pass_unchanged():
    args = ["", " ", "a b", "'", '"', "$HOME", "--loss", "--", "-x", "\n", "*", "é"]
    p = softhca("run", "--", "printf", "%s\\0", *args)
    assert p.stdout.split("\0")[:-1] == args


def test_command_without_dashes():
    p = softhca("run", "--wire", "sh", "-c", "echo $SOFTHCA_WIRE", "--wire")
    assert p.stdout == "1\n"


@pytest.mark.parametrize("args,status,says", [
    (["run"], 125, "no command"),
    (["run", "--"], 125, "no command"),
    (["run", "--bogus", "--", "true"], 125, "go after its name"),
    (["run", "--loss"], 125, "requires an argument"),
    (["run", "--", "no-such-program-anywhere"], 127, "not found"),
    (["run", "--", "/no/such/program"], 127, "not found"),
    (["run", "--", "/etc/passwd"], 126, "not an executable"),
    (["run", "--", "/tmp"], 126, "not an executable"),
    (["run", "--", ""], 127, "not found"),
    ([], 2, "Usage"),
    (["ib_write_bw"], 2, "softhca run -- ib_write_bw"),
    (["--nonsense"], 2, "--nonsense"),
    (["env", "true"], 2, "takes no command"),
    (["devices", "softhca0"], 2, "no argument"),
    (["doctor", "--nonsense"], 2, "unrecognized"),
    (["doctor", "--peer"], 2, "requires an argument"),
    (["doctor", "--peer", "--json"], 2, "needs a host"),
    (["doctor", "--peer", ""], 2, "needs a host"),
    (["doctor", "--port", "0"], 2, "needs a number, 1 to 65535"),
    (["doctor", "--port", "rping"], 2, "needs a number, 1 to 65535"),
])
def test_wrong_calls(args, status, says):
    p = softhca(*args)
    assert p.returncode == status
    assert says in p.stderr
    assert p.stdout == ""


@pytest.mark.parametrize("option,value,says", [
    ("--same-host", "shm", "auto, copy and udp"), ("--same-host", "", "auto, copy and udp"),
    ("--loss", "101", "0 to 100"), ("--loss", "-1", "0 to 100"), ("--loss", "x", "0 to 100"),
    ("--devices", "lo,lo", "lo is named twice"),
    ("--loss", "nan", "0 to 100"), ("--loss", "1 2", "0 to 100"), ("--loss", "", "0 to 100"),
    ("--seed", "1.5", "a number"), ("--seed", "-1", "a number"),
    ("--seed", "18446744073709551616", "a number"),
    ("--part-id", "4294967296", "up to 4294967295"),
    ("--addr", "10.0.0", "not an IP address"), ("--addr", "localhost", "not an IP address"),
    ("--addr", "198.51.100.77", "available: "), ("--addr", "::1%nope", "no interface nope"),
    ("--addr", "1" * 500, "not an IP address"),
    ("--devices", "nope0", "no interface nope0"), ("--devices", ",", "separated by commas"),
    ("--devices", "lo," * 1000, "too long"),
    ("--pcap", "--wire", "./--wire"),
    ("--faults", "/no/such/file", "No such file"), ("--faults", "/tmp", "directory"),
    ("--faults-log", "/no/such/dir/x", "No such file"), ("--faults-log", "/tmp/", "not of a directory"),
    *((o, "--", f"{o} needs a value before --")
      for o in ("--addr", "--devices", "--loss", "--seed", "--pcap", "--part-id", "--faults", "--faults-log", "--trace")),
    ("--trace", "/no/such/dir/x", "No such file"), ("--trace", "/dev/null", "Not a directory"),
    ("--pcap", "/no/such/dir/x", "No such file"), ("--pcap", "/tmp/", "not of a directory"),
])
def test_bad_values(option, value, says):
    for command, status in (["run"], 125), (["env"], 2):
        p = softhca(*command, option, value, *(["--", "true"] if command == ["run"] else []))
        assert p.returncode == status
        assert says in p.stderr, p.stderr
        assert option in p.stderr


@pytest.mark.parametrize("text,says", [
    (b"", "it contains no fault"), (b"# drop ack\n", "it contains no fault"),
    (b"drop ack\n\nlose ack\n", ":3: lose: no such fault; drop, "),
    (b"fail reg_mr nth=2\n", ":1: fail needs an error to fail with, such as fail reg_mr nth=2 ENOMEM"),
    (b"drop ack nth=3 p=0.1\n", ":1: only one of nth, every, first and p"),
    (b"seed 1\nseed 2\n", ":2: there is a seed already"),
    (bytes(i * i * 7919 >> 5 & 255 for i in range(1 << 20)), ":1: "),
    (b"drop ack nth=1\n" * (1 << 21), "longer than 16 MiB"),
], ids=["empty", "comment", "action", "error", "twice", "seeds", "garbage", "long"])
def test_wrong_faults(tmp_path, text, says):
    """The program is not started; the line and what belongs there are named."""
    (tmp_path / "f").write_bytes(text)
    p = softhca("run", "--faults", tmp_path / "f", "--", "touch", tmp_path / "started")
    assert p.returncode == 125
    assert f"{tmp_path}/f" in p.stderr and says in p.stderr, p.stderr
    assert not (tmp_path / "started").exists()


def test_script_without_interpreter(tmp_path):
    script = tmp_path / "s"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    p = softhca("run", "--", script)
    assert p.returncode == 126
    assert "interpreter" in p.stderr


def test_path_is_searched_as_a_shell_does(tmp_path):
    for d, mode in ("a", 0o644), ("b", 0o755):
        (tmp_path / d).mkdir()
        f = tmp_path / d / "prog"
        f.write_text("#!/bin/sh\necho $0\n")
        f.chmod(mode)
    path = f"/no/such:{tmp_path}/a:{tmp_path}/b"
    assert softhca("run", "--", "prog", env={"PATH": path}).stdout == f"{tmp_path}/b/prog\n"
    assert softhca("run", "--", "prog", env={"PATH": f"{tmp_path}/a"}).returncode == 126
    assert softhca("run", "--", "./prog", cwd=tmp_path / "b").stdout == "./prog\n"


def test_closed_descriptors():
    p = subprocess.run(["sh", "-c", f"{shlex.quote(rig.SOFTHCA)} run -- true <&- >&- 2>&-"],
                       timeout=rig.LIMIT)
    assert p.returncode == 0


# The environment

def environment(*options, **kw):
    p = softhca("run", *options, "--", "env", "-0", **kw)
    assert p.returncode == 0, p.stderr
    return dict(v.split("=", 1) for v in p.stdout.split("\0")[:-1])


def test_wrong_variables_are_named_once():
    """A misspelt name, and a value that makes no sense: by the tool, not by each process."""
    wrong = {"SOFTHCA_LOS": "1", "SOFTHCA_WIRE": "maybe", "SOFTHCA_SEED": "x", "SOFTHCA_MINE": "1"}
    p = softhca("run", "--", "sh", "-c", "ibv_devices; ibv_devices; env", env=wrong)
    for said in ("SOFTHCA_LOS is none of softhca's variables: did you mean SOFTHCA_LOSS?", "SOFTHCA_WIRE=maybe ignored",
                 "SOFTHCA_SEED=x ignored"):
        assert p.stderr.count(said) == 1, p.stderr
    assert p.stderr.count("softhca: ") == 3 and "SOFTHCA_WIRE" not in p.stdout
    p = softhca("env", env=wrong)
    assert p.stderr.count("did you mean") == 1 and "SOFTHCA_WIRE" not in p.stdout


def test_files_that_have_gone_are_made_again():
    """A shell that has our variables may outlive the files that they name."""
    e = json.loads(softhca("env", "--format=json").stdout)
    shutil.rmtree(e["SOFTHCA_SYSFS"])
    p = subprocess.run(["/usr/bin/python3", "-c", "import os; print(os.listdir('/sys/class/infiniband'))"],
                       env={**os.environ, **e}, stdout=subprocess.PIPE, text=True, timeout=20)
    assert p.stdout == "['softhca0']\n", p.stdout


def test_options_become_variables(tmp_path):
    (tmp_path / "f").write_text("drop ack nth=3\n")
    e = environment("--wire", "--addr", "127.0.0.1", "--devices", "lo", "--loss", "2.50%",
                    "--seed", "0x10", "--pcap", "a-%p.pcapng", "--explain", "--part-id", "4129",
                    "--same-host", "copy", "--faults", "f", "--faults-log", "l-%p", "--trace", "t", cwd=tmp_path)
    assert {k: v for k, v in e.items()
            if k.startswith("SOFTHCA_") and k != "SOFTHCA_SYSFS"} == {
        "SOFTHCA_WIRE": "1", "SOFTHCA_ADDR": "127.0.0.1", "SOFTHCA_DEVICES": "lo",
        "SOFTHCA_LOSS": "2.5", "SOFTHCA_SEED": "16", "SOFTHCA_EXPLAIN": "1",
        "SOFTHCA_SAME_HOST": "copy",
        "SOFTHCA_FAULTS": f"{os.path.realpath(tmp_path)}/f",
        "SOFTHCA_FAULTS_LOG": f"{os.path.realpath(tmp_path)}/l-%p",
        "SOFTHCA_TRACE": f"{os.path.realpath(tmp_path)}/t",
        "SOFTHCA_PCAP": f"{os.path.realpath(tmp_path)}/a-%p.pcapng", "SOFTHCA_PART_ID": "4129"}


@pytest.mark.parametrize("arg,value", [("1e-9", "0.000000001"), ("100", "100"), ("0", "0"), ("10.250%", "10.25")])
def test_loss_without_exponent(arg, value):
    assert environment("--loss", arg)["SOFTHCA_LOSS"] == value


def test_variables_of_the_user_stay():
    e = environment(env={"SOFTHCA_LOSS": "3", "LD_LIBRARY_PATH": "/one:/two",
                         "LD_PRELOAD": "libm.so.6 libdl.so.2"})
    assert e["SOFTHCA_LOSS"] == "3"
    assert e["LD_LIBRARY_PATH"] == f"{LIB}:/one:/two"
    preload = e["LD_PRELOAD"].split(":")
    assert preload[:2] == ["libm.so.6", "libdl.so.2"]
    assert preload[2:] == [f"{LIB}/{n}" for n in
                           ("libibverbs.so.1", "librdmacm.so.1", "libsofthca-shim.so")]


def test_run_inside_run_changes_nothing():
    p = sh(f"env -0 > /dev/null; exec {shlex.quote(rig.SOFTHCA)} run -- env -0")
    inner = dict(v.split("=", 1) for v in p.stdout.split("\0")[:-1])
    outer = environment()
    for name in "LD_LIBRARY_PATH", "LD_PRELOAD", "SOFTHCA_SYSFS":
        assert inner[name] == outer[name]


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh"])
def test_env_for_shells(shell, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    odd = tmp_path / "it's $HOME `odd` \\ \"dir\""
    odd.mkdir()
    p = softhca("env", "--pcap", odd / "x%p", "--loss", "1")
    assert p.returncode == 0
    out = subprocess.run([shell, "-c", 'eval "$1"; printf %s "$SOFTHCA_PCAP"; exec "$2" devices',
                          shell, p.stdout, rig.SOFTHCA], text=True, stdout=subprocess.PIPE,
                         check=True, timeout=rig.LIMIT).stdout
    assert out.startswith(os.path.realpath(odd) + "/x%p")
    assert "softhca0" in out


def test_env_is_the_environment_of_run():
    p = softhca("env", "--wire")
    got = {}
    for line in p.stdout.splitlines():
        (word, assignment) = shlex.split(line)
        assert word == "export"
        name, got[name] = assignment.split("=", 1)
    e = environment("--wire")
    assert got == {k: e[k] for k in got} and "LD_PRELOAD" in got


def test_env_formats(tmp_path):
    """Each as who reads it would: the same variables, and no file of this place where another is meant."""
    odd = tmp_path / 'it "is" $(HOME) $$ é'
    odd.mkdir()
    ask = ("--loss", "1", "--pcap", odd / "x", "--libdir", "/softhca/lib")
    caller = {"LD_PRELOAD": "libm.so.6", "LD_LIBRARY_PATH": "/one"}
    said = {f: softhca("env", f"--format={f}", *ask, env=caller) for f in ("sh", "github", "docker", "json", "k8s")}
    assert {p.returncode for p in said.values()} == {0}
    out = {f: p.stdout for f, p in said.items()}
    got = {f: dict(line.split("=", 1) for line in out[f].splitlines()) for f in ("github", "docker")}
    got["sh"] = dict(shlex.split(line)[1].split("=", 1) for line in out["sh"].splitlines())
    got["json"] = json.loads(out["json"])
    k8s = out["k8s"].splitlines()
    got["k8s"] = {n.removeprefix("- name: "): re.sub(r"\$\$|\$\(\w+\)", lambda m: "$" if m[0] == "$$" else "?",
                                                     json.loads(v.removeprefix("  value: ")))
                  for n, v in zip(k8s[::2], k8s[1::2])}
    here = got["json"]
    assert here == got["sh"] == got["github"]
    assert here["SOFTHCA_PCAP"] == os.path.realpath(odd) + "/x" and here["SOFTHCA_LOSS"] == "1"
    assert here["LD_LIBRARY_PATH"] == "/softhca/lib:/one"
    assert here["LD_PRELOAD"].startswith("libm.so.6:/softhca/lib/libibverbs.so.1:/softhca/lib/")
    there = got["docker"]
    assert there == got["k8s"]
    assert there["SOFTHCA_PCAP"] == here["SOFTHCA_PCAP"]
    assert there["LD_LIBRARY_PATH"] == "/softhca/lib" and "libm" not in there["LD_PRELOAD"]


@pytest.mark.parametrize("options,says", [
    (["--format=yaml"], "not one of sh, github"), (["--format"], "requires an argument"),
    (["--libdir=lib"], "not an absolute path"), (["--libdir=/a:b"], "not an absolute path"),
])
def test_env_of_bad_values(options, says):
    p = softhca("env", *options)
    assert (p.returncode, p.stdout) == (2, "") and says in p.stderr


@pytest.mark.parametrize("form", ["github", "docker"])
def test_env_of_a_line_break(tmp_path, form):
    (tmp_path / "a\nb").mkdir()
    p = softhca("env", f"--format={form}", "--pcap", tmp_path / "a\nb" / "x")
    assert (p.returncode, p.stdout) == (1, "") and "SOFTHCA_PCAP has a line break" in p.stderr


def bare(*options, form="docker"):
    """What "env -i" gets: the environment that softhca env prints, and nothing else."""
    p = softhca("env", f"--format={form}", *options)
    assert p.returncode == 0, p.stderr
    return ["env", "-i", "PATH=/usr/bin:/bin", *p.stdout.splitlines()]


def test_environment_alone_shows_the_files(tmp_path):
    """Two variables are enough: the tree is made when a program looks."""
    tmp_path.chmod(0o700)
    prefix = [*bare(), f"SOFTHCA_RUNDIR={tmp_path}"]
    p = subprocess.run([*prefix, "true"], timeout=rig.LIMIT)
    assert p.returncode == 0 and not os.listdir(tmp_path), "nothing is written for who does not look"
    script = "cat /sys/class/infiniband/*/ports/1/gid_attrs/types/0 && ls -L /dev/infiniband"
    p = subprocess.run([*prefix, "sh", "-c", script], text=True, stdout=subprocess.PIPE, timeout=rig.LIMIT)
    assert p.stdout.split("\n")[:5] == ["RoCE v2", "issm0", "rdma_cm", "umad0", "uverbs0"]
    [home] = os.listdir(tmp_path)
    [tree] = os.listdir(tmp_path / home)
    made = softhca("env", "--format=json", env={"SOFTHCA_RUNDIR": str(tmp_path)}).stdout
    assert json.loads(made)["SOFTHCA_SYSFS"] == f"{tmp_path}/{home}/{tree}", "the one that run makes"
    p = subprocess.run([*prefix, "SOFTHCA_SYSFS=", "ls", "/dev/infiniband"], stderr=subprocess.DEVNULL,
                       stdout=subprocess.PIPE, timeout=rig.LIMIT)
    assert b"uverbs0" not in p.stdout or os.path.exists("/dev/infiniband/uverbs0")


def test_environment_alone_counts(tmp_path):
    """The port's counters, of processes that nobody told where they are."""
    if missing := rig.need("ib_write_bw"):
        pytest.skip(f"not installed: {missing}")
    tmp_path.chmod(0o700)
    side = rig.Side(prefix=[*bare(), f"SOFTHCA_RUNDIR={tmp_path}"])
    port = rig.free_port()
    cmd = ["ib_write_bw", "-F", "-n", 100, "-p", port]
    server = rig.Proc(side, cmd, alone=True)
    try:
        server.wait_listening(port)
        rig.Proc(side, [*cmd, "127.0.0.1"], alone=True).done(beside=server)
        server.done()
    finally:
        server.kill()
    said = rig.Proc(side, ["cat", "/sys/class/infiniband/softhca0/ports/1/counters/port_xmit_data"], alone=True).done()
    assert int(said) * 4 >= 100 * 65536


def test_environment_alone_in_threads(tmp_path):
    """Whoever looks first, in threads at once and in children."""
    tmp_path.chmod(0o700)
    code = """
import os, threading
def look():
    for _ in range(20):
        assert os.listdir("/sys/class/infiniband") == ["softhca0"]
def child():
    pid = os.fork()
    if not pid:
        look()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
all = [threading.Thread(target=f) for f in [look, child] * 8]
for t in all: t.start()
for t in all: t.join()
print("done")
"""
    p = subprocess.run([*bare(), f"SOFTHCA_RUNDIR={tmp_path}", "/usr/bin/python3", "-c", code], text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=rig.LIMIT)
    assert (p.stdout, p.stderr) == ("done\n", "")
    [home] = os.listdir(tmp_path)
    assert len(os.listdir(tmp_path / home)) == 1


def test_environment_alone_without_a_place():
    """Said once by each program, with the reason; and it runs on."""
    if os.geteuid():
        pytest.skip("needs root to take the places away")
    script = 'mount -t tmpfs -o ro t /dev/shm && mount --bind /tmp /tmp && mount -o remount,bind,ro /tmp && exec "$@"'
    code = ("import os; print([os.path.exists(p) for p in "
            "('/sys/class/infiniband/softhca0', '/dev/infiniband/uverbs0')])")
    p = subprocess.run(["unshare", "-m", "sh", "-c", script, "sh", *bare(), "/usr/bin/python3", "-c", code],
                       text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=rig.LIMIT)
    if "unshare" in p.stderr or "mount:" in p.stderr:
        pytest.skip(f"no mount namespace: {p.stderr}")
    assert p.stdout == "[False, False]\n", p.stderr
    assert p.stderr.count("no place to write to: ") == 1 and "Read-only file system" in p.stderr, p.stderr


def test_cdi():
    """Every file that it mounts is there, what the libraries need among them; and where it says they lie."""
    spec = json.loads(softhca("cdi", "--explain", "--libdir=/there").stdout)
    assert spec["kind"] == "softhca.io/hca"
    [device] = spec["devices"]
    assert device["name"] == "0"
    edits = device["containerEdits"]
    env = dict(e.split("=", 1) for e in edits["env"])
    assert env.pop("SOFTHCA_EXPLAIN") == "1" and env.keys() == {"LD_LIBRARY_PATH", "LD_PRELOAD"}
    mounts = {m["containerPath"]: m["hostPath"] for m in edits["mounts"]}
    assert {*env["LD_PRELOAD"].split(":"), "/there/libsofthca.so.0"} <= mounts.keys()
    assert all(os.path.isfile(f) for f in mounts.values())
    assert {os.path.dirname(p) for p in mounts} == {"/there"} and all("ro" in m["options"] for m in edits["mounts"])
    needed = subprocess.run(["ldd", mounts["/there/libsofthca.so.0"]], text=True, stdout=subprocess.PIPE).stdout
    others = set(re.findall(r"^\s*(lib(?!c\.)\S+) =>", needed, re.M))
    assert others and {f"/there/{n}" for n in others} <= mounts.keys()


def test_directory_of_containers():
    """It is named to them, and CDI mounts it as well, at the same place."""
    edits = json.loads(softhca("cdi", "--rundir=/run/softhca").stdout)["devices"][0]["containerEdits"]
    assert "SOFTHCA_RUNDIR=/run/softhca" in edits["env"]
    [mount] = [m for m in edits["mounts"] if m["hostPath"] == "/run/softhca"]
    assert mount["containerPath"] == "/run/softhca" and "rw" in mount["options"] and "ro" not in mount["options"]
    assert '- name: SOFTHCA_RUNDIR\n  value: "/run/softhca"\n' in softhca(
        "env", "--format=k8s", "--libdir=/there", "--rundir=/run/softhca").stdout
    refused = softhca("env", "--rundir=run")
    assert refused.returncode == 2 and "not an absolute path" in refused.stderr


@pytest.mark.parametrize("form", ["docker", "sh"])
def test_environment_alone_for_ucx(form):
    if missing := rig.need("ucx_info", "ucx_perftest"):
        pytest.skip(f"not installed: {missing}")
    if form == "docker":
        env = bare()
    else:
        env = ["env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", softhca("env").stdout + 'exec "$@"', "sh"]
    side = rig.Side(prefix=[*env, "env", "UCX_TLS=rc_v,ud_v"])
    said = rig.Proc(side, ["ucx_info", "-d"], alone=True).done()
    assert "softhca0:1" in said and "rc_verbs" in said, said
    port = rig.free_port()
    cmd = ["ucx_perftest", "-p", port, "-t", "tag_lat", "-n", 200, "-w", 10]
    server = rig.Proc(side, cmd, alone=True)
    try:
        server.wait_listening(port)
        client = rig.Proc(side, [*cmd, "127.0.0.1"], alone=True)
        try:
            assert "Final:" in client.done(beside=server)
        finally:
            client.kill()
    finally:
        server.kill()


def test_addr_is_gid_zero():
    p = softhca("devices", "--json", env={"SOFTHCA_ADDR": "127.0.0.1"})
    assert json.loads(p.stdout)[0]["ports"][0]["gids"][0]["address"] == "127.0.0.1"


# Recording

def recorded(path):
    """Received and sent packets, from BTH on, of a pcapng file whose blocks are all whole."""
    data = path.read_bytes()
    received, sent = [], []
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        assert length >= 12 and struct.unpack_from("<I", data, at + length - 4)[0] == length
        if kind == 6:
            n = struct.unpack_from("<I", data, at + 20)[0]
            flags = struct.unpack_from("<I", data, at + 28 + (n + 3) // 4 * 4 + 4)[0]
            (received if flags == 1 else sent).append(data[at + 28 + 28:at + 28 + n - 4])
        at += length
    return received, sent


def assert_both_ends(path):
    """On one host whatever one end received the other one has sent."""
    received, sent = recorded(path)
    assert len(received) >= 100
    assert not Counter(received) - Counter(sent)
    return len(received)


TWO_ENDS = """
    ibv_rc_pingpong -g 0 -p $0 -n 50 & server=$!
    while ! ibv_rc_pingpong -g 0 -p $0 -n 50 127.0.0.1; do
        kill -0 $server || exit; i=$((i + 1)); [ "$i" -lt 200 ] || break; sleep 0.05
    done
    wait $server
"""


def test_processes_of_a_job_record_in_one_file(tmp_path):
    job = [*"--wire --addr 127.0.0.1 --pcap".split(), tmp_path / "x.pcapng", "--", "sh", "-c",
           TWO_ENDS, str(rig.free_port())]
    p = softhca("run", *job)
    assert p.returncode == 0, p.stdout + p.stderr
    n = assert_both_ends(tmp_path / "x.pcapng")
    # Another one after them, which has nothing to record, removes nothing ...
    softhca("run", "--", "ibv_devinfo", env={"SOFTHCA_PCAP": str(tmp_path / "x.pcapng")})
    assert assert_both_ends(tmp_path / "x.pcapng") == n
    # ... but another job starts anew.
    assert softhca("run", "--pcap", tmp_path / "x.pcapng", "--", "true").returncode == 0
    assert recorded(tmp_path / "x.pcapng") == ([], [])


def test_two_jobs_record_in_one_file(tmp_path):
    """The second end of a transfer does not remove what the first has recorded."""
    file, port = tmp_path / "x.pcapng", rig.free_port()
    options = ["--addr", "127.0.0.1", "--pcap", file, "--"]
    tool = shlex.quote(rig.SOFTHCA)
    p = softhca("run", *options, "sh", "-c", TWO_ENDS.replace("! ibv_", f"! {tool} run --pcap {file} -- ibv_"),
                str(port))
    assert p.returncode == 0, p.stdout + p.stderr
    received, sent = recorded(file)
    to = Counter(bth[5:8] for bth in sent)      # by shared memory: once each, as its sender's
    assert not received and len(to) == 2 and min(to.values()) >= 50, (len(received), to)


def test_recording_to_a_fifo(tmp_path):
    """Nobody opens it before the program does: its reader would take that for the end."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
    try:
        p = softhca("run", "--pcap", fifo, "--", "ibv_devinfo")
        assert p.returncode == 0, p.stderr
        assert reader.communicate(timeout=rig.LIMIT)[0][:4] == b"\x0a\x0d\x0d\x0a"
    finally:
        reader.kill()
        reader.wait()


def test_recording_where_nobody_may_write(tmp_path):
    (tmp_path / "d").mkdir()
    p = softhca("run", "--pcap", tmp_path / "d", "--", "true")
    assert p.returncode == 125 and "Is a directory" in p.stderr


# The files the shim shows

def test_files_of_the_device():
    p = sh("""
        d=/sys/class/infiniband/softhca0
        cat $d/ports/1/gid_attrs/types/0 $d/ports/1/link_layer $d/node_type
        cat /sys/class/infiniband_verbs/uverbs0/ibdev
        test -c /dev/infiniband/uverbs0 -a -r /dev/infiniband/uverbs0 \\
             -a -w /dev/infiniband/uverbs0 && echo character
        echo /sys/class/infiniband/*
        ls $d/device/net | grep -x lo
        test -e /sys/class/infiniband_other || echo none
        cat $d/ports/1/gids/0""")
    lines = p.stdout.splitlines()
    assert p.stderr == ""
    assert lines[:-1] == ["RoCE v2", "Ethernet", "1: CA", "softhca0", "character",
                          "/sys/class/infiniband/softhca0", "lo", "none"]
    gid = json.loads(softhca("devices", "--json").stdout)[0]["ports"][0]["gids"][0]["gid"]
    assert (socket.inet_pton(socket.AF_INET6, lines[-1]) ==
            socket.inet_pton(socket.AF_INET6, gid))


@pytest.mark.parametrize("call", [
    "os.path.realpath(D)", "os.listdir(D)", "[e.name for e in os.scandir(D)]",
    "os.access(D, os.R_OK)", "os.stat(D + '/node_type').st_size",
    "os.lstat(D + '/ports').st_mode", "open(D + '/node_type').read()",
    "os.readlink('/dev/infiniband/uverbs0')", "os.open(D, os.O_RDONLY)",
    "os.stat('node_type', dir_fd=os.open(D, os.O_RDONLY))",
    "os.chdir(D) or open('node_type').read()",
])
def test_ways_to_reach_them(call):
    p = softhca("run", "--", "/usr/bin/python3", "-c",
                f"import os; D = '/sys/class/infiniband/softhca0'; print({call})")
    assert p.returncode == 0, p.stderr
    assert p.stdout.strip()


@pytest.mark.parametrize("name", ["glob", "glob64"])
def test_glob_of_the_c_library(name):
    code = f"""
import ctypes
libc = ctypes.CDLL(None)
for pattern in (b"/sys/class/infiniband/*/node_type", b"/dev/infiniband/uverbs?", b"/etc/passw*"):
    found = (ctypes.POINTER(ctypes.c_char_p) * 9)()  # a glob_t: its second word is gl_pathv
    assert libc.{name}(pattern, 0, None, found) == 0, pattern
    print(found[1][0].decode())
    libc.globfree(found)
"""
    p = softhca("run", "--", "/usr/bin/python3", "-c", code)
    assert p.stdout.split() == ["/sys/class/infiniband/softhca0/node_type",
                                "/dev/infiniband/uverbs0", "/etc/passwd"], p.stderr


def test_other_paths_are_untouched():
    code = ("import os; print(os.stat('/dev/null').st_rdev, os.listdir('/sys/class/net'), "
            "os.path.exists('/dev/infinibandx'), os.stat('/etc/passwd'))")
    p = softhca("run", "--", "/usr/bin/python3", "-c", code)
    plain = subprocess.run(["/usr/bin/python3", "-c", code], text=True, stdout=subprocess.PIPE)
    assert p.stdout == plain.stdout


def test_files_are_private(tmp_path):
    tmp_path.chmod(0o700)
    e = environment(env={"SOFTHCA_RUNDIR": str(tmp_path)})
    tree = e["SOFTHCA_SYSFS"]
    assert os.path.realpath(tree).startswith(os.path.realpath(tmp_path))
    home = os.path.dirname(tree)
    assert stat.S_IMODE(os.stat(home).st_mode) == 0o700
    assert environment(env={"SOFTHCA_RUNDIR": str(tmp_path)})["SOFTHCA_SYSFS"] == tree
    assert len(os.listdir(home)) == 1


@pytest.mark.parametrize("trap", ["open", "link", "file"])
def test_a_prepared_directory_is_refused(tmp_path, trap):
    """What somebody else may have put in a shared place beforehand."""
    base, elsewhere = tmp_path / "base", tmp_path / "elsewhere"
    base.mkdir(mode=0o700)
    elsewhere.mkdir(mode=0o700)
    home = base / f"softhca-sysfs-{os.geteuid()}"
    if trap == "open":
        home.mkdir()
        home.chmod(0o777)
    elif trap == "link":
        home.symlink_to(elsewhere)
    else:
        home.write_text("")
    e = environment(env={"SOFTHCA_RUNDIR": str(base)})
    assert not e["SOFTHCA_SYSFS"].startswith(str(base)), "goes on to the next place"
    assert not os.listdir(elsewhere)
    assert trap != "open" or not os.listdir(home)


def test_a_base_that_others_rename_in_is_refused(tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    base.chmod(0o777)
    e = environment(env={"SOFTHCA_RUNDIR": str(base)})
    assert not e["SOFTHCA_SYSFS"].startswith(str(base))


def test_old_files_are_removed(tmp_path):
    tmp_path.chmod(0o700)
    home = tmp_path / f"softhca-sysfs-{os.geteuid()}"
    home.mkdir(mode=0o700)
    outside = tmp_path / "outside"
    outside.write_text("stays")
    for i in range(40):
        d = home / f"{i:016x}" / "sys" / "class"
        d.mkdir(parents=True)
        (d / "f").write_text("x")
        (d / "l").symlink_to(outside)
        if i >= 10:
            os.utime(home / f"{i:016x}", (1e9, 1e9))
    environment(env={"SOFTHCA_RUNDIR": str(tmp_path)})
    assert len(os.listdir(home)) == 11
    assert outside.read_text() == "stays"


# devices

def test_devices_lists_every_address_of_lo():
    p = softhca("devices")
    assert p.returncode == 0
    assert re.search(r"^softhca0: port 1 active, MTU (256|512|1024|2048|4096) ", p.stdout)
    assert re.search(r"^ +\d+ +127\.0\.0\.1 +RoCE v2 +lo$", p.stdout, re.M)


def test_devices_json():
    p = softhca("devices", "--json")
    devices = json.loads(p.stdout)
    assert [d["name"] for d in devices] == ["softhca0"]
    port = devices[0]["ports"][0]
    assert port["state"] == "active" and port["link_layer"] == "Ethernet"
    assert re.fullmatch(r"0x[0-9a-f]{16}", devices[0]["node_guid"])
    for g in port["gids"]:
        assert g["ifindex"] == socket.if_nametoindex(g["netdev"])
        assert 0 <= g["index"] < port["gid_tbl_len"]
    assert "127.0.0.1" in [g["address"] for g in port["gids"]]


def test_devices_of_a_wrong_environment():
    p = softhca("devices", env={"SOFTHCA_DEVICES": "nope0"})
    assert p.returncode == 1
    assert "no device" in p.stderr and p.stdout == ""


def test_devices_to_a_full_disk():
    with open("/dev/full", "w") as full:
        p = subprocess.run([rig.SOFTHCA, "devices"], stdout=full, stderr=subprocess.PIPE,
                           timeout=rig.LIMIT)
    assert p.returncode == 1


# doctor

CHECKS = {"criu", "libraries", "threads", "device", "loader", "shim", "providers", "rights", "registry",
          "files", "shm", "same-host", "memlock", "port", "udp", "buffers"}


def doctor(*args, **kw):
    """The checks by name, and the exit status."""
    p = softhca("doctor", "--json", *args, **kw)
    assert p.stdout, p.stderr
    return {c["check"]: c for c in json.loads(p.stdout)["checks"]}, p.returncode


def test_doctor_finds_nothing_broken():
    p = softhca("doctor")
    assert p.returncode == 0, p.stdout
    assert {line.split()[1] for line in p.stdout.splitlines()
            if line.startswith(("OK", "WARN", "FAIL"))} == CHECKS


def test_doctor_json():
    p = softhca("doctor", "--json")
    d = json.loads(p.stdout)
    assert {c["check"] for c in d["checks"]} == CHECKS
    assert all(c["status"] in ("OK", "WARN", "FAIL") and c["text"] for c in d["checks"])
    assert all(set(c) - {"fix"} == {"check", "status", "text"} for c in d["checks"])
    assert not next(c.get("fix") for c in d["checks"] if c["check"] == "files")
    assert d["status"] in ("OK", "WARN") and p.returncode == 0
    assert d["version"] == softhca("--version").stdout.split()[1]


def test_doctor_sees_a_broken_installation(staged, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(staged, copy, symlinks=True)
    for f in (copy / "lib/softhca").glob("librdmacm.so*"):
        f.unlink()
    p = softhca("doctor", "--json", tool=str(copy / "bin/softhca"))
    status = {c["check"]: c["status"] for c in json.loads(p.stdout)["checks"]}
    assert p.returncode == 1
    assert status["libraries"] == "FAIL" and status["loader"] == "FAIL"

    shutil.rmtree(copy / "lib")
    p = softhca("doctor", tool=str(copy / "bin/softhca"))
    assert p.returncode == 1 and "install softhca again" in p.stdout
    p = softhca("run", "--", "true", tool=str(copy / "bin/softhca"))
    assert p.returncode == 125 and "Install softhca again" in p.stderr


@pytest.mark.parametrize("name", ["libibverbs.so.1", "librdmacm.so.1", "libsofthca.so.0", "libsofthca-shim.so"])
@pytest.mark.parametrize("damage", ["missing", "cut", "garbage"])
def test_damaged_installation(staged, tmp_path, name, damage):
    """One line names the file and what to do; the program is not run without a device."""
    copy = tmp_path / "copy"
    shutil.copytree(staged, copy, symlinks=True)
    file = copy / "lib/softhca" / name
    data = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(data[:1000])
    elif damage == "garbage":
        file.write_bytes(bytes(len(data)))
    for args in (["run", "--", "echo", "on"], ["env"], ["env", "--format=docker"], ["cdi"],
                 *([["devices"]] if name in ("libibverbs.so.1", "libsofthca.so.0") else [])):
        p = softhca(*args, tool=str(copy / "bin/softhca"))
        assert p.returncode == (125 if args[0] == "run" else 1) and p.stdout == ""
        [line] = p.stderr.splitlines()
        assert "nstall softhca again" in line and name in line, line
    p = softhca("doctor", "--json", tool=str(copy / "bin/softhca"))
    check = next(c for c in json.loads(p.stdout)["checks"] if c["check"] == "libraries")
    assert (p.returncode, check["status"]) == (1, "FAIL")
    assert name in check["text"] and "install softhca again" in check["fix"]


@pytest.mark.parametrize("name", ["libibverbs.so.1", "librdmacm.so.1", "libsofthca.so.0"])
def test_mixed_versions(staged, tmp_path, name):
    """A library of another release: what differs is the version's node."""
    copy = tmp_path / "copy"
    shutil.copytree(staged, copy, symlinks=True)
    file = copy / "lib/softhca" / name
    data = file.read_bytes()
    version = softhca("--version").stdout.split()[1]
    other = re.sub(r"\d+$", "7", version).encode()
    node = b"SOFTHCA_" + version.encode()
    assert len(other) == len(version) and node in data
    # As the linker would have written it: the name, and its hash (System V's).
    def elf_hash(text):
        h = 0
        for c in text:
            h = (h << 4) + c
            h = (h ^ (h & 0xf0000000) >> 24) & 0x0fffffff
        return h.to_bytes(4, "little")
    data = data.replace(node, b"SOFTHCA_" + other).replace(elf_hash(node), elf_hash(b"SOFTHCA_" + other))
    file.unlink()
    file.write_bytes(data)
    p = softhca("run", "--", "echo", "on", tool=str(copy / "bin/softhca"))
    [line] = p.stderr.splitlines()
    assert (p.returncode, p.stdout) == (125, "") and "all of one version" in line, line
    assert f"SOFTHCA_{other.decode()}" in line or f"is not of version {version}" in line
    # And the loader, for a program that got them by the environment.
    env = {"LD_LIBRARY_PATH": str(copy / "lib/softhca"), "LD_PRELOAD": str(copy / "lib/softhca/librdmacm.so.1")}
    p = subprocess.run(["ibv_devices"], env={**os.environ, **env}, text=True, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, timeout=rig.LIMIT)
    assert p.returncode and "SOFTHCA_" in p.stderr and "required by" in p.stderr, p.stderr


@pytest.mark.parametrize("args", [["run", "--", "echo", "on"], ["env"], ["devices"]], ids=lambda a: a[0])
def test_missing_dependency(args):
    """One line names the library and the package that has it."""
    p = without_isal(*args)
    [line] = p.stderr.splitlines()
    assert (p.returncode, p.stdout) == (125 if args[0] == "run" else 1, "")
    assert re.search(r"libsofthca.so.0 needs \S*libisal.so.(\d+): .*; install it, on Debian: apt-get install libisal\1$", line)


def test_doctor_sees_a_missing_dependency():
    p = without_isal("doctor", "--json")
    check = next(c for c in json.loads(p.stdout)["checks"] if c["check"] == "libraries")
    assert p.returncode == 1 and check["status"] == "FAIL" and check["text"].count("libisal") == 1
    assert re.fullmatch(r"install it, on Debian: apt-get install libisal\d+", check["fix"])


def without_isal(*args):
    """Runs the tool where the system has no ISA-L."""
    if os.geteuid():
        pytest.skip("needs root to hide a library")
    lib = re.search(r"libisal\S* => (\S+)", subprocess.run(["ldd", os.path.join(LIB, "libsofthca.so.0")], text=True,
                                                          stdout=subprocess.PIPE).stdout)[1]
    script = f"mount --bind /dev/null {os.path.realpath(lib)} && exec \"$@\""
    p = softhca(*args, prefix=["unshare", "-m", "sh", "-c", script, "sh"])
    if "unshare" in p.stderr or "mount:" in p.stderr:
        pytest.skip(f"no mount namespace: {p.stderr}")
    return p


def test_doctor_names_the_owner_of_the_port():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.bind(("127.0.0.1", 4791))
        except OSError:
            pytest.skip("port 4791 is in use")
        p = softhca("doctor", "--json")
    port = next(c for c in json.loads(p.stdout)["checks"] if c["check"] == "port")
    assert port["status"] == "WARN" and "4791 of 127.0.0.1 is taken" in port["text"]
    assert f"process {os.getpid()} (" in port["text"]
    assert p.returncode == 0


def wait_for_roce_port(proc):
    """Until somebody in this process's network has UDP port 4791 of an IPv4 address."""
    rig.until(lambda: any(r[1].endswith(":12B7") for r in proc.sockets("udp")), "port 4791 is bound", proc)


def test_doctor_tries_the_port_as_a_program_does(placements, tmp_path):
    """Two containers with one address: the same user, but another registry."""
    mine, other = {"SOFTHCA_RUNDIR": str(tmp_path)}, {"SOFTHCA_RUNDIR": str(tmp_path / "other")}
    (tmp_path / "other").mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    side = placements("local").server
    server = rig.Proc(side, ["rping", "-s", "-a", "127.0.0.1", "-p", rig.free_port()], env=mine)
    try:
        wait_for_roce_port(server)
        checks, rc = doctor(env=mine, prefix=side.prefix)
        assert checks["port"]["status"] == "OK", checks["port"]
        checks, rc = doctor(env=other, prefix=side.prefix)
        assert checks["port"]["status"] == "WARN"
        assert f"taken by process {server.pid} (rping)" in checks["port"]["text"]
        assert "SOFTHCA_RUNDIR" in checks["port"]["fix"]
        assert rc == 0
    finally:
        server.kill()


def test_doctor_without_threads(staged):
    """The limit of processes, which are threads to the kernel: said as what it is."""
    limited = as_nobody("bash", "-c", 'ulimit -u 1; exec "$@"', "bash")
    checks, rc = doctor(tool=f"{staged}/bin/softhca", prefix=limited, cwd="/")
    assert rc == 1
    assert checks["threads"]["status"] == "FAIL"
    assert "ulimit -u" in checks["threads"]["text"] + checks["threads"]["fix"]
    for name in "loader", "shim":
        assert "Resource temporarily unavailable" in checks[name]["text"]
        assert "LD_" not in checks[name].get("fix", "")
    p = softhca("run", "--", "true", tool=f"{staged}/bin/softhca", prefix=limited, cwd="/")
    assert p.returncode == 0 and "cannot start a process" in p.stderr


REFUSE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "refuse.py")
COPIES = "process_vm_readv,process_vm_writev"


@pytest.mark.parametrize("prefix,env,status,says,fix", [
    ([], {}, "OK", "^processes share memory, and copy", ""),
    ([REFUSE, "EPERM", COPIES], {}, "WARN", "^shared memory, payload copied through it.*seccomp", "SYS_PTRACE"),
    ([REFUSE, "ENOSYS", COPIES], {}, "WARN", "^shared memory, payload copied through it.*no process_vm_readv", "gVisor"),
    (["bash", "-c", 'ulimit -f 20000; exec "$@"', "bash"], {}, "WARN", "^a private UDP port.*ulimit -f", "ulimit -f"),
    ([], {"SOFTHCA_SAME_HOST": "copy"}, "OK", "^shared memory, payload copied.*SAME_HOST=copy says", "unset"),
    ([], {"SOFTHCA_SAME_HOST": "udp"}, "OK", "^a private UDP port.*SAME_HOST=udp says", "unset"),
    ([], {"SOFTHCA_WIRE": "1"}, "OK", "^UDP port 4791", "unset SOFTHCA_WIRE"),
], ids=["auto", "seccomp", "nosys", "filesize", "copy", "udp", "wire"])
def test_doctor_tries_the_ways_within_a_host(placements, prefix, env, status, says, fix):
    checks, rc = doctor(prefix=[*placements("local").server.prefix, *prefix], env=env)
    got = checks["same-host"]
    assert (rc, got["status"]) == (0, status) and re.search(says, got["text"]), got
    assert (fix in got["fix"]) if fix else "fix" not in got, got


def test_doctor_says_what_is_done_about_yama(placements):
    """Ubuntu's default, which the kernel here need not have: the file says so."""
    script = """mount -t tmpfs tmpfs /proc/sys/kernel && mkdir /proc/sys/kernel/yama || exit
        echo 1 >/proc/sys/kernel/yama/ptrace_scope
        exec "$@\""""
    prefix = [*placements("local").server.prefix, *namespace("-m", "bash", "-c", script, "bash")]
    for env, said in ({}, True), ({"SOFTHCA_SAME_HOST": "copy"}, False):
        got = doctor(prefix=prefix, env=env)[0]["same-host"]
        assert got["status"] == "OK", got
        assert ("any process of its user may trace it; --same-host=copy does not" in got["text"]) == said, got


def test_doctor_where_shared_memory_is_full(placements):
    script = f"""mount -t tmpfs -o mode=1777,size=4m tmpfs /dev/shm || exit
        {shlex.quote(rig.SOFTHCA)} run -- rping -s -a 127.0.0.1 -p {rig.free_port()} & server=$!
        until [ -e /dev/shm/softhca-*.w ]; do kill -0 $server || exit; sleep 0.01; done
        head -c 4m /dev/zero >/dev/shm/full 2>/dev/null
        "$@"; rc=$?; kill $server; exit $rc"""
    side = [*placements("local").server.prefix, *namespace("-m", "bash", "-c", script, "bash")]
    checks, rc = doctor(prefix=side, env={"SOFTHCA_RUNDIR": "/dev/shm"})
    got = checks["same-host"]
    assert (rc, got["status"]) == (0, "WARN"), got
    assert "UDP" in got["text"] and "No space left" in got["text"] and "--shm-size" in got["fix"], got


def test_doctor_names_who_is_in_another_user_namespace(placements):
    """Two programs of one user, of which each has made itself root of its own."""
    place = placements("local")
    alone, port = namespace("-U", "-r"), rig.free_port()
    server = rig.Proc(rig.Side([*place.server.prefix, *alone]), ["rping", "-s", "-a", "127.0.0.1", "-p", port])
    try:
        wait_for_roce_port(server)
        checks, _ = doctor(prefix=[*place.server.prefix, *alone])
        got = checks["same-host"]
        assert got["status"] == "WARN" and "another user namespace" in got["text"], got
        assert re.search(rf"such as process {server.pid}\b", got["text"]), got
    finally:
        server.kill()


def namespace(*options):
    """The prefix of commands in new namespaces; skips where these may not be made."""
    prefix = ["unshare", *options]
    p = subprocess.run([*prefix, "true"], stderr=subprocess.PIPE, text=True)
    if p.returncode:
        pytest.skip(f"no namespaces here: {p.stderr}")
    return prefix


def test_doctor_where_no_interface_is_up():
    checks, rc = doctor(prefix=namespace("-Urn"))
    assert checks["device"]["status"] == "WARN" and rc == 0
    assert "no GID" in checks["device"]["text"]
    assert checks["device"]["fix"] == "ip link set lo up"
    assert "no GID" in checks["shim"]["text"] and "ok" not in checks["shim"]["text"]
    up = namespace("-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    assert doctor(prefix=up)[0]["device"]["status"] == "OK"
    up = namespace("-Urn", "sh", "-c", 'ip link set lo up; ip addr flush dev lo; exec "$@"', "sh")
    assert "ip addr add" in doctor(prefix=up)[0]["device"]["fix"]


def test_program_where_no_interface_is_up():
    """It says what to do, once, and nothing of the kind where lo is up."""
    line = "softhca0 has no GID and reaches nobody: ip link set lo up"
    p = softhca("run", "--", "ibv_devinfo", "-v", prefix=namespace("-Urn"))
    assert p.stderr.count(line) == 1
    up = namespace("-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    assert "no GID" not in softhca("run", "--", "ibv_devinfo", "-v", prefix=up).stderr


PEER_CHECKS = {"device", "port", "peer-address", "peer-path", "peer-answer", "peer-mtu"}


def test_doctor_of_a_peer(placements):
    place = placements("netns")
    side = place.client
    server = rig.Proc(place.server, ["rping", "-s"])
    try:
        wait_for_roce_port(server)
        for host in place.host, place.host6:
            checks, rc = doctor("--peer", host, prefix=side.prefix)
            assert rc == 0 and checks.keys() == PEER_CHECKS
            assert not [c for c in checks.values() if c["status"] != "OK"]
            assert host in checks["peer-address"]["text"]
            assert re.search(", hca0, which is GID index \\d+ of softhca0", checks["peer-path"]["text"])
            assert "answers" in checks["peer-answer"]["text"]
            assert "refused packets of 9000 bytes, enough for path MTU 4096" in checks["peer-mtu"]["text"]
        narrow = ["ip", "route", "add", f"{place.host}/32", "dev", "hca0", "mtu", "1500"]
        subprocess.run([*side.prefix, *narrow], check=True)
        try:
            checks, rc = doctor("--peer", place.host, prefix=side.prefix)
        finally:
            narrow[2] = "del"
            subprocess.run([*side.prefix, *narrow], check=True)
        assert rc == 0 and checks["peer-mtu"]["status"] == "WARN"
        assert "path MTU 1024" in checks["peer-mtu"]["text"] and "-m 1024" in checks["peer-mtu"]["fix"]
    finally:
        server.kill()


def test_doctor_of_a_host_without_rdma(placements):
    """ICMP says it, so nobody has to wait for a firewall that there is not."""
    place = placements("netns")
    for host in place.host, place.host6:
        checks, rc = doctor("--peer", host, prefix=place.client.prefix)
        assert rc == 1 and checks["peer-answer"]["status"] == "FAIL"
        assert "ICMP port unreachable" in checks["peer-answer"]["text"]
        assert checks["peer-mtu"]["status"] == "WARN" and "not known" in checks["peer-mtu"]["text"]
        assert "softhca run" in checks["peer-answer"]["fix"]


IWARP = {"SOFTHCA_IWARP": "only"}


def test_doctor_of_iwarp(placements):
    """What only RoCE needs is not looked at, nor missed."""
    checks, rc = doctor(prefix=placements("local").server.prefix, env=IWARP)
    assert rc == 0 and not {"port", "udp", "buffers", "same-host"} & checks.keys()
    assert "speaks iWARP" in checks["device"]["text"] and checks["device"]["status"] == "OK"
    assert "(ulimit -n)" in checks["descriptors"]["text"]
    both, _ = doctor(prefix=placements("local").server.prefix, env={"SOFTHCA_IWARP": "both"})
    assert {"port", "udp", "buffers", "same-host", "descriptors"} <= both.keys()
    few, _ = doctor(prefix=[*placements("local").server.prefix, "prlimit", "--nofile=128:2000"], env=IWARP)
    assert few["descriptors"]["status"] == "WARN" and "ulimit -n 2000" in few["descriptors"]["fix"]


def answer_of(place, host, *args):
    checks, rc = doctor("--peer", host, *args, prefix=place.client.prefix, env=IWARP)
    assert checks.keys() == {"device", "peer-address", "peer-path", "peer-answer"}
    assert rc == (checks["peer-answer"]["status"] == "FAIL")
    return checks["peer-answer"]


@pytest.mark.parametrize("family", [4, 6])
def test_doctor_of_an_iwarp_peer(placements, family):
    """A program that listens is found, and not disturbed."""
    place = placements("iwarp_netns")
    host = place.host if family == 4 else place.host6
    server = rig.Proc(place.server, ["rping", "-s", "-v", "-a", host], place.options)
    try:
        server.wait_listening(7174)
        answer = answer_of(place, host)
        assert answer["status"] == "OK" and "iWARP answers there" in answer["text"], answer
        answer = answer_of(place, host, "--port", "7175")
        assert answer["status"] == "FAIL" and "no program listens on TCP port 7175" in answer["text"], answer
        assert server.running() and not server.output(), server.describe()
    finally:
        server.kill()


@pytest.mark.parametrize("sends,says", [(b"HTTP/1.0 400 Bad Request\r\n\r\n", "another protocol"), (b"", "without an answer"),
                                        (b"MPA ID", "without an answer")])
def test_doctor_of_a_peer_without_iwarp(placements, sends, says):
    place, port = placements("iwarp_netns"), rig.free_port()
    code = (f"import socket; s = socket.create_server(('{place.host}', {port})); print('ready', flush=True); "
            f"c, _ = s.accept(); c.recv(100); c.sendall({sends!r}); c.close()")
    with subprocess.Popen([*place.server.prefix, "/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout.readline() == "ready\n"
        answer = answer_of(place, place.host, "--port", str(port))
        assert p.wait(20) == 0
    assert answer["status"] == "WARN" and says in answer["text"], answer
    assert f"-p {port}" in answer["fix"]


@pytest.mark.full
def test_doctor_of_a_silent_host(placements):
    place = placements("netns")
    code = ("import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
            f"s.bind(('{place.host}', 4791)); print('ready', flush=True); input()")
    with subprocess.Popen([*place.server.prefix, "/usr/bin/python3", "-c", code], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as silent:
        assert silent.stdout.readline() == "ready\n"
        checks, rc = doctor("--peer", place.host, prefix=place.client.prefix)
        silent.stdin.close()
    assert rc == 1 and "no answer" in checks["peer-answer"]["text"]
    assert "UDP port 4791" in checks["peer-answer"]["fix"]


def test_doctor_of_a_peer_whose_answers_another_gets(placements, tmp_path):
    place = placements("netns")
    server = rig.Proc(place.client, ["rping", "-s"], env={"SOFTHCA_RUNDIR": str(tmp_path)})
    try:
        wait_for_roce_port(server)
        checks, rc = doctor("--peer", place.host, prefix=place.client.prefix)
        assert rc == 1 and "taken by" in checks["port"]["text"]
        bad = next(c for c in checks.values() if c["status"] == "FAIL")
        assert "port 4791 of this host" in bad["text"] and bad["fix"] == "see port"
    finally:
        server.kill()


@pytest.mark.parametrize("host,check,says", [
    ("127.0.0.1", "peer-answer", "answers"), ("::1", "peer-answer", "answers"),
    ("localhost", "peer-address", "localhost is "),
    ("no.such.host.invalid", "peer-address", "no.such.host.invalid: "),
    ("x" * 2000, "peer-address", "xxx"), ("192.0.2.1", "peer-path", "192.0.2.1"),
])
def test_doctor_of_odd_peers(placements, host, check, says):
    checks, rc = doctor("--peer", host, prefix=placements("local").server.prefix)
    assert says in checks[check]["text"]
    assert rc == (checks[check]["status"] == "FAIL")


def test_doctor_for_programs(tmp_path):
    script = tmp_path / "s.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    p = softhca("doctor", "ibv_devinfo", "/bin/ls", script)
    assert p.returncode == 0
    assert "is linked with libibverbs.so.1 and finds all" in p.stdout
    assert "does not see softhca: softhca run -- ibv_devinfo" in p.stdout
    p = softhca("run", "--", rig.SOFTHCA, "doctor", "ibv_devinfo")
    assert p.returncode == 0 and "started from here it sees softhca" in p.stdout
    p = softhca("doctor", "no-such-program")
    assert p.returncode == 1 and "not found" in p.stdout


@pytest.mark.parametrize("size", [0, 1, 4, 63, 64, 65, 200, 1000, 3000])
def test_damaged_programs(tmp_path, size):
    """Truncated files, and ones whose offsets lead nowhere."""
    data = bytearray(open(shutil.which("ibv_devinfo"), "rb").read())
    cut = tmp_path / "cut"
    cut.write_bytes(data[:size])
    cut.chmod(0o755)
    assert softhca("doctor", cut).returncode in (0, 1)
    for i in range(0x28, 0x30):
        data[i] = size & 0xff
    cut.write_bytes(data)
    assert softhca("doctor", cut).returncode in (0, 1)


def test_damaged_section_headers(tmp_path):
    data = open(shutil.which("ibv_devinfo"), "rb").read()
    shoff = int.from_bytes(data[0x28:0x30], "little")
    bad = tmp_path / "bad"
    for at in range(shoff, len(data), 8):
        for value in (0xffffffffffffffff, 0x7ffffffffffffff8, len(data) - 8):
            broken = bytearray(data)
            broken[at:at + 8] = value.to_bytes(8, "little")
            bad.write_bytes(broken)
            bad.chmod(0o755)
            assert softhca("doctor", bad).returncode in (0, 1), (at, value)
        if at > shoff + 8 * 8 * 8:
            break


@pytest.mark.parametrize("at,value,says", [
    (4, b"\1", "is a 32-bit program"), (18, b"\xfe\xca", "is for another processor"),
    (5, b"\2", "is for another processor"), (None, b"/lib/ld-musl-x.so", "is a program for musl"),
])
def test_programs_of_another_kind(tmp_path, at, value, says):
    """Run and doctor name the program and the reason."""
    data = bytearray(open("/bin/true", "rb").read())
    if at is None:
        at = data.index(b"/lib64/ld-linux") if b"/lib64/ld-linux" in data else data.index(b"/lib/ld-linux")
        value += b"\0"
    data[at:at + len(value)] = value
    program = tmp_path / "program"
    program.write_bytes(data)
    program.chmod(0o755)
    p = softhca("run", "--", program)
    [line] = [x for x in p.stderr.splitlines() if "warning" in x]
    assert f"{program} {says}" in line and "build it for " in line
    p = softhca("doctor", program)
    assert says in p.stdout and "build it for " in p.stdout, p.stdout


# Programs the loader does not give us

def test_static_program_is_pointed_out(tmp_path):
    src = tmp_path / "s.c"
    src.write_text("int main(void) { return 5; }\n")
    if subprocess.run(["cc", "-static", "-o", tmp_path / "static", src],
                      stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no static C library")
    p = softhca("run", "--", tmp_path / "static")
    assert p.returncode == 5 and "statically linked" in p.stderr


@pytest.mark.parametrize("static", [False, True])
def test_go_program_is_pointed_out(tmp_path, static):
    """Go makes its system calls itself, so it finds no file of ours."""
    src, program = tmp_path / "s.c", tmp_path / "program"
    src.write_text("int main(void) { return 5; }\n")
    if subprocess.run(["cc", *(["-static"] if static else []), "-o", tmp_path / "c", src],
                      stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no static C library")
    subprocess.run(["objcopy", "--add-section", f".go.buildinfo={src}", tmp_path / "c", program], check=True)
    checks, rc = doctor(program)
    assert rc == static and checks["program"]["status"] == ("FAIL" if static else "WARN")
    assert "Go program" in checks["program"]["text"] and "cgo" in checks["program"]["fix"]


def test_library_by_its_path_is_explained(tmp_path):
    """The loader gives what was asked for: no device, and with --explain the reason."""
    system = subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE, text=True).stdout
    path = re.search(r"libibverbs\.so\.1 .*=> (\S+)", system)
    if not path:
        pytest.skip("no libibverbs of the system")
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    p = softhca("run", "--explain", "--", "/usr/bin/python3", "-c", code, path[1])
    assert f"has loaded {path[1]} by its path, not softhca's" in p.stderr, p.stderr
    p = softhca("run", "--explain", "--", "/usr/bin/python3", "-c", code, "libibverbs.so.1")
    assert "by its path" not in p.stderr, p.stderr


def test_machine_without_proc():
    """What is missing is named."""
    no_proc = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
    if subprocess.run([*no_proc, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("cannot mount here")
    p = subprocess.run([*no_proc, rig.SOFTHCA, "run", "--", "true"], stderr=subprocess.PIPE, text=True, timeout=20)
    assert p.returncode == 125 and "/proc is not mounted" in p.stderr, p.stderr


def as_nobody(*command):
    """A command line that runs as a user without rights."""
    if os.geteuid():
        return list(command)
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]


def test_program_with_more_rights_is_pointed_out(staged):
    if os.geteuid():
        pytest.skip("only root can make such a program")
    path = os.path.join(staged, "setuid-devices")
    shutil.copy(shutil.which("ibv_devices"), path)
    os.chmod(path, 0o4755)
    p = softhca("run", "--", path, tool=f"{staged}/bin/softhca", prefix=as_nobody())
    assert "is set-user-ID" in p.stderr and f"cp {path} ." in p.stderr
    os.unlink(path)


# Installation, and ordinary users

def test_installed_copy(staged):
    tool = f"{staged}/bin/softhca"
    p = softhca("run", "--", "ibv_devices", tool=tool)
    assert p.returncode == 0 and "softhca0" in p.stdout
    p = softhca("run", "--", "sh", "-c", "cat /proc/self/maps", tool=tool)
    assert f"{staged}/lib/softhca/libibverbs.so.1" in p.stdout
    assert LIB not in p.stdout
    for path in ("share/man/man1/softhca.1", "lib/pkgconfig/softhca.pc",
                 "share/bash-completion/completions/softhca"):
        assert os.path.getsize(f"{staged}/{path}")


def test_installed_copy_in_a_place_with_spaces(staged, tmp_path):
    place = tmp_path / "a b:c"
    shutil.copytree(staged, place, symlinks=True)
    p = softhca("run", "--", "ibv_devices", tool=str(place / "bin/softhca"))
    assert p.returncode == 0 and "softhca0" in p.stdout, p.stderr


def test_installed_copy_through_a_link(staged, tmp_path):
    (tmp_path / "softhca").symlink_to(f"{staged}/bin/softhca")
    p = softhca("run", "--", "ibv_devices", tool=str(tmp_path / "softhca"))
    assert "softhca0" in p.stdout


def test_ordinary_user(staged):
    tool = f"{staged}/bin/softhca"
    p = softhca("doctor", "--json", tool=tool, prefix=as_nobody(), cwd="/")
    d = json.loads(p.stdout)
    assert p.returncode == 0, p.stdout
    bad = [c for c in d["checks"] if c["status"] == "FAIL"]
    assert not bad
    p = softhca("run", "--", "sh", "-c", "id -u; ibv_devices", tool=tool, prefix=as_nobody(),
                cwd="/")
    assert p.returncode == 0 and "softhca0" in p.stdout, p.stderr
    if not os.geteuid():
        assert p.stdout.startswith("65534\n")


def test_user_namespace(staged):
    """Everybody is user 0 in a user namespace of his own, and meets root's files there."""
    softhca("run", "--", "ibv_devinfo")  # leaves files of user 0
    tool, port = shlex.quote(f"{staged}/bin/softhca"), str(rig.free_port())
    nobody = {"tool": f"{staged}/bin/softhca", "cwd": "/", "env": {"XDG_RUNTIME_DIR": ""}}
    alone = as_nobody(*namespace("-Urn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"))
    p = softhca("run", "--", "sh", "-c", "ls /sys/class/infiniband; " + TWO_ENDS, port,
                prefix=alone, **nobody)
    assert p.returncode == 0 and p.stdout.startswith("softhca0\n"), p.stdout + p.stderr
    assert not [line for line in p.stderr.splitlines() if line.startswith("softhca:")], p.stderr
    checks, rc = doctor(prefix=alone, **nobody)
    assert not [c for c in checks.values() if c["status"] != "OK"]

    # One user is one user, inside and outside: they share port 4791.
    inside = f"! unshare -Ur {tool} run --addr 127.0.0.1 -- ibv_"
    p = softhca("run", "--addr", "127.0.0.1", "--", "sh", "-c", TWO_ENDS.replace("! ibv_", inside), port,
                prefix=as_nobody(), **nobody)
    assert p.returncode == 0, p.stdout + p.stderr
    assert "taken" not in p.stderr


def test_user_without_any_place_to_write(staged):
    """No place for files: programs run all the same, without the shim's."""
    if os.geteuid():
        pytest.skip("needs root to take the places away")
    script = ("mount -t tmpfs -o mode=0755 t /dev/shm && mount -t tmpfs -o mode=0755 t /tmp && "
              f"exec {' '.join(as_nobody())} {staged}/bin/softhca run -- ibv_devices")
    if staged.startswith("/tmp"):
        script = "mkdir -p /run/softhca-staged && mount --bind " + staged + \
                 " /run/softhca-staged && " + script.replace(staged, "/run/softhca-staged")
    p = subprocess.run(["unshare", "-m", "sh", "-c", script], text=True, cwd="/",
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=rig.LIMIT,
                       env={k: v for k, v in os.environ.items() if k != "XDG_RUNTIME_DIR"})
    if "unshare" in p.stderr or "mount:" in p.stderr:
        pytest.skip(f"no mount namespace: {p.stderr}")
    assert p.returncode == 0, p.stderr
    assert "no place to write to" in p.stderr


def test_pages_are_installed(staged):
    """And lead to each other there, as in the source."""
    doc = f"{staged}/share/doc/softhca"
    assert os.path.exists(f"{doc}/README.md") and os.path.exists(f"{doc}/examples/device.c")
    assert not links.broken_below(doc)


def test_uninstall(tmp_path):
    """It removes what was installed, and nothing else."""
    listed = tmp_path / "share/doc/softhca/installed-files"
    subprocess.run(["cmake", "--install", rig.BUILD, "--prefix", tmp_path], check=True, stdout=subprocess.DEVNULL)
    shutil.copy(os.path.join(rig.BUILD, "install_manifest.txt"), listed)
    (tmp_path / "lib/softhca/theirs").touch()
    script = [os.path.join(rig.ROOT, "scripts/uninstall"), "", listed]
    assert (tmp_path / "bin/softhca").exists()
    subprocess.run(script, check=True)
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == [tmp_path / "lib/softhca/theirs"]
    assert not (tmp_path / "share/doc/softhca").exists()
    assert "nothing to remove" in subprocess.run(script, stderr=subprocess.PIPE, text=True).stderr


# Help

@pytest.mark.parametrize("command", [[], ["run"], ["env"], ["cdi"], ["devices"], ["doctor"], ["explain"], ["ps"], ["stat"],
                                     ["trace"]])
def test_help_has_examples(command):
    p = softhca(*command, "--help")
    assert p.returncode == 0 and p.stderr == ""
    assert "Examples:" in p.stdout
    assert softhca(*command, "--version").stdout.startswith("softhca ")


def test_version(staged):
    """It is CMakeLists.txt's everywhere, and the levels are the libraries' own."""
    with open(f"{rig.ROOT}/CMakeLists.txt") as f:
        version = re.search(r"^project\(softhca VERSION ([0-9.]+) ", f.read(), re.M)[1]
    said = softhca("--version").stdout.split("\n")
    assert said[0] == f"softhca {version}"
    for line, name, family in ((said[1], "libibverbs.so.1", "IBVERBS"), (said[2], "librdmacm.so.1", "RDMACM"),
                               (said[3], "libibumad.so.3", "IBUMAD")):
        out = subprocess.run(["readelf", "-VW", f"{LIB}/{name}"], text=True, stdout=subprocess.PIPE, check=True).stdout
        defined = out.partition("Version definition section")[2].partition("Version needs section")[0]
        public = [int(n) for n in re.findall(rf"Name: {family}_1\.(\d+)\b", defined)]
        private = sorted(map(int, re.findall(r"Name: IBVERBS_PRIVATE_(\d+)\b", defined)))
        assert line == ", ".join([f"{name}: {family}_1.{max(public)}", *(f"IBVERBS_PRIVATE_{n}" for n in private)])
    with open(f"{staged}/share/man/man1/softhca.1") as f:
        assert f'.TH SOFTHCA 1 "" "softhca {version}" ' in f.read()
    with open(f"{rig.ROOT}/docs/softhca.1") as mine, open(f"{staged}/share/man/man1/softhca.1") as installed:
        assert installed.read().split("\n")[2:] == mine.read().split("\n")[2:]
    with open(f"{staged}/lib/pkgconfig/softhca.pc") as f:
        assert f"\nVersion: {version}\n" in f.read()
    with open(f"{rig.ROOT}/CHANGELOG.md") as f:
        assert re.search(rf"^## \[{re.escape(version)}\]", f.read(), re.M)


@pytest.mark.parametrize("command", ["run", "env", "cdi"])
def test_help_has_a_column(command):
    """The text of all options begins in the same one."""
    lines = softhca(command, "--help").stdout.split("\n\n")[1].split("\n")
    starts = {len(m[0]) for m in (re.match(r" +(-\S, )?(-\S, )?--\S+ +(?=\S)", line) for line in lines) if m}
    assert len(starts) == 1, starts


@pytest.mark.parametrize("command", ["run", "env", "devices", "doctor", "explain", "ps", "stat", "trace"])
def test_short_help(command):
    p = softhca(command, "-h")
    assert p.returncode == 0 and p.stderr == ""
    assert p.stdout == softhca(command, "--help").stdout


@pytest.mark.parametrize("options", [[], ["--"], ["--wire", "--"]])
def test_help_of_the_program_is_the_programs(options):
    assert softhca("run", *options, "printf", "%s", "-h").stdout == "-h"


def rows():
    """What src/os/options.h has: variables, and of those with an option its name and that of its value."""
    with open(os.path.join(rig.ROOT, "src/os/options.h")) as f:
        text = f.read().split("#define SOFTHCA_OPTIONS", 1)[1]
    return re.findall(r'^[OV]\(\w+, [\w *]+, \w+, "(\w+)"(?:, "([a-z0-9-]+)", (NULL, 0|"[^"]*", \w+))?', text, re.M)


def man_page():
    with open(os.path.join(rig.ROOT, "docs/softhca.1")) as f:
        return f.read().replace("\\-", "-")


def test_options_have_their_variables_names():
    assert len(rows()) > 15
    for variable, option, _ in rows():
        assert not option or variable == "SOFTHCA_" + option.upper().replace("-", "_")


def test_help_and_the_man_page_have_the_options():
    options = {f"--{option}" for _, option, _ in rows() if option} | {"--sockets"}
    for command, more in ("run", set()), ("env", {"--format", "--libdir"}), ("cdi", {"--libdir"}):
        shown = re.findall(r"^ +(?:-., )*(--[a-z0-9-]+)", softhca(command, "--help").stdout, re.M)
        assert set(shown) == options | more | {"--help", "--usage", "--version"}
    section = re.search(r"^\.SS run, env, cdi$(.*?)^\.SS ", man_page(), re.M | re.S)[1]
    assert set(re.findall(r"^\.TP\n\.\w+ (--[a-z0-9-]+)", section, re.M)) == options


def test_man_page_has_the_variables():
    section = re.search(r"^\.SH ENVIRONMENT$(.*?)^\.SH ", man_page(), re.M | re.S)[1]
    heads = "".join(re.findall(r"^\.TP\n(.*)", section, re.M))
    assert set(re.findall(r"SOFTHCA_[A-Z0-9_]+", heads)) == {variable for variable, _, _ in rows()}
    by_options = re.search(r"^\.B (.*)\nSet by the options", section, re.M)[1]
    assert set(re.findall(r"SOFTHCA_[A-Z0-9_]+", by_options)) == {variable for variable, option, _ in rows() if option}


def test_zsh_completion_has_the_options():
    with open(os.path.join(rig.ROOT, "completions/_softhca")) as f:
        job = re.search(r"job=\((.*?)^\)", f.read(), re.M | re.S)[1]
    assert set(re.findall(r"'(--[a-z0-9-]+(?:=-)?\[)", job)) == {
        f"--{option}{'=-' if 'OPTIONAL' in value else ''}[" for _, option, value in rows() if option} | {"--sockets["}


@pytest.mark.parametrize("typed,offers", [
    ("softhca d", "devices doctor"), ("softhca run --l", "--loss"), ("softhca doctor --j", "--json"),
    ("softhca explain --li", "--list"), ("softhca run --same-host c", "copy"), ("softhca run --loss ''", ""),
    ("softhca run --loss 1 --iw", "--iwarp --iwarp=both --iwarp=first"), ("softhca env --form", "--format"),
    ("softhca run --check --sock", "--sockets"), ("softhca cdi --libdir /pro", "/proc"),
    ("softhca env --pcap /proc/vers", "/proc/version"), ("softhca explain RETRY", "RETRY_EXC_ERR"),
    ("softhca explain ibv_wc_retry", "ibv_wc_retry_exc_err"), ("softhca p", "ps"),
])
def test_completion(typed, offers):
    script = os.path.join(rig.ROOT, "completions/softhca.bash")
    code = f"""PATH={os.path.dirname(rig.SOFTHCA)}:$PATH; . {script}; COMP_WORDS=({typed})
        COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _softhca; echo "${{COMPREPLY[@]}}" """
    p = subprocess.run(["bash", "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (p.stdout, p.stderr) == (offers + "\n", "")


def test_check_json(tmp_path):
    """Is a part of --check, and a path that the program finds wherever it is."""
    (tmp_path / "a,b").mkdir()
    said = environment("--check=leaks,json=found,exit=3", cwd=tmp_path)
    assert said["SOFTHCA_CHECK"] == f"json={tmp_path}/found,leaks,exit=3"
    for option, says in (("--check-json=found", "--check=json=found"), ("--check=json=", "needs the name"),
                         ("--check=json=none/found", "No such file"), ("--check=jsonx", "json=FILE")):
        p = softhca("run", option, "true", cwd=tmp_path)
        assert p.returncode == 125 and says in p.stderr, p.stderr
    assert "comma" in softhca("run", "--check=json=found", "true", cwd=tmp_path / "a,b").stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang", "clang -shared-libasan"])
def test_asan(home, tmp_path, compiler):
    """A program of ASan, which may want to be loaded first, starts, and finds what it is for."""
    src = tmp_path / "a.c"
    src.write_text("#include <infiniband/verbs.h>\n#include <stdlib.h>\n"
                   "int main(int argc, char **argv) { int n = 0; struct ibv_device **l = ibv_get_device_list(&n);\n"
                   "char *p = malloc(8); (void)argv; ibv_free_device_list(l); free(p); return n ? argc > 1 ? p[1] : 0 : 2; }\n")
    if not shutil.which(compiler.split()[0]):
        pytest.skip(f"not installed: {compiler}")
    build = [*compiler.split(), "-fsanitize=address", "-o", tmp_path / "a", src, "-libverbs"]
    if "shared" in compiler:
        runtime = subprocess.run(["clang", "-print-runtime-dir"], stdout=subprocess.PIPE, text=True).stdout.strip()
        build.append(f"-Wl,-rpath,{runtime}")
    if subprocess.run(build, stderr=subprocess.DEVNULL).returncode:
        pytest.skip(f"{compiler} makes no program with ASan here")
    side = rig.Side(home)
    said = compiler != "clang"
    assert ("has AddressSanitizer" in side.run([str(tmp_path / "a")], [])) == said
    out = side.run([str(tmp_path / "a"), "twice"], [], status=1, env={"ASAN_OPTIONS": "exitcode=1"})
    assert "heap-use-after-free" in out and out.count("has AddressSanitizer") == said, out
    out = side.run([str(tmp_path / "a")], [], env={"ASAN_OPTIONS": "verify_asan_link_order=0"})
    assert "has AddressSanitizer" not in out, "the user has said so"


def test_valgrind(home):
    """It knows each system call, and finds nothing."""
    if rig.need("valgrind", "ibv_devinfo"):
        pytest.skip("not installed: valgrind")
    out = rig.Side(home).run(["valgrind", "--error-exitcode=9", rig.client("checked"), "fine-buffer-polled"], limit=120)
    assert "done" in out and "unhandled" not in out and "ERROR SUMMARY: 0 errors" in out, out


def test_gid_table_is_whole(home):
    """As NCCL reads it: an entry for each of gid_tbl_len, of which the empty ones have no attributes."""
    script = """
import errno, os, subprocess
d = "/sys/class/infiniband/softhca0/ports/1"
n = int([l for l in subprocess.run(["ibv_devinfo", "-v"], stdout=subprocess.PIPE, text=True).stdout.splitlines()
         if "GID tbl" in l or "gid_tbl_len" in l][0].split()[-1])
assert sorted(map(int, os.listdir(d + "/gids"))) == list(range(n)), n
empty = 0
for i in range(n):
    gid = open(f"{d}/gids/{i}").read().strip()
    for attr in ("types", "ndevs"):
        try:
            assert open(f"{d}/gid_attrs/{attr}/{i}").read().strip()
            assert gid.strip("0:")
        except OSError as e:
            assert e.errno == errno.EINVAL and not gid.strip("0:")
            empty += 1
assert empty and empty < 2 * n
"""
    rig.Side(home).run(["python3", "-c", script], [])
