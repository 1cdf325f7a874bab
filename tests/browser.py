"""Chromium without a window: pictures of pages, and the faults of their layout."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")

WIDTHS = (1300, 480)
"""Widths of windows, in pixels: of a desk and of a telephone."""

LOOK = """
addEventListener("load", () => {
  const faults = [];
  for (const frame of document.querySelectorAll("iframe")) {
    const inside = frame.contentDocument;
    const report = (text) => faults.push(`${frame.title}: ${text}`);
    const page = inside.documentElement;
    if (page.scrollWidth > page.clientWidth) report(`the page is ${page.scrollWidth} pixels wide`);
    for (const cell of inside.querySelectorAll("td, th"))
      if (cell.scrollWidth > cell.clientWidth + 1) report(`"${cell.textContent}" leaves its cell`);
    for (const picture of inside.querySelectorAll("svg")) {
      const edge = picture.getBoundingClientRect();
      const texts = [...picture.querySelectorAll("text")].map(
        (each) => [each.textContent.trim(), each.getBoundingClientRect()]);
      texts.forEach(([text, box], number) => {
        if (box.height < 8) report(`"${text}" is ${box.height} pixels high`);
        if (box.left < edge.left - 1 || box.right > edge.right + 1
            || box.top < edge.top - 1 || box.bottom > edge.bottom + 1)
          report(`"${text}" leaves its picture`);
        for (const [other, at] of texts.slice(0, number))
          if (box.left < at.right && at.left < box.right
              && box.top + 3 < at.bottom && at.top + 3 < box.bottom)
            report(`"${text}" covers "${other}"`);
      });
    }
  }
  const found = document.createElement("pre");
  found.id = "faults";
  found.textContent = JSON.stringify(faults);
  document.body.append(found);
});
"""


def picture_of(url: str, home: Path, width: int = WIDTHS[0], height: int = 1000) -> Path:
    """Draw a page into a file, and return that."""
    picture = home / "page.png"
    said = _run(home, f"--window-size={width},{height}", f"--screenshot={picture}", url)[1]
    assert picture.stat().st_size > 20_000, said
    return picture


def faults_of(pages: Sequence[str], home: Path) -> list[str]:
    """Return the faults in the layout of some pages, each in all `WIDTHS`.

    The policy of each page stays in force: the script that looks at it is outside.
    """
    frames = [
        f'<iframe title="page {number}, {width} pixels" width="{width}" height="1000" '
        f'srcdoc="{html.escape(page)}"></iframe>'
        for number, page in enumerate(pages)
        for width in WIDTHS
    ]
    outside = home / "frames.html"
    outside.write_text(
        f'<!doctype html><meta charset="utf-8"><script>{LOOK}</script>' + "\n".join(frames)
    )
    document, said = _run(home, "--dump-dom", outside.as_uri())
    found = re.search('<pre id="faults">(.*?)</pre>', document, re.DOTALL)
    assert found is not None, said
    faults: list[str] = json.loads(html.unescape(found[1]))
    return faults


def _run(home: Path, *arguments: str) -> tuple[str, str]:
    """Run the browser, and return its output and its messages; without one, skip the test."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip("Chromium is not installed: nobody has looked at the drawing of this page")
    done = subprocess.run(
        [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={home / 'profile'}", "--enable-logging=stderr", *arguments,
        ],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Content Security Policy" not in done.stderr, done.stderr
    return done.stdout, done.stderr
