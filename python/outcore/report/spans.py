"""The spans of a trace, summed over bins of time and of file offset, for drawings."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outcore._core import Trace

Floats = npt.NDArray[np.float64]

TRANSFER = "transfer"
"""The kind of spans of blocks between processes, which no `Trace` records."""

KINDS = (*Trace.kinds(), TRANSFER)
"""Kinds of spans, by number."""

LANES = {
    "compute": ("arithmetic", "#009e73"),
    "wait": ("waiting for the disk", "#d55e00"),
    "read": ("disk: reads", "#2588c8"),
    "write": ("disk: writes", "#e69f00"),
    "sync": ("disk: sync", "#cc79a7"),
    TRANSFER: ("blocks between hosts", "#f0e442"),
}
"""Label and colour of each kind of span, after Okabe & Ito: distinct with any colour vision."""


@dataclass(frozen=True)
class Spans:
    """Spans of a call, in seconds from the start of the first one.

    Attributes
    ----------
    kind
        (k,) index into `KINDS`.
    array
        (k,) number of the array of a read or write.
    times
        (k, 2) start and end in seconds.
    offset, bytes
        (k,) first byte in its file, and number of bytes.
    """

    kind: npt.NDArray[np.int64]
    array: npt.NDArray[np.int64]
    times: Floats
    offset: Floats
    bytes: Floats

    @classmethod
    def of(cls, rows: npt.NDArray[np.uint64]) -> "Spans":
        """Build the spans from the rows of a report."""
        origin = rows[:, 2].min() if len(rows) else np.uint64(0)
        start = rows[:, 2] - origin
        end = np.maximum(rows[:, 3], rows[:, 2]) - origin
        return cls(
            rows[:, 0].astype(np.int64),
            rows[:, 1].astype(np.int64),
            np.column_stack([start, end]) / 1e9,
            rows[:, 4].astype(np.float64),
            rows[:, 5].astype(np.float64),
        )

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def seconds(self) -> float:
        """Time from the first start to the last end, at least a nanosecond."""
        return float(self.times[:, 1].max(initial=1e-9))

    def chosen(self, kind: str, array: int | None = None) -> "Spans":
        """Return the spans of one kind, and of one array if it is given."""
        mine = self.kind == KINDS.index(kind)
        if array is not None:
            mine &= self.array == array
        return Spans(
            self.kind[mine], self.array[mine], self.times[mine], self.offset[mine],
            self.bytes[mine],
        )  # fmt: skip

    def lanes(self) -> dict[str, tuple[str, str]]:
        """Return the lanes to draw: not that of blocks between hosts, if there were none."""
        is_apart = len(self.chosen(TRANSFER)) > 0
        return {kind: lane for kind, lane in LANES.items() if kind != TRANSFER or is_apart}

    def arrays(self) -> list[int]:
        """List the arrays with reads or writes."""
        moved = np.isin(self.kind, [KINDS.index(kind) for kind in ("read", "write")])
        return [int(number) for number in np.unique(self.array[moved])]

    def busy_seconds(self) -> float:
        """Time with at least one span, in seconds."""
        bars = merged(self.times)
        return float((bars[:, 1] - bars[:, 0]).sum())

    def busy(self, edges: Floats) -> Floats:
        """Share of each bin of time with at least one span."""
        bars = merged(self.times)
        return spread(bars, np.ones(len(bars)), edges)

    def rate(self, edges: Floats) -> Floats:
        """Bytes per second in each bin of time."""
        seconds = np.maximum(self.times[:, 1] - self.times[:, 0], 1e-9)
        return spread(self.times, self.bytes / seconds, edges)

    def heat(self, shape: tuple[int, int], seconds: float, nbytes: float) -> Floats:
        """Bytes moved in each cell of a grid of file offsets by times.

        Parameters
        ----------
        shape
            Rows, which start at the first byte, and columns, which start at the first second.
        seconds, nbytes
            Extent of the columns, and of the rows.
        """
        rows = np.column_stack([self.offset, self.offset + self.bytes]) * (shape[0] / nbytes)
        columns = self.times * (shape[1] / seconds)
        for intervals, bins in ((rows, shape[0]), (columns, shape[1])):
            # Shorter intervals are invisible, and the difference of nearly equal ends would be
            # noise.
            intervals[:, 0] = np.minimum(intervals[:, 0], bins - 1e-3)
            intervals[:, 1] = np.maximum(intervals[:, 1], intervals[:, 0] + 1e-3)
        (at_row, row_steps), (at_column, column_steps) = _steps(rows), _steps(columns)
        # In each cell a transfer moves its bytes times its share of the row and of the column.
        share = self.bytes / ((rows[:, 1] - rows[:, 0]) * (columns[:, 1] - columns[:, 0]))
        steps = share[:, None, None] * row_steps[:, :, None] * column_steps[:, None, :]
        width = shape[1] + 2
        at = np.minimum(at_row, shape[0])[:, :, None] * width
        at = at + np.minimum(at_column, shape[1])[:, None, :]
        flat = np.bincount(at.ravel(), steps.ravel(), minlength=(shape[0] + 2) * width)
        cells = flat.reshape(shape[0] + 2, width).cumsum(axis=0).cumsum(axis=1)
        cells = cells[: shape[0], : shape[1]]
        # Remove sums of rounding errors.
        cells[cells < 1e-6 * cells.max(initial=0)] = 0
        return cells


def _steps(intervals: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return bins and heights of steps whose running sum is each interval's coverage of each bin.

    Intervals are in units of bins. At the start of an interval, coverage rises over one bin and the
    next; at its end it falls in the same way.
    """
    bins = np.floor(intervals)
    part = intervals - bins
    first, last = bins[:, :1].astype(np.int64), bins[:, 1:].astype(np.int64)
    heights = np.column_stack([1 - part[:, 0], part[:, 0], part[:, 1] - 1, -part[:, 1]])
    return np.column_stack([first, first + 1, last, last + 1]), heights


def merged(intervals: Floats) -> Floats:
    """Join intervals that touch or overlap, so that no time counts twice."""
    if not len(intervals):
        return intervals.reshape(0, 2)
    ordered = intervals[np.argsort(intervals[:, 0])]
    ends = np.maximum.accumulate(ordered[:, 1])
    starts_anew = np.concatenate([[True], ordered[1:, 0] > ends[:-1]])
    last = np.concatenate([np.flatnonzero(starts_anew)[1:] - 1, [len(ordered) - 1]])
    return np.column_stack([ordered[starts_anew, 0], ends[last]])


def spread(intervals: Floats, heights: Floats, edges: Floats) -> Floats:
    """Mean, between the edges, of a sum of boxes: one per interval, with the given height."""
    if not len(intervals):
        return np.zeros(len(edges) - 1)
    times = np.concatenate([intervals[:, 0], intervals[:, 1]])
    steps = np.concatenate([heights, -heights])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(steps[order])
    integral = np.concatenate([[0], np.cumsum(level[:-1] * np.diff(times))])
    means: Floats = np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    return np.maximum(means, 0)
