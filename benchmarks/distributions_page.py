"""Tables and picture of the page on distributions: ``... RESULT.json PICTURE [PAGE]``.

With a page, it replaces the tables between its two comments.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.distributions import NEAR, Point, cases, fastest, predicted
from benchmarks.page_tables import markdown, put_into

COLOURS = ("#7a7a7a", "#1f6f8b", "#c8553d", "#7b6ba8", "#5b8c5a", "#222222")


def tables(points: Sequence[Point]) -> str:
    """Render rates, requests and imbalance as Markdown: a table for each number of disks."""
    parts, right = [], 0
    found = cases(points)
    for disks in dict.fromkeys(point.disks for point in points):
        mine = {access: each for (count, access), each in found.items() if count == disks}
        names = [point.layout for point in next(iter(mine.values()))]
        rows = [_row(access, each) for access, each in mine.items()]
        table = markdown(["reads", *names, "predicted"], rows)
        parts.append(f"{disks} disk{'s' * (disks > 1)}:\n\n{table}")
    for each in found.values():
        right += predicted(each)[0].bytes_s >= NEAR * fastest(each).bytes_s
    last = f"The prediction is the measured best, or within 5 % of it, in {right} of {len(found)}."
    return "\n\n".join([*parts, last])


def _row(access: str, points: Sequence[Point]) -> list[str]:
    cells = []
    for point in points:
        rate = f"{point.bytes_s / 1e6:.3g}"
        is_near = point.bytes_s >= NEAR * fastest(points).bytes_s
        rate = f"**{rate}**" if is_near else rate
        cells.append(f"{rate} ({point.requests:.3g}; {point.imbalance:.2g})")
    names = [point.layout for point in points if point in predicted(points)]
    text = "any" if len(names) == len(points) else ", ".join(names)
    return [f"`{access}`", *cells, text]


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw the rate of each layout for each way to read: a plot for each number of disks."""
    counts = list(dict.fromkeys(point.disks for point in points))
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.4, 2.6 * len(counts)), layout="constrained")
        for ax, disks in zip(
            figure.subplots(len(counts), squeeze=False)[:, 0], counts, strict=True
        ):
            mine = [point for point in points if point.disks == disks]
            words = list(dict.fromkeys(point.access for point in mine))
            names = list(dict.fromkeys(point.layout for point in mine))
            for number, name in enumerate(names):
                rates = [p.bytes_s / 1e6 for p in mine if p.layout == name]
                at = [i + (number - len(names) / 2) * 0.13 for i in range(len(words))]
                ax.bar(at, rates, 0.13, color=COLOURS[number], label=name)
            ax.set_xticks(range(len(words)), [word.replace(":", "\n") for word in words])
            ax.set_yscale("log")
            ax.set_title(f"{disks} disk{'s' * (disks > 1)} of 100 MB/s")
            ax.set_ylabel("MB/s")
        handles, labels = ax.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


def main() -> None:
    result, picture, *pages = sys.argv[1:]
    found = json.loads(Path(result).read_text())["details"]["points"]
    points = [Point(**point) for point in found]
    draw(points, Path(picture))
    for page in pages:
        put_into(Path(page), tables(points))
    print(tables(points))


if __name__ == "__main__":
    main()
