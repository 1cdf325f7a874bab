"""Dense linear algebra against ``dask.array.linalg``, both under the same hard memory limit.

Each side's result is checked, because the time of a wrong one would mean nothing.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.child import Ended, run_module
from benchmarks.figures import Figure, Target
from benchmarks.matrices import clear, random_array
from benchmarks.memory_limit import MemoryLimit, memory_limit
from benchmarks.rounds import alternate

Matrix = npt.NDArray[Any]

TIMEOUT_S = 900.0

MOST_RESIDUAL = 1e-10
"""Relative residual: dask's LU, which pivots only inside a chunk, may lose some digits."""


@dataclass(frozen=True)
class Sizes:
    """Order of square matrices; rows and columns of the tall one; dask's chunks; the limit."""

    n: int
    m: int
    k: int
    chunk: int
    limit_bytes: int


SIZES = {
    "full": Sizes(8192, 262_144, 512, 1024, 3 << 30),
    "quick": Sizes(2048, 65_536, 128, 512, 2 << 30),
    "tiny": Sizes(256, 2048, 32, 64, 1 << 30),
}


def measure(setting: Setting) -> Outcome:
    if importlib.util.find_spec("dask") is None:
        return Outcome([Figure("against dask.array.linalg", skipped="dask is not installed")])
    sizes = SIZES[setting.size]
    with memory_limit(sizes.limit_bytes) as limit:
        if limit is None:
            return Outcome([Figure("against dask.array.linalg", skipped="no control groups here")])
        cases = _Cases(setting, sizes, limit)
        general = random_array(setting.scratch / "general", sizes.n, "f8")
        figures = [cases.compare("lu", general), cases.compare("solve", general)]
        figures.append(cases.compare("cholesky", cases.positive()))
        figures.append(cases.compare("qr", cases.tall()))
        figures.append(cases.singular_chunk())
    return Outcome(figures)


class _Cases:
    """Arrays, and the operations of both sides."""

    def __init__(self, setting: Setting, sizes: Sizes, limit: MemoryLimit) -> None:
        self.setting, self.sizes, self.limit = setting, sizes, limit
        self.memory = max(8 * sizes.n**2 // 8, 8 << 20)

    def run(self, who: str, case: str, array: oc.Array) -> Ended:
        result = self.result(who, case)
        clear(result)
        result.unlink(missing_ok=True)
        last = self.memory if who == "outcore" else self.sizes.chunk
        return run_module(
            f"benchmarks.{who}_case", [case, array.path, result, last],
            environment=self.setting.child_environment(), timeout_s=TIMEOUT_S, limit=self.limit,
        )  # fmt: skip

    def result(self, who: str, case: str) -> Path:
        name = f"{who}-{case}"
        return self.setting.scratch / (name if case in ("lu", "cholesky") else f"{name}.npy")

    def compare(self, case: str, array: oc.Array) -> Figure:
        """Time both, if dask supports the operation."""
        shape = " x ".join(map(str, array.shape))
        limit = self.sizes.limit_bytes >> 20
        what = (
            f"{case} of {shape}, limit {limit} MiB, residuals below {MOST_RESIDUAL:.0e}: time "
            "against dask"
        )
        first = self.run("dask", case, array)
        if not first.found:
            reason = "its memory ran out" if first.is_out_of_memory else "its time was up"
            return Figure(what, skipped=f"dask: {reason}")

        def contender(who: str) -> Callable[[], float]:
            return lambda: self.run(who, case, array).seconds

        rounds = alternate(
            what,
            {"outcore": contender("outcore"), "dask": contender("dask")},
            rounds=1 if self.setting.size == "tiny" else 3,
            warmups=0,
        )
        residuals = {
            who: residual(who, case, array, self.result(who, case)) for who in ("outcore", "dask")
        }
        if not residuals["outcore"] < MOST_RESIDUAL:
            raise AssertionError(f"{case}: the residual is {residuals['outcore']:.1e}")
        if not residuals["dask"] < MOST_RESIDUAL:
            return Figure(what, skipped=f"dask: its residual is {residuals['dask']:.1e}")
        said = {
            who: f"{rounds.median(who):.2f} s, residual {residuals[who]:.1e}" for who in residuals
        }
        return Figure(
            what,
            rounds.ratios("outcore", "dask"),
            Target("<", 1),
            ours=said["outcore"],
            rival=said["dask"],
            details={**rounds.measures, "residuals": residuals},
        )

    def positive(self) -> oc.Array:
        """Create a positive definite matrix: 0.9 to the power |i - j|, plus 0.1 on the diagonal."""

        def fill(rows: slice, cols: slice) -> Any:
            i, j = np.ogrid[rows, cols]
            return 0.9 ** np.abs(i - j) + 0.1 * (i == j)

        n = self.sizes.n
        return oc.create_array(
            self.setting.scratch / "positive", (n, n), "f8", order="F", fill=fill, progress=False
        )

    def tall(self) -> oc.Array:
        """Create a tall matrix in row blocks."""

        def fill(rows: slice, cols: slice) -> Any:
            shape = rows.stop - rows.start, cols.stop - cols.start
            return np.random.default_rng([rows.start, cols.start]).random(shape) - 0.5

        shape = self.sizes.m, self.sizes.k
        return oc.create_array(
            self.setting.scratch / "tall", shape, "f8", order="C", fill=fill, progress=False
        )

    def singular_chunk(self) -> Figure:
        """Solve with a matrix whose leading chunk is singular, though the matrix is not."""
        n, chunk = self.sizes.n // 4, self.sizes.chunk // 4
        A = random_array(self.setting.scratch / "singular", n, "f8")
        with oc.open_array(A.path, "r+") as writable:
            writable[:chunk, :chunk] = 0
        whole = np.asarray(A[...])
        smaller = _Cases(self.setting, Sizes(n, n, n, chunk, 0), self.limit)
        said = {}
        for who in ("outcore", "dask"):
            try:
                smaller.run(who, "solve", A)
                x = np.load(self.result(who, "solve"))
                error = backward_error(whole, x, np.ones(n))
                said[who] = f"backward error {error:.1e}"
            except RuntimeError as failure:
                said[who] = str(failure).strip().splitlines()[-1][:90]
        return Figure(
            f"solve, n = {n}, singular leading chunk: backward error within 1e-13",
            [float(said["outcore"].rpartition(" ")[2])],
            Target("<", 1e-13),
            ours=said["outcore"],
            rival=said["dask"],
        )


def residual(who: str, case: str, array: oc.Array, result: Path) -> float:
    """Return the residual of a result, with one random vector for a factorization.

    For LU and Cholesky it is ‖A z - L (U z)‖₁ over ‖A‖₁‖z‖₁ + ‖A z‖₁, or with our factors the
    backward error of a solution. For R it is ‖Rᴴ(R z) - Aᴴ(A z)‖₂ over ‖R‖² ‖z‖₂ in the Frobenius
    norm.
    """
    a: Matrix = np.asarray(array[...])
    z: Matrix = np.random.default_rng(1).standard_normal((a.shape[1],))
    if case == "qr":
        R = np.load(result)
        off = R.T @ (R @ z) - a.T @ (a @ z)
        return float(np.linalg.norm(off) / (np.linalg.norm(R) ** 2 * np.linalg.norm(z)))
    if case == "solve":
        return backward_error(a, np.load(result), np.ones(len(a)))
    if who == "outcore":
        factor = oc.linalg.open_factor(result)
        solve: Any = oc.linalg.lu_solve if case == "lu" else oc.linalg.cho_solve
        return backward_error(a, solve(factor, z, progress=False), z)
    return backward_error(a, z, product(case, result, z))


def product(case: str, result: Path, z: Matrix) -> Matrix:
    """Multiply with dask's factors, which are whole arrays."""
    zarr: Any = importlib.import_module("zarr")
    count = 3 if case == "lu" else 1
    stored = [zarr.open_array(str(result / f"{i}"), mode="r") for i in range(count)]
    factors: list[Matrix] = [np.asarray(one[...]) for one in stored]
    if case == "cholesky":
        factors.append(factors[0].T)
    for factor in reversed(factors):
        z = factor @ z
    return z


def backward_error(a: Matrix, x: Matrix, b: Matrix) -> float:
    """Return ‖b - Ax‖₁ over ‖A‖₁‖x‖₁ + ‖b‖₁."""
    scale = np.linalg.norm(a, 1) * np.abs(x).sum() + np.abs(b).sum()
    return float(np.abs(b - a @ x).sum() / scale)


if __name__ == "__main__":
    main("dask_linalg", measure)
