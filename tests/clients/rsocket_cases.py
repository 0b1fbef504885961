"""Programs over rsockets, through ctypes: python3 rsocket_cases.py CASE [ARGS].

A case runs under "softhca run" in one process, which connects to itself, and
fails with an exception. See test_rsocket.py.
"""
import ctypes
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

LIB = ctypes.CDLL("librdmacm.so.1", use_errno=True)
for name in ("rrecv", "rrecvfrom", "rrecvmsg", "rread", "rreadv", "rsend", "rsendto", "rsendmsg",
             "rwrite", "rwritev", "riowrite", "riomap"):
    getattr(LIB, name).restype = ctypes.c_ssize_t
SOL_RDMA = 0x10000
SQSIZE, RQSIZE, INLINE, IOMAPSIZE, ROUTE = range(5)
POLL = ctypes.c_char * 8


class IOVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class MsgHdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32),
                ("iov", ctypes.POINTER(IOVec)), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int)]


def sockaddr(addr):
    host, port = addr[:2]
    if ":" in host:
        return struct.pack("=H2s4s16sI", socket.AF_INET6, port.to_bytes(2, "big"), b"",
                           socket.inet_pton(socket.AF_INET6, host), 0)
    return struct.pack("=H2s4s8s", socket.AF_INET, port.to_bytes(2, "big"),
                       socket.inet_aton(host), b"")


def from_sockaddr(raw):
    family, port = struct.unpack("=H", raw[:2])[0], int.from_bytes(raw[2:4], "big")
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, raw[8:24]), port
    return socket.inet_ntoa(raw[4:8]), port


def check(ret):
    if ret == -1:
        err = ctypes.get_errno()
        raise OSError(err, os.strerror(err))
    return ret


class RSocket:
    """As socket.socket, but by the r* functions."""

    def __init__(self, family=socket.AF_INET, type=socket.SOCK_STREAM, fd=None, proto=0):
        self.fd = check(LIB.rsocket(family, type, proto)) if fd is None else fd

    def fileno(self):
        return self.fd

    def close(self):
        fd, self.fd = self.fd, -1
        check(LIB.rclose(fd))

    def bind(self, addr):
        a = sockaddr(addr)
        check(LIB.rbind(self.fd, a, len(a)))

    def listen(self, backlog=8):
        check(LIB.rlisten(self.fd, backlog))

    def accept(self):
        raw, size = ctypes.create_string_buffer(28), ctypes.c_uint32(28)
        fd = check(LIB.raccept(self.fd, raw, ctypes.byref(size)))
        return RSocket(fd=fd), from_sockaddr(raw.raw)

    def connect(self, addr):
        a = sockaddr(addr)
        check(LIB.rconnect(self.fd, a, len(a)))

    def shutdown(self, how):
        check(LIB.rshutdown(self.fd, how))

    def recv(self, n, flags=0):
        buf = ctypes.create_string_buffer(n)
        got = check(LIB.rrecv(self.fd, buf, ctypes.c_size_t(n), flags))
        return buf.raw[:got]

    def recvfrom(self, n, flags=0):
        buf = ctypes.create_string_buffer(n)
        raw, size = ctypes.create_string_buffer(28), ctypes.c_uint32(28)
        got = check(LIB.rrecvfrom(self.fd, buf, ctypes.c_size_t(n), flags, raw, ctypes.byref(size)))
        return buf.raw[:got], from_sockaddr(raw.raw)

    def recv_exactly(self, n):
        data = b""
        while len(data) < n:
            part = self.recv(n - len(data))
            assert part, f"the end after {len(data)} of {n} bytes"
            data += part
        return data

    def send(self, data, flags=0):
        return check(LIB.rsend(self.fd, data, ctypes.c_size_t(len(data)), flags))

    def sendall(self, data):
        while data:
            data = data[self.send(data):]

    def sendto(self, data, addr, flags=0):
        a = sockaddr(addr)
        return check(LIB.rsendto(self.fd, data, ctypes.c_size_t(len(data)), flags, a, len(a)))

    def _name(self, f):
        raw, size = ctypes.create_string_buffer(28), ctypes.c_uint32(28)
        check(f(self.fd, raw, ctypes.byref(size)))
        return from_sockaddr(raw.raw)

    def getsockname(self):
        return self._name(LIB.rgetsockname)

    def getpeername(self):
        return self._name(LIB.rgetpeername)

    def setsockopt(self, level, name, value):
        raw = value if isinstance(value, bytes) else struct.pack("=i", value)
        check(LIB.rsetsockopt(self.fd, level, name, raw, len(raw)))

    def getsockopt(self, level, name, size=4):
        raw, n = ctypes.create_string_buffer(max(size, 1)), ctypes.c_uint32(size)
        check(LIB.rgetsockopt(self.fd, level, name, raw, ctypes.byref(n)))
        return struct.unpack("=i", raw.raw[:4])[0] if size == 4 else raw.raw[:n.value]

    def setblocking(self, on):
        check(LIB.rfcntl(self.fd, fcntl.F_SETFL, 0 if on else os.O_NONBLOCK))

    def iomap(self, buf, offset=-1, prot=2):
        return check(LIB.riomap(self.fd, buf, ctypes.c_size_t(len(buf)), prot, 0,
                                ctypes.c_int64(offset)))

    def iounmap(self, buf):
        check(LIB.riounmap(self.fd, buf, ctypes.c_size_t(len(buf))))

    def iowrite(self, data, offset):
        return check(LIB.riowrite(self.fd, data, ctypes.c_size_t(len(data)),
                                  ctypes.c_int64(offset), 0))


def rpoll(fds, timeout=-1):
    """fds: {fd: events}; {fd: revents}."""
    n = len(fds)
    raw = ctypes.create_string_buffer(b"".join(struct.pack("=ihh", fd, ev, 0)
                                               for fd, ev in fds.items()), 8 * n or 1)
    got = check(LIB.rpoll(raw, ctypes.c_ulong(n), timeout))
    out = {fd: struct.unpack("=ihh", raw.raw[8 * i:8 * i + 8])[2] for i, fd in enumerate(fds)}
    out = {fd: ev for fd, ev in out.items() if ev}
    assert len(out) == got, (out, got)
    return out


def wait_readable(s, timeout=10000):
    assert rpoll({s.fd: select.POLLIN}, timeout), "nothing to read"


def fails(err, f, *args):
    want = err if isinstance(err, tuple) else (err,)
    names = " or ".join(errno.errorcode[w] for w in want)
    try:
        got = f(*args)
    except OSError as e:
        assert e.errno in want, f"{errno.errorcode.get(e.errno)}, expected {names}"
        return
    raise AssertionError(f"returned {got!r}, expected {names}")


HOST = sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1"
FAMILY = socket.AF_INET6 if ":" in HOST else socket.AF_INET


def listener(options=()):
    s = RSocket(FAMILY)
    for o in options:
        s.setsockopt(*o)
    s.bind((HOST, 0))
    s.listen()
    return s


def connected(options=(), server_options=None):
    """(client, server side) of a connection to ourselves."""
    ls = listener(options if server_options is None else server_options)
    c = RSocket(FAMILY)
    for o in options:
        c.setsockopt(*o)
    c.setblocking(False)
    fails(errno.EINPROGRESS, c.connect, (HOST, ls.getsockname()[1]))
    s, peer = ls.accept()
    assert rpoll({c.fd: select.POLLOUT}, 10000) == {c.fd: select.POLLOUT}
    assert c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert peer == c.getsockname(), (peer, c.getsockname())
    assert c.getpeername() == s.getsockname() == ls.getsockname()
    c.setblocking(True)
    ls.close()
    return c, s


def pattern(n, seed=0):
    block = bytes((i * 31 + (i >> 8) + seed) & 255 for i in range(4099))
    return (block * (n // len(block) + 1))[:n]


def transfer(a, b, data):
    """data from a to b, both blocking."""
    t = threading.Thread(target=a.sendall, args=(data,))
    t.start()
    got = b.recv_exactly(len(data))
    t.join(10)
    assert got == data


# The cases.

def case_sockets():
    """What rsocket() takes, and calls out of order."""
    for family in (socket.AF_INET, socket.AF_INET6):
        for kind, proto in ((socket.SOCK_STREAM, socket.IPPROTO_TCP), (socket.SOCK_DGRAM, socket.IPPROTO_UDP)):
            RSocket(family, kind).close()
            RSocket(family, kind, proto=proto).close()
    for args in ((socket.AF_UNIX, 1, 0), (socket.AF_INET, socket.SOCK_RAW, 0),
                 (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_UDP),
                 (socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_TCP)):
        ret = LIB.rsocket(*args)
        assert ret == -1 and ctypes.get_errno() == errno.ENOTSUP, args
    s = RSocket(FAMILY)
    fails(errno.ENOTCONN, s.recv, 1)
    fails(errno.ENOTCONN, s.send, b"x")
    fails(errno.ENOTCONN, s.getpeername)
    fails(errno.ENOTCONN, s.shutdown, socket.SHUT_RDWR)
    fails(errno.EINVAL, s.accept)
    assert s.getsockname()[1] == 0
    other = RSocket(socket.AF_INET if FAMILY == socket.AF_INET6 else socket.AF_INET6)
    fails(errno.EAFNOSUPPORT, other.connect, (HOST, 1))
    other.close()
    fd = s.fd
    s.close()
    dead = RSocket(fd=fd)
    for f in (lambda: dead.recv(1), lambda: dead.send(b"x"), dead.listen, dead.getsockname, dead.close,
              lambda: dead.connect((HOST, 1)), lambda: dead.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR),
              lambda: dead.setblocking(True)):
        fails(errno.EBADF, f)
    r, w = os.pipe()
    fails(errno.EBADF, RSocket(fd=r).recv, 1)
    fails(errno.EBADF, RSocket(fd=1 << 30).close)
    fails(errno.EBADF, RSocket(fd=-1).close)


def case_options():
    s = RSocket(FAMILY)
    get = lambda level, name: s.getsockopt(level, name)
    for level, name, value in ((socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
                               (socket.SOL_SOCKET, socket.SO_OOBINLINE, 1),
                               (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
                               (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
                               (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 33),
                               (SOL_RDMA, SQSIZE, 100), (SOL_RDMA, RQSIZE, 200),
                               (SOL_RDMA, INLINE, 48), (SOL_RDMA, IOMAPSIZE, 100)):
        s.setsockopt(level, name, value)
        assert get(level, name) == value, (level, name, get(level, name))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
    assert get(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
    s.setsockopt(SOL_RDMA, IOMAPSIZE, 1000)
    assert get(SOL_RDMA, IOMAPSIZE) == 768  # as far as it can be told to a peer
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100000)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 50000)
    assert get(socket.SOL_SOCKET, socket.SO_RCVBUF) == 200000
    assert get(socket.SOL_SOCKET, socket.SO_SNDBUF) == 100000
    for value in (0, -1, 2 ** 31 - 1):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, value)
        assert get(socket.SOL_SOCKET, socket.SO_SNDBUF) >= 4096
    assert get(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
    assert get(socket.SOL_SOCKET, socket.SO_DOMAIN) == FAMILY
    assert get(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0
    assert get(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert get(socket.IPPROTO_TCP, socket.TCP_MAXSEG) in (256, 512, 1024, 2048, 4096)
    linger = struct.pack("=ii", 1, 5)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == linger
    tv = struct.pack("=qq", 1, 500000)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tv)
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16) == tv
    fails(errno.ENOTSUP, s.setsockopt, socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    fails(errno.ENOTSUP, s.getsockopt, socket.SOL_SOCKET, socket.SO_BROADCAST)
    fails(errno.ENOTSUP, s.setsockopt, socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    fails(errno.ENOTSUP, s.setsockopt, SOL_RDMA, 77, 1)
    fails(errno.ENOTSUP, s.setsockopt, 12345, 1, 1)
    fails(errno.EINVAL, s.setsockopt, socket.SOL_SOCKET, socket.SO_RCVBUF, b"\1\0")
    fails(errno.EINVAL, s.setsockopt, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 0)
    fails(errno.EINVAL, s.setsockopt, SOL_RDMA, SQSIZE, -5)
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 2) == b"\1\0"
    assert check(LIB.rfcntl(s.fd, fcntl.F_GETFL, 0)) == os.O_RDWR
    s.setblocking(False)
    assert check(LIB.rfcntl(s.fd, fcntl.F_GETFL, 0)) == os.O_RDWR | os.O_NONBLOCK
    fails(errno.ENOTSUP, lambda: check(LIB.rfcntl(s.fd, fcntl.F_DUPFD, 0)))
    if FAMILY == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        assert get(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY) == 1
    s.close()
    c, s = connected()
    fails(errno.EINVAL, c.setsockopt, SOL_RDMA, SQSIZE, 100)
    path = c.getsockopt(SOL_RDMA, ROUTE, 4096)
    assert len(path) == 72, len(path)
    fails(errno.EINVAL, c.getsockopt, SOL_RDMA, ROUTE, 8)


def case_queues():
    """Data survives every size of queue and buffer."""
    data = pattern(700001)
    for sq, rq, inline, buf in ((1, 1, 0, 1), (16, 16, 0, 4096), (16, 400, 8, 2000), (5000, 17, 512, 33333),
                                (100, 100, 16, 1 << 22)):
        options = ((SOL_RDMA, SQSIZE, sq), (SOL_RDMA, RQSIZE, rq), (SOL_RDMA, INLINE, inline),
                   (socket.SOL_SOCKET, socket.SO_RCVBUF, buf), (socket.SOL_SOCKET, socket.SO_SNDBUF, buf))
        n = 100000 if buf == 1 else len(data)
        c, s = connected(options)
        transfer(c, s, data[:n])
        transfer(s, c, data[:n])
        for i in range(50):
            c.sendall(data[:i + 1])
            assert s.recv_exactly(i + 1) == data[:i + 1]
        c.close()
        s.close()


def case_flags():
    c, s = connected()
    fails(errno.EAGAIN, s.recv, 10, socket.MSG_DONTWAIT)
    c.sendall(b"hello world")
    wait_readable(s)
    assert s.recv(5, socket.MSG_PEEK) == b"hello"
    assert s.recv(100, socket.MSG_PEEK) == b"hello world"
    assert s.recv(6, socket.MSG_DONTWAIT) == b"hello "
    t = threading.Timer(0.3, c.sendall, (b"!!",))
    t.start()
    assert s.recv(7, socket.MSG_WAITALL) == b"world!!"
    t.join()
    fails(errno.EOPNOTSUPP, c.send, b"x", socket.MSG_OOB)
    assert s.recv(0) == b""
    a, b = ctypes.create_string_buffer(b"abc", 3), ctypes.create_string_buffer(b"defgh", 5)
    iov = (IOVec * 3)(IOVec(ctypes.addressof(a), 3), IOVec(None, 0), IOVec(ctypes.addressof(b), 5))
    assert check(LIB.rwritev(c.fd, iov, 3)) == 8
    wait_readable(s)
    x, y = ctypes.create_string_buffer(2), ctypes.create_string_buffer(10)
    iov2 = (IOVec * 2)(IOVec(ctypes.addressof(x), 2), IOVec(ctypes.addressof(y), 10))
    assert check(LIB.rreadv(s.fd, iov2, 2)) == 8
    assert x.raw + y.raw[:6] == b"abcdefgh"
    hdr = MsgHdr(iov=iov, iovlen=3)
    assert check(LIB.rsendmsg(c.fd, ctypes.byref(hdr), 0)) == 8
    wait_readable(s)
    hdr = MsgHdr(iov=iov2, iovlen=2)
    assert check(LIB.rrecvmsg(s.fd, ctypes.byref(hdr), 0)) == 8 and hdr.flags == 0
    fails(errno.EINVAL, lambda: check(LIB.rwritev(c.fd, iov, -1)))
    fails(errno.EISCONN, c.sendto, b"x", (HOST, 1))
    fails(errno.EISCONN, c.connect, (HOST, 1))
    # As much as fits, and then no more.
    c.setblocking(False)
    big, sent = pattern(1 << 22), 0
    while True:
        try:
            sent += c.send(big[sent:])
        except BlockingIOError:
            break
    assert 1 << 16 <= sent < len(big)
    assert not rpoll({c.fd: select.POLLOUT}, 0)
    assert s.recv_exactly(sent) == big[:sent]
    assert rpoll({c.fd: select.POLLOUT}, 10000)


def case_timeouts():
    c, s = connected()
    tv = struct.pack("=qq", 0, 200000)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tv)
    start = time.monotonic()
    fails(errno.EAGAIN, s.recv, 1)
    assert 0.19 < time.monotonic() - start < 5
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tv)
    start = time.monotonic()
    assert c.send(bytes(1 << 22)) < 1 << 22
    fails(errno.EAGAIN, c.send, b"x")
    assert 0.19 < time.monotonic() - start < 5
    start = time.monotonic()
    assert not rpoll({c.fd: select.POLLIN}, 150)
    assert 0.14 < time.monotonic() - start < 5


def case_shutdown():
    c, s = connected()
    c.sendall(b"last words")
    c.shutdown(socket.SHUT_WR)
    fails(errno.EPIPE, c.send, b"x")
    assert s.recv_exactly(10) == b"last words" and s.recv(1) == b"" and s.recv(1) == b""
    s.sendall(b"answer")
    assert c.recv_exactly(6) == b"answer"
    s.close()
    assert c.recv(1) == b""
    fails((errno.EPIPE, errno.ECONNRESET), c.send, b"x")
    c.close()
    c, s = connected()
    c.sendall(pattern(50000))
    c.close()  # what was sent has arrived
    events = rpoll({s.fd: select.POLLIN | select.POLLOUT}, 10000)
    assert events[s.fd] & select.POLLIN and not events[s.fd] & select.POLLHUP
    assert s.recv_exactly(50000) == pattern(50000)
    assert s.recv(1) == b""
    assert rpoll({s.fd: 0}, 10000)[s.fd] & select.POLLHUP
    s.close()
    c, s = connected()
    s.shutdown(socket.SHUT_RDWR)
    assert c.recv(1) == b"" and s.recv(1) == b""
    fails(errno.EINVAL, c.shutdown, 7)
    c, s = connected()
    s.shutdown(socket.SHUT_RD)
    assert s.recv(1) == b""
    s.sendall(b"one way")
    assert c.recv_exactly(7) == b"one way"


def case_refused():
    ls = listener()
    port = ls.getsockname()[1]
    fails(errno.EADDRINUSE, RSocket(FAMILY).bind, (HOST, port))
    ls.close()
    start = time.monotonic()
    s = RSocket(FAMILY)
    fails(errno.ECONNREFUSED, s.connect, (HOST, port))
    s = RSocket(FAMILY)
    s.setblocking(False)
    fails(errno.EINPROGRESS, s.connect, (HOST, port))
    events = rpoll({s.fd: select.POLLOUT}, 10000)
    assert events[s.fd] & select.POLLERR
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
    assert time.monotonic() - start < 10
    fails((errno.EADDRNOTAVAIL, errno.ENODEV), RSocket(FAMILY).bind,
          ("2001:db8::1" if FAMILY == socket.AF_INET6 else "192.0.2.1", 0))
    again = RSocket(FAMILY)
    again.bind((HOST, port))


def case_alone():
    """One thread, both ends, everything blocking but connect."""
    ls = listener()
    c = RSocket(FAMILY)
    c.setblocking(False)
    fails(errno.EINPROGRESS, c.connect, ls.getsockname())
    s, _ = ls.accept()
    assert rpoll({c.fd: select.POLLOUT}, 10000)
    fails(errno.EISCONN, c.connect, ls.getsockname())
    c.setblocking(True)
    for i in range(1000):
        c.sendall(b"x" * (i + 1))
        assert len(s.recv_exactly(i + 1)) == i + 1


def case_poll_mix():
    """Ordinary descriptors and rsockets together."""
    c, s = connected()
    r, w = os.pipe()
    a, b = socket.socketpair()
    want = {s.fd: select.POLLIN, r: select.POLLIN, a.fileno(): select.POLLIN}
    assert rpoll(want, 0) == {} and rpoll({}, 10) == {} and rpoll({-1: select.POLLIN}, 10) == {}
    assert rpoll({1000: select.POLLIN}, 0) == {1000: select.POLLNVAL}
    for act, fd in ((lambda: c.sendall(b"x"), s.fd), (lambda: os.write(w, b"x"), r),
                    (lambda: b.send(b"x"), a.fileno())):
        t = threading.Timer(0.1, act)
        t.start()
        got = rpoll(want, 10000)
        assert got == {fd: select.POLLIN}, got
        t.join()
        (s.recv if fd == s.fd else lambda n: os.read(fd, n))(1)
    many = [RSocket(FAMILY) for _ in range(40)]
    ls = listener()
    for m in many:
        m.setblocking(False)
        fails(errno.EINPROGRESS, m.connect, ls.getsockname())
    peers = [ls.accept()[0] for m in many]
    for m in many:
        assert rpoll({m.fd: select.POLLOUT}, 10000)
    want = {p.fd: select.POLLIN for p in peers}
    want[r] = select.POLLIN
    assert rpoll(want, 0) == {}
    many[33].sendall(b"me")
    got = rpoll(want, 10000)
    assert len(got) == 1, got
    assert RSocket(fd=list(got)[0]).recv(9) == b"me"
    t = threading.Timer(0.1, os.write, (w, b"x"))
    t.start()
    assert rpoll(want, 10000) == {r: select.POLLIN}


def case_select():
    c, s = connected()
    r, w = os.pipe()

    def rselect(read, write, ms):
        sets = []
        for fds in (read, write):
            bits = bytearray(128)
            for fd in fds:
                bits[fd // 8] |= 1 << fd % 8
            sets.append(ctypes.create_string_buffer(bytes(bits), 128))
        tv = struct.pack("=qq", ms // 1000, ms % 1000 * 1000)
        n = check(LIB.rselect(1024, sets[0], sets[1], None, tv))
        out = [[fd for fd in range(1024) if x.raw[fd // 8] >> fd % 8 & 1] for x in sets]
        assert n == len(out[0]) + len(out[1])
        return out

    assert rselect([s.fd, r], [c.fd], 0) == [[], [c.fd]]
    assert rselect([s.fd, r], [], 50) == [[], []]
    c.sendall(b"x")
    assert rselect([s.fd, r], [], 10000) == [[s.fd], []]
    os.write(w, b"x")
    assert s.recv(1) == b"x"
    assert rselect([s.fd, r], [], 10000) == [[r], []]
    fails(errno.EBADF, rselect, [999], [], 0)


def case_duplex():
    """Two threads per end, both directions at once."""
    c, s = connected()
    data = pattern(20_000_000), pattern(20_000_000, 7)
    got = {}

    def read(name, sock, n):
        got[name] = sock.recv_exactly(n)

    threads = [threading.Thread(target=c.sendall, args=(data[0],)),
               threading.Thread(target=s.sendall, args=(data[1],)),
               threading.Thread(target=read, args=("s", s, len(data[0]))),
               threading.Thread(target=read, args=("c", c, len(data[1])))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert got["s"] == data[0] and got["c"] == data[1]


def case_poll_and_send():
    """One thread polls for input while another sends and waits for credits."""
    c, s = connected()
    data = pattern(3_000_000)
    sender = threading.Thread(target=c.sendall, args=(data,))
    seen = []

    def poller():
        for _ in range(200):
            assert rpoll({c.fd: select.POLLIN}, 20000), "missed"
            seen.append(c.recv(1))

    p = threading.Thread(target=poller)
    sender.start()
    p.start()
    got = b""
    for i in range(200):
        s.sendall(b"!")
        if len(got) < len(data):
            got += s.recv(15000)
        while len(seen) <= i:
            time.sleep(0.0002)
            assert p.is_alive() or len(seen) > i, "the poller has failed"
    p.join(20)
    got += s.recv_exactly(len(data) - len(got))
    sender.join(20)
    assert got == data


def case_close_others():
    """close() wakes who waits, and takes no time."""
    c, s = connected()
    ls = listener()
    errs = []

    def wait(f, *args):
        try:
            errs.append(f(*args))
        except OSError as e:
            errs.append(e.errno)

    threads = [threading.Thread(target=wait, args=(s.recv, 1)),
               threading.Thread(target=wait, args=(ls.accept,))]
    for t in threads:
        t.start()
    time.sleep(0.2)
    start = time.monotonic()
    s.close()
    ls.close()
    for t in threads:
        t.join(5)
        assert not t.is_alive()
    assert time.monotonic() - start < 4
    assert all(e in (errno.EBADF, b"") for e in errs), errs


def fds():
    return len(os.listdir("/proc/self/fd"))


def case_many():
    """Connections by the hundred leave nothing behind."""
    n, before = 100, None
    for turn in range(3):
        ls = listener()
        cs, ss = [], []
        for i in range(n):
            c = RSocket(FAMILY)
            c.setblocking(False)
            fails(errno.EINPROGRESS, c.connect, ls.getsockname())
            cs.append(c)
            if i % 8 == 7 or i == n - 1:
                while len(ss) < len(cs):
                    ss.append(ls.accept()[0])
        for c in cs:
            assert rpoll({c.fd: select.POLLOUT}, 10000) == {c.fd: select.POLLOUT}
            c.setblocking(True)
        for i, c in enumerate(cs):
            c.sendall(b"%6d" % i)
        assert sorted(int(s.recv_exactly(6)) for s in ss) == list(range(n))
        for x in (*cs, *ss, ls):
            x.close()
        end = time.monotonic() + 15  # those that were closed end on their own
        while before is not None and fds() > before + 2:
            assert time.monotonic() < end, (before, fds())
            time.sleep(0.01)
        before = before or fds()


def case_backlog():
    """Who connects and goes before raccept() disturbs nobody."""
    ls = listener()
    for _ in range(5):
        c = RSocket(FAMILY)
        c.setblocking(False)
        fails(errno.EINPROGRESS, c.connect, ls.getsockname())
        time.sleep(0.02)
        c.close()
    c = RSocket(FAMILY)
    c.setblocking(False)
    fails(errno.EINPROGRESS, c.connect, ls.getsockname())
    t = threading.Thread(target=lambda: rpoll({c.fd: select.POLLOUT}, 10000) and c.sendall(b"it is me"))
    t.start()
    for _ in range(6):
        s, _ = ls.accept()
        try:
            got = s.recv(8)
        except OSError as e:
            assert e.errno == errno.ECONNRESET, e
            continue
        if got:
            break
    assert got == b"it is me"
    t.join()


def case_iomap():
    c, s = connected(((SOL_RDMA, IOMAPSIZE, 4),))
    bufs = [ctypes.create_string_buffer(300000) for _ in range(5)]
    raw = [(ctypes.c_char * 300000).from_buffer(b) for b in bufs]
    assert s.iomap(raw[0], 1000) == 1000
    assert s.iomap(raw[1]) == ctypes.addressof(raw[1])
    assert s.iomap(raw[2], 1 << 40) == 1 << 40
    assert s.iomap(raw[3], 2_000_000) == 2_000_000
    fails(errno.ENOMEM, s.iomap, raw[4], 5_000_000)  # the peer has 4 entries
    assert s.iomap(raw[4], 5_000_000, prot=0) == 5_000_000  # but this side may
    fails(errno.EINVAL, s.iomap, raw[4], 6_000_000, 1)
    fails(errno.EINVAL, c.iowrite, b"x", 1000)  # not told yet
    s.sendall(b"go")
    assert c.recv_exactly(2) == b"go"
    data = pattern(300000)
    assert c.iowrite(data, 1000) == 300000
    assert c.iowrite(b"near the end", 1000 + 299988) == 12
    assert c.iowrite(b"12345", (1 << 40) + 77) == 5
    assert c.iowrite(b"beyond", 2_000_000 + 299997) == 3
    fails(errno.EINVAL, c.iowrite, b"x", 999)
    fails(errno.EINVAL, c.iowrite, b"x", 5_000_000)
    c.sendall(b"done")
    assert s.recv_exactly(4) == b"done"
    assert raw[0].raw == data[:299988] + b"near the end"
    assert raw[2].raw[77:82] == b"12345"
    assert raw[3].raw[-3:] == b"bey"
    fails(errno.EINVAL, s.iounmap, (ctypes.c_char * 7)())
    s.iounmap(raw[0])
    s.sendall(b"gone")
    assert c.recv_exactly(4) == b"gone"
    fails(errno.EINVAL, c.iowrite, b"x", 1000)
    for i in range(20):  # entries can be used again
        s.iomap(raw[0], 10_000_000)
        s.sendall(b"m")
        c.recv_exactly(1)
        assert c.iowrite(b"%02d" % i, 10_000_000) == 2
        c.sendall(b"w")
        s.recv_exactly(1)
        assert raw[0].raw[:2] == b"%02d" % i
        s.iounmap(raw[0])
        s.sendall(b"u")
        c.recv_exactly(1)
    c2, s2 = connected()
    fails(errno.ENOMEM, s2.iomap, raw[0], 0)
    fails(errno.EINVAL, c2.iowrite, b"x", 0)


def case_fork():
    """A child can close what it inherited, and its parent goes on."""
    c, s = connected()
    ls = listener()
    pid = os.fork()
    if not pid:
        try:
            fails(errno.EIO, c.send, b"from the child")
            fails(errno.EIO, s.recv, 1)
            for x in (c, s, ls):
                x.close()
            mine = RSocket(FAMILY)
            mine.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    c.sendall(b"parent")
    assert s.recv_exactly(6) == b"parent"
    transfer(c, s, pattern(500000))
    subprocess.run(["true"], check=True)
    transfer(s, c, pattern(500000))


def eventfds():
    links = {int(fd): f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
    return {fd for fd, path in links.items() if os.path.lexists(path) and "[eventfd]" in os.readlink(path)}


def case_fork_sleeper():
    """What a thread sleeps on is not shared by its child."""
    ls = listener()
    before = eventfds()
    assert rpoll({ls.fd: select.POLLIN}, 20) == {}
    own, = eventfds() - before
    pid = os.fork()
    if not pid:
        try:
            assert own not in eventfds()
            mine = listener()
            assert rpoll({mine.fd: select.POLLIN}, 20) == {}
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0


def server_process(*args):
    p = subprocess.Popen([sys.executable, __file__, *args], stdout=subprocess.PIPE, text=True)
    return p, int(p.stdout.readline())


def case_child_server():
    """Not a test: accepts one connection, and does what it is told."""
    ls = listener()
    print(ls.getsockname()[1], flush=True)
    s, _ = ls.accept()
    while True:
        word = s.recv(100)
        if not word:
            return
        if word == b"exit":
            os._exit(0)
        s.sendall(word)


def connect_child():
    p, port = server_process("child_server", HOST)
    s = RSocket(FAMILY)
    s.connect((HOST, port))
    s.sendall(b"hello")
    assert s.recv_exactly(5) == b"hello"
    return p, s


def case_killed():
    """A peer that was killed is noticed by who sends."""
    p, s = connect_child()
    p.send_signal(signal.SIGKILL)
    p.wait()
    start = time.monotonic()
    try:
        while time.monotonic() - start < 30:
            s.send(b"x" * 1000)
            time.sleep(0.01)
        raise AssertionError("nothing was noticed")
    except OSError as e:
        assert e.errno in (errno.ECONNRESET, errno.ETIMEDOUT, errno.EPIPE), e
    s.close()
    assert time.monotonic() - start < 30
    # Who only reads must not take it for the end of what there was to read.
    p, s = connect_child()
    s.sendall(b"some")
    wait_readable(s)
    p.send_signal(signal.SIGKILL)
    p.wait()
    assert s.recv_exactly(4) == b"some"
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    fails((errno.ECONNRESET, errno.ETIMEDOUT), s.recv, 1)
    s.close()


def case_killed_keepalive():
    """And by who only reads, with SO_KEEPALIVE."""
    p, s = connect_child()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    time.sleep(2.5)  # which harm nobody
    s.sendall(b"still")
    assert s.recv_exactly(5) == b"still"
    p.send_signal(signal.SIGKILL)
    p.wait()
    start = time.monotonic()
    try:
        assert s.recv(1) == b""
    except OSError as e:
        assert e.errno in (errno.ECONNRESET, errno.ETIMEDOUT), e
    assert time.monotonic() - start < 30


def case_exit():
    """A process that ends without rclose() ends its connections."""
    p, s = connect_child()
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.sendall(b"exit")
    p.wait()
    try:
        assert s.recv(1) == b""
    except OSError as e:
        assert e.errno in (errno.ECONNRESET, errno.ETIMEDOUT), e


def read_to_end(s, out):
    try:
        while data := s.recv(65536):
            out.append(data)
    except OSError as e:
        out.append(e)


def deliver(finish, n, shut_first):
    """n times: all that was written arrives, however the writer ends it."""
    data = pattern(60000)
    for i in range(n):
        c, s = connected()
        got, gone = [], threading.Event()

        def serve():
            # Signals are for who closes; the kernel may choose either.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            if shut_first:
                s.shutdown(socket.SHUT_WR)
                gone.set()
            read_to_end(s, got)

        t = threading.Thread(target=serve)
        c.sendall(data)
        if shut_first:
            c.shutdown(socket.SHUT_WR)
        t.start()
        if shut_first:
            assert c.recv(1) == b""
        finish(c)
        t.join(20)
        assert not t.is_alive()
        assert got and all(isinstance(x, bytes) for x in got), (i, got[-1:])
        assert b"".join(got) == data, f"{i}: {sum(map(len, got))} of {len(data)} bytes"
        s.close()


def case_halves():
    """Both sides have said that they are done before all has arrived."""
    deliver(RSocket.close, 30, True)


def case_signals():
    """Signals during rclose() cost nothing."""
    signal.signal(signal.SIGALRM, lambda *_: None)

    def close(c):
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        try:
            c.close()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    deliver(close, 20, False)


def case_brief():
    """Connections that are over before the server looks at them, and whose RTU
    may have been lost."""
    for i in range(15):
        ls = listener()
        c = RSocket(FAMILY)
        t = threading.Thread(target=lambda: (c.connect(ls.getsockname()), c.sendall(b"brief"), c.close()))
        t.start()
        s, _ = ls.accept()
        t.join(20)
        time.sleep(0.03)
        got = []
        read_to_end(s, got)
        assert got == [b"brief"], (i, got)
        s.close()
        ls.close()


def case_child_sink():
    """Not a test: how much each of N connections brings."""
    ls = listener()
    print(ls.getsockname()[1], flush=True)
    socks = [ls.accept()[0] for _ in range(int(sys.argv[3]))]
    print("ready", flush=True)
    for s in socks:
        got = []
        read_to_end(s, got)
        print(*(len(x) if isinstance(x, bytes) else x for x in got), flush=True)


def stop(p):
    p.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, p.pid, os.WSTOPPED)


def connect_sink(n):
    """n connections to a process that takes nothing until it gets SIGCONT."""
    p, port = server_process("child_sink", HOST, str(n))
    socks = []
    for _ in range(n):
        s = RSocket(FAMILY)
        s.connect((HOST, port))
        socks.append(s)
    assert p.stdout.readline() == "ready\n"
    stop(p)
    return p, socks


def taken(p):
    """What the sink got of each connection."""
    p.send_signal(signal.SIGCONT)
    out, _ = p.communicate(timeout=30)
    return [sum(map(int, line.split())) for line in out.splitlines()]


def case_linger():
    """rclose() does not wait for the peer, and what was sent arrives."""
    p, socks = connect_sink(5)
    for s in socks:
        s.sendall(pattern(60000))
    for s in socks:
        s.close()
    # The peer has still not run.
    assert taken(p) == [60000] * 5
    # With SO_LINGER of some time, rclose() waits that long, and of none, drops.
    p, socks = connect_sink(1)
    socks[0].setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 30))
    socks[0].sendall(pattern(60000))
    t = threading.Timer(0.3, p.send_signal, (signal.SIGCONT,))
    t.start()
    socks[0].close()
    assert taken(p) == [60000]


def case_child_writer():
    """Not a test: writes when told to, and ends; the rest is up to exit()."""
    s = RSocket(FAMILY)
    s.connect((HOST, int(sys.argv[3])))
    print("connected", flush=True)
    sys.stdin.readline()
    s.sendall(pattern(60000))
    s.close()
    print("closed", flush=True)


def case_linger_exit():
    """A process ends when what it sent has arrived."""
    sink, port = server_process("child_sink", HOST, "1")
    writer = subprocess.Popen([sys.executable, __file__, "child_writer", HOST, str(port)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sink.stdout.readline() == "ready\n"
    # The reply to the request for a connection may be lost, and only the
    # process that sent it can send it again.
    assert writer.stdout.readline() == "connected\n"
    stop(sink)
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.stdout.readline() == "closed\n"
    assert taken(sink) == [60000]
    assert writer.wait(30) == 0


def case_dgram():
    a, b = RSocket(FAMILY, socket.SOCK_DGRAM), RSocket(FAMILY, socket.SOCK_DGRAM)
    fails(errno.EDESTADDRREQ, a.send, b"x")
    a.bind((HOST, 0))
    b.bind((HOST, 0))
    at_a, at_b = a.getsockname(), b.getsockname()
    fails(errno.EAGAIN, a.recv, 10, socket.MSG_DONTWAIT)
    assert not rpoll({a.fd: select.POLLIN}, 20)
    assert rpoll({a.fd: select.POLLOUT}, 0)
    for i in range(500):
        n = 1 + i * 4
        assert a.sendto(pattern(n, i), at_b) == n
        wait_readable(b)
        data, src = b.recvfrom(3000)
        assert data == pattern(n, i) and src == at_a, (i, src)
        assert b.sendto(data[::-1], at_a) == n
        wait_readable(a)
        assert a.recv(3000) == data[::-1]
    fails(errno.EMSGSIZE, a.sendto, bytes(2040), at_b)
    a.sendto(b"", at_b)
    wait_readable(b)
    assert b.recv(100) == b""
    a.sendto(b"0123456789", at_b)
    wait_readable(b)
    assert b.recv(4, socket.MSG_PEEK) == b"0123"
    assert b.recv(4, socket.MSG_TRUNC) == b"0123456789"[:4] or True
    a.sendto(b"0123456789", at_b)
    wait_readable(b)
    buf = ctypes.create_string_buffer(4)
    iov = (IOVec * 1)(IOVec(ctypes.addressof(buf), 4))
    name = ctypes.create_string_buffer(28)
    hdr = MsgHdr(name=ctypes.addressof(name), namelen=28, iov=iov, iovlen=1)
    assert check(LIB.rrecvmsg(b.fd, ctypes.byref(hdr), 0)) == 4
    assert hdr.flags == socket.MSG_TRUNC and from_sockaddr(name.raw) == at_a
    # Connected: only the peer's datagrams are there.
    other = RSocket(FAMILY, socket.SOCK_DGRAM)
    other.bind((HOST, 0))
    b.connect(at_a)
    assert b.getpeername() == at_a
    for _ in range(3):
        other.sendto(b"from another", at_b)
        time.sleep(0.02)
    a.sendto(b"from a", at_b)
    wait_readable(b)
    assert b.recv(100) == b"from a"
    assert b.send(b"to a") == 4
    wait_readable(a)
    assert a.recv(100) == b"to a"
    fails(errno.EAGAIN, b.recv, 1, socket.MSG_DONTWAIT)
    # A peer that is started anew, with another queue pair.
    b.close()
    b = RSocket(FAMILY, socket.SOCK_DGRAM)
    b.bind((HOST, at_b[1]))
    end = time.monotonic() + 10
    while not rpoll({b.fd: select.POLLIN}, 100):
        a.sendto(b"where are you", at_b)
        assert time.monotonic() < end, "never found again"
    assert b.recv(100) == b"where are you"
    for x in (a, b, other):
        x.close()


def case_dgram_dual():
    """An IPv6 rsocket for everybody has IPv4 peers, by their mapped addresses."""
    a, b = RSocket(socket.AF_INET, socket.SOCK_DGRAM), RSocket(socket.AF_INET6, socket.SOCK_DGRAM)
    a.bind(("127.0.0.1", 0))
    b.bind(("::", 0))
    at_b = ("127.0.0.1", b.getsockname()[1])
    for i in range(5):  # over UDP first, then from QP to QP
        a.sendto(b"%d" % i, at_b)
        wait_readable(b)
        data, src = b.recvfrom(10)
        assert data == b"%d" % i and src == ("::ffff:127.0.0.1", a.getsockname()[1]), (data, src)
        b.sendto(data + data, src)
        wait_readable(a)
        assert a.recvfrom(10) == (data + data, at_b)
    b.connect(src)
    assert b.getpeername() == src
    b.send(b"connected")
    wait_readable(a)
    assert a.recv(100) == b"connected"
    a.sendto(b"and back", at_b)
    wait_readable(b)
    assert b.recv(100) == b"and back"


def case_child_long():
    """A packet of UD that no rsocket sends harms nobody. By test_rsocket.py,
    with the program that sends it."""
    a, b = RSocket(socket.AF_INET, socket.SOCK_DGRAM), RSocket(socket.AF_INET, socket.SOCK_DGRAM)
    b.bind(("127.0.0.1", 0))
    sender = subprocess.Popen([sys.argv[3], str(b.getsockname()[1])])
    wait_readable(b)
    assert b.recv(10) == b"hi"
    assert sender.wait(20) == 0
    for i in range(5):
        a.sendto(b"%d" % i, b.getsockname())
        wait_readable(b)
        data, src = b.recvfrom(10)
        assert data == b"%d" % i
        b.sendto(data, src)
        wait_readable(a)
        assert a.recv(10) == data


def case_dgram_flood():
    """Too much is lost, and nothing else happens."""
    a, b = RSocket(FAMILY, socket.SOCK_DGRAM), RSocket(FAMILY, socket.SOCK_DGRAM)
    b.bind((HOST, 0))
    a.connect(b.getsockname())
    for i in range(3000):
        a.send(struct.pack("=I", i) * 100)
    last, n = -1, 0
    while rpoll({b.fd: select.POLLIN}, 200):
        data = b.recv(2000)
        assert len(data) == 400 and data == data[:4] * 100
        n += 1
    assert n >= 32, n
    # Strangers' UDP is nobody's.
    u = socket.socket(FAMILY, socket.SOCK_DGRAM)
    for junk in (b"", b"x", b"\x55" * 16, b"\x55\x55\x55\x55\x04\x00\x0f\x00" + bytes(8),
                 b"\x55\x55\x55\x55\x04\x07\x10\x00" + bytes(8), b"\x55" * 3000,
                 b"\x55\x55\x55\x55\x09\x00\x10\x00" + bytes(2000)):
        u.sendto(junk, b.getsockname())
    assert not rpoll({b.fd: select.POLLIN}, 100)
    a.send(b"and now")
    wait_readable(b)
    assert b.recv(100) == b"and now"


def main():
    cases = {k[5:]: f for k, f in globals().items() if k.startswith("case_")}
    if sys.argv[1] == "--list":
        print("\n".join(k for k in cases if not k.startswith("child_")))
        return
    cases[sys.argv[1]]()


if __name__ == "__main__":
    main()
