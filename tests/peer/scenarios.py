"""Scenarios of the peer program, see src/peer.c: one feature of verbs each."""
import re

import lab
import tries
from session import Attempt


def unexplained(text):
    """Output without what --explain adds to it."""
    return re.sub(r"softhca: (QP|process|ibv_\w+|rdma_\w+|RDMA_\w+):? .*\n", "", text)


def run(session, direction, ip, mtu, names, net="", once=None):
    """Runs scenarios; direction is (client, server). mtu: None over iWARP. once: instead of one_run()."""
    arrow = session.report.arrow(direction)
    words = f"mtu{mtu}" if mtu else "iwarp"
    names = [n for n in names if session.wanted(arrow, f"ipv{ip}", words, net, n)]
    seen, reasons = {}, {n: [] for n in names}
    left = names
    for _ in range(tries.ATTEMPTS):
        if not left:
            break
        attempt = Attempt(session)
        results = (once or one_run)(session, direction, ip, mtu, left, net)
        left = []
        for name, (verdict, note, window) in results.items():
            seen[name] = verdict, note
            if verdict == "FAIL" and (reason := attempt.again(direction, note, net, window)):
                session.report.say(f"     {arrow} ipv{ip} {words} {net} {name} runs again: {reason[0]}; it was: {note}")
                reasons[name].append(reason)
                left.append(name)
    for name in names:
        session.report.add(net or ("plain" if mtu else "iwarp"), name, direction, ip, *seen[name], mtu, reasons[name])


def one_run(session, direction, ip, mtu, names, net):
    """name -> (verdict, note, when it began and ended)"""
    other = session.lab.OTHER4 if ip == 4 else session.lab.OTHER6
    limit = 30 + 70 * len(names)
    job, out = None, ""
    try:
        server = session.server(direction[1], ip)
        client = session.place(direction[0])
        job = client.start([session.peer(direction[0]), "client", "-a", client.ip(ip), "-c", server.ip(ip),
                            "-p", session.port(direction[1], ip), "-m", str(mtu or 1024), "-o", other, *session.transport(direction[0])]
                           + (["-l"] + (["-k"] if "loss" in net else []) if net else []) + names)
        why = f"no end within {limit} s" if job.wait(limit) is None else "no result"
        out = job.out
    except (lab.LabError, OSError) as e:
        why = str(e)
    results = {n: ("FAIL", f"{why}: {unexplained(out).strip()[-300:]}", None) for n in names}
    for m in re.finditer(r"^(\w+) ((?:softhca: (?:QP|process) .*\n)*)(PASS|FAIL|SKIP) ?(.*)$", out, re.M):
        results[m[1]] = m[3], m[4].strip(), (job.when(m.start()), job.when(m.start(3)))
    return {n: results[n] for n in names}
