"""Counters of the port below /sys/class/infiniband, as programs read them."""
import os
import re
import signal
import subprocess
import time

import pytest

import rig

PORT = "/sys/class/infiniband/softhca0/ports/1"


def run(home, rundir, *cmd, status=0):
    """What a program prints under softhca run; options come first."""
    p = subprocess.run([*home, rig.SOFTHCA, "run", *cmd], env=dict(os.environ, SOFTHCA_RUNDIR=rundir),
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert p.returncode == status, p.stdout
    return p.stdout


def counters(home, rundir):
    lines = run(home, rundir, "grep", "-r", ".", f"{PORT}/counters", f"{PORT}/hw_counters").splitlines()
    return {name.rpartition("/")[2]: int(value) for name, value in (line.split(":") for line in lines)}


@pytest.mark.parametrize("way", ["wire", "same-host=copy", "same-host=auto"])
@pytest.mark.parametrize("op, requests", [("write", 100), ("read", 100), ("send", 0), ("atomic", 100)])
def test_perftest_reads_them(placements, rundir, way, op, requests):
    """It has them open, and reads them before and after: both ends' sums."""
    words = 100 * 65536 // 4
    names = "counters/port_xmit_data,counters/port_rcv_data,counters/port_rcv_packets," + ",".join(
        f"hw_counters/{n}" for n in ("rx_write_requests", "rx_read_requests", "rx_atomic_requests", "out_of_sequence"))
    size = [] if op == "atomic" else ["-s", 65536]
    client = placements("local").tool(f"ib_{op}_bw", "-F", "-n", 100, *size, client_args=["-W", names],
                                      options=[f"--{way}"], env={"SOFTHCA_RUNDIR": rundir}).client
    got = {n: int(v) for n, v in re.findall(r"^\t\w+/(\w+)=(\d+)$", client.output(), re.M)}
    # An atomic's operands are in headers; on a busy machine a packet may be sent twice.
    assert op == "atomic" or words <= got["port_rcv_data"] <= got["port_xmit_data"] < 3 * words, got
    assert got.pop("port_rcv_packets") > 0 or way == "same-host=auto"
    for kind in ("write", "read", "atomic"):
        n = got[f"rx_{kind}_requests"]
        # A read may be asked for in parts.
        assert (requests <= n <= 17 * requests if kind == "read" == op else n == (requests if kind == op else 0)), got


def read(path):
    with open(os.path.join(rig.ROOT, path)) as f:
        return f.read()


def test_the_page_has_them(home, rundir):
    """With what the sources say that they count, and the files that there are."""
    of_qps = re.findall(r'^[CQ]\(\w+, \w+, "(\w+)", \w+, \\\n  "(.*?)"\)', read("src/qp/counts.h"), re.M)
    of_processes = re.findall(r'^C\(\w+, "(\w+)", "(.*?)"\)', read("src/counters/stat.h"), re.M)
    assert len(of_qps) > 25 and len(of_processes) > 3
    page = re.findall(r"^\| `(\w+)` \| (.*?) \| ?(yes|\*)? \|$", read("docs/DEBUGGING.md"), re.M)
    assert [(name, help) for name, help, _ in page] == of_qps + [(n, f"{h} (of the process)") for n, h in of_processes]
    files = run(home, rundir, "ls", f"{PORT}/hw_counters").split()
    assert sorted(name for name, _, file in page if file) == sorted(set(files) - {"lifespan"})


READERS = {
    "cat": ["cat", "{}"],
    "a shell": ["bash", "-c", "cd {dir} && cat < {name}"],
    "relative": ["bash", "-c", "cd {dir}/.. && cat hw_counters/{name}"],
    "of a directory": ["python3", "-c", "import os; d = os.open('{dir}', os.O_RDONLY); "
                       "print(open(os.open('{name}', os.O_RDONLY, dir_fd=d)).read())"],
    "grep -r": ["grep", "-rh", ".", "{}"],
    "stdio": ["bc", "-q", "{}"],
    "perl": ["perl", "-ne", "print", "{}"],
    "python": ["python3", "-c", "print(open('{}', 'rb', buffering=0).read().decode())"],
    "a mapping": ["python3", "-c", "import mmap; f = open('{}'); print(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:].decode())"],
    "ibv_read_sysfs_file": ["python3", "-c", "import ctypes; v = ctypes.CDLL('libibverbs.so.1', use_errno=True); "
                            "b = ctypes.create_string_buffer(64); "
                            "n = v.ibv_read_sysfs_file(b'{dir}', b'{name}', b, 64); print(b.raw[:n].decode())"],
}


@pytest.fixture
def after_writes(placements, rundir):
    """100 writes have been done, and whoever did them is gone."""
    placements("local").tool("ib_write_bw", "-F", "-n", 100, "-s", 64, options=["--wire"], env={"SOFTHCA_RUNDIR": rundir})
    return rundir


def test_readers(home, after_writes):
    path = f"{PORT}/hw_counters/rx_write_requests"
    for what, cmd in READERS.items():
        if rig.need(cmd[0]):
            continue
        cmd = [c.replace("{}", path).replace("{dir}", os.path.dirname(path)).replace("{name}", os.path.basename(path))
               for c in cmd]
        if cmd[0] == "bc":
            cmd = ["bash", "-c", f"bc -q {path} </dev/null"]
        assert run(home, after_writes, *cmd).split() == ["100"], what


def test_not_to_be_written(home, after_writes):
    """Like the kernel's, whoever tries."""
    path = f"{PORT}/counters/port_xmit_data"
    assert "ermission denied" in run(home, after_writes, "bash", "-c", f"echo 0 > {path}", status=1)
    # What is sent again counts again, as with hardware.
    assert int(run(home, after_writes, "cat", path)) >= 100 * 64 // 4
    assert run(home, after_writes, "cat", f"{PORT}/counters/symbol_error") == "0\n"
    assert "No such file" in run(home, after_writes, "cat", f"{PORT}/counters/other", status=1)
    assert run(home, after_writes, "cat", f"{PORT}/hw_counters/lifespan") == "10\n"


def test_live(home, rundir):
    """They grow while programs run, with losses, and never go back: not when a program is stopped, or killed."""
    with rig.running(home, ["ib_write_bw", "-F", "-s", 65536, "-n", 100000000], ["--wire", "--loss=1"],
                     {"SOFTHCA_RUNDIR": rundir}) as (server, client):
        rig.until(lambda: counters(home, rundir)["out_of_sequence"] > 10, "losses are counted", client)
        was = counters(home, rundir)
        # The two processes are asked one after the other: what one has sent since is not compared.
        assert was["port_xmit_data"] > 0 < was["port_rcv_data"] and was["packet_seq_err"] > 0
        time.sleep(0.1)
        now = counters(home, rundir)
        assert all(now[n] >= was[n] for n in was) and now["port_rcv_packets"] > was["port_rcv_packets"]
        server.tell(signal.SIGSTOP)
        began = time.monotonic()
        stopped = counters(home, rundir)
        assert time.monotonic() - began < 10 and all(stopped[n] >= now[n] for n in now)
        server.tell(signal.SIGCONT)
        # Without being asked: what it had counted is there when it is killed.
        time.sleep(2.5)
    killed = counters(home, rundir)
    assert killed["port_rcv_packets"] > stopped["port_rcv_packets"] + 100


def test_old_ones_are_removed(home, rundir):
    """When there are many trees: not those that are in use, nor young ones."""
    run(home, rundir, "true")
    trees = f"{rundir}/softhca-sysfs-{os.geteuid()}"
    for i in range(20):
        os.mkdir(f"{trees}/{i:016x}")
    with open(f"{trees}/counters-1-2", "w"), open(f"{trees}/counters-2-2", "w"):
        os.utime(f"{trees}/counters-2-2", (1, 1))
    with rig.running(home, ["ib_write_bw", "-F", "-n", 100000000], env={"SOFTHCA_RUNDIR": rundir}) as (server, client):
        rig.until(lambda: counters(home, rundir)["port_xmit_data"], "it counts", client)
        used, = {f for f in os.listdir(trees) if f.startswith("counters-")} - {"counters-1-2", "counters-2-2"}
        os.utime(f"{trees}/{used}", (1, 1))
        run(home, rundir, "--addr=::1", "true")
        left = {f for f in os.listdir(trees) if f.startswith("counters-")}
        assert left == {"counters-1-2", used}
    os.utime(f"{trees}/{used}", (1, 1))
    run(home, rundir, "--addr=127.0.0.1", "true")
    assert {f for f in os.listdir(trees) if f.startswith("counters-")} == {"counters-1-2"}


def test_kept_open(home, rundir):
    """Read again from the beginning it has the value of then."""
    code = f"""
import os, subprocess
a = os.open('{PORT}/hw_counters/rx_write_requests', os.O_RDONLY)
b = os.open('{PORT}/counters/port_rcv_packets', os.O_RDONLY)
print(os.read(a, 20), os.pread(b, 20, 0), flush=True)
os.lseek(a, 0, 0)
input()
print(os.read(a, 20), int(os.pread(b, 20, 0)) >= 10, os.read(a, 20))
"""
    with subprocess.Popen([*home, rig.SOFTHCA, "run", "--", "python3", "-c", code], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, env=dict(os.environ, SOFTHCA_RUNDIR=rundir)) as p:
        assert p.stdout.readline() == "b'0\\n' b'0\\n'\n"
        with rig.running(home, ["ib_write_bw", "-F", "-s", 64, "-n", 10], ["--wire"],
                         {"SOFTHCA_RUNDIR": rundir}) as (server, client):
            client.done()
            server.done()
        out = p.communicate("\n", timeout=60)[0]
    assert out == "b'10\\n' True b''\n"
