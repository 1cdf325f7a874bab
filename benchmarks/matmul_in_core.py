"""A process that multiplies arrays on disk in memory, by outcore's BLAS: ``A B``.

Reading them is not timed.
"""

import json
import sys
import time
from typing import Any

import numpy as np

import outcore as oc
from outcore.blas.lapack import kernels


def some_rows(C: Any) -> list[float]:
    """Return sums of some rows over all columns, with alternating signs."""
    rows = np.asarray(C[:: max(len(C) // 16, 1)])
    sums = rows @ np.where(np.arange(rows.shape[1]) % 2, -1.0, 1.0)
    return [*sums.real.tolist(), *sums.imag.tolist()]


def main(a: str, b: str) -> None:
    with oc.open_array(a) as A, oc.open_array(b) as B:
        left, right = A[...], B[...]
    product = np.empty((left.shape[0], right.shape[1]), left.dtype, order="F")
    product[...] = 0  # touches its pages before the clock starts, as for getrf
    start = time.perf_counter()
    kernels(left.dtype).gemm(left, right, product, beta=0)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "rows": some_rows(product)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
