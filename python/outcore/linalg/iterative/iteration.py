"""What every iterative method has around its steps: the system, the budget, the end."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore import blas_choice
from outcore._core import ArrayFile
from outcore.array import Array, open_array
from outcore.array_metadata import read_metadata
from outcore.elements import array_of
from outcore.errors import ConvergenceWarning, Interrupted, InvalidError
from outcore.linalg import columns
from outcore.linalg.column_sums import ColumnSums
from outcore.linalg.cost import flop_weight
from outcore.linalg.iterative.arguments import Setting
from outcore.linalg.iterative.convergence import Convergence
from outcore.linalg.iterative.diagonal_blocks import DiagonalBlocks, diagonal_blocks
from outcore.linalg.iterative.narrow_copy import narrow_copy
from outcore.linalg.iterative.pinned import PinnedTiles
from outcore.linalg.iterative.pinned_product import PinnedProduct
from outcore.linalg.iterative.plan import (
    Demands,
    IterativeGeometry,
    MatrixLayout,
    Pass,
    check_dtype,
    iterative_geometry,
    narrow_dtype,
    working_dtype,
)
from outcore.linalg.iterative.sharing import Sharing, seconds_for
from outcore.linalg.iterative.tile_product import TileProduct
from outcore.linalg.matrix import Matrix
from outcore.linalg.systems.columns import ColumnRoom, Columns, fitted
from outcore.linalg.systems.residual import backward_errors, matrix_in
from outcore.linalg.systems.right_hand_side import RightHandSide
from outcore.linalg.systems.solutions import Solution, solution
from outcore.longcall import LongCall, long_call
from outcore.report import Report
from outcore.volumes import PathLike, as_path, place

MANY_COLUMNS = 8
"""With so many right-hand sides the processor is busy, not the memory."""


class Iteration:
    """A system A x = b with A on disk, and what the steps of a method work with.

    All right-hand sides are scaled by powers of 2 to about 1, and x with them, which changes no
    digit; a right-hand side that is complex where A is real is two columns.

    Attributes
    ----------
    geometry, call, convergence
        The plan; the budget and the trace; the residuals.
    X, B
        (n, k) solution and right-hand sides, column-major.
    tiles, product, passes
        The matrix, products with its tiles, and with all of it.
    blocks
        Its diagonal blocks, not yet factored, if the method wants them.
    mirror
        How the upper triangle follows from the lower one, if only this is read.
    has_guess
        Whether X is not zero at the start.
    is_copied
        Whether the steps work with a copy of A in another type.
    sharing
        The processes that iterate together: each has all of X and B, and some strips of A.
    """

    def __init__(
        self,
        name: str,
        geometry: IterativeGeometry,
        call: LongCall,
        rhs: RightHandSide,
        setting: Setting,
        file: ArrayFile,
        moved: Columns,
        into: Solution | None,
        sharing: Sharing,
    ) -> None:
        self.sharing = sharing
        self.geometry, self.call, self.rhs = geometry, call, rhs
        self._moved, self._into = moved, into
        self._name, self._setting = name, setting
        self.mirror = setting.mirror
        self._source_file = file
        self._files = [file]
        layout = geometry.layout
        self.convergence = Convergence(
            name, setting.tol, setting.most, call.meter.advance,
            eps=float(np.finfo(layout.dtype).eps), is_stationary=name in ("Gauss-Seidel", "Jacobi"),
        )  # fmt: skip
        self.product = TileProduct(
            layout.order, layout.stored, layout.dtype, layout.chunks, geometry.columns, call.arena
        )
        wide = layout.dtype if geometry.source_slot_bytes else layout.stored
        self.sums = ColumnSums(
            layout.n, wide, layout.order, layout.chunks, call.arena,
            is_half=geometry.demands.is_half,
        )  # fmt: skip
        self.blocks: DiagonalBlocks
        self.tiles: PinnedTiles
        self.passes: PinnedProduct
        self._check: PinnedProduct
        self.true_residual = np.inf
        self.backward_error = np.inf
        self.has_guess = False
        self.is_copied = geometry.source_slot_bytes is not None
        (self.B,) = self.vectors(1)
        self.X: Matrix = np.zeros(self.B.shape, layout.dtype, order="F")
        moved.load(rhs.b, slice(0, rhs.columns), self.B)
        rhs.refuse_non_finite(self.B)
        sharing.agree_on("right-hand sides", self.B)
        self._scales = sharing.same(self._powers_of_2(self.B))
        columns.scale(self.B, 1 / self._scales)
        self._norms, self._norms1 = sharing.same(
            (self._joined(columns.norms(self.B)), rhs.norms1(self.B))
        )

    def open_tiles(self, file: ArrayFile, *, is_copy: bool) -> None:
        """Take the tiles from `file`, the matrix or a copy of it in another type."""
        g = self.geometry
        self.tiles = PinnedTiles(
            file, g.layout.stored, self.call.arena, self.call.trace, ring_bytes=g.ring_bytes,
            slot_bytes=g.layout.slot_bytes, pins=g.pins, look=None if is_copy else self.sums.look,
            first_line=g.first_line if is_copy else 0,
        )  # fmt: skip
        self.passes = PinnedProduct(g, self.tiles, self.product, self.mirror)
        if is_copy:
            self._files.append(file)
        else:
            self._check = self.passes

    def open_source(self) -> PinnedTiles:
        """Take tiles of the matrix itself, of which there is a copy, to look at and check with."""
        g = self.geometry
        found = PinnedTiles(
            self._source_file, g.layout.dtype, self.call.arena, self.call.trace,
            ring_bytes=g.source_ring_bytes, slot_bytes=g.source_slot_bytes or 0,
            look=self.sums.look,
        )  # fmt: skip
        self._check = PinnedProduct(g, found, self.product, self.mirror)
        return found

    def vectors(self, count: int) -> list[Matrix]:
        """Take matrices of n rows and a column for each right-hand side from the budget."""
        g = self.geometry
        return [matrix_in(self.call, g.layout.n, g.columns, g.layout.dtype) for _ in range(count)]

    def step_vectors(self) -> tuple[Matrix, Matrix]:
        """Take two of the rows of a diagonal block."""
        g = self.geometry
        one, other = (
            matrix_in(self.call, g.step_rows, g.columns, g.layout.dtype) for _ in range(2)
        )
        return one, other

    def begin_at(self, x0: Any) -> None:
        """Begin with another solution than 0."""
        given = x0[...] if isinstance(x0, Array) else array_of(x0, "an array as x0")
        if given.shape != self.rhs.b.shape:
            raise InvalidError(
                f"x0 must have the shape of b, {self.rhs.b.shape}, have {given.shape}"
            )
        if given.dtype.kind not in "biufc" or (given.dtype.kind == "c" and self._is_real):
            raise InvalidError(
                f"x0 must be of a type that converts to {self.rhs.solution_dtype}, have "
                f"{given.dtype}"
            )
        self.rhs.load(given.astype(self.rhs.solution_dtype, copy=False), slice(None), self.X)
        if not np.isfinite(columns.norms(self.X)).all():
            raise InvalidError("x0 has a NaN or an infinity; leave it out to begin with 0")
        self.sharing.agree_on("x0=", self.X)
        columns.scale(self.X, 1 / self._scales)
        self.has_guess = True

    def relative(self, norms: npt.NDArray[np.float64]) -> float:
        """Largest residual relative to its right-hand side, given norms for each column."""
        with np.errstate(invalid="ignore", over="ignore"):
            joined = self._joined(norms) / np.where(self._norms > 0, self._norms, 1)
        return self.sharing.same(float(joined.max()))

    def targets(self) -> npt.NDArray[np.float64]:
        """Norms of residuals at which a column needs no further step."""
        one = max(self.convergence.target, 0) * self._norms / np.sqrt(self.rhs.parts)
        return np.tile(one, self.rhs.parts)

    def form_residual(self, R: Matrix) -> None:
        """Form R <- b - A x anew, in a pass over A itself."""
        self._check.multiply(self.X, R)
        np.subtract(self.B, R, out=R)
        self.judge(R)

    def judge(self, R: Matrix) -> None:
        """Note how large the residual is, formed from A itself."""
        g, sharing = self.geometry, self.sharing
        own = R[g.strips.lines]
        most_bytes = g.strips.most * g.step_rows * g.layout.n * g.layout.dtype.itemsize
        norms = sharing.joined_norms(columns.norms(own), seconds_for(most_bytes))
        self.true_residual = self.relative(norms)
        norms_r = sharing.added(self.rhs.norms1(own))
        added = None if sharing.size == 1 else sharing.added
        norm_a = self.sums.norm1(added, g.step_bytes // 8)
        errors = backward_errors(self.rhs, norm_a, self.X, norms_r, self._norms1)
        self.backward_error = float(errors.max())

    def meet_after_setup(self) -> None:
        """Wait for the others, who copy rows of their own, and factor their diagonal blocks."""
        g = self.geometry
        blocks, rows = g.strips.most, g.step_rows
        flops = flop_weight(g.layout.dtype) * blocks * rows**3
        columns = g.layout.n if self.is_copied else rows
        self.sharing.meet(seconds_for(blocks * rows * columns * g.layout.dtype.itemsize, flops))

    def is_accepted(self, R: Matrix) -> bool:
        """Form the residual anew; `True` if the method, which thinks it is over, may end."""
        self.form_residual(R)
        return self.convergence.accepts(self.true_residual)

    def solution(self) -> Any:
        """Give the solution the scale, shape and type of b, in memory."""
        self._scale_back()
        return self.rhs.solution(self.X)

    def result(self, report: Report) -> tuple[Any, Report]:
        """Give the solution as the caller wants it, in memory or on disk, and the report."""
        if self._into is not None:
            self._into.x.report = report
            return self._into.x, report
        return self.solution(), report

    def _store(self) -> None:
        """Write the solution to where it is to be on disk."""
        if self._into is not None:
            self._scale_back()
            self._moved.store(self._into.x, slice(0, self.rhs.columns), self.X)
            self._moved.sync()

    def _scale_back(self) -> None:
        """Give the solution the scale of b, once."""
        columns.scale(self.X, self._scales)
        self._scales = np.ones_like(self._scales)

    def report(
        self,
        verb: str,
        times: Mapping[Pass, int],
        *,
        notes: list[str],
        block_reads: int = 0,
        others: tuple[int, int] = (0, 0),
    ) -> Report:
        """Report on the call, and warn if the tolerance was not reached.

        A solution on disk is written before.

        Parameters
        ----------
        times
            How often each kind of pass over the matrix was made, beside those of all of it.
        block_reads
            How often the diagonal blocks were read from their file, if they are in one.
        others
            Bytes that were read of something else, and that were to be.
        """
        self._store()
        g = self.geometry
        blocks_bytes = g.blocks.file_bytes if g.blocks else 0
        planned = [others[1] + block_reads * blocks_bytes, blocks_bytes]
        planned[0] += g.bytes_read({**times, "all": self.passes.made})
        if g.source_slot_bytes:
            tiles = len(g.tiles_of("all"))
            planned[0] += (1 + self._check.made) * tiles * g.source_slot_bytes
            planned[1] += tiles * g.layout.slot_bytes
        planned = [p + asked for p, asked in zip(planned, self._moved.asked, strict=True)]
        moved = [file.counters()[:2] for file in self._files]
        moved.append(self._moved.counters())
        if g.blocks:
            moved.append(self.blocks.bytes_moved())
        kernels, threads = blas_choice.in_use()
        self._warn(notes)
        return Report(
            verb=verb,
            n=g.layout.n,
            dtype=g.layout.dtype.name,
            method=g.describe(),
            flops=self.product.flops + (self.blocks.flops if g.blocks else 0.0),
            bytes_read=others[0] + sum(read for read, _ in moved),
            bytes_written=sum(written for _, written in moved),
            planned_bytes_read=planned[0],
            planned_bytes_written=planned[1],
            backward_error=self.backward_error,
            history=self.convergence.history,
            kernels=kernels,
            threads=threads,
            notes=notes,
            arrays=["A", "diagonal blocks", "copy of A"],
            **self.call.figures(),
        )

    def _warn(self, notes: list[str]) -> None:
        steps, tol = len(self.convergence.history), self._setting.tol
        notes.append(f"residual ‖b - Ax‖ / ‖b‖ = {self.true_residual:.2e}, formed anew at the end")
        if self.convergence.has_met(self.true_residual):
            return
        text = (
            f"{self._name} ended after {steps} steps with a residual of {self.true_residual:.2e} "
            f"of the right-hand side; tol={tol:.2e} was asked for"
        )
        notes.append(text)
        warnings.warn(text, ConvergenceWarning, stacklevel=4)

    @property
    def _is_real(self) -> bool:
        return self.rhs.solution_dtype.kind == "f"

    def _joined(self, norms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Norms of right-hand sides from those of their columns."""
        joined: npt.NDArray[np.float64] = np.hypot.reduce(norms.reshape(self.rhs.parts, -1))
        return joined

    def _powers_of_2(self, B: Matrix) -> npt.NDArray[np.float64]:
        """Powers of 2 about as large as the right-hand sides; 1 for one of zeros.

        They and their inverses are in the range of the type.
        """
        sizes = columns.largest(B).reshape(self.rhs.parts, -1).max(axis=0)
        most = np.finfo(B.dtype).maxexp - 3
        exponents = np.clip(np.frexp(sizes)[1], -most, most)
        return np.tile(np.ldexp(1.0, exponents), self.rhs.parts)


@contextmanager
def open_iteration(
    name: str,
    A: Array | PathLike,
    b: npt.ArrayLike | Array,
    x0: npt.ArrayLike | Array | None,
    choices: Callable[[MatrixLayout, int, int], list[Demands]],
    setting: Setting,
    sharing: Sharing | None = None,
) -> Iterator[Iteration]:
    """Check the arguments of an iterative method, and open the matrix for it.

    Parameters
    ----------
    name
        Of the method.
    A, b, x0
        Matrix, right-hand sides, and the solution to begin with.
    choices
        What the method may take of the budget, given the matrix, the number of columns and the
        budget: the best first.
    setting
        The other arguments.
    sharing
        The processes that do so together; by default this one alone.

    Raises
    ------
    Interrupted
        On Ctrl-C or SIGTERM, with what was reached as ``x``.
    """
    setting.check()
    sharing = sharing or Sharing()
    source = A.place if isinstance(A, Array) else place(A)
    metadata = read_metadata(source)
    if len(metadata.shape) != 2 or metadata.shape[0] != metadata.shape[1]:
        raise InvalidError(f"need a square matrix, have shape {metadata.shape} in {source.path}")
    check_dtype(metadata.dtype)
    sharing.agree_on_matrix(source, metadata)
    n, memory_bytes = metadata.shape[0], sharing.budget(setting.memory)
    dtype = working_dtype(metadata.dtype, setting.storage)
    others = [x0] if isinstance(x0, Array) else []
    reads = [source.path, *(each.path for each in [*others, setting.factors] if each is not None)]
    rhs = RightHandSide.read(
        n, dtype, b, "N", setting.out if sharing.rank == 0 else None,
        overwrite=setting.overwrite, reads=reads, stays=True,
    )  # fmt: skip
    if rhs.columns == 0:
        raise InvalidError(f"need at least one right-hand side, have shape {rhs.b.shape}")
    stored = metadata.dtype if setting.storage is None else narrow_dtype(dtype)
    is_copied = stored != metadata.dtype
    width, chunks = rhs.columns * rhs.parts, metadata.chunks
    layout = MatrixLayout(n, stored, dtype, (chunks[0], chunks[1]), metadata.order)
    itself = MatrixLayout(n, metadata.dtype, dtype, layout.chunks, layout.order)

    have = {
        "shape of the right-hand sides": tuple(rhs.b.shape),
        "type of the solution": rhs.solution_dtype.str,
    }
    sharing.agree(have)

    def cut(block: int | None, room: ColumnRoom) -> IterativeGeometry:
        left = memory_bytes - room.beside_bytes
        return iterative_geometry(
            layout, choices(layout, width, left), memory_bytes, width, block=block,
            pin=setting.pin, source_slot_bytes=itself.slot_bytes if is_copied else None,
            beside_bytes=room.beside_bytes, rank=sharing.rank, processes=sharing.size,
        )  # fmt: skip

    room, g = fitted(rhs, memory_bytes, functools.partial(cut, setting.block))
    if (block := min(sharing.exchange(g.strips.block))) != g.strips.block:
        room, g = fitted(rhs, memory_bytes, functools.partial(cut, block))
    scratch = as_path(setting.scratch) / source.path.name if setting.scratch else source.path
    with contextlib.ExitStack() as held:
        array = held.enter_context(open_array(source.path))
        call = held.enter_context(
            long_call(
                f"{name} of {source.path.name}", memory_bytes=memory_bytes, work=1.0,
                threads=_threads(setting.threads, width),
                progress=sharing.progress(setting.progress),
            )
        )  # fmt: skip
        file = array.open_file(call.arena, 1, trace=call.trace)
        into = held.enter_context(solution(rhs)) if rhs.out is not None else None
        it = Iteration(name, g, call, rhs, setting, file, Columns(rhs, call, room), into, sharing)
        mine = f".{sharing.rank}" if sharing.size > 1 else ""
        try:
            if x0 is not None:
                it.begin_at(x0)
            if is_copied:
                copy = narrow_copy(g, it.open_source(), call, place(f"{scratch}.f4{mine}"))
                it.open_tiles(held.enter_context(copy), is_copy=True)
            else:
                it.open_tiles(file, is_copy=False)
            if g.blocks:
                blocks = diagonal_blocks(g.blocks, call, place(f"{scratch}.diagonal{mine}"))
                it.blocks = held.enter_context(blocks)
            yield it
        except KeyboardInterrupt as stop:
            why = f" because {stop}" if isinstance(stop, Interrupted) else ""
            steps = len(it.convergence.history)
            stopped = Interrupted(
                f"{name} of {source.path.name} stopped after {steps} steps{why}; "
                "call again, with x0= the x of this exception to go on from there"
            )
            stopped.x = it.solution()
            raise stopped from None


def _threads(asked: int | None, columns: int) -> int | None:
    """Threads of the BLAS. Products with few columns go at the memory's speed, not the processor's.

    Half of the threads reach that, and leave the other cores to what moves the bytes.
    """
    if asked is not None or columns >= MANY_COLUMNS:
        return asked
    return max(blas_choice.in_use()[1] // 2, 1)


def narrowed(it: Iteration) -> list[str]:
    """Say what to know of a matrix that was read in single precision."""
    layout = it.geometry.layout
    if not it.is_copied:
        return []
    eps = float(np.finfo(layout.stored).eps) / 2
    return [
        f"A was kept in {layout.stored}: the residual cannot fall below about {eps:.0e} ‖A‖ ‖x‖, "
        "however small tol is"
    ]
