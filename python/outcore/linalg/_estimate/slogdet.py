"""The determinant from factors on disk, by a read of the tiles on the diagonal only."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from outcore._util import budget
from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream
from outcore.array.array import Array
from outcore.array_files.metadata import read_metadata
from outcore.linalg._geometry.factor_plan import RING_BLOCKS, TILE_BOUNCE_BYTES
from outcore.linalg._lu.factorization import lu_for_call
from outcore.linalg._lu.solve import refuse_overflowed, stopping_cleanly
from outcore.linalg._output.factor import CholeskyFactor, Factor, LUFactor, refuse_others
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.own import own_factors, ready_factors
from outcore.linalg._output.steps_done import version_of_operand
from outcore.linalg._tiles.matrix import place_of
from outcore.processes.sharing import Sharing, seconds_for
from outcore.report.longcall import long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike, place


@dataclass(frozen=True)
class Determinant:
    """A determinant, ``sign * exp(logabsdet)``; ``sign, logabsdet = slogdet(...)`` unpacks it.

    Attributes
    ----------
    sign
        A number of absolute value 1, or 0 if the matrix is singular. From LU it is complex for
        complex types; from Cholesky it is 1.0.
    logabsdet
        Natural logarithm of the absolute value; -inf if the matrix is singular.
    report
        Report of the call.
    """

    sign: float | complex
    logabsdet: float
    report: Report

    def __iter__(self) -> Iterator[float | complex]:
        return iter((self.sign, self.logabsdet))


def slogdet(
    A: LUFactor | CholeskyFactor | Array | PathLike,
    *,
    memory: int | str | None = None,
    factors: PathLike | None = None,
    keep_factors: bool = False,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> Determinant:
    """Compute sign and logarithm of a determinant, as `numpy.linalg.slogdet` does.

    det A = ± u₁₁ u₂₂ ... uₙₙ with the sign of the row swaps; with Cholesky (l₁₁ l₂₂ ... lₙₙ)².

    With `comm`, the processes of a parallel program factor a matrix together. The first one reads
    the tiles on the diagonal, and all get the result.

    Parameters
    ----------
    A
        Factors, or an (n, n) matrix on disk, which the call first factors (2n³/3 operations, 8n³/3
        for complex types). The call reads only the tiles of the factors on the diagonal.
    memory
        Budget of each process; by default half of the available memory, which the processes of a
        host share.
    factors, keep_factors, if_exists, resume
        Options of the factorization of a matrix, as for `solve`.
    threads, progress, comm, timeout
        As for `lu_factor`.

    Returns
    -------
    Determinant
        Unpacks to sign and logabsdet, in double precision.

    Raises
    ------
    InvalidError
        If numbers overflowed when A was factored.
    BudgetError
        If two tiles do not fit in memory.
    OutcoreError
        For a matrix, also any error of `lu_factor`.
    """
    with Sharing(comm, timeout, "slogdet") as sharing:
        memory_bytes, threads = sharing.budget(memory), sharing.threads(threads)
        progress = sharing.progress(progress)
        if isinstance(A, LUFactor | CholeskyFactor):
            if sharing.size > 1:
                sharing.check_mpi("a determinant by several processes")
                sharing.agree({"factors": version_of_operand(A)})
            return _told(A, memory_bytes, threads, progress, sharing)
        if isinstance(A, Factor):
            refuse_others(A, LUFactor)
        source = place_of(A)
        where = place(factors if factors is not None else f"{source.stem}.lu")
        dtype = read_metadata(source).dtype
        ready = ready_factors(where, source, dtype, LUFactor, if_exists=if_exists)
        job = Factoring(
            A, memory_bytes, where.path, if_exists=if_exists, resume=resume, threads=threads,
            progress=progress, argument="factors=", is_temporary=not keep_factors,
        )  # fmt: skip
        sharing.agree(
            {
                "A": source.source, "factors=": str(where.path), "keep_factors=": keep_factors,
                "factors": None if ready is None else version_of_operand(ready),
            }
        )  # fmt: skip
        with own_factors(where, job, ready, lambda job: lu_for_call(job, sharing), sharing) as lu:
            found = _told(lu, memory_bytes, threads, False, sharing)
    if lu.report is None:
        found.report.notes.append(f"used the factors in {where.path}")
        return found
    whole = lu.report.followed_by(found.report)
    whole.verb = "slogdet"
    return Determinant(found.sign, found.logabsdet, whole)


def _told(
    factor: LUFactor | CholeskyFactor,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
    sharing: Sharing,
) -> Determinant:
    """Compute the determinant on the first process, and tell the others."""
    found = None
    if sharing.rank == 0:
        found = _of_factors(factor, memory_bytes, threads, progress)
        if sharing.size == 1:
            return found
        found = replace(found, report=replace(found.report, spans=None))
    # Each tile on the diagonal is a read of its own.
    more_s = seconds_for(factor.n * factor.tile[0] * factor.dtype.itemsize)
    told = sharing.exchange(found, more_s)[0]
    assert told is not None
    return told


def _of_factors(
    factor: LUFactor | CholeskyFactor,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
) -> Determinant:
    rows, columns = factor.tile
    tile_bytes = rows * columns * factor.dtype.itemsize
    need = RING_BLOCKS * tile_bytes + TILE_BOUNCE_BYTES
    if memory_bytes < need:
        raise budget.too_small(need, memory_bytes, f"tiles of {rows} x {columns}")
    panels = -(-factor.n // columns)
    logarithms = []
    sign: complex = 1.0
    if isinstance(factor, LUFactor):
        refuse_overflowed(factor)
        swaps = np.count_nonzero(factor.piv != np.arange(factor.n))
        sign = -1.0 if swaps % 2 else 1.0
    with stopping_cleanly("the determinant of", factor), long_call(
        f"determinant from {factor.path.name}", memory_bytes=memory_bytes,
        work=panels * tile_bytes, threads=threads, progress=progress,
    ) as call:  # fmt: skip
        file = factor.open_tiles(call.arena, call.trace)
        stream = BlockStream(file, factor.dtype, call.arena, RING_BLOCKS * tile_bytes, call.trace)
        tops = [panel * columns // rows * rows for panel in range(panels)]
        stream.extend(
            (slice(top, top + rows), slice(panel * columns, (panel + 1) * columns))
            for panel, top in enumerate(tops)
        )
        for panel, top in enumerate(tops):
            tile = stream.take().data
            first = panel * columns
            block = tile[first - top :, : min(columns, factor.n - first)]
            diagonal = np.diagonal(block).astype(np.result_type(factor.dtype, np.float64))
            sizes = np.abs(diagonal)
            if not sizes.all():
                sign = 0.0
                logarithms.append(-math.inf)
            else:
                logarithms.append(math.fsum(np.log(sizes)))
                sign *= np.prod(diagonal / sizes)
            call.meter.advance(tile_bytes)
        report = call.report(
            Report, "slogdet", factor.n, factor.dtype, flops=float(factor.n), computes=False,
            moved=(file.counters()[0], 0), planned=(panels * tile_bytes, 0),
        )  # fmt: skip
    logabsdet = -math.inf if sign == 0 else math.fsum(logarithms)
    if isinstance(factor, CholeskyFactor):
        return Determinant(1.0, 2 * logabsdet, report)
    if factor.dtype.kind == "c":
        # The division removes the rounding errors of n factors of absolute value 1.
        return Determinant(complex(sign / abs(sign) if sign else 0), logabsdet, report)
    return Determinant(float(np.sign(sign.real)), logabsdet, report)
