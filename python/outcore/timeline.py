"""The timeline of a long call: what the disk and the processor did when."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from outcore._core import Trace
from outcore.errors import InvalidError
from outcore.report import Report
from outcore.volumes import PathLike

_LANES = {
    "compute": ("arithmetic", "#3b6ea5"),
    "wait": ("waiting for the disk", "#c0392b"),
    "read": ("disk: reads", "#2e8b57"),
    "write": ("disk: writes", "#d98c21"),
}

_POINTS = 700


def draw_timeline(report: Report, path: PathLike) -> Path:
    """Draw the timeline of a call as a PNG.

    Lanes show when there was arithmetic, when the call waited for the disk, and when the disk read
    and wrote: their height is the share of the time. Below them is the disk's rate.

    Parameters
    ----------
    report
        Of a call in this process (reports read back from disk carry no spans).
    path
        File to write.
    """
    if report.spans is None or not len(report.spans):
        raise InvalidError("the report has no spans: draw the timeline in the process of the call")
    spans = report.spans.astype(np.float64)
    kinds = Trace.kinds()
    origin = spans[:, 2].min()
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    lanes, rate = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    end = float((spans[:, 3].max() - origin) / 1e9)
    edges = np.linspace(0, max(end, 1e-9), _POINTS + 1)
    for height, (name, (_, colour)) in enumerate(reversed(_LANES.items())):
        mine = spans[spans[:, 0] == kinds.index(name)]
        bars = _merged((mine[:, 2:4] - origin) / 1e9)
        busy = _spread(bars, np.ones(len(bars)), edges)
        lanes.fill_between(edges[:-1], height, height + 0.8 * busy, step="post", color=colour,
                           linewidth=0)  # fmt: skip
        total = float((bars[:, 1] - bars[:, 0]).sum())
        lanes.text(1.005, height + 0.4, f"{total:.1f} s", transform=lanes.get_yaxis_transform(),
                   va="center", fontsize=9)  # fmt: skip
    lanes.set_ylim(-0.2, len(_LANES))
    lanes.set_xlim(0, end)
    lanes.set_yticks(
        np.arange(len(_LANES)) + 0.4, [label for label, _ in reversed(_LANES.values())]
    )
    lanes.set_title(
        f"{report.verb}, n = {report.n}, {report.dtype}: {report.seconds:.1f} s, "
        f"{report.gflops_per_s:.0f} GFLOP/s, {report.overlap:.0%} of the disk's work hidden",
        fontsize=11,
    )
    for name in ("read", "write"):
        mine = spans[spans[:, 0] == kinds.index(name)]
        intervals = (mine[:, 2:4] - origin) / 1e9
        bytes_s = mine[:, 5] / np.maximum(intervals[:, 1] - intervals[:, 0], 1e-9)
        rate.fill_between(edges[:-1], _spread(intervals, bytes_s, edges) / 1e9, step="post",
                          alpha=0.6, color=_LANES[name][1], linewidth=0, label=name)  # fmt: skip
    rate.set_ylabel("GB/s")
    rate.set_xlabel("seconds")
    rate.set_ylim(bottom=0)
    rate.legend(loc="upper right", fontsize=9)
    for axes in (lanes, rate):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.print_png(str(path))  # type: ignore[no-untyped-call]
    return Path(path)


def _merged(intervals: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Join intervals that touch or overlap, so that no time is counted twice."""
    if not len(intervals):
        return intervals.reshape(0, 2)
    ordered = intervals[np.argsort(intervals[:, 0])]
    ends = np.maximum.accumulate(ordered[:, 1])
    starts_anew = np.concatenate([[True], ordered[1:, 0] > ends[:-1]])
    last = np.concatenate([np.flatnonzero(starts_anew)[1:] - 1, [len(ordered) - 1]])
    return np.column_stack([ordered[starts_anew, 0], ends[last]])


def _spread(
    intervals: npt.NDArray[np.float64],
    heights: npt.NDArray[np.float64],
    edges: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Mean between edges of a sum of boxes, one of the given height over each interval."""
    if not len(intervals):
        return np.zeros(len(edges) - 1)
    times = np.concatenate([intervals[:, 0], intervals[:, 1]])
    steps = np.concatenate([heights, -heights])
    order = np.argsort(times, kind="stable")
    times, level = times[order], np.cumsum(steps[order])
    integral = np.concatenate([[0], np.cumsum(level[:-1] * np.diff(times))])
    means: npt.NDArray[np.float64] = np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    return np.maximum(means, 0)
