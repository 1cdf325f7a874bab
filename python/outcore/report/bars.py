"""Bar charts of the bytes moved, beside the plan and the lower bound."""

import numpy as np

from outcore._util.sizes import format_bytes
from outcore.report.report import Report
from outcore.report.svg import LEFT, WIDTH, element, picture, text

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
