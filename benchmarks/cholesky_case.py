"""A process that factors a positive definite array on disk, by outcore or in memory.

``outcore PATH OUT BUDGET_BYTES``, or ``in_core PATH``: LAPACK's potrf through outcore's BLAS;
reading the array is not timed. OpenBLAS's potrf kills the process from an order of about 16,000
(`outcore.blas.blas.MOST_HERK`), so a larger matrix is cut in halves, each for potrf.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import outcore as oc
from benchmarks.machine import touch_memory
from benchmarks.matrices import clear
from outcore.blas.blas import MOST_HERK
from outcore.blas.lapack import kernels


def outcore(path: str, out: str, memory: str) -> dict[str, Any]:
    clear(Path(out))
    touch_memory(int(memory))
    cho_factor = oc.linalg.cho_factor  # its imports are not timed
    start = time.perf_counter()
    factor = cho_factor(path, memory=int(memory), out=out, progress=False)
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
    info = potrf_in_halves(a)
    seconds = time.perf_counter() - start
    if info:
        raise AssertionError("the matrix is positive definite")
    return {"seconds": seconds, "sample": _sum(np.diagonal(a)[:: max(len(a) // 64, 1)])}


def potrf_in_halves(a: Any) -> int:
    """Factor the lower triangle like potrf, with potrf on blocks within its limit."""
    k = kernels(a.dtype)
    if len(a) <= MOST_HERK:
        return k.potrf(a, lower=True)
    half = len(a) // 2
    info = potrf_in_halves(a[:half, :half])
    k.trsm(a[:half, :half], a[half:, :half], "R", lower=True, trans="C", unit=False)
    k.herk(a[half:, :half], a[half:, half:], alpha=-1, beta=1, lower=True)
    return info or potrf_in_halves(a[half:, half:])


def _sum(diagonal: Any) -> float:
    """Return one number from part of the diagonal, to compare."""
    return float(np.sum(np.log(np.real(diagonal))))


def main(who: str, *arguments: str) -> None:
    found = outcore(*arguments) if who == "outcore" else in_core(*arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
