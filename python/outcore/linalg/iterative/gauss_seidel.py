"""Block Gauss-Seidel with A on disk (Cettei, Ligon & Ross 1997, section 4)."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal, TypeAlias, Unpack

import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore.array.array import Array, open_array
from outcore.errors import InvalidError
from outcore.linalg._output.steps_done import Made
from outcore.linalg._tiles.assumptions import AssumeA
from outcore.linalg.iterative.arguments import Options, Setting, check_omega, iterative_method
from outcore.linalg.iterative.iteration import Iteration, narrowed
from outcore.linalg.iterative.opening import open_iteration
from outcore.linalg.iterative.plan import Demands, Pass
from outcore.linalg.iterative.relaxation import Relaxation, Triangle
from outcore.processes.sharing import Sharing
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

Direction: TypeAlias = Literal["symmetric", "alternating", "forward"]

VECTORS = 5
"""Right-hand sides, residual, L x, D x and U x."""


@iterative_method
def gauss_seidel(
    made: Made,
    A: Array | PathLike,
    b: npt.ArrayLike | Array | PathLike,
    *,
    omega: float = 1.0,
    direction: Direction | None = None,
    assume_a: AssumeA = "gen",
    max_sweeps: int = 1000,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
    **options: Unpack[Options],
) -> tuple[Any, Report]:
    """Solve A x = b by block Gauss-Seidel or SOR, with A on disk.

    x_i <- x_i + ω (A_ii⁻¹ (b_i - Σ_{j≠i} A_ij x_j) - x_i), block by block. The method converges if
    A is Hermitian positive definite, strictly diagonally dominant by blocks, or an H-matrix. For
    other matrices it may diverge, which the call detects within a few sweeps.

    With `comm`, the processes of a parallel program work together. Each process reads and keeps
    only its own range of rows of blocks, so that together they keep more of A in memory. A process
    goes through its blocks with its own newest values, and with the values of others from the last
    exchange, which follows each block. This is Gauss-Seidel within each process, and Jacobi across
    processes. It converges if A is strictly diagonally dominant by blocks, but not for every
    positive definite A.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path; float32, float64, complex64 or complex128.
    b
        (n,) or (n, k) right-hand sides: a NumPy array, or an array on disk or its path. A sweep
        works on all of them at once, in one pass over A. If they do not fit into the budget, the
        call divides the columns into as few groups as possible, and solves for one group after
        another.
    x0
        Initial solution, of the shape of `b`, in memory or on disk; by default 0.
    omega
        Over-relaxation ω, between 0 and 2.
    block
        Rows of a diagonal block: a multiple of the shorter side of a chunk of A. Larger blocks
        converge faster. By default the blocks take an eighth of the budget.
    pin
        Fraction of A that stays in memory, from 0 to 1. ``"auto"`` is as much as fits, `None` is 0.
    direction
        ``"forward"``: all sweeps go from the first block to the last. ``"alternating"``: forward
        and backward sweeps alternate. ``"symmetric"``: likewise, with the same iterates, but each
        sweep reads only one triangle, and reuses the products of the previous sweep with the other
        one. The default is symmetric or, with several processes, which cannot reuse products,
        alternating.
    assume_a
        As in SciPy, also by its long names. If A is symmetric (``"sym"``) or Hermitian (``"her"``,
        ``"pos"``), the call reads only the blocks on and below the diagonal. `SymmetryWarning`
        reports a diagonal block without the symmetry; the call does not check others. Only the
        direction ``"symmetric"`` allows this.
    storage
        ``"f4"``: keep A as float32 (complex64) and compute in double precision. This halves the
        memory and the reads, but x solves a system with a rounded A.
    dtype
        Type of the arithmetic and of the solution, float32 to complex128; by default the promotion
        of `A` and `b`. The call converts tiles of an `A` of lower precision as it uses them.
    tol
        Residual ‖b - Ax‖₂ / ‖b‖₂ at which to stop, for each right-hand side; `None`: make
        `max_sweeps` sweeps.
    max_sweeps
        Most sweeps. Each is a pass over A or, with ``"symmetric"``, over one triangle of it.
    scratch
        Directory for temporary files; by default that of `A`. They are the factored diagonal
        blocks, if these do not fit in memory, and with `storage` the copy of A.
    memory
        Budget; by default half of the available memory.
    out
        Directory of the solution on disk; by default it stays in memory.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call from the solution at `out`, if `A`, `b`, `tol` (not `None`) and
        `assume_a` are the same. The call continues after the columns that are solved for. For other
        columns it starts from the stored iterate, which is written once a minute and when a call is
        stopped. It uses `x0` only for columns without an iterate.
    threads
        Threads of the BLAS; by default its current setting. With fewer than 8 right-hand sides the
        default is half of that, since memory bandwidth limits their products.
    progress
        As for `lu_factor`. Only the first process shows a bar.
    comm
        Communicator, such as mpi4py's, of the processes that make this call with the same
        arguments; `None` for a single process. All of them must see A, on a path or in a pool, and
        its strips must be rows: chunks wider than high, or square with ``order="C"``. `memory` and
        `pin` apply to each process and may differ. By default each process takes half of the
        available memory, divided by the number of processes on its machine.
    timeout
        Seconds to wait for other processes, beyond the time for their reads, before an error. It
        applies to communicators like MPI's; others wait for as long as they choose.

    Returns
    -------
    x : numpy.ndarray or Array
        The solution, of the shape of `b`; on disk if `out` is given. Every process has all of it;
        the first one writes it to `out`.
    report : Report
        Report of this process: its reads, and the residuals of the whole system. ``report.history``
        contains ‖r‖₂ / ‖b‖₂ for each sweep, the largest of all right-hand sides. There r_i = b_i -
        (A x)_i, with the x at the time when the sweep reached block i. ``report.backward_error``
        and the residual in ``report.notes`` are recomputed from x in a last pass over A.
        ``report.residuals`` contains the residual of each right-hand side.

    Raises
    ------
    DivergenceError
        If the residual grows. The error contains the ratio.
    SingularMatrixError
        If a diagonal block is exactly singular.
    InvalidError
        If `A`, `b` or an argument is not valid.
    BudgetError
        Before any work, if the budget does not suffice.
    ExistsError
        Before any work, if `out` exists.
    NonFiniteError
        If `A` has a NaN or an infinity. The error gives its index.
    Interrupted
        After Ctrl-C or SIGTERM. The error contains the current x in memory as ``x``, or `None` if
        several groups go to disk. With `out`, x is on disk for the next call.
    OutcoreError
        If a process fails, all fail, with the kind of its error and its rank.
    DiskError
        If a process did not answer in time.

    Warns
    -----
    ConvergenceWarning
        If the residual does not reach the tolerance.

    Notes
    -----
    A has n² elements, of which the fraction f is in memory. Each sweep reads (1 - f) n² elements,
    or half of that with ``"symmetric"`` (Conrad & Wallach 1979). See
    ``docs/numerics-iterative.md``.
    """
    with Sharing(comm, timeout) as sharing:
        setting = Setting(max_sweeps, assume_a, made=made, **options)
        way = check_direction(direction, setting.assume_a, sharing.size)
        check_omega(omega)
        sharing.agree({"omega=": omega, "direction=": way} | setting.shared())
        needs = demands(way, is_half=setting.mirror is not None)
        with open_iteration("Gauss-Seidel", A, b, lambda *_: [needs], setting, sharing) as it:
            times: Counter[Pass] = Counter()
            for _ in it.groups():
                times += _iterate(it, way, omega)
            notes = narrowed(it)
            if sharing.size > 1:
                notes.append(f"Gauss-Seidel inside each of {sharing.size} processes, Jacobi across")
            x, report = it.result(
                "gauss_seidel", times, notes=notes, block_reads=it.steps, omega=omega
            )
        if setting.out is not None:
            sharing.meet()  # the first process has written it
            if sharing.rank:
                x = open_array(setting.out)
                x.report = report
        return x, report


def check_direction(given: Direction | None, assume_a: AssumeA, processes: int) -> Direction:
    """Choose the direction, or raise for an invalid one."""
    names = ("symmetric", "alternating", "forward")
    if given is not None and (not isinstance(given, str) or given not in names):
        raise InvalidError(
            f"direction must be 'symmetric', 'alternating' or 'forward', have {given!r}"
        )
    direction: Direction = given or ("symmetric" if processes == 1 else "alternating")
    if processes > 1 and direction == "symmetric":
        raise InvalidError(
            f"{processes} processes need direction='alternating' or 'forward', have 'symmetric': "
            "other processes change the products that a sweep saves for the next one; leave it out"
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
    """Return the memory demands of Gauss-Seidel."""
    by_triangle = direction == "symmetric"
    return Demands(
        "Gauss-Seidel", VECTORS, True, by_triangle=by_triangle, is_half=is_half,
        way=f"{direction} sweeps",
    )  # fmt: skip


def _iterate(it: Iteration, direction: Direction, omega: float) -> Counter[Pass]:
    """Sweep until the residual is small; return the number of passes of each kind."""
    relaxation = Relaxation(it, omega)
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
        # The steps use a copy of A. More steps do not reduce the part of the residual that the copy
        # causes.
        if it.is_accepted(R) or it.is_copied:
            return times


def _swept(direction: Direction, *, is_forward: bool) -> tuple[list[Triangle], Pass]:
    """Return the triangles that a sweep reads, and the kind of that pass."""
    if direction != "symmetric":
        return ["L", "U"], "sweep"
    return (["L"], "lower") if is_forward else (["U"], "upper")
