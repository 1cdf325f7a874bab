"""Boxes, planes, rows and columns of an array in default chunks, against numpy.memmap.

Each pass writes or reads the whole array in parts of one shape. Writing ends with a flush. Reading
creates a new array for each part, from a cold or a warm page cache.
"""

import functools
import gc
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.rounds import alternate
from benchmarks.scratch import drop_cached, sync

SIDES = {"full": (320, 6144), "quick": (192, 2048), "tiny": (48, 256)}
"""Sides of the cube and of the square."""

Part = tuple[slice, ...]


def measure(setting: Setting) -> Outcome:
    cube, square = SIDES[setting.size]
    figures: list[Figure] = []
    for dims, side in [(3, cube), (2, square)]:
        shape = (side,) * dims
        values = np.random.default_rng(1).random(shape)
        for name, part in parts(dims, side).items():
            scratch = setting.scratch / f"{dims}-{name}".replace(" ", "-")
            scratch.mkdir()
            case = Case(scratch, values, part)
            rounds = 1 if setting.size == "tiny" else 3
            figures += compare(f"{dims}-d, {side} a side, {name}", case, rounds)
            case.remove()
    return Outcome(figures)


def parts(dims: int, side: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of parts, by name."""
    if dims == 2:
        return {
            f"boxes of {side // 8} a side": (side // 8, side // 8),
            "strips of 16 rows": (16, side),
            "strips of 16 columns": (side, 16),
            f"strips of {side // 16} columns": (side, side // 16),
        }
    return {
        "boxes of a half a side": (side // 2,) * 3,
        "boxes of a quarter a side": (side // 4,) * 3,
        f"boxes of {side // 5} a side": (side // 5,) * 3,
        "4 planes across the first dimension": (4, side, side),
        "4 planes across the second dimension": (side, 4, side),
        "4 planes across the third dimension": (side, side, 4),
    }


def compare(name: str, case: "Case", rounds: int) -> Iterator[Figure]:
    """Measure writing, and reading from a cold and a warm page cache."""
    ways: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "written and flushed": (case.write_ours, case.write_memmap),
        "read, cold": (
            functools.partial(case.read_ours, is_cold=True),
            functools.partial(case.read_memmap, is_cold=True),
        ),
        "read, warm": (case.read_ours, case.read_memmap),
    }
    for way, (ours, rival) in ways.items():
        what = f"{name}: {way}"
        found = alternate(what, {"outcore": ours, "memmap": rival}, rounds=rounds, show=rate)
        yield Figure(
            f"{what}, rate against numpy.memmap",
            found.ratios("outcore", "memmap"),
            Target("≥", 0.8),
            ours=rate(found.median("outcore")),
            rival=rate(found.median("memmap")),
            details=dict(found.measures),
        )


def rate(value: float) -> str:
    """Format a rate."""
    return f"{value / 1e9:.2f} GB/s"


class Case:
    """The same values in an array and in a mapped file. Each pass returns bytes per second."""

    def __init__(self, scratch: Path, values: np.ndarray, part: tuple[int, ...]) -> None:
        self.values = values
        self.path = scratch / "A"
        oc.create_array(self.path, values.shape, "f8").close()
        self.plain = scratch / "plain"
        with self.plain.open("wb") as file:
            file.truncate(values.nbytes)
        cuts = [
            [slice(first, min(first + step, side)) for first in range(0, side, step)]
            for step, side in zip(part, values.shape, strict=True)
        ]
        self.boxes: list[Part] = list(itertools.product(*cuts))

    def remove(self) -> None:
        """Free the disk space for the next case."""
        shutil.rmtree(self.path)
        self.plain.unlink()

    def mapped(self, mode: Literal["r", "r+"]) -> "np.memmap[Any, np.dtype[np.float64]]":
        """Map the plain file."""
        return np.memmap(self.plain, np.float64, mode, shape=self.values.shape)

    def write_ours(self) -> float:
        """Write parts, and flush."""
        with oc.open_array(self.path, "r+") as array:
            start = time.perf_counter()
            for box in self.boxes:
                array[box] = self.values[box]
            array.flush()
            return self.values.nbytes / (time.perf_counter() - start)

    def write_memmap(self) -> float:
        """Write parts to the mapped file, and flush."""
        mapped = self.mapped("r+")
        start = time.perf_counter()
        for box in self.boxes:
            mapped[box] = self.values[box]
        mapped.flush()
        return self.values.nbytes / (time.perf_counter() - start)

    def read_ours(self, *, is_cold: bool = False) -> float:
        """Read parts, each into a new array."""
        # Mapped pages stay in memory, so the array is opened after this.
        prepare(self.path, is_cold=is_cold)
        with oc.open_array(self.path) as array:
            start = time.perf_counter()
            total = sum(array[box].nbytes for box in self.boxes)
            return self.checked(total, start)

    def read_memmap(self, *, is_cold: bool = False) -> float:
        """Read parts of the mapped file, each into a new array."""
        prepare(self.plain, is_cold=is_cold)
        mapped = self.mapped("r")
        start = time.perf_counter()
        total = sum(np.array(mapped[box]).nbytes for box in self.boxes)
        return self.checked(total, start)

    def checked(self, total: int, start: float) -> float:
        """Return bytes per second since `start`; check that all were read."""
        seconds = time.perf_counter() - start
        if total != self.values.nbytes:
            raise AssertionError(f"{total} bytes of {self.values.nbytes} were read")
        return total / seconds


def prepare(path: Path, *, is_cold: bool) -> None:
    """Load files into the page cache, or drop them; unused mappings are gone."""
    gc.collect()
    if is_cold:
        drop_cached(path)
    else:
        sync(path)
        for found in path.rglob("*") if path.is_dir() else [path]:
            if found.is_file():
                with found.open("rb") as file:
                    while file.read(1 << 20):
                        pass


if __name__ == "__main__":
    main("boxes", measure)
