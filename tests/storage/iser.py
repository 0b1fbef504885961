"""iSER: open-iscsi and the kernel's ib_iser to tgtd, and libiscsi's programs to the kernel's LIO.

tgtd, the tools of libiscsi and QEMU's are Debian's, under softhca run; the kernel's
ends are in the guest. What libiscsi 1.19 cannot do by iSER is avoided here
(docs/CLIENTS.md): immediate data, requests of more than 256 KiB, and two connections
of one process.
"""
import contextlib
import hashlib
import os
import re
import time

import tgt
from place import Failed, Skipped, file_system, fio, lossy, need, run, until

MIB = 1 << 20
SIZE = 192      # MiB, of tgtd's disk
RAM = 64        # of LIO's
PORT = 3260     # of iSER; tgtd's other port is the next
LOGIN = 60      # s, for a command of iscsiadm
# How long ib_iser waits for what is gone: rxe repeats without end, and only a ping that is not answered shows it.
SETTINGS = {"node.session.timeo.replacement_timeout": 60, "node.conn[0].timeo.noop_out_interval": 5,
            "node.conn[0].timeo.noop_out_timeout": 10, "node.session.initial_login_retry_max": 2,
            "node.conn[0].timeo.login_timeout": 15, "node.session.queue_depth": 32}
IMPATIENT = {"node.conn[0].timeo.noop_out_interval": 1, "node.conn[0].timeo.noop_out_timeout": 2}


# -------------------------------------------------- the kernel's initiator, tgtd

class Target:
    """tgtd here, and its disk, a file, which outlives it."""

    def __init__(self, s):
        need("tgtd", "tgtadm")
        if os.geteuid():
            raise Skipped("tgtd wants to be root")
        self.s, self.tgtd = s, None
        self.disk = s.file("iser-disk", SIZE * MIB)
        self.start()

    def start(self):
        # It leaves its socket behind when it is killed.
        for name in ("tgtd.0", "tgtd.0.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self.s.dir, name))
        self.tgtd = tgt.Tgtd(self.s.dir, self.s.host.start, self.s.host.ip4, PORT + 1, PORT)
        until(lambda: self.tgtd.is_up() or self.tgtd.proc.rc is not None, lambda: f"tgtd starts: {self.tgtd.proc.out}")
        self.tgtd.serve("iser", 1, self.disk)

    def kill(self):
        if self.tgtd:
            self.tgtd.proc.kill()

    def said(self):
        return self.tgtd.proc.out[-2000:]


class Initiator:
    """open-iscsi in the guest."""

    def __init__(self, guest, address, settings=()):
        need("iscsid", "iscsiadm")
        self.guest = guest
        self.node = f"iscsiadm -m node -T {tgt.TARGET} -p {f'[{address}]' if ':' in address else address}:{PORT}"
        run(guest, "mkdir -p /run/lock/iscsi /etc/iscsi && rm -rf /etc/iscsi/nodes /var/lib/iscsi/nodes && "
            f"echo InitiatorName={tgt.INITIATOR} >/etc/iscsi/initiatorname.iscsi")
        self.iscsid = guest.start(["iscsid", "-f"])
        try:
            until(lambda: guest.run(["sh", "-c", "grep -q ISCSIADM /proc/net/unix"])[0] == 0 or self.iscsid.rc is not None,
                  lambda: f"iscsid listens: {self.iscsid.out}")
            run(guest, f"{self.node} -I iser -o new")
            for name, value in {**SETTINGS, **dict(settings)}.items():
                run(guest, f"{self.node} -o update -n '{name}' -v {value}")
        except BaseException:
            self.close()
            raise

    def login(self):
        """The name of the disk."""
        run(self.guest, f"{self.node} --login", LOGIN)
        return "/dev/" + until(self.disks, lambda: "a disk appears: " + run(self.guest, "dmesg | tail -20", rc=None))[0]

    def disks(self):
        return run(self.guest, "ls /sys/class/iscsi_session/session*/device/target*/*/block 2>/dev/null", rc=None).split()

    def sessions(self):
        return run(self.guest, "ls /sys/class/iscsi_session", rc=None).split()

    def logout(self, limit=LOGIN):
        run(self.guest, f"{self.node} --logout", limit)
        until(lambda: not self.sessions(), "the session is gone")

    def again(self):
        self.logout()
        return self.login()

    def close(self):
        if self.guest.alive():
            with contextlib.suppress(OSError):
                self.guest.run(["sh", "-c", f"{self.node} --logout"], LOGIN)
        self.iscsid.kill()


@contextlib.contextmanager
def to_tgtd(s, address=None, settings=()):
    """A target here, and an initiator in the guest that has not logged in."""
    guest = s.guest()
    target = Target(s)
    try:
        with contextlib.closing(Initiator(guest, address or s.host.ip4, settings)) as initiator:
            yield guest, target, initiator
    except Failed as e:
        raise Failed(f"{e}\n--- tgtd\n{target.said()}\n--- the guest\n{last_of(guest)}") from e
    finally:
        target.kill()


def last_of(guest):
    """What its kernel has said."""
    return guest.run(["sh", "-c", "dmesg | tail -15"])[1] if guest.alive() else guest.last_words()


def same_as_file(guest, device, path, at=40, mib=8):
    """What the guest writes to the device, at a MiB of it, is what is in the file behind that here."""
    out = run(guest, f"dd if=/dev/urandom of=/run/random bs=1M count={mib} 2>/dev/null && "
              f"dd if=/run/random of={device} bs=1M seek={at} conv=fsync 2>/dev/null && sha256sum /run/random", 120)
    with open(path, "rb") as f:
        f.seek(at * MIB)
        if hashlib.sha256(f.read(mib * MIB)).hexdigest() != out.split()[0]:
            raise Failed("the file behind the disk differs from what was written")


def kernel_to_tgtd(s):
    with to_tgtd(s) as (guest, target, initiator):
        disk = initiator.login()
        files = file_system(guest, disk, initiator.again)
        disk = initiator.again()
        same_as_file(guest, disk, target.disk)
        fio(guest, disk, "16m", depth=32)
        fio(guest, disk, "32m", depth=8, blocks="4k-512k")
        initiator.logout()
        return f"{files}, logged in 3 times; fio with 32 at once, and up to 512 KiB long; the target's file has the same"


def kernel_by_ipv6(s):
    with to_tgtd(s, s.host.ip6) as (guest, target, initiator):
        disk = initiator.login()
        same_as_file(guest, disk, target.disk)
        fio(guest, disk, "16m", depth=32)
        initiator.logout()
        return "fio with 32 at once; the target's file has the same"


def kernel_with_loss(s):
    with to_tgtd(s) as (guest, target, initiator):
        disk = initiator.login()
        then = time.monotonic()
        with lossy(guest):
            fio(guest, disk, "8m", depth=8, blocks="64k", limit=240)
            initiator.logout(120)
        took = time.monotonic() - then
        return f"fio, 8 MiB there and back, 8 at once, and logout in {took:.0f} s; rxe repeats after 2.1 s"


def target_comes_again(s):
    """Killed while requests are on their way, and started anew: they are sent again, after a new login."""
    with to_tgtd(s, settings=IMPATIENT) as (guest, target, initiator):
        disk = initiator.login()
        job = guest.start(["sh", "-c", f"fio --name=verify --filename={disk} --size=24m --rw=randwrite --bs=4k --iodepth=8 "
                           "--ioengine=libaio --direct=1 --verify=crc32c --do_verify=1 --rate=,4m --verify_fatal=1"])
        time.sleep(2)
        if job.rc is not None:
            raise Failed(f"fio has ended before the target is killed: {job.out}")
        target.kill()
        time.sleep(1)
        target.start()
        if job.wait(150) != 0 or not re.search(r"err= 0\b", job.out):
            raise Failed(f"fio: exit status {job.rc}: {job.out[-2000:]}")
        initiator.logout()
        return "fio goes on after a new login, every block verified"


def target_stays_away(s):
    """Requests fail, the guest goes on."""
    with to_tgtd(s, settings={**IMPATIENT, "node.session.timeo.replacement_timeout": 5}) as (guest, target, initiator):
        disk = initiator.login()
        job = guest.start(["sh", "-c", f"while dd if=/dev/zero of={disk} bs=64k count=256 oflag=direct conv=notrunc; "
                           "do :; done"])
        time.sleep(2)
        target.kill()
        then = time.monotonic()
        if job.wait(90) is None or "Input/output error" not in job.out:
            raise Failed(f"dd ends with {job.rc}: {job.out[-500:]}")
        took = time.monotonic() - then
        run(guest, "true")
        return f"dd has an I/O error after {took:.0f} s, by the initiator's settings; the guest goes on"


# ---------------------------------------------------- libiscsi's programs, LIO

LIO = "iqn.2026-01.test:lio"
LIO_MAKE = f"""set -e
cd /sys/kernel/config/target
mkdir -p core/iblock_0/disk iscsi/{LIO}/tpgt_1/lun/lun_0
echo udev_path=/dev/ram0 >core/iblock_0/disk/control
echo 1 >core/iblock_0/disk/enable
cd iscsi/{LIO}/tpgt_1
ln -s /sys/kernel/config/target/core/iblock_0/disk lun/lun_0/disk
for a in authentication=0 demo_mode_write_protect=0 generate_node_acls=1 cache_dynamic_acls=1; do
	echo ${{a#*=}} >attrib/${{a%=*}}
done
# libiscsi would say that there is some, and send none; LIO closes the connection then.
echo No >param/ImmediateData
for a in $ADDRESSES; do
	mkdir "np/$a:{PORT}"
	echo 1 >"np/$a:{PORT}/iser"
done
echo 1 >enable"""
LIO_END = f"""cd /sys/kernel/config/target/iscsi/{LIO}/tpgt_1 || exit 0
echo 0 >enable
rmdir np/*
rm -f lun/lun_0/disk
rmdir lun/lun_0
cd ../..
rmdir {LIO}/tpgt_1 {LIO}
cd ..
rmdir iscsi core/iblock_0/disk core/iblock_0"""


@contextlib.contextmanager
def lio(s):
    """LIO in the guest with a disk of its memory, by IPv4 and IPv6."""
    guest = s.guest()
    if guest.run(["test", "-b", "/dev/ram0"])[0]:
        raise Skipped("the guest's kernel has no /dev/ram0")
    try:
        run(guest, f"ADDRESSES='{guest.ip4} [{guest.ip6}]'\n{LIO_MAKE}")
        yield guest
    except Failed as e:
        raise Failed(f"{e}\n--- the guest\n{last_of(guest)}") from e
    finally:
        if guest.alive():
            guest.run(["sh", "-c", LIO_END], 60)


def url(guest, version):
    address = f"[{guest.ip6}]" if version == 6 else guest.ip4
    return f"iser://{address}:{PORT}/{LIO}/0"


def has(out, *texts):
    for text in texts:
        if not re.search(text, out):
            raise Failed(f"no {text!r} in: {out[-2000:]}")


def tools(s, version):
    need("iscsi-inq", "iscsi-readcapacity16", "iscsi-perf")
    with lio(s) as guest:
        disk = url(guest, version)
        has(run(s.host, ["iscsi-inq", disk]), "LIO-ORG")
        has(run(s.host, ["iscsi-readcapacity16", disk]), f"Total size:{RAM * MIB}")
        out = run(s.host, ["iscsi-perf", "-t", "2", "-m", "16", "-b", "32", disk], 60)
        has(out, "finished.")
        return "iscsi-inq, -readcapacity16, -perf with 16 at once"


CHUNK = 256     # KiB, the longest that libiscsi can do


def copied(s, guest, disk, mib):
    """Random bytes to the disk by qemu-io, and back by qemu-img; the guest reads the same from its disk."""
    path, back = os.path.join(s.dir, "iser-image"), os.path.join(s.dir, "iser-back")
    data = os.urandom(mib * MIB)
    words = []
    for i in range(mib * 1024 // CHUNK):
        with open(f"{path}.{i}", "wb") as f:
            f.write(data[i * CHUNK * 1024:(i + 1) * CHUNK * 1024])
        words += ["-c", f"write -s {path}.{i} {i * CHUNK}k {CHUNK}k"]
    run(s.host, ["qemu-io", "-f", "raw", *words, "-c", "flush", disk], 200)
    run(s.host, ["qemu-img", "dd", "-f", "raw", "-O", "raw", f"bs={CHUNK}k", f"count={mib * 1024 // CHUNK}", f"if={disk}",
                 f"of={back}"], 200)
    with open(back, "rb") as f:
        if f.read(len(data)) != data:
            raise Failed("what qemu-img reads is not what qemu-io has written")
    out = run(guest, f"blockdev --flushbufs /dev/ram0; head -c {len(data)} /dev/ram0 | sha256sum", 60)
    if out.split()[0] != hashlib.sha256(data).hexdigest():
        raise Failed("the guest's disk has something else")


def qemu(s, version):
    need("qemu-img", "qemu-io")
    with lio(s) as guest:
        disk = url(guest, version)
        if "Unknown protocol" in run(s.host, ["qemu-img", "info", disk], 60, rc=None):
            raise Skipped("not installed: qemu-block-extra (scripts/deps storage)")
        then = time.monotonic()
        copied(s, guest, disk, 16)
        took = time.monotonic() - then
        run(s.host, ["qemu-img", "bench", "-f", "raw", "-w", "-c", "2000", "-d", "32", "-s", "4096", disk], 120)
        return f"16 MiB there by qemu-io and back by qemu-img in {took:.0f} s; 2,000 writes of qemu-img bench, 32 at once"


def qemu_with_loss(s):
    need("qemu-img", "qemu-io")
    with lio(s) as guest:
        then = time.monotonic()
        with lossy(guest):
            copied(s, guest, url(guest, 4), 4)
        return f"4 MiB there by qemu-io and back by qemu-img in {time.monotonic() - then:.0f} s"


def initiator_killed(s):
    """In the middle of deep queues. Nothing says so to LIO: rxe repeats without end, and LIO has no timer for iSER. Others
    log in beside that, and it ends when the target is taken down."""
    need("iscsi-perf", "iscsi-readcapacity16")
    tpg = f"/sys/kernel/config/target/iscsi/{LIO}/tpgt_1"
    with lio(s) as guest:
        disk = url(guest, 4)
        for _ in range(3):
            job = s.host.start(["iscsi-perf", "-t", "30", "-m", "32", "-b", "128", disk])
            until(lambda: "iops" in job.out or job.rc is not None, lambda: f"iscsi-perf runs: {job.out[-500:]}", 30)
            if job.rc is not None:
                raise Failed(f"iscsi-perf ends with {job.rc}: {job.out[-2000:]}")
            job.kill()
            has(run(s.host, ["iscsi-readcapacity16", disk], 60), f"Total size:{RAM * MIB}")
        has(run(s.host, ["iscsi-perf", "-t", "1", "-m", "32", "-b", "128", disk], 60), "finished.")
        run(guest, f"echo 0 >{tpg}/enable", 60)
        until(lambda: not run(guest, f"cat {tpg}/dynamic_sessions", rc=None).strip("\0\n "), "LIO has no session left", 20)
        return "killed 3 times with 32 reads on their way; others log in; LIO ends these sessions when it is told to"


CASES = (
    ("iSER, kernel to tgtd, IPv4", kernel_to_tgtd),
    ("iSER, kernel to tgtd, IPv6", kernel_by_ipv6),
    ("iSER, kernel to tgtd, 1 % loss", kernel_with_loss),
    ("iSER, kernel to tgtd, which is killed and started again", target_comes_again),
    ("iSER, kernel to tgtd, which is killed", target_stays_away),
    ("iSER, libiscsi's programs to LIO, IPv4", lambda s: tools(s, 4)),
    ("iSER, libiscsi's programs to LIO, IPv6", lambda s: tools(s, 6)),
    ("iSER, QEMU to LIO, IPv4", lambda s: qemu(s, 4)),
    ("iSER, QEMU to LIO, IPv6", lambda s: qemu(s, 6)),
    ("iSER, QEMU to LIO, 1 % loss", qemu_with_loss),
    ("iSER, an initiator of LIO is killed", initiator_killed),
)
