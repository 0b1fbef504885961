"""The guest sends mutated copies of its packets while a transfer runs."""
import collections
import re
import time

import lab


def drops(job):
    """What softhca's processes report to have dropped, by reason."""
    last = dict(re.findall(r"softhca: process (\d+): .* dropped: (.*)", job.out))
    sums = collections.Counter()
    for text in last.values():
        for why, n in re.findall(r"([^,]+?) (\d+)(?:, |$)", text.replace("; late ones, which do no harm: ", ", ")):
            sums[why] += int(n)
    return sums


def accounts(sent, whole, dropped):
    """The first way in which what was dropped is not what was sent, or None.

    sent: packets by what mutate made wrong; whole: those of them with nothing
    else wrong. What the kernel dropped for lack of room may be any of them.
    """
    lost = dropped["socket buffer full"]
    if lost > sum(sent.values()) // 2:
        return "most did not get as far as softhca"
    past = ("duplicate", "PSN ahead of the one due")
    live = whole["duplicate"] + whole["gap"]
    least = [
        (("malformed",), sent["cut off"]),
        (("bad ICRC",), whole["bad ICRC"]),
        (("malformed", "bad ICRC"), sent["cut off"] + sent["bad ICRC"]),
        (("no such QP",), whole["unused QP"]),
        (("malformed", "no such QP"), sent["cut off"] + sent["unused QP"]),
        (("unexpected opcode",), whole["QP 1"]),     # it takes datagrams
        (past, live),
        (("PSN ahead of the one due",), whole["gap"] // 3),     # the others are responses
        # All but what a victim may accept, such as a CNP.
        (tuple(dropped), sum(sent.values()) - sent["victim"] // 100),
    ]
    most = [
        (("bad ICRC",), sent["bad ICRC"]),
        (("no such QP",), sent["unused QP"]),
        (("malformed",), sum(sent.values()) - sum(whole.values())),
        # The transfer's own packets arrive twice as well when a NAK requests
        # them because of a gap.
        (tuple(dropped), sum(sent.values()) + 5 * sent["gap"]),
    ]
    for reasons, n in least:
        if sum(dropped[r] for r in reasons) + lost < n:
            return f"fewer than {n} for: {', '.join(reasons)}"
    for reasons, n in most:
        if sum(dropped[r] for r in reasons) > n:
            return f"more than {n} for: {', '.join(reasons)}"
    return None


def attack(session, direction, ip, count):
    port = str(18700 + ip)

    def client(scenario):
        return c.start([session.peer(direction[0]), "client", "-a", c.ip(ip), "-c", s.ip(ip),
                        "-p", port, "-s", "240", scenario])

    jobs = []
    try:
        c, s = session.place(direction[0]), session.place(direction[1])
        # A server of its own, so that all that it drops is of this attack.
        server = session.new_server(direction[1], ip, port)
        jobs.append(server)
        victims, stream = client("victims"), client("rc_stream")
        jobs += [victims, stream]
        if not victims.wait_for("ready\n", 20):
            return "FAIL", "no victims: " + victims.out[-200:]
        side = "A" if direction[0] == 0 else "B"
        targets = re.findall(rf"victim {side} (\S+)", victims.out)
        guest = session.guest(1)
        mutants = guest.start([session.args.mutate, "-i", "vec0", "-t", session.host.ip(ip),
                              "-n", str(count), "-r", "10000", "-s", str(int(time.time()))]
                             + [x for t in targets for x in ("-q", t)])
        rc = mutants.wait(180)
        report = mutants.out.strip().removeprefix("mutate: ")
        ended = [j.out for j in (stream, victims) if j.rc is not None]
        for job in (stream, victims):
            job.terminate()
            job.wait(60)
        # Its children end with their connections; the last end its output.
        server.terminate(alone=True)
        server.wait(30)
        if not guest.alive():
            return "FAIL", "the guest's kernel died: " + guest.last_words()
        if rc != 0:
            return "FAIL", f"mutate ends with {rc}: {report}"
        for job, what in ((stream, "transfer"), (victims, "bystanders")):
            if not re.search(r"^(\w+ )?PASS", job.out, re.M):
                return "FAIL", f"{what}: {job.out.strip()[-200:]}; {report}"
        if ended:
            return "FAIL", f"ended before the attack: {ended[0][-200:]}; {report}"
        dropped = collections.Counter()
        for job in (stream, victims) if direction[0] == 0 else (server,):
            dropped += drops(job)
        sent, whole = collections.Counter(), collections.Counter()
        for what, n, w in re.findall(r"(?:: |, )([\w ]+?) (\d+) \((\d+)\)", report):
            sent[what], whole[what] = int(n), int(w)
        if sum(sent.values()) != count:
            return "FAIL", "mutate's words are not understood: " + report
        rounds = re.search(r"PASS (\d+ rounds)", stream.out)
        note = (f"{report} (in brackets: otherwise sound); meanwhile {rounds[1]} of traffic; softhca "
                "--explain: " + ", ".join(f"{why} {n}" for why, n in dropped.most_common()))
        wrong = accounts(sent, whole, dropped)
        return ("FAIL", f"{wrong}; {note}") if wrong else ("PASS", note)
    except (lab.LabError, OSError) as e:
        return "FAIL", str(e)
    finally:
        for job in jobs:
            if job.rc is None:
                job.kill()
