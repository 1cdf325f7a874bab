"""The largest singular values of a matrix and their vectors, in a few passes over its rows.

Block Krylov iteration on AᴴA (Musco & Musco 2015), in which each pass makes two products:

    Z random, orthonormal
    W = Aᴴ (A Z), and the next Z from W by Lanczos      a pass each, until the triplets converge
    Z <- products of AᴴA with the best Ritz vectors, which follow from W
    A Z = Q R;  R = Û S Ŵᴴ;  U = Q Û,  V = Z Ŵ          the last pass

The last pass also forms W, which yields the residuals of the triplets. Blocks of rows X of A give A
Z block by block, X Z, and Aᴴ (A Z) as the sum of all Xᴴ (X Z). `outcore.linalg._svd.krylov_basis`
implements the Lanczos steps. Q is formed from the reflections of the rows
(`outcore.linalg._rows.tall_q`), and is orthogonal to rounding.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from outcore._core import column_extremes
from outcore._util.counts import is_finite
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.array_files.blocks_done import REFLECTIONS
from outcore.blas.lapack import Kernels, kernels
from outcore.errors import ConvergenceWarning, Interrupted, InvalidError
from outcore.linalg._output.open_results import opens_results
from outcore.linalg._output.result import claimed, working_array, written
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._rows.kept_state import KeptState
from outcore.linalg._rows.report import row_report
from outcore.linalg._rows.source import (
    RowsLike,
    RowSource,
    StoredRows,
    known_operands,
    row_source,
)
from outcore.linalg._rows.stream import allocated, check_finite, streams
from outcore.linalg._rows.tall_q import TallQ
from outcore.linalg._svd.krylov_basis import KrylovBasis, triplet_residuals
from outcore.linalg._svd.left_vectors import DiskU, MemoryU, u_metadata
from outcore.linalg._svd.plan import MOST_PASSES, SvdGeometry, svd_geometry
from outcore.linalg._tiles.columns import norms, squares
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.result_dtype import result_dtype
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

_LEAST_REST = 1e-10
"""Share of ‖A‖² beyond U S Vᴴ below which a difference does not determine it."""

_WHY = "the svd that wrote it was stopped; call it again"


@dataclass
class SvdReport(Report):
    """Figures of a call of `svd`.

    Attributes
    ----------
    passes
        Number of passes over A.
    triplet_residuals
        ‖Aᴴu - s v‖₂ / s[0] of each triplet. The error of a singular value is at most this times
        s[0], and usually about its square.
    error_bound
        Bound of ‖A - U S Vᴴ‖₂: the Frobenius norm, or a smaller bound by random vectors, which
        fails with probability 10⁻¹⁰ (Halko, Martinsson & Tropp 2011, equation 4.3).
    frobenius_error
        ‖A - U S Vᴴ‖ in the Frobenius norm: the root of ‖A‖² - ‖S‖², since the columns of A V are
        orthogonal. If rounding would spoil that difference, it is an estimate by random vectors.
    """

    passes: int = 0
    error_bound: float = 0.0
    frobenius_error: float = 0.0


@opens_results(report=SvdReport)
def svd(
    made: Made,
    A: RowsLike,
    k: int,
    *,
    tol: float | None = 1e-4,
    oversample: int = 10,
    power: int = MOST_PASSES,
    seed: int | np.random.Generator | None = None,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], SvdReport]:
    """Compute the `k` largest singular values of A and their vectors: A ≈ U diag(s) Vh.

    Parameters
    ----------
    A
        (m, n): an array on disk or its path, a NumPy array or memmap, or an object with shape,
        dtype and slicing. It is read by rows, up to ``power + 1`` times. Integers become float64.
    k
        Number of singular values, at most min(m, n).
    tol
        Tolerance: the iteration stops when ‖Aᴴu - s v‖ is at most ``tol * s[0]`` for each of the
        `k` triplets. The error of the singular values is then usually about its square. With `None`
        the call makes `power` passes.
    oversample
        Additional vectors in the iteration, which save passes.
    power
        Largest number of passes before the last one. Each uses all vectors of the earlier passes,
        as far as half of the budget holds them.
    seed
        Seed of the random vectors: an integer, or a generator. The result depends on the budget
        within `tol` only, and in the signs of vectors.
    dtype
        Type of the arithmetic and of the result, float32 to complex128; by default that of `A`.
    memory
        Budget; by default half of the available memory. Vectors in memory count against it.
    out
        Directory of U on disk; by default U is in memory.
    if_exists
        ``"open"`` opens a complete result at `out` if the same call made it, with the same
        operands. ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call with the same arguments and a result at `out`, if `A` is an array on
        disk or of NumPy.
    threads
        Number of BLAS threads; by default unchanged.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    U : numpy.ndarray or Array
        (m, k) with orthonormal columns; on disk if `out` is given.
    s : numpy.ndarray
        (k,) singular values, the largest first.
    Vh : numpy.ndarray
        (k, n) with orthonormal rows. If memory does not hold vectors of n elements, pass the
        transpose.
    report : SvdReport
        With ``passes``, ``triplet_residuals``, ``error_bound`` and ``frobenius_error``.

    Warns
    -----
    ConvergenceWarning
        If `power` passes are too few for `tol`: the report has the residuals of the triplets.

    Raises
    ------
    InvalidError
        If `A` is not a usable matrix, or is an iterator, whose rows can be read only once.
    BudgetError
        If the vectors and blocks of a few rows do not fit into the budget.
    NonFiniteError
        If `A` has a NaN or an infinity, with its index.
    ExistsError
        If `out` exists.
    Interrupted
        After Ctrl-C or SIGTERM. With `out` a later call resumes.

    Notes
    -----
    About 4 m n (k + oversample) operations per pass, four times that for complex types. Matrices
    with decaying singular values take three to six passes, noise takes 20. Singular values below √ε
    of the largest are not resolved, with the machine epsilon ε of the type, because the iteration
    uses AᴴA; the errors in the report show it. Sources: Musco & Musco, *Randomized block Krylov
    methods for stronger and faster approximate singular value decomposition*, NIPS 28 (2015); Wu &
    Simon, *Thick-restart Lanczos method for large symmetric eigenvalue problems*, SIAM J. Matrix
    Anal. Appl. 22 (2000); Halko, Martinsson & Tropp, *Finding structure with randomness*, SIAM
    Review 53 (2011), for the error bound.
    """
    if tol is not None and not (is_finite(tol) and tol > 0):
        raise InvalidError(f"tol must be above 0 and finite, or None, have {tol!r}")
    source = row_source("A", A)
    dtype = result_dtype({"A": source.layout.dtype}, dtype)
    source.deliver(dtype)
    draw = _generator(seed)
    known = known_operands({"A": (source, A)})
    arguments = {
        "k": repr(k), "oversample": repr(oversample), "power": repr(power), "tol": repr(tol),
        "seed": _seed_of(seed, draw), "dtype": dtype.name,
    }  # fmt: skip
    steps = StepsDone(
        out if known else None, "svd", arguments, known, memory, resume=resume, made=made
    )
    g = svd_geometry(
        source.layout, k, dtype, steps.memory_bytes,
        oversample=oversample, power=power, is_stored=out is not None,
    )  # fmt: skip
    operands = [source.array] if isinstance(source, StoredRows) else []
    try:
        with (
            claimed(out, operands, if_exists=if_exists, why=_WHY) as where,
            long_call(
                "singular values", memory_bytes=steps.memory_bytes, work=g.flops, threads=threads,
                progress=progress,
            ) as call,
        ):  # fmt: skip
            if where is None:
                found = _Svd(source, g, call, draw, None, steps, tol).solve()
            else:
                with written(where, u_metadata(g), _WHY, steps) as target:
                    found = _Svd(source, g, call, draw, target, steps, tol).solve()
    except KeyboardInterrupt as error:
        raise Interrupted(steps.stopped("svd", "svd", error)) from None
    _warn_unless_converged(found[-1], tol)
    return found


def _warn_unless_converged(report: SvdReport, tol: float | None) -> None:
    if tol is None:
        return
    late = [number for number, each in enumerate(report.triplet_residuals) if not each <= tol]
    if late:
        warnings.warn(
            f"{len(late)} of {len(report.triplet_residuals)} singular triplets, from number "
            f"{late[0]} on, have not converged to tol={tol:g} in {report.passes} passes: their "
            f"residuals are up to {max(report.triplet_residuals):.1e} of s[0]; raise power= or "
            "oversample=, or pass a larger tol=",
            ConvergenceWarning,
            stacklevel=4,
        )


def _generator(seed: Any) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidError(
            f"seed must be an integer of at least 0, a numpy.random.Generator or None, have "
            f"{seed!r}"
        ) from None


def _seed_of(seed: object, draw: np.random.Generator) -> object:
    """Return a value that distinguishes seeds; for a generator, its state."""
    if isinstance(seed, np.random.Generator):
        return repr(draw.bit_generator.state)
    return None if seed is None else repr(seed)


class _Svd:
    """The passes over A."""

    def __init__(
        self,
        source: RowSource,
        g: SvdGeometry,
        call: LongCall,
        draw: np.random.Generator,
        target: Array | None,
        steps: StepsDone,
        tol: float | None,
    ) -> None:
        self._source, self._g, self._call = source, g, call
        self._target, self._steps, self._tol = target, steps, tol
        self._kernels, self._read = kernels(g.q.dtype), 0
        self._basis = KrylovBasis(g.n, g.q.n, g.blocks, g.q.dtype, call)
        # Vectors for the estimate of the error.
        self._probes = allocated(call, (g.n, g.q.k), g.q.dtype)
        for vectors in (self._basis.first, self._probes):
            for j in range(vectors.shape[1]):
                vectors[:, j] = draw.standard_normal(g.n)
                if g.q.dtype.kind == "c":
                    vectors[:, j] += 1j * draw.standard_normal(g.n)
                    vectors[:, j] *= 0.5**0.5
        self._W = allocated(call, (g.n, g.q.n), g.q.dtype)
        self._exponents = allocated(call, (2, 1), np.dtype(np.int64))
        self._squares = allocated(call, (1, 1), np.dtype(np.float64))
        self._exponents[...] = -_most_exponent(g.q.dtype)
        self._squares[...] = 0

    @property
    def _exponent(self) -> int:
        """Power of 2 near the elements of A Z."""
        return int(self._exponents[0, 0])

    def solve(self) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], SvdReport]:
        """Make all passes, and return the result."""
        g, k, call = self._g, self._g.k, self._call
        q = TallQ(g.q, call)
        matrices = [
            *self._basis.state, self._probes, self._exponents, self._squares, self._W, *q.state
        ]  # fmt: skip
        # The sum of products of row-major blocks is conjugated.
        sizes = [g.q.height, g.blocks, g.rows.order == "C"]
        self._kept = KeptState(self._target, self._steps, sizes, matrices, call)
        # A step is a block of rows, in a pass or of U.
        begun = self._kept.load(g.steps, REFLECTIONS)
        done = [min(max(begun - first, 0), g.q.blocks) for first in range(0, g.steps, g.q.blocks)]
        target, anew = self._target, begun == 0
        if target is not None:
            beside = working_array(target, REFLECTIONS, g.q.metadata(), anew=anew)
        if anew:
            self._basis.begin(self._W)
        self._iterate(done[: g.power])
        u: MemoryU | DiskU = MemoryU(g, call) if target is None else DiskU(target, beside, g, call)
        projected, built = done[g.power :]
        q.go_on(projected - built)
        self._project(q, u, projected)
        # Below the diagonal are reflections that are still needed.
        R = np.triu(q.factor.R)
        left, s, right = scipy.linalg.svd(R)
        left, right = np.asfortranarray(left[:, :k]), np.asfortranarray(right[:k])
        probed = self._probed_squares(q, R, right)
        if not built:
            self._finish_product()
            # V will replace W, which a call that resumes needs.
            self._basis.second[...] = self._W
        V, residuals = self._right_vectors(right, s[:k])
        call.meter.skip(built * g.q.height * g.q.row_work)
        first = (g.power + 1) * g.q.blocks
        U = u.build(q, left, built, lambda blocks, durable: self._passed(first + blocks, durable))
        made = dataclasses.replace(g, power=self._basis.passes)
        moved, planned = u.bytes_moved(), made.bytes_moved()
        s = np.ldexp(s[:k], self._exponent)
        error, bound = self._errors(s, probed)
        report = row_report(
            SvdReport, call, "svd", (g.q.m, g.n), g.q.dtype, method=made.method, flops=made.flops,
            moved=(self._read + moved[0], moved[1]), planned=planned,
            is_stored=g.rows.layout.is_stored, arrays=("A", "reflections", "U"),
            passes=made.passes, triplet_residuals=[float(each) for each in residuals],
            error_bound=bound, frobenius_error=error, notes=self._steps.notes(g.steps),
        )  # fmt: skip
        return U, s, V.T, report

    def _iterate(self, done: list[int]) -> None:
        """Extend the basis by passes over A until the triplets converge.

        `done` has, for each pass, the number of blocks of rows that a stopped call did. If that
        call had reached the last pass, all of them count as done, including skipped passes.
        """
        g, call = self._g, self._call
        if done[-1] == g.q.blocks:
            call.meter.skip(g.power * g.iteration_flops)
            return
        for number in range(self._basis.passes):
            assert done[number] == g.q.blocks, "a pass that the basis has taken is done"
            call.meter.skip(g.iteration_flops)
        for number in range(self._basis.passes, g.power):
            self._multiply(number, done[number])
            self._basis.add(self._W)
            is_last = number + 1 == g.power
            if self._tol is not None and (self._basis.residuals()[: g.k] <= self._tol).all():
                call.meter.skip((g.power - 1 - number) * g.iteration_flops)
                is_last = True
            if is_last:
                self._basis.keep_best(self._W)
                return
            self._basis.extend(self._W)

    def _multiply(self, number: int, done: int) -> None:
        """Compute W <- Aᴴ A Z, of which `done` blocks of rows are done."""
        g, call = self._g, self._call
        Z, W = self._basis.newest, self._W
        product = allocated(call, (g.q.height, g.q.n), g.q.dtype)
        if not done:
            W[...] = 0
        call.meter.skip(done / g.q.blocks * g.iteration_flops)
        for block, rows in self._rows(done):
            if number == 0:
                self._add_squares(rows)
            Y = product[: len(rows)]
            times(self._kernels, rows, Z, Y)
            self._scale(Y, W)
            self._add_product(rows, Y)
            call.meter.advance(len(rows) / g.q.m * g.iteration_flops)
            if block < g.q.blocks:
                self._passed(number * g.q.blocks + block)
        self._finish_product()

    def _add_product(self, rows: Matrix, Y: Matrix) -> None:
        """Add Xᴴ Y to W for rows X; with row-major rows the conjugate, until `_finish_product`."""
        if self._g.rows.order == "C":
            # The BLAS gets the transpose of a block, and can transpose but not conjugate it.
            np.conjugate(Y, out=Y)
            self._kernels.gemm(rows.T, Y, self._W)
        else:
            self._kernels.gemm(rows, Y, self._W, trans_a="C")

    def _finish_product(self) -> None:
        W = self._W
        if self._g.rows.order == "C":
            np.conjugate(W, out=W)
        if not np.isfinite(column_extremes(W, False)[0]):
            raise InvalidError(f"numbers as large as those of A overflow {W.dtype}; scale it")

    def _add_squares(self, rows: Matrix) -> None:
        """Add to ‖A‖² in the Frobenius norm, scaled by a suitable power of 2."""
        columns = rows if rows.strides[0] == rows.itemsize else rows.T
        found, before = exponent(columns), int(self._exponents[1, 0])
        if found > before:
            self._squares *= math.ldexp(1.0, max(2 * (before - found), -1000))
            self._exponents[1, 0] = before = found
        self._squares += squares(columns, math.ldexp(1.0, -before)).sum()

    def _scale(self, Y: Matrix, W: Matrix) -> None:
        """Scale a part of A Z by a power of 2 so that its products with A are about 1.

        If it is larger than earlier parts, their products are scaled, too.
        """
        found = exponent(Y)
        if found > self._exponent:
            shift(W, 2 * (self._exponent - found))
            self._basis.rescale(2 * (self._exponent - found))
            self._exponents[0, 0] = found
        shift(Y, -2 * self._exponent)

    def _project(self, q: TallQ, u: MemoryU | DiskU, done: int) -> None:
        """Process the rows of A Z, and of A times the probe vectors, from block `done`."""
        g = self._g
        others = allocated(self._call, (g.q.height, g.q.k), g.q.dtype)
        copies = allocated(self._call, (g.q.height, g.q.n), g.q.dtype)
        products = flop_weight(g.q.dtype) * 2.0 * g.n * (2 * g.q.n + g.q.k)
        if not done:
            self._W[...] = 0
        self._call.meter.skip(done * g.q.height * (products + g.q.row_work))
        for block, rows in self._rows(done):
            first = (block - 1) * g.q.height
            Y, probes = u.rows(first, len(rows)), others[: len(rows)]
            times(self._kernels, rows, self._basis.first, Y)
            times(self._kernels, rows, self._probes, probes)
            copy = copies[: len(rows)]
            copy[...] = Y
            # Reflections of earlier rows have this scale, so it stays.
            shift(copy, -2 * self._exponent)
            self._add_product(rows, copy)
            for part in (Y, probes):
                shift(part, -self._exponent)
            q.add(Y, probes)
            u.keep(first)
            self._call.meter.advance(len(rows) * products)
            self._passed(g.power * g.q.blocks + block, u.make_durable)

    def _passed(self, step: int, make_durable: Callable[[], object] = lambda: None) -> None:
        self._kept.passed(step, self._g.steps, make_durable)

    def _rows(self, done: int) -> Iterator[tuple[int, Matrix]]:
        """Yield the rows of A from a block: (number of blocks including this one, rows)."""
        trace = self._call.trace
        first = min(done * self._g.q.height, self._g.q.m)
        with streams([self._source], [self._g.rows], self._call, first=first) as (stream,):
            for block, (first, rows, _) in enumerate(stream, done + 1):
                start_ns = trace.now_ns()
                if self._read == 0 or not self._g.rows.layout.is_stored:
                    check_finite(self._source.name, first, rows)
                yield block, rows
                trace.record("compute", start_ns)
        self._read += self._source.bytes_read()

    def _right_vectors(
        self, right: Matrix, s: npt.NDArray[Any]
    ) -> tuple[Matrix, npt.NDArray[np.float64]]:
        """Form V in the memory of W, and the residuals of the triplets, from a copy of W."""
        V, product = self._W[:, : self._g.k], self._kernels.gemm
        X = np.asfortranarray(right.conj().T)
        product(self._basis.second, X, V, beta=0)
        product(self._basis.first, np.asfortranarray(X * s**2), V, alpha=-1)
        residuals = triplet_residuals(norms(V), s)
        product(self._basis.first, X, V, beta=0)
        np.conjugate(V, out=V)
        return V, residuals

    def _probed_squares(self, q: TallQ, R: Matrix, right: Matrix) -> npt.NDArray[np.float64]:
        """Return the squared norms of E w, with E = A - U S Vᴴ, for the probe vectors w.

        A w is Q c plus a rest; U S Vᴴ w is Q R g, with g = Ŵ Ŵᴴ Zᴴ w for the k columns of Ŵ.
        """
        g = self._basis.first.conj().T @ self._probes
        g = right.conj().T @ (right @ g)
        inside = np.asfortranarray(q.factor.c - R @ g)
        found: npt.NDArray[np.float64] = squares(inside) + q.factor.rest**2
        return found

    def _errors(self, s: npt.NDArray[Any], probed: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return ‖A - U S Vᴴ‖ in the Frobenius norm, and a bound of its 2-norm."""
        bound = math.ldexp(10 * math.sqrt(2 / np.pi * probed.max()), self._exponent)
        norm = math.ldexp(math.sqrt(self._squares[0, 0]), int(self._exponents[1, 0]))
        rest = 1 - float(((s.astype(np.float64) / norm) ** 2).sum()) if norm else 0.0
        if rest > max(_LEAST_REST, 100 * np.finfo(s.dtype).eps):
            error = norm * math.sqrt(rest)
            return error, min(bound, error)
        return math.ldexp(math.sqrt(probed.mean()), self._exponent), bound


def exponent(Y: Matrix) -> int:
    """Return a coarse power of 2 near the largest element; 0 for most matrices."""
    largest, most = column_extremes(Y, False)[1], _most_exponent(Y.dtype)
    if not np.isfinite(largest):
        return 0
    step = most // 5
    if not largest:
        return -most
    return min(max(round(math.frexp(largest)[1] / step) * step, -most), most)


def _most_exponent(dtype: np.dtype[Any]) -> int:
    """Return the largest exponent for scaling, which may be applied twice."""
    return int(np.finfo(dtype).maxexp) // 8 * 5


def shift(X: Matrix, power: int) -> None:
    """Compute X <- 2^power X, column-major."""
    if power:
        parts = X.T.view(X.real.dtype)
        np.ldexp(parts, power, out=parts)


def times(kernels: Kernels, rows: Matrix, Z: Matrix, Y: Matrix) -> None:
    """Compute Y <- X Z for rows X of either order."""
    if rows.strides[0] == rows.itemsize:
        kernels.gemm(rows, Z, Y, beta=0)
    else:
        kernels.gemm(rows.T, Z, Y, beta=0, trans_a="T")
