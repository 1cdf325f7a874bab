"""The solution of least norm of a wide system, whose columns are streamed twice.

With Aᴴ = Q R, which needs no Q (the semi-normal equations)::

    Rᴴ R y = b,    x = Aᴴ y

The error of x is of the order of that of a solution by Q: it depends on the condition number of A,
not on its square (Paige 1973; Demmel & Higham 1993). The second pass also yields the residual b - A
x. With damp d, R includes the rows d I, and the residual is also d² y. The code has the conjugates
of all of these, because the columns of A are rows of its transpose, not of Aᴴ.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.errors import InvalidError
from outcore.linalg._lstsq.plan import LeastNormGeometry
from outcore.linalg._lstsq.triangle import (
    Minimizer,
    better_of,
    degrees_of_freedom,
    solve_triangle,
)
from outcore.linalg._output.steps_done import StepsDone
from outcore.linalg._rows.kept_state import KeptState
from outcore.linalg._rows.source import RowSource
from outcore.linalg._rows.stream import allocated, check_finite, leave, refuse_overflow, streams
from outcore.linalg._rows.tsqr import ParallelQR
from outcore.linalg._rows.tsqr_plan import tsqr_flops
from outcore.linalg._rows.weights import multiply, read_roots
from outcore.linalg._tiles.columns import largest, norms, power_of_two
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall


def least_norm(
    A: RowSource,
    b: RowSource,
    weights: RowSource | None,
    g: LeastNormGeometry,
    damp: float,
    cond: float,
    call: LongCall,
    target: Array | None,
    steps: StepsDone,
) -> tuple[Minimizer, int]:
    """Minimize ‖b - A x‖₂² + damp² ‖x‖₂², with the x of least norm; return the bytes read too.

    Parameters
    ----------
    A
        The columns of A, as rows.
    b, weights
        Right-hand sides, and weights of the rows if there are any.
    g
        Blocks in which they are read.
    damp, cond
        As in `lstsq`.
    call
        The call.
    target, steps
        The solution on disk, if any, beside which the state is saved; and the record of durable
        steps: a step is a block of columns in either pass.
    """
    dtype, shape = g.columns.dtype, (g.m, b.columns)
    c, rest = allocated(call, shape, dtype), allocated(call, shape, dtype)
    _read_right(b, c, g, call)
    roots = None
    if weights is not None:
        assert g.weights is not None, "they are planned with"
        roots = read_roots(weights, g.weights, g.m, call)
        multiply(c, roots[:, None])
    # Products of elements of A and b must be within the range of the type.
    top = power_of_two(float(largest(c).max(initial=0)))
    c /= dtype.type(top)
    rest[...] = c
    factor = ParallelQR(g.columns, 0, call)
    x = allocated(call, (g.n, b.columns), dtype)
    scale = allocated(call, (1, 1), np.dtype(np.float64))
    matrices = [*factor.state, rest, x, scale]
    cuts = [g.columns.height, *factor.cuts]
    kept = KeptState(target, steps, cuts, matrices, call)
    begun = kept.load(2 * g.blocks)
    R = factor.R
    if begun < g.blocks:
        _reduce(A, roots, factor, g, call, begun, kept)
        R = factor.triangle()
        if damp:
            factor.append_damping(R, factor.c, damp)
        refuse_overflow(R)
        scale[...] = power_of_two(float(largest(R).max()))
        R /= dtype.type(scale[0, 0])
    read = A.bytes_read() + b.bytes_read() + (weights.bytes_read() if weights else 0)

    right = norms(c)
    z, rank, condition, _ = solve_triangle(R, c, cond, call, trans="C")
    y = solve_triangle(R, z, cond, call)[0]
    counted = g.m if roots is None else int(np.count_nonzero(roots))
    freedom, share = float(max(counted - rank, 0)), damp / float(scale[0, 0])
    damped = share**2 * norms(y)
    if damp:
        spare = allocated(call, R.shape, dtype)
        spare[...] = R
        freedom = degrees_of_freedom(spare, rank, counted, share)
        del spare
    read += _multiply(
        A, roots, y, x, rest, float(scale[0, 0]), g, call, max(begun - g.blocks, 0), kept
    )
    with np.errstate(over="ignore", invalid="ignore"):
        x *= dtype.type(top / float(scale[0, 0]))
    np.conjugate(x, out=x)
    refuse_overflow(x)
    sizes = norms(rest)
    if damp and rank >= counted:
        sizes = better_of(sizes, damped, right, condition)
    return Minimizer(x, rank, condition, counted, sizes * top, freedom), read


def _read_right(b: RowSource, c: Matrix, g: LeastNormGeometry, call: LongCall) -> None:
    """Read the conjugates of the right-hand sides."""
    count = 0
    with streams([b], [g.b], call) as (stream,):
        for first, data, _ in stream:
            check_finite("b", first, data)
            count = first + len(data)
            if count > g.m:
                raise InvalidError(f"A ends after {g.m} rows, b has more; give as many")
            np.conjugate(data, out=c[first:count])
    if count < g.m:
        raise InvalidError(f"b ends after {count} rows, A has more; give as many")


def _reduce(
    A: RowSource,
    roots: npt.NDArray[Any] | None,
    factor: ParallelQR,
    g: LeastNormGeometry,
    call: LongCall,
    begun: int,
    kept: KeptState,
) -> None:
    """Stream the columns from block `begun`, and keep R."""
    work = tsqr_flops(g.n, g.m, 0, g.columns.dtype) / g.n
    factor.rows = begun * g.columns.height
    call.meter.skip(factor.rows * work)
    with streams([A], [g.columns], call, first=factor.rows) as opened, factor.at_work():
        for block, (first, data, _) in enumerate(opened[0], begun + 1):
            check_finite("A", first, data, transposed=True)
            if roots is not None:
                multiply(data, roots)
            leave(opened, factor.share(data))
            call.meter.advance(len(data) * work)
            if block < g.blocks:
                kept.passed(block, 2 * g.blocks, factor.settle)
        factor.finish()


def _multiply(
    A: RowSource,
    roots: npt.NDArray[Any] | None,
    y: Matrix,
    x: Matrix,
    rest: Matrix,
    scale: float,
    g: LeastNormGeometry,
    call: LongCall,
    begun: int,
    kept: KeptState,
) -> int:
    """Compute X <- B y / scale and rest <- rest - Bᴴ x / scale; return the bytes read.

    The rows of B are the columns of A, from block `begun`.
    """
    K, half = kernels(g.columns.dtype), power_of_two(math.sqrt(scale))
    y /= y.dtype.type(half)
    done = begun * g.columns.height
    if begun:
        call.meter.skip(tsqr_flops(g.n, g.m, 0, g.columns.dtype))
        call.meter.skip(done / g.n * g.product_flops)
    with streams([A], [g.columns], call, first=done) as (stream,):
        for block, (first, data, _) in enumerate(stream, begun + 1):
            if not g.columns.layout.is_stored:
                check_finite("A", first, data, transposed=True)
            if roots is not None:
                multiply(data, roots)
            start_ns = call.trace.now_ns()
            part = x[first : first + len(data)]
            K.gemm(data, y, part, alpha=half / scale, beta=0)
            K.gemm(data, part, rest, alpha=-1 / scale, trans_a="C")
            call.trace.record("compute", start_ns)
            call.meter.advance(len(data) / g.n * g.product_flops)
            kept.passed(g.blocks + block, 2 * g.blocks)
    return A.bytes_read()
