"""A browser for the suite: headless Chromium, driven over the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["Browser", "BrowserError", "missing_programs"]

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class BrowserError(Exception):
    """The driver refused a command."""


def missing_programs() -> list[str]:
    """Those of the two programs that are not installed."""
    return [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]


class Browser:
    """One window. ``profile`` is an empty folder for the browser's own files."""

    def __init__(self, profile: Path) -> None:
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HOME": str(profile)},
        )
        try:
            self._base = f"http://127.0.0.1:{self._port()}"
            options = {
                "binary": shutil.which("chromium"),
                "args": [*_FLAGS, f"--user-data-dir={profile / 'data'}"],
            }
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            made = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
            self._base += f"/session/{made['sessionId']}"
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._send("DELETE", "")
        finally:
            self._end()

    # -- verbs --------------------------------------------------------------------------------

    def open(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a page in a window of this size in CSS pixels."""
        self._devtools(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},  # clicks do not wait
        ]
        self._devtools("Emulation.setEmulatedMedia", {"features": features})
        self._send("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page; what it returns."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector: str) -> None:
        """Click as a person would: the element must be visible and not covered."""
        self._send("POST", f"/element/{self._find(selector)}/click", {})

    def type(self, selector: str, keys: str) -> None:
        """Press keys in an element; see the WebDriver standard for the special ones."""
        self._send("POST", f"/element/{self._find(selector)}/value", {"text": keys})

    def press(self, key: str) -> None:
        """Press a key where the focus is."""
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        actions = [{"type": "key", "id": "keyboard", "actions": keys}]
        self._send("POST", "/actions", {"actions": actions})

    def text(self, selector: str) -> str:
        """What can be read of an element."""
        return str(self._send("GET", f"/element/{self._find(selector)}/text"))

    def console(self) -> list[str]:
        """What the page, or the browser about it, complained of since the last call."""
        entries = self._send("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def screenshot(self, file: Path, *, whole: bool = True) -> None:
        """Save a picture of the whole page, or of the window."""
        picture = self._devtools("Page.captureScreenshot", {"captureBeyondViewport": whole})
        file.write_bytes(base64.b64decode(picture["data"]))

    # -- plumbing -----------------------------------------------------------------------------

    def _find(self, selector: str) -> str:
        found = self._send("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def _devtools(self, command: str, params: dict[str, Any]) -> Any:
        return self._send("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def _port(self) -> str:
        assert self._driver.stdout is not None
        for line in self._driver.stdout:
            match = re.search(r"started successfully on port (\d+)", line)
            if match:
                return match[1]
        raise BrowserError("chromedriver did not start")

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            with error:
                told = json.load(error)["value"]
            raise BrowserError(f"{method} {path}: {told['error']}: {told['message']}") from None

    def _end(self) -> None:
        self._driver.terminate()
        self._driver.wait(30)
        if self._driver.stdout is not None:
            self._driver.stdout.close()
