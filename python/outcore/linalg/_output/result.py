"""The result of a call: in memory, or an array on disk that is incomplete until the call ends."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util import budget
from outcore._util.if_exists import IfExists
from outcore._util.signals import signals_held
from outcore._util.sizes import format_bytes
from outcore._util.streams import wait
from outcore.array.array import Array, open_array
from outcore.array.existing import remove_array
from outcore.array_files.blocks_done import RECORDS, WORKING, is_named
from outcore.array_files.metadata import bump_generation, read_metadata, write_metadata
from outcore.errors import BudgetError, ExistsError, InvalidError, OutcoreError
from outcore.layout.zarr_format import Metadata, default_chunks
from outcore.linalg._output.open_results import with_version
from outcore.linalg._output.steps_done import StepsDone
from outcore.processes.sharing import Sharing
from outcore.report.longcall import LongCall
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import SAME, PathLike, Place, being_made, how_they_meet, place

_WORKING = "the call that works with it was stopped; call it again"


@contextmanager
def claimed(
    out: PathLike | None,
    operands: Sequence[object],
    *,
    if_exists: IfExists,
    why: str,
    sharing: Sharing | None = None,
) -> Iterator[Place | None]:
    """Check the place of a result, and lock it against other calls; `None` stays `None`.

    The first of several processes checks and locks it.

    Parameters
    ----------
    out
        Directory of the result.
    operands
        Inputs of the call, which the result must not replace: arrays, and paths of factors.
    if_exists
        ``"overwrite"`` replaces a complete array. The remains of a stopped call are always
        replaced.
    why
        Text that marks an array as left by a stopped call of the same function.
    sharing
        The processes of the call.

    Raises
    ------
    ExistsError
        If `out` exists and may not be replaced.
    InvalidError
        If `out` is an operand.
    BusyError
        If another call writes to `out`.
    """
    if out is None:
        yield None
        return
    where = place(out)
    for operand in operands:
        path = operand.path if isinstance(operand, Array) else operand
        if not isinstance(path, Path | PoolPath):
            continue
        if meet := how_they_meet(where.path, path):
            what = "is an operand itself" if meet == SAME else f"{meet} {path.name}"
            raise InvalidError(f"out= {what}, {where.path}; choose another directory")
    sharing = sharing or Sharing()
    with contextlib.ExitStack() as stack:
        if sharing.rank == 0:
            stack.enter_context(being_made(where, f"writing {where.path.name}"))
            refuse_there(where, why, if_exists=if_exists)
        sharing.meet()
        yield where


@contextmanager
def written(
    where: Place, metadata: Metadata, why: str, steps: StepsDone | None = None
) -> Iterator[Array]:
    """Create an array, and mark it complete at the end of the block; an error removes it.

    Its space on disk is allocated at once. With `steps`, the call resumes an array with durable
    steps, and an error leaves the array. If several processes call, the first one creates, marks
    and removes it.
    """
    sharing = Sharing() if steps is None else steps.sharing
    is_first = sharing.rank == 0
    metadata = metadata.on(where.volume)
    begun = dataclasses.replace(metadata, state="incomplete", why=why)
    goes_on = steps is not None and steps.find(where, begun)
    if is_first and not goes_on and where.volume.exists(where.name):
        remove_array(where)
    try:
        if is_first and not goes_on:
            write_metadata(where, begun)
            ArrayFile.create(where.volume, where.name, metadata.grid(), True)
            bump_generation(where)
        sharing.meet()
        array = open_array(where.path, "r+", allow_incomplete=True)
        yield array
        array.flush()
        sharing.meet()
        with signals_held():
            if is_first:
                for name, *_ in where.names():
                    if is_named(name, WORKING):
                        where.volume.remove(where.inside(name))
                array.mark(None, made=with_version(steps.made, array) if steps else None)
            sharing.meet()
            if not is_first:
                array.refresh()
            if steps is not None:
                steps.finish()
    except BaseException as error:
        # Afterwards no process writes into the array, unless it does not answer.
        sharing.tell(error)
        if is_first and not getattr(error, "is_lost", False):
            with contextlib.suppress(OutcoreError):
                if not any(is_named(name, RECORDS) for name, *_ in where.names()):
                    remove_array(where)
        raise


def working_array(target: Array, name: str, metadata: Metadata, *, anew: bool) -> Array:
    """Open an array inside a result; its space on disk is allocated at its creation.

    It is removed when the result is complete. An existing one is kept, unless `anew` is true.
    """
    where = target.place.below(name)
    if anew or not where.exists():
        if where.volume.exists(where.name):
            remove_array(where)
        metadata = metadata.on(where.volume)
        write_metadata(where, dataclasses.replace(metadata, state="incomplete", why=_WORKING))
        ArrayFile.create(where.volume, where.name, metadata.grid(), True)
    return open_array(where.path, "r+", allow_incomplete=True)


def columns_of(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Metadata:
    """Return the metadata of a result on disk that is computed in memory, column-major."""
    chunks = default_chunks(shape, dtype.itemsize, "F")
    return Metadata(shape, dtype, chunks, "F", "column-major")


def put(
    X: npt.NDArray[Any], target: Array, call: LongCall, transfer_bytes: int, number: int
) -> tuple[int, int]:
    """Write a result from memory, column-major; return the bytes read and written.

    `number` is that of the array in the trace.
    """
    file = target.open_file(
        call.arena, transfer_bytes, writable=True, trace=call.trace, trace_number=number
    )
    wait(file.submit_write([0] * X.ndim, [1] * X.ndim, X), call.trace)
    moved = file.counters()
    return moved[0], moved[1]


def room(rows: int, columns: int, dtype: np.dtype[Any], here: int = 1) -> npt.NDArray[Any]:
    """Allocate a result in memory, column-major.

    Parameters
    ----------
    here
        Number of processes of this machine that allocate one each.

    Raises
    ------
    BudgetError
        If less memory is available.
    """
    need, have = here * rows * columns * dtype.itemsize, budget.available_bytes()
    if need > have:
        of_each = "the result" if here == 1 else f"the results of {here} processes"
        raise BudgetError(
            f"need {need} bytes ({format_bytes(need)}) of memory for {of_each}, {have} "
            f"({format_bytes(have)}) are available; give out= to have it on disk"
        )
    return np.empty((rows, columns), dtype, order="F")


def refuse_there(where: Place, why: str, *, if_exists: IfExists) -> None:
    """Refuse to replace other data by a result.

    `why` is the mark of arrays that stopped calls of the same function left.

    Raises
    ------
    ExistsError
        If it is not an array, or an array that may not be overwritten.
    """
    is_there = where.volume.exists(where.name) and not _is_stopped(where, why)
    if is_there and (if_exists != "overwrite" or not where.exists()):
        raise ExistsError(
            f"{where.path} exists; choose another out=, pass if_exists='open' if the same call "
            "made it, or pass if_exists='overwrite' to replace an array"
        )


def _is_stopped(where: Place, why: str) -> bool:
    """Whether this is the incomplete result of a killed call.

    A call that was killed at its start leaves an empty directory, or one with partial metadata.
    """
    with contextlib.suppress(OutcoreError):
        metadata = read_metadata(where)
        return (metadata.state, metadata.why) == ("incomplete", why)
    names = [name for name, *_ in where.volume.list(where.name)] if where.path.is_dir() else ["?"]
    return all(name.startswith("zarr.json.") and name.endswith(".new") for name in names)
