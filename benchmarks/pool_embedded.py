"""A pool embedded over two directories of a disk against a plain directory of it: streams, and LU.

A pool stores and checks a checksum of every 64 KiB, and assembles files from two servers; this
benchmark measures the cost.
"""

import functools
import time
from pathlib import Path
from typing import Any

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.matrices import clear, random_block
from benchmarks.rounds import alternate
from benchmarks.streaming import CHUNK, COLUMNS, DEPTH, ROWS, Streaming, rate

ORDER = {"full": 16384, "quick": 2048, "tiny": 512}
BUDGET_SHARE = 8

THREADS = DEPTH // 2
"""For each of the two directories, which share a disk: a plain path has `DEPTH` requests."""

BLOCKS = 2 * DEPTH
"""Blocks in memory: in a pool each lies on one of its servers, and both need enough."""

PLAIN, POOL = "plain directory", "pool"
EMBEDDED = "pool embedded over 2 directories"
AT_LEAST = Target("≥", 0.95)


def measure(setting: Setting) -> Outcome:
    directories = [setting.scratch / "a", setting.scratch / "b"]
    rounds = 1 if setting.size == "tiny" else 5
    with oc.Pool.embedded(directories, threads=THREADS) as pool:
        places = {PLAIN: setting.scratch, POOL: pool}
        speed = factored(setting, places, rounds, f"speed in a {EMBEDDED}", AT_LEAST)
        return Outcome([*streams(setting, places, rounds), speed])


def streams(setting: Setting, places: dict[str, Any], rounds: int) -> list[Figure]:
    """Stream an array, in blocks of a chunk."""
    shape = (ROWS[setting.size], COLUMNS)
    arrays = {
        name: oc.create_array(where / "A", shape, "f8", chunks=CHUNK)
        for name, where in places.items()
    }
    sides = {name: Streaming(array, BLOCKS) for name, array in arrays.items()}
    for side in sides.values():
        side.write_rate()
    figures = []
    for direction in ("write", "read"):
        runs = {name: getattr(side, f"{direction}_rate") for name, side in sides.items()}
        found = alternate(f"pool, {direction}", runs, rounds=rounds, show=rate)
        size = f"{arrays[PLAIN].nbytes >> 20} MiB"
        figures.append(
            Figure(
                f"stream, {direction}, {size}: rate in a {EMBEDDED} against a plain path",
                found.ratios(POOL, PLAIN),
                AT_LEAST,
                ours=rate(found.median(POOL)),
                rival=rate(found.median(PLAIN)),
                details=dict(found.measures),
            )
        )
    for array in arrays.values():
        array.close()
    return figures


def factored(
    setting: Setting, places: dict[str, Any], rounds: int, what: str, target: Target
) -> Figure:
    """Factor the same matrix on both; compare the times, or the speeds if more is better."""
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
            where / "Z", memory=n * n * 8 // BUDGET_SHARE, if_exists="overwrite", progress=False
        )
        return time.perf_counter() - start

    found = alternate(
        "LU",
        {name: functools.partial(run, where) for name, where in places.items()},
        rounds=rounds,
        from_quiet=rounds > 1,
    )
    is_speed = target.relation in "≥>"
    return Figure(
        f"LU float64, n = {n}, budget 1/{BUDGET_SHARE}: {what} against a plain path",
        found.ratios(PLAIN, POOL) if is_speed else found.ratios(POOL, PLAIN),
        target,
        ours=f"{found.median(POOL):.2f} s",
        rival=f"{found.median(PLAIN):.2f} s",
        details=dict(found.measures),
    )


if __name__ == "__main__":
    main("pool_embedded", measure)
