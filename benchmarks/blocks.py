"""Every block once through the block interface, against a stream of the same blocks.

Both use the same blocks (the chunks), order and memory. Superblocks are block rows. The stream
knows its blocks in advance; the block interface must detect the reader's direction.
"""

import time
from collections.abc import Callable

import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.rounds import alternate

CHUNK = (256, 2048)
ROWS = {"full": 16384, "quick": 4096, "tiny": 1024}
COLUMNS = 8192
SUPERBLOCK = (1, COLUMNS // CHUNK[1])
BUFFERS = 2


def measure(setting: Setting) -> Outcome:
    shape = (ROWS[setting.size], COLUMNS)
    with oc.create_array(setting.scratch / "A", shape, "f8", chunks=CHUNK) as array:
        row = np.random.default_rng(1).random((CHUNK[0], COLUMNS))
        for first in range(0, shape[0], CHUNK[0]):
            array[first : first + CHUNK[0]] = row
        array.flush()
        reader = Reader(array)
        found = alternate(
            "every block once",
            {
                "stream": reader.stream,
                "view": lambda: reader.blocks(lambda B, at: B.view(*at)),
                "out": lambda: reader.blocks(lambda B, at: B.read(*at, out=reader.out)),
                "copy": lambda: reader.blocks(lambda B, at: B[at]),
            },
            rounds=1 if setting.size == "tiny" else 7,
            show=rate,
        )
    what = f"every block once, {array.nbytes >> 20} MiB in blocks of {reader.out.nbytes >> 20} MiB"
    ways = {
        "view": "B.view(i, j): rate against a stream",
        "out": "B.read(i, j, out=): rate against a stream",
        "copy": "B[i, j], a new array each time: rate against a stream",
    }
    figures = [
        Figure(
            f"{what}, superblocks of a block row, {text}",
            found.ratios(way, "stream"),
            Target("≥", 0.9) if way == "view" else None,
            ours=rate(found.median(way)),
            rival=rate(found.median("stream")),
            details=dict(found.measures),
        )
        for way, text in ways.items()
    ]
    return Outcome(figures)


def rate(value: float) -> str:
    """Format a rate."""
    return f"{value / 1e9:.2f} GB/s"


class Reader:
    """One pass over an array, chunk by chunk. Each method returns bytes per second."""

    def __init__(self, array: oc.Array) -> None:
        self.array = array
        self.out = np.zeros(CHUNK, array.dtype)

    def stream(self) -> float:
        """Read by a stream, in as much memory as the block interface's buffers."""
        memory = BUFFERS * SUPERBLOCK[1] * self.out.nbytes
        seen = 0
        start = time.perf_counter()
        for _, data in self.array.stream(memory=memory):
            seen += data.nbytes
        return self.rate(seen, start)

    def blocks(self, read: Callable[[oc.Blocks, tuple[int, ...]], np.ndarray]) -> float:
        """Read by the block interface."""
        seen = 0
        start = time.perf_counter()
        with self.array.blocks(superblock=SUPERBLOCK, buffers=BUFFERS) as B:
            for at in np.ndindex(*B.counts):
                seen += read(B, at).nbytes
        return self.rate(seen, start)

    def rate(self, seen: int, start: float) -> float:
        """Return bytes per second since `start`; check that all were read."""
        seconds = time.perf_counter() - start
        if seen != self.array.nbytes:
            raise AssertionError(f"{seen} bytes of {self.array.nbytes} were read")
        return seen / seconds


if __name__ == "__main__":
    main("blocks", measure)
