"""What runs in the guest: sets up network and rxe, then runs commands.

A TCP connection to AGENT_PORT is one command. It begins with a line of JSON,
{"argv": [...], "env": {...}}, and brings back lines of JSON: {"out": text} as
the command writes, and {"rc": status} when it has ended. Closing the
connection earlier kills the command and its children.
"""
import json
import os
import signal
import socket
import subprocess
import threading
import time

AGENT_PORT = 18599
NIC = "vec0"


def setup():
    env = os.environ
    mtu = env["PEER_MTU"]
    for _ in range(500):
        if os.path.exists("/sys/class/net/" + NIC):
            break
        time.sleep(0.01)
    for path, value in (
            # addresses can be used at once
            (f"net/ipv6/conf/{NIC}/accept_dad", "0"),
            (f"net/ipv6/conf/{NIC}/router_solicitations", "0"),
            ("net/core/rmem_max", "16777216"),
            ("net/core/rmem_default", "4194304"),
            ("kernel/printk", "4 4 1 7")):
        with open("/proc/sys/" + path, "w") as f:
            f.write(value)
    for line in (
            "ip link set lo up",
            f"ip link set {NIC} mtu {mtu} txqueuelen 4000 up",
            f"ip addr add {env['PEER_IP4']}/24 dev {NIC}",
            f"ip addr add {env['PEER_IP6']}/64 dev {NIC} nodad",
            f"rdma link add rxe0 type rxe netdev {NIC}"):
        subprocess.run(line.split(), check=True)


def serve(conn):
    """Runs the one command of a connection."""
    stream = conn.makefile("rwb")
    line = stream.readline()
    if not line:        # somebody only looked whether we are there
        conn.close()
        return
    request = json.loads(line)
    env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
           "HOME": "/root", "LC_ALL": "C.UTF-8", **request.get("env", {})}
    try:
        proc = subprocess.Popen(
            request["argv"], env=env, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True)
    except OSError as e:
        stream.write(json.dumps({"out": str(e), "rc": 127}).encode() + b"\n")
        stream.flush()
        return

    def gone():
        """The other side says nothing more: this is its end."""
        conn.recv(1)
        try:
            os.killpg(proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    threading.Thread(target=gone, daemon=True).start()
    try:
        while data := proc.stdout.read1(65536):
            text = data.decode(errors="replace")
            stream.write(json.dumps({"out": text}).encode() + b"\n")
            stream.flush()
        rc = proc.wait()
        stream.write(json.dumps({"rc": rc}).encode() + b"\n")
        stream.flush()
    except OSError:
        pass
    finally:
        try:
            os.killpg(proc.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        proc.wait()
        try:
            conn.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        conn.close()


def main():
    setup()
    listener = socket.create_server(("", AGENT_PORT), backlog=64)
    print("agent: ready", flush=True)
    while True:
        conn, _ = listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(conn,), daemon=True).start()


if __name__ == "__main__":
    main()
