"""Programs that cannot work over softhca fail at once, and it is said why: the
table "What cannot work" of docs/CLIENTS.md."""
import subprocess

import pytest

import rig

pytestmark = pytest.mark.full
STATIC = """#include <infiniband/verbs.h>
int main(void) { return ibv_get_device_list(NULL) ? 0 : 3; }
"""


@pytest.mark.parametrize("cmd, seen, said", [
    (["raw_ethernet_lat", "--client", "-F", "-E", "00:11:22:33:44:55", "-B", "00:11:22:33:44:56"],
     "Unable to create QP", "ibv_create_qp: EOPNOTSUPP: qp_type 8: this device has RC, UC, UD"),
    (["ib_send_bw", "-c", "DC", "-F"], "Unable to create QP", "ibv_create_qp: EOPNOTSUPP: qp_type 255"),
    (["rdma", "link"], "Failed to open NETLINK_RDMA socket", None),
], ids=["raw", "DC", "rdma"])
def test_refused(home, cmd, seen, said):
    if missing := rig.need(cmd[0]):
        pytest.skip(f"not installed: {missing}")
    p, port = None, rig.free_port()
    more = ["-p", port] if cmd[0] == "ib_send_bw" else []
    side = rig.Side(home)
    server = rig.Proc(side, [*cmd, *more], ["--explain"])
    try:
        if more:  # both ends have to meet first
            server.wait_listening(port)
            p = rig.Proc(side, [*cmd, *more, "127.0.0.1"], ["--explain"])
        if server.wait() == 0 and cmd[0] == "rdma":
            pytest.skip("this kernel has RDMA")
        out = server.output()
        assert server.popen.returncode == 1 and seen in out and (not said or said in out), server.describe()
    finally:
        server.kill()
        if p:
            p.kill()


def test_static(tmp_path):
    """It has no loader that could be told; doctor knows."""
    source, program = tmp_path / "static.c", tmp_path / "static"
    source.write_text(STATIC)
    cc = subprocess.run(["cc", "-w", "-static", "-o", program, source, "-libverbs", "-lnl-route-3", "-lnl-3", "-lpthread"],
                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=rig.LIMIT)
    if cc.returncode:
        pytest.skip("no static libibverbs here")
    p = rig.Proc(rig.Side(), [program])
    assert p.wait() == 3 and "is statically linked" in p.output(), p.describe()
    p = subprocess.run([rig.SOFTHCA, "doctor", program], stdout=subprocess.PIPE, text=True, timeout=rig.LIMIT)
    assert p.returncode == 1 and "is statically linked" in p.stdout, p.stdout
