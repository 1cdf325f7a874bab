"""A process that makes Gauss-Seidel sweeps with outcore: ``WAY PATH BLOCK SWEEPS BUDGET_BYTES``.

WAY is ``blocks``, the algorithm of Cettei et al. (1997, figure 6) on the block interface with
superblocks of a row of blocks and the factored diagonal blocks in memory, or ``gauss_seidel``.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import scipy.linalg

import outcore as oc


def by_blocks(A: oc.Array, rows: int, sweeps: int, memory: int) -> Any:
    n = len(A)
    count = -(-n // rows)
    b, x = np.ones(n, complex), np.zeros(n, complex)
    with A.blocks((rows, rows), (1, count), buffers=2, memory=memory) as B:
        factors = [scipy.linalg.lu_factor(B[i, i], check_finite=False) for i in range(count)]
        for _ in range(sweeps):
            for i in range(count):
                here = slice(i * rows, min((i + 1) * rows, n))
                r = b[here].copy()
                for j in range(count):
                    if j != i:
                        r -= B.view(i, j) @ x[j * rows : (j + 1) * rows]
                x[here] = scipy.linalg.lu_solve(factors[i], r, check_finite=False)
    return x


def main(way: str, path: str, rows: int, sweeps: int, memory: int) -> None:
    with oc.open_array(path) as A:
        start = time.perf_counter()
        if way == "blocks":
            x = by_blocks(A, rows, sweeps, memory)
        else:
            x, _ = oc.linalg.gauss_seidel(
                A, np.ones(len(A)), block=rows, direction="forward", tol=None, max_sweeps=sweeps,
                memory=memory, progress=False,
            )  # fmt: skip
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "sum": float(abs(x).sum())}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
