"""A headless Chromium for the tests, driven over its own DevTools protocol."""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-extensions"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--hide-scrollbars", "--no-default-browser-check"),
)


def find_chromium() -> str | None:
    """Where the browser is; BROWSER_FOR_TESTS names another, or none if it is empty."""
    if "BROWSER_FOR_TESTS" in os.environ:
        return os.environ["BROWSER_FOR_TESTS"] or None
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One page of one browser, with what it asked for and what it complained about."""

    def __init__(self, home: Path) -> None:
        program = find_chromium()
        assert program is not None
        home.mkdir(parents=True)
        self.log = home / "chromium.log"
        with open(self.log, "wb") as log:
            words = [program, *FLAGS, f"--user-data-dir={home}", "about:blank"]
            self.process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
        self.held = contextlib.ExitStack()
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self) -> None:
        from websockets.sync.client import connect

        address = self._until(lambda: re.search(r"ws://\S+", self.log.read_text(errors="replace")), "its address")[0]
        self.socket = self.held.enter_context(connect(address, max_size=None, compression=None))
        self.count = 0
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command, and its answer; what happens meanwhile is noted."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters}
        self.socket.send(json.dumps(message | ({"sessionId": self.session} if self.session else {})))
        while True:
            answer = json.loads(self.socket.recv(timeout=60))
            if answer.get("id") == self.count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, event: str, about: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(about["exceptionDetails"].get("exception", about["exceptionDetails"])))
        elif event == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(about["args"]))
        elif event == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")

    def open(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def resize(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> Any:
        """Wait until an expression is true, and give its value."""
        return self._until(lambda: self.evaluate(expression), expression, seconds)

    def _until(self, true: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := true():
                return found
            time.sleep(0.1)
        text = self.evaluate("document.body.innerText") if getattr(self, "session", None) else self.log.read_text()
        raise AssertionError(f"waited {seconds} s in vain for {what}; the page says:\n{text[:3000]}")

    def over(self, selector: str, expression: str) -> None:
        """Move the pointer over an element until an expression is true. Again and again: a page that is drawn anew
        just then has a new element, which hears of the next move only."""

        def seen() -> Any:
            box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
            where = self.evaluate(f"(({{x, y, width}}) => ({{x: x + width / 2, y: y + 30}}))({box})")
            where["x"] += time.monotonic() % 1  # a pointer that stands still does not move
            self.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
            return self.evaluate(expression)

        self._until(seen, expression)

    def text(self) -> str:
        return str(self.evaluate("document.body.innerText"))

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def strangers(self) -> set[str]:
        """Hosts other than this machine that were asked for something."""
        return {str(urlsplit(u).hostname) for u in self.requests if u.startswith(("http", "ws"))} - {"127.0.0.1"}

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """End the browser with all of its processes, which are a session of their own."""
        self.held.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> "Chromium":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
