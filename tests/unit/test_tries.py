"""Which failures of the peer tests run again, and what of a capture explains one."""
import collections
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peer"))
sys.dont_write_bytecode = True

import interop  # noqa: E402
import tries  # noqa: E402
from tries import RETRIES, REFUSED, TIME, WRONG  # noqa: E402

US, THEM = "10.77.0.1", "10.77.0.2"
SEND, READ, ACK, UC_SEND, UD_SEND = 0x04, 0x0c, 0x11, 0x24, 0x64


class Packet(collections.namedtuple("Packet", "time src dst opcode psn qpn body")):
    pkey, tver = 0xffff, 0

    def good_icrc(self):
        return True


class BadIcrc(Packet):
    def good_icrc(self):
        return False


class OtherPkey(Packet):
    pkey = 0x1234


def us(time, opcode, psn, body=b"", qpn=17):
    return Packet(time, US, THEM, opcode, psn, qpn, body)


def them(time, opcode, psn, body=b"", qpn=33):
    return Packet(time, THEM, US, opcode, psn, qpn, body)


def ack(psn, syndrome=0):
    return ACK, psn, bytes([syndrome, 0, 0, 1])


def cm(attr, tid=7, reason=0):
    m = bytearray(256)
    m[8:16] = tid.to_bytes(8, "big")
    m[16:18] = attr.to_bytes(2, "big")
    m[34:36] = reason.to_bytes(2, "big")
    return UD_SEND, 0, bytes(8) + bytes(m), 1


def why(what, packets, end=60, lossy=False):
    return tries.explanation(what, packets, (US,), end, lossy)


@pytest.mark.parametrize("note, kind", [
    ('requester: the request completes as "transport retry counter exceeded", not "success"', RETRIES),
    ("client ends with 1: Failed status transport retry counter exceeded (12) for wr_id 2; server: ", RETRIES),
    ("client ends with 1: Completion with error at client / Failed status 12: wr_id 0 syndrom 0x81", RETRIES),
    ("no end within 40 s; client: ; server: ", TIME),
    ("requester: no completion of the request within 20 s", TIME),
    ("client ends with -14: ; server: ", TIME),
    ("client ends with 255: udaddy: event: RDMA_CM_EVENT_UNREACHABLE, error: -110", TIME),
    ("client ends with 1: RDMA_CM_EVENT_REJECTED with status 8, not 28; server: ", REFUSED),
    ("client ends with -11: no end within 40 s", WRONG),
    ("killed by signal 11", WRONG),
    ("client ends with 139: ", WRONG),
    ("client ends with 1: ==1==ERROR: AddressSanitizer: heap-use-after-free; no end within 40 s", WRONG),
    ("responder: wrong data at byte 3 of 1000", WRONG),
    ("responder: bytes around a message of 5 changed", WRONG),
    ('requester: the request completes as "remote access error", not "success"', WRONG),
    ("client ends with 1: ", WRONG),
    ("the guest's kernel died: Kernel panic", WRONG),
])
def test_kinds(note, kind):
    assert tries.kind(note) == kind


@pytest.mark.parametrize("kind, others, may", [
    (TIME, 0.8, True), (RETRIES, 0.8, True), (REFUSED, 0.8, False), (WRONG, 0.8, False),
    (TIME, 0.02, False), (RETRIES, 0.02, False),
])
def test_load_explains_only_limits_and_retries(kind, others, may):
    assert bool(tries.by_load(kind, others)) == may


def test_rxe_does_not_answer():
    asked = [us(n / 10, SEND, 5) for n in range(7)]
    assert "none of 7 transmissions" in why(RETRIES, asked)
    assert "none of 7 transmissions" in why(TIME, asked)
    # an answer to an older request is none to this
    assert why(RETRIES, [us(0, SEND, 4), them(0, *ack(4))] + asked)


@pytest.mark.parametrize("bad", [BadIcrc, OtherPkey])
def test_bad_packets_need_no_answer(bad):
    asked = [us(n / 10, SEND, 5) for n in range(7)]
    asked[4] = bad(*asked[4])
    assert not why(RETRIES, asked)
    assert not why(TIME, asked)


def test_a_wrong_psn_needs_no_answer():
    asked = [us(n / 10, SEND, 5) for n in range(7)]
    assert not why(RETRIES, asked[:1] + [them(0.05, *ack(3, tries.SEQUENCE_NAK))] + asked[1:])
    # one before was about another request
    assert why(RETRIES, [them(-1, *ack(3, tries.SEQUENCE_NAK))] + asked)


def test_an_answer_is_no_silence():
    asked = [us(n / 10, SEND, 5) for n in range(7)]
    assert not why(RETRIES, asked + [them(0.7, *ack(5))])
    assert not why(RETRIES, asked + [them(0.35, *ack(9))])
    assert not why(RETRIES, asked[:2])


def test_softhca_does_not_answer():
    assert not why(RETRIES, [them(n / 10, SEND, 5) for n in range(7)])
    assert not why(RETRIES, [them(n / 10, SEND, 5) for n in range(7)], lossy=True)
    assert not why(RETRIES, [])


def test_rxe_misses_a_nak():
    nak = us(0.1, *ack(5, 0x62))
    assert "softhca's NAK" in why(RETRIES, [them(0, SEND, 5), nak] + [them(n, SEND, 5) for n in (1, 2, 3)])
    # one that asks for more is no end, nor is one that nobody heard too late
    assert not why(RETRIES, [them(0, SEND, 5), us(0.1, *ack(5, 0x60)), them(1, SEND, 5), them(2, SEND, 5)])
    assert not why(RETRIES, [them(0, SEND, 5), them(0.1, SEND, 5), us(0.2, *ack(5, 0x62))])


def test_last_answer_lost():
    got = [them(0, SEND, 5), us(0.1, *ack(5)), them(1, SEND, 5), them(2, SEND, 5)]
    assert "got lost" in why(RETRIES, got, lossy=True)
    assert not why(RETRIES, got)                       # nothing gets lost there
    assert not why(RETRIES, got + [us(3, *ack(5))], lossy=True)     # it is not the last
    # a request repeated in the middle of a transfer explains nothing
    assert not why(TIME, got + [us(3, *ack(5)), them(4, SEND, 6)], lossy=True)


def test_refusal_lost():
    refused = [them(0, *cm(tries.CM_REQ)), us(0.1, *cm(tries.CM_REJ, reason=28)), them(1, *cm(tries.CM_REQ)),
               us(1.1, *cm(tries.CM_REJ, reason=8))]
    assert "got lost" in why(REFUSED, refused, lossy=True)
    assert not why(REFUSED, refused)
    assert not why(REFUSED, refused[:2], lossy=True)
    asked = [us(0, *cm(tries.CM_REQ)), us(1, *cm(tries.CM_REQ)), them(1.1, *cm(tries.CM_REJ, reason=8))]
    assert "got lost" in why(REFUSED, asked, lossy=True)


def test_goodbye_lost():
    done = [us(0, *cm(tries.CM_REQ)), them(0.1, *cm(tries.CM_REP)), us(1, SEND, 5), us(1.1, SEND, 6),
            them(1.2, *ack(6)), us(2, *cm(tries.CM_DREQ, 9))]
    assert "DREQ" in why(TIME, done, lossy=True)
    assert not why(TIME, done)
    assert not why(TIME, done[:-1], lossy=True)
    assert not why(TIME, done[:-1] + [them(2, *cm(tries.CM_DREQ, 9))], lossy=True)


REFUSAL = "client ends with 1: RDMA_CM_EVENT_REJECTED; server: "


def second_connection():
    first = [us(0, *cm(tries.CM_REQ)), them(0.1, *cm(tries.CM_REP))]
    again = [us(1, *cm(tries.CM_REQ, 8)), them(1.1, *cm(tries.CM_REJ, 8, reason=8))]
    return first, again


def test_second_connection_refused():
    first, again = second_connection()
    assert "second connection" in tries.not_listening(REFUSAL, first + again)
    assert not tries.not_listening(REFUSAL, first)
    assert not tries.not_listening(REFUSAL, again)
    assert not tries.not_listening(REFUSAL, first + [again[0], them(1.1, *cm(tries.CM_REJ, 8, reason=28))])
    assert not why(REFUSED, first + again)             # of other programs it is no excuse


@pytest.mark.parametrize("note, may", [
    (REFUSAL, True),
    ("no end within 40 s; client: ; server: ", True),
    ("client ends with -11: ; server: ", True),
    ("client ends with -6: double free or corruption (out); server: ", True),
    ("client ends with -6: ==1==ERROR: AddressSanitizer: heap-use-after-free; server: ", False),
    ("client ends with -8: ; server: ", False),
    ("client ends with 1: wrong data at byte 3; RDMA_CM_EVENT_REJECTED; server: ", False),
    ("client ends with 1: ", False),
    ("server ends with -11: ", False),
    ("the guest's kernel died: Kernel panic", False),
])
def test_what_a_refused_second_connection_excuses(note, may):
    first, again = second_connection()
    assert bool(tries.not_listening(note, first + again)) == may


@pytest.mark.parametrize("passed, explained, fails", [(299, 3, 0), (299, 4, 1), (2000, 20, 0), (2000, 21, 1)])
def test_explained_failures_are_few(passed, explained, fails, capsys):
    report = interop.Report()
    for n in range(passed):
        report.add("plain", f"row {n}", (0, 1), 4, "PASS", tried=[("rxe", True)] if n < explained else ())
    report.judge_tries()
    assert report.counts["FAIL"] == fails
    assert f"{explained} after failures that the packets explain" in report.line()
    assert report.failed() == bool(fails)


@pytest.mark.parametrize("opcode", [UC_SEND, UD_SEND])
def test_rxe_stops_in_a_ping_pong(opcode):
    turns = [p for n in range(5) for p in (us(n, opcode, n), them(n + 0.5, opcode, n))]
    stuck = turns + [us(5, opcode, 5)]
    assert "nothing was lost" in why(TIME, stuck)
    assert not why(TIME, turns)                        # softhca's turn
    assert not why(TIME, stuck, end=6)                 # not silent for long
    assert not why(TIME, turns[:4] + stuck[6:])        # messages are missing
    assert not why(RETRIES, stuck)
    # one way: the next message is not due from rxe
    assert not why(TIME, [us(n / 10, opcode, n) for n in range(9)])


def test_rxe_stops_after_an_ack():
    turns = [p for n in range(5) for p in (us(n, SEND, n), them(n + 0.1, *ack(n)), them(n + 0.5, SEND, n),
                                           us(n + 0.6, *ack(n)))]
    stuck = turns + [us(5, SEND, 5), them(5.1, *ack(5))]
    assert "acknowledged" in why(TIME, stuck)
    assert not why(TIME, turns)
    assert not why(TIME, stuck[:-1] + [them(5.1, *ack(5, 0x60))])   # it asks for it again
    # all sent and acknowledged: it is softhca's program that does not end
    assert not why(TIME, [p for n in range(9) for p in (us(n, SEND, n), them(n + 0.1, *ack(n)))])


def test_wrong_is_never_explained():
    assert not why(WRONG, [us(n / 10, SEND, 5) for n in range(7)], lossy=True)
