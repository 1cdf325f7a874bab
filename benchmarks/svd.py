"""The largest singular triplets of a tall matrix, against SciPy's ARPACK and scikit-learn.

All read one file with a cold cache: outcore within a budget, the others as a memory map, which the
page cache may hold as a whole. Their accuracies differ, so each side states the largest
‖Aᵀu - s v‖₂ / s[0] of its triplets. outcore and ARPACK stop at a tolerance; `randomized_svd`, in
its default setting, makes a fixed number of passes.
"""

import importlib
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse.linalg

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Figure, Target
from benchmarks.rounds import Contender, alternate
from benchmarks.scratch import drop_cached

SHAPES = {"full": (400_000, 1024), "quick": (50_000, 512), "tiny": (2000, 64)}
MEMORY = {"full": 512 << 20, "quick": 128 << 20, "tiny": 16 << 20}
K, TOL = 10, 1e-4
RANK, NOISE, BLOCK = 50, 1e-3, 8192

Matrix = npt.NDArray[Any]
Triplets = tuple[Matrix, Matrix, Matrix]


def measure(setting: Setting) -> Outcome:
    (m, n), memory = SHAPES[setting.size], MEMORY[setting.size]
    path = setting.scratch / "A.npy"
    A = write(path, m, n)
    found: dict[str, Triplets] = {}
    reports: list[Any] = []

    def ours() -> Triplets:
        U, s, Vh, report = oc.linalg.svd(A, K, tol=TOL, seed=1, memory=memory, progress=False)
        reports.append(report)
        return U, s, Vh

    calls: dict[str, Callable[[], Triplets] | None] = {
        "outcore": ours,
        "SciPy's svds (ARPACK)": lambda: scipy.sparse.linalg.svds(A, K, tol=TOL, random_state=1),
        "scikit-learn's randomized_svd": randomized(A),
    }
    rounds = alternate(
        f"{K} triplets of {m} x {n}",
        {name: timed(name, call, path, found) for name, call in calls.items() if call},
        rounds=1 if setting.size == "tiny" else 3,
    )
    errors = {name: error(A, triplets) for name, triplets in found.items()}
    if errors["outcore"] > TOL:
        raise AssertionError(f"the triplets are off by {errors['outcore']}")

    def shown(name: str) -> str:
        return f"{rounds.median(name):.2f} s, residual {errors[name]:.1e}"

    what = f"svd, {K} triplets of {m} x {n} float64, {memory >> 20} MiB: time against"
    figures = [
        Figure(
            f"{what} {name}",
            rounds.ratios("outcore", name),
            Target("<", 1),
            ours=f"{shown('outcore')}, {reports[-1].passes} passes",
            rival=shown(name),
            details={**rounds.measures, "errors": errors, "report": reports[-1].to_dict()},
        )
        if call
        else Figure(f"{what} {name}", skipped="scikit-learn is not installed")
        for name, call in calls.items()
        if name != "outcore"
    ]
    return Outcome(figures)


def write(path: Path, m: int, n: int) -> Matrix:
    """Write a matrix with singular values of about 1, 1/2, 1/3, ... and noise; return it mapped."""
    rank = min(RANK, n)
    draw = np.random.default_rng(0)
    right = np.linalg.qr(draw.standard_normal((n, rank)))[0].T
    right /= np.arange(1.0, rank + 1)[:, None]
    A: Matrix = np.lib.format.open_memmap(path, "w+", "f8", (m, n))
    for first in range(0, m, BLOCK):
        rows = A[first : first + BLOCK]
        rows[...] = draw.standard_normal((len(rows), rank)) @ right
        rows += NOISE * draw.standard_normal(rows.shape)
    del A, rows
    return np.load(path, mmap_mode="r")  # type: ignore[no-any-return]


def randomized(A: Matrix) -> Callable[[], Triplets] | None:
    """Return scikit-learn's call; `None` if it is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        return None
    randomized_svd = importlib.import_module("sklearn.utils.extmath").randomized_svd
    return lambda: randomized_svd(A, K, random_state=1)


def timed(
    name: str, call: Callable[[], Triplets], path: Path, found: dict[str, Triplets]
) -> Contender:
    """Return a contender that starts with a cold cache, and stores its triplets."""

    def run() -> float:
        drop_cached(path)
        start = time.perf_counter()
        found[name] = call()
        return time.perf_counter() - start

    return run


def error(A: Matrix, triplets: Triplets) -> float:
    """Return the largest ‖Aᵀu - s v‖₂ / s[0]."""
    U, s, Vh = triplets
    product = np.zeros((A.shape[1], K))
    for first in range(0, len(A), BLOCK):
        product += A[first : first + BLOCK].T @ U[first : first + BLOCK]
    return float(np.linalg.norm(product - Vh.T * s, axis=0).max() / s.max())


if __name__ == "__main__":
    main("svd", measure)
