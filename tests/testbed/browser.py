"""Debian's Chromium without a screen, driven by its own debugging protocol."""

import base64
import json
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import websocket

from tests.testbed.debpackages import ensure_unpacked, needed_for
from tests.testbed.process import Launcher
from tests.testbed.waiting import wait_until

PACKAGES = ("chromium-headless-shell", "chromium-common", "fonts-liberation")
"""What has to lie in one folder: the program finds its data beside itself alone.

The libraries that it needs are found where the machine has them.
"""
_LIBRARIES = ("usr/lib/*-linux-gnu", "usr/lib/*-linux-gnu/*", "lib/*-linux-gnu")
_FLAGS = (
    "--no-sandbox",  # tests may be root, and it opens our own page alone
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)
_ANSWER_S = 60.0
_WINDOW = 1200, 900
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{root}/usr/share/fonts</dir>
  <cachedir>{folder}/fonts</cachedir>
  <match>
    <test name="family"><string>monospace</string></test>
    <edit name="family" mode="prepend"><string>Liberation Mono</string></edit>
  </match>
  <match>
    <edit name="family" mode="append_last"><string>Liberation Sans</string></edit>
  </match>
</fontconfig>
"""


@dataclass(frozen=True, slots=True)
class BrowserProgram:
    """Where the packages' files lie, as under a root folder."""

    root: Path

    @property
    def path(self) -> Path:
        return self.root / "usr/lib/chromium/chromium-headless-shell"

    def environment(self, folder: Path) -> dict[str, str]:
        """Give what it needs to find its libraries and fonts, which are not installed.

        ``folder`` gets what it writes.
        """
        fonts = folder / "fonts.conf"
        fonts.write_text(_FONTS.format(root=self.root, folder=folder))
        places = (place for pattern in _LIBRARIES for place in self.root.glob(pattern))
        libraries = (str(place) for place in places if place.is_dir())
        return {
            "LD_LIBRARY_PATH": ":".join(libraries),
            "FONTCONFIG_FILE": str(fonts),
            "HOME": str(folder),
            "PATH": "/usr/bin:/bin",
        }


def ensure_browser(cache: Path) -> BrowserProgram:
    """Give the browser, fetched now (90 MB) where the cache has none.

    Raises ``BinariesUnavailableError`` where it cannot be had.
    """
    there = cache / "browser"
    packages = () if there.exists() else needed_for(*PACKAGES)
    return BrowserProgram(ensure_unpacked(cache, there.name, packages))


@dataclass
class Tab:
    """One page. ``complaints`` is all that it has had to say against itself.

    Those are errors and warnings on its console, exceptions, and what was refused or
    not found.
    """

    socket: websocket.WebSocket
    complaints: list[str] = field(default_factory=list)
    _last: int = 0

    def call(self, method: str, **parameters: Any) -> Any:
        self._last += 1
        command = {"id": self._last, "method": method, "params": parameters}
        self.socket.send(json.dumps(command))
        while (message := json.loads(self.socket.recv())).get("id") != self._last:
            self._note(message)
        assert "error" not in message, f"{method}: {message['error']}"
        return message["result"]

    def go(self, url: str) -> None:
        """Load a page, and wait until all of it is there."""
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")
        failed = self.call("Page.navigate", url=url).get("errorText")
        assert not failed, f"{url}: {failed}"
        self._loaded("location.href !== 'about:blank'", f"page from {url}")

    def reload(self) -> None:
        """Load the page anew, and wait until all of it is there."""
        self.evaluate("window.isOld = true")
        self.call("Page.reload")
        self._loaded("!window.isOld", "page anew")

    def _loaded(self, new: str, what: str) -> None:
        def look() -> bool:
            # What is asked while one page gives way to the next has no answer.
            with suppress(AssertionError):
                return bool(
                    self.evaluate(f"{new} && document.readyState === 'complete'")
                )
            return False

        wait_until(look, what, 60.0, every_s=0.1)

    def evaluate(self, expression: str) -> Any:
        """Give the value of an expression in the page; a promise is waited for."""
        answer = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        """Give an element's text as it is seen; empty where there is none."""
        name = json.dumps(selector)
        return str(self.evaluate(f"document.querySelector({name})?.innerText ?? ''"))

    def wait_for(self, expression: str, what: str) -> Any:
        """Wait until an expression is true of the page."""
        return wait_until(lambda: self.evaluate(expression), what, 60.0, every_s=0.1)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key, such as ``Tab``, 9; ``text`` is what it would write."""
        same = {"key": key, "windowsVirtualKeyCode": code, "code": key}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **same)
        self.call("Input.dispatchKeyEvent", type="keyUp", **same)

    def write(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def seen_as(self, width: int, height: int, *, dark: bool = False) -> None:
        """Choose the window's size, and whether the reader likes it dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self) -> bytes:
        """Give the whole page as a PNG."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def heard(self) -> list[tuple[str, str]]:
        """Give what a screen reader is told: each role with its name."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], str(node.get("name", {}).get("value", "")))
            for node in nodes
            if not node["ignored"]
        ]

    def _note(self, message: Mapping[str, Any]) -> None:
        event = message.get("params", {})
        match message.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(json.dumps(event["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if event["type"] in ("error", "warning"):
                self.complaints.append(json.dumps(event["args"]))
            case "Log.entryAdded" if event["entry"]["level"] in ("error", "warning"):
                entry = event["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")


class Browser:
    """A running browser while its ``with`` lasts; ``folder`` gets all that it keeps."""

    def __init__(self, program: BrowserProgram, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._program = program
        self._folder = folder
        self._launcher = Launcher(folder)
        self._sockets: list[websocket.WebSocket] = []
        self._port = 0

    def __enter__(self) -> Self:
        profile = self._folder / "profile"
        command = [str(self._program.path), *_FLAGS, f"--user-data-dir={profile}"]
        environment = self._program.environment(self._folder)
        port = profile / "DevToolsActivePort"
        try:
            process = self._launcher.start("browser", command, environment)
            process.wait_ready(lambda: "\n" in port.read_text())
        except BaseException:
            self.close()
            raise
        self._port = int(port.read_text().split()[0])
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for opened in self._sockets:
            with suppress(OSError, websocket.WebSocketException):
                opened.close()
        self._launcher.end_all()

    def open(self, url: str) -> Tab:
        """Open a page in a tab of its own."""
        new = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/json/new?about:blank", method="PUT"
        )
        with urllib.request.urlopen(new, timeout=_ANSWER_S) as answer:
            address = json.load(answer)["webSocketDebuggerUrl"]
        opened = websocket.create_connection(
            address, timeout=_ANSWER_S, suppress_origin=True
        )
        self._sockets.append(opened)
        tab = Tab(opened)
        tab.seen_as(*_WINDOW)
        tab.go(url)
        return tab
