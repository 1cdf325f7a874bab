"""Streaming an array against fio with direct I/O, on the same extents of the same file.

Both use the same block (the chunk) and depth; they alternate, because disks and hosts cache.
"""

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import outcore as oc
from benchmarks import fio
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.rounds import Contender, alternate
from outcore._core import Arena
from outcore._util.streams import WriteBehind

CHUNK = (256, 2048)
DEPTH = 4
"""Requests in flight: the I/O threads of a volume."""

BLOCKS = DEPTH + 2
"""Chunks in memory: those in flight, and two with the user. fio has `DEPTH`.

More would leave the cache before the disk's data arrives: with 8, reading is a tenth slower.
"""

ROWS = {"full": 16384, "quick": 4096, "tiny": 1024}
COLUMNS = 8192


def measure(setting: Setting) -> Outcome:
    shape = (ROWS[setting.size], COLUMNS)
    with oc.create_array(setting.scratch / "A", shape, "f8", chunks=CHUNK) as array:
        ours = Streaming(array)
        ours.write_rate()
        if not fio.is_installed():
            return Outcome([Figure("array streaming against fio", skipped="fio is not installed")])
        figures = [
            figure
            for direction, run in [("read", ours.read_rate), ("write", ours.write_rate)]
            for figure in compare(direction, run, ours, rounds=1 if setting.size == "tiny" else 7)
        ]
    return Outcome(figures)


def compare(direction: str, run: Contender, ours: "Streaming", *, rounds: int) -> Iterator[Figure]:
    """Measure one direction against fio, by default and with huge pages."""
    nbytes = ours.array.nbytes
    fios = {
        name: fio.Fio(shard_file(Path(ours.array.path)), nbytes, ours.block_bytes, DEPTH, huge)
        for name, huge in {"fio": False, "fio with huge pages": True}.items()
    }
    contenders = {name: functools.partial(one.rate, direction) for name, one in fios.items()}
    found = alternate(
        f"array {direction}", {"outcore": run, **contenders}, rounds=rounds, show=rate
    )
    for name in fios:
        yield Figure(
            f"array {direction}, {nbytes >> 20} MiB in blocks of {ours.block_bytes >> 20} MiB, "
            f"depth {DEPTH}: rate against {name}",
            found.ratios("outcore", name),
            Target("≥", 0.95),
            ours=rate(found.median("outcore")),
            rival=rate(found.median(name)),
            details=dict(found.measures),
        )


def rate(value: float) -> str:
    """Format a rate."""
    return f"{value / 1e9:.2f} GB/s"


def shard_file(array: Path) -> Path:
    """Return the one file with the elements of an array; chunk 0 is at its start."""
    (found,) = (path for path in array.rglob("*") if path.is_file() and "c" in path.parts[-3:])
    return found


class Streaming:
    """One pass over an array, chunk by chunk, in the order on disk, with `blocks` in memory."""

    def __init__(self, array: oc.Array, blocks: int = BLOCKS) -> None:
        self.array = array
        self.boxes = list(array.chunk_boxes())
        self.block_bytes = array.nbytes // len(self.boxes)
        self.arena = Arena((blocks + 2) * self.block_bytes)
        self.file = array.open_file(self.arena, self.block_bytes, writable=True)
        buffers = [self.arena.allocate(self.block_bytes) for _ in range(blocks)]
        rng = np.random.default_rng(1)
        self.blocks = [
            np.ndarray(array.chunks, array.dtype, buffer=memoryview(buffer)) for buffer in buffers
        ]
        for block in self.blocks:
            block[...] = rng.random(block.shape)

    def read_rate(self) -> float:
        """Return bytes per second."""
        seen = 0
        start = time.perf_counter()
        for _, data in self.array.stream(memory=len(self.blocks) * self.block_bytes):
            seen += data.nbytes
        seconds = time.perf_counter() - start
        if seen != self.array.nbytes:
            raise AssertionError(f"the stream gave {seen} bytes of {self.array.nbytes}")
        return seen / seconds

    def write_rate(self) -> float:
        """Return bytes per second, including the sync."""
        start = time.perf_counter()
        with WriteBehind(self.file, most=len(self.blocks)) as writer:
            for number, box in enumerate(self.boxes):
                writer.write(box, self.blocks[number % len(self.blocks)])
            writer.flush(sync=True)
        return self.array.nbytes / (time.perf_counter() - start)


if __name__ == "__main__":
    main("streaming", measure)
