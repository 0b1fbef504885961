"""NVMe over Fabrics: the kernel's host and our controller, our host and the kernel's controller (nvmet).

Ours are those of tests/peer/nvmf, under softhca run.
"""
import contextlib
import os
import re
import time

from place import LOSS, SLOW, Failed, file_system, fio, fio_command, lossy, need, run, until

NQN, PORT = "nqn.2026-01.test:disk", "4420"
SIZE = 64 << 20
QUEUES, DEPTH = 4, 128
# The guest has one processor: the kernel's host makes one queue for it, and one for its writes.
KERNEL_QUEUES = "-i 1 -W 1"
NVMET = "/sys/kernel/config/nvmet"


def nvmf(s):
    return os.path.join(s.build, "tests", "peer", "nvmf")


# ---- the kernel's host -------------------------------------------------------


class Controller:
    """Ours."""

    def __init__(self, s, kind="rxe", ip=4, silent=None):
        self.s, self.place, self.address = s, s.ours(kind), s.ours(kind).ip(ip)
        self.file = s.file("nvme", SIZE)
        self.words = [nvmf(s), "controller", "-a", self.address, "-f", self.file, *(["-s", str(silent)] if silent else [])]
        self.start()

    def start(self):
        self.job = self.place.start(self.words)
        if not self.job.wait_for("listening", 20):
            raise Failed(f"our controller does not listen\n{self.job.out}")

    def tell(self, signal):
        """To the program itself, which softhca run has become."""
        os.kill(self.job.proc.pid, signal)

    def ends(self):
        """In order, as it is asked to; what it has said."""
        self.job.terminate()
        if (rc := self.job.wait(20)) != 0:
            raise Failed(f"our controller ends with {rc}\n{self.job.out[-3000:]}")
        return self.job.out


@contextlib.contextmanager
def controller(s, *args, **kw):
    c = Controller(s, *args, **kw)
    try:
        yield c
        c.ends()
    except Failed as e:
        raise Failed(f"{e}\n--- our controller\n{c.job.out[-3000:]}\n--- the guest's kernel\n"
                     f"{'' if not s.guests else last_words(next(iter(s.guests.values())))}") from e
    finally:
        c.job.kill()


def last_words(guest):
    """Of its kernel."""
    return run(guest, "dmesg | tail -25", rc=None) if guest.alive() else guest.last_words()


def disks(guest):
    return run(guest, "ls -d /dev/nvme*n[0-9] 2>/dev/null", rc=None).split()


def connect(guest, address, options=KERNEL_QUEUES, rc=0):
    """nvme connect; the disk."""
    need("nvme")
    out = run(guest, f"nvme connect -t rdma -a {address} -s {PORT} -n {NQN} -Q {DEPTH} --hostnqn=nqn.2026-01.test:guest "
              f"{options}", 30, rc=None)
    if rc:
        return out
    return until(lambda: disks(guest), lambda: f"a disk appears\n{out}\n{last_words(guest)}")[0]


def disconnect(guest):
    run(guest, f"nvme disconnect -n {NQN}", 30)
    until(lambda: not disks(guest), "the disk is gone")


@contextlib.contextmanager
def connected(guest, address, options=KERNEL_QUEUES):
    disk = connect(guest, address, options)
    try:
        yield disk
        disconnect(guest)
    finally:
        if guest.alive():
            guest.run(["nvme", "disconnect", "-n", NQN], 30)


def kernel_host(kind, ip, files=True):
    def case(s):
        guest = s.guest(kind)
        with controller(s, kind, ip) as c:
            with connected(guest, c.address) as disk:
                queues = int(run(guest, f"cat /sys/class/nvme/{os.path.basename(disk)[:-2]}/queue_count")) - 1
                took = fio(guest, disk, "16m", DEPTH, "512-128k")

                def again():
                    disconnect(guest)
                    return connect(guest, c.address)

                also = f"; partition, ext4, {file_system(guest, disk, again)}, disconnected and connected in between" if files else ""
            said = c.ends()
            bad = [line for line in re.findall(r"queue \d+ ends: (.*)", said) if not re.search("DISCONNECTED|admin queue|Flushed", line)]
            if bad:
                raise Failed(f"queues have ended: {bad}")
        return f"{queues} queues of {DEPTH}; fio verifies 16 MiB in blocks of 512 B to 128 KiB in {took:.0f} s{also}"
    return case


def in_the_middle(guest, disk, fn, times=3):
    """fio, in the middle of which something is done; it goes on."""
    job = guest.start(["sh", "-c", fio_command(disk, "24m", more="--loops=2")])
    for _ in range(times):
        time.sleep(1)
        if job.rc is not None:
            raise Failed(f"fio ends too early, with {job.rc}\n{job.out[-2000:]}")
        fn()
    if job.wait(SLOW) != 0 or not re.search(r"err= 0\b", job.out):
        raise Failed(f"fio ends with {job.rc}\n{job.out[-2000:]}\n{last_words(guest)}")


def kernel_reset(s):
    guest = s.guest()
    with controller(s) as c, connected(guest, c.address) as disk:
        in_the_middle(guest, disk, lambda: run(guest, f"echo 1 >/sys/class/nvme/{os.path.basename(disk)[:-2]}/reset_controller"))
    return "reset three times in the middle of fio, which verifies all"


def kernel_reconnects(s):
    guest = s.guest()

    def restart():
        c.job.kill()
        time.sleep(0.5)
        c.start()

    with controller(s) as c, connected(guest, c.address, f"{KERNEL_QUEUES} --reconnect-delay=1 --keep-alive-tmo=1") as disk:
        in_the_middle(guest, disk, restart, 1)
    return "our controller killed in the middle of fio, started again: the kernel connects again, fio verifies all"


def kernel_lossy(s):
    guest = s.guest()
    with controller(s) as c, connected(guest, c.address) as disk, lossy(guest, LOSS):
        took = fio(guest, disk, "256k", 16, "512-16k", limit=300)
    return f"fio verifies 256 KiB in {took:.0f} s"


def kernel_event(s):
    """The file of the disk grows; the controller is told to look, and tells the host."""
    guest = s.guest()
    with controller(s) as c, connected(guest, c.address) as disk:
        with open(c.file, "r+b") as f:
            f.truncate(2 * SIZE)
        c.tell(1)       # SIGHUP
        until(lambda: int(run(guest, f"blockdev --getsize64 {disk}")) == 2 * SIZE, "the disk has grown")
    return "the disk grows while it is connected: asynchronous event, log page, Identify"


def kernel_silent(s):
    """The kernel's time-out of 30 s is one of the module's, and so is how often it tries."""
    guest = s.guest()
    params = "/sys/module/nvme_core/parameters"
    was = run(guest, f"cat {params}/io_timeout {params}/max_retries").split()
    run(guest, f"echo 2 >{params}/io_timeout; echo 0 >{params}/max_retries")
    try:
        with controller(s, silent=200) as c:
            with connected(guest, c.address, f"{KERNEL_QUEUES} --reconnect-delay=1 --ctrl-loss-tmo=3") as disk:
                begin = time.monotonic()
                out = run(guest, f"dd if={disk} of=/dev/null bs=4k count=1000 iflag=direct", 60, rc=None)
                took = time.monotonic() - begin
                if "Input/output error" not in out:
                    raise Failed(f"dd says {out}")
    finally:
        run(guest, f"echo {was[0]} >{params}/io_timeout; echo {was[1]} >{params}/max_retries")
    return f"a read fails after {took:.1f} s, with a time-out of 2 s"


def kernel_refused(s):
    guest = s.guest()
    with controller(s) as c:
        c.words[c.words.index("-f"):] = ["-f", c.file, "-n", "nqn.2026-01.test:other"]
        c.ends()
        c.start()
        out = connect(guest, c.address, rc=1)
        if disks(guest) or not re.search("Invalid|invalid|failed|Input/output", out):
            raise Failed(f"nvme connect to another subsystem says {out}")
    return "Connect to a subsystem that is not there: " + out.strip().splitlines()[-1]


# ---- our host ----------------------------------------------------------------


@contextlib.contextmanager
def nvmet(guest, ip, size=SIZE):
    """The kernel's controller, of a disk in the guest's memory."""
    family, address = ("ipv4", guest.ip4) if ip == 4 else ("ipv6", guest.ip6)
    sub, port = f"{NVMET}/subsystems/{NQN}", f"{NVMET}/ports/1"
    loop = run(guest, f"truncate -s {size} /run/nvmet && losetup -f --show /run/nvmet").split()[-1]
    run(guest, f"mkdir {sub} {sub}/namespaces/1 {port} && echo 1 >{sub}/attr_allow_any_host && "
        f"printf %s {loop} >{sub}/namespaces/1/device_path && echo 1 >{sub}/namespaces/1/enable && cd {port} && "
        f"echo rdma >addr_trtype && echo {family} >addr_adrfam && echo {address} >addr_traddr && echo {PORT} >addr_trsvcid && "
        f"ln -s {sub} subsystems/")
    try:
        yield address
    finally:
        if guest.alive():
            run(guest, f"rm {port}/subsystems/*; rmdir {port} {sub}/namespaces/1 {sub}; losetup -d {loop}; rm /run/nvmet", rc=None)


def host(s, kind, address, *cases, options=(), limit=SLOW):
    """Our host; what it has said of each case."""
    try:
        out = run(s.ours(kind), [nvmf(s), "host", "-a", address, "-q", QUEUES, "-d", DEPTH, "-t", 30000, *options, *cases], limit)
    except Failed as e:
        raise Failed(f"{e}\n--- the guest's kernel\n{last_words(s.guest(kind))}") from e
    return dict(zip(cases, re.findall(r"^(.*)\nok ", out, re.M)))


def our_host(kind, ip):
    def case(s):
        guest = s.guest(kind)
        with nvmet(guest, ip) as address:
            said = host(s, kind, address, "identify", "verify", "errors", options=("-c", 8))
        return f"{said['verify']}; {said['errors']}"
    return case


def our_reset(s):
    guest = s.guest()
    with nvmet(guest, 4) as address:
        return host(s, "rxe", address, "reset", options=("-c", 8))["reset"]


def our_lossy(s):
    guest = s.guest()
    with nvmet(guest, 4) as address, lossy(guest, LOSS):
        return host(s, "rxe", address, "verify", options=("-c", 4, "-d", 64, "-t", 60000), limit=300)["verify"]


CASES = (
    ("NVMe, kernel's host, IPv4", kernel_host("rxe", 4)),
    ("NVMe, kernel's host, IPv6", kernel_host("rxe", 6, False)),
    ("NVMe, kernel's host, reset", kernel_reset),
    ("NVMe, kernel's host, controller restarted", kernel_reconnects),
    ("NVMe, kernel's host, 1 % loss", kernel_lossy),
    ("NVMe, kernel's host, disk grows", kernel_event),
    ("NVMe, kernel's host, silent controller", kernel_silent),
    ("NVMe, kernel's host, unknown subsystem", kernel_refused),
    ("NVMe, kernel's controller, IPv4", our_host("rxe", 4)),
    ("NVMe, kernel's controller, IPv6", our_host("rxe", 6)),
    ("NVMe, kernel's controller, reset", our_reset),
    ("NVMe, kernel's controller, 1 % loss", our_lossy),
    ("NVMe by iWARP, kernel's host (siw)", kernel_host("siw", 4)),
    ("NVMe by iWARP, kernel's controller (siw)", our_host("siw", 4)),
)
