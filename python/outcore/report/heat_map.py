"""Heat maps: the bytes of each array that were read and written, over time."""

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

from outcore._util.sizes import format_bytes, format_seconds
from outcore.report.spans import LANES, Spans
from outcore.report.svg import (
    LEFT,
    WIDTH,
    TimeAxis,
    byte_unit,
    element,
    picture,
    text,
    ticks,
)

_HEIGHT, _TOP = 200, 24
SHAPE = (100, 350)
"""Cells of a map: offsets in the file, and times."""

_LEVELS = 32
_FAINTEST = 0.15
"""Share of the colour for the smallest transfer, so that every transfer is visible."""


def draw_heat_map(spans: Spans, array: int, name: str) -> str:
    """Draw the reads and writes of an array's bytes over time, in one map of two colours."""
    axis = TimeAxis(spans.seconds)
    kinds = {kind: spans.chosen(kind, array) for kind in ("read", "write")}
    reach = max(float((mine.offset + mine.bytes).max(initial=1)) for mine in kinds.values())
    unit, size = byte_unit(reach)
    parts = []
    images = []
    said = []
    for kind, mine in kinds.items():
        moved = float(mine.bytes.sum())
        if not moved:
            continue
        cells = mine.heat(SHAPE, axis.seconds, reach)
        images.append(_image(cells, LANES[kind][1]))
        said.append(f"{kind} {format_bytes(moved)}, up to {format_bytes(cells.max())} in a cell")
        x = LEFT + 340 * (len(said) - 1)
        parts += [
            element("rect", x=x, y=3, width=14, height=14, fill=LANES[kind][1]),
            text(x + 20, 15, said[-1]),
        ]
    parts.append(
        element(
            "svg",
            *images,
            x=LEFT,
            y=_TOP,
            width=WIDTH,
            height=_HEIGHT,
            viewBox="0 0 1 1",
            preserveAspectRatio="none",
            class_="zoomed",
        )
    )
    for value, mark in ticks(reach / size, 5):
        y = _TOP + _HEIGHT * (1 - value * size / reach)
        parts.append(
            element(
                "g",
                element("line", x1=LEFT - 5, x2=LEFT, y1=y, y2=y),
                text(LEFT - 10, y + 4, mark, text_anchor="end"),
                class_="axis",
            )
        )
    parts += [
        element("rect", class_="frame", x=LEFT, y=_TOP, width=WIDTH, height=_HEIGHT),
        element(
            "text",
            f"offset in the file, {unit}",
            text_anchor="middle",
            transform=f"translate({LEFT - 70} {_TOP + _HEIGHT / 2:g}) rotate(-90)",
        ),
        axis.draw(_TOP + _HEIGHT),
        element("rect", class_="catcher", x=LEFT, y=_TOP, width=WIDTH, height=_HEIGHT),
    ]
    cell = f"{format_seconds(axis.seconds / SHAPE[1])} by {format_bytes(reach / SHAPE[0])}"
    return picture(
        f"heat-{array}", f"Reads and writes of {name}",
        f"Time to the right, offset in the file upwards, cells of {cell}. {'; '.join(said)}.",
        _TOP + _HEIGHT + 44, *parts,
    )  # fmt: skip


def _image(cells: npt.NDArray[np.float64], colour: str) -> str:
    """Draw cells in one colour, whose opacity grows with the square root of the bytes."""
    share = np.sqrt(cells / max(cells.max(), 1e-300))
    alpha = np.where(cells > 0, _FAINTEST + (1 - _FAINTEST) * share, 0)
    levels = np.round(alpha * (_LEVELS - 1)).astype(np.uint8)
    data = base64.b64encode(png(levels[::-1], colour)).decode()
    return element(
        "image", href=f"data:image/png;base64,{data}", x=0, y=0, width=1, height=1,
        preserveAspectRatio="none",
    )  # fmt: skip


def png(levels: npt.NDArray[np.uint8], colour: str) -> bytes:
    """Return a PNG of one colour with opacity levels from 0 to 31 (PNG, 3rd edition, W3C)."""
    height, width = levels.shape
    rgb = bytes.fromhex(colour.removeprefix("#"))
    opacity = bytes(round(255 * level / (_LEVELS - 1)) for level in range(_LEVELS))
    rows = np.column_stack(
        [np.zeros(height, np.uint8), levels]
    )  # each row begins with its filter type: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"PLTE", rgb * _LEVELS),
        (b"tRNS", opacity),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
