"""The residuals of an iterative method, step by step."""

import math

import numpy as np

from outcore.report.svg import LEFT, WIDTH, element, picture, text, tick_step, ticks

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
