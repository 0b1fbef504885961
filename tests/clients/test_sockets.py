"""Ordinary TCP programs under "softhca run --sockets": their connections are
rsockets where the other end does so, too, and TCP's where it does not."""
import contextlib
import os
import re
import shutil
import signal
import subprocess

import pytest

import rig
from rig import Proc, free_port
from test_rsocket import PYTHON, digest, listening, need, run_client, tcp_bytes

HERE = os.path.dirname(os.path.abspath(__file__))
ECHO, CALLS, SITUATIONS = (os.path.join(HERE, f"socket_{name}.py") for name in ("echo", "calls", "cases"))
PLACES = [*rig.PLACES, "iwarp", "iwarp_netns"]
# A busy machine is no reason to turn to TCP.
PATIENT = {"RS_CONNECT_TIMEOUT": "30000"}


def in_places(*names):
    return rig.choose(lambda place: place in names, place=PLACES)


def serving(place, cmd, port, env=None):
    """A server with --sockets, which also says by what it is reached."""
    return listening(place, cmd, port, ["--sockets", "--explain"], env)


@contextlib.contextmanager
def by_rdma(place, server=None, most=20):
    """No connection in this block is TCP's: the kernel has so few segments of it,
    and of iWARP, which is TCP, the server says it, or what is put into a list."""
    before, said = tcp_bytes(place.client), []
    yield said
    if place.name == "netns":
        assert tcp_bytes(place.client) - before < most
    said = "".join(said) if said else server.output()
    way = "iWARP" if place.name in rig.IWARP_PLACES else "RDMA"
    assert f"goes by {way}\n" in said and "goes by TCP" not in said, said


def iperf3(place, host, options):
    need("iperf3")
    port = free_port()
    server = serving(place, ["iperf3", "-s", "-1", "-p", port], port)
    try:
        with by_rdma(place, server):
            out = run_client(place, server, ["iperf3", "-c", host, "-p", port, *options.split()], ["--sockets"], PATIENT)
        assert "iperf Done" in out, out
        carried = max(int(float(n) * {"K": 1e3, "M": 1e6, "G": 1e9}[u])
                      for n, u in re.findall(r"([\d.]+) ([KMG])Bytes .*receiver", out))
        assert carried > 1e6, out
        server.wait(10)
    finally:
        server.kill()


@rig.over_places(places=PLACES, options=["-t 1", "-t 1 -R", "-n 100M -P 3", "-t 1 --bidir", "-n 20M -l 1000"])
def test_iperf3(place, options):
    iperf3(place, place.host, options)


@pytest.mark.parametrize("ends, options, way", [
    ("both", "", "RDMA"), ("client", "", r"TCP \(RDMA: Connection refused\)"),
    ("server", "", r"TCP \(RDMA: the peer did not ask for it\)"),
    ("both", "--iwarp", "iWARP"), ("client", "--iwarp", r"TCP \(RDMA: Connection refused\)"),
    ("server", "--iwarp", r"TCP \(RDMA: the peer did not ask for it\)"),
    ("both", "--iwarp=both", "RDMA"), ("both", "--iwarp=first", "iWARP")])
def test_explain_says_the_way(placements, ends, options, way):
    need("curl")
    place, port = placements("local"), free_port()
    options = ["--sockets", "--explain", *options.split()]
    server = Proc(place.server, [PYTHON, "-m", "http.server", port, "-d", HERE], options, alone=ends == "client")
    try:
        server.wait_listening(port)
        client = Proc(place.client, ["curl", "-sSf", "-o", "/dev/null", f"http://{place.host}:{port}/"], options, PATIENT,
                      alone=ends == "server")
        client.done()
        said = (server if ends == "server" else client).output()
        where = "from" if ends == "server" else "to"
        assert re.search(rf"--sockets: the connection {where} \S+ port \d+ goes by {way}$", said, re.M), said
    finally:
        server.kill()


def derived(port):
    """Where a socket of this port is an rsocket by iWARP (docs/IWARP.md)."""
    return port + 512 if port < 512 else port - 511 if port < 1024 else 61000 + port % 4000


PLAIN = """
import socket
ls = socket.create_server(('', {port}))
while True:
    s, _ = ls.accept()
    s.sendall(b'220 what it is\\r\\n')
    print('then', s.recv(1000), flush=True)
    s.close()
"""


@contextlib.contextmanager
def plain_server(place, port):
    """Of TCP alone: it greets, and prints what it is told."""
    server = Proc(place.server, [PYTHON, "-c", PLAIN.format(port=port)], alone=True)
    try:
        server.wait_listening(port)
        yield server
    finally:
        server.kill()


ASK = """
import socket
s = socket.create_connection(('{host}', {port}))
print(s.recv(99), s.getpeername()[1])
s.sendall(b'bye')
print(s.recv(9))
"""


def ask(place, port):
    """What a client is told that waits for the server to begin, and how it got there."""
    return place.client.run([PYTHON, "-c", ASK.format(host=place.host, port=port)],
                            [*place.options, "--sockets", "--explain"])


SILENT = "import socket, time; ls = socket.create_server(('', {port})); s = ls.accept()[0]; print(s.recv(99)); time.sleep(60)"


@pytest.mark.parametrize("other, reason", [
    (None, "Connection refused"), ("greets", "Protocol error"), ("is silent", "Connection timed out")])
def test_iwarp_foreign(placements, other, reason):
    """Nobody but a server of TCP is there; or somebody else's has the derived port."""
    place, port = placements("iwarp_netns"), free_port()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(plain_server(place, port))
        if other:
            code = (PLAIN if other == "greets" else SILENT).format(port=derived(port))
            foreign = Proc(place.server, [PYTHON, "-c", code], alone=True)
            stack.callback(foreign.kill)
            foreign.wait_listening(derived(port))
        out = ask(place, port)
        assert f"port {port} goes by TCP (RDMA: {reason})" in out, out
        assert f"b'220 what it is\\r\\n' {port}" in out, out
        # It has seen one connection, and no byte that is not the program's.
        server.wait_for("^then b'bye'$")
        assert server.output().count("then") == 1, server.describe()


def test_iwarp_silent_again(placements):
    """Who has been silent gets less time: the second time what would be known half
    a second later is not waited for."""
    place, port = placements("iwarp_netns"), free_port()
    code = ("import socket, time; ls = socket.create_server(('', {port})); a = ls.accept(); b = ls.accept(); "
            "time.sleep(.6); b[0].sendall(b'220 who is there?' * 9); time.sleep(60)")
    foreign = Proc(place.server, [PYTHON, "-c", code.format(port=derived(port))], alone=True)
    try:
        foreign.wait_listening(derived(port))
        with plain_server(place, port):
            code = ASK.format(host=place.host, port=port)
            out = place.client.run([PYTHON, "-c", code + code], [*place.options, "--sockets", "--explain"])
        assert out.count("goes by TCP (RDMA: Connection timed out)") == 2, out
        assert out.count("220 what it is") == 2, out
    finally:
        foreign.kill()


def test_iwarp_port_taken(placements):
    """Where a server cannot have the derived port, it is reached by TCP."""
    place, port = placements("iwarp_netns"), free_port()
    server = None
    with plain_server(place, derived(port)):
        try:
            server = serving(place, [PYTHON, "-c", PLAIN.format(port=port)], port)
            assert re.search(rf"what connects to \S+ port {port} goes by TCP \(RDMA: Address already in use\)",
                             server.output()), server.describe()
            assert f"cannot listen on TCP 0.0.0.0 port {derived(port)}" in server.output(), server.describe()
            out = ask(place, port)
            assert "goes by TCP" in out and "220 what it is" in out, out
            server.wait_for("^then b'bye'$")
        finally:
            if server:
                server.kill()


def test_iwarp_same_derived_port(placements):
    """Two ports lead to the same: a client never gets to the other's server."""
    place, port = placements("iwarp_netns"), 20000 + free_port() % 4000
    assert derived(port) == derived(port + 4000)
    first = serving(place, [PYTHON, "-c", PLAIN.format(port=port).replace("what it is", "first")], port)
    try:
        with plain_server(place, port + 4000):
            out = ask(place, port + 4000)
            assert "goes by TCP" in out and "220 what it is" in out, out
        out = ask(place, port)
        assert "goes by iWARP" in out and "220 first" in out, out
        assert first.output().count("goes by") == 1, first.describe()
    finally:
        first.kill()


def test_iwarp_rsocket_at_derived_port(placements):
    """A program of rsockets there is another service."""
    need("rstream")
    place, port = placements("iwarp_netns"), free_port()
    cmd = ["rstream", "-p", derived(port), "-S", 1000, "-C", 10, "-I", 1]
    rsocket = Proc(place.server, [*cmd, "-b", place.host], place.options)
    try:
        rsocket.wait_listening(derived(port))
        with plain_server(place, port):
            out = ask(place, port)
            assert "goes by TCP" in out and "220 what it is" in out, out
        run_client(place, rsocket, [*cmd, "-s", place.host])
        rsocket.done()
    finally:
        rsocket.kill()


@pytest.mark.parametrize("options", ["", "--iwarp"])
def test_bound_client(placements, options):
    """Both ends see the port that a client has bound."""
    place, port = placements("local"), free_port()
    code = (f"import socket; s, peer = socket.create_server(('{place.host}', {port})).accept(); "
            "s.sendall(str(peer[1]).encode()); s.recv(1)")
    options = ["--sockets", "--explain", *options.split()]
    server = Proc(place.server, [PYTHON, "-c", code], options)
    try:
        server.wait_listening(port)
        mine = free_port()
        code = (f"import socket; s = socket.socket(); s.bind(('', {mine})); "
                f"reuse = lambda: s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR); assert not reuse(); "
                f"s.connect(('{place.host}', {port})); assert not reuse(); "
                "print(s.recv(9).decode(), s.getsockname()[1], s.getpeername()[1])")
        out = place.client.run([PYTHON, "-c", code], options, env=PATIENT)
        assert "goes by TCP" not in out and f"{mine} {mine} {port}\n" in out, out
        server.done(10)
    finally:
        server.kill()


@rig.in_place("netns")
def test_iperf3_ipv6(place):
    iperf3(place, place.host6, "-n 50M")


@rig.in_place("wire")
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


@in_places("netns", "iwarp_netns")
def test_http(place, big_file, tmp_path):
    need("curl")
    port = free_port()
    server = serving(place, [PYTHON, "-m", "http.server", port, "--bind", place.host, "-d", big_file.parent], port)
    try:
        url = f"http://{place.host}:{port}"
        with by_rdma(place, server):
            for i in range(3):
                run_client(place, server, ["curl", "-sSf", "-o", tmp_path / "got", f"{url}/file"], ["--sockets"], PATIENT)
                assert digest(tmp_path / "got") == digest(big_file)
            out = place.client.run(["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", f"{url}/nothing"],
                                   [*place.options, "--sockets"], env=PATIENT)
            assert out == "404"
        # Who does not speak RDMA is served by the same server.
        out = subprocess.run([*place.client.prefix, "curl", "-sSf", f"{url}/"], stdout=subprocess.PIPE,
                             text=True, check=True, timeout=20).stdout
        assert "file" in out
    finally:
        server.kill()


@in_places("netns", "iwarp_netns")
def test_fall_back(place):
    """A server without RDMA is reached by TCP, by blocking and by non-blocking
    clients."""
    need("curl", "iperf3")
    port = free_port()
    server = Proc(place.server, [PYTHON, "-m", "http.server", port, "--bind", place.host], alone=True)
    env = {"RS_CONNECT_TIMEOUT": "500"}
    code = (f"import socket; s = socket.create_connection(('{place.host}', {port})); "
            "s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'); print(s.recv(100)[:15])")
    try:
        server.wait_listening(port)
        for cmd, want in ((["curl", "-sSf", f"http://{place.host}:{port}/"], "Directory listing"),
                          ([PYTHON, "-c", code], "HTTP/1.0 200 OK")):
            out = place.client.run(cmd, [*place.options, "--sockets"], env=env)
            assert want in out, out
    finally:
        server.kill()
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


@rig.in_place("netns")
def test_redis_ipv6(place, tmp_path):
    port, server = redis_server(place, place.host6, tmp_path)
    try:
        out = run_client(place, server, ["redis-benchmark", "-h", place.host6, "-p", port, "-n", "2000", "-c", "10",
                                         "-q", "-t", "set,get"], ["--sockets"], limit=100)
        assert len(re.findall(r"requests per second", out)) >= 2, out
    finally:
        server.kill()


@in_places("local", "iwarp_netns")
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
        rig.until(lambda: re.search(r"aof_rewrite_in_progress:0\s(.*\s)*aof_last_rewrite_time_sec:\d", subprocess.run(
            [*place.client.prefix, *map(str, cli), "info", "persistence"], stdout=subprocess.PIPE, text=True,
            check=True, timeout=20).stdout), "the child has saved", server)
        got = place.client.run([*cli, "get", "key"], [*place.options, "--sockets"])
        assert got.strip() == value
    finally:
        server.kill()


@rig.over_places(places=PLACES, mode=["lt", "et"])
def test_epoll(place, mode):
    port = free_port()
    server = serving(place, [PYTHON, ECHO, "server", port, place.host, mode], port)
    try:
        with by_rdma(place, server):
            out = run_client(place, server, [PYTHON, ECHO, "client", port, place.host], ["--sockets"], PATIENT)
        assert "ok" in out
        server.done(10)
        assert "served 10" in server.output()
    finally:
        server.kill()


@in_places(*PLACES)
def test_calls(place):
    """What programs do with sockets, in one process."""
    out = place.server.run([PYTHON, CALLS, free_port(), place.host], [*place.options, "--sockets"])
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


@in_places("netns", "iwarp_netns")
def test_postgres(place, staged, database):
    """A server that forks for each connection."""
    where, data = database
    port, env = free_port(), {"RDMAV_FORK_SAFE": "1", **PATIENT}
    tool = f"{staged}/bin/softhca"
    server = Proc(rig.Side([*place.server.prefix, *as_user([])], tool),
                  [f"{where}/postgres", "-D", data, "-p", port, "-h", place.host, "-k", "", "-F"],
                  [*place.options, "--sockets"], env)
    try:
        server.wait_for("ready to accept connections")
        client = rig.Side([*place.client.prefix, *as_user([])], tool)
        to = ["-h", place.host, "-p", port, "-U", "me", "postgres"]
        options = [*place.options, "--sockets"]
        with by_rdma(place, most=100) as said:
            out = client.run(["pgbench", "-i", "-q", "-s", "1", *to], options, env=env)
            assert "done" in out, out
            out = client.run(["pgbench", "-c", "4", "-t", "50", "-C", *to], [*options, "--explain"], env=env)
            said.append(out)
            assert "200/200" in out, out
            out = client.run(["pgbench", "-c", "4", "-t", "100", *to], options, env=env)
            assert "400/400" in out, out
            assert "failed transactions: 0 " in out, out
            who = "SELECT client_addr = inet '%s' FROM pg_stat_activity WHERE pid = pg_backend_pid()" % (
                "10.91.0.1" if "netns" in place.name else "127.0.0.1")
            assert client.run(["psql", "-At", "-c", who, *to], options, env=env) == "t\n"
    finally:
        server.kill(signal.SIGINT)
        try:
            server.wait(20)
        finally:
            server.kill()


@in_places("netns", "iwarp_netns")
def test_sshd(place, tmp_path):
    """A server that executes itself in a child for each connection: by the peer's address it decides who may enter."""
    need("sshd", "ssh", "ssh-keygen")
    if os.geteuid():
        pytest.skip("not root: sshd changes its user")
    os.makedirs("/run/sshd", exist_ok=True)
    port, peer = free_port(), "10.91.0.1"
    for name in "host", "key":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    public = (tmp_path / "key.pub").read_text()
    conf, allowed = tmp_path / "conf", tmp_path / "allowed"
    conf.write_text(f"HostKey {tmp_path}/host\nAuthorizedKeysFile {allowed}\nStrictModes no\nPidFile none\nUsePAM no\n"
                    f"PermitRootLogin yes\nListenAddress {place.host}:{port}\n")
    # Not serving(): the process that sshd puts into a sandbox may not write what --explain says at its end.
    server = listening(place, [shutil.which("sshd"), "-D", "-e", "-f", conf], port)
    cmd = ["ssh", "-F", "none", "-i", tmp_path / "key", "-p", port, "-o", "UserKnownHostsFile=/dev/null",
           "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", f"root@{place.host}",
           "echo $SSH_CONNECTION; head -c 300000 /dev/zero | tr '\\0' x"]
    try:
        for who, status in ((peer, 0), ("10.91.0.77", 255)):
            allowed.write_text(f'from="{who}" {public}')
            with by_rdma(place) as said:
                out = run_client(place, server, cmd, ["--sockets", "--explain"], PATIENT, status)
                said.append(out)
            if not status:
                assert re.search(rf"^{peer} \d+ {place.host} {port}$", out, re.M) and "x" * 300000 in out, out[:999]
        server.wait_for(f"Accepted publickey for root from {peer} port ")
        server.wait_for(rf"not from a permitted host \(host={peer}, ip={peer}")
    finally:
        server.kill()


@in_places("wire", "iwarp")
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


NODE = """
const net = require("net");
net.createServer(s => s.on("data", d => s.end(d)).on("error", () => {})).listen(%d, "0.0.0.0");
"""


def test_node(placements):
    """libuv closes by syscall(2): each client sees its end, and numbers are used again."""
    need("node")
    place, port = placements("local"), free_port()
    server = serving(place, ["node", "-e", NODE % port], port)
    echo = f"import socket\nfor i in range(20):\n s = socket.create_connection(('{place.host}', {port}))\n" \
           " s.sendall(b'hello')\n got = b''\n while part := s.recv(10): got += part\n assert got == b'hello', got\n"
    try:
        for options in (["--sockets"], [], ["--sockets"], []):
            client = Proc(place.client, [PYTHON, "-c", echo], options, PATIENT, alone=not options)
            try:
                client.done(30)
            finally:
                client.kill()
        assert server.running(), server.describe()
    finally:
        server.kill()


def situations():
    with open(SITUATIONS) as f:
        return re.findall(r"^def case_(\w+)", f.read(), re.M)


# Those that depend on how a connection begins and ends, and whose it is.
OF_CONNECTIONS = ["worker", "inherited", "forking", "inetd", "executed", "orphan", "last_words", "answered_late", "given_up",
                  "fork_race", "fork_leaves", "connecting", "self", "restart_gone", "emfile", "datagrams"]


@pytest.mark.parametrize("case, way", [
    *[(case, "") for case in situations() if case != "fork_leaves"],
    *[pytest.param(case, "--iwarp", marks=() if case in OF_CONNECTIONS else pytest.mark.full)
      for case in situations() if case != "suspended"]])
def test_sockets(home, case, way):
    """Where librspreload was not what the kernel is."""
    env = {"worker": {"RS_CONNECT_TIMEOUT": "60000"}, "inherited": {"RS_CONNECT_TIMEOUT": "60000"},
           "self": {"RS_CONNECT_TIMEOUT": "500"}, "emfile": {"RS_CONNECT_TIMEOUT": "30000"},
           "connecting": {"RS_CONNECT_TIMEOUT": "30000"}}
    rig.Side(home).run([PYTHON, SITUATIONS, case], ["--sockets", *way.split()], env=env.get(case))


# How long connect(2) takes; by what, says --explain.
TIMED = """
import socket, time
t = time.monotonic()
s = socket.create_connection(('{host}', {port}))
print('took %.3f' % (time.monotonic() - t))
s.sendall(b'x')
print(s.recv(9))
"""
ANSWERS = """
import socket, time
ls = socket.create_server(('', {port}))
while True:
    time.sleep({late})
    s, _ = ls.accept()
    s.sendall(s.recv(9))
    s.close()
"""


@contextlib.contextmanager
def answering(place, port, late=0, alone=False):
    options = [] if alone else ["--sockets", "--explain"]
    server = Proc(place.server, [PYTHON, "-c", ANSWERS.format(port=port, late=late)], options, alone=alone)
    try:
        server.wait_listening(port)
        yield server
    finally:
        server.kill()


@contextlib.contextmanager
def dropped(place):
    """A firewall of the server's host drops what comes by UDP for port 4791."""
    need("nft")
    rules = ("table inet softhca_test { chain c { type filter hook input priority 0; udp dport 4791 drop; }; }")
    subprocess.run([*place.server.prefix, "nft", rules], check=True, timeout=rig.LIMIT)
    try:
        yield
    finally:
        subprocess.run([*place.server.prefix, "nft", "delete table inet softhca_test"], check=True, timeout=rig.LIMIT)


def connect_time(place, port, rundir, way, env=None):
    """In seconds, of a new process."""
    out = place.client.run([PYTHON, "-c", TIMED.format(host=place.host, port=port)], ["--sockets", "--explain"],
                           env={"SOFTHCA_RUNDIR": rundir, **(env or {})})
    assert re.search(rf"--sockets: the connection to \S+ port {port} goes by {way}$", out, re.M) and "b'x'" in out, out
    return float(re.search(r"^took (\S+)$", out, re.M)[1])


TIMED_OUT = r"TCP \(RDMA: Connection timed out\)"


def test_dropped(placements, rundir):
    """Where UDP 4791 is dropped, one process waits for a moment, and others of this user not at all: nor do those that
    connect to another port."""
    place, port = placements("netns"), free_port()
    with dropped(place), answering(place, port):
        assert connect_time(place, port, rundir, TIMED_OUT) > 0.19
        assert min(connect_time(place, port, rundir, TIMED_OUT) for _ in range(3)) < 0.1
        other = free_port()
        with answering(place, other, alone=True):
            assert min(connect_time(place, other, rundir, TIMED_OUT) for _ in range(3)) < 0.1


def silent_file(rundir):
    return next(os.path.join(d, n) for d, _, names in os.walk(rundir) for n in names if n.startswith("silent-"))


@pytest.mark.parametrize("what", ["noise", "zeros", "short", "long", "other", "link", "fifo", "writable"])
def test_dropped_hostile(placements, rundir, what):
    """What others have put where the answer is kept is not believed."""
    place, port = placements("netns"), free_port()
    with dropped(place), answering(place, port):
        connect_time(place, port, rundir, TIMED_OUT)
        path = silent_file(rundir)
        with open(path, "rb") as f:
            good = f.read()
        if what in ("link", "fifo"):
            os.rename(path, f"{path}.away")
            (os.mkfifo(path) if what == "fifo" else os.symlink(f"{path}.away", path))
        elif what == "writable":
            os.chmod(path, 0o666)
        else:
            with open(path, "wb") as f:
                # Of an entry: until when, the address, the scope, the sum.
                f.write({"noise": os.urandom(3072), "zeros": bytes(3072), "short": good[:20], "long": good * 999,
                         "other": (2**63).to_bytes(8, "little") + good[8:]}[what])
        if what == "long":
            assert min(connect_time(place, port, rundir, TIMED_OUT) for _ in range(3)) < 0.1
        else:
            assert connect_time(place, port, rundir, TIMED_OUT) > 0.19


def test_no_softhca_there(placements, rundir):
    """A host without softhca says so, and is believed at once."""
    place, port = placements("netns"), free_port()
    with answering(place, port, alone=True):
        assert min(connect_time(place, port, rundir, r"TCP \(RDMA: .*\)") for _ in range(3)) < 0.1
    # and so is one that has it a moment later
    with answering(place, port):
        connect_time(place, port, rundir, "RDMA")


def test_late_accept(placements, rundir):
    """A server that takes its time has answered by then that it is there."""
    place, port = placements("netns"), free_port()
    with answering(place, port, late=0.7):
        assert 0.3 < connect_time(place, port, rundir, "RDMA") < 3


def test_time_given(placements, rundir):
    """RS_CONNECT_TIMEOUT is that time, whoever is silent."""
    place, port = placements("netns"), free_port()
    with dropped(place), answering(place, port):
        assert all(connect_time(place, port, rundir, TIMED_OUT, {"RS_CONNECT_TIMEOUT": "500"}) > 0.49 for _ in range(2))
