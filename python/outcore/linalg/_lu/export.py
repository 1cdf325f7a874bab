"""LU factors in LAPACK's order, for other programs.

On disk, a panel of L has the row swaps of its own and earlier panels only. In LAPACK's order it has
those of later panels too. The export applies them in one pass: it reads strips of columns, swaps
their rows in memory, and writes them.
"""

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream, WriteBehind
from outcore.array.array import Array, open_array
from outcore.blas.lapack import kernels
from outcore.errors import Interrupted
from outcore.linalg._lu.export_plan import ExportGeometry
from outcore.linalg._output.factor import LUFactor, refuse_others, tile_metadata
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.result import claimed, written
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike, place

_WHY = "the export that wrote it was stopped; call export_lapack again"


@opens_results(beside("lu", ".lapack"))
def export_lapack(
    made: Made,
    lu: LUFactor,
    out: PathLike | None = None,
    *,
    memory: int | str | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Array, npt.NDArray[np.int32], Report]:
    """Write L and U into one array, in LAPACK's order.

    Parameters
    ----------
    lu
        Factors from `lu_factor` or `open_factor`. The call does not change them.
    out
        Directory of the array; by default that of the factors with ``.lapack`` appended.
    memory
        Budget; by default half of the available memory. The call needs at least three columns of
        the matrix and the padding of its tiles.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call with the same arguments. The call records its progress about every
        minute, by strips of columns.
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
        Figures of the call. It reads and writes n² elements, and also reads the padding of the
        tiles.

    Raises
    ------
    InvalidError
        If `lu` is not a factorization by LU.
    BudgetError
        If three columns do not fit in memory.
    ExistsError, BusyError, DiskFullError
        If `out` exists, another call writes there, or the disk is full.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes from the recorded progress.
    """
    refuse_others(lu, LUFactor)
    metadata = tile_metadata(lu.n, lu.dtype, lu.tile)
    target = f"{lu.path}.lapack" if out is None else out
    steps = StepsDone(target, "export_lapack", {}, {"lu": lu}, memory, resume=resume, made=made)
    g = ExportGeometry.of(lu.n, lu.dtype, lu.tile, steps.memory_bytes)
    try:
        with (
            long_call(
                f"exporting {lu.path.name}", memory_bytes=steps.memory_bytes, work=lu.n,
                threads=threads, progress=progress,
            ) as call,
            claimed(target, [lu.path], if_exists=if_exists, why=_WHY),
            written(place(target), metadata, _WHY, steps) as packed,
        ):  # fmt: skip
            file = packed.open_file(call.arena, g.bounce_bytes, writable=True, trace=call.trace)
            report = _export(lu, file, g, call, steps)
    except KeyboardInterrupt:
        raise Interrupted(steps.stopped(f"exporting {lu.path.name}", "export_lapack")) from None
    return open_array(target), lu.piv.copy(), report


def _export(
    lu: LUFactor, target: ArrayFile, g: ExportGeometry, call: LongCall, steps: StepsDone
) -> Report:
    n, count, strips = lu.n, len(g.strips()), steps.left(g.strips())
    if steps.done:
        call.meter.skip(strips[0][1].start)
    source = lu.open_tiles(call.arena, call.trace)
    stream = BlockStream(
        source, lu.dtype, call.arena, g.ring_bytes, call.trace, least_bytes=g.strip_bytes
    )
    stream.extend((slice(0, g.height), columns) for _, columns in strips)
    with WriteBehind(target, most=1, trace=call.trace) as writer:
        for done, columns in strips:
            data = stream.take().data[:n]
            start_ns = call.trace.now_ns()
            below = min((columns.start // lu.tile[1] + 1) * lu.tile[1], n)
            kernels(lu.dtype).laswp(data, lu.piv, below, n)
            call.trace.record("compute", start_ns)
            writer.write((slice(0, n), columns), data)
            call.meter.advance(columns.stop - columns.start)
            steps.passed(done, count, lambda: writer.flush(sync=True))
        writer.flush(sync=True)
    return Report(
        verb="export_lapack",
        n=n,
        dtype=lu.dtype.name,
        flops=0,
        bytes_read=source.counters()[0],
        bytes_written=target.counters()[1],
        planned_bytes_read=g.bytes_read,
        planned_bytes_written=g.bytes_written,
        notes=steps.notes(count),
        words_lower_bound=g.words_lower_bound,
        arrays=["L and U in one array", "the factors"],
        **call.figures(),
    )
