"""Estimates of a matrix's condition from its factors, by Hager's method, as in LAPACK.

‖A⁻¹‖₁ is the largest ‖A⁻¹x‖₁ of vectors with ‖x‖₁ = 1. The method maximizes this convex function by
steps from corner to corner of that ball. Each step takes one solve with A and one with Aᴴ (W. W.
Hager, SIAM J. Sci. Stat. Comput. 5 (1984), 311-316; N. J. Higham, ACM Trans. Math. Softw. 14
(1988), 381-396, algorithm 4.1; LAPACK's ``dlacn2`` and ``zlacn2``). The estimate is a lower bound,
and rarely less than a third of the true value.
"""

import math
import time
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np

from outcore._util.communicator import TIMEOUT_S
from outcore._util.counts import is_finite
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.blas.calls import Trans
from outcore.errors import ConsumedError, InvalidError, NotFoundError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._factors.panel_servers import Parts
from outcore.linalg._factors.sweeps import Sweeps, Swept, cut_sweep, sweep_bytes_of, swept_by
from outcore.linalg._geometry.factor_plan import solve_flops
from outcore.linalg._lu.solve import refuse_overflowed, stopping_cleanly
from outcore.linalg._output.factor import CholeskyFactor, LUFactor, refuse_others
from outcore.linalg._output.kept_solves import KeptSolves
from outcore.linalg._output.own import ready_factors
from outcore.linalg._output.steps_done import version_of_operand
from outcore.linalg._rhs.residual import MatrixPasses, matrix_in, ring_bytes
from outcore.linalg._tiles.matrix import Matrix, open_matrix
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing, seconds_for
from outcore.processes.team import Team
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import place, place_of_source

Norm: TypeAlias = Literal[1, "1", "inf", "I"] | float
Solve: TypeAlias = Callable[[Matrix, bool], None]

_MOST_STEPS = 5
"""As in LAPACK; two are usual."""

_STRIP_BYTES = 256 << 10
"""Bytes of elements whose absolute values are computed at once."""

USUAL_SOLVES = 5
"""Two steps of two solves, after one initial solve."""


def cond_est(
    factor: LUFactor | CholeskyFactor,
    norm: Norm = 1,
    *,
    norm_a: float | None = None,
    memory: int | str | None = None,
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[float, Report]:
    """Estimate the condition number κ(A) = ‖A‖ ‖A⁻¹‖ from factors on disk.

    With `comm`, the processes of a parallel program divide the reads of the factors. The first one
    has the vectors.

    Parameters
    ----------
    factor
        Factors from `lu_factor`, `cho_factor` or `open_factor`.
    norm
        1, or `numpy.inf` (or ``"inf"``). For Cholesky factors both are the same.
    norm_a
        That norm of A. By default, the 1-norm comes from the factors; for complex types it is
        within √2 of the true value. The ∞-norm of a non-Hermitian A is computed in one pass over A.
    memory
        Budget of each process; by default half of the available memory, which the processes of a
        host share.
    resume
        Resume a stopped call for the same norm with the solves that it completed. Solves that take
        more than some seconds are kept beside the factors until the call ends.
    threads, progress, comm, timeout
        As for `lu_factor`.

    Returns
    -------
    condition : float
        A lower bound, rarely less than a third of the true value; infinite if A is singular.
    report : Report
        The report of the call. Its notes contain the number of passes: each solve is one over L and
        one over U or Lᴴ.

    Raises
    ------
    InvalidError
        For an unknown norm, if the ∞-norm needs a matrix that changed or was removed, or if numbers
        overflowed when A was factored.
    BudgetError
        If two vectors and a block of the factors do not fit in memory.
    """
    with Sharing(comm, timeout, "cond_est") as sharing:
        refuse_others(factor, LUFactor, CholeskyFactor)
        names: dict[Any, str] = {1: "1", "1": "1", np.inf: "inf", "inf": "inf", "I": "inf"}
        if not isinstance(norm, int | float | str) or norm not in names:
            raise InvalidError(f"norm must be 1 or numpy.inf, have {norm!r}")
        is_inf = names[norm] == "inf"
        if norm_a is not None and not (is_finite(norm_a) and norm_a >= 0):
            raise InvalidError(f"norm_a must be a norm, at least 0 and finite, have {norm_a!r}")
        if sharing.size > 1:
            sharing.check_mpi("a condition estimate by several processes")
            sharing.agree(
                {
                    "factors": version_of_operand(factor),
                    "norm=": names[norm],
                    "norm_a=": norm_a,
                    "resume=": resume,
                }
            )
        with Team(sharing) as team:
            return estimate_condition(
                factor, sharing.budget(memory), sharing.threads(threads),
                sharing.progress(progress), team, is_inf=is_inf, norm_a=norm_a, resume=resume,
            )  # fmt: skip


def estimate_condition(
    factor: Swept,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
    team: Team,
    *,
    is_inf: bool = False,
    norm_a: float | None = None,
    resume: bool = True,
) -> tuple[float, Report]:
    """Run `cond_est` on all processes of a team; the result is the same on each."""
    vectors = vectors_bytes(factor.n, factor.dtype)
    block_tiles, _ = cut_sweep(factor, memory_bytes, 0, 2, vectors, processes=team.size)
    block_tiles = min(team.all_of(block_tiles))
    A, is_singular = None, False
    if isinstance(factor, LUFactor):
        refuse_overflowed(factor)
        is_singular = factor.info > 0
        if is_inf and norm_a is None and team.rank == 0:
            A = _matrix_of(factor)
    kept = KeptSolves(factor, "inf" if is_inf else "1", resume=resume, is_in_use=team.rank == 0)
    if A is not None and kept.norm_a is not None:
        A, norm_a = None, kept.norm_a
    each = sweep_bytes_of(factor)
    work = USUAL_SOLVES * each + (A.nbytes if A else 0)
    with stopping_cleanly("the condition of", factor), long_call(
        f"condition of {factor.path.name}", memory_bytes=memory_bytes, work=work, threads=threads,
        progress=progress,
    ) as call:  # fmt: skip
        planned, bytes_read = 0, 0
        if A is not None:
            passes_a = MatrixPasses(A, call, ring_bytes(A, memory_bytes - vectors))
            norm_a, planned = _norm_inf(passes_a), passes_a.bytes_of_pass
            bytes_read = passes_a.file.counters()[0]
            kept.norm_a = norm_a
        solves = _Solves(factor, call, block_tiles, is_inf, kept, team)
        inverse = math.inf
        if not is_singular and team.rank == 0:
            X = matrix_in(call, factor.n, 2, factor.dtype)
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                inverse = norm1_estimate(solves.solve, X)
        solves.follow()
        scale = factor.norm1 if norm_a is None else norm_a
        condition = team.same(math.inf if math.isinf(inverse) else scale * inverse)
        count = len(solves.columns) + kept.found
        planned_bytes, messages = planned + count * each, 0
        if team.size > 1:
            sent, messages, remote = (
                len(solves.columns) * value for value in swept_by(factor, block_tiles, solves.parts)
            )
            planned_bytes = planned + sent
        kept.remove()
        passes = f"{count} solves: as many passes over L, and over {solves.second}"
        if A is not None:
            passes += "; and one over A"
        own = call.report(
            Report, "cond_est", factor.n, factor.dtype,
            flops=solve_flops(factor.n, factor.dtype, sum(solves.columns)),
            moved=(bytes_read + solves.bytes_read(), 0), planned=(planned_bytes, 0),
            growth=factor.growth if isinstance(factor, LUFactor) else None, condition=condition,
            notes=[passes, *kept.notes()] if not is_singular else ["A is exactly singular"],
        )  # fmt: skip
        if team.size > 1:
            read = solves.remote_read, remote
            own.processes = [process_figures(own, solves.sent, (sent, messages), read)]
        return condition, whole_report(own, team)


class _Solves:
    """Solves with the factors of A or of its transpose, and their count.

    The first process has the columns, and the others help to read the factors.

    Attributes
    ----------
    columns
        Number of columns of each solve.
    second
        Name of the factor that a solve reads after L.
    parts
        The panels that each process reads.
    """

    def __init__(
        self,
        factor: Swept,
        call: LongCall,
        block_tiles: int,
        transposed: bool,
        kept: KeptSolves,
        team: Team,
    ) -> None:
        self._kept, self._factor, self._call, self._transposed = kept, factor, call, transposed
        self.columns: list[int] = []
        self._team, self.parts = team, Parts(factor, team)
        self._sweeps = Sweeps(factor, call, block_tiles, team, self.parts)
        self.second = "U" if isinstance(factor, LUFactor) else "Lᴴ"

    def solve(self, X: Matrix, adjoint: bool) -> None:
        """X <- A⁻¹ X, or with Aᴴ."""
        if self._kept.take(X):
            self._call.meter.skip(sweep_bytes_of(self._factor))
            return
        begun_s = time.monotonic()
        is_complex = self._factor.dtype.kind == "c"
        trans: Trans = "N" if adjoint == self._transposed else "C" if is_complex else "T"
        self._team.same(trans)
        self._sweeps.solve(X, trans)
        self._kept.keep(X, time.monotonic() - begun_s)
        self.columns.append(X.shape[1])

    def follow(self) -> None:
        """Take part in the solves of the first process, until it has no more."""
        factor = self._factor
        nothing: Matrix = np.empty((factor.n, 0), factor.dtype, order="F")
        # The first process may read all of A meanwhile.
        more_s = seconds_for(factor.n**2 * factor.dtype.itemsize)
        while (trans := self._team.all_of(None, more_s)[0]) is not None:
            self._sweeps.solve(nothing, trans)
            self.columns.append(0)

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process has sent."""
        return self._sweeps.sent

    @property
    def remote_read(self) -> int:
        """Bytes of factors read from I/O servers of others."""
        return self._sweeps.remote_read

    def bytes_read(self) -> int:
        """Bytes read from the factors."""
        return self._sweeps.counters()[0]


def vectors_bytes(n: int, dtype: np.dtype[Any]) -> int:
    """Memory of two columns, and of NumPy's temporaries for one of them."""
    return 4 * n * dtype.itemsize + 2 * SLOT_ALIGN_BYTES


def norm1_estimate(solve: Solve, X: Matrix) -> float:
    """Estimate ‖B‖₁ of an operator B from products with it; infinite if one is not finite.

    Parameters
    ----------
    solve
        ``solve(X, adjoint)`` is X <- B X, or X <- Bᴴ X.
    X
        (n, 2) workspace, column-major.
    """
    n, x = len(X), X[:, :1]
    x[...] = 1 / n
    # LAPACK tries this vector last, against matrices designed to deceive the method. Beside the
    # first vector it needs no pass of its own.
    X[:, 1] = 1 + np.arange(n) / max(n - 1, 1)
    X[1::2, 1] *= -1
    solve(X, False)
    best = float(np.abs(x).sum())
    last = 2 * float(np.abs(X[:, 1]).sum()) / (3 * n) if n > 1 else 0.0
    corner, signs = -1, None
    for _ in range(_MOST_STEPS):
        if not math.isfinite(best):
            return math.inf
        before, signs = signs, _signs(x)
        if before is not None and x.dtype.kind == "f" and np.array_equal(before, signs):
            break
        x[...] = signs
        solve(x, True)
        sizes = np.abs(x[:, 0])
        largest = int(sizes.argmax())
        if corner >= 0 and sizes[largest] == sizes[corner]:
            break
        corner = largest
        x[...] = 0
        x[corner] = 1
        solve(x, False)
        found = float(np.abs(x).sum())
        if not found > best:
            best = max(best, found) if math.isfinite(found) else math.inf
            break
        best = found
    return max(best, last) if math.isfinite(last) else math.inf


def _signs(x: Matrix) -> Matrix:
    """Return the signs of the elements, x / |x|; 1 for zero."""
    if x.dtype.kind == "f":
        return np.where(x < 0, -1, 1).astype(x.dtype)
    sizes = np.abs(x)
    tiny = np.finfo(x.dtype).tiny
    signs: Matrix = np.where(sizes > tiny, x / np.where(sizes > tiny, sizes, 1), 1).astype(x.dtype)
    return signs


def _matrix_of(lu: LUFactor) -> Array:
    """Open the matrix of some factors, unless it was removed or has changed."""
    fix = "give that norm as norm_a=, or estimate in the 1-norm"
    try:
        A = open_matrix(place_of_source(lu.source))
    except (NotFoundError, ConsumedError) as error:
        raise InvalidError(f"the ∞-norm of A needs A: {error}; {fix}") from None
    if ready_factors(place(lu.path), A.place, lu.dtype, LUFactor, if_exists="overwrite") is None:
        raise InvalidError(f"{A.path} has changed since it was factored; {fix}")
    return A


def _norm_inf(passes: MatrixPasses) -> float:
    """Compute the largest row sum of |A| in one pass."""
    A = passes.A
    sums = np.zeros(A.shape[0])
    for (rows, _), tile in passes.tiles():
        # Sum along contiguous runs, a few at a time.
        step = max(_STRIP_BYTES // (tile.shape[A.order == "C"] * tile.itemsize), 1)
        if A.order == "F":
            for j in range(0, tile.shape[1], step):
                sums[rows] += np.abs(tile[:, j : j + step]).sum(axis=1, dtype=np.float64)
        else:
            for i in range(0, tile.shape[0], step):
                strip = slice(rows.start + i, min(rows.start + i + step, rows.stop))
                sums[strip] += np.abs(tile[i : i + step]).sum(axis=1, dtype=np.float64)
    return float(sums.max())
