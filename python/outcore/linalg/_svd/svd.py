"""The largest singular values of a matrix and their vectors, in a few passes over its rows.

Block Krylov iteration on AᴴA (Musco & Musco 2015), in which each pass makes two products:

    Z random, orthonormal
    W = Aᴴ (A Z), and the next Z from W by Lanczos      a pass each, until the triplets converge
    Z <- products of AᴴA with the best Ritz vectors, which follow from W
    A Z = Q R;  R = Û S Ŵᴴ;  U = Q Û,  V = Z Ŵ          the last pass

The last pass also forms W, which yields the residuals of the triplets. Blocks of rows X of A give A
Z block by block, X Z, and Aᴴ (A Z) as the sum of all Xᴴ (X Z). `outcore.linalg._svd.krylov_basis`
implements the Lanczos steps. Q is formed from the reflections of the rows
(`outcore.linalg._rows.tall_q`), and is orthogonal to rounding.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.counts import is_finite
from outcore._util.if_exists import IfExists
from outcore._util.packages import imported
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.errors import ConvergenceWarning, Interrupted, InvalidError
from outcore.linalg._output.open_results import opens_results
from outcore.linalg._output.result import claimed, written
from outcore.linalg._output.steps_done import Made
from outcore.linalg._rows.agreement import agreed_steps
from outcore.linalg._rows.source import RowsLike, StoredRows, row_source
from outcore.linalg._svd.iteration import Iteration, SvdReport
from outcore.linalg._svd.left_vectors import u_metadata
from outcore.linalg._svd.plan import MOST_PASSES, svd_geometry
from outcore.linalg._tiles.result_dtype import result_dtype
from outcore.processes.reports import whole_report
from outcore.processes.sharing import Sharing
from outcore.processes.team import Team
from outcore.report.longcall import long_call
from outcore.storage.volumes import PathLike

_WHY = "the svd that wrote it was stopped; call it again"


@opens_results(report=SvdReport)
def svd(
    made: Made,
    A: RowsLike,
    k: int,
    *,
    tol: float | None = 1e-4,
    oversample: int = 10,
    power: int = MOST_PASSES,
    seed: int | np.random.Generator | None = None,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Any, npt.NDArray[Any], npt.NDArray[Any], SvdReport]:
    """Compute the `k` largest singular values of A and their vectors: A ≈ U diag(s) Vh.

    With `comm`, each process of a parallel program reads its own rows, and they add up their
    products in each pass. All of them get the result and its report.

    Parameters
    ----------
    A
        (m, n): an array on disk or its path, a NumPy array or memmap, or an object with shape,
        dtype and slicing. It is read by rows, up to ``power + 1`` times. Integers become float64.
    k
        Number of singular values, at most min(m, n).
    tol
        Tolerance: the iteration stops when ‖Aᴴu - s v‖ is at most ``tol * s[0]`` for each of the
        `k` triplets. The error of the singular values is then usually about its square. With `None`
        the call makes `power` passes.
    oversample
        Additional vectors in the iteration, which save passes.
    power
        Largest number of passes before the last one. Each uses all vectors of the earlier passes,
        as far as half of the budget holds them.
    seed
        Seed of the random vectors: an integer, or a generator. The result depends on the budget
        within `tol` only, and in the signs of vectors.
    dtype
        Type of the arithmetic and of the result, float32 to complex128; by default that of `A`.
    memory
        Budget; by default half of the available memory. Vectors in memory count against it.
    out
        Directory of U on disk; by default U is in memory.
    if_exists
        ``"open"`` opens a complete result at `out` if the same call made it, with the same
        operands. ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call with the same arguments and a result at `out`, if `A` is an array on
        disk or of NumPy.
    threads
        Number of BLAS threads; by default unchanged.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).
    comm, timeout
        As for `lstsq`. The blocks fit into the smallest of the budgets, and the first process draws
        the random vectors. Each process writes its own rows of U on disk, or has all of U in
        memory.

    Returns
    -------
    U : numpy.ndarray or Array
        (m, k) with orthonormal columns; on disk if `out` is given.
    s : numpy.ndarray
        (k,) singular values, the largest first.
    Vh : numpy.ndarray
        (k, n) with orthonormal rows. If memory does not hold vectors of n elements, pass the
        transpose.
    report : SvdReport
        With ``passes``, ``triplet_residuals``, ``error_bound`` and ``frobenius_error``.

    Warns
    -----
    ConvergenceWarning
        If `power` passes are too few for `tol`: the report has the residuals of the triplets.

    Raises
    ------
    InvalidError
        If `A` is not a usable matrix, or is an iterator, whose rows can be read only once, or the
        processes have different arguments.
    DiskError
        If another process does not answer in time.
    BudgetError
        If the vectors and blocks of a few rows do not fit into the budget.
    NonFiniteError
        If `A` has a NaN or an infinity, with its index.
    ExistsError
        If `out` exists.
    Interrupted
        After Ctrl-C or SIGTERM. With `out` a later call resumes.

    Notes
    -----
    About 4 m n (k + oversample) operations per pass, four times that for complex types. Matrices
    with decaying singular values take three to six passes, noise takes 20. Singular values below √ε
    of the largest are not resolved, with the machine epsilon ε of the type, because the iteration
    uses AᴴA; the errors in the report show it. Sources: Musco & Musco, *Randomized block Krylov
    methods for stronger and faster approximate singular value decomposition*, NIPS 28 (2015); Wu &
    Simon, *Thick-restart Lanczos method for large symmetric eigenvalue problems*, SIAM J. Matrix
    Anal. Appl. 22 (2000); Halko, Martinsson & Tropp, *Finding structure with randomness*, SIAM
    Review 53 (2011), for the error bound.
    """
    with Sharing(comm, timeout) as sharing:
        if tol is not None and not (is_finite(tol) and tol > 0):
            raise InvalidError(f"tol must be above 0 and finite, or None, have {tol!r}")
        source = row_source("A", A)
        dtype = result_dtype({"A": source.layout.dtype}, dtype)
        source.deliver(dtype)
        draw = _generator(seed)
        arguments = {
            "k": repr(k), "oversample": repr(oversample), "power": repr(power), "tol": repr(tol),
            "seed": _seed_of(seed, draw), "dtype": dtype.name,
        }  # fmt: skip
        how = {"out": out, "if_exists": if_exists, "resume": resume}
        steps = agreed_steps("svd", {"A": (source, A)}, arguments, how, memory, made, sharing)
        shares, g = steps.planned(
            lambda memory_bytes: svd_geometry(
                source.layout, k, dtype, memory_bytes, oversample=oversample, power=power,
                is_stored=out is not None, processes=sharing.size, rank=sharing.rank,
            )
        )  # fmt: skip
        part = source if sharing.size == 1 else source.part(shares.own)
        operands = [source.array] if isinstance(source, StoredRows) else []
        try:
            with (
                claimed(out, operands, if_exists=if_exists, why=_WHY, sharing=sharing) as where,
                long_call(
                    "singular values", memory_bytes=steps.memory_bytes,
                    work=g.flops if g.q.m else None, threads=sharing.threads(threads),
                    progress=sharing.progress(progress),
                ) as call,
            ):  # fmt: skip
                into: AbstractContextManager[Array | None] = nullcontext()
                if where is not None:
                    into = written(where, u_metadata(g), _WHY, steps)
                with into as target, Team(sharing) as team:
                    iteration = Iteration(
                        part, g, shares, call, team, draw, target, steps, tol
                    )  # fmt: skip
                    U, s, Vh = iteration.solve()
                report = whole_report(iteration.report(steps.notes(g.steps)), team)
        except KeyboardInterrupt as error:
            raise Interrupted(steps.stopped("svd", "svd", error)) from None
    assert isinstance(report, SvdReport), "it has the type of this one"
    _warn_unless_converged(report, tol)
    return U, s, Vh, report


def _warn_unless_converged(report: SvdReport, tol: float | None) -> None:
    if tol is None:
        return
    late = [number for number, each in enumerate(report.triplet_residuals) if not each <= tol]
    if late:
        warnings.warn(
            f"{len(late)} of {len(report.triplet_residuals)} singular triplets, from number "
            f"{late[0]} on, have not converged to tol={tol:g} in {report.passes} passes: their "
            f"residuals are up to {max(report.triplet_residuals):.1e} of s[0]; raise power= or "
            "oversample=, or pass a larger tol=",
            ConvergenceWarning,
            stacklevel=4,
        )


def _generator(seed: Any) -> np.random.Generator:
    try:
        generator: np.random.Generator = imported("numpy.random").default_rng(seed)
        return generator
    except (TypeError, ValueError):
        raise InvalidError(
            f"seed must be an integer of at least 0, a numpy.random.Generator or None, have "
            f"{seed!r}"
        ) from None


def _seed_of(seed: object, draw: np.random.Generator) -> object:
    """Return a value that distinguishes seeds; for a generator, its state."""
    if isinstance(seed, np.random.Generator):
        return repr(draw.bit_generator.state)
    return None if seed is None else repr(seed)
