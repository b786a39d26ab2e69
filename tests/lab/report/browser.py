"""A headless Chromium spoken to over a pipe (the DevTools protocol), with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from ibpwf.lab.report.pdf import FLAGS, find_browser


class Browser:
    """One page in one browser. Console errors, exceptions and requests are collected."""

    def __init__(self) -> None:
        path = find_browser()
        assert path is not None
        self.profile = tempfile.TemporaryDirectory(prefix="ibpwf-browser-", ignore_cleanup_errors=True)
        ours_out, theirs_in = os.pipe()[::-1]
        theirs_out, ours_in = os.pipe()[::-1]
        self._read, self._write = ours_in, ours_out
        # Chromium reads commands from file descriptor 3 and answers on 4.
        wrapper = ["bash", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "chromium", path]
        flags = [*FLAGS, "--no-sandbox", f"--user-data-dir={self.profile.name}", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            [*wrapper, *flags, "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(t for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (OSError, TimeoutError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait(10)
        os.close(self._read)
        os.close(self._write)
        self.profile.cleanup()

    def _message(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise OSError("Chromium has ended")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def call(self, method: str, **params: Any) -> Any:
        """A command's result; events that arrive meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 30
        while True:
            answer = self._message(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Show a file at a width and wait until it has loaded."""
        phone = width < 600
        scale = 2 if phone else 1
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + 30
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message(until))

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def key(self, name: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def complaints(self) -> list[str]:
        """Console errors, uncaught exceptions and log entries of the page shown."""
        found = []
        for event in self.events:
            kind, params = event.get("method"), event.get("params", {})
            is_error = kind == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert")
            if is_error or kind in ("Runtime.exceptionThrown", "Log.entryAdded"):
                found.append(json.dumps(params))
        return found

    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]

    def screenshot(self, out: Path) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"]
        out.write_bytes(base64.b64decode(data))
