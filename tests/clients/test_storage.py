"""Disks over RDMA: the target tgt, and libiscsi over iSER as its initiator."""
import os

import pytest

import rig
import tgt

pytestmark = pytest.mark.full
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
