"""Tables and picture of the page on Panda: ``python -m benchmarks.panda_page RESULT.json [PAGE]``.

With a page it replaces the tables between its two comments.
"""

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from benchmarks.page_tables import markdown, put_into

COLOURS = {1: "#7a7a7a", 2: "#1f6f8b", 4: "#c8553d"}
LINES = {"write": ("-", "o"), "read": ("--", "s")}


@dataclass(frozen=True)
class Point:
    """A call on an array of one size: its rates, one for each round, and their peak.

    Attributes
    ----------
    call, order
        ``"write"`` or ``"read"``; the array's order on disk.
    has_disks
        Whether disks took part.
    servers, mib
        Number of I/O servers, and the size of the array in MiB.
    rates
        Bytes per second of all servers together.
    peak_bytes_s
        The sum of the disks' rates, or that of TCP.
    """

    call: str
    order: str
    has_disks: bool
    servers: int
    mib: int
    rates: Sequence[float]
    peak_bytes_s: float

    @property
    def median(self) -> float:
        """Median rate in bytes per second."""
        return statistics.median(self.rates)

    @property
    def shares(self) -> list[float]:
        """Throughput over the peak: the paper's normalised throughput."""
        return [rate / self.peak_bytes_s for rate in self.rates]


def tables(points: Sequence[Point]) -> str:
    """Render throughput in MB/s, and the share of the peak, as Markdown."""
    sizes = sorted({point.mib for point in points})
    parts = []
    for has_disks, title in ((True, "With disks"), (False, "Without disks")):
        head = ["call", "order", "servers", *(f"{mib} MiB" for mib in sizes)]
        rows = []
        kept = [point for point in points if point.has_disks == has_disks]
        for call, order, servers in dict.fromkeys((p.call, p.order, p.servers) for p in kept):
            mine = [p for p in kept if (p.call, p.order, p.servers) == (call, order, servers)]
            cells = [_cell(point) for point in sorted(mine, key=lambda point: point.mib)]
            rows.append([f"`{call}_all`", order, str(servers), *cells])
        rows.sort(key=lambda row: row[:3])
        parts.append(f"{title}:\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def _cell(point: Point) -> str:
    return f"{point.median / 1e6:.0f} ({statistics.median(point.shares):.0%})"


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw the share of the peak over the size: a plot for each order, with and without disks."""
    orders = list(dict.fromkeys(point.order for point in points))
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.4, 6.2), layout="constrained")
        planes = figure.subplots(2, len(orders), sharex=True, sharey="row", squeeze=False)
        for row, has_disks in zip(planes, (True, False), strict=True):
            for ax, order in zip(row, orders, strict=True):
                mine = [p for p in points if (p.has_disks, p.order) == (has_disks, order)]
                _curves(ax, mine)
                ax.set_title(f"{order} order, {'with' if has_disks else 'without'} disks")
            row[0].set_ylabel(f"share of the peak of {'the disks' if has_disks else 'TCP'}")
        for ax in planes[-1]:
            ax.set_xlabel("size of the array (MiB)")
        handles, labels = planes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


def _curves(ax: Axes, points: Sequence[Point]) -> None:
    for servers in sorted({point.servers for point in points}):
        for call, (line, marker) in LINES.items():
            mine = sorted(
                (p for p in points if (p.servers, p.call) == (servers, call)), key=lambda p: p.mib
            )
            ax.plot(
                [p.mib for p in mine], [statistics.median(p.shares) for p in mine],
                color=COLOURS[servers], linestyle=line, marker=marker, markersize=4.5,
                linewidth=1.8, label=f"{call}_all, {servers} server{'s' * (servers > 1)}",
            )  # fmt: skip
    sizes = sorted({point.mib for point in points})
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(sizes))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda mib, _: f"{mib:g}"))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.axhline(1, color="#b0b0b0", linewidth=0.8)
    ax.set_ylim(bottom=0)
    ax.grid(True, axis="y", color="#e4e4e4", linewidth=0.8)


def main() -> None:
    found = json.loads(Path(sys.argv[1]).read_text())["details"]["points"]
    points = [Point(**point) for point in found]
    for page in sys.argv[2:]:
        put_into(Path(page), tables(points))
    print(tables(points))


if __name__ == "__main__":
    main()
