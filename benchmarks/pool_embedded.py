"""A pool embedded over two directories of a disk against a plain directory of it: streams, and LU.

A pool keeps and checks a checksum of every 64 KiB, and puts files together from two servers; what
that costs is measured here.
"""

import time
from pathlib import Path
from typing import Any

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import clear, random_block
from benchmarks.rounds import Rounds, alternate
from benchmarks.streaming import CHUNK, COLUMNS, ROWS, Streaming, rate

ORDER = {"full": 8192, "quick": 2048, "tiny": 512}
BUDGET_SHARE = 8

PLAIN, POOL = "plain directory", "pool"


def measure(setting: Setting) -> Outcome:
    directories = [setting.scratch / "a", setting.scratch / "b"]
    rounds = 1 if setting.size == "tiny" else 5
    with oc.Pool.embedded(directories) as pool:
        places = {PLAIN: setting.scratch, POOL: pool}
        return Outcome([*streams(setting, places, rounds), factored(setting, places, rounds)])


def streams(setting: Setting, places: dict[str, Any], rounds: int) -> list[Figure]:
    """Stream an array, in blocks of a chunk."""
    shape = (ROWS[setting.size], COLUMNS)
    arrays = {
        name: oc.create_array(where / "A", shape, "f8", chunks=CHUNK)
        for name, where in places.items()
    }
    sides = {name: Streaming(array) for name, array in arrays.items()}
    for side in sides.values():
        side.write_rate()
    figures = []
    for direction in ("write", "read"):
        runs = {name: getattr(side, f"{direction}_rate") for name, side in sides.items()}
        found = alternate(f"pool, {direction}", runs, rounds=rounds, show=rate)
        size = f"{arrays[PLAIN].nbytes >> 20} MiB"
        figures.append(figure(f"stream, {direction}, {size}: rate", found, rate))
    for array in arrays.values():
        array.close()
    return figures


def factored(setting: Setting, places: dict[str, Any], rounds: int) -> Figure:
    """Factor the same matrix on both."""
    n = ORDER[setting.size]

    def fill(rows: slice, cols: slice) -> Any:
        count = (rows.stop - rows.start, cols.stop - cols.start)
        return random_block(count, "f8", [rows.start, cols.start])

    for where in places.values():
        oc.create_array(where / "Z", (n, n), "f8", order="F", fill=fill, progress=False).close()

    def run(where: Any) -> float:
        if isinstance(where, Path):
            clear(where / "Z.lu")
        start = time.perf_counter()
        oc.linalg.lu_factor(
            where / "Z", memory=n * n * 8 // BUDGET_SHARE, overwrite=True, progress=False
        )
        # A rate, so that more is better, as with streams.
        return 1 / (time.perf_counter() - start)

    found = alternate(
        "pool, LU",
        {name: lambda where=where: run(where) for name, where in places.items()},  # type: ignore[misc]
        rounds=rounds,
        show=seconds,
    )
    return figure(f"LU float64, n = {n}, budget 1/{BUDGET_SHARE}: speed", found, seconds)


def seconds(rate: float) -> str:
    """Write the time of something that is done so often a second."""
    return f"{1 / rate:.2f} s"


def figure(what: str, found: Rounds, show: Any) -> Figure:
    """Compare the two."""
    return Figure(
        f"pool embedded over 2 directories, {what} against a plain path",
        found.ratios(POOL, PLAIN),
        Target("≥", 0.95),
        ours=show(found.median(POOL)),
        rival=show(found.median(PLAIN)),
        details=dict(found.measures),
    )


if __name__ == "__main__":
    main("pool_embedded", measure)
