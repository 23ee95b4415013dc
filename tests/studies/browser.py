"""A real browser for tests: chromium without a window, driven over its debugging pipe, so nothing else is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)


class Browser:
    """One page. Whatever goes wrong in it is kept in `errors`, and whatever it asks the network for in `requests`."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, ours = os.pipe()
        theirs, from_browser = os.pipe()

        def place_pipes() -> None:  # chromium reads from 3 and writes to 4
            os.dup2(to_browser, 103)
            os.dup2(from_browser, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={profile}",
            "--hide-scrollbars",
        ]
        self.process = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"],
            close_fds=False,
            preexec_fn=place_pipes,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.write, self.read, self.buffer, self.number = ours, theirs, b"", 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.session: str | None = None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self._next(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)
        raise TimeoutError(method)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            part = os.read(self.read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self.buffer += part
        first, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(first)

    def _note(self, event: dict[str, Any]) -> None:
        kind, details = event.get("method"), event.get("params", {})
        if kind == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(details["exceptionDetails"]))
        elif (kind == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert")) or (
            kind == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning")
        ):
            self.errors.append(json.dumps(details))
        elif kind == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])

    def open(self, file: Path, width: int = 1280, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=file.resolve().as_uri())
        for _ in range(200):
            if self.run("document.readyState") == "complete" and self.run("location.protocol") == "file:":
                return
            time.sleep(0.05)
        raise TimeoutError(file)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, selector: str) -> None:
        """A real click, which reaches whatever lies on top at that place."""
        script = f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center"}}); const b = e.getBoundingClientRect();
            return [b.left + b.width / 2, b.top + b.height / 2]; }})()"""
        x, y = self.run(script)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type_text(self, selector: str, text: str) -> None:
        self.click(selector)
        self.call("Input.insertText", text=text)

    def screenshot(self, file: Path, whole: bool = True) -> Path:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(found["data"]))
        return file

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.write)
        os.close(self.read)
