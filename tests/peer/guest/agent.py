#!/usr/bin/python3
"""The first and only service of the guest: mounts, network, rxe or siw, commands.

The root is the host's file system, read-only. Programs want to write here and
there, so an overlay keeps what they write until the guest ends. Mounting
is done without mount(8): for who has no privileges on the host, its file
belongs to nobody here, and it is set-user-ID.

A TCP connection to AGENT_PORT is one command. It begins with a line of JSON,
{"argv": [...], "env": {...}}, and brings back lines of JSON: {"out": text} as
the command writes, and {"rc": status} when it has ended. Any byte sent earlier
asks the command to end (SIGTERM), closing the connection kills it.

PEER_* came from the kernel's command line as environment variables.
"""
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import threading
import time

AGENT_PORT = 18599
NIC = "vec0"
NOSUID = 2      # MS_NOSUID


def mount(kind, target, options=""):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(kind.encode(), target.encode(), kind.encode(),
                  ctypes.c_ulong(NOSUID), options.encode()):
        raise OSError(ctypes.get_errno(), f"mount {kind} on {target}")


def make_root():
    mount("tmpfs", "/mnt", "mode=755")
    for name in ("upper", "work", "root"):
        os.mkdir("/mnt/" + name)
    mount("overlay", "/mnt/root",
          "lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work")
    os.chroot("/mnt/root")
    os.chdir("/")
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    if os.path.exists("/sys/kernel/config"):
        mount("configfs", "/sys/kernel/config")
    mount("devtmpfs", "/dev")
    os.makedirs("/dev/pts", exist_ok=True)
    os.makedirs("/dev/shm", exist_ok=True)
    mount("devpts", "/dev/pts")
    mount("tmpfs", "/dev/shm", "mode=1777")
    mount("tmpfs", "/run", "mode=755")
    if not os.path.lexists("/dev/fd"):
        os.symlink("/proc/self/fd", "/dev/fd")
    console = os.open("/dev/console", os.O_RDWR)
    for fd in range(3):
        os.dup2(console, fd)


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
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    for line in (
            "ip link set lo up",
            f"ip link set {NIC} mtu {mtu} txqueuelen 4000 up",
            f"ip addr add {env['PEER_IP4']}/24 dev {NIC}",
            f"ip addr add {env['PEER_IP6']}/64 dev {NIC} nodad",
            f"rdma link add {env['PEER_RDMA']}0 type {env['PEER_RDMA']} netdev {NIC}"):
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
        """Ends the command when the other side asks for it, or is gone."""
        try:
            while conn.recv(1):
                os.killpg(proc.pid, signal.SIGTERM)
            os.killpg(proc.pid, signal.SIGKILL)
        except OSError:
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
    make_root()
    setup()
    # siw, unlike rxe, heeds the limit though it is root who registers memory.
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    listener = socket.create_server(("", AGENT_PORT), backlog=64)
    print("agent: ready", flush=True)
    while True:
        conn, _ = listener.accept()
        conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve, args=(conn,), daemon=True).start()


if __name__ == "__main__":
    main()
