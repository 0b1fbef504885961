"""Whether a failed case of the peer tests may run again.

There are two reasons. A busy machine: the case ended by a time limit, or with
exhausted retries, while others had a good part of the processors. Such second
tries are counted, and a run with more than retry.ALLOWED of them fails. Or the
packets of the attempt show that it was not softhca's doing, see explanation();
then the case says what they show.

Neither covers a signal, a sanitizer's report, wrong data or a wrong status: these
fail at once, but for one crash of perftest's own, see not_listening(). And a case
passes only if it passes in the end. Failures that the packets explain are few:
more than explained_at_most() fail the run.
"""
import collections
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import load  # noqa: E402
import retry  # noqa: E402

ATTEMPTS = 3            # of a case
VOID = 30               # of one whose client was refused only for coming too early

WRONG, TIME, RETRIES, REFUSED = "wrong", "a time limit", "exhausted retries", "a refused connection"

# A program that its own alarm(2) ends has a time limit, too.
NEVER = re.compile("|".join(f"(?:{p})" for _, p in retry.NEVER) +
                   r"|killed by signal|ends with (-(?!14\b)\d|13[1-9]\b)|wrong data|bytes around|crashed", re.M)
SANITIZER = re.compile(r"\w+Sanitizer\b|\bruntime error: ")
OUT_OF_TIME = re.compile(r"within \d+ s\b|does not end|ends with -14\b|timed out|"
                         r"(error:?|status) -110\b")
EXHAUSTED = re.compile(retry.RETRY)
SAYS_NO = re.compile(r"REJECTED|UNREACHABLE|event bl blka 8|Connection refused")


def kind(note):
    """What sort of failure a note reports. What is not known is wrong."""
    if NEVER.search(note):
        return WRONG
    for pattern, what in ((EXHAUSTED, RETRIES), (OUT_OF_TIME, TIME), (SAYS_NO, REFUSED)):
        if pattern.search(note):
            return what
    return WRONG


def by_load(what, others):
    """Why load explains a failure of that kind, or None."""
    if what in (TIME, RETRIES) and others >= load.BUSY:
        return f"at first {what}, while others had {others:.0%} of the processors"
    return None


def explained_at_most(passed):
    """Cases that may pass after failures that the packets explain."""
    return max(retry.ALLOWED, passed // 100)


# ------------------------------------------------------------ what was captured

SEQUENCE_NAK = 0x60
RESPONSES = range(0x0d, 0x13)
LASTS = (0x02, 0x03, 0x04, 0x05, 0x08, 0x09, 0x0a, 0x0b, 0x16, 0x17)     # of sends and writes
CM_REQ, CM_REJ, CM_REP, CM_DREQ, CM_SIDR_REQ = 0x10, 0x12, 0x13, 0x15, 0x17
NO_SERVICE = 8          # 12.6.7.2: invalid service ID
TOO_EARLY = "the client asked for its second connection before the server's program listened"

Mad = collections.namedtuple("Mad", "attr tid reason")


def is_rc(p):
    return p.opcode >> 5 == 0


def is_answer(p):
    return is_rc(p) and p.opcode in RESPONSES


def is_request(p):
    return is_rc(p) and p.opcode not in RESPONSES


def ends_request(p):
    """A NAK that ends the request: neither a sequence error nor RNR."""
    return p.opcode == 0x11 and p.body[0] & 0x60 == 0x60 and p.body[0] != SEQUENCE_NAK


def asks_again(p):
    return p.opcode == 0x11 and p.body[0] == SEQUENCE_NAK


def mad(p):
    """The message of the connection manager in a packet, or None."""
    if p.opcode != 0x64 or p.qpn != 1 or len(p.body) < 8 + 256:
        return None
    m = p.body[8:]
    attr = int.from_bytes(m[16:18], "big")
    return Mad(attr, m[8:16], int.from_bytes(m[34:36], "big") if attr == CM_REJ else None)


def behind(a, b):
    """PSN a is b or comes after it."""
    return (a - b) & 0xffffff < 1 << 23


def last_request(packets):
    """All transmissions of what was asked for last: of requests of RC, or of the CM."""
    sent = collections.defaultdict(list)
    for p in packets:
        if is_request(p):
            sent[p.src, p.qpn, p.psn].append(p)
        elif (m := mad(p)) and m.attr in (CM_REQ, CM_SIDR_REQ):
            sent[p.src, p.qpn, m.tid].append(p)
    if not sent:
        return []
    last = max(sent.values(), key=lambda s: s[-1].time)[-1]
    # A requester begins again with the oldest: the one that is sent most often.
    return max((s for (src, qpn, _), s in sent.items() if (src, qpn) == (last.src, last.qpn)),
               key=lambda s: (len(s), s[-1].time))


def answers(packets, sent):
    """What the other end has said to a request after its first transmission."""
    first, asked = sent[0], mad(sent[0])
    for p in packets:
        if p.src == first.dst and p.dst == first.src and p.time >= first.time and (
                (m := mad(p)) and m.tid == asked.tid if asked else is_answer(p) and behind(p.psn, first.psn)):
            yield p


def is_good(p):
    """A packet that its receiver may not drop for what is in it."""
    return p.good_icrc() and p.pkey == 0xffff and p.tver == 0


def unanswered(packets, ours):
    """rxe does not answer softhca's last request, however often it is sent."""
    sent = last_request(packets)
    if len(sent) < 3 or sent[0].src not in ours or any(answers(packets, sent)):
        return None
    # Not if it has reason: bad packets, or a PSN ahead of the one it names.
    if not all(map(is_good, sent)) or any(asks_again(p) and p.src == sent[0].dst and p.time >= sent[0].time
                                          for p in packets):
        return None
    return f"rxe answered none of {len(sent)} transmissions of a request in {sent[-1].time - sent[0].time:.1f} s"


def nak_missed(packets, ours):
    """rxe goes on asking though softhca has said no."""
    for nak in packets:
        if nak.src in ours and ends_request(nak):
            n = sum(1 for p in packets if is_request(p) and p.src == nak.dst and p.psn == nak.psn
                    and p.time > nak.time)
            if n >= 2:
                return f"rxe repeated a request {n} times after softhca's NAK, which is in the capture"
    return None


def answer_lost(packets, ours):
    """The network that loses packets has lost the answer to the last request,
    and who gave it was gone when that was sent again."""
    sent = last_request(packets)
    if len(sent) < 2:
        return None
    said = list(answers(packets, sent))
    to_first = any(p.time < sent[1].time for p in said)
    # The CM answers in place of a program that is gone; of RC nobody does.
    if sent[0].src in ours:
        if mad(sent[0]) and not to_first:
            return f"rxe's answer got lost: a request was sent {len(sent)} times, the first without an answer"
    elif to_first and (mad(sent[0]) or not any(p.time > sent[-1].time for p in said)):
        return f"rxe sent a request {len(sent)} times, though softhca's answer is in the capture: it got lost"
    return None


def goodbye_lost(packets, ours):
    """softhca's program asked to disconnect, and was gone when that got lost."""
    said = [p for p in packets if mad(p)]
    if not said or said[-1].src not in ours or mad(said[-1]).attr != CM_DREQ:
        return None
    return "softhca's DREQ, which is in the capture, got lost, and who sent it was gone"


def holes(packets):
    """Whether PSNs of somebody's UC or UD messages are missing."""
    last = {}
    for p in packets:
        if is_rc(p) or p.qpn == 1:
            continue
        before = last.get((p.src, p.qpn))
        if before is not None and p.psn != (before + 1) & 0xffffff:
            return True
        last[p.src, p.qpn] = p.psn
    return False


def messages(packets):
    """The last packets of messages that a program has sent, each once."""
    seen = set()
    for p in packets:
        key = p.src, p.qpn, p.psn
        if p.opcode & 0x1f in LASTS and key not in seen:
            seen.add(key)
            yield p


def stopped(packets, ours, end):
    """It is rxe's turn in a ping-pong: it has got all messages, and sends none."""
    if any(m.attr == CM_DREQ for p in packets if (m := mad(p))):
        return None     # the game is over
    packets = [p for p in packets if p.qpn != 1]
    said = list(messages(packets))
    if not said or said[-1].src not in ours or holes(packets) or end - packets[-1].time < 5:
        return None
    theirs = sum(1 for p in said if p.src not in ours)
    if theirs < len(said) - theirs - 1:
        return None     # more than one of softhca's in a row: no ping-pong
    last, silent = packets[-1], f"and rxe sent nothing for {end - packets[-1].time:.0f} s"
    if not is_rc(last):
        return f"nothing was lost, the last message is softhca's, {silent}" if last.src in ours else None
    if last.src in ours or last.opcode != 0x11 or last.body[0] & 0x60 or not behind(last.psn, said[-1].psn):
        return None
    return f"rxe acknowledged the last message, which is softhca's, {silent}"


def not_listening(note, packets):
    """The server's program had one connection, and did not listen for the next yet.

    perftest's client does not wait for that, and what it does then is its own:
    it may crash, but nothing else that is wrong is excused.
    """
    crash = re.match(r"client ends with -(6|11)\b", note) and not SANITIZER.search(note)
    if kind(note) == WRONG and not crash:
        return None
    accepted = set()
    for p in packets:
        m = mad(p)
        if m and m.attr == CM_REP:
            accepted.add(p.src)
        elif m and m.attr == CM_REJ and m.reason == NO_SERVICE and p.src in accepted:
            return TOO_EARLY
    return None


def explanation(what, packets, ours, end, lossy=False):
    """What the packets of a failed attempt show, or None.

    what: of kind(); ours: softhca's addresses; end: when the attempt ended;
    lossy: the network loses packets on purpose.
    """
    if what == WRONG:
        return None
    packets = list(packets)
    found = None
    if what == RETRIES:
        found = unanswered(packets, ours) or nak_missed(packets, ours)
    elif what == TIME:
        found = stopped(packets, ours, end) or unanswered(packets, ours)
    if lossy and not found:
        found = answer_lost(packets, ours) or (goodbye_lost(packets, ours) if what == TIME else None)
    return found
