"""The picture of the cost curve: ``python -m benchmarks.cost_curve RESULT.json PICTURE.png``."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

STYLES = {
    "in memory": ("#7a7a7a", "s", "SciPy in memory"),
    "memmap": ("#c8553d", "o", "SciPy on numpy.memmap"),
    "outcore": ("#1f6f8b", "D", "outcore"),
}


def draw(details: dict[str, Any], path: Path) -> None:
    """Draw the points of the benchmark `cliff`."""
    limit = details["limit_bytes"]
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(7.6, 4.9), layout="constrained")
        ax = figure.subplots()
        for way in STYLES:
            _curve(ax, way, details["points"])
        _axes(ax, details["points"], limit)
        ax.legend(loc="upper left", frameon=False)
        figure.suptitle(
            f"Factoring a dense matrix under a hard memory limit of {limit / 2**20:.0f} MiB",
            x=0.02, ha="left", fontsize=13,
        )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


def _curve(ax: Axes, way: str, points: list[dict[str, Any]]) -> None:
    colour, marker, name = STYLES[way]
    mine = [p for p in points if p["way"] == way and p["seconds"]]
    if not mine:
        return
    x, y = [p["n"] for p in mine], [p["median_s"] for p in mine]
    ax.plot(x, y, color=colour, marker=marker, markersize=6, linewidth=2.2, zorder=3, label=name)
    for p in mine:
        if p["end"] == "stopped":
            ax.annotate(
                "", (p["n"], p["median_s"] * 2.2), (p["n"], p["median_s"]),
                arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2.2},
            )  # fmt: skip
            ax.annotate(
                f"stopped after {p['median_s']:.0f} s", (p["n"], p["median_s"]),
                textcoords="offset points", xytext=(10, -3), color=colour, fontsize=9.5,
            )  # fmt: skip
    killed = [p["n"] for p in points if p["way"] == way and p["end"] == "out of memory"]
    if killed:
        # A cross at the continuation of the curve: arithmetic grows with n³.
        height = y[-1] * (killed[0] / x[-1]) ** 3
        ax.plot([x[-1], killed[0]], [y[-1], height], color=colour, linewidth=1.4, linestyle=":")
        ax.plot(killed[0], height, marker="x", color=colour, markersize=10, markeredgewidth=2.4)
        ax.annotate(
            "out of memory", (killed[0], height), textcoords="offset points", xytext=(9, -14),
            color=colour, fontsize=9.5,
        )  # fmt: skip


def _axes(ax: Axes, points: list[dict[str, Any]], limit: int) -> None:
    orders = {p["n"]: p["share"] for p in points}
    ax.set(xscale="log", yscale="log", xlabel="order n, and size of the matrix / memory limit")
    ax.set_ylabel("time to factor (s)")
    ax.xaxis.set_major_locator(FixedLocator(list(orders)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda n, _: f"{n:,.0f}\n{_share(orders.get(int(n), n * n * 8 / limit))}")
    )
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    ax.grid(True, axis="y", color="#e4e4e4", linewidth=0.8)
    left, right = min(orders), max(orders)
    ax.set_xlim(left * 0.85, right * 1.9)
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, top * 2.5)
    edge = (limit / 8) ** 0.5
    ax.axvspan(edge, right * 1.9, color="#f3efe6", zorder=0, linewidth=0)
    ax.annotate(
        "larger than memory", (edge, 0.03), xycoords=("data", "axes fraction"),
        textcoords="offset points", xytext=(7, 0), color="#8a7f66", fontsize=10,
    )  # fmt: skip


def _share(share: float) -> str:
    return f"{share:g}" if share >= 1 else f"1/{1 / share:.0f}"


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text())["details"], Path(sys.argv[2]))
