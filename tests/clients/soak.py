#!/usr/bin/python3
"""Mixed operations for as long as you like, over a network that loses packets.

    soak.py [SECONDS]       600, unless said otherwise; make soak DURATION=...

Two namespaces, 64 queue pairs, 1 % loss: sends, writes, both with immediate
data, reads and atomics of many sizes, in one to four pieces; verbs_check looks
at every byte. Meanwhile the memory of both processes and what they share with
their hosts is sampled, and it must not grow.
"""
import contextlib
import os
import re
import shutil
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import rig

OPTIONS = ["--loss", 1, "--seed", 7]
WORK = ["-o", "all", "-q", 64, "-r", 8, "-S", 0, "-s", 65536, "-G", 4, "-Q", 3, "-u", 16]
# What a sample may be above all of the second quarter's, in KiB.
SLACK = {"server": 2048, "client": 2048, "shared": 64}


def resident(proc):
    """VmRSS in KiB, with that of the processes it has started; 0 when it has ended."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getpgid(int(pid)) == proc.pid:
                with open(f"/proc/{pid}/status") as f:
                    total += sum(map(int, re.findall(r"^VmRSS:\s+(\d+)", f.read(), re.M)))
    return total


def shared(where):
    """Allocated there, in KiB."""
    total = 0
    for folder, _, names in os.walk(where):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks // 2
    return total


def growth(samples):
    """What has grown since the second quarter, in words, or None."""
    n = len(samples)
    for what, slack in SLACK.items():
        before = max(s[what] for s in samples[n // 4:n // 2])
        after = max(s[what] for s in samples[n // 2:])
        if after > before + slack:
            return f"{what} has grown from {before} to {after} KiB"
    return None


def soak(place, seconds, every, say=lambda text: None):
    """The client's last words. Fails if anything is wrong."""
    port = rig.free_port()
    where = tempfile.mkdtemp(prefix="softhca-soak-", dir="/dev/shm")
    cmd = [rig.client("verbs_check"), "-p", port, "-D", seconds, *WORK]
    # By the network, as with two hosts.
    env = [{"SOFTHCA_RUNDIR": tempfile.mkdtemp(dir=where)} for _ in range(2)]
    server = client = None
    samples = []
    try:
        server = rig.Proc(place.server, cmd, [*place.options, *OPTIONS], env[0])
        server.wait_listening(port)
        client = rig.Proc(place.client, [*cmd, place.host], [*place.options, *OPTIONS], env[1])
        client.wait_for("^ready")
        begun = time.monotonic()
        while time.monotonic() < begun + seconds + 60:
            time.sleep(every)
            sample = {"server": resident(server), "client": resident(client), "shared": shared(where)}
            if not all(sample.values()):    # one has ended
                break
            samples.append(sample)
            batches = re.findall(r"^at (\d+)", client.output()[-200:], re.M)
            say(f"{time.monotonic() - begun:6.0f} s  {64 * int(batches[-1]) if batches else 0:>10} messages"
                + "".join(f"  {what} {kib / 1024:.1f} MiB" for what, kib in sample.items()))
        pair = rig.Pair(server, client).end()
        words = [end.output().strip().splitlines()[-1] for end in (pair.client, pair.server)]
        say("\n".join(words))
        if not all(re.search(r"lost 0, wrong 0", w) for w in words):
            raise rig.Failed(f"wrong data\n{pair.describe()}")
        if len(samples) >= 8 and (grown := growth(samples)):
            raise rig.Failed(f"{grown}: {samples}")
        return words[0]
    finally:
        for proc in (server, client):
            if proc:
                proc.kill()
        shutil.rmtree(where, ignore_errors=True)


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 600
    net = rig.Network(9000)
    try:
        place = rig.Placement("netns", rig.Side(net.b), rig.Side(net.a), "10.91.0.2", "fd91::2")
        soak(place, seconds, max(seconds / 40, 1), lambda text: print(text, flush=True))
    except rig.Failed as e:
        print(e)
        return 1
    finally:
        net.close()
    print("every byte was right, and memory did not grow")
    return 0


if __name__ == "__main__":
    sys.exit(main())
