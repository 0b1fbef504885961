"""Situations in which librspreload has to be what the kernel is, as ordinary
programs meet them: socket_cases.py CASE runs case_CASE().
"""
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
    rows = [line.split() for name in ("tcp", "tcp6") for line in open("/proc/self/net/" + name)]
    return [r for r in rows if r[1].endswith(":%04X" % ls.getsockname()[1]) and r[3] == "01"]

def echo_once(ls):
    # In a child, which ends.
    s, _ = ls.accept()
    s.sendall(s.recv(10))
    os._exit(0)

def expect_echo(ls, pid):
    c = socket.create_connection(ls.getsockname())
    c.sendall(b"hello"); assert c.recv(10) == b"hello"
    assert os.waitpid(pid, 0)[1] == 0

def case_worker():
    # A server that listens before it forks.
    ls = socket.create_server(("127.0.0.1", 0))
    pid = os.fork()
    if not pid:
        echo_once(ls)
    expect_echo(ls, pid)

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
        echo_once(ls)
    expect_echo(ls, pid)

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

def served(serve, host="127.0.0.1"):
    # A server that forks for a connection, and its client, which gets back what it sends.
    ls = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    client = os.fork()
    if not client:
        c = socket.create_connection(ls.getsockname()[:2])
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

    def count():
        # Not the peer's segment, which is opened when it is first needed: before the fork or after it.
        n = 0
        for fd in os.listdir("/proc/self/fd"):
            try: n += "/softhca-" not in os.readlink(f"/proc/self/fd/{fd}")
            except FileNotFoundError: pass
        return n

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

def case_fork_leaves():
    # A child has no copy of what carries its parent's connections, while these come and go: the peer would never see
    # their end, nor that of a listener.
    def left():
        inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                  if os.path.lexists(f"/proc/self/fd/{fd}")}
        rows = [line.split() for line in open("/proc/self/net/tcp")]
        # Those of the program's own sockets have ports that the kernel has given away.
        return [r for r in rows if f"socket:[{r[9]}]" in inodes
                and any(int(at.partition(":")[2], 16) >= 61000 for at in r[1:3])]
    going = True
    def come_and_go():
        while going:
            with socket.create_server(("127.0.0.1", 0)) as ls:
                got = []
                t = threading.Thread(target=lambda: got.append(ls.accept()[0]))
                t.start()
                with socket.create_connection(ls.getsockname()) as c:
                    c.sendall(b"x")
                    t.join()
                    got[0].recv(1)
                    got[0].close()
    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    for t in threads: t.start()
    try:
        for _ in range(40):
            pid = os.fork()
            if not pid:
                found = left()
                for row in found: print(*row[1:4], flush=True)
                os._exit(len(found))
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        going = False
        for t in threads: t.join()

def case_inetd():
    # The child becomes another program, with the connection as its input and output.
    def serve(s, peer, name):
        pid = os.fork()
        if pid: return pid
        os.dup2(s.fileno(), 0); os.dup2(s.fileno(), 1)
        os.execvpe("cat", ["cat"], {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"})
    served(serve)

# A program whose input is a connection with the addresses in argv.
EXECUTED = """
import socket, struct, sys
s = socket.socket(fileno=0)
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
assert (s.family, s.type, s.proto) == (family, socket.SOCK_STREAM, socket.IPPROTO_TCP), s
assert sys.argv[1:] == [str(s.getsockname()), str(s.getpeername())], s
assert not s.recvfrom(1, socket.MSG_PEEK)[1]
# An IP option would be a source route, and sshd refuses that.
assert s.getsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, 64) == b""
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
try: s.setsockopt(socket.SOL_SOCKET, 9999, 1)
except OSError: pass
else: assert False, "no such option"
# The peer is no process of this host.
assert s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12) == struct.pack("=iii", 0, -1, -1)
while part := s.recv(1 << 16): s.sendall(part)
"""

def case_executed():
    # A program that a child executes, by way of another and with nothing left of its environment, knows both addresses.
    env = {k: v for k, v in os.environ.items() if k in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    for host in "127.0.0.1", "::1":
        def serve(s, peer, name):
            pid = os.fork()
            if pid: return pid
            os.dup2(s.fileno(), 0)
            os.execve("/bin/sh", ["sh", "-c", "exec \"$@\"", "sh", sys.executable, "-c", EXECUTED, str(name), str(peer)], env)
        served(serve, host)

def case_name_of_a_stranger():
    # Whoever binds a socket of his own to a name like that of a relayed connection is not thereby at its addresses.
    name = b"\0softhca:tcp00000000" + b"0a000001" b"0050" + b"0a000002" b"1000"
    ls, c = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    ls.bind("\0mine-%d" % os.getpid()); ls.listen()
    c.bind(name); c.connect(ls.getsockname())
    s, peer = ls.accept()
    assert peer == s.getpeername() == name and s.getsockname() == ls.getsockname()
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) == socket.AF_UNIX
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12) == struct.pack("=iii", os.getpid(), os.getuid(), os.getgid())
    # Names that are not quite of the form are names like others.
    for odd in name[:-1], name[:-2], name + b"00", name[:-1] + b"g", name[:-1] + b"A", name[:-1] + b"\0", name[:12]:
        u = socket.socket(socket.AF_UNIX)
        u.bind(odd)
        assert u.getsockname() == odd
        u.close()

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

SYS_CLOSE = 57 if os.uname().machine == "aarch64" else 3
REAL = ctypes.CDLL("libc.so.6")     # not what is preloaded

def case_raw_close():
    # libuv closes by syscall(2).
    c, s = pair()
    fd = s.detach()
    assert libc.syscall(SYS_CLOSE, fd) == 0
    assert c.recv(1) == b""
    c.close()
    c, s = pair()
    assert libc.syscall(SYS_CLOSE, 9999) == -1
    alive(c, s)

def case_number_again():
    # A number whose end nobody saw (io_uring) is somebody else's.
    c, s = pair()
    fd = s.detach()
    assert REAL.syscall(SYS_CLOSE, fd) == 0
    those = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)]
    while those[-1].fileno() < fd: those.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    u = those[-1]
    assert u.fileno() == fd
    assert c.recv(1) == b""
    v = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    v.bind("\0again-%d" % os.getpid())
    u.connect(v.getsockname())
    u.send(b"new"); assert v.recv(10) == b"new"

def case_raw_copies():
    # Copies by syscall(2) are the same connection, until the last is closed.
    c, s = pair()
    fd = libc.syscall(72 if SYS_CLOSE == 3 else 25, s.fileno(), 0, 40)   # fcntl(F_DUPFD)
    assert fd >= 40
    s.close()
    c.sendall(b"x"); assert os.read(fd, 10) == b"x"
    assert libc.syscall(SYS_CLOSE, fd) == 0
    assert c.recv(1) == b""

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

def case_taken_out():
    # Of an instance, and put in again, as event loops do for each answer.
    c, s = pair()
    ep = select.epoll()
    for early in (False, True, False):
        ep.register(c, select.EPOLLIN)
        assert ep.poll(0.05) == []
        ep.unregister(c)
        for again in (lambda: ep.unregister(c), lambda: ep.modify(c, select.EPOLLIN)):
            try:
                again()
                assert False
            except FileNotFoundError:
                pass
        if early:
            s.sendall(b"x")
        assert ep.poll(0.2) == [] and ep.poll(0) == []
        ep.register(c, select.EPOLLIN)
        try:
            ep.register(c, select.EPOLLIN)
            assert False
        except FileExistsError:
            pass
        if not early:
            threading.Timer(0.1, s.sendall, (b"x",)).start()
        assert ep.poll(10) == [(c.fileno(), select.EPOLLIN)]
        assert c.recv(9) == b"x"
        ep.unregister(c)
    c.close()
    # Another one has its number now.
    c, s = pair()
    ep.register(c, select.EPOLLOUT)
    assert ep.poll(10) == [(c.fileno(), select.EPOLLOUT)]

def case_taken_out_still():
    # What is taken out wakes nobody who waits at the instance, whoever reads it.
    c, s = pair()
    ep = select.epoll()
    for _ in range(2):
        ep.register(c, select.EPOLLIN)
        assert ep.poll(0.05) == []
        ep.unregister(c)
        for _ in range(20):
            threading.Timer(0.02, s.sendall, (b"x",)).start()
            assert c.recv(1) == b"x"
    c.close()
    # All that is left there is what wakes those who wait.
    info = open("/proc/self/fdinfo/%d" % ep.fileno()).read().split()
    fds = [fd for word, fd in zip(info, info[1:]) if word == "tfd:"]
    assert len(fds) == 1, info
    info = open("/proc/self/fdinfo/" + fds[0]).read().split()
    assert int(info[info.index("eventfd-count:") + 1], 16) == 0, info

def case_edge_left():
    # What came before it was armed, behind data that is known and left unread.
    for _ in range(10):
        c, s = pair()
        ep = select.epoll()
        c.sendall(b"one"); time.sleep(0.002)
        assert s.recv(1) == b"o"
        c.sendall(b"two"); time.sleep(0.002)
        ep.register(s, select.EPOLLIN | select.EPOLLET)
        assert ep.poll(10) == [(s.fileno(), select.EPOLLIN)]
        # Fewer than were asked for are all there are, or another event comes.
        n = 1
        while n < 6:
            n += len(s.recv(100, socket.MSG_DONTWAIT))
            assert n == 6 or ep.poll(3), n

def case_parents_event():
    # What is ready for the parent does not keep a child from its timeouts.
    c, s = pair()
    ep = select.epoll()
    ep.register(s, select.EPOLLIN)
    assert ep.poll(0.2) == []
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        select.select([], [], [], 0.2)
        for timeout in (0, 0.05): assert ep.poll(timeout) == []
        os._exit(0)
    c.sendall(b"x")
    assert os.waitpid(pid, 0)[1] == 0
    assert ep.poll(10) == [(s.fileno(), select.EPOLLIN)]

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

def case_restart_once():
    # A handler without SA_RESTART that is gone when it runs (SA_RESETHAND) ends a call.
    c, s = pair()
    ran, main = [], threading.main_thread()
    func = ctypes.CFUNCTYPE(None, ctypes.c_int)(ran.append)
    action = struct.pack("=Q128sIiQ", ctypes.cast(func, ctypes.c_void_p).value, b"", 0x80000000, 0, 0)
    assert libc.sigaction(signal.SIGUSR1, ctypes.create_string_buffer(action), None) == 0
    trusted = time.monotonic() + 0.01  # what was known of the handlers before
    while time.monotonic() < trusted: pass
    t = threading.Thread(target=lambda: (in_syscall(main.native_id), signal.pthread_kill(main.ident, signal.SIGUSR1)))
    t.start()
    buf = ctypes.create_string_buffer(9)
    assert libc.recv(s.fileno(), buf, ctypes.c_size_t(4), 0) == -1 and ctypes.get_errno() == errno.EINTR
    t.join()
    assert ran == [signal.SIGUSR1]

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
        # A byte that comes during the call may find some of them looked at.
        assert libc.poll(fds, ctypes.c_ulong(1), 10000) == 1
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

def case_suspended():
    # Both ends let go of their network now and then (docs/MIGRATION.md).
    lib = ctypes.CDLL(None)
    lib.softhca_migrate_why.restype = ctypes.c_char_p
    over, errors, times = threading.Event(), [], []

    def away():
        while not over.wait(.01) and not errors:
            if lib.softhca_suspend_seated(ctypes.byref(ctypes.c_int())): errors.append(lib.softhca_migrate_why())
            time.sleep(.005)
            if lib.softhca_resume(): errors.append(lib.softhca_migrate_why())
            times.append(1)

    ls = socket.create_server(("127.0.0.1", 0))
    client = os.fork()
    data = os.urandom(50000)
    s = ls.accept()[0] if client else socket.create_connection(ls.getsockname())
    t = threading.Thread(target=away)
    t.start()
    if client:
        while part := s.recv(1 << 16): s.sendall(part)
        s.shutdown(socket.SHUT_WR)
    else:
        while len(times) < 20 and not errors:
            s.sendall(data)
            assert s.recv(len(data), socket.MSG_WAITALL) == data
        s.shutdown(socket.SHUT_WR)
        assert not s.recv(1)
    over.set(); t.join()
    assert not errors, errors
    assert not by_tcp(ls)
    if not client: os._exit(0)
    assert os.waitpid(client, 0)[1] == 0

globals()["case_" + sys.argv[1]]()
os._exit(0)
