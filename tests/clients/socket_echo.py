"""An echo server with an epoll instance, and ten of its clients in threads.

    socket_echo.py server PORT ADDRESS lt|et
    socket_echo.py client PORT ADDRESS
"""
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
