"""The surroundings of every iterative method: a system, solved by groups of columns."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.signals import signals_held
from outcore.errors import ConvergenceWarning, InvalidError
from outcore.linalg._rhs.columns import Columns
from outcore.linalg._rhs.groups import Groups
from outcore.linalg._rhs.residual import backward_errors, matrix_in
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._rhs.solutions import Solution
from outcore.linalg._tiles import columns
from outcore.linalg._tiles.assumptions import warn_not_hermitian
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.arguments import Setting
from outcore.linalg.iterative.convergence import Convergence
from outcore.linalg.iterative.groups import Division
from outcore.linalg.iterative.keeping import Keeping
from outcore.linalg.iterative.pinned_product import PinnedProduct
from outcore.linalg.iterative.plan import Pass
from outcore.linalg.iterative.strips.column_sums import ColumnSums
from outcore.linalg.iterative.strips.diagonal_blocks import DiagonalBlocks
from outcore.linalg.iterative.strips.pinned import PinnedTiles
from outcore.linalg.iterative.strips.strips import Tile
from outcore.linalg.iterative.strips.symmetry_look import SymmetryLook
from outcore.linalg.iterative.strips.tile_product import TileProduct
from outcore.processes.sharing import Sharing, seconds_for
from outcore.report.longcall import LongCall
from outcore.report.report import GUESSES, Report

NOT_FINITE_X0 = "x0 has a NaN or an infinity; leave it out to begin with 0"


class Iteration:
    """A system A x = b with A on disk, as the steps of a method use it.

    Right-hand sides are divided into groups of as many columns as fit in the budget. They are
    scaled by powers of 2 to about 1, and x with them, which changes no digit. If A is real, a
    complex right-hand side takes two columns.

    Attributes
    ----------
    geometry, call
        The plan, and the call with its budget and trace.
    X, B, convergence
        The solution and the right-hand sides of a group, (n, k) column-major, and its residuals.
    has_guess
        Whether X is not zero at the start of a group.
    steps
        Number of steps made for the finished groups.
    tiles, product, passes
        The matrix, products with its tiles, and products with the whole matrix.
    blocks
        Its factored diagonal blocks, if the method needs them.
    mirror
        Relation of the upper triangle to the lower one, if only the latter is read.
    is_copied
        Whether the steps use a copy of A in another type.
    sharing
        The processes of a joint call: each has all of X and B, and some strips of A.
    """

    def __init__(
        self,
        name: str,
        division: Division,
        call: LongCall,
        rhs: RightHandSide,
        x0: Any,
        setting: Setting,
        file: ArrayFile,
        into: Solution,
        sharing: Sharing,
    ) -> None:
        self.sharing = sharing
        self.geometry = g = division.geometry
        self.call, self.rhs, self._x0 = call, rhs, x0
        self._division, self._into = division, into
        self._moved = Columns(rhs, call, division.room)
        self._keeping = Keeping(into, self._moved, sharing)
        found = self._keeping.found
        self._groups = Groups(
            division.size, rhs.columns, sharing.same(into.done), found.end if found else 0
        )
        self._name, self._setting = name, setting
        self.mirror = setting.mirror
        self._source_file = file
        self._files = [file]
        layout = g.layout
        self.product = TileProduct(
            layout.order, layout.stored, layout.dtype, layout.chunks, g.columns, call.arena
        )
        wide = layout.dtype if g.source_slot_bytes else layout.stored
        self.sums = ColumnSums(
            layout.n, wide, layout.order, layout.chunks, call.arena, is_half=g.demands.is_half
        )
        self._look: Callable[[Tile, Matrix], None] = self.sums.look
        if self.mirror is not None:
            self._look = SymmetryLook(self.sums.look, is_hermitian=self.mirror == "C")
        self.X: Matrix
        self.B: Matrix
        self._norms: npt.NDArray[np.float64]
        self._norms1: npt.NDArray[np.float64]
        self.blocks: DiagonalBlocks
        self.tiles: PinnedTiles
        self.passes: PinnedProduct
        self._check: PinnedProduct
        self.is_copied = g.source_slot_bytes is not None
        self._kept: list[Matrix] = []
        self._taken = 0
        (self._b_memory,) = self._of_rows(layout.n, 1)
        self._x_memory = self._of_rows(layout.n, 1)[0] if division.holds_x else None
        self._here = slice(0, self._groups.first)
        self.has_guess = False
        self.convergence = self._begun()
        self.steps = 0
        self._histories: list[list[float]] = []
        self._residuals: list[float] = []
        self._errors: list[float] = []

    def open_tiles(self, file: ArrayFile, *, is_copy: bool) -> None:
        """Use the tiles of `file`, which is the matrix or a copy of it in another type."""
        g = self.geometry
        self.tiles = PinnedTiles(
            file, g.layout.stored, self.call.arena, self.call.trace, ring_bytes=g.ring_bytes,
            slot_bytes=g.layout.slot_bytes, pins=g.pins, look=None if is_copy else self._look,
            first_line=g.first_line if is_copy else 0,
        )  # fmt: skip
        self.passes = PinnedProduct(g, self.tiles, self.product, self.mirror)
        if is_copy:
            self._files.append(file)
        else:
            self._check = self.passes

    def open_source(self) -> PinnedTiles:
        """Open tiles of the matrix itself, if there is a copy, for checks and residuals."""
        g = self.geometry
        found = PinnedTiles(
            self._source_file, g.layout.dtype, self.call.arena, self.call.trace,
            ring_bytes=g.source_ring_bytes, slot_bytes=g.source_slot_bytes or 0,
            look=self._look,
        )  # fmt: skip
        self._check = PinnedProduct(g, found, self.product, self.mirror)
        return found

    def factor_blocks(self, blocks: DiagonalBlocks) -> None:
        """Factor the diagonal blocks, once for all groups."""
        self.blocks = blocks
        blocks.factor(self.tiles)
        self.meet_after_setup()

    def groups(self) -> Iterator[None]:
        """Iterate over groups: B holds the right-hand sides, and X is stored at the end."""
        for here in self._groups.slices():
            self._begin(here)
            yield
            self._end()

    def vectors(self, count: int) -> list[Matrix]:
        """Return matrices of n rows, with a column for each right-hand side of the group.

        They are part of the budget. Matrices of the next group reuse the same memory.
        """
        return self._of_group(self.geometry.layout.n, count)

    def step_vectors(self) -> tuple[Matrix, Matrix]:
        """Return two such matrices with the rows of a diagonal block."""
        one, other = self._of_group(self.geometry.step_rows, 2)
        return one, other

    def relative(self, norms: npt.NDArray[np.float64]) -> float:
        """Return the largest residual relative to its right-hand side, given norms per column."""
        return float(self._relative(norms).max())

    def targets(self, least: float = 0.0) -> npt.NDArray[np.float64]:
        """Norms of residuals at which a column needs no further step.

        They are at least the fraction `least` of the right-hand side.
        """
        one = max(self.convergence.target, least) * self._norms / np.sqrt(self.rhs.parts)
        return np.tile(one, self.rhs.parts)

    def note(self, residual: float) -> None:
        """Record the residual of another step, whose iterate is X."""
        self.convergence.note(residual)
        self.keep()

    def keep(self) -> None:
        """Store X on disk if the last store is long enough ago."""
        self._keeping.keep_if_due(self._here, self.X, self._scales, self.convergence.history)

    def keep_at_stop(self) -> None:
        """Store X on disk when the call is stopped."""
        if self._here.stop > self._groups.first and self.convergence.history:
            self._scale_back()
            self._keeping.keep_at_stop(self._here, self.X, self.convergence.history)

    def form_residual(self, R: Matrix) -> None:
        """Compute R <- b - A x in a pass over A itself."""
        self._check.multiply(self.X, R)
        np.subtract(self.B, R, out=R)
        self.judge(R)

    def judge(self, R: Matrix) -> None:
        """Record the size of a residual that was computed from A itself."""
        g, sharing = self.geometry, self.sharing
        own = R[g.strips.lines]
        most_bytes = g.strips.most * g.step_rows * g.layout.n * g.layout.dtype.itemsize
        norms = sharing.joined_norms(columns.norms(own), seconds_for(most_bytes))
        self._true = self._relative(norms)
        norms_r = sharing.added(self.rhs.norms1(own))
        added = None if sharing.size == 1 else sharing.added
        norm_a = self.sums.norm1(added, g.step_bytes // 8)
        errors = backward_errors(self.rhs, norm_a, self.X, norms_r, self._norms1)
        self._error = float(errors.max())

    @property
    def true_residual(self) -> float:
        """Largest residual of the group when last computed, relative to its right-hand side."""
        return float(self._true.max())

    def meet_after_setup(self) -> None:
        """Wait for the other processes, which read, copy and factor rows of their own."""
        g = self.geometry
        blocks, rows = g.strips.most, g.step_rows
        flops = flop_weight(g.layout.dtype) * blocks * rows**3
        columns = g.layout.n if self.is_copied else rows
        self.sharing.meet(seconds_for(blocks * rows * columns * g.layout.dtype.itemsize, flops))

    def is_accepted(self, R: Matrix) -> bool:
        """Recompute the residual; return whether a method that has reached its target may end."""
        self.form_residual(R)
        return self.convergence.accepts(self.true_residual)

    def reached(self) -> Any:
        """Return the current solution in memory; `None` if it goes to disk in groups."""
        rhs, into = self.rhs, self._into.x
        if isinstance(into, np.ndarray):
            if self._here.stop > self._groups.first:
                self._scale_back()
                self._keep()
            later = (slice(None), slice(self._here.stop, None))[: into.ndim]
            if rhs.b.ndim == 2 or not self._here.stop:
                into[later] = 0 if self._x0 is None else self._x0[later]
            return into
        if self._division.groups > 1:
            return None
        if not self._here.stop:
            return np.zeros(rhs.solution_shape, rhs.solution_dtype)
        self._scale_back()
        return rhs.solution(self.X)

    def at(self) -> str:
        """Describe the progress, for users."""
        text = f"{len(self.convergence.history)} steps"
        count = len(self._groups)
        return text if count == 1 else f"{text} of group {len(self._histories) + 1} of {count}"

    def result(
        self,
        verb: str,
        times: Mapping[Pass, int],
        *,
        notes: Sequence[str] = (),
        block_reads: int = 0,
        others: tuple[int, int] = (0, 0),
        omega: float = 1.0,
    ) -> tuple[Any, Report]:
        """Return the solution in the place that the caller requested, and the report.

        Warn if the tolerance is not reached.

        Parameters
        ----------
        times
            Number of passes of each kind over the matrix, except passes over the whole matrix and
            the one for the diagonal blocks.
        block_reads
            Number of times that the diagonal blocks were read from their file, if they are in one.
        others
            Bytes read from other files, and bytes planned for them.
        omega
            Over-relaxation.
        """
        g = self.geometry
        blocks_bytes = g.blocks.file_bytes if g.blocks else 0
        planned = [others[1] + block_reads * blocks_bytes, blocks_bytes]
        setup = times.get("setup", 0) + (g.blocks is not None)
        planned[0] += g.bytes_read({**times, "setup": setup, "all": self.passes.made})
        if g.source_slot_bytes:
            tiles = len(g.tiles_of("all"))
            planned[0] += (1 + self._check.made) * tiles * g.source_slot_bytes
            planned[1] += tiles * g.layout.slot_bytes
        planned = [p + asked for p, asked in zip(planned, self._moved.asked, strict=True)]
        moved = [file.counters()[:2] for file in self._files]
        moved.append(self._moved.counters())
        if g.blocks:
            moved.append(self.blocks.bytes_moved())
        history = _longest(self._histories)
        notes = [*notes]
        self._warn(notes, len(history))
        report = self.call.report(
            Report, verb, g.layout.n, g.layout.dtype, method=self._division.describe(omega),
            flops=self.product.flops + (self.blocks.flops if g.blocks else 0.0),
            moved=(others[0] + sum(read for read, _ in moved), sum(wrote for _, wrote in moved)),
            planned=(planned[0], planned[1]),
            words_lower_bound=g.words_lower_bound({**times, "all": self.passes.made}),
            backward_error=max(self._errors, default=None), history=history,
            residuals=self._residuals, notes=notes, arrays=["A", "diagonal blocks", "copy of A"],
        )  # fmt: skip
        if self.rhs.out is not None:
            self._into.x.report = report
        return self._into.x, report

    def _warn(self, notes: list[str], steps: int) -> None:
        if self._groups.first:
            notes.append(
                f"resumed at column {self._groups.first} of {self._groups.columns}; the figures "
                "are of the rest"
            )
        if steps_before := self._keeping.gone_on_after:
            notes.append(
                f"resumed with x as a stopped call left it after {steps_before} steps; the history "
                "is of the steps since then"
            )
        if len(self._histories) > 1:
            of_each = [len(history) for history in self._histories]
            notes.append(f"the groups took {min(of_each)} to {max(of_each)} steps each")
        largest, tol = max(self._residuals, default=0.0), self._setting.tol
        notes.append(f"residual ‖b - Ax‖ / ‖b‖ = {largest:.2e}, computed again at the end")
        if isinstance(self._look, SymmetryLook) and self._look.found:
            how = f"{self._look.found}; x is of the matrix that one triangle makes"
            notes.append(f"A is not as assume_a says: {how}")
            warn_not_hermitian(how, "leave out assume_a, or correct the matrix", stacklevel=6)
        bad = sum(not self.convergence.has_met(residual) for residual in self._residuals)
        if not bad:
            return
        count = len(self._residuals)
        text = (
            f"{self._name} ended after {steps} steps with a residual of {largest:.2e} "
            f"of the right-hand side{f', and {bad} of {count} too large' if count > 1 else ''}; "
            f"tol={tol:.2e} was asked for"
        )
        notes.append(text)
        warnings.warn(text, ConvergenceWarning, stacklevel=5)

    def _begin(self, here: slice) -> None:
        """Load the right-hand sides of a group, and the initial solutions."""
        width = (here.stop - here.start) * self.rhs.parts
        # This comes first: a history implies that X belongs to `here`.
        self.convergence = self._begun()
        self._here, self._scales, self._taken = here, np.ones(width), 0
        self._true, self._error = np.full(here.stop - here.start, np.inf), np.inf
        self.B = self._b_memory[:, :width]
        self.X = self._x_of(here, width)
        self.X[:] = 0
        self._moved.load(self.rhs.b, here, self.B)
        self.rhs.refuse_non_finite(self.B)
        self.sharing.agree_on("right-hand sides", self.B)
        scales = self.sharing.same(self._powers_of_2(self.B))
        columns.scale(self.B, 1 / scales)
        self._norms, self._norms1 = self.sharing.same(
            (self._joined(columns.norms(self.B)), self.rhs.norms1(self.B))
        )
        self.has_guess = self._keeping.load(here, self.X, self.geometry.step_rows)
        if self.has_guess:
            columns.scale(self.X, 1 / scales)
        elif self._x0 is not None:
            self._begin_at(here, 1 / scales)
        self._scales = scales

    def _begun(self) -> Convergence:
        """Return the convergence state of a new group."""
        meter, count = self.call.meter, max(len(self._groups), 1)
        # A reference back to this object would keep the memory of the call alive.
        return Convergence(
            self._name, self._setting.tol, self._setting.most,
            lambda share: meter.advance(share / count),
            eps=float(np.finfo(self.geometry.layout.dtype).eps),
            is_stationary=self._name in ("Gauss-Seidel", "Jacobi"),
        )  # fmt: skip

    def _begin_at(self, here: slice, scales: npt.NDArray[np.float64]) -> None:
        """Start from the given solution instead of 0."""
        self._moved.load(self._x0, here, self.X, GUESSES)
        if not np.isfinite(columns.norms(self.X)).all():
            raise InvalidError(NOT_FINITE_X0)
        self.sharing.agree_on("x0=", self.X)
        columns.scale(self.X, scales)
        self.has_guess = True

    def _end(self) -> None:
        """Store the solutions of a group, and its figures for the report."""
        self._scale_back()
        self._keep()
        self.steps += len(self.convergence.history)
        self._histories.append(self.convergence.history)
        self._residuals += self._true.tolist()
        self._errors.append(self._error)
        if self.rhs.out is not None:
            self._moved.sync()
            is_met = all(map(self.convergence.has_met, self._residuals))
            self._keeping.end(self._here, self.convergence.history, is_met=is_met)

    def _x_of(self, here: slice, width: int) -> Matrix:
        """Return the memory of X: its final place, or memory from the budget."""
        if self._x_memory is not None:
            return self._x_memory[:, :width]
        x: Matrix = self._into.x
        return x[:, here] if x.ndim == 2 else x[:, None]

    def _keep(self) -> None:
        """Write the solutions of a group to their place, unless they are there."""
        if self._x_memory is not None and self._into.x is not None:
            self._moved.store(self._into.x, self._here, self.X)

    def _scale_back(self) -> None:
        """Return the solutions to the scale of b, once."""
        with signals_held():
            columns.scale(self.X, self._scales)
            self._scales = np.ones_like(self._scales)

    def _of_rows(self, rows: int, count: int) -> list[Matrix]:
        """Allocate matrices for the largest group from the budget."""
        g = self.geometry
        return [matrix_in(self.call, rows, g.columns, g.layout.dtype) for _ in range(count)]

    def _of_group(self, rows: int, count: int) -> list[Matrix]:
        """Allocate matrices from the budget, or reuse those of the previous group in order."""
        first, self._taken = self._taken, self._taken + count
        self._kept += self._of_rows(rows, self._taken - len(self._kept))
        return [each[:, : self.B.shape[1]] for each in self._kept[first : self._taken]]

    def _relative(self, norms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return residuals relative to the right-hand sides, given norms of each column."""
        with np.errstate(invalid="ignore", over="ignore"):
            joined = self._joined(norms) / np.where(self._norms > 0, self._norms, 1)
        return self.sharing.same(joined)

    def _joined(self, norms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return norms of right-hand sides, given norms of their columns."""
        joined: npt.NDArray[np.float64] = np.hypot.reduce(norms.reshape(self.rhs.parts, -1))
        return joined

    def _powers_of_2(self, B: Matrix) -> npt.NDArray[np.float64]:
        """Return powers of 2 of about the size of the right-hand sides; 1 for zeros.

        They and their inverses are in the range of the type.
        """
        sizes = columns.largest(B).reshape(self.rhs.parts, -1).max(axis=0)
        most = np.finfo(B.dtype).maxexp - 3
        exponents = np.clip(np.frexp(sizes)[1], -most, most)
        return np.tile(np.ldexp(1.0, exponents), self.rhs.parts)


def narrowed(it: Iteration) -> list[str]:
    """Return a note on a matrix that was read in single precision."""
    layout = it.geometry.layout
    if not it.is_copied:
        return []
    eps = float(np.finfo(layout.stored).eps) / 2
    return [
        f"A was kept in {layout.stored}: the residual cannot fall below about {eps:.0e} ‖A‖ ‖x‖, "
        "however small tol is"
    ]


def _longest(histories: list[list[float]]) -> list[float]:
    """Combine the residuals of groups as if these had made their steps side by side."""
    steps = max(map(len, histories), default=0)
    return [max(each[min(step, len(each) - 1)] for each in histories) for step in range(steps)]
