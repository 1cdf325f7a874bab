"""Tables and pictures of the pages on clusters: ``python -m benchmarks.cluster_page RESULT.json``.

It takes results of `logical_disks` and `paper_nodes`, and writes into the page of the paper.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks.figures import Figure
from benchmarks.page_tables import markdown, put_into

DOCS = Path(__file__).parents[1] / "docs"
COLOURS = {1: "#7a7a7a", 2: "#1f6f8b", 4: "#c8553d"}
STYLE: Any = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
Times = Mapping[tuple[int, int, bool], float]
"""Seconds by numbers of servers and of processes, and whether their hosts differ."""


def of_nodes(figures: Sequence[Figure], picture: Path) -> str:
    """Render the table of figure 10, and draw it."""
    times: dict[tuple[int, int, bool], float] = {}
    for figure in figures:
        found = figure.details
        times[found["servers"], found["processes"], found["is_separate"]] = figure.median
    counts = sorted({key[0] for key in times})
    _draw_nodes(times, counts, picture)
    head = ["processes"]
    head += [f"{s} {where}" for where in ("on their hosts", "on others") for s in counts]
    rows = [
        [str(p), *(f"{times[s, p, other]:.1f}" for other in (False, True) for s in counts)]
        for p in counts
    ]
    return markdown(head, rows)


def _draw_nodes(times: Times, counts: Sequence[int], path: Path) -> None:
    with mpl.rc_context(STYLE):
        picture = Picture(figsize=(7.2, 3.8), layout="constrained")
        ax = picture.subplots()
        for servers in counts:
            for is_separate, line in ((False, "-o"), (True, "--s")):
                where = "other hosts" if is_separate else "the processes' hosts"
                ax.plot(
                    counts,
                    [times[servers, p, is_separate] for p in counts],
                    line,
                    color=COLOURS[servers],
                    label=f"{servers} server{'s' * (servers > 1)} on {where}",
                )
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(counts), list(map(str, counts)))
        ax.set_xlabel("processes")
        ax.set_ylabel("seconds")
        ax.set_ylim(bottom=0)
        ax.grid(visible=True, color="#e4e4e4", linewidth=0.8)
        picture.legend(loc="outside right upper", frameon=False)
        _save(picture, path)


def of_logical_disks(figures: Sequence[Figure], picture: Path) -> str:
    """Render the table of logical disks against striped files, and draw it."""
    links = ["1 Gbit/s" if figure.details["link_bits_s"] else "no limit" for figure in figures]
    ways = {"striped files": "rival", "logical disks": "ours"}
    found = {
        way: [float(getattr(figure, side).split()[0]) for figure in figures]
        for way, side in ways.items()
    }
    with mpl.rc_context(STYLE):
        drawn = Picture(figsize=(6.4, 2.6), layout="constrained")
        ax = drawn.subplots()
        for number, (way, seconds) in enumerate(found.items()):
            at = [place + 0.36 * (number - 0.5) for place in range(len(links))]
            ax.barh(at, seconds, height=0.34, label=way, color=("#b0b0b0", "#1f6f8b")[number])
        ax.set_yticks(range(len(links)), [f"links: {link}" for link in links])
        ax.invert_yaxis()
        ax.set_xlabel("seconds of a solve")
        drawn.legend(loc="outside lower center", ncols=2, frameon=False)
        _save(drawn, picture)
    rows = [
        [link, *(f"{found[way][i]:.2f}" for way in ways), f"{figures[i].median:.1f}"]
        for i, link in enumerate(links)
    ]
    return markdown(["links", *(f"{way}, s" for way in ways), "ratio"], rows)


def _save(picture: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=160)


PAGES = {
    "paper_nodes": (of_nodes, "gauss-seidel.md", "nodes.png", "Seconds by servers and processes"),
    "logical_disks": (of_logical_disks, "lu.md", "logical-disks.png", "Seconds of a solve"),
}


def main() -> None:
    for name in sys.argv[1:]:
        result = json.loads(Path(name).read_text())
        render, page, picture, title = PAGES[result["benchmark"]]
        figures = [Figure.from_dict(figure) for figure in result["figures"]]
        table = render(figures, DOCS / "images" / picture)
        put_into(DOCS / "papers" / page, f"{table}\n\n![{title}](../images/{picture})")
        print(table)


if __name__ == "__main__":
    main()
