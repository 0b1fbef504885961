"""Results of the peer tests: counted, printed, and written as tables."""
import collections

NAMES = ("softhca", "rxe", "rxe")       # by place
OURS = ((0, 1), (1, 0))
COLUMNS = [((0, 1), 4), ((0, 1), 6), ((1, 0), 4), ((1, 0), 6), ((2, 1), 4), ((2, 1), 6)]
TITLES = {
    "plain": ("Operations and errors",
              "Each message is checked byte by byte at the far end, in sizes 0, 1, MTU - 1, MTU, MTU + 1, "
              "3 MTU + 2, 64 KiB + 3 and 1 MiB where the operation takes data. PSNs begin just before they "
              "wrap. Path MTUs: {mtus}."),
    "1 % loss": ("With 1 % loss", "Of RoCE packets, in both directions (netem in the guest)."),
    "reordering": ("With reordering", "netem delay 2ms reorder 30% 25%, in both directions."),
    "tools": ("Tools", "The distribution's programs, unmodified."),
    "cm": ("Connection manager", "IB CM over QP1, between softhca's librdmacm and the kernel's."),
    "hostile": ("Hostile packets",
                "While a transfer runs, the guest sends changed copies of its own packets: opcodes, lengths, "
                "flags, PSNs, QPNs, addresses, keys; to the transfer's QPs, to others, with good ICRCs and bad "
                "ones. The transfer has to finish with correct data."),
}


class Cell:
    def __init__(self):
        self.mtus = []
        self.failed = []        # (mtu, why)
        self.skipped = []
        self.notes = []

    def text(self, number):
        """number: gives a note its number."""
        if self.failed:
            mtus = {m for m, _ in self.failed if m}
            at = "" if len(mtus) == len(set(self.mtus)) or not mtus else \
                " at MTU " + ", ".join(map(str, sorted(mtus)))
            return f"**fails**{at} [{number(self.failed[0][1])}]"
        if self.skipped and not self.mtus:
            return f"not run [{number(self.skipped[0])}]"
        marks = "".join(f" [{number(n)}]" for n in self.notes)
        return "works" + marks


class Report:
    def __init__(self):
        self.tables = {}        # table -> row -> column -> Cell
        self.other = []
        self.what = {}
        self.counts = collections.Counter()

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

    def add(self, table, row, direction, ip, verdict, note="", mtu=None):
        """Only what softhca takes part in is counted as a test."""
        cell = self.tables.setdefault(table, {}).setdefault(row, {}).setdefault((direction, ip), Cell())
        title = f"{self.arrow(direction)} ipv{ip}" + (f" mtu{mtu}" if mtu else "") + \
            (f" {table}" if table != "plain" else "") + f" {row}"
        if verdict == "FAIL":
            cell.failed.append((mtu, note))
            cell.mtus.append(mtu)
        elif verdict == "SKIP":
            cell.skipped.append(note)
        else:
            cell.mtus.append(mtu)
            if note and note not in cell.notes:
                cell.notes.append(note)
        if direction in OURS:
            self.count(verdict, title, note)
        else:
            self.say(f"     {title}: {verdict.lower()} {note}")

    def add_other(self, what, verdict, note=""):
        self.other.append((what, verdict, note))
        self.count(verdict, what, note)

    def failed(self):
        return bool(self.counts["FAIL"]) or not self.counts["PASS"]

    def line(self):
        c = self.counts
        return f"{c['PASS']} passed, {c['FAIL']} failed, {c['SKIP']} skipped"

    def write(self, path, kernel):
        version = kernel.removeprefix("linux-").rpartition("-")[0]
        out = ["# Interoperability with the kernel's soft RoCE (rxe)", "",
               "Written by `make test-peer`; do not edit. The peer is the rxe driver of Debian's kernel "
               f"{version}, run as user-mode Linux on the other side of a bridge; `A → B` means that A "
               "is the requester or client. The last columns show the kernel's driver against itself.", "",
               f"{self.line()}.", ""]
        for table, (title, text) in TITLES.items():
            rows = self.tables.get(table)
            if not rows:
                continue
            mtus = sorted({m for r in rows.values() for c in r.values() for m in c.mtus if m})
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
                name = self.what.get(row, row)
                out.append(f"| {name} | " + " | ".join(
                    cells[c].text(number) if c in cells else "" for c in columns) + " |")
            out += [""] + [f"{i}. {n.replace('|', '/')}" for i, n in enumerate(notes, 1)] + ([""] if notes else [])
        if self.other:
            out += ["## Packets", "", "A capture of the operations at MTU 1024, both directions, "
                    "both IP versions.", "", "| | | |", "|---|---|---|"]
            for what, verdict, note in self.other:
                word = {"PASS": "holds", "FAIL": "**fails**", "SKIP": "not run"}[verdict]
                out.append(f"| {what} | {word} | {note.replace('|', '/')} |")
            out.append("")
        with open(path, "w") as f:
            f.write("\n".join(out))
