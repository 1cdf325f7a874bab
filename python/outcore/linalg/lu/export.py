"""LU factors in the order that LAPACK has them, for other programs.

On disk, a panel of L carries the row swaps of its own and earlier panels only. LAPACK carries out
later ones in it too. That is done here, in one pass: strips of columns are read, swapped in memory,
and written.
"""

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore._core import ArrayFile
from outcore.array import Array, open_array
from outcore.errors import BudgetError
from outcore.lapack import kernels
from outcore.linalg.factors.factor import LUFactor, refuse_others, tile_metadata
from outcore.linalg.lu.plan import TILE_BOUNCE_BYTES
from outcore.linalg.lu.solve import stopping_cleanly
from outcore.linalg.result import claimed, written
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.sizes import format_bytes
from outcore.streams import BlockStream, WriteBehind
from outcore.volumes import PathLike, place
from outcore.zarr_format import SLOT_ALIGN_BYTES

_WHY = "the export that wrote it was stopped; call export_lapack again"

_STRIPS = 3
"""In memory: one that is read, one in which rows are swapped, one that is written."""

_MOST_BOUNCE_BYTES = 4 << 20


def export_lapack(
    lu: LUFactor,
    out: PathLike | None = None,
    *,
    memory: int | str | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Array, npt.NDArray[np.int32], Report]:
    """Write L and U into one array, in LAPACK's order.

    Parameters
    ----------
    lu
        Factors from `lu_factor` or `open_factor`. They stay as they are.
    out
        Directory of the array; by default that of the factors with ``.lapack`` appended.
    memory
        Budget; by default half of the available memory. At least three columns of the matrix and
        the padding of its tiles.
    overwrite
        Replace an array that is at `out`.
    threads, progress
        As for `lu_factor`.

    Returns
    -------
    packed : Array
        (n, n): U on and above the diagonal, L below it without its diagonal of ones.
    piv : numpy.ndarray
        (n,) int32: row i was swapped with row ``piv[i]``, counted from 0. In memory,
        ``scipy.linalg.lu_solve((packed[...], piv), b)`` solves with them.
    report : Report
        Of the call: n² elements are read and written, and the padding of the tiles is read.

    Raises
    ------
    InvalidError
        If these are no LU factors.
    BudgetError
        If three columns do not fit in memory.
    ExistsError, BusyError, DiskFullError
        If there is something at `out`, another call writes there, or the disk has no room.
    Interrupted
        After Ctrl-C or SIGTERM; nothing is left of the array.
    """
    refuse_others(lu, LUFactor)
    memory_bytes = budget.resolve(memory)
    bounce = min(_MOST_BOUNCE_BYTES, memory_bytes // 16)
    strip = _strip_columns(lu, memory_bytes - bounce - TILE_BOUNCE_BYTES)
    metadata = tile_metadata(lu.n, lu.dtype, lu.tile)
    target = f"{lu.path}.lapack" if out is None else out
    with (
        stopping_cleanly("exporting", lu),
        long_call(
            f"exporting {lu.path.name}", memory_bytes=memory_bytes, work=lu.n, threads=threads,
            progress=progress,
        ) as call,
        claimed(target, [lu.path], overwrite=overwrite, why=_WHY),
        written(place(target), metadata, _WHY) as packed,
    ):  # fmt: skip
        file = packed.open_file(call.arena, bounce, writable=True, trace=call.trace)
        report = _export(lu, file, strip, call)
    return open_array(target), lu.piv.copy(), report


def _strip_columns(lu: LUFactor, memory_bytes: int) -> int:
    """Count the columns of a strip, at most those of a panel."""
    column = _height(lu) * lu.dtype.itemsize
    fit = (memory_bytes // _STRIPS - SLOT_ALIGN_BYTES) // column
    if fit >= 1:
        return min(fit, lu.tile[1])
    need = (_STRIPS * (column + SLOT_ALIGN_BYTES) + TILE_BOUNCE_BYTES) * 16 // 15 + 16
    raise BudgetError(
        f"need {need} bytes ({format_bytes(need)}) for {_STRIPS} columns of an LU of order {lu.n}, "
        f"have {memory_bytes}; raise memory="
    )


def _height(lu: LUFactor) -> int:
    """Rows of a panel on disk: whole tiles."""
    return -(-lu.n // lu.tile[0]) * lu.tile[0]


def _export(lu: LUFactor, target: ArrayFile, strip: int, call: LongCall) -> Report:
    n, height, width = lu.n, _height(lu), lu.tile[1]
    strip_bytes = -(-height * strip * lu.dtype.itemsize // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES
    source = lu.open_tiles(call.arena, call.trace)
    stream = BlockStream(
        source, lu.dtype, call.arena, _STRIPS * strip_bytes, call.trace, least_bytes=strip_bytes
    )
    strips = [
        slice(first, min(first + strip, end))
        for left in range(0, n, width)
        for end in [min(left + width, n)]
        for first in range(left, end, strip)
    ]
    stream.extend((slice(0, height), columns) for columns in strips)
    with WriteBehind(target, most=1, trace=call.trace) as writer:
        for columns in strips:
            data = stream.take().data[:n]
            start_ns = call.trace.now_ns()
            below = min((columns.start // width + 1) * width, n)
            kernels(lu.dtype).laswp(data, lu.piv, below, n)
            call.trace.record("compute", start_ns)
            writer.write((slice(0, n), columns), data)
            call.meter.advance(columns.stop - columns.start)
        writer.flush(sync=True)
    return Report(
        verb="export_lapack",
        n=n,
        dtype=lu.dtype.name,
        flops=0,
        bytes_read=source.counters()[0],
        bytes_written=target.counters()[1],
        planned_bytes_read=height * n * lu.dtype.itemsize,
        planned_bytes_written=n * n * lu.dtype.itemsize,
        **call.figures(),
    )
