"""Charts without an axis of time: bytes moved, and residuals step by step."""

import math

import numpy as np

from outcore._util.sizes import format_bytes
from outcore.report.report import Report
from outcore.report.svg import LEFT, WIDTH, element, picture, text, tick_step, ticks

_BAR, _GAP, _BETWEEN = 18, 4, 14


def draw_bars(report: Report) -> str:
    """Draw bytes read, written, and moved in all, each beside its planned value."""
    planned = (report.planned_bytes_read, report.planned_bytes_written)
    bound = report.words_lower_bound
    groups: list[tuple[str, list[tuple[str, float | None]]]] = [
        ("read", [("measured", report.bytes_read), ("planned", planned[0])]),
        ("written", [("measured", report.bytes_written), ("planned", planned[1])]),
        (
            "in all",
            [
                ("measured", report.bytes_read + report.bytes_written),
                ("planned", None if None in planned else sum(value or 0 for value in planned)),
                ("lower bound", bound and bound * np.dtype(report.dtype).itemsize),
            ],
        ),
    ]
    most = max([value or 0 for _, bars in groups for _, value in bars] + [1.0])
    parts, said = [], []
    y = 6.0
    for group, bars in groups:
        parts.append(text(10, y + _BAR * 0.75, group, class_="strong"))
        for name, value in bars:
            if value is None:
                continue
            parts += [
                text(LEFT - 10, y + _BAR * 0.75, name, text_anchor="end"),
                element(
                    "rect", class_=name.replace(" ", "-"), x=LEFT, y=y, height=_BAR,
                    width=value / most * WIDTH,
                ),
                text(LEFT + value / most * WIDTH + 8, y + _BAR * 0.75, format_bytes(value)),
            ]  # fmt: skip
            said.append(f"{group}, {name}: {format_bytes(value)}")
            y += _BAR + _GAP
        y += _BETWEEN
    return picture("bytes", "Bytes moved", "; ".join(said) + ".", y, *parts)


_HEIGHT, _TOP = 220, 10
_MOST_POINTS = 1500
_MOST_DOTS = 60


def draw_history(history: list[float]) -> str:
    """Draw residuals over steps, on a logarithmic axis; leave out values that have no logarithm."""
    values = np.array(history, float)
    drawable = np.isfinite(values) & (values > 0)
    logs = np.log10(values, where=drawable, out=np.full(len(values), np.nan))
    low, high = (
        (math.floor(np.nanmin(logs)), math.ceil(np.nanmax(logs))) if drawable.any() else (0, 1)
    )
    high = max(high, low + 1)

    def x(step: float) -> float:
        return LEFT + WIDTH * step / max(len(history), 1)

    def y(log: float) -> float:
        return _TOP + _HEIGHT * (high - log) / (high - low)

    parts = []
    by = max(int(tick_step(high - low, 8)), 1)
    for decade in range(low, high + 1, by):
        parts += [
            element("line", class_="ground", x1=LEFT, x2=LEFT + WIDTH, y1=y(decade), y2=y(decade)),
            text(LEFT - 10, y(decade) + 4, f"1e{decade}", text_anchor="end"),
        ]
    for value, said in ticks(len(history), 10):
        if value == int(value):
            parts.append(text(x(value), _TOP + _HEIGHT + 18, said, text_anchor="middle"))
    chosen = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(int))
    for run in np.split(chosen, np.flatnonzero(~drawable[chosen])):
        points = [f"{x(int(i) + 1):.1f},{y(logs[i]):.1f}" for i in run if drawable[i]]
        parts.append(element("polyline", class_="residual", points=" ".join(points)))
    if len(history) <= _MOST_DOTS:
        parts += [
            element("circle", class_="residual", cx=x(int(i) + 1), cy=y(logs[i]), r=3)
            for i in np.flatnonzero(drawable)
        ]
    parts += [
        element("rect", class_="frame", x=LEFT, y=_TOP, width=WIDTH, height=_HEIGHT),
        text(LEFT + WIDTH / 2, _TOP + _HEIGHT + 36, "step", text_anchor="middle"),
        element(
            "text",
            "residual",
            text_anchor="middle",
            transform=f"translate({LEFT - 70} {_TOP + _HEIGHT / 2:g}) rotate(-90)",
        ),
    ]
    return picture(
        "history", "Residuals", f"From {history[0]:.2e}, the first, to {history[-1]:.2e}, "
        f"the last of {len(history)}.", _TOP + _HEIGHT + 44, *parts,
    )  # fmt: skip
