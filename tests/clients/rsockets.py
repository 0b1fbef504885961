"""rsockets for Python, through ctypes, and what the cases of rsocket_cases.py
share. The address of a case is the second argument of the program."""
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import sys
import threading

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
