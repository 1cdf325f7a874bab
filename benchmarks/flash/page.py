"""Tables and picture of the page on FLASH: ``python -m benchmarks.flash.page RESULT.json [PAGE]``.

With a page it replaces the tables between its two comments, and draws the picture.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.flash.points import CONTENDERS, Contender, Point, Split, split
from benchmarks.page_tables import markdown, put_into

DOCS = Path(__file__).parents[2] / "docs"
PAGE, PICTURE = DOCS / "papers" / "flash.md", DOCS / "images" / "flash.png"
COLOURS = {"types": "#c8553d", "exchange": "#1f6f8b", "disk": "#b0b0b0"}


def tables(points: Sequence[Point]) -> str:
    """Render the rates of checkpoints, and the split of their times, as Markdown."""
    parts = [
        "Checkpoints in MB/s, and their shares of the sum of the disks:",
        _rates(points),
        "Seconds of a checkpoint with the guard cells left out, in the largest job:",
        _splits(points),
        f"![Seconds of a checkpoint: types, exchange and disk](../images/{PICTURE.name})",
    ]
    return "\n\n".join(parts)


def _rates(points: Sequence[Point]) -> str:
    found = {point.key: point for point in points if point.place == "disks"}
    jobs = sorted({key[2:] for key in found})
    rows = []
    for contender in CONTENDERS:
        for is_packed in (False, True):
            cells = []
            for servers, processes in jobs:
                point = found.get((contender, "disks", servers, processes))
                if point is None:  # nobody has measured it yet
                    cells.append("")
                    continue
                value = point.rate(is_packed=is_packed)
                cells.append(f"{value / 1e6:.0f} ({value / point.limit_bytes_s:.0%})")
            rows.append([contender.title, "packed" if is_packed else "guard cells", *cells])
    return markdown(["way", "memory", *(f"{p} → {s}" for s, p in jobs)], rows)


def _splits(points: Sequence[Point]) -> str:
    rows = []
    for contender, found in splits(points).items():
        ratio = found.types / (found.exchange + found.disk)
        rows.append([contender.title, *(f"{each:.2f}" for each in found), f"{ratio:.2f}"])
    return markdown(["way", *Split._fields, "types / (exchange + disk)"], rows)


def splits(points: Sequence[Point]) -> dict[Contender, Split]:
    """Return the split of each contender, with the most servers and processes."""
    found = {point.key: point for point in points}
    job = max(point.key[2:] for point in points if point.place == "disks")
    both = {
        contender: [found.get((contender, place, *job)) for place in ("disks", "memory")]
        for contender in CONTENDERS
    }
    return {
        contender: split(on_disks, in_memory)
        for contender, (on_disks, in_memory) in both.items()
        if on_disks and in_memory
    }


def draw(points: Sequence[Point], path: Path) -> None:
    """Draw a bar for each contender: the seconds of types, exchange and disk."""
    found = splits(points)
    names = [contender.title.replace("`", "") for contender in found]
    with mpl.rc_context({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8.4, 3.4), layout="constrained")
        ax = figure.subplots()
        left = [0.0] * len(names)
        for part, colour in COLOURS.items():
            values = [getattr(each, part) for each in found.values()]
            ax.barh(names, values, left=left, color=colour, label=part, height=0.62)
            left = [a + b for a, b in zip(left, values, strict=True)]
        ax.invert_yaxis()
        ax.set_xlabel("seconds of a checkpoint")
        ax.grid(True, axis="x", color="#e4e4e4", linewidth=0.8)
        ax.set_axisbelow(True)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160)


def main() -> None:
    found = json.loads(Path(sys.argv[1]).read_text())["details"]["points"]
    points = [Point.from_dict(point) for point in found]
    for page in sys.argv[2:]:
        put_into(Path(page), tables(points))
        draw(points, PICTURE)
    print(tables(points))


if __name__ == "__main__":
    main()
