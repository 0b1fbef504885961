"""QEMU moves a running machine over RDMA, and its memory arrives."""
import json
import os
import socket

import pytest

import rig

pytestmark = pytest.mark.full
# A boot sector that fills 512 KiB with one number after the other, for ever:
# memory changes while it is being sent.
BOOT = bytes.fromhex(
    "31db"      # xor bx, bx
    "b80010"    # again: mov ax, 0x1000
    "8ec0"      # next: mov es, ax
    "31ff"      # xor di, di
    "26881d"    # fill: mov es:[di], bl
    "47"        # inc di
    "75fa"      # jnz fill
    "050010"    # add ax, 0x1000
    "3d0090"    # cmp ax, 0x9000
    "75ee"      # jne next
    "43"        # inc bx
    "ebe8"      # jmp again
)


class Machine:
    """A machine without devices, and its monitor."""

    def __init__(self, side, options, where, *words):
        self.path = os.path.join(where, "qmp")
        image = os.path.join(where, "boot")
        with open(image, "wb") as f:
            f.write(BOOT.ljust(510, b"\0") + b"\x55\xaa")
        self.proc = rig.Proc(side, [
            "qemu-system-x86_64", "-machine", "pc,accel=tcg", "-m", "64", "-display", "none", "-nodefaults",
            "-no-user-config", "-drive", f"file={image},format=raw,if=floppy,read-only=on",
            "-qmp", f"unix:{self.path},server=on,wait=off", *words], options)
        try:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(rig.LIMIT)
            rig.until(lambda: not self.socket.connect_ex(self.path), "its monitor listens", self.proc)
            self.file = self.socket.makefile("rw")
            self.file.readline()
            self.ask("qmp_capabilities")
        except BaseException:
            self.proc.kill()
            raise

    def ask(self, command, **arguments):
        self.file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.file.flush()
        while True:
            answer = json.loads(self.file.readline() or '{"error": "it has ended"}')
            if "error" in answer:
                raise rig.Failed(f"{command}: {answer['error']}\n{self.proc.describe()}")
            if "return" in answer:
                return answer["return"]

    def word(self, command):
        return self.ask("human-monitor-command", **{"command-line": command})

    def memory(self, path):
        self.ask("pmemsave", val=0, size=0xa0000, filename=str(path))
        with open(path, "rb") as f:
            return f.read()

    def end(self):
        self.proc.kill()


@pytest.mark.parametrize("pin", [False, True], ids=["registered", "pinned"])
def test_migration(place, tmp_path, pin):
    if missing := rig.need("qemu-system-x86_64"):
        pytest.skip(f"not installed: {missing} (scripts/deps full)")
    port = rig.free_port()
    machines = []
    try:
        for name, side, words in (("there", place.server, ["-incoming", "defer"]), ("here", place.client, [])):
            (tmp_path / name).mkdir()
            machines.append(Machine(side, place.options, str(tmp_path / name), *words))
            machines[-1].ask("migrate-set-capabilities",
                             capabilities=[{"capability": "rdma-pin-all", "state": pin}])
        there, here = machines
        there.ask("migrate-incoming", uri=f"rdma:{place.host}:{port}")
        rig.until(lambda: here.memory(tmp_path / "m")[0x20000] != 0, "the machine here writes", here.proc)
        here.ask("migrate", uri=f"rdma:{place.host}:{port}")
        state = rig.until(lambda: (s := here.ask("query-migrate").get("status")) in ("completed", "failed") and s,
                          "the migration ends", here.proc, 2 * rig.LIMIT)
        assert state == "completed", here.proc.describe() + there.proc.describe()
        there.ask("stop")
        sent = here.memory(tmp_path / "sent")
        # It went on there; what nobody writes is the same.
        code = sent.index(BOOT)
        assert there.memory(tmp_path / "got")[code:code + 512] == sent[code:code + 512]
        before = there.memory(tmp_path / "got")[0x10000:0x90000]
        there.ask("cont")
        rig.until(lambda: there.memory(tmp_path / "got")[0x10000:0x90000] != before, "the machine there writes", there.proc)
    finally:
        for m in machines:
            m.end()
