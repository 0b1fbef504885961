"""Disks over RDMA: the target tgt, and libiscsi over iSER as its initiator; a host and a controller of NVMe over
Fabrics (tests/peer/nvmf), both ours. With the kernel at one end: tests/storage."""
import contextlib
import os
import re
import signal

import pytest

import rig
import tgt

SIZE = 32 << 20


def need(*programs):
    if missing := rig.need(*programs):
        pytest.skip(f"not installed: {' '.join(missing)} (scripts/deps full)")


@pytest.fixture
def disk(place, tmp_path):
    """The URL of a disk that tgtd serves, and tgtd."""
    need("tgtd", "tgtadm")
    if os.geteuid():
        pytest.skip("tgtd wants to be root")
    backing = tmp_path / "disk"
    port = rig.free_port()
    with open(backing, "wb") as f:
        f.truncate(SIZE)
    server = tgt.Tgtd(tmp_path, lambda argv, env: rig.Proc(place.server, argv, place.options, env), place.host,
                      rig.free_port(), port)
    try:
        rig.until(server.is_up, "tgtd listens for tgtadm", server.proc)
        server.serve("iser", 1, backing, limit=rig.LIMIT)
        yield f"iser://{place.host}:{port}/{tgt.TARGET}/1", server.proc
    finally:
        server.proc.kill()


@pytest.mark.full
@pytest.mark.parametrize("place", ["local", "copy", "udp", "wire", "netns"], indirect=True)
def test_iscsi(place, disk):
    """libiscsi's tools, and of its own tests those of data. tgtd takes for granted that it hears of the end of its
    login response before the initiator's next request comes."""
    need("iscsi-inq", "iscsi-readcapacity16", "iscsi-perf", "iscsi-test-cu")
    url, server = disk

    def tool(name, *args):
        return rig.Proc(place.client, [name, "-i", tgt.INITIATOR, *args, url], place.options).done(beside=server)

    assert "VIRTUAL-DISK" in tool("iscsi-inq")
    assert f"Total size:{SIZE}" in tool("iscsi-readcapacity16")
    assert "finished." in tool("iscsi-perf", "-t", "1", "-m", "8", "-b", "128")
    for test in ("Read10.Simple", "Read16.Simple", "Write10.Simple", "Write16.Simple", "Verify10.Simple"):
        for _ in range(3):
            cu = rig.Proc(place.client, ["iscsi-test-cu", "-i", tgt.INITIATOR, "-d", "-f", "-t", f"SCSI.{test}", url], place.options)
            if cu.wait() >= 0 and "Conn disconnected event" not in cu.output():
                break   # else libiscsi's thread of its first connection has read or written what was freed (docs/CLIENTS.md)
        out = cu.done(beside=server)
        assert "...passed" in out and "return value: 0" in out and "FAILED" not in out, out


# ---- NVMe over Fabrics -------------------------------------------------------

NVMF = os.path.join(rig.BUILD, "tests", "peer", "nvmf")


@contextlib.contextmanager
def nvme_controller(place, tmp_path, *words, options=()):
    """Ours, the port, and the file of its namespace."""
    disk, port = tmp_path / "disk", rig.free_port()
    with open(disk, "wb") as f:
        f.truncate(SIZE)
    server = rig.Proc(place.server, [NVMF, "controller", "-a", place.host, "-p", port, "-f", disk, *words],
                      [*place.options, *options])
    try:
        server.wait_for("^listening")
        yield server, port, disk
        server.tell(signal.SIGTERM)
        server.done()
    finally:
        server.kill()


def nvme_host(place, server, port, *words, options=()):
    p = rig.Proc(place.client, [NVMF, "host", "-a", place.host, "-p", port, *words], [*place.options, *options])
    try:
        return p.done(beside=server)
    finally:
        p.kill()


@rig.combinations(["place"], [[p] for p in [*rig.PLACES, *rig.IWARP_PLACES]], lambda p: p in ("local", "netns", "iwarp"))
def test_nvme(place, tmp_path):
    """Four queues of 128 commands: all opcodes and kinds of SGL descriptors, with remote invalidation of windows; the
    controller is reset in the middle; commands and descriptors that are refused."""
    with nvme_controller(place, tmp_path) as (server, port, _):
        out = nvme_host(place, server, port, "-c", 2, "verify", "reset", "errors")
        assert re.search(r"[1-9]\d* keys invalidated, 0 resets", out) and "5 resets" in out, out
    for reason in re.findall(r"queue [1-9]\d* ends: (.*)", server.output()):
        assert reason in ("the controller is reset", "RDMA_CM_EVENT_DISCONNECTED", "its admin queue has ended",
                          "Work Request Flushed Error"), server.output()


@rig.combinations(["place"], [[p] for p in ("local", "wire", "netns", "iwarp", "iwarp_netns")], lambda p: p in ("local", "netns", "iwarp"))
def test_nvme_hostile(place, tmp_path):
    """Hosts that end their queue, or are not let in. The controller serves the next one."""
    with nvme_controller(place, tmp_path) as (server, port, _):
        out = nvme_host(place, server, port, "-q", 2, "-d", 8, "hostile")
        assert out.count(": the queue has ended") == 9, out
    assert "a command capsule of less than 64 bytes" in server.output()


@pytest.mark.parametrize("place", ["local", "wire", "iwarp"], indirect=True)
def test_nvme_silent(place, tmp_path):
    """A controller that answers no command of I/O: the host's ends, and the host."""
    with nvme_controller(place, tmp_path, "-s", 1) as (server, port, _):
        assert "queue 1 has ended: no response in time" in nvme_host(place, server, port, "-t", 500, "silent")


def test_nvme_event(placements, tmp_path):
    """The namespace grows: an asynchronous event, and the log page that says which it is."""
    place = placements("local")
    with nvme_controller(place, tmp_path) as (server, port, disk):
        host = rig.Proc(place.client, [NVMF, "host", "-a", place.host, "-p", port, "-q", 1, "event"])
        try:
            host.wait_for("^waits")
            os.truncate(disk, 2 * SIZE)
            server.tell(signal.SIGHUP)
            assert "namespace 1 has changed" in host.done(beside=server)
        finally:
            host.kill()


def test_nvme_lossy(placements, tmp_path):
    """1 % of the packets is lost, in both directions."""
    place = placements("wire")
    loss = ["--loss", 1, "--seed", 3]
    with nvme_controller(place, tmp_path, options=loss) as (server, port, _):
        nvme_host(place, server, port, "-c", 2, "-d", 32, "verify", options=loss)


@pytest.mark.parametrize("place", ["local", "wire"], indirect=True)
def test_nvme_checked(place, tmp_path, monkeypatch):
    """Neither end has latent bugs: buffers that change in flight, keys that are used too long."""
    found = tmp_path / "found.jsonl"
    monkeypatch.setenv("SOFTHCA_CHECK", f"json={found}")
    with nvme_controller(place, tmp_path) as (server, port, _):
        nvme_host(place, server, port, "-c", 2, "-d", 32, "verify")
    assert not found.exists(), found.read_text()
