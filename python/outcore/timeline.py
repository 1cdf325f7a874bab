"""The timeline of a long call as a PNG: the work of the disk and the processor over time."""

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from outcore.errors import InvalidError
from outcore.report.report import Report
from outcore.report.spans import LANES, Spans
from outcore.storage.volumes import PathLike

__all__ = ["draw_timeline"]

_POINTS = 700


def draw_timeline(report: Report, path: PathLike) -> Path:
    """Draw the timeline of a call as a PNG.

    Lanes show arithmetic, waits for the disk, and reads, writes and syncs of the disk: their height
    is the share of the time. Below them is the disk's rate.

    Parameters
    ----------
    report
        Report of a call in this process, or loaded from a file of `outcore.Report.save`.
    path
        File to write.

    Returns
    -------
    Path
        Path of the picture.

    Raises
    ------
    InvalidError
        If the report has no spans, as that of factors opened from disk.
    """
    if report.spans is None or not len(report.spans):
        raise InvalidError(
            "the report has no spans: draw the timeline of the call's own report, or of one that "
            "report.save() wrote"
        )
    spans = Spans.of(report.spans)
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    lanes, rate = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    end = spans.seconds
    edges = np.linspace(0, end, _POINTS + 1)
    for height, (kind, (_, colour)) in enumerate(reversed(LANES.items())):
        mine = spans.chosen(kind)
        lanes.fill_between(edges[:-1], height, height + 0.8 * mine.busy(edges), step="post",
                           color=colour, linewidth=0)  # fmt: skip
        lanes.text(1.005, height + 0.4, f"{mine.busy_seconds():.1f} s", va="center", fontsize=9,
                   transform=lanes.get_yaxis_transform())  # fmt: skip
    lanes.set_ylim(-0.2, len(LANES))
    lanes.set_xlim(0, end)
    lanes.set_yticks(np.arange(len(LANES)) + 0.4, [label for label, _ in reversed(LANES.values())])
    lanes.set_title(
        f"{report.title}: {report.seconds:.1f} s, {report.gflops_per_s:.0f} GFLOP/s"
        + ("" if report.overlap is None else f", {report.overlap:.0%} of the disk's work hidden"),
        fontsize=11,
    )
    for kind in ("read", "write"):
        rate.fill_between(edges[:-1], spans.chosen(kind).rate(edges) / 1e9, step="post",
                          alpha=0.6, color=LANES[kind][1], linewidth=0, label=kind)  # fmt: skip
    rate.set_ylabel("GB/s")
    rate.set_xlabel("seconds")
    rate.set_ylim(bottom=0)
    rate.legend(loc="upper right", fontsize=9)
    for axes in (lanes, rate):
        axes.spines[["top", "right"]].set_visible(False)
    canvas.print_png(str(path))  # type: ignore[no-untyped-call]
    return Path(path)
