"""Tall least squares by two processes of one thread, against one process of two threads."""

import functools
import shutil
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import run_module
from benchmarks.figures import Figure, Target
from benchmarks.lstsq import DTYPE, MEMORY, SHAPES, fill
from benchmarks.rounds import alternate

ONE, TWO = "1 process of 2 threads", "2 processes of 1 thread"


def measure(setting: Setting) -> Outcome:
    (m, n), memory = SHAPES[setting.size], MEMORY[setting.size]
    with oc.create_array(setting.scratch / "A", (m, n), DTYPE) as A:
        np.save(setting.scratch / "b.npy", fill(A))
    found: dict[str, dict[str, Any]] = {}

    def run(name: str, processes: int, threads: int) -> float:
        found[name] = job(setting, processes, memory // processes, threads)
        return float(found[name]["seconds"])

    contenders = {
        ONE: functools.partial(run, ONE, 1, 2),
        TWO: functools.partial(run, TWO, 2, 1),
    }
    rounds = 1 if setting.size == "tiny" else 3
    times = alternate(f"least squares, {m} x {n}", contenders, rounds=rounds, warmups=1)
    shutil.rmtree(setting.scratch / "A")
    for name, each in found.items():
        if each["error"] > 1e-2:
            raise AssertionError(f"{name}: the solution is off by {each['error']}")
    sent = sum(each["bytes_sent"] for each in found[TWO]["processes"])
    return Outcome([
        Figure(
            f"least squares {DTYPE}, {m} x {n}, {memory >> 20} MiB in all: {TWO} over {ONE}",
            times.ratios(TWO, ONE),
            Target("≤", 1.05),
            ours=f"{times.median(TWO):.2f} s, {sent / 2**20:.1f} MiB sent",
            rival=f"{times.median(ONE):.2f} s",
            details={"reports": found},
        )
    ])  # fmt: skip


def job(setting: Setting, processes: int, memory: int, threads: int) -> dict[str, Any]:
    """Run `lstsq_of_processes` in a job of MPI, and return what its first process found."""
    mpiexec = Path(mpi4py.__file__).parents[4] / "bin" / "mpiexec"
    return run_module(
        "benchmarks.lstsq_of_processes", [setting.scratch, memory, threads],
        launcher=[mpiexec, "-n", processes],
        environment=setting.child_environment() | {"UCX_TLS": "self,sm,tcp"},
    ).found  # fmt: skip


if __name__ == "__main__":
    main("lstsq_processes", measure)
