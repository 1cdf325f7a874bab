"""A client of a pool in a process of its own, which executes commands, and measures their time.

It reads lines of JSON, each one command, and answers each with a line: its begin and end, on the
clock that all processes share.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.commanded import Commanded
from outcore._core import Regions

CALL_BYTES = 32 << 20
"""Size of one request to the pool; two are in flight."""


class PoolClient(Commanded):
    """The process, as seen by its benchmark; use it as a context manager.

    Parameters
    ----------
    url, key_file
        The pool.
    prefix
        Words before the command, which run it on a host of a testbed.
    """

    def __init__(self, url: str, key_file: Path, prefix: Sequence[str] = ()) -> None:
        super().__init__(
            [*prefix, sys.executable, "-m", "benchmarks.pool_client", url, str(key_file)]
        )

    def end(self) -> tuple[float, float]:
        """Wait for the end of the command; return its begin and end."""
        begin, end = self.answer()
        return begin, end

    def seconds(self, do: str, **what: Any) -> float:
        """Execute a command; return its duration."""
        self.begin(do, **what)
        begin, end = self.end()
        return end - begin


def together(clients: Sequence[PoolClient], calls: Sequence[dict[str, Any]]) -> float:
    """Execute commands of several clients concurrently; return the time from first to last."""
    for client, call in zip(clients, calls, strict=True):
        client.begin(**call)
    times = [client.end() for client in clients]
    return max(end for _, end in times) - min(begin for begin, _ in times)


class Work:
    """The commands of a client."""

    def __init__(self, pool: oc.Pool) -> None:
        self.pool = pool
        self.data = np.random.default_rng(1).integers(0, 256, CALL_BYTES, dtype=np.uint8)

    def make(self, name: str, nbytes: int, **hints: Any) -> None:
        """Create a file of random bytes."""
        with self.pool.open(name, "w", hints=hints) as file:
            file.truncate(nbytes)
        self.write(name, 0, nbytes)

    def write(self, name: str, offset: int, nbytes: int) -> None:
        """Write a range, and sync."""
        with self.pool.open(name, "r+") as file:
            self._move(file.start_write, [self.data] * 2, offset, nbytes)
            file.sync()

    def read(self, name: str, offset: int, nbytes: int) -> None:
        """Read a range."""
        buffers = [np.empty_like(self.data) for _ in range(2)]
        with self.pool.open(name) as file:
            self._move(file.start_read, buffers, offset, nbytes)

    def _move(
        self, start: Callable[..., Any], buffers: list[Any], offset: int, nbytes: int
    ) -> None:
        futures: list[Any] = []
        for number, at in enumerate(range(0, nbytes, CALL_BYTES)):
            if len(futures) > 1:
                futures.pop(0).result()
            count = min(CALL_BYTES, nbytes - at)
            regions = Regions.contiguous(offset + at, count)
            futures.append(start(regions, buffers[number % 2][:count]))
        for future in futures:
            future.result()

    def read_strided(self, name: str, piece: int, stride: int, count: int) -> None:
        """Read many pieces by one request."""
        with self.pool.open(name) as file:
            file.read_strided(0, 0, piece, count, stride)

    def write_strided(self, name: str, piece: int, stride: int, count: int) -> None:
        """Write many pieces by one request, and sync."""
        with self.pool.open(name, "r+") as file:
            file.write_strided(0, 0, piece, count, stride, data=self.data[: piece * count])
            file.sync()

    def read_pieces(self, name: str, piece: int, stride: int, count: int) -> None:
        """Read each piece by a separate request."""
        out = np.empty(piece, np.uint8)
        with self.pool.open(name) as file:
            for number in range(count):
                file.read_at(number * stride, out=out)

    def write_pieces(self, name: str, piece: int, stride: int, count: int) -> None:
        """Write each piece by a separate request, and sync."""
        with self.pool.open(name, "r+") as file:
            for number in range(count):
                file.write_at(number * stride, self.data[:piece])
            file.sync()

    def read_random(self, name: str, nbytes: int, piece: int, count: int, clients: int) -> None:
        """Read random pieces by several clients at the same time."""

        def read(number: int) -> None:
            random = np.random.default_rng(number)
            out = np.empty(piece, np.uint8)
            with self.pool.open(name) as file:
                for at in random.integers(0, nbytes // piece, count):
                    file.read_at(int(at) * piece, out=out)

        with ThreadPoolExecutor(clients) as threads:
            list(threads.map(read, range(clients)))

    def create(self, directory: str, count: int) -> None:
        """Create empty files."""
        for number in range(count):
            self.pool.open(f"{directory}/{number:06}", "x").close()


def main() -> None:
    url, key = sys.argv[1:]
    with oc.connect(url, key=key) as pool:
        work = Work(pool)
        print("ready", flush=True)
        for line in sys.stdin:
            call = json.loads(line)
            run = getattr(work, call.pop("do"))
            begin = time.monotonic()
            run(**call)
            print(json.dumps([begin, time.monotonic()]), flush=True)


if __name__ == "__main__":
    main()
