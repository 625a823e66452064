"""Drives a headless Chromium by its debugging protocol, over two pipes: no port, and no other library."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_WAIT_SECONDS = 120


def find_chromium() -> str | None:
    """The program; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@dataclass
class SeenPage:
    """What a browser did with a page.

    Args:
        requests: URLs that it asked for, in order.
        messages: what it said: errors of the page, of its policy, and of the network.
    """

    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


class Chromium:
    """One browser with one tab."""

    def __init__(self, program: str) -> None:
        self._directory = TemporaryDirectory(prefix="dolmen-chromium-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        arguments = [*FLAGS, f"--user-data-dir={self._directory.name}", "about:blank"]
        script = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *arguments],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._read, self._number, self._events = b"", 0, list[dict[str, Any]]()
        self._session: str | None = None

    def __enter__(self) -> Self:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._out)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        self._directory.cleanup()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the protocol; returns its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def show(self, url: str, *, width: int, height: int = 900, dark: bool = False, scripts: bool = True) -> SeenPage:
        """Loads a page in a window of this size; returns what the browser did."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._events.clear()
        self.ask("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._receive())
        self.ask("Page.getFrameTree")  # what was said by then has arrived
        seen = SeenPage()
        for event in self._events:
            method, about = event.get("method"), event.get("params", {})
            if method == "Network.requestWillBeSent":
                seen.requests.append(about["request"]["url"])
            elif method == "Log.entryAdded":
                seen.messages.append(about["entry"]["text"])
            elif method == "Runtime.consoleAPICalled":
                seen.messages.append(str(about["args"]))
            elif method == "Runtime.exceptionThrown":
                seen.messages.append(about["exceptionDetails"]["text"])
        return seen

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        return self.ask("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def take_screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Writes a picture of the page, or of the window."""
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(shot["data"]))

    def print_pdf(self) -> bytes:
        """The page on paper."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])

    def _receive(self) -> dict[str, Any]:
        until = time.monotonic() + _WAIT_SECONDS
        while b"\0" not in self._read:
            left = until - time.monotonic()
            assert left > 0, "the browser does not answer"
            if select.select([self._in], [], [], left)[0]:
                part = os.read(self._in, 1 << 20)
                assert part, "the browser has ended"
                self._read += part
        message, _, self._read = self._read.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer
