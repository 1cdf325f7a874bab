"""LU and Cholesky by several processes, on pools whose servers are threads of the processes.

All directories are on one disk.

First two processes of one thread against one process of two threads, at the same total memory, and
against ScaLAPACK. Then Table 2 of Womble et al. (1993), scaled efficiency: the work of each process
grows with the square root of their number. Each process has a quarter of a processor, so eight of
them have two.
"""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

from benchmarks import scalapack
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import run_module
from benchmarks.cpu_share import cpu_shares
from benchmarks.figures import Figure, Target
from benchmarks.rounds import alternate

ORDER = {"full": 16_384, "quick": 6_144, "tiny": 512}
SHARE = 8
"""The memory of all processes is this part of the matrix."""

SIDE = {"full": 2_560, "quick": 1_280, "tiny": 256}
"""Order of the matrix of one process in Table 2; that of p processes is √p times larger."""

TABLE = {1: None, 2: None, 4: Target("≥", 0.9), 8: Target("≥", 0.85)}
"""Numbers of processes, and the least efficiency."""

SHARE_OF_CPU = 0.25

PAIRS = {"lu_factor": ("LU", 1.1), "cho_factor": ("Cholesky", 1.12)}
"""Titles, and the most time of two processes over that of one."""

ONE, TWO = "1 process of 2 threads", "2 processes of 1 thread"


def measure(setting: Setting) -> Outcome:
    pairs = [one_against_two(setting, function) for function in PAIRS]
    return Outcome([*pairs, against_scalapack(setting), *efficiencies(setting)])


def one_against_two(setting: Setting, function: str) -> Figure:
    """Compare two processes with one at the same memory and number of threads."""
    n, rounds = ORDER[setting.size], 1 if setting.size == "tiny" else 3
    found: dict[str, dict[str, Any]] = {}
    known: dict[str, list[Any]] = {}
    whole, (title, most) = max(8 * n * n // SHARE, 2 << 20), PAIRS[function]

    def run(name: str, processes: int, threads: int) -> float:
        where = setting.scratch / f"{function}-{processes}"
        words = [function, where, n, whole // processes, threads]
        found[name] = job(setting, "factor_processes", processes, words)
        known[name] = found[name].pop("known")
        return float(found[name]["seconds"])

    contenders = {
        ONE: functools.partial(run, ONE, 1, 2),
        TWO: functools.partial(run, TWO, 2, 1),
    }
    times = alternate(f"{title}, n={n}", contenders, rounds=rounds, warmups=0)
    if not np.allclose(known[ONE], known[TWO], rtol=0, atol=1e-12):
        raise AssertionError("the pivots, or the factors, differ")
    sent = sum(each["bytes_sent"] for each in found[TWO]["processes"])
    return Figure(
        f"{title} float64, n = {n}: {TWO}, each with 1/{2 * SHARE} of the matrix, over {ONE} with "
        f"1/{SHARE}",
        times.ratios(TWO, ONE),
        Target("≤", most),
        ours=f"{times.median(TWO):.1f} s, {sent / 2**20:.0f} MiB sent",
        rival=f"{times.median(ONE):.1f} s",
        details={"reports": found},
    )


def against_scalapack(setting: Setting) -> Figure:
    """Compare shares of the rate of products: from disk here, in memory there."""
    n, processes = ORDER[setting.size], 2
    title = f"LU float64, n = {n}, {processes} processes: share of the rate of products"
    what = f"{title}, with memory for 1/{SHARE} of the matrix, over that of pdgetrf in memory"
    if lacking := scalapack.why_not():
        return Figure(what, skipped=lacking)
    program = scalapack.build(setting.scratch)
    # The best of some widths is the rival's.
    widths = [32] if setting.size == "tiny" else [64, 128, 256]
    width = min(widths, key=lambda each: scalapack.factor(program, processes, n, each).seconds)

    def ours() -> float:
        memory = max(8 * n * n // SHARE, 2 << 20) // processes
        words = ["lu_factor", setting.scratch / "lu_factor-2", n, memory, 1]
        found = job(setting, "factor_processes", processes, words)
        return scalapack.Timed(found["seconds"], found["product_flops_s"]).share(n)

    def rival() -> float:
        return scalapack.factor(program, processes, n, width).share(n)

    rounds = 1 if setting.size == "tiny" else 3
    shares = alternate(
        title, {"outcore": ours, "pdgetrf": rival}, rounds=rounds, warmups=0,
        show=lambda share: f"{share:.0%}",
    )  # fmt: skip
    return Figure(
        what,
        shares.ratios("outcore", "pdgetrf"),
        Target("≥", 0.9),
        ours=f"{shares.median('outcore'):.0%}",
        rival=f"{shares.median('pdgetrf'):.0%}, blocks of {width} columns",
    )


def efficiencies(setting: Setting) -> Iterator[Figure]:
    """Measure √p · time(1) / time(p). As many single processes run side by side for time(1)."""
    rounds = 1 if setting.size == "tiny" else 3
    for count, target in TABLE.items():
        n = round(SIDE[setting.size] * math.sqrt(count))
        what = f"efficiency of {count} processes, n = {n}, a quarter of a processor each"
        with cpu_shares(count, SHARE_OF_CPU) as groups:
            if not groups:
                yield Figure(what, skipped="no control group for processors can be made here")
                return
            alone = functools.partial(side_by_side, setting, groups)
            jointly = functools.partial(together, setting, groups, n)
            times = alternate(what, {"alone": alone, "together": jointly}, rounds=rounds, warmups=0)
        root = math.sqrt(count)
        yield Figure(
            what,
            [each * root for each in times.ratios("alone", "together")],
            target,
            ours=f"{times.median('together'):.1f} s",
            rival=f"{times.median('alone'):.1f} s for n = {SIDE[setting.size]} by one",
        )


def budget_of(n: int, processes: int) -> int:
    """Return the memory of each process: an eighth of its part of the matrix."""
    return max(8 * n * n // processes // SHARE, 1 << 20)


def together(setting: Setting, groups: list[Path], n: int) -> float:
    """Factor by all processes; return the time."""
    count = len(groups)
    words = ["lu_factor", setting.scratch / f"table-{count}", n, budget_of(n, count), 1, *groups]
    return float(job(setting, "factor_processes", count, words)["seconds"])


def side_by_side(setting: Setting, groups: list[Path]) -> float:
    """Factor a matrix of its own by each of the processes; return the median time."""
    n = SIDE[setting.size]

    def one(number: int) -> float:
        where = setting.scratch / f"alone-{number}"
        words = ["lu_factor", where, n, budget_of(n, 1), 1, groups[number]]
        return float(job(setting, "factor_processes", 1, words)["seconds"])

    with ThreadPoolExecutor(len(groups)) as threads:
        return statistics.median(threads.map(one, range(len(groups))))


def job(setting: Setting, program: str, processes: int, words: Sequence[object]) -> dict[str, Any]:
    """Run a program of this folder in a job of MPI, and return the results of its first process."""
    mpiexec = Path(mpi4py.__file__).parents[4] / "bin" / "mpiexec"
    ended = run_module(
        f"benchmarks.{program}", words, launcher=[mpiexec, "-n", processes],
        environment=setting.child_environment() | {"UCX_TLS": "self,sm,tcp"},
    )  # fmt: skip
    return ended.found


if __name__ == "__main__":
    main("lu_processes", measure)
