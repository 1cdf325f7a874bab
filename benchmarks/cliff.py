"""The cost of factoring a matrix under a hard memory limit, below the limit and far beyond it.

Three ways, each a process of its own in a control group that also counts the interpreter and the
page cache: SciPy in memory while the matrix fits, SciPy in place on ``numpy.memmap``, and outcore
with a budget of the limit minus `OVERHEAD_BYTES` for the interpreter and its libraries.
"""

import math
import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import Ended, run_module
from benchmarks.cost_curve import draw
from benchmarks.figures import Figure, Target
from benchmarks.matrices import random_array, random_file
from benchmarks.memory_limit import MemoryLimit, memory_limit
from benchmarks.scratch import drop_cached

OVERHEAD_BYTES = 150 << 20
WAYS = ("in memory", "memmap", "outcore")
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "cost-curve.png"


@dataclass(frozen=True)
class Scale:
    """Extent of the curve: `shares` are matrix bytes over limit bytes; the figure is at one."""

    limit_bytes: int
    shares: tuple[float, ...]
    figure_at: float
    cap_s: float
    total_s: float


SCALES = {
    "full": Scale(384 << 20, (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4, 8), 4, 300, 690),
    "quick": Scale(192 << 20, (1 / 16, 1 / 4, 1, 2), 2, 30, 70),
    "tiny": Scale(192 << 20, (1 / 64, 1 / 16), 1 / 16, 5, 10),
}
CAP_FACTOR = 25
"""A rival that takes this many times our time is stopped, but not before `LEAST_CAP_S`."""

LEAST_CAP_S = 10.0


@dataclass
class Point:
    """One way at one order: times of its runs, or the reason of its failure."""

    way: str
    n: int
    share: float
    seconds: list[float] = field(default_factory=list)
    end: str = "done"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON and for the picture."""
        return {**self.__dict__, "median_s": statistics.median(self.seconds or [math.nan])}


def measure(setting: Setting) -> Outcome:
    scale = SCALES[setting.size]
    what = (
        f"LU float64, hard memory limit of 1/{scale.figure_at:g} of the matrix: "
        "time against SciPy on numpy.memmap"
    )
    with memory_limit(scale.limit_bytes) as limit:
        if limit is None:
            return Outcome([Figure(what, skipped="needs root and a memory control group")])
        points = _Curves(setting, scale, limit).measure()
    values = [point.to_dict() for point in points if point.seconds or point.end != "done"]
    details = {"limit_bytes": scale.limit_bytes, "points": values}
    picture = PICTURE if setting.size == "full" else setting.output / "cost-curve.png"
    draw(details, picture)
    return Outcome([_figure(what, values, scale.figure_at)], details)


def _figure(what: str, values: list[dict[str, Any]], share: float) -> Figure:
    at = {value["way"]: value for value in values if value["share"] == share}
    ours, rival = at.get("outcore"), at.get("memmap")
    if not ours or not rival or not ours["seconds"] or not rival["seconds"]:
        return Figure(what, skipped="no time to run it")
    is_bound = rival["end"] != "done"
    return Figure(
        f"{what}, n = {ours['n']}",
        [ours["median_s"] / rival["median_s"]],
        Target("<", 1),
        ours=f"{ours['median_s']:.1f} s",
        rival=f"{rival['median_s']:.1f} s" + (", stopped" if is_bound else ""),
        is_bound=is_bound,
    )


class _Curves:
    """The measurements, from small orders to large ones."""

    def __init__(self, setting: Setting, scale: Scale, limit: MemoryLimit) -> None:
        self.setting, self.scale, self.limit = setting, scale, limit
        self.environment = setting.child_environment()
        self.started = time.monotonic()
        self.given_up: set[str] = set()

    def measure(self) -> list[Point]:
        points: list[Point] = []
        for share in self.scale.shares:
            n = math.isqrt(int(share * self.limit.nbytes / 8)) // 8 * 8
            here = {way: Point(way, n, share) for way in WAYS}
            rounds = 3 if share < 1 and self.setting.size == "full" else 1
            for _ in range(rounds):
                # Ours comes first: its time limits that of the others.
                for way in reversed(WAYS):
                    self.run(here[way], statistics.median(here["outcore"].seconds or [0.0]))
            points += here.values()
            print(_line(here), file=sys.stderr, flush=True)
        return points

    def run(self, point: Point, ours_s: float) -> None:
        is_figure = point.way == "memmap" and point.share == self.scale.figure_at
        if point.way in self.given_up and not is_figure:
            if not point.seconds:
                point.end = "given up before"
            return
        cap = min(max(CAP_FACTOR * ours_s, LEAST_CAP_S), self.scale.cap_s, self.left_s())
        directory = self.setting.scratch / "cliff"
        directory.mkdir()
        try:
            ended = getattr(self, f"_{point.way.replace(' ', '_')}")(directory, point.n, cap)
        finally:
            shutil.rmtree(directory)
        if ended.is_out_of_memory:
            point.end = "out of memory"
        elif ended.is_out_of_time:
            point.end = "stopped"
            point.seconds.append(cap)
        else:
            point.seconds.append(ended.seconds)
        if point.end != "done":
            self.given_up.add(point.way)

    def left_s(self) -> float:
        """Return the seconds left for the whole benchmark, but always a few."""
        return max(self.started + self.scale.total_s - time.monotonic(), LEAST_CAP_S)

    def _outcore(self, directory: Path, n: int, cap_s: float) -> Ended:
        with random_array(directory / "A", n, "f8") as A:
            arguments = [A.path, directory / "A.lu", self.limit.nbytes - OVERHEAD_BYTES]
        drop_cached(directory)
        return self._child("benchmarks.factor_outcore", arguments, None)

    def _memmap(self, directory: Path, n: int, cap_s: float) -> Ended:
        path = directory / "A.bin"
        random_file(path, n)
        # Pages that are cached now would not count against the limit.
        drop_cached(path)
        return self._child("benchmarks.factor_scipy", [n, path], cap_s)

    def _in_memory(self, directory: Path, n: int, cap_s: float) -> Ended:
        return self._child("benchmarks.factor_scipy", [n], cap_s)

    def _child(self, module: str, arguments: list[Any], timeout_s: float | None) -> Ended:
        return run_module(
            module,
            arguments,
            environment=self.environment,
            timeout_s=timeout_s,
            limit=self.limit,
        )


def _line(here: dict[str, Point]) -> str:
    def text(point: Point) -> str:
        if not point.seconds:
            return f"{point.way} {point.end}"
        more = "" if point.end == "done" else f", {point.end}"
        return f"{point.way} {statistics.median(point.seconds):.2f} s{more}"

    first = next(iter(here.values()))
    return f"n={first.n}, matrix / limit {first.share:g}: {', '.join(map(text, here.values()))}"


if __name__ == "__main__":
    main("cliff", measure)
