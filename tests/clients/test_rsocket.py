"""Sockets over RDMA: rdma-core's rsocket tools, programs of our own, and
ordinary TCP programs under "softhca run --sockets"."""
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

import rig
from rig import Failed, Proc, free_port

CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "rsocket_cases.py")
PYTHON = "/usr/bin/python3"
LISTENING = set()  # servers that are known to


def need(*programs):
    if missing := rig.need(*programs):
        pytest.skip(f"not installed: {' '.join(missing)}")


def start(place, cmd, options=(), env=None):
    return Proc(place.server, cmd, [*place.options, *options], env)


def run_client(place, server, cmd, options=(), env=None, limit=rig.LIMIT):
    """A client of a server. Until somebody listens, if the server is not one of
    listening(): no failure after that is forgiven. Its output."""
    end = time.monotonic() + limit
    while True:
        begun = time.monotonic()
        p = Proc(place.client, cmd, [*place.options, *options], env)
        try:
            rc = p.wait(max(1, end - begun))
        except Failed as e:
            raise type(e)(f"{e}--- server\n{server.describe()}") from None
        if rc == 0:
            return p.output()
        if server in LISTENING or begun > server.start + 3 or not server.running():
            raise Failed(f"exit status {rc}\n{p.describe()}--- server\n{server.describe()}")
        time.sleep(0.1)


def both(place, tool, args, host=None, server_args=(), limit=rig.LIMIT, ends=True, **kw):
    """A tool that is client with -s HOST; what both printed."""
    need(tool)
    cmd = [tool, "-p", free_port(), *args]
    server = start(place, [*cmd, "-b", host or place.host, *server_args], **kw)
    try:
        out = run_client(place, server, [*cmd, "-s", host or place.host], limit=limit, **kw)
        if ends:
            rc = server.wait(10)
            assert rc == 0, server.describe()
    finally:
        server.kill()
    assert re.search(r"^(custom|[0-9a-z]+_(lat|bw)) .*\d\.\d\d", out, re.M), out
    return out


SMALL = "-I 20 -C 20 -S 5000".split()


@pytest.mark.parametrize("place, options", rig.matrix(
    ["", "-T a", "-T b", "-T n", "-T r", "-T v", "-T a -T v", "-T n -T v", "-T r -T v", "-B 4096 -T v",
     "-B 1000000 -T v", "-i 0 -T v", "-k 5 -T v", "-f ip -T v"],
    ["-T a -T v", "-T n -T v", "-T r -T v"]), indirect=["place"])
def test_rstream(place, options):
    both(place, "rstream", [*SMALL, *options.split()])


@pytest.mark.parametrize("options", ["-f ipv6 -T v", "-T v"])
def test_rstream_ipv6(place, options):
    both(place, "rstream", [*SMALL, *options.split()], host=place.host6)


@pytest.mark.parametrize("place, size", rig.matrix(["1", "64", "65536", "65537", "1000000"], ["65537"]),
                         indirect=["place"])
def test_rstream_sizes(place, size):
    both(place, "rstream", ["-I", "5", "-C", "10", "-S", size, "-T", "v"])


@pytest.mark.full
def test_rstream_suite(place):
    """Every test that it has."""
    out = both(place, "rstream", [], limit=300)
    assert out.count("_lat") == out.count("_bw") == 4


@pytest.mark.full
def test_rstream_all_sizes(place):
    both(place, "rstream", ["-I", "5", "-C", "5", "-S", "all", "-T", "v"], limit=300)


def test_rstream_sockets(place):
    """Its calls of plain sockets, by librspreload."""
    both(place, "rstream", [*SMALL, "-T", "s", "-T", "v"], options=["--sockets"])


def test_rstream_loss(placements):
    both(placements("wire"), "rstream", ["-I", "20", "-C", "10", "-S", "20000", "-T", "v"],
         options=["--loss", "1", "--seed", "7"])


@pytest.mark.parametrize("safe", ["0", "1"])
def test_rstream_fork(place, safe):
    """The server forks and its child serves."""
    need("rstream")
    cmd = ["rstream", "-T", "f", "-p", free_port(), "-I", "20", "-C", "20", "-S", "1000"]
    env = {"RDMAV_FORK_SAFE": safe}
    server = start(place, [*cmd, "-b", place.host], ["--sockets"], env)
    try:
        before = tcp_bytes(place.client)
        out = run_client(place, server, [*cmd, "-s", place.host], ["--sockets"], env)
        assert "custom" in out, out
        if place.name == "netns":
            assert tcp_bytes(place.client) - before < 20
        server.done(10)
    finally:
        server.kill()


@pytest.mark.parametrize("place, options", rig.matrix(
    ["", "-T a", "-T b", "-T n", "-T v", "-T a -T v"], ["-T a -T v"]), indirect=["place"])
def test_riostream(place, options):
    both(place, "riostream", [*SMALL, *options.split()])


def test_riostream_ipv6(place):
    both(place, "riostream", [*SMALL, "-f", "ipv6", "-T", "v"], host=place.host6)


@pytest.mark.full
def test_riostream_suite(place):
    out = both(place, "riostream", [], limit=300)
    assert out.count("_lat") == out.count("_bw") > 0


@pytest.mark.parametrize("place, size", rig.matrix(["1", "100000", "1000000"], ["100000"]), indirect=["place"])
def test_riostream_sizes(place, size):
    both(place, "riostream", ["-I", "5", "-C", "4", "-S", size, "-T", "v"])


@pytest.mark.parametrize("options", ["", "-T a", "-T b", "-T n", "-T e"])
def test_udpong(place, options):
    # Its server never ends.
    both(place, "udpong", ["-C", "100", "-S", "500", *options.split()], ends=False)


def test_udpong_ipv6(place):
    both(place, "udpong", ["-C", "100", "-S", "500", "-T", "e"], host=place.host6, ends=False)


def test_udpong_sockets(place):
    both(place, "udpong", ["-C", "100", "-S", "500", "-T", "s"], ends=False, options=["--sockets"],
         env={"RS_DGRAM": "1"})


def digest(path):
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


@pytest.fixture(scope="module")
def big_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rcopy") / "file"
    with open(path, "wb") as f:
        f.write(os.urandom(100 << 20))
    return path


def test_rcopy(place, big_file, tmp_path):
    need("rcopy")
    port = str(free_port())
    server = start(place, ["rcopy", "-p", port])
    copy = tmp_path / "copy"
    try:
        run_client(place, server, ["rcopy", str(big_file), f"{place.host}:{copy}", "-p", port], limit=100)
        end = time.monotonic() + 10
        while copy.stat().st_size < big_file.stat().st_size and time.monotonic() < end:
            time.sleep(0.05)
        assert digest(copy) == digest(big_file)
    finally:
        server.kill()


def cases():
    out = subprocess.run([PYTHON, CASES, "--list"], stdout=subprocess.PIPE, text=True, check=True)
    return out.stdout.split()


ON_THE_WIRE = ["queues", "duplex", "shutdown", "iomap", "dgram"]


@pytest.mark.parametrize("where, case", [
    pytest.param(w, c, marks=() if w == "local" or c in ON_THE_WIRE else pytest.mark.full)
    for w in ("local", "wire") for c in cases()])
def test_case(home, where, case):
    rig.Side(home).run([PYTHON, CASES, case], ["--wire"] if where == "wire" else [], limit=100)


@pytest.mark.parametrize("case", ["options", "queues", "shutdown", "refused", "duplex", "iomap", "dgram"])
def test_case_ipv6(home, case):
    rig.Side(home).run([PYTHON, CASES, case, "::1"], limit=100)


@pytest.mark.parametrize("case", ["queues", "duplex", "shutdown", "iomap", "alone", "halves", "signals", "brief", "linger",
                                  "linger_exit"])
def test_case_loss(home, case):
    rig.Side(home).run([PYTHON, CASES, case], ["--wire", "--loss", "1", "--seed", "3"], limit=100)


def test_dgram_too_long(home):
    rig.Side(home).run([PYTHON, CASES, "child_long", "127.0.0.1", rig.client("rsocket_long")])


ROWS = []
if os.access(rig.client("rsocket_peer"), os.X_OK):
    ROWS = subprocess.run([rig.client("rsocket_peer"), "-p", "1", "-l"], stdout=subprocess.PIPE,
                          text=True, check=True).stdout.splitlines()


def test_protocol_table_is_there():
    assert len(ROWS) >= 30


@pytest.fixture(scope="module", params=["local", pytest.param("wire", marks=pytest.mark.full), "netns"])
def protocol_run(request, placements):
    place = placements(request.param)
    cmd = [rig.client("rsocket_peer"), "-p", free_port()]
    server = start(place, cmd)
    try:
        server.wait_for("^ready")
        client = Proc(place.client, [*cmd, place.host], place.options)
        client.wait(100)
        server.wait(10)
    finally:
        server.kill()
    return client, server


@pytest.mark.parametrize("row", ROWS)
def test_protocol(protocol_run, row):
    client, server = protocol_run
    said = [line for line in client.output().splitlines() if line.startswith((f"ok {row}", f"not ok {row}"))]
    assert said, f"it did not get there\n{client.describe()}--- server\n{server.describe()}"
    assert said[0] == f"ok {row}"


def test_protocol_server_survived(protocol_run):
    assert protocol_run[1].popen.returncode == 0, protocol_run[1].describe()


# Ordinary programs.

def tcp_bytes(side):
    """TCP segments that this network has carried."""
    out = subprocess.run([*side.prefix, "cat", "/proc/net/snmp"], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [line.split()[1:] for line in out.splitlines() if line.startswith("Tcp:")]
    return int(dict(zip(*rows))["OutSegs"])


def listening(place, cmd, port, options=("--sockets",), **kw):
    p = start(place, cmd, options, **kw)
    try:
        p.wait_listening(port)
        LISTENING.add(p)
    except BaseException:
        p.kill()
        raise
    return p


def iperf3(place, host, options):
    need("iperf3")
    port = free_port()
    server = listening(place, ["iperf3", "-s", "-1", "-p", port], port)
    try:
        before = tcp_bytes(place.client)
        out = run_client(place, server, ["iperf3", "-c", host, "-p", port, *options.split()], ["--sockets"])
        assert "iperf Done" in out, out
        carried = max(int(float(n) * {"K": 1e3, "M": 1e6, "G": 1e9}[u])
                      for n, u in re.findall(r"([\d.]+) ([KMG])Bytes .*receiver", out))
        assert carried > 1e6, out
        if place.name == "netns":
            # Not one of them was TCP's.
            assert tcp_bytes(place.client) - before < 20
        server.wait(10)
    finally:
        server.kill()


@pytest.mark.parametrize("place, options", rig.matrix(
    ["-t 1", "-t 1 -R", "-n 100M -P 3", "-t 1 --bidir", "-n 20M -l 1000"], ["-n 100M -P 3"]), indirect=["place"])
def test_iperf3(place, options):
    iperf3(place, place.host, options)


def test_iperf3_ipv6(place):
    iperf3(place, place.host6, "-n 50M")


def test_http_ipv6(place, big_file, tmp_path):
    need("curl")
    port = free_port()
    server = listening(place, [PYTHON, "-m", "http.server", port, "--bind", place.host6, "-d",
                               big_file.parent], port)
    try:
        before = tcp_bytes(place.client)
        run_client(place, server, ["curl", "-sSf", "-g", "-o", tmp_path / "got",
                                   f"http://[{place.host6}]:{port}/file"], ["--sockets"])
        assert digest(tmp_path / "got") == digest(big_file)
        if place.name == "netns":
            assert tcp_bytes(place.client) - before < 20
    finally:
        server.kill()


def test_http(place, big_file, tmp_path):
    need("curl")
    port = free_port()
    server = listening(place, [PYTHON, "-m", "http.server", port, "--bind", place.host, "-d",
                               big_file.parent], port)
    try:
        url = f"http://{place.host}:{port}"
        before = tcp_bytes(place.client)
        for i in range(3):
            run_client(place, server, ["curl", "-sSf", "-o", tmp_path / "got", f"{url}/file"], ["--sockets"])
            assert digest(tmp_path / "got") == digest(big_file)
        out = place.client.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"{url}/nothing"],
                               [*place.options, "--sockets"])
        assert out == "404"
        if place.name == "netns":
            assert tcp_bytes(place.client) - before < 20
        # Who does not speak RDMA is served by the same server.
        out = subprocess.run([*place.client.prefix, "curl", "-sSf", f"{url}/"], stdout=subprocess.PIPE,
                             text=True, check=True, timeout=20).stdout
        assert "file" in out
    finally:
        server.kill()


def test_fall_back(place):
    """A server without RDMA is reached by TCP, by blocking and by non-blocking
    clients."""
    need("curl", "iperf3")
    port = free_port()
    server = subprocess.Popen([*place.server.prefix, PYTHON, "-m", "http.server", str(port), "--bind", place.host],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    env = {"RS_CONNECT_TIMEOUT": "500"}
    code = (f"import socket; s = socket.create_connection(('{place.host}', {port})); "
            "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(100)[:15])")
    try:
        time.sleep(1)
        for cmd, want in ((["curl", "-sSf", f"http://{place.host}:{port}/"], "Directory listing"),
                          ([PYTHON, "-c", code], "HTTP/1.0 200 OK")):
            out = place.client.run(cmd, [*place.options, "--sockets"], env=env)
            assert want in out, out
    finally:
        server.kill()
        server.wait()
    out = place.client.run(["curl", "-sS", f"http://{place.host}:{port}/"], [*place.options, "--sockets"],
                           status=7, env=env)
    assert "refused" in out or "connect" in out.lower(), out


def redis_program(where):
    """redis-server, or the program that is it by another name: Debian's
    redis-tools has that, and no service that starts when it is installed."""
    if not rig.need("redis-server"):
        return "redis-server"
    need("redis-check-rdb")
    os.symlink(shutil.which("redis-check-rdb"), where / "redis-server")
    return where / "redis-server"


def redis_server(place, host, tmp_path):
    need("redis-benchmark", "redis-cli")
    port = free_port()
    return port, listening(place, [redis_program(tmp_path), "--port", port, "--bind", host, "--save", "",
                                   "--protected-mode", "no", "--dir", tmp_path], port)


def test_redis_ipv6(place, tmp_path):
    port, server = redis_server(place, place.host6, tmp_path)
    try:
        out = run_client(place, server, ["redis-benchmark", "-h", place.host6, "-p", port, "-n", "2000", "-c", "10",
                                         "-q", "-t", "set,get"], ["--sockets"], limit=100)
        assert len(re.findall(r"requests per second", out)) >= 2, out
    finally:
        server.kill()


def test_redis(place, tmp_path):
    port, server = redis_server(place, place.host, tmp_path)
    try:
        out = run_client(place, server, ["redis-benchmark", "-h", place.host, "-p", port, "-n", "5000", "-c", "20",
                                         "-q", "-t", "set,get,lpush,lrange_100"], ["--sockets"], limit=100)
        assert len(re.findall(r"requests per second", out)) >= 4, out
        out = run_client(place, server, ["redis-benchmark", "-h", place.host, "-p", port, "-n", "5000", "-c", "10",
                                         "-P", "16", "-d", "10000", "-q", "-t", "set,get"], ["--sockets"], limit=100)
        value = os.urandom(200000).hex()
        cli = ["redis-cli", "-h", place.host, "-p", port]
        subprocess.run([*place.client.prefix, *map(str, cli), "-x", "set", "key"], input=value, text=True, check=True,
                       stdout=subprocess.DEVNULL, timeout=20)
        got = place.client.run([*cli, "get", "key"], [*place.options, "--sockets"])
        assert got.strip() == value
        # A child that saves leaves the connections alone.
        assert "ERR" not in place.client.run([*cli, "bgrewriteaof"], [*place.options, "--sockets"])
        time.sleep(0.5)
        got = place.client.run([*cli, "get", "key"], [*place.options, "--sockets"])
        assert got.strip() == value
    finally:
        server.kill()


EPOLL = r"""
import os, select, socket, sys, threading
kind, port = sys.argv[1], int(sys.argv[2])
host = sys.argv[3]
if kind == "server":
    ls = socket.create_server((host, port))
    ls.setblocking(False)
    flags = select.EPOLLIN | (select.EPOLLET if sys.argv[4] == "et" else 0)
    ep = select.epoll()
    ep.register(ls, flags)
    r, w = os.pipe()
    ep.register(r, select.EPOLLIN)
    conns, total, done = {}, 0, 0
    while done < 10:
        for fd, ev in ep.poll(30):
            if fd == ls.fileno():
                while True:
                    try:
                        c, _ = ls.accept()
                    except BlockingIOError:
                        break
                    c.setblocking(False)
                    conns[c.fileno()] = [c, b""]
                    ep.register(c, flags)
                continue
            if fd == r:
                os.read(r, 1)
                continue
            c, out = conns[fd]
            end = False
            while ev & (select.EPOLLIN | select.EPOLLHUP):
                try:
                    data = c.recv(7000)
                except BlockingIOError:
                    break
                if not data:
                    end = True
                    break
                out += data
                if sys.argv[4] != "et":
                    break
            while out:
                try:
                    out = out[c.send(out):]
                except BlockingIOError:
                    break
            conns[fd][1] = out
            if end and not out:
                ep.unregister(c)
                c.close()
                del conns[fd]
                done += 1
                os.write(w, b"x")
            else:
                ep.modify(c, flags | (select.EPOLLOUT if out else 0))
    print("served", done)
else:
    def client(i):
        s = socket.create_connection((host, port))
        data = bytes((i + j) & 255 for j in range(5000)) * 100
        t = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
        t.start()
        got = b""
        while True:
            part = s.recv(65536)
            if not part:
                break
            got += part
        t.join()
        assert got == data, (i, len(got))
        done.append(i)
    done = []
    ts = [threading.Thread(target=client, args=(i,)) for i in range(10)]
    for t in ts: t.start()
    for t in ts: t.join()
    assert len(done) == 10
    print("ok")
"""


@pytest.mark.parametrize("mode", ["lt", "et"])
def test_epoll(place, mode):
    port = free_port()
    server = listening(place, [PYTHON, "-c", EPOLL, "server", port, place.host, mode], port)
    try:
        out = run_client(place, server, [PYTHON, "-c", EPOLL, "client", port, place.host], ["--sockets"])
        assert "ok" in out
        server.done(10)
        assert "served 10" in server.output()
    finally:
        server.kill()


CALLS = r"""
import array, fcntl, os, socket, struct, sys, termios, threading
port, host = int(sys.argv[1]), sys.argv[2]
ls = socket.create_server((host, port))
assert ls.getsockname()[1] == port
got = []
t = threading.Thread(target=lambda: got.extend(ls.accept())); t.start()
c = socket.socket(); c.settimeout(10); c.connect((host, port))
t.join(); s, peer = got
assert peer == c.getsockname() and c.getpeername() == (host, port), (peer, c.getsockname())
c.sendall(b"one"); assert s.recv(3, socket.MSG_WAITALL) == b"one"
# Copies of a descriptor are the same connection, until the last is closed.
d = os.dup(s.fileno()); e = os.open("/dev/null", os.O_RDONLY); os.dup2(s.fileno(), e)
f = fcntl.fcntl(s.fileno(), fcntl.F_DUPFD_CLOEXEC, 50)
s.close()
for fd in (d, e, f):
    c.sendall(b"x%d" % fd); assert os.read(fd, 10) == b"x%d" % fd
os.close(d); os.close(f)
assert os.write(e, b"back") == 4 and c.recv(10) == b"back"
c.sendall(b"12345")
while True:
    n = array.array("i", [0]); fcntl.ioctl(e, termios.FIONREAD, n)
    if n[0]: break
assert n[0] == 5 and os.read(e, 9) == b"12345"
assert os.fstat(e).st_mode & 0o170000 == 0o140000
assert os.isatty(e) is False
s = socket.socket(fileno=e)
s.setblocking(False)
try: s.recv(1); raise SystemExit("not EAGAIN")
except BlockingIOError: pass
s.setblocking(True)
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
s.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 3)  # the shadow's
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == 3
path = "/tmp/rsp-test-%d" % os.getpid()
data = os.urandom(300000)
with open(path, "wb") as out: out.write(data)
with open(path, "rb") as inp:
    os.unlink(path)
    t = threading.Thread(target=lambda: [s.sendall(b"<"), s.sendfile(inp), s.sendall(b">")])
    t.start()
    got = b""
    while len(got) < len(data) + 2: got += c.recv(65536)
    t.join()
    assert got == b"<" + data + b">"
n = c.sendmsg([b"ab", b"cd"]); assert n == 4
bufs = [bytearray(1), bytearray(9)]
assert s.recvmsg_into(bufs)[0] == 4 and bufs[0] + bufs[1][:3] == b"abcd"
c.settimeout(0.2)
try: c.recv(1); raise SystemExit("no timeout")
except socket.timeout: pass
# fork: the parent's connection is not the child's to end.
pid = os.fork()
if not pid:
    c.close(); s.close(); ls.close(); os._exit(0)
os.waitpid(pid, 0)
c.sendall(b"alive"); assert s.recv(9) == b"alive"
c.shutdown(socket.SHUT_WR); assert s.recv(1) == b""
s.sendall(b"end"); s.close()
assert c.recv(9) == b"end" and c.recv(1) == b""
c.close()
# An address that nobody has, and one that nobody serves.
try: socket.create_server(("192.0.2.1", 0)); raise SystemExit("bound")
except OSError: pass
u = socket.socket(); ls.close()
try: u.connect((host, port)); raise SystemExit("connected")
except ConnectionRefusedError: pass
# Written and never closed.
ls = socket.create_server((host, port))
pid = os.fork()
if not pid:
    c = socket.socket(); c.connect((host, port)); c.sendall(b"last words"); sys.exit(0)
s, _ = ls.accept()
assert s.recv(10, socket.MSG_WAITALL) == b"last words"
os.waitpid(pid, 0)
print("ok")
"""


def test_calls(place):
    """What programs do with sockets, in one process."""
    out = place.server.run([PYTHON, "-c", CALLS, free_port(), place.host], [*place.options, "--sockets"])
    assert out.endswith("ok\n"), out


def test_fork_safe_plain(home):
    """RDMAV_FORK_SAFE adds nothing to what a plain client gets."""
    port = free_port()
    code = f"import socket; s = socket.create_server(('127.0.0.1', {port})).accept()[0]; s.sendall(b'hello')"
    server = Proc(rig.Side(home), [PYTHON, "-c", code], ["--sockets"], {"RDMAV_FORK_SAFE": "1"})
    try:
        server.wait_listening(port)
        code = f"import socket; s = socket.create_connection(('127.0.0.1', {port})); print(s.recv(9), s.recv(9))"
        out = subprocess.run([*home, PYTHON, "-c", code], stdout=subprocess.PIPE, text=True, check=True, timeout=20)
        assert out.stdout == "b'hello' b''\n"
        server.done(10)
    finally:
        server.kill()


def as_user(cmd):
    """PostgreSQL refuses to be root."""
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *cmd] if os.geteuid() == 0 else cmd


@pytest.fixture(scope="module")
def database():
    """The programs of PostgreSQL, and a database of nobody's."""
    import glob
    import tempfile
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/postgres"))
    if not found:
        pytest.skip("not installed: postgresql")
    need("pgbench", "setpriv")
    where = os.path.dirname(found[-1])
    with tempfile.TemporaryDirectory(prefix="softhca-pg-") as top:
        if os.geteuid() == 0:
            shutil.chown(top, "postgres")
        data = f"{top}/data"
        subprocess.run(as_user([f"{where}/initdb", "-D", data, "-U", "me", "-A", "trust", "--no-sync"]), check=True,
                       stdout=subprocess.DEVNULL, cwd="/")
        with open(f"{data}/pg_hba.conf", "a") as f:
            f.write("host all all 10.0.0.0/8 trust\n")
        yield where, data


def test_postgres(place, staged, database):
    """A server that forks for each connection."""
    where, data = database
    port, env = free_port(), {"RDMAV_FORK_SAFE": "1"}
    tool = f"{staged}/bin/softhca"
    server = Proc(rig.Side([*place.server.prefix, *as_user([])], tool),
                  [f"{where}/postgres", "-D", data, "-p", port, "-h", place.host, "-k", "", "-F"],
                  [*place.options, "--sockets"], env)
    try:
        server.wait_for("ready to accept connections")
        client = rig.Side([*place.client.prefix, *as_user([])], tool)
        to = ["-h", place.host, "-p", port, "-U", "me", "postgres"]
        options = [*place.options, "--sockets"]
        before = tcp_bytes(place.client)
        out = client.run(["pgbench", "-i", "-q", "-s", "1", *to], options, env=env)
        assert "done" in out, out
        out = client.run(["pgbench", "-c", "4", "-t", "50", "-C", *to], options, env=env)
        assert "200/200" in out, out
        out = client.run(["pgbench", "-c", "4", "-t", "100", *to], options, env=env)
        assert "400/400" in out, out
        assert "failed transactions: 0 " in out, out
        who = "SELECT client_addr = inet '%s' FROM pg_stat_activity WHERE pid = pg_backend_pid()" % (
            "10.91.0.1" if place.name == "netns" else "127.0.0.1")
        assert client.run(["psql", "-At", "-c", who, *to], options, env=env) == "t\n"
        if place.name == "netns":
            assert tcp_bytes(place.client) - before < 100
    finally:
        server.kill(signal.SIGINT)
        try:
            server.wait(20)
        finally:
            server.kill()


def test_nginx(place, tmp_path):
    """A server whose workers accept from a listener of their parent."""
    need("nginx", "curl")
    port = free_port()
    os.chmod(tmp_path, 0o755)
    (tmp_path / "file").write_bytes(os.urandom(3 << 20))
    conf = tmp_path / "nginx.conf"
    conf.write_text(f"""daemon off; worker_processes 3; pid {tmp_path}/pid; error_log stderr;
{"user root;" if os.geteuid() == 0 else ""}
events {{ worker_connections 64; }}
http {{ access_log off; sendfile on;
 {" ".join(f"{k}_temp_path {tmp_path}/{k};" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))}
 server {{ listen {place.host}:{port}; root {tmp_path}; }} }}
""")
    server = listening(place, ["nginx", "-c", conf, "-p", tmp_path, "-e", "stderr"], port)
    try:
        url = f"http://{place.host}:{port}/file"
        # A client that waits for RDMA until it gives up is not served in time.
        for _ in range(8):
            run_client(place, server, ["curl", "-sSf", "-o", tmp_path / "got", url, url, "-o", tmp_path / "again"],
                       ["--sockets"], env={"RS_CONNECT_TIMEOUT": "60000"})
            assert digest(tmp_path / "got") == digest(tmp_path / "again") == digest(tmp_path / "file")
        assert server.output().count("a child of fork() accepts connections there") == 1, server.describe()
    finally:
        server.kill(signal.SIGTERM)
        server.kill()


SOCKETS = r"""
import ctypes, errno, os, select, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
SIGSET = ctypes.c_ulong * 16

def pair():
    ls = socket.create_server(("127.0.0.1", 0))
    got = []
    t = threading.Thread(target=lambda: got.append(socket.create_connection(ls.getsockname())))
    t.start()
    s, _ = ls.accept()
    t.join()
    return got[0], s

def alive(c, s):
    c.sendall(b"still"); assert s.recv(10) == b"still"

def by_tcp(ls):
    # Connections of the kernel's to that listener.
    rows = [line.split() for line in open("/proc/self/net/tcp")][1:]
    return [r for r in rows if r[1].endswith(":%04X" % ls.getsockname()[1]) and r[3] == "01"]

def case_worker():
    # A server that listens before it forks.
    ls = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if not pid:
        s, _ = ls.accept()
        s.sendall(s.recv(10))
        os._exit(0)
    c = socket.create_connection(ls.getsockname())
    c.sendall(b"hello"); assert c.recv(10) == b"hello"
    assert os.waitpid(pid, 0)[1] == 0

def case_inherited():
    # The same, by an epoll instance that was there before.
    ls = socket.create_server(("127.0.0.1", 0))
    quiet, _ = pair()
    ep = select.epoll()
    ep.register(ls, select.EPOLLIN); ep.register(quiet, select.EPOLLIN)
    assert ep.poll(0) == []
    pid = os.fork()
    if not pid:
        assert ep.poll(30) == [(ls.fileno(), select.EPOLLIN)]
        s, _ = ls.accept()
        s.sendall(s.recv(10))
        os._exit(0)
    c = socket.create_connection(ls.getsockname())
    c.sendall(b"hello"); assert c.recv(10) == b"hello"
    assert os.waitpid(pid, 0)[1] == 0

def case_inherited_more():
    # A child's own connection, in an instance that was there before, of which
    # another thread takes what would have woken who waits there.
    ls = socket.create_server(("127.0.0.1", 0))
    ep = select.epoll()
    ep.register(ls, select.EPOLLIN)
    assert ep.poll(0) == []
    pid = os.fork()
    if not pid:
        signal.alarm(40)
        c, s = pair()
        ep.register(s, select.EPOLLIN)
        for _ in range(5):
            t = threading.Thread(target=s.recv, args=(4,))
            t.start()
            in_syscall(t.native_id)
            u = threading.Thread(target=lambda: (in_syscall(os.getpid()), c.sendall(b"12345678")))
            u.start()
            assert ep.poll(10) == [(s.fileno(), select.EPOLLIN)]
            t.join(); u.join()
            assert s.recv(4) == b"5678"
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0

def served(serve):
    # A server that forks for a connection, and its client, which gets back what it sends.
    ls = socket.create_server(("127.0.0.1", 0))
    client = os.fork()
    if not client:
        c = socket.create_connection(ls.getsockname())
        data = os.urandom(1000000)
        t = threading.Thread(target=lambda: (c.sendall(data), c.shutdown(socket.SHUT_WR)))
        t.start()
        got = b""
        while part := c.recv(1 << 16): got += part
        t.join()
        os._exit(got != data)
    s, peer = ls.accept()
    assert not by_tcp(ls)
    child = serve(s, peer, ls.getsockname())
    s.close()
    # Another connection meanwhile, which is the parent's.
    a, b = pair()
    for pid in (child, client): assert os.waitpid(pid, 0)[1] == 0
    alive(a, b)

def case_forking():
    def serve(s, peer, name):
        pid = os.fork()
        if pid: return pid
        assert s.getpeername() == peer and s.getsockname() == name
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        d = s.dup(); s.close()
        ep = select.epoll(); ep.register(d, select.EPOLLIN)
        while True:
            assert ep.poll(30) == [(d.fileno(), select.EPOLLIN)] or True
            part = d.recv(1 << 16)
            if not part: break
            d.sendall(part)
        os._exit(0)
    served(serve)

def case_orphan():
    # What child and parent have closed is over, though the peer has not closed.
    ls = socket.create_server(("127.0.0.1", 0))
    r, w = os.pipe()
    client = os.fork()
    if not client:
        os.close(w)
        c = socket.create_connection(ls.getsockname())
        assert c.recv(9) == b"bye" and c.recv(9) == b""
        os.read(r, 1)
        os._exit(0)
    count = lambda: len(os.listdir("/proc/self/fd"))
    s, _ = ls.accept()
    pid = os.fork()
    if not pid:
        s.sendall(b"bye")
        os._exit(0)
    with_it = count()
    s.close()
    end = time.monotonic() + 20
    # Both ends go, and the rsocket's two; a thread that comes up to close it has two of its own.
    while count() > with_it - 2:
        assert time.monotonic() < end, (with_it, count())
        time.sleep(0.01)
    os.close(w)
    for child in (pid, client): assert os.waitpid(child, 0)[1] == 0

def case_last_words():
    # What the parent wrote to a connection that a child shared is there after exit().
    r, w = os.pipe()
    server = os.fork()
    if not server:
        ls = socket.create_server(("127.0.0.1", 0))
        os.write(w, b"%d\n" % ls.getsockname()[1])
        s, _ = ls.accept()
        pid = os.fork()
        if not pid: os._exit(0)
        os.waitpid(pid, 0)
        s.setblocking(False)
        n = 0
        try:
            while True: n += s.send(bytes(10000))
        except BlockingIOError: pass
        s.detach()
        os.write(w, b"%d\n" % n)
        sys.exit(0)
    lines = os.fdopen(r)
    c = socket.create_connection(("127.0.0.1", int(lines.readline())))
    n = int(lines.readline())
    assert n > 100000
    while n:
        part = len(c.recv(65536))
        assert part, n
        n -= part
    assert c.recv(1) == b""
    assert os.waitpid(server, 0)[1] == 0

def case_answered_late():
    # A peer that has gone does not read the answer, but what it sent is there.
    ls = socket.create_server(("127.0.0.1", 0))
    r, w = os.pipe()
    client = os.fork()
    if not client:
        c = socket.create_connection(ls.getsockname())
        c.setblocking(False)
        n = 0
        while select.select([], [c], [], 0.3)[1]: n += c.send(bytes(10000))
        c.close()
        os.write(w, b"%d\n" % n)
        sys.exit(0)
    s, _ = ls.accept()
    child = os.fork()
    if not child:
        n = int(os.fdopen(r).readline())
        try:
            while True: s.sendall(b"x")
        except OSError as e: assert e.errno == errno.EPIPE, e
        while n:
            part = len(s.recv(65536))
            assert part, n
            n -= part
        assert s.recv(1) == b""
        os._exit(0)
    s.close()
    for pid in (child, client): assert os.waitpid(pid, 0)[1] == 0

def case_given_up():
    # A listener that a child could have served leaves nothing when it is closed.
    ls = socket.create_server(("127.0.0.1", 0))
    count = lambda: len(os.listdir("/proc/self/fd"))
    pid = os.fork()
    if not pid: os._exit(0)
    os.waitpid(pid, 0)
    with_it = count()
    ls.close()
    end = time.monotonic() + 20
    while count() > with_it - 3:  # the socket, the rsocket's, and what the child had
        assert time.monotonic() < end, (with_it, count())
        time.sleep(0.01)

def case_many_relayed():
    # More connections than poll() takes descriptors.
    import resource
    socks = [pair() for _ in range(20)]
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        os.read(r, 1)
        for i in range(3):
            for c, s in socks: alive(c, s)
        os._exit(0)
    was = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (30, was[1]))
    os.write(w, b"x")
    assert os.waitpid(pid, 0)[1] == 0

def case_lingering():
    # A connection with SO_LINGER, whose peer is gone, does not keep others waiting.
    ls = socket.create_server(("127.0.0.1", 0))
    client = os.fork()
    if not client:
        c = socket.create_connection(ls.getsockname())
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    s, _ = ls.accept()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 60))
    assert os.WIFSTOPPED(os.waitpid(client, os.WUNTRACED)[1])
    a, b = pair()
    first = os.fork()
    if not first:
        s.send(b"x")
        os._exit(0)
    s.close()
    assert os.waitpid(first, 0)[1] == 0
    second = os.fork()
    if not second:
        signal.alarm(30)
        for _ in range(200): alive(a, b)
        os._exit(0)
    status = os.waitpid(second, 0)[1]
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    assert status == 0

def case_fork_race():
    # A thread forks while another one begins to use a connection.
    going = True
    def forker():
        while going:
            pid = os.fork()
            if not pid: os._exit(0)
            os.waitpid(pid, 0)
    t = threading.Thread(target=forker)
    t.start()
    try:
        for _ in range(100):
            c, s = pair()
            alive(c, s); alive(s, c)
            c.close(); s.close()
    finally:
        going = False
        t.join()

def case_inetd():
    # The child becomes another program, with the connection as its input and output.
    def serve(s, peer, name):
        pid = os.fork()
        if pid: return pid
        os.dup2(s.fileno(), 0); os.dup2(s.fileno(), 1)
        os.execvpe("cat", ["cat"], {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    served(serve)

def case_vfork():
    # The child closes and moves descriptors, in memory that is its parent's.
    c, s = pair()
    assert subprocess._USE_VFORK
    r, w = os.pipe()
    os.dup2(r, 0)
    for _ in range(3):
        subprocess.run(["true"], check=True, stdin=c)
        alive(c, s)
        os.write(w, b"in"); assert os.read(0, 9) == b"in"

def case_masks():
    # A signal that is pending ends the wait with a mask that lets it come.
    ls = socket.create_server(("127.0.0.1", 0))
    ran = []
    signal.signal(signal.SIGUSR1, lambda *_: ran.append(1))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    none, ts = SIGSET(), struct.pack("=qq", 30, 0)
    fds = ctypes.create_string_buffer(struct.pack("=ihh", ls.fileno(), select.POLLIN, 0))
    ep = select.epoll()
    ep.register(ls, select.EPOLLIN)
    events = ctypes.create_string_buffer(12)
    bits = ctypes.create_string_buffer(128)
    for i, wait in enumerate((
            lambda: libc.ppoll(fds, ctypes.c_ulong(1), ts, none),
            lambda: libc.epoll_pwait(ep.fileno(), events, 1, 30000, none),
            lambda: libc.pselect(ls.fileno() + 1, bits, None, None, ts, none))):
        bits[ls.fileno() // 8] = 1 << ls.fileno() % 8
        os.kill(os.getpid(), signal.SIGUSR1)
        start = time.monotonic()
        assert wait() == -1 and ctypes.get_errno() == errno.EINTR, i
        assert time.monotonic() - start < 10 and len(ran) == i + 1, (i, ran)

def case_closed():
    # What closes a descriptor without close().
    libc.fdopen.restype = ctypes.c_void_p
    for how in (lambda fd: libc.fclose(ctypes.c_void_p(libc.fdopen(fd, b"r+"))),
                lambda fd: libc.close_range(fd, fd, 0)):
        fd = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
        assert how(fd) == 0
        r, w = os.pipe()
        assert fd in (r, w)
        os.write(w, b"pipe"); assert os.read(r, 9) == b"pipe"
        os.close(r); os.close(w)

def case_interrupted():
    # connect() ended by a signal goes on, and the descriptor blocks.
    ls = socket.create_server(("127.0.0.1", 0))
    signal.signal(signal.SIGALRM, lambda *_: None)
    fd = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    to = struct.pack("=H", socket.AF_INET) + ls.getsockname()[1].to_bytes(2, "big") + b"\x7f\0\0\1" + bytes(8)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    assert libc.connect(fd, to, 16) == -1 and ctypes.get_errno() == errno.EINTR
    got = []
    def serve():
        s, _ = ls.accept()
        time.sleep(0.5)
        s.sendall(b"late")
        got.append(s)
    t = threading.Thread(target=serve)
    t.start()
    p = select.poll(); p.register(fd, select.POLLOUT)
    assert p.poll(10000) == [(fd, select.POLLOUT)]
    buf = ctypes.create_string_buffer(10)
    assert libc.read(fd, buf, ctypes.c_size_t(10)) == 4 and buf.value == b"late", os.strerror(ctypes.get_errno())
    t.join()

def case_fair():
    c, s = pair()
    r, w = os.pipe(); os.write(w, b"x")
    ep = select.epoll()
    ep.register(c, select.EPOLLOUT); ep.register(r, select.EPOLLIN)
    seen = [ep.poll(10, 1)[0][0] for _ in range(40)]
    assert seen.count(r) >= 10 and seen.count(c.fileno()) >= 10, seen

def case_oneshot():
    c, s = pair()
    t = threading.Timer(0.2, s.sendall, (b"x",))
    t.start()
    ep = select.epoll()
    ep.register(c, select.EPOLLIN | select.EPOLLONESHOT)
    assert ep.poll(10) == [(c.fileno(), select.EPOLLIN)]
    assert c.recv(9) == b"x"
    s.close()
    assert ep.poll(0.5) == [] and ep.poll(0) == []
    ep.modify(c, select.EPOLLIN | select.EPOLLONESHOT)
    got = ep.poll(10)
    assert got and got[0][1] & select.EPOLLIN, got

def case_connecting():
    # One connection that succeeds behind many that nobody accepts yet.
    idle = socket.create_server(("127.0.0.1", 0), backlog=200)
    ls = socket.create_server(("127.0.0.1", 0))
    ep, socks = select.epoll(), []
    for at in [idle] * 140 + [ls]:
        c = socket.socket(); c.setblocking(False)
        assert c.connect_ex(at.getsockname()) == errno.EINPROGRESS
        ep.register(c, select.EPOLLOUT)
        socks.append(c)
    t = threading.Thread(target=ls.accept)
    t.start()
    start = time.monotonic()
    while c.fileno() not in [fd for fd, _ in ep.poll(15, 1000)]:
        assert time.monotonic() - start < 15
    t.join()

def case_epoll_close():
    # Of an instance that another thread waits for.
    for _ in range(5):
        ls = socket.create_server(("127.0.0.1", 0))
        ep = libc.epoll_create1(0)
        libc.epoll_ctl(ep, 1, ls.fileno(), struct.pack("=IQ", 1, 7))
        out = []
        buf = ctypes.create_string_buffer(120)
        t = threading.Thread(target=lambda: out.append(libc.epoll_wait(ep, buf, 10, 200)))
        t.start()
        time.sleep(0.05)
        libc.close(ep)
        t.join(10)
        assert out == [0] or out == [-1], out

def case_datagrams():
    # To those who know nothing of rsockets, unless they are asked for.
    plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # with SOCK_CLOEXEC
    plain.bind(("127.0.0.1", 0)); plain.settimeout(10)
    fd = libc.socket(socket.AF_INET, socket.SOCK_DGRAM, 0)
    u = socket.socket(fileno=fd)
    u.sendto(b"as it is", plain.getsockname())
    data, at = plain.recvfrom(100)
    assert data == b"as it is", data
    plain.sendto(b"answer", at); u.settimeout(10); assert u.recv(100) == b"answer"

def handler(signum, restart):
    # A handler that counts, with SA_RESTART or without.
    ran = []
    signal.signal(signum, lambda *_: ran.append(1))
    signal.siginterrupt(signum, not restart)
    return ran

def in_syscall(tid):
    # Asleep, and not on its way there: in a call that does not come to an end.
    end, name = time.monotonic() + 20, f"/proc/self/task/{tid}/stat"
    seen = 0
    while seen < 20:
        assert time.monotonic() < end
        seen = seen + 1 if open(name).read().rpartition(")")[2].split()[0] == "S" else 0
        time.sleep(0.005)

def case_restart():
    # A handler with SA_RESTART runs, and what blocks goes on; one without ends it.
    ls = socket.create_server(("127.0.0.1", 0))
    c, s = pair()
    buf = ctypes.create_string_buffer(100)
    main = threading.main_thread().native_id
    full = bytes(1 << 24)
    ran = {sig: handler(sig, sig == signal.SIGUSR1) for sig in (signal.SIGUSR1, signal.SIGUSR2)}
    trusted = time.monotonic() + 0.01  # what was known of the handlers before
    while time.monotonic() < trusted: pass
    def release_recv(): c.sendall(b"data")
    def release_accept(): socks.append(socket.create_connection(ls.getsockname()))
    def release_send():
        n = 0
        while n < len(full): n += len(c.recv(1 << 20))
    socks = []
    for call, release in ((lambda: libc.recv(s.fileno(), buf, ctypes.c_size_t(4), 0), release_recv),
                          (lambda: libc.read(s.fileno(), buf, ctypes.c_size_t(4)), release_recv),
                          (lambda: libc.send(s.fileno(), full, ctypes.c_size_t(len(full)), 0), release_send),
                          (lambda: libc.accept(ls.fileno(), None, None), release_accept)):
        for sig in (signal.SIGUSR1, signal.SIGUSR2):
            before = len(ran[sig])
            def disturb():
                in_syscall(main)
                signal.pthread_kill(threading.main_thread().ident, sig)
                if sig == signal.SIGUSR1:
                    in_syscall(main)
                    release()
            t = threading.Thread(target=disturb)
            t.start()
            ret, err = call(), ctypes.get_errno()
            t.join()
            assert len(ran[sig]) == before + 1
            if sig == signal.SIGUSR1: assert ret > 0, (ret, os.strerror(err))
            elif ret > 0 and release is release_send: [c.recv(1 << 20) for _ in range(1)]
            else: assert ret == -1 and err == errno.EINTR, (ret, os.strerror(err))

def case_restart_blocked():
    # A signal that waits, blocked, does not keep who sleeps awake, and no
    # timeout is restarted.
    c, s = pair()
    ran = handler(signal.SIGUSR2, False)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)
    main = threading.main_thread().native_id
    t = threading.Thread(target=lambda: (in_syscall(main), c.sendall(b"data")))
    t.start()
    assert os.read(s.fileno(), 9) == b"data"
    t.join()
    assert not ran
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 20, 0))
    handler(signal.SIGUSR1, True)
    buf = ctypes.create_string_buffer(9)
    t = threading.Thread(target=lambda: (in_syscall(main), signal.pthread_kill(threading.main_thread().ident,
                                                                              signal.SIGUSR1)))
    t.start()
    assert libc.recv(s.fileno(), buf, ctypes.c_size_t(4), 0) == -1 and ctypes.get_errno() == errno.EINTR
    t.join()

def case_restart_gone():
    # A connect() that fell back to TCP leaves later calls as they were.
    c, s = pair()
    ran = handler(signal.SIGUSR1, True)
    nobody = socket.create_server(("127.0.0.1", 0))
    at = nobody.getsockname()
    nobody.close()
    assert socket.socket().connect_ex(at) == errno.ECONNREFUSED
    main = threading.main_thread()
    t = threading.Thread(target=lambda: (in_syscall(main.native_id), signal.pthread_kill(main.ident, signal.SIGUSR1)))
    t.start()
    fds = ctypes.create_string_buffer(struct.pack("=ihh", s.fileno(), select.POLLIN, 0))
    assert libc.poll(fds, ctypes.c_ulong(1), 20000) == -1 and ctypes.get_errno() == errno.EINTR
    t.join()
    assert ran

def case_dontwait():
    # Who does not wait need not wait for who does.
    import array, fcntl, termios
    c, s = pair()
    def sleeper(call):
        t = threading.Thread(target=call)
        t.start()
        in_syscall(t.native_id)
        return t
    t = sleeper(lambda: s.recv(4))
    try: s.recv(1, socket.MSG_DONTWAIT); raise SystemExit("data?")
    except BlockingIOError: pass
    n = array.array("i", [7]); fcntl.ioctl(s, termios.FIONREAD, n); assert n[0] == 0
    c.sendall(b"data")
    t.join()
    t = sleeper(lambda: s.sendall(bytes(1 << 24)))
    try: s.send(b"x", socket.MSG_DONTWAIT); raise SystemExit("room?")
    except BlockingIOError: pass
    got = 0
    while got < 1 << 24: got += len(c.recv(1 << 20))
    t.join()

def case_accept_timeout():
    ls = socket.create_server(("127.0.0.1", 0))
    ls.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("=qq", 0, 200000))
    assert libc.accept(ls.fileno(), None, None) == -1 and ctypes.get_errno() == errno.EAGAIN
    idle = socket.create_server(("127.0.0.1", 0))
    c = socket.socket()
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("=qq", 0, 200000))
    assert c.connect_ex(idle.getsockname()) == errno.EINPROGRESS

def case_times():
    # What is no time is EINVAL, and what is more than there will be is for ever.
    c, s = pair()
    c.sendall(b"x")
    select.select([s], [], [])
    fd = s.fileno()
    fds = ctypes.create_string_buffer(struct.pack("=ihh", fd, select.POLLIN, 0))
    ep = select.epoll(); ep.register(s, select.EPOLLIN)
    events = ctypes.create_string_buffer(12)
    def bits():
        b = ctypes.create_string_buffer(128)
        b[fd // 8] = 1 << fd % 8
        return b
    calls = {"ppoll": lambda ts: libc.ppoll(fds, ctypes.c_ulong(1), ts, None),
             "pselect": lambda ts: libc.pselect(fd + 1, bits(), None, None, ts, None),
             "epoll_pwait2": lambda ts: libc.epoll_pwait2(ep.fileno(), events, 1, ts, None)}
    for name, call in calls.items():
        for bad in ((-1, 0), (0, -1), (0, 1000000000)):
            ctypes.set_errno(0)
            assert call(struct.pack("=qq", *bad)) == -1 and ctypes.get_errno() == errno.EINVAL, (name, bad)
        for good in ((0, 0), (0, 999999999), (2 ** 62, 0), (1 << 33, 5)):
            assert call(struct.pack("=qq", *good)) == 1, (name, good)
    for bad in ((-1, 0), (0, -1)):
        tv = ctypes.create_string_buffer(struct.pack("=qq", *bad))
        assert libc.select(fd + 1, bits(), None, None, tv) == -1 and ctypes.get_errno() == errno.EINVAL, bad
    tv = ctypes.create_string_buffer(struct.pack("=qq", 0, 3000000))
    assert libc.select(fd + 1, bits(), None, None, tv) == 1

def case_discard():
    c, s = pair()
    c.sendall(b"to be thrown away")
    libc.recv.restype = ctypes.c_ssize_t
    n = 0
    while n < 14: n += libc.recv(s.fileno(), None, ctypes.c_size_t(14 - n), socket.MSG_TRUNC)
    assert s.recv(9) == b"way"

def case_splice():
    # To and from pipes: not done, and said so, with nothing lost.
    c, s = pair()
    r, w = os.pipe()
    os.write(w, b"pipe")
    for args in ((r, s.fileno()), (s.fileno(), w)):
        try: os.splice(*args, 4); raise SystemExit("spliced")
        except OSError as e: assert e.errno == errno.EINVAL, e
    assert os.read(r, 9) == b"pipe"
    alive(c, s)

def case_self():
    # Who connects to itself before it accepts gets that connection.
    ls = socket.create_server(("127.0.0.1", 0))
    for i in range(2):
        c = socket.create_connection(ls.getsockname())
        s, at = ls.accept()
        assert at == c.getsockname(), (at, c.getsockname())
        c.sendall(b"me%d" % i); assert s.recv(9) == b"me%d" % i

def case_numbers():
    # Descriptors that only the library has take no numbers from the program.
    ls = socket.create_server(("127.0.0.1", 0))
    socks = [s for _ in range(40) for s in pair()]
    free = os.dup(0)
    assert free < 3 + 80 + 8, (free, sorted(map(int, os.listdir("/proc/self/fd"))))
    fds = [s.fileno() for s in socks]
    for s in socks: s.close()
    # The lowest that is free, though what was closed may not be over yet.
    assert ls.dup().fileno() == min(fds)

def case_poll_limit():
    # poll() takes as many as RLIMIT_NOFILE.
    import resource
    c, s = pair()
    was = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, was[1]))
    for n in (45, 100):
        one = struct.pack("=ihh", s.fileno(), select.POLLIN, 0)
        fds = ctypes.create_string_buffer(one * n, 8 * n)
        assert libc.poll(fds, ctypes.c_ulong(n), 50) == 0, (n, os.strerror(ctypes.get_errno()))
        c.sendall(b"x")
        assert libc.poll(fds, ctypes.c_ulong(n), 10000) == n
        assert s.recv(9) == b"x"

def case_touched():
    # A connection that was used is the parent's, and a child that wants it is told.
    c, s = pair()
    alive(c, s)
    r, w = os.pipe()
    pid = os.fork()
    if not pid:
        os.dup2(w, 2)
        try: s.send(b"no")
        except OSError as e: os._exit(e.errno != errno.EIO)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert b"its parent used before" in os.read(r, 1000)
    alive(c, s)

def case_emfile():
    # Who cannot be accepted for want of descriptors waits.
    import resource
    ls = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if not pid:
        c = socket.create_connection(ls.getsockname())
        c.sendall(b"patience"); assert c.recv(9) == b"rewarded"
        os._exit(0)
    select.select([ls], [], [])
    was = resource.getrlimit(resource.RLIMIT_NOFILE)
    for spare in range(4):
        fill = [os.dup(0)]
        while fill[-1] < 100: fill.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (101, was[1]))
        for fd in fill[-1:-1 - spare:-1]: os.close(fd)
        try: s, _ = ls.accept()
        except OSError as e: assert e.errno == errno.EMFILE, e
        else: break
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, was)
            for fd in fill[:len(fill) - spare]: os.close(fd)
        assert select.select([ls], [], [], 10)[0] == [ls]
    assert spare and not by_tcp(ls)
    assert s.recv(8, socket.MSG_WAITALL) == b"patience"
    s.sendall(b"rewarded")
    assert os.waitpid(pid, 0)[1] == 0

globals()["case_" + sys.argv[1]]()
os._exit(0)
"""


@pytest.mark.parametrize("case", re.findall(r"^def case_(\w+)", SOCKETS, re.M))
def test_sockets(home, case):
    """Where librspreload was not what the kernel is."""
    env = {"worker": {"RS_CONNECT_TIMEOUT": "60000"}, "inherited": {"RS_CONNECT_TIMEOUT": "60000"},
           "self": {"RS_CONNECT_TIMEOUT": "500"}, "emfile": {"RS_CONNECT_TIMEOUT": "30000"},
           "connecting": {"RS_CONNECT_TIMEOUT": "30000"}}
    rig.Side(home).run([PYTHON, "-c", SOCKETS, case], ["--sockets"], env=env.get(case))
