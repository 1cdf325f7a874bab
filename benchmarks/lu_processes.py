"""LU by two processes of one thread against one process of two threads, at the same total memory.

Both work on a pool whose servers are threads of their processes, in directories of one disk.
"""

import functools
from pathlib import Path
from typing import Any

import mpi4py

from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import run_module
from benchmarks.figures import Figure, Target
from benchmarks.rounds import alternate

ORDER = {"full": 16_384, "quick": 6_144, "tiny": 512}
SHARE = 8
"""The memory of all processes is this part of the matrix."""

ONE, TWO = "1 process of 2 threads", "2 processes of 1 thread"


def measure(setting: Setting) -> Outcome:
    n, rounds = ORDER[setting.size], 1 if setting.size == "tiny" else 3
    found: dict[str, dict[str, Any]] = {}
    whole = max(8 * n * n // SHARE, 2 << 20)

    def run(name: str, processes: int, threads: int) -> float:
        words = [setting.scratch / str(processes), n, whole // processes, threads]
        found[name] = job(setting, processes, words)
        return float(found[name]["seconds"])

    contenders = {
        ONE: functools.partial(run, ONE, 1, 2),
        TWO: functools.partial(run, TWO, 2, 1),
    }
    times = alternate(f"LU, n={n}", contenders, rounds=rounds, warmups=0)
    if found[ONE]["piv"] != found[TWO]["piv"]:
        raise AssertionError("the pivots differ")
    sent = sum(each["bytes_sent"] for each in found[TWO]["processes"])
    return Outcome(
        [
            Figure(
                f"LU float64, n = {n}: {TWO}, each with 1/{2 * SHARE} of the matrix, over {ONE} "
                f"with 1/{SHARE}",
                times.ratios(TWO, ONE),
                Target("≤", 1.1),
                ours=f"{times.median(TWO):.1f} s, {sent / 2**20:.0f} MiB sent",
                rival=f"{times.median(ONE):.1f} s",
                details={"reports": found},
            )
        ]
    )


def job(setting: Setting, processes: int, words: list[object]) -> dict[str, Any]:
    """Run `factor_processes` in a job of MPI, and return what its first process found."""
    mpiexec = Path(mpi4py.__file__).parents[4] / "bin" / "mpiexec"
    ended = run_module(
        "benchmarks.factor_processes", words, launcher=[mpiexec, "-n", processes],
        environment=setting.child_environment() | {"UCX_TLS": "self,sm,tcp"},
    )  # fmt: skip
    return ended.found


if __name__ == "__main__":
    main("lu_processes", measure)
