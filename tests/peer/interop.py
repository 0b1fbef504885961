"""Results of the peer tests: counted, printed, and written as tables."""
import collections
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import retry  # noqa: E402
import tries  # noqa: E402

LINUX, NEWER = "6.1", "6.12"    # Debian's kernels
# Places by number: hosts of softhca are 0 and the last two, the others are guests.
NAMES = ("softhca", "rxe", "rxe", f"rxe of Linux {NEWER}", "siw", "softhca", "softhca with CRC", "siw")
SIW, IWARP, IWARP_CRC, SIW2 = 4, 5, 6, 7
COLUMNS = [(d, ip) for d in ((0, 1), (1, 0), (2, 1), (0, 3), (3, 0), (IWARP, SIW), (SIW, IWARP), (IWARP_CRC, SIW),
                             (SIW, IWARP_CRC), (SIW2, SIW)) for ip in (4, 6)]
UC_LOSES = (" UC has no retransmission: it drops a message when one of its packets is lost or arrives too "
            "late (9.8.2.2). The tests require that every message that arrives is whole, that messages of one "
            "packet arrive, and that longer ones arrive as often as chance allows.")
TITLES = {
    "plain": ("Operations and errors",
              "The far end checks each message byte by byte, in sizes 0, 1, MTU - 1, MTU, MTU + 1, "
              "3 MTU + 2, 64 KiB + 3 and 1 MiB where the operation carries data. PSNs start just before they "
              "wrap. Path MTU 1024; the rows marked (MTUs) also at {mtus}."),
    "1 % loss": ("With 1 % loss", "1 % of the RoCE packets are lost, in both directions (netem in the guest). Path MTU "
                 "1024; the rows marked (MTUs) also at {mtus}. A responder whose QP goes to ERR sends one NAK, once: "
                 "if that is lost, the requester's retries are exhausted."),
    "reordering": ("With reordering", "netem delay 2ms reorder 30% 25%, in both directions. Path MTU 1024."),
    "tools": ("Tools", "The distribution's programs, unmodified."),
    "cm": ("Connection manager", "IB CM over QP1, between softhca's librdmacm and the kernel's."),
    "newer": (f"With Linux {NEWER}", "The same operations, errors and tools with the rxe of a newer kernel. Path MTU "
              "1024. It also has atomic writes."),
    "iwarp": ("iWARP", "The same programs by iWARP, over TCP: `softhca run --iwarp`, with and without `--mpa-crc`, and the "
              f"siw driver of Linux {LINUX}. siw never asks for a CRC, and uses one where softhca asks; tshark looks at "
              "them. Of what is refused the rows say which completions and events either end has, that tshark sees the "
              "Terminate message with the right layer, type and code, and that another connection of the same processes goes "
              "on. The last columns show siw against itself."),
    "hostile": ("Hostile packets",
                "While a transfer runs, the guest sends copies of its own packets with changed opcodes, lengths, "
                "flags, PSNs, QPNs, addresses or keys, to the transfer's QPs and to others, with good and with bad "
                "ICRCs. The transfer must finish with correct data, and `softhca run --explain` must account for "
                "the packets by what is wrong with them."),
}
TITLES["1 % loss"] = ("With 1 % loss", TITLES["1 % loss"][1] + UC_LOSES)
TITLES["reordering"] = ("With reordering", TITLES["reordering"][1] + UC_LOSES)

# What rxe does, what the specification says, what softhca does, and the tests of
# tests/sim or tests/unit that play it (tests/unit/test_quirks.py checks that they
# exist). The sources name rxe where they handle it.
QUIRKS = [
    ("A send longer than the receive: NAK 0x63 (remote operational error); the receive ends with "
     "\"local QP operation error\"",
     "NAK 0x61 (invalid request, 9.7.4.1.7), \"local length error\"",
     "as specified; as requester it reports what the NAK says, \"remote operation error\"", "quirk_rxe_long_send"),
    ("A receive, or a send, with a bad lkey ends with \"local QP operation error\"",
     "\"local protection error\" (11.6.2)", "as specified", "bad_receive_buffer local_protection"),
    ("A send that invalidates an unknown key is acknowledged, and the receive fails afterwards",
     "the request is refused", "NAK 0x62 (remote access error), nothing is acknowledged",
     "quirk_rxe_acks_bad_invalidate"),
    ("A UC send longer than the receive ends the receive with an error, and the QP",
     "the message is dropped silently (9.8.2.2)", "as specified: the receive waits for the next message",
     "quirk_rxe_uc_long_send"),
    ("As requester, it ignores a second sequence NAK before an ACK: it waits for its timer and counts a retry",
     "each NAK is answered by sending again (9.7.5.2.4)",
     "sends an ACK before a second NAK; so rxe works across a reordering network on which it fails "
     "against itself", "quirk_rxe_wants_acks_between_naks"),
    ("As requester, it moves the QP to ERR when an ACK with the PSN of a read overtakes the read's response",
     "such an ACK requests the read again (9.7.5.1.1)", "never sends one", "quirk_rxe_no_ack_of_reads"),
    ("Not ready to receive the first packet of a burst, it sends an RNR NAK, and a sequence NAK for the second",
     "no NAK follows an RNR NAK (9.7.5.2.8)", "as requester it keeps waiting; as responder as specified",
     "quirk_rxe_nak_behind_rnr quirk_rxe_nak_behind_long_rnr"),
    ("A FetchAdd's compare field holds what was in the buffer before", "the field has no meaning there",
     "ignores it, sends 0", "quirk_rxe_fields"),
    ("MigReq is 0", "1 when no alternate path is loaded (17.2.8)", "sends 1, accepts both", "quirk_rxe_fields"),
    ("It counts the IPv4 identification, though packets may not be fragmented; the ICRC covers it",
     "any value (RFC 6864); UDP sockets do not show it", "finds the value that makes the ICRC good",
     "quirk_rxe_counts_identification"),
    ("IPv6 packets have no UDP checksum, IPv4 ones neither",
     "it should be 0 (A17.4.5.2); Linux drops such IPv6 packets unless told otherwise",
     "accepts both; sends what the kernel's UDP sends, a good checksum", "no_udp_checksum"),
    ("Receive completions of RC have the GRH flag",
     "only UD receives have a GRH (11.4.2.1)", "does not set the flag",
     "quirk_rxe_grh_flag"),
    ("As requester, it restarts its retransmission timer with any answer", "with one that acknowledges something "
     "(9.7.6.1.3)", "does not answer what a requester cannot have sent, so forged packets do not delay it",
     "quirk_rxe_timer_is_put_off"),
    ("It acknowledges each duplicate separately, with the latest PSN", "they may be coalesced (9.7.5.1.2)",
     "accepts them; sends one", "quirk_rxe_acks_each_duplicate"),
]
# What a peer cannot work around.
DEFECTS = [
    ("A memory window's bounds are not checked, only its region's", "access outside is refused (10.6.7.2.6)",
     "as specified"),
    ("As requester, it misses NAKs that arrive within about 100 us of the request, and repeats the request until "
     "its retries are exhausted", "the NAK ends the request", "as specified"),
    ("As requester, it never sends a fenced request after a retry", "until the reads before it are done (11.4.1.1)",
     "as specified"),
    ("As requester, it executes fast registrations again when it goes back to repeat what is before them: that fails, and the "
     "QP sends nothing more (STORAGE.md)", "once", "binds windows once"),
    ("It counts transport timeouts while it waits for a receiver that is not ready", "an RNR NAK ends the wait for "
     "the ACK (9.7.6.1.3)", "as specified"),
    ("As requester, it continues a UC message that a lost packet broke, and drops the next one; as responder, it "
     "accepts nothing more after a broken UC write", "the next message is independent of it (9.8.2.2)", "as specified"),
    ("No asynchronous events of a QP (COMM_EST, QP_ACCESS_ERR, QP_REQ_ERR, LAST_WQE_REACHED)", "11.6.3",
     "as specified"),
    ("Linux 6.12: a repeated atomic write has address 0", "the request as it was", "refuses it, unless it executed "
     "the first; so across a network that loses packets rxe's atomic writes fail, against itself too"),
    ("Linux 6.12 posts misaligned atomic writes", "they are refused (A19)", "posts them too; the responder refuses them with NAK "
     "0x61"),
    ("As responder, it answers a read that is resumed in its middle with MIDDLE and LAST", "a read is answered with "
     "FIRST or ONLY at first (9.7.5.1.1)", "as specified; as requester accepts both"),
    ("No XRC; atomic write from Linux 6.2 on; its library in Debian 12 has no flush", "optional", "has XRC, which is "
     "not tested against rxe, and atomic write, which is"),
]


def is_iwarp(place):
    return place >= SIW


def is_ours(direction):
    """Whether softhca takes part."""
    return any(NAMES[d].startswith("softhca") for d in direction)


# What siw does, what the RFCs say, what softhca does, and the tests that play it.
SIW_DIFFERS = [
    ("As responder, it does not read the initiator's first message if that arrives before it has finished with its "
     "reply, but only when the next one arrives", "that message lets the responder begin (RFC 6581)",
     "as initiator sends it again, up to four times within 2 s, until something has come", "ready_again"),
    ("As initiator, it refuses a reply that has bytes behind it, and offers no first message by default",
     "the responder sends nothing before the initiator's first FPDU (RFC 5044 7.1)",
     "as responder sends nothing before that, or for 50 ms", "ready_to_receive"),
    ("A bit of its frames, 0x08, says that FPDUs longer than a TCP segment are welcome; as responder it repeats the "
     "initiator's", "the bit is reserved (RFC 5044 7.1.1)", "sets it, and sends FPDUs of up to 64 KiB to peers "
     "that do", ""),
    ("A frame has 256 bytes of private data at most, of which IRD and ORD take four (as its source says)",
     "512 (RFC 5044 7.1.1)", "512, so siw refuses a request of a program that gives more than 252 bytes", ""),
    ("Its Terminate messages have layer and type exchanged, and their flags among the reserved bits, on a "
     "little-endian machine", "layer, type, code, three flags (RFC 5040 4.8)",
     "reads them as siw means them, where there are flags; sends what the RFC has", "quirk_siw_terminate"),
    ("A Terminate that refuses a read has the read's size for its MSN", "the header of the request (RFC 5040 4.8)",
     "finds the read by what it asks for, and completes it with \"remote access error\"",
     "quirk_siw_names_read_by_size"),
    ("Between a segment and its CRC are up to three bytes of what was in the buffer before", "zeros (RFC 5044 4.1)",
     "does not look at them; sends zeros", "played"),
    ("It answers reads of a region without IBV_ACCESS_REMOTE_READ", "they are refused (RFC 5040 4.8)",
     "refuses them", ""),
    ("A write to a region without permission is refused as one with an invalid STag, a send longer than the receive "
     "as one without a receive; where an address wraps it has a catastrophic error, or resets",
     "codes of their own (RFC 5040 4.8, 5041 7)", "has those", ""),
    ("A send that invalidates an unknown key fails the receive, and the connection goes on",
     "ends the connection (RFC 5040 4.8)", "as specified", ""),
    ("As initiator it ignores Terminate messages: a refused read is flushed; what is posted after the end never "
     "completes", "completions with what was wrong", "has them", ""),
    ("It may reset the stream when it closes: what it sent last is lost", "an orderly end", "sends FIN, and reads on until the peer's", ""),
    ("A rejected request is REJECTED with -ECONNRESET; rdma_connect() fails with ECONNREFUSED where there is "
     "no listener",
     "", "REJECTED with -ECONNREFUSED for both", ""),
    ("As initiator it may miss the private data of a rejection that has FIN right behind it", "",
     "leaves it to the peer to close first, for a second", ""),
    ("Requests beyond the backlog are refused", "", "they wait for room, 60 s at most", ""),
    ("It raises no event for a solicited message alone", "an event", "raises it", ""),
    ("Linux 6.1 crashes when siw gathers what it sends from several pieces", "", "", ""),
]


class Cell:
    def __init__(self):
        self.mtus = []
        self.failed = []        # (mtu, why)
        self.skipped = []       # (mtu, why)
        self.notes = []

    def text(self, number, ours):
        """number: gives a note its number; ours: softhca takes part."""
        if self.failed:
            mtus = {m for m, _ in self.failed if m}
            at = "" if len(mtus) == len(set(self.mtus)) or not mtus else \
                " at MTU " + ", ".join(map(str, sorted(mtus)))
            return f"{'**fails**' if ours else 'fails'}{at} [{number(self.failed[0][1])}]"
        if self.skipped and not self.mtus:
            return f"not run [{number(self.skipped[0][1])}]"
        text = "works" + "".join(f" [{number(n)}]" for n in self.notes)
        if self.skipped:
            text += ", not run" + (" at MTU " + ", ".join(str(m) for m, _ in sorted(self.skipped))
                                   if self.skipped[0][0] else "") + f" [{number(self.skipped[0][1])}]"
        return text


def summary(page):
    """What a reader wants to know first, from the page's lines: of each table how many cases with softhca work."""
    out, title, ours = ["**Does it work with the kernel's drivers?** Of the cases with softhca at one end:", ""], "", []
    counts = {}
    for line in page:
        cells = [c.strip() for c in line.strip("|").split(" | ")] if line.startswith("| ") else []
        if line.startswith("## "):
            title, ours = line[3:], []
        elif cells and line.startswith("| | "):
            ours = [i for i, c in enumerate(cells) if "softhca" in c]
        elif ours and cells and not line.startswith("|---"):
            for i in ours:
                if i < len(cells) and cells[i]:
                    word = "works" if cells[i].startswith("works") else \
                        "not run" if cells[i].startswith("not run") else "fails"
                    counts.setdefault(title, collections.Counter())[word] += 1
    for title, n in counts.items():
        rest = [f"{n[w]} {w.replace('fails', '**fail**').replace('not run', 'were not run')}" for w in ("fails", "not run")
                if n[w]]
        out.append(f"- {title}: {n['works']} work" + "".join(f", {r}" for r in rest))
    return out + ["", "Where the kernel's drivers differ from the specification, and softhca puts up with it, the last two "
                  "tables say. NICs have not been tried.", ""]


class Report:
    def __init__(self):
        self.tables = {}        # table -> row -> column -> Cell
        self.other = []
        self.judged = {}        # what -> [(capture, verdict, note)]
        self.what = {}
        self.counts = collections.Counter()
        self.skips = {}         # why -> [what]
        self.second = []        # what passed at a second try, of which the packets show no reason
        self.explained = []     # of which they do

    @staticmethod
    def arrow(direction):
        return "→".join(NAMES[d] for d in direction)

    @staticmethod
    def say(text):
        print(text, flush=True)

    def count(self, verdict, title, note):
        self.counts[verdict] += 1
        word = {"PASS": "ok  ", "FAIL": "FAIL", "SKIP": "skip"}[verdict]
        self.say(f"{word} {title}" + (f": {note}" if note else ""))

    def add(self, table, row, direction, ip, verdict, note="", mtu=None, tried=()):
        """Only what softhca takes part in is counted as a test. tried: why it
        was run again, and whether the packets show that, see tries.py."""
        if 3 in direction:
            table = "newer"
        cell = self.tables.setdefault(table, {}).setdefault(row, {}).setdefault((direction, ip), Cell())
        title = f"{self.arrow(direction)} ipv{ip}" + (f" mtu{mtu}" if mtu else "") + \
            (f" {table}" if table != "plain" else "") + f" {row}"
        if verdict == "PASS" and tried:
            why = f"at attempt {len(tried) + 1}: {tried[-1][0]}"
            note = f"{note}; {why}" if note else why
            if is_ours(direction) and all(shown for _, shown in tried):
                self.explained.append(title)
            elif is_ours(direction):
                self.second.append(title)
        if verdict == "FAIL":
            cell.failed.append((mtu, note))
            cell.mtus.append(mtu)
        elif verdict == "SKIP":
            cell.skipped.append((mtu, note))
            if is_ours(direction):
                self.skips.setdefault(note, []).append(title)
        else:
            cell.mtus.append(mtu)
            if note and note not in cell.notes:
                cell.notes.append(note)
        if is_ours(direction):
            self.count(verdict, title, note)
        else:
            self.say(f"     {title}: {verdict.lower()} {note}")

    def add_other(self, what, verdict, note=""):
        self.other.append((what, verdict, note))
        self.count(verdict, what, note)

    def add_judged(self, capture, what, verdict, note=""):
        self.judged.setdefault(what, []).append((capture, verdict, note))
        text = ", ".join(f"{n} {of}" for of, n in note.items()) if isinstance(note, dict) else note
        self.count(verdict, f"{what}, {capture}", text)

    def failed(self):
        return bool(self.counts["FAIL"]) or not self.counts["PASS"]

    def judge_tries(self):
        """Too many second tries are no accident, whatever explains them."""
        for what, titles, most in (
                ("second tries", self.second, retry.ALLOWED),
                ("explained failures", self.explained, tries.explained_at_most(self.counts["PASS"]))):
            if len(titles) > most:
                self.add_other(what, "FAIL", f"{len(titles)} cases passed only after such, and more than {most} are "
                               "no accident: " + "; ".join(titles))

    def line(self):
        c = self.counts
        return f"{c['PASS']} passed, {c['FAIL']} failed, {c['SKIP']} skipped" + \
            (f"; {len(self.second)} at the second try" if self.second else "") + \
            (f"; {len(self.explained)} after failures that the packets explain" if self.explained else "")

    @staticmethod
    def other_mtus(cells):
        """A mark for rows that ran at other path MTUs than 1024, too."""
        at = {ip: {m for (d, i), c in cells.items() if i == ip and is_ours(d)
                   for m in c.mtus + [m for m, _ in c.skipped] if m} - {1024} for ip in (4, 6)}
        if not at[4] and not at[6]:
            return ""
        return " (MTUs)" if at[4] == at[6] else " (MTUs over IPv4)" if not at[6] else \
            f" (MTUs over IPv4; {', '.join(map(str, sorted(at[6])))} over IPv6)"

    def write(self, path, kernels):
        versions = " and ".join(k.removeprefix("linux-").rpartition("-")[0] for k in kernels)
        head = ["# Interoperability with the kernel's soft RoCE (rxe) and soft iWARP (siw)", ""]
        out = ["Written by `make test-peer`; do not edit. The peer is the rxe driver, for iWARP the siw driver, of "
               f"Debian's kernels {versions}, which run as user-mode Linux on the other side of a bridge. `A → B` means that A "
               "is the requester or client. The last columns show the kernel's driver against itself. `at attempt "
               "N` means that the case failed before for the reason given, which the captured packets of that "
               "attempt show or, where it says so, the load of the machine explains.", "",
               f"{self.line()}.", ""]
        for table, (title, text) in TITLES.items():
            rows = self.tables.get(table)
            if not rows:
                continue
            mtus = sorted({m for r in rows.values() for c in r.values() for m in c.mtus if m} - {1024})
            out += [f"## {title}", "", text.format(mtus=", ".join(map(str, mtus))), ""]
            columns = [c for c in COLUMNS if any(c in r for r in rows.values())]
            names = [f"{self.arrow(d).replace('→', ' → ')}, IPv{ip}" for d, ip in columns]
            out += ["| | " + " | ".join(names) + " |", "|---" * (len(columns) + 1) + "|"]
            notes = []

            def number(note):
                if note not in notes:
                    notes.append(note)
                return notes.index(note) + 1

            for row, cells in rows.items():
                name = self.what.get(row, row) + self.other_mtus(cells)
                out.append(f"| {name} | " + " | ".join(
                    cells[c].text(number, is_ours(c[0])) if c in cells else "" for c in columns) + " |")
            out += [""] + [f"{i}. {n.replace('|', '/')}" for i, n in enumerate(notes, 1)] + ([""] if notes else [])
        words = {"PASS": "holds", "FAIL": "**fails**", "SKIP": "not run"}
        if self.judged:
            places = list(dict.fromkeys(p for v in self.judged.values() for p, _, _ in v))
            out += ["## Packets", "", "tshark, scapy (its own ICRC) and tests/peer/packets.py judge captures of the "
                    f"whole run: {', '.join(places)}. Of the hostile packets only softhca's answers are judged.", "", "| | | |", "|---|---|---|"]
            for what, seen in self.judged.items():
                bad = [(p, n) for p, v, n in seen if v == "FAIL"]
                verdict = "FAIL" if bad else min(v for _, v, _ in seen)
                total = collections.Counter()
                for _, _, n in seen:
                    total.update(n if isinstance(n, collections.Counter) else {})
                note = "; ".join(f"{p}: {n}" for p, n in bad) or \
                    ", ".join(f"{n} {of}" for of, n in total.items()) or \
                    next((n for _, _, n in seen if n), "")
                out.append(f"| {what} | {words[verdict]} | {note.replace('|', '/')} |")
            out.append("")
        for what, verdict, note in self.other:
            out += [f"{what}: {words[verdict]} {note}", ""]
        skips = dict(self.skips)
        for what, seen in self.judged.items():
            for place, verdict, note in seen:
                if verdict == "SKIP":
                    skips.setdefault(note, []).append(f"{what}, {place}")
        if skips:
            out += ["## Not run", ""]
            out += [f"- {why}: {len(what)} ({what[0]}{' and so on' if what[1:] else ''})" for why, what in
                    skips.items()] + [""]
        out += ["## Where rxe differs", "", "| rxe | the specification | softhca |", "|---|---|---|"]
        out += [f"| {a} | {b} | {c} |" for a, b, c, *_ in QUIRKS + DEFECTS] + [""]
        out += ["## Where siw differs", "", "| siw | the RFCs | softhca |", "|---|---|---|"]
        out += [f"| {a} | {b} | {c} |" for a, b, c, _ in SIW_DIFFERS] + [""]
        with open(path, "w") as f:
            f.write("\n".join(head + summary(out) + out))
