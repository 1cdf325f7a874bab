"""A figure: a measurement, its target, and the verdict."""

import operator
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_MEETS = {"≤": operator.le, "<": operator.lt, "≥": operator.ge, ">": operator.gt, "=": operator.eq}


@dataclass(frozen=True)
class Target:
    """A relation and a bound, such as ≤ 1.08."""

    relation: str
    bound: float

    def is_met_by(self, value: float) -> bool:
        """Whether a value meets the target."""
        met: bool = _MEETS[self.relation](value, self.bound)
        return met


@dataclass(frozen=True)
class Figure:
    """One row of a table.

    ``values`` are the ratios ours / rival (or the quantity in ``what``), one for each round; the
    figure is their median. ``ours``, ``rival`` and ``peak`` are text for people. ``skipped`` is the
    reason if there is no measurement.
    """

    what: str
    values: Sequence[float] = ()
    target: Target | None = None
    unit: str = ""
    ours: str = ""
    rival: str = ""
    peak: str = ""
    skipped: str = ""
    is_bound: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def measured(self) -> str:
        """Median [min to max]."""
        if self.skipped:
            return f"skipped: {self.skipped}"
        text = ("< " if self.is_bound else "") + _short(self.median)
        if len(self.values) > 1:
            text += f" [{_short(min(self.values))}–{_short(max(self.values))}]"  # noqa: RUF001
        return f"{text} {self.unit}".rstrip()

    @property
    def verdict(self) -> str:
        """Text for the table: whether the target is met."""
        if self.skipped or self.target is None:
            return ""
        return "yes" if self.target.is_met_by(self.median) else "**no**"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Figure":
        """Create a figure from the output of `to_dict`."""
        target = values.pop("target")
        return cls(target=Target(**target) if target else None, **values)


def table(figures: Sequence[Figure], *, is_quick: bool = False) -> str:
    """Render figures as a Markdown table that reads well as text too."""
    head = ["what", "target", "measured: median [min–max]", "met", "ours", "rival", "peak"]  # noqa: RUF001
    rows = [
        [
            figure.what,
            f"{figure.target.relation} {_short(figure.target.bound)} {figure.unit}".rstrip()
            if figure.target
            else "",
            figure.measured,
            "(small)" if is_quick and figure.verdict else figure.verdict,
            figure.ours,
            figure.rival,
            figure.peak,
        ]
        for figure in figures
    ]
    keep = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [[row[i] for i in keep] for row in [head, *rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(keep))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == round(value) else f"{value:.3g}"
