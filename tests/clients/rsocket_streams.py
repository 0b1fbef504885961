"""Connections over rsockets: options, queues, flags, timeouts, polling, ends. See rsocket_cases.py."""
import ctypes
import errno
import fcntl
import os
import select
import socket
import struct
import threading
import time

from rsockets import (check, connected, fails, FAMILY, HOST, INLINE, IOMAPSIZE, IOVec, LIB,
                      listener, MsgHdr, pattern, ROUTE, rpoll, RQSIZE, RSocket, SOL_RDMA, SQSIZE,
                      transfer, wait_readable)


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
    assert 0.19 < time.monotonic() - start
    c.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tv)
    start = time.monotonic()
    assert c.send(bytes(1 << 22)) < 1 << 22
    fails(errno.EAGAIN, c.send, b"x")
    assert 0.19 < time.monotonic() - start
    start = time.monotonic()
    assert not rpoll({c.fd: select.POLLIN}, 150)
    assert 0.14 < time.monotonic() - start


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
    s = RSocket(FAMILY)
    fails(errno.ECONNREFUSED, s.connect, (HOST, port))
    s = RSocket(FAMILY)
    s.setblocking(False)
    fails(errno.EINPROGRESS, s.connect, (HOST, port))
    events = rpoll({s.fd: select.POLLOUT}, 10000)
    assert events[s.fd] & select.POLLERR
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
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
    """close() wakes who waits."""
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
    time.sleep(0.2)  # so that they wait, most probably
    s.close()
    ls.close()
    for t in threads:
        t.join(60)
        assert not t.is_alive()
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
