"""softhca trace --html in headless Chromium: no error on its console, and what is
clicked, searched and zoomed leads to what it should, in windows of three sizes.
make test-page runs it; TIMELINE=rewrite in the environment also writes the
screenshots of docs/."""
import json
import os
import re
import shutil
import struct
import subprocess

import pytest

from browser import Browser

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOFTHCA = os.path.join(ROOT, "build/bin/softhca")
HEADER, RECORD, RING = 65536, 32, 1 << 17
POST, OUT, IN, COMPLETE, POLLED, QP_NEW, QP_STATE, SGID, DGID = 1, 3, 4, 7, 8, 12, 13, 14, 15
AWAY, BACK, PEER_AWAY, PEER_BACK = range(25, 29)
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


def many(to, requests, after=0, away=0):
    """Two processes, and writes of one packet, of which one in 50 is lost first, some ns after they have connected. In
    the end the first one is suspended for some ns, and the other waits for it."""
    a, b = (bytes([0] * 10 + [255, 255, 10, 0, 0, n]) for n in (1, 2))

    def address(kind, num, gid):
        return struct.pack("<QII16s", 1, num << 8 | kind, 0, gid)

    def born(num, dest, own, peer):
        return [record(QP_NEW, 1, num, 2), address(SGID, num, own), address(DGID, num, peer),
                record(QP_STATE, 1, num, 2, dest, 0, 0, 1024)]
    left, right = [], []
    for i in range(requests):
        t, psn = after + 1000 + i * 2000, i & 0xffffff
        left += [record(POST, t, 0x11, psn << 8 | 1, i, psn, 0, 1024),
                 record(OUT, t + 100, 0x11, psn << 8, 0x12, psn, WRITE_FIRST, 1024)]
        if i % 50 == 49:
            t += 800
            left += [record(OUT, t, 0x11, psn << 8 | 1, 0x12, psn, WRITE_FIRST, 1024)]
        right += [record(IN, t + 500, 0x12, psn << 8, 0x11, psn, WRITE_FIRST, 1024),
                  record(OUT, t + 600, 0x12, psn << 8, 0x11 | 1 << 32, psn, ACK)]
        left += [record(IN, t + 900, 0x11, psn << 8, 0x12 | 1 << 32, psn, ACK),
                 record(COMPLETE, t + 950, 0x11, 0, i, 0, 1), record(POLLED, t + 990, 0x11, 0, i, 0, 1)]
    if away:
        left += [record(AWAY, t + 1200, 0), record(BACK, t + 1201, 0, key=away - 1)]
        right += [record(PEER_AWAY, t + 1100, 0x12, 60), record(PEER_BACK, t + 1300 + away, 0x12)]
    os.makedirs(to)
    events(f"{to}/a.events", 1, b"</script><b>", [born(0x11, 0x12, a, b), left])
    events(f"{to}/b.events", 2, b"peer", [born(0x12, 0x11, b, a), right])


def ranks(to, n, requests=40):
    """So many processes, each of which writes to the next; one is slow."""
    def gid(i):
        return bytes([0] * 10 + [255, 255, 10, 0, 0, i + 1])

    left, born = [[] for _ in range(n)], [[] for _ in range(n)]
    for i in range(n):
        j, out, into = (i + 1) % n, 0x100 + i, 0x200 + (i + 1) % n
        for p, num, dest, own, peer in ((i, out, into, i, j), (j, into, out, j, i)):
            born[p] += [record(QP_NEW, 1, num, 2), struct.pack("<QII16s", 1, num << 8 | SGID, 0, gid(own)),
                        struct.pack("<QII16s", 1, num << 8 | DGID, 0, gid(peer)),
                        record(QP_STATE, 1, num, 2, dest, 0, 0, 1024)]
        for k in range(requests):
            t, wait = 10000 + k * 20000 + i * 37, 9000 if i == n // 2 else 100
            left[i] += [record(POST, t, out, k << 8 | 1, k, k, 0, 1024),
                        record(OUT, t + wait, out, k << 8, into, k, WRITE_FIRST, 1024)]
            left[j] += [record(IN, t + wait + 500, into, k << 8, out, k, WRITE_FIRST, 1024),
                        record(OUT, t + wait + 600, into, k << 8, out | 1 << 32, k, ACK)]
            left[i] += [record(IN, t + wait + 900, out, k << 8, into | 1 << 32, k, ACK),
                        record(COMPLETE, t + wait + 950, out, 0, k, 0, 1), record(POLLED, t + wait + 990, out, 0, k, 0, 1)]
    os.makedirs(to)
    for i in range(n):
        ordered = sorted(left[i], key=lambda r: struct.unpack("<Q", r[:8]))
        events(f"{to}/{i:02}.events", i + 1, b"rank-of-a-long-name", [born[i], ordered])


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


@pytest.fixture(scope="module")
def lossy(tmp_path_factory):
    """Writes of which some packets are lost, by the library itself."""
    tmp_path = tmp_path_factory.mktemp("lossy")
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
    return html(tmp_path / "t", tmp_path / "t.html")


def test_a_real_run(lossy, tmp_path):
    browse(lossy, tmp_path, """
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


SIZES = [(1400, 900), (900, 700), (600, 800)]
# Labels of which one lies upon another, and those that are not in the stage.
OVERLAPS = """(() => {
	const b = softhcaTimeline.boxes(), bad = [];
	for (let i = 0; i < b.length; i++) {
		if (b[i][0] < 0 || b[i][2] > document.getElementById("stage").clientWidth)
			bad.push(b[i]);
		for (let k = 0; k < i; k++)
			if (b[i][0] < b[k][2] && b[k][0] < b[i][2] && b[i][1] < b[k][3] && b[k][1] < b[i][3])
				bad.push([b[i], b[k]]);
	}
	return bad;
})()"""
# Where in the window something of this kind is that a click would hit.
WHERE = """(kind => {
	const c = document.getElementById("c"), r = c.getBoundingClientRect(), t = softhcaTimeline;
	for (let y = 30; y < r.height; y += 2)
		for (let x = 160; x < r.width; x += 3)
			if ((t.hits(x, y + t.top()) || {})[kind] !== undefined)
				return [r.x + x, r.y + y];
})"""
ABOUT = "document.getElementById('about').textContent"


@pytest.fixture(scope="module")
def browser():
    if not shutil.which("chromium"):
        pytest.skip("not installed: chromium (scripts/deps page)")
    b = Browser()
    yield b
    b.close()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A page and the first line of the table, of each recording."""
    where, pages = tmp_path_factory.mktemp("recorded"), {}
    many(where / "many", 600, after=10**10)
    ranks(where / "ranks", 64)
    for name in "many", "ranks":
        table = subprocess.run([SOFTHCA, "trace", where / name], check=True, stdout=subprocess.PIPE, text=True).stdout
        pages[name] = html(where / name, where / f"{name}.html"), table.splitlines()[0]
    return pages


def rewrite(shot, name):
    if os.environ.get("TIMELINE") == "rewrite":
        shutil.copy(shot, os.path.join(ROOT, "docs", name))


def test_shown(browser, lossy, tmp_path):
    """What docs/DEBUGGING.md shows: where the first trouble is."""
    browser.open(f"{lossy}#trouble", 1300, 460)
    browser.screenshot(tmp_path / "shot.png")
    assert browser.js(OVERLAPS) == [] and re.search("Sent again|Not seen to arrive", browser.js(ABOUT))
    rewrite(tmp_path / "shot.png", "timeline.png")


@pytest.mark.parametrize("width, height", SIZES)
@pytest.mark.parametrize("name", ["many", "ranks"])
def test_sizes(browser, recorded, tmp_path, name, width, height):
    """The verdict comes first, all is readable, and the first view is what happened."""
    page, verdict = recorded[name]
    browser.console.clear()
    browser.open(page, width, height)
    browser.painted()
    assert browser.js("document.getElementById('verdict').textContent") == verdict
    assert browser.js("document.body.innerText").startswith(verdict)
    assert browser.js(OVERLAPS) == []
    assert browser.js("softhcaTimeline.boxes().length") > (20 if name == "ranks" else 6)
    assert browser.js("document.documentElement.scrollWidth") <= width
    assert browser.js("document.getElementById('stage').clientHeight") > height / 3
    keys = browser.js("[...document.querySelectorAll('.key')].map(k => { const r = k.getBoundingClientRect();"
                      "return [k.textContent, r.x, r.x + r.width]; })")
    assert len(keys) == 16 and all(0 <= a and b <= width for _, a, b in keys), keys
    # The first and the last work request are in the view, and fill it.
    state, lo, hi = browser.js("[softhcaTimeline.state(), ...softhcaTimeline.work()]")
    assert state["from"] <= lo and hi <= state["from"] + state["span"] and hi - lo > 0.8 * state["span"], (state, lo, hi)
    shot = tmp_path / f"{name}-{width}.png"
    browser.screenshot(shot)
    assert struct.unpack(">II", shot.read_bytes()[16:24]) == (width, height)
    if (name, width) == ("ranks", 900):
        rewrite(shot, "timeline-ranks.png")
    assert not browser.console, browser.console


@pytest.mark.parametrize("width, height", SIZES)
def test_clicks(browser, recorded, width, height):
    browser.console.clear()
    browser.open(recorded["many"][0], width, height)
    browser.js("(([a]) => softhcaTimeline.zoom(a, a + 9000))(softhcaTimeline.work())")
    browser.painted()
    for kind, said in (("w", "Work request"), ("e", "Packet")):
        browser.click(*browser.js(f"{WHERE}('{kind}')"))
        assert browser.js(ABOUT).startswith(said)
    assert browser.js(OVERLAPS) == []
    browser.click_on("#bad")
    assert re.search("Sent again|Not seen to arrive", browser.js(ABOUT))
    browser.click_on("#fit")
    assert browser.js("softhcaTimeline.state().from") < 0
    # A process that is clicked becomes a row, and back.
    x, y = browser.js("(r => [r.x + 20, r.y + softhcaTimeline.procs()[0].y + 9])"
                      "(document.getElementById('c').getBoundingClientRect())")
    folded = "softhcaTimeline.procs().map(p => p.folded)"
    browser.click(x, y)
    assert browser.js(folded) == [True, False] and browser.js(OVERLAPS) == []
    browser.click(x, y)
    assert browser.js(folded) == [False, False]
    browser.click_on("#fold")
    assert browser.js(folded) == [True, True] and browser.js(OVERLAPS) == []
    assert not browser.console, browser.console


def test_moves(browser, tmp_path):
    """When a process was suspended, and which queue pair has waited for it: as the table says."""
    many(tmp_path / "t", 20, away=30000)
    table = subprocess.run([SOFTHCA, "trace", tmp_path / "t"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert re.search("process 1 is suspended, for 0.030 ms$", table, re.M), table
    assert re.search("process 2: QP 0x000012 waits for its peer, which is suspended, for 0.030 ms$", table, re.M), table
    browser.console.clear()
    browser.open(html(tmp_path / "t", tmp_path / "t.html"), 1400, 900)
    assert browser.js("softhcaTimeline.moves") == 2
    assert browser.js("[...document.querySelectorAll('.key')].map(k => k.textContent)")[16:] == [
        "suspended", "waits for its peer, which is suspended"]
    browser.js("(([a, b]) => softhcaTimeline.zoom(a, b + 40000))(softhcaTimeline.work())")
    browser.painted()
    for k, said in ((0, "A queue pair waits for its peer.*QP 0x000012.*for30.20"), (1, "A process is suspended.*b> 1 on host.*for30.00")):
        x, y, w, h = browser.js(f"softhcaTimeline.place({k})")
        assert w > 300 and h > 10
        left, top = browser.js("(r => [r.x, r.y])(document.getElementById('c').getBoundingClientRect())")
        browser.click(left + x + w / 2, top + y + h - 3)
        assert re.search(said, browser.js(ABOUT)), browser.js(ABOUT)
    browser.click_on("#fold")
    browser.painted()
    assert browser.js("softhcaTimeline.place(1)[3]") == browser.js("softhcaTimeline.procs()[0].h")
    assert not browser.console, browser.console


def test_ranks_fold(browser, recorded):
    """64 processes are a row each, on less than two screens; a search opens one."""
    browser.open(recorded["ranks"][0], 1400, 900)
    rows = browser.js("softhcaTimeline.procs().map(p => [p.folded, p.y, p.h])")
    assert len(rows) == 64 and all(f for f, _, _ in rows)
    assert all(b[1] >= a[1] + a[2] for a, b in zip(rows, rows[1:])) and rows[-1][1] < 1500
    browser.js("document.getElementById('find').value = 'qp 0x105'; softhcaTimeline.find()")
    assert [i for i, p in enumerate(browser.js("softhcaTimeline.procs()")) if not p["folded"]] == [5]
    browser.painted()
    assert browser.js(OVERLAPS) == []


@pytest.fixture(autouse=True)
def built():
    assert os.path.exists(SOFTHCA), "make build"
