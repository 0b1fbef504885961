"""softhca trace --html in headless Chromium: no error on its console, and what is
clicked, searched and zoomed leads to what it should. make test-page runs it."""
import json
import os
import re
import shutil
import struct
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOFTHCA = os.path.join(ROOT, "build/bin/softhca")
HEADER, RECORD, RING = 65536, 32, 1 << 17
POST, OUT, IN, COMPLETE, POLLED, QP_NEW, QP_STATE, SGID, DGID = 1, 3, 4, 7, 8, 12, 13, 14, 15
WRITE_FIRST, ACK = 6, 17


def record(what, ns, num, x=0, key=0, psn=0, op=0, length=0):
    return struct.pack("<QIIQII", ns, num << 8 | what, x, key, psn << 8 | op, length)


def events(path, pid, program, rings):
    """A file of events, as the library writes it."""
    head = struct.pack("<8s6IQQQQQ40s72s64s", b"SHCAEVT\n", 2, HEADER, RECORD, RING, len(rings), pid,
                       1_700_000_000_000_000_000, 0, 1, 1, 0, b"boot", b"host", program)
    head = head.ljust(2048, b"\0")
    for r in rings:
        head += struct.pack("<QII16s32x", len(r), pid, 0, b"thread")
    with open(path, "wb") as f:
        f.write(head.ljust(HEADER, b"\0"))
        for i, r in enumerate(rings):
            f.seek(HEADER + i * RING * RECORD)
            f.write(b"".join(r))
        f.truncate(HEADER + len(rings) * RING * RECORD)


def many(to, requests):
    """Two processes, and writes of one packet, of which one in 50 is lost first."""
    a, b = (bytes([0] * 10 + [255, 255, 10, 0, 0, n]) for n in (1, 2))

    def address(kind, num, gid):
        return struct.pack("<QII16s", 1, num << 8 | kind, 0, gid)

    def born(num, dest, own, peer):
        return [record(QP_NEW, 1, num, 2), address(SGID, num, own), address(DGID, num, peer),
                record(QP_STATE, 1, num, 2, dest, 0, 0, 1024)]
    left, right = [], []
    for i in range(requests):
        t, psn = 1000 + i * 2000, i & 0xffffff
        left += [record(POST, t, 0x11, psn << 8 | 1, i, psn, 0, 1024),
                 record(OUT, t + 100, 0x11, psn << 8, 0x12, psn, WRITE_FIRST, 1024)]
        if i % 50 == 49:
            t += 800
            left += [record(OUT, t, 0x11, psn << 8 | 1, 0x12, psn, WRITE_FIRST, 1024)]
        right += [record(IN, t + 500, 0x12, psn << 8, 0x11, psn, WRITE_FIRST, 1024),
                  record(OUT, t + 600, 0x12, psn << 8, 0x11 | 1 << 32, psn, ACK)]
        left += [record(IN, t + 900, 0x11, psn << 8, 0x12 | 1 << 32, psn, ACK),
                 record(COMPLETE, t + 950, 0x11, 0, i, 0, 1), record(POLLED, t + 990, 0x11, 0, i, 0, 1)]
    os.makedirs(to)
    events(f"{to}/a.events", 1, b"</script><b>", [born(0x11, 0x12, a, b), left])
    events(f"{to}/b.events", 2, b"peer", [born(0x12, 0x11, b, a), right])


ACTIONS = """<script>
{
const out = [], t = window.softhcaTimeline;
const ok = (what, yes) => out.push([what, !!yes]);
const text = () => document.getElementById("about").textContent;
const find = v => { document.getElementById("find").value = v; return t.find(); };
try {
	ok("events", t.events > 0 && t.wrs > 0);
	t.paint();
	ok("drawn", document.getElementById("c").getContext("2d").getImageData(0, 0, 900, 300).data.some(v => v));
	ACTIONS
	for (const [a, b] of [[0, 1e9], [0, 1e5], [1e6, 1.2e6], [-1e9, -1e8], [5e5, 5e5 + 50]]) { t.zoom(a, b); t.paint(); }
	t.fit(); t.paint();
	out.push(["ms to draw all", t.ms]);
	const c = document.getElementById("c");
	c.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, cancelable: true }));
	c.dispatchEvent(new WheelEvent("wheel", { deltaY: 200, shiftKey: true, cancelable: true }));
	ok("a wheel zooms", t.state().span < 1e12);
	ok("nonsense is not found", !find("xyz") && !find("psn 16777999"));
} catch (e) { out.push(["exception: " + e.stack, false]); }
document.documentElement.dataset.result = JSON.stringify(out);
}
</script></body>"""


def browse(page, tmp_path, actions=""):
    """What the page says of itself; nothing may be wrong on the console."""
    if not shutil.which("chromium"):
        pytest.skip("not installed: chromium (scripts/deps page)")
    text = page.read_text()
    assert text.count("</body>") == 1
    copy = tmp_path / "run.html"
    copy.write_text(text.replace("</body>", ACTIONS.replace("ACTIONS", actions)))
    p = subprocess.run(["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
                        "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", f"file://{copy}"],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=240)
    # The browser's own pages speak there, too.
    console = [line for line in p.stderr.splitlines() if ":CONSOLE" in line and "source: chrome://" not in line]
    assert not console, console
    m = re.search(r'data-result="([^"]*)"', p.stdout)
    assert m, p.stderr[-2000:]
    result = json.loads(m[1].replace("&quot;", '"').replace("&amp;", "&"))
    print(result)
    assert not [r for r in result if r[1] is False], result
    return result


def html(dir_, to):
    subprocess.run([SOFTHCA, "trace", "--html", to, dir_], check=True, timeout=240)
    return to


def test_hundred_thousand_events(tmp_path):
    many(tmp_path / "t", 22000)
    page = html(tmp_path / "t", tmp_path / "t.html")
    assert "</script><b>" not in page.read_text()
    browse(page, tmp_path, """
	ok("100,000 events", t.events + 3 * t.wrs > 100000);
	t.next(); t.paint();
	ok("trouble is found", /sent again|Sent again|Not seen to arrive/.test(text()));
	ok("a work request", find("wr 0x31").w !== undefined && /0x31/.test(text()) && /until acknowledged/.test(text()));
	ok("a PSN", find("psn 77").e !== undefined && /PSN77 /.test(text()));
	ok("a QP", find("qp 0x12") && /0x000012/.test(text()));
	ok("names are text", document.querySelectorAll("b").length === 1);""")


def test_a_real_run(tmp_path):
    """Writes of which some packets are lost, by the library itself."""
    run = [SOFTHCA, "run", "--wire", "--loss", "2", "--seed", "5", "--trace", tmp_path / "t", "--", "ib_write_bw",
           "-F", "-n", "200", "-s", "8192", "-m", "1024", "-p", "21009"]
    server = subprocess.Popen(run, stdout=subprocess.DEVNULL)
    try:
        for _ in range(50):
            p = subprocess.run([*run, "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
            if not p.returncode:
                break
    finally:
        server.kill()
    assert not p.returncode
    browse(html(tmp_path / "t", tmp_path / "t.html"), tmp_path, """
	t.next(); t.paint();
	ok("trouble is explained", /Sent again|Not seen to arrive|NAK|did nothing/.test(text()));""")


def test_connections_and_sleep(tmp_path):
    """What a click says of a message of the connection manager, and of a thread that sleeps."""
    run = [SOFTHCA, "run", "--trace", tmp_path / "t", "--", "rping", "-C", "50", "-S", "2000", "-p", "21010"]
    server = subprocess.Popen([*run, "-s"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(50):
            if not subprocess.run([*run, "-c", "-a", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  timeout=60).returncode:
                break
        server.wait(30)
    finally:
        server.kill()
    browse(html(tmp_path / "t", tmp_path / "t.html"), tmp_path, """
	ok("messages and sleeps", t.messages >= 6 && t.sleeps > 10);
	const thread = t.places().threads[0];
	const hit = t.hits((thread[1] + thread[2]) / 2, thread[0] + 3);
	ok("a thread is hit", hit && hit.s !== undefined);
	t.choose(hit); t.paint();
	ok("a thread sleeps", /A thread sleeps/.test(text()) && /for[0-9.]+ /.test(text()));
	ok("QP 1", find("qp 1").e !== undefined && /Connection manager's message/.test(text()) && /REQ|REP|RTU/.test(text()));
	t.paint();""")


@pytest.fixture(autouse=True)
def built():
    assert os.path.exists(SOFTHCA), "make build"
