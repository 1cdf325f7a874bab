"""Artificial reports and spans, and parsed pages."""

from html.parser import HTMLParser
from typing import Any

import numpy as np

from outcore.report.report import Report
from outcore.report.spans import KINDS

VOID = {"meta", "br", "hr", "img", "input", "link"}
NO_ARRAY = 2**32 - 1


def spans(*rows: tuple[str, int, float, float, int, int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Rows (kind, array, start in seconds, end in seconds, offset, bytes), on some clock."""
    clock = 7 * 10**15
    return np.array(
        [
            (KINDS.index(kind), array, clock + int(1e9 * a), clock + int(1e9 * b), offset, nbytes)
            for kind, array, a, b, offset, nbytes in rows
        ],
        np.uint64,
    ).reshape(-1, 6)


A_FEW = spans(
    ("read", 0, 0.0, 1.0, 0, 1000),
    ("compute", NO_ARRAY, 1.0, 3.0, 0, 0),
    ("write", 1, 2.0, 4.0, 4096, 2000),
    ("sync", 1, 4.0, 4.25, 0, 0),
    ("wait", NO_ARRAY, 3.0, 4.25, 0, 0),
    ("read", 0, 3.0, 3.5, 1000, 1000),
)

APART = np.concatenate([A_FEW, spans(("transfer", NO_ARRAY, 0.5, 1.25, 0, 500))])
"""Those of a process that got a block from another host."""


def report(**values: object) -> Report:
    base: dict[str, object] = {
        "verb": "lu", "n": 50, "dtype": "float64", "seconds": 4.25, "flops": 4e9,
        "bytes_read": 2000, "bytes_written": 2000, "planned_bytes_read": 1900,
        "planned_bytes_written": 2000, "words_lower_bound": 300.0, "spans": A_FEW,
    }  # fmt: skip
    return Report(**(base | values))  # type: ignore[arg-type]


def many(count: int = 1 << 17) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """As many spans as a trace can have, in random order, so that no picture is small by chance."""
    rng = np.random.default_rng(1)
    start = np.cumsum(rng.integers(1000, 10**6, count))
    columns = [
        rng.integers(0, 5, count), rng.integers(0, 2, count), start,
        start + rng.integers(1000, 10**7, count), rng.integers(0, 10**6, count) * 4096,
        rng.integers(1, 1024, count) * 4096,
    ]  # fmt: skip
    return np.stack(columns, axis=1).astype(np.uint64)


class Page(HTMLParser):
    """A parsed page; unbalanced or wrongly quoted elements fail here."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.scripts.append(data)
        elif data.strip():
            self.words.append(data)

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [
            found for name, found in self.elements
            if name == tag and wanted.items() <= found.items()
        ]  # fmt: skip
