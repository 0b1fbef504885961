"""rsockets and processes: fork, children, who is killed or exits, signals, lingering. See rsocket_cases.py."""
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

from rsockets import (connected, fails, FAMILY, HOST, listener, pattern, rpoll, RSocket,
                      transfer, wait_readable)


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
    p = subprocess.Popen([sys.executable, sys.argv[0], *args], stdout=subprocess.PIPE, text=True)
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
    writer = subprocess.Popen([sys.executable, sys.argv[0], "child_writer", HOST, str(port)],
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
