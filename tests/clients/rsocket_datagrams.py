"""Datagrams over rsockets. See rsocket_cases.py."""
import ctypes
import errno
import select
import socket
import struct
import subprocess
import sys
import time

from rsockets import (check, fails, FAMILY, from_sockaddr, HOST, IOVec, LIB, MsgHdr,
                      pattern, rpoll, RSocket, wait_readable)


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
    n = 0
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
