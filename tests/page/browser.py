"""Chromium without a window, led by the DevTools protocol over a pipe: pages of
any size, real clicks, screenshots."""
import base64
import json
import os
import select
import subprocess
import tempfile
import time

ARGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe"]


class Browser:
    def __init__(self, limit=60):
        self.limit = limit  # of each answer
        self.profile = tempfile.TemporaryDirectory(prefix="softhca-chromium-", ignore_cleanup_errors=True)
        down, self.write = os.pipe()
        self.read, up = os.pipe()

        def pipes():
            # What the browser expects them to be; either may be the other now.
            a, b = os.dup(down), os.dup(up)
            high = [os.dup2(a, 100), os.dup2(b, 101)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)
        self.popen = subprocess.Popen(["chromium", *ARGS, f"--user-data-dir={self.profile.name}"], close_fds=False,
                                      preexec_fn=pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down)
        os.close(up)
        self.got, self.n, self.session, self.console, self.loaded = b"", 0, None, [], False
        page = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def next(self):
        until = time.monotonic() + self.limit
        while b"\0" not in self.got:
            left = until - time.monotonic()
            assert left > 0 and select.select([self.read], [], [], left)[0], "the browser does not answer"
            more = os.read(self.read, 1 << 20)
            assert more, "the browser has ended"
            self.got += more
        one, _, self.got = self.got.partition(b"\0")
        message = json.loads(one)
        if message.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.console.append(json.dumps(message["params"]))
        self.loaded = self.loaded or message.get("method") == "Page.loadEventFired"
        return message

    def ask(self, method, **params):
        self.n += 1
        message = {"id": self.n, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write, data):]
        while (answer := self.next()).get("id") != self.n:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path, width, height):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.loaded = False
        self.ask("Page.navigate", url=f"file://{path}")
        while not self.loaded:
            self.next()

    def js(self, expression):
        got = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        self.painted()

    def click_on(self, selector):
        x, y = self.js(f"(r => [r.x + r.width / 2, r.y + r.height / 2])"
                       f"(document.querySelector('{selector}').getBoundingClientRect())")
        self.click(x, y)

    def painted(self):
        self.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def screenshot(self, path):
        self.painted()
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.popen.kill()
        self.popen.wait()
        os.close(self.write)
        os.close(self.read)
        self.profile.cleanup()
