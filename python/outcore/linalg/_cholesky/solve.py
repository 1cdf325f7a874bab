"""Solves with a Cholesky factor on disk: one forward and one backward pass over L.

    A x = b with A = L Lᴴ:    L y = b,    Lᴴ x = y

Each pass reads the tiles on and below the diagonal, whatever the number of right-hand sides. With k
right-hand sides there are 2n²k flops (8n²k complex).
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.linalg._lu.solve import solve_by_all
from outcore.linalg._output.factor import CholeskyFactor, refuse_others
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.steps_done import Made
from outcore.storage.volumes import PathLike


@opens_results(beside("b", ".x"))
def cho_solve(
    made: Made,
    c: CholeskyFactor,
    b: npt.ArrayLike | Array | PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> Any:
    """Solve A x = b with the Cholesky factor of A on disk.

    Parameters
    ----------
    c
        Factor from `cho_factor` or `open_factor`.
    b
        (n,) or (n, k): a NumPy array, or an array on disk or its path. The call solves for a `b` on
        disk in groups of as many columns as fit in memory; each group is a forward and a backward
        pass over L.
    dtype, memory, out, if_exists, resume, threads, progress, comm, timeout
        As for `lu_solve`.

    Returns
    -------
    numpy.ndarray or Array
        x, of the shape of `b`. Its type is the promotion of the factor and `b`, or `dtype`. It is
        on disk if `b` is or `out` is given, and its ``report`` then describes the call.
        `outcore.last_report` returns the report in either case.

    Raises
    ------
    InvalidError
        If `c` is not a Cholesky factor, or `b` does not fit it.
    BudgetError
        Before any work, if memory does not suffice.
    Interrupted
        After Ctrl-C or SIGTERM.
    """
    refuse_others(c, CholeskyFactor)
    return solve_by_all(
        c, b, "N", dtype, memory, out, if_exists, resume, threads, progress, comm, timeout, made
    )
