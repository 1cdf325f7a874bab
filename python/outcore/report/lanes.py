"""The timeline: periods of arithmetic, of waiting, and of disk transfers."""

import base64
import json
import math

import numpy as np

from outcore._util.sizes import format_seconds
from outcore.report.spans import LANES, Floats, Spans
from outcore.report.svg import (
    LEFT,
    WIDTH,
    TimeAxis,
    byte_unit,
    element,
    picture,
    steps,
    text,
    tick_step,
)

_LANE, _GAP, _TOP = 30, 12, 8
_RATE = 90

FINE_BINS = 16_384
"""Bins of time in the page's data, for zooming in."""

BINS = 700
"""Bins of time that are drawn at once: one for each unit of width."""


def draw_lanes(spans: Spans) -> str:
    """Draw a lane for each kind of span, and the rates of the disk."""
    axis = TimeAxis(spans.seconds)
    edges = np.linspace(0, axis.seconds, BINS + 1)
    parts, busy, lanes = [], [], spans.lanes()
    for number, (kind, (label, colour)) in enumerate(lanes.items()):
        mine = spans.chosen(kind)
        y = _TOP + number * (_LANE + _GAP)
        seconds = mine.busy_seconds()
        said = "none"
        if len(mine):
            said = f"{format_seconds(seconds)}, {seconds / axis.seconds:.0%}"
            busy.append(f"{label} {format_seconds(seconds)}")
        parts += [
            text(LEFT - 10, y + _LANE * 0.65, label, text_anchor="end"),
            _staircase(mine.busy(edges), kind, colour, y, _LANE),
            text(LEFT + WIDTH + 10, y + _LANE * 0.65, said),
        ]
    y = _TOP + len(lanes) * (_LANE + _GAP) + 18
    rates = {kind: spans.chosen(kind).rate(edges) for kind in ("read", "write")}
    most = max(rate.max(initial=0) for rate in rates.values())
    unit, size = byte_unit(most)
    top = _round_up(most / size) * size
    parts += [
        text(LEFT - 10, y + 10, f"{top / size:g} {unit}/s", text_anchor="end", id="rate-top"),
        text(LEFT - 10, y + _RATE / 2, "rate of the disk", text_anchor="end"),
        text(LEFT - 10, y + _RATE, "0", text_anchor="end"),
    ]
    parts += [
        element("line", class_="ground", x1=LEFT, x2=LEFT + WIDTH, y1=at, y2=at)
        for at in (y, y + _RATE / 2)
    ]
    parts += [
        _staircase(np.minimum(rates[kind] / top, 1), f"{kind}-rate", LANES[kind][1], y, _RATE)
        for kind in rates
    ]
    parts.append(axis.draw(y + _RATE))
    catcher = element(
        "rect", class_="catcher", x=LEFT, y=_TOP, width=WIDTH, height=y + _RATE - _TOP
    )
    return picture(
        "timeline", "Timeline", f"Of {format_seconds(axis.seconds)}: {'; '.join(busy)}.",
        y + _RATE + 44, *parts, catcher,
    )  # fmt: skip


def zoom_data(spans: Spans) -> str:
    """Return the lanes in fine bins, for the page's script.

    The JSON contains the total seconds; for each lane its bins as bytes in base64; the rates in the
    same form, and the bytes per second that 255 represents.
    """
    axis = TimeAxis(spans.seconds)
    bins = int(min(FINE_BINS, max(BINS, axis.seconds * 1e6)))
    edges = np.linspace(0, axis.seconds, bins + 1)
    lanes = {kind: spans.chosen(kind).busy(edges) for kind in spans.lanes()}
    rates = {f"{kind}-rate": spans.chosen(kind).rate(edges) for kind in ("read", "write")}
    most = max(float(max(rate.max(initial=0) for rate in rates.values())), 1.0)
    name, unit = axis.unit
    return json.dumps(
        {
            "seconds": axis.seconds,
            "unit": [name, unit],
            "most": most,
            "lanes": {key: _as_bytes(lane) for key, lane in lanes.items()}
            | {key: _as_bytes(rate / most) for key, rate in rates.items()},
        }
    )


def _as_bytes(values: Floats) -> str:
    levels = np.round(np.clip(values, 0, 1) * 255).astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode()


def _round_up(value: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    return tick_step(value, 1) if 0 < value < math.inf else 1.0


def _staircase(values: Floats, name: str, colour: str, y: float, height: float) -> str:
    ground = element("line", class_="ground", x1=0, x2=WIDTH, y1=height, y2=height)
    path = element("path", d=steps(values, height), fill=colour, data_lane=name, data_height=height)
    return element("g", ground, path, transform=f"translate({LEFT} {y:g})")
