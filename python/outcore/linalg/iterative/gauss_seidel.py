"""Block Gauss-Seidel with A on disk (Cettei, Ligon & Ross 1997, section 4)."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from outcore.array import Array, open_array
from outcore.communicator import TIMEOUT_S
from outcore.errors import InvalidError
from outcore.if_exists import IfExists
from outcore.linalg.assumptions import AssumeA
from outcore.linalg.iterative.arguments import Setting, Storage, check_omega
from outcore.linalg.iterative.iteration import Iteration, narrowed
from outcore.linalg.iterative.opening import open_iteration
from outcore.linalg.iterative.plan import Demands, Pass, Pin
from outcore.linalg.iterative.relaxation import Triangle, relaxation_of
from outcore.linalg.iterative.sharing import Sharing
from outcore.linalg.open_results import opens_results
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.volumes import PathLike, as_path

Direction: TypeAlias = Literal["symmetric", "alternating", "forward"]

VECTORS = 5
"""Right-hand sides, residual, L x, D x and U x."""


@opens_results()
def gauss_seidel(
    A: Array | PathLike,
    b: npt.ArrayLike | Array | PathLike,
    *,
    x0: npt.ArrayLike | Array | PathLike | None = None,
    omega: float = 1.0,
    block: int | None = None,
    pin: Pin = "auto",
    direction: Direction | None = None,
    assume_a: AssumeA = "gen",
    storage: Storage = None,
    dtype: npt.DTypeLike | None = None,
    tol: float | None = 1e-5,
    max_sweeps: int = 1000,
    scratch: PathLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Any, Report]:
    """Solve A x = b by block Gauss-Seidel or SOR, with A on disk.

    x_i <- x_i + ω (A_ii⁻¹ (b_i - Σ_{j≠i} A_ij x_j) - x_i), block by block. This converges if A is
    Hermitian positive definite, strictly diagonally dominant by blocks, or an H-matrix. For other
    matrices it may or may not: divergence is found within a few sweeps.

    With `comm` the processes of a parallel program do it together. Each has a range of rows of
    blocks: it reads and keeps these only, so that together they keep more of A in memory. A
    process goes through its blocks with its own newest values and those of the others as of the
    last exchange, which is after each block: Gauss-Seidel inside each process, Jacobi across. That
    converges if A is strictly diagonally dominant by blocks, but not for every positive definite A.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path; float32, float64, complex64 or complex128.
    b
        (n,) or (n, k) right-hand sides: a NumPy array, or an array on disk or its path. All are
        worked on at once, with one pass over A for a sweep; if they do not fit into the budget, in
        as few groups of columns as do, one after the other.
    x0
        Solution to begin with, of the shape of `b`, in memory or on disk; by default 0.
    omega
        Over-relaxation ω, between 0 and 2.
    block
        Rows of a diagonal block: a multiple of the shorter side of a chunk of A. Larger blocks
        converge faster. By default as many as an eighth of the budget holds.
    pin
        Share of A that is kept in memory, from 0 to 1; ``"auto"`` is as much as there is room for,
        `None` nothing.
    direction
        ``"forward"``: all sweeps go from the first block to the last. ``"alternating"``: forward
        and backward in turn. ``"symmetric"``: likewise, with the same iterates; but each sweep
        takes over from the one before what it knows of the other triangle, and reads only one. By
        default symmetric; of several processes, which cannot take over so, alternating.
    assume_a
        As in SciPy, by its long names too. If A is symmetric (``"sym"``) or Hermitian (``"her"``,
        ``"pos"``), only the blocks on and below the diagonal are read. `SymmetryWarning` says if
        one on the diagonal is not; of the others nothing shows it. For the direction
        ``"symmetric"`` only.
    storage
        ``"f4"``: keep A as float32 (complex64) and compute in double precision. Takes half of the
        memory and of the reads; x then solves a system that is off by rounding A.
    dtype
        Type of the arithmetic and of the solution, float32 to complex128, if not that which `A` and
        `b` promote to. Tiles of an `A` of lower precision are converted as they are used.
    tol
        Residual ‖b - Ax‖₂ / ‖b‖₂ at which to stop, for each right-hand side; `None`: make
        `max_sweeps` sweeps.
    max_sweeps
        Most sweeps; each goes through A, or with ``"symmetric"`` one triangle of it, once.
    scratch
        Directory for temporary files; by default that of `A`. They are the factored diagonal
        blocks, if they do not fit in memory, and with `storage` the copy of A.
    memory
        Budget; by default half of the available memory.
    out
        Directory of the solution on disk; by default it stays in memory.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array that is at `out`.
    resume
        Go on with what a stopped call left of a solution at `out`, if `A`, `b`, `tol` (which is
        not `None`) and `assume_a` are the same: behind the columns that are solved for, and with
        the iterate that it wrote for others, once a minute and when it was stopped. `x0` is for
        columns of which there is nothing.
    threads
        Threads of the BLAS; by default as it is set, or half of them for fewer than 8 right-hand
        sides, whose products go at the speed of the memory.
    progress
        As for `lu_factor`; a bar is shown by the first process.
    comm
        Communicator, such as mpi4py's, of the processes that call this with the same arguments;
        `None` for this process alone. A is on a path, or in a pool, that all of them see, and has
        strips of rows: chunks wider than high, or as high, with ``order="C"``. `memory` and `pin`
        are of each process and may differ. By default each takes half of the available memory,
        divided by the number of processes on its machine.
    timeout
        Seconds to wait for other processes, beyond what reading takes, before giving up. It counts
        for communicators like MPI's; others wait as long as they do.

    Returns
    -------
    x : numpy.ndarray or Array
        The solution, of the shape of `b`; on disk if `out` is given. On every process all of it;
        the first writes it to `out`.
    report : Report
        Of this process, as for what was read, with the residuals of the whole system.
        ``report.history`` has for each sweep ‖r‖₂ / ‖b‖₂, with r_i = b_i - (A x)_i for x as it was
        when the sweep reached block i, the largest of all right-hand sides.
        ``report.backward_error`` and the residual in ``report.notes`` are of x, formed anew in a
        last pass over A; ``report.residuals`` has that of each right-hand side.

    Raises
    ------
    DivergenceError
        If the residual grows, with the ratio.
    SingularMatrixError
        If a diagonal block is exactly singular.
    InvalidError
        If `A`, `b` or an argument is unusable.
    BudgetError
        Before any work, if the budget does not suffice.
    ExistsError
        Before any work, if there is something at `out`.
    NonFiniteError
        If `A` has a NaN or an infinity, with its index.
    Interrupted
        After Ctrl-C or SIGTERM, with the x that was reached as ``x``, in memory; `None` if it goes
        to disk in several groups. With `out` it is on disk for the next call.
    OutcoreError
        What fails on one process fails on all, with the kind of its error and its rank.
    DiskError
        If a process did not come in time.

    Warns
    -----
    ConvergenceWarning
        If the tolerance was not reached.

    Notes
    -----
    With n² elements of A, of which the fraction f is in memory, each sweep reads (1 - f) n²
    elements, with ``"symmetric"`` half of that (Conrad & Wallach 1979). See
    ``docs/numerics-iterative.md``.
    """
    setting = Setting(
        tol, max_sweeps, memory, threads, progress, assume_a, pin, block, storage, scratch, out,
        if_exists, resume,
        dtype=dtype,
    )  # fmt: skip
    with Sharing(comm, timeout) as sharing:
        setting.check()
        way = check_direction(direction, setting.assume_a, sharing.size)
        check_omega(omega)
        have = {
            "omega=": omega, "direction=": way, "x0=, given or not": x0 is not None,
            "out=": None if out is None else as_path(out).name,
        }  # fmt: skip
        sharing.agree(have | setting.shared())
        needs = demands(way, is_half=setting.mirror is not None)
        with open_iteration("Gauss-Seidel", A, b, x0, lambda *_: [needs], setting, sharing) as it:
            times: Counter[Pass] = Counter()
            for _ in it.groups():
                times += _iterate(it, way, omega)
            notes = narrowed(it)
            if sharing.size > 1:
                notes.append(f"Gauss-Seidel inside each of {sharing.size} processes, Jacobi across")
            report = it.report(
                "gauss_seidel", times, notes=notes, block_reads=it.steps, omega=omega
            )
            x, report = it.result(report)
        if out is not None:
            sharing.meet()  # the first process has written it
            if sharing.rank:
                x = open_array(out)
                x.report = report
        return x, report


def check_direction(given: Direction | None, assume_a: AssumeA, processes: int) -> Direction:
    """Choose a direction, or refuse one that cannot be."""
    names = ("symmetric", "alternating", "forward")
    if given is not None and (not isinstance(given, str) or given not in names):
        raise InvalidError(
            f"direction must be 'symmetric', 'alternating' or 'forward', have {given!r}"
        )
    direction: Direction = given or ("symmetric" if processes == 1 else "alternating")
    if processes > 1 and direction == "symmetric":
        raise InvalidError(
            f"{processes} processes need direction='alternating' or 'forward', have 'symmetric': "
            "what a sweep saves for the next one changes at other processes; leave it out"
        )
    if processes > 1 and assume_a != "gen":
        raise InvalidError(
            f"{processes} processes need assume_a='gen', have {assume_a!r}: each reads whole rows; "
            "leave it out"
        )
    if assume_a != "gen" and direction != "symmetric":
        raise InvalidError(
            f"assume_a={assume_a!r} needs direction='symmetric', have {direction!r}: other sweeps "
            "need both triangles at once"
        )
    return direction


def demands(direction: Direction, *, is_half: bool) -> Demands:
    """Say what Gauss-Seidel takes of its budget."""
    by_triangle = direction == "symmetric"
    return Demands(
        "Gauss-Seidel", VECTORS, True, by_triangle=by_triangle, is_half=is_half,
        way=f"{direction} sweeps",
    )  # fmt: skip


def _iterate(it: Iteration, direction: Direction, omega: float) -> Counter[Pass]:
    """Sweep until the residual is small; return how often each kind of pass was made."""
    relaxation = relaxation_of(it, omega)
    (R,) = it.vectors(1)
    times: Counter[Pass] = Counter()
    if it.has_guess:
        relaxation.refresh_diagonal(it.X)
        times["setup"] += 1
        it.meet_after_setup()
        if direction == "symmetric" or it.geometry.strips.by == "columns":
            relaxation.refresh("U", it.X)
            times["upper"] += 1
    while True:
        while not it.convergence.is_over:
            is_forward = direction == "forward" or len(it.convergence.history) % 2 == 0
            triangles, kind = _swept(direction, is_forward=is_forward)
            met = relaxation.sweep(it.X, it.B, is_forward=is_forward, triangles=triangles)
            times[kind] += 1
            it.note(it.relative(met))
        # What the steps do not see of the residual of a copy, more steps do not change.
        if it.is_accepted(R) or it.is_copied:
            return times


def _swept(direction: Direction, *, is_forward: bool) -> tuple[list[Triangle], Pass]:
    """Name the triangles that a sweep reads, and such a pass."""
    if direction != "symmetric":
        return ["L", "U"], "sweep"
    return (["L"], "lower") if is_forward else (["U"], "upper")
