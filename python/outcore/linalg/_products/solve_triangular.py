"""Triangular systems larger than memory, op(T) X = B: the call. The loops are in `substitution`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.blas.calls import Trans
from outcore.errors import Interrupted, InvalidError
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.result import claimed, room, written
from outcore.linalg._output.result_chunks import result_metadata
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._products.substitution import Substitution
from outcore.linalg._products.triangular_plan import (
    TriangularGeometry,
    TriangularSystem,
    flops,
    triangular_geometry,
)
from outcore.linalg._tiles.block_writer import DiskResult, WholeResult
from outcore.linalg._tiles.grains import Grains
from outcore.linalg._tiles.operand import (
    OperandLike,
    grains_of,
    open_whole_chunks,
    operand,
    read_arrays,
)
from outcore.linalg._tiles.result_dtype import result_dtype
from outcore.linalg._tiles.transposes import read_trans
from outcore.report.longcall import LongCall, check_threads, long_call
from outcore.report.report import Report, keep
from outcore.storage.volumes import PathLike, Place

Which: TypeAlias = Literal[0, 1, 2, "N", "T", "C"]

_WHY = "the solve that wrote it was stopped; call solve_triangular again with the same arguments"


@opens_results(beside("B", ".x"))
def solve_triangular(
    made: Made,
    T: OperandLike,
    B: OperandLike,
    *,
    trans: Which = "N",
    lower: bool = False,
    unit_diagonal: bool = False,
    dtype: npt.DTypeLike | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    memory: int | str | None = None,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> Any:
    """Solve op(T) X = B with a triangular matrix T, each in memory or on disk.

    Parameters
    ----------
    T
        (n, n) array on disk, with any chunks in either order, its path or lazy transpose ``A.T``,
        or a NumPy array. The call uses only its upper triangle, or with `lower` the lower one. It
        reads elements of the other triangle only if they lie in the same chunks.
    B
        (n,) or (n, k) right-hand sides, on disk or in memory.
    trans
        The operator op: ``"N"`` or 0 none, ``"T"`` or 1 the transpose, ``"C"`` or 2 the conjugate
        transpose.
    lower
        Whether T is lower triangular.
    unit_diagonal
        Treat the diagonal as ones, and ignore its elements.
    out
        Directory of the solution on disk; by default that of an on-disk `B` with ``.x`` appended.
    resume
        Resume a stopped call with the same arguments, if the solution is on disk. The call records
        its progress about every minute, by groups of as many columns as fit in memory.
    memory
        Budget, such as ``"8 GiB"``; by default half of the available memory. It does not include a
        `T`, `B` or X in memory, which belong to the caller.
    dtype, if_exists, threads, progress
        As for `matmul`.

    Returns
    -------
    Array or numpy.ndarray
        X, of the shape of `B`. Its type is the promotion of `T` and `B`, or `dtype`. It is on disk,
        in Fortran order, if `B` is or `out` is given.

    Raises
    ------
    SingularMatrixError
        If the diagonal has a zero. ``info`` is LAPACK's: the number of the first zero, counted from
        1.
    NonFiniteError
        If the triangle or `B` has a NaN or an infinity. The error gives its index.
    InvalidError
        If shapes do not fit, types are not supported, or `out` is an operand.
    BudgetError, DiskFullError
        Before any work, if memory or disk space do not suffice.
    ExistsError, BusyError
        If `out` holds something that must not be overwritten, or another call writes there.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes if the solution is on disk.
    """
    check_threads(threads)
    arrays = read_arrays({"T": T, "B": B})
    computed_in = result_dtype({name: x.dtype for name, x in arrays.items()}, dtype)
    if out is None and isinstance(arrays["B"], Array):
        out = f"{arrays['B'].place.stem}.x"
    letter = read_trans("trans", trans)
    system = _system(arrays, letter, computed_in, is_lower=bool(lower), is_stored=out is not None)
    if system.rhs == 0:
        keep(Report("solve_triangular", system.n, computed_in.name, 0.0, 0.0, 0, 0, 0, 0))
        return np.zeros(system.shape, computed_in)
    matrix = operand(arrays["T"], letter, computed_in)
    system = dataclasses.replace(system, t=matrix.grains, copy_bytes=matrix.copy_bytes)
    arguments = {
        "trans": letter,
        "lower": bool(lower),
        "unit": bool(unit_diagonal),
        "dtype": computed_in.name,
    }
    steps = StepsDone(out, "solve_triangular", arguments, arrays, memory, resume=resume, made=made)
    g = triangular_geometry(system, steps.memory_bytes)
    try:
        with (
            claimed(out, list(arrays.values()), if_exists=if_exists, why=_WHY) as where,
            long_call(
                "triangular system", memory_bytes=steps.memory_bytes,
                work=flops(system.n, system.rhs, computed_in), threads=threads, progress=progress,
            ) as call,
        ):  # fmt: skip
            run = Substitution(
                g, matrix, arrays["T"], arrays["B"], call,
                is_lower=bool(lower), is_unit=bool(unit_diagonal),
            )  # fmt: skip
            if where is None:
                X = room(system.n, system.rhs, computed_in)
                run.run(WholeResult(X), steps)
                result: Any = X.reshape(system.shape, order="F")
                bytes_written = 0
            else:
                result, bytes_written = _to_disk(g, run, where, call, steps)
            run.notes += steps.notes(len(list(g.groups())))
            keep(_report(g, run, call, bytes_written), result)
            return result
    except KeyboardInterrupt:
        raise Interrupted(steps.stopped("the solve", "solve_triangular")) from None


def _system(
    arrays: Mapping[str, Array | npt.NDArray[Any]],
    trans: Trans,
    dtype: np.dtype[Any],
    *,
    is_lower: bool,
    is_stored: bool,
) -> TriangularSystem:
    T, b = arrays["T"], arrays["B"]
    if T.ndim != 2 or T.shape[0] != T.shape[1]:
        raise InvalidError(f"need a square matrix as T, have shape {T.shape}")
    n, shape = T.shape[0], b.shape
    if shape[0] != n:
        raise InvalidError(f"need a B of shape ({n},) or ({n}, k), have {shape}")
    if is_stored and 0 in shape:
        raise InvalidError(f"a solution of shape {shape} cannot be on disk; leave out= out")
    grains = grains_of(b, dtype) if isinstance(b, Array) else Grains()
    return TriangularSystem(
        n, (*shape, 1)[1] if n else 0, dtype, Grains(), grains, is_lower != (trans != "N"), shape,
        is_stored,
    )  # fmt: skip


def _to_disk(
    g: TriangularGeometry, run: Substitution, where: Place, call: LongCall, steps: StepsDone
) -> tuple[Array, int]:
    """Write the solution to an array; return the array, and the bytes written."""
    system = g.system
    with written(where, result_metadata(system.shape, system.dtype, g.chunk), _WHY, steps) as array:
        file = open_whole_chunks(array, call, g.bounce_bytes("X"), 2, writable=True)
        result = DiskResult(
            file, call, system.dtype, g.block_shape,
            chunk=g.chunk if len(system.shape) == 2 else None, axis=0,
            steps=sum(len(g.pieces(strip)) for strip in g.strips()),
            is_backward=not system.is_lower,
        )  # fmt: skip
        run.run(result, steps)
    return array, file.counters()[1]


def _report(g: TriangularGeometry, run: Substitution, call: LongCall, bytes_written: int) -> Report:
    system = g.system
    return call.report(
        Report, "solve_triangular", system.n, system.dtype, method=g.method,
        flops=flops(system.n, system.rhs, system.dtype), moved=(run.bytes_read(), bytes_written),
        planned=(g.bytes_read(), g.bytes_written()), words_lower_bound=g.words_lower_bound(),
        notes=run.notes, arrays=["T", "B", "X"],
    )  # fmt: skip
