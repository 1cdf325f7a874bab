"""Tables and picture of the page: ``python -m benchmarks.beowulf.page RESULT.json [PAGE]``.

With a page it replaces the tables between its two comments.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.beowulf.points import Copies, Tokens
from benchmarks.beowulf.predictions import Check
from benchmarks.page_tables import markdown, put_into

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "papers" / "beowulf.md"
PICTURE = ROOT / "docs" / "images" / "beowulf.png"

COLOURS = {1: "#b0b0b0", 2: "#7a7a7a", 4: "#1f6f8b", 8: "#c8553d"}
NETWORK_COLOURS = {"slow": "#c8553d", "fast": "#1f6f8b"}
LINES = {1: ("-", "o"), 2: ("--", "s")}
CHANNELS = {1: "one channel", 2: "two channels"}


def size(nbytes: int) -> str:
    """Format the size of a token."""
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes // scale} {unit}"
    return f"{nbytes} B"


def tables(tokens: Sequence[Tokens], copies: Sequence[Copies], checks: Sequence[Check] = ()) -> str:
    """Render rates in MB/s, and predicted and measured gains, as Markdown."""
    sizes = sorted({point.nbytes for point in tokens})
    rows = []
    for channels, pairs in sorted({(point.channels, point.pairs) for point in tokens}):
        mine = {p.nbytes: p for p in tokens if (p.channels, p.pairs) == (channels, pairs)}
        cells = [f"{mine[nbytes].bytes_s / 1e6:.1f}" for nbytes in sizes]
        rows.append([CHANNELS[channels], str(pairs), *cells])
    parts = [
        "Tokens, all pairs together, in MB/s:\n\n"
        + markdown(["channels", "pairs", *map(size, sizes)], rows)
    ]
    remotes = sorted({point.remote for point in copies})
    rows = []
    for network, channels, ratio in dict.fromkeys((p.network, p.channels, p.ratio) for p in copies):
        mine_by_remote = {
            p.remote: p for p in copies if (p.network, p.channels) == (network, channels)
        }
        cells = [
            f"{p.bytes_s / 1e6:.1f} ({p.model_bytes_s / 1e6:.1f})"
            for p in (mine_by_remote[remote] for remote in remotes)
        ]
        rows.append([f"{network}, {CHANNELS[channels]}", f"{ratio:g}", *cells])
    head = ["network", "network / disks", *(f"{remote} remote" for remote in remotes)]
    parts.append(
        f"{copies[0].hosts} copies, all together, in MB/s, and by the model:\n\n"
        + markdown(head, rows)
    )
    if checks:
        rows = [
            [
                check.what, f"{check.predicted:.2f}", f"{check.measured:.2f}",
                f"{check.error:.0%}",
            ]
            for check in checks
        ]  # fmt: skip
        head = ["change", "predicted gain", "measured gain", "error"]
        parts.append("Gains:\n\n" + markdown(head, rows))
    parts.append(conclusion(copies))
    return "\n\n".join(parts)


def conclusion(copies: Sequence[Copies]) -> str:
    """Say which share of the disks' rate is left when all copies are remote, by the ratio."""
    ends = sorted((p for p in copies if p.remote == p.hosts), key=lambda point: point.ratio)
    rows = [[f"{p.ratio:g}", f"{p.share:.0%}"] for p in ends]
    head = ["network / disks", "total with all copies remote, of the disks' rate"]
    return markdown(head, rows)


def draw(tokens: Sequence[Tokens], copies: Sequence[Copies], path: Path) -> None:
    """Draw tokens over their size, and copies over the number of remote ones, with the model."""
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.4, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        _tokens(left, tokens)
        _copies(right, copies)
        for ax in (left, right):
            ax.set_ylim(bottom=0)
            ax.grid(True, axis="y", color="#e4e4e4", linewidth=0.8)
            ax.legend(frameon=False, fontsize=8)
            ax.set_ylabel("MB/s together")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


def _tokens(ax: Axes, points: Sequence[Tokens]) -> None:
    for channels, pairs in sorted({(point.channels, point.pairs) for point in points}):
        mine = sorted(
            (p for p in points if (p.channels, p.pairs) == (channels, pairs)),
            key=lambda p: p.nbytes,
        )
        line, marker = LINES[channels]
        ax.plot(
            [p.nbytes for p in mine], [p.bytes_s / 1e6 for p in mine], color=COLOURS[pairs],
            linestyle=line, marker=marker, markersize=4, linewidth=1.6,
            label=f"{pairs} pair{'s' * (pairs > 1)}, {CHANNELS[channels]}",
        )  # fmt: skip
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_locator(FixedLocator(sorted({point.nbytes for point in points})))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: size(int(nbytes))))
    ax.tick_params(axis="x", labelrotation=45)
    ax.set_xlabel("size of a token")
    ax.set_title("tokens, fast network")


def _copies(ax: Axes, points: Sequence[Copies]) -> None:
    for network, channels, ratio in dict.fromkeys((p.network, p.channels, p.ratio) for p in points):
        mine = sorted(
            (p for p in points if (p.network, p.channels) == (network, channels)),
            key=lambda p: p.remote,
        )
        line, marker = LINES[channels]
        ax.plot(
            [p.remote for p in mine], [p.bytes_s / 1e6 for p in mine],
            color=NETWORK_COLOURS[network], linestyle=line, marker=marker, markersize=4,
            linewidth=1.6, label=f"{network}, {CHANNELS[channels]}: {ratio:g} of the disks",
        )  # fmt: skip
        ax.plot(
            [p.remote for p in mine], [p.model_bytes_s / 1e6 for p in mine],
            color="#b0b0b0", linewidth=0.8, zorder=0,
        )  # fmt: skip
    ax.xaxis.set_major_locator(FixedLocator(sorted({point.remote for point in points})))
    ax.set_xlabel(f"remote copies among {points[0].hosts}")
    ax.set_title("copies (grey: the model)")


def main() -> None:
    found = json.loads(Path(sys.argv[1]).read_text())["details"]
    tokens = [Tokens(**point) for point in found["tokens"]]
    copies = [Copies(**point) for point in found["copies"]]
    checks = [Check(**check) for check in found["checks"]]
    for page in sys.argv[2:]:
        put_into(Path(page), tables(tokens, copies, checks))
    print(tables(tokens, copies, checks))


if __name__ == "__main__":
    main()
