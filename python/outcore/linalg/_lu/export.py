"""LU factors in LAPACK's order, for other programs.

On disk, a panel of L has the row swaps of its own and earlier panels only. In LAPACK's order it has
those of later panels too. The export applies them in one pass: it reads strips of columns, swaps
their rows in memory, and writes them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.budget import too_small
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream, WriteBehind
from outcore.array.array import Array, open_array
from outcore.blas.lapack import kernels
from outcore.errors import Interrupted
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES
from outcore.linalg._output.factor import LUFactor, refuse_others, tile_metadata
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.result import claimed, written
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._tiles.grains import pages
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike, place

_STRIPS = 3
"""Strips in memory: one is read, one has its rows swapped, one is written."""

_MOST_BOUNCE_BYTES = 4 << 20


@dataclass(frozen=True)
class ExportGeometry:
    """The cuts of LU factors of order `n`, in tiles, into strips of columns.

    Attributes
    ----------
    strip
        Columns of a strip, at most those of a panel.
    bounce_bytes
        Bounce memory of the array that is written.
    """

    n: int
    dtype: np.dtype[Any]
    tile: tuple[int, int]
    strip: int
    bounce_bytes: int

    @classmethod
    def of(
        cls, n: int, dtype: np.dtype[Any], tile: tuple[int, int], memory_bytes: int
    ) -> "ExportGeometry":
        """Return the cuts for a budget.

        Raises
        ------
        BudgetError
            If three columns do not fit.
        """
        bounce = min(_MOST_BOUNCE_BYTES, memory_bytes // 16)
        room = memory_bytes - bounce - TILE_BOUNCE_BYTES
        column = -(-n // tile[0]) * tile[0] * dtype.itemsize
        fit = (room // _STRIPS - SLOT_ALIGN_BYTES) // column
        if fit >= 1:
            return cls(n, dtype, tile, min(fit, tile[1]), bounce)
        need = (_STRIPS * (column + SLOT_ALIGN_BYTES) + TILE_BOUNCE_BYTES) * 16 // 15 + 16
        raise too_small(need, memory_bytes, f"{_STRIPS} columns of an LU of order {n}")

    @property
    def height(self) -> int:
        """Rows of a panel on disk, in whole tiles."""
        return -(-self.n // self.tile[0]) * self.tile[0]

    @property
    def strip_bytes(self) -> int:
        """Memory of a strip."""
        return pages(self.height * self.strip * self.dtype.itemsize)

    @property
    def ring_bytes(self) -> int:
        """Memory of the strips."""
        return _STRIPS * self.strip_bytes

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the call."""
        return self.ring_bytes + self.bounce_bytes + TILE_BOUNCE_BYTES

    @property
    def bytes_read(self) -> int:
        """Bytes of the factors and of the padding of their tiles."""
        return self.height * self.n * self.dtype.itemsize

    @property
    def bytes_written(self) -> int:
        """Bytes of one array without padding."""
        return self.n * self.n * self.dtype.itemsize

    @property
    def words_lower_bound(self) -> float:
        """Words that any export must move: it reads and writes all of them."""
        return 2.0 * self.n**2

    def strips(self) -> list[slice]:
        """Return the columns of each strip. No strip crosses a panel boundary."""
        n, width = self.n, self.tile[1]
        return [
            slice(first, min(first + self.strip, end))
            for left in range(0, n, width)
            for end in [min(left + width, n)]
            for first in range(left, end, self.strip)
        ]


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
    except KeyboardInterrupt as error:
        raise Interrupted(
            steps.stopped(f"exporting {lu.path.name}", "export_lapack", error)
        ) from None
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
    return call.report(
        Report, "export_lapack", n, lu.dtype, computes=False,
        moved=(source.counters()[0], target.counters()[1]),
        planned=(g.bytes_read, g.bytes_written), notes=steps.notes(count),
        words_lower_bound=g.words_lower_bound, arrays=["L and U in one array", "the factors"],
    )  # fmt: skip
