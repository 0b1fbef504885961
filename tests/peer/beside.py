"""softhca in the guest, where the kernel's rxe has UDP port 4791.

Its processes reach each other, as they need no port for that; what needs the
port fails at once, and the message names who has it.
"""
import re

import lab
from scenarios import unexplained

SCENARIOS = ["rc_send", "rc_read", "uc_write", "ud_send"]


def peer(session, *args):
    return [session.args.softhca, "run", "--", session.args.peer, *args]


def talk(session, server, client, ip, *names):
    """Runs the peer program's scenarios from one place to another: (rc, output)."""
    port = str(18800 + ip)
    # The host's programs run under softhca run as they are.
    argv = peer(session, "server", "-a", server.ip(ip), "-p", port)
    job = server.start(argv if server.kind == "rxe" else argv[3:])
    try:
        if not job.wait_for("listening", 15):
            raise lab.LabError("the peer server does not start: " + job.out)
        return client.run(peer(session, "client", "-a", client.ip(ip), "-c", server.ip(ip), "-p", port, *names),
                          30 + 70 * len(names))
    finally:
        job.kill()


def same_host(session, ip):
    guest = session.guest(1)
    rc, out = talk(session, guest, guest, ip, *SCENARIOS)
    passed = re.findall(r"^(\w+) (?:softhca: .*\n)*PASS", out, re.M)
    if rc != 0 or passed != SCENARIOS:
        return "FAIL", f"ends with {rc}: {unexplained(out)[-300:]}"
    says = f"UDP port 4791 of {guest.ip(ip)} is taken by the kernel"
    return ("PASS", "") if says in out else ("FAIL", f"does not say that {says}: {out[-300:]}")


def other_host(session, ip):
    rc, out = talk(session, session.host, session.guest(1), ip, "rc_send")
    if rc != 1 or "Address already in use" not in out:
        return "FAIL", f"ends with {rc}, not with EADDRINUSE: {out[-300:]}"
    return "PASS", ""


def run(session):
    for ip in (4, 6):
        for what, case in (("processes of one host reach each other", same_host),
                           ("towards other hosts the port's loss is reported at once", other_host)):
            what = f"rxe has port 4791, IPv{ip}: {what}"
            if not session.wanted(what):
                continue
            try:
                session.report.add_other(what, *case(session, ip))
            except (lab.LabError, OSError) as e:
                session.report.add_other(what, "FAIL", str(e))
