"""A headless Chromium for tests, spoken to over a pipe (the DevTools protocol): no port, no Python package.

It reaches nothing but loopback and files: every other name resolves to nothing, and each page tells what it asked for.
It is the one on the PATH, or Debian's package below `.cache/chromium`: unpacked only, with what it needs and this one
lacks; nothing is installed. That needs `apt-get` and `dpkg`, not root, and costs half a minute and 400 MB, once.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
INSTALL = "the page is tested in a real browser: apt-get install chromium, or REGEN_TEST_CHROMIUM names a program"
FETCH_SECONDS = 300
REPOSITORY = Path(__file__).resolve().parent.parent
_ANSWER_SECONDS = 30.0


class NoBrowser(Exception):
    """There is none on this machine."""


def chromium() -> tuple[str, dict[str, str]]:
    """The program, and what its environment needs besides. Raises NoBrowser, saying what to install."""
    found = os.environ.get("REGEN_TEST_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found, {}
    folder = REPOSITORY / ".cache" / "chromium"
    program = folder / "usr/lib/chromium/chromium"
    if not (folder / "is-complete").exists():
        _unpack(folder)
        if not program.exists():
            raise NoBrowser(f"Debian's package has no {program.relative_to(folder)}; {INSTALL}")
        (folder / "is-complete").touch()
    libraries = [str(path) for parent in ("usr/lib", "lib") for path in (folder / parent).glob("*-linux-gnu*")]
    return str(program), {"LD_LIBRARY_PATH": ":".join(libraries)}


def _unpack(folder: Path) -> None:
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NoBrowser(f"there is no Chromium on the PATH, and this is no Debian to get one from; {INSTALL}")
    shutil.rmtree(folder, ignore_errors=True)
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    # Lists and archives of its own, and no lock: the machine's may be missing, old, or root's.
    own = [
        "-qq",
        "-o",
        f"Dir::State::lists={folder / 'lists'}",
        "-o",
        f"Dir::Cache={folder}",
        "-o",
        "Debug::NoLocking=1",
    ]
    _said(["apt-get", *own, "update"])
    _said(["apt-get", *own, "--yes", "--no-install-recommends", "--download-only", "install", "chromium"])
    for package in (folder / "archives").glob("*.deb"):
        _said(["dpkg", "-x", str(package), str(folder)])
    for part in ("lists", "archives"):
        shutil.rmtree(folder / part)


def _said(words: Sequence[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=FETCH_SECONDS)
    if done.returncode:
        raise NoBrowser(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}; {INSTALL}")


class Browser:
    """One process for many tests; close it."""

    def __init__(self, folder: Path) -> None:
        program, environment = chromium()
        ours, theirs = os.pipe(), os.pipe()  # we write, they write
        self._write, self._read = ours[1], theirs[0]
        self._next, self._buffer = 0, b""
        self.events: list[dict[str, Any]] = []
        command = [
            program,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            "--no-proxy-server",
            f"--user-data-dir={folder / 'profile'}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # It reads from descriptor 3 and writes to 4.
        script = f'exec 3<&{ours[0]} 4>&{theirs[1]}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command],
            pass_fds=(ours[0], theirs[1]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        os.close(ours[0])
        os.close(theirs[1])

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """One command and its answer. Events that come meanwhile are kept."""
        self._next += 1
        sent: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if session is not None:
            sent["sessionId"] = session
        os.write(self._write, json.dumps(sent).encode() + b"\0")
        until = time.monotonic() + _ANSWER_SECONDS
        while True:
            told = self._message(until, method)
            if told.get("id") == self._next:
                if "error" in told:
                    raise RuntimeError(f"{method}: {told['error']}")
                result: dict[str, Any] = told["result"]
                return result
            self.events.append(told)

    def listen(self, seconds: float) -> None:
        """Take in what the browser says for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([self._read], [], [], left)[0]:
                self.events.append(self._message(until + _ANSWER_SECONDS, "an event"))

    def _message(self, until: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutError(f"Chromium does not answer to {waiting_for}")
            read = os.read(self._read, 1 << 16)
            if not read:
                raise RuntimeError("Chromium has ended")
            self._buffer += read
        message, self._buffer = self._buffer.split(b"\0", 1)
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def close(self) -> None:
        os.close(self._write)  # it ends when its pipe does
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)

    @contextmanager
    def page(self, width: int = 1440, height: int = 900, scheme: str = "light") -> Iterator[Page]:
        """A tab of its own, of so many CSS pixels, whose reader prefers this scheme."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        try:
            yield page
        finally:
            self.call("Target.closeTarget", targetId=target)


@dataclass
class Page:
    """One tab."""

    browser: Browser
    session: str
    _seen: int = field(default=0)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def open(self, url: str) -> None:
        """Load it, and wait until it is loaded."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """What JavaScript says. Raises AssertionError where it throws."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20.0) -> None:
        """Until it is true. Raises AssertionError when it does not come to that."""
        until = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < until, f"never true: {expression}"
            self.browser.listen(0.05)

    @property
    def _events(self) -> list[dict[str, Any]]:
        return [event for event in self.browser.events if event.get("sessionId") == self.session]

    def complaints(self) -> list[str]:
        """What the console has got: errors, warnings, refusals of the page's policy, exceptions."""
        said = []
        for event in self._events:
            parameters = event["params"]
            if event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                said.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")
            elif event["method"] == "Runtime.exceptionThrown":
                said.append(str(parameters["exceptionDetails"]))
            elif event["method"] == "Runtime.consoleAPICalled":
                said.append(str(parameters["args"]))
        return said

    def requests(self) -> list[str]:
        """Every address that the tab has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: Path, whole: bool = True) -> None:
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")["data"]
        path.write_bytes(base64.b64decode(data))


@contextmanager
def headless() -> Iterator[Browser]:
    """Raises NoBrowser."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        one = Browser(Path(folder))
        try:
            yield one
        finally:
            one.close()
