"""A process that makes Gauss-Seidel sweeps on ``numpy.memmap``: ``PATH N BLOCK SWEEPS``.

The operating system manages the memory, as in the virtual memory version of Cettei et al. (1997,
figure 5). The process never imports outcore.
"""

import json
import sys
import time

import numpy as np
import scipy.linalg


def main(path: str, n: int, rows: int, sweeps: int) -> None:
    a = np.memmap(path, np.complex128, "r", shape=(n, n))
    b, x = np.ones(n, complex), np.zeros(n, complex)
    strips = [slice(first, min(first + rows, n)) for first in range(0, n, rows)]
    start = time.perf_counter()
    factors = [scipy.linalg.lu_factor(a[here, here], check_finite=False) for here in strips]
    for _ in range(sweeps):
        for here, lu in zip(strips, factors, strict=True):
            r = (
                b[here]
                - a[here, : here.start] @ x[: here.start]
                - a[here, here.stop :] @ x[here.stop :]
            )
            x[here] = scipy.linalg.lu_solve(lu, r, check_finite=False)
    seconds = time.perf_counter() - start
    if "outcore" in sys.modules:
        raise AssertionError("this process is to be without outcore")
    print(json.dumps({"seconds": seconds, "sum": abs(x).sum()}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
