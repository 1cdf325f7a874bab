"""A process that factors with SciPy alone: in memory, or in place on ``numpy.memmap``.

It never imports outcore, which would choose better kernels for it. SciPy gets its best case, a
matrix in Fortran order that it may overwrite, unchecked, or with ``plain`` the usual call:
``lu_factor(a)``.
"""

import json
import sys
import time

import numpy as np
import scipy.linalg
import threadpoolctl


def main(n: int, path: str | None) -> None:
    options = {"overwrite_a": True, "check_finite": False}
    if path == "plain":
        a = np.random.default_rng(1).random((n, n)) - 0.5
        options = {}
    elif path is None:
        a = np.empty((n, n), order="F")
        np.random.default_rng(1).random(out=a.T)
        a -= 0.5
    else:
        a = np.memmap(path, np.float64, "r+", shape=(n, n), order="F")
    scipy.linalg.lu_factor(np.eye(64))  # loads the BLAS and starts its threads

    start = time.perf_counter()
    _, piv = scipy.linalg.lu_factor(a, **options)
    seconds = time.perf_counter() - start

    if "outcore" in sys.modules:
        raise AssertionError("this process is to be without outcore")
    kernels = [
        f"{library['internal_api']} {library['version']} {library.get('architecture', '')}"
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas" and "numpy.libs" not in library["filepath"]
    ]
    print(json.dumps({"seconds": seconds, "kernels": ", ".join(kernels), "swaps": len(piv)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
