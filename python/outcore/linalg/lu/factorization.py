"""LU with true partial pivoting, out of core, by slabs of columns.

Algorithm A: left-looking (Womble, Greenberg, Riesen & Wheat 1993, section 4.1), with the row swaps
in LINPACK order. The matrix is cut into slabs of columns that fit in memory, each slab into
panels::

    for each slab C = A[:, slab]:
        for each earlier panel K:    C <- L_K⁻¹ P_K C       # L_K comes from the disk, tile by tile
        for each panel K of C:       P_K C_K = L_K U_K      # and is applied to those right of it
        write C;  sync;  journal

A panel of L is stored with its own and earlier row swaps only, so that no swap is ever carried out
on disk. Flops 2n³/3; words read and written about n³/(3w) + n² with slabs of w columns
(`docs/numerics-lu.md`).
"""

from outcore import budget
from outcore.array import Array
from outcore.errors import Interrupted
from outcore.linalg.factors.begin import Method, open_storage
from outcore.linalg.factors.factor import LU, LUFactor
from outcore.linalg.lu.checks import warn_of
from outcore.linalg.lu.conveyor import Source
from outcore.linalg.lu.plan import LuGeometry, flops, lu_geometry, panel_flops, update_flops
from outcore.linalg.lu.slabs import SlabFactorization
from outcore.linalg.lu.storage import LuStorage
from outcore.longcall import long_call
from outcore.progress import ProgressLike
from outcore.volumes import PathLike


def lu_factor(
    A: Array | PathLike,
    *,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite_a: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> LUFactor:
    """Factor P A = L U with partial pivoting, A and the factors on disk.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path; float32, float64, complex64 or complex128. ``order="F"``
        with the default chunks is read fastest.
    memory
        Budget, such as ``"8 GiB"``; by default half of the available memory. More memory means less
        I/O: see ``oc.plan("lu", ...)``.
    out
        Directory for the factors; by default that of `A` with ``.lu`` appended.
    overwrite_a
        Let the factors take the disk space of `A`, whose content is given up at once. Needs ``A``
        in ``order="F"`` with default chunks.
    overwrite
        Replace complete factors that are at `out`.
    resume
        Go on where an earlier call was stopped. `False` begins anew.
    threads
        Threads of the BLAS; by default as it is set.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    LUFactor
        For `lu_solve`; ``.report`` says what was done, ``.piv`` is what SciPy would have returned.

    Raises
    ------
    InvalidError
        If `A` is not square, or of a type or layout that cannot be used.
    BudgetError, DiskFullError
        Before any work, if memory or disk do not suffice.
    NonFiniteError
        If `A` has a NaN or an infinity, with its index.
    ExistsError, BusyError, JournalError
        If `out` holds complete factors, is in use, or holds a stopped run on other input.
    Interrupted
        After Ctrl-C or SIGTERM; calling again goes on.

    Warns
    -----
    LinAlgWarning
        If `A` is exactly singular, as `scipy.linalg.lu_factor` does.
    GrowthWarning
        If the pivots grew so much that half of the digits may be lost.
    """
    memory_bytes = budget.resolve(memory)
    with open_storage(
        Method(lu_geometry, LuStorage, LU), A, out, memory_bytes, overwrite_a=overwrite_a,
        overwrite=overwrite, resume=resume, threads=threads,
    ) as storage:  # fmt: skip
        g, first = storage.geometry, storage.first_panel
        work, left = flops(g.n, g.dtype), _flops_left(g, first)
        with long_call(
            f"LU of {storage.name}", memory_bytes=memory_bytes, work=work, work_done=work - left,
            threads=threads, progress=progress,
        ) as call:  # fmt: skip
            try:
                storage.open(call)
                source = Source(storage.matrix, g.n, storage.metadata.chunks)
                SlabFactorization(storage, call, g, source).run()
                factor = storage.finish(call, left)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"LU of {storage.name} stopped with {storage.journal.panels_done} of "
                    f"{g.panels} panels done; call lu_factor again with the same arguments "
                    "to go on from there"
                ) from None
    warn_of(factor)
    return factor


def _flops_left(g: LuGeometry, first_panel: int) -> float:
    """Operations of a run that begins with `first_panel`."""
    panels = sum(panel_flops(g, K) for K in range(first_panel, g.panels))
    return panels + sum(
        update_flops(g, K) * max(g.n - max(K + 1, first_panel) * g.columns, 0)
        for K in range(g.panels)
    )
