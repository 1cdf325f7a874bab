"""Elements of a page, axes and ticks. This module escapes all text and all attributes."""

import html
import math
from dataclasses import dataclass

import numpy as np

from outcore.report.spans import Floats

LEFT, WIDTH, RIGHT = 150, 700, 110
"""Widths in every picture: labels, the picture itself, and figures."""


def element(name: str, *inside: str, **attributes: object) -> str:
    """Return an element; `inside` must be markup already.

    Underscores in attribute names become hyphens, except for one at the end, which is dropped.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(_written(value))}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(inside)}</{name}>"


def escaped(text: object) -> str:
    """Escape text."""
    return html.escape(str(text))


def text(x: float, y: float, words: str, **attributes: object) -> str:
    """Return text at a point of a picture."""
    return element("text", escaped(words), x=x, y=y, **attributes)


def picture(name: str, title: str, description: str, height: float, *inside: str) -> str:
    """Return a picture with a title and a description for users who cannot see it."""
    return element(
        "svg",
        element("title", escaped(title), id=f"{name}-title"),
        element("desc", escaped(description), id=f"{name}-desc"),
        *inside,
        id=name,
        viewBox=f"0 0 {LEFT + WIDTH + RIGHT} {height:g}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )


def _written(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def steps(values: Floats, height: float) -> str:
    """Path of a filled staircase over the whole width, for values from 0 to 1; as in `zoom.js`."""
    x = np.round(np.arange(len(values) + 1) * (WIDTH / len(values)), 1)
    y = np.round(height * (1 - values), 1)
    changes = np.flatnonzero(np.diff(y, prepend=np.nan))
    ends = [*changes[1:], len(values)]
    parts = [f"V{y[i]:g}H{x[end]:g}" for i, end in zip(changes, ends, strict=True)]
    return f"M0 {height:g}{''.join(parts)}V{height:g}Z"


def tick_step(span: float, most: int) -> float:
    """Distance of round ticks, at most `most` on a span: 1, 2 or 5 times a power of ten."""
    least = span / most
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def ticks(last: float, most: int) -> list[tuple[float, str]]:
    """Return round ticks from 0 to `last`, and their texts."""
    if not 0 < last < math.inf:
        return [(0.0, "0")]
    step = tick_step(last, most)
    decimals = max(0, -math.floor(math.log10(step)))
    count = math.floor(last / step * (1 + 1e-9))
    return [(i * step, f"{i * step:.{decimals}f}") for i in range(count + 1)]


@dataclass(frozen=True)
class TimeAxis:
    """The time axis of a call, in a unit that suits its length."""

    seconds: float

    @property
    def unit(self) -> tuple[str, float]:
        """Name of the unit, and its length in seconds."""
        if self.seconds < 0.1:
            return "ms", 1e-3
        return ("s", 1.0) if self.seconds < 600 else ("min", 60.0) if self.seconds < 7200 else (
            "h", 3600.0
        )  # fmt: skip

    def draw(self, y: float) -> str:
        """Draw the axis with its label."""
        name, unit = self.unit
        marks = [
            element("line", x1=at, x2=at, y1=0, y2=5) + text(at, 18, said, text_anchor="middle")
            for value, said in ticks(self.seconds / unit, 8)
            for at in [value * unit / self.seconds * WIDTH]
        ]
        return element(
            "g",
            element("line", x1=0, x2=WIDTH, y1=0, y2=0),
            element("g", *marks, class_="time-ticks"),
            text(WIDTH / 2, 36, f"time, {name}", text_anchor="middle"),
            class_="axis",
            transform=f"translate({LEFT} {y:g})",
        )


BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def byte_unit(nbytes: float) -> tuple[str, float]:
    """Return the binary unit in which a number of bytes is short, and its size."""
    power = min(max(int(math.log(max(nbytes, 1), 1024) + 0.05), 0), len(BYTE_UNITS) - 1)
    return BYTE_UNITS[power], 1024.0**power
