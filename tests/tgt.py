"""tgtd, a target in user space, which serves files as disks by iSER, by iSCSI over TCP, or both.

It wants to be root, and the port of iSER below 32768: it keeps it in a short. By iSER it listens on all
addresses.
"""
import os
import subprocess

TARGET, INITIATOR = "iqn.2026-01.test:disk", "iqn.2026-01.test:me"


class Tgtd:
    """start(argv, env) starts a program, and returns it; its socket, by which it is told things, is in folder."""

    def __init__(self, folder, start, host, iscsi_port, iser_port):
        self.env = {"TGT_IPC_SOCKET": os.path.join(folder, "tgtd")}
        self.proc = start(["tgtd", "-f", "--iscsi", f"portal={host}:{iscsi_port}", "--iser", f"port={iser_port}"], self.env)

    def is_up(self):
        """Whether it can be told things."""
        return os.path.exists(self.env["TGT_IPC_SOCKET"] + ".0")

    def serve(self, lld, tid, backing, name=TARGET, initiator=INITIATOR, limit=40):
        """A disk, LUN 1 of a target of that name; lld: iser or iscsi."""
        target = ["--mode", "target", "--tid", str(tid)]
        for words in (["--op", "new", *target, "-T", name],
                      ["--op", "new", "--mode", "logicalunit", "--tid", str(tid), "--lun", "1", "-b", str(backing)],
                      # It wants the address and the name of who may log in.
                      ["--op", "bind", *target, "-I", "ALL"], ["--op", "bind", *target, "-Q", initiator]):
            subprocess.run(["tgtadm", "--lld", lld, *words], check=True, timeout=limit, env={**os.environ, **self.env})
