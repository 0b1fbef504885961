"""The distribution's tools between two places, see cases.py."""
import collections
import re
import time

import cases
import lab
import packets
import tries
from scenarios import unexplained
from session import Attempt

LISTENS = 20    # s, within which a server listens


def tool(session, table, name, direction, ip, server, client):
    if not session.wanted(session.report.arrow(direction), f"ipv{ip}", table, name):
        return
    lacks = cases.UNSUPPORTED.get((table, name, ip)) or cases.CLIENT_LACKS.get((name, direction[0]))
    if lacks:
        session.report.add(table, name, direction, ip, "SKIP", lacks)
        return
    reasons = []
    # perftest's client with -R may ask for its second connection before the
    # server listens for it. Refused, it repeats that with an rdma_cm_id that it
    # has freed, and may crash.
    twice = " -R " in client
    while True:
        attempt = Attempt(session)
        try:
            verdict, note = one_try(session, attempt, table, direction, ip, server, client)
        except (lab.LabError, OSError) as e:
            verdict, note = "FAIL", str(e)
        if verdict == "PASS" or not (reason := attempt.again(direction, note, table, twice=twice)) or \
                len(reasons) + 1 >= (tries.VOID if reason[0] == tries.TOO_EARLY else tries.ATTEMPTS):
            break
        session.report.say(f"     {session.report.arrow(direction)} ipv{ip} {table} {name} runs again: {reason[0]}; "
                           f"it was: {note}")
        reasons.append(reason)
    session.report.add(table, name, direction, ip, verdict, note, None, reasons)


def one_try(session, attempt, table, direction, ip, server, client):
    c, s = session.place(direction[0]), session.place(direction[1])
    # perftest and the pingpongs exchange parameters by TCP over IPv4
    cm = cases.wants_cm(server)
    values = {"ip": s.ip(ip) if cm else s.ip4, "me": c.ip(ip), "reject": session.args.reject,
              "group": "239.77.0.5" if ip == 4 else "ff0e::77:5"}
    sg = session.gid(direction[1], ip) if "{gid}" in server else 0
    cg = session.gid(direction[0], ip) if "{gid}" in client else 0
    # A lost disconnect is repeated by the kernel's CM for a minute, though the
    # other process has ended by now.
    patience = 1 if server.startswith("cmtime") else 90 if table in cases.NETEM else 5
    return both(session, attempt, s, server.format(gid=sg, **values), c, client.format(gid=cg, **values),
                cm, patience)


def last_packets(session):
    """Of what hangs: who has not answered whom."""
    if not session.capture:
        return ""
    session.capture.catch_up()
    last = collections.deque(packets.read(session.capture.path), 2)
    return "; last packets: " + " / ".join(map(packets.show, last))


def both(session, attempt, s, server, c, client, cm, patience):
    """Runs a server and its client: (verdict, note)."""
    def said(job):
        out = re.sub(r"softhca: process .*\n", "", job.out)     # --explain
        return " / ".join(out.strip().splitlines()[-4:])[-300:]

    state = s.groups if server.startswith("mckey") else s.cm_listening if cm else s.listening
    sj, listens = s.starts_to_listen(lambda: s.start(server.split()), state, LISTENS)
    if not listens:
        sj.kill()
        return "FAIL", f"the server does not listen within {LISTENS} s: {said(sj)}"
    cj = c.start(client.split())
    limit = 20 if "-c UC" in client else 40

    def nudged_until(job, seconds):
        """A packet of which user-mode Linux has missed the interrupt waits in the
        tap for the next one. RC sends again; UC, UD and the last DREQ of a
        program that ends (the kernel's CM does not repeat it either once the
        identifier is destroyed) wait for ever.
        """
        end = time.monotonic() + seconds
        while not job.ended(min(2, max(end - time.monotonic(), 0))) and time.monotonic() < end:
            for place in (c, s):
                place.nudge()
        return job.wait(0)

    crc = nudged_until(cj, limit)
    attempt.ends()
    src = nudged_until(sj, 1 if crc else patience)
    if crc is None:
        return "FAIL", (f"no end within {limit} s; client: {said(cj)}; server: {said(sj)}"
                        + last_packets(session))
    if crc:
        return "FAIL", f"client ends with {crc}: {said(cj)}; server: {said(sj)}"
    if src:
        return "FAIL", f"server ends with {src}: {said(sj)}"
    if src is None and not server.startswith("cmtime"):
        return "FAIL", (f"server has no end within {patience} s of its client: " + said(sj)
                        + last_packets(session))
    return "PASS", ""


def rejection(session, name, direction, ip, client, fails, says, table="cm"):
    """A client whose peer has nobody who listens."""
    if not session.wanted(session.report.arrow(direction), f"ipv{ip}", table, name):
        return
    try:
        c, s = session.place(direction[0]), session.place(direction[1])
        # so that somebody has the CM of that address at all
        idle, listens = s.starts_to_listen(
            lambda: s.start(f"rping -s -a {s.ip(ip)} -p 9777".split()), s.cm_listening, LISTENS)
        if not listens:
            raise lab.LabError("nobody has the CM: " + idle.out[-200:])
        job = c.start(client.format(ip=s.ip(ip), reject=session.args.reject).split())
        rc = job.wait(30)
        idle.kill()
        out = unexplained(job.out).strip()
        if rc is None:
            verdict, note = "FAIL", "no end within 30 s: " + out[-200:]
        elif bool(rc) != fails or not re.search(says, out):
            verdict, note = "FAIL", f"ends with {rc}, says: {out[-200:]}"
        else:
            verdict, note = "PASS", ""
    except (lab.LabError, OSError) as e:
        verdict, note = "FAIL", str(e)
    session.report.add(table, name, direction, ip, verdict, note)
