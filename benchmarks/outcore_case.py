"""A process for one operation of ``outcore.linalg``: ``CASE PATH RESULT BUDGET_BYTES``."""

import json
import sys
import time
from typing import Any

import numpy as np

import outcore as oc


def main(case: str, path: str, result: str, memory: int) -> None:
    options: dict[str, Any] = {"memory": memory, "progress": False}
    start = time.perf_counter()
    if case == "lu":
        oc.linalg.lu_factor(path, out=result, **options)
    elif case == "cholesky":
        oc.linalg.cho_factor(path, out=result, **options)
    elif case == "qr":
        np.save(result, oc.linalg.qr(path, mode="r", **options)[0])
    else:
        n = oc.open_array(path).shape[0]
        x, _ = oc.linalg.solve(path, np.ones(n), factors=f"{result}.lu", **options)
        np.save(result, x)
    print(json.dumps({"seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
