"""softhca and the kernel's other soft RDMA driver, siw, over TCP.

Scenarios of the peer program, of which those of errors say which Terminate
messages (RFC 5040 4.8) are to be on the wire, "[B 1.1.00, ...]": by whom, layer,
type and code. tshark looks for them in what was captured, and at the CRCs. Then
the distribution's tools, connections that are refused, and peers that die.
"""
import os
import re
import shutil

import lab
import packets
import scenarios
import tools
from cases import (CRC_TOOLS, IWARP_LOSES, IWARP_LOSES_MORE, IWARP_REJECTIONS, IWARP_SCENARIOS, IWARP_TOOLS, LOSES,
                   NETEM, QUICK_IWARP, QUICK_IWARP_SCENARIOS, SIW_LACKS, SIW_RESETS)
from interop import IWARP, IWARP_CRC, SIW, SIW2

PORTS = range(18700, 18900)     # of the peer program's connections, see its -i
WAYS = ((IWARP, SIW), (SIW, IWARP))
CRC_WAYS = ((IWARP_CRC, SIW), (SIW, IWARP_CRC))
LIMIT = 30      # s, within which one end has noticed the other's death


def terminates(path, siw):
    """Port of the responder -> Terminates in their order: (address, "layer.type.code"),
    each once: on a busy machine TCP may send it again.

    siw: whose they are written with layer and type exchanged, see SIW_DIFFERS.
    """
    types = [f"iwarp_rdma.term_etype{x}" for x in ("", "_rdma", "_ddp", "_llp")]
    codes = [f"iwarp_rdma.term_errcode{x}" for x in ("", "_rdma", "_ddp_tagged", "_ddp_untagged", "_llp")]
    fields = ["ip.src", "ipv6.src", "tcp.stream", "tcp.seq_raw", "tcp.srcport", "tcp.dstport", "iwarp_rdma.term_layer"] + types + codes
    out = packets.tshark(path, "-Y", "iwarp_rdma.opcode == 7", "-T", "fields", "-E", "separator=;",
                         *(x for f in fields for x in ("-e", f)))
    if out.returncode:
        raise lab.LabError("tshark: " + out.stderr.strip()[-200:])
    seen, segments = {}, set()
    for line in out.stdout.splitlines():
        v4, v6, stream, seq, *words = line.split(";")
        if (v4 or v6, stream, seq) in segments:
            continue
        segments.add((v4 or v6, stream, seq))
        sport, dport, layer = (int(w, 0) for w in words[:3])
        kind = int(next(w for w in words[3:3 + len(types)] if w), 0)
        code = int(next((w for w in words[3 + len(types):] if w), "0"), 0)
        address = v4 or v6
        if address in siw:
            layer, kind = kind, layer
        port = dport if dport in PORTS else sport
        seen.setdefault(port, []).append((address, f"{layer}.{kind}.{code:02x}"))
    return seen


def crcs(path):
    """FPDUs whose CRC tshark finds right, and wrong."""
    out = packets.tshark(path, "-O", "iwarp_mpa", "-Y", "iwarp_mpa.fpdu").stdout
    return out.count("(Good CRC32)"), out.count("(Bad CRC32")


def once(session, direction, ip, mtu, names, net):
    """As scenarios.one_run(), and the wire has what the scenarios say."""
    path = os.path.join(session.args.captures or session.lab.dir, "iwarp.pcap")
    capture = packets.Capture(session.guest(SIW).tap, path, packets.is_tcp_of(PORTS))
    try:
        results = scenarios.one_run(session, direction, ip, mtu, names, net)
    finally:
        missed = capture.stop()
    said = {}
    for name, (verdict, note, window) in results.items():
        if m := re.match(r"\[(.*?)\] ?", note):
            said[name] = m[1]
            results[name] = verdict, note[m.end():], window
    if IWARP_CRC in direction and shutil.which("tshark") and not missed:
        good, bad = crcs(path)
        if bad or not good:
            results = {n: ("FAIL", f"tshark: {good} CRCs are right, {bad} wrong", w) for n, (_, _, w) in results.items()}
    if said and shutil.which("tshark") and not missed:
        ends = [session.place(d).ip(ip) for d in direction]
        seen = terminates(path, [session.guests[n].ip(ip) for n in (SIW, SIW2) if n in session.guests])
        for name, want in said.items():
            port = PORTS[list(session.what).index(name)]
            got = ", ".join(f"{'AB'[ends.index(a)]} {what}" for a, what in seen.get(port, []))
            if results[name][0] == "PASS" and got != want:
                results[name] = "FAIL", f"wrong Terminate messages on the wire: {got}, not {want}", results[name][2]
    if not session.args.captures:
        os.unlink(path)
    return results


def operations(session, quick):
    for direction in WAYS if quick else WAYS + CRC_WAYS + ((SIW2, SIW),):
        crc = IWARP_CRC in direction
        for ip in (4,) if quick or SIW2 in direction else (4, 6):
            names = QUICK_IWARP_SCENARIOS if quick else IWARP_SCENARIOS
            if crc and ip == 6:
                names = QUICK_IWARP_SCENARIOS
            scenarios.run(session, direction, ip, None,
                          [n for n in names if not (direction[1] == SIW and n in SIW_LACKS)], once=once)
            for name in names:
                if direction[1] == SIW and name in SIW_LACKS and session.wanted(
                        session.report.arrow(direction), f"ipv{ip}", "iwarp", name):
                    session.report.add("iwarp", name, direction, ip, "SKIP", SIW_LACKS[name])


def programs(session, quick):
    for direction in WAYS + CRC_WAYS:
        crc = IWARP_CRC in direction
        for ip in (4,) if quick else (4, 6):
            for name, *commands in IWARP_TOOLS:
                if name in QUICK_IWARP and not crc if quick else name in CRC_TOOLS or not crc:
                    tools.tool(session, "iwarp", name, direction, ip, *commands)
            if crc or quick:
                continue
            for name, *rejection in IWARP_REJECTIONS:
                tools.rejection(session, name, direction, ip, *rejection, table="iwarp")
            for who in ("server", "client"):
                death(session, direction, ip, who)


def pings(place, address, count):
    return place.start(f"stdbuf -oL rping -c -a {address} -p 7475 -v -V -S 2000 -C {count}".split())


def death(session, direction, ip, who):
    """One end is killed in the middle: the other one hears of it, and a server serves the next."""
    name = f"{who} killed"
    if not session.wanted(session.report.arrow(direction), f"ipv{ip}", "iwarp", name):
        return
    try:
        verdict, note = "FAIL", one_death(session, direction, ip, who)
        if not note:
            verdict = "PASS"
    except (lab.LabError, OSError) as e:
        verdict, note = "FAIL", str(e)
    session.report.add("iwarp", name, direction, ip, verdict, note)


def one_death(session, direction, ip, who):
    """What is wrong, or nothing."""
    c, s = session.place(direction[0]), session.place(direction[1])
    server, listens = s.starts_to_listen(lambda: s.start(f"rping -s -P -a {s.ip(ip)} -p 7475 -S 2000".split()), s.cm_listening,
                                         tools.LISTENS)
    client = None
    try:
        if not listens:
            return "the server does not listen: " + server.out[-200:]
        client = pings(c, s.ip(ip), 1000000)
        if not client.wait_for("rdma-ping-3:", 20):
            return "the client does not ping: " + client.out[-200:]
        if who == "client":
            client.kill()
            client = pings(c, s.ip(ip), 3)
            if client.wait(LIMIT) != 0 or "rdma-ping-2:" not in client.out:
                return "the server does not serve the next client: " + client.out[-200:] + server.out[-200:]
            return None
        server.kill()
        if not client.ended(LIMIT):
            return f"the client does not notice it within {LIMIT} s"
        return None if "DISCONNECT EVENT" in client.out else "the client says: " + client.out[-200:]
    finally:
        server.kill()
        if client:
            client.kill()


def disturbed(session):
    """All packets of the guest get lost as often, the tests' own as well."""
    jobs = [(d, 4, t) for d in WAYS for t in IWARP_TOOLS if t[0] in IWARP_LOSES] + \
        [(d, ip, t) for ways, ip in ((WAYS, 6), (CRC_WAYS, 4)) for d in ways for t in IWARP_TOOLS
         if t[0] in IWARP_LOSES_MORE]
    jobs = [(d, ip, t) for d, ip, t in jobs
            if session.wanted(session.report.arrow(d), f"ipv{ip}", "iwarp", f"{t[0]}, {LOSES}")]
    for job in [j for j in jobs if j[0][1] == SIW and j[2][0] in SIW_RESETS]:
        session.report.add("iwarp", f"{job[2][0]}, {LOSES}", *job[:2], "SKIP", SIW_RESETS[job[2][0]])
        jobs.remove(job)
    if not jobs:
        return
    with session.netem(NETEM[LOSES], SIW):
        for direction, ip, (name, *commands) in jobs:
            tools.tool(session, "iwarp", f"{name}, {LOSES}", direction, ip, *commands)


def run(session, quick):
    operations(session, quick)
    programs(session, quick)
    if not quick:
        disturbed(session)
