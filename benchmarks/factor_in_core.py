"""A process that factors an array on disk in memory, by LAPACK through outcore's BLAS: ``PATH``.

Reading and converting to Fortran order are not timed.
"""

import json
import sys
import time
import zlib
from typing import Any

import numpy as np

import outcore as oc
from outcore.blas.lapack import kernels


def main(path: str) -> None:
    with oc.open_array(path) as A:
        a: Any = np.asfortranarray(A[...])
    piv = np.empty(len(a), np.int32)
    start = time.perf_counter()
    kernels(a.dtype).getrf(a, piv)
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "piv": zlib.crc32(piv.tobytes())}))


if __name__ == "__main__":
    main(sys.argv[1])
