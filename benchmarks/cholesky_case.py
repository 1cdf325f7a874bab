"""A process that factors a positive definite array on disk, by outcore or in memory.

``outcore PATH OUT BUDGET_BYTES``, or ``in_core PATH``: LAPACK's potrf through outcore's BLAS, where
reading the array is not timed.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.matrices import clear
from outcore.lapack import kernels


def outcore(path: str, out: str, memory: str) -> dict[str, Any]:
    clear(Path(out))
    start = time.perf_counter()
    factor = oc.linalg.cho_factor(path, memory=int(memory), out=out, progress=False)
    seconds = time.perf_counter() - start
    if factor.report is None:
        raise AssertionError("a factorization reports")
    with oc.open_array(Path(out) / "l") as L:
        diagonal = [L[i, i] for i in range(0, factor.n, max(factor.n // 64, 1))]
    return {"seconds": seconds, "sample": _sum(diagonal), **factor.report.to_dict()}


def in_core(path: str) -> dict[str, Any]:
    with oc.open_array(path) as A:
        a: Any = A[...]
    start = time.perf_counter()
    info = kernels(a.dtype).potrf(a, lower=True)
    seconds = time.perf_counter() - start
    if info:
        raise AssertionError("the matrix is positive definite")
    return {"seconds": seconds, "sample": _sum(np.diagonal(a)[:: max(len(a) // 64, 1)])}


def _sum(diagonal: Any) -> float:
    """Make one number of some of the diagonal, to compare."""
    return float(np.sum(np.log(np.real(diagonal))))


def main(who: str, *arguments: str) -> None:
    found = outcore(*arguments) if who == "outcore" else in_core(*arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
