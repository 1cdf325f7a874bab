"""LU with true partial pivoting, out of core, by slabs of columns.

Algorithm A: left-looking (Womble, Greenberg, Riesen & Wheat 1993, section 4.1), with the row swaps
in LINPACK order. The matrix is cut into slabs of columns that fit in memory, and each slab into
panels::

    for each slab C = A[:, slab]:
        for each earlier panel K:    C <- L_K⁻¹ P_K C       # L_K comes from the disk, tile by tile
        for each panel K of C:       P_K C_K = L_K U_K      # and is applied to those right of it
        write C;  sync;  journal

A panel of L is stored with its own and earlier row swaps only, so no swap is ever carried out on
disk. Flops: 2n³/3. Words read and written: about n³/(3w) + n² with slabs of w columns
(`docs/numerics-lu.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike, check_progress
from outcore.array.array import Array
from outcore.array_files.metadata import read_metadata
from outcore.linalg._factors.agreement import agree_on_factoring
from outcore.linalg._factors.begin import Method, Order, Tile, open_storage
from outcore.linalg._factors.checks import warn_of, warn_of_growth
from outcore.linalg._factors.left_looking import running
from outcore.linalg._geometry.factor_plan import (
    LuGeometry,
    dealt_lu_geometry,
    flops,
    own_flops,
)
from outcore.linalg._geometry.segments import Layout, cut_again
from outcore.linalg._lu.block_columns.geometry import BlockColumnGeometry
from outcore.linalg._lu.block_columns.partial import PartialFactorization
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.plan import (
    partial_geometry,
    tournament_geometry,
)
from outcore.linalg._lu.block_columns.storage import (
    BlockColumnStorage,
    PartialStorage,
    TournamentStorage,
)
from outcore.linalg._lu.block_columns.tournament import TournamentFactorization
from outcore.linalg._lu.block_columns.tournament_geometry import TournamentGeometry
from outcore.linalg._lu.choice import LuMethod, by_several, chosen
from outcore.linalg._lu.slabs.factor_slabs import SlabFactorization
from outcore.linalg._lu.slabs.storage import LuStorage
from outcore.linalg._output.factor import LU, LUFactor
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import Header
from outcore.linalg._output.own import opened_factors
from outcore.linalg._tiles.matrix import place_of
from outcore.linalg._tiles.result_dtype import factor_dtype
from outcore.processes.sharing import Sharing
from outcore.report.longcall import LongCall
from outcore.storage.volumes import PathLike


def lu_factor(
    A: Array | PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite_a: bool = False,
    if_exists: IfExists = "error",
    resume: bool = True,
    method: LuMethod = "auto",
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> LUFactor:
    """Factor P A = L U with partial pivoting, A and the factors on disk.

    With `comm`, the processes of a parallel program work together, each with its own memory and
    processors. Panels of each slab are dealt to them in turn. Their disk traffic is also divided:
    the holder of a panel reads it once and broadcasts it. Pivots and factors have the same format
    whatever number of processes made them, and one process can use them.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path. Its type has at most double precision. The call reads
        ``order="F"`` with the default chunks fastest.
    dtype
        Type of the factors and of the arithmetic, such as ``"f8"`` for a float32 `A`; by default
        that of `A`, or float64 for integers. The call converts `A` as it reads it, and never rounds
        it.
    memory
        Budget of each process, such as ``"8 GiB"``; by default half of the available memory, which
        the processes of a host share. More memory means less I/O: see ``oc.plan("lu", ...)``.
    out
        Directory for the factors; by default that of `A` with ``.lu`` appended.
    overwrite_a
        Let the factors take the disk space of `A`, whose content is lost at once. `A` must be in
        ``order="F"`` with default chunks.
    if_exists
        ``"open"`` opens complete factors of the same `A` at `out`, with their report.
        ``"overwrite"`` replaces complete factors there.
    resume
        Resume a stopped call, by the method with which it started. `False` restarts it.
    method
        ``"slabs"``: left-looking by slabs of columns. ``"block-columns"``: less I/O if memory holds
        few columns, but temporary disk space for most of a second matrix. ``"tournament"``: block
        columns if memory does not hold one panel over all rows. A tournament then chooses the
        pivots: they may grow more than with partial pivoting, and differ from SciPy's. ``"auto"``:
        block columns if they are clearly faster, a tournament if no other method fits in memory,
        neither with `overwrite_a`. The format of the factors does not depend on the method, and the
        report names it.
    threads
        Threads of the BLAS in each process; by default its current setting, which the processes of
        a host share.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left). Only
        the first process shows a bar.
    comm
        Communicator of mpi4py. All its processes call with equal arguments, except `memory`,
        `threads` and `progress`.
    timeout
        Seconds to wait for other processes, beyond the time for their work.

    Returns
    -------
    LUFactor
        Factors for `lu_solve`. ``.report`` describes the call, ``.piv`` is what SciPy would return.

    Raises
    ------
    InvalidError
        If `A` is not square, or has an unsupported type or layout, or the processes have different
        arguments.
    DiskError
        If another process does not answer in time.
    BudgetError, DiskFullError
        Before any work, if memory or disk space do not suffice.
    NonFiniteError
        If `A` has a NaN or an infinity. The error gives its index.
    ExistsError, BusyError, JournalError
        If `out` holds complete factors, is in use, or holds a stopped run on other input.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes.

    Warns
    -----
    LinAlgWarning
        If `A` is exactly singular, as `scipy.linalg.lu_factor` does.
    GrowthWarning
        If the pivots grew so much that half of the digits may be lost.
    """
    with Sharing(comm, timeout, "lu_factor") as sharing:
        check_progress(progress)
        job = Factoring(
            A, sharing.budget(memory), out, dtype, overwrite_a, if_exists, resume,
            sharing.threads(threads), sharing.progress(progress),
        )  # fmt: skip
        factor = factor_lu(job, method, sharing)
    warn_of(factor)
    return factor


C = TypeVar("C", bound=BlockColumnGeometry)
D = TypeVar("D", bound=BlockColumnStorage[Any])

_Way: TypeAlias = tuple[Method[Any, Any], Callable[[Any, LongCall], Any], Callable[[Any], float]]
"""How a method starts, its run, and the pending operations of a run."""


def factor_lu(
    job: Factoring, method: LuMethod = "auto", sharing: Sharing | None = None
) -> LUFactor:
    """Run `lu_factor` without its warnings."""
    sharing = sharing or Sharing()
    agree_on_factoring("LU", job, method, sharing)
    ready = opened_factors(job, LUFactor)
    if ready is not None:
        return ready
    algorithm, why = chosen(method, job) if sharing.size == 1 else by_several(method, job)
    budgets = tuple(sharing.exchange(job.memory_bytes))

    def cut(
        n: int, dtype: np.dtype[Any], memory_bytes: int, tile: Tile, order: Order
    ) -> LuGeometry:
        return dealt_lu_geometry(n, dtype, budgets, sharing.rank, tile, order)

    by_slabs = Method(cut, LuStorage, LU)
    way: _Way = by_slabs, _by_slabs, _flops_left
    if algorithm == "block-columns":
        start = _by_columns(job, PartialGeometry, partial_geometry, PartialStorage)
        way = start, PartialFactorization, _columns_left
    elif algorithm == "tournament":
        played = _by_columns(job, TournamentGeometry, tournament_geometry, TournamentStorage)
        way = played, TournamentFactorization, _columns_left
    begun, run_of, flops_left = way
    with open_storage(begun, job, sharing) as storage:
        storage.why = why
        g, left = storage.geometry, flops_left(storage)
        work = flops(g.n, g.dtype) if sharing.size == 1 else own_flops(g)
        with running(storage, job, "LU", work, left) as call:
            run_of(storage, call).run()
            factor: LUFactor = storage.finish(call, left)
            return factor


def lu_for_call(job: Factoring, sharing: Sharing | None = None) -> LUFactor:
    """Run `lu_factor` for a call that handles a singular matrix itself."""
    factor = factor_lu(job, sharing=sharing)
    warn_of_growth(factor)
    return factor


def _by_slabs(storage: LuStorage, call: LongCall) -> SlabFactorization:
    source = storage.source(storage.loads, call)
    return SlabFactorization(storage, call, storage.geometry, source)


def _by_columns(
    job: Factoring,
    kind: type[C],
    cut: Callable[[int, np.dtype[Any], int, Layout], C],
    storage: Callable[..., D],
) -> Method[C, D]:
    """Return how to start or resume an LU by block columns."""
    metadata = read_metadata(place_of(job.A))
    layout = Layout.of(metadata, factor_dtype(metadata.dtype, job.dtype))

    def again(n: int, dtype: np.dtype[Any], memory_bytes: int, header: Header) -> C:
        cuts = header.cuts or {}
        g = kind(
            n, dtype, *header.tile, cuts["segment"], tuple(cuts["widths"]), layout,
            cuts["is_copied"], memory_bytes,
        )  # fmt: skip
        return cut_again(g)

    return Method(
        lambda n, dtype, memory_bytes, tile, order: cut(n, dtype, memory_bytes, layout),
        storage,
        LU,
        again=again,
        cuts=kind.cuts,
        scratch_bytes=kind.scratch_bytes,
    )


def _columns_left(storage: BlockColumnStorage[Any]) -> float:
    """Pending operations."""
    left: float = storage.geometry.flops_left(storage.first_panel, storage.journal.trailing)
    return left


def _flops_left(storage: LuStorage) -> float:
    """Pending operations."""
    return own_flops(storage.geometry, storage.first_panel)
