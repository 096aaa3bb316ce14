"""Headless Chromium over a pipe of the DevTools protocol: a window of exactly the width asked for, and a list
of everything that the page requests."""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PATIENCE = 60.0  # seconds without a word
BINARY = shutil.which("chromium")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--remote-debugging-pipe",
)

_OVERFLOWING = """(() => {
  const scrolls = e => ["auto", "scroll", "hidden"].includes(getComputedStyle(e).overflowX);
  const inside = e => { for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
    if (scrolls(p)) return true; return false; };
  const out = [];
  for (const e of document.body.querySelectorAll("*")) {
    if (e.ownerSVGElement || inside(e)) continue;
    const box = e.getBoundingClientRect();
    if (box.left < -0.5 || box.right > innerWidth + 0.5)
      out.push(e.tagName + " " + e.textContent.slice(0, 40));
  }
  for (const e of document.querySelectorAll("svg text")) {
    const box = e.getBoundingClientRect(), frame = e.ownerSVGElement.getBoundingClientRect();
    if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
      out.push("label " + e.textContent);
  }
  return out;
})()"""


@dataclass(frozen=True)
class View:
    """What a page looks like at one width; `overflowing` lists elements that stick out of the window or, for
    labels of a figure, out of the figure. `requests` are all but the page itself."""

    inner_width: int
    scroll_width: int
    overflowing: list[str]
    requests: list[str]
    smallest_text: float
    scripts_run: bool
    screenshot: bytes


class Browser:
    """One tab."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._buffer, self._count = write, read, b"", 0
        self._events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setScrollbarsHidden", hidden=True)  # as on a phone

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            part = os.read(self._read, 1 << 20) if ready else b""
            assert part, "Chromium went away, or says nothing"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(text))

    def evaluate(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def view(self, page: Path, width: int) -> View:
        """Load the page in a window `width` CSS pixels wide."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )
        self._events.clear()
        self.call("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._events.append(self._next())
        sizes = (
            "Math.min(...[...document.querySelectorAll('svg text')].filter(e => e.checkVisibility())"
            ".map(e => parseFloat(getComputedStyle(e).fontSize)"
            " * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b)))"
        )
        seen = (
            self.evaluate("innerWidth"),
            self.evaluate("document.scrollingElement.scrollWidth"),
            self.evaluate(_OVERFLOWING),
        )
        smallest = self.evaluate(f"document.querySelector('svg text') ? {sizes} : 99")
        ran = bool(self.evaluate("'pwned' in window"))
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        asked = [e["params"]["request"]["url"] for e in self._events if _is_request(e)]
        asked.remove(page.as_uri())
        return View(*seen, asked, smallest, ran, base64.b64decode(shot))


def _is_request(event: dict[str, Any]) -> bool:
    return event.get("method") == "Network.requestWillBeSent"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start it, with a profile of its own and no way to resolve a name; end it."""
    assert BINARY
    (own_in, write), (read, own_out) = os.pipe(), os.pipe()
    child_in, child_out = (fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (own_in, own_out))
    os.close(own_in)
    os.close(own_out)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        # The protocol's descriptors are 3 and 4; a shell can put ours there.
        script = f'exec "$@" 3<&{child_in} 4>&{child_out}'
        flags = [*_FLAGS, f"--user-data-dir={home}", "--host-resolver-rules=MAP * ~NOTFOUND"]
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", BINARY, *flags],
            pass_fds=(child_in, child_out),
            env={**os.environ, "HOME": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_in)
        os.close(child_out)
        try:
            yield Browser(write, read)
            os.write(write, b'{"id": 0, "method": "Browser.close"}\0')
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        finally:
            process.kill()
            process.wait()
            os.close(write)
            os.close(read)


def assert_fits(seen: View, width: int) -> None:
    """Nothing sticks out, no request leaves, no script runs, and the smallest text can be read."""
    assert seen.inner_width == width
    assert seen.scroll_width <= width
    assert seen.overflowing == []
    assert seen.requests == []
    assert not seen.scripts_run
    assert seen.smallest_text >= 10
