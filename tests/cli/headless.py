"""A headless Chromium, driven over its debugging pipe: JSON messages that end with a NUL byte."""

import base64
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 60


def find():
    named = os.environ.get("PARISKV_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    def __init__(self, program, profile):
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        def at_3_and_4():
            # By copies beyond both numbers, so that neither end is closed by the other's place.
            ends = [os.dup2(end, 20 + i) for i, end in enumerate((to_browser, from_browser))]
            for i, end in enumerate(ends):
                os.dup2(end, 3 + i)
                os.close(end)

        # Its sandbox does not start for root.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            [program, "--headless", *sandbox, "--disable-gpu", "--no-first-run",
             "--disable-background-networking", "--hide-scrollbars", "--disable-dev-shm-usage",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=at_3_and_4,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self.events = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def _receive(self, end):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0, end - time.monotonic()))
            data = os.read(self._in, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError("the browser does not answer")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def call(self, method, session=None, **params):
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def wait_for(self, method):
        end = time.monotonic() + PATIENCE_S
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._receive(end))

    def tab(self):
        return Tab(self)


class Tab:
    """A page, with what it logged and asked for since it was opened."""

    def __init__(self, browser):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def show(self, url, width, height, scheme):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=width < 500)  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self._browser.events.clear()
        self.call("Page.navigate", url=url)
        self._browser.wait_for("Page.loadEventFired")

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"]["value"]

    def screenshot(self, whole=False):
        """PNG of the window, or of all that can be scrolled to."""
        clip = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"captureBeyondViewport": True, "clip": {**size, "scale": 1}}
        shot = self.call("Page.captureScreenshot", **clip)
        return base64.b64decode(shot["data"])

    def complaints(self):
        """Texts of the console and of the browser's log since `show`."""
        self.value("0")  # events before this answer have arrived
        texts = []
        for event in self._browser.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                texts.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled":
                texts.append(str(params["args"]))
            elif method == "Log.entryAdded":
                texts.append(params["entry"]["text"])
        return texts

    def requests(self):
        """Addresses asked for since `show`, but for what the address itself holds."""
        self.value("0")
        sent = [event["params"]["request"]["url"] for event in self._browser.events
                if event.get("method") == "Network.requestWillBeSent"]  # fmt: skip
        return [url for url in sent if not url.startswith("data:")]
