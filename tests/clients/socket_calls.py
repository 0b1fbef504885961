"""What programs do with sockets, in one process: socket_calls.py PORT ADDRESS"""
import array, fcntl, os, socket, sys, termios, threading
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
