"""Strips of an array, whole rows and whole columns, against TensorStore and zarr-python.

All read the array that outcore wrote, with a cold cache. For writing, each has an array of its own
with the same chunks. TensorStore and zarr-python write a file for each chunk or for each strip (a
shard), whichever was faster in a trial. Writing ends when all data would survive power loss.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.contenders import CONTENDERS, Kind, Store
from benchmarks.figures import Figure, Target
from benchmarks.rounds import Contender, alternate
from benchmarks.scratch import drop_cached, sync

SHAPES = {"full": (16384, 8192), "quick": (4096, 4096), "tiny": (1024, 1024)}
CHUNKS = {"full": (1024, 512), "quick": (1024, 512), "tiny": (256, 128)}

Direction = Literal["rows", "columns"]
Strips = list[tuple[slice, slice]]


def measure(setting: Setting) -> Outcome:
    shape, chunks = SHAPES[setting.size], CHUNKS[setting.size]
    rounds = 1 if setting.size == "tiny" else 3
    figures: list[Figure] = []
    for direction in ("rows", "columns"):
        work = Work(setting.scratch, shape, chunks, direction)
        figures += work.compare("write", work.writers(), rounds)
        figures += work.compare("read", work.readers(), rounds)
        shutil.rmtree(work.directory)
    return Outcome(figures)


class Work:
    """Strips in one direction."""

    def __init__(
        self, scratch: Path, shape: tuple[int, int], chunks: tuple[int, int], direction: Direction
    ) -> None:
        self.directory = scratch / direction
        self.directory.mkdir()
        self.shape, self.chunks, self.direction = shape, chunks, direction
        self.strips: Strips = (
            [(slice(i, i + chunks[0]), slice(0, shape[1])) for i in range(0, shape[0], chunks[0])]
            if direction == "rows"
            else [
                (slice(0, shape[0]), slice(j, j + chunks[1])) for j in range(0, shape[1], chunks[1])
            ]
        )
        rows, columns = self.strips[0]
        self.count = (rows.stop - rows.start, columns.stop - columns.start)
        self.strip: npt.NDArray[np.float64] = np.random.default_rng(1).random(self.count)
        self.nbytes = self.strip.nbytes * len(self.strips)
        self.notes: dict[str, str] = {}

    def compare(self, verb: str, contenders: dict[str, Contender], rounds: int) -> Iterator[Figure]:
        """Measure the installed contenders, and name the missing ones."""
        found = alternate(
            f"{self.direction} {verb}",
            contenders,
            rounds=rounds,
            show=lambda seconds: f"{self.nbytes / seconds / 1e9:.2f} GB/s",
        )

        def rate(name: str) -> str:
            return f"{self.nbytes / found.median(name) / 1e9:.2f} GB/s"

        rows, columns = self.shape
        what = f"strips of {self.direction} of {rows} x {columns} float64, {verb}: time against"
        for name, kind in CONTENDERS.items():
            if name == "outcore":
                continue
            if name not in contenders:
                yield Figure(f"{what} {name}", skipped=f"{kind.package} is not installed")
                continue
            note = f", {self.notes[name]}" if verb == "write" and name in self.notes else ""
            yield Figure(
                f"{what} {name}",
                found.ratios("outcore", name),
                Target("<", 1),
                ours=rate("outcore"),
                rival=rate(name) + note,
                details=dict(found.measures),
            )

    def writers(self) -> dict[str, Contender]:
        """Return the contenders that write, each in the layout that suits it."""
        writers = {}
        for name, kind in CONTENDERS.items():
            if not kind.is_installed():
                continue
            layouts = {text: self.writer(name, kind, shard) for text, shard in self.layouts(kind)}
            trials = {text: run() for text, run in layouts.items()} if len(layouts) > 1 else {}
            best = min(trials, key=trials.__getitem__) if trials else next(iter(layouts))
            if trials:
                self.notes[name] = best
            writers[name] = layouts[best]
        return writers

    def layouts(self, kind: Kind) -> list[tuple[str, tuple[int, int] | None]]:
        """Return the shard shapes to try."""
        if kind is CONTENDERS["outcore"]:
            return [("one file", None)]
        return [("a file a chunk", None), ("a file a strip", self.count)]

    def writer(self, name: str, kind: Kind, shard: tuple[int, int] | None) -> Contender:
        """Return a contender that creates an array and writes every strip."""
        path = self.directory / name

        def run() -> float:
            shutil.rmtree(path, ignore_errors=True)
            start = time.perf_counter()
            store = kind.create(path, self.shape, self.chunks, shard)
            for strip in self.strips:
                store.write(strip, self.strip)
            store.close()
            sync(path)
            return time.perf_counter() - start

        return run

    def readers(self) -> dict[str, Contender]:
        """Return the contenders that read, all of the same array: ours, from `writers`."""
        path = self.directory / "outcore"
        present = {name: kind for name, kind in CONTENDERS.items() if kind.is_installed()}
        return {name: self.reader(kind.open, path) for name, kind in present.items()}

    def reader(self, open_store: Callable[[Path], Store], path: Path) -> Contender:
        """Return a contender that reads every strip of an array with a cold cache."""

        def run() -> float:
            drop_cached(path)
            start = time.perf_counter()
            seen = 0
            for data in open_store(path).read(self.strips):
                self.check(data)
                seen += data.nbytes
            seconds = time.perf_counter() - start
            if seen != self.nbytes:
                raise AssertionError(f"{seen} bytes were read of {self.nbytes}")
            return seconds

        return run

    def check(self, data: npt.NDArray[Any]) -> None:
        """Compare a few elements with those that were written."""
        for at in ((0, 0), (-1, -1), (7, -3)):
            if data[at] != self.strip[at]:
                raise AssertionError(f"read {data[at]} where {self.strip[at]} was written")


if __name__ == "__main__":
    main("rivals", measure)
