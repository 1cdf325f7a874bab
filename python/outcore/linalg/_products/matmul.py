"""Products of matrices larger than memory: C = alpha op(A) op(B).

C is cut into blocks that fill most of the memory. A slab of one operand is held in memory, about
1000 deep. Pieces of the other operand stream past it (here B is held)::

    for each block of C:
        for each slab of the inner length:          # B[slab, columns of the block]
            for each row piece:
                for each depth piece of the slab:   # A[row piece, depth piece]
                    C[row piece] += alpha A[row piece, depth piece] B[depth piece]
                in the last slab: C[row piece] is written

With p x q blocks, (p + q) n² words are read and n² written, near the minimum for the memory (Smith
et al. 2017). `docs/numerics-matmul.md` has the derivation. All reads are ahead of their use. C is
written while the rest of its block, and the beginning of the next one, is computed.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.blas.calls import Trans
from outcore.blas.lapack import kernels
from outcore.errors import Interrupted, InvalidError
from outcore.linalg._output.open_results import opens_results
from outcore.linalg._output.result import claimed, room, written
from outcore.linalg._output.result_chunks import result_metadata
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._products.agreement import (
    agree_on_product,
    all_sent,
    left_of_all,
    meeting_at_the_end,
    share_result,
)
from outcore.linalg._products.dealt_pieces import Pieces
from outcore.linalg._products.matmul_geometry import MatmulGeometry, Product, flops
from outcore.linalg._products.matmul_plan import matmul_geometry
from outcore.linalg._products.slabs import DiskSlabs, MemorySlabs
from outcore.linalg._tiles.block_writer import DiskResult, WholeResult
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import (
    Extent,
    MemoryOperand,
    Operand,
    OperandLike,
    Part,
    open_whole_chunks,
    operand,
    read_arrays,
)
from outcore.linalg._tiles.result_dtype import result_dtype
from outcore.linalg._tiles.transposes import read_trans
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing, seconds_for
from outcore.processes.team import Team, alone
from outcore.report.longcall import LongCall, check_threads, long_call
from outcore.report.report import Report, keep
from outcore.storage.volumes import PathLike, Place

Which: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]

_WHY = "the product that it was to hold was stopped; call matmul again with the same arguments"


@opens_results()
def matmul(
    made: Made,
    A: OperandLike,
    B: OperandLike,
    *,
    trans_a: Which = "N",
    trans_b: Which = "N",
    alpha: complex = 1.0,
    dtype: npt.DTypeLike | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    memory: int | str | None = None,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> Any:
    """Multiply matrices in memory or on disk: alpha op(A) op(B).

    With `comm`, the processes of a parallel program divide the columns or rows of the product. Each
    reads its own part of one operand, and a part of the other, which it sends to all others.

    The product of m x k by k x n takes 2mnk real operations (8mnk for complex types).

    Parameters
    ----------
    A, B
        Matrices or vectors: arrays on disk, with any chunks in either order, their paths or lazy
        transposes ``A.T``, or NumPy arrays. A vector is a row as `A` and a column as `B`, and its
        dimension is missing in the result, as in `numpy.matmul`.
    trans_a, trans_b
        The operator op: ``"N"`` none, ``"T"`` the transpose, ``"C"`` the conjugate transpose.
    alpha
        A factor. It must be real for real matrices.
    dtype
        Type of the arithmetic and of the result, float32 to complex128; by default NumPy's
        promotion of the operands. The call converts operands of another type as it reads them.
    out
        Directory of the result on disk. Without it, the result is a NumPy array.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call with the same arguments, if the result is on disk. The call records
        its progress about every minute, by blocks of the result.
    memory
        Budget, such as ``"8 GiB"``; by default half of the available memory. More memory means less
        I/O: see ``oc.plan("matmul", m=..., n=..., k=...)``. The budget does not include operands
        and results in memory, which belong to the caller. It includes copies of operands that the
        BLAS cannot use directly. These are operands of another type, operands without contiguous
        rows or columns, and complex rows with ``"C"``.
    threads
        Threads of the BLAS; by default its current setting.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left). Only
        the first process shows a bar.
    comm
        Communicator of mpi4py. All its processes call with equal arguments, except `memory`,
        `threads` and `progress`. All get the result. All use the smallest of their budgets. A
        stopped call resumes with the same number of processes; another number restarts it.
    timeout
        Seconds to wait for other processes, beyond the time for their work.

    Returns
    -------
    Array, numpy.ndarray or scalar
        The product. Its type is the promotion of the operands, or `dtype`. If `out` is given, it is
        on disk, in Fortran order, and its ``report`` describes the call. `outcore.last_report`
        returns the report in either case. NaN and infinities propagate as in NumPy.

    Raises
    ------
    InvalidError
        If shapes do not fit, types are not supported, `out` is an operand, or the processes have
        different arguments.
    DiskError
        If another process does not answer in time.
    BudgetError, DiskFullError
        Before any work, if memory or disk space do not suffice.
    ExistsError, BusyError
        If `out` holds something that must not be overwritten, or another call writes there.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes if the result is on disk.
    """
    with Sharing(comm, timeout) as sharing:
        check_threads(threads)
        arrays = read_arrays({"A": A, "B": B})
        made_in = result_dtype({name: x.dtype for name, x in arrays.items()}, dtype)
        alpha = _factor(alpha, made_in)
        op_a, op_b = read_trans("trans_a", trans_a), read_trans("trans_b", trans_b)
        left, right = (
            _operand("A", arrays["A"], op_a, made_in),
            _operand("B", arrays["B"], op_b, made_in),
        )
        product = _product(left, right, arrays, made_in, is_stored=out is not None)
        if product.is_stored and not _can_be_stored(product):
            raise InvalidError(
                f"a result of shape {product.shape} from {product.k} terms cannot be on disk; "
                "leave out= out"
            )
        arguments = {"op": [op_a, op_b], "alpha": repr(complex(alpha)), "dtype": made_in.name}
        how = {"out": None if out is None else str(out), "if_exists": if_exists, "resume": resume}
        agree_on_product("matmul", arrays, arguments | how, sharing)
        # Equal operands may differ in their strides, so that not all processes copy them.
        copied = max(sharing.exchange(product.copy_bytes))
        product = dataclasses.replace(product, copy_bytes=copied)
        if 0 in (product.m, product.n, product.k):
            return _empty(product)
        steps = StepsDone(
            out, "matmul", arguments, arrays, memory, resume=resume, made=made, sharing=sharing,
        )  # fmt: skip
        g = steps.planned(
            lambda memory_bytes: matmul_geometry(product, memory_bytes, sharing.size, sharing.rank)
        )
        try:
            with (
                claimed(
                    out, list(arrays.values()), if_exists=if_exists, why=_WHY, sharing=sharing
                ) as where,
                long_call(
                    "product" if where is None else f"product {where.path.name}",
                    memory_bytes=steps.memory_bytes, work=g.own_flops,
                    threads=sharing.threads(threads), progress=sharing.progress(progress),
                ) as call,
            ):  # fmt: skip
                left.open(call, g.bounce_bytes("A"), 0)
                right.open(call, g.bounce_bytes("B"), 1)
                if where is None:
                    found: tuple[Any, Report] = _to_memory(g, (left, right), call, alpha, steps)
                else:
                    found = _to_disk(g, (left, right), where, call, alpha, steps)
                result, report = found
                keep(report, result)
                return result
        except KeyboardInterrupt as error:
            raise Interrupted(steps.stopped("the product", "matmul", error)) from None


def _factor(alpha: Any, dtype: np.dtype[Any]) -> complex:
    try:
        if isinstance(alpha, str | bytes):
            raise TypeError
        factor = complex(alpha)
    except (TypeError, ValueError, OverflowError):
        raise InvalidError(f"alpha must be a number, have {alpha!r}") from None
    if dtype.kind == "c":
        return factor
    if factor.imag:
        raise InvalidError(f"alpha must be real for matrices of {dtype}, have {alpha!r}")
    return factor.real


def _operand(
    name: str, given: Array | npt.NDArray[Any], trans: Trans, dtype: np.dtype[Any]
) -> Operand:
    """Make an operand. A vector is a row on the left and a column on the right."""
    if given.ndim == 1:
        if trans == "C" and dtype.kind == "c":
            raise InvalidError(
                f"{name} is a vector, which has no conjugate transpose; pass its conjugate"
            )
        trans = "T" if name == "A" else "N"
    return operand(given, trans, dtype)


def _product(
    left: Operand,
    right: Operand,
    arrays: Mapping[str, Array | npt.NDArray[Any]],
    dtype: np.dtype[Any],
    *,
    is_stored: bool,
) -> Product:
    (m, k), (inner, n) = left.shape, right.shape
    if k != inner:
        raise InvalidError(
            f"op(A) is {m} x {k} and op(B) {inner} x {n}: the {k} columns of the one must be as "
            f"many as the {inner} rows of the other"
        )
    shape = (m,) * (arrays["A"].ndim == 2) + (n,) * (arrays["B"].ndim == 2)
    return Product(
        m, n, k, dtype, left.grains, right.grains, shape, is_stored,
        left.copy_bytes + right.copy_bytes,
    )  # fmt: skip


def _can_be_stored(product: Product) -> bool:
    """Whether an array on disk can have the result: it has a dimension, elements and terms."""
    return product.shape != () and 0 not in (*product.shape, product.k)


def _empty(product: Product) -> Any:
    """Return a result without elements, or sums without terms."""
    keep(Report("matmul", product.n, product.dtype.name, 0.0, 0.0, 0, 0, 0, 0, m=product.m))
    return np.zeros(product.shape, product.dtype)[()]


def _to_memory(
    g: MatmulGeometry,
    operands: tuple[Operand, Operand],
    call: LongCall,
    alpha: complex,
    steps: StepsDone,
) -> tuple[Any, Report]:
    """Return the result, which all processes get, and the report of all of them."""
    product = g.product
    C = room(product.m, product.n, product.dtype, steps.sharing.here())
    with Team(steps.sharing) as team:
        work = _Multiplication(g, *operands, WholeResult(C), call, alpha, steps, team)
        with meeting_at_the_end(team, g.bytes_read(), g.own_flops):
            work.run()
        share_result(C, [g.extent(rank) for rank in range(g.size)], team)
        report = _whole_report(g, call, operands, 0, steps, work, team)
    return C.reshape(product.shape, order="F")[()], report


def _to_disk(
    g: MatmulGeometry,
    operands: tuple[Operand, Operand],
    where: Place,
    call: LongCall,
    alpha: complex,
    steps: StepsDone,
) -> tuple[Array, Report]:
    """Write the result to an array; return the array, and the report of all processes."""
    shape, dtype = g.product.shape, g.product.dtype
    metadata = result_metadata(shape, dtype, g.tile)
    with written(where, metadata, _WHY, steps) as array, Team(steps.sharing) as team:
        if team.rank:
            array.count_writing(elsewhere=True)
        file = open_whole_chunks(array, call, g.bounce_bytes("C"), 2, writable=True)
        result = DiskResult(
            file, call, dtype, g.block_shape,
            chunk=g.tile if len(shape) == 2 else None, axis=g.final_axis,
            steps=1 if g.is_one_piece else _steps(g),
        )  # fmt: skip
        work = _Multiplication(g, *operands, result, call, alpha, steps, team)
        with meeting_at_the_end(team, g.bytes_read() + g.bytes_written(), g.own_flops):
            work.run()
        report = _whole_report(g, call, operands, file.counters()[1], steps, work, team)
    return array, report


def _whole_report(
    g: MatmulGeometry,
    call: LongCall,
    operands: tuple[Operand, Operand],
    bytes_written: int,
    steps: StepsDone,
    work: _Multiplication,
    team: Team,
) -> Report:
    """Return the report of all processes."""
    product = g.product
    own = call.report(
        Report, "matmul", product.n, product.dtype, m=product.m, method=g.method,
        flops=g.own_flops, moved=(sum(each.bytes_read() for each in operands), bytes_written),
        planned=(g.bytes_read(), g.bytes_written()),
        words_lower_bound=g.words_lower_bound(), arrays=["A", "B", "the product"],
        notes=steps.notes(len(list(g.blocks()))),
    )  # fmt: skip
    if team.size > 1:
        own.processes = [process_figures(own, all_sent(work.pieces, team), g.sent())]
    return whole_report(own, team)


def _steps(g: MatmulGeometry) -> int:
    """Return the number of pieces that stream past a slab."""
    return len(g.lengths(next(g.blocks()))) * len(g.depths(g.slabs()[0]))


class _Multiplication:
    """The loops of the algorithm."""

    def __init__(
        self,
        g: MatmulGeometry,
        left: Operand,
        right: Operand,
        result: WholeResult | DiskResult,
        call: LongCall,
        alpha: complex,
        steps: StepsDone,
        team: Team | None = None,
    ) -> None:
        self.g, self.result, self.call, self.alpha = g, result, call, alpha
        self.steps, self.team, blocks = steps, team or alone(), list(g.blocks())
        self.count, self.left = len(blocks), left_of_all(steps, blocks)
        for rows, columns in blocks[: self.count - len(self.left)]:
            m, n = rows.stop - rows.start, columns.stop - columns.start
            call.meter.skip(flops(m, n, g.product.k, g.product.dtype))
        self.kernels = kernels(g.product.dtype)
        held, self.streamed = (right, left) if g.holds == "B" else (left, right)
        self.pieces = Pieces()
        order = self.slab_order()
        self.coming = deque(order)
        self.held: deque[tuple[Extent, Part]] = deque()
        self.slabs = self.read_slabs(held, order)

    def boxes(self) -> Iterator[Extent]:
        """Boxes of the streamed operand in the order of their use."""
        for _, block in self.left:
            for along, depth in self.g.pieces(block):
                yield self.g.box(self.g.streams, along, depth)

    def slab_order(self) -> list[Extent]:
        """Slabs in the order of their use, as (along C, depth). Adjacent blocks may share one."""
        order: list[Extent] = []
        for _, block in self.left:
            along = block[self.g.holds == "B"]
            for depth in self.g.slabs() if along.start < along.stop else ():
                slab = (along, depth)
                if order[-1:] != [slab]:
                    order.append(slab)
        return order

    def read_slabs(self, held: Operand, order: list[Extent]) -> MemorySlabs | DiskSlabs:
        g = self.g
        if isinstance(held, MemoryOperand):
            return MemorySlabs(held)
        return DiskSlabs(
            held, [g.box(g.holds, *slab) for slab in order], self.call,
            buffers=g.slab_buffers, slab_bytes=g.slab_bytes, steps=_steps(g),
        )  # fmt: skip

    def run(self) -> None:
        g = self.g
        # Another process may still read a slab, or write its block.
        more_s = seconds_for(g.budget_bytes, flops(g.rows, g.columns, g.depth, g.product.dtype))
        try:
            with self.pieces.parts(
                self.streamed, self.boxes(), self.team, self.call, g.piece_bytes, more_s
            ) as parts:
                for done, block in self.left:
                    self.multiply(block, parts)
                    self.steps.passed(done, self.count, self.result.sync)
            self.result.flush()
        except BaseException:
            self.result.abandon()
            raise

    def multiply(self, block: Extent, parts: Iterator[Part]) -> None:
        """Compute a block of C, which is written as it becomes final.

        A process without columns in a block sends pieces to the others.
        """
        is_empty = any(along.start == along.stop for along in block)
        C = None if is_empty else self.result.begin(block)
        for along, depth in self.g.pieces(block):
            piece = next(parts)
            if C is not None:
                self.hold(block, depth)
                self.add(block, along, depth, piece, C)
                self.slabs.advance()
            del piece
            self.result.advance()

    def hold(self, block: Extent, depth: slice) -> None:
        """Hold the one or two slabs that a piece needs, and release earlier ones."""
        length = block[self.g.holds == "B"]
        needed = [(length, slab) for slab in self.g.slabs() if _meet(slab, depth)]
        while self.held and self.held[0][0] not in needed:
            self.held.popleft()
            self.slabs.release()
        while not any(slab == needed[-1] for slab, _ in self.held):
            self.held.append((self.coming.popleft(), self.slabs.take()))

    def add(self, block: Extent, along: slice, depth: slice, piece: Part, C: Matrix) -> None:
        """C += alpha op(A) op(B) for one piece. The first piece of the depth overwrites C."""
        g, axis = self.g, self.g.final_axis
        is_first, is_last = depth.start == 0, depth.stop == g.product.k
        parts = g.parts(block, along) if is_first or is_last else [g.part(block, along)]
        for rows, columns in parts:
            here = _within(rows, block[0]), _within(columns, block[1])
            if is_first:
                self.result.wait_free(here[axis])
            start_ns = self.call.trace.now_ns()
            self.add_part(piece, depth, rows, columns, C[here])
            self.call.trace.record("compute", start_ns)
            if is_last:
                self.result.done(here[axis].stop)
            if len(parts) > 1:
                self.result.advance()

    def add_part(self, piece: Part, depth: slice, rows: slice, columns: slice, C: Matrix) -> None:
        """Add the product of a piece for some rows and columns of C."""
        for (_, slab), held in self.held:
            inner = slice(max(slab.start, depth.start), min(slab.stop, depth.stop))
            if inner.start >= inner.stop:
                continue
            a, b = (held, piece) if self.g.holds == "A" else (piece, held)
            self.kernels.gemm(
                a.cut(rows, inner), b.cut(inner, columns), C,
                alpha=self.alpha, beta=1.0 if inner.start else 0.0,
                trans_a=a.trans, trans_b=b.trans,
            )  # fmt: skip
            work = flops(C.shape[0], C.shape[1], inner.stop - inner.start, C.dtype)
            self.call.meter.advance(work)


def _within(part: slice, whole: slice) -> slice:
    return slice(part.start - whole.start, part.stop - whole.start)


def _meet(a: slice, b: slice) -> bool:
    return bool(a.start < b.stop and b.start < a.stop)
