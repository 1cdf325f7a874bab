"""The passes over A of a truncated SVD, by one process or by several.

Several processes each multiply their own rows. They add up the products W = Aᴴ A Z in a tree of
fixed order (`outcore.linalg._rows.merge`). The first process has the basis of the Krylov space: it
gives the next Z to all of them, and at the end V and the small factor Û. Each process forms its own
rows of U.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._core import column_extremes
from outcore._util.packages import imported
from outcore.array.array import Array
from outcore.array_files.blocks_done import REFLECTIONS
from outcore.blas.lapack import Kernels, kernels
from outcore.errors import InvalidError
from outcore.linalg._output.result import working_array
from outcore.linalg._output.steps_done import StepsDone
from outcore.linalg._rows.kept_state import KeptState
from outcore.linalg._rows.merge import Merging, seconds_of
from outcore.linalg._rows.report import row_report
from outcore.linalg._rows.shares import Shares
from outcore.linalg._rows.source import RowSource
from outcore.linalg._rows.stream import allocated, check_finite, streams
from outcore.linalg._rows.tall_q import TallQ
from outcore.linalg._rows.tree_q import TreeQ
from outcore.linalg._svd.krylov_basis import KrylovBasis, triplet_residuals
from outcore.linalg._svd.left_vectors import DiskU, MemoryU
from outcore.linalg._svd.plan import SvdGeometry
from outcore.linalg._svd.scaling import exponent, most_exponent, shift
from outcore.linalg._tiles.columns import norms, squares
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.matrix import Matrix
from outcore.processes.reports import process_figures
from outcore.processes.team import Team
from outcore.report.longcall import LongCall
from outcore.report.report import Report

T = TypeVar("T")

_LEAST_REST = 1e-10
"""Share of ‖A‖² beyond U S Vᴴ below which a difference does not determine it."""


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


@dataclass(frozen=True)
class _Begun:
    """The point where a process begins or resumes.

    Attributes
    ----------
    number
        Number of the pass; that of the last one is `power`.
    done
        Its blocks of rows that are done.
    is_whole
        Whether the products of the last pass are added up.
    built
        Blocks of U that exist.
    """

    number: int
    done: int = 0
    is_whole: bool = False
    built: int = 0


class Iteration:
    """The passes of one process over its rows of A.

    Parameters
    ----------
    source
        These rows.
    g, shares
        Blocks, and the rows of each process.
    call, team
        The call, and its processes.
    draw
        Generator of the random vectors.
    target
        U on disk; `None` for U in memory.
    steps
        The record of durable steps.
    tol
        Tolerance of the triplets.
    """

    def __init__(
        self,
        source: RowSource,
        g: SvdGeometry,
        shares: Shares,
        call: LongCall,
        team: Team,
        draw: np.random.Generator,
        target: Array | None,
        steps: StepsDone,
        tol: float | None,
    ) -> None:
        self._source, self._g, self._call = source, g, call
        self._shares, self._team = shares, team
        self._target, self._steps, self._tol = target, steps, tol
        self._kernels, self._read, self._moved = kernels(g.q.dtype), 0, (0, 0)
        # Processes other than the first have a block of the basis only: Z.
        blocks = 0 if team.rank else g.blocks
        self._basis = KrylovBasis(g.n, g.q.n, blocks, g.q.dtype, call)
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
        self._q = TallQ(g.q, call)
        self._reset()
        self._more_s = seconds_of(shares, [g.rows.layout], _longest_flops(g, shares))
        self._merging = Merging(team, shares, g.message_words, g.q.dtype, call, self._more_s)

    @property
    def _exponent(self) -> int:
        """Power of 2 near the elements of A Z."""
        return int(self._exponents[0, 0])

    def _reset(self) -> None:
        """Forget all rows."""
        self._exponents[...] = -most_exponent(self._g.q.dtype)
        self._squares[...] = 0
        for matrix in self._q.state:
            matrix[...] = 0
        np.fill_diagonal(self._q.C, 1)

    def solve(self) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any]]:
        """Make all passes, and return U, s and Vh."""
        g, k, call, q, team = self._g, self._g.k, self._call, self._q, self._team
        matrices = [self._exponents, self._squares, self._W, *q.state]
        if team.rank == 0:
            matrices = [*self._basis.state, self._probes, *matrices]
        # The sum of products of row-major blocks is conjugated.
        sizes = [g.q.height, g.blocks, g.rows.order == "C"]
        self._kept = KeptState(self._target, self._steps, sizes, matrices, call)
        # A step is a block of rows, in a pass or of U.
        begun = self._kept.load(g.steps, self._steps.own(REFLECTIONS))
        if begun == 0 and team.rank == 0:
            self._basis.begin(self._W)
        at = self._agreed(begun)
        beside = self._target
        if self._target is not None and g.q.blocks:
            name, metadata = self._steps.own(REFLECTIONS), g.q.metadata()
            beside = working_array(self._target, name, metadata, anew=begun == 0)
        self._iterate(at)
        u = self._left(beside)
        projected = at.done if at.number == g.power else 0
        q.go_on(projected - at.built)
        self._project(u, projected)
        if not at.is_whole:
            self._join_products()
            if team.rank == 0:
                # V will replace W, which a call that resumes needs.
                self._basis.second[...] = self._W
        left, s, right, probed = self._small_factors(is_needed=at.built == 0)
        V, found = self._W[:, :k], None
        if team.rank == 0:
            residuals = self._right_vectors(V, right, s)
            s = np.ldexp(s, self._exponent)
            found = s, self._basis.passes, residuals, *self._errors(s, probed)
        self._merging.spread_vectors(V)
        self._found = self._of_first(found)
        call.meter.skip(at.built * g.q.height * g.q.row_work)
        first = (g.power + 1) * g.q.blocks

        def passed(blocks: int, make_durable: Callable[[], None]) -> None:
            team.check()
            self._passed(first + blocks, make_durable)

        U = u.build(q, left, at.built, passed)
        self._moved = u.bytes_moved()
        return U, self._found[0], V.T

    def report(self, notes: list[str]) -> SvdReport:
        """Return the report of this process."""
        g, team = self._g, self._team
        _, passes, residuals, error, bound = self._found
        made = dataclasses.replace(g, power=passes)
        report = row_report(
            SvdReport, self._call, "svd", (g.m, g.n), g.q.dtype, method=made.method,
            flops=made.flops if g.q.m else 0.0,
            moved=(self._read + self._moved[0], self._moved[1]), planned=made.bytes_moved(),
            is_stored=g.rows.layout.is_stored, arrays=("A", "reflections", "U"),
            passes=made.passes, triplet_residuals=[float(each) for each in residuals],
            error_bound=bound, frobenius_error=error, notes=notes,
        )  # fmt: skip
        if team.size > 1:
            report.processes = [process_figures(report, team.sent, made.sent(self._shares))]
        return report

    def _agreed(self, begun: int) -> _Begun:
        """Return where this process begins, if its state fits that of the first process.

        The basis of the first process has the sums of all earlier passes. So each process resumes
        in the pass of the first one. A process that a stopped call left in another pass repeats its
        part of this one, if it has any.
        """
        g, team = self._g, self._team
        # The pass, or power + 1 while U is formed; -1 for a new call, and `None` without rows.
        number = max(begun - 1, 0) // max(g.q.blocks, 1)
        mine = (number if begun else -1) if g.q.blocks else None
        reached = team.exchange(mine)
        first = reached[0]
        assert first is not None, "the first process has rows"
        is_whole = first > g.power
        fit = {g.power, first} if is_whole else {first}
        others = [each for each in reached if each is not None and each >= 0 and each not in fit]
        if others:
            if mine in others:
                self._steps.forget()
                self._reset()
                begun = 0
            # No process continues before their records are gone.
            team.exchange(None)
        done, built = begun - number * g.q.blocks if begun else 0, 0
        if begun and number > g.power:
            # If a process has to repeat a part of the last pass, all form U from its start.
            is_built = all(each in (None, number) for each in reached)
            done, built = g.q.blocks, done if is_built else 0
        return _Begun(min(max(first, 0), g.power), done, is_whole, built)

    def _left(self, beside: Array | None) -> MemoryU | DiskU:
        g, call = self._g, self._call
        if self._target is None or beside is None:
            return MemoryU(g, call, self._team, self._shares, self._more_s)
        return DiskU(self._target, beside, g, call, self._shares.own.start)

    def _iterate(self, at: _Begun) -> None:
        """Extend the basis by passes over A until the triplets converge."""
        g, meter = self._g, self._call.meter
        number, done = at.number, at.done
        meter.skip(number * g.iteration_flops)
        while number < g.power:
            self._multiply(number, done)
            following = self._of_first(self._extended(number) if self._team.rank == 0 else None)
            meter.skip((following - number - 1) * g.iteration_flops)
            number, done = following, 0

    def _extended(self, number: int) -> int:
        """Extend the basis by W; return the number of the next pass."""
        g, basis = self._g, self._basis
        basis.add(self._W)
        is_last = number + 1 == g.power
        if self._tol is not None and (basis.residuals()[: g.k] <= self._tol).all():
            is_last = True
        if is_last:
            basis.keep_best(self._W)
            return g.power
        basis.extend(self._W)
        return number + 1

    def _multiply(self, number: int, done: int) -> None:
        """Compute W <- Aᴴ A Z, of which `done` blocks of rows are done."""
        g, call = self._g, self._call
        Z, W = self._basis.newest, self._W
        self._merging.spread_vectors(Z)
        product = allocated(call, (g.q.height, g.q.n), g.q.dtype)
        if not done:
            W[...] = 0
        call.meter.skip(done / max(g.q.blocks, 1) * g.iteration_flops)
        for block, rows in self._rows(done):
            if number == 0:
                self._add_squares(rows)
            Y = product[: len(rows)]
            times(self._kernels, rows, Z, Y)
            self._scale(Y)
            self._add_product(rows, Y)
            call.meter.advance(len(rows) / g.q.m * g.iteration_flops)
            if block < g.q.blocks:
                self._passed(number * g.q.blocks + block)
        if number == 0:
            self._join_squares()
        self._raise_exponent(max(self._all_of(self._exponent)))
        self._join_products()

    def _add_product(self, rows: Matrix, Y: Matrix) -> None:
        """Add Xᴴ Y to W for rows X; with row-major rows the conjugate, until `_finish_product`."""
        if self._g.rows.order == "C":
            # The BLAS gets the transpose of a block, and can transpose but not conjugate it.
            np.conjugate(Y, out=Y)
            self._kernels.gemm(rows.T, Y, self._W)
        else:
            self._kernels.gemm(rows, Y, self._W, trans_a="C")

    def _join_products(self) -> None:
        """Add up W of all processes."""
        W = self._W
        if self._g.rows.order == "C":
            np.conjugate(W, out=W)
        self._merging.add_up(W)
        if self._team.rank == 0 and not np.isfinite(column_extremes(W, False)[0]):
            raise InvalidError(f"numbers as large as those of A overflow {W.dtype}; scale it")

    def _add_squares(self, rows: Matrix) -> None:
        """Add to ‖A‖² in the Frobenius norm, scaled by a suitable power of 2."""
        columns = rows if rows.strides[0] == rows.itemsize else rows.T
        found, before = exponent(columns), int(self._exponents[1, 0])
        if found > before:
            self._squares *= math.ldexp(1.0, max(2 * (before - found), -1000))
            self._exponents[1, 0] = before = found
        self._squares += squares(columns, math.ldexp(1.0, -before)).sum()

    def _join_squares(self) -> None:
        """Add up ‖A‖² of all processes."""
        all_of = self._all_of((int(self._exponents[1, 0]), float(self._squares[0, 0])))
        most = max(power for power, _ in all_of)
        self._exponents[1, 0] = most
        self._squares[0, 0] = sum(math.ldexp(size, 2 * (power - most)) for power, size in all_of)

    def _scale(self, Y: Matrix) -> None:
        """Scale a part of A Z by a power of 2 so that its products with A are about 1.

        If it is larger than earlier parts, their products are scaled, too.
        """
        self._raise_exponent(exponent(Y))
        shift(Y, -2 * self._exponent)

    def _raise_exponent(self, found: int) -> None:
        """Give the products so far the units of a larger power of 2."""
        if found > self._exponent:
            shift(self._W, 2 * (self._exponent - found))
            if self._team.rank == 0:
                self._basis.rescale(2 * (self._exponent - found))
            self._exponents[0, 0] = found

    def _project(self, u: MemoryU | DiskU, done: int) -> None:
        """Process the rows of A Z, and of A times the probe vectors, from block `done`."""
        g, q = self._g, self._q
        # All processes have the units of the first one.
        self._exponents[0, 0] = self._of_first(self._exponent)
        for vectors in (self._basis.first, self._probes):
            self._merging.spread_vectors(vectors)
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
        trace, source = self._call.trace, self._source
        first = min(done * self._g.q.height, self._g.q.m)
        with streams([source], [self._g.rows], self._call, first=first) as (stream,):
            for block, (first, rows, _) in enumerate(stream, done + 1):
                self._team.check()
                start_ns = trace.now_ns()
                if self._read == 0 or not self._g.rows.layout.is_stored:
                    check_finite(source.name, source.first_row + first, rows)
                yield block, rows
                trace.record("compute", start_ns)
        self._read += source.bytes_read()

    def _small_factors(
        self, *, is_needed: bool
    ) -> tuple[Matrix, npt.NDArray[Any], Matrix, npt.NDArray[np.float64]]:
        """Return Û, s, Ŵᴴ, and the squared norms of E w, with E = A - U S Vᴴ, for the probes w.

        Only the first process has s and Ŵᴴ. `is_needed` says whether this process has to begin
        with its rows of U.
        """
        g, k, q, team = self._g, self._g.k, self._q, self._team
        # Below the diagonal are reflections that are still needed.
        R = own = np.triu(q.factor.R)
        if team.size > 1:
            tree = TreeQ(q, self._merging, self._call)
            R = tree.merge()
            tree.part(is_needed=is_needed)
        s, right = np.zeros(0), own[:0]
        # A w is Q c plus a rest; U S Vᴴ w is Q R g, with g = Ŵ Ŵᴴ Zᴴ w for the k columns of Ŵ.
        both: Matrix = np.empty((g.q.n, k + g.q.k), g.q.dtype, order="F")
        if team.rank == 0:
            left, s, right = imported("scipy.linalg").svd(R)
            s, right = s[:k], np.asfortranarray(right[:k])
            both[:, :k] = left[:, :k]
            both[:, k:] = right.conj().T @ (right @ (self._basis.first.conj().T @ self._probes))
        self._merging.spread_vectors(both)
        inside = np.asfortranarray(q.factor.c - own @ both[:, k:])
        found = self._all_of(squares(inside) + q.factor.rest**2)
        return both[:, :k], s, right, functools.reduce(np.add, found)

    def _right_vectors(
        self, V: Matrix, right: Matrix, s: npt.NDArray[Any]
    ) -> npt.NDArray[np.float64]:
        """Form V, and return the residuals of the triplets, from the copy of W."""
        product = self._kernels.gemm
        X = np.asfortranarray(right.conj().T)
        product(self._basis.second, X, V, beta=0)
        product(self._basis.first, np.asfortranarray(X * s**2), V, alpha=-1)
        residuals = triplet_residuals(norms(V), s)
        product(self._basis.first, X, V, beta=0)
        np.conjugate(V, out=V)
        return residuals

    def _errors(self, s: npt.NDArray[Any], probed: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return ‖A - U S Vᴴ‖ in the Frobenius norm, and a bound of its 2-norm."""
        bound = math.ldexp(10 * math.sqrt(2 / np.pi * probed.max()), self._exponent)
        norm = math.ldexp(math.sqrt(self._squares[0, 0]), int(self._exponents[1, 0]))
        rest = 1 - float(((s.astype(np.float64) / norm) ** 2).sum()) if norm else 0.0
        if rest > max(_LEAST_REST, 100 * np.finfo(s.dtype).eps):
            error = norm * math.sqrt(rest)
            return error, min(bound, error)
        return math.ldexp(math.sqrt(probed.mean()), self._exponent), bound

    def _of_first(self, value: T | None) -> T:
        """Return the value of the first process."""
        found = self._all_of(value if self._team.rank == 0 else None)[0]
        assert found is not None, "the first process has it"
        return found

    def _all_of(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of the ranks."""
        start_ns = self._call.trace.now_ns()
        found = self._team.exchange(value, self._more_s)
        if self._team.size > 1:
            self._call.trace.record("wait", start_ns)
        return found


def _longest_flops(g: SvdGeometry, shares: Shares) -> float:
    """Return the operations between two messages of the process with the most rows."""
    most = dataclasses.replace(g, q=dataclasses.replace(g.q, m=shares.most))
    extending = flop_weight(g.q.dtype) * 8.0 * g.n * g.blocks * g.q.n**2
    return max(most.iteration_flops, most.last_flops) + extending


def times(kernels: Kernels, rows: Matrix, Z: Matrix, Y: Matrix) -> None:
    """Compute Y <- X Z for rows X of either order."""
    if rows.strides[0] == rows.itemsize:
        kernels.gemm(rows, Z, Y, beta=0)
    else:
        kernels.gemm(rows.T, Z, Y, beta=0, trans_a="T")
