"""The largest singular values of a matrix and their vectors, in a few passes over its rows.

Randomized subspace iteration (Halko, Martinsson & Tropp 2011, section 4.5), on AᴴA, so that each
pass does the work of two: with random n x l Z,

    Z <- orthonormal basis of Aᴴ (A Z)                     a pass each, `power` times
    A Z = Q R;  R = Û S Ŵᴴ;  U = Q Û,  V = Z Ŵ             the last pass

Blocks of rows X of A give A Z block by block, X Z, and Aᴴ (A Z) as the sum of all Xᴴ (X Z). Q comes
from the reflections of the rows (`outcore.linalg.rows.tall_q`), and is orthogonal to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from outcore._core import column_extremes
from outcore.array import Array
from outcore.blocks_done import REFLECTIONS
from outcore.errors import Interrupted, InvalidError
from outcore.lapack import Kernels, kernels
from outcore.linalg.cost import flop_weight
from outcore.linalg.kept_state import KeptState
from outcore.linalg.matrix import Matrix
from outcore.linalg.result import claimed, working_array, written
from outcore.linalg.result_dtype import result_dtype
from outcore.linalg.rows.report import figures_of
from outcore.linalg.rows.source import (
    RowsLike,
    RowSource,
    StoredRows,
    known_operands,
    row_source,
)
from outcore.linalg.rows.stream import allocated, check_finite, streams
from outcore.linalg.rows.svd_plan import SvdGeometry, svd_geometry
from outcore.linalg.rows.svd_u import DiskU, MemoryU, u_metadata
from outcore.linalg.rows.tall_q import TallQ
from outcore.linalg.rows.tsqr import column_squares
from outcore.linalg.rows.tsqr_plan import WORK_COLUMNS
from outcore.linalg.steps_done import StepsDone
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.volumes import PathLike

_WHY = "the svd that wrote it was stopped; call it again"


@dataclass
class SvdReport(Report):
    """Figures of a call of `svd`.

    Attributes
    ----------
    passes
        How often A was read.
    error_bound
        Bound of ‖A - U S Vᴴ‖₂ that fails with probability 10⁻¹⁰ (Halko, Martinsson & Tropp 2011,
        equation 4.3); often several times too large.
    frobenius_error
        Estimate of ‖A - U S Vᴴ‖ in the Frobenius norm.
    """

    passes: int = 0
    error_bound: float = 0.0
    frobenius_error: float = 0.0


def svd(
    A: RowsLike,
    k: int,
    *,
    oversample: int = 10,
    power: int = 2,
    seed: int | np.random.Generator | None = None,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], SvdReport]:
    """Compute the `k` largest singular values of A and their vectors: A ≈ U diag(s) Vh.

    Parameters
    ----------
    A
        (m, n): an array on disk or its path, a NumPy array or memmap, or anything with shape,
        dtype and slicing. It is read by rows, ``power + 1`` times. Integers become float64.
    k
        Number of singular values, at most min(m, n).
    oversample
        Vectors that are iterated beside the `k`, for accuracy.
    power
        Passes before the last one. More help where singular values decay slowly: the error of the
        smallest falls with the (4 power)-th power of s[k + oversample] / s[k - 1].
    seed
        For the random vectors: an integer, or a generator. The result does not depend on the
        budget but for rounding.
    dtype
        Type of the arithmetic and of the result, float32 to complex128; by default that of `A`.
    memory
        Budget; by default half of the available memory. Vectors in memory count against it.
    out
        Directory of U, to have it on disk.
    overwrite
        Replace an array that is at `out`.
    resume
        Go on with what a call with the same arguments left at `out` that was stopped, if `A` is an
        array on disk or of NumPy's.
    threads
        Threads of the BLAS; by default as it is set.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    U : numpy.ndarray or Array
        (m, k) with orthonormal columns; on disk if `out` is given.
    s : numpy.ndarray
        (k,) singular values, the largest first.
    Vh : numpy.ndarray
        (k, n) with orthonormal rows. For a matrix with more columns than memory holds vectors of,
        pass the transpose.
    report : SvdReport
        With ``passes``, ``error_bound`` and ``frobenius_error``.

    Raises
    ------
    InvalidError
        If `A` is no matrix that can be used, or an iterator: its rows pass only once.
    BudgetError
        If the vectors and blocks of a few rows do not fit into the budget.
    NonFiniteError
        If there is a NaN or an infinity, with its index.
    ExistsError
        If there is something at `out`.
    Interrupted
        After Ctrl-C or SIGTERM. With `out` a later call goes on.

    Notes
    -----
    About 4 m n (k + oversample) operations a pass, four times that for complex types. Singular
    values below √ε of the largest are not resolved, with the machine epsilon ε of the type, since
    squares are iterated with; the errors in the report show it. Sources: Halko, Martinsson & Tropp,
    *Finding structure with randomness*, SIAM Review 53 (2011); Halko, Martinsson, Shkolnisky &
    Tygert, *An algorithm for the principal component analysis of large data sets*, SIAM J. Sci.
    Comput. 33 (2011), for passes that do the work of two.
    """
    source = row_source("A", A)
    dtype = result_dtype({"A": source.layout.dtype}, dtype)
    source.deliver(dtype)
    draw = _generator(seed)
    known = known_operands({"A": (source, A)})
    arguments = {
        "k": repr(k), "oversample": repr(oversample), "power": repr(power),
        "seed": _seed_of(seed, draw), "dtype": dtype.name,
    }  # fmt: skip
    steps = StepsDone(out if known else None, "svd", arguments, known, memory, resume=resume)
    g = svd_geometry(
        source.layout, k, dtype, steps.memory_bytes,
        oversample=oversample, power=power, is_stored=out is not None,
    )  # fmt: skip
    operands = [source.array] if isinstance(source, StoredRows) else []
    try:
        with (
            claimed(out, operands, overwrite=overwrite, why=_WHY) as where,
            long_call(
                "singular values", memory_bytes=steps.memory_bytes, work=g.flops, threads=threads,
                progress=progress,
            ) as call,
        ):  # fmt: skip
            if where is None:
                return _Svd(source, g, call, draw, None, steps).solve()
            with written(where, u_metadata(g), _WHY, steps) as target:
                return _Svd(source, g, call, draw, target, steps).solve()
    except KeyboardInterrupt:
        raise Interrupted(steps.stopped("svd", "svd")) from None


def _generator(seed: Any) -> np.random.Generator:
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise InvalidError(
            f"seed must be an integer of at least 0, a numpy.random.Generator or None, have "
            f"{seed!r}"
        ) from None


def _seed_of(seed: object, draw: np.random.Generator) -> object:
    """Tell seeds apart: of a generator its state counts."""
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
    ) -> None:
        self._source, self._g, self._call = source, g, call
        self._target, self._steps = target, steps
        self._kernels, self._read = kernels(g.q.dtype), 0
        # The vectors that are iterated, and those that the error is estimated with.
        self._Z = allocated(call, (g.n, g.q.n + g.q.k), g.q.dtype)
        for j in range(self._Z.shape[1]):
            self._Z[:, j] = draw.standard_normal(g.n)
            if g.q.dtype.kind == "c":
                self._Z[:, j] += 1j * draw.standard_normal(g.n)
                self._Z[:, j] *= 0.5**0.5
        self._W = allocated(call, (g.n, g.q.n), g.q.dtype)
        self._exponents = allocated(call, (1, 1), np.dtype(np.int64))
        self._exponent = 0

    @property
    def _exponent(self) -> int:
        """Elements of A Z are about 2 to this power."""
        return int(self._exponents[0, 0])

    @_exponent.setter
    def _exponent(self, power: int) -> None:
        self._exponents[0, 0] = power

    def solve(self) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], SvdReport]:
        """Do all passes."""
        g, k, call = self._g, self._g.k, self._call
        q = TallQ(g.q, call)
        matrices = [self._Z, self._exponents, self._W, *q.state]
        self._kept = KeptState(self._target, self._steps, [g.q.height], matrices, call)
        # A step is a block of rows, in a pass or of U.
        begun = self._kept.load(g.steps, REFLECTIONS)
        done = [min(max(begun - first, 0), g.q.blocks) for first in range(0, g.steps, g.q.blocks)]
        target, anew = self._target, begun == 0
        if target is not None:
            beside = working_array(target, REFLECTIONS, g.q.metadata(), anew=anew)
        for number in range(g.power):
            if done[number] < g.q.blocks:
                self._iterate(number, done[number])
            else:
                call.meter.skip(g.iteration_flops)
        u: MemoryU | DiskU = MemoryU(g, call) if target is None else DiskU(target, beside, g, call)
        projected, built = done[g.power :]
        q.go_on(projected - built)
        self._project(q, u, projected)
        # Below the diagonal are reflections that are still needed.
        R = np.triu(q.factor.R)
        left, s, right = scipy.linalg.svd(R)
        left, right = np.asfortranarray(left[:, :k]), np.asfortranarray(right[:k])
        squares = self._error_squares(q, R, right)
        V = self._W[:, :k]
        self._kernels.gemm(self._Z[:, : g.q.n], right, V, beta=0, trans_b="C")
        np.conjugate(V, out=V)
        call.meter.skip(built * g.q.height * g.q.row_work)
        first = g.passes * g.q.blocks
        U = u.build(q, left, built, lambda blocks, durable: self._passed(first + blocks, durable))
        moved, planned = u.bytes_moved(), g.bytes_moved()
        report = SvdReport(
            passes=g.passes,
            error_bound=math.ldexp(10 * math.sqrt(2 / np.pi * squares.max()), self._exponent),
            frobenius_error=math.ldexp(math.sqrt(squares.mean()), self._exponent),
            notes=self._steps.notes(g.steps),
            **figures_of(
                call, "svd", (g.q.m, g.n), g.q.dtype, method=g.method, flops=g.flops,
                moved=(self._read + moved[0], moved[1]), planned=planned,
                is_stored=g.rows.layout.is_stored, arrays=("A", "reflections", "U"),
            ),
        )  # fmt: skip
        return U, np.ldexp(s[:k], self._exponent), V.T, report

    def _iterate(self, number: int, done: int) -> None:
        """Z <- orthonormal basis of Aᴴ A Z, of which so many blocks of rows are done."""
        g, call = self._g, self._call
        Z, W = self._Z[:, : g.q.n], self._W
        product = allocated(call, (g.q.height, g.q.n), g.q.dtype)
        if not done:
            W[...] = 0
            self._exponent = -_most_exponent(W.dtype)
        by_row = g.rows.order == "C"
        call.meter.skip(done / g.q.blocks * g.iteration_flops)
        for block, rows in self._rows(done):
            Y = product[: len(rows)]
            times(self._kernels, rows, Z, Y)
            self._scale(Y, W)
            if by_row:
                # The BLAS gets the transpose of a block, and can transpose but not conjugate it.
                np.conjugate(Y, out=Y)
                self._kernels.gemm(rows.T, Y, W)
            else:
                self._kernels.gemm(rows, Y, W, trans_a="C")
            call.meter.advance(len(rows) / g.q.m * g.iteration_flops)
            if block < g.q.blocks:
                self._passed(number * g.q.blocks + block)
        if by_row:
            np.conjugate(W, out=W)
        if not np.isfinite(column_extremes(W, False)[0]):
            raise InvalidError(f"numbers as large as those of A overflow {W.dtype}; scale it")
        tau = allocated(call, (g.q.n, 1), g.q.dtype)[:, 0]
        work = allocated(call, (WORK_COLUMNS * g.q.n, 1), g.q.dtype)[:, 0]
        self._kernels.geqrf(W, tau, work)
        Z[...] = 0
        np.fill_diagonal(Z, 1)
        self._kernels.unmqr(W, tau, Z, work)

    def _scale(self, Y: Matrix, W: Matrix) -> None:
        """Scale a part of A Z by such a power of 2 that its products with A are about 1.

        If they were larger than those so far, these are scaled, too.
        """
        found = exponent(Y)
        if found > self._exponent:
            shift(W, 2 * (self._exponent - found))
            self._exponent = found
        shift(Y, -2 * self._exponent)

    def _project(self, q: TallQ, u: MemoryU | DiskU, done: int) -> None:
        """Go through the rows of A Z, and of A times the other vectors, from a block on."""
        g = self._g
        others = allocated(self._call, (g.q.height, g.q.k), g.q.dtype)
        products = flop_weight(g.q.dtype) * 2.0 * g.n * (g.q.n + g.q.k)
        self._call.meter.skip(done * g.q.height * (products + g.q.row_work))
        for block, rows in self._rows(done):
            first = (block - 1) * g.q.height
            Y, probes = u.rows(first, len(rows)), others[: len(rows)]
            times(self._kernels, rows, self._Z[:, : g.q.n], Y)
            times(self._kernels, rows, self._Z[:, g.q.n :], probes)
            for part in (Y, probes):
                shift(part, -self._exponent)
            q.add(Y, probes)
            u.keep(first)
            self._call.meter.advance(len(rows) * products)
            self._passed(g.power * g.q.blocks + block, u.make_durable)

    def _passed(self, step: int, make_durable: Callable[[], object] = lambda: None) -> None:
        self._kept.passed(step, self._g.steps, make_durable)

    def _rows(self, done: int) -> Iterator[tuple[int, Matrix]]:
        """Go through the rows of A once more, from a block on: (blocks then, rows)."""
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

    def _error_squares(self, q: TallQ, R: Matrix, right: Matrix) -> npt.NDArray[np.float64]:
        """Square the norms of E w, with E = A - U S Vᴴ, for the vectors w that were set aside.

        A w is Q c and a rest; U S Vᴴ w is Q R g, with g = Ŵ Ŵᴴ Zᴴ w for the k columns of Ŵ.
        """
        n = self._g.q.n
        g = self._Z[:, :n].conj().T @ self._Z[:, n:]
        g = right.conj().T @ (right @ g)
        inside = np.asfortranarray(q.factor.c - R @ g)
        found: npt.NDArray[np.float64] = column_squares(inside) + q.factor.rest**2
        return found


def exponent(Y: Matrix) -> int:
    """Find the power of 2 that the largest element is about, in few steps; 0 for most matrices."""
    largest, most = column_extremes(Y, False)[1], _most_exponent(Y.dtype)
    if not np.isfinite(largest):
        return 0
    step = most // 5
    return max(round(math.frexp(largest)[1] / step) * step, -most) if largest else -most


def _most_exponent(dtype: np.dtype[Any]) -> int:
    """Exponents that numbers may be scaled by twice."""
    return int(np.finfo(dtype).maxexp) // 8 * 5


def shift(X: Matrix, power: int) -> None:
    """X <- 2^power X, column-major."""
    if power:
        parts = X.T.view(X.real.dtype)
        np.ldexp(parts, power, out=parts)


def times(kernels: Kernels, rows: Matrix, Z: Matrix, Y: Matrix) -> None:
    """Y <- X Z for rows X of either order."""
    if rows.strides[0] == rows.itemsize:
        kernels.gemm(rows, Z, Y, beta=0)
    else:
        kernels.gemm(rows.T, Z, Y, beta=0, trans_a="T")
