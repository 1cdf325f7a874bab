"""The start and the end of an iterative method: arguments, the matrix, and the budget."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from outcore.array.array import Array, open_array
from outcore.array_files.metadata import read_metadata, settle, version_of
from outcore.blas import blas_choice
from outcore.errors import Interrupted, InvalidError, OutcoreError
from outcore.layout.elements import array_of
from outcore.linalg._rhs.right_hand_side import RightHandSide, opened, row_not_finite
from outcore.linalg._rhs.solutions import Solution, solution, version_of_columns
from outcore.linalg._tiles.matrix import open_matrix, place_of
from outcore.linalg._tiles.result_dtype import matrix_dtype, result_dtype
from outcore.linalg.iterative.arguments import Setting
from outcore.linalg.iterative.groups import Choices, Divider, Division
from outcore.linalg.iterative.iteration import NOT_FINITE_X0, Iteration
from outcore.linalg.iterative.narrow_copy import narrow_copy
from outcore.linalg.iterative.plan import (
    MatrixLayout,
    check_dtype,
    narrow_dtype,
    working_dtype,
)
from outcore.linalg.iterative.preconditioners import check_factors
from outcore.linalg.iterative.strips.diagonal_blocks import diagonal_blocks
from outcore.processes.sharing import Sharing
from outcore.report.longcall import long_call
from outcore.storage.volumes import AnyPath, PathLike, Place, as_path, place

MANY_COLUMNS = 8
"""With this many right-hand sides or more, the processor is the bottleneck, not memory bandwidth.
"""


@contextmanager
def open_iteration(
    name: str,
    A: Array | PathLike,
    b: npt.ArrayLike | Array | PathLike,
    choices: Choices,
    setting: Setting,
    sharing: Sharing | None = None,
) -> Iterator[Iteration]:
    """Check the operands of an iterative method, and open the matrix for it.

    Parameters
    ----------
    name
        Name of the method.
    A, b
        Matrix and right-hand sides.
    choices
        Returns the possible memory demands of the method.
    setting
        The other arguments.
    sharing
        The processes of a joint call; by default this one alone.

    Raises
    ------
    Interrupted
        On Ctrl-C or SIGTERM. The error contains the current solution as ``x``.
    """
    sharing = sharing or Sharing()
    source = place_of(A)
    metadata = read_metadata(source)
    if len(metadata.shape) != 2 or metadata.shape[0] != metadata.shape[1]:
        raise InvalidError(f"need a square matrix, have shape {metadata.shape} in {source.path}")
    sharing.agree_on_matrix(source, metadata)
    n, memory_bytes = metadata.shape[0], sharing.budget(setting.memory)
    right, x0 = opened(b), _opened(setting.x0)
    found = result_dtype({"A": metadata.dtype, "b": right.dtype}, setting.dtype)
    dtype = working_dtype(matrix_dtype(found, metadata.dtype), setting.storage)
    check_dtype(metadata.dtype, dtype)
    others = [x0] if isinstance(x0, Array) else []
    reads = [source.path, *(each.path for each in [*others, setting.factors] if each is not None)]
    rhs = RightHandSide.read(
        n, dtype, right, "N", setting.out if sharing.rank == 0 else None,
        if_exists=setting.if_exists, reads=reads, stays=True, made=setting.made,
    )  # fmt: skip
    if rhs.columns == 0:
        raise InvalidError(
            f"need at least one right-hand side, have shape {rhs.b.shape}; leave the call out "
            "where there is none"
        )
    rhs.refuse_non_finite_given()
    x0 = None if x0 is None else _guess(x0, rhs)
    if setting.factors is not None:
        check_factors(setting.factors, n, dtype)
    stored = metadata.dtype if setting.storage is None else narrow_dtype(dtype)
    chunks = metadata.chunks
    layout = MatrixLayout(n, stored, dtype, (chunks[0], chunks[1]), metadata.order)
    itself = dataclasses.replace(layout, stored=metadata.dtype)
    have = {
        "shape of the right-hand sides": tuple(rhs.b.shape),
        "type of the solution": rhs.solution_dtype.str,
    }
    sharing.agree(have)
    divider = Divider(
        layout, itself.slot_bytes if stored != metadata.dtype else None, rhs, x0, choices, setting,
        memory_bytes, sharing.rank, sharing.size,
    )  # fmt: skip
    division = _agreed(divider, sharing)
    scratch = _scratch(source, setting)
    with contextlib.ExitStack() as held:
        array = held.enter_context(open_matrix(source))
        call = held.enter_context(
            long_call(
                f"{name} of {source.title}", memory_bytes=memory_bytes, work=1.0,
                threads=_threads(setting.threads, division.geometry.columns),
                progress=sharing.progress(setting.progress),
            )
        )  # fmt: skip
        file = array.open_file(call.arena, 1, trace=call.trace)
        into = Solution(None)
        if setting.out is None or rhs.out is not None:
            system = _system(name, source, rhs, setting)
            into = held.enter_context(solution(rhs, system=system, resume=setting.resume))
        it = Iteration(name, division, call, rhs, x0, setting, file, into, sharing)
        mine = f".{sharing.rank}" if sharing.size > 1 else ""
        try:
            if it.is_copied:
                g, where = division.geometry, place(f"{scratch}.f4{mine}")
                copy = narrow_copy(g, it.open_source(), call, where)
                it.open_tiles(held.enter_context(copy), is_copy=True)
            else:
                it.open_tiles(file, is_copy=False)
            if layout_of_blocks := division.geometry.blocks:
                blocks = diagonal_blocks(layout_of_blocks, call, place(f"{scratch}.diagonal{mine}"))
                it.factor_blocks(held.enter_context(blocks))
            yield it
        except KeyboardInterrupt as stop:
            raise _stopped(f"{name} of {source.title}", it, into, stop) from None


def _opened(given: Any) -> Any:
    """Open an array if its path is given."""
    return open_array(given) if isinstance(given, str | os.PathLike) else given


def _guess(x0: Any, rhs: RightHandSide) -> Any:
    """Check an initial solution."""
    given = x0 if isinstance(x0, Array) else array_of(x0, "an array as x0")
    if given.shape != rhs.b.shape:
        raise InvalidError(f"x0 must have the shape of b, {rhs.b.shape}, have {given.shape}")
    is_real = rhs.solution_dtype.kind == "f"
    if given.dtype.kind not in "biufc" or (given.dtype.kind == "c" and is_real):
        raise InvalidError(
            f"x0 must be of a type that converts to {rhs.solution_dtype}, have {given.dtype}"
        )
    if not isinstance(given, Array) and row_not_finite(given, rhs.solution_dtype) is not None:
        raise InvalidError(NOT_FINITE_X0)
    return given


def _scratch(source: Place, setting: Setting) -> AnyPath:
    """Return the prefix of temporary files: the path of the matrix, or a name in `scratch`."""
    if not setting.scratch:
        return as_path(source.stem)
    digest = hashlib.blake2b(source.source.encode(), digest_size=4).hexdigest()
    return as_path(setting.scratch) / f"{source.title}-{digest}"


def _agreed(divider: Divider, sharing: Sharing) -> Division:
    """Divide the budget so that all processes have the same groups and diagonal blocks."""
    found = divider.divide()
    if (size := min(sharing.exchange(found.size))) != found.size:
        found = divider.divide(size)
    if (block := min(sharing.exchange(found.geometry.strips.block))) != found.geometry.strips.block:
        found = divider.divide(size, block)
    return found


def _threads(asked: int | None, columns: int) -> int | None:
    """Return the threads of the BLAS: half by default if memory bandwidth limits products.

    Half of the threads suffice for that bandwidth, and leave the other cores to transfers.
    """
    if asked is not None or columns >= MANY_COLUMNS:
        return asked
    return max(blas_choice.in_use()[1] // 2, 1)


def _system(
    name: str, source: Place, rhs: RightHandSide, setting: Setting
) -> dict[str, Any] | None:
    """Return the identity of a system, by which a later call recognizes its solution."""
    if rhs.out is None or setting.tol is None:
        return None
    settle(source)
    return {
        "verb": name,
        "A": [source.source, *version_of(source)],
        "b": version_of_columns(rhs),
        "tol": setting.tol,
        "assume_a": setting.assume_a,
        "dtype": rhs.solution_dtype.name,
    }


def _stopped(doing: str, it: Iteration, into: Solution, stop: KeyboardInterrupt) -> Interrupted:
    """Return an error that says how far a call came, and how to resume it."""
    why = f" because {stop}" if isinstance(stop, Interrupted) else ""
    with contextlib.suppress(OutcoreError):
        it.keep_at_stop()
    x = it.reached()
    if into.has_begun:
        at = f"at column {into.done}" if into.done else "from there"
        fix = f"call again with the same arguments to resume {at}"
    elif x is not None:
        fix = "call again, with x0= the x of this exception to resume"
    else:
        fix = "call again"
    found = Interrupted(f"{doing} stopped after {it.at()}{why}; {fix}")
    found.x = x
    return found
