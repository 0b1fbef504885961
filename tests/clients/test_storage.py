"""Disks over RDMA: the target tgt, and libiscsi over iSER as its initiator."""
import os
import subprocess

import pytest

import rig

pytestmark = pytest.mark.full
TARGET, INITIATOR = "iqn.2026-01.test:disk", "iqn.2026-01.test:me"
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
    port = 20000 + rig.free_port() % 10000  # it keeps the port in a short
    with open(backing, "wb") as f:
        f.truncate(SIZE)
    env = {"TGT_IPC_SOCKET": str(tmp_path / "tgtd")}
    server = rig.Proc(place.server, ["tgtd", "-f", "--iscsi", f"portal={place.host}:{rig.free_port()}",
                                     "--iser", f"port={port}"], place.options, env)

    def admin(*words):
        subprocess.run(["tgtadm", "--lld", "iser", *words], check=True, timeout=rig.LIMIT, env={**os.environ, **env})

    try:
        server.wait_for("use signalfd notification|backing-store")
        rig.until(lambda: os.path.exists(f"{tmp_path}/tgtd.0"), "tgtd listens for tgtadm", server)
        target = ["--mode", "target", "--tid", "1"]
        admin("--op", "new", *target, "-T", TARGET)
        admin("--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", str(backing))
        # It wants the address and the name of who may log in.
        for who in (["-I", "ALL"], ["-Q", INITIATOR]):
            admin("--op", "bind", *target, *who)
        yield f"iser://{place.host}:{port}/{TARGET}/1", server
    finally:
        server.kill()


@pytest.mark.parametrize("place", ["local", "copy", "udp", "wire", "netns"], indirect=True)
def test_iscsi(place, disk):
    """libiscsi's tools, and of its own tests those of data. tgtd takes for granted that it hears of the end of its
    login response before the initiator's next request comes."""
    need("iscsi-inq", "iscsi-readcapacity16", "iscsi-perf", "iscsi-test-cu")
    url, server = disk

    def tool(name, *args):
        return rig.Proc(place.client, [name, "-i", INITIATOR, *args, url], place.options).done(beside=server)

    assert "VIRTUAL-DISK" in tool("iscsi-inq")
    assert f"Total size:{SIZE}" in tool("iscsi-readcapacity16")
    assert "finished." in tool("iscsi-perf", "-t", "1", "-m", "8", "-b", "128")
    for test in ("Read10.Simple", "Read16.Simple", "Write10.Simple", "Write16.Simple", "Verify10.Simple"):
        out = tool("iscsi-test-cu", "-d", "-f", "-t", f"SCSI.{test}")
        assert "...passed" in out and "return value: 0" in out and "FAILED" not in out, out
